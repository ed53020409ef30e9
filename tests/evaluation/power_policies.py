"""Policies that a non-leaking release of few people passes, fails, and cannot be assessed with."""

from __future__ import annotations

LOOSE = {
    "name": "loose",
    "limits": [{"statistic": "dcr.identical_excess", "at_most": 0.3, "bound": "proven"}],
}
CLOSE = {"name": "close", "limits": [{"statistic": "dcr.privacy_score", "at_most": 0.001}]}
BROKEN = {
    "name": "broken",
    "limits": [{"statistic": "fidelity.column_similarity", "at_least": 1, "bound": "value"}],
}
