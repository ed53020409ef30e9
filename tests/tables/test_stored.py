"""Tables that are read a column at a time and held in mapped blocks: the statistics are those of frames in memory."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest

from privacy_assets import evaluate
from privacy_assets.errors import InputError
from privacy_assets.evaluation import prepare_inputs
from privacy_assets.metrics.registry import METRICS
from privacy_assets.tables import memory_mapping
from privacy_assets.tables.column import ranked, row_ids
from privacy_assets.tables.memory_mapping import block, joined, kept, taken
from privacy_assets.tables.reading import read_table
from privacy_assets.tables.schema import infer_schema
from privacy_assets.tables.stored import StoredTable, open_table
from privacy_assets.tables.table import Table, joint
from privacy_assets.tables.writing import parquet_bytes

SECRET = "Zebulon-77123"


def table(rows: int, seed: int, *, person: bool = True) -> pd.DataFrame:
    """Every dtype that a Parquet file brings, with missing values."""
    rng = np.random.default_rng([seed, 7])
    words = np.array(["plain", "über", "007", "", "NA", *(f"w{i}" for i in range(seed % 5 + 3))], dtype=object)
    frame = pd.DataFrame(
        {
            "age": rng.integers(18, 90, rows),
            "small": rng.integers(0, 100, rows).astype("uint8"),
            "dose": rng.normal(size=rows).round(2),
            "short": rng.normal(size=rows).round(1).astype("float32"),
            "gaps": np.where(rng.random(rows) < 0.2, np.nan, rng.integers(0, 9, rows)),
            "nullable": pd.array(rng.integers(0, 9, rows), dtype="Int64"),
            "word": rng.choice(words, rows),
            "category": pd.Categorical(rng.choice(list("cab"), rows), categories=["c", "a", "b", "never"]),
            "coded": pd.Categorical(rng.choice([3, 1, 2], rows)),
            "flag": rng.random(rows) < 0.5,
            "maybe": pd.array(rng.random(rows) < 0.5, dtype="boolean"),
            "day": [dt.date(2020, 1, 1) + dt.timedelta(int(days)) for days in rng.integers(0, 99, rows)],
            "time": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 999, rows), unit="h"),
            "zoned": (pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 99, rows), unit="D")).tz_localize(
                "UTC"
            ),
        }
    )
    for name in ("nullable", "word", "category", "maybe", "time"):
        frame.loc[rng.random(rows) < 0.1, name] = None
    if person:
        frame["person"] = 10_000 * seed + np.arange(rows) // 2
    return frame


def tables() -> dict[str, pd.DataFrame]:
    found = {
        role: table(rows, at) for at, (role, rows) in enumerate([("train", 160), ("holdout", 90), ("reference", 80)])
    }
    fresh = table(150, 3, person=False)
    found["synthetic"] = pd.concat([fresh, found["train"].drop(columns="person")[:20]], ignore_index=True)
    return found


def write(frame: pd.DataFrame, folder: Path) -> str:
    """Two files of row groups of 7 rows each, one of them with dictionary-typed texts."""
    folder.mkdir()
    half = len(frame) // 2
    frame[:half].to_parquet(folder / "a.parquet", row_group_size=7, index=False)
    whole = pa.Table.from_pandas(frame[half:], preserve_index=False)
    pa.parquet.write_table(whole, folder / "b.parquet", row_group_size=7, use_dictionary=False)
    return str(folder)


@pytest.fixture
def tiny_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every array is mapped, copied a few rows at a time."""
    monkeypatch.setattr(memory_mapping, "LARGE", 1)
    monkeypatch.setattr(memory_mapping, "_ROWS", 5)
    return


def plain(inputs: Any) -> list[Any]:
    parts = [inputs.schema, inputs.fingerprints]
    for role in inputs.tables:
        parts += [
            inputs.row_ids[role].tolist(),
            inputs.encoded(role).numeric.tolist(),
            inputs.encoded(role).codes.tolist(),
        ]
    return [*parts, inputs.encoder, {role: codes.tolist() for role, codes in inputs.subjects.items()}]


def test_files_in_row_groups_give_the_inputs_of_frames(tmp_path: Path, tiny_blocks: None) -> None:
    frames = tables()
    paths = {role: write(frame, tmp_path / role) for role, frame in frames.items()}
    direct = {role: read_table(path) for role, path in paths.items()}
    assert plain(prepare_inputs(**paths, subject="person")) == plain(prepare_inputs(**direct, subject="person"))
    mixed = {**paths, "holdout": direct["holdout"]}
    assert plain(prepare_inputs(**mixed, subject="person")) == plain(prepare_inputs(**direct, subject="person"))


