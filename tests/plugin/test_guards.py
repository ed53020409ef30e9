"""Walls that must stay: what may import what, what loading the code location costs, what the deployment may hold."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest
from test_definitions import shape

from privacy_assets.dagster.demo import demo_table

ROOT = Path(__file__).parents[2]
HEAVY = (
    "torch",
    "faiss",
    "great_expectations",
    "sklearn",
    "numba",
    "statsmodels",
    "matplotlib",
    "jinja2",
    "scipy.stats",
)


def python(code: str, **environment: str) -> str:
    """Standard output of a fresh interpreter in the repository."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_all_below_the_plugins_does_without_orchestrators() -> None:
    code = """
import sys, pkgutil, importlib
sys.modules["dagster"] = sys.modules["airflow"] = None
import privacy_assets
for module in pkgutil.walk_packages(privacy_assets.__path__, "privacy_assets."):
    if module.name.split(".")[1] not in ("dagster", "airflow"):
        importlib.import_module(module.name)
import privacy_assets.cli.main
privacy_assets.evaluate, privacy_assets.Policy.default()
print("done")
"""
    assert python(code) == "done"


@pytest.mark.parametrize("environment", ["local", "production"])
def test_loading_the_definitions_imports_nothing_heavy(environment: str) -> None:
    code = f"import sys, definitions; print([name for name in {HEAVY!r} if name in sys.modules])"
    places = dict.fromkeys(("STORAGE", "RELEASES", "PRIVATE", "TRUSTED_KEYS"), "/nowhere")
    env = {f"PRIVACY_ASSETS_{name}": value for name, value in places.items()}
    assert python(code, PRIVACY_ASSETS_ENV=environment, **env) == "[]"


@pytest.mark.slow
def test_loading_the_definitions_is_cheap() -> None:
    code = """
import time
start = time.process_time()
import dagster, pandas
base = time.process_time() - start
import definitions
print((time.process_time() - start) / base)
"""
    assert min(float(python(code)) for _ in range(3)) <= 1.5


@pytest.mark.parametrize("folder", ["resources", "sensors"])
def test_the_deployment_holds_values_and_calls_only(folder: str) -> None:
    files = list((ROOT / folder).rglob("*.py"))
    assert files
    for file in files:
        nodes = list(ast.walk(ast.parse(file.read_text())))
        bodies = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
        assert not [node for node in nodes if isinstance(node, bodies)], file


def test_imports_point_one_way() -> None:
    for file in (ROOT / "privacy_assets").rglob("*.py"):
        imported = {name.split(".")[0] for name in _imports(file)}
        assert not imported & {"definitions", "resources", "sensors", "tests"}, file
        room = file.relative_to(ROOT / "privacy_assets").parts[0]
        above = {
            "engine": ("gate", "report", "pipeline", "plugin"),
            "gate": ("pipeline", "plugin"),
            "report": ("pipeline", "plugin"),
            "pipeline": ("plugin",),
        }.get(room, ())
        taken = {name.split(".")[1] for name in _imports(file) if name.startswith("privacy_assets.")}
        assert not taken & set(above), file


def _imports(file: Path) -> list[str]:
    names: list[str] = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.append(node.module)
    return names


def test_the_deployment_serves_the_demo_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    import definitions

    both = dg.Definitions.merge(demo_table(), demo_table(leak=True))
    found, wanted = shape(definitions.defs), shape(both)
    assert {**found, "schedules": []} == {**wanted, "schedules": []}
    dg.Definitions.validate_loadable(definitions.defs)
