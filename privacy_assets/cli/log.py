"""The command ``privacy-assets log``: print the log of a table, after verifying every entry. Does
not need Dagster.

The log is a chain of signed entries: attempts, verdicts with the limits that failed, releases,
rollbacks, withdrawals, removals of old files, and acceptances. The last lines tell what the next
run finds: the number of its attempt, the last verdicts, and whether the table is stopped.

exit status:
  0  every entry is sound, and the table is not stopped
  1  an entry is missing or damaged, or the table is stopped
  2  no such table or folder, or no trusted key

example:
  privacy-assets log patients

{deployment}
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from privacy_assets.cli.options import NO, YES, Commands, deployment_settings, say
from privacy_assets.errors import (
    ConfigError,
    PublicationRefused,
    did_you_mean,
    safe_repr,
    with_advice,
)
from privacy_assets.report.text import aligned
from privacy_assets.report.words import NOTHING, clean

if TYPE_CHECKING:
    from privacy_assets.gate.statements import Statement

_LATEST = 50  # entries that are shown


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
    from privacy_assets.gate.gate import Gate
    from privacy_assets.gate.keys import SIGNING_VARIABLE, SigningKey
    from privacy_assets.gate.log import LAST
    from privacy_assets.gate.statements import ReleaseTarget
    from privacy_assets.infra.files import check_private, names

    table, settings = options.table, deployment_settings(options)
    private = settings.private_folder()
    known = {unquote(name) for name in names(private / "log")}
    if table not in known:
        raise ConfigError(
            f"{private} has no log of a table {safe_repr(table)}.{did_you_mean(table, known)}"
        )
    check_private(private)
    key = SigningKey(settings.signing_key_file(), SIGNING_VARIABLE, settings.trusted())
    gate = Gate(settings.release_folder(), private, key, b"")
    found = [_facts(number, entry, problem) for number, entry, problem in gate.log.entries(table)]
    facts: dict[str, Any] = {"next_attempt": None, "recent": []}
    stopped = ""
    try:
        state = gate.log.state(table)
        recent = [status for _, status, _ in state.recent[-LAST:]]
        facts = {"next_attempt": state.next_attempt(ReleaseTarget(table).part), "recent": recent}
        gate.check_not_stopped(table)
    except PublicationRefused as error:
        stopped = with_advice(error)
    if options.json:
        say(json.dumps({"table": table, "entries": found, **facts, "stopped": stopped}, indent=2))
    else:
        say(*_lines(found if options.all else found[-_LATEST:], facts, stopped))
    return NO if stopped or any(one["problem"] for one in found) else YES


def _facts(number: int, entry: Statement | None, problem: str) -> dict[str, Any]:
    """Return the facts of an entry that may be shown: names of limits, no measured numbers."""
    body = entry.body if entry else {}
    return {
        "number": number,
        "at": body.get("at"),
        "event": body.get("event"),
        "partition": entry.target.partition if entry else None,
        "what": NOTHING if problem else _what(body),
        "problem": problem,
    }


def _what(body: dict[str, Any] | Any) -> str:
    match body.get("event"):
        case "verdict":
            failed = sorted({str(limit["statistic"]) for limit in body["failed"]})
            return " ".join(
                [body["status"].replace("_", " "), *([f"({', '.join(failed)})"] if failed else [])]
            )
        case "release" | "rollback":
            return f"sha256 {body['sha256'][:12]}"
        case "withdrawal":
            return f"{body['release']}: {body['reason']}"
        case "prune":
            return f"{len(body['releases'])} releases and {body['files']} files removed"
        case "accept":
            lost = f" ({body['lost']} lost releases count as failed)" if body["lost"] else ""
            return f"{body['reason']}{lost}"
    return NOTHING


def _lines(found: list[dict[str, Any]], facts: dict[str, Any], stopped: str) -> list[str]:
    head = ("entry", "time (UTC)", "event", "partition", "what", "state")
    rows = [
        (
            str(one["number"]),
            clean(one["at"] or NOTHING),
            clean(one["event"] or NOTHING),
            clean(one["partition"] or NOTHING),
            clean(one["what"], 200),
            clean(one["problem"] or "sound", 200),
        )
        for one in found
    ]
    recent = ", ".join(facts["recent"]) or NOTHING
    lines = [*aligned([head, *rows]), "", f"last verdicts    {recent}"]
    if facts["next_attempt"] is not None:
        lines.append(f"next attempt     {facts['next_attempt']} since the last release")
    return [*lines, f"stopped          {clean(stopped, 2000) or 'no'}"]
