"""Match weights against loops over all pairs; the members' advantage against the AUC and planted
parts.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from math import log2

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from privacy_assets.evaluation.reading import read_inputs
from privacy_assets.metrics._kernels import best_weights
from privacy_assets.metrics.copies import TAILS, Copies, advantages, coded
from privacy_assets.stats.estimates import Estimate
from privacy_assets.stats.inference import mean_difference
from privacy_assets.stats.subjects import Subjects
from privacy_assets.tables.table import Table


def mixed(number: int, seed: int, missing: float = 0.1) -> pd.DataFrame:
    """Every kind of column, with missing cells."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": rng.integers(18, 90, number).astype(float),
            "pay": rng.lognormal(6, 1, number).round(1),
            "plan": rng.choice(["a", "b", "c"], number, p=[0.7, 0.2, 0.1]),
            "town": rng.choice([f"town {k}" for k in range(40)], number),
            "sure": rng.choice([0.5, 1.5], number),
            "since": pd.Timestamp("2020-01-01")
            + pd.to_timedelta(rng.integers(0, 500, number), unit="D"),
        }
    )
    return frame.mask(rng.random(frame.shape) < missing)


def by_hand(real: pd.DataFrame, synthetic: pd.DataFrame) -> list[float]:
    """The weights by loops over pairs of rows and their cells."""
    times = {name: Counter(real[name].dropna()) for name in real}
    found = []
    for own in real.to_dict("records"):
        sums = [
            sum(
                -log2(times[name][value] / len(real))
                for name, value in own.items()
                if not pd.isna(value) and not pd.isna(other[name]) and value == other[name]
            )
            for other in synthetic.to_dict("records")
        ]
        found.append(max(sums))
    return found


def match_weights(real: list[Table], synthetic: Table, rows: np.ndarray) -> np.ndarray:
    """The weights of some real rows."""
    known, weights, made = coded(real, synthetic, rows)
    return best_weights(known[:, rows], weights, made)


def test_weights_are_those_of_all_pairs() -> None:
    frame, other = mixed(60, seed=1), mixed(5000, seed=2).iloc[-40:]
    real = [frame.iloc[:25], frame.iloc[25:40], frame.iloc[40:]]
    schema = Table.read(frame).schema
    tables = [Table.of(part.reset_index(drop=True), schema, where="real") for part in real]
    released = Table.of(other.reset_index(drop=True), schema, where="synthetic")
    rows = np.array([3, 59, 0, 30])
    found = match_weights(tables, released, rows)
    assert found == pytest.approx(np.array(by_hand(frame, other))[rows], rel=1e-5)
    blocks = Table.of(pd.concat([other] * 300, ignore_index=True), schema, where="synthetic")
    assert np.array_equal(match_weights(tables, blocks, rows), found), "more rows than a block"


@pytest.mark.parametrize("each", [1, 3])
def test_advantages_are_areas_and_tails(each: int) -> None:
    rng = np.random.default_rng(0)
    member = rng.permutation(400) < 250
    codes = np.repeat(np.arange(400), each)
    # many ties
    weights = (rng.normal(size=len(codes)) + 0.5 * member[codes]).round(1).astype(np.float32)
    people = Subjects(codes, member)
    found = advantages(
        weights, people, partial(mean_difference, subjects=people, n_permutations=400, rng=rng)
    )
    assert found.observed[0] == pytest.approx(2 * roc_auc_score(member[codes], weights) - 1)
    order = np.argsort(-weights, kind="stable")
    for tail, value in zip(TAILS, found.observed[1:], strict=True):
        cut = weights[order[round(tail * len(codes)) - 1]]
        left = tail * len(codes) - (weights > cut).sum()
        part = (weights > cut) + (weights == cut) * left / (weights == cut).sum()
        assert part.sum() == pytest.approx(tail * len(codes))
        assert value == pytest.approx(part[member[codes]].mean() - part[~member[codes]].mean())
    assert np.abs(found.null.mean(axis=0)).max() < 4 * found.null.std(axis=0).max() / 20


def release(kind: str, seed: int = 0, numbers: int = 40) -> Estimate:
    """The estimate for a table of 6 columns, whose release holds fresh rows and the ``kind`` of
    copies.
    """
    rng = np.random.default_rng(seed)

    def people(number: int) -> pd.DataFrame:
        return pd.DataFrame(
            {name: np.minimum(rng.geometric(4 / numbers, number), numbers) for name in "abcdef"}
        )

    train, holdout, reference, fresh = (people(number) for number in (900, 540, 360, 900))
    own = rng.random(fresh.shape).argsort(axis=1) < {"fresh": 0, "half": 3, "most": 5}[kind]
    synthetic = fresh.where(~own, train.sample(frac=1, random_state=seed).reset_index(drop=True))
    inputs = read_inputs(train, holdout, synthetic, reference=reference, seed=seed)
    return Copies(n_permutations=199).measure(inputs).estimates[2]


@pytest.mark.slow
def test_halves_of_rows_are_seen_and_fresh_rows_are_not() -> None:
    half, most = release("half"), release("most")
    assert 0.03 < half.low < half.value < most.value and most.low > 0.3
    fresh = [release("fresh", seed) for seed in range(20)]
    assert all(found.low <= 0.02 for found in fresh)
    assert sum(not found.low <= 0 <= found.high for found in fresh) <= 1


def test_cells_that_are_missing_hide_no_copy() -> None:
    rng = np.random.default_rng(1)
    train, holdout, fresh = (mixed(600, seed=seed, missing=0.0) for seed in (1, 2, 3))
    gone = train.mask(rng.random(train.shape) < 0.3)
    for synthetic, seen in ((gone, True), (fresh, False)):
        found = (
            Copies(n_permutations=199)
            .measure(read_inputs(train, holdout, synthetic, seed=1))
            .estimates[2]
        )
        assert (found.low > 0.03) == seen


def test_of_many_rows_some_are_looked_at() -> None:
    train, holdout = mixed(900, seed=1), mixed(600, seed=2)
    inputs = read_inputs(train, holdout, train.copy(), seed=1)
    every, some = (
        Copies(n_permutations=199, max_targets=most).measure(inputs).estimates[2]
        for most in (None, 1000)
    )
    assert every.n == 1500 and 900 < some.n <= 1000 and min(every.low, some.low) > 0.4
