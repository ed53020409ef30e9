"""The command ``privacy-assets prepare``: a place in an object store, made ready once. It needs no dagster."""

from __future__ import annotations

import argparse

from privacy_assets.cli_gate import YES, Commands, add_command, say
from privacy_assets.errors import ConfigError
from privacy_assets.objects import ObjectPath, location, prepare

_HELP = """\
Checks that the store refuses to write over an object when it is told so (S3: If-None-Match), and marks each URL with an
object of its own. Releases and the private folder are used only where that mark is: a wrong name would be an empty
memory, which has forgotten every failure and every release. Folders on disk need nothing.

exit status:
  0  every URL is ready, now or since before
  2  the store cannot be reached, or writes over what is there

example:
  privacy-assets prepare s3://bucket/releases s3://bucket/private
"""


def add_prepare(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    command = add_command(commands, "prepare", _prepare, "make places in an object store ready for the gate", _HELP)
    command.add_argument("places", metavar="URL", nargs="+", help="where releases or the private folder shall be")


def _prepare(options: argparse.Namespace) -> int:
    places = [location(text) for text in options.places]
    for place in places:
        if not isinstance(place, ObjectPath):
            raise ConfigError(f"{place}: not a URL such as s3://bucket/releases. A folder needs nothing.")
        say(f"{place}: {'ready' if prepare(place) else 'was ready before'}")
    return YES
