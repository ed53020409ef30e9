"""One person in two spellings: through ``evaluate``, ``run`` and ``inspect``, and from night to
night.
"""

from __future__ import annotations

import decimal
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from privacy_assets import evaluate
from privacy_assets.cli.main import main
from privacy_assets.errors import ConfigError, InputError
from privacy_assets.evaluation.power import power_analysis
from privacy_assets.pipeline.resolve import ResolvedTable
from privacy_assets.pipeline.spec import TableSpec
from privacy_assets.tables.canonical import canonical_table
from privacy_assets.tables.declared import Declared
from privacy_assets.tables.splitting import split_rows
from privacy_assets.tables.subject_ids import plain_id, plain_ids

EXACT = {"column": "id", "exact": True}
# Two spellings of one id.
SPELLINGS = {
    "case": ("Ab7", "aB7"),
    "blank at the end": ("a7", "a7 "),
    "tab at the end": ("a7", "a7\t"),
    "new line at the end": ("a7", "a7\n"),
    "no-break space": ("a 7", "a\u00a07"),
    "two blanks": ("a 7", "a  7"),
    "zero-width space": ("a7", "a\u200b7"),
    "zero-width joiner": ("a7", "a\u200d7"),
    "soft hyphen": ("a7", "a\u00ad7"),
    "byte order mark": ("a7", "\ufeffa7"),
    "right-to-left mark": ("a7", "a7\u200f"),
    "variation selector": ("a7", "a7\ufe0f"),
    "control character": ("a7", "a7\x00"),
    "decomposed": ("Andr\u00e9", "Andre\u0301"),
    "order of marks": ("a\u0323\u0307", "a\u0307\u0323"),
    "mark after a joiner": ("\u00e9", "e\u200d\u0301"),
    "full-width": ("ab12", "\uff41\uff42\uff11\uff12"),
    "Arabic digits": ("12", "\u0661\u0662"),
    "ligature": ("fiona", "\ufb01ona"),
    "sharp s": ("stra\u00dfe", "STRASSE"),
    "capital sharp s": ("stra\u00dfe", "STRA\u1e9eE"),
    "final sigma": ("\u03c3\u03ac\u03c3", "\u03a3\u0386\u03a3"),
    "Turkish dotless i": ("\u0131\u015f\u0131k", "I\u015eIK"),
    "Turkish dotted i": ("izmir", "\u0130ZM\u0130R"),
    "dash": ("a-7", "a\u20117"),
    "minus": ("-7", "\u22127"),
    "leading zeros": ("7", "007"),
    "leading zeros of a code": ("7b", "007B"),
    "zeros": ("0", "000"),
    "fraction of zero": ("7", "7.0"),
    "point": ("7", "7."),
    "plus": ("5", "+5"),
    "minus zero": ("0", "-0"),
    "scientific": ("1000", "1.000E+03"),
    "exponent": ("1000", "1e3"),
    "negative exponent": ("1", "1000E-3"),
    "zero of a spreadsheet": ("0", "0.00E+00"),
    "large": (str(10**22), "1e+22"),
}
DIFFERENT = [
    ("1,000", "1000"),
    ("1.5", "15"),
    ("1.5", "1.50"),
    ("-5", "5"),
    ("a b", "ab"),
    ("a-b", "ab"),
    ("A7.0", "A7"),
    ("0e12", "0e55"),
    ("0e12", "0"),
    ("1e999999", "1e999998"),
    (str(2**60), str(2**60 + 1)),
    ("\u00e9", "e"),
    ("1e-3", "0.001"),
    ("7", "70"),
    ("0.5", "5"),
]


