"""Bayesian networks against a brute-force twin in plain Python, and what every drawer must do."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from math import log

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from privacy_assets.errors import InputError
from privacy_assets.generators._bayes_kernels import conditional, draw_column, learn_structure, room
from privacy_assets.generators.baynet import BayNet, FittedNetwork
from privacy_assets.generators.domains import Domain, Domains
from privacy_assets.tables.coding import Coding
from privacy_assets.tables.table import Table
from tests.generators.known import SCHEMA, TRAIN, table

Row = tuple[int, ...]


def chain(n: int, seed: int, columns: int = 6, levels: int = 4) -> np.ndarray:
    """Codes (columns, n) in which each column depends on one or two before it."""
    rng = np.random.default_rng(seed)
    rows = [rng.integers(0, levels, n)]
    for column in range(1, columns):
        mixed = rows[rng.integers(0, column)] + rows[rng.integers(0, column)] * rng.integers(0, 2)
        rows.append(np.where(rng.random(n) < 0.5, mixed % levels, rng.integers(0, levels - column % 2, n)))
    return np.array(rows, dtype=np.uint32)


def entropy(rows: list[Row]) -> float:
    return -sum(count / len(rows) * log(count / len(rows)) for count in Counter(rows).values())


def twin_structure(codes: np.ndarray, degree: int, root: int) -> tuple[list[int], list[set[int]], float]:
    """Every pair in every round; also the smallest lead of a winner over the second."""
    table = codes.T.tolist()

    def information(child: int, parents: tuple[int, ...]) -> float:
        above = [tuple(row[p] for p in parents) for row in table]
        alone = [(row[child],) for row in table]
        both = [(*up, *own) for up, own in zip(above, alone, strict=True)]
        return entropy(above) + entropy(alone) - entropy(both)

    order, chosen, lead = [root], [set[int]()], np.inf
    while len(order) < len(codes):
        pairs = [
            (information(child, parents), child, set(parents))
            for child in range(len(codes))
            if child not in order
            for parents in combinations(order, min(degree, len(order)))
        ]
        pairs.sort(key=lambda pair: -pair[0])
        if len(pairs) > 1:
            lead = min(lead, pairs[0][0] - pairs[1][0])
        order.append(pairs[0][1])
        chosen.append(pairs[0][2])
    return order, chosen, lead


def twin_distribution(codes: np.ndarray, order: list[int], parents: list[list[int]]) -> dict[Row, float]:
    """Probability of every row under the network, from counted shares."""
    table = codes.T.tolist()
    known: dict[Row, float] = {(): 1.0}
    for i, column in enumerate(order):
        grown: dict[Row, float] = {}
        for row, probability in known.items():
            drawn = dict(zip(order[:i], row, strict=True))
            donors = [other for other in table if all(other[p] == drawn[p] for p in parents[i])]
            for value, count in Counter(donor[column] for donor in donors).items():
                grown[(*row, value)] = grown.get((*row, value), 0.0) + probability * count / len(donors)
        known = grown
    places = [order.index(column) for column in range(len(order))]
    return {tuple(row[place] for place in places): probability for row, probability in known.items()}


def assert_drawn_from(drawn: np.ndarray, distribution: dict[Row, float]) -> None:
    """Chi-square test of rows (F, n) against the distribution, rare rows taken together."""
    counts = Counter(map(tuple, drawn.T.astype(int).tolist()))
    assert set(counts) <= set(distribution)
    n = drawn.shape[1]
    common = [row for row, probability in distribution.items() if n * probability >= 10]
    expected = [n * distribution[row] for row in common]
    observed = [counts[row] for row in common]
    if sum(expected) < n - 1:
        expected.append(n - sum(expected))
        observed.append(n - sum(observed))
    assert len(expected) > 10
    assert stats.chisquare(observed, np.array(expected) * sum(observed) / sum(expected)).pvalue > 1e-4


def sizes_of(codes: np.ndarray) -> np.ndarray:
    return codes.max(axis=1).astype(np.int64) + 1


def parts(codes: np.ndarray) -> tuple[np.ndarray, Coding]:
    """The codes as a table of categories, as cells and coding."""
    known = table(**{f"c{i}": [f"v{code}" for code in row] for i, row in enumerate(codes)})
    coding = Coding.fit([known], known.schema)
    return coding.code(known), coding


# Structure and conditionals


@pytest.mark.parametrize("degree", [1, 2, 3])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("wide", [False, True])
def test_structure_is_that_of_the_twin(degree: int, seed: int, wide: bool) -> None:
    assert 4000**2 > room(154) > 4**4, "both branches are taken"
    codes = chain(150 + seed, seed)
    order, chosen, lead = twin_structure(codes, degree, root=seed)
    assert lead > 1e-6, "a tie would make the twin ambiguous"
    sizes = np.full(6, 4000) if wide else sizes_of(codes)  # too wide for tables: the sorting branch
    found, parents = learn_structure(codes, sizes, degree, seed, 0.0, np.random.default_rng(0))
    assert found.tolist() == order
    assert [set(row[row >= 0].tolist()) for row in parents] == chosen


@pytest.mark.parametrize("span", [30, 10**9])
def test_parents_that_never_stood_together_leave_the_shares_of_all_rows(span: int) -> None:
    keys, child = np.repeat([4, 9], [100, 300]), np.repeat([0, 1, 2], [100, 200, 100]).astype(np.uint32)
    made, lookup = conditional(keys * 3 + child, 3, np.ones(400)), np.zeros(100, dtype=np.uint32)
    asked = np.repeat([4, 9, 5, span - 1], 20_000)
    drawn = draw_column(made, asked, span, np.random.default_rng(0), lookup)
    assert not lookup.any()
    for key, expected in (
        (4, [1, 0, 0]),
        (9, [0, 2 / 3, 1 / 3]),
        (5, [1 / 4, 1 / 2, 1 / 4]),
        (span - 1, [1 / 4, 1 / 2, 1 / 4]),
    ):
        shares = np.bincount(drawn[asked == key], minlength=3) / 20_000
        assert np.abs(shares - expected).max() < 0.012 and not shares[np.array(expected) == 0].any()


def test_equal_information_goes_to_the_pair_that_was_possible_first() -> None:
    codes = np.repeat(chain(100, 0, columns=1), 5, axis=0)
    order, parents = learn_structure(codes, sizes_of(codes), 1, 2, 0.0, np.random.default_rng(0))
    assert order.tolist() == [2, 0, 1, 3, 4] and parents[1:, 0].tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize("degree", [1, 2, 3])
def test_fitted_rows_have_the_distribution_of_the_network(degree: int) -> None:
    codes = chain(40, degree)
    cells, coding = parts(codes)
    fitted = BayNet(degree=degree).fit(coding.table(cells), seed=1)
    assert isinstance(fitted, FittedNetwork)
    parents = [row[row >= 0].tolist() for row in fitted.parents]
    assert max(map(len, parents)) == degree
    distribution = twin_distribution(codes, fitted.order.tolist(), parents)
    assert_drawn_from(coding.code(fitted.sample(40_000, seed=5)), distribution)


@pytest.mark.parametrize("degree", [1, 2, 3])
def test_drawn_cells_have_the_distribution_of_a_network_from_any_column(degree: int) -> None:
    codes = chain(60, 10 + degree, columns=4)
    cells, coding = parts(codes)
    draw = BayNet(degree=degree).drawer(cells, coding)
    rows = np.arange(10, 50)
    every: dict[Row, float] = {}
    for root in range(4):
        order, parents = learn_structure(
            codes[:, rows].copy(), sizes_of(codes), degree, root, 0.0, np.random.default_rng(0)
        )
        used = [row[row >= 0].tolist() for row in parents]
        for row, probability in twin_distribution(codes[:, rows], order.tolist(), used).items():
            every[row] = every.get(row, 0.0) + probability / 4
    drawn = np.concatenate([draw(rows, 200, seed) for seed in range(400)], axis=1)
    counts = Counter(map(tuple, drawn.T.astype(int).tolist()))
    assert set(counts) <= set(every)
    common = [row for row, probability in every.items() if probability > 0.002]
    shares = np.array([counts[row] / drawn.shape[1] for row in common])
    assert len(common) > 10 and np.abs(shares - [every[row] for row in common]).max() < 0.01


# Drawers


CODING = Coding.fit([TRAIN], SCHEMA)
CELLS = CODING.code(TRAIN)


def test_rows_in_any_order_give_the_same_cells() -> None:
    draw = BayNet(degree=3).drawer(CELLS, CODING)
    rows = np.random.default_rng(0).integers(0, 400, 250)
    np.testing.assert_array_equal(draw(rows[::-1].copy(), 100, 2**40), draw(rows, 100, 2**40))


# Domains


def test_bins_are_of_equal_width_and_closed_at_the_end() -> None:
    domain = Domain.of_range(0.0, 10.0, 5, whole=False, missing=True)
    assert domain.starts.tolist()[:5] == [0, 2, 4, 6, 8] and domain.spans.tolist()[:5] == [2] * 5
    cells = np.array([0, 1.99, 2, 10, 11, -1, np.nan])
    assert domain.encode(cells).tolist() == [0, 0, 1, 4, 4, 0, 5]
    whole = Domain.of_range(1, 16, 5, whole=True, missing=False)
    held = [range(int(a), int(a + b)) for a, b in zip(whole.starts, whole.spans, strict=True)]
    assert sorted(value for some in held for value in some) == list(range(1, 17))
    assert {len(some) for some in held} <= {3, 4}
    assert all(whole.encode(np.array([float(value)])) == c for c, some in enumerate(held) for value in some)
    assert Domain.of_range(3, 5, 10, whole=True, missing=False).starts.tolist() == [3, 4, 5]
    huge = Domain.of_range(-1.7e308, 1.7e308, 2, whole=False, missing=False)
    assert np.isfinite(huge.spans).all() and huge.encode(np.array([-1e300, 1e300])).tolist() == [0, 1]


def test_few_values_are_kept_and_many_are_binned() -> None:
    frame = pd.DataFrame({"few": [0.1, 0.2, 7.0, 7.0], "many": [1.0, 2.0, 3.0, 4.0], "none": [None] * 4})
    known = Table.read(frame, kinds={"none": "numeric"})
    coding = Coding.fit([known], known.schema)
    few, many, none = Domains.of_cells(coding.code(known), coding, 3).columns
    assert few.starts.tolist() == [0.1, 0.2, 7.0] and not few.spans.any()
    assert many.starts.tolist() == [1, 2, 3] and many.spans.tolist() == [1, 1, 1]
    assert np.isnan(none.starts).tolist() == [True]


def test_bins_keep_the_range_and_draw_from_all_of_it() -> None:
    sample, train = BayNet(degree=2).fit(TRAIN, seed=0).sample(3000, seed=0).frame(), TRAIN.frame()
    for name in ("age", "pay", "joined", "seen"):
        assert sample[name].min() >= train[name].min() and sample[name].max() <= train[name].max()
        assert sample[name].nunique() > 60
    assert set(sample["half"].dropna()) == {0.5, 1.5}


def test_too_many_combinations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privacy_assets.generators.baynet._MOST_KEYS", 20.0)
    with pytest.raises(InputError, match="too many different values"):
        BayNet().fit(TRAIN, seed=0)
