"""Linkability: can two halves of a person's record be joined through the synthetic table? (Giomi et
al., "A unified framework for quantifying privacy risk in synthetic data", the linkability attack.)

The attacker holds two files on the same people with different columns and no common key, and joins two records when a
synthetic row is near both. That common people can be joined says nothing, any good table does it: members are held
against people whom the generator has not seen.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import AfterValidator, Field

from privacy_assets.compute.progress import advance
from privacy_assets.errors import ConfigError, did_you_mean, shown
from privacy_assets.metrics.base import Measured, Metric
from privacy_assets.metrics.declarations import Intervals, Plot, Question
from privacy_assets.metrics.inputs import MetricInputs
from privacy_assets.metrics.linkability.linkage import Linkage
from privacy_assets.settings import Tuple, Unfit, declared
from privacy_assets.stats import inference
from privacy_assets.stats.estimates import StatisticSpec
from privacy_assets.stats.inference import Evidence
from privacy_assets.stats.intervals import beyond
from privacy_assets.stats.subjects import SMALLEST_SIDE, Subjects
from privacy_assets.tables.encoding import EncodedTable

Names = Annotated[tuple[str, ...], Tuple, Field(min_length=1)]
Pair = tuple[Names, Names]
_ROLES = ("train", "holdout", "synthetic")
_MOST_NEIGHBOURS = 10  # of 2,000 synthetic rows, 50 link all of Adult, so that a verbatim copy would pass


def _disjoint(pair: Pair | None) -> Pair | None:
    names = list(itertools.chain(*pair or ()))
    if len(set(names)) < len(names):
        raise Unfit("must be two lists of column names that share none")
    return pair


@declared
class Linkability(Metric):
    """Linkability of real rows through the synthetic table, averaged over pairs of disjoint column sets.

    A real row is *linked* by a pair when some synthetic row is among its nearest by both sets (see
    :mod:`.linkage`; ties included, so that a verbatim copy is linked by every pair). Each
    person's rate is the linked share of the rows attacked, and people count alike. With r_T and r_H the mean rates of
    members and of others, for each pair,

        excess = mean over pairs of r_T - r_H,
        risk = mean over pairs of (r_T - r_H) / (1 - r_H), and 0 where both are 1.

    The risk is that of Giomi et al. with plain rates: their Wilson centres differ between sides of unequal sizes when
    nothing leaks. Both are about 0 for a table that does not depend on who was in train, at any sizes of T and H: the
    searched table is S. Intervals permute the labels of people. The excess of a copy is 1 - r_H, small where S links
    nearly everybody; its risk is 1. A table that keeps away from its training rows has a negative excess.

    Settings: ``columns``, two disjoint lists of names; without them ``halves`` different random halves of the columns
    (or all there are). ``attacks``, rows attacked a side at most: people are drawn, and as many rows of each as fit,
    the same number on both sides; S is searched as a whole. ``neighbours``, at most 10, and ``permutations``.

    Columns that hold one value are left out; when nothing is left of a set, or with fewer than 20 people on a side,
    nothing is measurable.
    """

    name: ClassVar[str] = "linkability"
    summary: ClassVar[str] = "Can two halves of a person's record be joined through the synthetic table?"
    needs: ClassVar[frozenset[str]] = frozenset({"train", "holdout", "synthetic"})
    statistics: ClassVar[tuple[StatisticSpec, ...]] = (
        StatisticSpec(
            "excess",
            "Share of members whose two halves are joined through the table, less that of unseen people.",
            "two_sided",
        ),
        StatisticSpec(
            "risk", "Giomi's linkability risk: the excess as a share of the unseen people who are not joined."
        ),
    )

    plots: ClassVar[tuple[Plot, ...]] = (
        Intervals(
            table="sets",
            caption="Excess of members over unseen people whose halves are joined, by pair of column sets. Zero is "
            "chance; both directions give members away.",
            x="sets",
            y="excess",
            labels=("pair of column sets", "excess"),
        ),
    )
    question: ClassVar[Question | None] = "linking"

    columns: Annotated[Pair | None, Tuple, AfterValidator(_disjoint)] = Field(
        default=None,
        title="two lists of column names that share none, or nothing",
        description="what an attacker knows of a person; random halves without",
    )
    halves: int = Field(default=20, ge=1, description="random halves of the columns")
    attacks: int = Field(default=2000, ge=1, description="rows attacked a side, at most")
    neighbours: int = Field(default=1, ge=1, le=_MOST_NEIGHBOURS, description="nearest synthetic rows of each half")
    permutations: int = Field(default=1000, ge=199, description="permutations of the labels of people")

    def measure(self, inputs: MetricInputs) -> Measured:
        """Compute the statistics and the table "sets", one row a pair of column sets."""
        people = inputs.people
        if people.smallest_side < SMALLEST_SIDE or len(inputs.synthetic) == 0:
            reason = f"at least {SMALLEST_SIDE} people are needed in train and in holdout, and a synthetic row"
            return self.not_measurable(reason, people.counts, sets=[])
        places = varying_columns(inputs)
        pairs = self._pairs(inputs, [name for name in inputs.schema.names if name in places])
        if not pairs:
            reason = "two sets are needed, each with a column of more than one value"
            return self.not_measurable(reason, people.counts, sets=[])
        rows = target_rows(inputs, people, self.attacks)
        sets = [[[place for name in names for place in places[name]] for names in pair] for pair in pairs]
        real = EncodedTable.stack([inputs.encoded(role) for role in ("train", "holdout")]).take(rows)
        every = list(itertools.chain(*sets[0]))  # all pairs have the same columns
        searched = Linkage.of(inputs.encoded("synthetic"), real, every, inputs.device)
        linked = np.empty((len(rows), len(pairs)))
        for at, (first, second) in enumerate(sets):
            linked[:, at] = searched.hits(first, second, self.neighbours)
            advance(inputs.progress, "linkability: pairs of column sets", at + 1, len(pairs))
        attacked = people.take(rows)
        rates = np.stack([attacked.totals(column) for column in linked.T], axis=1) / attacked.totals()[:, None]
        excess, risk = weigh(rates, attacked, self.permutations, inputs.rng("linkability labels"))
        estimates = tuple(
            found.mean.estimate(spec, attacked.counts, within=(-1, 1))
            for spec, found in zip(self.statistics, (excess, risk), strict=True)
        )
        return Measured(estimates, {"sets": _table(pairs, rates, attacked.member, excess, risk)})

    def _pairs(self, inputs: MetricInputs, usable: Sequence[str]) -> list[Pair]:
        """The pairs of column sets to attack with, none where there is none."""
        if self.columns is None:
            return random_halves(usable, self.halves, inputs.rng("linkability halves"))
        known = inputs.schema.names
        for name in itertools.chain(*self.columns):
            if name not in known:
                raise ConfigError(
                    f"metric linkability: no table has a column {shown(name)}.{did_you_mean(name, known)}"
                )
        first, second = (tuple(name for name in names if name in usable) for names in self.columns)
        return [(first, second)] if first and second else []


def random_halves(names: Sequence[str], number: int, rng: np.random.Generator) -> list[Pair]:
    """``number`` different ways to cut the columns in two (sizes differ by at most 1), or all there are."""
    total, size = len(names), len(names) // 2
    even = total == 2 * size
    if size == 0:
        return []
    found: dict[tuple[int, ...], None] = {}
    if math.comb(total, size) // (1 + even) <= number:
        every = itertools.combinations(range(total), size)
        found = {half: None for half in every if not even or 0 in half}
    while len(found) < min(number, math.comb(total, size) // (1 + even)):
        order = rng.permutation(total)
        half = order[:size] if not even or 0 in order[:size] else order[size:]
        found[tuple(sorted(half.tolist()))] = None
    return [(tuple(names[c] for c in half), tuple(names[c] for c in range(total) if c not in half)) for half in found]


def target_rows(inputs: MetricInputs, people: Subjects, most: int) -> np.ndarray:
    """Positions in T stacked on H of at most ``most`` rows a side, drawn by person and blind to the labels.

    As many people a side as there are, or ``most``; the same number of rows of each at most, so that labels of the
    people drawn stay exchangeable. No draw depends on the order of rows.
    """
    rng = inputs.rng("linkability people")
    order = rng.permutation(len(people))
    drawn = np.zeros(len(people), dtype=bool)
    for side in (True, False):
        drawn[order[people.member[order] == side][:most]] = True
    of_each = max(1, most // max(people.members, len(people) - people.members))
    content = np.concatenate([inputs.row_ids["train"], inputs.row_ids["holdout"]])
    rows = np.lexsort((people.codes, content))
    rows = rows[rng.permutation(len(rows))]
    rows = rows[np.argsort(people.codes[rows], kind="stable")]
    rank = np.arange(len(rows)) - np.searchsorted(people.codes[rows], people.codes[rows])
    return rows[drawn[people.codes[rows]] & (rank < of_each)]


def varying_columns(inputs: MetricInputs) -> dict[str, list[int]]:
    """Encoded columns (as ``EncodedTable.pick`` numbers them) by column, without what holds one value in all tables."""
    tables = [inputs.encoded(role) for role in _ROLES]
    ends = []
    for part in ("numeric", "codes"):
        arrays = [getattr(table, part) for table in tables]
        ends.append(np.stack([[array.min(axis=0), array.max(axis=0)] for array in arrays]))
    varies = np.concatenate([end[:, 0].min(axis=0) < end[:, 1].max(axis=0) for end in ends])
    places = {name: [place for place in own if varies[place]] for name, own in inputs.encoder.places.items()}
    return {name: own for name, own in places.items() if own}


def weigh(
    rates: np.ndarray, people: Subjects, permutations: int, rng: np.random.Generator
) -> tuple[Evidence, Evidence]:
    """Excess and Giomi's risk of every pair, from the rates (people, pairs)."""
    n_T, pairs = people.members, rates.shape[1]
    n_H = len(people) - n_T

    def statistic(labels: np.ndarray) -> np.ndarray:
        r_T, r_H = labels @ rates / n_T, (1 - labels) @ rates / n_H
        return np.column_stack([r_T - r_H, beyond(r_T, r_H)])

    found = inference.test(statistic, people, permutations, rng)
    return found[:pairs], found[pairs:]


def _table(
    pairs: Sequence[Pair], rates: np.ndarray, member: np.ndarray, excess: Evidence, risk: Evidence
) -> list[dict[str, Any]]:
    """One row a pair: rates, excess with an interval that holds for all pairs at once, and Giomi's risk."""
    band = excess.band()
    columns = {
        "rate_train": rates[member].mean(axis=0),
        "rate_holdout": rates[~member].mean(axis=0),
        "excess": excess.observed,
        "low": band.low,
        "high": band.high,
        "risk": risk.observed,
    }
    return [
        {
            "sets": at + 1,
            "columns": f"{len(first)} + {len(second)}",
            **{name: float(values[at]) for name, values in columns.items()},
        }
        for at, (first, second) in enumerate(pairs)
    ]
