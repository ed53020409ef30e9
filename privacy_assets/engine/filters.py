"""Filters between a generator and its release: rows that are drawn, but never published (docs/adr/0022)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from privacy_assets.engine.generators.base import FittedGenerator
from privacy_assets.engine.metrics.exposure import near, typical_radius
from privacy_assets.engine.tables.encoding import EncodedTable, Encoder
from privacy_assets.engine.tables.schema import TableSchema
from privacy_assets.errors import ConfigError, InputError, did_you_mean

_ROUNDING = 1e-9  # of people who are counted in parts


@dataclass(frozen=True)
class MemorizationFilter:
    """Leave out synthetic rows that point at few people (Kuppa et al., section 3; DESIGN section 5, "Memorization").

    A synthetic row with real people within lambda, but fewer than ``crowd`` of them, is left out; with none near it
    points at nobody, with a crowd at no one in particular. Real are all rows of train, holdout and reference alike: a
    filter by train alone empties the neighbourhoods of its members, which gives them away as well. Each row of a person
    counts as an equal part of them. Nothing but the row itself and the real rows decides: the order of rows, and how
    many are drawn, change nothing.

    lambda is ``radius`` or, without one, the ``quantile`` of the distances of real rows to the nearest other one (of
    another person, where people are known), as for :class:`~privacy_assets.engine.metrics.memorization.Memorization`:
    Euclidean, raw encoding. At most ``attempts`` times as many rows are drawn as are wanted.
    """

    crowd: int = 5
    radius: float | None = None
    quantile: float = 0.02
    attempts: int = 10

    name: ClassVar[str] = "memorization"

    def __post_init__(self) -> None:
        _check("crowd", self.crowd, 2, whole=True)
        _check("attempts", self.attempts, 2, whole=True)
        _check("quantile", self.quantile, 1e-9, 0.5)
        if self.radius is not None:
            _check("radius", self.radius, 0)

    def settings(self) -> dict[str, Any]:
        """The settings as a plain mapping that JSON can hold."""
        return asdict(self)

    def fit(
        self, real: Sequence[pd.DataFrame], schema: TableSchema, subjects: np.ndarray | None = None
    ) -> FittedFilter:
        """Know all real rows: canonical frames without the subject; ``subjects`` int64 (N,) tell whose they are.

        These are codes 0..s-1 of the stacked rows; None: each row is a person. InputError for fewer than two rows.
        """
        frames = [frame for frame in real if len(frame)]
        rows = sum(len(frame) for frame in frames)
        if rows < 2:
            raise InputError(f"{rows} real rows were given", where="filter memorization", fix="give two or more")
        weights = np.ones(rows) if subjects is None else 1 / np.bincount(subjects)[subjects]
        radius = self.radius
        if radius is None:
            radius = typical_radius(_encoded(Encoder.fit(frames, schema), frames), subjects, self.quantile, "cpu")
        return FittedFilter(self, schema, tuple(frames), weights, float(radius))


@dataclass(frozen=True, eq=False)
class Filtered:
    """``rows`` that passed, how many were ``drawn``, and how many of these were ``dropped``.

    ``unfiltered`` is the first draw: as many rows, and those that there would be without the filter.
    """

    rows: pd.DataFrame
    unfiltered: pd.DataFrame
    drawn: int
    dropped: int


@dataclass(frozen=True, eq=False)
class FittedFilter:
    """The filter and the real rows: as private as they are. ``weights`` (N,) is what part of a person each row is."""

    filter: MemorizationFilter
    schema: TableSchema
    real: tuple[pd.DataFrame, ...]
    weights: np.ndarray
    radius: float

    def exposed(self, frame: pd.DataFrame) -> np.ndarray:
        """Which rows of a canonical frame are to be left out, bool (n,)."""
        encoder = Encoder.fit(self.real, self.schema, others=[frame])
        real = _encoded(encoder, self.real)
        people = near(encoder.transform(frame), real, self.radius, self.weights)
        return (people > 0) & (people < self.filter.crowd - _ROUNDING)

    def sample(self, generator: FittedGenerator, rows: int, *, seed: int) -> Filtered:
        """Draw from a fitted generator until ``rows`` have passed.

        The first draw is the one without a filter; further ones have seeds of their own. InputError when the generator
        gives too few rows that pass.
        """
        kept: list[pd.DataFrame] = []
        found = drawn = passed = 0
        unfiltered = pd.DataFrame()
        while found < rows:
            size = self._size(rows, found, drawn)
            if size < 1:
                fix = "let the generator memorise less (larger leaves, fewer epochs), or ask for fewer rows"
                raise InputError(f"{found} of {drawn} rows drawn passed, {rows} are wanted", where=_WHERE, fix=fix)
            frame = generator.sample(size, seed=seed if not kept else _another(seed, len(kept)))
            unfiltered = unfiltered if kept else frame
            good = frame[~self.exposed(frame)]
            passed += len(good)
            kept.append(good.iloc[: rows - found])
            found, drawn = found + len(kept[-1]), drawn + size
        return Filtered(pd.concat(kept, ignore_index=True), unfiltered, drawn, drawn - passed)

    def _size(self, rows: int, found: int, drawn: int) -> int:
        """How many to draw next: as many as are wanted, then about as many as it takes; 0 when enough were drawn."""
        left = rows * self.filter.attempts - drawn
        share = max(found / drawn, 1 / self.filter.attempts) if drawn else 1.0
        return min(math.ceil(1.1 * (rows - found) / share) if drawn else rows, left)


_WHERE = "filter memorization"
FILTERS: dict[str, type[MemorizationFilter]] = {MemorizationFilter.name: MemorizationFilter}


def build_filter(name: str, settings: Mapping[str, Any] | None = None) -> MemorizationFilter:
    """Return the filter ``name`` with ``settings`` in place of its defaults; ConfigError for an unknown name or key."""
    if name not in FILTERS:
        raise ConfigError(f"unknown filter {name!r}.{did_you_mean(name, FILTERS)}")
    known = FILTERS[name].__dataclass_fields__
    for key in settings or {}:
        if key not in known:
            raise ConfigError(f"filter {name} has no setting {key!r}.{did_you_mean(str(key), known)}")
    return FILTERS[name](**(settings or {}))


def _check(key: str, value: Any, low: float, high: float = math.inf, *, whole: bool = False) -> None:
    number = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
    if not (number and low <= value <= high and math.isfinite(value)):
        raise ConfigError(f"{_WHERE}: {key} must be a {'whole ' if whole else ''}number from {low:g} to {high:g}.")


def _encoded(encoder: Encoder, frames: Sequence[pd.DataFrame]) -> EncodedTable:
    return EncodedTable.stack([encoder.transform(frame) for frame in frames])


def _another(seed: int, attempt: int) -> int:
    return int(np.random.SeedSequence(seed, spawn_key=(attempt,)).generate_state(1)[0])
