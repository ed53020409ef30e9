"""Signed files of the steps of a table: signing them, opening them, and which is the latest one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pandas as pd

from privacy_assets.errors import Damaged, NotTrusted, OutOfDate, PublicationBlocked, RecordKind
from privacy_assets.gate.attestation import Attestation, check_target
from privacy_assets.gate.envelope import (
    Payload,
    ReleaseTarget,
    SignedFile,
    SignedFileKind,
    sign_payload,
    stored_bytes,
    verified_payload,
)
from privacy_assets.gate.gate import Gate
from privacy_assets.gate.snapshot import Snapshot, write_rows
from privacy_assets.infra.objects import Location
from privacy_assets.infra.storage import storage_of
from privacy_assets.policy import LimitOutcome
from privacy_assets.stats.estimates import MetricResult, to_jsonable
from privacy_assets.tables.fingerprints import derive_key, keyed_fingerprint
from privacy_assets.tables.table import Table
from privacy_assets.tables.writing import parquet_bytes
from privacy_assets.version import PACKAGE_VERSION


@dataclass(frozen=True)
class SignedFiles:
    """Signing and verification of the files that the steps of a table pass to each other.

    A file is opened only if a trusted key signed it for the same table and partition. All methods
    raise PublicationBlocked for a signed file that is rejected, and ConfigError if a key is missing
    or invalid.

    Attributes:
        gate: Folders, key and records.
        content_key: Key of the row fingerprints in signed files, and of the order in which rows are
            written.
    """

    gate: Gate
    content_key: bytes

    def sign_table(
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
            role: Role of the table: "source" for one that was read and not split.
            fingerprint: Keyed fingerprint of its content.
            digest: Keyed digest of its file.
            setup: Settings.

        Returns:
            The signed file.
        """
        body = {"role": role, "setup": to_jsonable(setup), "digest": digest}
        signed_file = self._sign(Payload("split", target, fingerprint, body))
        self._store_latest(signed_file, target, f"split-{role}")
        return signed_file

    def check_table(
        self,
        signed_file: SignedFile,
        target: ReleaseTarget,
        role: str,
        digest: str,
        setup: Mapping[str, Any],
    ) -> str:
        """Reject a private table unless the latest ``read`` or ``split`` signed it for ``role``
        under the current setup.

        Args:
            signed_file: Signed file of the table.
            target: Table and partition.
            role: Role of the table.
            digest: Keyed digest of its file.
            setup: Current settings.

        Returns:
            The keyed fingerprint of its content.
        """
        verb = "split"
        record: RecordKind = "split"
        if role == "source":
            verb = "read"
            record = "source"
        try:
            payload = self._verified(signed_file, "split", target)
            self.check_latest(signed_file, target, f"split-{role}")
        except PublicationBlocked as error:
            if error.record == "split":  # the kind of the signed file of either step
                error.record = record
            raise
        if payload.body != {"role": role, "setup": to_jsonable(setup), "digest": digest}:
            text = (
                f"the {role} table is not the one that was {verb}, or was {verb} under other"
                " settings"
            )
            raise OutOfDate(text, record=record)
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
        self.gate.key.check()  # before the file is written
        rows = write_rows(table, self._snapshots(target), self.content_key, before)
        snapshot = Snapshot(
            target,
            rows.path,
            rows.sha256,
            n_rows=rows.n_rows,
            train_fingerprint=train_fingerprint,
            content=rows.content,
            dtypes=rows.dtypes,
            filter=filtered,
            generator=generator,
            n_replaced=n_replaced,
        )
        return snapshot, self._sign(snapshot.payload())

    def open_snapshot(self, signed_file: SignedFile, target: ReleaseTarget) -> Snapshot:
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
        return self._sign(Payload("prepared", snapshot.target, snapshot.sha256, signed))

    def open_prepared(
        self, signed_file: SignedFile, target: ReleaseTarget, digest: str, setup: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], Snapshot]:
        """Verify the signed file of tables that this version prepared under this setup.

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
                "the tables were prepared by another version of the package", record="prepared"
            )
        if body.get("setup") != to_jsonable(setup):
            raise OutOfDate("the tables were split or read under other settings", record="split")
        if body.get("digest") != digest:
            raise Damaged("evaluation_inputs was changed after it was signed", record="prepared")
        snapshot_file = SignedFile("snapshot", body["snapshot"].encode())
        return body, self.open_snapshot(snapshot_file, target)

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
        self.gate.log.count_attempt(snapshot)
        failed = [outcome for outcome in outcomes if outcome.status == "fail"]
        if failed:
            self.gate.log.record_verdict(snapshot, "fail", failed)
        ledger_sha256 = ""
        if ledger:
            ledger_sha256 = self.gate.ledgers.keep(snapshot.target.table, ledger)
        body = {**result.to_json(), "ledger": ledger_sha256}
        return self._sign(Payload("result", snapshot.target, snapshot.sha256, body))

    def open_result(self, signed_file: SignedFile, snapshot: Snapshot) -> MetricResult:
        """Verify the signed result of one metric, and return it.

        Args:
            signed_file: Signed result.
            snapshot: Synthetic table on which it must have been computed.
        """
        payload = self._verified(signed_file, "result", snapshot.target)
        if payload.sha256 != snapshot.sha256:
            metric = payload.body.get("metric", "a score")
            raise OutOfDate(f"{metric} was computed on another synthetic table", record="result")
        stored = dict(payload.body)
        stored.pop("ledger", None)
        return MetricResult.from_json(stored)

    def ledger_after(self, signed_file: SignedFile, target: ReleaseTarget) -> str:
        """Return the SHA-256 of the ledger that a signed result names, or "" if its metric does not
        measure it.

        Args:
            signed_file: Signed result.
            target: Table and partition to which it must belong.
        """
        payload = self._verified(signed_file, "result", target)
        return payload.body.get("ledger") or ""

    def store_result(self, signed_file: SignedFile, target: ReleaseTarget) -> str:
        """Store a signed result in the private folder, and return its keyed digest.

        Args:
            signed_file: Signed result.
            target: Table and partition.
        """
        digest = self._result_digest(signed_file.data)
        folder = target.below(self.gate.private / "results")
        storage_of(folder / f"{digest}.json").put(signed_file.data)
        return digest

    def stored_results(
        self, attestation: Attestation, snapshot: Snapshot
    ) -> dict[str, MetricResult]:
        """Read and verify the stored results that an attestation names.

        Args:
            attestation: Attestation.
            snapshot: Synthetic table on which they must have been computed.

        Returns:
            Results by metric.

        Raises:
            PublicationBlocked: If one is missing or was changed.
        """
        folder = attestation.target.below(self.gate.private / "results")
        results = {}
        for name, digest in attestation.results.items():
            what = f"signed result of {name} in {folder}"
            file = f"{digest}.json"
            data = stored_bytes(folder, file, what)
            if self._result_digest(data) != digest:
                text = f"the {what} is missing or was changed"
                raise Damaged(text, path=str(folder / file), record="result")
            results[name] = self.open_result(SignedFile("result", data), snapshot)
        return results

    def sign_attestation(self, attestation: Attestation) -> SignedFile:
        """Sign an attestation, which becomes the latest one of its table and partition.

        Args:
            attestation: Attestation.
        """
        signed_file = self._sign(attestation.payload())
        self._store_latest(signed_file, attestation.target, "attestation")
        return signed_file

    def open_attestation(self, signed_file: SignedFile, target: ReleaseTarget) -> Attestation:
        """Verify a signed attestation, and return it.

        Args:
            signed_file: Signed attestation.
            target: Table and partition to which it must belong.
        """
        return Attestation.of(self._verified(signed_file, "attestation", target))

    def check_latest(self, signed_file: SignedFile, target: ReleaseTarget, name: str) -> None:
        """Reject a signed file that is not the latest one of its step.

        Args:
            signed_file: Signed file.
            target: Table and partition.
            name: "attestation", or "split-" and the role of a private table.
        """
        folder = target.below(self.gate.private / "latest")
        if stored_bytes(folder, name, "latest signed files") == signed_file.data:
            return
        kind = signed_file.kind
        raise OutOfDate(f"this {kind} of {target} is not the latest one", record=kind)

    def row_scores(self, snapshot: Snapshot, metric: str) -> Location:
        """Return the path of the private Parquet file with the scores of each row of a snapshot.

        Args:
            snapshot: Synthetic table.
            metric: Name of the metric.
        """
        folder = snapshot.target.below(self.gate.private / "row_scores")
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
        storage_of(path).put(parquet_bytes(pd.DataFrame(result.row_scores)))
        return path

    def _sign(self, payload: Payload) -> SignedFile:
        return sign_payload(payload, self.gate.key)

    def _verified(
        self, signed_file: SignedFile, kind: SignedFileKind, target: ReleaseTarget
    ) -> Payload:
        """Verify kind, signature and target of a signed file, and return its payload."""
        if signed_file.kind != kind:
            raise NotTrusted(
                f"expected a signed {kind}, got a signed {signed_file.kind}", record=kind
            )
        payload = verified_payload(signed_file, self.gate.key.trusted)
        check_target(payload.target, target, kind)
        return payload

    def _store_latest(self, signed_file: SignedFile, target: ReleaseTarget, name: str) -> None:
        """Store ``signed_file`` as the latest file of a step. Earlier ones are rejected from now
        on.
        """
        storage_of(target.below(self.gate.private / "latest") / name).put(signed_file.data)

    def _snapshots(self, target: ReleaseTarget) -> Location:
        return target.below(self.gate.private / "snapshots")

    def _result_digest(self, data: bytes) -> str:
        key = derive_key(self.content_key, "results")
        return keyed_fingerprint(hashlib.sha256(data).hexdigest(), key)
