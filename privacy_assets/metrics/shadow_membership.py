"""Shadow-model membership attacks on the most vulnerable records (Meeus et al. 2023, "Achilles' Heels", section 5).

An outsider who knows the generator and has other rows of the same population fits it many times, with and without one
person's record, and learns to tell the difference from the synthetic tables. It judges the generator, not one release.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field

from privacy_assets.errors import ConfigError
from privacy_assets.metrics.base import Measured, Metric
from privacy_assets.metrics.declarations import Causes, Curves, Intervals, Protected
from privacy_assets.metrics.inputs import MetricInputs
from privacy_assets.settings import Dict, declared
from privacy_assets.shadow.plan import AttackName, Even, Sampling
from privacy_assets.shadow.selection import Selector
from privacy_assets.shadow.vulnerability import Distance
from privacy_assets.stats.estimates import Estimate, StatisticSpec, plain
from privacy_assets.stats.intervals import CONFIDENCE, MDE_QUANTILE
from privacy_assets.stats.limits import Limit

if TYPE_CHECKING:
    from privacy_assets.generators.base import Generator
    from privacy_assets.shadow.plan import Audit, AuditPlan, RecordAudit

LOW_FPR = 0.01
_CURVE = 10.0 ** np.linspace(-4, 0, 41)  # false positive rates at which the curves are given
_EPSILON_1 = "no attack on a generator with epsilon 1 can have more: its AUC is at most e / (1 + e) = 0.731"
_ROC = {"all records": ("fpr", "all"), "the record told most easily": ("fpr", "worst"), "guessing": ("fpr", "fpr")}
_ROC_LABELS = ("false alarms: share of tables without the record", "recognised: share of tables with it")
_DRAWS = 4000
# Settings of an attack that weaken it only when they are smaller.
_MORE = {"trees", "depth", "closest", "epochs", "patience"}


@declared
class ShadowMembership(Metric):
    """Can an outsider tell that a vulnerable record was in the training table, by shadow models of the generator?

    All real rows are one table, of which two thirds (``auxiliary``) are the attacker's and the others make the tables
    that the attack is judged on. The ``records`` that stand farthest from all others are attacked, one after another:
    of ``shadows`` training sets of ``size`` rows half hold the record, and so do half of ``tests`` further ones. With
    declared subjects no other row of the person stands in any of them. Every training set takes a fit of the generator,
    so that this metric runs only when it is asked for: 4,200 fits a record.

    Judged is the generator at training sets of ``size`` rows: in larger ones a record weighs less, and is harder to
    tell. ``generator`` is its name, or a mapping of ``name`` and ``settings``; without it that of the table at
    hand, and no other where that is known.
    The other settings are those of :class:`privacy_assets.shadow.plan.AuditPlan`.
    """

    name = "shadow_membership"
    summary = "Can an outsider tell that a vulnerable record was in training? Attacks on the generator."
    needs = frozenset({"train", "holdout"})
    optional = frozenset({"reference"})
    by_default = False
    statistics = (
        StatisticSpec(
            "auc",
            "How often the attack tells a table with a record from one without it; mean over the records.",
            null=0.5,
        ),
        StatisticSpec(
            "auc_worst",
            "How often the attack tells a table with the record that it recognises most easily from one without it.",
            null=0.5,
        ),
        StatisticSpec(
            "tpr_at_low_fpr",
            "Share of the tables with the record that are recognised, at 1 % false alarms, all records together.",
            null=LOW_FPR,
        ),
        StatisticSpec(
            "epsilon_lower_bound",
            "Smallest epsilon of differential privacy that the attacks leave possible, at 95 % for all records.",
            range=(0.0, 20.0),  # e^20 tables would have to be attacked to show more
        ),
    )
    default_limits = (
        Limit("shadow_membership.auc", at_most=0.73, smallest_n=1000, source=_EPSILON_1),
        Limit(
            "shadow_membership.epsilon_lower_bound",
            at_most=1.0,
            bound="lower",
            smallest_n=100,
            source="epsilon 1, as above, disproved at 95 % for all records together",
        ),
    )

    attacks_generator = True
    plots = (
        Intervals(
            table="records",
            caption="How often the attack tells a synthetic table made with the record from one made without it. The "
            "line at 0.5 is guessing, 1 is always; each interval is for its record alone.",
            x="record",
            y="auc",
            series=("role",),
            labels=("record, the most vulnerable first", "AUC"),
            null=0.5,
        ),
        Curves(
            table="roc",
            caption="Tables with the record that are recognised, by the share of false alarms that is allowed. Above "
            "the line of guessing, membership shows.",
            curves=_ROC,
            labels=_ROC_LABELS,
        ),
        Curves(
            table="roc",
            caption="The same on logarithmic axes: a few that are recognised without a false alarm weigh more than the "
            "average.",
            curves=_ROC,
            labels=_ROC_LABELS,
            log=True,
        ),
    )
    question = "membership"
    causes = Causes("over-fitting", doubt="few tests")
    protections = (Protected("differential privacy", ("epsilon_lower_bound",)),)

    generator: Any = Field(
        default=None,
        title="a name, a mapping of name and settings, or a function",
        description="what is attacked; that of the synthetic table without",
    )
    records: int = Field(default=10, ge=1, description="attacked records")
    select: Selector = Field(default="distance", description="how they are chosen")
    neighbours: int = Field(default=5, ge=1, description="nearest records of others, of the vulnerability")
    distance: Distance = Field(default="cosine", description="distance of records, of the vulnerability")
    shadows: Even = Field(default=4000, description="sets that teach the attack, half of them with the record")
    tests: Even = Field(default=200, description="sets that judge it")
    size: int = Field(default=1000, ge=2, description="rows of a training set")
    sample_size: int | None = Field(default=None, ge=1, description="rows that the generator makes; as many without")
    auxiliary: float = Field(default=2 / 3, gt=0, lt=1, description="share of the table for shadow sets")
    attack: AttackName = Field(default="queries", description="the attack")
    attack_settings: Annotated[dict[str, Any], Dict] = Field(default_factory=dict, description="its settings")
    sampling: Sampling = Field(default="subsample", description="how training sets are drawn")

    def __post_init__(self) -> None:
        if self.generator is not None:
            from privacy_assets.generators.registry import as_generator

            object.__setattr__(self, "generator", as_generator(self.generator))
        try:
            self._plan(self.attack_settings)
        except ConfigError as error:
            raise ConfigError(f"metric shadow_membership: {error}") from None

    def settings(self) -> dict[str, Any]:
        """The settings as a plain mapping; the generator by name and settings."""
        chosen = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        if self.generator is not None:
            chosen["generator"] = {"name": self.generator.name, "settings": self.generator.settings()}
        return {**chosen, "attack_settings": dict(self.attack_settings)}

    def for_generator(self, generator: Generator | None) -> ShadowMembership:
        """See :meth:`Metric.for_generator`; ConfigError when there is none at all, or another one is attacked."""
        found = self.generator if self.generator is not None else generator
        named = [(one.name, plain(one.settings())) for one in (found, generator) if one is not None]
        if named[1:] and named[0] != named[1]:
            raise ConfigError(
                "metric shadow_membership is to attack another generator than that of the synthetic table. Fix: leave"
                " the generator out of the metric's settings."
            )
        if found is None:
            raise ConfigError(
                "metric shadow_membership attacks the generator, and the synthetic table comes without one. Name it in"
                " the metric's settings, for example {shadow_membership: {generator: baynet}}, or leave the metric out."
            )
        return replace(self, generator=found)

    @property
    def uses_device(self) -> bool:
        """See :attr:`Metric.uses_device`."""
        return self.attack == "attention"

    def measure(self, inputs: MetricInputs) -> Measured:
        """Audit the generator; tables "records" (ids are role and row position there, from 0) and "roc"."""
        from privacy_assets.shadow.audit import run_audit

        self.for_generator(None)
        roles = inputs.real_roles
        cells, coding = inputs.coded()
        subjects = inputs.subject_codes(*roles) if inputs.subjects else None
        device = {"device": inputs.device} if self.uses_device else {}
        inputs.progress(
            f"shadow membership: {self.records} records, for each {self.shadows + self.tests:,} fits of "
            f"{self.generator.name} to {self.size:,} rows"
        )
        seed = int(inputs.rng("shadow_membership").integers(2**31))
        plan = self._plan({**device, **self.attack_settings})
        audit = run_audit(cells, coding, plan, seed=seed, subjects=subjects, progress=inputs.progress)
        estimates = _estimates(audit, self._taught(), inputs.rng("shadow_membership null"))
        return Measured(estimates, {"records": _records(audit, inputs), "roc": _curves(audit)})

    def _taught(self) -> int:
        """Shadow sets behind the attack; 0 where it is weaker than the default one: what it misses is no evidence."""
        from privacy_assets.shadow.attacks import attack_settings

        usual, mine = (asdict(attack_settings(self.attack, given)) for given in ({}, self.attack_settings))
        changed = {key for key, value in mine.items() if value != usual[key]} - {"device"}
        more = {key for key in changed & _MORE if mine[key] is None or mine[key] > usual[key]}
        weaker = self.select != "distance" or (self.sample_size or self.size) < self.size or changed - more
        return 0 if weaker else self.shadows

    def _plan(self, attack_settings: Mapping[str, Any]) -> AuditPlan:
        from privacy_assets.shadow.plan import AuditPlan

        chosen = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return AuditPlan(**{**chosen, "attack_settings": dict(attack_settings)})


def _estimates(audit: Audit, taught: int, rng: np.random.Generator) -> tuple[Estimate, ...]:
    """The statistics; their n are tests, or the ``taught`` shadow sets where these are fewer."""
    from privacy_assets.shadow.rates import auc, epsilon_bound, tpr_at

    records, tests = audit.records, audit.plan.tests
    games, together = len(records) * tests, 1 - (1 - CONFIDENCE) / len(records)
    rates = [auc(record.scores, record.labels, together) for record in records]
    bounds = [epsilon_bound(record.scores, record.labels, record.epsilon.cut, together) for record in records]
    low = tpr_at(*_pooled(records), LOW_FPR)
    value, below, above = _mean(records)
    worst = (max(rate.value for rate in rates), max(rate.low for rate in rates), max(rate.high for rate in rates))
    usual, extreme = _null_bounds(records, together, rng)

    def estimate(name: str, numbers: tuple[float, float, float], n: int, **more: Any) -> Estimate:
        return ShadowMembership.spec(name).estimate(*numbers, (n, min(n, taught)), **more)

    note = f"a lower bound; these counts could show {bounds[0].certifiable:.3g} at most"
    return (
        estimate("auc", (value, below, above), games, minimum_detectable_effect=usual),
        estimate("auc_worst", worst, tests, minimum_detectable_effect=extreme),
        estimate("tpr_at_low_fpr", (low.value, low.low, low.high), games, note=low.note),
        estimate("epsilon_lower_bound", (max(bound.value for bound in bounds),) * 3, tests, note=note),
    )


def _mean(records: tuple[RecordAudit, ...]) -> tuple[float, float, float]:
    """Mean AUC over the records, with the wider one of two 95 % intervals.

    One takes the records for a sample of such records (Student); the other only the tests for one, and is all there is
    of a single record.
    """
    from privacy_assets.shadow.plan import summary

    found = summary(records)
    mean, by_tests = found["mean"], math.hypot(*((record.auc.high - record.auc.low) / 2 for record in records))
    if len(records) == 1:
        return mean, records[0].auc.low, records[0].auc.high
    half = max(by_tests / len(records), (found["high"] - found["low"]) / 2)
    return mean, max(mean - half, 0.0), min(mean + half, 1.0)


def _null_bounds(records: tuple[RecordAudit, ...], together: float, rng: np.random.Generator) -> tuple[float, float]:
    """What the upper ends of ``auc`` and ``auc_worst`` stay within in 99.5 % of cases when no record can be told.

    Drawn from the normal law of rank sums: tests with and without the record are independent by design, so that there
    are no labels of people to permute.
    """
    from scipy import stats

    members, n = int(records[0].labels.sum()), len(records)
    others = len(records[0].labels) - members
    sd = math.sqrt((members + others + 1) / (12 * members * others))  # of the AUC of one record
    drawn = rng.normal(0.5, sd, (_DRAWS, n))
    half = np.full(_DRAWS, stats.norm.ppf(0.5 + CONFIDENCE / 2) * sd / math.sqrt(n))
    if n > 1:
        half = np.maximum(half, stats.t.ppf(0.5 + CONFIDENCE / 2, n - 1) * drawn.std(axis=1, ddof=1) / math.sqrt(n))
    ends = drawn.mean(axis=1) + half, drawn.max(axis=1) + stats.norm.ppf(0.5 + together / 2) * sd
    usual, extreme = (float(np.quantile(end, MDE_QUANTILE)) for end in ends)
    return min(usual, 1.0), min(extreme, 1.0)


def _pooled(records: tuple[RecordAudit, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Scores and labels of the tests of all records."""
    return np.concatenate([record.scores for record in records]), np.concatenate([record.labels for record in records])


