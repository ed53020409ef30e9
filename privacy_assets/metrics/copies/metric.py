"""How many training rows the release repeats, whole, nearly or in part, beyond what it repeats of unseen people."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import ClassVar

import numpy as np
from pydantic import Field

from privacy_assets.metrics.base import Measured, Metric
from privacy_assets.metrics.copies import near
from privacy_assets.metrics.copies.exact import copied, repeated
from privacy_assets.metrics.copies.match_weight import NAMES, advantages, match_weights
from privacy_assets.metrics.declarations import Causes, Question
from privacy_assets.metrics.inputs import MetricInputs
from privacy_assets.metrics.targets import Budget, target_rows
from privacy_assets.settings import declared
from privacy_assets.stats import inference
from privacy_assets.stats.estimates import Estimate, StatisticSpec
from privacy_assets.stats.inference import Evidence
from privacy_assets.stats.limits import Limit
from privacy_assets.stats.subjects import SMALLEST_SIDE, Subjects


@declared
class Copies(Metric):
    """Share of the training rows that the release repeats, which only membership explains; whole rows, and parts.

    Rows that agree in every column (missing equals missing) are a cell; ``s`` synthetic and ``r`` real rows, of train
    and unseen people alike, lie in one. A row of it has the weight s / (a + r + s - 1), and 0 where s is 0. Where the
    frequencies of rows have a gamma law of shape ``a``, as many rows are expected by chance as a + r + s - 1 is large,
    once s - 1 synthetic and r real ones are known; so the weight says how much better a copy explains the s than chance
    does: it is the score of the mixture of population and training rows. Of several ``a`` that one is taken by which
    copies would move the weights farthest, in deviations between people, whoever is in train. If each training row is
    copied with probability x,

        mean weight of members - mean weight of others = mean of w(s + k, r) - w(s, r), k of Binomial(times, x),

    over the rows of unseen people, people counting alike: what copies of so many equal rows of one person add. (Of more
    than 20 equal rows the mean number is copied.) The x that solves it is the share: right where many real rows are
    equal, 0 by chance, 1 for a copy of train, and negative where the release keeps away from train; then the sides
    change places. That is ``exact_share``, of all rows.

    A faithful release of a table whose rows all have many equals repeats the frequencies of train, and so its copies;
    but a row that a crowd shares singles nobody out. ``rare_share`` is what a limit can hold: the same sums over rows
    that at most ``few`` people have, in people of all the train. Were each of these rows repeated with the same
    probability x, it is x times the mean share of such rows among those of a person.

    Either counts a row once, however often it is repeated, or little more. ``repeated_share`` is the share of the
    synthetic rows that equal a row which at most ten people have, somebody of train among them, and which stands in the
    release more than ten times as often as among the real rows (in a release longer than these, of its length). Rows
    that only unseen people have are taken off, in such a measure that the share is 0 on average whoever is in train: so
    often a model that fits badly makes rows that hardly anybody has. At least 0, and without an interval: where nobody
    is repeated on purpose there are no such rows.

    ``partial_advantage`` is about rows of which a part is somebody's: a real row's match weight, in bits, is how rare
    its values are in which it agrees with some synthetic row, see :func:`.match_weight.match_weights`. Members have
    larger ones where the release holds halves of their rows, their rows with cells changed or left out, or single
    numbers that only they have. It is the strongest of the differences between members and others, of all rows (2 AUC
    - 1) and of the 20, 5 and 1 % that agree best, at 99.5 % for all of them together. ``most_targets`` rows of random
    people are looked at; the release stays whole.

    ``near_share`` is about rows to which the release comes near: numbers moved or rounded, a cell changed. With d the
    distance of a real row to the nearest synthetic row, and a that to the nearest row of somebody else among all real
    rows, it counts 1 - (d / (c a))^2, at least 0: a kernel whose bandwidth follows from real rows, so that where people
    stand apart, near is farther. c is 1/8, 1/4 or 1/2 (at more, a synthetic row could be near to several people). Rows
    that others have too count nothing. The difference between members and others is divided by what is left to 1 among
    the others, so that it is ``rare_share`` for copies that are not moved, of rows that one person has; moved ones
    count in part. It is the strongest of the three c, at 99.5 % for all of them together, and of everybody.

    The people of the reference are unseen too. Labels permuted by subject and subjects resampled give each interval, at
    95 %. Where no row is as rare, ``rare_share`` is 0, exactly. Not measurable with fewer than 20 people in train
    or holdout, or 20 synthetic rows: copies of so few people are below each limit, and yet all that is released.

    Source: none; the estimate and its interval are checked in ``benchmarks/results/copies.md``.
    """

    few: int = Field(default=2, ge=1, description="people who may share a row that still is somebody's own")
    most_targets: Budget = Field(
        default=20_000, description="most rows whose parts are looked for; all of them without"
    )
    permutations: int = Field(default=1000, ge=199, description="permutations of the labels of people")

    name: ClassVar[str] = "copies"
    summary: ClassVar[str] = "Which share of the training rows does the release repeat, that only membership explains?"
    needs: ClassVar[frozenset[str]] = frozenset({"train", "holdout", "synthetic"})
    optional: ClassVar[frozenset[str]] = frozenset({"reference"})
    statistics: ClassVar[tuple[StatisticSpec, ...]] = (
        StatisticSpec(
            "exact_share", "Share of training rows that the release repeats, beyond what chance makes it.", "two_sided"
        ),
        StatisticSpec(
            "rare_share", "Share of the training people whose own row the release repeats, beyond chance.", "two_sided"
        ),
        StatisticSpec(
            "partial_advantage", "How much more rare values members have in common with a synthetic row.", "two_sided"
        ),
        StatisticSpec(
            "near_share",
            "Share of the training people to whose own row the release comes near, beyond chance.",
            "two_sided",
        ),
        StatisticSpec(
            "repeated_share",
            "Share of synthetic rows that repeat, many times, the row of a training person and of few others.",
        ),
    )
    default_limits: ClassVar[tuple[Limit, ...]] = (
        Limit(
            "copies.rare_share",
            at_most=0.04,
            source="chosen: 5 % copies of rows that few have end above it, fresh rows of 1,700 people mostly below",
        ),
        Limit(
            "copies.rare_share",
            at_most=0.01,
            bound="lower",
            source="significant at 95 %; tolerated: what trees with leaves of 100 people show on coarse codes "
            "(more in 1 of 219 releases of 18 tables with 1,500 people and more)",
        ),
        Limit(
            "copies.partial_advantage",
            at_most=0.015,
            bound="lower",
            source="significant at 99.5 % over all tails together; tolerated: what trees with leaves of 100 people and "
            "Bayesian networks show (more in 2 of 82 releases of 15 tables; see the lab report on leaks)",
        ),
        Limit(
            "copies.repeated_share",
            at_most=0.01,
            source="chosen: where nobody is repeated on purpose there are hardly any such rows (a TVAE on coarse codes "
            "shows 0.008)",
        ),
    )
    small_limits: ClassVar[Mapping[str, float]] = {"copies.rare_share": 0.08, "copies.rare_share.lower": 0.02}
    causes: ClassVar[Causes] = Causes("copied rows", {"partial_advantage": "over-fitting"})
    question: ClassVar[Question | None] = "copies"

    def measure(self, inputs: MetricInputs) -> Measured:
        """Compute the statistic."""
        people, sides = inputs.everyone, [np.unique(inputs.subject_codes(role)).size for role in ("train", "holdout")]
        if min(*sides, people.smallest_side, len(inputs.synthetic)) < SMALLEST_SIDE:
            reason = f"at least {SMALLEST_SIDE} people are needed in train and in holdout, and as many synthetic rows"
            return self.not_measurable(reason, people.counts)
        cells = np.concatenate([inputs.row_ids[role] for role in inputs.real_roles])
        difference = partial(
            inference.mean_difference, subjects=people, permutations=self.permutations, rng=inputs.rng("copies labels")
        )
        shares = share_estimates(copied(cells, inputs.row_ids["synthetic"], people, self.few, difference), people)
        share = repeated(cells, inputs.row_ids["synthetic"], people)
        often = self.spec("repeated_share").estimate(share, share, share, people.counts, minimum_detectable_effect=0.0)
        return Measured((*shares, self._partial(inputs), self._near(inputs), often))

    def _near(self, inputs: MetricInputs) -> Estimate:
        people, rng = inputs.everyone, inputs.rng("copies.near labels")
        difference = partial(inference.mean_difference, subjects=people, permutations=self.permutations, rng=rng)
        found = near.near_shares(*near.nearness(inputs), people, difference)
        return found.worst(self.spec("near_share"), people.counts, near.NAMES, "strongest")

    def _partial(self, inputs: MetricInputs) -> Estimate:
        people = inputs.everyone
        rows = target_rows(inputs, inputs.real_roles, self.most_targets, "copies.attacked")
        attacked = people if rows is None else people.take(rows)
        if attacked.smallest_side < SMALLEST_SIDE:
            return self.statistics[2].missing("too few people among those attacked", attacked.counts)
        weights = match_weights(inputs.real, inputs.synthetic, np.arange(len(people.codes)) if rows is None else rows)
        rng = inputs.rng("copies.partial labels")
        difference = partial(inference.mean_difference, subjects=attacked, permutations=self.permutations, rng=rng)
        return partial_estimate(advantages(weights, attacked, difference), attacked)


def share_estimates(found: Evidence, people: Subjects) -> list[Estimate]:
    """``exact_share`` and ``rare_share`` of what :func:`copied` found."""
    specs = enumerate(Copies.statistics[:2])
    return [found[[at]].estimate(spec, people.counts, within=(-1, 1)) for at, spec in specs]


def partial_estimate(found: Evidence, people: Subjects) -> Estimate:
    """``partial_advantage`` of what :func:`.match_weight.advantages` found."""
    return found.worst(Copies.spec("partial_advantage"), people.counts, NAMES, "strongest")
