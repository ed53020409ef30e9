"""Commands and Python functions as generators, run in a separate process."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
from pydantic import Field

from privacy_assets.errors import ConfigError, safe_repr
from privacy_assets.generators import _function_worker as worker
from privacy_assets.generators.base import (
    FittedGenerator,
    PrivacyBudget,
    Training,
    read_train,
    write_table,
)
from privacy_assets.generators.programs import (
    MODEL,
    THREADS,
    FittedModel,
    FittedProgram,
    Model,
    ProgramGenerator,
    Timeout,
)
from privacy_assets.infra.settings import Tuple, declared
from privacy_assets.tables.schema import TableSchema
from privacy_assets.tables.table import Table

_SAMPLE_PLACEHOLDERS = ("{out}", "{rows}", "{seed}")
_TRAIN_PLACEHOLDERS = ("{train}", "{model}", "{seed}")
Texts = Annotated[tuple[str, ...], Tuple]
SampleFunction = Callable[[pd.DataFrame, int, int], pd.DataFrame]


@declared
class CommandGenerator(ProgramGenerator):
    """A custom program (see :class:`ProgramGenerator`) that reads and writes Parquet files.

    The command runs for every sample: it reads the training table, in the dtypes of the private
    table, from the file ``{train}`` and writes the rows to the file ``{out}``. If ``train`` is set,
    the training command runs once: it reads ``{train}`` and writes files to the folder ``{model}``;
    ``command`` then reads ``{model}`` instead of ``{train}``. The fitted generator then contains
    these files and not the training table. Whether equal seeds give equal rows depends on the
    program.

    Attributes:
        command: Program and arguments. The arguments must contain ``{out}``, ``{rows}``,
            ``{seed}``, and ``{train}`` (or ``{model}`` if ``train`` is set).
        train: Training program and arguments, with the placeholders ``{train}``, ``{model}``,
            ``{seed}`` and optionally ``{device}``.
        timeout: Maximum number of seconds per run.
        variables: Names of additional environment variables that the programs receive.
        log: See :class:`ProgramGenerator`.

    Raises:
        ConfigError: If a placeholder is missing, or ``command`` contains ``{train}`` although
            ``train`` is set.
    """

    name = "command"
    summary = (
        "Custom command that reads training rows from a Parquet file and writes synthetic rows to"
        " another."
    )
    repeatable = False
    creates_values = True

    command: Texts = Field()
    train: Annotated[tuple[str, ...] | None, Tuple] = None
    timeout: Timeout = 3600.0
    variables: Texts = ()
    log: str | None = None

    def __post_init__(self) -> None:
        if self.train is None:
            _check_placeholders("command", self.command, ("{train}", *_SAMPLE_PLACEHOLDERS))
            return
        _check_placeholders("train", self.train, _TRAIN_PLACEHOLDERS)
        _check_placeholders("command", self.command, ("{model}", *_SAMPLE_PLACEHOLDERS))
        if any("{train}" in argument for argument in self.command):
            raise ConfigError(
                "command: command cannot use {train} if train is set. Fix: let train write"
                " to {model}."
            )

    @property
    def env_variables(self) -> tuple[str, ...]:
        """See :attr:`ProgramGenerator.env_variables`."""
        return tuple(self.variables)

    @property
    def sampler(self) -> Sequence[str]:
        """See :attr:`ProgramGenerator.sampler`."""
        return self.command

    def _fit(self, train: Table, training: Training) -> FittedGenerator:
        if self.train is None:
            return FittedCommand(self, train)
        model = self.trained(self.train, train.to_published_frame(), training)
        return FittedCommandModel(self, train.schema, model)

    def load(
        self, folder: Path, schema: TableSchema, manifest: Mapping[str, Any]
    ) -> FittedGenerator:
        """Implement :meth:`Generator.load`."""
        if self.train is None:
            return FittedCommand(self, read_train(folder, schema))
        return FittedCommandModel(self, schema, Model(folder / MODEL))


class FittedCommand(FittedProgram):
    """A command with its training table, fitted again for each sample."""

    privacy = PrivacyBudget(known=False)

    def __init__(self, generator: ProgramGenerator, train: Table) -> None:
        self.generator = generator
        self.schema = train.schema
        self.train = train

    def write_inputs(self, folder: Path) -> dict[str, str]:
        """Implement :meth:`FittedProgram.write_inputs`."""
        return {"{train}": str(write_table(self.train.to_published_frame(), folder))}

    def _save(self, folder: Path) -> dict[str, Any]:
        write_table(self.train.frame(), folder)
        return {}


class FittedCommandModel(FittedModel):
    """The model of a custom training command, whose protections are unknown."""

    privacy = PrivacyBudget(known=False)


def _check_placeholders(setting: str, command: Sequence[str], placeholders: Sequence[str]) -> None:
    arguments = command[1:]
    for placeholder in placeholders:
        if not any(placeholder in argument for argument in arguments):
            raise ConfigError(f"command: {placeholder} is missing in the arguments of {setting}.")


@declared
class CallableGenerator(ProgramGenerator):
    """A Python function ``function(train, rows, seed) -> DataFrame``, called for every sample.

    The function receives the training table in the dtypes of the private table (a copy) and returns
    a table with ``rows`` rows and the same columns. Whether equal seeds give equal rows depends on
    the function.

    It runs in a separate process (see :class:`ProgramGenerator`), which imports its module by name
    and cannot access the keys and objects of this process. If its module is not imported in this
    process, the function is looked up in the new process only, and the first sample fails if it is
    missing.

    Attributes:
        function: The function, or its name ``"module:function"``.
        timeout: Maximum number of seconds per call.
        variables: Names of additional environment variables that the process receives.
        log: See :class:`ProgramGenerator`.

    Raises:
        ConfigError: If the function cannot be imported by name, or does not accept three arguments.
    """

    name = "callable"
    summary = "Custom Python function: function(train, rows, seed) returns the synthetic rows."
    repeatable = False
    creates_values = True
    function: Any = Field(title="a function, or a string module:function")
    timeout: Timeout = 86_400.0
    variables: Texts = ()
    log: str | None = None

    def __post_init__(self) -> None:
        reference = self.function
        if not isinstance(reference, str):
            reference = _reference(self.function)
        function = _loaded(reference)
        if not isinstance(self.function, str) and function is not self.function:
            raise ConfigError(
                f"generator {reference} cannot be imported by name. Fix: define it with def in"
                " a module."
            )
        if function is None and not _is_not_yet_imported(reference):
            raise ConfigError(
                f"generator {safe_repr(reference)} cannot be imported. Fix: check the name."
            )
        if function is not None and not worker.takes_three(function):
            raise ConfigError(
                f"generator {reference} must take three arguments: train, rows, seed."
            )
        object.__setattr__(self, "function", reference)

    @property
    def reference(self) -> str:
        """``"module:function"``, the name under which another process imports the function."""
        return str(self.function)

    @property
    def env_variables(self) -> tuple[str, ...]:
        """See :attr:`ProgramGenerator.env_variables`."""
        threads = [name for name in THREADS if name in os.environ]
        return (*self.variables, *threads)

    @property
    def sampler(self) -> Sequence[str]:
        """See :attr:`ProgramGenerator.sampler`."""
        task = json.dumps({"function": self.reference, "path": sys.path, "file": self.source})
        # -P: keep the script's folder off the path, where modules of this package would shadow
        # others of the same name.
        return [sys.executable, "-P", worker.__file__, task, "{train}", "{out}", "{rows}", "{seed}"]

    @property
    def source(self) -> str | None:
        """File of the function's module, or None."""
        name = self.reference.partition(":")[0]
        file: str | None = getattr(sys.modules.get(name), "__file__", None)
        if file:
            return file
        spec = _spec(name)
        if spec is None or not spec.has_location:
            return None
        return spec.origin

    @property
    def label(self) -> str:
        """See :attr:`ProgramGenerator.label`."""
        return f"generator {self.name}: {self.reference}"

    def _fit(self, train: Table, training: Training) -> FittedGenerator:
        return FittedCommand(self, train)

    def load(
        self, folder: Path, schema: TableSchema, manifest: Mapping[str, Any]
    ) -> FittedGenerator:
        """Implement :meth:`Generator.load`."""
        return FittedCommand(self, read_train(folder, schema))


