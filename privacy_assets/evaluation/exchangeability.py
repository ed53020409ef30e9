"""Test of exchangeability of train and holdout, column by column, with labels permuted by subject.

Statistics that compare the people of train with those of the holdout take their exchangeability for
granted. A holdout that differs for its own reasons (later years, other units) makes limits fail
without any copy, because rows like those of train are nearer to train. Such limits are therefore
also evaluated for people who are taken out of train, in place of the release, and are undecided if
they fail for these people as well.
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
_MAX_NAMES = 3  # columns that a reason names; the note names all
_MIN_ROWS = 20  # rows of a release and of train that a metric needs


@dataclass(frozen=True)
class Exchangeability:
    """Outcome of the test.

    Attributes:
        p_value: Two-sided p-value, simultaneous over all columns and levels.
        columns: One mapping per column: ``column``, ``z`` (largest standardized difference of its
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

    Returns:
        The outcome, with one mapping per column.
    """
    subjects = Subjects.of(inputs.subject_codes("train", "holdout"), len(inputs.train))
    levels, columns_of_levels = _levels(inputs)
    counts = _counts(subjects.codes, levels, len(subjects))
    n_rows_of_subject = np.bincount(subjects.codes).astype(np.float64)
    level_shares = np.asarray(counts.sum(axis=0)).ravel() / len(subjects.codes)

    def statistic(labels: np.ndarray) -> np.ndarray:
        n_in_train = np.asarray(counts.T @ labels.T.astype(np.float64)).T
        return n_in_train - np.outer(labels @ n_rows_of_subject, level_shares)

    test = inference.permutation_test(
        statistic, subjects, n_permutations, inputs.rng("exchangeability")
    )
    band = test.band()
    scale = np.where(band.sd > 0, band.sd, np.inf)
    largest = (np.abs(test.null - band.mean) / scale).max(axis=1)
    columns: list[dict[str, float | str]] = []
    for name, z in _per_column(band.z, columns_of_levels):
        p_value = float((1 + (largest >= z).sum()) / (n_permutations + 1))
        columns.append({"column": name, "z": float(z), "p_value": p_value})
    return Exchangeability(band.p_value, tuple(columns), *subjects.counts)


def with_shift_note(inputs: EvaluationInputs) -> EvaluationInputs:
    """Return the inputs with a note that names the columns in which train and holdout differ, if
    they do.

    Args:
        inputs: Tables of the release, with tables that the user brought.

    Returns:
        The inputs, with one note more or none.
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
    return inputs.with_facts(notes=(*inputs.release.notes, note))


def _differing(inputs: EvaluationInputs) -> list[str]:
    """Return the names of the columns in which train and holdout differ, for messages."""
    outcome = exchangeability(inputs)
    if outcome.p_value > DIFFERENT:
        return []
    names = []
    for column in outcome.columns:
        if float(column["p_value"]) <= DIFFERENT:
            names.append(safe_repr(str(column["column"])))
    return names


def without_shift(
    inputs: EvaluationInputs,
    metrics: Mapping[str, Metric],
    results: Mapping[str, MetricResult],
    limits: Sequence[Limit],
    attempt: int = 1,
) -> dict[str, MetricResult]:
    """Return the results, without statistics whose limit fails because train and holdout differ.

    If a limit is failed, and train and holdout differ in a column, the metric is measured again
    with a third of the people of train in place of the release, and without them in train. They are
    rows like those of train, and none is a copy, so a limit that fails for
    them as well does not show a leak of the release: the statistic becomes not measurable.

    Args:
        inputs: Tables of the release, with tables that the user brought.
        metrics: Metrics by name.
        results: Their results.
        limits: Limits of the policy.
        attempt: Number of the publication attempt, see :func:`~privacy_assets.policy.judge_limit`.

    Returns:
        Results by metric.
    """
    failed = _failed_limits(metrics, results, limits, attempt)
    if not failed:
        return dict(results)
    names = _differing(inputs)
    if not names:
        return dict(results)
    without_copies = _with_people_of_train(inputs)
    if without_copies is None:
        return dict(results)
    real_results = {}
    for limit in failed:
        if limit.metric not in real_results:
            real_results[limit.metric] = metrics[limit.metric].measure(without_copies)
    reason = _reason(names)
    checked = dict(results)
    for limit in failed:
        if judge_limit(limit, real_results[limit.metric], attempt).status == "fail":
            checked[limit.metric] = _not_measurable(checked[limit.metric], limit, reason)
    return checked


def _failed_limits(
    metrics: Mapping[str, Metric],
    results: Mapping[str, MetricResult],
    limits: Sequence[Limit],
    attempt: int,
) -> list[Limit]:
    """Return the failed limits of metrics that do not attack a generator."""
    failed = []
    for limit in limits:
        if limit.metric not in metrics or metrics[limit.metric].attacks_generator:
            continue
        if judge_limit(limit, results.get(limit.metric), attempt).status == "fail":
            failed.append(limit)
    return failed


def _reason(names: Sequence[str]) -> str:
    """Return the reason why a statistic is not measurable."""
    columns = ", ".join(names[:_MAX_NAMES])
    n_further = len(names) - _MAX_NAMES
    if n_further > 0:
        columns += f" and {n_further} more"
    return (
        f"{DIFFER} in {columns}, and the limit also fails for real rows in place of the release,"
        " none of them in train"
    )


def _not_measurable(result: MetricResult, limit: Limit, reason: str) -> MetricResult:
    """Return the result without the values of the limited statistic."""
    name = limit.statistic.partition(".")[2]
    estimates = []
    for estimate in result.estimates:
        if estimate.name == name:
            estimate = replace(estimate, value=math.nan, low=math.nan, high=math.nan, note=reason)
        estimates.append(estimate)
    return replace(result, estimates=tuple(estimates))


def _with_people_of_train(inputs: EvaluationInputs) -> EvaluationInputs | None:
    """Return inputs with a third of the people of train as release, or None if they are too few."""
    codes = inputs.subject_codes("train")
    subject_codes = inputs.rng("people taken out of train").permutation(np.unique(codes))
    is_released = np.isin(codes, subject_codes[: len(subject_codes) // 3])
    if is_released.sum() < _MIN_ROWS or (~is_released).sum() < _MIN_ROWS:
        return None
    subjects = dict(inputs.release.subjects)
    if "train" in subjects:
        subjects["train"] = subjects["train"][~is_released]
    tables = {
        **inputs.tables,
        "train": inputs.train.take(~is_released),
        "synthetic": inputs.train.take(is_released),
    }
    release = replace(inputs.release, tables=tables, subjects=subjects, generated={})
    # the results are only judged
    return EvaluationInputs.of(release, replace(inputs.context, fingerprints={}))


def _auc(inputs: EvaluationInputs) -> float:
    """Return the AUC of naive Bayes on column levels, fitted to one half of the people and tested
    on the other.
    """
    from scipy.stats import rankdata  # slow to import

    levels, _ = _levels(inputs)
    is_train = np.arange(len(levels)) < len(inputs.train)
    codes = inputs.subject_codes("train", "holdout")
    subject_in_half = inputs.rng("halves").permutation(int(codes.max()) + 1) % 2 == 0
    in_half = subject_in_half[codes]
    scores = np.empty(len(levels))
    n_levels = int(levels.max()) + 1
    for is_fitted in (in_half, ~in_half):
        train_levels = levels[is_fitted & is_train].ravel()
        holdout_levels = levels[is_fitted & ~is_train].ravel()
        n_train = np.bincount(train_levels, minlength=n_levels) + 1.0
        n_holdout = np.bincount(holdout_levels, minlength=n_levels) + 1.0
        log_ratios = np.log(n_train / n_holdout)
        scores[~is_fitted] = log_ratios[levels[~is_fitted]].sum(axis=1)
    return _auc_of_ranks(rankdata(scores), is_train)


def _auc_of_ranks(ranks: np.ndarray, is_positive: np.ndarray) -> float:
    """Return the area under the ROC curve by the rank sum of the positives."""
    n_positive = int(is_positive.sum())
    n_negative = int((~is_positive).sum())
    least_rank_sum = n_positive * (n_positive + 1) / 2
    return float((ranks[is_positive].sum() - least_rank_sum) / (n_positive * n_negative))


def _levels(inputs: EvaluationInputs) -> tuple[np.ndarray, list[str]]:
    """Return the level of each row in each column, shape (n_rows, n_columns), and the column of
    each level.
    """
    levels: list[np.ndarray] = []
    columns_of_levels: list[str] = []
    for column in inputs.schema.columns:
        cells = stacked([inputs.train[column.name], inputs.holdout[column.name]])
        if column.kind in ("categorical", "boolean"):
            codes = _categories(cells)
        else:
            codes = _bins(cells.floats())
        levels.append(codes + len(columns_of_levels))
        n_levels = int(codes.max(initial=-1)) + 1
        columns_of_levels += [column.name] * n_levels
    return np.stack(levels, axis=1), columns_of_levels


def _bins(values: np.ndarray) -> np.ndarray:
    is_missing = np.isnan(values)
    if is_missing.all():
        return np.zeros(len(values), dtype=np.int64)
    inner_quantiles = np.linspace(0, 1, BINS + 1)[1:-1]
    cuts = np.unique(np.quantile(values[~is_missing], inner_quantiles))
    codes = np.searchsorted(cuts, values, side="left")
    return _consecutive(np.where(is_missing, BINS + 1, codes))


def _categories(column: Column) -> np.ndarray:
    (codes,), values = ranked([column])
    codes = np.where(codes < 0, len(values), codes)
    is_rare = np.bincount(codes) < _RARE
    return _consecutive(np.where(is_rare[codes], len(values) + 1, codes))


def _consecutive(codes: np.ndarray) -> np.ndarray:
    """Return codes 0, 1, ... in the same order."""
    return np.unique(codes, return_inverse=True)[1]


def _counts(subject_codes: np.ndarray, levels: np.ndarray, n_subjects: int) -> sparse.csr_matrix:
    """Return the number of rows per subject and level, shape (n_subjects, n_levels)."""
    from scipy import sparse  # slow to import

    repeated = np.repeat(subject_codes, levels.shape[1])
    ones = np.ones(levels.size)
    shape = (n_subjects, int(levels.max()) + 1)
    return sparse.csr_matrix((ones, (repeated, levels.ravel())), shape=shape)


def _per_column(z: np.ndarray, columns_of_levels: list[str]) -> list[tuple[str, float]]:
    """Return the largest absolute value of each column."""
    largest: dict[str, float] = {}
    for name, value in zip(columns_of_levels, np.abs(z), strict=True):
        largest[name] = max(largest.get(name, 0.0), float(value))
    return list(largest.items())
