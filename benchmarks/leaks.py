"""Planted leaks of many kinds beside harmless releases: what the default policy says, and which limit says it.

    python -m benchmarks.leaks --results leaks.jsonl tests/data/adult.parquet tests/data/uk_census.parquet demo
    python -m benchmarks.leaks --results leaks.jsonl DIRECTORY/*.parquet
    python -m benchmarks.leaks --report leaks.jsonl

:mod:`benchmarks.leak_tables` writes the tables of a directory. Real people are train, a third of all at most, six
tenths as many the holdout and four tenths the reference, the default shares; others, who stand in no table, give the
fresh rows of a release, and a leak takes the place of some of them, so that the truth is certain. Of these others only
rows are taken whose values the real tables have too: a category of somebody unseen is refused as a foreign value, which
no generator makes. Two generators stand beside. A line says how many of the people in train have a row of their own:
tables where fewer than half do are told apart, since a copy of a row that a crowd shares gives nobody away. All default
metrics with limits are measured but the controls, and linkability, without an encoder. A line a release, never measured
twice. It holds every estimate, so that a report judges it by the default limits of its day, or by a --policy.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.copies import table_of
from benchmarks.dimensions import lines
from benchmarks.measured import cost
from privacy_assets.evaluation import prepare_inputs, run_metrics
from privacy_assets.generators import build_generator
from privacy_assets.metrics.inputs import MetricInputs
from privacy_assets.metrics.membership_inference.scores import build_population
from privacy_assets.metrics.registry import build_metric
from privacy_assets.policy import Judgement, Policy
from privacy_assets.report.evaluate import as_policy
from privacy_assets.stats.estimates import Estimate, plain
from privacy_assets.stats.results import MetricResult

WHO = "who"
EMPTIED = "20 % with 60 % of cells missing"  # where all columns have missing values
FEW_VALUES = 100  # of a column: what else it holds is foreign
MEASURED = (
    "dcr", "copies", "singling_out", "linkability", "attribute_inference", "membership_inference", "value_disclosure"
)  # fmt: skip
FEWEST = 500  # people in train; fewer are no question to ask the gate
OWN = 0.5  # share of people with a row of their own, below which a table is one of rows that many share
STRATA = {0: "under 800", 800: "800 to 1,500", 1_501: "to 4,000", 4_001: "above"}  # people in train, from
# What a limit is held against, in the order of a line; a line has no rows behind an estimate, and no notes.
KEPT = ("value", "low", "high", "null", "subjects", "confidence", "direction", "minimum_detectable_effect", "about")
Rng = np.random.Generator
# The rows of train, how far each person stands from others, as many fresh rows, and chance: the rows that leak.
Leak = Callable[[pd.DataFrame, np.ndarray, pd.DataFrame, Rng], pd.DataFrame]


def some(share: float) -> Leak:
    """Copies of a share of the rows."""
    return lambda train, apart, fresh, rng: train.iloc[rng.choice(len(train), round(share * len(train)), replace=False)]


def whole(numbers: pd.Series) -> bool:
    """Whether all of them are whole numbers, which a missing one makes floats of."""
    return bool((numbers.dropna() % 1 == 0).all())


def jittered(rows: pd.DataFrame, rng: Rng) -> pd.DataFrame:
    """Numbers of many values moved by a twentieth of their deviation."""
    out = rows.copy()
    for name in out.select_dtypes("number"):
        if out[name].nunique() > 20:
            moved = out[name] + rng.normal(0, 0.05 * out[name].std(), len(out))
            out[name] = (moved.round() if whole(out[name]) else moved).astype(out[name].dtype)
    return out


def built(share: float, kept: Callable[[tuple[int, int], Rng], np.ndarray]) -> Leak:
    """A share of rows of which the cells in ``kept``, bool (n, columns), are a training row's, others a fresh row's."""

    def leak(train: pd.DataFrame, apart: np.ndarray, fresh: pd.DataFrame, rng: Rng) -> pd.DataFrame:
        own = some(share)(train, apart, fresh, rng).reset_index(drop=True)
        cells = kept(own.shape, rng)
        other = fresh.iloc[: len(own)].reset_index(drop=True)
        columns = {name: np.where(cells[:, at], own[name], other[name]) for at, name in enumerate(own)}
        return pd.DataFrame(columns).astype(own.dtypes.to_dict())

    return leak


def anywhere(number: Callable[[int], int]) -> Callable[[tuple[int, int], Rng], np.ndarray]:
    """``number(columns)`` cells of each row, drawn for each anew."""
    return lambda shape, rng: rng.random(shape).argsort(axis=1) < number(shape[1])


def block(shape: tuple[int, int], rng: Rng) -> np.ndarray:
    """Half of the columns, side by side, the same of all rows."""
    first = rng.integers(shape[1] - shape[1] // 2 + 1)
    cells = np.zeros(shape, dtype=bool)
    cells[:, first : first + shape[1] // 2] = True
    return cells


def changed(share: float, change: Callable[[pd.DataFrame, Rng], pd.DataFrame]) -> Leak:
    """Copies of a share of the rows, changed."""
    return lambda train, apart, fresh, rng: change(some(share)(train, apart, fresh, rng), rng)


def isolated(people: int, change: Callable[[pd.DataFrame, Rng], pd.DataFrame]) -> Leak:
    """Rows of some of the fiftieth of the rows, 60 at least, that stand farthest from everybody else."""

    def leak(train: pd.DataFrame, apart: np.ndarray, fresh: pd.DataFrame, rng: Rng) -> pd.DataFrame:
        farthest = np.argsort(-apart, kind="stable")[: max(60, len(train) // 50)]
        return change(train.iloc[rng.choice(farthest, people, replace=False)], rng)

    return leak


def repeated(people: int) -> Leak:
    """A tenth of the release are the rows of some people, again and again."""
    return lambda train, apart, fresh, rng: train.iloc[
        np.resize(rng.choice(len(train), people, replace=False), len(train) // 10)
    ]


def emptied(rows: pd.DataFrame, rng: Rng) -> pd.DataFrame:
    """Sixty of a hundred cells missing."""
    return rows.mask(rng.random(rows.shape) < 0.6)


def merged(rows: pd.DataFrame, rng: Rng) -> pd.DataFrame:
    """Categories of three levels and more, each second level called as the one that is a rank more common."""
    out = rows.copy()
    for name in out.select_dtypes(exclude=["number", "bool", "datetime"]):
        levels = out[name].value_counts().index
        if len(levels) > 2:
            out[name] = out[name].replace(dict(zip(levels[1::2], levels[::2], strict=False)))
    return out


def rounded(rows: pd.DataFrame, rng: Rng) -> pd.DataFrame:
    """Numbers of many values rounded to quarters of their deviation."""
    out = rows.copy()
    for name in out.select_dtypes("number"):
        if out[name].nunique() > 20:
            step = out[name].std() / 4
            step = max(round(step), 1) if whole(out[name]) else step
            out[name] = ((out[name] / step).round() * step).astype(out[name].dtype)
    return out


def permuted(rows: pd.DataFrame, rng: Rng) -> pd.DataFrame:
    """The column with the most values permuted among the rows."""
    name = rows.nunique().idxmax()
    return rows.assign(**{name: rng.permutation(rows[name])}).astype(rows.dtypes.to_dict())


def between(share: float) -> Leak:
    """A share of rows halfway from a training row to the one nearest to it; other cells are one's or the other's."""
    from sklearn.neighbors import NearestNeighbors

    def leak(train: pd.DataFrame, apart: np.ndarray, fresh: pd.DataFrame, rng: Rng) -> pd.DataFrame:
        numbers = train.select_dtypes("number")
        scaled = ((numbers - numbers.mean()) / numbers.std().replace(0, 1)).fillna(0)
        levels = train.drop(columns=numbers.columns).astype(str)
        places = np.hstack([scaled, *(pd.get_dummies(levels[name], dtype=float) for name in levels)])
        taken = rng.choice(len(train), round(share * len(train)), replace=False)
        near = NearestNeighbors(n_neighbors=2).fit(places).kneighbors(places[taken], return_distance=False)
        one, other = train.iloc[taken], train.iloc[np.where(near[:, 0] == taken, near[:, 1], near[:, 0])]
        columns = {}
        for name in train:
            if name in numbers:
                middle = (one[name].to_numpy() + other[name].to_numpy()) / 2
                columns[name] = np.round(middle) if whole(train[name]) else middle
            else:
                columns[name] = np.where(rng.random(len(taken)) < 0.5, one[name], other[name])
        return pd.DataFrame(columns).astype(train.dtypes.to_dict())

    return leak


LEAKS: Mapping[str, Leak] = {
    "5 % copies": some(0.05),
    "10 % copies": some(0.1),
    "20 % moved": changed(0.2, jittered),
    "20 % with one column of another": built(0.2, anywhere(lambda columns: columns - 1)),
    "20 % half built": built(0.2, anywhere(lambda columns: columns // 2)),
    "all half built": built(1.0, anywhere(lambda columns: columns // 2)),
    "15 isolated": isolated(15, lambda rows, rng: rows),
    "40 isolated, moved": isolated(40, jittered),
    "10 people repeated": repeated(10),
    "1 person repeated": repeated(1),
    EMPTIED: changed(0.2, emptied),
}
# Mistakes of generators, written without a look at what the metrics do. Nobody measures them while metrics and limits
# are worked on.
UNSEEN: Mapping[str, Leak] = {
    "20 % with categories merged": changed(0.2, merged),
    "20 % rounded": changed(0.2, rounded),
    "20 % between two": between(0.2),
    "5 % with a column permuted": changed(0.05, permuted),
    "20 % with a block of columns": built(0.2, block),
}
HARMLESS: Mapping[str, tuple[str, Mapping[str, Any]] | None] = {
    "fresh rows": None,
    "synthpop": ("synthpop", {}),
    "baynet": ("baynet", {}),
}


def released(
    frame: pd.DataFrame, whose: np.ndarray, people: int, kind: str, seed: int, leaks: Mapping[str, Leak]
) -> MetricInputs:
    """One split and a release of the ``kind``: a harmless one, or of ``leaks``."""
    rng = np.random.default_rng([seed, *kind.encode()])
    place = rng.permutation(whose.max() + 1)[whose]
    ends = np.array([0, 1, 1.6, 2]) * people
    tables = [
        frame[(place >= low) & (place < high)].assign(**{WHO: whose[(place >= low) & (place < high)]})
        for low, high in zip(ends[:-1], ends[1:], strict=True)
    ]
    train, holdout, reference = (table.reset_index(drop=True) for table in tables)
    own = train.drop(columns=WHO)
    others = known_rows(frame[place >= ends[-1]], frame[place < ends[-1]])
    fresh = others.iloc[np.resize(rng.permutation(len(others)), len(own))].reset_index(drop=True)
    synthetic, made, leak = fresh, HARMLESS.get(kind), leaks.get(kind)
    if made is not None or leak is not None:
        seen = prepare_inputs(train, holdout, fresh, reference=reference, subject=WHO, seed=seed)
    if made is not None:
        fitted = build_generator(*made).fit(seen.train, seed=seed, people=seen.subject_codes("train"))
        synthetic = fitted.sample(len(own), seed=seed).restored()
    if leak is not None:
        rows = leak(own, build_population(seen).neighbour[: len(own)], fresh, rng)
        synthetic = pd.concat([fresh.iloc[len(rows) :], rows], ignore_index=True)
    return prepare_inputs(train, holdout, synthetic, reference=reference, subject=WHO, seed=seed)


def measured(frame: pd.DataFrame, whose: np.ndarray, people: int, kind: str, seed: int) -> dict[str, Any]:
    """Every estimate of one release, and CPU seconds of all."""
    inputs = released(frame, whose, people, kind, seed, {**LEAKS, **UNSEEN})
    seconds, results = cost(lambda: run_metrics(inputs, {name: build_metric(name) for name in MEASURED}))
    estimates = {
        f"{name}.{estimate.name}": plain([getattr(estimate, part) for part in KEPT])
        for name, result in results.items()
        for estimate in result.estimates
    }
    return {"own": with_own_row(inputs), "estimates": estimates, "seconds": seconds}


def with_own_row(inputs: MetricInputs, few: int = 2) -> float:
    """Share of the people in train who have a row that at most ``few`` people of the real tables have."""
    people = inputs.everyone
    cells = np.unique(np.concatenate([inputs.row_ids[role] for role in inputs.real_roles]), return_inverse=True)[1]
    held = np.unique(np.stack([cells, people.codes]), axis=1)
    own = held[1, np.bincount(held[0])[held[0]] <= few]
    return float(np.bincount(own, minlength=len(people))[people.member].astype(bool).mean())


def known_rows(rows: pd.DataFrame, real: pd.DataFrame) -> pd.DataFrame:
    """Those of ``rows`` whose values, in columns of few values, ``real`` has too; and numbers that lie in its range.

    A missing value is one that ``real`` has to have as well.
    """
    known = np.ones(len(rows), dtype=bool)
    for name in rows:
        missing = rows[name].isna() & bool(real[name].isna().any())
        if rows[name].dtype.kind not in "iufM" or rows[name].nunique() <= FEW_VALUES:
            known &= (rows[name].isin(real[name].unique()) | missing).to_numpy()
        else:
            known &= (rows[name].between(real[name].min(), real[name].max()) | missing).to_numpy()
    return rows[known]


def results_of(line: Mapping[str, Any]) -> dict[str, MetricResult]:
    """The results of a line by metric, as a policy judges them."""
    found: dict[str, list[Estimate]] = {}
    for key, parts in line["estimates"].items():
        metric, _, statistic = key.partition(".")
        told = {"n": 0, "note": "", **dict(zip(KEPT, parts, strict=True))}
        found.setdefault(metric, []).append(Estimate.from_json(statistic, told))
    return {metric: MetricResult(metric, tuple(estimates)) for metric, estimates in found.items()}


def judged(line: Mapping[str, Any], policy: Policy) -> Judgement:
    """What ``policy`` says of a line, without the limits of metrics that were left out of the study."""
    results = results_of(line)
    return Policy(tuple(limit for limit in policy.limits if limit.metric in results)).judge(results)


def sizes(people: int, wanted: Sequence[int]) -> list[int]:
    """How many of ``people`` are train: the wanted numbers up to a third, or a third itself where that is less."""
    third = people // 3
    return [number for number in wanted if number <= third] or [third] * (third >= min(FEWEST, *wanted))


def run(options: argparse.Namespace) -> None:
    """Add the lines that the results do not hold yet."""
    held = {(line["table"], line["people"], line["kind"], line["seed"]) for line in lines(options.results)}
    policy, kinds = Policy.default(), (*HARMLESS, *LEAKS, *(UNSEEN if options.unseen else ()))
    kinds = tuple(options.kinds or kinds)
    for seed in range(options.draws):
        for name in options.tables:
            frame, whose = table_of(name, None)
            table = Path(name).stem + (", cells missing" if options.missing else "")
            if options.missing:
                frame = frame.mask(np.random.default_rng(0).random(frame.shape) < options.missing)
            every = int(whose.max()) + 1
            fitting = sizes(every, options.people)
            left_out = ", ".join(f"{number:,}" for number in options.people if number not in fitting)
            if seed == 0 and left_out:
                sys.stderr.write(f"{Path(name).stem}: too few of {every:,} people for {left_out} in train\n")
            for people in fitting:
                for kind in kinds:
                    if (table, people, kind, seed) in held or (kind == EMPTIED and not options.missing):
                        continue
                    told = {"table": table, "people": people, "kind": kind, "seed": seed}
                    held.add(tuple(told.values()))
                    line = {**told, **measured(frame, whose, people, kind, seed)}
                    with options.results.open("a") as file:
                        file.write(json.dumps(line) + "\n")
                    verdict = judged(line, policy).verdict
                    sys.stderr.write(f"{', '.join(map(str, told.values()))}: {verdict}\n")


# Kinds, a verdict, and the share of it that was asked for.
ASKED: Sequence[tuple[str, Sequence[str], str, str]] = (
    ("harmless", tuple(HARMLESS), "pass", "at least 92 %"),
    ("harmless", tuple(HARMLESS), "fail", "at most 2 %"),
    ("fresh rows", ("fresh rows",), "pass", ""),
    ("5 % copies", ("5 % copies",), "pass", "at most 5 %"),
    ("5 % copies", ("5 % copies",), "fail", "at least 80 %"),
    ("10 % copies", ("10 % copies",), "pass", "at most 5 %"),
    ("10 % copies", ("10 % copies",), "fail", "at least 97 %"),
    *((kind, (kind,), "pass", "at most 5 %") for kind in LEAKS if not kind.endswith(" % copies")),
    ("kinds written after the code", tuple(UNSEEN), "pass", ""),
)


def asked_text(found: Sequence[dict[str, Any]], judgements: Sequence[Judgement]) -> str:
    """Markdown: what was asked for, of tables of rows of one's own, of those of rows that many share, and of all."""
    whose: dict[str, Callable[[dict[str, Any]], bool]] = {
        "rows of one's own": lambda line: line["own"] >= OWN,
        "rows that many share": lambda line: line["own"] < OWN,
        "all": lambda line: True,
    }
    out = [f"| release | asked for | {' | '.join(whose)} |", "|---|---|---|---|---|"]
    for name, kinds, verdict, asked in ASKED:
        got = [
            [judgement.verdict == verdict for line, judgement in zip(found, judgements, strict=True)
             if line["kind"] in kinds and within(line)]
            for within in whose.values()
        ]  # fmt: skip
        if got[-1]:
            out.append(f"| {name}: {verdict} | {asked} | {' | '.join(f'{sum(of)} of {len(of)}' for of in got)} |")
    return "\n".join(out)


