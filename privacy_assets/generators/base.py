"""The one form of a generator, and of what it becomes once it is fitted."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from privacy_assets.compute.progress import Progress, silent
from privacy_assets.errors import InputError
from privacy_assets.tables.column import Column
from privacy_assets.tables.conversion import column_of
from privacy_assets.tables.schema import TableSchema
from privacy_assets.tables.table import Table

MANIFEST = "generator.json"
ARRAYS = "arrays.npz"
TRAIN = "train.parquet"


@dataclass(frozen=True, slots=True)
class PrivacyBudget:
    """Differential privacy that fitting and sampling spent. ``epsilon`` None: no formal guarantee at all.

    ``accountant`` is how epsilon was computed, ``covers`` what it is about, and ``outside_guarantee`` names, without
    values, what was read from the private rows outside the guarantee. ``known`` False: somebody else's code does the
    work, and may protect rows in ways that nobody stated here.
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
            return "none (no formal guarantee)" if self.known else "none known (code of your own)"
        covered = f" for {self.covers}" if self.covers else ""
        counted = f" ({self.accountant})" if self.accountant else ""
        besides = f"; outside of it: {', '.join(self.outside_guarantee)}" if self.outside_guarantee else ""
        return f"epsilon {self.epsilon:g}, delta {self.delta or 0:g}{covered}{counted}{besides}"


@dataclass(frozen=True, slots=True)
class Training:
    """How a generator is fitted: what :meth:`Generator.fit` was given beside the rows."""

    seed: int
    device: str = "cpu"
    progress: Progress = silent
    checkpoint: Path | None = None
    people: np.ndarray | None = None


class Generator(ABC):
    """A generator: subclass it as a frozen dataclass whose fields are the settings, each with a default.

    ``name`` is file name and registry key. ``modules`` must be importable to run it and come with ``extra`` (None: with
    the package itself); ``licence`` is that of the code that does the work. ``repeatable``: the same seed twice gives
    the same rows; False where that is up to somebody else's code. ``secret_seed``: noise that protects people is made
    from the seed of fitting, which nobody else must know or guess. ``invents``: its values need not be those of real
    rows, so that it may make generated columns; what all others make of a closed column of numbers is moved to the
    nearest that may stand there. ``apart`` names a module that may be installed in an environment of its own instead,
    and the command for that.
    """

    part: ClassVar[str] = "generator"
    name: ClassVar[str]
    summary: ClassVar[str]
    licence: ClassVar[str] = "Apache-2.0"
    modules: ClassVar[tuple[str, ...]] = ()
    extra: ClassVar[str | None] = None
    repeatable: ClassVar[bool] = True
    secret_seed: ClassVar[bool] = False
    invents: ClassVar[bool] = False
    apart: ClassVar[tuple[str, str] | None] = None

    def fit(
        self,
        train: Table,
        *,
        seed: int,
        device: str = "cpu",
        progress: Progress = silent,
        checkpoint: Path | None = None,
        people: np.ndarray | None = None,
    ) -> FittedGenerator:
        """Fit to ``train``, which has no subject column.

        ``seed`` >= 0: the same seed gives the same generator. ``device`` is a torch device name, ``progress`` is told
        what happens in words without values. ``checkpoint`` is a folder where long training keeps what it has done: an
        interrupted one goes on where it was, with the same result. ``people`` int64 (n,) tell whose each row is, so
        that rows held out for early stopping are of people who are not trained on, and leaves of trees hold enough of
        them (None: each row is a person). Raises InputError for no rows.
        """
        if len(train) == 0:
            raise InputError("a generator cannot be fitted to no rows", where="train", fix="give more rows")
        fitted = self._fit(train, Training(seed, device, progress, checkpoint, people))
        if not self.invents:
            fitted.keep_to_levels(train)
        return fitted

    @abstractmethod
    def _fit(self, train: Table, training: Training) -> FittedGenerator:
        """Fit to checked input."""

    @abstractmethod
    def load(self, folder: Path, schema: TableSchema, manifest: Mapping[str, Any]) -> FittedGenerator:
        """Read what :meth:`FittedGenerator.save` wrote; ``manifest`` is the content of its JSON file.

        Whatever a damaged file raises becomes an InputError in ``load_generator``.
        """

    def settings(self) -> dict[str, Any]:
        """The settings as a plain mapping that JSON can hold."""
        return asdict(self) if is_dataclass(self) else {}

    def overfitting_protection(self) -> str | None:
        """What keeps it from learning single rows by heart, in words with settings; "" for nothing, None: not known.

        That it is there does not say that it suffices, which is measured.
        """
        return None


