"""Power: the smallest share of copied people that is refused, beside an oracle that knows how the release was made.

    python -m benchmarks.power --results power.jsonl tests/data/adult.parquet tests/data/uk_census.parquet demo
    python -m benchmarks.power --every-row --results power.jsonl DIRECTORY/muscatine.parquet
    python -m benchmarks.power --report power.jsonl --images benchmarks/results

Real people are train, six tenths as many the holdout and four tenths the reference. Of the training rows that at most
two people have, or of all with --every-row, each is copied with the probability that makes the dose, a share of the
training people; the other rows of the release are those of people who stand in no table. The gate's verdict is that of
the default limits on ``copies`` and on ``membership_inference.outlier_matches``.

The oracle knows the mechanism, the rows that may be copied, and those that the fresh ones are drawn from: with p(c) the
share of the latter in cell c, of equal rows, and q(c) that of the former, a release row lies in c with probability
(1 - y) p(c) + y q(c). It refuses where its likelihood-ratio interval of y breaks one of the limits on
``copies.rare_share``, at their level: no test of the same level and tolerance sees more.

With --every-row, two tests of no copies against the very dose tell what any test could see: the most powerful one that
knows p, and the most powerful permutation test of the labels, which sees the real tables and the release only.
Each table, size and dose is one line, and is never measured twice.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import binom, poisson

from benchmarks.copies import cells_of, table_of
from benchmarks.dimensions import lines
from benchmarks.images import write_image
from benchmarks.leaks import known_rows
from privacy_assets.metrics.copies import Copies
from privacy_assets.metrics.inputs import REAL_ROLES, MetricInputs
from privacy_assets.metrics.membership_inference.outliers import outlier_matches
from privacy_assets.metrics.membership_inference.scores import build_population, with_reference
from privacy_assets.policy import Policy
from privacy_assets.report.plots import intervals_svg
from privacy_assets.stats.intervals import wilson
from privacy_assets.stats.limits import widening
from privacy_assets.stats.results import MetricResult
from privacy_assets.tables.table import Table

DOSES = (0.0, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.05, 0.07)
EVERY_ROW = (0.0, 0.05, 0.1)  # doses where rows that many people share may be copied too
STATISTICS = ("copies", "membership_inference.outlier_matches")
LIMITS = Policy(tuple(x for x in Policy.default().limits if x.metric == "copies" or x.statistic == STATISTICS[1]))
RARE = Policy(tuple(x for x in LIMITS.limits if x.statistic == "copies.rare_share"))
RULED_OUT, SIGNIFICANT = (next(x.value for x in RARE.limits if x.bound == bound) for bound in ("upper", "lower"))
REFUSED = 0.95  # of the splits
HARMLESS_REFUSED = 0.08  # of the harmless releases, at most, by the most powerful tests
TRIALS = 999  # releases or permutations, of a test by chance
_TIE = 1e-9
_NEVER = 1e-12  # in place of the share of a cell that no fresh row has
_GRID = np.concatenate([np.linspace(0, 0.2, 401), np.linspace(0.205, 0.995, 159)])


class Source(NamedTuple):
    """A table: its rows, whose they are and their cells, int64 (n,), and the rows as metrics take them."""

    frame: pd.DataFrame
    whose: np.ndarray
    cells: np.ndarray
    table: Table

    @classmethod
    def read(cls, name: str) -> Source:
        """The table of a file, or the demo."""
        frame, whose = table_of(name, None)
        frame = frame.reset_index(drop=True)
        return cls(frame, whose, cells_of(frame)[0], Table.read(frame, where=name))


def drawn(source: Source, people: int, dose: float, seed: int, *, every: bool) -> dict[str, Any]:
    """One split and release: the true share of copied people, what the gate says, and what oracles see.

    With ``every``, all rows of train may be copied, and the chances of the most powerful tests are told.
    """
    frame, whose, cells, table = source
    rng = np.random.default_rng([seed, round(1000 * dose)])
    place = rng.permutation(whose.max() + 1)[whose]
    ends = np.array([0, 1, 1.6, 2]) * people
    sides = [(place >= low) & (place < high) for low, high in zip(ends[:-1], ends[1:], strict=True)]
    others = known_rows(frame[place >= ends[-1]], frame[place < ends[-1]]).index.to_numpy()
    real = pd.Series(whose[place < ends[-1]]).groupby(cells[place < ends[-1]]).nunique()
    own = cells[sides[0]]
    may = (real.loc[own].to_numpy() <= Copies().few) | every
    held = float(pd.Series(may).groupby(whose[sides[0]]).mean().mean())  # the mean share of a person's rows
    taken = may & (rng.random(len(own)) < min(dose / held, 1.0) if held > 0 else False)
    fresh = rng.choice(others, int((~taken).sum()))
    rows = {role: np.flatnonzero(side) for role, side in zip(REAL_ROLES, sides, strict=True)}
    made = np.concatenate([rows["train"][taken], fresh])
    tables = {role: table.take(own) for role, own in {**rows, "synthetic": made}.items()}
    inputs = MetricInputs(table.schema, tables, {role: whose[own] for role, own in rows.items()}, seed=seed)
    found = outlier_matches(with_reference(inputs, build_population(inputs)))
    copies = Copies().evaluate(inputs)
    results = {"copies": copies, "membership_inference": MetricResult("membership_inference", (found,))}
    told: dict[str, Any] = {
        "share": float(pd.Series(taken).groupby(whose[sides[0]]).mean().mean()),
        "verdict": LIMITS.judge(results).verdict,
        "rare_share": RARE.judge(results).verdict,
        "exact_share": [copies.estimate("exact_share").low, copies.estimate("exact_share").high],
        "oracle": interval(cells[made], cells[others], own[may]),
    }
    if every:
        here = place < ends[-1]
        codes = np.unique(whose[here], return_inverse=True)[1]
        member = np.bincount(codes, place[here] < people) > 0
        release, rates = cells[made], np.unique(cells, return_counts=True)[1] / len(cells)
        told["chances"] = [
            chance_given_population(release, cells[others], own, dose or EVERY_ROW[1], rng),
            chance_of_labels(release, cells[here], codes, member, rates, dose or EVERY_ROW[1], rng),
        ]
    return told


def interval(release: np.ndarray, population: np.ndarray, copied: np.ndarray) -> tuple[float, float]:
    """The likelihood-ratio interval of the share y of copies, from the cells of all rows, int64 (n,).

    Its lower end has the level of a limit on what is significant, 95 %, its upper end that of the first attempt.
    """
    if not len(copied):
        return 0.0, 0.0
    size = int(max(rows.max() for rows in (release, population, copied))) + 1
    p, q = (np.bincount(rows, minlength=size) / len(rows) for rows in (population, copied))
    more, times = np.unique(q[release] / np.maximum(p[release], _NEVER) - 1, return_counts=True)

    def fits(y: float) -> float:
        return float(times @ np.log1p(y * more))

    best = float(_GRID[int(np.argmax([fits(y) for y in _GRID]))])

    def end(outside: float, far: float) -> float:
        near, half = best, NormalDist().inv_cdf(0.975) * far
        if fits(best) - fits(outside) < half**2 / 2:
            return outside
        for _ in range(40):
            middle = (near + outside) / 2
            near, outside = (middle, outside) if fits(best) - fits(middle) < half**2 / 2 else (near, middle)
        return near

    return end(0.0, 1.0), end(0.999, widening(1, 0.95))


def chance_given_population(
    release: np.ndarray, population: np.ndarray, copied: np.ndarray, dose: float, rng: np.random.Generator
) -> float:
    """P value of the most powerful test of no copies against a dose, by one that knows how frequent each row is.

    Cells as in :func:`interval`; releases without copies are drawn from the population.
    """
    size = int(max(rows.max() for rows in (release, population, copied))) + 1
    p, q = (np.bincount(rows, minlength=size) / len(rows) for rows in (population, copied))
    gain = np.log1p(dose * (q / np.maximum(p, _NEVER) - 1))
    drawn = gain[rng.choice(population, (TRIALS, len(release)))].sum(axis=1)
    return float((1 + (drawn >= gain[release].sum() - _TIE).sum()) / (1 + TRIALS))


def chance_of_labels(
    release: np.ndarray, real: np.ndarray, whose: np.ndarray, member: np.ndarray, rates: np.ndarray, dose: float,
    rng: np.random.Generator,
) -> float:  # fmt: skip
    """P value of the most powerful permutation test of the labels against a dose, by one that sees these tables only.

    ``real`` int64 (n,) are the cells of the rows of train and unseen people, ``whose`` int64 (n,) people from 0 on,
    ``member`` bool (people,) who is in train. The test knows how frequent rows are, ``rates`` (cells of the
    population,), but not which. Labels are permuted by person.
    """
    known, cell = np.unique(real, return_inverse=True)
    place = np.minimum(np.searchsorted(known, release), len(known) - 1)
    hits, count = np.bincount(place[known[place] == release], minlength=len(known)), np.bincount(cell)
    pairs, kind = np.unique(np.stack([hits, count]), axis=1, return_inverse=True)
    values, times = np.unique(rates, return_counts=True)
    gains = [gains_of(*pair, values, times, len(real), len(release), dose) for pair in pairs.T]
    start = np.cumsum([0, *map(len, gains)])[kind.ravel()]
    flat = np.concatenate(gains)

    def gain(labels: np.ndarray) -> float:
        return float(flat[start + np.bincount(cell[labels[whose]], minlength=len(known))].sum())

    seen = gain(member)
    return (1 + sum(gain(rng.permutation(member)) >= seen - _TIE for _ in range(TRIALS))) / (1 + TRIALS)


def gains_of(
    hits: int, count: int, values: np.ndarray, times: np.ndarray, real: int, release: int, dose: float
) -> np.ndarray:
    """Log likelihood of ``hits`` under a dose, with 0, 1, ... ``count`` rows of the cell in train, but for a constant.

    ``count`` of ``real`` rows lie in it, hence how often its rate is which of ``values``, that so many cells have as
    ``times`` says. ``release`` rows are made: fresh ones are Poisson, copies binomial.
    """
    chance = np.log(times) + poisson.logpmf(count, real * values)
    chance = np.exp(chance - chance.max())
    copies = np.arange(min(hits, count) + 1)
    fresh = poisson.pmf(hits - copies[:, None], release * (1 - dose) * values) @ chance
    return np.log(binom.pmf(copies, np.arange(count + 1)[:, None], dose) @ fresh)


def run(options: argparse.Namespace) -> None:
    """Add the lines that the results do not hold yet, but for doses above one that gate and oracle always refuse."""
    held = {key_of(line): line["drawn"] for line in lines(options.results)}
    for name in options.tables:
        source = Source.read(name)
        for wanted in options.people:
            people = min(wanted, (int(source.whose.max()) + 1) // 3)
            for dose in EVERY_ROW if options.every_row else DOSES:
                told = {"table": Path(name).stem, "people": people, "every": options.every_row, "dose": dose}
                key = key_of(told)
                if key not in held:
                    held[key] = [
                        drawn(source, people, dose, seed, every=options.every_row) for seed in range(options.draws)
                    ]
                    with options.results.open("a") as file:
                        file.write(json.dumps({**told, "drawn": held[key]}) + "\n")
                    sys.stderr.write(f"{name}, {people} people, {dose}\n")
                if not options.every_row and min(rates_of(held[key]).values()) == 1:
                    break


def key_of(line: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a line measured."""
    return tuple(line[name] for name in ("table", "people", "every", "dose"))


