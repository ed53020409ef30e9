"""Words and plain text: numbers, names that are safe to show, and the table for terminals."""

from __future__ import annotations

import math
import textwrap
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from privacy_assets.stats.estimates import Estimate
from privacy_assets.stats.limits import Limit, LimitOutcome

if TYPE_CHECKING:
    from privacy_assets.report.report import Report

LABELS = {"pass": "pass", "fail": "fail", "not_assessable": "not assessable"}
NOTHING = "–"
LONGEST = 120
_HIDDEN = {"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"}  # control, bidi and zero-width, unassigned, private, surrogates
_PLACED = {"Mn", "Me"}  # combining marks: take no column; a few belong to a letter, a pile of them hides its neighbours


def clean(value: object, longest: int = LONGEST) -> str:
    """Return text that cannot disturb what stands around it.

    Control, bidirectional, zero-width and unassigned characters become visible escapes, white space a single space,
    more than three combining marks in a row are dropped, and more than ``longest`` characters are cut in the middle.
    """
    kept: list[str] = []
    marks = 0
    for character in " ".join(str(value).split()):
        kind = unicodedata.category(character)
        marks = marks + 1 if kind in _PLACED else 0
        if kind in _HIDDEN:
            kept.append(f"\\u{ord(character):04x}" if ord(character) < 0x10000 else f"\\U{ord(character):08x}")
        elif marks <= 3:
            kept.append(character)
    text = "".join(kept)
    if len(text) <= longest:
        return text
    half = (longest - 1) // 2
    return f"{text[:half]}…{text[len(text) - (longest - 1 - half) :]}"


