"""Schema inference, canonical form, restoring and reading: every dtype, clear errors, no private value in a message."""

from __future__ import annotations

import datetime as dt
import decimal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pandas.testing import assert_frame_equal

from privacy_assets.errors import ConfigError, InputError
from privacy_assets.generators.base import FittedGenerator
from privacy_assets.generators.copies import Copy
from privacy_assets.tables.coding import Coding
from privacy_assets.tables.column import Column, of_one_vocabulary, ranked, stacked
from privacy_assets.tables.files import table_files
from privacy_assets.tables.reading import read_table
from privacy_assets.tables.schema import ColumnSchema, Kind, TableSchema, infer_schema
from privacy_assets.tables.table import Table, joint

SECRET = "Zebulon-77123"
DAY = pd.Timestamp("2020-02-29")


def objects(*values: object) -> pd.Series:
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return pd.Series(out)


def schema_of(kind: Kind, dtype: str = "object") -> TableSchema:
    return TableSchema((ColumnSchema("x", kind, True, dtype),))


def canonical(values: object, kind: Kind) -> list[object]:
    column = Table.of(pd.DataFrame({"x": values}), schema_of(kind), where="t")["x"]
    series = column.series()
    shown = [None if missing else value for value, missing in zip(series, series.isna(), strict=True)]
    assert shown == column.objects()
    return shown


KINDS: list[tuple[object, Kind]] = [
    ([1, 2], "integer"),
    (pd.Series([1, 2], dtype="uint8"), "integer"),
    (pd.Series([1, None], dtype="Int16"), "integer"),
    (pd.Series([1, None], dtype="int64[pyarrow]"), "integer"),
    ([1.0, np.nan], "integer"),
    ([1.0, 2.0], "numeric"),
    ([1.5, np.nan], "numeric"),
    ([2.0**60, np.nan], "numeric"),
    ([np.inf, np.nan], "numeric"),
    (pd.Series([1.5, None], dtype="Float32"), "numeric"),
    (objects(1, 2.5, None), "numeric"),
    (objects(decimal.Decimal("1.5"), decimal.Decimal("NaN")), "numeric"),
    (objects(np.int64(1), 2), "integer"),
    ([True, False], "boolean"),
    (pd.Series([True, None], dtype="boolean"), "boolean"),
    (objects(True, None, np.bool_(False)), "boolean"),
    (pd.Categorical([True, None]), "boolean"),
    (pd.to_datetime(["2020-01-01", None]), "datetime"),
    (pd.to_datetime(["2020-01-01"]).tz_localize("Asia/Tokyo"), "datetime"),
    (objects(dt.date(2020, 1, 1), dt.datetime(2020, 1, 1), DAY, None), "datetime"),
    (["a", None], "categorical"),
    (pd.Series(["a", None], dtype="string"), "categorical"),
    (pd.Categorical([1, 2, None]), "categorical"),
    (objects("a", 1, True), "categorical"),
]


@pytest.mark.parametrize(("values", "kind"), KINDS)
def test_kind_of_each_dtype(values: object, kind: Kind) -> None:
    frame = pd.DataFrame({"x": values})
    column = infer_schema(frame)["x"]
    assert column.kind == kind
    assert column.nullable == frame["x"].isna().any()
    assert column.dtype == str(frame["x"].dtype)


@pytest.mark.parametrize(
    "values",
    [
        objects([1], None),
        objects(np.array([1, 2]), None),
        objects(b"x"),
        objects(dt.time(1)),
        objects({"a": SECRET}),
        pd.to_timedelta([1], unit="s"),
        pd.period_range("2020", periods=1, freq="Y"),
        [1j],
        pd.interval_range(0, 1),
    ],
)
def test_unsupported_values_are_named_by_type_and_place(values: object) -> None:
    with pytest.raises(InputError, match=r"file\.csv, column 'x'.*not supported.*Fix") as caught:
        infer_schema(pd.DataFrame({"x": values}), where="file.csv")
    assert SECRET not in str(caught.value)


