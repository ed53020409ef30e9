"""The command ``privacy-assets prepare``: prepare locations in an object store, once. Does not need
Dagster.

Checks that the store can prevent objects from being overwritten (S3: If-None-Match), and marks each
location with its role and its deployment. Releases and the private folder are used only if they are
marked, because a mistyped, empty location would contain no log of earlier failures and releases.
Local folders are marked by the first run, except a private folder whose releases are in an object
store: then give both.

exit status:
  0  every URL is ready, now or from an earlier call
  2  the store cannot be reached or overwrites objects, or a location has another role or deployment

defaults:
  --releases  PRIVACY_ASSETS_RELEASES
  --private   PRIVACY_ASSETS_PRIVATE

example:
  privacy-assets prepare --releases s3://released/releases --private s3://privacy/private
"""

from __future__ import annotations

import argparse
import os

from privacy_assets.cli.options import YES, Commands, say
from privacy_assets.errors import ConfigError
from privacy_assets.gate.markers import FolderRole, prepare
from privacy_assets.infra.objects import PRIVATE_VARIABLE, RELEASES_VARIABLE, Location, location
from privacy_assets.infra.storage import local_path


def add_prepare(commands: Commands) -> None:
    """Add the command to the command line."""
    command = commands.add(
        "prepare", _prepare, "prepare folders of an object store for the gate", __doc__
    )
    command.common("--releases", "--private")


def _prepare(options: argparse.Namespace) -> int:
    urls: dict[FolderRole, str | None] = {
        "releases": options.releases or os.environ.get(RELEASES_VARIABLE),
        "private": options.private or os.environ.get(PRIVATE_VARIABLE),
    }
    locations: dict[FolderRole, Location] = {}
    for role, url in urls.items():
        if url:
            locations[role] = location(url).absolute()
    if all(local_path(folder) is not None for folder in locations.values()):
        raise ConfigError(
            "neither --releases nor --private is the URL of an object store. Local folders need"
            " no preparation."
        )
    is_new = prepare(locations)
    for role, folder in locations.items():
        state = "ready" if is_new[role] else "was ready before"
        say(f"{role:<9} {folder}: {state}")
    return YES
