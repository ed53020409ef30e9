"""The command ``privacy-assets verify``: check whether this exact file was released. Does not need
Dagster.

exit status:
  0  a trusted key signed an attestation of these exact bytes with the verdict pass: RELEASED if the
     release folder is available and contains the release, otherwise ATTESTED
  1  not released: the file or its attestation was changed, the key is not trusted, or the verdict
     is fail; WITHDRAWN if the private folder can be read and its log records that the release was
     withdrawn; with --max-age, also a file that is not the current release, or was not confirmed
     within this time, or was confirmed more than 10 minutes in the future
  2  no such file, no trusted key, or a key that cannot be read
  3  not released: a trusted key signed an attestation of these exact bytes with the verdict
     undecided

example:
  privacy-assets verify synthetic.parquet

defaults:
  {releases}
  --attestation: attestation.json next to FILE, else found in the release folder by the hash of FILE
  trusted keys: --key, else {trusted}
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privacy_assets.cli.options import (
    NO,
    STATUSES,
    YES,
    Commands,
    deployment_settings,
    private_of,
    repeatable,
    say,
)
from privacy_assets.errors import ConfigError
from privacy_assets.infra.objects import Location, location
from privacy_assets.policy import SHIPPED, title_of
from privacy_assets.report.text import aligned
from privacy_assets.report.words import NOTHING, clean, limit_symbol, number, sentence
from privacy_assets.version import ENGINE_VERSION

if TYPE_CHECKING:
    from privacy_assets.gate.attestation import Attestation
    from privacy_assets.gate.verification import Verification
    from privacy_assets.policy import LimitOutcome

_DECLARED = (
    "seed",
    "subject",
    "exact_ids",
    "dropped",
    "kinds",
    "missing",
    "timezone",
    "new_values",
    "allowed_values",
    "prefix_lengths",
    "relations",
    "snapshots",
    "public_bounds",
    "table_settings",
)
_LONGEST = 87_600.0  # hours
_MOST_VALUES = 1_000  # values of a list that are shown in whole
_WHOLE_LINE = 1_000_000  # characters of a line, which is not truncated
_PATH = 4096  # characters of a path, which is not truncated


def add_verify(commands: Commands) -> None:
    """Add the command to the command line."""
    command = commands.add("verify", _verify, "verify that this exact file was released", __doc__)
    command.option("file", "the received table", metavar="FILE", type=location)
    command.option(
        "--key",
        type=Path,
        **repeatable("PUB", "public key (PEM) of the publisher, or a folder of them"),
    )
    command.option(
        "--attestation", "the attestation that came with the table", metavar="FILE", type=location
    )
    command.option(
        "--max-age",
        "also require that FILE is the current release, confirmed by the publisher within"
        " this time",
        type=float,
        metavar="HOURS",
    )
    command.option("--json", "print JSON", action="store_true")
    command.common("--home", "--releases")


def _verify(options: argparse.Namespace) -> int:
    from privacy_assets.gate.keys import TrustedKeys
    from privacy_assets.gate.verification import verify_file

    settings = deployment_settings(options, check=True)
    root = settings.release_folder()
    for place in options.key:
        _ = TrustedKeys((place,)).by_id  # check each key, so that a missing one is reported
    trusted = TrustedKeys(tuple(options.key)) if options.key else settings.trusted(reading=True)
    if options.max_age is not None and not 0 < options.max_age <= _LONGEST:
        raise ConfigError(
            f"--max-age is {options.max_age:g}, expected more than 0 and at most {_LONGEST:g}"
            " hours."
        )
    max_age = None if options.max_age is None else dt.timedelta(hours=options.max_age)
    found = verify_file(
        options.file, trusted, root, options.attestation, max_age, private_of(settings)
    )
    if options.json:
        say(json.dumps(_json(found), indent=2, allow_nan=False))
    else:
        say(*_verified(found, root))
    if found.stated is not None and found.stated.verdict == "undecided":
        return STATUSES["undecided"]
    return YES if found.passed else NO


def _json(found: Verification) -> dict[str, Any]:
    """Return the result as JSON-compatible values; unknown values are None."""
    stated = found.stated
    return {
        "passed": found.passed,
        "released": found.passed and found.release is not None,
        "reason": found.refusal,
        "file": str(found.file),
        "sha256": found.sha256,
        "attestation": str(found.source) if found.source else None,
        "verdict": stated.verdict if stated else None,
        "table": stated.target.table if stated else None,
        "partition": stated.target.partition if stated else None,
        "rows": stated.n_rows if stated else None,
        "made_at": stated.made_at if stated else None,
        "release": found.release.id if found.release else None,
        "current": found.current if found.release else None,
        "signed_by": stated.keyid if stated else None,
        "policy": {"name": title_of(stated.policy), "digest": stated.policy_digest}
        if stated
        else None,
        "min_holders": stated.policy.get("min_holders") if stated else None,
        **{name: found.declared.get(name) for name in _DECLARED},
        "engine_version": stated.engine_version if stated else None,
        "limits": [_limit_json(outcome) for outcome in found.outcomes],
        "warnings": _warnings(found),
    }


def _limit_json(outcome: LimitOutcome) -> dict[str, Any]:
    limit = outcome.limit
    facts = {
        "statistic": limit.statistic,
        "bound": limit.bound,
        "limit": limit.value,
        "min_subjects": limit.min_subjects,
    }
    return {**facts, "status": outcome.status}


def _verified(found: Verification, root: Location) -> list[str]:
    why = found.refusal or "a trusted key signed that the policy holds for these exact bytes"
    passed = "RELEASED" if found.release else "ATTESTED"
    if found.withdrawn:
        passed = "WITHDRAWN"
    elif not found.passed:
        passed = "NOT RELEASED"
    lines = [f"{passed}  {clean(found.file, _PATH)}"]
    lines += textwrap.wrap(clean(sentence(why), _WHOLE_LINE), 100, break_long_words=False)
    facts = [("sha256", found.sha256)]
    if stated := found.stated:
        partition = (
            []
            if stated.target.partition is None
            else [("partition", clean(stated.target.partition))]
        )
        facts = [
            ("table", clean(stated.target.table)),
            *partition,
            *facts,
            ("rows", number(stated.n_rows)),
            ("made", clean(stated.made_at)),
            ("found", _whereabouts(found, root)),
            ("attestation", clean(found.source, _PATH)),
            ("signed by", clean(stated.keyid)),
            ("policy", _policy(stated)),
            ("rare values", _rare_values(found)),
            ("attempt", clean(stated.attempt)),
            ("engine", clean(stated.engine_version)),
            *_declared(found),
        ]
    lines += ["", *(f"{name:<12} {fact}" for name, fact in facts)]
    if warnings := _warnings(found):
        lines += ["", *(f"Warning: {clean(warning, _WHOLE_LINE)}" for warning in warnings)]
    return [*lines, "", *_limits(found)] if found.outcomes else lines


def _rare_values(found: Verification) -> str:
    min_holders = found.stated.policy.get("min_holders") if found.stated else None
    if not min_holders:
        return NOTHING
    declared = found.declared
    public = [
        column for column, listed in declared["allowed_values"].items() if listed.get("source")
    ]
    exceptions = [
        clean(column, 40)
        for column in (*public, *declared["new_values"], *declared["public_bounds"])
    ]
    rule = (
        f"each cell has a value that at least {clean(min_holders)} people of the real tables share"
    )
    return f"{rule}, except in {', '.join(exceptions)}" if exceptions else rule


def _policy(stated: Attestation) -> str:
    kind = (
        " (shipped)"
        if _is_shipped(stated)
        else f", {_of_engine(stated)}"
        if _is_named(stated)
        else " (custom)"
    )
    return f"{clean(title_of(stated.policy), 90)}{kind}, {clean(stated.policy_digest)}"


def _is_shipped(stated: Attestation) -> bool:
    """Return True if the policy is a complete shipped policy of this engine. Others with its name
    cannot be read.
    """
    return _is_named(stated) and stated.engine_version == ENGINE_VERSION


def _is_named(stated: Attestation) -> bool:
    """Return True if the policy has the name of a shipped policy. Limits of another engine are not
    compared.
    """
    return stated.attested_policy().name in SHIPPED


def _of_engine(stated: Attestation) -> str:
    return f"of engine {clean(stated.engine_version, 40)}"


def _whole(value: Any) -> str:
    """Return a declaration in whole. Of a list with more than 1,000 values, return their number and
    a digest.
    """
    from privacy_assets.gate.statements import shown_digest

    if isinstance(value, list | tuple) and len(value) > _MOST_VALUES:
        return f"{len(value):,} values (SHA-256 {shown_digest(value)}; all are in the attestation)"
    return clean(value, _WHOLE_LINE)


def _declared(found: Verification) -> list[tuple[str, str]]:
    """Return label and text of each declaration of the data owner."""
    declared = found.declared
    kinds = [
        f"{clean(column, 40)}: {clean(kind, 40)}" for column, kind in declared["kinds"].items()
    ]
    return [
        ("seed", clean(declared["seed"])),
        ("subject", NOTHING if declared["subject"] is None else clean(declared["subject"])),
        ("left out", ", ".join(clean(column, 40) for column in declared["dropped"]) or NOTHING),
        ("kinds", ", ".join(kinds) or NOTHING),
        *(
            (f"missing in {clean(column, 40)}", _whole(values))
            for column, values in declared["missing"].items()
        ),
        *(
            (f"prefixes of {clean(column, 40)}", clean(lengths, 200))
            for column, lengths in declared["prefix_lengths"].items()
        ),
        *([("time zone", clean(declared["timezone"], 40))] if declared["timezone"] else []),
        *(
            (f"relation {clean(name, 80)}", "declared" if kept else "off")
            for name, kept in declared["relations"].items()
        ),
        *(
            [("snapshots", "the files of a table may contain the same rows")]
            if declared["snapshots"]
            else []
        ),
        *(
            (f"table settings {clean(setting, 80)}", _whole(value))
            for setting, value in declared["table_settings"].items()
        ),
        *(
            (f"new values in {clean(column, 40)}", _whole(why))
            for column, why in declared["new_values"].items()
        ),
        *(
            (
                f"allowed in {clean(column, 40)}",
                f"{clean(one.get('values'))} values, keyed {clean(one.get('digest'))}"
                + (
                    f", of the public list {clean(one['source'], 200)}" if one.get("source") else ""
                ),
            )
            for column, one in declared["allowed_values"].items()
        ),
    ]


def _warnings(found: Verification) -> list[str]:
    """Return one sentence for each declaration that allows more values to be published or weakens
    the verdict.
    """
    if found.stated is None:
        return []
    from privacy_assets.tables.subject_ids import IGNORED

    declared, warnings = found.declared, list[str]()
    name = clean(title_of(found.stated.policy), 90)
    if not _is_named(found.stated):
        warnings.append(f"policy {name} is custom. It can be weaker than a shipped one.")
    elif not _is_shipped(found.stated):
        text = (
            f"policy {name} is {_of_engine(found.stated)}. This version cannot compare it with"
            " the shipped one."
        )
        warnings.append(text)
    for setting in declared["table_settings"]:
        warnings.append(f"the table sets {setting}. Its policy leaves this setting to tables.")
    if declared["subject"] is None:
        warnings.append("there is no subject column. Each row counts as one person.")
    if declared["exact_ids"]:
        warnings.append(
            f"ids are exact text. Ids that differ only in {IGNORED} are different people."
        )
    if declared["kinds"]:
        columns = ", ".join(clean(column, 40) for column in declared["kinds"])
        warnings.append(f"the kind of {columns} was declared. It overrides the kind of the values.")
    for column in declared["missing"]:
        warnings.append(
            f"values of {clean(column, 40)} were declared missing. Copies of them are not counted."
        )
    for column in declared["new_values"]:
        warnings.append(
            f"column {clean(column, 40)} may have new values, which are not limited to a list."
        )
    for column in declared["public_bounds"]:
        warnings.append(
            f"column {clean(column, 40)} may have numbers that few people have: its bounds are"
            " public."
        )
    for column, listed in declared["allowed_values"].items():
        if listed.get("source"):
            text = (
                f"may have {clean(listed.get('values'))} values of a public list, also if few"
                " people have them"
            )
            warnings.append(f"column {clean(column, 40)} {text}.")
    return warnings


def _limits(found: Verification) -> list[str]:
    """Return one aligned line per limit with its status, without measured numbers."""
    limits = [(outcome.limit, outcome.status) for outcome in found.outcomes]
    rows = [(clean(x.statistic, 60), x.bound, limit_symbol(x), status) for x, status in limits]
    return aligned([("statistic", "bound", "limit", "verdict"), *rows])


def _whereabouts(found: Verification, root: Location) -> str:
    if found.release is None:
        return (
            f"the attestation alone; {clean(root, _PATH)} has no release of it, or does not exist"
        )
    return (
        f"release {found.release.id},"
        f" {'the current one' if found.current else 'not the current one'}"
    )
