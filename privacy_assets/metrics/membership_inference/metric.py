"""Membership inference without access to the generator (Gretel).

The attacker scores a real row x by how near the synthetic table S has come to it, and calls the best scored members:

- ``distance``: d(x, S);
- ``distance / reference``: d(x, S) / d(x, R), when there is a reference table R;
- ``distance / neighbour``: d(x, S) / distance from x to the nearest row of another subject in T u H, which asks for the
  same thing without seeing who is a member.

If S does not depend on which subjects were in T, the labels of the subjects are exchangeable given the scores: every
interval but that of the protection score comes from permuting labels by subject, at any sizes of T and H. Advantages
vary more where there is a leak (many members crowd at the threshold that few others pass): their intervals are those
over subjects resampled where these are wider, so that they cover the advantage that is there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from privacy_assets.metrics.base import Measured, Metric, rows_of
from privacy_assets.metrics.declarations import Causes, Compared, Intervals, Levels, Protected
from privacy_assets.metrics.inputs import MetricInputs
from privacy_assets.metrics.membership_inference import gretel, no_box, one_run, outliers
from privacy_assets.metrics.membership_inference.scores import (
    RATES,
    Population,
    advantages,
    build_population,
    named_entries,
    with_reference,
)
from privacy_assets.metrics.membership_inference.subgroups import SPEC as ADVANTAGE_SUBGROUPS
from privacy_assets.metrics.membership_inference.subgroups import Subgroups, advantage_subgroups, check_columns
from privacy_assets.metrics.targets import Budget, target_rows
from privacy_assets.settings import declared
from privacy_assets.stats import inference
from privacy_assets.stats.estimates import Estimate, StatisticSpec
from privacy_assets.stats.inference import REPLICATES, Band, Evidence
from privacy_assets.stats.limits import Limit
from privacy_assets.stats.subjects import SMALLEST_SIDE, resample_subjects

HEADLINE_RATE = 0.10
LOW_RATE = 0.001
SMALLEST_FOR_LOW_RATE = 10_000
_NEEDED = f"at least {SMALLEST_SIDE} subjects are needed"
PURPOSE = "membership_inference.attacked"  # of the draw of who is attacked, where not everybody is
_HEADLINE = RATES.index(HEADLINE_RATE)


def attack(
    population: Population, permutations: int, rng: np.random.Generator
) -> tuple[list[Estimate], list[dict[str, Any]]]:
    """The label-conditional statistics of everybody, and the table "curve" with bands that hold for the whole of it."""
    whole = population.fitted()

    def statistic(labels: np.ndarray) -> np.ndarray:
        rates = [score.rates(labels, (*RATES, LOW_RATE)) for score in whole]
        gaps = [(tpr - fpr)[:, :-1] for tpr, fpr in rates]
        precisions = [_precision(tpr[:, _HEADLINE], fpr[:, _HEADLINE]) for tpr, fpr in rates]
        low = [tpr[:, -1] for tpr, _ in rates]
        return np.column_stack([*gaps, *precisions, *low])

    found = inference.test(statistic, population, permutations, rng)
    scores, tried = len(whole), len(whole) * len(RATES)
    draws = resample_subjects(population.member, REPLICATES, rng, partial(advantages, whole), population.block)
    advantage = replace(found[:tried], resampled=draws)
    curve = [score.rates(population.member.astype(np.float32)[None], RATES) for score in whole]
    entries, headline = named_entries(population), slice(_HEADLINE, None, len(RATES))
    estimates = [
        advantage[headline].worst(_SPECS["advantage"], population.counts, entries[headline], "headline"),
        advantage.worst(_SPECS["advantage_any"], population.counts, entries, "strongest"),
        _precision_estimate(population, found[tried : tried + scores], curve),
        _low_rate_estimate(population, found[tried + scores :]),
    ]
    return estimates, _curve_table(population, curve, advantage.band())


def _precision(tpr: np.ndarray, fpr: np.ndarray) -> np.ndarray:
    """Share of members among the positives at prior 1/2; 1/2 where nobody is named."""
    named = tpr + fpr
    return np.where(named > 0, tpr / np.where(named > 0, named, 1), 0.5)


def _precision_estimate(
    population: Population, drawn: Evidence, rates: Sequence[tuple[np.ndarray, np.ndarray]]
) -> Estimate:
    """Precision of the best score that names enough rows, counted as if both sides had the rows of the smaller one."""
    spec, smaller = _SPECS["precision"], min(population.side(True)[0], population.side(False)[0])
    named = np.array([smaller * (tpr + fpr)[0, _HEADLINE] for tpr, fpr in rates])
    enough = np.flatnonzero(named >= gretel.SMALLEST_POSITIVES)
    if len(enough) == 0:
        reason = f"{named.max():.0f} predicted positives, {gretel.SMALLEST_POSITIVES} needed"
        return spec.not_measurable(reason, population.counts)
    return drawn[enough].worst(spec, population.counts, np.array(list(population.scores))[enough], "headline")


def _low_rate_estimate(population: Population, drawn: Evidence) -> Estimate:
    spec, others = _SPECS["tpr_low_fpr"], population.side(False)[0]
    if others < SMALLEST_FOR_LOW_RATE:
        reason = f"{others} non-members, {SMALLEST_FOR_LOW_RATE} needed for a false positive rate of {LOW_RATE}"
        return spec.not_measurable(reason, population.counts)
    return drawn.worst(spec, population.counts, list(population.scores), "headline")


def _curve_table(
    population: Population, rates: Sequence[tuple[np.ndarray, np.ndarray]], band: Band
) -> list[dict[str, Any]]:
    tpr, fpr = (np.concatenate([one[0] for one in sides]) for sides in zip(*rates, strict=True))
    scores = np.repeat(list(population.scores), len(RATES))
    return rows_of(score=scores, fpr=fpr, tpr=tpr, advantage=tpr - fpr, low=band.low, high=band.high)


def protect(population: Population, rng: np.random.Generator) -> tuple[Estimate, dict[str, list[dict[str, Any]]]]:
    """Gretel's score with the interval of a bootstrap by subject, and the tables "levels" and "grade"."""
    grid, member = gretel.AttackGrid(), population.member
    counts = grid.counts(population.scores["distance"], population.codes)
    points = grid.points(counts, member, rng)
    score, spec = gretel.mean_points(points), _SPECS["protection_score"]
    shown = {"grade": gretel.grade(score), "score": score, "attacks": int((~np.isnan(points)).sum())}
    tables = {"levels": gretel.level_table(points), "grade": [shown]}
    if math.isnan(score):
        reason = f"no attack has {gretel.SMALLEST_POSITIVES} predicted positives"
        return spec.not_measurable(reason, population.counts), tables
    low, high, mde = inference.bootstrap(
        member,
        lambda label: grid.bootstrap(counts, label, REPLICATES, rng),
        lambda: grid.permuted(counts, member, REPLICATES, rng),
        lambda label: gretel.mean_points(grid.points(counts, label, rng)),
        rng,
    )
    ends, note = (min(low, score), max(high, score)), f"grade {gretel.grade(score)}"
    return spec.estimate(score, *ends, population.counts, minimum_detectable_effect=mde, note=note), tables


