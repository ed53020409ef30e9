"""Content of a report as plain values, which every form of it shows.

Private text is cleaned here (:func:`.words.clean`). Only SVG of :mod:`privacy_assets.report.svg` is
markup.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from privacy_assets.metrics.base import GradePlot, LevelPlot
from privacy_assets.metrics.policies import load_policy, policy_digest
from privacy_assets.metrics.registry import METRICS, statistic_spec
from privacy_assets.policy import SHIPPED, LimitOutcome, Policy, Verdict, tally
from privacy_assets.report.advice import Protection
from privacy_assets.report.answers import SMALL_LEAK, Answer
from privacy_assets.report.svg import Rows, as_number, draw, interval_svg, limit_words, shares_svg
from privacy_assets.report.words import (
    NO_EVIDENCE,
    clean,
    cleaned,
    interval,
    limit_interval,
    limit_symbol,
    measured_text,
    number,
    percent,
    sentence,
)
from privacy_assets.stats.estimates import Estimate, MetricResult, to_jsonable

MOST_ROWS = 60
DIRECTIONS = {
    "higher_is_riskier": "Higher is worse.",
    "lower_is_riskier": "Lower is worse.",
    "two_sided": "Two-sided.",
}
BOUNDS = {
    "conservative": "The whole interval must be within it.",
    "proven": "The limit fails only if the whole interval is beyond it.",
    "value": "The value must be within it.",
}
_UNLIMITED = "the default policy limits none of these statistics"
ON_COPY = {
    True: "It fails for a verbatim copy of train.",
    False: "It holds even for a verbatim copy of train.",
    None: "Not applicable to a copy of train.",
}
_SCOPE = (
    "The verdict covers this table, the people of these tables and the attacks that ran. It"
    " does not cover stronger"
    " attackers, groups too rare to occur in these tables, or what several releases disclose"
    " together, unless earlier"
    " releases were given."
)
_DECIDE = (
    "Decide whether leaks that are too small to be found are acceptable for the people in the"
    " training data, with these"
    " recipients."
)
_PUBLISH = (
    "A pipeline (privacy-assets run, Dagster or Airflow) publishes tables that pass, with a"
    " signed report."
)
_GRADES = ("grade", "levels")  # tables and columns with Gretel's words of grade
_LONGEST_NOTE = 3_000  # characters: a list of 20 columns
# Differences from real rows, in a similarity or an area under the curve.
_CLOSE = 0.02
_FAR_WORSE = 0.1
_MOST_LOST = 3  # columns, and pairs of columns, named on the first page
_ROLES = {
    "train": "training data",
    "holdout": "held-out data (other real people, for comparison)",
    "reference": "further data (other real people)",
    "synthetic": "synthetic",
}
Entry = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Page:
    """Content of a report.

    Attributes:
        title: Title.
        verdict: "pass", "fail" or "undecided".
        label: Verdict for readers.
        headline: Reason of the verdict.
        summary: The headline, and the meaning of the first cause.
        notes: Notes on how the tables were read.
        facts: Pairs: file, tables, generator, date, release, policy and signing key.
        doubts: Sentences on what the verdict does not cover.
        answers: Questions, see :func:`answer_entry`.
        limits: Limits in the order of the policy, see :func:`limit_entry`.
        limit_advice: Keys of limits by their own advice.
        advice: Advice by cause: "cause", "means", "limits" (keys), "explains" and "todo"
            (sentences).
        next_step: What to decide if the table passes, or "".
        configuration: Protections, see :func:`protection_entry`.
        scores: Text, grade and meaning of the scores that metrics give, by name.
        utility: Triples: statistic, value and interval, value of real rows.
        useful: Word and text of the answer to "Is it useful?". It does not affect the verdict.
        utility_text: The statistics of utility in one sentence without the interval. Empty: not
            measured.
        filter: Rows dropped by filters, see :func:`filter_entry`. None: no filter.
        sizes: Pairs: table, and its numbers of rows, columns and subjects.
        settings: Pairs: policy, its digest, seed and package version.
        details: Pairs: name of a group, and its pairs.
    """

    title: str
    verdict: str
    label: str
    headline: str
    summary: str
    notes: Sequence[str]
    facts: Sequence[tuple[str, str]]
    doubts: Sequence[str]
    answers: Sequence[Entry]
    limits: Sequence[Entry]
    limit_advice: Mapping[str, Sequence[str]]
    advice: Sequence[Entry]
    next_step: str
    configuration: Sequence[Entry]
    scores: Mapping[str, tuple[str, str, str]]
    utility: Sequence[tuple[str, str, str]]
    useful: tuple[str, str]
    utility_text: str
    filter: Entry | None
    sizes: Sequence[tuple[str, Sequence[str]]]
    settings: Sequence[tuple[str, str]]
    details: Sequence[tuple[str, Sequence[tuple[str, str]]]]


def headline(verdict: Verdict, policy: Policy | None, earlier_failures: Sequence[str] = ()) -> str:
    """Return a sentence with the reason of the verdict.

    Args:
        verdict: Verdict.
        policy: Policy. None: no limit applies.
        earlier_failures: Limits that failed for the same rows in an earlier evaluation.
    """
    if policy is None:
        return f"No limit applies: {_UNLIMITED}. Fix: pass a policy with limits on them."
    outcomes = verdict.outcomes
    counts = tally(outcomes)
    if verdict.status == "fail":
        return f"{sentence(counts)} This table must not be published."
    if earlier_failures:
        return (
            "These rows failed before, and rerunning with another seed or split cannot change that"
            f" ({clean('; '.join(earlier_failures), 400)}). Create a new synthetic table."
        )
    if verdict.status == "undecided":
        return (
            f"No limit fails, but {counts}. Until all are decided, this table must not be"
            " published."
        )
    if policy.part_of is not None:
        return (
            f"{sentence(counts)[:-1]}. {_part_of(policy)}, so evidence that the policy requires"
            " is missing."
        )
    title = clean(policy.title, 90)
    has_evidence = any(not outcome.by_rule and not outcome.blind for outcome in outcomes)
    reason = "The evidence" if has_evidence else "The threshold rule"
    return f"{sentence(counts)} {reason} supports publishing this table under the policy “{title}”."


def _part_of(policy: Policy) -> str:
    """Return how much of its shipped policy a part evaluates."""
    shipped = load_policy(policy.part_of or "")
    n_shipped = len(shipped.limits)
    n_limits = len(_keys_of_limits(policy) & _keys_of_limits(shipped))
    if n_limits == 0:
        return f"None of the {n_shipped} limits of the policy “{policy.part_of}” was evaluated"
    if n_limits == n_shipped:
        return f"Policy “{policy.part_of}” was evaluated without an embedder"
    return f"These are {n_limits} of {n_shipped} limits of the policy “{policy.part_of}”"


def _keys_of_limits(policy: Policy) -> set[str]:
    return {limit.key for limit in policy.limits}


def _listing(names: Sequence[str], most: int = 4) -> str:
    text = ", ".join(names[:most])
    if len(names) > most:
        text += f" and {len(names) - most} more"
    return text


def doubts(
    answered: Sequence[Answer], outcomes: Sequence[LimitOutcome], metrics: Collection[str]
) -> list[str]:
    """Return sentences on what the verdict does not cover: attacks that were not run, limits
    without evidence, scope.

    Args:
        answered: Answers.
        outcomes: Outcomes of all limits.
        metrics: Names of the metrics that ran.
    """
    not_tested: dict[str, None] = {}  # in order, without repetitions
    has_ranges = False
    for answer in answered:
        if not answer.main:
            continue
        not_tested.update(dict.fromkeys(answer.not_tested))
        if re.search(r" with [\d.]+ % confidence", answer.statement):
            has_ranges = True
    limited = {outcome.limit.statistic for outcome in outcomes}
    not_run = []
    n_statistics = 0
    for name in not_tested:
        if "." not in name:
            not_run.append(name)
        elif name not in limited:
            n_statistics += 1
    sentences = []
    if has_ranges:
        sentences.append("Each range has the confidence that its limit requires.")
    sentences += _not_run(not_run, metrics)
    sentences += _not_computed(n_statistics)
    sentences += _no_evidence(answered)
    sentences.append(_SCOPE)
    return sentences


def _not_run(not_run: Sequence[str], metrics: Iterable[str]) -> Iterator[str]:
    """Yield sentences on attacks that did not run."""
    if not_run:
        titles = [clean(name, 60).replace("_", " ") for name in not_run]
        yield f"Attacks that did not run: {_listing(titles)}."
    if not any(name in METRICS and METRICS[name].attacks_generator for name in metrics):
        yield "Only the table was attacked. Attacks on the generator itself did not run."


def _not_computed(n_statistics: int) -> Iterator[str]:
    """Yield a sentence on statistics without a limit that have no value."""
    why = "The part for the data team states why."
    if n_statistics == 1:
        yield f"1 statistic that the verdict does not use could not be computed. {why}"
    if n_statistics > 1:
        yield (
            f"{n_statistics} statistics that the verdict does not use could not be computed. {why}"
        )


def _no_evidence(answered: Iterable[Answer]) -> Iterator[str]:
    """Yield a sentence on the limits of each question that hold without evidence."""
    for answer in answered:
        n_blind = sum(outcome.passed and outcome.blind for outcome in answer.outcomes)
        if n_blind == 0:
            continue
        subject = f"{n_blind} limits give"
        pronoun = "they"
        if n_blind == 1:
            subject = "1 limit gives"
            pronoun = "it"
        text = f"{subject} no evidence here, because {pronoun} would not have found small leaks"
        if answer.main and answer.status == "pass":
            yield f"{text}. Other limits answer the question: {answer.title}"
        else:
            yield f"{text}: {answer.title}"


def file_facts(origin: Mapping[str, str], fingerprints: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the file of the synthetic table with its digest, or a digest of its content.

    Args:
        origin: Facts on an evaluation outside of a pipeline, see :class:`.Report`.
        fingerprints: Fingerprints by role of the table.
    """
    if "file" in origin:
        file_name = clean(origin["file"])
        digest = origin.get("sha256", "")
        if digest:
            file_name += f" (SHA-256 {digest[:16]})"
        return [("File", file_name)]
    fingerprint = fingerprints.get("synthetic", "")
    if not fingerprint:
        return []
    return [("Content", f"{clean(fingerprint)[:16]} (start of the checksum of the rows)")]


