"""Row identity, fingerprints, the sticky split and the encoding."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from privacy_assets.errors import ConfigError, InputError
from privacy_assets.tables.canonical import canonical_table
from privacy_assets.tables.column import row_ids
from privacy_assets.tables.declared import Declared
from privacy_assets.tables.encoding import EncodedTable, TabularEncoder
from privacy_assets.tables.fingerprints import file_fingerprint, keyed_fingerprint
from privacy_assets.tables.inference import infer_schema
from privacy_assets.tables.schema import ColumnSchema, TableSchema
from privacy_assets.tables.splitting import split_rows
from privacy_assets.tables.table import Table, joint
from tests.tables import as_table

KEY = b"k" * 32
SECRET = "Zebulon-77123"


def mixed(n: int, seed: int = 0, missing: float = 0.2) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "number": rng.normal(size=n).round(1),
            "count": rng.integers(0, 4, n),
            "word": rng.choice(["a", "b", "c"], n),
            "flag": rng.random(n) < 0.5,
            "day": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 3, n), unit="D"),
        }
    )
    return frame.astype(object).mask(rng.random(frame.shape) < missing)


SCHEMA: TableSchema = infer_schema(mixed(50, missing=0.1))


def canonical(frame: pd.DataFrame) -> Table:
    return Table.of(frame, SCHEMA, where="t")


def ids_of(*tables: Table) -> list[np.ndarray]:
    return row_ids([table.columns for table in tables], tables[0].schema.names)


def texts(*columns: list[str]) -> Table:
    """A table of categories, with columns named x, y and so on."""
    names = "xyz"[: len(columns)]
    schema = TableSchema(
        tuple(ColumnSchema(name, "categorical", False, "object") for name in names)
    )
    frame = pd.DataFrame(
        {name: pd.Series(cells, dtype=object) for name, cells in zip(names, columns, strict=True)}
    )
    return Table.of(frame, schema, where="t")


# Identity


def test_row_ids_agree_with_comparison_of_rows() -> None:
    tables = [canonical(mixed(60, seed, missing=0.3)) for seed in range(3)]
    ids = np.concatenate(ids_of(*tables))
    frames = [table.frame() for table in tables]
    rows = [
        tuple("?" if pd.isna(v) else v for v in row)
        for frame in frames
        for row in frame.itertuples(index=False)
    ]
    same = np.array([[a == b for b in rows] for a in rows])
    assert (same == (ids[:, None] == ids[None, :])).all()
    assert same.sum() > len(rows), "the test needs duplicates"
    assert set(ids) == set(range(len(set(rows))))


def test_row_ids_rank_rows_and_need_no_common_vocabulary() -> None:
    first, second = texts(["b", "d"]), texts(["c", "a", "b"])
    assert [ids.tolist() for ids in ids_of(first, second)] == [[1, 3], [2, 0, 1]]
    large = as_table(pd.DataFrame({"x": pd.Series([2**53 + 1, None, 2**53], dtype="Int64")}))
    assert ids_of(large)[0].tolist() == [2, 0, 1]


# Fingerprints


def test_fingerprint_ignores_order_of_rows_and_columns_and_nothing_else() -> None:
    table = canonical(mixed(80))
    base = table.fingerprint
    turned = table.select(table.schema.names[::-1]).take(np.random.default_rng(3).permutation(80))
    assert turned.fingerprint == base
    changed = {base}
    for column in table.schema.columns:
        frame = table.frame()
        row = int(frame[column.name].notna().to_numpy().argmax())
        frame.loc[row, column.name] = None if frame[column.name].dtype == object else pd.NA
        changed.add(as_table(frame, SCHEMA).fingerprint)
        other = replace(column, name=f"{column.name}2")
        schema = TableSchema(tuple(other if own is column else own for own in table.schema.columns))
        changed.add(
            as_table(table.frame().rename(columns={column.name: other.name}), schema).fingerprint
        )
    changed.add(Table.stack([table, table.take(slice(1))]).fingerprint)
    changed.add(table.take(slice(1, None)).fingerprint)
    assert len(changed) == 1 + 2 * len(table.columns) + 2


def test_counts_places_and_boundaries_matter_to_a_fingerprint() -> None:
    different = [
        *(texts(list(cells)) for cells in ("aab", "abb", "ab", "aabb")),
        texts(["ab", "c"], ["d", "e"]),
        texts(["ab", "c"], ["e", "d"]),
        texts(["a", "c"], ["bd", "e"]),
        texts(["d", "e"], ["ab", "c"]),
        texts(["\ud800"]),
        texts(["?"]),
    ]
    assert len({table.fingerprint for table in different}) == len(different)


def test_neither_the_file_nor_the_vocabulary_matters_to_a_fingerprint() -> None:
    """Tables of one release share their values; only the values of the row itself count."""
    whole = pd.DataFrame({"x": [1, 2], "z": [0.0, 1.5]})
    floats = pd.DataFrame({"x": [1.0, 2.0], "z": [-0.0, 1.5]})
    schema = infer_schema(whole)
    assert as_table(whole, schema).fingerprint == as_table(floats, schema).fingerprint
    table = canonical(mixed(40))
    wide = joint(
        {"own": table, "other": canonical(mixed(9, seed=1).assign(word="a word of its own"))}
    )["own"]
    assert wide["word"].values != table["word"].values and wide.fingerprint == table.fingerprint


def test_file_and_keyed_fingerprints(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    assert (
        file_fingerprint(tmp_path / "a")
        == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    )
    assert keyed_fingerprint("f", b"1") != keyed_fingerprint("f", b"2") != "f"


# Splitting


def people(n: int, start: int = 0) -> pd.DataFrame:
    ids = np.repeat(np.arange(start, start + n), 3)
    return pd.DataFrame({"id": ids, "x": np.arange(len(ids)) % 7})


def split(
    frame: pd.DataFrame, subject: str | None, key: bytes = KEY, **shares: Any
) -> dict[str, pd.DataFrame]:
    """Rows of each role, with their index."""
    table = canonical_table(frame, Declared(subject=subject))
    return {role: frame.iloc[rows] for role, rows in split_rows(table, key, **shares).items()}


def test_split_is_disjoint_complete_and_in_proportion() -> None:
    frame = people(4000)
    parts = split(frame, "id")
    assert sorted(index for part in parts.values() for index in part.index) == list(frame.index)
    sides = [set(part["id"]) for part in parts.values()]
    assert sum(map(len, sides)) == len(set.union(*sides)) == 4000
    for part, share in zip(parts.values(), (0.5, 0.3, 0.2), strict=True):
        spread = np.sqrt(4000 * share * (1 - share))
        assert abs(part["id"].nunique() - 4000 * share) < 4 * spread
        assert part.index.is_monotonic_increasing


def test_split_is_sticky_across_refreshes_and_dtypes() -> None:
    def sides(frame: pd.DataFrame, key: bytes = KEY) -> dict[int, str]:
        parts = split(frame, "id", key)
        return {int(person): name for name, part in parts.items() for person in part["id"].unique()}

    before = sides(people(500))
    refreshed = people(500, start=100).sample(frac=1, random_state=0)
    for dtype in ("int64", "float64", "category"):
        after = sides(refreshed.astype({"id": dtype}))
        shared = before.keys() & after.keys()
        assert len(shared) == 400
        assert all(before[person] == after[person] for person in shared)
    assert sides(people(500), b"another key") != before


@pytest.mark.parametrize("ids", [pd.Series(range(20)), pd.Series([str(i) for i in range(20)])])
def test_sides_are_pinned(ids: pd.Series) -> None:
    """Another hash would move people between sides of tables that are already published."""
    parts = split(pd.DataFrame({"id": ids, "x": 0}), "id")
    sides = {row: role for role, part in parts.items() for row in part.index}
    assert "".join(sides[row][0] for row in range(20)) == "tthttrhhthhrttthtrtt"


def test_without_a_subject_equal_rows_stay_together_in_any_dtype() -> None:
    frame = pd.DataFrame({"a": np.arange(300) % 40, "b": np.arange(300) % 2})
    parts = split(frame, None)
    rows = [set(part.itertuples(index=False, name=None)) for part in parts.values()]
    assert sum(map(len, rows)) == len(set.union(*rows))
    with_missing = pd.concat([frame, pd.DataFrame({"a": [None], "b": [0]})], ignore_index=True)
    again = split(with_missing, None)
    assert all(set(parts[name].index) == set(again[name].index) - {300} for name in parts)


def test_split_errors_name_place_and_no_value() -> None:
    frame = people(50)
    with pytest.raises(
        InputError, match="column 'person': the column configured as the subject does not exist"
    ):
        split(frame, "person")
    with pytest.raises(InputError, match=r"column 'id', row 4: the subject is missing"):
        split(frame.assign(id=frame["id"].where(frame.index != 4)), "id")
    with pytest.raises(InputError, match="leave .* empty") as caught:
        split(pd.DataFrame({"id": [SECRET], "x": [1]}), "id")
    assert SECRET not in str(caught.value)
    unnamed, zero = {"train": 0.5, "holdout": 0.3, "test": 0.2}, {"train": 1.0, "holdout": 0.0}
    for shares, told in (
        ({"train": 1.0}, "name train and holdout, and holdout is missing"),
        ({"train": 0.9, "holdout": 0.2}, "sum to 1, but sum to 1.1"),
        (unnamed, "name train, holdout and reference only, not 'test'"),
        (zero, "be positive, but that of holdout is not"),
    ):
        with pytest.raises(
            ConfigError, match=f"shares must {told}. For example: split: .train: 0.5, holdout: 0.3"
        ):
            split(frame, "id", shares=shares)


# Encoding


def days(value: object) -> float:
    """A number of the encoding's kind, or NaN."""
    if pd.isna(value):
        return float("nan")
    return value.value / 86_400e9 if isinstance(value, pd.Timestamp) else float(value)


