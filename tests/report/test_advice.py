"""Advice: the cause of each failure, inferred from the statistics of releases of known truth, and
where it is shown.
"""

from __future__ import annotations

import gzip
import json
import math
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import get_args

import numpy as np
import pandas as pd
import pytest
import yaml

from privacy_assets import evaluate
from privacy_assets.generators import PrivacyBudget, build_generator
from privacy_assets.generators.filters import FILTERS, build_filter
from privacy_assets.metrics.base import Cause
from privacy_assets.metrics.policies import default_policy
from privacy_assets.pipeline.spec import TableSpec
from privacy_assets.policy import DIFFER, Limit, LimitOutcome, Policy, judge_limit
from privacy_assets.report.advice import (
    _OVERFITTING_PHRASES,
    ADVICE,
    TableFacts,
    advice,
    fine_columns,
    ledger_notes,
    privacy_configuration,
    what_to_do,
)
from privacy_assets.stats.estimates import Estimate, MetricResult
from privacy_assets.tables.inference import infer_schema
from tests.report.report_examples import ParsedPage, estimate, failing, passing, report, undecided
from tests.shipped import GENERATORS, METRICS, statistic_specs
from tests.tables import as_table

GOLDEN = Path(__file__).parents[1] / "golden"
LIMITS = {limit.key: limit for limit in default_policy().limits}
GATE = {limit.key: limit for limit in default_policy(["holdout_leakage"]).limits}
SHADOW = METRICS["shadow_membership"].default_limits


def outcome(limit: Limit, value: float, **more: object) -> LimitOutcome:
    spec = statistic_specs()[limit.statistic]
    found = estimate(
        spec.name,
        value,
        **{
            "direction": spec.direction,
            "null": spec.null or 0.0,
            "measures": spec.measures,
            **more,
        },
    )
    return judge_limit(limit, MetricResult(limit.metric, (found,)))


def broken(limit: Limit, side: int = 1) -> LimitOutcome:
    """An outcome far beyond a limit, on the risky side; ``side`` -1 is the other side of two-sided
    statistics.
    """
    spec = statistic_specs()[limit.statistic]
    return outcome(
        limit, spec.null - 50 if spec.direction == "lower_is_riskier" else spec.null + side * 0.95
    )


def causes(*outcomes: LimitOutcome) -> list[str]:
    return [found["cause"] for found in advice(outcomes)]


def test_every_cause_has_advice_with_costs() -> None:
    assert set(ADVICE) == set(get_args(Cause))
    for found in ADVICE.values():
        assert found.actions and found.means.removesuffix(" {enough}").endswith(".")
        assert all(action.cost and not action.do.endswith(".") for action in found.actions)


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        ("adult/copy", {"copied rows"}),
        ("adult/copies", {"copied rows"}),
        ("adult/moved", {"copied rows"}),
        ("stays/moved", {"copied rows"}),
        ("census/copies", {"copied rows"}),
        ("census/overfitted", {"copied rows"}),  # leaves of five, few categories: identical rows
        ("adult/overfitted", {"copied rows"}),  # rows with changed cells
        ("adult/filtered", {"members avoided"}),
        ("patients/copies", {"copied rows"}),
        ("adult/fresh", set()),
        ("patients/honest", set()),
    ],
)
def test_causes_of_releases_of_known_truth_are_told_apart(release: str, expected: set[str]) -> None:
    data = json.loads(gzip.decompress((GOLDEN / f"{release}.json.gz").read_bytes()))
    results = {
        name: MetricResult(
            name,
            tuple(Estimate.from_json(*pair) for pair in metric["estimates"].items()),
            on_copy=tuple(Estimate.from_json(*pair) for pair in metric.get("on_copy", {}).items()),
        )
        for name, metric in data["metrics"].items()
    }
    policy_verdict = Policy(tuple(Limit(**limit) for limit in data["policy"]["limits"])).judge(
        results
    )
    assert {found["cause"] for found in advice(policy_verdict.not_passed)} == expected


def test_every_default_limit_has_a_cause_when_it_is_broken() -> None:
    for key, limit in LIMITS.items():
        (found,) = advice([broken(limit)])
        assert found["limits"] == [key] and found["todo"]


