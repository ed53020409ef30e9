"""The scripts in the folder of the pictures create all pictures of the docs."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
# The pages that show each script's pictures.
SCRIPTS = {
    "take.py": [ROOT / "README.md", ROOT / "docs" / "tutorial.md"],
    "take_airflow.py": [ROOT / "docs" / "airflow.md"],
}


def taken(script: str) -> set[str]:
    sys.path.insert(0, str(IMAGES))  # as in a script run by python
    try:
        return set(runpy.run_path(str(IMAGES / script))["PICTURES"])
    finally:
        sys.path.remove(str(IMAGES))


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_picture_of_a_page_is_taken_by_the_script(script: str) -> None:
    texts = [page.read_text(encoding="utf-8") for page in SCRIPTS[script]]
    shown = re.findall(r"images/(\w+)\.png", "".join(texts))
    assert set(shown) == taken(script)


def test_every_picture_is_taken_by_a_script() -> None:
    assert set().union(*map(taken, SCRIPTS)) == {path.stem for path in IMAGES.glob("*.png")}


@pytest.mark.parametrize("script", SCRIPTS)
def test_without_a_browser_it_says_so_in_one_line(script: str, tmp_path: Path) -> None:
    told = subprocess.run(
        [sys.executable, IMAGES / script, tmp_path / "out"],
        env={**os.environ, "PATH": str(tmp_path)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert told.stdout.startswith("pictures: SKIPPED") and told.stdout.count("\n") == 1
    assert not (tmp_path / "out").exists()
