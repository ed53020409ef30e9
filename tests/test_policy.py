"""Limits, verdicts and policy files."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any, get_args

import pytest
from scipy import stats

from privacy_assets.errors import ConfigError
from privacy_assets.metrics.policies import (
    default_policy,
    embedded_statistics,
    load_policy,
    policy_digest,
    read_policy,
    resolve_policy,
    small_policy,
)
from privacy_assets.metrics.registry import default_metrics
from privacy_assets.policy import Bound, Limit, LimitOutcome, Policy, judge_limit, widening
from privacy_assets.stats.estimates import Direction, Estimate, MetricResult
from privacy_assets.version import PACKAGE_VERSION
from tests.shipped import METRICS, statistic_specs


def outcome(
    limit: Limit, low: float, value: float, high: float, *, subjects: int = 1000, **more: Any
) -> LimitOutcome:
    estimate = Estimate("f", value, low, high, subjects, subjects, 0.0, **more)
    return judge_limit(limit, MetricResult("m", (estimate,)))


LOWER = {"direction": "lower_is_riskier"}
GATE = {"measures": "evaluation"}  # a statistic about the gate cannot fail a table
BLIND = {"minimum_detectable_effect": 0.2}
NONE = (math.nan, math.nan, math.nan)


@pytest.mark.parametrize(
    ("limit", "interval", "more", "status", "words"),
    [
        # each bound meets its limit by its end of the interval; the conservative one is widened
        (Limit("m.f", 0.3105), (0.1, 0.2, 0.3), {}, "pass", ""),
        (Limit("m.f", 0.3104), (0.1, 0.2, 0.3), {}, "undecided", "up to 0.3105 cannot be excluded"),
        (Limit("m.f", 0.0999), (0.1, 0.2, 0.3), {}, "fail", "above the limit"),
        (Limit("m.f", 0.1, bound="proven"), (0.1, 0.2, 0.3), {}, "pass", ""),
        (Limit("m.f", 0.09, bound="proven"), (0.1, 0.2, 0.3), {}, "fail", ""),
        (Limit("m.f", 0.2, bound="value"), (0.1, 0.2, 0.3), {}, "pass", ""),
        (Limit("m.f", 0.19, bound="value"), (0.1, 0.2, 0.3), {}, "fail", ""),
        (Limit("m.f", at_least=60), (61, 70, 80), LOWER, "pass", ""),
        (
            Limit("m.f", at_least=60),
            (59, 70, 80),
            LOWER,
            "undecided",
            "down to 57.85 cannot be excluded",
        ),
        (Limit("m.f", at_least=60), (40, 50, 59), LOWER, "fail", "below the limit"),
        (
            Limit("m.f", at_least=60),
            (61, 70, 80),
            {**LOWER, "minimum_detectable_effect": 55},
            "pass",
            "",
        ),
        # missing evidence never passes
        (Limit("m.f", 0.5), NONE, {}, "undecided", ""),
        (Limit("m.f", 0.5), (0.0, 0.1, math.inf), {}, "undecided", ""),
        (
            Limit("m.f", 0.5, min_subjects=100),
            (0.0, 0.1, 0.2),
            {"subjects": 99},
            "undecided",
            "too few people: the attack needs 100, and the tables have 99",
        ),
        # the detectable size does not matter
        (Limit("m.f", 0.1), (-0.1, 0.0, 0.05), BLIND, "pass", ""),
        # but a significant leak fails
        (Limit("m.f", 0.1), (0.2, 0.3, 0.4), {**BLIND, "subjects": 1}, "fail", ""),
        (Limit("m.f", 0.2), (0.25, 0.3, 0.3), GATE, "undecided", "the evaluation is too weak here"),
        (
            Limit("m.f", 0.2, bound="proven"),
            (0.25, 0.3, 0.3),
            GATE,
            "undecided",
            "the evaluation is too weak here",
        ),
        (
            Limit("m.f", 0.2, bound="value"),
            (0.25, 0.3, 0.3),
            GATE,
            "undecided",
            "the evaluation is too weak here",
        ),
        (Limit("m.f", 0.3), (0.25, 0.3, 0.3), GATE, "pass", ""),  # no interval is widened
    ],
)
def test_a_limit_is_held_against_its_end_of_the_interval(
    limit: Limit,
    interval: tuple[float, float, float],
    more: dict[str, Any],
    status: str,
    words: str,
) -> None:
    found = outcome(limit, *interval, **more)
    assert (found.status, found.passed) == (status, status == "pass")
    assert words in found.reason


@pytest.mark.parametrize("bound", get_args(Bound))
@pytest.mark.parametrize(
    ("side", "direction", "null"),
    [
        ("at_most", "higher_is_riskier", 0.0),
        ("at_most", "two_sided", 0.0),
        ("at_least", "lower_is_riskier", 1.0),
    ],
)
def test_a_number_at_the_limit_passes_and_the_next_one_does_not(
    side: str, direction: Direction, null: float, bound: Bound
) -> None:
    """With an interval of width 0 every bound is the estimate, so that the limit alone decides."""
    for value in (0.0, 0.1, 0.5):
        estimate = Estimate("f", value, value, value, 50, 50, null, direction)
        result = MetricResult("m", (estimate,))
        limit = Limit("m.f", bound=bound, **{side: value})
        assert judge_limit(limit, result).status == "pass"
        worse = math.nextafter(value, -1.0 if side == "at_most" else 2.0)
        assert judge_limit(replace(limit, **{side: worse}), result).status == "fail"


@pytest.mark.parametrize("bound", get_args(Bound))
@pytest.mark.parametrize("direction", get_args(Direction))
@pytest.mark.parametrize("position", range(3))
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_no_interval_with_a_missing_number_passes(
    number: float, position: int, direction: Direction, bound: Bound
) -> None:
    interval = [0.4, 0.5, 0.6]
    interval[position] = number
    low, value, high = interval
    result = MetricResult("m", (Estimate("f", value, low, high, 50, 50, 0.5, direction),))
    limit = Limit(
        "m.f", bound=bound, **{"at_least" if direction == "lower_is_riskier" else "at_most": 0.0}
    )
    found = judge_limit(
        replace(limit, at_most=99.0) if limit.at_most is not None else limit, result
    )
    assert found.status == "undecided" and math.isnan(found.compared)


@pytest.mark.parametrize(
    ("subjects", "proven", "status"),
    [(29, False, "undecided"), (30, False, "pass"), (29, True, "fail"), (30, True, "fail")],
)
@pytest.mark.parametrize("bound", get_args(Bound))
def test_with_too_few_subjects_only_a_proven_leak_decides(
    bound: Bound, subjects: int, proven: bool, status: str
) -> None:
    low, value, high = (0.3, 0.4, 0.5) if proven else (0.0, 0.05, 0.1)
    result = MetricResult("m", (Estimate("f", value, low, high, 500, subjects),))
    found = judge_limit(Limit("m.f", at_most=0.2, bound=bound, min_subjects=30), result)
    assert found.status == status
    assert ("the tables have 29" in found.reason) == (status == "undecided")


@pytest.mark.parametrize(
    ("low", "high", "statuses", "verdict"),
    [
        (0.00, 0.03, ("pass", "pass"), "pass"),
        (0.00, 0.06, ("undecided", "pass"), "undecided"),  # a leak of 4 % is not excluded
        (0.02, 0.03, ("pass", "fail"), "fail"),  # a small leak, but a certain one
        (0.02, 0.06, ("undecided", "fail"), "fail"),
        (0.05, 0.06, ("fail", "fail"), "fail"),
    ],
)
def test_two_limits_on_one_statistic_are_evaluated_by_their_own_bounds(
    low: float, high: float, statuses: tuple[str, str], verdict: str
) -> None:
    limits = (Limit("m.f", at_most=0.04), Limit("m.f", at_most=0.01, bound="proven"))
    judged = Policy(limits).judge(
        {"m": MetricResult("m", (Estimate("f", (low + high) / 2, low, high, 50, 50),))}
    )
    assert tuple(outcome.status for outcome in judged.outcomes) == statuses
    assert judged.status == verdict
    assert [outcome.limit.key for outcome in judged.not_passed] == [
        key for key, status in zip(("m.f", "m.f.proven"), statuses, strict=True) if status != "pass"
    ]


def test_what_was_not_measured_never_passes() -> None:
    for result in (None, MetricResult("m", ())):
        assert judge_limit(Limit("m.f", 0.5), result).status == "undecided"


@pytest.mark.parametrize(
    ("low", "high", "bound", "measured"),
    [
        (-0.4, 0.1, "conservative", 0.4261385),
        (-0.1, 0.4, "conservative", 0.4261385),
        (0.2, 0.4, "proven", 0.2),
        (-0.4, -0.2, "proven", 0.2),
        (-0.1, 0.1, "proven", -0.1),
    ],
)
def test_two_sided_statistics_count_both_directions(
    low: float, high: float, bound: str, measured: float
) -> None:
    limit = Limit("m.f", 1.0, bound=bound)  # type: ignore[arg-type]
    assert outcome(
        limit, low, (low + high) / 2, high, direction="two_sided"
    ).compared == pytest.approx(measured)


@pytest.mark.parametrize(
    ("copies", "members", "status"),
    [
        ((1.0,), (1.0,), "pass"),
        ((1.0,), (0.1,), "undecided"),  # no limit of the second question gives evidence
        ((0.1, 1.0), (0.1, 1.0), "pass"),  # one limit of each question suffices
        ((0.1,), (1.0,), "undecided"),
        ((None,), (1.0,), "undecided"),  # not measured on the copy
        ((None, 0.1), (1.0,), "undecided"),
        ((), (1.0, 0.1), "pass"),
        ((), (0.1, 0.1), "undecided"),
        ((), (None,), "pass"),  # such as statistics of utility
    ],
)
def test_a_policy_whose_limits_a_copy_of_train_does_not_break_is_undecided(
    copies: tuple[float | None, ...], members: tuple[float | None, ...], status: str
) -> None:
    """The copy has these values. The release is far from its limits."""
    results, limits = {}, []
    for question, values in (("copies", copies), ("membership", members)):
        found = [
            Estimate(f"f{at}", 0, 0, 0, 99, 99, question=question) for at in range(len(values))
        ]
        pairs = zip(found, values, strict=True)
        on_copy = tuple(replace(one, value=x, low=x, high=x) for one, x in pairs if x is not None)
        results[question] = MetricResult(question, tuple(found), on_copy=on_copy)
        limits += [Limit(f"{question}.{one.name}", 0.5) for one in found]
    verdict = Policy(tuple(limits)).judge(results)
    assert verdict.status == status
    broken = Policy((*limits, Limit("other.f", 0.5))).judge(
        {**results, "other": MetricResult("other", (Estimate("f", 1, 1, 1, 99, 99),))}
    )
    assert broken.status == "fail"


@pytest.mark.slow
def test_the_levels_of_all_attempts_sum_up_to_that_of_one() -> None:
    """Independently of the package: scipy's normal distribution converts each widened end back into
    a level.
    """
    half = NormalDist().inv_cdf(0.975)
    levels = [2 * stats.norm.sf(half * widening(m, 0.95)) for m in range(1, 20_001)]
    assert levels[0] == pytest.approx(0.05 * 6 / math.pi**2)
    assert sum(levels) == pytest.approx(0.05, rel=1e-4) and sum(levels) < 0.05
    assert [round(widening(m, 0.95), 2) for m in (1, 2, 10)] == [1.10, 1.36, 1.84]


@pytest.mark.parametrize(
    ("attempt", "status"), [(1, "pass"), (2, "pass"), (3, "undecided"), (30, "undecided")]
)
def test_each_attempt_is_judged_more_strictly(attempt: int, status: str) -> None:
    estimate = Estimate("f", 0.1, 0.0, 0.2, 1000, 1000)
    results = {"m": MetricResult("m", (estimate,))}
    judged = Policy((Limit("m.f", at_most=0.24),)).judge(results, attempt)
    assert judged.status == status
    assert ("attempt" in judged.outcomes[0].reason) == (attempt > 1)
    significant = Policy(
        (Limit("m.f", at_most=0.05, bound="proven"), Limit("m.f", at_most=0.1, bound="value"))
    )
    assert significant.judge(results, attempt).status == "pass"  # only the conservative bound moves


def test_protection_scores_move_down_with_the_attempt() -> None:
    estimate = Estimate("f", 80, 70, 90, 1000, 1000, 100, "lower_is_riskier")
    limit = Limit("m.f", at_least=68)
    assert judge_limit(limit, MetricResult("m", (estimate,)), 1).passed
    assert judge_limit(limit, MetricResult("m", (estimate,)), 2).compared == pytest.approx(
        80 - 10 * widening(2, 0.95)
    )
    assert judge_limit(limit, MetricResult("m", (estimate,)), 2).status == "undecided"


def test_the_worst_outcome_is_the_verdict() -> None:
    estimates = (
        Estimate("a", 0, 0, 0, 99, 99),
        Estimate("b", 1, 1, 1, 99, 99),
        Estimate("c", math.nan, 0, 0, 99, 99),
    )
    results = {"m": MetricResult("m", estimates)}
    verdict = {
        names: Policy(tuple(Limit(f"m.{name}", 0.5) for name in names)).judge(results).status
        for names in ("a", "ab", "ac", "abc")
    }
    assert verdict == {"a": "pass", "ab": "fail", "ac": "undecided", "abc": "fail"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"statistic": "dcr.privacy_score"}, "either at_most or at_least"),
     ({"statistic": "x", "at_most": 1}, "METRIC.STATISTIC"),
     ({"statistic": "m.f", "at_most": 1, "at_least": 1}, "either"),
     ({"statistic": "m.f", "at_most": math.nan}, "finite"),
     ({"statistic": "m.f", "at_most": True}, "only one of"),
     ({"statistic": "m.f", "at_most": 1, "bound": "top"}, "bound"),
     ({"statistic": "m.f", "at_most": 1, "min_subjects": 0}, "min_subjects")],
)  # fmt: skip
def test_wrong_limits_are_rejected(arguments: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Limit(**arguments)


def test_empty_and_repeated_policies_are_rejected() -> None:
    with pytest.raises(ConfigError, match="no limits"):
        Policy(())
    with pytest.raises(ConfigError, match="twice"):
        Policy((Limit("m.f", 1), Limit("m.f", 2)))


def test_default_limits_stand_on_statistics_that_exist_and_say_where_they_come_from() -> None:
    policy = default_policy()
    specs = statistic_specs()
    described = {
        "memorization",
        "vulnerability",
        "fidelity",
        "controls",
    }  # shown without a limit
    assert {limit.metric for limit in policy.limits} == set(default_metrics()) - described
    for limit in policy.limits:
        assert limit.statistic in specs
        assert limit.source, limit.key
        assert not limit.advice, limit.key  # advice has one source: the cause


def test_at_most_sixteen_statistics_are_limited_by_default() -> None:
    limited = [limit.statistic for limit in default_policy().limits]
    assert len(set(limited)) <= 16
    # safety must be shown, and a leak must not be sure
    twice = {name for name in limited if limited.count(name) > 1}
    assert twice == {"copies.copied_share", "singling_out.risk", "membership_inference.precision"}
    asked_for = {"dcr.privacy_score", "singling_out.risk", "membership_inference.precision"}
    assert asked_for <= {limit.statistic for limit in default_policy().limits}


def test_the_policy_for_small_tables_is_asked_for_by_name_and_wider_in_what_it_says(
    tmp_path: Path,
) -> None:
    small, default = small_policy(), default_policy()
    assert load_policy("small") == small and small.name == "small"
    pairs = list(zip(small.limits, default.limits, strict=True))
    assert all(one.key == other.key and one.bound == other.bound for one, other in pairs)
    wider = [one for one, other in pairs if one.value != other.value]
    assert {limit.statistic for limit in wider} >= {"copies.copied_share"} and policy_digest(
        small
    ) != policy_digest(default)
    assert all(
        one.value > other.value and one.source != other.source
        for one, other in pairs
        if one in wider
    )
    own = write(
        tmp_path, "extends: small\nlimits: [{statistic: dcr.privacy_score, at_most: 0.01}]\n"
    )
    values = {limit.key: limit.value for limit in load_policy(own).limits}
    assert (values["copies.copied_share"], values["dcr.privacy_score"]) == (0.08, 0.01)


def test_a_policy_is_the_default_one_when_none_of_its_limits_is_left_out() -> None:
    limited = [name for name in default_metrics() if METRICS[name].default_limits]
    assert default_policy(limited) == default_policy()
    assert default_policy(limited[1:]).name != "default"
    with pytest.raises(ConfigError, match="no limits"):
        default_policy(["vulnerability"])


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    return path


def test_a_policy_file_extends_the_default(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "name: strict\nextends: default\nlimits:\n- {statistic: dcr.privacy_score, at_most:"
        " 0.01}\n",
    )
    policy = load_policy(path)
    values = {limit.key: limit.value for limit in policy.limits}
    assert policy.name == "strict"
    assert values["dcr.privacy_score"] == 0.01
    assert set(values) == {limit.key for limit in default_policy().limits}
    assert (
        policy_digest(load_policy(policy.to_dict()))
        == policy_digest(policy)
        != policy_digest(default_policy())
    )


ONE = "{statistic: dcr.privacy_score, at_most: 0.1}"


def limited(statistic: str, value: str) -> str:
    return f"limits: [{{statistic: {statistic}, {value}}}]"


# YAML takes them for numbers
ODD = ("0x1", "0b1", "-0x1", "010", "0_1", "0.0_4", "1_0", "1:30", "1:30.5", ".inf")
WRONG_FILES = [
    (": :", "YAML"),
    (f"{'[' * 5000}", "cannot be read as YAML"),
    ("limits: 2024-13-45", "cannot be read as YAML"),
    ("", "expected one mapping, not an empty file"),
    (f"- {ONE}", "expected one mapping, not a list"),
    (f"--- {{limits: [{ONE}]}}\n--- {{}}", "not 2 documents"),
    ("1: 3", "unknown key int"),
    ("limit: []", "Did you mean 'limits'"),
    ("limits: 3", "must be a list"),
    ("limits: [3]", "each limit is a mapping"),
    (
        f"{{name: [a], limits: [{ONE}]}}",
        "name: Input should be a valid string. Expected: at most 64 letters",
    ),
    ("{extends: mine, limits: []}", "extends: Input should be 'default' or 'small'"),
    (limited("dcr.privacy_scor", "at_most: 1"), "Did you mean 'dcr.privacy_score'"),
    (limited("dcr.privacy_score", "at_mst: 1"), "Did you mean 'at_most'"),
    (limited("dcr.privacy_score", "at_least: 1"), "dcr.privacy_score takes at_most"),
    # out of the range of its statistic
    (limited("dcr.privacy_score", "at_most: 1.0e+300"), "dcr.privacy_score.* 0 to 1"),
    (limited("dcr.privacy_score", "at_most: -0.1"), "dcr.privacy_score.* 0 to 1"),
    (limited("dcr.privacy_score", "at_most: .nan"), "'.nan' is not a plain decimal number"),
    (limited("singling_out.risk", f"at_most: {'9' * 400}"), "finite number"),
    (limited("membership_inference.auc_dpi", "at_most: 0.51"), "0 to 0.5"),
    (limited("data_privacy.score", "at_least: 101"), "0 to 100"),
    (limited("shadow_membership.epsilon_lower_bound", "at_most: 21"), "0 to 20"),
    # If a key is repeated, YAML uses the last value: a later line could silently loosen any limit.
    (f"limits: [{ONE}]\nlimits: []\n", "line 2: the key 'limits' occurs twice, first in line 1"),
    (
        f"x: &x\n  name: a\nextends: default\nlimits: [{ONE}]\nextends: null\n",
        "line 5: the key 'extends'",
    ),
    (
        f"limits:\n- {ONE}\n- {{statistic: dcr.privacy_score, at_most: 0.9}}\n",
        "dcr.privacy_score is limited twice",
    ),
    (f"extends: default\nlimits:\n- {ONE}\n- {ONE}\n", "dcr.privacy_score is limited twice"),
    # the names of the shipped policies are reserved
    (f"{{name: Default , limits: [{ONE}]}}", "reserved for the shipped policy 'default'"),
    (
        "{name: default, extends: default, limits: [{statistic: dcr.privacy_score, at_most: 0.9}]}",
        "is reserved",
    ),
    (f"{{name: Small, limits: [{ONE}]}}", "reserved for the shipped policy 'small'"),
    (
        "{name: 'default, dcr', limits: [{statistic: dcr.privacy_score, at_most: 0.12}]}",
        "name: String should match",
    ),
    ("{name: default, extends: default, metrics: {dcr: {alpha: 0.1}}}", "is reserved"),
    ("{name: default, extends: default, embedder: false}", "is reserved"),
    (
        "{name: mine, part_of: default, extends: default, metrics: {dcr: {alpha: 0.1}}}",
        "not a part of 'default'",
    ),
    (f"{{name: mine, part_of: small, limits: [{ONE}]}}", "not a part of 'small'"),
    # settings of metrics and of the embedder
    ("{extends: default, metrics: 3}", "settings: Input should be a valid dictionary"),
    ("{extends: default, metrics: {dcr: [alpha]}}", "settings: Input should be a valid dictionary"),
    ("{extends: default, metrics: {drc: {}}}", "Did you mean 'dcr'"),
    ("{extends: default, metrics: {dcr: {alfa: 0.1}}}", "Did you mean 'alpha'"),
    (
        "{extends: default, metrics: {dcr: {alpha: 0.9}}}",
        "alpha: Input should be less than or equal to 0.5",
    ),
    ("{extends: default, metrics: {controls: {limits: []}}}", "controls has no setting 'limits'"),
    ("{extends: default, embedder: true}", "embedder: .* a mapping of its settings, or false"),
    ("{extends: default, embedder: {widht: 3}}", "Did you mean 'width'"),
    # numbers that are easily misread, and limits written in another place of the file
    *(
        (
            limited("dcr.privacy_score", f"at_most: {number}"),
            f"line 1: '{number}' is not a plain decimal number",
        )
        for number in ODD
    ),
    *(
        (
            limited("dcr.privacy_score", f"at_most: {tagged}"),
            r"line 1: a tag \(!\) is not accepted. Fix: leave it out",
        )
        for tagged in (
            "!!int 0x1",
            "!!float 1_0",
            '!!int {=: "0x1"}',
            '!!float {=: "1_0"}',
            "!!bool maybe",
            "!!timestamp abc",
            "! 0.1",
            "!!seq [0.1]",
            "!mine {}",
            "!!python/name:os.system x",
        )
    ),
    ("{yes: 1, true: 2}", "line 1: the key 'true' occurs twice, first in line 1"),
    ("{1: 1,\n 1.0: 2}", "line 2: the key '1.0' occurs twice, first in line 1"),
    (
        f"x: &x {ONE}\nlimits: [{{<<: *x, at_most: 0.9}}]",
        r"line 2: an alias \(\*\) is not accepted. Fix: write",
    ),
    (
        f"limits: [{{<<: {ONE}, at_most: 0.9}}]",
        r"line 1: a merge key \(<<\) is not accepted. Fix: write",
    ),
    (
        f"limits: [{{<<: [{ONE}, {{at_most: 0.9}}]}}]",
        r"line 1: a merge key \(<<\) is not accepted. Fix: write",
    ),
    (f"limits: [{{!!merge x: {ONE}}}]", r"line 1: a tag \(!\) is not accepted. Fix: leave"),
]


@pytest.mark.parametrize(
    ("text", "message"), WRONG_FILES, ids=[message for _, message in WRONG_FILES]
)
def test_wrong_policy_files_are_named_with_the_fault(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load_policy(write(tmp_path, text))
    assert "policy.yaml" in str(caught.value)


def test_a_policy_file_that_is_absent_or_no_text_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_bytes(b"\xff\xfe\x00limits")
    for name in ("policy", "absent"):
        with pytest.raises(ConfigError, match=rf"{name}\.yaml"):
            load_policy(tmp_path / f"{name}.yaml")


def test_the_ranges_hold_every_default_limit() -> None:
    for name, spec in statistic_specs().items():
        low, high = spec.limits
        assert low == 0 and 0 < high < math.inf, name
    for metric in METRICS.values():
        for limit in metric.default_limits:
            assert 0 <= limit.value <= statistic_specs()[limit.statistic].limits[1], limit.key


def test_the_default_policy_keeps_its_name(tmp_path: Path) -> None:
    for policy in (
        default_policy(),
        default_policy(["dcr"]),
        default_policy([*METRICS]),
        small_policy(),
    ):
        again = load_policy(policy.to_dict())
        assert (again.name, again.part_of, policy_digest(again)) == (
            policy.name,
            policy.part_of,
            policy_digest(policy),
        )
    loosened = "{extends: default, limits: [{statistic: dcr.privacy_score, at_most: 0.9}]}"
    assert load_policy(write(tmp_path, loosened)).name == "custom"


@pytest.mark.parametrize(
    "name",
    [
        "default",
        "Default",
        "DE.FAULT",
        "d-e_f a.u-l-t",
        "default.",
        "sMaLl",
        "s m a l l",
        "default\n",
        "d\u00e9fault",
        "d\u0435fault",
        "default\u200b",
        "",
        " default",
        "-",
        "x" * 65,
        "a\tb",
        "a, a part of default",
    ],
)
def test_a_name_that_reads_as_a_shipped_one_or_cannot_be_read_is_blocked(name: str) -> None:
    limits = (Limit("dcr.privacy_score", 0.9),)
    with pytest.raises(ConfigError, match="name"):
        load_policy(Policy(limits, name=name))
    stated = {**Policy(limits, "mine").to_dict(), "name": name}
    with pytest.raises(ConfigError, match="name"):
        load_policy(stated)
    with pytest.raises(ConfigError, match="name"):
        read_policy(stated, PACKAGE_VERSION)
    if name == "default":
        assert read_policy(stated, "0.0.9").name == name  # the limits may be of that version
        return
    with pytest.raises(ConfigError, match="name"):
        read_policy(stated, "0.0.9")
    with pytest.raises(ConfigError, match="name"):
        replace(default_policy(), name=name)


@pytest.mark.parametrize(
    "name", ["default 2026", "hospital", "0", "a.b_c-d e", "x" * 64, "small-clinic"]
)
def test_other_names_are_allowed(name: str) -> None:
    assert Policy((Limit("dcr.privacy_score", 0.9),), name=name).name == name


def test_the_digest_covers_the_settings_of_limited_metrics_with_their_defaults(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = Policy((Limit("dcr.privacy_score", 0.1), Limit("membership_inference.precision", 0.7)))
    others = [
        {},
        {"dcr": {"alpha": 0.1}},
        {"dcr": {"n_bootstraps": 50}},
        {"membership_inference": {"subgroups": ["ward"]}},
    ]
    assert len({policy_digest(replace(plain, settings=settings)) for settings in others}) == 4
    same = [
        replace(plain, name="other"),
        replace(plain, settings={"dcr": {"alpha": 0.02}}),  # the default, written down
        replace(plain, settings={"fidelity": {"pairs": 3}}),  # no limit depends on it
        replace(plain, embedder={"width": 8}),  # no limit depends on it
    ]
    assert {policy_digest(policy) for policy in same} == {policy_digest(plain)}
    assert "subgroups" not in resolve_policy(plain)["settings"]["membership_inference"]
    for statistic, used in (
        ("data_privacy.membership_protection_score", "membership_inference"),
        ("controls.false_alarm_rate", "copies"),
    ):
        indirect = Policy((Limit(statistic, at_least=40, min_subjects=1),))
        digests = set()
        for n_permutations in (499, 9999):
            settings = {used: {"n_permutations": n_permutations}}
            digests.add(policy_digest(replace(indirect, settings=settings)))
        assert len(digests) == 2, statistic
    embedded = Policy((*plain.limits, Limit("dcr.member_excess_any", 0.1)))
    assert embedded_statistics(embedded) == ("dcr.member_excess_any",)
    tuned = [{}, {"width": 8}, {"preset": "paper"}, False]
    assert len({policy_digest(replace(embedded, embedder=embedder)) for embedder in tuned}) == 4
    for space, count in (("raw", 0), ("embedded", 1)):
        own = Policy(
            (Limit("memorization.exposed_excess", 0.1),),
            settings={"memorization": {"space": space}},
        )
        assert len(embedded_statistics(own)) == count
    before = policy_digest(default_policy())
    # an upgrade
    monkeypatch.setattr(METRICS["dcr"], "settings", lambda self: {**asdict(self), "alpha": 0.03})
    assert policy_digest(default_policy()) != before


def test_settings_are_written_and_read_back() -> None:
    given = {
        "name": "own",
        "extends": "default",
        "metrics": {"dcr": {"tails": [0.05, 0.2]}},
        "embedder": {"width": 8},
    }
    policy = load_policy(given)
    stated = json.loads(json.dumps(policy.to_dict()))
    for again in (
        load_policy(stated),
        read_policy(stated, PACKAGE_VERSION),
        read_policy(stated, "0.0.9"),
    ):
        assert (policy_digest(again), again.settings) == (
            policy_digest(policy),
            {"dcr": {"tails": [0.05, 0.2]}},
        )
        assert again.embedder == {"width": 8}


def test_a_shipped_policy_with_fewer_limits_is_a_part_of_it() -> None:
    for policy in (default_policy(), small_policy()):
        part = policy.restricted(policy.limits[1:])
        assert (part.name, part.part_of, part.title) == (
            "custom",
            policy.name,
            f"custom, a part of {policy.name}",
        )
        assert policy.restricted(policy.limits) is policy
        assert load_policy(part.to_dict()).part_of == policy.name
    own = Policy(default_policy().limits, name="own")
    assert own.restricted(own.limits[:1]).title == "own"


@pytest.mark.parametrize("given", [[ONE], 3, {"limits": [["dcr.privacy_score"]]}])
def test_a_policy_in_python_that_is_none_is_an_error(given: object) -> None:
    with pytest.raises(ConfigError, match=r"mapping"):
        load_policy(given)  # type: ignore[arg-type]


def test_every_limit_is_judged_whatever_its_bound() -> None:
    policy = default_policy()
    assert {limit.bound for limit in policy.limits} >= {"conservative", "proven"}
    assert [outcome.limit for outcome in policy.judge({}).outcomes] == list(policy.limits)


def test_a_number_that_is_none_breaks_every_limit() -> None:
    for limit in (Limit("dcr.privacy_score", at_most=0.1), Limit("m.score", at_least=0.1)):
        assert limit.exceeded_by(float("nan"))
