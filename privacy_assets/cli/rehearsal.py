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
_NONE_PASSED = (
    "No setting passes with a margin: a run with one of them may be blocked, which counts as"
    " an attempt. Try other"
    " values, set another generator, or drop columns that are not needed."
)
_UNDECIDED = (
    "No setting passes, and the people in train are too few to decide every limit. A rehearsal"
    " cannot decide here: use"
    " more people, or run the table."
)


def check_rehearsal_options(options: argparse.Namespace) -> None:
    """Check that the options of a rehearsal fit together.

    Args:
        options: Parsed options of ``run``.

    Raises:
        ConfigError: If they do not.
    """
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
    """Rehearse a table with each combination of ``--try``, and print one line for each.

    Args:
        options: Parsed options of ``run``.
        table: Table.
        deployment: Deployment.
        device_for: Returns the context of a step, which yields the name of its device. The argument
            is True if the step can use an accelerator.

    Returns:
        The exit status.
    """
    from privacy_assets.pipeline.rehearsal import rehearse, variants

    tables = variants(table, _tried_values(options.tried))
    with workers(options):
        rehearsals = list(rehearse(tables, deployment, options.progress, device_for))
    _show(table, rehearsals)
    for rehearsal in rehearsals:
        if rehearsal.has_margin:
            title = f"The first setting that passes with a margin, for {options.table}:"
            say("", title, "", rehearsal.yaml.rstrip())
            return YES
    verdicts = {rehearsal.report.verdict for rehearsal in rehearsals}
    if "undecided" in verdicts and "pass" not in verdicts:
        say("", *_wrapped(_UNDECIDED))
        return STATUSES["undecided"]
    say("", *_wrapped(_NONE_PASSED))
    return NO


def _tried_values(pairs: Sequence[str]) -> dict[str, list[Any]]:
    """Parse SETTING=VALUE,VALUE with YAML values, such as ``min_samples_leaf=100,200``."""
    tried: dict[str, list[Any]] = {}
    for pair in pairs:
        name, _, values = pair.partition("=")
        if not name or not values.strip() or name in tried:
            raise ConfigError(
                f"--try {safe_repr(pair)}: expected SETTING=VALUE,.., once for each setting."
            )
        tried |= settings([f"{name}=[{values}]"], "try")
    return tried


def _show(table: ResolvedTable, rehearsals: Sequence[Rehearsed]) -> None:
    """Print the results as a table."""
    from privacy_assets.report.text import aligned

    report = rehearsals[0].report
    n_people = 0
    for role, size in report.tables.items():
        if role != "synthetic":
            n_people += size["subjects"]
    statistics = [name for name, _ in report.utility]
    head = ["setting", "verdict", "strongest limit", "value [low, high]", "limit"]
    for name in statistics:
        head.append(name.partition(".")[2].replace("_", " "))
    note = (
        f"A run trains on {n_people:,} people and this rehearsal on"
        f" {report.tables['train']['subjects']:,} of them, so its leaks are usually larger, its"
        " intervals wider and its utility lower."
    )
    say(f"{table.name}: rehearsal with {table.generator_label}", *_wrapped(note), "")
    rows = [_row(rehearsal, statistics) for rehearsal in rehearsals]
    say(*aligned([head, *rows], terminal_columns()), "", *_wrapped(_MARGIN))


def _row(rehearsal: Rehearsed, statistics: Sequence[str]) -> list[str]:
    """Return the line of a setting.

    Args:
        rehearsal: Its result.
        statistics: Names of the statistics of utility, one for each of the last cells.
    """
    from privacy_assets.report.words import clean, interval, limit_symbol, number
    from privacy_assets.tables.schema import yaml_text

    tried = ", ".join(f"{name}={yaml_text(value)}" for name, value in rehearsal.tried.items())
    strongest = rehearsal.strongest
    row = [
        clean(tried) or "as in the table",
        _verdict(rehearsal),
        strongest.limit.key,
        interval(strongest.estimate),
        limit_symbol(strongest.limit),
    ]
    utility = dict(rehearsal.report.utility)
    for name in statistics:
        cell = ""
        if name in utility:
            cell = f"{number(utility[name].value)} (real {number(utility[name].null)})"
        row.append(cell)
    return row


def _verdict(rehearsal: Rehearsed) -> str:
    if rehearsal.report.verdict != "pass":
        return rehearsal.report.verdict
    return "pass with margin" if rehearsal.has_margin else "pass, no margin"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, terminal_columns())
