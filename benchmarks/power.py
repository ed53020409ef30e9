"""Power: the smallest share of copied people that is refused, beside an oracle that knows how the release was made.

    python -m benchmarks.power --results power.jsonl tests/data/adult.parquet tests/data/uk_census.parquet demo
    python -m benchmarks.power --report power.jsonl --images benchmarks/results

Real people are train, six tenths as many the holdout and four tenths the reference. Of the training rows that at most
two people have, each is copied with the probability that makes the dose, a share of the training people; the other rows
of the release are those of people who stand in no table. The gate's verdict is that of the default limits on ``copies``
and on ``membership_inference.outlier_matches``.

The oracle knows the mechanism, the rows that may be copied, and those that the fresh ones are drawn from: with p(c) the
share of the latter in cell c, of equal rows, and q(c) that of the former, a release row lies in c with probability
(1 - y) p(c) + y q(c). It refuses where the upper end of the likelihood-ratio interval of y, at the level of the gate's
first attempt, lies above the share that the gate's limit tolerates: no test of the same level and tolerance sees more.
Each table, size and dose is one line, and is never measured twice.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.copies import cells_of, table_of
from benchmarks.dimensions import lines
from benchmarks.images import write_image
from benchmarks.leaks import WHO, known_rows
from privacy_assets.evaluation import prepare_inputs
from privacy_assets.metrics.copies import Copies
from privacy_assets.metrics.membership_inference.outliers import outlier_matches
from privacy_assets.metrics.membership_inference.scores import build_population, with_reference
from privacy_assets.policy import Policy
from privacy_assets.report.plots import intervals_svg
from privacy_assets.stats.intervals import wilson
from privacy_assets.stats.limits import widening
from privacy_assets.stats.results import MetricResult

DOSES = (0.0, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.05, 0.07)
STATISTICS = ("copies", "membership_inference.outlier_matches")
LIMITS = Policy(tuple(x for x in Policy.default().limits if x.metric == "copies" or x.statistic == STATISTICS[1]))
TOLERATED = next(limit.value for limit in LIMITS.limits if limit.key == "copies.rare_share")
REFUSED = 0.95  # of the splits
_NEVER = 1e-12  # in place of the share of a cell that no fresh row has


def drawn(frame: pd.DataFrame, whose: np.ndarray, people: int, dose: float, seed: int) -> dict[str, Any]:
    """One split and release: the true share of copied people, the gate's verdict, and whether the oracle refuses."""
    rng = np.random.default_rng([seed, DOSES.index(dose)])
    place = rng.permutation(whose.max() + 1)[whose]
    ends = np.array([0, 1, 1.6, 2]) * people
    sides = [(place >= low) & (place < high) for low, high in zip(ends[:-1], ends[1:], strict=True)]
    train, holdout, reference = (frame[side].assign(**{WHO: whose[side]}).reset_index(drop=True) for side in sides)
    others = known_rows(frame[place >= ends[-1]], frame[place < ends[-1]])
    (cells,) = cells_of(frame)
    real = pd.Series(whose[place < ends[-1]]).groupby(cells[place < ends[-1]]).nunique()
    own = cells[sides[0]]
    rare = real.loc[own].to_numpy() <= Copies().few
    person = pd.Series(rare).groupby(whose[sides[0]])
    held = float(person.mean().mean())  # the mean share of a person's rows that may be copied
    taken = rare & (rng.random(len(own)) < min(dose / held, 1.0) if held > 0 else False)
    fresh = others.iloc[rng.choice(len(others), int((~taken).sum()))]
    release = pd.concat([frame[sides[0]][taken], fresh], ignore_index=True)
    inputs = prepare_inputs(train, holdout, release, reference=reference, subject=WHO, seed=seed)
    found = outlier_matches(with_reference(inputs, build_population(inputs)))
    results = {
        "copies": Copies().evaluate(inputs),
        "membership_inference": MetricResult("membership_inference", (found,)),
    }
    made = np.concatenate([own[taken], cells[fresh.index.to_numpy()]])
    return {
        "share": float(pd.Series(taken).groupby(whose[sides[0]]).mean().mean()),
        "verdict": LIMITS.judge(results).verdict,
        "oracle": upper_end(made, cells[others.index.to_numpy()], own[rare]) > TOLERATED,
    }