def test_overrides_win_and_are_checked() -> None:
    frame = pd.DataFrame({"code": [1, 2], "empty": [None, None]})
    schema = infer_schema(frame, {"code": "categorical", "empty": "numeric"})
    assert [c.kind for c in schema.columns] == ["categorical", "numeric"]
    assert schema["empty"].nullable
    with pytest.raises(ConfigError, match="Did you mean 'code'"):
        infer_schema(frame, {"cod": "categorical"})
    with pytest.raises(ConfigError, match="Did you mean 'categorical'"):
        infer_schema(frame, {"code": "categoric"})  # type: ignore[dict-item]
    with pytest.raises(InputError, match=r"column 'empty'.*every value is missing"):
        infer_schema(frame)


def test_schema_lists_finds_drops_and_survives_json() -> None:
    schema = infer_schema(pd.DataFrame({"a": [1], "b": ["x"], "c": [1.5]}))
    assert schema.names == ["a", "b", "c"]
    assert schema.of_kind("integer", "numeric") == ["a", "c"]
    assert schema.without("b", None).names == ["a", "c"]
    assert TableSchema.from_json(schema.to_json()) == schema
    with pytest.raises(KeyError):
        schema["d"]


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (pd.DataFrame(), "no columns"),
        (pd.DataFrame({"a": []}), "0 rows"),
        (pd.DataFrame({1: [1]}), "the name of column 0 is a int, not text"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "the name of column 1 stands twice"),
        (pd.DataFrame([[1]], columns=pd.MultiIndex.from_tuples([("a", "b")])), "is a tuple, not text"),
    ],
)
def test_malformed_tables(frame: pd.DataFrame, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        infer_schema(frame, where="plans.parquet")
    assert str(caught.value).startswith("plans.parquet") and "Fix:" in str(caught.value)


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        (objects("1.5", None, 2), "numeric", [1.5, None, 2.0]),
        (pd.Categorical([1, 2, None]), "integer", [1, 2, None]),
        (objects(2**53 + 1, None), "integer", [2**53 + 1, None]),
        (objects(str(2**53 + 1), None), "integer", [2**53 + 1, None]),
        (pd.Series([-(2**62), 2**62]), "integer", [-(2**62), 2**62]),
        ([True, False], "numeric", [1.0, 0.0]),
        ([3.0, np.nan], "integer", [3, None]),
        (objects(1, 0.0, "TRUE", "false", np.bool_(True), None), "boolean", [True, False, True, False, True, None]),
        (pd.Categorical([1, 2.0, None]), "categorical", ["1", "2", None]),
        ([1.0, 2.5, np.nan], "categorical", ["1", "2.5", None]),
        (objects(1, True, 1.0, "1"), "categorical", ["1", "True", "1", "1"]),
        (objects(True, 1, None, np.nan), "categorical", ["True", "1", None, None]),
        (objects(dt.date(2020, 2, 29), "2020-02-29T00:00+00:00", None), "datetime", [DAY, DAY, None]),
        (pd.to_datetime(["2020-02-29 09:00"]).tz_localize("Asia/Tokyo"), "datetime", [DAY]),
        (objects("1678-01-01"), "datetime", [pd.Timestamp("1678-01-01")]),
        (pd.Categorical(["2020-02-29"]), "datetime", [DAY]),
    ],
)
def test_canonical_values(values: object, kind: Kind, expected: list[object]) -> None:
    assert canonical(values, kind) == expected


def test_text_of_mixed_values_does_not_depend_on_the_order_of_rows() -> None:
    values = [1, True, "1", 1.0, "a", False, 0]
    assert canonical(objects(*values), "categorical") == canonical(objects(*values[::-1]), "categorical")[::-1]