def origin_facts(origin: Mapping[str, str], version: str) -> list[tuple[str, str]]:
    """Return date, user and version of an evaluation.

    Args:
        origin: Facts on an evaluation outside of a pipeline, see :class:`.Report`.
        version: Version of this package.
    """
    text = f"privacy-assets {clean(version)}"
    if "date" in origin:
        text = f"{origin['date']}, {text}"
    if origin.get("by"):
        text += f", under the computer account {clean(origin['by'])}"
    return [("Evaluated", text)]


def signing_facts(
    policy: Policy | None, signed: Mapping[str, str] | None, attempt: int
) -> list[tuple[str, str]]:
    """Return date, release, policy and signing key.

    Args:
        policy: Policy. None: no limit applies.
        signed: "date", "key" and "sha256" of a signature. None: not signed.
        attempt: Number of the publication attempt.
    """
    title = f"none: {_UNLIMITED}"
    if policy is not None:
        of_package = " of privacy-assets" if policy.name in SHIPPED else ""
        title = f"“{policy.title}”{of_package} (checksum {policy_digest(policy)[:12]})"
    if signed is None:
        unsigned = (
            "none: this evaluation published nothing, and a published table has its own signed"
            " report"
        )
        return [("Policy", title), ("Signature", unsigned)]
    release = f"{signed['sha256'][:12]} (end of the release id, and start of the file's SHA-256)"
    return [
        ("Date", signed["date"]),
        ("Release", release),
        ("Policy", title),
        ("Signed by", f"the key {signed['key']}"),
        ("Publication attempt", str(attempt)),
    ]


