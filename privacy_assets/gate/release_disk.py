"""Releases on disk: staged under a lock, moved into place by one rename, pointed to by one file."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from privacy_assets.files import locked, put_atomic, sync_folder
from privacy_assets.gate.release import (
    ATTESTATION_FILE,
    TABLE_FILE,
    Release,
    check_forward,
    check_judged,
    copy_hashed,
    hash_file,
    is_id,
    new_id,
    pointed,
)
from privacy_assets.objects import Location

POINTER = "latest.json"


def add(folder: Path, source: Location, sha256: str, attestation: bytes) -> Release:
    """Copy ``source`` into a new release of ``folder`` and point to it; OSError, and nothing changed, from the disk."""
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / ".lock"):
        shutil.rmtree(folder / "staging", ignore_errors=True)  # under the lock: whoever left it there is gone
        release = _same(folder, attestation, sha256)
        if release is not None:
            check_forward(_known(folder), release.id)
        else:
            release = _stage(folder, source, sha256, attestation)
        (folder / "releases" / release.id).chmod(0o555)
        _point(folder, {"release": release.id, "back_from": ""})
    return release


def point(folder: Path, release: Release) -> None:
    """Move the pointer by hand."""
    with locked(folder / ".lock"):
        _point(folder, pointed(_known(folder), release.id))


def pointer(folder: Path) -> Any:
    """What the pointer says, whatever it is; FileNotFoundError when there is none, ValueError when it is not JSON."""
    return json.loads((folder / POINTER).read_bytes())


def ids(folder: Path) -> list[str]:
    """Ids of all releases, in order."""
    releases = folder / "releases"
    return sorted(path.name for path in releases.iterdir() if is_id(path.name)) if releases.is_dir() else []


def parts(root: Path, table: str = "") -> list[tuple[str, str]]:
    """Every table and partition that has releases, as their folders are called; of one table when it is named."""
    found = root.joinpath(table).glob("*/releases") if table else root.glob("*/*/releases")
    return [(folder.parents[1].name, folder.parent.name) for folder in found]


def _same(folder: Path, attestation: bytes, sha256: str) -> Release | None:
    for release in (Release(name, folder / "releases" / name) for name in ids(folder)):
        if release.attestation.is_file() and release.attestation.read_bytes() == attestation:
            return release if hash_file(release.table) == sha256 else None
    return None


def _stage(folder: Path, source: Location, sha256: str, attestation: bytes) -> Release:
    """Copy to a private staging folder, hash the copy, and move it in one step to its place."""
    staging = folder / "staging" / os.urandom(6).hex()
    try:
        staging.parent.mkdir(mode=0o700)
        staging.mkdir(mode=0o700)
        check_judged(_copied(source, staging / TABLE_FILE), sha256)
        put_atomic(staging / ATTESTATION_FILE, attestation, mode=0o444)
        name = new_id(sha256)
        target = folder / "releases" / name
        target.parent.mkdir(exist_ok=True)
        staging.chmod(0o755)
        os.rename(staging, target)
        sync_folder(target.parent)
        return Release(name, target)
    finally:
        shutil.rmtree(folder / "staging", ignore_errors=True)


def _copied(source: Location, target: Path) -> str:
    with target.open("xb") as writer:
        digest = copy_hashed(source, writer)
        writer.flush()
        os.fchmod(writer.fileno(), 0o444)
        os.fsync(writer.fileno())
    return digest


def _known(folder: Path) -> Mapping[str, Any]:
    """What the pointer says; nothing when it is not there or cannot be read."""
    try:
        found = pointer(folder)
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _point(folder: Path, says: Mapping[str, str]) -> None:
    """Replace the pointer, under the lock; when the disk fails only after that, the old one is put back."""
    path, kept = folder / POINTER, folder / f"{POINTER}.kept"
    for draft in folder.glob("*.json.*"):
        draft.unlink()  # whoever left it there is gone
    old = path.read_bytes() if path.exists() else None
    try:
        if old is not None:
            put_atomic(kept, old, mode=0o644)  # before: to put it back must not need space
        put_atomic(path, json.dumps(says).encode(), mode=0o644)
    except OSError:
        if kept.exists():
            os.replace(kept, path)
        elif old is None:
            path.unlink(missing_ok=True)
        raise
    finally:
        with suppress(OSError):
            kept.unlink()
