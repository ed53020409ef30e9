"""Invalid files: each has its own error, with the line or row and a fix."""

from __future__ import annotations

import errno
import gzip
import os
import signal
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from privacy_assets.cli.main import main
from privacy_assets.errors import ConfigError, InputError
from privacy_assets.evaluation.reading import read_inputs
from privacy_assets.infra.objects import location
from privacy_assets.metrics.policies import load_policy
from privacy_assets.tables.files import CsvFormat
from privacy_assets.tables.given import load
from privacy_assets.tables.inference import infer_schema
from privacy_assets.tables.reading import read_table

SECRET = "Zebulon-77123"


def rejected(path: Path, message: str) -> InputError:
    """Read and open ``path``; return the one error, which has no cause or context and quotes no
    cell.
    """
    for read in (load, read_table):
        with pytest.raises(InputError, match=message) as caught:
            read(path)
        assert "Fix:" in str(caught.value) or "cannot be read" in message
        assert caught.value.__context__ is None
        assert SECRET not in "".join(traceback.format_exception(caught.value))
    return caught.value


@pytest.mark.parametrize(
    ("content", "row", "message"),
    [
        ("", None, "the file is empty"),
        ("a,b\n", None, "0 rows"),
        (f"a,b\n1,2\n\n{SECRET}\n", 1, "line 4 has 1 fields, and the header 2"),
        (f'a,b\n1,"x\ny"\n3,{SECRET},4\n', 1, "line 4 has 3 fields, and the header 2"),
        ("\ufeffa,b\n1\n", 0, "line 2 has 1 fields, and the header 2"),
        (
            f'a,b\n1,2\n"{SECRET},3\n4,5\n',
            None,
            "the quotes of the record that begins in line 3 do not match",
        ),
        (
            f"a,b\n1,x\n2,{SECRET} \xe9\n".encode("latin-1"),
            None,
            r"line 3 is not UTF-8 text \(byte 24 of the file\)",
        ),
        (
            f"a,caf\xe9\n1,{SECRET}\n".encode("latin-1"),
            None,
            r"line 1 is not UTF-8 text \(byte 5 of the file\)",
        ),
        (
            b"a,b\n" + b"1,x\n" * 400_000 + b"2,\xe9\n",
            None,
            r"line 400002 is not UTF-8 text \(byte 1600006 of",
        ),
        (f"a,b\n1,{SECRET}\n2,caf\u00e9".encode()[:-1], None, "line 3 is not UTF-8 text"),
        (f"a;b\n1;2\n3;{SECRET}\n", None, "its columns are separated by semicolons.*--sep ';'"),
        (
            f"a;b\n1,5;2\n3,5;{SECRET}\n",
            None,
            r"its columns are separated by semicolons.*read: \{sep: ;\}",
        ),
        (f"a\tb\n1\t2\n3\t{SECRET}\n", None, "its columns are separated by tabs"),
        (
            f"{SECRET},1,{SECRET}\nx,2,y\n",
            None,
            "line 1 gives columns 0 and 2 the same name.*if line 1 is a row",
        ),
    ],
)
def test_a_csv_file_is_wrong_in_a_line(
    tmp_path: Path, content: str | bytes, row: int | None, message: str
) -> None:
    path = tmp_path / "people.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert rejected(path, rf"people\.csv.*{message}").row == row


@pytest.mark.parametrize(
    "content",
    [
        f"39,State-gov,77516\n50,{SECRET},83311\n38,State-gov,215646\n",
        "2020-01-01,true\n2021-01-01,false\n",
        "0.5\n0.25\n",
        "NA,3,x\n1,2,x\n",
        "red,big\nred,small\ngreen,big\n",
    ],
)
def test_a_first_line_that_is_a_row_is_told(tmp_path: Path, content: str) -> None:
    (tmp_path / "people.csv").write_text(content)
    error = rejected(tmp_path / "people.csv", "line 1 looks like a row")
    assert not any(
        cell in error.problem for cell in content.split("\n")[0].split(",") if len(cell) > 1
    )


@pytest.mark.parametrize(
    "content",
    [
        "id,2019,2020\n7,1,2\n",
        "2019,2020,2021\n5,6,7\n",
        ",0,1,2\n0,5,6,7\n",
        "sex,plan\nmale,sex\n",
        "male\nmale\nmale\n",
        "when,2020-01-01\n2020-01-01,5\n",
        "a,b\n1,\n2,\n",
    ],
)
def test_headers_of_years_positions_and_words_are_headers(tmp_path: Path, content: str) -> None:
    (tmp_path / "people.csv").write_text(content)
    assert len(read_table(tmp_path / "people.csv")) == content.count("\n") - 1


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("line", ["sep=;", "SEP=;", '"sep=;"'])
@pytest.mark.parametrize("form", [CsvFormat(), CsvFormat(sep=";")])
def test_the_first_line_of_excel(
    tmp_path: Path, encoding: str, line: str, form: CsvFormat, capsys: Any
) -> None:
    path = tmp_path / "people.csv"
    path.write_text(f"{line}\na;b\n1;{SECRET}\n2;x\n", encoding=encoding)
    told = r"people\.csv: line 1 is an instruction to Excel.*Fix: remove line 1"
    with pytest.raises(InputError, match=told) as caught:
        read_table(path, form)
    assert ("--sep ';'" in str(caught.value)) == (form.sep == "")
    assert main(["inspect", str(path)]) == 2
    assert "line 1 is an instruction to Excel" in capsys.readouterr().err


