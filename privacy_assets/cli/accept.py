"""The command ``privacy-assets accept``: sign the changed settings of a table, or let a suspended
table run again.

A run whose settings differ from the accepted ones of its table stops, and proposes its own.
A table is suspended if 4 of its last 7 verdicts are "fail", or if its log or ledger was lost.
This command needs neither the definition of the table nor an orchestrator. It shows everything that
is pending, each part with a digest, and the names of all columns. On a terminal it asks for each
part. Otherwise, or in a second call, it signs only the parts whose --digest is given. A suspension
also needs a --reason, which is signed.

exit status:
  0  at least one part was signed
  1  there is nothing to accept, or you answered no to all parts
  2  no such table or folder, no key, no --digest, another --digest than the shown ones, or no
     reason for a suspension

example:
  privacy-assets accept patients
  privacy-assets accept patients --digest 5c0d... --digest 91fe... --reason "source corrected"

{deployment}
{signing}
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from privacy_assets.cli.options import NO, YES, Commands, deployment_settings, repeatable, say
from privacy_assets.errors import ConfigError, TableSuspended, did_you_mean, safe_repr
from privacy_assets.infra.objects import Location
from privacy_assets.report.words import clean

if TYPE_CHECKING:
    from privacy_assets.gate.gate import Gate

_WHOLE_LINE = 1_000_000  # characters of a line, which is not truncated


@dataclass(frozen=True, slots=True)
class _Pending:
    """A part that can be accepted.

    Attributes:
        title: What it is, for example "changed settings".
        lines: What the user accepts.
        digest: Digest of all that will be signed.
        needs_reason: If True, it is not signed without a reason.
        sign: Signs it with a reason, and returns what happened as a sentence.
    """

    title: str
    lines: Sequence[str]
    digest: str
    needs_reason: bool
    sign: Callable[[str], str]


def add_accept(commands: Commands) -> None:
    """Add the command to the command line."""
    command = commands.add(
        "accept",
        _accept,
        "accept changed settings of a table, or resume a suspended table",
        __doc__,
    )
    command.option("table", "name of the table", metavar="TABLE")
    command.option(
        "--digest",
        **repeatable("DIGEST", "sign the part with this digest, as a call without it shows it"),
    )
    command.option(
        "--reason", "reason, which is signed; required for a suspension", metavar="TEXT", default=""
    )
    command.common("--home", "--releases", "--private")


def _accept(options: argparse.Namespace) -> int:
    table = options.table
    reason = options.reason.strip()
    gate = _gate(options)
    proposed = _proposed(gate, table)
    pending = [*_changed_settings(gate, table, proposed), *_stop(gate, table)]
    if not pending:
        say(
            f"{table}: there is nothing to accept. No run differs from the accepted"
            " settings, and the table is not suspended."
        )
        return NO
    for part in pending:
        say(f"{table}: {part.title} (digest {part.digest})")
        for line in part.lines:
            say(f"  {clean(line, _WHOLE_LINE)}")
    _say_column_names(gate, table, proposed)
    accepted = _accepted(pending, options.digest, table, reason)
    if not accepted:
        say(f"{table}: nothing is signed.")
        return NO
    for part in accepted:
        say(f"{table}: {part.sign(reason)}")
    return YES


def _accepted(
    pending: Sequence[_Pending], digests: Sequence[str], table: str, reason: str
) -> list[_Pending]:
    """Return the parts that the user accepts, by --digest or on a terminal.

    Args:
        pending: All parts.
        digests: Digests of --digest. Empty: ask on the terminal.
        table: Name of the table.
        reason: Reason of --reason, or "".

    Raises:
        ConfigError: If a digest names no part, a reason is missing, or there is no terminal.
    """
    if digests:
        accepted = _with_digests(pending, digests, table)
        _check_reason(accepted, reason, table)
        return accepted
    if sys.stdin.isatty() and sys.stdout.isatty():
        _check_reason(pending, reason, table)
        return [part for part in pending if _is_confirmed(part)]
    words = []
    for part in pending:
        words.append(f"--digest {part.digest}")
    if any(part.needs_reason for part in pending):
        words.append('--reason "..."')
    raise ConfigError(
        f"{table}: nothing is signed. Fix: check the lines above, then sign with {' '.join(words)}"
    )


def _gate(options: argparse.Namespace) -> Gate:
    """Open the gate of the deployment.

    Raises:
        ConfigError: If it has no such table, or no signing key.
    """
    from privacy_assets.gate.gate import Gate
    from privacy_assets.gate.keys import SIGNING_VARIABLE, SigningKey
    from privacy_assets.infra.storage import storage_of

    settings = deployment_settings(options)
    private = settings.private_folder()
    files = storage_of(private / "accepted").names()
    files += storage_of(private / "log").names()
    tables = {unquote(file.partition(".")[0]) for file in files}
    if options.table not in tables:
        hint = did_you_mean(options.table, tables)
        raise ConfigError(
            f"{private} has no accepted settings of a table {safe_repr(options.table)}.{hint}"
        )
    storage_of(private).check_private()
    key = SigningKey(settings.signing_key_file(), SIGNING_VARIABLE, settings.trusted())
    key.check()
    gate = Gate(settings.release_folder(), private, key)
    gate.check_folders()
    return gate


def _changed_settings(gate: Gate, table: str, proposed: Mapping[str, Any]) -> list[_Pending]:
    """Return the proposed settings as a part, or an empty list if they equal the accepted ones."""
    if not proposed:
        return []
    lines = gate.accepted.difference(table, proposed)
    if not lines:
        return []

    def sign(reason: str) -> str:
        """Sign the new settings.

        Args:
            reason: Reason, which is signed.
        """
        gate.accepted.sign(table, proposed, reason)
        return f"the new settings are signed ({gate.accepted.file(table)})."

    title = "changed settings, accepted -> proposed"
    digest = gate.accepted.digest(table, proposed)
    return [_Pending(title, lines, digest, needs_reason=False, sign=sign)]


def _stop(gate: Gate, table: str) -> list[_Pending]:
    """Return the causes of a suspension as one part, because one entry of the log settles all of
    them. An empty list: the table is not suspended.
    """
    from privacy_assets.gate.keeper import Keeper

    keeper = Keeper(gate)
    causes, digest = keeper.suspension(table)
    if not causes:
        return []

    def sign(reason: str) -> str:
        """Let the table run again.

        Args:
            reason: Reason, which is signed.
        """
        keeper.accept(table, reason, digest)
        return "accepted. Its verdicts are counted from now on."

    return [_Pending("suspension", causes, digest, needs_reason=True, sign=sign)]


def _with_digests(
    pending: Sequence[_Pending], digests: Sequence[str], table: str
) -> list[_Pending]:
    """Return the parts with the given digests.

    Raises:
        ConfigError: If a digest names no part. Nothing is signed.
    """
    parts = {part.digest: part for part in pending}
    for digest in digests:
        if digest not in parts:
            raise ConfigError(
                f"{table}: nothing is signed. No part that is pending has the digest"
                f" {safe_repr(digest)}: it may have changed since. Fix: read the lines above, and"
                " give their digests."
            )
    return [part for digest, part in parts.items() if digest in digests]


def _check_reason(parts: Sequence[_Pending], reason: str, table: str) -> None:
    """Raise ConfigError if a part needs a reason and there is none. Nothing is signed."""
    if not reason and any(part.needs_reason for part in parts):
        raise ConfigError(
            f"{table} is suspended, and nothing is signed: a suspension is accepted with"
            " a reason only."
            ' Fix: find the cause, then repeat the command with --reason "..."'
        )


def _is_confirmed(part: _Pending) -> bool:
    """Ask on the terminal. No answer is a no."""
    try:
        answer = input(f"Sign {part.title.partition(',')[0]} (digest {part.digest})? [y/N] ")
    except EOFError:
        say("")
        return False
    return answer.strip().lower() in ("y", "yes")


def _say_column_names(gate: Gate, table: str, proposed: Mapping[str, Any]) -> None:
    """Print the names of the columns that will be in force: those of the proposed settings, else
    the accepted ones.
    """
    from privacy_assets.tables.inference import published_names

    columns = proposed.get("columns")
    if not columns:
        try:
            columns = gate.accepted.columns(table)
        # its log cannot be read, so it is not known whether there is a verdict
        except TableSuspended:
            columns = {}
    if isinstance(columns, Mapping) and columns:
        say(clean(published_names(columns), _WHOLE_LINE))


def _proposed(gate: Gate, table: str) -> dict[str, Any]:
    """Return the entries that the last rejected run proposed; empty if no run was rejected."""
    from privacy_assets.gate.accepted_settings import PROPOSED
    from privacy_assets.infra.storage import storage_of

    path: Location = gate.accepted.file(table, PROPOSED)
    try:
        if not path.exists():
            return {}
        return dict(json.loads(storage_of(path).read()))
    except (OSError, ValueError, TypeError, RecursionError):
        raise ConfigError(
            f"{path}: the proposed settings are damaged. Fix: run the table again."
        ) from None
