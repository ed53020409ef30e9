"""Controls: would this gate, with these people and this many rows, have seen a leak? (DESIGN section 5, "Controls")

Null controls must hold the limits: the synthetic table with the sides of the people drawn anew, and unseen real rows in
its place. Canaries must break them: training rows planted in a scratch copy of the synthetic table, in place of rows of
its own. Both go through the code of ``dcr`` and ``membership_inference`` and the limits in force. All tables are rows
of one, which is searched once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from privacy_assets.engine.geometry.neighbours import nearest_rows
from privacy_assets.engine.inputs import MetricInputs
from privacy_assets.engine.intervals import CONFIDENCE, clopper_pearson
from privacy_assets.engine.metrics.base import FigureSpec, Measured, Metric
from privacy_assets.engine.metrics.canaries import KINDS, canaries
from privacy_assets.engine.metrics.closeness import Matches
from privacy_assets.engine.metrics.dcr import Dcr
from privacy_assets.engine.metrics.identical import own_rows
from privacy_assets.engine.metrics.isolated import SPEC as ISOLATED_EXCESS
from privacy_assets.engine.metrics.isolated import isolated_excess
from privacy_assets.engine.metrics.membership_inference import MembershipInference
from privacy_assets.engine.metrics.membership_scores import SMALLEST_SIDE, Population, build_population, ratio
from privacy_assets.engine.policy import Limit, Policy, Verdict, judge_limit
from privacy_assets.engine.results import Figure, MetricResult
from privacy_assets.engine.tables.encoding import EncodedTable
from privacy_assets.errors import ConfigError

_LOOKED_AT = {
    "dcr": ("member_excess", "member_excess_any", "identical_excess"),
    "membership_inference": (ISOLATED_EXCESS.name,),
}
_REFUSED: tuple[Verdict, ...] = ("fail", "not_assessable")
_STEP = 0.5**0.25  # from one planted fraction to the next smaller one
_TEXT = {
    "exact": "copies of training rows",
    "jittered": "copies of training rows whose numbers moved by a tenth of a standard deviation",
    "redrawn": "copies of training rows with one column of each drawn anew",
    "rare": "moved copies of training rows that are like nobody else's",
}
_AT_MOST = {"exact": 0.1, "jittered": 0.5, "redrawn": 0.5, "rare": 0.5}
_SOURCE = {
    "exact": "chosen: above 0.02 and 0.05 on Adult and UK census (8,000/2,000/8,000 rows), 0.04 at 1,000/300/1,000",
    **dict.fromkeys(("jittered", "redrawn", "rare"), "chosen: each of eight leaks of 20 % is caught, and most by far"),
}


@dataclass(frozen=True)
class Controls(Metric):
    """How small a leak the limits on closeness catch in this very table, and how often they close for nothing.

    ``smallest_leak_*``: the fraction of the synthetic rows, planted with one kind of canary in place of rows of the
    table's own, at which a limit that the table holds is broken with probability 95 % (a tolerance limit at 90 %
    confidence, from ``draws`` random plantings; the threshold of each is found on a grid with four steps a halving, and
    taken to be log-normal). Planted are rows that one person alone has, "rare" ones of the isolated tenth: whatever
    others share gives nobody away, and where there is no such row the fraction is 0. The low end is the fraction at
    which half of the plantings are caught. NaN when a leak of ``largest`` passes.

    ``false_alarm_rate``: share of null tables that break a limit: ``nulls`` labellings of the people of train and
    holdout, and both halves of the reference, when there is one, in place of the synthetic table.

    Limits: those in force on the label-conditional figures of ``dcr`` (raw distances) and
    ``membership_inference.isolated_excess``. The whole gate looks at more, and catches at least as much. These figures
    tell about the gate: where their limits do not hold it is blind, and nothing is published; that is no verdict on the
    table, and not remembered as one.
    """

    draws: int = 8
    nulls: int = 20
    largest: float = 0.2
    limits: tuple[Mapping[str, Any], ...] = ()
    closeness: Mapping[str, Any] = field(default_factory=dict)

    name: ClassVar[str] = "controls"
    summary: ClassVar[str] = (
        "Would the gate have seen a leak? Planted leaks must break the limits, null tables must not."
    )
    needs: ClassVar[frozenset[str]] = frozenset({"train", "holdout", "synthetic"})
    optional: ClassVar[frozenset[str]] = frozenset({"reference"})
    in_studies: ClassVar[bool] = False
    figures: ClassVar[tuple[FigureSpec, ...]] = (
        FigureSpec("false_alarm_rate", "Share of tables without any leak that the limits on closeness refuse."),
        *(
            FigureSpec(f"smallest_leak_{kind}", f"Fraction of {_TEXT[kind]} that is caught with 95 % probability.")
            for kind in KINDS
        ),
    )
    default_limits: ClassVar[tuple[Limit, ...]] = (
        Limit(
            "controls.false_alarm_rate", at_most=0.1, bound="lower",
            source="six of the 20 to 22 null tables; by chance, where one in a hundred is refused, never",
        ),
        *(Limit(f"controls.smallest_leak_{kind}", at_most=_AT_MOST[kind], source=_SOURCE[kind]) for kind in KINDS),
    )  # fmt: skip

    def __post_init__(self) -> None:
        for key, least in (("draws", 4), ("nulls", 10)):
            value = getattr(self, key)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(f"controls: {key} must be a whole number of at least {least}.")
        if not 0 < self.largest <= 0.5:
            raise ConfigError("controls: largest must be above 0 and at most 0.5.")
        if self.limits:
            return
        found = [limit for kind in (Dcr, MembershipInference) for limit in kind.default_limits]
        object.__setattr__(self, "limits", _looked_at(found))

    def under(self, policy: Policy, metrics: Mapping[str, Metric]) -> Metric:
        """With the limits of ``policy``; ConfigError when it has none on what controls look at."""
        limits, dcr = _looked_at(policy.limits), metrics.get("dcr")
        if not limits:
            known = " or ".join(f"{metric}.{name}" for metric, names in _LOOKED_AT.items() for name in names)
            raise ConfigError(f"controls have nothing to prove: the policy {policy.name!r} has no limit on {known}.")
        return replace(self, limits=limits, closeness={} if dcr is None else dcr.settings())

    def measure(self, inputs: MetricInputs) -> Measured:
        """Compute the figures and the table "thresholds": kind and caught fraction of each planting."""
        sides = [int(np.unique(inputs.subject_codes(role)).size) for role in ("train", "holdout")]
        counts = len(inputs.synthetic), min(sides)
        if counts[1] < SMALLEST_SIDE or counts[0] == 0:
            reason = f"at least {SMALLEST_SIDE} subjects are needed in train and in holdout, and a synthetic row"
            return Measured(tuple(_blind(spec.name, counts, reason) for spec in self.figures))
        bench = _Bench(inputs, self)
        inputs.progress("controls: null tables")
        figures, rows = [self._false_alarms(bench, counts)], []
        for kind in KINDS:
            inputs.progress(f"controls: planting {_TEXT[kind]}")
            thresholds = bench.thresholds(kind)
            figures.append(self._smallest_leak(kind, thresholds, bench.largest(kind), counts))
            rows += [{"kind": kind, "caught": one} for one in thresholds]
        return Measured(tuple(figures), {"thresholds": rows})

    def _false_alarms(self, bench: _Bench, counts: tuple[int, int]) -> Figure:
        refused = list(bench.nulls())
        low, high = clopper_pearson(sum(refused), len(refused), CONFIDENCE)
        share = sum(refused) / len(refused)
        note = f"{sum(refused)} of {len(refused)} null tables"
        return Figure("false_alarm_rate", share, low, high, *counts, about="gate", note=note)

    def _smallest_leak(self, kind: str, thresholds: list[float], largest: float, counts: tuple[int, int]) -> Figure:
        name = f"smallest_leak_{kind}"
        if not thresholds:
            return Figure(name, 0.0, 0.0, 0.0, *counts, about="gate", note="no such row is one person's own")
        if not all(map(math.isfinite, thresholds)):
            missed = sum(not math.isfinite(one) for one in thresholds)
            leak = f"a leak of {largest:.1%} passed in {missed} of {len(thresholds)} plantings"
            return _blind(name, counts, f"the gate is blind here: {leak}")
        places = np.log(thresholds)
        middle, spread = float(places.mean()), max(float(places.std(ddof=1)), -math.log(_STEP) / math.sqrt(12))
        stated = math.exp(middle + _tolerance(len(places)) * spread)
        return Figure(name, stated, min(math.exp(middle), stated), stated, *counts, about="gate")


def _looked_at(limits: Any) -> tuple[dict[str, Any], ...]:
    """The limits on what controls look at, as plain mappings without texts."""
    names = [f.name for f in fields(Limit) if f.name not in ("source", "advice")]
    chosen = [limit for limit in limits if limit.figure.partition(".")[2] in _LOOKED_AT.get(limit.metric, ())]
    return tuple({name: getattr(limit, name) for name in names} for limit in chosen)


def _blind(name: str, counts: tuple[int, int], reason: str) -> Figure:
    return Figure(name, math.nan, math.nan, math.nan, *counts, about="gate", note=reason)


def _tolerance(n: int) -> float:
    """Deviations above the mean of ``n`` normal draws that hold 95 % of all draws, with 90 % confidence."""
    from scipy import stats  # slow to import: only where a table is measured

    return float(stats.nct.ppf(0.9, n - 1, stats.norm.ppf(0.95) * math.sqrt(n)) / math.sqrt(n))


class _Bench:
    """The synthetic table, everything that is planted, and the reference: one table of candidates, searched once."""

    def __init__(self, inputs: MetricInputs, controls: Controls) -> None:
        self._rng, self._own, self._controls = inputs.rng("controls"), len(inputs.synthetic), controls
        self._dcr, self._limits = Dcr(**controls.closeness), [Limit(**limit) for limit in controls.limits]
        self._most = max(1, round(controls.largest * self._own))
        self._population = build_population(inputs)
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
        self._isolated, self._device = real.take(self._population.isolated_rows), inputs.device

    def nulls(self) -> Iterator[bool]:
        """Whether each null table breaks a limit."""
        own, member = self._places["own"], self._population.member
        for _ in range(self._controls.nulls):
            yield bool(self._limits_that(own, "fail", member=self._rng.permutation(member)))
        unseen = self._rng.permutation(self._places["unseen"])
        for half in np.array_split(unseen, 2) if len(unseen) > 1 else ():
            yield bool(self._limits_that(half, "fail"))

    def largest(self, kind: str) -> float:
        """The largest fraction that is planted."""
        return min(self._most, len(self._places[kind])) / self._own

    def thresholds(self, kind: str) -> list[float]:
        """The smallest fraction caught in each planting, inf for none; nothing where there is no row to plant."""
        rows = self._places[kind]
        most = min(self._most, len(rows))
        sizes = sorted({max(1, round(most * _STEP**step)) for step in range(128)}, reverse=True)
        found, place = [], len(sizes) // 2
        for _ in range(self._controls.draws if most else 0):
            caught = self._planting(self._rng.permutation(rows), sizes)
            place = _last_true(len(sizes), place, caught)
            found.append(math.inf if place < 0 else sizes[place] / self._own)
            place = max(place, 0)
        return found

    def _planting(self, planted: np.ndarray, sizes: list[int]) -> Callable[[int], bool]:
        """Whether so many of ``planted``, in place of own rows, break a limit that the table holds itself."""
        own = self._rng.permutation(self._places["own"])

        def caught(step: int) -> bool:
            rows = np.concatenate([own[sizes[step] :], planted[: sizes[step]]])
            return bool(self._limits_that(rows, *_REFUSED) - self._broken_already)

        return caught

    @cached_property
    def _broken_already(self) -> set[str]:
        return self._limits_that(self._places["own"], *_REFUSED)

    def _limits_that(self, rows: np.ndarray, *statuses: Verdict, member: np.ndarray | None = None) -> set[str]:
        """Keys of the limits with one of these verdicts, for a table of these rows; ``member`` (s,) if not the real."""
        member = self._population.member if member is None else member
        sides = np.zeros(len(member), dtype=bool)
        sides[self._matches.people.codes] = member[self._population.codes]
        matches = self._matches.take(rows).relabelled(sides)
        closest, _ = self._dcr.excesses(matches, self._rng.spawn(1)[0])
        isolated = isolated_excess(self._seen_by(rows, member))
        results = {"dcr": tuple(closest), "membership_inference": (isolated,)}
        found = {name: MetricResult(name, figures) for name, figures in results.items()}
        return {limit.key for limit in self._limits if judge_limit(limit, found[limit.metric]).status in statuses}

    def _seen_by(self, rows: np.ndarray, member: np.ndarray) -> Population:
        """The people as these rows see them: only the isolated ones have distances."""
        seen, isolated = self._population, self._population.isolated_rows
        near = nearest_rows(self._isolated, self._candidates.take(rows), device=self._device).distances[:, 0]
        scores = np.full(len(isolated), np.inf)
        scores[isolated] = ratio(near, seen.neighbour[isolated])
        return replace(seen, scores={"distance / neighbour": scores}, member=member)


def plantable(inputs: MetricInputs, population: Population) -> dict[str, np.ndarray]:
    """By kind, the rows of train that can be planted, bool (n_T,): those of one person alone."""
    ids = np.concatenate([inputs.row_ids["train"], inputs.row_ids["holdout"]])
    own = own_rows(ids, inputs.subject_codes("train", "holdout"))
    kinds = {kind: own & population.isolated_rows if kind == "rare" else own for kind in KINDS}
    return {kind: rows[: len(inputs.train)] for kind, rows in kinds.items()}


def _last_true(count: int, start: int, holds: Callable[[int], bool]) -> int:
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
