"""Releases: immutable folders and one pointer a table and partition."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pandas as pd

from privacy_assets.errors import InputError, PublicationRefused
from privacy_assets.files import locked, put_atomic, sync_folder
from privacy_assets.gate.attestation import Attestation, check_place
from privacy_assets.gate.keys import TrustedKeys
from privacy_assets.gate.snapshot import read_hashed
from privacy_assets.gate.statements import Place, Sealed, unseal

TABLE_FILE, ATTESTATION_FILE, POINTER = "table.parquet", "attestation.json", "latest.json"
TRUSTED_VARIABLE = "PRIVACY_ASSETS_TRUSTED_KEYS"
_ID = re.compile(r"\d{8}T\d{6}\.\d{6}Z-[0-9a-f]{12}")


def default_trusted(root: Path) -> TrustedKeys:
    """The keys that PRIVACY_ASSETS_TRUSTED_KEYS names, else those in ``trusted_keys`` beside the release folder."""
    given = os.environ.get(TRUSTED_VARIABLE, "")
    return TrustedKeys((Path(given) if given else root.absolute().parent / "trusted_keys",))


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
        """The envelope of the attestation that let it through."""
        return self.folder / ATTESTATION_FILE

    @property
    def published_at(self) -> str:
        """When it was put in place (UTC), from its id."""
        return dt.datetime.strptime(self.id[:22], "%Y%m%dT%H%M%S.%f").isoformat(sep=" ", timespec="seconds")

    def opened(self, place: Place, trusted: TrustedKeys) -> Attestation:
        """Its attestation, signed by a trusted key, for this place, with the verdict "pass"; or PublicationRefused."""
        try:
            sealed = Sealed("attestation", self.attestation.read_bytes())
        except OSError as error:
            text = f"the attestation of release {self.id} cannot be read ({error.strerror})."
            raise PublicationRefused(text) from None
        stated = Attestation.of(unseal(sealed, trusted))
        check_place(stated.place, place, "attestation")
        if stated.verdict != "pass":
            raise PublicationRefused(f"the attestation of release {self.id} says {stated.verdict!r}.")
        return stated


@dataclass(frozen=True, slots=True)
class ReleaseStore:
    """Releases below ``root/<table>/partition=<partition>``, or ``root/<table>/_all`` without partitions."""

    root: Path

    def add(self, place: Place, source: Path, sha256: str, attestation: bytes) -> Release:
        """Copy ``source`` into a new release and point to it; it is hashed while it is copied, and only what was hashed
        can be published.

        A release with this very attestation is pointed to again instead of being copied twice, but never backwards:
        that, and undoing a rollback, is for :meth:`point`. PublicationRefused, and the previous release stays, when the
        bytes are not those of ``sha256`` or the disk does not take them. A crash at any moment leaves the old pointer
        or the new one, and each points to a whole release.
        """
        folder = place.below(self.root)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with locked(folder / ".lock"):
                shutil.rmtree(folder / "staging", ignore_errors=True)  # under the lock: whoever left it there is gone
                release = self._same(place, attestation, sha256)
                if release is not None:
                    _check_forward(folder, release)
                else:
                    release = self._stage(folder, source, sha256, attestation)
                release.folder.chmod(0o555)
                _point(folder, release)
        except OSError as error:
            raise PublicationRefused(f"the release could not be written ({error.strerror}); nothing changed.") from None
        return release

    def _same(self, place: Place, attestation: bytes, sha256: str) -> Release | None:
        for release in self.history(place):
            if release.attestation.is_file() and release.attestation.read_bytes() == attestation:
                return release if hash_file(release.table) == sha256 else None
        return None

    def _stage(self, folder: Path, source: Path, sha256: str, attestation: bytes) -> Release:
        """Copy to a private staging folder, hash the copy, and move it in one step to its place."""
        staging = folder / "staging" / os.urandom(6).hex()
        try:
            staging.parent.mkdir(mode=0o700)
            staging.mkdir(mode=0o700)
            if _copy_hashed(source, staging / TABLE_FILE) != sha256:
                raise PublicationRefused("the synthetic table changed after it was judged; score it again.")
            put_atomic(staging / ATTESTATION_FILE, attestation, mode=0o444)
            stamp = dt.datetime.now(dt.UTC).strftime("%Y%m%dT%H%M%S.%fZ")
            release = Release(f"{stamp}-{sha256[:12]}", folder / "releases" / f"{stamp}-{sha256[:12]}")
            release.folder.parent.mkdir(exist_ok=True)
            staging.chmod(0o755)
            os.rename(staging, release.folder)
            sync_folder(release.folder.parent)
            return release
        finally:
            shutil.rmtree(folder / "staging", ignore_errors=True)

    def point(self, place: Place, release: Release) -> None:
        """Make ``release`` the current one; when that goes back, the pointer says from where."""
        folder = place.below(self.root)
        try:
            with locked(folder / ".lock"):
                pointer = _pointer(folder)
                before, back_from = str(pointer.get("release", "")), str(pointer.get("back_from", ""))
                if before != release.id:
                    back_from = before if before > release.id else ""
                _point(folder, release, back_from)
        except OSError as error:
            raise PublicationRefused(f"the pointer could not be written ({error.strerror}); nothing changed.") from None

    def current(self, place: Place) -> Release:
        """The release the pointer names; InputError when nothing was published."""
        folder = place.below(self.root)
        try:
            name = str(json.loads((folder / POINTER).read_bytes())["release"])
        except FileNotFoundError:
            raise InputError("nothing was published", where=str(place)) from None
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            raise PublicationRefused(f"{folder / POINTER} cannot be read; roll back to a release.") from None
        if not _ID.fullmatch(name):
            raise PublicationRefused(f"{folder / POINTER} names no release; roll back to one.")
        return Release(name, folder / "releases" / name)

    def history(self, place: Place) -> list[Release]:
        """All releases of one place, oldest first."""
        folder = place.below(self.root) / "releases"
        names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        return [Release(name, folder / name) for name in names if _ID.fullmatch(name)]

    def places(self) -> Iterator[Place]:
        """Every table and partition that has a release, in order."""
        for folder in sorted(self.root.glob("*/*/releases")):
            table, part = unquote(folder.parents[1].name), unquote(folder.parent.name)
            yield Place(table, None if part == "_all" else part.removeprefix("partition="))


def read_published(
    root: str | Path, table: str, partition: str | None = None, *, trusted_keys: str | Path | None = None
) -> pd.DataFrame:
    """Read the current release of ``table`` below the release folder ``root``.

    Its attestation must be signed by a trusted key, be about this table and partition and name these very bytes:
    PublicationRefused otherwise. ``trusted_keys`` is a folder of public keys (PEM) or one key; default:
    PRIVACY_ASSETS_TRUSTED_KEYS, else ``trusted_keys`` beside ``root``. InputError when nothing was published,
    ConfigError when there is no trusted key.
    """
    root, place = Path(root), Place(table, partition)
    release = ReleaseStore(root).current(place)
    trusted = default_trusted(root) if trusted_keys is None else TrustedKeys((Path(trusted_keys),))
    return read_hashed(release.table, release.opened(place, trusted).sha256)


def hash_file(path: Path) -> str:
    """SHA-256 (hex) of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def check_bytes(path: Path, sha256: str) -> None:
    """PublicationRefused unless the file ``path`` has the bytes that the hash names."""
    try:
        found = hash_file(path)
    except OSError as error:
        raise PublicationRefused(f"{path} cannot be read ({error.strerror}).") from None
    if found != sha256:
        raise PublicationRefused(f"{path} does not hold the bytes that were judged.")


