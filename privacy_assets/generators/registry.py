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
    safe_repr,
)
from privacy_assets.generators.base import FittedGenerator, Generator, PrivacyBudget, read_manifest
from privacy_assets.generators.user_code import CallableGenerator
from privacy_assets.infra.registry import Registry
from privacy_assets.infra.settings import default_of
from privacy_assets.tables.schema import TableSchema

GENERATORS = Registry[Generator](
    Generator,  # type: ignore[type-abstract]
    "privacy_assets.generators",
    "privacy_assets.generators.synthpop:SynthPop",
    "privacy_assets.generators.bayes:BayNet",
    "privacy_assets.generators.bayes:PrivBayes",
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
        license: License of the code that does the work.
        extra: Extra of this package that installs its modules, or None.
        missing: Modules that are not installed.
        repeatable: True if the same seed gives the same rows.
        settings: Settings with a default.
        required: Settings without a default.
        separate_environment: Command that creates the separate environment it needs, or None.
    """

    name: str
    summary: str
    license: str
    extra: str | None
    missing: tuple[str, ...]
    repeatable: bool
    settings: Mapping[str, Any]
    required: tuple[str, ...]
    separate_environment: str | None

    @classmethod
    def of(cls, kind: type[Generator]) -> GeneratorInfo:
        """Describe a generator without importing its modules.

        Args:
            kind: Class of the generator.
        """
        missing = tuple(module for module in kind.modules if not _is_installed(module))
        settings = {}
        required = []
        for field in fields(kind):  # type: ignore[arg-type]
            default = default_of(field)
            if default is MISSING:
                required.append(field.name)
            else:
                settings[field.name] = default
        separate_environment = None
        if kind.separate_environment is not None:
            module, command = kind.separate_environment
            if not _is_installed(module):
                separate_environment = command
        return cls(
            name=kind.name,
            summary=kind.summary,
            license=kind.license,
            extra=kind.extra,
            missing=missing,
            repeatable=kind.repeatable,
            settings=settings,
            required=tuple(required),
            separate_environment=separate_environment,
        )

    @property
    def available(self) -> bool:
        """Whether all modules are installed."""
        return not self.missing

    @property
    def install(self) -> str | None:
        """Command that installs the missing modules, or None."""
        if self.available:
            return None
        package = f"privacy-assets[{self.extra}]" if self.extra else self.missing[0]
        return f"pip install '{package}'"

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
    """Describe all generators of this package, without importing the libraries that they need."""
    return [GeneratorInfo.of(kind) for kind in GENERATORS.shipped().values()]


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
    settings = dict(settings or {})
    if callable(generator) or ":" in generator:
        if settings:
            raise ConfigError("a function takes no settings; bind them inside the function.")
        return CallableGenerator(generator)
    kind = GENERATORS.find(generator)
    info = GeneratorInfo.of(kind)
    missing = [setting for setting in info.required if setting not in settings]
    if missing:
        raise ConfigError(f"generator {generator} needs the settings {', '.join(missing)}.")
    built = kind(**settings)
    info.check_available()
    return built


def as_generator(source: GeneratorLike) -> Generator:
    """Create the generator of a setting.

    Args:
        source: A generator, name, function, ``"module:function"``, or mapping of ``name`` and
            ``settings``.

    Raises:
        ConfigError: If the value is invalid, or as in :func:`build_generator`.
    """
    if isinstance(source, Generator):
        return source
    generator: Any = source
    settings: Any = None
    if isinstance(source, Mapping):
        if "name" not in source or set(source) - {"name", "settings"}:
            raise ConfigError("generator is a name, or a mapping of 'name' and 'settings'.")
        generator = source["name"]
        settings = source.get("settings")
    if not isinstance(generator, str) and not callable(generator):
        raise ConfigError("generator must be a name, a mapping, a function or 'module:function'.")
    if not isinstance(settings, Mapping | None):
        raise ConfigError("the settings of a generator must be a mapping of names to values.")
    return build_generator(generator, settings)


def load_generator(folder: str | Path) -> FittedGenerator:
    """Load a fitted generator.

    Args:
        folder: Folder written by :meth:`FittedGenerator.save`.

    Raises:
        InputError: If the files are damaged or the generator is unknown.
        ConfigError: If one of its modules is not installed.
    """
    manifest = read_manifest(folder)
    name = str(manifest.get("name"))
    if name not in GENERATORS:
        raise InputError(
            f"unknown generator {safe_repr(name)}.{GENERATORS.hint(name)}", where=str(folder)
        )
    kind = GENERATORS[name]
    GeneratorInfo.of(kind).check_available()
    try:
        generator = kind(**manifest["settings"])
        schema = TableSchema.from_json(manifest["schema"])
        fitted = generator.load(Path(folder), schema, manifest)
        fitted.history = tuple(manifest["history"])
        fitted.privacy = PrivacyBudget(**manifest["privacy"])
        fitted.levels = manifest["levels"]
        return fitted
    except PrivacyAssetsError:
        raise
    except _DAMAGED as error:
        problem = f"the fitted generator is incomplete ({type(error).__name__})"
    # Outside of the handler: the original message may contain values.
    raise InputError(problem, where=str(folder), fix="fit it again")


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False
