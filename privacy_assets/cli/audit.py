"""The command ``privacy-assets audit``: measure how much a generator exposes the most vulnerable
people of a table.

By default the records farthest from their nearest neighbors are attacked. The attacker knows the
generator and has rows of the same population: many generators are fitted with and without the
record, and a classifier is trained to distinguish their synthetic tables. The audit evaluates the
generator on training sets of --size rows, not a particular release.

AUC 0.5: membership of the record cannot be inferred. "epsilon >=": the generator cannot have a
privacy guarantee with a smaller epsilon.

exit status:
  0  the audit is complete, whatever its result
  2  bad input or bad settings

example:
  privacy-assets audit --data people.parquet --subject person --generator baynet --json audit.json
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from privacy_assets.cli.options import (
    READING,
    Commands,
    check_out,
    read_data,
    say,
    settings,
    workers,
    write_json,
)
from privacy_assets.errors import ConfigError
from privacy_assets.report.text import aligned
from privacy_assets.report.words import number

if TYPE_CHECKING:
    import numpy as np

    from privacy_assets.studies.shadow_membership.audit import Audit, AuditConfig, RecordAudit
    from privacy_assets.studies.shadow_membership.rates import Rate
    from privacy_assets.tables.encoding import MatrixCoding

# Option, setting of AuditConfig, type, help. AuditConfig has the defaults.
_SETTINGS: tuple[tuple[str, str, type, str], ...] = (
    ("--max-targets", "max_targets", int, "number of records to attack (default 10)"),
    (
        "--shadows",
        "shadows",
        int,
        "number of synthetic tables to train the attack on, per record (default 4000)",
    ),
    (
        "--tests",
        "tests",
        int,
        "number of synthetic tables to test the attack on, per record (default 200)",
    ),
    ("--size", "size", int, "number of rows of each training set (default 1000)"),
    (
        "--sample-size",
        "sample_size",
        int,
        "number of rows of each synthetic table (default: --size)",
    ),
    (
        "--aux-rows",
        "auxiliary_rows",
        int,
        "number of rows from which shadow sets are drawn (default: two thirds)",
    ),
    (
        "--test-rows",
        "test_rows",
        int,
        "number of other rows, from which test sets are drawn (default: all others)",
    ),
    (
        "--n-neighbors",
        "n_neighbors",
        int,
        "vulnerability is the mean distance to this number of nearest records (default 5)",
    ),
    (
        "--remove",
        "remove",
        int,
        "also remove the N most vulnerable rows, and attack the next ones before and after",
    ),
    ("--select", "select", str, "distance (default), random, rare_value or log_likelihood"),
    ("--distance", "distance", str, "cosine (default), or minkowski1 to minkowski4"),
    (
        "--attack",
        "attack",
        str,
        "queries (default), or attention: a network that reads the synthetic rows",
    ),
    (
        "--sampling",
        "sampling",
        str,
        "subsample (default), or bootstrap: training sets with replacement",
    ),
)


def add_audit(commands: Commands) -> None:
    """Add the command to the command line."""
    command = commands.add(
        "audit", _audit, "attack the most exposed records by shadow models", __doc__
    )
    command.option("--data", required=True)
    command.option(
        "--generator", "name of a generator, or MODULE:FUNCTION of a custom one", required=True
    )
    command.common("--set")
    for option, name, kind, text in _SETTINGS:
        metavar = "N" if kind is int else "NAME"
        command.option(option, text, dest=name, type=kind, metavar=metavar)
    setting = (
        "a setting of the attack, as YAML, for example queries=100000 or learning_rate=0.01"
        " (repeatable)"
    )
    command.option("--attack-set", setting, action="append", default=[], metavar="KEY=VALUE")
    command.option("--ids", "attack these rows of the file (the first is 0)", metavar="A,B")
    person = "subject column; all other rows of an attacked subject are excluded from its tables"
    command.option("--subject", person)
    command.common("--exact-ids")
    command.common(*READING)
    command.option("--seed", "the same seed gives the same audit (default 0)")
    command.common("--ray")
    folder = (
        "folder for checkpoints, from which an interrupted audit resumes; contains private counts"
        " (mode 0600)"
    )
    command.option("--checkpoint", folder)
    command.option(
        "--json", "write the results as JSON; ids are row positions in the file", metavar="OUT"
    )
    command.common("--quiet")


def _audit(options: argparse.Namespace) -> int:
    from privacy_assets.studies.shadow_membership.audit import run_audit

    check_out(options.json)
    plan = _plan(options)
    cells, coding, subject_codes = _table(options)
    with workers(options):
        audit = run_audit(
            cells,
            coding,
            plan,
            seed=options.seed,
            subjects=subject_codes,
            progress=options.progress,
            checkpoint=options.checkpoint,
        )
    say(*_text(audit))
    if options.json:
        write_json(options.json, audit.to_json())
    return 0


def _plan(options: argparse.Namespace) -> AuditConfig:
    from privacy_assets.generators.registry import build_generator
    from privacy_assets.studies.shadow_membership.audit import AuditConfig

    arguments: dict[str, Any] = {}
    for _, name, *_ in _SETTINGS:
        value = getattr(options, name)
        if value is not None:
            arguments[name] = value
    if options.ids is not None:
        if "max_targets" in arguments or "select" in arguments:
            raise ConfigError(
                "--ids cannot be combined with --max-targets or --select. Fix: remove one."
            )
        arguments["ids"] = _ids(options.ids)
    if options.attack_set:
        arguments["attack_settings"] = settings(options.attack_set, "attack-set")
    generator = build_generator(options.generator, settings(options.set))
    return AuditConfig(generator, **arguments)


def _ids(text: str) -> tuple[int, ...]:
    """Parse row positions.

    Raises:
        ConfigError: If one is not a number, or is repeated.
    """
    parts = [part.strip() for part in text.split(",")]
    are_numbers = all(part.isascii() and part.isdecimal() for part in parts)
    if not are_numbers or len(set(parts)) < len(parts):
        raise ConfigError(f"--ids {text}: expected different row positions, separated by commas.")
    return tuple(map(int, parts))


def _table(options: argparse.Namespace) -> tuple[np.ndarray, MatrixCoding, np.ndarray | None]:
    """Return the coded cells of the table, their coding, and the subject code of each row."""
    from privacy_assets.tables.encoding import MatrixCoding

    table, subject_codes = read_data(options)
    coding = MatrixCoding.fit([table], table.schema)
    return coding.code(table), coding, subject_codes


def _text(audit: Audit) -> list[str]:
    plan = audit.plan
    auc = audit.auc
    n_rows = plan.sample_size or plan.size
    sizes = f"{plan.shadows:,} + {plan.tests:,} tables of {n_rows:,} rows per record"
    certifiable = audit.records[0].epsilon.certifiable
    lines = [f"Generator {plan.generator.name}, attack {plan.attack}, {sizes}", ""]
    lines += _records(audit.records)
    lines += [
        "",
        f"AUC over records: mean {number(auc['mean'])}, standard deviation {number(auc['sd'])}",
        f"epsilon of the generator: at least {number(audit.epsilon_lower_bound)} (95 % over all"
        f" records); these counts could show {number(certifiable)} for one record at most",
    ]
    if audit.removal is not None:
        n_removed = len(audit.removal.removed)
        title = "The next most vulnerable rows"
        lines += ["", f"{title}, before the removal of {n_removed} rows:"]
        lines += _records(audit.removal.before)
        lines += ["", f"{title}, after the removal of {n_removed} rows:"]
        lines += _records(audit.removal.after)
    lines.append(f"{audit.cpu_seconds:.1f} CPU seconds")
    return lines


def _records(records: Sequence[RecordAudit]) -> list[str]:
    """Return the records as a table, and the notes on their rates."""
    header = ["row", "vulnerability", "AUC [95 %]"]
    for fpr in records[0].tpr:
        header.append(f"TPR at {fpr:.0%} FPR")
    header.append("epsilon >=")
    rows = [header]
    notes: dict[str, None] = {}  # in order, without repetitions
    for record in records:
        row = [str(record.id), number(record.vulnerability), _rate(record.auc)]
        for rate in record.tpr.values():
            row.append(_rate(rate))
            if rate.note:
                notes[rate.note] = None
        row.append(number(record.epsilon_lower_bound))
        rows.append(row)
    return [*aligned(rows), *notes]


def _rate(rate: Rate) -> str:
    if rate.note:
        return "not measurable"
    return f"{rate.value:.3f} [{rate.low:.3f}, {rate.high:.3f}]"
