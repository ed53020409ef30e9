"""Use of the installed package: dg in this repository, the wheel in a separate project, a process
per step.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from standins import people

from privacy_assets import read_published

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
PROJECT = """
[project]
name = "shop"
version = "0.1.0"
requires-python = ">=3.11"

[tool.dg]
directory_type = "project"

[tool.dg.project]
root_module = "shop"
"""
LOADED = """
from pathlib import Path
from dagster import definitions, load_from_defs_folder

@definitions
def defs():
    return load_from_defs_folder(path_within_project=Path(__file__).parent)
"""


def call(*command: str, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def script(name: str) -> str:
    path = Path(sys.executable).parent / name
    if not path.exists():
        pytest.skip(f"{name} is not installed")
    return str(path)


def test_dg_serves_the_repository_without_flags(tmp_path: Path) -> None:
    dg_command = script("dg")
    assert "successfully" in call(dg_command, "check", "defs", cwd=ROOT, DAGSTER_HOME=str(tmp_path))
    listed = json.loads(
        call(dg_command, "list", "defs", "--json", cwd=ROOT, DAGSTER_HOME=str(tmp_path))
    )
    keys = {asset["key"] if "key" in asset else asset["asset_key"] for asset in listed["assets"]}
    assert {"patients/published", "patients_leak/published"} <= keys


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds only the installed wheel."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("site")
    wheels = tmp_path_factory.mktemp("wheels")
    call(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels), cwd=ROOT)
    (wheel,) = wheels.glob("*.whl")
    call(
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--target",
        str(folder),
        str(wheel),
        cwd=folder,
    )
    return folder


@pytest.mark.weekly
def test_the_component_works_from_the_wheel_in_a_fresh_project(site: Path, tmp_path: Path) -> None:
    dg_command = script("dg")
    shop = tmp_path / "src" / "shop"
    (shop / "defs").mkdir(parents=True)
    for name in ("__init__.py", "defs/__init__.py"):
        (shop / name).touch()
    (shop / "definitions.py").write_text(LOADED)
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    environment = {"PYTHONPATH": f"{site}:{tmp_path / 'src'}", "DAGSTER_HOME": str(tmp_path)}
    call(
        dg_command,
        "scaffold",
        "defs",
        "privacy_assets.PrivacyGate",
        "patients",
        cwd=tmp_path,
        **environment,
    )
    folder = shop / "defs" / "patients"
    assert "privacy_assets.PrivacyGate" in (folder / "defs.yaml").read_text()
    assert "successfully" in call(dg_command, "check", "yaml", cwd=tmp_path, **environment)
    assert "successfully" in call(dg_command, "check", "defs", cwd=tmp_path, **environment)
    listed = call(dg_command, "list", "defs", "--json", cwd=tmp_path, **environment)
    assert "patients/published" in listed
    scaffold = (folder / "defs.yaml").read_text()
    n_lines = len(scaffold.splitlines())
    for setting, wrong in (
        ("sorce: demo", "attributes.sorce"),
        ("data: {dorp: [claim_id]}", "attributes.data.dorp"),
    ):
        (folder / "defs.yaml").write_text(f"{scaffold}  {setting}\n")
        broken = subprocess.run(
            [dg_command, "check", "yaml"],
            cwd=tmp_path,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
        )
        output = broken.stdout + broken.stderr
        assert (
            broken.returncode != 0 and f"defs.yaml:{n_lines + 1} - " in output and wrong in output
        )


LOCATION = """
from pathlib import Path
import dagster as dg
from standins import people_table
from privacy_assets import frozen_config

executor = frozen_config(dg.multiprocess_executor, {"max_concurrent": 2})

def stepwise(table: dg.Definitions) -> dg.Definitions:
    return dg.Definitions(assets=table.assets, jobs=table.jobs, resources=table.resources, executor=executor)

defs = stepwise(people_table(Path(__file__).parent, generator="synthpop"))
"""  # noqa: E501


def test_a_process_per_step(tmp_path: Path) -> None:
    people().to_parquet(tmp_path / "people.parquet")
    (tmp_path / "location.py").write_text(LOCATION)
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    environment = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests/helpers'}", "DAGSTER_HOME": str(tmp_path)}
    command = (script("dagster"), "job", "execute", "-f", "location.py", "-j", "people_pipeline")
    call(*command, cwd=tmp_path, **environment)
    assert len(read_published(tmp_path / "releases", "people"))