def rates_of(drawn: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Which shares of the releases are refused: by the gate, the limits on ``rare_share`` alone, and the oracle."""
    oracle = np.array([one["oracle"] for one in drawn])
    refused = {
        "refused": [one["verdict"] != "pass" for one in drawn],
        "fails": [one["verdict"] == "fail" for one in drawn],
        "rare_share": [one["rare_share"] != "pass" for one in drawn],
        "oracle": (oracle[:, 0] > SIGNIFICANT) | (oracle[:, 1] > RULED_OUT),
    }
    return {name: float(np.mean(flags)) for name, flags in refused.items()}


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


def report_text(found: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: the smallest shares that are refused, and what is seen of copies of any row."""
    out: list[str] = []
    rare, every = ([line for line in found if line["every"] is flag] for flag in (False, True))
    if rare:
        head = (
            "table",
            "people in train",
            "refused in 95 %",
            "fails in 95 %",
            "`rare_share` alone",
            "oracle",
            "ratio",
            "alone",
        )
        out += [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for table, people, own in groups(rare):
        shares = [float(np.mean([one["share"] for one in line["drawn"]])) for line in own]
        rates = [rates_of(line["drawn"]) for line in own]
        ends = {name: smallest(shares, [rate[name] for rate in rates]) for name in rates[0]}
        cells = [f"{100 * end:.1f} %" for end in ends.values()]
        cells += [f"{ends[name] / ends['oracle']:.2f}" for name in ("refused", "rare_share")]
        out.append(f"| {table} | {people:,} | {' | '.join(cells)} |")
    if every:
        head = (
            "table, people in train", "copied", "refused", "fails", "`exact_share` above 0", "oracle", "above 0",
            "most powerful test", "of the labels",
        )  # fmt: skip
        out += ["", f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for table, people, own in groups(every):
        for line in own:
            drawn = line["drawn"]
            low = {name: np.mean([one[name][0] > 0 for one in drawn]) for name in ("exact_share", "oracle")}
            chances = (np.array([one["chances"] for one in drawn]) <= HARMLESS_REFUSED).mean(axis=0)
            told = rates_of(drawn)
            shares = [told["refused"], told["fails"], low["exact_share"], told["oracle"], low["oracle"], *chances]
            cells = [f"{100 * share:.0f} %" for share in shares]
            out.append(f"| {table}, {people:,} | {100 * line['dose']:g} % | {' | '.join(cells)} |")
    draws = min((len(line["drawn"]) for line in found), default=0)
    return "\n".join(out) + f"\n\nAt least {draws} splits of each.\n"


def groups(found: Sequence[Mapping[str, Any]]) -> list[tuple[str, int, list[Mapping[str, Any]]]]:
    """The lines of each table and size, in the order of doses."""
    names = sorted({(line["table"], line["people"]) for line in found})
    by_dose = sorted(found, key=lambda line: line["dose"])
    return [(*name, [line for line in by_dose if (line["table"], line["people"]) == name]) for name in names]


def plots(found: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Of each table, the shares of the releases that gate and oracle refuse, by the share that is copied and people."""
    rows = defaultdict(list)
    for table, people, own in groups([line for line in found if not line["every"]]):
        for line in own:
            for name, words in (("refused", "gate"), ("oracle", "oracle")):
                count = len(line["drawn"])
                value, low, high = wilson(round(rates_of(line["drawn"])[name] * count), count)
                told = {"dose": 100 * line["dose"], "refused": value, "low": low, "high": high}
                rows[table].append({**told, "of": f"{words}, {people:,} people in train"})
    labels = ("% of the training people who are copied", "share of the releases that are refused")
    return {
        table: intervals_svg(own, x="dose", y="refused", series=("of",), labels=labels, null=REFUSED)
        for table, own in rows.items()
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run or report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", help='Parquet files, or "demo"')
    parser.add_argument(
        "--people", type=int, nargs="+", default=[1_000, 2_000, 5_000], help="in train; a third at most"
    )
    parser.add_argument("--every-row", action="store_true", help="copies of any row, not only of those that few have")
    parser.add_argument("--draws", type=int, default=100, help="splits and releases of each table, size and dose")
    parser.add_argument("--results", type=Path, default=Path("power.jsonl"), help="where lines are added")
    parser.add_argument("--report", type=Path, help="a file to report on; nothing is run")
    parser.add_argument("--images", type=Path, help="a folder for the plots")
    options = parser.parse_args(arguments)
    if options.report is None and not options.tables:
        parser.error("name a table, or a --report file")
    if options.report is None:
        run(options)
        return
    found = lines(options.report)
    sys.stdout.write(report_text(found))
    for table, svg in plots(found).items() if options.images else ():
        write_image(svg, options.images / f"power_{table}.svg")


if __name__ == "__main__":
    main()
