"""REaLTabFormer (Solatorio and Dupriez 2023): a small GPT-2 that generates rows, run by its library
in a program.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pydantic import Field

from privacy_assets.errors import ConfigError, InputError
from privacy_assets.generators.base import FittedGenerator, Training
from privacy_assets.generators.programs import (
    HISTORY,
    MODEL,
    THREADS,
    FittedModel,
    Model,
    ProgramGenerator,
    Timeout,
    read_history,
)
from privacy_assets.infra.settings import declared
from privacy_assets.tables.column import Column
from privacy_assets.tables.encoding import MatrixCoding
from privacy_assets.tables.precision import UNITS
from privacy_assets.tables.schema import ColumnSchema, TableSchema
from privacy_assets.tables.table import Table

WORKER = Path(__file__).with_name("_realtabformer_worker.py")
INSTALL = (
    "python -m venv rtf && "
    "rtf/bin/pip install 'realtabformer>=0.2.4,<0.3' 'transformers<5' 'datasets<5' 'pandas<3'"
    " pyarrow"
)

_MAX_EXACT_DIGITS = 9  # of the range of a number whose values are exact
_SHORT_DIGITS = 6  # of the range of other numbers


@dataclass(frozen=True, slots=True)
class Grid:
    """Grid of a number or time: ``(low + k) * step / parts``, k = 0, 1, ...

    Attributes:
        low: Smallest value, in steps.
        step: Numerator of the distance of two values.
        parts: Denominator of the distance.
        nullable: True if values are missing.
    """

    low: int
    step: float
    parts: float
    nullable: bool

    @classmethod
    def fit(cls, column: ColumnSchema, cells: np.ndarray) -> Grid | None:
        """Return the grid of the column's precision, coarser for numbers with many digits.

        Args:
            column: Schema of the column, a number or time.
            cells: Cells, float64 of shape (n,).

        Returns:
            The grid, or None if the column has no values.
        """
        values = cells[~np.isnan(cells)]
        if len(values) == 0:
            return None
        step = 1.0
        parts = 1.0
        if column.kind == "datetime":
            unit = str(column.precision or "microsecond")
            step = float(UNITS[unit])
            parts = float(UNITS["day"])
        elif column.kind == "numeric":
            decimals = _decimals(column, values)
            step = 10.0 ** max(-decimals, 0)
            parts = 10.0 ** max(decimals, 0)
        low = int(np.rint(values * parts / step).min())
        return cls(low, step, parts, nullable=len(values) < len(cells))

    def code(self, cells: np.ndarray) -> np.ndarray:
        """Return k of each cell.

        Args:
            cells: Shape (n,), NaN for missing.

        Returns:
            float64 of shape (n,), NaN for missing.
        """
        return np.asarray(np.rint(cells * self.parts / self.step) - self.low)

    def cells(self, codes: np.ndarray) -> np.ndarray:
        """Convert codes to cells.

        Args:
            codes: Output of :meth:`code`.
        """
        return np.asarray((codes + self.low) * self.step / self.parts)


@dataclass(frozen=True, eq=False)
class DigitCoding:
    """Columns ``c0``, ``c1``, ... in schema order: numbers as int64 from 0, or strings ``v<k>``.

    The library splits integers into digits itself. Its coding of other values loses information: it
    rounds numbers to four decimals, fails for numbers with nine digits before the point, cannot
    decode times with missing values, reads the category "NaN" as missing and cuts categories at
    "___".

    A number with missing values is preceded by a column ``c<i>m`` that is ``v1`` for missing, and
    is 0 there. A column without grid (None) is a category of :class:`MatrixCoding`, with a code for
    missing; this includes numbers without any value. Numbers keep nine digits if they have no more,
    otherwise six digits of their range. Integers and times are exact up to 2**53.
    """

    coding: MatrixCoding
    grids: tuple[Grid | None, ...]

    @classmethod
    def fit(cls, table: Table) -> DigitCoding:
        """Fit to the values of a table."""
        coding = MatrixCoding.fit([table], table.schema)
        grids: list[Grid | None] = []
        for i, cells in enumerate(coding.code(table)):
            if coding.is_number[i]:
                grids.append(Grid.fit(table.schema.columns[i], cells))
            else:
                grids.append(None)
        return cls(coding, tuple(grids))

    def code(self, table: Table) -> pd.DataFrame:
        """Encode a table. Unknown categories are encoded as missing."""
        columns: dict[str, Any] = {}
        for i, cells in enumerate(self.coding.code(table)):
            grid = self.grids[i]
            if grid is None:
                codes = np.minimum(np.nan_to_num(cells), self._missing_code(i)).astype(np.int64)
                columns[f"c{i}"] = pd.Series([f"v{code}" for code in codes], dtype=object)
                continue
            if grid.nullable:
                marks = np.where(np.isnan(cells), "v1", "v0")
                columns[f"c{i}m"] = pd.Series(marks, dtype=object)
            columns[f"c{i}"] = pd.Series(np.nan_to_num(grid.code(cells)).astype(np.int64))
        return pd.DataFrame(columns)

    def table(self, frame: pd.DataFrame, *, where: str) -> Table:
        """Decode a frame from :meth:`code`.

        Args:
            frame: Coded rows.
            where: Name of the rows in messages.

        Raises:
            InputError: If it has other columns or invalid codes.
        """
        coded = Table.of(frame, self._schema(), where=where)
        cells = np.empty((len(self.grids), len(coded)))
        for i, grid in enumerate(self.grids):
            if grid is None:
                codes = _codes(coded[f"c{i}"], self._missing_code(i), where)
                # a number without grid has no values
                cells[i] = np.nan if self.coding.is_number[i] else codes
                continue
            cells[i] = grid.cells(coded[f"c{i}"].floats())
            if grid.nullable:
                marks = _codes(coded[f"c{i}m"], 1, where)
                cells[i, marks == 1] = np.nan
        return self.coding.table(cells)

    def to_json(self) -> dict[str, Any]:
        """Return values of the private table as a JSON-compatible mapping."""
        grids: list[list[Any] | None] = []
        for grid in self.grids:
            if grid is None:
                grids.append(None)
            else:
                grids.append(list(astuple(grid)))
        return {"values": self.coding.plain_values(), "grids": grids}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], schema: TableSchema) -> DigitCoding:
        """Create a coding.

        Args:
            data: Output of :meth:`to_json`.
            schema: Schema of the table.
        """
        grids: list[Grid | None] = []
        for numbers in data["grids"]:
            if numbers is None:
                grids.append(None)
            else:
                grids.append(Grid(*numbers))
        return cls(MatrixCoding.of_plain(schema, data["values"]), tuple(grids))

    def _missing_code(self, i: int) -> int:
        """Return the code of missing cells of a column without grid."""
        return len(self.coding.values[i] or ())

    def _schema(self) -> TableSchema:
        """Return the schema of coded tables."""
        columns = []
        for i, grid in enumerate(self.grids):
            if grid is None:
                columns.append(ColumnSchema(f"c{i}", "categorical", False, "object"))
                continue
            if grid.nullable:
                columns.append(ColumnSchema(f"c{i}m", "categorical", False, "object"))
            columns.append(ColumnSchema(f"c{i}", "integer", False, "object"))
        return TableSchema(tuple(columns))


def _codes(column: Column, last: int, where: str) -> np.ndarray:
    """Return the numbers 0..last of strings ``v<k>`` as float64. Raises InputError for others."""
    code_of_text = {f"v{code}": float(code) for code in range(last + 1)}
    codes = np.array([code_of_text.get(text, np.nan) for text in column.objects()])
    invalid_rows = np.flatnonzero(np.isnan(codes))
    if len(invalid_rows):
        row = int(invalid_rows[0])
        raise InputError("a code is not known", where=where, column=column.name, row=row)
    return codes


def _decimals(column: ColumnSchema, cells: np.ndarray) -> int:
    """Return the column's decimals if the range then has at most nine digits, otherwise those for
    six digits.
    """
    size = float(np.ptp(cells)) or float(np.abs(cells).max()) or 1.0
    n_digits = math.ceil(math.log10(size))
    precision = column.precision
    if isinstance(precision, int) and n_digits + precision <= _MAX_EXACT_DIGITS:
        return precision
    return _SHORT_DIGITS - n_digits


@declared
class RealTabFormer(ProgramGenerator):
    """REaLTabFormer, a GPT-2 that generates rows as token sequences.

    The library requires older dependencies than this package, so it usually runs in a separate
    environment. With ``patience`` > 0, training stops when the loss on validation subjects has not
    improved for ``patience`` epochs, and the best epoch is kept. With ``patience`` 0, all epochs
    run and the last one is kept. Rows are drawn on the CPU, without network access.

    Attributes:
        python: Python interpreter of the separate environment. None: the current one.
        epochs: Maximum number of passes over the rows.
        batch_size: Rows per forward pass. As in the library, a training step adds up the gradients
            of four passes.
        layers: Number of transformer layers.
        width: Width of the layers, a multiple of 64, with one attention head per 64.
        dropout: Share of dropped units.
        validation: Share of subjects in the validation set.
        patience: Number of epochs without improvement after which training stops. 0: no early
            stopping.
        n_critic: If positive, the library's own stopping rule replaces validation: it compares the
            distances of synthetic and real rows every ``n_critic`` epochs.
        overfit: Factor f in [1, 2] for deliberate overfitting (Palacios 4.2, 5.2). After a first
            training, a second one without dropout and early stopping continues until its validation
            loss exceeds its own minimum and reaches f L*, for at most 100 epochs, where L* is the
            least validation loss of both trainings. The last "overfitting_ratio" in the history is
            the factor reached. 1: the first training only. Never publish the output. None: off.
        sample_batch: Number of rows drawn at a time.
        timeout: Maximum number of seconds per run.
        log: Private file for the output and failure reasons. None: they are discarded.

    Raises:
        ConfigError: If ``overfit`` is set without validation and early stopping, or the library is
            not installed and ``python`` is None.
    """

    name = "realtabformer"
    summary = (
        "REaLTabFormer: a GPT-2 that generates rows as tokens, trained by its library in a"
        " separate environment."
    )
    license = "MIT"
    modules = ("torch",)
    extra = "realtabformer"
    separate_environment = ("realtabformer", INSTALL)

    python: str | None = None
    epochs: int = Field(default=100, ge=1)
    batch_size: int = Field(default=8, ge=1)
    layers: int = Field(default=6, ge=1)
    width: int = Field(default=768, ge=64, multiple_of=64)
    dropout: float = Field(default=0.1, ge=0, lt=1)
    validation: float = Field(default=0.1, ge=0, lt=1)
    patience: int = Field(default=5, ge=0)
    n_critic: int = Field(default=0, ge=0)
    overfit: float | None = Field(default=None, ge=1, le=2)
    sample_batch: int = Field(default=128, ge=1)
    timeout: Timeout = 86_400.0
    log: str | None = None

    def __post_init__(self) -> None:
        if self.overfit is not None and (self.n_critic or not self.patience or not self.validation):
            raise ConfigError(
                f"{self.name}: overfit needs validation and patience above 0, and n_critic 0."
            )
        if self.python is None and find_spec("realtabformer") is None:
            fix = f"{INSTALL}; then set python to rtf/bin/python"
            raise ConfigError(
                f"{self.name} is not installed. Fix: create a separate environment: {fix}."
            )

    @property
    def env_variables(self) -> tuple[str, ...]:
        """See :attr:`ProgramGenerator.env_variables`."""
        return tuple(name for name in THREADS if name in os.environ)

    @property
    def sampler(self) -> Sequence[str]:
        """See :attr:`ProgramGenerator.sampler`."""
        return [
            *self._worker("sample"),
            "{model}",
            "{out}",
            "{rows}",
            "{seed}",
            str(self.sample_batch),
        ]

    def overfitting_protection(self) -> dict[str, float]:
        """Implement :meth:`Generator.overfitting_protection`."""
        if self.overfit is not None and self.overfit > 1:
            return {}
        protection: dict[str, float] = {}
        if self.n_critic:
            protection["n_critic"] = self.n_critic
        elif self.patience and self.validation:
            protection["patience"] = self.patience
        if self.dropout:
            protection["dropout"] = self.dropout
        return protection

    def _worker(self, command: str) -> list[str]:
        # -I: keep the script's folder off the path, where modules of this package would shadow
        # others of the same name.
        return [self.python or sys.executable, "-I", str(WORKER), command]

    def _fit(self, train: Table, training: Training) -> FittedGenerator:
        from privacy_assets.networks.training import held_out

        coding = DigitCoding.fit(train)
        is_validation = np.zeros(len(train), dtype=bool)
        if self.validation and not self.n_critic:
            is_validation = held_out(
                len(train), self.validation, training.subject_codes, training.seed
            )
        # validation rows last
        order = np.argsort(is_validation, kind="stable")
        table = coding.code(train).iloc[order].reset_index(drop=True)
        task = json.dumps({**self._worker_settings(), "held": int(is_validation.sum())})
        arguments = [*self._worker("fit"), "{train}", "{model}", "{seed}", "{device}", task]
        model = self.trained(arguments, table, training)
        fitted = FittedRealTabFormer(self, model, coding)
        with self.private_failures(arguments[0]):
            fitted.history = read_history(fitted.model.path / HISTORY)
        return fitted

    def _worker_settings(self) -> dict[str, Any]:
        settings = asdict(self)
        for name in ("python", "log", "timeout"):
            del settings[name]
        return settings

    def load(
        self, folder: Path, schema: TableSchema, manifest: Mapping[str, Any]
    ) -> FittedGenerator:
        """Implement :meth:`Generator.load`."""
        coding = DigitCoding.from_json(manifest["columns"], schema)
        return FittedRealTabFormer(self, Model(folder / MODEL), coding)


class FittedRealTabFormer(FittedModel):
    """The trained network with the coding of the columns."""

    def __init__(self, generator: RealTabFormer, model: Model, coding: DigitCoding) -> None:
        super().__init__(generator, coding.coding.schema, model)
        self.coding = coding

    def _table(self, written: pd.DataFrame) -> Table:
        return self.coding.table(written, where=self.where)

    def _save(self, folder: Path) -> dict[str, Any]:
        return {**super()._save(folder), "columns": self.coding.to_json()}