def next_step(verdict: str, *, is_signed: bool) -> str:
    """Return what to decide if the table passes, or "".

    Args:
        verdict: Verdict.
        is_signed: Whether a pipeline evaluated the table.
    """
    if verdict != "pass":
        return ""
    return _DECIDE if is_signed else f"{_DECIDE} {_PUBLISH}"


def limit_entry(outcome: LimitOutcome) -> Entry:
    """Return a limit: names, bound, compared value, interval, status, reason, requirements and
    drawing.
    """
    limit = outcome.limit
    estimate = outcome.estimate
    note = ""
    if estimate is not None and estimate.note not in outcome.reason:
        note = sentence(estimate.note)
    unit = "person" if limit.min_subjects == 1 else "people"
    return {
        "key": clean(limit.key, 60),
        "statistic": clean(limit.statistic),
        "meaning": _meaning(limit.statistic),
        "bound": BOUNDS[limit.bound],
        "limit": limit_symbol(limit),
        "measured": measured_text(outcome),
        "interval": limit_interval(outcome),
        "status": outcome.status,
        "label": _label(outcome),
        "on_copy": ON_COPY[outcome.can_fail],
        "reason": clean(outcome.reason, 300),
        "note": note,
        "source": sentence(limit.source),
        "min_subjects": f"{number(limit.min_subjects)} {unit}",
        "words": limit_words(outcome),
        "svg": interval_svg(outcome, width=260),
    }


