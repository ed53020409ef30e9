"""Bypasses of the memory of the gate, and around the folders and keys it relies on (see
test_bypasses).
"""

import datetime as dt
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pandas as pd
import pytest
from bypasses import REGIONS, World, accept, blocked, gated, nothing_published, reason, released
from standins import failures, independent, slow

from privacy_assets import read_published
from privacy_assets.cli.main import main
from privacy_assets.errors import NotTrusted, OutOfDate, PublicationBlocked
from privacy_assets.gate import release, release_disk
from privacy_assets.gate.envelope import ReleaseTarget
from privacy_assets.gate.gate import Gate
from privacy_assets.gate.keys import rotate_key
from privacy_assets.gate.log import LogState
from privacy_assets.gate.releases import default_trusted
from privacy_assets.gate.signed_files import SignedFiles

AGAIN = "is no longer current"
HOUR = dt.timedelta(hours=1)


class Behind(dt.datetime):
    """A clock that is five minutes late."""

    @classmethod
    def now(cls, tz: dt.tzinfo | None = None) -> dt.datetime:
        return super().now(tz) - dt.timedelta(minutes=5)


class Ahead(dt.datetime):
    """A clock that is one day ahead."""

    @classmethod
    def now(cls, tz: dt.tzinfo | None = None) -> dt.datetime:
        return super().now(tz) + dt.timedelta(days=1)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World.open(tmp_path) as opened:
        yield opened


def gate_of(defs: dg.Definitions) -> Gate:
    return defs.resources["releases"].gate()


def read(world: World, table: str, max_age: dt.timedelta | None = None) -> pd.DataFrame:
    return read_published(world.root / "releases", table, max_age=max_age)


def roll_back(world: World, table: str, name: str) -> None:
    assert (
        main(["releases", table, "--rollback", name, "--releases", str(world.root / "releases")])
        == 0
    )


@pytest.mark.weekly
def test_bypass_43_a_rollback_undone_by_the_same_bytes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new attestation of the bytes that were rolled back, or that a later release replaced."""
    older, newer = gated(world, "undone", independent), gated(world, "undone", independent, seed=1)
    assert world.run(older).success
    assert world.run(newer).success
    first, second = released(world, "undone")
    roll_back(world, "undone", first.id)
    kept = read(world, "undone")
    for assets in (("attestation", "published"), ("published",)):
        blocked(
            world.run(newer, *(f"undone/{asset}" for asset in assets)),
            "undone",
            f"{second.id}, and {AGAIN}",
        )
    blocked(world.run(newer), "undone", AGAIN)
    pd.testing.assert_frame_equal(read(world, "undone"), kept)
    assert world.run(older).success  # the current table may be published again
    roll_back(world, "undone", second.id)
    blocked(world.run(older), "undone", AGAIN)  # replaced
    assert world.run(newer).success
    assert not read(world, "undone").equals(kept)

    roll_back(world, "undone", first.id)
    with monkeypatch.context() as patch:
        patch.setattr(LogState, "history", lambda *_: [])
        patch.setattr(Gate, "check_not_behind", lambda *_: None)
        assert world.run(newer).success
    assert not read(world, "undone").equals(kept)


@pytest.mark.parametrize(
    "checked_step",
    [
        pytest.param(True, id="as it is", marks=pytest.mark.slow),
        pytest.param(False, id="ordered by the clock alone", marks=pytest.mark.slow),
    ],
)
def test_bypass_44_the_clock_is_set_back(
    world: World, monkeypatch: pytest.MonkeyPatch, checked_step: bool
) -> None:
    """By the clock, the replaced attestation is the newer one."""
    stored, kept = world.root / "storage" / "clock", world.root / "kept"
    older, newer = gated(world, "clock", independent), gated(world, "clock", independent, seed=1)
    assert world.run(older).success
    shutil.copytree(stored, kept)
    with monkeypatch.context() as patch:
        patch.setattr(release.dt, "datetime", Behind)
        if not checked_step:
            made = release.new_id
            patch.setattr(release_disk, "new_id", lambda sha256, latest="": made(sha256))
            patch.setattr(release_disk, "check_forward", lambda *_: None)
        assert world.run(newer).success
    current = read(world, "clock")
    shutil.copytree(kept, stored, dirs_exist_ok=True)
    if checked_step:
        assert (
            world.store.current(ReleaseTarget("clock"), default_trusted(world.store.root))
            == released(world, "clock")[-1]
        )
        blocked(world.run(older, "clock/published"), "clock", "is not the latest one")
        monkeypatch.setattr(SignedFiles, "check_latest", lambda *_: None)
        blocked(world.run(older, "clock/published"), "clock", AGAIN)
        pd.testing.assert_frame_equal(read(world, "clock"), current)
        return
    monkeypatch.setattr(LogState, "history", lambda *_: [])
    monkeypatch.setattr(Gate, "check_not_behind", lambda *_: None)
    monkeypatch.setattr(SignedFiles, "check_latest", lambda *_: None)
    assert world.run(older, "clock/published").success
    assert not read(world, "clock").equals(current)


@pytest.mark.slow
def test_bypass_55_withdrawn_rows_in_another_partition(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both partitions have the same people, so their tables are equal."""
    for region in ("north", "south"):
        shutil.copy(world.root / "people.parquet", world.root / f"people_{region}.parquet")
    by_path = {"source": world.root / "people_{partition}.parquet", "partitions_def": REGIONS}
    defs = gated(world, "parts", independent, **by_path)
    for region in ("north", "south"):
        assert world.run(defs, partition=region).success
    (north,), (south,) = (released(world, "parts", region) for region in ("north", "south"))
    assert north.table.read_bytes() == south.table.read_bytes()
    place = ["--partition", "north", "--releases", str(world.root / "releases")]
    assert (
        main(
            [
                "releases",
                "parts",
                "--withdraw",
                north.id,
                "--reason",
                "a person asked for it",
                *place,
            ]
        )
        == 0
    )
    told = capsys.readouterr()
    assert "parts, south" in told.out + told.err
    blocked(
        world.run(defs, partition="south"), "parts", "withdrawn, which holds for all partitions"
    )
    with monkeypatch.context() as patch:
        patch.setattr(LogState, "is_withdrawn", lambda *_: False)
        assert world.run(defs, partition="south").success


