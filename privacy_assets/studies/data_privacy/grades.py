"""Grades of Gretel's scores, and the Data Privacy Score."""

from __future__ import annotations

import math

LEVELS = ("Poor", "Moderate", "Good", "Very Good", "Excellent")
UNAVAILABLE = "Unavailable"


def grade(points: float) -> str:
    """Return the grade of a score (0..100), cut at 20, 40, 60 and 80 (inclusive). NaN:
    "Unavailable".

    For scores over many attacks or columns, and for the Data Privacy Score.
    """
    if math.isnan(points):
        return UNAVAILABLE
    return LEVELS[min(int(points // 20), len(LEVELS) - 1)]


def data_privacy_score(membership: float, attribute: float) -> tuple[float, str]:
    """Return the mean of the two protection scores, and the grade of the worse one.

    NaN and "Unavailable" if either is NaN.
    """
    mean = (membership + attribute) / 2
    if math.isnan(mean):
        return mean, UNAVAILABLE
    return mean, grade(min(membership, attribute))
