"""Releases on disk: written under a lock, moved into position by one rename, selected by a pointer
file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from privacy_assets.gate.envelope import ReleaseTarget
from privacy_assets.gate.release import (
    ATTESTATION_FILE,
    LARGEST_POINTER,
    TABLE_FILE,
    CheckNoLaterMove,
    Release,
    SignPointer,
    check_forward,
    copy_hashed,
    has_form,
    new_id,
    pointed,
)
from privacy_assets.infra import folders
from privacy_assets.infra.files import make_folder, read_regular
from privacy_assets.infra.folders import Folder
from privacy_assets.infra.objects import Location
from privacy_assets.infra.storage import hash_file

POINTER = "latest.json"
_OLD_POINTER = "latest.json.kept"


@dataclass(frozen=True, slots=True)
class DiskReleases:
    """Releases on disk.

    Attributes:
        root: Release folder.
    """

    root: Path
    outcome_known: ClassVar[bool] = True

    def add(
        self,
        target: ReleaseTarget,
        source: Location,
        sha256: str,
        attestation: bytes,
        sign_pointer: SignPointer,
        check_no_later_move: CheckNoLaterMove,
    ) -> Release:
        """See :meth:`.Releases.add`. ``check_no_later_move`` is called under the lock."""
        folder = target.below(self.root)
        with _locked(folder) as opened:
            check_no_later_move()
            current = _current(folder)
            names = _ids(folder)
            release = _existing(folder, names, attestation, sha256)
            if release is None:
                name = new_id(sha256, max(current, *names, ""))
                release = Release(name, folder / "releases" / name)
                _write(opened, release, source, sha256, attestation)
            check_forward(current, release.id)
            _point(opened, sign_pointer(release.id))
        return release

    def point(
        self,
        target: ReleaseTarget,
        name: str,
        sign_pointer: SignPointer,
        check_no_later_move: CheckNoLaterMove,
    ) -> None:
        """See :meth:`.Releases.point`."""
        with _locked(target.below(self.root)) as opened:
            check_no_later_move()
            _point(opened, sign_pointer(name))

    def remove(self, target: ReleaseTarget, old: Iterable[Release]) -> None:
        """See :meth:`.Releases.remove`. Files that an interrupted call left are removed, too."""
        with (
            _locked(target.below(self.root)) as opened,
            folders.opened(opened, "releases", mode=0o755) as releases,
        ):
            folders.check_shared(releases)
            folders.discard(releases, [release.id for release in old])

    def check(self) -> None:
        """See :meth:`.Releases.check`. The release folder need not exist."""
        with (
            suppress(FileNotFoundError, NotADirectoryError, PermissionError),
            folders.opened(self.root) as opened,
        ):
            folders.check_shared(opened)

    def pointer(self, target: ReleaseTarget) -> tuple[bytes, Path]:
        """See :meth:`.Releases.pointer`."""
        return _pointer(target.below(self.root))

    def ids(self, target: ReleaseTarget) -> list[str]:
        """See :meth:`.Releases.ids`. Links are left out."""
        return _ids(target.below(self.root))

    def parts(self, table: str = "") -> list[tuple[str, str]]:
        """See :meth:`.Releases.parts`. Links and folders that cannot be opened are skipped."""
        tables = [table] if table else _names(self.root)
        below = list[tuple[str, str]]()
        for table_folder in tables:
            with suppress(PermissionError, NotADirectoryError, folders.FolderError):
                for part in _names(self.root, table_folder):
                    below.append((table_folder, part))
        return [names for names in below if _has_releases(self.root.joinpath(*names))]


def _pointer(folder: Path) -> tuple[bytes, Path]:
    path = folder / POINTER
    return read_regular(path, below=folder.parents[1], most=LARGEST_POINTER), path


def _ids(folder: Path) -> list[str]:
    names = _names(folder.parents[1], folder.parent.name, folder.name, "releases")
    return list(filter(has_form, names))


def _has_releases(folder: Path) -> bool:
    with suppress(PermissionError, NotADirectoryError, folders.FolderError):
        return bool(_ids(folder)) or (folder / POINTER).exists()
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
        folders.opened(table, folder.name, mode=0o755) as partition,
    ):
        folders.check_shared(top)
        folders.check_shared(table)
        folders.check_shared(partition)
        with folders.locked(partition, ".lock"):
            yield partition


def _current(folder: Path) -> str:
    """Return the release id stored in the pointer file, or "" if there is none.

    Raises:
        Damaged: If its content is not a valid id.
    """
    try:
        return pointed(*_pointer(folder))
    except FileNotFoundError:
        return ""


def _existing(
    folder: Path, names: Iterable[str], attestation: bytes, sha256: str
) -> Release | None:
    """Return the release of this attestation if there is one and its table is whole."""
    for name in names:
        release = Release(name, folder / "releases" / name)
        if release.is_of(sha256, attestation):
            is_whole = hash_file(release.table, release.root) == sha256
            return release if is_whole else None
    return None


def _write(
    partition: Folder, release: Release, source: Location, sha256: str, attestation: bytes
) -> None:
    """Copy to a private folder, hash the copy, and move it into position in one step."""

    def write_files(staging: Folder) -> None:
        folders.put(staging, TABLE_FILE, lambda stream: copy_hashed(source, stream, sha256), 0o444)
        folders.put(staging, ATTESTATION_FILE, attestation, 0o444)

    with folders.opened(partition, "releases", mode=0o755) as releases:
        folders.check_shared(releases)
        folders.place_folder(releases, release.id, write_files)


def _point(partition: Folder, data: bytes) -> None:
    """Replace the pointer, under the lock. If the disk fails afterwards, restore the old
    pointer.
    """
    # before replacing, so that restoring requires no disk space
    folders.link_copy(partition, POINTER, _OLD_POINTER)
    try:
        folders.put(partition, POINTER, data, 0o644)
    except OSError:
        try:
            folders.rename(partition, _OLD_POINTER, POINTER)
        except FileNotFoundError:
            folders.unlink(partition, POINTER)
        raise
    finally:
        with suppress(OSError):
            folders.unlink(partition, _OLD_POINTER)
