"""The verbatim copy of train that shows which limits can fail."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from privacy_assets.evaluation.measuring import run_metrics
from privacy_assets.evaluation.reading import read_inputs
from privacy_assets.metrics.copies import Copies
from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.metrics.policies import default_policy
from privacy_assets.metrics.singling_out import SinglingOut
from privacy_assets.tables.declared import Declared


def inputs_of(people: int, unseen: int, each: int = 2) -> EvaluationInputs:
    """Random rows of numbers and words, ``each`` a person; the release has rows of other people."""
    rng = np.random.default_rng(people)
    sizes = [people * each, unseen * each, people * each]
    numbers, words = (
        [rng.integers(0, 50, (size, 3)) for size in sizes],
        [rng.choice(list("abcd"), size) for size in sizes],
    )
    train, holdout, synthetic = (
        pd.DataFrame(own, columns=list("xyz")).assign(kind=word)
        for own, word in zip(numbers, words, strict=True)
    )
    train["who"] = [f"t{at // each}" for at in range(len(train))]
    holdout["who"] = [f"h{at // each}" for at in range(len(holdout))]
    return read_inputs(train, holdout, synthetic, declared=Declared(subject="who"))


def test_it_has_all_rows_of_the_people_that_are_drawn_and_keeps_small_tables_whole() -> None:
    inputs = inputs_of(400, 30)
    copy = inputs.with_copy(100)
    people = {
        role: np.unique(copy.subject_codes(role), return_counts=True)
        for role in ("train", "holdout")
    }
    assert 70 < len(people["train"][0]) < 130 and set(people["train"][1]) == {2}
    assert len(people["holdout"][0]) == 30
    assert (copy.row_ids["synthetic"] == copy.row_ids["train"]).all()
    pd.testing.assert_frame_equal(copy.synthetic.frame(), copy.train.frame())
    assert len(inputs.with_copy(1_000).train) == len(inputs.train)


@pytest.mark.parametrize(("n_released", "n_copied"), [(80, 80), (8_000, 800), (1, 1)])
def test_it_is_no_larger_than_the_release(n_released: int, n_copied: int) -> None:
    """800 rows of train."""
    inputs = inputs_of(400, 30)
    release = inputs.synthetic.frame().sample(n_released, replace=True, random_state=1)
    smaller = read_inputs(
        inputs.train.frame(), inputs.holdout.frame(), release.reset_index(drop=True)
    )
    copy = smaller.with_copy(10_000)
    assert len(copy.synthetic) == n_copied

    shuffled = inputs.train.frame().sample(frac=1, random_state=2).reset_index(drop=True)
    in_other_order = read_inputs(shuffled, inputs.holdout.frame(), release.reset_index(drop=True))
    again = in_other_order.with_copy(10_000)
    assert np.array_equal(np.sort(again.row_ids["synthetic"]), np.sort(copy.row_ids["synthetic"]))

    assert np.isin(copy.row_ids["synthetic"], copy.row_ids["train"]).all()
    for role in ("train", "synthetic"):
        again = copy.derived.encoder.transform(copy.tables[role])
        assert np.array_equal(again.dense, copy.encoded(role).dense)


def test_limits_can_fail_with_a_large_train_and_a_small_holdout(monkeypatch) -> None:
    monkeypatch.setattr("privacy_assets.evaluation.measuring._COPIED_PEOPLE", 100)
    policy = default_policy(["copies"])
    results = run_metrics(
        inputs_of(1_000, 40), {"copies": Copies(n_permutations=199)}, policy.limits
    )
    found = {outcome.limit.key: outcome.can_fail for outcome in policy.judge(results).outcomes}
    assert found.pop("copies.repeated_share.proven") is None
    assert set(found.values()) == {True}


def test_a_smaller_budget_is_never_larger() -> None:
    few = SinglingOut(n_queries=50, n_permutations=99).on_smaller_budget()
    assert (few.n_queries, few.n_permutations) == (50, 99)
    assert SinglingOut().on_smaller_budget().n_queries <= 1_000
