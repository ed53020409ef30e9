"""The threshold rule: replacement of values that only a few people have."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from privacy_assets.errors import ConfigError, InputError
from privacy_assets.tables.canonical import real_tables
from privacy_assets.tables.column import count_changed
from privacy_assets.tables.declared import Declared
from privacy_assets.tables.table import Table
from privacy_assets.tables.threshold_rule import changes_of, real_schema, without_rare_values

ROLES = ("train", "holdout", "reference")
N = 1200


def replaced(
    frame: pd.DataFrame, k: int = 5, **given: Any
) -> tuple[dict[str, Table], pd.DataFrame]:
    """The real tables, of which every third row is in one, after the rule; and all rows in the
    given order.
    """
    stated, parts = (
        Declared.of_arguments(given),
        {role: frame.iloc[at::3] for at, role in enumerate(ROLES)},
    )
    frames: Any = {role: part.reset_index(drop=True) for role, part in parts.items()}
    real = real_tables(frames, {role: role for role in ROLES}, stated)
    new = without_rare_values(real, k, stated)
    shown = [new[role].to_published_frame().set_index(part.index) for role, part in parts.items()]
    return new, pd.concat(shown).sort_index()


def codes(rng: np.random.Generator, n: int = N) -> np.ndarray:
    """Codes such as B07.3, a third of them rare."""
    drawn = np.minimum(rng.zipf(1.4, n), 3000)
    return np.array([f"{'ABCDEFGH'[code % 8]}{code // 8 % 100:02d}.{code % 7}" for code in drawn])


def numbers(rng: np.random.Generator, n: int = N) -> pd.DataFrame:
    """Columns of numbers and times, fine and coarse."""
    times = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 10**8, n), unit="s")
    return pd.DataFrame(
        {
            "income": np.round(rng.lognormal(10, 1, n), 2),
            "age": rng.integers(18, 95, n),
            "x": rng.normal(size=n),
            "visit": times,
            "day": times.normalize(),
            "short": rng.normal(size=n).astype(np.float32),
            "gaps": np.where(rng.random(n) < 0.5, np.nan, rng.normal(size=n)),
        }
    )


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
    assert (rule.n_changed, rule.n_rows) == ((expected == "other").sum(), N)
    assert rule.n_replaced_values == (held < k).sum()


def test_a_rare_code_becomes_its_longest_frequent_prefix() -> None:
    frame = pd.DataFrame({"code": codes(np.random.default_rng(0))})
    _, shown = replaced(frame, prefix_lengths={"code": [3, 1]})
    held = frame["code"].value_counts()
    kept = shown["code"] == frame["code"]
    assert (frame["code"].map(held)[kept] >= 5).all(), (
        "levels are kept, unless they join too few rare ones"
    )
    starts = [
        code.startswith(published)
        for code, published in zip(frame["code"], shown["code"], strict=True)
    ]
    assert all(starts) or (shown["code"][~np.array(starts)] == "other").all()
    assert shown["code"].value_counts().min() >= 5
    assert {3, 5} <= set(shown["code"].str.len())


def test_a_rare_code_that_is_a_frequent_prefix_is_kept_by_every_application() -> None:
    values = ["J45"] * 2 + ["J45.1"] * 3 + ["J45.2"] * 4 + ["K01.1"] * 1_000 + ["L9"] * 5
    new, shown = replaced(pd.DataFrame({"code": values}), prefix_lengths={"code": [3]})
    assert shown["code"].tolist() == ["J45"] * 9 + ["K01.1"] * 1_000 + ["L9"] * 5
    assert new["train"].rules["code"].apply(new["train"]["code"]).equals(new["train"]["code"])


def test_a_copy_of_a_short_float_at_the_bound_is_a_copy() -> None:
    frame = pd.DataFrame(
        {"x": np.random.default_rng(0).normal(size=N).astype("float32"), "y": np.arange(N) % 9}
    )
    new, shown = replaced(frame)
    again = Table.of(shown, new["train"].schema, where="s", synthetic=True)
    assert set(again["x"].cells) <= {cell for table in new.values() for cell in table["x"].cells}


def test_tiny_numbers_have_a_rule() -> None:
    _, shown = replaced(
        pd.DataFrame({"x": np.random.default_rng(0).normal(size=N) * 1e-300, "y": np.arange(N) % 9})
    )
    assert np.isfinite(shown["x"]).all()


@pytest.mark.parametrize(
    ("values", "kinds", "expected"),
    [
        ([True] * 4 + [False] * (N - 4), None, {False: N}),
        ([None] * 4 + [True] * 6 + [False] * (N - 10), None, {False: 4, True: 6, "rest": False}),
        ([7] * 4 + [5] * 100 + [1] * (N - 104), None, {5: 104, 1: N - 104}),
        ([7] * 4 + [5] * 8 + [1] * (N - 12), {"v": "categorical"}, {None: 12, 1: N - 12}),
        (pd.Categorical(["z"] * 4 + ["a"] * (N - 4)), None, {"a": N}),
        (
            pd.Categorical(["z"] * 4 + ["b"] * 6 + ["a"] * (N - 10)),
            None,
            {"other": 10, "a": N - 10},
        ),
        (["z"] * 4 + [None] * 600 + ["a"] * (N - 604), None, {"a": 4, None: 600, "rest": "a"}),
        ([3.5] * 4 + [np.nan] * (N - 4), None, {None: N}),
        ([np.nan] * 4 + [3.5] * (N - 500) + [9.5] * 496, None, {3.5: N - 496, 9.5: 496}),
    ],
    ids=[
        "boolean",
        "missing booleans",
        "few numbers",
        "number declared a category",
        "category",
        "short other",
        "missing values",
        "nearly empty",
        "missing numbers",
    ],
)
def test_each_kind_of_column(values: Any, kinds: Any, expected: dict[Any, int]) -> None:
    frame = pd.DataFrame({"v": values, "x": np.arange(N) % 40})
    new, shown = replaced(frame, kinds=kinds)
    if "rest" in expected:
        rest = expected.pop("rest")
        assert set(shown["v"][sum(expected.values()) :]) == {rest}
        shown = shown[: sum(expected.values())]
    assert [None if pd.isna(value) else value for value in shown["v"]] == list(
        itertools.chain.from_iterable([value] * count for value, count in expected.items())
    )
    column = new["train"].schema["v"]
    assert column.nullable or None not in expected


@pytest.mark.parametrize("k", [5, 20])
def test_a_copied_row_stays_a_copy_and_values_far_outside_are_left_alone(k: int) -> None:
    rng = np.random.default_rng(3)
    frame = numbers(rng).assign(code=codes(rng))
    new, _ = replaced(frame, k)
    rules, schema = new["train"].rules, new["train"].schema
    copy = Table.of(
        frame.iloc[::3].reset_index(drop=True),
        real_schema(schema, rules),
        where="s",
        synthetic=True,
    )
    pd.testing.assert_frame_equal(
        copy.without_rare(rules).with_schema(schema).to_published_frame(),
        new["train"].to_published_frame(),
    )
    assert count_changed(copy["code"], rules["code"].apply(copy["code"])) == int(
        (new["train"].to_published_frame()["code"] == "other").sum()
    )
    foreign = frame.iloc[:2].assign(code=["Q99.9", "other"], income=[1e9, 5_000.0])
    made = Table.of(foreign, real_schema(schema, rules), where="s", synthetic=True).without_rare(
        rules
    )
    assert made["code"].objects() == ["Q99.9", "other"], (
        "the contract decides about values that no real row has"
    )
    assert (
        made["income"].cells[0] == 1e9
        and made["income"].cells[1] in new["train"].rules["income"].groups.published
    )


def test_neither_the_order_of_rows_nor_more_rows_of_a_person_change_the_rule() -> None:
    rng = np.random.default_rng(5)
    frame = numbers(rng).assign(code=codes(rng), pid=[f"p{i}" for i in range(N)])
    frame["paid"] = frame["income"] * rng.choice([0.5, 1.0], N)
    frame.loc[:2, "income"] = np.nan
    again = pd.concat([frame, frame.iloc[:50]]).sample(frac=1, random_state=0)
    tables = [
        real_tables({"train": rows}, {"train": "train"}, Declared(subject="pid"))
        for rows in (frame, again)
    ]
    one, other = (without_rare_values(real, 5)["train"].rules for real in tables)
    for name, rule in one.items():
        assert (rule.recoding, rule.missing_as, rule.reach) == (
            other[name].recoding, other[name].missing_as, other[name].reach,
        )  # fmt: skip
        assert rule.groups is None or rule.groups.equals(other[name].groups)


@pytest.mark.parametrize("few", [[3.25, 9e6], [3.25, 4.75]])
def test_the_value_that_nearly_everybody_has_is_kept(few: list[float]) -> None:
    frame = pd.DataFrame({"v": [1_234_567.25] * (N - 2) + few, "w": [1_234.5] * N})
    _, shown = replaced(frame)
    assert set(shown["v"]) == {1_234_567.25} and set(shown["w"]) == {1_234.5}


@pytest.mark.parametrize("filled", [4, 5, 9])
def test_numbers_of_too_few_people_are_missing(filled: int) -> None:
    rng = np.random.default_rng(filled)
    times = pd.Series(pd.NaT, index=range(N), dtype="datetime64[us]")
    times[:filled] = pd.Timestamp("2024-01-01") + pd.to_timedelta(
        rng.integers(0, 10**7, filled), unit="s"
    )
    frame = pd.DataFrame(
        {
            "t": times,
            "x": [*rng.normal(size=filled), *[np.nan] * (N - filled)],
            "y": np.arange(N) % 9,
        }
    )
    new, shown = replaced(frame)
    assert shown["t"].nunique() == shown["x"].nunique() == (1 if filled >= 5 else 0)
    assert ("'t', 'x'" in " ".join(new["train"].notes)) == (filled < 5)
    assert new["train"].schema["t"].nullable


def test_declared_prefixes_lead_past_the_stop_on_rare_codes() -> None:
    frame = pd.DataFrame({"code": [f"A{i % 3}.{i // 4}" for i in range(N)]})
    with pytest.raises(InputError, match=r"prefix_lengths: \{column: \[5, 3, 1\]\}"):
        replaced(frame)
    new, shown = replaced(frame, prefix_lengths={"code": [2]})
    assert set(shown["code"]) == {"A0", "A1", "A2"} and "prefix" not in " ".join(new["train"].notes)
    number = pd.DataFrame({"code": np.arange(N) % 50})
    with pytest.raises(ConfigError, match="prefix_lengths: column 'code' has no text"):
        replaced(number, prefix_lengths={"code": [2]})


@pytest.mark.parametrize("n", [1, 2, 4])
def test_nothing_of_fewer_people_than_the_threshold_is_published(n: int) -> None:
    frame = pd.DataFrame(
        {
            "code": list("abcd")[:n],
            "x": [1.5, 2.5, 3.5, 4.5][:n],
            "f": [True, False, True, False][:n],
        }
    )
    real = real_tables({"train": frame}, {"train": "train"})
    shown = without_rare_values(real, 5)["train"].to_published_frame()
    assert shown["code"].isna().all() and shown["x"].isna().all() and shown["f"].isna().all()


def test_only_a_list_with_a_source_exempts_its_values(tmp_path: Path) -> None:
    frame = pd.DataFrame({"state": ["BY"] * 1_000 + ["HB"] * 3 + ["XX"] * 5 + ["YY"]})
    file = tmp_path / "states.csv"
    file.write_text("code,name\nBY,Bayern\nHB,Bremen\nHH,Hamburg\n")
    assert set(replaced(frame, allowed_values={"state": ["BY", "HB"]})[1]["state"]) == {
        "BY",
        "other",
    }
    for listed in ({"values": ["BY", "HB"]}, {"file": str(file)}):
        stated = {"state": {**listed, "source": "ISO 3166-2"}}
        new, shown = replaced(frame, allowed_values=stated)
        assert (
            set(shown["state"]) == {"BY", "HB", "other"} and (shown["state"] == "other").sum() == 6
        )
        assert new["train"].rules["state"].n_public == 1
        assert "'state' (1)" in " ".join(new["train"].notes)
        signed = Declared(allowed_values=stated).to_setup(lambda text: "keyed")["allowed_values"][
            "state"
        ]
        assert signed["source"] == "ISO 3166-2" and signed["values"] == len(
            Declared(allowed_values=stated).allowed_values["state"].values
        )
    for wrong in (
        {"values": ["BY"]},
        {"source": "ISO"},
        {"values": ["BY"], "file": "x", "source": "ISO"},
        {"source": " ", "values": ["a"]},
    ):
        with pytest.raises(
            ConfigError, match="public list of 'state' needs its values and their source"
        ):
            Declared(allowed_values={"state": wrong})


@pytest.mark.parametrize(
    "wrong",
    [["a"], [], [0], ["3"], 3, {"prefix": [3]}],
)
def test_a_wrong_hierarchy_is_blocked(wrong: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"prefix_lengths: 'code' needs a list of lengths.*code: \[5, 3, 1\]"
    ):
        Declared(prefix_lengths={"code": wrong})
    with pytest.raises(
        ConfigError, match="prefix_lengths: there is no column 'cod'. Did you mean 'code'"
    ):
        Declared(prefix_lengths={"cod": [3]}).check(["code"])


def test_notes_state_what_was_replaced_without_a_value() -> None:
    rng = np.random.default_rng(0)
    frame = numbers(rng).assign(code=codes(rng), mail=rng.choice(["web", "fax"], N))
    frame.loc[:40, "mail"] = [f"p{i}@x.org" for i in range(41)]
    new, _ = replaced(frame)
    notes = " ".join(new["train"].notes)
    assert "'mail' (41 values, 41 cells)" in notes
    assert re.search(
        r"The mean change is at most 0[.]0[0-9]+ standard deviations [(][67] columns[)][.]", notes
    )
    changes = changes_of(new["train"].rules)
    assert set(changes) == set(frame.columns)
    assert re.fullmatch(
        r"[0-9.]+% of the cells changed, by 0[.]0[0-9]+ standard deviations on average",
        changes["income"],
    )
    values = itertools.chain(frame["mail"].unique(), frame["code"].unique())
    assert not any(value in notes for value in values if value not in ("web", "fax"))
    many = frame.assign(
        code=[f"A{i % 6:02d}.1" if i % 10 < 6 else f"B{i // 10:03d}.2" for i in range(N)]
    )
    assert "data: {prefix_lengths: {code: [5, 3, 1]}}" in " ".join(replaced(many)[0]["train"].notes)


def test_rules_are_stored_with_the_table(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    new, _ = replaced(
        numbers(rng).assign(
            code=codes(rng), flag=rng.random(N) < 0.002, few=rng.choice([0, 1, 9], N)
        )
    )
    new["train"].save(tmp_path / "train")
    loaded = Table.load(tmp_path / "train")
    rules = new["train"].rules
    assert list(loaded.rules) == list(rules) and all(
        rule.equals(rules[name]) for name, rule in loaded.rules.items()
    )
    assert loaded.digest == new["train"].digest
    assert loaded.without_subject().rules == {}, "a generator does not see them"


def test_a_generated_column_has_no_rule() -> None:
    frame = pd.DataFrame({"id": [f"K{i}" for i in range(N)], "x": np.arange(N) % 7})
    new, shown = replaced(frame, new_values={"id": "made up"})
    assert "id" not in new["train"].rules and shown["id"].tolist() == frame["id"].tolist()


def test_two_ordered_columns_share_their_values_and_the_report_names_them() -> None:
    rng = np.random.default_rng(0)
    amount = np.round(rng.lognormal(6, 1, N), 2)
    frame = pd.DataFrame(
        {"paid": np.round(amount * rng.choice([0.0, 0.8, 1.0], N), 2), "amount": amount}
    )
    new, shown = replaced(frame)
    assert (shown["paid"] <= shown["amount"]).all()
    assert (
        "share their published values, because they have an order in all rows: 'paid', 'amount'"
        in " ".join(new["train"].notes)
    )


def test_numbers_with_public_bounds_stay_as_they_are() -> None:
    frame = pd.DataFrame(
        {"x": np.random.default_rng(0).normal(size=N), "y": np.random.default_rng(1).normal(size=N)}
    )
    real = real_tables({"train": frame}, {"train": "train"})
    table = without_rare_values(real, 5, bounded=["x"])["train"]
    assert list(table.rules) == ["y"] and (table["x"].cells == frame["x"]).all()
    assert "their bounds are public: 'x'" in " ".join(table.notes)


@pytest.mark.parametrize("share", [0.2, 0.45])
def test_values_of_a_person_among_shared_ones_are_not_published(share: float) -> None:
    """A laboratory value with six decimals, a time to the second, and an account number of nine
    digits.
    """
    rng = np.random.default_rng(7)
    n = 2_000
    own = rng.random(n) < share
    day = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 300, n), unit="D")
    frame = pd.DataFrame({
        "lab": np.where(own, np.round(rng.normal(5, 1, n), 6), np.round(rng.normal(5, 1, n), 1)),
        "seen": day.where(~own, day + pd.to_timedelta(rng.integers(1, 86_400, n), unit="s")),
        "account": np.where(own, rng.integers(10**8, 10**9, n), rng.integers(1, 9, n) * 10**8),
    })  # fmt: skip
    _, shown = replaced(frame, kinds={"account": "integer"})
    for name in frame:
        counts = frame[name].value_counts()
        assert (
            not shown[name].isin(counts.index[counts < 5]).any()
            or shown[name].value_counts().min() >= 5
        )
        assert shown[name].value_counts().min() >= 5
        assert (shown[name] == frame[name])[~own.astype(bool)].mean() > 0.9, (
            "values of many people are exact"
        )
