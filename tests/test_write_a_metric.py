"""docs/write_a_metric.md, followed exactly in a copy of the package: files written, lines added,
commands run.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "write_a_metric.md").read_text(encoding="utf-8")
# One process runs all commands like the installed command, whose path does not contain the working
# folder.
DRIVER = """
import json, sys
from privacy_assets.cli.main import main
for words in json.loads(sys.argv[1]):
    print(json.dumps([words, main(words)]), flush=True)
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def commands() -> list[list[str]]:
    """The arguments of the page's commands of this package."""
    lines = "\n".join(blocks("sh")).replace("\\\n", " ").splitlines()
    found = [shlex.split(line, comments=True) for line in lines]
    return [
        words[words.index("privacy-assets") + 1 :] for words in found if "privacy-assets" in words
    ]


def people(rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age = rng.integers(18, 90, rows)
    weight = (50 + 0.2 * age + rng.normal(0, 9, rows)).round(1)
    return pd.DataFrame({"age": age, "weight": weight, "smoker": rng.integers(0, 2, rows)})


def towns(rows: int, seed: int) -> pd.DataFrame:
    return people(rows, seed).assign(
        town=np.random.default_rng(seed).choice(["Leith", "Oban"], rows)
    )


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package with the page's changes, and tables under the names that its commands use."""
    folder = tmp_path_factory.mktemp("checkout")
    # include compiled loops, but not unfinished ones
    others = shutil.ignore_patterns("*.pyc*", "*.tmp*")
    shutil.copytree(ROOT / "privacy_assets", folder / "privacy_assets", ignore=others)
    for text in (*blocks("python"), *blocks("yaml")):
        name = text.partition("\n")[0].removeprefix("# ")
        (folder / name).write_text(text, encoding="utf-8")
    for text in blocks("diff"):
        (first, before, after) = text.splitlines()
        path = folder / first.removeprefix("--- ")
        assert before[0] == " " and after[0] == "+", (
            "a line that is there, and the one line to be added"
        )
        code = path.read_text(encoding="utf-8")
        assert code.count(f"{before[1:]}\n") == 1
        path.write_text(
            code.replace(f"{before[1:]}\n", f"{before[1:]}\n{after[1:]}\n"), encoding="utf-8"
        )
    for seed, name in enumerate(("train", "holdout", "synthetic")):
        towns(300, seed).to_parquet(folder / f"{name}.parquet")
    town = pd.read_parquet(folder / "train.parquet")["town"].unique()
    towns(300, 3).assign(town=[town[0]] * 7 + [town[1]] * 293).to_parquet(folder / "rare.parquet")
    return folder


def run(folder: Path, *given: list[str]) -> tuple[list[int], str]:
    """Exit statuses and the whole output."""
    env = {name: value for name, value in os.environ.items() if name != "DAGSTER_HOME"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", DRIVER, json.dumps(given)],
        cwd=folder,
        env={**env, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    said = done.stdout + done.stderr
    statuses = [json.loads(line)[1] for line in done.stdout.splitlines() if line.startswith("[[")]
    assert len(statuses) == len(given), said
    return statuses, said


def test_each_thing_is_one_file_and_one_line() -> None:
    assert [text.partition("\n")[0] for text in blocks("python")] == [
        "# privacy_assets/metrics/smallest_class.py"
    ]
    assert [
        len([line for line in text.splitlines() if line.startswith("+")]) for text in blocks("diff")
    ] == [1]
    assert [words[0] for words in commands()] == ["evaluate", "evaluate"]


@pytest.mark.slow
def test_the_metric_is_measured_and_its_limits_are_judged(checkout: Path) -> None:
    metric, limit = commands()
    rare = ["rare.parquet" if word == "synthetic.parquet" else word for word in limit]
    asked = [[*metric, "--json=metric.json", "--html=metric.html"], [*limit, "--json=limit.json"]]
    statuses, said = run(checkout, *asked, [*rare, "--json=rare.json"])
    assert statuses == [3, 0, 1], said  # the metric alone is a part of the policy
    own, common, few = (
        json.loads((checkout / f"{name}.json").read_text()) for name in ("metric", "limit", "rare")
    )
    smallest = int(pd.read_parquet(checkout / "synthetic.parquet").groupby("town").size().min())
    assert own["metrics"]["smallest_class"]["estimates"]["rows"]["value"] == smallest > 10
    assert [(x["statistic"], x["limit"], x["status"]) for x in own["limits"]] == [
        ("smallest_class.rows", 5.0, "pass")
    ]
    assert [(x["statistic"], x["limit"], x["status"]) for x in common["limits"]] == [
        ("smallest_class.rows", 10.0, "pass")
    ]
    assert [(x["measured"], x["status"]) for x in few["limits"]] == [(7.0, "fail")]
    assert [x["cause"] for x in few["advice"]] == ["rare values"]
    assert (
        "How many synthetic rows share the rarest combination of values?"
        in (checkout / "metric.html").read_text()
    )
