"""The benchmark against the public peers: our part, its tables, and the text for a missing peer."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks import measured, peers
from benchmarks.peers_tables import Peer, Work, answers, costs, growth
from privacy_assets.metrics.registry import build_metric
from privacy_assets.tables.inference import infer_schema

ROWS = 300
PAIRWISE = Peer("all pairs", "overfitting", {}, [1_000, 2_000], 1_000)
DIRECT = Peer("direct", "singling_out", {}, [2_000, 4_000], 2_000)


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    """Real rows of two groups with numbers and a category, more than three times the number of
    attacked rows.
    """
    rng = np.random.default_rng(0)
    group = rng.integers(0, 2, 4 * ROWS)
    numbers = {name: group * 3 + rng.normal(size=len(group)) for name in "ab"}
    return pd.DataFrame(
        {**numbers, "count": rng.poisson(3, len(group)), "group": np.array(["x", "y"])[group]}
    )


def run(
    work: str, side: str, rows: int, release: str = "honest", **found: object
) -> dict[str, object]:
    return {"work": work, "side": side, "rows": rows, "release": release, **found}


def timed(cpu: float, mb: float = 100.0) -> dict[str, object]:
    return {
        "cpu": cpu,
        "preparing": 1.0,
        "compiling": 3.0,
        "mb": mb,
        "answer": {"risk": [0.25, 0.1, math.pi]},
    }


def cells(text: str) -> list[list[str]]:
    """Cells of a markdown table below its head."""
    lines = [line for line in text.splitlines() if line.startswith("|")][2:]
    return [[part.strip() for part in line.strip("|").split(" | ")] for line in lines]


# --- our side
# --------------------------------------------------------------------------------------------------


@pytest.mark.weekly
def test_our_side_is_measured_and_tells_a_copy_from_fresh_rows(
    frame: pd.DataFrame, tmp_path: Path
) -> None:
    peers.write(peers.made(frame, infer_schema(frame), ROWS), tmp_path / str(ROWS))
    assert peers.Runs(tmp_path, tmp_path, 1).releases(ROWS) == list(peers.RELEASES)
    found = {}
    for release in ("fresh", "copy"):
        names = ("train", *peers.RELEASES[release])
        paths = [str(tmp_path / str(ROWS) / f"{name}.parquet") for name in names]
        settings = {"name": "dcr", "estimates": ["privacy_score"]}
        task = {
            "tool": "metric",
            "settings": settings,
            "tables": dict(zip(measured.ROLES, paths, strict=True)),
        }
        found[release] = measured.run(task)
        assert (
            found[release]["cpu"] > 0
            and found[release]["preparing"] > 0
            and found[release]["mb"] > 50
        )
    value, low, high = found["fresh"]["answer"]["privacy_score"]
    assert low <= value <= high < 0.3
    assert found["copy"]["answer"]["privacy_score"][0] == 1


def test_the_tables_of_a_size_share_no_row(frame: pd.DataFrame) -> None:
    numbered = frame.assign(row=np.arange(len(frame)))
    schema = infer_schema(numbered)
    made = peers.made(numbered, schema, ROWS)
    train, equal, fresh = (set(made[name]["row"]) for name in ("train", "equal", "fresh"))
    assert (
        not train & equal
        and not train & fresh
        and not equal & fresh
        and set(made["copy"]["row"]) <= train
    )
    assert {name: len(table) for name, table in made.items()} == {
        "train": ROWS,
        "holdout": ROWS // 4,
        "honest": ROWS,
        "equal": ROWS,
        "fresh": ROWS,
        "copy": ROWS,
    }
    # peers read the dtypes of the private table
    assert made["honest"].dtypes.equals(made["train"].dtypes)
    assert set(peers.made(numbered, schema, len(frame) // 2)) == {"train", "holdout", "honest"}
    large = peers.enlarged(made, schema, 2 * ROWS)
    assert [len(large[name]) for name in ("train", "holdout", "honest")] == [
        2 * ROWS,
        ROWS // 2,
        2 * ROWS,
    ]
    assert large["train"].drop_duplicates(["a", "b"]).shape[0] == 2 * ROWS


def test_memory_is_the_peak_of_the_process_itself() -> None:
    assert measured.peak() > 100  # so that a child that inherits its parent's peak is detected
    code = "import sys, measured; bytearray(int(sys.argv[1])); print(measured.peak())"
    folder = Path(measured.__file__).parent
    held = [
        float(
            subprocess.run(
                [sys.executable, "-c", code, size], cwd=folder, capture_output=True, check=True
            ).stdout
        )
        for size in ("0", "300000000")
    ]
    assert held[0] < 60 and 250 < held[1] - held[0] < 320


@pytest.mark.weekly
def test_seconds_are_those_of_the_processor() -> None:
    seconds, found = measured.cost(lambda n: sum(range(n)), 3_000_000)
    assert found == 4_499_998_500_000 and seconds > 0
    assert measured.cost(time.sleep, 0.2)[0] < 0.1


def test_every_piece_of_work_names_what_is_there() -> None:
    for work in peers.plan(["a", "b", "c"], 10, [100, 200, 400, 800]):
        metric = build_metric(work.metric, dict(work.settings))
        assert set(work.estimates) <= {spec.name for spec in metric.statistics}
        assert all(peer.tool in measured.TOOLS for peer in work.peers)
        assert all(set(peer.sizes) <= {100, 200, 800} for peer in work.peers)
    pins = (Path(peers.__file__).with_name("peers.txt")).read_text().splitlines()
    assert pins and all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in pins)
    assert {"anonymeter", "sdmetrics"} <= {line.split("==")[0] for line in pins}


# --- missing peers
# --------------------------------------------------------------------------------------------------


def test_without_peers_it_says_how_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="--setup"):
        peers.main(["table.parquet", "--environment", str(tmp_path)])


def test_a_peer_that_fails_is_shown_as_failed(frame: pd.DataFrame, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    os.symlink(sys.executable, tmp_path / "bin" / "python")
    work = Work("w", "dcr", [], {}, [PAIRWISE])
    runs = peers.Runs(tmp_path, tmp_path, 60)
    found = runs.peer(work, PAIRWISE, 2_000)
    assert "No module named" in found["error"]
    assert runs.peer(work, PAIRWISE, 2_000) is found  # created once
    shown = [run("w", "here", 2_000, **timed(2.0)), found]
    assert found["error"] in cells(costs(shown, [work], 2_000))[0]
    runs.limit = 0.001
    assert runs.peer(work, PAIRWISE, 1_000)["error"] == "over 0 s"


# --- tables
# --------------------------------------------------------------------------------------------------


def test_ratios_are_of_one_size_and_extrapolation_is_labeled() -> None:
    works = [Work("w", "dcr", [], {}, [PAIRWISE, DIRECT]), Work("alone", "dcr", [], {})]
    runs = [run("w", "here", 4_000, **timed(2.0)), run("alone", "here", 4_000, **timed(1.0))]
    runs += [
        run("w", "all pairs", 1_000, **timed(1.0)),
        run("w", "all pairs", 2_000, **timed(10.0)),
    ]
    runs += [run("w", "direct", 2_000, **timed(3.0)), run("w", "direct", 4_000, **timed(600.0))]
    first, second, third = cells(costs(runs, works, 4_000))
    assert first[:4] == ["w", "2.00", "1.00", "100"]
    assert first[5] == "40 (extrapolated from 2,000 rows)" and first[7:] == ["20", "13"]
    assert second[5] == "600" and second[7:] == ["300", "200"]
    assert third[4] == "no peer run"
    grown = cells(growth(runs, works, [2_000, 4_000]))
    assert [row[1:4] for row in grown[:3]] == [
        ["here", "", "2.00, 100"],
        ["all pairs", "10, 100", ""],
        ["direct", "3.00, 100", "600, 100"],
    ]


def test_answers_stand_side_by_side() -> None:
    work = Work("w", "dcr", [], {}, [DIRECT])
    runs = [run("w", side, 2_000, "copy", **timed(1.0)) for side in ("here", "direct")]
    runs[1]["answer"] = {"score": [0.5]}
    shown = cells(answers(runs, [work], ["fresh", "copy"]))
    assert [row[2:] for row in shown] == [
        ["here", "", "risk 0.25 [0.10, 3.14]"],
        ["direct", "", "score 0.50"],
    ]
