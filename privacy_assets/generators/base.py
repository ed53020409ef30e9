"""Base classes of generators and fitted generators, and their file format."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from privacy_assets.errors import InputError, seed_of
from privacy_assets.infra.files import private_folder
from privacy_assets.infra.host import isolated
from privacy_assets.infra.progress import Progress, silent
from privacy_assets.tables.column import Column
from privacy_assets.tables.conversion import column_of
from privacy_assets.tables.encoding import MatrixCoding
from privacy_assets.tables.schema import TableSchema
from privacy_assets.tables.table import Table

MANIFEST = "generator.json"
ARRAYS = "arrays.npz"
TRAIN = "train.parquet"


@dataclass(frozen=True, slots=True)
class PrivacyBudget:
    """Differential privacy budget spent by fitting and sampling.

    Attributes:
        epsilon: None: no formal guarantee.
        delta: Delta of the guarantee.
        outside_guarantee: What was read from private rows outside of the guarantee, without values.
        accountant: Method by which epsilon was computed.
        covers: What the guarantee protects.
        known: False for external code, which may provide protections that are not declared.
    """

    epsilon: float | None = None
    delta: float | None = None
    outside_guarantee: tuple[str, ...] = ()
    accountant: str = ""
    covers: str = ""
    known: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "outside_guarantee", tuple(self.outside_guarantee))

    def __str__(self) -> str:
        if self.epsilon is None:
            return "none (no formal guarantee)" if self.known else "unknown (custom code)"
        text = f"epsilon {self.epsilon:g}, delta {self.delta or 0:g}"
        if self.covers:
            text += f" for {self.covers}"
        if self.accountant:
            text += f" ({self.accountant})"
        if self.outside_guarantee:
            text += f"; not covered: {', '.join(self.outside_guarantee)}"
        return text


@dataclass(frozen=True, slots=True)
class Training:
    """Arguments of :meth:`Generator.fit` except the rows.

    Attributes:
        seed: Non-negative seed.
        device: Torch device.
        progress: Called with messages without cell values.
        checkpoint: Folder for the state of long training, or None.
        subject_codes: Subject of each row, int64 of shape (n,). None: each row is a subject.
    """

    seed: int
    device: str = "cpu"
    progress: Progress = silent
    checkpoint: Path | None = None
    subject_codes: np.ndarray | None = None


class Generator(ABC):
    """Base class of generators.

    Subclasses are frozen dataclasses whose fields are the settings, each with a default.

    Attributes:
        name: File name and registry key.
        summary: One sentence for users.
        license: License of the code that does the work.
        modules: Modules that must be importable.
        extra: Extra of this package that installs them. None: installed with the package.
        repeatable: True if the same seed gives the same rows. False if this depends on external
            code.
        secret_seed: True if protective noise derives from the seed of fitting, which must then be
            secret.
        creates_values: True if values need not come from real rows, so that the generator may
            create generated columns. For other generators, numbers of closed columns are replaced
            by the nearest allowed value.
        separate_environment: Module that may be installed in a separate environment, and the
            command that creates it.
    """

    part: ClassVar[str] = "generator"
    name: ClassVar[str]
    summary: ClassVar[str]
    license: ClassVar[str] = "Apache-2.0"
    modules: ClassVar[tuple[str, ...]] = ()
    extra: ClassVar[str | None] = None
    repeatable: ClassVar[bool] = True
    secret_seed: ClassVar[bool] = False
    creates_values: ClassVar[bool] = False
    separate_environment: ClassVar[tuple[str, str] | None] = None

    @property
    def bounded_columns(self) -> tuple[str, ...]:
        """Columns of numbers with public bounds, if the generator states an epsilon. The threshold
        rule keeps them.
        """
        return ()

    @isolated()
    def fit(
        self,
        train: Table,
        *,
        seed: int | None,
        device: str = "cpu",
        progress: Progress = silent,
        checkpoint: Path | None = None,
        subject_codes: np.ndarray | None = None,
    ) -> FittedGenerator:
        """Fit to a table without subject column.

        Args:
            train: Training rows.
            seed: Non-negative seed. The same seed gives the same generator. None: draw one.
            device: Torch device.
            progress: Called with messages without cell values.
            checkpoint: Folder for the state of long training. An interrupted run resumes from it,
                with the same result.
            subject_codes: Subject of each row, int64 of shape (n,), used for early stopping on
                subjects not trained on and for the minimum number of subjects in tree leaves. None:
                each row is a subject.

        Raises:
            InputError: If there are no rows.
        """
        if len(train) == 0:
            raise InputError(
                "a generator cannot be fitted without rows", where="train", fix="pass more rows"
            )
        fitted = self._fit(
            train, Training(seed_of(seed), device, progress, checkpoint, subject_codes)
        )
        if not self.creates_values:
            fitted.keep_to_levels(train)
        return fitted

    @abstractmethod
    def _fit(self, train: Table, training: Training) -> FittedGenerator:
        """Fit to validated input."""

    @abstractmethod
    def load(
        self, folder: Path, schema: TableSchema, manifest: Mapping[str, Any]
    ) -> FittedGenerator:
        """Load a generator written by :meth:`FittedGenerator.save`.

        ``load_generator`` converts errors caused by damaged files to InputError.

        Args:
            folder: Folder of the files.
            schema: Schema of the training table.
            manifest: Content of the JSON file.
        """

    def settings(self) -> dict[str, Any]:
        """Return the settings as a JSON-compatible mapping."""
        return asdict(self) if is_dataclass(self) else {}

    def overfitting_protection(self) -> dict[str, float] | None:
        """Return the settings that protect against memorizing rows, with their values.

        Their presence does not imply that they suffice, which is measured.

        Returns:
            Values by setting, such as ``{"min_samples_leaf": 100}``. Empty: no protection. None:
            unknown.
        """
        return None


class Draw(Protocol):
    """Fits a generator to rows and samples, in one compiled call."""

    def __call__(self, rows: np.ndarray, size: int, seed: int) -> np.ndarray:
        """Fit to rows and draw new ones.

        Must be deterministic, release the interpreter lock and be thread-safe.

        Args:
            rows: Positions of the training rows among the cells, int64; repeats are allowed.
            size: Number of new rows.
            seed: Seed of fitting and drawing.

        Returns:
            Cells of the new rows, float64 of shape (F, size).
        """


class CodedGenerator(Generator):
    """A generator that can also be fitted and sampled on coded cells, with the same model as
    :meth:`fit`.
    """

    @abstractmethod
    def drawer(self, cells: np.ndarray, coding: MatrixCoding) -> Draw:
        """Prepare data shared by all training sets: ranks, bins, domains.

        Bins and domains come from all of ``cells``; the papers take them from public metadata.

        Args:
            cells: Cells of all rows, float64 of shape (F, N).
            coding: Coding of the cells.

        Returns:
            A function that fits to some of the rows and draws new ones.
        """


class FittedGenerator(ABC):
    """Base class of fitted generators. They contain private values, so objects and files must be
    protected accordingly.

    Attributes:
        generator: Generator with its settings.
        schema: Schema of the training table.
        privacy: Privacy budget spent.
        history: Training curve, one mapping of numbers per epoch ("epoch", then losses), or empty.
        levels: Allowed numbers of closed columns.
    """

    generator: Generator
    schema: TableSchema
    privacy: PrivacyBudget = PrivacyBudget()
    history: tuple[Mapping[str, float], ...] = ()
    levels: Mapping[str, Sequence[float]] = MappingProxyType({})

    @isolated()
    def sample(self, n_rows: int, *, seed: int | None) -> Table:
        """Draw synthetic rows, with numbers and times at the precision of the columns.

        Args:
            n_rows: Number of rows, at least 1.
            seed: The same seed gives the same rows. None: draw one.

        Raises:
            InputError: If ``n_rows`` is below 1, or the generator returns another number of rows.
        """
        if n_rows < 1:
            raise InputError(f"{n_rows} synthetic rows were requested", fix="request at least one")
        return self._checked(self._sample(n_rows, seed_of(seed)), n_rows)

    def _checked(self, table: Table, n_rows: int) -> Table:
        """Convert to the schema and round to the columns' precision.

        Numbers of closed columns are replaced by the nearest allowed value.

        Raises:
            InputError: If the table does not match the schema or does not have ``n_rows`` rows.
        """
        table = table.as_synthetic(self.schema, where=self.where)
        if len(table) != n_rows:
            problem = "the number of rows differs from the requested one"
            raise InputError(problem, where=self.where, fix=f"return {n_rows} rows")
        columns = [_nearest(table[name], levels) for name, levels in self.levels.items()]
        return table.with_columns(*columns)

    @property
    def where(self) -> str:
        """Name of its output in messages."""
        return f"the output of generator {self.generator.name}"

    def keep_to_levels(self, train: Table) -> None:
        """Replace sampled numbers of closed columns by the nearest allowed value from now on.

        Columns whose values are read from ``train`` are recorded as outside of a differential
        privacy guarantee.

        Args:
            train: Training rows, which provide the allowed values of columns without declared
                domain.
        """
        from_schema: dict[str, list[float]] = {}
        from_rows: dict[str, list[float]] = {}
        for column in self.schema.columns:
            if column.role != "closed" or column.kind not in ("integer", "numeric"):
                continue
            if column.allowed_values:
                allowed = pd.Series(list(column.allowed_values), dtype=object)
                values = column_of(allowed, column, "allowed_values")
                from_schema[column.name] = values.distinct().cells.tolist()
            else:
                from_rows[column.name] = train[column.name].distinct().cells.tolist()
        self.levels = from_schema | from_rows
        if self.privacy.epsilon is None:
            return
        outside = list(self.privacy.outside_guarantee)
        for name in from_rows:
            if f"range or few values of {name}" not in self.privacy.outside_guarantee:
                outside.append(f"few values of {name}")
        self.privacy = replace(self.privacy, outside_guarantee=tuple(outside))

    def described(self) -> dict[str, Any]:
        """Return "name", "settings", "overfitting" protection and "privacy" budget as plain
        values.
        """
        return {
            "name": self.generator.name,
            "settings": self.generator.settings(),
            "overfitting": self.generator.overfitting_protection(),
            "privacy": asdict(self.privacy),
        }

    @abstractmethod
    def _sample(self, n_rows: int, seed: int) -> Table:
        """Draw rows; :meth:`sample` validates and rounds them."""

    def save(self, folder: str | Path) -> None:
        """Write the fitted generator as JSON, npz and Parquet, without pickle.

        Args:
            folder: Target folder, created if needed with access for the current user only.
        """
        target = private_folder(Path(folder))
        manifest = {
            "name": self.generator.name,
            "settings": self.generator.settings(),
            "schema": self.schema.to_json(),
            "privacy": asdict(self.privacy),
            "history": [dict(epoch) for epoch in self.history],
            "levels": dict(self.levels),
            **self._save(target),
        }
        (target / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")

    @abstractmethod
    def _save(self, folder: Path) -> dict[str, Any]:
        """Write arrays and tables, and return additional entries of the manifest."""


def _nearest(numbers: Column, levels: Sequence[float]) -> Column:
    """Replace each number by the nearest of the sorted ``levels``; missing values are kept."""
    if not levels:
        return numbers
    values = np.asarray(levels, dtype=np.float64)
    middles = (values[1:] + values[:-1]) / 2
    nearest = values[np.searchsorted(middles, numbers.floats())]
    nearest = nearest.astype(numbers.cells.dtype)
    return replace(numbers, cells=np.where(numbers.missing, numbers.cells, nearest))


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """Read a manifest.

    Args:
        folder: Folder of a saved generator.

    Raises:
        InputError: If there is no valid manifest.
    """
    path = Path(folder) / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(manifest, dict):
            raise TypeError
    except (OSError, ValueError, TypeError) as error:
        problem = f"no fitted generator can be read ({type(error).__name__})"
        fix = "pass the folder of a saved generator"
        raise InputError(problem, where=str(path), fix=fix) from None
    return manifest


def write_arrays(folder: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays to a file.

    Args:
        folder: Folder of the manifest.
        arrays: Arrays by name.
    """
    np.savez_compressed(folder / ARRAYS, **arrays)  # type: ignore[arg-type]


def read_arrays(folder: Path) -> dict[str, np.ndarray]:
    """Read arrays written by :func:`write_arrays`."""
    with np.load(folder / ARRAYS, allow_pickle=False) as stored:
        return dict(stored)


def write_table(frame: pd.DataFrame, folder: Path) -> Path:
    """Write a training table as Parquet.

    Args:
        frame: Training rows.
        folder: Folder of the manifest.

    Returns:
        Path of the file.
    """
    path = folder / TRAIN
    pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), path)
    return path


def read_train(folder: Path, schema: TableSchema) -> Table:
    """Read a training table.

    Args:
        folder: Folder passed to :func:`write_table`.
        schema: Schema of the table.
    """
    path = folder / TRAIN
    frame = pq.ParquetFile(path).read().to_pandas()
    return Table.of(frame, schema, where=str(path))
