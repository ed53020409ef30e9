"""The command ``privacy-assets releases``: list, roll back to and withdraw releases. Does not need
Dagster.

exit status:
  0  all listed releases are whole, or there is no release yet; with --rollback or --withdraw, it
     was done
  1  a release is damaged, or the log in the private folder can be read and records that it was
     withdrawn, or the rollback or withdrawal failed
  2  no such table, partition, release or folder, no trusted key, or --withdraw without --reason

example:
  privacy-assets releases patients

{deployment}
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from privacy_assets.cli.options import NO, YES, Commands, deployment_settings, private_of, say
from privacy_assets.errors import (
    ConfigError,
    PublicationBlocked,
    did_you_mean,
    outcome_known,
    safe_repr,
)
from privacy_assets.infra.objects import Location
from privacy_assets.infra.storage import local_path
from privacy_assets.pipeline.advice import with_advice
from privacy_assets.policy import title_of
from privacy_assets.report.text import aligned
from privacy_assets.report.words import NOTHING, clean, number

if TYPE_CHECKING:
    from privacy_assets.gate.deployment import DeploymentSettings
    from privacy_assets.gate.envelope import ReleaseTarget
    from privacy_assets.gate.keys import TrustedKeys
    from privacy_assets.gate.releases import ReleaseStore
    from privacy_assets.gate.verification import ReleaseState

_SHORT = 12  # displayed digits of a hash or key id
_PATH = 4096  # characters of a path, which is not truncated
_HEADER = (
    "release",
    "published (UTC)",
    "current",
    "policy",
    "signed by",
    "rows",
    "sha256",
    "state",
)


class TargetReleases(NamedTuple):
    """Releases of one table or partition.

    Attributes:
        target: Table and partition.
        states: State of each release.
        problem: Why the current release is unknown, or "".
    """

    target: ReleaseTarget
    states: Sequence[ReleaseState]
    problem: str

    @property
    def is_intact(self) -> bool:
        """True if no release is damaged or withdrawn, and there is no problem."""
        return not self.problem and not any(map(_is_bad, self.states))


def add_releases(commands: Commands) -> None:
    """Add the command to the command line."""
    command = commands.add(
        "releases", _releases, "list the releases, roll back, and withdraw", __doc__
    )
    command.option("table", "show this table only", metavar="TABLE", nargs="?")
    command.option("--partition", "show this partition only", metavar="P")
    command.option("--rollback", "make this release of TABLE the current one again", metavar="ID")
    command.option(
        "--withdraw", "remove this release of TABLE for good; requires --reason", metavar="ID"
    )
    command.option("--reason", "reason of --withdraw, which is signed", metavar="TEXT", default="")
    command.option("--json", "print JSON", action="store_true")
    command.common("--home", "--releases", "--private")


def _releases(options: argparse.Namespace) -> int:
    from privacy_assets.gate.releases import ReleaseStore

    settings = deployment_settings(options, check=True)
    root = settings.release_folder()
    store = ReleaseStore(root)
    targets = [target for target in store.targets() if store.history(target)]
    if options.rollback is not None and options.withdraw is not None:
        raise ConfigError("--rollback and --withdraw cannot be combined. Fix: remove one.")
    if options.rollback is not None or options.withdraw is not None:
        return _move(options, settings, store, targets)
    selected = _selected(targets, options, root)
    trusted = settings.trusted(reading=True)
    listed = _listed(store, selected, trusted, private_of(settings))
    is_intact = all(releases.is_intact for releases in listed)
    if options.json:
        facts = {"releases": str(root), "targets": list(map(_target_json, listed))}
        say(json.dumps(facts, indent=2))
    elif not listed:
        _say_none(root)
    else:
        lines = []
        for releases in listed:
            lines += _history(releases)
        say(*lines)
    return YES if is_intact else NO


def _say_none(root: Location) -> None:
    """Print that there are no releases.

    Raises:
        ConfigError: If the location is not marked, as for a mistyped name.
    """
    if local_path(root) is None:
        from privacy_assets.gate.markers import check_prepared

        check_prepared(root, "releases")
    say(f"There are no releases in {root}. The asset `published` of a table publishes it.")


def _listed(
    store: ReleaseStore,
    targets: Sequence[ReleaseTarget],
    trusted: TrustedKeys,
    private: Location | None,
) -> list[TargetReleases]:
    from privacy_assets.gate.verification import current_id, states_of

    listed = []
    for target in targets:
        states = states_of(store, target, trusted, private)
        _, problem = current_id(store, target, trusted)
        listed.append(TargetReleases(target, states, problem))
    return listed


def _is_bad(state: ReleaseState) -> bool:
    return bool(state.damage) or state.withdrawn


def _word(state: ReleaseState) -> str:
    if state.withdrawn:
        return "WITHDRAWN"
    return "damaged" if state.damage else "whole"


def _selected(
    targets: Sequence[ReleaseTarget], options: argparse.Namespace, root: Location
) -> Sequence[ReleaseTarget]:
    """Return the tables and partitions selected by TABLE and --partition; default: all."""
    table = options.table
    partition = options.partition
    if not targets:
        return []
    of_table = [target for target in targets if table in (None, target.table)]
    if not of_table:
        tables = {target.table for target in targets}
        raise ConfigError(
            f"no table {safe_repr(table)} was published in {root}.{did_you_mean(table, tables)}"
        )
    selected = [target for target in of_table if partition in (None, target.partition)]
    if not selected:
        partitions = {target.partition for target in of_table if target.partition is not None}
        of_which = f" of {safe_repr(table)}" if table else ""
        raise ConfigError(
            f"no partition {safe_repr(partition)}{of_which} was"
            f" published.{did_you_mean(partition, partitions)}"
        )
    return selected


def _target_json(releases: TargetReleases) -> dict[str, Any]:
    target = releases.target
    return {
        "table": target.table,
        "partition": target.partition,
        "problem": releases.problem,
        "releases": list(map(_release_json, releases.states)),
    }


def _release_json(state: ReleaseState) -> dict[str, Any]:
    """Return a release with the facts of its attestation, None if no trusted key signed it."""
    signed = dict.fromkeys(("policy", "policy_digest", "signed_by", "rows", "sha256"))
    attestation = state.attestation
    if attestation is not None:
        signed = {
            "policy": title_of(attestation.policy),
            "policy_digest": attestation.policy_digest,
            "signed_by": attestation.keyid,
            "rows": attestation.n_rows,
            "sha256": attestation.sha256,
        }
    return {
        "id": state.release.id,
        "published_at": _time(state),
        "current": state.current,
        "state": _word(state).lower(),
        "damage": state.damage,
        **signed,
    }


def _time(state: ReleaseState) -> str:
    return f"{state.release.time:%Y-%m-%d %H:%M:%S}"


def _history(releases: TargetReleases) -> list[str]:
    target = releases.target
    advice = []
    earlier_ids = []
    for state in releases.states:
        if _is_bad(state):
            advice.append(_advice(state))
        elif not state.current:
            earlier_ids.append(state.release.id)
    if releases.problem:
        advice.append(clean(releases.problem, _PATH))
    if earlier_ids:
        command = _command(target, "--rollback", earlier_ids[0])
        advice.append(f"To make an earlier release the current one: {clean(command, _PATH)}")
    lines = ["", clean(target), *aligned([_HEADER, *map(_row, releases.states)])]
    for text in advice:
        lines.append(f"  {text}")
    return lines


def _row(state: ReleaseState) -> tuple[str, ...]:
    attestation = state.attestation
    policy = NOTHING
    key_id = NOTHING
    n_rows = NOTHING
    if attestation is not None:
        policy = clean(title_of(attestation.policy), 40)
        key_id = attestation.keyid[:_SHORT]
        n_rows = number(attestation.n_rows)
    release_id = state.release.id
    current = "current" if state.current else ""
    sha256 = release_id[-_SHORT:]
    return (release_id, _time(state), current, policy, key_id, n_rows, sha256, _word(state))


def _command(target: ReleaseTarget, *words: str) -> str:
    partition = []
    if target.partition is not None:
        partition = ["--partition", target.partition]
    return shlex.join(["privacy-assets", "releases", target.table, *partition, *words])


def _advice(state: ReleaseState) -> str:
    """Return what to do about a withdrawn or damaged release."""
    name = state.release.id
    if state.withdrawn:
        fix = f'{_command(state.target, "--withdraw", name)} --reason "..."'
        return clean(
            f"{name} was withdrawn, and an old copy of the release folder was put back. Fix: {fix}",
            _PATH,
        )
    fix = "do not use it"
    if state.current:
        fix = "rerun the step publish, or roll back to an undamaged release"
    return f"{name} is damaged: {clean(state.damage, _PATH)}. Readers reject it. Fix: {fix}."


def _move(
    options: argparse.Namespace,
    settings: DeploymentSettings,
    store: ReleaseStore,
    targets: Sequence[ReleaseTarget],
) -> int:
    """Withdraw a release, or roll back to it, and return the exit status."""
    from privacy_assets.gate.gate import Gate
    from privacy_assets.gate.keeper import Keeper
    from privacy_assets.gate.keys import SIGNING_VARIABLE, SigningKey
    from privacy_assets.gate.verification import current_id

    target = _one_target(options, targets, store.root)
    release_ids = [release.id for release in store.history(target)]
    release_id = options.withdraw or options.rollback
    reason = options.reason.strip()
    if release_id not in release_ids:
        hint = did_you_mean(release_id, release_ids)
        raise ConfigError(f"{target} has no release {safe_repr(release_id)}.{hint}")
    if options.withdraw and not reason:
        raise ConfigError('--withdraw requires a reason, which is signed. Fix: --reason "..."')
    private = settings.private_folder()
    key = SigningKey(settings.signing_key_file(), SIGNING_VARIABLE, settings.trusted())
    before, _ = current_id(store, target, settings.trusted())
    keeper = Keeper(Gate(store.root, private, key))
    same_rows: Sequence[ReleaseTarget] = ()
    try:
        if options.withdraw:
            same_rows = keeper.withdraw(target, release_id, reason)
        else:
            keeper.roll_back(target, release_id)
    except PublicationBlocked as error:
        # A withdrawal is recorded first.
        is_unchanged = outcome_known(error) and not options.withdraw
        effect = "nothing changed" if is_unchanged else "but it may have taken effect"
        sys.stderr.write(f"privacy-assets: failed, {effect}: {with_advice(error)}\n")
        return NO
    after, _ = current_id(store, target, settings.trusted())
    if options.json:
        facts = {"table": target.table, "partition": target.partition, "from": before, "to": after}
        say(json.dumps(facts))
    elif options.withdraw:
        say(*_withdrawn(target, release_id, after, same_rows))
    else:
        say(_rolled_back(target, before, release_id))
    return YES


def _withdrawn(
    target: ReleaseTarget, release_id: str, current: str | None, same_rows: Sequence[ReleaseTarget]
) -> Iterator[str]:
    """Yield the lines on a withdrawal.

    Args:
        target: Table and partition.
        release_id: Id of the withdrawn release.
        current: Id of the release that is now current, or None.
        same_rows: Tables and partitions whose current release has the same rows.
    """
    effect = "no release is current, so readers get an error until there is one"
    if current:
        effect = f"{current} is current"
    yield f"{target}: {release_id} was withdrawn and removed; {effect}."
    for duplicate in same_rows:
        yield (
            f"The current release of {duplicate} has the same rows. Readers still get it. Fix:"
            " withdraw it as well."
        )


def _rolled_back(target: ReleaseTarget, before: str | None, release_id: str) -> str:
    if before == release_id:
        return f"{target}: {before} is the current release already."
    return (
        f"{target}: rolled back from {before or 'no release'} to {release_id}. Readers get it from"
        " now on."
    )


def _one_target(
    options: argparse.Namespace, targets: Sequence[ReleaseTarget], root: Location
) -> ReleaseTarget:
    if options.table is None:
        raise ConfigError("--rollback and --withdraw require the TABLE. Fix: name it.")
    for target in _selected(targets, options, root):
        if target.partition == options.partition:
            return target
    if not targets:
        raise ConfigError(f"there are no releases in {root}.")
    partitions = sorted(
        str(target.partition) for target in targets if target.table == options.table
    )
    raise ConfigError(
        f"{safe_repr(options.table)} has partitions. Fix: name one with --partition. Known:"
        f" {', '.join(partitions)}."
    )
