"""Are the isolated people to whom a synthetic table comes nearest members beyond chance?"""

from __future__ import annotations

import math

import numpy as np

from privacy_assets.engine.intervals import CONFIDENCE
from privacy_assets.engine.metrics.base import FigureSpec
from privacy_assets.engine.metrics.entries import not_measurable
from privacy_assets.engine.metrics.leaked import leaked
from privacy_assets.engine.metrics.membership_scores import SMALLEST_SIDE, Population
from privacy_assets.engine.results import Figure

MOST_EXPOSED = 40  # people; of fewer than four times as many a quarter is taken
EVIDENCE = 8.9  # of so many people, all members, 40 suffice where four in five are

SPEC = FigureSpec(
    "isolated_excess",
    "Excess share of members among the 40 people unlike all others to whom the table comes nearest.",
    "two_sided",
)


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
        return not_measurable(SPEC, f"fewer than {SMALLEST_SIDE} isolated subjects on a side", isolated.counts)
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
    return Figure(
        SPEC.name, value, low, high, *isolated.counts, direction=SPEC.direction, confidence=CONFIDENCE,
        resolution=resolution, note=f"the {k} most exposed of {len(people)} isolated people",
    )  # fmt: skip
