"""Every generator on 2,000 rows of the demo table, with missing values and dates: rows that can be read, and useful."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from pandas.testing import assert_frame_equal

from privacy_assets.generators import GENERATORS, build_generator, generator_info
from privacy_assets.tables.demo import SUBJECT, load_patients
from privacy_assets.tables.roles import foreign_cells, with_roles
from privacy_assets.tables.table import Table

SHORT: dict[str, dict[str, object]] = {
    "privbayes": {"epsilon": 10.0},
    "ctgan": {"epochs": 5, "batch_size": 100},
    "tvae": {"epochs": 100, "batch_size": 100},
    "rvae": {"epochs": 10, "hidden": [64]},
    "wgan_gp": {"epochs": 5, "batch": 100, "hidden": [64]},
    "dpgan": {"epochs": 5, "epsilon": 10.0},
    "dpctgan": {"epochs": 5, "epsilon": 10.0},
    "pategan": {"epochs": 10, "epsilon": 10.0},
}
ELSEWHERE = {"callable", "command", "realtabformer"}  # need something to run, and have tests of their own
TRIED = [name for name in GENERATORS if name not in ELSEWHERE]
CHANCE = 0.5  # total variation of rows that know nothing is well above it for half of the columns


def demo() -> tuple[pd.DataFrame, np.ndarray]:
    """Rows with every kind of column and some missing values, and whose they are."""
    whole = load_patients().iloc[:2000]
    people = pd.factorize(whole[SUBJECT])[0]
    rng = np.random.default_rng(0)
    frame = whole.drop(columns=SUBJECT).reset_index(drop=True)
    frame["seen"] = pd.Timestamp("1975-01-01") + pd.to_timedelta(rng.integers(0, 1800, len(frame)), unit="D")
    frame["grade"] = rng.choice([0, 1, 2, 5, 40], len(frame))  # what lies between them is nobody's
    frame["again"] = rng.random(len(frame)) < 0.3
    return frame.mask(rng.random(frame.shape) < 0.05), people


def test_every_generator_is_tried_here() -> None:
    assert set(SHORT) <= set(TRIED)
    assert all(info.available for info in generator_info() if info.name in TRIED)


@pytest.mark.slow
@pytest.mark.parametrize("name", TRIED)
def test_rows_of_the_demo_table(name: str) -> None:
    frame, people = demo()
    real = Table.read(frame, where="demo")
    assert {column.kind for column in real.schema.columns} == {
        "integer",
        "numeric",
        "categorical",
        "boolean",
        "datetime",
    }
    schema = with_roles(real.schema, [real], people, where="demo")
    fitted = build_generator(name, SHORT.get(name)).fit(real.under(schema), seed=0, people=people)
    drawn = fitted.sample(1500, seed=0)
    train, made = real.frame(), drawn.frame()
    assert_frame_equal(fitted.sample(1500, seed=0).frame(), made)
    closed = [column.name for column in schema.columns if column.role == "closed"]
    assert {"physical_limitation", "grade"} <= set(closed)
    for column in schema.columns:
        assert not foreign_cells(column, [real[column.name]], drawn[column.name]).any(), column.name
    restored = drawn.restored()
    assert len(restored) == 1500 and list(restored.columns) == list(frame.columns)
    if name != "tvae":  # which takes the likeliest category: what few rows have is lost
        assert made.isna().any().sum() >= len(schema.names) / 2, "missing values come back"
    apart = [_variation(train[column], made[column]) for column in schema.names]
    assert np.median(apart) < CHANCE, dict(zip(schema.names, np.round(apart, 2), strict=True))


def _variation(real: pd.Series, made: pd.Series) -> float:
    """Total variation between two columns, numbers in fifths of the real ones, missing a value of its own."""
    if pd.api.types.is_numeric_dtype(real) and real.nunique() > 5:
        edges = np.unique(np.quantile(real.dropna().astype(float), [0.2, 0.4, 0.6, 0.8]))
        real, made = (pd.Series(np.digitize(x.astype(float), edges)).where(x.notna().to_numpy()) for x in (real, made))
    elif pd.api.types.is_datetime64_any_dtype(real):
        real, made = real.dt.year, made.dt.year
    first, second = (x.astype(str).value_counts(normalize=True) for x in (real, made))
    return float(first.sub(second, fill_value=0).abs().sum() / 2)
