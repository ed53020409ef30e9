"""``privacy-assets calibrate``: a study on the user's own table, its files, and what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from privacy_assets.cli.main import main

QUICK = ["--no-embedder", "--quiet", "--metrics", "dcr"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    people = 240
    frame = pd.DataFrame(
        {
            "pid": np.repeat(np.arange(people), 2),
            "income": rng.normal(2_000, 300, 2 * people).round(2),
            "visits": rng.integers(0, 500, 2 * people),
            "town": rng.choice(["Zebulon", "Quito", "Ulm"], 2 * people),
        }
    )
    frame.to_parquet(tmp_path / "people.parquet")
    return tmp_path / "people.parquet"


def run(data: Path, *more: str) -> int:
    left = [] if "--subject" in more else ["--drop", "pid"]
    return main(["calibrate", "--data", str(data), "--out", str(data.parent / "out"), *QUICK, *left, *more])


def test_a_leak_shows_in_every_file(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(data, "--subject", "pid", "--fractions", "0,0.5,1", "--noise", "0,0.05") == 0
    out = data.parent / "out"
    assert out.stat().st_mode & 0o777 == 0o700
    lines = [json.loads(line) for line in (out / "points.jsonl").read_text().splitlines()]
    assert len(lines) == 8 * 3 and {line["x"] for line in lines} == {0.0, 0.5, 1.0}
    found = json.loads((out / "calibration.json").read_text())
    clean = {p["x"]: p["estimates"]["dcr.identical_excess"][0] for p in found["points"] if p["series"] == "no noise"}
    assert clean[0] == 0 and clean[1] == 1
    fit = next(f for f in found["fits"] if (f["series"], f["statistic"]) == ("no noise", "dcr.privacy_score"))
    assert fit["rises"] and fit["slope"] > 0.8
    page = (out / "calibration.html").read_text()
    assert page.count("<svg") == 2 * len({f["statistic"] for f in found["fits"]}) and "σ 0.05, λ 0.05" in page
    assert "<script" not in page and "Zebulon" not in page + json.dumps(found)
    told = capsys.readouterr().out
    assert re.search(r"dcr\.privacy_score +\S+ +\S+ +\S+ +\S+ +\S+ +yes", told) and "calibration.html" in told


def test_it_goes_on_and_takes_up_no_other_study(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    points = data.parent / "out/points.jsonl"
    assert run(data, "--fractions", "0,1", "--noise", "0") == 0
    first = points.read_text()
    assert run(data, "--fractions", "0,1,0.5", "--noise", "0") == 0
    assert points.read_text().startswith(first) and len(points.read_text().splitlines()) == 3
    assert run(data, "--fractions", "0,1", "--noise", "0", "--seed", "1") == 0
    assert len(points.read_text().splitlines()) == 5
    capsys.readouterr()


def test_over_fitting_instead(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--set", "hidden=[8]", "--set", "latent=2", "--set", "epochs=4", "--set", "batch=50"]
    assert run(data, "--subject", "pid", "--overfit", "1,1.02", *small) == 0
    found = json.loads((data.parent / "out/calibration.json").read_text())
    assert [point["wanted"] for point in found["points"]] == [1.0, 1.02] and found["points"][0]["x"] == 1.0
    assert "L/L*" in (data.parent / "out/calibration.html").read_text()
    assert "Not reached" not in capsys.readouterr().out or found["points"][1]["x"] < 1.02
    assert run(data, "--subject", "pid", "--overfit", "1,2", *small) == 0
    assert "Not reached: 2 (ended at " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--fractions", "0,1.5"], "from 0 to 1"),
        (["--noise", "0,2"], "noise: p must be a number from 0 to 1"),
        (["--overfit", "1", "--fractions", "0"], "leave --fractions and --noise out"),
        (["--generator", "rvae"], "for --overfit"),
        (["--overfit", "1", "--generator", "ctgan"], "cannot over-fit"),
        (["--overfit", "3"], "overfit"),
        (["--people", "2"], "--people at least 3"),
        (["--people", "30"], "a third of the people has .* rows, 20 needed"),
        (["--seed", "-1"], "--seed must be at least 0"),
        (["--metrics", "dcrr"], "dcrr"),
        (["--subject", "nobody"], "nobody"),
        (["--data", "none.parquet"], "none.parquet"),
        (["--kind", "town=numeric"], "town"),
    ],
)
def test_what_is_refused(data: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(data, *arguments) == 2
    told = capsys.readouterr().err
    assert re.search(message, told) and "Zebulon" not in told and "Traceback" not in told
    assert not (data.parent / "out/points.jsonl").exists()


@pytest.mark.parametrize("arguments", [["--fractions", "a"], ["--noise", ""], ["--overfit", ","]])
def test_numbers_that_are_none(data: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(data, *arguments)
    assert "write numbers separated by commas" in capsys.readouterr().err


def test_out_must_be_a_folder(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (data.parent / "out").write_text("mine")
    assert run(data) == 2 and (data.parent / "out").read_text() == "mine"
    assert "this is a file" in capsys.readouterr().err
