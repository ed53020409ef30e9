"""The command ``privacy-assets audit``: how exposed the most vulnerable people of a table are to a generator.

The records that stand farthest from all others are attacked by an outsider who knows the generator and has rows of the
same population: many generators are fitted with and without the record, and a classifier learns the difference from
their synthetic tables. It judges the generator on training sets of --size rows, not one release.

AUC 0.5: the record cannot be told. "epsilon >=": no privacy guarantee of the generator can have a smaller epsilon.

exit status:
  0  the audit is done, whatever it found
  2  bad input or bad settings
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from privacy_assets.cli.command import Commands, say
from privacy_assets.cli.shared import check_out, read_data, settings, workers, write_json
from privacy_assets.errors import ConfigError
from privacy_assets.report.text import aligned, number

if TYPE_CHECKING:
    import numpy as np

    from privacy_assets.shadow.plan import Audit, AuditPlan, RecordAudit
    from privacy_assets.shadow.rates import Rate
    from privacy_assets.tables.coding import Coding

# Option, setting of AuditPlan, type, help; the defaults are the plan's.
_NUMBERS: tuple[tuple[str, str, type, str], ...] = (
    ("--records", "records", int, "records to attack (default 10)"),
    ("--shadows", "shadows", int, "synthetic tables that the attack learns from, for each record (default 4000)"),
    ("--tests", "tests", int, "synthetic tables that it is judged on (default 200)"),
    ("--size", "size", int, "rows of each training set (default 1000)"),
    ("--sample-size", "sample_size", int, "rows of each synthetic table (default: as --size)"),
    ("--aux-rows", "auxiliary_rows", int, "rows of the table that shadow sets are drawn from (default: two thirds)"),
    ("--test-rows", "test_rows", int, "other rows, that test sets are drawn from (default: all others)"),
    ("--neighbours", "neighbours", int, "nearest records whose mean distance is the vulnerability (default 5)"),
    ("--remove", "remove", int, "also remove the N most vulnerable rows, and see whether others become vulnerable"),
    ("--select", "select", str, "distance (default), random, rare_value or log_likelihood"),
    ("--distance", "distance", str, "cosine (default), or minkowski1 to minkowski4"),
    ("--attack", "attack", str, "queries (default), or attention: a network that reads the synthetic rows"),
    ("--sampling", "sampling", str, "subsample (default), or bootstrap: training sets with replacement"),
)


def add_audit(commands: Commands) -> None:
    """Add the command to the command line."""
    command = commands.add("audit", _audit, "attack the most exposed records by shadow models", __doc__)
    command.option("--data", required=True)
    command.option("--generator", "name of a generator, or MODULE:FUNCTION of your own", required=True)
    command.common("--set")
    for option, name, kind, what in _NUMBERS:
        command.option(option, what, dest=name, type=kind, metavar="N" if kind is int else "NAME")
    command.option("--ids", "attack these rows of the file (the first is 0)", metavar="A,B")
    person = "column that tells people apart: no other row of a record's person stands in its tables"
    command.option("--subject", person)
    command.common("--kind", "--drop")
    command.option("--seed", "the same seed gives the same audit (default 0)")
    command.common("--ray")
    folder = "keep what is done, and go on from there; its files hold counts from the private table (mode 0600)"
    command.option("--checkpoint", folder)
    command.option("--json", "write the results as JSON; ids are row positions in the file", metavar="OUT")
    command.common("--quiet")


def _audit(options: argparse.Namespace) -> int:
    from privacy_assets.shadow.audit import run_audit

    check_out(options.json)
    plan = _plan(options)
    cells, coding, people = _table(options)
    with workers(options):
        audit = run_audit(
            cells,
            coding,
            plan,
            seed=options.seed,
            subjects=people,
            progress=options.progress,
            checkpoint=options.checkpoint,
        )
    say(*_text(audit))
    if options.json:
        write_json(options.json, audit.to_json())
    return 0


def _plan(options: argparse.Namespace) -> AuditPlan:
    from privacy_assets.generators.registry import build_generator
    from privacy_assets.shadow.plan import AuditPlan

    given = {name: getattr(options, name) for _, name, *_ in _NUMBERS if getattr(options, name) is not None}
    if options.ids is not None:
        if {"records", "select"} & set(given):
            raise ConfigError("--ids names the records: leave --records and --select out.")
        given["ids"] = _ids(options.ids)
    return AuditPlan(build_generator(options.generator, settings(options.set)), **given)


def _ids(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() for part in parts) or len(set(parts)) < len(parts):
        raise ConfigError(f"--ids {text}: write different row positions, separated by commas.")
    return tuple(int(part) for part in parts)


def _table(options: argparse.Namespace) -> tuple[np.ndarray, Coding, np.ndarray | None]:
    from privacy_assets.tables.coding import Coding

    table, people = read_data(options)
    coding = Coding.fit([table], table.schema)
    return coding.code(table), coding, people


def _text(audit: Audit) -> list[str]:
    plan, auc = audit.plan, audit.auc
    sizes = f"{plan.shadows:,} + {plan.tests:,} tables of {plan.sample_size or plan.size:,} rows a record"
    lines = [f"Generator {plan.generator.name}, attack {plan.attack}, {sizes}", "", *_records(audit.records), ""]
    lines.append(f"AUC over records: mean {number(auc['mean'])}, standard deviation {number(auc['sd'])}")
    lines.append(
        f"epsilon of the generator: at least {number(audit.epsilon_lower_bound)} (95 % over all records);"
        f" these counts could show {number(audit.records[0].epsilon.certifiable)} for one record at most"
    )
    if audit.removal is not None:
        removed, before, after = audit.removal.removed, audit.removal.before, audit.removal.after
        lines += ["", f"The most vulnerable of the others, {len(removed)} rows still in the table:", *_records(before)]
        lines += ["", f"The same without the {len(removed)} rows:", *_records(after)]
    return [*lines, f"{audit.cpu_seconds:.1f} CPU seconds"]


def _records(records: Sequence[RecordAudit]) -> list[str]:
    rows = [["row", "vulnerability", "AUC [95 %]", *(f"TPR at {fpr:.0%} FPR" for fpr in records[0].tpr), "epsilon >="]]
    for record in records:
        tpr = [_rate(rate) for rate in record.tpr.values()]
        head = [str(record.id), number(record.vulnerability), _rate(record.auc)]
        rows.append([*head, *tpr, number(record.epsilon_lower_bound)])
    notes = dict.fromkeys(rate.note for record in records for rate in record.tpr.values() if rate.note)
    return [*aligned(rows), *notes]


def _rate(rate: Rate) -> str:
    return "not measurable" if rate.note else f"{rate.value:.3f} [{rate.low:.3f}, {rate.high:.3f}]"
