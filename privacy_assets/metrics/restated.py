"""Statistics that demonstrate a leak, asked of other tables: what ``cumulative_disclosure`` and ``holdout_leakage``
have in common.
"""

from __future__ import annotations

from dataclasses import replace

from pydantic import Field

from privacy_assets.metrics.base import Measured, Metric
from privacy_assets.metrics.dcr import Dcr
from privacy_assets.metrics.inputs import MetricInputs
from privacy_assets.metrics.membership_inference import MembershipInference
from privacy_assets.metrics.targets import Budget
from privacy_assets.settings import declared
from privacy_assets.stats.limits import Limit

ADVANTAGE_ANY = Limit(
    "membership_inference.advantage_any",
    at_most=0.025,
    bound="lower",
    source="significant at 99.5 % over all scores and thresholds together; tolerated: what trees with leaves of 50 "
    "rows show in one table (more in 2 of 400 splits of Adult and UK census)",
)


@declared
class Restated(Metric):
    """A metric whose statistics are those of the same names of ``dcr`` and ``membership_inference``, of other tables.

    Each is two-sided, with its interval, null 0 and NaN rules; in the raw space alone. ``permutations`` of the people's
    labels give the intervals; ``max_targets`` is the budget of ``membership_inference``.
    """

    permutations: int = Field(default=999, ge=199, description="permutations of the labels of people")
    max_targets: Budget = Field(default=None, description="most rows that are attacked; all of them without")

    in_studies = False

    def restate(self, inputs: MetricInputs) -> Measured:
        """The statistics of these names, of ``inputs``; there are no tables."""
        permutations, most = self.permutations, self.max_targets
        metrics = (
            Dcr(permutations=permutations, bootstraps=50, max_targets=most),
            MembershipInference(permutations=permutations, max_targets=most),
        )
        asked = replace(inputs, embedder=None)
        found = {estimate.name: estimate for metric in metrics for estimate in metric.measure(asked).estimates}
        return Measured(tuple(replace(found[spec.name], about=spec.about) for spec in self.statistics))
