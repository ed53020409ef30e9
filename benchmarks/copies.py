"""Check estimated shares of copies and their intervals against the truth, and count the verdicts.

    python -m benchmarks.copies --results copies.jsonl tests/data/adult.parquet \\
        tests/data/uk_census.parquet demo
    python -m benchmarks.copies --results copies.jsonl --people 1700 --generators \\
        tests/data/adult.parquet demo
    python -m benchmarks.copies --report copies.jsonl

Each table is used whole and with its eight and five columns of fewest values, where many rows are
equal. Train and holdout have --people people each. Each training row is copied with the probability
given by the dose; the other synthetic rows are real rows of people in no table, so the truth is
known. --generators evaluates releases of generators instead of doses. --draws sets the number of
splits. Each table and release is one line and is measured once.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.measured import cost
from benchmarks.study import SEVERAL, append, lines, run_or_report, study_parser
from privacy_assets.evaluation.reading import read_inputs
from privacy_assets.generators import build_generator
from privacy_assets.metrics.copies import Copies
from privacy_assets.tables.declared import Declared
from privacy_assets.tables.demo import load_patients
from privacy_assets.tables.table import Table

DOSES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
GENERATORS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "synthpop, leaf 50": ("synthpop", {"min_samples_leaf": 50, "shrinkage": 0}),
    "synthpop, leaf 200": ("synthpop", {"min_samples_leaf": 200, "shrinkage": 0}),
    "synthpop, leaf 5": ("synthpop", {"min_samples_leaf": 5, "shrinkage": 0}),
    "baynet": ("baynet", {}),
}
COLUMNS = (None, 8, 5)
METRIC = Copies()
Drawn = list[float]  # truth, estimate, low and high of copied_share, and CPU seconds


def table_of(name: str, columns: int | None) -> tuple[pd.DataFrame, np.ndarray]:
    """Return the rows of a file, or of the demo, and the subject codes from column ``person``, if
    any: int64 (n,).
    """
    frame = load_patients() if name == "demo" else pd.read_parquet(name)
    whose = pd.factorize(frame.pop("person"))[0] if "person" in frame else np.arange(len(frame))
    frame = frame.drop(columns="Person ID", errors="ignore")
    return (frame if columns is None else frame[frame.nunique().nsmallest(columns).index]), whose


def cells_of(*frames: pd.DataFrame) -> list[np.ndarray]:
    """Return row ids per table, equal for equal rows: int64 (n,)."""
    whole = pd.concat(frames, ignore_index=True)
    ids = (
        whole.groupby(list(whole.columns), dropna=False, observed=True, sort=False)
        .ngroup()
        .to_numpy()
    )
    return np.split(ids, np.cumsum([len(frame) for frame in frames])[:-1])


def drawn(
    frame: pd.DataFrame, whose: np.ndarray, people: int, release: float | str, seed: int
) -> Drawn:
    """Measure one split and release."""
    rng = np.random.default_rng([seed, 0 if isinstance(release, str) else DOSES.index(release)])
    place = rng.permutation(whose.max() + 1)[whose]
    train, unseen, others = (
        np.flatnonzero(side)
        for side in (place < people, (place >= people) & (place < 2 * people), place >= 2 * people)
    )
    rows = np.concatenate([train, unseen])
    codes = np.unique(whose[rows], return_inverse=True)[1]
    taken = np.zeros(len(train), dtype=bool)
    if isinstance(release, str):
        name, settings = GENERATORS[release]
        own = Table.read(frame.iloc[train].reset_index(drop=True))
        fitted = build_generator(name, settings).fit(
            own, seed=seed, subject_codes=codes[: len(train)]
        )
        synthetic = (
            fitted.sample(len(train), seed=seed).to_published_frame().astype(frame.dtypes.to_dict())
        )
    else:
        taken = rng.random(len(train)) < release
        fresh = rng.choice(others, (~taken).sum())
        synthetic = frame.iloc[np.concatenate([train[taken], fresh])]
    whole = frame.assign(person=whose)
    inputs = read_inputs(
        whole.iloc[train],
        whole.iloc[unseen],
        synthetic.reset_index(drop=True),
        declared=Declared(subject="person"),
        seed=seed,
    )
    real = cells_of(frame.iloc[rows])[0]
    holders = pd.Series(codes).groupby(real).transform("nunique").to_numpy()[: len(train)]
    seconds, found = cost(lambda: METRIC.measure(inputs).estimate("copied_share"))
    copies = taken & (holders <= METRIC.max_holders)
    shares = pd.Series(copies).groupby(codes[: len(train)]).mean()
    return [float(shares.mean()), found.value, found.low, found.high, seconds]


def run(options: argparse.Namespace) -> None:
    """Measure the tables and releases that the results do not contain yet."""
    held = {(line["table"], line["people"], line["release"]) for line in lines(options.results)}
    for name in options.tables:
        for columns in COLUMNS:
            frame, whose = table_of(name, columns)
            people = min(options.people, (int(whose.max()) + 1) // 3)
            table = Path(name).stem + (f", {columns} columns" if columns else "")
            distinct = len(frame.drop_duplicates()) / len(frame)
            for release in GENERATORS if options.generators else DOSES:
                if (table, people, release) in held:
                    continue
                found = [
                    drawn(frame, whose, people, release, seed) for seed in range(options.draws)
                ]
                record = {
                    "table": table,
                    "people": people,
                    "release": release,
                    "distinct": distinct,
                    "drawn": found,
                }
                append(options.results, record)
                sys.stderr.write(f"{table}, {people} people, {release}\n")


def verdicts(low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return where the default limits on ``copied_share`` hold, and where one is significantly
    violated.
    """
    limits = {
        limit.bound: limit.value
        for limit in METRIC.default_limits
        if limit.statistic == "copies.copied_share"
    }
    ruled_out, significant = limits["conservative"], limits["proven"]
    return (high <= ruled_out) & (low <= significant), low > significant


