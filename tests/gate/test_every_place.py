"""What holds wherever releases lie, on disk or in an object store: what is published, replaced, counted, remembered."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gate_standins import (
    FAILING,
    FRAME,
    INPUTS,
    PLACE,
    SETUP,
    Behind,
    Chain,
    chain,
    in_bucket,
    make_gate,
    overwrite,
    read,
    result,
    rows,
    same_rows,
    shown,
)
from publisher import again, left_over

from privacy_assets.errors import InputError, PublicationRefused
from privacy_assets.gate import release, release_disk, release_objects
from privacy_assets.gate.gate import Gate
from privacy_assets.gate.releases import POINTER, Release, read_published
from privacy_assets.gate.statements import Place, seal
from privacy_assets.storage.files import names, read_regular
from privacy_assets.storage.objects import Location
from tests.stores import new_bucket


@pytest.fixture(params=["disk", "objects"])
def gate(request: pytest.FixtureRequest, tmp_path: Path) -> Gate:
    made = make_gate(tmp_path)
    if request.param == "disk":
        return made
    request.getfixturevalue("store")
    return in_bucket(made, new_bucket())


@pytest.fixture
def local(tmp_path: Path) -> Gate:
    """For what does not depend on where it lies."""
    return make_gate(tmp_path)


def put(path: Location, data: bytes) -> None:
    """Put other bytes there, as whoever owns the place can."""
    if isinstance(path, Path):
        overwrite(path, data)
    else:
        path.put(data)


def remove(found: Release) -> None:
    """A release goes, as its owner can remove it."""
    if isinstance(found.folder, Path):
        found.folder.chmod(0o755)
        shutil.rmtree(found.folder)
    else:
        found.folder.remove_below()


def at_once(parts: list[Chain]) -> list[Release]:
    """What came of publishing all of them at the same time; who was overtaken is refused for that reason alone."""

    def publish(part: Chain) -> list[Release]:
        try:
            return [part.publish()]
        except PublicationRefused as error:
            assert "another table was released since" in str(error) or "is not current any more" in str(error)
            return []

    with ThreadPoolExecutor(len(parts)) as pool:
        return [one for found in pool.map(publish, parts) for one in found]


# What is published


def test_what_was_judged_is_published_and_read(gate: Gate) -> None:
    with pytest.raises(InputError, match="patients: nothing was published"):
        read(gate)
    assert (gate.store.history(PLACE), [*gate.store.places()]) == ([], [])
    part = chain(gate, frame=FRAME)
    found = part.publish()
    assert read_regular(found.table) == read_regular(part.snapshot.path)
    assert read_regular(found.attestation) == part.sealed.data == shown(gate)
    assert found.opened(PLACE, gate.key.trusted) == part.stated
    assert gate.store.current(PLACE) == found
    for root in (gate.releases, str(gate.releases)):
        same_rows(read_published(root, "patients", trusted_keys=gate.key.trusted.places[0]), FRAME)


def test_names_of_every_kind_stay_in_their_place(gate: Gate) -> None:
    places = [Place("a"), Place("a", "../b"), Place("a", "_all"), Place("..", ""), Place("é x%2E\n*[1]")]
    for number, place in enumerate(places):
        chain(gate, number, place=place).publish()
    assert set(gate.store.places()) == set(places)
    for number, place in enumerate(places):
        assert read(gate, place)["number"].iloc[0] == number
    for table, partition in (("../releases/a", None), ("a/_all", None), ("a", "../_all")):
        with pytest.raises(InputError, match="nothing was published"):
            read(gate, Place(table, partition))


def test_changed_bytes_are_refused_and_leave_nothing(gate: Gate) -> None:
    part = chain(gate)
    put(part.snapshot.path, b"other bytes")
    with pytest.raises(PublicationRefused, match="changed after it was judged"):
        part.publish()
    assert gate.store.history(PLACE) == left_over(gate) == []
    assert gate.attempts.released(PLACE) == set()


def test_a_damaged_release_is_not_read_and_the_same_attestation_puts_it_right(gate: Gate) -> None:
    part = chain(gate)
    for data in (b"", b"damaged", read_regular(part.snapshot.path) + b"\0"):
        put(part.publish().table, data)
        with pytest.raises(PublicationRefused, match="changed after it was written"):
            read(gate)
    part.publish()
    assert len(read(gate)) == 3


POINTERS = [
    b"\xff",
    b"",
    b"[]",
    b'"20240101T000000.000000Z-0123456789ab"',
    b"{}",
    b'{"release":' * 100_000,
    b'{"release": "../../../others/_all/releases"}',
    b'{"release": null}',
    b'{"release": "20240101T000000.000000Z-0123456789ab\\n"}',
]


def test_a_pointer_that_names_no_release_is_refused_with_the_way_out(gate: Gate) -> None:
    made, folder = chain(gate).publish(), PLACE.below(gate.releases)

    def point(number: int, data: bytes) -> None:
        put(folder / POINTER if isinstance(folder, Path) else folder / "pointers" / f"{number:012}", data)

    for number, data in enumerate(POINTERS, 2):
        point(number, data)
        with pytest.raises(PublicationRefused, match="pointer in .*roll back"):
            read(gate)
    gate.roll_back(PLACE, made.id)
    assert shown(gate)
    point(len(POINTERS) + 3, b'{"release": "20240101T000000.000000Z-0123456789ab"}')
    with pytest.raises(PublicationRefused, match="cannot be read"):
        read(gate)


def test_a_release_of_a_version_that_did_not_count_is_still_read(local: Gate) -> None:
    part = chain(local, 1)
    statement = part.stated.statement()
    body = {name: value for name, value in statement.body.items() if name != "attempt"}
    older = seal(replace(statement, body={**body, "inputs": dict(INPUTS)}), local.key)
    assert local.attestation(older, PLACE).attempt == 1
    local.store.add(PLACE, part.snapshot.path, part.snapshot.sha256, older.data, lambda: None)
    assert shown(local) == older.data


# What was replaced or rolled back


@pytest.mark.parametrize("gate", ["disk", pytest.param("objects", marks=pytest.mark.slow)], indirect=True)
def test_what_was_replaced_or_rolled_back_comes_back_by_rollback_alone(gate: Gate) -> None:
    """Whatever envelope is around it, and in whatever order its rows are."""
    parts, made = [], []
    for number in range(3):
        parts.append(chain(gate, number))
        made += [parts[-1].publish()]
        assert parts[-1].publish() == made[-1]  # the same once more
    assert gate.store.history(PLACE) == made
    turned = chain(gate, frame=rows(0).iloc[::-1])
    for part, sealed in ((parts[0], parts[0].sealed), (parts[0], again(parts[0])), (turned, turned.sealed)):
        with pytest.raises(PublicationRefused, match=f"as {made[0].id}, and is not current any more"):
            part.publish(sealed=sealed)
    assert gate.store.current(PLACE) == made[2]
    for name in (made[1].id, made[0].id, made[0].id):  # going back twice is going back
        assert gate.roll_back(PLACE, name).id == gate.store.current(PLACE).id == name
    for part, one in zip(parts[1:], made[1:], strict=True):
        with pytest.raises(PublicationRefused, match=f"--rollback {one.id}"):
            part.publish()
    assert parts[0].publish() == made[0]
    gate.roll_back(PLACE, made[2].id)
    assert parts[2].publish() == made[2]
    assert gate.store.history(PLACE) == made
    gate.roll_back(PLACE, made[1].id)
    remove(made[2])
    with pytest.raises(PublicationRefused, match="a release that is gone, and is not current any more"):
        parts[2].publish()
    assert shown(gate) == parts[1].sealed.data


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
    assert part.publish() == died  # the same once more
    lost = chain(gate, 2)
    dies(lost)
    current = chain(gate, 3).publish()
    with pytest.raises(PublicationRefused, match="is not current any more"):
        lost.publish()
    assert gate.store.current(PLACE) == current


def test_one_that_is_overtaken_between_its_record_and_its_release_is_refused(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was slow: the next one knew of it, and was quicker."""
    slow, add = chain(gate, 1), type(gate.store).add
    late: list[Chain] = []

    def overtaken(self: Any, *rest: Any) -> Any:
        if not late:
            late.append(chain(gate, 2))
            late[0].publish()
        return add(self, *rest)

    monkeypatch.setattr(type(gate.store), "add", overtaken)
    with pytest.raises(PublicationRefused, match="came in between"):
        slow.publish()
    assert shown(gate) == late[0].sealed.data