@pytest.mark.parametrize("kind", ["numeric", "integer", "boolean", "datetime", "categorical"])
def test_canonical_dtypes_and_a_second_reading_changes_nothing(kind: Kind) -> None:
    dtypes = {"numeric": "float64", "integer": "Int64", "boolean": "boolean"}
    raw = {"datetime": ["2020-01-01", None], "categorical": ["a", None]}.get(kind, objects(1, None))
    frame = pd.DataFrame({"x": raw}, index=[7, 7])
    once = Table.of(frame, schema_of(kind), where="t").frame()
    assert str(once["x"].dtype) == dtypes.get(kind, "datetime64[us]" if kind == "datetime" else "object")
    assert list(once.index) == [0, 1]
    assert_frame_equal(Table.of(once, schema_of(kind), where="t").frame(), once)
    assert list(frame.index) == [7, 7]


@pytest.mark.parametrize(
    ("values", "kind", "row"),
    [
        (objects(1, SECRET), "numeric", 1),
        (objects(1, SECRET), "integer", 1),
        (objects(True, SECRET), "boolean", 1),
        (objects("2020-01-01", SECRET), "datetime", 1),
        (objects(0, 1, 2), "boolean", 2),
        ([5, 6], "datetime", 0),
        (pd.to_datetime(["2020-01-01"]), "numeric", 0),
        (pd.to_timedelta([1], unit="s"), "numeric", 0),
        ([1j], "numeric", 0),
        (objects("a", [SECRET]), "categorical", 1),
        (objects(1, [SECRET]), "numeric", 1),
        ([1.0, np.inf], "numeric", 1),
        (objects("1", "-inf"), "integer", 1),
        ([1.0, 7712.3], "integer", 1),
        (objects(1, 2**70), "integer", 1),
        (pd.Series([1, 2**63], dtype="uint64"), "integer", 1),
        (pd.period_range("2020", periods=1, freq="Y"), "datetime", 0),
    ],
)
def test_values_that_do_not_convert(values: object, kind: Kind, row: int) -> None:
    with pytest.raises(InputError, match=rf"synthetic, column 'x', row {row}: .*Fix") as caught:
        Table.of(pd.DataFrame({"x": values}), schema_of(kind), where="synthetic")
    assert SECRET not in str(caught.value) and "7712" not in str(caught.value)


def test_columns_must_be_those_of_the_schema() -> None:
    schema = infer_schema(pd.DataFrame({"a": [1], "b": ["x"]}))
    assert list(Table.of(pd.DataFrame({"b": ["y"], "a": [2]}), schema, where="t").frame()) == ["a", "b"]
    with pytest.raises(InputError, match="column 'b': the column is missing"):
        Table.of(pd.DataFrame({"a": [1]}), schema, where="t")
    with pytest.raises(InputError, match="1 columns do not stand in the schema, the first at position 2"):
        Table.of(pd.DataFrame({"a": [1], "b": ["x"], "c": [0]}), schema, where="t")
    with pytest.raises(InputError, match="1 rows, at least 2"):
        Table.of(pd.DataFrame({"a": [1], "b": ["x"]}), schema, where="t", smallest=2)


ROUND_TRIPS = [
    pd.Series([1, 200], dtype="uint8"),
    pd.Series([1, None], dtype="Int16"),
    pd.Series([1, None], dtype="int64[pyarrow]"),
    pd.Series([1.5, None], dtype="float32"),
    pd.Series([1.5, None], dtype="Float64"),
    pd.Series([3.0, None]),
    pd.Series([True, False]),
    pd.Series([True, None], dtype="boolean"),
    pd.Series([True, None], dtype="bool[pyarrow]"),
    objects(True, None),
    pd.Series(["a", None], dtype="string"),
    pd.Series(["a", None]),
    objects("a", None),
    pd.Series(["b", "a", None], dtype="category"),
    pd.Series(pd.to_datetime(["2020-01-01 10:00", None])).astype("datetime64[ns]"),
    pd.Series(pd.to_datetime(["2020-07-01 10:00", None])).dt.tz_localize("Europe/Berlin"),
    pd.Series([dt.date(2020, 1, 1), None], dtype=pd.ArrowDtype(pa.date32())),
]


