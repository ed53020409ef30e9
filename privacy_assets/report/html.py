"""The HTML forms of a report: a self-contained page and a compact form for notebooks.

Every text that goes into a template is cleaned (no control, bidirectional or zero-width characters) and escaped; only
the SVG of :mod:`privacy_assets.report.plots` is passed through as markup.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from privacy_assets.metrics.registry import METRICS, statistic_specs
from privacy_assets.report.drawings import Drawn, plots_of, shares_svg
from privacy_assets.report.plots import COLOURS, Rows, as_number, interval_svg, limit_words
from privacy_assets.report.text import (
    LABELS,
    action_text,
    clean,
    headline,
    interval,
    judged_text,
    limit_text,
    number,
    own_words,
    sentence,
    utility_text,
)
from privacy_assets.stats.estimates import Estimate, StatisticSpec, plain
from privacy_assets.stats.limits import LimitOutcome
from privacy_assets.stats.results import MetricResult

if TYPE_CHECKING:
    from jinja2 import Environment

    from privacy_assets.report.answers import Answer
    from privacy_assets.report.configuration import Protection
    from privacy_assets.report.report import Report

MOST_ROWS = 60
DIRECTIONS = {
    "higher_is_riskier": "higher is worse",
    "lower_is_riskier": "lower is worse",
    "two_sided": "two-sided",
}
BOUNDS = {
    "upper": "the whole interval must be within it",
    "lower": "broken when the whole interval is beyond it",
    "value": "the value must be within it",
}


@cache
def environment() -> Environment:
    """The template environment: autoescape, no undefined names, every text cleaned before it is escaped.

    One for all pages: it compiles a template once.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    def finalize(value: object) -> object:
        return value if isinstance(value, Markup) else clean(value, 600)

    found = Environment(
        loader=PackageLoader("privacy_assets.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters["number"] = _cell
    found.filters["sentence"] = sentence
    found.filters["action"] = action_text
    return found


def render_page(report: Report) -> str:
    """Return the full page; the same report gives the same bytes."""
    return environment().get_template("report.html.j2").render(_view(report))


def render_notebook(report: Report) -> str:
    """Return a fragment without scripts or style sheets, so that it cannot change the notebook around it."""
    return environment().get_template("notebook.html.j2").render(_view(report))


def _view(report: Report) -> dict[str, Any]:
    return {
        "title": clean(report.title),
        "verdict": report.verdict,
        "label": LABELS[report.verdict],
        "headline": headline(report),
        "notes": report.notes,
        "facts": _facts(report),
        "answers": [_answer_view(answer, report) for answer in report.answers],
        "own_words": own_words(report.judgement.broken),
        "advice": report.advice,
        "configuration": [_protection_view(one, report) for one in report.privacy_configuration],
        "colours": COLOURS,
        "data_privacy_score": report.data_privacy_score,
        "utility": [(name, interval(own), interval(real)) for name, own, real in report.utility],
        "utility_text": utility_text(report),
        "filter": _filter_view(report),
        "sizes": [
            (clean(role), [size.get(key) for key in ("rows", "columns", "subjects")])
            for role, size in report.tables.items()
        ],
        "metadata": [
            ("policy", report.policy.name),
            ("policy digest", report.policy.digest()),
            ("seed", str(report.seed)),
            ("engine", report.engine_version),
        ],
        "details": [
            (name, [pair for pair in flat(getattr(report, name)) if not pair[0].startswith("filter.before.")])
            for name in ("generator", "embedder", "fingerprints", "versions")
        ],
    }


def _facts(report: Report) -> list[tuple[str, str]]:
    """When, what, by which policy and by whom it was signed, as far as anybody signed it."""
    signed, policy = report.signed, f"{report.policy.name} ({report.policy.digest()[:12]})"
    if signed is None:
        unsigned = "nobody: this report was not made by a gate, and releases nothing"
        return [("Policy", policy), ("Signed by", unsigned)]
    release = f"{signed['sha256'][:12]} (the id of its release ends in it; the SHA-256 of the file begins with it)"
    return [
        ("Date", signed["date"]),
        ("Release", release),
        ("Policy", policy),
        ("Signed by", f"the key {signed['key']}"),
        ("Publication attempt", str(report.attempt)),
    ]


def _answer_view(answer: Answer, report: Report) -> dict[str, Any]:
    """A question as page one and its section show it; the first plot of its metrics is its chart."""
    specs = statistic_specs()
    metrics = [_metric_view(name, report.results[name]) for name in answer.metrics]
    chart = next((m["plots"].pop(0) for m in metrics if m["plots"]), None)
    strongest = answer.strongest
    return {
        **{name: getattr(answer, name) for name in ("title", "word", "status", "smallest_leak", "main", "shown")},
        "not_tested": [clean(name, 80) for name in answer.not_tested],
        "strongest": None if strongest is None else _limit_view(strongest, specs),
        "limits": [_limit_view(outcome, specs) for outcome in answer.outcomes],
        "estimates": [
            _statistic_view(name, f, specs) for name in answer.metrics for f in report.results[name].estimates
        ],
        "chart": chart,
        "metrics": metrics,
    }


def _limit_view(outcome: LimitOutcome, specs: Mapping[str, StatisticSpec]) -> dict[str, Any]:
    from markupsafe import Markup

    limit, estimate = outcome.limit, outcome.estimate
    return {
        "statistic": clean(limit.statistic),
        "meaning": specs[limit.statistic].meaning if limit.statistic in specs else "",
        "bound": BOUNDS[limit.bound],
        "limit": limit_text(limit),
        "judged": judged_text(outcome),
        "interval": interval(estimate),
        "status": outcome.status,
        "label": LABELS[outcome.status],
        "reason": clean(sentence(outcome.reason), 300),
        "note": estimate.note if estimate is not None and estimate.note not in outcome.reason else "",
        "source": limit.source,
        "smallest_n": limit.smallest_n,
        "words": limit_words(outcome),
        "svg": Markup(interval_svg(outcome, width=260)),  # noqa: S704 (numbers and fixed words only)
    }


def _statistic_view(metric: str, estimate: Estimate, specs: Mapping[str, StatisticSpec]) -> dict[str, Any]:
    name = f"{metric}.{estimate.name}"
    return {
        "name": clean(name),
        "value": number(estimate.value),
        "interval": f"{number(estimate.low)} to {number(estimate.high)}" if estimate.measurable else "not measured",
        "confidence": "" if math.isnan(estimate.confidence) else f"{100 * estimate.confidence:.4g} %",
        "null": number(estimate.null),
        "n": estimate.n,
        "subjects": estimate.subjects,
        "direction": DIRECTIONS[estimate.direction],
        "meaning": specs[name].meaning if name in specs else "",
        "note": estimate.note,
    }


def _metric_view(name: str, result: MetricResult) -> dict[str, Any]:
    tables = {table: [row for row in plain(rows) if isinstance(row, dict)] for table, rows in result.tables.items()}
    drawn = dict.fromkeys(plot.table for plot in METRICS[name].plots) if name in METRICS else {}
    return {
        "name": clean(name),
        "summary": METRICS[name].summary if name in METRICS else "",
        "seconds": number(result.seconds),
        "plots": [
            _plot_view(plot) for table in drawn for plot in plots_of(name, table, tables.get(table, [])) if plot[1]
        ],
        "tables": [_table_view(table, rows) for table, rows in tables.items() if rows],
        "settings": flat(result.settings),
    }


def _plot_view(plot: Drawn) -> dict[str, Any]:
    from markupsafe import Markup

    return {"caption": plot[0], "svg": Markup(plot[1])}  # noqa: S704 (every text in it is cleaned and escaped)


def _table_view(name: str, rows: Rows) -> dict[str, Any]:
    columns = list(dict.fromkeys(column for row in rows for column in row))
    return {
        "name": clean(name).replace("_", " "),
        "columns": columns,
        "rows": [[row.get(column) for column in columns] for row in rows[:MOST_ROWS]],
        "total": len(rows),
    }


def _filter_view(report: Report) -> dict[str, Any] | None:
    """What the filters left out, and statistics before and after them as bars; None without a filter."""
    found = (report.generator or {}).get("filter")
    if not isinstance(found, Mapping):
        return None
    plot = _plot_view(before_and_after(found.get("before"), report.results))
    names = [clean(name) for name in found.get("filters") or {}]
    return {
        **{key: found.get(key) for key in ("drawn", "dropped")},
        "names": names,
        "plot": plot if plot["svg"] else None,
    }


def _protection_view(protection: Protection, report: Report) -> dict[str, Any]:
    """A row of the privacy configuration, beside the statistics that were measured of what it protects from."""
    found = {name: report.estimate(name) for name in protection.statistics}
    return {
        **{key: getattr(protection, key) for key in ("title", "state", "how", "covers")},
        "estimates": [(clean(name), interval(estimate)) for name, estimate in found.items() if estimate is not None],
    }


def before_and_after(before: Any, after: Mapping[str, MetricResult]) -> tuple[str, str]:
    """Bars of statistics before and after a filter, with their caption; empty without any.

    ``before`` are results by metric, in JSON. Only what a metric measured alike is set side by side: with the same
    settings, seed and version.
    """
    rows, caption = [], "Before and after the filter."
    for name, metric in METRICS.items():
        then, now = before.get(name) if isinstance(before, Mapping) else None, after.get(name)
        if metric.compared is None or not isinstance(then, Mapping) or now is None:
            continue
        sides = [then, now.to_json()]
        if any(then.get(key) != sides[1][key] for key in ("settings", "seed", "engine_version")):
            continue
        one = metric.compared
        values = [as_number(side["estimates"].get(one.statistic, {}).get("value")) for side in sides]
        if all(map(math.isfinite, values)):
            rows.append({"statistic": one.words, "before": values[0], "after": values[1]})
            caption += f" {one.meaning}"
    return caption, shares_svg(rows, "statistic", {"before": "before the filter", "after": "after"})


def flat(values: Mapping[str, Any] | None, prefix: str = "") -> list[tuple[str, str]]:
    """Return nested settings as (dotted name, text) pairs."""
    pairs: list[tuple[str, str]] = []
    for key, value in (plain(values) or {}).items():
        if isinstance(value, dict):
            pairs += flat(value, f"{prefix}{key}.")
        else:
            pairs.append((clean(f"{prefix}{key}"), _cell(value)))
    return pairs


def _cell(value: Any) -> str:
    """Return one value of a table or setting for reading."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Sequence):
        return ", ".join(_cell(item) for item in value) or number(None)
    return number(value) if value is None or isinstance(value, (int, float)) else clean(value)
