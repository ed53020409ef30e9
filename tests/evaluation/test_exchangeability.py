"""Exchangeability of train and holdout: its level, its power, and repeated rows."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from standins import people

from privacy_assets.evaluation.exchangeability import exchangeability
from privacy_assets.evaluation.reading import read_inputs
from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.tables.declared import Declared


def inputs(train: pd.DataFrame, holdout: pd.DataFrame, seed: int = 0) -> EvaluationInputs:
    return read_inputs(
        train, holdout, train.drop(columns="pid"), declared=Declared(subject="pid"), seed=seed
    )


def halves(seed: int, subjects: int = 300) -> tuple[pd.DataFrame, pd.DataFrame]:
    frame = people(subjects, seed=seed)
    chosen = frame["pid"].isin(
        np.random.default_rng(seed).permutation(frame["pid"].unique())[: subjects * 3 // 4]
    )
    return frame[chosen].reset_index(drop=True), frame[~chosen].reset_index(drop=True)


@pytest.mark.slow
def test_random_halves_are_exchangeable_at_the_stated_level() -> None:
    values = [
        exchangeability(inputs(*halves(seed)), n_permutations=199).p_value for seed in range(20)
    ]
    assert sum(value <= 0.1 for value in values) <= 6  # 2 expected; 7 or more has probability 0.002
    assert min(values) >= 1 / 200


@pytest.mark.parametrize("column", ["age", "income", "region", "plan", "member", "joined"])
def test_a_shift_in_any_kind_of_column_is_found_and_named(column: str) -> None:
    train, holdout = halves(1)
    shifted = {
        "age": lambda s: s + 20,
        "income": lambda s: s.where(s.index % 3 > 0),
        "region": lambda s: s.where(s.index % 2 > 0, "north"),
        "plan": lambda s: s.where(s.index % 2 > 0, "a"),
        "member": lambda s: s | (s.index % 2 > 0),
        "joined": lambda s: s + pd.Timedelta(days=1),
    }[column]
    found = exchangeability(inputs(train, holdout.assign(**{column: shifted(holdout[column])})))
    assert found.p_value == 1 / 1000
    assert max(found.columns, key=lambda record: record["z"])["column"] == column


def test_repeated_rows_of_a_subject_count_once() -> None:
    train, holdout = halves(2, subjects=80)
    copies = [
        frame.loc[frame.index.repeat(20)].reset_index(drop=True) for frame in (train, holdout)
    ]
    once, often = exchangeability(inputs(train, holdout)), exchangeability(inputs(*copies))
    assert often.subjects == once.subjects == 80 and often.n == 20 * once.n
    assert often.p_value > 0.01


@pytest.mark.slow
def test_row_order_does_not_matter_and_the_seed_does_not_decide() -> None:
    train, holdout = halves(3)
    first = exchangeability(inputs(train, holdout))
    shuffled = train.sample(frac=1, random_state=0).reset_index(drop=True)
    assert exchangeability(inputs(train, holdout)) == first
    values = [exchangeability(inputs(shuffled, holdout, seed=seed)).p_value for seed in range(3)]
    assert max(values) - min(values) < 0.1 and abs(values[0] - first.p_value) < 0.1


def test_constant_and_all_missing_columns_say_nothing() -> None:
    train, holdout = halves(4)
    frames = [
        frame.assign(constant=1.0, empty=pd.Series([None] * len(frame), dtype="float64"))
        for frame in (train, holdout)
    ]
    frames[0].loc[0, "empty"] = 1.0  # one value, so that the column has a kind
    found = exchangeability(inputs(*frames))
    assert {r["column"]: r["z"] for r in found.columns}["constant"] == 0
    assert found.p_value > 0.001
