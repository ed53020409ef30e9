"""BayNet against a brute-force twin; PrivBayes: its budget by brute force, and the epsilon that
attackers certify.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import combinations, product
from math import exp, log

import numpy as np
import pytest
from scipy import stats

from privacy_assets.errors import InputError
from privacy_assets.generators._bayes_kernels import (
    conditional,
    draw_column,
    learn_conditionals,
    learn_structure,
    max_lookup_size,
    sensitivity,
)
from privacy_assets.generators.bayes import BayNet, FittedNetwork, PrivBayes
from privacy_assets.tables.encoding import MatrixCoding
from tests.generators.known import SCHEMA, TRAIN, table
from tests.helpers.marks import weekly_except

Row = tuple[int, ...]


def chain(n: int, seed: int, columns: int = 6, levels: int = 4) -> np.ndarray:
    """Codes (columns, n) in which each column depends on one or two before it."""
    rng = np.random.default_rng(seed)
    rows = [rng.integers(0, levels, n)]
    for column in range(1, columns):
        mixed = rows[rng.integers(0, column)] + rows[rng.integers(0, column)] * rng.integers(0, 2)
        rows.append(
            np.where(rng.random(n) < 0.5, mixed % levels, rng.integers(0, levels - column % 2, n))
        )
    return np.array(rows, dtype=np.uint32)


def entropy(rows: list[Row]) -> float:
    return -sum(count / len(rows) * log(count / len(rows)) for count in Counter(rows).values())


def twin_structure(
    codes: np.ndarray, degree: int, root: int
) -> tuple[list[int], list[set[int]], float]:
    """Structure from every pair in every round, and the smallest lead of a winner over the
    second.
    """
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


def twin_distribution(
    codes: np.ndarray, order: list[int], parents: list[list[int]]
) -> dict[Row, float]:
    """Probability of every row under the network, from counted shares."""
    table = codes.T.tolist()
    known: dict[Row, float] = {(): 1.0}
    for i, column in enumerate(order):
        grown: dict[Row, float] = {}
        for row, probability in known.items():
            drawn = dict(zip(order[:i], row, strict=True))
            donors = [other for other in table if all(other[p] == drawn[p] for p in parents[i])]
            for value, count in Counter(donor[column] for donor in donors).items():
                grown[(*row, value)] = grown.get((*row, value), 0.0) + probability * count / len(
                    donors
                )
        known = grown
    places = [order.index(column) for column in range(len(order))]
    return {
        tuple(row[place] for place in places): probability for row, probability in known.items()
    }


def assert_drawn_from(drawn: np.ndarray, distribution: dict[Row, float]) -> None:
    """Chi-square test of rows (F, n) against the distribution, with rare rows pooled."""
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
    assert (
        stats.chisquare(observed, np.array(expected) * sum(observed) / sum(expected)).pvalue > 1e-4
    )


def sizes_of(codes: np.ndarray) -> np.ndarray:
    return codes.max(axis=1).astype(np.int64) + 1


def parts(codes: np.ndarray) -> tuple[np.ndarray, MatrixCoding]:
    """The codes as a table of categories, as cells and coding."""
    known = table(**{f"c{i}": [f"v{code}" for code in row] for i, row in enumerate(codes)})
    coding = MatrixCoding.fit([known], known.schema)
    return coding.code(known), coding


# Structure and conditionals


@pytest.mark.parametrize("degree", [1, 2, 3])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("wide", [False, True])
def test_structure_is_that_of_the_twin(degree: int, seed: int, wide: bool) -> None:
    assert 4000**2 > max_lookup_size(154) > 4**4, "both branches are taken"
    codes = chain(150 + seed, seed)
    order, chosen, lead = twin_structure(codes, degree, root=seed)
    assert lead > 1e-6, "a tie would make the twin ambiguous"
    # too many combinations for tables: the sorting branch
    sizes = np.full(6, 4000) if wide else sizes_of(codes)
    found, parents = learn_structure(codes, sizes, degree, seed, 0.0, np.random.default_rng(0))
    assert found.tolist() == order
    assert [set(row[row >= 0].tolist()) for row in parents] == chosen


@pytest.mark.parametrize("span", [30, 10**9])
def test_parents_that_never_stood_together_leave_the_shares_of_all_rows(span: int) -> None:
    keys, child = (
        np.repeat([4, 9], [100, 300]),
        np.repeat([0, 1, 2], [100, 200, 100]).astype(np.uint32),
    )
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


CODING = MatrixCoding.fit([TRAIN], SCHEMA)
CELLS = CODING.code(TRAIN)


def test_rows_in_any_order_give_the_same_cells() -> None:
    draw = BayNet(degree=3).drawer(CELLS, CODING)
    rows = np.random.default_rng(0).integers(0, 400, 250)
    np.testing.assert_array_equal(draw(rows[::-1].copy(), 100, 2**40), draw(rows, 100, 2**40))


def test_bins_keep_the_range_and_draw_from_all_of_it() -> None:
    sample, train = BayNet(degree=2).fit(TRAIN, seed=0).sample(3000, seed=0).frame(), TRAIN.frame()
    for name in ("age", "pay", "joined", "seen"):
        assert sample[name].min() >= train[name].min() and sample[name].max() <= train[name].max()
        assert sample[name].nunique() > 60
    assert set(sample["half"].dropna()) == {0.5, 1.5}


def test_too_many_combinations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privacy_assets.generators.bayes._MAX_KEYS", 20.0)
    with pytest.raises(InputError, match="too many distinct values"):
        BayNet().fit(TRAIN, seed=0)


RUNS = 10_000
# column c of (3, 8) is the number c in bits
BITS = np.array(list(product([0, 1], repeat=3)), dtype=np.uint32).T


def bits(codes: np.ndarray = BITS) -> tuple[np.ndarray, MatrixCoding]:
    known = table(
        **{name: np.where(row, "y", "n") for name, row in zip("abc", codes, strict=False)}
    )
    coding = MatrixCoding.fit([known], known.schema)
    return coding.code(known), coding


# PrivBayes: its parts


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


@pytest.mark.parametrize(
    ("shape", "n"), [((2, 2), 2), ((2, 2), 7), ((2, 3), 4), ((3, 3), 3), ((3, 3), 4)]
)
def test_sensitivity_is_the_most_that_one_replaced_row_changes(
    shape: tuple[int, int], n: int
) -> None:
    largest = 0.0
    for cells in tables_of(n, shape[0] * shape[1]):
        before = np.array(cells, dtype=float)
        for gone, new in product(np.flatnonzero(before), range(len(before))):
            after = before.copy()
            after[gone] -= 1
            after[new] += 1
            change = mutual_information(after.reshape(shape)) - mutual_information(
                before.reshape(shape)
            )
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
    assert (
        stats.chisquare([seen[k] for k in expected], [RUNS * p for p in expected.values()]).pvalue
        > 1e-3
    )


def test_counts_get_laplace_noise_and_negative_ones_are_dropped() -> None:
    codes = np.repeat([[0, 3, 3]], 1, axis=0).astype(np.uint32)
    order, parents, noise = (
        np.zeros(1, dtype=np.int64),
        np.full((1, 1), -1),
        np.random.default_rng(0),
    )
    found = np.zeros((4, RUNS // 2))
    for run in range(found.shape[1]):
        _, starts, values, ends = learn_conditionals(
            codes, np.array([4]), order, parents, 5.0, noise
        )[0]
        assert (values[: starts[1]] == np.arange(4)).all()
        found[:, run] = np.diff(ends[: starts[1]], prepend=0.0)
    assert (found >= 0).all()
    none_left = (found == 1).all(axis=0)  # then all cells are equal
    lost = stats.laplace.cdf(0, [1, 0, 0, 2], 5)
    assert stats.binomtest(int(none_left.sum()), len(none_left), lost.prod()).pvalue > 1e-3
    for cell, (count, below) in enumerate(zip([1, 0, 0, 2], lost, strict=True)):
        kept = found[cell, ~none_left & (found[cell] > 0)]
        assert stats.binomtest(len(kept), found.shape[1], 1 - below).pvalue > 1e-3
        assert (
            stats.kstest(
                kept, lambda x, c=count, b=below: (stats.laplace.cdf(x, c, 5) - b) / (1 - b)
            ).pvalue
            > 1e-3
        )


@pytest.mark.parametrize("degree", [1, 2, 3])
def test_the_first_columns_share_one_table(degree: int) -> None:
    codes = np.random.default_rng(0).integers(0, 3, (5, 40)).astype(np.uint32)
    sizes, noise = np.full(5, 3), np.random.default_rng(1)
    order, parents = learn_structure(codes, sizes, degree, 2, 0.0, noise)
    made = learn_conditionals(codes, sizes, order, parents, 1.0, noise)
    totals = [round(float(ends[starts[1] - 1]), 6) for _, starts, _, ends in made]
    assert len(set(totals)) == 5 - degree and len(set(totals[: degree + 1])) == 1


@pytest.mark.parametrize(
    ("columns", "degree", "rate", "scale"),
    [(5, 2, 0.125, 4.0), (2, 1, 0, 1.0), (1, 3, 0, 1.0), (3, 3, 0.25, 4 / 3)],
)
def test_how_epsilon_is_split(columns: int, degree: int, rate: float, scale: float) -> None:
    noise = PrivBayes(degree=degree, epsilon=2.0, structure_share=0.25)._noise(columns)
    assert noise == pytest.approx((rate, scale))


@pytest.mark.parametrize("degree", [1, 2])
def test_without_limit_on_epsilon_it_is_baynet(degree: int) -> None:
    rng = np.random.default_rng(2)
    codes = np.array(
        [rng.integers(0, 2, 90), rng.integers(0, 2, 90), rng.integers(0, 2, 90)], dtype=np.uint32
    )
    codes[2] ^= codes[0] & (rng.random(90) < 0.8)
    cells, coding = bits(codes)
    private, plain = (
        kind.drawer(cells, coding)
        for kind in (PrivBayes(degree=degree, epsilon=1e15), BayNet(degree))
    )
    for seed in range(30):
        rows = rng.integers(0, 90, 80)
        np.testing.assert_array_equal(private(rows, 50, seed), plain(rows, 50, seed))


# Epsilon that an attacker can certify

# Rows as numbers of BITS, by number of columns; the second table replaces one row of the first.
NEIGHBORS = {1: ([0], [1]), 2: ([0], [3]), 3: ([0, 7, 0, 7], [0, 7, 0, 1])}


def certified(one: np.ndarray, other: np.ndarray) -> float:
    """Largest epsilon that the frequencies of fixed events (bool (runs, events)) show, at a joint
    level of 99.9 %.
    """
    level = 0.001 / (4 * one.shape[1])
    best = 0.0
    for x, y in ((one.sum(axis=0), other.sum(axis=0)), (other.sum(axis=0), one.sum(axis=0))):
        low = np.where(x > 0, stats.beta.ppf(level, x, RUNS - x + 1), 0)
        high = np.where(y < RUNS, stats.beta.ppf(1 - level, y + 1, RUNS - y), 1)
        best = max(best, float(np.log(np.maximum(low, 1e-300) / high).max()))
    return best


def model_events(
    rows: list[int], columns: int, epsilon: float, quiet: float, seed: int
) -> np.ndarray:
    """Events on the model: its structure, and in its last table one cell at 0 while another is
    above a level.

    With one or two columns one table spends the whole epsilon, which is the worst case. Noise is
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
            weights[run, 2 * max(groups[group], 0) + values[part]] = np.diff(
                ends[part], prepend=0.0
            )
    above = weights[:, :, None] > np.array([0, 0.5, 1, 2])
    gone = (weights == 0)[:, :, None, None] & above[:, None]
    events = np.concatenate([above.reshape(RUNS, -1), gone.reshape(RUNS, -1)], axis=1)
    return (events[:, None] & (structure[:, None] == np.arange(4))[:, :, None]).reshape(RUNS, -1)


