"""How many training rows the release repeats, whole, nearly or in part, beyond what it repeats of unseen people."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import ClassVar

import numpy as np
from pydantic import Field

from privacy_assets.metrics.base import Measured, Metric
from privacy_assets.metrics.copies import near
from privacy_assets.metrics.copies.match_weight import NAMES, Difference, advantages, match_weights
from privacy_assets.metrics.declarations import Causes, Question
from privacy_assets.metrics.inputs import MetricInputs
from privacy_assets.metrics.targets import Budget, target_rows
from privacy_assets.settings import declared
from privacy_assets.stats import inference
from privacy_assets.stats.estimates import Estimate, StatisticSpec
from privacy_assets.stats.inference import Evidence
from privacy_assets.stats.limits import Limit
from privacy_assets.stats.subjects import SMALLEST_SIDE, Subjects

_BEYOND = 4.0  # deviations of a cell without copies that are still counted
_OFTEN = 10  # times as often as among real rows
_ROUNDS = 10  # of correcting D for cells that are full anyway
_MOSTLY_FULL = 0.9  # share of cells at their bound, at most: where all are, nothing can be seen


@declared
class Copies(Metric):
    """Share of the training rows that the release repeats, which only membership explains; whole rows, and parts.

    Rows that agree in every column (missing equals missing) are a cell; ``s`` synthetic and ``r`` real rows, of train
    and unseen people alike, lie in one. A release that copies each training row with probability x has on average
    ``b + x t`` rows in a cell with ``t`` training rows, where the labels of its ``r`` rows say nothing of ``b``. So
    with the weight ``s / r`` of a row and people counting alike,

        x = (mean weight of members - mean weight of others) / D,

    where D is the mean over people and their rows of the share of a cell that is this person's: a copy in a cell of r
    people's rows moves the weight of one member by 1 / r. It is the score test of the mixture of population and
    training rows, divided by its derivative, so that it is right where many real rows are equal. 0 by chance, 1 for a
    copy of train, negative where the release keeps away from train. That is ``exact_share``, of all rows.

    A faithful release of a table whose rows all have many equals repeats the frequencies of train, and so its copies;
    but a row that a crowd shares singles nobody out. ``rare_share`` is what a limit can hold: the same sums over rows
    that at most ``few`` people have, in people of all the train. Were each of these rows repeated with the same
    probability x, it is x times the mean share of such rows among those of a person.

    A cell counts at most a copy of each of its rows beyond what is usual for cells of its size (the median over cells
    of as many rows to a power of two, and four deviations of both counts), so that one row repeated a hundred times is
    one row. What would be at that bound without a copy hides one: D is corrected for it.

    Either counts a row once, however often it is repeated. ``repeated_share`` is the share of the synthetic rows that
    equal a row which one person alone has, somebody of train, and which stands in the release more than ten times as
    often as among the real rows; less the same share of unseen people, by as many people, which tells how often a model
    that fits badly makes rows that hardly anybody has. At least 0, and without an interval: where nobody is repeated on
    purpose both are next to nothing.

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
    or holdout, or without synthetic rows.

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
        StatisticSpec("repeated_share", "Share of synthetic rows that repeat one training person's row many times."),
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
            source="chosen: where nobody is repeated on purpose there are no such rows",
        ),
    )
    small_limits: ClassVar[Mapping[str, float]] = {"copies.rare_share": 0.08, "copies.rare_share.lower": 0.02}
    causes: ClassVar[Causes] = Causes("copied rows", {"partial_advantage": "over-fitting"})
    question: ClassVar[Question | None] = "copies"

    def measure(self, inputs: MetricInputs) -> Measured:
        """Compute the statistic."""
        people, sides = inputs.everyone, [np.unique(inputs.subject_codes(role)).size for role in ("train", "holdout")]
        if min(*sides, people.smallest_side) < SMALLEST_SIDE or len(inputs.synthetic) == 0:
            reason = f"at least {SMALLEST_SIDE} people are needed in train and in holdout, and a synthetic row"
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


