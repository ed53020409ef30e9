"""Golden statistics: releases of known truth, frozen, and what the engine says of them.

    python tests/golden/golden.py build               # the tables and embeddings, once: files beside this one
    python tests/golden/golden.py write               # what is expected of each release
    python tests/golden/golden.py compare             # what moved
    python tests/golden/golden.py compare --seeds 8   # and how much of it other seeds move

A change of the code leaves every number as it is, see :func:`same`. Where a random stream changes on purpose, ends of
intervals may move by chance: ``compare`` shows by how many Monte Carlo errors; somebody looks, ``write`` is run, and
CHANGELOG tells it.
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

from privacy_assets.evaluation import attach_embedder, choose_metrics, prepare_inputs, run_metrics
from privacy_assets.metrics.inputs import MetricInputs
from privacy_assets.report.evaluate import assemble

if TYPE_CHECKING:
    from benchmarks.releases import World

HERE = Path(__file__).parent
SEED = 7
REAL = ("train", "holdout", "reference")
ENDS = ("low", "high", "minimum_detectable_effect", "measured")
_UNSTABLE = ("seconds", "versions", "engine_version", "fingerprints", "inputs")  # not what the engine finds
_ALSO = ("copies", "memorization", "vulnerability", "fidelity", "cumulative_disclosure")


@dataclass(frozen=True)
class Golden:
    """A release: a population in whose folder its tables lie, what its rows are, and whether they give anybody away."""

    population: str
    what: str
    leaks: bool
    subject: str | None = None
    earlier: str | None = None  # a release of the same population that came before

    @property
    def name(self) -> str:
        """Unique, and the beginning of its files' names."""
        return f"{self.population}/{self.what}"

    def tables(self) -> dict[str, pd.DataFrame]:
        """The tables by role."""
        folder = HERE / self.population
        files = {**{role: folder / f"{role}.parquet" for role in REAL}, "synthetic": HERE / f"{self.name}.parquet"}
        return {role: pd.read_parquet(path) for role, path in files.items()}

    def inputs(self, seed: int = SEED) -> MetricInputs:
        """What metrics are given."""
        tables = self.tables()
        released = [pd.read_parquet(HERE / self.population / f"{self.earlier}.parquet")] if self.earlier else []
        order = ("train", "holdout", "synthetic", "reference")
        found = prepare_inputs(*(tables[role] for role in order), subject=self.subject, released=released, seed=seed)
        return attach_embedder(found, Frozen(self, found))  # type: ignore[arg-type]

    def found(self, seed: int = SEED) -> dict[str, Any]:
        """The report as JSON, without what depends on clock, machine and versions."""
        inputs = self.inputs(seed)
        defaults, policy = choose_metrics(None, None, external=set(inputs.tables))
        metrics, _ = choose_metrics([*dict.fromkeys([*defaults, *_ALSO])], policy, external=set(inputs.tables))
        told = assemble(inputs, run_metrics(inputs, metrics), policy).to_json()
        return json.loads(json.dumps(_stable(told)))

    @property
    def expected_file(self) -> Path:
        """Where the expected report lies."""
        return HERE / f"{self.name}.json.gz"

    def expected(self) -> dict[str, Any]:
        """The expected report."""
        return json.loads(gzip.decompress(self.expected_file.read_bytes()))


class Frozen:
    """An embedder whose embeddings lie in files, row by row in the order of the tables."""

    def __init__(self, release: Golden, inputs: MetricInputs) -> None:
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
    """Every number, text and None of a report with its path."""
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
    """Counts, texts and None exactly, ends of intervals to 1e-6, other numbers to 1e-9.

    Processors round sums in single precision differently, by which ends of `fidelity` move in their eighth digit.
    """
    if isinstance(one, float) and isinstance(other, (int, float)) or isinstance(other, float) and isinstance(one, int):
        most = 1e-6 if path.rsplit("/", 1)[-1] in ENDS else 1e-9
        return math.isclose(one, other, rel_tol=most, abs_tol=most)
    return type(one) is type(other) and one == other


