"""Metadata of assets and checks: sizes, columns, lineage and statistics, without private values."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import pandas as pd

from privacy_assets.policy import WORST_FIRST, Limit, LimitOutcome, Status
from privacy_assets.stats.estimates import Estimate, MetricResult, decimal
from privacy_assets.tables.schema import TableSchema
from privacy_assets.tables.table import Table

if TYPE_CHECKING:
    from privacy_assets.report.report import Report

# Code references are in beta.
warnings.filterwarnings("ignore", category=dg.BetaWarning, module=__name__)

PACKAGE = Path(__file__).parents[1]
FAILED_LIMITS = "limits that do not hold"  # metadata of attestations
_SIGNS: dict[Status, str] = {"pass": "✓", "fail": "✗", "undecided": "?"}
_ASK_REPORT = (
    "the cause depends on all limits of the table: see privacy_report, or the check policy_holds"
    " on attestation"
)
_MAX_RUNS = 20  # in a plot by run
_MAX_TRAINING_ROWS = 30  # of a training curve
_MAX_MARKDOWN = 1000  # characters; the UI renders longer markdown in a dialog only


def column_schema(schema: TableSchema, subject: str | None = None) -> dg.TableSchema:
    """Return the columns with type, kind and nullability.

    Args:
        schema: Columns without the subject.
        subject: Column that identifies subjects, which comes first. None: there is none.
    """
    columns = []
    if subject:
        columns.append(
            dg.TableColumn(
                subject,
                "text",
                "Identifies subjects; the generator does not receive it.",
                constraints=dg.TableColumnConstraints(nullable=False),
            )
        )
    for column in schema.columns:
        constraints = dg.TableColumnConstraints(nullable=column.nullable)
        columns.append(
            dg.TableColumn(column.name, column.dtype, column.kind, constraints=constraints)
        )
    return dg.TableSchema(columns)


def lineage(names: Sequence[str], *upstream: dg.AssetKey) -> dg.TableColumnLineage:
    """Map each column to the columns of the same name in the upstream assets.

    Args:
        names: Names of the columns.
        *upstream: Keys of the upstream assets.
    """
    deps_by_column = {}
    for name in names:
        deps_by_column[name] = [
            dg.TableColumnDep(asset_key=key, column_name=name) for key in upstream
        ]
    return dg.TableColumnLineage(deps_by_column)


def table_metadata(
    table: Table, fingerprint: str, upstream: dg.AssetKey | None = None
) -> dict[str, Any]:
    """Return the metadata of a private table.

    Args:
        table: The private table.
        fingerprint: Its keyed fingerprint.
        upstream: Key of the asset from which its columns are. None: not an asset.

    Returns:
        The numbers of rows and subjects, the column schema, the fingerprint and, if there is an
        upstream asset, the column lineage.
    """
    subject_ids = table.subject_ids
    n_subjects = len(table)
    if subject_ids is not None:
        n_subjects = len(subject_ids.distinct())
    metadata: dict[str, Any] = {
        "dagster/row_count": len(table),
        "dagster/column_schema": column_schema(table.schema, table.subject),
        "subjects": n_subjects,
        "keyed_fingerprint": fingerprint,
    }
    if upstream is None:
        return metadata
    names = list(table.schema.names)
    if table.subject:
        names.insert(0, table.subject)
    metadata["dagster/column_lineage"] = lineage(names, upstream)
    return metadata


def synthetic_metadata(frame: pd.DataFrame, sha256: str, *upstream: dg.AssetKey) -> dict[str, Any]:
    """Return the metadata of a synthetic or published table.

    Args:
        frame: Its rows.
        sha256: Hash of its file.
        *upstream: Keys of the assets from which it was generated.

    Returns:
        Row count, SHA-256, column schema (dtypes of the file) and lineage.
    """
    columns = []
    for name in frame.columns:
        series = frame[name]
        constraints = dg.TableColumnConstraints(nullable=bool(series.isna().any()))
        columns.append(dg.TableColumn(name, str(series.dtype), constraints=constraints))
    return {
        "dagster/row_count": len(frame),
        "dagster/column_schema": dg.TableSchema(columns),
        "dagster/column_lineage": lineage(list(frame.columns), *upstream),
        "sha256": sha256,
    }


def score_metadata(result: MetricResult, outcomes: Sequence[LimitOutcome]) -> dict[str, Any]:
    """Return the metadata of a score.

    Args:
        result: Result of the metric.
        outcomes: Outcomes of the limits on it.

    Returns:
        A plot per limit, intervals, the ranking of rows, and the numbers that the UI plots over
        time. These are the statistics and, for each limit, the number compared with it and the
        limit.
    """
    metadata: dict[str, Any] = {}
    for outcome in outcomes:
        metadata[f"limit: {outcome.limit.key}"] = picture(outcome)
    numbers = {}
    records = []
    for estimate in result.estimates:
        numbers[estimate.name] = estimate.value
        records.append(_estimate_record(estimate))
    if records:
        metadata["statistics"] = dg.MetadataValue.table(records)
    ranking = result.tables.get("ranking")
    if ranking:
        exposed = [_ranking_record(row) for row in ranking]
        metadata["most exposed records"] = dg.MetadataValue.table(exposed)
    for outcome in outcomes:
        numbers.update(_compared_numbers(outcome))
    numbers["seconds"] = result.seconds
    return metadata | _plotted(numbers)


def _estimate_record(estimate: Estimate) -> dg.TableRecord:
    return dg.TableRecord(
        {
            "statistic": estimate.name,
            "value": _rounded(estimate.value),
            "low": _rounded(estimate.low),
            "high": _rounded(estimate.high),
            "rows": estimate.n,
            "subjects": estimate.subjects,
            "note": estimate.note,
        }
    )


def _ranking_record(row: Mapping[str, Any]) -> dg.TableRecord:
    cells = {}
    for key, cell in row.items():
        cells[key] = cell
        if isinstance(cell, float):
            cells[key] = _rounded(cell)
    return dg.TableRecord(cells)


def _compared_numbers(outcome: LimitOutcome) -> dict[str, float]:
    """Return the number compared with a limit, and the limit, under their names in the metadata of
    a score.
    """
    from privacy_assets.report.svg import drawn_number

    name = outcome.limit.key.partition(".")[2]
    return {f"{name}: measured": drawn_number(outcome), f"{name}: limit": outcome.limit.value}


def earlier_numbers(
    instance: dg.DagsterInstance, key: dg.AssetKey, partition: str | None
) -> list[dict[str, float]]:
    """Return the numbers in the metadata of the last runs of a score.

    Args:
        instance: Dagster instance that stores the runs.
        key: Key of the score.
        partition: Partition key. None: the table is unpartitioned.

    Returns:
        Numbers by name, oldest run first.
    """
    partitions = None
    if partition is not None:
        partitions = [partition]
    records_filter = dg.AssetRecordsFilter(asset_key=key, asset_partitions=partitions)
    records = instance.fetch_materializations(records_filter, limit=_MAX_RUNS - 1).records
    runs = []
    for record in reversed(records):
        materialization = record.asset_materialization
        if materialization is not None:
            runs.append(_numbers_of(materialization.metadata))
    return runs


def _numbers_of(metadata: Mapping[str, dg.MetadataValue[Any]]) -> dict[str, float]:
    """Return the entries of stored metadata that are floats."""
    numbers = {}
    for name, entry in metadata.items():
        value = entry.value
        if isinstance(value, float):
            numbers[name] = value
    return numbers


def report_metadata(report: Report) -> dict[str, Any]:
    """Return the metadata of a report.

    An exclamation mark is a limit that holds without evidence.

    In a window of 1,200 pixels the UI truncates tables to 300 pixels, and the paths shown below
    them widen every row. Therefore the measured number with a symbol of its verdict comes first,
    then the limit and its name.

    Args:
        report: The report.

    Returns:
        The verdict, answers, limits (failed ones first), the report as text, scores, and
        counts to plot.
    """
    from privacy_assets.report.words import NOTHING

    outcomes = sorted(
        report.policy_verdict.outcomes, key=lambda outcome: WORST_FIRST.index(outcome.status)
    )
    limits = []
    n_by_status = dict.fromkeys(reversed(WORST_FIRST), 0)
    for outcome in outcomes:
        limits.append(_limit_record(outcome))
        n_by_status[outcome.status] += 1
    scores = {}
    grades = []
    for name, score in report.scores.items():
        scores[name] = score.value
        if report.shows_grades:
            grades.append(f"{name}: {score.grade}")
    metadata: dict[str, Any] = {
        "verdict": verdict_line(report),
        "answers": dg.MetadataValue.table(_answer_records(report)),
        "limits": dg.MetadataValue.table(limits),
        "report": dg.MetadataValue.md(f"```text\n{report.to_text()}\n```"),
        "grades": ", ".join(grades) or NOTHING,
        **_plotted(scores),
    }
    for status, n_limits in n_by_status.items():
        metadata[f"limits: {status}"] = n_limits
    return metadata


def _limit_record(outcome: LimitOutcome) -> dg.TableRecord:
    """Return a row of the table of limits."""
    from privacy_assets.report.svg import drawn_number
    from privacy_assets.report.words import clean, limit_symbol, number

    sign = _SIGNS[outcome.status]
    if outcome.passed and outcome.blind:
        sign = "!"
    limit = outcome.limit
    return dg.TableRecord(
        {
            "measured": f"{sign} {number(drawn_number(outcome))}",
            "limit": f"{limit_symbol(limit)} {clean(limit.key, 60)}",
        }
    )


def _answer_records(report: Report) -> list[dg.TableRecord]:
    """Return the answers of the first page, as rows of a table."""
    records = []
    for answer in report.page().answers:
        if answer["is_displayed"]:
            cells = {"answer": answer["word"], "question": answer["title"]}
            records.append(dg.TableRecord(cells))
    return records


def verdict_line(report: Report) -> str:
    """Return verdict, number of limits with it, and causes, for example ``fail: 3 of 28 limits,
    copied rows``.

    Args:
        report: Report with the verdict.
    """
    status = report.policy_verdict.status
    statuses = [outcome.status for outcome in report.policy_verdict.outcomes]
    reason = f"{statuses.count(status)} of {len(statuses)} limits"
    if report.earlier_failures and status != "fail":
        reason = "these rows failed before"
    parts = [f"{report.verdict}: {reason}"]
    for record in report.advice:
        parts.append(record["cause"])
    return ", ".join(parts)


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

    limit = outcome.limit
    metadata: dict[str, Any] = {
        "status": outcome.status,
        "reason": outcome.reason,
        "limit": limit.value,
        "bound": limit.bound,
        "picture": picture(outcome),
    }
    if limit.source:
        metadata["source of the limit"] = limit.source
    if outcome.estimate is not None:
        metadata |= _estimate_metadata(outcome, outcome.estimate)
    fix = what_to_do(outcome)
    if fix:
        metadata["what to do"] = fix
    if advised is not None:
        on_limit = [record for record in advised if limit.key in record["limits"]]
        return metadata | _advice_metadata(on_limit)
    if not outcome.passed:
        metadata["advice"] = _ASK_REPORT
    return metadata


def _estimate_metadata(outcome: LimitOutcome, estimate: Estimate) -> dict[str, Any]:
    """Return sizes, confidence level and numbers of the statistic that a limit is on."""
    from privacy_assets.report.svg import drawn_number

    numbers = {
        "value": estimate.value,
        "low": estimate.low,
        "high": estimate.high,
        "measured": drawn_number(outcome),
    }
    return {
        "n": f"{estimate.n} rows, {estimate.subjects} subjects; at least"
        f" {outcome.limit.min_subjects} subjects are needed",
        "confidence": f"{estimate.confidence:g}",
        **_plotted(numbers),
    }


def _advice_metadata(advised: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the advice on limits that do not hold, as a table with a row for each action."""
    records = []
    for advice in advised:
        for action in advice["todo"]:
            cells = {
                "cause": advice["cause"],
                "what": action["what"],
                "it costs": action["cost"],
            }
            records.append(dg.TableRecord(cells))
    if not records:
        return {}
    return {"advice": dg.MetadataValue.table(records)}


