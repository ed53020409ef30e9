"""``privacy-assets leak-study``: a study on the user's own table, and its files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.cli.conftest import Command, Said


@pytest.fixture
def run(tmp_path: Path, command: Command) -> Callable[..., Said]:
    """A study of made-up people with two rows each, into the folder ``out``."""
    rng, people = np.random.default_rng(0), 240
    frame = pd.DataFrame(
        {
            "pid": np.repeat(np.arange(people), 2),
            "income": rng.normal(2_000, 300, 2 * people).round(2),
            "visits": rng.integers(0, 500, 2 * people),
            "town": rng.choice(["Zebulon", "Quito", "Ulm"], 2 * people),
        }
    )
    frame.to_parquet(tmp_path / "people.parquet")
    asked = ["leak-study", f"--data={tmp_path / 'people.parquet'}", f"--out={tmp_path / 'out'}"]
    return lambda *more: command(*asked, "--no-embedder", "--quiet", "--metrics=dcr", *more)


@pytest.mark.slow
def test_a_leak_shows_in_every_file(run: Callable[..., Said], tmp_path: Path) -> None:
    said, out = run("--subject=pid", "--fractions=0,0.5,1", "--noise=0,0.05"), tmp_path / "out"
    assert out.stat().st_mode & 0o777 == 0o700
    lines = [json.loads(line) for line in (out / "points.jsonl").read_text().splitlines()]
    assert len(lines) == 8 * 3 and {line["x"] for line in lines} == {0.0, 0.5, 1.0}
    found = json.loads((out / "leak_study.json").read_text())
    clean = {
        p["x"]: p["estimates"]["dcr.identical_excess"][0]
        for p in found["points"]
        if p["series"] == "no noise"
    }
    assert clean[0] == 0 and clean[1] == 1
    fit = next(
        f
        for f in found["fits"]
        if (f["series"], f["statistic"]) == ("no noise", "dcr.privacy_score")
    )
    assert fit["rises"] and fit["slope"] > 0.8
    page = (out / "leak_study.html").read_text()
    assert (
        page.count("<svg") == 2 * len({f["statistic"] for f in found["fits"]})
        and "σ 0.05, λ 0.05" in page
    )
    assert "<script" not in page and "Zebulon" not in page + json.dumps(found)
    assert (
        re.search(r"dcr\.privacy_score +\S+ +\S+ +\S+ +\S+ +\S+ +yes", said.out)
        and "leak_study.html" in said.out
    )


def test_it_goes_on_and_takes_up_no_other_study(run: Callable[..., Said], tmp_path: Path) -> None:
    points, texts = tmp_path / "out/points.jsonl", [""]
    for fractions, seed, lines in (("0,1", 0, 2), ("0,1,0.5", 0, 3), ("0,1", 1, 5)):
        run("--drop=pid", "--noise=0", f"--fractions={fractions}", f"--seed={seed}")
        texts.append(points.read_text())
        assert texts[-1].startswith(texts[-2]) and len(texts[-1].splitlines()) == lines


@pytest.mark.slow
def test_over_fitting_instead(
    run: Callable[..., Said], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("privacy_assets.networks.rvae._OVERFIT_EPOCHS", 5)
    small = ["--set=hidden_dims=[8]", "--set=latent=2", "--set=epochs=4", "--set=batch_size=50"]
    assert (
        "Not reached: 2 (ended at "
        in run("--subject=pid", "--generator=rvae", "--overfit=1,2", *small).out
    )
    found = json.loads((tmp_path / "out/leak_study.json").read_text())
    assert [point["requested"] for point in found["points"]] == [1.0, 2.0] and found["points"][0][
        "x"
    ] == 1.0
    assert "L/L*" in (tmp_path / "out/leak_study.html").read_text()


def test_settings_of_metrics_and_of_the_embedder_come_from_the_policy(
    run: Callable[..., Said], command: Command, tmp_path: Path
) -> None:
    policy = tmp_path / "paper.yaml"
    metric, encoder = (
        "metrics: {dcr: {n_bootstraps: 50}}",
        "embedder: {preset: paper, width: 8, max_epochs: 2}",
    )
    policy.write_text(f"extends: default\n{metric}\n{encoder}")
    asked = [
        f"--data={tmp_path / 'people.parquet'}",
        "--subject=pid",
        "--quiet",
        "--metrics=dcr",
        "--device=cpu",
    ]
    asked += ["--fractions=0,1", "--noise=0", f"--policy={policy}"]
    found = {}
    for name, more in (("with", []), ("without", ["--no-embedder"])):
        command("leak-study", f"--out={tmp_path / name}", *asked, *more)
        found[name] = json.loads((tmp_path / name / "leak_study.json").read_text())
    assert found["without"]["embedder"] is None
    trained = found["with"]["embedder"]
    assert (trained["settings"]["preset"], trained["settings"]["width"], trained["epochs"]) == (
        "paper",
        8,
        2,
    )
    assert trained["validation_loss"] > 0 and 0 <= trained["validation_accuracy"] <= 1
    embedded = [
        point["estimates"]["dcr.privacy_score_embedded"][0] for point in found["with"]["points"]
    ]
    assert embedded[0] < 0.3 and embedded[1] == 1