def _reference(function: object) -> str:
    """Return the name ``"module:function"`` of a function."""
    if not callable(function):
        raise ConfigError(f"generator {type(function).__name__} is not a function.")
    module = getattr(function, "__module__", None) or type(function).__module__
    return f"{module}:{getattr(function, '__qualname__', type(function).__qualname__)}"


def _loaded(reference: str) -> Any:
    """Return the object ``"module:function"``, or None if its module is not imported or has no such
    object.
    """
    module, _, path = reference.partition(":")
    target: Any = sys.modules.get(module)
    # interactive: not importable elsewhere
    if module == "__main__" and not hasattr(target, "__file__"):
        return None
    for attribute in path.split("."):
        target = getattr(target, attribute, None)
    return target


def _is_not_yet_imported(reference: str) -> bool:
    """Return True if the module of ``"module:function"`` is not imported but can be found."""
    module, _, path = reference.partition(":")
    return bool(path) and module not in sys.modules and _spec(module) is not None


def _spec(module: str) -> ModuleSpec | None:
    """Find the spec of ``module`` without running its parent packages, unlike
    :func:`importlib.util.find_spec`.
    """
    parts = module.split(".")
    spec: ModuleSpec | None = None
    for depth in range(1, len(parts) + 1):
        path = None
        if spec is not None:
            path = spec.submodule_search_locations
            if path is None:  # not a package
                return None
        name = ".".join(parts[:depth])
        spec = _spec_on_path(name, path)
        if spec is None:
            return None
        is_namespace = spec.origin is None and spec.submodule_search_locations is not None
        if is_namespace and depth < len(parts):
            # its submodules are found only after import
            importlib.import_module(name)
    return spec


def _spec_on_path(name: str, path: Sequence[str] | None) -> ModuleSpec | None:
    for finder in sys.meta_path:
        spec = finder.find_spec(name, path)
        if spec is not None:
            return spec
    return None
