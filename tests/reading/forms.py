"""Tables of known truth, and the forms in which people bring them.

A table in another form is the same table: its statistics, verdict and published values must not
change. Each form has a label, which was chosen by what a reader can know from the cells, before the
form was tried:

* ``MUST_READ``: read without any declaration.
* ``MAY_STOP``: the cells have several meanings, or the file does not state how it is written. One
  error may stop the run. Its lines, pasted as printed, must lead to the same statistics and
  verdict.
"""

from __future__ import annotations

import csv
import datetime as dt
import decimal
import gzip
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

MUST_READ, MAY_STOP = "must read", "may stop"
ROLES = ("train", "holdout", "synthetic")
SUBJECT = "id"
INTEGERS, DECIMALS, TEXTS = ("id", "age"), ("amount", "weight"), ("zip", "ward")
WARDS = np.array(["Innere", "Chirurgie", "Pädiatrie", "Kreißsaal, Geburt"], dtype=object)
ZIPS = np.array(["01067", "10115", "80331", "20095", "04109", "99084"], dtype=object)


# --- tables of known truth
# --------------------------------------------------------------------------------------------


def people(rows: int, seed: int) -> pd.DataFrame:
    """Return independent rows: integers, decimals, dates, times with and without zone, codes,
    categories, booleans.
    """
    rng = np.random.default_rng(seed)

    def some(values: Any) -> pd.Series:
        return pd.Series(values).mask(rng.random(rows) < 0.04)

    days = pd.Timestamp("2019-01-01") + pd.to_timedelta(rng.integers(0, 1500, rows), unit="D")
    early = (
        rng.integers(2015, 2023, rows),
        rng.integers(1, 13, rows),
        rng.integers(1, 13, rows),
    )  # no day after the 12th
    minutes = rng.integers(0, 700_000, (2, rows))
    return pd.DataFrame(
        {
            "id": seed * 100_000 + np.sort(rng.integers(0, rows, rows)),
            "age": some(rng.integers(18, 95, rows)).astype("Int64"),
            "amount": rng.gamma(1.2, 900, rows).round(2),
            "weight": some(rng.normal(75, 14, rows).round(1)),
            "day": some(days).astype("datetime64[us]"),
            "born": pd.to_datetime(
                pd.DataFrame(dict(zip(("year", "month", "day"), early, strict=True)))
            ).astype("datetime64[us]"),
            "seen": (
                pd.Timestamp("2020-01-01") + pd.to_timedelta(pd.Series(minutes[0]), unit="min")
            ).astype("datetime64[us]"),
            "stamp": (
                pd.Timestamp("2020-01-01", tz="UTC")
                + pd.to_timedelta(pd.Series(minutes[1]), unit="min")
            ).astype("datetime64[us, UTC]"),
            "zip": pd.Series(rng.choice(ZIPS, rows), dtype="str"),
            "ward": some(rng.choice(WARDS, rows)).astype("str"),
            "smoker": some(rng.random(rows) < 0.3).astype("boolean"),
        }
    )


