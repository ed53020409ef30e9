"""The command ``privacy-assets prune``: remove old releases, and private files that nothing needs
any more.

A release is kept if it is the current one, among the newest --keep, or younger than --days. In the
private folder, the synthetic tables and results of kept releases and of the latest attestation are
kept. The log is never shortened: it has an entry for each removal. While a run of the table is in
progress, the command removes nothing.

exit status:
  0  the files were removed, or all of them are needed
  1  an error of the gate; no file was removed
  2  no such table or folder, or no key

example:
  privacy-assets prune patients --keep 30 --days 90 --dry-run

{deployment}
{signing}
"""

from __future__ import annotations

import argparse
import secrets
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING

from privacy_assets.cli.options import NO, YES, Commands, deployment_settings, say
from privacy_assets.errors import (
    ConfigError,
    PublicationBlocked,
    did_you_mean,
    safe_repr,
)
from privacy_assets.pipeline.advice import with_advice
from privacy_assets.report.words import clean

if TYPE_CHECKING:
    from privacy_assets.gate.envelope import ReleaseTarget
    from privacy_assets.gate.gate import Gate
    from privacy_assets.gate.keeper import Keeper
    from privacy_assets.infra.objects import Location

_LONGEST_AGE = 36_500.0  # days


def add_prune(commands: Commands) -> None:
    """Add the command to the command line."""
    command = commands.add("prune", _prune, "remove old releases and private files", __doc__)
    command.option("table", "name of the table", metavar="TABLE")
    command.option(
        "--keep", "number of the newest releases that are kept", type=int, default=30, metavar="N"
    )
    command.option(
        "--days", "age up to which releases are kept", type=float, default=90.0, metavar="D"
    )
    command.option("--dry-run", "only print what would be removed", action="store_true")
    command.common("--home", "--releases", "--private")


def _prune(options: argparse.Namespace) -> int:
    from privacy_assets.gate.gate import Gate
    from privacy_assets.gate.keeper import Keeper
    from privacy_assets.gate.keys import SIGNING_VARIABLE, SigningKey
    from privacy_assets.infra.storage import storage_of
    from privacy_assets.pipeline.lease import Lease

    settings = deployment_settings(options)
    _check(options)
    private = settings.private_folder()
    storage_of(private).check_private()
    key = SigningKey(settings.signing_key_file(), SIGNING_VARIABLE, settings.trusted())
    key.check()
    gate = Gate(settings.release_folder(), private, key)
    keeper = Keeper(gate)
    targets = _targets(gate, private, options.table)
    try:
        lease = Lease(private, options.table, f"prune {secrets.token_hex(4)}")
        with nullcontext() if options.dry_run else lease.held(lambda _: False):
            for target in targets:
                _prune_target(keeper, target, options)
        lease.free()
    except PublicationBlocked as error:
        sys.stderr.write(f"privacy-assets: no file was removed: {with_advice(error)}\n")
        return NO
    return YES


def _check(options: argparse.Namespace) -> None:
    if options.keep < 1:
        raise ConfigError(f"--keep is {options.keep}, expected at least 1.")
    if not 0 <= options.days <= _LONGEST_AGE:
        raise ConfigError(
            f"--days is {options.days:g}, expected at least 0 and at most {_LONGEST_AGE:g}."
        )


def _targets(gate: Gate, private: Location, table: str) -> list[ReleaseTarget]:
    """Return the partitions of a table that have releases or synthetic tables.

    Raises:
        ConfigError: If there are none.
    """
    from privacy_assets.gate.envelope import ReleaseTarget, quoted
    from privacy_assets.infra.storage import storage_of

    parts = storage_of(private / "snapshots" / quoted(table)).names()
    targets = set(gate.store.targets(table))
    for part in parts:
        targets.add(ReleaseTarget.of_parts(quoted(table), part))
    if not targets:
        tables = {target.table for target in gate.store.targets()}
        raise ConfigError(
            f"there is no table {safe_repr(table)} in {private}.{did_you_mean(table, tables)}"
        )
    return sorted(targets, key=str)


def _prune_target(keeper: Keeper, target: ReleaseTarget, options: argparse.Namespace) -> None:
    removed = keeper.prune(target, options.keep, options.days, dry_run=options.dry_run)
    effect = "would be removed" if options.dry_run else "removed"
    say(f"{target}: {len(removed)} {effect}.")
    for path in removed:
        say(f"  {clean(path, 4096)}")