@pytest.mark.parametrize("series", ROUND_TRIPS, ids=lambda series: str(series.dtype))
def test_restore_gives_dtype_and_values_back(series: pd.Series) -> None:
    frame = pd.DataFrame({"x": series})
    schema = infer_schema(frame)
    assert_frame_equal(Table.of(frame, schema, where="t").restored(), frame)


@pytest.mark.parametrize(("dtype", "becomes"), [("int8", "Int8"), ("uint16", "UInt16"), ("bool", "boolean")])
def test_a_missing_value_makes_the_dtype_nullable(dtype: str, becomes: str) -> None:
    schema = infer_schema(pd.DataFrame({"x": pd.Series([0, 1], dtype=dtype)}))
    table = Table.of(pd.DataFrame({"x": objects(1, None)}), schema, where="t")
    assert str(table.restored()["x"].dtype) == becomes


@pytest.mark.parametrize(
    ("values", "kind", "dtype"),
    [
        ([300], "integer", "int8"),
        ([300, None], "integer", "Int8"),
        ([-1], "integer", "uint64"),
        ([1.5], "numeric", "int64"),
        ([1.5, None], "numeric", "int64"),
        ([1e6], "numeric", "float16"),
        ([SECRET], "categorical", "int64"),
        ([SECRET], "categorical", "float64"),
        (["yes"], "categorical", "bool"),
    ],
)
def test_restore_never_changes_a_value_without_a_word(values: list[object], kind: Kind, dtype: str) -> None:
    schema = schema_of(kind, dtype)
    table = Table.of(pd.DataFrame({"x": values}), schema, where="t")
    with pytest.raises(InputError, match=rf"column 'x'.*does not fit the dtype {dtype.partition('[')[0]}") as caught:
        table.restored()
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("dtype", ["int64", "float64", "category", "str"])
def test_codes_declared_as_categories_come_back_as_codes(dtype: str) -> None:
    frame = pd.DataFrame({"x": pd.Series([3, 1, 3]).astype(dtype)})
    schema = infer_schema(frame, {"x": "categorical"})
    again = Table.of(frame, schema, where="t").restored()
    assert str(again["x"].dtype) == dtype
    assert [int(float(value)) for value in again["x"]] == [3, 1, 3]


# Columns and tables


KINDS_OF_COLUMNS: list[Kind] = ["numeric", "integer", "categorical", "boolean", "datetime"]
CELLS: dict[Kind, list[object]] = {
    "numeric": [2.5, None, -1.0, 2.5],
    "integer": [2**62, None, -(2**62), 2**62],
    "categorical": ["b", None, "a", "b"],
    "boolean": [True, None, False, True],
    "datetime": [DAY, None, pd.Timestamp("1700-01-01"), DAY],
}
DTYPES = {"numeric": "float64", "integer": "int64", "categorical": "int8", "boolean": "int8", "datetime": "int64"}


def column(kind: Kind, cells: list[object] | None = None) -> Column:
    values = CELLS[kind] if cells is None else cells
    return Table.of(pd.DataFrame({"x": objects(*values)}), schema_of(kind), where="t", smallest=0)["x"]


@pytest.mark.parametrize("kind", KINDS_OF_COLUMNS)
def test_a_column_of_each_kind(kind: Kind) -> None:
    own, cells = column(kind), CELLS[kind]
    assert (len(own), str(own.cells.dtype), own.kind) == (4, DTYPES[kind], kind)
    assert own.objects() == cells and own.missing.tolist() == [False, True, False, False]
    assert own.take(np.array([3, 1])).objects() == [cells[3], None]
    assert own.take(own.missing).objects() == [None] and own.take(slice(2)).objects() == cells[:2]
    assert own.at(np.array([-1, 2])).objects() == [None, cells[2]]
    assert own.present().objects() == [cells[0], cells[2], cells[3]]
    assert own.distinct().objects() == [cells[2], cells[0]]
    others = column(kind, [None, cells[2], cells[2], None])
    assert own.where(np.array([True, False, False, True]), others).objects() == [cells[0], *[cells[2]] * 2, cells[3]]
    (ranks, more), values = ranked([own, others])
    assert ranks.tolist() == [1, -1, 0, 1] and more.tolist() == [-1, 0, 0, -1]
    assert values.objects() == [cells[2], cells[0]]


