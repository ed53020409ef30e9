"""Threshold rule: values that fewer than ``min_holders`` people have are not published (docs/columns.md#rare-values).

The rule is made once from all real tables of a release and applied to them and to the synthetic table before training
and scoring, so that a copied row is still a copy. A rare category becomes its longest frequent prefix or ``other``, a
rare number of a closed column the nearest frequent one. Numbers and times are cut at the value of the person at
``min_holders`` from each end, and rounded as far as needed.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from privacy_assets.errors import safe_repr
from privacy_assets.tables.column import MISSING, Column, looked_up, of_one_vocabulary, ranked, stacked
from privacy_assets.tables.conversion import column_of, from_clock, rounded, to_clock
from privacy_assets.tables.precision import MONTH, UNITS, YEAR, Precision, unit_of
from privacy_assets.tables.schema import ColumnSchema, TableSchema, yaml_text

OTHER = "other"
FINE = 0.5  # minimum share of people with a value of their own in a column of fine resolution
_COMMON = 0.2  # share of people above which a value is common, such as 0; rounding ignores it
NOTED = 0.2  # share of replaced rows above which the note suggests a hierarchy
_PREFIXES = (5, 3, 1)  # suggested lengths
_MOST_DECIMALS = 300  # larger powers of ten overflow a float
_COARSER = (*reversed(list(UNITS)), MONTH, YEAR)  # from the finest unit of time to the coarsest


@dataclass(frozen=True, slots=True)
class ColumnRule:
    """Rule that replaces the rare values of a column.

    Attributes:
        frequent: Values of a closed column that may be published: strings, or numbers as stored in cells.
        replaced: Rare values of a closed column with what is published instead; None is a missing value.
        low: Smallest published number or time, as stored in cells. None: there is no bound.
        high: Largest published number or time. None: there is no bound.
        reach: Range within which numbers and times beyond ``low`` and ``high`` are set to these. The contract of the
            columns rejects others.
        hidden: True for numbers and times that fewer than twice ``min_holders`` people have, or whose bounds cross: all
            become missing.
        precision: Precision of published numbers and times.
        own: Precision of the real values, to which others are rounded first, so that digits below it have no effect.
        cells: Number of replaced cells in the real tables, without rounded ones.
        rows: Number of rows of the real tables.
        public: Number of rare values that are published because the column has a list with a source.
    """

    frequent: tuple[Any, ...] = ()
    replaced: tuple[tuple[Any, Any], ...] = ()
    low: float | None = None
    high: float | None = None
    reach: tuple[float, float] | None = None
    hidden: bool = False
    precision: Precision = None
    own: Precision = None
    cells: int = 0
    rows: int = 0
    public: int = 0

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ColumnRule:
        """Create a rule from the JSON form of its fields."""
        pairs = tuple((value, instead) for value, instead in data["replaced"])
        reach = None if data["reach"] is None else tuple(data["reach"])
        return cls(**{**data, "frequent": tuple(data["frequent"]), "replaced": pairs, "reach": reach})

    def apply(self, column: Column, schema: ColumnSchema) -> Column:
        """Return ``column`` without rare values. Values that no real table has are unchanged, except by rounding."""
        if column.values is not None:
            instead = dict(self.replaced)
            texts = [instead.get(value, value) for value in column.values] if instead else list(column.values)
            every = column.values if column.kind == "boolean" else sorted({text for text in texts if text is not None})
            position = {text: at for at, text in enumerate(every)}
            codes = looked_up([position.get(text, -1) for text in texts], column.cells)
            return Column.of_codes(column.name, column.kind, codes, every)
        column = rounded(column, replace(schema, precision=self.own))
        if schema.zoned:
            return from_clock(self._cut(to_clock(column, schema), replace(schema, dtype="datetime64[us]")), schema)
        return self._cut(column, schema)

    def _cut(self, column: Column, schema: ColumnSchema) -> Column:
        """Round, replace and cut numbers or times of a clock."""
        nothing = np.nan if column.kind == "numeric" else MISSING
        column = rounded(column, replace(schema, precision=self.precision))
        cells, there = column.cells.copy(), ~column.missing
        if self.hidden:
            cells[:] = nothing
        for value, instead in self.replaced:
            cells[column.cells == value] = nothing if instead is None else instead
        if self.reach is not None:
            there &= (cells >= self.reach[0]) & (cells <= self.reach[1])
        if self.low is not None:
            cells[there & (cells < self.low)] = self.low
        if self.high is not None:
            cells[there & (cells > self.high)] = self.high
        return replace(column, cells=cells)


def count_holders(codes: np.ndarray, people: np.ndarray | None, different: int) -> np.ndarray:
    """Return the number of subjects that have each value, int64 of shape (``different``,).

    Args:
        codes: Value of each cell (n,), at least 0.
        people: Subject of each cell (n,). None: each cell belongs to a subject of its own.
        different: Number of values.
    """
    if people is None:
        return np.bincount(codes, minlength=different)
    count = int(people.max(initial=-1)) + 1
    return np.bincount(np.unique(codes * count + people) // max(count, 1), minlength=different)


def rule_of(
    column: ColumnSchema,
    parts: Sequence[Column],
    people: np.ndarray,
    min_holders: int,
    prefixes: Sequence[int] = (),
    known: Collection[Any] = (),
    bounded: bool = False,
) -> ColumnRule:
    """Return the rule of a column.

    Args:
        column: Schema of the column, with its role.
        parts: The column in each real table.
        people: Subject of each row of the stacked tables, int64 (n,).
        min_holders: Minimum number of subjects that have a published value.
        prefixes: Lengths of the prefixes to which categories may be shortened.
        known: Values that earlier rules of the table allowed.
        bounded: Whether the column has public bounds, so that its largest and smallest values are kept.
    """
    (codes,), different = ranked([stacked(parts)])
    there = codes >= 0
    codes, people = codes[there], people[there]
    if column.role == "closed":
        found = _closed(column, codes, people, different, min_holders, prefixes, known)
        return replace(found, rows=len(there))
    whole, local = different.take(codes), column
    if column.zoned:
        whole = to_clock(whole, column)
        local = replace(column, dtype="datetime64[us]", precision=unit_of(whole.cells))
    found = replace(_measured(local, whole, people, min_holders), own=column.precision, rows=len(there))
    return replace(found, low=None, high=None, cells=0) if bounded and not found.hidden else found


def _closed(
    column: ColumnSchema,
    codes: np.ndarray,
    people: np.ndarray,
    different: Column,
    min_holders: int,
    prefixes: Sequence[int],
    known: Collection[Any],
) -> ColumnRule:
    values = different.objects() if column.kind in ("categorical", "boolean") else different.cells.tolist()
    public = set(_public(column)) if column.source else set()
    enough = count_holders(codes, people, len(values)) >= min_holders
    frequent = [value for value, is_enough in zip(values, enough, strict=True) if is_enough or value in known]
    kept = {*frequent, *public}
    rare = [value for value in values if value not in kept]
    if column.kind == "categorical":
        instead = _shortened(rare, values, codes, people, min_holders, prefixes, known, _holds_text(column.dtype))
    elif column.kind == "boolean" or not frequent:
        instead = dict.fromkeys(rare)
    else:
        instead = {value: min(frequent, key=lambda near: (abs(near - value), near)) for value in rare}
    cells = int(np.isin(codes, np.flatnonzero([value in instead for value in values])).sum())
    levels = {level for level in instead.values() if level not in (None, OTHER)} | (set(rare) - set(instead))
    return ColumnRule(
        frequent=tuple(sorted({*frequent, *levels})),
        replaced=tuple(instead.items()),
        precision=column.precision,
        own=column.precision,
        cells=cells,
        public=len(public & {*values} - {*frequent}),
    )


def _public(column: ColumnSchema) -> list[Any]:
    listed = column_of(pd.Series(list(column.allowed_values), dtype=object), column, "allowed_values").distinct()
    return listed.objects() if column.kind in ("categorical", "boolean") else listed.cells.tolist()


def holds_text(schema: TableSchema, name: str) -> bool:
    """Return True if ``name`` is a category of the schema, with a dtype that can contain ``other``."""
    return name in schema.of_kind("categorical") and _holds_text(schema[name].dtype)


def _holds_text(dtype: str) -> bool:
    known = pd.api.types.pandas_dtype(dtype)
    return not (pd.api.types.is_numeric_dtype(known) or pd.api.types.is_datetime64_any_dtype(known))


def _shortened(
    rare: Sequence[str],
    values: Sequence[str],
    codes: np.ndarray,
    people: np.ndarray,
    min_holders: int,
    prefixes: Sequence[int],
    known: Collection[Any],
    holds_text: bool,
) -> dict[Any, Any]:
    """Return the longest frequent prefix of each rare category, else ``other``, or None if it is not text."""
    instead: dict[Any, Any] = dict.fromkeys(rare, OTHER if holds_text else None)
    for length in sorted(set(prefixes)):  # a longer one replaces a shorter one
        starts, found = pd.factorize(np.array([value[:length] for value in values], dtype=object))
        enough = count_holders(starts[codes], people, len(found)) >= min_holders
        frequent = {start for start, is_enough in zip(found, enough, strict=True) if is_enough or start in known}
        instead |= {value: value[:length] for value in rare if len(value) >= length and value[:length] in frequent}
    return {value: level for value, level in instead.items() if value != level}  # a code may be a frequent prefix


def _measured(column: ColumnSchema, whole: Column, people: np.ndarray, min_holders: int) -> ColumnRule:
    found = ColumnRule(precision=column.precision, own=column.precision)
    hidden = replace(found, hidden=True, cells=len(whole))
    if _count(people) < 2 * min_holders:  # the bounds would cross
        return hidden
    precision = _published_precision(column, whole, people, min_holders)
    cells, order = whole.cells, np.argsort(people, kind="stable")
    starts = np.flatnonzero(np.diff(people[order], prepend=-1))
    tops, bottoms = (ends.reduceat(cells[order], starts) for ends in (np.maximum, np.minimum))
    at_high, at_low = np.sort(tops)[-min_holders].item(), np.sort(bottoms)[min_holders - 1].item()
    first, last = cells.min().item(), cells.max().item()

    def bound(value: Any, end: Any, rounded_inwards: Callable[[Any, Any], Any]) -> Any:
        if value == end:
            return None
        shared = _count(people[cells == value]) >= min_holders
        inwards = value if shared else rounded_inwards(value, _step(column, precision, value, at_high - at_low))
        if column.kind != "numeric":
            return inwards
        stored = rounded(Column(column.name, column.kind, np.array([inwards])), replace(column, precision=None))
        return stored.cells[0].item()  # as a float32 column has it

    low, high = bound(at_low, first, _rounded_up), bound(at_high, last, _rounded_down)
    if low is not None and high is not None and low > high:
        return hidden
    cut = np.zeros(len(cells), dtype=bool)
    cut |= (cells > high) if high is not None else False
    cut |= (cells < low) if low is not None else False
    return replace(
        found, precision=precision, low=low, high=high, reach=(2 * first - last, 2 * last - first),
        cells=int(cut.sum()),
    )  # fmt: skip


def _published_precision(column: ColumnSchema, whole: Column, people: np.ndarray, min_holders: int) -> Precision:
    """Return the precision to publish.

    It is the coarsest that changes values of fewer than ``min_holders`` people, or the finest at which less than half
    of the people have a value of their own, whichever is coarser.
    """
    candidates = _candidates(column, whole)
    at = 0
    for coarser in range(1, len(candidates)):
        changed = rounded(whole, replace(column, precision=candidates[coarser])).cells != whole.cells
        need = _count(people[changed])
        if need >= min_holders:
            break
        at = coarser if need else at

    def is_coarse(precision: Precision) -> bool:
        return not _is_fine(rounded(whole, replace(column, precision=precision)).cells, people)

    if is_coarse(candidates[at]):
        return candidates[at]
    return candidates[min(bisect_left(candidates, True, at + 1, key=is_coarse), len(candidates) - 1)]


def _candidates(column: ColumnSchema, whole: Column) -> list[Precision]:
    """Return the precision of the column and the coarser ones, down to the first digit of its largest value."""
    if column.kind == "datetime":
        return list(_COARSER[_COARSER.index(str(column.precision)) :]) if column.precision in _COARSER else [None]
    largest = float(np.abs(whole.cells.astype(np.float64)).max(initial=0.0))
    first = -math.floor(math.log10(largest)) if largest > 0 else 0
    own = column.precision if isinstance(column.precision, int) else min(max(first + 15, 0), _MOST_DECIMALS)
    start: list[Precision] = [] if isinstance(column.precision, int) else [column.precision]
    return [*start, *range(own, min(first, own) - 1, -1)]


def _is_fine(cells: np.ndarray, people: np.ndarray, common: float = _COMMON) -> bool:
    """Return True if at least half of the people have a value that no other person has.

    People who only have values that a share of ``common`` of the people have are left out. ``people`` are codes.
    """
    codes, different = pd.factorize(cells)
    owner, shared = np.empty(len(different), dtype=np.int64), np.zeros(len(different), dtype=bool)
    owner[codes] = people  # one of the people with each value
    shared[codes[owner[codes] != people]] = True
    most = common * _count(people)
    known = np.zeros(len(different), dtype=bool)
    for code in np.flatnonzero(np.bincount(codes, minlength=len(different)) > most):
        known[code] = _count(people[codes == code]) > most
    alone = _count(people[~shared[codes]])
    return alone > 0 and alone >= FINE * _count(people[~known[codes]])


def _count(people: np.ndarray) -> int:
    """Return the number of different codes."""
    return int(np.count_nonzero(np.bincount(people))) if len(people) else 0


def has_fine_resolution(column: Column, people: np.ndarray) -> bool:
    """Return True if at least half of the people who have a value have one that no other person has.

    Args:
        column: Numbers or times of the stacked real tables.
        people: Subject of each row (n,).
    """
    there = ~column.missing
    return bool(there.any()) and _is_fine(column.cells[there], people[there], common=1.0)


def _step(column: ColumnSchema, precision: Precision, value: float, width: float) -> int | float | str:
    """Return the step to which the bound ``value`` is rounded, at least the precision.

    It is two significant digits of ``value`` or of ``width``, the distance of the bounds, whichever are finer. For
    times it is the largest of 10,000 ... 10 days, a day, an hour ... that is at most 1 % of ``width``.
    """
    if column.kind == "datetime":
        days = [UNITS["day"] * 10**power for power in range(4, 0, -1)]
        step = next((step for step in [*days, *UNITS.values()] if step <= width / 100), 1)
        return str(precision) if precision in (MONTH, YEAR) else max(step, UNITS.get(str(precision), 1))
    scales = [scale for scale in (abs(value), width) if scale > 0]
    decimals = 1 - math.floor(math.log10(min(scales))) if scales else 0
    if isinstance(precision, int):
        decimals = min(decimals, precision)
    return 10 ** max(-decimals, 0) if column.kind == "integer" else 10.0**-decimals


def _rounded_down(value: Any, step: int | float | str) -> Any:
    if isinstance(step, str):
        unit = np.datetime64(value, "us").astype(f"datetime64[{step[0].upper()}]")
        return int(unit.astype("datetime64[us]").astype(np.int64))
    if isinstance(step, int):
        return value // step * step
    decimals = round(-math.log10(step))
    near = round(float(value), decimals)
    return near if near <= value else round(near - step, decimals)


def _rounded_up(value: Any, step: int | float | str) -> Any:
    if not isinstance(step, str):
        return -_rounded_down(-value, step)
    down = _rounded_down(value, step)
    longer = 32 if step == MONTH else 367
    return value if down == value else _rounded_down(down + longer * UNITS["day"], step)


def notes_of(rules: Mapping[str, ColumnRule], min_holders: int, shortened: Collection[str] = ()) -> list[str]:
    """Return sentences for the report about what the rules replace. They contain no value.

    Args:
        rules: Rules by column.
        min_holders: Minimum number of people that have a published value.
        shortened: Columns with declared prefixes.
    """
    found, few = list[str](), f"fewer than {min_holders} people"
    named = {safe_repr(name): rule for name, rule in rules.items()}
    if counts := [f"{name} ({_counted(rule)})" for name, rule in named.items() if rule.replaced]:
        text = (
            f'Values that {few} have are published as "{OTHER}", a shorter code, the nearest number or a missing value'
        )
        found.append(f"{text}: {', '.join(counts)}.")
    if cut := [
        f"{name} ({rule.cells:,} cells)" for name, rule in named.items() if rule.reach is not None and rule.cells
    ]:
        found.append(f"The largest and smallest values, which {few} have, are set to a bound: {', '.join(cut)}.")
    if hidden := [name for name, rule in named.items() if rule.hidden]:
        found.append(f"Columns with values of too few people are published without values: {', '.join(hidden)}.")
    if coarse := [f"{name} to {_words(rule.precision)}" for name, rule in named.items() if _is_coarser(rule)]:
        found.append(f"Values are rounded, because finer digits belong to single people: {', '.join(coarse)}.")
    if public := [f"{name} ({rule.public:,})" for name, rule in named.items() if rule.public]:
        found.append(f"Rare values are kept, because a public list contains them: {', '.join(public)}.")
    prefixes = {
        name: {"prefix": [length for length in _PREFIXES if length < longest]}
        for name, rule in rules.items()
        if name not in shortened and rule.cells > NOTED * rule.rows
        and (longest := max((len(value) for value, _ in rule.replaced if isinstance(value, str)), default=0)) > 1
    }  # fmt: skip
    if prefixes:
        found.append(
            f"More than a fifth of {', '.join(map(safe_repr, prefixes))} is replaced. If these are codes whose first"
            f" characters have a meaning, prefixes keep more (data: {yaml_text({'rare_values': prefixes})})."
        )
    return found


def _is_coarser(rule: ColumnRule) -> bool:
    if rule.own in _COARSER and rule.precision in _COARSER:
        return _COARSER.index(rule.precision) > _COARSER.index(rule.own)
    return rule.precision != rule.own


def _counted(rule: ColumnRule) -> str:
    values, cells = len(rule.replaced), rule.cells
    return f"{values:,} value{'s' * (values != 1)}, {cells:,} cell{'s' * (cells != 1)}"


def _words(precision: Precision) -> str:
    if isinstance(precision, int):
        if precision == 0:
            return "whole numbers"
        return f"{precision} decimal{'s' * (precision > 1)}" if precision > 0 else f"multiples of {10**-precision:,}"
    return f"the {precision}"


def replaced_cells(rule: ColumnRule, column: Column, schema: ColumnSchema) -> int:
    """Return the number of cells that ``rule`` replaces in ``column``, without those that it only rounds."""
    before = column if column.values is not None else rounded(column, replace(schema, precision=rule.precision))
    first, second = of_one_vocabulary([before, rule.apply(column, schema)])
    return int(((first.cells != second.cells) & ~(first.missing & second.missing)).sum())


def published_schema(column: ColumnSchema, rule: ColumnRule | None) -> ColumnSchema:
    """Return the schema of a column after :meth:`ColumnRule.apply`."""
    if rule is None:
        return column
    missing = rule.hidden or any(instead is None for _, instead in rule.replaced)
    return replace(column, precision=rule.precision, nullable=column.nullable or missing)


def outside_guarantee(rules: Mapping[str, ColumnRule]) -> list[str]:
    """Return what the rules read from the real values without noise, for generators with a guarantee."""
    return [f"lists of values, bounds and precision of {', '.join(map(safe_repr, rules))}"] if rules else []


def real_schema(schema: TableSchema, rules: Mapping[str, ColumnRule]) -> TableSchema:
    """Return ``schema`` with the precision of the real values."""
    columns = (replace(one, precision=rules[one.name].own) if one.name in rules else one for one in schema.columns)
    return TableSchema(tuple(columns))


def replaced_note(counts: Mapping[str, int]) -> list[str]:
    """Return a sentence for the report on the cells that were replaced in the synthetic table, if any."""
    listed = ", ".join(f"{safe_repr(name)} ({count:,})" for name, count in counts.items())
    return [f"Cells of the synthetic table were replaced in the same way: {listed}."] if counts else []
