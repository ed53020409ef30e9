"""Statistics of other metrics on a holdout that must not have been used.

``holdout_leakage`` tests whether the holdout was unseen, which every comparison of train with
holdout requires. If the generator has seen the holdout, S is equally near to both, and no
comparison detects anything. The attack is therefore repeated on people who must not have been used:
the holdout takes the role of train, and the reference that of the holdout.
"""

from __future__ import annotations

from dataclasses import replace

from pydantic import Field

from privacy_assets.infra.settings import declared
from privacy_assets.metrics.base import Causes, Metric
from privacy_assets.metrics.dcr import Dcr
from privacy_assets.metrics.inputs import EvaluationInputs, MaxTargets
from privacy_assets.metrics.membership_inference import MembershipInference
from privacy_assets.metrics.release_tables import ReleaseTables
from privacy_assets.policy import Limit
from privacy_assets.stats.estimates import MetricResult, StatisticSpec

# role in the release -> role in the attack
_ATTACKED = {"holdout": "train", "reference": "holdout"}


@declared
class HoldoutLeakage(Metric):
    """Statistics of ``dcr`` and ``membership_inference`` with the holdout attacked and the
    reference as holdout.

    Each statistic keeps its name, direction, interval, null 0 and NaN rules. Only the raw space is
    used.

    Args:
        n_permutations: Number of permutations of the membership labels.
        max_targets: Maximum number of attacked rows. None: all rows.

    Attributes:
        member_excess_any: As in ``dcr``.
        identical_excess: As in ``dcr``.
        advantage_any: As in ``membership_inference``.

    Notes:
        The null holds even for a copy of train: the statistics do not depend on train. They detect
        nothing if the reference was seen as well. A limit that does not hold is
        undecided with this holdout; with another one it may hold.
    """

    name = "holdout_leakage"
    summary = "Was the holdout really unseen by the creator of the table?"
    required_inputs = frozenset({"holdout", "reference", "synthetic"})
    runs_by_default = False
    default_for_external = frozenset({"holdout", "reference"})
    statistics = (
        StatisticSpec(
            "member_excess_any",
            "Excess share of holdout people, against the reference, among the real rows closest"
            " to the synthetic rows.",
            "two_sided",
            measures="evaluation",
        ),
        StatisticSpec(
            "identical_excess",
            "Share of identical matches with holdout people explained only by their use in"
            " training.",
            "two_sided",
            measures="evaluation",
        ),
        StatisticSpec(
            "advantage_any",
            "True minus false positive rate of attacks that distinguish holdout from reference,"
            " strongest evidence.",
            "two_sided",
            measures="evaluation",
        ),
    )
    default_limits = (
        Limit(
            "holdout_leakage.advantage_any",
            at_most=0.025,
            bound="proven",
            source="significant at 99.5 % over all scores and thresholds jointly; tolerates trees"
            " with leaves of 50 "
            "rows in one table (exceeded in 2 of 400 splits of Adult and UK census)",
        ),
    )
    causes = Causes(undecided="seen holdout")
    seen_in_copy = False
    in_leak_studies = False

    n_permutations: int = Field(default=999, ge=199)
    max_targets: MaxTargets = None

    def measure(self, inputs: EvaluationInputs) -> MetricResult:
        """Compute the statistics. There are no tables."""
        tables = {}
        subjects = {}
        for role, attack_role in _ATTACKED.items():
            tables[attack_role] = inputs.tables[role]
            if role in inputs.release.subjects:
                subjects[attack_role] = inputs.release.subjects[role]
        tables["synthetic"] = inputs.synthetic
        release = ReleaseTables(inputs.schema, tables, subjects)
        # the fingerprints are in the result of this metric
        context = replace(inputs.context, embedder=None, fingerprints={})
        attacked = EvaluationInputs.of(release, context)
        n_permutations, max_targets = self.n_permutations, self.max_targets
        metrics = (
            Dcr(n_permutations=n_permutations, n_bootstraps=50, max_targets=max_targets),
            MembershipInference(
                n_permutations=n_permutations, max_targets=max_targets, classifier=False
            ),
        )
        by_name = {}
        for metric in metrics:
            for estimate in metric.measure(attacked).estimates:
                by_name[estimate.name] = estimate
        estimates = [
            replace(by_name[spec.name], measures=spec.measures) for spec in self.statistics
        ]
        return self.result(inputs, estimates)
