"""Domains, and bounds and categories that are publicly known."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from privacy_assets.errors import ConfigError
from privacy_assets.generators import build_generator
from privacy_assets.generators.bayes import FittedNetwork, PrivBayes
from privacy_assets.generators.domains import Domain, Domains
from privacy_assets.tables.encoding import MatrixCoding
from privacy_assets.tables.table import Table
from tests.generators.known import TRAIN, mixed, table


def test_bins_are_of_equal_width_and_closed_at_the_end() -> None:
    domain = Domain.of_range(0.0, 10.0, 5, is_integer=False, nullable=True)
    assert domain.starts.tolist()[:5] == [0, 2, 4, 6, 8] and domain.spans.tolist()[:5] == [2] * 5
    cells = np.array([0, 1.99, 2, 10, 11, -1, np.nan])
    assert domain.encode(cells).tolist() == [0, 0, 1, 4, 4, 0, 5]
    whole = Domain.of_range(1, 16, 5, is_integer=True, nullable=False)
    held = [range(int(a), int(a + b)) for a, b in zip(whole.starts, whole.spans, strict=True)]
    assert sorted(value for some in held for value in some) == list(range(1, 17))
    assert {len(some) for some in held} <= {3, 4}
    assert all(
        whole.encode(np.array([float(value)])) == c for c, some in enumerate(held) for value in some
    )
    assert Domain.of_range(3, 5, 10, is_integer=True, nullable=False).starts.tolist() == [3, 4, 5]
    huge = Domain.of_range(-1.7e308, 1.7e308, 2, is_integer=False, nullable=False)
    assert np.isfinite(huge.spans).all() and huge.encode(np.array([-1e300, 1e300])).tolist() == [
        0,
        1,
    ]


def test_few_values_are_kept_and_many_are_binned() -> None:
    frame = pd.DataFrame(
        {"few": [0.1, 0.2, 7.0, 7.0], "many": [1.0, 2.0, 3.0, 4.0], "none": [None] * 4}
    )
    known = Table.read(frame, kinds={"none": "numeric"})
    coding = MatrixCoding.fit([known], known.schema)
    few, many, none = Domains.of_cells(coding.code(known), coding, 3).columns
    assert few.starts.tolist() == [0.1, 0.2, 7.0] and not few.spans.any()
    assert many.starts.tolist() == [1, 2, 3] and many.spans.tolist() == [1, 1, 1]
    assert np.isnan(none.starts).tolist() == [True]


PUBLIC = {
    "bounds": {"age": [0, 120], "pay": [0, 500.0], "joined": ["2020-01-01", "2021-01-01"]},
    "categories": {"plan": ["senior", "a", "c", "w"]},
}


NAMES = ["age", "pay", "plan", "retired", "joined"]


PEOPLE = Table.read(TRAIN.frame()[NAMES])


def test_public_domains_do_not_look_at_the_rows(tmp_path: Path) -> None:
    """Two tables that differ in every cell leave the same values and domains."""
    stored = []
    others = Table.of(mixed(2, 5, 0.0)[NAMES], PEOPLE.schema, where="others")
    for place, rows in enumerate((PEOPLE, others)):
        fitted = PrivBayes(**PUBLIC).fit(rows, seed=0)
        fitted.save(tmp_path / str(place))
        values = json.loads((tmp_path / str(place) / "generator.json").read_text())["values"]
        assert isinstance(fitted, FittedNetwork)
        stored.append((values, {k: v.tolist() for k, v in fitted.domains.to_arrays().items()}))
    np.testing.assert_equal(stored[0], stored[1])
    frame = PrivBayes(epsilon=0.01, **PUBLIC).fit(others, seed=0).sample(5000, seed=0).frame()
    assert set(frame["plan"].dropna()) == {"a", "c", "senior", "w"} and set(
        frame["retired"].dropna()
    ) == {False, True}
    assert (
        frame["age"].max() > 100
        and frame["joined"].max() > pd.Timestamp("2020-11-01")
        and frame.isna().any().all()
    )
    assert (frame["joined"].dropna() == frame["joined"].dropna().dt.normalize()).all()


@pytest.mark.parametrize(
    "ends",
    [
        ["2020-01-01", "2021-01-01"],
        [dt.date(2020, 1, 1), dt.date(2021, 1, 1)],
        [pd.Timestamp("2020-01-01"), "2021"],
    ],
)
def test_bounds_in_days_leave_the_time_of_day(ends: list) -> None:
    moments = pd.Timestamp("2020-03-01") + pd.to_timedelta(np.arange(200) * 7919, unit="min")
    for whole, when in ((False, moments), (True, moments.normalize())):
        train = table(when=list(when))
        fitted = PrivBayes(epsilon=1e6, bounds={"when": ends}).fit(train, seed=0)
        made_up = fitted.sample(300, seed=0).frame()["when"].dropna()
        assert ((made_up == made_up.dt.normalize()).mean() > 0.5) == whole


def test_values_outside_count_as_missing_or_to_the_nearest_bin() -> None:
    generator = PrivBayes(epsilon=1e9, bins=4, bounds={"n": [0, 40]}, categories={"c": ["a", "b"]})
    train = table(n=[-5.0, 100.0] * 50, c=["a", "other"] * 50)
    frame = generator.fit(train, seed=0).sample(2000, seed=0).frame()
    assert (
        frame["n"].between(0, 40).all()
        and not frame["n"].between(10, 30, inclusive="neither").any()
    )
    assert (frame["c"].isna() == (frame["n"] >= 30)).all() and set(frame["c"].dropna()) == {"a"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epsilon": float("inf")}, "epsilon: Input should be a finite number"),
        ({"structure_share": 1}, "structure_share"),
        ({"bounds": {"age": [3, 1]}}, "low not above high"),
        ({"bounds": {"age": [3]}}, "finite numbers"),
        ({"bounds": {"pay": [0, float("nan")]}}, "finite numbers"),
        ({"bounds": {"joined": ["2020-01-01", "no date"]}}, "dates as text"),
        ({"bounds": {"joined": ["2020-01-01"]}}, "dates as text"),
        ({"bounds": {"aeg": [0, 1]}}, "Did you mean 'age'"),
        ({"bounds": {"plan": [0, 1]}}, "cannot be given for the categorical 'plan'"),
        ({"categories": {"age": ["1"]}}, "cannot be given for the integer 'age'"),
        ({"categories": {"plan": []}}, "one or more strings"),
    ],
)
def test_bad_settings(settings: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_generator("privbayes", settings).fit(PEOPLE, seed=0)
