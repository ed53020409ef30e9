"""Properties of object stores: objects that are created once, failed requests, prepared locations,
URLs.
"""

from __future__ import annotations

import errno
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import publisher
import pytest
from gate_standins import (
    INPUTS,
    METRICS,
    PLACE,
    POLICY,
    SETUP,
    Chain,
    blocked,
    chain,
    in_bucket,
    make_gate,
    pointing,
    publisher_of,
    read,
    shown,
)
from publisher import begun, ends_well

from privacy_assets.errors import (
    ConfigError,
    Damaged,
    InputError,
    NotTrusted,
    PublicationBlocked,
    StoreUnavailable,
    Superseded,
)
from privacy_assets.gate import release_objects
from privacy_assets.gate.envelope import ReleaseTarget, sign_payload
from privacy_assets.gate.gate import Gate
from privacy_assets.gate.keeper import Keeper
from privacy_assets.gate.markers import (
    MARKER,
    PROBE,
    _creates_over,
    check_prepared,
    prepare,
    read_marker,
)
from privacy_assets.infra.objects import ObjectPath, location
from privacy_assets.infra.storage import hash_file
from tests.helpers.marks import weekly_except
from tests.stores import new_bucket

s3fs = pytest.importorskip("s3fs", reason="the extra 's3' is not installed")
pytestmark = pytest.mark.usefixtures("store")


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return in_bucket(make_gate(tmp_path), new_bucket())


@pytest.fixture
def bucket() -> ObjectPath:
    return ObjectPath(new_bucket())


