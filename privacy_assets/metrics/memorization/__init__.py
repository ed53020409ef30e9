"""Memorization: synthetic rows that stand where there is training data alone."""

from privacy_assets.metrics.memorization.metric import Memorization

__all__ = ["Memorization"]
