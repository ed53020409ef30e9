"""Classes by name: those of the core, and those that installed packages add by entry points.

An entry point runs code of its package in this process, which may hold the signing key. It is
loaded only for a name that a table, a policy, a command or a stored model uses, never to list all.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module, metadata
from typing import Any, Generic, TypeVar

from privacy_assets.errors import ConfigError, did_you_mean, safe_repr

C = TypeVar("C")
OWN = "privacy-assets"  # name of this distribution
_MISSING = (
    f"The entry points of {OWN} are missing, so networks and studies are not found. Fix: install"
    f" {OWN} again, so that pip writes them."
)


@dataclass(frozen=True, slots=True)
class Extension:
    """An entry point of an installed distribution.

    Attributes:
        name: Name of the class in settings.
        target: The class as "module:Class".
        distribution: Name of the distribution.
        version: Version of the distribution.
    """

    name: str
    target: str
    distribution: str
    version: str

    @property
    def is_own(self) -> bool:
        """Whether this distribution has it, and not another one."""
        return self.distribution == OWN

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}"


class Registry(Mapping[str, type[C]], Generic[C]):
    """Classes of one kind by name.

    A look-up by name finds classes of the core, or loads the installed extension of that name.
    Iteration yields the classes of the core only, so that it does not depend on what was loaded.

    Args:
        base: Base class of all classes, which has their kind as ``part``.
        group: Group of the entry points.
        *targets: Classes of the core as "module:Class".
        reserved: Attributes that must be empty in the classes of other distributions.
    """

    def __init__(
        self, base: type[C], group: str, *targets: str, reserved: tuple[str, ...] = ()
    ) -> None:
        self.base = base
        self.part: str = base.part  # type: ignore[attr-defined]
        self.group = group
        self.core = _core_classes(targets)
        self._reserved = reserved
        self._loaded: dict[str, tuple[type[C], Extension]] = {}

    def __getitem__(self, name: str) -> type[C]:
        if name in self.core:
            return self.core[name]
        if name not in self._loaded:
            _entry_points.cache_clear()  # the version of the code that is loaded now
            extension = self._extension(name)
            if extension is None:
                raise KeyError(name)
            self._loaded[name] = (self._load(extension), extension)
        loaded, _ = self._loaded[name]
        return loaded

    def __iter__(self) -> Iterator[str]:
        return iter(self.core)

    def __len__(self) -> int:
        return len(self.core)

    def find(self, name: object) -> type[C]:
        """Return the class that a user names.

        Args:
            name: Name that a user wrote.

        Raises:
            ConfigError: If there is no such class, several distributions have one, or the entry
                point is broken.
        """
        if isinstance(name, str):
            self._check_unique(name)
            if name in self:
                return self[name]
        raise ConfigError(f"unknown {self.part} {safe_repr(name)}.{self.hint(name)}")

    def core_and(self, names: Iterable[str]) -> dict[str, type[C]]:
        """Return the classes of the core, followed by the extensions among some names.

        Args:
            names: Names of classes. Those that are not installed are left out.
        """
        classes = dict(self.core)
        for name in names:
            if name in self:
                classes[name] = self[name]
        return classes

    def hint(self, name: object) -> str:
        """Return a hint for a name that is not valid: the closest name, or all installed ones.

        Args:
            name: Name that a user wrote.
        """
        extensions = self.extensions()
        hint = did_you_mean(name, {*self.core, *extensions})
        if any(extension.is_own for extension in self._entry_points()):
            return hint
        return f"{hint} {_MISSING}"

    def extensions(self) -> dict[str, Extension]:
        """Return the installed extensions by name, sorted, without loading them."""
        by_name = {extension.name: extension for extension in self._entry_points()}
        return dict(sorted(by_name.items()))

    def shipped(self) -> dict[str, type[C]]:
        """Load the extensions of this distribution, and return them after the classes of the core.

        Raises:
            ConfigError: If its entry points are not installed.
        """
        own = [name for name, extension in self.extensions().items() if extension.is_own]
        if not own:
            raise ConfigError(f"{self.part}s: {_MISSING}")
        classes = dict(self.core)
        for name in own:
            classes[name] = self.find(name)
        return classes

    def of_others(self) -> dict[str, Extension]:
        """Return the installed extensions of other distributions by name, without loading them."""
        others = {}
        for name, extension in self.extensions().items():
            if not extension.is_own:
                others[name] = extension
        return others

    def distribution(self, name: str) -> str | None:
        """Return name and version of the other distribution that has a class, or None if it is of
        this distribution.

        Args:
            name: Name of the class.
        """
        extension = None
        if name in self._loaded:  # the version whose code runs, also after an upgrade
            _, extension = self._loaded[name]
        elif name not in self.core:
            extension = self._extension(name)
        if extension is None or extension.is_own:
            return None
        return str(extension)

    def _entry_points(self) -> tuple[Extension, ...]:
        return _entry_points(self.group, tuple(sys.path))

    def _check_unique(self, name: str) -> None:
        """Raise ConfigError if several distributions have a name."""
        owners = []
        for extension in self._entry_points():
            if extension.name == name:
                owners.append(str(extension))
        if name in self.core and owners:
            raise ConfigError(
                f"{self.part} {name} is part of {OWN}, and {owners[0]} has an entry point of the"
                f" same name. Fix: uninstall that distribution, or rename its {self.part}."
            )
        if len(owners) > 1:
            raise ConfigError(
                f"{self.part} {name}: several distributions have an entry point of this name:"
                f" {', '.join(sorted(owners))}. Fix: uninstall all but one."
            )

    def _extension(self, name: str) -> Extension | None:
        self._check_unique(name)
        return self.extensions().get(name)

    def _load(self, extension: Extension) -> type[C]:
        """Load an extension.

        Raises:
            ConfigError: If its code fails, or it is not a class of this kind. The message of
                foreign code is hidden.
        """
        entry_point = metadata.EntryPoint(extension.name, extension.target, self.group)
        try:
            loaded = entry_point.load()
            problem = self._problem(loaded, extension)
        except (Exception, SystemExit) as error:  # noqa: BLE001 (a package can raise anything)
            problem = f"it raises {type(error).__name__}"
        if problem:
            raise ConfigError(
                f"{self.part} {extension.name}: the entry point {safe_repr(extension.target)} of"
                f" {extension} cannot be used: {problem}. Fix: correct or uninstall that"
                " distribution."
            )
        of_kind: type[C] = loaded
        return of_kind

    def _problem(self, loaded: Any, extension: Extension) -> str:
        """Return why an object is not a class of this kind, or ""."""
        if not isinstance(loaded, type) or not issubclass(loaded, self.base):
            return f"TypeError, it is not a subclass of {self.base.__name__}"
        if "__pydantic_fields__" not in vars(loaded):
            return "TypeError, the class is not decorated with @declared"
        if loaded.name != extension.name:  # type: ignore[attr-defined]
            return "ValueError, the name of the class is different"
        for attribute in self._reserved:
            if not extension.is_own and getattr(loaded, attribute):
                return f"ValueError, only {self.part}s of {OWN} have {attribute}"
        return ""


def _core_classes(targets: Iterable[str]) -> dict[str, Any]:
    """Import classes, and return them by their ``name``, in order.

    Args:
        targets: Classes as "module:Class".

    Raises:
        TypeError: A class declares no settings, or a name is used twice.
    """
    classes: dict[str, Any] = {}
    for target in targets:
        module, _, class_name = target.partition(":")
        part = getattr(import_module(module), class_name)
        if "__pydantic_fields__" not in vars(part):
            raise TypeError(
                f"{target} declares no settings. Fix: decorate the class with @declared."
            )
        if part.name in classes:
            earlier = classes[part.name]
            raise TypeError(
                f"{target}: the name of {part.part} {part.name} is already used by"
                f" {earlier.__module__}:{earlier.__qualname__}. Fix: set a different name."
            )
        classes[part.name] = part
    return classes


@cache
def _entry_points(group: str, path: tuple[str, ...]) -> tuple[Extension, ...]:
    """Return the entry points of a group on a search path, which is the key of the cache."""
    extensions = []
    for entry_point in metadata.entry_points(group=group):
        distribution = entry_point.dist
        if distribution is None:
            continue
        extensions.append(
            Extension(entry_point.name, entry_point.value, distribution.name, distribution.version)
        )
    return tuple(extensions)
