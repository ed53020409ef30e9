"""Limits, judgement and policy files."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest
from scipy import stats

from privacy_assets.errors import ConfigError
from privacy_assets.metrics.registry import METRICS, default_metrics, statistic_specs
from privacy_assets.policy import Policy
from privacy_assets.report.evaluate import as_policy
from privacy_assets.stats.limits import Limit, LimitOutcome, judge_limit, widening
from privacy_assets.stats.results import Estimate, MetricResult


def outcome(limit: Limit, low: float, value: float, high: float, *, subjects: int = 1000, **more: Any) -> LimitOutcome:
    estimate = Estimate("f", value, low, high, subjects, subjects, 0.0, **more)
    return judge_limit(limit, MetricResult("m", (estimate,)))


LOWER = {"direction": "lower_is_riskier"}
GATE = {"about": "gate"}  # a statistic about the gate cannot fail a table
BLIND = {"minimum_detectable_effect": 0.2}
NONE = (math.nan, math.nan, math.nan)


@pytest.mark.parametrize(
    ("limit", "interval", "more", "status", "words"),
    [
        # each bound holds its end of the interval; the conservative one is widened
        (Limit("m.f", 0.3105), (0.1, 0.2, 0.3), {}, "pass", ""),
        (Limit("m.f", 0.3104), (0.1, 0.2, 0.3), {}, "not_assessable", "undecided: 0.3105 is above 0.3104"),
        (Limit("m.f", 0.0999), (0.1, 0.2, 0.3), {}, "fail", "above the limit"),
        (Limit("m.f", 0.1, bound="lower"), (0.1, 0.2, 0.3), {}, "pass", ""),
        (Limit("m.f", 0.09, bound="lower"), (0.1, 0.2, 0.3), {}, "fail", ""),
        (Limit("m.f", 0.2, bound="value"), (0.1, 0.2, 0.3), {}, "pass", ""),
        (Limit("m.f", 0.19, bound="value"), (0.1, 0.2, 0.3), {}, "fail", ""),
        (Limit("m.f", at_least=60), (61, 70, 80), LOWER, "pass", ""),
        (Limit("m.f", at_least=60), (59, 70, 80), LOWER, "not_assessable", "is below 60"),
        (Limit("m.f", at_least=60), (40, 50, 59), LOWER, "fail", "below the limit"),
        (Limit("m.f", at_least=60), (61, 70, 80), {**LOWER, "minimum_detectable_effect": 55}, "pass", ""),
        # missing evidence never passes
        (Limit("m.f", 0.5), NONE, {}, "not_assessable", ""),
        (Limit("m.f", 0.5), (0.0, 0.1, math.inf), {}, "not_assessable", ""),
        (Limit("m.f", 0.5, smallest_n=100), (0.0, 0.1, 0.2), {"subjects": 99}, "not_assessable",
         "too few subjects: 99 of 100; 1 more"),
        (Limit("m.f", 0.1), (-0.1, 0.0, 0.05), BLIND, "pass", ""),  # what is detectable decides nothing
        (Limit("m.f", 0.1), (0.2, 0.3, 0.4), {**BLIND, "subjects": 1}, "fail", ""),  # but a significant leak fails
        (Limit("m.f", 0.2), (0.25, 0.3, 0.3), GATE, "not_assessable", "the gate is underpowered here"),
        (Limit("m.f", 0.2, bound="lower"), (0.25, 0.3, 0.3), GATE, "not_assessable", "the gate is underpowered here"),
        (Limit("m.f", 0.2, bound="value"), (0.25, 0.3, 0.3), GATE, "not_assessable", "the gate is underpowered here"),
        (Limit("m.f", 0.3), (0.25, 0.3, 0.3), GATE, "pass", ""),  # nothing is widened
    ],
)  # fmt: skip
def test_a_limit_is_held_against_its_end_of_the_interval(
    limit: Limit, interval: tuple[float, float, float], more: dict[str, Any], status: str, words: str
) -> None:
    found = outcome(limit, *interval, **more)
    assert (found.status, found.passed) == (status, status == "pass")
    assert words in found.reason


def test_what_was_not_measured_never_passes() -> None:
    for result in (None, MetricResult("m", ())):
        assert judge_limit(Limit("m.f", 0.5), result).status == "not_assessable"


@pytest.mark.parametrize(
    ("low", "high", "bound", "measured"),
    [(-0.4, 0.1, "upper", 0.4261385), (-0.1, 0.4, "upper", 0.4261385), (0.2, 0.4, "lower", 0.2),
     (-0.4, -0.2, "lower", 0.2),     (-0.1, 0.1, "lower", -0.1)],
)  # fmt: skip
def test_two_sided_statistics_count_both_directions(low: float, high: float, bound: str, measured: float) -> None:
    limit = Limit("m.f", 1.0, bound=bound)  # type: ignore[arg-type]
    assert outcome(limit, low, (low + high) / 2, high, direction="two_sided").measured == pytest.approx(measured)


def test_the_levels_of_all_attempts_sum_up_to_that_of_one() -> None:
    """Independent: scipy's normal law turns each widened end back into a level."""
    half = NormalDist().inv_cdf(0.975)
    levels = [2 * stats.norm.sf(half * widening(m, 0.95)) for m in range(1, 20_001)]
    assert levels[0] == pytest.approx(0.05 * 6 / math.pi**2)
    assert sum(levels) == pytest.approx(0.05, rel=1e-4) and sum(levels) < 0.05
    assert [round(widening(m, 0.95), 2) for m in (1, 2, 10)] == [1.10, 1.36, 1.84]


