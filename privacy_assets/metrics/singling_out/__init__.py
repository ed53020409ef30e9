"""Singling out: predicates that isolate a synthetic row, and whom of the real people they match."""

from privacy_assets.metrics.singling_out.metric import SinglingOut

__all__ = ["SinglingOut"]
