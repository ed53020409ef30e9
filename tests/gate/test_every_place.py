"""Properties of releases on disk and in object stores alike: publication, reading, replacement and
concurrency.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gate_standins import (
    FAILING,
    FRAME,
    PLACE,
    SETUP,
    Behind,
    Chain,
    blocked,
    chain,
    in_either_place,
    make_gate,
    overwrite,
    read,
    rows,
    same_rows,
    shown,
)
from publisher import again, left_over

from privacy_assets.errors import (
    ConfigError,
    Damaged,
    InputError,
    NotTrusted,
    OutOfDate,
    StoreUnavailable,
    Superseded,
    WrongTarget,
)
from privacy_assets.gate import release, release_disk, release_objects
from privacy_assets.gate.envelope import ReleaseTarget
from privacy_assets.gate.gate import Gate
from privacy_assets.gate.keeper import Keeper
from privacy_assets.gate.keys import SigningKey
from privacy_assets.gate.release import Pointer
from privacy_assets.gate.releases import POINTER, Release, read_published
from privacy_assets.gate.signed_files import SignedFiles
from privacy_assets.infra.objects import Location
from privacy_assets.infra.storage import storage_of


@pytest.fixture(params=["disk", pytest.param("objects", marks=pytest.mark.slow)])
def gate(request: pytest.FixtureRequest, tmp_path: Path) -> Gate:
    return in_either_place(request, tmp_path)


@pytest.fixture
def local(tmp_path: Path) -> Gate:
    """A gate on disk, for tests that do not depend on the location."""
    return make_gate(tmp_path)


@pytest.fixture
def older_verdicts_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the order of publications decides between verdicts: none is blocked because there is a
    later one.
    """
    monkeypatch.setattr(SignedFiles, "check_latest", lambda *_: None)


def put(path: Location, data: bytes) -> None:
    """Replace the bytes there, as the owner of the place can."""
    if isinstance(path, Path):
        overwrite(path, data)
    else:
        path.put(data)


def remove(found: Release) -> None:
    """Remove a release, as its owner can."""
    if isinstance(found.folder, Path):
        found.folder.chmod(0o755)
        shutil.rmtree(found.folder)
    else:
        found.folder.remove_below()


def at_once(parts: list[Chain]) -> list[Release]:
    """Publish all of them at the same time; return the outcomes.

    One that is overtaken is blocked for that reason only.
    """

    def publish(part: Chain) -> list[Release]:
        try:
            return [part.publish()]
        except (OutOfDate, Superseded):
            return []

    with ThreadPoolExecutor(len(parts)) as pool:
        return [one for found in pool.map(publish, parts) for one in found]


# Publication


def test_what_was_judged_is_published_and_read(gate: Gate) -> None:
    with pytest.raises(InputError, match="patients: there is no release"):
        read(gate)
    assert (gate.store.history(PLACE), [*gate.store.targets()]) == ([], [])
    part = chain(gate, frame=FRAME)
    found = part.publish()
    assert storage_of(found.table).read() == storage_of(part.snapshot.path).read()
    assert storage_of(found.attestation).read() == part.signed_file.data == shown(gate)
    assert found.opened(PLACE, gate.key.trusted) == part.attestation
    assert gate.store.current(PLACE, gate.key.trusted) == found
    for root in (gate.releases, str(gate.releases)):
        same_rows(read_published(root, "patients", trusted_keys=gate.key.trusted.paths[0]), FRAME)


def test_names_of_every_kind_stay_in_their_place(gate: Gate) -> None:
    places = [
        ReleaseTarget("a"),
        ReleaseTarget("a", "../b"),
        ReleaseTarget("a", "_all"),
        ReleaseTarget("..", ""),
        ReleaseTarget("é x%2E\n*[1]"),
    ]
    for number, target in enumerate(places):
        chain(gate, number, target=target).publish()
    assert set(gate.store.targets()) == set(places)
    for number, target in enumerate(places):
        assert read(gate, target)["number"].iloc[0] == number
    for table, partition in (("../releases/a", None), ("a/_all", None), ("a", "../_all")):
        with pytest.raises(InputError, match="there is no release"):
            read(gate, ReleaseTarget(table, partition))


