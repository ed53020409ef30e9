"""What the arguments generator, filter, embedder and gpu_tags mean; ConfigError names the table and the fix."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from privacy_assets.engine.tables.roles import Declared
from privacy_assets.errors import ConfigError, did_you_mean, shown

if TYPE_CHECKING:
    from privacy_assets.engine.filters import Filter
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


def chosen_filters(given: Any, brought: bool, where: str) -> tuple[Filter, ...]:
    """Filters from a name, ``{"name", "settings"}``, or a list of these; in the order of the registry."""
    from privacy_assets.engine.filters import as_filters

    try:
        found = as_filters(given)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    if found and brought:
        raise ConfigError(f"{where}: a filter draws further rows from the generator; filter your own table yourself.")
    return found


def chosen_columns(drop: Any, generated: Any, domains: Any, subject: str | None, where: str) -> Declared:
    """What was declared of columns beside their kinds."""
    try:
        return Declared.of(drop, generated, domains, subject=subject)
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
            raise ConfigError(f"{where}: the embedder has no setting {shown(name)}.{did_you_mean(name, known)}")
    try:
        EmbedderSettings(**given)
    except (ConfigError, TypeError) as error:
        raise ConfigError(f"{where}: {error}") from None
    return dict(given)


def chosen_tags(given: Any, where: str) -> dict[str, Any]:
    """Tags of the steps that may use a device: text, and values that JSON gives back as they are."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where}: gpu_tags is a mapping of tags, not {type(given).__name__}.")
    for name, value in given.items():
        if not isinstance(name, str):
            raise ConfigError(f"{where}: gpu_tags: the tag {shown(name)} must be text.")
        try:
            kept = json.loads(json.dumps(value)) == value
        except (TypeError, ValueError):
            kept = False
        if not kept:
            raise ConfigError(f"{where}: gpu_tags: {name} holds what JSON cannot. Fix: text, numbers, lists, mappings.")
    return dict(given)