def word(value: object, known: tuple[object, ...]) -> object:
    return "missing" if pd.isna(value) else value if value in known else "unseen"


def brute_force(a: pd.Series, b: pd.Series, encoder: TabularEncoder) -> float:
    """Squared distance of two rows by its definition, one column at a time."""
    total = 0.0
    for number in encoder.numbers:
        x, y = days(a[number.name]), days(b[number.name])
        if number.scale:
            total += (
                (np.nan_to_num(x, nan=number.center) - np.nan_to_num(y, nan=number.center))
                / number.scale
            ) ** 2
        total += number.indicator and np.isnan(x) != np.isnan(y)
    return total + sum(
        word(a[c.name], c.values) != word(b[c.name], c.values) for c in encoder.categories
    )


def test_distances_of_dense_rows_are_those_of_the_definition_in_all_columns_and_in_each() -> None:
    strange = mixed(20, seed=5)
    strange.loc[0, "word"] = "unseen"
    real, other = canonical(mixed(30)), canonical(strange)
    encoder = TabularEncoder.fit([real], SCHEMA, later=[other])
    rows, others = real.frame(), other.frame()
    assert set(encoder.positions) == set(SCHEMA.names)
    whole = sorted(place for places in encoder.positions.values() for place in places)
    for names, places in (
        (SCHEMA.names, whole),
        *(([name], own) for name, own in encoder.positions.items()),
    ):
        own = TabularEncoder(
            *(
                tuple(x for x in part if x.name in names)
                for part in (encoder.numbers, encoder.categories)
            )
        )
        left, right = (encoder.transform(table).pick(places) for table in (real, other))
        dense = ((left.dense[:, None, :] - right.dense[None]) ** 2).sum(axis=2)
        for i, j in itertools.product(range(0, 30, len(SCHEMA.names) - len(names) + 1), range(20)):
            assert dense[i, j] == pytest.approx(
                brute_force(rows.iloc[i], others.iloc[j], own), abs=1e-4
            ), names


