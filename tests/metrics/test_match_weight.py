"""Margins of matches against loops over all pairs; the excess of members against sorted rows and
planted parts.
"""

from __future__ import annotations

from functools import partial
from math import log2

import numpy as np
import pandas as pd
import pytest

from privacy_assets.evaluation.reading import read_inputs
from privacy_assets.metrics._kernels import best_margins
from privacy_assets.metrics.copies import TAILS, Copies, coded, match_excess
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


def match_weight(real: pd.DataFrame, row: dict[str, object], other: dict[str, object]) -> float:
    """The match weight of a real and a synthetic row by a loop over their cells."""
    weight = 0.0
    for name, value in row.items():
        if not pd.isna(value) and not pd.isna(other[name]) and value == other[name]:
            weight -= log2((real[name] == value).sum() / len(real))
    return weight


def margins_by_hand(
    real: pd.DataFrame, people: np.ndarray, attacked: np.ndarray, synthetic: pd.DataFrame
) -> list[float]:
    """The largest margins by loops over pairs of rows and over people."""
    rows = real.to_dict("records")
    largest = dict.fromkeys(attacked.tolist(), -np.inf)
    for other in synthetic.to_dict("records"):
        weights = {row: match_weight(real, rows[row], other) for row in attacked.tolist()}
        of_person: dict[int, float] = {}
        for row, weight in weights.items():
            person = int(people[row])
            of_person[person] = max(weight, of_person.get(person, 0.0))
        third = sorted([0.0, 0.0, 0.0, *of_person.values()], reverse=True)[2]
        for row, weight in weights.items():
            largest[row] = max(largest[row], weight - third)
    return list(largest.values())


def margins(
    real: list[Table], people: np.ndarray, attacked: np.ndarray, synthetic: Table
) -> tuple[np.ndarray, np.ndarray]:
    """The margins of some real rows, and the positions of the synthetic rows."""
    codes, weights, released = coded(real, synthetic, attacked)
    rows = np.ascontiguousarray(codes[:, attacked])
    return best_margins(rows, weights, people[attacked], released)


@pytest.mark.parametrize(
    ("n_attacked", "rows_of_a_person"), [(60, 1), (60, 3), (60, 60), (2, 1), (1, 1)]
)
def test_margins_are_those_of_all_pairs(n_attacked: int, rows_of_a_person: int) -> None:
    frame, other = mixed(60, seed=1), mixed(5000, seed=2).iloc[-40:]
    people = np.random.default_rng(3).permutation(60) // rows_of_a_person
    real = [frame.iloc[:25], frame.iloc[25:40], frame.iloc[40:]]
    schema = Table.read(frame).schema
    tables = [Table.of(part.reset_index(drop=True), schema, where="real") for part in real]
    released = Table.of(other.reset_index(drop=True), schema, where="synthetic")
    attacked = np.random.default_rng(4).permutation(60)[:n_attacked]

    found, positions = margins(tables, people, attacked, released)
    expected = margins_by_hand(frame, people, attacked, other)
    assert found == pytest.approx(np.array(expected), abs=1e-4)

    blocks = Table.of(pd.concat([other] * 300, ignore_index=True), schema, where="synthetic")
    again, first_positions = margins(tables, people, attacked, blocks)
    assert np.array_equal(again, found), "more rows than a block"
    assert np.array_equal(first_positions, positions), "the first of equal rows"

    in_reverse = margins(tables, people, attacked[::-1], released)[0][::-1]
    assert in_reverse == pytest.approx(found, abs=1e-4)


def test_a_row_that_many_people_have_is_no_evidence() -> None:
    """A copy of one person has a margin, and so has a row of halves of two people."""
    codes = np.array([[0, 1, 2, 2, 2, 2], [0, 1, 2, 2, 2, 2]], np.int32)
    bits = np.full((2, 6), 3.0, np.float32)
    for row, expected in (
        ([0, 0], [6, 0, 0, 0, 0, 0]),
        ([0, 1], [3, 3, 0, 0, 0, 0]),
        ([2, 2], [-6, -6, 0, 0, 0, 0]),
    ):
        synthetic = np.array(row, np.int32)[:, None]
        assert best_margins(codes, bits, np.arange(6), synthetic)[0].tolist() == expected
    # with two people, a margin is the whole match weight
    assert best_margins(codes, bits, np.arange(6) // 3, synthetic)[0].tolist() == [0, 0, 6, 6, 6, 6]


def test_without_synthetic_rows_there_is_no_margin() -> None:
    codes = np.zeros((2, 3), np.int32)
    empty = np.zeros((2, 0), np.int32)
    found, positions = best_margins(codes, np.ones((2, 3), np.float32), np.arange(3), empty)
    assert np.isneginf(found).all()
    assert (positions == -1).all()


@pytest.mark.parametrize("each", [1, 3])
def test_the_excess_is_that_of_members_in_the_tails(each: int) -> None:
    rng = np.random.default_rng(0)
    member = rng.permutation(400) < 250
    codes = np.repeat(np.arange(400), each)
    # many ties
    weights = (rng.normal(size=len(codes)) + 0.5 * member[codes]).round(1).astype(np.float32)
    people = Subjects(codes, member)
    found = match_excess(
        weights, people, partial(mean_difference, subjects=people, n_permutations=400, rng=rng)
    )
    order = np.argsort(-weights, kind="stable")
    for tail, value in zip(TAILS, found.observed, strict=True):
        cut = weights[order[round(tail * len(codes)) - 1]]
        left = tail * len(codes) - (weights > cut).sum()
        part = (weights > cut) + (weights == cut) * left / (weights == cut).sum()
        assert part.sum() == pytest.approx(tail * len(codes))
        difference = part[member[codes]].mean() - part[~member[codes]].mean()
        assert value == pytest.approx(difference * member.mean() / tail)
        in_tail = (part * member[codes]).sum() / part.sum()
        assert value == pytest.approx((in_tail - member.mean()) / (1 - member.mean()))
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
    assert 0.03 < half.low < half.value < most.value
    assert most.value == pytest.approx(1)
    fresh = [release("fresh", seed) for seed in range(20)]
    assert all(found.low <= 0.05 for found in fresh)
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
    assert every.n == 1500 and 900 < some.n <= 1000 and min(every.low, some.low) > 0.5
