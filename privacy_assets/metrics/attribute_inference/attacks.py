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

N_QUASI_IDENTIFIERS, N_NEIGHBORS = 3, 5  # X and K of Gretel's default attack
GIOMI, GRETEL = 0.05, 0.01  # tolerance of a number, relative to its true value
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
        """
        people, rng = inputs.labelled_subjects, inputs.rng("attribute_inference people")
        wanted = max(1, round(max_targets * len(people) / len(people.codes)))
        count = min(wanted, people.smallest_side)
        sides = [np.flatnonzero(people.member == side) for side in (True, False)]
        chosen = np.concatenate([rng.choice(side, count, replace=False) for side in sides])
        content = np.concatenate([inputs.row_ids["train"], inputs.row_ids["holdout"]])
        rows = np.flatnonzero(np.isin(people.codes, chosen))
        rows = rows[np.lexsort((content[rows], people.codes[rows]))]
        some = people.take(rows)
        return cls(some.codes, some.member, rows)


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

    def guess(self, neighbours: np.ndarray) -> np.ndarray:
        """Return predictions (n,) from the synthetic rows (n, k), nearest first."""
        values = self.synthetic[neighbours]
        if values.shape[1] == 1:
            return values[:, 0]
        if not self.numeric:
            votes = (values[:, :, None] == values[:, None, :]).sum(axis=2)
            return np.take_along_axis(values, votes.argmax(axis=1)[:, None], axis=1)[:, 0]
        there = ~np.isnan(values)
        count = there.sum(axis=1)
        mean = np.where(there, values, 0.0).sum(axis=1) / np.maximum(count, 1)
        return np.where(2 * count > values.shape[1], mean, np.nan)

    def reach(self, truth: np.ndarray, tolerance: float) -> np.ndarray:
        """Return the tolerated error of each true number."""
        wide = np.abs(truth) if self.spread is None else np.full(len(truth), self.spread)
        return tolerance * (1 + _ROUNDING) * wide

    def correct(self, guess: np.ndarray, tolerance: float) -> np.ndarray:
        """Return which predictions (n,) are right: equal, both missing, or within the tolerance of
        the true number.
        """
        if not self.numeric:
            return np.asarray(guess == self.truth)
        missing = np.isnan(guess) & np.isnan(self.truth)
        return np.asarray(
            missing | (np.abs(guess - self.truth) <= self.reach(self.truth, tolerance))
        )

    def baseline(self, tolerance: float) -> float:
        """Return the success rate without quasi-identifiers: the better of a constant and a random
        synthetic value.

        The constant is the synthetic value that is right for most synthetic rows; ties: the
        smallest.
        """
        if not self.numeric:
            values, counts = np.unique(self.synthetic, return_counts=True)
            there = np.minimum(np.searchsorted(values, self.truth), len(values) - 1)
            random = np.where(values[there] == self.truth, counts[there], 0).mean() / len(
                self.synthetic
            )
            return float(max(np.mean(self.truth == values[counts.argmax()]), random))
        known = np.sort(self.synthetic[~np.isnan(self.synthetic)])
        absent, reach = np.isnan(self.truth), self.reach(self.truth, tolerance)
        within = np.searchsorted(known, self.truth + reach, "right") - np.searchsorted(
            known, self.truth - reach
        )
        within = np.where(absent, len(self.synthetic) - len(known), within)
        constant = self.correct(self._constant(known, tolerance), tolerance)
        return float(max(constant.mean(), within.mean() / len(self.synthetic)))

    def _constant(self, known: np.ndarray, tolerance: float) -> np.ndarray:
        """Return the best constant, repeated to (n,), from the sorted synthetic numbers."""
        missing = len(self.synthetic) - len(known)
        if len(known) == 0:
            return np.full(len(self.truth), np.nan)
        low, high = self._truths(known, tolerance)
        right = np.searchsorted(known, high, "right") - np.searchsorted(known, low, "left")
        best = known[right.argmax()] if right.max() >= missing else np.nan
        return np.full(len(self.truth), best)

    def _truths(self, guess: np.ndarray, tolerance: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the range of true numbers for which each prediction is right."""
        if self.spread is not None:
            return guess - tolerance * self.spread, guess + tolerance * self.spread
        ends = np.sort([guess / (1 + tolerance), guess / (1 - tolerance)], axis=0)
        return ends[0], ends[1]


