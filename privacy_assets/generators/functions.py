"""Any Python function as a generator: a program that calls it."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
from pydantic import Field

from privacy_assets.errors import ConfigError, StepError, shown
from privacy_assets.generators import _function_worker as worker
from privacy_assets.generators.base import FittedGenerator, Training, read_train
from privacy_assets.generators.commands import FittedCommand, Texts, Timeout
from privacy_assets.generators.programs import THREADS, ProgramGenerator
from privacy_assets.settings import declared
from privacy_assets.tables.schema import TableSchema
from privacy_assets.tables.table import Table

SampleFunction = Callable[[pd.DataFrame, int, int], pd.DataFrame]


@declared
class CallableGenerator(ProgramGenerator):
    """``function(train, rows, seed) -> DataFrame``, given itself or as ``"module:function"``.

    It is called for every sample, with the training table in the dtypes of the private table (a copy that it may
    change), and returns ``rows`` rows with the same columns. That the same seed gives the same rows is up to it.

    It runs in a process of its own, which imports its module by name, and what that process can see and say is said in
    :class:`ProgramGenerator`: neither the keys nor the objects of this one. A module that is not imported here is not
    imported for a look at the function either: whether it is there is told by the first sample. ``variables`` are
    further environment variables that it sees, ``timeout`` is in seconds.
    """

    name = "callable"
    summary = "A Python function of your own: function(train, rows, seed) returns the synthetic rows."
    repeatable = False
    invents = True
    endings: ClassVar[Mapping[int, str]] = {
        **ProgramGenerator.endings,
        worker.NOT_FOUND: "cannot be imported in a process of its own",
        worker.NOT_CALLED: "is not a function of three arguments: train, rows, seed",
        worker.NO_TABLE: "returned something that is not a table: return a DataFrame",
        worker.NOT_WRITTEN: "returned a table that cannot be written as Parquet",
    }

    function: Any = Field(title="a function, or a text module:function", description="what makes the rows")
    timeout: Timeout = Field(default=86_400.0, description="seconds of each call, at most")
    variables: Texts = Field(default=(), description="further environment variables that it sees")
    log: str | None = Field(default=None, description="file for what it prints")

    def __post_init__(self) -> None:
        reference = self.function if isinstance(self.function, str) else _label(self.function)
        found = _loaded(reference)
        if not isinstance(self.function, str) and found is not self.function:
            raise ConfigError(f"generator {reference} cannot be imported by name. Fix: define it with def in a module.")
        if found is None and not _waits(reference):
            raise ConfigError(f"generator {shown(reference)} cannot be imported. Fix: check the name.")
        if found is not None and not worker.takes_three(found):
            raise ConfigError(f"generator {reference} must take three arguments: train, rows, seed.")
        object.__setattr__(self, "function", reference)

    @property
    def reference(self) -> str:
        """``"module:function"``, under which another process finds the function."""
        return str(self.function)

    @property
    def passed(self) -> tuple[str, ...]:
        """See :attr:`ProgramGenerator.passed`."""
        return (*self.variables, *(name for name in THREADS if name in os.environ))

    @property
    def sampler(self) -> Sequence[str]:
        """See :attr:`ProgramGenerator.sampler`."""
        task = json.dumps({"function": self.reference, "path": sys.path, "file": self.source})
        # Beside the script lie modules of ours, which would hide others of the same name: not on the path (-P).
        return [sys.executable, "-P", worker.__file__, task, "{train}", "{out}", "{rows}", "{seed}"]

    @property
    def source(self) -> str | None:
        """See :attr:`ProgramGenerator.source`: the file of the function's module."""
        name = self.reference.partition(":")[0]
        file = getattr(sys.modules.get(name), "__file__", None)
        spec = None if file else _spec(name)
        return file or (spec.origin if spec and spec.has_location else None)

    def failed(self, program: str, what: str) -> StepError:
        """See :meth:`ProgramGenerator.failed`."""
        return super().failed(self.reference, what)

    def _fit(self, train: Table, training: Training) -> FittedGenerator:
        return FittedCommand(self, train)

    def load(self, folder: Path, schema: TableSchema, manifest: Mapping[str, Any]) -> FittedGenerator:
        """See :meth:`Generator.load`."""
        return FittedCommand(self, read_train(folder, schema))


def _label(function: object) -> str:
    if not callable(function):
        raise ConfigError(f"generator {type(function).__name__} is not a function.")
    module = getattr(function, "__module__", None) or type(function).__module__
    return f"{module}:{getattr(function, '__qualname__', type(function).__qualname__)}"


def _loaded(reference: str) -> Any:
    """The object named by ``"module:function"``; None when its module is not loaded, or holds none."""
    module, _, path = reference.partition(":")
    found: Any = sys.modules.get(module)
    if module == "__main__" and not hasattr(found, "__file__"):  # typed in: no other process can read it
        return None
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


def _waits(reference: str) -> bool:
    """Whether ``"module:function"`` may be there once somebody imports the module."""
    module, _, path = reference.partition(":")
    return bool(path) and module not in sys.modules and _spec(module) is not None


def _spec(module: str) -> ModuleSpec | None:
    """Where ``module`` would be imported from. Unlike :func:`importlib.util.find_spec`, runs none of its packages."""
    parts = module.split(".")
    spec: ModuleSpec | None = None
    for depth in range(1, len(parts) + 1):
        path = None if spec is None else spec.submodule_search_locations
        if spec is not None and path is None:  # no package
            return None
        name = ".".join(parts[:depth])
        found = (finder.find_spec(name, path) for finder in sys.meta_path)
        spec = next((one for one in found if one is not None), None)
        if spec is None:
            return None
        if spec.origin is None and spec.submodule_search_locations is not None and depth < len(parts):
            importlib.import_module(name)  # a folder without code, which finds its parts only once it is imported
    return spec