def _meaning(statistic: str) -> str:
    """Return the meaning of a statistic as a sentence, or "" if it is not known."""
    spec = statistic_spec(statistic)
    if spec is None:
        return ""
    return sentence(spec.meaning)


def _label(outcome: LimitOutcome) -> str:
    if outcome.by_rule:
        return "by rule"
    if outcome.passed and outcome.blind:
        return NO_EVIDENCE
    return outcome.status


def answer_entry(
    answer: Answer, results: Mapping[str, MetricResult], limits: Mapping[str, Entry]
) -> Entry:
    """Return a question with its answer, limits, statistics, first chart, and further results by
    metric.

    Args:
        answer: Answer.
        results: Results by metric.
        limits: Entries of all limits by key.
    """
    metrics = [_metric_entry(name, results[name]) for name in answer.metrics]
    strongest = None
    deciding_metric = None
    if answer.strongest is not None:
        strongest = limits[answer.strongest.limit.key]
        deciding_metric = answer.strongest.limit.metric
    return {
        "title": answer.title,
        "word": answer.word,
        "status": answer.status,
        "main": answer.main,
        "is_displayed": answer.is_displayed,
        "tone": "small_leak" if answer.word == SMALL_LEAK else answer.status,
        "anchor": re.sub("[^a-z]+", "-", answer.title.lower()).strip("-"),
        "strongest": strongest,
        "statement": sentence(clean(answer.statement, 600)),
        "not_tested": cleaned(answer.not_tested, 80),
        "limits": [limits[outcome.limit.key] for outcome in answer.outcomes],
        "estimates": _estimate_entries(answer.estimates, results),
        "chart": _take_chart(metrics, deciding_metric),
        "metrics": metrics,
    }


def _estimate_entries(names: Iterable[str], results: Mapping[str, MetricResult]) -> list[Entry]:
    entries = []
    for name in names:
        metric, _, statistic = name.partition(".")
        result = results.get(metric)
        # A name from a file can contain periods.
        if result is not None:
            entries.append(_estimate_entry(metric, result.estimate(statistic)))
    return entries


def _take_chart(metrics: Iterable[dict[str, Any]], deciding_metric: str | None) -> Entry | None:
    """Remove and return the chart of the statistic that decided, or the first one if there is none.

    Return None if there is no such chart.
    """
    for entry in metrics:
        if entry["plots"] and deciding_metric in (None, entry["name"]):
            chart: Entry = entry["plots"].pop(0)
            return chart
    return None


def without_grades(result: MetricResult) -> MetricResult:
    """Return a result without words of grade, which could be read as a verdict."""
    metric = METRICS.get(result.metric)
    if metric is None or not any(isinstance(plot, GradePlot | LevelPlot) for plot in metric.plots):
        return result
    tables = {}
    for table, rows in result.tables.items():
        if table not in _GRADES:
            tables[table] = list(map(_without_grades, rows))
    return replace(result, tables=tables)


def _without_grades(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in row if name not in _GRADES}


