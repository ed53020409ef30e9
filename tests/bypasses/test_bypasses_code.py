"""Bypasses through the code of the generator: it searches for the gate's keys, or its step is
killed.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from bypasses import World, gated, stock
from processes import gone, killed
from thieves import looks_around

from privacy_assets.gate.keys import SIGNING_VARIABLE, first_key

pytestmark = pytest.mark.skipif(
    not os.path.isdir("/proc/self"), reason="looks into /proc, and needs prctl"
)
FUNCTIONS_APART = True
SECRET = "a secret of this deployment: 5f1c9b"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World.open(tmp_path) as opened:
        yield opened


@pytest.mark.slow
def test_bypass_48_code_that_reads_the_keys_from_its_environment(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_key(world.root / "keys" / "signing.key", world.root / "trusted_keys")
    key = (world.root / "keys" / "signing.key").read_text()
    (world.root / "private").mkdir(mode=0o700)
    monkeypatch.setenv(SIGNING_VARIABLE, key)
    monkeypatch.setenv("PRIVACY_ASSETS_SPLIT_KEY", SECRET)
    monkeypatch.setenv("DAGSTER_HOME", str(world.root / "home"))
    taken = {}
    for name in ("plain", "walled"):
        monkeypatch.setenv("LOOT", str(world.root / name))
        given = {"name": "callable", "settings": {"function": looks_around, "variables": ["LOOT"]}}
        defs = (
            stock(world, name, generator=looks_around)
            if name == "plain"
            else gated(world, name, given)
        )
        done = world.run(defs)
        assert done.success
        taken[name] = (world.root / name).read_text()
    secrets = [key.splitlines()[1], SECRET]
    assert all(secret in taken["plain"] for secret in secrets)
    places = [
        str(world.root / place) for place in ("private", "home", "keys", "storage", "releases")
    ]
    assert not [one for one in [*secrets, *places] if one in taken["walled"]]
    assert "income" in taken["walled"], "the rows of train it is given"


KILLED = """
import sys
from pathlib import Path
from bypasses import World, gated

with World.open(Path(sys.argv[1])) as world:
    settings = {"function": "thieves:stays", "variables": ["LOOT"]}
    world.run(gated(world, "stays", {"name": "callable", "settings": settings}))
"""


@pytest.mark.slow
def test_bypass_49_a_killed_step_leaves_private_rows_and_a_running_program(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = world.root / "tmp"
    work.mkdir()
    loot = world.root / "loot"
    pids = killed(["-c", KILLED, str(world.root)], loot, LOOT=str(loot), TMPDIR=str(work))
    assert len(pids) == 2 and all(gone(pid) for pid in pids)
    assert list(work.rglob("train.parquet"))
    monkeypatch.setattr(tempfile, "tempdir", str(work))
    world.unlock("stays")
    assert world.run(gated(world, "stays", "copy"), "stays/generator").success
    assert not list(work.rglob("*.parquet"))
