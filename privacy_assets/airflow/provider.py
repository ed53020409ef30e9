"""Provider metadata for Airflow."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any


def get_provider_info() -> dict[str, Any]:
    """Return the operators, sensors, triggers and links (entry point
    ``apache_airflow_provider``).
    """
    package = "privacy_assets.airflow"
    integration = {"integration-name": "privacy-assets"}
    return {
        "package-name": "privacy-assets",
        "name": "privacy-assets",
        "description": "A privacy gate for synthetic tables: split, generate, attack, evaluate,"
        " and only then publish.",
        "versions": [version("privacy-assets")],
        "integrations": [{**integration, "tags": ["service"]}],
        "operators": [{**integration, "python-modules": [f"{package}.operators"]}],
        "sensors": [{**integration, "python-modules": [f"{package}.sensor"]}],
        "triggers": [{**integration, "python-modules": [f"{package}.sensor"]}],
        "extra-links": [f"{package}.operators.PrivacyReportLink"],
        "asset-uris": [
            {
                "schemes": ["x-privacy-assets"],
                "handler": None,
                "to_openlineage_converter": f"{package}.lineage.release_dataset",
            }
        ],
    }
