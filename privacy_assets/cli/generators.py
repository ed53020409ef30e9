"""The command ``privacy-assets generators``: list the generators, with the packages that are missing here.

exit status:
  0  always
"""

from __future__ import annotations

import argparse
import json
import textwrap
from typing import TYPE_CHECKING, Any

from privacy_assets.cli.options import Commands, say
from privacy_assets.report.text import aligned
from privacy_assets.report.words import NOTHING

if TYPE_CHECKING:
    from privacy_assets.generators import GeneratorInfo

_WIDTH = 96


def add_generators(commands: Commands) -> None:
    """Add the command to the command line."""
    what = "list the generators, with the packages that are missing here"
    command = commands.add("generators", _generators, what, __doc__)
    command.option("--json", "print JSON", action="store_true")


def _generators(options: argparse.Namespace) -> int:
    from privacy_assets.generators import generator_info

    found = generator_info()
    if options.json:
        say(json.dumps({"generators": [info.to_json() for info in found]}, indent=2, allow_nan=False))
        return 0
    head = ["name", "runs here", "same seed, same rows", "licence", "extra"]
    top, rule, *rows = aligned([head, *(_row(info) for info in found)])
    say(top, rule, *(line for row, info in zip(rows, found, strict=True) for line in (row, *_details(info))))
    return 0


def _row(info: GeneratorInfo) -> list[str]:
    repeats = "yes" if info.repeatable else "not promised"
    here = "no" if not info.available else "elsewhere" if info.separate_environment else "yes"
    return [info.name, here, repeats, info.licence, info.extra or NOTHING]


def _details(info: GeneratorInfo) -> list[str]:
    lines = [info.summary]
    given = [*(f"{name} (required)" for name in info.required), *(_default(*pair) for pair in info.settings.items())]
    if given:
        lines.append(f"--set: {', '.join(given)}")
    if info.install:
        lines.append(f"Needs {', '.join(info.missing)}: {info.install}")
    if info.separate_environment:
        lines.append(f"Needs a separate environment, whose Python is a setting: {info.separate_environment}")
    return [f"    {part}" for line in lines for part in textwrap.wrap(line, _WIDTH, break_long_words=False)]


def _default(name: str, value: Any) -> str:
    return name if value is None or value == () else f"{name} ({json.dumps(value)})"