def report_text(found: Sequence[dict[str, Any]], policy: Policy) -> str:
    """Markdown: what was asked for, verdicts by people in train and kind, by table, and what each limit refuses."""
    judgements = [judged(line, policy) for line in found]
    by_kind: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    by_table: dict[tuple[str, int, bool], Counter[str]] = defaultdict(Counter)
    passed: dict[tuple[str, int], Counter[str]] = defaultdict(Counter)
    fails, alone, refused, undecided = (Counter[str]() for _ in range(4))
    for line, judgement in zip(found, judgements, strict=True):
        table, harmless = (line["table"], line["people"]), line["kind"] in HARMLESS
        by_kind[line["kind"], stratum(line["people"])][judgement.verdict] += 1
        by_table[*table, harmless][judgement.verdict] += 1
        sure = [outcome.limit.key for outcome in judgement.broken if outcome.status == "fail"]
        if harmless:
            refused.update(sure)
            undecided.update(outcome.limit.key for outcome in judgement.broken if outcome.status != "fail")
        else:
            fails.update(sure)
            alone.update(sure if len(sure) == 1 else ())
            passed[table].update([line["kind"]] if judgement.verdict == "pass" else ())
    strata = [name for name in STRATA.values() if any(at == name for _, at in by_kind)]
    out = [asked_text(found, judgements), ""]
    out += [f"| release, by people in train | {' | '.join(strata)} |", "|" + "---|" * (len(strata) + 1)]
    for kind in (*HARMLESS, *LEAKS, *UNSEEN):
        own = [by_kind[kind, at] for at in strata]
        if any(own):
            out.append(f"| {kind} | {' | '.join(map(counted, own))} |")
    out += ["", "| table, people in train | harmless | leaks | leaks that pass |", "|---|---|---|---|"]
    for name, people in sorted({(line["table"], line["people"]) for line in found}):
        told = ", ".join(f"{kind} ({count})" for kind, count in passed[name, people].items())
        sides = " | ".join(counted(by_table[name, people, harmless]) for harmless in (True, False))
        out.append(f"| {name}, {people:,} | {sides} | {told} |")
    out += ["", "| limit | leaks that it fails | alone | harmless that it fails | undecided |", "|---|---|---|---|---|"]
    for limit in sorted({*fails, *refused, *undecided}, key=lambda limit: (-fails[limit], limit)):
        out.append(f"| `{limit}` | {fails[limit]} | {alone[limit]} | {refused[limit]} | {undecided[limit]} |")
    seconds = [line["seconds"] for line in found] or [math.nan]
    harmless_ones = sum(line["kind"] in HARMLESS for line in found)
    told = f"{len(found) - harmless_ones} leaks and {harmless_ones} harmless releases"
    out.append(f"\n{told}; {np.mean(seconds):.1f} CPU s each")
    return "\n".join(out) + ".\n"


