"""Ledger of disclosure by person: merging, removal, and files."""

from __future__ import annotations

import hashlib
import hmac
import io

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from privacy_assets.errors import Damaged
from privacy_assets.metrics.ledger import KEPT_DAYS, Ledger
from privacy_assets.tables.canonical import real_tables
from privacy_assets.tables.declared import Declared
from privacy_assets.tables.splitting import pseudonyms
from privacy_assets.tables.table import Table

KEY = b"key of the ledger"


def nights(count: int, seed: int = 0) -> list[dict[int, float]]:
    """Ratio by person of each night; about two thirds of 60 people are in the table."""
    rng = np.random.default_rng(seed)
    names = rng.integers(0, 1 << 63, 60, dtype=np.uint64).tolist()
    return [
        {name: float(np.float32(rng.gamma(1))) for name in names if rng.random() < 0.7}
        for _ in range(count)
    ]


def named(people: list[int]) -> np.ndarray:
    """Pseudonyms of people whose ids are their plain forms."""
    return np.column_stack([np.array(people, np.uint64)] * 2)


def ledger_of(night: dict[int, float], day: int = 0) -> Ledger:
    return Ledger.of(named(list(night)), np.array(list(night.values())), day=day)


def contents(ledger: Ledger) -> dict[int, tuple[float, int]]:
    rows = zip(ledger.exact.tolist(), ledger.ratio.tolist(), ledger.seen.tolist(), strict=True)
    return {person: (ratio, seen) for person, ratio, seen in rows}


def merged(series: list[dict[int, float]]) -> Ledger:
    ledger = ledger_of(series[0])
    for day, night in enumerate(series[1:], 1):
        ledger = ledger.merged(ledger_of(night, day))
    return ledger


def test_merging_is_the_maximum_of_each_person() -> None:
    series = nights(12)
    expected: dict[int, tuple[float, int]] = {}
    for number, night in enumerate(series):
        for person, ratio in night.items():
            expected[person] = max(expected.get(person, (0.0, 0))[0], ratio), number
    assert contents(merged(series)) == expected


def test_the_order_of_nights_rows_and_repeated_people_does_not_matter() -> None:
    series = nights(6, seed=1)
    one, other = merged(series), merged(series[::-1])
    assert {name: ratio for name, (ratio, _) in contents(one).items()} == {
        name: ratio for name, (ratio, _) in contents(other).items()
    }
    people, ratio = named([5, 3, 5, 9]), np.array([1.0, 2.0, 7.0, 0.5])
    back = Ledger.of(people[::-1], ratio[::-1])
    assert (
        contents(Ledger.of(people, ratio))
        == contents(back)
        == {3: (2.0, 0), 5: (7.0, 0), 9: (0.5, 0)}
    )
    assert Ledger.of(people, ratio).to_bytes() == back.to_bytes()
    assert back.merged(back).to_bytes() == back.to_bytes()


def test_people_who_left_are_removed_after_sixty_days() -> None:
    left = ledger_of({1: 8.0, 2: 9.0}, day=100)
    for day in (100, 101, 99 + KEPT_DAYS):  # also if there are many releases in a day
        left = left.merged(ledger_of({2: 1.0}, day))
        assert contents(left) == {1: (8.0, 100), 2: (9.0, day)}
    back = contents(left.merged(ledger_of({1: 0.5, 2: 1.0}, 100 + KEPT_DAYS)))
    assert back[1] == (8.0, 100 + KEPT_DAYS), "who is there again keeps the entry"
    assert contents(left.merged(ledger_of({2: 1.0}, 100 + KEPT_DAYS))) == {
        2: (9.0, 100 + KEPT_DAYS)
    }


def test_the_ledger_does_not_grow_with_the_nights() -> None:
    """Of 100 people one leaves each night: the file keeps the last 59 of them."""
    ledger = ledger_of(dict.fromkeys(range(100), 1.0))
    sizes = {}
    for night in range(1, 366):
        ledger = ledger.merged(ledger_of(dict.fromkeys(range(night, night + 100), 1.0), night))
        sizes[night] = len(ledger.exact), len(ledger.to_bytes())
    assert sizes[70][0] == sizes[365][0] == 100 + KEPT_DAYS - 1
    assert sizes[365][1] < 1.05 * sizes[70][1]


def test_each_person_has_the_release_with_the_closest_row() -> None:
    people = named([1, 2, 3])
    ledger = Ledger.of(people, np.array([5.0, 1.0, 5.0]), 10).merged(
        Ledger.of(people, np.array([5.0, 9.0, 1.0]), 20)
    )
    assert ledger.release.tolist() == [10, 20, 10], "the first of equal ratios"
    assert ledger.most_by_release(4.0) == [(10, pytest.approx(2 / 3)), (20, pytest.approx(1 / 3))]
    assert ledger.merged(Ledger.of(people[:1], np.array([0.0]), 30)).release.tolist() == [
        10,
        20,
        10,
    ]
    assert ledger.most_by_release(100.0) == []


def test_ratios_of_people() -> None:
    ledger = ledger_of({4: 2.0, 7: 3.0})
    assert ledger.ratios(named([7, 1, 4, 9, 7])).tolist() == [3.0, 0.0, 2.0, 0.0, 3.0]
    assert ledger_of({}).ratios(named([7])).tolist() == [0.0]
    assert contents(ledger_of({}).merged(ledger)) == contents(ledger)
    assert contents(ledger.merged(ledger_of({}))) == {4: (2.0, 0), 7: (3.0, 0)}


