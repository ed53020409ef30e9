"""Membership inference for outliers: rates among all of them, and membership of the most exposed
ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator, BeforeValidator

from privacy_assets.errors import ConfigError, did_you_mean, safe_repr
from privacy_assets.infra.settings import InvalidSetting, Tuple
from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.metrics.membership_inference.scores import (
    RATES,
    Population,
    advantages,
    named_entries,
)
from privacy_assets.stats import inference
from privacy_assets.stats.estimates import Estimate, StatisticSpec
from privacy_assets.stats.inference import N_BOOTSTRAPS, Band
from privacy_assets.stats.intervals import CONFIDENCE, LEAK_CONFIDENCE, leaked_subjects
from privacy_assets.stats.subjects import MIN_SUBJECTS_PER_SIDE
from privacy_assets.tables.column import ranked, stacked
from privacy_assets.tables.names import as_named
from privacy_assets.tables.schema import TableSchema

MOST_EXPOSED = 40  # subjects; a quarter of the outliers if they are fewer than four times as many
_TOO_FEW = f"fewer than {MIN_SUBJECTS_PER_SIDE} outliers in train or in holdout"
MATCH_CONFIDENCE = 0.99
# Share of the most isolated rows, and distance to S relative to the nearest other subject: within
# 1/4 a row is a slightly moved copy, within 1/100 an identical one.
ASKED = ((0.1, 0.25), (0.1, 0.01), (0.02, 0.25))
EVIDENCE = 8.9  # evidence of 40 subjects who are all members, if four in five are members

ADVANTAGE_OUTLIERS = StatisticSpec(
    "advantage_outliers",
    "True minus false positive rate among the most isolated tenth of the people.",
    "two_sided",
    question="singling out",
)
OUTLIER_EXCESS = StatisticSpec(
    "outlier_excess",
    "Excess share of members among the 40 isolated people nearest to the table.",
    "two_sided",
    question="singling out",
)

OUTLIER_MATCHES = StatisticSpec(
    "outlier_matches",
    "Of the most isolated people in the training data, the share with a released row much"
    " closer than their nearest"
    " real neighbor, minus the same share of held-out people.",
    "two_sided",
    question="singling out",
    leak="a released row were close to {share} of the most unusual people in the training data",
)


def advantage_outliers(
    population: Population, n_permutations: int, rng: np.random.Generator
) -> Estimate:
    """Return the strongest advantage over scores and thresholds among the outlying tenth of rows.

    Labels are permuted and subjects resampled among all attacked subjects, so the number of
    outliers who are members varies. Not measurable with fewer than 20 outliers on a side.
    """
    outliers = population.outliers()
    if not outliers.measurable:
        return ADVANTAGE_OUTLIERS.not_measurable(_TOO_FEW, outliers.counts)
    statistic = partial(advantages, outliers.fitted())
    found = inference.permutation_test(
        statistic, population, n_permutations, rng, n_bootstraps=N_BOOTSTRAPS
    )
    return found.worst(ADVANTAGE_OUTLIERS, outliers.counts, named_entries(outliers), "strongest")


def _ranks(*keys: np.ndarray) -> np.ndarray:
    """Rank rows, int64 (n,), by the keys in order. Rows equal in all keys have equal ranks."""
    order = np.lexsort(keys[::-1])
    changes = np.any([key[order][1:] != key[order][:-1] for key in keys], axis=0)
    ranks = np.empty(len(order), dtype=np.int64)
    ranks[order] = np.concatenate([[0], np.cumsum(changes)])
    return ranks


def outlier_excess(population: Population) -> Estimate:
    """Return the number of leaked subjects among the most exposed outliers, divided by their
    number.

    Outliers are the most isolated tenth of rows. The most exposed are the 40 subjects with the
    smallest distance to S relative to the nearest other subject, counting the nearest row of a
    subject. Ties: the more isolated subject comes first, and subjects tied with the last one are
    included. If more than four in five subjects are members, 40 members are weak evidence, so 8.9 /
    -ln(share) subjects are used. Rates over all outliers cannot detect so small a number; among 40,
    nearly all must be members to exclude chance, so generators that are merely close to their
    training rows pass. The interval is exact, see :mod:`privacy_assets.stats.intervals`. Not
    measurable with fewer than 20 outliers on a side.
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
    return OUTLIER_EXCESS.estimate(
        value, low, high, outliers.counts, minimum_detectable_effect=mde, note=note
    )


