"""privacy-assets: the privacy gate between a synthetic table and its publication.

The front door is lazy: a name is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "evaluate": "privacy_assets.report.evaluate",
    "plan": "privacy_assets.pipeline.planning",
    "Report": "privacy_assets.report.report",
    "Policy": "privacy_assets.policy",
    "Limit": "privacy_assets.stats.limits",
    "on_ray": "privacy_assets.compute.on_ray",
    "read_published": "privacy_assets.gate.releases",
    "TableSpec": "privacy_assets.pipeline.spec",
    "build_privacy_assets": "privacy_assets.dagster.factory",
    "build_privacy_checks": "privacy_assets.dagster.checks",
    "build_source_sensor": "privacy_assets.dagster.sensors",
    "build_failed_check_sensor": "privacy_assets.dagster.sensors",
    "build_table_schedule": "privacy_assets.dagster.sensors",
    "fixed": "privacy_assets.dagster.fixed",
    "PrivacyGate": "privacy_assets.dagster.component",
    "GpuResource": "privacy_assets.dagster.gpu",
    "PrivacyIOManager": "privacy_assets.dagster.io",
    "ReleaseResource": "privacy_assets.dagster.resources",
}

__all__ = [*_HOMES]  # noqa: PLE0604 (spelled by hand in tests/test_public_surface.py)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'privacy_assets' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
