"""The demo table: what stands in it, who is a person, and what that means for the statistics."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from privacy_assets.evaluation import prepare_inputs
from privacy_assets.generators import build_generator
from privacy_assets.metrics.dcr import Dcr
from privacy_assets.stats.results import Estimate
from privacy_assets.tables.demo import SUBJECT, load_patients
from privacy_assets.tables.schema import infer_schema
from privacy_assets.tables.splitting import split_table
from privacy_assets.tables.table import Table
from tests.tables import as_table

KINDS = {
    "person": "integer",
    "doctor_visits": "integer",
    "coinsurance": "categorical",
    "individual_deductible": "boolean",
    "participation_incentive": "numeric",
    "expenditure_cap": "numeric",
    "physical_limitation": "numeric",
    "chronic_diseases": "numeric",
    "health": "categorical",
}


@pytest.fixture(scope="module")
def patients() -> pd.DataFrame:
    return load_patients()


@pytest.fixture(scope="module")
def raw() -> pd.DataFrame:
    from statsmodels.datasets import randhie

    return randhie.load_pandas().data


def test_the_file_holds_what_statsmodels_ships(patients: pd.DataFrame, raw: pd.DataFrame) -> None:
    same = raw.drop(columns="mdvis")
    rate = np.expm1(raw["lncoins"]).round().astype(int)
    health = np.select([raw["hlthg"] == 1, raw["hlthf"] == 1, raw["hlthp"] == 1], ["good", "fair", "poor"], "excellent")
    shares = {0: "none", 25: "25 %", 50: "50 %", 95: "95 %", 100: "100 %"}
    expected = {
        SUBJECT: (same != same.shift()).any(axis=1).cumsum().astype("int64"),
        "doctor_visits": raw["mdvis"].astype("int64"),
        "coinsurance": rate.map(shares).astype("category"),
        "individual_deductible": raw["idp"] == 1,
        "participation_incentive": np.exp(raw["lpi"]).round(2),
        "expenditure_cap": np.exp(raw["fmde"]).round(2),
        "physical_limitation": raw["physlm"],
        "chronic_diseases": raw["disea"],
        "health": pd.Series(health, index=raw.index).astype("category"),
    }
    pd.testing.assert_frame_equal(patients, pd.DataFrame(expected))


def test_columns_kinds_and_size(patients: pd.DataFrame) -> None:
    schema = infer_schema(patients)
    assert {column.name: column.kind for column in schema.columns} == KINDS
    assert len(patients) == 20_190 and patients.notna().all().all()
    assert set(patients["health"]) == {"excellent", "good", "fair", "poor"}
    assert set(patients["coinsurance"]) == {"none", "25 %", "50 %", "95 %", "100 %"}
    again = as_table(Table.of(patients, schema, where="t").frame(), schema).restored()
    assert list(map(str, again.dtypes)) == list(map(str, patients.dtypes))


def test_a_person_is_a_run_of_rows_that_agree_in_all_but_visits(patients: pd.DataFrame, raw: pd.DataFrame) -> None:
    assert patients[SUBJECT].nunique() == 5294
    others = raw.drop(columns="mdvis").to_numpy()
    person = 1
    for row in range(1, len(raw)):
        person += bool((others[row] != others[row - 1]).any())
        assert patients[SUBJECT].iloc[row] == person
    assert set(patients.groupby(SUBJECT).size().mode()) <= {3, 5}


def test_labels_keep_exactly_the_distinctions_of_the_raw_columns(patients: pd.DataFrame, raw: pd.DataFrame) -> None:
    pairs = {
        "doctor_visits": ["mdvis"],
        "coinsurance": ["lncoins"],
        "individual_deductible": ["idp"],
        "participation_incentive": ["lpi"],
        "expenditure_cap": ["fmde"],
        "physical_limitation": ["physlm"],
        "chronic_diseases": ["disea"],
        "health": ["hlthg", "hlthf", "hlthp"],
    }
    for name, columns in pairs.items():
        ours = patients[name].astype(str).reset_index(drop=True)
        assert ours.nunique() == len(raw[columns].drop_duplicates())
        assert pd.concat([ours, raw[columns]], axis=1).drop_duplicates().shape[0] == ours.nunique()
    assert np.allclose(np.log(patients["participation_incentive"]), raw["lpi"], atol=0.01)
    rates = patients["coinsurance"].map({"none": 0, "25 %": 25, "50 %": 50, "95 %": 95, "100 %": 100}).astype(float)
    assert np.allclose(np.log1p(rates), raw["lncoins"], atol=0.001)


def test_split_keeps_people_together(patients: pd.DataFrame) -> None:
    parts = split_table(patients, SUBJECT, b"key")
    sides = [set(part[SUBJECT]) for part in parts.values()]
    assert sum(map(len, sides)) == 5294
    shares = [len(side) / 5294 for side in sides]
    assert np.allclose(shares, (0.6, 0.2, 0.2), atol=0.03)


def estimates(patients: pd.DataFrame, name: str, settings: dict[str, int], key: bytes) -> dict[str, Estimate]:
    """DCR statistics of a generator fitted to the demo's training side (40/40/20 by person)."""
    parts = split_table(patients, SUBJECT, key, {"train": 0.4, "holdout": 0.4, "reference": 0.2})
    schema = infer_schema(patients.drop(columns=SUBJECT))
    train = Table.of(parts["train"].drop(columns=SUBJECT), schema, where="train").frame()
    synthetic = build_generator(name, settings).fit(as_table(train, schema), seed=0).sample(len(train), seed=0).frame()
    inputs = prepare_inputs(**parts, synthetic=synthetic, subject=SUBJECT, schema=schema)
    return {estimate.name: estimate for estimate in Dcr(bootstraps=200, permutations=199).measure(inputs).estimates}


@pytest.mark.slow
@pytest.mark.parametrize("key", [b"key0", b"key1"])
def test_large_leaves_are_honest_here_and_small_ones_are_not(patients: pd.DataFrame, key: bytes) -> None:
    """Leaves count rows, and a person has four of them: 50 rows a leaf still repeat members' rows."""
    honest, fifty, five, copy = (
        estimates(patients, name, settings, key)["identical_excess"]
        for name, settings in (
            ("synthpop", {"min_leaf": 1000}),
            ("synthpop", {}),
            ("synthpop", {"min_leaf": 5}),
            ("copy", {}),
        )
    )
    assert honest.low < 0.05 < fifty.low < five.low
    assert honest.value < fifty.value < five.value < copy.value == 1
    assert five.value > 0.8


@pytest.mark.slow
def test_a_copy_of_a_discrete_table_has_a_low_privacy_score(patients: pd.DataFrame) -> None:
    """Ties cap the score of the paper, which is why identical_excess is limited beside it."""
    found = estimates(patients, "copy", {}, b"key0")
    assert found["privacy_score"].value < 0.05 and found["identical_excess"].value == 1
