"""Fidelity: the synthetic table beside as many real rows."""

from privacy_assets.metrics.fidelity.metric import Fidelity

__all__ = ["Fidelity"]