@pytest.mark.parametrize(
    ("attempt", "status"), [(1, "pass"), (2, "pass"), (3, "not_assessable"), (30, "not_assessable")]
)
def test_each_attempt_is_judged_more_strictly(attempt: int, status: str) -> None:
    estimate = Estimate("f", 0.1, 0.0, 0.2, 1000, 1000)
    results = {"m": MetricResult("m", (estimate,))}
    judged = Policy((Limit("m.f", at_most=0.24),)).judge(results, attempt)
    assert judged.verdict == status
    assert ("attempt" in judged.outcomes[0].reason) == (attempt > 1)
    significant = Policy((Limit("m.f", at_most=0.0, bound="lower"), Limit("m.f", at_most=0.1, bound="value")))
    assert significant.judge(results, attempt).verdict == "pass"  # only the conservative bound moves


def test_protection_scores_move_down_with_the_attempt() -> None:
    estimate = Estimate("f", 80, 70, 90, 1000, 1000, 100, "lower_is_riskier")
    limit = Limit("m.f", at_least=68)
    assert judge_limit(limit, MetricResult("m", (estimate,)), 1).passed
    assert judge_limit(limit, MetricResult("m", (estimate,)), 2).measured == pytest.approx(80 - 10 * widening(2, 0.95))
    assert judge_limit(limit, MetricResult("m", (estimate,)), 2).status == "not_assessable"


def test_the_worst_outcome_is_the_verdict() -> None:
    estimates = (Estimate("a", 0, 0, 0, 99, 99), Estimate("b", 1, 1, 1, 99, 99), Estimate("c", math.nan, 0, 0, 99, 99))
    results = {"m": MetricResult("m", estimates)}
    verdict = {
        names: Policy(tuple(Limit(f"m.{name}", 0.5) for name in names)).judge(results).verdict
        for names in ("a", "ab", "ac", "abc")
    }
    assert verdict == {"a": "pass", "ab": "fail", "ac": "not_assessable", "abc": "fail"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"statistic": "dcr.privacy_score"}, "either at_most or at_least"),
     ({"statistic": "x", "at_most": 1}, "METRIC.STATISTIC"),
     ({"statistic": "m.f", "at_most": 1, "at_least": 1}, "either"),
     ({"statistic": "m.f", "at_most": math.nan}, "finite"),
     ({"statistic": "m.f", "at_most": True}, "only one of"),
     ({"statistic": "m.f", "at_most": 1, "bound": "top"}, "bound"),
     ({"statistic": "m.f", "at_most": 1, "smallest_n": 0}, "smallest_n")],
)  # fmt: skip
def test_wrong_limits_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Limit(**arguments)


def test_empty_and_repeated_policies_are_refused() -> None:
    with pytest.raises(ConfigError, match="no limits"):
        Policy(())
    with pytest.raises(ConfigError, match="twice"):
        Policy((Limit("m.f", 1), Limit("m.f", 2)))


