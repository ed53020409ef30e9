"""The gate: signs and verifies the records of pipeline steps, and is the only component that
publishes releases.
"""

from __future__ import annotations

import datetime as dt
import errno
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import pandas as pd

from privacy_assets.errors import (
    ConfigError,
    Damaged,
    InputError,
    NotTrusted,
    OutOfDate,
    PublicationRefused,
    StoreError,
    StoreUnavailable,
    Superseded,
    TableStopped,
    WrongTarget,
    safe_repr,
)
from privacy_assets.gate.attestation import (
    Attestation,
    check_ledger,
    check_made,
    check_memory,
    check_policy,
    check_result,
    check_target,
    check_verdict,
)
from privacy_assets.gate.keys import SigningKey
from privacy_assets.gate.lock import Locks
from privacy_assets.gate.log import (
    GRADES,
    MOST,
    Facts,
    Log,
    LogState,
    Make,
    Read,
    Shown,
    failed_limits,
)
from privacy_assets.gate.release import Pointer, Sealing, replaced
from privacy_assets.gate.releases import Release, ReleaseStore, check_bytes
from privacy_assets.gate.snapshot import Snapshot, write_snapshot
from privacy_assets.gate.statements import (
    RecordKind,
    ReleaseTarget,
    SignedRecord,
    Statement,
    quoted,
    records,
    redo_of,
    seal,
    shown_digest,
    unseal,
    unverified,
)
from privacy_assets.infra.files import (
    check_private,
    names,
    private_folder,
    put_atomic,
    read_hashed_bytes,
    reason,
)
from privacy_assets.infra.markers import FolderRole, check_prepared
from privacy_assets.infra.objects import Location
from privacy_assets.metrics.base import Metric
from privacy_assets.metrics.policies import policy_digest
from privacy_assets.policy import LimitOutcome, Policy
from privacy_assets.stats.estimates import MetricResult, to_jsonable
from privacy_assets.tables.fingerprints import derive_key, keyed_fingerprint, lasting_fingerprint
from privacy_assets.tables.table import Table
from privacy_assets.tables.writing import parquet_bytes
from privacy_assets.version import ENGINE_VERSION

_AT_ONCE = 8  # partitions read in parallel


@contextmanager
def _reporting() -> Iterator[None]:
    """Raise StoreUnavailable for errors of a disk or store that are not handled otherwise. A
    decorator.
    """
    try:
        yield
    except OSError as error:
        raise StoreUnavailable.of(f"{reason(error)}; nothing changed", error) from None


