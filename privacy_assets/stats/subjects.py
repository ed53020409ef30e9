"""Subjects: whose rows they are, who of them is a member, and other sets of members that are as likely."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np

SMALLEST_SIDE = 20  # people of train, and of holdout: of fewer, permuted labels tell next to nothing
SETS = 64  # drawn at a time: the bits of a word
_COIN_BITS = 6  # coins fall with a probability of whole 64ths
_CELLS = 4_000_000  # labels of rows held at once


@dataclass(frozen=True, eq=False)
class Subjects:
    """Whose rows: ``codes`` int64 (N,) into ``member`` bool (s,), which says who stands in train.

    Mostly those of T stacked on H. A subject may have no row among them: it has been left out, and counts as a label.
    """

    codes: np.ndarray
    member: np.ndarray

    @classmethod
    def of(cls, codes: np.ndarray, n_train: int) -> Subjects:
        """The subjects of rows of which the first ``n_train`` are T, with the codes 0..s-1 that they have."""
        member = np.zeros(int(codes.max(initial=-1)) + 1, dtype=bool)
        member[codes[:n_train]] = True
        return cls(codes, member)

    @classmethod
    def by_content(cls, codes: np.ndarray, n_train: int, row_ids: np.ndarray) -> Subjects:
        """The same, numbered by their smallest row id, so that the order of rows does not steer what is drawn.

        Of equal ones, who are alike, those outside of T come first.
        """
        return cls.of(renumbered(codes, row_ids, cls.of(codes, n_train).member), n_train)

    def __len__(self) -> int:
        return len(self.member)

    @cached_property
    def members(self) -> int:
        """How many subjects stand in train."""
        return int(self.member.sum())

    @property
    def smallest_side(self) -> int:
        """Subjects on the smaller side."""
        return min(self.members, len(self) - self.members)

    @property
    def counts(self) -> tuple[int, int]:
        """Rows, and subjects that have any."""
        return len(self.codes), np.unique(self.codes).size

    def side(self, member: bool) -> tuple[int, int]:
        """Rows and subjects of the members, or of the others."""
        codes = self.codes[self.member[self.codes] == member]
        return len(codes), np.unique(codes).size

    @property
    def block(self) -> int:
        """How many labellings of all rows to hold at once."""
        return int(np.clip(_CELLS // max(len(self.codes), 1), 1, SETS))

    def totals(self, values: np.ndarray | None = None) -> np.ndarray:
        """Number of rows of each subject, or the sum of their ``values`` (N,): (s,)."""
        return np.bincount(self.codes, values, len(self))

    def take(self, rows: np.ndarray) -> Subjects:
        """The rows at these positions (n,), or where bool (N,) is true; who has none of them is no subject any more."""
        some, codes = np.unique(self.codes[rows], return_inverse=True)
        return Subjects(codes, self.member[some])

    def relabelled(self, member: np.ndarray) -> Self:
        """The same subjects with other members, bool (s,)."""
        return replace(self, member=member)


def renumbered(codes: np.ndarray, row_ids: np.ndarray, ties: np.ndarray) -> np.ndarray:
    """Codes (N,) in the order of the subjects' smallest row ids, then of ``ties`` (s,); twins keep their order."""
    smallest = np.full(len(ties), np.iinfo(np.int64).max)
    np.minimum.at(smallest, codes, row_ids)
    place = np.empty(len(ties), dtype=np.int64)
    place[np.lexsort((ties, smallest))] = np.arange(len(ties))
    return place[codes]


def order_by_content(codes: np.ndarray, row_ids: np.ndarray) -> np.ndarray:
    """Recode subjects in the order of their smallest row id, then of their sum; twins keep their order, T first."""
    return renumbered(codes, row_ids, np.bincount(codes, weights=row_ids))


def permute_labels(
    member: np.ndarray,
    permutations: int,
    rng: np.random.Generator,
    statistic: Callable[[np.ndarray], np.ndarray],
    block: int = SETS,
    seen: np.ndarray | None = None,
) -> np.ndarray:
    """Draw the null law of a statistic by permuting the labels of subjects.

    ``member`` bool (s,) says which subjects stand in train. ``statistic`` maps float32 labels (b, s), or those of the
    subjects ``seen`` alone, to (b, m). Returns float64 (permutations, m). Memory is bounded by ``block`` label vectors
    at a time, 64 at most.
    """
    parts = []
    for start in range(0, permutations, SETS):
        sets = random_sets(len(member), int(member.sum()), rng)
        sets = sets.view(np.uint8).reshape(-1, 8)[slice(None) if seen is None else seen]
        bits = np.unpackbits(sets, axis=1, count=min(SETS, permutations - start), bitorder="little").T
        for first in range(0, len(bits), block):
            labels = bits[first : first + block].astype(np.float32, order="C")
            parts.append(np.asarray(statistic(labels), dtype=np.float64))
    return np.concatenate(parts)


def random_sets(people: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """64 random sets of ``size`` of some people, every one as likely, little-endian uint64 (people,): a bit a set.

    Each person joins each set with almost the right probability, 64 coins a word; whom chance and rounding leave over
    or short are drawn. People are alike in both steps, so all sets of the size stay as likely.
    """
    from privacy_assets.stats import _subject_kernels as kernels

    share = (size << _COIN_BITS) // max(people, 1)
    sets = np.zeros(people, dtype=np.uint64)
    for place in range(_COIN_BITS):
        coins = rng.integers(0, 1 << 64, people, dtype=np.uint64)
        sets = sets | coins if share >> place & 1 else sets & coins
    kernels.resize(sets, size, rng)
    return sets.astype("<u8", copy=False)


def resample_subjects(
    member: np.ndarray,
    replicates: int,
    rng: np.random.Generator,
    statistic: Callable[[np.ndarray, np.ndarray], np.ndarray],
    block: int = SETS,
) -> np.ndarray:
    """A statistic (replicates, m) when the subjects of each side are resampled with replacement.

    ``statistic`` maps labels (1, s) and how often each subject was drawn, int64 (b, s), to (b, m).
    """
    sides = [np.flatnonzero(member == side) for side in (False, True)]
    labels = member.astype(np.float32)[None]
    parts = []
    for start in range(0, replicates, block):
        times = np.zeros((min(block, replicates - start), len(member)), dtype=np.int64)
        for side in sides:
            drawn = rng.integers(0, len(side), (len(times), len(side)))
            for row, places in zip(times, drawn, strict=True):
                row[side] = np.bincount(places, minlength=len(side))
        parts.append(statistic(labels, times))
    return np.concatenate(parts)
