"""Gretel's Data Privacy Score with its parts, and the score of the Privacy Configuration, as
statistics to limit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, cast

import numpy as np
from pydantic import Field

from privacy_assets.generators.protections import configuration_score
from privacy_assets.infra.settings import DERIVED, declared
from privacy_assets.metrics.attribute_inference import AttributeInference
from privacy_assets.metrics.base import Metric, ScorePart
from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.metrics.membership_inference import MembershipInference
from privacy_assets.metrics.membership_inference.gretel import data_privacy_score
from privacy_assets.policy import Limit
from privacy_assets.stats.estimates import Estimate, MetricResult, StatisticSpec


@declared
class DataPrivacy(Metric):
    """Gretel's Data Privacy Score with its two parts, and the score of the Privacy Configuration.

    The report shows these numbers whether or not this metric runs. It runs if a policy limits one
    of them, and attacks the table again with the settings of ``membership_inference`` and
    ``attribute_inference`` in force. If limits of the policy are on ``configuration`` only, the
    attacks do not run.

    Args:
        membership: Metric ``membership_inference`` with its settings. Derived from the policy.
        attribute: Metric ``attribute_inference`` with its settings. Derived from the policy.
        attacks: Whether to compute ``score``. Derived from the policy.

    Attributes:
        score: Mean of ``membership_inference.protection_score`` and
            ``attribute_inference.protection_score``. Its grade is at most that of the lower one.
            Not measurable unless both are.
        configuration: Score of the Privacy Configuration, see :func:`.configuration_score`. It
            describes the generator and proves nothing about the table. Not measurable if a
            protection is not reported, as for external tables.

    Notes:
        Gretel, section "Introduction": "Together, Gretel's new membership inference protection and
        attribute inference protection scores result in our new Data Privacy Score". The paper does
        not state how; the mean is our reading.

        The interval of ``score`` has the mean ends of both parts' intervals. A mean varies at most
        by the mean of both standard deviations, so the interval is conservative for any dependence
        of the parts. So is the minimum detectable effect.

        Table: "parts", the measured parts of ``score``, from which the report shows them.
    """

    membership: MembershipInference = Field(
        default_factory=MembershipInference, json_schema_extra=DERIVED
    )
    attribute: AttributeInference = Field(
        default_factory=AttributeInference, json_schema_extra=DERIVED
    )
    attacks: bool = Field(default=True, json_schema_extra=DERIVED)

    name: ClassVar[str] = "data_privacy"
    summary: ClassVar[str] = (
        "What are Gretel's Data Privacy Score and the score of the Privacy Configuration?"
    )
    required_inputs: ClassVar[frozenset[str]] = frozenset({"train", "holdout", "synthetic"})
    optional_inputs: ClassVar[frozenset[str]] = frozenset({"reference"})
    runs_by_default: ClassVar[bool] = False
    in_leak_studies: ClassVar[bool] = False
    statistics: ClassVar[tuple[StatisticSpec, ...]] = (
        StatisticSpec(
            "score",
            "Gretel's Data Privacy Score, the mean of both protection scores: 0 (members are"
            " known) to 100.",
            "lower_is_riskier",
            100.0,
        ),
        StatisticSpec(
            "configuration",
            "Score of Gretel's Privacy Configuration: share of the kinds of protection that are"
            " on, 0 to 100; it "
            "describes the generator.",
            "lower_is_riskier",
            100.0,
            seen_in_copy=False,
        ),
    )

    def for_limits(self, limits: Sequence[Limit], metrics: Mapping[str, Metric]) -> Metric:
        """Use the settings of both attacks, and skip them if only ``configuration`` is limited.

        Args:
            limits: Limits of the policy.
            metrics: Metrics in force by name.
        """
        prefix = f"{self.name}."
        limited = set()
        for limit in limits:
            if limit.statistic.startswith(prefix):
                limited.add(limit.statistic)
        membership = metrics.get("membership_inference")
        if not isinstance(membership, MembershipInference):
            membership = self.membership
        attribute = metrics.get("attribute_inference")
        if not isinstance(attribute, AttributeInference):
            attribute = self.attribute
        return replace(
            self,
            membership=membership,
            attribute=attribute,
            attacks=limited != {f"{self.name}.configuration"},
        )

    def on_smaller_budget(self) -> Metric:
        """Return the metric with fewer targets of both attacks, see
        :meth:`Metric.on_smaller_budget`.
        """
        membership = cast("MembershipInference", self.membership.on_smaller_budget())
        attribute = cast("AttributeInference", self.attribute.on_smaller_budget())
        return replace(self, membership=membership, attribute=attribute)

    def measure(self, inputs: EvaluationInputs) -> MetricResult:
        """Compute the statistics and the table "parts"."""
        score, parts = self._score(inputs)
        return self.result(inputs, (score, self._configuration(inputs)), parts=parts)

    def _score(self, inputs: EvaluationInputs) -> tuple[Estimate, list[dict[str, Any]]]:
        """Return ``score`` and the table "parts"."""
        spec = self.statistic("score")
        if not self.attacks:
            return spec.missing("no limit is on it", _counts(inputs)), []
        membership = self.membership.measure(inputs).estimate("protection_score")
        attribute = self.attribute.measure(inputs).estimate("protection_score")
        estimates: dict[ScorePart, Estimate] = {"membership": membership, "attribute": attribute}
        records = []
        for part, estimate in estimates.items():
            if estimate.measurable:
                records.append({"part": part, "score": estimate.value})
        return _mean_estimate(spec, membership, attribute), records

    def _configuration(self, inputs: EvaluationInputs) -> Estimate:
        spec = self.statistic("configuration")
        score = configuration_score(inputs.context.generator)
        counts = _counts(inputs)
        if math.isnan(score):
            return spec.missing("the generator does not report all of its protections", counts)
        return spec.estimate(score, score, score, counts)


def _mean_estimate(spec: StatisticSpec, membership: Estimate, attribute: Estimate) -> Estimate:
    """Return the estimate of the mean of both protection scores."""
    n_rows = min(membership.n, attribute.n)
    n_subjects = min(membership.subjects, attribute.subjects)
    counts = (n_rows, n_subjects)
    score, _ = data_privacy_score(membership.value, attribute.value)
    if math.isnan(score):
        failed = attribute if membership.measurable else membership
        return spec.not_measurable(failed.note, counts)
    low = (membership.low + attribute.low) / 2
    high = (membership.high + attribute.high) / 2
    detectable_effect = (
        membership.minimum_detectable_effect + attribute.minimum_detectable_effect
    ) / 2
    return spec.estimate(score, low, high, counts, minimum_detectable_effect=detectable_effect)


def _counts(inputs: EvaluationInputs) -> tuple[int, int]:
    return len(inputs.synthetic), int(np.unique(inputs.subject_codes("train")).size)
