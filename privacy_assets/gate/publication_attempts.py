"""The memory of attempts: how often publication was tried from the same training rows, and what was released.

Whoever tries again and again passes by chance in the end, so attempt m is judged at a stricter level. And tables that
each give away little may give away much together, so all that was released before is judged with the new one. Nothing
is signed here: whoever adds an attempt makes the gate stricter.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pandas as pd

from privacy_assets.errors import ConfigError, PublicationRefused
from privacy_assets.gate.release import UnfinishedRelease, replaced
from privacy_assets.gate.snapshot import Snapshot, read_hashed
from privacy_assets.gate.statements import Place
from privacy_assets.storage.files import contents, create_once, private_folder, put_atomic, reason
from privacy_assets.storage.objects import Location

_NUMBER = re.compile("[0-9]{8}")
_CONTENT = re.compile("[0-9a-f]{64}")
_TRIES = 1000  # times that others may be quicker before it is given up


@dataclass(frozen=True)
class Released:
    """Earlier releases of one place, in the order of their digests: SHA-256, and the files that may hold the bytes."""

    files: tuple[tuple[str, tuple[Location, ...]], ...]

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the digests: another one as soon as anything else was released."""
        return hashlib.sha256("\n".join(sha256 for sha256, _ in self.files).encode()).hexdigest()

    def tables(self) -> list[pd.DataFrame]:
        """The released rows, table by table; PublicationRefused when one cannot be read any more."""
        return [self._table(sha256, paths) for sha256, paths in self.files]

    @staticmethod
    def _table(sha256: str, paths: tuple[Location, ...]) -> pd.DataFrame:
        for path in paths:
            try:
                return read_hashed(path, sha256)
            except PublicationRefused:
                continue
        text = f"an earlier release cannot be read ({sha256[:12]}), so nobody can tell what the new table adds to it"
        raise PublicationRefused(f"{text}: bring its file back, as {paths[0]}.")


@dataclass(frozen=True, slots=True)
class Shown:
    """What readers got, or were about to get: SHA-256 of the file, and the keyed fingerprint of its rows.

    Either tells it again, whatever envelope is around it: the rows in another order are the same rows.
    """

    sha256: str
    content: str

    def same(self, other: Shown) -> bool:
        """True for the same file or the same rows."""
        return self.sha256 == other.sha256 or self.content == other.content


