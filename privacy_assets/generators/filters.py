"""Filters that drop synthetic rows before release, and drawing until enough rows pass
(docs/adr/0012).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from privacy_assets.distances.nearest import near, nearest_rows, typical_radius
from privacy_assets.errors import ConfigError, InputError, did_you_mean, safe_repr
from privacy_assets.generators.base import FittedGenerator
from privacy_assets.infra.settings import declared_by_name
from privacy_assets.tables.encoding import EncodedTable, TabularEncoder
from privacy_assets.tables.schema import TableSchema
from privacy_assets.tables.table import Table

ROUNDING = 1e-9  # tolerance of fractional counts of people
_CELLS = 4_000_000  # maximum number of neighbors in memory
FilterLike = str | Mapping[str, Any]


@declared_by_name
class Filter(ABC):
    """Base class of filters. Subclasses use ``declared_by_name``; their fields are the settings,
    each with a default.

    A filter drops a synthetic row depending on the number of real people within a radius. Distances
    are Euclidean in the raw encoding, with a relative tolerance of 1e-4. All rows of train, holdout
    and reference count equally: a filter that used train only would leave gaps around members,
    which also discloses them. Rows of a subject have equal weights with sum 1. The decision depends
    only on the row itself and the real rows, not on the order or number of drawn rows.
    :class:`AlphaFilter` is the exception.

    Attributes:
        radius: Radius. None: derived from the distances between real rows.
        attempts: Maximum number of drawn rows, as a multiple of the requested rows.
        name: Registry key.
        covers: What it protects against.
        fix: Advice if too few rows remain.
    """

    radius: Annotated[
        float | None,
        Field(
            ge=0,
            description="distance within which people count; default: from quantile",
        ),
    ] = None
    attempts: Annotated[
        int,
        Field(ge=2, description="maximum number of drawn rows, as a multiple of the wanted rows"),
    ] = 10

    part: ClassVar[str] = "filter"
    name: ClassVar[str]
    covers: ClassVar[str]
    fix: ClassVar[str]

    def settings(self) -> dict[str, Any]:
        """Return the settings as a JSON-compatible mapping."""
        return asdict(self)

    def fit(
        self, real: Sequence[Table], schema: TableSchema, subjects: np.ndarray | None = None
    ) -> FittedFilter:
        """Fit to all real rows.

        Args:
            real: Tables without subject column, train first.
            schema: Their schema.
            subjects: Subject of each stacked row, codes 0..s-1, int64 of shape (N,). None: each row
                is a subject.

        Raises:
            InputError: If there are fewer than two rows.
        """
        tables = [table for table in real if len(table)]
        rows = sum(map(len, tables))
        if rows < 2:
            raise InputError(
                f"{rows} real rows were given", where=f"filter {self.name}", fix="pass two or more"
            )
        codes = np.arange(rows) if subjects is None else subjects
        radius = self.radius
        if radius is None:
            radius = self._typical(encoded(TabularEncoder.fit(tables, schema), tables), codes)
        return FittedFilter(self, schema, tuple(tables), parts(codes), float(radius))

    @abstractmethod
    def _typical(self, rows: EncodedTable, subjects: np.ndarray) -> float:
        """Derive the radius from two or more real rows; ``subjects`` int64 (n,) are codes
        0..s-1.
        """

    @abstractmethod
    def leaves_out(self, people: np.ndarray) -> np.ndarray:
        """Decide which rows to drop.

        Args:
            people: Number of people within the radius of each row, possibly fractional; float64 of
                shape (n,).

        Returns:
            True for rows to drop, shape (n,).
        """


@dataclass(frozen=True, eq=False)
class FittedFilter:
    """A filter with the real rows; it must be protected like them.

    ``weights`` (N,) is the share of each row in its subject.
    """

    filter: Filter
    schema: TableSchema
    real: tuple[Table, ...]
    weights: np.ndarray
    radius: float

    def exposed(self, table: Table, first: Table | None = None) -> np.ndarray:
        """Return True for the rows to drop, shape (n,).

        Args:
            table: Drawn rows.
            first: The first draw. None: ``table`` is the first draw.
        """
        encoder = TabularEncoder.fit(self.real, self.schema, others=[table])
        people = near(
            encoder.transform(table), encoded(encoder, self.real), self.radius, self.weights
        )
        return self.filter.leaves_out(people)


def parts(subjects: np.ndarray) -> np.ndarray:
    """Return the share of each row in its subject, float64 (n,), given codes 0..s-1."""
    return np.asarray(1 / np.bincount(subjects)[subjects])


def encoded(encoder: TabularEncoder, tables: Sequence[Table]) -> EncodedTable:
    """Encode and stack tables."""
    return EncodedTable.stack([encoder.transform(table) for table in tables])


@declared_by_name
class SimilarityFilter(Filter):
    """Drops every synthetic row with a real person within the radius (Gretel's similarity filter).

    Attributes:
        quantile: Quantile of the distances of real rows to the nearest other row (of another
            subject, if known) that is the default radius, as in
            :class:`~privacy_assets.metrics.memorization.Memorization`. If that many rows have a
            duplicate, the radius is 0, and only copies of real rows are dropped.
    """

    quantile: float = Field(
        default=0.02,
        ge=1e-9,
        le=0.5,
        description="radius, as a quantile of the distances between real rows",
    )

    name = "similarity"
    covers = "copies and near copies of real rows, including combinations that many people share"
    fix = (
        "reduce memorization by the generator (larger leaves, fewer epochs), lower quantile, or"
        " use filter memorization"
    )

    def _typical(self, rows: EncodedTable, subjects: np.ndarray) -> float:
        return typical_radius(rows, subjects, self.quantile, "cpu")

    def leaves_out(self, people: np.ndarray) -> np.ndarray:
        """Drop rows with at least one person nearby."""
        return people > ROUNDING


@declared_by_name
class MemorizationFilter(SimilarityFilter):
    """Drops synthetic rows that have people within the radius, but fewer than ``crowd``.

    Rows with no one nearby, or with a crowd, single out no subject. This replaces the rule of Kuppa
    et al. (section 3), which compares training rows with synthetic rows (:class:`AlphaFilter`).

    Attributes:
        crowd: Minimum number of people within the radius at which a row is kept.
    """

    crowd: int = Field(
        default=5,
        ge=2,
        description="minimum number of people within the radius at which a row is kept",
    )

    name = "memorization"
    covers = "copies and near copies of rows that few people share"
    fix = (
        "reduce memorization by the generator (larger leaves, fewer epochs), or request fewer rows"
    )

    def leaves_out(self, people: np.ndarray) -> np.ndarray:
        """Drop rows with at least one person nearby, but no crowd."""
        return super().leaves_out(people) & (people < self.crowd - ROUNDING)


@declared_by_name
class OutlierFilter(Filter):
    """Drops synthetic rows with fewer than ``neighbours`` real people within the radius.

    About a share of 1 - quantile of fresh rows is dropped, as are copies of isolated people.

    Attributes:
        neighbours: Minimum number of people within the radius.
        quantile: The default radius is the smallest one within which at least this share of the
            real rows have ``neighbours`` *other* people.

    Raises:
        InputError: By ``fit``, if there are not more than ``neighbours`` people.
    """

    neighbours: int = Field(
        default=5, ge=1, description="number of nearest other people that determine the distance"
    )
    quantile: float = Field(
        default=0.9, ge=0.5, lt=1, description="radius, as a quantile of these distances"
    )

    name = "outliers"
    covers = "rows unlike those of most people, including copies of unusual people"
    fix = (
        "make the generator fit the real rows more closely (more training, fewer free columns),"
        " or raise quantile"
    )

    def _typical(self, rows: EncodedTable, subjects: np.ndarray) -> float:
        people = int(subjects.max()) + 1
        if people <= self.neighbours:
            fix = f"use more than {self.neighbours} people, or lower neighbours"
            raise InputError(f"{people} people were given", where=f"filter {self.name}", fix=fix)
        distances = distance_to_subjects(rows, subjects, self.neighbours)
        return float(np.quantile(distances, self.quantile, method="inverted_cdf"))

    def leaves_out(self, people: np.ndarray) -> np.ndarray:
        """Drop isolated rows."""
        return people < self.neighbours - ROUNDING


@declared_by_name
class AlphaFilter(SimilarityFilter):
    """Drops synthetic rows whose memorization coefficient alpha_m is below ``threshold`` (Kuppa et
    al., section 3).

    alpha_m = (g + 1/2) / (t + 1/2) with t training rows and g other rows of the first draw within
    the radius, as in :class:`~privacy_assets.metrics.memorization.Memorization`. The default radius
    is the one of this metric: the ``quantile`` of the distances of training rows to the nearest
    training row of another subject.

    The filter compares the rows with train alone, so it leaves gaps around training people: a table
    without near copies of a person shows that this person is in train. Limits on avoided members,
    such as those of ``dcr``, can fail.

    Attributes:
        threshold: Rows with a smaller alpha_m are dropped. In the paper, rows below 1 are prone to
            membership inference.
    """

    threshold: float = Field(
        default=1.0, gt=0, allow_inf_nan=False, description="smallest alpha_m of a row that is kept"
    )

    name = "alpha_m"
    covers = "rows with more training rows than other synthetic rows near them"

    def fit(
        self, real: Sequence[Table], schema: TableSchema, subjects: np.ndarray | None = None
    ) -> FittedAlpha:
        """Fit to the training rows; the other tables only determine the encoding. See
        :meth:`Filter.fit`.
        """
        train, *others = real
        if len(train) < 2:
            wrong = f"{len(train)} real rows were given in train"
            raise InputError(wrong, where=f"filter {self.name}", fix="pass two or more")
        codes = (
            None if subjects is None else np.unique(subjects[: len(train)], return_inverse=True)[1]
        )
        tables = (train, *[table for table in others if len(table)])
        radius = self.radius
        if radius is None:
            rows = TabularEncoder.fit(tables, schema).transform(train)
            radius = typical_radius(rows, codes, self.quantile, "cpu")
        return FittedAlpha(self, schema, tables, np.ones(len(train)), float(radius))

    def leaves_out(self, people: np.ndarray) -> np.ndarray:
        """Drop rows by alpha_m, which takes the place of the number of people."""
        return people < self.threshold


class FittedAlpha(FittedFilter):
    """A fitted :class:`AlphaFilter`; the first table is train."""

    def exposed(self, table: Table, first: Table | None = None) -> np.ndarray:
        """Implement :meth:`FittedFilter.exposed`; a row of the first draw does not count itself."""
        drawn = [table] if first is None else [table, first]
        encoder = TabularEncoder.fit(self.real, self.schema, others=drawn)
        rows, *others = (encoder.transform(one) for one in drawn)
        training = near(rows, encoder.transform(self.real[0]), self.radius)
        synthetic = (
            near(rows, others[0], self.radius) if others else near(rows, rows, self.radius) - 1
        )
        alpha = (synthetic + 0.5) / (training + 0.5)
        return self.filter.leaves_out(alpha)


def distance_to_subjects(rows: EncodedTable, subjects: np.ndarray, people: int) -> np.ndarray:
    """Return the distance (n,) from each row within which rows of other subjects sum to ``people``.

    ``subjects`` are codes 0..s-1 with s > ``people``. Rows of a subject have equal weights with sum
    1.
    """
    weights, out = parts(subjects), np.full(len(rows), np.inf)
    asked, k = np.arange(len(rows)), min(len(rows), math.ceil((people + 1) / weights.mean()))
    while len(asked):
        block, missed = max(1, _CELLS // k), []
        for start in range(0, len(asked), block):
            own = asked[start : start + block]
            found = nearest_rows(rows.take(own), rows, k)
            foreign = subjects[found.indices] != subjects[own][:, None]
            enough = np.cumsum(weights[found.indices] * foreign, axis=1) >= people - ROUNDING
            out[own] = np.where(
                enough[:, -1], found.distances[np.arange(len(own)), enough.argmax(axis=1)], np.inf
            )
            missed.append(own[~enough[:, -1]])
        asked, k = np.concatenate(missed), min(len(rows), 4 * k)
    return out


FILTERS: dict[str, type[Filter]] = {
    kind.name: kind for kind in (SimilarityFilter, MemorizationFilter, OutlierFilter, AlphaFilter)
}


def build_filter(name: str, settings: Mapping[str, Any] | None = None) -> Filter:
    """Create a filter.

    Args:
        name: Registry name.
        settings: Settings that differ from the defaults.

    Raises:
        ConfigError: If the name or a setting is unknown.
    """
    if name not in FILTERS:
        raise ConfigError(f"unknown filter {safe_repr(name)}.{did_you_mean(name, FILTERS)}")
    return FILTERS[name](**(settings or {}))


def as_filters(given: FilterLike | Sequence[FilterLike] | None) -> tuple[Filter, ...]:
    """Convert a name, a mapping of ``name`` and ``settings``, or a list of these to filters in
    registry order.

    None and an empty list mean no filter.

    Raises:
        ConfigError: If the value is invalid or names a filter twice.
    """
    listed: Any = [] if given is None else given if isinstance(given, list | tuple) else [given]
    found: dict[str, Filter] = {}
    for one in listed:
        named: Mapping[str, Any] = one if isinstance(one, Mapping) else {"name": one}
        name, settings = named.get("name"), named.get("settings") or {}
        if (
            not isinstance(name, str)
            or not isinstance(settings, Mapping)
            or set(named) - {"name", "settings"}
        ):
            raise ConfigError(
                "filter is a name, a mapping of 'name' and 'settings', or a list of these."
            )
        if name in found:
            raise ConfigError(f"filter {name} was passed twice. Fix: remove one.")
        found[name] = build_filter(name, settings)
    return tuple(found[name] for name in FILTERS if name in found)


@dataclass(frozen=True, eq=False)
class Filtered:
    """Result of drawing with filters.

    Attributes:
        rows: Rows that passed.
        unfiltered: First draw, equal to the result without a filter; same number of rows.
        drawn: Number of drawn rows.
        dropped: Number of dropped rows.
        dropped_by: Number of rows dropped by each filter. A row may be dropped by several.
    """

    rows: Table
    unfiltered: Table
    drawn: int
    dropped: int
    dropped_by: Mapping[str, int]


def draw(
    generator: FittedGenerator, filters: Sequence[FittedFilter], rows: int, *, seed: int
) -> Filtered:
    """Draw from a fitted generator until ``rows`` rows pass all filters.

    The first draw equals the one without filters; further draws have derived seeds.

    Raises:
        InputError: If too few rows pass within the largest ``attempts`` of the filters.
    """
    kept: list[Table] = []
    unfiltered: Table | None = None
    found = drawn = passed = 0
    attempts = max(fitted.filter.attempts for fitted in filters)
    counts = {fitted.filter.name: 0 for fitted in filters}
    while found < rows:
        size = _size(rows, found, drawn, attempts)
        if size < 1:
            raise _too_few(filters)
        table = generator.sample(size, seed=seed if not kept else _another(seed, len(kept)))
        out = {fitted.filter.name: fitted.exposed(table, unfiltered) for fitted in filters}
        unfiltered = unfiltered or table
        counts = {name: counts[name] + int(mask.sum()) for name, mask in out.items()}
        good = table.take(~np.logical_or.reduce(list(out.values())))
        passed += len(good)
        kept.append(good.take(slice(rows - found)))
        found, drawn = found + len(kept[-1]), drawn + size
    return Filtered(Table.stack(kept), unfiltered or kept[0], drawn, drawn - passed, counts)


def _size(rows: int, found: int, drawn: int, attempts: int) -> int:
    """Return the size of the next draw: first ``rows``, then the estimated need; 0 if the maximum
    is reached.
    """
    left = rows * attempts - drawn
    share = max(found / drawn, 1 / attempts) if drawn else 1.0
    return min(math.ceil(1.1 * (rows - found) / share) if drawn else rows, left)


def _too_few(filters: Sequence[FittedFilter]) -> InputError:
    """Return the error, without numbers: a generator that holds private rows could choose them."""
    fixes = dict.fromkeys(fitted.filter.fix for fitted in filters)
    where = f"filter {', '.join(fitted.filter.name for fitted in filters)}"
    return InputError("too few of the rows drawn passed", where=where, fix="; or ".join(fixes))


def _another(seed: int, attempt: int) -> int:
    return int(np.random.SeedSequence(seed, spawn_key=(attempt,)).generate_state(1)[0])
