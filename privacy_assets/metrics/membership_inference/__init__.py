"""Membership inference: scores of real rows, attacks that use them, and statistics."""

from privacy_assets.metrics.membership_inference.metric import MembershipInference

__all__ = ["MembershipInference"]
