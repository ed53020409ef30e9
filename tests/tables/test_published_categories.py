"""Categories and booleans that are published: cases of too few people, and properties."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy_assets.tables.published_categories import (
    RealCategories,
    count_holders,
    recode,
    recode_booleans,
)

K = 5


def real(counts: dict[Any, int], *synthetic_only: str) -> RealCategories:
    """Each row is a person. None is a missing value."""
    values = sorted(value for value in counts if value is not None)
    codes = [
        values.index(value) if value is not None else -1
        for value, n in counts.items()
        for _ in range(n)
    ]
    return RealCategories(
        [*values, *synthetic_only], np.array(codes, dtype=np.int64), np.arange(len(codes))
    )


def recoded(
    counts: dict[Any, int], *synthetic_only: str, rare_name: str | None = "other", **more: Any
) -> dict[Any, Any]:
    return recode(real(counts, *synthetic_only), K, rare_name=rare_name, **more)


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"a": 50, "x": 3, "y": 2}, {"a": "a", "x": "other", "y": "other"}),
        ({"a": 50, "b": 9, "x": 1}, {"a": "a", "b": "other", "x": "other"}),
        (
            {"a": 50, "b": 9, "other": 2, "x": 1},
            {"a": "a", "b": "other", "other": "other", "x": "other"},
        ),
        ({"a": 50, "b": 9, "other": 3}, {"a": "a", "b": "other", "other": "other"}),
        (
            {"a": 50, "b": 9, "other": 5, "x": 1},
            {"a": "a", "b": "b", "other": "other", "x": "other"},
        ),
        ({"a": 50, "x": 3}, {"a": "a", "x": "a"}),
        ({"f": 957, "m": 1042, "d": 1}, {"f": "f", "m": "m", "d": "m"}),
        ({"a": 900, "b": 40, "c": 50, "x": 1}, {"a": "a", "b": "other", "c": "c", "x": "other"}),
        ({"a": 50, "x": 3, None: 2}, {"a": "a", "x": "a", None: "a"}),
        ({"a": 50, "b": 60, None: 4}, {"a": "a", "b": "b", None: "b"}),
        ({"a": 50, "b": 60, None: 5}, {"a": "a", "b": "b", None: None}),
        ({"a": 50, "b": 60}, {"a": "a", "b": "b", None: "b"}),
        ({"x": 2, "y": 2, None: 99}, {"x": None, "y": None, None: None}),
        ({"x": 2, "y": 3, None: 99}, {"x": "other", "y": "other", None: None}),
    ],
)
def test_other_has_enough_people(counts: dict[Any, int], expected: dict[Any, Any]) -> None:
    found = recoded(counts)
    assert {value: found[value] for value in expected} == expected


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"1": 50, "2": 8, "3": 2}, {"1": "1", "2": None, "3": None, None: None}),
        ({"1": 50, "2": 40, "3": 2}, {"1": "1", "2": "2", "3": "1", None: "1"}),
        ({"1": 50, "2": 40, "3": 2, None: 3}, {"1": "1", "2": "2", "3": None, None: None}),
        ({"1": 50, "3": 2}, {"1": "1", "3": "1", None: "1"}),
        ({"1": 50, "2": 40, None: 3}, {"1": "1", "2": "2", None: "1"}),
    ],
)
def test_where_other_is_a_missing_value_the_missing_ones_count(
    counts: dict[Any, int], expected: dict[Any, Any]
) -> None:
    assert recoded(counts, rare_name=None) == expected


def test_a_prefix_has_enough_people() -> None:
    counts = {
        "J45.1": 10,
        "J45.2": 6,
        "J45.9": 1,
        "K01": 50,
        "L10.1": 3,
        "L10.2": 2,
        "L11": 1,
        "M1": 1,
        "Z": 5,
    }
    found = recoded(counts, prefixes=[3, 1])
    assert found["J45.9"] == found["J45.2"] == "J45" and found["J45.1"] == "J45.1"
    assert found["L10.1"] == found["L10.2"] == found["L11"] == "L", "one person alone would have L"
    assert found["M1"] == found["Z"] == "other", "the rarest level joins"
    assert "other" not in recoded({"other": 2, "o1": 9, "o2": 2, "x": 3}, prefixes=[1])["o2"]


def test_values_that_only_a_synthetic_table_has_change_no_real_one() -> None:
    found = recoded({"a": 50, "b": 9}, "c", "other")
    assert (found["a"], found["b"], found["c"], found["other"]) == ("a", "b", "b", "b")
    found = recoded({"a": 50, "b": 9, "x": 5}, "c", "other")
    assert found["c"] == "b" or found["c"] == "x"


def test_a_frequent_level_does_not_join_a_prefix() -> None:
    found = recoded({"J45.1": 400, "J45.2": 1, "K01": 9, "L1": 500}, prefixes=[3])
    assert found["J45.1"] == "J45.1" and found["J45.2"] == found["K01"] == "other"


def test_other_is_not_public() -> None:
    found = recoded({"a": 300, "b": 299, "rr": 1}, "other", public={"other"})
    assert found["rr"] == found["other"] == "a"


@pytest.mark.parametrize("name", ["other", None])
def test_values_of_a_public_list_are_kept(name: str | None) -> None:
    found = recoded({"BY": 50, "HB": 3, "XX": 2}, "HH", rare_name=name, public={"BY", "HB", "HH"})
    assert (found["BY"], found["HB"], found["HH"], found["XX"]) == ("BY", "HB", "HH", "BY")
    found = recoded({"BY": 3, "HB": 3, "XX": 2}, rare_name=name, public={"BY", "HB"})
    assert (found["BY"], found["HB"], found["XX"]) == ("BY", "HB", "BY")


@pytest.mark.parametrize(
    ("n_false", "n_true", "n_missing", "expected"),
    [
        (50, 4, 9, (False, False, None)),
        (50, 50, 4, (False, True, False)),
        (4, 50, 0, (True, True, True)),
        (3, 4, 9, (True, True, None)),
        (2, 2, 50, (None, None, None)),
        (50, 50, 0, (False, True, False)),
    ],
)
def test_rare_booleans_become_the_most_frequent_one(
    n_false: int, n_true: int, n_missing: int, expected: tuple[Any, ...]
) -> None:
    codes = np.repeat([0, 1, -1], [n_false, n_true, n_missing])
    found = recode_booleans(RealCategories([False, True], codes, np.arange(len(codes))), K)
    assert (found[False], found[True], found[None]) == expected


CODES = st.sampled_from(
    [None, "other", "o", "J", "J4", "J45", "J45.1", "J45.2", "J46", "K", "K01", "K01.1", "L", "M9"]
)


@pytest.mark.slow
@settings(max_examples=500)
@given(
    st.lists(st.tuples(CODES, st.integers(0, 25)), min_size=K, max_size=60),
    st.sets(st.sampled_from([1, 2, 3])),
    st.sets(CODES.filter(bool), max_size=3),
    st.sampled_from(["other", None]),
)
def test_each_published_category_has_enough_people(
    rows: list[tuple[str | None, int]], prefixes: set[int], public: set[str], rare_name: str | None
) -> None:
    values = sorted({value for value, _ in rows if value is not None})
    extra = sorted(({"other", "N"} | public) - set(values))
    codes = np.array([-1 if value is None else values.index(value) for value, _ in rows])
    people = np.array([person for _, person in rows])
    found = recode(
        RealCategories([*values, *extra], codes, people),
        K,
        rare_name=rare_name,
        prefixes=prefixes,
        public=public,
    )
    holders: dict[Any, set[int]] = {}
    for value, person in rows:
        holders.setdefault(found[value], set()).add(person)
    if len(set(people[codes >= 0])) >= K:
        for value in [*values, *extra, None]:
            assert found[value] in public or len(holders.get(found[value], ())) >= K
        n_holders = count_holders(codes[codes >= 0], people[codes >= 0], len(values))
        levels = {value for value, n in zip(values, n_holders, strict=True) if n >= K}
        starts = {value[:length] for value in values for length in prefixes}
        assert {found[value] for value in values} - {None} <= levels | public | {"other"} | starts
    else:
        assert all(found[value] in (None, value) for value in [*values, *extra, None])
