"""Attribute inference: predict unknown attributes of a person from the synthetic rows (Giomi et
al.).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from pydantic import Field

from privacy_assets.infra.settings import declared
from privacy_assets.metrics.attribute_inference.attacks import (
    GIOMI,
    Attack,
    Targets,
    Trial,
    column_weights,
    entropies,
)
from privacy_assets.metrics.base import (
    Metric,
    Question,
    TableRows,
    by_name,
    table_rows,
)
from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.metrics.membership_inference.scores import MIN_SUBJECTS_PER_SIDE
from privacy_assets.policy import Limit
from privacy_assets.stats import inference
from privacy_assets.stats.estimates import Estimate, MetricResult, StatisticSpec
from privacy_assets.stats.inference import permutation_band
from privacy_assets.stats.intervals import excess_success, wilson_center
from privacy_assets.stats.subjects import Subjects

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
)
_SPECS = by_name(_STATISTICS)


@dataclass(frozen=True, eq=False)
class Outcome:
    """Results of Giomi's attack.

    Attributes:
        giomi: The attack.
        subjects: Attacked subjects.
        entropy: Entropy of each column, shape (columns,).
    """

    giomi: Attack
    subjects: Subjects
    entropy: np.ndarray

    @cached_property
    def weights(self) -> np.ndarray:
        """Weights of the columns, shape (columns,)."""
        return column_weights(self.entropy)

    def rates(self, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return success rates on members and on non-members.

        Args:
            labels: Membership labels, 0 or 1, float32 (b, s).

        Returns:
            Rates on members and on non-members, float64 (b, columns).
        """
        return self._rate(labels), self._rate(1 - labels)

    def _rate(self, weights: np.ndarray) -> np.ndarray:
        """Return the success rate on weighted subjects (b, s), float64 (b, columns)."""
        weights = np.asarray(weights, dtype=np.float32)
        n_right = weights @ self.giomi.right
        n_guesses = weights @ self.giomi.guesses
        return np.asarray(n_right / np.maximum(n_guesses, 1), dtype=np.float64)

    def excess(self, labels: np.ndarray) -> np.ndarray:
        """Compute the excess success on members.

        Args:
            labels: Membership labels, 0 or 1, float32 (b, s).

        Returns:
            Excess of each column and their weighted mean, (b, columns + 1).
        """
        train, holdout = self.rates(labels)
        excess = train - holdout
        return np.column_stack([excess, excess @ self.weights])

    def risk(self, labels: np.ndarray) -> np.ndarray:
        """Compute Giomi's risk (r_T - r_H) / (1 - r_H) with Wilson centers r.

        Args:
            labels: Membership labels, 0 or 1, float32 (b, s).

        Returns:
            Risk of each column, (b, columns).
        """
        train, holdout = self.rates(labels)
        n_guesses = self.giomi.guesses[:, :1]
        n_train = np.float64(labels @ n_guesses)
        n_holdout = np.float64((1 - labels) @ n_guesses)
        train_center = wilson_center(train * n_train, n_train)
        holdout_center = wilson_center(holdout * n_holdout, n_holdout)
        return excess_success(train_center, holdout_center)


def attack(inputs: EvaluationInputs, max_targets: int) -> tuple[Outcome, Trial]:
    """Run Giomi's attack, see :class:`AttributeInference`.

    Args:
        inputs: Tables of one release.
        max_targets: Maximum number of attacked rows per side.

    Returns:
        Results of the attack, and the attacked rows and columns.
    """
    trial = Trial.of(inputs, Targets.choose(inputs, max_targets))
    return Outcome(trial.giomi(), trial.attacked, entropies(inputs)), trial


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
    train, holdout = outcome.rates(subjects.member[None].astype(np.float32))
    rows = table_rows(
        train=train[0],
        holdout=holdout[0],
        excess=excess.observed[:n_columns],
        low=band.low[:n_columns],
        high=band.high[:n_columns],
        risk=risk.observed,
    )
    return estimates, rows


@declared
class AttributeInference(Metric):
    """Attribute inference with the nearest synthetic rows.

    All statistics compare members (subjects in train) with non-members (holdout): a table that is
    accurate for everyone is not a leak. Attacked are all rows of the same number of random subjects
    of train and of holdout. The synthetic table is searched completely.

    Args:
        max_targets: Maximum number of attacked rows per side.
        n_permutations: Number of permutations of the membership labels.

    Attributes:
        excess: Strongest difference in Giomi's success rate between members and non-members, over
            the columns and their entropy-weighted mean.
        risk: Giomi's risk of the worst column. The maximum is above 0 by chance.

    Notes:
        Giomi et al. (Anonymeter): each column in turn is the target, all others are known, and the
        value of the nearest synthetic row is the prediction. A number within 5 % of the truth is
        right. The tolerance of dates, which have no zero, is relative to the standard deviation.

        Intervals of ``excess`` and ``risk`` permute labels by subject, which is valid for any
        sizes, and hold simultaneously for all columns.

        Table: "columns" (success on train and holdout, baseline, excess with a simultaneous 95 %
        interval, risk, weight).

        Not measurable with fewer than 20 subjects in train or holdout.
    """

    max_targets: int = Field(default=5000, ge=1)
    n_permutations: int = Field(default=999, ge=199)

    name: ClassVar[str] = "attribute_inference"
    summary: ClassVar[str] = (
        "Does the published table reveal more about members than about other people?"
    )
    required_inputs: ClassVar[frozenset[str]] = frozenset({"train", "holdout", "synthetic"})
    statistics: ClassVar[tuple[StatisticSpec, ...]] = _STATISTICS
    default_limits: ClassVar[tuple[Limit, ...]] = (
        Limit("attribute_inference.excess", at_most=0.025, bound="proven", source=_TOLERATED),
    )

    question: ClassVar[Question | None] = "inference"

    def measure(self, inputs: EvaluationInputs) -> MetricResult:
        """Compute statistics and the table "columns".

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

        outcome, trial = attack(inputs, self.max_targets)
        names = inputs.schema.names
        rng = inputs.rng("attribute_inference labels")
        estimates, rows = leaks(outcome, names, self.n_permutations, rng)
        columns = []
        for i, (name, row) in enumerate(zip(names, rows, strict=True)):
            columns.append(
                {
                    "column": name,
                    "baseline": trial.targets[i].baseline(GIOMI),
                    **row,
                    "weight": float(outcome.weights[i]),
                }
            )
        return self.result(inputs, estimates, columns=columns)
