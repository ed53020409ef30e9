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
        Field(ge=0),
    ] = None
    attempts: Annotated[
        int,
        Field(ge=2),
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

        Returns:
            The filter with the real rows, which are private.

        Raises:
            InputError: If there are fewer than two rows.
        """
        tables = [table for table in real if len(table)]
        n_rows = sum(map(len, tables))
        if n_rows < 2:
            problem = f"{n_rows} real rows were given"
            raise InputError(problem, where=f"filter {self.name}", fix="pass two or more")
        if subjects is None:
            subjects = np.arange(n_rows)
        radius = self.radius
        if radius is None:
            encoder = TabularEncoder.fit(tables, schema)
            radius = self._typical(encoded(encoder, tables), subjects)
        weights = row_weights(subjects)
        return FittedFilter(self, schema, tuple(tables), weights, float(radius))

    @abstractmethod
    def _typical(self, rows: EncodedTable, subjects: np.ndarray) -> float:
        """Derive the radius from two or more real rows; ``subjects`` int64 (n,) are codes
        0..s-1.
        """

    @abstractmethod
    def leaves_out(self, n_subjects: np.ndarray) -> np.ndarray:
        """Decide which rows to drop.

        Args:
            n_subjects: Number of people within the radius of each row, possibly fractional; float64
                of shape (n,).

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
        """Decide which rows to drop.

        Args:
            table: Drawn rows.
            first: The first draw. None: ``table`` is the first draw.

        Returns:
            True for rows to drop, shape (n,).
        """
        encoder = TabularEncoder.fit(self.real, self.schema, later=[table])
        rows = encoder.transform(table)
        real_rows = encoded(encoder, self.real)
        n_subjects = near(rows, real_rows, self.radius, self.weights)
        return self.filter.leaves_out(n_subjects)


def row_weights(subjects: np.ndarray) -> np.ndarray:
    """Return the share of each row in its subject.

    Args:
        subjects: Codes 0..s-1 of the subjects, int64 of shape (n,).

    Returns:
        float64 of shape (n,).
    """
    n_rows = np.bincount(subjects)
    return np.asarray(1 / n_rows[subjects])


def encoded(encoder: TabularEncoder, tables: Sequence[Table]) -> EncodedTable:
    """Encode and stack tables.

    Args:
        encoder: Encoder that was fitted to the tables.
        tables: Tables of one schema.
    """
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

    quantile: float = Field(default=0.02, ge=1e-9, le=0.5)

    name = "similarity"
    covers = "copies and near copies of real rows, including combinations that many people share"
    fix = (
        "reduce memorization by the generator (larger leaves, fewer epochs), lower quantile, or"
        " use filter memorization"
    )

    def _typical(self, rows: EncodedTable, subjects: np.ndarray) -> float:
        return typical_radius(rows, subjects, self.quantile, "cpu")

    def leaves_out(self, n_subjects: np.ndarray) -> np.ndarray:
        """Drop rows with at least one person nearby."""
        return n_subjects > ROUNDING


@declared_by_name
class MemorizationFilter(SimilarityFilter):
    """Drops synthetic rows that have people within the radius, but fewer than ``crowd``.

    Rows with no one nearby, or with a crowd, single out no subject. This replaces the rule of Kuppa
    et al. (section 3), which compares training rows with synthetic rows (:class:`AlphaFilter`).

    Attributes:
        crowd: Minimum number of people within the radius at which a row is kept.
    """

    crowd: int = Field(default=5, ge=2)

    name = "memorization"
    covers = "copies and near copies of rows that few people share"
    fix = (
        "reduce memorization by the generator (larger leaves, fewer epochs), or request fewer rows"
    )

    def leaves_out(self, n_subjects: np.ndarray) -> np.ndarray:
        """Drop rows with at least one person nearby, but no crowd."""
        has_neighbor = super().leaves_out(n_subjects)
        return has_neighbor & (n_subjects < self.crowd - ROUNDING)


@declared_by_name
class OutlierFilter(Filter):
    """Drops synthetic rows with fewer than ``n_neighbors`` real people within the radius.

    About a share of 1 - quantile of the rows of further non-members is dropped, as are copies of
    isolated people.

    Attributes:
        n_neighbors: Minimum number of people within the radius.
        quantile: The default radius is the smallest one within which at least this share of the
            real rows have ``n_neighbors`` *other* people.

    Raises:
        InputError: By ``fit``, if there are not more than ``n_neighbors`` people.
    """

    n_neighbors: int = Field(default=5, ge=1)
    quantile: float = Field(default=0.9, ge=0.5, lt=1)

    name = "outliers"
    covers = "rows unlike those of most people, including copies of unusual people"
    fix = (
        "make the generator fit the real rows more closely (more training, fewer free columns),"
        " or raise quantile"
    )

    def _typical(self, rows: EncodedTable, subjects: np.ndarray) -> float:
        n_subjects = int(subjects.max()) + 1
        if n_subjects <= self.n_neighbors:
            problem = f"{n_subjects} people were given"
            fix = f"use more than {self.n_neighbors} people, or lower n_neighbors"
            raise InputError(problem, where=f"filter {self.name}", fix=fix)
        distances = distance_to_subjects(rows, subjects, self.n_neighbors)
        return float(np.quantile(distances, self.quantile, method="inverted_cdf"))

    def leaves_out(self, n_subjects: np.ndarray) -> np.ndarray:
        """Drop isolated rows."""
        return n_subjects < self.n_neighbors - ROUNDING


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

    threshold: float = Field(default=1.0, gt=0, allow_inf_nan=False)

    name = "alpha_m"
    covers = "rows with more training rows than other synthetic rows near them"

    def fit(
        self, real: Sequence[Table], schema: TableSchema, subjects: np.ndarray | None = None
    ) -> FittedAlpha:
        """Fit to the training rows; the other tables only determine the encoding.

        Args:
            real: See :meth:`Filter.fit`.
            schema: See :meth:`Filter.fit`.
            subjects: See :meth:`Filter.fit`.

        Raises:
            InputError: If there are fewer than two training rows.
        """
        train, *other_tables = real
        if len(train) < 2:
            problem = f"{len(train)} real rows were given in train"
            raise InputError(problem, where=f"filter {self.name}", fix="pass two or more")
        if subjects is not None:
            _, subjects = np.unique(subjects[: len(train)], return_inverse=True)
        tables = [train]
        tables += [table for table in other_tables if len(table)]
        radius = self.radius
        if radius is None:
            rows = TabularEncoder.fit(tables, schema).transform(train)
            radius = typical_radius(rows, subjects, self.quantile, "cpu")
        return FittedAlpha(self, schema, tuple(tables), np.ones(len(train)), float(radius))

    def leaves_out(self, n_subjects: np.ndarray) -> np.ndarray:
        """Drop rows by alpha_m, which takes the place of the number of people."""
        return n_subjects < self.threshold


class FittedAlpha(FittedFilter):
    """A fitted :class:`AlphaFilter`; the first table is train."""

    def exposed(self, table: Table, first: Table | None = None) -> np.ndarray:
        """Implement :meth:`FittedFilter.exposed`; a row of the first draw does not count itself."""
        drawn_tables = [table] if first is None else [table, first]
        encoder = TabularEncoder.fit(self.real, self.schema, later=drawn_tables)
        rows = encoder.transform(table)
        training_rows = encoder.transform(self.real[0])
        n_training = near(rows, training_rows, self.radius)
        if first is None:
            n_synthetic = near(rows, rows, self.radius) - 1
        else:
            n_synthetic = near(rows, encoder.transform(first), self.radius)
        alpha = (n_synthetic + 0.5) / (n_training + 0.5)
        return self.filter.leaves_out(alpha)


def distance_to_subjects(rows: EncodedTable, subjects: np.ndarray, n_subjects: int) -> np.ndarray:
    """Return the distance within which the weights of rows of other subjects sum to ``n_subjects``.

    Rows of a subject have equal weights with sum 1.

    Args:
        rows: Encoded rows.
        subjects: Codes 0..s-1 of the subjects of the rows, int64 of shape (n,); s > ``n_subjects``.
        n_subjects: Sum of the weights, at least 1.

    Returns:
        Distance from each row, float64 of shape (n,).
    """
    weights = row_weights(subjects)
    distances = np.full(len(rows), np.inf)
    remaining = np.arange(len(rows))
    k = min(len(rows), math.ceil((n_subjects + 1) / weights.mean()))
    while len(remaining):
        block_size = max(1, _CELLS // k)
        unresolved = []
        for start in range(0, len(remaining), block_size):
            block = remaining[start : start + block_size]
            neighbors = nearest_rows(rows.take(block), rows, k)
            is_foreign = subjects[neighbors.indices] != subjects[block][:, None]
            n_reached = np.cumsum(weights[neighbors.indices] * is_foreign, axis=1)
            is_enough = n_reached >= n_subjects - ROUNDING
            del n_reached  # large
            is_resolved = is_enough[:, -1]
            first_enough = is_enough.argmax(axis=1)
            at_first = neighbors.distances[np.arange(len(block)), first_enough]
            distances[block] = np.where(is_resolved, at_first, np.inf)
            unresolved.append(block[~is_resolved])
        remaining = np.concatenate(unresolved)
        k = min(len(rows), 4 * k)
    return distances


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


def as_filters(source: FilterLike | Sequence[FilterLike] | None) -> tuple[Filter, ...]:
    """Create the filters of a setting.

    Args:
        source: A name, a mapping of ``name`` and ``settings``, or a list of these. None and an
            empty list: no filter.

    Returns:
        Filters in registry order.

    Raises:
        ConfigError: If the value is invalid or names a filter twice.
    """
    if source is None:
        return ()
    entries = source if isinstance(source, list | tuple) else [source]
    filters: dict[str, Filter] = {}
    for entry in entries:
        name, settings = _name_and_settings(entry)
        if name in filters:
            raise ConfigError(f"filter {name} was passed twice. Fix: remove one.")
        filters[name] = build_filter(name, settings)
    return tuple(filters[name] for name in FILTERS if name in filters)


def _name_and_settings(entry: object) -> tuple[str, Mapping[str, Any]]:
    declaration = entry if isinstance(entry, Mapping) else {"name": entry}
    name = declaration.get("name")
    settings = declaration.get("settings") or {}
    if (
        not isinstance(name, str)
        or not isinstance(settings, Mapping)
        or set(declaration) - {"name", "settings"}
    ):
        raise ConfigError(
            "filter is a name, a mapping of 'name' and 'settings', or a list of these."
        )
    return name, settings


@dataclass(frozen=True, eq=False)
class Filtered:
    """Result of drawing with filters.

    Attributes:
        table: Rows that passed.
        unfiltered: First draw, equal to the result without a filter; same number of rows.
        n_drawn: Number of drawn rows.
        n_dropped: Number of dropped rows.
        n_dropped_by: Number of rows dropped by each filter. A row may be dropped by several.
    """

    table: Table
    unfiltered: Table
    n_drawn: int
    n_dropped: int
    n_dropped_by: Mapping[str, int]


def draw(
    generator: FittedGenerator, filters: Sequence[FittedFilter], n_rows: int, *, seed: int
) -> Filtered:
    """Draw from a fitted generator until ``n_rows`` rows pass all filters.

    The first draw equals the one without filters; further draws have derived seeds.

    Args:
        generator: Fitted generator.
        filters: Fitted filters, at least one.
        n_rows: Number of rows, at least 1.
        seed: The same seed gives the same rows.

    Returns:
        The rows that passed, and counts.

    Raises:
        InputError: If too few rows pass within the largest ``attempts`` of the filters.
    """
    batches: list[Table] = []
    unfiltered: Table | None = None
    n_collected = 0
    n_drawn = 0
    n_passed = 0
    attempts = max(fitted.filter.attempts for fitted in filters)
    n_dropped_by = {fitted.filter.name: 0 for fitted in filters}
    while n_collected < n_rows:
        size = _size(n_rows, n_collected, n_drawn, attempts)
        if size < 1:
            raise _too_few(filters)
        batch_seed = _derived_seed(seed, len(batches)) if batches else seed
        table = generator.sample(size, seed=batch_seed)
        is_dropped = np.zeros(len(table), dtype=bool)
        for fitted in filters:
            is_exposed = fitted.exposed(table, unfiltered)
            n_dropped_by[fitted.filter.name] += int(is_exposed.sum())
            is_dropped |= is_exposed
        if unfiltered is None:
            unfiltered = table
        passed = table.take(~is_dropped)
        batch = passed.take(slice(n_rows - n_collected))
        batches.append(batch)
        n_collected += len(batch)
        n_passed += len(passed)
        n_drawn += size
    return Filtered(
        table=Table.stack(batches),
        unfiltered=unfiltered or batches[0],
        n_drawn=n_drawn,
        n_dropped=n_drawn - n_passed,
        n_dropped_by=n_dropped_by,
    )


def _size(n_rows: int, n_collected: int, n_drawn: int, attempts: int) -> int:
    """Return the size of the next draw: first ``n_rows``, then the estimated need; 0 if the maximum
    is reached.
    """
    budget = n_rows * attempts - n_drawn
    if n_drawn == 0:
        return min(n_rows, budget)
    pass_rate = max(n_collected / n_drawn, 1 / attempts)
    return min(math.ceil(1.1 * (n_rows - n_collected) / pass_rate), budget)


def _too_few(filters: Sequence[FittedFilter]) -> InputError:
    """Return the error, without numbers: a generator that holds private rows could choose them."""
    fixes = dict.fromkeys(fitted.filter.fix for fitted in filters)
    where = f"filter {', '.join(fitted.filter.name for fitted in filters)}"
    return InputError("too few of the rows drawn passed", where=where, fix="; or ".join(fixes))


def _derived_seed(seed: int, attempt: int) -> int:
    sequence = np.random.SeedSequence(seed, spawn_key=(attempt,))
    return int(sequence.generate_state(1)[0])
