"""Attribute inference: predict unknown attributes of a person from the synthetic rows (Giomi et
al., Gretel).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from privacy_assets.infra.settings import declared
from privacy_assets.metrics.attribute_inference.attacks import (
    GIOMI,
    N_NEIGHBORS,
    N_QUASI_IDENTIFIERS,
    Attack,
    Targets,
    Trial,
    entropies,
)
from privacy_assets.metrics.base import (
    GradePlot,
    Metric,
    Plot,
    ProtectionEvidence,
    Question,
    ScorePart,
)
from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.metrics.membership_inference.gretel import grade
from privacy_assets.metrics.membership_inference.scores import MIN_SUBJECTS_PER_SIDE
from privacy_assets.policy import Limit
from privacy_assets.stats import inference
from privacy_assets.stats.estimates import Estimate, MetricResult, StatisticSpec
from privacy_assets.stats.inference import N_BOOTSTRAPS, permutation_band
from privacy_assets.stats.intervals import excess_success, wilson_centre
from privacy_assets.stats.subjects import Subjects, permute_labels

MEAN = "mean over columns"

_TOLERATED = (
    "significant at 99.5 % over all columns jointly; tolerates trees with leaves of 50 rows (at"
    " most 0.021 in 400 "
    "splits of Adult and UK census)"
)

_SPECS = {
    spec.name: spec
    for spec in (
        StatisticSpec(
            "excess",
            "Share of people in the training data whose value is inferred, minus the same share"
            " of held-out people:"
            " the largest difference over the columns and their mean.",
            "two_sided",
            leak="an attacker could infer a value for {share} more of the people in the training"
            " data{people} than of"
            " other people",
        ),
        StatisticSpec(
            "risk", "Giomi's risk of the worst column, which is above 0 by chance.", null=None
        ),
        StatisticSpec(
            "protection_score",
            "Gretel's attribute inference protection against the strongest attack: 0 (members"
            " are known) to 100.",
            "lower_is_riskier",
            100.0,
        ),
    )
}


@dataclass(frozen=True, eq=False)
class Outcome:
    """Results of all attacks.

    Attributes:
        gretel: Gretel's attacks.
        giomi: Giomi's attack.
        people: Attacked subjects.
        entropy: Entropy of each column, shape (columns,).
    """

    gretel: Sequence[Attack]
    giomi: Attack
    people: Subjects
    entropy: np.ndarray

    @cached_property
    def weights(self) -> np.ndarray:
        """Weights of the columns, shape (columns,): shares of the total entropy, equal if it is
        0.
        """
        total = float(self.entropy.sum())
        return (
            self.entropy / total if total > 0 else np.full(len(self.entropy), 1 / len(self.entropy))
        )

    @property
    def member(self) -> np.ndarray:
        """Membership label of each subject, bool (s,)."""
        return self.people.member

    @property
    def sides(self) -> tuple[np.ndarray, np.ndarray]:
        """Labels of members and of non-members, float32 (1, s) each."""
        labels = self.member[None].astype(np.float32)
        return labels, 1 - labels

    @cached_property
    def _counts(self) -> tuple[np.ndarray, np.ndarray]:
        every = (self.giomi, *self.gretel)
        return np.concatenate([x.right for x in every], axis=1), np.concatenate(
            [x.guesses for x in every], axis=1
        )

    def rates(self, members: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return success rates on members and on non-members, float64 (b, attacks, columns),
        Giomi's attack first.

        ``members`` and ``others`` (b, s) are the weights of the subjects.
        """
        right, guesses = self._counts
        shape = (len(members), -1, len(self.weights))
        found = [
            (side @ right) / np.maximum(side @ guesses, 1)
            for side in map(np.float32, (members, others))
        ]
        return found[0].astype(np.float64).reshape(shape), found[1].astype(np.float64).reshape(
            shape
        )

    def excess(self, labels: np.ndarray) -> np.ndarray:
        """Return the excess of Giomi's attack, (b, columns + 1): each column and their weighted
        mean.
        """
        train, holdout = (rate[:, 0] for rate in self.rates(labels, 1 - labels))
        return np.column_stack([train - holdout, (train - holdout) @ self.weights])

    def risk(self, labels: np.ndarray) -> np.ndarray:
        """Return Giomi's risk (b, columns): (r_T - r_H) / (1 - r_H) with Wilson centers r."""
        train, holdout = (rate[:, 0] for rate in self.rates(labels, 1 - labels))
        counts = (np.float64(side @ self.giomi.guesses[:, :1]) for side in (labels, 1 - labels))
        return excess_success(
            *(wilson_centre(rate * n, n) for rate, n in zip((train, holdout), counts, strict=True))
        )

    def points(self, members: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Return protection points (b, attacks of Gretel, columns): 100 (1 - max(0, (a_T - a_H) /
        (1 - a_H))).
        """
        train, holdout = (rate[:, 1:] for rate in self.rates(members, others))
        return 100 * (1 - np.maximum(excess_success(train, holdout), 0))

    def score(self, members: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Return the weighted mean of the points over columns for the strongest attack, (b,)."""
        return (self.points(members, others) @ self.weights).min(axis=1)

    def gretel_risk(self) -> np.ndarray:
        """Return Gretel's own risk of each column, (attacks of Gretel, columns): accuracy on train
        times H / mean H.

        Gretel, section "Attribute Inference Protection": "This accuracy is then normalized by the
        entropy of the column to get both a column and overall risk level. [...] if the column is a
        constant value then the entropy is low [...] so the entropy will downplay the risk. [...] if
        every value is distinct in a column then the entropy is high [...] so the entropy will
        increase the risk score." The paper gives no formula. With entropies H relative to their
        mean, the overall risk, the mean over columns, has the weights H / sum H of Yan et al.,
        which the paper cites. A column's risk can exceed 1. All risks are 0 if no column has
        entropy.
        """
        accuracy = self.rates(*self.sides)[0][0, 1:]
        return accuracy * len(self.entropy) * np.where(self.entropy.any(), self.weights, 0.0)

    def bootstrap(self, member: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return scores with the subjects of each side resampled with replacement."""
        counts = []
        for side in (member, ~member):
            people = int(side.sum())
            drawn = np.zeros((N_BOOTSTRAPS, len(member)), dtype=np.float32)
            drawn[:, side] = rng.multinomial(people, np.full(people, 1 / people), N_BOOTSTRAPS)
            counts.append(drawn)
        return self.score(*counts)


def attack(
    inputs: EvaluationInputs,
    max_targets: int,
    n_quasi_identifiers: int = N_QUASI_IDENTIFIERS,
    n_neighbors: int = N_NEIGHBORS,
) -> tuple[Outcome, Trial]:
    """Run all attacks, see :class:`AttributeInference`."""
    trial = Trial.of(inputs, Targets.choose(inputs, max_targets))
    rng = inputs.rng("attribute_inference quasi-identifiers")
    gretel, giomi = trial.attacks(rng, n_quasi_identifiers, n_neighbors)
    return Outcome(gretel, giomi, trial.attacked, entropies(inputs)), trial


def leaks(
    outcome: Outcome, names: Sequence[str], n_permutations: int, rng: np.random.Generator
) -> tuple[list[Estimate], list[dict[str, Any]]]:
    """Return "excess" and "risk", and a row for each column with simultaneous intervals."""
    people, width = outcome.people, len(names)

    def statistic(labels: np.ndarray) -> np.ndarray:
        return np.column_stack([outcome.excess(labels), outcome.risk(labels)])

    found = inference.permutation_test(statistic, people, n_permutations, rng)
    excess, risk = found[: width + 1], found[width + 1 :]
    note = (
        f"column {names[int(risk.observed.argmax())]}; the interval holds for all columns jointly"
    )
    estimates = [
        excess.worst(_SPECS["excess"], people.counts, [*names, MEAN], "strongest"),
        risk.largest(_SPECS["risk"], people.counts, note),
    ]
    band = permutation_band(excess.observed, excess.null, people=people.smallest_side)
    train, holdout = (rate[0, 0] for rate in outcome.rates(*outcome.sides))
    parts = (train, holdout, excess.observed, band.low, band.high, risk.observed)
    keys = ("train", "holdout", "excess", "low", "high", "risk")
    rows = zip(*(part[:width] for part in parts), strict=True)
    return estimates, [dict(zip(keys, map(float, row), strict=True)) for row in rows]


def protect(
    outcome: Outcome, n_permutations: int, rng: np.random.Generator
) -> tuple[Estimate, np.ndarray, list[dict[str, Any]]]:
    """Return the protection score, the points (columns,) of the strongest attack, and a table of
    all attacks.

    The interval is a bootstrap by subject, clipped to 0..100. Resampling increases the points that
    are lost by chance, which shifts the interval down; its upper end is therefore set at least as
    far from the score as the lower one.
    """
    points, risks = outcome.points(*outcome.sides)[0], outcome.gretel_risk()
    overall = points @ outcome.weights
    table = [
        {
            "quasi_identifiers": found.quasi_identifiers,
            "neighbours": found.neighbours,
            "protection": float(score),
            "grade": grade(float(score)),
            "gretel": float(100 * (1 - risk.mean())),
        }
        for found, score, risk in zip(outcome.gretel, overall, risks, strict=True)
    ]

    def score(labels: np.ndarray) -> np.ndarray:
        return outcome.score(labels, 1 - labels)

    low, high, mde = inference.bootstrap(
        outcome.member,
        lambda label: outcome.bootstrap(label, rng),
        lambda: permute_labels(
            outcome.member, n_permutations, rng, lambda labels: score(labels)[:, None]
        ),
        lambda label: float(score(label[None].astype(np.float32))[0]),
        rng,
    )
    value = float(overall.min())
    ends, counts = (
        (min(low, value), min(100, max(high, 2 * value - low, value))),
        outcome.people.counts,
    )
    estimate = _SPECS["protection_score"].estimate(
        value, *ends, counts, minimum_detectable_effect=mde
    )
    return estimate, points[int(overall.argmin())], table


@declared
class AttributeInference(Metric):
    """Attribute inference with the nearest synthetic rows.

    All statistics compare members (subjects in train) with non-members (holdout): a table that is
    accurate for everyone is not a leak. Attacked are all rows of the same number of random subjects
    of train and of holdout. The synthetic table is searched completely.

    Args:
        max_targets: Maximum number of attacked rows per side.
        n_permutations: Number of permutations of the membership labels.
        n_quasi_identifiers: Number of known columns of Gretel's attack (X). Attacks with half and
            with all but one of the columns run as well.
        n_neighbors: Number of neighbors of Gretel's attack (K). Attacks with the nearest one run as
            well.

    Attributes:
        excess: Strongest difference in Giomi's success rate between members and non-members, over
            the columns and their entropy-weighted mean.
        risk: Giomi's risk of the worst column. The maximum is above 0 by chance.
        protection_score: Entropy-weighted mean of Gretel's protection points over columns, for the
            strongest attack. Random losses count and random gains do not, so the mean for leak-free
            tables is below 100.

    Notes:
        Giomi et al. (Anonymeter): each column in turn is the target, all others are known, and the
        value of the nearest synthetic row is the prediction. A number within 5 % of the truth is
        right. Gretel's Data Privacy Protection Score: ``n_quasi_identifiers``, half, or all but one
        of the columns are known, the prediction uses the nearest or ``n_neighbors`` neighbors, and
        a number within 1 % is right. The tolerance of dates, which have no zero, is relative to the
        standard deviation.

        Gretel, section "Attribute Inference Protection": "an attack dataset is created by randomly
        sampling 1% of the training data. [...] For each record we randomly pick X quasi-identifier
        values. The default is X = 3, but this can be changed in the configuration. Using just the
        quasi-identifiers, we find the K nearest neighbors in the synthetic data. We varied K in our
        research and settled on a value of 5". Here all people up to ``max_targets`` are attacked
        instead of 1 %, because fewer would weaken the limits.

        Intervals of ``excess`` and ``risk`` permute labels by subject, which is valid for any
        sizes, and hold simultaneously for all columns.

        Tables: "columns" (success on train and holdout, baseline, excess with a simultaneous 95 %
        interval, risk, points of the strongest attack, Gretel's own points, weight), "attacks" and
        "grade" (ours and Gretel's own score). Gretel's own points are 100 minus the risk in
        percent, at least 0, see :meth:`Outcome.gretel_risk`. They count successes on train only
        (``n_quasi_identifiers`` known columns, ``n_neighbors`` neighbors), and are low for any
        accurate table.

        Not measurable with fewer than 20 subjects in train or holdout.
    """

    max_targets: int = Field(
        default=5000, ge=1, description="maximum number of attacked rows per side"
    )
    n_permutations: int = Field(
        default=999, ge=199, description="number of permutations of the membership labels"
    )
    n_quasi_identifiers: int = Field(
        default=N_QUASI_IDENTIFIERS,
        ge=1,
        description="number of known columns of Gretel's attack (X)",
    )
    n_neighbors: int = Field(
        default=N_NEIGHBORS, ge=1, description="number of neighbors of Gretel's attack (K)"
    )

    name: ClassVar[str] = "attribute_inference"
    summary: ClassVar[str] = (
        "Does the published table reveal more about members than about other people?"
    )
    required_inputs: ClassVar[frozenset[str]] = frozenset({"train", "holdout", "synthetic"})
    statistics: ClassVar[tuple[StatisticSpec, ...]] = tuple(_SPECS.values())
    default_limits: ClassVar[tuple[Limit, ...]] = (
        Limit("attribute_inference.excess", at_most=0.025, bound="proven", source=_TOLERATED),
    )

    plots: ClassVar[tuple[Plot, ...]] = (
        GradePlot(
            table="columns",
            caption="Attribute inference protection by column: 100 if members are guessed no better"
            " than other people, "
            "0 if they are always guessed. The color changes at 20, 40, 60 and 80. Columns of"
            " low weight vary by "
            "chance.",
            label="column",
            points="points",
        ),
        GradePlot(
            table="columns",
            caption="Gretel's own score by column: 100 minus the product of the success rate"
            " on train"
            " in percent and "
            "the column's entropy relative to the mean. It is low for any accurate table, with"
            " or without a leak.",
            label="column",
            points="gretel",
        ),
    )
    question: ClassVar[Question | None] = "inference"
    protections: ClassVar[tuple[ProtectionEvidence, ...]] = (
        ProtectionEvidence("differential privacy", ("protection_score",), primary=False),
    )
    score_parts: ClassVar[Mapping[ScorePart, str]] = {"attribute": "protection_score"}

    def measure(self, inputs: EvaluationInputs) -> MetricResult:
        """Compute statistics and the tables "columns", "attacks" and "grade"."""
        subjects = [np.unique(inputs.subject_codes(role)).size for role in ("train", "holdout")]
        counts = (len(inputs.train) + len(inputs.holdout), sum(subjects))
        if min(subjects) < MIN_SUBJECTS_PER_SIDE or len(inputs.synthetic) == 0:
            reason = (
                f"at least {MIN_SUBJECTS_PER_SIDE} people are required in train and in holdout,"
                " and a synthetic row"
            )
            return self.not_measurable(inputs, reason, counts)
        outcome, trial = attack(
            inputs, self.max_targets, self.n_quasi_identifiers, self.n_neighbors
        )
        names = inputs.schema.names
        found, rows = leaks(
            outcome, names, self.n_permutations, inputs.rng("attribute_inference labels")
        )
        rng = inputs.rng("attribute_inference score")
        estimate, points, attacks = protect(outcome, self.n_permutations, rng)
        baselines = [target.baseline(GIOMI) for target in trial.targets]
        chosen = (min(self.n_quasi_identifiers, len(names) - 1), self.n_neighbors)
        own = [(one.quasi_identifiers, one.neighbours) for one in outcome.gretel].index(chosen)
        gretel = 100 * (1 - np.minimum(outcome.gretel_risk()[own], 1))
        columns = [
            {
                "column": name,
                "baseline": base,
                **row,
                "points": float(point),
                "gretel": float(score),
                "weight": float(x),
            }
            for name, base, row, point, score, x in zip(
                names, baselines, rows, points, gretel, outcome.weights, strict=True
            )
        ]
        overall = {"gretel": attacks[own]["gretel"], "gretel_grade": grade(attacks[own]["gretel"])}
        grades = [{"grade": grade(estimate.value), "score": estimate.value, **overall}]
        return self.result(
            inputs, (*found, estimate), columns=columns, attacks=attacks, grade=grades
        )