def one_step(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with every number and time moved by one step."""
    day, minute = pd.Timedelta(1, unit="D"), pd.Timedelta(1, unit="min")
    return frame.assign(
        age=frame["age"] + 1,
        amount=(frame["amount"] + 0.01).round(2),
        weight=(frame["weight"] + 0.1).round(1),
        day=frame["day"] + day,
        born=frame["born"] + pd.DateOffset(years=1),
        seen=frame["seen"] + minute,
        stamp=frame["stamp"] + minute,
    ).astype({"born": "datetime64[us]"})


def tables(kind: str) -> dict[str, pd.DataFrame]:
    """Return train, holdout and a synthetic table: fresh rows, 5 % copies, or all training rows
    moved by one step.
    """
    train, holdout, fresh = people(900, 1), people(700, 2), people(600, 3)
    synthetic = {
        "fresh": fresh,
        "copies": pd.concat([train[:30], fresh[30:]], ignore_index=True),
        "step": one_step(train),
    }[kind]
    return {"train": train, "holdout": holdout, "synthetic": synthetic.drop(columns=SUBJECT)}


KINDS = ("fresh", "copies", "step")
FAILS = {"fresh": False, "copies": True, "step": True}  # whether the release must fail


# --- spellings
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spelling:
    """How cells are written as text. Formats follow ``strftime`` and ``format``."""

    integer: str = "{:d}"
    amount: str = "{:.2f}"
    weight: str = "{:.1f}"
    comma: bool = False  # decimal comma
    day: str = "%Y-%m-%d"
    seen: str = "%Y-%m-%d %H:%M:%S"
    stamp: str = "%Y-%m-%d %H:%M:%S+00:00"
    zone: str = "UTC"
    boolean: tuple[str, str] = ("False", "True")
    # in columns of numbers, dates and booleans: a marker is a category in the others
    missing: str | None = None
    everywhere: bool = False  # and in the others, too
    word: bool = False  # the marker is a word, which would be a third value of a boolean: not there
    blanks: str = "{}"

    def __call__(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return the table as strings, with None for cells missing."""
        return pd.DataFrame(
            {name: self._column(name, frame[name]) for name in frame.columns}, dtype=object
        )

    def _column(self, name: str, cells: pd.Series) -> pd.Series:
        if name in TEXTS:
            marker = self.missing if self.everywhere else None
            return cells.astype(object).where(cells.notna(), marker)
        if name in INTEGERS:
            texts = [None if gone else self._number(self.integer if name == "age" else "{:d}", cell)
                     for cell, gone in zip(cells, cells.isna(), strict=True)]  # fmt: skip
        elif name in DECIMALS:
            form = self.amount if name == "amount" else self.weight
            texts = [
                None if gone else self._number(form, cell)
                for cell, gone in zip(cells, cells.isna(), strict=True)
            ]
        elif name == "smoker":
            texts = [
                None if gone else self.boolean[int(cell)]
                for cell, gone in zip(cells, cells.isna(), strict=True)
            ]
        else:
            times = cells.dt.tz_convert(self.zone) if name == "stamp" else cells
            form = {"seen": self.seen, "stamp": self.stamp}.get(name, self.day)
            texts = [
                None if gone else cell.strftime(form)
                for cell, gone in zip(times, cells.isna(), strict=True)
            ]
            if name == "stamp" and "%z" in form:
                texts = [None if text is None else f"{text[:-2]}:{text[-2:]}" for text in texts]
        if name == SUBJECT or (name == "smoker" and self.word):
            return pd.Series(texts, dtype=object)
        return pd.Series(
            [self.missing if text is None else self.blanks.format(text) for text in texts],
            dtype=object,
        )

    def _number(self, form: str, cell: Any) -> str:
        text = form.format(cell)
        return text.translate(str.maketrans(",.", ".,")) if self.comma else text


ISO = Spelling()


# --- forms
# --------------------------------------------------------------------------------------------------

Write = Callable[[pd.DataFrame, Path], Any]  # table, path without suffix -> what the user passes


@dataclass(frozen=True)
class Form:
    """One form of a table.

    Attributes:
        label: ``MUST_READ`` or ``MAY_STOP``.
        reason: Why.
        write: Returns what the user passes for a table.
        spelling: Text in one table must have one spelling. "": the table contains types, no text of
            numbers and dates.
        mixes: False if all tables must come in this form: the others have other values or kinds.
        means: What the user knows, where the error prints a choice: the declaration per column.
        rel: Relative tolerance of the statistics.
        order: Column by which the form sorts the rows. "": none.
    """

    label: str
    reason: str
    write: Write
    spelling: str = "iso"
    mixes: bool = True
    means: Mapping[str, Any] = field(default_factory=dict)
    rel: float = 1e-9
    order: str = ""


FORMS: dict[str, Form] = {}


def add(
    name: str, label: str, reason: str, write: Write, spelling: str = "iso", **more: Any
) -> None:
    FORMS[name] = Form(label, reason, write, spelling, **more)


def csv_file(
    spelling: Spelling = ISO,
    suffix: str = ".csv",
    encoding: str = "utf-8",
    change: Callable[[str], str] = str,
    pack: Callable[[bytes], bytes] = bytes,
    **options: Any,
) -> Write:
    def write(frame: pd.DataFrame, path: Path) -> Path:
        text = spelling(frame).to_csv(index=False, lineterminator="\n", **options)
        file = path.with_name(path.name + suffix)
        file.write_bytes(pack(change(text).encode(encoding)))
        return file

    return write


def every_line(ending: str) -> Callable[[str], str]:
    return lambda text: text.replace("\n", ending)


# CSV: files
for name, reason, write in (
    ("csv", "the plain CSV file of pandas", csv_file()),
    ("csv tabs", "the suffix .tsv states the separator", csv_file(suffix=".tsv", sep="\t")),
    (
        "csv gzip",
        "compression does not change cells",
        csv_file(suffix=".csv.gz", pack=gzip.compress),
    ),
    (
        "csv all quoted",
        "quotes belong to the file, not to the cell",
        csv_file(quoting=csv.QUOTE_ALL),
    ),
    ("csv utf-8 mark", "the byte order mark states the encoding", csv_file(encoding="utf-8-sig")),
    ("csv utf-16 mark", "the byte order mark states the encoding", csv_file(encoding="utf-16")),
    (
        "csv line ends of Windows",
        "line ends do not change cells",
        csv_file(change=every_line("\r\n")),
    ),
    (
        "csv line ends of old Macs",
        "line ends do not change cells",
        csv_file(change=every_line("\r")),
    ),
    ("csv without last line end", "line ends do not change cells", csv_file(change=str.rstrip)),
):
    add(name, MUST_READ, reason, write)
add("csv semicolons", MAY_STOP, "the file does not state its separator", csv_file(sep=";"))
add("csv bars", MAY_STOP, "the file does not state its separator", csv_file(sep="|"))
add("csv cp1252", MAY_STOP, "the file does not state its encoding", csv_file(encoding="cp1252"))

# CSV: spellings. Each has one meaning in view of all cells of a column, unless it may stop.
GERMAN = Spelling(comma=True, day="%d.%m.%Y", seen="%d.%m.%Y %H:%M:%S")
for name, reason, spelling, more in (
    (
        "decimal comma",
        "a comma before one or two digits separates decimals",
        Spelling(comma=True),
        {},
    ),
    (
        "thousands",
        "a comma before three digits and a point separates thousands",
        Spelling(amount="{:,.2f}"),
        {},
    ),
    (
        "decimal comma and thousands",
        "1.234,50 has one meaning",
        Spelling(amount="{:,.2f}", comma=True),
        {},
    ),
    ("short decimals", "1.5 and 2.25 are numbers", Spelling(amount="{!r}", weight="{:g}"), {}),
    ("exponents", "1.5e+02 is a number", Spelling(amount="{:.8e}", weight="{:.4e}"), {}),
    (
        "integers with .0",
        "pandas writes integers next to missing cells so",
        Spelling(integer="{:.1f}"),
        {},
    ),
    ("blanks", "blanks do not change numbers and dates", Spelling(blanks=" {} "), {}),
    ("dates with points", "the day is first where points separate", Spelling(day="%d.%m.%Y"), {}),
    ("dates of SAS", "31JAN2020 has one meaning", Spelling(day="%d%b%Y"), {}),
    ("dates with names", "31-Jan-2020 has one meaning", Spelling(day="%d-%b-%Y"), {}),
    ("dates with the year first", "2020/01/31 has one meaning", Spelling(day="%Y/%m/%d"), {}),
    ("dates with midnight", "midnight of a day is the day", Spelling(day="%Y-%m-%d 00:00:00"), {}),
    (
        "times with T",
        "ISO 8601",
        Spelling(seen="%Y-%m-%dT%H:%M:%S", stamp="%Y-%m-%dT%H:%M:%SZ"),
        {},
    ),
    (
        "times with fractions",
        "a fraction of zero adds no time",
        Spelling(seen="%Y-%m-%d %H:%M:%S.000000"),
        {},
    ),
    (
        "times of a 12-hour clock",
        "PM states the half of the day",
        Spelling(seen="%m/%d/%Y %I:%M:%S %p"),
        {},
    ),
    (
        "times with offsets",
        "an offset names the instant",
        Spelling(stamp="%Y-%m-%dT%H:%M:%S%z", zone="Europe/Berlin"),
        {},
    ),
    (
        "times with short offsets",
        "Postgres and DuckDB write +00",
        Spelling(stamp="%Y-%m-%d %H:%M:%S+00"),
        {},
    ),
    ("booleans in capitals", "R and Excel write TRUE", Spelling(boolean=("FALSE", "TRUE")), {}),
    (
        "booleans in lower case",
        "JSON and Spark write true",
        Spelling(boolean=("false", "true")),
        {},
    ),
    (
        "booleans of Postgres",
        "two values are a category, at least",
        Spelling(boolean=("f", "t")),
        {"mixes": False},
    ),
    (
        "booleans as words",
        "two values are a category, at least",
        Spelling(boolean=("no", "yes")),
        {"mixes": False},
    ),
    ("missing as NA", "R writes NA, and no number or date reads so", Spelling(missing="NA"), {}),
    ("missing as #N/A", "Excel writes #N/A", Spelling(missing="#N/A"), {}),
    ("missing as \\N", "MySQL writes \\N", Spelling(missing="\\N"), {}),
    ("missing as null", "SQL writes NULL", Spelling(missing="NULL"), {}),
    ("missing as NaN", "numpy writes nan", Spelling(missing="nan"), {}),
    ("missing as a point", "SAS writes a point", Spelling(missing="."), {}),
    ("missing as a dash", "people write a dash", Spelling(missing="-"), {}),
    (
        "missing as NA everywhere",
        "NA as a category separates the same rows",
        Spelling(missing="NA", everywhere=True),
        {"mixes": False},
    ),
):
    add(f"csv {name}", MUST_READ, reason, csv_file(spelling), name, **more)
for name, reason, spelling, born in (
    (
        "days first",
        "no day of the column born is after the 12th",
        Spelling(day="%d/%m/%Y"),
        "%d/%m/%Y",
    ),
    (
        "months first",
        "no day of the column born is after the 12th",
        Spelling(day="%m/%d/%Y"),
        "%m/%d/%Y",
    ),
    (
        "days first with dashes",
        "no day of the column born is after the 12th",
        Spelling(day="%d-%m-%Y"),
        "%d-%m-%Y",
    ),
    (
        "years of two digits",
        "two digits do not state the century",
        Spelling(day="%d.%m.%y"),
        "%d.%m.%y",
    ),
):
    means = {column: {"datetime": born} for column in ("born", "day")}
    add(f"csv {name}", MAY_STOP, reason, csv_file(spelling), name, means=means)
add("csv missing as unknown", MAY_STOP, "a word may be a category",
    csv_file(Spelling(missing="unknown", word=True)), "unknown")  # fmt: skip
add("csv of German Excel", MAY_STOP, "neither separator nor encoding are stated",
    csv_file(GERMAN, sep=";", encoding="cp1252"), "German")  # fmt: skip


# CSV: other writers
def written(
    suffix: str, write: Callable[[Any, Path], Any], convert: Callable[[pd.DataFrame], Any]
) -> Write:
    def to_file(frame: pd.DataFrame, path: Path) -> Path:
        file = path.with_name(path.name + suffix)
        write(convert(frame), file)
        return file

    return to_file


def arrow(frame: pd.DataFrame) -> pa.Table:
    return pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)


