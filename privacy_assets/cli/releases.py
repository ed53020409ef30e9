"""The command ``privacy-assets releases``: list, roll back to and withdraw releases. Does not need
Dagster.

exit status:
  0  all listed releases are whole, or there is no release yet; with --rollback or --withdraw, it
     was done
  1  a release is damaged, or the log in the private folder can be read and records that it was
     withdrawn, or the rollback or withdrawal was refused and had no effect
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
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from privacy_assets.cli.options import NO, YES, Commands, deployment_settings, private_of, say
from privacy_assets.errors import (
    ConfigError,
    PublicationRefused,
    did_you_mean,
    outcome_known,
    safe_repr,
    with_advice,
)
from privacy_assets.infra.objects import Location, ObjectPath
from privacy_assets.policy import title_of
from privacy_assets.report.text import aligned
from privacy_assets.report.words import NOTHING, clean, number

if TYPE_CHECKING:
    from privacy_assets.gate.deployment import DeploymentSettings
    from privacy_assets.gate.keys import TrustedKeys
    from privacy_assets.gate.releases import ReleaseStore
    from privacy_assets.gate.statements import ReleaseTarget
    from privacy_assets.gate.verification import ReleaseState

# displayed digits of a hash or key id; characters of a path, which is not truncated
_SHORT, _PATH = 12, 4096


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
    shown = _chosen(targets, options, root)
    found = _states(store, shown, settings.trusted(reading=True), private_of(settings))
    whole = all(_is_whole(states, problem) for _, states, problem in found)
    if options.json:
        say(
            json.dumps(
                {"releases": str(root), "targets": [_target_json(*one) for one in found]}, indent=2
            )
        )
    elif not found:
        if isinstance(root, ObjectPath):
            from privacy_assets.infra.markers import check_prepared

            # raises if the location is not marked, as for a mistyped name
            check_prepared(root, "releases")
        say(f"There are no releases in {root}. The asset `published` of a table publishes it.")
    else:
        say(*(line for one in found for line in _history(*one)))
    return YES if whole else NO


Found = list[tuple["ReleaseTarget", list["ReleaseState"], str]]


def _states(
    store: ReleaseStore,
    targets: Sequence[ReleaseTarget],
    trusted: TrustedKeys,
    private: Location | None,
) -> Found:
    from privacy_assets.gate.verification import current_id, states_of

    found = []
    for target in targets:
        states = states_of(store, target, trusted, private)
        found.append((target, states, current_id(store, target, trusted)[1]))
    return found


def _is_whole(states: Sequence[ReleaseState], problem: str) -> bool:
    return not problem and not any(map(_is_bad, states))


def _is_bad(state: ReleaseState) -> bool:
    return bool(state.damage) or state.withdrawn


def _word(state: ReleaseState) -> str:
    if state.withdrawn:
        return "WITHDRAWN"
    return "damaged" if state.damage else "whole"


def _chosen(
    targets: list[ReleaseTarget], options: argparse.Namespace, root: Location
) -> list[ReleaseTarget]:
    """Return the tables and partitions selected by TABLE and --partition; default: all."""
    table, partition = options.table, options.partition
    if not targets:
        return []
    here = [target for target in targets if table in (None, target.table)]
    if not here:
        known = {target.table for target in targets}
        raise ConfigError(
            f"no table {safe_repr(table)} was published in {root}.{did_you_mean(table, known)}"
        )
    chosen = [target for target in here if partition in (None, target.partition)]
    if not chosen:
        known = {target.partition for target in here if target.partition is not None}
        which = f" of {safe_repr(table)}" if table else ""
        raise ConfigError(
            f"no partition {safe_repr(partition)}{which} was"
            f" published.{did_you_mean(partition, known)}"
        )
    return chosen


def _target_json(target: ReleaseTarget, states: list[ReleaseState], problem: str) -> dict[str, Any]:
    facts = {"table": target.table, "partition": target.partition, "problem": problem}
    return {**facts, "releases": [_release_json(state) for state in states]}


def _release_json(state: ReleaseState) -> dict[str, Any]:
    """Return a release with the facts of its attestation, None if no trusted key signed it."""
    stated = state.stated
    return {
        "id": state.release.id,
        "published_at": f"{state.release.time:%Y-%m-%d %H:%M:%S}",
        "current": state.current,
        "state": _word(state).lower(),
        "damage": state.damage,
        "policy": title_of(stated.policy) if stated else None,
        "policy_digest": stated.policy_digest if stated else None,
        "signed_by": stated.keyid if stated else None,
        "rows": stated.n_rows if stated else None,
        "sha256": stated.sha256 if stated else None,
    }


def _history(target: ReleaseTarget, states: list[ReleaseState], problem: str) -> list[str]:
    head = (
        "release",
        "published (UTC)",
        "current",
        "policy",
        "signed by",
        "rows",
        "sha256",
        "state",
    )
    lines = ["", clean(target), *aligned([head, *(_row(state) for state in states)])]
    advice = [_advice(state) for state in states if _is_bad(state)]
    if problem:
        advice.append(clean(problem, _PATH))
    others = [state.release.id for state in states if not (state.current or _is_bad(state))]
    if others:
        back = _command(target, "--rollback", others[0])
        advice.append(f"To make an earlier release the current one: {clean(back, _PATH)}")
    return [*lines, *(f"  {text}" for text in advice)]


def _row(state: ReleaseState) -> tuple[str, ...]:
    stated, release = state.stated, state.release
    facts = (NOTHING, NOTHING, NOTHING)
    if stated:
        facts = (clean(title_of(stated.policy), 40), stated.keyid[:_SHORT], number(stated.n_rows))
    current, whole = "current" if state.current else "", _word(state)
    return (
        release.id,
        f"{release.time:%Y-%m-%d %H:%M:%S}",
        current,
        *facts,
        release.id[-_SHORT:],
        whole,
    )


def _command(target: ReleaseTarget, *words: str) -> str:
    partition = []
    if target.partition is not None:
        partition = ["--partition", target.partition]
    return shlex.join(["privacy-assets", "releases", target.table, *partition, *words])


def _advice(state: ReleaseState) -> str:
    name = state.release.id
    if state.withdrawn:
        fix = f'{_command(state.target, "--withdraw", name)} --reason "..."'
        return clean(
            f"{name} was withdrawn, and an old copy of the release folder was put back. Fix: {fix}",
            _PATH,
        )
    todo = (
        "rerun the step publish, or roll back to an undamaged release"
        if state.current
        else "do not use it"
    )
    return (
        f"{state.release.id} is damaged: {clean(state.damage, _PATH)}. Readers reject it. Fix:"
        f" {todo}."
    )


def _move(
    options: argparse.Namespace,
    settings: DeploymentSettings,
    store: ReleaseStore,
    targets: list[ReleaseTarget],
) -> int:
    from privacy_assets.gate.gate import Gate
    from privacy_assets.gate.keys import SIGNING_VARIABLE, SigningKey
    from privacy_assets.gate.verification import current_id

    target = _one_target(options, targets, store.root)
    known = [release.id for release in store.history(target)]
    name, why = options.withdraw or options.rollback, options.reason.strip()
    if name not in known:
        raise ConfigError(f"{target} has no release {safe_repr(name)}.{did_you_mean(name, known)}")
    if options.withdraw and not why:
        raise ConfigError('--withdraw requires a reason, which is signed. Fix: --reason "..."')
    private = settings.private_folder()
    key = SigningKey(settings.signing_key_file(), SIGNING_VARIABLE, settings.trusted())
    before = current_id(store, target, settings.trusted())[0]
    gate = Gate(store.root, private, key, b"")
    same_rows: list[ReleaseTarget] = []
    try:
        if options.withdraw:
            same_rows = gate.withdraw(target, name, why)
        else:
            gate.roll_back(target, name)
    except PublicationRefused as error:
        certain = outcome_known(error) and not options.withdraw  # which is recorded first
        effect = "nothing changed" if certain else "but it may have taken effect"
        sys.stderr.write(f"privacy-assets: refused, {effect}: {with_advice(error)}\n")
        return NO
    after = current_id(store, target, settings.trusted())[0]
    if options.json:
        say(
            json.dumps(
                {"table": target.table, "partition": target.partition, "from": before, "to": after}
            )
        )
    elif options.withdraw:
        now = (
            f"{after} is current"
            if after
            else "no release is current, so readers get an error until there is one"
        )
        say(f"{target}: {name} was withdrawn and removed; {now}.")
        for other in same_rows:
            say(
                f"The current release of {other} has the same rows. Readers still get it. Fix:"
                " withdraw it as well."
            )
    elif before == name:
        say(f"{target}: {before} is the current release already.")
    else:
        say(
            f"{target}: rolled back from {before or 'no release'} to {name}. Readers get it"
            " from now on."
        )
    return YES


def _one_target(
    options: argparse.Namespace, targets: list[ReleaseTarget], root: Location
) -> ReleaseTarget:
    if options.table is None:
        raise ConfigError("--rollback and --withdraw require the TABLE. Fix: name it.")
    for target in _chosen(targets, options, root):
        if target.partition == options.partition:
            return target
    if not targets:
        raise ConfigError(f"there are no releases in {root}.")
    known = sorted(str(target.partition) for target in targets if target.table == options.table)
    raise ConfigError(
        f"{safe_repr(options.table)} has partitions. Fix: name one with --partition. Known:"
        f" {', '.join(known)}."
    )