def apart_rows(population: Population, tail: float = ASKED[0][0]) -> np.ndarray:
    """Return the most isolated rows, a share ``tail``, bool (n,). Rows tied at the cut are
    excluded.
    """
    neighbour = population.neighbour
    cut = np.quantile(neighbour, 1 - tail, method="inverted_cdf")
    return np.asarray((neighbour > cut) & np.isfinite(neighbour))


def outlier_matches(population: Population) -> Estimate:
    """Return the number of leaked subjects among outliers, divided by the expected number of
    members among them.

    Attacked rows and, if there is a reference, its rows are used. A subject is an outlier if its
    distance to the nearest other subject exceeds that of nine in ten rows, and matched if S has a
    row within a quarter of that distance. If many rows are equally isolated, as with few coarse
    columns, there are no outliers; ``copies.copied_share`` covers this case.

    Copies of 15 of the most isolated people among 8,000, exact or slightly moved, are detected,
    because chance matches are very rare. If they are not, two further tests have fewer: rows within
    a hundredth of the distance, and the most isolated 2 % within a quarter. Of the three variants,
    the one with the strongest evidence (the interval farthest from 0) is reported, or the first one
    if no interval excludes 0. Intervals are exact, see :mod:`privacy_assets.stats.intervals`, at 99
    % for all three together. Exactly 0 if no outlier is matched, or if all outliers are on one
    side.
    """
    found = [
        _matched(population.among(apart_rows(population, tail)), population, near)
        for tail, near in ASKED
    ]
    surest = max(found, key=lambda one: max(one[0][1], -one[0][2], 0.0))
    ends, expected, told = surest
    value, low, high, mde = np.clip(ends / expected, -1, 1).tolist()
    return OUTLIER_MATCHES.estimate(
        value,
        low,
        high,
        population.counts,
        confidence=MATCH_CONFIDENCE,
        minimum_detectable_effect=mde,
        note=told,
    )


def _matched(outliers: Population, whole: Population, near: float) -> tuple[np.ndarray, float, str]:
    """Return leaked subjects (value, low, high, minimum detectable effect), expected members, and a
    note.
    """
    people = np.unique(outliers.codes)
    matched = np.unique(outliers.codes[outliers.scores["distance / neighbour"] <= near])
    if not 0 < int(whole.member[people].sum()) < len(people):
        matched = matched[:0]
    sure = 1 - (1 - MATCH_CONFIDENCE) / len(ASKED)
    found = leaked_subjects(people, matched, whole.member, sure)
    expected = max(len(people) * whole.members / len(whole), 1.0)
    return found, expected, f"{len(matched)} of {len(people)} outliers have such a row"


SMALLEST_GROUP = 200  # subjects per side

SPEC = StatisticSpec(
    "advantage_subgroups",
    "True minus false positive rate, strongest evidence over declared subgroups, attacks and"
    " thresholds.",
    "two_sided",
)
_SETTING = "metric membership_inference: subgroups"


@dataclass(frozen=True, eq=False)
class Subgroup:
    """Rows with one value of a column.

    Attributes:
        column: Name of the column.
        rank: Rank of the value by number of subjects. 1: the largest.
        population: The rows.
    """

    column: str
    rank: int
    population: Population


def _distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) < len(names):
        raise InvalidSetting("names a column twice")
    return names


Subgroups = Annotated[tuple[str, ...], Tuple, BeforeValidator(as_named), AfterValidator(_distinct)]


