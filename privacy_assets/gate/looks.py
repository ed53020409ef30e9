"""The memory of looks: how often publication was tried from the same training rows, and what was released.

Whoever tries again and again passes by chance in the end, so attempt m is judged at a stricter level. And tables that
each give away little may give away much together, so all that was released before is judged with the new one. Nothing
is signed here: whoever adds a look makes the gate stricter.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from privacy_assets.errors import PublicationRefused
from privacy_assets.files import locked, private_folder, put_atomic
from privacy_assets.gate.snapshot import Snapshot, read_hashed
from privacy_assets.gate.statements import Place


@dataclass(frozen=True)
class Released:
    """Earlier releases of one place, in the order of their digests: SHA-256, and the files that may hold the bytes."""

    files: tuple[tuple[str, tuple[Path, ...]], ...]

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the digests: another one as soon as anything else was released."""
        return hashlib.sha256("\n".join(sha256 for sha256, _ in self.files).encode()).hexdigest()

    def tables(self) -> list[pd.DataFrame]:
        """The released rows, table by table; PublicationRefused when one cannot be read any more."""
        return [self._table(sha256, paths) for sha256, paths in self.files]

    @staticmethod
    def _table(sha256: str, paths: tuple[Path, ...]) -> pd.DataFrame:
        for path in paths:
            try:
                return read_hashed(path, sha256)
            except PublicationRefused:
                continue
        text = f"an earlier release cannot be read ({sha256[:12]}), so nobody can tell what the new table adds to it"
        raise PublicationRefused(f"{text}: bring its file back, as {paths[0]}.")


@dataclass(frozen=True, slots=True)
class Looks:
    """Empty files below ``root``, one an attempt and one a release, known by their names; never deleted here."""

    root: Path

    def attempt(self, snapshot: Snapshot) -> int:
        """Which attempt at publishing from these training rows this table is, from 1; counted at the first call.

        The same rows are the same attempt, whatever the run, the order of rows or the file.
        """
        folder = snapshot.place.below(self.root) / "attempts" / snapshot.train
        try:
            private_folder(folder)
            with locked(folder / ".lock"):
                known = _names(folder)
                if snapshot.content not in known:
                    put_atomic(folder / snapshot.content, str(len(known) + 1).encode())
                    return len(known) + 1
                return int((folder / snapshot.content).read_bytes())
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "its file is damaged"
            text = f"the number of this attempt is not known ({folder / snapshot.content}: {reason})."
            raise PublicationRefused(text) from None

    @contextmanager
    def releasing(self, place: Place, sha256: str) -> Iterator[bool]:
        """Record, before it happens, that the file with this hash is released, and give whether it never was before.

        Nobody else releases meanwhile. After a crash it counts as released: nobody can tell who has seen it. After a
        refusal it does not.
        """
        try:
            record = private_folder(self._released(place)) / sha256
            with locked(record.with_name(".lock")):
                new = not record.exists()
                put_atomic(record, b"")
                try:
                    yield new
                except PublicationRefused:
                    if new:
                        record.unlink()
                    raise
        except OSError as error:
            text = f"the release could not be recorded ({error.strerror}); nothing changed."
            raise PublicationRefused(text) from None

    def released(self, place: Place) -> set[str]:
        """Hashes of the files that were released; PublicationRefused when that is not known."""
        try:
            return _names(self._released(place))
        except OSError as error:
            text = f"the memory of releases cannot be read ({self._released(place)}: {error.strerror})."
            raise PublicationRefused(text) from None

    def _released(self, place: Place) -> Path:
        return place.below(self.root) / "released"


def _names(folder: Path) -> set[str]:
    try:
        return {name for name in os.listdir(folder) if not name.startswith(".")}
    except FileNotFoundError:
        return set()
