"""Faults that the tests must notice: each is put into a copy of the package, and some test must fail.

    python tests/mutations.py                 # all of them: 10 to 20 minutes
    python tests/mutations.py seed signature  # those whose names contain one of these words
    python tests/mutations.py --list          # their names; nothing is run
    python tests/mutations.py --check         # whether every old text is still found; nothing is run

Run it before tests are deleted or merged, and after code was moved. A mutation names a file of the package, a text that
stands there once, what takes its place, and the test files that must notice. The repository is copied once to a
temporary folder; nothing here is changed. Of each mutation one line is told:

- killed: a test failed, as it should;
- SURVIVED: all these tests pass over the fault. Write the test that is missing;
- LOST: the old text does not stand once in the file, nor once in all of the package. Code changed: mend the mutation;
- BROKEN: pytest could not run at all (a file of tests is gone, or the changed package cannot be imported).

The exit status is 0 when every mutation was killed. Slow tests take part only where a mutation says so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "privacy_assets"
SKIPPED = shutil.ignore_patterns(".*", "docs", "dist", "build")


@dataclass(frozen=True)
class Mutation:
    """``file`` below the package; ``old`` stands in it once; ``tests``, files below tests/ or tests of one."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def place(self, root: Path) -> Path | None:
        """The file with the old text: the one named, else the only one of the package that has it, once."""
        files = [root / PACKAGE / self.file, *sorted((root / PACKAGE).rglob("*.py"))]
        found = [path for path in files if path.is_file() and path.read_text().count(self.old) == 1]
        return found[0] if found[:1] == files[:1] or len(found) == 1 else None


