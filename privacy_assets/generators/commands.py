"""Any command as a generator: one that makes the rows of a table, or one that is trained and one that samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from privacy_assets.errors import ConfigError
from privacy_assets.generators.base import FittedGenerator, PrivacyBudget, Training, read_train, write_table
from privacy_assets.generators.programs import MODEL, FittedModel, FittedProgram, Model, ProgramGenerator
from privacy_assets.settings import Tuple, declared
from privacy_assets.tables.schema import TableSchema
from privacy_assets.tables.table import Table

_MADE = ("{out}", "{rows}", "{seed}")
_TRAINED = ("{train}", "{model}", "{seed}")


Texts = Annotated[tuple[str, ...], Tuple]
Timeout = Annotated[float, Field(gt=0, allow_inf_nan=True)]  # seconds


@declared
class CommandGenerator(ProgramGenerator):
    """A program of your own; how it is run, and what it can see and say: :class:`ProgramGenerator`.

    ``command`` is the list of its arguments, in which ``{train}`` and ``{out}`` stand for the Parquet files to read
    (the training table in the dtypes of the private table) and to write, ``{rows}`` and ``{seed}`` for numbers. It runs
    for every sample; that the same seed gives the same rows is up to it.

    With ``train``, a second list, that one runs once: it reads ``{train}``, is given ``{seed}`` and, where it asks for
    it, ``{device}``, and writes what it likes into the folder ``{model}``; ``command`` then reads ``{model}`` in place
    of ``{train}``. The fitted generator holds the files of that folder and no training table. ``timeout`` is for each
    run.
    """

    name = "command"
    summary = "A program of your own: a command that reads a Parquet file and writes the synthetic rows to another."
    repeatable = False
    invents = True

    command: Texts = Field(description="the program and its arguments")
    train: Annotated[tuple[str, ...] | None, Tuple] = Field(default=None, description="a command that learns once")
    timeout: Timeout = Field(default=3600.0, description="seconds of each run, at most")
    variables: Texts = Field(default=(), description="further environment variables that it sees")
    log: str | None = Field(default=None, description="file for what it prints")

    def __post_init__(self) -> None:
        if self.train is None:
            _check_marks("command", self.command, ("{train}", *_MADE))
        else:
            _check_marks("train", self.train, _TRAINED)
            _check_marks("command", self.command, ("{model}", *_MADE))
            if any("{train}" in part for part in self.command):
                raise ConfigError("command: command cannot read {train} beside train; let train write it to {model}.")

    @property
    def passed(self) -> tuple[str, ...]:
        """See :attr:`ProgramGenerator.passed`."""
        return tuple(self.variables)

    @property
    def sampler(self) -> Sequence[str]:
        """See :attr:`ProgramGenerator.sampler`."""
        return self.command

    def _fit(self, train: Table, training: Training) -> FittedGenerator:
        if self.train is None:
            return FittedCommand(self, train)
        model, reports = self.trained(self.train, train.restored(), training)
        fitted = FittedCommandModel(self, train.schema, model)
        fitted.history = tuple(reports.rows)
        return fitted

    def load(self, folder: Path, schema: TableSchema, manifest: Mapping[str, Any]) -> FittedGenerator:
        """See :meth:`Generator.load`."""
        if self.train is None:
            return FittedCommand(self, read_train(folder, schema))
        return FittedCommandModel(self, schema, Model(folder / MODEL))


class FittedCommand(FittedProgram):
    """The command and its training table; what it learns it learns anew for each sample."""

    privacy = PrivacyBudget(known=False)

    def __init__(self, generator: ProgramGenerator, train: Table) -> None:
        self.generator, self.schema, self.train = generator, train.schema, train

    def given(self, folder: Path) -> dict[str, str]:
        """See :meth:`FittedProgram.given`."""
        return {"{train}": str(write_table(self.train.restored(), folder))}

    def _save(self, folder: Path) -> dict[str, Any]:
        write_table(self.train.frame(), folder)
        return {}


class FittedCommandModel(FittedModel):
    """The model that your own training command left. What it protects it does not tell."""

    privacy = PrivacyBudget(known=False)


def _check_marks(setting: str, arguments: Sequence[str], marks: Sequence[str]) -> None:
    absent = [mark for mark in marks if not any(mark in part for part in arguments[1:])]
    if absent:
        raise ConfigError(f"command: {absent[0]} does not stand in the arguments of {setting}.")
