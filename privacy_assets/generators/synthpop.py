"""Sequential trees after SynthPop (Nowok, Raab and Dibben, 2016): each column is drawn given the columns before it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from privacy_assets.compute.progress import advance
from privacy_assets.errors import ConfigError, did_you_mean, shown
from privacy_assets.generators.base import FittedGenerator, Training, read_arrays, write_arrays
from privacy_assets.generators.shadow_fits import CodedGenerator, Draw
from privacy_assets.generators.trees import Tree, moved, trees_of
from privacy_assets.settings import Tuple, declared
from privacy_assets.tables.coding import Coding
from privacy_assets.tables.column import DAY, Column, ranked
from privacy_assets.tables.schema import TableSchema
from privacy_assets.tables.table import Table


@declared
class SynthPop(CodedGenerator):
    """Sequential classification and regression trees; a value is drawn from the training rows of its leaf, and moved.

    The first column is a bootstrap draw. For each further column one tree is grown on the columns before it (Gini for
    categories and booleans, squared error for numbers, whole numbers and dates), and the value is copied from a row
    drawn uniformly from the leaf. ``min_leaf`` is the smallest number of training people in a leaf: where a person has
    several rows, no split leaves fewer people on a side. Without a subject, and on the coded cells of shadow sets, each
    row is a person. With ``smoothing`` numbers and times are moved inside their leaves, by at most the distance to the
    nearest fifth of its people, so that they are nobody's; values that ``min_leaf`` people of the column share, or a
    fifth of the leaf, stay, and so do the precision and the ends of the column, and columns of few different values.
    ``visit`` is the order of the columns, by default that of the table.

    Missing is a value like any other: of a number a first tree decides whether it is missing, a second its value.
    As a predictor a number is its rank (missing: mean rank and an indicator); a category is its place in an order by
    the target (Coppersmith et al. 1999), where categories of fewer than ``min_leaf`` rows share one place, so that
    columns with very many categories cost no more than others. Categories are those of the training rows: drop names
    and other identifiers first.
    """

    name = "synthpop"
    summary = "Sequential trees: each column is drawn from training rows that agree in the columns before it."

    min_leaf: int = Field(default=100, ge=1, description="training people of a leaf, at least")
    smoothing: bool = Field(default=True, description="whether numbers and times are moved inside their leaves")
    visit: Annotated[tuple[str, ...] | None, Tuple] = Field(
        default=None, description="columns in the order in which they are drawn; the table's without"
    )

    def overfitting_protection(self) -> str:
        """See :meth:`Generator.overfitting_protection`: the leaves, unless single people make one."""
        return f"every leaf holds rows of at least {self.min_leaf} training people" if self.min_leaf > 1 else ""

    def _fit(self, train: Table, training: Training) -> FittedGenerator:
        order = self._order(train.schema.names)
        places = [ranked([train[name]]) for name in order]
        values = {name: known for name, (_, known) in zip(order, places, strict=True)}
        levels = np.array([len(known) for known in values.values()], dtype=np.int64)
        codes = np.stack([ranks for (ranks,), _ in places]).astype(np.int32)
        codes = np.where(codes < 0, levels[:, None], codes).astype(np.int32)  # missing is the code after the last
        is_number = np.array([known.values is None for known in values.values()], dtype=np.bool_)
        people = training.people
        if people is not None and len(np.unique(people)) == len(people):
            people = None  # then rows are counted, which is quicker
        steps = []
        for place, name in enumerate(order):
            numbers = train[name].floats() if is_number[place] else np.zeros(len(train))
            rng = np.random.default_rng(np.random.SeedSequence(training.seed, spawn_key=(place,)))
            found = trees_of(codes, levels, is_number, numbers, place, self.min_leaf, rng, people, self.smoothing)
            steps.append(list(found))
            advance(training.progress, "growing trees: columns", place + 1, len(order))
        return FittedSynthPop(self, train.schema, order, values, steps)

    def drawer(self, cells: np.ndarray, coding: Coding) -> Draw:
        """See :meth:`CodedGenerator.drawer`. Nothing is shared but the ranks of the cells."""
        from privacy_assets.generators._tree_kernels import draw_codes

        names = coding.schema.names
        order = np.array([names.index(name) for name in self._order(names)])
        held = np.ascontiguousarray(cells[order], dtype=np.float64)
        ranks = np.stack([np.unique(row, return_inverse=True)[1].astype(np.int32) for row in held])
        is_number = coding.is_number[order]

        def draw(rows: np.ndarray, size: int, seed: int) -> np.ndarray:
            rng, known = np.random.default_rng(seed), []
            own, codes = held[:, rows], np.empty((len(order), len(rows)), dtype=np.int32)
            for column, everyone in enumerate(ranks[:, rows]):
                seen, first = np.unique(everyone, return_index=True)
                codes[column] = np.searchsorted(seen, everyone)
                known.append(own[column, first])  # ascending, missing at last
            levels = np.array([len(values) - int(np.isnan(values[-1])) for values in known])
            drawn, out = np.full((len(order), size), -1, dtype=np.int32), np.empty((len(order), size))
            for column, values in enumerate(known):
                moves = np.zeros(size)
                at = codes, levels, is_number, own[column], column
                for tree in trees_of(*at, self.min_leaf, rng, smoothing=self.smoothing):
                    draw_codes(tree, drawn[:column], drawn[column], moves, rng)
                cells = values[drawn[column]]
                if moves.any():
                    cells = coding.rounded(order[column], moved(cells, moves, values[0], values[levels[column] - 1]))
                out[order[column]] = cells
            return out

        return draw

    def _order(self, names: list[str]) -> list[str]:
        order = list(self.visit) if self.visit is not None else names
        for name in order:
            if name not in names:
                raise ConfigError(f"synthpop: visit names the unknown column {shown(name)}.{did_you_mean(name, names)}")
        if sorted(order) != sorted(names):
            raise ConfigError("synthpop: visit must name every column once.")
        return order

    def load(self, folder: Path, schema: TableSchema, manifest: Mapping[str, Any]) -> FittedGenerator:
        """See :meth:`Generator.load`."""
        arrays, texts = read_arrays(folder), manifest["texts"]
        values = {}
        for place, column in enumerate(schema.columns):
            if column.kind == "categorical":
                known = texts[str(place)]
                values[column.name] = Column.of_codes(column.name, column.kind, np.arange(len(known)), known)
            elif column.kind == "boolean":
                values[column.name] = Column.of_codes(column.name, column.kind, arrays[f"values.{place}"])
            else:
                values[column.name] = Column(column.name, column.kind, arrays[f"values.{place}"])
        steps = [
            [Tree(*(arrays[f"tree.{place}.{part}.{name}"] for name in Tree._fields)) for part in range(parts)]
            for place, parts in enumerate(manifest["trees"])
        ]
        return FittedSynthPop(self, schema, list(manifest["visit"]), values, steps)


class FittedSynthPop(FittedGenerator):
    """Trees in visit order. ``values`` holds each column's distinct training values; rows are handled as their codes.

    Code k is the k-th smallest value, and len(values) stands for missing. A step is one tree whose donors are codes,
    or two: the donors of the first say missing (code) or not (-1), those of the second are codes.
    """

    def __init__(
        self,
        generator: SynthPop,
        schema: TableSchema,
        order: list[str],
        values: Mapping[str, Column],
        steps: list[list[Tree]],
    ) -> None:
        self.generator, self.schema = generator, schema
        self.order, self.values, self.steps = order, values, steps

    def _sample(self, rows: int, seed: int) -> Table:
        from privacy_assets.generators._tree_kernels import draw_codes

        codes, columns = np.full((len(self.order), rows), -1, dtype=np.int32), {}
        for place, (name, trees) in enumerate(zip(self.order, self.steps, strict=True)):
            rng, moves = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(place,))), np.zeros(rows)
            for tree in trees:
                draw_codes(tree, codes[:place], codes[place], moves, rng)
            known = self.values[name]
            columns[name] = _moved(known.at(np.where(codes[place] == len(known), -1, codes[place])), moves, known)
        return Table.of_columns(self.schema, columns)

    def _save(self, folder: Path) -> dict[str, Any]:
        arrays: dict[str, np.ndarray] = {}
        texts: dict[str, list[str]] = {}
        for place, column in enumerate(self.schema.columns):
            if column.kind == "categorical":
                texts[str(place)] = self.values[column.name].objects()
            else:
                arrays[f"values.{place}"] = self.values[column.name].cells
        for place, trees in enumerate(self.steps):
            for part, tree in enumerate(trees):
                arrays |= {f"tree.{place}.{part}.{name}": array for name, array in tree._asdict().items()}
        write_arrays(folder, arrays)
        return {"visit": self.order, "trees": [len(trees) for trees in self.steps], "texts": texts}


def _moved(column: Column, moves: np.ndarray, known: Column) -> Column:
    """Numbers or times moved by ``moves`` (n,), times in days, between the ends of the ``known`` values."""
    at = np.flatnonzero(moves)
    if len(at) == 0:
        return column
    own, ends = column.take(at).floats(), known.floats()[[0, -1]]
    cells = column.cells.copy()
    by = moved(own, moves[at], *ends.tolist()) - own
    if column.kind == "numeric":
        cells[at] = own + by
    else:
        cells[at] += np.rint(by * (DAY if column.kind == "datetime" else 1)).astype(np.int64)
    return replace(column, cells=cells)
