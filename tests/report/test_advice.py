"""What to do: which cause of which failure, told by the statistics of releases of known truth; where it is shown."""

from __future__ import annotations

import gzip
import json
import math
import re
from pathlib import Path
from typing import get_args

import pytest
import yaml

from privacy_assets.metrics.declarations import Cause
from privacy_assets.metrics.registry import METRICS, statistic_specs
from privacy_assets.pipeline.spec import TableSpec
from privacy_assets.policy import Policy
from privacy_assets.report.advice import ADVICE, advice
from privacy_assets.report.configuration import privacy_configuration
from privacy_assets.stats.estimates import Estimate
from privacy_assets.stats.limits import Limit, LimitOutcome, judge_limit
from privacy_assets.stats.results import MetricResult
from tests.report.report_examples import Page, estimate, failing, not_assessable, passing

GOLDEN = Path(__file__).parents[1] / "golden"
LIMITS = {limit.key: limit for limit in Policy.default().limits}
GATE = {limit.key: limit for limit in Policy.default(["holdout_leakage"]).limits}
SHADOW = METRICS["shadow_membership"].default_limits


def outcome(limit: Limit, value: float, **more: object) -> LimitOutcome:
    spec = statistic_specs()[limit.statistic]
    found = estimate(
        spec.name, value, **{"direction": spec.direction, "null": spec.null or 0.0, "about": spec.about, **more}
    )
    return judge_limit(limit, MetricResult(limit.metric, (found,)))


def broken(limit: Limit, side: int = 1) -> LimitOutcome:
    """The outcome of a limit far beyond it, on the risky side; ``side`` -1 is the other one of two-sided statistics."""
    spec = statistic_specs()[limit.statistic]
    return outcome(limit, spec.null - 50 if spec.direction == "lower_is_riskier" else spec.null + side * 0.95)


def causes(*outcomes: LimitOutcome) -> list[str]:
    return [found["cause"] for found in advice(outcomes)]


def test_every_cause_has_advice_of_at_most_three_things() -> None:
    assert set(ADVICE) == set(get_args(Cause))
    for found in ADVICE.values():
        assert 1 <= len(found.actions) <= 3 and found.means.endswith(".")
        assert all(action.cost and bool(action.protections) == bool(action.once_on) for action in found.actions)
    known = {protection.name for protection in privacy_configuration(None)}
    assert {name for found in ADVICE.values() for action in found.actions for name in action.protections} <= known


def test_more_people_are_no_advice_for_a_generator_that_copies() -> None:
    assert not any("more people" in action.do for action in ADVICE["copied rows"].actions)
    assert any("more people" in action.do for action in ADVICE["over-fitting"].actions)


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        ("adult/copy", {"copied rows"}),
        ("adult/copies", {"copied rows"}),
        ("adult/moved", {"copied rows"}),
        ("stays/moved", {"copied rows"}),
        ("census/copies", {"copied rows"}),
        ("census/overfitted", {"copied rows", "earlier releases"}),  # leaves of five on few categories: identical rows
        ("adult/overfitted", {"over-fitting"}),
        ("adult/filtered", {"members avoided"}),
        ("patients/copies", {"copied rows", "foreign values", "earlier releases"}),
        ("adult/fresh", set()),
        ("patients/honest", set()),
    ],
)
def test_causes_of_releases_of_known_truth_are_told_apart(release: str, expected: set[str]) -> None:
    data = json.loads(gzip.decompress((GOLDEN / f"{release}.json.gz").read_bytes()))
    results = {
        name: MetricResult(name, tuple(Estimate.from_json(*pair) for pair in metric["estimates"].items()))
        for name, metric in data["metrics"].items()
    }
    judgement = Policy(tuple(Limit(**limit) for limit in data["policy"]["limits"])).judge(results)
    assert {found["cause"] for found in advice(judgement.broken)} == expected


def test_every_default_limit_has_a_cause_when_it_is_broken() -> None:
    for key, limit in LIMITS.items():
        (found,) = advice([broken(limit)])
        assert found["limits"] == [key] and found["todo"]


def test_what_explains_more_comes_first_and_takes_the_others_with_it() -> None:
    copied, fitted, rare, any_leak = (
        broken(LIMITS[key])
        for key in (
            "copies.rare_share", "dcr.member_excess_any.lower", "singling_out.risk", "attribute_inference.excess.lower"
        )
    )  # fmt: skip
    assert causes(rare) == causes(rare, any_leak) == ["rare values"]
    assert causes(any_leak) == causes(rare, any_leak, fitted) == ["over-fitting"]
    assert causes(rare, any_leak, fitted, copied) == ["copied rows"]
    (found,) = advice([rare, any_leak, fitted, copied])
    assert found["limits"] == [x.limit.key for x in (rare, any_leak, fitted, copied)]


