"""The Data Privacy Score and the Privacy Configuration as statistics, against the metrics and
definitions they use.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from privacy_assets import evaluate
from privacy_assets.errors import ConfigError
from privacy_assets.metrics.attribute_inference import AttributeInference
from privacy_assets.metrics.membership_inference import MembershipInference
from privacy_assets.metrics.policies import choose_metrics
from privacy_assets.policy import Limit, Policy, judge_limit
from privacy_assets.report.report import Report
from privacy_assets.stats import inference
from privacy_assets.studies.data_privacy.metric import DataPrivacy, configuration_score
from tests.metrics.given_tables import given
from tests.metrics.surveys import parts

MEMBERSHIP, ATTRIBUTE = (
    MembershipInference(n_permutations=199),
    AttributeInference(n_permutations=199),
)
LEAVES = {"min_samples_leaf": 50}
QUICK = DataPrivacy(membership=MEMBERSHIP, attribute=ATTRIBUTE)
BUDGET = {"epsilon": 1.0, "delta": 0.0}
NO_BUDGET = {"epsilon": None, "known": True}
ONE_FILTER = {"filters": {"outliers": {"quantile": 0.9}}}
ALPHA = {"filters": {"alpha_m": {"threshold": 1.0}}}
BOTH_FILTERS = {"filters": ALPHA["filters"] | ONE_FILTER["filters"]}
LIMIT = Limit("data_privacy.score", at_least=60.0)


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bootstraps of both metrics take most of the time, and are not the subject."""
    monkeypatch.setattr(inference, "_GAP_TRIALS", 1)
    for module in ("membership", "attribute"):
        monkeypatch.setattr(f"privacy_assets.studies.data_privacy.{module}.N_BOOTSTRAPS", 40)


@pytest.fixture(scope="module")
def tables() -> list[pd.DataFrame]:
    return parts((400, 300, 400), 5)


@pytest.mark.parametrize(
    ("generator", "score"),
    [
        ({"filter": ONE_FILTER, "overfitting": LEAVES, "privacy": BUDGET}, 100),
        ({"filter": None, "overfitting": LEAVES, "privacy": BUDGET}, 200 / 3),
        ({"filter": ONE_FILTER, "overfitting": {}, "privacy": NO_BUDGET}, 100 / 3),
        ({"filter": None, "overfitting": {}, "privacy": NO_BUDGET}, 0),
        ({"filter": {"filters": {}}, "overfitting": {}, "privacy": NO_BUDGET}, 0),
        # it discloses members
        ({"filter": ALPHA, "overfitting": LEAVES, "privacy": BUDGET}, 200 / 3),
        (
            {"filter": BOTH_FILTERS, "overfitting": {}, "privacy": BUDGET},
            200 / 3,
        ),
        ({"filter": ONE_FILTER, "overfitting": None, "privacy": BUDGET}, math.nan),
        (
            {"filter": ONE_FILTER, "overfitting": LEAVES, "privacy": {"known": False}},
            math.nan,
        ),
        ({"overfitting": LEAVES, "privacy": BUDGET}, math.nan),
        (None, math.nan),
    ],
)
def test_the_configuration_is_the_share_of_protections_that_are_on(generator, score) -> None:
    assert configuration_score(generator) == pytest.approx(score, nan_ok=True)


@pytest.mark.slow
def test_the_score_is_the_mean_of_both_metrics_and_a_copy_is_the_worst(
    tables: list[pd.DataFrame],
) -> None:
    train, holdout, fresh = tables
    values = {}
    for release, synthetic in {"fresh": fresh, "copy": train}.items():
        inputs = given(train, holdout, synthetic)
        result = QUICK.measure(inputs)
        names = ("membership", "attribute")
        apart = [result.estimate(f"{name}_protection_score") for name in names]
        score = result.estimate("score")
        ends = np.mean([(one.value, one.low, one.high) for one in apart], axis=0)
        assert (score.value, score.low, score.high) == pytest.approx(tuple(ends))
        assert score.subjects == min(one.subjects for one in apart)
        shown = {row["name"]: row["score"] for row in result.tables["graded_scores"]}
        assert shown == {
            "Data Privacy Score": score.value,
            "membership inference protection": apart[0].value,
            "attribute inference protection": apart[1].value,
        }
        values[release] = score.value
        assert judge_limit(LIMIT, result).status == {"fresh": "pass", "copy": "fail"}[release]
    assert values["copy"] < 10 and values["fresh"] > 85