def test_the_order_of_rows_and_frames_does_not_matter() -> None:
    first, second = canonical(mixed(40)), canonical(mixed(40, seed=2))
    a = TabularEncoder.fit([first, second], SCHEMA)
    b = TabularEncoder.fit([second.take(np.random.default_rng(0).permutation(40)), first], SCHEMA)
    assert a == b == TabularEncoder.from_json(json.loads(json.dumps(a.to_json())))


def test_unseen_missing_constant_and_huge_values() -> None:
    real = pd.DataFrame(
        {
            "c": ["a", "b", None],
            "k": [5.0, 5.0, 5.0],
            "x": [0.0, 1.0, 2.0],
            "b": [True, False, None],
        }
    )
    schema = infer_schema(real)
    encoder = TabularEncoder.fit([as_table(real, schema)], schema)
    others = pd.DataFrame(
        {
            "c": ["new", None, "a"],
            "k": [9.0, 5, 5],
            "x": [1e300, -1e300, 1.0],
            "b": [None, True, None],
        }
    )
    coded = encoder.transform(as_table(others, schema))
    assert np.isfinite(coded.dense).all() and np.isfinite((coded.dense**2).sum(axis=1)).all()
    word, flag = 0, 1
    assert coded.codes[:, word].tolist() == [2, 3, 0] and coded.sizes[word] == 4
    assert coded.codes[:, flag].tolist() == [3, 1, 3]
    assert (coded.numeric[:, 0] == 0).all(), "a constant column contributes nothing"
    taken = coded.take(np.array([2]))
    assert (
        isinstance(taken, EncodedTable)
        and len(taken) == 1
        and (taken.dense == coded.dense[2:]).all()
    )


def test_outliers_do_not_flatten_their_column_and_extreme_scales_work() -> None:
    values = np.random.default_rng(0).normal(size=2000)
    schema = infer_schema(pd.DataFrame({"x": values}))

    def scale(column: np.ndarray) -> float:
        return (
            TabularEncoder.fit([as_table(pd.DataFrame({"x": column}), schema)], schema)
            .numbers[0]
            .scale
        )

    assert scale(np.append(values, [1e9, 2e9])) == pytest.approx(scale(values), rel=0.01)
    for size in (1e-300, 1e300):
        assert scale(values * size) == pytest.approx(scale(values) * size, rel=1e-9)
    assert scale(np.append(np.zeros(5000), 1.0)) > 0
