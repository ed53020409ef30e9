"""The checks before a publication, in the order in which they are made.

:meth:`.Publisher.publish` makes them all, and repeats those of earlier steps, because it trusts no
earlier step. A new check is a function in one of the three lists at the end. Its docstring is its
line in the docstring of ``publish``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from privacy_assets.errors import Superseded
from privacy_assets.gate.attestation import (
    Attestation,
    check_earlier_failures,
    check_in_force,
    check_measured_with,
    check_snapshot,
    check_verdict,
    part_of_failures,
)
from privacy_assets.gate.envelope import ReleaseTarget, SignedFile
from privacy_assets.gate.gate import Gate
from privacy_assets.gate.log import LogState
from privacy_assets.gate.release import replaced
from privacy_assets.gate.signed_files import SignedFiles
from privacy_assets.gate.snapshot import Snapshot
from privacy_assets.policy import Policy
from privacy_assets.stats.estimates import MetricResult


@dataclass(frozen=True)
class PublicationRequest:
    """Request to publish a synthetic table, with its attestation, policy and settings.

    Signed files are opened when a check first needs them, and only once.

    Attributes:
        files: Opens signed files.
        attestation_file: Signed attestation.
        snapshot_file: Signed file of the synthetic table.
        target: Table and partition.
        policy: Policy in force.
        setup: Current settings except the policy.
    """

    files: SignedFiles
    attestation_file: SignedFile
    snapshot_file: SignedFile
    target: ReleaseTarget
    policy: Policy
    setup: Mapping[str, Any]

    @property
    def gate(self) -> Gate:
        """Folders, key and records."""
        return self.files.gate

    @cached_property
    def attestation(self) -> Attestation:
        """Verified attestation."""
        return self.files.open_attestation(self.attestation_file, self.target)

    @cached_property
    def snapshot(self) -> Snapshot:
        """Verified snapshot."""
        return self.files.open_snapshot(self.snapshot_file, self.target)

    @cached_property
    def results(self) -> dict[str, MetricResult]:
        """Verified private results that the attestation names."""
        return self.files.stored_results(self.attestation, self.snapshot)

    def is_published(self, state: LogState) -> bool:
        """Return True if the last publication or rollback has these bytes.

        Args:
            state: State of the log.
        """
        last = state.last_publication(self.target)
        return last is not None and last.sha256 == self.attestation.sha256


def _check_signing_key(request: PublicationRequest) -> None:
    """The signing key can be used."""
    request.gate.key.check()


def _check_folders(request: PublicationRequest) -> None:
    """The folders belong to one deployment, and not every user can write to the releases."""
    request.gate.check_folders()


def _check_signed_attestation(request: PublicationRequest) -> None:
    """A trusted key signed the attestation, for this table and partition."""
    _ = request.attestation


def _check_signed_snapshot(request: PublicationRequest) -> None:
    """A trusted key signed the file of the snapshot, for this table and partition."""
    _ = request.snapshot


def _check_accepted_settings(request: PublicationRequest) -> None:
    """Policy and settings equal the accepted settings of the table, which is not suspended: fewer
    than 4 of its last 7 verdicts are "fail".
    """
    request.gate.accepted.check(request.target.table, request.policy, request.setup)


def _check_in_force(request: PublicationRequest) -> None:
    """Package version, policy and settings of the attestation are in force."""
    check_in_force(request.attestation, request.policy, request.setup)


def _check_attested_verdict(request: PublicationRequest) -> None:
    """The attestation has the same limits as its policy, and its verdict is "pass"."""
    attestation = request.attestation
    check_verdict(attestation.policy_verdict(), attestation.earlier_failures)


def _check_attested_snapshot(request: PublicationRequest) -> None:
    """It names this snapshot: the same bytes and rows."""
    check_snapshot(request.attestation, request.snapshot)


def _check_stored_results(request: PublicationRequest) -> None:
    """The signed results that it names are in the private folder, and belong to this snapshot."""
    _ = request.results


def _check_measured_verdict(request: PublicationRequest) -> None:
    """They meet the policy, which is evaluated again."""
    attestation = request.attestation
    verdict = request.policy.judge(request.results, attestation.attempt)
    check_verdict(verdict, attestation.earlier_failures)


def _check_latest(request: PublicationRequest) -> None:
    """The attestation is the latest one of the table and partition."""
    request.files.check_latest(request.attestation_file, request.target, "attestation")


def _check_ids(request: PublicationRequest) -> None:
    """The ids of the pointer and of all releases are valid, and not more than ten minutes in the
    future.
    """
    request.gate.store.check_ids(request.target)


def _check_not_behind(request: PublicationRequest, state: LogState) -> None:
    """It has each release and pointer of all partitions in the release folder."""
    request.gate.check_not_behind(request.target.table, state)


def _check_not_suspended(request: PublicationRequest, state: LogState) -> None:
    """The table is not suspended, as in 5."""
    state.check_not_suspended(request.target.table)


def _check_earlier_failures(request: PublicationRequest, state: LogState) -> None:
    """No limit failed for these rows before, in any run, that the policy has as well or has
    stricter. Failures in other partitions count if the partitions share subjects.
    """
    part = part_of_failures(request.target, request.setup)
    check_earlier_failures(state.failures(request.policy, request.attestation, part))


def _check_not_withdrawn(request: PublicationRequest, state: LogState) -> None:
    """The rows were not withdrawn, in any partition."""
    if state.is_withdrawn(request.attestation.sha256, request.attestation.content):
        raise Superseded("these rows were withdrawn, which holds for all partitions of the table")


def _check_not_replaced(request: PublicationRequest, state: LogState) -> None:
    """They were not published in this partition and later replaced or rolled back."""
    history = state.history(request.target)
    same = [publication for publication in history if publication.is_same(request.attestation)]
    if same and same[-1] != history[-1]:
        end = same[-1].sha256[:12]
        releases = request.gate.store.history(request.target)
        same_ids = [release.id for release in releases if release.id.endswith(end)]
        raise replaced(max(same_ids, default=""))


def _check_current_ledger(request: PublicationRequest, state: LogState) -> None:
    """The disclosure was measured with the current ledger."""
    check_measured_with(request.attestation, state.ledger)


def _check_next_ledger(request: PublicationRequest, state: LogState) -> None:
    """The ledger after this release is in the private folder."""
    request.gate.ledgers.read(request.target.table, request.attestation.ledger)


Check = Callable[[PublicationRequest], None]
CheckWithLog = Callable[[PublicationRequest, LogState], None]

# before anything is added to the log
CHECKS_BEFORE_ENTRY: tuple[Check, ...] = (
    _check_signing_key,
    _check_folders,
    _check_signed_attestation,
    _check_signed_snapshot,
    _check_accepted_settings,
    _check_in_force,
    _check_attested_verdict,
    _check_attested_snapshot,
    _check_stored_results,
    _check_measured_verdict,
    _check_latest,
    _check_ids,
)
# with the log as it is just before the entry of the release
CHECKS_WITH_LOG: tuple[CheckWithLog, ...] = (
    _check_not_behind,
    _check_not_suspended,
    _check_earlier_failures,
    _check_not_withdrawn,
    _check_not_replaced,
)
# with the same log, unless the last publication or rollback has the same bytes
CHECKS_OF_NEW_ENTRY: tuple[CheckWithLog, ...] = (
    _check_current_ledger,
    _check_next_ledger,
)
