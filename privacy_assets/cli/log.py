"""The command ``privacy-assets log``: print the log of a table, after verifying every entry. Does
not need Dagster.

The log is a chain of signed entries: attempts, verdicts with the limits that failed, releases,
rollbacks, withdrawals, removals of old files, and acceptances. The last lines tell what the next
run finds: the number of its attempt, the last verdicts, and whether the table is suspended.

exit status:
  0  every entry is sound, and the table is not suspended
  1  an entry is missing or damaged, or the table is suspended
  2  no such table or folder, or no trusted key

example:
  privacy-assets log patients

{deployment}
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from privacy_assets.cli.options import NO, YES, Commands, deployment_settings, say
from privacy_assets.errors import (
    ConfigError,
    PublicationBlocked,
    did_you_mean,
    safe_repr,
)
from privacy_assets.pipeline.advice import with_advice
from privacy_assets.report.text import aligned
from privacy_assets.report.words import NOTHING, clean

if TYPE_CHECKING:
    from privacy_assets.gate.envelope import Payload
    from privacy_assets.gate.gate import Gate

_LATEST = 50  # entries that are shown
_HEADER = ("entry", "time (UTC)", "event", "partition", "what", "state")


def add_log(commands: Commands) -> None:
    """Add the command to the command line."""
    command = commands.add(
        "log", _log, "print the log of a table: attempts, verdicts, releases", __doc__
    )
    command.option("table", "name of the table", metavar="TABLE")
    command.option("--all", f"show all entries, not only the last {_LATEST}", action="store_true")
    command.option("--json", "print JSON", action="store_true")
    command.common("--home", "--releases", "--private")


def _log(options: argparse.Namespace) -> int:
    from privacy_assets.gate.envelope import ReleaseTarget
    from privacy_assets.gate.log import N_LAST

    table = options.table
    gate = _gate(options)
    entries = [_facts(number, entry, problem) for number, entry, problem in gate.log.entries(table)]
    facts: dict[str, Any] = {"next_attempt": None, "recent": []}
    suspended = ""
    try:
        state = gate.log.state(table)
        recent = [status for _, status, _ in state.recent[-N_LAST:]]
        facts = {"next_attempt": state.next_attempt(ReleaseTarget(table).part), "recent": recent}
        gate.check_not_suspended(table)
    except PublicationBlocked as error:
        suspended = with_advice(error)
    if options.json:
        say(
            json.dumps(
                {"table": table, "entries": entries, **facts, "suspended": suspended}, indent=2
            )
        )
    else:
        listed = entries if options.all else entries[-_LATEST:]
        say(*_lines(listed, facts, suspended))
    is_sound = not any(entry["problem"] for entry in entries)
    return YES if is_sound and not suspended else NO


def _gate(options: argparse.Namespace) -> Gate:
    """Open the gate of the deployment.

    Raises:
        ConfigError: If it has no log of the table.
    """
    from privacy_assets.gate.gate import Gate
    from privacy_assets.gate.keys import SIGNING_VARIABLE, SigningKey
    from privacy_assets.infra.storage import storage_of

    settings = deployment_settings(options)
    private = settings.private_folder()
    tables = {unquote(name) for name in storage_of(private / "log").names()}
    if options.table not in tables:
        hint = did_you_mean(options.table, tables)
        raise ConfigError(f"{private} has no log of a table {safe_repr(options.table)}.{hint}")
    storage_of(private).check_private()
    key = SigningKey(settings.signing_key_file(), SIGNING_VARIABLE, settings.trusted())
    return Gate(settings.release_folder(), private, key)


def _facts(number: int, entry: Payload | None, problem: str) -> dict[str, Any]:
    """Return the facts of an entry that may be shown: names of limits, no measured numbers."""
    body: Mapping[str, Any] = {}
    partition = None
    if entry is not None:
        body = entry.body
        partition = entry.target.partition
    return {
        "number": number,
        "at": body.get("at"),
        "event": body.get("event"),
        "partition": partition,
        "what": NOTHING if problem else _description(body),
        "problem": problem,
    }


def _description(body: Mapping[str, Any]) -> str:
    """Return what happened, from the body of an entry."""
    match body.get("event"):
        case "verdict":
            return _verdict(body)
        case "release" | "rollback":
            return f"sha256 {body['sha256'][:12]}"
        case "withdrawal":
            return f"{body['release']}: {body['reason']}"
        case "prune":
            return f"{len(body['releases'])} releases and {body['files']} files removed"
        case "accept":
            n_lost = body["lost"]
            lost = f" ({n_lost} lost releases count as failed)" if n_lost else ""
            return f"{body['reason']}{lost}"
    return NOTHING


def _verdict(body: Mapping[str, Any]) -> str:
    """Return a verdict, with the statistics of the limits that failed."""
    verdict = str(body["status"].replace("_", " "))
    failed = sorted({str(limit["statistic"]) for limit in body["failed"]})
    if failed:
        verdict += f" ({', '.join(failed)})"
    return verdict


def _lines(
    entries: Sequence[Mapping[str, Any]], facts: Mapping[str, Any], suspended: str
) -> list[str]:
    """Return the printed lines.

    Args:
        entries: Facts of each entry.
        facts: Recent verdicts, and number of the next attempt.
        suspended: Why the table is suspended, or "".
    """
    rows = [_HEADER]
    for entry in entries:
        time = clean(entry["at"] or NOTHING)
        event = clean(entry["event"] or NOTHING)
        partition = clean(entry["partition"] or NOTHING)
        state = clean(entry["problem"] or "sound", 200)
        rows.append(
            (str(entry["number"]), time, event, partition, clean(entry["what"], 200), state)
        )
    recent = ", ".join(facts["recent"]) or NOTHING
    lines = [*aligned(rows), "", f"last verdicts    {recent}"]
    if facts["next_attempt"] is not None:
        lines.append(f"next attempt     {facts['next_attempt']} since the last release")
    lines.append(f"suspended        {clean(suspended, 2000) or 'no'}")
    return lines