@pytest.mark.slow
def test_bypass_58_a_release_confirmed_while_the_clock_was_ahead(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its time, the pointer stays young until the other clocks have passed it."""
    defs = gated(world, "ahead", independent)
    assert world.run(defs).success
    with monkeypatch.context() as patch:
        patch.setattr(release.dt, "datetime", Ahead)
        assert world.run(defs, "ahead/published").success
    with pytest.raises(OutOfDate, match="more than 10 minutes in the future"):
        read(world, "ahead", max_age=HOUR)
    with monkeypatch.context() as patch:
        patch.setattr(release, "is_ahead", lambda _: False)
        assert len(read(world, "ahead", max_age=HOUR))
    assert world.run(defs, "ahead/published").success
    assert len(read(world, "ahead", max_age=HOUR))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "now"),
    [
        ("split.key", b""),
        slow(("split.key", b"another split key of this length")),
        slow(("split.check", b"")),
    ],
)
def test_bypass_45_a_lost_or_changed_secret(world: World, file: str, now: bytes) -> None:
    """With another split key failed rows are not recognized, and the splits change."""
    defs, secret = gated(world, "secret"), world.root / "private" / file
    assert not world.run(defs).success  # copies: the verdict is remembered
    kept = secret.read_bytes()
    secret.unlink()
    if now:
        secret.write_bytes(now)
        secret.chmod(0o600)
    result = world.run(defs)
    said = reason(result, next(iter(failures(result))))
    assert "restore it" in said and "split key" in said
    assert secret.exists() is bool(now)  # no new one is created
    nothing_published(world, "secret")
    secret.write_bytes(kept)
    secret.chmod(0o600)
    blocked(world.run(defs, "secret/published"), "secret", "policy does not hold")


@pytest.mark.parametrize("what", [*map(slow, ["release", "table", "releases"])])
def test_bypass_46_a_symlinked_release_folder(world: World, what: str) -> None:
    """A process that follows the link publishes, cleans up and reads in another place."""
    defs = gated(world, "linked", independent)
    assert world.run(defs).success
    (first,) = released(world, "linked")
    place = world.root / "releases" / "linked" / "_all"
    moved = {"release": first.folder, "table": place.parent, "releases": place / "releases"}[what]
    elsewhere = world.root / "elsewhere"
    moved.rename(elsewhere)
    moved.symlink_to(elsewhere)
    before = sorted(str(path) for path in elsewhere.rglob("*"))
    with pytest.raises(PublicationBlocked, match=f"{moved.name} is a link"):
        read(world, "linked")
    result = world.run(gated(world, "linked", independent, seed=1))
    assert result.success is (what == "release")  # a new release is a new folder
    assert sorted(str(path) for path in elsewhere.rglob("*")) == before
    assert main(["releases", "--releases", str(world.root / "releases")]) == 0
    assert (
        main(
            [
                "releases",
                "linked",
                "--rollback",
                first.id,
                "--releases",
                str(world.root / "releases"),
            ]
        )
        == 2
    )


@pytest.mark.slow
def test_bypass_47_a_revoked_key(world: World) -> None:
    """The process that signed and verified with the key continues."""
    defs = gated(world, "revoked", independent)
    assert world.run(defs).success
    gate, (first,) = gate_of(defs), released(world, "revoked")
    assert first.opened(ReleaseTarget("revoked"), gate.key.trusted)
    keys = world.root / "trusted_keys"
    (revoked,) = keys.glob("*.pem")
    rotate_key(world.root / "private" / "signing.key", keys)
    assert (
        first.opened(ReleaseTarget("revoked"), gate.key.trusted).keyid
        != gate.key.signer.public_key.keyid
    )
    os.unlink(revoked)
    with pytest.raises(NotTrusted):
        first.opened(ReleaseTarget("revoked"), gate.key.trusted)
    blocked(world.run(defs, "revoked/published"), "revoked", "not trusted")
    # the log was signed by that key
    assert "not signed by a trusted key" in reason(world.run(defs), "revoked__read")
    accept(world, "revoked", "--reason", "a stranger had the key")
    assert "differs from the accepted settings" in reason(
        world.run(defs), "revoked__split"
    )  # so were the settings
    accept(world, "revoked", "--reason", "a stranger had the key")
    assert world.run(defs).success  # all steps again, with the new key
