"""Verification of files and releases with a public key."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from privacy_assets.errors import InputError, PublicationBlocked, advice_for_readers, for_readers
from privacy_assets.gate.attestation import Attestation
from privacy_assets.gate.envelope import ReleaseTarget, SignedFile, verified_payload
from privacy_assets.gate.keys import SigningKey, TrustedKeys
from privacy_assets.gate.log import Log, LogState
from privacy_assets.gate.release import LARGEST_ATTESTATION
from privacy_assets.gate.releases import (
    ATTESTATION_FILE,
    Release,
    ReleaseStore,
    check_bytes,
)
from privacy_assets.infra.objects import Location
from privacy_assets.infra.storage import hash_file, storage_of
from privacy_assets.metrics.registry import table_settings
from privacy_assets.policy import LimitOutcome, Verdict, tally
from privacy_assets.tables.declared import Declared


@dataclass(frozen=True, kw_only=True)
class Verification:
    """Result of verifying one file.

    Attributes:
        file: Verified file.
        sha256: SHA-256 of its bytes.
        reason: Why the file does not pass. Empty if it passes.
        source: Path of the attestation. None if there is none.
        attestation: Attestation, if a trusted key signed it and it names these bytes.
        outcomes: Its limits, without measured numbers.
        declared: Declarations of the table's owner, see :func:`declared_of`.
        release: Release with this attestation in the release folder, if any.
        current: Whether this release is current.
        withdrawn: Whether the log of the publisher records a withdrawal of these bytes or rows.
    """

    file: Location
    sha256: str
    reason: str
    source: Location | None = None
    attestation: Attestation | None = None
    outcomes: tuple[LimitOutcome, ...] = ()
    declared: Mapping[str, Any] = field(default_factory=dict)
    release: Release | None = None
    current: bool = False
    withdrawn: bool = False

    @property
    def passed(self) -> bool:
        """Whether a trusted attestation with verdict "pass" names these bytes."""
        return not self.reason


def verify_file(
    file: Location,
    trusted: TrustedKeys,
    releases: Location,
    attestation: Location | None = None,
    max_age: dt.timedelta | None = None,
    private: Location | None = None,
) -> Verification:
    """Verify whether the bytes of ``file`` were released.

    The file is read once, in constant memory.

    Args:
        file: File to verify.
        trusted: Trusted keys.
        releases: Release folder.
        attestation: Path of the attestation. None: ``attestation.json`` next to the file, or those
            of releases with these bytes.
        max_age: Maximum time since the publisher confirmed that this is the current release. A time
            more than 10 minutes in the future is rejected. None: it need not be.
        private: Private folder of the publisher, whose log knows withdrawn releases. None: not
            asked.

    Raises:
        InputError: If a file cannot be read.
        ConfigError: If there is no trusted key.
    """
    _ = trusted.by_id  # fails early, before a large file is read
    try:
        sha256 = hash_file(file, releases)
    except OSError as error:
        raise InputError(
            f"cannot be read ({error.strerror})", where=str(file), fix="pass the file itself"
        ) from None
    store = ReleaseStore(releases)
    neighbor = file.absolute().parent / ATTESTATION_FILE
    if attestation is None and neighbor.is_file():
        attestation = neighbor
    if attestation is not None:
        sources = [attestation]
    else:
        sources = _released_as(store, sha256, trusted)
    if not sources:
        text = (
            f"there is no {ATTESTATION_FILE} next to it, and no release of these bytes in"
            f" {releases}. The file was changed after its release, or never released. Fix: pass the"
            " attestation that came with it with --attestation."
        )
        return Verification(file=file, sha256=sha256, reason=text)
    verifications = [_verified(file, sha256, source, trusted, store) for source in sources]
    best = verifications[0]
    for verification in verifications:
        if verification.passed:
            best = verification
            break
    if best.attestation is None:
        return best
    log = read_log(best.attestation.target.table, private, trusted)
    if log.is_withdrawn(best.attestation.sha256, best.attestation.content):
        text = (
            "the publisher withdrew this release. An old copy of the release folder, or of the"
            " file, remains."
        )
        return replace(best, reason=text, withdrawn=True)
    if max_age is None or not best.passed:
        return best
    return replace(best, reason=_stale(best, store, trusted, max_age))


def read_log(table: str, private: Location | None, trusted: TrustedKeys) -> LogState:
    """Return what the log of ``table`` adds up to; the empty state if it cannot be read.

    Entries that cannot be verified only make it stricter.

    Args:
        table: Name of the table.
        private: Private folder of the publisher. None: not known.
        trusted: Trusted keys.
    """
    if private is None:
        return LogState()
    try:
        return Log(private, SigningKey(None, "", trusted)).believed(table)
    except (PublicationBlocked, OSError):
        return LogState()


def _stale(
    verification: Verification, store: ReleaseStore, trusted: TrustedKeys, max_age: dt.timedelta
) -> str:
    """Return why a released file is not the current release, confirmed within ``max_age``, or
    "".
    """
    if verification.attestation is None or not verification.current:
        return f"it is not the current release in {store.root}, as --max-age requires."
    target = verification.attestation.target
    problem = store.pointer(target, trusted).problem(target, max_age)
    if not problem:
        return ""
    return f"{problem}."


def _verified(
    file: Location, sha256: str, source: Location, trusted: TrustedKeys, store: ReleaseStore
) -> Verification:
    """Verify the file with one attestation."""
    try:
        data = storage_of(source).read(below=store.root, most=LARGEST_ATTESTATION)
    except OSError as error:
        raise InputError(
            f"the attestation cannot be read ({error.strerror})",
            where=str(source),
            fix="check the path",
        ) from None
    try:
        with for_readers():
            attestation = Attestation.of(verified_payload(SignedFile("attestation", data), trusted))
            verdict = attestation.policy_verdict()
            declared = declared_of(attestation)
    except PublicationBlocked as error:
        text = f"{source}: {error.event}. Fix: {advice_for_readers(error)}"
        return Verification(file=file, sha256=sha256, reason=text, source=source)
    if attestation.sha256 != sha256:
        text = (
            f"its bytes differ from those in the attestation of {attestation.target} ({source}). It"
            " was changed after its release, or is another file."
        )
        return Verification(file=file, sha256=sha256, reason=text, source=source)
    release = _release_of(attestation, data, store)
    is_current = False
    if release is not None:
        is_current = current_id(store, attestation.target, trusted).release_id == release.id
    return Verification(
        file=file,
        sha256=sha256,
        reason=_reason(attestation, verdict),
        source=source,
        attestation=attestation,
        outcomes=verdict.outcomes,
        declared=declared,
        release=release,
        current=is_current,
    )


def declared_names() -> list[str]:
    """Return the names of what :func:`declared_of` returns."""
    return ["seed", *Declared.signed_names(), "public_bounds", "table_settings"]


def declared_of(attestation: Attestation) -> dict[str, Any]:
    """Return the declarations of the table's owner: seed, subject and columns.

    Args:
        attestation: Attestation with the settings.

    Raises:
        OutOfDate: If another version of privacy-assets wrote the settings in another form.
    """
    setup = attestation.setup
    try:
        return {
            "seed": setup["seed"],
            **Declared.of_setup(setup),
            "public_bounds": list(setup.get("public_bounds", ())),
            "table_settings": table_settings(setup.get("metrics", {})),
        }
    except (KeyError, TypeError, ValueError, AttributeError):
        raise attestation.unreadable() from None


def _reason(attestation: Attestation, verdict: Verdict) -> str:
    if attestation.verdict == "pass" and not verdict.not_passed:
        return ""
    if verdict.not_passed:
        reasons = tally(verdict.outcomes)
    else:
        reasons = "; ".join(f"failed before: {limit}" for limit in attestation.earlier_failures)
    return f"the verdict on these bytes is {attestation.verdict!r}: {reasons}."


def _released_as(store: ReleaseStore, sha256: str, trusted: TrustedKeys) -> list[Location]:
    """Return the attestations of releases whose id contains this hash, current ones first, then
    newest first.
    """
    releases = []
    for target in store.targets():
        for release in store.history(target):
            if release.id.endswith(sha256[:12]):
                is_current = current_id(store, target, trusted).release_id == release.id
                releases.append((is_current, release.id, release.attestation))
    return [path for *_, path in sorted(releases, reverse=True)]


def _release_of(attestation: Attestation, data: bytes, store: ReleaseStore) -> Release | None:
    """Return the release with this attestation, of which ``data`` are the signed bytes."""
    for release in store.history(attestation.target):
        if release.is_of(attestation.sha256, data):
            return release
    return None


@dataclass(frozen=True)
class ReleaseState:
    """State of one release.

    Attributes:
        target: Table and partition.
        release: The release.
        current: Whether it is current.
        attestation: Attestation, if it is valid.
        damage: Description of the damage. Empty if the release is intact.
        withdrawn: Whether the log of the publisher records a withdrawal of its bytes or rows.
    """

    target: ReleaseTarget
    release: Release
    current: bool
    attestation: Attestation | None
    damage: str
    withdrawn: bool = False


def states_of(
    store: ReleaseStore,
    target: ReleaseTarget,
    trusted: TrustedKeys,
    private: Location | None = None,
) -> list[ReleaseState]:
    """Return every release of ``target``, newest first, after verifying signature, target and
    bytes.

    Args:
        store: Releases.
        target: Table and partition.
        trusted: Trusted keys.
        private: Private folder of the publisher, whose log knows withdrawn releases. None: not
            asked.
    """
    log = read_log(target.table, private, trusted)
    current = current_id(store, target, trusted).release_id
    states = []
    for release in reversed(store.history(target)):
        attestation = None
        damage = ""
        try:
            attestation = release.opened(target, trusted)
            check_bytes(release.table, attestation.sha256, release.root)
        except PublicationBlocked as error:
            damage = str(error)
        is_withdrawn = False
        if attestation is not None:
            is_withdrawn = log.is_withdrawn(attestation.sha256, attestation.content)
        is_current = release.id == current
        states.append(ReleaseState(target, release, is_current, attestation, damage, is_withdrawn))
    return states


class CurrentId(NamedTuple):
    """Id of the current release of a table and partition.

    Attributes:
        release_id: The id. None: there is none, or it cannot be determined.
        fault: Fault of the pointer, and how to fix it. Empty: there is none.
    """

    release_id: str | None
    fault: str


def current_id(store: ReleaseStore, target: ReleaseTarget, trusted: TrustedKeys) -> CurrentId:
    """Return the id of the current release, or the fault of the pointer.

    Args:
        store: Releases.
        target: Table and partition.
        trusted: Trusted keys.
    """
    try:
        release = store.current(target, trusted)
    except InputError:
        fix = "roll back to a release"
        fault = f"no release is current, so readers cannot load the table. Fix: {fix}."
        return CurrentId(None, fault)
    except PublicationBlocked as error:
        fix = "try again" if error.retry else "rerun the step publish, or roll back to a release"
        return CurrentId(None, f"{error.event}. Fix: {fix}.")
    if release not in store.history(target):
        fix = "restore it, or roll back to another"
        fault = f"the current release {release.id} is missing. Fix: {fix}."
        return CurrentId(None, fault)
    return CurrentId(release.id, "")
