"""Metadata of assets and checks: sizes, columns, lineage and statistics, without private values."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import pandas as pd

from privacy_assets.dagster.failures import failure
from privacy_assets.dagster.table import DagsterTable, key_of
from privacy_assets.gate.attestation import refusal
from privacy_assets.metrics.policies import size_warning
from privacy_assets.pipeline.steps import Task
from privacy_assets.pipeline.work import Attested, StepResult, TableRun, published_rows
from privacy_assets.policy import WORST_FIRST, Limit, LimitOutcome, Status
from privacy_assets.report.advice import first_remedy
from privacy_assets.stats.estimates import MetricResult, decimal
from privacy_assets.tables.schema import TableSchema
from privacy_assets.tables.table import Table

if TYPE_CHECKING:
    from privacy_assets.report.report import Report

# Code references and data versions are in beta.
warnings.filterwarnings("ignore", category=dg.BetaWarning, module=__name__)

PACKAGE = Path(__file__).parents[1]
_SIGNS: dict[Status, str] = {"pass": "✓", "fail": "✗", "undecided": "?"}
_ASK_REPORT = (
    "the cause depends on all limits of the table: see privacy_report, or the check policy_holds"
    " on attestation"
)
_RUNS = 20  # that are plotted
_SMALL = 1000  # characters; the UI renders longer markdown in a dialog only


def column_schema(schema: TableSchema, subject: str | None = None) -> dg.TableSchema:
    """Return the columns with type, kind and nullability."""
    text, required = (
        "Identifies subjects; the generator does not receive it.",
        dg.TableColumnConstraints(nullable=False),
    )
    subjects = [dg.TableColumn(subject, "text", text, constraints=required)] if subject else []
    columns = [
        dg.TableColumn(
            column.name,
            column.dtype,
            column.kind,
            constraints=dg.TableColumnConstraints(nullable=column.nullable),
        )
        for column in schema.columns
    ]
    return dg.TableSchema([*subjects, *columns])


def lineage(names: list[str], *upstream: dg.AssetKey) -> dg.TableColumnLineage:
    """Map each column to the columns of the same name in the upstream assets."""
    return dg.TableColumnLineage(
        {
            name: [dg.TableColumnDep(asset_key=key, column_name=name) for key in upstream]
            for name in names
        }
    )


def table_metadata(
    table: Table, fingerprint: str, upstream: dg.AssetKey | None = None
) -> dict[str, Any]:
    """Return the metadata of a private table.

    These are the numbers of rows and subjects, the column schema, the keyed fingerprint and, if
    ``upstream`` is given, the column lineage.
    """
    schema, subject, ids = table.schema, table.subject, table.subject_ids
    metadata: dict[str, Any] = {
        "dagster/row_count": len(table),
        "dagster/column_schema": column_schema(schema, subject),
        "subjects": len(table) if ids is None else len(ids.distinct()),
        "keyed_fingerprint": fingerprint,
    }
    if upstream is not None:
        metadata["dagster/column_lineage"] = lineage(
            [*([subject] if subject else []), *schema.names], upstream
        )
    return metadata


def synthetic_metadata(frame: pd.DataFrame, sha256: str, *upstream: dg.AssetKey) -> dict[str, Any]:
    """Return row count, SHA-256, column schema (dtypes of the file) and lineage of a synthetic or
    published table.
    """
    columns = [
        dg.TableColumn(
            name,
            str(frame[name].dtype),
            constraints=dg.TableColumnConstraints(nullable=bool(frame[name].isna().any())),
        )
        for name in frame.columns
    ]
    return {
        "dagster/row_count": len(frame),
        "dagster/column_schema": dg.TableSchema(columns),
        "dagster/column_lineage": lineage(list(frame.columns), *upstream),
        "sha256": sha256,
    }


def score_metadata(result: MetricResult, outcomes: Sequence[LimitOutcome]) -> dict[str, Any]:
    """Return a plot per limit, intervals, the ranking of rows, and the numbers that the UI plots
    over time.

    These numbers are the statistics and, for each limit, the measured number and the limit.
    """
    from privacy_assets.report.svg import drawn_number

    metadata: dict[str, Any] = {
        f"limit: {outcome.limit.key}": picture(outcome) for outcome in outcomes
    }
    rows: list[dict[str, str | int]] = [
        {
            "statistic": f.name,
            "value": _rounded(f.value),
            "low": _rounded(f.low),
            "high": _rounded(f.high),
            "rows": f.n,
            "subjects": f.subjects,
            "note": f.note,
        }
        for f in result.estimates
    ]
    if rows:
        metadata["statistics"] = dg.MetadataValue.table([dg.TableRecord(row) for row in rows])
    if ranking := result.tables.get("ranking"):
        records = [
            dg.TableRecord({key: _cell(cell) for key, cell in row.items()}) for row in ranking
        ]
        metadata["most exposed records"] = dg.MetadataValue.table(records)
    numbers = {f.name: f.value for f in result.estimates}
    for outcome in outcomes:
        measured, limit = _plotted_names(outcome.limit)
        numbers |= {measured: drawn_number(outcome), limit: outcome.limit.value}
    return metadata | _plotted({**numbers, "seconds": result.seconds})


def _plotted_names(limit: Limit) -> tuple[str, str]:
    """Return the names under which a score has the measured number of a limit, and the limit."""
    name = limit.key.partition(".")[2]
    return f"{name}: measured", f"{name}: limit"


def _earlier_numbers(
    instance: dg.DagsterInstance, key: dg.AssetKey, partition: str | None
) -> list[Mapping[str, float]]:
    """Return the numbers in the metadata of the last runs of a score, oldest first."""
    only = dg.AssetRecordsFilter(
        asset_key=key, asset_partitions=None if partition is None else [partition]
    )
    records = instance.fetch_materializations(only, limit=_RUNS - 1).records
    found = [record.asset_materialization for record in reversed(records)]
    numbers = [
        {name: entry.value for name, entry in one.metadata.items()}
        for one in found
        if one is not None
    ]
    return [
        {name: value for name, value in row.items() if isinstance(value, float)} for row in numbers
    ]


def _limit_by_run(outcome: LimitOutcome, earlier: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Return a plot of the measured number and the limit (dashed) by run, because the UI plots each
    number alone.
    """
    from privacy_assets.report.svg import drawn_number, line_markdown

    measured, limit = _plotted_names(outcome.limit)
    rows = [*earlier, {measured: drawn_number(outcome), limit: outcome.limit.value}]
    lines = [
        [(run, row.get(name, math.nan)) for run, row in enumerate(rows)]
        for name in (measured, limit)
    ]
    image = line_markdown("measured number, and limit (dashed), by run", *lines)
    return {"measured and limit by run": dg.MetadataValue.md(image)} if image else {}


