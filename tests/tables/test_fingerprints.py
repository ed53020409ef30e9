"""The permanent fingerprint: equal for the same rows in every form, and different for other
rows.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy_assets.gate.snapshot import lasting_fingerprint
from privacy_assets.tables.reading import read_table

# no word that is read as a number or as missing
words = st.text("bcdgå \"'", max_size=4).map(lambda text: f"x{text}x")
CELLS = [
    st.integers(-(2**53), 2**53),
    words,
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
]
rows = st.lists(st.tuples(*(st.none() | cells for cells in CELLS[:3]), CELLS[3]), max_size=8)
NAMES = ["a", "b", "c", "d"]


def table(data: list[Any]) -> pd.DataFrame:
    frame = pd.DataFrame(data, columns=NAMES, dtype=object)
    return frame.astype({"a": "Int64", "b": object, "c": "Float64", "d": bool})


@pytest.mark.slow
@settings(max_examples=60)
@given(rows.filter(bool), st.randoms(), st.data())
def test_the_order_and_the_file_do_not_matter_and_each_cell_and_count_does(
    data: list[Any], random: Any, draw: st.DataObject
) -> None:
    shuffled, names = list(data), list(NAMES)
    random.shuffle(shuffled)
    random.shuffle(names)
    frame = table(data)
    own = lasting_fingerprint(frame)
    assert lasting_fingerprint(table(shuffled)[names]) == own
    again = pd.read_csv(io.StringIO(frame.to_csv(index=False)), skip_blank_lines=False)
    assert lasting_fingerprint(again) == own
    row = draw.draw(st.integers(0, len(data) - 1))
    column = draw.draw(st.integers(0, 3))
    value = draw.draw(CELLS[column].filter(lambda value: value != data[row][column]))
    changed = [
        *data[:row],
        (*data[row][:column], value, *data[row][column + 1 :]),
        *data[row + 1 :],
    ]
    others = [table(changed), table([*data, data[row]]), table(data[:row] + data[row + 1 :])]
    assert own not in map(lasting_fingerprint, others)


RNG = np.random.default_rng(0)
FRAMES: dict[str, pd.DataFrame] = {
    "whole numbers": pd.DataFrame({"x": [0, -1, 2**53]}),
    "whole numbers, some missing": pd.DataFrame({"x": pd.array([1, None, 3], dtype="Int64")}),
    "floats": pd.DataFrame({"x": RNG.gamma(2, 1000, 500)}),
    "floats of all sizes": pd.DataFrame({"x": [-0.0, 1e-300, 1e300, 0.1 + 0.2, -7.0, np.nan]}),
    "yes and no": pd.DataFrame({"x": [True, False, True]}),
    "yes, no and missing": pd.DataFrame({"x": pd.array([True, None, False], dtype="boolean")}),
    "texts": pd.DataFrame({"x": ["a", "b c", 'd "e"', "é\n", None]}),
    "texts that CSV takes for missing": pd.DataFrame({"x": ["a", "", "NA", "null", "nan", None]}),
    "codes with zeros": pd.DataFrame({"x": ["007", "08", "1"]}),
    "categories": pd.DataFrame(
        {"x": pd.Categorical(["u", None, "v"], categories=["v", "u", "unused"])}
    ),
    "days": pd.DataFrame({"x": pd.to_datetime(["2024-01-01", None, "1899-12-31"])}),
    "times": pd.DataFrame({"x": pd.to_datetime(["2024-01-01 00:00:00", "2024-01-01 12:30:00"])}),
    "parts of seconds": pd.DataFrame(
        {"x": pd.to_datetime(["2024-01-01 00:00:00.5", "2024-01-01 12:30:00.0"])}
    ),
    "times of a zone": pd.DataFrame(
        {"x": pd.to_datetime(["2024-01-01", "2024-07-01"]).tz_localize("UTC")}
    ),
    "times far from Greenwich": pd.DataFrame(
        {"x": pd.to_datetime(["2024-01-01 05:00"]).tz_localize("Asia/Kolkata")}
    ),
}


@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES.keys())
def test_the_same_rows_in_another_form_share_it(frame: pd.DataFrame, tmp_path: Path) -> None:
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    forms = [read_table(tmp_path / "t.csv"), read_table(tmp_path / "t.parquet")]
    forms += [frame.astype(dtype) for dtype in (str, "category", object)]
    assert {lasting_fingerprint(form) for form in forms} == {lasting_fingerprint(frame)}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["ab", "c"], ["a", "bc"]),
        ([1, 2], [1, 3]),
        ([1, None], [1, 0]),
        (["a", None], ["a", "b"]),
        ([1, 1, 2], [1, 2, 2]),
        ([0.1], [np.nextafter(0.1, 1)]),
        (["True story"], ["1 story"]),
        (["01"], ["1"]),
        (["1e0"], ["1"]),
        ([2**60], [2**60 + 1]),
        ([pd.Timestamp("2024-01-01")], [pd.Timestamp("2024-01-01 00:00:00.5")]),
        ([pd.Timestamp("2024-01-01")], [pd.Timestamp("2024-01-01", tz="Asia/Kolkata")]),
        ([pd.Timestamp("2024-01-01 10:00")], [pd.Timestamp("2024-01-01 10:00:01")]),
    ],
)
def test_other_rows_do_not_share_it(one: list[Any], other: list[Any]) -> None:
    assert lasting_fingerprint(pd.DataFrame({"x": one})) != lasting_fingerprint(
        pd.DataFrame({"x": other})
    )


def test_values_do_not_run_over_the_edges_of_columns_and_names() -> None:
    frames = [
        {"a": ["xy"], "b": ["z"]},
        {"a": ["x"], "b": ["yz"]},
        {"a": ["z"], "b": ["xy"]},
        {"ab": ["xyz"]},
    ]
    named = [{"ab": ["x"], "c": ["y"]}, {"a": ["x"], "bc": ["y"]}]
    assert len({lasting_fingerprint(pd.DataFrame(frame)) for frame in [*frames, *named]}) == 6