def _records(audit: Audit, inputs: MetricInputs) -> list[dict[str, Any]]:
    """One row a record, the most exposed first: where it stands, never what it says."""
    rows = []
    for place, record in enumerate(audit.records, start=1):
        role, row = inputs.place_of(record.id)
        rows.append(
            {
                "record": place,
                "role": role,
                "row": row,
                "vulnerability": record.vulnerability,
                "auc": record.auc.value,
                "low": record.auc.low,
                "high": record.auc.high,
                "tpr_at_5_percent_fpr": record.tpr[0.05].value,
                "epsilon_lower_bound": record.epsilon_lower_bound,
            }
        )
    return rows


def _curves(audit: Audit) -> list[dict[str, Any]]:
    """Share of tables with the record that are recognised, by the share of false alarms that is allowed."""
    worst = max(audit.records, key=lambda record: record.auc.value)
    pooled, alone = _tpr(*_pooled(audit.records)), _tpr(worst.scores, worst.labels)
    points = zip(_CURVE.tolist(), pooled, alone, strict=True)
    return [{"fpr": fpr, "all": every, "worst": one} for fpr, every, one in points if not math.isnan(every)]


def _tpr(scores: np.ndarray, labels: np.ndarray) -> list[float]:
    """TPR at every FPR of the grid; NaN where not even one false alarm is allowed."""
    outside, inside = np.sort(scores[~labels]), np.sort(scores[labels])
    allowed = np.floor(_CURVE * len(outside) + 1e-9).astype(np.int64)
    limits = outside[np.maximum(len(outside) - allowed - 1, 0)]
    above = (len(inside) - np.searchsorted(inside, limits, side="right")) / len(inside)
    above[allowed == len(outside)] = 1.0
    return np.where(allowed == 0, np.nan, above).tolist()
