"""Membership inference for outliers: rates among all of them, and membership of the most exposed
ones.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, NamedTuple

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
VARIANTS = ((0.1, 0.25), (0.1, 0.01), (0.02, 0.25))
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

    Args:
        population: Attacked rows.
        n_permutations: Number of permutations of the membership labels.
        rng: Generator of the permutations and bootstraps.
    """
    outliers = population.outliers()
    if not outliers.measurable:
        return ADVANTAGE_OUTLIERS.not_measurable(_TOO_FEW, outliers.counts)
    statistic = partial(advantages, outliers.fitted())
    evidence = inference.permutation_test(
        statistic, population, n_permutations, rng, n_bootstraps=N_BOOTSTRAPS
    )
    return evidence.worst(ADVANTAGE_OUTLIERS, outliers.counts, named_entries(outliers), "strongest")


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
    row_ranks = _ranks(outliers.scores["distance / neighbor"], -outliers.neighbor)
    subjects, codes = np.unique(outliers.codes, return_inverse=True)
    subject_ranks = np.full(len(subjects), len(row_ranks))
    np.minimum.at(subject_ranks, codes, row_ranks)

    min_exposed = max(MOST_EXPOSED, math.ceil(EVIDENCE / -math.log(outliers.member.mean())))
    last = min(min_exposed, len(subjects) // 4) - 1
    exposed = subjects[subject_ranks <= np.sort(subject_ranks)[last]]
    n_leaked = leaked_subjects(subjects, exposed, outliers.member, CONFIDENCE)
    value, low, high, mde = (n_leaked / len(exposed)).tolist()
    note = f"the {len(exposed)} most exposed of {len(subjects)} outliers"
    return OUTLIER_EXCESS.estimate(
        value, low, high, outliers.counts, minimum_detectable_effect=mde, note=note
    )


def apart_rows(population: Population, tail: float = VARIANTS[0][0]) -> np.ndarray:
    """Select the most isolated rows. Rows tied at the cut are excluded.

    Args:
        population: Attacked rows.
        tail: Share of the rows to select.

    Returns:
        True for the selected rows, bool (n,).
    """
    neighbor = population.neighbor
    cut = np.quantile(neighbor, 1 - tail, method="inverted_cdf")
    return np.asarray((neighbor > cut) & np.isfinite(neighbor))


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
    variants = [_matched(population, tail, near) for tail, near in VARIANTS]
    strongest = max(variants, key=lambda variant: variant.evidence)
    value, low, high, mde = np.clip(strongest.leaked / strongest.expected, -1, 1).tolist()
    return OUTLIER_MATCHES.estimate(
        value,
        low,
        high,
        population.counts,
        confidence=MATCH_CONFIDENCE,
        minimum_detectable_effect=mde,
        note=strongest.note,
    )


class _Matched(NamedTuple):
    """Matches among the outliers of one variant.

    Attributes:
        leaked: Number of leaked subjects: value, low, high and minimum detectable effect.
        expected: Expected number of members among the outliers, at least 1.
        note: Numbers of matches and of outliers.
    """

    leaked: np.ndarray
    expected: float
    note: str

    @property
    def evidence(self) -> float:
        """Distance of the interval from 0, or 0 if it includes 0."""
        _, low, high, _ = self.leaked
        return max(low, -high, 0.0)


def _matched(population: Population, tail: float, near: float) -> _Matched:
    """Count matched subjects among the most isolated rows.

    Args:
        population: Attacked rows with scores.
        tail: Share of the rows that are outliers.
        near: Largest distance of a match, relative to the nearest other subject.
    """
    outliers = population.among(apart_rows(population, tail))
    subjects = np.unique(outliers.codes)
    is_near = outliers.scores["distance / neighbor"] <= near
    matched = np.unique(outliers.codes[is_near])
    n_members = int(population.member[subjects].sum())
    if n_members == 0 or n_members == len(subjects):
        matched = matched[:0]
    joint_confidence = 1 - (1 - MATCH_CONFIDENCE) / len(VARIANTS)
    leaked = leaked_subjects(subjects, matched, population.member, joint_confidence)
    expected = max(len(subjects) * population.members / len(population), 1.0)
    note = f"{len(matched)} of {len(subjects)} outliers have such a row"
    return _Matched(leaked, expected, note)


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
    groupable = schema.of_kind("categorical", "boolean")
    for name in columns:
        if name not in schema.names:
            hint = did_you_mean(name, groupable)
            raise ConfigError(f"{_SETTING} names the unknown column {safe_repr(name)}.{hint}")
        if name not in groupable:
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

    Args:
        inputs: Tables of one release.
        population: Attacked rows.
        columns: Categorical or boolean columns.

    Returns:
        The groups by column, the largest first.
    """
    groups = []
    for column in columns:
        series = stacked([inputs.train[column], inputs.holdout[column]])
        if population.rows is not None:
            series = series.take(population.rows)
        (values,), _ = ranked([series])
        values = np.where(values < 0, values.max() + 1, values)
        value_subjects = np.unique(np.column_stack([values, population.codes]), axis=0)
        n_subjects = np.bincount(value_subjects[:, 0])
        by_size = np.argsort(-n_subjects, kind="stable")
        for rank, value in enumerate(by_size, start=1):
            group = population.among(values == value)
            if min(group.side(True)[1], group.side(False)[1]) >= SMALLEST_GROUP:
                groups.append(Subgroup(column, rank, group))
    return groups


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
    hold at 99.5 % for all groups, scores and thresholds together. The table identifies groups by
    column and rank, never by value.

    Args:
        inputs: Tables of one release.
        population: Attacked rows.
        columns: Declared columns; empty: none.
        n_permutations: Number of permutations of the membership labels.
        rng: Generator of the permutations and bootstraps.

    Returns:
        The estimate, with the rows and subjects of the reported group; NaN if no group is large
        enough. The rows of the table, one for each group.
    """
    groups = find_subgroups(inputs, population, columns)
    if not groups:
        reason = "no subgroup is declared"
        if columns:
            reason = f"no value has {SMALLEST_GROUP} people in train and in holdout"
        return SPEC.not_measurable(reason, population.counts), []
    fitted = []
    for group in groups:
        fitted += group.population.fitted()
    evidence = inference.permutation_test(
        partial(advantages, fitted), population, n_permutations, rng, n_bootstraps=N_BOOTSTRAPS
    )
    group_by_entry = {}
    for group in groups:
        for entry in named_entries(population):
            group_by_entry[f"{group.column}, group {group.rank} by size: {entry}"] = group
    estimate = evidence.worst(SPEC, population.counts, list(group_by_entry), "strongest")
    n_rows, n_subjects = group_by_entry[estimate.note].population.counts
    table = _table(groups, population.scores, evidence.observed, evidence.band(LEAK_CONFIDENCE))
    return replace(estimate, n=n_rows, subjects=n_subjects), table


def _table(
    groups: Sequence[Subgroup], scores: Iterable[str], observed: np.ndarray, band: Band
) -> list[dict[str, Any]]:
    """Return the rows of the table "subgroups".

    Args:
        groups: The groups.
        scores: Names of the scores.
        observed: Advantages, shape (groups x scores x ``RATES``,).
        band: Their simultaneous intervals.
    """
    attacks = list(itertools.product(scores, RATES))
    table = []
    for i, group in enumerate(groups):
        start = i * len(attacks)
        strongest = int(np.abs(band.z[start : start + len(attacks)]).argmax())
        score, fpr = attacks[strongest]
        entry = start + strongest
        table.append(
            {
                "column": group.column,
                "group": group.rank,
                "members": group.population.side(True)[1],
                "non_members": group.population.side(False)[1],
                "score": score,
                "fpr": fpr,
                "advantage": float(observed[entry]),
                "low": float(max(band.low[entry], -1)),
                "high": float(min(band.high[entry], 1)),
            }
        )
    return table
