"""Releases on disk: staged under a lock, moved into place by one rename, pointed to by one file."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from privacy_assets.gate.release import (
    ATTESTATION_FILE,
    TABLE_FILE,
    Release,
    check_forward,
    copy_judged,
    hash_file,
    is_id,
    new_id,
)
from privacy_assets.storage.files import locked, make_folder, put_atomic, read_regular, sync_folder
from privacy_assets.storage.objects import Location

POINTER = "latest.json"
_LOGGER = logging.getLogger(__name__)


def add(folder: Path, source: Location, sha256: str, attestation: bytes, still: Callable[[], None]) -> Release:
    """Copy ``source`` into a new release of ``folder`` and point to it; OSError, and nothing changed, from the disk.

    ``still`` refuses, under the lock, what was overtaken by another release or rollback.
    """
    make_folder(folder, 0o755)
    with locked(folder / ".lock"):
        still()
        if (folder / "staging").is_dir():  # under the lock: whoever left it there is gone
            shutil.rmtree(folder / "staging", ignore_errors=True)
            _LOGGER.warning("%s: removed what a killed process left: staging", folder)
        release = _same(folder, attestation, sha256)
        if release is not None:
            check_forward(_known(folder), release.id)
        else:
            release = _stage(folder, source, sha256, attestation)
        (folder / "releases" / release.id).chmod(0o555)
        _point(folder, release)
    return release


def point(folder: Path, release: Release, still: Callable[[], None]) -> None:
    """Move the pointer by hand."""
    with locked(folder / ".lock"):
        still()
        _point(folder, release)


def pointer(folder: Path) -> Any:
    """What the pointer says, whatever it is; FileNotFoundError when there is none, ValueError when it is not JSON."""
    return json.loads(read_regular(folder / POINTER))


def ids(folder: Path) -> list[str]:
    """Ids of all releases, in order; links are none."""
    releases = folder / "releases"
    found = releases.iterdir() if releases.is_dir() else ()
    return sorted(path.name for path in found if is_id(path.name) and not path.is_symlink())


def parts(root: Path, table: str = "") -> list[tuple[str, str]]:
    """Every table and partition that has releases, as their folders are called; of one table when it is named."""
    found = root.joinpath(table).glob("*/releases") if table else root.glob("*/*/releases")
    return [(folder.parents[1].name, folder.parent.name) for folder in found if not linked(folder.parent)]


def linked(folder: Path) -> Path | None:
    """The link among the folders of one place, if any: who follows it writes, and tidies up, somewhere else."""
    return next((one for one in (folder.parent, folder, folder / "releases") if one.is_symlink()), None)


def _same(folder: Path, attestation: bytes, sha256: str) -> Release | None:
    for release in (Release(name, folder / "releases" / name) for name in ids(folder)):
        if release.is_of(sha256, attestation):
            return release if hash_file(release.table) == sha256 else None
    return None


def _stage(folder: Path, source: Location, sha256: str, attestation: bytes) -> Release:
    """Copy to a private staging folder, hash the copy, and move it in one step to its place."""
    staging = folder / "staging" / os.urandom(6).hex()
    try:
        staging.parent.mkdir(mode=0o700)
        staging.mkdir(mode=0o700)
        _copy(source, staging / TABLE_FILE, sha256)
        put_atomic(staging / ATTESTATION_FILE, attestation, mode=0o444)
        current = str(_known(folder).get("release", ""))
        name = new_id(sha256, max([*ids(folder), *([current] if is_id(current) else [])], default=""))
        target = make_folder(folder / "releases", 0o755) / name
        staging.chmod(0o755)
        os.rename(staging, target)
        sync_folder(target.parent)
        return Release(name, target)
    finally:
        shutil.rmtree(folder / "staging", ignore_errors=True)


def _copy(source: Location, target: Path, sha256: str) -> None:
    with target.open("xb") as writer:
        copy_judged(source, writer, sha256)
        writer.flush()
        os.fchmod(writer.fileno(), 0o444)
        os.fsync(writer.fileno())


def _known(folder: Path) -> Mapping[str, Any]:
    """What the pointer says; nothing when it is not there or cannot be read."""
    try:
        found = pointer(folder)
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _point(folder: Path, release: Release) -> None:
    """Replace the pointer, under the lock; when the disk fails only after that, the old one is put back."""
    path, kept = folder / POINTER, folder / f"{POINTER}.kept"
    kept.unlink(missing_ok=True)  # whoever left it there is gone
    with suppress(FileNotFoundError):
        os.link(path, kept, follow_symlinks=False)  # before: to put it back must not need space
    try:
        put_atomic(path, json.dumps({"release": release.id}).encode(), mode=0o644)
    except OSError:
        if kept.exists():
            os.replace(kept, path)
        else:
            path.unlink(missing_ok=True)
        raise
    finally:
        with suppress(OSError):
            kept.unlink()
