"""One release, and the rules of the pointer that says which one readers get; the same on disk and in object stores."""

from __future__ import annotations

import datetime as dt
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from privacy_assets.errors import PublicationRefused
from privacy_assets.gate.attestation import Attestation, check_place
from privacy_assets.gate.keys import TrustedKeys
from privacy_assets.gate.statements import Place, Sealed, unseal
from privacy_assets.storage.files import open_regular, read_regular
from privacy_assets.storage.objects import Location

TABLE_FILE, ATTESTATION_FILE = "table.parquet", "attestation.json"
_STAMP = "%Y%m%dT%H%M%S.%fZ"
_ID = re.compile(r"[0-9]{8}T[0-9]{6}\.[0-9]{6}Z-[0-9a-f]{12}")


class UnfinishedRelease(PublicationRefused):
    """Nobody knows whether the release is out: an object store did not answer."""


@dataclass(frozen=True, slots=True)
class Release:
    """A published table: ``releases/<id>`` with the table and its attestation."""

    id: str
    folder: Location

    @property
    def table(self) -> Location:
        """The Parquet file."""
        return self.folder / TABLE_FILE

    @property
    def attestation(self) -> Location:
        """The envelope of the attestation that let it through."""
        return self.folder / ATTESTATION_FILE

    @property
    def published_at(self) -> str:
        """When it was put in place (UTC), from its id."""
        return _moment(self.id).isoformat(sep=" ", timespec="seconds")

    def is_of(self, sha256: str, attestation: bytes) -> bool:
        """True when this very attestation let it through, which is about the file with this SHA-256."""
        named = self.id.endswith(sha256[:12]) and self.attestation.is_file()
        return named and read_regular(self.attestation) == attestation

    def opened(self, place: Place, trusted: TrustedKeys) -> Attestation:
        """Its attestation, signed by a trusted key, for this place, with the verdict "pass"; or PublicationRefused."""
        try:
            sealed = Sealed("attestation", read_regular(self.attestation))
        except OSError as error:
            text = f"the attestation of release {self.id} cannot be read ({error.strerror})."
            raise PublicationRefused(text) from None
        stated = Attestation.of(unseal(sealed, trusted))
        check_place(stated.place, place, "attestation")
        if stated.verdict != "pass":
            raise PublicationRefused(f"the attestation of release {self.id} says {stated.verdict!r}.")
        return stated


def is_id(name: str) -> bool:
    """True for what can be the id of a release."""
    try:
        return _ID.fullmatch(name) is not None and bool(_moment(name))
    except ValueError:
        return False


def new_id(sha256: str, latest: str = "") -> str:
    """An id that says when and what, and stands after ``latest`` in order, whatever the clock of this machine says."""
    now = dt.datetime.now(dt.UTC).replace(tzinfo=None)
    if latest:
        now = max(now, _moment(latest) + dt.timedelta(microseconds=1))
    return f"{now.strftime(_STAMP)}-{sha256[:12]}"


def _moment(name: str) -> dt.datetime:
    return dt.datetime.strptime(name[:23], _STAMP)


def check_forward(pointer: Mapping[str, Any], name: str) -> None:
    """Refuse to publish again what was replaced: an old attestation would decide what is current."""
    if name < str(pointer.get("release", "")):
        raise PublicationRefused(replaced(name))


def replaced(name: str) -> str:
    """The text for what was published before, as the release of this name, and is not current any more."""
    return (
        f"this was published before, as {name}, and is not current any more: it was replaced or rolled back. Fix: make"
        f" a new synthetic table, or `privacy-assets releases TABLE --rollback {name}`."
    )


def copy_judged(source: Location, writer: BinaryIO, sha256: str) -> None:
    """Copy a snapshot without following links, read only once; refuse bytes that are not those that were judged."""
    try:
        reader = open_regular(source, follow=False)
    except OSError as error:
        raise PublicationRefused(f"the snapshot cannot be read ({error.strerror}); materialise it again.") from None
    digest = hashlib.sha256()
    with reader:
        while block := reader.read(1 << 20):
            digest.update(block)
            writer.write(block)
    if digest.hexdigest() != sha256:
        raise PublicationRefused("the synthetic table changed after it was judged; score it again.")


def hash_file(path: Location) -> str:
    """SHA-256 (hex) of a regular file."""
    with open_regular(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
