"""Limits, judgement and policy files."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import NormalDist

import pytest
from scipy import stats

from privacy_assets.errors import ConfigError
from privacy_assets.metrics.registry import METRICS, default_metrics, statistic_specs
from privacy_assets.policy import Policy
from privacy_assets.report.evaluate import as_policy
from privacy_assets.stats.estimates import Direction
from privacy_assets.stats.limits import Limit, LimitOutcome, judge_limit, widening
from privacy_assets.stats.results import Estimate, MetricResult


def outcome(
    limit: Limit,
    low: float,
    value: float,
    high: float,
    *,
    subjects: int = 1000,
    direction: Direction = "higher_is_riskier",
    minimum_detectable_effect: float = math.nan,
) -> LimitOutcome:
    estimate = Estimate(
        "f", value, low, high, subjects, subjects, 0.0, direction, minimum_detectable_effect=minimum_detectable_effect
    )
    return judge_limit(limit, MetricResult("m", (estimate,)))


@pytest.mark.parametrize(
    ("bound", "at_most", "status"),
    [("upper", 0.3105, "pass"), ("upper", 0.3104, "fail"), ("lower", 0.1, "pass"), ("lower", 0.09, "fail"),
     ("value", 0.2, "pass"), ("value", 0.19, "fail")],
)  # fmt: skip
def test_each_bound_holds_its_end_of_the_interval(bound: str, at_most: float, status: str) -> None:
    assert outcome(Limit("m.f", at_most, bound=bound), 0.1, 0.2, 0.3).status == status  # type: ignore[arg-type]


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


@pytest.mark.parametrize(("attempt", "status"), [(1, "pass"), (2, "pass"), (3, "fail"), (30, "fail")])
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
    assert judge_limit(limit, MetricResult("m", (estimate,)), 2).status == "fail"


@pytest.mark.parametrize("bound", ["upper", "lower", "value"])
def test_a_statistic_about_the_gate_cannot_fail_a_table(bound: str) -> None:
    estimate = Estimate("f", 0.3, 0.25, 0.3, 1000, 1000, about="gate")
    found = judge_limit(Limit("m.f", 0.2, bound=bound), MetricResult("m", (estimate,)))  # type: ignore[arg-type]
    assert found.status == "not_assessable" and "the gate is underpowered here" in found.reason
    assert judge_limit(Limit("m.f", 0.3), MetricResult("m", (estimate,)), 9).passed  # nothing is widened


def test_scores_are_limited_from_below() -> None:
    limit = Limit("m.f", at_least=60)
    assert outcome(limit, 61, 70, 80, direction="lower_is_riskier").passed
    assert outcome(limit, 59, 70, 80, direction="lower_is_riskier").status == "fail"
    assert (
        outcome(limit, 59, 70, 80, direction="lower_is_riskier", minimum_detectable_effect=55).status
        == "not_assessable"
    )


def test_missing_evidence_never_passes() -> None:
    limit = Limit("m.f", 0.5, smallest_n=100)
    assert judge_limit(limit, None).status == "not_assessable"
    assert judge_limit(limit, MetricResult("m", ())).status == "not_assessable"
    assert outcome(limit, math.nan, math.nan, math.nan).status == "not_assessable"
    assert outcome(limit, 0.0, 0.1, math.inf).status == "not_assessable"
    few = outcome(limit, 0.0, 0.1, 0.2, subjects=99)
    assert (few.status, few.passed) == ("not_assessable", False)
    assert "too few rows" in few.reason


def test_a_blind_gate_says_so_but_a_demonstrated_leak_fails() -> None:
    limit = Limit("m.f", 0.1)
    assert outcome(limit, -0.1, 0.0, 0.05, minimum_detectable_effect=0.2).status == "not_assessable"
    assert outcome(limit, 0.2, 0.3, 0.4, minimum_detectable_effect=0.2, subjects=1).status == "fail"


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
    described = {"memorization", "vulnerability", "fidelity"}  # shown, and limited by nothing
    assert {limit.metric for limit in policy.limits} == set(default_metrics()) - described
    for limit in policy.limits:
        assert limit.statistic in specs
        assert limit.source, limit.key
        assert not limit.advice, limit.key  # what can be done has one source, the list of recourses


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


@pytest.mark.parametrize(
    ("text", "message"),
    [("limits: []", "no limits"), ("limit: []", "Did you mean 'limits'"), ("- 1", "expected a mapping"),
     (": :", "YAML"),
     ("limits: [{statistic: dcr.privacy_scor, at_most: 1}]", "Did you mean 'dcr.privacy_score'"),
     ("limits: [{statistic: dcr.privacy_score, at_mst: 1}]", "Did you mean 'at_most'"),
     ("limits: [{statistic: dcr.privacy_score, at_least: 1}]", "takes at_most"), ("limits: 3", "must be a list"),
     ("limits: [3]", "each limit is a mapping"), ("{extends: mine, limits: []}", "only be 'default'")],
)  # fmt: skip
def test_wrong_policy_files_name_file_and_fix(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        Policy.from_yaml(write(tmp_path, text))
    assert "policy.yaml" in str(caught.value) or "no limits" in message


def test_a_policy_file_that_is_no_text_or_has_odd_keys_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path, "1: 3")
    with pytest.raises(ConfigError, match="unknown key int"):
        Policy.from_yaml(path)
    path.write_bytes(b"\xff\xfe\x00limits")
    with pytest.raises(ConfigError, match=r"policy\.yaml"):
        Policy.from_yaml(path)


def test_an_absent_policy_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.yaml"):
        Policy.from_yaml(tmp_path / "absent.yaml")


ONE = "{statistic: dcr.privacy_score, at_most: 0.1}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"limits: [{ONE}]\nlimits: []\n", "line 2: the key 'limits' stands twice, first in line 1"),
        (
            "limits:\n- statistic: dcr.privacy_score\n  at_most: 0.1\n  'at_most': 0.9\n",
            "line 4: the key 'at_most' .* line 3",
        ),
        (f"x: &x\n  name: a\nextends: default\nlimits: [{ONE}]\nextends: null\n", "line 5: the key 'extends'"),
        (f"limits:\n- {ONE}\n- {{statistic: dcr.privacy_score, at_most: 0.9}}\n", "dcr.privacy_score is limited twice"),
        (f"extends: default\nlimits:\n- {ONE}\n- {ONE}\n", "dcr.privacy_score is limited twice"),
        (f"--- {{limits: [{ONE}]}}\n--- {{}}", "not 2 documents"),
        (f"- {ONE}", "expected a mapping with 'limits', not a list"),
        ("", "expected a mapping with 'limits', not an empty file"),
        (f"{{name: [a], limits: [{ONE}]}}", "'name' must be a text"),
        (f"{'[' * 5000}", "cannot be read as YAML"),
        ("limits: 2024-13-45", "cannot be read as YAML"),
    ],
)  # fmt: skip
def test_a_file_that_says_two_things_is_refused(tmp_path: Path, text: str, message: str) -> None:
    """The last one won, so that a line further down could loosen any limit without a word."""
    with pytest.raises(ConfigError, match=message) as caught:
        Policy.from_yaml(write(tmp_path, text))
    assert "policy.yaml" in str(caught.value)


def test_what_a_merge_key_brings_may_be_overridden(tmp_path: Path) -> None:
    text = f"limits:\n- &first {ONE}\n- {{<<: *first, bound: lower, at_most: 0.2}}\n- {{<<: *first, bound: value}}\n"
    assert [limit.value for limit in Policy.from_yaml(write(tmp_path, text)).limits] == [0.1, 0.2, 0.1]


@pytest.mark.parametrize(
    ("statistic", "value", "limits"),
    [
        ("dcr.privacy_score", "1.0e+300", "0 to 1"), ("dcr.privacy_score", "-0.1", "0 to 1"),
        ("dcr.member_excess", "1.01", "0 to 1"), ("membership_inference.auc_dpi", "0.51", "0 to 0.5"),
        ("shadow_membership.epsilon_lower_bound", "21", "0 to 20"),
        ("singling_out.risk", f"{'9' * 400}", "finite number"),
        ("membership_inference.protection_score", "-1", "0 to 100"), ("dcr.privacy_score", ".nan", "finite number"),
        ("membership_inference.protection_score", "101", "0 to 100"), ("dcr.privacy_score", "-.inf", "finite number"),
    ],
)  # fmt: skip
def test_a_limit_outside_of_the_range_of_its_statistic_is_refused(
    tmp_path: Path, statistic: str, value: str, limits: str
) -> None:
    side = "at_least" if statistic_specs()[statistic].direction == "lower_is_riskier" else "at_most"
    with pytest.raises(ConfigError, match=limits) as caught:
        Policy.from_yaml(write(tmp_path, f"limits: [{{statistic: {statistic}, {side}: {value}}}]"))
    assert statistic in str(caught.value) and "policy.yaml" in str(caught.value)


def test_the_ranges_hold_every_default_limit() -> None:
    for name, spec in statistic_specs().items():
        low, high = spec.limits
        assert low == 0 and 0 < high < math.inf, name
    for metric in METRICS.values():
        for limit in metric.default_limits:
            assert 0 <= limit.value <= statistic_specs()[limit.statistic].limits[1], limit.key


@pytest.mark.parametrize(
    "text",
    [
        f"{{name: default, limits: [{ONE}]}}", f"{{name: Default , limits: [{ONE}]}}",
        "{name: default, extends: default, limits: [{statistic: dcr.privacy_score, at_most: 0.9}]}",
        "{name: 'default, of dcr only', limits: [{statistic: dcr.privacy_score, at_most: 0.12}]}",
    ],
)  # fmt: skip
def test_the_name_of_the_default_policy_is_its_own(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="names itself 'default' and differs from it"):
        Policy.from_yaml(write(tmp_path, text))


def test_the_default_policy_keeps_its_name(tmp_path: Path) -> None:
    for policy in (Policy.default(), Policy.default(["dcr"]), Policy.default([*METRICS])):
        assert Policy.from_dict(policy.to_dict()).name == policy.name
    loosened = "{extends: default, limits: [{statistic: dcr.privacy_score, at_most: 0.9}]}"
    assert Policy.from_yaml(write(tmp_path, loosened)).name == "custom"
    with pytest.raises(ConfigError, match="names itself 'default'"):
        as_policy(Policy((Limit("dcr.privacy_score", 0.9),), name="default"))


@pytest.mark.parametrize("given", [[ONE], [{"statistic": "dcr.privacy_score"}], 3, {"limits": [["dcr.privacy_score"]]}])
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
