"""Routes around the memory of the gate, and around the folders and keys it relies on (see test_routes)."""

import datetime as dt
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pandas as pd
import pytest
from routes import World, gated, nothing_published, reason, refused, released
from standins import failures, independent, slow

from privacy_assets import read_published
from privacy_assets.cli.main import main
from privacy_assets.errors import PublicationRefused
from privacy_assets.gate import gate as gates
from privacy_assets.gate import release, release_disk
from privacy_assets.gate.gate import Gate
from privacy_assets.gate.keys import rotate_key
from privacy_assets.gate.statements import Place

AGAIN = "is not current any more"


class Behind(dt.datetime):
    """A clock that is a day late."""

    @classmethod
    def now(cls, tz: dt.tzinfo | None = None) -> dt.datetime:
        return super().now(tz) - dt.timedelta(days=1)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World.open(tmp_path) as opened:
        yield opened


def gate_of(defs: dg.Definitions) -> Gate:
    return defs.resources["releases"].gate()


def read(world: World, table: str) -> pd.DataFrame:
    return read_published(world.root / "releases", table)


def roll_back(world: World, table: str, name: str) -> None:
    assert main(["releases", table, "--rollback", name, "--releases", str(world.root / "releases")]) == 0


@pytest.mark.slow
def test_route_43_a_rollback_undone_by_the_same_bytes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new attestation around the bytes that were rolled back, or that a later release replaced."""
    older, newer = gated(world, "undone", independent), gated(world, "undone", independent, seed=1)
    assert world.run(older).success
    assert world.run(newer).success
    first, second = released(world, "undone")
    roll_back(world, "undone", first.id)
    kept = read(world, "undone")
    for assets in (("attestation", "published"), ("published",)):
        refused(world.run(newer, *(f"undone/{asset}" for asset in assets)), "undone", f"{second.id}, and {AGAIN}")
    refused(world.run(newer), "undone", AGAIN)
    pd.testing.assert_frame_equal(read(world, "undone"), kept)
    assert world.run(older).success  # what is current may be published again
    roll_back(world, "undone", second.id)
    refused(world.run(older), "undone", AGAIN)  # replaced
    assert world.run(newer).success
    assert not read(world, "undone").equals(kept)

    roll_back(world, "undone", first.id)
    with monkeypatch.context() as patch:
        patch.setattr(gates, "check_not_replaced", lambda *_: None)
        assert world.run(newer).success
    assert not read(world, "undone").equals(kept)


@pytest.mark.parametrize(
    "checked_step",
    [pytest.param(True, id="as it is"), pytest.param(False, id="ordered by the clock alone", marks=pytest.mark.slow)],
)
def test_route_44_the_clock_is_set_back(world: World, monkeypatch: pytest.MonkeyPatch, checked_step: bool) -> None:
    """By the clock, an attestation that was replaced is the newer one."""
    stored, kept = world.root / "storage" / "clock", world.root / "kept"
    older, newer = gated(world, "clock", independent), gated(world, "clock", independent, seed=1)
    assert world.run(older).success
    shutil.copytree(stored, kept)
    with monkeypatch.context() as patch:
        patch.setattr(release.dt, "datetime", Behind)
        if not checked_step:
            made = release.new_id
            patch.setattr(release_disk, "new_id", lambda sha256, latest="": made(sha256))
        assert world.run(newer).success
    current = read(world, "clock")
    shutil.copytree(kept, stored, dirs_exist_ok=True)
    if checked_step:
        assert world.store.current(Place("clock")) == released(world, "clock")[-1]
        refused(world.run(older, "clock/published"), "clock", AGAIN)
        pd.testing.assert_frame_equal(read(world, "clock"), current)
        return
    monkeypatch.setattr(gates, "check_not_replaced", lambda *_: None)
    monkeypatch.setattr(Gate, "_is_current", lambda *_: True)
    assert world.run(older, "clock/published").success
    assert not read(world, "clock").equals(current)


@pytest.mark.parametrize(
    ("file", "now"),
    [("secret.key", b""), slow(("secret.key", b"another secret of this length")), slow(("secret.check", b""))],
)
def test_route_45_a_lost_or_changed_secret(world: World, file: str, now: bytes) -> None:
    """With another secret no failed row is known again, and the splits change."""
    defs, secret = gated(world, "secret"), world.root / "private" / file
    assert not world.run(defs).success  # copies: the verdict is remembered
    kept = secret.read_bytes()
    secret.unlink()
    if now:
        secret.write_bytes(now)
        secret.chmod(0o600)
    result = world.run(defs)
    said = reason(result, next(iter(failures(result))))
    assert "bring it back" in said and "secret" in said
    assert secret.exists() is bool(now)  # none is made anew
    nothing_published(world, "secret")
    secret.write_bytes(kept)
    secret.chmod(0o600)
    refused(world.run(defs, "secret/published"), "secret", "policy does not hold")


@pytest.mark.parametrize("what", ["release", *map(slow, ["table", "releases"])])
def test_route_46_a_symlinked_release_folder(world: World, what: str) -> None:
    """Who follows the link publishes, tidies up and reads somewhere else."""
    defs = gated(world, "linked", independent)
    assert world.run(defs).success
    (first,) = released(world, "linked")
    place = world.root / "releases" / "linked" / "_all"
    moved = {"release": first.folder, "table": place.parent, "releases": place / "releases"}[what]
    elsewhere = world.root / "elsewhere"
    moved.rename(elsewhere)
    moved.symlink_to(elsewhere)
    before = sorted(str(path) for path in elsewhere.rglob("*"))
    with pytest.raises(PublicationRefused, match=f"{moved.name} is a link"):
        read(world, "linked")
    result = world.run(gated(world, "linked", independent, seed=1))
    assert result.success is (what == "release")  # a new release is a new folder
    assert sorted(str(path) for path in elsewhere.rglob("*")) == before
    assert main(["releases", "--releases", str(world.root / "releases")]) == 0
    assert main(["releases", "linked", "--rollback", first.id, "--releases", str(world.root / "releases")]) == 2


def test_route_47_a_revoked_key(world: World) -> None:
    """The process that signed and verified with the key goes on."""
    defs = gated(world, "revoked", independent)
    assert world.run(defs).success
    gate, (first,) = gate_of(defs), released(world, "revoked")
    assert first.opened(Place("revoked"), gate.key.trusted)
    keys = world.root / "trusted_keys"
    (revoked,) = keys.iterdir()
    rotate_key(world.root / "private" / "signing.key", keys)
    assert first.opened(Place("revoked"), gate.key.trusted).keyid != gate.key.signer.public_key.keyid
    os.unlink(revoked)
    with pytest.raises(PublicationRefused, match="not trusted"):
        first.opened(Place("revoked"), gate.key.trusted)
    refused(world.run(defs, "revoked/published"), "revoked", "not trusted")
    assert world.run(defs).success  # everything anew, by the new key
