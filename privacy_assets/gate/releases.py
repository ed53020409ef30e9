"""Releases: immutable folders and one pointer a table and partition."""

from __future__ import annotations

import datetime as dt
import hashlib
import io
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pandas as pd

from privacy_assets.engine.policy import Policy
from privacy_assets.errors import InputError, PublicationRefused
from privacy_assets.gate.atomic import put_atomic, sync_folder
from privacy_assets.gate.attestation import Attestation, refusal
from privacy_assets.gate.snapshot import Snapshot

TABLE_FILE, ATTESTATION_FILE, POINTER = "table.parquet", "attestation.json", "latest.json"


def quoted(name: str) -> str:
    """``name`` as one harmless part of a path."""
    return quote(name, safe="-_= ").replace(".", "%2E")


@dataclass(frozen=True, slots=True)
class Release:
    """A published table: folder ``releases/<id>`` with the table and its attestation."""

    id: str
    folder: Path

    @property
    def table(self) -> Path:
        """The Parquet file."""
        return self.folder / TABLE_FILE

    @property
    def attestation(self) -> Path:
        """The attestation that let it through."""
        return self.folder / ATTESTATION_FILE


@dataclass(frozen=True, slots=True)
class ReleaseStore:
    """Releases below ``root/<table>/partition=<partition>``, or ``root/<table>/_all`` without partitions."""

    root: Path

    def place(self, table: str, partition: str | None = None) -> Path:
        """Folder of one table and partition; names are quoted, so that none can leave the root."""
        parts = (table, "_all" if partition is None else f"partition={partition}")
        return self.root.joinpath(*[quoted(part) for part in parts])

    def publish(self, attestation: Attestation, snapshot: Snapshot, policy: Policy) -> Release:
        """Publish the snapshot that ``attestation`` names, if it holds ``policy``, the one in force now.

        The bytes are copied to a private staging folder while being hashed; what was hashed is what is published.
        Raises PublicationRefused, and leaves the previous release as it is, in every other case.
        """
        self._check(attestation, snapshot, policy)
        place = self.place(attestation.table, attestation.partition)
        staging = place / "staging" / f"{os.getpid()}-{os.urandom(6).hex()}"
        staging.mkdir(parents=True, mode=0o700)
        try:
            if _copy_hashed(Path(snapshot.path), staging / TABLE_FILE) != attestation.sha256:
                raise PublicationRefused("the synthetic table changed after it was judged; score it again.")
            put_atomic(staging / ATTESTATION_FILE, attestation.to_bytes(), mode=0o644)
            release = self._move(staging, place, attestation.sha256)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        put_atomic(place / POINTER, json.dumps({"release": release.id}).encode(), mode=0o644)
        return release

    def _check(self, attestation: Attestation, snapshot: Snapshot, policy: Policy) -> None:
        if attestation.policy_digest != policy.digest():
            raise PublicationRefused("the attestation was made under another policy; materialise it again.")
        judgement = attestation.judge(policy)
        if judgement.verdict != "pass" or attestation.verdict != "pass":
            raise PublicationRefused(refusal(judgement))
        if snapshot.sha256 != attestation.sha256:
            raise PublicationRefused("the attestation belongs to another synthetic table; materialise it again.")

    def _move(self, staging: Path, place: Path, sha256: str) -> Release:
        stamp = dt.datetime.now(dt.UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        release = Release(f"{stamp}-{sha256[:12]}", place / "releases" / f"{stamp}-{sha256[:12]}")
        release.folder.parent.mkdir(parents=True, exist_ok=True)
        staging.chmod(0o755)
        os.rename(staging, release.folder)
        sync_folder(release.folder.parent)
        return release

    def current(self, table: str, partition: str | None = None) -> Release:
        """The release the pointer names; InputError when nothing was published."""
        place = self.place(table, partition)
        try:
            name = json.loads((place / POINTER).read_bytes())["release"]
        except FileNotFoundError:
            raise InputError("nothing was published", where=f"{table}{f', {partition}' if partition else ''}") from None
        return Release(name, place / "releases" / name)

    def history(self, table: str, partition: str | None = None) -> list[Release]:
        """All releases, oldest first."""
        folder = self.place(table, partition) / "releases"
        return [Release(path.name, path) for path in sorted(folder.iterdir())] if folder.is_dir() else []


def read_published(root: str | Path, table: str, partition: str | None = None) -> pd.DataFrame:
    """Read the current release of ``table``; the bytes must be those that its attestation names."""
    release = ReleaseStore(Path(root)).current(table, partition)
    data = release.table.read_bytes()
    attestation = Attestation.from_bytes(release.attestation.read_bytes())
    if hashlib.sha256(data).hexdigest() != attestation.sha256:
        raise PublicationRefused(f"release {release.id} does not hold the bytes that were judged.")
    frame: pd.DataFrame = pd.read_parquet(io.BytesIO(data))
    return frame


def _copy_hashed(source: Path, target: Path) -> str:
    """Copy without following links, hashing what is copied."""
    digest = hashlib.sha256()
    try:
        descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as error:
        raise PublicationRefused(f"the snapshot cannot be read ({error.strerror}); materialise it again.") from None
    with os.fdopen(descriptor, "rb") as reader, target.open("xb") as writer:
        while block := reader.read(1 << 20):
            digest.update(block)
            writer.write(block)
        writer.flush()
        os.fsync(writer.fileno())
    target.chmod(0o644)
    return digest.hexdigest()
