"""Categories and booleans: each published one is shared by at least k subjects of the real tables.

A category that k subjects have is a level. A rare one becomes the longest prefix that k subjects
have, if prefixes are declared, and else "other" (threshold rule and recoding, in the terms of
statistical offices). If these are too few, the rarest level joins them, but only one that few
people have: otherwise, a single rare answer would relabel a large part of the column. If there is
none, they get the most frequent level.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from privacy_assets.tables.column import distinct_sorted

OTHER = "other"
_JOINED_SHARE = 0.05  # share of the subjects up to which a level joins rare categories


def count_holders(codes: np.ndarray, people: np.ndarray | None, n_values: int) -> np.ndarray:
    """Return the number of subjects that have each value, int64 of shape (``n_values``,).

    Args:
        codes: Value of each cell (n,), at least 0.
        people: Subject of each cell (n,). None: each cell belongs to a subject of its own.
        n_values: Number of values.
    """
    if people is None:
        return np.bincount(codes, minlength=n_values)
    n_people = int(people.max(initial=-1)) + 1
    pairs = distinct_sorted(codes * n_people + people)
    return np.bincount(pairs // max(n_people, 1), minlength=n_values)


class RealCategories:
    """Categories of a column of the real tables.

    Attributes:
        values: Distinct values, shape (v,). Values that no row has are allowed.
        n_people: Number of subjects.
    """

    def __init__(self, values: Sequence[Any], codes: np.ndarray, people: np.ndarray) -> None:
        """Index the subjects by value.

        Args:
            values: Distinct values, shape (v,).
            codes: Position of the value of each cell, -1 for missing, int64 (n,).
            people: Subject of each cell, int64 (n,).
        """
        self.values = values
        self.n_people = len(distinct_sorted(people))
        n_people = int(people.max(initial=0)) + 1
        pairs = distinct_sorted((codes + 1) * n_people + people)
        self._people = pairs % n_people
        self._starts = np.searchsorted(pairs // n_people, np.arange(len(values) + 2))

    def n_holders(self, positions: Iterable[int]) -> int:
        """Return the number of subjects that have one of the values at these positions. -1 means a
        missing value.
        """
        people = [
            self._people[self._starts[position + 1] : self._starts[position + 2]]
            for position in positions
        ]
        if len(people) == 1:
            return len(people[0])
        return len(distinct_sorted(np.concatenate(people))) if people else 0


@dataclass
class _Recoding:
    """Positions of the values that are published under each name. The name None is a missing value.

    Attributes:
        real: Categories of the real tables.
        k: Minimum number of subjects.
        names: Positions by published name.
        holders: Number of subjects by published name.
        kept: Names that are published regardless of the number of subjects, and that no other name
            absorbs.
    """

    real: RealCategories
    k: int
    names: dict[Any, list[int]] = field(default_factory=dict)
    holders: dict[Any, int] = field(default_factory=dict)
    kept: set[Any] = field(default_factory=set)

    def add(self, name: Any, positions: Iterable[int]) -> None:
        """Publish the values at ``positions`` as ``name``."""
        self.names.setdefault(name, []).extend(positions)
        self.holders[name] = self.real.n_holders(self.names[name])

    def rename(self, name: Any, new_name: Any) -> None:
        """Publish the values that are published as ``name`` as ``new_name``."""
        del self.holders[name]
        self.add(new_name, self.names.pop(name))

    def levels(self, prefix: str = "") -> list[Any]:
        """Return the names that another name may absorb and that begin with ``prefix``, the rarest
        one first.
        """
        names = [name for name in self.names if name is not None and name not in self.kept]
        names = [name for name in names if name.startswith(prefix)]
        return sorted(names, key=lambda name: (self.holders[name], name))

    def joining_levels(self, positions: Sequence[int], levels: Iterable[Any]) -> list[Any] | None:
        """Return the first of ``levels`` with which enough subjects have the values at
        ``positions``.

        None: they are too few, or one of the levels is too frequent to join rare categories.
        """
        too_frequent = max(2 * self.k, _JOINED_SHARE * self.real.n_people)
        joined = list[Any]()
        for level in levels:
            if self.real.n_holders(positions) >= self.k:
                return joined
            if self.holders[level] >= too_frequent:
                return None
            joined.append(level)
            positions = [*positions, *self.names[level]]
        return joined if self.real.n_holders(positions) >= self.k else None

    def most_frequent(self, excluded: Any = None) -> Any:
        """Return the name that most subjects have (a tie: the first name). It is not ``excluded``
        and not None.
        """
        names = [name for name in self.names if name is not None and name != excluded]
        return min(names, key=lambda name: (-self.holders[name], name))


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
    level (of a prefix: that begins with it) is published so as well, and so on, if fewer than 2
    ``k`` subjects or 5 % of them have it. Otherwise, or if only one level remains, the rare
    categories are published as the most frequent one (of a prefix: as a shorter prefix or as
    ``rare_name``). If fewer than ``k`` subjects have a missing value, the most frequent category is
    published instead.

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
        return {value: value if value in public else None for value in (*real.values, None)}
    recoding = _Recoding(real, k)
    rare = []
    for position, value in enumerate(real.values):
        if value in public or real.n_holders([position]) >= k:
            recoding.add(value, [position])
        else:
            rare.append(position)
    recoding.kept = {name for name, n_holders in recoding.holders.items() if n_holders < k}
    for length in sorted(set(prefixes), reverse=True):
        rare = _shorten(recoding, rare, length)
    if rare:
        _collect(recoding, rare, rare_name)
    published = {
        position: name for name, positions in recoding.names.items() for position in positions
    }
    if -1 not in published:
        is_frequent = real.n_holders([-1]) >= k
        published[-1] = None if is_frequent else recoding.most_frequent()
    by_value = {value: published[position] for position, value in enumerate(real.values)}
    return {**by_value, None: published[-1]}


def _shorten(recoding: _Recoding, rare: Sequence[int], length: int) -> list[int]:
    """Publish rare categories as their prefix of this length if enough subjects have it. Return the
    other ones.
    """
    positions_by_prefix = dict[str, list[int]]()
    for position in rare:
        value = recoding.real.values[position]
        if len(value) >= length and value != OTHER:
            positions_by_prefix.setdefault(value[:length], []).append(position)
    shortened = set[int]()
    for prefix, positions in sorted(positions_by_prefix.items()):
        others = [level for level in recoding.levels(prefix) if level != prefix]
        joined = recoding.joining_levels([*positions, *recoding.names.get(prefix, ())], others)
        if joined is None:
            continue
        recoding.add(prefix, positions)
        for level in joined:
            recoding.rename(level, prefix)
        shortened.update(positions)
    return [position for position in rare if position not in shortened]


def _collect(recoding: _Recoding, rare: Sequence[int], name: str | None) -> None:
    """Publish rare categories as ``name``, with the rarest levels until enough subjects have it."""
    if name not in recoding.names and recoding.real.n_holders(rare) == 0:
        levels = recoding.levels() or list(recoding.names)
        recoding.add(levels[0], rare)  # only a synthetic table has them
        return
    recoding.add(name, rare)
    if name is None:
        recoding.add(None, [-1])
    others = [level for level in recoding.levels() if level != name]
    joined = recoding.joining_levels(recoding.names[name], others)
    if joined is None or (joined and joined == others):  # no level would be left
        recoding.rename(name, recoding.most_frequent(excluded=name))
        return
    for level in joined:
        recoding.rename(level, name)


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
