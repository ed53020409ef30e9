"""Output, logs, warnings and thread errors of a step's code are stored in no shipped instance."""

import logging
import threading
from pathlib import Path

import broken_generators as wrong
import dagster as dg
import pandas as pd
import pytest
import yaml
from planting import SPELLINGS, World, leaks, private
from standins import sqlite_instance

from privacy_assets.dagster.demo import INSTANCE

ROOT = Path(__file__).parents[2]
FUNCTIONS_APART = True
# of the process that started the run; it is not stored in the instance
CONSOLE = {"stdout", "stderr", "logging"}


@pytest.fixture
def chatty(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> World:
    """A deployment whose upstream asset prints private rows; its output is collected in the folder
    of ``world``.
    """
    # restored at the end of the test
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    caplog.set_level(logging.DEBUG)
    world = World(
        tmp_path / "deployment", dg.DagsterInstance.ephemeral(), wrong.honest, capfd, caplog
    )

    @dg.asset(io_manager_key="privacy_io")
    def raw() -> pd.DataFrame:
        wrong.talks(private(), 1, 0)
        return private()

    world.table(raw, source=raw)
    return world


def run_in(world: World, instance: dg.DagsterInstance) -> dict[str, set[str]]:
    """Where private values appear after a run of the pipeline, except on the console."""
    world.instance = instance
    assert world.run(upstream=True) == ""
    found = leaks(world)
    assert CONSOLE & set(found)  # the values were printed
    return {where: values for where, values in found.items() if where not in CONSOLE}


SHIPPED = [
    (ROOT / name).read_text() for name in ("dagster.local.yaml", "dagster.production.yaml")
] + [INSTANCE]


def test_the_instances_of_repository_production_and_demo_keep_no_logs() -> None:
    for text in SHIPPED:
        assert yaml.safe_load(text)["compute_logs"]["class"] == "NoOpComputeLogManager"


@pytest.mark.slow
def test_nothing_that_is_printed_is_kept(chatty: World) -> None:
    home = chatty.folder / "home"
    home.mkdir()
    (home / "dagster.yaml").write_text(SHIPPED[0])
    with dg.DagsterInstance.from_config(str(home)) as instance:
        assert run_in(chatty, instance) == {}


@pytest.mark.slow
def test_an_instance_of_ones_own_keeps_it(chatty: World) -> None:
    with sqlite_instance(chatty.folder) as instance:
        found = run_in(chatty, instance)
    assert found and all("compute_logs" in where for where in found)
    assert set.union(*found.values()) == set(SPELLINGS)
