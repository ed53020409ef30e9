"""Distance to the closest record: the search, and what three statistics make of it."""

from privacy_assets.metrics.dcr.metric import Dcr

__all__ = ["Dcr"]
