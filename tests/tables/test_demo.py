"""The demo table: its contents, its subject column, and the effect of both on the statistics."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from privacy_assets.evaluation.reading import read_inputs
from privacy_assets.generators import build_generator
from privacy_assets.metrics.dcr import Dcr
from privacy_assets.stats.estimates import Estimate
from privacy_assets.tables.canonical import canonical_table
from privacy_assets.tables.declared import Declared
from privacy_assets.tables.demo import SUBJECT, load_patients
from privacy_assets.tables.inference import infer_schema
from privacy_assets.tables.splitting import split_rows
from privacy_assets.tables.table import Table


@pytest.fixture(scope="module")
def patients() -> pd.DataFrame:
    return load_patients()


@pytest.mark.slow
def test_the_file_holds_what_statsmodels_ships(patients: pd.DataFrame) -> None:
    from statsmodels.datasets import randhie

    raw = randhie.load_pandas().data
    same = raw.drop(columns="mdvis")
    rate = np.expm1(raw["lncoins"]).round().astype(int)
    health = np.select(
        [raw["hlthg"] == 1, raw["hlthf"] == 1, raw["hlthp"] == 1],
        ["good", "fair", "poor"],
        "excellent",
    )
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
    assert (len(patients), patients[SUBJECT].nunique()) == (
        20_190,
        5_294,
    ) and patients.notna().all().all()
    assert set(patients.groupby(SUBJECT).size().mode()) <= {3, 5}


def estimates(patients: pd.DataFrame, name: str, **settings: int) -> dict[str, Estimate]:
    """DCR statistics of a generator fitted to the demo's training side (40/40/20 by person)."""
    shares = {"train": 0.4, "holdout": 0.4, "reference": 0.2}
    rows = split_rows(canonical_table(patients, Declared(subject=SUBJECT)), b"key0", shares)
    parts = {role: patients.iloc[chosen] for role, chosen in rows.items()}
    schema = infer_schema(patients.drop(columns=SUBJECT))
    train = Table.of(parts["train"].drop(columns=SUBJECT), schema, where="train")
    synthetic = (
        build_generator(name, settings).fit(train, seed=0).sample(len(train), seed=0).frame()
    )
    inputs = read_inputs(
        declared=Declared(subject=SUBJECT), **parts, synthetic=synthetic, schema=schema
    )
    return {
        estimate.name: estimate
        for estimate in Dcr(n_bootstraps=200, n_permutations=199).measure(inputs).estimates
    }


@pytest.mark.slow
def test_large_leaves_are_honest_here_and_small_ones_are_not(patients: pd.DataFrame) -> None:
    """Numbers are not smoothed. Without a subject column leaves count rows, and each person has
    four: 50 rows repeat members' rows.

    Ties cap the score of the paper, so identical_excess is limited as well.
    """
    found = [
        estimates(patients, "synthpop", min_samples_leaf=leaf, shrinkage=0, smoothing=False)
        for leaf in (1000, 50, 5)
    ]
    honest, fifty, five = (one["identical_excess"] for one in found)
    copy = estimates(patients, "copy")
    assert honest.low < 0.05 < fifty.low < five.low
    assert honest.value < fifty.value < five.value < copy["identical_excess"].value == 1
    assert five.value > 0.8 and copy["privacy_score"].value < 0.05
