"""Folders and globs of a table, read by ``inspect``, ``evaluate`` and ``run``, or rejected."""

from __future__ import annotations

import errno
import gzip
import io
import os
import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from privacy_assets import evaluate
from privacy_assets.cli.main import main
from privacy_assets.errors import ConfigError, InputError, StoreError
from privacy_assets.gate.accepted_settings import entries_of
from privacy_assets.infra.objects import ObjectPath
from privacy_assets.pipeline.resolve import ResolvedTable
from privacy_assets.pipeline.row_sources import partition_path, source_table
from privacy_assets.pipeline.spec import TableSpec
from privacy_assets.tables import file_agreement
from privacy_assets.tables.declared import Declared
from privacy_assets.tables.file_agreement import TableFile, check_agreement
from privacy_assets.tables.files import CsvFormat, table_files
from privacy_assets.tables.given import load
from privacy_assets.tables.reading import read_table
from privacy_assets.tables.stored import StoredTable

Content = pd.DataFrame | bytes


def people(rows: int, first: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng([rows, first])
    times = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 9999, rows), unit="h")
    return pd.DataFrame(
        {
            "person": np.arange(first, first + rows),
            "weight": rng.normal(80, 9, rows).round(1),
            "seen": times,
        }
    )


A, B = people(60), people(60, 60)
A_B = pd.concat([A, B], ignore_index=True)
SHUFFLED = A.sample(frac=1, random_state=1)[["seen", "weight", "person"]]


def content_of(content: Content, name: str) -> bytes:
    if isinstance(content, bytes):
        return content
    stream = io.BytesIO()
    if name.endswith(".parquet"):
        content.to_parquet(stream, index=False)
        return stream.getvalue()
    text = content.to_csv(index=False, sep="\t" if ".tsv" in name else ",").encode()
    return gzip.compress(text) if name.endswith(".gz") else text


def write(folder: Path, files: Mapping[str, Content]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content_of(content, name))
    return folder


def put(bucket: str, files: Mapping[str, Content]) -> str:
    store = fsspec.filesystem("memory")
    for name, content in files.items():
        store.pipe_file(f"/{bucket}/{name}", content_of(content, name))
    return f"memory://{bucket}"


def run_of(folder: Path, **data: Any) -> list[str]:
    table = {
        "name": "people",
        "data": {"subject": "person", **data},
        "evaluation": {"embedder": False},
    }
    (folder / "people.yaml").write_text(yaml.safe_dump(table))
    return [
        "run",
        str(folder / "people.yaml"),
        "--home",
        str(folder / "home"),
        "--out",
        str(folder / "out"),
    ]


def rejected(place: str, told: str, work: Path, capsys: Any) -> None:
    """Reading, ``inspect``, ``evaluate`` and ``run`` reject a place with one message."""
    for read in (load, read_table):
        with pytest.raises(InputError, match=told) as caught:
            read(place)
        assert caught.value.__context__ is None and "Fix: " in str(caught.value)
    for tables in ((place, A, B), (A, B, place)):
        with pytest.raises(InputError, match=told):
            evaluate(*tables, metrics=["dcr"], embedder=False, progress=lambda line: None)
    message = str(caught.value)
    for command in (["inspect", place], run_of(work, source=place)):
        assert main(command) == 2
        assert message in capsys.readouterr().err


