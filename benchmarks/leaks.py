"""Evaluate planted leaks of many kinds and non-leaking releases by the default policy, and count
the violated limits.

    python -m benchmarks.leaks --results leaks.jsonl tests/data/adult.parquet \\
        tests/data/uk_census.parquet demo
    python -m benchmarks.leaks --results leaks.jsonl DIRECTORY/*.parquet
    python -m benchmarks.leaks --report leaks.jsonl

:mod:`benchmarks.leak_tables` writes the tables of a directory. At most a third of the people are
train; holdout and reference have 0.6 and 0.4 times as many, the default shares. The fresh rows of a
release belong to other people, and a leak replaces some of them, so the truth is known. Fresh rows
with values that the real tables lack are excluded, because no generator produces foreign values.
Two generators are evaluated as well, on tables without rare values, as in a pipeline. Each line
states the share of training people with a unique row. Tables where this is less than half are
reported separately, because a copy of a shared row discloses no person. All default metrics with
limits are measured except controls, by default without an encoder. Each release is one line with
every estimate and is measured once; the report evaluates it with the current default limits or a
--policy. The releases that the limits of the papers refuse:

    python -m benchmarks.leaks TABLES --results papers.jsonl --people 2000 --draws 1 \\
        --kinds "fresh rows" synthpop --embedder --metrics dcr singling_out linkability \\
        attribute_inference membership_inference memorization data_privacy \\
        --policy examples/policies/papers.yaml
    python -m benchmarks.leaks --report papers.jsonl --policy examples/policies/papers.yaml
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.copies import table_of
from benchmarks.measured import cost
from benchmarks.study import SEVERAL, append, limits_alone, lines, run_or_report, study_parser
from privacy_assets.evaluation.measuring import run_metrics, with_embedder
from privacy_assets.evaluation.reading import build_inputs, read_inputs
from privacy_assets.generators import build_generator
from privacy_assets.generators.base import Generator
from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.metrics.membership_inference.scores import build_population
from privacy_assets.metrics.policies import load_policy
from privacy_assets.metrics.registry import METRICS, build_metric
from privacy_assets.policy import MIN_HOLDERS, Limit, Policy, Verdict
from privacy_assets.report.answers import TITLES, answers
from privacy_assets.stats.estimates import Estimate, MetricResult, to_jsonable
from privacy_assets.tables.canonical import real_tables
from privacy_assets.tables.declared import Declared
from privacy_assets.tables.table import Table, subject_codes_of
from privacy_assets.tables.threshold_rule import real_schema, without_rare_values

WHO = "who"
EMPTIED = "20 % with 60 % of cells missing"  # all columns have missing values
MAX_CLOSED_VALUES = 100  # maximum number of values of a column for which other values are foreign
MEASURED = (
    "dcr",
    "copies",
    "singling_out",
    "linkability",
    "attribute_inference",
    "membership_inference",
    "value_disclosure",
)
FEWEST = 500  # minimum number of people in train
OWN = 0.5  # minimum share of people with a unique row, below which many people share rows
# people in train, from
STRATA = {0: "under 800", 800: "800 to 1,500", 1_501: "to 4,000", 4_001: "above"}
# Values that limits use, in the order of a line; lines contain neither the rows behind an estimate
# nor notes.
KEPT = (
    "value",
    "low",
    "high",
    "null",
    "subjects",
    "confidence",
    "direction",
    "minimum_detectable_effect",
    "measures",
)
Rng = np.random.Generator
# Map train, the distance of each person to others, equally many fresh rows and a random generator
# to leaked rows.
Leak = Callable[[pd.DataFrame, np.ndarray, pd.DataFrame, Rng], pd.DataFrame]


def some(share: float) -> Leak:
    """Copy a share of the rows."""
    return lambda train, apart, fresh, rng: train.iloc[
        rng.choice(len(train), round(share * len(train)), replace=False)
    ]


def whole(numbers: pd.Series) -> bool:
    """Return True if all values are integers, even if missing values made them floats."""
    return bool((numbers.dropna() % 1 == 0).all())


def jittered(rows: pd.DataFrame, rng: Rng) -> pd.DataFrame:
    """Shift numbers with many values by a twentieth of their standard deviation."""
    out = rows.copy()
    for name in out.select_dtypes("number"):
        if out[name].nunique() > 20:
            moved = out[name] + rng.normal(0, 0.05 * out[name].std(), len(out))
            out[name] = (moved.round() if whole(out[name]) else moved).astype(out[name].dtype)
    return out


def built(share: float, kept: Callable[[tuple[int, int], Rng], np.ndarray]) -> Leak:
    """Build a share of the rows from training rows in the cells ``kept``, bool (n, columns), else
    from fresh rows.
    """

    def leak(train: pd.DataFrame, apart: np.ndarray, fresh: pd.DataFrame, rng: Rng) -> pd.DataFrame:
        own = some(share)(train, apart, fresh, rng).reset_index(drop=True)
        cells = kept(own.shape, rng)
        other = fresh.iloc[: len(own)].reset_index(drop=True)
        columns = {
            name: np.where(cells[:, at], own[name], other[name]) for at, name in enumerate(own)
        }
        return pd.DataFrame(columns).astype(own.dtypes.to_dict())

    return leak


def anywhere(number: Callable[[int], int]) -> Callable[[tuple[int, int], Rng], np.ndarray]:
    """Choose ``number(columns)`` random cells for each row."""
    return lambda shape, rng: rng.random(shape).argsort(axis=1) < number(shape[1])


def block(shape: tuple[int, int], rng: Rng) -> np.ndarray:
    """Choose half of the columns, adjacent and equal for all rows."""
    first = rng.integers(shape[1] - shape[1] // 2 + 1)
    cells = np.zeros(shape, dtype=bool)
    cells[:, first : first + shape[1] // 2] = True
    return cells


def changed(share: float, change: Callable[[pd.DataFrame, Rng], pd.DataFrame]) -> Leak:
    """Copy a share of the rows and change the copies."""
    return lambda train, apart, fresh, rng: change(some(share)(train, apart, fresh, rng), rng)


def isolated(people: int, change: Callable[[pd.DataFrame, Rng], pd.DataFrame]) -> Leak:
    """Copy rows from the fiftieth of the rows (at least 60) farthest from all other people."""

    def leak(train: pd.DataFrame, apart: np.ndarray, fresh: pd.DataFrame, rng: Rng) -> pd.DataFrame:
        farthest = np.argsort(-apart, kind="stable")[: max(60, len(train) // 50)]
        return change(train.iloc[rng.choice(farthest, people, replace=False)], rng)

    return leak


def repeated(people: int) -> Leak:
    """Fill a tenth of the release with repeated rows of some people."""
    return lambda train, apart, fresh, rng: train.iloc[
        np.resize(rng.choice(len(train), people, replace=False), len(train) // 10)
    ]


def three_times(people: int) -> Leak:
    """Add the rows of some people three times."""
    return lambda train, apart, fresh, rng: train.iloc[
        rng.choice(len(train), people, replace=False).repeat(3)
    ]


def emptied(rows: pd.DataFrame, rng: Rng) -> pd.DataFrame:
    """Set 60 % of the cells to missing."""
    return rows.mask(rng.random(rows.shape) < 0.6)


def merged(rows: pd.DataFrame, rng: Rng) -> pd.DataFrame:
    """In categories of three or more levels, merge every second level into the one that is one rank
    more common.
    """
    out = rows.copy()
    for name in out.select_dtypes(exclude=["number", "bool", "datetime"]):
        levels = out[name].value_counts().index
        if len(levels) > 2:
            out[name] = out[name].replace(dict(zip(levels[1::2], levels[::2], strict=False)))
    return out


def rounded(rows: pd.DataFrame, rng: Rng) -> pd.DataFrame:
    """Round numbers with many values to quarters of their standard deviation."""
    out = rows.copy()
    for name in out.select_dtypes("number"):
        if out[name].nunique() > 20:
            step = out[name].std() / 4
            step = max(round(step), 1) if whole(out[name]) else step
            out[name] = ((out[name] / step).round() * step).astype(out[name].dtype)
    return out


def permuted(rows: pd.DataFrame, rng: Rng) -> pd.DataFrame:
    """Permute the column with the most values among the rows."""
    name = rows.nunique().idxmax()
    return rows.assign(**{name: rng.permutation(rows[name])}).astype(rows.dtypes.to_dict())


def between(share: float) -> Leak:
    """Move a share of training rows halfway to their nearest training row; other cells come from
    either row.
    """
    from sklearn.neighbors import NearestNeighbors

    def leak(train: pd.DataFrame, apart: np.ndarray, fresh: pd.DataFrame, rng: Rng) -> pd.DataFrame:
        numbers = train.select_dtypes("number")
        scaled = ((numbers - numbers.mean()) / numbers.std().replace(0, 1)).fillna(0)
        levels = train.drop(columns=numbers.columns).astype(str)
        places = np.hstack(
            [scaled, *(pd.get_dummies(levels[name], dtype=float) for name in levels)]
        )
        taken = rng.choice(len(train), round(share * len(train)), replace=False)
        near = (
            NearestNeighbors(n_neighbors=2)
            .fit(places)
            .kneighbors(places[taken], return_distance=False)
        )
        one, other = (
            train.iloc[taken],
            train.iloc[np.where(near[:, 0] == taken, near[:, 1], near[:, 0])],
        )
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
    "copy of train": some(1.0),
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
    "3 % with one cell redrawn": built(0.03, anywhere(lambda columns: columns - 1)),
    "15 people three times": three_times(15),
    EMPTIED: changed(0.2, emptied),
}
# Generator errors, defined independently of the metrics. Do not measure them while developing
# metrics and limits.
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
    "synthpop, leaf 200": ("synthpop", {"min_samples_leaf": 200}),
    "synthpop, leaf 50": ("synthpop", {"min_samples_leaf": 50, "shrinkage": 30.0}),
    "synthpop, leaf 20": ("synthpop", {"min_samples_leaf": 20, "shrinkage": 30.0}),
    "baynet": ("baynet", {}),
}


def released(
    frame: pd.DataFrame,
    whose: np.ndarray,
    people: int,
    kind: str,
    seed: int,
    leaks: Mapping[str, Leak],
    rule: bool = False,
    size: float = 1.0,
) -> EvaluationInputs:
    """Draw one split and a release of the ``kind``: harmless, or one of ``leaks``.

    ``rule``: after the threshold rule. ``size``: number of rows of the release, as a share of
    train, if it is not of a generator.
    """
    rng = np.random.default_rng([seed, *kind.encode()])
    place = rng.permutation(whose.max() + 1)[whose]
    ends = np.array([0, 1, 1.6, 2]) * people
    tables = [
        frame[(place >= low) & (place < high)].assign(
            **{WHO: whose[(place >= low) & (place < high)]}
        )
        for low, high in zip(ends[:-1], ends[1:], strict=True)
    ]
    train, holdout, reference = (table.reset_index(drop=True) for table in tables)
    made, leak = HARMLESS.get(kind), leaks.get(kind)
    if made is not None:
        return generated(train, holdout, reference, build_generator(*made), seed)
    own = train.drop(columns=WHO)
    others = known_rows(frame[place >= ends[-1]], frame[place < ends[-1]])
    fresh = others.iloc[np.resize(rng.permutation(len(others)), len(own))].reset_index(drop=True)
    fresh = fresh.iloc[: round(size * len(own))]
    synthetic = fresh
    if leak is not None:
        seen = read_inputs(
            train, holdout, fresh, declared=Declared(subject=WHO), reference=reference, seed=seed
        )
        rows = leak(own, build_population(seen).neighbor[: len(own)], fresh, rng)
        synthetic = pd.concat([fresh.iloc[len(rows) :], rows], ignore_index=True)
    if rule:
        real = as_in_a_pipeline({"train": train, "holdout": holdout, "reference": reference})
        own = real["train"]
        brought = Table.of(
            synthetic, real_schema(own.schema, own.rules), where="synthetic", synthetic=True
        )
        return build_inputs(
            real, brought.without_rare(own.rules).with_schema(own.schema), seed=seed
        )
    return read_inputs(
        train, holdout, synthetic, declared=Declared(subject=WHO), reference=reference, seed=seed
    )


def as_in_a_pipeline(frames: dict[str, pd.DataFrame]) -> dict[str, Table]:
    """Return the real tables, with the column ``WHO``, in canonical form and without rare
    values.
    """
    names = {role: role for role in frames}
    return without_rare_values(real_tables(frames, names, Declared(subject=WHO)), MIN_HOLDERS)


def generated(
    train: pd.DataFrame,
    holdout: pd.DataFrame,
    reference: pd.DataFrame,
    generator: Generator,
    seed: int,
) -> EvaluationInputs:
    """Fit a generator as a pipeline does, without rare values, and return the inputs for its
    release.
    """
    real = as_in_a_pipeline({"train": train, "holdout": holdout, "reference": reference})
    own = real["train"]
    fitted = generator.fit(own, seed=seed, subject_codes=subject_codes_of([own]))
    synthetic = fitted.sample(len(own), seed=seed).without_rare(own.rules).with_schema(own.schema)
    return build_inputs(real, synthetic, seed=seed)


def measured(
    frame: pd.DataFrame,
    whose: np.ndarray,
    people: int,
    kind: str,
    seed: int,
    metrics: Sequence[str] = MEASURED,
    embedder: bool = False,
) -> dict[str, Any]:
    """Return every estimate of one release, with an encoder if ``embedder`` is True, and CPU
    seconds.
    """
    inputs = released(frame, whose, people, kind, seed, {**LEAKS, **UNSEEN})
    if embedder:
        inputs = with_embedder(inputs)
    return {"own": with_own_row(inputs), **measured_on(inputs, metrics)}


def measured_on(inputs: EvaluationInputs, metrics: Sequence[str]) -> dict[str, Any]:
    """Return every estimate of these metrics, and CPU seconds."""
    seconds, results = cost(
        lambda: run_metrics(inputs, {name: build_metric(name) for name in metrics})
    )
    estimates = {
        f"{name}.{estimate.name}": to_jsonable([getattr(estimate, part) for part in KEPT])
        for name, result in results.items()
        for estimate in result.estimates
    }
    return {"estimates": estimates, "seconds": seconds}


def with_own_row(inputs: EvaluationInputs, few: int = 2) -> float:
    """Return the share of training people with a row that at most ``few`` people of the real tables
    have.
    """
    people = inputs.all_subjects
    cells = np.unique(
        np.concatenate([inputs.row_ids[role] for role in inputs.real_roles]), return_inverse=True
    )[1]
    held = np.unique(np.stack([cells, people.codes]), axis=1)
    own = held[1, np.bincount(held[0])[held[0]] <= few]
    return float(np.bincount(own, minlength=len(people))[people.member].astype(bool).mean())


def known_rows(rows: pd.DataFrame, real: pd.DataFrame) -> pd.DataFrame:
    """Return the ``rows`` whose values ``real`` has in low-cardinality columns, and whose numbers
    are in its range.

    Missing values must occur in ``real`` too.
    """
    known = np.ones(len(rows), dtype=bool)
    for name in rows:
        missing = rows[name].isna() & bool(real[name].isna().any())
        if rows[name].dtype.kind not in "iufM" or rows[name].nunique() <= MAX_CLOSED_VALUES:
            known &= (rows[name].isin(real[name].unique()) | missing).to_numpy()
        else:
            known &= (rows[name].between(real[name].min(), real[name].max()) | missing).to_numpy()
    return rows[known]


def results_of(line: Mapping[str, Any]) -> dict[str, MetricResult]:
    """Return the results of a line by metric, as input of a policy."""
    found: dict[str, list[Estimate]] = {}
    for key, parts in line["estimates"].items():
        metric, _, statistic = key.partition(".")
        fields = {"n": 0, "note": "", **dict(zip(KEPT, parts, strict=True))}
        found.setdefault(metric, []).append(Estimate.from_json(statistic, fields))
    return {metric: MetricResult(metric, tuple(estimates)) for metric, estimates in found.items()}


def judged(line: Mapping[str, Any], policy: Policy) -> Verdict:
    """Return the verdict of ``policy`` on a line, without the limits of metrics excluded from the
    study.
    """
    results = results_of(line)
    return limits_alone(
        Policy(tuple(limit for limit in policy.limits if limit.metric in results)), results
    )


def sizes(people: int, wanted: Sequence[int]) -> list[int]:
    """Return the sizes of train: the requested numbers up to a third of ``people``, or a third if
    that is less.
    """
    third = people // 3
    return [number for number in wanted if number <= third] or [third] * (
        third >= min(FEWEST, *wanted)
    )


def run(options: argparse.Namespace) -> None:
    """Measure the releases that the results do not contain yet."""
    held = {
        (line["table"], line["people"], line["kind"], line["seed"])
        for line in lines(options.results)
    }
    policy = load_policy(options.policy or "default")
    kinds = tuple(options.kinds or (*HARMLESS, *LEAKS, *(UNSEEN if options.unseen else ())))
    for seed in range(options.draws):
        for name in options.tables:
            frame, whose = table_of(name, None)
            table = Path(name).stem + (", cells missing" if options.missing else "")
            if options.missing:
                frame = frame.mask(np.random.default_rng(0).random(frame.shape) < options.missing)
            every = int(whose.max()) + 1
            fitting = sizes(every, options.people)
            left_out = ", ".join(
                f"{number:,}" for number in options.people if number not in fitting
            )
            if seed == 0 and left_out:
                sys.stderr.write(
                    f"{Path(name).stem}: too few of {every:,} people for {left_out} in train\n"
                )
            for people in fitting:
                for kind in kinds:
                    if (table, people, kind, seed) in held or (
                        kind == EMPTIED and not options.missing
                    ):
                        continue
                    key = {"table": table, "people": people, "kind": kind, "seed": seed}
                    held.add(tuple(key.values()))
                    line = {
                        **key,
                        **measured(
                            frame, whose, people, kind, seed, options.metrics, options.embedder
                        ),
                    }
                    append(options.results, line)
                    verdict = judged(line, policy).status
                    sys.stderr.write(f"{', '.join(map(str, key.values()))}: {verdict}\n")


# Kinds, a verdict, and its required share.
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


def asked_text(found: Sequence[dict[str, Any]], judgments: Sequence[Verdict]) -> str:
    """Return Markdown with the requirements: on tables of unique rows, on tables of shared rows,
    and on all tables.
    """
    whose: dict[str, Callable[[dict[str, Any]], bool]] = {
        "unique rows": lambda line: line["own"] >= OWN,
        "shared rows": lambda line: line["own"] < OWN,
        "all": lambda line: True,
    }
    out = [f"| release | required | {' | '.join(whose)} |", "|---|---|---|---|---|"]
    for name, kinds, verdict, asked in ASKED:
        got = [
            [
                policy_verdict.status == verdict
                for line, policy_verdict in zip(found, judgments, strict=True)
                if line["kind"] in kinds and within(line)
            ]
            for within in whose.values()
        ]
        if got[-1]:
            out.append(
                f"| {name}: {verdict} | {asked} |"
                f" {' | '.join(f'{sum(of)} of {len(of)}' for of in got)} |"
            )
    return "\n".join(out)


def report_text(found: Sequence[dict[str, Any]], policy: Policy) -> str:
    """Return Markdown: requirements, verdicts by size of train and kind and by table, and
    rejections per limit.
    """
    judgments = [judged(line, policy) for line in found]
    by_kind: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    by_table: dict[tuple[str, int, bool], Counter[str]] = defaultdict(Counter)
    passed: dict[tuple[str, int], Counter[str]] = defaultdict(Counter)
    fails, alone, refused, undecided = (Counter[str]() for _ in range(4))
    for line, policy_verdict in zip(found, judgments, strict=True):
        table, harmless = (line["table"], line["people"]), line["kind"] in HARMLESS
        by_kind[line["kind"], stratum(line["people"])][policy_verdict.status] += 1
        by_table[*table, harmless][policy_verdict.status] += 1
        sure = [
            outcome.limit.key for outcome in policy_verdict.not_passed if outcome.status == "fail"
        ]
        if harmless:
            refused.update(sure)
            undecided.update(
                outcome.limit.key
                for outcome in policy_verdict.not_passed
                if outcome.status != "fail"
            )
        else:
            fails.update(sure)
            alone.update(sure if len(sure) == 1 else ())
            passed[table].update([line["kind"]] if policy_verdict.status == "pass" else ())
    strata = [name for name in STRATA.values() if any(at == name for _, at in by_kind)]
    out = [asked_text(found, judgments), ""]
    out += [
        f"| release, by people in train | {' | '.join(strata)} |",
        "|" + "---|" * (len(strata) + 1),
    ]
    for kind in (*HARMLESS, *LEAKS, *UNSEEN):
        own = [by_kind[kind, at] for at in strata]
        if any(own):
            out.append(f"| {kind} | {' | '.join(map(counted, own))} |")
    out += [
        "",
        "| table, people in train | harmless | leaks | leaks that pass |",
        "|---|---|---|---|",
    ]
    for name, people in sorted({(line["table"], line["people"]) for line in found}):
        passed_kinds = ", ".join(
            f"{kind} ({count})" for kind, count in passed[name, people].items()
        )
        sides = " | ".join(counted(by_table[name, people, harmless]) for harmless in (True, False))
        out.append(f"| {name}, {people:,} | {sides} | {passed_kinds} |")
    out += [
        "",
        "| limit | leaks that it fails | alone | harmless that it fails | undecided |",
        "|---|---|---|---|---|",
    ]
    for limit in sorted({*fails, *refused, *undecided}, key=lambda limit: (-fails[limit], limit)):
        out.append(
            f"| `{limit}` | {fails[limit]} | {alone[limit]} | {refused[limit]} |"
            f" {undecided[limit]} |"
        )
    out += ["", answered_text(found, judgments), "", alone_text(found, policy)]
    seconds = [line["seconds"] for line in found] or [math.nan]
    harmless_ones = sum(line["kind"] in HARMLESS for line in found)
    summary = f"{len(found) - harmless_ones} leaks and {harmless_ones} non-leaking releases"
    out.append(f"\n{summary}; {np.mean(seconds):.1f} CPU s each")
    return "\n".join(out) + ".\n"


def answered_text(found: Sequence[dict[str, Any]], judgments: Sequence[Verdict]) -> str:
    """Return Markdown with the share of releases of each kind whose answer to a question is
    "Yes".
    """
    yes: dict[str, list[list[bool]]] = defaultdict(list)
    for line, verdict in zip(found, judgments, strict=True):
        page_answers = answers(verdict.outcomes, results_of(line), verdict.status)[: len(TITLES)]
        yes[line["kind"]].append([answer.status == "fail" for answer in page_answers])
    out = [f"| answers with Yes | {' | '.join(TITLES)} |", "|" + "---|" * (len(TITLES) + 1)]
    for kind in (*HARMLESS, *LEAKS, *UNSEEN):
        if own := yes.get(kind):
            shares = " | ".join(f"{sum(column)} of {len(own)}" for column in zip(*own, strict=True))
            out.append(f"| {kind} | {shares} |")
    return "\n".join(out)


def alone_text(found: Sequence[dict[str, Any]], policy: Policy) -> str:
    """Return Markdown with the share of releases of each kind that the limits of one metric alone
    refuse.
    """
    limits: dict[str, list[Limit]] = defaultdict(list)
    for limit in policy.limits:
        limits[limit.metric].append(limit)
    parts = {
        metric: replace(policy, limits=tuple(own), name="part") for metric, own in limits.items()
    }
    out = [
        f"| refused by one metric alone | {' | '.join(parts)} |",
        "|" + "---|" * (len(parts) + 1),
    ]
    for kind in (*HARMLESS, *LEAKS, *UNSEEN):
        own = [line for line in found if line["kind"] == kind]
        shares = []
        for metric, part in parts.items():
            statuses = [judged(line, part).status for line in own if metric in results_of(line)]
            shares.append(f"{statuses.count('fail')} of {len(statuses)}" if statuses else "")
        if own:
            out.append(f"| {kind} | {' | '.join(shares)} |")
    return "\n".join(out)


def stratum(people: int) -> str:
    """Return the name of the stratum of this many people in train."""
    return STRATA[max(first for first in STRATA if first <= people)]


def counted(verdicts: Counter[str]) -> str:
    """Count passes, undecided releases and failures."""
    return " / ".join(str(verdicts[verdict]) for verdict in ("pass", "undecided", "fail"))


def report(options: argparse.Namespace, found: list[dict[str, Any]]) -> str:
    """Return the report on the lines within ``--between``, under the policy of ``--policy``."""
    least, most = options.between
    policy = load_policy(options.policy or "default")
    return report_text([line for line in found if least <= line["people"] <= most], policy)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run or report."""
    parser = study_parser(__doc__, "leaks.jsonl")
    parser.add_argument("tables", nargs="*", help=SEVERAL)
    parser.add_argument(
        "--people",
        type=int,
        nargs="+",
        default=[1_000, 2_000, 6_000],
        help="in train; a third of all at most",
    )
    parser.add_argument(
        "--missing",
        type=float,
        default=0.0,
        help="share of the cells that is blanked in every column",
    )
    parser.add_argument(
        "--draws", type=int, default=4, help="splits and releases of each table and kind"
    )
    parser.add_argument(
        "--kinds", nargs="+", choices=[*HARMLESS, *LEAKS, *UNSEEN], help="these alone"
    )
    parser.add_argument(
        "--metrics", nargs="+", choices=METRICS.shipped(), default=MEASURED, help="these alone"
    )
    parser.add_argument(
        "--embedder", action="store_true", help="train an encoder for the embedded statistics"
    )
    parser.add_argument(
        "--unseen", action="store_true", help="add the kinds not used in development"
    )
    parser.add_argument(
        "--between",
        type=float,
        nargs=2,
        default=(0, math.inf),
        help="range of people in train to report",
    )
    parser.add_argument("--policy", help="a policy file, or small; default: the default limits")
    run_or_report(parser, arguments, run, report)


if __name__ == "__main__":
    main()
