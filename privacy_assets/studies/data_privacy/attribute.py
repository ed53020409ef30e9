"""Gretel's attribute inference attacks and their protection score.

Gretel, section "Attribute Inference Protection": "an attack dataset is created by randomly sampling
1% of the training data. [...] For each record we randomly pick X quasi-identifier values. The
default is X = 3, but this can be changed in the configuration. Using just the quasi-identifiers, we
find the K nearest neighbors in the synthetic data. We varied K in our research and settled on a
value of 5". Here all people up to ``max_targets`` are attacked instead of 1 %, because fewer would
weaken the limits.

``n_quasi_identifiers``, half, or all but one of the columns are known, the prediction uses the
nearest or ``n_neighbors`` neighbors, and a number within 1 % is right. The tolerance of dates,
which have no zero, is relative to the standard deviation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from privacy_assets.metrics.attribute_inference.attacks import (
    Attack,
    Targets,
    Trial,
    column_weights,
    entropies,
)
from privacy_assets.metrics.base import TableRows
from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.stats import inference
from privacy_assets.stats.estimates import Estimate, StatisticSpec
from privacy_assets.stats.inference import N_BOOTSTRAPS
from privacy_assets.stats.intervals import excess_success
from privacy_assets.stats.subjects import Subjects, permute_labels
from privacy_assets.studies.data_privacy.grades import grade

N_QUASI_IDENTIFIERS = 3  # X of Gretel's default attack
N_NEIGHBORS = 5  # K of Gretel's default attack
_TOLERANCE = 0.01  # of a number, relative to its true value


@dataclass(frozen=True, eq=False)
class Outcome:
    """Results of all attacks.

    Attributes:
        attacks: The attacks, by number of quasi-identifiers and then of neighbors.
        subjects: Attacked subjects.
        entropy: Entropy of each column, shape (columns,).
    """

    attacks: Sequence[Attack]
    subjects: Subjects
    entropy: np.ndarray

    @cached_property
    def weights(self) -> np.ndarray:
        """Weights of the columns, shape (columns,)."""
        return column_weights(self.entropy)

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
        """Right predictions and all predictions, float32 (s, attacks * columns)."""
        right = np.concatenate([attack.right for attack in self.attacks], axis=1)
        guesses = np.concatenate([attack.guesses for attack in self.attacks], axis=1)
        return right, guesses

    def rates(self, weights: np.ndarray) -> np.ndarray:
        """Compute success rates on weighted subjects.

        Args:
            weights: Weights, (b, s).

        Returns:
            Rates, float64 (b, attacks, columns).
        """
        right, guesses = self._counts
        weights = np.asarray(weights, dtype=np.float32)
        rate = (weights @ right) / np.maximum(weights @ guesses, 1)
        return rate.astype(np.float64).reshape(len(weights), -1, len(self.weights))

    def points(self, members: np.ndarray, non_members: np.ndarray) -> np.ndarray:
        """Compute protection points 100 (1 - max(0, (a_T - a_H) / (1 - a_H))).

        Args:
            members: Weights of the subjects as members, (b, s).
            non_members: Weights of the subjects as non-members, (b, s).

        Returns:
            Points, 0 to 100, (b, attacks, columns).
        """
        excess = excess_success(self.rates(members), self.rates(non_members))
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
        """Return Gretel's own risk of each column, (attacks, columns): accuracy on train times H /
        mean H.

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
        accuracy = self.rates(members)[0]
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
    inputs: EvaluationInputs, max_targets: int, n_quasi_identifiers: int, n_neighbors: int
) -> Outcome:
    """Run all attacks on the people that ``attribute_inference`` attacks.

    Args:
        inputs: Tables of one release.
        max_targets: Maximum number of attacked rows per side.
        n_quasi_identifiers: Number of known columns of Gretel's attack.
        n_neighbors: Number of neighbors of Gretel's attack.
    """
    trial = Trial.of(inputs, Targets.choose(inputs, max_targets))
    rng = inputs.rng("attribute_inference quasi-identifiers")
    attacks = run_attacks(trial, rng, n_quasi_identifiers, n_neighbors)
    return Outcome(attacks, trial.attacked, entropies(inputs))


