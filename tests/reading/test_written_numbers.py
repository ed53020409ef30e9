"""Numbers with a sign, a unit or thousands, and codes that look like numbers: through ``evaluate``,
``run`` and ``inspect``.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from privacy_assets import Report, evaluate
from privacy_assets.cli.main import main
from privacy_assets.cli.options import DECLARATIONS
from privacy_assets.errors import ConfigError, InputError
from privacy_assets.tables.conversion import texts_of
from privacy_assets.tables.declared import Declared
from privacy_assets.tables.inference import columns_to_accept, infer_schema, joint_schema
from privacy_assets.tables.meaning import Meaning
from privacy_assets.tables.table import Table
from privacy_assets.tables.text import recognize_text

Write = Callable[[int], str]
NAMES = list("abcdef")
FULL_WIDTH = str.maketrans("0123456789", "０１２３４５６７８９")
ARABIC = str.maketrans("0123456789", "٠١٢٣٤٥٦٧٨٩")
ARABIC_SIGNS = str.maketrans("0123456789.,", "٠١٢٣٤٥٦٧٨٩٫٬")


def numbers(n_rows: int, seed: int) -> pd.DataFrame:
    """Return six correlated columns of integers, also negative ones."""
    rng = np.random.default_rng(seed)
    common = rng.normal(0, 1, n_rows)
    columns = {
        name: (900 * (common + 0.5 * rng.normal(0, 1, n_rows))).round() + 1200 for name in NAMES
    }
    return pd.DataFrame(columns).astype(int)


TRAIN, HOLDOUT, FRESH = numbers(500, 1), numbers(400, 2), numbers(400, 3)


def moved(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with each cell replaced by the next value of its column."""
    columns = {}
    for name in frame.columns:
        values = np.unique(frame[name])
        position = np.searchsorted(values, frame[name])
        columns[name] = values[np.minimum(position + 1, len(values) - 1)]
    return pd.DataFrame(columns)


def written(frame: pd.DataFrame, write: Write) -> pd.DataFrame:
    return frame.map(write).astype("str")


def grouped(mark: str) -> Write:
    return lambda number: f"{number:,}".replace(",", mark)


def signed(text: Write, negative: Write) -> Write:
    return lambda number: text(number) if number >= 0 else negative(-number)