@pytest.mark.parametrize("kind", KINDS_OF_COLUMNS)
def test_a_column_without_rows_or_values(kind: Kind) -> None:
    empty, nothing = column(kind, []), column(kind, [None, None])
    for own in (empty, nothing):
        assert own.objects() == [None] * len(own) and own.distinct().objects() == own.present().objects() == []
        (ranks,), values = ranked([own])
        assert ranks.tolist() == [-1] * len(own) and len(values) == 0
        assert np.isnan(own.floats()).all() and own.series().isna().all()
    assert stacked([empty, nothing, column(kind)]).objects() == [None, None, *CELLS[kind]]


def test_floats_are_numbers_codes_and_days() -> None:
    nan = pytest.approx(np.nan, nan_ok=True)
    assert column("numeric").floats().tolist() == [2.5, nan, -1.0, 2.5]
    assert column("integer").floats().tolist() == [2.0**62, nan, -(2.0**62), 2.0**62]
    assert column("categorical").floats().tolist() == [1, nan, 0, 1]
    assert column("datetime", [DAY + pd.Timedelta("6h"), None]).floats().tolist() == [18321.25, nan]


def test_columns_of_different_values_are_stacked_by_value() -> None:
    first, second = column("categorical", ["b", None, "d"]), column("categorical", ["c", "b", None, "a"])
    whole = stacked([first, second])
    assert whole.objects() == ["b", None, "d", "c", "b", None, "a"] and whole.values == ("a", "b", "c", "d")
    assert [one.objects() for one in of_one_vocabulary([first, second])] == [first.objects(), second.objects()]
    swapped = first.where(np.array([False, True, True]), second.take(slice(3)))
    assert swapped.objects() == ["c", None, "d"]


@pytest.mark.parametrize(("values", "dtype"), [(127, "int8"), (128, "int16"), (32767, "int16"), (32768, "int32")])
def test_codes_are_as_short_as_they_can_be(values: int, dtype: str) -> None:
    texts = [f"{value:05d}" for value in range(values)]
    own = column("categorical", [*texts, None])
    assert str(own.cells.dtype) == dtype and own.objects() == [*texts, None]
    more = stacked([own, column("categorical", ["zz"])])
    assert more.objects() == [*texts, None, "zz"]


def whole_table() -> Table:
    frame = pd.DataFrame({kind: objects(*cells) for kind, cells in CELLS.items()})
    return Table.of(frame, TableSchema(tuple(ColumnSchema(kind, kind, True, "object") for kind in CELLS)), where="t")


def test_rows_and_columns_are_taken_and_stacked() -> None:
    table = whole_table()
    frame = table.frame()
    for rows in (np.array([3, 0, 0]), np.array([True, False, True, False]), slice(1, 3), slice(0), np.array([], int)):
        taken = table.take(rows)
        assert_frame_equal(taken.frame(), frame.iloc[rows].reset_index(drop=True))
        assert len(taken) == taken.rows == len(taken.frame())
    assert_frame_equal(table.select(["datetime", "numeric"]).frame(), frame[["datetime", "numeric"]])
    assert table.select(["datetime", "numeric"]).schema.names == ["datetime", "numeric"]
    other = table.with_columns(replace(column("categorical", ["z", "a", None, "c"]), name="categorical"))
    both = Table.stack([table, other.take(slice(0)), other])
    assert_frame_equal(both.frame(), pd.concat([frame, other.frame()], ignore_index=True))
    alike = joint({"one": table, "two": other})
    assert alike["one"]["categorical"].values == alike["two"]["categorical"].values == ("a", "b", "c", "z")
    assert_frame_equal(alike["one"].frame(), frame)
    assert_frame_equal(alike["two"].frame(), other.frame())


