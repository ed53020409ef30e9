"""Coded cells: the way there and back, missing and unknown values, every kind."""

import numpy as np
import pandas as pd

from privacy_assets.engine.tables.coding import Coding
from privacy_assets.engine.tables.schema import infer_schema
from privacy_assets.engine.tables.table import Table

MIXED = pd.DataFrame(
    {
        "weight": [1.5, -2.25, None, 1e300],
        "age": pd.array([3, None, -7, 2**53], dtype="Int64"),
        "town": ["a", 'b"\n', None, "a"],
        "smoker": pd.array([True, None, False, True], dtype="boolean"),
        "seen": pd.to_datetime(["2020-02-29 13:14:15.123457", None, "1931-01-01", "2200-01-01"], format="ISO8601"),
    }
)
SCHEMA = infer_schema(MIXED)
CANONICAL = Table.of(MIXED, SCHEMA, where="mixed").frame()


def test_cells_give_back_the_frame_they_came_from():
    coding = Coding.fit([CANONICAL], SCHEMA)
    pd.testing.assert_frame_equal(coding.frame(coding.code(CANONICAL)), CANONICAL)


def test_no_rows_and_no_known_values_go_there_and_back():
    coding = Coding.fit([CANONICAL.iloc[[1]].reset_index(drop=True)], SCHEMA)
    empty = CANONICAL.iloc[:0]
    assert coding.code(empty).shape == (5, 0)
    pd.testing.assert_frame_equal(coding.frame(coding.code(empty)), empty.reset_index(drop=True))
    nothing = Coding.fit([empty], SCHEMA)
    assert nothing.frame(nothing.code(CANONICAL))["town"].isna().all()


def test_codes_rank_the_values_of_all_frames_and_mark_missing_and_unknown():
    coding = Coding.fit([CANONICAL.iloc[[3]], CANONICAL.iloc[[1]]], SCHEMA)
    town = coding.code(CANONICAL.assign(town=["a", 'b"\n', None, "c"]))[2]
    assert town.tolist() == [0, 1, 2, 3]
    assert coding.sizes.tolist() == [0, 0, 4, 3, 0]
    assert coding.is_number.tolist() == [True, True, False, False, True]


def test_numbers_stand_as_they_are_and_missing_is_nan():
    cells = Coding.fit([CANONICAL], SCHEMA).code(CANONICAL)
    assert cells[0, :2].tolist() == [1.5, -2.25] and np.isnan(cells[0, 2])
    assert cells.dtype == np.float64 and cells.flags.c_contiguous