def estimates(report: Any) -> dict[str, Any]:
    found = {name: result.to_json() for name, result in report.results.items()}
    return {name: {key: part for key, part in result.items() if key != "seconds"} for name, result in found.items()}


@pytest.mark.slow
def test_every_default_metric_from_files_and_from_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = tables()
    paths = {role: write(frame, tmp_path / role) for role, frame in frames.items()}
    direct = {role: read_table(path) for role, path in paths.items()}
    released = {"released": [direct["synthetic"][:50]]}
    default = [name for name, metric in METRICS.items() if metric.by_default]
    options: dict[str, Any] = {"subject": "person", "metrics": default, "embedder": False, **released}
    memory = estimates(evaluate(**direct, **options))
    monkeypatch.setattr(memory_mapping, "LARGE", 1)
    mapped = estimates(evaluate(**paths, **options))
    assert set(memory) == set(default) and memory == mapped


def test_a_stored_table_is_the_frame_of_its_files(tmp_path: Path) -> None:
    path = write(table(100, 1), tmp_path / "t")
    stored, frame = open_table(path), read_table(path)
    assert isinstance(stored, StoredTable) and len(stored) == 100
    assert list(stored.columns) == list(frame.columns) and set(stored.texts) == {"word"}
    assert infer_schema(stored) == infer_schema(frame)
    for name in frame:
        expected = frame[name] if name != "word" else frame[name].astype(object)
        found = stored[name] if name != "word" else stored[name].astype(object)
        pd.testing.assert_series_equal(found, expected, check_names=True)
    assert "person" not in stored.drop(columns=["person"]).columns and "person" in stored.columns
    with pytest.raises(KeyError):
        stored["nobody"]


@pytest.mark.parametrize("index", [["word"], ["age", "word"], None])
def test_an_index_is_a_column_as_in_a_frame(tmp_path: Path, index: list[str] | None) -> None:
    frame = table(20, 1)
    frame = frame.set_index(index) if index else frame.rename_axis("place")
    frame.to_parquet(tmp_path / "t.parquet")
    stored, whole = open_table(tmp_path / "t.parquet"), read_table(tmp_path / "t.parquet")
    assert list(stored.columns) == list(whole.columns)
    assert infer_schema(stored) == infer_schema(whole)
    for column in ["place"] if index is None else index:
        pd.testing.assert_series_equal(stored[column], whole[column])


def test_files_whose_columns_differ_or_cannot_be_read(tmp_path: Path) -> None:
    folder = Path(write(table(20, 1), tmp_path / "t"))
    table(20, 2).drop(columns="age").to_parquet(folder / "c.parquet")
    with pytest.raises(InputError, match=r"c\.parquet, column 'age': the columns differ"):
        open_table(folder)
    (folder / "c.parquet").write_bytes(b"PAR1" + SECRET.encode())
    with pytest.raises(InputError, match=r"c\.parquet: cannot be read as parquet") as caught:
        open_table(folder)
    assert SECRET not in str(caught.value)
    (folder / "c.parquet").write_bytes(b"")
    with pytest.raises(InputError, match="empty"):
        open_table(folder)


def test_a_file_that_breaks_after_it_was_opened(tmp_path: Path) -> None:
    table(50, 1)[["word", "age"]].to_parquet(tmp_path / "t.parquet")
    stored = open_table(tmp_path / "t.parquet")
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    for name in ("word", "age"):
        with pytest.raises(InputError, match="cannot be read as parquet"):
            stored[name]


def test_objects_are_fetched_once_and_read_by_column() -> None:
    store = fsspec.filesystem("memory")
    for name, seed in (("a", 1), ("b", 2)):
        store.pipe_file(f"/stored/{name}.parquet", bytes(parquet_bytes(table(30, seed))))
    stored, frame = open_table("memory://stored/*.parquet"), read_table("memory://stored/*.parquet")
    store.rm("/stored", recursive=True)
    assert isinstance(stored, StoredTable) and infer_schema(stored) == infer_schema(frame)
    assert stored["word"].astype(object).equals(frame["word"].astype(object)) and stored["age"].equals(frame["age"])


