"""Trees whose leaves keep the training rows that fell into them, in arrays that can be stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

MOST_CLASSES = 64
_FIELDS = ("feature", "threshold", "left", "right", "start", "donors", "columns", "lookup_ends", "lookups")


@dataclass(frozen=True, eq=False)
class Tree:
    """A binary tree over coded columns, with the donors of each leaf.

    Node v of inner nodes sends a row to ``left[v]`` when its feature ``feature[v]`` is <= ``threshold[v]``, else to
    ``right[v]``; a leaf has left -1, and its donors are ``donors[start[v] : start[v + 1]]`` (int32; empty for inner
    nodes). Feature f of a row is ``tables[f][codes of column columns[f]]`` (float32).
    """

    feature: np.ndarray
    threshold: np.ndarray
    left: np.ndarray
    right: np.ndarray
    start: np.ndarray
    donors: np.ndarray
    columns: np.ndarray
    tables: tuple[np.ndarray, ...]

    def leaves(self, codes: Sequence[np.ndarray], rows: int) -> np.ndarray:
        """Leaf (node number) of each of ``rows`` rows, whose column i has the codes ``codes[i]``."""
        nodes = np.zeros(rows, dtype=np.int64)
        walking = np.arange(rows) if self.left[0] >= 0 else np.empty(0, dtype=np.int64)
        values = features(codes, list(zip(self.columns, self.tables, strict=True)), rows)
        while len(walking):
            at = nodes[walking]
            low = values[walking, self.feature[at]] <= self.threshold[at]
            nodes[walking] = np.where(low, self.left[at], self.right[at])
            walking = walking[self.left[nodes[walking]] >= 0]
        return nodes

    def draw(self, codes: Sequence[np.ndarray], rows: int, rng: np.random.Generator) -> np.ndarray:
        """One donor for each row, uniformly from its leaf; int32 (rows,)."""
        nodes = self.leaves(codes, rows)
        sizes = self.start[nodes + 1] - self.start[nodes]
        return self.donors[self.start[nodes] + rng.integers(0, sizes)]

    def to_arrays(self, prefix: str) -> dict[str, np.ndarray]:
        """Arrays to store under names that begin with ``prefix``."""
        joined = np.concatenate(self.tables) if self.tables else np.empty(0, dtype=np.float32)
        ends = np.cumsum([len(table) for table in self.tables], dtype=np.int64)
        parts = (
            self.feature,
            self.threshold,
            self.left,
            self.right,
            self.start,
            self.donors,
            self.columns,
            ends,
            joined,
        )
        return {f"{prefix}.{name}": part for name, part in zip(_FIELDS, parts, strict=True)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], prefix: str) -> Tree:
        """Inverse of :meth:`to_arrays`."""
        feature, threshold, left, right, start, donors, columns, ends, joined = (
            arrays[f"{prefix}.{name}"] for name in _FIELDS
        )
        tables = tuple(np.split(joined, ends[:-1])) if len(ends) else ()
        return cls(feature, threshold, left, right, start, donors, columns, tables)


def features(codes: Sequence[np.ndarray], tables: Sequence[tuple[int, np.ndarray]], rows: int) -> np.ndarray:
    """Float32 (rows, len(tables)): column ``i`` looked up in its table for each (i, table)."""
    out = np.empty((rows, len(tables)), dtype=np.float32)
    for position, (column, table) in enumerate(tables):
        out[:, position] = table[codes[column]]
    return out


def grow(
    codes: Sequence[np.ndarray],
    tables: Sequence[tuple[int, np.ndarray]],
    goal: np.ndarray,
    donors: np.ndarray,
    *,
    min_leaf: int,
    state: int,
) -> Tree:
    """Grow a CART on ``goal`` (n,): whole numbers are classes (Gini), floats numbers (squared error).

    Row i leaves ``donors[i]`` in its leaf. Every leaf keeps at least ``min_leaf`` rows, or all n when there are fewer.
    ``state`` decides between equal splits.
    """
    n = len(donors)
    columns = np.array([column for column, _ in tables], dtype=np.int64)
    kept = tuple(table for _, table in tables)
    if not tables or n < 2 * min_leaf or (goal == goal[0]).all():
        leaf = np.full(1, -1, dtype=np.int32)
        start = np.array([0, n], dtype=np.int64)
        return Tree(leaf, np.zeros(1), leaf, leaf, start, donors.astype(np.int32), columns, kept)

    from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

    kind = DecisionTreeClassifier if np.issubdtype(goal.dtype, np.integer) else DecisionTreeRegressor
    values = features(codes, tables, n)
    grown = kind(min_samples_leaf=min_leaf, random_state=state).fit(values, goal)
    tree, nodes = grown.tree_, grown.apply(values)
    start = np.concatenate([[0], np.cumsum(np.bincount(nodes, minlength=tree.node_count))]).astype(np.int64)
    return Tree(
        tree.feature.astype(np.int32),
        tree.threshold.astype(np.float64),
        tree.children_left.astype(np.int32),
        tree.children_right.astype(np.int32),
        start,
        donors[np.argsort(nodes, kind="stable")].astype(np.int32),
        columns,
        kept,
    )


def classes(codes: np.ndarray) -> np.ndarray:
    """Class of each row, int64 (n,), by falling frequency; beyond 64 classes the rarest share the last one."""
    _, found, counts = np.unique(codes, return_inverse=True, return_counts=True)
    place = np.empty(len(counts), dtype=np.int64)
    place[np.argsort(-counts, kind="stable")] = np.arange(len(counts))
    return np.minimum(place, MOST_CLASSES - 1)[found]


def level_scores(codes: np.ndarray, levels: int, goal: np.ndarray, smallest: int) -> np.ndarray:
    """A number for each of ``levels`` codes, float32 (levels,), that orders them by ``goal`` (n,), see :func:`grow`.

    A floating goal: the mean of the level's rows. Classes: the projection of the level's class shares on their first
    principal component, weighted by rows (Coppersmith, Hong and Hosking 1999), for two classes the order by share.
    Levels with fewer than ``smallest`` rows are taken together, levels without rows stand with them: the mean goal of
    a level of few rows is that of its rows, and would let the tree look the target up.
    """
    counts = np.bincount(codes, minlength=levels).astype(np.float64)
    rare = counts < smallest
    group = np.where(rare, 0, np.cumsum(~rare))
    weights = np.bincount(group, weights=counts)
    if np.issubdtype(goal.dtype, np.integer):
        k = int(goal.max()) + 1
        sums = np.bincount(group[codes] * k + goal, minlength=len(weights) * k).reshape(-1, k)
    else:
        sums = np.bincount(group[codes], weights=goal, minlength=len(weights))[:, None]
    means = sums / np.maximum(weights, 1)[:, None]
    centred = means - weights @ means / weights.sum()
    centred[weights == 0] = 0
    _, vectors = np.linalg.eigh(centred.T @ (centred * weights[:, None]))
    first = vectors[:, -1] * np.sign(vectors[np.abs(vectors[:, -1]).argmax(), -1])
    return (centred @ first)[group].astype(np.float32)
