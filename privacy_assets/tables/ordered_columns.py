"""Columns that share their groups, so that one of them is never above the other after the threshold
rule, either.

Examples are ``paid <= amount`` and ``start <= end``. Two columns of the same kind and dtype share
their groups if they have an order (:mod:`.relations`), groups of their own would break it in at
least one row, and each of them keeps at least half of its groups. The pair that would break most
rows comes first. If a column of a pair already shares groups, all columns of the set must keep half
of theirs. A column that a category determines, such as a price, keeps groups of its own, because
users compare it with the category.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from privacy_assets.tables.column import Column, distinct_sorted
from privacy_assets.tables.published_numbers import PresentCells, ValueGroups, make_groups
from privacy_assets.tables.relations import Relation, orders_of
from privacy_assets.tables.schema import ColumnSchema

_MIN_KEPT = 0.5  # share of its own groups that a column keeps if it shares groups


@dataclass(frozen=True, eq=False)
class NumberColumn:
    """A column of numbers or times of the stacked real tables.

    Attributes:
        schema: Schema.
        column: Cells of all rows.
        subject_codes: Subject of each row, int64 (n,).
        groups: Groups of the column alone.
    """

    schema: ColumnSchema
    column: Column
    subject_codes: np.ndarray
    groups: ValueGroups

    @classmethod
    def of(
        cls,
        schema: ColumnSchema,
        column: Column,
        subject_codes: np.ndarray,
        k: int,
        public: np.ndarray | None = None,
    ) -> NumberColumn:
        """Create a column with its groups, see :func:`.published_numbers.make_groups`.

        Args:
            schema: Schema.
            column: Cells of all rows of the stacked real tables.
            subject_codes: Subject of each row, int64 (n,).
            k: Minimum number of subjects.
            public: Values of a public list. None: there is no list.
        """
        present = _present(column, subject_codes)
        return cls(schema, column, subject_codes, make_groups([present], schema, k, public))

    @property
    def present(self) -> PresentCells:
        """Cells that are not missing."""
        return _present(self.column, self.subject_codes)

    def published(self) -> Column:
        """Return the column with the groups of the column alone. Missing values stay."""
        cells = self.column.cells.copy()
        is_present = ~self.column.missing
        cells[is_present] = self.groups.replace(cells[is_present])
        return replace(self.column, cells=cells)

    def keeps_enough(self, groups: ValueGroups) -> bool:
        """Return True if the column has values in at least half as many groups of ``groups`` as it
        has groups of its own.
        """
        group_of_value = groups.groups_of(self.column.distinct().cells)
        n_groups = len(distinct_sorted(group_of_value))
        return n_groups >= _MIN_KEPT * len(self.groups)


def _present(column: Column, subject_codes: np.ndarray) -> PresentCells:
    is_present = ~column.missing
    return PresentCells(column.cells[is_present], subject_codes[is_present])


class OrderedPair(NamedTuple):
    """Columns of which the first one is in no real row above the second one.

    Attributes:
        low: Name of the first column.
        high: Name of the second column.
        n_broken: Number of real rows in which the published value of ``low`` is above that of
            ``high``.
        n_rows: Number of real rows with both published values.
    """

    low: str
    high: str
    n_broken: int
    n_rows: int


class SharedGroups(NamedTuple):
    """Groups of the columns of a table.

    Attributes:
        groups: Groups by column.
        shared: Names of the columns that share their groups, in each set of such columns.
        ordered: Ordered pairs of columns.
    """

    groups: Mapping[str, ValueGroups]
    shared: Sequence[tuple[str, ...]]
    ordered: Sequence[OrderedPair]


def share_groups(
    columns: Sequence[NumberColumn], k: int, relations: Sequence[Relation]
) -> SharedGroups:
    """Return the groups of columns, some of which share theirs.

    Args:
        columns: Columns of one table, with the same rows.
        k: Minimum number of subjects.
        relations: Relations of the real rows.
    """
    by_name: dict[str, NumberColumn] = {}
    groups: dict[str, ValueGroups] = {}
    set_of: dict[str, tuple[str, ...]] = {}
    for column in columns:
        name = column.schema.name
        by_name[name] = column
        groups[name] = column.groups
        set_of[name] = (name,)
    ordered = _ordered_pairs(by_name, relations)
    broken = broken_pairs(ordered, _published_columns(by_name, ordered))
    determined = _determined_columns(relations)
    for pair in sorted(broken, key=lambda pair: -pair.n_broken):
        is_shared = set_of[pair.low] == set_of[pair.high]
        if is_shared or pair.low in determined or pair.high in determined:
            continue
        names = set_of[pair.low] + set_of[pair.high]
        joint_groups = _joint_groups([by_name[name] for name in names], k)
        if joint_groups is not None:
            set_of |= dict.fromkeys(names, names)
            groups |= dict.fromkeys(names, joint_groups)
    shared = []
    for names in dict.fromkeys(set_of.values()):
        if len(names) > 1:
            shared.append(names)
    return SharedGroups(groups, shared, ordered)


def _published_columns(
    columns: Mapping[str, NumberColumn], pairs: Sequence[OrderedPair]
) -> dict[str, Column]:
    """Return the columns of the pairs with the groups of each column alone."""
    published = dict[str, Column]()
    for pair in pairs:
        for name in (pair.low, pair.high):
            if name not in published:
                published[name] = columns[name].published()
    return published


def _determined_columns(relations: Sequence[Relation]) -> set[str]:
    """Return the names of the columns that a category determines."""
    determined = set()
    for relation in relations:
        if relation.kind == "code":
            determined.add(relation.second)
    return determined


def _joint_groups(columns: Sequence[NumberColumn], k: int) -> ValueGroups | None:
    """Return the groups that columns can share, or None if one of them would lose too many."""
    parts = [column.present for column in columns]
    joint_groups = make_groups(parts, columns[0].schema, k)
    for column in columns:
        if not column.keeps_enough(joint_groups):
            return None
    return joint_groups


def _ordered_pairs(
    columns: Mapping[str, NumberColumn], relations: Sequence[Relation]
) -> list[OrderedPair]:
    """Return the pairs of columns of the same kind and dtype that have an order in all real rows
    with both.
    """
    pairs = []
    for low_name, high_name in sorted(orders_of(relations)):
        low = columns.get(low_name)
        high = columns.get(high_name)
        if low is None or high is None:
            continue
        if len(low.groups) == 0 or len(high.groups) == 0:
            continue
        if low.schema.kind != high.schema.kind or low.schema.dtype != high.schema.dtype:
            continue
        # With gaps in b, a <= b and b <= c do not imply a <= c.
        has_both = ~(low.column.missing | high.column.missing)
        is_broken = has_both & (low.column.cells > high.column.cells)
        if not is_broken.any():
            pairs.append(OrderedPair(low_name, high_name, 0, 0))
    return pairs


def broken_pairs(
    ordered: Sequence[OrderedPair], published: Mapping[str, Column]
) -> list[OrderedPair]:
    """Return the ordered pairs that published values break in some rows, with the number of these
    rows.

    Args:
        ordered: Ordered pairs of columns.
        published: The columns of these pairs with published values.
    """
    broken = []
    for pair in ordered:
        low = published[pair.low]
        high = published[pair.high]
        has_both = ~(low.missing | high.missing)
        n_broken = int((has_both & (low.cells > high.cells)).sum())
        if n_broken:
            broken.append(pair._replace(n_broken=n_broken, n_rows=int(has_both.sum())))
    return broken
