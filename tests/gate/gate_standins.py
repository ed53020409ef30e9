"""A gate in a temporary folder or a bucket, small tables, the records that its steps sign, and the
readers' view.
"""

from __future__ import annotations

import datetime as dt
import signal
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from privacy_assets.errors import InputError, PrivacyAssetsError, PublicationBlocked, StoreError
from privacy_assets.gate.accepted_settings import entries_of
from privacy_assets.gate.attestation import Attestation
from privacy_assets.gate.envelope import Payload, ReleaseTarget, SignedFile, sign_payload
from privacy_assets.gate.gate import Gate
from privacy_assets.gate.keys import SIGNING_KEY, SigningKey, TrustedKeys, first_key
from privacy_assets.gate.markers import mark_deployment, prepare
from privacy_assets.gate.publisher import Publisher
from privacy_assets.gate.release import Pointer
from privacy_assets.gate.releases import Release, read_published
from privacy_assets.gate.signed_files import SignedFiles
from privacy_assets.gate.snapshot import Snapshot, read_hashed
from privacy_assets.infra.objects import location
from privacy_assets.infra.storage import hash_file, storage_of
from privacy_assets.metrics.base import Metric
from privacy_assets.metrics.dcr import Dcr
from privacy_assets.policy import Limit, Policy
from privacy_assets.stats.estimates import Estimate, MetricResult, to_jsonable
from privacy_assets.tables.table import Table
from privacy_assets.version import PACKAGE_VERSION
from tests.stores import new_bucket

VARIABLE = "GATE_STANDINS_SIGNING_KEY"
PLACE = ReleaseTarget("patients")
POLICY = Policy((Limit("dcr.privacy_score", at_most=0.1),), name="test")
DCR = Dcr()
METRICS: dict[str, Metric] = {"dcr": DCR}
SETUP: dict[str, Any] = {"seed": 0, "subject": None}
INPUTS = {"train": "t", "holdout": "h", "synthetic": "s"}
PASSING, FAILING = 0.03, 0.2  # conservative bound of the statistic's interval; the limit is 0.1
FRAME = pd.DataFrame(
    {
        "age": pd.array([31, None, 58], dtype="Int64"),
        "visits": [3, 0, 7],
        "dose": [0.5, np.nan, 2.25],
        "plan": ["a", None, 'it\'s "quoted"'],
        "ward": pd.Categorical(["north", "south", None]),
        "seen": pd.to_datetime(["2024-01-01", None, "2024-02-03"]),
        "active": [True, False, True],
    }
)


def make_gate(root: Path) -> Gate:
    """The gate below ``root``, with a first pair of keys. A second call returns a gate that reads
    all files again.
    """
    trusted, private = root / "trusted_keys", root / "private"
    mark_deployment({"private": private, "releases": root / "releases"})
    if not trusted.exists():
        first_key(private / SIGNING_KEY, trusted)
    return open_gate(root)


def open_gate(root: Path) -> Gate:
    """The gate below ``root`` with its stored keys; creates none."""
    key = SigningKey(
        root / "private" / SIGNING_KEY, VARIABLE, TrustedKeys((root / "trusted_keys",))
    )
    return Gate(root / "releases", root / "private", key)


def files_of(gate: Gate) -> SignedFiles:
    """The files that the steps of this gate sign and open."""
    return SignedFiles(gate, b"content".ljust(32))


def publisher_of(gate: Gate) -> Publisher:
    """The publisher of this gate."""
    return Publisher(files_of(gate))


def in_bucket(gate: Gate, bucket: str) -> Gate:
    """The same gate with its releases and its memory in a bucket; the keys stay in their folder."""
    places: Any = {role: location(f"{bucket}/{role}") for role in ("releases", "private")}
    prepare(places)
    return replace(gate, **places)


def in_either_place(request: pytest.FixtureRequest, root: Path) -> Gate:
    """The gate below ``root`` for the parameter "disk" of a fixture, or with its data in a bucket
    for "objects".
    """
    made = make_gate(root)
    if request.param == "disk":
        return made
    request.getfixturevalue("store")
    return in_bucket(made, new_bucket())


