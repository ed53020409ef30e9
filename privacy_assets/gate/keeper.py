"""The keeper: accepts suspended tables, rolls back, withdraws and prunes. It publishes no table."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from privacy_assets.errors import (
    ConfigError,
    InputError,
    PublicationBlocked,
    Superseded,
    TableSuspended,
    safe_repr,
)
from privacy_assets.gate.attestation import check_earlier_failures, part_of_failures
from privacy_assets.gate.envelope import (
    ReleaseTarget,
    SignedFile,
    shown_digest,
    stored_bytes,
    unverified,
)
from privacy_assets.gate.gate import Gate, reporting_unavailable
from privacy_assets.gate.log import MAX_FAILED, Facts, LogState, Rows
from privacy_assets.gate.releases import Release, check_bytes
from privacy_assets.infra.objects import Location
from privacy_assets.infra.storage import storage_of


class Suspension(NamedTuple):
    """All that suspends a table.

    Attributes:
        causes: Causes, each a sentence without a period. Empty: the table is not suspended.
        digest: Digest of the causes and of the last entry of the log.
    """

    causes: list[str]
    digest: str


@dataclass(frozen=True)
class Keeper:
    """Operations of an operator on the releases and the log of a table.

    Attributes:
        gate: Folders, key and records.
    """

    gate: Gate

    def suspension(self, table: str) -> Suspension:
        """Return all that suspends a table. One acceptance settles all of it.

        Args:
            table: Name of the table.
        """
        state = self.gate.log.believed(table)
        checks: list[Callable[[], object]] = [
            lambda: self.gate.log.state(table),
            lambda: state.check_not_suspended(table),
            lambda: self.gate.check_not_behind(table, state, self.gate.log.believed),
            lambda: self.gate.ledgers.read(table, state.ledger),
        ]
        causes = []
        for check in checks:
            try:
                check()
            except TableSuspended as error:
                causes.append(error.event)
        displayed = {"table": table, "entry": state.number, "head": state.head, "causes": causes}
        return Suspension(causes, shown_digest(displayed))

    def accept(self, table: str, why: str, digest: str = "") -> None:
        """Let a suspended table run again, see :meth:`.Log.accept`.

        Releases in the release folder that the log lacks count as failed verdicts, as does a ledger
        that is lost.

        Args:
            table: Name of the table.
            why: Reason, which is signed.
            digest: Digest of the suspension that was shown to the user, see :meth:`suspension`.
                Empty: accept any suspension.

        Raises:
            ConfigError: If the table is suspended for another reason than the shown one.
        """

        def check_unchanged() -> None:
            if digest and self.suspension(table).digest != digest:
                raise ConfigError(
                    f"{table}: the causes of its suspension have changed. Fix: look at them again,"
                    " then accept it."
                )

        state = self.gate.log.believed(table)
        replacements, n_failed = self.gate.lost(table, state)
        try:
            self.gate.ledgers.read(table, state.ledger)
        except TableSuspended:
            replacements["ledger"] = ""
            n_failed = MAX_FAILED
        self.gate.log.accept(table, why, replacements, n_failed, check_unchanged)

    @reporting_unavailable()
    def roll_back(self, target: ReleaseTarget, name: str) -> Release:
        """Make an earlier release current, if it is intact and its rows have not failed since.

        The rollback is recorded, so the release that it replaces cannot be published again.

        Args:
            target: Table and partition.
            name: Id of the release.

        Raises:
            PublicationBlocked: If the release is damaged or failed, or a store cannot be read.
            InputError: If there is no such release.
            ConfigError: If the private folder is not that of this table's publisher: without
                log of failures, every release would be accepted.
        """
        release = self._existing_release(target, name)
        attestation = release.opened(target, self.gate.key.trusted)
        check_bytes(release.table, attestation.sha256, release.root)

        def facts_of_rollback(state: LogState) -> Facts:
            self.gate.check_not_behind(target.table, state)
            if state.is_withdrawn(attestation.sha256, attestation.content):
                raise Superseded(f"release {name} was withdrawn")
            hashes = [publication.sha256 for publication in state.history(target)]
            if attestation.sha256 not in hashes:
                raise Superseded(f"release {name} was never current")
            part = part_of_failures(target, attestation.setup)
            check_earlier_failures(state.failures(attestation.attested_policy(), attestation, part))
            return {"sha256": attestation.sha256, "content": attestation.content}

        move = self.gate.record_move(target, "rollback", facts_of_rollback)
        self.gate.store.point(target, name, move.sign_pointer, move.check_no_later_move)
        return release

    @reporting_unavailable()
    def withdraw(self, target: ReleaseTarget, name: str, why: str) -> list[ReleaseTarget]:
        """Remove a release for good: its rows can neither be published nor made current again, in
        any partition.

        If it is current, readers get an error until another release is current. The disclosed rows
        stay disclosed, so the ledger of the table does not change. Repeating the call completes an
        interrupted one.

        Args:
            target: Table and partition.
            name: Id of the release.
            why: Reason, which is signed.

        Returns:
            Other partitions whose last release has the same rows. Their readers still get them.

        Raises:
            PublicationBlocked: If a store cannot be read or written.
            InputError: If there is no such release.
            ConfigError: If the private folder is not that of this table's publisher.
        """
        release = self._existing_release(target, name)
        rows = self._rows_of(release, target)

        def facts_of_withdrawal(state: LogState) -> Facts:
            self.gate.check_not_behind(target.table, state)
            return {
                "release": name,
                "sha256": rows.sha256,
                "content": rows.content,
                "reason": why,
            }

        try:
            is_current = self.gate.store.pointer(target, self.gate.key.trusted).release == name
        except (InputError, PublicationBlocked):
            is_current = True  # readers cannot load the table either
        move = self.gate.record_move(target, "withdrawal", facts_of_withdrawal)
        if is_current:
            self.gate.store.point(target, "", move.sign_pointer, move.check_no_later_move)
        self.gate.store.remove(target, [release])
        return self._partitions_with(target, rows)

    def _rows_of(self, release: Release, target: ReleaseTarget) -> Rows:
        """Return hash and fingerprint of the rows of a release: from the log, otherwise from its
        attestation.
        """
        for publication in reversed(self.gate.log.state(target.table).history(target)):
            if release.id.endswith(publication.sha256[:12]):
                return publication
        return release.opened(target, self.gate.key.trusted)

    def _partitions_with(self, target: ReleaseTarget, rows: Rows) -> list[ReleaseTarget]:
        """Return the other partitions whose current release has the same rows."""
        state = self.gate.log.state(target.table)
        partitions = list[ReleaseTarget]()
        for partition in self.gate.store.targets(target.table):
            last = state.last_publication(partition)
            if partition == target or last is None or not last.is_same(rows):
                continue
            try:
                is_current = bool(self.gate.store.pointer(partition, self.gate.key.trusted).release)
            except (InputError, PublicationBlocked):
                is_current = True  # its readers cannot be asked
            if is_current:
                partitions.append(partition)
        return partitions

    @reporting_unavailable()
    def prune(
        self, target: ReleaseTarget, keep: int, days: float, *, dry_run: bool = False
    ) -> list[str]:
        """Remove old releases, and private files that no remaining release or attestation needs.

        The caller holds the run lease of the table. A release is kept if it is current, among the
        newest ``keep``, or younger than ``days``. The private files of the kept releases and of the
        latest attestation are kept, and the log, whose entries are never removed.

        Args:
            target: Table and partition.
            keep: Number of the newest releases that are kept, at least 1.
            days: Age in days up to which releases are kept, at least 0.
            dry_run: Only return what would be removed.

        Returns:
            Ids of the removed releases, and paths of the removed private files.

        Raises:
            PublicationBlocked: If a store cannot be read or written, or the current release cannot
                be determined.
        """
        self.gate.check_folders()
        history = self.gate.store.history(target)
        oldest_time = dt.datetime.now(dt.UTC) - dt.timedelta(days=days)
        try:
            current_id = self.gate.store.pointer(target, self.gate.key.trusted).release
        except InputError:
            current_id = ""
        remaining = history[-keep:]
        for release in history:
            if release.id == current_id or release.time >= oldest_time:
                remaining.append(release)
        old = [release for release in history if release not in remaining]
        old_ids = [release.id for release in old]
        unused = self._unused_files(target, remaining)
        removed = [*old_ids, *map(str, unused)]
        if not removed or dry_run:
            return removed

        facts = {"releases": old_ids, "files": len(unused)}
        self.gate.log.append(target, "prune", lambda _: facts)
        if old:
            self.gate.store.remove(target, old)
        for path in unused:
            path.unlink(missing_ok=True)
        return removed

    def _unused_files(self, target: ReleaseTarget, remaining: Iterable[Release]) -> list[Location]:
        """Return the private files that neither these releases, nor the latest attestation, nor the
        last publication needs.
        """
        folder = target.below(self.gate.private / "latest")
        latest = stored_bytes(folder, "attestation", "latest signed files")
        last = self.gate.log.state(target.table).last_publication(target)
        used = set[str]()
        if last is not None:
            used.add(last.sha256)
        for data in [latest, *(release.envelope for release in remaining)]:
            # unverified: it only keeps more files
            payload = unverified(SignedFile("attestation", data))
            if payload is not None:
                used.add(payload.sha256)
                used.update(map(str, dict(payload.body.get("results", {})).values()))

        unused = []
        for kind in ("snapshots", "results", "row_scores"):
            folder = target.below(self.gate.private / kind)
            for name in storage_of(folder).names():
                if not name.startswith(".") and name.partition(".")[0] not in used:
                    unused.append(folder / name)
        return unused

    def _existing_release(self, target: ReleaseTarget, name: str) -> Release:
        """Return the release ``name``, if this is the private folder of its publisher."""
        if not self.gate.log.state(target.table).history(target):
            raise ConfigError(
                f"{self.gate.private}: this is not the private folder of the publisher, because its"
                " log has no release of"
                f" {target}, so later failures of these rows are unknown. Fix: pass the"
                " publisher's folder with"
                " --private or PRIVACY_ASSETS_PRIVATE."
            )
        storage_of(self.gate.private).check_private()
        self.gate.check_folders()
        if name not in [release.id for release in self.gate.store.history(target)]:
            fix = "list the releases: privacy-assets releases"
            raise InputError(f"there is no release {safe_repr(name)}", where=str(target), fix=fix)
        return self.gate.store.release(target, name)
