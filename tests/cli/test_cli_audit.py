"""The command ``audit``: output forms, options, and messages without private values."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

from privacy_assets.cli.main import main
from tests.cli.conftest import Command
from tests.cli.people import SECRET

QUICK = ["--generator=baynet", "--shadows=20", "--tests=8", "--size=40"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    g = np.random.default_rng(0)
    frame = pd.DataFrame({"age": g.integers(18, 90, 300), "wage": g.lognormal(10, 1, 300)})
    frame = frame.assign(
        town=g.choice(list("abcd"), 300), smoker=g.random(300) < 0.3, person=np.arange(300)
    )
    frame.loc[17, "town"] = SECRET
    path = tmp_path_factory.mktemp("tables") / "people.csv"
    frame.to_csv(path, index=False)
    return path


class Audit(NamedTuple):
    """Files and output of an audit."""

    found: dict[str, Any]
    out: str
    err: str


@pytest.fixture
def audit(data: Path, tmp_path: Path, command: Command) -> Any:
    def call(*more: str, table: Path = data, person: str = "--drop=person") -> Audit:
        out = tmp_path / "audit.json"
        said = command("audit", f"--data={table}", person, *QUICK, f"--json={out}", *more)
        assert SECRET not in out.read_text() + said.out
        return Audit(json.loads(out.read_text()), *said)

    return call


@pytest.mark.slow
def test_json_and_text_tell_the_same(audit: Any) -> None:
    found, out, err = audit("--max-targets=2", "--seed=3", "--quiet")
    assert (
        len(found["records"]) == 2
        and set(found["auc"]) >= {"mean", "sd"}
        and found["cpu_seconds"] > 0
    )
    for record in found["records"]:
        assert set(record) >= {"id", "vulnerability", "auc", "epsilon_lower_bound"}
        assert 0 <= record["auc"]["low"] <= record["auc"]["value"] <= record["auc"]["high"] <= 1
    assert (found["seed"], found["plan"]["generator"], found["plan"]["size"]) == (3, "baynet", 40)
    lines = out.splitlines()
    shown = [line.split() for line in lines if line.split() and line.split()[0].isdecimal()]
    assert [int(words[0]) for words in shown] == [record["id"] for record in found["records"]]
    assert [words[2] for words in shown] == [
        f"{record['auc']['value']:.3f}" for record in found["records"]
    ]
    assert "CPU seconds" in lines[-1] and "needs at least" in out and err == ""


@pytest.mark.slow
def test_the_same_seed_gives_the_same_scores(audit: Any) -> None:
    runs = [audit("--max-targets=2", f"--seed={seed}").found["records"] for seed in (0, 0, 1)]
    first, again, other = (
        [(record["id"], record["scores"]) for record in records] for records in runs
    )
    assert first == again != other


@pytest.mark.slow
def test_ids_are_row_positions_and_the_rows_of_one_person_do_not_hide_them(
    audit: Any, data: Path, tmp_path: Path
) -> None:
    rare, common = audit("--ids=17,3").found["records"]
    assert (rare["id"], common["id"]) == (17, 3) and rare["vulnerability"] > common["vulnerability"]
    frame = pd.read_csv(data)
    # nearly equal to the row of the same person
    frame.loc[300] = {**frame.loc[17], "age": frame.loc[17, "age"] + 1}
    frame.to_csv(tmp_path / "twice.csv", index=False)
    (twice,) = audit("--ids=17", table=tmp_path / "twice.csv", person="--subject=person").found[
        "records"
    ]
    assert (
        twice["vulnerability"] == pytest.approx(rare["vulnerability"], rel=0.05)
        and rare["vulnerability"] > 0
    )


def test_results_are_shown_even_where_the_file_cannot_be_written(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("privacy_assets.infra.files.put_atomic", full)
    assert (
        main(
            [
                "audit",
                f"--data={data}",
                "--drop=person",
                *QUICK,
                "--ids=17",
                f"--json={tmp_path / 'a.json'}",
            ]
        )
        == 2
    )
    printed = capsys.readouterr()
    assert "AUC over records" in printed.out and "No space left" in printed.err


def test_settings_of_the_generator_and_of_the_audit_arrive(audit: Any) -> None:
    more = [
        "--set=degree=2",
        "--select=random",
        "--sampling=bootstrap",
        "--sample-size=30",
        "--aux-rows=150",
        "--test-rows=90",
        "--distance=minkowski1",
        "--n-neighbors=3",
        "--remove=1",
        "--max-targets=1",
        "--kind=smoker=categorical",
    ]
    found, out, _ = audit(*more)
    plan = found["plan"]
    assert (
        plan["generator_settings"]["degree"] == 2
        and plan["remove"] == 1
        and plan["sample_size"] == 30
    )
    assert (plan["select"], plan["sampling"], plan["distance"]) == (
        "random",
        "bootstrap",
        "minkowski1",
    )
    assert (plan["auxiliary_rows"], plan["test_rows"], plan["n_neighbors"]) == (150, 90, 3)
    assert len(found["removal"]["removed"]) == 1
    assert [r["id"] for r in found["removal"]["before"]] == [
        r["id"] for r in found["removal"]["after"]
    ]
    assert found["auc"]["sd"] is None and "standard deviation –" in out  # one record has none


def test_settings_of_the_attack_arrive(
    audit: Any, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = audit("--max-targets=1", "--attack-set=queries=5", "--attack-set", "trees=7").found
    assert found["plan"]["attack_settings"] == {"queries": 5, "trees": 7}
    usual = audit("--max-targets=1").found
    assert usual["plan"]["attack_settings"] == {}
    assert usual["records"][0]["scores"] != found["records"][0]["scores"]
    for wrong, told in (
        ("query=5", "Did you mean 'queries'"),
        ("queries=0", "queries"),
        ("trees", "expected KEY=VALUE"),
    ):
        assert (
            main(["audit", f"--data={data}", "--drop=person", *QUICK, f"--attack-set={wrong}"]) == 2
        )
        assert told in capsys.readouterr().err


def test_progress_tells_how_long_it_takes_and_a_checkpoint_saves_it(
    audit: Any, data: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("privacy_assets.infra.progress.EVERY", 0.0)
    folder = tmp_path / "checkpoint"
    more = ["--max-targets=2", f"--checkpoint={folder}"]
    first = audit(*more)
    assert "audit: shadow and test tables: 56 of 56" in first.err
    assert audit(*more) == first._replace(err="")  # also the seconds
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in folder.rglob("*.json"))
    other = command("audit", f"--data={data}", "--drop=person", *QUICK, *more, "--seed=1", status=2)
    assert "another audit" in other.err