def picture(outcome: LimitOutcome) -> dg.MetadataValue[Any]:
    """Return Markdown with a plot of the interval and the limit.

    If the Markdown has 1,000 or more characters, return the reason of the outcome as text instead.

    Args:
        outcome: Outcome of the limit.
    """
    from privacy_assets.report.svg import interval_markdown

    markdown = interval_markdown(outcome)
    if len(markdown) >= _MAX_MARKDOWN:
        return dg.MetadataValue.text(outcome.reason)
    return dg.MetadataValue.md(markdown)


def failed_limits_metadata(
    outcomes: Sequence[LimitOutcome], advised: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Return one entry per limit that does not hold, with the measured number, and the advice.

    Args:
        outcomes: Outcomes of the limits that do not hold.
        advised: Advice on all limits of the table.
    """
    from privacy_assets.report.advice import what_to_do

    metadata = _advice_metadata(advised)
    for outcome in outcomes:
        text = f"{outcome.status}: {outcome.reason}. {what_to_do(outcome)}"
        metadata[outcome.limit.key] = dg.MetadataValue.text(text.strip())
    return metadata


def training_metadata(history: Sequence[Mapping[str, float | None]]) -> dict[str, Any]:
    """Return the metadata of a training.

    Args:
        history: Rows of the training curve, with a number or None by column.

    Returns:
        The training curve as plots, its last row as numbers, and at most thirty of its rows as a
        table. Empty if there is no history.
    """
    if not history:
        return {}
    rows = _evenly_spaced(history)
    records = []
    for row in rows:
        cells = {key: _rounded(value) for key, value in row.items()}
        records.append(dg.TableRecord(cells))
    metadata: dict[str, Any] = {"epochs": len(history), "training": dg.MetadataValue.table(records)}
    metadata.update(_training_plots(rows))
    last_row = {f"last {key}": value for key, value in rows[-1].items() if key != "epoch"}
    return metadata | _plotted(last_row)


def _evenly_spaced(history: Sequence[Mapping[str, float | None]]) -> list[dict[str, float]]:
    """Return at most thirty rows of a training curve, with the first and the last, without missing
    numbers.
    """
    last = len(history) - 1
    n_steps = _MAX_TRAINING_ROWS - 1
    positions = {round(i * last / n_steps) for i in range(_MAX_TRAINING_ROWS)}
    rows = []
    for position in sorted(positions):
        row = history[position]
        rows.append({key: value for key, value in row.items() if value is not None})
    return rows


def _training_plots(rows: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Return a plot of each column of a training curve that has at least two numbers."""
    from privacy_assets.report.svg import line_markdown

    plots = {}
    for key in rows[0]:
        if key == "epoch":
            continue
        label = key.replace("_", " ")
        values = [row[key] for row in rows if key in row]
        image = line_markdown(label, list(enumerate(values)))
        if image:
            plots[f"{label} by epoch"] = dg.MetadataValue.md(image)
    return plots


def _plotted(numbers: Mapping[str, float]) -> dict[str, float]:
    """Return the finite numbers, rounded to four significant digits. Signed results are not
    rounded.
    """
    plotted = {}
    for name, number in numbers.items():
        if math.isfinite(number):
            plotted[name] = float(f"{number:.4g}")
    return plotted


def _rounded(number: float) -> str:
    if not math.isfinite(number):
        return "not measurable"
    return decimal(number)


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


def check_name(limit: Limit) -> str:
    """Return the name of the asset check of a limit.

    Args:
        limit: The limit.
    """
    return limit.key.replace(".", "_")


def limit_rule(limit: Limit) -> str:
    """Describe a limit in one sentence.

    Args:
        limit: The limit.
    """
    allowed = f"at least {limit.at_least}"
    if limit.at_most is not None:
        allowed = f"at most {limit.at_most}"
    return f"{limit.statistic} must be {allowed} ({limit.bound} bound)."


def limit_sentence(limit: Limit) -> str:
    """Describe a limit and its source.

    Args:
        limit: The limit.
    """
    source = limit.source[:1].upper() + limit.source[1:]
    return f"{limit_rule(limit)} {source}".strip()


def limit_result(
    asset: dg.AssetKey,
    outcome: LimitOutcome,
    advised: Sequence[Mapping[str, Any]] | None = None,
    earlier: Sequence[Mapping[str, float]] = (),
) -> dg.AssetCheckResult:
    """Return the check result of a limit.

    A limit that holds without evidence gives a warning, which blocks nothing.

    Args:
        asset: Key of the asset under the check.
        outcome: Outcome of the limit.
        advised: As in :func:`limit_metadata`.
        earlier: Numbers of earlier runs, which are plotted with those of this one, oldest first.
    """
    severity = dg.AssetCheckSeverity.ERROR
    if outcome.passed:
        severity = dg.AssetCheckSeverity.WARN
    return dg.AssetCheckResult(
        asset_key=asset,
        check_name=check_name(outcome.limit),
        passed=outcome.passed and not outcome.blind,
        severity=severity,
        # No measured number, because alerts display the description.
        description=f"{_status_words(outcome)}: {limit_rule(outcome.limit)}",
        metadata={**limit_metadata(outcome, advised), **_plot_by_run(outcome, earlier)},
    )


def _status_words(outcome: LimitOutcome) -> str:
    """Return the status of a limit in words."""
    if outcome.by_rule:
        return "by rule"
    if outcome.passed and outcome.blind:
        return "no evidence on this table"
    return outcome.status.replace("_", " ")


def _plot_by_run(outcome: LimitOutcome, earlier: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Return a plot of the measured number and the limit (dashed) by run, because the UI plots each
    number alone.
    """
    from privacy_assets.report.svg import line_markdown

    numbers = _compared_numbers(outcome)
    runs = [*earlier, numbers]
    lines = []
    for name in numbers:
        values = [run.get(name, math.nan) for run in runs]
        lines.append(list(enumerate(values)))
    image = line_markdown("measured number, and limit (dashed), by run", *lines)
    if not image:
        return {}
    return {"measured and limit by run": dg.MetadataValue.md(image)}
