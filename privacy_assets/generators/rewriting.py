"""Columns with relations, rewritten so that a generator keeps the relations.

The generator is trained on

- the distance of a column from the columns that bound it, as a difference or a ratio, in place of
  the column,
- a determined column only where it is free, such as in rows whose code is ``other``.

Its rows are changed back: distances are added, determined values looked up, and gaps made and
filled. Published values of the threshold rule stay published values, and no value leaves the range
of its column.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd

from privacy_assets.generators.base import (
    CodedGenerator,
    FittedGenerator,
    Training,
    read_arrays,
    read_manifest,
    write_arrays,
)
from privacy_assets.tables.column import DAY, Column, distinct_sorted
from privacy_assets.tables.column_rule import ColumnRule, load_rules, save_rules
from privacy_assets.tables.conversion import rounded
from privacy_assets.tables.relations import Relation, closure, orders_of
from privacy_assets.tables.schema import ColumnSchema, TableSchema
from privacy_assets.tables.table import Table

Form = Literal["above", "share below", "below", "share above", "between"]
_REWRITTEN = "rewritten"  # folder of the generator of the rewritten columns
_RULES = "rules.npz"
_MIN_DRAWN = 1_000  # rows among which there is a value for each gap that must be filled


@dataclass(frozen=True, eq=False)
class OrderedColumn:
    """A number or time that is trained as its distance from earlier columns.

    Attributes:
        name: Name.
        lows: Earlier columns that are never above it.
        highs: Earlier columns that are never below it.
        form: What is trained instead of the value c between its bounds L and U: "above" c - L,
            "share below" L / c, "below" U - c, "share above" c / U, "between" (c - L) / (U - L).
        levels: Distinct values of the training rows, ascending.
    """

    name: str
    lows: tuple[str, ...]
    highs: tuple[str, ...]
    form: Form
    levels: np.ndarray

    @classmethod
    def of(
        cls, train: Table, name: str, lows: Sequence[str], highs: Sequence[str]
    ) -> OrderedColumn:
        """Create the rewriting of a column with the form that depends least on its bound.

        Args:
            train: Training rows.
            name: Column, with at least one value.
            lows: Earlier columns that are never above it.
            highs: Earlier columns that are never below it.
        """
        levels = distinct_sorted(train[name].present().floats())
        column = cls(name, tuple(lows), tuple(highs), "between", levels)
        if lows and highs:
            return column
        difference = replace(column, form="above" if lows else "below")
        if train[name].kind == "datetime":
            return difference  # the ratio of two dates has no meaning
        ratio = replace(column, form="share below" if lows else "share above")
        low, high = column.bounds(train.columns)
        value = train[name].floats()
        is_present = ~np.isnan(value)
        if lows:
            bound = low
            divisor = value
        else:
            bound = high
            divisor = high
        if not (divisor[is_present] > 0).all() or (low[is_present] < 0).any():
            return difference
        bound = bound[is_present]
        dependence = {}
        for candidate in (difference, ratio):
            distances = candidate.distances(value, low, high)[is_present]
            dependence[candidate.form] = abs(_rank_correlation(distances, bound))
        return ratio if dependence[ratio.form] < dependence[difference.form] else difference

    def bounds(self, columns: Mapping[str, Column]) -> tuple[np.ndarray, np.ndarray]:
        """Return the bounds of each row.

        Without a value in a bounding column, the range of the column is the bound.

        Args:
            columns: Columns that include the bounding ones.

        Returns:
            The largest lower and the smallest upper bound, float64 of shape (n,) each.
        """
        n_rows = len(next(iter(columns.values())))
        low = np.full(n_rows, self.levels[0])
        high = np.full(n_rows, self.levels[-1])
        for name in self.lows:
            low = np.fmax(low, columns[name].floats())
        for name in self.highs:
            high = np.fmin(high, columns[name].floats())
        return low, high

    def distances(self, value: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Return what is trained instead of the values.

        Args:
            value: Values of the column, float64 of shape (n,). NaN: missing.
            low: Lower bounds, shape (n,).
            high: Upper bounds, shape (n,).

        Returns:
            float64 of shape (n,); the attribute ``form`` describes it.
        """
        if self.form == "above":
            return value - low
        if self.form == "below":
            return high - value
        if self.form == "share below":
            return low / value
        if self.form == "share above":
            return value / high
        width = high - low
        share = np.full(len(value), 0.5)
        np.divide(value - low, width, out=share, where=width > 0)
        return np.where(np.isnan(value), np.nan, share)

    def values(self, distances: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Return the values of distances, within the bounds; inverse of :meth:`distances`.

        Args:
            distances: Distances, float64 of shape (n,). NaN: missing.
            low: Lower bounds, shape (n,).
            high: Upper bounds, shape (n,).

        Returns:
            float64 of shape (n,).
        """
        if self.form == "above":
            value = low + distances
        elif self.form == "below":
            value = high - distances
        elif self.form == "share below":
            value = np.full(len(low), high)
            np.divide(low, distances, out=value, where=distances > 0)
            value = np.where(np.isnan(distances), np.nan, value)
        elif self.form == "share above":
            value = high * distances
        else:
            value = low + distances * (high - low)
        return np.clip(value, low, np.maximum(low, high))

    def rewritten(self, column: Column, columns: Mapping[str, Column]) -> Column:
        """Return the column that is trained instead.

        Args:
            column: The column.
            columns: Columns of the table.
        """
        low, high = self.bounds(columns)
        distances = self.distances(column.floats(), low, high)
        return Column(self.name, "numeric", distances)

    def restored(
        self,
        distances: Column,
        schema: ColumnSchema,
        columns: Mapping[str, Column],
        rule: ColumnRule | None,
    ) -> Column:
        """Return the column of trained distances.

        Args:
            distances: Distances.
            schema: Schema of the column.
            columns: Earlier columns, as published.
            rule: Threshold rule of the column.
        """
        low, high = self.bounds(columns)
        value = self.values(distances.floats(), low, high)
        column = rounded(_of_floats(self.name, value, schema), schema)
        if rule is not None:
            column = rule.apply(column)
        return self.kept_in_bounds(column, schema, low, high)

    def kept_in_bounds(
        self, column: Column, schema: ColumnSchema, low: np.ndarray, high: np.ndarray
    ) -> Column:
        """Replace values that rounding has moved out of the bounds by the nearest value of the
        training rows within.

        If there is none, no real row has such bounds together with a value, so the value is
        missing.

        Args:
            column: Rounded column.
            schema: Schema of the column.
            low: Lower bounds, float64 of shape (n,).
            high: Upper bounds, float64 of shape (n,).
        """
        value = column.floats()
        if schema.role == "closed":
            value = self._nearest_levels(value)
        last = len(self.levels) - 1
        at_or_above_low = self.levels[
            np.minimum(np.searchsorted(self.levels, low, side="left"), last)
        ]
        at_or_below_high = self.levels[
            np.maximum(np.searchsorted(self.levels, high, side="right") - 1, 0)
        ]
        value = np.where(
            value < low, at_or_above_low, np.where(value > high, at_or_below_high, value)
        )
        if schema.nullable:
            value[(value < low) | (value > high)] = np.nan
        is_changed = value != column.floats()
        changed = _of_floats(self.name, value, schema)
        return replace(column, cells=np.where(is_changed, changed.cells, column.cells))

    def _nearest_levels(self, value: np.ndarray) -> np.ndarray:
        """Return the nearest value of the training rows, which a closed column gets anyway, float64
        (n,).
        """
        middles = (self.levels[1:] + self.levels[:-1]) / 2
        nearest = self.levels[np.searchsorted(middles, value)]
        return np.where(np.isnan(value), np.nan, nearest)


def _rank_correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Return Spearman's rank correlation; 0 if one of the arrays is constant."""
    ranks = np.stack([pd.Series(first).rank(), pd.Series(second).rank()])
    deviations = ranks.std(axis=1)
    if not deviations.all():
        return 0.0
    centered = ranks - ranks.mean(axis=1, keepdims=True)
    return float((centered[0] * centered[1]).mean() / deviations.prod())


def _of_floats(name: str, value: np.ndarray, schema: ColumnSchema) -> Column:
    """Return a column of numbers, or of times in days; NaN is missing."""
    if schema.kind == "numeric":
        return Column(name, schema.kind, value)
    scale = DAY if schema.kind == "datetime" else 1.0
    missing = Column(name, schema.kind, np.zeros(1, dtype=np.int64)).take_or_missing(np.array([-1]))
    is_present = ~np.isnan(value)
    cells = np.full(len(value), missing.cells[0])
    cells[is_present] = np.rint(value[is_present] * scale).astype(np.int64)
    return Column(name, schema.kind, cells)


@dataclass(frozen=True, eq=False)
class Rewriting:
    """Rewriting of the columns of a table with relations.

    Attributes:
        schema: Schema of the table.
        rewritten_schema: Schema of the rewritten table.
        ordered: Columns trained as distances, in the order of the table.
        determined: Codes and gaps, each after the relations that determine its first column.
        bounded: Columns of codes with an order between them, which rows that are free must keep as
            well.
        rules: Threshold rules of the columns with an order.
    """

    schema: TableSchema
    rewritten_schema: TableSchema
    ordered: Sequence[OrderedColumn]
    determined: Sequence[Relation]
    bounded: Sequence[OrderedColumn]
    rules: Mapping[str, ColumnRule]

    @classmethod
    def of(
        cls, train: Table, relations: Iterable[Relation], fixed: Iterable[str] = ()
    ) -> Rewriting | None:
        """Create the rewriting of training rows. None: there is nothing to rewrite.

        Args:
            train: Training rows, with their threshold rules.
            relations: Relations to keep.
            fixed: Columns with public bounds of a generator that states an epsilon. They are not
                rewritten.
        """
        relations = list(relations)
        fixed = set(fixed)
        orders = {
            (relation.first, relation.second) for relation in relations if relation.kind == "order"
        }
        pairs = set(orders)
        for low, high in orders_of(relations):
            # With gaps in b, a <= b and b <= c do not imply a <= c.
            if _holds(low, high, train):
                pairs.add((low, high))
        determined = _in_dependency_order(_possible_codes(relations, pairs, fixed))
        looked_up = {relation.second for relation in determined if relation.kind == "code"}
        ordered = _ordered_columns(train, pairs, fixed, looked_up)
        bounded = _bounded_columns(train, pairs, looked_up)
        if not ordered and not determined:
            return None
        names_with_order = set[str]()
        for column in (*ordered, *bounded):
            names_with_order.update((column.name, *column.lows, *column.highs))
        rules = {name: rule for name, rule in train.rules.items() if name in names_with_order}
        rewriting = cls(train.schema, train.schema, ordered, determined, bounded, rules)
        return replace(rewriting, rewritten_schema=rewriting._schema_of(train))

    @property
    def names(self) -> set[str]:
        """Names of the columns that are not trained as they are."""
        determined = {relation.second for relation in self.determined}
        return determined | self._ordered_names

    @property
    def _ordered_names(self) -> set[str]:
        return {column.name for column in self.ordered}

    @property
    def _codes(self) -> list[Relation]:
        return [relation for relation in self.determined if relation.kind == "code"]

    def _schema_of(self, train: Table) -> TableSchema:
        distances = self._ordered_names
        codes = {relation.second for relation in self._codes}
        columns = []
        for column in train.schema.columns:
            if column.name in distances:
                columns.append(
                    ColumnSchema(column.name, "numeric", column.nullable, "float64", role="number")
                )
            elif column.name in codes:
                columns.append(replace(column, nullable=True))
            else:
                columns.append(column)
        return TableSchema(tuple(columns))

    @staticmethod
    def _is_free(relation: Relation, table: Table) -> np.ndarray:
        """Return True for rows that do not determine the second column of a code, bool (n,)."""
        return relation.expected(table[relation.first], []) < 0

    def apply(self, train: Table) -> Table:
        """Return the rows that the generator is trained on."""
        columns = dict(train.columns)
        for column in self.ordered:
            columns[column.name] = column.rewritten(train[column.name], train.columns)
        for relation in self._codes:
            second = train[relation.second]
            is_free = self._is_free(relation, train)
            rows = np.where(is_free, np.arange(len(second)), -1)
            columns[relation.second] = second.take_or_missing(rows)
        return replace(Table.of_columns(self.rewritten_schema, columns), rules=train.rules)

    def restore(self, rewritten: Table, seed: int) -> Table:
        """Return rows of the generator in the columns of the table.

        Args:
            rewritten: Rewritten rows.
            seed: Seed of the choice of values for gaps that no real row has.
        """
        seeds = np.random.SeedSequence(seed, spawn_key=(len(self.schema.columns),))
        columns = self._with_determined(rewritten.columns, np.random.default_rng(seeds))
        ordered = self._ordered_names
        for name, rule in self.rules.items():
            if name not in ordered:
                columns[name] = rule.apply(columns[name])
        self._bound_free_rows(columns)
        for column in self.ordered:
            schema = self.schema[column.name]
            distances = columns[column.name]
            columns[column.name] = column.restored(
                distances, schema, columns, self.rules.get(column.name)
            )
        return Table.of_columns(self.schema, columns)

    def _with_determined(
        self, rewritten: Mapping[str, Column], rng: np.random.Generator
    ) -> dict[str, Column]:
        """Return the columns with determined values looked up, and gaps made and filled."""
        columns = dict(rewritten)
        # A postcode that fills a gap determines a town, so relations are repeated until none is
        # broken.
        for _ in self.determined:
            for relation in self.determined:
                first = columns[relation.first]
                second = columns[relation.second]
                if relation.kind == "code":
                    columns[relation.second] = self._looked_up(relation, first, second, rng)
                else:
                    columns[relation.second] = _with_gaps(relation, first, second, rng)
            if not self._is_any_broken(columns):
                break
        return columns

    def _is_any_broken(self, columns: Mapping[str, Column]) -> bool:
        for relation in self.determined:
            if relation.is_broken(columns[relation.first], columns[relation.second]).any():
                return True
        return False

    def _bound_free_rows(self, columns: dict[str, Column]) -> None:
        """Move the values of columns of codes into their bounds, in rows that are free.

        Args:
            columns: Columns of the rows. They are changed.
        """
        is_free = dict[str, np.ndarray]()
        is_final = dict[str, np.ndarray]()
        for relation in self._codes:
            is_free[relation.second] = relation.expected(columns[relation.first], []) < 0
            is_final[relation.second] = ~is_free[relation.second]
        for column in self.bounded:
            current = columns[column.name]
            bounds = dict[str, Column]()
            for name in (*column.lows, *column.highs):
                # Only values that will not change any more are bounds.
                rows = np.where(is_final[name], np.arange(len(current)), -1)
                bounds[name] = columns[name].take_or_missing(rows)
            low, high = column.bounds(bounds)
            inside = column.kept_in_bounds(current, self.schema[column.name], low, high)
            cells = np.where(is_free[column.name], inside.cells, current.cells)
            columns[column.name] = replace(current, cells=cells)
            is_final[column.name] = np.ones(len(current), dtype=bool)

    def _looked_up(
        self, relation: Relation, first: Column, free: Column, rng: np.random.Generator
    ) -> Column:
        """Return the second column of a code: determined values, and trained ones in rows that are
        free.
        """
        schema = self.schema[relation.second]
        if schema.kind == "boolean":
            values: tuple[Any, ...] = (False, True)
        else:
            answers = {pair.answer for pair in relation.determined if pair.answer is not None}
            answers.update(free.values or ())
            values = tuple(sorted(answers))
        expected = relation.expected(first, [*values, None])
        is_free = expected < 0
        determined = np.where(expected == len(values), -1, expected)
        if free.values is None:
            lookup = Column(relation.second, schema.kind, np.array(values, dtype=free.cells.dtype))
            cells = lookup.take_or_missing(determined).cells
            column = replace(free, cells=np.where(is_free, free.cells, cells))
        else:
            codes = np.where(is_free, free.index_in(values), determined)
            column = Column.of_codes(relation.second, schema.kind, codes, values)
        # Determined values are trained as missing, so free rows are drawn with too many missing
        # values.
        is_missing = column.missing
        needs_value = is_free & is_missing
        if schema.nullable:
            needs_value &= relation.never_misses(first)
        donors = is_free & ~is_missing
        if not donors.any():
            donors = ~is_missing
        return column.take(_filled(np.arange(len(column)), needs_value, donors, rng))

    def save(self, folder: Path) -> dict[str, Any]:
        """Write arrays to a folder, and return JSON-compatible entries of a manifest."""
        entries = []
        levels = {}
        for i, column in enumerate([*self.ordered, *self.bounded]):
            entries.append([column.name, list(column.lows), list(column.highs), column.form])
            levels[f"levels.{i}"] = column.levels
        write_arrays(folder, levels)
        save_rules(folder / _RULES, self.rules)
        return {
            "rewritten_schema": self.rewritten_schema.to_json(),
            "columns": entries,
            "n_ordered": len(self.ordered),
            "determined": [relation.to_json() for relation in self.determined],
        }

    @classmethod
    def load(cls, folder: Path, schema: TableSchema, manifest: Mapping[str, Any]) -> Rewriting:
        """Load a stored rewriting.

        Args:
            folder: Folder written by :meth:`save`.
            schema: Schema of the table.
            manifest: Entries returned by :meth:`save`.
        """
        arrays = read_arrays(folder)
        columns = []
        for i, (name, lows, highs, form) in enumerate(manifest["columns"]):
            levels = arrays[f"levels.{i}"]
            columns.append(OrderedColumn(name, tuple(lows), tuple(highs), form, levels))
        n_ordered = manifest["n_ordered"]
        determined = [Relation.from_json(entry) for entry in manifest["determined"]]
        rewritten_schema = TableSchema.from_json(manifest["rewritten_schema"])
        rules = load_rules(folder / _RULES)
        ordered = columns[:n_ordered]
        bounded = columns[n_ordered:]
        return cls(schema, rewritten_schema, ordered, determined, bounded, rules)


def _possible_codes(
    relations: Iterable[Relation], pairs: set[tuple[str, str]], fixed: set[str]
) -> list[Relation]:
    """Return codes and gaps, without the codes of columns whose order could not be kept.

    These are columns with public bounds, and columns with an order to one of these or to a column
    that another category determines: both would be looked up, and none could be moved.

    Args:
        relations: Relations to keep.
        pairs: Columns with an order.
        fixed: Columns that are trained as they are.
    """
    possible = list[Relation]()
    determining = dict[str, str]()  # first column by second column
    for relation in relations:
        if not relation.determined:
            continue
        if relation.kind == "code":
            lows, highs = _bounds_of(relation.second, {*determining, *fixed}, pairs)
            partners = {*lows, *highs}
            determining_partners = {determining[name] for name in partners if name in determining}
            has_other_code = bool(determining_partners - {relation.first})
            if has_other_code or fixed & {relation.second, *partners}:
                continue
            determining[relation.second] = relation.first
        possible.append(relation)
    return possible


def _bounds_of(
    name: str, candidates: Iterable[str], pairs: set[tuple[str, str]]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the candidates that are never above a column, and those that are never below it."""
    lows = tuple(candidate for candidate in candidates if (candidate, name) in pairs)
    highs = tuple(candidate for candidate in candidates if (name, candidate) in pairs)
    return lows, highs


def _ordered_columns(
    train: Table, pairs: set[tuple[str, str]], fixed: set[str], looked_up: set[str]
) -> list[OrderedColumn]:
    """Return the columns that are trained as distances, each after the columns that bound it.

    Args:
        train: Training rows.
        pairs: Columns with an order, the lower one first.
        fixed: Columns that are trained as they are.
        looked_up: Columns that a category determines. They bound others, and are not trained as
            distances.
    """
    ordered = []
    earlier = [name for name in train.schema.names if name in looked_up]
    for name in train.schema.names:
        if name in looked_up:
            continue
        lows, highs = _bounds_of(name, earlier, pairs)
        earlier.append(name)
        if (lows or highs) and name not in fixed and not train[name].missing.all():
            ordered.append(OrderedColumn.of(train, name, lows, highs))
    return ordered


def _bounded_columns(
    train: Table, pairs: set[tuple[str, str]], looked_up: set[str]
) -> list[OrderedColumn]:
    """Return the columns that a category determines and that have an order between them.

    Args:
        train: Training rows.
        pairs: Columns with an order, the lower one first.
        looked_up: Columns that a category determines.
    """
    names = [name for name in train.schema.names if name in looked_up]
    bounded = []
    for name in names:
        lows, highs = _bounds_of(name, names, pairs)
        if (lows or highs) and not train[name].missing.all():
            levels = distinct_sorted(train[name].present().floats())
            bounded.append(OrderedColumn(name, lows, highs, "between", levels))
    return bounded


def _holds(low: str, high: str, train: Table) -> bool:
    """Return True if no training row breaks the order."""
    return not Relation("order", low, high).is_broken(train[low], train[high]).any()


def _in_dependency_order(relations: Iterable[Relation]) -> list[Relation]:
    """Return codes and gaps, each after those that determine its first column, if there is no
    circle.
    """
    relations = list(relations)
    codes = [relation for relation in relations if relation.kind == "code"]
    gaps = [relation for relation in relations if relation.kind == "gap"]
    waiting = [*_without_circles(codes), *gaps]
    in_order = list[Relation]()
    while waiting:
        seconds = {relation.second for relation in waiting}
        ready = [relation for relation in waiting if relation.first not in seconds]
        if not ready:
            ready = waiting[:1]  # such as postcode -> town and town -> gaps of postcode
        in_order.extend(ready)
        waiting = [relation for relation in waiting if relation not in ready]
    return in_order


def _without_circles(codes: Sequence[Relation]) -> list[Relation]:
    """Return codes without those whose second column determines the first one: one of them must be
    trained.
    """
    remaining = list[Relation]()
    for relation in codes:
        determined_by_second = closure({(code.first, code.second) for code in remaining})
        if (relation.second, relation.first) not in determined_by_second:
            remaining.append(relation)
    return remaining


def _with_gaps(
    relation: Relation, first: Column, second: Column, rng: np.random.Generator
) -> Column:
    """Return the second column of a gap: missing where the first column demands it, and filled
    where it must not be.
    """
    expected = relation.expected(first, [False, True])
    is_gap = expected == 1
    is_missing = second.missing
    is_absent = (expected == 0) & is_missing
    donors = ~is_missing & ~is_gap
    rows = _filled(np.arange(len(second)), is_absent, donors, rng)
    return second.take_or_missing(np.where(is_gap, -1, rows))


def _filled(
    values: np.ndarray, is_absent: np.ndarray, donors: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Return ``values`` with those that are absent replaced by values of random donors, if there
    are any.
    """
    if not is_absent.any() or not donors.any():
        return values
    filled = values.copy()
    filled[is_absent] = rng.choice(values[donors], int(is_absent.sum()))
    return filled


class WithRelations(FittedGenerator):
    """A generator of rewritten columns, whose rows are changed back.

    Attributes:
        inner: Generator of the rewritten columns.
        rewriting: The rewriting.
    """

    def __init__(self, inner: FittedGenerator, rewriting: Rewriting) -> None:
        self.inner = inner
        self.rewriting = rewriting
        self.generator = inner.generator
        self.schema = rewriting.schema
        self.history = inner.history
        self.privacy = inner.privacy
        if self.privacy.epsilon is not None:
            names = ", ".join(sorted(rewriting.names))
            outside = (
                *self.privacy.outside_guarantee,
                f"ranges, gaps and determined values of {names}",
            )
            self.privacy = replace(self.privacy, outside_guarantee=outside)

    def _sample(self, n_rows: int, seed: int) -> Table:
        rewritten = self.inner.sample(max(n_rows, _MIN_DRAWN), seed=seed)
        return self.rewriting.restore(rewritten, seed).take(slice(n_rows))

    def _save(self, folder: Path) -> dict[str, Any]:
        self.inner.save(folder / _REWRITTEN)
        return {"rewriting": self.rewriting.save(folder)}


class RelationalGenerator(CodedGenerator):
    """A generator that keeps the relations between the columns of its training rows.

    Audits fit it to coded cells, without relations.

    Attributes:
        keeps_declared_only: True for generators that state an epsilon: relations that are found
            disclose the rows.
    """

    keeps_declared_only: ClassVar[bool] = False

    def _fit(self, train: Table, training: Training) -> FittedGenerator:
        relations = [
            relation
            for relation in train.relations
            if relation.is_declared or not self.keeps_declared_only
        ]
        rewriting = Rewriting.of(train, relations, self.bounded_columns)
        if rewriting is None:
            return self._fit_rows(train, training)
        rewritten = rewriting.apply(train)
        inner = self._fit_rows(rewritten, training)
        if not self.creates_values:
            inner.keep_to_levels(rewritten)
        return WithRelations(inner, rewriting)

    @abstractmethod
    def _fit_rows(self, train: Table, training: Training) -> FittedGenerator:
        """Fit to rows without relations."""

    def load(
        self, folder: Path, schema: TableSchema, manifest: Mapping[str, Any]
    ) -> FittedGenerator:
        """Implement :meth:`Generator.load`."""
        if "rewriting" not in manifest:
            return self._load_rows(folder, schema, manifest)
        rewriting = Rewriting.load(folder, schema, manifest["rewriting"])
        inner_folder = folder / _REWRITTEN
        inner_manifest = read_manifest(inner_folder)
        inner = self._load_rows(inner_folder, rewriting.rewritten_schema, inner_manifest)
        inner.levels = inner_manifest["levels"]
        return WithRelations(inner, rewriting)

    @abstractmethod
    def _load_rows(
        self, folder: Path, schema: TableSchema, manifest: Mapping[str, Any]
    ) -> FittedGenerator:
        """Load a generator that was fitted to rows without relations."""
