"""Trees whose leaves keep the training rows that fell into them.

Columns are codes (F, n) int32, in the order in which they are drawn: 0..levels - 1 for the known values of a column,
``levels`` for missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from privacy_assets.tables.roles import FEW_VALUES

MOST_CLASSES = 64


class Tree(NamedTuple):
    """A binary tree over coded columns, with the donors of each leaf: a tuple of arrays, as compiled code takes it.

    Value of feature f for each code of column columns[f] is a table (float32); the tables stand one after the other in
    ``tables`` and end at ``ends``. Node v sends a row to node v + 1 when its feature ``feature[v]`` is <=
    ``threshold[v]``, else to ``right[v]``; a leaf has feature -1, and its donors (codes, int32) are
    ``donors[start[v] : start[v + 1]]``. ``reach`` says of each donor how far its value may be moved; it is empty where
    values stay as they are.
    """

    columns: np.ndarray
    ends: np.ndarray
    tables: np.ndarray
    feature: np.ndarray
    threshold: np.ndarray
    right: np.ndarray
    start: np.ndarray
    donors: np.ndarray
    reach: np.ndarray


def trees_of(
    codes: np.ndarray,
    levels: np.ndarray,
    is_number: np.ndarray,
    numbers: np.ndarray,
    column: int,
    smallest: int,
    rng: np.random.Generator,
    people: np.ndarray | None = None,
    smoothing: bool = False,
) -> Iterator[Tree]:
    """Grow the trees of ``column`` given those before it; ``numbers`` (n,) are its values, if it is a number.

    A leaf holds at least ``smallest`` rows; with ``people`` int64 (n,), whose each row is, rows of as many people. With
    ``smoothing`` the donors of a number have a reach, but for values that as many people share: these are what a column
    is made of; nor in a column of few different values.

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
        goal, values = _standardised(numbers[rows]), numbers[rows] if smoothing and known > FEW_VALUES else None
        yield fit_tree(*before, rows, goal, 2, own[rows], smallest, rng, people, values)


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
    numbers: np.ndarray | None = None,
) -> Tree:
    """Tree of ``goal`` on all columns ``codes`` (f, n), grown on some ``rows``, that keeps their ``donors``.

    A number is its rank, missing the mean rank, with an indicator where there is missing; a category has its
    :func:`level_scores`. ``goal`` and ``kinds`` as in :func:`_tree_kernels.grow`. With ``numbers`` (rows,), the values
    of the donors, these have a reach.
    """
    from privacy_assets.generators._tree_kernels import grow

    here = codes if len(rows) == codes.shape[1] else codes[:, rows]
    whose = None if people is None else np.unique(people[rows], return_inverse=True)[1]
    columns: list[int] = []
    tables, ranked = [np.zeros(0, np.float32)], [np.zeros(0, np.float32)]
    places = np.empty((2 * len(codes), len(rows)), np.int32)
    for column, known in enumerate(levels[: len(codes)]):
        if is_number[column]:
            found = _ranks(codes[column], known)
        else:
            found = [level_scores(here[column], known + 1, goal, kinds, smallest, whose)]
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
    feature, low, high, right, start, order = grow(places[: len(columns)], spans, goal, kinds, smallest, rng, whose)
    ends = np.cumsum(spans)
    split, values = feature >= 0, np.concatenate(ranked).astype(np.float64)
    first, threshold = (ends - spans)[feature[split]], np.zeros(len(feature))
    threshold[split] = (values[first + low[split]] + values[first + high[split]]) / 2
    tree = Tree(
        columns=np.array(columns, np.int64),
        ends=ends,
        tables=np.concatenate(tables),
        feature=feature.astype(np.int32),
        threshold=threshold,
        right=right.astype(np.int32),
        start=start.copy(),
        donors=donors.astype(np.int32)[order],
        reach=np.zeros(0),
    )
    if numbers is None:
        return tree
    return _with_reach(tree, numbers[order], (np.arange(len(rows)) if whose is None else whose)[order], smallest)


def moved(values: np.ndarray, moves: np.ndarray, low: float, high: float) -> np.ndarray:
    """``values`` float64 (n,) moved by ``moves``, thrown back at ``low`` and ``high``, the ends of the column.

    What is not moved is the same bit for bit.
    """
    found = values + moves
    found = np.where(found < low, 2 * low - found, np.where(found > high, 2 * high - found, found))
    return np.where(moves == 0, values, np.clip(found, low, high))


def _with_reach(tree: Tree, values: np.ndarray, whose: np.ndarray, smallest: int) -> Tree:
    """The tree of a number whose donors have a reach, see :func:`_tree_kernels.reach_of_donors`.

    ``values`` (rows,) and ``whose`` int64 (rows,), codes of people, are those of the donors, leaf by leaf.
    """
    from privacy_assets.generators._tree_kernels import reach_of_donors

    starts = tree.start[np.append(tree.feature < 0, True)]
    order = np.lexsort((values, np.repeat(np.arange(len(starts) - 1), np.diff(starts))))
    codes = tree.donors[order]
    pairs = np.unique(codes * np.int64(len(whose)) + whose[order]) // len(whose)  # each value of a person once
    shared = np.bincount(pairs, minlength=int(codes.max()) + 1) >= smallest
    reach = reach_of_donors(starts, values[order], whose[order], smallest)
    return tree._replace(donors=codes, reach=np.where(shared[codes], 0.0, reach))


def classes(codes: np.ndarray, levels: int) -> tuple[np.ndarray, int]:
    """Class of each code < ``levels`` by falling frequency (float64), and how many; from 64 on they share the last."""
    counts = np.bincount(codes, minlength=levels)
    order = np.argsort(-counts, kind="stable")[: min(MOST_CLASSES, np.count_nonzero(counts))]
    place = np.full(levels, MOST_CLASSES - 1.0)
    place[order] = np.arange(len(order))
    return place[codes], len(order)


def level_scores(
    codes: np.ndarray, levels: int, goal: np.ndarray, kinds: int, smallest: int, people: np.ndarray | None = None
) -> np.ndarray:
    """A number for each of ``levels`` codes, float32 (levels,), that orders them by ``goal`` (n,) of :func:`fit_tree`.

    A goal of numbers or two classes: the mean of the level's rows. More classes: the projection of the level's class
    shares on their first principal component, weighted by rows (Coppersmith, Hong and Hosking 1999). Levels with fewer
    than ``smallest`` rows (or people, see :func:`trees_of`) are taken together, levels without rows stand with them:
    the mean goal of a level of few rows is that of its rows, and would let the tree look the target up.
    """
    from privacy_assets.generators._tree_kernels import count_levels

    held = codes if people is None else np.unique(people * levels + codes) % levels  # each level of a person once
    group, weights = np.bincount(held, minlength=levels), np.zeros(levels + 1)
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
