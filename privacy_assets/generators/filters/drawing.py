"""Drawing from a generator until enough rows have passed every filter."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from privacy_assets.errors import InputError
from privacy_assets.generators.base import FittedGenerator
from privacy_assets.generators.filters.base import FittedFilter
from privacy_assets.tables.table import Table


@dataclass(frozen=True, eq=False)
class Filtered:
    """``rows`` that passed, how many were ``drawn``, and how many of these were ``dropped``.

    ``dropped_by`` says how many each filter left out, by name; one row may count for several. ``unfiltered`` is the
    first draw: as many rows, and those that there would be without a filter.
    """

    rows: Table
    unfiltered: Table
    drawn: int
    dropped: int
    dropped_by: Mapping[str, int]


def draw(generator: FittedGenerator, filters: Sequence[FittedFilter], rows: int, *, seed: int) -> Filtered:
    """Draw from a fitted generator until ``rows`` have passed: a row goes when any of the ``filters`` says so.

    The first draw is the one without a filter; further ones have seeds of their own. InputError when the generator
    gives too few rows that pass; of several filters the largest ``attempts`` holds.
    """
    kept: list[Table] = []
    unfiltered: Table | None = None
    found = drawn = passed = 0
    attempts = max(fitted.filter.attempts for fitted in filters)
    counts = {fitted.filter.name: 0 for fitted in filters}
    while found < rows:
        size = _size(rows, found, drawn, attempts)
        if size < 1:
            raise _too_few(filters, counts, f"{found} of {drawn} rows drawn passed, {rows} are wanted")
        table = generator.sample(size, seed=seed if not kept else _another(seed, len(kept)))
        unfiltered = unfiltered or table
        out = {fitted.filter.name: fitted.exposed(table) for fitted in filters}
        counts = {name: counts[name] + int(mask.sum()) for name, mask in out.items()}
        good = table.take(~np.logical_or.reduce(list(out.values())))
        passed += len(good)
        kept.append(good.take(slice(rows - found)))
        found, drawn = found + len(kept[-1]), drawn + size
    return Filtered(Table.stack(kept), unfiltered or kept[0], drawn, drawn - passed, counts)


def _size(rows: int, found: int, drawn: int, attempts: int) -> int:
    """How many to draw next: as many as are wanted, then about as many as it takes; 0 when enough were drawn."""
    left = rows * attempts - drawn
    share = max(found / drawn, 1 / attempts) if drawn else 1.0
    return min(math.ceil(1.1 * (rows - found) / share) if drawn else rows, left)


def _too_few(filters: Sequence[FittedFilter], counts: Mapping[str, int], problem: str) -> InputError:
    """The error, with what helps against the filter that left out most."""
    worst = max(filters, key=lambda fitted: counts[fitted.filter.name])
    return InputError(problem, where=f"filter {', '.join(counts)}", fix=worst.filter.fix)


def _another(seed: int, attempt: int) -> int:
    return int(np.random.SeedSequence(seed, spawn_key=(attempt,)).generate_state(1)[0])
