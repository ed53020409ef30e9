"""Threshold rule: each published cell belongs to a group of values that at least ``min_holders``
people of the real tables have, and shows one value for the whole group.

People are subjects, or rows without a subject column; the modules of the rule call their minimum
number k. A value is rare if fewer than k people have it in all real tables of a release together.
Instead of it, the release has

- for a category: a declared prefix, ``other`` (a missing value if categories are not text), or the
  most frequent category, and for a boolean the most frequent one (:mod:`.published_categories`),
- for a number or time: the published value of a group of neighboring values
  (:mod:`.published_numbers`). Ordered columns may share their groups (:mod:`.ordered_columns`),
- for a missing value: the most frequent published category or boolean, or the published value of
  the median,
- for all values, if fewer than k people have any value of the column: missing values.

A frequent value can change, too: if a prefix or ``other`` has fewer than k people, the rarest
frequent category joins it, and of values in ordered columns with shared groups, only those stay
that are frequent in each column that has them.

:func:`without_rare_values` makes the rule once. :meth:`.ColumnRule.apply` applies it to the real
tables and to the synthetic table before training and scoring, so that a copied row is still a copy.
Exceptions are public lists with a source, generated columns, and numbers with public bounds of a
generator that states an epsilon. See docs/columns.md#rare-values.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from privacy_assets.errors import ConfigError, safe_repr
from privacy_assets.tables.column import (
    Column,
    columns_named,
    count_changed,
    distinct_sorted,
    ranked,
    stacked,
)
from privacy_assets.tables.column_rule import ColumnRule, listed_values, reach_of
from privacy_assets.tables.conversion import float_dtype
from privacy_assets.tables.declared import NOTHING, Declared
from privacy_assets.tables.ordered_columns import (
    NumberColumn,
    OrderedPair,
    broken_pairs,
    share_groups,
)
from privacy_assets.tables.precision import Precision, decimals_of, unit_of, whole_decimals_of
from privacy_assets.tables.published_categories import (
    OTHER,
    RealCategories,
    count_holders,
    recode,
    recode_booleans,
)
from privacy_assets.tables.published_numbers import ValueGroups
from privacy_assets.tables.relations import Relation
from privacy_assets.tables.schema import ColumnSchema, TableSchema, yaml_text
from privacy_assets.tables.sums import find_sums
from privacy_assets.tables.table import (
    Table,
    person_codes_of,
    stacked_column,
    stacked_columns,
    subject_codes_of,
)

_MAX_REPLACED_SHARE = 0.2  # share of replaced cells above which the note suggests prefixes
_PREFIXES = (5, 3, 1)  # suggested lengths
_NAMED = 3  # sets of columns that share values, and pairs with a broken order, named in notes


@dataclass(frozen=True, eq=False)
class ThresholdRule:
    """Rules of the columns of a release.

    Attributes:
        columns: Rules by column. Columns without a rule are published as they are.
        min_holders: Minimum number of subjects that share a published value.
        bounded: Columns of numbers that stay as they are, because their bounds are public.
        shared: Names of the columns that share their groups, in each set of such columns.
        broken: Ordered pairs of columns whose order the rule breaks in some real rows.
    """

    columns: Mapping[str, ColumnRule]
    min_holders: int
    bounded: Sequence[str] = ()
    shared: Sequence[tuple[str, ...]] = ()
    broken: Sequence[OrderedPair] = ()


def without_rare_values(
    tables: Mapping[str, Table],
    min_holders: int,
    declared: Declared = NOTHING,
    bounded: Collection[str] = (),
) -> dict[str, Table]:
    """Apply the threshold rule to the real tables of a release, see the module.

    Args:
        tables: Real tables by role.
        min_holders: Minimum number of people that share a published value.
        declared: Declarations about columns.
        bounded: Columns of numbers with public bounds of a generator that states an epsilon.

    Returns:
        The tables, with their rules, and with notes for the report.

    Raises:
        ConfigError: If prefixes are declared for a column that is not text.
    """
    schema = tables["train"].schema
    relations = tables["train"].relations
    prefixes = declared.prefix_lengths
    _check_have_text(schema, prefixes)
    real = list(tables.values())
    subject_codes = person_codes_of(real)
    parts = dict[str, list[Column]]()
    for name in schema.names:
        parts[name] = columns_named(name, real)
    rule = _make_rule(schema, parts, subject_codes, min_holders, prefixes, bounded, relations)
    notes = [*_notes_of(rule, schema, prefixes), *_sum_notes(real, subject_codes)]
    after_rule = _after_rule(tables, rule, notes)
    relations = _published_relations(relations, list(after_rule.values()), min_holders)
    published_tables = {}
    for role, table in after_rule.items():
        published_tables[role] = replace(table, relations=relations)
    return published_tables


def _check_have_text(schema: TableSchema, names: Iterable[str]) -> None:
    """Raise ConfigError if a column with declared prefixes is not text."""
    for name in names:
        if not _is_text(schema, name):
            raise ConfigError(
                f"prefix_lengths: column {name!r} has no text. Fix: remove it from prefix_lengths."
            )


def _after_rule(
    tables: Mapping[str, Table], rule: ThresholdRule, notes: Sequence[str]
) -> dict[str, Table]:
    """Return the real tables by role with published values, additional notes and the rules."""
    columns = []
    for column in tables["train"].schema.columns:
        columns.append(_published_schema(column, rule.columns.get(column.name)))
    schema = TableSchema(tuple(columns))
    after_rule = {}
    for role, table in tables.items():
        published = table.without_rare(rule.columns).with_schema(schema)
        compact = published.map(Column.compact)
        after_rule[role] = replace(compact, notes=(*table.notes, *notes), rules=rule.columns)
    return after_rule


def _sum_notes(tables: Sequence[Table], subject_codes: np.ndarray) -> list[str]:
    """Return a sentence for each column that is the sum of others before the threshold rule.

    Args:
        tables: Real tables before the rule.
        subject_codes: Subject of each row of the stacked tables, int64 (n,).
    """
    notes = []
    for column_sum in find_sums(stacked_columns(tables), subject_codes):
        total = column_sum.total
        drop = yaml_text({"drop": [total]})
        notes.append(
            f"In all real rows, {column_sum.name}. Published rows need not add up. Fix: drop"
            f" {safe_repr(total)} (data: {drop}), and compute it after reading."
        )
    return notes


def _published_relations(
    relations: Iterable[Relation], published: Sequence[Table], min_holders: int
) -> tuple[Relation, ...]:
    """Return the relations with the values that determine others after the threshold rule.

    The rule itself breaks some orders in a few rows. Generators keep these as well.

    Args:
        relations: Relations of the real rows.
        published: Real tables after the rule.
        min_holders: Minimum number of people with a value that determines another. A public list
            may keep rarer ones.
    """
    subject_codes = subject_codes_of(published)
    after_rule = []
    for relation in relations:
        first = stacked_column(published, relation.first)
        second = stacked_column(published, relation.second)
        after_rule.append(relation.of_rows(first, second, subject_codes, min_holders))
    return tuple(after_rule)


def _make_rule(
    schema: TableSchema,
    parts: Mapping[str, Sequence[Column]],
    subject_codes: np.ndarray,
    min_holders: int,
    prefixes: Mapping[str, Sequence[int]],
    bounded: Collection[str] = (),
    relations: Sequence[Relation] = (),
) -> ThresholdRule:
    """Make the rule of the columns of a release, without generated ones.

    Args:
        schema: Schema with the role of each column.
        parts: Each column in each real table.
        subject_codes: Subject of each row of the stacked tables, int64 (n,).
        min_holders: Minimum number of subjects that share a published value.
        prefixes: Lengths of the prefixes to which rare categories may be shortened, by column.
        bounded: Columns of numbers with public bounds of a generator that states an epsilon. They
            stay as they are.
        relations: Relations of the real rows, whose orders are kept where possible.

    Returns:
        The rules, in the order of the schema.
    """
    rules = dict[str, ColumnRule]()
    numbers = dict[str, NumberColumn]()
    without_list = list[NumberColumn]()
    for column in schema.evaluated.columns:
        name = column.name
        if name in bounded:
            continue
        real_column = stacked(parts[name])
        if column.kind in ("categorical", "boolean"):
            lengths = prefixes.get(name, ())
            rules[name] = _category_rule(column, real_column, subject_codes, min_holders, lengths)
        else:
            public = _public_cells(column)
            number = NumberColumn.of(column, real_column, subject_codes, min_holders, public)
            numbers[name] = number
            if not column.source:
                without_list.append(number)

    sharing = share_groups(without_list, min_holders, relations)
    for name, number in numbers.items():
        groups = sharing.groups.get(name, number.groups)
        rules[name] = _number_rule(number, groups, min_holders)

    rules_in_order = dict[str, ColumnRule]()
    bounded_in_order = list[str]()
    for name in schema.names:
        if name in rules:
            rules_in_order[name] = rules[name]
        if name in bounded:
            bounded_in_order.append(name)
    published = dict[str, Column]()
    for pair in sharing.ordered:
        for name in (pair.low, pair.high):
            if name not in published:
                published[name] = rules[name].apply(numbers[name].column)
    broken = broken_pairs(sharing.ordered, published)
    return ThresholdRule(
        rules_in_order, min_holders, tuple(bounded_in_order), sharing.shared, broken
    )


def _category_rule(
    column: ColumnSchema,
    real_column: Column,
    subject_codes: np.ndarray,
    min_holders: int,
    prefixes: Sequence[int],
) -> ColumnRule:
    (codes,), distinct = ranked([real_column])
    values = distinct.objects()
    n_public = 0
    if column.kind == "boolean":
        codes = real_column.cells.astype(np.int64)
        real = RealCategories([False, True], codes, subject_codes)
        recoding: dict[Any, Any] = dict(recode_booleans(real, min_holders))
    else:
        listed = listed_values(column).objects() if column.allowed_values else []
        public = set(listed) if column.source else set()
        synthetic_only = dict.fromkeys([*listed, OTHER])
        for value in values:
            synthetic_only.pop(value, None)
        real = RealCategories([*values, *synthetic_only], codes, subject_codes)
        rare_name = OTHER if _holds_text(column.dtype) else None
        recoding = recode(real, min_holders, rare_name=rare_name, prefixes=prefixes, public=public)
        for i, value in enumerate(values):
            n_public += value in public and real.n_holders([i]) < min_holders

    missing_as = recoding.pop(None)
    rule = ColumnRule(
        recoding,
        missing_as=missing_as,
        real_precision=column.precision,
        n_rows=int((codes >= 0).sum()),
    )
    return replace(
        rule,
        n_replaced_values=sum(recoding[value] != value for value in values),
        n_changed=count_changed(real_column, rule.apply(real_column)),
        n_public=n_public,
    )


def _number_rule(number: NumberColumn, groups: ValueGroups, min_holders: int) -> ColumnRule:
    schema = number.schema
    real_column = number.column
    n_rows = int((~real_column.missing).sum())
    rule = ColumnRule(groups=groups, real_precision=schema.precision, n_rows=n_rows)
    if len(groups) == 0:
        return replace(rule, n_changed=n_rows)
    rule = replace(rule, reach=reach_of(schema, [real_column]))
    n_missing_holders = len(distinct_sorted(number.subject_codes[real_column.missing]))
    if n_missing_holders < min_holders:
        rule = replace(rule, missing_as=_published_median(number, groups))
    published = rule.apply(real_column)
    return replace(
        rule,
        n_changed=count_changed(real_column, published),
        mean_change=_mean_change(real_column, published),
        n_public=_count_rare_public(number, min_holders),
    )


def _mean_change(before: Column, after: Column) -> float:
    """Return the mean change of the cells that are not missing before, in their standard
    deviations.
    """
    is_present = ~before.missing
    old = before.floats()[is_present]
    new = after.floats()[is_present]
    largest = float(np.abs(old).max())
    if largest == 0:
        return 0.0
    deviation = float(np.std(old / largest))  # the square of a large number overflows
    if not deviation > 0:
        return 0.0
    change = float(np.abs(new / largest - old / largest).mean())
    return change / deviation


def _count_rare_public(number: NumberColumn, min_holders: int) -> int:
    """Return the number of values of a public list that at least one person has, but too few."""
    public = _public_cells(number.schema)
    if public is None:
        return 0
    values, n_holders = _holders_of_numbers(number)
    is_rare = n_holders < min_holders
    return int((np.isin(values, public) & is_rare).sum())


def _holders_of_numbers(number: NumberColumn) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct values, ascending, and the number of subjects that have each; both
    (v,).
    """
    present = number.present
    values, codes = np.unique(present.cells, return_inverse=True)
    return values, count_holders(codes, present.subject_codes, len(values))


