"""The precision of columns: determined from all real rows, applied to every synthetic one."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privacy_assets.evaluation.reading import read_inputs
from privacy_assets.tables.inference import infer_schema, joint_schema
from privacy_assets.tables.precision import decimals_of, round_decimals, round_to_multiple
from privacy_assets.tables.schema import Kind
from privacy_assets.tables.table import Table

WHOLE = st.integers(-(2**63), 2**63 - 1)


def found(values: Any, kind: Kind | None = None) -> object:
    return infer_schema(pd.DataFrame({"x": values}), {"x": kind} if kind else None)["x"].precision


@pytest.mark.parametrize(
    ("values", "precision"),
    [
        ([0.5, 0.25, 100.0], 2),
        ([1 / 3, 0.5], None),
        ([0.1 + 0.2, 0.5], None),  # 0.30000000000000004
        ([1e-20, 1.5], None),
        ([1.5, 123456789012.34], 2),
        ([1200.5, np.nan, 7.0], 1),
        (pd.array([0.1, 2.7], dtype="float32"), 1),
        (pd.array([0.1, 16.3], dtype="float32").astype("float64"), None),
        (pd.array([0.1, 0.7], dtype="float16"), 1),
        ([Decimal("1.50"), Decimal("2.25")], 2),
        ([3, 7], 0),
        ([500, 1200, 0], -2),
        ([0, 0], 0),
        ([10.0, np.nan, 30.0], -1),
        (pd.array([2**60, 2**60 + 10], dtype="Int64"), 0),
        (pd.array([10 * 2**53, None, 10 * (2**53 + 1)], dtype="Int64"), -1),
        ([True, False], None),
        (pd.to_datetime(["2024-01-01", None]), "day"),
        (pd.to_datetime(["2024-01-01 05:00", "2024-01-02 00:00"]), "hour"),
        (pd.to_datetime(["2024-01-01 05:30", "1913-01-02 00:00"]), "minute"),
        (pd.to_datetime(["2024-01-01 05:30:01.000001"]), "microsecond"),
        # equal to the same moment in UTC
        (pd.to_datetime(["2024-06-01"]).tz_localize("Europe/Berlin"), "hour"),
        ([pd.Timestamp("2024-01-01").date()], "day"),
    ],
)
def test_the_coarsest_precision_that_changes_no_value(values: Any, precision: object) -> None:
    assert found(values) == precision
    frame = pd.DataFrame({"x": values})
    schema = infer_schema(frame)
    real = Table.of(frame, schema, where="t")
    rounded = Table.of(frame, schema, where="t", synthetic=True)
    pd.testing.assert_frame_equal(rounded.frame(), real.frame(), check_exact=True)
    pd.testing.assert_frame_equal(rounded.to_published_frame(), real.to_published_frame())


def test_of_declared_kinds() -> None:
    assert found(["1.50", "2.25"], "numeric") == 2
    assert found([30, 40], "numeric") == -1 and found([30.0, 41.0], "integer") == 0
    assert found([1, 2], "categorical") is None
    assert found(["2024-01-01", "2024-01-02 12:00"], "datetime") == "hour"
    assert found([None, None], "numeric") == 0 and found([None, None], "datetime") == "day"


def synthetic(real: Any, made: Any) -> list[Any]:
    """Rows of a user's table and of a generator are rounded equally."""
    schema, frame = infer_schema(pd.DataFrame({"x": real})), pd.DataFrame({"x": made})
    given = Table.of(frame, schema, where="t", synthetic=True).frame()
    pd.testing.assert_frame_equal(
        Table.of(frame, schema, where="t").as_synthetic(schema, where="t").frame(), given
    )
    return given["x"].tolist()


def test_rounding_goes_to_the_nearest_and_of_two_to_the_even() -> None:
    # 3.5 of 0.35: even, 4
    assert synthetic([0.1, 2.2], [0.25, 0.35, 1.449, -0.05, 7.0]) == [0.2, 0.4, 1.4, 0.0, 7.0]
    assert synthetic([100, 300], [149, 150, 250, 251, -150, -49]) == [100, 200, 200, 300, -200, 0]
    assert synthetic([0.5, 1.5], pd.array([None, 2.34], dtype="Float64"))[1] == 2.3
    assert synthetic([3, 4], [3.0, 4.0]) == [3, 4] and synthetic([3.0, 4.5], [3, 4]) == [3.0, 4.0]
    days = pd.to_datetime(["2024-01-01", "2024-01-02"])
    noon = [pd.Timestamp("2024-01-01 11:59"), pd.Timestamp("2024-01-01 12:00:01"), pd.NaT]
    assert synthetic(days, noon)[:2] == list(days) and synthetic(days, noon)[2] is pd.NaT


