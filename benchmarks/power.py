"""Measure the smallest share of copied people that is rejected, and compare it with an oracle that
knows the mechanism.

    python -m benchmarks.power --results power.jsonl tests/data/adult.parquet \\
        tests/data/uk_census.parquet demo
    python -m benchmarks.power --every-row --results power.jsonl DIRECTORY/muscatine.parquet
    python -m benchmarks.power --report power.jsonl --images benchmarks/results

Holdout and reference have 0.6 and 0.4 times as many people as train. Each training row that at most
two people have (with --every-row: each training row) is copied with the probability that yields the
dose, a share of the training people. The other rows of the release belong to people in no table.
The gate's verdict uses the default limits on ``copies`` and on
``membership_inference.outlier_matches``.

The oracle knows the mechanism and the rows that may be copied, and sees the tables of the gate.
Fresh rows are Poisson in each cell of equal rows, and copies are binomial. It knows how often cells
with n real rows occur among all other people, but not which cells. It rejects if its
likelihood-ratio interval of the copied share y violates one of the limits on
``copies.copied_share``, at their level. A second oracle also knows the population: with p(c) the
share of cell c among the source rows of fresh rows, and q(c) among the rows that may be copied, a
release row is in c with probability (1 - y) p(c) + y q(c). No test of equal level and tolerance is
more powerful.

With --every-row, two tests of no copies against this exact dose bound the power of any test: the
most powerful test that knows p, and the most powerful permutation test of the labels, which sees
only the real tables and the release. Each table, size and dose is one line and is measured once.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import brentq, minimize_scalar
from scipy.special import gammaln, xlogy

from benchmarks.copies import cells_of, table_of
from benchmarks.images import write_image
from benchmarks.leaks import known_rows
from benchmarks.study import SEVERAL, append, limits_alone, lines, run_or_report, study_parser
from privacy_assets.metrics.copies import Copies
from privacy_assets.metrics.inputs import EvaluationContext, EvaluationInputs
from privacy_assets.metrics.membership_inference.outliers import outlier_matches
from privacy_assets.metrics.membership_inference.scores import build_population, with_reference
from privacy_assets.metrics.policies import default_policy
from privacy_assets.metrics.release_tables import ReleaseTables
from privacy_assets.policy import Policy, widening
from privacy_assets.report.svg import intervals_svg
from privacy_assets.stats.estimates import MetricResult
from privacy_assets.stats.intervals import wilson
from privacy_assets.tables.inference import REAL_ROLES
from privacy_assets.tables.table import Table

DOSES = (0.0, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.05, 0.07)
EVERY_ROW = (0.0, 0.05, 0.1)  # doses if shared rows may be copied too
STATISTICS = ("copies", "membership_inference.outlier_matches")
LIMITS = Policy(
    tuple(
        x for x in default_policy().limits if x.metric == "copies" or x.statistic == STATISTICS[1]
    )
)
RARE = Policy(tuple(x for x in LIMITS.limits if x.statistic == "copies.copied_share"))
RULED_OUT, SIGNIFICANT = (
    next(limit.value for limit in RARE.limits if limit.bound == bound)
    for bound in ("conservative", "proven")
)
REFUSED = 0.95  # share of the splits
HARMLESS_REFUSED = 0.08  # maximum share of non-leaking releases rejected by the most powerful tests
TRIALS = 999  # number of simulated releases or permutations of a test
_TIE = 1e-9
_LEAST = 1e-300  # likelihood of impossible events
_NEVER = 1e-12  # replaces the share of a cell without fresh rows


class Source(NamedTuple):
    """Table: its rows, their subjects and cells, int64 (n,), and the rows as input of metrics."""

    frame: pd.DataFrame
    whose: np.ndarray
    cells: np.ndarray
    table: Table

    @classmethod
    def read(cls, name: str) -> Source:
        """Read the table of a file, or the demo."""
        frame, whose = table_of(name, None)
        frame = frame.reset_index(drop=True)
        return cls(frame, whose, cells_of(frame)[0], Table.read(frame, where=name))


class Draw(NamedTuple):
    """Split and release, as rows of a source."""

    sides: Mapping[str, np.ndarray]  # rows of each real table
    # bool (rows of the real tables,): few people have this row; all True with every
    own: np.ndarray
    taken: np.ndarray  # bool (rows of train,): is copied
    others: np.ndarray  # source rows of the fresh ones
    release: np.ndarray


def split(source: Source, people: int, dose: float, seed: int, *, every: bool) -> Draw:
    """Assign people to roles and build the release; with ``every``, all rows of train may be
    copied.
    """
    frame, whose, cells, _ = source
    rng = np.random.default_rng([seed, round(1000 * dose)])
    place = rng.permutation(whose.max() + 1)[whose]
    ends = np.array([0, 1, 1.6, 2]) * people
    sides = [
        np.flatnonzero((place >= low) & (place < high))
        for low, high in zip(ends[:-1], ends[1:], strict=True)
    ]
    here = place < ends[-1]
    others = known_rows(frame[~here], frame[here]).index.to_numpy()
    train, holders = sides[0], pd.Series(whose[here]).groupby(cells[here]).nunique()
    own = (holders.loc[cells[np.concatenate(sides)]].to_numpy() <= Copies().max_holders) | every
    may = own[: len(train)]
    held = by_person(may, whose[train])
    taken = may & (rng.random(len(train)) < min(dose / held, 1.0) if held > 0 else False)
    release = np.concatenate([train[taken], rng.choice(others, int((~taken).sum()))])
    return Draw(dict(zip(REAL_ROLES, sides, strict=True)), own, taken, others, release)


def by_person(flags: np.ndarray, whose: np.ndarray) -> float:
    """Return the mean over people of the share of their rows that is flagged."""
    return float(pd.Series(flags).groupby(whose).mean().mean())


def drawn(source: Source, people: int, dose: float, seed: int, *, every: bool) -> dict[str, Any]:
    """Measure one split and release: true share of copied people, verdict of the gate and oracle
    intervals.
    """
    draw, whose = split(source, people, dose, seed, every=every), source.whose
    tables = {
        role: source.table.take(rows)
        for role, rows in {**draw.sides, "synthetic": draw.release}.items()
    }
    subjects = {role: whose[rows] for role, rows in draw.sides.items()}
    release = ReleaseTables(source.table.schema, tables, subjects)
    inputs = EvaluationInputs.of(release, EvaluationContext(seed=seed))
    found = outlier_matches(with_reference(inputs, build_population(inputs)))
    copies = Copies().measure(inputs)
    results = {
        "copies": copies,
        "membership_inference": MetricResult("membership_inference", (found,)),
    }
    return {
        "share": by_person(draw.taken, subjects["train"]),
        "verdict": limits_alone(LIMITS, results).status,
        "copied_share": limits_alone(RARE, results).status,
        **oracles(source, draw, dose or EVERY_ROW[1], seed, every=every),
    }


def oracles(source: Source, draw: Draw, dose: float, seed: int, *, every: bool) -> dict[str, Any]:
    """Return the intervals of the oracles.

    With ``every``, the p-values of their most powerful tests replace the interval that uses the
    tables only.
    """
    cells, rng = source.cells, np.random.default_rng([seed, 1])
    train, real = draw.sides["train"], np.concatenate(list(draw.sides.values()))
    may = draw.own[: len(train)]
    release, others, own = cells[draw.release], cells[draw.others], cells[train[may]]
    known = {"population": interval_of_population(release, others, own)}
    if not every:
        held = by_person(may, source.whose[train])
        seen = interval_of_tables(release, cells[real], others, draw.own, len(train), held)
        return {**known, "oracle": seen}
    codes = np.unique(source.whose[real], return_inverse=True)[1]
    member = np.isin(np.arange(codes.max() + 1), codes[: len(train)])
    sizes = np.unique(cells, return_counts=True)[1]
    chances = [
        chance_of_population(release, others, own, dose, rng),
        chance_of_labels(release, cells[real], codes, member, sizes, dose, rng),
    ]
    return {**known, "chances": chances}


# --- oracle with known row frequencies
# --------------------------------------------------------------------------------


def interval_of_population(
    release: np.ndarray, population: np.ndarray, copied: np.ndarray
) -> tuple[float, float]:
    """Return the likelihood-ratio interval of the share of copies; all arguments are cells, int64
    (n,).
    """
    if not len(copied):
        return 0.0, 0.0
    more, times = np.unique(_more(release, population, copied)[release], return_counts=True)
    return interval(lambda y: float(times @ np.log1p(y * more)))


def chance_of_population(
    release: np.ndarray,
    population: np.ndarray,
    copied: np.ndarray,
    dose: float,
    rng: np.random.Generator,
) -> float:
    """Return the p-value of the most powerful test of no copies against a dose, by simulation
    without copies.
    """
    gain = np.log1p(dose * _more(release, population, copied))
    drawn = gain[rng.choice(population, (TRIALS, len(release)))].sum(axis=1)
    return float((1 + (drawn >= gain[release].sum() - _TIE).sum()) / (1 + TRIALS))


def _more(release: np.ndarray, population: np.ndarray, copied: np.ndarray) -> np.ndarray:
    """Return the relative excess probability of each cell for a copy over a fresh row."""
    size = int(max(rows.max() for rows in (release, population, copied))) + 1
    p, q = (np.bincount(rows, minlength=size) / len(rows) for rows in (population, copied))
    return q / np.maximum(p, _NEVER) - 1


# --- oracle with the tables of the gate
# -------------------------------------------------------------------------------


def likelihoods(
    hits: int, count: int, rates: np.ndarray, weights: np.ndarray, chance: float
) -> np.ndarray:
    """Return log likelihoods of ``hits`` in a cell of ``count`` real rows, with 0, 1, ... ``count``
    of them in train.

    The number of fresh rows is Poisson with one of ``rates``, weighted by ``weights``; a row of
    train is copied with probability ``chance``.
    """
    copies, members = np.arange(min(hits, count) + 1), np.arange(count + 1)[:, None]
    left = hits - copies[:, None]
    made = np.exp(xlogy(left, rates) - rates - gammaln(left + 1)) @ weights
    return np.log(np.exp(binomial(copies, members, chance)) @ made + _LEAST)


def binomial(k: np.ndarray | int, n: np.ndarray, chance: float) -> np.ndarray:
    """Return the log probability of k of n; -inf for k above n."""
    rest = np.maximum(n - k, 0)
    logs = (
        gammaln(n + 1)
        - gammaln(np.add(k, 1))
        - gammaln(rest + 1)
        + xlogy(k, chance)
        + xlogy(rest, 1 - chance)
    )
    return np.where(k > n, -np.inf, logs)


def interval_of_tables(
    release: np.ndarray,
    real: np.ndarray,
    others: np.ndarray,
    own: np.ndarray,
    train: int,
    held: float,
) -> tuple[float, float]:
    """Return the likelihood-ratio interval of the share of copied people, from the cells whose rows
    may be copied.

    ``real`` (n,) are the cells of all real rows, train first (``train`` rows); ``own`` bool (n,)
    flags rows that may be copied, which people of train hold with share ``held``. Fresh rows are
    drawn from ``others`` (m,), of which only the number of rows in cells with n real rows is known.
    """
    if not own[:train].any():
        return 0.0, 0.0
    hits, count, cell = counted(release, real)
    more, members = counted(others, real)[0], np.bincount(cell[:train], minlength=len(count))
    may = np.bincount(cell, own) > 0
    kinds, times = np.unique(np.stack([hits, count, members])[:, may], axis=1, return_counts=True)
    given = {
        c: np.unique(more[may & (count == c)], return_counts=True) for c in np.unique(count[may])
    }
    part = own[:train].mean()

    def fits(y: float) -> float:
        fresh = len(release) * (1 - y / held * part) / len(others)
        logs = [
            likelihoods(h, c, fresh * given[c][0], given[c][1], y / held)[m] for h, c, m in kinds.T
        ]
        return float(times @ logs)

    return interval(fits, held)


def chance_of_labels(
    release: np.ndarray,
    real: np.ndarray,
    whose: np.ndarray,
    member: np.ndarray,
    sizes: np.ndarray,
    dose: float,
    rng: np.random.Generator,
) -> float:
    """Return the p-value of the most powerful permutation test of the labels against a dose; all
    rows may be copied.

    ``real`` int64 (n,) are cells, ``whose`` int64 (n,) subject codes from 0 on, ``member`` bool
    (people,) flags train. The cell sizes in the whole table are known, ``sizes`` (cells,), but not
    which cell has which: rows are taken at random.
    """
    hits, count, cell = counted(release, real)
    pairs, kind = np.unique(np.stack([hits, count]), axis=1, return_inverse=True)
    values, times = np.unique(sizes, return_counts=True)
    share, unseen = len(real) / sizes.sum(), sizes.sum() - len(real)
    gains = []
    for hit, c in pairs.T:
        logs = np.log(times) + binomial(c, values, share)
        rates = len(release) * (1 - dose) * np.maximum(values - c, 0) / unseen
        gains.append(likelihoods(hit, c, rates, np.exp(logs - logs.max()), dose))
    start, flat = np.cumsum([0, *map(len, gains)])[kind.ravel()], np.concatenate(gains)

    def gain(labels: np.ndarray) -> float:
        return float(flat[start + np.bincount(cell[labels[whose]], minlength=len(count))].sum())

    seen = gain(member)
    return (1 + sum(gain(rng.permutation(member)) >= seen - _TIE for _ in range(TRIALS))) / (
        1 + TRIALS
    )


def counted(release: np.ndarray, real: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the release rows and real rows of each cell of ``real``, and the index of each real
    row's cell.
    """
    known, cell = np.unique(real, return_inverse=True)
    place = np.minimum(np.searchsorted(known, release), len(known) - 1)
    return (
        np.bincount(place[known[place] == release], minlength=len(known)),
        np.bincount(cell),
        cell,
    )


