"""A release, and the rules for the pointer to the current one, shared by disks and object
stores.
"""

from __future__ import annotations

import datetime as dt
import errno
import hashlib
import re
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, ClassVar, Protocol

from privacy_assets.errors import Damaged, PublicationBlocked, StoreUnavailable, Superseded
from privacy_assets.gate.attestation import Attestation, check_target
from privacy_assets.gate.envelope import (
    Payload,
    ReleaseTarget,
    SignedFile,
    sign_payload,
    unverified,
    verified_payload,
)
from privacy_assets.gate.keys import SigningKey, TrustedKeys
from privacy_assets.infra.objects import Location
from privacy_assets.infra.storage import local_path, storage_of

TABLE_FILE = "table.parquet"
ATTESTATION_FILE = "attestation.json"
LARGEST_ATTESTATION = 64 << 20  # maximum number of bytes read
LARGEST_POINTER = 4096
SignPointer = Callable[[str], bytes]  # id of a release -> signed pointer to it
CheckNoLaterMove = Callable[[], None]  # raises PublicationBlocked if a later move was recorded
_AHEAD = dt.timedelta(minutes=10)  # tolerated clock difference of a publisher
_ABSENT = {errno.ENOENT, errno.EISDIR, errno.EINVAL, errno.ELOOP}
_STAMP = "%Y%m%dT%H%M%S.%fZ"
_ID = re.compile(r"[0-9]{8}T[0-9]{6}\.[0-9]{6}Z-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class Release:
    """Published table: folder ``releases/<id>`` with the table and its attestation."""

    id: str
    folder: Location

    @property
    def table(self) -> Location:
        """Parquet file."""
        return self.folder / TABLE_FILE

    @property
    def attestation(self) -> Location:
        """File of the signed attestation under which the table was published."""
        return self.folder / ATTESTATION_FILE

    @property
    def root(self) -> Path | None:
        """Release folder, below which links are not followed. None in an object store."""
        folder = local_path(self.folder)
        return None if folder is None else folder.parents[3]

    @property
    def envelope(self) -> bytes:
        """Bytes of the attestation."""
        return storage_of(self.attestation).read(below=self.root, most=LARGEST_ATTESTATION)

    @property
    def time(self) -> dt.datetime:
        """Time of publication (UTC), from the id."""
        return _moment(self.id).replace(tzinfo=dt.UTC)

    def is_of(self, sha256: str, attestation: bytes) -> bool:
        """Return True if the release has this file hash and this attestation.

        Args:
            sha256: SHA-256 of the file.
            attestation: Bytes of the attestation.
        """
        try:
            return self.id.endswith(sha256[:12]) and self.envelope == attestation
        except OSError as error:
            if error.errno not in _ABSENT:
                raise
            return False

    def opened(self, target: ReleaseTarget, trusted: TrustedKeys) -> Attestation:
        """Return the verified attestation.

        Args:
            target: Table and partition to which it must belong.
            trusted: Trusted keys.

        Raises:
            PublicationBlocked: If it cannot be read, is not signed by a trusted key, belongs to
                another table or partition, or its verdict is not "pass".
        """
        try:
            signed_file = SignedFile("attestation", self.envelope)
        except OSError as error:
            text = f"the attestation of release {self.id} cannot be read ({error.strerror})"
            raise StoreUnavailable(text, path=str(self.attestation), errno=error.errno) from None
        try:
            attestation = Attestation.of(verified_payload(signed_file, trusted))
            check_target(attestation.target, target, "attestation")
        except PublicationBlocked as error:
            error.record = None  # no step makes the attestation of an existing release again
            raise
        if attestation.verdict != "pass":
            text = f"the attestation of release {self.id} has verdict {attestation.verdict!r}"
            raise Damaged(text, path=str(self.folder), remove=True)
        return attestation


class Releases(Protocol):
    """Releases below a release folder, on disk or in an object store.

    All methods raise OSError if the disk or store fails.

    Attributes:
        outcome_known: True if the pointer is unchanged after an OSError. False: it may have moved.
    """

    outcome_known: ClassVar[bool]

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

        Args:
            target: Table and partition.
            source: Snapshot.
            sha256: Expected hash of the snapshot.
            attestation: Bytes of the attestation.
            sign_pointer: Returns the signed pointer to a release.
            check_no_later_move: Raises PublicationBlocked if another release or rollback was
                recorded meanwhile.

        Returns:
            The new release, or the existing one with this attestation.

        Raises:
            PublicationBlocked: If the bytes differ, an id is invalid, or a later release is
                current.
        """

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

    def remove(self, target: ReleaseTarget, old: Iterable[Release]) -> None:
        """Remove releases. The pointer is not changed.

        Args:
            target: Table and partition.
            old: Releases to remove.
        """

    def check(self) -> None:
        """Check who may write to the release folder. Raise ConfigError if every user may."""

    def pointer(self, target: ReleaseTarget) -> tuple[bytes, Location]:
        """Return content and path of the pointer, or raise FileNotFoundError.

        Args:
            target: Table and partition.
        """

    def ids(self, target: ReleaseTarget) -> list[str]:
        """Return the sorted names of all releases that have the form of an id.

        Args:
            target: Table and partition.
        """

    def parts(self, table: str = "") -> list[tuple[str, str]]:
        """Return the names in paths of each table and partition with a release.

        Args:
            table: Name in paths of the only table. Empty: all tables.
        """


def has_form(name: str) -> bool:
    """Return True if ``name`` has the form of an id, even if its time does not exist."""
    return _ID.fullmatch(name) is not None


def is_id(name: str) -> bool:
    """Return True if ``name`` is a valid id of a release."""
    try:
        return has_form(name) and bool(_moment(name))
    except ValueError:
        return False


def check_id(name: str, where: Location) -> None:
    """Check that ``name`` is an id at most 10 minutes in the future.

    Args:
        name: Id to check.
        where: Folder that has the id as its name, or file that contains it.

    Raises:
        Damaged: If it is not.
    """
    if not is_id(name):
        raise _not_an_id(where)
    if is_ahead(_moment(name).replace(tzinfo=dt.UTC)):
        text = (
            f"{where}: the id {name} is more than 10 minutes in the future, or the clock of this"
            " machine is behind"
        )
        raise Damaged(text, path=str(where), remove=True)


def _not_an_id(where: Location) -> Damaged:
    return Damaged(f"{where}: this is not the id of a release", path=str(where), remove=True)


def is_ahead(time: dt.datetime) -> bool:
    """Return True if ``time`` is more than 10 minutes in the future: the clock of a publisher was
    ahead.
    """
    return time > dt.datetime.now(dt.UTC) + _AHEAD


@dataclass(frozen=True, slots=True)
class Pointer:
    """Signed pointer to the current release of a table and partition.

    Attributes:
        release: Id of the release. Empty: the current release was withdrawn, and there is none now.
        number: Number of the release, rollback or withdrawal, from 1.
        at: Time (UTC) at which the publisher last confirmed the release, with the gate's checks at
            that time.
    """

    release: str
    number: int
    at: dt.datetime

    def signed(self, target: ReleaseTarget, key: SigningKey) -> bytes:
        """Return the signed bytes. The token makes the bytes of two writers differ.

        Args:
            target: Table and partition.
            key: Signing key.
        """
        body = {
            "release": self.release,
            "number": self.number,
            "at": self.at.isoformat(timespec="seconds"),
            "token": secrets.token_hex(8),
        }
        return sign_payload(Payload("pointer", target, "", body), key).data

    @classmethod
    def opened(
        cls, data: bytes, target: ReleaseTarget, trusted: TrustedKeys, where: Location
    ) -> Pointer:
        """Return a verified pointer.

        Args:
            data: Signed bytes.
            target: Table and partition to which it must belong.
            trusted: Trusted keys.
            where: Path of the pointer, for messages.

        Raises:
            NotTrusted: If a trusted key did not sign it.
            WrongTarget: If it belongs to another table or partition.
            Damaged: If its release is not an id, or more than 10 minutes in the future.
        """
        payload = verified_payload(SignedFile("pointer", data), trusted)
        check_target(payload.target, target, "pointer")
        body = payload.body
        pointer = cls(body["release"], body["number"], dt.datetime.fromisoformat(body["at"]))
        if pointer.release:
            check_id(pointer.release, where)
        return pointer

    def problem(self, target: ReleaseTarget, max_age: dt.timedelta | None, least: int = 0) -> str:
        """Return why a reader should not use the release, or "".

        Args:
            target: Table and partition.
            max_age: Maximum time since the publisher confirmed the release, at most 10 minutes in
                the future. None: any.
            least: Smallest acceptable number: a lower one than was read before belongs to an older
                copy.
        """
        if self.number < least:
            return (
                f"the pointer of {target} is an older copy: its number is {self.number}, and"
                f" {least} was read before"
            )
        if max_age is None:
            return ""
        confirmed = f"the release of {target} was last confirmed on {self.at:%Y-%m-%d %H:%M} UTC"
        if is_ahead(self.at):
            return (
                f"{confirmed}, which is more than 10 minutes in the future, or the clock of this"
                " machine is behind"
            )
        if dt.datetime.now(dt.UTC) - self.at > max_age:
            return f"{confirmed}, which is more than {max_age} ago"
        return ""


def pointed(data: bytes, where: Location) -> str:
    """Return the id that a pointer names, without verifying its signature: an id only delays what
    follows it.

    Args:
        data: Bytes of the pointer.
        where: Path of the pointer, for messages.

    Returns:
        The id. Empty: the current release was withdrawn.

    Raises:
        Damaged: If it names none, or one that is more than 10 minutes in the future.
    """
    payload = unverified(SignedFile("pointer", data))
    name = None
    if payload is not None:
        name = payload.body.get("release")
    if not isinstance(name, str):
        raise _not_an_id(where)
    if name:
        check_id(name, where)
    return name


def new_id(sha256: str, latest: str = "") -> str:
    """Return an id with time and hash that sorts after ``latest``, even if the clock is behind.

    Args:
        sha256: SHA-256 of the table.
        latest: Latest id. Empty: there is none.
    """
    time = _now()
    if latest:
        time = max(time, _moment(latest) + dt.timedelta(microseconds=1))
    return f"{time.strftime(_STAMP)}-{sha256[:12]}"


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC).replace(tzinfo=None)


def _moment(name: str) -> dt.datetime:
    return dt.datetime.strptime(name[:23], _STAMP)


def check_forward(current: str, name: str) -> None:
    """Reject publishing a replaced release again: an old attestation must not decide which release
    is current.

    Args:
        current: Id of the current release. Empty: there is none.
        name: Id of the release to publish.
    """
    if name < current:
        raise replaced(name)


def replaced(name: str) -> Superseded:
    """Return the error of a table that was published as release ``name`` and is no longer
    current. "": it is gone.
    """
    release = name or "a deleted release"
    text = (
        f"this table was published before, as {release}, and is no longer current: it was"
        " replaced, rolled back or withdrawn"
    )
    return Superseded(text, release=name)


def copy_hashed(source: Location, writer: BinaryIO, sha256: str) -> None:
    """Copy a snapshot in one pass without following links, and reject it if its hash differs from
    ``sha256``.

    Args:
        source: Snapshot.
        writer: Open file of the copy.
        sha256: Expected hash of the snapshot.

    Raises:
        StoreUnavailable: If the snapshot cannot be read.
        Damaged: If the bytes differ. They were copied already.
    """
    where = str(source)
    try:
        reader = storage_of(source).open(below=source.parent)
    except OSError as error:
        text = f"the snapshot cannot be read ({error.strerror})"
        raise StoreUnavailable(text, path=where, errno=error.errno, record="snapshot") from None
    digest = hashlib.sha256()
    with reader:
        while block := reader.read(1 << 20):
            digest.update(block)
            writer.write(block)
    if digest.hexdigest() != sha256:
        text = "the synthetic table changed after it was evaluated"
        raise Damaged(text, path=where, record="snapshot")