def stratum(people: int) -> str:
    """Name of the stratum of so many people in train."""
    return STRATA[max(first for first in STRATA if first <= people)]


def counted(verdicts: Counter[str]) -> str:
    """Passes, not assessable ones and failures."""
    return " / ".join(str(verdicts[verdict]) for verdict in ("pass", "not_assessable", "fail"))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run or report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", help='Parquet files, or "demo"')
    parser.add_argument(
        "--people", type=int, nargs="+", default=[1_000, 2_000, 6_000], help="in train; a third of all at most"
    )
    parser.add_argument("--missing", type=float, default=0.0, help="share of the cells that is blanked in every column")
    parser.add_argument("--draws", type=int, default=4, help="splits and releases of each table and kind")
    parser.add_argument("--kinds", nargs="+", choices=[*HARMLESS, *LEAKS, *UNSEEN], help="these alone")
    parser.add_argument("--unseen", action="store_true", help="the kinds of leaks that nobody worked with as well")
    parser.add_argument("--results", type=Path, default=Path("leaks.jsonl"), help="where lines are added")
    parser.add_argument("--report", type=Path, help="a file to report on; nothing is run")
    parser.add_argument(
        "--between", type=float, nargs=2, default=(0, math.inf), help="people in train of what is reported"
    )
    parser.add_argument("--policy", help="a policy file, or small; the default limits without")
    options = parser.parse_args(arguments)
    if options.report is not None:
        policy, every = as_policy(options.policy) or Policy.default(), lines(options.report)
        least, most = options.between
        sys.stdout.write(report_text([line for line in every if least <= line["people"] <= most], policy))
    elif options.tables:
        run(options)
    else:
        parser.error("name a table, or a --report file")


if __name__ == "__main__":
    main()
