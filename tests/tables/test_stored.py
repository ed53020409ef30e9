"""Tables in files, read whole or by column and mapped into memory: their statistics equal those of
frames.
"""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
from collections.abc import Callable
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
from privacy_assets.evaluation.reading import read_inputs
from privacy_assets.tables import arrays
from privacy_assets.tables.arrays import mapped, mapped_concatenate, mapped_empty, mapped_take
from privacy_assets.tables.declared import Declared
from privacy_assets.tables.files import table_files
from privacy_assets.tables.given import load
from privacy_assets.tables.inference import infer_schema
from privacy_assets.tables.reading import read_table
from privacy_assets.tables.stored import StoredTable
from privacy_assets.tables.table import Table, joint
from privacy_assets.tables.text import MARKERS
from privacy_assets.tables.writing import parquet_bytes


def table(rows: int, seed: int, *, person: bool = True) -> pd.DataFrame:
    """Every dtype that a Parquet file brings, with missing values."""
    rng = np.random.default_rng([seed, 7])
    words = np.array(
        ["plain", "über", "007", "", "NA", *(f"w{i}" for i in range(seed % 5 + 3))], dtype=object
    )
    frame = pd.DataFrame(
        {
            "age": rng.integers(18, 90, rows),
            "small": rng.integers(0, 100, rows).astype("uint8"),
            "short": rng.normal(size=rows).round(1).astype("float32"),
            "gaps": np.where(rng.random(rows) < 0.2, np.nan, rng.integers(0, 9, rows)),
            "nullable": pd.array(rng.integers(0, 9, rows), dtype="Int64"),
            "word": rng.choice(words, rows),
            "category": pd.Categorical(
                rng.choice(list("cab"), rows), categories=["c", "a", "b", "never"]
            ),
            "coded": pd.Categorical(rng.choice([3, 1, 2], rows)),
            "flag": rng.random(rows) < 0.5,
            "maybe": pd.array(rng.random(rows) < 0.5, dtype="boolean"),
            "day": [
                dt.date(2020, 1, 1) + dt.timedelta(int(days)) for days in rng.integers(0, 99, rows)
            ],
            "zoned": pd.Timestamp("2020-01-01", tz="UTC")
            + pd.to_timedelta(rng.integers(0, 99, rows), unit="h"),
        }
    )
    for name in ("nullable", "word", "category", "maybe", "zoned"):
        frame.loc[rng.random(rows) < 0.1, name] = None
    if person:
        frame["person"] = 10_000 * seed + np.arange(rows) // 2
    return frame


def tables() -> dict[str, pd.DataFrame]:
    sizes = {"train": 160, "holdout": 90, "reference": 80}
    found = {role: table(rows, at) for at, (role, rows) in enumerate(sizes.items())}
    fresh = table(150, 3, person=False)
    found["synthetic"] = pd.concat(
        [fresh, found["train"].drop(columns="person")[:20]], ignore_index=True
    )
    return found


def write(frame: pd.DataFrame, folder: Path) -> str:
    """Write two files of row groups of 7 rows each, one of them with dictionary-encoded strings."""
    folder.mkdir()
    half = len(frame) // 2
    frame[:half].to_parquet(folder / "a.parquet", row_group_size=7, index=False)
    whole = pa.Table.from_pandas(frame[half:], preserve_index=False)
    pa.parquet.write_table(whole, folder / "b.parquet", row_group_size=7, use_dictionary=False)
    return str(folder)


