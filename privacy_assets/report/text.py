"""Plain-text form of a page, for terminals and logs."""

from __future__ import annotations

import sys
import textwrap
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING

from privacy_assets.report.words import NOTHING, clean

if TYPE_CHECKING:
    from privacy_assets.report.page import Page

_COLUMNS = 100


def page_text(page: Page) -> str:
    """Return verdict, answers, one aligned line per limit, Gretel's scores, the privacy configuration and advice.

    Without limits, there is a line for each statistic instead.

    Plain text without colors or control characters, and without a final newline.
    """
    answers = [(one["title"], one["word"]) for one in page.answers if one["shown"]]
    answers.append(("Is it useful? (not part of the verdict)", page.useful[0]))
    limits = [
        (one["row"], one["judged"], one["limit"], one["label"], one["interval"], clean(one["reason"]))
        for one in page.limits
    ]
    estimates = [x for one in page.answers for x in one["estimates"]]
    statistics = [(x["name"], x["value"], x["interval"], clean(x["note"])) for x in estimates]
    limited = aligned([("statistic", "compared value", "limit", "verdict", "value [low, high]", "reason"), *limits])
    protections = [(one["title"], one["state"], clean(one["how"]) or NOTHING) for one in page.configuration]
    scores = [(name, score, level) for name, (score, level) in page.gretel_scores.items()]
    utility = f"Utility, compared with an equal number of real rows: {page.utility_text}."
    lines = [
        *_verdict(page),
        *(line for note in page.notes for line in textwrap.wrap(f"Note: {note}", _COLUMNS)),
        "",
        *aligned([("question", "answer"), *answers]),
        "",
        *(limited if limits else aligned([("statistic", "value", "interval", "note"), *statistics])),
        *(["", *textwrap.wrap(utility, _COLUMNS)] if page.utility_text else []),
        *(["", *aligned([("Gretel's scores, 0 to 100", "score", "grade"), *scores])] if scores else []),
        "",
        *aligned([("privacy configuration", "state", "settings"), *protections]),
        *_advice(page),
    ]
    return "\n".join(lines)


def verdict_lines(page: Page) -> list[str]:
    """Return the verdict, its reason, the status of each limit and advice, without any measured number.

    Sentences are not wrapped, because a log has a record for each line.
    """
    limits = [(one["key"], one["limit"], one["label"]) for one in page.limits]
    table = aligned([("statistic", "limit", "verdict"), *limits])
    return [*_verdict(page, sys.maxsize), "", *table, *_advice(page, sys.maxsize)]


def _verdict(page: Page, columns: int = _COLUMNS) -> list[str]:
    return [f"{page.label.upper()}  {page.title}", *textwrap.wrap(page.headline, columns)]


def _advice(page: Page, columns: int = _COLUMNS) -> list[str]:
    lines = list[str]()
    for advice, keys in page.limit_advice.items():
        lines += _wrapped(f"{', '.join(keys)}: {advice}", columns)
    for one in page.advice:
        lines += _wrapped(f"{one['cause'].capitalize()}. {one['means']} For {', '.join(one['limits'])}.", columns)
        for at, action in enumerate(one["todo"], 1):
            lines += _wrapped(f"  {at}. {action}", columns, 7)
    return ["", "What to do", *lines] if lines else []


def _wrapped(words: str, columns: int, deeper: int = 4) -> list[str]:
    return textwrap.wrap(words, columns, initial_indent="  ", subsequent_indent=" " * deeper)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Align columns below a header with a rule."""
    widths = [max(width(row[i]) for row in rows) for i in range(len(rows[0]))]
    rule = ["-" * w for w in widths]
    return [
        "  ".join(_pad(*cell) for cell in zip(row, widths, strict=True)).rstrip() for row in (rows[0], rule, *rows[1:])
    ]


def _pad(text: str, columns: int) -> str:
    return text + " " * (columns - width(text))


def width(text: str) -> int:
    """Return the columns that ``text`` takes in a terminal: wide characters take two, combining marks none."""
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len(text) + wide - sum(unicodedata.combining(character) > 0 for character in text)
