"""Controls: would this gate, with these people and this many rows, have seen a leak?

Training rows are planted beside the synthetic table, more and more of them, until a limit breaks; and the synthetic
table must hold the limits when the sides of the people are shuffled. Both go through the code of ``copies`` and
``membership_inference.outlier_matches`` and the limits in force.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from pydantic import AfterValidator, Field

from privacy_assets.errors import ConfigError, shown
from privacy_assets.metrics.base import Measured, Metric
from privacy_assets.metrics.controls.canaries import KINDS
from privacy_assets.metrics.copies import Copies
from privacy_assets.metrics.declarations import Question
from privacy_assets.metrics.inputs import MetricInputs
from privacy_assets.metrics.membership_inference import MembershipInference
from privacy_assets.metrics.targets import Budget
from privacy_assets.settings import Dict, Tuple, Unfit, declared
from privacy_assets.stats.estimates import Estimate, StatisticSpec
from privacy_assets.stats.intervals import clopper_pearson
from privacy_assets.stats.limits import Limit
from privacy_assets.stats.subjects import SMALLEST_SIDE

if TYPE_CHECKING:
    from privacy_assets.policy import Policy

_LOOKED_AT = ("membership_inference.outlier_matches", "copies.rare_share", "copies.partial_advantage")
_TEXT = {
    "exact": "copies of training rows",
    "jittered": "copies of training rows whose numbers moved by about a tenth of a standard deviation",
    "resampled": "copies of training rows with one column of each resampled",
    "rare": "moved copies of training rows that are like nobody else's",
}
_SEEN = 0.95  # of all plantings of the stated leak
_CREDIBLE = 0.9


def _rising(doses: tuple[float, ...]) -> tuple[float, ...]:
    if not all(low < high for low, high in pairwise(doses)):
        raise Unfit("must rise")
    return doses


@declared
class Controls(Metric):
    """How small a leak the limits on copies see in this very table, and how often they close for nothing.

    ``smallest_leak_*``: the share of the rows of a release, planted with one kind of canary beside the table's own, at
    which a limit that the table does not fail is failed with probability 95 %. Each of ``draws`` random plantings
    grows through ``doses``, shares of all rows, until that happens. Thresholds are taken to be log-normal; of each is
    known between which doses it lies, or that it lies above all of them. The statistic is the median of the dose over
    what these leave possible (all middles from a quarter of the smallest dose to everything, and spreads from 0.1 to
    1.5, in logarithms, are as likely before), low and high are its 90 % credible interval. So there is always a
    number; where plantings of the largest dose were missed it lies beyond what was planted, and the note says so.

    Planted are rows that one person alone has, "rare" ones of the outlying tenth: whatever others share gives nobody
    away, and the smallest leak is 0 where there is no such row. NaN with fewer than 20 people in train or holdout,
    without synthetic rows, or where the table itself fails every limit that is looked at.

    ``false_alarm_rate``: share of ``nulls`` labellings of the people of train and holdout under which the table fails
    a limit.

    Looked at are the limits in force on ``copies.rare_share`` and ``copies.partial_advantage`` (settings of ``copies``,
    people of its budget) and ``membership_inference.outlier_matches`` (budget ``max_targets``). The whole gate looks at
    more, and sees at least as much. These statistics tell about the gate, not about the table: by default nothing is
    limited, and a limit of yours on one of them that does not hold is not assessable.

    Source: none; the stated leaks are checked in ``benchmarks/results/controls.md``.
    """

    draws: int = Field(default=6, ge=4, description="plantings of each kind")
    nulls: int = Field(default=10, ge=10, description="null tables")
    doses: Annotated[
        tuple[Annotated[float, Field(gt=0, le=0.5)], ...], Tuple, Field(min_length=1), AfterValidator(_rising)
    ] = Field(
        title="rising numbers above 0 and up to 0.5",
        default=(0.01, 0.02, 0.05, 0.1, 0.2),
        description="planted shares of all rows",
    )
    limits: Annotated[tuple[Annotated[dict[str, Any], Dict], ...], Tuple] = Field(
        title="a list of mappings", default=(), description="limits in force; the policy says them"
    )
    copies_settings: Annotated[dict[str, Any], Dict] = Field(default_factory=dict, description="settings of copies")
    max_targets: Budget = Field(default=None, description="most rows that are attacked; all of them without")
    permutations: int = Field(default=499, ge=199, description="permutations of the labels of people")

    name: ClassVar[str] = "controls"
    summary: ClassVar[str] = (
        "Would the gate have seen a leak? Planted leaks must break the limits, null tables must not."
    )
    needs: ClassVar[frozenset[str]] = frozenset({"train", "holdout", "synthetic"})
    optional: ClassVar[frozenset[str]] = frozenset({"reference"})
    in_studies: ClassVar[bool] = False
    statistics: ClassVar[tuple[StatisticSpec, ...]] = (
        StatisticSpec(
            "false_alarm_rate",
            "Share of tables without any leak that fail a limit on copies.",
            about="gate",
        ),
        *(
            StatisticSpec(
                f"smallest_leak_{kind}",
                f"Share of {_TEXT[kind]} in a release that is seen with 95 % probability.",
                about="gate",
            )
            for kind in KINDS
        ),
    )
    smallest_leak: ClassVar[Mapping[Question, Mapping[str, str]]] = {
        "copies": {f"smallest_leak_{kind}": _TEXT[kind] for kind in KINDS}
    }

    def __post_init__(self) -> None:
        if self.limits:
            return
        found = [limit for kind in (Copies, MembershipInference) for limit in kind.default_limits]
        object.__setattr__(self, "limits", _looked_at(found))

    @property
    def parsed_limits(self) -> list[Limit]:
        """The limits that decide whether a table shows a leak, those that cost least first."""
        return sorted((Limit(**limit) for limit in self.limits), key=lambda limit: _LOOKED_AT.index(limit.statistic))

    def under(self, policy: Policy, metrics: Mapping[str, Metric]) -> Metric:
        """With the limits of ``policy`` and the settings of ``metrics``; ConfigError when nothing is to be proven."""
        limits = _looked_at(policy.limits)
        if not limits:
            known = " or ".join(_LOOKED_AT)
            raise ConfigError(
                f"controls have nothing to prove: the policy {shown(policy.name)} has no limit on {known}."
            )
        copies, attack = metrics.get("copies"), metrics.get("membership_inference")
        return replace(
            self,
            limits=limits,
            copies_settings={} if copies is None else copies.settings(),
            max_targets=self.max_targets if attack is None else attack.settings()["max_targets"],
        )

    def measure(self, inputs: MetricInputs) -> Measured:
        """Compute the statistics and the table "thresholds": kind, and between which shares each planting was seen."""
        sides = [int(np.unique(inputs.subject_codes(role)).size) for role in ("train", "holdout")]
        counts = len(inputs.synthetic), min(sides)
        if counts[1] < SMALLEST_SIDE or counts[0] == 0:
            reason = f"at least {SMALLEST_SIDE} subjects are needed in train and in holdout, and a synthetic row"
            return Measured(tuple(spec.missing(reason, counts) for spec in self.statistics))
        from privacy_assets.metrics.controls.planted_releases import PlantedReleases  # compiled code

        releases = PlantedReleases(inputs, self)
        inputs.progress("controls: null tables")
        refused = list(releases.relabelled(self.nulls))
        low, high = clopper_pearson(sum(refused), len(refused))
        note = f"{sum(refused)} of {len(refused)} null tables"
        share = sum(refused) / len(refused)
        alarms = self.spec("false_alarm_rate").estimate(share, low, high, counts, note=note)
        if not releases.held:
            reason = "the table itself fails every limit on copies"
            return Measured((alarms, *(spec.missing(reason, counts) for spec in self.statistics[1:])))
        planted, leaks = {}, []
        for kind in KINDS:
            inputs.progress(f"controls: planting {_TEXT[kind]}")
            planted[kind] = releases.thresholds(kind, self.draws if len(releases.places[kind]) else 0)
            leaks.append(self._stated(kind, planted[kind], counts))
        rows = [
            {"kind": kind, "passed": passed, "seen": seen if np.isfinite(seen) else None}
            for kind in KINDS
            for passed, seen in planted[kind]
        ]
        return Measured((alarms, *leaks), {"thresholds": rows})

    def _stated(self, kind: str, thresholds: Sequence[tuple[float, float]], counts: tuple[int, int]) -> Estimate:
        spec = self.spec(f"smallest_leak_{kind}")
        if not thresholds:
            return spec.estimate(0.0, 0.0, 0.0, counts, note="no such row is one person's own")
        low, value, high = seen_dose(thresholds, self.doses[0])
        missed = sum(np.isinf(seen) for _, seen in thresholds)
        most = max(passed if np.isinf(seen) else seen for passed, seen in thresholds)
        note = f"{len(thresholds) - missed} of {len(thresholds)} plantings of up to {most:.2g} were seen"
        return spec.estimate(value, low, high, counts, confidence=_CREDIBLE, note=note)


def seen_dose(thresholds: Sequence[tuple[float, float]], smallest: float) -> tuple[float, float, float]:
    """The dose that is seen with probability 95 %: 5 % point, median and 95 % point of what is possible, at most 1.

    Log-normal thresholds that each lie between two doses (0 below all, inf above all); middle and spread have flat
    priors on a grid, see :class:`Controls`.
    """
    from scipy.stats import norm  # slow to import: only where a table is measured

    middle = np.linspace(np.log(smallest / 4), 0.0, 200)[:, None]
    spread = np.geomspace(0.1, 1.5, 20)[None]
    weight = np.ones((len(middle), spread.size))
    for passed, seen in thresholds:
        below = norm.cdf((np.log(passed) - middle) / spread) if passed > 0 else 0.0
        weight = weight * ((norm.cdf((np.log(seen) - middle) / spread) if np.isfinite(seen) else 1.0) - below)
    doses = np.minimum(np.exp(middle + norm.ppf(_SEEN) * spread), 1.0).ravel()
    order = np.argsort(doses, kind="stable")
    reached = np.cumsum(weight.ravel()[order])
    ends = (1 - _CREDIBLE) / 2, 0.5, (1 + _CREDIBLE) / 2
    low, value, high = (float(doses[order][np.searchsorted(reached, end * reached[-1])]) for end in ends)
    return low, value, high


def _looked_at(limits: Any) -> tuple[dict[str, Any], ...]:
    """The limits on what controls look at, as plain mappings without texts."""
    names = [f.name for f in fields(Limit) if f.name not in ("source", "advice")]
    chosen = [limit for limit in limits if limit.statistic in _LOOKED_AT]
    return tuple({name: getattr(limit, name) for name in names} for limit in chosen)
