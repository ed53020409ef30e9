"""Test of exchangeability of train and holdout, column by column, with labels permuted by subject."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.stats import inference
from privacy_assets.stats.subjects import Subjects
from privacy_assets.tables.column import Column, ranked, stacked

PERMUTATIONS = 999
BINS = 10
_RARE = 20  # levels with fewer rows are pooled


@dataclass(frozen=True)
class Exchangeability:
    """Outcome of the test.

    Attributes:
        p_value: Two-sided p-value, simultaneous over all columns and levels.
        columns: One record per column: ``column``, ``z`` (largest standardized difference of its levels) and
            ``p_value`` (simultaneous as well).
        n: Number of rows.
        subjects: Number of subjects.
    """

    p_value: float
    columns: tuple[dict[str, float | str], ...]
    n: int
    subjects: int


def exchangeability(inputs: EvaluationInputs, *, n_permutations: int = PERMUTATIONS) -> Exchangeability:
    """Test whether the labels train and holdout are exchangeable, given each single column.

    Numbers are binned into ten bins with equal counts in both tables together. Categories with fewer than 20 rows are
    pooled. Missing is a separate level. The statistic of a level is its number of rows in train, given the total number
    of rows in train, standardized under permutation of subjects. The tables may differ in size.

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

    found = inference.permutation_test(statistic, subjects, n_permutations, inputs.rng("exchangeability"))
    band = found.band()
    largest = (np.abs(found.null - band.mean) / np.where(band.sd > 0, band.sd, np.inf)).max(axis=1)
    columns: tuple[dict[str, float | str], ...] = tuple(
        {"column": name, "z": float(z), "p_value": float((1 + (largest >= z).sum()) / (n_permutations + 1))}
        for name, z in _per_column(band.z, owners)
    )
    return Exchangeability(band.p_value, columns, *subjects.counts)


def _levels(inputs: EvaluationInputs) -> tuple[np.ndarray, list[str]]:
    """Return the level of each row in each column, shape (n_rows, n_columns), and the column of each level."""
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
    repeated = np.repeat(subjects, levels.shape[1])
    ones = np.ones(levels.size)
    return sparse.csr_matrix((ones, (repeated, levels.ravel())), shape=(size, int(levels.max()) + 1))


def _per_column(z: np.ndarray, owners: list[str]) -> list[tuple[str, float]]:
    largest: dict[str, float] = {}
    for name, value in zip(owners, np.abs(z), strict=True):
        largest[name] = max(largest.get(name, 0.0), float(value))
    return list(largest.items())
