"""The gate: signs and verifies the files of pipeline steps, and is the only component that
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
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import pandas as pd

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
    safe_repr,
)
from privacy_assets.gate.accepted_settings import AcceptedSettings
from privacy_assets.gate.attestation import (
    Attestation,
    check_earlier_failures,
    check_in_force,
    check_made,
    check_measured_with,
    check_result,
    check_snapshot,
    check_target,
    check_verdict,
)
from privacy_assets.gate.envelope import (
    Payload,
    ReleaseTarget,
    SignedFile,
    SignedFileKind,
    quoted,
    redo_of,
    shown_digest,
    sign_payload,
    signed_files,
    unverified,
    verified_payload,
)
from privacy_assets.gate.keys import SigningKey
from privacy_assets.gate.log import (
    GRADES,
    MAX_FAILED,
    Facts,
    FactsOf,
    Log,
    LogState,
    Publication,
    ReadState,
    Rows,
    failed_limits,
)
from privacy_assets.gate.markers import FolderRole, check_prepared
from privacy_assets.gate.release import Pointer, replaced
from privacy_assets.gate.releases import Release, ReleaseStore, check_bytes
from privacy_assets.gate.snapshot import Snapshot, write_snapshot
from privacy_assets.infra.files import (
    check_private,
    names,
    private_folder,
    put_atomic,
    read_hashed_bytes,
    reason,
)
from privacy_assets.infra.objects import Location
from privacy_assets.metrics.base import Metric
from privacy_assets.metrics.policies import policy_digest
from privacy_assets.policy import LimitOutcome, Policy
from privacy_assets.stats.estimates import MetricResult, to_jsonable
from privacy_assets.tables.fingerprints import derive_key, keyed_fingerprint, lasting_fingerprint
from privacy_assets.tables.table import Table
from privacy_assets.tables.writing import parquet_bytes
from privacy_assets.version import PACKAGE_VERSION

_N_THREADS = 8  # partitions read in parallel


@contextmanager
def _reporting() -> Iterator[None]:
    """Raise StoreUnavailable for errors of a disk or store that are not handled otherwise. A
    decorator.
    """
    try:
        yield
    except OSError as error:
        raise StoreUnavailable.of(f"{reason(error)}; nothing changed", error) from None


@dataclass(frozen=True, slots=True)
class _RecordedMove:
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


class _Lost(NamedTuple):
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


class Suspension(NamedTuple):
    """All that suspends a table.

    Attributes:
        causes: Causes, each a sentence without a period. Empty: the table is not suspended.
        digest: Digest of the causes and of the last entry of the log.
    """

    causes: list[str]
    digest: str


@dataclass(frozen=True)
class Gate:
    """Signing, verification and publication of synthetic tables.

    All methods raise PublicationBlocked for signed files that are rejected, and ConfigError if a
    key is missing or invalid.

    Attributes:
        releases: Release folder.
        private: Private folder, with snapshots, results, accepted settings, logs and ledgers.
        key: Signing key.
        content_key: Key of the row fingerprints in signed files, and of the order in which rows are
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
    def accepted(self) -> AcceptedSettings:
        """Accepted settings of the tables."""
        return AcceptedSettings(self.private, self.key)

    def count_attempt(self, snapshot: Snapshot) -> int:
        """Return the number of this publication attempt, from 1, and count it; see
        :meth:`.LogState.next_attempt`.

        The same rows are the same attempt, independent of run, row order and file. Other rows are
        another attempt, independent of training rows, settings and generator.

        Args:
            snapshot: Synthetic table.
        """

        def facts_of_attempt(state: LogState) -> Facts | None:
            if snapshot.content in dict(state.attempts):
                return None
            return {"content": snapshot.content}

        state = self.log.append(snapshot.target, "attempt", facts_of_attempt)
        return dict(state.attempts)[snapshot.content]

    def _record_verdict(
        self, snapshot: Snapshot, status: str, outcomes: Iterable[LimitOutcome]
    ) -> None:
        """Record a verdict, unless the log has one at least as bad with the same failed limits for
        these rows.
        """

        def facts_of_verdict(state: LogState) -> Facts | None:
            new_limits = []
            for limit in failed_limits(outcomes):
                if not state.has_failed(snapshot, limit):
                    new_limits.append(limit)
            grade = GRADES.index(state.verdicts.get(snapshot.content, ""))
            if not new_limits and grade >= GRADES.index(status):
                return None
            return {
                "content": snapshot.content,
                "sha256": snapshot.sha256,
                "status": status,
                "failed": new_limits,
            }

        self.log.append(snapshot.target, "verdict", facts_of_verdict)

    def check_folders(self) -> None:
        """Check that releases and private folder are marked for their roles in the same deployment.

        Raises:
            ConfigError: If not, or if every user may write to the release folder.
            StoreUnavailable: If an object store cannot be read.
        """
        self.store.check()
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

    def sign_split(
        self,
        target: ReleaseTarget,
        role: str,
        fingerprint: str,
        digest: str,
        setup: Mapping[str, Any],
    ) -> SignedFile:
        """Sign that a private table has ``role`` under ``setup``.

        Args:
            target: Table and partition.
            role: Role of the table.
            fingerprint: Keyed fingerprint of its content.
            digest: Keyed digest of its file.
            setup: Settings.

        Returns:
            The signed file.
        """
        body = {"role": role, "setup": to_jsonable(setup), "digest": digest}
        payload = Payload("split", target, fingerprint, body)
        signed_file = sign_payload(payload, self.key)
        self._store_latest(signed_file, target, f"split-{role}")
        return signed_file

    def check_split(
        self,
        signed_file: SignedFile,
        target: ReleaseTarget,
        role: str,
        digest: str,
        setup: Mapping[str, Any],
    ) -> str:
        """Reject a table unless the latest ``read`` or ``split`` signed it for ``role`` under the
        current setup.

        Args:
            signed_file: Signed file of the table.
            target: Table and partition.
            role: Role of the table.
            digest: Keyed digest of its file.
            setup: Current settings.

        Returns:
            The keyed fingerprint of its content.
        """
        payload = self._verified(signed_file, "split", target)
        self._check_latest(signed_file, target, f"split-{role}")
        if payload.body != {"role": role, "setup": to_jsonable(setup), "digest": digest}:
            verb = "split"
            redo: tuple[str, ...] = ("split", "prepare")
            if role == "source":
                verb = "read"
                redo = ("read",)
            text = (
                f"the {role} table is not the one that was {verb}, or was {verb} under other"
                " settings"
            )
            raise OutOfDate(text, redo=redo)
        return payload.sha256

    def take_snapshot(
        self,
        table: Table,
        target: ReleaseTarget,
        train_fingerprint: str,
        filtered: Mapping[str, Any] | None = None,
        generator: Mapping[str, Any] | None = None,
        n_replaced: Mapping[str, int] = MappingProxyType({}),
        before: Table | None = None,
    ) -> tuple[Snapshot, SignedFile]:
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
            The snapshot and its signed file.
        """
        self.key.check()  # before the file is written
        frame = table.to_published_frame()
        folder = private_folder(self._snapshots(target))
        path, sha256 = write_snapshot(frame, folder, derive_key(self.content_key, "order of rows"))
        remembered_frame = frame if before is None else before.to_published_frame()
        fingerprint = lasting_fingerprint(remembered_frame)
        snapshot = Snapshot(
            target,
            path,
            sha256,
            n_rows=len(frame),
            train_fingerprint=train_fingerprint,
            content=keyed_fingerprint(fingerprint, self.content_key),
            dtypes={name: str(frame[name].dtype) for name in frame.columns},
            filter=filtered,
            generator=generator,
            n_replaced=n_replaced,
        )
        return snapshot, sign_payload(snapshot.payload(), self.key)

    def snapshot(self, signed_file: SignedFile, target: ReleaseTarget) -> Snapshot:
        """Verify the signed file of a snapshot, and return the snapshot.

        Args:
            signed_file: Signed file.
            target: Table and partition to which it must belong.
        """
        payload = self._verified(signed_file, "snapshot", target)
        return Snapshot.of(payload, self._snapshots(target))

    def sign_prepared(
        self, snapshot: Snapshot, setup: Mapping[str, Any], body: Mapping[str, Any]
    ) -> SignedFile:
        """Sign the prepared tables of a snapshot and of the real tables.

        Args:
            snapshot: Synthetic table.
            setup: Settings of the split.
            body: Further content of the signed file.
        """
        signed = {
            **to_jsonable(body),
            "setup": to_jsonable(setup),
            "package_version": PACKAGE_VERSION,
        }
        return sign_payload(Payload("prepared", snapshot.target, snapshot.sha256, signed), self.key)

    def prepared(
        self, signed_file: SignedFile, target: ReleaseTarget, digest: str, setup: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], Snapshot]:
        """Return the signed file of prepared tables, by this version under this setup, and their
        snapshot.

        Args:
            signed_file: Signed file.
            target: Table and partition.
            digest: Keyed digest of the prepared tables.
            setup: Current settings of the split.

        Returns:
            Body of the signed file, and the snapshot of the synthetic table.
        """
        body = self._verified(signed_file, "prepared", target).body
        if body.get("package_version") != PACKAGE_VERSION:
            raise OutOfDate(
                "the tables were prepared by another version of the package", redo=("prepare",)
            )
        if body.get("setup") != to_jsonable(setup):
            raise OutOfDate(
                "the tables were split or read under other settings", redo=("split", "prepare")
            )
        if body.get("digest") != digest:
            raise Damaged("evaluation_inputs was changed after it was signed", redo=("prepare",))
        snapshot_file = SignedFile("snapshot", body["snapshot"].encode())
        return body, self.snapshot(snapshot_file, target)

    def ledger(self, table: str) -> tuple[str, bytes]:
        """Return SHA-256 and bytes of the ledger of disclosure after the last release.

        The log names the ledger, so an older copy is rejected. Before the first release, hash and
        bytes are empty.

        Args:
            table: Name of the table.

        Raises:
            TableSuspended: If the file is missing or was changed.
        """
        state = self.log.state(table)
        return state.ledger, self._ledger_bytes(table, state.ledger)

    def _ledger_bytes(self, table: str, sha256: str) -> bytes:
        """Return the bytes of a ledger, or raise TableSuspended if it is missing or was changed."""
        if not sha256:
            return b""
        path = self._ledgers(table) / f"{sha256}.parquet"
        data = None
        try:
            data = read_hashed_bytes(path, sha256)
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise StoreUnavailable.of(
                    f"the ledger cannot be read ({reason(error)})", error, path
                ) from None
        if data is None:
            raise TableSuspended(
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
    ) -> SignedFile:
        """Sign the result of one metric, after counting the attempt and recording failed limits.

        Args:
            result: Result of the metric.
            snapshot: Synthetic table.
            outcomes: Outcomes of the limits on this metric.
            ledger: Ledger of disclosure with this table merged in. It takes effect when the table
                is published. Empty: the metric does not measure it.
        """
        self.count_attempt(snapshot)
        failed = [outcome for outcome in outcomes if outcome.status == "fail"]
        if failed:
            self._record_verdict(snapshot, "fail", failed)
        ledger_sha256 = ""
        if ledger:
            ledger_sha256 = hashlib.sha256(ledger).hexdigest()
            folder = private_folder(self._ledgers(snapshot.target.table))
            put_atomic(folder / f"{ledger_sha256}.parquet", ledger)
        body = {**result.to_json(), "ledger": ledger_sha256}
        return sign_payload(Payload("result", snapshot.target, snapshot.sha256, body), self.key)

    def result(self, signed_file: SignedFile, snapshot: Snapshot) -> MetricResult:
        """Verify the signed result of one metric, and return it.

        Args:
            signed_file: Signed result.
            snapshot: Synthetic table on which it must have been computed.
        """
        payload = self._verified(signed_file, "result", snapshot.target)
        if payload.sha256 != snapshot.sha256:
            metric = payload.body.get("metric", "a score")
            raise OutOfDate(f"{metric} was computed on another synthetic table", redo=("score",))
        stored = dict(payload.body)
        stored.pop("ledger", None)
        return MetricResult.from_json(stored)

    def attest(
        self,
        snapshot: Snapshot,
        policy: Policy,
        scores: Mapping[str, SignedFile],
        inputs: Mapping[str, str],
        metrics: Mapping[str, Metric],
        setup: Mapping[str, Any],
    ) -> tuple[Attestation, SignedFile]:
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
            The attestation and its signed file.

        Raises:
            PublicationBlocked: If a result or the snapshot is not trusted or does not match.
        """
        target = snapshot.target
        self.check_folders()
        self.accepted.check(target.table, policy, setup, snapshot.content)
        check_made(snapshot, inputs, setup, metrics)
        state = self.log.state(target.table)
        inputs = {**inputs, "ledger": state.ledger}
        results = {name: self.result(signed_file, snapshot) for name, signed_file in scores.items()}
        for name, result in results.items():
            check_result(result, inputs, metrics.get(name), setup["seed"])
        earlier_failures = state.failures(policy, snapshot, self._part_of_failures(target, setup))
        attempt = self.count_attempt(snapshot)
        verdict = policy.judge(results, attempt)

        ledgers = []
        for signed_file in scores.values():
            payload = self._verified(signed_file, "result", target)
            ledgers.append(payload.body.get("ledger") or "")
        result_digests = {}
        for name, signed_file in scores.items():
            if name in policy.metrics:
                result_digests[name] = self._store_result(signed_file, target)

        attestation = Attestation(
            target=target,
            sha256=snapshot.sha256,
            content=snapshot.content,
            policy=policy.to_dict(),
            policy_digest=policy_digest(policy),
            verdict="fail" if earlier_failures else verdict.status,
            limits={outcome.limit.key: outcome.status for outcome in verdict.outcomes},
            earlier_failures=earlier_failures,
            results=result_digests,
            inputs=inputs,
            ledger=max(ledgers, default=""),
            setup=to_jsonable(setup),
            attempt=attempt,
            n_rows=snapshot.n_rows,
            dtypes=dict(snapshot.dtypes),
            made_at=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        )
        self._record_verdict(snapshot, attestation.verdict, verdict.outcomes)
        signed_file = sign_payload(attestation.payload(), self.key)
        self._store_latest(signed_file, target, "attestation")
        return replace(attestation, keyid=self.key.signer.public_key.keyid), signed_file

    def row_scores(self, snapshot: Snapshot, metric: str) -> Location:
        """Return the path of the private Parquet file with the scores of each row of a snapshot.

        Args:
            snapshot: Synthetic table.
            metric: Name of the metric.
        """
        folder = snapshot.target.below(self.private / "row_scores")
        return folder / f"{snapshot.sha256}.{metric}.parquet"

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

    def _store_result(self, signed_file: SignedFile, target: ReleaseTarget) -> str:
        """Store a signed result in the private folder, and return its keyed digest."""
        digest = self._result_digest(signed_file.data)
        folder = private_folder(target.below(self.private / "results"))
        put_atomic(folder / f"{digest}.json", signed_file.data)
        return digest

    def _stored_results(
        self, attestation: Attestation, snapshot: Snapshot
    ) -> dict[str, MetricResult]:
        """Read and verify the signed results that an attestation names.

        Raises:
            PublicationBlocked: If one is missing or changed.
        """
        folder = attestation.target.below(self.private / "results")
        results = {}
        for name, digest in attestation.results.items():
            what = f"signed result of {name} in {folder}"
            file = f"{digest}.json"
            data = signed_files(folder, what, file).get(file, b"")
            if self._result_digest(data) != digest:
                text = f"the {what} is missing or was changed"
                raise Damaged(text, path=str(folder / file), redo=("score", "attest"))
            results[name] = self.result(SignedFile("result", data), snapshot)
        return results

    def _result_digest(self, data: bytes) -> str:
        key = derive_key(self.content_key, "results")
        return keyed_fingerprint(hashlib.sha256(data).hexdigest(), key)

    def attestation(self, signed_file: SignedFile, target: ReleaseTarget) -> Attestation:
        """Verify a signed attestation, and return it.

        Args:
            signed_file: Signed attestation.
            target: Table and partition to which it must belong.
        """
        return Attestation.of(self._verified(signed_file, "attestation", target))

    @_reporting()
    def publish(
        self,
        attestation_file: SignedFile,
        snapshot_file: SignedFile,
        target: ReleaseTarget,
        policy: Policy,
        setup: Mapping[str, Any],
    ) -> Release:
        """Publish the snapshot that the attestation names.

        If a check fails, the previous release stays current. Repeating the call completes an
        interrupted publication. If the release is current already, the call only renews the time of
        its pointer, see :class:`.Pointer`.

        The checks are made in this order. Before anything is added to the log:

        1. The signing key can be used.
        2. The folders belong to one deployment, and not every user can write to the releases.
        3. A trusted key signed the attestation, for this table and partition.
        4. A trusted key signed the file of the snapshot, for this table and partition.
        5. Policy and settings equal the accepted settings of the table.
        6. The table is not suspended: fewer than 4 of its last 7 verdicts are "fail".
        7. Package version, policy and settings of the attestation are in force.
        8. The attestation has the same limits as its policy, and its verdict is "pass".
        9. It names this snapshot: the same bytes and rows.
        10. The signed results that it names are in the private folder, and belong to this snapshot.
        11. They meet the policy, which is evaluated again.
        12. The attestation is the latest one of the table and partition.
        13. The ids of the pointer and of all releases are valid, and not more than ten minutes in
            the future.

        With the log as it is just before the entry of this release, so that no other process can
        come in between:

        14. It has each release and pointer of all partitions in the release folder.
        15. The table is not suspended, as in 6.
        16. No limit failed for these rows before, in any run, that the policy has as well or has
            stricter. Failures in other partitions count if the partitions share subjects.
        17. The rows were not withdrawn, in any partition.
        18. They were not published in this partition and later replaced or rolled back.
        19. The disclosure was measured with the current ledger.
        20. The ledger after this release is in the private folder.

        If the last publication or rollback has these bytes, 19 and 20 are left out, and there is no
        new entry. Reading the log verifies its entries since the last acceptance, so 5 and 14 can
        raise TableSuspended, too. Then, before the pointer is written:

        21. No other release, rollback or withdrawal of this partition was recorded meanwhile.
        22. The copied bytes have the hash in the attestation.
        23. The release is not older than the current one.

        An object store makes 21 and 23 before the upload, and again before each attempt to move the
        pointer. If the release is current already, its bytes are compared with the attestation in
        place of 22 and 23.

        Args:
            attestation_file: Signed attestation.
            snapshot_file: Signed file of the synthetic table.
            target: Table and partition.
            policy: Policy in force.
            setup: Current settings except the policy.

        Returns:
            The current release.

        Raises:
            PublicationBlocked: If a check fails.
            ConfigError: If the signing key or a folder is not usable.
        """
        self.key.check()  # 1
        self.check_folders()  # 2
        attestation = self.attestation(attestation_file, target)  # 3
        snapshot = self.snapshot(snapshot_file, target)  # 4
        self.accepted.check(target.table, policy, setup)  # 5 and 6
        check_in_force(attestation, policy, setup)  # 7
        check_verdict(attestation.policy_verdict(), attestation.earlier_failures)  # 8
        check_snapshot(attestation, snapshot)  # 9
        results = self._stored_results(attestation, snapshot)  # 10
        verdict = policy.judge(results, attestation.attempt)
        check_verdict(verdict, attestation.earlier_failures)  # 11
        self._check_latest(attestation_file, target, "attestation")  # 12
        self.store.check_ids(target)  # 13
        release_ids = [release.id for release in self.store.history(target)]

        def facts_of_release(state: LogState) -> Facts | None:
            """Check 14 to 20, and return the content of the entry."""
            self._check_not_behind(target.table, state)  # 14
            state.check_not_suspended(target.table)  # 15
            part = self._part_of_failures(target, setup)
            check_earlier_failures(state.failures(policy, attestation, part))  # 16
            _check_not_withdrawn(attestation, state)  # 17
            _check_not_replaced(attestation, state, release_ids)  # 18
            last = state.last_publication(target)
            if last is not None and last.sha256 == attestation.sha256:
                return None  # readers have it already, or this call completes an interrupted one
            check_measured_with(attestation, state.ledger)  # 19
            self._ledger_bytes(target.table, attestation.ledger)  # 20: a later run needs it
            return {
                "sha256": attestation.sha256,
                "content": attestation.content,
                "ledger": attestation.ledger or state.ledger,
            }

        move = self._record_move(target, "release", facts_of_release)
        release = self._current_release(target, attestation.sha256)
        # 21 is move.check_no_later_move; the store makes 22 and 23
        if release is not None:
            self.store.point(target, release.id, move.sign_pointer, move.check_no_later_move)
        else:
            release = self.store.add(
                target,
                snapshot.path,
                attestation.sha256,
                attestation_file.data,
                move.sign_pointer,
                move.check_no_later_move,
            )
        self._remove_ledgers(target.table)
        with suppress(OSError, PublicationBlocked):  # the next publication removes it
            self.accepted.end_proposal(target.table)
        return release

    def _remove_ledgers(self, table: str) -> None:
        """Remove all ledgers but the one after the last release. A failure leaves a file that the
        next call removes.
        """
        with suppress(OSError, PublicationBlocked):
            current = f"{self.log.state(table).ledger}.parquet"
            folder = self._ledgers(table)
            for name in names(folder):
                if name != current and not name.startswith("."):
                    (folder / name).unlink(missing_ok=True)

    def _record_move(self, target: ReleaseTarget, event: str, facts_of: FactsOf) -> _RecordedMove:
        """Record an operation that moves the pointer of ``target``, before it happens.

        From then on it counts as done, because readers may see its result even if it fails.
        Repeating it completes it.

        Args:
            target: Table and partition.
            event: Kind of the entry.
            facts_of: See :meth:`.Log.append`.
        """
        state = self.log.append(target, event, facts_of)
        return _RecordedMove(self.log, target, state.n_moves(target.part))

    def _part_of_failures(self, target: ReleaseTarget, setup: Mapping[str, Any]) -> str | None:
        """Return the partition whose failures count, or None if those of all partitions do."""
        if setup.get("shared_subjects"):
            return None
        return target.part

    def _check_not_behind(
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
        if not self._lost(table, state).n_releases:
            return
        read_state = read_state or self.log.state
        if self._lost(table, read_state(table)).n_releases:
            text = (
                f"the log of {table} ends before a release that readers have: it is missing, or"
                " an older copy"
            )
            raise TableSuspended(text, table=table)

    def _lost(self, table: str, state: LogState) -> _Lost:
        """Compare the log of a table with the release folder."""
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
        return _Lost(
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

    def _current_release(self, target: ReleaseTarget, sha256: str) -> Release | None:
        """Return the current release if it is whole and has these bytes, which are not stored
        again.
        """
        try:
            release = self.store.current(target, self.key.trusted)
            check_bytes(release.table, sha256, release.root)
            attestation = release.opened(target, self.key.trusted)
        except (OSError, InputError, PublicationBlocked):
            return None
        if attestation.sha256 != sha256:
            return None
        return release

    def suspension(self, table: str) -> Suspension:
        """Return all that suspends a table. One acceptance settles all of it.

        Args:
            table: Name of the table.
        """
        state = self.log.believed(table)
        checks: list[Callable[[], object]] = [
            lambda: self.log.state(table),
            lambda: state.check_not_suspended(table),
            lambda: self._check_not_behind(table, state, self.log.believed),
            lambda: self._ledger_bytes(table, state.ledger),
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

        state = self.log.believed(table)
        replacements, n_failed = self._lost(table, state)
        try:
            self._ledger_bytes(table, state.ledger)
        except TableSuspended:
            replacements["ledger"] = ""
            n_failed = MAX_FAILED
        self.log.accept(table, why, replacements, n_failed, check_unchanged)

    def check_not_suspended(self, table: str) -> None:
        """Raise TableSuspended if ``table`` failed too often, or its log or ledger is damaged or an
        older copy.

        Args:
            table: Name of the table.
        """
        state = self.log.state(table)
        state.check_not_suspended(table)
        self._check_not_behind(table, state)
        self._ledger_bytes(table, state.ledger)

    @_reporting()
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
        attestation = release.opened(target, self.key.trusted)
        check_bytes(release.table, attestation.sha256, release.root)

        def facts_of_rollback(state: LogState) -> Facts:
            self._check_not_behind(target.table, state)
            if state.is_withdrawn(attestation.sha256, attestation.content):
                raise Superseded(f"release {name} was withdrawn")
            hashes = [publication.sha256 for publication in state.history(target)]
            if attestation.sha256 not in hashes:
                raise Superseded(f"release {name} was never current")
            part = self._part_of_failures(target, attestation.setup)
            check_earlier_failures(state.failures(attestation.attested_policy(), attestation, part))
            return {"sha256": attestation.sha256, "content": attestation.content}

        move = self._record_move(target, "rollback", facts_of_rollback)
        self.store.point(target, name, move.sign_pointer, move.check_no_later_move)
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
            PublicationBlocked: If a store cannot be read or written.
            InputError: If there is no such release.
            ConfigError: If the private folder is not that of this table's publisher.
        """
        release = self._existing_release(target, name)
        rows = self._rows_of(release, target)

        def facts_of_withdrawal(state: LogState) -> Facts:
            self._check_not_behind(target.table, state)
            return {
                "release": name,
                "sha256": rows.sha256,
                "content": rows.content,
                "reason": why,
            }

        try:
            is_current = self.store.pointer(target, self.key.trusted).release == name
        except (InputError, PublicationBlocked):
            is_current = True  # readers cannot load the table either
        move = self._record_move(target, "withdrawal", facts_of_withdrawal)
        if is_current:
            self.store.point(target, "", move.sign_pointer, move.check_no_later_move)
        self.store.remove(target, [release])
        return self._partitions_with(target, rows)

    def _rows_of(self, release: Release, target: ReleaseTarget) -> Rows:
        """Return hash and fingerprint of the rows of a release: from the log, otherwise from its
        attestation.
        """
        for publication in reversed(self.log.state(target.table).history(target)):
            if release.id.endswith(publication.sha256[:12]):
                return publication
        return release.opened(target, self.key.trusted)

    def _partitions_with(self, target: ReleaseTarget, rows: Rows) -> list[ReleaseTarget]:
        """Return the other partitions whose current release has the same rows."""
        state = self.log.state(target.table)
        partitions = list[ReleaseTarget]()
        for partition in self.store.targets(target.table):
            last = state.last_publication(partition)
            if partition == target or last is None or not last.is_same(rows):
                continue
            try:
                is_current = bool(self.store.pointer(partition, self.key.trusted).release)
            except (InputError, PublicationBlocked):
                is_current = True  # its readers cannot be asked
            if is_current:
                partitions.append(partition)
        return partitions

    @_reporting()
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
        self.check_folders()
        history = self.store.history(target)
        oldest_time = dt.datetime.now(dt.UTC) - dt.timedelta(days=days)
        try:
            current_id = self.store.pointer(target, self.key.trusted).release
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
        self.log.append(target, "prune", lambda _: facts)
        if old:
            self.store.remove(target, old)
        for path in unused:
            path.unlink(missing_ok=True)
        return removed

    def _unused_files(self, target: ReleaseTarget, remaining: Iterable[Release]) -> list[Location]:
        """Return the private files that neither these releases, nor the latest attestation, nor the
        last publication needs.
        """
        folder = target.below(self.private / "latest")
        latest = signed_files(folder, "latest signed files", "attestation").get("attestation", b"")
        last = self.log.state(target.table).last_publication(target)
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
            folder = target.below(self.private / kind)
            for name in names(folder):
                if not name.startswith(".") and name.partition(".")[0] not in used:
                    unused.append(folder / name)
        return unused

    def _existing_release(self, target: ReleaseTarget, name: str) -> Release:
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
        self.check_folders()
        if name not in [release.id for release in self.store.history(target)]:
            fix = "list the releases: privacy-assets releases"
            raise InputError(f"there is no release {safe_repr(name)}", where=str(target), fix=fix)
        return self.store.release(target, name)

    def _snapshots(self, target: ReleaseTarget) -> Location:
        return target.below(self.private / "snapshots")

    def _store_latest(self, signed_file: SignedFile, target: ReleaseTarget, name: str) -> None:
        """Store ``signed_file`` as the latest file of a step. Earlier ones are rejected from now
        on.
        """
        put_atomic(target.below(self.private / "latest") / name, signed_file.data)

    def _check_latest(self, signed_file: SignedFile, target: ReleaseTarget, name: str) -> None:
        folder = target.below(self.private / "latest")
        if signed_files(folder, "latest signed files", name).get(name) == signed_file.data:
            return
        redo = redo_of(signed_file.kind)
        if signed_file.kind == "split":
            redo = ("split", "prepare", "score", "attest")
        if name == "split-source":
            redo = ("read", *redo)
        raise OutOfDate(f"this {signed_file.kind} of {target} is not the latest one", redo=redo)

    def _verified(
        self, signed_file: SignedFile, kind: SignedFileKind, target: ReleaseTarget
    ) -> Payload:
        """Verify kind, signature and target of a signed file, and return its payload."""
        if signed_file.kind != kind:
            raise NotTrusted(
                f"expected a signed {kind}, got a signed {signed_file.kind}", redo=redo_of(kind)
            )
        payload = verified_payload(signed_file, self.key.trusted)
        check_target(payload.target, target, kind)
        return payload


def _check_not_withdrawn(attestation: Attestation, state: LogState) -> None:
    if state.is_withdrawn(attestation.sha256, attestation.content):
        raise Superseded("these rows were withdrawn, which holds for all partitions of the table")


def _check_not_replaced(
    attestation: Attestation, state: LogState, release_ids: Iterable[str]
) -> None:
    """Reject rows that were published before, unless the last publication has them.

    Args:
        attestation: Attestation of the rows.
        state: State of the log.
        release_ids: Ids of the releases in the release folder, for the message.
    """
    history = state.history(attestation.target)
    same = [publication for publication in history if publication.is_same(attestation)]
    if same and same[-1] != history[-1]:
        end = same[-1].sha256[:12]
        same_ids = [name for name in release_ids if name.endswith(end)]
        raise replaced(max(same_ids, default=""))