@pytest.mark.parametrize("people", [0, 1, 60])
def test_a_file_holds_the_ledger(people: int) -> None:
    ledger = merged([dict(list(night.items())[:people]) for night in nights(3)])
    again = Ledger.from_bytes(ledger.to_bytes())
    assert contents(again) == contents(ledger) and again.to_bytes() == ledger.to_bytes()
    assert [getattr(again, name).dtype for name in GOOD] == [
        column.dtype for column in GOOD.values()
    ]


def table_file(**columns: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


GOOD = {
    "exact": np.array([1, 2], np.uint64),
    "plain": np.array([1, 2], np.uint64),
    "ratio": np.ones(2, np.float32),
    "seen": np.zeros(2, np.uint32),
    "release": np.zeros(2, np.uint64),
}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no ledger",
        table_file(**GOOD)[:-20],
        table_file(exact=GOOD["exact"], ratio=GOOD["ratio"]),
        table_file(**{**GOOD, "exact": np.array([2, 1], np.uint64)}),
        table_file(**{**GOOD, "exact": np.array([1, 1], np.uint64)}),
        table_file(**{**GOOD, "exact": np.array([1, 2], np.int64)}),
        table_file(**{**GOOD, "ratio": np.array([np.nan, 1], np.float32)}),
    ],
)
def test_other_files_are_rejected(data: bytes) -> None:
    with pytest.raises(Damaged, match="the ledger of disclosure"):
        Ledger.from_bytes(data)
    assert len(Ledger.from_bytes(table_file(**GOOD)).exact) == 2


def test_pseudonyms_follow_the_content_without_a_subject() -> None:
    rows = Table.read(pd.DataFrame({"x": [0.5, 1.5, 2.5, 1.5], "c": list("abca")}))
    same = Table.read(pd.DataFrame({"x": [2.5, 1.5, 9.0, 9.0], "c": list("cbdd")}))
    names, plain = pseudonyms(rows, KEY).T
    assert names.tolist() == plain.tolist()
    others = pseudonyms(same, KEY)[:, 0]
    assert names.dtype == np.uint64 and len(set(names.tolist())) == 4, (
        "rows that differ in one cell are other people"
    )
    assert (
        others[:2].tolist() == [names[2], names[1]]
        and others[2] == others[3]
        and others[2] not in names
    )
    assert not set(names.tolist()) & set(pseudonyms(rows, b"another key")[:, 0].tolist())


@pytest.mark.parametrize("ids", [[3, 1, 3], [3.0, 1.0, 3.0], ["3", "1", "3"]])
def test_pseudonyms_follow_the_subject(ids: list[object]) -> None:
    frame = pd.DataFrame({"who": ids, "x": [0.5, 1.5, 2.5]})
    table = real_tables({"train": frame}, {"train": "train"}, Declared(subject="who"))["train"]
    digests = [hmac.new(KEY, text, hashlib.sha256).digest()[:8] for text in (b"3", b"1", b"3")]
    exact, plain = pseudonyms(table, KEY).T.tolist()
    assert exact == plain == [int.from_bytes(digest, "big") for digest in digests]


def test_an_id_in_another_spelling_has_the_entry_of_the_person() -> None:
    """Columns of the pseudonyms: exact id, plain form."""
    first = Ledger.of(
        np.array([[10, 1], [20, 2]], np.uint64), np.array([5.0, 1.0]), release=8, day=1
    )
    respelled = np.array([[11, 1], [20, 2], [30, 3]], np.uint64)
    assert first.ratios(respelled).tolist() == [5.0, 1.0, 0.0]
    second = first.merged(Ledger.of(respelled, np.array([2.0, 3.0, 4.0]), release=9, day=2))
    assert contents(second) == {11: (5.0, 2), 20: (3.0, 2), 30: (4.0, 2)}, (
        "no second entry of the person"
    )
    assert second.release.tolist() == [8, 9, 9]


def test_of_two_entries_of_a_person_the_larger_ratio_counts() -> None:
    """They exist if the ids were exact on an earlier night."""
    exact = Ledger.of(np.array([[10, 10], [11, 11]], np.uint64), np.array([2.0, 5.0]))
    plain = np.array([[10, 11]], np.uint64)
    assert exact.ratios(plain).tolist() == [5.0]
    assert contents(exact.merged(Ledger.of(plain, np.array([1.0])))) == {10: (5.0, 0)}


@pytest.mark.parametrize(("exact_ids", "is_same"), [(False, True), (True, False)])
def test_the_second_pseudonym_does_not_follow_the_spelling(exact_ids: bool, is_same: bool) -> None:
    found = []
    for name in ("p\u00e9 07", "P\u0065\u0301\u00a007 "):
        frame = pd.DataFrame({"who": [name], "x": [0.5]})
        table = real_tables({"train": frame}, {"train": "train"}, Declared(subject="who"))["train"]
        found.append(pseudonyms(table, KEY, exact_ids)[0].tolist())
    (exact, plain), (other_exact, other_plain) = found
    assert exact != other_exact and (plain == other_plain) == is_same
