"""What linkability attacks: which people, by which pairs of column sets, in which encoding."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from privacy_assets.engine.inputs import MetricInputs
from privacy_assets.engine.metrics.linkage import Linkage
from privacy_assets.engine.tables.encoding import EncodedTable
from privacy_assets.stats.subjects import Subjects

Pair = tuple[tuple[str, ...], tuple[str, ...]]
_ROLES = ("train", "holdout", "synthetic")


def random_halves(names: Sequence[str], number: int, rng: np.random.Generator) -> list[Pair]:
    """``number`` different ways to cut the columns in two (sizes differ by at most 1), or all there are."""
    total, size = len(names), len(names) // 2
    even = total == 2 * size
    if size == 0:
        return []
    found: dict[tuple[int, ...], None] = {}
    if math.comb(total, size) // (1 + even) <= number:
        every = itertools.combinations(range(total), size)
        found = {half: None for half in every if not even or 0 in half}
    while len(found) < min(number, math.comb(total, size) // (1 + even)):
        order = rng.permutation(total)
        half = order[:size] if not even or 0 in order[:size] else order[size:]
        found[tuple(sorted(half.tolist()))] = None
    return [(tuple(names[c] for c in half), tuple(names[c] for c in range(total) if c not in half)) for half in found]


def attacked_rows(inputs: MetricInputs, people: Subjects, most: int) -> np.ndarray:
    """Positions in T stacked on H of at most ``most`` rows a side, drawn by person and blind to the labels.

    As many people a side as there are, or ``most``; the same number of rows of each at most, so that labels of the
    people drawn stay exchangeable. No draw depends on the order of rows.
    """
    rng = inputs.rng("linkability people")
    order = rng.permutation(len(people))
    drawn = np.zeros(len(people), dtype=bool)
    for side in (True, False):
        drawn[order[people.member[order] == side][:most]] = True
    of_each = max(1, most // max(people.members, len(people) - people.members))
    content = np.concatenate([inputs.row_ids["train"], inputs.row_ids["holdout"]])
    rows = np.lexsort((people.codes, content))
    rows = rows[rng.permutation(len(rows))]
    rows = rows[np.argsort(people.codes[rows], kind="stable")]
    rank = np.arange(len(rows)) - np.searchsorted(people.codes[rows], people.codes[rows])
    return rows[drawn[people.codes[rows]] & (rank < of_each)]


def varying_columns(inputs: MetricInputs) -> dict[str, list[int]]:
    """Encoded columns (as ``EncodedTable.pick`` numbers them) by column, without what holds one value in all tables."""
    tables = [inputs.encoded(role) for role in _ROLES]
    ends = []
    for part in ("numeric", "codes"):
        arrays = [getattr(table, part) for table in tables]
        ends.append(np.stack([[array.min(axis=0), array.max(axis=0)] for array in arrays]))
    varies = np.concatenate([end[:, 0].min(axis=0) < end[:, 1].max(axis=0) for end in ends])
    places = {name: [place for place in own if varies[place]] for name, own in inputs.encoder.places.items()}
    return {name: own for name, own in places.items() if own}


def linkage(inputs: MetricInputs, rows: np.ndarray, columns: Sequence[int]) -> Linkage:
    """The synthetic table beside the rows at these positions of T stacked on H, by these encoded columns."""
    real = EncodedTable.stack([inputs.encoded(role) for role in ("train", "holdout")]).take(rows)
    return Linkage.of(inputs.encoded("synthetic"), real, columns, inputs.device)
