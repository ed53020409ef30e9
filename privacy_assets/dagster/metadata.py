"""Metadata of assets and checks: sizes, columns, lineage, statistics. Never a private value."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import dagster as dg
import pandas as pd

from privacy_assets.pipeline.private_table import PrivateTable
from privacy_assets.stats.limits import LimitOutcome, Verdict
from privacy_assets.stats.results import MetricResult
from privacy_assets.tables.schema import TableSchema

if TYPE_CHECKING:
    from privacy_assets.report.report import Report

PACKAGE = Path(__file__).parents[1]
_BROKEN_FIRST: tuple[Verdict, ...] = ("fail", "not_assessable", "pass")
_SIGNS: dict[Verdict, str] = {"pass": "✓", "fail": "✗", "not_assessable": "?"}
_ASK_REPORT = (
    "all limits of the table together tell the cause: see privacy_report, or the check policy_holds on attestation"
)
_SMALL = 1000  # the UI renders longer markdown only behind a dialog


def column_schema(schema: TableSchema, subject: str | None = None) -> dg.TableSchema:
    """Columns with type, kind and nullability."""
    text, required = "Tells people apart; the generator never sees it.", dg.TableColumnConstraints(nullable=False)
    subjects = [dg.TableColumn(subject, "text", text, constraints=required)] if subject else []
    columns = [
        dg.TableColumn(
            column.name, column.dtype, column.kind, constraints=dg.TableColumnConstraints(nullable=column.nullable)
        )
        for column in schema.columns
    ]
    return dg.TableSchema([*subjects, *columns])


def lineage(names: list[str], *upstream: dg.AssetKey) -> dg.TableColumnLineage:
    """Every column comes from the columns of the same name."""
    return dg.TableColumnLineage(
        {name: [dg.TableColumnDep(asset_key=key, column_name=name) for key in upstream] for name in names}
    )


def table_metadata(table: PrivateTable, fingerprint: str, upstream: dg.AssetKey | None = None) -> dict[str, Any]:
    """Rows, subjects, columns, column lineage and keyed fingerprint of a private table."""
    schema, subject = table.schema, None if table.subject is None else table.subject.name
    metadata: dict[str, Any] = {
        "dagster/row_count": len(table),
        "dagster/column_schema": column_schema(schema, subject),
        "subjects": len(table) if table.subject is None else len(table.subject.distinct()),
        "keyed_fingerprint": fingerprint,
    }
    if upstream is not None:
        metadata["dagster/column_lineage"] = lineage([*([subject] if subject else []), *schema.names], upstream)
    return metadata


def synthetic_metadata(frame: pd.DataFrame, sha256: str, *upstream: dg.AssetKey) -> dict[str, Any]:
    """Rows, hash, columns (as they are in the file) and lineage of a synthetic or published table."""
    columns = [
        dg.TableColumn(
            name, str(frame[name].dtype), constraints=dg.TableColumnConstraints(nullable=bool(frame[name].isna().any()))
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
    """A picture a limit, intervals, ranked row numbers, and numbers that the UI plots over time.

    The numbers are each statistic, and of each limit what is judged and the limit itself.
    """
    metadata: dict[str, Any] = {f"limit: {outcome.limit.key}": picture(outcome) for outcome in outcomes}
    rows: list[dict[str, str | int]] = [
        {"statistic": f.name, "value": _shown(f.value), "low": _shown(f.low), "high": _shown(f.high), "rows": f.n,
         "subjects": f.subjects, "note": f.note}
        for f in result.estimates
    ]  # fmt: skip
    if rows:
        metadata["statistics"] = dg.MetadataValue.table([dg.TableRecord(row) for row in rows])
    if ranking := result.tables.get("ranking"):
        records = [dg.TableRecord({key: _cell(cell) for key, cell in row.items()}) for row in ranking]
        metadata["most exposed records"] = dg.MetadataValue.table(records)
    numbers = {f.name: f.value for f in result.estimates}
    for outcome in outcomes:
        name = outcome.limit.key.partition(".")[2]
        numbers |= {f"{name}: judged": outcome.measured, f"{name}: limit": outcome.limit.value}
    return metadata | _plotted({**numbers, "seconds": result.seconds})


def report_metadata(report: Report) -> dict[str, Any]:
    """The verdict in a line, the limits with broken ones first, the whole report as text, and counts to plot.

    At 1,200 pixels the UI cuts what is wider than 300, and the paths that it shows below widen every row: so what is
    judged comes first, with a sign for its verdict, then the limit, and the end of its name last.
    """
    from privacy_assets.report.text import LABELS, clean, limit_text, number

    outcomes = sorted(report.judgement.outcomes, key=lambda outcome: _BROKEN_FIRST.index(outcome.status))
    records = [
        dg.TableRecord(
            {
                "judged": f"{_SIGNS[x.status]} {number(x.measured)}",
                "limit": f"{limit_text(x.limit)} {clean(x.limit.key, 60)}",
            }
        )
        for x in outcomes
    ]
    return {
        "verdict": verdict_line(report),
        "limits": dg.MetadataValue.table(records),
        "report": dg.MetadataValue.md(f"```text\n{report.to_text()}\n```"),
        **{f"limits: {LABELS[one]}": sum(x.status == one for x in outcomes) for one in reversed(_BROKEN_FIRST)},
    }


def verdict_line(report: Report) -> str:
    """Verdict, how many limits have it, and causes: ``fail: 3 of 28 limits, copied rows``."""
    from privacy_assets.report.text import LABELS

    outcomes, verdict = report.judgement.outcomes, report.judgement.verdict
    told = f"{sum(x.status == verdict for x in outcomes)} of {len(outcomes)} limits"
    if report.remembered and verdict != "fail":
        told = "these rows failed before"
    return ", ".join([f"{LABELS[report.verdict]}: {told}", *(one["cause"] for one in report.advice)])


def limit_metadata(outcome: LimitOutcome, advised: Sequence[Mapping[str, Any]] | None = None) -> dict[str, Any]:
    """What was measured against one limit, a small picture of it and, when it does not hold, what can be done.

    ``advised`` is the advice on all limits of the table: only these together tell the cause, since copied rows break
    the limits of nearly every metric. None where other metrics are not known yet: then the report is pointed at.
    """
    from privacy_assets.report.text import what_to_do

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
            f"{estimate.n} rows, {estimate.subjects} subjects; at least {limit.smallest_n} subjects are needed"
        )
        metadata["confidence"] = f"{estimate.confidence:g}"
        numbers = {"value": estimate.value, "low": estimate.low, "high": estimate.high, "measured": outcome.measured}
        metadata |= _plotted(numbers)
    if what_to_do(outcome):
        metadata["what to do"] = what_to_do(outcome)
    if advised is not None:
        return metadata | _recourses([found for found in advised if limit.key in found["limits"]])
    return metadata if outcome.passed else metadata | {"advice": _ASK_REPORT}


def _recourses(advised: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What can be done about limits that do not hold, as a table."""
    records = [
        dg.TableRecord({"cause": found["cause"], "what": todo["what"], "it costs": todo["cost"]})
        for found in advised
        for todo in found["todo"]
    ]
    return {"advice": dg.MetadataValue.table(records)} if records else {}


