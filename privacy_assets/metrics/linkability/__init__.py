"""Linkability: two halves of a record, joined through the synthetic table."""

from privacy_assets.metrics.linkability.metric import Linkability

__all__ = ["Linkability"]
