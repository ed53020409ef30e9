"""The study of whole runs: a rejected table is rehearsed and run again with the setting that the
rehearsal prints.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest
import yaml

from benchmarks import whole_runs
from benchmarks.leak_tables import PERSON
from privacy_assets.gate.deployment import SPLIT_KEY_VARIABLE


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[dict, Sequence[str]]]:
    """Replace the command by one that rejects tables without shrinkage, and return the tables and
    their options.
    """
    monkeypatch.setenv(SPLIT_KEY_VARIABLE, "restored after the test")
    calls = []

    def command(arguments: Sequence[str]) -> int:
        path = Path(arguments[1])
        spec = yaml.safe_load(path.read_text())
        calls.append((spec, arguments))
        assert Path(spec["data"]["source"]).exists() and not (path.parent / "home").exists()
        if "--rehearse" in arguments:
            print(f"...\n\nThe first setting that passes with a margin, for {path}:\n")
            print("generator:\n  name: synthpop\n  settings:\n    shrinkage: 10")
            return 0
        passed = spec["generator"].get("settings", {}).get("shrinkage") != 0
        out = Path(arguments[arguments.index("--out") + 1])
        out.mkdir(exist_ok=True)
        limits = [
            {"statistic": "a.b", "status": "pass"},
            {"statistic": "c.d", "status": "pass" if passed else "fail"},
        ]
        (out / "report.json").write_text(json.dumps({"limits": limits}))
        return int(not passed)

    monkeypatch.setattr(whole_runs, "command", command)
    return calls


def test_a_rejected_table_is_rehearsed_and_run_with_what_was_found(
    asked: list[tuple[dict, Sequence[str]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = pd.DataFrame({PERSON: [1, 1, 2], "a": [1.5, 2.5, 3.5]})
    rows.to_parquet(tmp_path / "visits.parquet")
    rows[["a"]].to_parquet(tmp_path / "people.parquet")
    tables = [str(tmp_path / f"{name}.parquet") for name in ("visits", "people")]
    former, results = str(tmp_path / "former.jsonl"), str(tmp_path / "results.jsonl")
    tried = ["--generator", "shrinkage=0", "--try", "shrinkage=10,30"]
    for _ in range(2):  # the second time nothing is left to run
        whole_runs.main(["--results", former, "--split-keys", "2", *tried, "--", *tables])
    assert len(asked) == 2 * 2 * 3
    assert [spec["data"]["subject"] for spec, _ in asked[::3]] == [PERSON, {"each_row": True}] * 2
    assert asked[1][1][-2:] == ["--try", "shrinkage=10,30"]
    whole_runs.main(["--results", results, "--split-keys", "1", "--", tables[0]])
    whole_runs.main(["--report", former, results])
    told = capsys.readouterr().out
    assert "| visits, shrinkage=0 | 0 of 2 | `c.d` | 2 of 2 | 2 of 2 |" in told
    assert "| visits, defaults | 1 of 1 |  |  |  |" in told
