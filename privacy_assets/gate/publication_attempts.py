"""Records of publication attempts per training rows, and of releases.

Repeated attempts eventually pass by chance, so attempt m is evaluated at a stricter level. Several releases that each
disclose little can disclose much together, so earlier releases are evaluated jointly with a new one. The records are
not signed, because adding an attempt only makes the gate stricter.
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

from privacy_assets.errors import ConfigError, Damaged, PublicationRefused, StoreUnavailable, Superseded, outcome_known
from privacy_assets.gate.release import replaced
from privacy_assets.gate.snapshot import Snapshot, read_hashed
from privacy_assets.gate.statements import ReleaseTarget, records
from privacy_assets.infra.files import contents, create_once, private_folder, put_atomic, reason
from privacy_assets.infra.objects import Location

_NUMBER = re.compile("[0-9]{8}")
_CONTENT = re.compile("[0-9a-f]{64}")
_TRIES = 1000  # maximum number of attempts if other processes take the next number


@dataclass(frozen=True)
class EarlierReleases:
    """Earlier releases, sorted by digest.

    Attributes:
        files: SHA-256 of each release, and the files that may contain its bytes.
        releases: Release folder. Links below it are not followed.
    """

    files: tuple[tuple[str, tuple[Location, ...]], ...]
    releases: Location | None = None  # links below this folder are not followed

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the digests, which changes with every further release."""
        return hashlib.sha256("\n".join(sha256 for sha256, _ in self.files).encode()).hexdigest()

    def tables(self) -> list[pd.DataFrame]:
        """Read the released tables, or raise Damaged if one cannot be read."""
        return [self._table(sha256, paths) for sha256, paths in self.files]

    def _table(self, sha256: str, paths: tuple[Location, ...]) -> pd.DataFrame:
        for path in paths:
            try:
                return read_hashed(path, sha256, below=self.releases)
            except PublicationRefused:
                continue
        text = f"an earlier release cannot be read ({sha256[:12]}), so the joint disclosure cannot be measured"
        raise Damaged(text, path=str(paths[0]))


@dataclass(frozen=True, slots=True)
class PublicationRecord:
    """Record of a table that was published, or was about to be.

    Attributes:
        sha256: SHA-256 of the file.
        content: Keyed fingerprint of the rows, independent of their order.
    """

    sha256: str
    content: str

    def same(self, other: PublicationRecord) -> bool:
        """Return True if file or rows are the same."""
        return self.sha256 == other.sha256 or self.content == other.content


