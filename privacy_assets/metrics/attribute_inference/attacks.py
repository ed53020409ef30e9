"""Attribute inference attacks, which predict a column from the synthetic rows nearest in other
columns.

An attack has a number of quasi-identifiers (columns known to the attacker) and of neighbors. The
prediction is the value of the nearest synthetic row; for several neighbors it is the mode (ties:
the nearest of them), and for numbers the mean of the present values. Missing is a value of its own.
Neighbors are exact. Ties are resolved to a random synthetic row, independently of the order of
rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.stats.subjects import Subjects
from privacy_assets.tables.column import ranked, stacked
from privacy_assets.tables.encoding import EncodedTable

GIOMI = 0.05  # tolerance of a number in Giomi's attack, relative to its true value
_ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class Targets(Subjects):
    """Attacked subjects.

    Attributes:
        rows: Positions of their rows in train and holdout stacked, shape (n,).
    """

    rows: np.ndarray

    @classmethod
    def choose(cls, inputs: EvaluationInputs, max_targets: int) -> Targets:
        """Draw the same number of subjects from train and holdout, with all their rows.

        Rows are sorted by subject and content, so that their order in the tables has no effect.

        Args:
            inputs: Tables of one release.
            max_targets: Approximate maximum number of rows per side.

        Returns:
            The drawn subjects.
        """
        subjects = inputs.labeled_subjects
        rng = inputs.rng("attribute_inference people")
        n_per_side = max(1, round(max_targets * len(subjects) / len(subjects.codes)))
        n_per_side = min(n_per_side, subjects.smallest_side)
        members = rng.choice(np.flatnonzero(subjects.member), n_per_side, replace=False)
        non_members = rng.choice(np.flatnonzero(~subjects.member), n_per_side, replace=False)

        row_ids = np.concatenate([inputs.row_ids["train"], inputs.row_ids["holdout"]])
        is_target = np.isin(subjects.codes, np.concatenate([members, non_members]))
        rows = np.flatnonzero(is_target)
        rows = rows[np.lexsort((row_ids[rows], subjects.codes[rows]))]
        targets = subjects.take(rows)
        return cls(targets.codes, targets.member, rows)


@dataclass(frozen=True, eq=False)
class Target:
    """Target column of an attack.

    Attributes:
        name: Name of the column.
        truth: True values of the attacked rows, shape (n,). Categories and booleans are int64 codes
            (-1: missing), numbers and dates float64 (dates in days; NaN: missing).
        synthetic: Values of the synthetic rows, shape (n_S,), in the same form.
        spread: Standard deviation of a date, to which its tolerance is relative because dates have
            no zero. None for numbers, whose tolerance is relative to the truth.
    """

    name: str
    truth: np.ndarray
    synthetic: np.ndarray
    spread: float | None = None

    @property
    def numeric(self) -> bool:
        """True for numbers and dates."""
        return self.truth.dtype == np.float64

    def guess(self, neighbors: np.ndarray) -> np.ndarray:
        """Predict the value of each attacked row from its neighbors.

        Args:
            neighbors: Positions of synthetic rows, nearest first, int64 (n, k).

        Returns:
            Predictions (n,), in the form of ``truth``.
        """
        values = self.synthetic[neighbors]
        n_neighbors = values.shape[1]
        if n_neighbors == 1:
            return values[:, 0]
        if not self.numeric:
            votes = (values[:, :, None] == values[:, None, :]).sum(axis=2)
            winners = votes.argmax(axis=1)[:, None]
            return np.take_along_axis(values, winners, axis=1)[:, 0]
        is_present = ~np.isnan(values)
        n_present = is_present.sum(axis=1)
        totals = np.where(is_present, values, 0.0).sum(axis=1)
        means = totals / np.maximum(n_present, 1)
        return np.where(2 * n_present > n_neighbors, means, np.nan)

    def reach(self, truth: np.ndarray, tolerance: float) -> np.ndarray:
        """Return the tolerated error of each true number.

        Args:
            truth: True numbers, float64 (n,).
            tolerance: Relative tolerance.

        Returns:
            Errors, float64 (n,).
        """
        scale = np.abs(truth)
        if self.spread is not None:
            scale = np.full(len(truth), self.spread)
        return tolerance * (1 + _ROUNDING) * scale

    def correct(self, guess: np.ndarray, tolerance: float) -> np.ndarray:
        """Tell which predictions are right: equal, both missing, or within the tolerance of the
        true number.

        Args:
            guess: Predictions (n,), as :meth:`guess` returns them.
            tolerance: Relative tolerance of a number.

        Returns:
            True for right predictions, bool (n,).
        """
        if not self.numeric:
            return np.asarray(guess == self.truth)
        both_missing = np.isnan(guess) & np.isnan(self.truth)
        is_near = np.abs(guess - self.truth) <= self.reach(self.truth, tolerance)
        return np.asarray(both_missing | is_near)

    def baseline(self, tolerance: float) -> float:
        """Return the success rate without quasi-identifiers: the better of a constant and a random
        synthetic value.

        The constant is the synthetic value that is right for most synthetic rows; ties: the
        smallest.

        Args:
            tolerance: Relative tolerance of a number.

        Returns:
            Share of attacked rows, 0 to 1.
        """
        if self.numeric:
            return self._numeric_baseline(tolerance)
        n_synthetic = len(self.synthetic)
        values, counts = np.unique(self.synthetic, return_counts=True)
        positions = np.minimum(np.searchsorted(values, self.truth), len(values) - 1)
        n_equal = np.where(values[positions] == self.truth, counts[positions], 0)
        by_random = n_equal.mean() / n_synthetic
        by_constant = np.mean(self.truth == values[counts.argmax()])
        return float(max(by_constant, by_random))

    def _numeric_baseline(self, tolerance: float) -> float:
        n_synthetic = len(self.synthetic)
        numbers = np.sort(self.synthetic[~np.isnan(self.synthetic)])
        n_missing = n_synthetic - len(numbers)
        reach = self.reach(self.truth, tolerance)
        n_below = np.searchsorted(numbers, self.truth - reach)
        n_within = np.searchsorted(numbers, self.truth + reach, "right") - n_below
        n_within = np.where(np.isnan(self.truth), n_missing, n_within)
        by_random = n_within.mean() / n_synthetic
        constant = np.full(len(self.truth), self._best_constant(numbers, tolerance))
        by_constant = self.correct(constant, tolerance).mean()
        return float(max(by_constant, by_random))

    def _best_constant(self, numbers: np.ndarray, tolerance: float) -> float:
        """Return the best constant, which may be NaN, from the sorted synthetic numbers."""
        if len(numbers) == 0:
            return np.nan
        low, high = self._truths(numbers, tolerance)
        n_below = np.searchsorted(numbers, low, "left")
        n_right = np.searchsorted(numbers, high, "right") - n_below
        n_missing = len(self.synthetic) - len(numbers)
        if n_right.max() < n_missing:
            return np.nan
        return float(numbers[n_right.argmax()])

    def _truths(self, guess: np.ndarray, tolerance: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the range of true numbers for which each prediction is right."""
        if self.spread is not None:
            margin = tolerance * self.spread
            return guess - margin, guess + margin
        ends = np.sort([guess / (1 + tolerance), guess / (1 - tolerance)], axis=0)
        return ends[0], ends[1]


