"""Spellings that must not change a verdict: one table in several forms, through ``evaluate`` and
``run``.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from privacy_assets import Report, evaluate
from privacy_assets.cli.main import main
from privacy_assets.errors import ConfigError, InputError
from privacy_assets.pipeline import row_sources
from privacy_assets.pipeline.resolve import ResolvedTable
from privacy_assets.pipeline.row_sources import select_partition, source_table
from privacy_assets.pipeline.spec import TableSpec
from privacy_assets.tables.canonical import canonical_table
from privacy_assets.tables.declared import Declared
from privacy_assets.tables.files import CsvFormat
from privacy_assets.tables.inference import infer_schema, joint_schema
from privacy_assets.tables.personal_data import personal_note
from privacy_assets.tables.reading import parse_table, read_table
from privacy_assets.tables.roles import may_identify_people
from privacy_assets.tables.stored import StoredTable
from privacy_assets.tables.table import Table
from tests.helpers.accepting import accept_all

METRICS = ["dcr", "copies"]


def people(rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({name: rng.normal(100, 15, rows).round() for name in "abcde"})
    return frame.assign(
        day=pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 700, rows), unit="D")
    )


TRAIN, HOLDOUT, FRESH = people(900, 1), people(700, 2), people(600, 3)
COPIES = pd.concat([TRAIN[:60], people(540, 4)], ignore_index=True)


def judged(*tables: Any, **more: Any) -> Report:
    return evaluate(*tables, metrics=METRICS, embedder=False, progress=lambda line: None, **more)


def statistics(report: Report) -> list[float | None]:
    return [estimate.value for result in report.results.values() for estimate in result.estimates]


@pytest.fixture(scope="module")
def plain() -> dict[str, list[float | None]]:
    return {
        "fresh": statistics(judged(TRAIN, HOLDOUT, FRESH)),
        "copies": statistics(judged(TRAIN, HOLDOUT, COPIES)),
    }


def with_markers(frame: pd.DataFrame, marker: object) -> pd.DataFrame:
    spots = np.random.default_rng(9).random(frame.shape) < 0.05
    return frame.astype(object).mask(spots, marker)


FORMS = {
    "text": lambda frame: frame.astype(dict.fromkeys("abcde", int)).astype(str),
    "text with blanks": lambda frame: (
        " " + frame.astype(dict.fromkeys("abcde", int)).astype(str) + " "
    ),
    "category of text": lambda frame: (
        frame.astype(dict.fromkeys("abcde", int)).astype(str).astype("category")
    ),
    "nullable": lambda frame: frame.astype(dict.fromkeys("abcde", "Int64")),
    "day first": lambda frame: frame.assign(day=frame["day"].dt.strftime("%d.%m.%Y")),
    "month first": lambda frame: frame.assign(day=frame["day"].dt.strftime("%m/%d/%Y")),
    "day with slashes": lambda frame: frame.assign(day=frame["day"].dt.strftime("%d/%m/%Y")),
    "decimal comma": lambda frame: frame.assign(
        **{name: frame[name].map("{:.1f}".format).str.replace(".", ",") for name in "abcde"}
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("synthetic", ["fresh", "copies"])
def test_numbers_and_dates_that_arrive_as_text_are_numbers_and_dates(
    form: str, synthetic: str, plain: dict
) -> None:
    tables = [
        FORMS[form](frame)
        for frame in (TRAIN, HOLDOUT, {"fresh": FRESH, "copies": COPIES}[synthetic])
    ]
    assert statistics(judged(*tables)) == plain[synthetic]


def test_each_table_may_come_in_another_form(plain: dict, tmp_path: Path) -> None:
    HOLDOUT.to_csv(tmp_path / "holdout.csv", index=False)
    COPIES.to_parquet(tmp_path / "synthetic.parquet")
    tables = (FORMS["text"](TRAIN), tmp_path / "holdout.csv", tmp_path / "synthetic.parquet")
    assert statistics(judged(*tables)) == plain["copies"]


@pytest.mark.slow
@pytest.mark.parametrize("marker", ["#N/A", ".", "-", "\\N", "NA", None])
def test_markers_of_missing_values_are_missing_and_noted(marker: str | None) -> None:
    expected = [with_markers(frame, None) for frame in (TRAIN, HOLDOUT, COPIES)]
    report = judged(*(with_markers(frame, marker) for frame in (TRAIN, HOLDOUT, COPIES)))
    typed = [
        frame.astype(dict.fromkeys("abcde", float)).assign(day=pd.to_datetime(frame["day"]))
        for frame in expected
    ]
    assert statistics(report) == statistics(judged(*typed))
    assert any(f"{marker} is missing" in note for note in report.notes) == (marker is not None)


def test_codes_keep_their_zeros_letters_and_spellings(tmp_path: Path) -> None:
    codes = ["008", "8", "1E2", "100", "250.1", "250.10", "V27"]
    pd.DataFrame({"icd": codes * 30, "x": range(210)}).to_csv(tmp_path / "t.csv", index=False)
    table = Table.read(tmp_path / "t.csv", kinds={"icd": "categorical", "x": "integer"})
    assert (
        table["icd"].objects() == codes * 30
        and table.to_published_frame()["icd"].tolist() == codes * 30
    )
    assert infer_schema(pd.DataFrame({"zip": ["01067", "10115"] * 30}))["zip"].kind == "categorical"


@pytest.mark.slow
def test_a_letter_code_in_one_file_does_not_hide_copies(tmp_path: Path) -> None:
    rng, names = np.random.default_rng(0), ("train", "holdout", "synthetic")
    made = {
        name: pd.DataFrame(
            {c: [f"{n:03d}" for n in rng.integers(0, 400, 900)] for c in ("icd", "drug")}
        )
        for name in names
    }
    made["synthetic"].iloc[:45] = made["train"].iloc[:45]
    made["synthetic"].loc[899, "icd"] = "V27"
    codes = [f"{n:03d}" for n in range(400)] + ["V27"]
    declared: dict[str, Any] = {
        "kinds": dict.fromkeys(("icd", "drug"), "categorical"),
        "allowed_values": {"icd": codes, "drug": codes},
    }
    for suffix in ("csv", "parquet"):
        for name, frame in made.items():
            getattr(frame, f"to_{suffix}")(tmp_path / f"{name}.{suffix}", index=False)
    reports = [
        judged(*(tmp_path / f"{name}.{suffix}" for name in names), **declared)
        for suffix in ("csv", "parquet")
    ]
    assert statistics(reports[0]) == statistics(reports[1])


def test_large_integers_with_missing_cells_stay_exact(tmp_path: Path) -> None:
    large = [2**60 + i for i in range(40)] + [None]
    frame = pd.DataFrame({"x": pd.array(large, dtype="Int64")})
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    for given in (frame, tmp_path / "t.csv", tmp_path / "t.parquet"):
        table = Table.read(given)
        assert table["x"].objects() == large
        assert (
            table.to_published_frame()["x"].astype(object).where(lambda x: x.notna(), None).tolist()
            == large
        )


def test_times_with_and_without_a_zone_do_not_meet() -> None:
    zoned = TRAIN.assign(day=TRAIN["day"].dt.tz_localize("Europe/Berlin"))
    with pytest.raises(
        InputError,
        match="column 'day': its times have no time zone, and those of the private.*timezone",
    ):
        judged(zoned, HOLDOUT.assign(day=HOLDOUT["day"].dt.tz_localize("Europe/Berlin")), COPIES)
    with pytest.raises(
        InputError,
        match="holdout, column 'day': its times have no time zone.*timezone: Europe/Berlin",
    ):
        judged(zoned, HOLDOUT, COPIES)
    same = judged(zoned, HOLDOUT, COPIES, timezone="Europe/Berlin")
    assert statistics(same) == statistics(judged(TRAIN, HOLDOUT, COPIES))


def test_ids_are_compared_as_exact_text(tmp_path: Path) -> None:
    ids = ["7", "007", "1.1", "1.10", str(10**20), str(10**20 + 1)] * 50
    pd.DataFrame({"id": ids, "x": np.arange(300) % 7 / 8}).to_csv(tmp_path / "t.csv", index=False)
    table = canonical_table(tmp_path / "t.csv", Declared(subject="id", exact_ids=True))
    assert table.subject_ids is not None and len(table.subject_ids.distinct()) == 6
    with pytest.raises(InputError, match="the subject is missing"):
        judged(TRAIN.assign(id=""), HOLDOUT.assign(id="x"), FRESH, subject="id")


AMBIGUOUS = pd.DataFrame({
    "visit": ["01/02/2020", "03/04/2020"] * 100, "amount": ["1,234", "2,345"] * 100,
    "value": [*map(str, range(180)), *["<5"] * 20], "a: {b}": ["1.1", "1.10"] * 100,
})  # fmt: skip


def test_one_message_names_all_ambiguous_columns_and_its_lines_are_accepted() -> None:
    with pytest.raises(InputError, match="4 columns of text are ambiguous") as caught:
        infer_schema(AMBIGUOUS)
    found = re.search(r"data: (\{.*\}); on the command line", str(caught.value))
    assert found is not None
    pasted = yaml.safe_load(found[1])
    declared = Declared(**pasted)
    schema, _ = joint_schema({"train": AMBIGUOUS}, {"train": "train"}, declared)
    assert [column.kind for column in schema.columns] == [
        "datetime",
        "numeric",
        "numeric",
        "numeric",
    ]
    table = Table.of(AMBIGUOUS, schema, where="table", external=True)
    assert (
        table["visit"].objects()[0] == pd.Timestamp("2020-02-01")
        and table["amount"].objects()[0] == 1.234
    )
    assert table["value"].missing.sum() == 20


def test_declared_kinds_decide() -> None:
    for kind in ("categorical", "numeric"):
        assert infer_schema(AMBIGUOUS[["a: {b}"]], {"a: {b}": kind})["a: {b}"].kind == kind
    assert (
        infer_schema(AMBIGUOUS[["visit"]], {"visit": {"datetime": "%m/%d/%Y"}})["visit"].format
        == "%m/%d/%Y"
    )
    with pytest.raises(ConfigError, match="format of column 'visit' is unknown"):
        infer_schema(AMBIGUOUS[["visit"]], {"visit": {"datetime": "dd.mm.yyyy"}})


@pytest.mark.parametrize(
    "values",
    [
        ["08:30", "10:15"],
        ["01/2020-06/2020", "07/2020-12/2020"],
        ["0078-0357-15", "0093-1045-01"],
        ["12.3.4", "1.2.3"],
    ],
)
def test_periods_times_of_day_and_drug_codes_are_categories(values: list[str]) -> None:
    frame = pd.DataFrame({"x": values * 200, "y": np.random.default_rng(0).normal(size=400)})
    assert (
        judged(frame, frame.assign(y=frame["y"] + 1), frame.assign(y=frame["y"] + 2)).tables[
            "train"
        ]["columns"]
        == 2
    )


def test_a_fraction_of_one_unseen_person_is_rounded() -> None:
    whole = [frame.astype({"a": int}) for frame in (TRAIN, HOLDOUT)]
    made = FRESH.astype({"a": float})
    made.loc[0, "a"] += 0.4
    assert statistics(judged(*whole, made)) == statistics(judged(*whole, FRESH.astype({"a": int})))


def test_a_fraction_in_the_holdout_makes_a_number() -> None:
    holdout = HOLDOUT.astype({"a": float})
    holdout.loc[0, "a"] += 0.5
    assert judged(TRAIN.astype({"a": int}), holdout, FRESH).verdict in ("pass", "undecided", "fail")


def written(folder: Path, frame: pd.DataFrame) -> dict[str, Path]:
    text = frame.to_csv(index=False)
    paths = {
        "t.tsv": text.replace(",", "\t").encode(),
        "t.csv.gz": gzip.compress(text.encode()),
        "bom.csv": text.encode("utf-8-sig"),
        "wide.csv": text.encode("utf-16"),
        "mac.csv": text.replace("\n", "\r\n").encode(),
        "end.csv": text.rstrip("\n").encode(),
    }
    for name, content in paths.items():
        (folder / name).write_bytes(content)
    return {name: folder / name for name in paths}


def test_files_of_other_forms_hold_the_same_table(tmp_path: Path) -> None:
    frame = pd.DataFrame({"n": [1, 2, 3], "c": ["é", "b", "ü"], "d": ["2020-01-01"] * 3})
    expected = Table.read(frame).fingerprint
    for name, path in written(tmp_path, frame).items():
        assert Table.read(path).fingerprint == expected, name
    frame.to_csv(tmp_path / "s.csv", index=False, sep=";", encoding="cp1252")
    read = Declared(read={"sep": ";", "encoding": "cp1252"}).csv_format
    assert Table.read(read_table(tmp_path / "s.csv", read)).fingerprint == expected


def test_folders_of_a_partitioned_table_are_a_column(tmp_path: Path) -> None:
    for sex in "FM":
        (tmp_path / f"sex={sex}").mkdir()
        pd.DataFrame({"x": range(5)}).to_parquet(tmp_path / f"sex={sex}" / "1.parquet")
    assert read_table(tmp_path)["sex"].tolist() == ["F"] * 5 + ["M"] * 5


def test_long_and_broken_cells_are_read(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {"note": ["line\nbreak, " + "x" * 300] * 5000 + ["y" * 2_500_000], "n": range(5001)}
    )
    frame.to_csv(tmp_path / "t.csv", index=False)
    assert (
        read_table(tmp_path / "t.csv")["note"].str.len().tolist()
        == frame["note"].str.len().tolist()
    )


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.parquet", b"a,b\n1,2\n", "it is not a Parquet file"),
        ("a.csv.gz", gzip.compress(b"a,b\n1,2\n" * 500, mtime=0)[:-9], "cannot be read as csv"),
        ("a.csv", b"a,b\n1,\xe9\n", "line 2 is not UTF-8.*--encoding cp1252"),
        ("a.csv", b"a", "0 rows"),
    ],
)
def test_the_true_reason_of_a_wrong_file(
    tmp_path: Path, name: str, content: bytes, reason: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=reason):
        read_table(tmp_path / name)


@pytest.mark.parametrize(
    "name", ["Income [EUR]", "[a,b]", "[no]", "a: b", "- x", "#1", "'q'", "{x}", "null", "é"]
)
def test_the_line_to_drop_a_column_can_be_pasted(name: str) -> None:
    frame = pd.DataFrame(
        {name: [f"C{i:06d}" for i in range(300)], "x": np.random.default_rng(0).normal(size=300)}
    )
    with pytest.raises(InputError, match="values of individual people") as caught:
        judged(frame, frame, frame)
    found = re.search(r"\(data: (\{drop: .*?\}); on the", str(caught.value))
    assert found is not None and yaml.safe_load(found[1]) == {"drop": [name]}


def brought(folder: Path, frames: dict[str, pd.DataFrame], **data: Any) -> list[str]:
    """The arguments of a run of an existing synthetic table."""
    for role, frame in frames.items():
        frame.to_parquet(folder / f"{role}.parquet")
    sources = {role: f"{role}.parquet" for role in frames}
    table = {"name": "people", "data": {**sources, "subject": {"each_row": True}, **data}}
    (folder / "people.yaml").write_text(
        yaml.safe_dump({**table, "evaluation": {"embedder": False}})
    )
    return [
        "run",
        str(folder / "people.yaml"),
        "--home",
        str(folder / "home"),
        "--out",
        str(folder / "out"),
    ]


ROLES = ("train", "holdout", "synthetic")
ODD_ENCODINGS = [
    "zip",
    "hex",
    "rot13",
    "base64",
    "quopri",
    "punycode",
    "undefined",
    "utf-8\0",
    "é",
    "none",
]
ODD_FORMATS = ["%%%s", "%", "%Y%", "%Q", "%Y-%Y", "%U", "%G", "%-d.%m.%Y", "plain"]


@pytest.mark.parametrize("encoding", ODD_ENCODINGS)
def test_bypass_61_an_encoding_that_reads_no_text_is_a_wrong_setting(
    encoding: str, tmp_path: Path, capsys: Any
) -> None:
    tables = dict.fromkeys(ROLES, TRAIN[:50])
    assert main(brought(tmp_path, tables, read={"encoding": encoding})) == 2
    assert (
        "read: the encoding is unknown, or it is not one of text. Fix: name one"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    "encoding", ["utf-8", "UTF8", "utf-16", "utf-32", "cp1252", "latin-1", "shift_jis", "utf-7"]
)
def test_encodings_of_text_are_read(encoding: str, tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("a,b\n1,x\n2,y\n", encoding=encoding)
    assert read_table(file, CsvFormat.of({"encoding": encoding}))["b"].tolist() == ["x", "y"]


@pytest.mark.parametrize("form", ODD_FORMATS)
def test_bypass_61_a_format_that_reads_no_time_is_a_wrong_setting(
    form: str, tmp_path: Path, capsys: Any
) -> None:
    tables = dict.fromkeys(ROLES, TRAIN[:50])
    assert main(brought(tmp_path, tables, kinds={"day": {"datetime": form}})) == 2
    assert (
        "kinds: the format of column 'day' is unknown. Fix: {datetime: '%d.%m.%Y'}"
        in capsys.readouterr().err
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["", "  "])
@pytest.mark.parametrize("unnamed", [("synthetic",), ROLES])
def test_bypass_61_a_column_without_a_name_is_not_published(
    name: str, unnamed: tuple[str, ...], tmp_path: Path, capsys: Any
) -> None:
    tables = dict(zip(ROLES, (TRAIN, HOLDOUT, FRESH), strict=True))
    tables |= {role: tables[role].assign(**{name: 1.0}) for role in unnamed}
    told = (
        f"{unnamed[0]}: column 6 has no name. Fix: name it, or drop it (data: {{drop: ['{name}']}}"
    )
    with pytest.raises(InputError, match=re.escape(told)):
        judged(*tables.values())
    assert main(brought(tmp_path, tables)) == 2
    assert told in capsys.readouterr().err
    assert statistics(judged(*tables.values(), drop=[name])) == statistics(
        judged(TRAIN, HOLDOUT, FRESH)
    )


def test_a_column_without_a_name_is_shown(tmp_path: Path, capsys: Any) -> None:
    TRAIN.rename_axis("").reset_index().to_csv(tmp_path / "t.csv", index=False)
    assert main(["inspect", str(tmp_path / "t.csv")]) == 1
    assert "it has no name: name the column or drop it" in " ".join(capsys.readouterr().out.split())


def test_bypass_61_a_small_file_of_many_rows_is_blocked_by_its_footer(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reading(*_: object) -> None:
        raise AssertionError("rows were read")

    tables = {"train": TRAIN, "holdout": HOLDOUT, "synthetic": FRESH.iloc[[0] * 1_000_001]}
    arguments = brought(tmp_path, tables)
    load = row_sources.load
    monkeypatch.setattr(
        row_sources,
        "load",
        lambda path, form: reading() if "synthetic" in path else load(path, form=form),
    )
    assert main(arguments) == 2
    told = capsys.readouterr().err
    assert (
        "the synthetic table has 1,000,001 rows, and at most 1,000,000 are allowed. Fix:"
        " provide fewer rows" in told
    )
    assert f"{tmp_path / 'synthetic.parquet'}: " in told


def evaluated(folder: Path, frames: dict[str, pd.DataFrame], *options: str) -> list[str]:
    """The arguments of an evaluation of the same tables."""
    brought(folder, frames)
    files = [option for role in frames for option in (f"--{role}", str(folder / f"{role}.parquet"))]
    return [
        "evaluate",
        *files,
        "--each-row",
        "--metrics",
        "dcr",
        "--no-embedder",
        "--device",
        "cpu",
        *options,
    ]


def test_bypass_61_evaluate_reads_no_row_of_a_small_file_of_many_rows(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reading(*_: object) -> None:
        raise AssertionError("rows were read")

    tables = {"train": TRAIN, "holdout": HOLDOUT, "synthetic": FRESH.iloc[[0] * 1_000_001]}
    arguments = evaluated(tmp_path, tables)
    monkeypatch.setattr(StoredTable, "__getitem__", reading)
    assert main(arguments) == 2
    told = capsys.readouterr().err
    assert (
        "the synthetic table has 1,000,001 rows, and at most 1,000,000 are allowed. Fix:"
        " provide fewer rows" in told
    )
    assert "on the command line --max-synthetic-rows 1000001" in told


def test_the_number_of_rows_of_an_evaluated_table_is_an_option(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("privacy_assets.tables.canonical._MAX_ROWS", 100)
    tables = dict(zip(ROLES, (TRAIN[:50], HOLDOUT[:50], FRESH[:501]), strict=True))
    with pytest.raises(InputError, match="has 501 rows, and at most 500 are allowed"):
        judged(*tables.values())
    assert main(evaluated(tmp_path, tables)) == 2
    assert "has 501 rows, and at most 500 are allowed" in capsys.readouterr().err
    assert main(evaluated(tmp_path, tables, "--max-synthetic-rows", "501")) in (1, 3)
    assert main(evaluated(tmp_path, tables, "--max-synthetic-rows", "500")) == 2
    assert main(evaluated(tmp_path, tables, "--max-synthetic-rows", "0")) == 2
    assert "max_synthetic_rows must be an integer of at least 1" in capsys.readouterr().err


@pytest.mark.slow
def test_the_number_of_rows_of_a_brought_table_is_an_accepted_setting(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("privacy_assets.tables.canonical._MAX_ROWS", 100)
    tables = dict(zip(ROLES, (TRAIN[:50], HOLDOUT[:50], FRESH[:501]), strict=True))
    assert main(brought(tmp_path, tables)) == 2
    assert "has 501 rows, and at most 500 are allowed" in capsys.readouterr().err
    assert main(brought(tmp_path, tables, max_synthetic_rows=501)) in (1, 3)
    assert main(brought(tmp_path, tables, max_synthetic_rows=600)) == 1
    assert "max_synthetic_rows: 501 -> 600" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="max_synthetic_rows"):
        TableSpec(name="t", source="demo", data={"max_synthetic_rows": 0})


IBANS = ["DE89370400440532013000", "GB29NWBK60161331926819", "FR1420041010050500013M02606"]
CODES = [f"LOC-{n:05d}" for n in range(600)]  # near-unique


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([f"p{n}@x.org" for n in range(600)], "e-mail addresses"),
        (IBANS * 200, "bank account numbers"),
        ([*CODES[:-1], "p1@x.org"], "e-mail addresses"),
        (CODES, ""),
    ],
    ids=["addresses", "IBANs", "one address", "codes"],
)
def test_bypass_57_a_public_list_of_direct_identifiers(
    values: list[str], reason: str, tmp_path: Path, capsys: Any
) -> None:
    listed = {"contact": {"values": sorted(set(values)), "source": "a register"}}
    rows = zip(ROLES, (TRAIN, HOLDOUT, FRESH), strict=True)
    tables = {role: frame[:600].assign(contact=values) for role, frame in rows}
    status = main(brought(tmp_path, tables, allowed_values=listed))
    told = capsys.readouterr().err
    assert (status == 2) == bool(reason), told
    if reason:
        assert f"values of individual people that would be published: 'contact' ({reason})" in told
        assert not any(value in told for value in values)
        tables["train"].to_parquet(tmp_path / "source.parquet")
        source = {"name": "s", "data": {"source": "source.parquet", "subject": {"each_row": True}}}
        (tmp_path / "s.yaml").write_text(
            yaml.safe_dump({**source, "data": {**source["data"], "allowed_values": listed}})
        )
        assert main(["run", str(tmp_path / "s.yaml"), "--home", str(tmp_path / "h2")]) == 2
        with pytest.raises(InputError, match=re.escape(f"'contact' ({reason})")):
            judged(*tables.values(), allowed_values=listed)


class OneReader(io.BytesIO):
    """A slow file that fails if two threads read it at the same time."""

    is_read = False

    def read(self, *most: Any) -> bytes:
        assert not self.is_read, "two threads read one file"
        self.is_read = True
        time.sleep(0.001)
        self.is_read = False
        return super().read(*most)


def test_a_stream_is_read_by_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compressed file is one stream: two readers would each get a part of its lines."""
    monkeypatch.setattr("privacy_assets.tables.reading._BLOCK", 1 << 10)
    text = "a,b\n" + "".join(f"{row},x\n" for row in range(30_000))
    for _ in range(5):
        frame = parse_table(OneReader(text.encode()), "csv", where="stream")
        assert len(frame) == 30_000 and frame["a"].iloc[-1] == "29999"