@contextmanager
def answering(call: Any) -> Iterator[None]:
    """Pass each request to the store through ``call(plain, self, method, ...)``."""
    plain = s3fs.S3FileSystem._call_s3

    async def changed(self: Any, *rest: Any, **named: Any) -> Any:
        return await call(plain, self, *rest, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(s3fs.S3FileSystem, "_call_s3", changed)
        yield


# Objects that are created once


def test_an_object_is_created_once_whatever_words_the_server_rejects_it_with(
    bucket: ObjectPath,
) -> None:
    for number in (None, errno.EINVAL, errno.EIO, errno.EBUSY):

        async def other(plain: Any, *rest: Any, number: int | None = number, **named: Any) -> Any:
            try:
                return await plain(*rest, **named)
            except FileExistsError:
                if number is None:
                    raise
                raise OSError(number, "said otherwise") from None

        one = bucket / f"one {number}"
        with answering(other):
            assert one.create(b"mine")
            # a request whose answer was lost is sent again, and finds its own object
            assert one.create(b"mine")
            assert not one.create(b"yours")
            assert one.read_bytes() == b"mine"


def test_a_store_that_writes_over_what_is_there_is_not_used(bucket: ObjectPath) -> None:
    target, other = bucket / "releases", bucket / "others"
    prepare({"releases": other})

    async def careless(plain: Any, *rest: Any, IfNoneMatch: str = "", **named: Any) -> Any:
        return await plain(*rest, **named)

    with answering(careless):
        for one in (target, other):
            with pytest.raises(ConfigError, match="overwrote an object"):
                prepare({"releases": one})
        _creates_over.cache_clear()
        # a worker with an old library
        with pytest.raises(ConfigError, match="overwrote an object"):
            check_prepared(other, "releases")
    with pytest.raises(ConfigError, match="not marked"):
        check_prepared(target, "releases")
    _creates_over.cache_clear()
    check_prepared(other, "releases")  # its marker remains
    assert (prepare({"releases": target}), prepare({"releases": target})) == (
        {"releases": True},
        {"releases": False},
    )
    assert sorted(target.names()) == [MARKER, PROBE]


@pytest.mark.parametrize(
    "url", ["memory://x/releases", "http://x/y", "gs://nobody-has-gcsfs-here/x"]
)
def test_other_stores_are_not_written_to(url: str) -> None:
    target = ObjectPath(url)
    for write in (target.put, target.create):
        with pytest.raises(ConfigError):
            write(b"x")


# Claims, envelopes and pointers


@pytest.mark.slow
def test_a_changed_attestation_is_neither_read_nor_replaced(gate: Gate, tmp_path: Path) -> None:
    part = chain(gate)
    made, stranger = part.publish(), make_gate(tmp_path / "other")
    made.attestation.put(sign_payload(part.attestation.payload(), stranger.key).data)
    with blocked(Damaged, path=str(made.folder), remove=True):
        part.publish()
    with blocked(NotTrusted):
        read(gate)


@pytest.mark.slow
def test_a_damaged_claim_is_blocked_and_one_that_is_gone_is_found_again(gate: Gate) -> None:
    part = chain(gate)
    first = part.publish()
    newer = chain(gate, 1)
    later = newer.publish()
    claims = PLACE.below(gate.releases) / "claims"
    # otherwise it is current, and not written again
    (PLACE.below(gate.releases) / "pointers").remove_below()
    for name in claims.names():
        (claims / name).put(b"20240101T000000.000000Z-000000000000")
    with blocked(Damaged, remove=True):
        newer.publish()
    claims.remove_below()
    assert newer.publish() == later
    with blocked(Superseded, release=first.id):
        part.publish()  # not a new release
    assert gate.store.current(PLACE, gate.key.trusted) == later


@pytest.mark.slow
def test_a_release_that_was_overtaken_before_it_was_whole_says_so(gate: Gate) -> None:
    part, other = chain(gate), chain(gate, 1)
    claimed = release_objects._claimed(
        PLACE.below(gate.releases), part.snapshot.sha256, part.signed_file.data
    )

    def add(one: Chain, number: int) -> None:
        pointer = pointing(gate, number=number)
        gate.store.add(
            PLACE,
            one.snapshot.path,
            one.snapshot.sha256,
            one.signed_file.data,
            pointer,
            lambda: None,
        )

    add(other, 1)
    with blocked(Superseded, record="result"):
        add(part, 0)
    assert claimed not in [release.id for release in gate.store.history(PLACE)]


def test_a_number_that_no_pointer_reaches_is_blocked(gate: Gate) -> None:
    PLACE.below(gate.releases).joinpath("pointers", "9" * 12).put(b"{}")
    with blocked(Damaged, remove=True) as caught:
        chain(gate).publish()
    assert caught.value.path.endswith("pointers/" + "9" * 12)


# Failures and crashes


READS = {"head_object", "get_object", "list_objects_v2"}


@contextmanager
def failing(at: int) -> Iterator[list[str]]:
    """Request ``at`` fails before it arrives."""
    calls: list[str] = []

    async def call(plain: Any, store: Any, method: str, *rest: Any, **named: Any) -> Any:
        calls.append(method)
        if len(calls) == at + 1:
            raise OSError(errno.ENETDOWN, "down")
        return await plain(store, method, *rest, **named)

    with answering(call):
        yield calls


@contextmanager
def dead_after(changes: int) -> Iterator[None]:
    """After ``at`` changing requests, no request arrives and none is answered, as after a crash."""
    made = 0

    async def call(plain: Any, store: Any, method: str, *rest: Any, **named: Any) -> Any:
        nonlocal made
        if made == changes:
            raise OSError(errno.ENETDOWN, "down")
        answer = await plain(store, method, *rest, **named)
        made += method not in READS
        if made == changes:
            raise OSError(errno.ENETDOWN, "down")
        return answer

    with answering(call):
        yield


def whole(gate: Gate, target: ReleaseTarget) -> bytes | None:
    """The attestation that readers get; every visible release must be recorded as released."""
    found = shown(gate, target)
    recorded = {one.sha256 for one in gate.log.state(target.table).history(target)}
    assert {hash_file(release.table) for release in gate.store.history(target)} <= recorded
    return found


def goes_on(gate: Gate, target: ReleaseTarget) -> None:
    later = chain(gate, 3, target=target)
    later.publish()
    assert shown(gate, target) == later.signed_file.data


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "step"), weekly_except([("next", 5), ("next", 1), ("back", 1)], ("next", 5))
)
def test_every_request_may_fail(gate: Gate, scenario: str, step: int) -> None:
    """A target is reused while no request has changed it; a blocked publication leaves no objects
    there.
    """
    seen, blocked, untouched = set(), 0, False
    for at in itertools.count(0, step):
        if not untouched:
            target = ReleaseTarget(f"{scenario} {at}")
            before, work, after = begun(gate, scenario, target)
        with failing(at) as calls:
            try:
                work(gate)
                allowed = after
            except PublicationBlocked:
                blocked += 1
                allowed = before
        assert whole(gate, target) == allowed, (at, calls[at:])
        seen.add(allowed == after)
        untouched = set(calls) <= READS
        if not untouched:
            ends_well(gate, work, after, target)
        if len(calls) <= at:
            break
    assert (
        blocked > at // step // 2
    )  # a listing without results checks again whether there is an object
    assert seen == {False, True}
    goes_on(gate, target)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", weekly_except(("next", "back"), "back"))
def test_a_death_after_each_change_of_the_store(gate: Gate, scenario: str) -> None:
    """A request that changed nothing leaves the state of the change before."""
    seen = set()
    for changes in itertools.count():
        target = ReleaseTarget(f"{scenario} {changes}")
        before, work, after = begun(gate, scenario, target)
        with dead_after(changes):
            try:
                work(gate)
                dead = False
            except PublicationBlocked:
                dead = True
        found = whole(gate, target)
        assert found in ([before, after] if dead else [after]), changes
        seen.add(found == after)
        ends_well(gate, work, after, target)
        if not dead:
            break
    assert changes >= 2 and seen == {False, True}
    goes_on(gate, target)


