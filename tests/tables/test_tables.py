"""Schema inference, canonical form and restoring: every dtype, clear errors, no private value in a
message.
"""

from __future__ import annotations

import datetime as dt
import decimal
import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pandas.testing import assert_frame_equal

from privacy_assets.errors import ConfigError, InputError
from privacy_assets.tables.column import Column, of_one_vocabulary, ranked, stacked
from privacy_assets.tables.inference import infer_schema
from privacy_assets.tables.schema import ColumnSchema, Kind, TableSchema
from privacy_assets.tables.table import Table, joint

SECRET = "Zebulon-77123"
DAY = pd.Timestamp("2020-02-29")


def objects(*values: object) -> pd.Series:
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return pd.Series(out)


def schema_of(kind: Kind, dtype: str = "object") -> TableSchema:
    return TableSchema((ColumnSchema("x", kind, True, dtype),))


def table_of(values: object, kind: Kind, dtype: str = "object") -> Table:
    return Table.of(
        pd.DataFrame({"x": values}), schema_of(kind, dtype), where="synthetic", smallest=0
    )


# Columns whose dtype is restored exactly, and others whose kind is inferred.
THERE_AND_BACK: list[tuple[object, Kind]] = [
    (pd.Series([1, 200], dtype="uint8"), "integer"),
    (pd.Series([1, None], dtype="Int16"), "integer"),
    (pd.Series([1, None], dtype="int64[pyarrow]"), "integer"),
    ([1.0, np.nan], "integer"),
    ([1.0, 2.0], "numeric"),
    ([2.0**60, np.nan], "numeric"),
    (pd.Series([1.5, None], dtype="float32"), "numeric"),
    (pd.Series([1.5, None], dtype="Float64"), "numeric"),
    ([True, False], "boolean"),
    (pd.Series([True, None], dtype="boolean"), "boolean"),
    (pd.Series([True, None], dtype="bool[pyarrow]"), "boolean"),
    (objects(True, None), "boolean"),
    (["a", None], "categorical"),
    (pd.Series(["a", None], dtype="string"), "categorical"),
    (objects("a", None), "categorical"),
    (pd.Series(["b", "a", None], dtype="category"), "categorical"),
    (pd.Series(pd.to_datetime(["2020-01-01 10:00", None])).astype("datetime64[ns]"), "datetime"),
    (
        pd.Series(pd.to_datetime(["2020-07-01 10:00", None])).dt.tz_localize("Europe/Berlin"),
        "datetime",
    ),
    (pd.Series([dt.date(2020, 1, 1), None], dtype=pd.ArrowDtype(pa.date32())), "datetime"),
]
ONE_WAY: list[tuple[object, Kind]] = [
    ([np.inf, np.nan], "numeric"),
    (objects(1, 2.5, None), "numeric"),
    (objects(decimal.Decimal("1.5"), decimal.Decimal("NaN")), "numeric"),
    (objects(np.int64(1), 2), "integer"),
    (objects(True, None, np.bool_(False)), "boolean"),
    (pd.Categorical([True, None]), "boolean"),
    (objects(dt.date(2020, 1, 1), dt.datetime(2020, 1, 1), DAY, None), "datetime"),
    (pd.Categorical([1, 2, None]), "categorical"),
    (objects("a", 1, True), "categorical"),
]


@pytest.mark.parametrize(
    ("values", "kind", "comes_back"),
    [(*case, True) for case in THERE_AND_BACK] + [(*case, False) for case in ONE_WAY],
)
def test_every_dtype_has_a_kind_and_comes_back(
    values: object, kind: Kind, comes_back: bool
) -> None:
    frame = pd.DataFrame({"x": values})
    schema = infer_schema(frame)
    dtype = (
        "datetime64[us]"
        if kind == "datetime" and frame["x"].dtype == object
        else str(frame["x"].dtype)
    )
    assert (schema["x"].kind, schema["x"].dtype) == (kind, dtype)
    assert schema["x"].nullable == frame["x"].isna().any()
    if comes_back:
        assert_frame_equal(Table.of(frame, schema, where="t").to_published_frame(), frame)


