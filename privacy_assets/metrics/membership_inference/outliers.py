"""Are the outliers members to whom a synthetic table comes nearest? Among all of them, and among the nearest."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from privacy_assets.metrics.membership_inference.scores import (
    Population,
    advantages,
    named_entries,
)
from privacy_assets.stats import inference
from privacy_assets.stats.estimates import Estimate, StatisticSpec
from privacy_assets.stats.inference import REPLICATES
from privacy_assets.stats.intervals import CONFIDENCE
from privacy_assets.stats.leaked import leaked_subjects
from privacy_assets.stats.subjects import SMALLEST_SIDE

MOST_EXPOSED = 40  # people; of fewer than four times as many a quarter is taken
_TOO_FEW = f"fewer than {SMALLEST_SIDE} outliers on a side"
EVIDENCE = 8.9  # of so many people, all members, 40 suffice where four in five are

ADVANTAGE_OUTLIERS = StatisticSpec(
    "advantage_outliers",
    "True minus false positive rate among the tenth of the people who are least like anybody else.",
    "two_sided",
)
OUTLIER_EXCESS = StatisticSpec(
    "outlier_excess",
    "Excess share of members among the 40 people unlike all others to whom the table comes nearest.",
    "two_sided",
)


def advantage_outliers(population: Population, permutations: int, rng: np.random.Generator) -> Estimate:
    """Statistic ``advantage_outliers``: the strongest evidence over scores and thresholds, of the outlying tenth of
    rows.

    Labels are permuted, and subjects resampled, among everybody, so that how many outliers are members varies.
    NaN with fewer than 20 outliers on a side.
    """
    outliers = population.outliers()
    if not outliers.measurable:
        return ADVANTAGE_OUTLIERS.not_measurable(_TOO_FEW, outliers.counts)
    statistic = partial(advantages, outliers.fitted())
    found = inference.test(statistic, population, permutations, rng, replicates=REPLICATES)
    return found.worst(ADVANTAGE_OUTLIERS, outliers.counts, named_entries(outliers), "strongest")


def _ranks(*keys: np.ndarray) -> np.ndarray:
    """Rank int64 (n,) by the first key, at ties by the next; those equal in all of them share one."""
    order = np.lexsort(keys[::-1])
    changes = np.any([key[order][1:] != key[order][:-1] for key in keys], axis=0)
    ranks = np.empty(len(order), dtype=np.int64)
    ranks[order] = np.concatenate([[0], np.cumsum(changes)])
    return ranks


def outlier_excess(population: Population) -> Estimate:
    """Statistic ``outlier_excess`` of the rows under attack: leaked people among the most exposed, over their number.

    Of the tenth of the rows that are least like anybody else's, S picks out the 40 people with the smallest distance
    to S over distance to the nearest other person: a person counts by the nearest row, at ties who stands farther from
    others comes first, and who ties with the last one counts too. Where more than four in five people are members, 40
    who all are say little: as many more are taken as make that as unlikely, 8.9 / -ln(share). Rates over all outliers
    cannot see so few; of 40 alone nearly all must be members before chance is ruled out, so that generators
    which are merely close to their training rows pass at any number of rows. Exact interval, see
    :mod:`privacy_assets.stats.leaked`; NaN with fewer than 20 outliers on a side.
    """
    outliers = population.outliers()
    if not outliers.measurable:
        return OUTLIER_EXCESS.not_measurable(_TOO_FEW, outliers.counts)
    rank = _ranks(outliers.scores["distance / neighbour"], -outliers.neighbour)
    people, codes = np.unique(outliers.codes, return_inverse=True)
    best = np.full(len(people), len(rank))
    np.minimum.at(best, codes, rank)
    wanted = max(MOST_EXPOSED, math.ceil(EVIDENCE / -math.log(outliers.member.mean())))
    exposed = people[best <= np.sort(best)[min(wanted, len(people) // 4) - 1]]
    found = leaked_subjects(people, exposed, outliers.member, CONFIDENCE) / len(exposed)
    value, low, high, mde = found.tolist()
    note = f"the {len(exposed)} most exposed of {len(people)} outliers"
    return OUTLIER_EXCESS.estimate(value, low, high, outliers.counts, minimum_detectable_effect=mde, note=note)