READ: dict[str, Write] = {
    "$5": lambda x: f"${x}",
    "-$5": signed(lambda x: f"${x}", lambda x: f"-${x}"),
    "($5)": signed(lambda x: f"${x}", lambda x: f"(${x})"),
    "$(5)": signed(lambda x: f"$ {x}", lambda x: f"$ ({x})"),
    "(5) $": signed(lambda x: f"{x} $", lambda x: f"({x}) $"),
    "(5)": signed(str, lambda x: f"({x})"),
    "US$ 5": lambda x: f"US$ {x}",
    "5 %": lambda x: f"{x} %",
    "5%": lambda x: f"{x}%",
    "5 % and 5%": lambda x: f"{x} %" if x % 2 else f"{x}%",
    "5 ‰": lambda x: f"{x} ‰",
    "5 €": lambda x: f"{x} €",
    "5 € with a no-break space": lambda x: f"{x}\u00a0€",
    "5,00 €": lambda x: f"{x},00 €",
    "1.234,00 €": lambda x: f"{x:,}".replace(",", ".") + ",00 €",
    "1 234,00 €": lambda x: f"{x:,}".replace(",", "\u202f") + ",00 €",
    "CHF 1'234.00": lambda x: f"CHF {x:,}.00".replace(",", "'"),
    "$1,234.00": lambda x: f"${x:,}.00",
    "5 EUR": lambda x: f"{x} EUR",
    "5EUR": lambda x: f"{x}EUR",
    "EUR 5": lambda x: f"EUR {x}",
    "5 usd": lambda x: f"{x} usd",
    "5 kg": lambda x: f"{x} kg",
    "5kg": lambda x: f"{x}kg",
    "5 m": lambda x: f"{x} m",
    "5 °C": lambda x: f"{x} °C",
    "5 mmHg": lambda x: f"{x} mmHg",
    "1 234": grouped(" "),
    "1 234 narrow": grouped("\u202f"),
    "1 234 no break": grouped("\u00a0"),
    "1'234": grouped("'"),
    "1’234": grouped("’"),
    "full-width": lambda x: str(x).translate(FULL_WIDTH),
    "full-width with a unit": lambda x: f"￥{x}".translate(FULL_WIDTH),
    "Arabic": lambda x: str(x).translate(ARABIC),
    "Arabic 5.00": lambda x: f"{x:,}.00".translate(ARABIC_SIGNS),
    "typographic minus": lambda x: str(x).replace("-", "\u2212"),
}
STOPS: dict[str, tuple[Write, Any]] = {  # with the first choice that is printed
    "CHF 5.-": (lambda x: f"CHF {abs(x)}.-", "categorical"),
    "<1,000.5": (lambda x: f"<{1000 * abs(x) + 1000:,}.5", "categorical"),
    ">=5 mg": (lambda x: f"≥{abs(x)} mg", "categorical"),
    "two blanks": (lambda x: f"{abs(x) + 1}  000", "categorical"),
    "soft hyphen": (lambda x: f"1\u00ad{100 + abs(x)}", "categorical"),
    "5*10^3": (lambda x: f"{abs(x)}*10^3", "categorical"),
    "1,5E5": (lambda x: f"{abs(x)},5E5", "categorical"),
    "~5": (lambda x: f"~{x}", {"numeric": {"unit": "~"}}),
    "'5": (lambda x: f"'{x}", {"numeric": {"unit": "'"}}),
    "5 lbs": (lambda x: f"{x} lbs", {"numeric": {"unit": "lbs"}}),
    "5lbs": (lambda x: f"{x}lbs", {"numeric": {"unit": "lbs"}}),
    "5 mm Hg": (lambda x: f"{x} mm Hg", {"numeric": {"unit": "mm Hg"}}),
    "5 kg/m2": (lambda x: f"{x} kg/m2", {"numeric": {"unit": "kg/m2"}}),
    "1_000": (grouped("_"), "numeric"),
    "only (5)": (lambda x: f"({abs(x)})", "numeric"),
    "few without a unit": (lambda x: f"${x}" if x % 9 else str(x), {"numeric": {"unit": "$"}}),
    "few with a unit": (lambda x: str(x) if x % 9 else f"{x}kg", {"numeric": {"unit": "kg"}}),
    "two units": (lambda x: f"{x} kg" if x % 9 else f"{x} g", {"numeric": {"unit": "kg"}}),
    "unit, comma": (
        lambda x: f"{x},5 €" if x % 9 else f"{x},5",
        {"numeric": {"unit": "€", "decimal": ","}},
    ),
    "1.5M": (lambda x: f"{x / 10}M", {"numeric": {"unit": "M"}}),
    "1.5M and 1.5k": (
        lambda x: f"{x / 10}M" if x % 3 else f"{x / 10}k",
        {"numeric": {"unit": "M"}},
    ),
    "5 (est.)": (lambda x: f"{x} (est.)", {"numeric": {"unit": "(est.)"}}),
    "5-": (signed(str, lambda x: f"{x}-"), "numeric"),
    "5.-": (lambda x: f"{x}.-", "categorical"),
    "<5": (lambda x: f"<{x}", "categorical"),
    "few <5": (lambda x: f"<{x}" if x % 9 == 0 else str(x), "numeric"),
    "few ~5": (lambda x: f"~{x}" if x % 3 == 0 else str(x), "numeric"),
    "en dash": (lambda x: str(x).replace("-", "\u2013"), "numeric"),
    "invisible": (lambda x: f"\u200e{x}", "categorical"),
    **{
        f"5 {unit}": (lambda x, unit=unit: f"{x} {unit}", {"numeric": {"unit": unit}})
        for unit in (
            "mL/min/1.73m2",
            "mL/min/1.73 m²",
            "x10^9/L",
            "10^9/L",
            "10*3/uL",
            "10³/µL",
            "10E3/uL",
            "×10⁹/L",
            "per 1000",
            "per 100,000 inhabitants",
            "kg/m^2",
            "mg/24h",
            "out of 1000",
            "milliequivalents per litre",
            "± 2",
            "+/- 2",
            "h 5 min",
        )
    },
    **{
        f"5{unit}": (lambda x, unit=unit: f"{x}{unit}", {"numeric": {"unit": unit}})
        for unit in ("mL/min/1.73m2", "mg/24h", "m2", "x10^9/L", "ft 11in")
    },
    **{
        f"{unit} 5": (lambda x, unit=unit: f"{unit} {x}", {"numeric": {"unit": unit}})
        for unit in (
            "kr",
            "Fr.",
            "Rs.",
            "No.",
            "approx",
            "approx.",
            "Room",
            "Room #",
            "age in years",
        )
    },
    "Rs.5": (lambda x: f"Rs.{x}", {"numeric": {"unit": "Rs."}}),
    "$5k": (lambda x: f"${x}k", {"numeric": {"unit": "$ k"}}),
    "€3M": (lambda x: f"€{x}M", {"numeric": {"unit": "€ M"}}),
    "$5m": (lambda x: f"${x}m", {"numeric": {"unit": "$ m"}}),
    "CHF 5k": (lambda x: f"CHF {x}k", {"numeric": {"unit": "CHF k"}}),
    "5g and 5 kg": (lambda x: f"{x}g" if x % 5 else f"{x} kg", {"numeric": {"unit": "g"}}),
    "5m and 5 m": (lambda x: f"{x}m" if x % 5 else f"{x} m", {"numeric": {"unit": "m"}}),
    "3M and 1.5M": (lambda x: f"{x}M" if x % 5 else f"{x}.5M", {"numeric": {"unit": "M"}}),
    "5 out of many": (
        lambda x: f"{x} out of {1000 if x % 3 else 900 + x % 90}",
        {"numeric": {"unit": "out of 1000"}},
    ),
    "5 ± many": (lambda x: f"{x} ± {1 + abs(x) % 97}", "categorical"),
    "5 with a long text": (lambda x: f"{x} {'of all people that we asked ' * 2}", "categorical"),
    "5, est.": (lambda x: f"{x}, est.", "categorical"),
    "5·5": (lambda x: f"{x}·{abs(x) % 9 + 1}", "numeric"),
    "5`000": (grouped("`"), "numeric"),
    "5´000": (grouped("´"), "numeric"),
    "5,00,104": (
        lambda x: f"{'-' * (x < 0)}{abs(x) % 90 + 1},00,{abs(x) % 900 + 100}",
        {"numeric": {"decimal": "."}},
    ),
}
CODES: dict[str, Write] = {
    "A5": lambda x: f"A{abs(x)}",
    "FY5": lambda x: f"FY{abs(x)}",
    "M5": lambda x: f"M{abs(x)}",
    "5G": lambda x: f"{abs(x)}G",
    "5m": lambda x: f"{abs(x)}m",
    "3M": lambda x: f"{abs(x)}M",
    "5A/3": lambda x: f"{abs(x)}{'AB'[x % 2]}/{abs(x) % 3}",
    "5h30": lambda x: f"{abs(x)}h{30 * (x % 2):02d}",
    "#5A": lambda x: f"#{abs(x)}{'AB'[x % 2]}",
    "A.5": lambda x: f"A.{abs(x)}",
    "Room 5A": lambda x: f"Room {abs(x)}{'AB'[x % 2]}",
    "A5.1": lambda x: f"J{abs(x) % 99}.{abs(x) % 9}",
    "5B12": lambda x: f"{abs(x)}B12",
    "EUR5": lambda x: f"EUR{abs(x)}",
    "v1.5": lambda x: f"v{abs(x) % 30}.{abs(x) % 7}",
    "5 (7)": lambda x: f"{abs(x)} ({abs(x) % 7})",
    "5 Main St": lambda x: f"{abs(x)} {'abcdefghijklmn'[x % 14]} St",
    "5/7": lambda x: f"{abs(x)}/{abs(x) + 3}",
    "5-7": lambda x: f"{abs(x)}-{abs(x) + 3}",
    "10:30": lambda x: f"{abs(x) % 24}:30",
    "phone": lambda x: f"+49 151 234 {1000 + abs(x) % 9000}",
    "phone in groups": lambda x: f"+49 151 234 {100 + abs(x) % 900}",
    "phone with brackets": lambda x: f"(0151) {1000 + abs(x)}",
    "12E5": lambda x: f"{abs(x) % 90}E{abs(x) % 9}",
    "Room 005": lambda x: f"Room {abs(x):05d}",
    "10:30 PM": lambda x: f"{abs(x) % 24}:{abs(x) % 4 * 15:02d} {'AP'[x % 2]}M",
    "3 x 4": lambda x: f"{abs(x)} x {abs(x) % 4 + 1}",
    "120/80 mmHg": lambda x: f"{abs(x)}/{abs(x) % 5 + 78} mmHg",
    "5 (7 of 9)": lambda x: f"{abs(x)} (7 of 9)",
    "5-A": lambda x: f"{abs(x)}-{'AB'[x % 2]}",
    "1.2.3": lambda x: f"1.{abs(x)}.3",
    "5 Main St Apt 7": lambda x: f"{abs(x)} {'abcdefghijklmn'[x % 14]} St Apt {abs(x) % 9}",
    "text with numbers": lambda x: f"fell on the {abs(x) % 31}st, case {abs(x)}",
    "few 3 in 1": lambda x: f"{abs(x) % 20 + 1} in 1 shampoo",
    "product 5": lambda x: f"product {abs(x) % 50}",
    "few Week 5": lambda x: f"Week {abs(x) % 20 + 1}",
}
WITH_NOTE = (
    "A5",
    "FY5",
    "M5",
    "5G",
    "5m",
    "3M",
    "5B12",
    "EUR5",
    "12E5",
    "A5.1",
    "Room 005",
    "product 5",
)


