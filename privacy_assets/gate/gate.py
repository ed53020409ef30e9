"""The gate: signs and verifies the records of pipeline steps, and is the only component that publishes releases."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
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
    safe_repr,
)
from privacy_assets.gate.attestation import (
    Attestation,
    check_earlier_releases,
    check_made,
    check_memory,
    check_policy,
    check_result,
    check_target,
    check_verdict,
)
from privacy_assets.gate.failures import Failures
from privacy_assets.gate.keys import SigningKey
from privacy_assets.gate.lock import Locks
from privacy_assets.gate.publication_attempts import (
    EarlierReleases,
    PublicationAttempts,
    PublicationRecord,
    check_not_replaced,
)
from privacy_assets.gate.releases import Release, ReleaseStore, check_bytes
from privacy_assets.gate.snapshot import Snapshot, write_snapshot
from privacy_assets.gate.statements import (
    RecordKind,
    ReleaseTarget,
    SignedRecord,
    Statement,
    records,
    redo_of,
    seal,
    unseal,
)
from privacy_assets.infra.files import check_private, names, private_folder, put_atomic, reason
from privacy_assets.infra.markers import Role, check_prepared
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


@dataclass(frozen=True)
class Gate:
    """Signing, verification and publication of synthetic tables.

    All methods raise PublicationRefused for records that are rejected, and ConfigError if a key is missing or invalid.

    Attributes:
        releases: Release folder.
        private: Private folder, with snapshots, results, failures, attempts, locks and verdicts.
        key: Signing key.
        content_key: Key of the row fingerprints in records, and of the order in which rows are written.
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
    def failures(self) -> Failures:
        """Records of failed limits."""
        return Failures(self.private / "failures", self.key)

    @property
    def attempts(self) -> PublicationAttempts:
        """Records of publication attempts and releases."""
        return PublicationAttempts(self.private / "attempts")

    @property
    def locks(self) -> Locks:
        """Locks of the tables, and logs of their verdicts."""
        return Locks(self.private, self.key)

    def earlier_releases(self, snapshot: Snapshot, shared_subjects: bool = False) -> EarlierReleases:
        """Return all earlier releases of the snapshot's table and partition, without the snapshot itself.

        Releases without a record (earlier versions wrote none) are read from the release folder.

        Args:
            snapshot: Synthetic table.
            shared_subjects: Include the releases of all partitions of the table.
        """
        target, found = snapshot.target, dict[str, tuple[Location, ...]]()
        try:
            targets = self._partitions(target.table) if shared_subjects else [target]
            with ThreadPoolExecutor(_AT_ONCE) as pool:  # object stores answer slowly
                for part in pool.map(lambda one: self._released_at(one, targets), targets):
                    for sha256, files in part.items():
                        found[sha256] = (*found.get(sha256, ()), *files)
        except OSError as error:
            raise StoreUnavailable.of(f"an earlier release cannot be read ({reason(error)})", error) from None
        earlier = tuple((sha256, found[sha256]) for sha256 in sorted(found) if sha256 != snapshot.sha256)
        return EarlierReleases(earlier, self.releases)

    def _partitions(self, table: str) -> list[ReleaseTarget]:
        """Return all partitions of a table with any record, in order. The table as a whole is last."""
        try:
            folders = [
                ReleaseTarget(table).below(self.private / kind).parent for kind in ("snapshots", "attempts", "failures")
            ]
            parts = {ReleaseTarget.of_parts(folder.name, part) for folder in folders for part in names(folder)}
            known = {ReleaseTarget(table), *parts, *self.store.targets(table)}
        except OSError as error:
            raise StoreUnavailable.of(f"the partitions cannot be determined ({reason(error)})", error) from None
        return sorted(known, key=lambda target: (target.partition is None, str(target)))

    def _released_at(self, target: ReleaseTarget, targets: Sequence[ReleaseTarget]) -> dict[str, tuple[Location, ...]]:
        """Return the files that may contain each release of ``target``, by SHA-256."""
        known = self.attempts.released(target)
        recorded = {sha256[:12] for sha256 in known}
        history = {release.id[-12:]: release for release in self.store.history(target)}
        known |= {self._unrecorded(release, target) for end, release in history.items() if end not in recorded}
        # If publishing was interrupted, a record of the whole table does not identify the partition.
        parts = [target] if target.partition is not None else list(dict.fromkeys([target, *targets]))
        return {
            sha256: (
                *(self._snapshots(part) / f"{sha256}.parquet" for part in parts),
                *([history[sha256[:12]].table] if sha256[:12] in history else []),
            )
            for sha256 in known
        }

    def _unrecorded(self, release: Release, target: ReleaseTarget) -> str:
        """Return the SHA-256 of a release without a record.

        Raises:
            Damaged: If the release is incomplete or damaged.
        """
        try:
            stated = release.opened(target, self.key.trusted)
            check_bytes(release.table, stated.sha256, release.root)
        except PublicationRefused as error:
            if error.retry:
                raise
            text = f"{release.folder}: {error}, and there is no record of this release"
            raise Damaged(text, path=str(release.folder), remove=True) from None
        return stated.sha256

    def _remembered(self, policy: Policy, target: ReleaseTarget, content: str, shared_subjects: bool) -> list[str]:
        """Return the limits that these rows failed earlier, in any partition if ``shared_subjects``."""
        targets = self._partitions(target.table) if shared_subjects else [target]
        return [text for one in targets for text in self.failures.against(policy, one, content)]

    def check_places(self) -> None:
        """Check that releases and private folder are marked for their roles in the same deployment.

        Raises:
            ConfigError: If not, or if every user may write to the release folder.
            StoreUnavailable: If an object store cannot be read.
        """
        self.store.check()
        roles: tuple[tuple[Role, Location], ...] = (("releases", self.releases), ("private", self.private))
        try:
            found = {check_prepared(target, role) for role, target in roles}
        except StoreError as error:
            raise StoreUnavailable.of(f"{reason(error)}; nothing changed", error) from None
        if len(found) > 1:
            raise ConfigError(
                f"{self.releases} and {self.private} belong to different deployments. Fix: correct the paths."
            )

    def sign_split(
        self, target: ReleaseTarget, role: str, fingerprint: str, digest: str, setup: Mapping[str, Any]
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
        self, sealed: SignedRecord, target: ReleaseTarget, role: str, digest: str, setup: Mapping[str, Any]
    ) -> str:
        """Reject a table unless the latest ``read`` or ``split`` signed it for ``role`` under the current setup.

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
            text = f"the {role} table is not the one that was {did}, or was {did} under other settings"
            raise OutOfDate(text, redo=redo)
        return found.sha256

    def take_snapshot(
        self,
        table: Table,
        target: ReleaseTarget,
        train: str,
        filtered: Mapping[str, Any] | None = None,
        generator: Mapping[str, Any] | None = None,
        replaced: Mapping[str, int] = MappingProxyType({}),
        before: Table | None = None,
    ) -> tuple[Snapshot, SignedRecord]:
        """Write a synthetic table to the private folder, and sign its content and origin.

        The row order of the table is not written.

        Args:
            table: Rows with the schema of the private table.
            target: Table and partition.
            train: See :class:`.Snapshot`.
            filtered: See ``filter`` of :class:`.Snapshot`.
            generator: See :class:`.Snapshot`.
            replaced: See :class:`.Snapshot`.
            before: Rows before rare values were replaced, by which failures and attempts are remembered: the
                replacement depends on the real tables. None: ``table``.

        Returns:
            The snapshot and its signed record.
        """
        self.key.check()  # before the file is written
        frame = table.to_published_frame()
        folder, order = private_folder(self._snapshots(target)), derive_key(self.content_key, "order of rows")
        path, sha256 = write_snapshot(frame, folder, order)
        known = frame if before is None else before.to_published_frame()
        content = keyed_fingerprint(lasting_fingerprint(known), self.content_key)
        dtypes = {name: str(frame[name].dtype) for name in frame.columns}
        snapshot = Snapshot(target, path, sha256, len(frame), train, content, dtypes, filtered, generator, replaced)
        return snapshot, seal(snapshot.statement(), self.key)

    def snapshot(self, sealed: SignedRecord, target: ReleaseTarget) -> Snapshot:
        """Return the snapshot of a signed record, which must belong to ``target``."""
        return Snapshot.of(self._opened(sealed, "snapshot", target), self._snapshots(target))

    def sign_prepared(self, snapshot: Snapshot, setup: Mapping[str, Any], body: Mapping[str, Any]) -> SignedRecord:
        """Sign the prepared tables of ``snapshot`` and of the real tables, which were split under ``setup``."""
        stated = {**to_jsonable(body), "setup": to_jsonable(setup), "engine_version": ENGINE_VERSION}
        return seal(Statement("prepared", snapshot.target, snapshot.sha256, stated), self.key)

    def prepared(
        self, sealed: SignedRecord, target: ReleaseTarget, digest: str, setup: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], Snapshot]:
        """Return the signed record of prepared tables, by this engine under this setup, and their snapshot.

        Args:
            sealed: Signed record.
            target: Table and partition.
            digest: Keyed digest of the prepared tables.
            setup: Current settings of the split.

        Returns:
            Body of the record, and the snapshot of the synthetic table.
        """
        found = self._opened(sealed, "prepared", target)
        if (engine := found.body.get("engine_version")) != ENGINE_VERSION:
            text = "the tables were prepared by another engine"
            raise OutOfDate(text, expected=ENGINE_VERSION, found=engine, redo=("prepare",))
        if found.body.get("setup") != to_jsonable(setup):
            raise OutOfDate("the tables were split or read under other settings", redo=("split", "prepare"))
        if found.body.get("digest") != digest:
            raise Damaged("evaluation_inputs was changed after it was signed", redo=("prepare",))
        return found.body, self.snapshot(SignedRecord("snapshot", found.body["snapshot"].encode()), target)

    def sign_result(
        self, result: MetricResult, snapshot: Snapshot, outcomes: Iterable[LimitOutcome], shared_subjects: bool = False
    ) -> SignedRecord:
        """Sign the result of one metric, after counting the attempt and recording failed limits.

        Args:
            result: Result of the metric.
            snapshot: Synthetic table.
            outcomes: Outcomes of the limits on this metric.
            shared_subjects: Count attempts over all partitions together.
        """
        self.attempts.number_of(snapshot, shared_subjects)
        self.failures.remember(snapshot, outcomes := list(outcomes))
        if any(outcome.status == "fail" for outcome in outcomes):
            self.locks.record(snapshot.target, "fail", snapshot.content)
        return seal(Statement("result", snapshot.target, snapshot.sha256, result.to_json()), self.key)

    def result(self, sealed: SignedRecord, snapshot: Snapshot) -> MetricResult:
        """Return the signed result of one metric, which must have been computed on ``snapshot``."""
        statement = self._opened(sealed, "result", snapshot.target)
        if statement.sha256 != snapshot.sha256:
            metric = statement.body.get("metric", "a score")
            raise OutOfDate(f"{metric} was computed on another synthetic table", redo=("score",))
        return MetricResult.from_json(statement.body)

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
            snapshot: Synthetic table. It must originate from the current train table, filter and attacked generator.
            policy: Policy in force.
            scores: Signed results by metric. The results that the policy limits are stored in the private folder.
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
        shared_subjects = bool(setup.get("shared_subjects"))
        inputs = {**inputs, "earlier_releases": self.earlier_releases(snapshot, shared_subjects).fingerprint}
        results = {name: self.result(sealed, snapshot) for name, sealed in scores.items()}
        for name, result in results.items():
            check_result(result, inputs, metrics.get(name), setup["seed"])
        remembered = self._remembered(policy, snapshot.target, snapshot.content, shared_subjects)
        attempt = self.attempts.number_of(snapshot, shared_subjects)
        verdict = policy.judge(results, attempt)
        self.failures.remember(snapshot, verdict.outcomes)
        kept = {name: self._keep(sealed, snapshot.target) for name, sealed in scores.items() if name in policy.metrics}
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
            setup=to_jsonable(setup),
            attempt=attempt,
            rows=snapshot.rows,
            dtypes=dict(snapshot.dtypes),
            made_at=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        )
        self.locks.record(snapshot.target, stated.verdict, snapshot.content)
        sealed = self._latest(seal(stated.statement(), self.key), snapshot.target, "attestation")
        return replace(stated, keyid=self.key.signer.public_key.keyid), sealed

    def row_scores(self, snapshot: Snapshot, metric: str) -> Location:
        """Return the path of the private Parquet file with the scores of each row of a snapshot.

        Args:
            snapshot: Synthetic table.
            metric: Name of the metric.
        """
        return snapshot.target.below(self.private / "row_scores") / f"{snapshot.sha256}.{metric}.parquet"

    def keep_row_scores(self, result: MetricResult, snapshot: Snapshot) -> Location | None:
        """Write the scores of each row to the private folder. They are not signed, and no step reads them.

        Args:
            result: Result of a metric.
            snapshot: Synthetic table.

        Returns:
            Path of the file, with rows in the order of the snapshot. None if the metric has no scores of rows.
        """
        if not result.rows:
            return None
        path = self.row_scores(snapshot, result.metric)
        return put_atomic(path, parquet_bytes(pd.DataFrame(result.rows)))

    def _keep(self, sealed: SignedRecord, target: ReleaseTarget) -> str:
        """Store a signed result in the private folder, and return its keyed digest."""
        digest = self._result_digest(sealed.data)
        put_atomic(private_folder(target.below(self.private / "results")) / f"{digest}.json", sealed.data)
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
        return keyed_fingerprint(hashlib.sha256(data).hexdigest(), derive_key(self.content_key, "results"))

    def attestation(self, sealed: SignedRecord, target: ReleaseTarget) -> Attestation:
        """Return the attestation of a signed record, which must belong to ``target``."""
        return Attestation.of(self._opened(sealed, "attestation", target))

    def publish(
        self,
        sealed: SignedRecord,
        snapshot: SignedRecord,
        target: ReleaseTarget,
        policy: Policy,
        setup: Mapping[str, Any],
    ) -> Release:
        """Publish the snapshot that the attestation names.

        The following is verified, in this order: signing key and folders; signature, table and partition of both
        records; the lock of the table, and that the table is not stopped; engine, policy, settings and verdict; that
        the attestation names this snapshot and its bytes; that the signed results in the private folder meet the
        policy; that these rows never failed in any run; that no later attestation exists; that the rows were not
        published and later replaced or rolled back; and that the attestation covers all releases made since. If a check
        fails, the previous release stays current. Repeating the call completes an interrupted publication, and has no
        effect if the release is current.

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
            text, redo = "the attestation belongs to another synthetic table", ("attest",)
            raise OutOfDate(text, expected=taken.sha256, found=stated.sha256, redo=redo)
        check_verdict(policy.judge(self._kept(stated, taken), stated.attempt), stated.remembered)
        shared_subjects = bool(setup.get("shared_subjects"))
        check_memory(self._remembered(policy, target, stated.content, shared_subjects))
        self._check_latest(sealed, target, "attestation")

        seen = PublicationRecord(stated.sha256, stated.content)

        def agree() -> None:
            ids = [release.id for release in self.store.history(target)]
            check_not_replaced(self.attempts.history(target), seen, ids)
            if not self._is_current(target, sealed):
                check_earlier_releases(stated, self.earlier_releases(taken, shared_subjects).fingerprint)

        with ExitStack() as recorded:
            # Pooled partitions share one sequence of release records, so they are released one at a time.
            for one in dict.fromkeys([ReleaseTarget(target.table), target] if shared_subjects else [target]):
                recorded.enter_context(self.attempts.releasing(one, seen, agree))
            still = partial(self.attempts.check_last, target, seen)
            return self.store.add(target, taken.path, stated.sha256, sealed.data, still)

    def _is_current(self, target: ReleaseTarget, sealed: SignedRecord) -> bool:
        """Return True if the current release has exactly this attestation.

        Return False otherwise, or if the store cannot be read. Republishing the same release discloses nothing new.
        """
        try:
            return self.store.current(target).envelope == sealed.data
        except (OSError, InputError, PublicationRefused):
            return False

    def roll_back(self, target: ReleaseTarget, name: str) -> Release:
        """Make an earlier release current, if it is intact and its rows have not failed since.

        The rollback is recorded, so the release that it replaces cannot be published again.

        Args:
            target: Table and partition.
            name: Id of the release.

        Raises:
            PublicationRefused: If the release is damaged or failed, or a store cannot be read.
            InputError: If there is no such release.
            ConfigError: If the private folder is not that of this table's publisher: without failure records, every
                release would be accepted.
        """
        try:
            return self._rolled_back(target, name)
        except OSError as error:
            raise StoreUnavailable.of(f"{reason(error)}; nothing changed", error) from None

    def _rolled_back(self, target: ReleaseTarget, name: str) -> Release:
        if not self._snapshots(target).is_dir():
            raise ConfigError(
                f"{self.private}: this is not the private folder of the publisher, because it has no snapshot of"
                f" {target}, so later failures of these rows are unknown. Fix: pass the publisher's folder with"
                " --private or PRIVACY_ASSETS_PRIVATE."
            )
        check_private(self.private)
        self.check_places()
        found = [release for release in self.store.history(target) if release.id == name]
        if not found:
            fix = "list the releases: privacy-assets releases"
            raise InputError(f"there is no release {safe_repr(name)}", where=str(target), fix=fix)
        stated = found[0].opened(target, self.key.trusted)
        check_bytes(found[0].table, stated.sha256, found[0].root)
        shared_subjects = bool(stated.setup.get("shared_subjects"))
        check_memory(self._remembered(stated.attested_policy(), target, stated.content, shared_subjects))
        seen = PublicationRecord(stated.sha256, stated.content)
        with self.attempts.releasing(target, seen, lambda: None):
            self.store.point(target, found[0], partial(self.attempts.check_last, target, seen))
        return found[0]

    def _snapshots(self, target: ReleaseTarget) -> Location:
        return target.below(self.private / "snapshots")

    def _latest(self, sealed: SignedRecord, target: ReleaseTarget, name: str) -> SignedRecord:
        """Store ``sealed`` as the latest record of a step. Earlier ones are rejected from now on."""
        put_atomic(target.below(self.private / "latest") / name, sealed.data)
        return sealed

    def _check_latest(self, sealed: SignedRecord, target: ReleaseTarget, name: str) -> None:
        if records(target.below(self.private / "latest"), "latest records", name).get(name) != sealed.data:
            redo = ("split", "prepare", "score", "attest") if sealed.kind == "split" else redo_of(sealed.kind)
            redo = ("read", *redo) if name == "split-source" else redo
            raise OutOfDate(f"this {sealed.kind} of {target} is not the latest one", redo=redo)

    def _opened(self, sealed: SignedRecord, kind: RecordKind, target: ReleaseTarget) -> Statement:
        if sealed.kind != kind:
            text = f"expected a signed {kind}, got a signed {sealed.kind}"
            raise NotTrusted(text, expected=kind, found=sealed.kind, redo=redo_of(kind))
        statement = unseal(sealed, self.key.trusted)
        check_target(statement.target, target, kind)
        return statement
