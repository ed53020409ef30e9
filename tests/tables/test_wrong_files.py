"""Files that are not what they should be: each has an error of its own, with line or row and the way out."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from privacy_assets.errors import ConfigError, InputError
from privacy_assets.evaluation import prepare_inputs
from privacy_assets.generators import build_generator
from privacy_assets.policy import Policy
from privacy_assets.storage.objects import location
from privacy_assets.tables.reading import read_table
from privacy_assets.tables.schema import infer_schema
from privacy_assets.tables.stored import open_table

SECRET = "Zebulon-77123"


def refused(tmp_path: Path, content: str | bytes, message: str) -> InputError:
    path = tmp_path / "people.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=message) as caught:
        read_table(path)
    assert str(caught.value).startswith(str(path)) and "Fix:" in str(caught.value)
    assert caught.value.__context__ is None
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    return caught.value


@pytest.mark.parametrize(
    ("content", "row", "message"),
    [
        (f"a,b\n1,2\n\n{SECRET}\n", 1, "line 4 has 1 fields, and the header 2"),
        (f"a,b\n1,2\n3,{SECRET},4\n", 1, "line 3 has 3 fields, and the header 2"),
        (f'a,b\n1,"x\ny"\n3,{SECRET},4\n', 1, "line 4 has 3 fields"),
        ("\ufeffa,b\n1\n", 0, "line 2 has 1 fields, and the header 2"),
    ],
)
def test_ragged_rows_are_named_by_line_and_row(tmp_path: Path, content: str, row: int, message: str) -> None:
    assert refused(tmp_path, content, message).row == row


def test_a_quote_that_is_not_closed(tmp_path: Path) -> None:
    refused(tmp_path, f'a,b\n1,2\n"{SECRET},3\n4,5\n', "the quotes of the record that begins in line 3 do not match")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (f"a,b\n1,x\n2,{SECRET} caf\xe9\n".encode("latin-1"), r"line 3 is not UTF-8 text \(byte 27 of the file\)"),
        (f"a,caf\xe9\n1,{SECRET}\n".encode("latin-1"), r"line 1 is not UTF-8 text \(byte 5 of the file\)"),
        (("a,b\n" + "1,x\n" * 400_000).encode() + b"2,\xe9\n", r"line 400002 is not UTF-8 text \(byte 1600006 of"),
        (f"a,b\n1,{SECRET}\n".encode("utf-16"), "UTF-16 text, not UTF-8"),
        (f"a,b\n1,{SECRET}\n2,caf\u00e9".encode()[:-1], r"line 3 is not UTF-8 text"),
    ],
    ids=["cell", "name", "late", "utf16", "cut"],
)
def test_text_that_is_no_utf8_is_named_by_line_and_byte(tmp_path: Path, content: bytes, message: str) -> None:
    refused(tmp_path, content, message)


HEADLESS = [
    f"39,State-gov,77516\n50,{SECRET},83311\n38,State-gov,215646\n",
    "2020-01-01,true\n2021-01-01,false\n",
    "0.5\n0.25\n",
    "NA,3,x\n1,2,x\n",
    "a,x,7\nb,x,8\na,y,9\n",
    "red,big\nred,small\ngreen,big\n",
]


@pytest.mark.parametrize("content", HEADLESS)
def test_a_first_line_that_is_a_row_is_told(tmp_path: Path, content: str) -> None:
    error = refused(tmp_path, content, "line 1 looks like a row")
    assert not any(cell in error.problem for cell in content.split("\n")[0].split(",") if len(cell) > 1)


def test_a_first_line_that_repeats_a_cell_is_told_without_it(tmp_path: Path) -> None:
    assert "if line 1 is a row" in str(
        refused(tmp_path, f"{SECRET},1,{SECRET}\nx,2,y\n", "names columns 0 and 2 alike")
    )


@pytest.mark.parametrize(
    "content",
    ["id,2019,2020\n7,1,2\n", "2019,2020,2021\n5,6,7\n", ",0,1,2\n0,5,6,7\n", "sex,plan\nmale,sex\n",
     "male\nmale\nmale\n", "when,2020-01-01\n2020-01-01,5\n", "a,b\n1,\n2,\n"],
)  # fmt: skip
def test_headers_of_years_positions_and_words_are_headers(tmp_path: Path, content: str) -> None:
    (tmp_path / "people.csv").write_text(content)
    assert len(read_table(tmp_path / "people.csv")) == content.count("\n") - 1


def numbers(stray: object, row: int) -> pd.DataFrame:
    ages: list[object] = [20 + place % 60 for place in range(200)]
    ages[row] = stray
    return pd.DataFrame({"age": pd.Series(ages, dtype=object), "dose": [place / 7 for place in range(200)]})


def test_a_text_among_numbers_is_told_by_its_row(tmp_path: Path) -> None:
    """It was accepted, as a column of categories that hold every number."""
    numbers(SECRET, 17).to_csv(tmp_path / "people.csv", index=False)
    for frame in (read_table(tmp_path / "people.csv"), numbers(SECRET, 17)):
        with pytest.raises(InputError, match=r"people, column 'age', row 17: a text stands among numbers, in 1 of 200"):
            infer_schema(frame, where="people")
        assert infer_schema(frame, {"age": "categorical"})["age"].kind == "categorical"
    plain = numbers(30, 17).astype({"age": int})
    for tables in ((numbers(SECRET, 17), plain), (plain, numbers(SECRET, 17))):
        with pytest.raises(InputError, match="column 'age', row 17: ") as caught:
            prepare_inputs(*tables, plain)
        assert SECRET not in str(caught.value)
    with pytest.raises(InputError, match="synthetic, column 'age', row 17: a value is not a whole number"):
        prepare_inputs(plain, plain.iloc[::-1], numbers(SECRET, 17))


def test_codes_that_are_mostly_digits_are_codes() -> None:
    few = pd.DataFrame({"code": ["1", "2", "3"] * 60 + ["V1"]})
    many = pd.DataFrame({"code": [str(place) for place in range(95)] + ["V10", "V11", "V12", "E1", "E2"]})
    assert [infer_schema(frame)["code"].kind for frame in (few, many)] == ["categorical", "categorical"]


@pytest.mark.parametrize("text", ["9999-12-31", "9999-12-31 23:59:59", "2262-01-01", "1600-01-01", "0001-01-01"])
def test_dates_that_stand_for_no_date_are_told_by_their_row(tmp_path: Path, text: str) -> None:
    stamp = "2020-05-01 10:00:00" if " " in text else "2020-05-01"
    (tmp_path / "people.csv").write_text(f"until,n\n{stamp},1\n{text},2\n")
    frame = read_table(tmp_path / "people.csv")
    with pytest.raises(
        InputError, match=r"train.*column 'until', row 1: a date lies outside of the years 1678 to 2261"
    ):
        prepare_inputs(frame, frame, frame)


@pytest.mark.parametrize("value", [0, -1, 1e300, 10**400, float("nan"), float("inf"), True, "2", [2]])
def test_a_loss_factor_out_of_range(value: object) -> None:
    with pytest.raises(ConfigError, match="tvae: loss_factor must be a number above 0 and at most 1e\\+38"):
        build_generator("tvae", {"loss_factor": value})


@pytest.fixture
def soon() -> Iterator[None]:
    """An error in place of a wait for ever."""

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
        for read in (read_table, open_table):
            with pytest.raises(InputError, match=r"people\.csv: this is a pipe or device, not a file"):
                read(place)
    os.mkfifo(tmp_path / "policy.yaml")
    with pytest.raises(ConfigError, match=r"policy\.yaml: this is a pipe or device, not a file"):
        Policy.from_yaml(tmp_path / "policy.yaml")


def test_folders_and_globs_without_tables(tmp_path: Path) -> None:
    (tmp_path / "inner.csv").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    for place, message in (
        (tmp_path / "inner.csv", "the folder holds no .parquet or .csv file"),
        (tmp_path / "*.parquet", "no file matches the pattern"),
        (tmp_path / "*.csv", "inner.csv: this is a folder, not a file"),
        (tmp_path / "absent.csv", "no such file"),
    ):
        with pytest.raises(InputError, match=message):
            read_table(place)


@pytest.mark.parametrize(
    ("url", "hint"),
    [("s4://bucket/people.parquet", "'s4' is no protocol.*Did you mean s3://"), ("htp://host/x.csv", "Did you mean http://"),
     ("s3n://bucket/x.csv", "Did you mean s3://"), ("zzzz://bucket/x.csv", "Known are s3://")],
)  # fmt: skip
def test_a_mistyped_scheme_is_told_at_once(url: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=hint):
        location(url)


def test_a_missing_subject_is_told_by_its_row(tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text("id,n\n7,1\n,2\n8,3\n")
    with pytest.raises(InputError, match="column 'id', row 1: the subject is missing"):
        prepare_inputs(*[tmp_path / "people.csv"] * 2, pd.DataFrame({"n": [1, 2]}), subject="id")
