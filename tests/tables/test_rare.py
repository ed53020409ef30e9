"""The threshold rule: replacement of values that only a few people have."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from privacy_assets.errors import ConfigError, InputError
from privacy_assets.tables.canonical import real_tables, without_rare_values
from privacy_assets.tables.declared import Declared
from privacy_assets.tables.rare import has_fine_resolution, real_schema, replaced_cells
from privacy_assets.tables.table import Table

ROLES = ("train", "holdout", "reference")
N = 1200


def declared(**given: Any) -> Declared:
    return Declared.of(None, given.pop("new_values", None), given.pop("allowed_values", None), **given)


def replaced(
    frame: pd.DataFrame, k: int = 5, *, subject: str | None = None, known: Any = None, kinds: Any = None, **given: Any
) -> tuple[dict[str, Table], pd.DataFrame]:
    """The real tables, of which every third row is in one, after the rule; and all rows in the given order."""
    stated, parts = declared(**given), {role: frame.iloc[at::3] for at, role in enumerate(ROLES)}
    frames: Any = {role: part.reset_index(drop=True) for role, part in parts.items()}
    real = real_tables(frames, {role: role for role in ROLES}, subject, kinds, stated)
    new = without_rare_values(real, k, stated, known or {})
    shown = [new[role].to_published_frame().set_index(part.index) for role, part in parts.items()]
    return new, pd.concat(shown).sort_index()


def codes(rng: np.random.Generator, n: int = N) -> np.ndarray:
    """Codes such as B07.3, a third of them rare."""
    drawn = np.minimum(rng.zipf(1.4, n), 3000)
    return np.array([f"{'ABCDEFGH'[code % 8]}{code // 8 % 100:02d}.{code % 7}" for code in drawn])


def numbers(rng: np.random.Generator, n: int = N) -> pd.DataFrame:
    """Columns of numbers and times, fine and coarse."""
    times = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 10**8, n), unit="s")
    return pd.DataFrame({
        "income": np.round(rng.lognormal(10, 1, n), 2), "age": rng.integers(18, 95, n), "x": rng.normal(size=n),
        "visit": times, "day": times.normalize(), "short": rng.normal(size=n).astype(np.float32),
        "gaps": np.where(rng.random(n) < 0.5, np.nan, rng.normal(size=n)),
    })  # fmt: skip


@pytest.mark.parametrize("k", [2, 5, 20])
@pytest.mark.parametrize("rows_each", [1, 3])
def test_the_categories_that_fewer_people_have_are_replaced(k: int, rows_each: int) -> None:
    rng = np.random.default_rng(k)
    frame = pd.DataFrame({"pid": [f"p{i // rows_each}" for i in range(N)], "code": codes(rng)})
    new, shown = replaced(frame, k, subject="pid")
    held = frame.groupby("code")["pid"].nunique()  # the oracle
    expected = frame["code"].where(frame["code"].map(held) >= k, "other")
    assert shown["code"].tolist() == expected.tolist()
    rule = new["train"].rules["code"]
    assert set(rule.frequent) == set(held.index[held >= k])
    assert (rule.cells, rule.rows) == ((expected == "other").sum(), N)


def test_a_rare_code_becomes_its_longest_frequent_prefix() -> None:
    frame = pd.DataFrame({"code": codes(np.random.default_rng(0))})
    _, shown = replaced(frame, rare_values={"code": {"prefix": [3, 1]}})
    count = {length: frame["code"].str[:length].value_counts() for length in (1, 3, 5)}

    def expected(code: str) -> str:
        return next((code[:length] for length in (5, 3, 1) if count[length][code[:length]] >= 5), "other")

    assert shown["code"].tolist() == frame["code"].map(expected).tolist()
    assert {3, 5} <= set(shown["code"].str.len())


def test_a_rare_code_that_is_a_frequent_prefix_is_kept_by_every_application() -> None:
    values = ["J45"] * 2 + ["J45.1"] * 3 + ["J45.2"] * 4 + ["K01.1"] * 1_000 + ["L9"] * 3
    new, shown = replaced(pd.DataFrame({"code": values}), rare_values={"code": {"prefix": [3]}})
    assert shown["code"].tolist() == ["J45"] * 9 + ["K01.1"] * 1_000 + ["other"] * 3
    rule, schema = new["train"].rules["code"], new["train"].schema["code"]
    assert rule.apply(new["train"]["code"], schema).equals(new["train"]["code"])


def test_a_copy_of_a_short_float_at_the_bound_is_a_copy() -> None:
    frame = pd.DataFrame({"x": np.random.default_rng(0).normal(size=N).astype("float32"), "y": np.arange(N) % 9})
    new, shown = replaced(frame)
    again = Table.of(shown, new["train"].schema, where="s", synthetic=True)
    assert set(again["x"].cells) <= {cell for table in new.values() for cell in table["x"].cells}


def test_tiny_numbers_have_a_rule() -> None:
    _, shown = replaced(pd.DataFrame({"x": np.random.default_rng(0).normal(size=N) * 1e-300, "y": np.arange(N) % 9}))
    assert np.isfinite(shown["x"]).all()


@pytest.mark.parametrize(
    ("values", "kinds", "expected"),
    [
        ([True] * 4 + [False] * (N - 4), None, {None: 4, False: N - 4}),
        ([7] * 4 + [5] * 100 + [1] * (N - 104), None, {5: 104, 1: N - 104}),
        ([7] * 4 + [5] * 100 + [1] * (N - 104), {"v": "categorical"}, {None: 4, 5: 100, 1: N - 104}),
        (pd.Categorical(["z"] * 4 + ["a"] * (N - 4)), None, {"other": 4, "a": N - 4}),
        (["z"] * 4 + [None] * 600 + ["a"] * (N - 604), None, {"other": 4, None: 600, "a": N - 604}),
        ([3.5] * 4 + [np.nan] * (N - 4), None, {None: N}),
    ],
    ids=["boolean", "few numbers", "number declared a category", "category", "missing values", "nearly empty"],
)
def test_each_kind_of_column(values: Any, kinds: Any, expected: dict[Any, int]) -> None:
    frame = pd.DataFrame({"v": values, "x": np.arange(N) % 40})
    new, shown = replaced(frame, kinds=kinds)
    assert [None if pd.isna(value) else value for value in shown["v"]] == list(
        itertools.chain.from_iterable([value] * count for value, count in expected.items())
    )
    column = new["train"].schema["v"]
    assert column.nullable or None not in expected


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("rows_each", [1, 4])
def test_no_number_is_beyond_the_fifth_person_from_an_end(seed: int, rows_each: int) -> None:
    frame = numbers(np.random.default_rng(seed)).assign(pid=[f"p{i // rows_each}" for i in range(N)])
    _, shown = replaced(frame, subject="pid")
    for name in ("income", "x", "short", "gaps", "visit", "day"):
        per_person = frame.groupby("pid")[name]
        fifth = per_person.max().nlargest(5).iloc[-1], per_person.min().nsmallest(5).iloc[-1]
        assert fifth[1] <= shown[name].min() <= shown[name].max() <= fifth[0]
        assert (shown[name] == shown[name].max()).sum() >= 5, "the bound belongs to several people"


def test_bounds_have_two_significant_digits_and_shared_ends_are_kept() -> None:
    values = np.r_[np.arange(5, 1_000), [123_456, 98_765, 87_654, 76_543, 65_432]].astype(float)
    frame = pd.DataFrame({"v": np.r_[values, values[:995], np.ones(5) * 9], "shared": np.arange(2_000) % 30})
    new, shown = replaced(frame)
    assert new["train"].rules["v"].high == 65_000 and new["train"].rules["v"].low is not None
    assert shown["v"].max() == 65_000 and (new["train"].rules["shared"].high, shown["shared"].max()) == (None, 29)


def test_digits_that_few_people_need_are_not_published() -> None:
    rng = np.random.default_rng(0)
    values, times = rng.integers(0, 300, N) / 10, pd.Series(pd.Timestamp("2024-01-01"), index=range(N))
    times += pd.to_timedelta(rng.integers(0, 30, N), unit="D")
    values[:4] += 0.037
    times[:4] += pd.Timedelta(hours=7, minutes=3)
    _, shown = replaced(pd.DataFrame({"v": values, "t": times}))
    assert np.array_equal(shown["v"], np.round(shown["v"], 1)) and (shown["t"] == shown["t"].dt.normalize()).all()
    values[4], times[4] = values[4] + 0.021, times[4] + pd.Timedelta(hours=1)  # a fifth person
    new, _ = replaced(pd.DataFrame({"v": values, "t": times}))
    assert (new["train"].schema["v"].precision, new["train"].schema["t"].precision) == (3, "hour")


def test_fine_numbers_are_rounded_until_most_people_share_a_value() -> None:
    frame = numbers(np.random.default_rng(0))
    new, shown = replaced(frame)
    precision = {column.name: column.precision for column in new["train"].schema.columns}
    assert precision["age"] == 0 and isinstance(precision["income"], int) and precision["income"] < 2
    people = np.arange(N)
    for name in frame:
        column = Table.read(pd.DataFrame({name: shown[name]}))[name]
        assert not has_fine_resolution(column, people), name
        finer = Table.read(frame[[name]])[name]
        assert has_fine_resolution(finer, people) == (precision[name] != real_schema(
            new["train"].schema, new["train"].rules)[name].precision), name  # fmt: skip


@pytest.mark.parametrize("k", [5, 20])
def test_a_copied_row_stays_a_copy_and_other_values_are_left_alone(k: int) -> None:
    rng = np.random.default_rng(3)
    frame = numbers(rng).assign(code=codes(rng))
    new, _ = replaced(frame, k)
    rules, schema = new["train"].rules, new["train"].schema
    copy = Table.of(frame.iloc[::3].reset_index(drop=True), real_schema(schema, rules), where="s", synthetic=True)
    pd.testing.assert_frame_equal(
        copy.without_rare(rules).with_schema(schema).to_published_frame(), new["train"].to_published_frame()
    )
    assert replaced_cells(rules["code"], copy["code"], schema["code"]) == int(
        (new["train"].to_published_frame()["code"] == "other").sum()
    )
    foreign = frame.iloc[:2].assign(code=["Q99.9", "other"], income=[1e9, 5_000.0])
    made = Table.of(foreign, real_schema(schema, rules), where="s", synthetic=True).without_rare(rules)
    assert made["code"].objects() == ["Q99.9", "other"], "the contract decides about values that no real row has"
    assert made["income"].cells[0] == 1e9 and made["income"].cells[1] <= 5_000


def test_neither_the_order_of_rows_nor_more_rows_of_a_person_change_the_rule() -> None:
    rng = np.random.default_rng(5)
    frame = numbers(rng).assign(code=codes(rng), pid=[f"p{i}" for i in range(N)])
    real = real_tables({"train": frame}, {"train": "train"}, "pid", None)
    again = real_tables(
        {"train": pd.concat([frame, frame.iloc[:50]]).sample(frac=1, random_state=0)}, {"train": "train"}, "pid", None
    )
    one, other = (without_rare_values(tables, 5)["train"].rules for tables in (real, again))
    for name, rule in one.items():
        assert (rule.frequent, rule.replaced, rule.low, rule.high, rule.precision) == (
            other[name].frequent, other[name].replaced, other[name].low, other[name].high, other[name].precision,
        )  # fmt: skip


def test_a_common_value_does_not_make_a_column_coarse() -> None:
    """More than half pay a flat fee or come at midnight. The other values belong to one person each."""
    rng = np.random.default_rng(0)
    flat = rng.random(N) < 0.55
    times = pd.Timestamp("2024-01-01") + pd.to_timedelta(np.where(flat, 0, rng.integers(0, 10**7, N)), unit="s")
    frame = pd.DataFrame({"fee": np.where(flat, 20.0, np.round(rng.lognormal(6, 1, N), 2)), "at": times})
    new, shown = replaced(frame)
    own = frame.loc[~flat]
    assert not shown["at"].isin(own["at"]).any() and (shown["fee"].isin(own["fee"])).mean() < 0.01
    assert (shown.loc[flat, "fee"] == 20).all() and (shown.loc[flat, "at"] == times.min()).all()


@pytest.mark.parametrize("few", [[3.25, 9e6], [3.25, 4.75]])
def test_the_value_that_nearly_everybody_has_is_kept(few: list[float]) -> None:
    frame = pd.DataFrame({"v": [1_234_567.25] * (N - 2) + few, "w": [1_234.5] * N})
    _, shown = replaced(frame)
    assert set(shown["v"]) == {1_234_567.25} and set(shown["w"]) == {1_234.5}


@pytest.mark.parametrize("filled", [5, 7, 9])
def test_numbers_of_fewer_than_twice_as_many_people_are_missing(filled: int) -> None:
    rng = np.random.default_rng(filled)
    times = pd.Series(pd.NaT, index=range(N), dtype="datetime64[us]")
    times[:filled] = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 10**7, filled), unit="s")
    frame = pd.DataFrame({"t": times, "x": [*rng.normal(size=filled), *[np.nan] * (N - filled)], "y": np.arange(N) % 9})
    new, shown = replaced(frame)
    assert shown["t"].isna().all() and shown["x"].isna().all() and "'t', 'x'" in " ".join(new["train"].notes)


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Kolkata", "UTC"])
def test_days_and_months_are_those_of_the_clock_of_a_zone(zone: str) -> None:
    rng = np.random.default_rng(0)
    clock = pd.Series(pd.Timestamp("1960-01-01") + pd.to_timedelta(rng.integers(0, 2 * 10**9, N), unit="s"))
    frame = pd.DataFrame({"t": clock.dt.tz_localize(zone, ambiguous="NaT", nonexistent="shift_forward")}).dropna()
    _, shown = replaced(frame.reset_index(drop=True))
    found = shown["t"].dt.tz_convert(zone)
    assert (found.dt.day == 1).all() and (found.dt.normalize() == found).all()


def test_declared_prefixes_lead_past_the_stop_on_rare_codes() -> None:
    frame = pd.DataFrame({"code": [f"A{i % 3}.{i // 4}" for i in range(N)]})
    with pytest.raises(InputError, match=r"rare_values: \{column: \{prefix: \[5, 3, 1\]\}\}"):
        replaced(frame)
    new, shown = replaced(frame, rare_values={"code": {"prefix": [2]}})
    assert set(shown["code"]) == {"A0", "A1", "A2"} and "prefix" not in " ".join(new["train"].notes)
    number = pd.DataFrame({"code": np.arange(N) % 50})
    with pytest.raises(ConfigError, match="rare_values: column 'code' has no text"):
        replaced(number, rare_values={"code": {"prefix": [2]}})


@pytest.mark.parametrize("n", [1, 2, 4])
def test_nothing_of_fewer_people_than_the_threshold_is_published(n: int) -> None:
    frame = pd.DataFrame({"code": list("abcd")[:n], "x": [1.5, 2.5, 3.5, 4.5][:n], "f": [True, False, True, False][:n]})
    real = real_tables({"train": frame}, {"train": "train"}, None, None)
    shown = without_rare_values(real, 5)["train"].to_published_frame()
    assert shown["code"].tolist() == ["other"] * n and shown["x"].isna().all() and shown["f"].isna().all()


def test_values_of_the_last_list_stay_publishable() -> None:
    frame = pd.DataFrame({"code": ["a"] * 1_000 + ["b"] * 3 + ["c"] * 3})
    new, shown = replaced(frame, known={"code": ["b", "gone"]})
    assert set(shown["code"]) == {"a", "b", "other"} and new["train"].rules["code"].frequent == ("a", "b")


def test_only_a_list_with_a_source_exempts_its_values(tmp_path: Path) -> None:
    frame = pd.DataFrame({"state": ["BY"] * 1_000 + ["HB"] * 3 + ["XX"] * 2})
    file = tmp_path / "states.csv"
    file.write_text("code,name\nBY,Bayern\nHB,Bremen\nHH,Hamburg\n")
    assert set(replaced(frame, allowed_values={"state": ["BY", "HB"]})[1]["state"]) == {"BY", "other"}
    for listed in ({"values": ["BY", "HB"]}, {"file": str(file)}):
        stated = {"state": {**listed, "source": "ISO 3166-2"}}
        new, shown = replaced(frame, allowed_values=stated)
        assert set(shown["state"]) == {"BY", "HB", "other"} and new["train"].rules["state"].public == 1
        assert "'state' (1)" in " ".join(new["train"].notes)
        signed = declared(allowed_values=stated).stated(lambda text: "keyed")["allowed_values"]["state"]
        assert signed["source"] == "ISO 3166-2" and signed["values"] == len(
            declared(allowed_values=stated).allowed_values["state"]
        )
    for wrong in (
        {"values": ["BY"]},
        {"source": "ISO"},
        {"values": ["BY"], "file": "x", "source": "ISO"},
        {"source": " ", "values": ["a"]},
    ):
        with pytest.raises(ConfigError, match="public list of 'state' needs its values and their source"):
            declared(allowed_values={"state": wrong})


@pytest.mark.parametrize(
    "wrong", [["a"], {"prefix": []}, {"prefix": [0]}, {"prefix": ["3"]}, {"suffix": [3]}, {"prefix": 3}]
)
def test_a_wrong_hierarchy_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"rare_values: 'code' needs a list of lengths.*prefix: \[5, 3, 1\]"):
        declared(rare_values={"code": wrong})
    with pytest.raises(ConfigError, match="rare_values: there is no column 'cod'. Did you mean 'code'"):
        declared(rare_values={"cod": {"prefix": [3]}}).check(["code"])


def test_notes_state_what_was_replaced_without_a_value() -> None:
    rng = np.random.default_rng(0)
    frame = numbers(rng).assign(code=codes(rng), mail=rng.choice(["web", "fax"], N))
    frame.loc[:40, "mail"] = [f"p{i}@x.org" for i in range(41)]
    new, _ = replaced(frame)
    notes = " ".join(new["train"].notes)
    assert "'mail' (41 values, 41 cells)" in notes and "'income' to multiples of" in notes and "'visit' to the" in notes
    values = itertools.chain(frame["mail"].unique(), frame["code"].unique())
    assert not any(value in notes for value in values if value not in ("web", "fax"))
    many = frame.assign(code=[f"A{i % 6:02d}.1" if i % 10 < 6 else f"B{i // 10:03d}.2" for i in range(N)])
    assert "data: {rare_values: {code: {prefix: [5, 3, 1]}}}" in " ".join(replaced(many)[0]["train"].notes)


def test_rules_are_stored_with_the_table(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    new, _ = replaced(numbers(rng).assign(code=codes(rng), flag=rng.random(N) < 0.002, few=rng.choice([0, 1, 9], N)))
    new["train"].save(tmp_path / "train")
    loaded = Table.load(tmp_path / "train")
    assert loaded.rules == new["train"].rules and loaded.digest == new["train"].digest
    assert loaded.without_subject().rules == {}, "a generator does not see them"


def test_a_generated_column_has_no_rule() -> None:
    frame = pd.DataFrame({"id": [f"K{i}" for i in range(N)], "x": np.arange(N) % 7})
    new, shown = replaced(frame, new_values={"id": "made up"})
    assert "id" not in new["train"].rules and shown["id"].tolist() == frame["id"].tolist()
