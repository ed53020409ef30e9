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
from privacy_assets.generators.protections import DP, OVERFITTING, protection_states
from privacy_assets.infra.settings import DERIVED, declared
from privacy_assets.metrics.attribute_inference import AttributeInference
from privacy_assets.metrics.base import (
    Causes,
    GradePlot,
    LevelPlot,
    Metric,
    Plot,
    ProtectionEvidence,
    TableRows,
    by_name,
    score_row,
)
from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.metrics.membership_inference import MembershipInference
from privacy_assets.policy import Limit
from privacy_assets.stats.estimates import Estimate, MetricResult, StatisticSpec
from privacy_assets.stats.subjects import MIN_SUBJECTS_PER_SIDE
from privacy_assets.studies.data_privacy import attribute as attributes
from privacy_assets.studies.data_privacy import membership as memberships
from privacy_assets.studies.data_privacy.attribute import N_NEIGHBORS, N_QUASI_IDENTIFIERS
from privacy_assets.studies.data_privacy.grades import data_privacy_score, grade

Tables = dict[str, TableRows]
_STATISTICS = (
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
    StatisticSpec(
        "membership_protection_score",
        "Gretel's membership inference protection, mean over attacks: 0 (members are known)"
        " to 100 (guessing).",
        "lower_is_riskier",
        100.0,
        question="membership",
    ),
    StatisticSpec(
        "attribute_protection_score",
        "Gretel's attribute inference protection against the strongest attack: 0 (members"
        " are known) to 100.",
        "lower_is_riskier",
        100.0,
        question="inference",
    ),
)
_SPECS = by_name(_STATISTICS)
_ATTACKED = ("score", "membership_protection_score", "attribute_protection_score")
_MEANING = {
    "score": "After Gretel, from 0 to 100: the mean of membership inference protection and"
    " attribute inference protection. The grade is at most that of the lower one. The score"
    " affects the verdict only if the policy limits it.",
    "configuration": "The score, from 0 to 100, is the share of Gretel’s three kinds of protection"
    " that are on: privacy filters (at least one; alpha_m does not count, because it discloses"
    " members), over-fitting protection and differential privacy. It describes the generator and"
    " proves nothing about the table.",
}


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
    protections = protection_states(generator)
    filters = []
    for name in FILTERS:
        if name != AlphaFilter.name:
            filters.append(protections[name])
    filter_state = "on" if "on" in filters else filters[0]
    states = [filter_state, protections[OVERFITTING], protections[DP]]
    if "unknown" in states:
        return math.nan
    return 100 * states.count("on") / len(states)


