"""Mutation tests: apply each fault to a copy of the package; a test must fail by an assertion.

    python -m tests.mutations                 # all of them: 10 to 20 minutes
    python -m tests.mutations seed signature  # those whose names contain one of these words
    python -m tests.mutations --list          # only print their names
    python -m tests.mutations --check         # only check that all texts and tests exist

Run it before tests are deleted or merged, and after code was moved. A mutation names a file of the
package, a text that occurs there once, its replacement, and the tests that detect the fault. The
repository is copied once to a temporary folder and is not changed itself. One line is printed for
each mutation:

- killed: a test failed by an assertion;
- SURVIVED: all tests passed. Write the missing test;
- CRASHED: tests failed, but by exceptions only. Name a test that asserts the behavior, or write it;
- LOST: the old text does not occur exactly once in the file. Fix the mutation;
- BROKEN: pytest could not run (a test is missing, or the package cannot be imported).

The exit status is 0 if every mutation was killed. Slow tests run only if they are named with
``file::test``.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "privacy_assets"
SKIPPED = shutil.ignore_patterns(".*", "docs", "dist", "build")
# includes pytest.raises without an error
ASSERTION = re.compile(r" - (AssertionError|assert |Failed: )")


@dataclass(frozen=True)
class Mutation:
    """Fault in ``file`` (relative to the package), where ``old`` occurs once.

    ``tests`` are files in tests/ or tests in them.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def is_lost(self, root: Path) -> bool:
        """Whether the old text does not occur exactly once in the file, or a named test does not
        exist.
        """
        path = root / PACKAGE / self.file
        if not path.is_file() or path.read_text().count(self.old) != 1:
            return True
        for name in self.tests:
            file, _, test = name.partition("::")
            if not (root / "tests" / file).is_file():
                return True
            if test and f"def {test}(" not in (root / "tests" / file).read_text():
                return True
        return False


