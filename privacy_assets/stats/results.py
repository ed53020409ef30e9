"""Results of metrics: frozen, and serialisable to JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from privacy_assets.stats.estimates import Estimate, plain


@dataclass(frozen=True)
class MetricResult:
    """What one metric found.

    ``tables`` hold small aggregates and row numbers for the report (lists of flat records; never a private value or
    predicate), and ``inputs`` the fingerprint of each table that was read.
    """

    metric: str
    estimates: tuple[Estimate, ...]
    tables: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0
    engine_version: str = ""
    seconds: float = math.nan

    def estimate(self, name: str) -> Estimate:
        """Return the statistic called ``name`` (without the metric's prefix); KeyError when there is none."""
        for estimate in self.estimates:
            if estimate.name == name:
                return estimate
        raise KeyError(f"{self.metric} has no statistic {name!r}")

    def to_json(self) -> dict[str, Any]:
        """Return a plain mapping that ``json.dumps(..., allow_nan=False)`` accepts."""
        return {
            "metric": self.metric,
            "estimates": {estimate.name: estimate.to_json() for estimate in self.estimates},
            "tables": plain(self.tables),
            "settings": plain(self.settings),
            "inputs": dict(self.inputs),
            "seed": self.seed,
            "engine_version": self.engine_version,
            "seconds": plain(self.seconds),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> MetricResult:
        """Inverse of :meth:`to_json`."""
        estimates = tuple(Estimate.from_json(name, values) for name, values in data["estimates"].items())
        seconds = math.nan if data["seconds"] is None else data["seconds"]
        return cls(**{**data, "estimates": estimates, "seconds": seconds})
