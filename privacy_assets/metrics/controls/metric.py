"""Controls: would this gate, with these people and this many rows, have seen a leak?

Null controls must hold the limits: the synthetic table with the sides of the people shuffled, and unseen real rows in
its place. Canaries must break them: training rows planted in a simulated copy of the synthetic table, in place of rows
of its own. Both go through the code of ``dcr`` and ``membership_inference`` and the limits in force. All tables are
rows of one, which is searched once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from pydantic import AfterValidator, Field

from privacy_assets.errors import ConfigError, shown
from privacy_assets.metrics.base import Measured, Metric
from privacy_assets.metrics.controls.canaries import KINDS
from privacy_assets.metrics.controls.simulated_releases import STEP, SimulatedReleases
from privacy_assets.metrics.dcr import Dcr
from privacy_assets.metrics.declarations import Question
from privacy_assets.metrics.inputs import MetricInputs
from privacy_assets.metrics.membership_inference import MembershipInference
from privacy_assets.metrics.membership_inference.outliers import ADVANTAGE_OUTLIERS, OUTLIER_EXCESS
from privacy_assets.metrics.membership_inference.scores import SMALLEST_SIDE
from privacy_assets.metrics.targets import Budget
from privacy_assets.settings import Dict, Tuple, Unfit, declared
from privacy_assets.stats.estimates import Estimate, StatisticSpec
from privacy_assets.stats.intervals import clopper_pearson
from privacy_assets.stats.limits import Limit

if TYPE_CHECKING:
    from privacy_assets.policy import Policy

_LOOKED_AT = {
    "dcr": ("member_excess", "member_excess_any", "identical_excess"),
    "membership_inference": (OUTLIER_EXCESS.name, ADVANTAGE_OUTLIERS.name),
}
_TEXT = {
    "exact": "copies of training rows",
    "jittered": "copies of training rows whose numbers moved by about a tenth of a standard deviation",
    "resampled": "copies of training rows with one column of each resampled",
    "rare": "moved copies of training rows that are like nobody else's",
}
_AT_MOST = {"exact": 0.1, "jittered": 0.5, "resampled": 0.5, "rare": 0.5}
_EACH_LOOK = 0.95  # confidence of a tolerance limit: of two looks together 90 %
_LARGEST = 0.5  # of the synthetic rows: more is never planted
_FEW_ROWS = 0.05  # of the synthetic rows: where no more can be planted, no leak that counts can pass
_SOURCE = {
    "exact": "chosen: above 0.02 and 0.05 on Adult and UK census (8,000/2,000/8,000 rows), 0.04 at 1,000/300/1,000",
    **dict.fromkeys(
        ("jittered", "resampled", "rare"),
        "chosen: a table half of which is such rows never passes, and far smaller leaks seldom do",
    ),
}


Dose = Annotated[float, Field(ge=0, le=_LARGEST)]


def _of_each_kind(doses: dict[str, float]) -> dict[str, float]:
    if set(doses) != set(KINDS):
        raise Unfit(f"must have a number from 0 to {_LARGEST} for each of {', '.join(KINDS)}")
    return doses


@declared
class Controls(Metric):
    """How small a leak the limits on closeness catch in this very table, and how often they close for nothing.

    ``smallest_leak_*``: the fraction of the synthetic rows, planted with one kind of canary in place of rows of the
    table's own, at which a limit that the table holds is broken with probability 95 % (a tolerance limit at 90 %
    confidence, both looks together, from ``draws`` random plantings; the threshold of each is found on a grid with four
    steps a halving, and taken to be log-normal). Up to the dose of the kind in ``doses`` is planted: what the policy in
    force lets pass, and at most half. Where a planting of the dose was missed, or the tolerance limit lies beyond it,
    fresh plantings of the dose decide: it is stated when they show, at a level of 5 %, that more than 95 % are caught
    (:func:`~privacy_assets.stats.intervals.shown_above`; 73 without a miss, 113 with one, 200 at most).

    Planted are rows that one person alone has, "rare" ones of the outlying tenth: whatever others share gives nobody
    away; where all such rows together are less than 5 % of the table and are not caught, the fraction is theirs, and 0
    where there is none. The low end is the fraction at which half of the plantings are caught. NaN when plantings of
    the dose are missed and it is not shown that few are, or the table itself breaks every limit.

    ``false_alarm_rate``: share of null tables that break a limit: ``nulls`` labellings of the people of train and
    holdout, and both halves of the reference, when there is one, in place of the synthetic table. NaN when both halves
    are refused: rows that nobody has seen can only break a limit where train and holdout are not alike.

    Limits: those in force on the label-conditional statistics of ``dcr`` (raw distances) and ``membership_inference``
    (``outlier_excess``, ``advantage_outliers`` with its ``permutations``), of the people that its budget
    ``max_targets`` leaves; rows are planted of everybody. The whole gate looks at more, and catches at least as much.
    ``advantage_outliers`` costs as much as all others together, and sees far more where outliers are given away:
    it is looked at where the others leave a kind open, or the table breaks them all: then in all that is planted of
    this kind and in the null tables. These statistics tell about the gate: where their limits do not hold it is
    underpowered, and nothing is published; that is no verdict on the table, and not remembered as one.
    """

    draws: int = Field(default=8, ge=4, description="plantings of each kind")
    nulls: int = Field(default=20, ge=10, description="null tables")
    doses: Annotated[dict[str, Dose], Dict, AfterValidator(_of_each_kind)] = Field(
        title=f"a number from 0 to {_LARGEST} for each of {', '.join(KINDS)}",
        default_factory=lambda: dict(_AT_MOST),
        description="largest planted fraction of each kind; the policy says it",
    )
    limits: Annotated[tuple[Annotated[dict[str, Any], Dict], ...], Tuple] = Field(
        title="a list of mappings", default=(), description="limits in force; the policy says them"
    )
    dcr_settings: Annotated[dict[str, Any], Dict] = Field(default_factory=dict, description="settings of dcr")
    max_targets: Budget = Field(default=None, description="most rows that are attacked; all of them without")
    permutations: int = Field(default=999, ge=199, description="permutations of the labels of people")

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
            "Share of tables without any leak that the limits on closeness refuse.",
            about="gate",
        ),
        *(
            StatisticSpec(
                f"smallest_leak_{kind}",
                f"Fraction of {_TEXT[kind]} that is caught with 95 % probability.",
                about="gate",
            )
            for kind in KINDS
        ),
    )
    default_limits: ClassVar[tuple[Limit, ...]] = (
        Limit(
            "controls.false_alarm_rate", at_most=0.1, bound="lower",
            source="six of the 20 to 22 null tables; by chance, where one in a hundred is refused, never",
        ),
        *(Limit(f"controls.smallest_leak_{kind}", at_most=_AT_MOST[kind], source=_SOURCE[kind]) for kind in KINDS),
    )  # fmt: skip

    smallest_leak: ClassVar[Mapping[Question, Mapping[str, str]]] = {
        "copies": {f"smallest_leak_{kind}": _TEXT[kind] for kind in KINDS}
    }

    def __post_init__(self) -> None:
        if self.limits:
            return
        found = [limit for kind in (Dcr, MembershipInference) for limit in kind.default_limits]
        object.__setattr__(self, "limits", _looked_at(found))

    @property
    def parsed_limits(self) -> list[Limit]:
        """The limits that decide whether a table shows a leak."""
        return [Limit(**limit) for limit in self.limits]

    def under(self, policy: Policy, metrics: Mapping[str, Metric]) -> Metric:
        """With the limits of ``policy`` and the leaks that it lets pass; ConfigError when nothing is to be proven."""
        limits, dcr, membership = _looked_at(policy.limits), metrics.get("dcr"), metrics.get("membership_inference")
        if not limits:
            known = " or ".join(f"{metric}.{name}" for metric, names in _LOOKED_AT.items() for name in names)
            raise ConfigError(
                f"controls have nothing to prove: the policy {shown(policy.name)} has no limit on {known}."
            )
        attack = (
            membership or MembershipInference(max_targets=self.max_targets, permutations=self.permutations)
        ).settings()
        allowed = {limit.statistic: limit.at_most for limit in policy.limits if limit.at_most is not None}
        passing = {kind: allowed.get(f"controls.smallest_leak_{kind}", most) for kind, most in _AT_MOST.items()}
        return replace(
            self,
            doses={kind: min(max(most, 0.0), _LARGEST) for kind, most in passing.items()},
            limits=limits,
            dcr_settings={} if dcr is None else dcr.settings(),
            max_targets=attack["max_targets"],
            permutations=attack["permutations"],
        )

    def measure(self, inputs: MetricInputs) -> Measured:
        """Compute the statistics and the table "thresholds": kind and caught fraction of each planting."""
        sides = [int(np.unique(inputs.subject_codes(role)).size) for role in ("train", "holdout")]
        counts = len(inputs.synthetic), min(sides)
        if counts[1] < SMALLEST_SIDE or counts[0] == 0:
            reason = f"at least {SMALLEST_SIDE} subjects are needed in train and in holdout, and a synthetic row"
            return Measured(tuple(spec.missing(reason, counts) for spec in self.statistics))
        simulated = SimulatedReleases(inputs, self)
        if simulated.breaks_all:
            simulated.look_closer()
        if simulated.breaks_all:
            reason = "the table itself breaks every limit on closeness"
            underpowered = (spec.missing(reason, counts) for spec in self.statistics[1:])
            return Measured((self._false_alarms(simulated, counts), *underpowered))
        planted: dict[str, list[float]] = {}
        stated: dict[str, Estimate | None] = {}
        left = list(KINDS)
        while left:
            for kind in left:
                inputs.progress(f"controls: planting {_TEXT[kind]}")
                planted[kind] = simulated.thresholds(kind)
                stated[kind] = self._stated(kind, planted[kind], simulated, counts)
            left = [kind for kind in KINDS if stated[kind] is None]
            if left and not simulated.look_closer():
                break
        leaks = [stated[kind] or self._decided(kind, planted[kind], simulated, counts) for kind in KINDS]
        inputs.progress("controls: null tables")
        rows = [{"kind": kind, "caught": one} for kind in KINDS for one in planted[kind]]
        return Measured((self._false_alarms(simulated, counts), *leaks), {"thresholds": rows})

    def _false_alarms(self, tables: SimulatedReleases, counts: tuple[int, int]) -> Estimate:
        unseen = list(tables.unseen())
        if unseen and all(unseen):
            why = "unseen rows of the reference are refused, so train and holdout are not alike"
            reason = f"the gate is underpowered here: {why}"
            return self.spec("false_alarm_rate").missing(reason, counts)
        refused = [*tables.relabelled(), *unseen]
        low, high = clopper_pearson(sum(refused), len(refused))
        share = sum(refused) / len(refused)
        note = f"{sum(refused)} of {len(refused)} null tables"
        return self.spec("false_alarm_rate").estimate(share, low, high, counts, note=note)

    def _stated(
        self, kind: str, thresholds: list[float], simulated: SimulatedReleases, counts: tuple[int, int]
    ) -> Estimate | None:
        """The statistic, None where these plantings leave open whether the dose is caught."""
        spec, dose = self.spec(f"smallest_leak_{kind}"), simulated.largest(kind)
        if not thresholds:
            return spec.estimate(0.0, 0.0, 0.0, counts, note="no such row is one person's own")
        middle, stated = _tolerance_limit(thresholds)
        if stated <= dose:
            return spec.estimate(stated, min(middle, stated), stated, counts)
        if math.isinf(stated) and simulated.all_planted(kind) and dose < _FEW_ROWS:
            note = f"such rows of one person alone are {dose:.2%} of the table at most: fewer than show"
            return spec.estimate(dose, dose, dose, counts, note=note)
        return None

    def _decided(
        self, kind: str, thresholds: list[float], simulated: SimulatedReleases, counts: tuple[int, int]
    ) -> Estimate:
        """The statistic after fresh plantings of the dose."""
        spec, dose = self.spec(f"smallest_leak_{kind}"), simulated.largest(kind)
        middle, stated = _tolerance_limit(thresholds)
        decided = simulated.caught_at_largest(kind)
        leak = f"a leak of {dose:.1%} passed in {decided.missed} of {decided.trials} plantings"
        if decided.shown:
            return spec.estimate(dose, min(middle, dose), dose, counts, note=leak)
        if math.isinf(stated):
            return spec.missing(f"the gate is underpowered here: {leak}", counts)
        return spec.estimate(stated, middle, stated, counts, note=leak)


def _looked_at(limits: Any) -> tuple[dict[str, Any], ...]:
    """The limits on what controls look at, as plain mappings without texts."""
    names = [f.name for f in fields(Limit) if f.name not in ("source", "advice")]
    chosen = [limit for limit in limits if limit.statistic.partition(".")[2] in _LOOKED_AT.get(limit.metric, ())]
    return tuple({name: getattr(limit, name) for name in names} for limit in chosen)


def _tolerance_limit(thresholds: list[float]) -> tuple[float, float]:
    """Fractions at which half, and at 95 % confidence 95 %, of all plantings are caught; inf where one was missed."""
    if not all(map(math.isfinite, thresholds)):
        return float(np.median(thresholds)), math.inf
    places = np.log(thresholds)
    middle, spread = float(places.mean()), max(float(places.std(ddof=1)), -math.log(STEP) / math.sqrt(12))
    return math.exp(middle), math.exp(middle + _tolerance(len(places), _EACH_LOOK) * spread)


def _tolerance(n: int, confidence: float) -> float:
    """Deviations above the mean of ``n`` normal draws that hold 95 % of all draws, with this confidence."""
    from scipy import stats  # slow to import: only where a table is measured

    return float(stats.nct.ppf(confidence, n - 1, stats.norm.ppf(0.95) * math.sqrt(n)) / math.sqrt(n))
