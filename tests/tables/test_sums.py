"""Columns that are sums of others: detection against brute force, tables without sums, and the
notes on them.
"""

from __future__ import annotations

from itertools import combinations, permutations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from privacy_assets.cli.main import main
from privacy_assets.tables.canonical import canonical_table, real_tables
from privacy_assets.tables.column import Column
from privacy_assets.tables.declared import Declared
from privacy_assets.tables.sums import Sum, find_sums
from privacy_assets.tables.threshold_rule import without_rare_values

N = 400


def columns_of(frame: pd.DataFrame) -> list[Column]:
    table = canonical_table(frame)
    return [table[name] for name in table.schema.names]


def sums_in(frame: pd.DataFrame, people: np.ndarray | None = None) -> list[str]:
    whose = np.arange(len(frame)) if people is None else people
    return [found.name for found in find_sums(columns_of(frame), whose)]


def invoices(n: int = N, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    net = rng.integers(100, 99_999, n) / 100
    tax = (0.19 * net).round(2)
    postage = rng.choice([0, 4.9, 9.9], n)
    return pd.DataFrame(
        {"net": net, "tax": tax, "postage": postage, "total": (net + tax + postage).round(2)}
    )


def brute_force(frame: pd.DataFrame) -> set[str]:
    """Return every sum of two or three columns without missing values, as exact integers of
    cents.
    """
    cents = {name: (frame[name] * 100).round().astype(int) for name in frame}
    found = set()
    for n_parts in (2, 3):
        for parts in combinations(frame, n_parts):
            for total in frame:
                if (
                    total not in parts
                    and (sum(cents[part] for part in parts) == cents[total]).all()
                ):
                    found.add(f"{total} = {' + '.join(parts)}")
    return found


@pytest.mark.parametrize("seed", range(5))
def test_sums_agree_with_brute_force(seed: int) -> None:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({f"c{i}": rng.integers(0, 500, 200) / 100 for i in range(5)})
    first, second, third = rng.choice(5, 3, replace=False)
    frame["two"] = (frame[f"c{first}"] + frame[f"c{second}"]).round(2)
    frame["three"] = (frame["two"] + frame[f"c{third}"] + frame[f"c{first}"]).round(2)
    shuffled = frame[rng.permutation(frame.columns)]
    assert set(sums_in(shuffled)) == brute_force(shuffled) != set()


def test_one_row_that_does_not_add_up_is_no_sum() -> None:
    frame = invoices()
    assert sums_in(frame) == ["total = net + tax + postage"]
    frame.loc[N - 1, "total"] += 0.01
    assert sums_in(frame) == []


def test_missing_cells_are_no_evidence() -> None:
    frame = invoices()
    frame.loc[::3, "tax"] = np.nan
    frame.loc[::3, "total"] = 7.0
    assert sums_in(frame) == ["total = net + tax + postage"]
    frame.loc[frame.index >= 80, "postage"] = np.nan  # 80 people have all columns
    assert sums_in(frame) == []


def test_rows_of_few_people_are_no_evidence() -> None:
    assert sums_in(invoices(), np.arange(N) % 120) == ["total = net + tax + postage"]
    assert sums_in(invoices(), np.arange(N) % 80) == []


def test_columns_that_hardly_vary_are_no_evidence() -> None:
    frame = invoices()
    frame["fee"] = 0.0
    frame["paid"] = frame["net"]  # net + fee, but the fee is always 0
    assert sums_in(frame) == ["total = net + tax + postage"]
    frame.loc[:9, "fee"] = 5.0  # 10 people
    frame["paid"] = frame["net"] + frame["fee"]
    assert "paid = net + fee" not in sums_in(frame)
    frame.loc[:59, "fee"] = 5.0
    frame["paid"] = frame["net"] + frame["fee"]
    assert "paid = net + fee" in sums_in(frame)


def test_a_sum_does_not_depend_on_the_order_of_rows_and_columns() -> None:
    frame = invoices()
    for names in permutations(frame.columns):
        (found,) = find_sums(
            columns_of(frame.sample(frac=1, random_state=1)[list(names)]), np.arange(N)
        )
        assert found.total == "total" and set(found.parts) == {"net", "tax", "postage"}


def test_rounding_errors_of_large_numbers_are_no_differences() -> None:
    frame = invoices() * 1e9
    frame["total"] = frame["net"] + (frame["postage"] + frame["tax"])
    assert sums_in(frame) == ["total = net + tax + postage"]


def test_small_numbers_are_no_rounding_errors() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.random((N, 3)) * 1e-10, columns=list("abc"))
    frame["big"] = rng.random(N)
    frame["copy"] = frame["big"]
    assert sums_in(frame) == []
    frame["d"] = frame["a"] + frame["b"]
    assert sums_in(frame) == ["d = a + b"]


