"""Whole rows of training people in the release: how many copies its counts of equal rows speak of."""

from __future__ import annotations

import math
from typing import NamedTuple, Self

import numpy as np

from privacy_assets.metrics.copies.match_weight import Difference
from privacy_assets.stats.inference import Evidence
from privacy_assets.stats.subjects import Subjects

_EVENNESS = (0, 1, 4, 16, 64, 256, 1024)  # that frequencies of rows may have, see row_weights
_ROUNDS, _CLOSE = 20, 1e-10  # of solving for a share where people have equal rows
_EQUAL = 20  # equal rows of one person whose copies are counted each by each; of more, their mean number
_LITTLE = 1e-4  # a share of copies in place of 0
_NOTHING = 1e-12  # in place of what copies add where they add nothing: nothing can be seen then
_OFTEN = 10  # times as often as among real rows
_REPEATED = 10  # people who may share a row that a release repeats


class _Held(NamedTuple):
    """The rows that a person has of one cell, a place for each person and cell: all (n,)."""

    whose: np.ndarray
    hits: np.ndarray  # synthetic rows of the cell
    real: np.ndarray  # real rows of the cell
    times: np.ndarray  # those of this person
    part: np.ndarray  # and their share of this person's rows

    def take(self, which: np.ndarray) -> Self:
        """Those where bool (n,) is true."""
        return type(self)(*(values[which] for values in self))

    def mean_weights(self, people: int, evenness: float) -> np.ndarray:
        """The mean weight of each person's rows, (people,)."""
        return np.bincount(self.whose, self.part * row_weights(self.hits, self.real, evenness), people)

    def added(self, share: float, evenness: float) -> float:
        """Sum over people of what copies of their rows, each with the probability ``share``, add to mean weights."""
        after = row_weights(self.hits + self.times * share, self.real, evenness)
        for number in np.unique(self.times[self.times <= _EQUAL]).tolist():
            here = self.times == number
            after[here] = sum(
                math.comb(number, k) * share**k * (1 - share) ** (number - k)
                * row_weights(self.hits[here] + k, self.real[here], evenness)
                for k in range(number + 1)
            )  # fmt: skip
        return float(self.part @ (after - row_weights(self.hits, self.real, evenness)))


def copied(cells: np.ndarray, synthetic: np.ndarray, people: Subjects, few: int, difference: Difference) -> Evidence:
    """The shares ``exact_share`` and ``rare_share``, see :class:`.Copies`: two entries.

    ``cells`` int64 (N,) are ids of the rows of ``people``, ``synthetic`` int64 (n,) those of the release; equal rows
    have equal ids.
    """
    cell, real, hits = _counted(cells, synthetic)
    own, times = np.unique(people.codes * len(real) + cell, return_counts=True)
    whose, where = np.divmod(own, len(real))
    every = _Held(whose, hits[where], real[where], times, times / people.totals()[whose])
    rare = every.take(np.bincount(where)[where] <= few)
    evenness = [_most_telling(held, len(people)) for held in (every, rare)]
    weights = [held.mean_weights(len(people), even) for held, even in zip((every, rare), evenness, strict=True)]
    found = difference(np.stack(weights, axis=1))
    scale = np.array([
        _moved(apart, held, even, people.member)
        for apart, held, even in zip(found.observed.tolist(), (every, rare), evenness, strict=True)
    ])  # fmt: skip
    share = rare.part.sum() / len(people)  # of rows that few have
    return found.over(scale / [1.0, share if share > 0 else 1.0])


def row_weights(hits: np.ndarray, real: np.ndarray, evenness: float) -> np.ndarray:
    """Weights (n,) of rows that stand ``hits`` times in the release and ``real`` >= 1 times among the real rows.

    After s - 1 synthetic and r real ones, so many are expected as a + r + s - 1 is large, where frequencies have a
    gamma law of shape a, the ``evenness``; the weight is s over that, 0 where s is 0. It rises with s, up to 1.
    """
    return np.where(hits > 0, hits / np.maximum(evenness + real + hits - 1, 1), 0.0)


def _most_telling(held: _Held, people: int) -> int:
    """The evenness by which copies move mean weights farthest, in deviations between people; whoever is in train."""

    def told(evenness: int) -> float:
        spread = float(held.mean_weights(people, evenness).std())
        return held.added(_LITTLE, evenness) / spread if spread > 0 else 0.0

    return max(_EVENNESS, key=told)


def _moved(apart: float, held: _Held, evenness: float, member: np.ndarray) -> float:
    """What copies of all rows would move the difference of mean weights, ``apart``, were it in proportion to copies.

    It is counted on the side that is not copied; where that has no such row, on both. 1 where there are none.
    """
    left = member == (apart < 0)
    side = held.take(left[held.whose])
    side, people = (side, left.sum()) if len(side.whose) else (held, len(member))
    if not len(side.whose):
        return 1.0
    share, moved = 0.0, 1.0
    for _ in range(_ROUNDS):
        some, before = min(max(share, _LITTLE), 1.0), moved
        moved = max(side.added(some, evenness) / some / people, _NOTHING)
        share = abs(apart) / moved
        if math.isclose(moved, before, rel_tol=_CLOSE):  # at once where nobody has a row twice
            break
    return moved


def repeated(cells: np.ndarray, synthetic: np.ndarray, people: Subjects) -> float:
    """Share of ``synthetic`` (n,), n > 0, that is ``repeated_share``, see :class:`.Copies`; ids as for the others."""
    cell, real, hits = _counted(cells, synthetic)
    pairs = np.unique(cell * len(people) + people.codes)
    held = np.bincount(pairs // len(people))
    member = np.bincount(pairs // len(people), people.member[pairs % len(people)]) > 0  # somebody who has it
    often = (held <= _REPEATED) & (hits > _OFTEN * real * max(len(synthetic) / len(cells), 1))
    others = max(1 - people.members / len(people), 1 / len(people))
    by_chance = others ** -held[often].astype(np.float64) - 1  # with a member, for each one of as many people without
    counted = np.where(member[often], 1.0, -by_chance) @ hits[often]
    return float(max(counted, 0.0) / len(synthetic))


def _counted(cells: np.ndarray, synthetic: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The cell of each row, from 0 on, (N,); the real rows of each cell, and the synthetic ones, (cells,)."""
    known, cell = np.unique(cells, return_inverse=True)
    place = np.minimum(np.searchsorted(known, synthetic), len(known) - 1)
    return cell, np.bincount(cell), np.bincount(place[known[place] == synthetic], minlength=len(known))
