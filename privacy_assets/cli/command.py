"""How a command is declared: one module each, whose docstring is its help, and its options; folders of a deployment."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from privacy_assets.errors import ConfigError
from privacy_assets.storage.objects import PRIVATE_VARIABLE, RELEASES_VARIABLE, Location, ObjectPath, location

YES, NO = 0, 1
HOME = ".dagster_home"

# By their names in braces in a docstring: where a folder is when no option says it.
_DEFAULTS = {
    "releases": f"--releases  {RELEASES_VARIABLE}, else DAGSTER_HOME/releases, else ./{HOME}/releases",
    "private": f"--private   {PRIVATE_VARIABLE}, else the folder private beside the releases",
    "trusted": "PRIVACY_ASSETS_TRUSTED_KEYS (a folder or one file), else the\n"
    "  folder trusted_keys beside the releases",
}


def repeatable(metavar: str, text: str) -> dict[str, Any]:
    """What argparse takes for an option that may stand several times."""
    return {"action": "append", "default": [], "metavar": metavar, "help": f"{text} (repeatable)"}


# What the options of one name have in common, whatever command they belong to.
_COMMON: dict[str, dict[str, Any]] = {
    "--data": {"metavar": "FILE", "help": "the private table: a Parquet or CSV file, a folder or a glob"},
    "--subject": {"metavar": "COLUMN"},
    "--generator": {"metavar": "NAME"},
    "--set": repeatable("KEY=VALUE", "a setting of the generator, as YAML"),
    "--kind": repeatable(
        "COLUMN=KIND,..",
        "override inferred kinds: numeric, integer, categorical, boolean or datetime, for example visits=integer,"
        "seen=datetime",
    ),
    "--drop": repeatable(
        "COLUMN,..",
        "columns to leave out, for example identifiers; a name that holds a comma stands in double quotes: "
        "--drop 'id,\"Name, first\"'",
    ),
    "--generated": repeatable(
        "COLUMN=REASON", "new values are allowed in this column of the synthetic table, and why; once for each column"
    ),
    "--domain": repeatable(
        "COLUMN=A,B", "values that may stand in a column beside the real ones; once for each column"
    ),
    "--seed": {"type": int, "default": 0},
    "--device": {"default": "auto", "help": "auto, cpu, cuda, cuda:N or mps (default auto)"},
    "--ray": {
        "metavar": "ADDRESS",
        "help": "measure on a Ray cluster: its address, auto for the one that runs here, local to start one",
    },
    "--checkpoint": {"metavar": "FOLDER", "type": Path},
    "--quiet": {"action": "store_true", "help": "no progress on standard error"},
    "--releases": {"metavar": "DIR", "help": "the release folder, or its URL (s3://bucket/releases)"},
    "--private": {"metavar": "DIR", "help": "the gate's private folder, or its URL"},
}
COLUMNS = ("kind", "drop", "generated", "domain")  # options that say what columns are


class Command(argparse.ArgumentParser):
    """One command: options are added in the order in which its help shows them."""

    def option(self, name: str, text: str | None = None, **more: Any) -> None:
        """Add an option or an argument: ``text`` is its help, ``more`` what argparse takes beside what is common."""
        given = more if text is None else {**more, "help": text}
        self.add_argument(name, **{**_COMMON.get(name, {}), **given})

    def common(self, *names: str) -> None:
        """Add options that are the same in every command."""
        for name in names:
            self.option(name)


class Commands:
    """The commands of a command line."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.parsers = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=Command)

    def add(self, name: str, run: Callable[[argparse.Namespace], int], what: str, page: str | None) -> Command:
        """Add one: ``what`` it does, and the docstring of its module, of which all but the headline is its help."""
        text = (page or "").partition("\n\n")[2].format(**_DEFAULTS)
        command = self.parsers.add_parser(name, help=what, description=f"{what.capitalize()}.", epilog=text)
        command.formatter_class = argparse.RawDescriptionHelpFormatter
        command.set_defaults(run=partial(_guarded, run))
        return command


def release_folder(options: argparse.Namespace, *, there: bool = True) -> Location:
    """The release folder that the options or the environment name; when ``there``, a spelled out one must exist."""
    if options.releases is not None:
        folder = location(options.releases)
        if there and not folder.is_dir():
            raise ConfigError(f"{folder}: no such release folder; check the path of --releases.")
        return folder
    if given := os.environ.get(RELEASES_VARIABLE):
        return location(given)
    return Path(os.environ.get("DAGSTER_HOME") or HOME) / "releases"


def private_folder(options: argparse.Namespace, releases: Location) -> Location:
    """The gate's private folder that the options or the environment name; beside the releases without."""
    given = options.private or os.environ.get(PRIVATE_VARIABLE)
    if given:
        return location(given)
    if isinstance(releases, ObjectPath):
        raise ConfigError(f"where is the private folder of {releases}? Fix: --private, or {PRIVATE_VARIABLE}.")
    return releases.absolute().parent / "private"


def say(*lines: str) -> None:
    """Print lines."""
    sys.stdout.write("\n".join(lines) + "\n")


def _guarded(run: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    """Run a command; a folder that may not be read is bad input."""
    try:
        return run(options)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ConfigError(f"{error.filename}: cannot be used ({error.strerror}).") from None
