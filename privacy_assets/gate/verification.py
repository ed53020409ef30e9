"""Verification of files and releases with a public key."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from privacy_assets.errors import InputError, PublicationRefused, for_readers, with_advice
from privacy_assets.gate.attestation import Attestation
from privacy_assets.gate.keys import SigningKey, TrustedKeys
from privacy_assets.gate.log import Log, LogState
from privacy_assets.gate.release import LARGEST_ATTESTATION
from privacy_assets.gate.releases import (
    ATTESTATION_FILE,
    Release,
    ReleaseStore,
    check_bytes,
    hash_file,
)
from privacy_assets.gate.statements import ReleaseTarget, SignedRecord, unseal
from privacy_assets.infra.files import read_regular
from privacy_assets.infra.objects import Location
from privacy_assets.metrics.registry import table_settings
from privacy_assets.policy import LimitOutcome, Verdict, tally


@dataclass(frozen=True, kw_only=True)
class Verification:
    """Result of verifying one file.

    Attributes:
        file: Verified file.
        sha256: SHA-256 of its bytes.
        refusal: Why the file does not pass. Empty if it passes.
        source: Path of the attestation. None if there is none.
        stated: Attestation, if a trusted key signed it and it names these bytes.
        outcomes: Its limits, without measured numbers.
        declared: Declarations of the table's owner, see :func:`declared_of`.
        release: Release with this attestation in the release folder, if any.
        current: Whether this release is current.
        withdrawn: Whether the log of the publisher records a withdrawal of these bytes or rows.
    """

    file: Location
    sha256: str
    refusal: str
    source: Location | None = None
    stated: Attestation | None = None
    outcomes: tuple[LimitOutcome, ...] = ()
    declared: Mapping[str, Any] = field(default_factory=dict)
    release: Release | None = None
    current: bool = False
    withdrawn: bool = False

    @property
    def passed(self) -> bool:
        """Whether a trusted attestation with verdict "pass" names these bytes."""
        return not self.refusal


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
            more than 10 minutes in the future is refused. None: it need not be.
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
    given = attestation or (neighbor if neighbor.is_file() else None)
    sources = [given] if given else _released_as(store, sha256, trusted)
    if not sources:
        text = (
            f"there is no {ATTESTATION_FILE} next to it, and no release of these bytes in"
            f" {releases}. The file"
            " was changed after its release, or never released. Fix: pass the attestation that"
            " came with it"
            " with --attestation."
        )
        return Verification(file=file, sha256=sha256, refusal=text)
    found = [_verified(file, sha256, source, trusted, store) for source in sources]
    best = next((one for one in found if one.passed), found[0])
    stated = best.stated
    if stated is None:
        return best
    log = read_log(stated.target.table, private, trusted)
    if log.is_withdrawn(stated.sha256, stated.content):
        text = (
            "the publisher withdrew this release. An old copy of the release folder, or of the"
            " file, remains."
        )
        return replace(best, refusal=text, withdrawn=True)
    return (
        best
        if max_age is None or not best.passed
        else replace(best, refusal=_stale(best, store, trusted, max_age))
    )


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
    except (PublicationRefused, OSError):
        return LogState()


def _stale(
    found: Verification, store: ReleaseStore, trusted: TrustedKeys, max_age: dt.timedelta
) -> str:
    """Return why a released file is not the current release, confirmed within ``max_age``, or
    "".
    """
    if found.stated is None or not found.current:
        return f"it is not the current release in {store.root}, as --max-age requires."
    target = found.stated.target
    problem = store.pointer(target, trusted).problem(target, max_age)
    return f"{problem}." if problem else ""


def _verified(
    file: Location, sha256: str, source: Location, trusted: TrustedKeys, store: ReleaseStore
) -> Verification:
    """Verify the file with one attestation."""
    try:
        data = read_regular(source, below=store.root, most=LARGEST_ATTESTATION)
    except OSError as error:
        raise InputError(
            f"the attestation cannot be read ({error.strerror})",
            where=str(source),
            fix="check the path",
        ) from None
    try:
        with for_readers():
            stated = Attestation.of(unseal(SignedRecord("attestation", data), trusted))
            verdict, declared = stated.policy_verdict(), declared_of(stated)
    except PublicationRefused as error:
        return Verification(
            file=file, sha256=sha256, refusal=f"{source}: {with_advice(error)}", source=source
        )
    if stated.sha256 != sha256:
        text = (
            f"its bytes differ from those in the attestation of {stated.target} ({source}). It"
            " was changed after"
            " its release, or is another file."
        )
        return Verification(file=file, sha256=sha256, refusal=text, source=source)
    release, current = _where(store, stated, data, trusted)
    return Verification(
        file=file,
        sha256=sha256,
        refusal=_refusal(stated, verdict),
        source=source,
        stated=stated,
        outcomes=verdict.outcomes,
        declared=declared,
        release=release,
        current=current,
    )


def declared_of(stated: Attestation) -> dict[str, Any]:
    """Return the declarations of the table's owner: seed, subject and columns.

    Raises:
        OutOfDate: If another version of privacy-assets wrote the settings in another form.
    """
    setup = stated.setup
    try:
        columns = {
            name: dict(setup.get(name, {})) for name in ("kinds", "new_values", "allowed_values")
        }
        columns["allowed_values"] = {
            name: dict(one) for name, one in columns["allowed_values"].items()
        }
        own = {
            "dropped": list(setup.get("drop", ())),
            "table_settings": table_settings(setup.get("metrics", {})),
        }
        own["public_bounds"] = list(setup.get("public_bounds", ()))
        for setting in ("missing", "prefix_lengths"):
            own[setting] = {name: list(values) for name, values in setup.get(setting, {}).items()}
        own["relations"] = dict(setup.get("relations", {}))
        plain = {name: setup.get(name) for name in ("subject", "timezone", "snapshots")}
        exact_ids = bool(setup.get("exact_ids", False))
        return {"seed": setup["seed"], **plain, "exact_ids": exact_ids, **own, **columns}
    except (KeyError, TypeError, ValueError, AttributeError):
        raise stated.unreadable() from None


def _refusal(stated: Attestation, verdict: Verdict) -> str:
    if stated.verdict == "pass" and not verdict.broken:
        return ""
    reasons = (
        [tally(verdict.outcomes)]
        if verdict.broken
        else [f"failed before: {x}" for x in stated.remembered]
    )
    return f"the verdict on these bytes is {stated.verdict!r}: {'; '.join(reasons)}."


def _released_as(store: ReleaseStore, sha256: str, trusted: TrustedKeys) -> list[Location]:
    """Return the attestations of releases whose id contains this hash, current ones first, then
    newest first.
    """
    found = [
        (current_id(store, target, trusted)[0] == release.id, release.id, release.attestation)
        for target in store.targets()
        for release in store.history(target)
        if release.id.endswith(sha256[:12])
    ]
    return [path for *_, path in sorted(found, reverse=True)]


def _where(
    store: ReleaseStore, stated: Attestation, attestation: bytes, trusted: TrustedKeys
) -> tuple[Release | None, bool]:
    """Return the release with this attestation, and whether it is current."""
    for release in store.history(stated.target):
        if release.is_of(stated.sha256, attestation):
            return release, current_id(store, stated.target, trusted)[0] == release.id
    return None, False


@dataclass(frozen=True)
class ReleaseState:
    """State of one release.

    Attributes:
        target: Table and partition.
        release: The release.
        current: Whether it is current.
        stated: Attestation, if it is valid.
        damage: Description of the damage. Empty if the release is intact.
        withdrawn: Whether the log of the publisher records a withdrawal of its bytes or rows.
    """

    target: ReleaseTarget
    release: Release
    current: bool
    stated: Attestation | None
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
    current, states = current_id(store, target, trusted)[0], []
    for release in reversed(store.history(target)):
        stated, damage = None, ""
        try:
            stated = release.opened(target, trusted)
            check_bytes(release.table, stated.sha256, release.root)
        except PublicationRefused as error:
            damage = str(error)
        withdrawn = stated is not None and log.is_withdrawn(stated.sha256, stated.content)
        states.append(
            ReleaseState(target, release, release.id == current, stated, damage, withdrawn)
        )
    return states


def current_id(
    store: ReleaseStore, target: ReleaseTarget, trusted: TrustedKeys
) -> tuple[str | None, str]:
    """Return the id of the current release and "", or None and the fault of the pointer."""
    try:
        release = store.current(target, trusted)
    except InputError:
        return (
            None,
            "no release is current, so readers cannot load the table. Fix: roll back to a release.",
        )
    except PublicationRefused as error:
        fix = "try again" if error.retry else "rerun the step publish, or roll back to a release"
        return None, f"{error.event}. Fix: {fix}."
    if release not in store.history(target):
        return (
            None,
            f"the current release {release.id} is missing. Fix: restore it, or roll back to"
            " another.",
        )
    return release.id, ""
