"""Roundtrip of table files, and rejection of changed ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from privacy_assets.errors import Damaged
from privacy_assets.tables import arrays
from privacy_assets.tables.arrays import array_digest, load_arrays, save_arrays
from privacy_assets.tables.canonical import canonical_table
from privacy_assets.tables.column import Column
from privacy_assets.tables.declared import Declared
from privacy_assets.tables.table import Table


@pytest.fixture
def table() -> Table:
    """Every kind of column, with missing values, subjects and an envelope."""
    frame = pd.DataFrame(
        {
            "number": [0.0, -0.0, 1.5, np.nan, 1e300, 0.1] * 5,
            "count": pd.array([1, None, 3] * 10, dtype="Int64"),
            "word": ["a", None, "ü", "x y", "a", "b"] * 5,
            "flag": pd.array([True, None, False, True, None, True] * 5, dtype="boolean"),
            "day": pd.to_datetime(["2024-01-01", None, "2024-01-03"] * 10),
            "person": [f"p{row // 2}" for row in range(30)],
        }
    )
    return replace(canonical_table(frame, Declared(subject="person")), envelope=b"signed")


@pytest.mark.parametrize("large", [1, 1 << 24])
def test_a_table_comes_back(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: int
) -> None:
    monkeypatch.setattr(arrays, "LARGE", large)
    table.save(tmp_path / "table.bin")
    found = Table.load(tmp_path / "table.bin")
    (tmp_path / "table.bin").write_bytes(b"later bytes")
    assert (found.schema, found.subject, found.envelope) == (table.schema, "person", b"signed")
    assert (found.digest, found.fingerprint) == (table.digest, table.fingerprint)
    pd.testing.assert_frame_equal(found.frame(), table.frame())
    assert [c.cells.dtype for c in found.columns.values()] == [
        c.cells.dtype for c in table.columns.values()
    ]


def test_the_digest_covers_all_but_the_seal(table: Table) -> None:
    number = table["number"]
    other = replace(number, cells=np.where(np.arange(30) == 1, 0.0, number.cells))  # 0.0 for -0.0
    changed = [
        table.take(slice(None, None, -1)),
        table.with_columns(other),
        table.without_subject(),
        table.with_schema(table.schema.without("flag")),
        table.map(
            lambda column: (
                replace(column, values=(*column.values, "z")) if column.name == "word" else column
            )
        ),
    ]
    assert len({table.digest, *(one.digest for one in changed)}) == 6
    assert replace(table, envelope=b"other").digest == table.digest
    assert other.equals(number) and table.with_columns(other).fingerprint == table.fingerprint


def test_a_part_has_no_values_of_other_parts(table: Table, tmp_path: Path) -> None:
    part = table.take(np.arange(2)).map(Column.compact)
    part.save(tmp_path / "table.bin")
    stored = (tmp_path / "table.bin").read_bytes()
    assert (part["word"].values, part["person"].values) == (("a",), ("p0",))
    assert b"p0" in stored and b"p1" not in stored and b"x y" not in stored


def test_neither_a_generator_nor_a_release_gets_the_subject(table: Table) -> None:
    bare = table.without_subject()
    assert (bare.subject, bare.envelope, bare.subject_ids) == (None, b"", None)
    for columns in (bare.columns, bare.frame(), table.to_published_frame()):
        assert "person" not in columns
    assert next(iter(table.frame())) == "person"


def test_every_damaged_file_is_blocked_or_the_same(table: Table, tmp_path: Path) -> None:
    path = tmp_path / "table.bin"
    table.save(path)
    whole = path.read_bytes()
    cut = [whole[:size] for size in (0, 7, 16, 64, len(whole) // 2, len(whole) - 64)]
    flipped = [
        whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(0, len(whole), 7)
    ]
    rejected = 0
    for data in (*cut, *flipped):
        path.write_bytes(data)
        try:
            rejected += Table.load(path).digest != table.digest
        except Damaged as error:
            rejected += 1
            assert error.record == "table" and "table.bin is missing, was changed" in str(error)
    assert rejected > len(whole) / 7 / 2
    path.unlink()
    with pytest.raises(Damaged):
        Table.load(path)


def facts(**changes: Any) -> dict[str, Any]:
    return {
        "schema": [],
        "subject": None,
        "rows": 2,
        "columns": [["x", "categorical", ["a"]]],
        **changes,
    }


@pytest.mark.parametrize(
    ("facts", "cells"),
    [
        (facts(), np.array([0, 1], dtype=np.int8)),  # a code without a value
        (facts(), np.array([0, -2], dtype=np.int8)),
        (facts(), np.array([0.0, 0.0])),
        (facts(), np.array([0], dtype=np.int8)),  # another number of rows
        (facts(), np.array([[0], [0]], dtype=np.int8)),
        (facts(columns=[["x", "categorical", None]]), np.array([0, 0], dtype=np.int8)),
        (facts(columns=[["x", "numeric", None]]), np.array([0, 0])),
        (facts(columns=[["x", "integer", None]]), np.array([0.0, 0.0])),
        (
            facts(columns=[["x", "categorical", ["a"]], ["y", "numeric", None]]),
            np.array([0, 0], dtype=np.int8),
        ),
    ],
)
def test_cells_that_would_be_read_beyond_their_values_are_rejected(
    facts: dict[str, Any], cells: np.ndarray, tmp_path: Path
) -> None:
    save_arrays(tmp_path / "table.bin", facts, [cells])
    with pytest.raises(Damaged):
        Table.load(tmp_path / "table.bin")


def test_an_array_of_objects_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "x"
    save_arrays(path, {}, [np.zeros(1)])
    path.write_bytes(path.read_bytes().replace(b'"<f8"', b'"|O8"'))
    with pytest.raises(ValueError, match="does not contain numbers"):
        load_arrays(path)


def test_the_digest_is_pinned() -> None:
    """Another digest would reject the values of a run that was started by an earlier version."""
    assert (
        array_digest({"a": 1}, [np.arange(3), np.zeros((0, 2), np.float32)])[:16]
        == "4a6c5df47428bd47"
    )
