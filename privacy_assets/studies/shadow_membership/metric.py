"""Shadow-model membership attacks on the most vulnerable records (Meeus et al. 2023, "Achilles'
Heels", section 5).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field

from privacy_assets.errors import ConfigError
from privacy_assets.infra.settings import BY_TABLE, Dict, declared
from privacy_assets.metrics.base import Causes, CurvePlot, IntervalPlot, Metric, ProtectionEvidence
from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.metrics.vulnerability import Distance, Selector
from privacy_assets.policy import Limit
from privacy_assets.stats.estimates import Estimate, MetricResult, StatisticSpec, to_jsonable
from privacy_assets.stats.intervals import CONFIDENCE, MDE_QUANTILE
from privacy_assets.studies.shadow_membership.audit import AttackName, Even, Sampling

if TYPE_CHECKING:
    from privacy_assets.generators.base import Generator
    from privacy_assets.studies.shadow_membership.audit import Audit, AuditConfig, RecordAudit

LOW_FPR = 0.01
_CURVE = 10.0 ** np.linspace(-4, 0, 41)  # false positive rates of the curves
_EPSILON_1 = "an attack on a generator with epsilon 1 has an AUC of at most e / (1 + e) = 0.731"
_ROC = {
    "all records": ("fpr", "all"),
    "most vulnerable record": ("fpr", "worst"),
    "guessing": ("fpr", "fpr"),
}
_ROC_LABELS = (
    "false positive rate (tables without the record)",
    "true positive rate (tables with it)",
)
_DRAWS = 4000
# Settings that weaken an attack only if they are smaller.
_MORE = {"trees", "depth", "closest", "epochs", "patience"}


@declared
class ShadowMembership(Metric):
    """Membership of vulnerable records, attacked with shadow models of the generator.

    The attacker knows the generator and has other rows of the same population. It fits the
    generator many times, with and without one person's record, and learns to distinguish the
    synthetic tables. This evaluates the generator, not one release, at training sets of ``size``
    rows; in larger ones a record has less influence and is harder to detect.

    Args:
        generator: Name of a generator, or a mapping of ``name`` and ``settings``. None: the
            generator of the synthetic table, which must not differ from a configured one.
        max_targets: Maximum number of attacked records.
        select: Method of selecting records. "distance": those farthest from records of other
            subjects.
        n_neighbors: Number of nearest records of others in the vulnerability score.
        distance: Distance of the vulnerability score.
        shadows: Number of training sets that the attack learns from, half of them with the record.
        tests: Number of training sets that evaluate the attack, half of them with the record.
        size: Number of rows of a training set.
        sample_size: Number of rows to generate. None: ``size``.
        auxiliary: Share of the real rows for shadow sets. The others form the test sets.
        attack: Attack on the synthetic tables.
        attack_settings: Settings of the attack.
        sampling: Method of drawing training sets.

    Attributes:
        auc: Mean AUC over the records.
        auc_worst: AUC of the record that is detected most easily.
        tpr_at_low_fpr: True positive rate at 1 % false positives, over all records.
        epsilon_lower_bound: Lower bound of epsilon at 95 % for all records together.

    Notes:
        With declared subjects, no other row of the record's subject is in any set. Every set
        requires a fit of the generator, 4,200 per record by default, so the metric does not run by
        default. Settings are validated by
        :class:`privacy_assets.studies.shadow_membership.audit.AuditConfig`.
    """

    name = "shadow_membership"
    summary = (
        "Can an attacker detect that a vulnerable record was in training? Attacks on the generator."
    )
    required_inputs = frozenset({"train", "holdout"})
    optional_inputs = frozenset({"reference"})
    runs_by_default = False
    statistics = (
        StatisticSpec(
            "auc",
            "AUC of distinguishing tables with a record from tables without it, mean over records.",
            null=0.5,
        ),
        StatisticSpec(
            "auc_worst",
            "AUC for the record that is detected most easily.",
            null=0.5,
        ),
        StatisticSpec(
            "tpr_at_low_fpr",
            "Share of tables with the record that are recognized at 1 % false positives, over"
            " all records.",
            null=LOW_FPR,
        ),
        StatisticSpec(
            "epsilon_lower_bound",
            "Lower bound of epsilon of differential privacy, at 95 % for all records.",
            range=(0.0, 20.0),  # more would require attacking e^20 tables
        ),
    )
    default_limits = (
        Limit("shadow_membership.auc", at_most=0.73, min_subjects=1000, source=_EPSILON_1),
        Limit(
            "shadow_membership.epsilon_lower_bound",
            at_most=1.0,
            bound="proven",
            min_subjects=100,
            source="disproves epsilon 1 at 95 % for all records jointly",
        ),
    )

    attacks_generator = True
    plots = (
        IntervalPlot(
            table="records",
            caption="AUC of distinguishing synthetic tables generated with and without the record:"
            " 0.5 is guessing, 1 "
            "is always right. Each interval holds for its record only.",
            x="record",
            y="auc",
            series=("role",),
            axis_labels=("record, the most vulnerable first", "AUC"),
            null=0.5,
        ),
        CurvePlot(
            table="roc",
            caption="Share of recognized tables with the record, by allowed share of false"
            " positives."
            " Curves above the "
            "line of guessing reveal membership.",
            curves=_ROC,
            axis_labels=_ROC_LABELS,
        ),
        CurvePlot(
            table="roc",
            caption="ROC curve on logarithmic axes: a few records recognized without false"
            " positives"
            " matter more than "
            "the average.",
            curves=_ROC,
            axis_labels=_ROC_LABELS,
            log=True,
        ),
    )
    question = "membership"
    seen_in_copy = False  # it attacks the generator
    causes = Causes("over-fitting", undecided="few tests")
    protections = (ProtectionEvidence("differential privacy", ("epsilon_lower_bound",)),)

    generator: Any = Field(
        default=None,
        title="a name, a mapping of name and settings, or a function",
        json_schema_extra=BY_TABLE,
    )
    max_targets: int = Field(default=10, ge=1)
    select: Selector = "distance"
    n_neighbors: int = Field(default=5, ge=1)
    distance: Distance = "cosine"
    shadows: Even = 4000
    tests: Even = 200
    size: int = Field(default=1000, ge=2)
    sample_size: int | None = Field(default=None, ge=1)
    auxiliary: float = Field(default=2 / 3, gt=0, lt=1)
    attack: AttackName = "queries"
    attack_settings: Annotated[dict[str, Any], Dict] = Field(default_factory=dict)
    sampling: Sampling = "subsample"

    def __post_init__(self) -> None:
        if self.generator is not None:
            from privacy_assets.generators.registry import as_generator

            object.__setattr__(self, "generator", as_generator(self.generator))
        try:
            self._plan(self.attack_settings)
        except ConfigError as error:
            raise ConfigError(f"metric shadow_membership: {error}") from None

    def _field_values(self) -> dict[str, Any]:
        """Return the settings by name, without conversion."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def settings(self) -> dict[str, Any]:
        """Return the settings by name, with the generator as name and settings."""
        settings = self._field_values()
        if self.generator is not None:
            settings["generator"] = {
                "name": self.generator.name,
                "settings": self.generator.settings(),
            }
        return {**settings, "attack_settings": dict(self.attack_settings)}

    def for_generator(self, generator: Generator | None) -> ShadowMembership:
        """Bind the metric to the generator, see :meth:`Metric.for_generator`.

        Raises ConfigError if there is no generator, or if it differs from the configured one.
        """
        is_configured = self.generator is not None and generator is not None
        if is_configured and _description(self.generator) != _description(generator):
            raise ConfigError(
                "metric shadow_membership is configured for another generator than the"
                " synthetic table. Fix: remove"
                " the generator from the metric's settings."
            )
        if self.generator is not None:
            generator = self.generator
        if generator is None:
            raise ConfigError(
                "metric shadow_membership requires a generator. Fix: name it in the metric's"
                " settings, for example"
                " {shadow_membership: {generator: baynet}}, or remove the metric."
            )
        return replace(self, generator=generator)

    @property
    def uses_device(self) -> bool:
        """See :attr:`Metric.uses_device`."""
        return self.attack == "attention"

    def measure(self, inputs: EvaluationInputs) -> MetricResult:
        """Audit the generator. Tables: "records" (with role and zero-based row position) and
        "roc".
        """
        from privacy_assets.studies.shadow_membership.audit import run_audit

        self.for_generator(None)
        roles = inputs.real_roles
        cells, coding = inputs.release.coded_cells()
        subjects = None
        if inputs.release.subjects:
            subjects = inputs.subject_codes(*roles)
        attack_settings = dict(self.attack_settings)
        if self.uses_device:
            attack_settings = {"device": inputs.device, **attack_settings}
        inputs.progress(
            f"shadow membership: {self.max_targets} records, {self.shadows + self.tests:,} fits of "
            f"{self.generator.name} to {self.size:,} rows for each"
        )
        seed = int(inputs.rng("shadow_membership").integers(2**31))
        plan = self._plan(attack_settings)
        audit = run_audit(
            cells, coding, plan, seed=seed, subjects=subjects, progress=inputs.progress
        )
        estimates = _estimates(
            audit, self._shadows_as_evidence(), inputs.rng("shadow_membership null")
        )
        return self.result(inputs, estimates, records=_records(audit, inputs), roc=_curves(audit))

    def _shadows_as_evidence(self) -> int:
        """Return the number of shadow sets, or 0 if the attack is weaker than the default one.

        The failure of a weaker attack is not evidence.
        """
        if self.select != "distance":
            return 0
        if self.sample_size is not None and self.sample_size < self.size:
            return 0
        if self._has_weaker_attack():
            return 0
        return self.shadows

    def _has_weaker_attack(self) -> bool:
        """Return whether a setting of the attack may weaken it."""
        from privacy_assets.studies.shadow_membership.attacks import attack_settings

        defaults = asdict(attack_settings(self.attack, {}))
        settings = asdict(attack_settings(self.attack, self.attack_settings))
        for key, value in settings.items():
            if key == "device" or value == defaults[key]:
                continue
            is_stronger = key in _MORE and (value is None or value > defaults[key])
            if not is_stronger:
                return True
        return False

    def _plan(self, attack_settings: Mapping[str, Any]) -> AuditConfig:
        from privacy_assets.studies.shadow_membership.audit import AuditConfig

        settings = self._field_values()
        return AuditConfig(**{**settings, "attack_settings": dict(attack_settings)})