def test_what_explains_more_comes_first_and_takes_the_others_with_it() -> None:
    copied, fitted, rare, any_leak = (
        broken(LIMITS[key])
        for key in (
            "copies.copied_share", "dcr.member_excess_any.proven", "singling_out.risk",
            "attribute_inference.excess.proven",
        )
    )  # fmt: skip
    assert causes(rare) == causes(rare, any_leak) == ["rare values"]
    assert causes(any_leak) == causes(rare, any_leak, fitted) == ["over-fitting"]
    assert causes(rare, any_leak, fitted, copied) == ["copied rows"]
    (found,) = advice([rare, any_leak, fitted, copied])
    assert found["limits"] == [x.limit.key for x in (rare, any_leak, fitted, copied)]


def test_members_who_are_avoided_are_another_cause_than_members_who_leak() -> None:
    avoided = [
        broken(limit, -1)
        for limit in LIMITS.values()
        if METRICS[limit.metric].causes.failed != "earlier releases"
    ]
    leaks = [
        x
        for x in avoided
        if x.estimate.direction == "two_sided" and x.limit.metric != "value_disclosure"
    ]
    assert len(leaks) > 3 and {tuple(causes(state)) for state in leaks} == {("members avoided",)}
    assert causes(broken(LIMITS["cumulative_disclosure.excess.proven"], -1)) == ["earlier releases"]


FIRST = next(iter(LIMITS.values()))
FEWER = FIRST.min_subjects - 1
USE = Limit("fidelity.prediction", at_least=0.8), Limit("fidelity.pair_similarity", at_least=0.8)
BLIND = (
    Limit("controls.smallest_leak_exact", at_most=0.1),
    GATE["holdout_leakage.advantage_any.proven"],
)
NOTE = "not measurable: 7 predicted positives, 50 needed"


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (outcome(FIRST, 0.0, subjects=FEWER), ["too few people"]),
        (outcome(FIRST, 0.0, reach=1), ["too few people"]),
        (outcome(FIRST, math.nan, note=NOTE), ["too few people"]),
        (outcome(BLIND[0], 0.9), ["too few people"]),
        (outcome(BLIND[0], math.nan), ["too few people"]),
        (outcome(BLIND[1], 0.9), ["seen holdout"]),
        (outcome(SHADOW[1], 0.0, subjects=SHADOW[1].min_subjects - 1), ["few tests"]),
        (outcome(USE[0], 0.6), ["poor fit"]),
        (outcome(USE[1], 0.2), ["poor fit"]),
        (outcome(USE[0], 0.9, subjects=5), ["too few people"]),
        (outcome(FIRST, 0.0), []),
        (outcome(FIRST, math.nan, note="no embedder was passed"), []),
        (judge_limit(FIRST, None), []),
    ],
)
def test_what_is_wrong_says_the_cause(state: LimitOutcome, expected: list[str]) -> None:
    assert causes(state) == expected


def test_a_leak_is_mended_before_people_are_looked_for() -> None:
    few = outcome(FIRST, 0.0, subjects=FEWER)
    foreign = broken(LIMITS["value_disclosure.foreign_cells"])
    assert causes(few, broken(LIMITS["singling_out.risk"])) == ["rare values"]
    assert causes(few, foreign) == ["values of no real row", "too few people"]


def made_by(
    name: str, *filters: str, overfitting: Mapping[str, float] = MappingProxyType({})
) -> TableFacts:
    """Facts about the table of a pipeline with this generator."""
    found = {"filters": {one: {} for one in filters}} if filters else None
    return TableFacts({"name": name, "overfitting": overfitting, "filter": found})


def asked(known: TableFacts, key: str = "copies.copied_share", value: float = 0.08) -> list[str]:
    """The settings that the remedies ask for, as far as they have some."""
    (found,) = advice([outcome(LIMITS[key], value)], known)
    return [
        (re.findall(r"[(](.*)[)]", action["what"]) or [action["what"]])[0]
        for action in found["todo"]
    ]


LEAVES, LARGER = (
    "Try larger leaves and more shrinkage without publication: privacy-assets run TABLE"
    f" --rehearse --try {tried}"
    for tried in (
        "min_samples_leaf=100,200 --try shrinkage=30,100",
        "min_samples_leaf=200,500 --try shrinkage=100",
    )
)