def test_default_limits_stand_on_statistics_that_exist_and_say_where_they_come_from() -> None:
    policy = Policy.default()
    specs = statistic_specs()
    described = {
        "memorization",
        "vulnerability",
        "fidelity",
        "linkability",
        "controls",
    }  # shown, and limited by nothing
    assert {limit.metric for limit in policy.limits} == set(default_metrics()) - described
    for limit in policy.limits:
        assert limit.statistic in specs
        assert limit.source, limit.key
        assert not limit.advice, limit.key  # what can be done has one source, the advice by cause


def test_at_most_twelve_statistics_are_limited_by_default() -> None:
    limited = [limit.statistic for limit in Policy.default().limits]
    assert len(set(limited)) <= 12
    assert [name for name in set(limited) if limited.count(name) > 1] == ["copies.rare_share"]  # an equivalence test
    asked_for = {"dcr.privacy_score", "singling_out.risk", "membership_inference.precision"}
    assert asked_for <= {limit.statistic for limit in Policy.default().limits}


def test_the_policy_for_small_tables_is_asked_for_by_name_and_wider_in_what_it_says(tmp_path: Path) -> None:
    small, default = Policy.small(), Policy.default()
    assert as_policy("small") == small and small.name == "small" and as_policy(None) is None
    pairs = list(zip(small.limits, default.limits, strict=True))
    assert all(one.key == other.key and one.bound == other.bound for one, other in pairs)
    wider = [one for one, other in pairs if one.value != other.value]
    assert {limit.statistic for limit in wider} >= {"copies.rare_share"} and small.digest() != default.digest()
    assert all(one.value > other.value and one.source != other.source for one, other in pairs if one in wider)
    own = write(tmp_path, "extends: small\nlimits: [{statistic: dcr.privacy_score, at_most: 0.01}]\n")
    values = {limit.key: limit.value for limit in as_policy(own).limits}  # type: ignore[union-attr]
    assert (values["copies.rare_share"], values["dcr.privacy_score"]) == (0.08, 0.01)


def test_a_policy_is_the_default_one_when_none_of_its_limits_is_left_out() -> None:
    limited = [name for name in default_metrics() if METRICS[name].default_limits]
    assert Policy.default(limited) == Policy.default()
    assert Policy.default(limited[1:]).name != "default"
    with pytest.raises(ConfigError, match="no limits"):
        Policy.default(["vulnerability"])


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    return path


def test_a_policy_file_extends_the_default(tmp_path: Path) -> None:
    path = write(tmp_path, "name: strict\nextends: default\nlimits:\n- {statistic: dcr.privacy_score, at_most: 0.01}\n")
    policy = Policy.from_yaml(path)
    values = {limit.key: limit.value for limit in policy.limits}
    assert policy.name == "strict"
    assert values["dcr.privacy_score"] == 0.01
    assert set(values) == {limit.key for limit in Policy.default().limits}
    assert Policy.from_dict(policy.to_dict()).digest() == policy.digest() != Policy.default().digest()


ONE = "{statistic: dcr.privacy_score, at_most: 0.1}"


def limited(statistic: str, value: str) -> str:
    return f"limits: [{{statistic: {statistic}, {value}}}]"


