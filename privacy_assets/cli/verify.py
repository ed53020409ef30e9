"""The command ``privacy-assets verify``: was this exact file released? It needs no dagster.

exit status:
  0  an attestation that a trusted key signed, with the verdict pass, names these exact bytes; RELEASED when the
     release folder is here and holds it, ATTESTED when only the attestation is
  1  not released: the file or its attestation changed, the key is not trusted, the verdict is another one
  2  no such file, no trusted key, or a key that cannot be read

defaults:
  {releases}
  --attestation: attestation.json beside FILE, else looked up in the release folder by the hash of FILE
  trusted keys: --key, else {trusted}
"""

from __future__ import annotations

import argparse
import json
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from privacy_assets.cli.command import NO, YES, Commands, release_folder, repeatable, say
from privacy_assets.report.text import clean, limits_table, number, sentence
from privacy_assets.storage.objects import Location, location

if TYPE_CHECKING:
    from privacy_assets.gate.verification import Verification

_PATH = 4096  # characters of a path, which is never cut


def add_verify(commands: Commands) -> None:
    """Add the command to the command line."""
    command = commands.add("verify", _verify, "tell whether this exact file was released", __doc__)
    command.option("file", "the table, as it was received", metavar="FILE", type=location)
    command.option("--key", type=Path, **repeatable("PUB", "public key (PEM) of the publisher, or a folder of them"))
    command.option("--attestation", "the attestation that came with the table", metavar="FILE", type=location)
    command.option("--json", "print JSON", action="store_true")
    command.common("--releases")


def _verify(options: argparse.Namespace) -> int:
    from privacy_assets.gate.keys import TrustedKeys
    from privacy_assets.gate.releases import default_trusted
    from privacy_assets.gate.verification import verify_file

    root = release_folder(options)
    for place in options.key:
        _ = TrustedKeys((place,)).by_id  # each by itself: one that is missing must not hide behind the others
    trusted = TrustedKeys(tuple(options.key)) if options.key else default_trusted(root, reading=True)
    found = verify_file(options.file, trusted, root, options.attestation)
    if options.json:
        say(json.dumps(found.to_json(), indent=2, allow_nan=False))
    else:
        say(*_verified(found, root))
    return YES if found.passed else NO


def _verified(found: Verification, root: Location) -> list[str]:
    why = found.refusal or "a trusted key signed that the policy holds for these exact bytes"
    passed = "RELEASED" if found.release else "ATTESTED"
    lines = [f"{passed if found.passed else 'NOT RELEASED'}  {clean(found.file, _PATH)}"]
    lines += textwrap.wrap(clean(sentence(why), 2000), 100, break_long_words=False)
    facts = {"sha256": found.sha256}
    if stated := found.stated:
        partition = {} if stated.place.partition is None else {"partition": clean(stated.place.partition)}
        facts = {
            "table": clean(stated.place.table), **partition, **facts, "rows": number(stated.rows),
            "made": clean(stated.made_at), "found": _whereabouts(found, root),
            "attestation": clean(found.source, _PATH),
            "signed by": stated.keyid, "policy": f"{clean(stated.policy['name'])}, {clean(stated.policy_digest)}",
            "engine": clean(stated.engine_version),
        }  # fmt: skip
        for column, reason in stated.setup.get("generated", {}).items():
            facts[f"new values in {clean(column, 40)}"] = clean(reason, 2000)
    lines += ["", *(f"{name:<12} {fact}" for name, fact in facts.items())]
    return [*lines, "", *limits_table(found.outcomes)] if found.outcomes else lines


def _whereabouts(found: Verification, root: Location) -> str:
    if found.release is None:
        return f"the attestation alone; {root} holds no release of it, or is not here"
    return f"release {found.release.id}, {'the current one' if found.current else 'not the current one'}"