def drawn_events(
    rows: list[int], columns: int, epsilon: float, quiet: float, seed: int
) -> np.ndarray:
    """Events on 60 drawn rows: the number equal to each possible row, and the number of zeros in
    each column.
    """
    cells, coding = bits(BITS[3 - columns :, : 2**columns])
    draw = PrivBayes(epsilon=epsilon * quiet).drawer(cells, coding)
    counts = np.zeros((RUNS, 8 + columns))
    for run in range(RUNS):
        drawn = draw(np.array(rows), 60, seed * RUNS + run)
        counts[run, :8] = np.bincount(
            (2 ** np.arange(columns)[::-1] @ drawn).astype(int), minlength=8
        )
        counts[run, 8:] = (drawn == 0).sum(axis=1)
    return (counts[:, :, None] > np.array([0, 3, 10, 20, 40, 57, 59])).reshape(RUNS, -1)


def found(events: object, columns: int, epsilon: float, quiet: float = 1.0) -> float:
    one, other = (
        events(rows, columns, epsilon, quiet, seed) for seed, rows in enumerate(NEIGHBORS[columns])
    )  # type: ignore[operator]
    return certified(one, other)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("columns", "epsilon"), weekly_except([(2, 1.0), (1, 0.5), (2, 3.0), (3, 1.0)], (1, 0.5))
)
def test_no_more_than_epsilon_can_be_certified(columns: int, epsilon: float) -> None:
    model, drawn = found(model_events, columns, epsilon), found(drawn_events, columns, epsilon)
    assert max(model, drawn) <= epsilon
    assert columns == 3 or model > 0.6 * epsilon, "the test needs an attack with power"


