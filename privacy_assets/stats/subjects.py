"""Subjects of rows, their membership labels, and random permutations and resamples of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np

# Minimum number of subjects in train and in holdout. With fewer, permutations have almost no power.
MIN_SUBJECTS_PER_SIDE = 20
SETS = 64  # sets per draw: the bits of a word
_COIN_BITS = 6  # coin probabilities are multiples of 1/64
_CELLS = 4_000_000  # maximum number of row labels in memory


@dataclass(frozen=True, eq=False)
class Subjects:
    """Subjects of rows, and their labels.

    Attributes:
        codes: Subject of each row, usually those of T stacked on H; int64 of shape (N,).
        member: True for subjects in train, shape (s,). A subject may have no row if its rows were
            excluded; its label still counts.
    """

    codes: np.ndarray
    member: np.ndarray

    @classmethod
    def of(cls, codes: np.ndarray, n_train: int) -> Subjects:
        """Create the subjects of the rows of T, followed by those of H.

        Args:
            codes: Subject of each row, 0..s-1, int64 (N,).
            n_train: Number of rows of T.
        """
        member = np.zeros(int(codes.max(initial=-1)) + 1, dtype=bool)
        member[codes[:n_train]] = True
        return cls(codes, member)

    @classmethod
    def by_content(cls, codes: np.ndarray, n_train: int, row_ids: np.ndarray) -> Subjects:
        """Create the subjects numbered by their smallest row id, so that draws do not depend on the
        order of rows.

        Among subjects with equal ids, which have equal rows, non-members come first.

        Args:
            codes: Subject of each row, 0..s-1, int64 (N,): T, followed by H.
            n_train: Number of rows of T.
            row_ids: Id of each row, int64 (N,); equal for equal rows.
        """
        return cls.of(renumbered(codes, row_ids, cls.of(codes, n_train).member), n_train)

    def __len__(self) -> int:
        return len(self.member)

    @cached_property
    def members(self) -> int:
        """Number of subjects in train."""
        return int(self.member.sum())

    @property
    def smallest_side(self) -> int:
        """Number of subjects on the smaller side."""
        return min(self.members, len(self) - self.members)

    @property
    def counts(self) -> tuple[int, int]:
        """Number of rows, and of subjects with rows."""
        return len(self.codes), int(np.count_nonzero(self.totals()))

    def side(self, member: bool) -> tuple[int, int]:
        """Return the numbers of rows and subjects of members, or of non-members."""
        codes = self.codes[self.member[self.codes] == member]
        return len(codes), int(np.count_nonzero(np.bincount(codes)))

    @property
    def block(self) -> int:
        """Number of labelings of all rows to hold in memory."""
        return int(np.clip(_CELLS // max(len(self.codes), 1), 1, SETS))

    def totals(self, values: np.ndarray | None = None) -> np.ndarray:
        """Add up the rows of each subject.

        Args:
            values: A number for each row, shape (N,). None: 1, so that rows are counted.

        Returns:
            The sum of each subject, shape (s,); 0 without rows.
        """
        return np.bincount(self.codes, values, len(self))

    def take(self, rows: np.ndarray) -> Subjects:
        """Select rows; subjects without any selected row are removed.

        Args:
            rows: Positions of rows, int64 (n,), or a mask, bool (N,).
        """
        remaining, codes = np.unique(self.codes[rows], return_inverse=True)
        return Subjects(codes, self.member[remaining])

    def relabeled(self, member: np.ndarray) -> Self:
        """Return the same subjects with other labels.

        Args:
            member: True for subjects in train, shape (s,).
        """
        return replace(self, member=member)


def renumbered(codes: np.ndarray, row_ids: np.ndarray, ties: np.ndarray) -> np.ndarray:
    """Renumber subjects by their smallest row id, then by ``ties``; equal subjects keep their
    order.

    Args:
        codes: Subject of each row, 0..s-1, int64 (N,).
        row_ids: Id of each row, int64 (N,).
        ties: Second criterion of each subject, shape (s,).

    Returns:
        The new code of each row, int64 (N,).
    """
    smallest = np.full(len(ties), np.iinfo(np.int64).max)
    np.minimum.at(smallest, codes, row_ids)
    new_codes = np.empty(len(ties), dtype=np.int64)
    new_codes[np.lexsort((ties, smallest))] = np.arange(len(ties))
    return new_codes[codes]


def order_by_content(codes: np.ndarray, row_ids: np.ndarray) -> np.ndarray:
    """Renumber subjects by their smallest row id, then by the sum of their row ids; equal subjects
    keep their order.

    Args:
        codes: Subject of each row, 0..s-1, int64 (N,).
        row_ids: Id of each row, int64 (N,).

    Returns:
        The new code of each row, int64 (N,).
    """
    return renumbered(codes, row_ids, np.bincount(codes, weights=row_ids))


def permute_labels(
    member: np.ndarray,
    n_permutations: int,
    rng: np.random.Generator,
    statistic: Callable[[np.ndarray], np.ndarray],
    block: int = SETS,
    seen: np.ndarray | None = None,
) -> np.ndarray:
    """Draw the null distribution of a statistic by permuting the labels of subjects.

    Args:
        member: True for subjects in train, shape (s,).
        n_permutations: Number of permutations.
        rng: Generator of the draws.
        statistic: Maps float32 labels (b, s), or (b, len(seen)), to (b, m).
        block: Maximum number of label vectors in memory, at most 64.
        seen: Subjects whose labels are passed to ``statistic``. None: all.

    Returns:
        float64 of shape (n_permutations, m).
    """
    n_members = int(member.sum())
    statistics = []
    for start in range(0, n_permutations, SETS):
        words = random_sets(len(member), n_members, rng)
        set_bytes = words.view(np.uint8).reshape(-1, 8)
        if seen is not None:
            set_bytes = set_bytes[seen]
        n_sets = min(SETS, n_permutations - start)
        sets = np.unpackbits(set_bytes, axis=1, count=n_sets, bitorder="little").T
        for first in range(0, n_sets, block):
            labels = sets[first : first + block].astype(np.float32, order="C")
            statistics.append(np.asarray(statistic(labels), dtype=np.float64))
    return np.concatenate(statistics)


def random_sets(n_subjects: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """Draw 64 uniform subsets of the subjects.

    Each subject first joins each subset independently with a probability of about size /
    n_subjects; then random subjects are added or removed. Both steps treat all subjects equally, so
    all subsets of this size remain equally likely.

    Args:
        n_subjects: Number of subjects.
        size: Number of subjects in each subset.
        rng: Generator of the draws.

    Returns:
        Little-endian uint64 (n_subjects,): bit i is 1 if the subject is in subset i.
    """
    from privacy_assets.stats import _kernels as kernels

    share = (size << _COIN_BITS) // max(n_subjects, 1)
    sets = np.zeros(n_subjects, dtype=np.uint64)
    for bit in range(_COIN_BITS):
        coins = rng.integers(0, 1 << 64, n_subjects, dtype=np.uint64)
        if share >> bit & 1:
            sets = sets | coins
        else:
            sets = sets & coins
    kernels.resize(sets, size, rng)
    return sets.astype("<u8", copy=False)


def resample_subjects(
    member: np.ndarray,
    n_bootstraps: int,
    rng: np.random.Generator,
    statistic: Callable[[np.ndarray, np.ndarray], np.ndarray],
    block: int = SETS,
) -> np.ndarray:
    """Compute a statistic on bootstrap samples of the subjects of each side.

    Args:
        member: True for subjects in train, shape (s,).
        n_bootstraps: Number of samples.
        rng: Generator of the draws.
        statistic: Maps float32 labels (1, s) and the number of times each subject was drawn, int64
            (b, s), to (b, m).
        block: Maximum number b of samples in memory.

    Returns:
        float64 of shape (n_bootstraps, m).
    """
    sides = [np.flatnonzero(~member), np.flatnonzero(member)]
    labels = member.astype(np.float32)[None]
    statistics = []
    for start in range(0, n_bootstraps, block):
        n_samples = min(block, n_bootstraps - start)
        times = np.zeros((n_samples, len(member)), dtype=np.int64)
        for side in sides:
            samples = rng.integers(0, len(side), (n_samples, len(side)))
            for row, sample in zip(times, samples, strict=True):
                row[side] = np.bincount(sample, minlength=len(side))
        statistics.append(statistic(labels, times))
    return np.concatenate(statistics)
