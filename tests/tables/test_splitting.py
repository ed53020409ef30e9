"""The assignment of rows to train, holdout and reference, pinned on real tables."""

from __future__ import annotations

import hashlib

import numpy as np
import pandas as pd
import pytest

from privacy_assets.tables.canonical import canonical_table
from privacy_assets.tables.declared import Declared
from privacy_assets.tables.splitting import split_rows
from privacy_assets.tables.table import Table

KEY = b"the key of the pinned split"


def split(table: Table) -> dict[str, Table]:
    return {role: table.take(rows) for role, rows in split_rows(table, KEY).items()}


def digest(frame: pd.DataFrame) -> str:
    """Return a hash of the rows in their order."""
    return hashlib.sha256(frame.to_csv(index=False).encode()).hexdigest()[:16]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("subject", "sizes", "digests"),
    [
        (None, [24618, 14465, 9759], ["8b6aa402482eafd5", "b30ec34bdf0b002c", "7ce72d6fb76161c4"]),
        (
            "person",
            [24651, 14484, 9707],
            ["075fb1845bc8065e", "b857aea3aec6fef8", "c41d4c9159639653"],
        ),
        (
            "number",
            [24329, 14712, 9801],
            ["7fdd40df4dce2b56", "34866845e54ecb9f", "7cad9d55fbd07513"],
        ),
    ],
)
def test_the_assignment_is_pinned(
    adult_file: pd.DataFrame, subject: str | None, sizes: list[int], digests: list[str]
) -> None:
    """Another assignment would move people between the sides of tables that are already
    published.
    """
    rows = np.arange(len(adult_file)) // 3
    ids = {"person": [f"p{row:05d}" for row in rows], "number": rows}
    frame = adult_file if subject is None else adult_file.assign(**{subject: ids[subject]})
    frame = frame.sample(frac=1, random_state=0, ignore_index=True)
    parts = split(canonical_table(frame, Declared(subject=subject)))
    assert list(parts) == ["train", "holdout", "reference"]
    assert [len(part) for part in parts.values()] == sizes
    assert [digest(part.frame()) for part in parts.values()] == digests


def test_rows_with_every_kind_of_column_are_pinned() -> None:
    frame = pd.DataFrame(
        {
            "number": [0.0, -0.0, 1.5, 2.0, np.nan, 1e300] * 50,
            "count": pd.array([1, None, 3] * 100, dtype="Int64"),
            "word": ["a", None, "x y", "ü", ""] * 60,
            "flag": pd.array([True, None, False, True] * 75, dtype="boolean"),
            "day": pd.Series(
                [pd.Timestamp("2024-01-01"), None, pd.Timestamp("2024-01-03 12:00:00.000001")] * 100
            ).astype("datetime64[us]"),
        }
    )
    parts = split(canonical_table(frame, Declared(kinds={"word": "categorical"})))
    assert [len(part) for part in parts.values()] == [160, 90, 50]
    assert [digest(part.frame()) for part in parts.values()] == [
        "dfb6aade3840959a",
        "e9810886bc91c1aa",
        "8375076d47880ad7",
    ]
