"""REaLTabFormer: settings, what its worker is given and gives back; the library where its environment is named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from privacy_assets.errors import ConfigError, InputError, StepError
from privacy_assets.generators import build_generator, generator_info, load_generator, realtabformer
from privacy_assets.tables.schema import infer_schema
from privacy_assets.tables.table import Table

ROWS = 120
_RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "when": pd.Timestamp("2020-01-01") + pd.to_timedelta(np.arange(ROWS) % 90, unit="D"),
        "flag": pd.array(_RNG.random(ROWS) < 0.5, dtype="boolean"),
        "price": _RNG.uniform(-5, 20, ROWS).round(2),
        "whole": pd.array(_RNG.integers(-3, 4, ROWS), dtype="Int8"),
        "text": _RNG.choice(["a", "NaN", "@", "x___y", "Zoë"], ROWS),
    }
).mask(_RNG.random((ROWS, 5)) < 0.15)
FRAME["full"] = np.arange(ROWS)
SCHEMA = infer_schema(FRAME)
TABLE = Table.of(FRAME, SCHEMA, where="t")
# In place of the worker: keeps its table, gives it back row by row, and does what it is told before it writes.
STAND_IN = """
import json, shutil, sys
import pyarrow as pa
import pyarrow.parquet as pq
if sys.argv[1] == "fit":
    train, model, seed, device, settings = sys.argv[2:]
    shutil.copy(train, model)
    json.dump([seed, device, json.loads(settings)], open(model + "/given.json", "w"))
else:
    model, out, rows, seed, batch = sys.argv[2:]
    table = pq.read_table(model + "/train.parquet").slice(int(seed), int(rows))
    {lines}
    pq.write_table(table, out)
