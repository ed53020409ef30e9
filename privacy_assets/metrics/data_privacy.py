"""Gretel's Data Privacy Score with its parts, and the score of the Privacy Configuration, as
statistics to limit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, cast

import numpy as np
from pydantic import Field

from privacy_assets.generators.filters import FILTERS, AlphaFilter
from privacy_assets.infra.settings import DERIVED, declared
from privacy_assets.metrics.attribute_inference import AttributeInference
from privacy_assets.metrics.base import Metric, ScorePart
from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.metrics.membership_inference import MembershipInference
from privacy_assets.metrics.membership_inference.gretel import data_privacy_score
from privacy_assets.policy import Limit
from privacy_assets.stats.estimates import Estimate, MetricResult, StatisticSpec, decimal

State = Literal["on", "off", "unknown"]
OVERFITTING, DP = "over-fitting", "differential privacy"


def protection_states(generator: Mapping[str, Any] | None) -> dict[str, tuple[State, str]]:
    """Return state and settings of each protection of a table: every filter, "over-fitting",
    "differential privacy".

    Args:
        generator: Description of the generator. "filter" is the filter description of a snapshot
            (None: no filter), "overfitting" describes the generator's protection ("": none), and
            "privacy" is its budget. Missing keys give "unknown", as for external tables.
    """
    stated = generator or {}
    states = {name: _filter(name, stated) for name in FILTERS}
    return states | {OVERFITTING: _overfitting(stated.get("overfitting")), DP: _budget(stated)}


def configuration_score(generator: Mapping[str, Any] | None) -> float:
    """Return the score of the Privacy Configuration: the share of kinds of protection that are on,
    0 to 100.

    Gretel, section "Introduction": "the existing Privacy Configuration Score which is only model
    and mechanism based. This existing metric consists of our Privacy Filters, Overfitting
    Protection and Differential Privacy." The paper gives no formula. The three kinds have equal
    weight; privacy filters are on if one of them is. ``alpha_m`` does not count, because it
    discloses members.

    The score describes the generator and does not show whether the table leaks.

    Args:
        generator: See :func:`protection_states`.

    Returns:
        The score. NaN: the state of a kind is unknown.
    """
    states = {name: state for name, (state, _) in protection_states(generator).items()}
    filters = [states[name] for name in FILTERS if name != AlphaFilter.name]
    kinds = ["on" if "on" in filters else filters[0], states[OVERFITTING], states[DP]]
    return math.nan if "unknown" in kinds else 100 * kinds.count("on") / len(kinds)


def _filter(name: str, generator: Mapping[str, Any]) -> tuple[State, str]:
    stated = generator.get("filter", {})
    if stated is None:
        return "off", ""
    filters = stated.get("filters")
    if not isinstance(filters, Mapping):
        return "unknown", ""
    if name not in filters:
        return "off", ""
    settings = [
        f"{key} {value}"
        for key, value in filters[name].items()
        if value is not None and key != "attempts"
    ]
    dropped, drawn = (stated.get("dropped_by") or {}).get(name), stated.get("drawn")
    counts = [f"{dropped:,} of {drawn:,} rows removed"] if dropped is not None and drawn else []
    return "on", ", ".join([*settings, *counts])


def _overfitting(protection: str | None) -> tuple[State, str]:
    if protection is None:
        return "unknown", ""
    return ("on", protection) if protection else ("off", "")


def _budget(generator: Mapping[str, Any]) -> tuple[State, str]:
    budget = generator.get("privacy")
    if not isinstance(budget, Mapping) or not budget.get("known", True):
        return "unknown", ""
    if budget.get("epsilon") is None:
        return "off", ""
    words = [f"epsilon {decimal(budget['epsilon'])}, delta {decimal(budget.get('delta') or 0)}"]
    words += [f"for {budget['covers']}"] if budget.get("covers") else []
    words += [f"by {budget['accountant']}"] if budget.get("accountant") else []
    outside_guarantee = budget.get("outside_guarantee")
    return "on", ", ".join(words) + (
        f"; not covered: {', '.join(outside_guarantee)}" if outside_guarantee else ""
    )


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
        configuration: Score of the Privacy Configuration, see :func:`configuration_score`. It
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
        default_factory=MembershipInference,
        json_schema_extra=DERIVED,
        description="settings of membership_inference",
    )
    attribute: AttributeInference = Field(
        default_factory=AttributeInference,
        json_schema_extra=DERIVED,
        description="settings of attribute_inference",
    )
    attacks: bool = Field(
        default=True, json_schema_extra=DERIVED, description="whether to compute score"
    )

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
        """Use the settings of both attacks, and skip them if only ``configuration`` is limited."""
        limited = {
            limit.statistic for limit in limits if limit.statistic.startswith(f"{self.name}.")
        }
        membership, attribute = (
            metrics.get("membership_inference"),
            metrics.get("attribute_inference"),
        )
        return replace(
            self,
            membership=membership
            if isinstance(membership, MembershipInference)
            else self.membership,
            attribute=attribute if isinstance(attribute, AttributeInference) else self.attribute,
            attacks=limited != {f"{self.name}.configuration"},
        )

    def on_smaller_budget(self) -> Metric:
        """Return the metric with smaller budgets of both attacks, see
        :meth:`Metric.on_smaller_budget`.
        """
        return replace(
            self,
            membership=cast("MembershipInference", self.membership.on_smaller_budget()),
            attribute=cast("AttributeInference", self.attribute.on_smaller_budget()),
        )

    def measure(self, inputs: EvaluationInputs) -> MetricResult:
        """Compute the statistics and the table "parts"."""
        score, parts = self._score(inputs)
        return self.result(inputs, (score, self._configuration(inputs)), parts=parts)

    def _score(self, inputs: EvaluationInputs) -> tuple[Estimate, list[dict[str, Any]]]:
        spec = self.statistic("score")
        if not self.attacks:
            return spec.missing("no limit is on it", _counts(inputs)), []
        attacks: dict[ScorePart, Metric] = {
            "membership": self.membership,
            "attribute": self.attribute,
        }
        found = {
            part: metric.measure(inputs).estimate("protection_score")
            for part, metric in attacks.items()
        }
        table = [
            {"part": part, "score": one.value} for part, one in found.items() if one.measurable
        ]
        parts = list(found.values())
        counts = (min(part.n for part in parts), min(part.subjects for part in parts))
        score, _ = data_privacy_score(*(part.value for part in parts))
        if math.isnan(score):
            return spec.not_measurable(
                next(part.note for part in parts if not part.measurable), counts
            ), table
        low, high, mde = np.mean(
            [(part.low, part.high, part.minimum_detectable_effect) for part in parts], axis=0
        )
        return spec.estimate(score, low, high, counts, minimum_detectable_effect=mde), table

    def _configuration(self, inputs: EvaluationInputs) -> Estimate:
        spec, score = self.statistic("configuration"), configuration_score(inputs.generator)
        if math.isnan(score):
            return spec.missing(
                "the generator does not report all of its protections", _counts(inputs)
            )
        return spec.estimate(score, score, score, _counts(inputs))


def _counts(inputs: EvaluationInputs) -> tuple[int, int]:
    return len(inputs.synthetic), int(np.unique(inputs.subject_codes("train")).size)