@pytest.mark.parametrize(
    ("low", "stated", "advised"),
    [(-0.01, "0", False), (0.005, "0.005", False), (0.02, "0.02", True), (0.05, "0.05", False)],
)
def test_the_number_of_all_releases_and_its_limit_are_stated(
    low: float, stated: str, advised: bool
) -> None:
    """Larger leaves are advised from half of the limit on; a failed limit has its own advice."""
    states = [
        outcome(LIMITS["cumulative_disclosure.excess.proven"], low + 0.02),
        outcome(FIRST, 0.05),
    ]
    (note,) = ledger_notes(
        states,
        made_by("synthpop", overfitting={"min_samples_leaf": 100, "shrinkage": 30}),
    )
    told = (
        f"All releases together: cumulative_disclosure.excess.proven is {stated}, its limit 0.025."
    )
    assert note == told + (f" {LARGER}." if advised else "")
    assert ledger_notes(states) == [told], "without a pipeline there are no leaves to enlarge"
    assert (
        ledger_notes([outcome(states[0].limit, math.nan)])
        == ledger_notes([outcome(FIRST, 0.05)])
        == []
    )


HUNDRED, LARGEST = (
    build_generator(
        "synthpop", {"min_samples_leaf": leaf, "shrinkage": shrinkage}
    ).overfitting_protection()
    for leaf, shrinkage in ((100, 30), (1000, 100))
)


@pytest.mark.parametrize(
    ("known", "value", "expected"),
    [
        (TableFacts(), 0.9, ["generator: synthpop"]),
        # a brought table: no filter is stated
        (TableFacts({"name": "synthpop"}), 0.9, ["generator: synthpop"]),
        (made_by("synthpop"), 0.9, [LEAVES]),
        (
            made_by("synthpop", overfitting={"min_samples_leaf": 5}),
            0.9,
            [LEAVES],
        ),
        (made_by("synthpop", overfitting=HUNDRED), 0.9, [LARGER, "generator: baynet"]),
        (
            made_by("synthpop", overfitting=HUNDRED),
            0.08,
            [LARGER, "generator: {filter: memorization}", "generator: baynet"],
        ),
        (
            made_by("synthpop", "memorization", overfitting=HUNDRED),
            0.08,
            [LARGER, "generator: baynet"],
        ),
        (made_by("baynet"), 0.08, ["generator: {filter: memorization}", "generator: synthpop"]),
        (made_by("copy"), 0.9, ["generator: synthpop"]),
        (made_by("copy", "memorization"), 0.08, ["generator: synthpop"]),
    ],
)
def test_what_was_followed_is_not_advised_again_and_another_generator_is_left(
    known: TableFacts, value: float, expected: list[str]
) -> None:
    assert asked(known, value=value) == expected


def test_settings_to_try_are_larger_than_the_present_ones_and_leaves_at_most_half_of_train() -> (
    None
):
    hundred = made_by("synthpop", overfitting=HUNDRED)
    tried = {
        people: replace(hundred, n_subjects={"train": people}).stronger
        for people in (0, 300, 500, 5000)
    }
    assert tried[0] == tried[5000] == " --try min_samples_leaf=200,500 --try shrinkage=100"
    assert (tried[300], tried[500]) == (
        " --try shrinkage=100",
        " --try min_samples_leaf=200 --try shrinkage=100",
    )
    assert made_by("baynet").stronger == TableFacts({"name": "synthpop"}).stronger == ""
    assert made_by("synthpop", overfitting=LARGEST).stronger == ""