@pytest.mark.slow
def test_a_limit_on_the_score_rejects_a_copy_and_accepts_fresh_rows(
    tables: list[pd.DataFrame],
) -> None:
    train, holdout, fresh = tables
    policy = {
        "name": "gretel",
        "limits": [{"statistic": "data_privacy.score", "at_least": 60}],
        "metrics": {
            name: {"n_permutations": 199}
            for name in ("membership_inference", "attribute_inference")
        },
        "embedder": False,
    }
    for synthetic, verdict in ((train, "fail"), (fresh, "pass")):
        report = evaluate(
            train, holdout, synthetic, policy=policy, subject={"each_row": True}, device="cpu"
        )
        assert report.verdict == verdict
        outcome = report.policy_verdict.outcomes[0]
        assert (
            outcome.can_fail and outcome.estimate.value == report.scores["Data Privacy Score"].value
        )
        text = " ".join(report.to_text().split())
        score, grade, _ = report.page().scores["Data Privacy Score"]
        shown = f"{score} {grade}".strip()
        assert f"Data Privacy Score {shown} membership inference protection" in text
        assert "Unavailable" not in text and "Privacy configuration" not in report.to_html()
        again = Report.from_json(report.to_json())
        assert again.scores == report.scores and again.verdict == verdict


def test_both_attacks_have_the_settings_of_the_policy() -> None:
    own = {
        "membership_inference": {"n_permutations": 299},
        "attribute_inference": {"max_targets": 300},
        "data_privacy": {"n_quasi_identifiers": 2},
    }
    policy = {
        "name": "own",
        "limits": [{"statistic": "data_privacy.score", "at_least": 60}],
        "metrics": own,
    }
    chosen, _ = choose_metrics(None, policy)
    found = chosen["data_privacy"]
    assert isinstance(found, DataPrivacy)
    assert (found.membership.n_permutations, found.attribute.max_targets) == (299, 300)
    assert found.settings()["attribute"]["max_targets"] == 300, "attested"
    assert found.n_quasi_identifiers == 2
    small = found.on_smaller_budget()
    assert isinstance(small, DataPrivacy) and (
        small.membership.n_permutations,
        small.attribute.n_permutations,
    ) == (
        199,
        199,
    )
    for setting in ("membership", "attribute", "attacks"):
        with pytest.raises(ConfigError, match=f"no setting '{setting}'"):
            choose_metrics(None, {**policy, "metrics": {"data_privacy": {setting: {}}}})


def test_only_a_limit_on_the_score_runs_the_attacks() -> None:
    limit = Limit("data_privacy.configuration", at_least=60.0)
    other = Limit("dcr.member_excess", at_most=0.1)
    for limits, attacks in (
        ((), True),
        ((other,), True),
        ((LIMIT, limit), True),
        ((other, limit), False),
    ):
        found = QUICK.for_limits(limits, {})
        assert isinstance(found, DataPrivacy) and found.attacks is attacks


def test_the_configuration_is_limited_where_the_generator_reports_it(
    tables: list[pd.DataFrame], monkeypatch
) -> None:
    limit = Limit("data_privacy.configuration", at_least=60.0)
    for name in ("_membership", "_attribute"):
        monkeypatch.delattr(DataPrivacy, name)  # no attack runs
    metric = QUICK.for_limits([limit], {})
    for generator, status in (
        ({"filter": ONE_FILTER, "overfitting": LEAVES, "privacy": NO_BUDGET}, "pass"),
        ({"filter": None, "overfitting": LEAVES, "privacy": NO_BUDGET}, "fail"),
        (None, "undecided"),
    ):
        result = metric.measure(given(*tables, generator=generator))
        outcome = judge_limit(limit, result)
        assert outcome.status == status and (
            status != "undecided" or "does not report" in outcome.reason
        )
        found = result.estimate("configuration")
        assert found.value == pytest.approx(configuration_score(generator), nan_ok=True)
        assert math.isnan(result.estimate("score").value) and len(
            result.tables["graded_scores"]
        ) == (generator is not None)


def test_too_few_people_pass_no_limit(tables: list[pd.DataFrame]) -> None:
    train, holdout, fresh = tables
    few = [(train[:n], holdout[:n], fresh[:n]) for n in (1, 10)]
    for some in (*few, (train, holdout[:10], fresh), (train, holdout, fresh[:0])):
        result = QUICK.measure(given(*some))
        assert not any(one.measurable for one in result.estimates) and all(
            one.note for one in result.estimates
        )
        assert Policy((LIMIT,)).judge({"data_privacy": result}).status == "undecided"