@pytest.mark.slow
def test_halved_noise_is_found_out() -> None:
    assert found(model_events, 1, 1.0, 2.0) > 1.0 and found(model_events, 2, 3.0, 2.0) > 3.0


@pytest.mark.weekly
@pytest.mark.parametrize("columns", [1, 3])
def test_without_noise_far_more_is_certified(columns: int) -> None:
    assert found(drawn_events, columns, 3.0, 1e9) > 6 and found(model_events, columns, 3.0, 1e9) > 5


# As a generator


def test_drawers_know_public_categories_that_no_cell_has() -> None:
    cells, coding = bits()
    draw = PrivBayes(epsilon=0.01, categories={"a": ["n", "y", "m"], "b": ["y"]}).drawer(
        cells, coding
    )
    drawn = np.concatenate([draw(np.array([0, 7]), 200, seed) for seed in range(20)], axis=1)
    assert set(drawn[0]) == {0, 1, 2, 3} and set(drawn[1]) == {1, 2} and set(drawn[2]) == {0, 1}
    assert drawn[0].tolist().count(3) > 300, "a value that no cell has gets its share of the noise"


def test_tables_too_large_for_noise_are_rejected() -> None:
    train = table(**{name: [f"{name}{k}" for k in range(200)] for name in "abc"})
    PrivBayes(degree=1).fit(train, seed=0)
    with pytest.raises(InputError, match="cells"):
        PrivBayes(degree=2).fit(train, seed=0)


@pytest.mark.parametrize("generator", [BayNet(degree=1), PrivBayes(epsilon=5.0, degree=1)])
def test_rows_depend_on_the_seed(generator: BayNet) -> None:
    fitted = generator.fit(TRAIN, seed=0)
    rows = [fitted.sample(200, seed=seed).frame() for seed in (0, 0, 1)]
    assert rows[0].equals(rows[1])
    assert not rows[0].equals(rows[2])
