"""Columns of digits that are codes, such as postcodes, and columns of digits that are numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from privacy_assets.tables.canonical import canonical_table
from privacy_assets.tables.codes import has_code_name
from privacy_assets.tables.table import Table

N = 600
RNG = np.random.default_rng(0)
TOWNS = RNG.integers(0, 30, N)
CODES = np.array([str(10_000 + 1_237 * town) for town in range(30)])[TOWNS]


def kinds_of(table: Table) -> dict[str, str]:
    return {column.name: column.kind for column in table.schema.columns}


def read(frame: pd.DataFrame, **more: object) -> Table:
    return canonical_table(frame, None, None, **more)  # type: ignore[arg-type]


def csv(frame: pd.DataFrame, folder: Path) -> Path:
    frame.to_csv(folder / "rows.csv", index=False)
    return folder / "rows.csv"


def test_digits_of_one_length_in_a_typed_table_are_codes() -> None:
    frame = pd.DataFrame(
        {"area": CODES, "age": RNG.integers(18, 90, N), "short": (RNG.integers(100, 999, N)).astype(str)}
    )
    frame["lengths"] = RNG.integers(900, 1100, N).astype(str)
    frame["signed"] = np.where(RNG.random(N) < 0.5, "-", "+") + frame["area"]
    assert kinds_of(read(frame)) == {
        "area": "categorical", "age": "integer", "short": "integer", "lengths": "integer", "signed": "integer",
    }  # fmt: skip
    assert any("area" in note and "kinds: integer" in note for note in read(frame).notes)
    table = canonical_table(frame, None, {"area": "integer"})
    assert table.schema["area"].kind == "integer"


@pytest.mark.parametrize(
    ("column", "digits", "kind"),
    [
        ("area", CODES, "categorical"),  # it determines the town
        ("postal_code", RNG.permutation(CODES), "categorical"),  # a name
        ("area", RNG.permutation(CODES), "integer"),
        ("zip", RNG.integers(1000, 1500, N).astype(str), "integer"),  # dense: most numbers occur
        ("year", RNG.integers(1990, 2020, N).astype(str), "integer"),
        ("plz", np.where(RNG.random(N) < 0.1, "", CODES), "categorical"),
    ],
)
def test_digits_of_one_length_in_a_csv_file_are_codes_with_more_evidence(
    column: str, digits: np.ndarray, kind: str, tmp_path: Path
) -> None:
    towns = [f"town {town}" for town in TOWNS]
    frame = pd.DataFrame({column: digits, "town": towns, "age": RNG.integers(18, 90, N)})
    table = canonical_table(csv(frame, tmp_path), None, None)
    assert kinds_of(table) == {column: kind, "town": "categorical", "age": "integer"}
    assert any(column in note and "kinds: " in note for note in table.notes)


def test_a_column_that_the_lock_states_as_a_number_stays_a_number() -> None:
    frame = pd.DataFrame({"area": CODES, "age": RNG.integers(18, 90, N)})
    locked = {"area": "number", "age": "number"}
    assert kinds_of(canonical_table(frame, None, None, locked=locked)) == {"area": "integer", "age": "integer"}


@pytest.mark.parametrize(
    ("name", "is_code"),
    [("zip", True), ("home_zip", True), ("areaCode", True), ("PLZ", True), ("postcode", True), ("occ_code", True),
     ("patientId", True), ("income", False), ("paid", False), ("zipper", False), ("codec", False), ("year", False)],
)  # fmt: skip
def test_names_of_codes(name: str, is_code: bool) -> None:
    assert has_code_name(name) == is_code