def _description(generator: Any) -> tuple[str, Any]:
    """Return name and settings, to be compared."""
    return generator.name, to_jsonable(generator.settings())


def _estimates(audit: Audit, n_shadows: int, rng: np.random.Generator) -> tuple[Estimate, ...]:
    """Return the estimates. Their n is the number of tests, or ``n_shadows`` sets if fewer."""
    from privacy_assets.studies.shadow_membership.rates import auc, epsilon_bound, tpr_at

    records = audit.records
    n_tests = audit.plan.tests
    n_games = len(records) * n_tests
    joint = 1 - (1 - CONFIDENCE) / len(records)
    aucs = []
    bounds = []
    for record in records:
        aucs.append(auc(record.scores, record.labels, joint))
        bounds.append(epsilon_bound(record.scores, record.labels, record.epsilon.cut, joint))
    low_tpr = tpr_at(*_pooled(records), LOW_FPR)
    worst_auc = (
        max(rate.value for rate in aucs),
        max(rate.low for rate in aucs),
        max(rate.high for rate in aucs),
    )
    epsilon = max(bound.value for bound in bounds)
    mean_mde, worst_mde = _null_bounds(records, joint, rng)

    def estimate(name: str, interval: tuple[float, float, float], n: int, **extra: Any) -> Estimate:
        spec = ShadowMembership.statistic(name)
        return spec.estimate(*interval, (n, min(n, n_shadows)), **extra)

    note = f"a lower bound; these counts can show {bounds[0].certifiable:.3g} at most"
    return (
        estimate("auc", _mean(records), n_games, minimum_detectable_effect=mean_mde),
        estimate("auc_worst", worst_auc, n_tests, minimum_detectable_effect=worst_mde),
        estimate(
            "tpr_at_low_fpr",
            (low_tpr.value, low_tpr.low, low_tpr.high),
            n_games,
            note=low_tpr.note,
        ),
        estimate("epsilon_lower_bound", (epsilon, epsilon, epsilon), n_tests, note=note),
    )