def judged(*tables: Any, **more: Any) -> Report:
    return evaluate(
        *tables, embedder=False, metrics=["dcr", "copies"], progress=lambda line: None, **more
    )


def statistics(report: Report) -> list[float | None]:
    return [estimate.value for result in report.results.values() for estimate in result.estimates]


def kinds_of_options(kind: str) -> dict[str, Any]:
    options = argparse.Namespace(kind=[kind])
    return dict(DECLARATIONS["kinds"].value(options))


def notes_of(frame: pd.DataFrame, kinds: Any = None) -> str:
    return " ".join(
        joint_schema({"train": frame}, {"train": "train"}, Declared(kinds=kinds or {}))[1]
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", READ)
def test_numbers_with_marks_are_the_plain_numbers(name: str, tmp_path: Path) -> None:
    rows = TRAIN[["a", "b"]]
    text = written(rows, READ[name])
    has_decimals = ",00" in name or ".00" in name
    expected = Table.read(rows.astype(float) if has_decimals else rows)
    typed = Table.read(text)
    text.to_csv(tmp_path / "t.csv", index=False)
    text.astype("category").to_parquet(tmp_path / "t.parquet", index=False)
    for table in (typed, Table.read(tmp_path / "t.csv"), Table.read(tmp_path / "t.parquet")):
        assert [column.kind for column in table.schema.columns] == [expected.schema["a"].kind] * 2
        assert all(table[column].equals(expected[column]) for column in rows.columns)
        assert {column.dtype for column in table.schema.columns} == {
            "float64" if has_decimals else "int64"
        }
    if name != "typographic minus":
        assert "numbers" in notes_of(text) or "digits" in notes_of(text)


@pytest.fixture(scope="module")
def plain() -> dict[str, list[float | None]]:
    tables = {"fresh": FRESH, "moved": moved(TRAIN)}
    return {
        name: statistics(judged(TRAIN, HOLDOUT, synthetic)) for name, synthetic in tables.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "$5",
        pytest.param("1 234 narrow", marks=pytest.mark.slow),
        pytest.param("(5)", marks=pytest.mark.slow),
    ],
)
def test_statistics_do_not_depend_on_marks(name: str, plain: dict[str, list[float | None]]) -> None:
    real = [written(table, READ[name]) for table in (TRAIN, HOLDOUT)]
    report = judged(*real, written(FRESH, READ[name]))
    assert statistics(report) == plain["fresh"] and report.verdict != "fail"
    report = judged(*real, written(moved(TRAIN), READ[name]))
    assert statistics(report) == plain["moved"] and report.verdict == "fail"
    # the synthetic table has plain numbers
    assert statistics(judged(*real, moved(TRAIN))) == plain["moved"]


