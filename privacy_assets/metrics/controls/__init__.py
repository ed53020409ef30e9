"""Controls: planted leaks that must break the limits, and null tables that must not."""

from privacy_assets.metrics.controls.metric import Controls

__all__ = ["Controls"]
