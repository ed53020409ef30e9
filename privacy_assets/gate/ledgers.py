"""Ledgers of disclosure: private files with what the releases of a table disclose together."""

from __future__ import annotations

import errno
import hashlib
from dataclasses import dataclass

from privacy_assets.errors import StoreUnavailable, TableSuspended
from privacy_assets.gate.envelope import quoted
from privacy_assets.infra.files import reason
from privacy_assets.infra.objects import Location
from privacy_assets.infra.storage import read_hashed_bytes, storage_of


@dataclass(frozen=True, slots=True)
class Ledgers:
    """Ledgers of the tables, in ``private/ledgers/<table>``, named by their SHA-256.

    The log of a table names the one after its last release, so an older copy is rejected.

    Attributes:
        private: Private folder.
    """

    private: Location

    def read(self, table: str, sha256: str) -> bytes:
        """Return the bytes of a ledger.

        Args:
            table: Name of the table.
            sha256: SHA-256 of the ledger. Empty: before the first release, there are no bytes.

        Raises:
            TableSuspended: If the file is missing or was changed.
            StoreUnavailable: If it cannot be read.
        """
        if not sha256:
            return b""
        path = self._folder(table) / f"{sha256}.parquet"
        fault = "was changed"
        data = None
        try:
            data = read_hashed_bytes(path, sha256)
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise StoreUnavailable.of(
                    f"the ledger cannot be read ({reason(error)})", error, path
                ) from None
            fault = "is missing"
        if data is None:
            text = f"the ledger of disclosure of {table} {fault} ({path})"
            raise TableSuspended(text, table=table, path=str(path))
        return data

    def keep(self, table: str, data: bytes) -> str:
        """Write a ledger, and return its SHA-256.

        Args:
            table: Name of the table.
            data: Bytes of the ledger.
        """
        sha256 = hashlib.sha256(data).hexdigest()
        storage_of(self._folder(table) / f"{sha256}.parquet").put(data)
        return sha256

    def remove_others(self, table: str, sha256: str) -> None:
        """Remove all ledgers of a table but one.

        Args:
            table: Name of the table.
            sha256: SHA-256 of the ledger that stays. Empty: none.
        """
        folder = self._folder(table)
        for name in storage_of(folder).names():
            if name != f"{sha256}.parquet" and not name.startswith("."):
                (folder / name).unlink(missing_ok=True)

    def _folder(self, table: str) -> Location:
        return self.private / "ledgers" / quoted(table)
