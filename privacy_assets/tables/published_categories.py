"""Categories and booleans: each published one is shared by at least k subjects of the real tables.

A category that k subjects have is frequent, and others are rare. A rare category becomes the
longest prefix that k subjects have, if prefixes are declared, and else "other" (threshold rule and
recoding, in the terms of statistical offices). If fewer than k subjects would have "other" or the
prefix, the rarest published name is absorbed, then the next one. Only names that few people have
are absorbed: otherwise, a single rare answer would relabel a large part of the column. If these are
not enough, a prefix is given up for a shorter one or "other". "other" is given up for the most
frequent name, also if it would absorb all names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from privacy_assets.tables.column import distinct_sorted
from privacy_assets.tables.names import without

OTHER = "other"
_MAX_ABSORBED_SHARE = 0.05  # of the subjects: largest name that rare categories absorb


def count_holders(codes: np.ndarray, subject_codes: np.ndarray | None, n_values: int) -> np.ndarray:
    """Return the number of subjects that have each value, int64 of shape (``n_values``,).

    Args:
        codes: Value of each cell (n,), at least 0.
        subject_codes: Subject of each cell (n,). None: each cell belongs to a subject of its own.
        n_values: Number of values.
    """
    if subject_codes is None:
        return np.bincount(codes, minlength=n_values)
    n_subjects = int(subject_codes.max(initial=-1)) + 1
    pairs = distinct_sorted(codes * n_subjects + subject_codes)
    return np.bincount(pairs // max(n_subjects, 1), minlength=n_values)


class RealCategories:
    """Categories of a column of the real tables.

    Attributes:
        values: Distinct values, shape (v,). Values that no row has are allowed.
        n_subjects: Number of subjects.
    """

    def __init__(self, values: Sequence[Any], codes: np.ndarray, subject_codes: np.ndarray) -> None:
        """Index the subjects by value.

        Args:
            values: Distinct values, shape (v,).
            codes: Position of the value of each cell, -1 for missing, int64 (n,).
            subject_codes: Subject of each cell, int64 (n,).
        """
        self.values = values
        self.n_subjects = len(distinct_sorted(subject_codes))
        # Pairs of value and subject. Missing, code -1, is the first value.
        n_subjects = int(subject_codes.max(initial=0)) + 1
        pairs = distinct_sorted((codes + 1) * n_subjects + subject_codes)
        self._holders = pairs % n_subjects
        self._starts = np.searchsorted(pairs // n_subjects, np.arange(len(values) + 2))

    def n_holders(self, positions: Iterable[int]) -> int:
        """Return the number of subjects that have one of some values.

        Args:
            positions: Positions of the values. -1 means a missing value.
        """
        holders = []
        for position in positions:
            start = self._starts[position + 1]
            end = self._starts[position + 2]
            holders.append(self._holders[start:end])
        if not holders:
            return 0
        if len(holders) == 1:
            return len(holders[0])
        return len(distinct_sorted(np.concatenate(holders)))


@dataclass
class _Recoding:
    """Positions of the values that are published under each name. The name None is a missing value.

    Attributes:
        real: Categories of the real tables.
        k: Minimum number of subjects.
        names: Positions by published name.
        n_holders: Number of subjects by published name.
        public: Names of a public list that fewer than k subjects have. They are published
            regardless, and no other name absorbs them.
    """

    real: RealCategories
    k: int
    names: dict[Any, list[int]] = field(default_factory=dict)
    n_holders: dict[Any, int] = field(default_factory=dict)
    public: set[Any] = field(default_factory=set)

    def add(self, name: Any, positions: Iterable[int]) -> None:
        """Publish the values at ``positions`` as ``name``."""
        self.names.setdefault(name, []).extend(positions)
        self.n_holders[name] = self.real.n_holders(self.names[name])

    def rename(self, name: Any, new_name: Any) -> None:
        """Publish the values that are published as ``name`` as ``new_name``."""
        del self.n_holders[name]
        self.add(new_name, self.names.pop(name))

    def absorbable_names(self, prefix: str = "") -> list[Any]:
        """Return the names that another name may absorb and that begin with ``prefix``, the rarest
        one first.
        """
        names = []
        for name in self.names:
            if name is not None and name not in self.public and name.startswith(prefix):
                names.append(name)
        return sorted(names, key=lambda name: (self.n_holders[name], name))

    def absorbed_names(
        self, positions: Sequence[int], absorbable: Iterable[Any]
    ) -> list[Any] | None:
        """Return the names that rare categories must absorb, so that enough subjects have one of
        them.

        Args:
            positions: Positions of the rare categories.
            absorbable: Names that they may absorb, in this order.

        Returns:
            The first of ``absorbable``; none of them if enough subjects have the rare
            categories. None instead of a list: all of them are too few, or one is too frequent to
            be absorbed.
        """
        too_frequent = max(2 * self.k, _MAX_ABSORBED_SHARE * self.real.n_subjects)
        absorbed = list[Any]()
        for name in absorbable:
            if self.real.n_holders(positions) >= self.k:
                return absorbed
            if self.n_holders[name] >= too_frequent:
                return None
            absorbed.append(name)
            positions = [*positions, *self.names[name]]
        if self.real.n_holders(positions) < self.k:
            return None
        return absorbed

    def most_frequent(self, excluded: Any = None) -> Any:
        """Return the name that most subjects have (a tie: the first name). It is not ``excluded``
        and not None.
        """
        names = without(self.names, (None, excluded))
        return min(names, key=lambda name: (-self.n_holders[name], name))


def recode(
    real: RealCategories,
    k: int,
    *,
    rare_name: str | None,
    prefixes: Collection[int] = (),
    public: Collection[Any] = (),
) -> dict[Any, Any]:
    """Return what is published instead of each category, and instead of a missing value (None).

    If fewer than ``k`` subjects have what is published as a prefix or as ``rare_name``, the rarest
    name (of a prefix: that begins with it) is published so as well, and so on, if fewer than 2
    ``k`` subjects, or than 5 % of them, have it (the larger number counts). Otherwise, the rare
    categories are published as the most frequent name (of a prefix: as a shorter prefix or as
    ``rare_name``), also if ``rare_name`` would absorb all names. If fewer than ``k`` subjects have
    a missing value, the most frequent name is published instead. A category that no real row has is
    published like rare ones; if there are none, as the rarest name.

    Args:
        real: Categories of the real tables, and those that only a synthetic table may have.
        k: Minimum number of subjects.
        rare_name: What is published instead of rare categories without a prefix. None: a missing
            value.
        prefixes: Lengths of the prefixes to which rare categories may be shortened.
        public: Categories of a public list, which are published even if fewer subjects have them,
            except "other", which is also the name of rare categories.

    Returns:
        Published value of each of ``real.values`` and of None. Without a public list, all are None
        if fewer than ``k`` subjects have a category.
    """
    public = set(public) - {OTHER}
    if real.n_holders(range(len(real.values))) < k:
        published = dict[Any, Any].fromkeys([*real.values, None])
        for value in public.intersection(real.values):
            published[value] = value
        return published

    recoding = _Recoding(real, k)
    rare = []
    for position, value in enumerate(real.values):
        n_holders = real.n_holders([position])
        if n_holders < k and value not in public:
            rare.append(position)
            continue
        recoding.add(value, [position])
        if n_holders < k:
            recoding.public.add(value)
    for length in sorted(set(prefixes), reverse=True):
        rare = _shorten(recoding, rare, length)
    if rare:
        _collect(recoding, rare, rare_name)
    return _published_names(recoding)


def _published_names(recoding: _Recoding) -> dict[Any, Any]:
    """Return the published name of each value and of None, a missing value."""
    names = dict[int, Any]()
    for name, positions in recoding.names.items():
        for position in positions:
            names[position] = name
    if -1 not in names and recoding.real.n_holders([-1]) >= recoding.k:
        names[-1] = None
    elif -1 not in names:
        names[-1] = recoding.most_frequent()
    published = dict[Any, Any]()
    for position, value in enumerate(recoding.real.values):
        published[value] = names[position]
    published[None] = names[-1]
    return published


def _shorten(recoding: _Recoding, rare: Sequence[int], length: int) -> list[int]:
    """Publish rare categories as their prefix of a length if enough subjects have it.

    Args:
        recoding: Recoding, to which the prefixes are added.
        rare: Positions of rare categories.
        length: Length of the prefix.

    Returns:
        Positions of the categories that are still rare.
    """
    positions_by_prefix = dict[str, list[int]]()
    for position in rare:
        value = recoding.real.values[position]
        if len(value) >= length and value != OTHER:
            positions_by_prefix.setdefault(value[:length], []).append(position)
    shortened = set[int]()
    for prefix, positions in sorted(positions_by_prefix.items()):
        longer_names = without(recoding.absorbable_names(prefix), [prefix])
        same_prefix = [*positions, *recoding.names.get(prefix, ())]
        absorbed = recoding.absorbed_names(same_prefix, longer_names)
        if absorbed is None:
            continue
        recoding.add(prefix, positions)
        for absorbed_name in absorbed:
            recoding.rename(absorbed_name, prefix)
        shortened.update(positions)
    return without(rare, shortened)


def _collect(recoding: _Recoding, rare: Sequence[int], name: str | None) -> None:
    """Publish rare categories as ``name``, with the rarest names until enough subjects have it.

    Otherwise, publish them as the most frequent name.

    Args:
        recoding: Recoding, to which the rare categories are added.
        rare: Positions of rare categories.
        name: Their name. None: a missing value.
    """
    if name not in recoding.names and recoding.real.n_holders(rare) == 0:
        names = recoding.absorbable_names() or list(recoding.names)
        recoding.add(names[0], rare)  # only a synthetic table has them
        return
    recoding.add(name, rare)
    if name is None:
        recoding.add(None, [-1])
    absorbable = without(recoding.absorbable_names(), [name])
    absorbed = recoding.absorbed_names(recoding.names[name], absorbable)
    has_no_name_left = bool(absorbed) and absorbed == absorbable
    if absorbed is None or has_no_name_left:
        recoding.rename(name, recoding.most_frequent(excluded=name))
        return
    for absorbed_name in absorbed:
        recoding.rename(absorbed_name, name)


def recode_booleans(real: RealCategories, k: int) -> dict[bool | None, bool | None]:
    """Return what is published instead of False, True and a missing value (None). Rare ones become
    the most frequent.

    Args:
        real: Booleans of the real tables, with the values False and True.
        k: Minimum number of subjects.

    Returns:
        Published value of False, True and None. All are None if fewer than ``k`` subjects have a
        value.
    """
    if real.n_holders([0, 1]) < k:
        return {False: None, True: None, None: None}
    most_frequent = real.n_holders([1]) > real.n_holders([0])
    published: dict[bool | None, bool | None] = {False: False, True: True, None: None}
    for value, position in ((False, 0), (True, 1), (None, -1)):
        if real.n_holders([position]) < k:
            published[value] = most_frequent
    return published