MUTATIONS = [
    # --- statistics ---
    Mutation(
        "direction dropped: every statistic is one-sided",
        "stats/results.py", "direction=self.direction,", "",
        ("stats/test_results.py", "metrics/test_dcr.py"),
    ),
    Mutation(
        "null value of the spec dropped",
        "stats/results.py", "null=float(null if self.null is None else self.null)", "null=float(null or 0.0)",
        ("stats/test_results.py", "metrics/test_membership_inference.py"),
    ),
    Mutation(
        "train and holdout swapped in closeness",
        "metrics/dcr/matches.py", "train, holdout, synthetic = tables", "holdout, train, synthetic = tables",
        ("metrics/test_dcr.py",),
    ),
    Mutation(
        "train and holdout swapped in the labels of subjects",
        "stats/subjects.py", "member[codes[:n_train]] = True", "member[codes[n_train:]] = True",
        ("metrics/test_dcr.py",),
    ),
    Mutation(
        "train and holdout swapped in singling out",
        "metrics/singling_out/evidence.py",
        "(found.in_train == 1)", "(found.in_unseen == 1)",
        ("metrics/test_singling_out.py",),
    ),
    Mutation(
        "seed of a metric ignored",
        "metrics/inputs.py", "np.random.SeedSequence(self.seed, spawn_key=", "np.random.SeedSequence(0, spawn_key=",
        ("metrics/test_every_metric.py",),
    ),
    Mutation(
        "draws depend on the order of the people",
        "stats/subjects.py", "weights = weights[np.lexsort(weights.T)]", "weights = weights[:]",
        ("metrics/test_every_metric.py",),
    ),
    Mutation(
        "one outlier flattens its column",
        "tables/encoding.py", "_CLIP = 0.001", "_CLIP = 0.0",
        ("metrics/test_dcr.py::test_one_outlier_does_not_flatten_its_column",),
    ),
    Mutation(
        "numbers that are not measurable come back from JSON as zeros",
        "stats/results.py", "math.nan if data[key] is None else", "0.0 if data[key] is None else",
        ("stats/test_results.py", "metrics/test_every_metric.py"),
    ),
    Mutation(
        "labels permuted by row instead of by subject",
        "metrics/inputs.py",
        "return np.unique(stacked, return_inverse=True)[1].astype(np.int64)", "return np.arange(len(stacked))",
        ("metrics/test_every_metric.py::test_statistics_are_those_of_the_specs",),
    ),
    Mutation(
        "ties at a threshold all credited to privacy",
        "metrics/membership_inference/scores.py",
        "(below + weight * (upto - below))", "(below + 0 * (upto - below))",
        ("metrics/test_membership_inference.py",),
    ),
    Mutation(
        "off by one in ties: rows at the quantile count as below it",
        "metrics/dcr/privacy_score.py",
        'below = np.searchsorted(ordered, self.values, side="left")',
        'below = np.searchsorted(ordered, self.values, side="right")',
        ("metrics/test_dcr.py",),
    ),
    Mutation(
        "a row that several people have counts as somebody's own",
        "metrics/dcr/identical.py", "return holders[ids] == 1", "return holders[ids] >= 1",
        ("metrics/test_dcr.py",),
    ),
    Mutation(
        "bands of one statistic instead of simultaneous ones",
        "stats/inference.py", "sd > 0, sd, np.inf)).max(axis=1)", "sd > 0, sd, np.inf)).min(axis=1)",
        ("stats/test_intervals.py",),
    ),
    Mutation(
        "resampled subjects widen no band",
        "stats/inference.py",
        'np.maximum(half, float(np.quantile(away', 'np.minimum(half, float(np.quantile(away',
        ("stats/test_intervals.py",),
    ),
    # --- policy ---
    Mutation(
        "NaN passes a limit",
        "stats/limits.py",
        "return not (measured <= self.value if self.at_most is not None else measured >= self.value)",
        "return measured > self.value if self.at_most is not None else measured < self.value",
        ("test_policy.py",),
    ),
    Mutation(
        "a statistic that is not measurable is judged",
        "stats/limits.py", "if not estimate.measurable:", "if False:",
        ("test_policy.py",),
    ),
    Mutation(
        "limits on lower bounds ignored",
        "stats/limits.py",
        "attempt) for limit in self.limits)", 'attempt) for limit in self.limits if limit.bound != "lower")',
        ("test_policy.py",),
    ),
    Mutation(
        "a leak that was shown fails no limit",
        "stats/limits.py", "if limit.exceeded_by(significant):", "if False:",
        ("test_policy.py",),
    ),
    Mutation(
        "the far side of a two-sided statistic ignored",
        "stats/limits.py", 'return max(up, down) if bound == "upper"', 'return up if bound == "upper"',
        ("test_policy.py",),
    ),
    Mutation(
        "decision on rounded values",
        "stats/limits.py",
        "return not (measured <= self.value if", "measured = round(measured, 2); return not (measured <= self.value if",
        ("test_policy.py",),
    ),
    Mutation(
        "too few subjects are enough",
        "stats/limits.py", "if lacking > 0:", "if False:",
        ("test_policy.py",),
    ),
    Mutation(
        "what is undecided passes",
        "stats/limits.py",
        "if limit.exceeded_by(measured):\n        if limit.bound", "if False:\n        if limit.bound",
        ("test_policy.py",),
    ),
    Mutation(
        "further attempts are judged as the first",
        "stats/limits.py", "far = widening(attempt, estimate.confidence)", "far = widening(1, statistic.confidence)",
        ("test_policy.py",),
    ),
    Mutation(
        "what cannot be assessed passes",
        "stats/limits.py", 'return self.status == "pass"', 'return self.status != "fail"',
        ("test_policy.py",),
    ),
    # --- gate ---
    Mutation(
        "signatures are not verified",
        "gate/statements.py", "envelope.verify([keys[keyid]], 1)", "pass",
        ("gate/test_statements.py",),
    ),
    Mutation(
        "every key is trusted as the first one",
        "gate/statements.py", "if keyid not in keys:", "keys = {keyid: next(iter(keys.values()))}\n        if False:",
        ("gate/test_statements.py",),
    ),
    Mutation(
        "a statement has many spellings",
        "gate/statements.py", "if spelled != sealed.data or", "if",
        ("gate/test_statements.py",),
    ),
    Mutation(
        "the seal of the split is not checked",
        "gate/gate.py", "if (found.body, found.sha256) != (", "if found is None and () != (",
        ("plugin/test_storage_writers.py", "plugin/test_routes_gate.py"),
    ),
    Mutation(
        "an attestation fits every snapshot",
        "gate/gate.py", "if (taken.sha256, taken.content) != (stated.sha256, stated.content):", "if False:",
        ("gate/test_gate.py",),
    ),
    Mutation(
        "a result fits every snapshot",
        "gate/gate.py", "if statement.sha256 != snapshot.sha256:", "if False:",
        ("gate/test_gate.py",),
    ),
    Mutation(
        "failures are not remembered",
        "gate/failures.py", 'if outcome.status != "fail":', "if True:",
        ("gate/test_failures.py",),
    ),
    Mutation(
        "publishing does not ask the memory of failures",
        "gate/gate.py", "judged.check_memory(self._remembered(policy, place, stated.content, pool_partitions))", "pass",
        ("gate/test_failures.py",),
    ),
    Mutation(
        "published without hashing what was copied",
        "gate/release.py", "if digest.hexdigest() != sha256:", "if False:",
        ("gate/test_snapshots.py", "gate/test_gate.py"),
    ),
    Mutation(
        "read without hashing",
        "gate/snapshot.py", "if hashlib.sha256(data).hexdigest() != sha256:", "if False:",
        ("gate/test_snapshots.py", "gate/test_gate.py"),
    ),
    Mutation(
        "any policy will do",
        "gate/attestation.py", "if attestation.policy_digest != policy.digest():", "if False:",
        ("gate/test_gate.py",),
    ),
    Mutation(
        "a failed verdict is published",
        "gate/attestation.py", 'if attestation.verdict != "pass" or judgement.verdict != "pass":', "if False:",
        ("gate/test_gate.py",),
    ),
    Mutation(
        "another table or partition will do",
        "gate/attestation.py", "if found != place:", "if False:",
        ("gate/test_gate.py", "gate/test_statements.py"),
    ),
    Mutation(
        "a score of other settings or another seed will do",
        "gate/attestation.py", "if metric is None or result.seed != seed or", "if False and",
        ("gate/test_gate.py",),
    ),
    Mutation(
        "what was replaced is published again",
        "gate/publication_attempts.py", "if found and found[-1] != before[-1]:", "if False:",
        ("gate/test_every_place.py",),
    ),
    Mutation(
        "attempts are not counted",
        "gate/publication_attempts.py", "number = 1 + max((number for number, _ in known), default=0)", "return 1",
        ("gate/test_every_place.py",),
    ),
    # --- what is told ---
    Mutation(
        "errors of others pass with their words",
        "pipeline/redaction.py", "if not isinstance(error, (PrivacyAssetsError, *passing)):", "if False:",
        ("plugin/test_planted_values.py",),
    ),
    Mutation(
        "what a step prints is kept by Airflow",
        "pipeline/redaction.py",
        "with redirect_stdout(nothing), redirect_stderr(nothing):",
        "if nothing:",
        ("test_redaction.py",),
    ),
    # --- generators ---
    Mutation(
        "seed of a Bayesian network ignored",
        "generators/baynet.py",
        "rng, sizes = np.random.default_rng(seed), self.domains.sizes",
        "rng, sizes = np.random.default_rng(0), self.domains.sizes",
        ("generators/test_every_generator.py", "generators/test_baynet.py"),
    ),
    Mutation(
        "seed of the trees ignored",
        "generators/synthpop.py",
        "np.random.SeedSequence(seed, spawn_key=(place,))", "np.random.SeedSequence(0, spawn_key=(place,))",
        ("generators/test_every_generator.py", "generators/test_trees.py"),
    ),
]  # fmt: skip


