"""Membership inference without access to the generator (Gretel)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from privacy_assets.infra.settings import BY_TABLE, declared
from privacy_assets.metrics.base import (
    Causes,
    FilterComparison,
    IntervalPlot,
    LevelPlot,
    Metric,
    ProtectionEvidence,
    table_rows,
)
from privacy_assets.metrics.inputs import Budget, EvaluationInputs, target_rows
from privacy_assets.metrics.membership_inference import classifier, gretel, no_box, outliers
from privacy_assets.metrics.membership_inference import no_box as one_run
from privacy_assets.metrics.membership_inference.outliers import SPEC as ADVANTAGE_SUBGROUPS
from privacy_assets.metrics.membership_inference.outliers import (
    Subgroups,
    advantage_subgroups,
    check_columns,
)
from privacy_assets.metrics.membership_inference.scores import (
    RATES,
    CrossFittedScore,
    Population,
    advantages,
    build_population,
    named_entries,
    with_reference,
)
from privacy_assets.policy import Limit
from privacy_assets.stats import inference
from privacy_assets.stats.estimates import Estimate, MetricResult, StatisticSpec
from privacy_assets.stats.inference import N_BOOTSTRAPS, Band, PermutationResult
from privacy_assets.stats.subjects import MIN_SUBJECTS_PER_SIDE, resample_subjects

HEADLINE_RATE = 0.10
LOW_RATE = 0.001
SMALLEST_FOR_LOW_RATE = 10_000
LOW_RATES = {"tpr_1_fpr": 0.01, "tpr_10_fpr": 0.10}  # by statistic
SMALLEST_FOR_LOW_RATES = 300  # non-members: 1 % are three
_NEEDED = f"at least {MIN_SUBJECTS_PER_SIDE} people are required"
PURPOSE = "membership_inference.attacked"  # random stream for drawing attacked subjects
_HEADLINE = RATES.index(HEADLINE_RATE)
_ATTACKS = {"auc_dpi": "DPI", "auc_domias": "DOMIAS", "auc_gen_lra": "Gen-LRA"}


def attack(
    population: Population, n_permutations: int, rng: np.random.Generator
) -> tuple[list[Estimate], list[dict[str, Any]]]:
    """Return the statistics over all subjects, and the table "curve" with simultaneous bands."""
    whole = population.fitted()

    def statistic(labels: np.ndarray) -> np.ndarray:
        rates = [score.rates(labels, (*RATES, LOW_RATE)) for score in whole]
        gaps = [(tpr - fpr)[:, :-1] for tpr, fpr in rates]
        precisions = [_precision(tpr[:, _HEADLINE], fpr[:, _HEADLINE]) for tpr, fpr in rates]
        low = [tpr[:, -1] for tpr, _ in rates]
        return np.column_stack([*gaps, *precisions, *low])

    found = inference.permutation_test(statistic, population, n_permutations, rng)
    scores, tried = len(whole), len(whole) * len(RATES)
    draws = resample_subjects(
        population.member, N_BOOTSTRAPS, rng, partial(advantages, whole), population.block
    )
    advantage = replace(found[:tried], resampled=draws)
    curve = [score.rates(population.member.astype(np.float32)[None], RATES) for score in whole]
    entries, headline = named_entries(population), slice(_HEADLINE, None, len(RATES))
    estimates = [
        advantage[headline].worst(
            _SPECS["advantage"], population.counts, entries[headline], "headline"
        ),
        advantage.worst(_SPECS["advantage_any"], population.counts, entries, "strongest"),
        _precision_estimate(population, found[tried : tried + scores], curve),
        _low_rate_estimate(population, found[tried + scores :]),
    ]
    return estimates, _curve_table(population, curve, advantage.band())


def _precision(tpr: np.ndarray, fpr: np.ndarray) -> np.ndarray:
    """Return the share of members among predicted positives at prior 1/2. 1/2 if there are none."""
    named = tpr + fpr
    return np.where(named > 0, tpr / np.where(named > 0, named, 1), 0.5)


def _precision_estimate(
    population: Population, drawn: PermutationResult, rates: Sequence[tuple[np.ndarray, np.ndarray]]
) -> Estimate:
    """Return the precision of the best score with enough positives, counted as if both sides had
    the smaller size.
    """
    spec, smaller = _SPECS["precision"], min(population.side(True)[0], population.side(False)[0])
    named = np.array([smaller * (tpr + fpr)[0, _HEADLINE] for tpr, fpr in rates])
    enough = np.flatnonzero(named >= gretel.SMALLEST_POSITIVES)
    if len(enough) == 0:
        reason = (
            f"the attack calls {named.max():.0f} people members, and {gretel.SMALLEST_POSITIVES}"
            " are required"
        )
        return spec.not_measurable(reason, population.counts)
    return drawn[enough].worst(
        spec, population.counts, np.array(list(population.scores))[enough], "headline"
    )


def _low_rate_estimate(population: Population, drawn: PermutationResult) -> Estimate:
    spec, others = _SPECS["tpr_low_fpr"], population.side(False)[0]
    if others < SMALLEST_FOR_LOW_RATE:
        reason = (
            f"{others} non-members, {SMALLEST_FOR_LOW_RATE} required for a false positive rate of"
            f" {LOW_RATE}"
        )
        return spec.not_measurable(reason, population.counts)
    return drawn.worst(spec, population.counts, list(population.scores), "headline")


def low_rates(
    population: Population,
    scores: Mapping[str, np.ndarray],
    n_permutations: int,
    rng: np.random.Generator,
) -> tuple[list[Estimate], list[dict[str, Any]]]:
    """Return the true positive rates of all attacks at 1 % and 10 % false positives.

    Thresholds are cross-fitted, see :class:`.CrossFittedScore`. For each rate, the 95 % intervals
    hold for all scores jointly. They permute labels and resample subjects; the wider of both is
    used.

    Args:
        population: Attacked rows.
        scores: Scores of these rows by attack, shape (n,); smaller ones are more member-like.
        n_permutations: Number of permutations of the membership labels.
        rng: Generator of the draws.

    Returns:
        The rate of the best score at each false positive rate, and the table "low_rates" with one
        row for each score and rate. With fewer than 300 non-members the estimates are NaN and the
        table is empty.
    """
    specs, others = [_SPECS[name] for name in LOW_RATES], population.side(False)[1]
    if others < SMALLEST_FOR_LOW_RATES:
        reason = f"{others} people in holdout, {SMALLEST_FOR_LOW_RATES} required"
        return [spec.not_measurable(reason, population.counts) for spec in specs], []
    fitted = [
        CrossFittedScore(score, population.codes, population.half) for score in scores.values()
    ]

    def statistic(labels: np.ndarray, times: np.ndarray | None = None) -> np.ndarray:
        rates = [score.rates(labels, tuple(LOW_RATES.values()), times)[0] for score in fitted]
        # rate by rate, so that a slice is one band
        return np.stack(rates, axis=2).reshape(len(rates[0]), -1)

    found = inference.permutation_test(
        statistic, population, n_permutations, rng, n_bootstraps=N_BOOTSTRAPS
    )
    estimates, table, names = [], [], list(scores)
    for at, (spec, fpr) in enumerate(zip(specs, LOW_RATES.values(), strict=True)):
        part = found[at * len(names) : (at + 1) * len(names)]
        estimates.append(part.worst(spec, population.counts, names, "headline"))
        band = part.band()
        low, high = (np.clip(end, 0, 1) for end in (band.low, band.high))
        table += table_rows(
            score=names, fpr=np.full(len(names), fpr), tpr=part.observed, low=low, high=high
        )
    return estimates, table


def _curve_table(
    population: Population, rates: Sequence[tuple[np.ndarray, np.ndarray]], band: Band
) -> list[dict[str, Any]]:
    tpr, fpr = (np.concatenate([one[0] for one in sides]) for sides in zip(*rates, strict=True))
    scores = np.repeat(list(population.scores), len(RATES))
    return table_rows(
        score=scores, fpr=fpr, tpr=tpr, advantage=tpr - fpr, low=band.low, high=band.high
    )


def attack_scores(
    population: Population, found: no_box.NoBoxScores | None, learned: np.ndarray | None
) -> dict[str, np.ndarray]:
    """Return the scores of all attacks by name, shape (n,); smaller ones are more member-like."""
    others = {} if found is None else found.scores
    named = {**population.scores, **{_ATTACKS[name]: -score for name, score in others.items()}}
    return named if learned is None else {**named, classifier.NAME: -learned}


def attack_by_classifier(
    population: Population, score: np.ndarray | None, n_permutations: int, rng: np.random.Generator
) -> list[Estimate]:
    """Return ``auc_classifier`` and ``advantage_classifier``. NaN without scores.

    The interval of the advantage holds for all thresholds jointly, at 99.5 %. These statistics do
    not change the others: ``advantage``, ``advantage_any`` and ``precision`` use the distances
    only.
    """
    if score is None:
        reason = "the setting classifier is off"
        return [
            spec.not_measurable(reason, population.counts)
            for spec in (classifier.AUC, classifier.ADVANTAGE)
        ]
    alone = replace(population, scores={classifier.NAME: -score})
    statistic = partial(advantages, alone.fitted())
    found = inference.permutation_test(
        statistic, alone, n_permutations, rng, n_bootstraps=N_BOOTSTRAPS
    )
    strongest = found.worst(
        classifier.ADVANTAGE, population.counts, named_entries(alone), "strongest"
    )
    return [*no_box.areas({classifier.AUC: score}, population, n_permutations, rng), strongest]


def protect(
    population: Population,
    n_permutations: int | None,
    rng: np.random.Generator,
    labels: np.random.Generator,
) -> tuple[Estimate, dict[str, list[dict[str, Any]]]]:
    """Return Gretel's score with a bootstrap interval by subject, and the tables "levels" and
    "grade".

    Args:
        population: Attacked rows with scores.
        n_permutations: Number of permuted labels that show which accuracies are significant. None:
            the paper's rule for the grade Excellent of one attack, see
            :func:`.gretel.attack_grades`.
        rng: Generator of attacks and bootstraps.
        labels: Generator of the permuted labels.
    """
    grid, member = gretel.AttackGrid(), population.member
    counts = grid.counts(population.scores["distance"], population.codes)
    rates = grid.attacks(counts, member, rng)
    points = gretel.protection_points(*rates)
    chance = None if n_permutations is None else grid.chance(counts, member, n_permutations, labels)
    score, spec = gretel.mean_points(points), _SPECS["protection_score"]
    shown = {
        "grade": gretel.grade(score),
        "score": score,
        "attacks": int((~np.isnan(points)).sum()),
    }
    tables = {"levels": gretel.level_table(gretel.attack_grades(*rates, chance)), "grade": [shown]}
    if math.isnan(score):
        reason = f"no attack has {gretel.SMALLEST_POSITIVES} predicted positives"
        return spec.not_measurable(reason, population.counts), tables
    low, high, mde = inference.bootstrap(
        member,
        lambda label: grid.bootstrap(counts, label, N_BOOTSTRAPS, rng),
        lambda: grid.permuted(counts, member, N_BOOTSTRAPS, rng),
        lambda label: gretel.mean_points(grid.points(counts, label, rng)),
        rng,
    )
    ends = (min(low, score), max(high, score))
    return spec.estimate(score, *ends, population.counts, minimum_detectable_effect=mde), tables


_SPECS = {
    spec.name: spec
    for spec in (
        StatisticSpec(
            "advantage",
            "True minus false positive rate of the best attack at 10 % false positives;"
            " negative: members are avoided.",
            "two_sided",
        ),
        StatisticSpec(
            "advantage_any",
            "True minus false positive rate, strongest evidence over all attacks and thresholds.",
            "two_sided",
        ),
        outliers.ADVANTAGE_OUTLIERS,
        outliers.OUTLIER_EXCESS,
        outliers.OUTLIER_MATCHES,
        ADVANTAGE_SUBGROUPS,
        StatisticSpec(
            "precision",
            "Share of members among the people whom the best attack calls members, if half of"
            " all people are members"
            " (0.5: guessing).",
            null=0.5,
            leak="{share} of the guesses that a person is in the training data were right (50 %:"
            " by chance)",
        ),
        StatisticSpec(
            "tpr_low_fpr",
            "Share of members found at one false positive in 1,000 non-members.",
            null=LOW_RATE,
        ),
        *(
            StatisticSpec(
                name,
                f"Share of members found at {100 * rate:.0f} % false positives, best attack.",
                null=rate,
            )
            for name, rate in LOW_RATES.items()
        ),
        StatisticSpec(
            "protection_score",
            "Gretel's membership inference protection, mean over attacks: 0 (members are known)"
            " to 100 (guessing).",
            "lower_is_riskier",
            100.0,
        ),
        *no_box.SPECS,
        classifier.AUC,
        classifier.ADVANTAGE,
        one_run.SPEC,
    )
}


@declared
class MembershipInference(Metric):
    """Membership inference attacks on the published table.

    The attacker scores a real row x by its distance to the synthetic table S and predicts
    membership for the best scores. Members and non-members have equal weight (prior 1/2); rates use
    all rows of each side, so no copy is missed by sampling.

    Args:
        n_permutations: Number of permutations of the membership labels.
        subgroups: Categorical or boolean columns whose values are attacked separately, see
            :mod:`~.subgroups`.
        max_targets: Maximum number of attacked rows, see :mod:`~.targets`. None: all rows. S, R and
            the neighbors are always searched completely.
        excellent: When one of Gretel's attacks is graded Excellent, see
            :func:`.gretel.attack_grades`. ``not_significant``: precision and accuracy are not
            significantly above 0.5 at 95 %. ``below_half``: both are below 0.5, as the paper
            states. The points do not depend on it.
        classifier: Whether to run the classifier attack, see :mod:`~.classifier`.

    Attributes:
        advantage: True minus false positive rate of the best score at 10 % false positives.
        advantage_any: Strongest advantage over all scores and thresholds. Its near end shows
            significance.
        advantage_outliers: Strongest advantage among the outlying tenth of rows.
        outlier_excess: Excess share of members among the most exposed outliers.
        outlier_matches: Share of outlying members who are matched because of membership.
        advantage_subgroups: Strongest advantage over the declared subgroups.
        precision: Share of members among predicted positives at 10 % false positives. Needs 50
            predicted positives.
        tpr_low_fpr: True positive rate at 0.1 % false positives. Needs 10,000 non-members.
        tpr_1_fpr, tpr_10_fpr: True positive rate at 1 % and 10 % false positives, best of all
            attacks. Need 300 non-members, see :func:`low_rates`.
        protection_score: Gretel's score: mean protection points of simulated attacks, 0 to 100.
        auc_*: No-box attacks of the literature, see :mod:`~.no_box`.
        auc_classifier: AUC of the classifier attack, see :mod:`~.classifier`.
        advantage_classifier: Strongest advantage of the classifier attack over all thresholds.
        epsilon_one_run: Lower bound of epsilon, see :mod:`~.one_run`.

    Notes:
        Scores, smaller ones more member-like:

        - ``distance``: d(x, S);
        - ``distance / reference``: d(x, S) / d(x, R), if there is a reference table R;
        - ``distance / neighbour``: d(x, S) / distance from x to the nearest row of another subject
          in T u H. Calibrated without using labels.

        If S does not depend on which subjects were in T, the labels of subjects are exchangeable
        given the scores. Intervals permute labels by subject, which is valid for any sizes of T and
        H. Intervals of the protection score are bootstraps. Advantages vary more if there is a
        leak, because many members are close to a threshold that few non-members pass; their
        intervals are therefore bootstraps by subject where these are wider.

        Not measurable with fewer than 20 subjects in train or holdout.
    """

    n_permutations: int = Field(
        default=999, ge=199, description="number of permutations of the membership labels"
    )
    subgroups: Subgroups = Field(
        default=(),
        json_schema_extra=BY_TABLE,
        description="columns that define subgroups; people with each value are attacked separately",
    )
    max_targets: Budget = Field(
        default=None, description="maximum number of attacked rows; default: all rows"
    )
    excellent: gretel.Excellent = Field(
        default="not_significant",
        description="when one simulated attack is graded Excellent: precision and accuracy not"
        " significantly above 0.5 "
        "at 95 %, or both below 0.5 (Gretel)",
    )
    classifier: bool = Field(default=True, description="whether to attack by a classifier, too")

    name = "membership_inference"
    summary = "Does the published table reveal who was in the training data?"
    required_inputs = frozenset({"train", "holdout", "synthetic"})
    optional_inputs = frozenset({"reference"})
    statistics = tuple(_SPECS.values())
    default_limits = (
        Limit(
            "membership_inference.outlier_matches",
            at_most=0.0,
            bound="proven",
            source="significant at 99 % by an exact interval, without tolerance",
        ),
        Limit(
            "membership_inference.precision",
            at_most=0.7,
            source="chosen: releases without a leak stay within 0.67 if 1,500 people are in train"
            " (48 of 48; see the "
            "lab report on leaks)",
        ),
        Limit(
            "membership_inference.precision",
            at_most=0.535,
            bound="proven",
            source="significant at 95 %; see the lab report on leaks",
        ),
    )
    small_policy_limits: ClassVar[Mapping[str, float]] = {"membership_inference.precision": 0.75}

    plots = (
        IntervalPlot(
            table="curve",
            caption="Membership advantage: share of members found minus share of non-members"
            " mistaken"
            " for members, at "
            "each false positive rate. Zero is guessing.",
            x="fpr",
            y="advantage",
            series=("score",),
            axis_labels=("false positive rate (logarithmic)", "advantage"),
            log_x=True,
        ),
        LevelPlot(
            table="levels",
            caption="Protection level reached by each simulated membership attack, after Gretel."
            " Excellent: no "
            "better than guessing, as the setting excellent defines it. Poor: precision and"
            " accuracy of at least 0.8. "
            "Unavailable: fewer than 50 predicted positives, too few for a precision.",
        ),
        IntervalPlot(
            table="subgroups",
            caption="Strongest membership advantage in each declared subgroup. Intervals hold"
            " for all"
            " of them jointly. "
            "Zero is guessing.",
            x="group",
            y="advantage",
            series=("column",),
            axis_labels=("group, the largest first", "advantage"),
        ),
    )
    question = "membership"
    causes = Causes(
        "over-fitting",
        dict.fromkeys(("advantage_outliers", "outlier_excess", "outlier_matches"), "rare values"),
    )
    protections = (
        ProtectionEvidence("memorization", ("precision",), primary=False),
        ProtectionEvidence("outliers", ("advantage_outliers", "outlier_excess", "outlier_matches")),
        ProtectionEvidence("over-fitting", ("advantage", "protection_score")),
    )
    filter_comparison = FilterComparison(
        "precision", "attack precision", "Precision of the best membership attack: 0.5 is guessing."
    )
    score_parts = {"membership": "protection_score"}

    def measure(self, inputs: EvaluationInputs) -> MetricResult:
        """Compute statistics and the tables "curve", "levels", "grade", "low_rates" and, if
        declared, "subgroups".
        """
        check_columns(self.subgroups, inputs.schema)
        subjects = [np.unique(inputs.subject_codes(role)).size for role in ("train", "holdout")]
        counts = (len(inputs.train) + len(inputs.holdout), sum(subjects))
        if min(subjects) < MIN_SUBJECTS_PER_SIDE or len(inputs.synthetic) == 0:
            return self.not_measurable(
                inputs, f"{_NEEDED} in train and in holdout, and a synthetic row", counts
            )
        rows = target_rows(inputs, ("train", "holdout"), self.max_targets, PURPOSE)
        found = no_box.score_rows(inputs, rows)
        population = build_population(inputs, found.distances if found else None, rows)
        if not population.measurable:
            reason = f"{_NEEDED} of train and of holdout among the attacked ones"
            return self.not_measurable(inputs, reason, population.counts)
        leaks, curve = attack(
            population, self.n_permutations, inputs.rng("membership_inference.labels")
        )
        draws = (inputs.rng("membership_inference.grid"), inputs.rng("membership_inference.grades"))
        n_permutations = self.n_permutations if self.excellent == "not_significant" else None
        protection, tables = protect(population, n_permutations, *draws)
        rng = inputs.rng("membership_inference.subgroups")
        grouped, groups = advantage_subgroups(
            inputs, population, self.subgroups, self.n_permutations, rng
        )
        others = no_box.auc_estimates(
            population, found, self.n_permutations, inputs.rng("membership_inference.no_box")
        )
        learned = classifier.score_rows(inputs, rows) if self.classifier else None
        rng = inputs.rng("membership_inference.learned")
        by_classifier = attack_by_classifier(population, learned, self.n_permutations, rng)
        scores = attack_scores(population, found, learned)
        low, rates = low_rates(
            population, scores, self.n_permutations, inputs.rng("membership_inference.low_rates")
        )
        epsilon = one_run.epsilon_one_run(population, inputs.rng("membership_inference.pairs"))
        remote = outliers.advantage_outliers(
            population, self.n_permutations, inputs.rng("membership_inference.isolated")
        )
        matches = outliers.outlier_matches(with_reference(inputs, population))
        isolated = (remote, outliers.outlier_excess(population), matches)
        every = (*leaks, *isolated, grouped, *low, protection, *others, *by_classifier, epsilon)
        tables, by_name = (
            {"curve": curve, **tables},
            {estimate.name: estimate for estimate in every},
        )
        more = {"subgroups": groups, "low_rates": rates}
        tables |= {name: table for name, table in more.items() if table}
        return self.result(inputs, (by_name[name] for name in _SPECS), **tables)
