"""Attestation of a policy's verdict on signed results, bound to the exact bytes of a synthetic
table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, get_args

from privacy_assets.errors import (
    ConfigError,
    FailedBefore,
    OutOfDate,
    PolicyNotMet,
    Undecided,
    WrongTarget,
)
from privacy_assets.gate.envelope import Payload, ReleaseTarget, SignedFileKind
from privacy_assets.gate.snapshot import Snapshot
from privacy_assets.generators.registry import GENERATORS
from privacy_assets.infra.registry import OWN
from privacy_assets.metrics.base import Metric
from privacy_assets.metrics.policies import policy_digest, read_policy
from privacy_assets.metrics.registry import METRICS
from privacy_assets.policy import LimitOutcome, Policy, Status, Verdict, tally
from privacy_assets.stats.estimates import MetricResult, to_jsonable
from privacy_assets.version import PACKAGE_VERSION

_MAX_NAMED = 3  # maximum number of limits named in an error; report and check name all
# Inputs that only some metrics read, with the words of the message for another input.
_OTHER_INPUTS = {"embedder": "another embedder", "ledger": "the ledger of an earlier release"}


@dataclass(frozen=True)
class Attestation:
    """Verdict of a policy on one synthetic table, without measured numbers.

    The digits of a statistic could disclose a cell to a reader who knows all other cells.

    Attributes:
        target: Table and partition.
        sha256: SHA-256 of the file.
        content: Keyed fingerprint of the rows before rare values were replaced, independent of
            their order.
        policy: Policy with its limits.
        policy_digest: Digest of the policy.
        verdict: "pass", "fail" or "undecided".
        limits: Status of each limit of the policy, by key.
        earlier_failures: Limits that failed for the same rows earlier. If there are any, the
            verdict is "fail".
        results: Keyed digest of the signed private result of each metric of the policy, by metric.
        inputs: Keyed fingerprints of the tables, by role, and the hash of the ledger of disclosure
            before this table.
        ledger: Hash of the private ledger of disclosure after this table. Empty: no metric measures
            it.
        setup: Settings that determine what is measured. Declared values appear as counts and keyed
            digests.
        n_rows: Number of rows.
        dtypes: pandas dtypes of the columns, by name.
        made_at: Time of the attestation (UTC, ISO 8601).
        attempt: Number of the publication attempt since the last release of the table.
        package_version: Version of the package.
        keyid: Id of the signing key. Empty if not signed.
    """

    target: ReleaseTarget
    sha256: str
    content: str
    policy: Mapping[str, Any]
    policy_digest: str
    verdict: Status
    limits: Mapping[str, Status]
    earlier_failures: Sequence[str]
    results: Mapping[str, str]
    inputs: Mapping[str, str]
    ledger: str
    setup: Mapping[str, Any]
    n_rows: int
    dtypes: Mapping[str, str]
    made_at: str
    attempt: int
    package_version: str = PACKAGE_VERSION
    keyid: str = ""

    def payload(self) -> Payload:
        """Return the payload to sign."""
        body = {}
        for field in fields(self):
            if field.name not in ("target", "sha256", "keyid"):
                body[field.name] = to_jsonable(getattr(self, field.name))
        return Payload("attestation", self.target, self.sha256, body)

    @classmethod
    def of(cls, payload: Payload) -> Attestation:
        """Create an attestation from its payload.

        Args:
            payload: Verified payload.

        Raises:
            OutOfDate: If a field is missing or unknown.
        """
        try:
            return cls(payload.target, payload.sha256, **payload.body, keyid=payload.keyid)
        except TypeError:
            raise OutOfDate(
                "the attestation is of another version of privacy-assets", record="attestation"
            ) from None

    def attested_policy(self) -> Policy:
        """Return the policy of the attestation.

        Raises:
            OutOfDate: If this version cannot read it.
        """
        try:
            return read_policy(self.policy, self.package_version)
        except ConfigError:
            raise self.unreadable() from None

    def policy_verdict(self) -> Verdict:
        """Return the signed verdict and the status of each limit, without measured numbers.

        Raises:
            OutOfDate: If the limits differ from those of the policy.
        """
        limits = self.attested_policy().limits
        statuses: dict[str, Status] = {}
        if isinstance(self.limits, Mapping):
            statuses = dict(self.limits)
        has_all_limits = {limit.key for limit in limits} == set(statuses)
        if not has_all_limits or not set(statuses.values()) <= set(get_args(Status)):
            raise self.unreadable()
        outcomes = []
        for limit in limits:
            outcomes.append(LimitOutcome(limit, statuses[limit.key], math.nan, "", None))
        return Verdict(self.verdict, tuple(outcomes))

    def unreadable(self) -> OutOfDate:
        """Return the error for an attestation that this version cannot read."""
        text = f"the attestation is of another version of privacy-assets ({self.package_version})"
        return OutOfDate(text, record="attestation")


def check_target(actual: ReleaseTarget, target: ReleaseTarget, kind: SignedFileKind) -> None:
    """Reject a signed file of another table or partition.

    Args:
        actual: Table and partition of the signed file.
        target: Expected table and partition.
        kind: Kind of the signed file.

    Raises:
        WrongTarget: If they differ.
    """
    if actual != target:
        raise WrongTarget(
            f"the {kind} belongs to another table or partition ({actual})", record=kind
        )


def check_made(
    snapshot: Snapshot,
    inputs: Mapping[str, str],
    setup: Mapping[str, Any],
    metrics: Mapping[str, Metric],
) -> None:
    """Reject a synthetic table with another train table, filter or generator than the results.

    Args:
        snapshot: Synthetic table, with its signed origin.
        inputs: Keyed fingerprints of the real tables, by role.
        setup: Settings that determine what is measured.
        metrics: Metrics by name. Some attack a configured generator.

    Raises:
        OutOfDate: If an origin differs.
    """
    if snapshot.train_fingerprint != inputs["train"]:
        raise OutOfDate(
            "the synthetic table was generated from another train table", record="generator"
        )
    filters = None
    filter_inputs: Mapping[str, str] = {}
    if snapshot.filter is not None:
        filters = to_jsonable(snapshot.filter.get("filters", {}))
        filter_inputs = snapshot.filter.get("inputs", {})
    if filters != to_jsonable(setup.get("filter")):
        raise OutOfDate("the synthetic table was made with another filter", record="snapshot")
    for role, fingerprint in sorted(filter_inputs.items()):
        if fingerprint != inputs.get(role):
            raise OutOfDate(
                f"the synthetic table was filtered by another {role} table", record="snapshot"
            )
    _check_distribution(snapshot)
    _check_attacked_generator(snapshot, metrics)


def _check_distribution(snapshot: Snapshot) -> None:
    """Reject a synthetic table of a generator whose package has another version now."""
    if snapshot.generator is None:
        return
    made_by = snapshot.generator.get("distribution")
    distribution = GENERATORS.distribution(str(snapshot.generator.get("name")))
    if made_by != distribution:
        raise OutOfDate(
            f"the generator was of {made_by or OWN}, and is now of {distribution or OWN}",
            record="generator",
        )


def _check_attacked_generator(snapshot: Snapshot, metrics: Mapping[str, Metric]) -> None:
    """Reject a synthetic table of another generator than a metric attacks."""
    generator: Mapping[str, Any] | None = snapshot.generator
    if generator:
        generator = {key: to_jsonable(generator.get(key)) for key in ("name", "settings")}
    for name, metric in metrics.items():
        attacked = to_jsonable(metric.settings().get("generator"))
        if attacked is not None and generator is not None and attacked != generator:
            text = f"the synthetic table was generated by another generator than {name} attacks"
            raise OutOfDate(text, record="generator")


def check_result(
    result: MetricResult, inputs: Mapping[str, str], metric: Metric | None, seed: int
) -> None:
    """Reject a result unless this version computed it on these tables with these settings
    and this seed.

    Args:
        result: Result of one metric.
        inputs: Current fingerprints by role: tables, embedder and ledger.
        metric: Configured metric. None: it is not configured, and the result is rejected.
        seed: Configured seed.

    Raises:
        OutOfDate: If the result does not match.
    """
    if metric is not None and result.metric != metric.name:
        raise OutOfDate(f"expected a result of {metric.name}, got {result.metric}", record="result")
    if result.package_version != PACKAGE_VERSION:
        raise OutOfDate(
            f"{result.metric} was computed by version {result.package_version}", record="result"
        )
    distribution = METRICS.distribution(result.metric) or ""
    if result.distribution != distribution:
        raise OutOfDate(
            f"{result.metric} was computed by {result.distribution or OWN}, and is now of"
            f" {distribution or OWN}",
            record="result",
        )
    for role in sorted({*inputs, *result.inputs}):
        if not _is_used(role, metric) or result.inputs.get(role) == inputs.get(role):
            continue
        table = _OTHER_INPUTS.get(role, f"another {role} table")
        raise OutOfDate(f"{result.metric} was computed on {table}", record="result")
    if (
        metric is None
        or result.seed != seed
        or to_jsonable(result.settings) != to_jsonable(metric.settings())
    ):
        raise OutOfDate(
            f"{result.metric} was computed with other settings or seed", record="result"
        )


def _is_used(role: str, metric: Metric | None) -> bool:
    """Return True for a table that every result depends on, or that this metric reads."""
    if role not in _OTHER_INPUTS:
        return True
    return metric is not None and role in metric.required_inputs | metric.optional_inputs


def check_snapshot(attestation: Attestation, snapshot: Snapshot) -> None:
    """Reject an attestation of another synthetic table.

    Args:
        attestation: Attestation to check.
        snapshot: Synthetic table that it must name, with the same bytes and rows.
    """
    if (snapshot.sha256, snapshot.content) != (attestation.sha256, attestation.content):
        raise OutOfDate("the attestation belongs to another synthetic table", record="attestation")


def check_in_force(attestation: Attestation, policy: Policy, setup: Mapping[str, Any]) -> None:
    """Reject an attestation of another version, policy or settings than those in force.

    The statistics of another version may contain errors that were fixed since.

    Args:
        attestation: Attestation to check.
        policy: Policy in force.
        setup: Current settings except the policy.

    Raises:
        OutOfDate: If one of them differs.
    """
    if attestation.package_version != PACKAGE_VERSION:
        raise OutOfDate(
            f"the attestation was made by version {attestation.package_version}",
            record="result",
        )
    if attestation.policy_digest != policy_digest(policy):
        raise OutOfDate("the attestation was made under another policy", record="attestation")
    current = to_jsonable(setup)
    signed = attestation.setup
    names = sorted({*current, *signed})
    changed = [name for name in names if current.get(name) != signed.get(name)]
    if changed:
        text = f"the attestation was made under other settings ({', '.join(changed)})"
        raise OutOfDate(text, record="result")


def check_verdict(verdict: Verdict, earlier_failures: Sequence[str]) -> None:
    """Reject every verdict except "pass".

    Args:
        verdict: Verdict to check.
        earlier_failures: Limits that failed for the same rows earlier. They only decide which
            error is raised.

    Raises:
        PolicyNotMet: If a limit failed.
        FailedBefore: If no limit failed, but the rows failed earlier.
    """
    if verdict.status != "pass" or verdict.not_passed:
        raise blocking_error(verdict, earlier_failures)


def check_earlier_failures(earlier_failures: Sequence[str]) -> None:
    """Reject rows that failed earlier.

    Args:
        earlier_failures: Limits that failed for them, see :meth:`.LogState.failures`.

    Raises:
        FailedBefore: If there are any.
    """
    if earlier_failures:
        raise failed_before(earlier_failures)


def part_of_failures(target: ReleaseTarget, setup: Mapping[str, Any]) -> str | None:
    """Return the partition whose earlier failures count, or None if those of all partitions do.

    Args:
        target: Table and partition.
        setup: Settings except the policy.
    """
    if setup.get("shared_subjects"):
        return None
    return target.part


def check_measured_with(attestation: Attestation, ledger: str) -> None:
    """Reject an attestation whose disclosure was measured with another ledger than the current
    one.

    Args:
        attestation: Attestation to check.
        ledger: SHA-256 of the current ledger.

    Raises:
        OutOfDate: If they differ.
    """
    if attestation.inputs.get("ledger") != ledger:
        raise OutOfDate(
            "another table was released since the attestation was made", record="result"
        )


def blocking_error(
    verdict: Verdict, earlier_failures: Sequence[str] = (), remedy: str = ""
) -> PolicyNotMet | FailedBefore:
    """Return the error of a verdict other than "pass". Its message has the limits that failed
    first, without numbers.

    Rows that failed before, and for which no limit fails now, are blocked for that: another run
    cannot change it.

    Args:
        verdict: Verdict.
        earlier_failures: Limits that failed for the same rows earlier.
        remedy: What would make the verdict "pass", for the advice. Empty: general advice.
    """
    not_passed = sorted(verdict.not_passed, key=lambda outcome: outcome.status != "fail")
    if not not_passed or (earlier_failures and not_passed[0].status != "fail"):
        return failed_before(earlier_failures)
    names = []
    for outcome in not_passed[:_MAX_NAMED]:
        names.append(f"{outcome.limit.key} ({outcome.status.replace('_', ' ')})")
    if len(not_passed) > _MAX_NAMED:
        names.append(f"and {len(not_passed) - _MAX_NAMED} more")
    kind = Undecided if verdict.status == "undecided" else PolicyNotMet
    counts = tally(verdict.outcomes)
    text = f"the policy does not hold ({verdict.status}: {counts}): {', '.join(names)}"
    return kind(text, outcomes=verdict.not_passed, remedy=remedy)


def failed_before(earlier_failures: Sequence[str]) -> FailedBefore:
    """Return the error of rows that failed earlier."""
    text = "the policy does not hold: these rows failed before, and rerunning cannot change that"
    return FailedBefore(f"{text} ({'; '.join(earlier_failures)})", failures=tuple(earlier_failures))
