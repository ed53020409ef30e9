"""Wide tables: each file is opened a fixed number of times, and the report lists the drawn
columns.
"""

from __future__ import annotations

import builtins
import io
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet
import pytest

from privacy_assets import TableSpec, evaluate
from privacy_assets.pipeline.resolve import ResolvedTable
from privacy_assets.pipeline.row_sources import source_table
from privacy_assets.tables import given, stored

# openings of a file by pyarrow: one for all columns, and one that reads strings as dictionaries
MOST = 2
COLUMNS = 30
CHEAP: dict[str, Any] = {"metrics": ["fidelity"], "embedder": False}


@pytest.fixture
def openings(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Number of times that pyarrow or Python opens each file, by name of the file."""
    counted: Counter[str] = Counter()
    parquet, plain = pyarrow.parquet.ParquetFile.__init__, io.open

    def of_arrow(self: Any, source: Any, *args: Any, **settings: Any) -> None:
        counted[Path(str(source)).name] += 1
        parquet(self, source, *args, **settings)

    def of_python(file: Any, *args: Any, **settings: Any) -> Any:
        counted[Path(str(file)).name] += 1
        return plain(file, *args, **settings)

    monkeypatch.setattr(pyarrow.parquet.ParquetFile, "__init__", of_arrow)
    monkeypatch.setattr(io, "open", of_python)
    monkeypatch.setattr(builtins, "open", of_python)
    yield counted


def wide(rows: int, seed: int, columns: int = COLUMNS) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    kinds = (
        lambda: rng.integers(0, 9, rows),
        lambda: rng.normal(size=rows),
        lambda: rng.choice(list("abc"), rows),
    )
    return pd.DataFrame({f"c{at:02}": kinds[at % 3]() for at in range(columns)})


@pytest.mark.slow
@pytest.mark.parametrize("columns", [3, COLUMNS])
def test_evaluate_opens_each_file_twice_whatever_its_width(
    tmp_path: Path, openings: Counter[str], columns: int
) -> None:
    paths = {role: tmp_path / f"{role}.parquet" for role in ("train", "holdout", "synthetic")}
    for seed, path in enumerate(paths.values()):
        wide(60, seed, columns).to_parquet(path)
    openings.clear()
    report = evaluate(**paths, **CHEAP)
    opened = {path.name: openings[path.name] for path in paths.values()}
    # `os.open`, with which the SHA-256 of the synthetic file is computed, is not counted
    assert opened == {path.name: MOST for path in paths.values()}
    fidelity = report.results["fidelity"]
    drawn = sorted(row["column"] for row in fidelity.tables["columns"] if "prediction" in row)
    assert len(drawn) == min(columns, 20)
    listed = ", ".join(map(repr, drawn))
    texts = (
        " ".join(report.to_text().split()),
        report.to_html().replace("&#39;", "'"),
        str(report.to_json()),
    )
    assert all((listed in text) == (columns > 20) for text in texts)


def test_a_step_of_the_pipeline_opens_its_source_twice(
    tmp_path: Path, openings: Counter[str]
) -> None:
    wide(60, 0).to_parquet(tmp_path / "rows.parquet")
    table = ResolvedTable.of(
        TableSpec(
            name="wide", subject={"each_row": True}, data={"source": str(tmp_path / "rows.parquet")}
        )
    )
    openings.clear()
    assert len(source_table(table, None, None, None).schema.names) == COLUMNS
    assert openings["rows.parquet"] == MOST


def test_a_table_of_many_files_keeps_none_open(
    tmp_path: Path, openings: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "_MAX_OPEN_FILES", 1)
    for at in range(2):
        wide(20, at, 6).to_parquet(tmp_path / f"{at}.parquet")
    table = given.load(tmp_path)
    assert isinstance(table, stored.StoredTable)
    for name in table.columns:
        pd.testing.assert_series_equal(
            table[name].astype(object),
            pd.concat([wide(20, at, 6)[name] for at in range(2)], ignore_index=True).astype(object),
        )
    assert min(openings["0.parquet"], openings["1.parquet"]) > 6 and not any(
        part._files for part in table._parts
    )