@pytest.mark.parametrize(
    "values",
    [
        objects([SECRET], None),
        objects(np.array([1, 2]), None),
        objects({"a": SECRET}),
        objects(b"x"),
        objects(dt.time(1)),
        pd.to_timedelta([1], unit="s"),
        pd.period_range("2020", periods=1, freq="Y"),
        [1j],
    ],
)
def test_unsupported_values_are_named_by_type_and_place(values: object) -> None:
    with pytest.raises(InputError, match=r"file\.csv, column 'x'.*not supported.*Fix") as caught:
        infer_schema(pd.DataFrame({"x": values}), where="file.csv")
    assert SECRET not in str(caught.value)


def test_overrides_win_and_are_checked_and_a_schema_survives_json() -> None:
    frame = pd.DataFrame({"code": [1, 2], "empty": [None, None], "x": [1.5, 2], "day": [DAY, DAY]})
    schema = infer_schema(frame, {"code": "categorical", "empty": "numeric"})
    assert [c.kind for c in schema.columns] == ["categorical", "numeric", "numeric", "datetime"]
    assert schema["empty"].nullable and schema.of_kind("numeric", "datetime") == [
        "empty",
        "x",
        "day",
    ]
    schema = TableSchema(
        (replace(schema["code"], role="generated"), *schema.without("code").columns)
    )
    assert TableSchema.from_json(json.loads(json.dumps(schema.to_json()))) == schema
    assert schema.generated == ["code"] and schema.evaluated.names == ["empty", "x", "day"]
    with pytest.raises(ConfigError, match="Did you mean 'code'"):
        infer_schema(frame, {"cod": "categorical"})
    with pytest.raises(ConfigError, match="Did you mean 'categorical'"):
        infer_schema(frame, {"code": "categoric"})  # type: ignore[dict-item]
    with pytest.raises(InputError, match=r"column 'empty'.*every value is missing"):
        infer_schema(frame)


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (pd.DataFrame(), "no columns"),
        (pd.DataFrame({"a": []}), "0 rows"),
        (pd.DataFrame({1: [1]}), "the name of column 0 has type int, not string"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "the name of column 1 occurs twice"),
    ],
)
def test_malformed_tables(frame: pd.DataFrame, message: str) -> None:
    with pytest.raises(InputError, match=rf"^plans\.parquet: .*{message}.*Fix:"):
        infer_schema(frame, where="plans.parquet")


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        (objects("1.5", None, 2), "numeric", [1.5, None, 2.0]),
        ([True, False], "numeric", [1.0, 0.0]),
        (pd.Categorical([1, 2, None]), "integer", [1, 2, None]),
        (objects(2**53 + 1, None), "integer", [2**53 + 1, None]),
        (objects(str(2**53 + 1), None), "integer", [2**53 + 1, None]),
        ([3.0, np.nan], "integer", [3, None]),
        (
            objects(1, 0.0, "TRUE", "false", np.bool_(True), None),
            "boolean",
            [True, False, True, False, True, None],
        ),
        (pd.Categorical([1, 2.0, None]), "categorical", ["1", "2", None]),
        ([1.0, 2.5, np.nan], "categorical", ["1", "2.5", None]),
        (
            objects(1, True, 1.0, "1", None, np.nan),
            "categorical",
            ["1", "True", "1", "1", None, None],
        ),
        # in any order of rows
        (objects("1", 1.0, True, 1), "categorical", ["1", "1", "True", "1"]),
        (
            objects(dt.date(2020, 2, 29), "2020-02-29T00:00+00:00", None),
            "datetime",
            [DAY, DAY, None],
        ),
        (pd.to_datetime(["2020-02-29 09:00"]).tz_localize("Asia/Tokyo"), "datetime", [DAY]),
        (pd.Categorical(["1678-01-01"]), "datetime", [pd.Timestamp("1678-01-01")]),
    ],
)
def test_canonical_values(values: object, kind: Kind, expected: list[object]) -> None:
    """A second reading does not change them, and the original index is dropped."""
    table = table_of(values, kind)
    once = table.frame()
    series = once["x"]
    assert [
        None if gone else value for value, gone in zip(series, series.isna(), strict=True)
    ] == expected
    assert table["x"].objects() == expected
    dtypes = {
        "numeric": "float64",
        "integer": "Int64",
        "boolean": "boolean",
        "datetime": "datetime64[us]",
    }
    assert str(series.dtype) == dtypes.get(kind, "object")
    assert_frame_equal(
        Table.of(once.set_index(once.index + 7), table.schema, where="t").frame(), once
    )


