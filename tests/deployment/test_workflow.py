"""The workflow runs the developer's commands on every supported Python, and weekly without pinned
versions.
"""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]


def test_all_runs_on_every_python_that_the_package_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = re.findall(r"Python :: (3\.\d+)$", "\n".join(project["classifiers"]), re.MULTILINE)
    job = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]["all"]
    assert job["strategy"]["matrix"]["python"] == named
    assert job["steps"][-1] == {"run": ".ci/run"} and (ROOT / ".ci/run").is_file()


@pytest.mark.parametrize(
    "workflow", sorted((ROOT / ".github/workflows").glob("*.yml")), ids=lambda path: path.stem
)
def test_workflows_name_actions_by_commit(workflow: Path) -> None:
    jobs = yaml.safe_load(workflow.read_text())["jobs"].values()
    used = [step["uses"] for job in jobs for step in job["steps"] if "uses" in step]
    assert used and all(re.search(r"@[0-9a-f]{40}$", use) for use in used)


def test_only_the_job_that_publishes_gets_a_token_of_the_release() -> None:
    flow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
    assert flow["permissions"] == {"contents": "read"}
    granted = {name: job.get("permissions") for name, job in flow["jobs"].items()}
    assert granted == {"build": None, "publish": {"id-token": "write"}}
    assert flow["jobs"]["publish"]["steps"][-1]["with"] == {"attestations": True}


def dry_run(*asked: str, **environment: str) -> str:
    command = ["make", "--dry-run", "--always-make", *asked]
    environment = {**os.environ, **environment}
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True, env=environment
    ).stdout


@pytest.mark.parametrize(("constraints", "pinned"), [("constraints.txt", True), ("", False)])
def test_setup_leaves_the_pins_out_when_it_is_told_so(constraints: str, pinned: bool) -> None:
    shown = dry_run("setup", f"CONSTRAINTS={constraints}")
    assert "-e '.[ui]'" in shown and ("-c constraints.txt" in shown) is pinned


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "extra"),
    [
        ("demo", "ui"),
        ("ui", "ui"),
        ("test", "dev"),
        ("lint", "dev"),
        ("mutations", "dev"),
        ("docs", "docs"),
    ],
)
def test_a_target_installs_what_it_needs_and_no_more(target: str, extra: str) -> None:
    assert re.findall(r"-e '\.\[(\w+)\]'", dry_run(target)) == [extra]


def test_the_ui_opens_on_a_page_that_shows_the_demo() -> None:
    """Dagster's first page shows only runs that have a code location, which those of the demo have
    not.
    """
    shown = dry_run("ui", "PORT=3177")
    assert "Open http://localhost:3177/asset-groups" in shown
    # the address of the first page is not logged
    assert "dg dev --port 3177 --log-level warning" in shown


def test_dagster_does_not_warn_of_a_second_instance_file() -> None:
    """`dg dev` warns of a dagster.yaml in its folder, which looks like a mistake of the user."""
    assert not (ROOT / "dagster.yaml").exists()
    assert "cp dagster.local.yaml" in dry_run("home")


@pytest.mark.parametrize(
    ("given", "chosen"),
    [([], "auto"), (["UV_TORCH_BACKEND=cpu"], "cpu"), (["UV_TORCH_BACKEND="], None)],
)
def test_uv_takes_the_torch_that_fits_the_machine(
    given: list[str], chosen: str | None, tmp_path: Path
) -> None:
    uv = tmp_path / "uv"
    uv.write_text("#!/bin/sh\n")
    uv.chmod(0o755)
    shown = dry_run("setup", *given, PATH=f"{tmp_path}:{os.environ['PATH']}")
    (install,) = [line for line in shown.splitlines() if "uv pip install" in line]
    assert re.findall(r"UV_TORCH_BACKEND=(\w+)", install) == ([chosen] if chosen else [])
