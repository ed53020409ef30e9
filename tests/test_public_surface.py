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
    "TableSpec",
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


def test_engine_gate_and_report_work_where_dagster_is_blocked() -> None:
    code = (
        "import sys, pkgutil, importlib; sys.modules['dagster'] = None\n"
        "import privacy_assets as p, privacy_assets.engine as e, privacy_assets.gate as g, privacy_assets.report as r\n"
        "import privacy_assets.pipeline as t, privacy_assets.stats as s\n"
        "names = [m.name for q in (s, e, g, r, t) for m in pkgutil.walk_packages(q.__path__, q.__name__ + '.')]\n"
        "[importlib.import_module(n) for n in names]; p.evaluate; p.Policy.default(); print(len(names) > 20)"
    )
    assert run(code).strip() == "True"


def test_the_registry_imports_no_heavy_library() -> None:
    heavy = "{'dagster', 'torch', 'faiss', 'sklearn', 'numba', 'statsmodels', 'matplotlib', 'great_expectations'}"
    code = (
        "import sys, privacy_assets.engine.registry, privacy_assets.engine.generators, privacy_assets.report.evaluate\n"
        f"print({heavy} & set(sys.modules))"
    )
    assert run(code).strip() == "set()"
