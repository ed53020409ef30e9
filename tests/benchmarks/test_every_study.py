"""Every study that writes a line for each piece of work runs once, and its report shows the
results.
"""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest

from benchmarks import filters, scalability

pytestmark = pytest.mark.weekly


class Study(NamedTuple):
    """A small run of a benchmark: the number of lines that it writes, and a pattern that its report
    must match.
    """

    module: str
    options: str
    lines: int
    told: list[str]


STUDIES = [
    Study(
        "dimensions",
        "TABLE --rows=80 --dims=2,3 --epochs=2 --repeats=2",
        4,
        [r"^\| 2 \|.*\|  \|$", r"^\| 3 \|.* 0\.0089 ± 0\.0134 \|$"],
    ),
    Study("scalability", "TABLE --sizes=100 --epochs=1", 4, ["100 rows", "paper, s"]),
    Study(
        "generators",
        "TABLE --rows=400 --generators=baynet,copy --no-embedder",
        2,
        ["^## small, 400 rows$", r"^\| baynet \|", r"^\| copy \|.*\| fail \|$"],
    ),
    Study(
        "demo_keys",
        "--keys=2 --metrics=attribute_inference",
        2,
        [
            r"^2 keys, 0 with the encoder: {'pass': 2}",
            r"\| attribute_inference\.excess\.proven \| -?0\.0",
        ],
    ),
    Study(
        "copies",
        "TABLE --people=300 --draws=2",
        24,
        [
            r"^\| small \(300 people, 100 % of rows distinct\) \| 0 \| ",
            r"^\|  \| 100 \| 99\.\d \[",
            "of 48 intervals contain",
        ],
    ),
    Study(
        "leaks",
        "TABLE --people=200 --draws=1 --unseen",
        22,
        [
            r"^\| fresh rows \|",
            r"^\| `copies\.repeated_share\.proven` \| \d",
            r"^\| 20 % between two \| \d",
            "^18 leaks and 4 ",
        ],
    ),
    Study(
        "membership_scores",
        "TABLE --people=200 --kinds synthpop baynet",
        2,
        [
            r"^\| classifier \| 0\.0 \| 0\.0 \| 0\.0 \| 0\.0 of 0 \| 0 of 0 \| 0 of 0 \|$",
            r"^\| synthpop \| 0\.\d",
            "^0 of 0 leaks in 1 ",
        ],
    ),
    Study(
        "filters",
        "TABLE --filters=memorization+outliers",
        4,
        [
            r"^\| small \| unseen rows \| none \| 0\.0 % \| ",
            r"^\| small \| 10 % copies \| memorization\+outliers \| [1-9]",
        ],
    ),
    Study(
        "leaks",
        "TABLE --people=200 --draws=1 --kinds=baynet --metrics=dcr --embedder",
        1,
        ["^0 leaks and 1 "],
    ),
    Study(
        "power",
        "TABLE --people=200 --draws=2",
        7,
        [r"^\| small \| 200 \| .* % \| .* % \| .* % \| .* % \| ", "^At least 2 splits"],
    ),
    Study(
        "power",
        "TABLE --every-row --people=200 --draws=2",
        3,
        [r"^\| small, 200 \| 10 % \| 100 % \| ", "^At least 2 splits"],
    ),
    Study(
        "first_page",
        "TABLE --people=200",
        1,
        [r"^\| fresh rows, 0 \| \d / \d / \d \| 0 \|", r"^\| 0 \| \d"],
    ),
    Study("demo_keys", "--leak --keys=1 --embedded=0", 1, ["{'fail': 1}"]),
]


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: f"{study.module} {study.lines}")
def test_a_study_is_run_once_and_reported(
    study: Study,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rng, table, results = (
        np.random.default_rng(0),
        tmp_path / "small.parquet",
        tmp_path / "out.jsonl",
    )
    frame = pd.DataFrame({"a": rng.integers(0, 900, 1200), "b": rng.normal(size=1200).round(2)})
    frame.assign(c=rng.choice(list("xyz?"), 1200), d=rng.choice(list("mn"), 1200)).to_parquet(table)

    monkeypatch.setattr(
        scalability, "default_metrics", lambda: ("singling_out", "value_disclosure")
    )

    for name, value in (("ROWS", 300), ("UNSEEN", 150), ("POOL", 600)):
        monkeypatch.setattr(filters, name, value)

    def run(*options: str) -> str:
        monkeypatch.setattr(sys, "argv", [study.module, *options])
        import_module(f"benchmarks.{study.module}").main()
        return capsys.readouterr().out

    asked = [*study.options.replace("TABLE", str(table)).split(), f"--results={results}"]
    run(*asked)
    found = results.read_text()
    assert len(found.splitlines()) == study.lines
    run(*asked)
    assert results.read_text() == found
    told = run("--report", str(results))
    assert [words for words in study.told if not re.search(words, told, re.MULTILINE)] == [], told
