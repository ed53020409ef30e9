"""Are the isolated people members to whom a synthetic table comes nearest? Among all of them, and among the nearest."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from privacy_assets.engine.intervals import CONFIDENCE, permute_labels, resample_subjects
from privacy_assets.engine.metrics.entries import LEAK_CONFIDENCE, Drawn, worst_entry
from privacy_assets.engine.metrics.leaked import leaked
from privacy_assets.engine.metrics.membership_scores import (
    REPLICATES,
    SMALLEST_SIDE,
    Population,
    advantages,
    named_entries,
)
from privacy_assets.engine.results import Figure, FigureSpec

MOST_EXPOSED = 40  # people; of fewer than four times as many a quarter is taken
_TOO_FEW = f"fewer than {SMALLEST_SIDE} isolated subjects on a side"
EVIDENCE = 8.9  # of so many people, all members, 40 suffice where four in five are

ADVANTAGE_ISOLATED = FigureSpec(
    "advantage_isolated",
    "The same among the tenth of the people who are least like anybody else.",
    "two_sided",
)
ISOLATED_EXCESS = FigureSpec(
    "isolated_excess",
    "Excess share of members among the 40 people unlike all others to whom the table comes nearest.",
    "two_sided",
)


def advantage_isolated(population: Population, permutations: int, rng: np.random.Generator) -> Figure:
    """Figure ``advantage_isolated``: the strongest evidence over scores and thresholds, of the isolated tenth of rows.

    Labels are permuted, and subjects drawn anew, among everybody, so that how many isolated people are members varies.
    NaN with fewer than 20 isolated subjects on a side.
    """
    isolated = population.isolated()
    if not isolated.measurable:
        return ADVANTAGE_ISOLATED.not_measurable(_TOO_FEW, isolated.counts)
    statistic, member = partial(advantages, isolated.fitted()), population.member
    drawn = Drawn(
        statistic(member.astype(np.float32)[None])[0],
        permute_labels(member, permutations, rng, statistic, population.block),
        resample_subjects(member, REPLICATES, rng, statistic, population.block),
    )
    names = named_entries(isolated)
    return worst_entry(ADVANTAGE_ISOLATED, drawn, LEAK_CONFIDENCE, isolated.counts, names, evidence=True)


def isolated_excess(population: Population) -> Figure:
    """Figure ``isolated_excess`` of the rows under attack: leaked people among the most exposed, over their number.

    Of the tenth of the rows that are least like anybody else's, S picks out the 40 people with the smallest distance
    to S over distance to the nearest other person: a person counts by the nearest row, at ties who stands farther from
    others comes first, and who ties with the last one counts too. Where more than four in five people are members, 40
    who all are say little: as many more are taken as make that as unlikely, 8.9 / -ln(share). Rates over all isolated
    people cannot see so few; of 40 alone nearly all must be members before chance is ruled out, so that generators
    which are merely close to their training rows pass at any number of rows. Exact interval, see
    :mod:`privacy_assets.engine.metrics.leaked`; NaN with fewer than 20 isolated subjects on a side.
    """
    isolated = population.isolated()
    if not isolated.measurable:
        return ISOLATED_EXCESS.not_measurable(_TOO_FEW, isolated.counts)
    keys = np.column_stack([isolated.scores["distance / neighbour"], -isolated.neighbour])
    rank = np.unique(keys, axis=0, return_inverse=True)[1].ravel()
    people, codes = np.unique(isolated.codes, return_inverse=True)
    best = np.full(len(people), len(rank))
    np.minimum.at(best, codes, rank)
    member = isolated.member[people]
    wanted = max(MOST_EXPOSED, math.ceil(EVIDENCE / -math.log(isolated.member.mean())))
    exposed = best <= np.sort(best)[min(wanted, len(people) // 4) - 1]
    k = int(exposed.sum())
    counts = leaked(k, int(member[exposed].sum()), len(people), int(member.sum()), CONFIDENCE)
    value, low, high, resolution = (count / k for count in counts)
    note = f"the {k} most exposed of {len(people)} isolated people"
    return ISOLATED_EXCESS.estimate(
        value, low, high, isolated.counts, confidence=CONFIDENCE, resolution=resolution, note=note
    )
