"""Measure the no-box attacks and the epsilon of one run on releases of known truth, over many
splits.

    python -m benchmarks.no_box adult.parquet --repetitions 5
    python -m benchmarks.no_box adult.parquet --repetitions 100 --releases "fresh rows"

8,000/2,000/8,000 rows, with the first 2,000 spare rows as the reference. For each release and
statistic it prints the mean over the splits and the share of splits whose interval excludes the
null value on either side; on fresh rows this is the error rate.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.releases import RELEASES, SUBJECT, World, bare, draw_world
from privacy_assets.evaluation.reading import read_inputs
from privacy_assets.metrics.membership_inference.no_box import (
    auc_estimates,
    epsilon_one_run,
    score_rows,
)
from privacy_assets.metrics.membership_inference.scores import build_population
from privacy_assets.stats.estimates import Estimate
from privacy_assets.tables.declared import Declared

SHAPE, REFERENCE = (8_000, 2_000, 8_000), 2_000
SHOWN = (
    "fresh rows",
    "5 % copies",
    "20 % jittered",
    "100 % copies",
    "trees, leaf 5",
    "trees, leaf 50",
)


def measure(
    world: World, name: str, *, repeated: bool, n_permutations: int = 999
) -> list[Estimate]:
    """Return the five statistics of one release of one world."""
    release, spare = RELEASES[name](world), world.spare.iloc[:REFERENCE].reset_index(drop=True)
    train, holdout = (table if repeated else bare(table) for table in (world.train, world.holdout))
    if repeated:  # each reference row is a separate person
        spare = spare.assign(**{SUBJECT: -1 - np.arange(len(spare))})
    subject = SUBJECT if repeated else None
    inputs = read_inputs(
        train,
        holdout,
        release,
        spare,
        declared=Declared(subject=subject),
        schema=world.schema,
        seed=world.seed,
    )
    found = score_rows(inputs)
    population = build_population(inputs, found.distances if found else None)
    estimates = auc_estimates(
        population, found, n_permutations, inputs.rng("membership_inference.no_box")
    )
    return [*estimates, epsilon_one_run(population, inputs.rng("membership_inference.pairs"))]


def table(found: dict[str, list[list[Estimate]]]) -> str:
    """Return one line per release with "mean (share of intervals below the null, above it)" per
    statistic.
    """
    names = [estimate.name for estimate in next(iter(found.values()))[0]]
    lines = [
        f"| release | {' | '.join(f'`{name}`' for name in names)} |",
        f"|---|{'---|' * len(names)}",
    ]
    for release, runs in found.items():
        cells = []
        for at in range(len(names)):
            estimates = [run[at] for run in runs]
            below, above = (np.mean([side(f) for f in estimates]) for side in (_below, _above))
            cells.append(f"{np.mean([f.value for f in estimates]):.3f} ({below:.2f}, {above:.2f})")
        lines.append(f"| {release} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _below(estimate: Estimate) -> bool:
    return estimate.high < estimate.null


def _above(estimate: Estimate) -> bool:
    return estimate.low > estimate.null


def main() -> None:
    """Run the study and print its table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", type=Path, help="Parquet file of real rows")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--releases", nargs="+", default=list(SHOWN), choices=list(RELEASES))
    parser.add_argument("--repeated", action="store_true", help="1 to 4 rows a person")
    parser.add_argument("--drop", nargs="*", default=[], help="columns to leave out")
    parser.add_argument("--text", action="store_true", help="read every column as a category")
    given = parser.parse_args()
    frame = pd.read_parquet(given.table).drop(columns=given.drop)
    frame = "=" + frame.astype(str) if given.text else frame
    found: dict[str, list[list[Estimate]]] = {name: [] for name in given.releases}
    for seed in range(given.repetitions):
        world = draw_world(frame, SHAPE, seed, repeated=given.repeated)
        for name in given.releases:
            found[name].append(measure(world, name, repeated=given.repeated))
        sys.stderr.write(f"\r{seed + 1} of {given.repetitions}")
    sys.stderr.write("\n")
    print(table(found))


if __name__ == "__main__":
    main()