@dataclass(frozen=True, eq=False)
class Attack:
    """Counts of one attack.

    Attributes:
        quasi_identifiers: Number of known columns.
        neighbors: Number of neighbors.
        right: Right predictions by subject and column, float32 (s, columns).
        guesses: All predictions by subject and column, float32 (s, columns).
    """

    quasi_identifiers: int
    neighbors: int
    right: np.ndarray
    guesses: np.ndarray


@dataclass(frozen=True, eq=False)
class Trial:
    """Attacked rows, target columns, and both tables as float32 (parts, rows), see
    :mod:`._kernels`.

    Attributes:
        attacked: Attacked subjects and rows.
        targets: Target columns.
        queries: Attacked rows. The parts of a column are adjacent.
        points: Synthetic rows.
        category: True for parts that are codes.
        start: First part of each column.
    """

    attacked: Targets
    targets: tuple[Target, ...]
    queries: np.ndarray
    points: np.ndarray
    category: np.ndarray
    start: np.ndarray

    @classmethod
    def of(cls, inputs: EvaluationInputs, attacked: Targets) -> Trial:
        """Collect rows and columns. Synthetic rows are sorted by content and then shuffled.

        Args:
            inputs: Tables of one release.
            attacked: Attacked subjects.

        Returns:
            The trial.
        """
        order = np.argsort(inputs.row_ids["synthetic"], kind="stable")
        order = order[inputs.rng("attribute_inference ties").permutation(len(order))]
        parts_by_column = [inputs.derived.encoder.positions[name] for name in inputs.schema.names]
        parts = np.concatenate(parts_by_column)
        n_parts = [len(column_parts) for column_parts in parts_by_column]
        real = [_parts(inputs.encoded(role)) for role in ("train", "holdout")]
        queries = np.concatenate(real)[attacked.rows]
        points = _parts(inputs.encoded("synthetic"))[order]
        return cls(
            attacked=attacked,
            targets=tuple(_targets(inputs, attacked.rows, order)),
            queries=np.ascontiguousarray(queries.T[parts]),
            points=np.ascontiguousarray(points.T[parts]),
            category=parts >= len(inputs.derived.encoder.numbers),
            start=np.cumsum([0, *n_parts]),
        )

    @property
    def tables(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, float]:
        """Arguments of the kernels that search neighbors."""
        return self.queries, self.points, self.category, self.start, self._rounding_slack()

    def giomi(self) -> Attack:
        """Run Giomi's attack: all columns but the target are known, and the nearest row decides."""
        from privacy_assets.metrics import _kernels as kernels

        neighbors = kernels.nearest_without(*self.tables, 1)
        is_target = np.ones((len(self.attacked.rows), len(self.targets)), dtype=bool)
        return self.attack(len(self.targets) - 1, 1, neighbors, is_target, GIOMI)

    def _rounding_slack(self) -> float:
        """Return the relative error of a sum of float32 parts. Mismatches of codes are exact."""
        if self.category.all():
            return 0.0
        return (len(self.category) + 4) * float(np.finfo(np.float32).eps)

    def attack(
        self,
        size: int,
        n_neighbors: int,
        neighbors: np.ndarray,
        is_target: np.ndarray,
        tolerance: float,
    ) -> Attack:
        """Count right predictions from the nearest neighbors.

        Args:
            size: Number of quasi-identifiers.
            n_neighbors: Number of neighbors to use.
            neighbors: Neighbors of each row for each column, int64 (n, columns, k).
            is_target: False for quasi-identifiers, bool (n, columns).
            tolerance: Tolerance of a number, relative to its true value.

        Returns:
            The counts.
        """
        is_right = np.empty(is_target.shape, dtype=bool)
        for i, target in enumerate(self.targets):
            guess = target.guess(neighbors[:, i, :n_neighbors])
            is_right[:, i] = target.correct(guess, tolerance)
        right = self._by_subject(is_right & is_target)
        return Attack(size, n_neighbors, right, self._by_subject(is_target))

    def _by_subject(self, cells: np.ndarray) -> np.ndarray:
        """Count true cells (n, columns) of each subject, float32 (s, columns)."""
        counts = [self.attacked.totals(column) for column in cells.T]
        return np.stack(counts, axis=1).astype(np.float32)