def test_changed_bytes_are_refused_and_leave_nothing(gate: Gate) -> None:
    part = chain(gate)
    data = storage_of(part.snapshot.path).read()
    put(part.snapshot.path, b"other bytes")
    with blocked(Damaged, path=str(part.snapshot.path), record="snapshot"):
        part.publish()
    assert gate.store.history(PLACE) == left_over(gate) == []
    put(part.snapshot.path, data)
    # the record counts as an interrupted release
    assert part.publish() == gate.store.current(PLACE, gate.key.trusted)


def test_a_damaged_release_is_not_read_and_the_same_attestation_puts_it_right(gate: Gate) -> None:
    part = chain(gate)
    for data in (b"", b"damaged", storage_of(part.snapshot.path).read() + b"\0"):
        put(part.publish().table, data)
        with blocked(Damaged):
            read(gate)
    part.publish()
    assert len(read(gate)) == 3


POINTERS: list[bytes | str] = [
    b"\xff",
    b"",
    b"[]",
    b"{}",
    b'{"release":' * 100_000,
    # of an earlier version, which did not sign it
    b'{"release": "20240101T000000.000000Z-0123456789ab"}',
    "../../../others/_all/releases",
    "20240101T000000.000000Z-0123456789ab\n",
]


def test_a_pointer_that_names_no_release_is_blocked(gate: Gate) -> None:
    made, folder = chain(gate).publish(), PLACE.below(gate.releases)

    def point(
        number: int, data: bytes | str, key: SigningKey = gate.key, target: ReleaseTarget = PLACE
    ) -> None:
        """Write a pointer: bytes, or a signed one to the given id."""
        if isinstance(data, str):
            data = Pointer(data, 1, dt.datetime.now(dt.UTC)).signed(target, key)
        put(
            folder / POINTER if isinstance(folder, Path) else folder / "pointers" / f"{number:012}",
            data,
        )

    for number, data in enumerate(POINTERS, 2):
        point(number, data)
        with blocked((Damaged, NotTrusted, OutOfDate)):
            read(gate)
    number += 1
    point(number, made.id, target=ReleaseTarget("others"))
    with blocked(WrongTarget):
        read(gate)
    Keeper(gate).roll_back(PLACE, made.id)
    assert shown(gate)
    point(number + 2, "20240101T000000.000000Z-0123456789ab")
    with blocked(StoreUnavailable, retry=False):
        read(gate)


def test_a_pointer_by_a_stranger_is_blocked(gate: Gate, tmp_path: Path) -> None:
    made, folder = chain(gate).publish(), PLACE.below(gate.releases)
    data = Pointer(made.id, 1, dt.datetime.now(dt.UTC)).signed(
        PLACE, make_gate(tmp_path / "stranger").key
    )
    put(folder / POINTER if isinstance(folder, Path) else folder / "pointers" / f"{2:012}", data)
    with blocked(NotTrusted):
        read(gate)


def test_readers_block_an_older_pointer_and_one_that_was_not_confirmed(
    gate: Gate, tmp_path: Path
) -> None:
    """Publishing the same rows again makes no release, and renews the time of the pointer."""
    day, seen = dt.timedelta(days=1), tmp_path / "seen.json"

    def reading(**how: Any) -> int:
        trusted = gate.key.trusted.paths[0]
        return len(
            read_published(gate.releases, "patients", trusted_keys=trusted, seen=seen, **how)
        )

    part = chain(gate, 1)
    first = part.publish()
    assert reading(max_age=day) == 3
    folder = PLACE.below(gate.releases)
    old = gate.store.pointer(PLACE, gate.key.trusted)
    put(
        folder / POINTER if isinstance(folder, Path) else folder / "pointers" / f"{2:012}",
        replace(old, at=old.at - 2 * day).signed(PLACE, gate.key),
    )
    with blocked(OutOfDate, reader=True) as stale:
        reading(max_age=day)
    assert "last confirmed" in str(stale.value) and "more than 1 day, 0:00:00 ago" in str(
        stale.value
    )
    assert reading() == 3
    assert part.publish() == first and part.publish(signed_file=again(part)) == first
    assert gate.store.history(PLACE) == [first] and reading(max_age=day) == 3
    assert gate.store.pointer(PLACE, gate.key.trusted).number == 1
    chain(gate, 2).publish()
    assert reading() == 3 and list(json.loads(seen.read_bytes()).values()) == [2]
    put(
        folder / POINTER if isinstance(folder, Path) else folder / "pointers" / f"{9:012}",
        replace(old, at=dt.datetime.now(dt.UTC)).signed(PLACE, gate.key),
    )
    with blocked(OutOfDate, reader=True) as older:
        reading(max_age=day)
    assert "older copy" in str(older.value)
    seen.write_bytes(b"[]")
    with pytest.raises(ConfigError, match="seen.json: this is not a file of read_published"):
        reading()


