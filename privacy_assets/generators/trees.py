"""Trees whose leaves keep the training rows that fell into them.

Columns are codes (F, n) int32, in the order in which they are drawn: 0..levels - 1 for the known values of a column,
``levels`` for missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

MOST_CLASSES = 64


class Tree(NamedTuple):
    """A binary tree over coded columns, with the donors of each leaf: a tuple of arrays, as compiled code takes it.

    Value of feature f for each code of column columns[f] is a table (float32); the tables stand one after the other in
    ``tables`` and end at ``ends``. Node v sends a row to node v + 1 when its feature ``feature[v]`` is <=
    ``threshold[v]``, else to ``right[v]``; a leaf has feature -1, and its donors (codes, int32) are
    ``donors[start[v] : start[v + 1]]``.
    """

    columns: np.ndarray
    ends: np.ndarray
    tables: np.ndarray
    feature: np.ndarray
    threshold: np.ndarray
    right: np.ndarray
    start: np.ndarray
    donors: np.ndarray


def trees_of(
    codes: np.ndarray,
    levels: np.ndarray,
    is_number: np.ndarray,
    numbers: np.ndarray,
    column: int,
    smallest: int,
    rng: np.random.Generator,
    people: np.ndarray | None = None,
) -> Iterator[Tree]:
    """Grow the trees of ``column`` given those before it; ``numbers`` (n,) are its values, if it is a number.

    A leaf holds at least ``smallest`` rows; with ``people`` int64 (n,), whose each row is, rows of as many people.

    A category has one tree, whose donors are codes. A number has one when it misses values, whose donors are
    ``levels`` (missing) or -1 (not), and one for the rows that are there, if any.
    """
    own, known, every = codes[column], levels[column], np.arange(codes.shape[1])
    before = codes[:column], levels, is_number
    if not is_number[column]:
        goal, kinds = classes(own, known + 1)
        yield fit_tree(*before, every, goal, kinds, own, smallest, rng, people)
        return
    missing = own == known
    if missing.any():
        yield fit_tree(*before, every, missing.astype(np.float64), 2, np.where(missing, own, -1), smallest, rng, people)
    if not missing.all():
        rows = np.flatnonzero(~missing)
        yield fit_tree(*before, rows, _standardised(numbers[rows]), 2, own[rows], smallest, rng, people)


def fit_tree(
    codes: np.ndarray,
    levels: np.ndarray,
    is_number: np.ndarray,
    rows: np.ndarray,
    goal: np.ndarray,
    kinds: int,
    donors: np.ndarray,
    smallest: int,
    rng: np.random.Generator,
    people: np.ndarray | None = None,
) -> Tree:
    """Tree of ``goal`` on all columns ``codes`` (f, n), grown on some ``rows``, that keeps their ``donors``.

    A number is its rank, missing the mean rank, with an indicator where there is missing; a category has its
    :func:`level_scores`. ``goal`` and ``kinds`` as in :func:`_tree_kernels.grow`.
    """
    from privacy_assets.generators._tree_kernels import grow

    here = codes if len(rows) == codes.shape[1] else codes[:, rows]
    columns: list[int] = []
    tables, ranked = [np.zeros(0, np.float32)], [np.zeros(0, np.float32)]
    places = np.empty((2 * len(codes), len(rows)), np.int32)
    for column, known in enumerate(levels[: len(codes)]):
        if is_number[column]:
            found = _ranks(codes[column], known)
        else:
            found = [level_scores(here[column], known + 1, goal, kinds, smallest)]
        for table in found:
            if is_number[column] and len(found) == 1:  # codes stand in the order of their ranks
                ordered, places[len(columns)] = table, here[column]
            else:
                place, ordered = _places(table), np.zeros_like(table)
                ordered[place] = table
                places[len(columns)] = place[here[column]]
            columns.append(column)
            tables.append(table)
            ranked.append(ordered)
    spans = np.array([len(table) for table in tables[1:]], np.int64)
    nodes = grow(places[: len(columns)], spans, goal, kinds, smallest, rng)
    if people is not None:
        nodes = _pruned(nodes, people[rows], smallest)
    feature, low, high, right, start, order = nodes
    ends = np.cumsum(spans)
    split, values = feature >= 0, np.concatenate(ranked).astype(np.float64)
    first, threshold = (ends - spans)[feature[split]], np.zeros(len(feature))
    threshold[split] = (values[first + low[split]] + values[first + high[split]]) / 2
    return Tree(
        columns=np.array(columns, np.int64),
        ends=ends,
        tables=np.concatenate(tables),
        feature=feature.astype(np.int32),
        threshold=threshold,
        right=right.astype(np.int32),
        start=start.copy(),
        donors=donors.astype(np.int32)[order],
    )


def _pruned(nodes: tuple[np.ndarray, ...], people: np.ndarray, smallest: int) -> tuple[np.ndarray, ...]:
    """The tree without the splits that leave fewer than ``smallest`` people on a side; ``people`` int64 (rows,).

    ``nodes`` as :func:`_tree_kernels.grow` gives them.
    """
    feature, low, high, right, start, order = nodes
    whose, below = people[order], np.ones(len(feature), dtype=np.int64)  # nodes of the subtree
    kept = np.ones(len(feature), dtype=bool)
    for node in reversed(range(len(feature))):
        if feature[node] < 0:
            continue
        one, other = node + 1, right[node]
        below[node] += below[one] + below[other]
        ends = start[one], start[other], start[node + below[node]]
        if min(len(np.unique(whose[ends[0] : ends[1]])), len(np.unique(whose[ends[1] : ends[2]]))) < smallest:
            feature[node] = -1
            kept[node + 1 : node + below[node]] = False
    moved = np.cumsum(kept) - 1
    feature, low, high = feature[kept], low[kept], high[kept]
    right = np.where(feature >= 0, moved[right[kept]], -1)
    return feature, low, high, right, np.append(start[:-1][kept], start[-1]), order


def classes(codes: np.ndarray, levels: int) -> tuple[np.ndarray, int]:
    """Class of each code < ``levels`` by falling frequency (float64), and how many; from 64 on they share the last."""
    counts = np.bincount(codes, minlength=levels)
    order = np.argsort(-counts, kind="stable")[: min(MOST_CLASSES, np.count_nonzero(counts))]
    place = np.full(levels, MOST_CLASSES - 1.0)
    place[order] = np.arange(len(order))
    return place[codes], len(order)


def level_scores(codes: np.ndarray, levels: int, goal: np.ndarray, kinds: int, smallest: int) -> np.ndarray:
    """A number for each of ``levels`` codes, float32 (levels,), that orders them by ``goal`` (n,) of :func:`fit_tree`.

    A goal of numbers or two classes: the mean of the level's rows. More classes: the projection of the level's class
    shares on their first principal component, weighted by rows (Coppersmith, Hong and Hosking 1999). Levels with fewer
    than ``smallest`` rows are taken together, levels without rows stand with them: the mean goal of a level of few rows
    is that of its rows, and would let the tree look the target up.
    """
    from privacy_assets.generators._tree_kernels import count_levels

    group, weights = np.zeros(levels, np.int64), np.zeros(levels + 1)
    shares = np.zeros((levels + 1, kinds if kinds > 2 else 1))
    groups = count_levels(codes, goal, kinds, smallest, group, weights, shares)
    if kinds <= 2:
        return shares[:, 0].astype(np.float32)[group]
    shares, root = shares[:groups], np.sqrt(np.maximum(weights[:groups], 1.0))
    scaled = shares * root[:, None]
    if groups <= kinds:  # the smaller of the two matrices that share the component
        sizes, vectors = np.linalg.eigh(scaled @ scaled.T)
        scores = vectors[:, -1] * np.sqrt(max(sizes[-1], 0.0)) / root
    else:
        scores = shares @ np.linalg.eigh(scaled.T @ scaled)[1][:, -1]
    return scores.astype(np.float32)[group]


def _ranks(codes: np.ndarray, known: int) -> list[np.ndarray]:
    """Tables float32 (known + 1,) of a number: its ranks, and whether it is missing where it is."""
    missing = int((codes == known).sum())
    table = np.arange(known + 1, dtype=np.float32)
    table[known] = (int(codes.sum()) - missing * known) / max(len(codes) - missing, 1)
    return [table, (np.arange(known + 1) == known).astype(np.float32)] if missing else [table]


def _places(table: np.ndarray) -> np.ndarray:
    """Place int32 (n,) of each value of ``table`` among its different values."""
    order, out = np.argsort(table), np.zeros(len(table), np.int32)
    ordered = table[order]
    out[order[1:]] = np.cumsum(ordered[1:] > ordered[:-1])
    return out


def _standardised(values: np.ndarray) -> np.ndarray:
    """Values at mean 0 and deviation 1, whatever their magnitude; a constant becomes 0."""
    largest = np.abs(values).max()
    scaled = values / largest if largest > 0 else values
    centred = scaled - _total(scaled) / len(scaled)
    deviation = np.sqrt(_total(centred * centred) / len(scaled))
    return centred / deviation if deviation > 0 else np.zeros(len(values))


def _total(values: np.ndarray) -> np.ndarray:
    """Sum over the first axis, added one by one: which of two equal splits is taken must not hang on the processor."""
    return np.cumsum(values, axis=0)[-1]