MUTATIONS = [
    # --- statistics ---
    Mutation(
        "direction dropped: every statistic is one-sided",
        "stats/estimates.py",
        "direction=self.direction,",
        "",
        ("stats/test_estimates.py", "metrics/test_dcr.py"),
    ),
    Mutation(
        "null value of the spec dropped",
        "stats/estimates.py",
        "null=float(self.null)",
        "null=0.0",
        ("stats/test_estimates.py", "metrics/test_membership_inference.py"),
    ),
    Mutation(
        "train and holdout swapped in the labels of subjects",
        "stats/subjects.py",
        "member[codes[:n_train]] = True",
        "member[codes[n_train:]] = True",
        ("metrics/test_dcr.py",),
    ),
    Mutation(
        "train and holdout swapped in singling out",
        "metrics/singling_out/metric.py",
        "(queries.in_train == 1)",
        "(queries.in_non_members == 1)",
        ("metrics/test_singling_out.py",),
    ),
    Mutation(
        "seed of a metric ignored",
        "metrics/inputs.py",
        "np.random.SeedSequence(self.seed, spawn_key=",
        "np.random.SeedSequence(0, spawn_key=",
        ("metrics/test_every_metric.py",),
    ),
    Mutation(
        "draws depend on the order of the people",
        "stats/inference.py",
        "by_subject[np.lexsort(weights)]",
        "by_subject[:]",
        ("metrics/test_every_metric.py",),
    ),
    Mutation(
        "one outlier flattens its column",
        "tables/encoding.py",
        "_CLIP = 0.001",
        "_CLIP = 0.0",
        ("metrics/test_dcr.py::test_one_outlier_does_not_flatten_its_column",),
    ),
    Mutation(
        "numbers that are not measurable come back from JSON as zeros",
        "stats/estimates.py",
        "    if value is None:\n        return math.nan",
        "    if value is None:\n        return 0.0",
        ("stats/test_estimates.py", "metrics/test_every_metric.py"),
    ),
    Mutation(
        "labels permuted by row instead of by subject",
        "metrics/release_tables.py",
        "return np.unique(codes, return_inverse=True)[1].astype(np.int64)",
        "return np.arange(len(codes))",
        ("metrics/test_every_metric.py::test_statistics_are_those_of_the_specs",),
    ),
    Mutation(
        "ties at a threshold all credited to privacy",
        "metrics/membership_inference/scores.py",
        "(below + weights * (up_to - below))",
        "(below + 0 * (up_to - below))",
        ("metrics/test_membership_inference.py",),
    ),
    Mutation(
        "off by one in ties: rows at the quantile count as below it",
        "metrics/dcr.py",
        'below = np.searchsorted(ordered, self.values, side="left")',
        'below = np.searchsorted(ordered, self.values, side="right")',
        ("metrics/test_dcr.py",),
    ),
    Mutation(
        "a row that several people have counts as a single subject's row",
        "metrics/dcr.py",
        "return n_holders[ids] == 1",
        "return n_holders[ids] >= 1",
        ("metrics/test_dcr.py",),
    ),
    Mutation(
        "bands of one statistic instead of simultaneous ones",
        "stats/inference.py",
        "deviations.max(axis=1)",
        "deviations.min(axis=1)",
        ("stats/test_intervals.py",),
    ),
    Mutation(
        "resampled subjects widen no band",
        "stats/inference.py",
        "np.maximum(half, _quantile(resampled",
        "np.minimum(half, _quantile(resampled",
        ("stats/test_intervals.py",),
    ),
    # --- policy ---
    Mutation(
        "NaN passes a limit",
        "policy.py",
        "return not measured <= self.value",
        "return measured > self.value",
        ("test_policy.py",),
    ),
    Mutation(
        "a statistic that is not measurable is judged",
        "policy.py",
        "if not estimate.measurable:",
        "if False:",
        ("test_policy.py",),
    ),
    Mutation(
        "limits on lower bounds ignored",
        "policy.py",
        "judged.append(judge_limit(limit, results.get(limit.metric), attempt))",
        "judged += [judge_limit(limit, results.get(limit.metric), attempt)]"
        ' if limit.bound != "proven" else []',
        ("test_policy.py",),
    ),
    Mutation(
        "a leak that was shown fails no limit",
        "policy.py",
        "if limit.exceeded_by(significant):",
        "if False:",
        ("test_policy.py",),
    ),
    Mutation(
        "the far side of a two-sided statistic ignored",
        "policy.py",
        '"conservative": max(high - estimate.null, estimate.null - low),',
        '"conservative": high - estimate.null,',
        ("test_policy.py",),
    ),
    Mutation(
        "decision on rounded values",
        "policy.py",
        "return not measured <= self.value",
        "return not round(measured, 2) <= self.value",
        ("test_policy.py",),
    ),
    Mutation(
        "too few subjects are enough",
        "policy.py",
        "if estimate.subjects < limit.min_subjects:\n        reason",
        "if False:\n        reason",
        ("test_policy.py",),
    ),
    Mutation(
        "what is undecided passes",
        "policy.py",
        "if not is_beyond:\n        reason",
        "if True:\n        reason",
        ("test_policy.py",),
    ),
    Mutation(
        "further attempts are judged as the first",
        "policy.py",
        "factor = widening(attempt, estimate.confidence)",
        "factor = widening(1, estimate.confidence)",
        ("test_policy.py",),
    ),
    Mutation(
        "what cannot be assessed passes",
        "policy.py",
        'return self.status == "pass"',
        'return self.status != "fail"',
        ("test_policy.py",),
    ),
    Mutation(
        "limits that a copy of train does not break count as evidence",
        "policy.py",
        "if is_unanswered or (outcome.blind and not can_fail):",
        "if outcome.blind and not can_fail:",
        ("test_policy.py",),
    ),
    Mutation(
        "rows that many people have count as own",
        "metrics/copies.py",
        "self.n_real[0] < self.max_holders",
        "self.n_real[0] >= 0",
        ("metrics/test_copies.py",),
    ),
    Mutation(
        "a row with changed cells is similar to the person's own rows",
        "metrics/copies.py",
        "counts[n_changed[is_similar], i[is_similar]] -= 1",
        "counts[n_changed[is_similar], i[is_similar]] -= 0",
        ("metrics/test_copies.py",),
    ),
    Mutation(
        "repeated rows of unseen people are not subtracted",
        "metrics/copies.py",
        "np.where(is_of_member, 1.0, 1 - 1 / p_no_member)",
        "np.where(is_of_member, 1.0, 0.0)",
        ("metrics/test_copies.py",),
    ),
    Mutation(
        "a match counts without its margin over other people",
        "metrics/_kernels.py",
        "margin = sums[i, j] - largest[j, -1]",
        "margin = sums[i, j]",
        ("metrics/test_match_weight.py",),
    ),
    Mutation(
        "a margin is over another row of the same person",
        "metrics/_kernels.py",
        "if holders[rank] == subject:",
        "if holders[rank] == -2:",
        ("metrics/test_match_weight.py",),
    ),
    Mutation(
        "shares of a small release are of all people of train",
        "metrics/copies.py",
        "return effect.over(scale * largest_share)",
        "return effect.over(scale)",
        ("metrics/test_copies.py",),
    ),
    Mutation(
        "copies are decided in a table of two columns",
        "metrics/copies.py",
        "return n_varying <= _MOST_UNDECIDED_COLUMNS and bool(narrow_note(inputs))",
        "return False",
        ("metrics/test_copies.py",),
    ),
    Mutation(
        "the copy of train is larger than the release",
        "metrics/inputs.py",
        "n_copied = min(n_kept, len(self.synthetic))",
        "n_copied = n_kept",
        ("metrics/test_copy_of_train.py",),
    ),
    # --- gate ---
    Mutation(
        "signatures are not verified",
        "gate/envelope.py",
        "envelope.verify([keys[keyid]], 1)",
        "pass",
        ("gate/test_envelope.py",),
    ),
    Mutation(
        "every key is trusted as the first one",
        "gate/envelope.py",
        "if keyid not in keys:",
        "keys = {keyid: next(iter(keys.values()))}\n        if False:",
        ("gate/test_envelope.py",),
    ),
    Mutation(
        "a payload has many spellings",
        "gate/envelope.py",
        "if not is_canonical or",
        "if",
        ("gate/test_envelope.py",),
    ),
    Mutation(
        "the seal of the split is not checked",
        "gate/signed_files.py",
        'if payload.body != {"role": role, "setup": to_jsonable(setup), "digest": digest}:',
        "if False:",
        ("dagster/test_storage_writers.py::test_rows_moved_between_train_and_holdout_are_blocked",),
    ),
    Mutation(
        "an attestation fits every snapshot",
        "gate/attestation.py",
        "if (snapshot.sha256, snapshot.content) != (attestation.sha256, attestation.content):",
        "if False:",
        ("gate/test_gate.py",),
    ),
    Mutation(
        "a result fits every snapshot",
        "gate/signed_files.py",
        "if payload.sha256 != snapshot.sha256:",
        "if False:",
        ("gate/test_gate.py",),
    ),
    Mutation(
        "a task uses folders that are no longer those of its deployment",
        "pipeline/steps.py",
        "run.gate.check_folders()",
        "_ = run.gate",
        ("pipeline/test_work.py",),
    ),
    Mutation(
        "a check of a publication is left out",
        "gate/publication.py",
        "    _check_ids,\n",
        "",
        ("gate/test_gate.py",),
    ),
    Mutation(
        "two runs of a table at the same time",
        "pipeline/lease.py",
        "if is_silent or ended(holder.run):",
        "if True:",
        ("gate/test_lease.py",),
    ),
    Mutation(
        "a second task of a run publishes the same table and partition",
        "pipeline/stored_run.py",
        "if holder != self.task_id:",
        "if False:",
        ("pipeline/test_stored_steps.py",),
    ),
    Mutation(
        "a brought table of any size",
        "tables/canonical.py",
        "    if n_rows > allowed:",
        "    if False:",
        ("reading/test_cases.py",),
    ),
    Mutation(
        "a pointer of the future is young",
        "gate/release.py",
        "        if is_ahead(self.at):",
        "        if False:",
        ("gate/test_every_place.py",),
    ),
    Mutation(
        "an old copy of the release folder with a withdrawn release is whole",
        "gate/verification.py",
        "    if log.is_withdrawn(best.attestation.sha256, best.attestation.content):",
        "    if False:",
        ("cli/test_cli_gate.py",),
    ),
    Mutation(
        "a damaged run lease is free",
        "pipeline/lease.py",
        "raise StoreUnavailable(\n"
        "                text, path=str(self._file), errno=errno.EINVAL, fix=fix\n"
        "            ) from None",
        'return Holder("", 0.0, 0.0, 0, "")',
        ("gate/test_lease.py",),
    ),
    Mutation(
        "failures are not remembered",
        "gate/log.py",
        'if outcome.status == "fail":',
        "if False:",
        ("gate/test_failures.py",),
    ),
    Mutation(
        "publishing does not ask the memory of failures",
        "gate/publication.py",
        "check_earlier_failures(state.failures(request.policy, request.attestation, part))",
        "pass",
        ("gate/test_failures.py",),
    ),
    Mutation(
        "published without hashing what was copied",
        "gate/release.py",
        "if digest.hexdigest() != sha256:",
        "if False:",
        ("gate/test_snapshots.py", "gate/test_gate.py"),
    ),
    Mutation(
        "read without hashing",
        "infra/storage.py",
        """
            return None
        size = stream.tell()
        stream.seek(0)
        data = stream.read(size)
    return data if hashlib.sha256(data).hexdigest() == sha256 else None
""",
        """
            pass
        stream.seek(0)
        return stream.read()
""",
        ("gate/test_snapshots.py::test_no_flipped_bit_of_a_table_is_accepted",),
    ),
    Mutation(
        "any policy will do",
        "gate/attestation.py",
        "if attestation.policy_digest != policy_digest(policy):",
        "if False:",
        ("gate/test_gate.py",),
    ),
    Mutation(
        "a failed verdict is published",
        "gate/attestation.py",
        'if verdict.status != "pass" or verdict.not_passed:',
        "if False:",
        ("gate/test_gate.py",),
    ),
    Mutation(
        "the private results are not evaluated again",
        "gate/publication.py",
        "check_verdict(verdict, attestation.earlier_failures)",
        "pass",
        ("gate/test_gate.py",),
    ),
    Mutation(
        "a private result that was changed is believed",
        "gate/signed_files.py",
        "if self._result_digest(data) != digest:",
        "if not data:",
        ("gate/test_gate.py",),
    ),
    Mutation(
        "another table or partition will do",
        "gate/attestation.py",
        "if actual != target:",
        "if False:",
        ("gate/test_gate.py", "gate/test_envelope.py"),
    ),
    Mutation(
        "a score of other settings or another seed will do",
        "gate/attestation.py",
        "result.seed != seed\n        or to_jsonable",
        "False and to_jsonable",
        ("gate/test_gate.py",),
    ),
    Mutation(
        "what was replaced is published again",
        "gate/publication.py",
        "if same and same[-1] != history[-1]:",
        "if False:",
        ("gate/test_every_place.py",),
    ),
    Mutation(
        "what was withdrawn is published again",
        "gate/publication.py",
        'raise Superseded("these rows were withdrawn',
        'str("these rows were withdrawn',
        ("gate/test_log.py",),
    ),
    Mutation(
        "a stop that changed after it was shown is accepted",
        "gate/keeper.py",
        "if digest and self.suspension(table).digest != digest:",
        "if False:",
        ("cli/test_cli_accept.py",),
    ),
    Mutation(
        "another digest signs all pending parts",
        "cli/accept.py",
        "if digest in digests]",
        "]",
        ("cli/test_cli_accept.py",),
    ),
    Mutation(
        "a failure is forgotten if a cell is changed within its group",
        "gate/log.py",
        'or failure["sha256"] == rows.sha256',
        "or False",
        ("gate/test_failures.py",),
    ),
    Mutation(
        "attempts are not counted",
        "gate/log.py",
        "return 1 + n_unreleased",
        "return 1",
        ("gate/test_log.py",),
    ),
    # --- redaction ---
    Mutation(
        "errors of others pass with their words",
        "pipeline/redaction.py",
        "if not isinstance(error, (PrivacyAssetsError, *passing)):",
        "if False:",
        ("bypasses/test_planted_values.py", "test_redaction.py"),
    ),
    Mutation(
        "what a step prints is kept by Airflow",
        "pipeline/redaction.py",
        "with redirect_stdout(nothing), redirect_stderr(nothing):",
        "if nothing:",
        ("test_redaction.py",),
    ),
    # --- files ---
    Mutation(
        "a Delta table is read as a folder",
        "tables/files.py",
        "    check_is_no_lakehouse(root, files)\n",
        "",
        ("reading/test_table_folders.py",),
    ),
    Mutation(
        "a folder that cannot be listed is no Delta table",
        "tables/folders.py",
        "            if may_be_closed:\n",
        "            if True:\n",
        ("reading/test_table_folders.py",),
    ),
    Mutation(
        "copies of a file are read twice",
        "tables/file_agreement.py",
        "        if first is not file:\n",
        "        if False:\n",
        ("reading/test_table_folders.py",),
    ),
    Mutation(
        "files of two types are joined",
        "tables/file_agreement.py",
        "if kind != expected:",
        "if False:",
        ("reading/test_table_folders.py",),
    ),
    Mutation(
        "a missing name in brackets is a pattern",
        "tables/folders.py",
        'return _BRACKET.sub("[[]", text)',
        "return text",
        ("reading/test_table_folders.py",),
    ),
    Mutation(
        "the sensor trusts a time that programs can set",
        "infra/storage.py",
        ", facts.st_ctime_ns]",
        "]",
        ("dagster/test_sensors.py",),
    ),
    # --- generators ---
    Mutation(
        "values of one person less than the threshold are published",
        "tables/published_categories.py",
        "n_holders < k and value not in public",
        "n_holders < k - 1 and value not in public",
        ("tables/test_published_categories.py", "tables/test_threshold_rule.py"),
    ),
    Mutation(
        "a few people alone have what is published as other",
        "tables/published_categories.py",
        "    for absorbed_name in absorbed:\n        recoding.rename(absorbed_name, name)",
        "",
        ("tables/test_published_categories.py",),
    ),
    Mutation(
        "two spellings of an id are two people",
        "tables/subject_ids.py",
        "    if not declared.exact_ids:\n        check_ids(ids, names)\n",
        "",
        ("reading/test_ids.py",),
    ),
    Mutation(
        "an id in another spelling is on another side",
        "tables/splitting.py",
        "    if not exact_ids:\n        subjects = _plain_subjects(table, subjects)\n",
        "",
        ("reading/test_ids.py",),
    ),
    Mutation(
        "another package takes a name of the core",
        "infra/registry.py",
        "        if name in self.core and owners:\n",
        "        if False:\n",
        ("infra/test_registry.py",),
    ),
    Mutation(
        "a metric of another package gets the tables that other metrics measure",
        "evaluation/measuring.py",
        "metric.measure(inputs.copied())",
        "metric.measure(inputs)",
        ("evaluation/test_foreign_metrics.py",),
    ),
    Mutation(
        "a result of another version of its package is accepted",
        "gate/attestation.py",
        "    if result.distribution != distribution:\n",
        "    if False:\n",
        ("gate/test_extensions.py",),
    ),
    Mutation(
        "the digest of a policy leaves out settings that a limited metric takes from others",
        "metrics/policies.py",
        "            names += METRICS[name].uses_settings_of\n",
        "            pass\n",
        ("test_policy.py",),
    ),
    Mutation(
        "the digest of a policy leaves out the package of a metric",
        "metrics/policies.py",
        '        resolved["distributions"] = distributions\n',
        "        pass\n",
        ("gate/test_extensions.py",),
    ),
    Mutation(
        "the signed setup leaves out the packages",
        "pipeline/resolve.py",
        '            setup["distributions"] = distributions\n',
        "            pass\n",
        ("gate/test_extensions.py",),
    ),
    Mutation(
        "the ledger looks up the exact id only",
        "metrics/ledger.py",
        "np.where(ratio[by_plain] > ratio[by_exact], by_plain, by_exact)",
        "by_exact",
        ("metrics/test_ledger.py",),
    ),
    Mutation(
        "the ledger keeps a second entry of a person in another spelling",
        "metrics/ledger.py",
        " & ~np.isin(self.plain, latest.plain)",
        "",
        ("metrics/test_ledger.py",),
    ),
    Mutation(
        "the accepted settings leave out exact ids",
        "tables/declared.py",
        'frozenset({"each_row", "read"})',
        'frozenset({"each_row", "read", "exact_ids"})',
        ("reading/test_ids.py::test_exact_ids_are_an_accepted_setting",),
    ),
    Mutation(
        "a random code is the number zero",
        "tables/subject_ids.py",
        '        return None  # "0e123456" is a random code',
        "        pass",
        ("reading/test_ids.py",),
    ),
    Mutation(
        "a public list needs no source",
        "tables/threshold_rule.py",
        "public = set(listed) if column.source else set()",
        "public = set(listed)",
        ("tables/test_threshold_rule.py",),
    ),
    Mutation(
        "an external table keeps its rare values",
        "pipeline/work.py",
        "rows = output.table.without_rare(rules, where=where)",
        "rows = output.table",
        ("pipeline/test_rare_values.py",),
    ),
    Mutation(
        "a group of numbers has one person too few",
        "tables/_group_kernels.py",
        "counts[group, column] < k:",
        "counts[group, column] < k - 1:",
        ("tables/test_published_numbers.py",),
    ),
    Mutation(
        "groups of numbers are cut as soon as possible",
        "tables/_group_kernels.py",
        "or jumps[value] > jumps[cut]:",
        "and False:",
        ("tables/test_published_numbers.py",),
    ),
    Mutation(
        "columns share levels whatever they lose",
        "tables/ordered_columns.py",
        "_MIN_KEPT * len(self.groups)",
        "0",
        ("tables/test_ordered_columns.py",),
    ),
    Mutation(
        "numbers far outside are published",
        "tables/column_rule.py",
        "            self._check_not_foreign(published, where)\n",
        "            pass\n",
        ("pipeline/test_rare_values.py",),
    ),
    Mutation(
        "seed of a Bayesian network ignored",
        "generators/bayes.py",
        "rng = np.random.default_rng(seed)\n        codes = np.empty(",
        "rng = np.random.default_rng(0)\n        codes = np.empty(",
        ("generators/test_every_generator.py", "generators/test_bayes.py"),
    ),
    Mutation(
        "seed of the trees ignored",
        "generators/synthpop.py",
        "np.random.SeedSequence(seed, spawn_key=(i,))",
        "np.random.SeedSequence(0, spawn_key=(i,))",
        (
            "generators/test_every_generator.py::"
            "test_the_same_seed_gives_the_same_rows_and_they_are_a_table_of_the_schema",
        ),
    ),
]


