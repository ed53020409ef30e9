"""Compiled loops behind :mod:`privacy_assets.shadow.attention`. Imports numba: import it where it is used."""

from __future__ import annotations

import numpy as np

from privacy_assets.compute.compiling import compiled, inlined


@compiled
def target_distances(attributes: np.ndarray, target: np.ndarray, is_number: np.ndarray) -> np.ndarray:
    """Generalised cosine distance (Meeus et al. 2023, eq. 5) of columns of ``attributes`` (F, m) to ``target`` (F,).

    Two rows without any numbers above 0 have cosine 1, one such row and another have 0.
    """
    columns, rows = attributes.shape
    equal, product, norm = np.zeros(rows), np.zeros(rows), np.zeros(rows)
    own, numbers = 0.0, 0
    for column in range(columns):
        aim = target[column]
        if is_number[column]:
            numbers += 1
            own += aim * aim
            for row in range(rows):
                product[row] += aim * attributes[column, row]
                norm[row] += attributes[column, row] * attributes[column, row]
        else:
            for row in range(rows):
                equal[row] += attributes[column, row] == aim
    out = np.empty(rows)
    for row in range(rows):
        length = np.sqrt(own * norm[row])
        cosine = 1.0 if own == norm[row] else 0.0
        if length > 0:
            cosine = product[row] / length
        out[row] = 1.0 - (equal[row] + numbers * cosine) / max(columns, 1)
    return out


@inlined
def _order(attributes: np.ndarray, distances: np.ndarray, one: int, other: int) -> int:
    """-1, 0 or 1: by distance, then by content."""
    if distances[one] != distances[other]:
        return -1 if distances[one] < distances[other] else 1
    for column in range(len(attributes)):
        if attributes[column, one] != attributes[column, other]:
            return -1 if attributes[column, one] < attributes[column, other] else 1
    return 0


@compiled
def closest_unique(attributes: np.ndarray, distances: np.ndarray, keep: int) -> tuple[np.ndarray, np.ndarray]:
    """The ``keep`` nearest different columns of ``attributes`` (F, m), nearest first, and how often each occurs.

    Equal distances are ordered by content, so that the order of the columns does not matter.
    """
    size = len(distances)
    order, spare = np.arange(size), np.empty(size, dtype=np.int64)
    width = 1
    while width < size:  # merge sort: numba's own takes no comparison
        for start in range(0, size, 2 * width):
            middle, end = min(start + width, size), min(start + 2 * width, size)
            left, right = start, middle
            for place in range(start, end):
                if left < middle and (right >= end or _order(attributes, distances, order[left], order[right]) <= 0):
                    spare[place] = order[left]
                    left += 1
                else:
                    spare[place] = order[right]
                    right += 1
        order, spare = spare, order
        width *= 2
    rows, counts, found = np.empty(keep, dtype=np.int64), np.zeros(keep, dtype=np.int64), 0
    for row in order:
        if found > 0 and _order(attributes, distances, rows[found - 1], row) == 0:
            counts[found - 1] += 1
            continue
        if found == keep:
            break
        rows[found], counts[found] = row, 1
        found += 1
    return rows[:found], counts[:found]
