"""Snapshots: the same rows give the same file, which holds only names and values, and are read back
unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gate_standins import FRAME, Chain, blocked, chain, mode, read, rows, same_rows

from privacy_assets.errors import Damaged, PublicationBlocked, StoreUnavailable
from privacy_assets.gate.gate import Gate
from privacy_assets.gate.releases import check_bytes
from privacy_assets.gate.snapshot import read_hashed, read_snapshot, write_snapshot
from privacy_assets.infra.storage import hash_file

KEY = b"k" * 32
HIDDEN = pd.concat([FRAME, FRAME.iloc[[1]]], ignore_index=True)  # one row appears twice
HIDDEN.attrs = {"note": "hidden"}
SAME_ROWS: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "another index": lambda frame: frame.set_index(pd.Index([5, 5, 9, 2])),
    "another order of rows": lambda frame: frame.iloc[[3, 0, 2, 1]],
    "attributes": lambda frame: frame,
    "categories that no row has": lambda frame: frame.assign(
        ward=frame["ward"].cat.add_categories(["hidden"])
    ),
    "another order of categories": lambda frame: frame.assign(
        ward=frame["ward"].cat.reorder_categories(WARDS)
    ),
    "texts as categories": lambda frame: frame.assign(plan=frame["plan"].astype("category")),
    "texts as objects": lambda frame: frame.assign(plan=frame["plan"].astype(object)),
    "in parts": lambda frame: pd.concat([frame[:2], frame[2:]]).assign(
        dose=_in_parts(frame["dose"])
    ),
}
WARDS = ["south", "north"]


def _in_parts(series: pd.Series) -> pd.Series:
    """A column in several Arrow chunks."""
    parts = pa.chunked_array(
        [pa.array(series[:1], from_pandas=True), pa.array(series[1:], from_pandas=True)]
    )
    return pd.Series(pd.arrays.ArrowExtensionArray(parts))


@pytest.mark.parametrize("change", SAME_ROWS)
def test_the_same_rows_give_the_same_snapshot(tmp_path: Path, change: str) -> None:
    plain = HIDDEN.copy()
    plain.attrs = {}
    assert write_snapshot(SAME_ROWS[change](HIDDEN), tmp_path, KEY) == write_snapshot(
        plain, tmp_path, KEY
    )


def test_other_rows_or_another_secret_give_another_snapshot(tmp_path: Path) -> None:
    once = write_snapshot(FRAME, tmp_path, KEY)
    assert once != write_snapshot(HIDDEN, tmp_path, KEY)  # a row's number of repetitions is content
    assert once != write_snapshot(FRAME.assign(visits=[3, 0, 8]), tmp_path, KEY)
    numbers = pd.DataFrame({"n": range(100)})
    orders = [
        read_hashed(*write_snapshot(numbers, tmp_path, key))["n"].tolist()
        for key in (KEY, b"another")
    ]
    assert orders[0] != orders[1] and sorted(orders[0]) == sorted(orders[1]) == list(range(100))


def test_a_snapshot_holds_names_and_values_alone(tmp_path: Path) -> None:
    hidden = SAME_ROWS["categories that no row has"](HIDDEN)
    path, sha256 = write_snapshot(hidden, tmp_path, KEY)
    file = pq.ParquetFile(path, read_dictionary=["ward"])
    assert file.metadata.metadata is None
    assert file.schema_arrow.metadata is None and {
        field.metadata for field in file.schema_arrow
    } == {None}
    (chunk,) = file.read()["ward"].chunks
    assert sorted(chunk.dictionary.to_pylist()) == ["north", "south"]
    assert read_hashed(path, sha256).attrs == {}


def test_dtypes_come_back_from_what_was_signed(gate: Gate) -> None:
    values: list[tuple[list[Any], str]] = [
        ([1, 2], "int8 uint64 Int64"),
        ([2**60 + 1, None], "Int64"),
        ([True, False], "bool boolean"),
        ([True, None], "boolean"),
        ([0.1, None], "float32 Float64 float64"),
        (["a", None], "str string object category"),
        (["2024-01-01", None], "datetime64[s] datetime64[ns]"),
    ]
    pairs = [(pair, dtype) for pair, dtypes in values for dtype in dtypes.split()]
    pairs.append((["2024-01-01", None], "datetime64[us, Europe/Berlin]"))
    frame = pd.DataFrame(
        {f"column {n}": pd.Series(pair, dtype=dtype) for n, (pair, dtype) in enumerate(pairs)}
    )
    frame = frame.rename(columns={"column 0": "self"})
    part = chain(gate, frame=frame)
    part.publish()
    for found in (read_snapshot(part.snapshot), read(gate)):
        assert [str(dtype) for dtype in found.dtypes] == [dtype for _, dtype in pairs]
        same_rows(found, frame, check_categorical=False)


def test_a_snapshot_is_private_and_named_by_its_bytes(ready: Chain) -> None:
    path = ready.snapshot.path
    assert path.name == f"{hash_file(path)}.parquet"
    assert (mode(path), mode(path.parent)) == (0o600, 0o700)
    for change in (lambda: path.write_bytes(path.read_bytes() + b"x"), path.unlink):
        change()
        with blocked((Damaged, StoreUnavailable), path=str(path), record="snapshot"):
            read_snapshot(ready.snapshot)


def test_no_flipped_bit_of_a_table_is_accepted(tmp_path: Path) -> None:
    """Both functions that readers, rollback and `privacy-assets verify` use reject it."""
    path, sha256 = write_snapshot(rows(1), tmp_path, KEY)
    data = path.read_bytes()
    # a valid table, with other rows
    path.write_bytes(write_snapshot(rows(2), tmp_path, KEY)[0].read_bytes())
    for look in (check_bytes, read_hashed):
        with pytest.raises(Damaged):
            look(path, sha256)
    for position in range(len(data)):
        path.write_bytes(
            data[:position] + bytes([data[position] ^ (1 << position % 8)]) + data[position + 1 :]
        )
        for look in (check_bytes, read_hashed):
            with pytest.raises(PublicationBlocked):
                look(path, sha256)
    path.write_bytes(data)
    check_bytes(path, sha256)