def upper_end(release: np.ndarray, population: np.ndarray, copied: np.ndarray) -> float:
    """Upper end of the likelihood-ratio interval of the share y of copies, from the cells of all rows, int64 (n,)."""
    if not len(copied):
        return 0.0
    size = int(max(rows.max() for rows in (release, population, copied))) + 1
    p, q = (np.bincount(rows, minlength=size) / len(rows) for rows in (population, copied))
    more = q[release] / np.maximum(p[release], _NEVER) - 1

    def fits(y: float) -> float:
        return float(np.log1p(y * more).sum())

    half = NormalDist().inv_cdf(0.975) * widening(1, 0.95)
    grid = np.linspace(0, 0.5, 501)
    best = float(grid[int(np.argmax([fits(y) for y in grid]))])
    low, high = best, 0.999
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(best) - fits(middle) < half**2 / 2 else (low, middle)
    return high


def run(options: argparse.Namespace) -> None:
    """Add the lines that the results do not hold yet."""
    done = {(line["table"], line["people"], line["dose"]) for line in lines(options.results)}
    for name in options.tables:
        frame, whose = table_of(name, None)
        frame = frame.reset_index(drop=True)
        for wanted in options.people:
            people = min(wanted, (int(whose.max()) + 1) // 3)
            for dose in DOSES:
                if (Path(name).stem, people, dose) in done:
                    continue
                done.add((Path(name).stem, people, dose))
                found = [drawn(frame, whose, people, dose, seed) for seed in range(options.draws)]
                line = {"table": Path(name).stem, "people": people, "dose": dose, "drawn": found}
                with options.results.open("a") as file:
                    file.write(json.dumps(line) + "\n")
                sys.stderr.write(f"{name}, {people} people, {dose}\n")


def smallest(shares: Sequence[float], refused: Sequence[float]) -> float:
    """The share from which on so many are refused as ``REFUSED`` says, between two doses along a line; inf for none."""
    rates = np.maximum.accumulate(refused)
    at = int(np.searchsorted(rates, REFUSED))
    if at == len(rates):
        return float("inf")
    if at == 0:
        return float(shares[0])
    part = (REFUSED - rates[at - 1]) / (rates[at] - rates[at - 1])
    return float(shares[at - 1] + part * (shares[at] - shares[at - 1]))


def report_text(found: Sequence[dict[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
    """Markdown, and the rows of the plot: refused shares by dose, of each table and size."""
    out = ["| table | people in train | smallest share refused in 95 % | that fails in 95 % | oracle | ratio |"]
    out.append("|---|---|---|---|---|---|")
    rows = []
    for table, people in sorted({(line["table"], line["people"]) for line in found}):
        own = sorted((x for x in found if (x["table"], x["people"]) == (table, people)), key=lambda x: x["dose"])
        shares = [float(np.mean([one["share"] for one in line["drawn"]])) for line in own]
        rates = {
            "refused": [np.mean([one["verdict"] != "pass" for one in line["drawn"]]) for line in own],
            "fails": [np.mean([one["verdict"] == "fail" for one in line["drawn"]]) for line in own],
            "oracle": [np.mean([one["oracle"] for one in line["drawn"]]) for line in own],
        }
        ends = {name: smallest(shares, [float(x) for x in rate]) for name, rate in rates.items()}
        cells = [f"{100 * end:.1f} %" for end in ends.values()]
        out.append(f"| {table} | {people:,} | {' | '.join(cells)} | {ends['refused'] / ends['oracle']:.2f} |")
        for line, share, rate in zip(own, shares, rates["refused"], strict=True):
            _, low, high = wilson(round(rate * len(line["drawn"])), len(line["drawn"]))
            rows.append(
                {"share": share, "refused": float(rate), "low": low, "high": high, "of": f"{table}, {people:,}"}
            )
    draws = min((len(line["drawn"]) for line in found), default=0)
    return "\n".join(out) + f"\n\nAt least {draws} splits of each.\n", rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Run or report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", help='Parquet files, or "demo"')
    parser.add_argument(
        "--people", type=int, nargs="+", default=[1_000, 2_000, 5_000], help="in train; a third at most"
    )
    parser.add_argument("--draws", type=int, default=100, help="splits and releases of each table, size and dose")
    parser.add_argument("--results", type=Path, default=Path("power.jsonl"), help="where lines are added")
    parser.add_argument("--report", type=Path, help="a file to report on; nothing is run")
    parser.add_argument("--images", type=Path, help="a folder for the plot")
    options = parser.parse_args(arguments)
    if options.report is None and not options.tables:
        parser.error("name a table, or a --report file")
    if options.report is None:
        run(options)
        return
    text, rows = report_text(lines(options.report))
    sys.stdout.write(text)
    if options.images:
        labels = ("share of the training people who are copied", "share of the releases that are refused")
        svg = intervals_svg(rows, x="share", y="refused", series=("of",), labels=labels, null=REFUSED)
        write_image(svg, options.images / "power.svg")


if __name__ == "__main__":
    main()
