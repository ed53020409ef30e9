"""Verification by whoever holds a public key: was this exact file released, and is every release still whole?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from privacy_assets.errors import InputError, PublicationRefused
from privacy_assets.gate.attestation import Attestation
from privacy_assets.gate.keys import TrustedKeys
from privacy_assets.gate.releases import ATTESTATION_FILE, Release, ReleaseStore, check_bytes, hash_file
from privacy_assets.gate.statements import Place, Sealed, unseal
from privacy_assets.stats.limits import Limit, LimitOutcome, tally
from privacy_assets.stats.results import MetricResult
from privacy_assets.storage.files import open_regular
from privacy_assets.storage.objects import Location

LARGEST = 64 << 20  # bytes of an attestation that are read: whatever stands in its place, memory stays bounded


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What a trusted attestation says about one file; ``refusal`` says why it does not pass, empty when it does.

    ``stated`` is there only when a trusted key signed it and it names these very bytes, ``outcomes`` its limits.
    ``release`` is where it lies in the release folder, when it does, and ``current`` whether readers get that one.
    """

    file: Location
    sha256: str
    refusal: str
    source: Location | None = None
    stated: Attestation | None = None
    outcomes: tuple[LimitOutcome, ...] = ()
    release: Release | None = None
    current: bool = False

    @property
    def passed(self) -> bool:
        """True when a trusted attestation with the verdict "pass" names these exact bytes."""
        return not self.refusal

    def to_json(self) -> dict[str, Any]:
        """A plain mapping that ``json.dumps(..., allow_nan=False)`` accepts; None for what is not known."""
        stated = self.stated
        return {
            "passed": self.passed,
            "released": self.passed and self.release is not None,
            "reason": self.refusal,
            "file": str(self.file),
            "sha256": self.sha256,
            "attestation": str(self.source) if self.source else None,
            "verdict": stated.verdict if stated else None,
            "table": stated.place.table if stated else None,
            "partition": stated.place.partition if stated else None,
            "rows": stated.rows if stated else None,
            "made_at": stated.made_at if stated else None,
            "release": self.release.id if self.release else None,
            "current": self.current if self.release else None,
            "signed_by": stated.keyid if stated else None,
            "policy": {"name": stated.policy["name"], "digest": stated.policy_digest} if stated else None,
            "generated": dict(stated.setup.get("generated", {})) if stated else None,
            "engine_version": stated.engine_version if stated else None,
            "limits": [_limit_json(outcome) for outcome in self.outcomes],
        }


def verify_file(
    file: Location, trusted: TrustedKeys, releases: Location, attestation: Location | None = None
) -> Verification:
    """Tell whether the bytes of ``file`` were released.

    The attestation is ``attestation``, else ``attestation.json`` beside the file, else that of a release of these bytes
    below ``releases``. The file is read once, in constant memory. InputError for a file that cannot be read,
    ConfigError without a trusted key.
    """
    _ = trusted.by_id  # before a large file is read
    try:
        sha256 = hash_file(file)
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", where=str(file), fix="give the file itself") from None
    store = ReleaseStore(releases)
    beside = file.absolute().parent / ATTESTATION_FILE
    given = attestation or (beside if beside.is_file() else None)
    sources = [given] if given else _released_as(store, sha256)
    if not sources:
        text = (
            f"there is no {ATTESTATION_FILE} beside it, and no release of these bytes in {releases}. Either it changed"
            " after it was released, or it never was; give the attestation that came with it by --attestation."
        )
        return Verification(file=file, sha256=sha256, refusal=text)
    found = [_verified(file, sha256, source, trusted, store) for source in sources]
    return next((one for one in found if one.passed), found[0])


def _verified(file: Location, sha256: str, source: Location, trusted: TrustedKeys, store: ReleaseStore) -> Verification:
    """Hold the file against one attestation."""
    try:
        with open_regular(source) as stream:
            data = stream.read(LARGEST)
    except OSError as error:
        raise InputError(
            f"the attestation cannot be read ({error.strerror})", where=str(source), fix="check the path"
        ) from None
    try:
        stated = Attestation.of(unseal(Sealed("attestation", data), trusted))
        outcomes = outcomes_of(stated)
    except PublicationRefused as error:
        # What to do differs from the gate's: who verifies a file cannot materialise it again.
        text = f"{str(error).partition(';')[0]} ({source}). Ask the publisher for it, and for the public key."
        return Verification(file=file, sha256=sha256, refusal=text, source=source)
    if stated.sha256 != sha256:
        text = (
            f"its bytes are not those of the attestation of {stated.place} ({source}): it changed after it was"
            " released, or is another file."
        )
        return Verification(file=file, sha256=sha256, refusal=text, source=source)
    release, current = _where(store, stated, data)
    return Verification(
        file=file, sha256=sha256, refusal=_refusal(stated, outcomes), source=source,
        stated=stated, outcomes=outcomes, release=release, current=current,
    )  # fmt: skip


