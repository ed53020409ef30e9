"""What a new table and all earlier releases of the same people give away together.

Each table may pass alone while their union does not: a few people leak in each, or ten noisy pictures of the same
people average to a sharp one. So the significant statistics of closeness and membership are asked once more, of the
union.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
from pydantic import Field

from privacy_assets.metrics.base import Measured, Metric
from privacy_assets.metrics.declarations import Recourses
from privacy_assets.metrics.inputs import MetricInputs
from privacy_assets.metrics.restated import limits_of, significant
from privacy_assets.metrics.targets import Budget
from privacy_assets.settings import declared
from privacy_assets.stats.estimates import StatisticSpec
from privacy_assets.stats.limits import Limit
from privacy_assets.tables.table import Table

_NOTHING = "no earlier release"


@declared
class CumulativeDisclosure(Metric):
    """Statistics of ``dcr`` and ``membership_inference`` (raw space) with all earlier releases stacked on the new
    table.

    Each is the statistic of that name there, two-sided, with its interval, null 0 and NaN rules; in the columns that
    all releases have, where some were without one. Without an earlier release every one is exactly 0 and says so: the
    table itself is for the other metrics. ``permutations`` of the people's labels give the intervals; ``max_targets``
    is the budget of ``membership_inference``.
    """

    permutations: int = Field(default=999, ge=199, description="permutations of the labels of people")
    max_targets: Budget = Field(default=None, description="most rows that are attacked; all of them without")

    name: ClassVar[str] = "cumulative_disclosure"
    summary: ClassVar[str] = "What do the new table and all earlier releases give away together?"
    needs: ClassVar[frozenset[str]] = frozenset({"train", "holdout", "synthetic"})
    optional: ClassVar[frozenset[str]] = frozenset({"reference", "released"})
    in_studies: ClassVar[bool] = False
    statistics: ClassVar[tuple[StatisticSpec, ...]] = (
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
    default_limits: ClassVar[tuple[Limit, ...]] = limits_of(name, statistics, "that of the same statistic of one table")
    # People who changed sides since an earlier release look avoided.
    recourses: ClassVar[Recourses] = Recourses(also={"new people": ()}, broken_means="leak")

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
        return Measured(significant(asked, self.statistics, self.permutations, self.max_targets))
