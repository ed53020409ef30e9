"""Levels of numbers and times, against an oracle that builds the groups one by one, and as
properties.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy_assets.tables.ordered_columns import NumberColumn
from privacy_assets.tables.published_numbers import (
    PresentCells,
    ValueGroups,
    make_groups,
    rounded_between,
)
from privacy_assets.tables.schema import ColumnSchema
from privacy_assets.tables.table import Table

K = 5


def schema(kind: Any = "numeric", dtype: str = "float64") -> ColumnSchema:
    return ColumnSchema("x", kind, False, dtype)


def levels_of(
    values: Any, people: Any = None, k: int = K, of: ColumnSchema | None = None
) -> ValueGroups:
    cells = np.asarray(values)
    of = of or schema(
        *(("integer", "int64") if cells.dtype == np.int64 else ("numeric", "float64"))
    )
    whose = np.arange(len(cells)) if people is None else np.asarray(people)
    return make_groups([PresentCells(cells, whose)], of, k)


def holders(levels: ValueGroups, cells: np.ndarray, people: np.ndarray) -> pd.Series:
    frame = pd.DataFrame({"shown": levels.replace(cells), "person": people})
    return frame.groupby("shown")["person"].nunique()


def key(value: float) -> int:
    """Order-preserving bits of a float."""
    bits = int(np.float64(value).view(np.uint64))
    return bits ^ (2**64 - 1) if bits >> 63 else bits | 1 << 63


def oracle(values: np.ndarray, people: np.ndarray, k: int) -> list[list[float]]:
    """The groups, as lists of distinct values."""
    whose = pd.Series(people).groupby(values).agg(set)
    singles = list(whose.items())
    groups: list[tuple[list[float], set[int]]] = []
    at = 0
    while at < len(singles):
        value, own = singles[at]
        if len(own) >= k:
            groups.append(([value], own))
            at += 1
            continue
        inside, held = [], set()
        while at < len(singles) and len(singles[at][1]) < k and len(held) < k:
            inside.append(singles[at][0])
            held |= singles[at][1]
            at += 1
        if len(held) >= k:  # look at the next values of fewer than k people
            further, ahead, cuts = set(), at, [at]
            while (
                ahead < len(singles)
                and len(singles[ahead][1]) < k
                and len(further | singles[ahead][1]) < k
            ):
                further |= singles[ahead][1]
                ahead += 1
                cuts.append(ahead)
            ends = ahead == len(singles) or len(singles[ahead][1]) >= k
            cut = (
                ahead
                if ends
                else max(cuts, key=lambda c: key(singles[c][0]) ^ key(singles[c - 1][0]))
            )
            for value, own in singles[at:cut]:
                inside.append(value)
                held |= own
            at = cut
        groups.append((inside, held))
    place = 0
    while place < len(groups):
        if len(groups[place][1]) >= k:
            place += 1
            continue
        if len(groups) == 1:
            return []
        left = place
        if place == len(groups) - 1:
            left = place - 1
        elif place > 0:
            below = groups[place][0][0] - groups[place - 1][0][-1]
            above = groups[place + 1][0][0] - groups[place][0][-1]
            left = place - 1 if below <= above else place
        first, second = groups[left : left + 2]
        groups[left : left + 2] = [(first[0] + second[0], first[1] | second[1])]
        place = left
    return [inside for inside, _ in groups]


@pytest.mark.parametrize("seed", range(30))
def test_the_groups_are_those_of_the_oracle(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, k = int(rng.integers(3, 200)), int(rng.integers(2, 8))
    values = np.round(rng.normal(size=n), int(rng.integers(0, 4))) + 0.0
    people = rng.integers(0, max(n // int(rng.integers(1, 4)), 1), n)
    levels = levels_of(values, people, k)
    groups = oracle(values, people, k)
    assert levels.low.tolist() == [inside[0] for inside in groups]
    assert levels.high.tolist() == [inside[-1] for inside in groups]


FLOATS = st.floats(allow_nan=False, allow_infinity=False)
NEAR = st.integers(0, 40).map(lambda steps: float(np.float64(1.5) + steps * np.spacing(1.5)))
INTEGERS = st.one_of(
    st.integers(-(2**63) + 1, 2**63 - 1), st.integers(10**17, 10**17 + 90), st.integers(-9, 9)
)


@settings(max_examples=300)
@given(
    st.lists(st.one_of(FLOATS, NEAR, st.integers(-20, 20).map(float)), min_size=1, max_size=60),
    st.integers(2, 6),
)
def test_published_floats_are_shared_ordered_and_inside_of_their_group(
    values: list[float], k: int
) -> None:
    check(np.array(values), k, schema())


@settings(max_examples=300)
@given(st.lists(INTEGERS, min_size=1, max_size=60), st.integers(2, 6))
def test_published_integers_are_shared_ordered_and_inside_of_their_group(
    values: list[int], k: int
) -> None:
    check(np.array(values, dtype=np.int64), k, schema("integer", "int64"))


@settings(max_examples=200)
@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=60)
)
def test_published_short_floats_are_short_floats(values: list[float]) -> None:
    levels = check(np.array(values), K, schema("numeric", "float32"))
    assert (levels.published == levels.published.astype(np.float32)).all()


ZONES = [
    "datetime64[us]",
    "datetime64[us, Europe/Berlin]",
    "datetime64[us, Asia/Kolkata]",
    "datetime64[us, UTC]",
]


@settings(max_examples=100)
@given(
    st.lists(st.integers(-(10**15), 2 * 10**15), min_size=5, max_size=60), st.sampled_from(ZONES)
)
def test_published_times_are_shared_ordered_and_inside_of_their_group(
    values: list[int], dtype: str
) -> None:
    check(np.array(values, dtype=np.int64), K, schema("datetime", dtype))


def check(values: np.ndarray, k: int, of: ColumnSchema) -> ValueGroups:
    people = np.arange(len(values)) % max(len(values) - 3, 1)
    levels = levels_of(values, people, k, of)
    if len(levels) == 0:
        assert len(np.unique(people)) < k
        return levels
    shown = levels.published
    assert (levels.low <= shown).all() and (shown <= levels.high).all()
    assert (shown[1:] > shown[:-1]).all() and (levels.low[1:] > levels.high[:-1]).all()
    assert holders(levels, values, people).min() >= k
    assert (levels.replace(shown) == shown).all(), "applied twice, it is the same"
    return levels


def test_a_value_that_enough_people_have_is_published_as_it_is() -> None:
    values = np.array([1.25] * 5 + [2.7182818] * 5 + [3.1, 3.2, 3.3])
    levels = levels_of(values)
    assert levels.published.tolist() == [1.25, 2.7182818]
    assert levels.replace(np.array([3.3, -8.0, 2.0])).tolist() == [2.7182818, 1.25, 2.7182818]


def test_a_cell_between_two_groups_gets_the_nearer_one_of_two_the_lower() -> None:
    levels = levels_of(np.repeat([0, 10], 5))
    assert levels.replace(np.array([4, 5, 6])).tolist() == [0, 0, 10]
    far = levels_of(np.repeat(np.array([-(2**62), 2**62]), 5))
    assert far.replace(np.array([-1, 0, 1])).tolist() == [-(2**62), -(2**62), 2**62]


@pytest.mark.parametrize(
    ("value", "low", "high", "expected"),
    [
        (1234.5, 1200.0, 1300.0, 1200.0),
        (1234.5, 1201.0, 1300.0, 1230.0),
        (0.0, -1.0, 1.0, 0.0),
        (9.99, 9.95, 10.0, 10.0),
        (2.675, 2.67, 2.68, 2.67),
        (1e300 / 3, 3e299, 4e299, 3e299),
        (5e-324,) * 4,
        (-1234.5, -1300.0, -1200.0, -1200.0),
        (0.1 + 0.2, 0.1 + 0.2, 0.1 + 0.2, 0.1 + 0.2),
    ],
)
def test_floats_are_rounded_to_the_fewest_significant_digits(
    value: float, low: float, high: float, expected: float
) -> None:
    shown = rounded_between(*(np.array([x]) for x in (value, low, high)), schema())
    assert shown[0] == expected


@settings(max_examples=300)
@given(FLOATS.filter(bool), st.integers(1, 17))
def test_rounding_is_that_of_python(value: float, digits: int) -> None:
    """With these bounds, only a number of exactly these digits, or of fewer, fits."""
    wanted = float(f"{value:.{digits - 1}e}")
    shown = rounded_between(
        *(np.array([x]) for x in (value, min(value, wanted), max(value, wanted))), schema()
    )
    expected = next(
        x
        for d in range(17)
        if min(value, wanted) <= (x := float(f"{value:.{d}e}")) <= max(value, wanted)
    )
    assert shown[0] == expected


@pytest.mark.parametrize(
    ("value", "low", "high", "expected"),
    [
        (25, 20, 30, 20),
        (35, 30, 40, 40),
        (
            123_456_789_012_345_672,
            123_456_789_012_345_670,
            123_456_789_012_345_679,
            123_456_789_012_345_670,
        ),
        (2**63 - 5, 2**63 - 9, 2**63 - 1, 9_223_372_036_854_775_800),
        (2**63 - 1, 2**63 - 2, 2**63 - 1, 2**63 - 1),
        (-25, -30, -20, -20),
    ],
)
def test_integers_are_rounded_exactly(value: int, low: int, high: int, expected: int) -> None:
    shown = rounded_between(
        *(np.array([x]) for x in (value, low, high)), schema("integer", "int64")
    )
    assert shown.tolist() == [expected]


@pytest.mark.parametrize(
    ("low", "value", "high", "expected"),
    [
        ("2019-11-03", "2020-02-05T12:01:07", "2020-04-01", "2020-01-01"),
        ("2020-01-05", "2020-02-05T12:01:07", "2020-03-04", "2020-02-01"),
        ("2020-02-03", "2020-02-05T12:01:07", "2020-02-09", "2020-02-06"),
        ("2020-02-05T12:01:07",) * 4,
        ("2020-02-05T11:59", "2020-02-05T12:01:07", "2020-02-05T12:02", "2020-02-05T12:00"),
        ("2020-01-25", "2020-01-28", "2020-02-03", "2020-02-01"),
    ],
)
def test_times_are_rounded_to_the_coarsest_unit(
    low: str, value: str, high: str, expected: str
) -> None:
    cells = [np.array([time], dtype="datetime64[us]").view(np.int64) for time in (value, low, high)]
    shown = rounded_between(*cells, schema("datetime", "datetime64[us]"))
    assert shown.view("datetime64[us]")[0] == np.datetime64(expected)


def test_times_of_a_zone_are_rounded_on_its_clock() -> None:
    rng = np.random.default_rng(0)
    clock = pd.Series(
        pd.Timestamp("1960-01-01") + pd.to_timedelta(rng.integers(0, 2 * 10**9, 1000), unit="s")
    )
    for zone in ("America/New_York", "Asia/Kolkata"):
        frame = pd.DataFrame(
            {"t": clock.dt.tz_localize(zone, ambiguous="NaT", nonexistent="shift_forward")}
        ).dropna()
        table = Table.read(frame)
        column = NumberColumn.of(table.schema["t"], table["t"], np.arange(len(table)), K)
        shown = (
            pd.Series(column.groups.published.view("datetime64[us]"))
            .dt.tz_localize("UTC")
            .dt.tz_convert(zone)
        )
        assert (shown.dt.normalize() == shown).all() and (shown.dt.day == 1).mean() > 0.9


def person(values: np.ndarray) -> np.ndarray:
    return np.arange(len(values))


COLUMNS = {
    "normal": lambda rng, n: rng.normal(size=n),
    "cents": lambda rng, n: np.round(rng.lognormal(10, 1, n), 2),
    "regular": lambda rng, n: np.arange(n) * 7.0,
    "heavy": lambda rng, n: rng.pareto(1.1, n),
    "ages": lambda rng, n: rng.integers(18, 95, n).astype(float),
    "mixed": lambda rng, n: np.where(
        rng.random(n) < 0.5, rng.integers(1, 9, n), np.round(rng.lognormal(8, 1, n), 2)
    ),
}


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("place", ["lowest", "highest", "middle"])
def test_one_more_person_changes_few_values(column: str, place: str) -> None:
    """Of 2,000 people, at most 10 % get another value. Groups that are cut as soon as possible
    change 60 %.
    """
    values = COLUMNS[column](np.random.default_rng(1), 2_000)
    more = {
        "lowest": values.min() - 1,
        "highest": values.max() + 1,
        "middle": np.median(values) + 0.01,
    }[place]
    before = levels_of(values).replace(values)
    after = levels_of(np.append(values, more)).replace(values)
    assert (before != after).mean() < 0.05


@pytest.mark.parametrize("column", COLUMNS)
def test_neither_the_order_of_rows_nor_more_rows_of_a_person_change_a_value(column: str) -> None:
    rng = np.random.default_rng(2)
    values = COLUMNS[column](rng, 500)
    people = rng.integers(0, 300, 500)
    order = rng.permutation(np.append(np.arange(500), rng.integers(0, 500, 200)))
    first, second = levels_of(values, people), levels_of(values[order], people[order])
    assert first.equals(second)


@pytest.mark.parametrize("n", [0, 1, 4])
def test_a_column_of_too_few_people_has_no_level(n: int) -> None:
    assert len(levels_of(np.arange(n) * 1.0)) == 0
    assert len(levels_of(np.arange(50) * 1.0, np.arange(50) % max(n, 1))) == 0


def test_values_of_a_public_list_are_levels() -> None:
    cells = PresentCells(np.array([1, 2, 2, 2, 2, 2, 3, 9]), np.arange(8))
    levels = make_groups([cells], schema("integer", "int64"), K, np.array([3, 7]))
    assert levels.published.tolist() == [2, 3, 7]
    assert levels.replace(np.array([1, 9, 7, 3])).tolist() == [2, 7, 7, 3]


def test_each_column_has_enough_people_in_a_shared_group() -> None:
    rng = np.random.default_rng(3)
    low = np.round(rng.lognormal(5, 1, 600), 2)
    high = np.round(low * rng.choice([1.0, 1.25, 2.0], 600), 2)
    people = np.arange(600)
    shared = make_groups([PresentCells(low, people), PresentCells(high, people)], schema(), K)
    assert (shared.replace(low) <= shared.replace(high)).all()
    for cells in (low, high):
        assert holders(shared, cells, people).min() >= K
    for row in np.flatnonzero(low == high):
        assert shared.replace(low[row : row + 1]) == shared.replace(high[row : row + 1])
