"""Releases: immutable tables and one pointer per table and partition, on disk or in an object
store.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from privacy_assets.errors import (
    ConfigError,
    Damaged,
    InputError,
    OutOfDate,
    StoreUnavailable,
    for_readers,
)
from privacy_assets.gate.envelope import ReleaseTarget, quoted
from privacy_assets.gate.keys import TrustedKeys, key_path
from privacy_assets.gate.release import (
    ATTESTATION_FILE,
    TABLE_FILE,
    CheckNoLaterMove,
    Pointer,
    Release,
    Releases,
    SignPointer,
    check_id,
    is_id,
    pointed,
)
from privacy_assets.gate.release_disk import POINTER, DiskReleases
from privacy_assets.gate.release_objects import ObjectReleases
from privacy_assets.gate.snapshot import read_hashed
from privacy_assets.infra.files import put_atomic, reason
from privacy_assets.infra.objects import Location, ObjectPath, location
from privacy_assets.infra.storage import hash_file, local_path

__all__ = [
    "ATTESTATION_FILE",
    "POINTER",
    "TABLE_FILE",
    "TRUSTED_VARIABLE",
    "Release",
    "ReleaseStore",
    "check_bytes",
    "default_trusted",
    "read_published",
]
TRUSTED_VARIABLE = "PRIVACY_ASSETS_TRUSTED_KEYS"


def default_trusted(
    root: Location, home: Location | None = None, *, reading: bool = False
) -> TrustedKeys:
    """Return the keys in PRIVACY_ASSETS_TRUSTED_KEYS, or those in ``trusted_keys`` in the home of
    the deployment.

    Args:
        root: Release folder.
        home: Home of the deployment. None: the folder that contains the release folder.
        reading: Also accept keys in the home that belong to the owner of the release folder. A
            reader without own keys trusts this user already.

    Raises:
        ConfigError: For an object store without this variable, because a user who can write
            releases could add a key.
    """
    variable = os.environ.get(TRUSTED_VARIABLE, "")
    if variable:
        return TrustedKeys((key_path(variable),))
    if home is None:
        home = root.absolute().parent
    folder = home.absolute() / "trusted_keys"
    local_folder = local_path(folder)
    if local_folder is None:
        fix = f"set {TRUSTED_VARIABLE}, or pass the public key: a folder or file of this machine"
        raise ConfigError(f"{root}: keys in an object store are not trusted. Fix: {fix}.")
    publisher = None
    local_root = local_path(root)
    if reading and local_root is not None and local_root.exists():
        publisher = local_root.stat().st_uid
    return TrustedKeys((local_folder,), publisher)


@dataclass(frozen=True, slots=True)
class ReleaseStore:
    """Releases in ``root/<table>/partition=<partition>``, or ``root/<table>/_all`` without
    partitions.
    """

    root: Location

    @property
    def _releases(self) -> Releases:
        """The operations on this kind of storage."""
        if isinstance(self.root, ObjectPath):
            return ObjectReleases(self.root)
        return DiskReleases(self.root)

    def check(self) -> None:
        """Raise ConfigError if every user may write to the release folder, and log a warning if its
        group may.
        """
        self._releases.check()

    def add(
        self,
        target: ReleaseTarget,
        source: Location,
        sha256: str,
        attestation: bytes,
        sign_pointer: SignPointer,
        check_no_later_move: CheckNoLaterMove,
    ) -> Release:
        """Copy ``source`` into a new release, and make it current.

        The bytes are hashed while they are copied, so only verified bytes are published. An
        existing release with the same attestation is made current again instead of being copied,
        but never one older than the current release: this is a rollback, see :meth:`point`. After a
        crash, the old or the new pointer is in force, and each names a complete release.

        Args:
            target: Table and partition.
            source: Snapshot.
            sha256: Expected hash of the snapshot.
            attestation: Bytes of the attestation.
            sign_pointer: Returns the signed pointer to a release.
            check_no_later_move: Called when no other process can intervene. Raises
                PublicationBlocked if another release or rollback was recorded meanwhile.

        Returns:
            The new release, or the existing one with this attestation.

        Raises:
            Damaged: If the bytes differ. The previous release stays current.
            StoreUnavailable: If the disk fails; the previous release stays current. If an object
                store fails, the release may be published.
        """
        try:
            return self._releases.add(
                target, source, sha256, attestation, sign_pointer, check_no_later_move
            )
        except OSError as error:
            outcome_known = self._releases.outcome_known
            if outcome_known:
                text = f"the release could not be written ({reason(error)}); nothing changed"
            else:
                text = f"the release was not finished ({reason(error)}), and may be published"
            raise StoreUnavailable.of(text, error, outcome_known=outcome_known) from None

    def check_ids(self, target: ReleaseTarget) -> None:
        """Raise Damaged if the pointer or a release folder has an id that is invalid or in the
        future.

        Args:
            target: Table and partition.
        """
        folder = target.below(self.root)
        with suppress(FileNotFoundError):
            pointed(*self._releases.pointer(target))
        for name in self._releases.ids(target):
            check_id(name, folder.joinpath("releases", name))

    def point(
        self,
        target: ReleaseTarget,
        name: str,
        sign_pointer: SignPointer,
        check_no_later_move: CheckNoLaterMove,
    ) -> None:
        """Make a release current, forwards or back.

        Args:
            target: Table and partition.
            name: Id of the release. Empty: there is no current release.
            sign_pointer: See :meth:`add`.
            check_no_later_move: See :meth:`add`.
        """
        try:
            self._releases.point(target, name, sign_pointer, check_no_later_move)
        except OSError as error:
            text = f"the pointer could not be written ({reason(error)})"
            outcome_known = self._releases.outcome_known
            raise StoreUnavailable.of(text, error, outcome_known=outcome_known) from None

    def pointer(self, target: ReleaseTarget, trusted: TrustedKeys) -> Pointer:
        """Return the verified pointer of a table and partition.

        Args:
            target: Table and partition.
            trusted: Trusted keys.

        Raises:
            InputError: If there is none.
            PublicationBlocked: If it cannot be read or verified.
        """
        folder = target.below(self.root)
        try:
            data, where = self._releases.pointer(target)
        except FileNotFoundError:
            raise InputError(f"there is no release in {self.root}", where=str(target)) from None
        except OSError as error:
            raise StoreUnavailable.of(
                f"the pointer cannot be read ({reason(error)})", error, folder
            ) from None
        return Pointer.opened(data, target, trusted, where)

    def watched(self, target: ReleaseTarget) -> str | None:
        """Return a digest of the pointer, which is not verified, to notice changes of it. None:
        there is no pointer.

        Args:
            target: Table and partition.
        """
        try:
            data, _ = self._releases.pointer(target)
        except FileNotFoundError:
            return None
        return hashlib.sha256(data).hexdigest()

    def current(self, target: ReleaseTarget, trusted: TrustedKeys) -> Release:
        """Return the release that the verified pointer names, or raise InputError if there is none.

        Args:
            target: Table and partition.
            trusted: Trusted keys.
        """
        return self.named(self.pointer(target, trusted), target)

    def named(self, pointer: Pointer, target: ReleaseTarget) -> Release:
        """Return the release that ``pointer`` names, or raise InputError if it names none."""
        if not pointer.release:
            text = f"the current release in {self.root} was withdrawn, and there is no new one yet"
            raise InputError(text, where=str(target))
        return self.release(target, pointer.release)

    def release(self, target: ReleaseTarget, name: str) -> Release:
        """Return the release with the id ``name``."""
        return Release(name, target.below(self.root).joinpath("releases", name))

    def remove(self, target: ReleaseTarget, releases: Iterable[Release]) -> None:
        """Remove the files of releases, which must not be current. Errors of a disk or store are
        not converted.
        """
        self._releases.remove(target, releases)

    def history(self, target: ReleaseTarget) -> list[Release]:
        """Return all releases of one table and partition, oldest first.

        Args:
            target: Table and partition.
        """
        names = self._releases.ids(target)
        return [self.release(target, name) for name in names if is_id(name)]

    def targets(self, table: str = "") -> Iterator[ReleaseTarget]:
        """Return each table and partition with a release or a pointer, in order.

        Args:
            table: Name of the only table. Empty: all tables.
        """
        parts = self._releases.parts(quoted(table) if table else "")
        for table_part, part in sorted(parts):
            yield ReleaseTarget.of_parts(table_part, part)


def read_published(
    root: str | Location,
    table: str,
    partition: str | None = None,
    *,
    trusted_keys: str | Path | None = None,
    max_age: dt.timedelta | None = None,
    seen: str | Path | None = None,
) -> pd.DataFrame:
    """Read the current release of a table, after verifying its attestation and bytes.

    Args:
        root: Release folder, or a URL such as s3://bucket/releases.
        table: Name of the table.
        partition: Key of the partition. None: the table has no partitions.
        trusted_keys: Folder of public keys (PEM), or one key file. Default:
            PRIVACY_ASSETS_TRUSTED_KEYS, or ``trusted_keys`` next to ``root``.
        max_age: Maximum time since the publisher last confirmed that this is the current release.
            Each run of a table confirms it, also if the source has not changed. A time more than 10
            minutes in the future is rejected. Without a maximum, a user who can write to ``root``
            can keep readers on an old release. None: any time.
        seen: JSON file in which this reader keeps the number of the last release that it read. A
            release with a lower number is rejected, because an older copy was restored. None: not
            kept.

    Returns:
        The synthetic rows, in the dtypes of the private table.

    Raises:
        InputError: If no release exists.
        PublicationBlocked: If pointer or attestation is not signed by a trusted key or belongs to
            another table or partition, the attestation names other bytes, or the release is too
            old.
        ConfigError: If there is no trusted key, or ``seen`` is not a file of this function.
    """
    root = location(root)
    target = ReleaseTarget(table, partition)
    if trusted_keys is None:
        trusted = default_trusted(root, reading=True)
    else:
        trusted = TrustedKeys((key_path(trusted_keys),))
    with for_readers():
        store = ReleaseStore(root)
        numbers = _read_numbers(seen)
        name = f"{root.absolute()}/{quoted(table)}/{target.part}"
        pointer = store.pointer(target, trusted)
        problem = pointer.problem(target, max_age, numbers.get(name, 0))
        if problem:
            raise OutOfDate(problem)
        release = store.named(pointer, target)
        attestation = release.opened(target, trusted)
        frame = read_hashed(
            release.table,
            attestation.sha256,
            attestation.dtypes,
            attestation.n_rows,
            release.root,
        )
    if seen is not None and numbers.get(name) != pointer.number:
        numbers[name] = pointer.number
        put_atomic(Path(seen), json.dumps(numbers, indent=2).encode())
    return frame


def _read_numbers(file: str | Path | None) -> dict[str, int]:
    """Return the numbers that :func:`read_published` stored, by release folder, table and
    partition.
    """
    if file is None or not Path(file).exists():
        return {}
    try:
        stored = json.loads(Path(file).read_bytes())
        return {str(name): int(number) for name, number in stored.items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        raise ConfigError(
            f"{file}: this is not a file of read_published. Fix: pass another path as seen."
        ) from None


def check_bytes(path: Location, sha256: str, below: Location | None = None) -> None:
    """Raise Damaged unless the file has this SHA-256.

    Args:
        path: Path of the file.
        sha256: Expected hash.
        below: See :meth:`.Storage.open`.

    Raises:
        StoreUnavailable: If the file cannot be read.
    """
    try:
        digest = hash_file(path, below)
    except OSError as error:
        raise StoreUnavailable(
            f"{path} cannot be read ({error.strerror})", path=str(path), errno=error.errno
        ) from None
    if digest != sha256:
        raise Damaged(f"{path} does not contain the bytes that were evaluated", path=str(path))
