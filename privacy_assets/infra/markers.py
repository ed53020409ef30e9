"""Markers: the deployment and the role of each of its folders, on disk and in object stores.

Each location of a deployment contains a small file with the id of the deployment. Without it, a
second deployment could use the keys or releases of the first one, and a new or outdated private
folder would count as a history without failures. A marker grants no permission: a missing, changed
or forged one can only cause an error.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

from privacy_assets.errors import ConfigError
from privacy_assets.infra.files import (
    create_once,
    fix_of,
    ignore_in_git,
    make_folder,
    names,
    open_regular,
    reason,
)
from privacy_assets.infra.objects import Location, ObjectPath

FolderRole = Literal["private", "releases", "trusted_keys"]
MARKER = ".privacy-assets"
# Version of the private folder's layout, increased when older folders cannot be used. 2: the step
# "prepare" stores "evaluation_inputs", and a verdict is stored without its report. 3: splits sign
# the hash of a table's file. 4: one log for each table. 5: splits and ledgers recognize a person in
# another spelling.
LAYOUT = 5
_LARGEST = 4096  # bytes of a marker
ROLES: tuple[FolderRole, ...] = ("private", "releases", "trusted_keys")
_NOT_OURS = {"lost+found"}  # in the root folder of a new file system
_OWN_HOME = "give each deployment its own home (--home DIR on the command line, home= in Python)"


def read_marker(place: Location, role: FolderRole) -> str | None:
    """Return the id of the deployment that a location is marked for.

    Args:
        place: Folder on disk or in an object store.
        role: Expected role of the location.

    Returns:
        The id, or None if there is no marker.

    Raises:
        ConfigError: If the marker is damaged, cannot be read, is for another role, or has another
            layout.
        OSError: If an object store does not answer.
    """
    marker = place / MARKER
    try:
        if isinstance(marker, ObjectPath):
            if not marker.is_file():
                return None
            data = marker.read_bytes(_LARGEST)
        else:
            with open_regular(marker, below=place) as stream:
                data = stream.read(_LARGEST)
        found: Any = json.loads(data)
        marked_for, deployment, layout = (
            str(found["role"]),
            str(found["deployment"]),
            found.get("layout"),
        )
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if isinstance(marker, ObjectPath):
            raise
        raise ConfigError(
            f"{marker}: the marker of this folder cannot be read ({error.strerror}). Fix: make"
            " it a file that this user"
            " can read."
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ConfigError(f"{marker} is damaged. Fix: restore it from a backup.") from None
    if marked_for != role:
        raise ConfigError(
            f"{place}: marked for {marked_for}, not for {role}. Fix: correct the path."
        )
    if role == "private" and (type(layout), layout) != (int, LAYOUT):
        text = f"{place}: this private folder has the layout of another version of privacy-assets"
        raise ConfigError(f"{text}. Fix: {_OWN_HOME}.")
    return deployment


def write_marker(place: Location, role: FolderRole, deployment: str) -> None:
    """Mark a location for a role of a deployment, unless it has a marker.

    Raises:
        ConfigError: If that is impossible.
    """
    layout = {"layout": LAYOUT} if role == "private" else {}
    try:
        if isinstance(place, Path):
            make_folder(place.parent, 0o755)  # readers of the releases enter it
            make_folder(place, 0o700 if role == "private" else 0o755)
        if isinstance(place, Path) and role == "private":
            ignore_in_git(place)
        create_once(
            place / MARKER, json.dumps({"role": role, "deployment": deployment, **layout}).encode()
        )
    except OSError as error:
        raise ConfigError(
            f"{place}: the folder cannot be marked ({reason(error)}).{fix_of(error)}"
        ) from None


def check_marker(place: Location, role: FolderRole) -> str:
    """Return the id of the deployment that a location is marked for. Raise ConfigError if it has no
    marker.
    """
    found = read_marker(place, role)
    if found is not None:
        return found
    if isinstance(place, ObjectPath):
        fix = f"Fix: correct the path, or run privacy-assets prepare --{role} {place}"
        raise ConfigError(f"{place}: not marked for privacy-assets. {fix}")
    raise _other_version(place) if role == "private" else _unmarked(place)


def check_deployment(places: Mapping[FolderRole, Location], *, own_keys: bool = True) -> str | None:
    """Check that locations can belong to one deployment, without changing any.

    Args:
        places: Location of each role, including the private folder.
        own_keys: False if the trusted keys were configured: such a folder needs no marker.

    Returns:
        The id of the deployment, or None if the private folder is missing or empty.

    Raises:
        ConfigError: If a location belongs to another deployment, or has contents without a marker.
        OSError: If an object store does not answer.
    """
    private = places["private"]
    if isinstance(private, Path) and any(
        private.absolute() in _above(one) for one in places.values()
    ):
        raise ConfigError(
            f"{private}: releases and trusted keys must not be in the private folder. Fix:"
            " move them."
        )
    # The private folder is marked first and read last, so that a concurrent first run does not look
    # like another deployment.
    others = {role: place for role, place in places.items() if role != "private"}
    found = {role: (read_marker(place, role), is_new(place)) for role, place in others.items()}
    own = read_marker(private, "private") if is_new(private) else check_marker(private, "private")
    for role, (mark, new) in found.items():
        place = others[role]
        if mark not in (None, own):
            text = f"{place}: this folder belongs to another deployment than {private}"
            raise ConfigError(f"{text}. Fix: {_fix(role, place, private)}.")
        if mark is None and not new and (role == "releases" or (own_keys and own is None)):
            check_marker(place, role)
    return own


def mark_deployment(places: Mapping[FolderRole, Location], *, own_keys: bool = True) -> str:
    """Check locations as :func:`check_deployment` does, and mark the private folder and the
    releases.

    Returns:
        The id of the deployment; a new one if the private folder is new.

    Raises:
        ConfigError: As :func:`check_deployment` does, and if a folder cannot be marked.
        OSError: If an object store does not answer.
    """
    private = places["private"]
    own = check_deployment(places, own_keys=own_keys)
    if own is None:
        write_marker(private, "private", secrets.token_hex(16))
    for role, place in places.items():
        if role == "releases" and read_marker(place, role) is None:
            write_marker(place, role, check_marker(private, "private"))
    if own is None:  # another process may have been faster
        own = check_deployment(places, own_keys=own_keys)
    return str(own)


def _above(place: Location) -> Sequence[Path]:
    return place.absolute().parents if isinstance(place, Path) else ()


def _fix(role: FolderRole, place: Location, private: Location) -> str:
    if isinstance(place, ObjectPath) and isinstance(private, Path):
        return f"privacy-assets prepare --{role} {place} --private {private}, or {_OWN_HOME}"
    keys = (
        ", or copy the keys (*.pem) into a folder without a marker"
        if role == "trusted_keys"
        else ""
    )
    return f"{_OWN_HOME}, or restore the private folder that it belongs to{keys}"


def is_new(place: Location) -> bool:
    """Return True for a missing folder on disk, or one without files. Object stores are prepared by
    a command.
    """
    return isinstance(place, Path) and not any(_has_files(place / name) for name in entries(place))


def is_unused(place: Location, role: FolderRole) -> bool:
    """Return True for a new folder (:func:`is_new`) without a marker.

    Raises:
        ConfigError: If the folder or its marker cannot be read, or the marker is for another role.
    """
    return is_new(place) and read_marker(place, role) is None


def _has_files(path: Path) -> bool:
    return path.is_symlink() or not path.is_dir() or any(files for *_, files in os.walk(path))


def entries(place: Location) -> set[str]:
    """Return the names of files and folders in a location, except those that start with a dot."""
    try:
        return {name for name in names(place) if not name.startswith(".") and name not in _NOT_OURS}
    except NotADirectoryError:
        return {"."}
    except OSError as error:
        if isinstance(place, ObjectPath):
            raise
        raise ConfigError(f"{place}: cannot be used ({error.strerror}).") from None


def _other_version(private: Location) -> ConfigError:
    fix = f"restore the folder that belongs here, or {_OWN_HOME}"
    text = (
        f"{private}: this private folder was created by another version of privacy-assets, or its"
        " marker is missing"
    )
    return ConfigError(f"{text} ({MARKER}). Fix: {fix}.")


def _unmarked(place: Location) -> ConfigError:
    text = f"{place}: this folder is not empty, and has no marker of a deployment"
    return ConfigError(f"{text} ({MARKER}). Fix: restore the marker, or {_OWN_HOME}.")


PROBE = ".privacy-assets-probe"


def prepare(places: Mapping[FolderRole, Location]) -> dict[FolderRole, bool]:
    """Mark the locations of one deployment.

    Args:
        places: Location of each role.

    Returns:
        True for each role whose location was marked by this call, False if it was marked before.

    Raises:
        ConfigError: If a store overwrites existing objects despite the precondition (releases could
            then be replaced), one location contains another, or a location has another role or
            belongs to another deployment.
    """
    urls = [f"{place}/" for place in places.values()]
    if any(one != other and one.startswith(other) for one in urls for other in urls) or len(
        set(urls)
    ) < len(urls):
        raise ConfigError(
            "releases and private files must be in separate folders, because readers of"
            " releases must not read"
            " private files."
        )
    marks = {role: read_marker(place, role) for role, place in places.items()}
    known = {mark for mark in marks.values() if mark}
    if len(known) > 1:
        raise ConfigError(
            "these folders belong to different deployments, and were not changed. Fix: correct"
            " the paths."
        )
    deployment = known.pop() if known else secrets.token_hex(16)
    for role, place in places.items():
        if isinstance(place, ObjectPath):
            _check_creates(place / f"{PROBE}-{secrets.token_hex(8)}")
            (place / PROBE).create(secrets.token_bytes(16))
        if marks[role] is None and (
            isinstance(place, ObjectPath) or is_new(place) or check_marker(place, role)
        ):
            write_marker(place, role, deployment)
        check_prepared(place, role)
    return {role: mark is None for role, mark in marks.items()}


def _check_creates(probe: ObjectPath) -> None:
    probe.create(secrets.token_bytes(16))
    overwritten = probe.create(secrets.token_bytes(16))
    probe.unlink(missing_ok=True)
    if overwritten:
        raise ConfigError(_OVERWRITES.format(probe.parent))


def check_prepared(place: Location, role: FolderRole) -> str:
    """Return the id of the deployment that a location is marked for.

    An unmarked location may be a mistyped name, with an empty record of failures. Once per process
    and store, this also checks that existing objects are not overwritten: old client libraries
    ignore the precondition.

    Raises:
        ConfigError: If the location is not marked, has another role, or is overwritten.
    """
    found = check_marker(place, role)
    if isinstance(place, ObjectPath) and _creates_over(place / PROBE):
        raise ConfigError(_OVERWRITES.format(place))
    return found


@cache
def _creates_over(probe: ObjectPath) -> bool:
    return probe.create(secrets.token_bytes(16))


_OVERWRITES = (
    "{}: the store overwrote an object in spite of If-None-Match. Fix: update the store, or its"
    " library (pip"
    " install -U s3fs)."
)
