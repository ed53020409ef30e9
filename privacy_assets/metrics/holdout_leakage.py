"""Was the holdout unseen? Every comparison of train with holdout rests on it.

Where the generator has seen the holdout too, S is as near to the one as to the other, and no statistic that compares
them shows anything. So the same question is asked once more, of people nobody should have used: the holdout stands in
the place of train, and the reference in that of the holdout. Nothing may show.
"""

from __future__ import annotations

from dataclasses import replace

from privacy_assets.metrics.base import Measured
from privacy_assets.metrics.declarations import Causes
from privacy_assets.metrics.inputs import MetricInputs
from privacy_assets.metrics.restated import ADVANTAGE_ANY, Restated
from privacy_assets.settings import declared
from privacy_assets.stats.estimates import StatisticSpec

_ATTACKED = {"holdout": "train", "reference": "holdout"}  # role in the release -> role here


@declared
class HoldoutLeakage(Restated):
    """Statistics of ``dcr`` and ``membership_inference`` with holdout attacked and reference as the control.

    See :class:`~.restated.Restated`. Null also for a copy of train: it says nothing about train. Of a reference that
    was seen as well it says nothing either. Where something shows, the holdout is no measure: not assessable, and
    another holdout may be.
    """

    name = "holdout_leakage"
    summary = "Was the holdout really unseen by whoever made the table?"
    needs = frozenset({"holdout", "reference", "synthetic"})
    by_default = False
    if_external = frozenset({"holdout", "reference"})
    statistics = (
        StatisticSpec(
            "member_excess_any",
            "Excess share of holdout people, against the reference, among the real rows closest to the synthetic rows.",
            "two_sided",
            about="gate",
        ),
        StatisticSpec(
            "identical_excess",
            "Share of identical matches with holdout people that only their having been seen explains.",
            "two_sided",
            about="gate",
        ),
        StatisticSpec(
            "advantage_any",
            "True minus false positive rate of the attack that tells holdout from reference best.",
            "two_sided",
            about="gate",
        ),
    )
    default_limits = (replace(ADVANTAGE_ANY, statistic=f"{name}.advantage_any"),)
    causes = Causes(doubt="seen holdout")

    def measure(self, inputs: MetricInputs) -> Measured:
        """Compute the statistics; there are no tables."""
        tables = {here: inputs.tables[role] for role, here in _ATTACKED.items()}
        people = {here: inputs.subjects[role] for role, here in _ATTACKED.items() if role in inputs.subjects}
        asked = replace(inputs, tables={**tables, "synthetic": inputs.synthetic}, subjects=people)
        return self.restate(asked)