@pytest.mark.slow
@pytest.mark.parametrize("name", STOPS)
def test_other_marks_stop_with_the_line_to_paste(name: str) -> None:
    write, choice = STOPS[name]
    frame = written(TRAIN, write)[["a"]]
    with pytest.raises(InputError, match="a column of text is ambiguous: 'a'") as caught:
        infer_schema(frame)
    message = str(caught.value)
    start = message.index("data: ") + len("data: ")
    pasted = yaml.safe_load(message[start : message.index("; on the command line")])
    assert pasted["kinds"] == {"a": choice}
    if choice == "categorical":
        return
    assert "'a' can also be categorical" in message
    schema = infer_schema(frame, pasted["kinds"])
    assert schema["a"].kind == "numeric"


@pytest.mark.parametrize(
    "name",
    [
        "~5",
        "'5",
        "5 lbs",
        "5 kg/m2",
        "1_000",
        "few without a unit",
        "few with a unit",
        "5 mL/min/1.73m2",
        "5 10*3/uL",
        "5 per 1000",
        "5m2",
        "Fr. 5",
        "Rs.5",
        "$5k",
        "5m and 5 m",
        "5`000",
    ],
)
def test_the_pasted_line_reads_the_plain_numbers(name: str) -> None:
    write, choice = STOPS[name]
    frame = written(TRAIN[["a"]], write)
    table = Table.read(frame, kinds={"a": choice})
    expected = Table.read(TRAIN[["a"]], kinds={"a": "numeric"})
    assert table["a"].equals(expected["a"])