@declared
class DataPrivacy(Metric):
    """Gretel's Data Privacy Score with its two parts, and the score of the Privacy Configuration.

    Gretel's attacks run on the rows that ``membership_inference`` and
    ``attribute_inference`` attack with their settings in force. If limits of the policy are on
    ``configuration`` only, the attacks do not run.

    Args:
        excellent: When one of the membership attacks is graded Excellent, see
            :func:`.attack_grades`. ``not_significant``: precision and accuracy are not
            significantly above 0.5 at 95 %. ``below_half``: both are below 0.5, as the paper
            states. The points do not depend on it.
        n_quasi_identifiers: Number of known columns of Gretel's attribute attack (X). Attacks with
            half and with all but one of the columns run as well.
        n_neighbors: Number of neighbors of Gretel's attribute attack (K). Attacks with the nearest
            one run as well.
        membership: Metric ``membership_inference`` with its settings. Derived from the policy.
        attribute: Metric ``attribute_inference`` with its settings. Derived from the policy.
        attacks: Whether to attack. Derived from the policy.

    Attributes:
        score: Mean of ``membership_protection_score`` and ``attribute_protection_score``. Its grade
            is at most that of the lower one. Not measurable unless both are.
        configuration: Score of the Privacy Configuration, see :func:`configuration_score`. It
            describes the generator and proves nothing about the table. Not measurable if a
            protection is not reported, as for external tables.
        membership_protection_score: Mean protection points of simulated membership attacks, 0 to
            100.
        attribute_protection_score: Entropy-weighted mean of protection points over columns, for the
            strongest attribute attack. Random losses count and random gains do not, so the mean for
            non-leaking tables is below 100.

    Notes:
        Gretel, section "Introduction": "Together, Gretel's new membership inference protection and
        attribute inference protection scores result in our new Data Privacy Score". The paper does
        not state how; the mean is our reading.

        The interval of ``score`` has the mean ends of both parts' intervals. A mean varies at most
        by the mean of both standard deviations, so the interval is conservative for any dependence
        of the parts. So is the minimum detectable effect. Intervals of the parts are bootstraps by
        subject.

        Tables: "graded_scores" (for the report), "levels" (grades of the membership attacks),
        "columns" (points of the strongest attribute attack, Gretel's own points, weight) and
        "attacks" (each attribute attack, ours and Gretel's own score). Gretel's own points are 100
        minus the risk
        in percent, at least 0, see :meth:`.Outcome.gretel_risk`. They count successes on train only
        (``n_quasi_identifiers`` known columns, ``n_neighbors`` neighbors), and are low for any
        accurate table.
    """

    excellent: Literal["not_significant", "below_half"] = "not_significant"
    n_quasi_identifiers: int = Field(default=N_QUASI_IDENTIFIERS, ge=1)
    n_neighbors: int = Field(default=N_NEIGHBORS, ge=1)
    membership: MembershipInference = Field(
        default_factory=MembershipInference, json_schema_extra=DERIVED
    )
    attribute: AttributeInference = Field(
        default_factory=AttributeInference, json_schema_extra=DERIVED
    )
    attacks: bool = Field(default=True, json_schema_extra=DERIVED)

    name: ClassVar[str] = "data_privacy"
    uses_settings_of: ClassVar[tuple[str, ...]] = ("membership_inference", "attribute_inference")
    summary: ClassVar[str] = (
        "What are Gretel's Data Privacy Score and the score of the Privacy Configuration?"
    )
    required_inputs: ClassVar[frozenset[str]] = frozenset({"train", "holdout", "synthetic"})
    optional_inputs: ClassVar[frozenset[str]] = frozenset({"reference"})
    runs_by_default: ClassVar[bool] = False
    in_leak_studies: ClassVar[bool] = False
    statistics: ClassVar[tuple[StatisticSpec, ...]] = _STATISTICS
    plots: ClassVar[tuple[Plot, ...]] = (
        LevelPlot(
            table="levels",
            caption="Protection level reached by each simulated membership attack, after Gretel."
            " Excellent: no "
            "better than guessing, as the setting excellent defines it. Poor: precision and"
            " accuracy of at least 0.8. "
            "Unavailable: fewer than 50 predicted positives, too few for a precision.",
        ),
        GradePlot(
            table="columns",
            caption="Attribute inference protection by column: 100 if members are guessed no better"
            " than other people, "
            "0 if they are always guessed. The color changes at 20, 40, 60 and 80. Columns of"
            " low weight vary by "
            "chance.",
            label="column",
            points="points",
        ),
        GradePlot(
            table="columns",
            caption="Gretel's own score by column: 100 minus the product of the success rate"
            " on train"
            " in percent and "
            "the column's entropy relative to the mean. It is low for any accurate table, with"
            " or without a leak.",
            label="column",
            points="gretel",
        ),
    )
    causes: ClassVar[Causes] = Causes(by_statistic={"membership_protection_score": "over-fitting"})
    protections: ClassVar[tuple[ProtectionEvidence, ...]] = (
        ProtectionEvidence("over-fitting", ("membership_protection_score",)),
        ProtectionEvidence("differential privacy", ("attribute_protection_score",), primary=False),
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
        """Compute the statistics, and the tables "graded_scores", "levels", "columns" and
        "attacks".
        """
        configuration = self._configuration(inputs)
        if not self.attacks:
            missing = _missing(inputs, "no limit is on it")
            return self.result(
                inputs, _ordered(missing, configuration), graded_scores=_scores([configuration])
            )
        n_smallest = min(_n_subjects(inputs, "train"), _n_subjects(inputs, "holdout"))
        if n_smallest < MIN_SUBJECTS_PER_SIDE or len(inputs.synthetic) == 0:
            reason = (
                f"at least {MIN_SUBJECTS_PER_SIDE} people are required in train and in holdout,"
                " and a synthetic row"
            )
            missing = []
            for name in _ATTACKED:
                missing.append(_SPECS[name].not_measurable(reason, _counts(inputs)))
            return self.result(
                inputs, _ordered(missing, configuration), graded_scores=_scores([configuration])
            )
        membership, tables = self._membership(inputs)
        attribute, tables_of_attributes = self._attribute(inputs)
        score = _mean_estimate(_SPECS["score"], membership, attribute)
        estimates = _ordered([score, membership, attribute], configuration)
        tables = {"graded_scores": _scores(estimates), **tables, **tables_of_attributes}
        return self.result(inputs, estimates, **tables)

    def _membership(self, inputs: EvaluationInputs) -> tuple[Estimate, Tables]:
        """Return ``membership_protection_score`` and the table "levels"."""
        spec = _SPECS["membership_protection_score"]
        population = memberships.attacked_population(inputs, self.membership.max_targets)
        if not population.measurable:
            reason = (
                f"at least {MIN_SUBJECTS_PER_SIDE} people are required of train and of holdout"
                " among the attacked ones"
            )
            return spec.not_measurable(reason, population.counts), {}
        n_permutations = None
        if self.excellent == "not_significant":
            n_permutations = self.membership.n_permutations
        estimate, levels = memberships.protect(
            spec,
            population,
            n_permutations,
            inputs.rng("membership_inference.grid"),
            inputs.rng("membership_inference.grades"),
        )
        return estimate, {"levels": levels}

    def _attribute(self, inputs: EvaluationInputs) -> tuple[Estimate, Tables]:
        """Return ``attribute_protection_score`` and the tables "columns" and "attacks"."""
        outcome = attributes.attack(
            inputs, self.attribute.max_targets, self.n_quasi_identifiers, self.n_neighbors
        )
        estimate, points, attack_rows = attributes.protect(
            _SPECS["attribute_protection_score"],
            outcome,
            self.attribute.n_permutations,
            inputs.rng("attribute_inference score"),
        )
        i_default = attributes.default_attack(outcome, self.n_quasi_identifiers, self.n_neighbors)
        columns = attributes.column_table(inputs.schema.names, outcome, points, i_default)
        return estimate, {"columns": columns, "attacks": attack_rows}

    def _configuration(self, inputs: EvaluationInputs) -> Estimate:
        spec = _SPECS["configuration"]
        score = configuration_score(inputs.context.generator)
        counts = _counts(inputs)
        if math.isnan(score):
            return spec.missing("the generator does not report all of its protections", counts)
        return spec.estimate(score, score, score, counts)


def _ordered(attacked: Sequence[Estimate], configuration: Estimate) -> list[Estimate]:
    """Return all estimates in the order of the statistics."""
    score, *parts = attacked
    return [score, configuration, *parts]


def _missing(inputs: EvaluationInputs, reason: str) -> list[Estimate]:
    """Return estimates of all statistics of attacks, which did not run."""
    counts = _counts(inputs)
    return [_SPECS[name].missing(reason, counts) for name in _ATTACKED]


def _scores(estimates: Sequence[Estimate]) -> TableRows:
    """Return the measured scores with their grades, as the report shows them."""
    values = {}
    for estimate in estimates:
        if estimate.measurable:
            values[estimate.name] = estimate.value
    membership = values.get("membership_protection_score", math.nan)
    attribute = values.get("attribute_protection_score", math.nan)
    rows = []
    if "score" in values:
        score, level = data_privacy_score(membership, attribute)
        rows.append(score_row("Data Privacy Score", score, level, _MEANING["score"]))
    for part, value in (("membership", membership), ("attribute", attribute)):
        if not math.isnan(value):
            rows.append(score_row(f"{part} inference protection", value, grade(value)))
    if "configuration" in values:
        score = values["configuration"]
        meaning = _MEANING["configuration"]
        rows.append(score_row("Privacy Configuration", score, grade(score), meaning))
    return rows


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


def _n_subjects(inputs: EvaluationInputs, role: str) -> int:
    return int(np.unique(inputs.subject_codes(role)).size)


def _counts(inputs: EvaluationInputs) -> tuple[int, int]:
    return len(inputs.synthetic), _n_subjects(inputs, "train")