def dated(frame: pd.DataFrame) -> pa.Table:
    """Return an Arrow table with dates, exact decimals and short integers."""
    table = arrow(frame)
    types = {
        "age": pa.int16(),
        "amount": pa.decimal128(12, 2),
        "day": pa.date32(),
        "born": pa.date32(),
    }
    for name, kind in types.items():
        at = table.column_names.index(name)
        column = table[name]
        if name == "amount":
            column = pa.chunked_array(
                [[decimal.Decimal(f"{cell:.2f}") for cell in frame[name]]], pa.decimal128(12, 2)
            )
        table = table.set_column(at, name, column.cast(kind, safe=False))
    return table


def polars_frame(frame: pd.DataFrame) -> pl.DataFrame:
    return pl.DataFrame(arrow(frame))


def duck_copy(table: pa.Table, file: Path) -> None:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("people", table)
        connection.execute(f"COPY people TO '{file}'")


add(
    "csv texts quoted",
    MUST_READ,
    "R and SQL servers quote so",
    written(
        ".csv",
        lambda frame, file: frame.to_csv(file, index=False, quoting=csv.QUOTE_NONNUMERIC),
        pd.DataFrame,
    ),
)
add(
    "csv by pyarrow",
    MUST_READ,
    "the plain file of a common writer",
    written(".csv", pa.csv.write_csv, arrow),
)
add(
    "csv by polars",
    MUST_READ,
    "the plain file of a common writer",
    written(".csv", pl.DataFrame.write_csv, polars_frame),
)
add(
    "csv by duckdb",
    MUST_READ,
    "the plain file of a common writer",
    written(".csv", duck_copy, dated),
)

