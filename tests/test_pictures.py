"""The pictures of the docs come from the script beside them."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "docs" / "images" / "take.py"


def test_every_picture_of_the_readme_is_taken_by_the_script() -> None:
    shown = re.findall(r"docs/images/(\w+)\.png", (ROOT / "README.md").read_text(encoding="utf-8"))
    taken = runpy.run_path(str(SCRIPT))["PICTURES"]
    assert set(shown) == set(taken) == {path.stem for path in SCRIPT.parent.glob("*.png")}


def test_without_a_browser_it_says_so_in_one_line(tmp_path: Path) -> None:
    told = subprocess.run(
        [sys.executable, SCRIPT, tmp_path / "out"], env={**os.environ, "PATH": str(tmp_path)},
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert told.stdout.startswith("pictures: SKIPPED") and told.stdout.count("\n") == 1
    assert not (tmp_path / "out").exists()
