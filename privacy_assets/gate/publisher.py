"""The publisher: attests synthetic tables, and is the only class that publishes them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from privacy_assets.errors import InputError, PublicationBlocked
from privacy_assets.gate.attestation import (
    Attestation,
    check_made,
    check_result,
    part_of_failures,
)
from privacy_assets.gate.envelope import ReleaseTarget, SignedFile
from privacy_assets.gate.gate import Gate, reporting_unavailable
from privacy_assets.gate.log import Facts, LogState
from privacy_assets.gate.publication import (
    CHECKS_BEFORE_ENTRY,
    CHECKS_OF_NEW_ENTRY,
    CHECKS_WITH_LOG,
    PublicationRequest,
)
from privacy_assets.gate.releases import Release, check_bytes
from privacy_assets.gate.signed_files import SignedFiles
from privacy_assets.gate.snapshot import Snapshot
from privacy_assets.metrics.base import Metric
from privacy_assets.metrics.policies import policy_digest
from privacy_assets.policy import Policy
from privacy_assets.stats.estimates import to_jsonable


@dataclass(frozen=True)
class Publisher:
    """Attests the verdict of a policy on a synthetic table, and publishes it.

    Attributes:
        files: Signs and opens the files of the steps.
    """

    files: SignedFiles

    @property
    def gate(self) -> Gate:
        """Folders, key and records."""
        return self.files.gate

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
        gate = self.gate
        files = self.files
        target = snapshot.target
        gate.check_folders()
        gate.accepted.check(target.table, policy, setup, snapshot.content)
        check_made(snapshot, inputs, setup, metrics)
        state = gate.log.state(target.table)
        inputs = {**inputs, "ledger": state.ledger}
        results = {
            name: files.open_result(signed_file, snapshot) for name, signed_file in scores.items()
        }
        for name, result in results.items():
            check_result(result, inputs, metrics.get(name), setup["seed"])
        earlier_failures = state.failures(policy, snapshot, part_of_failures(target, setup))
        attempt = gate.log.count_attempt(snapshot)
        verdict = policy.judge(results, attempt)

        ledgers = [files.ledger_after(signed_file, target) for signed_file in scores.values()]
        result_digests = {}
        for name, signed_file in scores.items():
            if name in policy.metrics:
                result_digests[name] = files.store_result(signed_file, target)

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
        gate.log.record_verdict(snapshot, attestation.verdict, verdict.outcomes)
        signed_file = files.sign_attestation(attestation)
        return replace(attestation, keyid=gate.key.signer.public_key.keyid), signed_file

    @reporting_unavailable()
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

        The checks are the functions in the lists of :mod:`privacy_assets.gate.publication`, in
        their order. Before anything is added to the log (``CHECKS_BEFORE_ENTRY``):

        1. The signing key can be used.
        2. The folders belong to one deployment, and not every user can write to the releases.
        3. A trusted key signed the attestation, for this table and partition.
        4. A trusted key signed the file of the snapshot, for this table and partition.
        5. Policy and settings equal the accepted settings of the table, which is not suspended:
           fewer than 4 of its last 7 verdicts are "fail".
        6. Package version, policy and settings of the attestation are in force.
        7. The attestation has the same limits as its policy, and its verdict is "pass".
        8. It names this snapshot: the same bytes and rows.
        9. The signed results that it names are in the private folder, and belong to this snapshot.
        10. They meet the policy, which is evaluated again.
        11. The attestation is the latest one of the table and partition.
        12. The ids of the pointer and of all releases are valid, and not more than ten minutes in
            the future.

        With the log as it is just before the entry of this release, so that no other process can
        come in between (``CHECKS_WITH_LOG``):

        13. It has each release and pointer of all partitions in the release folder.
        14. The table is not suspended, as in 5.
        15. No limit failed for these rows before, in any run, that the policy has as well or has
            stricter. Failures in other partitions count if the partitions share subjects.
        16. The rows were not withdrawn, in any partition.
        17. They were not published in this partition and later replaced or rolled back.

        With the same log (``CHECKS_OF_NEW_ENTRY``). If the last publication or rollback has these
        bytes, both are left out, and there is no new entry:

        18. The disclosure was measured with the current ledger.
        19. The ledger after this release is in the private folder.

        Reading the log verifies its entries since the last acceptance, so 5 and 13 can raise
        TableSuspended for them, too. Then, before the pointer is written:

        20. No other release, rollback or withdrawal of this partition was recorded meanwhile.
        21. The copied bytes have the hash in the attestation.
        22. The release is not older than the current one.

        The release store makes 21 and 22, and calls 20. An object store makes 20 and 22 before the
        upload, and again before each attempt to move the pointer. If the release is current
        already, its bytes are compared with the attestation in place of 21 and 22.

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
        gate = self.gate
        request = PublicationRequest(
            self.files, attestation_file, snapshot_file, target, policy, setup
        )
        for check in CHECKS_BEFORE_ENTRY:
            check(request)
        attestation = request.attestation

        def facts_of_release(state: LogState) -> Facts | None:
            for check in CHECKS_WITH_LOG:
                check(request, state)
            if request.is_published(state):
                return None  # readers have it already, or this call completes an interrupted one
            for check in CHECKS_OF_NEW_ENTRY:
                check(request, state)
            return {
                "sha256": attestation.sha256,
                "content": attestation.content,
                "ledger": attestation.ledger or state.ledger,
            }

        move = gate.record_move(target, "release", facts_of_release)
        release = self._current_release(target, attestation.sha256)
        if release is not None:
            gate.store.point(target, release.id, move.sign_pointer, move.check_no_later_move)
        else:
            release = gate.store.add(
                target,
                request.snapshot.path,
                attestation.sha256,
                attestation_file.data,
                move.sign_pointer,
                move.check_no_later_move,
            )
        with suppress(OSError, PublicationBlocked):  # the next publication removes them
            gate.ledgers.remove_others(target.table, gate.log.state(target.table).ledger)
        with suppress(OSError, PublicationBlocked):  # the next publication removes it
            gate.accepted.end_proposal(target.table)
        return release

    def _current_release(self, target: ReleaseTarget, sha256: str) -> Release | None:
        """Return the current release if it is whole and has these bytes, which are not stored
        again.
        """
        trusted = self.gate.key.trusted
        try:
            release = self.gate.store.current(target, trusted)
            check_bytes(release.table, sha256, release.root)
            attestation = release.opened(target, trusted)
        except (OSError, InputError, PublicationBlocked):
            return None
        if attestation.sha256 != sha256:
            return None
        return release
