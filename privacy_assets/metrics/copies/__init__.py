"""Copies of training rows in the release: whole ones by counts of equal rows, parts of rows by how rare they are."""

from privacy_assets.metrics.copies.metric import Copies

__all__ = ["Copies"]