def attack_sizes(n_columns: int, n_quasi_identifiers: int) -> tuple[int, ...]:
    """Return numbers of quasi-identifiers: the given one, half of the columns, and all but one, if
    possible.

    Args:
        n_columns: Number of columns.
        n_quasi_identifiers: Number of known columns of Gretel's attack.

    Returns:
        Distinct numbers, ascending.
    """
    most = n_columns - 1
    sizes = {min(n_quasi_identifiers, most), min(n_columns // 2, most), most}
    return tuple(sorted(sizes))


def run_attacks(
    trial: Trial, rng: np.random.Generator, n_quasi_identifiers: int, n_neighbors: int
) -> list[Attack]:
    """Run the attacks of all sizes with 1 and ``n_neighbors`` neighbors.

    Below all but one, quasi-identifiers are drawn for every row; all other columns are targets.

    Args:
        trial: Attacked rows and target columns.
        rng: Source of the quasi-identifiers.
        n_quasi_identifiers: Number of known columns of Gretel's attack.
        n_neighbors: Number of neighbors of Gretel's attack.

    Returns:
        The attacks, by size and then number of neighbors.
    """
    from privacy_assets.metrics import _kernels as kernels

    k = min(n_neighbors, trial.points.shape[1])
    n_neighbors_options = sorted({1, n_neighbors})
    n_rows = len(trial.attacked.rows)
    n_columns = len(trial.targets)
    attacks = []
    *smaller_sizes, most = attack_sizes(n_columns, n_quasi_identifiers)
    for size in smaller_sizes:
        columns = np.tile(np.arange(n_columns), (n_rows, 1))
        quasi_identifiers = rng.permuted(columns, axis=1)[:, :size]
        is_target = np.ones((n_rows, n_columns), dtype=bool)
        np.put_along_axis(is_target, quasi_identifiers, False, axis=1)
        nearest = kernels.nearest_by(*trial.tables, quasi_identifiers, k)
        neighbors = np.repeat(nearest[:, None, :], n_columns, axis=1)
        for n_used in n_neighbors_options:
            attacks.append(trial.attack(size, n_used, neighbors, is_target, _TOLERANCE))

    neighbors = kernels.nearest_without(*trial.tables, k)
    is_target = np.ones((n_rows, n_columns), dtype=bool)
    for n_used in n_neighbors_options:
        attacks.append(trial.attack(most, n_used, neighbors, is_target, _TOLERANCE))
    return attacks


def protect(
    spec: StatisticSpec, outcome: Outcome, n_permutations: int, rng: np.random.Generator
) -> tuple[Estimate, np.ndarray, TableRows]:
    """Estimate the protection score.

    The interval is a bootstrap by subject, clipped to 0..100. Resampling increases the points that
    are lost by chance, which shifts the interval down; its upper end is therefore set at least as
    far from the score as the lower one.

    Args:
        spec: Statistic of the score.
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
    estimate = spec.estimate(
        value, low, high, outcome.subjects.counts, minimum_detectable_effect=mde
    )
    return estimate, points[int(by_attack.argmin())], _attack_table(outcome, by_attack)


def _attack_table(outcome: Outcome, scores: np.ndarray) -> TableRows:
    """Return a row for each attack with its protection score."""
    table = []
    for attack, score, risk in zip(outcome.attacks, scores, outcome.gretel_risk(), strict=True):
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


def default_attack(outcome: Outcome, n_quasi_identifiers: int, n_neighbors: int) -> int:
    """Return the position of the attack with the sizes of the settings.

    Args:
        outcome: Results of the attacks.
        n_quasi_identifiers: Number of known columns of Gretel's attack.
        n_neighbors: Number of neighbors of Gretel's attack.
    """
    sizes = [(attack.quasi_identifiers, attack.neighbors) for attack in outcome.attacks]
    return sizes.index((min(n_quasi_identifiers, len(outcome.entropy) - 1), n_neighbors))


def column_table(names: Sequence[str], outcome: Outcome, points: np.ndarray, i: int) -> TableRows:
    """Return the points of each column.

    Args:
        names: Names of the columns.
        outcome: Results of the attacks.
        points: Points of the strongest attack, (columns,).
        i: Position of Gretel's own attack.

    Returns:
        A row for each column with points, Gretel's own points and weight.
    """
    gretel_points = 100 * (1 - np.minimum(outcome.gretel_risk()[i], 1))
    rows = []
    for name, own, gretel, weight in zip(
        names, points, gretel_points, outcome.weights, strict=True
    ):
        rows.append(
            {
                "column": name,
                "points": float(own),
                "gretel": float(gretel),
                "weight": float(weight),
            }
        )
    return rows