class FittedGenerator(ABC):
    """A generator after fitting. It holds values of the private table: keep it and its files as private as that.

    ``history`` is the training curve, one mapping of numbers an epoch ("epoch", then losses), where there is one.
    ``levels`` are the numbers that may stand in closed columns.
    """

    generator: Generator
    schema: TableSchema
    privacy: PrivacyBudget = PrivacyBudget()
    history: tuple[Mapping[str, float], ...] = ()
    levels: Mapping[str, Sequence[float]] = MappingProxyType({})

    def sample(self, rows: int, *, seed: int) -> Table:
        """Return ``rows`` >= 1 synthetic rows, numbers and times at the precision of the columns.

        The same seed gives the same rows.
        """
        if rows < 1:
            raise InputError(f"{rows} synthetic rows were asked for", fix="ask for at least one")
        table = self._sample(rows, seed).as_synthetic(self.schema, where=self.where)
        if len(table) != rows:
            problem = f"{len(table)} rows came where {rows} were asked for"
            raise InputError(problem, where=self.where, fix="return them all")
        return table.with_columns(*(_nearest(table[name], levels) for name, levels in self.levels.items()))

    @property
    def where(self) -> str:
        """What messages call its rows."""
        return f"the output of generator {self.generator.name}"

    def keep_to_levels(self, train: Table) -> None:
        """From now on numbers of a closed column are the nearest of its declared domain; without one, of ``train``."""
        closed = [c for c in self.schema.columns if c.role == "closed" and c.kind in ("integer", "numeric")]
        known = {c.name: column_of(pd.Series(list(c.domain), dtype=object), c, "domains") for c in closed if c.domain}
        read = {c.name: train[c.name] for c in closed if not c.domain}
        self.levels = {name: one.distinct().cells.tolist() for name, one in {**known, **read}.items()}
        if self.privacy.epsilon is not None:
            stated = self.privacy.outside_guarantee
            more = [f"few values of {name}" for name in read if f"range or few values of {name}" not in stated]
            self.privacy = replace(self.privacy, outside_guarantee=(*stated, *more))

    def described(self) -> dict[str, Any]:
        """What made its rows, in plain values: "name", "settings", "overfitting" protection and "privacy" budget."""
        made = self.generator
        protection, budget = made.overfitting_protection(), asdict(self.privacy)
        return {"name": made.name, "settings": made.settings(), "overfitting": protection, "privacy": budget}

    @abstractmethod
    def _sample(self, rows: int, seed: int) -> Table:
        """Draw the rows; :meth:`sample` checks and rounds them."""

    def save(self, folder: str | Path) -> None:
        """Write the fitted generator into ``folder`` as JSON, npz and Parquet (never pickle)."""
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
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
        """Write arrays and tables; return what is to stand in the manifest beside name, settings and schema."""


def _nearest(numbers: Column, levels: Sequence[float]) -> Column:
    """Each number moved to the nearest of the sorted ``levels``; missing stays missing."""
    if not levels:
        return numbers
    known = np.asarray(levels, dtype=np.float64)
    nearest = known[np.searchsorted((known[1:] + known[:-1]) / 2, numbers.floats())]
    return replace(numbers, cells=np.where(numbers.missing, numbers.cells, nearest.astype(numbers.cells.dtype)))


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """Content of the manifest in ``folder``; InputError when there is none."""
    path = Path(folder) / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(manifest, dict):
            raise TypeError
    except (OSError, ValueError, TypeError) as error:
        fix = "give a folder that a fitted generator was saved into"
        raise InputError(
            f"no fitted generator can be read ({type(error).__name__})", where=str(path), fix=fix
        ) from None
    return manifest


def write_arrays(folder: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Keep arrays beside the manifest."""
    np.savez_compressed(folder / ARRAYS, **arrays)  # type: ignore[arg-type]


def read_arrays(folder: Path) -> dict[str, np.ndarray]:
    """Inverse of :func:`write_arrays`."""
    with np.load(folder / ARRAYS, allow_pickle=False) as stored:
        return dict(stored)


def write_table(frame: pd.DataFrame, folder: Path) -> Path:
    """Write a training table, beside the manifest or where a program reads it; the path of the Parquet file."""
    path = folder / TRAIN
    pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), path)
    return path


def read_train(folder: Path, schema: TableSchema) -> Table:
    """Inverse of :func:`write_table`."""
    return Table.of(pq.ParquetFile(folder / TRAIN).read().to_pandas(), schema, where=str(folder / TRAIN))