def test_parts_that_cancel_are_a_sum() -> None:
    rng = np.random.default_rng(0)
    rent = rng.integers(1, 99_999, N) / 100
    frame = pd.DataFrame(
        {"booked": 1e9 + rent, "cancelled": -1e9 - rng.integers(0, 9, N), "rest": 0.0}
    )
    frame["rest"] = frame["booked"] + frame["cancelled"]
    assert sums_in(frame) == ["rest = booked + cancelled"]


def test_a_table_with_more_than_two_hundred_columns_of_numbers_has_none() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.integers(0, 9, (N, 201)), columns=[f"c{i}" for i in range(201)])
    frame["two"] = frame["c0"] + frame["c1"]
    assert sums_in(frame) == []
    assert sums_in(frame[["c0", "c1", "two"]]) == ["two = c0 + c1"]


@pytest.mark.slow
def test_random_tables_have_no_sums() -> None:
    n_with_sums = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        frame = pd.DataFrame({f"c{i}": rng.integers(0, rng.integers(2, 200), N) for i in range(8)})
        frame["flag"] = rng.integers(0, 2, N)
        n_with_sums += bool(sums_in(frame))
    assert n_with_sums <= 1


def test_wide_tables_and_tiny_tables_end() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.integers(0, 9, (N, 60)), columns=[f"c{i}" for i in range(60)])
    frame["two"] = frame["c0"] + frame["c1"]
    frame["three"] = frame["c2"] + frame["c3"] + frame["c4"]
    assert sums_in(frame) == ["two = c0 + c1"]  # more than 50 columns: sums of two only
    assert find_sums([], np.arange(0)) == []
    assert sums_in(invoices(1)) == []


def test_a_sum_is_named_before_the_threshold_rule_and_generated_columns_are_left_out() -> None:
    frame = invoices(2_000).assign(person=range(2_000))
    frame["copied"] = frame["total"]
    declared = Declared(subject="person", new_values={"copied": "drawn at random"})
    tables = without_rare_values(real_tables({"train": frame}, {"train": "train"}, declared), 5)
    (note,) = [note for note in tables["train"].notes if "add up" in note]
    assert note == (
        "In all real rows, total = net + tax + postage. Published rows need not add up. Fix:"
        " drop 'total' (data: {drop:"
        " [total]}), and compute it after reading."
    )


def test_inspect_lists_sums(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    invoices().to_csv(tmp_path / "invoices.csv", index=False)
    assert main(["inspect", str(tmp_path / "invoices.csv")]) == 0
    out = capsys.readouterr().out
    assert (
        "sums that hold in all rows, and that published rows break:\n  total = net + tax +"
        " postage\n" in out
    )


def test_sums_have_names() -> None:
    assert Sum("total", ("net", "tax")).name == "total = net + tax"


@pytest.mark.parametrize(
    ("n_people", "words"),
    [
        (600, ""),
        (599, "Some people have several rows. "),
        (200, "People have 3.0 rows on average. "),
        (4, "People have 150.0 rows on average. "),
    ],
)
def test_rows_of_a_person_are_not_linked(n_people: int, words: str) -> None:
    frame = invoices(600).assign(person=[f"id {row % n_people}" for row in range(600)])
    notes = [
        note
        for note in canonical_table(frame, Declared(subject="person")).notes
        if "not linked" in note
    ]
    assert [note.partition("The column")[0] for note in notes] == ([words] if words else [])
