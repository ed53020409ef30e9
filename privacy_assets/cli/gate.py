"""The commands ``privacy-assets verify`` and ``releases``. They need no dagster."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import textwrap
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privacy_assets.errors import ConfigError, PublicationRefused, did_you_mean, shown
from privacy_assets.report.text import NOTHING, aligned, clean, limits_table, number, sentence
from privacy_assets.storage.objects import PRIVATE_VARIABLE, RELEASES_VARIABLE, Location, ObjectPath, location

if TYPE_CHECKING:
    from privacy_assets.gate.keys import TrustedKeys
    from privacy_assets.gate.releases import ReleaseStore
    from privacy_assets.gate.statements import Place
    from privacy_assets.gate.verification import ReleaseState, Verification

YES, NO = 0, 1
HOME = ".dagster_home"
SHORT, _PATH = 12, 4096  # digits shown of a hash or key id in a list; characters of a path, never cut
Commands = argparse._SubParsersAction

FOLDER_DEFAULTS = f"""
defaults:
  --releases  {RELEASES_VARIABLE}, else DAGSTER_HOME/releases, else ./{HOME}/releases"""
PRIVATE_DEFAULT = f"""
  --private   {PRIVATE_VARIABLE}, else the folder private beside the releases"""
TRUSTED_DEFAULT = """
  trusted keys: {}PRIVACY_ASSETS_TRUSTED_KEYS (a folder or one file), else the
  folder trusted_keys beside the releases
"""
_VERIFY = f"""\
exit status:
  0  an attestation that a trusted key signed, with the verdict pass, names these exact bytes; RELEASED when the
     release folder is here and holds it, ATTESTED when only the attestation is
  1  not released: the file or its attestation changed, the key is not trusted, the verdict is another one
  2  no such file, no trusted key, or a key that cannot be read
{FOLDER_DEFAULTS}
  --attestation: attestation.json beside FILE, else looked up in the release folder by the hash of FILE{
    TRUSTED_DEFAULT.format("--key, else ")
}"""
_RELEASES = f"""\
exit status:
  0  every release that is shown is whole, or nothing was published yet; the rollback was done
  1  a release is damaged, or the rollback was refused: nothing changed
  2  no such table, partition, release or folder, or no trusted key
{FOLDER_DEFAULTS}{PRIVATE_DEFAULT}{TRUSTED_DEFAULT.format("")}"""


def add_commands(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the commands of the gate to the command line."""
    verify = add_command(commands, "verify", _verify, "tell whether this exact file was released", _VERIFY)
    verify.add_argument("file", metavar="FILE", type=location, help="the table, as it was received")
    key = "public key (PEM) of the publisher, or a folder of them (repeatable)"
    verify.add_argument("--key", action="append", default=[], metavar="PUB", type=Path, help=key)
    verify.add_argument("--attestation", metavar="FILE", type=location, help="the attestation that came with the table")
    releases = add_command(commands, "releases", _releases, "show what was published, and roll back", _RELEASES)
    releases.add_argument("table", metavar="TABLE", nargs="?", help="show this table only")
    releases.add_argument("--partition", metavar="P", help="show this partition only")
    releases.add_argument("--rollback", metavar="ID", help="make this release of TABLE the current one again")
    verify.add_argument("--json", action="store_true", help="print JSON")
    releases.add_argument("--json", action="store_true", help="print JSON")
    for command in (verify, releases):
        add_folders(command, private=command is releases)


def add_folders(command: argparse.ArgumentParser, *, private: bool) -> None:
    """Add the options that name the folders of a deployment."""
    command.add_argument("--releases", metavar="DIR", help="the release folder, or its URL (s3://bucket/releases)")
    if private:
        command.add_argument("--private", metavar="DIR", help="the gate's private folder, or its URL")


def add_command(
    commands: Commands[argparse.ArgumentParser],
    name: str,
    run: Callable[[argparse.Namespace], int],
    what: str,
    epilog: str,
) -> argparse.ArgumentParser:
    """Add one command: ``what`` it does, and the ``epilog`` with its exit statuses and defaults."""
    command = commands.add_parser(name, help=what, description=f"{what.capitalize()}.", epilog=epilog)
    command.formatter_class = argparse.RawDescriptionHelpFormatter
    command.set_defaults(run=partial(_guarded, run))
    return command


