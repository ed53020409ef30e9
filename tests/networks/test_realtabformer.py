"""REaLTabFormer: settings, input and output of its worker, and the library if its environment is
configured.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from privacy_assets.errors import ConfigError, InputError, StepError
from privacy_assets.generators import (
    build_generator,
    generator_info,
    load_generator,
    programs,
)
from privacy_assets.networks import realtabformer
from privacy_assets.networks.realtabformer import DigitCoding
from privacy_assets.tables.inference import infer_schema
from privacy_assets.tables.schema import ColumnSchema, TableSchema
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
# Fake worker: it stores its table, returns it row by row, and runs the test's code before it
# writes.
STAND_IN = """
import json, shutil, sys
import pyarrow as pa
import pyarrow.parquet as pq
if sys.argv[1] == "fit":
    train, model, seed, device, settings = sys.argv[2:]
    shutil.copy(train, model)
    json.dump([seed, device, json.loads(settings)], open(model + "/given.json", "w"))
    open(model + "/history.json", "w").write({history!r})
else:
    model, out, rows, seed, batch = sys.argv[2:]
    table = pq.read_table(model + "/train.parquet").slice(int(seed), int(rows))
    {lines}
    pq.write_table(table, out)
"""
PYTHON = os.environ.get("PRIVACY_ASSETS_REALTABFORMER")


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    """A function that fits the generator with a fake worker."""

    def fit(
        lines: str = "pass", people: object = None, history: str = "[]", **settings: object
    ) -> object:
        worker = tmp_path / "worker.py"
        worker.write_text(STAND_IN.format(lines=lines, history=history))
        monkeypatch.setattr(realtabformer, "WORKER", worker)
        generator = build_generator("realtabformer", {"python": sys.executable, **settings})
        return generator.fit(TABLE, seed=5, device="cuda:1", subject_codes=people)

    return fit


@pytest.mark.slow
def test_rows_come_back_as_they_were_coded(stand_in: object, tmp_path: Path) -> None:
    fitted = stand_in(epochs=3, n_critic=2)  # type: ignore[operator]
    expected = TABLE.take(slice(10, 60)).frame()  # with n_critic no rows are held out or moved
    pd.testing.assert_frame_equal(fitted.sample(50, seed=10).frame(), expected)
    fitted.save(tmp_path / "model")
    files = {path.name for path in (tmp_path / "model").rglob("*") if path.is_file()}
    assert files == {".gitignore", "generator.json", "train.parquet", "given.json", "history.json"}
    loaded = load_generator(tmp_path / "model")
    pd.testing.assert_frame_equal(loaded.sample(50, seed=10).frame(), expected)
    seed, device, settings = json.loads((tmp_path / "model/model/given.json").read_text())
    assert (
        (seed, device) == ("5", "cuda:1") and settings["epochs"] == 3 and settings["n_critic"] == 2
    )
    assert loaded.generator == fitted.generator and loaded.privacy.epsilon is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ("raise ModuleNotFoundError('Zebulon')", "ModuleNotFoundError: Zebulon"),
        ("table = table.drop_columns('c5')", "column 'c5': the column is missing"),
        (
            "table = table.set_column(7, 'c4', pa.array(['Zebulon'] * 50))",
            "column 'c4', row 0: a code is not known",
        ),
    ],
)
def test_failures_of_the_worker(stand_in: object, lines: str, reason: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with pytest.raises(
        StepError, match="generator realtabformer: python.* failed, took longer than"
    ):
        stand_in(lines, log=str(log)).sample(50, seed=0).frame()  # type: ignore[operator]
    assert reason in log.read_text()


EPOCH = {
    "epoch": 1.0,
    "loss": 0.5,
    "validation_loss": 0.75,
    "learning_rate": 1e-4,
    "grad_norm": 2.0,
}


def test_the_training_curve_of_the_worker_is_read(stand_in: object, tmp_path: Path) -> None:
    curve = [EPOCH, {"epoch": 2.0, "validation_loss": 1.5, "overfitting_ratio": 2.0}]
    fitted = stand_in(history=json.dumps(curve))  # type: ignore[operator]
    assert list(fitted.history) == curve
    fitted.save(tmp_path / "model")
    assert list(load_generator(tmp_path / "model").history) == curve


@pytest.mark.slow
@pytest.mark.parametrize(
    "history",
    [
        "",
        "{}",
        "null",
        "[[1.0]]",
        "[" * 100_000,
        json.dumps([{"loss": 0.5}]),
        json.dumps([{**EPOCH, "zebulon": 1.0}]),
        json.dumps([{**EPOCH, "loss": "Zebulon"}]),
        json.dumps([{**EPOCH, "loss": [0.5]}]),
        json.dumps([{**EPOCH, "loss": None}]),
        json.dumps([{**EPOCH, "loss": True}]),
        json.dumps([{**EPOCH, "loss": 10**400}]),
        json.dumps([{**EPOCH, "loss": float("nan")}]),
        json.dumps([{**EPOCH, "loss": float("inf")}]),
        json.dumps([EPOCH] * 10_001),
        json.dumps([]) + " " * (1 << 22),
    ],
    ids=range(16),
)
def test_anything_else_in_its_place_is_blocked(stand_in: object, history: str) -> None:
    with pytest.raises(
        StepError, match="generator realtabformer: python.* failed, took longer than"
    ) as caught:
        stand_in(history=history)  # type: ignore[operator]
    assert "ebulon" not in str(caught.value)


def test_without_its_library_it_asks_for_an_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(realtabformer, "find_spec", lambda _: None)
    with pytest.raises(
        ConfigError, match="realtabformer is not installed.*pip install 'realtabformer"
    ):
        build_generator("realtabformer")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "held"), [({}, 12), ({"validation": 0}, 0), ({"n_critic": 1}, 0)]
)
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
        build_generator("realtabformer", {"python": "p", "overfit": f}).overfitting_protection()
        for f in (1, 1.01)
    ]
    assert protections[0]["patience"] == 5 and protections[1] == {}


def test_it_is_listed_and_its_environment_may_be_elsewhere() -> None:
    info = next(info for info in generator_info() if info.name == "realtabformer")
    assert info.license == "MIT" and info.extra == "realtabformer" and info.available
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
    loaded = subprocess.run(
        arguments, env=environment, capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"privacy_assets", "torch", "pandas"} & {name.split(".")[0] for name in loaded}


def test_the_worker_writes_what_its_trainers_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fakes of the libraries run two trainings, as with ``overfit``."""
    library = ModuleType("realtabformer")
    library.REaLTabFormer = type(  # type: ignore[attr-defined]
        "REaLTabFormer",
        (),
        {"__init__": lambda self: None, "_build_tabular_trainer": lambda self: Trainer()},
    )
    transformers = ModuleType("transformers")
    transformers.TrainerCallback = object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "realtabformer", library)
    monkeypatch.setitem(sys.modules, "transformers", transformers)
    worker = runpy.run_path(str(realtabformer.WORKER))

    class Trainer:
        def add_callback(self, callback: object) -> None:
            self.callback = callback

    def trained(
        rows: object, chosen: object, kind: str, number: int, curve: object, before: object = None
    ) -> object:
        callback = (
            worker["recording"]()(0, curve, [], before, 2.0)._build_tabular_trainer().callback
        )
        for epoch in (1, 2):
            state = SimpleNamespace(epoch=epoch)
            callback.on_log(
                None, state, None, {"loss": float("nan"), "grad_norm": 1.5, "Zebulon": 7}
            )
            callback.on_log(None, state, None, {"eval_loss": 3.0})
        return None, [2.0, 4.0]

    fit = worker["fit"]
    patched = {
        "train_model": trained,
        "save": lambda *_: None,
        "read_rows": lambda _: FRAME[["full"]],
    }
    for name, value in patched.items():
        monkeypatch.setitem(fit.__globals__, name, value)
    fit("train", str(tmp_path), "0", "cpu", json.dumps({"overfit": 2.0}))
    first = [{"epoch": float(epoch), "grad_norm": 1.5, "validation_loss": 3.0} for epoch in (1, 2)]
    second = [{**row, "epoch": row["epoch"] + 2, "overfitting_ratio": 1.5} for row in first]
    assert list(programs.read_history(tmp_path / programs.HISTORY)) == [*first, *second]
    recorder = worker["recording"]()(0, {}, [], [5.0, 6.0], 1.2)._build_tabular_trainer().callback
    stops = []
    for loss in (4.0, 3.0, 3.5, 2.9, 3.47, 3.48):  # the second training has the least loss
        control = SimpleNamespace(should_training_stop=False)
        recorder.on_evaluate(None, None, control, {"eval_loss": loss})
        stops.append(control.should_training_stop)
    assert stops == [False] * 5 + [True]
    assert (worker["HISTORY"], worker["EPOCHS"]) == (programs.HISTORY, programs.EPOCHS)
    assert {*worker["NAMES"].values(), "epoch", "overfitting_ratio"} == programs.HISTORY_KEYS