def report_metadata(report: Report) -> dict[str, Any]:
    """Return the verdict, answers, limits (failed ones first), the report as text, Gretel's scores,
    and counts to plot.

    An exclamation mark is a limit that holds without evidence.

    In a window of 1,200 pixels the UI truncates tables to 300 pixels, and the paths shown below
    them widen every row. Therefore the measured number with a symbol of its verdict comes first,
    then the limit and its name.
    """
    from privacy_assets.report.svg import drawn_number
    from privacy_assets.report.words import NOTHING, clean, limit_symbol, number

    scores = report.gretel_scores
    outcomes = sorted(
        report.policy_verdict.outcomes, key=lambda outcome: WORST_FIRST.index(outcome.status)
    )
    records = [
        dg.TableRecord(
            {
                "measured": f"{'!' if x.passed and x.blind else _SIGNS[x.status]}"
                f" {number(drawn_number(x))}",
                "limit": f"{limit_symbol(x.limit)} {clean(x.limit.key, 60)}",
            }
        )
        for x in outcomes
    ]
    grades = ""
    if report.shows_grades:
        grades = ", ".join(f"{name}: {level}" for name, (_, level) in scores.items())
    answers = [
        dg.TableRecord({"answer": answer["word"], "question": answer["title"]})
        for answer in report.page().answers
        if answer["is_displayed"]
    ]
    return {
        "verdict": verdict_line(report),
        "answers": dg.MetadataValue.table(answers),
        "limits": dg.MetadataValue.table(records),
        "report": dg.MetadataValue.md(f"```text\n{report.to_text()}\n```"),
        "Gretel's grades": grades or NOTHING,
        **_plotted({name: score for name, (score, _) in scores.items()}),
        **{
            f"limits: {one}": sum(x.status == one for x in outcomes)
            for one in reversed(WORST_FIRST)
        },
    }