@pytest.mark.slow
@pytest.mark.parametrize("name", CODES)
def test_codes_and_two_numbers_stay_text(name: str, tmp_path: Path) -> None:
    frame = written(TRAIN, CODES[name])[["a"]]
    assert infer_schema(frame)["a"].kind == "categorical"
    notes = notes_of(frame)
    assert "whether their numbers or dates are near is not measured" not in notes
    assert (name not in WITH_NOTE) or "stay text" in notes


def test_few_codes_have_no_note() -> None:
    quarters = written(TRAIN[["a"]], lambda x: f"Q{abs(x) % 4 + 1}")
    assert infer_schema(quarters)["a"].kind == "categorical" and not notes_of(quarters)


@pytest.mark.parametrize(
    ("cells", "is_number"),
    [
        (["1e+05", "2E-3", "7"], True),
        (["1.0E5", "2.5e3", "7"], True),
        (["12E5", "7", "8"], False),
        (["1E1", "1E2"], False),
        (["12e5", "1e+05", "1.5E3"], False),
    ],
)
def test_a_text_with_e_is_a_number_if_a_program_writes_it(
    cells: list[str], is_number: bool
) -> None:
    frame = pd.DataFrame({"a": cells * 50, "b": range(50 * len(cells))})
    assert (infer_schema(frame)["a"].kind != "categorical") == is_number
    assert ("codes stay text" in notes_of(frame)) == (not is_number)
    assert infer_schema(frame, {"a": "numeric"})["a"].kind == "numeric"