@pytest.mark.parametrize("codec", ["snappy", "zstd", "gzip", "lz4", "brotli", "none"])
def test_a_parquet_file_that_is_cut_or_damaged(tmp_path: Path, codec: str, capsys: Any) -> None:
    path = tmp_path / "people.parquet"
    pd.DataFrame({"a": np.arange(5000.0), "b": [SECRET, "x"] * 2500}).to_parquet(
        path, compression=codec
    )
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    rejected(
        path,
        "cannot be read as parquet, because the file is cut off or damaged. Fix: copy or write"
        " the file",
    )
    assert main(["inspect", str(path)]) == 2
    assert "the file is cut off or damaged" in capsys.readouterr().err


DAMAGES: list[Callable[[bytes], bytes]] = [
    lambda whole: whole[:-9],
    lambda whole: whole[:40],
    lambda whole: whole[:-8] + bytes(8),
    lambda whole: whole[:30] + bytes(40) + whole[70:],
    lambda _: b"a,b\n1,2\n",
]


@pytest.mark.parametrize("suffix", [".csv.gz", ".tsv.gz"])
@pytest.mark.parametrize("change", DAMAGES)
def test_a_compressed_file_that_is_cut_or_damaged(
    tmp_path: Path, suffix: str, change: Callable[[bytes], bytes], capsys: Any
) -> None:
    path = tmp_path / f"people{suffix}"
    rows = "".join(f"{i},{i * i % 97}\n" for i in range(500))
    path.write_bytes(change(gzip.compress(f"a,b\n{rows}".encode(), mtime=0)))
    rejected(
        path,
        "cannot be read as csv, because the file is cut off or damaged. Fix: copy or write the"
        " file again",
    )
    assert main(["inspect", str(path)]) == 2
    assert "the file is cut off or damaged" in capsys.readouterr().err


def test_an_index_with_the_name_of_a_column(tmp_path: Path) -> None:
    for columns in ({"x": [1, 2]}, {"y": [1, 2], "x": [3, 4]}):
        frame = pd.DataFrame(columns)
        frame.index = pd.Index([5, 6], name="x")
        frame.to_parquet(tmp_path / "people.parquet")
        rejected(
            tmp_path / "people.parquet",
            r"column 'x': the index has the name of a column.*index=False",
        )


LACKING = [
    (
        pa.ArrowException("Unknown error: Failed to launch worker thread: Resource"),
        "ulimit -u, and pids of the",
    ),
    (
        pa.ArrowMemoryError("malloc of size 64 failed"),
        "out of memory.*give the process more memory",
    ),
    (MemoryError(), "out of memory.*give the process more memory"),
    (OSError(errno.EMFILE, "Too many open files"), "Too many open files.*ulimit -n"),
    (OSError(errno.ENOSPC, "No space left on device"), "No space left on device.*free space"),
    (
        OSError(errno.EAGAIN, "Resource temporarily unavailable"),
        "raise the limits of processes and memory",
    ),
]


