"""Places in an object store, made ready for one role of one deployment."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from functools import cache
from typing import Literal

from privacy_assets.errors import ConfigError
from privacy_assets.storage.objects import ObjectPath

Role = Literal["releases", "private"]
MARKER, PROBE = ".privacy-assets", ".privacy-assets-probe"


def prepare(places: Mapping[Role, ObjectPath]) -> dict[Role, bool]:
    """Mark the places of one deployment; False for one that was marked before.

    ConfigError when a store writes over what is there though it was told not to (nothing could be decided there), when
    one place lies in the other, and when a place has another role or belongs to another deployment.
    """
    urls = [f"{place.url}/" for place in places.values()]
    if any(one != other and one.startswith(other) for one in urls for other in urls) or len(set(urls)) < len(urls):
        raise ConfigError("releases and the private folder need places of their own: who reads one must not the other.")
    marks = {role: _mark(place) for role, place in places.items()}
    known = {mark["deployment"] for mark in marks.values() if mark}
    if len(known) > 1:
        raise ConfigError("these places belong to different deployments. Fix the names; nothing was changed.")
    deployment = known.pop() if known else secrets.token_hex(16)
    for role, place in places.items():
        _check_creates(place / f"{PROBE}-{secrets.token_hex(8)}")
        (place / PROBE).create(secrets.token_bytes(16))
        if marks[role] is None:
            (place / MARKER).create(json.dumps({"role": role, "deployment": deployment}).encode())
        check_prepared(place, role)
    return {role: mark is None for role, mark in marks.items()}


def _check_creates(probe: ObjectPath) -> None:
    probe.create(secrets.token_bytes(16))
    overwritten = probe.create(secrets.token_bytes(16))
    probe.unlink(missing_ok=True)
    if overwritten:
        raise ConfigError(_OVERWRITES.format(probe.parent))


def check_prepared(place: ObjectPath, role: Role) -> str:
    """Id of the deployment that a place was marked for; ConfigError for a place without a mark, or of another role.

    A wrong name would be an empty memory, which forgot every failure. Once a process it is found out whether the store
    refuses to write over an object: with an old library it does not hear that it should.
    """
    found = _mark(place)
    if found is None:
        raise ConfigError(
            f"{place}: not marked for privacy-assets. Fix the name, or: privacy-assets prepare --{role} {place}"
        )
    if found["role"] != role:
        raise ConfigError(f"{place}: marked for {found['role']}, not for {role}. Fix the name.")
    if _creates_over(place / PROBE):
        raise ConfigError(_OVERWRITES.format(place))
    return str(found["deployment"])


def _mark(place: ObjectPath) -> dict[str, str] | None:
    if not (place / MARKER).is_file():
        return None
    try:
        found = json.loads((place / MARKER).read_bytes())
        return {"role": str(found["role"]), "deployment": str(found["deployment"])}
    except (ValueError, KeyError, TypeError):
        raise ConfigError(f"{place / MARKER} is damaged: bring it back.") from None


@cache
def _creates_over(probe: ObjectPath) -> bool:
    return probe.create(secrets.token_bytes(16))


_OVERWRITES = (
    "{}: an object was written over though it was not to be (If-None-Match). Fix: a newer version of this store, or of"
    " the library that speaks to it (pip install -U s3fs)."
)