@dataclass(frozen=True, slots=True)
class PublicationAttempts:
    """Small files below ``root``, numbered in their order, an attempt, a release or a rollback each; never deleted.

    A number is taken by creating its file, which succeeds once: nobody needs a lock, on disk or in an object store.
    """

    root: Location

    def attempt(self, snapshot: Snapshot, pool_partitions: bool = False) -> int:
        """Which attempt at publishing from these training rows this table is, from 1; counted at the first call.

        The same rows are the same attempt, whatever the run, the order of rows or the file; with ``pool_partitions``
        whatever the partition.
        """
        place = Place(snapshot.place.table) if pool_partitions else snapshot.place
        folder = place.below(self.root).joinpath("attempts", snapshot.train)
        try:
            private_folder(folder)
            for _ in range(_TRIES):
                known = [_attempt(name, data) for name, data in contents(folder).items()]
                mine = [number for number, content in known if content == snapshot.content]
                if mine:
                    return min(mine)
                number = 1 + max((number for number, _ in known), default=0)
                if create_once(folder / f"{number:08d}", snapshot.content.encode()):
                    return number
        except ConfigError:
            raise
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "a file is damaged"
            text = f"the number of this attempt is not known ({folder}: {why})."
            raise PublicationRefused(text) from None
        raise PublicationRefused("too many others try to publish at the same time; score it again.")

    @contextmanager
    def releasing(self, place: Place, shown: Shown, agree: Callable[[], None]) -> Iterator[None]:
        """Record, before it happens, that readers of ``place`` get this: by a release, or by a rollback.

        ``agree`` is asked whether all that is recorded by now allows it; it raises PublicationRefused. When somebody
        else records something in between, it is asked again. After a crash the file counts as released, and as the
        last: nobody can tell who has seen it, and the same once more finishes it. After a refusal it does not.
        """
        try:
            record = self._record(place, shown, agree)
            try:
                yield
            except UnfinishedRelease:
                raise
            except (PublicationRefused, ConfigError):
                put_atomic(record, _record_of(None))  # never removed: its number must not be taken again
                raise
        except OSError as error:
            text = f"the release could not be recorded ({reason(error)}); nothing was published."
            raise PublicationRefused(text) from None

    def _record(self, place: Place, shown: Shown, agree: Callable[[], None]) -> Location:
        folder = private_folder(self._released(place))
        for _ in range(_TRIES):
            known = self._records(place)  # before anybody is asked: what comes after it takes the number
            agree()
            record = folder / f"{1 + max(map(int, known), default=0):08d}"
            if create_once(record, _record_of(shown)):
                return record
        raise PublicationRefused("too many others publish at the same time; publish again.")

    def history(self, place: Place) -> list[Shown]:
        """What readers got, in order; PublicationRefused when that is not known."""
        return [one for one in self._records(place).values() if one is not None]

    def released(self, place: Place) -> set[str]:
        """Hashes of the files that were released; PublicationRefused when that is not known."""
        return {one.sha256 for one in self.history(place)}

    def check_last(self, place: Place, shown: Shown) -> None:
        """PublicationRefused unless nothing was recorded after this."""
        if not any(one.same(shown) for one in self.history(place)[-1:]):
            raise PublicationRefused("another release or rollback came in between; nothing changed.")

    def _records(self, place: Place) -> dict[str, Shown | None]:
        """By its number, each release and rollback, None for one that was refused after all."""
        folder = self._released(place)
        try:
            return {name: _shown(name, data) for name, data in contents(folder).items()}
        except OSError as error:
            text = f"the memory of releases cannot be read ({folder}: {error.strerror})."
            raise PublicationRefused(text) from None
        except ConfigError:
            raise
        except (ValueError, KeyError, TypeError):
            raise PublicationRefused(f"the memory of releases is damaged ({folder}): bring it back.") from None

    def _released(self, place: Place) -> Location:
        return place.below(self.root) / "released"


def check_not_replaced(before: Sequence[Shown], shown: Shown, releases: Sequence[str]) -> None:
    """PublicationRefused when ``shown`` stands in the history, but is not the last: it was replaced or rolled back.

    ``releases`` are the ids of the releases, for the way out.
    """
    found = [one for one in before if one.same(shown)]
    if found and found[-1] != before[-1]:
        ids = [name for name in releases if name.endswith(found[-1].sha256[:12])]
        raise PublicationRefused(replaced(ids[-1] if ids else "a release that is gone"))


def _is_number(name: str) -> bool:
    return _NUMBER.fullmatch(name) is not None


def _attempt(name: str, data: bytes) -> tuple[int, str]:
    """Number and content of an attempt; ValueError when its file is damaged."""
    content = data.decode()
    if not _is_number(name) or not _CONTENT.fullmatch(content):
        raise ValueError
    return int(name), content


def _shown(name: str, data: bytes) -> Shown | None:
    """What a record says, None for one that was withdrawn; ValueError, KeyError or TypeError when it is damaged."""
    record = json.loads(data)
    if not _is_number(name) or not isinstance(record, dict):
        raise ValueError
    return None if record["sha256"] is None else Shown(str(record["sha256"]), str(record["content"]))


def _record_of(shown: Shown | None) -> bytes:
    record = {"sha256": None, "content": None} if shown is None else {"sha256": shown.sha256, "content": shown.content}
    return json.dumps({**record, "token": secrets.token_hex(8)}).encode()