def _published_median(number: NumberColumn, groups: ValueGroups) -> Any:
    """Return the published value of the median (of two, the lower one). Each subject counts once
    for each value.
    """
    values, n_holders = _holders_of_numbers(number)
    n_up_to = np.cumsum(n_holders)
    median = values[np.searchsorted(n_up_to, n_up_to[-1] / 2)]
    return groups.replace(np.array([median]))[0].item()


def _public_cells(column: ColumnSchema) -> np.ndarray | None:
    """Return the numbers of a public list, or None if the column has none."""
    if not column.source:
        return None
    return listed_values(column).cells


def _is_text(schema: TableSchema, name: str) -> bool:
    """Return True if ``name`` is a category of the schema, with a dtype that can contain
    ``other``.
    """
    return name in schema.of_kind("categorical") and _holds_text(schema[name].dtype)


def _holds_text(dtype: str) -> bool:
    pandas_dtype = pd.api.types.pandas_dtype(dtype)
    is_number = pd.api.types.is_numeric_dtype(pandas_dtype)
    return not (is_number or pd.api.types.is_datetime64_any_dtype(pandas_dtype))


def _published_schema(column: ColumnSchema, rule: ColumnRule | None) -> ColumnSchema:
    """Return the schema of a column after :meth:`.ColumnRule.apply`.

    Args:
        column: Schema of the real column.
        rule: Its rule, whose groups decide the precision. None: the column is unchanged.
    """
    if rule is None:
        return column
    recoding = rule.recoding or {}
    becomes_missing = rule.is_hidden or None in recoding.values()
    stays_missing = column.nullable and rule.missing_as is None
    nullable = becomes_missing or stays_missing
    return replace(column, precision=_precision(column, rule), nullable=nullable)