def verdict_line(report: Report) -> str:
    """Return verdict, number of limits with it, and causes, for example ``fail: 3 of 28 limits,
    copied rows``.
    """

    outcomes, verdict = report.policy_verdict.outcomes, report.policy_verdict.status
    reason = f"{sum(x.status == verdict for x in outcomes)} of {len(outcomes)} limits"
    if report.remembered and verdict != "fail":
        reason = "these rows failed before"
    return ", ".join([f"{report.verdict}: {reason}", *(one["cause"] for one in report.advice)])


def limit_metadata(
    outcome: LimitOutcome, advised: Sequence[Mapping[str, Any]] | None = None
) -> dict[str, Any]:
    """Return the outcome of a limit, a plot and, if the limit does not hold, advice.

    Args:
        outcome: Outcome of the limit.
        advised: Advice on all limits of the table. The cause can be determined only from all limits
            together, because copied rows exceed the limits of nearly every metric. None: the other
            metrics are not known yet, so the metadata refers to the report.
    """
    from privacy_assets.report.advice import what_to_do
    from privacy_assets.report.svg import drawn_number

    limit, estimate = outcome.limit, outcome.estimate
    metadata: dict[str, Any] = {
        "status": outcome.status,
        "reason": outcome.reason,
        "limit": limit.value,
        "bound": limit.bound,
        "picture": picture(outcome),
    }
    if limit.source:
        metadata["source of the limit"] = limit.source
    if estimate is not None:
        metadata["n"] = (
            f"{estimate.n} rows, {estimate.subjects} subjects; at least {limit.min_subjects}"
            " subjects are needed"
        )
        metadata["confidence"] = f"{estimate.confidence:g}"
        numbers = {"value": estimate.value, "low": estimate.low, "high": estimate.high}
        numbers["measured"] = drawn_number(outcome)
        metadata |= _plotted(numbers)
    if what_to_do(outcome):
        metadata["what to do"] = what_to_do(outcome)
    if advised is not None:
        return metadata | _recourses([found for found in advised if limit.key in found["limits"]])
    return metadata if outcome.passed else metadata | {"advice": _ASK_REPORT}