def report_text(found: list[dict[str, Any]]) -> str:
    """Return Markdown with a row for each table and release."""
    head = ["table", "copied, %", "copied_share", "holds, %", "pass, %", "fail, %"]
    out = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    inside: list[bool] = []
    last = ""
    for line in found:
        truth, value, low, high, _ = np.array(line["drawn"]).T
        certain = not isinstance(line["release"], str)
        within = (low <= truth + 1e-9) & (truth <= high + 1e-9)
        interval = f"{100 * value.mean():.1f} [{100 * low.mean():.1f}, {100 * high.mean():.1f}]"
        cells = [interval, f"{100 * within.mean():.0f}" if certain else ""]
        inside.extend(within if certain else ())
        shares = [f"{100 * np.mean(share):.0f}" for share in verdicts(low, high)]
        name = (
            f"{line['table']} ({line['people']:,} people, {100 * line['distinct']:.0f} % of rows"
            " distinct)"
        )
        made = f"{100 * line['release']:g}" if certain else line["release"]
        out.append(f"| {' | '.join([name if name != last else '', made, *cells, *shares])} |")
        last = name
    seconds = np.concatenate([np.array(line["drawn"])[:, -1] for line in found])
    share = f"{100 * np.mean(inside):.1f} %" if inside else "none"
    out.append(
        f"\n{share} of {len(inside):,} intervals contain the truth; {seconds.mean():.2f} CPU s each"
    )
    return "\n".join(out) + ".\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run or report."""
    parser = study_parser(__doc__, "copies.jsonl")
    parser.add_argument("tables", nargs="*", help=SEVERAL)
    parser.add_argument(
        "--people", type=int, default=8_000, help="in train; a third of all at most"
    )
    parser.add_argument(
        "--draws", type=int, default=20, help="splits and releases of each table and dose"
    )
    parser.add_argument(
        "--generators", action="store_true", help="releases of generators instead of doses"
    )
    run_or_report(parser, arguments, run, lambda _, found: report_text(found))


if __name__ == "__main__":
    main()
