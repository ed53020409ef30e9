"""The registry of generators: one line each. Everything that lists or loads generators reads it from here."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd

from privacy_assets.errors import ConfigError, InputError, PrivacyAssetsError, did_you_mean, shown
from privacy_assets.generators.base import FittedGenerator, Generator, PrivacyBudget, read_manifest
from privacy_assets.generators.functions import CallableGenerator
from privacy_assets.settings import default_of, parts_at
from privacy_assets.tables.schema import TableSchema

GENERATORS: dict[str, type[Generator]] = parts_at(
    "privacy_assets.generators.synthpop:SynthPop",
    "privacy_assets.generators.baynet:BayNet",
    "privacy_assets.generators.privbayes:PrivBayes",
    "privacy_assets.generators.ctgan:CTGAN",
    "privacy_assets.generators.ctgan:TVAE",
    "privacy_assets.generators.rvae:RVAE",
    "privacy_assets.generators.wgan_gp:WGANGP",
    "privacy_assets.generators.dpgan:DPGAN",
    "privacy_assets.generators.dpctgan:DPCTGAN",
    "privacy_assets.generators.pategan:PATEGAN",
    "privacy_assets.generators.realtabformer:RealTabFormer",
    "privacy_assets.generators.copies:Copy",
    "privacy_assets.generators.copies:NoisyCopy",
    "privacy_assets.generators.functions:CallableGenerator",
    "privacy_assets.generators.commands:CommandGenerator",
)

# What reading a file that was damaged or changed may raise; RuntimeError: weights that do not fit their network.
_DAMAGED = (OSError, LookupError, ValueError, TypeError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)

GeneratorLike = str | Mapping[str, Any] | Callable[[pd.DataFrame, int, int], pd.DataFrame] | Generator


@dataclass(frozen=True, slots=True)
class GeneratorInfo:
    """A registered generator and whether it can run here; ``missing`` are modules that are not installed.

    ``repeatable``: the same seed gives the same rows. ``settings`` are those with a default, ``required`` the others.
    ``apart`` is the command that makes the environment it needs beside this one, if it does.
    """

    name: str
    summary: str
    licence: str
    extra: str | None
    missing: tuple[str, ...]
    repeatable: bool
    settings: Mapping[str, Any]
    required: tuple[str, ...]
    apart: str | None

    @classmethod
    def of(cls, kind: type[Generator]) -> GeneratorInfo:
        """What is known of a generator; imports none of its modules."""
        missing = tuple(module for module in kind.modules if not _there(module))
        settings, required = {}, []
        for field in fields(kind):  # type: ignore[arg-type]
            default = default_of(field)
            if default is MISSING:
                required.append(field.name)
            else:
                settings[field.name] = default
        what = (kind.name, kind.summary, kind.licence, kind.extra)
        apart = kind.apart[1] if kind.apart is not None and not _there(kind.apart[0]) else None
        return cls(*what, missing, kind.repeatable, settings, tuple(required), apart)

    @property
    def available(self) -> bool:
        """True when nothing is missing."""
        return not self.missing

    @property
    def install(self) -> str | None:
        """The command that installs what is missing; None when nothing is."""
        if self.available:
            return None
        return f"pip install '{f'privacy-assets[{self.extra}]' if self.extra else self.missing[0]}'"

    def to_json(self) -> dict[str, Any]:
        """Return a plain mapping."""
        return {**asdict(self), "available": self.available, "install": self.install}

    def check_available(self) -> None:
        """ConfigError naming what is missing and how to install it."""
        if not self.available:
            raise ConfigError(f"generator {self.name} needs {self.missing[0]}. Fix: {self.install}.")


def generator_info() -> list[GeneratorInfo]:
    """Every registered generator, in the order of the registry; imports nothing heavy."""
    return [GeneratorInfo.of(kind) for kind in GENERATORS.values()]


def build_generator(
    generator: str | Callable[[pd.DataFrame, int, int], pd.DataFrame], settings: Mapping[str, Any] | None = None
) -> Generator:
    """Return a generator by registry name, by ``"module:function"``, or around a function, with ``settings``.

    Raises ConfigError for an unknown name or setting, a missing extra, and a function that another process could not
    import by its name (a lambda or a nested function).
    """
    given = dict(settings or {})
    if callable(generator) or ":" in generator:
        if given:
            raise ConfigError("a function takes no settings; bind them inside the function.")
        return CallableGenerator(generator)
    if generator not in GENERATORS:
        raise ConfigError(f"unknown generator {shown(generator)}.{did_you_mean(generator, GENERATORS)}")
    kind = GENERATORS[generator]
    info = GeneratorInfo.of(kind)
    absent = [key for key in info.required if key not in given]
    if absent:
        raise ConfigError(f"generator {generator} needs the settings {', '.join(absent)}.")
    built = kind(**given)
    info.check_available()
    return built


def as_generator(given: GeneratorLike) -> Generator:
    """A generator from itself, a name, a mapping of ``name`` and ``settings``, a function, or ``"module:function"``."""
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
    """Read a fitted generator that :meth:`FittedGenerator.save` wrote; ConfigError when a module of it is missing."""
    manifest = read_manifest(folder)
    name = str(manifest.get("name"))
    if name not in GENERATORS:
        raise InputError(f"unknown generator {shown(name)}.{did_you_mean(name, GENERATORS)}", where=str(folder))
    GeneratorInfo.of(GENERATORS[name]).check_available()
    try:
        generator, schema = GENERATORS[name](**manifest["settings"]), TableSchema.from_json(manifest["schema"])
        fitted = generator.load(Path(folder), schema, manifest)
        fitted.history, fitted.privacy = tuple(manifest["history"]), PrivacyBudget(**manifest["privacy"])
        fitted.levels = manifest["levels"]
        return fitted
    except PrivacyAssetsError:
        raise
    except _DAMAGED as error:
        wrong = f"the fitted generator is not complete ({type(error).__name__})"
    raise InputError(wrong, where=str(folder), fix="fit it again")  # outside: the other message is not ours


def _there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False
