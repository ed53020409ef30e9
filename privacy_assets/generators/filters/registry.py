"""The registry of filters: one line each. Everything that lists or builds filters reads it from here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from privacy_assets.errors import ConfigError, did_you_mean, shown
from privacy_assets.generators.filters.base import Filter
from privacy_assets.generators.filters.near import MemorizationFilter, SimilarityFilter
from privacy_assets.generators.filters.outliers import OutlierFilter

FILTERS: dict[str, type[Filter]] = {kind.name: kind for kind in (SimilarityFilter, MemorizationFilter, OutlierFilter)}

FilterLike = str | Mapping[str, Any]


def build_filter(name: str, settings: Mapping[str, Any] | None = None) -> Filter:
    """Return the filter ``name`` with ``settings`` in place of its defaults; ConfigError for an unknown name or key."""
    if name not in FILTERS:
        raise ConfigError(f"unknown filter {shown(name)}.{did_you_mean(name, FILTERS)}")
    return FILTERS[name](**(settings or {}))


def as_filters(given: FilterLike | Sequence[FilterLike] | None) -> tuple[Filter, ...]:
    """The filters of a name, a mapping of ``name`` and ``settings``, or a list of these, in the order of the registry.

    None and an empty list: no filter. ConfigError for anything else, and for a filter that is named twice.
    """
    listed: Any = [] if given is None else given if isinstance(given, list | tuple) else [given]
    found: dict[str, Filter] = {}
    for one in listed:
        named: Mapping[str, Any] = one if isinstance(one, Mapping) else {"name": one}
        name, settings = named.get("name"), named.get("settings") or {}
        if not isinstance(name, str) or not isinstance(settings, Mapping) or set(named) - {"name", "settings"}:
            raise ConfigError("filter is a name, a mapping of 'name' and 'settings', or a list of these.")
        if name in found:
            raise ConfigError(f"filter {name} was given twice.")
        found[name] = build_filter(name, settings)
    return tuple(found[name] for name in FILTERS if name in found)
