"""Rehearsals on the command line: ``privacy-assets run TABLE --rehearse``."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from privacy_assets.cli.options import NO, STATUSES, YES, say, settings, terminal_columns, workers
from privacy_assets.errors import ConfigError, safe_repr

if TYPE_CHECKING:
    from privacy_assets.gate.deployment import Deployment
    from privacy_assets.pipeline.rehearsal import Rehearsed
    from privacy_assets.pipeline.resolve import ResolvedTable

_MARGIN = (
    "A setting passes with a margin if all limits hold, and would also hold in a run that"
    " measures the same values: a"
    " run has more people, so its intervals are narrower."
)
_NONE = (
    "No setting passes with a margin: a run with one of them may be rejected, which counts as"
    " an attempt. Try other"
    " values, set another generator, or drop columns that are not needed."
)
_UNDECIDED = (
    "No setting passes, and the people in train are too few to assess every limit. A rehearsal"
    " cannot decide here: use"
    " more people, or run the table."
)


def check_options(options: argparse.Namespace) -> None:
    """Raise ConfigError unless the options of a rehearsal fit together."""
    if options.tried and not options.rehearse:
        raise ConfigError(
            "--try requires --rehearse. Fix: add --rehearse, or set the value in the table."
        )
    if options.rehearse and options.out is not None:
        raise ConfigError("--out: a rehearsal writes no files. Fix: leave it out.")


def run_rehearsal(
    options: argparse.Namespace,
    table: ResolvedTable,
    deployment: Deployment,
    device_for: Callable[[bool], AbstractContextManager[str]],
) -> int:
    """Rehearse a table with each combination of ``--try``, print one line for each, and return the
    exit status.
    """
    from privacy_assets.pipeline.rehearsal import rehearse, variants

    tables = variants(table, _tried(options.tried))
    with workers(options):
        found = list(rehearse(tables, deployment, options.progress, device_for))
    _show(table, found)
    best = next((one for one in found if one.margin), None)
    if best is not None:
        say(
            "",
            f"The first setting that passes with a margin, for {options.table}:",
            "",
            best.yaml.rstrip(),
        )
        return YES
    undecided = all(one.report.verdict != "pass" for one in found) and any(
        one.report.verdict == "undecided" for one in found
    )
    say("", *_wrapped(_UNDECIDED if undecided else _NONE))
    return STATUSES["undecided"] if undecided else NO


def _tried(pairs: Sequence[str]) -> dict[str, list[Any]]:
    """Parse SETTING=VALUE,VALUE with YAML values, such as ``min_samples_leaf=100,200``."""
    found: dict[str, list[Any]] = {}
    for pair in pairs:
        name, _, values = pair.partition("=")
        if not name or not values.strip() or name in found:
            raise ConfigError(
                f"--try {safe_repr(pair)}: expected SETTING=VALUE,.., once for each setting."
            )
        found |= settings([f"{name}=[{values}]"], "try")
    return found


def _show(table: ResolvedTable, found: Sequence[Rehearsed]) -> None:
    """Print the results as a table."""
    from privacy_assets.report.text import aligned

    sizes = {
        role: size["subjects"]
        for role, size in found[0].report.tables.items()
        if role != "synthetic"
    }
    utility = [name for name, _ in found[0].report.utility]
    head = ["setting", "verdict", "strongest limit", "value [low, high]", "limit"]
    head += [name.partition(".")[2].replace("_", " ") for name in utility]
    note = (
        f"A run trains on {sum(sizes.values()):,} people and this rehearsal on"
        f" {sizes['train']:,} of them, so its leaks"
        " are usually larger, its intervals wider and its utility lower."
    )
    say(f"{table.name}: rehearsal with {table.generator_label}", *_wrapped(note), "")
    rows = [_line(one, utility) for one in found]
    say(*aligned([head, *rows], terminal_columns()), "", *_wrapped(_MARGIN))


def _line(one: Rehearsed, utility: Sequence[str]) -> list[str]:
    from privacy_assets.report.words import clean, interval, limit_symbol, number
    from privacy_assets.tables.schema import yaml_text

    tried = ", ".join(f"{name}={yaml_text(value)}" for name, value in one.tried.items())
    label, verdict, strongest = clean(tried) or "as in the table", one.report.verdict, one.strongest
    passed = "pass with margin" if one.margin else "pass, no margin"
    named = passed if verdict == "pass" else verdict
    line = [
        label,
        named,
        strongest.limit.key,
        interval(strongest.estimate),
        limit_symbol(strongest.limit),
    ]
    useful = dict(one.report.utility)
    return line + [
        f"{number(useful[x].value)} (real {number(useful[x].null)})" if x in useful else ""
        for x in utility
    ]


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, terminal_columns())
