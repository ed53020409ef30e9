"""The benchmark that repeats Achilles' Heels: every study runs, resumes, and is reported."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import numpy as np
import pandas as pd
import pytest

from benchmarks import achilles
from privacy_assets.report.svg import XMLNS

SCALE = ["--auxiliary", "120", "--test", "60", "--shadows", "20", "--tests", "8", "--size", "30"]


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(0)
    group = rng.integers(0, 3, 400)
    frame = pd.DataFrame({"a": rng.normal(group, 1), "b": rng.poisson(3, 400), "c": np.array(list("xy?"))[group]})
    frame.to_parquet(tmp_path / "adult.parquet")
    return tmp_path / "adult.parquet"


def test_a_study_attacks_each_record_once_and_is_reported_beside_the_paper(table, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(achilles, "SELECTORS", {"distance": 2, "random": 3})
    results = tmp_path / "results.jsonl"
    command = [str(table), *SCALE, "--generators", "baynet", "--results", str(results)]
    achilles.main(command)
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    chosen = lines[0]["selected"]
    assert lines[0]["records"] < 400  # rows with "?" are left out
    assert {line["id"] for line in lines[1:]} == {*chosen["distance"], *chosen["random"]}
    achilles.main(command)
    assert len(results.read_text().splitlines()) == len(lines)
    shown = capsys.readouterr().out
    means = [line["auc"]["value"] for line in lines[1:] if line["id"] in chosen["distance"]]
    assert f"| distance | 2 of 2 | {np.mean(means):.3f} |" in shown and "0.810 ± 0.110" in shown


@pytest.mark.parametrize("study", ["neighbours", "distances", "epsilon"])
def test_the_statistics_run_too(table, tmp_path, monkeypatch, capsys, study):
    for name, fewer in (("NEIGHBOURS", (1, 5)), ("DISTANCES", ("cosine", "minkowski2")), ("RECORDS", 2)):
        monkeypatch.setattr(achilles, name, fewer)
    monkeypatch.setattr(achilles, "SELECTORS", {"distance": 2})
    results = str(tmp_path / "results.jsonl")
    achilles.main([str(table), *SCALE, "--study", study, "--results", results, "--images", str(tmp_path / "plots")])
    shown = capsys.readouterr().out
    plot = ET.parse(tmp_path / f"plots/achilles_{study}_adult_queries.svg").getroot()
    marks = [path.get("d") for path in plot.iter(f"{{{XMLNS}}}path") if "mark" in path.get("class", "")]
    assert len(marks) == {"neighbours": 2, "distances": 2, "epsilon": 3 + 1}[study]  # the legend has one
    assert shown.count(f"## {study}: adult") == (3 if study == "epsilon" else 1)


def test_the_cost_stands_beside_that_of_the_authors_program_at_their_scale_only(tmp_path, capsys):
    auc = {"value": 0.8, "low": 0.7, "high": 0.9}
    line = {"table": "adult", "generator": "baynet", "settings": {}, "attack": "queries", "auc": auc}
    lines = [
        line | {"id": 1, "cpu_seconds": 10.0, "wall_seconds": 5.0},
        line | {"id": 1, "cpu_seconds": 0.1, "wall_seconds": 0.1, "scale": {"shadows": 20}},
    ]
    results = tmp_path / "results.jsonl"
    results.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"table": "ad')  # killed while it wrote
    achilles.main(["--report", str(results)])
    shown = capsys.readouterr().out
    assert "| adult | baynet {} | queries | 10.0 | 5.0 | 1 | 4,500 to 15,300 | 450 to 1530 |" in shown
    assert '| adult | baynet {"shadows": 20} | queries | 0.1 | 0.1 | 1 |  |  |' in shown
    with pytest.raises(SystemExit):
        achilles.main(["--report", str(tmp_path / "missing.jsonl")])
