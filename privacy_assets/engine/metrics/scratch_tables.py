"""Scratch tables of the controls: rows of one table of candidates, judged by the limits that controls look at."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from privacy_assets.engine.geometry.neighbours import nearest_rows
from privacy_assets.engine.inputs import MetricInputs
from privacy_assets.engine.metrics.attacked import attacked_rows
from privacy_assets.engine.metrics.canaries import KINDS, canaries
from privacy_assets.engine.metrics.closeness import Matches
from privacy_assets.engine.metrics.dcr import Dcr
from privacy_assets.engine.metrics.identical import own_rows
from privacy_assets.engine.metrics.isolated import isolated_excess
from privacy_assets.engine.metrics.membership_inference import PURPOSE
from privacy_assets.engine.metrics.membership_scores import Population, build_population, ratio
from privacy_assets.engine.policy import Limit, judge_limit
from privacy_assets.engine.results import MetricResult
from privacy_assets.engine.tables.encoding import EncodedTable

if TYPE_CHECKING:
    from privacy_assets.engine.metrics.controls import Controls

STEP = 0.5**0.25  # from one planted fraction to the next smaller one
_FEW = 8  # neighbours that are looked up before a row is searched again


class ScratchTables:
    """The synthetic table, everything that is planted, and the reference: one table of candidates, searched once."""

    def __init__(self, inputs: MetricInputs, controls: Controls) -> None:
        self._rng, self._own, self._controls = inputs.rng("controls"), len(inputs.synthetic), controls
        self._dcr, self._limits = Dcr(**controls.closeness), [Limit(**limit) for limit in controls.limits]
        self._most = max(1, round(controls.largest * self._own))
        self._population = build_population(inputs)
        self._attacked = attacked_rows(inputs, ("train", "holdout"), controls.attacked, PURPOSE)
        # Rows in the order of their content, so that what is drawn does not depend on the order they came in.
        order = {role: np.argsort(ids, kind="stable") for role, ids in inputs.row_ids.items()}
        rows = {role: inputs.tables[role].iloc[places] for role, places in order.items()}
        places = plantable(inputs, self._population)
        parts = {"own": rows["synthetic"], "unseen": rows.get("reference", rows["synthetic"][:0])}
        for kind in KINDS:
            own = np.flatnonzero(places[kind][order["train"]])
            parts[kind] = canaries(kind, rows["train"], own, self._most, inputs.schema, self._rng)
        ends = np.cumsum([len(part) for part in parts.values()])
        self._places = dict(zip(parts, np.split(np.arange(ends[-1]), ends[:-1]), strict=True))
        together = pd.concat(list(parts.values()), ignore_index=True)
        pooled = replace(inputs, tables={**inputs.tables, "synthetic": together}, embedder=None)
        self._matches, self._candidates = Matches.of(pooled), pooled.encoded("synthetic")
        real = EncodedTable.stack([pooled.encoded("train"), pooled.encoded("holdout")])
        self._isolated, self._device = real.take(self._isolated_rows), inputs.device
        known = self._candidates.take(self._places["own"])
        self._near_own = nearest_rows(self._isolated, known, k=min(_FEW, self._own), device=self._device)

    def relabelled(self) -> Iterator[bool]:
        """Whether the synthetic table breaks a limit when the sides of the people are drawn anew, each time."""
        own, member = self._places["own"], self._population.member
        for _ in range(self._controls.nulls):
            yield bool(self._broken_by(own, self._rng.permutation(member)))

    def unseen(self) -> Iterator[bool]:
        """Whether each half of the reference breaks a limit in place of the synthetic table; nothing without one."""
        rows = self._rng.permutation(self._places["unseen"])
        for half in np.array_split(rows, 2) if len(rows) > 1 else ():
            yield bool(self._broken_by(half))

    @property
    def breaks_all(self) -> bool:
        """True when the synthetic table itself breaks every limit, so that no planting can break one more."""
        return len(self._broken_already) == len(self._limits)

    def largest(self, kind: str) -> float:
        """The largest fraction that is planted."""
        return min(self._most, len(self._places[kind])) / self._own

    def thresholds(self, kind: str) -> list[float]:
        """The smallest fraction caught in each planting, inf for none; nothing where there is no row to plant."""
        rows = self._places[kind]
        most = min(self._most, len(rows))
        sizes = sorted({max(1, round(most * STEP**step)) for step in range(128)}, reverse=True)
        found, place = [], len(sizes) // 2
        for _ in range(self._controls.draws if most else 0):
            caught = self._planting(self._rng.permutation(rows), sizes)
            place = last_true(len(sizes), place, caught)
            found.append(math.inf if place < 0 else sizes[place] / self._own)
            place = max(place, 0)
        return found

    def _planting(self, planted: np.ndarray, sizes: list[int]) -> Callable[[int], bool]:
        """Whether so many of ``planted``, in place of own rows, break a limit that the table holds itself."""
        own = self._rng.permutation(self._places["own"])

        def caught(step: int) -> bool:
            rows = np.concatenate([own[sizes[step] :], planted[: sizes[step]]])
            return bool(self._broken_by(rows) - self._broken_already)

        return caught

    @cached_property
    def _broken_already(self) -> set[str]:
        return self._broken_by(self._places["own"])

    def _broken_by(self, rows: np.ndarray, member: np.ndarray | None = None) -> set[str]:
        """Keys of the limits that fail for a table of these rows; ``member`` (s,) are others than the real members.

        "Not assessable" is neither: near a limit, chance decides which tables can be judged.
        """
        member = self._population.member if member is None else member
        sides = np.zeros(len(member), dtype=bool)
        sides[self._matches.people.codes] = member[self._population.codes]
        matches = self._matches.take(rows).relabelled(sides)
        closest, _ = self._dcr.excesses(matches, self._rng.spawn(1)[0])
        isolated = isolated_excess(self._seen_by(rows, member))
        results = {"dcr": tuple(closest), "membership_inference": (isolated,)}
        found = {name: MetricResult(name, figures) for name, figures in results.items()}
        return {limit.key for limit in self._limits if judge_limit(limit, found[limit.metric]).status == "fail"}

    def _seen_by(self, rows: np.ndarray, member: np.ndarray) -> Population:
        """The people as these rows see them: only the isolated ones have distances."""
        near, isolated = self._distances(rows), self._isolated_rows
        scores = np.full(len(isolated), np.inf)
        scores[isolated] = ratio(near, self._population.neighbour[isolated])
        seen = replace(self._population, scores={"distance / neighbour": scores}, member=member)
        return seen if self._attacked is None else seen.of_people(self._attacked)

    @cached_property
    def _isolated_rows(self) -> np.ndarray:
        """The isolated ones of the rows under attack, bool (n,)."""
        if self._attacked is None:
            return self._population.isolated_rows
        isolated = np.zeros(len(self._population.codes), dtype=bool)
        isolated[self._attacked[self._population.of_people(self._attacked).isolated_rows]] = True
        return isolated

    def _distances(self, rows: np.ndarray) -> np.ndarray:
        """Distance of each isolated row to the nearest of these candidates; few of the table's own ones are missing."""
        kept = np.zeros(self._own, dtype=bool)
        kept[rows[rows < self._own]] = True
        there = kept[self._near_own.indices]
        first = self._near_own.distances[np.arange(len(there)), there.argmax(axis=1)]
        near = np.where(there.any(axis=1), first, np.inf)
        for some, places in ((rows[rows >= self._own], np.arange(len(near))), (rows, np.flatnonzero(np.isinf(near)))):
            if len(some) and len(places):
                found = nearest_rows(self._isolated.take(places), self._candidates.take(some), device=self._device)
                near[places] = np.minimum(near[places], found.distances[:, 0])
        return near


def plantable(inputs: MetricInputs, population: Population) -> dict[str, np.ndarray]:
    """By kind, the rows of train that can be planted, bool (n_T,): those of one person alone."""
    ids = np.concatenate([inputs.row_ids["train"], inputs.row_ids["holdout"]])
    own = own_rows(ids, inputs.subject_codes("train", "holdout"))
    kinds = {kind: own & population.isolated_rows if kind == "rare" else own for kind in KINDS}
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
