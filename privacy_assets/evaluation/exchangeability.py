"""Test of exchangeability of train and holdout, column by column, with labels permuted by subject.

Statistics that compare the people of train with those of the holdout take their exchangeability for
granted. A holdout that differs for its own reasons (later years, other units) breaks limits without
any copy, because rows like those of train are nearer to train. Such limits are therefore also
evaluated for people who are taken out of train, in place of the release, and are undecided if these
break them as well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from privacy_assets.errors import safe_repr
from privacy_assets.infra.host import isolated
from privacy_assets.metrics.base import Metric
from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.policy import DIFFER, Limit, judge_limit
from privacy_assets.stats import inference
from privacy_assets.stats.estimates import MetricResult
from privacy_assets.stats.subjects import Subjects
from privacy_assets.tables.column import Column, ranked, stacked

if TYPE_CHECKING:
    from scipy import sparse

PERMUTATIONS = 999
BINS = 10
DIFFERENT = 0.001  # p-value up to which train and holdout differ
_RARE = 20  # levels with fewer rows are pooled
_NAMED = 3  # columns that a reason names; the note names all
_FEWEST = 20  # rows of a release and of train that a metric needs


@dataclass(frozen=True)
class Exchangeability:
    """Outcome of the test.

    Attributes:
        p_value: Two-sided p-value, simultaneous over all columns and levels.
        columns: One record per column: ``column``, ``z`` (largest standardized difference of its
            levels) and ``p_value`` (simultaneous as well).
        n: Number of rows.
        subjects: Number of subjects.
    """

    p_value: float
    columns: tuple[dict[str, float | str], ...]
    n: int
    subjects: int


@isolated()
def exchangeability(
    inputs: EvaluationInputs, *, n_permutations: int = PERMUTATIONS
) -> Exchangeability:
    """Test whether the labels train and holdout are exchangeable, given each single column.

    Numbers are binned into ten bins with equal counts in both tables together. Categories with
    fewer than 20 rows are pooled. Missing is a separate level. The statistic of a level is its
    number of rows in train, given the total number of rows in train, standardized under permutation
    of subjects. The tables may differ in size.

    Args:
        inputs: Tables, subjects and seed.
        n_permutations: Number of permutations. The smallest p-value is 1 / (permutations + 1).
    """
    subjects = Subjects.of(inputs.subject_codes("train", "holdout"), len(inputs.train))
    levels, owners = _levels(inputs)
    counts = _counts(subjects.codes, levels, len(subjects))
    rows = np.bincount(subjects.codes).astype(np.float64)
    shares = np.asarray(counts.sum(axis=0)).ravel() / len(subjects.codes)

    def statistic(labels: np.ndarray) -> np.ndarray:
        inside = np.asarray(counts.T @ labels.T.astype(np.float64)).T
        return inside - np.outer(labels @ rows, shares)

    found = inference.permutation_test(
        statistic, subjects, n_permutations, inputs.rng("exchangeability")
    )
    band = found.band()
    largest = (np.abs(found.null - band.mean) / np.where(band.sd > 0, band.sd, np.inf)).max(axis=1)
    columns: tuple[dict[str, float | str], ...] = tuple(
        {
            "column": name,
            "z": float(z),
            "p_value": float((1 + (largest >= z).sum()) / (n_permutations + 1)),
        }
        for name, z in _per_column(band.z, owners)
    )
    return Exchangeability(band.p_value, columns, *subjects.counts)


def with_shift_note(inputs: EvaluationInputs) -> EvaluationInputs:
    """Return the inputs with a note that names the columns in which train and holdout differ, if
    they do.

    Args:
        inputs: Tables of the release, with tables that the user brought.
    """
    names = _differing(inputs)
    if not names:
        return inputs
    note = (
        f"Train and holdout differ in {', '.join(names)} (a simple model distinguishes them"
        " with AUC"
        f" {_auc(inputs):.2f}; 0.5: not at all)."
        " Statistics that compare them measure this difference, too."
    )
    inputs.progress(note)
    return inputs.with_settings(notes=(*inputs.notes, note))


def _differing(inputs: EvaluationInputs) -> list[str]:
    """Return the names of the columns in which train and holdout differ, for messages."""
    found = exchangeability(inputs)
    if found.p_value > DIFFERENT:
        return []
    return [
        safe_repr(str(one["column"])) for one in found.columns if float(one["p_value"]) <= DIFFERENT
    ]


def without_shift(
    inputs: EvaluationInputs,
    metrics: Mapping[str, Metric],
    results: Mapping[str, MetricResult],
    limits: Sequence[Limit],
    attempt: int = 1,
) -> dict[str, MetricResult]:
    """Return the results, without statistics whose limit breaks because train and holdout differ.

    If a limit is broken, and train and holdout differ in a column, the metric is measured again
    with a third of the people of train in place of the release, and without them in train. They are
    rows like those of train, and none is a copy, so a limit that they break as well says nothing
    about the release: the statistic becomes not measurable.

    Args:
        inputs: Tables of the release, with tables that the user brought.
        metrics: Metrics by name.
        results: Their results.
        limits: Limits of the policy.
        attempt: Number of the publication attempt, see :func:`~privacy_assets.policy.judge_limit`.
    """
    checked = dict(results)
    broken = []
    for limit in limits:
        if limit.metric not in metrics or metrics[limit.metric].attacks_generator:
            continue
        if judge_limit(limit, results.get(limit.metric), attempt).status == "fail":
            broken.append(limit)
    names = _differing(inputs) if broken else []
    unseen = _with_people_of_train(inputs) if names else None
    if unseen is None:
        return checked
    more = len(names) - _NAMED
    reason = (
        f"{DIFFER} in {', '.join(names[:_NAMED])}{f' and {more} more' if more > 0 else ''}, and"
        " real rows in place of"
        " the release, none of them in train, break the limit as well"
    )
    again = {
        name: metrics[name].measure(unseen)
        for name in dict.fromkeys(limit.metric for limit in broken)
    }
    for limit in broken:
        if judge_limit(limit, again[limit.metric], attempt).status == "fail":
            name, result = limit.statistic.partition(".")[2], checked[limit.metric]
            estimates = tuple(
                replace(one, value=math.nan, low=math.nan, high=math.nan, note=reason)
                if one.name == name
                else one
                for one in result.estimates
            )
            checked[limit.metric] = replace(result, estimates=estimates)
    return checked


def _with_people_of_train(inputs: EvaluationInputs) -> EvaluationInputs | None:
    """Return inputs with a third of the people of train as release, or None if they are too few."""
    codes = inputs.subject_codes("train")
    people = inputs.rng("people taken out of train").permutation(np.unique(codes))
    chosen = np.isin(codes, people[: len(people) // 3])
    if chosen.sum() < _FEWEST or (~chosen).sum() < _FEWEST:
        return None
    subjects = {
        role: own[~chosen] if role == "train" else own for role, own in inputs.subjects.items()
    }
    tables = {
        **inputs.tables,
        "train": inputs.train.take(~chosen),
        "synthetic": inputs.train.take(chosen),
    }
    return replace(inputs, tables=tables, subjects=subjects, generated={})


def _auc(inputs: EvaluationInputs) -> float:
    """Return the AUC of naive Bayes on column levels, fitted to one half of the people and tested
    on the other.
    """
    levels, _ = _levels(inputs)
    inside = np.arange(len(levels)) < len(inputs.train)
    codes = inputs.subject_codes("train", "holdout")
    half = (inputs.rng("halves").permutation(int(codes.max()) + 1) % 2 == 0)[codes]
    scores = np.empty(len(levels))
    size = int(levels.max()) + 1
    for fitted in (half, ~half):
        counts = [
            np.bincount(levels[fitted & side].ravel(), minlength=size) + 1.0
            for side in (inside, ~inside)
        ]
        scores[~fitted] = np.log(counts[0] / counts[1])[levels[~fitted]].sum(axis=1)
    from scipy.stats import rankdata  # slow to import

    first, second = int(inside.sum()), int((~inside).sum())
    return float((rankdata(scores)[inside].sum() - first * (first + 1) / 2) / (first * second))


def _levels(inputs: EvaluationInputs) -> tuple[np.ndarray, list[str]]:
    """Return the level of each row in each column, shape (n_rows, n_columns), and the column of
    each level.
    """
    parts: list[np.ndarray] = []
    owners: list[str] = []
    for column in inputs.schema.columns:
        joined = stacked([inputs.train[column.name], inputs.holdout[column.name]])
        numeric = column.kind not in ("categorical", "boolean")
        codes = _bins(joined.floats()) if numeric else _categories(joined)
        parts.append(codes + len(owners))
        owners += [column.name] * (int(codes.max(initial=-1)) + 1)
    return np.stack(parts, axis=1), owners


def _bins(values: np.ndarray) -> np.ndarray:
    missing = np.isnan(values)
    if missing.all():
        return np.zeros(len(values), dtype=np.int64)
    cuts = np.unique(np.quantile(values[~missing], np.linspace(0, 1, BINS + 1)[1:-1]))
    codes = np.searchsorted(cuts, values, side="left")
    return np.unique(np.where(missing, BINS + 1, codes), return_inverse=True)[1]


def _categories(column: Column) -> np.ndarray:
    (codes,), values = ranked([column])
    codes = np.where(codes < 0, len(values), codes)
    rare = np.bincount(codes) < _RARE
    return np.unique(np.where(rare[codes], len(values) + 1, codes), return_inverse=True)[1]


def _counts(subjects: np.ndarray, levels: np.ndarray, size: int) -> sparse.csr_matrix:
    """Return the number of rows per subject and level, shape (n_subjects, n_levels)."""
    from scipy import sparse  # slow to import

    repeated = np.repeat(subjects, levels.shape[1])
    ones = np.ones(levels.size)
    return sparse.csr_matrix(
        (ones, (repeated, levels.ravel())), shape=(size, int(levels.max()) + 1)
    )


def _per_column(z: np.ndarray, owners: list[str]) -> list[tuple[str, float]]:
    largest: dict[str, float] = {}
    for name, value in zip(owners, np.abs(z), strict=True):
        largest[name] = max(largest.get(name, 0.0), float(value))
    return list(largest.items())