@pytest.mark.parametrize(
    ("values", "kind", "row", "told"),
    [
        (objects(1, SECRET), "numeric", 1, "a value is not a number"),
        (objects(1, SECRET), "integer", 1, "a value is not an integer"),
        (objects(True, SECRET), "boolean", 1, "a value is not true or false"),
        (objects("2020-01-01", SECRET), "datetime", 1, "a value is not a date or time"),
        (objects("a", [SECRET]), "categorical", 1, "a value of type list is not a category"),
        (objects(1, [SECRET]), "numeric", 1, "a value is not a number"),
        (objects(0, 1, 2), "boolean", 2, "a value is not true or false"),
        ([5, 6], "datetime", 0, "2 rows are affected"),
        (pd.to_datetime(["2020-01-01"]), "numeric", 0, "a value is not a number"),
        ([1j], "numeric", 0, "a value is not a number"),
        ([1.0, np.inf], "numeric", 1, "a value is infinite"),
        (objects("1", "-inf"), "integer", 1, "a value is not an integer"),
        ([1.0, 7712.3], "integer", 1, "a value is not an integer"),
        (objects(1, 2**70), "integer", 1, "does not fit 64 bits"),
        (pd.Series([1, 2**63], dtype="uint64"), "integer", 1, "does not fit 64 bits"),
        (
            pd.period_range("2020", periods=1, freq="Y"),
            "datetime",
            0,
            "a value is not a date or time",
        ),
    ],
)
def test_values_that_do_not_convert(values: object, kind: Kind, row: int, told: str) -> None:
    with pytest.raises(InputError, match=rf"synthetic, column 'x', row {row}: .*{told}") as caught:
        table_of(values, kind)
    assert SECRET not in str(caught.value) and "7712" not in str(caught.value)


@pytest.mark.parametrize(
    ("dtype", "becomes"), [("int8", "Int8"), ("uint16", "UInt16"), ("bool", "boolean")]
)
def test_a_missing_value_makes_the_dtype_nullable(dtype: str, becomes: str) -> None:
    kind: Kind = "boolean" if dtype == "bool" else "integer"
    assert str(table_of(objects(1, None), kind, dtype).to_published_frame()["x"].dtype) == becomes


@pytest.mark.parametrize(
    ("values", "kind", "dtype"),
    [
        ([300], "integer", "int8"),
        ([300, None], "integer", "Int8"),
        ([-1], "integer", "uint64"),
        ([1.5, None], "numeric", "int64"),
        ([1e6], "numeric", "float16"),
        ([SECRET], "categorical", "float64"),
        (["yes"], "categorical", "bool"),
    ],
)
def test_restore_never_changes_a_value_without_a_word(
    values: list[object], kind: Kind, dtype: str
) -> None:
    with pytest.raises(InputError, match=rf"column 'x'.*does not fit the dtype {dtype}") as caught:
        table_of(values, kind, dtype).to_published_frame()
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("dtype", ["int64", "float64", "category", "str"])
def test_codes_declared_as_categories_come_back_as_codes(dtype: str) -> None:
    frame = pd.DataFrame({"x": pd.Series([3, 1, 3]).astype(dtype)})
    again = Table.of(
        frame, infer_schema(frame, {"x": "categorical"}), where="t"
    ).to_published_frame()
    assert str(again["x"].dtype) == dtype
    assert [int(float(value)) for value in again["x"]] == [3, 1, 3]


# Columns and tables


