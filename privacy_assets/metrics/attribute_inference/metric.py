"""Attribute inference: what the synthetic rows tell about a person of whom all else, or a little, is known.

Two families. Giomi et al. (Anonymeter, section on inference): every column in
turn is the secret, all others are known, and the nearest synthetic row's value is the guess; a number within 5 % of the
truth is right. Gretel's Data Privacy Protection Score: 3, half, or all but one of the columns are known, the guess is
that of 1 or 5 neighbours, and a number within 1 % is right; columns weigh by their entropy.

What a table tells about everybody, because it is accurate, is no leak: success on people of train (T) is held against
success on people of the holdout (H). If the table does not depend on who was in train, labels of people are
exchangeable, so permuting them gives the null law, at any sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from privacy_assets.metrics.attribute_inference.attacks import FEW, GIOMI, Attack, Targets, Trial, entropies
from privacy_assets.metrics.base import Measured, Metric
from privacy_assets.metrics.declarations import Grades, Part, Plot, Protected, Question
from privacy_assets.metrics.inputs import MetricInputs
from privacy_assets.metrics.membership_inference.gretel import grade
from privacy_assets.metrics.membership_inference.scores import SMALLEST_SIDE
from privacy_assets.settings import declared
from privacy_assets.stats import inference
from privacy_assets.stats.estimates import Estimate, StatisticSpec
from privacy_assets.stats.inference import REPLICATES, permutation_band
from privacy_assets.stats.intervals import beyond, wilson_centre
from privacy_assets.stats.limits import Limit
from privacy_assets.stats.subjects import Subjects, permute_labels

MEAN = "mean over columns"

_TOLERATED = (
    "significant at 99.5 % over all columns together; tolerated: what trees with leaves of 50 rows show (at most "
    "0.021 in 400 splits of Adult and UK census)"
)

_SPECS = {
    spec.name: spec
    for spec in (
        StatisticSpec(
            "excess",
            "Success rate on members less that on others where the evidence is strongest, over columns and their mean.",
            "two_sided",
        ),
        StatisticSpec(
            "risk", "Giomi's risk of the worst column: the best of several, so above 0 by chance.", null=None
        ),
        StatisticSpec(
            "protection_score",
            "Gretel's attribute inference protection: 0 (members are known) to 100, of the strongest attack.",
            "lower_is_riskier",
            100.0,
        ),
    )
}


@dataclass(frozen=True, eq=False)
class Outcome:
    """What the attacks found: Gretel's attacks, Giomi's, on whom, and the weights (columns,) of the columns, sum 1."""

    gretel: Sequence[Attack]
    giomi: Attack
    people: Subjects
    weights: np.ndarray

    @property
    def member(self) -> np.ndarray:
        """Who is a member, bool (s,)."""
        return self.people.member

    @property
    def sides(self) -> tuple[np.ndarray, np.ndarray]:
        """Members and others, float32 (1, s) each."""
        labels = self.member[None].astype(np.float32)
        return labels, 1 - labels

    @cached_property
    def _counts(self) -> tuple[np.ndarray, np.ndarray]:
        every = (self.giomi, *self.gretel)
        return np.concatenate([x.right for x in every], axis=1), np.concatenate([x.guesses for x in every], axis=1)

    def rates(self, members: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Success on members and on others, float64 (b, attacks, columns), Giomi's attack first.

        ``members`` and ``others`` (b, s) say how often each person counts.
        """
        right, guesses = self._counts
        shape = (len(members), -1, len(self.weights))
        found = [(side @ right) / np.maximum(side @ guesses, 1) for side in map(np.float32, (members, others))]
        return found[0].astype(np.float64).reshape(shape), found[1].astype(np.float64).reshape(shape)

    def excess(self, labels: np.ndarray) -> np.ndarray:
        """Excess of Giomi's attack (b, columns + 1): each column, and their weighted mean."""
        train, holdout = (rate[:, 0] for rate in self.rates(labels, 1 - labels))
        return np.column_stack([train - holdout, (train - holdout) @ self.weights])

    def risk(self, labels: np.ndarray) -> np.ndarray:
        """Giomi's risk (b, columns): (r_T - r_H) / (1 - r_H) with Wilson centres r."""
        train, holdout = (rate[:, 0] for rate in self.rates(labels, 1 - labels))
        counts = (np.float64(side @ self.giomi.guesses[:, :1]) for side in (labels, 1 - labels))
        return beyond(*(wilson_centre(rate * n, n) for rate, n in zip((train, holdout), counts, strict=True)))

    def points(self, members: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Protection points (b, attacks of Gretel, columns): 100 (1 - max(0, (a_T - a_H) / (1 - a_H)))."""
        train, holdout = (rate[:, 1:] for rate in self.rates(members, others))
        return 100 * (1 - np.maximum(beyond(train, holdout), 0))

    def score(self, members: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Weighted mean over columns, of the attack that leaves the fewest points (b,)."""
        return (self.points(members, others) @ self.weights).min(axis=1)

    def bootstrap(self, member: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Scores with the people of each side resampled with replacement."""
        counts = []
        for side in (member, ~member):
            people = int(side.sum())
            drawn = np.zeros((REPLICATES, len(member)), dtype=np.float32)
            drawn[:, side] = rng.multinomial(people, np.full(people, 1 / people), REPLICATES)
            counts.append(drawn)
        return self.score(*counts)


def attack(inputs: MetricInputs, attacks: int) -> tuple[Outcome, Trial]:
    """Run every attack."""
    trial = Trial.of(inputs, Targets.choose(inputs, attacks))
    gretel, giomi = trial.attacks(inputs.rng("attribute_inference quasi-identifiers"))
    weights = entropies(inputs)
    total = float(weights.sum())
    weights = weights / total if total > 0 else np.full(len(weights), 1 / len(weights))
    return Outcome(gretel, giomi, trial.attacked, weights), trial


def leaks(
    outcome: Outcome, names: Sequence[str], permutations: int, rng: np.random.Generator
) -> tuple[list[Estimate], list[dict[str, Any]]]:
    """The statistics "excess" and "risk", and per column rates, excess and risk, with intervals that hold for all."""
    people, width = outcome.people, len(names)

    def statistic(labels: np.ndarray) -> np.ndarray:
        return np.column_stack([outcome.excess(labels), outcome.risk(labels)])

    found = inference.test(statistic, people, permutations, rng)
    excess, risk = found[: width + 1], found[width + 1 :]
    note = f"column {names[int(risk.observed.argmax())]}; the interval holds for all columns at once"
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
    outcome: Outcome, permutations: int, rng: np.random.Generator
) -> tuple[Estimate, np.ndarray, list[dict[str, Any]]]:
    """The protection score, points (columns,) of the strongest attack, and a table of all attacks.

    Interval: bootstrap by person, cut off at 0 and 100. People resampled lose more points by chance, which shifts the
    whole of it down: the upper end is at least as far from the score as the lower.
    """
    points, known = outcome.points(*outcome.sides)[0], outcome.rates(*outcome.sides)[0][0, 1:]
    overall = points @ outcome.weights
    table = [
        {
            "quasi_identifiers": found.quasi_identifiers,
            "neighbours": found.neighbours,
            "protection": float(score),
            "grade": grade(float(score)),
            "gretel": float(100 * (1 - success @ outcome.weights)),
        }
        for found, score, success in zip(outcome.gretel, overall, known, strict=True)
    ]

    def score(labels: np.ndarray) -> np.ndarray:
        return outcome.score(labels, 1 - labels)

    low, high, mde = inference.bootstrap(
        outcome.member,
        lambda label: outcome.bootstrap(label, rng),
        lambda: permute_labels(outcome.member, permutations, rng, lambda labels: score(labels)[:, None]),
        lambda label: float(score(label[None].astype(np.float32))[0]),
        rng,
    )
    value = float(overall.min())
    ends, counts = (min(low, value), min(100, max(high, 2 * value - low, value))), outcome.people.counts
    spec, note = _SPECS["protection_score"], f"grade {grade(value)}"
    estimate = spec.estimate(value, *ends, counts, minimum_detectable_effect=mde, note=note)
    return estimate, points[int(overall.argmin())], table


@declared
class AttributeInference(Metric):
    """Attribute inference by the nearest synthetic rows; attacks and columns as in the module's docstring.

    Attacked are all rows of equally many random people of train and of the holdout, about ``attacks`` rows a side; the
    synthetic table is always searched whole. ``permutations`` of labels give the intervals. ``excess`` is the entry
    farthest from chance among Giomi's success rates by column and their mean, weighted by entropy: its near end is what
    is significant. ``protection_score`` is that of the strongest of Gretel's attacks (100 on average is never reached:
    points lost by chance count, points won do not). Dates have no zero: their tolerance is relative to the standard
    deviation. Gretel's own score, 100 less the weighted mean of the success rates on train (3 quasi-identifiers, 5
    neighbours), stands in the table "grade"; it is low for any accurate table, leak or not. With fewer than 20 subjects
    on a side nothing is measurable.

    Tables: "columns" (success on train and holdout, baseline, excess with a 95 % interval that holds for all columns at
    once, risk, points of the strongest attack, weight), "attacks" and "grade".
    """

    attacks: int = Field(default=5000, ge=1, description="rows attacked a side, at most")
    permutations: int = Field(default=999, ge=199, description="permutations of the labels of people")

    name: ClassVar[str] = "attribute_inference"
    summary: ClassVar[str] = "Does the published table tell more about members than about other people?"
    needs: ClassVar[frozenset[str]] = frozenset({"train", "holdout", "synthetic"})
    statistics: ClassVar[tuple[StatisticSpec, ...]] = tuple(_SPECS.values())
    default_limits: ClassVar[tuple[Limit, ...]] = (
        Limit("attribute_inference.excess", at_most=0.025, bound="lower", source=_TOLERATED),
    )

    plots: ClassVar[tuple[Plot, ...]] = (
        Grades(
            table="columns",
            caption="Attribute inference protection by column: 100 when members are guessed no better than other "
            "people, 0 when they are always guessed. The colour is the grade, Poor to Excellent, cut at 20, 40, 60 and "
            "80; columns of low weight move by chance.",
            label="column",
            points="points",
        ),
    )
    question: ClassVar[Question | None] = "inference"
    protections: ClassVar[tuple[Protected, ...]] = (
        Protected("differential privacy", ("protection_score",), mainly=False),
    )
    protection_score: ClassVar[Mapping[Part, str]] = {"attribute": "protection_score"}

    def measure(self, inputs: MetricInputs) -> Measured:
        """Compute statistics and tables."""
        subjects = [np.unique(inputs.subject_codes(role)).size for role in ("train", "holdout")]
        counts = (len(inputs.train) + len(inputs.holdout), sum(subjects))
        if min(subjects) < SMALLEST_SIDE or len(inputs.synthetic) == 0:
            reason = f"at least {SMALLEST_SIDE} subjects are needed in train and in holdout, and a synthetic row"
            return self.not_measurable(reason, counts)
        outcome, trial = attack(inputs, self.attacks)
        names = inputs.schema.names
        found, rows = leaks(outcome, names, self.permutations, inputs.rng("attribute_inference labels"))
        estimate, points, attacks = protect(outcome, self.permutations, inputs.rng("attribute_inference score"))
        baselines = [target.baseline(GIOMI) for target in trial.targets]
        columns = [
            {"column": name, "baseline": base, **row, "points": float(point), "weight": float(weight)}
            for name, base, row, point, weight in zip(names, baselines, rows, points, outcome.weights, strict=True)
        ]
        tables = {"columns": columns, "attacks": attacks, "grade": [_grades(estimate.value, attacks)]}
        return Measured((*found, estimate), tables)


def _grades(score: float, attacks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    few = min(FEW, attacks[-1]["quasi_identifiers"])
    own = next(row["gretel"] for row in attacks if (row["quasi_identifiers"], row["neighbours"]) == (few, 5))
    return {"grade": grade(score), "score": score, "gretel": own, "gretel_grade": grade(own)}