def _precision(column: ColumnSchema, rule: ColumnRule) -> Precision:
    if rule.groups is None or len(rule.groups) == 0:
        return column.precision
    published = rule.groups.published
    if column.kind == "datetime":
        return unit_of(published)
    if column.kind == "integer":
        return whole_decimals_of(published)
    return decimals_of(published, float_dtype(column.dtype))


def real_schema(schema: TableSchema, rules: Mapping[str, ColumnRule]) -> TableSchema:
    """Return a schema with the precision of the real values.

    Args:
        schema: Schema after the threshold rule.
        rules: Rules by column.
    """
    columns = []
    for column in schema.columns:
        rule = rules.get(column.name)
        if rule is not None:
            column = replace(column, precision=rule.real_precision)
        columns.append(column)
    return TableSchema(tuple(columns))


def outside_guarantee(rules: Mapping[str, ColumnRule]) -> list[str]:
    """Return what the rules read from the real values without noise, for generators with a
    guarantee.
    """
    if not rules:
        return []
    names = ", ".join(map(safe_repr, rules))
    return [f"published values of {names}"]


def _notes_of(
    rule: ThresholdRule, schema: TableSchema, shortened: Collection[str] = ()
) -> list[str]:
    """Return sentences for the report about what the rule changes, and about its exceptions. They
    contain no value.

    Args:
        rule: Rule of the columns.
        schema: Schema of the table.
        shortened: Columns with declared prefixes.
    """
    notes = [*_column_notes(rule), *_order_notes(rule), *_exception_notes(rule, schema)]
    suggested = _suggested_prefixes(rule.columns, shortened)
    if suggested:
        names = ", ".join(map(safe_repr, suggested))
        setting = yaml_text({"prefix_lengths": suggested})
        notes.append(
            f"More than a fifth of {names} is replaced. If these are codes whose first characters"
            f" have a meaning, prefixes keep more (data: {setting})."
        )
    return notes


