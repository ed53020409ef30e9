"""Trees whose leaves keep the training rows that fell into them, in arrays that can be stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np


@dataclass(frozen=True, eq=False)
class Tree:
    """A binary tree over coded columns, with the donors of each leaf.

    Feature f of a row is ``table(f)[code in column columns[f]]``; the tables (float32) stand one after the other in
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

    def table(self, feature: int) -> np.ndarray:
        """Value of a feature for each code of its column."""
        return self.tables[self.ends[feature - 1] if feature else 0 : self.ends[feature]]

    def draw(self, codes: np.ndarray, out: np.ndarray, rng: np.random.Generator) -> None:
        """Write one donor for each of the rows ``codes`` int32 (columns, rows) into ``out``, where that is below 0."""
        from privacy_assets.generators._tree_kernels import draw_codes

        draw_codes(*(getattr(self, field.name) for field in fields(self)), codes, out, rng)

    def to_arrays(self, prefix: str) -> dict[str, np.ndarray]:
        """Arrays to store under names that begin with ``prefix``."""
        return {f"{prefix}.{field.name}": getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], prefix: str) -> Tree:
        """Inverse of :meth:`to_arrays`; KeyError when one is missing."""
        return cls(*(arrays[f"{prefix}.{field.name}"] for field in fields(cls)))