# Parquet
TYPED = {"spelling": ""}
add(
    "parquet by pandas",
    MUST_READ,
    "types are stated",
    written(".parquet", pd.DataFrame.to_parquet, pd.DataFrame),
    **TYPED,
)
add(
    "parquet by pyarrow",
    MUST_READ,
    "types are stated",
    written(".parquet", pa.parquet.write_table, dated),
    **TYPED,
)
add(
    "parquet by polars",
    MUST_READ,
    "types are stated",
    written(".parquet", pl.DataFrame.write_parquet, polars_frame),
    **TYPED,
)
add(
    "parquet by duckdb",
    MUST_READ,
    "types are stated",
    written(".parquet", duck_copy, dated),
    **TYPED,
)
add(
    "parquet of Spark",
    MUST_READ,
    "INT96 is a time; it has no zone, so that all tables must come so",
    written(
        ".parquet",
        lambda table, file: pa.parquet.write_table(
            table, file, use_deprecated_int96_timestamps=True
        ),
        arrow,
    ),
    "",
    mixes=False,
)
add(
    "parquet of strings",
    MUST_READ,
    "a loader that infers no types",
    written(".parquet", pd.DataFrame.to_parquet, ISO),
)
add(
    "parquet of local times",
    MUST_READ,
    "a zone names the instant",
    written(
        ".parquet",
        pd.DataFrame.to_parquet,
        lambda frame: frame.assign(stamp=frame["stamp"].dt.tz_convert("Europe/Berlin")),
    ),
    **TYPED,
)


