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
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from privacy_assets.report.words import NOTHING, clean, cleaned, limit_symbol, number, sentence
from privacy_assets.version import PACKAGE_VERSION

if TYPE_CHECKING:
    from privacy_assets.gate.attestation import Attestation
    from privacy_assets.gate.deployment import DeploymentSettings
    from privacy_assets.gate.keys import TrustedKeys
    from privacy_assets.gate.verification import Verification
    from privacy_assets.policy import LimitOutcome

_LONGEST_AGE = 87_600.0  # hours
_MOST_VALUES = 1_000  # values of a list that are shown in whole
_WHOLE_LINE = 1_000_000  # characters of a line, which is not truncated
_NAME = 40  # characters of the name of a column
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
    from privacy_assets.gate.verification import verify_file

    settings = deployment_settings(options, check=True)
    root = settings.release_folder()
    trusted = _trusted_keys(options.key, settings)
    max_age = _max_age(options.max_age)
    verification = verify_file(
        options.file, trusted, root, options.attestation, max_age, private_of(settings)
    )
    if options.json:
        say(json.dumps(_json(verification), indent=2, allow_nan=False))
    else:
        say(*_text(verification, root))
    attestation = verification.attestation
    if attestation is not None and attestation.verdict == "undecided":
        return STATUSES["undecided"]
    return YES if verification.passed else NO


def _trusted_keys(paths: Sequence[Path], settings: DeploymentSettings) -> TrustedKeys:
    """Return the keys of --key, else those of the deployment."""
    from privacy_assets.gate.keys import TrustedKeys

    if not paths:
        return settings.trusted(reading=True)
    for path in paths:
        _ = TrustedKeys((path,)).by_id  # check each key, so that a missing one is reported
    return TrustedKeys(tuple(paths))


def _max_age(hours: float | None) -> dt.timedelta | None:
    if hours is None:
        return None
    if not 0 < hours <= _LONGEST_AGE:
        raise ConfigError(
            f"--max-age is {hours:g}, expected more than 0 and at most {_LONGEST_AGE:g} hours."
        )
    return dt.timedelta(hours=hours)


def _json(verification: Verification) -> dict[str, Any]:
    """Return the result as JSON-compatible values; unknown values are None."""
    from privacy_assets.gate.verification import declared_names

    signed = _signed_facts(verification.attestation)
    source = None
    if verification.source is not None:
        source = str(verification.source)
    release_id = None
    is_current = None
    if verification.release is not None:
        release_id = verification.release.id
        is_current = verification.current
    return {
        "passed": verification.passed,
        "released": verification.passed and verification.release is not None,
        "reason": verification.reason,
        "file": str(verification.file),
        "sha256": verification.sha256,
        "attestation": source,
        "verdict": signed.get("verdict"),
        "table": signed.get("table"),
        "partition": signed.get("partition"),
        "rows": signed.get("rows"),
        "made_at": signed.get("made_at"),
        "release": release_id,
        "current": is_current,
        "signed_by": signed.get("signed_by"),
        "policy": signed.get("policy"),
        "min_holders": signed.get("min_holders"),
        **{name: verification.declared.get(name) for name in declared_names()},
        "package_version": signed.get("package_version"),
        "limits": [_limit_json(outcome) for outcome in verification.outcomes],
        "warnings": _warnings(verification),
    }


def _signed_facts(attestation: Attestation | None) -> dict[str, Any]:
    """Return the facts that a trusted key signed. Empty: there is no attestation."""
    if attestation is None:
        return {}
    policy = {"name": title_of(attestation.policy), "digest": attestation.policy_digest}
    return {
        "verdict": attestation.verdict,
        "table": attestation.target.table,
        "partition": attestation.target.partition,
        "rows": attestation.n_rows,
        "made_at": attestation.made_at,
        "signed_by": attestation.keyid,
        "policy": policy,
        "min_holders": attestation.policy.get("min_holders"),
        "package_version": attestation.package_version,
    }


