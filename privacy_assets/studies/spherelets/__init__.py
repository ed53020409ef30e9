"""Memorization by the distance of Kuppa et al., which adds a curvature term."""

from privacy_assets.studies.spherelets.metric import SphereletMemorization

__all__ = ["SphereletMemorization"]