@pytest.mark.slow
def test_a_column_that_only_the_synthetic_table_has_can_be_dropped() -> None:
    report = judged(TRAIN, HOLDOUT, FRESH.assign(extra=1), drop=["extra"])
    assert statistics(report) == statistics(judged(TRAIN, HOLDOUT, FRESH))
    assert any("'extra'" in note for note in report.notes)


@pytest.mark.parametrize(
    ("values", "key"), [(["01", "02"], "01"), ([2020.0, 2021.0], "2020"), ([True, False], "true")]
)
def test_partitions_of_codes_whole_numbers_and_booleans_have_rows(values: list, key: str) -> None:
    chosen = select_partition(pd.DataFrame({"p": values * 3}), "p", key, None, where="source")
    assert chosen["p"].tolist() == values[:1] * 3


def claims(rows: int, start: int) -> pd.DataFrame:
    rng = np.random.default_rng(start)
    who = np.sort(rng.integers(start, start + rows // 3, rows))
    return pd.DataFrame({
        "patient_id": [f"P{n:06d}" for n in who],
        "visit": rng.choice(pd.date_range("2020-01-01", periods=700).strftime("%d.%m.%Y"), rows),
        "zip": rng.choice(["01067", "10115", "80331", "20095"], rows),
        "amount": [f"{x:.2f}".replace(".", ",") for x in rng.gamma(2, 50, rows)],
        "crp": np.where(rng.random(rows) < 0.2, "<5", rng.integers(5, 90, rows).astype(str)),
        "ward": rng.choice(["Chirurgie", "Innere", "Pädiatrie"], rows),
    })  # fmt: skip


@pytest.mark.slow
def test_inspect_prints_each_column_and_the_lines_to_paste(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = claims(900, 0).assign(mail=[f"p{n}@x.org" for n in range(900)], blank=None)
    frame.to_csv(tmp_path / "claims.csv", sep=";", index=False, encoding="cp1252")
    assert main(["inspect", str(tmp_path / "claims.csv")]) == 1
    told = capsys.readouterr().out
    for part in (
        "separated by semicolons, cp1252",
        "datetime, %d.%m.%Y",
        "numeric, decimal comma",
        "ambiguous",
        "e-mail addresses",
        "leading zeros",
        "every value is missing",
        "people may be identified by patient_id",
    ):
        assert part in told
    assert not any(cell in told for cell in ("P000", "01067", "Chirurgie", "@"))
    main(["inspect", str(tmp_path / "claims.csv"), "--yaml"])
    file = yaml.safe_load(capsys.readouterr().out)
    pasted = file["data"]
    assert (
        file["name"] == "claims"
        and pasted["subject"] == "patient_id"
        and pasted["missing"] == {"crp": ["<5"]}
    )
    assert sorted(pasted["drop"]) == ["blank", "mail"]
    with pytest.raises(ConfigError, match="the kind of column 'crp' is a question of `inspect`"):
        ResolvedTable.of(TableSpec(name="claims", data=pasted))
    pasted["kinds"] = {name: kind.removesuffix("?") for name, kind in pasted["kinds"].items()}
    table = ResolvedTable.of(TableSpec(name="claims", data=pasted))
    assert table.declared.csv_format == CsvFormat(";", "cp1252", drop=("mail", "blank"))
    source = source_table(table, None, None, None)
    assert [column.kind for column in source.schema.columns] == [
        "datetime", "categorical", "numeric", "numeric", "categorical"
    ]  # fmt: skip


@pytest.mark.slow
def test_the_command_reads_a_csv_of_claims_to_a_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = {
        "train": claims(900, 0),
        "holdout": claims(800, 10_000),
        "synthetic": claims(700, 20_000),
    }
    arguments = [
        "evaluate",
        "--no-embedder",
        "--metrics",
        "dcr,copies",
        "--subject",
        "patient_id",
        "--quiet",
    ]
    for role, frame in tables.items():
        frame = frame.drop(columns="patient_id") if role == "synthetic" else frame
        frame.to_csv(tmp_path / f"{role}.csv", sep=";", index=False, encoding="cp1252")
        arguments += [f"--{role}", str(tmp_path / f"{role}.csv")]
    assert main(arguments) == 2 and "--encoding cp1252" in capsys.readouterr().err
    arguments += ["--encoding", "cp1252"]
    assert main(arguments) == 2 and "--sep ';'" in capsys.readouterr().err
    arguments += ["--sep", ";"]
    assert main(arguments) == 2
    told = capsys.readouterr().err
    assert "'crp' (" in told and "missing: {crp: [<5]}" in told
    assert "--kind crp=numeric --missing 'crp=<5'" in told
    arguments += ["--missing", "crp=<5"]
    assert main(arguments) in (0, 1, 3)


def test_a_category_that_no_real_table_has_is_an_input_error_without_a_verdict(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(0)
    frames = [
        pd.DataFrame({"zip": rng.choice(["01067", "10115"], 300), "x": rng.normal(size=300)})
        for _ in range(3)
    ]
    frames[2].loc[5, "zip"] = "1067"  # its zero was lost
    with pytest.raises(
        InputError, match="synthetic, column 'zip', row 5: it has categories that no real"
    ) as caught:
        judged(*frames)
    assert "1067" not in str(caught.value)
    assert judged(*frames, allowed_values={"zip": ["1067"]}).verdict in (
        "pass",
        "undecided",
        "fail",
    )
    for role, frame in zip(("train", "holdout", "synthetic"), frames, strict=True):
        frame.to_csv(tmp_path / f"{role}.csv", index=False)
    table = {
        "name": "people",
        "data": {role: f"{role}.csv" for role in ("train", "holdout", "synthetic")},
    }
    (tmp_path / "people.yaml").write_text(
        yaml.safe_dump({**table, "subject": {"each_row": True}, "evaluation": {"embedder": False}})
    )
    assert main(["run", str(tmp_path / "people.yaml"), "--home", str(tmp_path / "home")]) == 2
    assert not [*(tmp_path / "home" / "private").glob("**/failures/*")]
    assert not [*(tmp_path / "home" / "private").glob("**/verdicts/*")]


def test_a_pipeline_must_name_its_people(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = np.repeat([f"patient {number}" for number in range(40)], 22)
    pd.DataFrame({"patient_id": ids, "x": range(len(ids))}).to_parquet(tmp_path / "visits.parquet")
    asked: dict[str, Any] = {
        "name": "visits",
        "source": "visits.parquet",
        "evaluation": {"embedder": False},
    }
    (tmp_path / "visits.yaml").write_text(yaml.safe_dump(asked))
    assert main(["run", str(tmp_path / "visits.yaml"), "--home", str(tmp_path / "home")]) == 2
    told = capsys.readouterr().err
    assert "data: {subject: patient_id}" in told and "data: {subject: {each_row: true}}" in told
    assert "patient 1" not in told and not (tmp_path / "home" / "releases" / "visits").exists()
    for subject in ("patient_id", {"each_row": True}):
        assert TableSpec(
            name="visits", source="visits.parquet", subject=subject
        ).data.each_row == isinstance(subject, dict)
    with pytest.raises(ConfigError, match="each_row: true"):
        TableSpec(name="visits", source="visits.parquet", subject={"each_rows": True})


def test_evaluate_says_first_who_counts_as_a_person() -> None:
    assert judged(TRAIN, HOLDOUT, FRESH).notes[0].startswith("Each row counts as one person. If")
    assert (
        judged(TRAIN, HOLDOUT, FRESH, subject={"each_row": True}).notes[0]
        == "Each row counts as one person, as the user declared."
    )


def nightly(home: Path, frame: pd.DataFrame, **data: Any) -> int:
    frame.to_csv(home.parent / "visits.csv", index=False)
    table = {
        "name": "visits",
        "data": {"source": "visits.csv", "subject": {"each_row": True}, **data},
        "evaluation": {"embedder": False, "metrics": ["dcr"]},
    }
    table["policy"] = {
        "name": "near",
        "limits": [{"statistic": "dcr.privacy_score", "at_most": 0.9}],
    }
    (home.parent / "visits.yaml").write_text(yaml.safe_dump(table))
    return main(["run", str(home.parent / "visits.yaml"), "--home", str(home)])


@pytest.mark.slow
def test_later_nights_must_fit_the_contract_in_the_lock(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home, first = (
        tmp_path / "home",
        people(900, 1).assign(ward=np.array(["a", "b"])[np.arange(900) % 2]),
    )
    assert nightly(home, first) in (0, 1, 3)
    fits = people(900, 2).assign(
        ward=np.array(["a", "c"])[np.arange(900) % 2], a=lambda frame: frame["a"] * 7 + 0.5
    )
    assert nightly(home, fits.mask(np.random.default_rng(0).random(fits.shape) < 0.02)) in (0, 1, 3)
    capsys.readouterr()
    others = {
        "columns 'ward': 'categorical' -> not set": fits.drop(columns="ward"),
        "columns 'floor': not set -> 'number'": fits.assign(floor=np.arange(900) % 7),
        "columns 'a': 'number' -> 'categorical'": fits.assign(
            a=[f"code {n % 9}" for n in range(900)]
        ),
        "columns 'day': 'datetime' -> 'datetime, format": fits.assign(
            day=fits["day"].dt.strftime("%d.%m.%Y")
        ),
        "columns 'day': 'datetime' -> 'datetime, with": fits.assign(
            day=fits["day"].astype(str) + "T10:00:00Z"
        ),
    }
    for line, frame in others.items():
        assert nightly(home, frame) in (1, 2)
        assert line in "".join(capsys.readouterr())
    accept_all("visits", "--home", home)
    assert nightly(home, frame) in (0, 1, 3)


def test_a_declared_zone_of_days_hides_no_copies(plain: dict) -> None:
    """Precision is computed from the times in UTC. Computed from local days, it would round copies
    to other times.
    """
    assert statistics(judged(TRAIN, HOLDOUT, COPIES, timezone="Europe/Berlin")) == plain["copies"]


def test_dates_without_a_common_order_stop() -> None:
    days = [f"{day:02d}/{month:02d}/2020" for day in range(1, 29) for month in range(1, 29)]
    with pytest.raises(InputError, match="the dates have no common order"):
        infer_schema(pd.DataFrame({"visit": days}))


def test_short_offsets_are_time_zones() -> None:
    times = pd.DataFrame({"at": [f"2020-01-{day:02d} 10:00:00+00 " for day in range(1, 29)]})
    assert infer_schema(times)["at"].is_zoned
    assert Table.read(times)["at"].objects()[0] == pd.Timestamp("2020-01-01 10:00")


@pytest.mark.slow
def test_nights_are_read_under_the_contract_in_the_lock(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A night whose codes have no zeros, or whose days may be months, has the kinds of the nights
    before.
    """
    home, rng = tmp_path / "home", np.random.default_rng(5)

    def night(seed: int, codes: list[str], last_day: int) -> pd.DataFrame:
        days = [
            f"{rng.integers(1, last_day):02d}/{rng.integers(1, 13):02d}/2020" for _ in range(900)
        ]
        return people(900, seed).drop(columns="day").assign(zip=rng.choice(codes, 900), visit=days)

    assert nightly(home, night(1, ["01067", "10115", "80331"], 29)) in (0, 1, 3)
    assert nightly(home, night(2, ["10115", "80331", "20095"], 13)) in (0, 1, 3)
    assert "days or" not in "".join(capsys.readouterr())
    assert nightly(home, night(3, ["10115"], 29).assign(zip=np.arange(900) % 7 + 0.5)) in (
        0,
        1,
        3,
    )  # text in a CSV file
    months_first = night(4, ["10115"], 29)
    months_first["visit"] = months_first["visit"].str.replace(
        r"(\d\d)/(\d\d)", r"\2/\1", regex=True
    )
    capsys.readouterr()
    assert nightly(home, months_first) == 1
    assert "%d/%m/%Y' -> 'datetime, format %m/%d/%Y'" in "".join(capsys.readouterr())


@pytest.mark.parametrize("form", ["csv", "parquet", "gz"])
def test_a_table_on_standard_input(
    form: str, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    content = {
        "csv": lambda frame: frame.to_csv(index=False).encode(),
        "parquet": lambda frame: frame.to_parquet(),
        "gz": lambda frame: gzip.compress(frame.to_csv(index=False).encode()),
    }[form](COPIES)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
    TRAIN.to_parquet(tmp_path / "train.parquet")
    HOLDOUT.to_parquet(tmp_path / "holdout.parquet")
    asked = [
        "evaluate",
        "--train",
        str(tmp_path / "train.parquet"),
        "--holdout",
        str(tmp_path / "holdout.parquet"),
    ]
    asked += [
        "--metrics",
        "dcr,copies",
        "--no-embedder",
        "--quiet",
        "--json",
        str(tmp_path / "report.json"),
    ]
    assert main([*asked, "--synthetic", "-"]) == 1
    assert json.loads((tmp_path / "report.json").read_text())["verdict"] == "fail"
    assert main([*asked, "--synthetic", "-", "--reference", "-"]) == 2
    assert "one table only" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "is_id"),
    [
        ("member_id", True),
        ("memberId", True),
        ("MemberID", True),
        ("ID", True),
        ("patientid", True),
        ("p.id", True),
        ("pid", True),
        ("studyid", True),
        ("paid", False),
        ("covid", False),
        ("Solid", False),
        ("bid", False),
    ],
)
def test_a_name_that_ends_in_id_is_not_always_that_of_a_person(name: str, is_id: bool) -> None:
    frame = pd.DataFrame({name: np.repeat(np.arange(40), 5), "age": np.arange(200) % 50})
    assert (name in may_identify_people(frame, ())) == is_id


def test_the_first_refusal_names_the_likely_person_and_what_to_drop() -> None:
    def claims(start: int) -> pd.DataFrame:
        n = 900
        return pd.DataFrame({
            "claim_id": [f"CL-{start + i:06d}" for i in range(n)],
            "member_id": [f"M{(start + i) // 3:05d}" for i in range(n)],
            "age": np.arange(n) % 60, "plan": np.resize(["gold", "silver"], n),
        })  # fmt: skip

    with pytest.raises(InputError) as raised:
        evaluate(claims(0), claims(3000), claims(6000), metrics=["dcr"], embedder=False)
    told = str(raised.value)
    assert (
        "if 'member_id' identifies people, declare it and leave the rest out (data: {subject:"
        " member_id" in told
    )
    assert "--subject member_id --drop claim_id)" in told and len(told) < 1000


@pytest.mark.parametrize("shared", ["doctor_id", "manager_id"])
def test_a_unique_key_is_a_person_too(tmp_path: Path, capsys: Any, shared: str) -> None:
    rng = np.random.default_rng(0)
    n = 900
    frame = pd.DataFrame({
        "key": [f"P{i}" for i in range(n)], shared: [f"D{i}" for i in rng.integers(0, 300, n)],
        "age": rng.integers(18, 90, n), "sex": rng.choice(["f", "m"], n),
    })  # fmt: skip
    frame.to_csv(tmp_path / "stays.csv", index=False)
    main(["inspect", str(tmp_path / "stays.csv")])
    said = capsys.readouterr().out
    assert f"people may be identified by {shared}\nor by key, with one row each" in said
    main(["inspect", str(tmp_path / "stays.csv"), "--yaml"])
    lines = capsys.readouterr().out
    assert f"  subject: key or {shared}?\n" in lines
    (tmp_path / "stays.yaml").write_text(lines)
    assert main(["run", str(tmp_path / "stays.yaml"), "--home", str(tmp_path / "home")]) == 2
    assert (
        "write the name of the column that identifies people, without a question mark"
        in capsys.readouterr().err
    )
    (tmp_path / "stays.yaml").write_text(lines.replace("?", ""))
    assert main(["run", str(tmp_path / "stays.yaml"), "--home", str(tmp_path / "home")]) == 2
    assert "keep one of these names" in capsys.readouterr().err


def test_a_wrong_subject_with_one_row_each_is_questioned() -> None:
    n = 900
    frame = pd.DataFrame(
        {
            "claim_id": [f"CL-{i:06d}" for i in range(n)],
            "member_id": [f"M{i // 3:05d}" for i in range(n)],
            "age": np.arange(n) % 60,
        }
    )
    with pytest.raises(InputError, match="if 'member_id' identifies people, declare it"):
        canonical_table(frame, Declared(subject="claim_id"))


@pytest.mark.parametrize("kind", ["text", "integers"])
def test_identifiers_of_other_people_are_not_published(kind: str) -> None:
    rng = np.random.default_rng(0)
    numbers = 40_000 + np.arange(900)
    managers = numbers[rng.integers(0, 60, 900)]
    frame = pd.DataFrame(
        {"emp_no": numbers, "manager": managers, "age": np.arange(900) % 60, "grade": numbers % 4}
    )
    if kind == "text":
        frame = frame.assign(
            emp_no="E" + frame["emp_no"].astype(str), manager="E" + frame["manager"].astype(str)
        )
    with pytest.raises(
        InputError, match="column 'manager': most of its values are values of the subject 'emp_no'"
    ):
        canonical_table(frame, Declared(subject="emp_no"))
    small = frame.assign(emp_no=np.arange(900), manager=np.arange(900) % 7)
    assert canonical_table(small, Declared(subject="emp_no")).without_subject().schema.names == [
        "manager",
        "age",
        "grade",
    ]


@pytest.mark.parametrize("first", [0, 1])
def test_amounts_are_not_mistaken_for_people_who_are_numbered(first: int) -> None:
    rng = np.random.default_rng(0)
    amounts = np.where(rng.random(8000) < 0.5, 0, rng.integers(-200, 5000, 8000) // 10 * 10)
    frame = pd.DataFrame(
        {"member": first + np.arange(8000) // 2, "amount": amounts, "age": np.arange(8000) % 60}
    )
    assert canonical_table(frame, Declared(subject="member")).without_subject().schema.names == [
        "amount",
        "age",
    ]
    # ids have gaps
    some = frame.assign(year=rng.integers(1972, 2022, 8000)).sample(2500, random_state=first)
    table = canonical_table(some, Declared(subject="member"))
    assert table.without_subject().schema.names == ["amount", "age", "year"]
    assert len(table.notes) == 1 and "not linked" in table.notes[0]


def test_a_note_names_integers_that_may_be_people_who_are_numbered() -> None:
    rng = np.random.default_rng(0)
    members = np.arange(1, 4001)
    frame = pd.DataFrame(
        {"member": members, "manager": rng.choice(members[1000:], 4000), "age": members % 60}
    )
    table = canonical_table(frame, Declared(subject="member"))
    assert table.notes == (
        "All values of 'manager' are also values of 'member'. If they identify people, leave"
        " it out.",
    )


def test_names_of_people_are_left_out_of_a_proposed_file(tmp_path: Path, capsys: Any) -> None:
    n = 600
    names = np.resize(["Anna Schmidt", "Ben Weber", "Eva Braun"], n)
    frame = pd.DataFrame(
        {"no": [f"E{i}" for i in range(n)], "full_name": names, "age": np.arange(n) % 60}
    )
    frame.to_csv(tmp_path / "staff.csv", index=False)
    main(["inspect", str(tmp_path / "staff.csv"), "--yaml"])
    lines = capsys.readouterr().out
    assert (
        "  # full_name: names of people: drop them; it is published unless it stays in drop\n"
        in lines
    )
    assert yaml.safe_load(lines)["data"]["drop"] == ["full_name"]


def test_a_file_without_a_question_runs_as_it_is(tmp_path: Path, capsys: Any) -> None:
    rng = np.random.default_rng(0)
    n = 400
    frame = pd.DataFrame({
        "employee_no": [f"E{i}" for i in range(n)], "mail": [f"e{i}@x.org" for i in range(n)],
        "age": rng.integers(18, 90, n), "grade": rng.choice(list("abcd"), n),
    })  # fmt: skip
    frame.to_csv(tmp_path / "2024 staff.csv", index=False)
    main(["inspect", str(tmp_path / "2024 staff.csv"), "--yaml"])
    lines = capsys.readouterr().out
    assert "?" not in lines and yaml.safe_load(lines)["name"] == "table_2024_staff"
    table = ResolvedTable.of(TableSpec(**yaml.safe_load(lines)))
    assert source_table(table, None, None, None).schema.names == ["age", "grade"]


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("last_name", ["Schmidt", "Weber", "O’Hara"], "names of people"),
        ("customerName", ["Anna Schmidt", "Ben Weber"], "names of people"),
        ("product_name", ["a4 paper", "usb cable"], ""),
        ("lat", [48.13743, 52.52001, -33.1], "a position"),
        ("longitude", [11.57549, 13.40495, 151.2], "a position"),
        ("lat", [48.1, 52.5], ""),
        ("flat", [48.13743, 52.52001], ""),
        ("birth_date", list(pd.to_datetime(["1969-02-01", "1980-07-09"])), "a date of birth"),
        ("visit", list(pd.to_datetime(["1969-02-01", "1980-07-09"])), ""),
        ("host", ["10.0.0.1", "192.168.1.7"], "IP addresses"),
        ("host", ["fe80::1", "2001:db8::ff00:42:8329"], "IP addresses"),
        ("version", ["10.0.1", "1.2"], ""),
    ],
)
def test_personal_data_gets_a_note(name: str, values: list[Any], words: str) -> None:
    table = Table.read(pd.DataFrame({name: values * 20}))
    note = personal_note(table.schema[name], [table[name]])
    assert note.startswith(words) and bool(note) == bool(words)


def test_a_column_of_codes_may_identify_people_whatever_its_name(
    tmp_path: Path, capsys: Any
) -> None:
    rng = np.random.default_rng(3)
    rows = np.repeat(np.arange(600), rng.integers(1, 7, 600))
    claims = pd.DataFrame(
        {
            "Betrag": [f"{x:.2f}".replace(".", ",") for x in rng.gamma(2, 150, len(rows))],
            "Versicherter": 100_000 + rows,
            "Besuch": (
                pd.Timestamp("2022-01-01")
                + pd.to_timedelta(rng.integers(0, 700, len(rows)), unit="D")
            ).strftime("%d.%m.%Y"),
            "Alter": rng.integers(20, 90, len(rows)),
            "Fall": [f"F-{n // 2}" for n in range(len(rows))],
        }
    )
    claims.to_csv(tmp_path / "claims.csv", index=False, sep=";")
    main(["inspect", str(tmp_path / "claims.csv")])
    assert "people may be identified by Versicherter, Fall" in capsys.readouterr().out
    main(["inspect", str(tmp_path / "claims.csv"), "--yaml"])
    assert yaml.safe_load(capsys.readouterr().out)["data"]["subject"] == "Versicherter"
