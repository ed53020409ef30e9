"""Commands in the steps of a table: their output, their reports and the way they end do not reach
Dagster.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from planting import PLANTED, World, leaks
from standins import slow

LINES = """
import json, os, random, shutil, sys
import pyarrow.parquet as pq

QUOTED = {quoted!r}
assert not [name for name in os.environ if name.startswith("DAGSTER")]
print(QUOTED)
print(QUOTED, file=sys.stderr)

if sys.argv[1] == "train":
    train, model, seed = sys.argv[2:]
    shutil.copy(train, model)
    json.dump([{{"epoch": 1.0, "loss": 987654.321}}], open(model + "/history.json", "w"))
    {in_train}
else:
    model, out, rows, seed = sys.argv[2:]
    rng, table = random.Random(int(seed)), pq.read_table(model + "/train.parquet")
    table = table.filter([name != QUOTED for name in table["name"].to_pylist()])
    draws = [table.column(name).take(rng.choices(range(len(table)), k=int(rows))) for name in table.column_names]
    pq.write_table(table.schema.empty_table().from_arrays(draws, schema=table.schema), out)
    {in_sample}
"""  # noqa: E501


@pytest.fixture
def world(
    tmp_path: Path, instance: dg.DagsterInstance, capfd: Any, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> World:  # fmt: skip
    monkeypatch.setenv("PRIVACY_ASSETS_SPLIT_KEY", "the same split in every run")
    caplog.set_level("INFO")
    return World(tmp_path, instance, "synthpop", capfd, caplog)


def two_parts(world: World, in_train: str = "pass", in_sample: str = "pass") -> None:
    path = world.data / "program.py"
    path.write_text(LINES.format(quoted=PLANTED["name"], in_train=in_train, in_sample=in_sample))
    train = [sys.executable, str(path), "train", "{train}", "{model}", "{seed}"]
    command = [sys.executable, str(path), "sample", "{model}", "{out}", "{rows}", "{seed}"]
    world.table(generator={"name": "command", "settings": {"train": train, "command": command}})


@pytest.mark.slow
def test_a_program_has_no_channel_into_the_metadata(world: World) -> None:
    two_parts(world)
    assert world.run() == ""
    for asset in ("generator", "synthetic"):
        event = world.instance.get_latest_materialization_event(dg.AssetKey(["people", asset]))
        assert event is not None and event.asset_materialization is not None
        names = event.asset_materialization.metadata
        assert not [
            name for name in names if name.startswith(("reported", "epochs", "last", "training"))
        ]
    assert list((world.folder / "releases").rglob("*.parquet")) and leaks(world) == {}
    runs = [
        world.instance.get_records_for_run(run.run_id).records for run in world.instance.get_runs()
    ]
    assert not [
        record
        for records in runs
        for record in records
        if "[pipes]" in record.event_log_entry.user_message
    ]


@pytest.mark.slow
@pytest.mark.parametrize("part", ["in_train", slow("in_sample")])
def test_a_program_that_fails_publishes_nothing(world: World, part: str) -> None:
    two_parts(world, **{part: "raise ValueError(QUOTED)"})
    told = world.run()
    assert (
        "generator command: " in told
        and " failed, took longer than 3600 seconds or returned an unusable table" in told
    )
    assert "exited with" not in told and "ValueError" not in told
    asset = "generator" if part == "in_train" else "synthetic"
    assert world.instance.get_latest_materialization_event(dg.AssetKey(["people", asset])) is None
    assert (
        world.instance.get_latest_materialization_event(dg.AssetKey(["people", "published"]))
        is None
    )
    assert not list((world.folder / "releases").rglob("*.parquet"))
    assert (
        not list((world.folder / "storage/people").glob(f"{asset}/**/*.*")) and leaks(world) == {}
    )


NUMBER = 7  # a private number below 8, and the ways to encode it in a program's ending
TELLS = {
    "exit status": "sys.exit({n} + 1)",
    "signal": "os.kill(os.getpid(), [1, 2, 3, 6, 9, 10, 12, 15][{n}])",
    "rows": "pq.write_table(pq.read_table(out).slice(0, {n}), out)",
    "column": "pq.write_table(pq.read_table(out).drop_columns(table.column_names[{n} % 6]), out)",
}


@pytest.mark.slow
@pytest.mark.parametrize("way", TELLS)
def test_an_ending_tells_nothing_but_that_it_failed(world: World, way: str) -> None:
    told = set()
    for number in (0, NUMBER):
        two_parts(world, in_sample=TELLS[way].format(n=number))
        told.add(world.run())
    assert len(told) == 1 and " failed, took longer than" in next(iter(told))