def test_columns_of_other_types_in_other_files(tmp_path: Path) -> None:
    pd.DataFrame({"x": ["a", "b"], "y": [1, 2]}).to_parquet(tmp_path / "a.parquet")
    pd.DataFrame({"x": [None, None], "y": [1.5, None]}).to_parquet(tmp_path / "b.parquet")
    stored, frame = open_table(tmp_path), read_table(tmp_path)
    assert not isinstance(stored, pd.DataFrame) and not stored.texts
    assert infer_schema(stored) == infer_schema(frame)
    assert stored["y"].tolist()[:3] == frame["y"].tolist()[:3]


def test_tables_in_blocks_give_ids_and_ranks_of_plain_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = tables()
    bare = {role: frame.drop(columns="person", errors="ignore") for role, frame in frames.items()}
    schema = infer_schema(pd.concat([bare[role] for role in ("train", "holdout", "reference")], ignore_index=True))
    plain = {role: Table.of(frame, schema, where=role) for role, frame in bare.items()}
    monkeypatch.setattr(memory_mapping, "LARGE", 1)
    monkeypatch.setattr(memory_mapping, "_ROWS", 5)
    inputs = prepare_inputs(**frames, subject="person")
    assert all(inputs.tables[role]["word"].values == inputs.train["word"].values for role in inputs.tables)
    names = inputs.schema.names
    for name in names:
        one, other = (ranked([part[role][name] for role in frames]) for part in (inputs.tables, plain))
        assert [part.tolist() for part in one[0]] == [part.tolist() for part in other[0]]
        assert one[1].objects() == other[1].objects()
        few = ranked([inputs.train[name].take(slice(5)), plain["holdout"][name]])
        same = ranked([plain["train"][name].take(slice(5)), plain["holdout"][name]])
        assert [part.tolist() for part in few[0]] == [part.tolist() for part in same[0]]
    ids = row_ids([plain[role].columns for role in frames], names)
    assert [part.tolist() for part in ids] == [inputs.row_ids[role].tolist() for role in frames]
    for role in frames:
        pd.testing.assert_frame_equal(inputs.tables[role].frame(), plain[role].under(inputs.schema).frame())
        pd.testing.assert_frame_equal(inputs.tables[role].restored(), plain[role].under(inputs.schema).restored())
        assert inputs.tables[role].fingerprint == plain[role].fingerprint


def test_large_columns_are_mapped_and_all_operations_keep_them_so(tiny_blocks: None) -> None:
    """What is read, joined, or taken lies in files that the system can write out."""
    frame = table(60, 1, person=False)
    read = Table.read(frame)
    other = Table.of(frame.assign(word="another"), read.schema, where="other")
    for one in (
        read,
        Table.stack([read, other]),
        read.take(np.arange(0, 60, 2)),
        *joint({"a": read, "b": other}).values(),
    ):
        for column in one.columns.values():
            assert mapped(column.cells), column.name


def mapped(cells: np.ndarray) -> bool:
    base: Any = cells
    while base is not None and not isinstance(base, np.memmap):
        base = base.base if isinstance(base, np.ndarray) else None
    return base is not None


def test_blocks_are_arrays(tiny_blocks: None) -> None:
    array = np.arange(24, dtype=np.int32).reshape(12, 2)
    rows = np.array([3, 11, 0, 3, 5, 6, 7])
    for made, expected in (
        (kept(array), array),
        (taken(array, rows), array[rows]),
        (taken(array, array[:, 0] > 6), array[array[:, 0] > 6]),
        (joined([array, array[:2]]), np.concatenate([array, array[:2]])),
        (block((0, 3), np.float32), np.zeros((0, 3))),
    ):
        assert type(made) is np.ndarray and made.flags.c_contiguous and made.flags.writeable
        np.testing.assert_array_equal(made, expected)


def test_no_room_for_a_block(tiny_blocks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(memory_mapping, "_reserve", full)
    with pytest.raises(InputError, match=r"no room for 400 bytes.*TMPDIR"):
        block(100, np.int32)


_LIMITED = """
import resource, sys
import numpy as np, pandas as pd
from privacy_assets.tables.memory_mapping import block
resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30))
parts = [block(1 << 27, np.int64) for _ in range(4)]  # 4 GiB of arrays in a process of 1 GiB
parts[0][:1000] = 7
assert parts[0][:1000].sum() == 7000
try:
    np.zeros(1 << 28)
except MemoryError:
    print("limited")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is one of Linux")
def test_blocks_leave_no_name_and_are_not_private_memory(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _LIMITED],
        env={**os.environ, "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (ran.stdout.strip(), ran.returncode) == ("limited", 0), ran.stderr
    assert not list(tmp_path.iterdir())
