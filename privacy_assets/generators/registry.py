"""Registry of generators."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd

from privacy_assets.errors import (
    ConfigError,
    InputError,
    PrivacyAssetsError,
    did_you_mean,
    safe_repr,
)
from privacy_assets.generators.base import FittedGenerator, Generator, PrivacyBudget, read_manifest
from privacy_assets.generators.user_code import CallableGenerator
from privacy_assets.infra.settings import default_of, load_registry
from privacy_assets.tables.schema import TableSchema

GENERATORS: dict[str, type[Generator]] = load_registry(
    "privacy_assets.generators.synthpop:SynthPop",
    "privacy_assets.generators.bayes:BayNet",
    "privacy_assets.generators.bayes:PrivBayes",
    "privacy_assets.generators.ctgan:CTGAN",
    "privacy_assets.generators.ctgan:TVAE",
    "privacy_assets.generators.rvae:RVAE",
    "privacy_assets.generators.gans:WGANGP",
    "privacy_assets.generators.gans:DPGAN",
    "privacy_assets.generators.gans:DPCTGAN",
    "privacy_assets.generators.gans:PATEGAN",
    "privacy_assets.generators.realtabformer:RealTabFormer",
    "privacy_assets.generators.copies:Copy",
    "privacy_assets.generators.copies:NoisyCopy",
    "privacy_assets.generators.user_code:CallableGenerator",
    "privacy_assets.generators.user_code:CommandGenerator",
)

DEFAULT_GENERATOR = "synthpop"

# Errors raised by damaged or modified files; RuntimeError if weights do not fit the network.
_DAMAGED = (
    OSError,
    LookupError,
    ValueError,
    TypeError,
    EOFError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
)

GeneratorLike = (
    str | Mapping[str, Any] | Callable[[pd.DataFrame, int, int], pd.DataFrame] | Generator
)


@dataclass(frozen=True, slots=True)
class GeneratorInfo:
    """A registered generator, and whether it can run here.

    Attributes:
        name: Registry key.
        summary: One sentence for users.
        licence: License of the code that does the work.
        extra: Extra of this package that installs its modules, or None.
        missing: Modules that are not installed.
        repeatable: True if the same seed gives the same rows.
        settings: Settings with a default.
        required: Settings without a default.
        separate_environment: Command that creates the separate environment it needs, or None.
    """

    name: str
    summary: str
    licence: str
    extra: str | None
    missing: tuple[str, ...]
    repeatable: bool
    settings: Mapping[str, Any]
    required: tuple[str, ...]
    separate_environment: str | None

    @classmethod
    def of(cls, kind: type[Generator]) -> GeneratorInfo:
        """Describe a generator without importing its modules."""
        missing = tuple(module for module in kind.modules if not _there(module))
        settings, required = {}, []
        for field in fields(kind):  # type: ignore[arg-type]
            default = default_of(field)
            if default is MISSING:
                required.append(field.name)
            else:
                settings[field.name] = default
        what = (kind.name, kind.summary, kind.licence, kind.extra)
        separate_environment = (
            kind.separate_environment[1]
            if kind.separate_environment is not None and not _there(kind.separate_environment[0])
            else None
        )
        return cls(*what, missing, kind.repeatable, settings, tuple(required), separate_environment)

    @property
    def available(self) -> bool:
        """Whether all modules are installed."""
        return not self.missing

    @property
    def install(self) -> str | None:
        """Command that installs the missing modules, or None."""
        if self.available:
            return None
        return f"pip install '{f'privacy-assets[{self.extra}]' if self.extra else self.missing[0]}'"

    def to_json(self) -> dict[str, Any]:
        """Return a plain mapping."""
        return {**asdict(self), "available": self.available, "install": self.install}

    def check_available(self) -> None:
        """Raise ConfigError with the installation command if a module is missing."""
        if not self.available:
            raise ConfigError(
                f"generator {self.name} needs {self.missing[0]}. Fix: {self.install}."
            )


def generator_info() -> list[GeneratorInfo]:
    """Describe all registered generators in registry order, without importing their modules."""
    return [GeneratorInfo.of(kind) for kind in GENERATORS.values()]


def build_generator(
    generator: str | Callable[[pd.DataFrame, int, int], pd.DataFrame],
    settings: Mapping[str, Any] | None = None,
) -> Generator:
    """Create a generator.

    Args:
        generator: Registry name, ``"module:function"``, or a function.
        settings: Settings of a registered generator.

    Raises:
        ConfigError: If a name or setting is unknown, an extra is missing, or the function cannot be
            imported by name from another process (a lambda or nested function).
    """
    given = dict(settings or {})
    if callable(generator) or ":" in generator:
        if given:
            raise ConfigError("a function takes no settings; bind them inside the function.")
        return CallableGenerator(generator)
    if generator not in GENERATORS:
        raise ConfigError(
            f"unknown generator {safe_repr(generator)}.{did_you_mean(generator, GENERATORS)}"
        )
    kind = GENERATORS[generator]
    info = GeneratorInfo.of(kind)
    absent = [key for key in info.required if key not in given]
    if absent:
        raise ConfigError(f"generator {generator} needs the settings {', '.join(absent)}.")
    built = kind(**given)
    info.check_available()
    return built


def as_generator(given: GeneratorLike) -> Generator:
    """Convert a generator, name, mapping, function or ``"module:function"`` to a generator.

    A mapping has the keys ``name`` and ``settings``. Raises ConfigError for other values.
    """
    if isinstance(given, Generator):
        return given
    named: Any = given
    settings: Any = None
    if isinstance(given, Mapping):
        if "name" not in given or set(given) - {"name", "settings"}:
            raise ConfigError("generator is a name, or a mapping of 'name' and 'settings'.")
        named, settings = given["name"], given.get("settings")
    if not isinstance(named, str) and not callable(named):
        raise ConfigError("generator must be a name, a mapping, a function or 'module:function'.")
    if not isinstance(settings, Mapping | None):
        raise ConfigError("the settings of a generator must be a mapping of names to values.")
    return build_generator(named, settings)


def load_generator(folder: str | Path) -> FittedGenerator:
    """Load a fitted generator written by :meth:`FittedGenerator.save`.

    Raises:
        InputError: If the files are damaged or the generator is unknown.
        ConfigError: If one of its modules is not installed.
    """
    manifest = read_manifest(folder)
    name = str(manifest.get("name"))
    if name not in GENERATORS:
        raise InputError(
            f"unknown generator {safe_repr(name)}.{did_you_mean(name, GENERATORS)}",
            where=str(folder),
        )
    GeneratorInfo.of(GENERATORS[name]).check_available()
    try:
        generator, schema = (
            GENERATORS[name](**manifest["settings"]),
            TableSchema.from_json(manifest["schema"]),
        )
        fitted = generator.load(Path(folder), schema, manifest)
        fitted.history, fitted.privacy = (
            tuple(manifest["history"]),
            PrivacyBudget(**manifest["privacy"]),
        )
        fitted.levels = manifest["levels"]
        return fitted
    except PrivacyAssetsError:
        raise
    except _DAMAGED as error:
        wrong = f"the fitted generator is incomplete ({type(error).__name__})"
    # Outside of the handler: the other message may contain values.
    raise InputError(wrong, where=str(folder), fix="fit it again")


def _there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False
