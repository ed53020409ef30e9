"""REaLTabFormer (Solatorio and Dupriez 2023): rows as sentences of a small GPT-2, by its library, as a program."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from privacy_assets.errors import ConfigError
from privacy_assets.generators.base import FittedGenerator, Training
from privacy_assets.generators.commands import Timeout
from privacy_assets.generators.digits import DigitCoding
from privacy_assets.generators.programs import MODEL, THREADS, FittedModel, Model, ProgramGenerator
from privacy_assets.settings import declared
from privacy_assets.tables.schema import TableSchema
from privacy_assets.tables.table import Table

WORKER = Path(__file__).with_name("_realtabformer_worker.py")
INSTALL = (
    "python -m venv rtf && "
    "rtf/bin/pip install 'realtabformer>=0.2.4,<0.3' 'transformers<5' 'datasets<5' 'pandas<3' pyarrow"
)


@declared
class RealTabFormer(ProgramGenerator):
    """REaLTabFormer, which needs older libraries than this package: ``python`` runs it in an environment of its own.

    ``python`` is the interpreter of that environment (None: this one). The model has ``layers`` layers of ``width``
    (a multiple of 64, one head for each) with ``dropout``, and is trained for at most ``epochs`` epochs in batches of
    four times ``batch_size``, as the library does. It stops when the loss on the rows of a share ``validation`` of the
    people has not improved for ``patience`` epochs, and takes the best epoch; ``patience`` 0: it goes on to the end and
    takes the last. ``n_critic`` > 0 is the library's own rule instead: every so many epochs it compares distances of
    synthetic and real rows; nothing is then kept for validation.

    ``overfit`` f in [1, 2] over-fits on purpose (Palacios 4.2): a first training finds the best validation loss L*, a
    second one without dropout or early stopping goes on until its loss L reaches L/L* = f after its own best, 100
    epochs at most. The last "overfitting ratio" of the history is the one reached. Never publish what that makes.

    Rows are drawn on the CPU, ``sample_batch`` at a time. Nothing is fetched from a network.
    """

    name = "realtabformer"
    summary = "REaLTabFormer: rows as sentences of a GPT-2, trained by its library in an environment of its own."
    licence = "MIT"
    modules = ("torch",)
    extra = "realtabformer"
    apart = ("realtabformer", INSTALL)

    python: str | None = Field(default=None, description="the python of its own environment")
    epochs: int = Field(default=100, ge=1, description="passes over the training rows")
    batch_size: int = Field(default=8, ge=1, description="rows of a step")
    layers: int = Field(default=6, ge=1, description="of the transformer")
    width: int = Field(default=768, ge=64, multiple_of=64, description="of a layer")
    dropout: float = Field(default=0.1, ge=0, lt=1, description="share of units that are dropped")
    validation: float = Field(default=0.1, ge=0, lt=1, description="share of people held out for early stopping")
    patience: int = Field(default=5, ge=0, description="epochs without a better loss that end training")
    n_critic: int = Field(default=0, ge=0, description="epochs between the library's own comparisons")
    overfit: float | None = Field(default=None, ge=1, le=2, description="how far it is over-fitted on purpose")
    sample_batch: int = Field(default=128, ge=1, description="rows drawn at once")
    timeout: Timeout = Field(default=86_400.0, description="seconds of each run, at most")
    log: str | None = Field(default=None, description="file for what it prints")

    def __post_init__(self) -> None:
        if self.overfit is not None and (self.n_critic or not self.patience or not self.validation):
            raise ConfigError(f"{self.name}: overfit needs validation and patience above 0, and n_critic 0.")
        if self.python is None and find_spec("realtabformer") is None:
            fix = f"{INSTALL}; then set python to rtf/bin/python"
            raise ConfigError(f"{self.name} is not installed here. Fix: give it an environment of its own: {fix}.")

    @property
    def passed(self) -> tuple[str, ...]:
        """See :attr:`ProgramGenerator.passed`."""
        return tuple(name for name in THREADS if name in os.environ)

    @property
    def sampler(self) -> Sequence[str]:
        """See :attr:`ProgramGenerator.sampler`."""
        return [*self._worker("sample"), "{model}", "{out}", "{rows}", "{seed}", str(self.sample_batch)]

    def overfitting_protection(self) -> str:
        """See :meth:`Generator.overfitting_protection`."""
        if self.overfit is not None and self.overfit > 1:
            return ""
        stops = []
        if self.n_critic:
            stops.append("the library's comparison of distances")
        elif self.patience and self.validation:
            stops.append(f"early stopping after {self.patience} epochs without a better loss on unseen people")
        return ", ".join([*stops, *([f"dropout {self.dropout:g}"] if self.dropout else [])])

    def _worker(self, part: str) -> list[str]:
        # Isolated: beside the script lie modules of ours, which would hide others of the same name.
        return [self.python or sys.executable, "-I", str(WORKER), part]

    def _fit(self, train: Table, training: Training) -> FittedGenerator:
        from privacy_assets.generators.networks.training import held_out

        coding, aside = DigitCoding.fit(train), np.zeros(len(train), dtype=bool)
        if self.validation and not self.n_critic:
            aside = held_out(len(train), self.validation, training.people, training.seed)
        settings = {name: value for name, value in asdict(self).items() if name not in ("python", "log", "timeout")}
        task = json.dumps({**settings, "held": int(aside.sum())})
        arguments = [*self._worker("fit"), "{train}", "{model}", "{seed}", "{device}", task]
        table = coding.code(train).iloc[np.argsort(aside, kind="stable")].reset_index(drop=True)  # those held last
        model, reports = self.trained(arguments, table, training)
        fitted = FittedRealTabFormer(self, model, coding)
        fitted.history = tuple(reports.rows)
        return fitted

    def load(self, folder: Path, schema: TableSchema, manifest: Mapping[str, Any]) -> FittedGenerator:
        """See :meth:`Generator.load`."""
        return FittedRealTabFormer(self, Model(folder / MODEL), DigitCoding.from_json(manifest["columns"], schema))


class FittedRealTabFormer(FittedModel):
    """The trained network, and how the columns were written for it."""

    def __init__(self, generator: RealTabFormer, model: Model, coding: DigitCoding) -> None:
        super().__init__(generator, coding.coding.schema, model)
        self.coding = coding

    def _sample(self, rows: int, seed: int) -> Table:
        return self.coding.table(self.written(rows, seed), where=self.where)

    def _save(self, folder: Path) -> dict[str, Any]:
        return {**super()._save(folder), "columns": self.coding.to_json()}