def test_a_table_without_rows_and_one_without_columns() -> None:
    empty = whole_table().take(slice(0))
    assert len(empty) == 0 and empty.frame().empty and list(empty.restored()) == list(CELLS)
    assert empty.fingerprint != whole_table().fingerprint
    none = whole_table().select([])
    assert len(none) == 4 and none.frame().shape == (4, 0) and none.take(slice(2)).frame().shape == (2, 0)


def test_neither_what_was_given_nor_what_is_handed_out_changes_a_table() -> None:
    plain = {"numeric": "float64", "integer": "int64", "boolean": "bool", "datetime": "datetime64[us]"}
    given: dict[str, pd.Series] = {
        "numeric": pd.Series([1.5, 2.5]), "integer": pd.Series([1, 2]), "boolean": pd.Series([True, False]),
        "datetime": pd.Series([DAY, DAY]).astype("datetime64[us]"), "categorical": pd.Series(["a", "b"], dtype=object),
    }  # fmt: skip
    frame = pd.DataFrame(given)
    assert {name: str(frame[name].dtype) for name in plain} == plain
    schema = infer_schema(frame)
    table, before = Table.of(frame, schema, where="t"), Table.of(frame.copy(deep=True), schema, where="t").frame()
    changed = table.frame()
    for one in (frame, changed):
        one.loc[0, "numeric"], one.loc[0, "integer"], one.loc[0, "boolean"] = 7.0, 7, False
        one.loc[0, "datetime"], one.loc[0, "categorical"] = pd.Timestamp("1999-01-01"), "b"
    assert_frame_equal(table.frame(), before)
    restored = table.restored()
    restored["numeric"] *= 2
    restored.iloc[1, 0] = 0.0
    assert_frame_equal(table.frame(), before)


# What generators make


def made_by(table: Table) -> Any:
    class Maker(FittedGenerator):
        generator, schema = Copy(), whole_table().schema

        def _sample(self, rows: int, seed: int) -> Table:
            return table

        def _save(self, folder: Path) -> dict[str, Any]:
            raise NotImplementedError

    return Maker()


def spoiled(kind: Kind, cells: np.ndarray) -> Table:
    return whole_table().with_columns(Column(kind, kind, cells))


YEAR_9999 = np.array(["9999-12-31"] * 4, dtype="datetime64[us]").view(np.int64)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (spoiled("numeric", np.array([0.5, np.inf, 1.0, np.nan])), "column 'numeric', row 1: a value is infinite"),
        (spoiled("datetime", YEAR_9999), "column 'datetime', row 0: a date lies outside of the years 1678 to 2261"),
        (whole_table().select(list(CELLS)[1:]), "column 'numeric': the column is missing"),
        (whole_table().take(slice(3)), "3 rows came where 4 were asked for"),
        (whole_table().with_columns(replace(column("numeric"), name="integer")), "'integer': the column is of another"),
        (whole_table().with_columns(replace(column("numeric"), name="more")), "1 columns do not stand in the schema"),
    ],
)
def test_what_a_generator_may_not_make(table: Table, message: str) -> None:
    with pytest.raises(InputError, match=f"the output of generator copy.*{message}|{message}") as caught:
        made_by(table).sample(4, seed=0)
    assert "the output of generator copy" in str(caught.value)
    assert_frame_equal(made_by(whole_table()).sample(4, seed=0).frame(), whole_table().frame())


@pytest.mark.parametrize("value", [np.inf, 2.0**63, -1e300])
def test_cells_that_no_whole_number_or_date_holds_are_no_missing_values(value: float) -> None:
    for kind in ("integer", "datetime"):
        with pytest.raises(InputError, match="column 'x', row 1: a value does not fit 64 bits"):
            Coding(schema_of(kind), (None,)).table(np.array([[1.0, value, np.nan]]))


# Reading


