"""Metrics that apply the statistics of other metrics to other tables.

``cumulative_disclosure`` applies them to the union of a new table and all earlier releases of the same people. Each
table may pass while their union does not: a few people leak in each, or ten noisy copies of the same people average to
an exact one.

``holdout_leakage`` tests whether the holdout was unseen, which every comparison of train with holdout requires. If the
generator has seen the holdout, S is equally near to both, and no comparison detects anything. The attack is therefore
repeated on people who must not have been used: the holdout takes the role of train, and the reference that of the
holdout.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from pydantic import Field

from privacy_assets.infra.settings import declared
from privacy_assets.metrics.base import Causes, Metric
from privacy_assets.metrics.dcr import Dcr
from privacy_assets.metrics.inputs import Budget, EvaluationInputs
from privacy_assets.metrics.membership_inference import MembershipInference
from privacy_assets.policy import Limit
from privacy_assets.stats.estimates import Estimate, MetricResult, StatisticSpec
from privacy_assets.tables.table import Table

ADVANTAGE_ANY = Limit(
    "membership_inference.advantage_any",
    at_most=0.025,
    bound="significant",
    source="significant at 99.5 % over all scores and thresholds jointly; tolerates trees with leaves of 50 rows in "
    "one table (exceeded in 2 of 400 splits of Adult and UK census)",
)


@declared
class RerunMetric(Metric):
    """Metric that applies statistics of ``dcr`` and ``membership_inference`` to other tables.

    Each statistic keeps its name, direction, interval, null 0 and NaN rules. Only the raw space is used.

    Args:
        n_permutations: Number of permutations of the membership labels.
        max_targets: Maximum number of attacked rows. None: all rows.
    """

    n_permutations: int = Field(default=999, ge=199, description="number of permutations of the membership labels")
    max_targets: Budget = Field(default=None, description="maximum number of attacked rows; default: all rows")

    in_leak_studies = False

    def rerun(self, inputs: EvaluationInputs) -> tuple[Estimate, ...]:
        """Compute the statistics for other tables.

        Args:
            inputs: Tables to attack.

        Returns:
            The estimates in the order of :attr:`statistics`.
        """
        n_permutations, max_targets = self.n_permutations, self.max_targets
        metrics = (
            Dcr(n_permutations=n_permutations, n_bootstraps=50, max_targets=max_targets),
            MembershipInference(n_permutations=n_permutations, max_targets=max_targets, classifier=False),
        )
        asked = replace(inputs, embedder=None)
        found = {estimate.name: estimate for metric in metrics for estimate in metric.measure(asked).estimates}
        return tuple(replace(found[spec.name], measures=spec.measures) for spec in self.statistics)


_NOTHING = "no earlier release"


@declared
class CumulativeDisclosure(RerunMetric):
    """Statistics of ``dcr`` and ``membership_inference`` for the new table stacked on all earlier releases.

    Only columns that all releases have are used. Settings: see :class:`RerunMetric`.

    Attributes:
        member_excess_any: As in ``dcr``.
        identical_excess: As in ``dcr``.
        advantage_any: As in ``membership_inference``.
        outlier_excess: As in ``membership_inference``.

    Notes:
        Without an earlier release all statistics are exactly 0, with a note, because the table itself is evaluated by
        the other metrics.
    """

    name = "cumulative_disclosure"
    summary = "What do the new table and all earlier releases disclose together?"
    required_inputs = frozenset({"train", "holdout", "synthetic"})
    optional_inputs = frozenset({"reference", "earlier_releases"})
    statistics = (
        StatisticSpec(
            "member_excess_any",
            "Excess share of members among the real rows closest to the union of all releases.",
            "two_sided",
        ),
        StatisticSpec(
            "identical_excess",
            "Share of identical matches between real people and the union explained only by membership.",
            "two_sided",
        ),
        StatisticSpec(
            "advantage_any",
            "True minus false positive rate of attacks on this and the earlier releases together, strongest evidence.",
            "two_sided",
        ),
        StatisticSpec(
            "outlier_excess",
            "Excess share of members among the 40 isolated people nearest to the union.",
            "two_sided",
        ),
    )
    default_limits = (replace(ADVANTAGE_ANY, statistic=f"{name}.advantage_any"),)
    # Both directions count: subjects who changed sides since an earlier release appear to be avoided.
    question = "membership"
    seen_in_copy = False  # the copy has no earlier releases
    causes = Causes("earlier releases")

    def measure(self, inputs: EvaluationInputs) -> MetricResult:
        """Compute the statistics. There are no tables."""
        if inputs.earlier_releases is None or len(inputs.earlier_releases) == 0:
            people = min(int(np.unique(inputs.subject_codes(role)).size) for role in ("train", "holdout"))
            counts = (len(inputs.synthetic), people)
            nothing = (spec.estimate(0.0, 0.0, 0.0, counts, note=_NOTHING) for spec in self.statistics)
            return self.result(inputs, nothing)
        shared = [name for name in inputs.schema.names if name in inputs.earlier_releases.columns]
        tables = {role: table.select(shared) for role, table in inputs.tables.items()}
        tables["synthetic"] = Table.stack([inputs.earlier_releases.select(shared), tables["synthetic"]])
        asked = replace(inputs, schema=tables["train"].schema, tables=tables, earlier_releases=None)
        return self.result(inputs, self.rerun(asked))


_ATTACKED = {"holdout": "train", "reference": "holdout"}  # role in the release -> role in the attack


@declared
class HoldoutLeakage(RerunMetric):
    """Statistics of ``dcr`` and ``membership_inference`` with the holdout attacked and the reference as control.

    Settings: see :class:`RerunMetric`.

    Attributes:
        member_excess_any: As in ``dcr``.
        identical_excess: As in ``dcr``.
        advantage_any: As in ``membership_inference``.

    Notes:
        The null holds even for a copy of train: the statistics do not depend on train. They detect nothing if the
        reference was seen as well. If a limit is broken the release is not assessable with this holdout; it may be with
        another.
    """

    name = "holdout_leakage"
    summary = "Was the holdout really unseen by the creator of the table?"
    required_inputs = frozenset({"holdout", "reference", "synthetic"})
    runs_by_default = False
    default_for_external = frozenset({"holdout", "reference"})
    statistics = (
        StatisticSpec(
            "member_excess_any",
            "Excess share of holdout people, against the reference, among the real rows closest to the synthetic rows.",
            "two_sided",
            measures="evaluation",
        ),
        StatisticSpec(
            "identical_excess",
            "Share of identical matches with holdout people explained only by their use in training.",
            "two_sided",
            measures="evaluation",
        ),
        StatisticSpec(
            "advantage_any",
            "True minus false positive rate of attacks that distinguish holdout from reference, strongest evidence.",
            "two_sided",
            measures="evaluation",
        ),
    )
    default_limits = (replace(ADVANTAGE_ANY, statistic=f"{name}.advantage_any"),)
    causes = Causes(undecided="seen holdout")
    seen_in_copy = False

    def measure(self, inputs: EvaluationInputs) -> MetricResult:
        """Compute the statistics. There are no tables."""
        tables = {here: inputs.tables[role] for role, here in _ATTACKED.items()}
        people = {here: inputs.subjects[role] for role, here in _ATTACKED.items() if role in inputs.subjects}
        asked = replace(inputs, tables={**tables, "synthetic": inputs.synthetic}, subjects=people)
        return self.result(inputs, self.rerun(asked))