@pytest.mark.parametrize(("error", "told"), LACKING)
@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_a_resource_that_the_process_lacks_is_named(
    error: Exception, told: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"people.{kind}"
    getattr(pd.DataFrame({"a": [1, 2], "b": ["x", "y"]}), f"to_{kind}")(path, index=False)

    def lacks(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(pa.parquet.ParquetFile, "read", lacks)
    monkeypatch.setattr(pa.csv, "read_csv", lacks)
    message = rf"people\.{kind}: cannot be read \(.*{told}"
    assert "repair" not in str(rejected(path, message))
    with pytest.raises(InputError, match=message):
        read_inputs(path, path, path)


def test_memory_that_columns_lack_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lacks(*_: object, **__: object) -> None:
        raise MemoryError

    pd.DataFrame({"a": [1, 2], "b": ["x", "y"]}).to_parquet(
        tmp_path / "people.parquet", index=False
    )
    stored = load(tmp_path / "people.parquet")
    monkeypatch.setattr(pa.parquet.ParquetFile, "read_row_group", lacks)
    with pytest.raises(InputError, match=r"people\.parquet: cannot be read \(out of memory\)"):
        stored["b"]
    monkeypatch.setattr(pa.parquet.ParquetFile, "read", lacks)
    with pytest.raises(InputError, match=r"people\.parquet: cannot be read \(out of memory\)"):
        stored["a"]


def test_a_parquet_file_and_a_suffix_that_are_none(tmp_path: Path) -> None:
    for name, content, message in (
        ("c.parquet", b"PAR1" + SECRET.encode(), r"c\.parquet: cannot be read as parquet"),
        ("c.parquet", b"", r"c\.parquet: the file is empty"),
        ("c.txt", SECRET.encode(), "unknown file type '.txt'"),
    ):
        (tmp_path / name).write_bytes(content)
        rejected(tmp_path / name, message)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_files_of_other_columns_are_no_table(tmp_path: Path, suffix: str) -> None:
    for name, columns in (("1", {"a": [1], "b": [2]}), ("2", {"a": [1]})):
        getattr(pd.DataFrame(columns), f"to_{suffix}")(tmp_path / f"{name}.{suffix}", index=False)
    rejected(tmp_path, rf"2\.{suffix}, column 'b': the columns differ from .*1\.{suffix}")


def numbers(stray: object, row: int) -> pd.DataFrame:
    ages: list[object] = [20 + place % 60 for place in range(200)]
    ages[row] = stray
    return pd.DataFrame(
        {"age": pd.Series(ages, dtype=object), "dose": [place / 7 for place in range(200)]}
    )


def test_a_text_among_numbers_is_told_by_its_row(tmp_path: Path) -> None:
    """Earlier versions accepted it as a column of categories."""
    numbers(SECRET, 17).to_csv(tmp_path / "people.csv", index=False)
    for frame in (read_table(tmp_path / "people.csv"), numbers(SECRET, 17)):
        with pytest.raises(
            InputError,
            match=r"people: .*'age' \(1 of 200 values are not numbers, the first in row 17",
        ):
            infer_schema(frame, where="people")
        assert infer_schema(frame, {"age": "categorical"})["age"].kind == "categorical"
    plain = numbers(30, 17).astype({"age": int})
    for tables in ((numbers(SECRET, 17), plain), (plain, numbers(SECRET, 17))):
        with pytest.raises(InputError, match="'age'.* row 17") as caught:
            read_inputs(*tables, plain)
        assert SECRET not in str(caught.value)


def test_codes_that_are_mostly_digits_are_codes() -> None:
    few = pd.DataFrame({"code": ["1", "2", "3"] * 60 + ["V1"]})
    many = pd.DataFrame(
        {"code": [str(place) for place in range(95)] + ["V10", "V11", "V12", "E1", "E2"]}
    )
    assert [infer_schema(frame)["code"].kind for frame in (few, many)] == [
        "categorical",
        "categorical",
    ]


@pytest.mark.parametrize("text", ["9999-12-31 23:59:59", "2262-01-01", "1600-01-01", "0001-01-01"])
def test_dates_that_stand_for_no_date_are_told_by_their_row(tmp_path: Path, text: str) -> None:
    stamp = "2020-05-01 10:00:00" if " " in text else "2020-05-01"
    (tmp_path / "people.csv").write_text(f"until,n\n{stamp},1\n{text},2\n")
    told = r"train.*column 'until', row 1: a date is outside of the years 1678 to 2261"
    with pytest.raises(InputError, match=told):
        read_inputs(*[tmp_path / "people.csv"] * 3)


@pytest.fixture
def soon() -> Iterator[None]:
    """Raise an error instead of waiting forever."""

    def late(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("soon")
def test_a_pipe_is_never_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "people.csv")
    for place in (tmp_path / "people.csv", tmp_path, tmp_path / "*.csv"):
        rejected(place, r"people\.csv: this is a pipe or device, not a file")
    os.mkfifo(tmp_path / "policy.yaml")
    with pytest.raises(ConfigError, match=r"policy\.yaml: this is a pipe or device, not a file"):
        load_policy(tmp_path / "policy.yaml")


def test_folders_and_globs_without_tables(tmp_path: Path) -> None:
    (tmp_path / "inner.csv").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    for name, message in {
        "inner.csv": "the folder contains no .parquet or .csv file",
        "*.parquet": "no file matches the pattern",
        "*.csv": "inner.csv: this is a folder, not a file",
        "absent.csv": "no such file",
    }.items():
        rejected(tmp_path / name, message)


@pytest.mark.parametrize(
    ("url", "hint"),
    [("s4://bucket/people.parquet", "'s4' is not a URL protocol.*Did you mean s3://"),
     ("htp://host/x.csv", "Did you mean http://"),
     ("s3n://bucket/x.csv", "Did you mean s3://"), ("zzzz://bucket/x.csv", "Known are s3://")],
)  # fmt: skip
def test_a_mistyped_scheme_is_told_at_once(url: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=hint):
        location(url)
