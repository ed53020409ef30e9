"""A gate in a temporary folder or a bucket, small tables, what its steps sign, and what readers see of it."""

from __future__ import annotations

import datetime as dt
import signal
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from privacy_assets.errors import InputError
from privacy_assets.gate.attestation import Attestation
from privacy_assets.gate.gate import Gate
from privacy_assets.gate.keys import SIGNING_KEY, SigningKey, TrustedKeys, first_key
from privacy_assets.gate.prepared import prepare
from privacy_assets.gate.releases import Release, hash_file, read_published
from privacy_assets.gate.snapshot import Snapshot, read_hashed
from privacy_assets.gate.statements import Place, Sealed, Statement, seal
from privacy_assets.metrics.base import Metric
from privacy_assets.metrics.dcr import Dcr
from privacy_assets.policy import Policy
from privacy_assets.stats.limits import Limit
from privacy_assets.stats.results import Estimate, MetricResult, plain
from privacy_assets.storage.files import names, read_regular
from privacy_assets.storage.objects import location
from privacy_assets.version import ENGINE_VERSION

VARIABLE = "GATE_STANDINS_SIGNING_KEY"
PLACE = Place("patients")
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
    """A gate below ``root`` with a first pair of keys; called again, a gate that reads all anew."""
    trusted, private = root / "trusted_keys", root / "private"
    if not trusted.exists():
        first_key(private / SIGNING_KEY, trusted)
    return open_gate(root)


def open_gate(root: Path) -> Gate:
    """The gate below ``root`` with the keys that lie there; makes none."""
    key = SigningKey(root / "private" / SIGNING_KEY, VARIABLE, TrustedKeys((root / "trusted_keys",)))
    return Gate(root / "releases", root / "private", key, b"content".ljust(32))


def in_bucket(gate: Gate, bucket: str) -> Gate:
    """The same gate with its releases and its memory in a bucket; the keys stay in their folder."""
    places: Any = {role: location(f"{bucket}/{role}") for role in ("releases", "private")}
    prepare(places)
    return replace(gate, **places)


def result(high: float = PASSING, **changes: Any) -> MetricResult:
    """What the score step ``dcr`` found."""
    value, low = (0.01, -0.02) if high < 0.1 else (high - 0.03, high - 0.06)
    estimate = Estimate("privacy_score", value, low, high, n=1000, subjects=1000)
    measured = MetricResult(
        "dcr", (estimate,), settings=plain(DCR.settings()), inputs=INPUTS, engine_version=ENGINE_VERSION
    )
    return replace(measured, **changes)


@dataclass(frozen=True)
class Chain:
    """Everything that the steps of one table signed up to its publication."""

    gate: Gate
    place: Place
    policy: Policy
    setup: Mapping[str, Any]
    snapshot: Snapshot
    taken: Sealed
    score: Sealed
    stated: Attestation
    sealed: Sealed

    def publish(self, **other: Any) -> Release:
        """Publish, with parts replaced: gate, sealed, taken, place, policy, setup."""
        part = {**self.__dict__, **other}
        return part["gate"].publish(part["sealed"], part["taken"], part["place"], part["policy"], part["setup"])

    def restated(self, **changes: Any) -> Sealed:
        """The attestation with other contents, signed by the same key: what a careless or an old step would sign."""
        return seal(replace(self.stated, **changes).statement(), self.gate.key)

    def retaken(self, **changes: Any) -> Sealed:
        """The record of the snapshot with other contents, signed by the same key."""
        return seal(replace(self.snapshot, **changes).statement(), self.gate.key)


def rows(number: int, count: int = 3) -> pd.DataFrame:
    """A small table, another one for each number."""
    return pd.DataFrame({"number": np.full(count, number), "noise": np.random.default_rng(number).random(count)})


def chain(
    gate: Gate,
    number: int = 0,
    *,
    frame: pd.DataFrame | None = None,
    place: Place = PLACE,
    policy: Policy = POLICY,
    high: float = PASSING,
    setup: Mapping[str, Any] = SETUP,
) -> Chain:
    """Snapshot, one signed result and the attestation of ``frame``, else of the table of this ``number``."""
    pool = bool(setup.get("pool_partitions"))
    snapshot, taken = gate.take_snapshot(rows(number) if frame is None else frame, place, INPUTS["train"])
    measured = result(high)
    score = gate.sign_result(measured, snapshot, policy.judge({"dcr": measured}).outcomes, pool)
    results = {"dcr": gate.result(score, gate.snapshot(taken, place))}
    stated, sealed = gate.attest(snapshot, policy, results, INPUTS, METRICS, setup)
    return Chain(gate, place, policy, setup, snapshot, taken, score, stated, sealed)


class Behind(dt.datetime):
    """A clock that is an hour late."""

    @classmethod
    def now(cls, tz: dt.tzinfo | None = None) -> Behind:
        return super().now(tz) - dt.timedelta(hours=1)


def read(gate: Gate, place: Place = PLACE) -> pd.DataFrame:
    """What a reader of the current release gets."""
    trusted = gate.key.trusted.places[0]
    return read_published(gate.releases, place.table, place.partition, trusted_keys=trusted)


def shown(gate: Gate, place: Place = PLACE) -> bytes | None:
    """The attestation of the release that readers get, None before the first one; all that is visible must be whole.

    Every release of the history holds the bytes that its signed attestation names, and readers get the table that was
    judged.
    """
    history = gate.store.history(place)
    for release in history:
        assert hash_file(release.table) == release.opened(place, gate.key.trusted).sha256
        assert names(release.folder) == ["attestation.json", "table.parquet"]
    try:
        release = gate.store.current(place)
    except InputError:
        return None
    assert release in history
    stated = release.opened(place, gate.key.trusted)
    judged = place.below(gate.private / "snapshots") / f"{stated.sha256}.parquet"
    pd.testing.assert_frame_equal(read(gate, place), read_hashed(judged, stated.sha256, stated.dtypes))
    return read_regular(release.attestation)


def same_rows(found: pd.DataFrame, frame: pd.DataFrame, **how: bool) -> None:
    """Both hold the same rows, whatever their order: the gate's files have one of their own."""
    assert list(found.columns) == list(frame.columns)
    first, second = (part.iloc[np.lexsort(part.astype(str).to_numpy(str).T)] for part in (found, frame))
    pd.testing.assert_frame_equal(first.reset_index(drop=True), second.reset_index(drop=True), **how)


def small_sealed(gate: Gate, kind: Any = "snapshot") -> Sealed:
    """A small signed statement."""
    return seal(Statement(kind, PLACE, "0" * 64, {"rows": 3}), gate.key)


def overwrite(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Put other bytes at ``path``, also where it may not be written, as its owner can."""
    path.parent.chmod(0o755)
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    path.chmod(mode)


def mode(path: Path) -> int:
    """Its permission bits."""
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
    """Fail instead of waiting for ever."""

    def stop(*_: object) -> None:
        raise AssertionError(f"still waiting after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
