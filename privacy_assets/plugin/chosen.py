"""What the arguments generator, filter and embedder mean; ConfigError names the table and the fix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from privacy_assets.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from privacy_assets.engine.filters import MemorizationFilter
    from privacy_assets.engine.generators import Generator, GeneratorLike


def chosen_generator(given: GeneratorLike, where: str) -> tuple[Generator, str]:
    """The generator, and what it is called."""
    from privacy_assets.engine.generators import as_generator

    try:
        built = as_generator(given)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    named = given["name"] if isinstance(given, Mapping) else given
    return built, named if isinstance(named, str) else getattr(named, "__qualname__", type(named).__name__)


def chosen_filter(given: Any, brought: bool, where: str) -> MemorizationFilter | None:
    """A filter from its name, or ``{"name", "settings"}``."""
    from privacy_assets.engine.filters import build_filter

    if given is None:
        return None
    if brought:
        raise ConfigError(f"{where}: a filter draws further rows from the generator; filter your own table yourself.")
    named: Mapping[str, Any] = given if isinstance(given, Mapping) else {"name": given}
    settings = named.get("settings") or {}
    known = isinstance(named.get("name"), str) and isinstance(settings, Mapping)
    if not known or set(named) - {"name", "settings"}:
        raise ConfigError(f"{where}: filter is a name, or a mapping of 'name' and 'settings'.")
    try:
        return build_filter(named["name"], settings)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def chosen_embedder(given: Mapping[str, Any] | bool, where: str) -> dict[str, Any] | None:
    """Settings of the embedder from a mapping or true; None for false."""
    from privacy_assets.engine.geometry.embedder import EmbedderSettings

    if isinstance(given, bool):
        return {} if given else None
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where}: embedder is true, false or a mapping of settings.")
    known = {entry.name for entry in fields(EmbedderSettings)}
    for name in given:
        if name not in known:
            raise ConfigError(f"{where}: the embedder has no setting {name!r}.{did_you_mean(str(name), known)}")
    try:
        EmbedderSettings(**given)
    except (ConfigError, TypeError) as error:
        raise ConfigError(f"{where}: {error}") from None
    return dict(given)