def sample() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "n": [1, 2, 3],
            "f": [0.5, None, 1e-3],
            "b": [True, False, True],
            "c": ["x", None, "a, \"b\"\n2"],
            "d": pd.to_datetime(["2020-01-01", "2021-05-06", None]),
            "k": [1, None, 3],
        }
    )  # fmt: skip


def test_csv_and_parquet_hold_the_same_table(tmp_path: Path) -> None:
    sample().to_csv(tmp_path / "t.csv", index=False)
    sample().to_parquet(tmp_path / "t.parquet")
    schema = infer_schema(sample())
    expected = Table.of(sample(), schema, where="t").frame()
    for name in ("t.csv", "t.parquet"):
        frame = read_table(tmp_path / name)
        assert [c.kind for c in infer_schema(frame).columns] == [c.kind for c in schema.columns]
        assert_frame_equal(Table.of(frame, schema, where=name).frame(), expected)
    assert read_table(tmp_path / "t.csv")["d"].dtype.kind == "M", "dates must stay dates when they are published"


def test_globs_and_folders_are_read_in_order(tmp_path: Path) -> None:
    sample().iloc[1:].to_csv(tmp_path / "2.csv", index=False)
    sample().iloc[:1].to_parquet(tmp_path / "1.parquet")
    assert [file.name for file in table_files(tmp_path)] == ["1.parquet", "2.csv"]
    (tmp_path / "[3].csv").write_text("n\n1\n")
    assert table_files(tmp_path / "[3].csv") == [tmp_path / "[3].csv"]
    (tmp_path / "[3].csv").unlink()
    for path in (tmp_path, tmp_path / "*"):
        assert read_table(path)["n"].tolist() == [1, 2, 3]


@pytest.mark.parametrize("word", ["", "NA", "NaN", "nan", "null", "NULL", "N/A"])
def test_words_for_missing_in_csv(tmp_path: Path, word: str) -> None:
    (tmp_path / "t.csv").write_text(f"n,c\n1,a\n{word},{word}\n")
    frame = read_table(tmp_path / "t.csv")
    assert [c.kind for c in infer_schema(frame).columns] == ["integer", "categorical"]
    assert frame.iloc[1].isna().all()


def test_a_named_index_is_a_column_and_another_index_is_none(tmp_path: Path) -> None:
    sample().set_index("n").to_parquet(tmp_path / "named.parquet")
    sample().sample(3, random_state=1).to_parquet(tmp_path / "shuffled.parquet")
    assert sorted(read_table(tmp_path / "named.parquet")) == sorted(sample())
    shuffled = read_table(tmp_path / "shuffled.parquet")
    assert list(shuffled) == list(sample()) and list(shuffled.index) == [0, 1, 2]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", "", "the file is empty"),
        ("t.csv", "a,b\n", "0 rows"),
        ("t.csv", f"a,b\n1,2\n{SECRET},2,3\n", "row 1: line 3 has 3 fields, and the header 2"),
        ("t.csv", f"a,a\n1,{SECRET}\n", "line 1 names columns 0 and 1 alike"),
        ("t.parquet", SECRET, "cannot be read as parquet"),
        ("t.txt", SECRET, "unknown file type '.txt'"),
    ],
)
def test_unreadable_files(tmp_path: Path, name: str, content: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(InputError, match=message) as caught:
        read_table(path)
    assert str(path) in str(caught.value) and SECRET not in str(caught.value)


def test_missing_files_and_differing_columns(tmp_path: Path) -> None:
    missing = {"no.csv": "no such file", "*.csv": "no file matches the pattern", ".": "the folder holds no .parquet"}
    for name, message in missing.items():
        with pytest.raises(InputError, match=message):
            read_table(tmp_path / name)
    (tmp_path / "1.csv").write_text("a,b\n1,2\n")
    (tmp_path / "2.csv").write_text("a\n1\n")
    with pytest.raises(InputError, match=r"2\.csv, column 'b': the columns differ"):
        read_table(tmp_path)
