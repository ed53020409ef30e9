"""Apache Airflow 3 integration: a task group, operators and a sensor, imported on first access."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from privacy_assets.errors import require

_MODULES = {
    "privacy_gate": "privacy_assets.airflow.task_group",
    "AirflowDeployment": "privacy_assets.airflow.deployment",
    "PrivacyGateOperator": "privacy_assets.airflow.operators",
    "PrivacyPublishOperator": "privacy_assets.airflow.operators",
    "PrivacyStepOperator": "privacy_assets.airflow.operators",
    "ReleaseSensor": "privacy_assets.airflow.sensor",
    "TimePartitions": "privacy_assets.pipeline.partitions",
    "release_asset": "privacy_assets.airflow.outlets",
}

__all__ = [*_MODULES]  # noqa: PLE0604 (spelled by hand in tests/test_public_surface.py)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require("airflow", "the Airflow part of privacy-assets", "airflow")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