def _column_notes(rule: ThresholdRule) -> Iterator[str]:
    """State how much of each column the rule changes."""
    few = f"fewer than {rule.min_holders} people"
    hidden = list[str]()
    recoded = list[str]()
    mean_changes = list[float]()
    for name, column in rule.columns.items():
        if column.is_hidden:
            hidden.append(safe_repr(name))
        elif column.n_changed and column.recoding is not None:
            values = _counted(column.n_replaced_values, "value")
            cells = _counted(column.n_changed, "cell")
            recoded.append(f"{safe_repr(name)} ({values}, {cells})")
        elif column.n_changed:
            mean_changes.append(column.mean_change)
    if hidden:
        names = ", ".join(hidden)
        yield f"Columns in which {few} have a value are published without values: {names}."
    if recoded:
        columns = ", ".join(recoded)
        yield (
            f'Categories that {few} have are published as "{OTHER}", a shorter code, the most'
            f" frequent value or a missing value: {columns}."
        )
    if mean_changes:
        columns = f"{len(mean_changes)} columns"
        if len(mean_changes) == 1:
            columns = "1 column"
        yield (
            f"Numbers and times are published as values that at least {rule.min_holders} people"
            f" share. The mean change is at most {max(mean_changes):.2g} standard deviations"
            f" ({columns})."
        )