def _text(verification: Verification, root: Location) -> list[str]:
    """Return the printed lines.

    Args:
        verification: Result.
        root: Release folder.
    """
    reason = (
        verification.reason or "a trusted key signed that the policy holds for these exact bytes"
    )
    lines = [f"{_result(verification)}  {clean(verification.file, _PATH)}"]
    lines += textwrap.wrap(clean(sentence(reason), _WHOLE_LINE), 100, break_long_words=False)
    lines.append("")
    for name, fact in _facts(verification, root):
        lines.append(f"{name:<12} {fact}")
    warnings = _warnings(verification)
    if warnings:
        lines.append("")
    for warning in warnings:
        lines.append(f"Warning: {clean(warning, _WHOLE_LINE)}")
    if verification.outcomes:
        lines += ["", *_limits(verification)]
    return lines


def _result(verification: Verification) -> str:
    if verification.withdrawn:
        return "WITHDRAWN"
    if not verification.passed:
        return "NOT RELEASED"
    if verification.release is None:
        return "ATTESTED"
    return "RELEASED"


def _facts(verification: Verification, root: Location) -> Iterator[tuple[str, str]]:
    """Yield label and text of the hash, and of each fact of the attestation."""
    attestation = verification.attestation
    if attestation is None:
        yield "sha256", verification.sha256
        return
    yield "table", clean(attestation.target.table)
    if attestation.target.partition is not None:
        yield "partition", clean(attestation.target.partition)
    yield "sha256", verification.sha256
    yield "rows", number(attestation.n_rows)
    yield "made", clean(attestation.made_at)
    yield "found", _whereabouts(verification, root)
    yield "attestation", clean(verification.source, _PATH)
    yield "signed by", clean(attestation.keyid)
    yield "policy", _policy(attestation)
    yield "rare values", _rare_values(verification)
    yield "attempt", clean(attestation.attempt)
    yield "version", clean(attestation.package_version)
    yield from _declarations(verification.declared)


def _limit_json(outcome: LimitOutcome) -> dict[str, Any]:
    limit = outcome.limit
    facts = {
        "statistic": limit.statistic,
        "bound": limit.bound,
        "limit": limit.value,
        "min_subjects": limit.min_subjects,
    }
    return {**facts, "status": outcome.status}


def _rare_values(verification: Verification) -> str:
    attestation = verification.attestation
    if attestation is None:
        return NOTHING
    min_holders = attestation.policy.get("min_holders")
    if not min_holders:
        return NOTHING
    declared = verification.declared
    exceptions = []
    for column, allowed in declared["allowed_values"].items():
        if allowed.get("source"):
            exceptions.append(column)
    exceptions += [*declared["new_values"], *declared["public_bounds"]]
    rule = (
        f"each cell has a value that at least {clean(min_holders)} people of the real tables share"
    )
    if not exceptions:
        return rule
    return f"{rule}, except in {_column_list(exceptions)}"


def _column_list(columns: Iterable[str]) -> str:
    return ", ".join(cleaned(columns, _NAME))


def _policy(attestation: Attestation) -> str:
    origin = " (custom)"
    if _is_shipped(attestation):
        origin = " (shipped)"
    elif _is_named(attestation):
        origin = f", {_of_version(attestation)}"
    title = clean(title_of(attestation.policy), 90)
    return f"{title}{origin}, {clean(attestation.policy_digest)}"


def _is_shipped(attestation: Attestation) -> bool:
    """Return True if the policy is a complete shipped policy of this version. Others with its name
    cannot be read.
    """
    return _is_named(attestation) and attestation.package_version == PACKAGE_VERSION


def _is_named(attestation: Attestation) -> bool:
    """Return True if the policy has the name of a shipped policy. Limits of another version are not
    compared.
    """
    return attestation.attested_policy().name in SHIPPED


def _of_version(attestation: Attestation) -> str:
    return f"of version {clean(attestation.package_version, 40)}"


def _in_full(value: Any) -> str:
    """Return a declaration without truncation. Of a list with more than 1,000 values, return their
    number and a digest.
    """
    from privacy_assets.gate.envelope import shown_digest

    if isinstance(value, list | tuple) and len(value) > _MOST_VALUES:
        return f"{len(value):,} values (SHA-256 {shown_digest(value)}; all are in the attestation)"
    return clean(value, _WHOLE_LINE)


