"""Trees whose leaves keep the training rows that fell into them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


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
