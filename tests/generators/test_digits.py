"""Tables as whole numbers and codes: what comes back, and how many digits it takes."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from privacy_assets.errors import InputError
from privacy_assets.generators.digits import DigitCoding
from privacy_assets.tables.schema import ColumnSchema, TableSchema, infer_schema
from privacy_assets.tables.table import Table

FRAME = pd.DataFrame(
    {
        "whole": pd.array([-3, 7, None, 4_000_000_000], dtype="Int64"),
        "price": [-0.25, 12.5, None, 123456.78],
        "flag": pd.array([True, None, False, True], dtype="boolean"),
        "text": ["NaN", "v1", None, "Zoë___@"],
        "day": pd.to_datetime(["2020-02-29", None, "1969-12-31", "2020-03-01"]),
        "time": pd.to_datetime(["2020-02-29 10:11:12.000001", None, "1969-12-31", "2020-03-01"], format="ISO8601"),
        "same": [2.5] * 4,
        "full": [4, 3, 2, 1],
    }
)
SCHEMA = infer_schema(FRAME)
TABLE = Table.of(FRAME, SCHEMA, where="t")


def test_every_kind_comes_back_exactly() -> None:
    coding = DigitCoding.fit(TABLE)
    coded = coding.code(TABLE)
    pd.testing.assert_frame_equal(coding.table(coded, where="t").frame(), TABLE.frame(), check_exact=True)
    numbers = coded.select_dtypes("number")
    assert (numbers.min() == 0).all() and set(numbers.dtypes.astype(str)) == {"int64"}
    assert coded["c1"].tolist() == [0, 1275, 0, 12345703] and coded["c1m"].tolist() == ["v0", "v0", "v1", "v0"]
    assert coded["c4"].max() == 18323 and "c6m" not in coded  # days, not microseconds
    kept = DigitCoding.from_json(json.loads(json.dumps(coding.to_json())), SCHEMA)
    pd.testing.assert_frame_equal(kept.code(TABLE), coded)
    few = kept.table(coded.iloc[[3, 1]], where="t")
    pd.testing.assert_frame_equal(few.frame(), TABLE.take(np.array([3, 1])).frame())


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e6, 1e15])
@pytest.mark.parametrize("shift", [0.0, -3.0, 100.0])
def test_long_numbers_keep_six_digits_of_their_span(scale: float, shift: float) -> None:
    values = (np.random.default_rng(0).normal(size=500) + shift) * scale
    frame = pd.DataFrame({"x": values})
    table = Table.read(frame, kinds={"x": "numeric"})
    coding = DigitCoding.fit(table)
    coded = coding.code(table)
    error = np.abs(coding.table(coded, where="t")["x"].cells - values).max()
    assert error <= 0.51e-5 * np.ptp(values) and coded["c0"].between(0, 10**6).all()


@pytest.mark.parametrize("value", [0.0, -7.0, 1e300, 3e-300])
def test_one_row_and_one_value(value: float) -> None:
    table = Table.read(pd.DataFrame({"x": [value]}))
    coding = DigitCoding.fit(table)
    assert coding.code(table)["c0"].tolist() == [0]
    assert coding.table(coding.code(table), where="t")["x"].objects() == pytest.approx([value], rel=1e-5)


def test_a_number_without_any_value_is_missing_everywhere() -> None:
    schema = TableSchema((ColumnSchema("x", "numeric", True, "float64"), ColumnSchema("d", "datetime", True, "object")))
    table = Table.of(pd.DataFrame({"x": [np.nan, np.nan], "d": [None, None]}), schema, where="t")
    coding = DigitCoding.fit(table)
    assert coding.code(table).nunique().tolist() == [1, 1]
    pd.testing.assert_frame_equal(coding.table(coding.code(table), where="t").frame(), table.frame())


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [("c3", "v9", "a code is not known"), ("c1m", "v2", "a code is not known"), ("c0", "x", "not a whole number")],
)
def test_codes_that_there_are_not(column: str, value: str, words: str) -> None:
    coding = DigitCoding.fit(TABLE)
    coded = coding.code(TABLE).astype({column: object})
    coded.loc[2, column] = value
    with pytest.raises(InputError, match=f"'{column}', row 2: .*{words}"):
        coding.table(coded, where="t")
    with pytest.raises(InputError, match="the column is missing"):
        coding.table(coded.drop(columns=column), where="t")