@pytest.mark.weekly
@pytest.mark.parametrize("kind", ["publish", "back", "prune"])
def test_a_process_that_is_killed_leaves_the_old_release_or_the_new_one(
    tmp_path: Path, kind: str
) -> None:
    url = new_bucket()
    gate = in_bucket(make_gate(tmp_path), url)
    with publisher.victim(tmp_path, url) as victim:
        seen = publisher.kill_at_random(
            gate, tmp_path, victim, kind, publisher.KILLS // len(publisher.ORDERS)
        )
    assert seen["old"] > publisher.KILLS // 20


@pytest.mark.slow
def test_what_is_not_there_and_what_cannot_be_read_are_told_apart(gate: Gate) -> None:
    with pytest.raises(InputError, match="there is no release in s3://"):
        gate.store.current(PLACE, gate.key.trusted)
    part = chain(gate)
    part.publish()
    with dead_after(0), blocked(StoreUnavailable, retry=True):
        read(gate)
    unknown = replace(
        gate, releases=ObjectPath("s4://bucket/releases"), private=ObjectPath("s4://bucket/private")
    )
    for work in (
        lambda: unknown.store.watched(PLACE),
        lambda: unknown.log.count_attempt(part.snapshot),
    ):
        with pytest.raises(ConfigError, match="no library for s4://"):
            work()


@pytest.mark.slow
def test_a_store_that_is_away_is_an_error_without_its_secrets(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = chain(gate)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    # otherwise the library waits for seconds between requests
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    s3fs.S3FileSystem.clear_instance_cache()
    try:
        for work in (
            part.publish,
            lambda: publisher_of(gate).attest(
                part.snapshot, POLICY, {"dcr": part.score}, INPUTS, METRICS, SETUP
            ),
        ):
            with pytest.raises(PublicationBlocked) as caught:
                work()
            assert "s3cret" not in str(caught.value)
    finally:
        s3fs.S3FileSystem.clear_instance_cache()


# Locations


@pytest.mark.slow
def test_places_have_one_role_in_one_deployment(gate: Gate, bucket: ObjectPath) -> None:
    part = chain(gate)
    foreign = in_bucket(gate, bucket.url)
    others = {
        "privacy-assets prepare --releases": replace(gate, releases=bucket / "nowhere"),
        "marked for private, not for releases": replace(
            gate, releases=gate.private, private=gate.releases
        ),
        "different deployments": replace(gate, private=foreign.private),
    }
    for told, other in others.items():
        with pytest.raises(ConfigError, match=told):
            part.publish(gate=other)
        with pytest.raises(ConfigError, match=told):
            publisher_of(other).attest(
                part.snapshot, POLICY, {"dcr": part.score}, INPUTS, METRICS, SETUP
            )
    with pytest.raises(ConfigError, match="belong to different deployments"):
        prepare({"releases": gate.releases, "private": foreign.private})
    for one, two in ((bucket / "a", bucket / "a"), (bucket / "a", bucket / "a" / "private")):
        with pytest.raises(ConfigError, match="must be in separate folders"):
            prepare({"releases": one, "private": two})
    made = part.publish()
    (gate.private / MARKER).unlink()
    for work in (part.publish, lambda: Keeper(gate).roll_back(PLACE, made.id)):
        with pytest.raises(ConfigError, match="privacy-assets prepare --private"):
            work()


def test_a_pattern_in_a_name_is_a_name(bucket: ObjectPath) -> None:
    (bucket / "a1" / "d" / "x").put(b"another target")
    (bucket / "a[1]" / "d" / "x").put(b"this target")
    assert (bucket / "a[1]" / "d").names() == ["x"]
    assert (bucket / "a[1]" / "d" / "x").read_bytes() == b"this target"
    assert [str(found) for found in (bucket / "a[1]" / "d").glob("*")] == [f"{bucket}/a[1]/d/x"]


@pytest.mark.slow
def test_markers_and_claims_are_read_up_to_a_bound(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_bytes, unbounded = ObjectPath.read_bytes, []

    def watched(self: ObjectPath, most: int | None = None) -> bytes:
        if most is None:
            unbounded.append(str(self))
        return read_bytes(self, most)

    monkeypatch.setattr(ObjectPath, "read_bytes", watched)
    chain(gate).publish()
    assert not [url for url in unbounded if "/claims/" in url or url.endswith(MARKER)]
    (gate.private / MARKER).put(b" " * 10_000 + read_bytes(gate.private / MARKER))
    with pytest.raises(ConfigError, match="damaged"):
        read_marker(gate.private, "private")


@pytest.mark.parametrize("wrong", ["s3:/bucket/x", "s3://", "s3:///", "", "file://host/x", "S3:/x"])
def test_a_mistyped_url_is_no_folder(wrong: str) -> None:
    with pytest.raises(ConfigError):
        location(wrong)


def test_a_location_is_a_path_or_a_url() -> None:
    assert (
        location("/srv/x")
        == location("file:///srv/x")
        == location("FILE:///srv/x")
        == Path("/srv/x")
    )
    assert location("S3://b/x/") == location("s3://b/x") == ObjectPath("s3://b/x")
    with pytest.raises(ConfigError, match="must not contain credentials"):
        location("https://host/x.csv?signature=s3cret")