def _estimate_entry(metric: str, estimate: Estimate) -> Entry:
    """Return a statistic as text for the table of its question."""
    name = f"{metric}.{estimate.name}"
    ends = "not measured"
    confidence = ""
    if estimate.measurable:
        ends = f"{number(estimate.low)} to {number(estimate.high)}"
        if not math.isnan(estimate.confidence):
            confidence = f"{100 * estimate.confidence:.4g} %"
    return {
        "name": clean(name),
        "value": number(estimate.value),
        "interval": ends,
        "confidence": confidence,
        "null": number(estimate.null),
        "n": number(estimate.n),
        "subjects": number(estimate.subjects),
        "direction": DIRECTIONS[estimate.direction],
        "meaning": _meaning(name),
        "note": sentence(estimate.note),
    }


def _metric_entry(name: str, result: MetricResult) -> dict[str, Any]:
    """Return the charts, tables and settings of a metric."""
    tables = {}
    table_entries = []
    for table, rows in result.tables.items():
        tables[table] = [row for row in to_jsonable(rows) if isinstance(row, dict)]
        if tables[table]:
            table_entries.append(_table_entry(table, tables[table]))
    plots = []
    summary = ""
    if name in METRICS:
        summary = sentence(METRICS[name].summary)
        for table in dict.fromkeys(plot.table for plot in METRICS[name].plots):
            for caption, svg in plots_of(name, table, tables.get(table, [])):
                if svg:
                    plots.append({"caption": caption, "svg": svg})
    return {
        "name": clean(name),
        "summary": summary,
        "plots": plots,
        "tables": table_entries,
        "settings": [*pairs(result.settings), ("seconds", number(result.seconds))],
    }


def plots_of(metric: str, table: str, rows: Rows) -> list[tuple[str, str]]:
    """Draw each plot of a table.

    Args:
        metric: Name of the metric.
        table: Name of its table.
        rows: Rows of the table.

    Returns:
        Caption and SVG of each plot. The SVG is empty if there are no data, and the list is empty
        if the table is unknown.
    """
    if metric not in METRICS:
        return []
    plots = []
    for plot in METRICS[metric].plots:
        if plot.table != table:
            continue
        if plot.facet is None:
            plots.append((plot.caption, draw(plot, rows)))
            continue
        for value in dict.fromkeys(row.get(plot.facet) for row in rows):
            facet_rows = [row for row in rows if row.get(plot.facet) == value]
            plots.append((plot.caption.format(clean(value, 40)), draw(plot, facet_rows)))
    return plots


def _table_entry(name: str, rows: Rows) -> Entry:
    """Return a table as text, cut after ``MOST_ROWS`` rows."""
    columns = list(dict.fromkeys(chain.from_iterable(rows)))
    cells = []
    for row in rows[:MOST_ROWS]:
        cells.append([cell(row.get(column)) for column in columns])
    unit = "row" if len(rows) == 1 else "rows"
    return {
        "name": clean(name).replace("_", " "),
        "columns": list(map(cell, columns)),
        "rows": cells,
        "total": f"{number(len(rows))} {unit}",
        "cut": len(rows) > MOST_ROWS,
    }


def filter_entry(
    generator: Mapping[str, Any] | None, results: Mapping[str, MetricResult]
) -> Entry | None:
    """Return filter names, numbers of drawn and dropped rows, and a chart of statistics before and
    after filtering.

    Args:
        generator: Description of the generator. None: unknown.
        results: Results by metric.

    Returns:
        The entry, or None if no filter was used.
    """
    description = (generator or {}).get("filter")
    if not isinstance(description, Mapping):
        return None
    caption, svg = before_and_after(description.get("before"), results)
    return {
        "drawn": cell(description.get("drawn")),
        "dropped": cell(description.get("dropped")),
        "names": cleaned(description.get("filters") or {}),
        "plot": {"caption": caption, "svg": svg} if svg else None,
    }


