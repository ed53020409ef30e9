"""Releases on disk: written under a lock, moved into position by one rename, selected by a pointer
file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from privacy_assets.gate.release import (
    ATTESTATION_FILE,
    LARGEST_POINTER,
    TABLE_FILE,
    Release,
    Sealing,
    check_forward,
    copy_judged,
    has_form,
    hash_file,
    new_id,
    pointed,
)
from privacy_assets.infra import folders
from privacy_assets.infra.files import make_folder, read_regular
from privacy_assets.infra.folders import Folder
from privacy_assets.infra.objects import Location

POINTER, KEPT = "latest.json", "latest.json.kept"


def add(
    folder: Path,
    source: Location,
    sha256: str,
    attestation: bytes,
    pointer: Sealing,
    still: Callable[[], None],
) -> Release:
    """Copy ``source`` into a new release of ``folder``, and make it current.

    Args:
        folder: Folder of the table and partition.
        source: Snapshot.
        sha256: Expected hash of the snapshot.
        attestation: Bytes of the attestation.
        pointer: Returns the signed pointer to a release.
        still: Called under the lock. Raises PublicationRefused if another release or rollback was
            recorded meanwhile.

    Returns:
        The new release, or the existing one with this attestation.

    Raises:
        PublicationRefused: If the bytes differ, an id is invalid, or a later release is current.
        OSError: If the disk fails. The pointer is unchanged.
    """
    with _locked(folder) as place:
        still()
        current, known = _current(folder), ids(folder)
        release = _same(folder, known, attestation, sha256)
        if release is None:
            name = new_id(sha256, max(current, *known, ""))
            release = Release(name, folder / "releases" / name)
            _write(place, release, source, sha256, attestation)
        check_forward(current, release.id)
        _point(place, pointer(release.id))
    return release


def point(folder: Path, name: str, pointer: Sealing, still: Callable[[], None]) -> None:
    """Make the release ``name`` current, forwards or back. "": there is no current release."""
    with _locked(folder) as place:
        still()
        _point(place, pointer(name))


def remove(folder: Path, old: Iterable[Release]) -> None:
    """Remove releases, and the files that an interrupted call left. The pointer is not changed."""
    with _locked(folder) as place, folders.opened(place, "releases", mode=0o755) as releases:
        folders.check_shared(releases)
        folders.discard(releases, [release.id for release in old])


def check(root: Path) -> None:
    """Check who may write to the release folder, if it exists. Raise ConfigError if every user
    may.
    """
    with (
        suppress(FileNotFoundError, NotADirectoryError, PermissionError),
        folders.opened(root) as found,
    ):
        folders.check_shared(found)


def pointer(folder: Path) -> tuple[bytes, Path]:
    """Return content and path of the pointer, or raise FileNotFoundError."""
    path = folder / POINTER
    return read_regular(path, below=folder.parents[1], most=LARGEST_POINTER), path


def ids(folder: Path) -> list[str]:
    """Return the sorted names of all release folders that have the form of an id, without links."""
    return list(
        filter(has_form, _names(folder.parents[1], folder.parent.name, folder.name, "releases"))
    )


def parts(root: Path, table: str = "") -> list[tuple[str, str]]:
    """Return the folder names of each table and partition with a release, or only those of
    ``table``.

    Links and folders that cannot be opened are skipped.
    """
    found = []
    for one in [table] if table else _names(root):
        with suppress(PermissionError, NotADirectoryError, folders.FolderError):
            found += [(one, part) for part in _names(root, one)]
    return [(one, part) for one, part in found if _has_releases(root / one / part)]


def _has_releases(folder: Path) -> bool:
    with suppress(PermissionError, NotADirectoryError, folders.FolderError):
        return bool(ids(folder)) or (folder / POINTER).exists()
    return False


def _names(root: Path, *below: str) -> list[str]:
    with suppress(FileNotFoundError), folders.opened(root, *below) as folder:
        return folders.subfolders(folder)
    return []


@contextmanager
def _locked(folder: Path) -> Iterator[Folder]:
    """Open the folder of a table and partition for writing, create it if it is missing, and hold
    its lock.
    """
    root = make_folder(folder.parents[1], 0o755)
    with (
        folders.opened(root) as top,
        folders.opened(top, folder.parent.name, mode=0o755) as table,
        folders.opened(table, folder.name, mode=0o755) as place,
    ):
        for one in (top, table, place):
            folders.check_shared(one)
        with folders.locked(place, ".lock"):
            yield place


def _current(folder: Path) -> str:
    """Return the release id stored in the pointer file, or "" if there is none.

    Raises:
        Damaged: If its content is not a valid id.
    """
    try:
        return pointed(*pointer(folder))
    except FileNotFoundError:
        return ""


def _same(folder: Path, known: list[str], attestation: bytes, sha256: str) -> Release | None:
    for release in (Release(name, folder / "releases" / name) for name in known):
        if release.is_of(sha256, attestation):
            return release if hash_file(release.table, release.root) == sha256 else None
    return None


def _write(
    place: Folder, release: Release, source: Location, sha256: str, attestation: bytes
) -> None:
    """Copy to a private folder, hash the copy, and move it into position in one step."""

    def write(staging: Folder) -> None:
        folders.put(staging, TABLE_FILE, lambda stream: copy_judged(source, stream, sha256), 0o444)
        folders.put(staging, ATTESTATION_FILE, attestation, 0o444)

    with folders.opened(place, "releases", mode=0o755) as releases:
        folders.check_shared(releases)
        folders.place_folder(releases, release.id, write)


def _point(place: Folder, data: bytes) -> None:
    """Replace the pointer, under the lock. If the disk fails afterwards, restore the old
    pointer.
    """
    folders.keep(place, POINTER, KEPT)  # before replacing, so that restoring requires no disk space
    try:
        folders.put(place, POINTER, data, 0o644)
    except OSError:
        try:
            folders.rename(place, KEPT, POINTER)
        except FileNotFoundError:
            folders.unlink(place, POINTER)
        raise
    finally:
        with suppress(OSError):
            folders.unlink(place, KEPT)
