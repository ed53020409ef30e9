"""Architecture rules: allowed imports, the cost of loading the code location, and the contents of
the deployment.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest
from test_definitions import shape

from privacy_assets.dagster.demo import demo_spec, demo_table
from privacy_assets.studies.leak_study_job import build_leak_study

ROOT = Path(__file__).parents[2]
HEAVY = [
    "torch",
    "faiss",
    "great_expectations",
    "sklearn",
    "numba",
    "statsmodels",
    "matplotlib",
    "jinja2",
    "scipy.stats",
]


def python(code: str, **environment: str) -> str:
    """Standard output of a fresh interpreter in the repository."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
@pytest.mark.parametrize(
    "environment", ["local", pytest.param("production", marks=pytest.mark.slow)]
)
def test_loading_the_definitions_imports_little_and_nothing_heavy(environment: str) -> None:
    """Apart from Dagster and pandas, which a code location imports anyway."""
    code = f"""
import sys, dagster, pandas
before = len(sys.modules)
import definitions
print([name for name in {HEAVY!r} if name in sys.modules], len(sys.modules) - before < 300)
"""
    places = dict.fromkeys(("STORAGE", "RELEASES", "PRIVATE", "TRUSTED_KEYS"), "/nowhere")
    env = {f"PRIVACY_ASSETS_{name}": value for name, value in places.items()}
    assert python(code, PRIVACY_ASSETS_ENV=environment, **env) == "[] True"


@pytest.mark.slow
def test_the_fork_server_has_the_libraries_of_the_steps_and_no_threads() -> None:
    """Forked steps would not have the threads.

    OpenBLAS, which handles forks, is limited to one, and the thread of Arrow's allocator, which
    does so as well, is not counted. An extra may be missing.
    """
    code = """
import gc, sys
from pathlib import Path
sys.modules["dagster_postgres"] = None  # as if it were not installed
import privacy_assets.dagster.preload
threads = [file.read_text().strip() for file in Path("/proc/self/task").glob("*/comm")]
print(len([name for name in threads if name != "jemalloc_bg_thd"]), gc.get_freeze_count() > 100_000)
print({"alembic", "faiss", "great_expectations", "numba", "scipy.stats", "sklearn.tree", "torch"} - set(sys.modules))
"""  # noqa: E501
    assert python(code, OPENBLAS_NUM_THREADS="1").splitlines() == ["1 True", "set()"]


@pytest.mark.parametrize("folder", ["resources", "sensors"])
def test_the_deployment_holds_values_and_calls_only(folder: str) -> None:
    files = list((ROOT / folder).rglob("*.py"))
    assert files
    for file in files:
        nodes = list(ast.walk(ast.parse(file.read_text())))
        bodies = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
        assert not [node for node in nodes if isinstance(node, bodies)], file


def test_the_deployment_serves_the_demo_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    import definitions

    study = build_leak_study(demo_spec())
    both = dg.Definitions.merge(demo_table(), study, demo_table(leak=True))
    found, wanted = shape(definitions.defs), shape(both)
    assert {**found, "schedules": []} == {**wanted, "schedules": []}
    dg.Definitions.validate_loadable(definitions.defs)
