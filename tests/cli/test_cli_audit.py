"""The command ``audit``: output forms, options, exit status, and messages without private values."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from privacy_assets.cli.main import main
from privacy_assets.shadow.plan import AuditPlan

SECRET = "Zebulon-77123"
QUICK = ["--records=2", "--shadows=20", "--tests=8", "--size=40", "--quiet"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    g = np.random.default_rng(0)
    frame = pd.DataFrame({"age": g.integers(18, 90, 300), "wage": g.lognormal(10, 1, 300)})
    frame = frame.assign(town=g.choice(list("abcd"), 300), smoker=g.random(300) < 0.3, person=np.arange(300))
    frame.loc[17, "town"] = SECRET
    path = tmp_path_factory.mktemp("tables") / "people.csv"
    frame.to_csv(path, index=False)
    return path


def audit(data: Path, *more: str, generator: str = "baynet") -> int:
    return main(["audit", f"--data={data}", f"--generator={generator}", "--drop=person", *QUICK, *more])


def test_json_and_text_tell_the_same(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "audit.json"
    assert audit(data, "--seed=3", f"--json={out}") == 0
    found = json.loads(out.read_text())
    assert len(found["records"]) == 2 and set(found["auc"]) >= {"mean", "sd"} and found["cpu_seconds"] > 0
    for record in found["records"]:
        assert set(record) >= {"id", "vulnerability", "auc", "epsilon_lower_bound"}
        assert set(record["auc"]) == {"value", "low", "high"}
        assert 0 <= record["auc"]["low"] <= record["auc"]["value"] <= record["auc"]["high"] <= 1
    assert found["seed"] == 3 and found["plan"]["generator"] == "baynet" and found["plan"]["size"] == 40
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    shown = [line.split() for line in lines if line.split() and line.split()[0].isdecimal()]
    assert [int(words[0]) for words in shown] == [record["id"] for record in found["records"]]
    assert [words[2] for words in shown] == [f"{record['auc']['value']:.3f}" for record in found["records"]]
    assert "CPU seconds" in lines[-1] and "needs at least" in printed.out and printed.err == ""
    assert SECRET not in out.read_text() + printed.out


def test_the_same_seed_gives_the_same_file_but_for_the_time(data: Path, tmp_path: Path) -> None:
    found = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        assert audit(data, f"--seed={seed}", f"--json={tmp_path / name}") == 0
        records = json.loads((tmp_path / name).read_text())["records"]
        found.append([(record["id"], record["scores"]) for record in records])
    assert found[0] == found[1] != found[2]


def test_ids_are_row_positions_of_the_file(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "audit.json"
    assert main(["audit", f"--data={data}", "--generator=baynet", "--drop=person", *QUICK[1:], "--ids=17,3",
                 f"--json={out}"]) == 0  # fmt: skip
    records = json.loads(out.read_text())["records"]
    assert [record["id"] for record in records] == [17, 3]
    assert records[0]["vulnerability"] > records[1]["vulnerability"]


def test_the_rows_of_one_person_do_not_hide_them(data: Path, tmp_path: Path) -> None:
    frame = pd.read_csv(data)
    frame.loc[300] = {**frame.loc[17], "age": frame.loc[17, "age"] + 1}  # again, nearly equal, by the same person
    frame.to_csv(tmp_path / "twice.csv", index=False)
    for table, more in (("twice.csv", ["--subject=person"]), ("once.csv", [])):
        if table == "once.csv":
            frame.loc[:299].drop(columns="person").to_csv(tmp_path / table, index=False)
        arguments = [f"--data={tmp_path / table}", "--generator=baynet", "--ids=17", *more, *QUICK[1:]]
        assert main(["audit", *arguments, f"--json={tmp_path / table}.json"]) == 0
    twice, once = (json.loads((tmp_path / f"{name}.csv.json").read_text())["records"][0] for name in ("twice", "once"))
    assert twice["vulnerability"] == pytest.approx(once["vulnerability"], rel=0.05) and once["vulnerability"] > 0


def test_results_are_shown_even_where_the_file_cannot_be_written(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("privacy_assets.storage.files.put_atomic", full)
    assert audit(data, f"--json={tmp_path / 'audit.json'}") == 2
    printed = capsys.readouterr()
    assert "AUC over records" in printed.out and "No space left" in printed.err


def test_settings_of_the_generator_and_of_the_audit_arrive(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "audit.json"
    more = ["--set=degree=2", "--select=random", "--sampling=bootstrap", "--sample-size=30", "--aux-rows=150",
            "--test-rows=90", "--distance=minkowski1", "--neighbours=3", "--remove=1",
            "--kind=smoker=categorical"]  # fmt: skip
    assert audit(data, *more, f"--json={out}") == 0
    found = json.loads(out.read_text())
    plan = found["plan"]
    assert plan["generator_settings"]["degree"] == 2 and plan["remove"] == 1 and plan["sample_size"] == 30
    assert (plan["select"], plan["sampling"], plan["distance"]) == ("random", "bootstrap", "minkowski1")
    assert (plan["auxiliary_rows"], plan["test_rows"], plan["neighbours"]) == (150, 90, 3)
    assert len(found["removal"]["removed"]) == 1
    assert [r["id"] for r in found["removal"]["before"]] == [r["id"] for r in found["removal"]["after"]]


def test_progress_tells_how_long_it_takes_and_a_checkpoint_saves_it(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, outs = tmp_path / "checkpoint", [tmp_path / "a.json", tmp_path / "b.json"]
    arguments = [
        "audit",
        f"--data={data}",
        "--generator=baynet",
        "--drop=person",
        *QUICK[:-1],
        f"--checkpoint={folder}",
    ]
    assert main([*arguments, f"--json={outs[0]}"]) == 0
    first = capsys.readouterr()
    assert "record 2 of 2: 56 tables made, 0 to go, about" in first.err
    assert main([*arguments, f"--json={outs[1]}"]) == 0
    again = capsys.readouterr()
    assert again.err == "" and again.out == first.out and outs[0].read_text() == outs[1].read_text()
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in folder.rglob("*.json"))
    assert main([*arguments, "--seed=1"]) == 2
    assert "another audit" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "words"),
    [(["--size=1000"], "the auxiliary part has 200 rows"), (["--size=many"], None), (["--shadows=5"], "even"),
     (["--generator=baynett"], "Did you mean 'baynet'"), (["--generator=nowhere:made"], "cannot be imported"),
     (["--set=degree"], "KEY=VALUE"), (["--set=degrees=2"], "Did you mean 'degree'"), (["--set=degree=9"], "degree"),
     (["--set=degree=[1"], "cannot be read as YAML"), (["--select=distanc"], "Did you mean 'distance'"),
     (["--distance=cosin"], "Did you mean 'cosine'"), (["--attack=query"], "Did you mean 'queries'"),
     (["--sampling=twice"], "subsample"), (["--drop=town", "--drop=twon"], "Did you mean 'town'"),
     (["--kind=age"], "COLUMN=KIND"), (["--json=/no/such/folder/x.json"], "folder does not exist"),
     (["--json=/"], "this is a folder"), (["--subject=persn"], "subject column is missing"),
     (["--seed=-1"], "seed"), (["--ids=1"], "leave --records"), (["--data=absent.csv"], "absent.csv"),
     (["--neighbours=0"], "neighbours"), (["--aux-rows=299", "--test-rows=9"], "more than its 300 rows")],
)  # fmt: skip
def test_bad_input_exits_with_2(
    data: Path, capsys: pytest.CaptureFixture[str], more: list[str], words: str | None
) -> None:
    if words is None:
        with pytest.raises(SystemExit) as caught:
            audit(data, *more)
        assert caught.value.code == 2
        return
    assert audit(data, *more) == 2
    message = capsys.readouterr().err
    assert words in message and SECRET not in message and "Traceback" not in message


@pytest.mark.parametrize("ids", ["", "1,1", "1,x", "300", "-1"])
def test_bad_ids_exit_with_2(data: Path, ids: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["audit", f"--data={data}", "--generator=baynet", "--drop=person", *QUICK[1:]]
    assert main([*arguments, f"--ids={ids}"]) == 2
    assert "row" in capsys.readouterr().err


def test_one_record_has_no_deviation(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "audit.json"
    assert audit(data, "--records=1", f"--json={out}") == 0
    assert json.loads(out.read_text())["auc"]["sd"] is None
    assert "standard deviation –" in capsys.readouterr().out


def test_help_says_that_checkpoints_are_private(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["audit", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "counts from the private table (mode 0600)" in text and "row positions" in text
    for name in ("records", "shadows", "tests", "size", "neighbours"):
        assert f"(default {getattr(AuditPlan, name)})" in text
    for name in ("select", "distance", "attack", "sampling"):
        assert f"{getattr(AuditPlan, name)} (default)" in text
