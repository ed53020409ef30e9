"""Files from other users in a release folder: names that no publisher wrote, and files that are too
large.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import io
import json
import os
import resource
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gate_standins import (
    PLACE,
    Chain,
    blocked,
    chain,
    in_either_place,
    make_gate,
    overwrite,
    pointing,
    read,
    shown,
)

from privacy_assets.errors import Damaged, NotTrusted, OutOfDate, PublicationBlocked
from privacy_assets.gate.gate import Gate
from privacy_assets.gate.keeper import Keeper
from privacy_assets.gate.release import new_id
from privacy_assets.gate.releases import POINTER
from privacy_assets.gate.snapshot import open_parquet
from privacy_assets.gate.verification import verify_file
from privacy_assets.infra.objects import Location

END = "0123456789ab"


@pytest.fixture(params=["disk", pytest.param("objects", marks=pytest.mark.slow)])
def gate(request: pytest.FixtureRequest, tmp_path: Path) -> Gate:
    return in_either_place(request, tmp_path)


def ahead(**by: int) -> str:
    """An id with a time this far in the future."""
    return f"{dt.datetime.now(dt.UTC) + dt.timedelta(**by):%Y%m%dT%H%M%S.%fZ}-{END}"


def put(path: Location, data: bytes) -> None:
    if isinstance(path, Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    else:
        path.put(data)


def remove(path: Location) -> None:
    if isinstance(path, Path):
        for file in path.iterdir():
            file.unlink()
        path.rmdir()
    else:
        path.remove_below()


def future() -> list[str]:
    return [f"99991231T235959.999999Z-{END}", ahead(minutes=11)]


@pytest.mark.parametrize("copied", [False, True])
def test_an_id_in_the_future_is_blocked_by_name(gate: Gate, copied: bool) -> None:
    """This includes one with the content of a release."""
    first = chain(gate, 1)
    made, later = first.publish(), chain(gate, 2)
    for name in future():
        called = f"{name[:24]}{made.id[24:]}" if copied else name
        folder = PLACE.below(gate.releases).joinpath("releases", called)
        put(folder / "attestation.json", first.signed_file.data if copied else b"{}")
        put(folder / "table.parquet", b"PAR1")
        with blocked(Damaged, path=str(folder), remove=True):
            later.publish()
        assert shown_first(gate, first)
        Keeper(gate).roll_back(PLACE, made.id)
        remove(folder)
    later = chain(gate, 3)
    later.publish()
    assert shown(gate) == later.signed_file.data


def shown_first(gate: Gate, part: Chain) -> bool:
    return gate.store.current(PLACE, gate.key.trusted).envelope == part.signed_file.data


def test_a_made_up_id_is_blocked_by_name(gate: Gate) -> None:
    """One with an invalid time; also on the first publication."""
    name = f"20241399T000000.000000Z-{END}"
    for number in (1, 2):
        part = chain(gate, number)
        folder = PLACE.below(gate.releases).joinpath("releases", name)
        for data in (b"PAR1", b""):
            put(folder / "table.parquet", data)
            put(folder / "attestation.json", b"{}")
            with blocked(Damaged, path=str(folder), remove=True):
                part.publish()
        remove(folder)
        part.publish()
    assert read(gate)["number"].iloc[0] == 2


def pointers() -> list[bytes]:
    return [
        b"",
        b'{"release": 1}',
        b"\xff",
        *(json.dumps({"release": name}).encode() for name in future()),
    ]


def test_a_wrong_pointer_is_blocked_by_name_also_by_the_publisher(gate: Gate) -> None:
    first = chain(gate, 1)
    made, later, folder = first.publish(), chain(gate, 2), PLACE.below(gate.releases)
    for number, data in enumerate(pointers()):
        path = (
            folder / POINTER
            if isinstance(folder, Path)
            else folder / "pointers" / f"{2 * number + 2:012}"
        )
        put(path, data)
        with blocked((Damaged, NotTrusted, OutOfDate)):
            read(gate)
        with blocked(Damaged, path=str(path), remove=True):
            later.publish()
        Keeper(gate).roll_back(PLACE, made.id)
        assert shown_first(gate, first)
    later.publish()


def test_a_clock_that_is_a_little_ahead_is_no_reason(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    from privacy_assets.gate import release

    now = release._now
    monkeypatch.setattr(release, "_now", lambda: now() + dt.timedelta(minutes=9))
    first = chain(gate, 1).publish()
    monkeypatch.undo()
    assert first.id < chain(gate, 2).publish().id
    assert new_id("0" * 64, first.id) > first.id


# Sizes


def sparse(path: Path, size: int = 1 << 36) -> None:
    overwrite(path, b"")
    os.truncate(path, size)


@pytest.mark.slow
def test_large_files_do_not_fill_the_memory_of_a_reader(tmp_path: Path) -> None:
    gate = make_gate(tmp_path)
    release = chain(gate).publish()
    received = tmp_path / "received.parquet"
    received.write_bytes(release.table.read_bytes())
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (64 << 30, before[1]))
    try:
        for path, size in (
            (release.folder.parents[1] / POINTER, 1 << 40),
            (release.attestation, 1 << 40),
            (release.table, 1 << 28),
        ):
            kept = path.read_bytes()
            sparse(path, size)
            with pytest.raises(PublicationBlocked):
                read(gate)
            if path == release.attestation:
                assert not verify_file(received, gate.key.trusted, gate.releases, path).passed
            overwrite(path, kept)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert len(read(gate)) == 3


def parquet(frame: pd.DataFrame) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pandas(frame), buffer, compression="zstd", use_dictionary=False)
    return buffer.getvalue()


def test_a_table_that_declares_too_much_is_not_decompressed(tmp_path: Path) -> None:
    bomb = parquet(pd.DataFrame({"number": np.zeros(8_000_000)}))
    assert len(bomb) < 64_000
    with blocked(Damaged, path="table.parquet"):
        open_parquet(bomb, "table.parquet", 8_000_000)
    small = parquet(pd.DataFrame({"number": [1, 2]}))
    with blocked(Damaged):
        open_parquet(small, "table.parquet", 3)
    with blocked(Damaged, path="table.parquet"):
        open_parquet(b"PAR1", "table.parquet")
    assert open_parquet(small, "table.parquet", 2).read().num_rows == 2


def test_a_signed_table_with_another_number_of_rows_is_not_read(tmp_path: Path) -> None:
    gate = make_gate(tmp_path)
    part = chain(gate)
    wrong = part.restated(n_rows=part.attestation.n_rows + 1)
    gate.store.add(
        PLACE, part.snapshot.path, part.snapshot.sha256, wrong.data, pointing(gate), lambda: None
    )
    with blocked(Damaged):
        read(gate)
    assert hashlib.sha256(part.snapshot.path.read_bytes()).hexdigest() == part.snapshot.sha256