@dataclass(frozen=True, eq=False)
class Attack:
    """Counts of one attack.

    Attributes:
        quasi_identifiers: Number of known columns.
        neighbours: Number of neighbors.
        right: Right predictions by subject and column, float32 (s, columns).
        guesses: All predictions by subject and column, float32 (s, columns).
    """

    quasi_identifiers: int
    neighbours: int
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
        """Collect rows and columns. Synthetic rows are sorted by content and then shuffled."""
        order = np.argsort(inputs.row_ids["synthetic"], kind="stable")
        order = order[inputs.rng("attribute_inference ties").permutation(len(order))]
        targets = tuple(_targets(inputs, attacked.rows, order))
        encoded = [inputs.encoded(role) for role in ("train", "holdout")]
        places = [inputs.encoder.places[name] for name in inputs.schema.names]
        by_column, start = np.concatenate(places), np.cumsum([0, *map(len, places)])
        queries = np.concatenate([_parts(table) for table in encoded])[attacked.rows]
        points = _parts(inputs.encoded("synthetic"))[order]
        turned, searched = (np.ascontiguousarray(table.T[by_column]) for table in (queries, points))
        return cls(
            attacked, targets, turned, searched, by_column >= len(inputs.encoder.numbers), start
        )

    def sizes(self, n_quasi_identifiers: int) -> tuple[int, ...]:
        """Return numbers of quasi-identifiers: the given one, half of the columns, and all but one,
        if possible.
        """
        most = len(self.targets) - 1
        return tuple(
            sorted({min(n_quasi_identifiers, most), min(len(self.targets) // 2, most), most})
        )

    def attacks(
        self,
        rng: np.random.Generator,
        n_quasi_identifiers: int = N_QUASI_IDENTIFIERS,
        n_neighbors: int = N_NEIGHBORS,
    ) -> tuple[list[Attack], Attack]:
        """Return Gretel's attacks of all sizes with 1 and ``n_neighbors`` neighbors, and Giomi's
        attack.

        Below all but one, quasi-identifiers are drawn for every row; all other columns are targets.
        """
        from privacy_assets.metrics import _kernels as kernels

        neighbours = sorted({1, n_neighbors})
        k, found = min(n_neighbors, self.points.shape[1]), []
        n, width = len(self.attacked.rows), len(self.targets)
        slack = (
            0.0
            if self.category.all()
            else (len(self.category) + 4) * float(np.finfo(np.float32).eps)
        )
        shared = (self.queries, self.points, self.category, self.start, slack)
        for size in self.sizes(n_quasi_identifiers)[:-1]:
            known = rng.permuted(np.tile(np.arange(width), (n, 1)), axis=1)[:, :size]
            target = np.ones((n, width), dtype=bool)
            np.put_along_axis(target, known, False, axis=1)
            places = np.repeat(kernels.nearest_by(*shared, known, k)[:, None, :], width, axis=1)
            found += [self._attack(size, few, places, target, GRETEL) for few in neighbours]
        places, target = kernels.nearest_without(*shared, k), np.ones((n, width), dtype=bool)
        found += [self._attack(width - 1, few, places, target, GRETEL) for few in neighbours]
        return found, self._attack(width - 1, 1, places, target, GIOMI)

    def _attack(
        self, size: int, few: int, places: np.ndarray, target: np.ndarray, tolerance: float
    ) -> Attack:
        right = [
            x.correct(x.guess(places[:, at, :few]), tolerance) for at, x in enumerate(self.targets)
        ]
        return Attack(
            size, few, self._by_subject(np.stack(right, axis=1) & target), self._by_subject(target)
        )

    def _by_subject(self, cells: np.ndarray) -> np.ndarray:
        return np.stack([self.attacked.totals(column) for column in cells.T], axis=1).astype(
            np.float32
        )


def entropies(inputs: EvaluationInputs) -> np.ndarray:
    """Return the entropy in nats of each column over train and holdout, shape (columns,). Missing
    is a value.
    """
    found = []
    for name in inputs.schema.names:
        codes = ranked([inputs.train[name], inputs.holdout[name]])[0]
        share = np.unique(np.concatenate(codes), return_counts=True)[1] / sum(map(len, codes))
        found.append(-float(share @ np.log(share)))
    return np.abs(found)


def _targets(inputs: EvaluationInputs, rows: np.ndarray, order: np.ndarray) -> Sequence[Target]:
    scales = {number.name: number.scale for number in inputs.encoder.numbers}
    targets = []
    for column in inputs.schema.columns:
        real = stacked([inputs.train[column.name], inputs.holdout[column.name]]).take(rows)
        synthetic = inputs.synthetic[column.name].take(order)
        if column.name not in scales:
            truth, guesses = ranked([real, synthetic])[0]
            targets.append(Target(column.name, truth, guesses))
            continue
        spread = scales[column.name] if column.kind == "datetime" else None
        targets.append(Target(column.name, real.floats(), synthetic.floats(), spread))
    return targets


def _parts(table: EncodedTable) -> np.ndarray:
    return np.concatenate([table.numeric, table.codes.astype(np.float32)], axis=1)
