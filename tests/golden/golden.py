"""Golden statistics: frozen releases of known truth, and the expected results of the package.

    python tests/golden/golden.py build               # once: tables and embeddings in this folder
    python tests/golden/golden.py write               # the expected report of each release
    python tests/golden/golden.py compare             # the differences
    python tests/golden/golden.py compare --seeds 8   # also in Monte Carlo errors, from other seeds

A code change must not change any number, see :func:`same`. If a random stream is changed on
purpose, interval ends may move by chance: ``compare`` prints by how many Monte Carlo errors. Review
them, run ``write``, and state the change in the commit message (after the first release also in
CHANGELOG.md).
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from privacy_assets.evaluation.evaluate import build_report
from privacy_assets.evaluation.measuring import attach_embedder, run_metrics
from privacy_assets.evaluation.reading import read_inputs
from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.metrics.policies import choose_metrics
from privacy_assets.tables.conversion import is_text
from privacy_assets.tables.declared import Declared

if TYPE_CHECKING:
    from benchmarks.releases import World

HERE = Path(__file__).parent
SEED = 7
REAL = ("train", "holdout", "reference")
ENDS = ("low", "high", "minimum_detectable_effect", "measured")
# not computed by the package
_UNSTABLE = ("seconds", "versions", "package_version", "fingerprints", "inputs")
_ALSO = ("copies", "memorization", "vulnerability", "fidelity", "cumulative_disclosure")


@dataclass(frozen=True)
class Golden:
    """A release: the population whose folder holds its tables, the origin of its rows, and whether
    it leaks.
    """

    population: str
    what: str
    leaks: bool
    subject: str | None = None
    earlier: str | None = None  # an earlier release of the same population

    @property
    def name(self) -> str:
        """Unique; the names of its files begin with it."""
        return f"{self.population}/{self.what}"

    def tables(self) -> dict[str, pd.DataFrame]:
        """The tables by role."""
        folder = HERE / self.population
        files = {
            **{role: folder / f"{role}.parquet" for role in REAL},
            "synthetic": HERE / f"{self.name}.parquet",
        }
        return {role: pd.read_parquet(path) for role, path in files.items()}

    def inputs(self, seed: int = SEED) -> EvaluationInputs:
        """Inputs of the metrics."""
        tables = self.tables()
        released = (
            [pd.read_parquet(HERE / self.population / f"{self.earlier}.parquet")]
            if self.earlier
            else []
        )
        order = ("train", "holdout", "synthetic", "reference")
        # codes of digits
        kinds = {name: "categorical" for name, column in tables["train"].items() if is_text(column)}
        kinds.pop(self.subject, None)
        found = read_inputs(
            *(tables[role] for role in order),
            declared=Declared(subject=self.subject, kinds=kinds),
            earlier_releases=released,
            seed=seed,
        )
        return attach_embedder(found, Frozen(self, found))  # type: ignore[arg-type]

    def found(self, seed: int = SEED) -> dict[str, Any]:
        """The report as JSON, without values that depend on clock, machine or versions."""
        inputs = self.inputs(seed)
        defaults, policy = choose_metrics(None, None, external=set(inputs.tables))
        metrics, _ = choose_metrics(
            [*dict.fromkeys([*defaults, *_ALSO])], policy, external=set(inputs.tables)
        )
        told = build_report(inputs, run_metrics(inputs, metrics, policy.limits), policy).to_json()
        return json.loads(json.dumps(_stable(told)))

    @property
    def expected_file(self) -> Path:
        """Path of the expected report."""
        return HERE / f"{self.name}.json.gz"

    def expected(self) -> dict[str, Any]:
        """The expected report."""
        return json.loads(gzip.decompress(self.expected_file.read_bytes()))


class Frozen:
    """An embedder whose embeddings are stored in files, row by row in the order of the tables."""

    description = None

    def __init__(self, release: Golden, inputs: EvaluationInputs) -> None:
        with np.load(HERE / release.population / "embedded.npz") as real:
            known = {role: real[role] for role in REAL}
        with np.load(HERE / f"{release.name}.npz") as own:
            known["synthetic"] = own["synthetic"]
        self._known = [(inputs.tables[role], rows) for role, rows in known.items()]

    def embed(self, frame: pd.DataFrame, device: str = "cpu") -> np.ndarray:
        """Embedding of one of the tables of the release."""
        return next(rows for table, rows in self._known if table is frame)


RELEASES = (
    Golden("adult", "fresh", False),
    Golden("adult", "copy", True),
    Golden("adult", "copies", True),
    Golden("adult", "moved", True),
    Golden("adult", "overfitted", True),
    Golden("adult", "filtered", True),
    Golden("census", "fresh", False),
    Golden("census", "copies", True),
    Golden("census", "overfitted", True, earlier="fresh"),
    Golden("patients", "honest", False, subject="person"),
    Golden("patients", "copies", True, subject="person", earlier="honest"),
    Golden("stays", "fresh", False),
    Golden("stays", "moved", True),
)


def _stable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _stable(item) for key, item in value.items() if key not in _UNSTABLE}
    return [_stable(item) for item in value] if isinstance(value, list) else value


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every number, string and None of a report with its path."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, f"{path}/{key}")
    elif isinstance(value, list):
        yield f"{path}/length", len(value)
        for place, item in enumerate(value):
            yield from leaves(item, f"{path}/{place}")
    else:
        yield path, value


def same(path: str, one: Any, other: Any) -> bool:
    """Whether counts, strings and None are equal, ends of intervals equal to 1e-6, and other
    numbers to 1e-9.

    Processors round sums in single precision differently, which changes the eighth digit of
    interval ends of `fidelity`.
    """
    if (
        isinstance(one, float)
        and isinstance(other, (int, float))
        or isinstance(other, float)
        and isinstance(one, int)
    ):
        most = 1e-6 if path.rsplit("/", 1)[-1] in ENDS else 1e-9
        return math.isclose(one, other, rel_tol=most, abs_tol=most)
    return type(one) is type(other) and one == other


def moved(expected: dict[str, Any], found: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Differences by path: expected and actual value, "-" where one side lacks it."""
    before, after = dict(leaves(expected)), dict(leaves(found))
    paths = dict.fromkeys([*before, *after])
    return {
        path: (before.get(path, "-"), after.get(path, "-"))
        for path in paths
        if path not in before or path not in after or not same(path, before[path], after[path])
    }