def _pointer(folder: Path) -> dict[str, Any]:
    """What the pointer says; nothing when it is not there or cannot be read."""
    try:
        found = json.loads((folder / POINTER).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _check_forward(folder: Path, release: Release) -> None:
    """Refuse to publish again what was replaced or rolled back: an old attestation would decide what is current."""
    pointer = _pointer(folder)
    if release.id < str(pointer.get("release", "")) or release.id == pointer.get("back_from"):
        raise PublicationRefused(
            f"this very attestation was published before, as {release.id}, and is not current any more. Fix: make a new"
            f" synthetic table, or `privacy-assets releases TABLE --rollback {release.id}`."
        )


def _point(folder: Path, release: Release, back_from: str = "") -> None:
    """Replace the pointer, under the lock; when the disk fails only after that, the old one is put back."""
    path, kept = folder / POINTER, folder / f"{POINTER}.kept"
    for draft in folder.glob("*.json.*"):
        draft.unlink()  # whoever left it there is gone
    old = path.read_bytes() if path.exists() else None
    try:
        if old is not None:
            put_atomic(kept, old, mode=0o644)  # before: to put it back must not need space
        put_atomic(path, json.dumps({"release": release.id, "back_from": back_from}).encode(), mode=0o644)
    except OSError:
        if kept.exists():
            os.replace(kept, path)
        elif old is None:
            path.unlink(missing_ok=True)
        raise
    finally:
        with suppress(OSError):
            kept.unlink()


def _copy_hashed(source: Path, target: Path) -> str:
    """Copy without following links, exclusively; returns the SHA-256 of what was written, read only once."""
    try:
        descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise PublicationRefused(f"the snapshot cannot be read ({error.strerror}); materialise it again.") from None
    digest = hashlib.sha256()
    with os.fdopen(descriptor, "rb", buffering=0) as reader, target.open("xb") as writer:
        while block := reader.read(1 << 20):
            digest.update(block)
            writer.write(block)
        writer.flush()
        os.fchmod(writer.fileno(), 0o444)
        os.fsync(writer.fileno())
    return digest.hexdigest()