def outcome(mutation: Mutation, copy: Path) -> str:
    """Apply the fault to the copy, run its tests, and undo it."""
    if mutation.is_lost(copy):
        return f"LOST      {mutation.file}: {mutation.old!r}, {mutation.tests}"
    path = copy / PACKAGE / mutation.file
    text, kept = path.read_text(), path.with_suffix(".kept")
    shutil.move(path, kept)  # keeps its timestamps, so that its compiled code stays valid
    slow = ["-m", "slow or not slow"] if all("::" in name for name in mutation.tests) else []
    try:
        path.write_text(text.replace(mutation.old, mutation.new))
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "--no-header",
                "--tb=no",
                "-p",
                "no:cacheprovider",
                *slow,
                *(f"tests/{name}" for name in mutation.tests),
            ],
            cwd=copy,
            env={**os.environ, "PYTHONPATH": str(copy), "COLUMNS": "1000"},
            capture_output=True,
            text=True,
        )
    finally:
        shutil.move(kept, path)
    if done.returncode == 0:
        return f"SURVIVED  {mutation.file}: {', '.join(mutation.tests)}"
    failed = [
        line.removeprefix("FAILED ")
        for line in done.stdout.splitlines()
        if line.startswith("FAILED ")
    ]
    if done.returncode != 1 or not failed:
        return (
            f"BROKEN    {mutation.file}: exit status"
            f" {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    asserted = [line for line in failed if ASSERTION.search(line)]
    return (
        f"killed    by {asserted[0].partition(' - ')[0]}" if asserted else f"CRASHED   {failed[0]}"
    )


def main(arguments: list[str]) -> int:
    """Run or list the chosen mutations, as described in the docstring of this file."""
    options = {word for word in arguments if word.startswith("--")}
    words = [word for word in arguments if word not in options]
    chosen = [one for one in MUTATIONS if not words or any(word in one.name for word in words)]
    if "--list" in options:
        print("\n".join(one.name for one in chosen))
        return 0
    if "--check" in options:
        lost = [one for one in chosen if one.is_lost(ROOT)]
        print(
            "\n".join(f"LOST  {one.name}: {one.file}, {one.old!r}, {one.tests}" for one in lost)
            or "none is lost"
        )
        return bool(lost)
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