def test_ids_are_in_the_order_of_publication_whatever_the_clock(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [chain(gate, 1).publish()]
    monkeypatch.setattr(release.dt, "datetime", Behind)
    made += [chain(gate, number).publish() for number in (2, 3)]
    assert gate.store.history(PLACE) == made == sorted(made, key=lambda one: one.id)
    assert gate.store.current(PLACE) == made[2]


# What is counted and remembered


def test_attempts_are_counted_by_training_rows_and_place(local: Gate) -> None:
    assert [chain(local, number).stated.attempt for number in (1, 2, 1)] == [1, 2, 1]
    assert chain(local, frame=rows(2).iloc[::-1]).stated.attempt == 2  # the order of rows makes no new table
    seen, _ = local.take_snapshot(rows(3), PLACE, INPUTS["train"])
    local.sign_result(result(), seen, [])  # a score that was seen counts though it was never attested
    assert chain(local, 4).stated.attempt == 4
    taken, _ = local.take_snapshot(rows(5), PLACE, "f" * 64)
    assert local.attempts.attempt(taken) == 1
    assert local.attempts.attempt(replace(taken, place=Place("patients", "2024-01-01"))) == 1
    assert local.attempts.attempt(replace(taken, train=INPUTS["train"])) == 5


def numbers_of(gate: Gate, part: Chain) -> list[int]:
    """Which tables the releases are that are judged with this one."""
    return sorted(table["number"].iloc[0] for table in gate.released(part.snapshot).tables())


def test_all_that_was_ever_released_counts_and_must_be_there(gate: Gate) -> None:
    first = chain(gate, 1)
    assert gate.released(first.snapshot).files == ()
    kept = first.publish()
    assert gate.released(first.snapshot).files == ()
    removed = chain(gate, 2).publish()
    gate.roll_back(PLACE, kept.id)
    remove(removed)
    later = chain(gate, 3)
    assert numbers_of(gate, later) == [1, 2]
    assert gate.released(replace(later.snapshot, place=Place("others"))).files == ()
    records = PLACE.below(gate.private / "attempts") / "released"
    for name in names(records):
        (records / name).unlink()
    assert numbers_of(gate, later) == [1]  # an earlier version wrote no records
    first.snapshot.path.unlink()
    assert numbers_of(gate, later) == [1]
    remove(kept)
    chain(gate, 4).publish()
    put(PLACE.below(gate.private / "snapshots") / f"{gate.attempts.history(PLACE)[0].sha256}.parquet", b"other bytes")
    put(gate.store.current(PLACE).table, b"other bytes")
    with pytest.raises(PublicationRefused, match="earlier release cannot be read"):
        numbers_of(gate, later)


def test_a_damaged_memory_refuses_and_works_when_it_is_brought_back(gate: Gate) -> None:
    chain(gate, 1).publish()
    failed = chain(gate, 2, high=FAILING).snapshot
    attempts, failures = PLACE.below(gate.private / "attempts"), PLACE.below(gate.private / "failures")
    damaged = {
        attempts.joinpath("attempts", INPUTS["train"]): "number of this attempt is not known",
        attempts / "released": "memory of releases is damaged",
        failures / failed.content: "a record of an earlier failed verdict cannot be read",
    }
    for folder, told in damaged.items():
        name = names(folder)[0]
        kept = read_regular(folder / name)
        for data in (b"damaged", b"", b"\xff"):
            put(folder / name, data)
            with pytest.raises(PublicationRefused, match=told):
                chain(gate, 2)
        put(folder / name, kept)
    stray = attempts / "released" / "²²²²²²²²"  # digits, but no number
    put(stray, b"{}")
    with pytest.raises(PublicationRefused, match="memory of releases is damaged"):
        chain(gate, 3)
    stray.unlink()
    chain(gate, 3).publish()


# At once


def test_every_attempt_has_a_number_of_its_own(gate: Gate) -> None:
    taken = [gate.take_snapshot(rows(number), PLACE, INPUTS["train"])[0] for number in range(6)]
    with ThreadPoolExecutor(6) as pool:
        numbers = list(pool.map(gate.attempts.attempt, taken * 2))
    assert sorted(numbers[:6]) == [*range(1, 7)]
    assert numbers[6:] == numbers[:6]


def test_of_tables_that_do_not_know_of_each_other_one_is_released(gate: Gate) -> None:
    (done,) = at_once([chain(gate, number) for number in range(4)])
    assert gate.store.history(PLACE) == [done] == [gate.store.current(PLACE)]
    assert shown(gate)


def test_one_attestation_makes_one_release(gate: Gate) -> None:
    part = chain(gate)
    (found,) = set(at_once([part] * 3))
    assert gate.store.history(PLACE) == [found]
    assert shown(gate) == part.sealed.data


def test_attestations_of_one_table_end_in_one_order(gate: Gate) -> None:
    part = chain(gate)
    assert at_once([replace(part, sealed=again(part)) for _ in range(3)])
    assert gate.store.current(PLACE) == gate.store.history(PLACE)[-1]
    assert shown(gate)


# Partitions that are judged together

TOGETHER = {**SETUP, "pool_partitions": True}
MONDAY, TUESDAY = Place("patients", "monday"), Place("patients", "tuesday")


def count_released(gate: Gate, part: Chain, pool_partitions: bool) -> int:
    return len(gate.released(part.snapshot, pool_partitions).tables())


def test_of_partitions_judged_together_each_knows_of_all(local: Gate) -> None:
    monday, tuesday = (chain(local, number, place=day, setup=TOGETHER) for number, day in ((1, MONDAY), (2, TUESDAY)))
    assert (monday.stated.attempt, tuesday.stated.attempt) == (1, 2)
    monday.publish()
    assert [count_released(local, tuesday, pool) for pool in (False, True)] == [0, 1]
    other = replace(tuesday.snapshot, place=Place("others", "monday"))
    assert local.released(other, pool_partitions=True).files == ()
    with pytest.raises(PublicationRefused, match="another table was released since"):
        tuesday.publish()
    tuesday = chain(local, 2, place=TUESDAY, setup=TOGETHER)
    assert tuesday.publish() == tuesday.publish()
    assert count_released(local, chain(local, 3, place=MONDAY, setup=TOGETHER), True) == 2


def test_attempts_and_failures_are_those_of_one_partition_or_of_all(local: Gate) -> None:
    days = [local.take_snapshot(rows(number), day, INPUTS["train"])[0] for number, day in ((1, MONDAY), (2, TUESDAY))]
    assert [local.attempts.attempt(one) for one in days] == [1, 1]
    assert [local.attempts.attempt(one, pool_partitions=True) for one in days] == [1, 2]
    assert chain(local, 3, place=MONDAY, high=FAILING).stated.verdict == "fail"
    assert chain(local, 3, place=TUESDAY).stated.verdict == "pass"
    assert chain(local, 3, place=TUESDAY, setup=TOGETHER).stated.verdict == "fail"


def test_partitions_that_are_published_at_once_are_published_in_turn(local: Gate) -> None:
    days = [Place("patients", f"day {number}") for number in range(6)]
    parts = [chain(local, number, place=day, setup=TOGETHER) for number, day in enumerate(days)]
    assert len(at_once(parts)) == 1
    assert sum(len(local.store.history(day)) for day in days) == 1


def test_a_publisher_that_dies_between_two_records_blocks_nobody(local: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monday = chain(local, 1, place=MONDAY, setup=TOGETHER)
    recorded: Callable[..., Any] = type(local.attempts)._record

    def dying(self: Any, place: Place, *rest: Any) -> Any:
        if place == MONDAY:
            raise KeyboardInterrupt
        return recorded(self, place, *rest)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(type(local.attempts), "_record", dying)
        monday.publish()
    tuesday = chain(local, 2, place=TUESDAY, setup=TOGETHER)
    assert count_released(local, tuesday, True) == 1  # it counts as released, and its rows are found
    tuesday.publish()
