"""Releases in an object store: the same promises as on disk, without a lock or a rename."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import publisher
import pytest
from gate_standins import (
    FRAME,
    INPUTS,
    METRICS,
    PLACE,
    POLICY,
    SETUP,
    Behind,
    Chain,
    chain,
    make_gate,
    read,
    result,
    rows,
    same_rows,
)

from privacy_assets.errors import ConfigError, InputError, PublicationRefused
from privacy_assets.gate import release_objects
from privacy_assets.gate.gate import Gate
from privacy_assets.gate.prepared import MARKER, PROBE, _creates_over, check_prepared, prepare
from privacy_assets.gate.releases import hash_file, read_published
from privacy_assets.gate.statements import Place, seal
from privacy_assets.storage.objects import ObjectPath, location
from tests.stores import new_bucket, reaching, s3

s3fs = pytest.importorskip("s3fs", reason="the extra 's3' is not installed")


@pytest.fixture(scope="module", autouse=True)
def _store() -> Iterator[None]:
    with s3() as environment, reaching(environment):
        yield


def remote(root: Path, bucket: str) -> Gate:
    """A gate whose releases and memory lie in a bucket, its keys in a folder."""
    local = make_gate(root)
    prepare({role: location(f"{bucket}/{role}") for role in ("releases", "private")})
    return replace(local, releases=location(f"{bucket}/releases"), private=location(f"{bucket}/private"))


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return remote(tmp_path, new_bucket())


def again(part: Chain, number: int) -> Any:
    """Another attestation of the same table, signed by the same key."""
    return part.restated(made_at=f"time {number}")


def check_whole(gate: Gate, place: Place = PLACE) -> None:
    """Every release that is listed holds the bytes that its signed attestation names."""
    for release in gate.store.history(place):
        assert hash_file(release.table) == release.opened(place, gate.key.trusted).sha256


# What is published


def test_what_was_judged_is_published_and_read(gate: Gate) -> None:
    release = chain(gate).publish()
    assert str(release.folder).startswith("s3://bucket-")
    same_rows(read(gate), FRAME)
    assert gate.store.current(PLACE) == release
    assert [*gate.store.places()] == [PLACE]
    check_whole(gate)
    keys = gate.key.trusted.places[0]
    same_rows(read_published(str(gate.releases), "patients", trusted_keys=keys), FRAME)


def test_names_of_every_kind_stay_in_their_place(gate: Gate) -> None:
    places = [Place("a", "2024-01-01"), Place("a", "../b"), Place("a", "x/y z%2E"), Place("a b"), Place("a")]
    for number, place in enumerate(places):
        chain(gate, frame=rows(number), place=place).publish()
    assert set(gate.store.places()) == set(places)
    for number, place in enumerate(places):
        assert read(gate, place)["visits"].iloc[0] == number


def test_the_same_attestation_gives_one_release(gate: Gate) -> None:
    part = chain(gate)
    first = part.publish()
    assert part.publish() == first
    later = chain(gate, frame=rows(1)).publish()
    assert gate.store.history(PLACE) == [first, later]
    with pytest.raises(PublicationRefused, match=f"published before, as {first.id}"):
        part.publish()
    assert gate.store.current(PLACE) == later


def test_rollback_and_back_again(gate: Gate) -> None:
    part = chain(gate)
    first, later = part.publish(), chain(gate, frame=rows(1)).publish()
    assert gate.roll_back(PLACE, first.id) == first
    same_rows(read(gate), FRAME)
    assert part.publish() == first
    gate.roll_back(PLACE, later.id)
    assert read(gate)["visits"].iloc[0] == 1


def test_an_id_comes_after_the_last_whatever_the_clock(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    from privacy_assets.gate import release

    first = chain(gate).publish()
    monkeypatch.setattr(release.dt, "datetime", Behind)
    later = chain(gate, frame=rows(1)).publish()
    assert later.id > first.id
    assert gate.store.current(PLACE) == later


def test_changed_bytes_are_refused_and_leave_nothing(gate: Gate) -> None:
    part = chain(gate)
    part.snapshot.path.put(b"other bytes")
    with pytest.raises(PublicationRefused, match="changed after it was judged"):
        part.publish()
    assert gate.store.history(PLACE) == []
    assert not part.snapshot.place.below(gate.releases).joinpath("releases").below()
    assert gate.attempts.released(PLACE) == set()


def test_a_release_that_was_damaged_is_put_right_by_its_own_attestation(gate: Gate) -> None:
    part = chain(gate)
    release = part.publish()
    release.table.put(b"other bytes")
    with pytest.raises(PublicationRefused, match="changed"):
        read(gate)
    assert part.publish() == release
    same_rows(read(gate), FRAME)


def test_a_changed_attestation_is_neither_read_nor_replaced(gate: Gate) -> None:
    part = chain(gate)
    release = part.publish()
    release.attestation.put(again(part, 1).data)
    with pytest.raises(PublicationRefused, match="another attestation"):
        part.publish()
    release.attestation.put(b"{}")
    with pytest.raises(PublicationRefused):
        read(gate)


def test_a_pointer_that_names_no_release_is_refused_with_the_way_out(gate: Gate) -> None:
    first, pointers = chain(gate).publish(), PLACE.below(gate.releases) / "pointers"
    for data in (b"", b"[]", b'{"release": "../../x"}', b"\xff", b"[" * 100_000):
        (pointers / f"{int(max(pointers.names())) + 1:012}").put(data)
        with pytest.raises(PublicationRefused, match="roll back"):
            read(gate)
        gate.roll_back(PLACE, first.id)
        same_rows(read(gate), FRAME)


def test_a_damaged_claim_is_refused_and_one_that_is_gone_is_found_again(gate: Gate) -> None:
    part = chain(gate)
    first = part.publish()
    newer = chain(gate, frame=rows(1))
    later = newer.publish()
    claims = PLACE.below(gate.releases) / "claims"
    for name in claims.names():
        (claims / name).put(b"20240101T000000.000000Z-000000000000")
    with pytest.raises(PublicationRefused, match="damaged"):
        newer.publish()
    for name in claims.names():
        (claims / name).unlink()
    assert newer.publish() == later
    with pytest.raises(PublicationRefused, match=f"published before, as {first.id}"):
        part.publish()  # it does not come back as a new release
    assert gate.store.current(PLACE) == later


def test_a_release_that_was_overtaken_before_it_was_whole_says_so(gate: Gate) -> None:
    part = chain(gate)
    claimed = release_objects._claimed(PLACE.below(gate.releases), part.snapshot.sha256, part.sealed.data)
    gate.store.add(PLACE, part.snapshot.path, part.snapshot.sha256, again(part, 1).data, lambda: None)
    with pytest.raises(PublicationRefused, match="a later release is out already"):
        part.publish()
    assert claimed not in [release.id for release in gate.store.history(PLACE)]


# Memory


def test_failures_attempts_and_releases_are_remembered(gate: Gate) -> None:
    assert chain(gate, frame=rows(1), high=0.2).stated.verdict == "fail"
    assert chain(gate, frame=rows(1)).stated.remembered
    with pytest.raises(PublicationRefused, match="failed before"):
        chain(gate, frame=rows(1)).publish()
    first = chain(gate, frame=rows(2))
    assert first.stated.attempt == 2
    second = chain(gate, frame=rows(3))
    first.publish()
    with pytest.raises(PublicationRefused, match="another table was released since"):
        second.publish()
    (table,) = gate.released(second.snapshot).tables()
    same_rows(table.astype(FRAME.dtypes), rows(2))


@pytest.mark.parametrize("kind", ["attempts", "failures"])
def test_a_damaged_memory_refuses(gate: Gate, kind: str) -> None:
    part = chain(gate, high=0.2 if kind == "failures" else 0.05)
    if kind == "attempts":
        part.publish()
    for name in (gate.private / kind).below():
        (gate.private / kind).joinpath(*name.split("/")).put(b"damaged")
    with pytest.raises(PublicationRefused, match="is not known|cannot be read"):
        chain(gate)


def test_every_attempt_has_a_number_of_its_own_also_at_once(gate: Gate) -> None:
    taken = [gate.take_snapshot(rows(number), PLACE, INPUTS["train"])[0] for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        numbers = list(pool.map(gate.attempts.attempt, taken + taken))
    assert sorted(numbers[:8]) == [*range(1, 9)]
    assert numbers[8:] == numbers[:8]


# Two at once


@pytest.mark.parametrize("round_", range(4))
def test_of_tables_that_do_not_know_of_each_other_one_is_released(gate: Gate, round_: int) -> None:
    parts = [chain(gate, frame=rows(number)) for number in range(4)]

    def publish(part: Chain) -> str:
        try:
            return part.publish().id
        except PublicationRefused as error:
            assert "another table was released since" in str(error)
            return ""

    with ThreadPoolExecutor(4) as pool:
        done = [name for name in pool.map(publish, parts) if name]
    assert len(done) == 1
    assert [release.id for release in gate.store.history(PLACE)] == done
    assert gate.store.current(PLACE).id == done[0]
    check_whole(gate)


def test_one_attestation_by_many_at_once_makes_one_release(gate: Gate) -> None:
    part = chain(gate)
    with ThreadPoolExecutor(6) as pool:
        found = set(pool.map(lambda _: part.publish(), range(6)))
    assert len(found) == 1
    assert gate.store.history(PLACE) == [*found]
    same_rows(read(gate), FRAME)


def test_attestations_of_one_table_by_many_at_once_end_in_one_order(gate: Gate) -> None:
    part = chain(gate)
    sealed = [again(part, number) for number in range(5)]

    def publish(one: Any) -> bool:
        try:
            part.publish(sealed=one)
        except PublicationRefused as error:  # overtaken by a later one
            assert "is not current any more" in str(error)
            return False
        return True

    with ThreadPoolExecutor(5) as pool:
        assert any(pool.map(publish, sealed))
    assert gate.store.current(PLACE) == gate.store.history(PLACE)[-1]
    check_whole(gate)


# Whatever fails or dies on the way


@contextmanager
def broken(at: int, *, sent: bool, for_good: bool) -> Iterator[list[str]]:
    """Request ``at`` fails, after it was ``sent`` or before, and ``for_good`` each one after it: like a death."""
    calls: list[str] = []
    plain = s3fs.S3FileSystem._call_s3

    async def call(self: Any, method: str, *rest: Any, **named: Any) -> Any:
        calls.append(method)
        number = len(calls) - 1
        if number == at and sent:
            await plain(self, method, *rest, **named)
        if number == at or (for_good and number > at):
            raise OSError(errno.ENETDOWN, "down")
        return await plain(self, method, *rest, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(s3fs.S3FileSystem, "_call_s3", call)
        yield calls


def begun(gate: Gate, place: Place, scenario: str) -> tuple[bytes | None, Callable[[], object], bytes]:
    """What is shown before, what is to be done, and what is shown when it is done."""
    first = chain(gate, frame=rows(1), place=place)
    release = first.publish()
    second = chain(gate, frame=rows(2), place=place)
    if scenario == "next":
        return first.sealed.data, second.publish, second.sealed.data
    second.publish()
    return second.sealed.data, lambda: gate.roll_back(place, release.id), first.sealed.data


def shown(gate: Gate, place: Place) -> bytes | None:
    """The attestation of the release that readers get, whose table they can read."""
    check_whole(gate, place)
    try:
        read(gate, place)
    except InputError:
        return None
    return gate.store.current(place).attestation.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(("sent", "for_good"), [(False, False), (True, True)], ids=["one fails", "dies after one"])
@pytest.mark.parametrize("scenario", ["next", "back"])
def test_every_request_may_fail(gate: Gate, scenario: str, sent: bool, for_good: bool) -> None:
    seen, refused = set(), 0
    for at in itertools.count():
        place = Place(f"{scenario} {at}")
        before, work, after = begun(gate, place, scenario)
        with broken(at, sent=sent, for_good=for_good) as calls:
            try:
                work()
                allowed = [after]
            except PublicationRefused:
                refused += 1
                allowed = [before, after] if sent else [before]
        found = shown(gate, place)
        assert found in allowed, (at, calls[at:])
        out = [hash_file(release.table) for release in gate.store.history(place)]
        assert set(out) <= gate.attempts.released(place), (at, calls[at:])  # whatever is out counts as released
        seen.add(found == after)
        work()  # and now it works
        assert shown(gate, place) == after
        if len(calls) <= at:
            break
    assert refused > at // 2  # a listing that finds nothing asks a second time whether there is an object
    assert seen == {False, True}
    later = chain(gate, frame=rows(3), place=place)
    later.publish()
    assert shown(gate, place) == later.sealed.data


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["publish", "back"])
def test_a_process_that_is_killed_leaves_the_old_release_or_the_new_one(tmp_path: Path, kind: str) -> None:
    bucket = new_bucket()
    prepare({role: location(f"{bucket}/{role}") for role in ("releases", "private")})
    gate = replace(
        publisher.deployment(tmp_path),
        releases=location(f"{bucket}/releases"),
        private=location(f"{bucket}/private"),
    )
    with publisher.victim(tmp_path, bucket) as victim:
        seen = publisher.kill_at_random(gate, tmp_path, victim, kind, publisher.KILLS // 2)
    assert seen["old"] > publisher.KILLS // 10


# Where nothing is decided


def test_a_place_that_was_not_prepared_is_not_used(gate: Gate, tmp_path: Path) -> None:
    part = chain(gate)
    with pytest.raises(ConfigError, match="privacy-assets prepare"):
        part.publish(gate=replace(gate, releases=location(f"{new_bucket()}/releases")))
    assert gate.attempts.released(PLACE) == set()  # nothing was recorded
    part.publish()
    (gate.private / MARKER).unlink()
    for work in (part.publish, lambda: gate.roll_back(PLACE, gate.store.current(PLACE).id)):
        with pytest.raises(ConfigError, match="privacy-assets prepare --private"):
            work()


def test_a_store_that_writes_over_what_is_there_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    place, plain = location(f"{new_bucket()}/releases"), s3fs.S3FileSystem._call_s3
    other = location(f"{new_bucket()}/releases")
    assert isinstance(place, ObjectPath) and isinstance(other, ObjectPath)
    prepare({"releases": other})

    async def careless(self: Any, method: str, *rest: Any, IfNoneMatch: str = "", **named: Any) -> Any:
        return await plain(self, method, *rest, **named)

    with monkeypatch.context() as patch:
        patch.setattr(s3fs.S3FileSystem, "_call_s3", careless)
        for one in (place, other):
            with pytest.raises(ConfigError, match="was written over"):
                prepare({"releases": one})
        _creates_over.cache_clear()
        with pytest.raises(ConfigError, match="was written over"):  # a worker with an old library
            check_prepared(other, "releases")
    with pytest.raises(ConfigError, match="not marked"):
        check_prepared(place, "releases")
    _creates_over.cache_clear()
    check_prepared(other, "releases")  # its mark stayed
    assert (prepare({"releases": place}), prepare({"releases": place})) == ({"releases": True}, {"releases": False})
    assert sorted(place.names()) == [MARKER, PROBE]


def test_places_have_one_role_in_one_deployment(gate: Gate) -> None:
    part, bucket = chain(gate), new_bucket()
    swapped = replace(gate, releases=gate.private, private=gate.releases)
    foreign = {role: location(f"{bucket}/{role}") for role in ("releases", "private")}
    prepare(foreign)
    elsewhere = replace(gate, private=foreign["private"])
    for other, told in ((swapped, "marked for private, not for releases"), (elsewhere, "different deployments")):
        with pytest.raises(ConfigError, match=told):
            part.publish(gate=other)
        with pytest.raises(ConfigError, match=told):
            other.attest(part.snapshot, POLICY, {"dcr": result()}, INPUTS, METRICS, SETUP)
    assert gate.attempts.released(PLACE) == set()
    with pytest.raises(ConfigError, match="belong to different deployments"):
        prepare({"releases": gate.releases, "private": foreign["private"]})
    for one, two in ((f"{bucket}/a", f"{bucket}/a"), (f"{bucket}/a", f"{bucket}/a/private")):
        with pytest.raises(ConfigError, match="places of their own"):
            prepare({"releases": location(one), "private": location(two)})


@pytest.mark.parametrize("url", ["memory://x/releases", "http://x/y", "gs://nobody-has-gcsfs-here/x"])
def test_other_stores_are_not_written_to(url: str) -> None:
    place = location(url)
    assert isinstance(place, ObjectPath)
    with pytest.raises(ConfigError):
        place.put(b"x")
    with pytest.raises(ConfigError):
        place.create(b"x")


@pytest.mark.slow
def test_a_store_that_is_away_refuses_without_its_secrets(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    part = chain(gate)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    s3fs.S3FileSystem.clear_instance_cache()
    try:
        for work in (
            part.publish,
            lambda: gate.attest(part.snapshot, POLICY, {"dcr": result()}, INPUTS, METRICS, SETUP),
        ):
            with pytest.raises(PublicationRefused) as caught:
                work()
            assert "s3cret" not in str(caught.value)
    finally:
        s3fs.S3FileSystem.clear_instance_cache()


def test_a_signature_of_a_key_that_is_not_trusted_is_refused(gate: Gate, tmp_path: Path) -> None:
    part = chain(gate)
    release = part.publish()
    other = make_gate(tmp_path / "other")
    release.attestation.put(seal(part.stated.statement(), other.key).data)
    with pytest.raises(PublicationRefused, match="not trusted"):
        read(gate)


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EIO, errno.EBUSY])
def test_servers_that_refuse_in_other_words_refuse(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    place, plain = location(f"{new_bucket()}/one"), s3fs.S3FileSystem._call_s3
    assert isinstance(place, ObjectPath)

    async def other(self: Any, method: str, *rest: Any, **named: Any) -> Any:
        try:
            return await plain(self, method, *rest, **named)
        except FileExistsError:
            raise OSError(number, "said otherwise") from None

    monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", other)
    assert place.create(b"mine")
    assert not place.create(b"yours")
    assert place.read_bytes() == b"mine"


def test_a_pattern_in_a_name_is_a_name() -> None:
    bucket = location(new_bucket())
    assert isinstance(bucket, ObjectPath)
    (bucket / "a1" / "d" / "x").put(b"another place")
    (bucket / "a[1]" / "d" / "x").put(b"this place")
    assert (bucket / "a[1]" / "d").contents() == {"x": b"this place"}
    assert [str(found) for found in (bucket / "a[1]" / "d").glob("*")] == [f"{bucket}/a[1]/d/x"]


@pytest.mark.parametrize("wrong", ["s3:/bucket/x", "s3://", "s3:///", "", "file://host/x", "S3:/x"])
def test_a_mistyped_url_is_no_folder(wrong: str) -> None:
    with pytest.raises(ConfigError):
        location(wrong)


def test_a_location_is_a_path_or_a_url() -> None:
    assert location("/srv/x") == location("file:///srv/x") == location("FILE:///srv/x") == Path("/srv/x")
    assert location("S3://b/x/") == location("s3://b/x") == ObjectPath("s3://b/x")
    assert str(location("https://host/x.csv?signature=s3cret")) == "https://host/x.csv"


def test_what_is_not_there_and_what_cannot_be_read_are_told_apart(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="nothing was published in s3://"):
        gate.store.current(PLACE)
    part = chain(gate)
    part.publish()
    with broken(0, sent=False, for_good=True), pytest.raises(PublicationRefused, match="pointer cannot be read"):
        read(gate)
    unknown = replace(gate, releases=ObjectPath("s4://bucket/releases"), private=ObjectPath("s4://bucket/private"))
    for work in (lambda: unknown.store.current(PLACE), lambda: unknown.attempts.attempt(part.snapshot),
                 lambda: unknown.attempts.released(PLACE)):  # fmt: skip
        with pytest.raises(ConfigError, match="no library for s4://"):
            work()


def test_numbers_that_nobody_took_are_no_numbers(gate: Gate) -> None:
    part = chain(gate)
    stray = PLACE.below(gate.private / "attempts") / "released" / "²²²²²²²²"
    stray.put(b"{}")
    with pytest.raises(PublicationRefused, match="memory of releases is damaged"):
        part.publish()
    stray.unlink()
    part.publish()
    PLACE.below(gate.releases).joinpath("pointers", "9" * 12).put(b"{}")
    with pytest.raises(PublicationRefused, match="remove it"):
        chain(gate, frame=rows(1)).publish()


def test_a_lost_answer_is_asked_again() -> None:
    place = location(f"{new_bucket()}/one")
    assert isinstance(place, ObjectPath)
    assert place.create(b"mine")
    assert place.create(b"mine")  # the request that is sent again finds what it wrote itself
    assert not place.create(b"yours")
    assert place.read_bytes() == b"mine"