def test_members_who_are_avoided_are_another_cause_than_members_who_leak() -> None:
    avoided = [
        broken(limit, -1) for limit in LIMITS.values() if METRICS[limit.metric].causes.broken != "earlier releases"
    ]
    leaks = [x for x in avoided if x.estimate.direction == "two_sided" and x.limit.metric != "value_disclosure"]
    assert len(leaks) > 3 and {tuple(causes(state)) for state in leaks} == {("members avoided",)}
    assert causes(broken(LIMITS["cumulative_disclosure.advantage_any.lower"], -1)) == ["earlier releases"]


FIRST = next(iter(LIMITS.values()))
FEWER = FIRST.smallest_n - 1
USE = Limit("fidelity.prediction", at_least=0.8), Limit("fidelity.prediction_loss", at_most=0.02)
BLIND = Limit("controls.smallest_leak_exact", at_most=0.1), GATE["holdout_leakage.advantage_any.lower"]
NOTE = "not measurable: 7 predicted positives, 50 needed"


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (outcome(FIRST, 0.0, subjects=FEWER), ["small holdout"]),
        (outcome(FIRST, 0.0, reach=1), ["small holdout"]),
        (outcome(FIRST, math.nan, note=NOTE), ["small holdout"]),
        (outcome(BLIND[0], 0.9), ["small holdout"]),
        (outcome(BLIND[0], math.nan), ["small holdout"]),
        (outcome(BLIND[1], 0.9), ["seen holdout"]),
        (outcome(SHADOW[1], 0.0, subjects=SHADOW[1].smallest_n - 1), ["few tests"]),
        (outcome(USE[0], 0.6), ["poor fit"]),
        (outcome(USE[1], 0.2), ["poor fit"]),
        (outcome(USE[0], 0.9, subjects=5), ["small holdout"]),
        (outcome(FIRST, 0.0), []),
        (outcome(FIRST, math.nan, note="no embedder was given"), []),
        (judge_limit(FIRST, None), []),
    ],
)
def test_what_is_wrong_says_the_cause(state: LimitOutcome, expected: list[str]) -> None:
    assert causes(state) == expected


def test_a_leak_is_mended_before_people_are_looked_for() -> None:
    few = outcome(FIRST, 0.0, subjects=FEWER)
    foreign = broken(LIMITS["value_disclosure.foreign_cells"])
    assert causes(few, broken(LIMITS["singling_out.risk"])) == ["rare values"]
    assert causes(few, foreign) == ["foreign values", "small holdout"]


def stated(*filters: str, **more: object) -> list:
    """The protections of a table with these filters on."""
    found = {"filters": {name: {} for name in filters}, "drawn": 10, "dropped": 1, "dropped_by": {}}
    return privacy_configuration({"filter": found if filters else None, **more})


@pytest.mark.parametrize(
    ("configuration", "asked", "not_asked"),
    [
        ((), "filter: memorization", "raise its quantile"),
        (stated("memorization"), "raise its quantile", "filter: memorization"),
        (stated("similarity"), "raise its quantile", "filter: memorization"),
        (stated(privacy={"epsilon": 1.0}), "Lower the epsilon", "differentially private"),
        (stated(privacy={"epsilon": None}), "differentially private", "Lower the epsilon"),
    ],
)
def test_what_is_on_is_not_asked_for_again_but_can_be_turned_up(configuration, asked, not_asked) -> None:
    (found,) = advice([broken(LIMITS["copies.rare_share"])], configuration)
    words = " ".join(action["what"] for action in found["todo"])
    assert asked in words and not_asked not in words and len(found["todo"]) == 3


def test_what_stands_in_braces_can_be_pasted_into_the_yaml_file_of_a_table() -> None:
    found = [
        text for one in ADVICE.values() for action in one.actions for text in re.findall(r"[(](.*{.*})[)]", action.do)
    ]
    assert len(found) > 5 and any("min_leaf" in text for text in found)
    for text in found:
        given = yaml.safe_load(text)
        data = {"source": "rows.csv", **given.pop("data", {})}
        TableSpec(name="people", data=data, **given)


@pytest.mark.parametrize("make", [failing, not_assessable, passing])
def test_every_form_shows_what_applies_and_nothing_else(make) -> None:
    made = make()
    found = made.to_json()["advice"]
    assert found == made.advice and bool(found) == (made.verdict == "fail")
    for shown in (Page(made.to_html()).words, " ".join(made.to_text().split()), Page(made._repr_html_()).words):
        for cause, one in ADVICE.items():
            applies = cause in [entry["cause"] for entry in found]
            assert (one.means in shown) == applies, cause
            assert (one.actions[0].do in shown) == applies, cause