@pytest.mark.slow
@pytest.mark.parametrize("synthetic", ["fresh", "moved"])
def test_a_release_has_plain_numbers_and_exact_codes(
    synthetic: str, tmp_path: Path, capsys: Any
) -> None:
    tables = {
        "train": TRAIN,
        "holdout": HOLDOUT,
        "synthetic": {"fresh": FRESH, "moved": moved(TRAIN)}[synthetic],
    }
    codes = ["12E5", "1E1", "120", "10"]
    for role, frame in tables.items():
        chosen = np.random.default_rng(4).choice(codes, len(frame))
        written(frame, READ["$5"]).assign(code=chosen).to_csv(tmp_path / f"{role}.csv", index=False)
    data = {**{role: f"{role}.csv" for role in tables}, "subject": {"each_row": True}}
    limits = [{"statistic": "dcr.privacy_score", "at_most": 0.9}]
    table = {
        "name": "t", "data": data, "evaluation": {"embedder": False, "metrics": ["dcr"]},
        "policy": {"name": "near", "limits": limits},
    }  # fmt: skip
    (tmp_path / "t.yaml").write_text(yaml.safe_dump(table))
    status = main(
        ["run", str(tmp_path / "t.yaml"), "--home", str(tmp_path / "home"), "--out", str(tmp_path)]
    )
    assert status == (0 if synthetic == "fresh" else 1), capsys.readouterr()
    if synthetic == "moved":
        return
    (file,) = (tmp_path / "home" / "releases").glob("**/table.parquet")
    release = pd.read_parquet(file)
    assert set(release["code"]) == set(codes)
    assert all(pd.api.types.is_integer_dtype(release[name]) for name in NAMES)


@pytest.mark.parametrize("synthetic", ["5 €", "EUR 5", "5 kg", "~5"])
def test_a_synthetic_table_with_another_unit_is_an_error(synthetic: str) -> None:
    write = READ.get(synthetic) or STOPS[synthetic][0]
    place = "synthetic, column 'a', row 0: a value is not an integer"
    with pytest.raises(InputError, match=place):
        judged(TRAIN, TRAIN, written(FRESH, write))
    real = written(TRAIN, READ["$5"])
    with pytest.raises(InputError, match=re.escape(f"{place} with the unit '$'. Fix: write all")):
        judged(real, real, written(FRESH, write))


@pytest.mark.slow
def test_a_missing_value_may_have_a_unit() -> None:
    text = written(TRAIN.mask(TRAIN < 100), lambda x: "$-9999" if pd.isna(x) else f"${x:.0f}")
    missing = dict.fromkeys(NAMES, ["$-9999"])
    plain = TRAIN.where(TRAIN >= 100, -9999)
    holdout = written(HOLDOUT, READ["$5"])
    reports = [
        judged(text, holdout, synthetic, missing=missing)
        for synthetic in (text, plain, written(plain, str))
    ]
    assert reports[0].verdict == "fail"
    assert statistics(reports[0]) == statistics(reports[1]) == statistics(reports[2])


@pytest.mark.slow
def test_real_tables_with_and_without_a_unit_stop() -> None:
    dollars = written(TRAIN, READ["$5"])
    for other in (HOLDOUT, written(HOLDOUT, str), written(HOLDOUT, READ["5 €"])):
        lines = "6 columns of text are ambiguous: 'a' .* unit.*data: .kinds: .a: .numeric: .unit: "
        with pytest.raises(InputError, match=lines):
            judged(dollars, other, FRESH)
    kinds = dict.fromkeys(NAMES, {"numeric": {"unit": "$"}})
    expected = statistics(judged(TRAIN, HOLDOUT, FRESH, kinds=dict.fromkeys(NAMES, "numeric")))
    assert statistics(judged(dollars, HOLDOUT, FRESH, kinds=kinds)) == expected
    with pytest.raises(InputError, match="holdout, column 'a', row 0: a value is not a number"):
        judged(dollars, written(HOLDOUT, READ["5 €"]), FRESH, kinds=kinds)


