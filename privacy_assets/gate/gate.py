"""The gate of a deployment: its folders, its key, and its records of each table.

Three classes do the work of the gate: :class:`.SignedFiles` signs and opens the files of the steps,
:class:`.Publisher` attests and publishes, and :class:`.Keeper` accepts, rolls back, withdraws and
prunes.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from privacy_assets.errors import (
    ConfigError,
    Damaged,
    InputError,
    NotTrusted,
    OutOfDate,
    PublicationBlocked,
    StoreError,
    StoreUnavailable,
    Superseded,
    TableSuspended,
    WrongTarget,
)
from privacy_assets.gate.accepted_settings import AcceptedSettings
from privacy_assets.gate.envelope import ReleaseTarget
from privacy_assets.gate.keys import SigningKey
from privacy_assets.gate.ledgers import Ledgers
from privacy_assets.gate.log import FactsOf, Log, LogState, Publication, ReadState
from privacy_assets.gate.markers import FolderRole, check_prepared
from privacy_assets.gate.release import Pointer
from privacy_assets.gate.releases import ReleaseStore
from privacy_assets.infra.files import reason
from privacy_assets.infra.objects import Location
from privacy_assets.infra.storage import storage_of

_N_THREADS = 8  # partitions read in parallel


@contextmanager
def reporting_unavailable() -> Iterator[None]:
    """Raise StoreUnavailable for errors of a disk or store that are not handled otherwise. A
    decorator.
    """
    try:
        yield
    except OSError as error:
        raise StoreUnavailable.of(f"{reason(error)}; nothing changed", error) from None


@dataclass(frozen=True, slots=True)
class RecordedMove:
    """Move of a pointer that is recorded in the log, and may now be made.

    Attributes:
        log: Logs of the tables.
        target: Table and partition.
        number: Number of the move, see :attr:`.Pointer.number`.
    """

    log: Log
    target: ReleaseTarget
    number: int

    def sign_pointer(self, release_id: str) -> bytes:
        """Return the signed pointer to a release.

        Args:
            release_id: Id of the release. Empty: there is no current release.
        """
        pointer = Pointer(release_id, self.number, dt.datetime.now(dt.UTC))
        return pointer.signed(self.target, self.log.key)

    def check_no_later_move(self) -> None:
        """Raise Superseded if another release, rollback or withdrawal was recorded meanwhile."""
        state = self.log.state(self.target.table)
        if state.n_moves(self.target.part) != self.number:
            raise Superseded(
                "another release or rollback was recorded meanwhile; readers see no change"
            )


class Lost(NamedTuple):
    """Facts that the release folder has and the log of a table lacks.

    Attributes:
        fields: Fields of the state of the log, with what the release folder has.
        n_releases: Number of releases, or of moves of a pointer, that the log lacks.
    """

    fields: dict[str, Any]
    n_releases: int


class _PartitionReleases(NamedTuple):
    """State of the release folder of one partition.

    Attributes:
        pointer_number: Number of the verified pointer. 0: there is none.
        unlogged: Releases with a trusted signature that the log lacks.
    """

    pointer_number: int
    unlogged: list[Publication]


@dataclass(frozen=True)
class Gate:
    """Folders and key of a deployment, and the records in them.

    All methods raise PublicationBlocked for signed files that are rejected, and ConfigError if a
    key is missing or invalid.

    Attributes:
        releases: Release folder.
        private: Private folder, with snapshots, results, accepted settings, logs and ledgers.
        key: Signing key.
    """

    releases: Location
    private: Location
    key: SigningKey

    @property
    def store(self) -> ReleaseStore:
        """Release store."""
        return ReleaseStore(self.releases)

    @property
    def log(self) -> Log:
        """Logs of the tables: attempts, verdicts, releases and acceptances."""
        return Log(self.private, self.key)

    @property
    def accepted(self) -> AcceptedSettings:
        """Accepted settings of the tables."""
        return AcceptedSettings(self.private, self.key)

    @property
    def ledgers(self) -> Ledgers:
        """Ledgers of disclosure of the tables."""
        return Ledgers(self.private)

    def check_folders(self) -> None:
        """Check that releases and private folder are marked for their roles in the same deployment,
        and that only this user may enter the private folder.

        Raises:
            ConfigError: If not, or if every user may write to the release folder.
            StoreUnavailable: If an object store cannot be read.
        """
        self.store.check()
        storage_of(self.private).check_private()
        roles: dict[FolderRole, Location] = {"releases": self.releases, "private": self.private}
        try:
            deployments = {check_prepared(folder, role) for role, folder in roles.items()}
        except StoreError as error:
            raise StoreUnavailable.of(f"{reason(error)}; nothing changed", error) from None
        if len(deployments) > 1:
            raise ConfigError(
                f"{self.releases} and {self.private} belong to different deployments. Fix:"
                " correct the paths."
            )

    def check_not_suspended(self, table: str) -> None:
        """Raise TableSuspended if ``table`` failed too often, or its log or ledger is damaged or an
        older copy.

        Args:
            table: Name of the table.
        """
        state = self.log.state(table)
        state.check_not_suspended(table)
        self.check_not_behind(table, state)
        self.ledgers.read(table, state.ledger)

    def check_not_behind(
        self, table: str, state: LogState, read_state: ReadState | None = None
    ) -> None:
        """Raise TableSuspended if the release folder has a release, or a pointer with a number,
        that the log lacks.

        Args:
            table: Name of the table.
            state: State of its log.
            read_state: Reads the state again, because others may publish meanwhile. None:
                :meth:`.Log.state`.
        """
        if not self.lost(table, state).n_releases:
            return
        read_state = read_state or self.log.state
        if self.lost(table, read_state(table)).n_releases:
            text = (
                f"the log of {table} ends before a release that readers have: it is missing, or"
                " an older copy"
            )
            raise TableSuspended(text, table=table)

    def lost(self, table: str, state: LogState) -> Lost:
        """Compare the log of a table with the release folder.

        Args:
            table: Name of the table.
            state: State of its log.
        """
        targets = list(self.store.targets(table))
        with ThreadPoolExecutor(_N_THREADS) as pool:  # object stores answer slowly
            partitions = list(pool.map(partial(self._partition_releases, state), targets))
        moves = dict(state.pointer_numbers)
        publications = list[Publication]()
        n_lost = 0
        for target, partition in zip(targets, partitions, strict=True):
            n_moves = moves.get(target.part, 0)
            n_lost += max(partition.pointer_number - n_moves, len(partition.unlogged))
            moves[target.part] = max(partition.pointer_number, n_moves)
            publications += partition.unlogged
        return Lost(
            {"pointer_numbers": moves, "publications": (*publications, *state.publications)}, n_lost
        )

    def _partition_releases(self, state: LogState, target: ReleaseTarget) -> _PartitionReleases:
        logged = {publication.sha256[:12] for publication in state.history(target)}
        unlogged = list[Publication]()
        for release in self.store.history(target):
            if release.id[-12:] in logged:
                continue
            # a release without a trusted signature does not count
            with suppress(PublicationBlocked):
                attestation = release.opened(target, self.key.trusted)
                unlogged.append(
                    Publication(target.part, 0, attestation.sha256, attestation.content)
                )
        try:
            number = self.store.pointer(target, self.key.trusted).number
        except (InputError, NotTrusted, WrongTarget, OutOfDate, Damaged):
            number = 0
        return _PartitionReleases(number, unlogged)

    def record_move(self, target: ReleaseTarget, event: str, facts_of: FactsOf) -> RecordedMove:
        """Record an operation that moves the pointer of ``target``, before it happens.

        From then on it counts as done, because readers may see its result even if it fails.
        Repeating it completes it.

        Args:
            target: Table and partition.
            event: Kind of the entry.
            facts_of: See :meth:`.Log.append`.
        """
        state = self.log.append(target, event, facts_of)
        return RecordedMove(self.log, target, state.n_moves(target.part))