@pytest.mark.slow
@pytest.mark.skipif(
    PYTHON is None, reason="PRIVACY_ASSETS_REALTABFORMER names no python that has realtabformer"
)
@pytest.mark.parametrize("n_critic", [0, 2])
def test_the_library_itself(tmp_path: Path, n_critic: int) -> None:
    small = {
        "python": PYTHON,
        "epochs": 4,
        "layers": 1,
        "width": 64,
        "n_critic": n_critic,
        "timeout": 600,
    }
    generator = build_generator("realtabformer", small)
    fitted = generator.fit(TABLE, seed=0)
    frame = fitted.sample(90, seed=0).frame()
    assert len(frame) == 90 and frame.isna().mean().drop("full").between(0.01, 0.8).all()
    assert frame["full"].between(0, ROWS - 1).all() and not fitted.sample(
        90, seed=1
    ).frame().equals(frame)
    assert [row["epoch"] for row in fitted.history] == [1.0, 2.0, 3.0, 4.0]
    assert fitted.history[-1]["loss"] < fitted.history[0]["loss"]
    assert all(("validation_loss" in row) == (n_critic == 0) for row in fitted.history)
    fitted.save(tmp_path / "model")
    assert not list((tmp_path / "model").rglob("*.pt"))
    pd.testing.assert_frame_equal(
        load_generator(tmp_path / "model").sample(90, seed=0).frame(), frame
    )
    if n_critic == 0:
        again = replace(generator, sample_batch=128).fit(TABLE, seed=0)
        pd.testing.assert_frame_equal(again.sample(90, seed=0).frame(), frame)
        assert again.history == fitted.history


