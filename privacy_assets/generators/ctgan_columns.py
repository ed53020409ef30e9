"""What the ctgan library is given of a table, and how the outputs of its networks become cells again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from privacy_assets.errors import InputError
from privacy_assets.tables.coding import Coding

NUMBER, CODE, MISSING = range(3)
_MOST_CELLS = 2**28  # of the matrix of ones and zeros that the library builds; it holds three of them, 2 GiB each
_MOST_COMPONENTS = 10
_FINE = 1e4  # numbers are given as multiples of a standard deviation over this


@dataclass(frozen=True, eq=False)
class Given:
    """The columns (C) that the library learns from the cells (F, n) of a :class:`Coding`.

    ``parts`` int64 (C, 2): place in the schema, and what is given of it: the NUMBER, the CODE of a category, or whether
    it is MISSING (1) or not (0), for numbers that miss some values. A column that holds one cell throughout is not
    given: it is repeated from ``base`` (F,). ``scales`` (F, 5) are size, centre, deviation, low and high of a number;
    centre and deviation (over 10,000) are those of the numbers over their size. The library is given distances from the
    centre in such deviations, because no component of its mixtures is narrower than 0.001, whatever the unit of the
    numbers. A missing number is given as 0. ``whole`` bool (F,): dates without a time of day.
    """

    base: np.ndarray
    parts: np.ndarray
    scales: np.ndarray
    whole: np.ndarray

    @classmethod
    def of_cells(cls, cells: np.ndarray, coding: Coding) -> Given:
        """Look at the cells (F, n), n >= 1. Raises InputError for more categories than memory holds."""
        base, parts, scales = cells[:, 0].copy(), [], np.ones((len(cells), 5))
        whole = np.zeros(len(cells), dtype=np.bool_)
        for place, row in enumerate(cells):
            known = row[~np.isnan(row)]
            if known.size == 0:
                continue
            base[place] = known[0]
            if known.min() < known.max():
                parts.append((place, NUMBER if coding.is_number[place] else CODE))
                scales[place] = _scale(known)
            if known.size < row.size:
                parts.append((place, MISSING))
            whole[place] = coding.schema.columns[place].kind == "datetime" and bool((known == np.floor(known)).all())
        given = cls(base, np.array(parts, dtype=np.int64).reshape(-1, 2), scales, whole)
        given._check_width(cells, coding)
        return given

    def _check_width(self, cells: np.ndarray, coding: Coding) -> None:
        widths = [len(np.unique(cells[at])) if part == CODE else 1 + _MOST_COMPONENTS for at, part in self.parts]
        if sum(widths) * cells.shape[1] > _MOST_CELLS:
            widest = int(self.parts[int(np.argmax(widths)), 0])
            fix = "drop it or make it coarser, or take generator synthpop"
            problem = (
                f"{max(widths)} different values in {cells.shape[1]} rows are more than the ctgan library can hold"
            )
            raise InputError(problem, where="train", column=coding.schema.names[widest], fix=fix)

    def table(self, cells: np.ndarray) -> tuple[pd.DataFrame, list[str]]:
        """What the library fits: one column for each part, named by its number, and the names of those of codes."""
        columns: dict[str, np.ndarray] = {}
        for at, (place, part) in enumerate(self.parts):
            row, (size, centre, deviation, _, _) = cells[place], self.scales[place]
            if part == NUMBER:
                columns[str(at)] = np.where(np.isnan(row), 0.0, (row / size - centre) / deviation)
            else:
                columns[str(at)] = (row if part == CODE else np.isnan(row)).astype(np.int64)
        return pd.DataFrame(columns), [str(at) for at in np.flatnonzero(self.parts[:, 1] != NUMBER)]

    def cells(self, values: np.ndarray) -> np.ndarray:
        """Inverse of :meth:`table` for values float64 (C, n): cells (F, n), numbers within the range of training."""
        out = np.repeat(self.base[:, np.newaxis], values.shape[1], axis=1)
        for (place, part), row in zip(self.parts, values, strict=True):
            size, centre, deviation, low, high = self.scales[place]
            if part == NUMBER:
                numbers = np.clip(np.clip(row * deviation + centre, -1, 1) * size, low, high)
                out[place] = np.rint(numbers) if self.whole[place] else numbers
            elif part == CODE:
                out[place] = row
            else:
                out[place][row == 1] = np.nan
        return out


@dataclass(frozen=True, eq=False)
class Span:
    """Where one given column stands among the outputs of a network.

    A category has one output for each of its ``values`` (k,), codes, and empty ``deviations``. A number has one that
    says where it lies in a component of its mixture, and one for each component: means ``values`` (k,) and standard
    ``deviations`` (k,).
    """

    values: np.ndarray
    deviations: np.ndarray

    @property
    def is_number(self) -> bool:
        """True for a mixture."""
        return len(self.deviations) > 0

    @property
    def width(self) -> int:
        """Number of outputs."""
        return len(self.values) + self.is_number

    def decode(self, choice: np.ndarray, within: np.ndarray) -> np.ndarray:
        """Values float64 (n,) of the most likely place ``choice`` int64 (n,), and ``within`` its component (n,)."""
        if not self.is_number:
            return self.values[choice].astype(np.float64)
        return np.clip(within, -1, 1) * 4 * self.deviations[choice] + self.values[choice]


def spans_of(transformer: Any) -> tuple[Span, ...]:
    """Spans of a fitted ``DataTransformer`` of the library, in the order of its columns."""
    spans = []
    for column in transformer._column_transform_info_list:
        if column.column_type == "discrete":
            spans.append(Span(np.array(column.transform.dummies, dtype=np.float64), np.empty(0)))
            continue
        mixture, valid = column.transform._bgm_transformer, column.transform.valid_component_indicator
        means, variances = mixture.means_.reshape(-1), mixture.covariances_.reshape(-1)
        spans.append(Span(means[valid], np.sqrt(variances)[valid]))
    return tuple(spans)


def _scale(known: np.ndarray) -> tuple[float, ...]:
    """Numbers at the ends of float64 are divided by the largest one first, so that no square overflows."""
    size = float(np.abs(known).max())
    unit = known / size
    return size, float(unit.mean()), float(unit.std() / _FINE), float(known.min()), float(known.max())