def picture(outcome: LimitOutcome) -> dg.MetadataValue[Any]:
    """Interval and limit as a small picture; the reason in words when it is too long for the UI."""
    from privacy_assets.report.plots import interval_markdown

    markdown = interval_markdown(outcome)
    return dg.MetadataValue.md(markdown) if len(markdown) < _SMALL else dg.MetadataValue.text(outcome.reason)


def broken_metadata(outcomes: Sequence[LimitOutcome], advised: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """One entry for each limit that does not hold, with what was measured; and what can be done, as ``advised``."""
    from privacy_assets.report.text import what_to_do

    texts = {x.limit.key: f"{x.status}: {x.reason}. {what_to_do(x)}".strip() for x in outcomes}
    return {**_recourses(advised), **{key: dg.MetadataValue.text(text) for key, text in texts.items()}}


def training_metadata(history: Sequence[Mapping[str, float | None]]) -> dict[str, Any]:
    """The training curve as a picture, its last row as numbers, and at most thirty rows of it as a table."""
    if not history:
        return {}
    known = [{key: value for key, value in row.items() if value is not None} for row in history]
    rows = [known[i] for i in sorted({round(i * (len(known) - 1) / 29) for i in range(30)})]
    records = [dg.TableRecord({key: _shown(value) for key, value in row.items()}) for row in rows]
    metadata: dict[str, Any] = {"epochs": len(history), "training": dg.MetadataValue.table(records)}
    for key in [key for key in rows[0] if key != "epoch"]:
        label = key.replace("_", " ")
        if image := line_picture(label, list(enumerate(row[key] for row in rows if key in row))):
            metadata[f"{label} by epoch"] = image
    return metadata | _plotted({f"last {key}": value for key, value in rows[-1].items() if key != "epoch"})


def line_picture(alt: str, points: Sequence[tuple[float, float]]) -> dg.MetadataValue[Any] | None:
    """A line through ``points`` (x, y) as a small picture, 240 x 60 pixels; None for fewer than two finite ones."""
    finite = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    if len(finite) < 2:
        return None
    (left, width), (low, height) = (_span(values) for values in zip(*finite, strict=True))
    path = " ".join(f"{5 + 230 * (x - left) / width:.0f},{55 - 50 * (y - low) / height:.0f}" for x, y in finite)
    head = "<svg xmlns='http://www.w3.org/2000/svg' width='240' height='60'>"
    line = f"<polyline fill='none' stroke='steelblue' stroke-width='2' points='{path}'/>"
    return dg.MetadataValue.md(f"![{alt}](data:image/svg+xml,{quote(f'{head}{line}</svg>', safe='=/:;,.')})")


def _span(values: Sequence[float]) -> tuple[float, float]:
    """The least value, and how far the largest lies above it; 1 where all are equal."""
    return min(values), (max(values) - min(values)) or 1.0


def _plotted(numbers: Mapping[str, float]) -> dict[str, float]:
    """Those that are finite, to four significant digits; what was signed keeps all."""
    return {name: float(f"{number:.4g}") for name, number in numbers.items() if math.isfinite(number)}


def _shown(number: float) -> str:
    return f"{number:.4g}" if math.isfinite(number) else "not measurable"


def _cell(value: float | str) -> int | str:
    return _shown(value) if isinstance(value, float) else value


def caller_reference() -> Mapping[str, Any]:
    """Code reference to the line outside this package that built the table."""
    frame = sys._getframe(1)
    while frame.f_back is not None and PACKAGE in Path(frame.f_code.co_filename).parents:
        frame = frame.f_back
    path = frame.f_code.co_filename
    if not Path(path).is_file():
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)
        reference = dg.LocalFileCodeReference(
            file_path=path, line_number=frame.f_lineno, label="definition of the table"
        )
        return {"dagster/code_references": dg.CodeReferencesMetadataValue(code_references=[reference])}
