"""Rule of one column: the values that are published instead of rare ones. See
:mod:`.threshold_rule`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from privacy_assets.errors import InputError
from privacy_assets.infra.objects import Location
from privacy_assets.tables.arrays import load_arrays, mapped_copy, reporting_damage, save_arrays
from privacy_assets.tables.column import MISSING, Column, looked_up, positions_in, stacked
from privacy_assets.tables.conversion import column_of
from privacy_assets.tables.precision import Precision
from privacy_assets.tables.published_numbers import ValueGroups
from privacy_assets.tables.schema import ColumnSchema


@dataclass(frozen=True, eq=False, slots=True)
class ColumnRule:
    """Published values of a column.

    Attributes:
        recoding: Published value of each category or boolean; None is a missing value. Other values
            are unchanged.
        groups: Groups of neighboring numbers and times. None: the column has categories or
            booleans. Without a group, all cells are published as missing values.
        reach: Smallest and largest number or time to which the rule applies, see :func:`reach_of`.
            None: to all.
        missing_as: What is published instead of a missing value: a category, or the cell of a
            number or time. None: missing values stay.
        real_precision: Precision of the real values.
        n_rows: Number of rows of the real tables that have a value.
        n_replaced_values: Number of distinct categories of the real tables that the rule replaces.
        n_changed: Number of cells of the real tables that the rule changes.
        mean_change: Mean change of a number or time, in standard deviations of the real ones. 0.0
            for categories.
        n_public: Number of rare values that are published because the column has a list with a
            source.
    """

    recoding: Mapping[Any, Any] | None = None
    groups: ValueGroups | None = None
    reach: tuple[Any, Any] | None = None
    missing_as: Any = None
    real_precision: Precision = None
    n_rows: int = 0
    n_replaced_values: int = 0
    n_changed: int = 0
    mean_change: float = 0.0
    n_public: int = 0

    @property
    def is_hidden(self) -> bool:
        """True if all cells are published as missing values."""
        if self.groups is not None:
            return len(self.groups) == 0
        if not self.recoding:
            return False
        return set(self.recoding.values()) == {None}

    def to_json(self) -> dict[str, Any]:
        """Return the rule without the arrays of its groups, as JSON-compatible values."""
        return {
            "recoding": None if self.recoding is None else list(self.recoding.items()),
            "has_groups": self.groups is not None,
            "reach": None if self.reach is None else list(self.reach),
            "missing_as": self.missing_as,
            "real_precision": self.real_precision,
            "n_rows": self.n_rows,
            "n_replaced_values": self.n_replaced_values,
            "n_changed": self.n_changed,
            "mean_change": self.mean_change,
            "n_public": self.n_public,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], arrays: Iterator[np.ndarray]) -> ColumnRule:
        """Create a rule.

        Args:
            data: Output of :meth:`to_json`.
            arrays: Arrays of the groups, of which the next three are taken if the rule has groups.

        Raises:
            ValueError: If the arrays of groups differ in shape.
        """
        attributes = dict(data)
        if attributes.pop("has_groups"):
            attributes["groups"] = _next_groups(arrays)
        if attributes["reach"] is not None:
            attributes["reach"] = tuple(attributes["reach"])
        if attributes["recoding"] is not None:
            attributes["recoding"] = dict(attributes["recoding"])
        return cls(**attributes)

    def equals(self, rule: ColumnRule) -> bool:
        """Return True if both rules are the same."""
        if self.to_json() != rule.to_json():
            return False
        if self.groups is None or rule.groups is None:
            return True  # both are None, as the JSON says
        return self.groups.equals(rule.groups)

    def apply(self, column: Column, *, where: str | None = None) -> Column:
        """Return what is published instead of the cells of ``column``.

        No rule replaces two kinds of cells: categories that no real table has and that are not
        declared as allowed values, and numbers and times that are farther outside the real range
        than it is wide. They do not come from real rows.

        Args:
            column: Column of a real or synthetic table, before the rule.
            where: Name of a synthetic table in messages, of which such cells are rejected. None:
                they are unchanged.

        Raises:
            InputError: If such a cell is rejected.
        """
        published = self._replaced(column)
        if where is not None:
            self._check_not_foreign(published, where)
        return published

    def _replaced(self, column: Column) -> Column:
        if self.recoding is not None:
            return self._recoded(column, self.recoding)
        if self.groups is None:
            return column
        cells = mapped_copy(column.cells)
        is_present = ~column.missing
        if len(self.groups) == 0:
            cells[is_present] = _missing_cell(column)
            return replace(column, cells=cells)
        is_replaced = is_present & ~self._is_beyond(column)
        cells[is_replaced] = self.groups.replace(cells[is_replaced])
        if self.missing_as is not None:
            cells[~is_present] = self.missing_as
        return replace(column, cells=cells)

    def _recoded(self, column: Column, recoding: Mapping[Any, Any]) -> Column:
        published = [recoding.get(value, value) for value in column.values or ()]
        values = list(column.values or ())
        if column.kind != "boolean":
            values = sorted({*published, self.missing_as} - {None})
        *published_codes, missing_code = positions_in(values, [*published, self.missing_as])
        codes = looked_up(published_codes, column.cells, missing_code)
        return Column.of_codes(column.name, column.kind, codes, values)

    def _check_not_foreign(self, published: Column, where: str) -> None:
        """Raise InputError for cells that the rule does not replace.

        Args:
            published: Column of a synthetic table, to which the rule was applied.
            where: Name of the table in messages.
        """
        is_foreign = self._is_foreign(published)
        if not is_foreign.any():
            return
        if self.groups is None:
            raise unknown_categories(is_foreign, published.name, where)
        problem = (
            "it has numbers or times that are farther outside the range of the real tables than it"
            " is wide"
        )
        raise _unpublishable(problem, "keep within this range", is_foreign, published.name, where)

    def _is_foreign(self, published: Column) -> np.ndarray:
        if self.recoding is None:
            return self._is_beyond(published)
        published_values = set(self.recoding.values())
        is_unpublished = [value not in published_values for value in published.values or ()]
        return np.array([*is_unpublished, False])[published.cells]  # -1, missing, selects the last

    def _is_beyond(self, column: Column) -> np.ndarray:
        if self.reach is None:
            return np.zeros(len(column), dtype=bool)
        low, high = self.reach
        is_outside = (column.cells < low) | (column.cells > high)
        return np.asarray(is_outside & ~column.missing)


def _next_groups(arrays: Iterator[np.ndarray]) -> ValueGroups:
    """Return the groups of the next three arrays.

    Raises:
        ValueError: If they differ in shape.
    """
    low = next(arrays)
    high = next(arrays)
    published = next(arrays)
    if low.ndim != 1 or not low.shape == high.shape == published.shape:
        raise ValueError("the groups of a column have another form")
    return ValueGroups(low, high, published)


def reach_of(column: ColumnSchema, real: Sequence[Column]) -> tuple[Any, Any] | None:
    """Return the smallest and largest number or time that a synthetic table may have.

    The real range is extended by its width on each side, and to declared values. A number far
    outside could encode a whole row in its digits.

    Args:
        column: Schema of the column.
        real: The column in each real table.

    Returns:
        The bounds, or None if no real row has a value.
    """
    cells = stacked(real).present().cells
    if len(cells) == 0:
        return None
    low = cells.min().item()
    high = cells.max().item()
    width = high - low
    bounds = [low - width, high + width]
    if column.allowed_values:
        bounds.extend(listed_values(column).cells.tolist())
    return min(bounds), max(bounds)


def _missing_cell(column: Column) -> float | int:
    if column.kind == "numeric":
        return np.nan
    return MISSING


def listed_values(column: ColumnSchema) -> Column:
    """Return the distinct declared allowed values of a column."""
    listed = pd.Series(list(column.allowed_values), dtype=object)
    return column_of(listed, column, "allowed_values").present().distinct()


def unknown_categories(is_unknown: np.ndarray, column: str, where: str) -> InputError:
    """Return the error for categories of a synthetic table that no real table has.

    Args:
        is_unknown: True for rows with one, bool (n,).
        column: Name of the column.
        where: Name of the table in messages.
    """
    problem = "it has categories that no real table has"
    fix = "write them as in the real tables, or declare them as allowed_values"
    return _unpublishable(problem, fix, is_unknown, column, where)


def _unpublishable(
    problem: str, fix: str, is_wrong: np.ndarray, column: str, where: str
) -> InputError:
    first_row = int(np.flatnonzero(is_wrong)[0])
    problem = f"{problem}, in {is_wrong.sum()} of {len(is_wrong)} cells"
    return InputError(problem, where=where, column=column, row=first_row, fix=fix)


def save_rules(path: Location, rules: Mapping[str, ColumnRule]) -> None:
    """Write rules, for :func:`load_rules`. The file is as private as the table.

    Args:
        path: File or object.
        rules: Rules by column.
    """
    facts = dict[str, Any]()
    arrays = list[np.ndarray]()
    for name, rule in rules.items():
        facts[name] = rule.to_json()
        if rule.groups is not None:
            arrays.extend(rule.groups.arrays)
    save_arrays(path, facts, arrays)


def load_rules(path: Location) -> dict[str, ColumnRule]:
    """Load rules that :func:`save_rules` wrote.

    Raises:
        Damaged: If the file is missing or contains something else.
    """
    with reporting_damage(path):
        facts, arrays, _ = load_arrays(path)
        return rules_from_json(facts, arrays)


def rules_from_json(
    facts: Mapping[str, Mapping[str, Any]], arrays: Iterator[np.ndarray]
) -> dict[str, ColumnRule]:
    """Create rules from their outputs of :meth:`ColumnRule.to_json`.

    Args:
        facts: Outputs by column.
        arrays: Arrays of the groups, of which those of these rules are taken.
    """
    rules = {}
    for name, rule in facts.items():
        rules[name] = ColumnRule.from_json(rule, arrays)
    return rules