def copied(cells: np.ndarray, synthetic: np.ndarray, people: Subjects, few: int, difference: Difference) -> Evidence:
    """The shares ``exact_share`` and ``rare_share``, see :class:`Copies`: two entries.

    ``cells`` int64 (N,) are ids of the rows of ``people``, ``synthetic`` int64 (n,) those of the release; equal rows
    have equal ids.
    """
    known, cell = np.unique(cells, return_inverse=True)
    place = np.minimum(np.searchsorted(known, synthetic), len(known) - 1)
    real, hits = np.bincount(cell), np.bincount(place[known[place] == synthetic], minlength=len(known))
    size = np.log2(real).astype(np.int64)
    usual = real * _by(size, hits / real, np.median)
    most = real + usual + _BEYOND * np.sqrt(usual * (1 + usual / real))  # both counts vary by chance
    own, times = np.unique(people.codes * len(real) + cell, return_counts=True)
    whose, where = np.divmod(own, len(real))
    rare, rows = np.bincount(where) <= few, people.totals()
    weight = (np.minimum(hits, most) / real)[cell]
    weights = np.stack([people.totals(part) / rows for part in (weight, weight * rare[cell])], axis=1)

    found = difference(weights)
    parts, full = np.bincount(where, times**2 / rows[whose], len(real)) / real / len(people), hits >= most
    members, anyway = people.members / len(people), _by(size, full, np.mean)
    every = _moved(found.observed[0], parts, anyway, members)
    here = _moved(found.observed[1], parts * rare, anyway, members)
    held = float((people.totals(rare[cell].astype(np.float64)) / rows).mean())  # share of rows that few have
    return found.over(np.array([every, here / held if held > 0 else 1.0]))


def repeated(cells: np.ndarray, synthetic: np.ndarray, people: Subjects) -> float:
    """Share of ``synthetic`` (n,), n > 0, that is ``repeated_share``, see :class:`Copies`; ids as in :func:`copied`."""
    known, cell = np.unique(cells, return_inverse=True)
    pairs = np.unique(cell * len(people) + people.codes)
    held = np.bincount(pairs // len(people)) == 1
    member = np.zeros(len(known), dtype=bool)
    member[pairs // len(people)] = people.member[pairs % len(people)]  # of whoever holds it alone
    place = np.minimum(np.searchsorted(known, synthetic), len(known) - 1)
    hits = np.bincount(place[known[place] == synthetic], minlength=len(known))
    often = held & (hits > _OFTEN * np.bincount(cell))
    by_chance = hits[often & ~member].sum() * people.members / max(len(people) - people.members, 1)
    return float(max(hits[often & member].sum() - by_chance, 0.0) / len(synthetic))


def _moved(difference: float, parts: np.ndarray, full: np.ndarray, members: float) -> float:
    """D: how far a copy of every training row moves the ``difference`` of mean weights.

    ``parts`` (cells,) add up to it where no cell is at its bound, and ``full`` (cells,) are the shares of cells of as
    many rows that are. What share is there without copies follows from ``full`` and the copies, and these from D;
    ``members`` is the share of people who are in train.
    """
    share, moved = 0.0, 1.0
    for _ in range(_ROUNDS):
        anyway = np.clip((full - members * share) / (1 - members * share), 0.0, _MOSTLY_FULL)
        moved = float((parts * (1 - anyway)).sum())
        share = float(np.clip(difference / moved, 0.0, 1.0)) if moved > 0 else 0.0
    return moved


def _by(group: np.ndarray, values: np.ndarray, summary: Callable[[np.ndarray], float]) -> np.ndarray:
    """The summary of the values (n,) of each one's group, int64 (n,): (n,)."""
    found = np.array([summary(values[group == one]) for one in range(group.max() + 1) if (group == one).any()])
    return found[np.unique(group, return_inverse=True)[1]]