def _mean(records: tuple[RecordAudit, ...]) -> tuple[float, float, float]:
    """Return the mean AUC over the records, with the wider of two 95 % intervals.

    One regards the records as a sample (Student); the other regards only the tests as a sample, and
    is used alone for a single record.
    """
    from privacy_assets.studies.shadow_membership.audit import summary

    if len(records) == 1:
        rate = records[0].auc
        return rate.value, rate.low, rate.high
    over_records = summary(records)
    mean = over_records["mean"]
    half_widths = [(record.auc.high - record.auc.low) / 2 for record in records]
    by_tests = math.hypot(*half_widths) / len(records)
    by_records = (over_records["high"] - over_records["low"]) / 2
    half_width = max(by_tests, by_records)
    return mean, max(mean - half_width, 0.0), min(mean + half_width, 1.0)


def _null_bounds(
    records: tuple[RecordAudit, ...], joint: float, rng: np.random.Generator
) -> tuple[float, float]:
    """Return the 99.5 % quantiles of the upper ends of ``auc`` and ``auc_worst`` if no record can
    be detected.

    They are drawn from the normal distribution of rank sums: tests with and without the record are
    independent by design, so there are no labels of subjects to permute.
    """
    from scipy import stats

    n = len(records)
    n_inside = int(records[0].labels.sum())
    n_outside = len(records[0].labels) - n_inside
    # of the AUC of one record
    sd = math.sqrt((n_inside + n_outside + 1) / (12 * n_inside * n_outside))
    null = rng.normal(0.5, sd, (_DRAWS, n))
    half_widths = np.full(_DRAWS, stats.norm.ppf(0.5 + CONFIDENCE / 2) * sd / math.sqrt(n))
    if n > 1:
        quantile = stats.t.ppf(0.5 + CONFIDENCE / 2, n - 1)
        student = quantile * null.std(axis=1, ddof=1) / math.sqrt(n)
        half_widths = np.maximum(half_widths, student)
    mean_highs = null.mean(axis=1) + half_widths
    worst_highs = null.max(axis=1) + stats.norm.ppf(0.5 + joint / 2) * sd
    mean_bound = float(np.quantile(mean_highs, MDE_QUANTILE))
    worst_bound = float(np.quantile(worst_highs, MDE_QUANTILE))
    return min(mean_bound, 1.0), min(worst_bound, 1.0)


