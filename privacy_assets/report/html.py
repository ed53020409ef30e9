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
from privacy_assets.report.plots import COLOURS, Rows, as_number, interval_svg
from privacy_assets.report.text import (
    LABELS,
    advice,
    clean,
    headline,
    interval,
    limit_text,
    number,
    sentence,
    utility_text,
)
from privacy_assets.stats.estimates import Estimate, StatisticSpec, plain
from privacy_assets.stats.limits import LimitOutcome
from privacy_assets.stats.results import MetricResult

if TYPE_CHECKING:
    from jinja2 import Environment

    from privacy_assets.report.configuration import Protection
    from privacy_assets.report.report import Report

MOST_ROWS = 60
DIRECTIONS = {
    "higher_is_riskier": "higher is worse",
    "lower_is_riskier": "lower is worse",
    "two_sided": "two-sided",
}
BOUNDS = {
    "upper": "the whole interval must hold it",
    "lower": "broken when the whole interval is beyond it",
    "value": "the value must hold it",
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
    return found


def render_page(report: Report) -> str:
    """Return the full page; the same report gives the same bytes."""
    return environment().get_template("report.html.j2").render(_view(report))


def render_notebook(report: Report) -> str:
    """Return a fragment without scripts or style sheets, so that it cannot change the notebook around it."""
    return environment().get_template("notebook.html.j2").render(_view(report))


def _view(report: Report) -> dict[str, Any]:
    specs = statistic_specs()
    return {
        "title": clean(report.title),
        "verdict": report.verdict,
        "label": LABELS[report.verdict],
        "headline": headline(report),
        "broken": _broken(report),
        "recourses": _recourses(report),
        "configuration": [_protection_view(one, report) for one in report.privacy_configuration],
        "limits": [_limit_view(outcome) for outcome in report.judgement.outcomes],
        "colours": COLOURS,
        "estimates": [
            _statistic_view(name, f, specs) for name, result in report.results.items() for f in result.estimates
        ],
        "metrics": [_metric_view(name, result) for name, result in report.results.items()],
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


def _broken(report: Report) -> list[dict[str, Any]]:
    """Sections of limits that did not pass; limits with the same advice stand together."""
    headings = {"fail": "Broken limits", "not_assessable": "Limits that could not be judged"}
    sections = []
    for status, heading in headings.items():
        groups = advice(outcome for outcome in report.judgement.broken if outcome.status == status)
        shown = [{"todo": todo, "limits": [_limit_view(x) for x in outcomes]} for todo, outcomes in groups.items()]
        sections.append({"status": status, "heading": heading, "groups": shown})
    return [section for section in sections if section["groups"]]


def _recourses(report: Report) -> list[dict[str, Any]]:
    """What can be done, each beside the statistics it is for; none where all of several limits are meant."""
    broken = report.judgement.broken
    every, names = len(broken), {x.limit.key: clean(x.limit.statistic, 60) for x in broken}
    return [
        {
            **x,
            "limits": [] if len(x["limits"]) == every > 1 else list(dict.fromkeys(names[k] for k in x["limits"])),
        }
        for x in report.recourses
    ]


def _limit_view(outcome: LimitOutcome) -> dict[str, Any]:
    from markupsafe import Markup

    limit = outcome.limit
    return {
        "statistic": clean(limit.statistic),
        "key": clean(limit.key),
        "bound": BOUNDS[limit.bound],
        "limit": limit_text(limit, outcome.estimate),
        "interval": interval(outcome.estimate),
        "status": outcome.status,
        "label": LABELS[outcome.status],
        "reason": clean(sentence(outcome.reason), 300),
        "note": outcome.estimate.note
        if outcome.estimate is not None and outcome.estimate.note != outcome.reason
        else "",
        "source": limit.source,
        "smallest_n": limit.smallest_n,
        "svg": Markup(interval_svg(outcome, width=360, height=52)),  # noqa: S704 (numbers and fixed words only)
        "small_svg": Markup(interval_svg(outcome, width=260)),  # noqa: S704
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
    return {
        "name": clean(name),
        "summary": METRICS[name].summary if name in METRICS else "",
        "seconds": number(result.seconds),
        "plots": [
            _plot_view(plot) for table, rows in tables.items() for plot in plots_of(name, table, rows) if plot[1]
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