"""
PYTHON = os.environ.get("PRIVACY_ASSETS_REALTABFORMER")


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    """A function that fits the generator with a stand-in for its worker."""

    def fit(lines: str = "pass", people: object = None, **settings: object) -> object:
        worker = tmp_path / "worker.py"
        worker.write_text(STAND_IN.format(lines=lines))
        monkeypatch.setattr(realtabformer, "WORKER", worker)
        generator = build_generator("realtabformer", {"python": sys.executable, **settings})
        return generator.fit(TABLE, seed=5, device="cuda:1", people=people)

    return fit


def test_rows_come_back_as_they_were_coded(stand_in: object, tmp_path: Path) -> None:
    fitted = stand_in(epochs=3, n_critic=2)  # type: ignore[operator]
    expected = TABLE.take(slice(10, 60)).frame()  # with n_critic no rows are held, and none are moved
    pd.testing.assert_frame_equal(fitted.sample(50, seed=10).frame(), expected)
    fitted.save(tmp_path / "model")
    files = {path.name for path in (tmp_path / "model").rglob("*") if path.is_file()}
    assert files == {"generator.json", "train.parquet", "given.json"}
    loaded = load_generator(tmp_path / "model")
    pd.testing.assert_frame_equal(loaded.sample(50, seed=10).frame(), expected)
    seed, device, settings = json.loads((tmp_path / "model/model/given.json").read_text())
    assert (seed, device) == ("5", "cuda:1") and settings["epochs"] == 3 and settings["n_critic"] == 2
    assert loaded.generator == fitted.generator and loaded.privacy.epsilon is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lines", "error", "message"),
    [
        ("raise ModuleNotFoundError('Zebulon')", StepError, r"exit status 1 \(ModuleNotFoundError\)"),
        ("table = table.drop_columns('c5')", InputError, "column 'c5': the column is missing"),
        ("table = table.set_column(7, 'c4', pa.array(['Zebulon'] * 50))", InputError, "column 'c4', row 0: "),
    ],
)
def test_failures_of_the_worker(stand_in: object, lines: str, error: type, message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        stand_in(lines).sample(50, seed=0).frame()  # type: ignore[operator]
    assert "Zebulon" not in str(caught.value)


def test_without_its_library_it_asks_for_an_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(realtabformer, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match="realtabformer is not installed here.*pip install 'realtabformer"):
        build_generator("realtabformer")


@pytest.mark.slow
@pytest.mark.parametrize(("settings", "held"), [({}, 12), ({"validation": 0}, 0), ({"n_critic": 1}, 0)])
def test_all_rows_of_the_people_held_out_come_last(
    stand_in: object, tmp_path: Path, settings: dict[str, object], held: int
) -> None:
    people = np.arange(ROWS) // 3
    fitted = stand_in(people=people, **settings)  # type: ignore[operator]
    fitted.save(tmp_path / "model")
    given = json.loads((tmp_path / "model/model/given.json").read_text())
    assert given[2]["held"] == held
    order = fitted.sample(ROWS, seed=0).frame()["full"].astype(int).to_numpy()
    assert sorted(order) == list(range(ROWS))
    assert not set(people[order[ROWS - held :]]) & set(people[order[: ROWS - held]])
    assert list(order[: ROWS - held]) == sorted(order[: ROWS - held])


def test_a_ratio_of_one_is_no_over_fitting() -> None:
    protections = [
        build_generator("realtabformer", {"python": "p", "overfit": f}).overfitting_protection() for f in (1, 1.01)
    ]
    assert protections[0].startswith("early stopping after 5 epochs") and protections[1] == ""


def test_it_is_listed_and_its_environment_may_be_elsewhere() -> None:
    info = next(info for info in generator_info() if info.name == "realtabformer")
    assert info.licence == "MIT" and info.extra == "realtabformer" and info.available
    fitted = build_generator("realtabformer", {"python": "/nowhere/python"})
    with pytest.raises(StepError, match=r"python could not be started \(FileNotFoundError\)"):
        fitted.fit(TABLE, seed=0)


def test_the_page_creates_the_environment_that_the_error_names() -> None:
    page = Path(__file__).parents[2] / "docs" / "generators.md"
    assert f"\n{realtabformer.INSTALL}\n" in page.read_text(encoding="utf-8")


def test_the_worker_needs_nothing_of_this_package() -> None:
    lines = "import runpy, sys; runpy.run_path(sys.argv[1]); print(*sys.modules)"
    environment = {"PATH": os.environ["PATH"], "TMPDIR": "/tmp"}
    arguments = [sys.executable, "-I", "-c", lines, str(realtabformer.WORKER)]
    loaded = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=True).stdout.split()
    assert not {"privacy_assets", "torch", "pandas"} & {name.split(".")[0] for name in loaded}


@pytest.mark.slow
@pytest.mark.skipif(PYTHON is None, reason="PRIVACY_ASSETS_REALTABFORMER names no python that has realtabformer")
@pytest.mark.parametrize("n_critic", [0, 2])
def test_the_library_itself(tmp_path: Path, n_critic: int) -> None:
    small = {"python": PYTHON, "epochs": 4, "layers": 1, "width": 64, "n_critic": n_critic, "timeout": 600}
    generator = build_generator("realtabformer", small)
    fitted = generator.fit(TABLE, seed=0)
    frame = fitted.sample(90, seed=0).frame()
    assert len(frame) == 90 and frame.isna().mean().drop("full").between(0.01, 0.8).all()
    assert frame["full"].between(0, ROWS - 1).all() and not fitted.sample(90, seed=1).frame().equals(frame)
    assert [row["epoch"] for row in fitted.history] == [1.0, 2.0, 3.0, 4.0]
    assert fitted.history[-1]["loss"] < fitted.history[0]["loss"]
    assert all(("validation_loss" in row) == (n_critic == 0) for row in fitted.history)
    fitted.save(tmp_path / "model")
    assert not list((tmp_path / "model").rglob("*.pt"))
    pd.testing.assert_frame_equal(load_generator(tmp_path / "model").sample(90, seed=0).frame(), frame)
    if n_critic == 0:
        again = replace(generator, sample_batch=128).fit(TABLE, seed=0)
        pd.testing.assert_frame_equal(again.sample(90, seed=0).frame(), frame)
        assert again.history == fitted.history


@pytest.mark.slow
@pytest.mark.skipif(PYTHON is None, reason="PRIVACY_ASSETS_REALTABFORMER names no python that has realtabformer")
def test_over_fitting_on_purpose_stops_at_the_ratio() -> None:
    small = {"epochs": 30, "batch_size": 1, "patience": 1, "layers": 2, "width": 768, "overfit": 1.1, "timeout": 900}
    generator = build_generator("realtabformer", {"python": PYTHON, **small})
    assert generator.overfitting_protection() == ""
    history = generator.fit(TABLE, seed=0, people=np.arange(ROWS) // 2).history
    first = [row for row in history if "overfitting_ratio" not in row]
    second = history[len(first) :]
    assert len(first) > 1 and 1 < len(second) < 100
    assert [row["epoch"] for row in history] == [float(epoch) for epoch in range(1, len(history) + 1)]
    best = min(row["validation_loss"] for row in first)
    ratios = [row["validation_loss"] / best for row in second]
    assert ratios == pytest.approx([row["overfitting_ratio"] for row in second], rel=1e-4)
    assert ratios[-1] >= 1.1 and all(r < 1.1 for at, r in enumerate(ratios[:-1]) if r > min(ratios[: at + 1]))