def result(high: float = PASSING, **changes: Any) -> MetricResult:
    """A result of the score step ``dcr``."""
    value, low = (0.01, -0.02) if high < 0.1 else (high - 0.03, high - 0.06)
    estimate = Estimate("privacy_score", value, low, high, n=1000, subjects=1000)
    measured = MetricResult(
        "dcr",
        (estimate,),
        settings=to_jsonable(DCR.settings()),
        inputs=INPUTS,
        package_version=PACKAGE_VERSION,
    )
    return replace(measured, **changes)


def signed(
    gate: Gate, snapshot: Snapshot, measured: MetricResult | None = None
) -> dict[str, SignedFile]:
    """The signed result of the score step ``dcr``, without a record of the attempt or of
    failures.
    """
    body = (measured or result()).to_json()
    return {
        "dcr": sign_payload(Payload("result", snapshot.target, snapshot.sha256, body), gate.key)
    }


@dataclass(frozen=True)
class Chain:
    """All records that the steps of one table signed before its publication."""

    gate: Gate
    target: ReleaseTarget
    policy: Policy
    setup: Mapping[str, Any]
    snapshot: Snapshot
    taken: SignedFile
    score: SignedFile
    attestation: Attestation
    signed_file: SignedFile

    def publish(self, **other: Any) -> Release:
        """Publish, with parts replaced: gate, signed_file, taken, target, policy, setup.

        Signs the given policy and setup, and makes the attestation the latest one, so
        that later checks are tested.
        """
        part = {**self.__dict__, **other}
        self.put_in_force(part["target"], part["policy"], part["setup"], part["signed_file"])
        return publisher_of(part["gate"]).publish(
            part["signed_file"], part["taken"], part["target"], part["policy"], part["setup"]
        )

    def put_in_force(
        self,
        target: ReleaseTarget,
        policy: Policy,
        setup: Mapping[str, Any],
        signed_file: SignedFile,
    ) -> None:
        """Make this attestation the latest one, and sign these settings."""
        latest = target.below(self.gate.private / "latest") / "attestation"
        try:
            sign_settings(self.gate, target, policy, setup)
            if not latest.exists() or storage_of(latest).read() != signed_file.data:
                storage_of(latest).put(signed_file.data)
        except StoreError as error:  # tests of failing requests: no table is published
            raise PublicationBlocked(str(error)) from None

    def restated(self, **changes: Any) -> SignedFile:
        """The attestation with other contents, signed by the same key, as a careless or an old step
        would sign it.
        """
        return sign_payload(replace(self.attestation, **changes).payload(), self.gate.key)

    def retaken(self, **changes: Any) -> SignedFile:
        """The record of the snapshot with other contents, signed by the same key."""
        return sign_payload(replace(self.snapshot, **changes).payload(), self.gate.key)


def rows(number: int, count: int = 3) -> pd.DataFrame:
    """A small table that differs for each number."""
    return pd.DataFrame(
        {"number": np.full(count, number), "noise": np.random.default_rng(number).random(count)}
    )


def sign_settings(
    gate: Gate,
    target: ReleaseTarget = PLACE,
    policy: Policy = POLICY,
    setup: Mapping[str, Any] = SETUP,
) -> None:
    """Sign these settings, as if a person had accepted them."""
    entries = entries_of(policy, setup)
    if gate.accepted.difference(target.table, entries):
        gate.accepted.sign(target.table, entries)


def chain(
    gate: Gate,
    number: int = 0,
    *,
    frame: pd.DataFrame | None = None,
    target: ReleaseTarget = PLACE,
    policy: Policy = POLICY,
    high: float = PASSING,
    setup: Mapping[str, Any] = SETUP,
) -> Chain:
    """Snapshot, one signed result and the attestation of ``frame`` (default: the table of this
    ``number``).
    """
    sign_settings(gate, target, policy, setup)
    given = rows(number) if frame is None else frame
    table = Table.read(given) if len(given) else Table.read(rows(number)).take(slice(0))
    files = files_of(gate)
    snapshot, taken = files.take_snapshot(table, target, INPUTS["train"])
    measured = result(high)
    score = files.sign_result(measured, snapshot, policy.judge({"dcr": measured}).outcomes)
    stated, signed_file = publisher_of(gate).attest(
        snapshot, policy, {"dcr": score}, INPUTS, METRICS, setup
    )
    return Chain(gate, target, policy, setup, snapshot, taken, score, stated, signed_file)


def pointing(gate: Gate, target: ReleaseTarget = PLACE, number: int = 1) -> Callable[[str], bytes]:
    """A function that returns the signed pointer to a release."""
    return lambda name: Pointer(name, number, dt.datetime.now(dt.UTC)).signed(target, gate.key)


