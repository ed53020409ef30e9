"""Relations between the columns of the real rows that a synthetic table should keep.

There are three kinds:

- **order**: ``start <= end`` in all rows that have both,
- **code**: each value of a category determines another column, such as ``postcode -> town`` or
  ``product -> price``,
- **gap**: a column is missing exactly where another one has certain values, such as ``smokes ->
  gaps of cigarettes``.

A relation counts only if it does not hold by chance: if one of its columns were shuffled, at least
1 % of the rows, and at least 20, would break it. Rows of one person count once. At least 100 people
must have both columns. Relations that follow from others are left out: ``a <= c`` if ``a <= b`` and
``b <= c``, and all but one of the columns that determine another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from privacy_assets.errors import ConfigError, near_name, safe_repr
from privacy_assets.tables.column import (
    Column,
    columns_by_name,
    distinct_sorted,
    position_of_each,
    stacked_floats,
    values_at,
)
from privacy_assets.tables.published_categories import count_holders

RelationKind = Literal["order", "code", "gap"]
_MIN_PEOPLE = 100
_MIN_SHARE = 0.01  # share of rows in which a relation is broken if one of its columns is shuffled
_MIN_BROKEN = 20.0  # number of these rows
_FIRST_ROWS = 500  # rows that rule out most relations
_CODED = ("categorical", "boolean")
NOTHING_DECLARED: Mapping[str, bool] = MappingProxyType({})
_FREE = -1  # position of the answer of a row that determines nothing


class Determined(NamedTuple):
    """Value of the first column, and the answer that it determines.

    Attributes:
        value: Value of the first column. For a number or time: whether there is one. None: missing.
        answer: Cell of the second column (of a category: its value), None if it is missing. For a
            gap: whether the second column is missing.
    """

    value: Any
    answer: Any


@dataclass(frozen=True, slots=True)
class Relation:
    """A relation between two columns.

    Attributes:
        kind: Kind of the relation.
        first: The smaller column of an order, else the column that determines the other one.
        second: The other column.
        is_declared: Whether the owner of the table declared it, instead of it being found in the
            real rows.
        determined: For codes and gaps: the values of the first column that determine the second
            one. Others, such as ``other`` or a prefix after the threshold rule, leave it free.
        present: For codes: the other values of the first column with which the second one is never
            missing.
    """

    kind: RelationKind
    first: str
    second: str
    is_declared: bool = False
    determined: tuple[Determined, ...] = ()
    present: tuple[Any, ...] = ()

    @property
    def name(self) -> str:
        """Name in settings and reports: ``a <= b``, ``a -> b`` or ``a -> gaps of b``."""
        if self.kind == "order":
            return f"{self.first} <= {self.second}"
        if self.kind == "code":
            return f"{self.first} -> {self.second}"
        return f"{self.first} -> gaps of {self.second}"

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-compatible mapping. It contains values."""
        return {
            "kind": self.kind,
            "first": self.first,
            "second": self.second,
            "is_declared": self.is_declared,
            "determined": [list(names) for names in self.determined],
            "present": list(self.present),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Relation:
        """Create a relation from the output of :meth:`to_json`."""
        determined = tuple(Determined(*pair) for pair in data["determined"])
        present = tuple(data["present"])
        return cls(
            data["kind"], data["first"], data["second"], data["is_declared"], determined, present
        )

    def of_rows(
        self,
        first: Column,
        second: Column,
        subject_codes: np.ndarray | None = None,
        min_holders: int = 1,
    ) -> Relation:
        """Return the relation with the values that determine the second column in these rows.

        Args:
            first: First column of the stacked real tables, as published.
            second: Second column of the same rows.
            subject_codes: Subject of each row, int64 (n,). None: each row is a person.
            min_holders: Minimum number of people with a value of the first column. Others leave the
                second one free.
        """
        if self.kind == "order":
            return self
        codes = _FirstCodes.of(first)
        answers = _AnswerCodes.of(self.kind, second)
        n_values = len(codes.values)
        n_answers = len(answers.values)
        combinations = distinct_sorted(codes.codes * n_answers + answers.codes)
        n_answers_of = np.bincount(combinations // n_answers, minlength=n_values)
        is_free = n_answers_of > 1
        is_free |= count_holders(codes.codes, subject_codes, n_values) < min_holders
        if self.kind == "code":
            is_free[-1] = True  # rows without a postcode may have any town

        determined = []
        has_missing = np.zeros(n_values, dtype=bool)
        for combination in combinations.tolist():
            code, answer_code = divmod(combination, n_answers)
            answer = answers.values[answer_code]
            has_missing[code] |= answer is None
            if not is_free[code]:
                determined.append(Determined(codes.values[code], answer))
        present = []
        if self.kind == "code":
            is_present = is_free & (n_answers_of > 0) & ~has_missing
            present = values_at(codes.values, np.flatnonzero(is_present).tolist())
        return replace(self, determined=tuple(determined), present=tuple(present))

    def never_misses(self, first: Column) -> np.ndarray:
        """Return True for rows of a code that are free, but in which the second column is never
        missing, bool (n,).

        Args:
            first: First column.
        """
        codes = _FirstCodes.of(first)
        is_present = np.array([value in self.present for value in codes.values])
        return np.asarray(is_present[codes.codes])

    def is_broken(self, first: Column, second: Column) -> np.ndarray:
        """Return True for rows that break the relation, bool (n,).

        Args:
            first: First column.
            second: Second column of the same rows.
        """
        if self.kind == "order":
            has_both = ~(first.missing | second.missing)
            return np.asarray(has_both & (first.cells > second.cells))
        answers = _AnswerCodes.of(self.kind, second)
        expected = self.expected(first, answers.values)
        return np.asarray((expected != _FREE) & (expected != answers.codes))

    def expected(self, first: Column, answers: Sequence[Any]) -> np.ndarray:
        """Return the position in ``answers`` of what each row determines, int64 (n,); -1: the row
        is free.

        Args:
            first: First column.
            answers: Values of the second column, see :class:`Determined`. Others have the position
                ``len(answers)``.
        """
        codes = _FirstCodes.of(first)
        positions = position_of_each(answers)
        answer_of = dict(self.determined)
        expected = np.full(len(codes.values), _FREE, dtype=np.int64)
        for code, value in enumerate(codes.values):
            if value in answer_of:
                expected[code] = positions.get(answer_of[value], len(answers))
        return expected[codes.codes]


class _FirstCodes(NamedTuple):
    """Codes of the first column of a code or gap: int64 (n,), and their values. The last value is
    None, missing.
    """

    codes: np.ndarray
    values: list[Any]

    @classmethod
    def of(cls, column: Column) -> _FirstCodes:
        if column.kind not in _CODED:
            return cls(column.missing.astype(np.int64), [True, None])
        values = list(column.values or ())
        codes = column.cells.astype(np.int64)
        return cls(np.where(codes < 0, len(values), codes), [*values, None])


class _AnswerCodes(NamedTuple):
    """Codes of the second column of a code or gap: int64 (n,), and their values; see
    :class:`Determined`.
    """

    codes: np.ndarray
    values: list[Any]

    @classmethod
    def of(cls, kind: RelationKind, column: Column) -> _AnswerCodes:
        if kind == "gap":
            return cls(column.missing.astype(np.int64), [False, True])
        if column.kind not in _CODED:
            distinct = column.distinct().cells
            codes = np.searchsorted(distinct, column.cells)
            return cls(np.where(column.missing, len(distinct), codes), [*distinct.tolist(), None])
        values = list(column.values or ())
        codes = column.cells.astype(np.int64)
        return cls(np.where(codes < 0, len(values), codes), [*values, None])


def find_relations(
    columns: Sequence[Column],
    subject_codes: np.ndarray,
    declared: Mapping[str, bool] = NOTHING_DECLARED,
) -> list[Relation]:
    """Return the relations between the columns of the real rows.

    Args:
        columns: Columns of the stacked real tables, in the order of the table.
        subject_codes: Subject of each row, int64 (n,).
        declared: Relations by name. True: it is kept also if it may hold by chance, and generators
            that state an epsilon use it. False: it is left out.

    Returns:
        Orders, then codes, then gaps, each in the order of the table, then further declared
        relations.

    Raises:
        ConfigError: If a declared name is not a relation of two columns, or real rows break the
            relation.
    """
    by_name = columns_by_name(columns)
    switched_on = dict[str, Relation]()
    switched_off = set[str]()
    for name, is_on in declared.items():
        relation = _parsed(name, by_name)
        if is_on:
            switched_on[relation.name] = relation
        else:
            switched_off.add(relation.name)

    codes = []
    code_of = dict[str, str]()
    for code in _find_codes(columns, subject_codes):
        if code.name not in switched_off:
            codes.append(code)
            code_of[code.second] = code.first
    relations = dict[str, Relation]()
    for relation in _find_orders(columns, subject_codes):
        relations[relation.name] = relation
    for relation in (*codes, *_find_gaps(columns, subject_codes, code_of)):
        relations[relation.name] = relation
    relations |= switched_on
    for name in switched_off:
        relations.pop(name, None)
    return [_with_determined(relation, by_name) for relation in relations.values()]


def orders_of(relations: Iterable[Relation]) -> set[tuple[str, str]]:
    """Return the pairs of columns with an order, the lower one first, also through other
    columns.
    """
    pairs = set[tuple[str, str]]()
    for relation in relations:
        if relation.kind == "order":
            pairs.add((relation.first, relation.second))
    return closure(pairs)


def closure(pairs: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return the pairs, and (a, c) for each (a, b) and (b, c)."""
    closed = set(pairs)
    n_before = -1
    while len(closed) > n_before:
        n_before = len(closed)
        for low, middle in list(closed):
            for start, high in list(closed):
                if start == middle:
                    closed.add((low, high))
    return closed


def _parsed(name: str, columns: Mapping[str, Column]) -> Relation:
    """Return the declared relation of a name. Names of columns may contain the signs.

    Raises:
        ConfigError: If it is not a relation of two columns.
    """
    kinds: tuple[tuple[RelationKind, str], ...] = (
        ("order", " <= "),
        ("gap", " -> gaps of "),
        ("code", " -> "),
    )
    unknown = ""
    for kind, sign in kinds:
        parts = name.split(sign)
        for n_first in range(1, len(parts)):
            first = sign.join(parts[:n_first])
            second = sign.join(parts[n_first:])
            if first in columns and second in columns and first != second:
                return Relation(kind, first, second, is_declared=True)
            for part in (first, second):
                if not unknown and part not in columns:
                    unknown = part
    if unknown:
        hint = near_name(unknown, columns)
        text = (
            f"relations: {safe_repr(name)} names {safe_repr(unknown)}, which is not a published"
            " column."
        )
        raise ConfigError(f"{text} Fix: write two columns of the table without the subject.{hint}")
    fix = (
        "Fix: write a relation of two columns of the table, such as 'start <= end' or 'postcode"
        " -> town'"
    )
    raise ConfigError(f"relations: {safe_repr(name)} is not a relation of two columns. {fix}.")


def _with_determined(relation: Relation, columns: Mapping[str, Column]) -> Relation:
    """Return the relation with the values that determine others.

    Raises:
        ConfigError: If it is declared, and real rows break it or its columns have another kind.
    """
    first = columns[relation.first]
    second = columns[relation.second]
    if relation.is_declared:
        _check_declared(relation, first, second)
    return relation.of_rows(first, second)


def _check_declared(relation: Relation, first: Column, second: Column) -> None:
    name = safe_repr(relation.name)
    if relation.kind == "order":
        has_categories = first.kind in _CODED or second.kind in _CODED
        n_times = [first.kind, second.kind].count("datetime")
        if has_categories or n_times == 1:
            raise ConfigError(
                f"relations: {name} needs two columns of numbers, or two of times. Fix: remove it."
            )
    if relation.kind == "code" and first.kind not in _CODED:
        raise ConfigError(f"relations: {name} needs a first column of categories. Fix: remove it.")
    is_broken = _is_broken_by_real_rows(relation, first, second)
    if is_broken.any():
        rows = f"{int(is_broken.sum()):,} of {len(is_broken):,} real rows break {name}"
        raise ConfigError(f"relations: {rows}. Fix: correct these rows, or remove the relation.")


def _is_broken_by_real_rows(relation: Relation, first: Column, second: Column) -> np.ndarray:
    """Return True for rows out of order, and for those without the most frequent answer of their
    value, bool (n,).
    """
    if relation.kind == "order":
        return relation.is_broken(first, second)
    codes = _FirstCodes.of(first).codes
    answers = _AnswerCodes.of(relation.kind, second).codes
    rows = pd.DataFrame({"code": codes, "answer": answers})
    by_frequency = rows.value_counts().reset_index()
    expected = by_frequency.drop_duplicates("code").set_index("code")["answer"]
    is_broken = rows["answer"].to_numpy() != expected.loc[rows["code"]].to_numpy()
    if relation.kind == "code":
        is_broken &= ~first.missing
    return np.asarray(is_broken)


def determines(first: Column, second: Column, subject_codes: np.ndarray) -> bool:
    """Return True if each value of a category has one value of another category, and this does not
    hold by chance.

    Args:
        first: Column of categories.
        second: Another column of categories of the same rows.
        subject_codes: Subject of each row, int64 (n,).
    """
    return _Groups.of_values(first).determines(_answers_of(second), subject_codes)


# --- orders
# --------------------------------------------------------------------------------------------------


def _find_orders(columns: Sequence[Column], subject_codes: np.ndarray) -> list[Relation]:
    numbers = []
    times = []
    for column in columns:
        if column.kind in ("numeric", "integer"):
            numbers.append(column)
        elif column.kind == "datetime":
            times.append(column)
    pairs = set[tuple[str, str]]()
    for low_column, high_column in (*_possible_orders(numbers), *_possible_orders(times)):
        is_mutual = (high_column.name, low_column.name) in pairs  # equal columns
        if not is_mutual and _is_order(low_column, high_column, subject_codes):
            pairs.add((low_column.name, high_column.name))
    by_name = columns_by_name(columns)
    positions = position_of_each(by_name)
    orders = []
    for low, high in sorted(pairs, key=lambda pair: (positions[pair[0]], positions[pair[1]])):
        if not _follows_from_others(by_name[low], by_name[high], pairs, by_name):
            orders.append(Relation("order", low, high))
    return orders


def _possible_orders(columns: Sequence[Column]) -> Iterator[tuple[Column, Column]]:
    """Yield the pairs of columns whose first rows are in order."""
    if len(columns) < 2:
        return
    first_rows = stacked_floats(columns, slice(_FIRST_ROWS))
    for low, low_cells in zip(columns, first_rows, strict=True):
        is_possible = ~(low_cells > first_rows).any(axis=1)
        for position in np.flatnonzero(is_possible):
            high = columns[int(position)]
            if high is not low:
                yield low, high


def _is_order(low: Column, high: Column, subject_codes: np.ndarray) -> bool:
    """Return True if no row breaks the order, and this does not hold by chance."""
    has_both = ~(low.missing | high.missing)
    low_cells = low.cells[has_both]
    high_cells = high.cells[has_both]
    if (low_cells > high_cells).any():
        return False
    n_subjects = len(distinct_sorted(subject_codes[has_both]))
    if n_subjects < _MIN_PEOPLE:
        return False
    n_smaller = np.searchsorted(np.sort(high_cells), low_cells, side="left")
    share_if_shuffled = float(n_smaller.mean()) / len(high_cells)
    return _is_no_coincidence(share_if_shuffled, n_subjects)


def differs_if_shuffled(cells: np.ndarray, n_subjects: int) -> bool:
    """Return True if shuffling a column of numbers would change enough rows.

    It then agrees with another column not by chance.

    Args:
        cells: Numbers without missing values, float64 (n,).
        n_subjects: Number of people that have them.
    """
    if n_subjects < _MIN_PEOPLE:
        return False
    _, counts = np.unique(cells, return_counts=True)
    shares = counts / counts.sum()
    return _is_no_coincidence(1.0 - float((shares**2).sum()), n_subjects)


def _is_no_coincidence(share_if_shuffled: float, n_subjects: float) -> bool:
    return share_if_shuffled >= _MIN_SHARE and share_if_shuffled * n_subjects >= _MIN_BROKEN


def _follows_from_others(
    low: Column, high: Column, pairs: set[tuple[str, str]], columns: Mapping[str, Column]
) -> bool:
    """Return True if a column is between both in all rows that have both."""
    has_both = ~(low.missing | high.missing)
    for middle, upper in pairs:
        is_between = upper == high.name and middle != low.name and (low.name, middle) in pairs
        if not is_between:
            continue
        if not (has_both & columns[middle].missing).any():
            return True
    return False


# --- codes and gaps
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Groups:
    """Rows by the value of a column that may determine others.

    Attributes:
        name: Name of the column.
        codes: Group of each row, int64 (n,); -1: the row does not count.
        n_groups: Number of groups.
    """

    name: str
    codes: np.ndarray
    n_groups: int

    @classmethod
    def of_values(cls, column: Column) -> _Groups:
        """Group the rows with a category or boolean by their value."""
        return cls(column.name, column.cells.astype(np.int64), len(column.values or ()))

    @classmethod
    def of_missing(cls, column: Column) -> _Groups:
        """Group the rows by whether the value is missing, and those of a category or boolean by
        their value as well.
        """
        if column.kind not in _CODED:
            return cls(column.name, column.missing.astype(np.int64), 2)
        return cls(column.name, column.cells.astype(np.int64) + 1, len(column.values or ()) + 1)

    def determines(self, answers: np.ndarray, subject_codes: np.ndarray) -> bool:
        """Return True if all rows of a group have the same answer, and this does not hold by
        chance.

        Args:
            answers: Codes of the other column, int64 (n,), from 0.
            subject_codes: Subject of each row, int64 (n,).
        """
        if not self.is_function(answers[:_FIRST_ROWS]) or not self.is_function(answers):
            return False
        has_group = self.codes >= 0
        groups = self.codes[has_group]
        holders = subject_codes[has_group]
        n_holders = count_holders(groups, holders, self.n_groups)
        is_repeated = n_holders[groups] > 1
        n_subjects = len(distinct_sorted(holders[is_repeated]))
        if n_subjects < _MIN_PEOPLE:
            return False
        n_answers = int(answers.max(initial=0)) + 1
        shares = np.bincount(answers[has_group], minlength=n_answers) / has_group.sum()
        share_if_shuffled = 1.0 - float((shares**2).sum())
        # The first person of a group agrees with themself.
        n_free = int((n_holders[n_holders > 1] - 1).sum())
        if share_if_shuffled * n_free < _MIN_SHARE * int(n_holders.sum()):
            return False
        return _is_no_coincidence(share_if_shuffled, n_free)

    def is_function(self, answers: np.ndarray) -> bool:
        """Return True if the rows of each group have the same answer.

        Args:
            answers: Codes of the other column in all rows or in the first ones, int64, from 0.
        """
        codes = self.codes[: len(answers)]
        has_group = codes >= 0
        groups = codes[has_group]
        n_answers = int(answers.max(initial=0)) + 1
        combinations = distinct_sorted(groups * n_answers + answers[has_group])
        return len(combinations) == len(distinct_sorted(groups))


def _find_codes(columns: Sequence[Column], subject_codes: np.ndarray) -> list[Relation]:
    groups = []
    for column in columns:
        if column.kind in _CODED:
            groups.append(_Groups.of_values(column))
    # The column with fewest values comes first: if a postcode determines a town, and this a state,
    # the town is taken.
    groups.sort(key=lambda group: group.n_groups)
    determined_by = dict[str, str]()
    for column in columns:
        first_answers = _answers_of(column.take(slice(_FIRST_ROWS)))
        possible = []
        for group in groups:
            if _ends_in(determined_by, group.name, column.name):
                continue
            if group.is_function(first_answers):
                possible.append(group)
        if not possible:
            continue
        answers = _answers_of(column)
        for group in possible:
            if group.determines(answers, subject_codes):
                determined_by[column.name] = group.name
                break
    return _in_order(columns, determined_by, "code")


def _answers_of(column: Column) -> np.ndarray:
    """Return the code of each value, from 0, int64 (n,). Missing is a value."""
    return _AnswerCodes.of("code", column).codes


def _ends_in(determined_by: Mapping[str, str], start: str, end: str) -> bool:
    """Return True if ``end`` is ``start`` or determines it, also through other columns."""
    name = start
    while name != end:
        if name not in determined_by:
            return False
        name = determined_by[name]
    return True


def _find_gaps(
    columns: Sequence[Column], subject_codes: np.ndarray, code_of: Mapping[str, str]
) -> list[Relation]:
    """Return the gaps that do not follow from codes.

    Args:
        columns: Columns of the stacked real tables.
        subject_codes: Subject of each row, int64 (n,).
        code_of: The column that determines each determined column.
    """
    # Categories come before numbers, of which only the gaps count, and columns with few values
    # before those with many.
    in_order = sorted(
        columns, key=lambda column: (column.kind not in _CODED, len(column.values or ()))
    )
    groups = [_Groups.of_missing(column) for column in in_order]
    determined_by = dict[str, str]()
    for column in columns:
        is_missing = column.missing
        if not is_missing.any() or is_missing.all():
            continue
        answers = is_missing.astype(np.int64)
        for group in groups:
            if _ends_in(determined_by, group.name, column.name):
                continue
            if group.determines(answers, subject_codes):
                determined_by[column.name] = group.name
                break
    for name, first in list(determined_by.items()):
        if code_of.get(name) == first:  # follows from the code
            del determined_by[name]
    return _in_order(columns, determined_by, "gap")


def _in_order(
    columns: Sequence[Column], determined_by: Mapping[str, str], kind: RelationKind
) -> list[Relation]:
    relations = []
    for column in columns:
        if column.name in determined_by:
            relations.append(Relation(kind, determined_by[column.name], column.name))
    return relations
