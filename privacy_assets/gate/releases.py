"""Releases: immutable tables and one pointer a table and partition, on disk or in an object store."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pandas as pd

from privacy_assets.errors import ConfigError, InputError, PublicationRefused
from privacy_assets.gate import release_disk, release_objects
from privacy_assets.gate.keys import TrustedKeys, key_path
from privacy_assets.gate.release import ATTESTATION_FILE, TABLE_FILE, Release, UnfinishedRelease, hash_file, is_id
from privacy_assets.gate.release_disk import POINTER
from privacy_assets.gate.snapshot import read_hashed
from privacy_assets.gate.statements import Place, quoted
from privacy_assets.storage.files import reason
from privacy_assets.storage.objects import Location, ObjectPath, location

__all__ = [
    "ATTESTATION_FILE",
    "POINTER",
    "TABLE_FILE",
    "TRUSTED_VARIABLE",
    "Release",
    "ReleaseStore",
    "check_bytes",
    "default_trusted",
    "hash_file",
    "read_published",
]
TRUSTED_VARIABLE = "PRIVACY_ASSETS_TRUSTED_KEYS"


def default_trusted(root: Location, *, reading: bool = False) -> TrustedKeys:
    """The keys that PRIVACY_ASSETS_TRUSTED_KEYS names, else those in ``trusted_keys`` beside the release folder.

    Who is only ``reading`` believes those beside the releases also when they belong to the owner of the release folder:
    whoever reads there without a key of their own believes that user already. ConfigError for an object store without
    that variable: whoever can write a release could add a key there.
    """
    given = os.environ.get(TRUSTED_VARIABLE, "")
    if given:
        return TrustedKeys((key_path(given),))
    if isinstance(root, ObjectPath):
        fix = f"set {TRUSTED_VARIABLE}, or give the public key, to a folder or file of this machine"
        raise ConfigError(f"{root}: keys in an object store are not trusted. Fix: {fix}.")
    publisher = root.stat().st_uid if reading and root.exists() else None
    return TrustedKeys((root.absolute().parent / "trusted_keys",), publisher)


@dataclass(frozen=True, slots=True)
class ReleaseStore:
    """Releases below ``root/<table>/partition=<partition>``, or ``root/<table>/_all`` without partitions."""

    root: Location

    @property
    def _kind(self) -> ModuleType:
        """Where they lie decides how a thing is done once."""
        return release_objects if isinstance(self.root, ObjectPath) else release_disk

    def _folder(self, place: Place) -> Location:
        """Where the releases of a place lie; PublicationRefused when somebody put a link there."""
        folder = place.below(self.root)
        if isinstance(folder, Path) and (link := release_disk.linked(folder)):
            raise PublicationRefused(f"{link} is a link, and links in the release folder are not followed; remove it.")
        return folder

    def add(
        self, place: Place, source: Location, sha256: str, attestation: bytes, still: Callable[[], None]
    ) -> Release:
        """Copy ``source`` into a new release and point to it; it is hashed while it is copied, and only what was hashed
        can be published.

        A release with this very attestation is pointed to again instead of being copied twice, but never backwards:
        that is for :meth:`point`. ``still`` is asked when nobody else can come between, and refuses what was overtaken.
        PublicationRefused, and the previous release stays, when the bytes are not those of ``sha256`` or the disk does
        not take them. A crash at any moment leaves the old pointer or the new one, and each points to a whole release.
        """
        try:
            release: Release = self._kind.add(self._folder(place), source, sha256, attestation, still)
        except OSError as error:
            if isinstance(self.root, ObjectPath):
                text = f"the release was not finished ({reason(error)}), and may be out; materialise published again."
                raise UnfinishedRelease(text) from None
            raise PublicationRefused(f"the release could not be written ({reason(error)}); nothing changed.") from None
        return release

    def point(self, place: Place, release: Release, still: Callable[[], None]) -> None:
        """Make ``release`` the current one, forwards or back; ``still`` as in :meth:`add`."""
        try:
            self._kind.point(self._folder(place), release, still)
        except OSError as error:
            kind = UnfinishedRelease if isinstance(self.root, ObjectPath) else PublicationRefused
            raise kind(f"the pointer could not be written ({reason(error)}).") from None

    def current(self, place: Place) -> Release:
        """The release the pointer names; InputError when nothing was published."""
        folder = self._folder(place)
        try:
            name = str(self._kind.pointer(folder)["release"])
        except ConfigError:
            raise
        except FileNotFoundError:
            raise InputError(f"nothing was published in {self.root}", where=str(place)) from None
        except OSError as error:
            raise PublicationRefused(f"the pointer cannot be read ({reason(error)}).") from None
        except (ValueError, KeyError, TypeError, RecursionError):
            raise PublicationRefused(f"the pointer in {folder} cannot be read; roll back to a release.") from None
        if not is_id(name):
            raise PublicationRefused(f"the pointer in {folder} names no release; roll back to one.")
        found = folder.joinpath("releases", name)
        if isinstance(found, Path) and found.is_symlink():
            raise PublicationRefused(f"{found} is a link, and links in the release folder are not followed; remove it.")
        return Release(name, found)

    def history(self, place: Place) -> list[Release]:
        """All releases of one place, oldest first."""
        folder = self._folder(place)
        return [Release(name, folder.joinpath("releases", name)) for name in self._kind.ids(folder)]

    def places(self, table: str = "") -> Iterator[Place]:
        """Every table and partition that has a release, in order; of one ``table`` when it is named."""
        found = self._kind.parts(self.root, quoted(table) if table else "")
        yield from (Place.of_parts(*parts) for parts in sorted(found))


def read_published(
    root: str | Location, table: str, partition: str | None = None, *, trusted_keys: str | Path | None = None
) -> pd.DataFrame:
    """Read the current release of ``table`` below ``root``, a folder or a URL such as s3://bucket/releases.

    Its attestation must be signed by a trusted key, be about this table and partition and name these very bytes:
    PublicationRefused otherwise. ``trusted_keys`` is a folder of public keys (PEM) or one key; default:
    PRIVACY_ASSETS_TRUSTED_KEYS, else ``trusted_keys`` beside ``root``. InputError when nothing was published,
    ConfigError when there is no trusted key.
    """
    root, place = location(root), Place(table, partition)
    trusted = default_trusted(root, reading=True) if trusted_keys is None else TrustedKeys((key_path(trusted_keys),))
    release = ReleaseStore(root).current(place)
    stated = release.opened(place, trusted)
    return read_hashed(release.table, stated.sha256, stated.dtypes)


def check_bytes(path: Location, sha256: str) -> None:
    """PublicationRefused unless the file ``path`` has the bytes that the hash names."""
    try:
        found = hash_file(path)
    except OSError as error:
        raise PublicationRefused(f"{path} cannot be read ({error.strerror}).") from None
    if found != sha256:
        raise PublicationRefused(f"{path} does not hold the bytes that were judged.")