def test_a_declared_category_stays_one_and_the_report_says_so() -> None:
    for write in (READ["$5"], STOPS["~5"][0]):
        text = written(TRAIN, write)[["a"]]
        assert infer_schema(text, {"a": "categorical"})["a"].kind == "categorical"
        assert "whether their numbers or dates are near is not measured" in notes_of(
            text, {"a": "categorical"}
        )


@pytest.mark.parametrize(
    "declared", [{"numeric": {"unit": "€"}}, {"numeric": {"unit": "€", "decimal": ","}}]
)
def test_the_decimal_sign_of_a_declared_unit_is_found(declared: Any) -> None:
    text = pd.DataFrame({"a": ["1.234,50 €", "7,25 €", "8"] * 20})
    assert Table.read(text, kinds={"a": declared})["a"].objects()[:3] == [1234.5, 7.25, 8.0]
    twice = pd.DataFrame({"a": ["(1,5 €)", "(1,50 €)", "(3,0 €)"] * 20})
    assert Table.read(twice, kinds={"a": declared})["a"].objects()[:3] == [-1.5, -1.5, -3.0]
    with_others = pd.DataFrame({"a": [*(f"{n},5 €" for n in range(100)), *["8,5"] * 20]})
    assert Table.read(with_others, kinds={"a": declared})["a"].objects()[-1] == 8.5
    doubtful = pd.DataFrame({"a": ["1,234 €", "7,250 €"] * 20})
    if "decimal" not in declared["numeric"]:
        with pytest.raises(InputError, match="a comma may separate decimals or thousands"):
            Table.read(doubtful, kinds={"a": declared})


@pytest.mark.parametrize(
    "unit", ["5", "-", "(", "", " kg", "1kg", ".", ",", 7, None, "x" * 40, "a=b", "k\ng"]
)
def test_a_unit_that_no_number_can_have_is_a_wrong_setting(unit: object) -> None:
    with pytest.raises(ConfigError, match="kinds: the format of column 'a' is unknown"):
        infer_schema(TRAIN, {"a": {"numeric": {"unit": unit}}})


@pytest.mark.parametrize("form", ["$", ",€", ".$", "kg", ",", ".", "per day", "'", ":", ",comma"])
def test_a_declaration_is_the_same_in_settings_and_as_an_option(form: str) -> None:
    meaning = Meaning("numeric", form)
    assert Meaning.of(meaning.declaration, "a") == meaning
    declared = kinds_of_options(f'"a={meaning.option}"')
    assert Meaning.of(declared["a"], "a") == meaning
    if form not in (",", "."):
        assert Meaning.of(kinds_of_options("a=numeric:$")["a"], "a") == Meaning("numeric", "$")


def test_inspect_prints_the_lines_to_paste(tmp_path: Path, capsys: Any) -> None:
    frame = pd.DataFrame(
        {"price": written(TRAIN, STOPS["few without a unit"][0])["a"], "n": TRAIN["b"]}
    )
    frame.to_csv(tmp_path / "t.csv", index=False)
    assert main(["inspect", str(tmp_path / "t.csv")]) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert "data: {kinds: {price: {numeric: {unit: $}}}}" in printed
    assert "--kind 'price=numeric::$'" in printed
    main(["inspect", str(tmp_path / "t.csv"), "--yaml"])
    assert "price: '{numeric: {unit: $}}?'" in capsys.readouterr().out
    written(TRAIN, READ["1.234,00 €"]).to_csv(tmp_path / "read.csv", index=False)
    main(["inspect", str(tmp_path / "read.csv")])
    assert "numeric, decimal comma, unit €" in " ".join(capsys.readouterr().out.split())


