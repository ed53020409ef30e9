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

from privacy_assets.cli.options import NO, YES, Commands, deployment_settings, say
from privacy_assets.errors import ConfigError
from privacy_assets.gate.keys import (
    SIGNING_VARIABLE,
    SigningKey,
    TrustedKeys,
    key_files,
    rotate_key,
)
from privacy_assets.infra.files import check_private
from privacy_assets.infra.markers import mark_deployment, write_marker


def add_keys(commands: Commands) -> None:
    """Add the command to the command line."""
    command = commands.add("keys", _keys, "list the trusted keys and the signing key", __doc__)
    new = "create the first key pair; later: sign with a new key, and keep trusting the old one"
    command.option("--new", new, action="store_true")
    command.common("--home", "--releases", "--private")


def _keys(options: argparse.Namespace) -> int:
    settings = deployment_settings(options)
    trusted, path = settings.trusted(), settings.signing_key_file()
    return _new(path, trusted) if options.new else _list(path, trusted)


def _list(path: Path | None, trusted: TrustedKeys) -> int:
    (folder,) = trusted.places
    keys = {file: _key_or_problem(file) for file in key_files(folder)}
    signs, problem = _signs(path, trusted, some=bool(keys))
    if not keys and not signs and not problem:
        say(
            "There are no keys. The first run creates a pair, as does: privacy-assets keys"
            f" --new ({path}, {folder})."
        )
        return YES
    say(f"signing key   {signs or ('unusable' if _given(path) else 'none')}  {_source(path)}")
    say(f"trusted keys  in {folder}")
    for file, (keyid, wrong) in keys.items():
        note = f"PROBLEM  {wrong}" if wrong else "signs now" if keyid == signs else "trusted"
        say(f"  {keyid or '-' * 64}  {file.name}  {note}")
    if problem:
        say(f"PROBLEM  {problem}")
    return NO if problem or any(wrong for _, wrong in keys.values()) else YES


def _key_or_problem(file: Path) -> tuple[str, str]:
    """Return id and "" for a trusted key, or "" and the problem of its file."""
    try:
        (keyid,) = TrustedKeys((file,)).by_id
    except ConfigError as error:
        return "", str(error)
    return keyid, ""


def _given(path: Path | None) -> bool:
    return bool(os.environ.get(SIGNING_VARIABLE)) or (path is not None and os.path.lexists(path))


def _source(path: Path | None) -> str:
    return (
        f"environment variable {SIGNING_VARIABLE}"
        if os.environ.get(SIGNING_VARIABLE)
        else str(path or "")
    )


def _signs(path: Path | None, trusted: TrustedKeys, *, some: bool) -> tuple[str, str]:
    """Return id and "" for the signing key, or "" and its problem; both are "" if no key exists."""
    if not _given(path):
        lost = (
            f"{path or SIGNING_VARIABLE}: there are trusted keys but no signing key, so"
            " releases cannot be"
            " signed here. Fix: restore the key, or if it is lost: privacy-assets keys --new."
            " Readers do not"
            " need a signing key."
        )
        return "", lost if some else ""
    try:
        return str(SigningKey(path, SIGNING_VARIABLE, trusted).signer.public_key.keyid), ""
    except ConfigError as error:
        return "", str(error)


def _new(path: Path | None, trusted: TrustedKeys) -> int:
    from privacy_assets.gate.releases import TRUSTED_VARIABLE

    (folder,) = trusted.places
    if path is None:
        raise ConfigError(
            "an object store cannot hold keys. Fix: create the pair in a folder (--private"
            " DIR), copy signing.key"
            f" into the secret that sets {SIGNING_VARIABLE}, and delete the file."
        )
    if os.environ.get(SIGNING_VARIABLE):
        raise ConfigError(
            f"the signing key comes from {SIGNING_VARIABLE}, so a new file would not be used."
            " Fix: create the new"
            f" key where that secret is kept, add its public key (PEM) to {folder}, then change"
            " the secret."
        )
    if folder.exists() and not folder.is_dir():
        raise ConfigError(
            f"{folder} is a file with one key, and two are needed. Fix: replace it by a folder"
            " with both."
        )
    if path.parent.is_dir():
        check_private(path.parent)
    own_keys = not os.environ.get(TRUSTED_VARIABLE)
    deployment = mark_deployment(
        {"private": path.parent, "trusted_keys": folder}, own_keys=own_keys
    )
    old = [file.name for file in key_files(folder)]
    keyid = rotate_key(path, folder)
    if own_keys:
        write_marker(folder, "trusted_keys", deployment)
    new = folder / f"{keyid[:16]}.pem"
    say(
        f"new signing key  {keyid}",
        f"  private        {path} (keep it secret, and keep a copy)",
        f"  public         {new}",
    )
    say("", f"Next: give {new.name} to the readers who verify your tables.")
    if old:
        say(
            f"Earlier signatures stay valid: {', '.join(old)} stays trusted.",
            "To distrust a key: rerun all steps of every table with the new one, then delete"
            f" its file in {folder}",
            "and all copies of this file. From then on, each release and result that it signed"
            " is rejected.",
        )
    return YES
