"""Values that must not appear in a synthetic table: foreign values, and people's values in
generated columns.
"""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from privacy_assets.errors import ConfigError
from privacy_assets.evaluation.reading import read_inputs
from privacy_assets.metrics.policies import default_policy
from privacy_assets.metrics.value_disclosure import ValueDisclosure
from privacy_assets.stats.estimates import Estimate
from privacy_assets.tables.declared import Declared

GENERATED = Declared(new_values={"id": "made up", "note": "written anew"})
WHERE = ["at work", "at home", "in the street", "at school", "in the garden"]
HOW = ["slipped on ice and fell", "was hit by a car", "cut a finger", "hurt a knee", "burnt a hand"]


def real(n: int, seed: int, rows: int = 1) -> pd.DataFrame:
    """``rows`` people, with an id and a note of common words and a few unique ones."""
    rng = np.random.default_rng(seed)
    people = pd.DataFrame(
        {
            "id": rng.choice(10**9, n, replace=False) + 10**9,
            "note": [
                f"{rng.choice(HOW)} {rng.choice(WHERE)}, seen after {rng.integers(60)} days by"
                f" nurse {rng.integers(40)}"
                for _ in range(n)
            ],
            "age": rng.integers(18, 90, n),
            "region": rng.choice(["north", "south"], n),
        }
    )
    return people.loc[people.index.repeat(rows)].reset_index(drop=True)


def estimate(
    synthetic: pd.DataFrame,
    train: pd.DataFrame,
    holdout: pd.DataFrame,
    reference: pd.DataFrame | None = None,
) -> Estimate:
    inputs = read_inputs(train, holdout, synthetic, reference, declared=GENERATED)
    return ValueDisclosure().measure(inputs).estimates[1]


def verdict(
    synthetic: pd.DataFrame, train: pd.DataFrame, holdout: pd.DataFrame, declared: Declared
) -> str:
    result = ValueDisclosure().measure(read_inputs(train, holdout, synthetic, declared=declared))
    return default_policy(["value_disclosure"]).judge({"value_disclosure": result}).status


@pytest.mark.parametrize("rows", [1, 300])
def test_private_rows_in_a_category_are_foreign(rows: int) -> None:
    train, holdout = (real(300, seed).drop(columns=["id", "note"]) for seed in (0, 1))
    told = [json.dumps(row) for row in train.astype(str).to_dict("records")]
    smuggled = train.assign(region=told).sample(rows, random_state=0)
    result = ValueDisclosure().measure(read_inputs(train, holdout, smuggled))
    assert result.estimate("foreign_cells").value == result.estimate("foreign_cells").low == 1
    none = result.estimate("generated_excess")
    assert (none.value, none.low, none.high, none.n, none.note) == (
        0,
        0,
        0,
        rows,
        "no generated column",
    )
    assert verdict(smuggled, train, holdout, Declared()) == "fail"
    assert verdict(holdout, train, holdout, Declared()) == "pass"
    assert "north" not in json.dumps(result.to_json()) and told[0] not in json.dumps(
        result.to_json()
    )


def test_a_single_foreign_cell_fails_and_a_declared_value_does_not() -> None:
    train, holdout = (real(300, seed).drop(columns=["id", "note"]) for seed in (0, 1))
    one = holdout.copy()
    one.loc[7, "region"] = "east"
    assert verdict(one, train, holdout, Declared()) == "fail"
    assert (
        verdict(one, train, holdout, Declared(allowed_values={"region": ("north", "east")}))
        == "pass"
    )


@pytest.mark.slow
def test_invented_values_pass_and_those_of_the_training_people_do_not() -> None:
    train, holdout, invented = (real(500, seed) for seed in (0, 1, 2))
    assert verdict(invented, train, holdout, GENERATED) == "pass"
    for column in ("id", "note"):
        stolen = invented.assign(**{column: train[column]})
        found = estimate(stolen, train, holdout)
        assert found.value > 0.9, column
        assert verdict(stolen, train, holdout, GENERATED) == "fail"


def test_an_identifier_in_another_column_and_a_subject_are_seen() -> None:
    train, holdout, invented = (real(500, seed) for seed in (0, 1, 2))
    beside = invented.assign(note=train["id"].astype(str))
    assert estimate(beside, train, holdout).value > 0.9
    people, others = (
        frame.assign(who=[f"person {seed} {i:09d}" for i in range(500)])
        for seed, frame in (("a", train), ("b", holdout))
    )
    for note, told in ((people["who"], "fail"), (invented["note"], "pass")):
        declared = Declared(subject="who", new_values=GENERATED.new_values)
        inputs = read_inputs(people, others, invented.assign(note=note), declared=declared)
        result = ValueDisclosure().measure(inputs)
        assert (
            default_policy(["value_disclosure"]).judge({"value_disclosure": result}).status == told
        )


@pytest.mark.slow
def test_one_in_a_hundred_real_identifiers_is_seen() -> None:
    train, holdout, invented = (real(1500, seed) for seed in (0, 1, 2))
    few = invented.copy()
    few.loc[:14, "id"] = train.loc[:14, "id"]
    found = estimate(few, train, holdout)
    assert found.low > 0 and abs(found.value - 0.01) < 0.004
    assert verdict(few, train, holdout, GENERATED) == "fail"


def test_other_case_other_signs_and_longer_text_do_not_hide_a_note() -> None:
    train, holdout, invented = (real(400, seed) for seed in (0, 1, 2))
    own = [f"record {i} of {name}" for i, name in enumerate(train["note"])]
    train = train.assign(note=own)
    hidden = invented.assign(
        note=["The message is: " + text.upper().replace(" ", "_") + " END" for text in own]
    )
    assert estimate(hidden, train, holdout).low > 0.5


@pytest.mark.weekly
def test_the_interval_is_calibrated_when_nothing_leaks() -> None:
    false_alarms = 0
    for seed in range(30):
        people = real(200, 100 + seed).sample(frac=1, random_state=seed).reset_index(drop=True)
        invented = real(200, 1000 + seed)
        # equally many of both sides
        invented.loc[:49, ["id", "note"]] = people.loc[::4, ["id", "note"]].to_numpy()
        found = estimate(
            invented,
            people.iloc[:100].reset_index(drop=True),
            people.iloc[100:].reset_index(drop=True),
        )
        assert found.low <= found.value <= found.high
        false_alarms += found.low > 0 or found.high < 0
    assert false_alarms <= 3  # at 99 %, and exact: 0.3 expected at most


def test_an_identifier_of_several_rows_counts_where_no_subject_tells_them_apart() -> None:
    rows = real(300, 0, rows=4).sample(frac=1, random_state=0).reset_index(drop=True)
    train, holdout = rows.iloc[:600].reset_index(drop=True), rows.iloc[600:].reset_index(drop=True)
    invented = real(600, 5)
    assert estimate(invented.assign(id=train["id"]), train.assign(age=range(600)), holdout).low > 0


@pytest.mark.slow
def test_people_of_the_reference_are_unseen_as_those_of_the_holdout_are() -> None:
    train, holdout, reference, invented = (real(600, seed) for seed in (0, 1, 2, 3))
    few = invented.assign(id=[*train["id"][:6], *invented["id"][6:]])
    assert estimate(few, train, holdout).low <= 0 < estimate(few, train, holdout, reference).low


def test_lengths_rise() -> None:
    with pytest.raises(ConfigError, match="value_disclosure: lengths must be ascending"):
        ValueDisclosure(lengths=(24, 12))