def _counted(n: int, noun: str) -> str:
    plural = "" if n == 1 else "s"
    return f"{n:,} {noun}{plural}"


def changes_of(rules: Mapping[str, ColumnRule]) -> dict[str, str]:
    """Return the change of each column in the real tables as a text for the report, without
    values.
    """
    changes = {}
    for name, rule in rules.items():
        share = f"{rule.n_changed / max(rule.n_rows, 1):.1%} of the cells changed"
        if rule.is_hidden:
            changes[name] = "published without values"
        elif rule.groups is not None and rule.n_changed:
            changes[name] = f"{share}, by {rule.mean_change:.2g} standard deviations on average"
        else:
            changes[name] = share
    return changes


def _order_notes(rule: ThresholdRule) -> Iterator[str]:
    """Name the columns that share their values, and those whose order the rule breaks most."""
    for names in rule.shared[:_NAMED]:
        listed = ", ".join(map(safe_repr, names))
        yield (
            "These columns share their published values, because they have an order in all rows:"
            f" {listed}."
        )
    by_share = sorted(rule.broken, key=lambda pair: -pair.n_broken / pair.n_rows)
    for pair in by_share[:_NAMED]:
        share = pair.n_broken / pair.n_rows
        yield (
            f"In the real tables, {safe_repr(pair.low)} is never above {safe_repr(pair.high)}."
            f" With published values, it is above in {share:.2%} of the rows."
        )
    n_unnamed = len(rule.shared[_NAMED:]) + len(rule.broken[_NAMED:])
    if n_unnamed:
        yield (
            f"There are {n_unnamed} more sets of columns that share values, or whose order is"
            " broken in fewer rows."
        )


def _exception_notes(rule: ThresholdRule, schema: TableSchema) -> Iterator[str]:
    """Name the columns in which a value may belong to fewer people."""
    n_public = dict[str, int]()
    for name, column_rule in rule.columns.items():
        if column_rule.n_public:
            n_public[name] = column_rule.n_public
    if n_public:
        columns = _names_with_counts(n_public)
        yield f"Rare values are kept, because a public list contains them: {columns}."
    if rule.bounded:
        columns = ", ".join(map(safe_repr, rule.bounded))
        yield (
            "Numbers are kept, because the generator states an epsilon and their bounds are"
            f" public: {columns}."
        )
    if schema.generated:
        columns = ", ".join(map(safe_repr, schema.generated))
        yield f"Values are kept, because they are declared as new: {columns}."


def _suggested_prefixes(
    rules: Mapping[str, ColumnRule], shortened: Collection[str]
) -> dict[str, list[int]]:
    """Return the lengths of prefixes that could keep more of each column of rare codes."""
    suggested = dict[str, list[int]]()
    for name, rule in rules.items():
        if name in shortened or rule.recoding is None or rule.is_hidden:
            continue
        if rule.n_changed <= _MAX_REPLACED_SHARE * rule.n_rows:
            continue
        longest = 0
        for value, published in rule.recoding.items():
            if value != published and isinstance(value, str):
                longest = max(longest, len(value))
        if longest > 1:
            suggested[name] = [length for length in _PREFIXES if length < longest]
    return suggested


def replaced_note(counts: Mapping[str, int]) -> list[str]:
    """Return a sentence for the report on the categories that were replaced in the synthetic table,
    if any.
    """
    if not counts:
        return []
    columns = _names_with_counts(counts)
    return [f"Categories of the synthetic table were replaced in the same way: {columns}."]


def _names_with_counts(counts: Mapping[str, int]) -> str:
    names = []
    for name, count in counts.items():
        names.append(f"{safe_repr(name)} ({count:,})")
    return ", ".join(names)
