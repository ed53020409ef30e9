"""Value disclosure: values that no real row has, and those of real people."""

from privacy_assets.metrics.value_disclosure.metric import ValueDisclosure

__all__ = ["ValueDisclosure"]