HIVE = {"sex=F/1.parquet": A, "sex=M/1.parquet": B}
SYSTEM_NAMES = (
    "_SUCCESS",
    "_metadata",
    "_common_metadata",
    "_committed_1",
    "_started_1",
    ".DS_Store",
    "Thumbs.db",
    "desktop.ini",
    "~$people.xlsx",
    "._part-0.parquet",
    ".part-0.parquet.crc",
    "_temporary/0/a.parquet",
)
LEFT_OUT: dict[str, Content] = dict.fromkeys(SYSTEM_NAMES, b"x")
ONLY_SYSTEM = "only files of the system"
SCORES = A.assign(score=np.arange(len(A)) / 7)
RESPELLED = SCORES.assign(word="X ", score=[f"{score:.16f}000" for score in SCORES["score"]])
FEW = pd.DataFrame({"sex": list("FM") * 30, "grade": [1, 2, 3] * 20})
REFUSED: dict[str, tuple[dict[str, Content], str, str]] = {
    "two formats": (
        {"a.parquet": A, "b.csv": B},
        "",
        r"b\.csv: it is a \.csv file, and .*a\.parquet.* is a \.parquet",
    ),
    "two formats in a glob": ({"a.parquet": A, "b.csv": B}, "/*", r"b\.csv: it is a \.csv file"),
    "commas and tabs": (
        {"a.csv": A, "b.tsv": B},
        "",
        r"b\.tsv: it is a \.tsv file, and .*a\.csv.* is a \.csv",
    ),
    "a copy": (
        {"a.parquet": A, "b.parquet": SHUFFLED},
        "",
        r"b\.parquet: it has the same rows as .*a\.parquet",
    ),
    "a copy in a glob": (
        {"a.parquet": A, "b.parquet": SHUFFLED},
        "/*.parquet",
        "it has the same rows as",
    ),
    "a compressed copy": (
        {"p.csv": A, "p.csv.gz": A},
        "",
        r"p\.csv\.gz: it has the same rows as .*p\.csv",
    ),
    "a copy of other types": (
        {"a.parquet": A, "b.parquet": A.astype({"person": float})},
        "",
        "it has the same rows",
    ),
    "a copy in another folder": (
        {"x=1/a.parquet": A, "x=2/a.parquet": A},
        "",
        "it has the same rows as",
    ),
    "a larger copy": (
        {"a.parquet": A_B, "b.parquet": B},
        "",
        r"60 of its 60 rows are in .*a\.parquet, too",
    ),
    "a snapshot": (
        {"1.csv": A, "2.csv": pd.concat([A[:31], B[:29]])},
        "",
        "31 of its 60 rows are in",
    ),
    "Delta": (
        {"a.parquet": A, "_delta_log/0.json": b"{}"},
        "",
        "this is a Delta table.*deltalake.DeltaTable",
    ),
    "Delta in a glob": (
        {"a.parquet": A, "_delta_log/0.json": b"{}"},
        "/*.parquet",
        "this is a Delta table",
    ),
    "Delta below": (
        {"t/a.parquet": A, "t/_delta_log/0.json": b"{}"},
        "/*/*.parquet",
        "/t: this is a Delta table",
    ),
    "a file of Delta": (
        {"a.parquet": A, "_delta_log/0.json": b"{}"},
        "/a.parquet",
        "this is a Delta table",
    ),
    "Delta in an inner folder": (
        {"t/y=1/a.parquet": A, "t/_delta_log/0.json": b"{}"},
        "/*/y=*/*.parquet",
        "/t: this is a Delta table",
    ),
    "Delta of folders": ({**HIVE, "_delta_log/0.json": b"{}"}, "/sex=F", "this is a Delta table"),
    "Iceberg": (
        {"data/a.parquet": A, "metadata/v1.metadata.json": b"{}"},
        "",
        "this is an Iceberg table",
    ),
    "data of Iceberg": (
        {"data/a.parquet": A, "metadata/v1.metadata.json": b"{}"},
        "/data",
        "this is an Iceberg",
    ),
    "Hudi": (
        {"2020/a.parquet": A, ".hoodie/hoodie.properties": b"x"},
        "",
        "this is a Hudi table.*spark.read",
    ),
    "a copy in single precision": (
        {"a.parquet": SCORES, "b.parquet": SCORES.astype({"score": "float32"})},
        "",
        r"b\.parquet: it has the same rows as .*a\.parquet",
    ),
    "a copy with another day of the export": (
        {"a.csv": A.assign(day="2024-01-01"), "b.csv": A.assign(day="2024-01-02")},
        "",
        r"b\.csv: it has the same rows as .*a\.csv",
    ),
    "a copy with blanks and other zeros": (
        {"a.csv": SCORES.assign(word="x"), "b.csv": RESPELLED},
        "",
        r"b\.csv: it has the same rows as .*a\.csv",
    ),
    "a copy of rows of few values": (
        {"a.csv": FEW, "b.csv": FEW},
        "",
        r"b\.csv: it has the same rows as .*a\.csv",
    ),
    "a range in brackets": ({"p0.csv": A, "p1.csv": B}, "/p[0-9].csv", "no such file"),
    "a month in brackets": ({"s1.csv": A, "s2.csv": B}, "/s[2024-01].csv", "no such file"),
    "a set in brackets": ({"a.csv": A, "b.csv": B}, "/[ab].csv", "no such file"),
    "another folder next to Hive folders": (
        {**HIVE, "backup/1.parquet": A},
        "",
        r"1\.parquet: it is not in folders sex=\.\.\., as .* is",
    ),
    "a Hive folder in another one": (
        {**HIVE, "backup/sex=F/1.parquet": A},
        "",
        r"1\.parquet: it is not in folders \.\.\./sex=\.\.\., as .* is",
    ),
    "a folder with the name of a column": (
        {"y=1/a.csv": A.assign(y="1"), "y=2/b.csv": B.assign(y="1")},
        "",
        r"b\.csv, column 'y': the file has another value than its folder",
    ),
    "a stray file": (
        {**HIVE, "new.parquet": A},
        "",
        r"new\.parquet: it is not in folders sex=\.\.\., as .* is",
    ),
    "a stray file in a glob": (
        {**HIVE, "new.parquet": A},
        "/**/*.parquet",
        "it is not in folders sex=",
    ),
    "a stray file below": (
        {"y=1/m=1/a.csv": A, "y=1/b.csv": B},
        "",
        r"b\.csv: it is not in folders y=\.\.\./m=\.\.\.",
    ),
    "brackets": ({"s1.parquet": A}, "/s[1].parquet", "no such file"),
    "a number in brackets": ({"s0.parquet": A, "s1.parquet": B}, "/s[10].parquet", "no such file"),
    "a word in brackets": ({"people c.csv": A}, "/people [copy].csv", "no such file"),
    "a folder in brackets": ({"data1/a.csv": A}, "/data[1]/*.csv", "no file matches"),
    ONLY_SYSTEM: (dict(LEFT_OUT), "", "the folder contains no"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("files", "path", "told"), REFUSED.values(), ids=REFUSED.keys())
def test_files_that_are_not_one_table(
    files: dict[str, Content], path: str, told: str, tmp_path: Path, capsys: Any
) -> None:
    rejected(f"{write(tmp_path / 'in', files)}{path}", f"(?s){told}", tmp_path, capsys)


@pytest.mark.parametrize(
    "case", [case for case in REFUSED if case not in ("a folder in brackets", ONLY_SYSTEM)]
)
def test_objects_that_are_not_one_table(case: str, tmp_path: Path) -> None:
    files, path, told = REFUSED[case]
    with pytest.raises(InputError, match=f"(?s){told}"):
        load(f"{put(f'{tmp_path.name}-{len(case)}', files)}{path}")


def read_both(place: str) -> pd.DataFrame:
    """The table of a place by each reader, sorted by person."""
    frame = read_table(place)
    stored = load(place)
    assert list(stored.columns) == list(frame.columns) and len(stored) == len(frame)
    return frame.astype({"person": int}).sort_values("person", ignore_index=True)


NON_LEAKING: dict[str, tuple[dict[str, Content], str]] = {
    "parts": ({"a.parquet": A, "b.pq.parquet": B, **LEFT_OUT}, ""),
    "parts of a glob": ({"a.parquet": A, "b.parquet": B, **LEFT_OUT}, "/*"),
    "compressed parts": ({"a.csv": A, "b.csv.gz": B}, ""),
    "all files below": ({"a.parquet": A, "x/b.parquet": B}, "/**"),
    "a folder in brackets": ({"in[1]/a.csv": A_B, "in1/a.csv": A}, "/in[1]/*.csv"),
    "an empty part": ({"a.parquet": A, "b.parquet": B, "c.parquet": A[:0], "d.parquet": A[:0]}, ""),
}


@pytest.mark.parametrize(("files", "path"), NON_LEAKING.values(), ids=NON_LEAKING.keys())
def test_honest_folders_and_globs(files: dict[str, Content], path: str, tmp_path: Path) -> None:
    for place in (str(write(tmp_path, files)), put(f"{tmp_path.name}", files)):
        found = read_both(f"{place}{path}")
        assert found["person"].tolist() == list(range(120))
        assert found["weight"].astype(float).tolist() == A_B["weight"].tolist()


@pytest.mark.parametrize("path", ["", "/*/*/*.parquet", "/**/*.parquet", "/town=*/m=*/*.parquet"])
def test_hive_folders_state_decoded_values(path: str, tmp_path: Path) -> None:
    files = {
        "town=A%2FB%20%C3%A9/m=1/0.parquet": A,
        "town=__HIVE_DEFAULT_PARTITION__/m=2/0.parquet": B,
        **LEFT_OUT,
    }
    files["town=A%2FB%20%C3%A9/m=1/._0.parquet"] = b"x"
    for place in (str(write(tmp_path, files)), put(tmp_path.name, files)):
        found = read_both(f"{place}{path}")
        assert found["town"].isna().sum() == 60 and set(found["town"].dropna()) == {"A/B é"}
        assert found.groupby("m")["person"].max().to_dict() == {"1": 59, "2": 119}
    one = read_both(f"{tmp_path}/town=A%2FB%20%C3%A9/*/*.parquet")  # above the first wildcard
    assert list(one.columns) == [*A.columns, "m"]


def test_a_hive_folder_that_is_no_text(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the name of a folder is not UTF-8 text"):
        read_table(write(tmp_path, {"town=%FF/0.parquet": A}))


def deny(monkeypatch: pytest.MonkeyPatch, folder: str, number: int) -> None:
    """The folder cannot be listed, on disk and in a store."""
    listed, names = os.listdir, ObjectPath.names

    def of_disk(place: Any) -> list[str]:
        if str(place).endswith(folder):
            raise OSError(number, "denied", str(place))
        return listed(place)

    def of_store(place: ObjectPath) -> list[str]:
        if place.url.endswith(folder):
            raise StoreError(number, "denied", str(place))
        return names(place)

    monkeypatch.setattr(os, "listdir", of_disk)
    monkeypatch.setattr(ObjectPath, "names", of_store)


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
@pytest.mark.parametrize("path", ["/t", "/t/*.csv", "/t/a.csv", "/*/*.csv"])
@pytest.mark.parametrize("name", ["_delta_log", "metadata", ".hoodie"])
def test_a_folder_of_unknown_kind_is_not_read(
    name: str, path: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files: dict[str, Content] = {"t/a.csv": A, "t/b.csv": B, f"t/{name}/v1.metadata.json": b"{}"}
    places = [str(write(tmp_path, files)), put(tmp_path.name, files)]
    deny(monkeypatch, f"/t/{name}", number)
    for place in places:
        told = f"/t/{name}: the folder cannot be listed .denied., so the table may be a Delta"
        with pytest.raises(InputError, match=told) as caught:
            table_files(f"{place}{path}")
        assert caught.value.transient is (number == errno.EIO)


def test_a_folder_above_that_a_store_does_not_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Permission may be for a part of a bucket."""
    place = put(tmp_path.name, {"people/a.csv": A, "people/b.csv": B})
    for name in ("_delta_log", "metadata", ".hoodie"):
        deny(monkeypatch, f"{place}/{name}", errno.EACCES)
    assert len(table_files(f"{place}/people")) == 2
    assert len(table_files(f"{place}/people/a.csv")) == 1


def test_data_next_to_metadata_that_cannot_be_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files: dict[str, Content] = {"t/data/a.csv": A, "t/metadata/v1.metadata.json": b"{}"}
    place = write(tmp_path, files)
    deny(monkeypatch, "/t/metadata", errno.EACCES)
    with pytest.raises(InputError, match="/t/metadata: the folder cannot be listed"):
        table_files(place / "t" / "data")


def test_an_empty_folder_of_delta_and_another_folder_of_metadata(tmp_path: Path) -> None:
    write(tmp_path, {"a.csv": A, "metadata/readme.txt": b"x", "t/a.csv": A})
    (tmp_path / "t" / "_delta_log").mkdir()
    assert len(table_files(tmp_path)) == 1
    with pytest.raises(InputError, match="this is a Delta table"):
        table_files(tmp_path / "t")


def test_links_to_files_of_a_delta_table(tmp_path: Path) -> None:
    write(tmp_path, {"t/a.csv": A, "t/_delta_log/0.json": b"{}"})
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").symlink_to(tmp_path / "t" / "a.csv")
    for path in ("in", "in/a.csv", "in/*.csv"):
        with pytest.raises(InputError, match="/t: this is a Delta table"):
            table_files(tmp_path / path)


def test_a_store_is_asked_once_about_each_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other: dict[str, Content] = {"old/archive/x.csv": A}
    place = put(tmp_path.name, {f"y={year}/p.csv": people(30, 30 * year) for year in range(9)})
    put(tmp_path.name, other)
    asked: list[str] = []
    names = ObjectPath.names
    monkeypatch.setattr(
        ObjectPath, "names", lambda folder: asked.append(folder.url) or names(folder)
    )
    monkeypatch.delattr(ObjectPath, "below")
    assert len(table_files(f"{place}/y=*/p.csv")) == 9
    assert len(asked) == len(set(asked))
    assert not any("old" in url for url in asked)


def test_a_column_may_repeat_the_value_of_its_folder(tmp_path: Path) -> None:
    files: dict[str, Content] = {"y=1/a.csv": A.assign(y="1"), "y=2/b.csv": B.assign(y="2")}
    assert load(str(write(tmp_path, files)))["y"].tolist() == ["1"] * len(A) + ["2"] * len(B)


def test_two_indexes_of_one_name_are_named(tmp_path: Path) -> None:
    index = pd.MultiIndex.from_arrays([range(len(A)), range(len(A))], names=["u", "u"])
    A.set_index(index).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(InputError, match="column 'u': two indexes have one name"):
        load(str(tmp_path / "a.parquet"))


def test_a_single_file_has_no_column_of_its_folder(tmp_path: Path) -> None:
    files: dict[str, Content] = {"dt=2024-01-01/p.csv": A, "dt=2024-01-01/p[ab].parquet": A}
    for place in (str(write(tmp_path, files)), put(tmp_path.name, files)):
        for path in files:
            assert list(load(f"{place}/{path}").columns) == list(A.columns)
        assert "dt" in load(f"{place}/dt=*/p.csv").columns
        path = partition_path(f"{place}/dt={{partition}}/p[[]ab].parquet", "2024-01-01")
        assert isinstance(load(path), StoredTable)


def test_small_files_are_equal_by_chance(tmp_path: Path) -> None:
    small = A[["weight"]].head(19)
    for first, second in (("day=1/0.parquet", "day=2/0.parquet"), ("0.csv", "1.csv")):
        place = write(tmp_path / second[:1], {first: small, second: small})
        assert len(read_table(place)) == 38


def test_rows_of_few_values_are_equal_by_chance(tmp_path: Path) -> None:
    assert len(load(write(tmp_path, {"a.parquet": FEW, "b.parquet": FEW[:-1]}))) == 119
    hive = write(tmp_path / "hive", {"day=1/0.parquet": FEW, "day=2/0.parquet": FEW})
    assert len(load(hive)) == 120
    with pytest.raises(InputError, match="it has the same rows"):
        load(hive, form=CsvFormat(drop=("day",)))


NESTED = {
    "map": pa.array([[(1, "Anna Secret")]] * 60, pa.map_(pa.int64(), pa.string())),
    "struct": pa.array([{"a": 1}] * 60),
    "list": pa.array([["Anna Secret"]] * 60),
}


@pytest.mark.parametrize("kind", NESTED)
@pytest.mark.parametrize("names", [("0", "1"), ("k=1/0", "k=2/1"), ("k=1/0",)])
def test_a_nested_column_can_be_dropped(kind: str, names: tuple[str, ...], tmp_path: Path) -> None:
    files: dict[str, Content] = {}
    for number, name in enumerate(names):
        rows = pa.Table.from_pandas(people(60, 60 * number), preserve_index=False)
        stream = io.BytesIO()
        pq.write_table(rows.add_column(0, "info", NESTED[kind]), stream)
        files[f"{name}.parquet"] = stream.getvalue()
    place = write(tmp_path, files)
    for form in (CsvFormat(), CsvFormat(drop=("info",))):
        for read in (load, read_table):
            assert len(read(place, form=form)) == 60 * len(names)


def test_the_settings_of_a_table_drop_a_nested_column(tmp_path: Path) -> None:
    files: dict[str, Content] = {}
    for number in range(2):
        nested = people(60, 60 * number).assign(info=[{"a": number}] * 60)
        files[f"{number}.parquet"] = nested
    place = str(write(tmp_path, files))
    data = {"source": place, "subject": "person", "drop": ["info"]}
    resolved = ResolvedTable.of(TableSpec(name="people", data=data))
    table = source_table(resolved, None, None, None)
    assert table.schema.names == ["weight", "seen"] and len(table) == 120


def test_a_copy_next_to_a_nested_column(tmp_path: Path) -> None:
    rows = pa.Table.from_pandas(A, preserve_index=False).add_column(0, "info", NESTED["struct"])
    stream = io.BytesIO()
    pq.write_table(rows, stream)
    place = write(tmp_path, {"a.parquet": stream.getvalue(), "b.parquet": stream.getvalue()})
    for read in (load, read_table):
        with pytest.raises(InputError, match="it has the same rows"):
            read(place)


@pytest.mark.parametrize("names", [("a.parquet", "b.parquet"), ("k=1/a.csv", "k=2/b.csv")])
def test_dropped_columns_are_not_compared(names: tuple[str, str], tmp_path: Path) -> None:
    first, second = names
    numbered = [A.assign(number=range(start, start + 60)) for start in (0, 500)]
    copies = str(write(tmp_path / "in", dict(zip(names, numbered, strict=True))))
    typed: dict[str, Content] = {first: A.assign(number=1), second: B.assign(number="x")}
    types = str(write(tmp_path / "types", typed))
    holdout, made = people(60, 1000), people(60, 2000)
    more: dict[str, Any] = {"embedder": False, "metrics": ["dcr"]}
    for read in (load, read_table):
        with pytest.raises(InputError, match="it has the same rows"):
            read(copies, form=CsvFormat(drop=("number", "person")))
        assert len(read(types, form=CsvFormat(drop=("number",)))) == 120
    with pytest.raises(InputError, match="it has the same rows"):
        evaluate(copies, holdout, made, drop=["number", "person"], **more)


def test_the_subject_is_compared_also_if_it_is_dropped() -> None:
    dropped = Declared(drop=["person", "number"], subject="person").csv_format.drop
    assert dropped == ("number",)


@pytest.mark.slow
@pytest.mark.parametrize("n_values", [2, 10**6], ids=["few values", "many values"])
def test_many_files_are_compared_in_linear_time(n_values: int) -> None:
    """Comparing each pair of 2,000 files took 40 s and 200 MB."""
    rng = np.random.default_rng(0)
    cells = pd.DataFrame({"x": rng.integers(0, n_values, 60_000), "y": rng.integers(0, 9, 60_000)})
    files = []
    for start in range(0, 60_000, 30):
        part = cells[start : start + 30]
        files.append(TableFile(str(start), {}, 30, {}, part.__getitem__))
    tracemalloc.start()
    check_agreement(files, ["x", "y"])
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 20e6


def test_the_escaped_name_of_a_partition_is_a_name(tmp_path: Path) -> None:
    write(tmp_path, {"a*b.csv": A, "d[1].csv": B, "axb.csv": B})
    assert table_files(f"{tmp_path}/a[*]b.csv") == [tmp_path / "a*b.csv"]
    assert table_files(f"{tmp_path}/d[[]1].csv") == [tmp_path / "d[1].csv"]


def arrow(kind: Any, *values: Any) -> bytes:
    stream = io.BytesIO()
    pq.write_table(pa.table({"x": pa.array(values, kind), "y": pa.array(map(str, values))}), stream)
    return stream.getvalue()


LARGE = 2**60 + 1
TYPES: dict[str, tuple[bytes, bytes, str]] = {
    "zones": (
        arrow(pa.timestamp("us"), 1, 2),
        arrow(pa.timestamp("us", "UTC"), 3, 4),
        "time with a time zone here",
    ),
    "text and numbers": (
        arrow(pa.string(), "1", "2"),
        arrow(pa.int64(), 3, 4),
        "number here and text in",
    ),
    "booleans and numbers": (
        arrow(pa.bool_(), True, False),
        arrow(pa.int64(), 3, 4),
        "number here and boolean in",
    ),
    "text and times": (
        arrow(pa.string(), "1", "2"),
        arrow(pa.date32(), 3, 4),
        "time without a time zone here",
    ),
    "large integers": (
        arrow(pa.int64(), LARGE, 2),
        arrow(pa.float64(), 3, 4),
        r"integers over 2\^53",
    ),
    "unsigned integers": (
        arrow(pa.int64(), LARGE, 2),
        arrow(pa.uint64(), 3, 4),
        r"integers over 2\^53",
    ),
    "codes and text": (
        arrow(pa.dictionary(pa.int8(), pa.int64()), 1, 2),
        arrow(pa.string(), "a", "b"),
        "text here",
    ),
}


@pytest.mark.parametrize(("first", "second", "told"), TYPES.values(), ids=TYPES.keys())
def test_files_of_other_types_are_named(
    first: bytes, second: bytes, told: str, tmp_path: Path, capsys: Any
) -> None:
    place = str(write(tmp_path / "in", {"1.parquet": first, "2.parquet": second}))
    rejected(place, rf"\d\.parquet, column 'x'.*{told}", tmp_path, capsys)
    hive = write(tmp_path / "hive", {"k=1/1.parquet": first, "k=2/2.parquet": second})
    with pytest.raises(InputError, match=told):
        load(hive)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (arrow(pa.int32(), 1, 2), arrow(pa.float64(), 0.5, None)),
        (arrow(pa.int64(), LARGE, 2), arrow(pa.int16(), 3, 4)),
        (arrow(pa.decimal128(5, 1), 1, 2), arrow(pa.float64(), 0.5, 3)),
        (arrow(pa.string(), "a", "b"), arrow(pa.float64(), None, None)),
        (arrow(pa.string(), "a", "b"), arrow(pa.null(), None, None)),
        (arrow(pa.timestamp("ms"), 1, 2), arrow(pa.timestamp("ns"), 3, 4)),
        (arrow(pa.date32(), 1, 2), arrow(pa.timestamp("us"), 3, 4)),
        (arrow(pa.timestamp("us", "UTC"), 1, 2), arrow(pa.timestamp("us", "Asia/Tokyo"), 3, 4)),
        (
            arrow(pa.dictionary(pa.int8(), pa.string()), "a", "b"),
            arrow(pa.large_string(), "c", "d"),
        ),
    ],
)
def test_files_of_fitting_types(first: bytes, second: bytes, tmp_path: Path) -> None:
    write(tmp_path, {"1.parquet": first, "2.parquet": second})
    for read in (load, read_table):
        assert len(read(tmp_path)["x"]) == 4


def test_a_date_that_the_finest_unit_lacks(tmp_path: Path) -> None:
    files = {
        "1.parquet": arrow(pa.timestamp("ms"), -11 * 10**12),
        "2.parquet": arrow(pa.timestamp("ns"), 1),
    }
    place = write(tmp_path / "in", files)
    for read in (lambda: load(place)["x"], lambda: read_table(place)):
        with pytest.raises(InputError, match="times of several units") as caught:
            read()
        assert "1621" not in str(caught.value) and caught.value.__context__ is None


@pytest.mark.slow
def test_snapshots_are_declared(tmp_path: Path, capsys: Any) -> None:
    """They need a subject, because each row would be another person."""
    months = {f"{month}.parquet": people(600) for month in (1, 2)}
    place = str(write(tmp_path / "in", months))
    assert len(read_table(place, CsvFormat(snapshots=True))) == 1200
    assert main(["inspect", place, "--snapshots", "--yaml"]) in (0, 1)
    assert "  snapshots: true" in capsys.readouterr().out.splitlines()
    with pytest.raises(ConfigError, match="snapshots need the column that identifies people"):
        evaluate(place, B, A, snapshots=True)
    with pytest.raises(ConfigError, match="columns: snapshots: Input should be a valid boolean"):
        evaluate(place, B, A, subject="person", snapshots="yes")
    more: dict[str, Any] = {"subject": "person", "metrics": ["dcr"], "embedder": False}
    holdout = people(500, 1000)
    fresh = people(500, 5000).drop(columns="person")
    declared = evaluate(place, holdout, fresh, snapshots=True, **more)
    plain = evaluate(read_table(place, CsvFormat(snapshots=True)), holdout, fresh, **more)
    assert [e.value for e in declared.results["dcr"].estimates] == [
        e.value for e in plain.results["dcr"].estimates
    ]


def test_snapshots_are_an_accepted_setting(tmp_path: Path) -> None:
    place = str(write(tmp_path / "in", {f"{month}.parquet": people(600) for month in (1, 2)}))
    for snapshots in (False, True):
        data = {"source": place, "subject": "person", "snapshots": snapshots}
        resolved = ResolvedTable.of(TableSpec(name="people", data=data))
        entries = entries_of(resolved.policy, resolved.setup(str))
        assert entries.get("snapshots", False) is snapshots
    assert len(source_table(resolved, None, None, None)) == 1200
    with pytest.raises(
        ConfigError, match="table people, data: snapshots need the column that identifies people"
    ):
        ResolvedTable.of(TableSpec(name="people", data={**data, "subject": {"each_row": True}}))


def test_a_column_of_ids_decides_without_reading_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a folder of many files stays fast."""
    read: list[str] = []
    hashed: Callable[[pd.Series], np.ndarray] = file_agreement._hashed
    monkeypatch.setattr(
        file_agreement, "_hashed", lambda column: read.append(column.name) or hashed(column)
    )
    place = write(tmp_path, {f"{i}.parquet": people(50, 50 * i) for i in range(20)})
    assert len(load(place)) == 1000
    assert set(read) == {"person"}