WRONG_FILES = [
    (": :", "YAML"),
    (f"{'[' * 5000}", "cannot be read as YAML"),
    ("limits: 2024-13-45", "cannot be read as YAML"),
    ("", "expected a mapping with 'limits', not an empty file"),
    (f"- {ONE}", "expected a mapping with 'limits', not a list"),
    (f"--- {{limits: [{ONE}]}}\n--- {{}}", "not 2 documents"),
    ("1: 3", "unknown key int"),
    ("limit: []", "Did you mean 'limits'"),
    ("limits: 3", "must be a list"),
    ("limits: [3]", "each limit is a mapping"),
    (f"{{name: [a], limits: [{ONE}]}}", "'name' must be a text"),
    ("{extends: mine, limits: []}", "only be 'default' or 'small'"),
    (limited("dcr.privacy_scor", "at_most: 1"), "Did you mean 'dcr.privacy_score'"),
    (limited("dcr.privacy_score", "at_mst: 1"), "Did you mean 'at_most'"),
    (limited("dcr.privacy_score", "at_least: 1"), "dcr.privacy_score takes at_most"),
    # outside of the range of its statistic
    (limited("dcr.privacy_score", "at_most: 1.0e+300"), "dcr.privacy_score.* 0 to 1"),
    (limited("dcr.privacy_score", "at_most: -0.1"), "dcr.privacy_score.* 0 to 1"),
    (limited("dcr.privacy_score", "at_most: .nan"), "finite number"),
    (limited("singling_out.risk", f"at_most: {'9' * 400}"), "finite number"),
    (limited("membership_inference.auc_dpi", "at_most: 0.51"), "0 to 0.5"),
    (limited("membership_inference.protection_score", "at_least: 101"), "0 to 100"),
    (limited("shadow_membership.epsilon_lower_bound", "at_most: 21"), "0 to 20"),
    # Of two things that a file says the last one won: a line further down could loosen any limit without a word.
    (f"limits: [{ONE}]\nlimits: []\n", "line 2: the key 'limits' stands twice, first in line 1"),
    (f"x: &x\n  name: a\nextends: default\nlimits: [{ONE}]\nextends: null\n", "line 5: the key 'extends'"),
    (f"limits:\n- {ONE}\n- {{statistic: dcr.privacy_score, at_most: 0.9}}\n", "dcr.privacy_score is limited twice"),
    (f"extends: default\nlimits:\n- {ONE}\n- {ONE}\n", "dcr.privacy_score is limited twice"),
    # the name of the default policy is its own
    (f"{{name: Default , limits: [{ONE}]}}", "names itself 'default' and differs from it"),
    ("{name: default, extends: default, limits: [{statistic: dcr.privacy_score, at_most: 0.9}]}", "names itself"),
    (f"{{name: Small, limits: [{ONE}]}}", "names itself 'small' and differs from it"),
    ("{name: 'default, of dcr only', limits: [{statistic: dcr.privacy_score, at_most: 0.12}]}", "names itself"),
]


@pytest.mark.parametrize(("text", "message"), WRONG_FILES, ids=[message for _, message in WRONG_FILES])
def test_wrong_policy_files_are_named_with_the_fault(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        Policy.from_yaml(write(tmp_path, text))
    assert "policy.yaml" in str(caught.value)


def test_a_policy_file_that_is_absent_or_no_text_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_bytes(b"\xff\xfe\x00limits")
    for name in ("policy", "absent"):
        with pytest.raises(ConfigError, match=rf"{name}\.yaml"):
            Policy.from_yaml(tmp_path / f"{name}.yaml")


def test_what_a_merge_key_brings_may_be_overridden(tmp_path: Path) -> None:
    text = f"limits:\n- &first {ONE}\n- {{<<: *first, bound: lower, at_most: 0.2}}\n- {{<<: *first, bound: value}}\n"
    assert [limit.value for limit in Policy.from_yaml(write(tmp_path, text)).limits] == [0.1, 0.2, 0.1]


def test_the_ranges_hold_every_default_limit() -> None:
    for name, spec in statistic_specs().items():
        low, high = spec.limits
        assert low == 0 and 0 < high < math.inf, name
    for metric in METRICS.values():
        for limit in metric.default_limits:
            assert 0 <= limit.value <= statistic_specs()[limit.statistic].limits[1], limit.key


def test_the_default_policy_keeps_its_name(tmp_path: Path) -> None:
    for policy in (Policy.default(), Policy.default(["dcr"]), Policy.default([*METRICS]), Policy.small()):
        assert Policy.from_dict(policy.to_dict()).name == policy.name
    loosened = "{extends: default, limits: [{statistic: dcr.privacy_score, at_most: 0.9}]}"
    assert Policy.from_yaml(write(tmp_path, loosened)).name == "custom"
    with pytest.raises(ConfigError, match="names itself 'default'"):
        as_policy(Policy((Limit("dcr.privacy_score", 0.9),), name="default"))


@pytest.mark.parametrize("given", [[ONE], 3, {"limits": [["dcr.privacy_score"]]}])
def test_a_policy_in_python_that_is_none_is_an_error(given: object) -> None:
    with pytest.raises(ConfigError, match=r"mapping"):
        as_policy(given)  # type: ignore[arg-type]


def test_every_limit_is_judged_whatever_its_bound() -> None:
    policy = Policy.default()
    assert {limit.bound for limit in policy.limits} >= {"upper", "lower"}
    assert [outcome.limit for outcome in policy.judge({}).outcomes] == list(policy.limits)


def test_a_number_that_is_none_breaks_every_limit() -> None:
    for limit in (Limit("dcr.privacy_score", at_most=0.1), Limit("m.score", at_least=0.1)):
        assert limit.exceeded_by(float("nan"))
