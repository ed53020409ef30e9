"""Simulated releases of the controls: rows of one table of candidates, judged by the limits that controls look at."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from privacy_assets.metrics.controls.canaries import KINDS, canaries
from privacy_assets.metrics.dcr import Dcr
from privacy_assets.metrics.dcr.identical import own_rows
from privacy_assets.metrics.dcr.matches import Matches
from privacy_assets.metrics.inputs import MetricInputs
from privacy_assets.metrics.membership_inference.metric import PURPOSE
from privacy_assets.metrics.membership_inference.outliers import (
    ADVANTAGE_OUTLIERS,
    advantage_outliers,
    outlier_excess,
)
from privacy_assets.metrics.membership_inference.scores import Population, build_population
from privacy_assets.metrics.targets import target_rows
from privacy_assets.neighbours.nearest import nearest_rows
from privacy_assets.stats.estimates import Estimate
from privacy_assets.stats.intervals import Trials, ratio, shown_above
from privacy_assets.stats.limits import judge_limit
from privacy_assets.stats.results import MetricResult
from privacy_assets.tables.encoding import EncodedTable
from privacy_assets.tables.table import Table

if TYPE_CHECKING:
    from privacy_assets.metrics.controls import Controls

STEP = 0.5**0.25  # from one planted fraction to the next smaller one
CAUGHT = 0.95  # of all plantings of the stated leak
MOST_PLANTINGS = 200  # of the largest leak: with four missed, not even all others can show it
_COSTLY = f"membership_inference.{ADVANTAGE_OUTLIERS.name}"  # looked at where the other limits leave it open
_FEW = 8  # neighbours that are looked up before a row is searched again


class SimulatedReleases:
    """The synthetic table, everything that is planted, and the reference: one table of candidates, searched once."""

    def __init__(self, inputs: MetricInputs, controls: Controls) -> None:
        self._rng, self._own, self._controls = inputs.rng("controls"), len(inputs.synthetic), controls
        self._dcr = Dcr(**controls.dcr_settings)
        self._limits = [limit for limit in controls.parsed_limits if limit.statistic != _COSTLY]
        self._most = {kind: max(1, round(controls.doses[kind] * self._own)) for kind in KINDS}
        self._population = build_population(inputs)
        self._attacked = target_rows(inputs, ("train", "holdout"), controls.max_targets, PURPOSE)
        # Rows in the order of their content, so that what is drawn does not depend on the order they came in.
        order = {role: np.argsort(ids, kind="stable") for role, ids in inputs.row_ids.items()}
        rows = {role: inputs.tables[role].take(places) for role, places in order.items()}
        places = plantable(inputs, self._population)
        parts = {"own": rows["synthetic"], "unseen": rows.get("reference", rows["synthetic"].take(slice(0)))}
        for kind in KINDS:
            own = np.flatnonzero(places[kind][order["train"]])
            parts[kind] = canaries(kind, rows["train"], own, self._most[kind], self._rng)
        ends = np.cumsum([len(part) for part in parts.values()])
        self._places = dict(zip(parts, np.split(np.arange(ends[-1]), ends[:-1]), strict=True))
        together = Table.stack(list(parts.values()))
        pooled = replace(inputs, tables={**inputs.tables, "synthetic": together}, embedder=None)
        self._matches, self._candidates = Matches.of(pooled), pooled.encoded("synthetic")
        real = EncodedTable.stack([pooled.encoded("train"), pooled.encoded("holdout")])
        self._outliers, self._device = real.take(self._outlier_rows), inputs.device
        known = self._candidates.take(self._places["own"])
        self._near_own = nearest_rows(self._outliers, known, k=min(_FEW, self._own), device=self._device)

    def look_closer(self) -> bool:
        """From now on look at all limits of the controls, the one that costs most too; False when it already did."""
        known, self._limits = self._limits, self._controls.parsed_limits
        self.__dict__.pop("_broken_already", None)
        return len(self._limits) > len(known)

    def relabelled(self) -> Iterator[bool]:
        """Whether the synthetic table breaks a limit when the sides of the people are shuffled, each time."""
        own, member = self._places["own"], self._population.member
        for _ in range(self._controls.nulls):
            yield any(self._breaks(own, self._rng.permutation(member)))

    def unseen(self) -> Iterator[bool]:
        """Whether each half of the reference breaks a limit in place of the synthetic table; nothing without one."""
        rows = self._rng.permutation(self._places["unseen"])
        for half in np.array_split(rows, 2) if len(rows) > 1 else ():
            yield any(self._breaks(half))

    @property
    def breaks_all(self) -> bool:
        """True when the synthetic table itself breaks every limit, so that no planting can break one more."""
        return len(self._broken_already) == len(self._limits)

    def largest(self, kind: str) -> float:
        """The largest fraction that is planted: the dose of this kind, or all rows of it that there are."""
        return len(self._places[kind]) / self._own

    def all_planted(self, kind: str) -> bool:
        """True when the largest fraction falls short of the dose: there are no more such rows."""
        return len(self._places[kind]) < self._most[kind]

    def thresholds(self, kind: str) -> list[float]:
        """The smallest fraction caught in each planting, inf for none; nothing where there is no row to plant."""
        most = len(self._places[kind])
        sizes = sorted({max(1, round(most * STEP**step)) for step in range(128)}, reverse=True)
        found, place = [], len(sizes) // 2
        for _ in range(self._controls.draws if most else 0):
            place = last_true(len(sizes), place, self._planting(kind, sizes))
            found.append(math.inf if place < 0 else sizes[place] / self._own)
            place = max(place, 0)
        return found

    def caught_at_largest(self, kind: str) -> Trials:
        """Whether more than ``CAUGHT`` of all plantings of the largest fraction are caught.

        All of these rows are planted then: plantings differ in the own rows that make room.
        """
        most = len(self._places[kind])
        return shown_above(CAUGHT, lambda: self._planting(kind, [most])(0), 0.99, 0.05, MOST_PLANTINGS)

    def _planting(self, kind: str, sizes: list[int]) -> Callable[[int], bool]:
        """Whether rows of ``kind``, as many as each of ``sizes``, break a limit that the table holds with own rows."""
        planted, own = (self._rng.permutation(self._places[part]) for part in (kind, "own"))

        def caught(step: int) -> bool:
            broken = self._breaks(np.concatenate([own[sizes[step] :], planted[: sizes[step]]]))
            return any(limit not in self._broken_already for limit in broken)

        return caught

    @cached_property
    def _broken_already(self) -> set[str]:
        return set(self._breaks(self._places["own"]))

    def _breaks(self, rows: np.ndarray, member: np.ndarray | None = None) -> Iterator[str]:
        """Keys of the limits that fail for a table of these rows; ``member`` (s,) are others than the real members.

        "Not assessable" is neither: near a limit, chance decides which tables can be judged. The statistics come by
        what they cost, so that whoever asks for one broken limit need not wait for the others.
        """
        member = self._population.member if member is None else member
        sides = np.zeros(len(member), dtype=bool)
        sides[self._matches.people.codes] = member[self._population.codes]
        seen, (first, second) = self._seen_by(rows, member), self._rng.spawn(2)
        yield from self._failing("membership_inference", outlier_excess(seen))
        matches = self._matches.take(rows).relabelled(sides)
        yield from self._failing("dcr", *self._dcr.excesses(matches, first)[0])
        if any(limit.statistic == _COSTLY for limit in self._limits):
            estimate = advantage_outliers(seen, self._controls.permutations, second)
            yield from self._failing("membership_inference", estimate)

    def _failing(self, metric: str, *estimates: Estimate) -> list[str]:
        found = MetricResult(metric, estimates)
        of_metric = [limit for limit in self._limits if limit.metric == metric]
        return [limit.key for limit in of_metric if judge_limit(limit, found).status == "fail"]

    def _seen_by(self, rows: np.ndarray, member: np.ndarray) -> Population:
        """The people as these rows see them: only the outliers have distances."""
        near, outliers = self._distances(rows), self._outlier_rows
        found = {"distance": near, "distance / neighbour": ratio(near, self._population.neighbour[outliers])}
        if self._near_unseen is not None:
            found["distance / reference"] = ratio(near, self._near_unseen)
        scores = {name: np.full(len(outliers), np.inf) for name in found}
        for name, score in found.items():
            scores[name][outliers] = score
        seen = replace(self._population, scores=scores, member=member)
        return seen if self._attacked is None else seen.of_subjects(self._attacked)

    @cached_property
    def _outlier_rows(self) -> np.ndarray:
        """The outliers among the rows under attack, bool (n,)."""
        if self._attacked is None:
            return self._population.outlier_rows
        outliers = np.zeros(len(self._population.codes), dtype=bool)
        outliers[self._attacked[self._population.of_subjects(self._attacked).outlier_rows]] = True
        return outliers

    @cached_property
    def _near_unseen(self) -> np.ndarray | None:
        """Distance of each outlier to the nearest of the reference; None without one."""
        unseen = self._candidates.take(self._places["unseen"])
        if not len(unseen):
            return None
        return nearest_rows(self._outliers, unseen, device=self._device).distances[:, 0]

    def _distances(self, rows: np.ndarray) -> np.ndarray:
        """Distance of each outlier to the nearest of these candidates; few of the table's own ones are missing."""
        kept = np.zeros(self._own, dtype=bool)
        kept[rows[rows < self._own]] = True
        there = kept[self._near_own.indices]
        first = self._near_own.distances[np.arange(len(there)), there.argmax(axis=1)]
        near = np.where(there.any(axis=1), first, np.inf)
        for some, places in ((rows[rows >= self._own], np.arange(len(near))), (rows, np.flatnonzero(np.isinf(near)))):
            if len(some) and len(places):
                found = nearest_rows(self._outliers.take(places), self._candidates.take(some), device=self._device)
                near[places] = np.minimum(near[places], found.distances[:, 0])
        return near


def plantable(inputs: MetricInputs, population: Population) -> dict[str, np.ndarray]:
    """By kind, the rows of train that can be planted, bool (n_T,): those of one person alone."""
    ids = np.concatenate([inputs.row_ids["train"], inputs.row_ids["holdout"]])
    own = own_rows(ids, inputs.subject_codes("train", "holdout"))
    kinds = {kind: own & population.outlier_rows if kind == "rare" else own for kind in KINDS}
    return {kind: rows[: len(inputs.train)] for kind, rows in kinds.items()}


def last_true(count: int, start: int, holds: Callable[[int], bool]) -> int:
    """The last of 0..count-1 that holds, when all before it hold too; -1 for none. Looks around ``start`` first."""
    low, high, reach = -1, count, 1  # low holds, high does not
    while high - low > 1:
        place = min(max(start, low + 1), high - 1) if reach < 4 else (low + high) // 2
        if holds(place):
            low, start = place, place + reach
        else:
            high, start = place, place - reach
        reach *= 2
    return low
