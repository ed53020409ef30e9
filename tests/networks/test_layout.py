"""Layouts of neural generators: encoding, decoding, and the meaning of a level and a code."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from privacy_assets.networks.layout import Layout, Scale
from privacy_assets.tables.encoding import MatrixCoding
from privacy_assets.tables.table import Table
from tests.generators.known import SCHEMA, mixed


def coded(table: Table) -> tuple[MatrixCoding, np.ndarray]:
    coding = MatrixCoding.fit([table], table.schema)
    return coding, coding.code(table)


@pytest.mark.parametrize("n", [1, 2, 60, 3000])
def test_there_and_back(n: int) -> None:
    coding, cells = coded(Table.of(mixed(n), SCHEMA, where="t"))
    layout = Layout.of_cells(cells, coding)
    levels, codes = layout.encode(cells, np.random.default_rng(0))
    assert levels.dtype == np.float32 and codes.dtype == np.int64
    assert levels.shape == (n, len(layout.scales)) and codes.shape == (n, len(layout.choices))
    assert ((levels >= 0) & (levels <= 1)).all() and (codes < np.array(layout.sizes)).all()
    back = layout.decode(levels, codes, np.random.default_rng(1))
    assert (np.isnan(back) == np.isnan(cells)).all()
    for place, column in enumerate(coding.schema.columns):
        there = ~np.isnan(cells[place])
        scale = layout.scales.get(place)
        apart = np.abs(back[place] - cells[place])[there]
        if scale is None or scale.steps:
            assert (apart == 0).all(), column.name
        else:
            knots = np.quantile(cells[place][there], np.linspace(0, 1, min(1000, there.sum())))
            assert apart.max() <= max(np.diff(knots).max(), 1e-6), column.name
        if column.name in ("age", "joined"):
            assert (back[place][there] == np.round(back[place][there])).all()
    again = Layout.from_arrays(layout.to_arrays())
    assert (
        np.nan_to_num(again.decode(levels, codes, np.random.default_rng(1)), nan=-9)
        == np.nan_to_num(back, nan=-9)
    ).all()


def test_levels_are_uniform_and_decode_to_the_same_law() -> None:
    """A value that most rows share gets a range in proportion to its rows."""
    rng = np.random.default_rng(0)
    known = np.where(rng.random(4000) < 0.9, 0.0, rng.integers(1, 50, 4000))
    scale = Scale.of_cells(known)
    assert scale.steps
    assert stats.kstest(scale.encode(known, rng), "uniform").pvalue > 1e-3
    drawn = scale.decode(rng.random(20_000))
    assert set(drawn) <= set(known)
    assert abs((drawn == 0).mean() - (known == 0).mean()) < 0.01
    smooth = rng.normal(size=5000)
    wide = Scale.of_cells(smooth)
    assert not wide.steps
    assert stats.kstest(wide.encode(smooth, rng), "uniform").pvalue > 1e-3
    assert stats.ks_2samp(wide.decode(rng.random(5000)), smooth).pvalue > 1e-3


@pytest.mark.parametrize("n", [30, 300, 6000])
def test_numbers_of_single_rows_are_not_repeated(n: int) -> None:
    rng = np.random.default_rng(0)
    known = rng.lognormal(8, 1, n).round(2)
    scale = Scale.of_cells(known)
    drawn = scale.decode(rng.random(3000))
    assert not scale.steps and np.isin(drawn, known).mean() < 0.05
    assert (
        (drawn.round(2) == drawn).all()
        and known.min() <= drawn.min()
        and drawn.max() <= known.max()
    )
    assert stats.ks_2samp(drawn, known).statistic < 0.05 + 1 / np.sqrt(n)
    assert np.abs(scale.decode(scale.encode(known, rng)) - known).max() <= (
        0.01 if n < 1000 else np.ptp(known)
    )


@pytest.mark.parametrize("n", [200, 8000])
def test_a_number_that_many_rows_share_keeps_its_share(n: int) -> None:
    """Half of the rows have no income; all other incomes are unique."""
    rng = np.random.default_rng(1)
    known = np.where(rng.random(n) < 0.5, 0.0, rng.lognormal(8, 1, n))
    scale = Scale.of_cells(known)
    levels = scale.encode(known, rng)
    assert not scale.steps and stats.kstest(levels, "uniform").pvalue > 1e-3
    drawn = scale.decode(rng.random(20_000))
    assert (drawn == 0).mean() == pytest.approx((known == 0).mean(), abs=0.02 + 1 / n)
    assert ((drawn > 0) & (drawn < known[known > 0].min())).mean() < 0.01 + 1 / n
    assert (scale.decode(levels)[known == 0] == 0).mean() > 0.98


def test_columns_without_choice_have_none() -> None:
    frame = pd.DataFrame({"c": ["x"] * 4, "n": [1.0, 2.0, 3.0, 4.0], "e": [None] * 4})
    coding, cells = coded(Table.read(frame, kinds={"e": "numeric"}))
    layout = Layout.of_cells(cells, coding)
    assert (list(layout.scales), layout.choices) == ([1], [])
    back = layout.decode(*layout.encode(cells, np.random.default_rng(0)), np.random.default_rng(0))
    assert (back[0] == 0).all() and np.isnan(back[2]).all()