def test_people_and_columns_are_named_so_that_a_followed_remedy_does_not_return() -> None:
    few = outcome(FIRST, 0.0, subjects=FEWER)
    for policy, people, told in (
        ("default", 1000, ["policy: small", "now: 1,000 in the training data, 900 held out"]),
        ("small", 1000, ["now: 1,000 in the training data, 900 held out"]),
        ("default", 2000, ["now: 2,000 in the training data, 900 held out"]),
    ):
        (found,) = advice([few], TableFacts(None, policy, {"train": people, "holdout": 900}))
        assert [re.sub(r".*[(](.*)[)]", r"\1", action["what"]) for action in found["todo"]] == told
    rows = [
        {"column": "pay", "role": "number", "own": 0.0},
        {"column": "sex", "role": "closed", "own": 0.0},
    ]
    rows += [{"column": "age", "role": "number", "own": None}]
    columns = fine_columns([MetricResult("value_disclosure", (), {"columns": rows})])
    assert columns == ("pay",)
    first = asked(TableFacts(fine=columns), "copies.partial_excess.proven", 0.9)[0]
    assert (
        first
        == "Before training, round the numbers in 'pay' until at least five people share each value"
    )
    assert asked(TableFacts(), "copies.partial_excess.proven", 0.9) == ["generator: synthpop"]


