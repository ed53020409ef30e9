"""The command ``privacy-assets prune``: remove old releases, and private files that nothing needs
any more.

A release is kept if it is the current one, among the newest --keep, or younger than --days. In the
private folder, the synthetic tables and results of kept releases and of the latest attestation are
kept. The log is never shortened: it has an entry for each removal. While a run of the table is in
progress, the command is refused.

exit status:
  0  the files were removed, or all of them are needed
  1  refused; no file was removed
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

from privacy_assets.cli.options import NO, YES, Commands, deployment_settings, say
from privacy_assets.errors import (
    ConfigError,
    PublicationRefused,
    did_you_mean,
    safe_repr,
    with_advice,
)
from privacy_assets.report.words import clean

_LONGEST = 36_500.0  # days


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
    from privacy_assets.gate.keys import SIGNING_VARIABLE, SigningKey
    from privacy_assets.gate.statements import ReleaseTarget, quoted
    from privacy_assets.infra.files import check_private, names
    from privacy_assets.pipeline.running import Lease

    table, settings = options.table, deployment_settings(options)
    if options.keep < 1:
        raise ConfigError(f"--keep is {options.keep}, expected at least 1.")
    if not 0 <= options.days <= _LONGEST:
        raise ConfigError(
            f"--days is {options.days:g}, expected at least 0 and at most {_LONGEST:g}."
        )
    private = check_private(settings.private_folder())
    key = SigningKey(settings.signing_key_file(), SIGNING_VARIABLE, settings.trusted())
    key.check()
    gate = Gate(settings.release_folder(), private, key, b"")
    made = (
        ReleaseTarget.of_parts(quoted(table), part)
        for part in names(private / "snapshots" / quoted(table))
    )
    if not (targets := sorted({*gate.store.targets(table), *made}, key=str)):
        known = {target.table for target in gate.store.targets()}
        raise ConfigError(
            f"there is no table {safe_repr(table)} in {private}.{did_you_mean(table, known)}"
        )
    try:
        lease = Lease(private, table, f"prune {secrets.token_hex(4)}")
        with nullcontext() if options.dry_run else lease.held(lambda _: False):
            for target in targets:
                found = gate.prune(target, options.keep, options.days, dry_run=options.dry_run)
                done = "would be removed" if options.dry_run else "removed"
                say(f"{target}: {len(found)} {done}.", *(f"  {clean(one, 4096)}" for one in found))
        lease.free()
    except PublicationRefused as error:
        sys.stderr.write(f"privacy-assets: refused: {with_advice(error)}\n")
        return NO
    return YES