def test_a_pointer_of_a_clock_that_was_ahead_is_not_young(gate: Gate) -> None:
    chain(gate).publish()
    pointer = gate.store.pointer(PLACE, gate.key.trusted)
    folder = PLACE.below(gate.releases)

    def reading(minutes: int, max_age: dt.timedelta | None) -> int:
        confirmed = replace(pointer, at=dt.datetime.now(dt.UTC) + dt.timedelta(minutes=minutes))
        file = folder / POINTER if isinstance(folder, Path) else folder / "pointers" / f"{2:012}"
        put(file, confirmed.signed(PLACE, gate.key))
        return len(
            read_published(
                gate.releases, "patients", trusted_keys=gate.key.trusted.paths[0], max_age=max_age
            )
        )

    day = dt.timedelta(days=1)
    assert reading(9, day) == 3
    assert reading(11, None) == 3
    with blocked(OutOfDate, reader=True) as ahead:
        reading(11, day)
    assert "which is more than 10 minutes in the future" in str(ahead.value)


def floats(value: Any) -> list[float]:
    if isinstance(value, dict):
        value = list(value.values())
    parts = [floats(one) for one in value] if isinstance(value, list) else []
    return [value] if isinstance(value, float) else [number for part in parts for number in part]


def test_what_is_published_has_no_measured_number(gate: Gate) -> None:
    """This includes a second release, and an attestation of rows that failed before."""
    parts = [chain(gate, 1)]
    parts[0].publish()
    parts.append(chain(gate, 2))
    parts[1].publish()
    parts += [chain(gate, 3, high=FAILING), chain(gate, 3)]
    root, files = gate.releases, dict[str, bytes]()
    if isinstance(root, Path):
        files = {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    else:
        files = {name: root.joinpath(*name.split("/")).read_bytes() for name in root.below()}
    attestations = [data for name, data in files.items() if name.endswith("attestation.json")]
    assert len(attestations) == 2 and [part.attestation.verdict for part in parts] == [
        "pass",
        "pass",
        "fail",
        "fail",
    ]
    for data in (*attestations, *(part.signed_file.data for part in parts)):
        body = json.loads(base64.b64decode(json.loads(data)["payload"]))["predicate"]
        assert floats({name: value for name, value in body.items() if name != "policy"}) == []
        assert floats(body["policy"]) == [0.1]
    others = [
        data for name, data in files.items() if not name.endswith(("attestation.json", ".parquet"))
    ]
    # ids contain a time
    assert others and not any(re.search(rb"(?<![\dT])\d+\.\d", data) for data in others)


def test_without_its_private_results_nothing_is_published(gate: Gate) -> None:
    part = chain(gate)
    result = PLACE.below(gate.private / "results") / f"{part.attestation.results['dcr']}.json"
    data = storage_of(result).read()
    for change in (lambda: put(result, data + b" "), result.unlink):
        change()
        with blocked(Damaged, path=str(result), record="result"):
            part.publish()
        assert gate.store.history(PLACE) == left_over(gate) == []
    result.put(data) if not isinstance(result, Path) else overwrite(result, data)
    assert part.publish()


# Replaced and rolled back releases


@pytest.mark.parametrize(
    "gate", ["disk", pytest.param("objects", marks=pytest.mark.slow)], indirect=True
)
def test_what_was_replaced_or_rolled_back_comes_back_by_rollback_alone(gate: Gate) -> None:
    """The envelope and the order of rows do not matter."""
    parts, made = [], []
    for number in range(3):
        parts.append(chain(gate, number))
        made += [parts[-1].publish()]
        assert parts[-1].publish() == made[-1]  # the same record again
    assert gate.store.history(PLACE) == made
    turned = chain(gate, frame=rows(0).iloc[::-1])
    for part, signed_file in (
        (parts[0], parts[0].signed_file),
        (parts[0], again(parts[0])),
        (turned, turned.signed_file),
    ):
        with blocked(Superseded, release=made[0].id):
            part.publish(signed_file=signed_file)
    assert gate.store.current(PLACE, gate.key.trusted) == made[2]
    for name in (made[1].id, made[0].id, made[0].id):  # repeating a rollback has no effect
        assert (
            Keeper(gate).roll_back(PLACE, name).id
            == gate.store.current(PLACE, gate.key.trusted).id
            == name
        )
    for part, one in zip(parts[1:], made[1:], strict=True):
        with blocked(Superseded, release=one.id):
            part.publish()
    assert parts[0].publish() == made[0]
    Keeper(gate).roll_back(PLACE, made[2].id)
    assert parts[2].publish() == made[2]
    assert gate.store.history(PLACE) == made
    Keeper(gate).roll_back(PLACE, made[1].id)
    remove(made[2])
    with blocked(Superseded, release=""):
        parts[2].publish()
    assert shown(gate) == parts[1].signed_file.data


def test_a_publication_that_died_is_finished_and_one_that_was_overtaken_is_not(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    def dies(part: Chain) -> None:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(release_disk, "_point", interrupted)
            patch.setattr(release_objects, "_move", interrupted)
            part.publish()

    chain(gate, 0).publish()
    part = chain(gate, 1)
    dies(part)
    (died,) = gate.store.history(PLACE)[1:]
    assert part.publish() == died  # the same record again
    lost = chain(gate, 2)
    dies(lost)
    current = chain(gate, 3).publish()
    with blocked(Superseded):
        lost.publish()
    assert gate.store.current(PLACE, gate.key.trusted) == current


def test_one_that_is_overtaken_between_its_record_and_its_release_is_blocked(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next publication saw the slow one's record, and finished before it."""
    slow, add = chain(gate, 1), type(gate.store).add
    late: list[Chain] = []

    def overtaken(self: Any, *rest: Any) -> Any:
        if not late:
            late.append(chain(gate, 2))
            late[0].publish()
        return add(self, *rest)

    monkeypatch.setattr(type(gate.store), "add", overtaken)
    with blocked((Superseded, StoreUnavailable)):
        slow.publish()
    assert shown(gate) == late[0].signed_file.data


def test_ids_are_in_the_order_of_publication_whatever_the_clock(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [chain(gate, 1).publish()]
    monkeypatch.setattr(release.dt, "datetime", Behind)
    made += [chain(gate, number).publish() for number in (2, 3)]
    assert gate.store.history(PLACE) == made == sorted(made, key=lambda one: one.id)
    assert gate.store.current(PLACE, gate.key.trusted) == made[2]


# Concurrency


def test_one_attestation_makes_one_release(gate: Gate) -> None:
    part = chain(gate)
    (found,) = set(at_once([part] * 3))
    assert gate.store.history(PLACE) == [found]
    assert shown(gate) == part.signed_file.data


@pytest.mark.usefixtures("older_verdicts_count")
def test_attestations_of_one_table_end_in_one_order(gate: Gate) -> None:
    part = chain(gate)
    assert at_once([replace(part, signed_file=again(part)) for _ in range(3)])
    assert gate.store.current(PLACE, gate.key.trusted) == gate.store.history(PLACE)[-1]
    assert shown(gate)


# Partitions

TOGETHER = {**SETUP, "shared_subjects": True}
MONDAY, TUESDAY = ReleaseTarget("patients", "monday"), ReleaseTarget("patients", "tuesday")


def test_failures_are_those_of_one_partition_or_of_all(local: Gate) -> None:
    assert chain(local, 3, target=MONDAY, high=FAILING).attestation.verdict == "fail"
    assert chain(local, 3, target=TUESDAY).attestation.verdict == "pass"
    assert chain(local, 3, target=TUESDAY, setup=TOGETHER).attestation.verdict == "fail"


def test_partitions_that_are_published_at_once_are_all_published(local: Gate) -> None:
    days = [ReleaseTarget("patients", f"day {number}") for number in range(6)]
    parts = [chain(local, number, target=day) for number, day in enumerate(days)]
    assert len(at_once(parts)) == 6
    assert sum(len(local.store.history(day)) for day in days) == 6
