"""Columns that share their levels, so that their order survives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from privacy_assets.tables.canonical import real_tables
from privacy_assets.tables.ordered_columns import (
    NumberColumn,
    OrderedPair,
    SharedGroups,
    broken_pairs,
    share_groups,
)
from privacy_assets.tables.published_numbers import ValueGroups
from privacy_assets.tables.relations import find_relations
from privacy_assets.tables.table import Table
from privacy_assets.tables.threshold_rule import without_rare_values

K, N = 5, 1_000


def shared(table: Table) -> SharedGroups:
    people = np.arange(len(table))
    columns = [
        NumberColumn.of(table.schema[name], table[name], people, K) for name in table.columns
    ]
    return share_groups(columns, K, find_relations(list(table.columns.values()), people))


def broken(table: Table, found: SharedGroups) -> list[OrderedPair]:
    shown = {}
    for name, levels in found.groups.items():
        column, is_present = table[name], ~table[name].missing
        cells = column.cells.copy()
        cells[is_present] = levels.replace(cells[is_present])
        shown[name] = replace(column, cells=cells)
    return broken_pairs(found.ordered, shown)


def published(table: Table, found: SharedGroups, name: str) -> np.ndarray:
    column = table[name]
    return np.where(column.missing, np.nan, found.groups[name].replace(column.cells))


def claims(seed: int = 0, n: int = N) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    amount = np.round(rng.lognormal(6, 1, n), 2)
    paid = np.round(amount * rng.choice([0.0, 0.8, 1.0], n), 2)
    return {"paid": paid, "amount": amount, "age": rng.integers(18, 95, n).astype(float)}


def frame(columns: dict[str, np.ndarray]) -> Table:
    import pandas as pd

    return Table.read(pd.DataFrame(columns))


def test_an_order_that_own_levels_break_is_kept_and_equal_cells_stay_equal() -> None:
    table = frame(claims())
    paid, amount = (
        NumberColumn.of(table.schema[name], table[name], np.arange(N), K)
        for name in ("paid", "amount")
    )
    alone = [column.groups.replace(column.column.cells) for column in (paid, amount)]
    assert (alone[0] > alone[1]).mean() > 0.05
    found = shared(table)
    assert found.shared == [("paid", "amount")] and not broken(table, found)
    after = {name: published(table, found, name) for name in table.columns}
    assert (after["paid"] <= after["amount"]).all()
    equal = table["paid"].cells == table["amount"].cells
    assert equal.sum() > 100 and (after["paid"][equal] == after["amount"][equal]).all()


def test_an_accidental_order_does_not_destroy_a_column() -> None:
    """Weights in grams are above all ages, but for one near value. The ages would lose most of
    their levels.
    """
    rng = np.random.default_rng(1)
    few = rng.choice([1.0, 2.0, 3.0], N)
    fine = 3.0 + rng.random(N)
    found = shared(frame({"few": few, "fine": fine}))
    assert not found.shared
    wide = np.round(rng.random(N) * 1e6, 2)
    low = np.minimum(np.round(rng.random(N) * 40, 4), wide)
    assert not shared(frame({"low": low, "wide": wide})).shared


def test_a_column_that_would_lose_most_of_its_levels_shares_none() -> None:
    """Forty amounts are as small as the ages. If ages shared levels with them, few would remain."""
    rng = np.random.default_rng(11)
    age = np.round(rng.random(N) * 40, 4)
    amount = 100 + np.round(rng.random(N) * 1e6, 2)
    amount[:40] = age[:40]
    table = frame({"age": age, "amount": amount})
    found = shared(table)
    assert [(pair.low, pair.high) for pair in broken(table, found)] == [("age", "amount")]
    assert not found.shared
    assert len(found.groups["age"]) > 50


def test_a_column_keeps_at_least_half_of_its_levels() -> None:
    table = frame({"a": np.repeat(np.arange(10.0), 10)})
    column = NumberColumn.of(table.schema["a"], table["a"], np.arange(100), K)
    assert len(column.groups) == 10
    half = ValueGroups(np.arange(0.0, 10, 2), np.arange(1.0, 10, 2), np.arange(0.0, 10, 2))
    assert column.keeps_enough(half)
    bounds = np.array([0.0, 3, 6, 9]), np.array([2.0, 5, 8, 9])
    assert not column.keeps_enough(ValueGroups(*bounds, bounds[0]))


def test_a_chain_of_columns_shares_one_list() -> None:
    rng = np.random.default_rng(2)
    start = np.round(rng.lognormal(5, 1, N), 2)
    middle = np.round(start * rng.choice([1.0, 1.01], N), 2)
    end = np.round(middle * rng.choice([1.0, 1.01], N), 2)
    table = frame({"start": start, "middle": middle, "end": end})
    found = shared(table)
    assert [set(names) for names in found.shared] == [{"start", "middle", "end"}]
    after = {name: published(table, found, name) for name in table.columns}
    assert (after["start"] <= after["middle"]).all() and (after["middle"] <= after["end"]).all()


@pytest.mark.parametrize("change", ["one row", "few rows", "other dtype"])
def test_without_an_order_in_all_rows_of_enough_people_nothing_is_shared(change: str) -> None:
    columns = claims(3)
    if change == "one row":
        columns["paid"][7] = columns["amount"][7] + 1
    elif change == "few rows":
        columns["paid"][99:] = np.nan
    else:
        columns["paid"] = columns["paid"].astype(np.float32)
        columns["paid"] = np.minimum(
            columns["paid"], np.nextafter(columns["amount"].astype(np.float32), np.float32(0))
        )
    assert not shared(frame(columns)).shared


def test_missing_values_do_not_hide_an_order() -> None:
    columns = claims(4)
    columns["paid"][::3] = np.nan
    columns["amount"][1::7] = np.nan
    assert shared(frame(columns)).shared == [("paid", "amount")]


def test_pairs_that_keep_their_own_levels_and_are_broken_are_named() -> None:
    rng = np.random.default_rng(5)
    coarse = np.repeat(np.arange(10.0), 100)
    fine = coarse + np.where(rng.random(N) < 0.02, 0.0, rng.random(N) * 0.9)
    fine[fine == coarse] += 1e-9
    table = frame({"coarse": coarse, "fine": fine})
    found = shared(table)
    for pair in broken(table, found):
        assert 0 < pair.n_broken <= pair.n_rows == N
        assert (pair.low, pair.high) == ("coarse", "fine")


def test_the_order_of_columns_does_not_matter() -> None:
    columns = claims(6)
    first = shared(frame(columns))
    second = shared(frame(dict(reversed(list(columns.items())))))
    for name in columns:
        assert first.groups[name].equals(second.groups[name])


def test_a_chance_order_takes_no_value() -> None:
    """By chance, all smokers have at least as many cigarettes as points of satisfaction. Few smoke
    exactly 4.
    """
    rng = np.random.default_rng(7)
    points = rng.integers(1, 6, N).astype(float)
    cigarettes = np.full(N, np.nan)
    cigarettes[:300] = np.maximum(rng.integers(5, 40, 300), points[:300])
    cigarettes[:2] = points[:2] = 4
    table = frame({"points": points, "cigarettes": cigarettes})
    after = shared(table)
    assert not after.shared
    assert set(published(table, after, "points")) == {1, 2, 3, 4, 5}


def test_a_price_of_a_product_keeps_its_value() -> None:
    import pandas as pd

    rng = np.random.default_rng(8)
    price = np.round(rng.lognormal(3, 1, 20), 2)
    product = rng.integers(0, 20, N)
    total = np.round(price[product] * (1 + 0.01 * rng.integers(0, 300, N)), 2)
    rows = pd.DataFrame(
        {"product": [f"p{code}" for code in product], "price": price[product], "total": total}
    )
    real = real_tables({"train": rows}, {"train": "train"})
    assert [relation.name for relation in real["train"].relations] == [
        "price <= total",
        "product -> price",
    ]
    train = without_rare_values(real, K)["train"]
    assert np.array_equal(train["price"].cells, rows["price"])
    assert (train["total"].cells != rows["total"]).any()
