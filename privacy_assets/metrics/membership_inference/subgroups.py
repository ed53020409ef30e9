"""Membership inference among the people of one category: a leak of a few groups is lost in rates over everybody."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator

from privacy_assets.errors import ConfigError, did_you_mean, shown
from privacy_assets.metrics.inputs import MetricInputs
from privacy_assets.metrics.membership_inference.scores import RATES, Population, advantages, named_entries
from privacy_assets.settings import Tuple, Unfit
from privacy_assets.stats import inference
from privacy_assets.stats.estimates import Estimate, StatisticSpec
from privacy_assets.stats.inference import REPLICATES, Band
from privacy_assets.stats.intervals import LEAK_CONFIDENCE
from privacy_assets.tables.column import ranked, stacked
from privacy_assets.tables.schema import TableSchema

SMALLEST_GROUP = 200  # subjects a side

SPEC = StatisticSpec(
    "advantage_subgroups",
    "True minus false positive rate in the declared subgroup, at the attack and threshold, of the strongest evidence.",
    "two_sided",
)
_SETTING = "metric membership_inference: subgroups"


@dataclass(frozen=True, eq=False)
class Subgroup:
    """The rows with one value of a column; ``rank`` is the place of the value by number of people, 1 the largest."""

    column: str
    rank: int
    population: Population


def _distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) < len(names):
        raise Unfit("names a column twice")
    return names


Subgroups = Annotated[tuple[str, ...], Tuple, AfterValidator(_distinct)]


def check_columns(columns: Sequence[str], schema: TableSchema) -> None:
    """Raise ConfigError unless every one of ``columns`` is there, and categorical or boolean."""
    grouping = schema.of_kind("categorical", "boolean")
    for name in columns:
        if name not in schema.names:
            raise ConfigError(f"{_SETTING} names the unknown column {shown(name)}.{did_you_mean(name, grouping)}")
        if name not in grouping:
            raise ConfigError(f"{_SETTING}: column {shown(name)} is {schema[name].kind}, not categorical or boolean.")


def find_subgroups(inputs: MetricInputs, population: Population, columns: Sequence[str]) -> list[Subgroup]:
    """One subgroup for every value of ``columns`` that at least 200 people of either side have, missing included.

    Values are ranked by people of both sides, equal ones in their own order. A person with rows of several values
    stands in several groups, with the rows of each.
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
    inputs: MetricInputs, population: Population, columns: Sequence[str], permutations: int, rng: np.random.Generator
) -> tuple[Estimate, list[dict[str, Any]]]:
    """Statistic ``advantage_subgroups``, and the table "subgroups" of the strongest evidence in each.

    Thresholds are set anew in every group. Intervals are two-sided, as those of ``advantage_any``, and hold
    at 99.5 % for all groups, scores and thresholds together; rows and subjects are those of the group that is told.
    The table tells a group by column and rank, never by its value. NaN when no group is large enough.
    """
    groups = find_subgroups(inputs, population, columns)
    if not groups:
        reason = f"no value has {SMALLEST_GROUP} subjects on each side" if columns else "no subgroup is declared"
        return SPEC.not_measurable(reason, population.counts), []
    fitted = [score for group in groups for score in group.population.fitted()]
    found = inference.test(partial(advantages, fitted), population, permutations, rng, replicates=REPLICATES)
    entries = named_entries(population)
    names = {f"{group.column}, group {group.rank} by size: {entry}": group for group in groups for entry in entries}
    estimate = found.worst(SPEC, population.counts, list(names), "strongest")
    rows, subjects = names[estimate.note].population.counts
    attacks = [(name, rate) for name in population.scores for rate in RATES]
    table = _table(groups, attacks, found.observed, found.band(LEAK_CONFIDENCE))
    return replace(estimate, n=rows, subjects=subjects), table


def _table(
    groups: Sequence[Subgroup], attacks: Sequence[tuple[str, float]], observed: np.ndarray, band: Band
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
