"""The command line: exit status, output forms, and messages without private values."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from privacy_assets.cli.main import main
from privacy_assets.errors import InputError
from privacy_assets.metrics.base import Metric
from privacy_assets.policy import Policy
from privacy_assets.report import evaluate as report_evaluate

SECRET = "Zebulon-77123"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("tables")
    rng = np.random.default_rng(0)

    def table(rows: int) -> pd.DataFrame:
        base = rng.normal(size=(rows, 6)) @ rng.normal(size=(6, 6))
        frame = pd.DataFrame(base, columns=[f"x{i}" for i in range(6)])
        return frame.assign(group=rng.choice(["a", "b", "c"], rows), visits=rng.poisson(3, rows))

    rows = {"train": 2400, "holdout": 1200, "synthetic": 2400}
    paths = {role: folder / f"{role}.parquet" for role in rows}
    for role, path in paths.items():
        table(rows[role]).to_parquet(path)
    paths["copy"] = folder / "copy.csv"
    pd.read_parquet(paths["train"]).to_csv(paths["copy"], index=False)
    return paths


def arguments(files: dict[str, Path], synthetic: str, *more: str) -> list[str]:
    roles = {"train": files["train"], "holdout": files["holdout"], "synthetic": files[synthetic]}
    return ["evaluate", *(f"--{role}={path}" for role, path in roles.items()), "--no-embedder", *more]


def test_a_copy_exits_with_1_and_says_why(
    files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, page = tmp_path / "out.json", tmp_path / "out.html"
    assert main(arguments(files, "copy", f"--json={out}", f"--html={page}", "--seed=3")) == 1
    data = json.loads(out.read_text())
    assert data["verdict"] == "fail"
    assert data["seed"] == 3
    estimates = data["metrics"]["dcr"]["estimates"]
    assert estimates["identical_excess"]["value"] == 1
    assert set(estimates["privacy_score"]) >= {"value", "low", "high", "n"}
    broken = {limit["statistic"] for limit in data["limits"] if not limit["passed"]}
    assert "dcr.identical_excess" in broken
    assert all({"statistic", "limit", "bound", "measured", "passed"} <= set(limit) for limit in data["limits"])
    assert page.read_text().startswith("<!doctype html>")
    printed = capsys.readouterr()
    assert "dcr.identical_excess" in printed.out
    assert "measuring dcr" in printed.err


def test_one_metric_and_a_policy_of_ones_own(
    files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = tmp_path / "p.yaml"
    policy.write_text("limits: [{statistic: dcr.privacy_score, at_most: 0.9}]")
    assert main(arguments(files, "synthetic", "--metrics=dcr", f"--policy={policy}", "--quiet")) == 0
    assert capsys.readouterr().err == ""
    policy.write_text("limits: [{statistic: dcr.privacy_score, at_most: 0.0}]")
    assert main(arguments(files, "synthetic", "--metrics=dcr", f"--policy={policy}", "--quiet")) == 1


@pytest.mark.parametrize(
    ("more", "words"),
    [(["--metrics=dcrr"], "Did you mean 'dcr'"), (["--policy=absent.yaml"], "absent.yaml"), (["--seed=-1"], "seed"),
     (["--json=/no/such/folder/x.json"], "folder does not exist"), (["--kind=group"], "COLUMN=KIND"),
     (["--kind=group=text"], "unknown kind 'text'"), (["--kind=grup=categorical"], "Did you mean 'group'"),
     (["--subject=person"], "'person'"), (["--device=tpu"], "tpu"), (["--set=degree=2"], "by --generator"),
     (["--generator=baynet"], "add shadow_membership"), (["--generator=baynt"], "Did you mean 'baynet'"),
     (["--metrics=shadow_membership"], "generator: baynet"),
     (["--metrics=shadow_membership", "--generator=baynet", "--set=degre=2"], "Did you mean 'degree'")],
)  # fmt: skip
def test_bad_settings_exit_with_2(
    files: dict[str, Path], capsys: pytest.CaptureFixture[str], more: list[str], words: str
) -> None:
    assert main(arguments(files, "synthetic", "--quiet", *more)) == 2
    assert words in capsys.readouterr().err


def test_the_generator_and_its_settings_reach_the_metric(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(_: object, metrics: dict[str, Metric]) -> None:
        raise InputError(str(metrics["shadow_membership"].settings()["generator"]), fix="none")

    monkeypatch.setattr(report_evaluate, "run_metrics", stop)
    with pytest.raises(InputError, match="'baynet', 'settings': {'degree': 2, 'bins': 10}"):
        report_evaluate.evaluate(
            files["train"], files["holdout"], files["synthetic"], metrics="shadow_membership",
            generator={"name": "baynet", "settings": {"degree": 2}},
        )  # fmt: skip
    asked = ["--metrics=shadow_membership", "--generator=baynet", "--set=degree=2", "--quiet"]
    assert main(arguments(files, "synthetic", *asked)) == 2


def test_bad_files_exit_with_2_and_give_nothing_away(
    files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = pd.read_parquet(files["synthetic"])
    frame["visits"] = frame["visits"].astype(object)
    frame.loc[11, "visits"] = SECRET
    bad = {**files, "bad": tmp_path / "bad.csv"}
    frame.to_csv(bad["bad"], index=False)
    assert main(arguments(bad, "bad", "--quiet")) == 2
    bad["bad"].write_text(f"x0,x1\n1,2,{SECRET}\n")
    assert main(arguments(bad, "bad", "--quiet")) == 2
    bad["bad"].rename(tmp_path / "bad.parquet")
    assert main(arguments({**bad, "bad": tmp_path / "bad.parquet"}, "bad", "--quiet")) == 2
    assert main(arguments({**bad, "bad": tmp_path / "absent.csv"}, "bad", "--quiet")) == 2
    captured = capsys.readouterr()
    assert SECRET not in captured.err + captured.out
    assert all(word in captured.err for word in ("bad.csv", "'visits'", "row 11", "bad.parquet", "absent.csv"))


def test_the_default_policy_is_printed_as_a_policy_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy"]) == 0
    assert Policy.from_dict(yaml.safe_load(capsys.readouterr().out)).digest() == Policy.default().digest()


def test_usage_errors_exit_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["evaluate"])
    assert caught.value.code == 2
    assert "--train" in capsys.readouterr().err
