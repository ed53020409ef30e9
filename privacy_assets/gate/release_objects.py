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
    Release,
    check_forward,
    check_judged,
    copy_hashed,
    hash_file,
    is_id,
    new_id,
    pointed,
)
from privacy_assets.objects import Location, ObjectPath, check_prepared

_NUMBER = re.compile(r"\d{12}")
_TRIES = 100  # times that others may be quicker before it is given up


def add(folder: ObjectPath, source: Location, sha256: str, attestation: bytes) -> Release:
    """Put ``source`` into a new release of ``folder`` and point to it; OSError from the store.

    The bytes are hashed while they are fetched, into a file of this machine, and put from there.
    """
    check_prepared(folder.parent.parent)
    release = _claimed(folder, sha256, attestation)

    def forward(before: Mapping[str, Any]) -> Mapping[str, Any]:
        check_forward(before, release.id)
        return {"release": release.id, "back_from": ""}

    forward(_latest(folder)[1])  # before anything is put
    if not (release.attestation.is_file() and release.table.is_file() and hash_file(release.table) == sha256):
        _put_judged(source, sha256, release)
    if not folder.joinpath("releases", release.id, ATTESTATION_FILE).create(attestation):
        raise PublicationRefused(f"another attestation lies at {release.attestation}; remove that release.")
    _move(folder, forward)
    return release


def point(folder: ObjectPath, release: Release) -> None:
    """Move the pointer by hand."""
    check_prepared(folder.parent.parent)
    _move(folder, lambda before: pointed(before, release.id))


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


def parts(root: ObjectPath) -> list[tuple[str, str]]:
    """Every table and partition that has releases, as their parts of the URL are called."""
    found = [(table, part) for table in root.names() for part in (root / table).names()]
    return [(table, part) for table, part in found if root.joinpath(table, part, "releases").is_dir()]


def _claimed(folder: ObjectPath, sha256: str, attestation: bytes) -> Release:
    """The one release that this attestation makes, also when two ask for it at once."""
    claim = folder.joinpath("claims", hashlib.sha256(attestation).hexdigest())
    if not claim.is_file():
        claim.create(new_id(sha256, max(ids(folder), default="")).encode())
    name = claim.read_bytes().decode(errors="replace")
    if not is_id(name) or not name.endswith(sha256[:12]):
        raise PublicationRefused(f"{claim} is damaged; remove it.")
    return Release(name, folder.joinpath("releases", name))


def _put_judged(source: Location, sha256: str, release: Release) -> None:
    def write(stream: BinaryIO) -> None:
        check_judged(copy_hashed(source, stream), sha256)  # nothing is put when this refuses

    if isinstance(release.table, ObjectPath):
        release.table.put(write)


def _move(folder: ObjectPath, says: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> None:
    """Put the next pointer, which ``says`` makes from the last one, also when others are at it."""
    for _ in range(_TRIES):
        number, before = _latest(folder)
        now = says(before)
        if now == {name: before.get(name) for name in now}:
            return
        if _pointer(folder, number + 1).create(json.dumps({**now, "token": secrets.token_hex(8)}).encode()):
            return
    raise PublicationRefused("too many others move the pointer at the same time; publish again.")


def _latest(folder: ObjectPath) -> tuple[int, Mapping[str, Any]]:
    """The highest number, 0 for none, and what stands there; nothing when it cannot be read."""
    number = max(_numbers(folder), default=0)
    try:
        found = json.loads(_pointer(folder, number).read_bytes()) if number else {}
    except (ValueError, RecursionError):
        found = {}
    return number, found if isinstance(found, dict) else {}


def _numbers(folder: ObjectPath) -> list[int]:
    return [int(name) for name in (folder / "pointers").names() if _NUMBER.fullmatch(name)]


def _pointer(folder: ObjectPath, number: int) -> ObjectPath:
    return folder.joinpath("pointers", f"{number:012d}")
