"""Words and plain text: numbers, names that are safe to show, and the table for terminals."""

from __future__ import annotations

import math
import textwrap
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from privacy_assets.stats.estimates import Estimate
from privacy_assets.stats.limits import Limit, LimitOutcome, tally

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


def limit_text(limit: Limit) -> str:
    """The limit in signs: ``≤ 0.05`` or ``≥ 60``; that of a two-sided statistic is a distance from its null."""
    return f"{'≤' if limit.at_least is None else '≥'} {number(limit.value)}"


def judged_text(outcome: LimitOutcome) -> str:
    """The number that is held against the limit; of a two-sided statistic its distance from a null other than 0."""
    estimate, text = outcome.estimate, number(outcome.measured)
    if estimate is None or text == NOTHING:
        return "not measured"
    return f"{text} from {number(estimate.null)}" if estimate.direction == "two_sided" and estimate.null else text


def sentence(text: str) -> str:
    """Return ``text`` with a capital letter (unless it starts with a name) and a full stop; empty stays empty."""
    text = text.strip()
    if not text:
        return ""
    start = text[0].upper() if text.split()[0].rstrip(",:;").isalpha() else text[0]
    return start + text[1:] + ("" if text[-1] in ".!?…" else ".")


def wants_input(estimate: Estimate) -> bool:
    """True when a statistic lacks what its metric was not given; more of the same rows would not help it."""
    known = estimate.note.startswith("not measurable") or estimate.about == "gate"
    return math.isnan(estimate.value) and not known


def what_to_do(outcome: LimitOutcome) -> str:
    """Return what the limit itself says about a failure, and what a statistic that was not measured lacks; else empty.

    What can be done in general is the list of :mod:`privacy_assets.report.advice`.
    """
    if outcome.passed:
        return ""
    if outcome.status == "fail":
        return sentence(outcome.limit.advice)
    if outcome.estimate is None:
        return f"Run the metric {outcome.limit.metric}: the policy needs it."
    if wants_input(outcome.estimate):
        return "Give the metric what it needs, or leave this limit out of the policy on purpose."
    return ""


def own_words(outcomes: Iterable[LimitOutcome]) -> dict[str, list[str]]:
    """What limits say for themselves, each with the keys of those that say it."""
    found: dict[str, list[str]] = {}
    for outcome in outcomes:
        if words := what_to_do(outcome):
            found.setdefault(words, []).append(clean(outcome.limit.key, 60))
    return found


def headline(report: Report) -> str:
    """One plain sentence on why the verdict is what it is, and one on statistics that want an embedder."""
    estimates = [(name, estimate) for name, result in report.results.items() for estimate in result.estimates]
    absent = [clean(f"{name}.{estimate.name}", 60) for name, estimate in estimates if "no embedder" in estimate.note]
    without = f" There was no embedder, so nothing is known of {_listing(absent)}." if absent else ""
    return _reason(report) + without


def _reason(report: Report) -> str:
    outcomes = report.judgement.outcomes
    counts = tally(outcomes)
    if report.judgement.verdict == "fail":
        broken = [clean(x.limit.key, 60) for x in outcomes if x.status == "fail"]
        return f"{sentence(counts)[:-1]}: this table must not be published. Broken: {_listing(broken)}."
    if report.remembered:
        return (
            "These rows failed before, and a failed verdict stays failed, whatever the run, seed or split"
            f" ({clean('; '.join(report.remembered), 400)}). Make another synthetic table."
        )
    if report.judgement.verdict == "not_assessable":
        unjudged = [clean(x.limit.key, 60) for x in outcomes if x.status == "not_assessable"]
        return f"No limit is broken, but {counts} ({_listing(unjudged)}), and missing evidence does not pass."
    policy = clean(report.policy.name, 60)
    return f"{sentence(counts)[:-1]}: the evidence supports publishing this table under the policy “{policy}”."


def _listing(names: Sequence[str], most: int = 4) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def report_table(report: Report) -> str:
    """Return verdict, answers, one aligned line per limit, the privacy configuration, and what to do.

    Plain text without colours or control characters; ends without a newline.
    """
    lines = [
        f"{LABELS[report.verdict].upper()}  {clean(report.title)}",
        *textwrap.wrap(headline(report), 100),
        *(line for note in report.notes for line in textwrap.wrap(f"Note: {clean(note, 600)}", 100)),
        "",
        *aligned([("question", "answer"), *((x.title, x.word) for x in report.answers if x.shown)]),
        "",
        *limits_table(report.judgement.outcomes),
        *_utility_lines(report),
    ]
    return "\n".join([*lines, *_configuration_lines(report), *_todo_lines(report)])


def _utility_lines(report: Report) -> list[str]:
    words = utility_text(report)
    return ["", *textwrap.wrap(f"Utility, beside as many real rows: {words}.", 100)] if words else []


def utility_text(report: Report) -> str:
    """Every statistic of use with that of as many real rows; empty unless they were measured."""
    found = [(name.partition(".")[2].replace("_", " "), own, real) for name, own, real in report.utility]
    return ", ".join(f"{name} {number(own.value)} (real {number(real.value)})" for name, own, real in found)


def _configuration_lines(report: Report) -> list[str]:
    rows = [(one.title, one.state, clean(one.how) or NOTHING) for one in report.privacy_configuration]
    return ["", *aligned([("privacy configuration", "state", "settings"), *rows])]


def _todo_lines(report: Report) -> list[str]:
    own = own_words(report.judgement.broken)
    lines = [line for words, keys in own.items() for line in _wrapped(f"{', '.join(keys)}: {clean(words, 600)}")]
    for one in report.advice:
        lines += _wrapped(f"{one['cause'].capitalize()}. {one['means']} For {_keys(one['limits'])}.")
        lines += [line for at, x in enumerate(one["todo"], 1) for line in _wrapped(f"  {at}. {action_text(x)}", 7)]
    return ["", "What to do", *lines] if lines else []


def action_text(action: Mapping[str, str]) -> str:
    """One thing to do, and what it costs."""
    return f"{action['what']}. Cost: {action['cost']}."


def _keys(keys: Iterable[str]) -> str:
    return ", ".join(clean(key, 60) for key in keys)


def _wrapped(words: str, deeper: int = 4) -> list[str]:
    return textwrap.wrap(words, 100, initial_indent="  ", subsequent_indent=" " * deeper)


def limits_table(outcomes: Sequence[LimitOutcome]) -> list[str]:
    """One aligned line a limit, under a header: the number that is judged stands before the limit."""
    rows = [("statistic", "judged", "limit", "verdict", "value [low, high]", "reason")]
    for outcome in outcomes:
        limit = outcome.limit
        statistic = clean(limit.statistic, 60) + ("" if limit.bound == "upper" else f" ({limit.bound})")
        verdict, value = LABELS[outcome.status], interval(outcome.estimate)
        rows.append((statistic, judged_text(outcome), limit_text(limit), verdict, value, clean(outcome.reason)))
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
