"""Rewritten columns: restored exactly, and no generator breaks a relation or leaves the range of a
column.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from privacy_assets.generators.base import FittedGenerator, Generator
from privacy_assets.generators.bayes import BayNet, PrivBayes
from privacy_assets.generators.registry import load_generator
from privacy_assets.generators.rewriting import OrderedColumn, Rewriting, WithRelations
from privacy_assets.generators.synthpop import SynthPop
from privacy_assets.tables.canonical import canonical_table
from privacy_assets.tables.column import Column
from privacy_assets.tables.declared import Declared
from privacy_assets.tables.relations import Determined, Relation
from privacy_assets.tables.table import Table
from privacy_assets.tables.threshold_rule import without_rare_values

N = 1_000
GENERATORS: dict[str, Generator] = {
    "synthpop": SynthPop(min_samples_leaf=20),
    "visit": SynthPop(
        visit=(
            "end",
            "town",
            "paid",
            "cigarettes",
            "color",
            "middle",
            "smokes",
            "amount",
            "postcode",
            "start",
        )
    ),
    "baynet": BayNet(degree=2),
}


def stays(n: int = N, seed: int = 0) -> pd.DataFrame:
    """Stays with orders of dates and of amounts, a chain, a code, and a gap."""
    rng = np.random.default_rng(seed)
    start = pd.Timestamp("2021-01-01") + pd.to_timedelta(rng.integers(0, 700, n), unit="D")
    end = start + pd.to_timedelta(rng.poisson(4, n), unit="D")
    amount = np.round(rng.lognormal(6, 1, n), 2)
    middle = np.round(amount * rng.uniform(0.5, 1, n), 2)
    code = rng.integers(0, 30, n)
    smokes = rng.random(n) < 0.4
    return pd.DataFrame({
        "start": start,
        "end": end,
        "paid": np.round(middle * rng.choice([0.0, 0.5, 1.0], n), 2),
        "amount": amount,
        "middle": middle,
        "postcode": [f"{10_000 + 7 * value}x" for value in code],
        "town": [f"town {value // 2}" for value in code],
        "smokes": smokes,
        "cigarettes": np.where(smokes, rng.integers(1, 40, n), np.nan),
        "color": rng.choice(["red", "green", "blue"], n),
    })  # fmt: skip


NAMES = [
    "start <= end",
    "paid <= middle",
    "middle <= amount",
    "postcode -> town",
    "smokes -> gaps of cigarettes",
]


def read(frame: pd.DataFrame, relations: Any = None) -> Table:
    return canonical_table(frame, Declared(relations=relations or {}))


def published(table: Table, min_holders: int = 5) -> Table:
    return without_rare_values({"train": table}, min_holders)["train"]


def rewriting_of(table: Table) -> Rewriting:
    rewriting = Rewriting.of(table, table.relations)
    assert rewriting is not None
    return rewriting


def with_orders(frame: pd.DataFrame, *pairs: tuple[str, str]) -> Table:
    table = Table.read(frame)
    return replace(table, relations=tuple(Relation("order", low, high) for low, high in pairs))


def check_equal(first: Table, second: Table) -> None:
    for name in first.schema.names:
        one, other = first[name], second[name]
        assert one.kind == other.kind
        if one.kind == "numeric":
            np.testing.assert_allclose(one.cells, other.cells, rtol=1e-9, atol=1e-9, err_msg=name)
        else:
            assert one.objects() == other.objects(), name


def check_kept(drawn: Table, train: Table) -> None:
    """No relation is broken, and no value leaves the range of its column."""
    for relation in train.relations:
        is_broken = relation.is_broken(drawn[relation.first], drawn[relation.second])
        assert not is_broken.any(), (relation.name, drawn.frame()[is_broken].head())
    for name in train.schema.names:
        known = train[name].present().floats() if train[name].values is None else None
        if known is None:
            assert set(drawn[name].present().objects()) <= set(train[name].values or ()), name
            continue
        cells = drawn[name].present().floats()
        assert len(cells) == 0 or known.min() <= cells.min() <= cells.max() <= known.max(), name


# Apply and restore


def bounded_frame(form: str, kind: str, n: int = 600) -> tuple[pd.DataFrame, list[tuple[str, str]]]:
    """Columns ``a`` and ``b``, or ``a``, ``c`` and ``b`` between them, that lead to a form."""
    rng = np.random.default_rng(hash((len(form), len(kind))) % 1000)
    base = rng.lognormal(4, 1, n) if "share" in form else rng.normal(size=n) * 100
    if form == "between":
        wide = base + rng.random(n) * 50
        inside = base + rng.random(n) * (wide - base)
        inside[::9] = base[::9]
        columns = {"a": base, "c": wide, "b": inside}
        pairs = [("a", "b"), ("b", "c")]
    elif form == "above":
        columns, pairs = {"a": base, "b": base + rng.exponential(9, n)}, [("a", "b")]
    elif form == "below":
        columns, pairs = {"a": base, "b": base - rng.exponential(9, n)}, [("b", "a")]
    elif form == "share below":
        columns, pairs = {"a": base, "b": base / rng.uniform(0.2, 1, n)}, [("a", "b")]
    else:
        columns, pairs = {"a": base, "b": base * rng.choice([0.0, 0.5, 0.8, 1.0], n)}, [("b", "a")]
    frame = pd.DataFrame(columns)
    if kind == "numeric":
        return frame.round(2), pairs
    whole = frame.apply(np.floor)
    if kind == "integer":
        return whole.astype("Int64"), pairs
    first = pd.Timestamp("2020-01-01")
    return pd.DataFrame(
        {name: first + pd.to_timedelta(whole[name], unit="D") for name in whole}
    ), pairs


@pytest.mark.parametrize("gaps", ["", "first", "second", "both"])
@pytest.mark.parametrize("kind", ["numeric", "integer", "datetime"])
@pytest.mark.parametrize("form", ["above", "below", "share below", "share above", "between"])
def test_training_rows_are_restored(form: str, kind: str, gaps: str) -> None:
    frame, pairs = bounded_frame(form, kind)
    rng = np.random.default_rng(1)
    if gaps in ("first", "both"):
        frame.loc[rng.random(len(frame)) < 0.2, "a"] = None
    if gaps in ("second", "both"):
        frame.loc[rng.random(len(frame)) < 0.2, "b"] = None
    train = with_orders(frame, *pairs)
    rewriting = rewriting_of(train)
    (column,) = (column for column in rewriting.ordered if column.name == "b")
    if kind == "numeric" and gaps in ("", "second"):
        assert column.form == form
    if kind == "datetime":
        assert not column.form.startswith("share"), "dates are trained as days"
    rewritten = rewriting.apply(train)
    assert rewritten.schema["b"].kind == "numeric"
    assert np.array_equal(rewritten["b"].missing, train["b"].missing)
    check_equal(rewriting.restore(rewritten, 0), train)


@pytest.mark.parametrize("form", ["above", "below", "share below", "share above", "between"])
def test_values_are_the_inverse_of_distances(form: Any) -> None:
    rng = np.random.default_rng(2)
    low = rng.uniform(1, 5, 500)
    high = low + rng.choice([0.0, 1.0, 7.0], 500)
    value = low + rng.random(500) * (high - low)
    value[::7] = np.nan
    column = OrderedColumn("b", ("a",), ("c",), form, np.array([1.0, 12.0]))
    distances = column.distances(value, low, high)
    np.testing.assert_allclose(column.values(distances, low, high), value, rtol=1e-12)


@pytest.mark.parametrize("form", ["above", "below", "share below", "share above", "between"])
def test_distances_that_no_row_has_lead_to_values_within_the_bounds(form: Any) -> None:
    low = np.array([1.0, 2.0, 3.0] * 4)
    high = low + 2
    column = OrderedColumn("b", ("a",), ("c",), form, np.array([1.0, 5.0]))
    distances = np.repeat([-3.0, 0.0, 1.0, 99.0], 3)
    value = column.values(distances, low, high)
    assert (low <= value).all() and (value <= high).all()


def test_the_whole_table_is_restored() -> None:
    train = read(stays())
    assert [relation.name for relation in train.relations] == NAMES
    rewriting = rewriting_of(train)
    assert rewriting.names == {"end", "amount", "middle", "town", "cigarettes"}
    rewritten = rewriting.apply(train)
    assert rewritten["town"].missing.all(), "each postcode determines the town"
    check_equal(rewriting.restore(rewritten, 0), train)
    after = published(train)
    check_equal(rewriting_of(after).restore(rewriting_of(after).apply(after), 0), after)


def test_a_chain_is_bounded_through_other_columns() -> None:
    train = read(stays()[["paid", "amount", "middle"]])
    (amount, middle) = rewriting_of(train).ordered
    assert (amount.name, amount.lows, amount.highs) == ("amount", ("paid",), ())
    assert (middle.name, middle.lows, middle.highs) == ("middle", ("paid",), ("amount",))


def test_gaps_of_the_column_in_the_middle_do_not_bound_the_others() -> None:
    """In rows without b, a may be above c. Then no row has b, unless a is at most c."""
    rng = np.random.default_rng(4)
    a = rng.integers(0, 100, N)
    b = a + rng.integers(0, 100, N)
    c = b + rng.integers(0, 100, N)
    has_b = rng.random(N) < 0.5
    frame = pd.DataFrame(
        {
            "a": a,
            "b": pd.array(np.where(has_b, b, -1), dtype="Int64"),
            "c": np.where(has_b, c, a // 2),
        }
    )
    frame.loc[~has_b, "b"] = None
    train = with_orders(frame, ("a", "b"), ("b", "c"))
    rewriting = rewriting_of(train)
    check_equal(rewriting.restore(rewriting.apply(train), 0), train)
    drawn = SynthPop(min_samples_leaf=20).fit(train, seed=0).sample(2 * N, seed=1)
    check_kept(drawn, train)
    assert (drawn["a"].cells > drawn["c"].cells).any()


@pytest.mark.parametrize("first", ["ab", "ba"])
def test_a_bound_beyond_the_range_of_a_column_leaves_a_gap(first: str) -> None:
    """b is never above 50, and missing where a is. A row with such an a has no b."""
    rng = np.random.default_rng(5)
    a = rng.integers(0, 100, N)
    b = np.minimum(a + rng.integers(0, 20, N), 50.0)
    frame = pd.DataFrame({"a": a, "b": np.where(a <= 50, b, np.nan)})[list(first)]
    train = with_orders(frame, ("a", "b"))
    made = rewriting_of(train).apply(train)
    name = first[1]
    shuffled = made[name].take(rng.permutation(N))
    drawn = rewriting_of(train).restore(made.with_columns(shuffled), 0)
    check_kept(drawn, train)
    if first == "ab":
        assert drawn["b"].missing[a > 50].all()


def test_declared_orders_in_both_directions_are_equal_columns() -> None:
    values = np.round(np.random.default_rng(0).lognormal(size=300), 2)
    train = with_orders(pd.DataFrame({"a": values, "b": values}), ("a", "b"), ("b", "a"))
    drawn = SynthPop(min_samples_leaf=20).fit(train, seed=0).sample(500, seed=0)
    assert np.array_equal(drawn["a"].cells, drawn["b"].cells)


def test_a_column_without_values_is_not_rewritten() -> None:
    train = with_orders(
        pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [np.nan, np.nan, 4.0]}), ("a", "b")
    )
    without = train.take(np.arange(2))  # the others are in another table
    assert Rewriting.of(without, train.relations) is None
    assert Rewriting.of(train, ()) is None


# Generators


@pytest.fixture(scope="module")
def train() -> Table:
    return read(stays())


@pytest.fixture(scope="module")
def fitted(train: Table) -> dict[str, FittedGenerator]:
    return {name: generator.fit(train, seed=1) for name, generator in GENERATORS.items()}


@pytest.mark.parametrize("name", GENERATORS)
def test_generators_keep_relations(
    name: str, train: Table, fitted: dict[str, FittedGenerator]
) -> None:
    assert isinstance(fitted[name], WithRelations)
    drawn = fitted[name].sample(2 * N, seed=2)
    check_kept(drawn, train)
    assert drawn.schema == train.schema
    for column in ("end", "middle", "town", "cigarettes"):
        assert len(drawn[column].distinct()) > 0.2 * len(train[column].distinct())


@pytest.mark.parametrize("name", GENERATORS)
@pytest.mark.parametrize("rows", [1, 2, 300])
def test_few_rows_keep_relations(
    name: str, rows: int, train: Table, fitted: dict[str, FittedGenerator]
) -> None:
    for seed in range(5):
        drawn = fitted[name].sample(rows, seed=seed)
        assert len(drawn) == rows
        check_kept(drawn, train)


@pytest.mark.parametrize("name", GENERATORS)
def test_a_loaded_generator_draws_the_same_rows(
    name: str, tmp_path: Path, fitted: dict[str, FittedGenerator]
) -> None:
    fitted[name].save(tmp_path / name)
    loaded = load_generator(tmp_path / name)
    assert isinstance(loaded, WithRelations) and loaded.described() == fitted[name].described()
    first, second = fitted[name].sample(400, seed=3), loaded.sample(400, seed=3)
    assert first.frame().equals(second.frame())
    assert not first.frame().equals(loaded.sample(400, seed=4).frame())


@pytest.mark.parametrize("name", GENERATORS)
def test_relations_hold_after_the_threshold_rule(name: str, train: Table, tmp_path: Path) -> None:
    after = published(train)
    assert {relation.name for relation in after.relations} >= {
        "start <= end",
        "postcode -> town",
        NAMES[-1],
    }
    made = GENERATORS[name].fit(after.for_training(), seed=0)
    drawn = made.sample(2 * N, seed=0)
    check_kept(drawn, after)
    again = drawn.without_rare(after.rules)
    check_kept(again, after)
    for column in ("end", "amount", "middle"):
        assert again[column].equals(drawn[column]), "restored values are published ones"
    made.save(tmp_path)
    assert (
        load_generator(tmp_path)
        .sample(500, seed=7)
        .frame()
        .equals(made.sample(500, seed=7).frame())
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("shape", ["chain", "coarse", "closed", "dates"])
def test_levels_that_are_not_shared_break_no_order(shape: str, seed: int) -> None:
    """The rule is made for each column on its own. Orders that survive in all real rows survive in
    all drawn ones.
    """
    rng = np.random.default_rng(seed)
    low = np.round(rng.gamma(2, 50, N), 2)
    high = low + np.round(rng.exponential(30, N), 2)
    frame = pd.DataFrame({"low": low, "high": high, "color": rng.choice(["red", "blue"], N)})
    if shape == "chain":
        frame["between"] = np.round(low + (high - low) * rng.random(N), 2)
        frame.loc[rng.random(N) < 0.2, "between"] = None
    elif shape == "coarse":
        frame["high"] = np.ceil(high / 50) * 50
        frame["high"] = frame["high"].astype("float32")
    elif shape == "closed":
        frame["high"] = np.array([50.0, 120.0, 400.0, 2000.0])[np.searchsorted([50, 120, 400], low)]
        frame["low"] = np.round(low, 1)
    else:
        frame["low"] = pd.Timestamp("2020-01-01") + pd.to_timedelta(
            (low * 3600).astype(int), unit="s"
        )
        frame["high"] = frame["low"].dt.ceil("D") + pd.to_timedelta(rng.integers(0, 9, N), unit="D")
    train = read(frame)
    assert "low <= high" in [one.name for one in train.relations] or shape == "chain"
    for table in (train, published(train)):
        for generator in (SynthPop(min_samples_leaf=30), BayNet()):
            drawn = generator.fit(table.for_training(), seed=seed).sample(N, seed=seed)
            check_kept(drawn, table)
            check_kept(drawn.without_rare(table.rules), table)


def test_closed_numbers_keep_their_order_and_their_values() -> None:
    """A restored number is replaced by the nearest value of the rows, which must not be below its
    bound.
    """
    rng = np.random.default_rng(0)
    amount = np.round(rng.uniform(0, 100, N), 2)
    limits = np.array([25.0, 50.0, 100.0, 500.0])
    limit = limits[np.minimum(np.searchsorted(limits, amount) + rng.integers(0, 2, N), 3)]
    train = read(pd.DataFrame({"amount": amount, "limit": limit}))
    assert train.schema["limit"].role == "closed" and train.relations
    for generator in (SynthPop(min_samples_leaf=20), BayNet()):
        drawn = generator.fit(train, seed=0).sample(2 * N, seed=0)
        check_kept(drawn, train)
        assert set(drawn["limit"].cells) == set(limits)


def test_a_length_of_stay_is_kept() -> None:
    rng = np.random.default_rng(3)
    frame = stays(3_000)[["start", "end", "color"]]
    ward = rng.integers(0, 3, 3_000)
    frame["ward"] = np.array(["a", "b", "c"])[ward]
    frame["end"] = frame["start"] + pd.to_timedelta(rng.poisson(1 + 8 * ward), unit="D")
    frame = frame[["ward", "start", "end", "color"]]
    drawn = SynthPop().fit(read(frame), seed=0).sample(3_000, seed=0).frame()
    real = (frame["end"] - frame["start"]).dt.days.groupby(frame["ward"]).mean()
    synthetic = (drawn["end"] - drawn["start"]).dt.days.groupby(drawn["ward"]).mean()
    assert np.abs(real - synthetic).max() < 1


# Codes and gaps


def with_rare_codes(n_rare: int = 40) -> pd.DataFrame:
    """Each of a few rows has its own postcode. Half of them are in one town, the others in
    another.
    """
    frame = stays()
    frame.loc[: n_rare - 1, "postcode"] = [f"rare {row}" for row in range(n_rare)]
    frame.loc[: n_rare - 1, "town"] = [f"village {row % 2}" for row in range(n_rare)]
    return frame


@pytest.mark.parametrize(
    "generator", [SynthPop(min_samples_leaf=10, shrinkage=0), BayNet()], ids=["synthpop", "baynet"]
)
def test_rows_with_other_keep_the_town_that_is_drawn(generator: Generator) -> None:
    train = published(read(with_rare_codes()))
    (code,) = (relation for relation in train.relations if relation.kind == "code")
    assert "other" not in dict(code.determined)
    rewritten = rewriting_of(train).apply(train)
    is_other = np.array([value == "other" for value in train["postcode"].objects()])
    assert np.array_equal(rewritten["town"].missing, ~is_other)
    drawn = generator.fit(train.for_training(), seed=0).sample(4 * N, seed=0)
    check_kept(drawn, train)
    frame = drawn.frame()
    towns = frame.loc[frame["postcode"] == "other", "town"]
    assert len(towns) > 50 and towns.notna().all()
    assert set(towns) == {"village 0", "village 1"}


def test_a_single_row_has_a_town() -> None:
    """Among few rows, no other one has the postcode `other`, from which a town could be taken."""
    train = published(read(with_rare_codes()))
    assert not train.schema["town"].nullable
    made = SynthPop(min_samples_leaf=10).fit(train.for_training(), seed=0)
    drawn = [made.sample(1, seed=seed) for seed in range(100)]
    assert any(row["postcode"].objects() == ["other"] for row in drawn)
    assert not any(row["town"].missing.any() for row in drawn)


def test_rows_without_a_postcode_keep_their_town_and_gaps() -> None:
    frame = with_rare_codes()
    frame.loc[100:299, "postcode"] = None
    frame.loc[100:149, "town"] = None
    frame.loc[150:299, "town"] = "abroad"
    train = published(read(frame))
    drawn = (
        SynthPop(min_samples_leaf=10, shrinkage=0)
        .fit(train.for_training(), seed=0)
        .sample(2 * N, seed=0)
    )
    check_kept(drawn, train)
    towns = drawn.frame().query("postcode.isna()")["town"]
    assert 0.1 < towns.isna().mean() < 0.5 and (towns.dropna() == "abroad").mean() > 0.9


def test_gaps_are_made_and_filled() -> None:
    frame = stays()[["cigarettes", "smokes", "postcode", "town"]]
    train = read(frame)
    rewriting = rewriting_of(train)
    made = rewriting.apply(train)
    rng = np.random.default_rng(0)
    shuffled = made["cigarettes"].take(rng.permutation(N))
    assert (shuffled.missing != made["cigarettes"].missing).sum() > 100
    restored = rewriting.restore(made.with_columns(shuffled), 5)
    check_kept(restored, train)
    kept = ~shuffled.missing & ~train["cigarettes"].missing
    assert np.array_equal(restored["cigarettes"].cells[kept], shuffled.cells[kept]), (
        "only gaps are filled"
    )
    assert restored.frame().equals(rewriting.restore(made.with_columns(shuffled), 5).frame())
    assert not restored.frame().equals(rewriting.restore(made.with_columns(shuffled), 6).frame())


def test_gaps_of_codes_and_of_ordered_columns_are_kept() -> None:
    """The postcode is missing exactly where the town is, and those who are not insured have no
    dates.
    """
    frame = with_rare_codes()
    rng = np.random.default_rng(6)
    abroad = rng.random(N) < 0.2
    frame.loc[abroad, ["postcode", "town"]] = None
    frame.insert(5, "insured", np.where(rng.random(N) < 0.8, "yes", "no"))
    frame.loc[frame["insured"] == "no", ["end", "paid"]] = None
    train = read(frame)
    names = {relation.name for relation in train.relations}
    assert {"town -> gaps of postcode", "insured -> gaps of end", "postcode -> town"} <= names
    for table in (train, published(train)):
        for generator in (SynthPop(min_samples_leaf=50), BayNet()):
            drawn = generator.fit(table.for_training(), seed=0).sample(2 * N, seed=0)
            check_kept(drawn, table)


def test_a_gap_that_is_filled_gets_what_its_value_determines() -> None:
    """Where the postcode is drawn as missing although the town is not, a postcode is filled in, and
    then its town.
    """
    codes = [f"p{row % 10}" for row in range(300)]
    towns = [f"t{row % 10 // 2}" for row in range(300)]
    for row in range(0, 300, 3):
        codes[row] = towns[row] = None  # type: ignore[call-overload]
    train = Table.read(pd.DataFrame({"code": codes, "town": towns}))
    pairs = tuple(Determined(f"p{code}", f"t{code // 2}") for code in range(10))
    gaps = (*(Determined(f"t{town}", False) for town in range(5)), Determined(None, True))
    code = Relation("code", "code", "town", determined=pairs)
    train = replace(train, relations=(code, Relation("gap", "town", "code", determined=gaps)))
    rewriting = rewriting_of(train)
    made = rewriting.apply(train)
    towns_drawn = Column.of_codes(
        "town", "categorical", np.full(300, 3), [f"t{town}" for town in range(5)]
    )
    restored = rewriting.restore(made.with_columns(towns_drawn), 0)
    check_kept(restored, train)


def test_a_circle_of_declared_codes_keeps_both() -> None:
    frame = stays()[["town", "color"]]
    frame["alias"] = frame["town"].str.replace("town", "place")
    train = read(frame, {"town -> alias": True, "alias -> town": True})
    assert {relation.name for relation in train.relations} == {"town -> alias", "alias -> town"}
    drawn = SynthPop(min_samples_leaf=20).fit(train, seed=0).sample(2 * N, seed=0)
    check_kept(drawn, train)
    assert drawn["town"].distinct().objects() == train["town"].distinct().objects()


def test_codes_of_codes_and_of_booleans() -> None:
    frame = stays()[["town", "postcode", "color"]]
    frame["state"] = [f"state {int(town.split()[1]) // 4}" for town in frame["town"]]
    frame["is_north"] = frame["state"].isin(["state 0", "state 2"])
    frame = frame[["is_north", "state", "town", "postcode", "color"]]
    train = read(frame)
    assert len(train.relations) == 3
    for generator in (SynthPop(min_samples_leaf=20), BayNet()):
        drawn = generator.fit(train, seed=0).sample(2 * N, seed=0)
        check_kept(drawn, train)
        assert not drawn["is_north"].missing.any()


# Categories that determine numbers and times


def sales(n: int = 2 * N, n_rare: int = 0) -> pd.DataFrame:
    """Sales of products with a price, a day and, for some, a size; the price is at most the
    total.
    """
    rng = np.random.default_rng(3)
    product = rng.integers(0, 40, n)
    price = np.round(rng.lognormal(3, 1, 40), 2)
    size = np.where(np.arange(40) % 4 == 0, np.nan, rng.integers(1, 9, 40))
    launch = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 700, 40), unit="D")
    day = launch[product] + pd.to_timedelta(rng.integers(1, 400, n), unit="D")
    names = np.array([f"product {code}" for code in product], dtype=object)
    names[:n_rare] = [f"rare {row}" for row in range(n_rare)]
    cost = price[product].copy()
    cost[:n_rare] = rng.choice([5.0, 7.5], n_rare)
    return pd.DataFrame({
        "total": np.round(cost * (1 + rng.poisson(2, n)), 2),
        "product": names,
        "price": cost,
        "launch": launch[product],
        "day": day,
        "size": size[product],
        "shop": rng.choice(["a", "b", "c"], n),
    })  # fmt: skip


SALES = [
    "price <= total",
    "launch <= day",
    "product -> price",
    "product -> launch",
    "product -> size",
]


@pytest.mark.parametrize("generator", [SynthPop(), BayNet(degree=2)], ids=["synthpop", "baynet"])
@pytest.mark.parametrize("rows", [1, 2, 4 * N])
def test_numbers_and_times_that_a_category_determines_are_kept(
    generator: Generator, rows: int, tmp_path: Path
) -> None:
    private = read(sales())
    rewriting = rewriting_of(private)
    rewritten = rewriting.apply(private)
    assert all(rewritten[name].missing.all() for name in ("price", "launch", "size"))
    assert [column.name for column in rewriting.ordered] == ["total", "day"]
    check_equal(rewriting.restore(rewritten, seed=0), private)
    train = published(private)
    assert [relation.name for relation in train.relations] == SALES
    made = generator.fit(train.for_training(), seed=0)
    drawn = made.sample(rows, seed=1)
    check_kept(drawn, train)
    check_kept(drawn.without_rare(train.rules), train)
    assert not any(drawn[name].missing.any() for name in ("total", "price", "launch", "day"))
    made.save(tmp_path)
    assert load_generator(tmp_path).sample(rows, seed=1).frame().equals(drawn.frame())


@pytest.mark.parametrize(
    "generator", [SynthPop(min_samples_leaf=10, shrinkage=0), BayNet()], ids=["synthpop", "baynet"]
)
def test_rows_with_other_have_a_price_of_real_rows_with_other(generator: Generator) -> None:
    train = published(read(sales(n_rare=40)))
    (relation,) = (one for one in train.relations if one.name == "product -> price")
    assert "other" not in dict(relation.determined)
    drawn = generator.fit(train.for_training(), seed=0).sample(6 * N, seed=0)
    check_kept(drawn, train)
    frame = drawn.frame()
    prices = frame.loc[frame["product"] == "other", "price"]
    real = train.frame()
    assert len(prices) > 30 and set(prices) == set(real.loc[real["product"] == "other", "price"])


def test_free_rows_have_values_where_no_real_free_row_misses_one() -> None:
    """Determined sizes are trained as missing, and leaves do not tell rare products apart."""
    frame = sales(3 * N)
    is_sold_loose = frame["product"].str.startswith("product 1")
    frame["size"] = frame["size"].mask(is_sold_loose)
    frame.loc[:89, "product"] = [f"rare {row}" for row in range(90)]
    frame.loc[:89, "size"] = np.arange(90) % 7
    train = published(read(frame))
    assert train.schema["size"].nullable
    for generator in (SynthPop(), BayNet()):
        drawn = generator.fit(train.for_training(), seed=0).sample(6 * N, seed=0)
        check_kept(drawn, train)
        made = drawn.frame()
        assert made["size"].isna().any()
        assert made.loc[made["product"] == "other", "size"].notna().all()


@pytest.mark.parametrize("generator", [SynthPop(), BayNet(degree=2)], ids=["synthpop", "baynet"])
def test_an_order_between_two_columns_of_one_code_is_kept_in_free_rows(
    generator: Generator, tmp_path: Path
) -> None:
    frame = sales(3 * N, n_rare=200)
    rng = np.random.default_rng(5)
    share = np.where(frame["product"].str.startswith("rare"), rng.random(3 * N), 0.5)
    frame.insert(1, "cost", np.round(frame["price"] * share, 2))
    train = published(read(frame))
    assert {"cost <= price", "product -> price", "product -> cost"} <= {
        one.name for one in train.relations
    }
    made = generator.fit(train.for_training(), seed=0)
    drawn = made.sample(6 * N, seed=0)
    check_kept(drawn, train)
    check_kept(drawn.without_rare(train.rules), train)
    assert (drawn.frame()["product"] == "other").sum() > 100
    made.save(tmp_path)
    assert load_generator(tmp_path).sample(6 * N, seed=0).frame().equals(drawn.frame())


def test_an_order_between_columns_of_two_codes_replaces_the_second_code() -> None:
    """A looked-up price and a looked-up limit could not be moved."""
    rng = np.random.default_rng(2)
    product = rng.integers(0, 20, 3 * N)
    tier = np.minimum(product // 5 + rng.integers(0, 2, 3 * N), 4)
    frame = pd.DataFrame({
        "product": [f"p{code}" for code in product],
        "price": 10.0 + product // 5 * 10,
        "tier": [f"t{code}" for code in tier],
        "limit": 15.0 + tier * 10,
    })  # fmt: skip
    train = published(read(frame))
    names = {relation.name for relation in train.relations}
    assert {"price <= limit", "product -> price", "tier -> limit"} <= names
    rewriting = rewriting_of(train)
    assert [relation.name for relation in rewriting.determined] == ["product -> price"]
    drawn = SynthPop().fit(train.for_training(), seed=0).sample(6 * N, seed=0)
    kept = tuple(relation for relation in train.relations if relation.name != "tier -> limit")
    check_kept(drawn, replace(train, relations=kept))


def test_an_order_to_a_column_with_public_bounds_replaces_the_code() -> None:
    train = read(sales(), {"product -> price": True, "price <= total": True})
    made = PrivBayes(epsilon=5.0, bounds={"total": [0, 5_000]}).fit(train, seed=0)
    assert isinstance(made, WithRelations)
    assert [relation.name for relation in made.rewriting.determined] == []
    assert [column.name for column in made.rewriting.ordered] == ["price"]


def test_products_and_prices_that_are_missing_together_keep_other_products() -> None:
    frame = sales(3 * N, n_rare=90)
    frame.loc[frame.index % 5 == 4, ["product", "price"]] = None
    train = published(read(frame[["shop", "product", "price", "day"]]))
    assert {"product -> price", "price -> gaps of product"} <= {one.name for one in train.relations}
    for generator in (SynthPop(), BayNet()):
        drawn = generator.fit(train.for_training(), seed=0).sample(6 * N, seed=0)
        check_kept(drawn, train)
        assert 0.01 < (drawn.frame()["product"] == "other").mean() < 0.06


def test_a_gap_of_free_rows_is_kept_next_to_a_code() -> None:
    frame = sales(3 * N, n_rare=200)
    kind = pd.Series(np.arange(3 * N) % 4)
    is_rare = frame["product"].str.startswith("rare")
    kind[~is_rare] = frame.loc[~is_rare, "product"].str[8:].astype(int) % 4
    frame["kind"] = [f"k{code}" for code in kind]
    frame["size"] = frame["size"].where(is_rare, frame["size"]).fillna(3.0).mask(kind == 0)
    train = published(read(frame[["kind", "product", "size", "shop"]]))
    assert {"product -> size", "kind -> gaps of size"} <= {one.name for one in train.relations}
    check_kept(SynthPop().fit(train.for_training(), seed=0).sample(6 * N, seed=0), train)
    off = read(frame[["kind", "product", "size", "shop"]], {"product -> size": False})
    assert "kind -> gaps of size" in {one.name for one in off.relations}


def test_a_category_of_one_person_that_a_public_list_keeps_determines_nothing() -> None:
    frame = sales()
    frame.loc[0, "product"] = "product 99"
    allowed = {
        "product": {"values": [f"product {code}" for code in range(100)], "source": "catalog"}
    }
    table = canonical_table(frame, Declared(allowed_values=allowed))
    train = published(table)
    assert "product 99" in train["product"].objects()
    (before,) = (one for one in table.relations if one.name == "product -> price")
    (after,) = (one for one in train.relations if one.name == "product -> price")
    assert "product 99" in dict(before.determined) and "product 99" not in dict(after.determined)
    assert len(after.determined) == 40


def test_privbayes_keeps_a_declared_price_unless_its_bounds_are_public() -> None:
    train = read(sales(), {"product -> price": True})
    made = PrivBayes(epsilon=5.0).fit(train, seed=0)
    drawn = made.sample(N, seed=0)
    kept = tuple(relation for relation in train.relations if relation.is_declared)
    check_kept(drawn, replace(train, relations=kept))
    assert "ranges, gaps and determined values of price" in made.privacy.outside_guarantee
    bounded = PrivBayes(epsilon=5.0, bounds={"price": [0, 1_000]}).fit(train, seed=0)
    assert not isinstance(bounded, WithRelations)


# Without relations, and with an epsilon


@pytest.mark.parametrize(
    "generator", [SynthPop(), BayNet(), PrivBayes()], ids=lambda generator: generator.name
)
def test_a_table_without_relations_is_trained_as_it_is(
    generator: Generator, tmp_path: Path
) -> None:
    frame = stays(400)[["start", "paid", "color", "smokes"]]
    train = read(frame)
    assert train.relations == ()
    without = Table.read(frame).with_schema(train.schema)
    made = generator.fit(train, seed=3)
    assert not isinstance(made, WithRelations)
    assert (
        made.sample(500, seed=4)
        .frame()
        .equals(generator.fit(without, seed=3).sample(500, seed=4).frame())
    )
    made.save(tmp_path)
    assert (
        load_generator(tmp_path)
        .sample(500, seed=4)
        .frame()
        .equals(made.sample(500, seed=4).frame())
    )


def test_relations_that_are_switched_off_are_not_kept() -> None:
    train = read(stays(), dict.fromkeys(NAMES, False))
    assert train.relations == ()
    drawn = SynthPop().fit(train, seed=0).sample(N, seed=0)
    assert (drawn["start"].cells > drawn["end"].cells).any()


def test_privbayes_uses_declared_relations_only() -> None:
    generator = PrivBayes(epsilon=5.0)
    found = generator.fit(read(stays()), seed=0)
    assert not isinstance(found, WithRelations)
    assert not any("determined" in outside for outside in found.privacy.outside_guarantee)
    train = read(stays(), {"postcode -> town": True, "start <= end": True})
    declared = generator.fit(train, seed=0)
    assert isinstance(declared, WithRelations)
    assert "ranges, gaps and determined values of end, town" in declared.privacy.outside_guarantee
    assert (declared.privacy.epsilon, declared.privacy.delta) == (5.0, 0.0)
    drawn = declared.sample(2 * N, seed=0)
    kept = tuple(relation for relation in train.relations if relation.is_declared)
    check_kept(drawn, replace(train, relations=kept))
    assert (drawn["paid"].cells > drawn["amount"].cells).any(), "the others are not kept"


def test_a_loaded_privbayes_states_the_same_guarantee(tmp_path: Path) -> None:
    train = published(read(stays(), {"postcode -> town": True, "start <= end": True}))
    made = PrivBayes(epsilon=5.0).fit(train.for_training(), seed=0)
    made.save(tmp_path)
    loaded = load_generator(tmp_path)
    assert loaded.privacy == made.privacy and loaded.described() == made.described()
    assert loaded.sample(300, seed=2).frame().equals(made.sample(300, seed=2).frame())


def test_columns_with_public_bounds_are_not_rewritten() -> None:
    train = read(stays(), dict.fromkeys(NAMES[:3], True))
    bounds = {"amount": [0, 50_000], "paid": [0, 50_000]}
    made = PrivBayes(epsilon=5.0, bounds=bounds).fit(train, seed=0)
    assert isinstance(made, WithRelations)
    assert [column.name for column in made.rewriting.ordered] == ["end", "middle"]
    (outside,) = (text for text in made.privacy.outside_guarantee if "determined" in text)
    assert outside == "ranges, gaps and determined values of end, middle"
    assert "amount" not in str(made.privacy.outside_guarantee)
    everything = {name: [0, 50_000] for name in ("paid", "amount", "middle")}
    made = PrivBayes(epsilon=5.0, bounds=everything).fit(
        read(stays(), {"paid <= middle": True}), seed=0
    )
    assert not isinstance(made, WithRelations)


def test_audits_fit_coded_cells_without_relations(train: Table) -> None:
    from privacy_assets.tables.encoding import MatrixCoding

    coding = MatrixCoding.fit([train], train.schema)
    cells = coding.code(train)
    draw = SynthPop().drawer(cells, coding)
    plain = replace(train, relations=())
    other = SynthPop().drawer(MatrixCoding.fit([plain], plain.schema).code(plain), coding)
    rows = np.arange(300)
    assert np.array_equal(draw(rows, 100, 0), other(rows, 100, 0), equal_nan=True)