_SPECS = {
    spec.name: spec
    for spec in (
        StatisticSpec(
            "advantage",
            "True minus false positive rate of the best attack at 10 % false positives; negative: members are avoided.",
            "two_sided",
        ),
        StatisticSpec(
            "advantage_any",
            "True minus false positive rate where the evidence is strongest, over all attacks and thresholds.",
            "two_sided",
        ),
        outliers.ADVANTAGE_OUTLIERS,
        outliers.OUTLIER_EXCESS,
        outliers.OUTLIER_MATCHES,
        ADVANTAGE_SUBGROUPS,
        StatisticSpec(
            "precision",
            "Share of members among those the best attack names, when half are members and 10 % of the others pass.",
            null=0.5,
        ),
        StatisticSpec(
            "tpr_low_fpr", "Share of the members found at one false accusation in 1,000 non-members.", null=LOW_RATE
        ),
        StatisticSpec(
            "protection_score",
            "Gretel's membership inference protection: 0 (members are known) to 100 (guessing), mean over attacks.",
            "lower_is_riskier",
            100.0,
        ),
        *no_box.SPECS,
        one_run.SPEC,
    )
}


@declared
class MembershipInference(Metric):
    """Membership inference attacks on the published table; scores and thresholds as in the module's docstring.

    Members and non-members weigh the same (prior 1/2): rates are taken over all rows of each side, so that no copy is
    lost by drawing as many members as there are non-members. ``permutations`` of the subjects' labels give the
    intervals. ``advantage`` has rows enough for evidence of safety; ``advantage_any`` and ``advantage_outliers`` are
    the entries farthest from chance, whose near end is what is significant. With fewer than 20 subjects on a side
    nothing is measurable. ``subgroups`` are columns whose values are attacked one by one, see :mod:`~.subgroups`;
    ``max_targets`` is a budget of rows (:mod:`~.targets`), for which S, R and the neighbours are searched whole.
    """

    permutations: int = Field(default=999, ge=199, description="permutations of the labels of people")
    subgroups: Subgroups = Field(default=(), description="columns whose values are attacked one by one")
    max_targets: Budget = Field(default=None, description="most rows that are attacked; all of them without")

    name = "membership_inference"
    summary = "Can the published table tell who was in the training data?"
    needs = frozenset({"train", "holdout", "synthetic"})
    optional = frozenset({"reference"})
    statistics = tuple(_SPECS.values())
    default_limits = (
        Limit(
            "membership_inference.outlier_matches",
            at_most=0.0,
            bound="lower",
            source="significant at 99 %, by an exact interval; nothing is tolerated",
        ),
        Limit(
            "membership_inference.precision",
            at_most=0.7,
            source="chosen: releases without a leak stay within 0.67 where 1,500 people are in train (48 of 48; "
            "see the lab report on leaks)",
        ),
    )
    small_limits: ClassVar[Mapping[str, float]] = {"membership_inference.precision": 0.75}

    plots = (
        Intervals(
            table="curve",
            caption="Membership advantage: share of members found, minus the share of non-members wrongly taken for "
            "members, at each rate of false alarms. Zero is guessing.",
            x="fpr",
            y="advantage",
            series=("score",),
            labels=("false positive rate (logarithmic)", "advantage"),
            log=True,
        ),
        Levels(
            table="levels",
            caption="Protection level reached by each simulated membership attack, after Gretel. Unavailable: fewer "
            "than 50 people named, too few to tell a precision.",
        ),
        Intervals(
            table="subgroups",
            caption="Membership advantage in each declared subgroup, where its evidence is strongest; intervals hold "
            "for all of them together. Zero is guessing.",
            x="group",
            y="advantage",
            series=("column",),
            labels=("group, the largest first", "advantage"),
        ),
    )
    question = "membership"
    causes = Causes(
        "over-fitting", dict.fromkeys(("advantage_outliers", "outlier_excess", "outlier_matches"), "rare values")
    )
    protections = (
        Protected("memorization", ("precision",), mainly=False),
        Protected("outliers", ("advantage_outliers", "outlier_excess", "outlier_matches")),
        Protected("over-fitting", ("advantage", "protection_score")),
    )
    compared = Compared("precision", "attack precision", "Precision of the best membership attack: 0.5 is guessing.")
    protection_score = {"membership": "protection_score"}

    def measure(self, inputs: MetricInputs) -> Measured:
        """Compute statistics and the tables "curve", "levels", "grade" and, when there are any declared,
        "subgroups".
        """
        check_columns(self.subgroups, inputs.schema)
        subjects = [np.unique(inputs.subject_codes(role)).size for role in ("train", "holdout")]
        counts = (len(inputs.train) + len(inputs.holdout), sum(subjects))
        if min(subjects) < SMALLEST_SIDE or len(inputs.synthetic) == 0:
            return self.not_measurable(f"{_NEEDED} in train and in holdout, and a synthetic row", counts)
        rows = target_rows(inputs, ("train", "holdout"), self.max_targets, PURPOSE)
        found = no_box.score_rows(inputs, rows)
        population = build_population(inputs, found.distances if found else None, rows)
        if not population.measurable:
            return self.not_measurable(f"{_NEEDED} of train and of holdout among those attacked", population.counts)
        leaks, curve = attack(population, self.permutations, inputs.rng("membership_inference.labels"))
        protection, tables = protect(population, inputs.rng("membership_inference.grid"))
        rng = inputs.rng("membership_inference.subgroups")
        grouped, groups = advantage_subgroups(inputs, population, self.subgroups, self.permutations, rng)
        others = no_box.auc_estimates(population, found, self.permutations, inputs.rng("membership_inference.no_box"))
        epsilon = one_run.epsilon_one_run(population, inputs.rng("membership_inference.pairs"))
        remote = outliers.advantage_outliers(population, self.permutations, inputs.rng("membership_inference.isolated"))
        matches = outliers.outlier_matches(with_reference(inputs, population))
        every = (*leaks, remote, outliers.outlier_excess(population), matches, grouped, protection, *others, epsilon)
        tables, by_name = {"curve": curve, **tables}, {estimate.name: estimate for estimate in every}
        tables |= {"subgroups": groups} if groups else {}
        return Measured(tuple(by_name[name] for name in _SPECS), tables)