def parts(frame: pd.DataFrame, path: Path) -> Path:
    path.mkdir(parents=True)
    for number in range(3):
        frame[number * 300 : (number + 1) * 300].to_parquet(path / f"{number}.parquet")
    return path


def hive(frame: pd.DataFrame, path: Path) -> Path:
    for code, part in frame.groupby("zip"):
        (path / f"zip={code}").mkdir(parents=True)
        part.drop(columns="zip").to_parquet(path / f"zip={code}" / "0.parquet", index=False)
    return path


add("parquet in parts", MUST_READ, "a folder is a table", parts, **TYPED)
add("parquet of Hive", MUST_READ, "folders state the value of a column", hive, "", order="zip")


# pandas
def frame_of(change: Callable[[pd.DataFrame], Any]) -> Write:
    return lambda frame, path: change(frame)


def objects(frame: pd.DataFrame) -> pd.DataFrame:
    """Return Python objects, as databases and JSON give them."""
    out = frame.astype(object).where(frame.notna(), None)
    for name in ("day", "born"):
        out[name] = [
            None if gone else cell.date()
            for cell, gone in zip(frame[name], frame[name].isna(), strict=True)
        ]
    out["amount"] = [decimal.Decimal(f"{cell:.2f}") for cell in frame["amount"]]
    return out.assign(seen=[cell.to_pydatetime() for cell in frame["seen"]]).astype(
        {"seen": object}
    )


