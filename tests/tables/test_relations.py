"""Relations between columns: detection against brute force, tables without relations, and
settings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

from privacy_assets.errors import ConfigError
from privacy_assets.tables.canonical import canonical_table, real_tables
from privacy_assets.tables.column import MISSING, Column
from privacy_assets.tables.declared import Declared
from privacy_assets.tables.relations import Relation, find_relations
from privacy_assets.tables.schema import Kind
from privacy_assets.tables.table import Table
from privacy_assets.tables.threshold_rule import without_rare_values

N = 400


class Drawn(NamedTuple):
    """A column as plain values; None is missing, times are microseconds."""

    name: str
    kind: Kind
    values: list[Any]


def as_column(drawn: Drawn) -> Column:
    if drawn.kind == "categorical":
        known = sorted({value for value in drawn.values if value is not None})
        codes = [-1 if value is None else known.index(value) for value in drawn.values]
        return Column.of_codes(drawn.name, drawn.kind, np.array(codes, dtype=np.int64), known)
    if drawn.kind == "boolean":
        codes = [-1 if value is None else int(value) for value in drawn.values]
        return Column.of_codes(drawn.name, drawn.kind, np.array(codes, dtype=np.int64))
    if drawn.kind == "numeric":
        return Column(
            drawn.name,
            drawn.kind,
            np.array([np.nan if v is None else v for v in drawn.values], dtype=float),
        )
    cells = np.array(
        [MISSING if value is None else value for value in drawn.values], dtype=np.int64
    )
    return Column(drawn.name, drawn.kind, cells)


def found_in(table: Sequence[Drawn], people: Sequence[int]) -> list[str]:
    columns = [as_column(column) for column in table]
    return [relation.name for relation in find_relations(columns, np.array(people, dtype=np.int64))]


# The oracle


def is_no_coincidence(n_pairs: int, n_rows: int, n_people: int) -> bool:
    """``n_pairs`` of all pairs of rows break the relation if the cell of one moves to the other."""
    share = Fraction(n_pairs, n_rows**2)
    return share >= Fraction(1, 100) and share * n_people >= 20


def is_order(low: Drawn, high: Drawn, people: Sequence[int]) -> bool:
    rows = [
        row
        for row in range(len(people))
        if low.values[row] is not None and high.values[row] is not None
    ]
    if any(low.values[row] > high.values[row] for row in rows):
        return False
    n_people = len({people[row] for row in rows})
    n_pairs = sum(low.values[row] > high.values[other] for row in rows for other in rows)
    return n_people >= 100 and is_no_coincidence(n_pairs, len(rows), n_people)


def orders(table: Sequence[Drawn], people: Sequence[int]) -> list[str]:
    holds = dict[tuple[str, str], bool]()
    for low in table:
        for high in table:
            is_alike = (low.kind == "datetime") == (high.kind == "datetime")
            is_measured = {low.kind, high.kind} <= {"numeric", "integer", "datetime"}
            is_first_of_equal = not holds.get((high.name, low.name), False)
            if low is not high and is_alike and is_measured and is_first_of_equal:
                holds[low.name, high.name] = is_order(low, high, people)
    pairs = [pair for pair, is_kept in holds.items() if is_kept]
    column = {drawn.name: drawn for drawn in table}

    def is_filled(middle: str, low: str, high: str) -> bool:
        cells = zip(column[low].values, column[middle].values, column[high].values, strict=True)
        return not any(
            value is None for start, value, end in cells if start is not None and end is not None
        )

    middles = {
        (low, high): [
            m for m, end in pairs if end == high and (low, m) in pairs and is_filled(m, low, high)
        ]
        for low, high in pairs
    }
    return [f"{low} <= {high}" for low, high in pairs if not middles[low, high]]


def determines(first: Sequence[Any], second: Sequence[Any], people: Sequence[int]) -> bool:
    """``first`` has a value in each row that counts."""
    answers = dict[Any, set[Any]]()
    holders = dict[Any, set[int]]()
    for value, answer, person in zip(first, second, people, strict=True):
        answers.setdefault(value, set()).add(answer)
        holders.setdefault(value, set()).add(person)
    if any(len(of_group) > 1 for of_group in answers.values()):
        return False
    repeating = [of_group for of_group in holders.values() if len(of_group) > 1]
    if len(set[int]().union(*repeating)) < 100:
        return False
    n_free = sum(len(of_group) - 1 for of_group in repeating)
    n_pairs = sum(answer != other for answer in second for other in second)
    share = Fraction(n_pairs, len(second) ** 2)
    n_holders = sum(len(of_group) for of_group in holders.values())
    return share * n_free >= Fraction(n_holders, 100) and is_no_coincidence(
        n_pairs, len(second), n_free
    )


def n_values(column: Drawn) -> int:
    if column.kind == "boolean":
        return 2
    return len({value for value in column.values if value is not None})


def leads_to(determined_by: Mapping[str, str], start: str, end: str) -> bool:
    while start in determined_by and start != end:
        start = determined_by[start]
    return start == end


def codes(table: Sequence[Drawn], people: Sequence[int]) -> dict[str, str]:
    coded = [column for column in table if column.kind in ("categorical", "boolean")]
    determined_by = dict[str, str]()
    for second in table:
        for first in sorted(coded, key=n_values):
            if second.name in determined_by or leads_to(determined_by, first.name, second.name):
                continue
            rows = [row for row in range(len(people)) if first.values[row] is not None]
            groups = [first.values[row] for row in rows]
            answers = [second.values[row] for row in rows]
            if determines(groups, answers, [people[row] for row in rows]):
                determined_by[second.name] = first.name
    return determined_by


def gaps(table: Sequence[Drawn], people: Sequence[int], coded: Mapping[str, str]) -> dict[str, str]:
    categories = [column for column in table if column.kind in ("categorical", "boolean")]
    others = [column for column in table if column.kind not in ("categorical", "boolean")]
    determined_by = dict[str, str]()
    for second in table:
        is_gap = [value is None for value in second.values]
        if not any(is_gap):
            continue
        for first in [*sorted(categories, key=n_values), *others]:
            if second.name in determined_by or leads_to(determined_by, first.name, second.name):
                continue
            groups = [value is None for value in first.values] if first in others else first.values
            if determines(groups, is_gap, people):
                determined_by[second.name] = first.name
    return {second: first for second, first in determined_by.items() if coded.get(second) != first}


def expected_in(table: Sequence[Drawn], people: Sequence[int]) -> list[str]:
    by_code = codes(table, people)
    by_gap = gaps(table, people, by_code)
    names = [column.name for column in table]
    found = orders(table, people)
    found += [f"{by_code[name]} -> {name}" for name in names if name in by_code]
    return found + [f"{by_gap[name]} -> gaps of {name}" for name in names if name in by_gap]


# Drawn tables


def numbers(rng: np.random.Generator, n: int) -> list[Drawn]:
    """A base, columns above and below it, a copy, and a chain; some of them integers, with ties and
    faults.
    """
    base = rng.integers(0, int(rng.choice([3, 40, 2000])), n)
    if rng.random() < 0.2:
        base[:] = 7
    step = rng.integers(0, int(rng.choice([1, 5, 300])), n) * (
        rng.random(n) < rng.choice([0.1, 0.6, 1.0])
    )
    above = base + step
    if rng.random() < 0.2:
        above[rng.integers(n)] = -1
    top = above + rng.integers(0, 50, n)
    drawn = [
        Drawn("base", "integer", base.tolist()),
        Drawn("above", "numeric", (above + 0.0).tolist()),
        Drawn("top", "integer", top.tolist()),
        Drawn("copy", "numeric", (base + 0.0).tolist()),
        Drawn("below", "numeric", (base * rng.random(n)).round(1).tolist()),
        Drawn("alone", "numeric", (rng.random(n) * 9).round(2).tolist()),
    ]
    return [column for column in drawn if rng.random() < 0.6]


def times(rng: np.random.Generator, n: int) -> list[Drawn]:
    start = rng.integers(0, int(rng.choice([2, 5000])), n) * 86_400_000_000
    end = start + rng.integers(0, int(rng.choice([1, 20])), n) * 43_200_000_000
    return [Drawn("start", "datetime", start.tolist()), Drawn("end", "datetime", end.tolist())]


def categories(rng: np.random.Generator, n: int) -> list[Drawn]:
    """Postcodes, towns and states, another name of the towns, and independent ones; some with a
    fault.
    """
    postcode = rng.integers(0, int(rng.choice([4, 12, 60, 190])), n)
    town = postcode // 2
    state = town // int(rng.choice([2, 3]))
    wrong = town.copy()
    wrong[rng.integers(n)] += 1
    drawn = [
        Drawn("state", "categorical", [f"s{code}" for code in state]),
        Drawn("town", "categorical", [f"t{code}" for code in town]),
        Drawn("postcode", "categorical", [f"p{code}" for code in postcode]),
        Drawn("alias", "categorical", [f"a{-code}" for code in town]),
        Drawn("nearly", "categorical", [f"n{code}" for code in wrong]),
        Drawn("is_north", "boolean", (state % 2 == 0).tolist()),
        Drawn("flag", "boolean", (rng.random(n) < 0.4).tolist()),
        Drawn("sex", "categorical", rng.choice(["f", "m"], n).tolist()),
        Drawn("same", "categorical", ["x"] * n),
        Drawn("price", "numeric", (postcode * 1.25).tolist()),
        Drawn("tier", "integer", (town // 5).tolist()),
        Drawn("founded", "datetime", (state * 86_400_000_000).tolist()),
    ]
    return [column for column in drawn if rng.random() < 0.5]


def with_gaps(rng: np.random.Generator, table: list[Drawn]) -> list[Drawn]:
    """Gaps by chance, gaps where another column has a value or a gap, and columns without a
    value.
    """
    gapped = list[Drawn]()
    for column in table:
        n = len(column.values)
        is_gap = [False] * n
        cause = rng.random()
        if cause < 0.15:
            is_gap = (rng.random(n) < rng.choice([0.02, 0.3])).tolist()
        elif cause < 0.3 and gapped:
            other = gapped[int(rng.integers(len(gapped)))]
            is_gap = [value is None for value in other.values]
        elif cause < 0.5:
            flags = [
                other
                for other in table
                if other.kind == "boolean" or other.name in ("sex", "state")
            ]
            if flags:
                other = flags[int(rng.integers(len(flags)))]
                is_gap = [value in (False, "f", "s0") for value in other.values]
        elif cause < 0.52:
            is_gap = [True] * n
        values = [
            None if is_absent else value
            for value, is_absent in zip(column.values, is_gap, strict=True)
        ]
        gapped.append(column._replace(values=values))
    return gapped


def drawn_table(seed: int) -> tuple[list[Drawn], list[int]]:
    rng = np.random.default_rng(seed)
    n = int(rng.choice([1, 30, 99, 100, 101, 150, 200, 200]))
    table = [*numbers(rng, n), *categories(rng, n)]
    if rng.random() < 0.4:
        table += times(rng, n)
    if not table:
        table = times(rng, n)
    table = with_gaps(rng, table)
    rng.shuffle(table)
    people = np.arange(n)
    if rng.random() < 0.25:
        people = rng.integers(0, int(rng.choice([90, 150, 600])), n)
    return table, people.tolist()


@pytest.mark.slow
def test_the_relations_are_those_that_brute_force_finds() -> None:
    kinds = Counter[str]()
    n_without = 0
    for seed in range(160):
        table, people = drawn_table(seed)
        expected = expected_in(table, people)
        assert found_in(table, people) == expected, seed
        n_without += not expected
        for name in expected:
            kinds["gap" if " gaps of " in name else name.split()[1]] += 1
    assert min(kinds[kind] for kind in ("<=", "->", "gap")) > 50 and n_without > 20, (
        "the tables have all cases"
    )


@pytest.mark.parametrize(
    ("n_people", "n_different", "is_found"),
    [
        (99, 50, False),
        (100, 50, True),
        (100, 12, True),
        (100, 11, False),
        (2000, 11, True),
        (2000, 10, False),
    ],
)
def test_a_code_needs_a_hundred_people_and_answers_that_differ(
    n_people: int, n_different: int, is_found: bool
) -> None:
    """With 12 of 100 rows, a shuffled answer is wrong in 21 % of the rows; 98 people repeat the
    answer of another.
    """
    first = ["b"] * n_different + ["a"] * (n_people - n_different)
    table = [
        Drawn("first", "categorical", first),
        Drawn("second", "boolean", [value == "a" for value in first]),
    ]
    assert found_in(table, range(n_people)) == expected_in(table, range(n_people))
    assert bool(found_in(table, range(n_people))) == is_found


@pytest.mark.parametrize(
    ("n_rows", "n_larger", "is_found"),
    [(200, 23, True), (200, 22, False), (2500, 26, True), (2500, 25, False)],
)
def test_an_order_counts_if_shuffling_breaks_it(n_rows: int, n_larger: int, is_found: bool) -> None:
    """Only the first cells of a few rows can be above those of other rows."""
    low = [9] * n_larger + [1] * (n_rows - n_larger)
    high = [9] * n_larger + [2] * (n_rows - n_larger)
    table = [Drawn("low", "integer", low), Drawn("high", "integer", high)]
    share = Fraction(n_larger * (n_rows - n_larger), n_rows**2)
    assert is_found == (share >= Fraction(1, 100) and share * n_rows >= 20)
    assert found_in(table, range(n_rows)) == (["low <= high"] if is_found else [])


def test_rows_of_one_person_count_once() -> None:
    table = [
        Drawn("low", "integer", list(range(300))),
        Drawn("high", "integer", list(range(1, 301))),
    ]
    assert found_in(table, [row % 100 for row in range(300)]) == ["low <= high"]
    assert found_in(table, [row % 99 for row in range(300)]) == []


@pytest.mark.parametrize(("n_alone", "is_found"), [(3_000, True), (12_000, False)])
def test_a_code_that_is_unique_in_most_rows_determines_nothing(
    n_alone: int, is_found: bool
) -> None:
    """120 people share 40 postcodes. The towns of the others are free, as each has a postcode of
    their own.
    """
    postcode = [f"p{row // 3}" for row in range(120)] + [f"q{row}" for row in range(n_alone)]
    town = [f"t{row // 6}" for row in range(120)] + [f"t{row % 20}" for row in range(n_alone)]
    table = [Drawn("postcode", "categorical", postcode), Drawn("town", "categorical", town)]
    assert found_in(table, range(len(town))) == (["postcode -> town"] if is_found else [])


def test_a_row_that_is_late_breaks_a_relation() -> None:
    """The first rows rule out most relations. They must not confirm one."""
    low = np.random.default_rng(0).integers(0, 1000, 3000)
    town = low % 30
    table = [
        Drawn("low", "integer", low.tolist()),
        Drawn("high", "integer", (low + 1).tolist()),
        Drawn("postcode", "categorical", [f"p{code}" for code in town]),
        Drawn("town", "categorical", [f"t{code // 2}" for code in town]),
        Drawn(
            "gap",
            "numeric",
            [None if code < 20 else -float(value) for code, value in zip(town, low, strict=True)],
        ),
    ]
    assert found_in(table, range(3000)) == [
        "low <= high",
        "postcode -> town",
        "town -> gaps of gap",
    ]
    table[1].values[-1] = -5
    assert found_in(table, range(3000)) == ["postcode -> town", "town -> gaps of gap"]
    table[4].values[-1] = 1.0 if table[4].values[-1] is None else None
    assert found_in(table, range(3000)) == ["postcode -> town"]
    table[3].values[-1] = "elsewhere"
    assert found_in(table, range(3000)) == ["town -> gaps of gap"], (
        "the only row of its town has one answer"
    )


def test_a_table_without_columns_of_a_kind_and_one_row_has_none() -> None:
    assert find_relations([], np.arange(0)) == []
    one = [
        Drawn("a", "numeric", [1.0]),
        Drawn("b", "categorical", [None]),
        Drawn("c", "datetime", [None]),
    ]
    assert found_in(one, [0]) == []


def test_three_names_of_one_category_are_a_chain() -> None:
    town = [f"t{row % 20}" for row in range(N)]
    table = [Drawn(name, "categorical", town) for name in "abc"]
    assert found_in(table, range(N)) == ["b -> a", "c -> b"]


def test_equal_columns_have_one_order() -> None:
    values = list(range(N))
    table = [Drawn(name, "integer", values) for name in "abc"]
    assert found_in(table, range(N)) == ["a <= b", "b <= c"]


# Tables without relations


def unrelated(seed: int) -> list[Drawn]:
    rng = np.random.default_rng((7, seed))

    def skewed(n_levels: int) -> list[str]:
        weights = 1 / np.arange(1, n_levels + 1) ** rng.uniform(0.5, 2)
        return rng.choice(
            [f"v{level}" for level in range(n_levels)], N, p=weights / weights.sum()
        ).tolist()

    zeros = rng.random((2, N)) < rng.uniform(0.5, 0.98, (2, 1))
    table = [
        Drawn("income", "numeric", rng.lognormal(8, 1, N).round(2).tolist()),
        Drawn("gain", "numeric", np.where(zeros[0], 0, rng.lognormal(6, 1, N).round(2)).tolist()),
        Drawn("loss", "integer", np.where(zeros[1], 0, rng.integers(1, 3000, N)).tolist()),
        Drawn("age", "integer", rng.integers(17, 91, N).tolist()),
        Drawn("children", "integer", rng.poisson(0.8, N).tolist()),
        Drawn("job", "categorical", skewed(30)),
        Drawn("town", "categorical", skewed(200)),
        Drawn("race", "categorical", skewed(4)),
        Drawn("is_rare", "boolean", (rng.random(N) < 0.03).tolist()),
        Drawn("is_male", "boolean", (rng.random(N) < 0.5).tolist()),
        Drawn("birth", "datetime", (rng.integers(0, 20_000, N) * 86_400_000_000).tolist()),
        Drawn("visit", "datetime", (rng.integers(15_000, 21_000, N) * 86_400_000_000).tolist()),
    ]
    shares = rng.choice([0.0, 0.0, 0.01, 0.1, 0.5], len(table))
    gapped = []
    for column, share in zip(table, shares, strict=True):
        is_gap = rng.random(N) < share
        values = [
            None if is_absent else value
            for value, is_absent in zip(column.values, is_gap, strict=True)
        ]
        gapped.append(column._replace(values=values))
    return gapped


def test_random_tables_have_no_relation() -> None:
    with_one = [seed for seed in range(100) if found_in(unrelated(seed), range(N))]
    assert len(with_one) <= 1


def test_adult_has_a_number_for_each_education_and_the_census_no_relation(
    adult: pd.DataFrame, uk_census: pd.DataFrame
) -> None:
    names = [relation.name for relation in canonical_table(adult).relations]
    assert names == ["education -> education_num"]
    assert canonical_table(uk_census).relations == ()


# Order of rows and columns


def test_the_order_of_rows_and_columns_does_not_matter() -> None:
    rng = np.random.default_rng(1)
    n_compared = 0
    for seed in range(40):
        table, people = drawn_table(seed)
        table = [column for column in table if column.name not in ("alias", "copy", "is_north")]
        if not table:
            continue
        rows = rng.permutation(len(people)).tolist()
        moved = [column._replace(values=[column.values[row] for row in rows]) for column in table]
        expected = found_in(table, people)
        assert found_in(moved, [people[row] for row in rows]) == expected
        by_column = found_in(table[::-1], people)
        assert len(by_column) == len(expected)
        if not has_equal_columns(table):
            assert {name for name in by_column if "<=" in name} == {
                name for name in expected if "<=" in name
            }
            n_compared += 1
    assert n_compared > 10


def has_equal_columns(table: Sequence[Drawn]) -> bool:
    """Return True if two columns differ in no row that has both."""
    numbers = [column for column in table if column.kind not in ("categorical", "boolean")]
    for one, other in combinations(numbers, 2):
        pairs = [pair for pair in zip(one.values, other.values, strict=True) if None not in pair]
        if all(first == second for first, second in pairs):
            return True
    return False


def test_names_do_not_depend_on_the_order_of_different_columns() -> None:
    frame = places()
    backwards = frame[frame.columns[::-1]]
    found = {relation.name for relation in canonical_table(frame).relations}
    assert (
        found == {relation.name for relation in canonical_table(backwards).relations} == set(FOUND)
    )


# Settings


def places(n: int = 1_200) -> pd.DataFrame:
    """Stays in towns, with a number of cigarettes of those who smoke."""
    rng = np.random.default_rng(3)
    code = rng.integers(0, 24, n)
    start = date(2020, 1, 1)
    days = rng.integers(0, 900, n)
    low = np.round(rng.lognormal(5, 1, n), 2)
    smokes = rng.random(n) < 0.4
    return pd.DataFrame(
        {
            "start": pd.to_datetime([start + timedelta(days=int(day)) for day in days]),
            "end": pd.to_datetime(
                [start + timedelta(days=int(day)) for day in days + rng.integers(0, 30, n)]
            ),
            "low": low,
            "high": np.round(low * rng.choice([1.0, 1.5, 2.0], n), 2),
            "postcode": [f"{10_000 + 7 * value}x" for value in code],
            "town": [f"town {value // 2}" for value in code],
            "state": [f"state {value // 8}" for value in code],
            "smokes": np.where(smokes, "yes", "no"),
            "cigarettes": np.where(smokes, rng.integers(1, 40, n), np.nan),
            "color": rng.choice(["red", "green", "blue"], n),
        }
    )


FOUND = [
    "start <= end",
    "low <= high",
    "postcode -> town",
    "town -> state",
    "smokes -> gaps of cigarettes",
]


def read(frame: pd.DataFrame, relations: Any = None) -> Table:
    return canonical_table(frame, Declared(relations=relations or {}))


def names(table: Table) -> list[str]:
    return [relation.name for relation in table.relations]


@pytest.mark.parametrize("name", FOUND)
def test_a_relation_is_switched_off_by_name(name: str) -> None:
    assert names(read(places())) == FOUND
    assert names(read(places(), {name: False})) == [other for other in FOUND if other != name]


def test_a_relation_without_evidence_is_declared_by_name() -> None:
    frame = places(90)
    assert names(read(frame)) == []
    declared = read(frame, dict.fromkeys(FOUND, True))
    assert names(declared) == FOUND
    assert all(relation.is_declared for relation in declared.relations)


def test_a_relation_that_is_found_may_be_declared_as_well() -> None:
    table = read(places(), {"postcode -> town": True})
    assert names(table) == FOUND
    assert [relation.name for relation in table.relations if relation.is_declared] == [
        "postcode -> town"
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "low < high",
        "low",
        "low <= low",
        "",
        "<=",
        " -> ",
    ],
)
@pytest.mark.parametrize("is_kept", [True, False])
def test_a_name_of_another_form_is_blocked(name: str, is_kept: bool) -> None:
    with pytest.raises(ConfigError) as caught:
        read(places(), {name: is_kept})
    assert f"relations: {name!r} is not a relation of two columns. Fix: " in str(caught.value)
    assert "'start <= end'" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "unknown"),
    [
        ("start <= ends", "ends"),
        ("postcode -> twon", "twon"),
        ("smokes -> gaps of nothing", "nothing"),
    ],
)
@pytest.mark.parametrize("is_kept", [True, False])
def test_an_unknown_column_is_named(name: str, unknown: str, is_kept: bool) -> None:
    with pytest.raises(ConfigError) as caught:
        read(places(), {name: is_kept})
    assert f"relations: {name!r} names {unknown!r}, which is not a published column. Fix: " in str(
        caught.value
    )
    assert ("Did you mean 'end'?" in str(caught.value)) == (unknown == "ends")


def test_names_of_columns_may_contain_the_signs() -> None:
    frame = places().rename(columns={"low": "a <= b", "high": "c -> d"})
    assert "a <= b <= c -> d" in {relation.name for relation in read(frame).relations}
    assert "a <= b <= c -> d" not in {
        one.name for one in read(frame, {"a <= b <= c -> d": False}).relations
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("start <= low", "needs two columns of numbers, or two of times"),
        ("low <= town", "needs two columns of numbers, or two of times"),
        ("town <= state", "needs two columns of numbers, or two of times"),
        ("low -> town", "needs a first column of categories"),
        ("low -> high", "needs a first column of categories"),
        (
            "town -> high",
            "of 1,200 real rows break 'town -> high'. Fix: correct these rows, or remove",
        ),
        ("high <= low", "of 1,200 real rows break 'high <= low'. Fix: "),
        ("town -> postcode", "of 1,200 real rows break 'town -> postcode'. Fix: "),
        (
            "state -> gaps of cigarettes",
            "of 1,200 real rows break 'state -> gaps of cigarettes'. Fix: ",
        ),
    ],
)
def test_a_declared_relation_that_does_not_hold_is_blocked(name: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(places(), {name: True})
    assert expected in str(caught.value) and "remove" in str(caught.value)
    assert names(read(places(), {name: False})) == FOUND


@pytest.mark.parametrize(
    ("relations", "expected"),
    [
        (["start <= end"], "relations: Input should be a valid"),
        ("start <= end", "relations: Input should be a valid"),
        ({3: True}, "relations: Input should be a valid"),
        ({"start <= end": "no"}, "'start <= end' needs true or false"),
        ({"start <= end": 1}, "'start <= end' needs true or false"),
        ({"start <= end": None}, "{start <= end: false} switches it off"),
    ],
)
def test_settings_of_another_form_are_rejected(relations: Any, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Declared(relations=relations)
    assert expected in str(caught.value)


def test_declared_relations_are_part_of_the_declarations() -> None:
    relations = {"start <= end": False, "postcode -> town": True}
    declared = Declared(relations=relations)
    assert declared.relations == declared.to_setup(str)["relations"] == relations
    assert "relations" not in Declared().to_setup(str)


def test_a_name_in_another_unicode_form_is_the_same() -> None:
    frame = places().rename(columns={"low": "bewa\u0308hrt"})
    assert "bew\u00e4hrt <= high" in names(read(frame))
    assert "bew\u00e4hrt <= high" not in names(read(frame, {"bewa\u0308hrt <= high": False}))


def test_all_real_tables_count_and_people_are_those_of_the_subject() -> None:
    frame = places()
    frame.insert(0, "pid", [f"p{row // 2}" for row in range(len(frame))])
    train = frame[:800]
    holdout = frame[800:].reset_index(drop=True)
    frames: dict[str, Any] = {"train": train, "holdout": holdout}
    real = real_tables(frames, {"train": "train", "holdout": "holdout"}, Declared(subject="pid"))
    assert [names(table) for table in real.values()] == [FOUND, FOUND]
    holdout.loc[0, "end"] = pd.Timestamp("2019-01-01")
    frames = {"train": train, "holdout": holdout}
    real = real_tables(frames, {"train": "train", "holdout": "holdout"}, Declared(subject="pid"))
    assert [names(table) for table in real.values()] == [FOUND[1:], FOUND[1:]]
    few = frame.assign(pid=[f"p{row % 99}" for row in range(len(frame))])
    assert names(canonical_table(few, Declared(subject="pid"))) == []


# What determines what


def relation(table: Table, name: str) -> Relation:
    return next(one for one in table.relations if one.name == name)


def test_values_that_determine_others_are_those_of_the_rows() -> None:
    frame = places()
    frame.loc[5:9, "postcode"] = None
    table = read(frame, {"postcode -> town": True})
    code = dict(relation(table, "postcode -> town").determined)
    whole = frame.dropna(subset="postcode")
    assert code == dict(zip(whole["postcode"], whole["town"], strict=True))
    assert dict(relation(table, "smokes -> gaps of cigarettes").determined) == {
        "no": True,
        "yes": False,
    }


def test_rows_that_break_a_relation_are_counted() -> None:
    frame = places()
    table = read(frame)
    wrong = frame.copy()
    wrong.loc[3, "end"] = pd.Timestamp("2019-01-01")
    wrong.loc[4, "town"] = "Atlantis"
    wrong.loc[5, "town"] = None
    wrong.loc[6, "state"] = "state 0" if wrong.loc[6, "state"] != "state 0" else "state 1"
    wrong.loc[7, "cigarettes"] = None if wrong.loc[7, "smokes"] == "yes" else 3
    changed = Table.of(wrong, table.schema, where="synthetic")
    broken = {}
    for one in table.relations:
        assert not one.is_broken(table[one.first], table[one.second]).any()
        broken[one.name] = np.flatnonzero(
            one.is_broken(changed[one.first], changed[one.second])
        ).tolist()
    assert broken == {
        "start <= end": [3],
        "low <= high": [],
        "postcode -> town": [4, 5],
        "town -> state": [6],
        "smokes -> gaps of cigarettes": [7],
    }


def test_values_that_no_real_row_has_are_free() -> None:
    frame = places()
    table = read(frame)
    other = frame.assign(postcode="other", smokes=None)
    changed = Table.of(other, table.schema, where="synthetic")
    for name in ("postcode -> town", "smokes -> gaps of cigarettes"):
        one = relation(table, name)
        assert not one.is_broken(changed[one.first], changed[one.second]).any()
        assert (one.expected(changed[one.first], []) == -1).all()


def test_after_the_threshold_rule_rare_codes_determine_nothing() -> None:
    frame = places()
    frame.loc[:1, "postcode"] = ["rare 1", "rare 2"]
    frame.loc[:1, "town"] = ["town 0", "town 4"]
    frame.loc[:1, "state"] = ["state 0", "state 1"]
    frame = pd.concat([frame, frame[:2], frame[:2]], ignore_index=True)
    table = read(frame)
    published = without_rare_values({"train": table}, 5)["train"]
    assert names(published) == FOUND
    before = dict(relation(table, "postcode -> town").determined)
    after = dict(relation(published, "postcode -> town").determined)
    assert {"rare 1", "rare 2"} <= set(before) and "other" not in after
    assert set(before) - set(after) == {"rare 1", "rare 2"}


def test_relations_are_saved_with_the_table(tmp_path: Path) -> None:
    table = read(places(), {"postcode -> town": True})
    assert len(table.relations) == len(FOUND)
    table.save(tmp_path / "table")
    assert Table.load(tmp_path / "table").relations == table.relations
    assert (
        table.for_training().relations == table.relations
        and table.without_subject().relations == ()
    )
    for one in table.relations:
        assert Relation.from_json(one.to_json()) == one


def test_the_rows_that_break_a_declared_relation_are_counted() -> None:
    frame = places()
    frame.loc[0, "town"] = "elsewhere"
    with pytest.raises(ConfigError, match="1 of 1,200 real rows break 'postcode -> town'"):
        read(frame, {"postcode -> town": True})
    frame.loc[1, "end"] = frame.loc[1, "start"] - pd.Timedelta(days=1)
    with pytest.raises(ConfigError, match="1 of 1,200 real rows break 'start <= end'"):
        read(frame, {"start <= end": True})