def moved(expected: dict[str, Any], found: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What differs, by path: expected and found, "-" for what is missing on a side."""
    before, after = dict(leaves(expected)), dict(leaves(found))
    paths = dict.fromkeys([*before, *after])
    return {
        path: (before.get(path, "-"), after.get(path, "-"))
        for path in paths
        if path not in before or path not in after or not same(path, before[path], after[path])
    }


def errors_of(release: Golden, seeds: int) -> dict[str, float]:
    """Monte Carlo error of the difference of two runs, by path, from runs under other seeds."""
    runs = [dict(leaves(release.found(seed))) for seed in range(SEED + 1, SEED + 1 + seeds)]
    numbers = [path for path in runs[0] if all(isinstance(run.get(path), float) for run in runs)]
    return {path: math.sqrt(2) * float(np.std([run[path] for run in runs], ddof=1)) for path in numbers}


def write(release: Golden) -> None:
    """Write what is expected."""
    told = json.dumps(release.found(), allow_nan=False).encode()
    release.expected_file.write_bytes(gzip.compress(told, mtime=0))


def compare(release: Golden, seeds: int) -> bool:
    """Print what moved; True when nothing did."""
    found = moved(release.expected(), release.found())
    errors = errors_of(release, seeds) if found and seeds else {}
    for path, (before, after) in found.items():
        error = errors.get(path)
        far = f", {abs(after - before) / error:.1f} Monte Carlo errors" if error else ""
        print(f"{release.name} {path}: {before} -> {after}{far}")
    return not found


def build() -> None:
    """Draw the populations and releases from the files of ``tests/data`` and the makers of the battery, and embed."""
    from benchmarks import battery_makers as makers
    from benchmarks.battery_tables import Sources, draw
    from benchmarks.releases import away, bare
    from privacy_assets.evaluation import fit_embedder

    made = {
        "adult": {
            "fresh": makers.fresh, "copy": makers.copies(1.0), "copies": makers.copies(0.05),
            "moved": makers.moved(0.2), "filtered": away,
            "overfitted": makers.generated("synthpop", min_leaf=5, smoothing=False),
        },
        "census": {
            "fresh": makers.fresh, "copies": makers.copies(0.1),
            "overfitted": makers.generated("synthpop", min_leaf=5, smoothing=False),
        },
        "patients": {
            "honest": makers.generated("synthpop", min_leaf=300), "copies": makers.people_copied(0.1, 1),
        },
        "stays": {"fresh": makers.fresh, "moved": makers.moved(0.2)},
    }  # fmt: skip
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
            tables = [release.tables()[role] for role in ("train", "holdout", "synthetic", "reference")]
            inputs = prepare_inputs(*tables, subject=release.subject, seed=SEED)
            embedder = embedder or fit_embedder(inputs, max_epochs=20)
            own = attach_embedder(replace(inputs), embedder)
            np.savez_compressed(folder / "embedded.npz", **{role: own.embedded(role) for role in REAL})
            np.savez_compressed(folder / f"{what}.npz", synthetic=own.embedded("synthetic"))


def _known(world: World, others: pd.DataFrame) -> pd.DataFrame:
    """As many rows of nobody in the real tables, without values of closed columns that no real row has."""
    rows, real = pd.concat([world.fresh, world.spare]), pd.concat([world.train, world.holdout, others])
    closed = [name for name in rows.columns if real[name].nunique() < len(real) // 4]
    known = np.logical_and.reduce([rows[name].isin(real[name].unique()).to_numpy() for name in closed])
    return rows[known].head(len(world.fresh)).reset_index(drop=True)


def main() -> None:
    """Build, write or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("build", "write", "compare"))
    parser.add_argument("releases", nargs="*", help="names of releases; all of them without any")
    parser.add_argument("--seeds", type=int, default=0, help="other seeds by which to tell chance, at least 2")
    options = parser.parse_args()
    if options.what == "build":
        build()
        return
    chosen = [release for release in RELEASES if not options.releases or release.name in options.releases]
    if options.what == "write":
        for release in chosen:
            write(release)
            print(release.name, release.expected()["verdict"], flush=True)
        return
    unlike = [release.name for release in chosen if not compare(release, options.seeds)]
    sys.exit(1 if unlike else 0)


if __name__ == "__main__":
    main()
