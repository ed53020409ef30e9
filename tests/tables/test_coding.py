"""Coded cells: encoding and decoding, missing and unknown values, every kind."""

import numpy as np
import pandas as pd
import pytest

from privacy_assets.errors import InputError
from privacy_assets.tables.encoding import MatrixCoding
from privacy_assets.tables.inference import infer_schema
from privacy_assets.tables.table import Table

MIXED = pd.DataFrame(
    {
        "weight": [1.5, -2.25, None, 1e300],
        "age": pd.array([3, None, -7, 2**53], dtype="Int64"),
        "town": ["a", 'b"\n', None, "a"],
        "smoker": pd.array([True, None, False, True], dtype="boolean"),
        "seen": pd.to_datetime(
            ["2020-02-29 13:14:15.123457", None, "1931-01-01", "2200-01-01"], format="ISO8601"
        ),
    }
)
SCHEMA = infer_schema(MIXED)
TABLE = Table.of(MIXED, SCHEMA, where="mixed")
EMPTY = TABLE.take(slice(0))


def test_cells_give_back_the_table_they_came_from():
    coding = MatrixCoding.fit([TABLE], SCHEMA)
    cells = coding.code(TABLE)
    again = MatrixCoding.of_plain(SCHEMA, coding.plain_values())
    assert again.values == coding.values
    pd.testing.assert_frame_equal(again.table(cells).frame(), TABLE.frame())
    pd.testing.assert_frame_equal(coding.table(coding.code(EMPTY)).frame(), EMPTY.frame())
    assert cells[0, :2].tolist() == [1.5, -2.25] and np.isnan(cells[0, 2])
    assert cells.dtype == np.float64 and cells.flags.c_contiguous


def test_codes_rank_the_values_of_all_tables_and_mark_missing_and_unknown():
    coding = MatrixCoding.fit([TABLE.take(np.array([3])), TABLE.take(np.array([1]))], SCHEMA)
    other = Table.of(MIXED.assign(town=["a", 'b"\n', None, "c"]), SCHEMA, where="other")
    assert coding.code(other)[2].tolist() == [0, 1, 2, 3]
    assert coding.sizes.tolist() == [0, 0, 4, 3, 0]
    assert coding.is_number.tolist() == [True, True, False, False, True]
    assert coding.table(coding.code(TABLE))["smoker"].objects() == [True, None, None, True]
    nothing = MatrixCoding.fit([EMPTY], SCHEMA)
    assert nothing.table(nothing.code(TABLE))["town"].missing.all()


@pytest.mark.parametrize("value", [np.inf, 2.0**63, -1e300])
def test_cells_that_no_whole_number_or_date_holds_are_no_missing_values(value):
    coding = MatrixCoding.fit([TABLE], SCHEMA)
    for name in ("age", "seen"):
        cells = coding.code(TABLE)
        cells[SCHEMA.names.index(name), 1] = value
        with pytest.raises(
            InputError, match=f"column '{name}', row 1: a value does not fit 64 bits"
        ):
            coding.table(cells)
