"""Membership inference on the generator with shadow models, and the audit."""

from privacy_assets.studies.shadow_membership.metric import ShadowMembership

__all__ = ["ShadowMembership"]