CELLS: dict[Kind, list[object]] = {
    "numeric": [2.5, None, -1.0, 2.5],
    "integer": [2**62, None, -(2**62), 2**62],
    "categorical": ["b", None, "a", "b"],
    "boolean": [True, None, False, True],
    "datetime": [DAY, None, pd.Timestamp("1700-01-01"), DAY],
}
DTYPES = {
    "numeric": "float64",
    "integer": "int64",
    "categorical": "int8",
    "boolean": "int8",
    "datetime": "int64",
}


def column(kind: Kind, cells: list[object] | None = None) -> Column:
    return table_of(objects(*(CELLS[kind] if cells is None else cells)), kind)["x"]


@pytest.mark.parametrize("kind", CELLS)
def test_a_column_of_each_kind(kind: Kind) -> None:
    own, cells = column(kind), CELLS[kind]
    assert (len(own), str(own.cells.dtype), own.kind) == (4, DTYPES[kind], kind)
    assert own.objects() == cells and own.missing.tolist() == [False, True, False, False]
    assert own.take(np.array([3, 1])).objects() == [cells[3], None]
    assert own.take(own.missing).objects() == [None] and own.take(slice(2)).objects() == cells[:2]
    assert own.take_or_missing(np.array([-1, 2])).objects() == [None, cells[2]]
    assert own.present().objects() == [cells[0], cells[2], cells[3]]
    assert own.distinct().objects() == [cells[2], cells[0]]
    others = column(kind, [None, cells[2], cells[2], None])
    assert own.where(np.array([True, False, False, True]), others).objects() == [
        cells[0],
        *[cells[2]] * 2,
        cells[3],
    ]
    (ranks, more), values = ranked([own, others])
    assert ranks.tolist() == [1, -1, 0, 1] and more.tolist() == [-1, 0, 0, -1]
    assert values.objects() == [cells[2], cells[0]]
    empty, nothing = column(kind, []), column(kind, [None, None])
    for one in (empty, nothing):
        assert (
            one.objects() == [None] * len(one)
            and one.distinct().objects() == one.present().objects() == []
        )
        (ranks,), values = ranked([one])
        assert ranks.tolist() == [-1] * len(one) and len(values) == 0
        assert np.isnan(one.floats()).all() and one.series().isna().all()
    assert stacked([empty, nothing, own]).objects() == [None, None, *cells]


def test_floats_are_numbers_codes_and_days() -> None:
    nan = pytest.approx(np.nan, nan_ok=True)
    assert column("integer").floats().tolist() == [2.0**62, nan, -(2.0**62), 2.0**62]
    assert column("categorical").floats().tolist() == [1, nan, 0, 1]
    assert column("datetime", [DAY + pd.Timedelta("6h"), None]).floats().tolist() == [18321.25, nan]


def test_columns_of_different_values_are_stacked_by_value() -> None:
    first, second = (
        column("categorical", ["b", None, "d"]),
        column("categorical", ["c", "b", None, "a"]),
    )
    whole = stacked([first, second])
    assert whole.objects() == ["b", None, "d", "c", "b", None, "a"] and whole.values == (
        "a",
        "b",
        "c",
        "d",
    )
    assert [one.objects() for one in of_one_vocabulary([first, second])] == [
        first.objects(),
        second.objects(),
    ]
    swapped = first.where(np.array([False, True, True]), second.take(slice(3)))
    assert swapped.objects() == ["c", None, "d"]


@pytest.mark.parametrize(
    ("values", "dtype"), [(127, "int8"), (128, "int16"), (32767, "int16"), (32768, "int32")]
)
def test_codes_are_as_short_as_they_can_be(values: int, dtype: str) -> None:
    texts = [f"{value:05d}" for value in range(values)]
    own = column("categorical", [*texts, None])
    assert str(own.cells.dtype) == dtype and own.objects() == [*texts, None]
    assert stacked([own, column("categorical", ["zz"])]).objects() == [*texts, None, "zz"]


def whole_table() -> Table:
    frame = pd.DataFrame({kind: objects(*cells) for kind, cells in CELLS.items()})
    return Table.of(
        frame,
        TableSchema(tuple(ColumnSchema(kind, kind, True, "object") for kind in CELLS)),
        where="t",
    )


