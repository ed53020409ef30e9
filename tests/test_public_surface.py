"""The front door: spelled by hand, lazy, and free of dagster until a plugin name is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import privacy_assets

NAMES = {
    "GpuResource",
    "Limit",
    "Policy",
    "PrivacyGate",
    "PrivacyIOManager",
    "ReleaseResource",
    "Report",
    "build_failed_check_sensor",
    "build_privacy_assets",
    "build_privacy_checks",
    "build_source_sensor",
    "build_table_schedule",
    "evaluate",
    "fixed",
    "on_ray",
    "read_published",
}


def test_the_exported_names_are_these() -> None:
    assert set(privacy_assets.__all__) == NAMES
    assert set(dir(privacy_assets)) >= NAMES


@pytest.mark.parametrize("name", sorted(NAMES))
def test_every_name_can_be_used(name: str) -> None:
    assert getattr(privacy_assets, name).__doc__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'evaluat'"):
        _ = privacy_assets.evaluat


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_importing_the_package_imports_nothing_heavy() -> None:
    heavy = "{'dagster', 'pandas', 'torch', 'faiss', 'numpy', 'sklearn', 'numba'}"
    assert run(f"import sys, privacy_assets; print({heavy} & set(sys.modules))").strip() == "set()"


def test_registries_report_and_embedder_import_no_heavy_library() -> None:
    heavy = {"dagster", "torch", "faiss", "sklearn", "numba", "scipy", "jinja2", "sdmetrics", "statsmodels",
             "matplotlib", "great_expectations"}  # fmt: skip
    code = (
        "import sys, privacy_assets.engine.registry, privacy_assets.engine.geometry.embedder\n"
        "from privacy_assets.report import evaluate, html, plots, report, text\n"
        "from privacy_assets.engine.generators import build_generator, generator_info\n"
        "build_generator('synthpop'), generator_info()\n"
        f"print({heavy} & set(sys.modules))"
    )
    assert run(code).strip() == "set()"