def interval(fits: Callable[[float], float], most: float = 1.0) -> tuple[float, float]:
    """Return the likelihood-ratio interval of a share up to ``most``.

    Its lower bound has the level of a significant limit, 95 %, its upper bound that of a first
    attempt.
    """
    last = most * (1 - 1e-6)
    best = float(
        minimize_scalar(
            lambda y: -fits(y), bounds=(0, last), method="bounded", options={"xatol": 1e-5}
        ).x
    )

    def end(outside: float, far: float) -> float:
        half = NormalDist().inv_cdf(0.975) * far

        def beyond(y: float) -> float:
            return fits(best) - fits(y) - half**2 / 2

        return float(brentq(beyond, best, outside, xtol=1e-5)) if beyond(outside) > 0 else outside

    return end(0.0, 1.0), end(last, widening(1, 0.95))


def run(options: argparse.Namespace) -> None:
    """Measure the missing lines, except doses above one that gate and oracle always reject."""
    held = {key_of(line): line["drawn"] for line in lines(options.results)}
    for name in options.tables:
        source = Source.read(name)
        for wanted in options.people:
            people = min(wanted, (int(source.whose.max()) + 1) // 3)
            for dose in options.doses or (EVERY_ROW if options.every_row else DOSES):
                record = {
                    "table": Path(name).stem,
                    "people": people,
                    "every": options.every_row,
                    "dose": dose,
                }
                key = key_of(record)
                if key not in held:
                    held[key] = [
                        drawn(source, people, dose, seed, every=options.every_row)
                        for seed in range(options.draws)
                    ]
                    append(options.results, {**record, "drawn": held[key]})
                    sys.stderr.write(f"{name}, {people} people, {dose}\n")
                if not options.every_row and min(rates_of(held[key]).values()) == 1:
                    break


def key_of(line: Mapping[str, Any]) -> tuple[Any, ...]:
    """Identify the measurement of a line."""
    return tuple(line[name] for name in ("table", "people", "every", "dose"))


def rates_of(drawn: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return rejection rates of the gate, the limits on ``copied_share`` alone, and the oracles."""
    refused = {
        "refused": np.array([one["verdict"] != "pass" for one in drawn]),
        "fails": np.array([one["verdict"] == "fail" for one in drawn]),
        "copied_share": np.array([one["copied_share"] != "pass" for one in drawn]),
    }
    for name in ("oracle", "population"):
        low, high = np.array([one.get(name, (np.nan, np.nan)) for one in drawn]).T
        refused[name] = (low > SIGNIFICANT) | (high > RULED_OUT)
    return {name: float(flags.mean()) for name, flags in refused.items()}


def smallest(shares: Sequence[float], refused: Sequence[float]) -> float:
    """Return the smallest share rejected at the rate ``REFUSED``, interpolated linearly between
    doses; inf if none.
    """
    rates = np.maximum.accumulate(refused)
    at = int(np.searchsorted(rates, REFUSED))
    if at == len(rates):
        return float("inf")
    if at == 0:
        return float(shares[0])
    part = (REFUSED - rates[at - 1]) / (rates[at] - rates[at - 1])
    return float(shares[at - 1] + part * (shares[at] - shares[at - 1]))


def report_text(found: Sequence[Mapping[str, Any]]) -> str:
    """Return Markdown: the smallest rejected shares, and detection rates of copies of any row."""
    out: list[str] = []
    rare, every = ([line for line in found if line["every"] is flag] for flag in (False, True))
    if rare:
        head = (
            "table",
            "people in train",
            "refused in 95 %",
            "fails in 95 %",
            "`copied_share` alone",
            "oracle",
            "that knows the population",
            "gate / oracle",
            "`copied_share` / oracle",
        )
        out += [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for table, people, own in groups(rare):
        shares = [float(np.mean([one["share"] for one in line["drawn"]])) for line in own]
        rates = [rates_of(line["drawn"]) for line in own]
        ends = {name: smallest(shares, [rate[name] for rate in rates]) for name in rates[0]}
        cells = [f"{100 * end:.1f} %" for end in ends.values()]
        cells += [f"{ends[name] / ends['oracle']:.2f}" for name in ("refused", "copied_share")]
        out.append(f"| {table} | {people:,} | {' | '.join(cells)} |")
    if every:
        head = (
            "table, people in train", "copied", "refused", "fails",
            "population known: refused", "above 0", "most powerful", "labels: most powerful",
        )  # fmt: skip
        out += ["", f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for table, people, own in groups(every):
        for line in own:
            drawn = line["drawn"]
            known = np.mean([one["population"][0] > 0 for one in drawn])
            chances = (np.array([one["chances"] for one in drawn]) <= HARMLESS_REFUSED).mean(axis=0)
            rates = rates_of(drawn)
            shares = [
                rates["refused"],
                rates["fails"],
                rates["population"],
                known,
                *chances,
            ]
            cells = [f"{100 * share:.0f} %" for share in shares]
            out.append(f"| {table}, {people:,} | {100 * line['dose']:g} % | {' | '.join(cells)} |")
    draws = min((len(line["drawn"]) for line in found), default=0)
    return "\n".join(out) + f"\n\nAt least {draws} splits of each.\n"


def groups(found: Sequence[Mapping[str, Any]]) -> list[tuple[str, int, list[Mapping[str, Any]]]]:
    """Return the lines of each table and size, ordered by dose."""
    names = sorted({(line["table"], line["people"]) for line in found})
    by_dose = sorted(found, key=lambda line: line["dose"])
    return [
        (*name, [line for line in by_dose if (line["table"], line["people"]) == name])
        for name in names
    ]


def plots(found: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return a plot per table: rejections by the gate and by the oracle of the population, by
    copied share and size.
    """
    rows = defaultdict(list)
    for table, people, own in groups([line for line in found if not line["every"]]):
        for line in own:
            for name, words in (("refused", "gate"), ("population", "oracle that knows all")):
                count = len(line["drawn"])
                value, low, high = wilson(round(rates_of(line["drawn"])[name] * count), count)
                point = {"dose": 100 * line["dose"], "refused": value, "low": low, "high": high}
                rows[table].append({**point, "of": f"{words}, {people:,} people in train"})
    labels = ("% of the training people who are copied", "share of the releases that are refused")
    return {
        table: intervals_svg(
            own, x="dose", y="refused", series=("of",), labels=labels, null=REFUSED
        )
        for table, own in rows.items()
    }


def report(options: argparse.Namespace, found: list[dict[str, Any]]) -> str:
    """Return the report, and write the plots if ``--images`` is given."""
    for table, svg in plots(found).items() if options.images else ():
        write_image(svg, options.images / f"power_{table}.svg")
    return report_text(found)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run or report."""
    parser = study_parser(__doc__, "power.jsonl")
    parser.add_argument("tables", nargs="*", help=SEVERAL)
    parser.add_argument(
        "--people",
        type=int,
        nargs="+",
        default=[1_000, 2_000, 5_000],
        help="in train; a third at most",
    )
    parser.add_argument("--every-row", action="store_true", help="copy any row, not only rare ones")
    parser.add_argument(
        "--doses", type=float, nargs="+", help="shares of copied people, replacing the default ones"
    )
    parser.add_argument(
        "--draws", type=int, default=100, help="splits and releases of each table, size and dose"
    )
    parser.add_argument("--images", type=Path, help="a folder for the plots")
    run_or_report(parser, arguments, run, report)


if __name__ == "__main__":
    main()