def test_a_subject_with_a_unit_stays_exact_text() -> None:
    ids = [f"${n}" for n in range(len(TRAIN))]
    others = [f"h{n}" for n in range(len(HOLDOUT))]
    report = judged(TRAIN.assign(id=ids), HOLDOUT.assign(id=others), FRESH, subject="id")
    assert report.tables["train"]["columns"] == 6


def test_accepted_settings_state_the_unit() -> None:
    dollars = columns_to_accept(infer_schema(written(TRAIN, READ["$5"])))
    euros = columns_to_accept(infer_schema(written(TRAIN, READ["5 €"])))
    assert dollars["a"] == "number, format $" and euros["a"] == "number, format €"
    assert columns_to_accept(infer_schema(TRAIN))["a"] == "number"


@pytest.mark.slow
@pytest.mark.parametrize(
    "write",
    [lambda x: f"{x % 101} %", pytest.param(lambda x: f"{x % 101 + 0.5}%", marks=pytest.mark.slow)],
    ids=["integers", "decimals"],
)
def test_shares_of_1_are_not_percentages(write: Write) -> None:
    real, other = written(TRAIN, write), written(HOLDOUT, write)
    shares = (FRESH % 101) / 100
    for synthetic in (shares, shares.astype(str)):
        with pytest.raises(
            InputError, match="synthetic, column 'a': its numbers have no %, and may be shares of 1"
        ):
            judged(real, other, synthetic)
    judged(real, other, FRESH % 101)
    judged(real, other, (FRESH % 2).astype(float))


def test_percentages_below_1_are_no_shares() -> None:
    def small(x: int) -> str:
        return f"{(abs(x) % 95 + 1) / 100:.2f} %"

    report = judged(written(TRAIN, small), written(HOLDOUT, small), (FRESH.abs() % 950 + 1) / 1000)
    assert report.tables["synthetic"]["rows"] == len(FRESH)


def test_a_message_names_no_unit_that_few_people_have() -> None:
    diagnoses = [f"illness {letter}" for letter in "abcdefghij"]
    for n_rows in (60, 200):
        cells = [f"{20 + row} {diagnoses[row % 10]}" for row in range(n_rows)]
        frame = pd.DataFrame({"x": cells})
        with pytest.raises(InputError, match="'x' [(]the numbers have several units") as caught:
            infer_schema(frame)
        assert ("illness" in str(caught.value)) == (n_rows == 200)
        assert "categorical" in str(caught.value)


def test_an_accepted_category_stays_one_and_a_note_says_so() -> None:
    frames = {"train": written(TRAIN, READ["$5"])}
    schema, notes = joint_schema(
        frames, {"train": "train"}, accepted_columns=dict.fromkeys(NAMES, "categorical")
    )
    assert schema.of_kind("categorical") == NAMES
    assert (
        "categories, as accepted: whether their numbers or dates are near is not measured"
        in notes[0]
    )


@pytest.mark.parametrize("name", ["$5", "1 234", "(5)", "5,00 €", "~5", "few without a unit"])
def test_a_first_line_of_numbers_with_marks_is_a_row(name: str, tmp_path: Path) -> None:
    write = READ.get(name) or STOPS[name][0]
    written(TRAIN, write).to_csv(tmp_path / "t.csv", index=False, header=False)
    with pytest.raises(
        InputError, match="line 1 looks like a row: 6 of its fields fit into the columns"
    ):
        Table.read(tmp_path / "t.csv")


def test_pairs_of_numbers_have_a_note() -> None:
    pairs = pd.Series([f"{120 + n % 60}/{80 - n % 30}" for n in range(200)], dtype="string")
    assert recognize_text([texts_of(pairs)]).note == "pairs of numbers stay text"