@dataclass(frozen=True)
class Gate:
    """Signing, verification and publication of synthetic tables.

    All methods raise PublicationRefused for records that are rejected, and ConfigError if a key is
    missing or invalid.

    Attributes:
        releases: Release folder.
        private: Private folder, with snapshots, results, locks, logs and ledgers.
        key: Signing key.
        content_key: Key of the row fingerprints in records, and of the order in which rows are
            written.
    """

    releases: Location
    private: Location
    key: SigningKey
    content_key: bytes

    @property
    def store(self) -> ReleaseStore:
        """Release store."""
        return ReleaseStore(self.releases)

    @property
    def log(self) -> Log:
        """Logs of the tables: attempts, verdicts, releases and acceptances."""
        return Log(self.private, self.key)

    @property
    def locks(self) -> Locks:
        """Locks of the tables."""
        return Locks(self.private, self.key)

    def count_attempt(self, snapshot: Snapshot) -> int:
        """Return the number of this publication attempt, from 1, and count it; see
        :meth:`.LogState.next_attempt`.

        The same rows are the same attempt, independent of run, row order and file. Other rows are
        another attempt, independent of training rows, settings and generator.
        """

        def make(state: LogState) -> Facts | None:
            return (
                None if snapshot.content in dict(state.attempts) else {"content": snapshot.content}
            )

        return dict(self.log.append(snapshot.target, "attempt", make).attempts)[snapshot.content]

    def _record_verdict(
        self, snapshot: Snapshot, status: str, outcomes: Iterable[LimitOutcome]
    ) -> None:
        """Record a verdict, unless the log has one at least as bad with the same failed limits for
        these rows.
        """

        def make(state: LogState) -> Facts | None:
            content = snapshot.content
            new = [
                limit for limit in failed_limits(outcomes) if not state.has_failed(snapshot, limit)
            ]
            if not new and GRADES.index(state.verdicts.get(content, "")) >= GRADES.index(status):
                return None
            return {"content": content, "sha256": snapshot.sha256, "status": status, "failed": new}

        self.log.append(snapshot.target, "verdict", make)

    def check_places(self) -> None:
        """Check that releases and private folder are marked for their roles in the same deployment.

        Raises:
            ConfigError: If not, or if every user may write to the release folder.
            StoreUnavailable: If an object store cannot be read.
        """
        self.store.check()
        roles: tuple[tuple[FolderRole, Location], ...] = (
            ("releases", self.releases),
            ("private", self.private),
        )
        try:
            found = {check_prepared(target, role) for role, target in roles}
        except StoreError as error:
            raise StoreUnavailable.of(f"{reason(error)}; nothing changed", error) from None
        if len(found) > 1:
            raise ConfigError(
                f"{self.releases} and {self.private} belong to different deployments. Fix:"
                " correct the paths."
            )

    def sign_split(
        self,
        target: ReleaseTarget,
        role: str,
        fingerprint: str,
        digest: str,
        setup: Mapping[str, Any],
    ) -> SignedRecord:
        """Sign that a private table has ``role`` under ``setup``.

        Args:
            target: Table and partition.
            role: Role of the table.
            fingerprint: Keyed fingerprint of its content.
            digest: Keyed digest of its file.
            setup: Settings.

        Returns:
            The signed record.
        """
        body = {"role": role, "setup": to_jsonable(setup), "digest": digest}
        statement = Statement("split", target, fingerprint, body)
        return self._latest(seal(statement, self.key), target, f"split-{role}")

    def check_split(
        self,
        sealed: SignedRecord,
        target: ReleaseTarget,
        role: str,
        digest: str,
        setup: Mapping[str, Any],
    ) -> str:
        """Reject a table unless the latest ``read`` or ``split`` signed it for ``role`` under the
        current setup.

        Args:
            sealed: Signed record of the table.
            target: Table and partition.
            role: Role of the table.
            digest: Keyed digest of its file.
            setup: Current settings.

        Returns:
            The keyed fingerprint of its content.
        """
        found = self._opened(sealed, "split", target)
        self._check_latest(sealed, target, f"split-{role}")
        if found.body != {"role": role, "setup": to_jsonable(setup), "digest": digest}:
            did, redo = ("read", ("read",)) if role == "source" else ("split", ("split", "prepare"))
            text = (
                f"the {role} table is not the one that was {did}, or was {did} under other settings"
            )
            raise OutOfDate(text, redo=redo)
        return found.sha256

    def take_snapshot(
        self,
        table: Table,
        target: ReleaseTarget,
        train_fingerprint: str,
        filtered: Mapping[str, Any] | None = None,
        generator: Mapping[str, Any] | None = None,
        n_replaced: Mapping[str, int] = MappingProxyType({}),
        before: Table | None = None,
    ) -> tuple[Snapshot, SignedRecord]:
        """Write a synthetic table to the private folder, and sign its content and origin.

        The row order of the table is not written.

        Args:
            table: Rows with the schema of the private table.
            target: Table and partition.
            train_fingerprint: See :class:`.Snapshot`.
            filtered: See ``filter`` of :class:`.Snapshot`.
            generator: See :class:`.Snapshot`.
            n_replaced: See :class:`.Snapshot`.
            before: Rows before rare values were replaced, by which attempts and, besides the
                published ones, failures are remembered: the replacement depends on the real tables.
                None: ``table``.

        Returns:
            The snapshot and its signed record.
        """
        self.key.check()  # before the file is written
        frame = table.to_published_frame()
        folder, order = (
            private_folder(self._snapshots(target)),
            derive_key(self.content_key, "order of rows"),
        )
        path, sha256 = write_snapshot(frame, folder, order)
        known = frame if before is None else before.to_published_frame()
        content = keyed_fingerprint(lasting_fingerprint(known), self.content_key)
        dtypes = {name: str(frame[name].dtype) for name in frame.columns}
        snapshot = Snapshot(
            target,
            path,
            sha256,
            len(frame),
            train_fingerprint,
            content,
            dtypes,
            filtered,
            generator,
            n_replaced,
        )
        return snapshot, seal(snapshot.statement(), self.key)

    def snapshot(self, sealed: SignedRecord, target: ReleaseTarget) -> Snapshot:
        """Return the snapshot of a signed record, which must belong to ``target``."""
        return Snapshot.of(self._opened(sealed, "snapshot", target), self._snapshots(target))

    def sign_prepared(
        self, snapshot: Snapshot, setup: Mapping[str, Any], body: Mapping[str, Any]
    ) -> SignedRecord:
        """Sign the prepared tables of ``snapshot`` and of the real tables, which were split under
        ``setup``.
        """
        stated = {
            **to_jsonable(body),
            "setup": to_jsonable(setup),
            "engine_version": ENGINE_VERSION,
        }
        return seal(Statement("prepared", snapshot.target, snapshot.sha256, stated), self.key)

    def prepared(
        self, sealed: SignedRecord, target: ReleaseTarget, digest: str, setup: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], Snapshot]:
        """Return the signed record of prepared tables, by this engine under this setup, and their
        snapshot.

        Args:
            sealed: Signed record.
            target: Table and partition.
            digest: Keyed digest of the prepared tables.
            setup: Current settings of the split.

        Returns:
            Body of the record, and the snapshot of the synthetic table.
        """
        found = self._opened(sealed, "prepared", target)
        if found.body.get("engine_version") != ENGINE_VERSION:
            raise OutOfDate("the tables were prepared by another engine", redo=("prepare",))
        if found.body.get("setup") != to_jsonable(setup):
            raise OutOfDate(
                "the tables were split or read under other settings", redo=("split", "prepare")
            )
        if found.body.get("digest") != digest:
            raise Damaged("evaluation_inputs was changed after it was signed", redo=("prepare",))
        return found.body, self.snapshot(
            SignedRecord("snapshot", found.body["snapshot"].encode()), target
        )

    def ledger(self, table: str) -> tuple[str, bytes]:
        """Return SHA-256 and bytes of the ledger of disclosure after the last release.

        The log names the ledger, so an older copy is rejected. Before the first release, hash and
        bytes are empty.

        Raises:
            TableStopped: If the file is missing or was changed.
        """
        state = self.log.state(table)
        return state.ledger, self._check_ledger(table, state.ledger)

    def _check_ledger(self, table: str, sha256: str) -> bytes:
        """Return the bytes of a ledger, or raise TableStopped if it is missing or was changed."""
        path = self._ledgers(table) / f"{sha256}.parquet"
        try:
            data = read_hashed_bytes(path, sha256) if sha256 else b""
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise StoreUnavailable.of(
                    f"the ledger cannot be read ({reason(error)})", error, path
                ) from None
            data = None
        if data is None:
            raise TableStopped(
                f"the ledger of {table} is missing or was changed ({path})", table=table
            )
        return data

    def _ledgers(self, table: str) -> Location:
        return self.private / "ledgers" / quoted(table)

    def sign_result(
        self,
        result: MetricResult,
        snapshot: Snapshot,
        outcomes: Iterable[LimitOutcome],
        ledger: bytes = b"",
    ) -> SignedRecord:
        """Sign the result of one metric, after counting the attempt and recording failed limits.

        Args:
            result: Result of the metric.
            snapshot: Synthetic table.
            outcomes: Outcomes of the limits on this metric.
            ledger: Ledger of disclosure with this table merged in. It takes effect when the table
                is published. Empty: the metric does not measure it.
        """
        self.count_attempt(snapshot)
        if failed := [outcome for outcome in outcomes if outcome.status == "fail"]:
            self._record_verdict(snapshot, "fail", failed)
        body, sha256 = result.to_json(), hashlib.sha256(ledger).hexdigest() if ledger else ""
        if ledger:
            put_atomic(
                private_folder(self._ledgers(snapshot.target.table)) / f"{sha256}.parquet", ledger
            )
        return seal(
            Statement("result", snapshot.target, snapshot.sha256, {**body, "ledger": sha256}),
            self.key,
        )

    def result(self, sealed: SignedRecord, snapshot: Snapshot) -> MetricResult:
        """Return the signed result of one metric, which must have been computed on ``snapshot``."""
        statement = self._opened(sealed, "result", snapshot.target)
        if statement.sha256 != snapshot.sha256:
            metric = statement.body.get("metric", "a score")
            raise OutOfDate(f"{metric} was computed on another synthetic table", redo=("score",))
        return MetricResult.from_json(
            {name: value for name, value in statement.body.items() if name != "ledger"}
        )

    def attest(
        self,
        snapshot: Snapshot,
        policy: Policy,
        scores: Mapping[str, SignedRecord],
        inputs: Mapping[str, str],
        metrics: Mapping[str, Metric],
        setup: Mapping[str, Any],
    ) -> tuple[Attestation, SignedRecord]:
        """Evaluate ``policy``, record failures, and sign the verdict.

        Args:
            snapshot: Synthetic table. It must originate from the current train table, filter and
                attacked generator.
            policy: Policy in force.
            scores: Signed results by metric. The results that the policy limits are stored in the
                private folder.
            inputs: Current keyed fingerprints of the tables, by role. Every result must match them.
            metrics: Configured metrics by name.
            setup: All other current settings, including "seed" and "filter".

        Returns:
            The attestation and its signed record.

        Raises:
            PublicationRefused: If a result or the snapshot is not trusted or does not match.
        """
        self.check_places()
        self.locks.check(snapshot.target.table, policy, setup, snapshot.content)
        check_made(snapshot, inputs, setup, metrics)
        state = self.log.state(snapshot.target.table)
        inputs = {**inputs, "ledger": state.ledger}
        results = {name: self.result(sealed, snapshot) for name, sealed in scores.items()}
        for name, result in results.items():
            check_result(result, inputs, metrics.get(name), setup["seed"])
        remembered = state.failures(policy, snapshot, self._part(snapshot.target, setup))
        attempt = self.count_attempt(snapshot)
        verdict = policy.judge(results, attempt)
        ledgers = [
            self._opened(one, "result", snapshot.target).body.get("ledger")
            for one in scores.values()
        ]
        kept = {
            name: self._keep(sealed, snapshot.target)
            for name, sealed in scores.items()
            if name in policy.metrics
        }
        stated = Attestation(
            target=snapshot.target,
            sha256=snapshot.sha256,
            content=snapshot.content,
            policy=policy.to_dict(),
            policy_digest=policy_digest(policy),
            verdict="fail" if remembered else verdict.status,
            limits={outcome.limit.key: outcome.status for outcome in verdict.outcomes},
            remembered=remembered,
            results=kept,
            inputs=inputs,
            ledger=max(filter(None, ledgers), default=""),
            setup=to_jsonable(setup),
            attempt=attempt,
            n_rows=snapshot.n_rows,
            dtypes=dict(snapshot.dtypes),
            made_at=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        )
        self._record_verdict(snapshot, stated.verdict, verdict.outcomes)
        sealed = self._latest(seal(stated.statement(), self.key), snapshot.target, "attestation")
        return replace(stated, keyid=self.key.signer.public_key.keyid), sealed

    def row_scores(self, snapshot: Snapshot, metric: str) -> Location:
        """Return the path of the private Parquet file with the scores of each row of a snapshot.

        Args:
            snapshot: Synthetic table.
            metric: Name of the metric.
        """
        return (
            snapshot.target.below(self.private / "row_scores")
            / f"{snapshot.sha256}.{metric}.parquet"
        )

    def keep_row_scores(self, result: MetricResult, snapshot: Snapshot) -> Location | None:
        """Write the scores of each row to the private folder. They are not signed, and no step
        reads them.

        Args:
            result: Result of a metric.
            snapshot: Synthetic table.

        Returns:
            Path of the file, with rows in the order of the snapshot. None if the metric has no
            scores of rows.
        """
        if not result.row_scores:
            return None
        path = self.row_scores(snapshot, result.metric)
        return put_atomic(path, parquet_bytes(pd.DataFrame(result.row_scores)))

    def _keep(self, sealed: SignedRecord, target: ReleaseTarget) -> str:
        """Store a signed result in the private folder, and return its keyed digest."""
        digest = self._result_digest(sealed.data)
        put_atomic(
            private_folder(target.below(self.private / "results")) / f"{digest}.json", sealed.data
        )
        return digest

    def _kept(self, stated: Attestation, snapshot: Snapshot) -> dict[str, MetricResult]:
        """Read the signed results that an attestation names.

        Raises:
            PublicationRefused: If one is missing or changed.
        """
        found, folder = {}, stated.target.below(self.private / "results")
        for name, digest in stated.results.items():
            what, file = f"signed result of {name} in {folder}", f"{digest}.json"
            if self._result_digest(data := records(folder, what, file).get(file, b"")) != digest:
                text = f"the {what} is missing or was changed"
                raise Damaged(text, path=str(folder / file), redo=("score", "attest"))
            found[name] = self.result(SignedRecord("result", data), snapshot)
        return found

    def _result_digest(self, data: bytes) -> str:
        return keyed_fingerprint(
            hashlib.sha256(data).hexdigest(), derive_key(self.content_key, "results")
        )

    def attestation(self, sealed: SignedRecord, target: ReleaseTarget) -> Attestation:
        """Return the attestation of a signed record, which must belong to ``target``."""
        return Attestation.of(self._opened(sealed, "attestation", target))

    @_reporting()
    def publish(
        self,
        sealed: SignedRecord,
        snapshot: SignedRecord,
        target: ReleaseTarget,
        policy: Policy,
        setup: Mapping[str, Any],
    ) -> Release:
        """Publish the snapshot that the attestation names.

        The following is verified, in this order: signing key and folders; signature, table and
        partition of both records; the lock of the table, and that the table is not stopped; engine,
        policy, settings and verdict; that the attestation names this snapshot and its bytes; that
        the signed results in the private folder meet the policy; that these rows never failed in
        any run; that no later attestation exists; that the rows were not published and later
        replaced or rolled back, or withdrawn in any partition; that the log does not end before the
        current release; and that the disclosure was measured with the current ledger. If a check
        fails, the previous release stays current. Repeating the call completes an interrupted
        publication. If the release is current, it only renews the time of its pointer, see
        :class:`.Pointer`.

        Args:
            sealed: Signed attestation.
            snapshot: Signed record of the synthetic table.
            target: Table and partition.
            policy: Policy in force.
            setup: Current settings except the policy.

        Returns:
            The current release.

        Raises:
            PublicationRefused: If a check fails.
            ConfigError: If the signing key or a folder is not usable.
        """
        self.key.check()
        self.check_places()
        stated, taken = self.attestation(sealed, target), self.snapshot(snapshot, target)
        self.locks.check(target.table, policy, setup)
        check_policy(stated, policy, setup)
        check_verdict(stated.policy_verdict(), stated.remembered)
        if (taken.sha256, taken.content) != (stated.sha256, stated.content):
            raise OutOfDate("the attestation belongs to another synthetic table", redo=("attest",))
        check_verdict(policy.judge(self._kept(stated, taken), stated.attempt), stated.remembered)
        self._check_latest(sealed, target, "attestation")
        self.store.check_ids(target)
        ids = [release.id for release in self.store.history(target)]

        def make(state: LogState) -> Facts | None:
            state.check_not_stopped(target.table)
            check_memory(state.failures(policy, stated, self._part(target, setup)))
            before = state.history(target)
            found = [one for one in before if one.same(stated.sha256, stated.content)]
            if state.is_withdrawn(stated.sha256, stated.content):
                raise Superseded(
                    "these rows were withdrawn, which holds for all partitions of the table"
                )
            if found and found[-1] != before[-1]:
                raise replaced(
                    max((name for name in ids if name.endswith(found[-1].sha256[:12])), default="")
                )
            if found and found[-1].sha256 == stated.sha256:
                return None  # readers have it already, or this call completes an interrupted one
            check_ledger(stated, state.ledger)
            self._check_ledger(target.table, stated.ledger)  # a later run needs it
            return {
                "sha256": stated.sha256,
                "content": stated.content,
                "ledger": stated.ledger or state.ledger,
            }

        pointer, still = self._recorded(target, "release", make)
        if (release := self._current_of(target, stated.sha256)) is None:
            release = self.store.add(target, taken.path, stated.sha256, sealed.data, pointer, still)
        else:
            self.store.point(target, release.id, pointer, still)
        self._remove_ledgers(target.table)
        with suppress(OSError, PublicationRefused):  # the next publication removes it
            self.locks.end_proposal(target.table)
        return release

    def _remove_ledgers(self, table: str) -> None:
        """Remove all ledgers but the one after the last release. A failure leaves a file that the
        next call removes.
        """
        with suppress(OSError, PublicationRefused):
            kept = self.log.state(table).ledger
            for name in names(folder := self._ledgers(table)):
                if name != f"{kept}.parquet" and not name.startswith("."):
                    (folder / name).unlink(missing_ok=True)

    def _recorded(
        self, target: ReleaseTarget, event: str, make: Make
    ) -> tuple[Sealing, Callable[[], None]]:
        """Record an operation that moves the pointer of ``target``, before it happens.

        From then on it counts as done, because readers may see its result even if it fails.
        Repeating it completes it.

        Args:
            target: Table and partition.
            event: Kind of the entry.
            make: See :meth:`.Log.append`.

        Returns:
            A function that returns the signed pointer to a release, and one that raises Superseded
            if another operation was recorded meanwhile.
        """

        def checked(state: LogState) -> Facts | None:
            self._check_not_behind(target.table, state)
            return make(state)

        number = self.log.append(target, event, checked).moves.get(target.part, 0)

        def still() -> None:
            if self.log.state(target.table).moves.get(target.part, 0) != number:
                raise Superseded(
                    "another release or rollback was recorded meanwhile; nothing changed"
                )

        return lambda name: Pointer(name, number, dt.datetime.now(dt.UTC)).sealed(
            target, self.key
        ), still

    def _part(self, target: ReleaseTarget, setup: Mapping[str, Any]) -> str | None:
        """Return the partition whose failures count, or None if those of all partitions do."""
        return None if setup.get("shared_subjects") else target.part

    def _check_not_behind(self, table: str, state: LogState, read: Read | None = None) -> None:
        """Raise TableStopped if the release folder has a release, or a pointer with a number, that
        the log lacks.

        Args:
            table: Name of the table.
            state: State of its log.
            read: Reads the state again, because others may publish meanwhile. None:
                :meth:`.Log.state`.
        """
        if self._lost(table, state)[1] and self._lost(table, (read or self.log.state)(table))[1]:
            text = (
                f"the log of {table} ends before a release that readers have: it is missing, or"
                " an older copy"
            )
            raise TableStopped(text, table=table)

    def _lost(self, table: str, state: LogState) -> tuple[dict[str, Any], int]:
        """Return fields of the state with all releases in the release folder, and how many of them
        the log lacks.
        """

        def part(target: ReleaseTarget) -> tuple[int, list[Shown]]:
            known, found = {one.sha256[:12] for one in state.history(target)}, list[Shown]()
            for release in self.store.history(target):
                # a release without a trusted signature does not count
                with suppress(PublicationRefused):
                    if release.id[-12:] not in known:
                        stated = release.opened(target, self.key.trusted)
                        found.append(Shown(target.part, 0, stated.sha256, stated.content))
            try:
                return self.store.pointer(target, self.key.trusted).number, found
            except (InputError, NotTrusted, WrongTarget, OutOfDate, Damaged):
                return 0, found

        moves, shown, lost = dict(state.moves), list[Shown](), 0
        targets = list(self.store.targets(table))
        with ThreadPoolExecutor(_AT_ONCE) as pool:  # object stores answer slowly
            for target, (number, found) in zip(targets, pool.map(part, targets), strict=True):
                lost += max(number - moves.get(target.part, 0), len(found))
                moves[target.part] = max(number, moves.get(target.part, 0))
                shown += found
        return {"moves": moves, "shown": (*shown, *state.shown)}, lost

    def _current_of(self, target: ReleaseTarget, sha256: str) -> Release | None:
        """Return the current release if it is whole and has these bytes, which are not stored
        again.
        """
        try:
            release = self.store.current(target, self.key.trusted)
            check_bytes(release.table, sha256, release.root)
            return release if release.opened(target, self.key.trusted).sha256 == sha256 else None
        except (OSError, InputError, PublicationRefused):
            return None

    def stop(self, table: str) -> tuple[list[str], str]:
        """Return all that stops ``table``. One acceptance settles all of it.

        Args:
            table: Name of the table.

        Returns:
            The causes, each a sentence without a period; empty if the table is not stopped. And
            their digest, which also covers the last entry of the log.
        """
        state = self.log.believed(table)
        checks: list[Callable[[], object]] = [
            lambda: self.log.state(table),
            lambda: state.check_not_stopped(table),
            lambda: self._check_not_behind(table, state, self.log.believed),
            lambda: self._check_ledger(table, state.ledger),
        ]
        causes = []
        for check in checks:
            try:
                check()
            except TableStopped as error:
                causes.append(error.event)
        return causes, shown_digest(
            {"table": table, "entry": state.number, "head": state.head, "causes": causes}
        )

    def accept(self, table: str, why: str, digest: str = "") -> None:
        """Let a stopped table run again, see :meth:`.Log.accept`.

        Releases in the release folder that the log lacks count as failed verdicts, as does a ledger
        that is lost.

        Args:
            table: Name of the table.
            why: Reason, which is signed.
            digest: Digest of the stop that was shown to the user, see :meth:`stop`. Empty: accept
                any stop.

        Raises:
            ConfigError: If the table is stopped for another reason than the shown one.
        """

        def check_shown() -> None:
            if digest and self.stop(table)[1] != digest:
                raise ConfigError(
                    f"{table}: the causes of its stop have changed. Fix: look at them again, then"
                    " accept it."
                )

        state = self.log.believed(table)
        lost, failed = self._lost(table, state)
        try:
            self._check_ledger(table, state.ledger)
        except TableStopped:
            lost, failed = {**lost, "ledger": ""}, MOST
        self.log.accept(table, why, lost, failed, check_shown)

    def check_not_stopped(self, table: str) -> None:
        """Raise TableStopped if ``table`` failed too often, or its log or ledger is damaged or an
        older copy.
        """
        state = self.log.state(table)
        state.check_not_stopped(table)
        self._check_not_behind(table, state)
        self._check_ledger(table, state.ledger)

    @_reporting()
    def roll_back(self, target: ReleaseTarget, name: str) -> Release:
        """Make an earlier release current, if it is intact and its rows have not failed since.

        The rollback is recorded, so the release that it replaces cannot be published again.

        Args:
            target: Table and partition.
            name: Id of the release.

        Raises:
            PublicationRefused: If the release is damaged or failed, or a store cannot be read.
            InputError: If there is no such release.
            ConfigError: If the private folder is not that of this table's publisher: without
                failure records, every release would be accepted.
        """
        release = self._found(target, name)
        stated = release.opened(target, self.key.trusted)
        check_bytes(release.table, stated.sha256, release.root)

        def make(state: LogState) -> Facts:
            if state.is_withdrawn(stated.sha256, stated.content):
                raise Superseded(f"release {name} was withdrawn")
            if not any(one.sha256 == stated.sha256 for one in state.history(target)):
                raise Superseded(f"release {name} was never current")
            part = self._part(target, stated.setup)
            check_memory(state.failures(stated.attested_policy(), stated, part))
            return {"sha256": stated.sha256, "content": stated.content}

        self.store.point(target, name, *self._recorded(target, "rollback", make))
        return release

    @_reporting()
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
            PublicationRefused: If a store cannot be read or written.
            InputError: If there is no such release.
            ConfigError: If the private folder is not that of this table's publisher.
        """
        release = self._found(target, name)
        shown = [
            one
            for one in self.log.state(target.table).history(target)
            if name.endswith(one.sha256[:12])
        ]
        known: Any = shown[-1] if shown else release.opened(target, self.key.trusted)
        facts = {"release": name, "sha256": known.sha256, "content": known.content, "reason": why}
        try:
            current = self.store.pointer(target, self.key.trusted).release == name
        except (InputError, PublicationRefused):
            current = True  # readers cannot load the table either
        pointer, still = self._recorded(target, "withdrawal", lambda _: facts)
        if current:
            self.store.point(target, "", pointer, still)
        self.store.remove(target, [release])
        return self._partitions_with(target, known)

    def _partitions_with(self, target: ReleaseTarget, rows: Any) -> list[ReleaseTarget]:
        """Return the other partitions whose current release has the same rows.

        Args:
            target: Table and partition.
            rows: ``sha256`` and ``content`` of the rows.
        """
        state = self.log.state(target.table)
        partitions = list[ReleaseTarget]()
        for other in self.store.targets(target.table):
            shown = state.history(other)
            if other == target or not shown or not shown[-1].same(rows.sha256, rows.content):
                continue
            try:
                is_current = bool(self.store.pointer(other, self.key.trusted).release)
            except (InputError, PublicationRefused):
                is_current = True  # its readers cannot be asked
            if is_current:
                partitions.append(other)
        return partitions

    @_reporting()
    def prune(
        self, target: ReleaseTarget, keep: int, days: float, *, dry_run: bool = False
    ) -> list[str]:
        """Remove old releases, and private files that no remaining release or attestation needs.

        The caller holds the lock of the table. A release is kept if it is current, among the newest
        ``keep``, or younger than ``days``. The private files of the kept releases and of the latest
        attestation are kept, and the log, whose entries are never removed.

        Args:
            target: Table and partition.
            keep: Number of the newest releases that are kept, at least 1.
            days: Age in days up to which releases are kept, at least 0.
            dry_run: Only return what would be removed.

        Returns:
            Ids of the removed releases, and paths of the removed private files.

        Raises:
            PublicationRefused: If a store cannot be read or written, or the current release cannot
                be determined.
        """
        self.check_places()
        history, since = (
            self.store.history(target),
            dt.datetime.now(dt.UTC) - dt.timedelta(days=days),
        )
        try:
            current = self.store.pointer(target, self.key.trusted).release
        except InputError:
            current = ""
        kept = [
            *history[-keep:],
            *(one for one in history if one.id == current or one.time >= since),
        ]
        old = [release for release in history if release not in kept]
        latest = records(
            target.below(self.private / "latest"), "latest records", "attestation"
        ).get("attestation", b"")
        needed = {one.sha256 for one in self.log.state(target.table).history(target)[-1:]}
        for data in [latest, *(one.envelope for one in kept)]:
            # unverified: it only keeps more files
            if stated := unverified(SignedRecord("attestation", data)):
                needed |= {stated.sha256, *map(str, dict(stated.body.get("results", {})).values())}
        unused = [
            folder / name
            for folder in (
                target.below(self.private / kind) for kind in ("snapshots", "results", "row_scores")
            )
            for name in names(folder)
            if not name.startswith(".") and name.partition(".")[0] not in needed
        ]
        found = [*(release.id for release in old), *map(str, unused)]
        if found and not dry_run:
            facts = {"releases": [release.id for release in old], "files": len(unused)}
            self.log.append(target, "prune", lambda _: facts)
            if old:
                self.store.remove(target, old)
            for path in unused:
                path.unlink(missing_ok=True)
        return found

    def _found(self, target: ReleaseTarget, name: str) -> Release:
        """Return the release ``name``, if this is the private folder of its publisher."""
        if not self.log.state(target.table).history(target):
            raise ConfigError(
                f"{self.private}: this is not the private folder of the publisher, because its"
                " log has no release of"
                f" {target}, so later failures of these rows are unknown. Fix: pass the"
                " publisher's folder with"
                " --private or PRIVACY_ASSETS_PRIVATE."
            )
        check_private(self.private)
        self.check_places()
        if name not in [release.id for release in self.store.history(target)]:
            fix = "list the releases: privacy-assets releases"
            raise InputError(f"there is no release {safe_repr(name)}", where=str(target), fix=fix)
        return self.store.release(target, name)

    def _snapshots(self, target: ReleaseTarget) -> Location:
        return target.below(self.private / "snapshots")

    def _latest(self, sealed: SignedRecord, target: ReleaseTarget, name: str) -> SignedRecord:
        """Store ``sealed`` as the latest record of a step. Earlier ones are rejected from now
        on.
        """
        put_atomic(target.below(self.private / "latest") / name, sealed.data)
        return sealed

    def _check_latest(self, sealed: SignedRecord, target: ReleaseTarget, name: str) -> None:
        if (
            records(target.below(self.private / "latest"), "latest records", name).get(name)
            != sealed.data
        ):
            redo = (
                ("split", "prepare", "score", "attest")
                if sealed.kind == "split"
                else redo_of(sealed.kind)
            )
            redo = ("read", *redo) if name == "split-source" else redo
            raise OutOfDate(f"this {sealed.kind} of {target} is not the latest one", redo=redo)

    def _opened(self, sealed: SignedRecord, kind: RecordKind, target: ReleaseTarget) -> Statement:
        if sealed.kind != kind:
            raise NotTrusted(
                f"expected a signed {kind}, got a signed {sealed.kind}", redo=redo_of(kind)
            )
        statement = unseal(sealed, self.key.trusted)
        check_target(statement.target, target, kind)
        return statement
