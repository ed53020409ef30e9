"""The command ``privacy-assets prepare``: places in an object store, made ready once. It needs no dagster.

Checks that the store refuses to write over an object when it is told so (S3: If-None-Match), and marks each place with
its role and the deployment that it belongs to. Releases and the private folder are used only where that mark is: a
wrong name would be an empty memory, which has forgotten every failure and every release. Folders on disk need nothing.

exit status:
  0  every URL is ready, now or since before
  2  the store cannot be reached or writes over what is there, or a place has another role or deployment

defaults:
  --releases  PRIVACY_ASSETS_RELEASES
  --private   PRIVACY_ASSETS_PRIVATE

example:
  privacy-assets prepare --releases s3://released/releases --private s3://privacy/private
"""

from __future__ import annotations

import argparse
import os

from privacy_assets.cli.command import YES, Commands, say
from privacy_assets.errors import ConfigError
from privacy_assets.gate.prepared import Role, prepare
from privacy_assets.storage.objects import PRIVATE_VARIABLE, RELEASES_VARIABLE, ObjectPath, location


def add_prepare(commands: Commands) -> None:
    """Add the command to the command line."""
    command = commands.add("prepare", _prepare, "make places in an object store ready for the gate", __doc__)
    command.common("--releases", "--private")


def _prepare(options: argparse.Namespace) -> int:
    given: dict[Role, str | None] = {
        "releases": options.releases or os.environ.get(RELEASES_VARIABLE),
        "private": options.private or os.environ.get(PRIVATE_VARIABLE),
    }
    found = {role: location(text) for role, text in given.items() if text}
    places: dict[Role, ObjectPath] = {role: place for role, place in found.items() if isinstance(place, ObjectPath)}
    if not places:
        raise ConfigError("no URL of an object store was given by --releases or --private. A folder needs nothing.")
    new = prepare(places)
    say(*(f"{role:<9} {place}: {'ready' if new[role] else 'was ready before'}" for role, place in places.items()))
    return YES
