"""PrivBayes: what its parts spend, against brute force, and what an attacker can certify on neighbouring tables."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from collections.abc import Iterator
from itertools import product
from math import exp
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from privacy_assets.errors import ConfigError, InputError
from privacy_assets.generators import build_generator
from privacy_assets.generators._bayes_kernels import learn_conditionals, learn_structure, sensitivity
from privacy_assets.generators.baynet import BayNet, FittedNetwork
from privacy_assets.generators.privbayes import PrivBayes
from privacy_assets.tables.coding import Coding
from privacy_assets.tables.table import Table
from tests.generators.known import TRAIN, mixed, table

RUNS = 10_000
BITS = np.array(list(product([0, 1], repeat=3)), dtype=np.uint32).T  # column c of (3, 8) is the number c in bits


def bits(codes: np.ndarray = BITS) -> tuple[np.ndarray, Coding]:
    known = table(**{name: np.where(row, "y", "n") for name, row in zip("abc", codes, strict=False)})
    coding = Coding.fit([known], known.schema)
    return coding.code(known), coding


# The parts


def mutual_information(counts: np.ndarray) -> float:
    shares = counts / counts.sum()
    outer = shares.sum(axis=1, keepdims=True) @ shares.sum(axis=0, keepdims=True)
    there = shares > 0
    return float((shares[there] * np.log(shares[there] / outer[there])).sum())


def tables_of(n: int, cells: int) -> Iterator[tuple[int, ...]]:
    if cells == 1:
        yield (n,)
        return
    for first in range(n + 1):
        yield from ((first, *rest) for rest in tables_of(n - first, cells - 1))


@pytest.mark.parametrize(("shape", "n"), [((2, 2), 2), ((2, 2), 7), ((2, 3), 4), ((3, 3), 3), ((3, 3), 4)])
def test_sensitivity_is_the_most_that_one_replaced_row_changes(shape: tuple[int, int], n: int) -> None:
    largest = 0.0
    for cells in tables_of(n, shape[0] * shape[1]):
        before = np.array(cells, dtype=float)
        for gone, new in product(np.flatnonzero(before), range(len(before))):
            after = before.copy()
            after[gone] -= 1
            after[new] += 1
            change = mutual_information(after.reshape(shape)) - mutual_information(before.reshape(shape))
            largest = max(largest, change)
    claimed = sensitivity(n, min(shape) <= 2)
    assert 0.97 * claimed < largest < claimed + 1e-9
    assert sensitivity(1, True) == sensitivity(1, False) == 0


def test_the_structure_follows_the_exponential_mechanism() -> None:
    rng = np.random.default_rng(0)
    first = rng.integers(0, 3, 30)
    second = np.where(rng.random(30) < 0.4, first, rng.integers(0, 3, 30))
    codes = np.array([first, second, second // 2], dtype=np.uint32)
    sizes, rate = np.array([3, 3, 2]), 1.0

    def weight(child: int, parent: int) -> float:
        counts = np.zeros((3, 3))
        np.add.at(counts, (codes[child].astype(int), codes[parent].astype(int)), 1)
        change = sensitivity(30, bool(sizes[child] <= 2 or sizes[parent] <= 2))
        return exp(rate * mutual_information(counts) / (2 * change))

    expected = {}
    for child, other in ((1, 2), (2, 1)):
        one = weight(child, 0) / (weight(1, 0) + weight(2, 0))
        for parent in (0, child):
            two = weight(other, parent) / (weight(other, 0) + weight(other, child))
            expected[(child, 0, other, parent)] = one * two
    assert min(expected.values()) > 0.01
    noise = np.random.default_rng(1)
    seen: Counter[tuple[int, ...]] = Counter()
    for _ in range(RUNS):
        order, parents = learn_structure(codes, sizes, 1, 0, rate, noise)
        seen[(order[1], parents[1, 0], order[2], parents[2, 0])] += 1
    assert set(seen) <= set(expected)
    assert stats.chisquare([seen[k] for k in expected], [RUNS * p for p in expected.values()]).pvalue > 1e-3


def test_counts_get_laplace_noise_and_negative_ones_are_dropped() -> None:
    codes = np.repeat([[0, 3, 3]], 1, axis=0).astype(np.uint32)
    order, parents, noise = np.zeros(1, dtype=np.int64), np.full((1, 1), -1), np.random.default_rng(0)
    found = np.zeros((4, RUNS // 2))
    for run in range(found.shape[1]):
        _, starts, values, ends = learn_conditionals(codes, np.array([4]), order, parents, 5.0, noise)[0]
        assert (values[: starts[1]] == np.arange(4)).all()
        found[:, run] = np.diff(ends[: starts[1]], prepend=0.0)
    assert (found >= 0).all()
    none_left = (found == 1).all(axis=0)  # then all cells are alike
    lost = stats.laplace.cdf(0, [1, 0, 0, 2], 5)
    assert stats.binomtest(int(none_left.sum()), len(none_left), lost.prod()).pvalue > 1e-3
    for cell, (count, below) in enumerate(zip([1, 0, 0, 2], lost, strict=True)):
        kept = found[cell, ~none_left & (found[cell] > 0)]
        assert stats.binomtest(len(kept), found.shape[1], 1 - below).pvalue > 1e-3
        assert stats.kstest(kept, lambda x, c=count, b=below: (stats.laplace.cdf(x, c, 5) - b) / (1 - b)).pvalue > 1e-3


@pytest.mark.parametrize("degree", [1, 2, 3])
def test_the_first_columns_share_one_table(degree: int) -> None:
    codes = np.random.default_rng(0).integers(0, 3, (5, 40)).astype(np.uint32)
    sizes, noise = np.full(5, 3), np.random.default_rng(1)
    order, parents = learn_structure(codes, sizes, degree, 2, 0.0, noise)
    made = learn_conditionals(codes, sizes, order, parents, 1.0, noise)
    totals = [round(float(ends[starts[1] - 1]), 6) for _, starts, _, ends in made]
    assert len(set(totals)) == 5 - degree and len(set(totals[: degree + 1])) == 1


@pytest.mark.parametrize(
    ("columns", "degree", "rate", "scale"), [(5, 2, 0.125, 4.0), (2, 1, 0, 1.0), (1, 3, 0, 1.0), (3, 3, 0.25, 4 / 3)]
)
def test_how_epsilon_is_split(columns: int, degree: int, rate: float, scale: float) -> None:
    noise = PrivBayes(degree=degree, epsilon=2.0, structure_share=0.25)._noise(columns)
    assert noise == pytest.approx((rate, scale))


@pytest.mark.parametrize("degree", [1, 2])
def test_without_limit_on_epsilon_it_is_baynet(degree: int) -> None:
    rng = np.random.default_rng(2)
    codes = np.array([rng.integers(0, 2, 90), rng.integers(0, 2, 90), rng.integers(0, 2, 90)], dtype=np.uint32)
    codes[2] ^= codes[0] & (rng.random(90) < 0.8)
    cells, coding = bits(codes)
    private, plain = (kind.drawer(cells, coding) for kind in (PrivBayes(degree=degree, epsilon=1e15), BayNet(degree)))
    for seed in range(30):
        rows = rng.integers(0, 90, 80)
        np.testing.assert_array_equal(private(rows, 50, seed), plain(rows, 50, seed))


# What an attacker can certify

# Rows as numbers of BITS, by number of columns; the second table replaces one row of the first.
NEIGHBOURS = {1: ([0], [1]), 2: ([0], [3]), 3: ([0, 7, 0, 7], [0, 7, 0, 1])}


def certified(one: np.ndarray, other: np.ndarray) -> float:
    """Largest epsilon that the frequencies of fixed events (bool (runs, events)) show, at 99.9 % for all at once."""
    level = 0.001 / (4 * one.shape[1])
    best = 0.0
    for x, y in ((one.sum(axis=0), other.sum(axis=0)), (other.sum(axis=0), one.sum(axis=0))):
        low = np.where(x > 0, stats.beta.ppf(level, x, RUNS - x + 1), 0)
        high = np.where(y < RUNS, stats.beta.ppf(1 - level, y + 1, RUNS - y), 1)
        best = max(best, float(np.log(np.maximum(low, 1e-300) / high).max()))
    return best


def model_events(rows: list[int], columns: int, epsilon: float, quiet: float, seed: int) -> np.ndarray:
    """Events on the model itself: its structure, and in its last table one cell gone while another is above a level.

    With one or two columns the whole of epsilon is spent on one table, and they are the worst that can happen. Noise is
    divided by ``quiet``.
    """
    codes, noise = BITS[3 - columns :, rows].copy(), np.random.default_rng(seed)
    rate, scale = PrivBayes(epsilon=epsilon)._noise(columns)
    weights, structure = np.zeros((RUNS, 4)), np.zeros(RUNS, dtype=int)
    for run in range(RUNS):
        order, parents = learn_structure(codes, np.full(columns, 2), 1, 0, rate * quiet, noise)
        structure[run] = 2 * (order[1] == 1) + (parents[2, 0] == 0) if columns == 3 else 0
        groups, starts, values, ends = learn_conditionals(
            codes, np.full(columns, 2), order, parents, scale / quiet, noise
        )[-1]
        for group in range(len(groups) > 1 and columns > 1, len(groups)):
            part = slice(starts[group], starts[group + 1])
            weights[run, 2 * max(groups[group], 0) + values[part]] = np.diff(ends[part], prepend=0.0)
    above = weights[:, :, None] > np.array([0, 0.5, 1, 2])
    gone = (weights == 0)[:, :, None, None] & above[:, None]
    events = np.concatenate([above.reshape(RUNS, -1), gone.reshape(RUNS, -1)], axis=1)
    return (events[:, None] & (structure[:, None] == np.arange(4))[:, :, None]).reshape(RUNS, -1)


def drawn_events(rows: list[int], columns: int, epsilon: float, quiet: float, seed: int) -> np.ndarray:
    """Events on 60 rows drawn: how many equal each possible row, and how many are 0 in each column."""
    cells, coding = bits(BITS[3 - columns :, : 2**columns])
    draw = PrivBayes(epsilon=epsilon * quiet).drawer(cells, coding)
    counts = np.zeros((RUNS, 8 + columns))
    for run in range(RUNS):
        drawn = draw(np.array(rows), 60, seed * RUNS + run)
        counts[run, :8] = np.bincount((2 ** np.arange(columns)[::-1] @ drawn).astype(int), minlength=8)
        counts[run, 8:] = (drawn == 0).sum(axis=1)
    return (counts[:, :, None] > np.array([0, 3, 10, 20, 40, 57, 59])).reshape(RUNS, -1)


def found(events: object, columns: int, epsilon: float, quiet: float = 1.0) -> float:
    one, other = (events(rows, columns, epsilon, quiet, seed) for seed, rows in enumerate(NEIGHBOURS[columns]))  # type: ignore[operator]
    return certified(one, other)


TRIED = [(2, 1.0), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((1, 0.5), (2, 3.0), (3, 1.0)))]


@pytest.mark.parametrize(("columns", "epsilon"), TRIED)
def test_no_more_than_epsilon_can_be_certified(columns: int, epsilon: float) -> None:
    model, drawn = found(model_events, columns, epsilon), found(drawn_events, columns, epsilon)
    assert max(model, drawn) <= epsilon
    assert columns == 3 or model > 0.6 * epsilon, "an attack that finds nothing would prove nothing"


@pytest.mark.slow
def test_halved_noise_is_found_out() -> None:
    assert found(model_events, 1, 1.0, 2.0) > 1.0 and found(model_events, 2, 3.0, 2.0) > 3.0


@pytest.mark.slow
@pytest.mark.parametrize("columns", [1, 3])
def test_without_noise_far_more_is_certified(columns: int) -> None:
    assert found(drawn_events, columns, 3.0, 1e9) > 6 and found(model_events, columns, 3.0, 1e9) > 5


# As a generator


PUBLIC = {
    "bounds": {"age": [0, 120], "pay": [0, 500.0], "joined": ["2020-01-01", "2021-01-01"]},
    "categories": {"plan": ["senior", "a", "c", "w"]},
}
NAMES = ["age", "pay", "plan", "retired", "joined"]
PEOPLE = Table.read(TRAIN.frame()[NAMES])


def test_public_domains_do_not_look_at_the_rows(tmp_path: Path) -> None:
    """Two tables that differ in everything leave the same values and domains."""
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
    assert set(frame["plan"].dropna()) == {"a", "c", "senior", "w"} and set(frame["retired"].dropna()) == {False, True}
    assert frame["age"].max() > 100 and frame["joined"].max() > pd.Timestamp("2020-11-01") and frame.isna().any().all()
    assert (frame["joined"].dropna() == frame["joined"].dropna().dt.normalize()).all()


@pytest.mark.parametrize(
    "ends",
    [["2020-01-01", "2021-01-01"], [dt.date(2020, 1, 1), dt.date(2021, 1, 1)], [pd.Timestamp("2020-01-01"), "2021"]],
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
    assert frame["n"].between(0, 40).all() and not frame["n"].between(10, 30, inclusive="neither").any()
    assert (frame["c"].isna() == (frame["n"] >= 30)).all() and set(frame["c"].dropna()) == {"a"}


def test_drawers_know_public_categories_that_no_cell_has() -> None:
    cells, coding = bits()
    draw = PrivBayes(epsilon=0.01, categories={"a": ["n", "y", "m"], "b": ["y"]}).drawer(cells, coding)
    drawn = np.concatenate([draw(np.array([0, 7]), 200, seed) for seed in range(20)], axis=1)
    assert set(drawn[0]) == {0, 1, 2, 3} and set(drawn[1]) == {1, 2} and set(drawn[2]) == {0, 1}
    assert drawn[0].tolist().count(3) > 300, "a value that no cell has gets its share of the noise"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epsilon": float("inf")}, "epsilon must be a number above 0"),
        ({"structure_share": 1}, "structure_share"),
        ({"bounds": {"age": [3, 1]}}, "low not above high"),
        ({"bounds": {"age": [3]}}, "finite numbers"),
        ({"bounds": {"pay": [0, float("nan")]}}, "finite numbers"),
        ({"bounds": {"joined": ["2020-01-01", "no date"]}}, "dates as text"),
        ({"bounds": {"joined": ["2020-01-01"]}}, "dates as text"),
        ({"bounds": {"aeg": [0, 1]}}, "Did you mean 'age'"),
        ({"bounds": {"plan": [0, 1]}}, "cannot be given for the categorical 'plan'"),
        ({"categories": {"age": ["1"]}}, "cannot be given for the integer 'age'"),
        ({"categories": {"plan": []}}, "one or more texts"),
    ],
)
def test_bad_settings(settings: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_generator("privbayes", settings).fit(PEOPLE, seed=0)


def test_tables_too_large_for_noise_are_refused() -> None:
    train = table(**{name: [f"{name}{k}" for k in range(200)] for name in "abc"})
    PrivBayes(degree=1).fit(train, seed=0)
    with pytest.raises(InputError, match="cells"):
        PrivBayes(degree=2).fit(train, seed=0)
