"""The workflow runs what a developer runs, on every Python that the package names, and weekly without pins."""

from __future__ import annotations

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
    assert all(re.search(r"@[0-9a-f]{40}$", step["uses"]) for step in job["steps"] if "uses" in step)


@pytest.mark.parametrize(("constraints", "pinned"), [("constraints.txt", True), ("", False)])
def test_setup_leaves_the_pins_out_when_it_is_told_so(constraints: str, pinned: bool) -> None:
    asked = ["make", "--dry-run", "--always-make", "setup", f"CONSTRAINTS={constraints}"]
    shown = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "-e '.[dev]'" in shown and ("-c constraints.txt" in shown) is pinned