@pytest.fixture
def in_tiny_blocks(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From now on, map every array, and copy a few rows at a time."""

    def begin() -> None:
        monkeypatch.setattr(arrays, "LARGE", 1)
        monkeypatch.setattr(arrays, "_ROWS", 5)

    return begin


def plain(inputs: Any) -> list[Any]:
    parts = [inputs.schema, inputs.fingerprints, inputs.derived.encoder]
    for role in inputs.tables:
        encoded = inputs.encoded(role)
        parts += [
            array.tolist() for array in (inputs.row_ids[role], encoded.numeric, encoded.codes)
        ]
        parts.append(inputs.tables[role].to_published_frame().astype(str).to_dict())
    return [*parts, {role: codes.tolist() for role, codes in inputs.release.subjects.items()}]


@pytest.mark.slow
def test_files_in_row_groups_give_the_inputs_of_frames(
    tmp_path: Path, in_tiny_blocks: Callable[[], None]
) -> None:
    paths = {role: write(frame, tmp_path / role) for role, frame in tables().items()}
    direct = {role: read_table(path) for role, path in paths.items()}
    expected = plain(read_inputs(declared=Declared(subject="person"), **direct))
    in_tiny_blocks()
    assert plain(read_inputs(declared=Declared(subject="person"), **paths)) == expected
    assert (
        plain(
            read_inputs(
                declared=Declared(subject="person"), **{**paths, "holdout": direct["holdout"]}
            )
        )
        == expected
    )


@pytest.mark.slow
def test_searches_and_predicates_in_blocks_give_the_same_statistics(
    tmp_path: Path, in_tiny_blocks: Callable[[], None]
) -> None:
    paths = {role: write(frame, tmp_path / role) for role, frame in tables().items()}
    asked: dict[str, Any] = {
        "metrics": ["dcr", "singling_out"],
        "subject": "person",
        "embedder": False,
    }
    words = sorted(set().union(*(frame["word"].dropna() for frame in tables().values())) - {""})
    asked["allowed_values"] = {"word": words}
    memory = evaluate(**{role: read_table(path) for role, path in paths.items()}, **asked).results
    in_tiny_blocks()
    for name, result in evaluate(**paths, **asked).results.items():
        assert result.to_json() | {"seconds": 0} == memory[name].to_json() | {"seconds": 0}


def in_row_groups(folder: Path) -> str:
    return write(table(100, 1), folder / "t")


def of_an_index(*names: str) -> Callable[[Path], str]:
    def made(folder: Path) -> str:
        frame = table(20, 1)
        frame = frame.set_index(list(names)) if names else frame.rename_axis("place")
        frame.to_parquet(folder / "t.parquet")
        return str(folder / "t.parquet")

    return made


def of_other_types(folder: Path) -> str:
    pd.DataFrame({"x": ["a", "b"], "y": [1, 2]}).to_parquet(folder / "a.parquet")
    pd.DataFrame({"x": [None, None], "y": [1.5, None]}).to_parquet(folder / "b.parquet")
    return str(folder)


def in_a_store(folder: Path) -> str:
    for name, seed in (("a", 1), ("b", 2)):
        fsspec.filesystem("memory").pipe_file(
            f"/{folder.name}/{name}.parquet", bytes(parquet_bytes(table(30, seed)))
        )
    return f"memory://{folder.name}/*.parquet"


@pytest.mark.parametrize(
    ("made", "texts"),
    [
        (in_row_groups, {"word"}),
        (of_an_index("word"), set()),
        (of_an_index("age", "word"), set()),
        (of_an_index(), {"word"}),
        (of_other_types, set()),
        (in_a_store, {"word"}),
    ],
)
def test_a_stored_table_is_the_frame_of_its_files(
    made: Callable[[Path], str], texts: set[str], tmp_path: Path
) -> None:
    path = made(tmp_path)
    stored, frame = load(path), read_table(path)
    if made is in_a_store:  # objects are fetched once
        fsspec.filesystem("memory").rm(f"/{tmp_path.name}", recursive=True)
    assert isinstance(stored, StoredTable) and len(stored) == len(frame)
    assert list(stored.columns) == list(frame.columns) and set(stored.texts) == texts
    assert infer_schema(stored) == infer_schema(frame)
    for name in frame:
        found, expected = (
            one[name].astype(object if name in texts else one[name].dtype)
            for one in (stored, frame)
        )
        pd.testing.assert_series_equal(found, expected)
    assert "x" not in stored.drop(columns=list(frame.columns[:1])).columns and list(
        stored.columns
    ) == list(frame)
    with pytest.raises(KeyError):
        stored["nobody"]


def test_a_file_that_breaks_after_it_was_opened(tmp_path: Path) -> None:
    table(50, 1)[["word", "age"]].to_parquet(tmp_path / "t.parquet")
    stored = load(tmp_path / "t.parquet")
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    for name in ("word", "age"):
        with pytest.raises(InputError, match="cannot be read as parquet"):
            stored[name]


def sample() -> pd.DataFrame:
    days = pd.to_datetime(["2020-01-01", "2021-05-06", None])
    return pd.DataFrame(
        {
            "n": [1, 2, 3],
            "f": [0.5, None, 1e-3],
            "b": [True, False, True],
            "d": days,
            "k": [1, None, 3],
        }
    ).assign(c=["x", None, 'a, "b"\n2'])


def test_csv_and_parquet_hold_the_same_table(tmp_path: Path) -> None:
    sample().to_csv(tmp_path / "t.csv", index=False)
    # its index is not a column
    sample().sample(3, random_state=1).sort_values("n").to_parquet(tmp_path / "t.parquet")
    for name in ("t.csv", "t.parquet"):
        found = Table.read(tmp_path / name)
        assert found.fingerprint == Table.read(sample()).fingerprint
        assert [c.kind for c in found.schema.columns] == [
            c.kind for c in infer_schema(sample()).columns
        ]
        assert found.schema["d"].dtype.startswith("datetime64"), (
            "dates must stay dates when they are published"
        )


def test_globs_and_folders_are_read_in_order(tmp_path: Path) -> None:
    sample().iloc[1:].to_csv(tmp_path / "2.csv", index=False)
    sample().iloc[:1].to_csv(tmp_path / "1.csv", index=False)
    assert [file.name for file in table_files(tmp_path)] == ["1.csv", "2.csv"]
    for path in (tmp_path, tmp_path / "*"):
        assert Table.read(path)["n"].objects() == [1, 2, 3]
    (tmp_path / "[3].csv").write_text("n\n1\n")
    assert table_files(tmp_path / "[3].csv") == [tmp_path / "[3].csv"]


@pytest.mark.parametrize("word", MARKERS)
def test_markers_are_missing_among_numbers_and_dates_and_categories_elsewhere(
    tmp_path: Path, word: str
) -> None:
    (tmp_path / "t.csv").write_text(f"n,d,c\n1,2020-01-01,a\n{word},{word},{word}\n")
    pd.DataFrame({"n": ["1", word], "d": ["2020-01-01", word], "c": ["a", word]}).to_parquet(
        tmp_path / "t.parquet"
    )
    for name in ("t.csv", "t.parquet"):
        table = Table.read(tmp_path / name)
        assert [c.kind for c in table.schema.columns] == ["integer", "datetime", "categorical"]
        assert [table[c].objects()[1] for c in "ndc"] == [None, None, word or None]


def test_large_columns_are_mapped_and_all_operations_keep_them_so(
    in_tiny_blocks: Callable[[], None],
) -> None:
    """Arrays that are read, joined or taken are in files, so the system can page them out."""
    in_tiny_blocks()
    frame = table(60, 1, person=False)
    read = Table.read(frame)
    other = Table.of(frame.assign(word="another"), read.schema, where="other")
    both = joint({"a": read, "b": other}).values()
    for one in (read, Table.stack([read, other]), read.take(np.arange(0, 60, 2)), *both):
        for column in one.columns.values():
            assert is_mapped(column.cells), column.name


def is_mapped(cells: np.ndarray) -> bool:
    base: Any = cells
    while base is not None and not isinstance(base, np.memmap):
        base = base.base if isinstance(base, np.ndarray) else None
    return base is not None


def test_blocks_are_arrays(
    in_tiny_blocks: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_tiny_blocks()
    array = np.arange(24, dtype=np.int32).reshape(12, 2)
    rows = np.array([3, 11, 0, 3, 5, 6, 7])
    for made, expected in (
        (mapped(array), array),
        (mapped_take(array, rows), array[rows]),
        (mapped_take(array, array[:, 0] > 6), array[array[:, 0] > 6]),
        (mapped_concatenate([array, array[:2]]), np.concatenate([array, array[:2]])),
        (mapped_empty((0, 3), np.float32), np.zeros((0, 3))),
    ):
        assert type(made) is np.ndarray and made.flags.c_contiguous and made.flags.writeable
        np.testing.assert_array_equal(made, expected)

    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(arrays, "_reserve", full)
    with pytest.raises(InputError, match=r"no room for 400 bytes.*TMPDIR"):
        mapped_empty(100, np.int32)


_LIMITED = """
import resource
import numpy as np
from privacy_assets.tables.arrays import mapped_empty
resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30))
parts = [mapped_empty(1 << 27, np.int64) for _ in range(4)]  # 4 GiB of arrays in a process of 1 GiB
parts[0][:1000] = 7
assert parts[0][:1000].sum() == 7000
try:
    np.zeros(1 << 28)
except MemoryError:
    print("limited")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is one of Linux")
def test_blocks_leave_no_name_and_are_not_private_memory(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", _LIMITED]
    ran = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert (ran.stdout.strip(), ran.returncode) == ("limited", 0), ran.stderr
    assert not list(tmp_path.iterdir())
