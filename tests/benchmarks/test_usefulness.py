"""The study of usefulness: real rows break no relation, broken rows are counted, and the report
names lost cells.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks import usefulness
from benchmarks.usefulness_report import report_text
from benchmarks.usefulness_tables import TABLES, StudyTable, Target, check

ROWS = pd.DataFrame(
    {
        "low": [1, 2, 3, None],
        "high": [1, 1, None, 0],
        "code": ["a", "b", "a", "other"],
        "name": ["x", "x", "y", "y"],
    }
)
MADE = ("claims", "stays", "orders", "visits", "telecom")


def test_broken_rows_are_counted_among_rows_with_both_values() -> None:
    assert usefulness.broken_order(ROWS, "low", "high") == 0.5
    assert usefulness.broken_order(ROWS[:0], "low", "high") == 0


def test_a_combination_is_broken_if_no_real_row_has_it_and_no_value_is_replaced() -> None:
    real = [pd.DataFrame({"code": ["a", "b"], "name": ["x", "y"]})]
    assert usefulness.broken_combination(ROWS, real, "code", "name") == 0.5
    real.append(pd.DataFrame({"code": ["a"], "name": ["y"]}))
    assert usefulness.broken_combination(ROWS, real, "code", "name") == 0.25
    assert usefulness.broken_combination(ROWS[:0], real, "code", "name") == 0


def test_pairs_that_share_a_column_are_joined() -> None:
    assert usefulness.joined([("a", "b"), ("c", "d"), ("b", "e")]) == [["c", "d"], ["a", "b", "e"]]
    assert usefulness.joined([("a", "b"), ("c", "d"), ("b", "d")]) == [["c", "d", "a", "b"]]


@pytest.mark.parametrize("name", MADE)
def test_no_row_of_a_made_table_breaks_a_relation(name: str) -> None:
    table = TABLES[name]
    assert table.make is not None
    frame = table.make()
    check(table, frame)
    assert set(usefulness.relations(frame, [frame], table).values()) <= {0.0}


@pytest.mark.parametrize(
    "broken", [StudyTable(None, orders=(("a", "b"),)), StudyTable(None, combinations=(("a", "b"),))]
)
def test_a_real_row_that_breaks_a_relation_is_an_error(broken: StudyTable) -> None:
    with pytest.raises(ValueError, match=r"a <= b is broken in 1 rows|a does not determine b"):
        check(broken, pd.DataFrame({"a": [1, 1], "b": [0, 1]}))


def test_length_of_stay_is_predicted_without_the_end() -> None:
    rng = np.random.default_rng(0)
    kind = rng.integers(5, size=400)
    start = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(300, size=400), unit="D")
    frame = pd.DataFrame(
        {"kind": kind.astype(str), "start": start, "end": start + pd.to_timedelta(kind, unit="D")}
    )
    target = Target("length", "end", start="start")
    assert usefulness.r2(frame[:200], frame[200:], target) > 0.99
    shuffled = frame[:200].assign(end=frame["end"][200:].to_numpy())
    assert usefulness.r2(shuffled, frame[200:], target) < 0.1


def line_of(
    generator: str, trend: float, broken: float, **others: float | None
) -> dict[str, object]:
    line = {
        "table": "stays",
        "generator": generator,
        "seed": 0,
        "pair_trends": trend,
        "pair_trends_train": trend,
    }
    return {
        **line,
        "broken": {"a > b": broken},
        "membership": -0.02,
        "r2": -3.0,
        "seconds": 1.0,
        **others,
    }


def test_the_report_names_each_cell_in_which_a_peer_is_better() -> None:
    found = [
        line_of("training rows", 1.0, 0.0, seconds=None),
        line_of("ours, default (before)", 0.5, 0.2),
        line_of("MOSTLY AI", 0.6, 0.3, membership=-0.3),
        {"table": "stays", "generator": "MOSTLY AI", "seed": 1, "error": "too slow"},
    ]
    report = report_text(found, usefulness.GENERATORS, tuple(usefulness.PEERS))
    assert "| ours, default (before) | **0.500** |" in report
    assert "| ours, default (before) | 20.0 |" in report
    assert "| ours, default (before) | 0.00 |" in report
    assert (
        "Pair trends with held-out rows, ours, default (before): 1 of 1: stays 0.500 (MOSTLY"
        " AI: 0.600)" in report
    )
    assert "Membership AUC beyond chance, ours, default (before): 0 of 1: none" in report
    assert "- stays, MOSTLY AI, seed 1: too slow" in report


def test_generators_are_compared_in_the_splits_that_both_have() -> None:
    found = [
        line_of("ours, default", 0.6, 0.0),
        {**line_of("ours, default", 0.9, 0.0), "seed": 1},
        line_of("MOSTLY AI", 0.7, 0.0),
        {**line_of("SDV GaussianCopula", 0.99, 0.0), "seed": 2},
    ]
    report = report_text(found, usefulness.GENERATORS, tuple(usefulness.PEERS))
    assert "| ours, default | **0.750** |" in report
    assert (
        "Pair trends with held-out rows, ours, default: 1 of 1: stays 0.600 (MOSTLY AI: 0.700)"
        in report
    )
    assert "Releases: ours, default: 2, SDV GaussianCopula: 1, MOSTLY AI: 1." in report


@pytest.mark.slow
def test_a_release_is_measured_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make = TABLES["stays"].make
    assert make is not None
    table = tmp_path / "stays.parquet"
    make().head(900).to_parquet(table)
    monkeypatch.setattr(
        usefulness.Peers, "pair_trends", lambda self, real, synthetic: float(len(synthetic))
    )
    results = tmp_path / "out.jsonl"
    options = [str(table), "--people=400", "--seeds=0", "--state=now", f"--results={results}"]
    real_rows = [usefulness.TRAINING_ROWS, usefulness.AFTER_RULE]
    options += ["--generators", *real_rows, "ours, leaf 20"]
    for _ in range(2):
        usefulness.main(options)
        measured = [json.loads(line) for line in results.read_text().splitlines()]
        assert [line["generator"] for line in measured] == [*real_rows, "ours, leaf 20 (now)"]
    assert measured[0]["broken"] == {"admission > discharge": 0.0, "diagnosis → ward": 0.0}
    assert measured[0]["membership"] > 0.4
    assert measured[1]["broken"]["diagnosis → ward"] == 0
    assert measured[2]["broken"] == {"admission > discharge": 0.0, "diagnosis → ward": 0.0}
    assert {line["pair_trends"] for line in measured} == {400.0}
    assert measured[2]["seconds"] > 0
    capsys.readouterr()
    usefulness.main(["--report", str(results)])
    assert "| ours, leaf 20 (now) | 400.000 |" in capsys.readouterr().out


def test_a_peer_that_fails_is_a_line_of_the_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = TABLES["telecom"].make
    assert make is not None
    table = tmp_path / "telecom.parquet"
    make().head(200).to_parquet(table)

    def fail(self: usefulness.Peers, *task: object) -> None:
        raise usefulness.PeerError("too slow")

    monkeypatch.setattr(usefulness.Peers, "generate", fail)
    results = tmp_path / "out.jsonl"
    peers = ["--generators", *usefulness.PEERS]
    usefulness.main([str(table), "--people=100", "--seeds=0", f"--results={results}", *peers])
    measured = [json.loads(line) for line in results.read_text().splitlines()]
    assert [line["generator"] for line in measured] == [usefulness.SDV, usefulness.MOSTLY]
    assert {line["error"] for line in measured} == {"too slow"}
