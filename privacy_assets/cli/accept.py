"""The command ``privacy-assets accept``: sign the changed lock of a table, or let a stopped table run again.

A run that differs from the signed lock of its table stops, and writes the lock that it proposes to the private folder.
This command prints the difference and the names of all columns, and signs the proposed lock. It needs neither the
definition of the table nor an orchestrator. A table stops if 4 of its last 7 verdicts are "fail". To let it run again,
give a --reason, which is signed.

exit status:
  0  the proposed lock was signed, or the stopped table may run again
  1  there is nothing to accept
  2  no such table or folder, no key, or no reason for a stopped table

example:
  privacy-assets accept patients --reason "the source was corrected"

{deployment}
{signing}
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from privacy_assets.cli.options import NO, YES, Commands, deployment_settings, say
from privacy_assets.errors import ConfigError, TableStopped, did_you_mean, safe_repr, with_advice
from privacy_assets.infra.objects import Location
from privacy_assets.report.words import clean

_LONGEST = 1_000_000  # characters of a line, which is shown in whole


def add_accept(commands: Commands) -> None:
    """Add the command to the command line."""
    command = commands.add("accept", _accept, "accept changed settings of a table, or resume a stopped table", __doc__)
    command.option("table", "name of the table", metavar="TABLE")
    command.option("--reason", "reason, which is signed; required for a stopped table", metavar="TEXT", default="")
    command.common("--home", "--releases", "--private")


def _accept(options: argparse.Namespace) -> int:
    from privacy_assets.gate.gate import Gate
    from privacy_assets.gate.keys import SIGNING_VARIABLE, SigningKey
    from privacy_assets.gate.lock import PROPOSED
    from privacy_assets.infra.files import check_private, names

    table, reason, settings = options.table, options.reason.strip(), deployment_settings(options)
    private = settings.private_folder()
    known = {unquote(name.partition(".")[0]) for kind in ("locks", "log") for name in names(private / kind)}
    if table not in known:
        raise ConfigError(f"{private} has no lock of a table {safe_repr(table)}.{did_you_mean(table, known)}")
    check_private(private)
    key = SigningKey(settings.signing_key_file(), SIGNING_VARIABLE, settings.trusted())
    key.check()
    gate = Gate(settings.release_folder(), private, key, b"")
    gate.check_places()
    locks = gate.locks
    proposed = _proposed(locks.file(table, PROPOSED))
    lines = locks.difference(table, proposed) if proposed else []
    stopped = None
    try:
        gate.check_not_stopped(table)
    except TableStopped as error:
        stopped = error
    if not lines and not stopped:
        say(f"{table}: there is nothing to accept. No run differs from the lock, and the table is not stopped.")
        return NO
    if lines:
        say(f"{table} (lock -> proposed lock):", *(f"  {clean(line, _LONGEST)}" for line in lines))
    try:
        accepted = locks.columns(table)
    except TableStopped:  # its log cannot be read, so it is not known whether there is a verdict
        accepted = {}
    _say_names(accepted, proposed)
    if stopped and not reason:
        raise ConfigError(with_advice(stopped))
    if stopped:
        gate.accept(table, reason)
        say(f"{table}: accepted. Its verdicts are counted from now on.")
    if lines:
        locks.sign(table, proposed, reason)
        say(f"{table}: the new lock is signed ({locks.file(table)}).")
    return YES


def _say_names(accepted: Mapping[str, str], proposed: Mapping[str, Any]) -> None:
    """Print the names of the columns that will be in force: those of the proposed lock, else the accepted ones."""
    from privacy_assets.tables.contract import published_names

    columns = proposed.get("columns") or accepted
    if isinstance(columns, dict) and columns:
        say(clean(published_names(columns), _LONGEST))


def _proposed(path: Location) -> dict[str, Any]:
    """Return the entries that the last rejected run proposed; empty if no run was rejected."""
    from privacy_assets.infra.files import read_regular

    try:
        return dict(json.loads(read_regular(path))) if path.exists() else {}
    except (OSError, ValueError, TypeError, RecursionError):
        raise ConfigError(f"{path}: the proposed lock is damaged. Fix: run the table again.") from None