@pytest.mark.parametrize(
    ("subjects", "train", "holdout", "people"),
    [
        (FEWER, 1000, 600, "about 1,500 people in the training data and 900 held-out people"),
        (FEWER // 10, 1000, 600, "about 1,500 people in the training data and 900 held-out people"),
        (FEWER, 12_114, 300, "about 1,500 people in the training data and 900 held-out people"),
        (FEWER, 2000, 900, "about 2,100 people in the training data and 940 held-out people"),
    ],
)
def test_one_number_of_people_is_advised(
    subjects: int, train: int, holdout: int, people: str
) -> None:
    (found,) = advice(
        [outcome(FIRST, 0.0, subjects=subjects)],
        TableFacts(n_subjects={"train": train, "holdout": holdout}),
    )
    assert (
        found["means"]
        == f"The tables are too small for a decision. With six columns or more, {people} usually"
        " suffice."
    )


def test_no_number_of_people_is_advised_if_none_is_known() -> None:
    assert advice([], TableFacts(n_subjects={"train": 2000, "holdout": 1000})) == []
    few = replace(outcome(FIRST, 0.0, subjects=FEWER), people_factor=math.nan)
    (found,) = advice([few], TableFacts(n_subjects={"train": 2000, "holdout": 1000}))
    assert found["means"] == "The tables are too small for a decision."


def test_what_stands_in_braces_can_be_pasted_into_the_yaml_file_of_a_table() -> None:
    found = [
        text
        for one in ADVICE.values()
        for action in one.actions
        for text in re.findall(r"[(](.*)[)]", action.do)
    ]
    assert len(found) > 5
    for text in found:
        given = yaml.safe_load(text.replace("[column, column]", "[column, other]"))
        data = {"source": "rows.csv", **given.pop("data", {})}
        TableSpec(name="people", data=data, **given)


@pytest.mark.parametrize("make", [failing, undecided, passing])
def test_every_form_shows_what_applies_and_nothing_else(make) -> None:
    made = make()
    found = made.to_json()["advice"]
    assert found == made.advice and bool(found) == (made.verdict == "fail")
    for shown in (
        ParsedPage(made.to_html()).words,
        " ".join(made.to_text().split()),
        ParsedPage(made._repr_html_()).words,
    ):
        joined = shown.replace(" ", "")  # the text is broken at hyphens as well
        assert all(
            action["what"].replace(" ", "") in joined for entry in found for action in entry["todo"]
        )
        for cause, one in ADVICE.items():
            applies = cause in [entry["cause"] for entry in found]
            assert (one.means in shown) == applies, cause


BUDGET = {
    "epsilon": 1.5,
    "delta": 1e-5,
    "outside_guarantee": ["range of age"],
    "accountant": "Renyi",
    "covers": "one row",
}


TOLD = {
    "name": "synthpop",
    "filter": {
        "filters": {name: build_filter(name).settings() for name in ("memorization", "outliers")},
        "drawn": 12_000,
        "dropped": 1_500,
        "dropped_by": {"memorization": 1_200, "outliers": 400},
        "before": {},
    },
    "overfitting": {"dropout": 0.5},
    "privacy": BUDGET,
}


def states(generator):
    return {one.name: (one.state, one.how) for one in privacy_configuration(generator)}


def test_every_protection_is_told_with_its_settings_beside_statistics_that_there_are():
    assert states(TOLD) == {
        "memorization": ("on", "quantile 0.02, crowd 5, 1,200 of 12,000 rows removed"),
        "similarity": ("off", ""),
        "outliers": ("on", "n_neighbors 5, quantile 0.9, 400 of 12,000 rows removed"),
        "alpha_m": ("off", ""),
        "over-fitting": ("on", "dropout 0.5"),
        "differential privacy": (
            "on",
            "epsilon 1.5, delta 0.00001, for one row, by Renyi; not covered: range of age",
        ),
    }
    assert list(states(TOLD)) == [*FILTERS, "over-fitting", "differential privacy"]
    for protection in privacy_configuration(None):
        assert protection.covers and set(protection.statistics) <= set(statistic_specs())


@pytest.mark.parametrize(
    ("generator", "filters", "overfitting", "privacy"),
    [
        (None, "unknown", "unknown", "unknown"),
        ({"filter": {"name": "memorization", "settings": {}}}, "unknown", "unknown", "unknown"),
        (
            {"filter": None, "overfitting": None, "privacy": {"epsilon": None}},
            "off",
            "unknown",
            "off",
        ),
        (
            {"filter": None, "overfitting": {}, "privacy": {"epsilon": None, "known": False}},
            "off",
            "off",
            "unknown",
        ),
        (
            {
                "filter": {"filters": {}},
                "overfitting": {"own": "small"},
                "privacy": {"epsilon": 0.1},
            },
            "off",
            "on",
            "on",
        ),
    ],
)
def test_what_is_not_told_is_unknown_and_never_off(generator, filters, overfitting, privacy):
    found = {name: state for name, (state, _) in states(generator).items()}
    assert {found[name] for name in FILTERS} == {filters}
    assert (found["over-fitting"], found["differential privacy"]) == (overfitting, privacy)


def test_page_text_and_json_show_it():
    made = report(generator=TOLD)
    page, text = ParsedPage(made.to_html()).words, made.to_text()
    assert (
        "Privacy configuration" in page and "On” does not mean that a protection suffices" in page
    )
    for one in privacy_configuration(TOLD):
        assert one.title.capitalize() in page and one.title in text
        assert one.covers.removesuffix(".")[1:] in page
        assert one.how.split(",")[0] in page and one.how.split(",")[0] in text
    assert "dcr. identical_excess 0.01 [-0.02, 0.04]" in page
    assert "Not measured." in page  # of memorization
    shown = [row["state"] for row in made.to_json()["privacy_configuration"]]
    assert shown == ["off", "on", "on", "off", "on", "on"]
    assert "unknown" not in report().to_text() and "unknown" not in report().to_html().lower()


def test_evaluate_knows_the_generator_that_it_is_told_and_no_more(monkeypatch):
    monkeypatch.setattr("privacy_assets.evaluation.measuring.run_metrics", lambda *_: {})
    frame = pd.DataFrame({"a": range(40), "b": list("xy") * 20})
    sides = [frame[:20], frame[20:], frame]
    made = evaluate(*sides, metrics=["dcr"], embedder=False)
    assert {one.state for one in made.privacy_configuration} == {"unknown"}
    made = evaluate(*sides, metrics=["shadow_membership"], generator="baynet", embedder=False)
    assert made.generator["name"] == "baynet"
    found = {one.name: one.state for one in made.privacy_configuration}
    assert found.pop("over-fitting") == "on" and set(found.values()) == {"unknown"}


@pytest.mark.parametrize("name", sorted(set(GENERATORS) - {"callable", "command"}))
def test_every_generator_tells_how_it_protects_its_rows(name):
    # its library is not installed in this environment
    elsewhere = {"realtabformer": {"python": sys.executable}}
    protection = build_generator(name, elsewhere.get(name)).overfitting_protection()
    assert protection is None or isinstance(protection, dict)
    assert not (name.endswith("copy") and protection), "copies protect nothing"
    assert {*(protection or {})} <= {*_OVERFITTING_PHRASES}


def overfitting_text(name: str, **settings: float) -> str:
    """Description of a generator's protection against over-fitting in a report."""
    protection = build_generator(name, settings).overfitting_protection()
    return states({"overfitting": protection})["over-fitting"][1]


def test_the_protection_of_trees_and_networks_goes_by_their_settings():
    drawn = "leaves are drawn towards their parents, with a shrinkage of"
    assert [
        overfitting_text("synthpop", min_samples_leaf=leaf, shrinkage=shrinkage)
        for leaf, shrinkage in ((1, 0), (5, 0), (1, 2.5), (50, 30))
    ] == [
        "",
        "every leaf contains at least 5 training people",
        f"{drawn} 2.5",
        f"every leaf contains at least 50 training people; {drawn} 30",
    ]
    assert "at most 3 parents" in overfitting_text("baynet", degree=3)
    assert states({"overfitting": {"own": 2.0}})["over-fitting"] == ("on", "own 2")
    assert states({"overfitting": "a text"})["over-fitting"] == ("unknown", "")


def own(train: pd.DataFrame, rows: int, seed: int) -> pd.DataFrame:
    """A custom generator."""
    return train.sample(rows, replace=True, random_state=seed)


@pytest.mark.parametrize(("generator", "privacy"), [("copy", "off"), (own, "unknown")])
def test_a_fitted_generator_describes_itself(generator, privacy):
    frame = pd.DataFrame({"a": [1.5, 2.5, 3.5] * 20, "b": list("xyz") * 20})
    fitted = build_generator(generator).fit(as_table(frame, infer_schema(frame)), seed=0)
    told = json.loads(json.dumps(fitted.described()))
    assert set(told) == {"name", "settings", "overfitting", "privacy"}
    known = privacy != "unknown"
    assert told["privacy"]["known"] is known and (told["overfitting"] is not None) is known
    assert states({**told, "filter": None})["differential privacy"][0] == privacy
    assert "2.5" not in json.dumps({key: told[key] for key in ("overfitting", "privacy")})


def test_an_unknown_budget_says_so():
    assert str(PrivacyBudget(known=False)) == "unknown (custom code)"
    assert str(PrivacyBudget()) == "none (no formal guarantee)"


def test_a_statistic_that_measures_the_split_asks_for_a_random_one() -> None:
    note = (
        f"{DIFFER} in 'age', and real rows in place of the release, none of them in train, break"
        " the limit as well"
    )
    unjudged = outcome(LIMITS["copies.changed_share.proven"], math.nan, note=note)
    (found,) = advice([unjudged])
    assert found["cause"] == "different holdout" and "at random" in found["todo"][0]["what"]
    assert what_to_do(unjudged) == ""


@pytest.mark.parametrize(("upper", "small"), [(0.054, True), (0.081, False)])
def test_a_narrow_table_is_told_to_add_columns(upper: float, small: bool) -> None:
    rng = np.random.default_rng(0)
    tables = (
        pd.DataFrame({"a": rng.integers(0, 60, n), "b": rng.integers(0, 9, n)})
        for n in (900, 600, 900)
    )
    train, holdout, fresh = tables
    found = evaluate(
        train, holdout, fresh, metrics="copies", subject={"each_row": True}, embedder=False
    )
    share = found.estimate("copies.copied_share")
    assert share is not None
    note = share.note
    assert re.fullmatch(
        r"not measurable: with 2 columns, \d\d% of the rows are in the table by chance", note
    )
    undecided = outcome(LIMITS["copies.copied_share"], 0.0, reach=upper, note=share.note)
    (told,) = advice([replace(undecided, compared=upper)], TableFacts(policy="default"))
    wanted = (
        f"in the table by chance, so that copies of up to {100 * upper:.1f} % cannot be excluded."
    )
    assert told["means"].endswith(wanted)
    assert told["todo"][0]["what"] == "Add columns" and ("8 %" in str(told["todo"])) == small
    tolerated = METRICS["copies"].small_policy_limits["copies.copied_share"]
    assert f"{100 * tolerated:.0f} %" == "8 %"


def test_a_small_release_is_told_to_release_more_rows() -> None:
    undecided = outcome(LIMITS["copies.copied_share"], 0.0, reach=0.05)
    sizes = {"train": 30_000, "holdout": 2_000}
    for is_small in (False, True):
        facts = TableFacts(n_subjects=sizes, is_small_release=is_small)
        (advised,) = advice([undecided], facts)
        assert ("release more rows, or hold out more people" in advised["means"]) == is_small
