"""The command ``power``: its output, its exit status, and the note of ``evaluate`` on few
people.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.cli.people import SECRET
from tests.evaluation.power_policies import BROKEN, CLOSE, LOOSE
from tests.shipped import METRICS


@pytest.mark.slow
def test_text_json_and_exit_status_tell_the_same(
    command: Command, tables: Path, tmp_path: Path
) -> None:
    out = tmp_path / "power.json"
    given = [
        f"--rows={tables / 'people.parquet'}",
        "--subject=person",
        "--train=40",
        "--holdout=30",
        f"--json={out}",
    ]
    said = command("power", *given, "--draws=1", "--quiet", status=3)
    found = json.loads(out.read_text())
    assert SECRET not in said.out + out.read_text() and said.err == ""
    assert (
        found["people"] == {"train": 40, "holdout": 30, "reference": 16}
        and found["policy"]["name"] == "default"
    )
    assert found["passed"] < 1 == len(found["draws"]) and found["summary"] in said.out
    for draw in found["draws"]:
        assert len(draw["limits"]) == len(found["policy"]["limits"])
        assert set(draw["smallest_leaks"]) == {
            f"{name}.{one}"
            for name, kind in METRICS.items()
            for told in kind.detectable_leaks.values()
            for one in told
        }
    for limit in found["policy"]["limits"]:
        assert limit["statistic"] in said.out
    assert (
        "copies of training rows" in said.out
        and "40 people in train" in said.out
        and "demo" not in said.out
    )


def test_the_help_states_for_which_tables_the_answer_holds(command: Command) -> None:
    said = " ".join(command("power", "--help").out.split())
    assert "the demo table, for tables of six columns or more" in said
    assert "Without --rows, the answer holds for tables of six columns or more." in said


@pytest.mark.slow
def test_a_harmless_release_passes_where_people_are_enough_for_the_policy(
    command: Command, tables: Path, tmp_path: Path
) -> None:
    for policy, status in ((LOOSE, 0), (BROKEN, 1), (CLOSE, 3)):
        (tmp_path / "policy.yaml").write_text(json.dumps(policy))
        sizes = [
            "--train=50",
            "--holdout=40",
            "--reference=0",
            f"--policy={tmp_path / 'policy.yaml'}",
        ]
        said = command(
            "power",
            *sizes,
            f"--rows={tables / 'people.parquet'}",
            "--subject=person",
            status=status,
        )
        assert "reference" not in said.out
        assert ("would pass (3 of 3 draws)" in said.out) == (status == 0)
        assert "power: draws" in said.err or said.err == ""


@pytest.mark.slow
def test_evaluate_notes_the_doubt_and_does_not_fail(command: Command, tables: Path) -> None:
    roles = [f"--{role}={tables / f'{role}.parquet'}" for role in ("train", "holdout", "synthetic")]
    said = command("evaluate", *roles, "--no-embedder", status=3)
    assert "Train has 400 people, fewer than 1,500" in " ".join(said.err.split())
    report = " ".join(said.out.split())
    assert (
        report.count("1,500 people") == 1
        and "about 1,500 people in the training data and 900 held-out" in report
    )
    part = command("evaluate", *roles, "--no-embedder", "--metrics=dcr", status=3)
    assert "fewer than 1,500" not in part.out + part.err