def record(gate: Gate, status: str, content: str, target: ReleaseTarget = PLACE) -> None:
    """Append a verdict to the log."""
    gate.log.append(
        target,
        "verdict",
        lambda _: {"content": content, "sha256": "", "status": status, "failed": []},
    )


def events(gate: Gate, table: str = "patients") -> list[str]:
    """The events of the log of a table, each of which must be sound."""
    found = list(gate.log.entries(table))
    assert not [problem for _, _, problem in found if problem]
    return [entry.body["event"] for _, entry, _ in found if entry]


def verdicts(gate: Gate, table: str = "patients") -> list[str]:
    """The verdicts in the log of a table, in order."""
    found = [entry.body for _, entry, _ in gate.log.entries(table) if entry]
    return [body["status"] for body in found if body["event"] == "verdict"]


class Behind(dt.datetime):
    """A clock that is five minutes late."""

    @classmethod
    def now(cls, tz: dt.tzinfo | None = None) -> Behind:
        return super().now(tz) - dt.timedelta(minutes=5)


def read(gate: Gate, target: ReleaseTarget = PLACE) -> pd.DataFrame:
    """The table that readers of the current release get."""
    trusted = gate.key.trusted.paths[0]
    return read_published(gate.releases, target.table, target.partition, trusted_keys=trusted)


def shown(gate: Gate, target: ReleaseTarget = PLACE) -> bytes | None:
    """The attestation of the release that readers get; None before the first one.

    Checks that all visible files are complete. Every release of the history holds the bytes that
    its signed attestation names, and readers get the attested table.
    """
    history = gate.store.history(target)
    for release in history:
        assert hash_file(release.table) == release.opened(target, gate.key.trusted).sha256
        assert storage_of(release.folder).names() == ["attestation.json", "table.parquet"]
    try:
        release = gate.store.current(target, gate.key.trusted)
    except InputError:
        return None
    assert release in history
    stated = release.opened(target, gate.key.trusted)
    judged = target.below(gate.private / "snapshots") / f"{stated.sha256}.parquet"
    pd.testing.assert_frame_equal(
        read(gate, target), read_hashed(judged, stated.sha256, stated.dtypes)
    )
    return storage_of(release.attestation).read()


def same_rows(found: pd.DataFrame, frame: pd.DataFrame, **how: bool) -> None:
    """Whether both hold the same rows in any order; the gate sorts the rows of its files."""
    assert list(found.columns) == list(frame.columns)
    first, second = (
        part.iloc[np.lexsort(part.astype(str).to_numpy(str).T)] for part in (found, frame)
    )
    pd.testing.assert_frame_equal(
        first.reset_index(drop=True), second.reset_index(drop=True), **how
    )


def small_signed_file(gate: Gate, kind: Any = "snapshot") -> SignedFile:
    """A small signed payload."""
    return sign_payload(Payload(kind, PLACE, "0" * 64, {"rows": 3}), gate.key)


@contextmanager
def blocked(
    kind: type[Exception] | tuple[type[Exception], ...], **fields: Any
) -> Iterator[pytest.ExceptionInfo[PrivacyAssetsError]]:
    """Check that the block raises a blocking_error of exactly this class, or one of these, with
    these fields.
    """
    with pytest.raises(PrivacyAssetsError) as caught:
        yield caught
    assert type(caught.value) in (kind if isinstance(kind, tuple) else (kind,)), caught.value
    for name, value in fields.items():
        assert getattr(caught.value, name) == value, (name, caught.value)


def overwrite(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Write other bytes to ``path``, also if it is read-only, as its owner can."""
    path.parent.chmod(0o755)
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    path.chmod(mode)


def mode(path: Path) -> int:
    """Permission bits of ``path``."""
    return stat.S_IMODE(path.lstat().st_mode)


def tree(folder: Path) -> dict[str, bytes]:
    """Every regular file below ``folder`` by its path, with its bytes."""
    found = {}
    for path in folder.rglob("*"):
        if stat.S_ISREG(path.lstat().st_mode):
            found[str(path.relative_to(folder))] = path.read_bytes()
    return found


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """Raise an error after ``seconds`` instead of waiting forever."""

    def stop(*_: object) -> None:
        raise AssertionError(f"still waiting after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
