"""The command ``privacy-assets keys``: which keys are trusted, which one signs, and a new one. It needs no dagster.

exit status:
  0  the keys are in order, or there are none yet; the new key was made
  1  a key has a problem, or the signing key is gone
  2  no new key can be made

defaults:
  {releases}
  {private}
  trusted keys: {trusted}
  signing key: PRIVACY_ASSETS_SIGNING_KEY (PEM text), else signing.key in the private folder
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from privacy_assets.cli.command import NO, YES, Commands, private_folder, release_folder, say
from privacy_assets.errors import ConfigError
from privacy_assets.gate.keys import SIGNING_VARIABLE, SigningKey, TrustedKeys, key_file, key_files, rotate_key
from privacy_assets.storage.files import check_private


def add_keys(commands: Commands) -> None:
    """Add the command to the command line."""
    command = commands.add("keys", _keys, "list the trusted keys and the one that signs", __doc__)
    new = "make the first pair of keys; later: sign with a new key, and go on trusting the old one"
    command.option("--new", new, action="store_true")
    command.common("--releases", "--private")


def _keys(options: argparse.Namespace) -> int:
    from privacy_assets.gate.releases import default_trusted

    root = release_folder(options, there=False)
    trusted, path = default_trusted(root), key_file(private_folder(options, root))
    return _new(path, trusted) if options.new else _list(path, trusted)


def _list(path: Path | None, trusted: TrustedKeys) -> int:
    (folder,) = trusted.places
    keys = {file: _key_or_problem(file) for file in key_files(folder)}
    signs, problem = _signs(path, trusted, some=bool(keys))
    if not keys and not signs and not problem:
        say(f"No keys yet. The first run makes a pair, or: privacy-assets keys --new ({path}, {folder}).")
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
    """Id of a trusted key, else what is wrong with its file."""
    try:
        (keyid,) = TrustedKeys((file,)).by_id
    except ConfigError as error:
        return "", str(error)
    return keyid, ""


def _given(path: Path | None) -> bool:
    return bool(os.environ.get(SIGNING_VARIABLE)) or (path is not None and os.path.lexists(path))


def _source(path: Path | None) -> str:
    return f"environment variable {SIGNING_VARIABLE}" if os.environ.get(SIGNING_VARIABLE) else str(path or "")


def _signs(path: Path | None, trusted: TrustedKeys, *, some: bool) -> tuple[str, str]:
    """Id of the key that signs here, else what is wrong with it."""
    if not _given(path):
        lost = (
            f"{path or SIGNING_VARIABLE}: there are trusted keys but no signing key, so nothing can be signed or"
            " published here. Bring the key back; if it is lost: privacy-assets keys --new. A place that only verifies"
            " needs none."
        )
        return "", lost if some else ""
    try:
        return str(SigningKey(path, SIGNING_VARIABLE, trusted).signer.public_key.keyid), ""
    except ConfigError as error:
        return "", str(error)


def _new(path: Path | None, trusted: TrustedKeys) -> int:
    (folder,) = trusted.places
    if path is None:
        raise ConfigError(
            "keys never lie in an object store. Fix: make the pair in a folder (--private DIR), put signing.key into"
            f" the secret that becomes {SIGNING_VARIABLE}, and take the file away."
        )
    if os.environ.get(SIGNING_VARIABLE):
        raise ConfigError(
            f"the signing key comes from {SIGNING_VARIABLE}: a new file would not be used. Make the new key where that"
            f" secret is kept, put its public half (PEM) into {folder}, then change the secret."
        )
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is one key, and two are needed: make it a folder that holds both.")
    if path.parent.is_dir():
        check_private(path.parent)
    old = [file.name for file in key_files(folder)]
    keyid = rotate_key(path, folder)
    new = folder / f"{keyid[:16]}.pem"
    say(
        f"new signing key  {keyid}",
        f"  private        {path} (keep it secret, and keep a copy)",
        f"  public         {new}",
    )
    say("", f"Next: give {new.name} to whoever verifies your tables.")
    if old:
        say(
            f"What was signed before stays valid: {', '.join(old)} stays trusted.",
            f"To distrust a key: materialise every table anew with the new one, then delete its file in {folder}",
            "and the copies that others have. From then on every release and result that it signed is refused.",
        )
    return YES
