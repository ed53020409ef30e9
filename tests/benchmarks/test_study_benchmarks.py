"""The benchmarks of dimensions and of scalability: their tables and their reports."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks import dimensions, membership_scores, scalability
from benchmarks.battery_makers import copies, fresh
from benchmarks.battery_releases import PASS, REFUSED, UNKNOWN, Entry
from benchmarks.study import lines
from privacy_assets.metrics.registry import default_metrics
from privacy_assets.tables.table import Table


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    columns = {
        "a": rng.integers(0, 900, 240),
        "b": rng.normal(size=240).round(2),
        "c": rng.choice(list("xyz"), 240),
    }
    pd.DataFrame({**columns, "d": rng.choice(list("mn"), 240)}).to_parquet(
        tmp_path / "small.parquet"
    )
    return tmp_path / "small.parquet"


# --- dimensions
# --------------------------------------------------------------------------------------------------


@pytest.mark.weekly
def test_the_release_is_nobody_of_train_and_a_full_leak_is_seen(table: Path) -> None:
    inputs = dimensions.inputs_of(pd.read_parquet(table), "table", 80, 0)
    assert [len(part) for part in inputs.tables.values()] == [80, 80, 80]
    stacked = Table.stack([inputs.train, inputs.holdout, inputs.synthetic]).frame()
    whole = stacked.sort_values(["a", "b"]).reset_index(drop=True)
    every = (
        Table.read(pd.read_parquet(table)).frame().sort_values(["a", "b"]).reset_index(drop=True)
    )
    pd.testing.assert_frame_equal(whole, every)
    told = dimensions.trained(inputs, 2, 0, 1, judge=True)
    score = {
        point["x"]: point["estimates"]["dcr.privacy_score_embedded"][0] for point in told["points"]
    }
    assert score[1.0] == 1 and score[0.0] < 0.3
    with pytest.raises(SystemExit, match="not enough"):
        dimensions.inputs_of(pd.read_parquet(table), "table", 81, 0)


def test_intervals_over_the_seeds_are_students() -> None:
    value, half = dimensions.mean_of([1.0, 2.0, 3.0])
    assert (value, half) == pytest.approx((2.0, 4.302652730 / math.sqrt(3)))
    assert dimensions.mean_of([0.5])[0] == 0.5 and math.isnan(dimensions.mean_of([0.5])[1])


# --- scalability
# --------------------------------------------------------------------------------------------------


def test_the_work_is_every_default_metric() -> None:
    assert scalability.works()[0] == scalability.ENCODER
    assert {work.removesuffix(scalability.EMBEDDED) for work in scalability.works()[1:]} == set(
        default_metrics()
    )
    assert set(scalability.PAPER) <= set(scalability.works())


@pytest.mark.parametrize("rows", [100, 120, 200])
def test_rows_beyond_the_table_are_jittered_copies(table: Path, rows: int) -> None:
    made = scalability.tables_of(table, rows, 0)
    assert {name: len(part) for name, part in made.items()} == dict.fromkeys(
        ("train", "holdout", "synthetic"), rows
    )
    frame = pd.read_parquet(table)
    assert all((part.dtypes == frame.dtypes).all() for part in made.values())
    known = set(map(tuple, frame.to_numpy()))
    own = {
        name: [tuple(row) in known for row in made[name].to_numpy()]
        for name in ("train", "holdout")
    }
    for name, flags in own.items():
        assert all(flags[:120]) and np.mean(flags[120:] or [0]) < 0.3, name
    firsts = [set(map(tuple, made[name].to_numpy()[:120])) for name in own]
    assert not firsts[0] & firsts[1]  # disjoint pools
    assert made["train"]["a"].between(frame["a"].min(), frame["a"].max()).all()


def test_its_table_has_the_paper_beside_ours() -> None:
    def line(rows: int, work: str, cpu: float) -> dict[str, object]:
        return {"rows": rows, "work": work, "cpu": cpu, "preparing": 0.5, "mb": 1234.4}

    told = scalability.report_text(
        [
            line(25_000, "singling_out", 1.66),
            line(50_000, "singling_out", 3.96),
            line(25_000, "dcr", 2.0),
        ]
    )
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in told.splitlines()]
    assert rows[0] == ["CPU s, MB", "25,000 rows", "50,000 rows"]
    assert rows[2:] == [
        ["dcr", "2.00, 1,234", ""],
        ["singling_out", "1.66, 1,234", "3.96, 1,234"],
        ["paper, s", "12,906", "17,124"],
        ["preparing, once for all", "0.50", "0.50"],
    ]


def test_tied_scores_share_the_count_of_the_best() -> None:
    auc = {"distance": [1.0, 0.9, 1.0], "other": [1.0, 0.9, 1.0], "third": [0.5, 0.4, 0.6]}
    tpr = {
        "0.01": {"distance": 0.2, "other": 0.2, "third": 0.2},
        "0.1": {"distance": 0.3, "other": 0.4, "third": 0.1},
    }
    line = {"table": "small", "kind": "copy of train", "auc": auc, "tpr": tpr, "seconds": 0.0}
    rows = [row.split(" | ")[1:5] for row in membership_scores.report_text([line]).splitlines()]
    assert rows[2:4] == [["0.5", "0.3", "0.0", "0.5 of 1"], ["0.5", "0.3", "1.0", "0.5 of 1"]]
    assert rows[4] == ["0.0", "0.3", "0.0", "0.0 of 1"]


@pytest.mark.slow
def test_leaks_of_the_battery_are_leaks_of_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small, results = (600, 400, 600), tmp_path / "out.jsonl"
    entries = [
        Entry("normal", "fresh rows", PASS, 0, fresh, small),
        Entry("normal", "50% copies", REFUSED, 0.5, copies(0.5), small),
        Entry("normal", "no rows", UNKNOWN, 0, fresh, small),
        Entry("adult", "not in the folder", REFUSED, 0.5, copies(0.5), small),
    ]
    monkeypatch.setattr(membership_scores, "BATTERY", entries)
    for _ in range(2):  # the second run adds no line
        membership_scores.main([str(tmp_path), "--results", str(results)])
    found = lines(results)
    assert [(line["table"], line["kind"], line["people"], line["harmless"]) for line in found] == [
        ("battery, normal", "fresh rows", 600, True), ("battery, normal", "50% copies", 600, False),
    ]  # fmt: skip
    assert found[1]["auc"]["distance"][0] > 0.7
    assert "1 of 1 leaks in 1 tables" in membership_scores.report_text(found)
