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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import BinaryIO, ClassVar

from privacy_assets.errors import Damaged, PublicationBlocked, StoreUnavailable, Superseded
from privacy_assets.gate.envelope import ReleaseTarget
from privacy_assets.gate.release import (
    ATTESTATION_FILE,
    LARGEST_POINTER,
    TABLE_FILE,
    CheckNoLaterMove,
    Release,
    SignPointer,
    check_forward,
    check_id,
    copy_hashed,
    has_form,
    is_id,
    new_id,
    pointed,
)
from privacy_assets.infra.objects import Location, ObjectPath
from privacy_assets.infra.storage import hash_file

_NUMBER = re.compile(r"[0-9]{12}")
_MAX_NUMBER = 10**12 - 1
_N_TRIES = 100  # if other processes take the next number


@dataclass(frozen=True, slots=True)
class ObjectReleases:
    """Releases in an object store.

    Attributes:
        root: Prefix of all releases.
    """

    root: ObjectPath
    outcome_known: ClassVar[bool] = False

    def add(
        self,
        target: ReleaseTarget,
        source: Location,
        sha256: str,
        attestation: bytes,
        sign_pointer: SignPointer,
        check_no_later_move: CheckNoLaterMove,
    ) -> Release:
        """See :meth:`.Releases.add`.

        The bytes are fetched into a local file while they are hashed, and uploaded from there.
        ``check_no_later_move`` is called before each attempt to move the pointer. After the upload,
        the ``outcome_known`` of an error is False, because readers may see the release then.
        """
        folder = target.below(self.root)
        name = _claimed(folder, sha256, attestation)
        location = folder.joinpath("releases", name)
        table = location / TABLE_FILE
        envelope = location / ATTESTATION_FILE
        is_complete = envelope.is_file()

        def check_move() -> None:
            check_no_later_move()
            current = _current(folder)
            if not is_complete and name < current:
                raise Superseded("a later release is already published", record="result")
            check_forward(current, name)

        def copy(stream: BinaryIO) -> None:
            copy_hashed(source, stream, sha256)  # the upload requires the correct hash

        check_move()  # before anything is uploaded
        is_whole = is_complete and table.is_file() and hash_file(table) == sha256
        if not is_whole:
            table.put(copy)
        if not envelope.create(attestation):
            raise Damaged(f"{envelope} is another attestation", path=str(location), remove=True)
        try:
            _move(folder, sign_pointer(name), check_move)
        except PublicationBlocked as blocked_by:
            # its files are readable already, and count as released
            blocked_by.outcome_known = False
            raise
        return Release(name, location)

    def point(
        self,
        target: ReleaseTarget,
        name: str,
        sign_pointer: SignPointer,
        check_no_later_move: CheckNoLaterMove,
    ) -> None:
        """See :meth:`.Releases.point`."""
        _move(target.below(self.root), sign_pointer(name), check_no_later_move)

    def remove(self, target: ReleaseTarget, old: Iterable[Release]) -> None:
        """See :meth:`.Releases.remove`. Without its attestation, a release is no longer listed."""
        for release in old:
            release.attestation.unlink(missing_ok=True)
            release.table.unlink(missing_ok=True)

    def check(self) -> None:
        """Do nothing."""

    def pointer(self, target: ReleaseTarget) -> tuple[bytes, ObjectPath]:
        """See :meth:`.Releases.pointer`. It is the one with the highest number."""
        return _last_pointer(target.below(self.root))

    def ids(self, target: ReleaseTarget) -> list[str]:
        """See :meth:`.Releases.ids`. Incomplete releases are left out."""
        return _ids(target.below(self.root))

    def parts(self, table: str = "") -> list[tuple[str, str]]:
        """See :meth:`.Releases.parts`."""
        tables: Sequence[str] = [table] if table else self.root.names()
        below = list[tuple[str, str]]()
        for table_part in tables:
            for part in (self.root / table_part).names():
                below.append((table_part, part))
        with_release = []
        for names in below:
            has_pointer = bool(self.root.joinpath(*names, "pointers").names())
            if has_pointer or _has_releases(self.root, *names):
                with_release.append(names)
        return with_release


def _last_pointer(folder: ObjectPath) -> tuple[bytes, ObjectPath]:
    number = _latest(folder)
    if not number:
        raise FileNotFoundError
    path = _pointer(folder, number)
    return path.read_bytes(LARGEST_POINTER), path


def _ids(folder: ObjectPath) -> list[str]:
    complete = []
    for path in (folder / "releases").below():
        name, *rest = path.split("/")
        if rest == [ATTESTATION_FILE] and has_form(name):
            complete.append(name)
    return sorted(complete)


def _has_releases(root: ObjectPath, *below: str) -> bool:
    return any(map(has_form, root.joinpath(*below, "releases").names()))


def _claimed(folder: ObjectPath, sha256: str, attestation: bytes) -> str:
    """Return the id of the only release of this attestation, also if two processes claim it
    concurrently.
    """
    claim = folder.joinpath("claims", hashlib.sha256(attestation).hexdigest())
    if not claim.is_file():
        name = _unclaimed(folder, sha256, attestation)
        if not name:
            name = new_id(sha256, max(_ids(folder), default=""))
        claim.create(name.encode())
    name = claim.read_bytes(LARGEST_POINTER).decode(errors="replace")
    if not is_id(name) or not name.endswith(sha256[:12]):
        raise Damaged(f"{claim} is damaged", path=str(claim), remove=True)
    check_id(name, claim)
    return name


def _unclaimed(folder: ObjectPath, sha256: str, attestation: bytes) -> str:
    """Return the existing release of this attestation if its claim is missing, so that it gets no
    second id.
    """
    for name in _ids(folder):
        if Release(name, folder.joinpath("releases", name)).is_of(sha256, attestation):
            return name
    return ""


def _move(folder: ObjectPath, data: bytes, check_move: Callable[[], None]) -> None:
    """Write the next pointer unless ``check_move`` raises, and retry if another process takes the
    number.
    """
    for _ in range(_N_TRIES):
        number = _latest(folder)
        if number == _MAX_NUMBER:
            last = _pointer(folder, number)
            raise Damaged(f"{last}: implausible pointer number", path=str(last), remove=True)
        check_move()
        if _pointer(folder, number + 1).create(data):
            return
    raise StoreUnavailable(f"{folder}: too many processes move the pointer at the same time")


def _current(folder: ObjectPath) -> str:
    """Return the release id stored in the last pointer, or "" if there is none.

    Raises:
        Damaged: If its content is not a valid id.
    """
    try:
        return pointed(*_last_pointer(folder))
    except FileNotFoundError:
        return ""


def _latest(folder: ObjectPath) -> int:
    """Return the highest pointer number, or 0."""
    names = filter(_NUMBER.fullmatch, (folder / "pointers").names())
    return max(map(int, names), default=0)


def _pointer(folder: ObjectPath, number: int) -> ObjectPath:
    return folder.joinpath("pointers", f"{number:012d}")
