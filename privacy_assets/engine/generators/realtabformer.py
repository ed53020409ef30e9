"""REaLTabFormer (Solatorio and Dupriez 2023): rows as sentences of a small GPT-2, by its library, as a program."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from privacy_assets.engine.generators.base import FittedGenerator, Training
from privacy_assets.engine.generators.commands import check_program
from privacy_assets.engine.generators.digits import DigitCoding
from privacy_assets.engine.generators.programs import MODEL, THREADS, FittedModel, Model, ProgramGenerator
from privacy_assets.engine.tables.schema import TableSchema
from privacy_assets.errors import ConfigError

WORKER = Path(__file__).with_name("_realtabformer_worker.py")
INSTALL = (
    "python -m venv rtf && "
    "rtf/bin/pip install 'realtabformer>=0.2.4,<0.3' 'transformers<5' 'datasets<5' 'pandas<3' pyarrow"
)
_COLUMNS = "columns.json"
_LEAST = {"epochs": 1, "batch_size": 1, "layers": 1, "width": 64, "patience": 0, "n_critic": 0, "sample_batch": 1}


@dataclass(frozen=True)
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

    python: str | None = None
    epochs: int = 100
    batch_size: int = 8
    layers: int = 6
    width: int = 768
    dropout: float = 0.1
    validation: float = 0.1
    patience: int = 5
    n_critic: int = 0
    overfit: float | None = None
    sample_batch: int = 128
    timeout: float = 86_400.0
    log: str | None = None

    def __post_init__(self) -> None:
        for setting, least in _LEAST.items():
            value = getattr(self, setting)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(f"{self.name}: {setting} must be a whole number of at least {least}.")
        if self.width % 64:
            raise ConfigError(f"{self.name}: width must be a multiple of 64.")
        for setting in ("dropout", "validation"):
            value = getattr(self, setting)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
                raise ConfigError(f"{self.name}: {setting} must be a number from 0 to less than 1.")
        self._check_overfit()
        check_program(self.name, self.timeout, self.log)
        if self.python is None and find_spec("realtabformer") is None:
            fix = f"{INSTALL}; then set python to rtf/bin/python"
            raise ConfigError(f"{self.name} is not installed here. Fix: give it an environment of its own: {fix}.")

    def _check_overfit(self) -> None:
        ratio = self.overfit
        if ratio is None:
            return
        if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 1 <= ratio <= 2:
            raise ConfigError(f"{self.name}: overfit must be a number from 1 to 2.")
        if self.n_critic or not self.patience or not self.validation:
            raise ConfigError(f"{self.name}: overfit needs validation and patience above 0, and n_critic 0.")

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

    def _fit(self, train: pd.DataFrame, schema: TableSchema, training: Training) -> FittedGenerator:
        from privacy_assets.engine.generators.networks.training import held_out

        coding, aside = DigitCoding.fit(train, schema), np.zeros(len(train), dtype=bool)
        if self.validation and not self.n_critic:
            aside = held_out(len(train), self.validation, training.people, training.seed)
        settings = {name: value for name, value in asdict(self).items() if name not in ("python", "log", "timeout")}
        told = json.dumps({**settings, "held": int(aside.sum())})
        arguments = [*self._worker("fit"), "{train}", "{model}", "{seed}", "{device}", told]
        table = coding.code(train).iloc[np.argsort(aside, kind="stable")].reset_index(drop=True)  # those held last
        model, reports = self.trained(arguments, table, training)
        fitted = FittedRealTabFormer(self, schema, model, coding)
        fitted.history = tuple(reports.rows)
        return fitted

    @classmethod
    def load(cls, folder: Path, manifest: Mapping[str, Any]) -> FittedGenerator:
        """See :meth:`Generator.load`."""
        schema = TableSchema.from_json(manifest["schema"])
        coding = DigitCoding.from_json(json.loads((folder / _COLUMNS).read_text(encoding="utf-8")), schema)
        return FittedRealTabFormer(cls(**manifest["settings"]), schema, Model(folder / MODEL), coding)


class FittedRealTabFormer(FittedModel):
    """The trained network, and how the columns were written for it."""

    def __init__(self, generator: RealTabFormer, schema: TableSchema, model: Model, coding: DigitCoding) -> None:
        super().__init__(generator, schema, model)
        self.coding = coding

    def _sample(self, rows: int, seed: int) -> pd.DataFrame:
        return self.coding.frame(super()._sample(rows, seed), where=f"the output of {self.generator.name}")

    def _save(self, folder: Path) -> dict[str, Any]:
        (folder / _COLUMNS).write_text(json.dumps(self.coding.to_json()), encoding="utf-8")
        return super()._save(folder)
