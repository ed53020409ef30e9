"""Columns on the command line: open ones are named, and the ways out lead on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from privacy_assets.cli.main import main

OUT = ["--metrics", "value_disclosure", "--no-embedder", "--quiet"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tables with an id of their own each, the synthetic one with a region that no real row has."""
    rng = np.random.default_rng(0)
    for place, name in enumerate(("train", "holdout", "synthetic")):
        frame = pd.DataFrame({"age": rng.integers(18, 90, 200), "region": rng.choice(["north", "south"], 200)})
        frame["claim"] = [f"CLAIM-{place}-{number:06d}" for number in range(200)]
        if name == "synthetic":
            frame.loc[3, "region"] = "east"
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def evaluate(*more: str) -> int:
    files = [word for name in ("train", "holdout", "synthetic") for word in (f"--{name}", f"{name}.csv")]
    return main(["evaluate", *files, *OUT, *more])


@pytest.mark.parametrize(
    "command",
    [
        ["evaluate", "--train", "train.csv", "--holdout", "holdout.csv", "--synthetic", "synthetic.csv", *OUT],
        ["generate", "--data", "train.csv", "--generator", "synthpop", "--out", "made.csv"],
        ["audit", "--data", "train.csv", "--generator", "copy"],
        ["calibrate", "--data", "train.csv", "--out", "study"],
    ],
    ids=lambda command: command[0],
)
def test_every_command_that_reads_a_private_table_names_them(
    command: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command) == 2
    told = capsys.readouterr().err
    assert "'claim' (nearly every value belongs to one person)" in told and "drop: [claim]" in told
    assert "CLAIM-" not in told and not (folder / "made.csv").exists()


def test_drop_generated_and_domain(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate("--drop", "claim") == 1
    assert "value_disclosure.foreign_cells" in capsys.readouterr().out
    assert evaluate("--drop", "claim", "--domain", "region=north,east", "--json", "found.json") == 0
    assert evaluate("--generated", "claim=numbered anew", "--domain", "region=east") == 0
    assert json.loads((folder / "found.json").read_text())["tables"]["synthetic"]["columns"] == 2
    stolen = pd.read_csv("synthetic.csv").assign(claim=pd.read_csv("train.csv")["claim"])
    stolen.to_csv("synthetic.csv", index=False)
    assert evaluate("--generated", "claim=numbered anew", "--domain", "region=east") == 1


def test_generate_leaves_a_column_out_and_invents_none(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = ["generate", "--data", "train.csv", "--generator", "copy", "--out", "made.csv", "--quiet"]
    assert main([*made, "--drop", "claim"]) == 0
    assert "--drop claim" in capsys.readouterr().err  # in the command that judges it
    assert list(pd.read_csv("made.csv").columns) == ["age", "region"]
    assert main([*made, "--generated", "claim=anew"]) == 2
    assert "copies the values of real rows" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--drop", "claims"], "Did you mean 'claim'"),
        (["--generated", "claim"], "COLUMN=REASON"),
        (["--generated", "claim="], "no reason"),
        (["--domain", "region=a", "--domain", "region=b"], "once for each column"),
    ],
)
def test_what_cannot_be_read_is_told(
    more: list[str], told: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(*more) == 2
    assert told in capsys.readouterr().err