def _recourses(advised: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the advice on limits that do not hold, as a table."""
    records = [
        dg.TableRecord({"cause": found["cause"], "what": todo["what"], "it costs": todo["cost"]})
        for found in advised
        for todo in found["todo"]
    ]
    return {"advice": dg.MetadataValue.table(records)} if records else {}


def picture(outcome: LimitOutcome) -> dg.MetadataValue[Any]:
    """Return Markdown with a plot of the interval and the limit.

    If the Markdown has 1,000 or more characters, return the reason of the outcome as text instead.
    """
    from privacy_assets.report.svg import interval_markdown

    markdown = interval_markdown(outcome)
    return (
        dg.MetadataValue.md(markdown)
        if len(markdown) < _SMALL
        else dg.MetadataValue.text(outcome.reason)
    )


def broken_metadata(
    outcomes: Sequence[LimitOutcome], advised: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Return one entry per limit that does not hold, with the measured number, and the advice."""
    from privacy_assets.report.advice import what_to_do

    texts = {x.limit.key: f"{x.status}: {x.reason}. {what_to_do(x)}".strip() for x in outcomes}
    return {
        **_recourses(advised),
        **{key: dg.MetadataValue.text(text) for key, text in texts.items()},
    }


def training_metadata(history: Sequence[Mapping[str, float | None]]) -> dict[str, Any]:
    """Return the training curve as plots, its last row as numbers, and at most thirty of its rows
    as a table.
    """
    from privacy_assets.report.svg import line_markdown

    if not history:
        return {}
    known = [{key: value for key, value in row.items() if value is not None} for row in history]
    rows = [known[i] for i in sorted({round(i * (len(known) - 1) / 29) for i in range(30)})]
    records = [dg.TableRecord({key: _rounded(value) for key, value in row.items()}) for row in rows]
    metadata: dict[str, Any] = {"epochs": len(history), "training": dg.MetadataValue.table(records)}
    for key in [key for key in rows[0] if key != "epoch"]:
        label = key.replace("_", " ")
        if image := line_markdown(label, list(enumerate(row[key] for row in rows if key in row))):
            metadata[f"{label} by epoch"] = dg.MetadataValue.md(image)
    return metadata | _plotted(
        {f"last {key}": value for key, value in rows[-1].items() if key != "epoch"}
    )


def _plotted(numbers: Mapping[str, float]) -> dict[str, float]:
    """Return the finite numbers, rounded to four significant digits. Signed results are not
    rounded.
    """
    return {
        name: float(f"{number:.4g}") for name, number in numbers.items() if math.isfinite(number)
    }


def _rounded(number: float) -> str:
    return decimal(number) if math.isfinite(number) else "not measurable"


def _cell(value: float | str) -> int | str:
    return _rounded(value) if isinstance(value, float) else value


def caller_reference() -> Mapping[str, Any]:
    """Return a code reference to the line outside this package that defines the table, or an empty
    mapping.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None and PACKAGE in Path(frame.f_code.co_filename).parents:
        frame = frame.f_back
    path = frame.f_code.co_filename
    if not Path(path).is_file():
        return {}
    reference = dg.LocalFileCodeReference(
        file_path=path, line_number=frame.f_lineno, label="definition of the table"
    )
    return {"dagster/code_references": dg.CodeReferencesMetadataValue(code_references=[reference])}


HOLDS, RELEASED = "policy_holds", "released"
BROKEN = "limits that do not hold"  # metadata of attestations
_SHOWN = 16  # characters of a hash
Metadata = Mapping[str, Any]


def events(
    context: dg.AssetExecutionContext,
    table: DagsterTable,
    run: TableRun,
    task: Task,
    result: StepResult,
    version: Metadata,
) -> Iterator[Any]:
    """Yield the outputs of a task with their metadata, and its check results.

    Args:
        context: Context of the step.
        table: Settings of the table.
        run: Run of the task.
        task: The task.
        result: Its result.
        version: Metadata of the version of the source.

    Yields:
        Outputs and check results.

    Raises:
        dagster.Failure: If the policy does not hold.
    """
    values, shown = result
    match task.step.verb:
        case "read":
            metadata = {**table_metadata(values["source"], shown["source"]), **version}
            n_members = round(table.resolved.shares["train"] * metadata["subjects"])
            if doubt := size_warning(table.resolved.policy, n_members):
                context.log.warning(doubt)
                metadata["too few people"] = doubt
            yield _output("source", values["source"], metadata, shown["source"])
        case "split":
            for role, part in values.items():
                row_sources = table.resolved.row_sources
                upstream = (
                    key_of(row_sources[role]) if table.resolved.external else table.key("source")
                )
                yield _output(role, part, table_metadata(part, shown[role], upstream), shown[role])
        case "embed":
            curve = training_metadata([asdict(epoch) for epoch in values["embedder"].history])
            yield _output("embedder", values["embedder"], {"device": run.device, **curve})
        case "fit":
            yield _output(
                "generator",
                values["generator"],
                _generator(table, run, values["generator"].generator),
            )
        case "sample":
            sha256 = shown.snapshot.sha256
            upstreams = [table.key(role) for role in task.reads if role in table.resolved.roles]
            metadata = {
                **synthetic_metadata(shown.table.to_published_frame(), sha256, *upstreams),
                **shown.metadata,
            }
            yield _output("synthetic", values["synthetic"], metadata, sha256)
        case "prepare":
            inputs = values["evaluation_inputs"]
            rows = {f"{role} rows": len(part) for role, part in inputs.tables.items()}
            yield _output("evaluation_inputs", inputs, {**rows, "sha256": shown.snapshot.sha256})
        case "score":
            metadata = {
                **score_metadata(shown.result, shown.outcomes),
                "seed": str(table.resolved.spec.run.seed),
            }
            if shown.row_scores is not None:
                metadata["scores of each row (private)"] = str(shown.row_scores)
            key = table.key(task.name)
            earlier = _earlier_numbers(context.instance, key, run.target.partition)
            yield _output(task.name, values[task.name], metadata)
            yield from (limit_result(key, outcome, earlier=earlier) for outcome in shown.outcomes)
        case "attest":
            yield from _attested(table, shown)
        case "publish":
            frame, stated = published_rows(run, shown)
            key = table.key("published")
            yield dg.AssetCheckResult(
                asset_key=key, check_name=RELEASED, passed=True, metadata={"release": shown.id}
            )
            metadata = {
                **synthetic_metadata(frame, stated.sha256, table.key("synthetic")),
                "release": shown.id,
                "folder": dg.MetadataValue.path(str(shown.folder)),
            }
            yield _output("published", values["published"], metadata, stated.sha256)
        case _:
            yield from (_output(name, value, {}) for name, value in values.items())


def _output(
    name: str, value: Any, metadata: Metadata, version: str | None = None
) -> dg.Output[Any]:
    data_version = None if version is None else dg.DataVersion(version)
    return dg.Output(value, output_name=name, metadata=dict(metadata), data_version=data_version)


def _generator(table: DagsterTable, run: TableRun, fitted: Any) -> dict[str, Any]:
    return {
        "generator": table.resolved.generator_label,
        "settings": dg.MetadataValue.json(table.resolved.generator.settings()),
        "privacy budget": str(fitted.privacy),
        "same seed, same rows": table.resolved.generator.repeatable and run.device == "cpu",
        "device": run.device,
        **training_metadata(fitted.history),
    }


def _attested(table: DagsterTable, found: Attested) -> Iterator[Any]:
    """Yield attestation and report before the check, so that a rejected table has a report with the
    reasons.

    Every verdict other than "pass" also raises ``dagster.Failure`` with the reason, because the
    message of the failed blocking check alone does not contain one.
    """
    stated, broken = found.stated, found.policy_verdict.broken
    shown = report_metadata(found.report)
    hashes = {
        "sha256": stated.sha256,
        "policy_digest": stated.policy_digest,
        "signed by": stated.keyid,
    }
    metadata: dict[str, Any] = {
        **shown,
        **({BROKEN: ", ".join(outcome.limit.key for outcome in broken)} if broken else {}),
        "attempt": stated.attempt,
        "policy": table.resolved.policy.title,
        # Prefixes, because the UI truncates tables with long values. The record contains the full
        # hashes.
        **{name: hashed[:_SHOWN] for name, hashed in hashes.items()},
    }
    yield _output("attestation", found.sealed, metadata)
    yield _output("privacy_report", found.report, shown)
    yield dg.AssetCheckResult(
        asset_key=table.key("attestation"),
        check_name=HOLDS,
        passed=stated.verdict == "pass",
        description=found.reason,
        metadata={"verdict": shown["verdict"], **broken_metadata(broken, found.report.advice)},
    )
    if stated.verdict != "pass":
        raise failure(
            refusal(found.policy_verdict, stated.remembered, first_remedy(found.report.advice))
        )


def _status(outcome: LimitOutcome) -> str:
    """Return the status of a limit in words."""
    if outcome.by_rule:
        return "by rule"
    if outcome.passed and outcome.blind:
        return "no evidence on this table"
    return outcome.status.replace("_", " ")


def check_name(limit: Limit) -> str:
    """Return the name of the asset check of a limit."""
    return limit.key.replace(".", "_")


def limit_rule(limit: Limit) -> str:
    """Describe a limit in one sentence."""
    side = f"at most {limit.at_most}" if limit.at_most is not None else f"at least {limit.at_least}"
    return f"{limit.statistic} must be {side} ({limit.bound} bound)."


def limit_sentence(limit: Limit) -> str:
    """Describe a limit and its source."""
    return f"{limit_rule(limit)} {limit.source[:1].upper()}{limit.source[1:]}".strip()


def limit_result(
    asset: dg.AssetKey,
    outcome: LimitOutcome,
    advised: Sequence[Mapping[str, Any]] | None = None,
    earlier: Sequence[Mapping[str, float]] = (),
) -> dg.AssetCheckResult:
    """Return the check result of a limit; see :func:`limit_metadata` for ``advised``.

    A limit that holds without evidence gives a warning, which blocks nothing. ``earlier`` has the
    numbers of earlier runs, which are plotted with those of this one.
    """
    return dg.AssetCheckResult(
        asset_key=asset,
        check_name=check_name(outcome.limit),
        passed=outcome.passed and not outcome.blind,
        severity=dg.AssetCheckSeverity.WARN if outcome.passed else dg.AssetCheckSeverity.ERROR,
        # No measured number, because alerts display the description.
        description=f"{_status(outcome)}: {limit_rule(outcome.limit)}",
        metadata={**limit_metadata(outcome, advised), **_limit_by_run(outcome, earlier)},
    )