def _declarations(declared: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield label and text of each declaration of the data owner."""
    subject = NOTHING
    if declared["subject"] is not None:
        subject = clean(declared["subject"])
    kinds = []
    for column, kind in declared["kinds"].items():
        kinds.append(f"{clean(column, _NAME)}: {clean(kind, 40)}")
    yield "seed", clean(declared["seed"])
    yield "subject", subject
    yield "left out", _column_list(declared["drop"]) or NOTHING
    yield "kinds", ", ".join(kinds) or NOTHING
    for column, values in declared["missing"].items():
        yield f"missing in {clean(column, _NAME)}", _in_full(values)
    for column, lengths in declared["prefix_lengths"].items():
        yield f"prefixes of {clean(column, _NAME)}", clean(lengths, 200)
    if declared["timezone"]:
        yield "time zone", clean(declared["timezone"], 40)
    for name, is_declared in declared["relations"].items():
        yield f"relation {clean(name, 80)}", "declared" if is_declared else "off"
    if declared["snapshots"]:
        yield "snapshots", "the files of a table may contain the same rows"
    for setting, value in declared["table_settings"].items():
        yield f"table settings {clean(setting, 80)}", _in_full(value)
    for column, reason in declared["new_values"].items():
        yield f"new values in {clean(column, _NAME)}", _in_full(reason)
    for column, allowed in declared["allowed_values"].items():
        yield f"allowed in {clean(column, _NAME)}", _allowed_values(allowed)


def _allowed_values(allowed: Mapping[str, Any]) -> str:
    text = f"{clean(allowed.get('values'))} values, keyed {clean(allowed.get('digest'))}"
    if allowed.get("source"):
        text += f", of the public list {clean(allowed['source'], 200)}"
    return text


def _warnings(verification: Verification) -> list[str]:
    """Return one sentence for each declaration that allows more values to be published or weakens
    the verdict.
    """
    if verification.attestation is None:
        return []
    return [
        *_policy_warnings(verification.attestation),
        *_subject_warnings(verification.declared),
        *_column_warnings(verification.declared),
    ]


def _policy_warnings(attestation: Attestation) -> Iterator[str]:
    name = clean(title_of(attestation.policy), 90)
    if not _is_named(attestation):
        yield f"policy {name} is custom. It can be weaker than a shipped one."
    elif not _is_shipped(attestation):
        yield (
            f"policy {name} is {_of_version(attestation)}. This version cannot compare it with the"
            " shipped one."
        )


def _subject_warnings(declared: Mapping[str, Any]) -> Iterator[str]:
    """Yield warnings on settings of the table and on its subjects."""
    from privacy_assets.tables.subject_ids import IGNORED

    for setting in declared["table_settings"]:
        yield f"the table sets {setting}. Its policy leaves this setting to tables."
    if declared["subject"] is None:
        yield "there is no subject column. Each row counts as one person."
    if declared["exact_ids"]:
        yield f"ids are exact text. Ids that differ only in {IGNORED} are different people."


def _column_warnings(declared: Mapping[str, Any]) -> Iterator[str]:
    if declared["kinds"]:
        columns = _column_list(declared["kinds"])
        yield f"the kind of {columns} was declared. It overrides the kind of the values."
    for column in declared["missing"]:
        yield (
            f"values of {clean(column, _NAME)} were declared missing. Copies of them are not"
            " counted."
        )
    for column in declared["new_values"]:
        yield (
            f"column {clean(column, _NAME)} may have new values, which are not limited to a list."
        )
    for column in declared["public_bounds"]:
        yield (
            f"column {clean(column, _NAME)} may have numbers that few people have: its bounds are"
            " public."
        )
    for column, allowed in declared["allowed_values"].items():
        if allowed.get("source"):
            yield (
                f"column {clean(column, _NAME)} may have {clean(allowed.get('values'))} values of"
                " a public list, also if few people have them."
            )


def _limits(verification: Verification) -> list[str]:
    """Return one aligned line per limit with its status, without measured numbers."""
    rows = [("statistic", "bound", "limit", "verdict")]
    for outcome in verification.outcomes:
        limit = outcome.limit
        name = clean(limit.statistic, 60)
        rows.append((name, limit.bound, limit_symbol(limit), outcome.status))
    return aligned(rows)


def _whereabouts(verification: Verification, root: Location) -> str:
    if verification.release is None:
        return (
            f"the attestation alone; {clean(root, _PATH)} has no release of it, or does not exist"
        )
    current = "the current one" if verification.current else "not the current one"
    return f"release {verification.release.id}, {current}"
