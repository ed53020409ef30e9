"""Releases in an object store, which has neither locks nor renames: what happens once is one conditional put.

    <table>/_all/claims/<hash of the attestation>    which release this attestation makes: one, whoever asks
    <table>/_all/releases/<id>/table.parquet         then its bytes, the same for everybody who puts them
    <table>/_all/releases/<id>/attestation.json      with this the release is whole; before, nobody lists it
    <table>/_all/pointers/000000000001               last: which one readers get; the highest number says it

Whoever dies on the way leaves the old pointer, and the next one with the same attestation goes on where it ended.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

from privacy_assets.errors import PublicationRefused
from privacy_assets.gate.release import (
    ATTESTATION_FILE,
    TABLE_FILE,
    Release,
    UnfinishedRelease,
    check_forward,
    copy_judged,
    hash_file,
    is_id,
    new_id,
)
from privacy_assets.storage.objects import Location, ObjectPath

_NUMBER = re.compile(r"[0-9]{12}")
_LAST = 10**12 - 1
_TRIES = 100  # times that others may be quicker before it is given up


def add(folder: ObjectPath, source: Location, sha256: str, attestation: bytes, still: Callable[[], None]) -> Release:
    """Put ``source`` into a new release of ``folder`` and point to it; OSError from the store.

    The bytes are hashed while they are fetched, into a file of this machine, and put from there. ``still`` refuses what
    was overtaken by another release or rollback; it is asked before each try to move the pointer.
    """
    name = _claimed(folder, sha256, attestation)
    place = folder.joinpath("releases", name)
    table, envelope = place / TABLE_FILE, place / ATTESTATION_FILE
    whole = envelope.is_file()

    def forward(before: Mapping[str, Any]) -> None:
        still()
        if not whole and name < str(before.get("release", "")):
            raise PublicationRefused("a later release is out already; materialise scores and attestation again.")
        check_forward(before, name)

    def write(stream: BinaryIO) -> None:
        copy_judged(source, stream, sha256)  # nothing is put when this refuses

    forward(_latest(folder)[1])  # before anything is put
    if not (whole and table.is_file() and hash_file(table) == sha256):
        table.put(write)
    if not envelope.create(attestation):
        raise PublicationRefused(f"another attestation lies at {envelope}; remove that release.")
    try:
        _move(folder, name, forward)
    except PublicationRefused as refused:  # its files are there already, and whatever is out counts as released
        raise UnfinishedRelease(str(refused)) from None
    return Release(name, place)


def point(folder: ObjectPath, release: Release, still: Callable[[], None]) -> None:
    """Move the pointer by hand."""
    _move(folder, release.id, lambda _: still())


def pointer(folder: ObjectPath) -> Any:
    """What the pointer says, whatever it is; FileNotFoundError when there is none, ValueError when it is not JSON."""
    number = max(_numbers(folder), default=None)
    if number is None:
        raise FileNotFoundError
    return json.loads(_pointer(folder, number).read_bytes())


def ids(folder: ObjectPath) -> list[str]:
    """Ids of all releases that are whole, in order."""
    parts = [name.split("/") for name in (folder / "releases").below()]
    return sorted(part[0] for part in parts if part[1:] == [ATTESTATION_FILE] and is_id(part[0]))


def parts(root: ObjectPath, table: str = "") -> list[tuple[str, str]]:
    """Every table and partition that has releases, as their parts of the URL are called; of one table when named."""
    found = [(one, part) for one in ([table] if table else root.names()) for part in (root / one).names()]
    return [(one, part) for one, part in found if root.joinpath(one, part, "releases").is_dir()]


def _claimed(folder: ObjectPath, sha256: str, attestation: bytes) -> str:
    """The id of the one release that this attestation makes, also when two ask for it at once."""
    claim = folder.joinpath("claims", hashlib.sha256(attestation).hexdigest())
    if not claim.is_file():
        claim.create((_made(folder, sha256, attestation) or new_id(sha256, max(ids(folder), default=""))).encode())
    name = claim.read_bytes().decode(errors="replace")
    if not is_id(name) or not name.endswith(sha256[:12]):
        raise PublicationRefused(f"{claim} is damaged; remove it.")
    return name


def _made(folder: ObjectPath, sha256: str, attestation: bytes) -> str:
    """The release that this attestation made before, should its claim be gone: it must not come back as a new one."""
    for name in ids(folder):
        if Release(name, folder.joinpath("releases", name)).is_of(sha256, attestation):
            return name
    return ""


def _move(folder: ObjectPath, name: str, may: Callable[[Mapping[str, Any]], None]) -> None:
    """Put the next pointer, unless ``may`` refuses it after the last one, also when others are at it."""
    for _ in range(_TRIES):
        number, before = _latest(folder)
        if number == _LAST:
            raise PublicationRefused(f"{_pointer(folder, number)}: nobody wrote so many pointers; remove it.")
        may(before)
        if _pointer(folder, number + 1).create(json.dumps({"release": name, "token": secrets.token_hex(8)}).encode()):
            return
    raise PublicationRefused("too many others move the pointer at the same time; publish again.")


def _latest(folder: ObjectPath) -> tuple[int, Mapping[str, Any]]:
    """The highest number, 0 for none, and what the last pointer says that can be read."""
    numbers = sorted(_numbers(folder), reverse=True)
    for number in numbers:
        try:
            found = json.loads(_pointer(folder, number).read_bytes())
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            return numbers[0], found
    return max(numbers, default=0), {}


def _numbers(folder: ObjectPath) -> list[int]:
    return [int(name) for name in (folder / "pointers").names() if _NUMBER.fullmatch(name)]


def _pointer(folder: ObjectPath, number: int) -> ObjectPath:
    return folder.joinpath("pointers", f"{number:012d}")
