"""Releases in an object store, which has neither locks nor renames. Conditional puts decide what
happens once.

    <table>/_all/claims/<hash of the attestation>  id of the only release of this attestation
    <table>/_all/releases/<id>/table.parquet       its bytes, identical for all writers
    <table>/_all/releases/<id>/attestation.json    written last: without it, a release is not listed
    <table>/_all/pointers/000000000001             signed pointer; the highest number counts

If a publisher is interrupted, the old pointer stays, and the next call with the same attestation
resumes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from typing import BinaryIO

from privacy_assets.errors import Damaged, PublicationRefused, StoreUnavailable, Superseded
from privacy_assets.gate.release import (
    ATTESTATION_FILE,
    LARGEST_POINTER,
    TABLE_FILE,
    Release,
    Sealing,
    check_forward,
    check_id,
    copy_judged,
    has_form,
    hash_file,
    is_id,
    new_id,
    pointed,
)
from privacy_assets.infra.objects import Location, ObjectPath

_NUMBER = re.compile(r"[0-9]{12}")
_LAST = 10**12 - 1
_TRIES = 100  # maximum number of attempts if other processes take the next number


def add(
    folder: ObjectPath,
    source: Location,
    sha256: str,
    attestation: bytes,
    pointer: Sealing,
    still: Callable[[], None],
) -> Release:
    """Write ``source`` into a new release of ``folder``, and make it current.

    The bytes are fetched into a local file while they are hashed, and uploaded from there.

    Args:
        folder: Prefix of the table and partition.
        source: Snapshot.
        sha256: Expected hash of the snapshot.
        attestation: Bytes of the attestation.
        pointer: Returns the signed pointer to a release.
        still: Raises PublicationRefused if another release or rollback was recorded meanwhile.
            Called before each attempt to move the pointer.

    Raises:
        PublicationRefused: If the bytes differ, an id is invalid, or a later release is current.
            Its ``outcome_known`` is False after the upload, because readers may see the release
            then.
        OSError: If the store fails.
    """
    name = _claimed(folder, sha256, attestation)
    place = folder.joinpath("releases", name)
    table, envelope = place / TABLE_FILE, place / ATTESTATION_FILE
    whole = envelope.is_file()

    def forward() -> None:
        still()
        before = _current(folder)
        if not whole and name < before:
            raise Superseded("a later release is already published", redo=("score", "attest"))
        check_forward(before, name)

    def write(stream: BinaryIO) -> None:
        copy_judged(source, stream, sha256)  # the upload requires the correct hash

    forward()  # before anything is uploaded
    if not (whole and table.is_file() and hash_file(table) == sha256):
        table.put(write)
    if not envelope.create(attestation):
        raise Damaged(f"{envelope} is another attestation", path=str(place), remove=True)
    try:
        _move(folder, pointer(name), forward)
    except PublicationRefused as refused:
        refused.outcome_known = False  # its files are readable already, and count as released
        raise
    return Release(name, place)


def point(folder: ObjectPath, name: str, pointer: Sealing, still: Callable[[], None]) -> None:
    """Make the release ``name`` current, forwards or back. "": there is no current release."""
    _move(folder, pointer(name), still)


def remove(folder: ObjectPath, old: Iterable[Release]) -> None:
    """Remove releases. Without its attestation, a release is no longer listed. The pointer is not
    changed.
    """
    for release in old:
        release.attestation.unlink(missing_ok=True)
        release.table.unlink(missing_ok=True)


def pointer(folder: ObjectPath) -> tuple[bytes, ObjectPath]:
    """Return content and URL of the pointer with the highest number, or raise FileNotFoundError."""
    number = _latest(folder)
    if not number:
        raise FileNotFoundError
    path = _pointer(folder, number)
    return path.read_bytes(LARGEST_POINTER), path


def ids(folder: ObjectPath) -> list[str]:
    """Return the sorted names of all complete releases that have the form of an id."""
    parts = [name.split("/") for name in (folder / "releases").below()]
    return sorted(part[0] for part in parts if part[1:] == [ATTESTATION_FILE] and has_form(part[0]))


def parts(root: ObjectPath, table: str = "") -> list[tuple[str, str]]:
    """Return the URL parts of each table and partition with a release, or only those of
    ``table``.
    """
    found = [
        (one, part) for one in ([table] if table else root.names()) for part in (root / one).names()
    ]
    return [
        (one, part)
        for one, part in found
        if root.joinpath(one, part, "pointers").names() or _has_releases(root, one, part)
    ]


def _has_releases(root: ObjectPath, *below: str) -> bool:
    return any(map(has_form, root.joinpath(*below, "releases").names()))


def _claimed(folder: ObjectPath, sha256: str, attestation: bytes) -> str:
    """Return the id of the only release of this attestation, also if two processes claim it
    concurrently.
    """
    claim = folder.joinpath("claims", hashlib.sha256(attestation).hexdigest())
    if not claim.is_file():
        claim.create(
            (
                _made(folder, sha256, attestation) or new_id(sha256, max(ids(folder), default=""))
            ).encode()
        )
    name = claim.read_bytes(LARGEST_POINTER).decode(errors="replace")
    if not is_id(name) or not name.endswith(sha256[:12]):
        raise Damaged(f"{claim} is damaged", path=str(claim), remove=True)
    check_id(name, claim)
    return name


def _made(folder: ObjectPath, sha256: str, attestation: bytes) -> str:
    """Return the existing release of this attestation if its claim is missing, so that it gets no
    second id.
    """
    for name in ids(folder):
        if Release(name, folder.joinpath("releases", name)).is_of(sha256, attestation):
            return name
    return ""


def _move(folder: ObjectPath, data: bytes, may: Callable[[], None]) -> None:
    """Write the next pointer unless ``may`` raises, and retry if another process takes the
    number.
    """
    for _ in range(_TRIES):
        number = _latest(folder)
        if number == _LAST:
            last = _pointer(folder, number)
            raise Damaged(f"{last}: implausible pointer number", path=str(last), remove=True)
        may()
        if _pointer(folder, number + 1).create(data):
            return
    raise StoreUnavailable(f"{folder}: too many processes move the pointer at the same time")


def _current(folder: ObjectPath) -> str:
    """Return the release id stored in the last pointer, or "" if there is none.

    Raises:
        Damaged: If its content is not a valid id.
    """
    try:
        return pointed(*pointer(folder))
    except FileNotFoundError:
        return ""


def _latest(folder: ObjectPath) -> int:
    """Return the highest pointer number, or 0."""
    return max(
        (int(name) for name in (folder / "pointers").names() if _NUMBER.fullmatch(name)), default=0
    )


def _pointer(folder: ObjectPath, number: int) -> ObjectPath:
    return folder.joinpath("pointers", f"{number:012d}")