@pytest.mark.slow
@pytest.mark.skipif(
    PYTHON is None, reason="PRIVACY_ASSETS_REALTABFORMER names no python that has realtabformer"
)
def test_over_fitting_on_purpose_stops_at_the_ratio() -> None:
    small = {
        "epochs": 30,
        "batch_size": 1,
        "patience": 1,
        "layers": 2,
        "width": 768,
        "overfit": 1.1,
        "timeout": 900,
    }
    generator = build_generator("realtabformer", {"python": PYTHON, **small})
    assert generator.overfitting_protection() == {}
    history = generator.fit(TABLE, seed=0, subject_codes=np.arange(ROWS) // 2).history
    first = [row for row in history if "overfitting_ratio" not in row]
    second = history[len(first) :]
    assert len(first) > 1 and 1 < len(second) < 100
    assert [row["epoch"] for row in history] == [
        float(epoch) for epoch in range(1, len(history) + 1)
    ]
    before, losses = ([row["validation_loss"] for row in part] for part in (first, second))
    ratios = [loss / min(before + losses) for loss in losses]
    assert ratios == pytest.approx([row["overfitting_ratio"] for row in second], rel=1e-4)
    assert ratios[-1] >= 1.1
    for end in range(1, len(losses)):
        past = losses[:end]
        assert past[-1] == min(past) or past[-1] < 1.1 * min(before + past)


# The coding of tables

CODED_FRAME = pd.DataFrame(
    {
        "whole": pd.array([-3, 7, None, 4_000_000_000], dtype="Int64"),
        "price": [-0.25, 12.5, None, 123456.78],
        "flag": pd.array([True, None, False, True], dtype="boolean"),
        "text": ["NaN", "v1", None, "Zoë___@"],
        "day": pd.to_datetime(["2020-02-29", None, "1969-12-31", "2020-03-01"]),
        "time": pd.to_datetime(
            ["2020-02-29 10:11:12.000001", None, "1969-12-31", "2020-03-01"], format="ISO8601"
        ),
        "same": [2.5] * 4,
        "full": [4, 3, 2, 1],
    }
)
CODED_SCHEMA = infer_schema(CODED_FRAME)
CODED = Table.of(CODED_FRAME, CODED_SCHEMA, where="t")


def test_every_kind_comes_back_exactly() -> None:
    coding = DigitCoding.fit(CODED)
    coded = coding.code(CODED)
    pd.testing.assert_frame_equal(
        coding.table(coded, where="t").frame(), CODED.frame(), check_exact=True
    )
    numbers = coded.select_dtypes("number")
    assert (numbers.min() == 0).all() and set(numbers.dtypes.astype(str)) == {"int64"}
    assert coded["c1"].tolist() == [0, 1275, 0, 12345703] and coded["c1m"].tolist() == [
        "v0",
        "v0",
        "v1",
        "v0",
    ]
    assert coded["c4"].max() == 18323 and "c6m" not in coded  # days, not microseconds
    kept = DigitCoding.from_json(json.loads(json.dumps(coding.to_json())), CODED_SCHEMA)
    pd.testing.assert_frame_equal(kept.code(CODED), coded)
    few = kept.table(coded.iloc[[3, 1]], where="t")
    pd.testing.assert_frame_equal(few.frame(), CODED.take(np.array([3, 1])).frame())


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e6, 1e15])
@pytest.mark.parametrize("shift", [0.0, -3.0, 100.0])
def test_long_numbers_keep_six_digits_of_their_span(scale: float, shift: float) -> None:
    values = (np.random.default_rng(0).normal(size=500) + shift) * scale
    frame = pd.DataFrame({"x": values})
    table = Table.read(frame, kinds={"x": "numeric"})
    coding = DigitCoding.fit(table)
    coded = coding.code(table)
    error = np.abs(coding.table(coded, where="t")["x"].cells - values).max()
    assert error <= 0.51e-5 * np.ptp(values) and coded["c0"].between(0, 10**6).all()