def errors_of(release: Golden, seeds: int) -> dict[str, float]:
    """Monte Carlo error of the difference between two runs, by path, from runs with other seeds."""
    runs = [dict(leaves(release.found(seed))) for seed in range(SEED + 1, SEED + 1 + seeds)]
    numbers = [path for path in runs[0] if all(isinstance(run.get(path), float) for run in runs)]
    return {
        path: math.sqrt(2) * float(np.std([run[path] for run in runs], ddof=1)) for path in numbers
    }


def write(release: Golden) -> None:
    """Write the expected reports."""
    told = json.dumps(release.found(), allow_nan=False).encode()
    release.expected_file.write_bytes(gzip.compress(told, mtime=0))


def compare(release: Golden, seeds: int) -> bool:
    """Print the differences; return whether there are none."""
    found = moved(release.expected(), release.found())
    errors = errors_of(release, seeds) if found and seeds else {}
    for path, (before, after) in found.items():
        error = errors.get(path)
        far = f", {abs(after - before) / error:.1f} Monte Carlo errors" if error else ""
        print(f"{release.name} {path}: {before} -> {after}{far}")
    return not found


def build() -> None:
    """Draw the populations and releases from ``tests/data`` and the makers of the battery, and
    embed them.
    """
    from benchmarks import battery_makers as makers
    from benchmarks.battery_tables import Sources, draw
    from benchmarks.releases import away, bare
    from privacy_assets.evaluation.measuring import fit_embedder

    made = {
        "adult": {
            "fresh": makers.fresh,
            "copy": makers.copies(1.0),
            "copies": makers.copies(0.05),
            "moved": makers.moved(0.2),
            "filtered": away,
            "overfitted": makers.generated(
                "synthpop", min_samples_leaf=5, shrinkage=0, smoothing=False
            ),
        },
        "census": {
            "fresh": makers.fresh,
            "copies": makers.copies(0.1),
            "overfitted": makers.generated(
                "synthpop", min_samples_leaf=5, shrinkage=0, smoothing=False
            ),
        },
        "patients": {
            "honest": makers.generated("synthpop", min_samples_leaf=300),
            "copies": makers.people_copied(0.1, 1),
        },
        "stays": {"fresh": makers.fresh, "moved": makers.moved(0.2)},
    }
    sources = Sources(HERE.parent / "data")
    for population, releases in made.items():
        folder, repeated = HERE / population, population == "patients"
        folder.mkdir(exist_ok=True)
        shape, reference = ((600, 500, 500), 200) if repeated else ((1_500, 600, 1_500), 500)
        world, others = draw(sources[population], shape, reference, 20)
        world = replace(world, fresh=_known(world, others)) if population == "adult" else world
        for role, frame in zip(REAL, (world.train, world.holdout, others), strict=True):
            (frame if repeated else bare(frame)).to_parquet(folder / f"{role}.parquet", index=False)
        embedder = None
        for what, make in releases.items():
            make(world).reset_index(drop=True).to_parquet(folder / f"{what}.parquet", index=False)
            release = next(one for one in RELEASES if one.name == f"{population}/{what}")
            tables = [
                release.tables()[role] for role in ("train", "holdout", "synthetic", "reference")
            ]
            inputs = read_inputs(*tables, declared=Declared(subject=release.subject), seed=SEED)
            embedder = embedder or fit_embedder(
                inputs.real, {"max_epochs": 20}, seed=inputs.seed, device=inputs.device
            )
            own = attach_embedder(inputs, embedder)
            np.savez_compressed(
                folder / "embedded.npz", **{role: own.embedded(role) for role in REAL}
            )
            np.savez_compressed(folder / f"{what}.npz", synthetic=own.embedded("synthetic"))


def _known(world: World, others: pd.DataFrame) -> pd.DataFrame:
    """Return equally many rows from outside the real tables, whose closed columns hold only values
    of real rows.
    """
    rows, real = (
        pd.concat([world.fresh, world.spare]),
        pd.concat([world.train, world.holdout, others]),
    )
    closed = [name for name in rows.columns if real[name].nunique() < len(real) // 4]
    known = np.logical_and.reduce(
        [rows[name].isin(real[name].unique()).to_numpy() for name in closed]
    )
    return rows[known].head(len(world.fresh)).reset_index(drop=True)


def main() -> None:
    """Run build, write or compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("build", "write", "compare"))
    parser.add_argument("releases", nargs="*", help="names of releases; all of them without any")
    parser.add_argument(
        "--seeds", type=int, default=0, help="other seeds by which to tell chance, at least 2"
    )
    options = parser.parse_args()
    if options.what == "build":
        build()
        return
    chosen = [
        release for release in RELEASES if not options.releases or release.name in options.releases
    ]
    if options.what == "write":
        for release in chosen:
            write(release)
            print(release.name, release.expected()["verdict"], flush=True)
        return
    unlike = [release.name for release in chosen if not compare(release, options.seeds)]
    sys.exit(1 if unlike else 0)


if __name__ == "__main__":
    main()
