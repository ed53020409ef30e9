"""Membership inference: scores of real rows, attacks with them, and statistics of these, a file each."""

from privacy_assets.metrics.membership_inference.metric import MembershipInference

__all__ = ["MembershipInference"]