def number(value: Any) -> str:
    """Return up to four significant digits for reading (decisions use the raw number); a dash for missing and NaN."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return NOTHING
    if isinstance(value, int):
        return f"{value:,}"
    text = f"{value:.4g}"
    return "0" if text == "-0" else text


def interval(estimate: Estimate | None) -> str:
    """``value [low, high]`` of a statistic, or "not measured"."""
    if estimate is None or math.isnan(estimate.value):
        return "not measured"
    return f"{number(estimate.value)} [{number(estimate.low)}, {number(estimate.high)}]"


def limit_text(limit: Limit, estimate: Estimate | None) -> str:
    """The limit in signs: ``≤ 0.05``, ``≥ 60``; for a two-sided statistic ``0 ± 0.05`` or, at width 0, ``covers 0``."""
    if limit.at_least is not None:
        return f"≥ {number(limit.at_least)}"
    if estimate is not None and estimate.direction == "two_sided":
        if limit.at_most == 0 and limit.bound == "lower":
            return f"covers {number(estimate.null)}"
        return f"{number(estimate.null)} ± {number(limit.at_most)}"
    return f"≤ {number(limit.at_most)}"


def sentence(text: str) -> str:
    """Return ``text`` with a capital letter (unless it starts with a name) and a full stop; empty stays empty."""
    text = text.strip()
    if not text:
        return ""
    start = text[0].upper() if text.split()[0].isalpha() else text[0]
    return start + text[1:] + ("" if text[-1] in ".!?…" else ".")


def what_to_do(outcome: LimitOutcome) -> str:
    """Return what the limit itself says about a failure, and what a statistic that was not measured lacks; else empty.

    What can be done in general about broken limits is the list of :mod:`privacy_assets.report.recourse`.
    """
    if outcome.passed:
        return ""
    if outcome.status == "fail":
        return sentence(outcome.limit.advice)
    if outcome.estimate is None:
        return f"Run the metric {outcome.limit.metric}: the policy needs it."
    if not outcome.estimate.measurable and outcome.estimate.about == "release":
        return "Give the metric what it needs, or leave this limit out of the policy on purpose."
    return ""


def advice(outcomes: Iterable[LimitOutcome]) -> dict[str, list[LimitOutcome]]:
    """Group the outcomes that did not pass by what to do about them, in order of first appearance."""
    groups: dict[str, list[LimitOutcome]] = {}
    for outcome in outcomes:
        if not outcome.passed:
            groups.setdefault(what_to_do(outcome), []).append(outcome)
    return groups


def headline(report: Report) -> str:
    """One plain sentence on why the verdict is what it is, and one on statistics that want an embedder."""
    estimates = [(name, estimate) for name, result in report.results.items() for estimate in result.estimates]
    absent = [clean(f"{name}.{estimate.name}", 60) for name, estimate in estimates if "no embedder" in estimate.note]
    without = f" There was no embedder, so nothing is known of {_listing(absent)}." if absent else ""
    return _reason(report) + without


def _reason(report: Report) -> str:
    outcomes = report.judgement.outcomes
    total = len(outcomes)
    failed = [clean(x.limit.key, 60) for x in outcomes if x.status == "fail"]
    unjudged = [clean(x.limit.key, 60) for x in outcomes if x.status == "not_assessable"]
    if failed:
        return f"{_share(failed, total)} broken ({_listing(failed)}): this table must not be published."
    if report.remembered:
        return (
            "These rows failed before, and a failed verdict stays failed, whatever the run, seed or split"
            f" ({clean('; '.join(report.remembered), 400)}): make another synthetic table."
        )
    if unjudged:
        unknown = f"{_share(unjudged, total)} not judged ({_listing(unjudged)})"
        return f"No limit is shown to be broken, but {unknown}, and missing evidence does not pass."
    limits = "The limit holds" if total == 1 else f"All {total} limits hold"
    return f"{limits}: the evidence supports publishing this table under the policy “{clean(report.policy.name, 60)}”."


def _share(names: Sequence[str], total: int) -> str:
    return f"{len(names)} of {total} limits {'is' if len(names) == 1 else 'are'}"


def _listing(names: Sequence[str], most: int = 4) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def report_table(report: Report) -> str:
    """Return the verdict, one aligned line per limit, the privacy configuration, and what to do about what failed.

    Plain text without colours or control characters; ends without a newline.
    """
    lines = [
        f"{LABELS[report.verdict].upper()}  {clean(report.title)}",
        *textwrap.wrap(headline(report), 100),
        "",
        *limits_table(report.judgement.outcomes),
        *_utility_lines(report),
    ]
    lines += [*_configuration_lines(report), *_advice_lines(report.judgement.broken), *_recourse_lines(report)]
    return "\n".join(lines)


def _utility_lines(report: Report) -> list[str]:
    words = utility_text(report)
    return ["", *textwrap.wrap(f"Utility, beside as many real rows: {words}.", 100)] if words else []


def utility_text(report: Report) -> str:
    """Every statistic of use with that of as many real rows; empty unless they were measured."""
    found = [(name.partition(".")[2].replace("_", " "), own, real) for name, own, real in report.utility]
    return ", ".join(f"{name} {number(own.value)} (real {number(real.value)})" for name, own, real in found)


def _advice_lines(broken: Sequence[LimitOutcome]) -> list[str]:
    groups = {todo: outcomes for todo, outcomes in advice(broken).items() if todo}
    lines = ["", "What to do"] if groups else []
    for todo, outcomes in groups.items():
        lines += _wrapped(f"{_keys(x.limit.key for x in outcomes)}: {clean(todo, 600)}")
    return lines


def _configuration_lines(report: Report) -> list[str]:
    rows = [(one.title, one.state, clean(one.how) or NOTHING) for one in report.privacy_configuration]
    return ["", *aligned([("privacy configuration", "state", "settings"), *rows])]


def _recourse_lines(report: Report) -> list[str]:
    lines = ["", "What can be done, by the utility that it is expected to cost"] if report.recourses else []
    for recourse in report.recourses:
        helped = recourse["limits"]
        which = "all of them" if len(helped) == len(report.judgement.broken) > 1 else _keys(helped)
        lines += _wrapped(f"{recourse['loss']:<6}  {recourse['action']}: {recourse['why']}. For {which}.", 12)
    return lines


def _keys(keys: Iterable[str]) -> str:
    return ", ".join(clean(key, 60) for key in keys)


def _wrapped(words: str, deeper: int = 4) -> list[str]:
    return textwrap.wrap(words, 100, initial_indent="  ", subsequent_indent=" " * deeper)


def limits_table(outcomes: Sequence[LimitOutcome]) -> list[str]:
    """One aligned line a limit, under a header."""
    rows = [("statistic", "value [low, high]", "limit", "verdict", "reason")]
    for outcome in outcomes:
        limit = outcome.limit
        statistic = clean(limit.statistic, 60) + ("" if limit.bound == "upper" else f" ({limit.bound})")
        held = limit_text(limit, outcome.estimate)
        rows.append((statistic, interval(outcome.estimate), held, LABELS[outcome.status], clean(outcome.reason)))
    return aligned(rows)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns of one width, under a header with a rule."""
    widths = [max(width(row[i]) for row in rows) for i in range(len(rows[0]))]
    rule = ["-" * w for w in widths]
    return [
        "  ".join(_pad(*cell) for cell in zip(row, widths, strict=True)).rstrip() for row in (rows[0], rule, *rows[1:])
    ]


def _pad(text: str, columns: int) -> str:
    return text + " " * (columns - width(text))


def width(text: str) -> int:
    """Columns that ``text`` takes in a terminal: wide characters two, combining marks none."""
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len(text) + wide - sum(unicodedata.combining(character) > 0 for character in text)
