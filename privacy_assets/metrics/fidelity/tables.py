"""What fidelity compares: rows of holdout, synthetic and train, their values as cells, and people resampled."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from privacy_assets.metrics.inputs import MetricInputs
from privacy_assets.tables.column import ranked
from privacy_assets.tables.schema import TableSchema
from privacy_assets.tables.table import Table

CANDIDATES = ("synthetic", "train")  # what stands in for the holdout: the synthetic rows, and as many real ones
ROLES = ("holdout", *CANDIDATES)
NUMBERS = ("numeric", "integer", "datetime")
_BLOCK = 32  # replicates held at once

Weights = Mapping[str, np.ndarray]  # by role (rows, b): how often each row counts in each of b replicates


@dataclass(frozen=True, eq=False)
class Cells:
    """One column, or a pair of columns, of every role: int32 cells (rows,) in 0..size-1. Numbers are ``ordered``."""

    cells: Mapping[str, np.ndarray]
    size: int
    ordered: bool = False

    def binned(self, parts: int) -> Cells:
        """At most some ``parts`` cells: see :func:`_places`."""
        real = np.concatenate([self.cells["holdout"], self.cells["train"]])
        places = _places(np.bincount(real, minlength=self.size), parts, self.ordered)
        binned = {role: places[cells] for role, cells in self.cells.items()}
        return Cells(binned, int(places.max()) + 1, self.ordered)

    def with_(self, other: Cells) -> Cells:
        """The pairs of cells of both."""
        joined = {role: cells * np.int32(other.size) + other.cells[role] for role, cells in self.cells.items()}
        return Cells(joined, self.size * other.size)


def _places(counts: np.ndarray, parts: int, ordered: bool) -> np.ndarray:
    """Where each cell goes, int32, from how often the real rows have it, (size,); cell 0 is a missing number.

    Numbers: 0 stays, the others are cut at the ``parts``-quantiles of the real values. Categories: each of the most
    common ``parts`` for itself, the rarer together, and those that no real row has together.
    """
    if ordered:
        below = np.cumsum(counts[1:]) - counts[1:]
        part = below * parts // max(1, int(counts[1:].sum()))
        return np.concatenate([[0], 1 + np.unique(part, return_inverse=True)[1]]).astype(np.int32)
    place = np.empty(len(counts), dtype=np.int32)
    place[np.argsort(-counts, kind="stable")] = np.arange(len(counts))
    return np.where(counts > 0, np.minimum(place, parts), parts + 1).astype(np.int32)


@dataclass(frozen=True, eq=False)
class Compared:
    """Holdout, and equally many rows of synthetic and of train, in the order of their content.

    ``people`` int64 (rows,) numbers the people of each role from 0; each synthetic row counts as one.
    """

    schema: TableSchema
    tables: Mapping[str, Table]
    people: Mapping[str, np.ndarray]

    @classmethod
    def of(cls, inputs: MetricInputs) -> Compared:
        """Rows of ``inputs``; from the longer one of synthetic and train a random part of them is taken."""
        n = min(len(inputs.synthetic), len(inputs.train))
        rng = inputs.rng("fidelity rows")
        tables, people = {}, {}
        for role in ROLES:
            table = inputs.tables[role]
            owner = np.arange(len(table)) if role == "synthetic" else inputs.subject_codes(role)
            order = np.lexsort((owner, inputs.row_ids[role]))
            if role in CANDIDATES and len(order) > n:
                order = order[np.sort(rng.permutation(len(order))[:n])]
            tables[role] = table.take(order)
            people[role] = pd.factorize(owner[order])[0]
        return cls(inputs.schema, tables, people)

    @property
    def counts(self) -> tuple[int, int]:
        """Rows of holdout and of one candidate together; the fewest people among the three."""
        return len(self.people["holdout"]) + len(self.people["train"]), min(map(_distinct, self.people.values()))

    @cached_property
    def columns(self) -> dict[str, Cells]:
        """By name, every column as cells: 0 for missing, else from 1 in the order of the values."""
        found = {}
        for column in self.schema.columns:
            codes, values = ranked([self.tables[role][column.name] for role in ROLES])
            cells = {role: (code + 1).astype(np.int32) for role, code in zip(ROLES, codes, strict=True)}
            found[column.name] = Cells(cells, len(values) + 1, column.kind in NUMBERS)
        return found

    def pairs(self, names: Sequence[str], most: int, rng: np.random.Generator) -> list[tuple[str, str]]:
        """All pairs of the columns, or ``most`` of them at random, in order."""
        pairs = list(itertools.combinations(names, 2))
        if len(pairs) <= most:
            return pairs
        return [pairs[place] for place in np.sort(rng.permutation(len(pairs))[:most])]

    def as_they_are(self) -> Weights:
        """Every row once, float64 (rows, 1)."""
        return {role: np.ones((len(people), 1)) for role, people in self.people.items()}

    def resampled(self, replicates: int, rng: np.random.Generator) -> Iterator[Weights]:
        """Blocks of float32 weights (rows, b) with the people of every role resampled with replacement."""
        for start in range(0, replicates, _BLOCK):
            block = min(_BLOCK, replicates - start)
            yield {role: _times(people, block, rng)[people] for role, people in self.people.items()}


def _distinct(people: np.ndarray) -> int:
    return int(people.max(initial=-1)) + 1


def _times(people: np.ndarray, replicates: int, rng: np.random.Generator) -> np.ndarray:
    """How often each person is drawn, float32 (people, replicates)."""
    total = _distinct(people)
    drawn = [np.bincount(rng.integers(0, total, total), minlength=total) for _ in range(replicates)]
    return np.stack(drawn, axis=1).astype(np.float32)


def tally(cells: np.ndarray, size: int, weights: np.ndarray) -> np.ndarray:
    """Sum of the ``weights`` (n, b) of the rows in each cell, float64 (size, b)."""
    from scipy import sparse  # slow to import: only where a table is measured

    n = len(cells)
    table = sparse.csc_matrix((np.ones(n, dtype=weights.dtype), cells, np.arange(n + 1)), shape=(size, n))
    return np.asarray(table @ weights, dtype=np.float64)