def advice_entry(advised: Entry, outcomes: Iterable[LimitOutcome]) -> Entry:
    """Return advice with cleaned keys of limits, how many it explains, and one sentence per action
    and its cost.

    Args:
        advised: Advice on a cause.
        outcomes: Outcomes of all limits.
    """
    todo = []
    for action in advised["todo"]:
        todo.append(f"{action['what']}. Cost: {action['cost']}.")
    n_by_status = Counter[str]()
    for outcome in outcomes:
        if outcome.limit.key in advised["limits"]:
            n_by_status[outcome.status] += 1
    n_explained = n_by_status["fail"]
    kind = "failed"
    if n_explained == 0:
        n_explained = n_by_status.total()
        kind = "undecided"
    unit = "limits" if n_explained > 1 else "limit"
    explains = f"{n_explained} {kind} {unit}"
    limits = cleaned(advised["limits"], 60)
    return {**advised, "limits": limits, "explains": explains, "todo": todo}


def protection_entry(protection: Protection, estimate: Callable[[str], Estimate | None]) -> Entry:
    """Return a protection, with the computed statistics that measure its effect.

    Args:
        protection: Protection.
        estimate: Returns a statistic by its full name, or None if it was not computed.
    """
    estimates = []
    for name in protection.statistics:
        computed = estimate(name)
        if computed is not None:
            estimates.append((clean(name), interval(computed)))
    return {
        "title": protection.title,
        "state": protection.state,
        "how": clean(protection.how, 600),
        "covers": sentence(protection.covers),
        "estimates": estimates,
    }


def before_and_after(before: Any, after: Mapping[str, MetricResult]) -> tuple[str, str]:
    """Return a caption and a bar chart of statistics before and after a filter.

    Statistics are compared only if settings, seed and version are equal.

    Args:
        before: Results by metric, as JSON. Other values count as no results.
        after: Results by metric.

    Returns:
        Caption, and SVG, which is empty if there are no data.
    """
    rows = []
    caption = "Before and after the filter."
    results_before = before if isinstance(before, Mapping) else {}
    for name, metric in METRICS.core_and(after).items():
        comparison = metric.filter_comparison
        result_before = results_before.get(name)
        result_after = after.get(name)
        if comparison is None or result_after is None or not isinstance(result_before, Mapping):
            continue
        json_after = result_after.to_json()
        if not _have_equal_settings(result_before, json_after):
            continue
        value_before = _value_of(result_before, comparison.statistic)
        value_after = _value_of(json_after, comparison.statistic)
        if math.isfinite(value_before) and math.isfinite(value_after):
            rows.append(
                {"statistic": comparison.label, "before": value_before, "after": value_after}
            )
            caption += f" {comparison.description}"
    return caption, shares_svg(rows, "statistic", {"before": "before the filter", "after": "after"})


def _have_equal_settings(before: Entry, after: Entry) -> bool:
    return all(before.get(key) == after[key] for key in ("settings", "seed", "package_version"))


def _value_of(entry: Entry, statistic: str) -> float:
    """Return the value of a statistic in a result as JSON, or NaN."""
    return as_number(entry["estimates"].get(statistic, {}).get("value"))


def size_facts(
    tables: Mapping[str, Mapping[str, int]], generator: Mapping[str, Any] | None
) -> list[tuple[str, str]]:
    """Return the tables with their numbers of rows, people and columns, and the generator.

    Args:
        tables: "rows", "columns" and "subjects" by role.
        generator: Description of the generator. None: unknown.
    """
    descriptions = []
    for role, size in tables.items():
        text = f"{_ROLES.get(role, clean(role))} {cell(size.get('rows'))} rows"
        if role != "synthetic":
            text += f" of {cell(size.get('subjects'))} people"
        descriptions.append(text)
    n_columns = "no"
    if tables:
        first_size = next(iter(tables.values()))
        n_columns = cell(first_size.get("columns"))
    name = clean((generator or {}).get("name", "not stated"))
    settings = pairs((generator or {}).get("settings"))
    if settings:
        name += f" ({', '.join(map('='.join, settings))})"
    table_text = f"{', '.join(descriptions)}; {n_columns} columns"
    return [("Tables", table_text), ("Generator", clean(name, 300))]


