"""Singling out: predicates that isolate a synthetic row, and the real subjects that they match."""

from privacy_assets.metrics.singling_out.metric import SinglingOut

__all__ = ["SinglingOut"]
