"""Copies: whether the estimated share of copied training rows is the true one, and lies in its interval.

    python -m benchmarks.copies --results copies.jsonl tests/data/adult.parquet tests/data/uk_census.parquet demo
    python -m benchmarks.copies --report copies.jsonl

Each table is taken whole, and again with the five columns that have the fewest values, so that many rows are equal.
--people of it are train, six tenths as many unseen in the holdout and four tenths in the reference. Each training row
is copied with the probability of the dose; the other synthetic rows are real ones of people who stand in no table, so
that the truth is certain. --draws split and copy anew. Each table and dose is one line and is never measured twice.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.dimensions import lines
from benchmarks.measured import cost
from privacy_assets.metrics.copies import copied
from privacy_assets.stats.subjects import Subjects
from privacy_assets.tables.demo import load_patients

DOSES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
FEW = 5  # columns
PERMUTATIONS = 1000


def cells_of(name: str, few: bool) -> tuple[np.ndarray, np.ndarray]:
    """Ids of the rows of a file, or of the demo, and whose they are: int64 (n,) each."""
    frame = load_patients() if name == "demo" else pd.read_parquet(name)
    whose = pd.factorize(frame.pop("person"))[0] if name == "demo" else np.arange(len(frame))
    if few:
        frame = frame[frame.nunique().nsmallest(FEW).index]
    return frame.groupby(list(frame.columns), dropna=False, observed=True).ngroup().to_numpy(), whose


def drawn(cells: np.ndarray, whose: np.ndarray, people: int, dose: float, seed: int) -> list[float]:
    """Truth, estimate, low and high of one split and release, and CPU seconds."""
    rng = np.random.default_rng([seed, DOSES.index(dose)])
    place = rng.permutation(whose.max() + 1)[whose]
    train, unseen, others = (
        np.flatnonzero(side) for side in (place < people, (place >= people) & (place < 2 * people), place >= 2 * people)
    )
    taken = rng.random(len(train)) < dose
    synthetic = np.concatenate([cells[train[taken]], rng.choice(cells[others], (~taken).sum())])
    rows = np.concatenate([train, unseen])
    subjects = Subjects.by_content(np.unique(whose[rows], return_inverse=True)[1], len(train), cells[rows])
    seconds, found = cost(lambda: copied(cells[rows], synthetic, subjects, PERMUTATIONS, rng))
    band = found.band()
    return [float(taken.mean()), float(found.observed[0]), float(band.low[0]), float(band.high[0]), seconds]


def run(options: argparse.Namespace) -> None:
    """Add the lines that the results do not hold yet."""
    held = {(line["table"], line["dose"]) for line in lines(options.results)}
    for name in options.tables:
        for few in (False, True):
            cells, whose = cells_of(name, few)
            people = min(options.people, (int(whose.max()) + 1) // 3)
            table = Path(name).stem + (f", {FEW} columns" if few else "")
            for dose in DOSES:
                if (table, dose) in held:
                    continue
                found = [drawn(cells, whose, people, dose, seed) for seed in range(options.draws)]
                told = {"table": table, "people": people, "dose": dose, "distinct": len(np.unique(cells)) / len(cells)}
                with options.results.open("a") as file:
                    file.write(json.dumps({**told, "drawn": found}) + "\n")
                sys.stderr.write(f"{table}, {100 * dose:g} % copied\n")


def report_text(found: list[dict[str, Any]]) -> str:
    """Markdown: a row for each table and dose."""
    head = ["table", "copied", "estimated", "half of the interval", "holds the truth", "seen"]
    out = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    every = []
    for line in found:
        truth, value, low, high, _ = np.array(line["drawn"]).T
        inside = (low <= truth + 1e-9) & (truth <= high + 1e-9)
        every.extend(inside)
        numbers = [f"{100 * truth.mean():.1f} %", f"{100 * value.mean():.1f} %", f"{50 * (high - low).mean():.1f} %"]
        shares = [f"{100 * np.mean(share):.0f} %" for share in (inside, low > 0)]
        name = f"{line['table']} ({line['people']:,} people, {100 * line['distinct']:.0f} % of rows distinct)"
        out.append(f"| {' | '.join([name, *numbers, *shares])} |")
    seconds = np.concatenate([np.array(line["drawn"])[:, 4] for line in found])
    out.append(
        f"\n{100 * np.mean(every):.1f} % of {len(every):,} intervals hold the truth; {seconds.mean():.2f} CPU s each"
    )
    return "\n".join(out) + ".\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run or report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", help='Parquet files, or "demo"')
    parser.add_argument("--people", type=int, default=8_000, help="in train; a third of all at most")
    parser.add_argument("--draws", type=int, default=40, help="splits and releases of each table and dose")
    parser.add_argument("--results", type=Path, default=Path("copies.jsonl"), help="where lines are added")
    parser.add_argument("--report", type=Path, help="a file to report on; nothing is run")
    options = parser.parse_args(arguments)
    if options.report is not None:
        sys.stdout.write(report_text(lines(options.report)))
    elif options.tables:
        run(options)
    else:
        parser.error("name a table, or a --report file")


if __name__ == "__main__":
    main()
