"""The benchmarks of dimensions and of scalability: run once on a few rows, and their tables and plots."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks import dimensions, scalability
from privacy_assets.metrics.registry import default_metrics
from privacy_assets.tables.table import Table


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    columns = {"a": rng.integers(0, 900, 240), "b": rng.normal(size=240).round(2), "c": rng.choice(list("xyz"), 240)}
    pd.DataFrame({**columns, "d": rng.choice(list("mn"), 240)}).to_parquet(tmp_path / "small.parquet")
    return tmp_path / "small.parquet"


# --- dimensions -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_dimensions_are_trained_once_and_reported(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = table.with_name("out.jsonl")
    command = [str(table), "--rows=80", "--dims=2,3", "--epochs=2", "--repeats=2", f"--results={results}"]
    dimensions.main(command)
    found = dimensions.lines(results)
    assert [(line["seed"], line["dims"]) for line in found] == [(0, 2), (0, 3), (1, 2), (1, 3)]
    assert [len(line["points"]) for line in found] == [5, 5, 0, 0] and capsys.readouterr().err
    dimensions.main(command)
    assert dimensions.lines(results) == found and capsys.readouterr().err == ""
    dimensions.main(["--report", str(results), "--images", str(table.parent / "images")])
    rows = [line.split("|") for line in capsys.readouterr().out.splitlines()]
    assert len(rows) == 4 and [row[1].strip() for row in rows[2:]] == ["2", "3"]
    assert rows[3][-2].strip() == "0.0089 ± 0.0134" and rows[2][-2].strip() == ""
    drawn = {path.name: path.read_text() for path in (table.parent / "images").iterdir()}
    assert set(drawn) == {f"dimensions_{name}.svg" for name in ("accuracy", "loss", "so_cl", "dcr_cl")}
    assert all(svg.startswith("<svg xmlns") for svg in drawn.values()) and "leak 0.5" in drawn["dimensions_dcr_cl.svg"]


def test_the_release_is_nobody_of_train_and_a_full_leak_is_seen(table: Path) -> None:
    inputs = dimensions.inputs_of(table, 80, 0)
    assert [len(part) for part in inputs.tables.values()] == [80, 80, 80]
    stacked = Table.stack([inputs.train, inputs.holdout, inputs.synthetic]).frame()
    whole = stacked.sort_values(["a", "b"]).reset_index(drop=True)
    every = Table.read(pd.read_parquet(table)).frame().sort_values(["a", "b"]).reset_index(drop=True)
    pd.testing.assert_frame_equal(whole, every)
    told = dimensions.trained(inputs, 2, 0, 1, judge=True)
    score = {point["x"]: point["estimates"]["dcr.privacy_score_embedded"][0] for point in told["points"]}
    assert score[1.0] == 1 and score[0.0] < 0.3
    with pytest.raises(SystemExit, match="not enough"):
        dimensions.inputs_of(table, 81, 0)


def test_intervals_over_the_seeds_are_students() -> None:
    value, half = dimensions.mean_of([1.0, 2.0, 3.0])
    assert (value, half) == pytest.approx((2.0, 4.302652730 / math.sqrt(3)))
    assert dimensions.mean_of([0.5])[0] == 0.5 and math.isnan(dimensions.mean_of([0.5])[1])


# --- scalability ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_metric_is_measured_once(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = table.with_name("out.jsonl")
    command = [str(table), "--sizes=100,200", "--epochs=1", f"--results={results}"]
    scalability.main(command)
    found = scalability.lines(results)
    assert [line["work"] for line in found] == 2 * scalability.works()
    assert all(line["cpu"] > 0 and line["mb"] > 50 for line in found)
    capsys.readouterr()
    scalability.main(command)
    assert scalability.lines(results) == found and capsys.readouterr().err == ""


def test_the_work_is_every_default_metric() -> None:
    assert scalability.works()[0] == scalability.ENCODER
    assert {work.removesuffix(scalability.EMBEDDED) for work in scalability.works()[1:]} == set(default_metrics())
    assert set(scalability.PAPER) <= set(scalability.works())


@pytest.mark.parametrize("rows", [100, 120, 200])
def test_rows_beyond_the_table_are_jittered_copies(table: Path, rows: int) -> None:
    made = scalability.tables_of(table, rows, 0)
    assert {name: len(part) for name, part in made.items()} == dict.fromkeys(("train", "holdout", "synthetic"), rows)
    frame = pd.read_parquet(table)
    assert all((part.dtypes == frame.dtypes).all() for part in made.values())
    known = set(map(tuple, frame.to_numpy()))
    own = {name: [tuple(row) in known for row in made[name].to_numpy()] for name in ("train", "holdout")}
    for name, flags in own.items():
        assert all(flags[:120]) and np.mean(flags[120:] or [0]) < 0.3, name
    firsts = [set(map(tuple, made[name].to_numpy()[:120])) for name in own]
    assert not firsts[0] & firsts[1]  # disjoint pools
    assert made["train"]["a"].between(frame["a"].min(), frame["a"].max()).all()


def test_its_table_has_the_paper_beside_ours() -> None:
    def line(rows: int, work: str, cpu: float) -> dict[str, object]:
        return {"rows": rows, "work": work, "cpu": cpu, "preparing": 0.5, "mb": 1234.4}

    told = scalability.report_text([line(25_000, "singling_out", 1.66), line(50_000, "singling_out", 3.96),
                                    line(25_000, "dcr", 2.0)])  # fmt: skip
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in told.splitlines()]
    assert rows[0] == ["CPU s, MB", "25,000 rows", "50,000 rows"]
    assert rows[2:] == [
        ["dcr", "2.00, 1,234", ""],
        ["singling_out", "1.66, 1,234", "3.96, 1,234"],
        ["paper, s", "12,906", "17,124"],
        ["preparing, once for all", "0.50", "0.50"],
    ]
