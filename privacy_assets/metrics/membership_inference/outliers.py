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
MATCH_CONFIDENCE = 0.99
# Share of the rows, the farthest from others, and of the distance to the nearest other person: within a quarter of it a
# row was moved a little, within a hundredth it is the same.
ASKED = ((0.1, 0.25), (0.1, 0.01), (0.02, 0.25))
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

OUTLIER_MATCHES = StatisticSpec(
    "outlier_matches",
    "Share of outlying members to whom the table comes far nearer than any other person is, because they are members.",
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


def apart_rows(population: Population, tail: float = ASKED[0][0]) -> np.ndarray:
    """The rows farther from everybody else than all but ``tail`` are, bool (n,): none where many stand equally far."""
    neighbour = population.neighbour
    cut = np.quantile(neighbour, 1 - tail, method="inverted_cdf")
    return np.asarray((neighbour > cut) & np.isfinite(neighbour))


def outlier_matches(population: Population) -> Estimate:
    """Statistic ``outlier_matches`` of the rows under attack, and with a reference of its rows too: leaked people over
    the members expected among the outliers, which is the share of members in all.

    A person is an outlier when the distance from theirs to the nearest other person is greater than that of nine in
    ten rows, and matched when S has a row within a quarter of that distance. Where many rows stand equally far from
    others, as with few coarse columns, none of these stands apart, and ``copies.rare_share`` sees them. So 15 of the
    most isolated people of 8,000 are seen when their rows are copied, or moved a little: chance brings next to nobody
    as near. Where it does, it brings hardly anybody the same row, and fewer farther out: it is also asked who has a
    row within a hundredth of the distance, and who of the farthest fiftieth one within a quarter. That of the three
    is told by which most people leak for sure, of none the first. Exact intervals, see
    :mod:`privacy_assets.stats.leaked`, at 99 % for all together; exactly 0 where nobody is matched, or nobody of one
    side stands apart.
    """
    found = [_matched(population.among(apart_rows(population, tail)), population, near) for tail, near in ASKED]
    surest = max(found, key=lambda one: max(one[0][1], -one[0][2], 0.0))
    ends, expected, told = surest
    value, low, high, mde = np.clip(ends / expected, -1, 1).tolist()
    return OUTLIER_MATCHES.estimate(
        value, low, high, population.counts, confidence=MATCH_CONFIDENCE, minimum_detectable_effect=mde, note=told
    )


def _matched(outliers: Population, whole: Population, near: float) -> tuple[np.ndarray, float, str]:
    """Leaked people (value, low, high, minimum detectable effect), members expected, and a note."""
    people = np.unique(outliers.codes)
    matched = np.unique(outliers.codes[outliers.scores["distance / neighbour"] <= near])
    if not 0 < int(whole.member[people].sum()) < len(people):
        matched = matched[:0]
    sure = 1 - (1 - MATCH_CONFIDENCE) / len(ASKED)
    found = leaked_subjects(people, matched, whole.member, sure)
    expected = max(len(people) * whole.members / len(whole), 1.0)
    return found, expected, f"{len(matched)} of {len(people)} outliers"
