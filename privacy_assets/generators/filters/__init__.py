"""Filters between a generator and its release: rows that are drawn, but never published (docs/filters.md)."""

from privacy_assets.generators.filters.base import Filter, FittedFilter
from privacy_assets.generators.filters.drawing import Filtered, draw
from privacy_assets.generators.filters.near import MemorizationFilter, SimilarityFilter
from privacy_assets.generators.filters.outliers import OutlierFilter
from privacy_assets.generators.filters.registry import FILTERS, FilterLike, as_filters, build_filter

__all__ = [
    "FILTERS",
    "Filter",
    "FilterLike",
    "Filtered",
    "FittedFilter",
    "MemorizationFilter",
    "OutlierFilter",
    "SimilarityFilter",
    "as_filters",
    "build_filter",
    "draw",
]
