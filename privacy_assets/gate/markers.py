"""Markers: the deployment and the role of each of its folders, on disk and in object stores.

Each location of a deployment contains a small file with the id of the deployment. Without it, a
second deployment could use the keys or releases of the first one, and a new or outdated private
folder would count as a history without failures. A marker grants no permission: a missing, changed
or forged one can only cause an error.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Any, Literal

from privacy_assets.errors import ConfigError
from privacy_assets.infra.files import fix_of, reason
from privacy_assets.infra.objects import Location
from privacy_assets.infra.storage import local_path, storage_of

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


def read_marker(location: Location, role: FolderRole) -> str | None:
    """Return the id of the deployment that a location is marked for.

    Args:
        location: Folder on disk or in an object store.
        role: Expected role of the location.

    Returns:
        The id, or None if there is no marker.

    Raises:
        ConfigError: If the marker is damaged, cannot be read, is for another role, or has another
            layout.
        OSError: If an object store does not answer.
    """
    marker = location / MARKER
    try:
        data = _marker_bytes(location)
        if data is None:
            return None
        content: Any = json.loads(data)
        marked_role = str(content["role"])
        deployment = str(content["deployment"])
        layout = content.get("layout")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if local_path(marker) is None:
            raise
        raise ConfigError(
            f"{marker}: the marker of this folder cannot be read ({error.strerror}). Fix: make it"
            " a file that this user can read."
        ) from None
    except ConfigError:  # the library of the store is not installed
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ConfigError(f"{marker} is damaged. Fix: restore it from a backup.") from None
    if marked_role != role:
        raise ConfigError(
            f"{location}: marked for {marked_role}, not for {role}. Fix: correct the path."
        )
    if role == "private" and (type(layout), layout) != (int, LAYOUT):
        raise ConfigError(
            f"{location}: this private folder has the layout of another version of"
            f" privacy-assets. Fix: {_OWN_HOME}."
        )
    return deployment


def _marker_bytes(location: Location) -> bytes | None:
    marker = location / MARKER
    storage = storage_of(marker)
    # errors of object stores have no class of their own
    if storage.local is None and not marker.is_file():
        return None
    return storage.read(below=location, most=_LARGEST)


def write_marker(location: Location, role: FolderRole, deployment: str) -> None:
    """Mark a location for a role of a deployment, unless it has a marker.

    Args:
        location: Folder on disk or in an object store. A folder on disk is created.
        role: Role.
        deployment: Id of the deployment.

    Raises:
        ConfigError: If that is impossible.
    """
    marker: dict[str, Any] = {"role": role, "deployment": deployment}
    mode = 0o755
    if role == "private":
        marker["layout"] = LAYOUT
        mode = 0o700
    try:
        storage_of(location.parent).make_folder(0o755)  # readers of the releases enter it
        storage = storage_of(location)
        storage.make_folder(mode)
        if role == "private":
            storage.ignore_in_git()
        storage_of(location / MARKER).create(json.dumps(marker).encode())
    except OSError as error:
        raise ConfigError(
            f"{location}: the folder cannot be marked ({reason(error)}).{fix_of(error)}"
        ) from None


def check_marker(location: Location, role: FolderRole) -> str:
    """Return the id of the deployment that a location is marked for.

    Args:
        location: Folder on disk or in an object store.
        role: Expected role of the location.

    Raises:
        ConfigError: If it has no marker, or see :func:`read_marker`.
        OSError: If an object store does not answer.
    """
    deployment = read_marker(location, role)
    if deployment is not None:
        return deployment
    if local_path(location) is None:
        raise ConfigError(
            f"{location}: not marked for privacy-assets. Fix: correct the path, or run"
            f" privacy-assets prepare --{role} {location}"
        )
    if role == "private":
        raise _other_version(location)
    raise _unmarked(location)


def check_deployment(
    locations: Mapping[FolderRole, Location], *, own_keys: bool = True
) -> str | None:
    """Check that locations can belong to one deployment, without changing any.

    Args:
        locations: Location of each role, including the private folder.
        own_keys: False if the trusted keys were configured: such a folder needs no marker.

    Returns:
        The id of the deployment, or None if the private folder is missing or empty.

    Raises:
        ConfigError: If a location belongs to another deployment, or has contents without a marker.
        OSError: If an object store does not answer.
    """
    private = locations["private"]
    if _contains_any(private, locations.values()):
        raise ConfigError(
            f"{private}: releases and trusted keys must not be in the private folder. Fix:"
            " move them."
        )
    # The private folder is marked first and read last, so that a concurrent first run does not look
    # like another deployment.
    marks = {}
    new_roles = set()
    for role, location in locations.items():
        if role == "private":
            continue
        marks[role] = read_marker(location, role)
        if is_new(location):
            new_roles.add(role)
    if is_new(private):
        deployment = read_marker(private, "private")
    else:
        deployment = check_marker(private, "private")
    for role, mark in marks.items():
        location = locations[role]
        if mark is not None and mark != deployment:
            raise ConfigError(
                f"{location}: this folder belongs to another deployment than {private}. Fix:"
                f" {_fix(role, location, private)}."
            )
        needs_marker = role == "releases" or (own_keys and deployment is None)
        if mark is None and needs_marker and role not in new_roles:
            check_marker(location, role)
    return deployment


def mark_deployment(locations: Mapping[FolderRole, Location], *, own_keys: bool = True) -> str:
    """Check locations as :func:`check_deployment` does, and mark the private folder and the
    releases.

    Args:
        locations: Location of each role, including the private folder.
        own_keys: See :func:`check_deployment`.

    Returns:
        The id of the deployment; a new one if the private folder is new.

    Raises:
        ConfigError: As :func:`check_deployment` does, and if a folder cannot be marked.
        OSError: If an object store does not answer.
    """
    private = locations["private"]
    deployment = check_deployment(locations, own_keys=own_keys)
    is_new_deployment = deployment is None
    if is_new_deployment:
        write_marker(private, "private", secrets.token_hex(16))
    for role, location in locations.items():
        if role == "releases" and read_marker(location, role) is None:
            write_marker(location, role, check_marker(private, "private"))
    if is_new_deployment:  # another process may have been faster
        deployment = check_deployment(locations, own_keys=own_keys)
    return str(deployment)


def _contains_any(folder: Location, locations: Iterable[Location]) -> bool:
    """Return True if a location on disk is below ``folder``."""
    path = local_path(folder)
    for location in locations:
        other_path = local_path(location)
        if path is None or other_path is None:
            continue
        if path.absolute() in other_path.absolute().parents:
            return True
    return False


def _fix(role: FolderRole, location: Location, private: Location) -> str:
    """Return what to do about a location of another deployment."""
    if local_path(location) is None and local_path(private) is not None:
        return f"privacy-assets prepare --{role} {location} --private {private}, or {_OWN_HOME}"
    fix = f"{_OWN_HOME}, or restore the private folder that it belongs to"
    if role == "trusted_keys":
        fix += ", or copy the keys (*.pem) into a folder without a marker"
    return fix


def is_new(location: Location) -> bool:
    """Return True for a missing folder on disk, or one without files. Object stores are prepared by
    a command.

    Args:
        location: Folder on disk or in an object store.
    """
    folder = local_path(location)
    if folder is None:
        return False
    return not any(_has_files(folder / name) for name in entries(folder))


def is_unused(location: Location, role: FolderRole) -> bool:
    """Return True for a new folder (:func:`is_new`) without a marker.

    Args:
        location: Folder on disk or in an object store.
        role: Expected role of the location.

    Raises:
        ConfigError: If the folder or its marker cannot be read, or the marker is for another role.
    """
    return is_new(location) and read_marker(location, role) is None


def _has_files(path: Path) -> bool:
    """Return True for a file or link, or a folder with one. An unreadable folder has none."""
    if path.is_symlink() or not path.is_dir():
        return True
    with suppress(OSError):
        return any(_has_files(path / name) for name in storage_of(path).names())
    return False


def entries(location: Location) -> set[str]:
    """Return the names of files and folders in a location, except those that start with a dot.

    Args:
        location: Folder on disk or in an object store. A file has the entry ".".

    Raises:
        ConfigError: If a folder on disk cannot be read.
        OSError: If an object store does not answer.
    """
    storage = storage_of(location)
    try:
        visible = {name for name in storage.names() if not name.startswith(".")}
    except NotADirectoryError:
        return {"."}
    except OSError as error:
        if storage.local is None:
            raise
        raise ConfigError(f"{location}: cannot be used ({error.strerror}).") from None
    return visible - _NOT_OURS


def _other_version(private: Location) -> ConfigError:
    fix = f"restore the folder that belongs here, or {_OWN_HOME}"
    text = (
        f"{private}: this private folder was created by another version of privacy-assets, or its"
        " marker is missing"
    )
    return ConfigError(f"{text} ({MARKER}). Fix: {fix}.")


def _unmarked(location: Location) -> ConfigError:
    text = f"{location}: this folder is not empty, and has no marker of a deployment"
    return ConfigError(f"{text} ({MARKER}). Fix: restore the marker, or {_OWN_HOME}.")


PROBE = ".privacy-assets-probe"


def prepare(locations: Mapping[FolderRole, Location]) -> dict[FolderRole, bool]:
    """Mark the locations of one deployment.

    Args:
        locations: Location of each role.

    Returns:
        True for each role whose location was marked by this call, False if it was marked before.

    Raises:
        ConfigError: If a store overwrites existing objects despite the precondition (releases could
            then be replaced), one location contains another, or a location has another role or
            belongs to another deployment.
        OSError: If an object store does not answer.
    """
    _check_separate(locations.values())
    marks = {role: read_marker(location, role) for role, location in locations.items()}
    deployments = set(filter(None, marks.values()))
    if len(deployments) > 1:
        raise ConfigError(
            "these folders belong to different deployments, and were not changed. Fix: correct"
            " the paths."
        )
    deployment = deployments.pop() if deployments else secrets.token_hex(16)
    for role, location in locations.items():
        is_on_disk = local_path(location) is not None
        if not is_on_disk:
            _check_creates(location / f"{PROBE}-{secrets.token_hex(8)}")
            storage_of(location / PROBE).create(secrets.token_bytes(16))
        if marks[role] is None:
            if is_on_disk and not is_new(location):
                check_marker(location, role)
            write_marker(location, role, deployment)
        check_prepared(location, role)
    return {role: mark is None for role, mark in marks.items()}


def _check_separate(locations: Iterable[Location]) -> None:
    """Raise ConfigError if one location is another, or below it."""
    urls = [f"{location}/" for location in locations]
    for first, second in permutations(urls, 2):
        if first.startswith(second):
            raise ConfigError(
                "releases and private files must be in separate folders, because readers of"
                " releases must not read private files."
            )


def _check_creates(probe: Location) -> None:
    storage = storage_of(probe)
    storage.create(secrets.token_bytes(16))
    is_overwritten = storage.create(secrets.token_bytes(16))
    probe.unlink(missing_ok=True)
    if is_overwritten:
        raise ConfigError(_OVERWRITES.format(probe.parent))


def check_prepared(location: Location, role: FolderRole) -> str:
    """Return the id of the deployment that a location is marked for.

    An unmarked location may be a mistyped name, with an empty log of failures. Once per process
    and store, this also checks that existing objects are not overwritten: old client libraries
    ignore the precondition.

    Args:
        location: Folder on disk or in an object store.
        role: Expected role of the location.

    Raises:
        ConfigError: If the location is not marked, has another role, or is overwritten.
        OSError: If an object store does not answer.
    """
    deployment = check_marker(location, role)
    if local_path(location) is None and _creates_over(location / PROBE):
        raise ConfigError(_OVERWRITES.format(location))
    return deployment


@cache
def _creates_over(probe: Location) -> bool:
    return storage_of(probe).create(secrets.token_bytes(16))


_OVERWRITES = (
    "{}: the store overwrote an object in spite of If-None-Match. Fix: update the store, or its"
    " library (pip"
    " install -U s3fs)."
)