def release_folder(options: argparse.Namespace, *, there: bool = True) -> Location:
    """The release folder that the options or the environment name; when ``there``, a spelled out one must exist."""
    if options.releases is not None:
        folder = location(options.releases)
        if there and not folder.is_dir():
            raise ConfigError(f"{folder}: no such release folder; check the path of --releases.")
        return folder
    if given := os.environ.get(RELEASES_VARIABLE):
        return location(given)
    return Path(os.environ.get("DAGSTER_HOME") or HOME) / "releases"


def private_folder(options: argparse.Namespace, releases: Location) -> Location:
    """The gate's private folder that the options or the environment name; beside the releases without."""
    given = options.private or os.environ.get(PRIVATE_VARIABLE)
    if given:
        return location(given)
    if isinstance(releases, ObjectPath):
        raise ConfigError(f"where is the private folder of {releases}? Fix: --private, or {PRIVATE_VARIABLE}.")
    return releases.absolute().parent / "private"


def say(*lines: str) -> None:
    """Print lines."""
    sys.stdout.write("\n".join(lines) + "\n")


def _guarded(run: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    """Run a command; a folder that may not be read is bad input."""
    try:
        return run(options)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ConfigError(f"{error.filename}: cannot be used ({error.strerror}).") from None


# --- verify -----------------------------------------------------------------------------------------------------------


def _verify(options: argparse.Namespace) -> int:
    from privacy_assets.gate.keys import TrustedKeys
    from privacy_assets.gate.releases import default_trusted
    from privacy_assets.gate.verification import verify_file

    root = release_folder(options)
    for place in options.key:
        _ = TrustedKeys((place,)).by_id  # each by itself: one that is missing must not hide behind the others
    trusted = TrustedKeys(tuple(options.key)) if options.key else default_trusted(root, reading=True)
    found = verify_file(options.file, trusted, root, options.attestation)
    if options.json:
        say(json.dumps(found.to_json(), indent=2, allow_nan=False))
    else:
        say(*_verified(found, root))
    return YES if found.passed else NO


def _verified(found: Verification, root: Location) -> list[str]:
    why = found.refusal or "a trusted key signed that the policy holds for these exact bytes"
    passed = "RELEASED" if found.release else "ATTESTED"
    lines = [f"{passed if found.passed else 'NOT RELEASED'}  {clean(found.file, _PATH)}"]
    lines += textwrap.wrap(clean(sentence(why), 2000), 100, break_long_words=False)
    facts = {"sha256": found.sha256}
    if stated := found.stated:
        partition = {} if stated.place.partition is None else {"partition": clean(stated.place.partition)}
        facts = {
            "table": clean(stated.place.table), **partition, **facts, "rows": number(stated.rows),
            "made": clean(stated.made_at), "found": _whereabouts(found, root),
            "attestation": clean(found.source, _PATH),
            "signed by": stated.keyid, "policy": f"{clean(stated.policy['name'])}, {clean(stated.policy_digest)}",
            "engine": clean(stated.engine_version),
        }  # fmt: skip
        for column, reason in stated.setup.get("generated", {}).items():
            facts[f"new values in {clean(column, 40)}"] = clean(reason, 2000)
    lines += ["", *(f"{name:<12} {fact}" for name, fact in facts.items())]
    return [*lines, "", *limits_table(found.outcomes)] if found.outcomes else lines


def _whereabouts(found: Verification, root: Location) -> str:
    if found.release is None:
        return f"the attestation alone; {root} holds no release of it, or is not here"
    return f"release {found.release.id}, {'the current one' if found.current else 'not the current one'}"


# --- releases ---------------------------------------------------------------------------------------------------------


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
        facts = (clean(stated.policy["name"], 40), stated.keyid[:SHORT], number(stated.rows))
    current, whole = "current" if state.current else "", "damaged" if state.damage else "whole"
    return (release.id, release.published_at, current, *facts, release.id[-SHORT:], whole)


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