@dataclass(frozen=True, slots=True)
class PublicationAttempts:
    """Numbered files below ``root``, one per attempt, release or rollback; never deleted.

    A number is claimed by creating its file, which succeeds only once. So no lock is required, on disk or in an object
    store.
    """

    root: Location

    def number_of(self, snapshot: Snapshot, shared_subjects: bool = False) -> int:
        """Return the number of this publication attempt from the same training rows, from 1, and count a new one.

        The same rows are the same attempt, independent of run, row order and file, and with ``shared_subjects`` also of
        the partition.
        """
        target = ReleaseTarget(snapshot.target.table) if shared_subjects else snapshot.target
        folder = target.below(self.root).joinpath("attempts", snapshot.train)
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
        except OSError as error:
            text = f"the number of this attempt cannot be determined ({folder}: {error.strerror})"
            raise StoreUnavailable(text, path=str(folder), errno=error.errno) from None
        except ValueError:
            text = f"the number of this attempt cannot be determined ({folder}: a file is damaged)"
            raise Damaged(text, path=str(folder)) from None
        raise StoreUnavailable(f"{folder}: too many processes count attempts at the same time")

    @contextmanager
    def releasing(self, target: ReleaseTarget, shown: PublicationRecord, agree: Callable[[], None]) -> Iterator[None]:
        """Record a release or rollback of ``target`` before it happens.

        After a crash, the file counts as released and as the latest, because readers may have seen it; repeating the
        operation completes it. If PublicationRefused or ConfigError is raised in the block, the record is withdrawn.

        Args:
            target: Table and partition.
            shown: Table that readers will get.
            agree: Raises PublicationRefused if the current records do not permit it. Called again if another process
                adds a record in between.
        """
        try:
            record = self._record(target, shown, agree)
            try:
                yield
            except (PublicationRefused, ConfigError) as error:
                if outcome_known(error):
                    put_atomic(record, _to_bytes(None))  # not removed, because its number must not be reused
                raise
        except OSError as error:
            text = f"the release could not be recorded ({reason(error)}); nothing changed"
            raise StoreUnavailable.of(text, error) from None

    def _record(self, target: ReleaseTarget, shown: PublicationRecord, agree: Callable[[], None]) -> Location:
        folder = private_folder(self._released(target))
        for _ in range(_TRIES):
            known = self._records(target)  # before agree(): a record added later takes the number
            agree()
            record = folder / f"{1 + max(map(int, known), default=0):08d}"
            if create_once(record, _to_bytes(shown)):
                return record
        raise StoreUnavailable(f"{folder}: too many processes publish at the same time")

    def history(self, target: ReleaseTarget) -> list[PublicationRecord]:
        """Return the published tables in order, or raise PublicationRefused if the records cannot be read."""
        return [one for one in self._records(target).values() if one is not None]

    def released(self, target: ReleaseTarget) -> set[str]:
        """Return the hashes of the released files, or raise PublicationRefused if the records cannot be read."""
        return {one.sha256 for one in self.history(target)}

    def check_last(self, target: ReleaseTarget, shown: PublicationRecord) -> None:
        """Raise Superseded if a later release or rollback was recorded."""
        if not any(one.same(shown) for one in self.history(target)[-1:]):
            raise Superseded("another release or rollback was recorded meanwhile; nothing changed")

    def _records(self, target: ReleaseTarget) -> dict[str, PublicationRecord | None]:
        """Return releases and rollbacks by number; None for one that was withdrawn."""
        folder = self._released(target)
        found = records(folder, "memory of releases")
        try:
            return {name: _parse_record(name, data) for name, data in found.items()}
        except (ValueError, KeyError, TypeError):
            raise Damaged(f"the memory of releases is damaged ({folder})", path=str(folder)) from None

    def _released(self, target: ReleaseTarget) -> Location:
        return target.below(self.root) / "released"


def check_not_replaced(before: Sequence[PublicationRecord], shown: PublicationRecord, releases: Sequence[str]) -> None:
    """Raise Superseded if ``shown`` was published earlier, and then replaced or rolled back.

    Args:
        before: Published tables, in order.
        shown: Table to publish.
        releases: Ids of the releases, to name one in the message.
    """
    found = [one for one in before if one.same(shown)]
    if found and found[-1] != before[-1]:
        ids = [name for name in releases if name.endswith(found[-1].sha256[:12])]
        raise replaced(ids[-1] if ids else "")


def _is_number(name: str) -> bool:
    return _NUMBER.fullmatch(name) is not None


def _attempt(name: str, data: bytes) -> tuple[int, str]:
    """Return number and content of an attempt, or raise ValueError if its file is damaged."""
    content = data.decode()
    if not _is_number(name) or not _CONTENT.fullmatch(content):
        raise ValueError
    return int(name), content


def _parse_record(name: str, data: bytes) -> PublicationRecord | None:
    """Parse a publication record. Return None if it was withdrawn. Raise ValueError or KeyError if it is damaged."""
    record = json.loads(data)
    if not _is_number(name) or not isinstance(record, dict):
        raise ValueError
    return None if record["sha256"] is None else PublicationRecord(str(record["sha256"]), str(record["content"]))


def _to_bytes(shown: PublicationRecord | None) -> bytes:
    record = {"sha256": None, "content": None} if shown is None else {"sha256": shown.sha256, "content": shown.content}
    return json.dumps({**record, "token": secrets.token_hex(8)}).encode()
