"""The command ``privacy-assets keys``: list trusted keys and signing key, or create a new one. Does
not need Dagster.

exit status:
  0  all keys are valid, or none exists yet; with --new, the key was created
  1  a key has a problem, or the signing key is missing
  2  the new key cannot be created

example:
  privacy-assets keys --new

{deployment}
{signing}
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import NamedTuple

from privacy_assets.cli.options import NO, YES, Commands, deployment_settings, say
from privacy_assets.errors import ConfigError
from privacy_assets.gate.keys import (
    SIGNING_VARIABLE,
    SigningKey,
    TrustedKeys,
    key_files,
    rotate_key,
)
from privacy_assets.gate.markers import mark_deployment, write_marker
from privacy_assets.infra.files import check_private


class KeyCheck(NamedTuple):
    """Result of reading a key. Both fields are "" if there is no key.

    Attributes:
        key_id: Id of the key, or "" if it cannot be used.
        problem: Why it cannot be used, or "".
    """

    key_id: str
    problem: str


def add_keys(commands: Commands) -> None:
    """Add the command to the command line."""
    command = commands.add("keys", _keys, "list the trusted keys and the signing key", __doc__)
    new = "create the first key pair; later: sign with a new key, and keep trusting the old one"
    command.option("--new", new, action="store_true")
    command.common("--home", "--releases", "--private")


def _keys(options: argparse.Namespace) -> int:
    settings = deployment_settings(options)
    trusted = settings.trusted()
    path = settings.signing_key_file()
    if options.new:
        return _new(path, trusted)
    return _list(path, trusted)


def _list(path: Path | None, trusted: TrustedKeys) -> int:
    """Print the keys, and return the exit status.

    Args:
        path: File of the signing key. None: there is none, as in an object store.
        trusted: Trusted keys.
    """
    (folder,) = trusted.paths
    keys = {file: _trusted_key(file) for file in key_files(folder)}
    signing = _signing_key(path, trusted, has_trusted=bool(keys))
    if not keys and signing == KeyCheck("", ""):
        say(
            "There are no keys. The first run creates a pair, as does: privacy-assets keys"
            f" --new ({path}, {folder})."
        )
        return YES
    label = signing.key_id
    if not label:
        label = "unusable" if _is_set(path) else "none"
    say(f"signing key   {label}  {_source(path)}")
    say(f"trusted keys  in {folder}")
    for file, key in keys.items():
        say(f"  {key.key_id or '-' * 64}  {file.name}  {_note(key, signing)}")
    if signing.problem:
        say(f"PROBLEM  {signing.problem}")
        return NO
    return NO if any(key.problem for key in keys.values()) else YES


def _note(key: KeyCheck, signing: KeyCheck) -> str:
    """Return the note on a trusted key."""
    if key.problem:
        return f"PROBLEM  {key.problem}"
    return "signs now" if key.key_id == signing.key_id else "trusted"


def _trusted_key(file: Path) -> KeyCheck:
    try:
        (key_id,) = TrustedKeys((file,)).by_id
    except ConfigError as error:
        return KeyCheck("", str(error))
    return KeyCheck(key_id, "")


def _is_set(path: Path | None) -> bool:
    """Return True if there is a signing key, valid or not."""
    if os.environ.get(SIGNING_VARIABLE):
        return True
    return path is not None and os.path.lexists(path)


def _source(path: Path | None) -> str:
    if os.environ.get(SIGNING_VARIABLE):
        return f"environment variable {SIGNING_VARIABLE}"
    return str(path or "")


def _signing_key(path: Path | None, trusted: TrustedKeys, *, has_trusted: bool) -> KeyCheck:
    """Read the signing key. That there is none is a problem if there are trusted keys."""
    if not _is_set(path):
        if not has_trusted:
            return KeyCheck("", "")
        problem = (
            f"{path or SIGNING_VARIABLE}: there are trusted keys but no signing key, so releases"
            " cannot be signed here. Fix: restore the key, or if it is lost: privacy-assets keys"
            " --new. Readers do not need a signing key."
        )
        return KeyCheck("", problem)
    try:
        signer = SigningKey(path, SIGNING_VARIABLE, trusted).signer
    except ConfigError as error:
        return KeyCheck("", str(error))
    return KeyCheck(str(signer.public_key.keyid), "")


def _new(path: Path | None, trusted: TrustedKeys) -> int:
    """Create a key pair, and return the exit status.

    Args:
        path: File of the signing key. None: an object store, which cannot hold it.
        trusted: Trusted keys.

    Raises:
        ConfigError: If it cannot be created.
    """
    from privacy_assets.gate.releases import TRUSTED_VARIABLE

    (folder,) = trusted.paths
    path = _checked_path(path, folder)
    if path.parent.is_dir():
        check_private(path.parent)
    has_own_keys = not os.environ.get(TRUSTED_VARIABLE)
    deployment = mark_deployment(
        {"private": path.parent, "trusted_keys": folder}, own_keys=has_own_keys
    )
    earlier = [file.name for file in key_files(folder)]
    key_id = rotate_key(path, folder)
    if has_own_keys:
        write_marker(folder, "trusted_keys", deployment)
    public_key = folder / f"{key_id[:16]}.pem"
    say(
        f"new signing key  {key_id}",
        f"  private        {path} (keep it secret, and keep a copy)",
        f"  public         {public_key}",
    )
    say("", f"Next: give {public_key.name} to the readers who verify your tables.")
    if earlier:
        say(
            f"Earlier signatures stay valid: {', '.join(earlier)} stays trusted.",
            "To distrust a key: rerun all steps of every table with the new one, then delete"
            f" its file in {folder}",
            "and all copies of this file. From then on, each release and result that it signed"
            " is rejected.",
        )
    return YES


def _checked_path(path: Path | None, folder: Path) -> Path:
    """Return the path of a signing key. ConfigError if it would not be used, or if ``folder`` of
    the trusted keys is a file.
    """
    if path is None:
        raise ConfigError(
            "an object store cannot hold keys. Fix: create the pair in a folder (--private DIR),"
            f" copy signing.key into the secret that sets {SIGNING_VARIABLE}, and delete the file."
        )
    if os.environ.get(SIGNING_VARIABLE):
        raise ConfigError(
            f"the signing key comes from {SIGNING_VARIABLE}, so a new file would not be used. Fix:"
            " create the new key where that secret is kept, add its public key (PEM) to"
            f" {folder}, then change the secret."
        )
    if folder.exists() and not folder.is_dir():
        raise ConfigError(
            f"{folder} is a file with one key, and two are needed. Fix: replace it by a folder"
            " with both."
        )
    return path