def test_what_is_missing_stays_missing_and_zero_has_no_sign() -> None:
    assert synthetic([100, 300], pd.array([None, 149], dtype="Int64")) == [pd.NA, 100]
    assert synthetic([True, False], pd.array([None, True], dtype="boolean"))[1] is True
    for real in ([0.5, 1.5], [1 / 3]):
        number, missing = synthetic(real, [-0.0, np.nan])
        assert not np.signbit(number) and np.isnan(missing)


def test_short_floats_are_rounded_as_what_they_are() -> None:
    """A synthetic 0.1 that was written as text equals the 0.1 of a float32 column; otherwise no
    copy would be found.
    """
    real = pd.array([0.1, 16.3], dtype="float32")
    assert synthetic(real, [0.1, 16.3, 16.26]) == [float(np.float32(x)) for x in (0.1, 16.3, 16.3)]
    assert synthetic(pd.array([1 / 3, 0.5], dtype="float32"), [1 / 3]) == [float(np.float32(1 / 3))]
    assert synthetic(real, [1e300]) == [1e300]  # it does not fit, which the writer detects


def test_the_largest_whole_numbers_do_not_overflow() -> None:
    top = 2**63 - 1024  # the largest accepted value
    assert synthetic([10, 20], [top, -top]) == [top // 10 * 10, -(top // 10) * 10]
    assert synthetic([2**53, 2**53 + 1], [2**53 + 1]) == [2**53 + 1]


@pytest.mark.slow
@given(st.lists(WHOLE, min_size=1), st.integers(0, 18))
def test_whole_numbers_are_rounded_exactly(values: list[int], digits: int) -> None:
    step = 10**digits
    rounded = round_to_multiple(np.array(values, dtype=np.int64), step).tolist()
    top = (2**63 - 1) // step * step
    assert rounded == [min(max(round(value / Decimal(step)) * step, -top), top) for value in values]


DECIMALS = st.integers(-15, 15)


@given(st.lists(st.integers(-(2**50), 2**50), min_size=1), DECIMALS)
def test_numbers_of_so_many_decimals_stay_bit_for_bit(whole: list[int], decimals: int) -> None:
    values = np.array([float(Decimal(number).scaleb(-decimals)) for number in whole])
    assert round_decimals(values, decimals).tobytes() == values.tobytes()
    least = decimals_of(values)
    assert least is not None and least <= max(decimals, 0)


@pytest.mark.slow
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1), DECIMALS)
def test_what_was_rounded_stays_and_no_real_value_changes(
    values: list[float], decimals: int
) -> None:
    once = round_decimals(np.array(values), decimals)
    assert round_decimals(once, decimals).tobytes() == once.tobytes()
    for dtype in ("float32", "float64"):
        frame = pd.DataFrame({"x": np.array(values, dtype=dtype)})
        schema = infer_schema(frame, {"x": "numeric"})
        real, rounded = (
            Table.of(frame, schema, where="t", synthetic=made).frame() for made in (False, True)
        )
        pd.testing.assert_frame_equal(rounded, real, check_exact=True)


def test_all_real_tables_count_and_train_says_what_a_short_float_is() -> None:
    train = pd.DataFrame({"x": pd.array([0.5, 1.5], dtype="float32"), "y": [10, 20]})
    holdout = pd.DataFrame({"x": [0.1, 0.25], "y": [10, 21]})
    schema, _ = joint_schema(
        {"train": train, "holdout": holdout}, {"train": "train", "holdout": "holdout"}
    )
    assert [(column.dtype, column.precision) for column in schema.columns] == [
        ("float32", 2),
        ("int64", 0),
    ]


def test_what_is_scored_is_rounded_and_real_rows_are_not() -> None:
    rng = np.random.default_rng(0)
    real = [pd.DataFrame({"x": rng.normal(size=50).round(1)}) for _ in range(2)]
    made = pd.DataFrame({"x": rng.normal(size=50)})
    inputs = read_inputs(*real, made)
    np.testing.assert_array_equal(inputs.synthetic["x"].cells, made["x"].round(1) + 0.0)
    np.testing.assert_array_equal(inputs.train["x"].cells, real[0]["x"])