def outcomes_of(stated: Attestation) -> tuple[LimitOutcome, ...]:
    """The limits of an attestation with what was measured, as they were signed: nothing is judged again.

    PublicationRefused when another version of privacy-assets wrote them in another form.
    """
    try:
        results = {name: MetricResult.from_json(result) for name, result in stated.results.items()}
        limits = stated.policy_then().limits
        return tuple(_outcome(*pair, results) for pair in zip(limits, stated.limits, strict=True))
    except (KeyError, TypeError, ValueError):
        text = f"the attestation is of another version of privacy-assets (engine {stated.engine_version})"
        raise PublicationRefused(text) from None


def _outcome(limit: Limit, found: Any, results: dict[str, MetricResult]) -> LimitOutcome:
    estimates = results[limit.metric].estimates if limit.metric in results else ()
    estimate = next((one for one in estimates if f"{limit.metric}.{one.name}" == limit.statistic), None)
    measured = math.nan if found["measured"] is None else float(found["measured"])
    return LimitOutcome(limit, found["status"], measured, str(found["reason"]), estimate)


def _refusal(stated: Attestation, outcomes: Sequence[LimitOutcome]) -> str:
    broken = [outcome for outcome in outcomes if not outcome.passed]
    if stated.verdict == "pass" and not broken:
        return ""
    reasons = [tally(outcomes)] if broken else list(stated.remembered)
    return f"the verdict on these bytes is {stated.verdict!r}: {'; '.join(reasons)}."


def _limit_json(outcome: LimitOutcome) -> dict[str, Any]:
    estimate = outcome.estimate.to_json() if outcome.estimate else {}
    return {**outcome.to_json(), **{name: estimate.get(name) for name in ("value", "low", "high", "confidence")}}


def _released_as(store: ReleaseStore, sha256: str) -> list[Location]:
    """Attestations of the releases whose id names this hash, the current ones first, then the newest."""
    found = [
        (current_id(store, place)[0] == release.id, release.id, release.attestation)
        for place in store.places()
        for release in store.history(place)
        if release.id.endswith(sha256[:12])
    ]
    return [path for *_, path in sorted(found, reverse=True)]


def _where(store: ReleaseStore, stated: Attestation, attestation: bytes) -> tuple[Release | None, bool]:
    """The release with this very attestation, and whether it is the current one."""
    for release in store.history(stated.place):
        if release.is_of(stated.sha256, attestation):
            return release, current_id(store, stated.place)[0] == release.id
    return None, False


@dataclass(frozen=True)
class ReleaseState:
    """One release of the history: ``damage`` says what is wrong with it, empty when it is whole."""

    place: Place
    release: Release
    current: bool
    stated: Attestation | None
    damage: str

    def to_json(self) -> dict[str, Any]:
        """A plain mapping; what the attestation says is None when no trusted key signed it."""
        stated = self.stated
        return {
            "id": self.release.id,
            "published_at": self.release.published_at,
            "current": self.current,
            "state": "damaged" if self.damage else "whole",
            "damage": self.damage,
            "policy": stated.policy["name"] if stated else None,
            "policy_digest": stated.policy_digest if stated else None,
            "signed_by": stated.keyid if stated else None,
            "rows": stated.rows if stated else None,
            "sha256": stated.sha256 if stated else None,
        }


def states_of(store: ReleaseStore, place: Place, trusted: TrustedKeys) -> list[ReleaseState]:
    """Every release of ``place``, newest first, each verified: its signature, its place and its bytes."""
    current, states = current_id(store, place)[0], []
    for release in reversed(store.history(place)):
        stated, damage = None, ""
        try:
            stated = release.opened(place, trusted)
            check_bytes(release.table, stated.sha256)
        except PublicationRefused as error:
            damage = str(error).partition(";")[0].rstrip(".")
        states.append(ReleaseState(place, release, release.id == current, stated, damage))
    return states


def current_id(store: ReleaseStore, place: Place) -> tuple[str | None, str]:
    """Id of the release that the pointer of ``place`` names, else None and what is wrong with the pointer."""
    try:
        release = store.current(place)
    except InputError:
        return None, "nothing points to a release: readers find none; roll back to one."
    except PublicationRefused as error:
        return None, str(error)
    if release not in store.history(place):
        return None, f"the current release {release.id} is gone; bring it back, or roll back to another."
    return release.id, ""
