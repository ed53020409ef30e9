"""Search among distinct encoded rows: by the mixed tree, or by matrix product of the dense form where that is quicker.

How much a tree leaves out depends on the data: on Adult it looks at 1 row in 60, on its embeddings at 1 in 40, in a
cloud of 20 independent numbers at nearly all. So it is tried on a few queries, and what they looked at, not the time
it took, decides. Both ways compute the distances that count by the same sums, so the choice changes no result.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from privacy_assets.neighbours.exact_search import EXTRA, candidates, ordered
from privacy_assets.neighbours.mixed_tree import MixedTree, squared_distances
from privacy_assets.tables.encoding import EncodedTable

Path = Literal["tree", "product"]
_PROBES = 32  # queries that the tree is tried on
_DENSE = 500_000_000  # cells of the dense forms of both tables together: 2 GB
_LOOK, _CELL = 20.0, 3.5  # nanoseconds for a node or a leaf, and for a column of either
_PAIR, _TERM = 0.7, 0.02  # nanoseconds for a pair of rows in a product, and for a column of either
_ACCELERATION = 20.0  # by which a product on another device is quicker: a guess, it decides nothing but time


def search_rows(
    queries: EncodedTable, points: EncodedTable, k: int, own: np.ndarray, device: str, path: Path | None
) -> tuple[np.ndarray, np.ndarray]:
    """Distances float64 (n_q, k) and positions int64 (n_q, k) of the nearest ``points``, ties by position.

    Rows of ``points`` are distinct, and 1 <= k <= n_p. ``own`` (n_q,) is the point equal to each query, or -1.
    """
    tree = MixedTree.build(points)
    if len(points) > k + EXTRA and (path or _quicker(tree, queries, points, k, device)) == "product":
        squared, found = _by_product(tree, queries, points, k, own, device)
    else:
        squared, found, _ = tree.search(queries, k)
    return np.sqrt(squared), found


def _quicker(tree: MixedTree, queries: EncodedTable, points: EncodedTable, k: int, device: str) -> Path:
    """Compare the work of the tree on every so many-th query with that of a product."""
    cells = points.numeric.shape[1] + len(points.sizes)
    width = points.numeric.shape[1] + int(points.sizes.sum())
    if width > 4 * cells and (len(queries) + len(points)) * width > _DENSE:
        return "tree"
    probes = queries.take(np.s_[:: -(-len(queries) // _PROBES)])
    work = tree.search(probes, k)[2].sum() / len(probes)
    by_product = len(points) * (_PAIR + _TERM * width) / (1.0 if device == "cpu" else _ACCELERATION)
    by_tree = work * (_LOOK + _CELL * cells)
    return "tree" if by_tree <= by_product else "product"


def _by_product(
    tree: MixedTree, queries: EncodedTable, points: EncodedTable, k: int, own: np.ndarray, device: str
) -> tuple[np.ndarray, np.ndarray]:
    """Candidates by matrix product; the tree settles the queries that float32 leaves in doubt."""
    found, in_doubt = candidates(queries.dense, points.dense, k, own, device)
    squared, found = ordered(squared_distances(queries, points, found), found, k)
    open_ = in_doubt(squared[:, -1])
    squared[open_], found[open_], _ = tree.search(queries.take(open_), k)
    return squared, found
