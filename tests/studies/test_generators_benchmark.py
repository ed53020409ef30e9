"""The benchmark of the generators: a line each, run once, and its tables."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks import generators


@pytest.mark.slow
def test_a_case_is_run_once_and_reported(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    columns = {"a": rng.integers(0, 9, 1200), "b": rng.normal(size=1200).round(2), "c": rng.choice(list("xyz?"), 1200)}
    frame = pd.DataFrame(columns)
    frame.to_parquet(tmp_path / "small.parquet")
    results = tmp_path / "out.jsonl"
    asked = [str(tmp_path / "small.parquet"), "--rows=400", f"--results={results}", "--generators=baynet,copy"]
    command = [sys.executable, "-m", "benchmarks.generators", *asked, "--no-embedder"]
    first = subprocess.run(command, capture_output=True, text=True, check=True)
    again = subprocess.run(command, capture_output=True, text=True, check=True)
    assert len(results.read_text().splitlines()) == 2 and "copy" in first.stderr and again.stderr == ""
    found = {line["generator"]: line for line in generators.lines([results])}
    assert found["copy"]["verdict"] == "fail"
    excess = {name: line["estimates"]["dcr.member_excess_any"][0] for name, line in found.items()}
    assert excess["copy"] > excess["baynet"]
    assert found["baynet"]["fit_cpu"] > 0 and found["baynet"]["mb"] > 50
    told = generators.report_text(generators.lines([results]))
    assert "## small, 400 rows" in told and told.count("\n| ") == 3 and "SO+CL" not in told
    embedded = [{**line, "embedder": True, "embedder_seconds": 7.2} for line in found.values()]
    told = generators.report_text(embedded)
    assert "SO+CL" in told and told.count("\n| ") == 6 and "the encoder 7." in told


def test_cases_and_parts(tmp_path: Path) -> None:
    found = list(generators.cases(["privbayes", "rvae", "copy"], [0.1], [1.5], {}))
    assert next(generators.cases(["rvae"], [], [], {"epochs": 3})) == ("rvae", {"epochs": 3})
    private, overfitted = ("privbayes", {"epsilon": 0.1}), ("rvae", {"overfit": 1.5})
    assert found == [("privbayes", {}), private, ("rvae", {}), overfitted, ("copy", {})]
    frame = pd.DataFrame({"id": range(60), "c": ["?", "x", "y"] * 20})
    frame.to_parquet(tmp_path / "t.parquet")
    train, holdout, reference = generators.parts(tmp_path / "t.parquet", [], 20, 0)
    ids = pd.concat([train, holdout, reference])["id"]
    assert [len(part) for part in (train, holdout, reference)] == [20, 5, 5] and ids.is_unique
    assert (ids % 3 != 0).all()
    with pytest.raises(SystemExit, match="not enough"):
        generators.parts(tmp_path / "t.parquet", ["id"], 40, 0)
