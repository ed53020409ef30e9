"""Limits, judgement and policy files."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from privacy_assets.engine.policy import Limit, LimitOutcome, Policy, judge_limit
from privacy_assets.engine.registry import METRICS, default_metrics, figure_specs
from privacy_assets.engine.results import Direction, Figure, MetricResult
from privacy_assets.errors import ConfigError


def outcome(
    limit: Limit,
    low: float,
    value: float,
    high: float,
    *,
    subjects: int = 1000,
    direction: Direction = "higher_is_riskier",
    resolution: float = math.nan,
) -> LimitOutcome:
    figure = Figure("f", value, low, high, subjects, subjects, 0.0, direction, resolution=resolution)
    return judge_limit(limit, MetricResult("m", (figure,)))


@pytest.mark.parametrize(
    ("bound", "at_most", "status"),
    [("upper", 0.3, "pass"), ("upper", 0.29, "fail"), ("lower", 0.1, "pass"), ("lower", 0.09, "fail"),
     ("value", 0.2, "pass"), ("value", 0.19, "fail")],
)  # fmt: skip
def test_each_bound_holds_its_end_of_the_interval(bound: str, at_most: float, status: str) -> None:
    assert outcome(Limit("m.f", at_most, bound=bound), 0.1, 0.2, 0.3).status == status  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("low", "high", "bound", "measured"),
    [(-0.4, 0.1, "upper", 0.4), (-0.1, 0.4, "upper", 0.4), (0.2, 0.4, "lower", 0.2), (-0.4, -0.2, "lower", 0.2),
     (-0.1, 0.1, "lower", -0.1)],
)  # fmt: skip
def test_two_sided_figures_count_both_directions(low: float, high: float, bound: str, measured: float) -> None:
    limit = Limit("m.f", 1.0, bound=bound)  # type: ignore[arg-type]
    assert outcome(limit, low, (low + high) / 2, high, direction="two_sided").measured == pytest.approx(measured)


def test_scores_are_limited_from_below() -> None:
    limit = Limit("m.f", at_least=60)
    assert outcome(limit, 61, 70, 80, direction="lower_is_riskier").passed
    assert outcome(limit, 59, 70, 80, direction="lower_is_riskier").status == "fail"
    assert outcome(limit, 59, 70, 80, direction="lower_is_riskier", resolution=55).status == "not_assessable"


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
    assert outcome(limit, -0.1, 0.0, 0.05, resolution=0.2).status == "not_assessable"
    assert outcome(limit, 0.2, 0.3, 0.4, resolution=0.2, subjects=1).status == "fail"


def test_the_worst_outcome_is_the_verdict() -> None:
    figures = (Figure("a", 0, 0, 0, 99, 99), Figure("b", 1, 1, 1, 99, 99), Figure("c", math.nan, 0, 0, 99, 99))
    results = {"m": MetricResult("m", figures)}
    verdict = {
        names: Policy(tuple(Limit(f"m.{name}", 0.5) for name in names)).judge(results).verdict
        for names in ("a", "ab", "ac", "abc")
    }
    assert verdict == {"a": "pass", "ab": "fail", "ac": "not_assessable", "abc": "fail"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"figure": "dcr.privacy_score"}, "either at_most or at_least"), ({"figure": "x", "at_most": 1}, "METRIC.FIGURE"),
     ({"figure": "m.f", "at_most": 1, "at_least": 1}, "either"), ({"figure": "m.f", "at_most": math.nan}, "finite"),
     ({"figure": "m.f", "at_most": True}, "either"), ({"figure": "m.f", "at_most": 1, "bound": "top"}, "unknown bound"),
     ({"figure": "m.f", "at_most": 1, "smallest_n": 0}, "smallest_n")],
)  # fmt: skip
def test_wrong_limits_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Limit(**arguments)


def test_empty_and_repeated_policies_are_refused() -> None:
    with pytest.raises(ConfigError, match="no limits"):
        Policy(())
    with pytest.raises(ConfigError, match="twice"):
        Policy((Limit("m.f", 1), Limit("m.f", 2)))


def test_default_limits_stand_on_figures_that_exist_and_say_where_they_come_from() -> None:
    policy = Policy.default()
    specs = figure_specs()
    described = {"memorization", "vulnerability", "fidelity"}  # shown, and limited by nothing
    assert {limit.metric for limit in policy.limits} == set(default_metrics()) - described
    for limit in policy.limits:
        assert limit.figure in specs
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
    path = write(tmp_path, "name: strict\nextends: default\nlimits:\n- {figure: dcr.privacy_score, at_most: 0.01}\n")
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
     ("limits: [{figure: dcr.privacy_scor, at_most: 1}]", "Did you mean 'dcr.privacy_score'"),
     ("limits: [{figure: dcr.privacy_score, at_mst: 1}]", "Did you mean 'at_most'"),
     ("limits: [{figure: dcr.privacy_score, at_least: 1}]", "takes at_most"), ("limits: 3", "must be a list"),
     ("limits: [3]", "each limit is a mapping"), ("{extends: mine, limits: []}", "only be 'default'")],
)  # fmt: skip
def test_wrong_policy_files_name_file_and_fix(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        Policy.from_yaml(write(tmp_path, text))
    assert "policy.yaml" in str(caught.value) or "no limits" in message


def test_a_policy_file_that_is_no_text_or_has_odd_keys_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path, "1: 3")
    with pytest.raises(ConfigError, match="unknown key '1'"):
        Policy.from_yaml(path)
    path.write_bytes(b"\xff\xfe\x00limits")
    with pytest.raises(ConfigError, match=r"policy\.yaml"):
        Policy.from_yaml(path)


def test_an_absent_policy_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.yaml"):
        Policy.from_yaml(tmp_path / "absent.yaml")
