"""Compiled searches behind :mod:`.attacks`. Imports numba: import it where used.

Tables stand by part, float32 (parts, rows): the parts of column c are ``start[c]`` to ``start[c + 1]``. A part is a
standardised number, or, where ``category`` says so, a code whose mismatch costs 1. Points are read in their order, so
the earlier one of a tie is the neighbour. Sums of a block of points in float32 rule out nearly all of it; what is left
is summed in float64. ``slack`` bounds the rounding of a float32 sum, relative to the sum.
"""

from __future__ import annotations

import numpy as np

from privacy_assets.compute.compiling import compiled, inlined

Array = np.ndarray
_BLOCK = 256


@inlined
def add(value: float, points: Array, category: bool, out: Array) -> None:
    """Add the squared differences of one part to ``out`` (block,)."""
    if category:
        for at in range(len(points)):
            out[at] += np.float32(1) if points[at] != value else np.float32(0)
    else:
        for at in range(len(points)):
            difference = points[at] - value
            out[at] += difference * difference


@inlined
def apart(query: Array, point: Array, category: Array, first: int, last: int) -> float:
    """Squared distance in the parts first..last - 1, in float64."""
    total = 0.0
    for part in range(first, last):
        if category[part]:
            total += 1.0 if query[part] != point[part] else 0.0
        else:
            total += (np.float64(query[part]) - np.float64(point[part])) ** 2
    return total


@inlined
def insert(distances: Array, places: Array, distance: float, place: int) -> None:
    """Put a point, nearer than the last one, into ascending order, behind those at its distance."""
    slot = len(distances) - 1
    while slot > 0 and distances[slot - 1] > distance:
        distances[slot], places[slot] = distances[slot - 1], places[slot - 1]
        slot -= 1
    distances[slot], places[slot] = distance, place


@inlined
def within(total: Array, largest: Array, reach: float, keep: float) -> int:
    """How many of a block may be nearer than ``reach`` without their largest part."""
    found, bound = 0, np.float32(reach)
    for at in range(len(total)):
        found += 1 if total[at] * np.float32(keep) - largest[at] < bound else 0
    return found


def nearest_by(
    queries: Array, points: Array, category: Array, start: Array, slack: float, columns: Array, k: int
) -> Array:
    """Int64 (queries, k): the nearest points by the columns that ``columns`` int64 (queries, size) names a query."""
    places = np.full((queries.shape[1], k), -1, np.int64)
    work = np.empty(k), np.zeros((2, _BLOCK), np.float32)
    _nearest_by(queries, points, category, start, slack, columns, places, *work)
    return places


@compiled
def _nearest_by(
    queries: Array,
    points: Array,
    category: Array,
    start: Array,
    slack: float,
    columns: Array,
    places: Array,
    distances: Array,
    sums: Array,
) -> None:
    last = len(distances) - 1
    for row in range(len(places)):
        distances[:] = np.inf
        query = queries[:, row]
        for first in range(0, points.shape[1], _BLOCK):
            block = points[:, first : first + _BLOCK]
            total, nothing = sums[0, : block.shape[1]], sums[1, : block.shape[1]]
            total[:] = 0
            for column in columns[row]:
                for part in range(start[column], start[column + 1]):
                    add(query[part], block[part], category[part], total)
            if within(total, nothing, distances[last], 1 - slack) == 0:
                continue
            for at in range(len(total)):
                if total[at] * (1 - slack) < distances[last]:
                    exact = 0.0
                    for column in columns[row]:
                        exact += apart(query, block[:, at], category, start[column], start[column + 1])
                    if exact < distances[last]:
                        insert(distances, places[row], exact, first + at)


@inlined
def offer(parts: Array, at: int, distances: Array, places: Array) -> float:
    """Offer a point at squared distances ``parts`` float64 (columns,) to every column; the reach of the farthest."""
    last, total, reach = distances.shape[1] - 1, 0.0, 0.0
    for part in parts:
        total += part
    for column in range(len(parts)):
        if total * (1 - 1e-12) - parts[column] < distances[column, last]:
            others = 0.0  # summed anew: a large part subtracted from the sum would take the small ones with it
            for other in range(len(parts)):
                if other != column:
                    others += parts[other]
            if others < distances[column, last]:
                insert(distances[column], places[column], others, at)
        reach = max(reach, distances[column, last])
    return reach


@inlined
def column_sums(
    query: Array, block: Array, category: Array, start: Array, part: Array, total: Array, largest: Array
) -> None:
    """Squared distances (block,) in float32: over all columns, and of the column farthest apart."""
    total[:] = 0
    largest[:] = 0
    for column in range(len(start) - 1):
        part[:] = 0
        for position in range(start[column], start[column + 1]):
            add(query[position], block[position], category[position], part)
        for at in range(len(part)):
            total[at] += part[at]
            largest[at] = max(largest[at], part[at])


def nearest_without(queries: Array, points: Array, category: Array, start: Array, slack: float, k: int) -> Array:
    """Int64 (queries, columns, k): the nearest points by all columns but one, for each one."""
    width = len(start) - 1
    places = np.full((queries.shape[1], width, k), -1, np.int64)
    work = np.empty((width, k)), np.empty(width), np.empty((3, _BLOCK), np.float32)
    _nearest_without(queries, points, category, start, slack, places, *work)
    return places


@compiled
def _nearest_without(
    queries: Array,
    points: Array,
    category: Array,
    start: Array,
    slack: float,
    places: Array,
    distances: Array,
    exact: Array,
    held: Array,
) -> None:
    for row in range(len(places)):
        distances[:] = np.inf
        reach, query = np.inf, queries[:, row]
        for first in range(0, points.shape[1], _BLOCK):
            block = points[:, first : first + _BLOCK]
            part, total, largest = held[0, : block.shape[1]], held[1, : block.shape[1]], held[2, : block.shape[1]]
            column_sums(query, block, category, start, part, total, largest)
            if within(total, largest, reach, 1 - slack) == 0:
                continue
            for at in range(len(total)):
                if total[at] * (1 - slack) - largest[at] < reach:
                    for column in range(len(exact)):
                        exact[column] = apart(query, block[:, at], category, start[column], start[column + 1])
                    reach = offer(exact, first + at, distances, places[row])
