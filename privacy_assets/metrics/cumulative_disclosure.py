"""What a new table and all earlier releases of the same people give away together.

Each table may pass alone while their union does not: a few people leak in each, or ten noisy pictures of the same
people average to a sharp one. So the significant statistics of closeness and membership are asked once more, of the
union.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from privacy_assets.metrics.base import Measured
from privacy_assets.metrics.declarations import Causes
from privacy_assets.metrics.inputs import MetricInputs
from privacy_assets.metrics.restated import ADVANTAGE_ANY, Restated
from privacy_assets.settings import declared
from privacy_assets.stats.estimates import StatisticSpec
from privacy_assets.tables.table import Table

_NOTHING = "no earlier release"


@declared
class CumulativeDisclosure(Restated):
    """Statistics of ``dcr`` and ``membership_inference`` with all earlier releases stacked on the new table.

    See :class:`~.restated.Restated`; in the columns that all releases have, where some were without one. Without an
    earlier release every one is exactly 0 and says so: the table itself is for the other metrics.
    """

    name = "cumulative_disclosure"
    summary = "What do the new table and all earlier releases give away together?"
    needs = frozenset({"train", "holdout", "synthetic"})
    optional = frozenset({"reference", "released"})
    statistics = (
        StatisticSpec(
            "member_excess_any",
            "Excess share of members among the real rows closest to the union of all releases.",
            "two_sided",
        ),
        StatisticSpec(
            "identical_excess",
            "Share of identical matches between real people and the union that only membership explains.",
            "two_sided",
        ),
        StatisticSpec(
            "advantage_any",
            "True minus false positive rate of the attack on the union where the evidence is strongest.",
            "two_sided",
        ),
        StatisticSpec(
            "outlier_excess",
            "Excess share of members among the 40 people unlike all others to whom the union comes nearest.",
            "two_sided",
        ),
    )
    default_limits = (replace(ADVANTAGE_ANY, statistic=f"{name}.advantage_any"),)
    # People who changed sides since an earlier release look avoided.
    question = "membership"
    causes = Causes("earlier releases")

    def measure(self, inputs: MetricInputs) -> Measured:
        """Compute the statistics; there are no tables."""
        if inputs.released is None or len(inputs.released) == 0:
            people = min(int(np.unique(inputs.subject_codes(role)).size) for role in ("train", "holdout"))
            counts = (len(inputs.synthetic), people)
            return Measured(tuple(spec.estimate(0.0, 0.0, 0.0, counts, note=_NOTHING) for spec in self.statistics))
        shared = [name for name in inputs.schema.names if name in inputs.released.columns]
        tables = {role: table.select(shared) for role, table in inputs.tables.items()}
        tables["synthetic"] = Table.stack([inputs.released.select(shared), tables["synthetic"]])
        asked = replace(inputs, schema=tables["train"].schema, tables=tables, released=None)
        return self.restate(asked)