def test_rows_and_columns_are_taken_and_stacked() -> None:
    table = whole_table()
    frame = table.frame()
    for rows in (
        np.array([3, 0, 0]),
        np.array([True, False, True, False]),
        slice(1, 3),
        slice(0),
        np.array([], int),
    ):
        taken = table.take(rows)
        assert_frame_equal(taken.frame(), frame.iloc[rows].reset_index(drop=True))
        assert len(taken) == len(taken.frame())
    assert_frame_equal(
        table.select(["datetime", "numeric"]).frame(), frame[["datetime", "numeric"]]
    )
    other = table.with_columns(
        replace(column("categorical", ["z", "a", None, "c"]), name="categorical")
    )
    both = Table.stack([table, other.take(slice(0)), other])
    assert_frame_equal(both.frame(), pd.concat([frame, other.frame()], ignore_index=True))
    alike = joint({"one": table, "two": other})
    assert (
        alike["one"]["categorical"].values
        == alike["two"]["categorical"].values
        == ("a", "b", "c", "z")
    )
    assert_frame_equal(alike["one"].frame(), frame)
    assert_frame_equal(alike["two"].frame(), other.frame())
    empty, none = table.take(slice(0)), table.select([])
    assert len(empty) == 0 and list(empty.to_published_frame()) == list(CELLS)
    assert empty.fingerprint != table.fingerprint
    assert (
        len(none) == 4
        and none.frame().shape == (4, 0)
        and none.take(slice(2)).frame().shape == (2, 0)
    )


def test_neither_what_was_given_nor_what_is_handed_out_changes_a_table() -> None:
    frame = pd.DataFrame(
        {"float64": [1.5, 7.0], "int64": [1, 7], "bool": [True, False], "object": ["a", "b"]}
    )
    frame = frame.assign(day=pd.to_datetime(["2020-02-29", "1999-01-01"]).astype("datetime64[us]"))
    table = Table.of(frame, infer_schema(frame), where="t")
    before = table.frame().copy(deep=True)
    for one in (frame, table.frame(), table.to_published_frame()):
        for name in one:
            one.loc[0, name] = one.loc[1, name]
        assert_frame_equal(table.frame(), before)


def spoiled(kind: Kind, cells: np.ndarray) -> Table:
    return whole_table().with_columns(Column(kind, kind, cells))


YEAR_9999 = np.array(["9999-12-31"] * 4, dtype="datetime64[us]").view(np.int64)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            spoiled("numeric", np.array([0.5, np.inf, 1.0, np.nan])),
            "column 'numeric', row 1: a value is infinite",
        ),
        (
            spoiled("datetime", YEAR_9999),
            "column 'datetime', row 0: a date is outside of the years 1678 to 2261",
        ),
        (whole_table().select(list(CELLS)[1:]), "column 'numeric': the column is missing"),
        (
            whole_table().with_columns(replace(column("numeric"), name="integer")),
            "column 'integer': the column has another kind",
        ),
        (
            whole_table().with_columns(replace(column("numeric"), name="more")),
            "1 columns are not in the schema",
        ),
    ],
)
def test_what_a_generator_may_not_make(table: Table, message: str) -> None:
    """A user's table with a schema is checked in the same way."""
    schema = whole_table().schema
    with pytest.raises(InputError, match=f"made.*{message}"):
        table.as_synthetic(schema, where="made")
    assert_frame_equal(
        whole_table().as_synthetic(schema, where="made").frame(), whole_table().frame()
    )
    if "columns" in message or "missing" in message:
        frame = pd.DataFrame({name: table[name].series() for name in table.columns})
        with pytest.raises(InputError, match=f"given.*{message}"):
            Table.of(frame, schema, where="given")


def test_rows_are_counted_and_the_order_of_columns_is_that_of_the_schema() -> None:
    frame = whole_table().frame()
    assert_frame_equal(
        Table.of(frame[frame.columns[::-1]], whole_table().schema, where="t").frame(), frame
    )
    with pytest.raises(InputError, match="4 rows, at least 5"):
        Table.of(frame, whole_table().schema, where="t", smallest=5)
