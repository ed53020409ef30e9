"""The first page states what was measured, and no more: answers against intervals and power, on
drawn results.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from privacy_assets.dagster.metadata import report_metadata
from privacy_assets.metrics.policies import default_policy
from privacy_assets.policy import WEAK_MULTIPLE, Limit, LimitOutcome, Policy, judge_limit
from privacy_assets.report.answers import SMALL_LEAK, TITLES, question_of
from privacy_assets.report.report import Report
from privacy_assets.report.text import verdict_lines
from privacy_assets.report.words import limit_interval, measured_text
from privacy_assets.stats.estimates import PEOPLE, PEOPLE_WHO_FIT, Estimate, MetricResult
from tests.report.report_examples import ALL, ParsedPage
from tests.shipped import METRICS, statistic_specs

LIMITED = [
    limit for limit in default_policy().limits if statistic_specs()[limit.statistic].range is None
]
SIZES = {
    "train": {"rows": 3000, "columns": 9, "subjects": 2000},
    "synthetic": {"rows": 3000, "columns": 9},
}


def drawn(rng: np.random.Generator) -> Report:
    """A report with the limits of the default policy, whose statistics are drawn from no leak to a
    large one.
    """
    size = rng.choice([0.0, 0.0, 1.0, 3.0])
    found: dict[str, dict[str, Estimate]] = {}
    for statistic in dict.fromkeys(limit.statistic for limit in LIMITED):
        metric, _, name = statistic.partition(".")
        spec = statistic_specs()[statistic]
        null = spec.null or 0.0
        deviation = rng.choice([0.001, 0.01, 0.05, 0.4])
        value = null + size * rng.exponential(0.02) + deviation * rng.normal()
        confidence = rng.choice([0.9, 0.95, 0.995])
        reach = deviation * norm.ppf((1 + confidence) / 2)
        missed = (norm.ppf(0.995) + norm.ppf((1 + confidence) / 2)) * deviation
        is_distance = spec.direction == "two_sided"
        found.setdefault(metric, {})[name] = Estimate(
            name,
            value,
            value - reach,
            value + reach,
            5000,
            2000,
            null=null,
            direction=spec.direction,
            confidence=confidence,
            minimum_detectable_effect=missed + (0 if is_distance else null),
            question=question_of(statistic),
            is_share=True,
        )
    results = {}
    for metric, estimates in found.items():
        copied = [replace(one, value=1.0, low=1.0, high=1.0) for one in estimates.values()]
        results[metric] = MetricResult(metric, tuple(estimates.values()), on_copy=tuple(copied))
    policy = Policy(tuple(LIMITED), name="example")
    return Report(
        title="t",
        policy=policy,
        policy_verdict=policy.judge(results),
        results=results,
        tables=SIZES,
        seed=0,
    )


@cache
def reports() -> list[Report]:
    """200 drawn reports."""
    return [drawn(np.random.default_rng(seed)) for seed in range(200)]


def is_certain(outcomes: tuple[LimitOutcome, ...]) -> bool:
    """Independently: a z-score beyond the joint quantile of all questions."""
    estimates = {one.limit.statistic: one.estimate for one in outcomes if one.estimate is not None}
    quantile = norm.ppf(1 - 0.01 / 6 / len(estimates) / 2)
    scores = []
    for estimate in estimates.values():
        deviation = (estimate.high - estimate.value) / norm.ppf((1 + estimate.confidence) / 2)
        score = (estimate.value - estimate.null) / deviation
        scores.append(abs(score) if estimate.direction == "two_sided" else score)
    return max(scores) > quantile


@pytest.mark.slow
def test_each_word_agrees_with_limits_intervals_and_power() -> None:
    words: dict[str, int] = {}
    for made in reports():
        for answer in made.answers[:6]:
            if not answer.outcomes:
                continue
            statuses = {outcome.status for outcome in answer.outcomes}
            words[answer.word] = words.get(answer.word, 0) + 1
            # the second one for values that no real row has
            if answer.word in ("Yes", "Not ruled out"):
                assert "fail" in statuses
            elif answer.word == "Cannot tell":
                n_sized = sum(
                    one.passed and not one.blind and one.smallest_leak > 0
                    for one in answer.outcomes
                )
                assert "fail" not in statuses and ("undecided" in statuses or n_sized == 0)
            elif answer.word == SMALL_LEAK:
                assert statuses == {"pass"} and is_certain(answer.outcomes)
            else:
                assert answer.word == "No leak found"
                assert statuses == {"pass"} and not is_certain(answer.outcomes)
                assert not all(outcome.blind for outcome in answer.outcomes)
                assert answer.statement.startswith("A leak would have been found if"), (
                    answer.statement
                )
    assert min(words.values()) > 10 and len(words) == 5, words


@pytest.mark.slow
def test_a_question_without_evidence_does_not_pass() -> None:
    n_unanswered = 0
    for made in reports():
        for answer in made.answers[:6]:
            alone = [
                judge_limit(one.limit, made.results[one.limit.metric]) for one in answer.outcomes
            ]
            if alone and all(one.blind for one in alone):
                n_unanswered += 1
                assert answer.word == "Cannot tell" and made.verdict != "pass"
    assert n_unanswered > 10


def test_shares_are_shown_within_their_range_and_no_distance_is_negative() -> None:
    n_cut = 0
    for made in reports():
        for outcome in made.policy_verdict.outcomes:
            estimate = outcome.estimate
            assert estimate is not None and outcome.interval is not None
            lowest = -1 if estimate.null == 0 else 0
            shown = [
                float(x)
                for x in re.findall(r"-?[\d.]+", limit_interval(outcome).partition(" (")[0])
            ]
            assert all(lowest <= number <= 1 for number in shown), limit_interval(outcome)
            n_cut += outcome.interval.high > 1
            assert (
                not re.search(r"(at most|at least) -", measured_text(outcome))
                or estimate.direction != "two_sided"
            )
            if (
                outcome.limit.bound == "conservative"
                and outcome.passed
                and estimate.direction != "two_sided"
            ):
                assert outcome.compared == pytest.approx(outcome.interval.high), (
                    "the interval is the one compared"
                )
    assert n_cut > 10


def weak(limit: Limit, low: float, high: float, missed: float, **more: Any) -> LimitOutcome:
    value = (low + high) / 2
    is_share = more.get("direction") != "lower_is_riskier"
    estimate = Estimate(
        "f", value, low, high, 99, 99, minimum_detectable_effect=missed, is_share=is_share, **more
    )
    return judge_limit(limit, MetricResult("m", (estimate,)))


@pytest.mark.parametrize(
    ("people", "tolerance", "confidence"),
    [(300, 0.01, 0.95), (2000, 0.025, 0.9), (800, 0.2, 0.995)],
)
def test_the_smallest_leak_is_proven_with_95_percent_probability(
    people: int, tolerance: float, confidence: float
) -> None:
    """A statistic that was 0 for all people has no error. Leaks of the stated size are drawn, and
    their interval.
    """
    found = Estimate(
        "f",
        0.0,
        0.0,
        0.0,
        people,
        people,
        confidence=confidence,
        minimum_detectable_effect=0.0,
        is_share=True,
    )
    limit = Limit("m.f", at_most=tolerance, bound="proven")
    smallest = judge_limit(limit, MetricResult("m", (found,))).smallest_leak
    shares = np.random.default_rng(0).binomial(people, smallest, size=20_000) / people
    low = shares - norm.ppf((1 + confidence) / 2) * np.sqrt(smallest * (1 - smallest) / people)
    assert 0.93 < (low > tolerance).mean() < 0.97
    exact = judge_limit(Limit("m.f", at_most=0.0, bound="proven"), MetricResult("m", (found,)))
    assert exact.smallest_leak == 0, "a single case breaks it"


@pytest.mark.parametrize(
    ("limit", "missed", "more", "is_weak"),
    [
        (Limit("m.f", at_most=0.025, bound="proven"), WEAK_MULTIPLE * 0.025 - 0.026, {}, False),
        (Limit("m.f", at_most=0.025, bound="proven"), WEAK_MULTIPLE * 0.025 - 0.024, {}, True),
        # the whole interval is below a conservative limit
        (Limit("m.f", at_most=0.025), 0.9, {}, False),
        # a tolerance of 0 counts as 0.01
        (Limit("m.f", at_most=0.0, bound="proven"), 0.11, {}, False),
        (Limit("m.f", at_most=0.0, bound="proven"), 0.13, {}, True),
        (Limit("m.f", at_most=0.3, bound="proven"), 0.71, {}, True),  # no share is so large
        (Limit("m.f", at_most=0.3, bound="proven"), 0.69, {}, False),
        # 0.5 + 0.05 + 0.48
        (Limit("m.f", at_most=0.55, bound="proven"), 0.98, {"null": 0.5}, True),
        (Limit("m.f", at_most=0.55, bound="proven"), 0.9, {"null": 0.5}, False),
        (
            Limit("m.f", at_least=60, bound="proven"),
            10,
            {"null": 100, "direction": "lower_is_riskier"},
            False,
        ),
        (Limit("m.f", at_most=0.025, bound="proven"), 0.9, {"measures": "evaluation"}, False),
    ],
)
def test_a_limit_that_finds_only_large_leaks_gives_no_evidence(
    limit: Limit, missed: float, more: dict[str, Any], is_weak: bool
) -> None:
    null = more.get("null", 0.0)
    outcome = weak(limit, null - 0.001, null + 0.001, missed, **more)
    assert outcome.passed and outcome.blind == outcome.is_weak == is_weak
    assert ("no evidence" in outcome.reason) == is_weak


def test_an_interval_wider_than_its_range_gives_no_evidence() -> None:
    limit = Limit("m.f", at_most=0.25, bound="proven")
    assert weak(limit, -1.1, 1.1, 0.1).blind and not weak(limit, -0.9, 0.9, 0.1).blind


@pytest.mark.parametrize("make", ALL)
def test_text_page_dagster_and_airflow_use_the_same_words(make: Any) -> None:
    made = make()
    forms = {
        "text": " ".join(made.to_text(columns=10_000).split()),
        "page": ParsedPage(made.to_html()).words,
        "Dagster": " ".join(report_metadata(made)["report"].value.split()),
        "Airflow": " ".join("\n".join(verdict_lines(made.page())).split()),
    }
    for name, shown in forms.items():
        for answer in made.answers[:6]:
            assert answer.title in shown and answer.word in shown, name
        for outcome in made.policy_verdict.outcomes:
            metric, _, rest = outcome.limit.key.partition(".")
            # a line can break after the period
            key = f"{metric}. {rest}" if name == "page" else outcome.limit.key
            assert key in shown or len(outcome.limit.key) > 60, (name, key)
        for old in (
            "compared value",
            "judged",
            "not assessable",
            "cannot fail",
            "could not be evaluated",
        ):
            assert old not in shown.lower(), (name, old)


def test_grades_and_unknown_protections_are_shown_only_where_they_say_something() -> None:
    from tests.report.report_examples import failing, passing, undecided

    for made in (failing(), undecided()):
        first = made.to_html().partition('<details class="team">')[0]
        for shown in (made.to_text(), first, report_metadata(made)["report"].value):
            assert not re.search(r"Excellent|Very Good|\bGood\b|Moderate", shown)
    assert "unknown" not in passing().to_text().lower()


def test_each_limited_statistic_has_a_sentence_with_a_slot_for_its_number() -> None:
    for limit in default_policy().limits:
        spec = statistic_specs()[limit.statistic]
        if question_of(limit.statistic) in TITLES:
            assert spec.leak.count("{share}") == 1, limit.statistic
            n_numbers = spec.leak.count(PEOPLE) + spec.leak.count(PEOPLE_WHO_FIT)
            assert n_numbers <= 1, limit.statistic
    assert all(
        not spec.leak or "{share}" in spec.leak
        for metric in METRICS.values()
        for spec in metric.statistics
    )


def test_a_small_leak_states_the_value_at_which_the_table_fails() -> None:
    """The strictest limit on the statistic decides, not the widest one."""
    n_small = 0
    for made in reports():
        for answer in made.answers[:6]:
            found = re.search(r"fails only if more than ([\d.]+) % is proven", answer.statement)
            if answer.word != SMALL_LEAK:
                assert not found
                continue
            assert found is not None
            n_small += 1
            limits = [outcome.limit for outcome in answer.outcomes]
            values = [limit.value for limit in limits if f"{100 * limit.value:.4g}" == found[1]]
            strictest = {
                limit.statistic: min(x.value for x in limits if x.statistic == limit.statistic)
                for limit in limits
            }
            assert values and values[0] in strictest.values()
    assert n_small > 10


@pytest.mark.parametrize(
    ("shares", "rows", "word", "words"),
    [
        ((0.01, 0.05), 2000, "Yes, of 100 people or more", "20 people suffice"),
        # each person has three rows
        ((0.01, 0.05), 6000, "Yes, of 300 rows or more", "60 rows suffice"),
        (
            (0.0001, 0.0001),
            2000,
            "Yes, of 1 person or more",
            "With copies of 1 person, a limit fails",
        ),
        (
            (0.01, 0.93),
            2000,
            "Not all kinds",
            "Copies with slightly changed numbers were not always found at 20 % of the rows",
        ),
    ],
)
def test_planted_copies_are_counted_in_people_only_if_each_has_one_row(
    shares, rows: int, word: str, words: str
) -> None:
    planted = []
    for kind, share in zip(("exact", "jittered"), shares, strict=True):
        planted.append(
            Estimate(
                f"smallest_leak_{kind}", share, share / 2, share, 500, 500, measures="evaluation"
            )
        )
    results = {**ALL[2]().results, "controls": MetricResult("controls", tuple(planted))}
    sizes = {
        "train": {"rows": rows, "columns": 9, "subjects": 2000},
        "synthetic": {"rows": rows, "columns": 9},
    }
    made = ALL[2]()
    verdict = made.policy.judge(results)
    shown = replace(made, results=results, policy_verdict=verdict, tables=sizes).answers[6]
    assert (shown.word, words in shown.statement) == (word, True), shown.statement


def test_a_negative_share_is_no_number_of_people() -> None:
    found = Estimate(
        "excess",
        -0.2,
        -0.25,
        -0.15,
        3000,
        2000,
        null=0.0,
        direction="two_sided",
        question="linking",
        is_share=True,
    )
    limits = (Limit("linkability.excess", at_most=0.02, bound="proven"),)
    results = {"linkability": MetricResult("linkability", (found,))}
    policy = Policy(limits, name="example")
    made = Report(
        title="t",
        policy=policy,
        policy_verdict=policy.judge(results),
        results=results,
        tables=SIZES,
        seed=0,
    )
    statements = " ".join(answer.statement for answer in made.answers)
    assert "-20 %" in statements and "person" not in statements.replace(
        "two halves of the record", ""
    )
