"""The filter of synthetic rows that stand alone."""

from __future__ import annotations

import math

import numpy as np
from pydantic import Field

from privacy_assets.errors import InputError
from privacy_assets.generators.filters.base import ROUNDING, Filter, parts
from privacy_assets.neighbours.nearest import nearest_rows
from privacy_assets.settings import declared_by_name
from privacy_assets.tables.encoding import EncodedTable

_CELLS = 4_000_000  # neighbours held at once


@declared_by_name
class OutlierFilter(Filter):
    """Leave out synthetic rows in the far tail: with fewer than ``neighbours`` real people within the radius.

    Without ``radius`` it is the smallest one within which at least the share ``quantile`` of the real rows have so many
    *other* people. So of fresh rows about 1 - quantile go, and of copies those of people who stand apart themselves.
    InputError where there are not more than ``neighbours`` people.
    """

    neighbours: int = Field(default=5, ge=1, description="nearest other people whose distance is looked at")
    quantile: float = Field(default=0.9, ge=0.5, lt=1, description="quantile of these distances that the radius is")

    name = "outliers"
    covers = "rows unlike those of most people, copies of people who stand apart among them"
    fix = "let the generator stay nearer to the real rows (more training, fewer free columns), or raise quantile"

    def _typical(self, rows: EncodedTable, subjects: np.ndarray) -> float:
        people = int(subjects.max()) + 1
        if people <= self.neighbours:
            fix = f"give more than {self.neighbours} people, or lower neighbours"
            raise InputError(f"{people} people were given", where=f"filter {self.name}", fix=fix)
        distances = distance_to_subjects(rows, subjects, self.neighbours)
        return float(np.quantile(distances, self.quantile, method="inverted_cdf"))

    def leaves_out(self, people: np.ndarray) -> np.ndarray:
        """Those that stand alone."""
        return people < self.neighbours - ROUNDING


def distance_to_subjects(rows: EncodedTable, subjects: np.ndarray, people: int) -> np.ndarray:
    """Distance (n,) of each row within which the rows of other subjects make up ``people`` of them.

    ``subjects`` are codes 0..s-1 with s > ``people``; each row is an equal part of its subject.
    """
    weights, out = parts(subjects), np.full(len(rows), np.inf)
    asked, k = np.arange(len(rows)), min(len(rows), math.ceil((people + 1) / weights.mean()))
    while len(asked):
        block, missed = max(1, _CELLS // k), []
        for start in range(0, len(asked), block):
            own = asked[start : start + block]
            found = nearest_rows(rows.take(own), rows, k)
            foreign = subjects[found.indices] != subjects[own][:, None]
            enough = np.cumsum(weights[found.indices] * foreign, axis=1) >= people - ROUNDING
            out[own] = np.where(enough[:, -1], found.distances[np.arange(len(own)), enough.argmax(axis=1)], np.inf)
            missed.append(own[~enough[:, -1]])
        asked, k = np.concatenate(missed), min(len(rows), 4 * k)
    return out
