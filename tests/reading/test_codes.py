"""Columns of digits that are codes, such as postcodes, and columns of digits that are numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from privacy_assets.cli.main import main
from privacy_assets.errors import InputError
from privacy_assets.tables.canonical import canonical_table, real_tables, synthetic_table
from privacy_assets.tables.codes import has_code_name
from privacy_assets.tables.declared import Declared
from privacy_assets.tables.inference import columns_to_accept
from privacy_assets.tables.schema import Frame
from privacy_assets.tables.table import Table

N = 900
RNG = np.random.default_rng(0)  # of this module
DISTRICTS = RNG.integers(0, 30, N)
CODES = np.array([str(10_000 + 1_237 * district) for district in range(30)])[DISTRICTS]
# a town has codes between others
TOWNS = np.array([f"town {district % 12}" for district in range(30)])[DISTRICTS]
SITES = np.array([f"site {district}" for district in range(30)])[DISTRICTS]


def kinds_of(table: Table) -> dict[str, str]:
    return {column.name: column.kind for column in table.schema.columns}


def read(frame: pd.DataFrame, **more: object) -> Table:
    return canonical_table(frame, **more)  # type: ignore[arg-type]


def csv(frame: pd.DataFrame, folder: Path) -> Path:
    frame.to_csv(folder / "rows.csv", index=False)
    return folder / "rows.csv"


def test_digits_of_one_length_in_a_typed_table_are_codes() -> None:
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(
        {
            "area": CODES,
            "age": rng.integers(18, 90, N),
            "short": (rng.integers(100, 999, N)).astype(str),
        }
    )
    frame["lengths"] = rng.integers(900, 1100, N).astype(str)
    frame["signed"] = np.where(rng.random(N) < 0.5, "-", "+") + frame["area"]
    assert kinds_of(read(frame)) == {
        "area": "categorical",
        "age": "integer",
        "short": "integer",
        "lengths": "integer",
        "signed": "integer",
    }
    assert any("area" in note and "kinds: integer" in note for note in read(frame).notes)
    table = canonical_table(frame, Declared(kinds={"area": "integer"}))
    assert table.schema["area"].kind == "integer"


@pytest.mark.parametrize(
    ("column", "digits", "kind"),
    [
        ("area", CODES, "categorical"),  # it determines the town
        ("postal_code", RNG.permutation(CODES), "categorical"),  # a name
        ("area", RNG.permutation(CODES), "integer"),
        ("zip", RNG.integers(1000, 1500, N).astype(str), "integer"),  # dense: most numbers occur
        ("area", np.where(RNG.random(N) < 0.1, "", CODES), "categorical"),
        ("area", np.where(RNG.random(N) < 0.1, "NA", CODES), "categorical"),
        ("area", np.char.add(" ", CODES), "categorical"),
        # the blanks would count
        ("area", np.where(RNG.random(N) < 0.5, np.char.add(" ", CODES), CODES), "integer"),
    ],
)
def test_digits_of_one_length_in_a_csv_file_are_codes_with_more_evidence(
    column: str, digits: np.ndarray, kind: str, tmp_path: Path
) -> None:
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({column: digits, "town": TOWNS, "age": rng.integers(18, 90, N)})
    table = canonical_table(csv(frame, tmp_path))
    assert kinds_of(table) == {column: kind, "town": "categorical", "age": "integer"}
    has_note = any(column in note and "kinds: " in note for note in table.notes)
    assert has_note == (len(set(map(len, set(digits) - {"", "NA"}))) == 1)


def test_measured_columns_of_one_length_stay_numbers_in_a_csv_file(tmp_path: Path) -> None:
    salary = 20_000 + 700 * DISTRICTS
    years = 1_990 + DISTRICTS
    frame = pd.DataFrame(
        {
            # a band is an interval
            "salary": salary, "band": np.where(salary < 30_000, "low", "high"),
            "year": years.astype(str), "sign": np.where(years % 4 == 0, "leap", "plain"),
            "height": 1_000 + 237 * (DISTRICTS * 7 % 30), "site": SITES,  # a site has one height
            "place": DISTRICTS, "town": TOWNS,
        }
    ).astype(str)  # fmt: skip
    kinds = kinds_of(read(frame))
    assert {name: kinds[name] for name in ("salary", "year", "height", "place")} == dict.fromkeys(
        ("salary", "year", "height", "place"), "integer"
    )
    notes = read(frame).notes
    assert any(
        "salary" in note and "year" not in note and "kinds: categorical" in note for note in notes
    )


def test_the_rows_of_one_person_are_no_evidence_for_a_code() -> None:
    people = np.repeat(np.arange(150), 6)
    weights = (1_000 + 53 * people)[: len(people)]
    towns = np.array([f"town {town}" for town in np.random.default_rng(0).integers(0, 12, 150)])[
        people
    ]
    frame = pd.DataFrame({"person": people, "weight": weights, "town": towns}).astype(str)
    table = canonical_table(frame, Declared(subject="person"))
    assert kinds_of(table) == {"weight": "integer", "town": "categorical"}


def test_rows_of_several_tables_are_evidence_together() -> None:
    """A code of train determines its town. In the holdout it has other towns."""
    frame = pd.DataFrame({"person": np.arange(N) // 2, "area": CODES, "town": TOWNS}).astype(str)
    parts: dict[str, Frame] = {"train": frame.iloc[:500], "holdout": frame.iloc[500:]}
    names = {role: role for role in parts}
    assert (
        kinds_of(real_tables(dict(parts), names, Declared(subject="person"))["train"])["area"]
        == "categorical"
    )
    parts["holdout"] = parts["holdout"].assign(town=TOWNS[::-1][500:])
    assert (
        kinds_of(real_tables(dict(parts), names, Declared(subject="person"))["train"])["area"]
        == "integer"
    )


def test_the_subject_of_a_typed_table_shows_that_it_has_types(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = pd.DataFrame(
        {"person": np.arange(N) // 2, "area": RNG.permutation(CODES), "town": TOWNS}
    )
    assert kinds_of(canonical_table(frame, Declared(subject="person")))["area"] == "categorical"
    frame.to_parquet(tmp_path / "rows.parquet")
    main(["inspect", str(tmp_path / "rows.parquet")])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("area ")]
    assert "categorical" in line


def test_inspect_reads_tables_with_missing_ids(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = pd.DataFrame({"patient_id": np.arange(N) // 2, "area": CODES, "town": TOWNS}).astype(
        str
    )
    frame["patient_id"] = "P" + frame["patient_id"]
    frame.loc[::50, "patient_id"] = ""
    main(["inspect", str(csv(frame, tmp_path))])
    assert "  area -> town\n" in capsys.readouterr().out


def test_a_column_that_the_lock_states_as_a_number_stays_a_number() -> None:
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"area": CODES, "age": rng.integers(18, 90, N)})
    accepted_columns = {"area": "number", "age": "number"}
    assert kinds_of(canonical_table(frame, accepted_columns=accepted_columns)) == {
        "area": "integer",
        "age": "integer",
    }


@pytest.mark.parametrize("timezone", ["", "Europe/Berlin"])
def test_an_accepted_order_of_day_and_month_is_taken_for_ambiguous_dates(timezone: str) -> None:
    declared = Declared(timezone=timezone or None)
    clear = pd.DataFrame({"day": ["13/02/2024", "28/02/2024"] * 20})
    accepted = columns_to_accept(read(clear, declared=declared).schema)
    ambiguous = pd.DataFrame({"day": ["01/02/2024", "03/02/2024"] * 20})
    with pytest.raises(InputError, match="ambiguous"):
        read(ambiguous, declared=declared)
    days = read(ambiguous, declared=declared, accepted_columns=accepted).frame()["day"]
    noon = days + pd.Timedelta("12h")  # midnight in Berlin is in the month before in UTC
    assert noon.dt.month.unique().tolist() == [2]


def test_a_declared_column_is_evidence_for_a_code() -> None:
    frame = pd.DataFrame({"area": CODES, "town": TOWNS})
    assert (
        kinds_of(canonical_table(frame, Declared(kinds={"town": "categorical"})))["area"]
        == "categorical"
    )


def test_an_empty_column_is_no_type() -> None:
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"area": rng.permutation(CODES), "empty": None, "town": TOWNS})
    assert (
        kinds_of(canonical_table(frame, Declared(kinds={"empty": "categorical"})))["area"]
        == "integer"
    )


def test_a_synthetic_table_with_integers_has_the_codes_of_the_real_tables(tmp_path: Path) -> None:
    frame = pd.DataFrame({"area": CODES, "town": TOWNS})
    real = canonical_table(csv(frame, tmp_path))
    synthetic = synthetic_table(frame.astype({"area": "int64"}), real.schema, train=real)
    assert set(synthetic["area"].objects()) == set(CODES)
    floats = synthetic_table(frame.astype({"area": "float64"}), real.schema, train=real)
    assert set(floats["area"].objects()) == set(CODES)


@pytest.mark.parametrize(
    ("name", "is_code"),
    [
        ("zip", True),
        ("home_zip", True),
        ("areaCode", True),
        ("PLZ", True),
        ("postcode", True),
        ("occ_code", True),
        ("patientId", True),
        ("code_insee", True),
        ("id 2", True),
        ("zip_median_income", False),
        ("", False),
        ("income", False),
        ("paid", False),
        ("zipper", False),
        ("codec", False),
        ("year", False),
    ],
)
def test_names_of_codes(name: str, is_code: bool) -> None:
    assert has_code_name(name) == is_code