def check_columns(columns: Sequence[str], schema: TableSchema) -> None:
    """Raise ConfigError if a column is unknown, or neither categorical nor boolean."""
    grouping = schema.of_kind("categorical", "boolean")
    for name in columns:
        if name not in schema.names:
            raise ConfigError(
                f"{_SETTING} names the unknown column"
                f" {safe_repr(name)}.{did_you_mean(name, grouping)}"
            )
        if name not in grouping:
            raise ConfigError(
                f"{_SETTING}: column {safe_repr(name)} is {schema[name].kind}, not categorical"
                " or boolean."
            )


def find_subgroups(
    inputs: EvaluationInputs, population: Population, columns: Sequence[str]
) -> list[Subgroup]:
    """Return a subgroup for every value of ``columns``, including missing, with at least 200
    subjects on each side.

    Values are ranked by number of subjects of both sides; ties by value. A subject with rows of
    several values is in several groups, with the rows of each.
    """
    found = []
    for column in columns:
        values = stacked([inputs.train[column], inputs.holdout[column]])
        (value,), _ = ranked([values if population.rows is None else values.take(population.rows)])
        value = np.where(value < 0, value.max() + 1, value)
        pairs = np.unique(np.column_stack([value, population.codes]), axis=0)
        sizes = np.bincount(pairs[:, 0])
        for place, at in enumerate(np.argsort(-sizes, kind="stable")):
            group = population.among(value == at)
            if min(group.side(True)[1], group.side(False)[1]) >= SMALLEST_GROUP:
                found.append(Subgroup(column, place + 1, group))
    return found


def advantage_subgroups(
    inputs: EvaluationInputs,
    population: Population,
    columns: Sequence[str],
    n_permutations: int,
    rng: np.random.Generator,
) -> tuple[Estimate, list[dict[str, Any]]]:
    """Return ``advantage_subgroups``, and the table "subgroups" with the strongest evidence in
    each.

    Thresholds are fitted for every group. Intervals are two-sided as for ``advantage_any``, and
    hold at 99.5 % for all groups, scores and thresholds together. Rows and subjects are counted in
    the reported group. The table identifies groups by column and rank, never by value. NaN if no
    group is large enough.
    """
    groups = find_subgroups(inputs, population, columns)
    if not groups:
        reason = (
            f"no value has {SMALLEST_GROUP} people in train and in holdout"
            if columns
            else "no subgroup is declared"
        )
        return SPEC.not_measurable(reason, population.counts), []
    fitted = [score for group in groups for score in group.population.fitted()]
    found = inference.permutation_test(
        partial(advantages, fitted), population, n_permutations, rng, n_bootstraps=N_BOOTSTRAPS
    )
    entries = named_entries(population)
    names = {
        f"{group.column}, group {group.rank} by size: {entry}": group
        for group in groups
        for entry in entries
    }
    estimate = found.worst(SPEC, population.counts, list(names), "strongest")
    rows, subjects = names[estimate.note].population.counts
    attacks = [(name, rate) for name in population.scores for rate in RATES]
    table = _table(groups, attacks, found.observed, found.band(LEAK_CONFIDENCE))
    return replace(estimate, n=rows, subjects=subjects), table


def _table(
    groups: Sequence[Subgroup],
    attacks: Sequence[tuple[str, float]],
    observed: np.ndarray,
    band: Band,
) -> list[dict[str, Any]]:
    table = []
    for place, group in enumerate(groups):
        first = place * len(attacks)
        at = int(np.abs(band.z[first : first + len(attacks)]).argmax())
        entry, (score, rate) = first + at, attacks[at]
        table.append(
            {
                "column": group.column,
                "group": group.rank,
                "members": group.population.side(True)[1],
                "non_members": group.population.side(False)[1],
                "score": score,
                "fpr": rate,
                "advantage": float(observed[entry]),
                "low": float(max(band.low[entry], -1)),
                "high": float(min(band.high[entry], 1)),
            }
        )
    return table
