"""Attribute inference: attacks with the nearest synthetic rows, and statistics of their success."""

from privacy_assets.metrics.attribute_inference.metric import AttributeInference

__all__ = ["AttributeInference"]