@pytest.mark.parametrize("value", [0.0, -7.0, 1e300, 3e-300])
def test_one_row_and_one_value(value: float) -> None:
    table = Table.read(pd.DataFrame({"x": [value]}))
    coding = DigitCoding.fit(table)
    assert coding.code(table)["c0"].tolist() == [0]
    assert coding.table(coding.code(table), where="t")["x"].objects() == pytest.approx(
        [value], rel=1e-5
    )


def test_a_number_without_any_value_is_missing_everywhere() -> None:
    schema = TableSchema(
        (
            ColumnSchema("x", "numeric", True, "float64"),
            ColumnSchema("d", "datetime", True, "object"),
        )
    )
    table = Table.of(pd.DataFrame({"x": [np.nan, np.nan], "d": [None, None]}), schema, where="t")
    coding = DigitCoding.fit(table)
    assert coding.code(table).nunique().tolist() == [1, 1]
    pd.testing.assert_frame_equal(
        coding.table(coding.code(table), where="t").frame(), table.frame()
    )


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("c3", "v9", "a code is not known"),
        ("c1m", "v2", "a code is not known"),
        ("c0", "x", "not an integer"),
    ],
)
def test_codes_that_there_are_not(column: str, value: str, words: str) -> None:
    coding = DigitCoding.fit(CODED)
    coded = coding.code(CODED).astype({column: object})
    coded.loc[2, column] = value
    with pytest.raises(InputError, match=f"'{column}', row 2: .*{words}"):
        coding.table(coded, where="t")
    with pytest.raises(InputError, match="the column is missing"):
        coding.table(coded.drop(columns=column), where="t")
