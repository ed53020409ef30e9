"""The command ``privacy-assets releases``: what was published, and back to an earlier release. It needs no dagster.

exit status:
  0  every release that is shown is whole, or nothing was published yet; the rollback was done
  1  a release is damaged, or the rollback was refused: nothing changed
  2  no such table, partition, release or folder, or no trusted key

defaults:
  {releases}
  {private}
  trusted keys: {trusted}
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from privacy_assets.cli.command import NO, YES, Commands, private_folder, release_folder, say
from privacy_assets.errors import ConfigError, PublicationRefused, did_you_mean, shown
from privacy_assets.report.text import NOTHING, aligned, clean, number
from privacy_assets.storage.objects import Location, ObjectPath

if TYPE_CHECKING:
    from privacy_assets.gate.keys import TrustedKeys
    from privacy_assets.gate.releases import ReleaseStore
    from privacy_assets.gate.statements import Place
    from privacy_assets.gate.verification import ReleaseState

_SHORT, _PATH = 12, 4096  # digits shown of a hash or key id; characters of a path, which is never cut


def add_releases(commands: Commands) -> None:
    """Add the command to the command line."""
    command = commands.add("releases", _releases, "show what was published, and roll back", __doc__)
    command.option("table", "show this table only", metavar="TABLE", nargs="?")
    command.option("--partition", "show this partition only", metavar="P")
    command.option("--rollback", "make this release of TABLE the current one again", metavar="ID")
    command.option("--json", "print JSON", action="store_true")
    command.common("--releases", "--private")


def _releases(options: argparse.Namespace) -> int:
    from privacy_assets.gate.releases import ReleaseStore, default_trusted

    root = release_folder(options)
    store = ReleaseStore(root)
    places = [place for place in store.places() if store.history(place)]
    if options.rollback is not None:
        return _roll_back(options, store, places)
    shown = _chosen(places, options, root)
    found = _states(store, shown, default_trusted(root, reading=True))
    whole = not any(problem or any(state.damage for state in states) for _, states, problem in found)
    if options.json:
        say(json.dumps({"releases": str(root), "places": [_place_json(*one) for one in found]}, indent=2))
    elif not found:
        if isinstance(root, ObjectPath):
            from privacy_assets.gate.prepared import check_prepared

            check_prepared(root, "releases")  # else the name is wrong
        say(f"Nothing was published yet in {root}. The asset `published` of a table does it.")
    else:
        say(*(line for one in found for line in _history(*one)))
    return YES if whole else NO


Found = list[tuple["Place", list["ReleaseState"], str]]


def _states(store: ReleaseStore, places: Sequence[Place], trusted: TrustedKeys) -> Found:
    from privacy_assets.gate.verification import current_id, states_of

    return [(place, states_of(store, place, trusted), current_id(store, place)[1]) for place in places]


def _chosen(places: list[Place], options: argparse.Namespace, root: Location) -> list[Place]:
    """The places that TABLE and --partition name; all of them without."""
    table, partition = options.table, options.partition
    if not places:
        return []
    here = [place for place in places if table in (None, place.table)]
    if not here:
        known = {place.table for place in places}
        raise ConfigError(f"no table {shown(table)} was published in {root}.{did_you_mean(table, known)}")
    chosen = [place for place in here if partition in (None, place.partition)]
    if not chosen:
        known = {place.partition for place in here if place.partition is not None}
        which = f" of {shown(table)}" if table else ""
        raise ConfigError(f"no partition {shown(partition)}{which} was published.{did_you_mean(partition, known)}")
    return chosen


def _place_json(place: Place, states: list[ReleaseState], problem: str) -> dict[str, Any]:
    facts = {"table": place.table, "partition": place.partition, "problem": problem}
    return {**facts, "releases": [state.to_json() for state in states]}


def _history(place: Place, states: list[ReleaseState], problem: str) -> list[str]:
    head = ("release", "published (UTC)", "current", "policy", "signed by", "rows", "sha256", "state")
    lines = ["", clean(place), *aligned([head, *(_row(state) for state in states)])]
    advice = [_advice(state) for state in states if state.damage]
    if problem:
        advice.append(clean(problem, _PATH))
    others = [state.release.id for state in states if not (state.current or state.damage)]
    if others:
        partition = [] if place.partition is None else ["--partition", place.partition]
        back = shlex.join(["privacy-assets", "releases", place.table, *partition, "--rollback", others[0]])
        advice.append(f"To make an earlier release the current one: {clean(back, _PATH)}")
    return [*lines, *(f"  {text}" for text in advice)]


def _row(state: ReleaseState) -> tuple[str, ...]:
    stated, release = state.stated, state.release
    facts = (NOTHING, NOTHING, NOTHING)
    if stated:
        facts = (clean(stated.policy["name"], 40), stated.keyid[:_SHORT], number(stated.rows))
    current, whole = "current" if state.current else "", "damaged" if state.damage else "whole"
    return (release.id, release.published_at, current, *facts, release.id[-_SHORT:], whole)


def _advice(state: ReleaseState) -> str:
    todo = "materialise `published` again, or roll back to a whole release" if state.current else "do not use it"
    return f"{state.release.id} is damaged: {clean(state.damage, _PATH)}. Readers refuse it: {todo}."


def _roll_back(options: argparse.Namespace, store: ReleaseStore, places: list[Place]) -> int:
    from privacy_assets.gate.gate import Gate
    from privacy_assets.gate.keys import SIGNING_VARIABLE, SigningKey, key_file
    from privacy_assets.gate.releases import default_trusted
    from privacy_assets.gate.verification import current_id

    place = _one_place(options, places, store.root)
    known = [release.id for release in store.history(place)]
    if options.rollback not in known:
        raise ConfigError(f"{place} has no release {shown(options.rollback)}.{did_you_mean(options.rollback, known)}")
    private = private_folder(options, store.root)
    key = SigningKey(key_file(private), SIGNING_VARIABLE, default_trusted(store.root))
    before = current_id(store, place)[0]
    try:
        release = Gate(store.root, private, key, b"").roll_back(place, options.rollback)
    except PublicationRefused as error:
        sys.stderr.write(f"privacy-assets: refused, nothing changed: {error}\n")
        return NO
    if options.json:
        say(json.dumps({"table": place.table, "partition": place.partition, "from": before, "to": release.id}))
    elif before == release.id:
        say(f"{place}: {before} is the current release already.")
    else:
        say(f"{place}: rolled back from {before or 'no release'} to {release.id}. Readers get it from now on.")
    return YES


def _one_place(options: argparse.Namespace, places: list[Place], root: Location) -> Place:
    if options.table is None:
        raise ConfigError("--rollback needs the TABLE: privacy-assets releases TABLE --rollback ID.")
    for place in _chosen(places, options, root):
        if place.partition == options.partition:
            return place
    if not places:
        raise ConfigError(f"nothing was published yet in {root}.")
    known = sorted(str(place.partition) for place in places if place.table == options.table)
    raise ConfigError(f"{shown(options.table)} has partitions: name one by --partition. Known: {', '.join(known)}.")
