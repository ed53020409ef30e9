"""Gretel's Data Privacy Score with its parts, and the score of the Privacy Configuration."""

from privacy_assets.studies.data_privacy.metric import DataPrivacy

__all__ = ["DataPrivacy"]
