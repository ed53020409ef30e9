"""Programs in the steps of a table: what they report by Dagster Pipes, and what of it gets out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from planting import PLANTED, World, leaks
from standins import slow

LINES = """
import os, random, shutil, sys
import pyarrow.parquet as pq
from dagster_pipes import open_dagster_pipes

QUOTED = {quoted!r}

def sampled(table, rows, seed):
    rng, table = random.Random(int(seed)), pq.read_table(table)
    table = table.filter([name != QUOTED for name in table["name"].to_pylist()])
    draws = [table.column(name).take(rng.choices(range(len(table)), k=int(rows))) for name in table.column_names]
    return table.schema.empty_table().from_arrays(draws, schema=table.schema)

def leak(pipes):
    print(QUOTED, file=sys.stderr)
    pipes.log.error(QUOTED)
    pipes.report_custom_message({{"epoch": QUOTED, QUOTED: 1.0, "loss": QUOTED}})
    pipes.report_custom_message(QUOTED)
    pipes.report_asset_check(check_name="splits_alike", passed=True, metadata={{"why": QUOTED}})

if sys.argv[1] == "train":
    train, model, seed = sys.argv[2:]
    with open_dagster_pipes() as pipes:
        for epoch in (1, 2, 3):
            pipes.report_custom_message({{"epoch": epoch, "epochs": 3, "loss": 3.0 / epoch}})
        leak(pipes)
        pipes.report_asset_materialization(metadata={{"best_loss": 0.5, QUOTED: 2, "auc": QUOTED}}, data_version=QUOTED)
        assert pipes.asset_key == "people/generator"
        shutil.copy(train, model)
        {in_train}
else:
    model, out, rows, seed = sys.argv[2:]
    pq.write_table(sampled(model + "/train.parquet", rows, seed), out)
    with open_dagster_pipes() as pipes:
        leak(pipes)
        pipes.report_custom_message({{"steps": int(rows)}})
        {in_sample}
"""


SILENT = """
import random, sys
import pyarrow.parquet as pq
train, out, rows, seed = sys.argv[1:]
table, rng = pq.read_table(train), random.Random(int(seed))
table = table.filter([name != {quoted!r} for name in table["name"].to_pylist()])
draws = [table.column(name).take(rng.choices(range(len(table)), k=int(rows))) for name in table.column_names]
pq.write_table(table.schema.empty_table().from_arrays(draws, schema=table.schema), out)
print({quoted!r})
"""


@pytest.fixture
def world(
    tmp_path: Path, instance: dg.DagsterInstance, capfd: Any, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> World:  # fmt: skip
    monkeypatch.setenv("PRIVACY_ASSETS_SECRET", "the same split in every run")
    caplog.set_level("INFO")
    return World(tmp_path, instance, "synthpop", capfd, caplog)


def program(world: World, lines: str, **filled: str) -> list[str]:
    path = world.data / "program.py"
    path.write_text(lines.format(quoted=PLANTED["name"], **filled))
    return [sys.executable, str(path)]


def two_parts(world: World, in_train: str = "pass", in_sample: str = "pass") -> None:
    start = program(world, LINES, in_train=in_train, in_sample=in_sample)
    train = [*start, "train", "{train}", "{model}", "{seed}"]
    command = [*start, "sample", "{model}", "{out}", "{rows}", "{seed}"]
    world.table(generator={"name": "command", "settings": {"train": train, "command": command}})


def metadata(world: World, asset: str) -> dict[str, Any]:
    event = world.instance.get_latest_materialization_event(dg.AssetKey(["people", asset]))
    assert event is not None and event.asset_materialization is not None
    return {name: entry.value for name, entry in event.asset_materialization.metadata.items()}


def logged(world: World) -> str:
    return "\n".join(str(event.user_message) for run in world.instance.get_runs()
                     for event in world.instance.all_logs(run.run_id))  # fmt: skip


def test_numbers_reach_the_assets_and_nothing_else(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privacy_assets.compute.progress.EVERY", 0.0)
    two_parts(world)
    assert world.run() == ""
    trained, sampled = metadata(world, "generator"), metadata(world, "synthetic")
    assert trained["epochs"] == 3 and trained["last loss"] == 1.0 and trained["reported best loss"] == 0.5
    assert trained["loss by epoch"].startswith("![loss](data:image/svg+xml") and "reported auc" not in trained
    assert sampled["reported steps"] == sampled["dagster/row_count"] and "last loss" not in sampled
    said = logged(world)
    assert "the program: epochs: 2 of 3" in said and "successfully opened dagster pipes" in said
    assert "did not receive" not in said
    assert list((world.place / "releases").rglob("*.parquet")) and leaks(world) == {}


@pytest.mark.parametrize("part", ["in_train", slow("in_sample")])
def test_a_program_that_fails_publishes_nothing(world: World, part: str) -> None:
    two_parts(world, **{part: "raise ValueError(QUOTED)"})
    told = world.run()
    assert "generator command: " in told and "ended with exit status 1 (ValueError)" in told
    asset = "generator" if part == "in_train" else "synthetic"
    assert world.instance.get_latest_materialization_event(dg.AssetKey(["people", asset])) is None
    assert world.instance.get_latest_materialization_event(dg.AssetKey(["people", "published"])) is None
    assert not list((world.place / "releases").rglob("*.parquet"))
    assert not list((world.place / "storage/people").glob(f"{asset}/**/*.*")) and leaks(world) == {}


@pytest.mark.slow
def test_a_program_without_pipes_works_as_ever(world: World) -> None:
    command = [*program(world, SILENT), "{train}", "{out}", "{rows}", "{seed}"]
    world.table(generator={"name": "command", "settings": {"command": command}})
    assert world.run() == ""
    assert not [name for name in metadata(world, "synthetic") if name.startswith(("reported", "epochs"))]
    assert "does not use dagster_pipes sends no messages, and need not" in logged(world) and leaks(world) == {}