def outcome(mutation: Mutation, copy: Path) -> str:
    """Put the fault into the copy, run its tests, and take it out again."""
    place = mutation.place(copy)
    if place is None:
        return f"LOST      the text {mutation.old!r} does not stand once in {mutation.file}, nor elsewhere"
    where, text = place.relative_to(copy), place.read_text()
    kept = place.with_suffix(".kept")
    shutil.move(place, kept)  # with its times: what was compiled from it stays good
    try:
        place.write_text(text.replace(mutation.old, mutation.new))
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider",
             *(f"tests/{name}" for name in mutation.tests)],
            cwd=copy, env={**os.environ, "PYTHONPATH": str(copy)}, capture_output=True, text=True,
        )  # fmt: skip
    finally:
        shutil.move(kept, place)
    if done.returncode == 0:
        return f"SURVIVED  {where}: {', '.join(mutation.tests)}"
    noticed = [line for line in done.stdout.splitlines() if line.startswith("FAILED ")]
    if done.returncode != 1 or not noticed:
        return f"BROKEN    {where}: pytest ended with {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    return f"killed    by {noticed[0].removeprefix('FAILED ').partition(' - ')[0]}"


def main(arguments: list[str]) -> int:
    """See the docstring of this file."""
    options = {word for word in arguments if word.startswith("--")}
    words = [word for word in arguments if word not in options]
    chosen = [one for one in MUTATIONS if not words or any(word in one.name for word in words)]
    if "--list" in options:
        print("\n".join(one.name for one in chosen))
        return 0
    if "--check" in options:
        gone = [one for one in chosen if one.place(ROOT) is None]
        files = {one: [ROOT / "tests" / name.partition("::")[0] for name in one.tests] for one in chosen}
        gone += [one for one, tests in files.items() if not all(path.is_file() for path in tests)]
        print("\n".join(f"LOST  {one.name}: {one.file}, {one.old!r}, {one.tests}" for one in gone) or "all are found")
        return bool(gone)
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / ROOT.name
        shutil.copytree(ROOT, copy, ignore=SKIPPED)
        for one in chosen:
            said = outcome(one, copy)
            bad += not said.startswith("killed")
            print(f"{said}   [{one.name}]", flush=True)
    return bool(bad)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
