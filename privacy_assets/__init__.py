"""privacy-assets: the privacy gate between a synthetic table and its publication.

Names are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_MODULES = {
    "evaluate": "privacy_assets.evaluation.evaluate",
    "power_analysis": "privacy_assets.evaluation.power",
    "Report": "privacy_assets.report.report",
    "Policy": "privacy_assets.policy",
    "load_policy": "privacy_assets.metrics.policies",
    "Limit": "privacy_assets.policy",
    "on_ray": "privacy_assets.infra.parallel",
    "read_published": "privacy_assets.gate.releases",
    "TableSpec": "privacy_assets.pipeline.spec",
    "build_privacy_assets": "privacy_assets.dagster.definitions",
    "build_privacy_checks": "privacy_assets.dagster.checks",
    "build_source_sensor": "privacy_assets.dagster.sensors",
    "build_run_failure_sensor": "privacy_assets.dagster.run_failures",
    "build_table_schedule": "privacy_assets.dagster.sensors",
    "resources": "privacy_assets.dagster.resources",
    "frozen_config": "privacy_assets.dagster.frozen_config",
    "PrivacyGate": "privacy_assets.dagster.component",
    "GpuResource": "privacy_assets.dagster.resources",
    "PrivacyIOManager": "privacy_assets.dagster.resources",
    "ReleaseResource": "privacy_assets.dagster.resources",
}

__all__ = [*_MODULES]  # noqa: PLE0604 (spelled by hand in tests/test_public_surface.py)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'privacy_assets' has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    dunder = [name for name in globals() if name.startswith("__")]
    return sorted([*dunder, *_MODULES])