def people(rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({name: rng.normal(100, 15, rows).round() for name in "abcde"})
    return frame.assign(id=[f"r{seed}-{row}" for row in range(rows)])


TRAIN, HOLDOUT, FRESH = people(120, 1), people(90, 2), people(80, 3).drop(columns="id")


def with_ids(frame: pd.DataFrame, *ids: object) -> pd.DataFrame:
    """Put ids into the rows from 5 on."""
    return frame.assign(id=[*frame["id"][:5], *ids, *frame["id"][5 + len(ids) :]])


def judged(train: pd.DataFrame, holdout: pd.DataFrame, subject: Any = "id", **more: Any) -> Any:
    return evaluate(
        train,
        holdout,
        FRESH,
        subject=subject,
        metrics=["dcr"],
        embedder=False,
        progress=lambda line: None,
        **more,
    )


@pytest.mark.parametrize(("first", "other"), SPELLINGS.values(), ids=list(SPELLINGS))
def test_two_spellings_of_an_id_stop(first: str, other: str) -> None:
    assert plain_id(first) == plain_id(other) != ""
    assert plain_id(plain_id(other)) == plain_id(other)
    one_table = with_ids(TRAIN, first, other)
    message = (
        r"column 'id', row 6: 2 ids are only 1 if case, .* such as the ids of this row and of"
        r" row 5 in"
    )
    with pytest.raises(InputError, match=message):
        canonical_table(one_table, Declared(subject="id"))
    with pytest.raises(InputError, match=message):
        judged(one_table, HOLDOUT)
    message = "holdout, column 'id', row 5: 2 ids are only 1 .* of row 5 in train"
    with pytest.raises(InputError, match=message) as caught:
        judged(with_ids(TRAIN, first), with_ids(HOLDOUT, other))
    assert "subject: {column: id, exact: true}" in str(
        caught.value
    ) and "--subject id --exact-ids" in str(caught.value)
    assert "r1-" not in str(caught.value), "no id in a message"


@pytest.mark.parametrize(("first", "other"), DIFFERENT)
def test_other_ids_are_different_people(first: str, other: str) -> None:
    assert plain_id(first) != plain_id(other)
    table = canonical_table(with_ids(TRAIN, first, other), Declared(subject="id"))
    assert table.subject_ids is not None and len(table.subject_ids.distinct()) == len(TRAIN)


@pytest.mark.parametrize(
    ("first", "other"),
    [
        (pd.Series(range(7, 127)), pd.Series(["007", *map(str, range(1000, 1089))])),
        (pd.Series(np.arange(7.0, 127)), pd.Series(["7.0", *map(str, range(1000, 1089))])),
        (
            pd.Series([decimal.Decimal(f"{n}.00") for n in range(7, 127)]),
            pd.Series(range(126, 216)),
        ),
        (
            pd.Series([f"U{n}" for n in range(120)], dtype="category"),
            pd.Series([f"u{n}" for n in range(119, 209)]),
        ),
    ],
    ids=["int", "float", "decimal", "category"],
)
def test_spellings_of_other_types(first: pd.Series, other: pd.Series) -> None:
    with pytest.raises(InputError, match="holdout, column 'id', row .*: 2 ids are only 1 if"):
        judged(TRAIN.assign(id=first), HOLDOUT.assign(id=other))


def test_equal_values_of_two_types_are_one_person() -> None:
    numbers = [
        TRAIN.assign(id=pd.Series(range(120), dtype=dtype)) for dtype in ("int64", "float64", "str")
    ]
    found = [
        canonical_table(frame, Declared(subject="id")).subject_ids.objects() for frame in numbers
    ]
    assert found[0] == found[1] == found[2]


def test_all_ids_are_counted() -> None:
    with pytest.raises(InputError, match="row 6: 5 ids are only 2 if"):
        canonical_table(
            with_ids(TRAIN, "x1", "X1", "x1", "x1 ", "y1", "Y1"), Declared(subject="id")
        )


@pytest.mark.parametrize(
    "empty", ["", " ", "\u00a0", "\u200b\ufeff", "\t\n", "\u3164", "\u00ad \u200f"]
)
@pytest.mark.parametrize("subject", ["id", EXACT])
def test_an_id_without_a_visible_character_is_missing(empty: str, subject: Any) -> None:
    with pytest.raises(InputError, match="train, column 'id', row 5: the subject is missing"):
        judged(with_ids(TRAIN, empty), HOLDOUT, subject)


def test_ids_of_great_length_are_read_at_once() -> None:
    start = time.process_time()
    texts = [
        "1e999999",
        "1e" + "9" * 100_000,
        "1" + "0" * 100_000,
        "0" * 100_000 + "1",
        "\u200b" * 100_000 + "a",
    ]
    assert [len(text) for text in plain_ids(texts)] == [8, 100_002, 100_001, 1, 1]
    assert len(plain_id("1e99")) == 100 and plain_id("1e100") == "1e100"
    assert time.process_time() - start < 2


@pytest.mark.slow
def test_a_million_ids_are_compared_in_seconds() -> None:
    start = time.process_time()
    for form in ("{}", "{:08d}", "P{:07d}", "M\u00fc{}"):
        assert len(set(plain_ids([form.format(number) for number in range(250_000)]))) == 250_000
    assert time.process_time() - start < 15


@pytest.mark.slow
def test_exact_ids_are_different_people() -> None:
    tables = with_ids(TRAIN, "Ab", "aB"), with_ids(HOLDOUT, "ab", "AB")
    with pytest.raises(InputError, match="row 6: 4 ids are only 1 if"):
        judged(*tables)
    report = judged(*tables, EXACT)
    assert report.tables["train"]["subjects"] == 120 and report.tables["holdout"]["subjects"] == 90
    (note,) = [note for note in report.notes if "People are identified" in note]
    assert "'id'" in note and note.endswith("are different people, as the user declared.")
    assert not [note for note in judged(TRAIN, HOLDOUT).notes if "different people" in note]
    with pytest.raises(InputError, match="1 subjects are in both train and holdout"):
        judged(with_ids(TRAIN, "Ab", "aB"), with_ids(HOLDOUT, "Ab"), EXACT)


@pytest.mark.parametrize(
    "subject",
    [
        {"column": "id", "exact": "yes"},
        {"exact": True},
        {"column": 3},
        {"column": "id", "each_row": True},
        {},
    ],
)
def test_other_subjects_are_rejected(subject: Any) -> None:
    with pytest.raises(
        ConfigError, match="subject must be the name of a column, .each_row: true. or .column: id"
    ):
        judged(TRAIN, HOLDOUT, subject)
    with pytest.raises(ConfigError, match="subject must be the name of a column"):
        TableSpec(name="people", source="demo", subject=subject)
    with pytest.raises(ConfigError, match="columns: subject: Input should be a valid string"):
        judged(TRAIN, HOLDOUT, ["id"])


def test_exact_ids_need_a_subject() -> None:
    with pytest.raises(ConfigError, match="exact ids need the subject"):
        ResolvedTable.of(
            TableSpec(name="people", source="demo", data={"exact_ids": True, "each_row": True})
        )
    plain = TableSpec(name="people", source="demo", subject={"column": "person", "exact": False})
    assert plain == TableSpec(name="people", source="demo", subject="person")


@pytest.mark.parametrize(
    ("subject", "setting"),
    [
        ({"column": "id"}, "exact_ids"),
        ({"each_row": True}, "exact_ids"),
        ({"column": "id", "exact": True}, "each_row"),
    ],
)
def test_a_setting_that_contradicts_the_subject_is_not_dropped(
    subject: dict[str, object], setting: str
) -> None:
    with pytest.raises(ConfigError, match=f"subject and {setting} contradict each other"):
        TableSpec(name="t", data={"source": "demo", "subject": subject, setting: True})


@pytest.mark.slow
def test_exact_ids_are_an_accepted_setting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    visits = pd.DataFrame({"a": rng.normal(size=300), "b": rng.choice(list("xyz"), 300)})
    ids = pd.Series([*(f"r{number}" for number in range(148)), "Ab", "aB"])
    visits.assign(id=ids.repeat(2).tolist()).to_csv(tmp_path / "people.csv", index=False)
    run = [
        "run",
        str(tmp_path / "people.yaml"),
        "--home",
        str(tmp_path / "home"),
        "--out",
        str(tmp_path / "out"),
    ]

    def ran(subject: Any) -> str:
        data = {"source": "people.csv", "subject": subject}
        table = {
            "name": "people",
            "data": data,
            "evaluation": {"metrics": ["dcr"], "embedder": False},
        }
        limit = {
            "statistic": "dcr.member_excess",
            "at_most": 0.1,
            "bound": "proven",
            "min_subjects": 5,
        }
        policy = {"limits": [limit], "embedder": False}
        (tmp_path / "people.yaml").write_text(yaml.safe_dump({**table, "policy": policy}))
        main(run)
        return capsys.readouterr().err

    assert re.search("source, column 'id', row 298: 2 ids are only 1 if", ran("id"))
    ran(EXACT)
    (published,) = (tmp_path / "home/releases").rglob("table.parquet")
    pd.read_csv(tmp_path / "people.csv")[:298].to_csv(tmp_path / "people.csv", index=False)
    assert "exact_ids: True -> not set" in ran("id")
    assert main(["verify", str(published), "--home", str(tmp_path / "home")]) == 0
    assert "ids are exact text" in re.sub(r"\s+", " ", capsys.readouterr().out)


def test_the_split_does_not_follow_the_spelling() -> None:
    ids = [f"{number:03d}A" for number in range(200)]
    respelled = [f"{number}\uff41 " for number in range(200)]
    frame = pd.DataFrame({"x": np.random.default_rng(0).normal(size=200)})

    def sides(names: list[str], **more: Any) -> list[list[int]]:
        table = canonical_table(
            frame.assign(id=names), Declared(subject="id", exact_ids=bool(more))
        )
        return [rows.tolist() for rows in split_rows(table, b"key", **more).values()]

    assert sides(ids) == sides(respelled)
    assert sides(ids, exact_ids=True) != sides(respelled, exact_ids=True)


def test_a_column_with_ids_in_another_spelling_is_not_published() -> None:
    managers = [f"p{number % 30:04d} " for number in range(120)]
    frame = TRAIN.assign(id=[f"P{number:04d}" for number in range(120)], manager=managers)
    with pytest.raises(
        InputError, match="column 'manager': most of its values are values of the subject 'id'"
    ):
        canonical_table(frame, Declared(subject="id"))


def test_inspect_proposes_exact_ids(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    visits = pd.concat([TRAIN] * 3, ignore_index=True).rename(columns={"id": "patient_id"})
    visits.to_csv(tmp_path / "plain.csv", index=False)
    visits.loc[:3, "patient_id"] = visits.loc[:3, "patient_id"].str.upper()
    visits.to_csv(tmp_path / "visits.csv", index=False)
    main(["inspect", str(tmp_path / "plain.csv"), "--yaml"])
    assert "subject: patient_id\n" in capsys.readouterr().out
    assert main(["inspect", str(tmp_path / "visits.csv")]) == 1
    assert "patient_id: 8 ids are only 4 if case, blanks" in re.sub(
        r"\s+", " ", capsys.readouterr().out
    )
    assert main(["inspect", str(tmp_path / "visits.csv"), "--yaml"]) == 1
    proposed = capsys.readouterr().out
    question = yaml.safe_load(proposed)["data"]["subject"]
    assert question == "{column: patient_id, exact: true}?"
    with pytest.raises(InputError, match="the subject is a question of `inspect`"):
        canonical_table(visits, Declared(subject=question))
    decided = yaml.safe_load(question.removesuffix("?"))
    assert TableSpec(name="visits", source="visits.csv", subject=decided).data.exact_ids


@pytest.mark.slow
@pytest.mark.parametrize("command", ["evaluate", "power", "generate", "audit", "leak-study"])
def test_commands_have_the_option(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_ids(TRAIN, "Ab", "aB").to_csv(tmp_path / "people.csv", index=False)
    with_ids(HOLDOUT).to_csv(tmp_path / "holdout.csv", index=False)
    FRESH.to_csv(tmp_path / "fresh.csv", index=False)
    data, out = str(tmp_path / "people.csv"), str(tmp_path / "out")
    words = {
        "evaluate": [
            "--train",
            data,
            "--holdout",
            f"{tmp_path}/holdout.csv",
            "--synthetic",
            f"{tmp_path}/fresh.csv",
        ],
        "power": ["--rows", data, "--train", "50", "--holdout", "50"],
        "generate": ["--data", data, "--out", f"{out}.csv", "--generator", "copy"],
        "audit": ["--data", data, "--generator", "copy"],
        "leak-study": ["--data", data, "--out", out],
    }[command]
    assert main([command, *words, "--subject", "id", "--quiet"]) == 2
    assert "2 ids are only 1 if" in capsys.readouterr().err
    assert main([command, *words, "--exact-ids", "--quiet"]) == 2
    assert re.search("subject", capsys.readouterr().err)
    if command in ("evaluate", "generate"):
        main([command, *words, "--subject", "id", "--exact-ids", "--quiet"])
        assert "ids are only" not in capsys.readouterr().err


def test_a_power_analysis_takes_exact_ids() -> None:
    frame = with_ids(TRAIN, "Ab", "aB")
    with pytest.raises(InputError, match="2 ids are only 1 if"):
        power_analysis(5, 5, 5, rows=frame, subject="id", draws=1)
    with pytest.raises(InputError, match="there are 120 people"):
        power_analysis(500, 500, rows=frame, subject=EXACT, draws=1)