def _pooled(records: tuple[RecordAudit, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return scores and labels of the tests of all records."""
    scores = np.concatenate([record.scores for record in records])
    labels = np.concatenate([record.labels for record in records])
    return scores, labels


def _records(audit: Audit, inputs: EvaluationInputs) -> list[dict[str, Any]]:
    """Return a row for each record, the most vulnerable first, with its position but no values."""
    rows = []
    for rank, record in enumerate(audit.records, start=1):
        role, row = inputs.release.role_and_position(record.id)
        rows.append(
            {
                "record": rank,
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
    """Return the share of recognized tables with the record, by allowed share of false alarms."""
    worst = max(audit.records, key=lambda record: record.auc.value)
    pooled_tprs = _tpr(*_pooled(audit.records))
    worst_tprs = _tpr(worst.scores, worst.labels)
    points = []
    for fpr, pooled_tpr, worst_tpr in zip(_CURVE.tolist(), pooled_tprs, worst_tprs, strict=True):
        if not math.isnan(pooled_tpr):
            points.append({"fpr": fpr, "all": pooled_tpr, "worst": worst_tpr})
    return points


def _tpr(scores: np.ndarray, labels: np.ndarray) -> list[float]:
    """Return the TPR at every FPR of the grid. NaN if not even one false alarm is allowed."""
    outside = np.sort(scores[~labels])
    inside = np.sort(scores[labels])
    allowed = np.floor(_CURVE * len(outside) + 1e-9).astype(np.int64)
    limits = outside[np.maximum(len(outside) - allowed - 1, 0)]
    above = (len(inside) - np.searchsorted(inside, limits, side="right")) / len(inside)
    above[allowed == len(outside)] = 1.0
    return np.where(allowed == 0, np.nan, above).tolist()
