"""Copies: how many training rows the release repeats, beyond what it repeats of people it was not made from."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np
from pydantic import Field

from privacy_assets.metrics.base import Measured, Metric
from privacy_assets.metrics.declarations import Question
from privacy_assets.metrics.inputs import MetricInputs
from privacy_assets.settings import declared
from privacy_assets.stats import inference
from privacy_assets.stats.estimates import StatisticSpec
from privacy_assets.stats.inference import REPLICATES, Evidence
from privacy_assets.stats.limits import Limit
from privacy_assets.stats.subjects import SMALLEST_SIDE, Subjects

_BEYOND = 4.0  # deviations of a cell without copies that are still counted
_ROUNDS = 10  # of correcting D for cells that are full anyway
_MOSTLY_FULL = 0.9  # share of cells at their bound, at most: where all are, nothing can be seen


@declared
class Copies(Metric):
    """Share of the training rows that the release repeats verbatim, which only membership explains.

    Rows that agree in every column (missing equals missing) are a cell; ``s`` synthetic and ``r`` real rows, of train
    and unseen people alike, lie in one. A release that copies each training row with probability x has on average
    ``b + x t`` rows in a cell with ``t`` training rows, where the labels of its ``r`` rows say nothing of ``b``. So
    with the weight ``s / r`` of a row and people counting alike,

        x = (mean weight of members - mean weight of others) / D,

    where D is the mean over people and their rows of the share of a cell that is this person's: a copy in a cell of r
    people's rows moves the weight of one member by 1 / r. It is the score test of the mixture of population and
    training rows, divided by its derivative, so that it is right where many real rows are equal. 0 by chance, 1 for a
    copy of train, negative where the release keeps away from train.

    A cell counts at most a copy of each of its rows beyond what is usual for cells of its size (the median over cells
    of as many rows to a power of two, and four deviations of both counts), so that one row repeated a hundred times is
    one row. What would be at that bound without a copy hides one: D is corrected for it.

    The people of the reference are unseen too. Labels permuted by subject and subjects resampled give the interval, at
    95 %. No limit by default: a table whose rows all have many equals cannot show its frequencies without the copies
    that make them up, and a faithful release of it counts as one. Not measurable with fewer than 20 people on a side,
    or without synthetic rows.

    Source: none; the estimate and its interval are checked in ``benchmarks/results/copies.md``.
    """

    permutations: int = Field(default=1000, ge=199, description="permutations of the labels of people")

    name: ClassVar[str] = "copies"
    summary: ClassVar[str] = "Which share of the training rows does the release repeat, that only membership explains?"
    needs: ClassVar[frozenset[str]] = frozenset({"train", "holdout", "synthetic"})
    optional: ClassVar[frozenset[str]] = frozenset({"reference"})
    statistics: ClassVar[tuple[StatisticSpec, ...]] = (
        StatisticSpec(
            "exact_share", "Share of training rows that the release repeats, beyond what chance makes it.", "two_sided"
        ),
    )
    default_limits: ClassVar[tuple[Limit, ...]] = ()
    question: ClassVar[Question | None] = "copies"

    def measure(self, inputs: MetricInputs) -> Measured:
        """Compute the statistic."""
        people = inputs.everyone
        if people.smallest_side < SMALLEST_SIDE or len(inputs.synthetic) == 0:
            reason = f"at least {SMALLEST_SIDE} people are needed in train and among the others, and a synthetic row"
            return self.not_measurable(reason, people.counts)
        cells = np.concatenate([inputs.row_ids[role] for role in inputs.real_roles])
        found = copied(cells, inputs.row_ids["synthetic"], people, self.permutations, inputs.rng("copies labels"))
        return Measured((found.estimate(self.statistics[0], people.counts, within=(-1, 1)),))


def copied(
    cells: np.ndarray, synthetic: np.ndarray, people: Subjects, permutations: int, rng: np.random.Generator
) -> Evidence:
    """The share of training rows that are copied, see :class:`Copies`: one entry.

    ``cells`` int64 (N,) are ids of the rows of ``people``, ``synthetic`` int64 (n,) those of the release; equal rows
    have equal ids.
    """
    known, cell = np.unique(cells, return_inverse=True)
    place = np.minimum(np.searchsorted(known, synthetic), len(known) - 1)
    real, hits = np.bincount(cell), np.bincount(place[known[place] == synthetic], minlength=len(known))
    size = np.log2(real).astype(np.int64)
    usual = real * _by(size, hits / real, np.median)
    most = real + usual + _BEYOND * np.sqrt(usual * (1 + usual / real))  # both counts vary by chance
    rows = people.totals()
    weights = people.totals((np.minimum(hits, most) / real)[cell]) / rows

    def statistic(labels: np.ndarray, times: np.ndarray | None = None) -> np.ndarray:
        every = np.ones_like(labels) if times is None else times
        member = labels * every
        inside, seen = member.sum(axis=1), member @ weights
        return (seen / inside - (every @ weights - seen) / (every.sum(axis=1) - inside))[:, None]

    found = inference.test(statistic, people, permutations, rng, replicates=REPLICATES)
    scale = _moved(found.observed[0], cell, real, _by(size, hits >= most, np.mean), people)
    resampled = None if found.resampled is None else found.resampled / scale
    return Evidence(found.observed / scale, found.null / scale, resampled)


def _moved(difference: float, cell: np.ndarray, real: np.ndarray, full: np.ndarray, people: Subjects) -> float:
    """D: how far a copy of every training row moves the ``difference`` of mean weights.

    ``cell`` (N,) is that of each row, ``real`` (cells,) its rows, and ``full`` (cells,) the share of cells of its size
    at their bound. What share is there without copies follows from ``full`` and the copies, and these from D.
    """
    own, times = np.unique(people.codes * len(real) + cell, return_counts=True)
    whose, where = np.divmod(own, len(real))
    parts = np.bincount(where, times**2 / people.totals()[whose], len(real)) / real / len(people)
    members, share, moved = people.members / len(people), 0.0, 1.0
    for _ in range(_ROUNDS):
        anyway = np.clip((full - members * share) / (1 - members * share), 0.0, _MOSTLY_FULL)
        moved = float((parts * (1 - anyway)).sum())
        share = float(np.clip(difference / moved, 0.0, 1.0))
    return moved


def _by(group: np.ndarray, values: np.ndarray, summary: Callable[[np.ndarray], float]) -> np.ndarray:
    """The summary of the values (n,) of each one's group, int64 (n,): (n,)."""
    found = np.array([summary(values[group == one]) for one in range(group.max() + 1) if (group == one).any()])
    return found[np.unique(group, return_inverse=True)[1]]
