"""Whole rows of training people in the release: how many copies its counts of equal rows speak of."""

from __future__ import annotations

import math

import numpy as np

from privacy_assets.metrics.copies.match_weight import Difference
from privacy_assets.stats.inference import Evidence
from privacy_assets.stats.subjects import Subjects

_DISCOUNT = 1.25  # off the count of a cell: rows that are rare among real ones are rarer still among others
_OFTEN = 10  # times as often as among real rows
_REPEATED = 10  # people who may share a row that a release repeats
_ROUNDS = 20  # of solving for a share where people have equal rows
_EQUAL = 20  # equal rows of one person whose copies are counted each by each
_LEAST_MOVED = 0.1  # of what copies of all rows move in an empty release: where less, nothing can be seen


def copied(cells: np.ndarray, synthetic: np.ndarray, people: Subjects, few: int, difference: Difference) -> Evidence:
    """The shares ``exact_share`` and ``rare_share``, see :class:`.Copies`: two entries.

    ``cells`` int64 (N,) are ids of the rows of ``people``, ``synthetic`` int64 (n,) those of the release; equal rows
    have equal ids.
    """
    cell, real, hits = _counted(cells, synthetic)
    own, times = np.unique(people.codes * len(real) + cell, return_counts=True)
    whose, where = np.divmod(own, len(real))
    rare, rows = np.bincount(where) <= few, people.totals()
    kept = np.stack([np.ones(len(real)), rare])
    weight = np.stack([people.totals(part[cell]) / rows for part in kept * row_weights(hits, real)], axis=1)
    found = difference(weight)

    held = float((people.totals(rare[cell].astype(np.float64)) / rows).mean())  # share of rows that few have
    scale = np.array([1.0, 1 / held if held > 0 else 1.0])
    for at, counted in enumerate((np.ones_like(rare), rare)):
        apart = float(found.observed[at])
        side = people.member == (apart < 0)  # those who are not copied
        here = side[whose] & counted[where]
        part = times[here] / rows[whose[here]] / max(int(side.sum()), 1)
        scale[at] *= _moved(abs(apart), hits[where[here]], real[where[here]], times[here], part)
    return found.over(scale)


def repeated(cells: np.ndarray, synthetic: np.ndarray, people: Subjects) -> float:
    """Share of ``synthetic`` (n,), n > 0, that is ``repeated_share``, see :class:`.Copies`; ids as above."""
    cell, real, hits = _counted(cells, synthetic)
    pairs = np.unique(cell * len(people) + people.codes)
    held = np.bincount(pairs // len(people)) <= _REPEATED
    member = np.bincount(pairs // len(people), people.member[pairs % len(people)]) > 0  # somebody who has it
    often = held & (hits > _OFTEN * real)
    by_chance = hits[often & ~member].sum() * people.members / max(len(people) - people.members, 1)
    return float(max(hits[often & member].sum() - by_chance, 0.0) / len(synthetic))


def _counted(cells: np.ndarray, synthetic: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The cell of each row, from 0 on, (N,); the real rows of each cell, and the synthetic ones, (cells,)."""
    known, cell = np.unique(cells, return_inverse=True)
    place = np.minimum(np.searchsorted(known, synthetic), len(known) - 1)
    return cell, np.bincount(cell), np.bincount(place[known[place] == synthetic], minlength=len(known))


def row_weights(hits: np.ndarray, real: np.ndarray) -> np.ndarray:
    """Weights w(s, r) (n,) of cells of ``real`` >= 1 real and ``hits`` synthetic rows, see :class:`.Copies`."""
    return np.where(hits > 0, hits / np.maximum(real + hits - _DISCOUNT, 2 - _DISCOUNT), 0.0)


def _moved(difference: float, hits: np.ndarray, real: np.ndarray, times: np.ndarray, part: np.ndarray) -> float:
    """D: the ``difference`` of mean weights over the share of copies, which solves for the share, see :class:`.Copies`.

    All (n,) are of the cells of people who are not copied: their counts, how many of the rows are one person's, and
    what part of all rows of these people they are. 1 where there are none.
    """
    if not len(hits):
        return 1.0
    without, share, moved = row_weights(hits, real), 0.0, 1.0
    least = _LEAST_MOVED * float((part * row_weights(times, real)).sum())
    for _ in range(_ROUNDS):
        some = float(np.clip(share, 1e-4, 1.0))
        moved = max(float((part * (_expected(hits, real, times, some) - without)).sum()) / some, least)
        share = difference / moved
    return moved


def _expected(hits: np.ndarray, real: np.ndarray, times: np.ndarray, share: float) -> np.ndarray:
    """Mean weights (n,) after copies of ``times`` rows, each with the probability ``share``."""
    found = row_weights(hits + times * share, real)
    for number in np.unique(times[times <= _EQUAL]).tolist():
        here = times == number
        found[here] = sum(
            math.comb(number, k) * share**k * (1 - share) ** (number - k) * row_weights(hits[here] + k, real[here])
            for k in range(number + 1)
        )
    return found
