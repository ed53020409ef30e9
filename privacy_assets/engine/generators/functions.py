"""Any Python function as a generator."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd

from privacy_assets.engine.generators.base import (
    FittedGenerator,
    Generator,
    PrivacyBudget,
    Training,
    read_train,
    write_train,
)
from privacy_assets.engine.tables.schema import TableSchema, restore
from privacy_assets.errors import ConfigError, InputError, StepError

SampleFunction = Callable[[pd.DataFrame, int, int], pd.DataFrame]


@dataclass(frozen=True)
class CallableGenerator(Generator):
    """``function(train, rows, seed) -> DataFrame``, given itself or as ``"module:function"``.

    It is called for every sample, with the training table in the dtypes of the private table (a copy that it may
    change), and returns ``rows`` rows with the same columns. That the same seed gives the same rows is up to it.
    """

    name = "callable"
    summary = "A Python function of your own: function(train, rows, seed) returns the synthetic rows."
    repeatable = False

    function: SampleFunction | str

    def __post_init__(self) -> None:
        found = _import(self.function) if isinstance(self.function, str) else self.function
        if not callable(found):
            raise ConfigError(f"generator {self.function!r} is not a function.")
        try:
            inspect.signature(found).bind(None, 1, 0)
        except TypeError:
            raise ConfigError(f"generator {_label(found)} must take three arguments: train, rows, seed.") from None
        except ValueError:  # a built-in that does not tell its arguments
            pass
        object.__setattr__(self, "function", found)

    @property
    def reference(self) -> str:
        """``"module:function"``, under which another process finds the function."""
        return _label(self.function)

    def check_importable(self) -> None:
        """ConfigError unless :attr:`reference` names the function: a model of it could not be loaded again."""
        try:
            same = _import(self.reference) is self.function
        except ConfigError:
            same = False
        if not same:
            raise ConfigError(
                f"generator {self.reference} cannot be imported by name. Fix: define it with def in a module."
            )

    def settings(self) -> dict[str, Any]:
        """See :meth:`Generator.settings`."""
        return {"function": self.reference}

    def _fit(self, train: pd.DataFrame, schema: TableSchema, training: Training) -> FittedGenerator:
        return FittedCallable(self, schema, train.copy())

    @classmethod
    def load(cls, folder: Path, manifest: Mapping[str, Any]) -> FittedGenerator:
        """See :meth:`Generator.load`; ConfigError when the function is not there any more."""
        schema = TableSchema.from_json(manifest["schema"])
        return FittedCallable(cls(manifest["settings"]["function"]), schema, read_train(folder, schema))


class FittedCallable(FittedGenerator):
    """The function and its training table; what it learns it learns anew for each sample."""

    generator: CallableGenerator
    privacy = PrivacyBudget(known=False)

    def __init__(self, generator: CallableGenerator, schema: TableSchema, train: pd.DataFrame) -> None:
        self.generator, self.schema, self.train = generator, schema, train

    def _sample(self, rows: int, seed: int) -> pd.DataFrame:
        name = self.generator.reference
        outcome = _call(self.generator.function, restore(self.train, self.schema).copy(), rows, seed)  # type: ignore[arg-type]
        if isinstance(outcome, StepError):
            raise outcome  # outside any except block: neither cause nor context may carry the function's own message
        if not isinstance(outcome, pd.DataFrame):
            kind = type(outcome).__name__
            raise InputError(f"it returned {kind}, not a table", where=f"generator {name}", fix="return a DataFrame")
        return outcome

    def _save(self, folder: Path) -> dict[str, Any]:
        self.generator.check_importable()
        write_train(self.train, folder)
        return {}


def _call(function: SampleFunction, train: pd.DataFrame, rows: int, seed: int) -> object:
    try:
        return function(train, rows, seed)
    except (Exception, SystemExit) as error:  # noqa: BLE001 (the user's code can raise anything, and quote what it read)
        return StepError.hiding(error)


def _label(function: object) -> str:
    module = getattr(function, "__module__", None) or type(function).__module__
    return f"{module}:{getattr(function, '__qualname__', type(function).__qualname__)}"


def _import(reference: str) -> Any:
    """The object named by ``"module:function"``; a module that is being loaded right now counts as well."""
    module, _, path = reference.partition(":")
    try:
        found: Any = sys.modules.get(module) or import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"generator {reference!r} cannot be imported ({type(error).__name__}).") from None
    return found
