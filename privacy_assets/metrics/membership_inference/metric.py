"""Membership inference without access to the generator (Gretel)."""

from __future__ import annotations

from collections.abc import Mapping
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
    Metric,
    ProtectionEvidence,
    by_name,
    not_measurable_estimates,
    table_rows,
)
from privacy_assets.metrics.inputs import EvaluationInputs, MaxTargets, target_rows
from privacy_assets.metrics.membership_inference import classifier, no_box, outliers
from privacy_assets.metrics.membership_inference import no_box as one_run
from privacy_assets.metrics.membership_inference.outliers import SPEC as ADVANTAGE_SUBGROUPS
from privacy_assets.metrics.membership_inference.outliers import (
    Subgroups,
    advantage_subgroups,
    check_columns,
)
from privacy_assets.metrics.membership_inference.scores import (
    RATES,
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
SMALLEST_POSITIVES = 50  # predicted positives that a precision needs
SMALLEST_FOR_LOW_RATES = 300  # non-members: 1 % are three
_NEEDED = f"at least {MIN_SUBJECTS_PER_SIDE} people are required"
PURPOSE = "membership_inference.attacked"  # random stream for drawing attacked subjects
_HEADLINE = RATES.index(HEADLINE_RATE)
_ATTACKS = {"auc_dpi": "DPI", "auc_domias": "DOMIAS", "auc_gen_lra": "Gen-LRA"}


def attack(
    population: Population, n_permutations: int, rng: np.random.Generator
) -> tuple[list[Estimate], list[dict[str, Any]]]:
    """Attack all rows by their distances.

    Args:
        population: Attacked rows with scores.
        n_permutations: Number of permutations of the membership labels.
        rng: Generator of the permutations and bootstraps.

    Returns:
        The statistics over all subjects, and the table "curve" with simultaneous bands.
    """
    fitted = population.fitted()

    def statistic(labels: np.ndarray) -> np.ndarray:
        gaps = []
        precisions = []
        low_tprs = []
        for score in fitted:
            tpr, fpr = score.rates(labels, (*RATES, LOW_RATE))
            gaps.append((tpr - fpr)[:, :-1])
            precisions.append(_precision(tpr[:, _HEADLINE], fpr[:, _HEADLINE]))
            low_tprs.append(tpr[:, -1])
        return np.column_stack([*gaps, *precisions, *low_tprs])

    evidence = inference.permutation_test(statistic, population, n_permutations, rng)
    resampled = resample_subjects(
        population.member, N_BOOTSTRAPS, rng, partial(advantages, fitted), population.block
    )
    n_scores = len(fitted)
    n_advantages = n_scores * len(RATES)
    advantage = replace(evidence[:n_advantages], resampled=resampled)
    precision = evidence[n_advantages : n_advantages + n_scores]
    low_tpr = evidence[n_advantages + n_scores :]
    observed_labels = population.member.astype(np.float32)[None]
    rates = np.concatenate([score.rates(observed_labels, RATES) for score in fitted], axis=1)
    entries = named_entries(population)
    headline = slice(_HEADLINE, None, len(RATES))
    counts = population.counts
    estimates = [
        advantage[headline].worst(_SPECS["advantage"], counts, entries[headline], "headline"),
        advantage.worst(_SPECS["advantage_any"], counts, entries, "strongest"),
        _precision_estimate(population, precision, rates),
        _low_rate_estimate(population, low_tpr),
    ]
    return estimates, _curve_table(population, rates, advantage.band())


def _precision(tpr: np.ndarray, fpr: np.ndarray) -> np.ndarray:
    """Return the share of members among predicted positives at prior 1/2. 1/2 if there are none."""
    positives = tpr + fpr
    has_positives = positives > 0
    return np.where(has_positives, tpr / np.where(has_positives, positives, 1), 0.5)


def _precision_estimate(
    population: Population,
    evidence: PermutationResult,
    rates: np.ndarray,
) -> Estimate:
    """Return the precision of the best score with enough positives, counted as if both sides had
    the smaller size.

    ``rates`` are the true and false positive rates, shape (2, scores, ``RATES``).
    """
    spec = _SPECS["precision"]
    smaller = min(population.side(True)[0], population.side(False)[0])
    tpr, fpr = rates[:, :, _HEADLINE]
    n_positives = smaller * (tpr + fpr)
    enough = np.flatnonzero(n_positives >= SMALLEST_POSITIVES)
    if len(enough) == 0:
        reason = (
            f"the attack calls {n_positives.max():.0f} people members, and"
            f" {SMALLEST_POSITIVES} are required"
        )
        return spec.not_measurable(reason, population.counts)
    names = np.array(list(population.scores))[enough]
    return evidence[enough].worst(spec, population.counts, names, "headline")


def _low_rate_estimate(population: Population, evidence: PermutationResult) -> Estimate:
    spec = _SPECS["tpr_low_fpr"]
    n_nonmembers = population.side(False)[0]
    if n_nonmembers < SMALLEST_FOR_LOW_RATE:
        reason = (
            f"{n_nonmembers} non-members, {SMALLEST_FOR_LOW_RATE} required for a false positive"
            f" rate of {LOW_RATE}"
        )
        return spec.not_measurable(reason, population.counts)
    return evidence.worst(spec, population.counts, list(population.scores), "headline")


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
    n_nonmembers = population.side(False)[1]
    if n_nonmembers < SMALLEST_FOR_LOW_RATES:
        reason = f"{n_nonmembers} people in holdout, {SMALLEST_FOR_LOW_RATES} required"
        return not_measurable_estimates(_LOW_RATE_SPECS, reason, population.counts), []
    fprs = tuple(LOW_RATES.values())
    fitted = replace(population, scores=scores).fitted()

    def statistic(labels: np.ndarray, times: np.ndarray | None = None) -> np.ndarray:
        tprs = [score.rates(labels, fprs, times)[0] for score in fitted]
        # rate by rate, so that a slice is one band
        return np.stack(tprs, axis=2).reshape(len(tprs[0]), -1)

    evidence = inference.permutation_test(
        statistic, population, n_permutations, rng, n_bootstraps=N_BOOTSTRAPS
    )
    names = list(scores)
    n_scores = len(names)
    estimates = []
    table = []
    for i, (spec, fpr) in enumerate(zip(_LOW_RATE_SPECS, fprs, strict=True)):
        at_fpr = evidence[i * n_scores : (i + 1) * n_scores]
        estimates.append(at_fpr.worst(spec, population.counts, names, "headline"))
        band = at_fpr.band()
        table += table_rows(
            score=names,
            fpr=np.full(n_scores, fpr),
            tpr=at_fpr.observed,
            low=np.clip(band.low, 0, 1),
            high=np.clip(band.high, 0, 1),
        )
    return estimates, table


def _curve_table(population: Population, rates: np.ndarray, band: Band) -> list[dict[str, Any]]:
    tpr, fpr = rates.reshape(2, -1)
    scores = np.repeat(list(population.scores), len(RATES))
    return table_rows(
        score=scores, fpr=fpr, tpr=tpr, advantage=tpr - fpr, low=band.low, high=band.high
    )


def attack_scores(
    population: Population,
    no_box_scores: no_box.NoBoxScores | None,
    classifier_scores: np.ndarray | None,
) -> dict[str, np.ndarray]:
    """Collect the scores of all attacks.

    Args:
        population: Attacked rows, with scores by distance.
        no_box_scores: Scores of the no-box attacks. None: there are none.
        classifier_scores: Scores of the classifier attack, shape (n,). None: there are none.

    Returns:
        Scores by name, shape (n,); smaller ones are more member-like.
    """
    scores = dict(population.scores)
    if no_box_scores is not None:
        for name, score in no_box_scores.scores.items():
            scores[_ATTACKS[name]] = -score
    if classifier_scores is not None:
        scores[classifier.NAME] = -classifier_scores
    return scores


def attack_by_classifier(
    population: Population, score: np.ndarray | None, n_permutations: int, rng: np.random.Generator
) -> list[Estimate]:
    """Return ``auc_classifier`` and ``advantage_classifier``.

    The interval of the advantage holds for all thresholds jointly, at 99.5 %. These statistics do
    not change the others: ``advantage``, ``advantage_any`` and ``precision`` use the distances
    only.

    Args:
        population: Attacked rows.
        score: Scores of the classifier, shape (n,). None: the estimates are NaN.
        n_permutations: Number of permutations of the membership labels.
        rng: Generator of the permutations and bootstraps.
    """
    if score is None:
        reason = "the setting classifier is off"
        specs = (classifier.AUC, classifier.ADVANTAGE)
        return not_measurable_estimates(specs, reason, population.counts)
    by_classifier = replace(population, scores={classifier.NAME: -score})
    statistic = partial(advantages, by_classifier.fitted())
    evidence = inference.permutation_test(
        statistic, by_classifier, n_permutations, rng, n_bootstraps=N_BOOTSTRAPS
    )
    strongest = evidence.worst(
        classifier.ADVANTAGE, population.counts, named_entries(by_classifier), "strongest"
    )
    return [*no_box.areas({classifier.AUC: score}, population, n_permutations, rng), strongest]


def _low_rate_spec(name: str) -> StatisticSpec:
    rate = LOW_RATES[name]
    meaning = f"Share of members found at {100 * rate:.0f} % false positives, best attack."
    return StatisticSpec(name, meaning, null=rate)


_LOW_RATE_SPECS = (_low_rate_spec("tpr_1_fpr"), _low_rate_spec("tpr_10_fpr"))
_STATISTICS = (
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
    *_LOW_RATE_SPECS,
    *no_box.SPECS,
    classifier.AUC,
    classifier.ADVANTAGE,
    one_run.SPEC,
)
_SPECS = by_name(_STATISTICS)


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
        auc_*: No-box attacks of the literature, see :mod:`~.no_box`.
        auc_classifier: AUC of the classifier attack, see :mod:`~.classifier`.
        advantage_classifier: Strongest advantage of the classifier attack over all thresholds.
        epsilon_one_run: Lower bound of epsilon, see :mod:`~.one_run`.

    Notes:
        Scores, smaller ones more member-like:

        - ``distance``: d(x, S);
        - ``distance / reference``: d(x, S) / d(x, R), if there is a reference table R;
        - ``distance / neighbor``: d(x, S) / distance from x to the nearest row of another subject
          in T u H. Calibrated without using labels.

        If S does not depend on which subjects were in T, the labels of subjects are exchangeable
        given the scores. Intervals permute labels by subject, which is valid for any sizes of T and
        H. Advantages vary more if there is a
        leak, because many members are close to a threshold that few non-members pass; their
        intervals are therefore bootstraps by subject where these are wider.

        Not measurable with fewer than 20 subjects in train or holdout.
    """

    n_permutations: int = Field(default=999, ge=199)
    subgroups: Subgroups = Field(default=(), json_schema_extra=BY_TABLE)
    max_targets: MaxTargets = None
    classifier: bool = True

    name = "membership_inference"
    summary = "Does the published table reveal who was in the training data?"
    required_inputs = frozenset({"train", "holdout", "synthetic"})
    optional_inputs = frozenset({"reference"})
    statistics = _STATISTICS
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
            "benchmark on leaks)",
        ),
        Limit(
            "membership_inference.precision",
            at_most=0.535,
            bound="proven",
            source="significant at 95 %; see the benchmark on leaks",
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
        ProtectionEvidence("over-fitting", ("advantage",)),
    )
    filter_comparison = FilterComparison(
        "precision", "attack precision", "Precision of the best membership attack: 0.5 is guessing."
    )

    def measure(self, inputs: EvaluationInputs) -> MetricResult:
        """Compute statistics and the tables "curve", "low_rates" and, if declared, "subgroups"."""
        check_columns(self.subgroups, inputs.schema)
        n_members = np.unique(inputs.subject_codes("train")).size
        n_nonmembers = np.unique(inputs.subject_codes("holdout")).size
        if min(n_members, n_nonmembers) < MIN_SUBJECTS_PER_SIDE or len(inputs.synthetic) == 0:
            reason = f"{_NEEDED} in train and in holdout, and a synthetic row"
            n_rows = len(inputs.train) + len(inputs.holdout)
            return self.not_measurable(inputs, reason, (n_rows, n_members + n_nonmembers))
        rows = target_rows(inputs, ("train", "holdout"), self.max_targets, PURPOSE)
        no_box_scores = no_box.score_rows(inputs, rows)
        distances = None
        if no_box_scores is not None:
            distances = no_box_scores.distances
        population = build_population(inputs, distances, rows)
        if not population.measurable:
            reason = f"{_NEEDED} of train and of holdout among the attacked ones"
            return self.not_measurable(inputs, reason, population.counts)
        classifier_scores = None
        if self.classifier:
            classifier_scores = classifier.score_rows(inputs, rows)

        by_distance, curve = attack(
            population, self.n_permutations, inputs.rng("membership_inference.labels")
        )
        subgroup_advantage, subgroups = advantage_subgroups(
            inputs,
            population,
            self.subgroups,
            self.n_permutations,
            inputs.rng("membership_inference.subgroups"),
        )
        low_tprs, low_rate_table = low_rates(
            population,
            attack_scores(population, no_box_scores, classifier_scores),
            self.n_permutations,
            inputs.rng("membership_inference.low_rates"),
        )
        no_box_aucs = no_box.auc_estimates(
            population,
            no_box_scores,
            self.n_permutations,
            inputs.rng("membership_inference.no_box"),
        )
        by_classifier = attack_by_classifier(
            population,
            classifier_scores,
            self.n_permutations,
            inputs.rng("membership_inference.learned"),
        )
        epsilon = one_run.epsilon_one_run(population, inputs.rng("membership_inference.pairs"))
        estimates = [
            *by_distance,
            *self._outliers(inputs, population),
            subgroup_advantage,
            *low_tprs,
            *no_box_aucs,
            *by_classifier,
            epsilon,
        ]
        tables = {"curve": curve}
        if subgroups:
            tables["subgroups"] = subgroups
        if low_rate_table:
            tables["low_rates"] = low_rate_table
        estimates_by_name = by_name(estimates)
        return self.result(inputs, (estimates_by_name[name] for name in _SPECS), **tables)

    def _outliers(self, inputs: EvaluationInputs, population: Population) -> list[Estimate]:
        """Return the estimates of outliers."""
        rng = inputs.rng("membership_inference.isolated")
        return [
            outliers.advantage_outliers(population, self.n_permutations, rng),
            outliers.outlier_excess(population),
            outliers.outlier_matches(with_reference(inputs, population)),
        ]