def column_weights(entropy: np.ndarray) -> np.ndarray:
    """Return the weights of the columns: shares of the total entropy, equal if it is 0.

    Args:
        entropy: Entropy of each column, shape (columns,).
    """
    total = float(entropy.sum())
    if total > 0:
        return entropy / total
    return np.full(len(entropy), 1 / len(entropy))


def entropies(inputs: EvaluationInputs) -> np.ndarray:
    """Compute the entropy of each column over train and holdout. Missing is a value.

    Args:
        inputs: Tables of one release.

    Returns:
        Entropies in nats, float64 (columns,).
    """
    by_column = []
    for name in inputs.schema.names:
        codes, _ = ranked([inputs.train[name], inputs.holdout[name]])
        stacked_codes = np.concatenate(codes)
        _, counts = np.unique(stacked_codes, return_counts=True)
        shares = counts / len(stacked_codes)
        by_column.append(-float(shares @ np.log(shares)))
    return np.abs(by_column)


def _targets(inputs: EvaluationInputs, rows: np.ndarray, order: np.ndarray) -> Sequence[Target]:
    """Return the target columns, with the real rows at ``rows`` and synthetic rows in ``order``."""
    scales = {number.name: number.scale for number in inputs.derived.encoder.numbers}
    targets = []
    for column in inputs.schema.columns:
        real = stacked([inputs.train[column.name], inputs.holdout[column.name]]).take(rows)
        synthetic = inputs.synthetic[column.name].take(order)
        if column.name not in scales:
            (truth, synthetic_codes), _ = ranked([real, synthetic])
            targets.append(Target(column.name, truth, synthetic_codes))
            continue
        spread = None
        if column.kind == "datetime":
            spread = scales[column.name]
        targets.append(Target(column.name, real.floats(), synthetic.floats(), spread))
    return targets


def _parts(table: EncodedTable) -> np.ndarray:
    """Return numbers and codes side by side, float32 (n, parts)."""
    return np.concatenate([table.numeric, table.codes.astype(np.float32)], axis=1)
