"""Attribute inference: predict unknown attributes of a person from the synthetic rows (Giomi et
al., Gretel).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

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
    TableRows,
    by_name,
    table_rows,
)
from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.metrics.membership_inference.gretel import grade
from privacy_assets.metrics.membership_inference.scores import MIN_SUBJECTS_PER_SIDE
from privacy_assets.policy import Limit
from privacy_assets.stats import inference
from privacy_assets.stats.estimates import Estimate, MetricResult, StatisticSpec
from privacy_assets.stats.inference import N_BOOTSTRAPS, permutation_band
from privacy_assets.stats.intervals import excess_success, wilson_center
from privacy_assets.stats.subjects import Subjects, permute_labels

MEAN = "mean over columns"

_TOLERATED = (
    "significant at 99.5 % over all columns jointly; tolerates trees with leaves of 50 rows (at"
    " most 0.021 in 400 "
    "splits of Adult and UK census)"
)

_STATISTICS = (
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
_SPECS = by_name(_STATISTICS)


@dataclass(frozen=True, eq=False)
class Outcome:
    """Results of all attacks.

    Attributes:
        gretel: Gretel's attacks.
        giomi: Giomi's attack.
        subjects: Attacked subjects.
        entropy: Entropy of each column, shape (columns,).
    """

    gretel: Sequence[Attack]
    giomi: Attack
    subjects: Subjects
    entropy: np.ndarray

    @cached_property
    def weights(self) -> np.ndarray:
        """Weights of the columns, shape (columns,): shares of the total entropy, equal if it is
        0.
        """
        total = float(self.entropy.sum())
        if total > 0:
            return self.entropy / total
        return np.full(len(self.entropy), 1 / len(self.entropy))

    @property
    def member(self) -> np.ndarray:
        """Membership label of each subject, bool (s,)."""
        return self.subjects.member

    @property
    def sides(self) -> tuple[np.ndarray, np.ndarray]:
        """Labels of members and of non-members, float32 (1, s) each."""
        labels = self.member[None].astype(np.float32)
        return labels, 1 - labels

    @cached_property
    def _counts(self) -> tuple[np.ndarray, np.ndarray]:
        """Right predictions and all predictions, Giomi's attack first, float32 (s, attacks *
        columns).
        """
        attacks = (self.giomi, *self.gretel)
        right = np.concatenate([attack.right for attack in attacks], axis=1)
        guesses = np.concatenate([attack.guesses for attack in attacks], axis=1)
        return right, guesses

    def _rate(self, weights: np.ndarray) -> np.ndarray:
        """Return the success rate on weighted subjects (b, s), float64 (b, attacks, columns)."""
        right, guesses = self._counts
        weights = np.asarray(weights, dtype=np.float32)
        rate = (weights @ right) / np.maximum(weights @ guesses, 1)
        return rate.astype(np.float64).reshape(len(weights), -1, len(self.weights))

    def rates(self, members: np.ndarray, non_members: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return success rates on members and on non-members.

        Args:
            members: Weights of the subjects as members, (b, s).
            non_members: Weights of the subjects as non-members, (b, s).

        Returns:
            Rates on members and on non-members, float64 (b, attacks, columns), Giomi's attack
            first.
        """
        return self._rate(members), self._rate(non_members)

    def excess(self, labels: np.ndarray) -> np.ndarray:
        """Compute the excess success of Giomi's attack on members.

        Args:
            labels: Membership labels, 0 or 1, float32 (b, s).

        Returns:
            Excess of each column and their weighted mean, (b, columns + 1).
        """
        train, holdout = self._giomi_rates(labels)
        excess = train - holdout
        return np.column_stack([excess, excess @ self.weights])

    def risk(self, labels: np.ndarray) -> np.ndarray:
        """Compute Giomi's risk (r_T - r_H) / (1 - r_H) with Wilson centers r.

        Args:
            labels: Membership labels, 0 or 1, float32 (b, s).

        Returns:
            Risk of each column, (b, columns).
        """
        train, holdout = self._giomi_rates(labels)
        n_guesses = self.giomi.guesses[:, :1]
        n_train = np.float64(labels @ n_guesses)
        n_holdout = np.float64((1 - labels) @ n_guesses)
        train_center = wilson_center(train * n_train, n_train)
        holdout_center = wilson_center(holdout * n_holdout, n_holdout)
        return excess_success(train_center, holdout_center)

    def _giomi_rates(self, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the rates of Giomi's attack on members and non-members, (b, columns) each."""
        train, holdout = self.rates(labels, 1 - labels)
        return train[:, 0], holdout[:, 0]

    def points(self, members: np.ndarray, non_members: np.ndarray) -> np.ndarray:
        """Compute Gretel's protection points 100 (1 - max(0, (a_T - a_H) / (1 - a_H))).

        Args:
            members: Weights of the subjects as members, (b, s).
            non_members: Weights of the subjects as non-members, (b, s).

        Returns:
            Points, 0 to 100, (b, attacks of Gretel, columns).
        """
        train, holdout = self.rates(members, non_members)
        excess = excess_success(train[:, 1:], holdout[:, 1:])
        return 100 * (1 - np.maximum(excess, 0))

    def score(self, members: np.ndarray, non_members: np.ndarray) -> np.ndarray:
        """Compute the weighted mean of the points over columns for the strongest attack.

        Args:
            members: Weights of the subjects as members, (b, s).
            non_members: Weights of the subjects as non-members, (b, s).

        Returns:
            Scores, 0 to 100, (b,).
        """
        return (self.points(members, non_members) @ self.weights).min(axis=1)

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
        members, _ = self.sides
        accuracy = self._rate(members)[0, 1:]
        entropy_shares = np.where(self.entropy.any(), self.weights, 0.0)
        return accuracy * len(self.entropy) * entropy_shares

    def bootstrap(self, member: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Compute scores with the subjects of each side resampled with replacement.

        Args:
            member: Membership labels, bool (s,).
            rng: Source of the samples.

        Returns:
            Scores, (N_BOOTSTRAPS,).
        """
        members = _resampled(member, rng)
        non_members = _resampled(~member, rng)
        return self.score(members, non_members)


def _resampled(is_in_side: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw how often each subject of a side is in a sample with replacement.

    Returns float32 (N_BOOTSTRAPS, s), 0 for subjects of the other side.
    """
    n_subjects = int(is_in_side.sum())
    probabilities = np.full(n_subjects, 1 / n_subjects)
    counts = np.zeros((N_BOOTSTRAPS, len(is_in_side)), dtype=np.float32)
    counts[:, is_in_side] = rng.multinomial(n_subjects, probabilities, N_BOOTSTRAPS)
    return counts


def attack(
    inputs: EvaluationInputs,
    max_targets: int,
    n_quasi_identifiers: int = N_QUASI_IDENTIFIERS,
    n_neighbors: int = N_NEIGHBORS,
) -> tuple[Outcome, Trial]:
    """Run all attacks, see :class:`AttributeInference`.

    Args:
        inputs: Tables of one release.
        max_targets: Maximum number of attacked rows per side.
        n_quasi_identifiers: Number of known columns of Gretel's attack.
        n_neighbors: Number of neighbors of Gretel's attack.

    Returns:
        Results of the attacks, and the attacked rows and columns.
    """
    trial = Trial.of(inputs, Targets.choose(inputs, max_targets))
    rng = inputs.rng("attribute_inference quasi-identifiers")
    gretel, giomi = trial.attacks(rng, n_quasi_identifiers, n_neighbors)
    return Outcome(gretel, giomi, trial.attacked, entropies(inputs)), trial


def leaks(
    outcome: Outcome, names: Sequence[str], n_permutations: int, rng: np.random.Generator
) -> tuple[list[Estimate], TableRows]:
    """Estimate "excess" and "risk" by permutation of the membership labels.

    Args:
        outcome: Results of the attacks.
        names: Names of the columns.
        n_permutations: Number of permutations.
        rng: Source of the permutations.

    Returns:
        Both estimates, and a row for each column with simultaneous intervals.
    """
    subjects = outcome.subjects
    n_columns = len(names)

    def statistic(labels: np.ndarray) -> np.ndarray:
        return np.column_stack([outcome.excess(labels), outcome.risk(labels)])

    permuted = inference.permutation_test(statistic, subjects, n_permutations, rng)
    excess = permuted[: n_columns + 1]
    risk = permuted[n_columns + 1 :]
    worst = names[int(risk.observed.argmax())]
    note = f"column {worst}; the interval holds for all columns jointly"
    estimates = [
        excess.worst(_SPECS["excess"], subjects.counts, [*names, MEAN], "strongest"),
        risk.largest(_SPECS["risk"], subjects.counts, note),
    ]
    band = permutation_band(excess.observed, excess.null, smaller_side=subjects.smallest_side)
    train, holdout = outcome.rates(*outcome.sides)
    rows = table_rows(
        train=train[0, 0],
        holdout=holdout[0, 0],
        excess=excess.observed[:n_columns],
        low=band.low[:n_columns],
        high=band.high[:n_columns],
        risk=risk.observed,
    )
    return estimates, rows


def protect(
    outcome: Outcome, n_permutations: int, rng: np.random.Generator
) -> tuple[Estimate, np.ndarray, TableRows]:
    """Estimate the protection score.

    The interval is a bootstrap by subject, clipped to 0..100. Resampling increases the points that
    are lost by chance, which shifts the interval down; its upper end is therefore set at least as
    far from the score as the lower one.

    Args:
        outcome: Results of the attacks.
        n_permutations: Number of permutations of the membership labels.
        rng: Source of the resampling and of the permutations.

    Returns:
        The estimate, the points (columns,) of the strongest attack, and a table of all attacks.
    """
    points = outcome.points(*outcome.sides)[0]
    by_attack = points @ outcome.weights

    def scores(labels: np.ndarray) -> np.ndarray:
        return outcome.score(labels, 1 - labels)

    def permuted_scores() -> np.ndarray:
        return permute_labels(
            outcome.member, n_permutations, rng, lambda labels: scores(labels)[:, None]
        )

    low, high, mde = inference.bootstrap(
        outcome.member,
        lambda member: outcome.bootstrap(member, rng),
        permuted_scores,
        lambda member: float(scores(member[None].astype(np.float32))[0]),
        rng,
    )
    value = float(by_attack.min())
    low = min(low, value)
    high = min(100, max(high, 2 * value - low, value))
    estimate = _SPECS["protection_score"].estimate(
        value, low, high, outcome.subjects.counts, minimum_detectable_effect=mde
    )
    return estimate, points[int(by_attack.argmin())], _attack_table(outcome, by_attack)


def _attack_table(outcome: Outcome, scores: np.ndarray) -> TableRows:
    """Return a row for each of Gretel's attacks with its protection score."""
    table = []
    for attack, score, risk in zip(outcome.gretel, scores, outcome.gretel_risk(), strict=True):
        table.append(
            {
                "quasi_identifiers": attack.quasi_identifiers,
                "neighbors": attack.neighbors,
                "protection": float(score),
                "grade": grade(float(score)),
                "gretel": float(100 * (1 - risk.mean())),
            }
        )
    return table


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
            strongest attack. Random losses count and random gains do not, so the mean for
            non-leaking tables is below 100.

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

    max_targets: int = Field(default=5000, ge=1)
    n_permutations: int = Field(default=999, ge=199)
    n_quasi_identifiers: int = Field(default=N_QUASI_IDENTIFIERS, ge=1)
    n_neighbors: int = Field(default=N_NEIGHBORS, ge=1)

    name: ClassVar[str] = "attribute_inference"
    summary: ClassVar[str] = (
        "Does the published table reveal more about members than about other people?"
    )
    required_inputs: ClassVar[frozenset[str]] = frozenset({"train", "holdout", "synthetic"})
    statistics: ClassVar[tuple[StatisticSpec, ...]] = _STATISTICS
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
        """Compute statistics and the tables "columns", "attacks" and "grade".

        Args:
            inputs: Tables of one release.

        Returns:
            The result.
        """
        n_members = np.unique(inputs.subject_codes("train")).size
        n_non_members = np.unique(inputs.subject_codes("holdout")).size
        n_smallest = min(n_members, n_non_members)
        if n_smallest < MIN_SUBJECTS_PER_SIDE or len(inputs.synthetic) == 0:
            n_rows = len(inputs.train) + len(inputs.holdout)
            reason = (
                f"at least {MIN_SUBJECTS_PER_SIDE} people are required in train and in holdout,"
                " and a synthetic row"
            )
            return self.not_measurable(inputs, reason, (n_rows, n_members + n_non_members))

        outcome, trial = attack(
            inputs, self.max_targets, self.n_quasi_identifiers, self.n_neighbors
        )
        names = inputs.schema.names
        leak_rng = inputs.rng("attribute_inference labels")
        leak_estimates, rows = leaks(outcome, names, self.n_permutations, leak_rng)
        score_rng = inputs.rng("attribute_inference score")
        score, points, attacks = protect(outcome, self.n_permutations, score_rng)
        i_default = self._default_attack(outcome, len(names))
        gretel_points = 100 * (1 - np.minimum(outcome.gretel_risk()[i_default], 1))
        columns = []
        for i, (name, row) in enumerate(zip(names, rows, strict=True)):
            columns.append(
                {
                    "column": name,
                    "baseline": trial.targets[i].baseline(GIOMI),
                    **row,
                    "points": float(points[i]),
                    "gretel": float(gretel_points[i]),
                    "weight": float(outcome.weights[i]),
                }
            )
        gretel_score = attacks[i_default]["gretel"]
        grade_row = {
            "grade": grade(score.value),
            "score": score.value,
            "gretel": gretel_score,
            "gretel_grade": grade(gretel_score),
        }
        estimates = (*leak_estimates, score)
        return self.result(inputs, estimates, columns=columns, attacks=attacks, grade=[grade_row])

    def _default_attack(self, outcome: Outcome, n_columns: int) -> int:
        """Return the position of the attack with the sizes of the settings."""
        sizes = [(attack.quasi_identifiers, attack.neighbors) for attack in outcome.gretel]
        n_quasi_identifiers = min(self.n_quasi_identifiers, n_columns - 1)
        return sizes.index((n_quasi_identifiers, self.n_neighbors))
