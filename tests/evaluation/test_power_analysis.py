"""Power analysis: its result for a size, and the inputs that do not affect it."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd
import pytest

import privacy_assets
from privacy_assets.errors import ConfigError, InputError
from privacy_assets.evaluation.power import PowerAnalysis
from privacy_assets.metrics.policies import default_policy, load_policy, size_warning, small_policy
from privacy_assets.policy import Limit, Policy
from privacy_assets.tables.demo import SUBJECT, load_patients
from tests.cli.people import people
from tests.evaluation.power_policies import CLOSE, LOOSE

SMALL: dict[str, Any] = {"subject": "person", "policy": LOOSE, "draws": 1}


def power(*sizes: int, rows: pd.DataFrame | None = None, **more: Any) -> PowerAnalysis:
    found: PowerAnalysis = privacy_assets.power_analysis(
        *sizes, rows=people() if rows is None else rows, **{**SMALL, **more}
    )
    return found


def test_the_same_seed_gives_the_same_result_whatever_the_order_of_rows() -> None:
    shuffled = people().sample(frac=1, random_state=1).reset_index(drop=True)
    first, again, other = (
        power(40, 30, policy=CLOSE, **more) for more in ({}, {"rows": shuffled}, {"seed": 1})
    )
    assert first.to_json() == again.to_json() and first.to_text() == again.to_text()
    assert first.to_json()["draws"] != other.to_json()["draws"]


@pytest.mark.slow
def test_without_a_subject_the_order_of_rows_changes_nothing() -> None:
    alone = people().drop(columns="person")  # each row is one person
    order = np.random.default_rng(0).permutation(len(alone))
    one, two = (
        power(90, 60, rows=rows, subject=None, policy=CLOSE)
        for rows in (alone, alone.iloc[order].reset_index(drop=True))
    )
    assert one.to_json() == two.to_json() and one.n_subjects["reference"] == 36


@pytest.mark.weekly
def test_the_release_does_not_know_who_is_in_train() -> None:
    """All people are in train or holdout, and the generator receives all rows in the same way."""
    one_limit = [{"statistic": "membership_inference.advantage", "at_most": 0.5, "bound": "proven"}]
    found = power(60, 60, 0, policy={"name": "p", "limits": one_limit}, draws=8)
    (values,) = zip(
        *([x.estimate.value for x in draw.outcomes if x.estimate] for draw in found.draws),
        strict=True,
    )
    assert (
        abs(np.mean(values)) < 3 * np.std(values, ddof=1) / np.sqrt(len(values))
        and found.passed == 8
    )


def test_limits_that_need_more_than_a_split_are_named_and_left_out() -> None:
    more = [
        Limit("dcr.embedded_privacy_score", at_most=0.5),
        Limit("shadow_membership.auc", at_most=0.9),
    ]
    found = power(40, 30, policy=Policy((*load_policy(LOOSE).limits, *more), "mine"))
    assert (
        set(found.left_out) == {limit.key for limit in more} and len(found.draws[0].outcomes) == 1
    )
    assert "Not evaluated: shadow_membership.auc." in found.to_text()


def test_without_rows_the_demo_speaks_and_says_so() -> None:
    found = privacy_assets.power_analysis(60, 40, policy=LOOSE, draws=1)
    said = found.to_text()
    assert (
        found.table == "the demo table"
        and "Figures for a table like the demo's, which has eight columns." in said
    )
    assert len(load_patients().columns.drop(SUBJECT)) == 8
    assert "They hold for tables of six columns or more" in said


def coarse(columns: int, values: int = 6) -> pd.DataFrame:
    """A table of 300 people, whose columns have few values."""
    rng = np.random.default_rng(0)
    return pd.DataFrame({f"c{i}": rng.integers(0, values, 300) for i in range(columns)})


def of_copies(at_most: float, rows: pd.DataFrame) -> PowerAnalysis:
    policy = {
        "name": "copies",
        "limits": [{"statistic": "copies.copied_share", "at_most": at_most}],
    }
    return power(120, 100, rows=rows, subject=None, policy=policy)


@pytest.mark.parametrize("columns", [3, 7])
def test_an_undecided_table_of_few_columns_is_advised_to_have_more(columns: int) -> None:
    found = of_copies(0.001, coarse(columns))
    said = found.to_text()
    pattern = (
        rf"\nWith {columns} columns, \d\d% of the rows are in the table by chance, so that"
        r" copies of up to \d+\.\d %"
        r" cannot be excluded\. Add columns\.\n"
    )
    is_narrow = columns == 3
    assert found.verdict == "undecided"
    assert bool(re.search(pattern, said)) == is_narrow, said
    assert ("Add columns" in said) == is_narrow and "six columns" not in said


def test_a_table_of_two_columns_is_advised_to_have_more() -> None:
    found = of_copies(0.9, coarse(2))
    assert found.verdict == "undecided"
    assert (
        "\nWith 2 columns, 87% of the rows are in the table by chance, so that copies cannot be"
        " distinguished from other rows. Add columns.\n"
    ) in found.to_text()


def test_a_table_in_which_copies_break_no_limit_is_advised_to_have_more_columns() -> None:
    found = of_copies(0.9, coarse(3, values=2))
    assert found.verdict == "undecided"
    assert (
        "100% of the rows are in the table by chance. Too many people share their rows in this"
        " table. Evaluate more of its columns.\n"
    ) in found.to_text()


def test_a_table_that_is_decided_has_no_advice() -> None:
    found = of_copies(0.3, coarse(7))
    assert found.verdict == "pass" and "columns" not in found.to_text()


@pytest.mark.parametrize(
    ("sizes", "more", "told"),
    [
        ((0, 30), {}, "train must be an integer of at least 1"),
        ((-1, 30), {}, "train must be an integer of at least 1"),
        ((40, 30.0), {}, "holdout must be an integer of at least 1"),
        ((40, True), {}, "holdout must be an integer of at least 1"),
        (("40", 30), {}, "train must be an integer of at least 1"),
        ((40, 30), {"seed": -1}, "seed must be an integer of at least 0"),
        ((40, 30), {"progress": "loud"}, "progress must be a function"),
        ((40, 30), {"rows": None}, "require rows"),
    ],
)
def test_sizes_and_settings_that_cannot_be(
    sizes: tuple[Any, ...], more: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        privacy_assets.power_analysis(*sizes, **{"rows": people(), **SMALL, **more})


def test_too_few_people_and_an_unknown_subject_are_input_errors() -> None:
    need = (
        r"there are 120 people, and train and holdout and reference need 80 \+ 30 \+ 32 = 142."
        r" Fix: reduce"
    )
    with pytest.raises(InputError, match=need):
        power(80, 30)
    with pytest.raises(InputError, match="persn"):
        power(40, 30, subject="persn")


def test_few_people_are_a_doubt_under_the_policies_they_are_too_few_for() -> None:
    default, small = default_policy(), small_policy()
    assert (
        size_warning(default, 1_500)
        == size_warning(small, 800)
        == size_warning(load_policy(LOOSE), 5)
        == ""
    )
    assert "Train has 1,499 people, fewer than 1,500" in size_warning(default, 1_499)
    assert "policy small" in size_warning(default, 800)
    assert "policy small" not in size_warning(default, 799) + size_warning(small, 799)
    for name, fewest in (("default", 1_500), ("small", 800)):
        own = load_policy({"name": "own", "extends": name, "limits": []})
        assert f"fewer than {fewest:,}" in size_warning(own, fewest - 1)
        assert size_warning(own, fewest) == ""
