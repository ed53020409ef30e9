"""Leaky and overfitted evaluations: tables of known truth, resumed studies, and lines fitted to
their statistics.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from privacy_assets.errors import ConfigError, InputError
from privacy_assets.metrics.registry import build_metric
from privacy_assets.studies.leak_study import (
    Noise,
    StudyCase,
    StudyPoint,
    every_noise,
    leak_study,
    leaky_cases,
    leaky_table,
    linear_fits,
    overfit_cases,
    read_points,
)
from privacy_assets.tables.inference import infer_schema
from privacy_assets.tables.table import Table
from tests.metrics.given_tables import given
from tests.tables import as_table, as_tables

QUIET = Noise()


def mixed(rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "price": rng.normal(50, 10, rows).round(2),
            "count": pd.array(rng.integers(0, 1000, rows), dtype="Int64"),
            "plan": rng.choice(["a", "b", "c", "d"], rows),
            "flag": pd.array(rng.random(rows) < 0.5, dtype="boolean"),
            "day": pd.Timestamp("2024-01-01")
            + pd.to_timedelta(rng.integers(0, 300, rows), unit="D"),
        }
    )
    return frame.mask(rng.random(frame.shape) < 0.1).assign(
        key=[f"{seed}-{i}" for i in range(rows)]
    )


TRAIN, RELEASE = mixed(200, 0), mixed(200, 1)
SCHEMA = infer_schema(pd.concat([TRAIN, RELEASE]))
TRAIN, RELEASE = as_tables([TRAIN, RELEASE], SCHEMA)


def leaked(table: pd.DataFrame) -> pd.Series:
    return table["key"].str.startswith("0-")


def leaky(
    fraction: float, noise: Noise = QUIET, seed: int = 0, release: Table = RELEASE
) -> pd.DataFrame:
    return leaky_table(TRAIN, release, fraction, noise, seed=seed).frame()


@pytest.mark.parametrize("fraction", [0, 0.005, 0.5, 1])
def test_the_fraction_is_what_is_leaked(fraction: float) -> None:
    table = leaky(fraction)
    assert len(table) == len(RELEASE) and leaked(table).sum() == round(fraction * 200)
    assert table["key"].is_unique
    real = (
        pd.concat([TRAIN.frame(), RELEASE.frame()])
        .set_index("key")
        .loc[table["key"]]
        .reset_index()[table.columns]
    )
    pd.testing.assert_frame_equal(table, real.astype({"key": object}))


@pytest.mark.parametrize("rows", [50, 500])
def test_tables_of_other_sizes(rows: int) -> None:
    table = leaky(0.8, release=as_table(mixed(rows, 1), SCHEMA))
    counts = table.loc[leaked(table), "key"].value_counts()
    assert len(table) == rows and leaked(table).sum() == 0.8 * rows
    assert counts.max() == (1 if rows == 50 else 2) and len(counts) == min(200, 0.8 * rows)


def test_larger_fractions_leak_the_same_rows_and_more() -> None:
    noise = Noise(0.5, 2, 0.5)
    small, large = (leaky(f, noise) for f in (0.2, 0.6))
    pd.testing.assert_frame_equal(small.iloc[:40], large.iloc[:40])
    pd.testing.assert_frame_equal(large, leaky(0.6, noise))
    assert not large.equals(leaky(0.6, noise, seed=1))


@pytest.mark.parametrize(
    ("noise", "moved"),
    [
        (Noise(sigma=0.3), {"price", "day"}),
        (Noise(lam=3), {"count"}),
        (Noise(p=0.9), {"plan", "flag"}),
    ],
)
def test_each_noise_moves_its_kinds_of_columns(noise: Noise, moved: set[str]) -> None:
    real = TRAIN.with_schema(SCHEMA.without("key"))
    made = noise.added(real, real, np.random.default_rng(0))
    rows, noisy = real.frame(), made.frame()
    pd.testing.assert_frame_equal(Table.of(noisy, real.schema, where="noisy").frame(), noisy)
    assert noisy.isna().equals(rows.isna())
    for name in rows:
        changed = (noisy[name] != rows[name])[rows[name].notna()]
        assert changed.mean() > 0.25 if name in moved else not changed.any(), name
    assert noisy["price"].dropna().between(rows["price"].min(), rows["price"].max()).all()
    assert set(noisy["plan"].dropna()) <= set(rows["plan"].dropna())


def test_noise_has_the_size_that_it_says() -> None:
    rng = np.random.default_rng(1)
    rows = pd.DataFrame(
        {
            "wide": rng.normal(0, 1000, 20_000),
            "whole": pd.array(np.full(20_000, 7), dtype="Int64"),
            "letter": rng.choice(list("abcd"), 20_000).astype(object),
        }
    )
    table = as_table(rows)
    noisy = Noise(0.05, 0.05, 0.2).added(table, table, np.random.default_rng(0)).frame()
    assert (noisy["wide"] - rows["wide"]).std() == pytest.approx(50, rel=0.03)
    added = (noisy["whole"] - 7).astype(float)
    assert added.min() == 0 and added.mean() == pytest.approx(0.05, abs=0.006)
    assert added.var() == pytest.approx(0.05, abs=0.01)
    assert (noisy["letter"] != rows["letter"]).mean() == pytest.approx(0.2 * 3 / 4, abs=0.01)


def test_every_configuration_has_a_name_of_its_own() -> None:
    noises = every_noise()
    assert len({str(noise) for noise in noises}) == len(set(noises)) == 8
    assert str(noises[0]) == "no noise" and str(Noise(0.05, 0, 0.05)) == "σ 0.05, p 0.05"
    cases = list(leaky_cases(TRAIN, RELEASE, fractions=[1, 0, 0.5], noises=noises[:2]))
    assert [(case.series, case.x) for case in cases] == [
        (str(noise), fraction) for noise in noises[:2] for fraction in (0, 0.5, 1)
    ]
    made, x = cases[1].make()
    assert x == 0.5 and leaked(made.frame()).sum() == 100
    with pytest.raises(ConfigError, match="from 0 to 1"):
        leaky(1.5)
    with pytest.raises(ConfigError, match="noise: p: Input should be"):
        Noise(0, 0, 1.1)


def inputs_of(seed: int = 0, **more: object):
    frames = [mixed(120, place).drop(columns="key") for place in (3, 4, 5)]
    return given(*frames, seed=seed, **more)


def told(points: list[StudyPoint]) -> list[dict]:
    """All values except the seconds; NaN as None."""
    return [{**point.to_json(), "seconds": 0} for point in points]


METRICS = {"dcr": build_metric("dcr", {"n_bootstraps": 50, "n_permutations": 199})}


def test_a_study_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    inputs, made, path = inputs_of(), [], tmp_path / "points.jsonl"

    def cases(last: int) -> list[StudyCase]:
        def make(fraction: float) -> tuple[Table, float]:
            made.append(fraction)
            return leaky_table(inputs.train, inputs.synthetic, fraction, QUIET, 0), fraction

        return [StudyCase("s", x, lambda x=x: make(x)) for x in (0.0, 0.5, 1.0)[:last]]

    first = leak_study(inputs, cases(2), METRICS, tmp_path)
    with path.open("a") as file:
        file.write('{"mark": "cut o')
    assert len(first) == 2 and len(read_points(path)) == 2
    whole = leak_study(inputs, cases(3), METRICS, tmp_path)
    assert made == [0.0, 0.5, 1.0] and told(whole[:2]) == told(first)
    assert [json.dumps(p.estimates) for p in leak_study(inputs, cases(3), METRICS)] == [
        json.dumps(p.estimates) for p in whole
    ]
    assert len(read_points(path)) == 3 and path.stat().st_mode & 0o777 == 0o600
    leak_study(inputs_of(seed=1), cases(1), METRICS, tmp_path)
    assert len(read_points(path)) == 4 and made.count(0.0) == 3
    assert (
        whole[0].estimates["dcr.identical_excess"][0]
        < whole[2].estimates["dcr.identical_excess"][0]
    )


def test_a_file_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "points.jsonl").write_text('{"name": "mine"}\n')
    with pytest.raises(InputError, match="does not contain a leak study"):
        leak_study(inputs_of(), [], METRICS, tmp_path)
    assert read_points(tmp_path / "none.jsonl") == []


def test_points_survive_json() -> None:
    point = StudyPoint(
        "σ 0.05", 0.5, 0.49, {"a.b": (1.0, 0.5, 2.0), "a.c": (math.nan, math.nan, math.nan)}, 1.5
    )
    text = json.dumps(point.to_json(), allow_nan=False)
    again = StudyPoint.from_json(json.loads(text))
    assert again.estimates["a.b"] == (1.0, 0.5, 2.0) and math.isnan(again.estimates["a.c"][0])
    assert json.dumps(again.to_json()) == text


def line(values: list[float], half: float = 0.01) -> list[StudyPoint]:
    places = np.linspace(0, 1, len(values))
    return [
        StudyPoint("s", x, x, {"m.f": (v, v - half, v + half)}, 0.0)
        for x, v in zip(places, values, strict=True)
    ]


def test_lines_through_statistics() -> None:
    (fit,) = linear_fits(line([0.1, 0.3, 0.5, 0.7]))
    assert (
        (fit.slope, fit.intercept, fit.r2) == pytest.approx((0.6, 0.1, 1.0))
        and fit.rises
        and fit.points == 4
    )
    (noisy,) = linear_fits(line([0.0, 0.4, 0.3, 0.9], half=0.06))
    oracle = np.corrcoef(np.linspace(0, 1, 4), [0.0, 0.4, 0.3, 0.9])[0, 1] ** 2
    assert noisy.r2 == pytest.approx(oracle) and noisy.rises
    (fallen,) = linear_fits(line([0.0, 0.4, 0.3, 0.9], half=0.04))
    assert not fallen.rises
    (flat,) = linear_fits(line([0.2, 0.2, 0.2]))
    assert flat.slope == pytest.approx(0) and (flat.r2, flat.rises) == (0.0, True)
    assert (
        linear_fits(line([0.1, 0.2])) == linear_fits([]) == linear_fits(line([math.nan] * 5)) == []
    )


@pytest.mark.parametrize(
    ("statistic", "rises"),
    [("dcr.privacy_score", False), ("data_privacy.score", True)],
)
def test_a_statistic_of_which_less_is_riskier_has_to_fall(statistic: str, rises: bool) -> None:
    points = [
        StudyPoint("s", x, x, {statistic: (1 - x, 0.99 - x, 1.01 - x)}, 0.0)
        for x in (0.0, 0.5, 1.0)
    ]
    assert [(fit.rises, fit.slope < 0) for fit in linear_fits(points)] == [(rises, True)]


def test_the_papers_generator_over_fits_where_it_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    train = TRAIN.with_schema(SCHEMA.without("key"))

    def series(**settings: object) -> str:
        return next(overfit_cases(train, 50, settings=settings, ratios=[1])).series

    for module in ("studies.leak_study", "networks.realtabformer"):
        monkeypatch.setattr(f"privacy_assets.{module}.find_spec", lambda name: None)
    assert series(latent=2) == "rvae, latent 2"
    assert series(python="rtf/bin/python", layers=2) == "realtabformer, layers 2"
    for module in ("studies.leak_study", "networks.realtabformer"):
        monkeypatch.setattr(f"privacy_assets.{module}.find_spec", lambda name: object())
    assert series(layers=2) == "realtabformer, layers 2"


@pytest.mark.slow
def test_over_fitting_asks_for_a_generator_with_such_a_loss() -> None:
    train = TRAIN.with_schema(SCHEMA.without("key"))
    with pytest.raises(ConfigError, match="'wgan_gp' cannot over-fit.*realtabformer, rvae"):
        list(overfit_cases(train, 50, generator="wgan_gp"))
    with pytest.raises(ConfigError, match="overfit"):
        list(overfit_cases(train, 50, ratios=[3]))
    small = {"hidden_dims": [8], "latent": 2, "epochs": 3, "batch_size": 50}
    one, two = overfit_cases(train, 50, generator="rvae", settings=small, ratios=[1.05, 1.0])
    assert (one.series, one.x, two.x) == (
        "rvae, hidden_dims [8], latent 2, epochs 3, batch_size 50",
        1.0,
        1.05,
    )
    rows, reached = one.make()
    assert len(rows) == 50 and reached == 1.0
    assert two.make()[1] > 0