def useful(
    utility: Sequence[tuple[str, Estimate]], results: Iterable[MetricResult], has_copies: bool
) -> tuple[str, str]:
    """Answer whether the table is useful, in a word and a sentence or two.

    Args:
        utility: Statistics of utility by name. The null is the value of real rows.
        results: Results of all metrics.
        has_copies: Whether limits on copied rows fail.
    """
    if not utility:
        return "Not measured", "No metric compared the table with real rows."
    lost = _what_is_lost(list(results))
    broken = _broken_relations(list(results))
    if broken:
        return "It breaks relations of the real rows", f"{broken}{lost}"
    behind = max(estimate.null - estimate.value for _, estimate in utility)
    if behind > _FAR_WORSE:
        return (
            "Far worse than real rows",
            f"Its rows are far less similar to real rows than real rows are to each other.{lost}",
        )
    if behind > _CLOSE:
        return (
            "Worse than real rows",
            f"Its rows are less similar to real rows than real rows are to each other.{lost}",
        )
    copied = " Copied rows are similar to real rows, too." if has_copies else ""
    return (
        "Like real rows",
        f"Its rows are about as similar to real rows as real rows are to each other.{copied}{lost}",
    )


def _table_of(results: Iterable[MetricResult], name: str) -> Rows:
    """Return a table of the metrics of utility by its name; empty if there is none."""
    for result in results:
        metric = METRICS.get(result.metric)
        if metric is not None and metric.utility and name in result.tables:
            return result.tables[name]
    return []


def _broken_relations(results: Iterable[MetricResult]) -> str:
    """Return a sentence on the relations that synthetic rows break, or ""."""
    relations = _table_of(results, "relations")
    broken = [row for row in relations if row["broken_synthetic"] > row["broken_real"]]
    if not broken:
        return ""
    worst = broken[0]
    share = percent(worst["broken_synthetic"])
    name = clean(worst["relation"], 80)
    if len(broken) == 1:
        return (
            f"The relation {name} holds in the real rows, and {share} of the synthetic rows"
            " break it."
        )
    return (
        f"{len(broken)} relations that hold in the real rows are broken; {name} in {share} of the"
        " synthetic rows."
    )


def _what_is_lost(results: Sequence[MetricResult]) -> str:
    """Return a sentence on the columns and pairs of columns that lose most similarity, after a
    space, or "".
    """
    columns = []
    for row in _table_of(results, "columns"):
        if _is_lost(row):
            columns.append(clean(row["column"], 40))
    column_pairs = []
    for row in _table_of(results, "pairs"):
        if _is_lost(row):
            column_pairs.append(f"{clean(row['first'], 40)} and {clean(row['second'], 40)}")
    parts = []
    if columns:
        parts.append(f"columns: {', '.join(columns[:_MOST_LOST])}")
    if column_pairs:
        parts.append(f"pairs of columns: {', '.join(column_pairs[:_MOST_LOST])}")
    if not parts:
        return ""
    return f" Most is lost in these {', and in these '.join(parts)}."


def _is_lost(row: Mapping[str, Any]) -> bool:
    return bool(row.get("similarity_real", 0.0) - row.get("similarity", 0.0) > _CLOSE)


def utility_text(utility: Iterable[tuple[str, Estimate]]) -> str:
    """Return every statistic of utility with its value for real rows and note, or "" if none was
    measured.

    Args:
        utility: Full name and estimate of each statistic.
    """
    texts = []
    for full_name, estimate in utility:
        name = full_name.partition(".")[2].replace("_", " ")
        note = ""
        if estimate.note:
            note = f"; {clean(estimate.note, _LONGEST_NOTE)}"
        value = number(estimate.value)
        texts.append(f"{name} {value} (real rows {number(estimate.null)}{note})")
    return ", ".join(texts)


def pairs(values: Mapping[str, Any] | None, prefix: str = "") -> list[tuple[str, str]]:
    """Return nested settings as (dotted name, text) pairs.

    Args:
        values: Settings. None: no settings.
        prefix: Start of all names, for example "filter.".
    """
    flat: list[tuple[str, str]] = []
    for key, value in (to_jsonable(values) or {}).items():
        if isinstance(value, dict):
            flat += pairs(value, f"{prefix}{key}.")
        else:
            flat.append((clean(f"{prefix}{key}"), cell(value)))
    return flat


def cell(value: Any) -> str:
    """Format a value of a table or setting."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Sequence):
        return ", ".join(map(cell, value)) or number(None)
    if value is None or isinstance(value, (int, float)):
        return number(value)
    return clean(value)
