"""Commands and steps import no library that they do not need."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
LIBRARIES = [
    "airflow",
    "cryptography",
    "dagster",
    "faiss",
    "great_expectations",
    "jinja2",
    "joblib",
    "matplotlib",
    "numba",
    "pandas",
    "pyarrow",
    "ray",
    "scipy",
    "sklearn",
    "sqlalchemy",
    "statsmodels",
    "sympy",
    "torch",
]
# By part, in the order in which one process runs them: the libraries that no earlier part needs.
NEEDED: dict[str, set[str]] = {
    "command line": set(),
    "keys": {"joblib", "pandas", "pyarrow"},  # the gate, which knows the folders, reads tables
    "policy": set(),
    "read": {"cryptography"},
    "split": {"numba", "scipy"},  # the threshold rule; scipy: numba imports it
    "embed": {"torch"},
    "fit": {"numba", "scipy"},  # scipy: numba imports it
    "sample": set(),
    "prepare": set(),
    "dcr": {"faiss"},
    "memorization": set(),
    "vulnerability": set(),
    "value_disclosure": set(),
    "attest": set(),
    "report": {"jinja2"},
    "publish": set(),
    "evaluate": {"sklearn"},
}
PARTS = """
import contextlib, io, json, sys
from contextlib import nullcontext
libraries, metrics = json.loads(sys.argv[1])
found = {}
def ended(part):
    known = set().union(*found.values())
    found[part] = [name for name in libraries if name in sys.modules and name not in known]
from privacy_assets.cli.main import main
ended("command line")
for command in ("keys", "policy"):
    with contextlib.redirect_stdout(io.StringIO()):
        main([command])
    ended(command)
from privacy_assets.gate.deployment import DeploymentSettings
from privacy_assets.gate.envelope import ReleaseTarget
from privacy_assets.pipeline.resolve import ResolvedTable
from privacy_assets.pipeline.spec import TableSpec
from privacy_assets.pipeline.steps import run_table
from privacy_assets.pipeline.work import TableRun
spec = TableSpec(name="people", source="people.parquet", subject="person", evaluation={"metrics": metrics})
run = TableRun(ResolvedTable.of(spec), DeploymentSettings(home="home").open(), ReleaseTarget("people"))
for task, result in run_table(run, lambda wanted: nullcontext("cpu"), lambda name: nullcontext()):
    ended(task.name)
    if task.name == "attest":
        result.report.to_html()
        ended("report")
tables = [word for role in ("train", "holdout", "synthetic") for word in (f"--{role}", f"{role}.parquet")]
with contextlib.redirect_stdout(io.StringIO()):
    assert main(["evaluate", *tables, "--metrics", "dcr"]) != 2
ended("evaluate")
print(json.dumps(found))
"""  # noqa: E501


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The libraries that each part imports first."""
    folder, rng = tmp_path_factory.mktemp("imports"), np.random.default_rng(0)
    rows = pd.DataFrame(rng.normal(size=(200, 2)), columns=["a", "b"]).assign(person=range(200))
    rows = rows.assign(c=rng.choice(list("xyz"), 200))
    rows.to_parquet(folder / "people.parquet")
    for part, role in enumerate(("train", "holdout", "synthetic")):
        rows[part::3].drop(columns="person").to_parquet(folder / f"{role}.parquet")
    metrics = ["dcr", "memorization", "vulnerability", "value_disclosure"]
    command = [sys.executable, "-c", PARTS, json.dumps([LIBRARIES, metrics])]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "DAGSTER_HOME": str(folder)}
    environment["PRIVACY_ASSETS_SPLIT_KEY"] = "the same split in every run"
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env=environment, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("part", NEEDED)
def test_a_part_imports_only_what_it_needs(part: str, imported: dict[str, list[str]]) -> None:
    assert set(imported[part]) <= NEEDED[part]


def test_every_part_is_in_the_table(imported: dict[str, list[str]]) -> None:
    assert set(imported) == set(NEEDED)
