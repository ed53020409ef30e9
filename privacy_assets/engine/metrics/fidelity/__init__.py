"""Fidelity: the synthetic table beside as many real rows."""

from privacy_assets.engine.metrics.fidelity.metric import Fidelity

__all__ = ["Fidelity"]
