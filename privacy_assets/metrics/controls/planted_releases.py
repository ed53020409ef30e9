"""Releases of the controls: the synthetic table with rows planted beside its own, judged by limits on copies.

Everything that is looked at is made of parts of its own for each synthetic row: cells are counted, match weights and
distances are those to the nearest one. So what the table's own rows do is found once, and planted rows are added.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from privacy_assets.metrics.controls.canaries import KINDS, canaries
from privacy_assets.metrics.copies import Copies
from privacy_assets.metrics.copies._match_kernels import best_weights
from privacy_assets.metrics.copies.exact import copied
from privacy_assets.metrics.copies.match_weight import advantages, coded
from privacy_assets.metrics.copies.metric import partial_estimate, share_estimates
from privacy_assets.metrics.dcr.identical import own_rows
from privacy_assets.metrics.inputs import MetricInputs
from privacy_assets.metrics.membership_inference.metric import PURPOSE
from privacy_assets.metrics.membership_inference.outliers import apart_rows, outlier_matches
from privacy_assets.metrics.membership_inference.scores import Population, build_population, with_reference
from privacy_assets.metrics.targets import target_rows
from privacy_assets.neighbours.nearest import nearest_rows
from privacy_assets.stats.estimates import Estimate
from privacy_assets.stats.inference import DrawnLabels
from privacy_assets.stats.intervals import ratio
from privacy_assets.stats.limits import Limit, judge_limit
from privacy_assets.stats.results import MetricResult
from privacy_assets.stats.subjects import Subjects
from privacy_assets.tables.column import row_ids
from privacy_assets.tables.encoding import EncodedTable
from privacy_assets.tables.table import Table

if TYPE_CHECKING:
    from privacy_assets.metrics.controls import Controls


_SCORE = "distance / neighbour"


@dataclass(frozen=True, eq=False)
class _Seen:
    """A release, the positions of its ``rows`` among all candidates, and what people see of it."""

    rows: np.ndarray
    weights: np.ndarray
    population: Population
    people: Subjects
    labels: DrawnLabels


class PlantedReleases:
    """The synthetic table and everything that is planted beside it: one table of candidates, coded once.

    Some people are looked at, all rows of each, as many as the budgets of the metrics leave.
    """

    def __init__(self, inputs: MetricInputs, controls: Controls) -> None:
        self._rng, self._own, self._doses = inputs.rng("controls"), len(inputs.synthetic), controls.doses
        self._copies, self._limits = Copies(**controls.copies_settings), controls.parsed_limits
        seen = build_population(inputs, rows=target_rows(inputs, ("train", "holdout"), controls.max_targets, PURPOSE))
        self._population = with_reference(inputs, seen)
        # Rows in the order of their content, so that what is drawn does not depend on the order they came in.
        order = np.argsort(inputs.row_ids["train"], kind="stable")
        everybody = seen if seen.rows is None else build_population(inputs)
        train, places = inputs.train.take(order), plantable(inputs, everybody)
        most = self._rows(self._doses[-1])
        pools = {kind: canaries(kind, train, np.flatnonzero(places[kind][order]), most, self._rng) for kind in KINDS}
        ends = np.cumsum([self._own, *map(len, pools.values())])
        self.places = dict(zip(KINDS, np.split(np.arange(ends[0], ends[-1]), ends[1:-1] - ends[0]), strict=True))
        self.candidates = candidates = Table.stack([inputs.synthetic, *pools.values()])
        everyone, budget = inputs.everyone, self._copies.most_targets
        rows = target_rows(inputs, inputs.real_roles, budget, "copies.attacked")
        rows = np.arange(len(everyone.codes)) if rows is None else rows
        self._people = everyone if len(rows) == len(everyone.codes) else everyone.take(rows)
        self._real, self._weights, self._codes = coded(inputs.real, candidates, rows)
        *real, self._ids = row_ids([table.columns for table in (*inputs.real, candidates)], inputs.schema.names)
        self._cells = np.concatenate(real)[rows]
        self._encoded, self._device = inputs.encoder.transform(candidates), inputs.device
        self._outliers = np.flatnonzero(apart_rows(self._population))
        pool = EncodedTable.stack([inputs.encoded("train"), inputs.encoded("holdout")])
        pool = pool if seen.rows is None else pool.take(seen.rows)
        if inputs.reference is not None:
            pool = EncodedTable.stack([pool, inputs.encoded("reference")])
        self._remote = pool.take(self._outliers)
        self._labels = DrawnLabels(self._people, controls.permutations, self._rng)

    def _rows(self, dose: float) -> int:
        """How many rows beside the table's own are this share of all."""
        return max(1, round(dose * self._own / (1 - dose)))

    def _share(self, rows: int) -> float:
        """What share of all so many planted rows are."""
        return rows / (self._own + rows)

    @cached_property
    def _as_it_is(self) -> _Seen:
        """The table itself."""
        weights = best_weights(self._real, self._weights, np.ascontiguousarray(self._codes[:, : self._own]))
        return _Seen(np.arange(self._own), weights, self._population, self._people, self._labels)

    @cached_property
    def held(self) -> list[Limit]:
        """The limits that the table itself does not fail: those that a planted row can break."""
        return [limit for limit, failed in self._judged(self._limits, self._as_it_is) if not failed]

    def thresholds(self, kind: str, draws: int) -> list[tuple[float, float]]:
        """Of each planting the largest share that passed, 0 for none, and the smallest that did not, inf for none."""
        return [self._threshold(self._rng.permutation(self.places[kind])) for _ in range(draws)]

    def _threshold(self, planted: np.ndarray) -> tuple[float, float]:
        seen, before = self._as_it_is, 0
        for rows in dict.fromkeys(min(self._rows(dose), len(planted)) for dose in self._doses):
            seen = self._with(seen, planted[before:rows])
            if any(failed for _, failed in self._judged(self.held, seen)):
                return self._share(before), self._share(rows)
            before = rows
        return self._share(before), np.inf

    def _with(self, seen: _Seen, more: np.ndarray) -> _Seen:
        """A release with these candidates too."""
        weights = best_weights(self._real, self._weights, np.ascontiguousarray(self._codes[:, more]))
        near = nearest_rows(self._remote, self._encoded.take(more), device=self._device).distances[:, 0]
        score = seen.population.scores[_SCORE].copy()
        near = ratio(near, seen.population.neighbour[self._outliers])
        score[self._outliers] = np.minimum(score[self._outliers], near)
        return replace(
            seen,
            rows=np.append(seen.rows, more),
            weights=np.maximum(seen.weights, weights),
            population=replace(seen.population, scores={_SCORE: score}),
        )

    def relabelled(self, times: int) -> Iterator[bool]:
        """Whether the synthetic table breaks a limit when the sides of the people are shuffled, each time."""
        for _ in range(times):
            people = self._people.relabelled(self._rng.permutation(self._people.member))
            population = replace(self._population, member=self._rng.permutation(self._population.member))
            labels = self._labels.of(people.member)
            seen = replace(self._as_it_is, population=population, people=people, labels=labels)
            yield any(failed for _, failed in self._judged(self._limits, seen))

    def _judged(self, limits: Iterable[Limit], seen: _Seen) -> Iterator[tuple[Limit, bool]]:
        """Each limit and whether it fails, one after the other: whoever asks for one that does need not wait."""
        for limit in limits:
            result = MetricResult(limit.metric, (self._estimate(limit.statistic, seen),))
            yield limit, judge_limit(limit, result).status == "fail"

    def _estimate(self, statistic: str, seen: _Seen) -> Estimate:
        people, difference = seen.people, seen.labels.mean_difference
        if statistic == "membership_inference.outlier_matches":
            return outlier_matches(seen.population)
        if statistic == "copies.partial_advantage":
            return partial_estimate(advantages(seen.weights, people, difference), people)
        found = copied(self._cells, self._ids[seen.rows], people, self._copies.few, difference)
        return share_estimates(found, people)[1]


def plantable(inputs: MetricInputs, population: Population) -> dict[str, np.ndarray]:
    """By kind, the rows of train that can be planted, bool (n_T,): those of one person alone."""
    ids = np.concatenate([inputs.row_ids["train"], inputs.row_ids["holdout"]])
    own = own_rows(ids, inputs.subject_codes("train", "holdout"))
    kinds = {kind: own & population.outlier_rows if kind == "rare" else own for kind in KINDS}
    return {kind: rows[: len(inputs.train)] for kind, rows in kinds.items()}