def local_times(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the table with the column stamp in local time, without its zone."""
    return frame.assign(stamp=frame["stamp"].dt.tz_convert("Europe/Berlin").dt.tz_localize(None))


def times_of_python(frame: pd.DataFrame) -> pd.DataFrame:
    seen = pd.Series([dt.datetime.fromisoformat(str(cell)) for cell in frame["seen"]], dtype=object)
    return frame.assign(seen=seen)


for name, reason, change in (
    ("pandas", "the plain form", pd.DataFrame),
    ("pandas objects", "dates, decimals and integers of Python have types", objects),
    ("pandas times of Python", "times of Python have types", times_of_python),
    ("pandas nullable", "pandas converts so", pd.DataFrame.convert_dtypes),
    (
        "pandas arrow",
        "types are stated",
        lambda frame: arrow(frame).to_pandas(types_mapper=pd.ArrowDtype),
    ),
    (
        "pandas category",
        "a category of values is its values",
        lambda frame: frame.astype("category"),
    ),
    (
        "pandas floats",
        "pandas reads integers with gaps as floats",
        lambda frame: frame.astype({"age": float}),
    ),
    (
        "pandas short integers",
        "the width does not change a number",
        lambda frame: frame.astype({"age": "Int8"}),
    ),
    (
        "pandas seconds",
        "the unit does not change a time",
        lambda frame: frame.astype(
            {
                "day": "datetime64[s]",
                "born": "datetime64[s]",
                "seen": "datetime64[s]",
                "stamp": "datetime64[s, UTC]",
            }
        ),
    ),
    (
        "pandas nanoseconds",
        "the unit does not change a time",
        lambda frame: frame.astype(
            {
                "day": "datetime64[ns]",
                "born": "datetime64[ns]",
                "seen": "datetime64[ns]",
                "stamp": "datetime64[ns, UTC]",
            }
        ),
    ),
    (
        "pandas index",
        "an index does not change rows",
        lambda frame: frame.set_index(np.arange(len(frame))[::-1] * 7),
    ),
):
    add(name, MUST_READ, reason, frame_of(change), **TYPED)
for name, reason, change in (
    ("pandas strings", "a loader that infers no types", lambda frame: ISO(frame).astype("str")),
    ("pandas objects of strings", "a loader that infers no types", ISO),
    (
        "pandas python strings",
        "a loader that infers no types",
        lambda frame: ISO(frame).astype("string[python]"),
    ),
    (
        "pandas category of strings",
        "a loader that infers no types",
        lambda frame: ISO(frame).astype("category"),
    ),
    (
        "polars strings",
        "a loader that infers no types",
        lambda frame: pl.DataFrame(arrow(ISO(frame))),
    ),
    (
        "polars categories",
        "a loader that infers no types",
        lambda frame: pl.DataFrame(arrow(ISO(frame))).with_columns(pl.all().cast(pl.Categorical)),
    ),
    (
        "arrow dictionaries",
        "a loader that infers no types",
        lambda frame: arrow(ISO(frame).astype("category")),
    ),
):
    add(name, MUST_READ, reason, frame_of(change))
add(
    "pandas single floats",
    MUST_READ,
    "one decimal fits a single float, whose eighth digit differs",
    frame_of(lambda frame: frame.astype({"weight": "float32"})),
    "",
    mixes=False,
    rel=1e-6,
)

# Others
for name, reason, change in (
    ("polars", "types are stated", polars_frame),
    ("polars lazy", "types are stated", lambda frame: polars_frame(frame).lazy()),
    ("arrow", "types are stated", arrow),
    ("arrow exact", "types are stated", dated),
    ("arrow batches", "types are stated", lambda frame: arrow(frame).to_reader(max_chunksize=250)),
    ("duckdb", "types are stated", lambda frame: duckdb.from_arrow(arrow(frame))),
):
    add(name, MUST_READ, reason, frame_of(change), **TYPED)
