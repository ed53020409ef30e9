"""Plain-text form of a page, for terminals and logs."""

from __future__ import annotations

import sys
import textwrap
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING

from privacy_assets.report.words import NOT_MEASURED, NOTHING, clean

if TYPE_CHECKING:
    from privacy_assets.report.page import Entry, Page

COLUMNS = 80
_NO_BREAK = "\u00a0"
_MIN_LAST_COLUMN = 20  # narrowest last column of a table; with less space, it is below the other columns


def page_text(page: Page, *, columns: int = COLUMNS, every_limit: bool = True) -> str:
    """Return verdict, answers, advice, notes, limits, utility, Gretel's scores and the privacy configuration.

    Without limits, statistics are listed instead.

    Args:
        page: Content.
        columns: Width of the lines in characters. Names and paths can be longer.
        every_limit: If False, limits that pass are counted, and not listed.

    Returns:
        Plain text without colors or control characters, and without a final newline.
    """
    lines = [*_verdict(page, columns), "", *_answers(page), *_advice(page, columns)]
    if page.notes:
        lines.append("")
    for note in page.notes:
        lines += textwrap.wrap(f"Note: {note}", columns)
    lines += ["", *(_limits(page.limits, columns, every_limit) if page.limits else _statistics(page, columns))]
    if page.utility_text:
        utility = f"Utility, compared with an equal number of real rows: {page.utility_text}."
        lines += ["", *textwrap.wrap(utility, columns)]
    if page.gretel_scores:
        scores = [(name, score, level) for name, (score, level) in page.gretel_scores.items()]
        lines += ["", *aligned([("Gretel's scores, 0 to 100", "score", "grade"), *scores], columns)]
    protections = [(entry["title"], entry["state"], clean(entry["how"]) or NOTHING) for entry in page.configuration]
    lines += ["", *aligned([("privacy configuration", "state", "settings"), *protections], columns)]
    return "\n".join(lines)


def verdict_lines(page: Page) -> list[str]:
    """Return the verdict, its reason, the status of each limit and advice, without any measured number.

    Sentences are not wrapped, because a log has a record for each line.
    """
    limits = [(entry["key"], entry["limit"], entry["label"]) for entry in page.limits]
    table = aligned([("statistic", "limit", "verdict"), *limits])
    return [*_verdict(page, sys.maxsize), "", *table, *_advice(page, sys.maxsize)]


def _verdict(page: Page, columns: int) -> list[str]:
    return [f"{page.label.upper()}  {page.title}", *textwrap.wrap(page.headline, columns)]


def _answers(page: Page) -> list[str]:
    answers = [(answer["title"], answer["word"]) for answer in page.answers if answer["shown"]]
    answers.append(("Is it useful? (not part of the verdict)", page.useful[0]))
    lines = list[str]()
    for title, word in answers:
        lines += [title, f"    {word}"]
    return lines


def _limits(limits: Sequence[Entry], columns: int, every_limit: bool) -> list[str]:
    """Return two or more lines for each limit: its name and verdict, then its numbers and reason."""
    n_passed = sum(entry["status"] == "pass" for entry in limits)
    lines = ["Limits"]
    for entry in limits:
        if entry["status"] == "pass" and not every_limit:
            continue
        gap = columns - width(entry["row"]) - width(entry["label"])
        lines.append(f"{entry['row']}{' ' * max(gap, 2)}{entry['label']}")
        limit = entry["limit"].replace(" ", _NO_BREAK)
        numbers = f"{entry['judged']}, limit {limit}"
        if entry["judged"] != NOT_MEASURED:
            numbers += f", measured {entry['interval']}"
        numbers += f": {entry['reason']}"
        wrapped = textwrap.wrap(numbers, columns, initial_indent="    ", subsequent_indent="    ")
        lines += [line.replace(_NO_BREAK, " ") for line in wrapped]
    if n_passed and not every_limit:
        held = "1 limit holds" if n_passed == 1 else f"{n_passed} limits hold"
        lines.append(f"{held} (-v lists {'it' if n_passed == 1 else 'them'}).")
    return lines


def _statistics(page: Page, columns: int) -> list[str]:
    estimates = [entry for answer in page.answers for entry in answer["estimates"]]
    rows = [(entry["name"], entry["value"], entry["interval"], clean(entry["note"])) for entry in estimates]
    return aligned([("statistic", "value", "interval", "note"), *rows], columns)


def _advice(page: Page, columns: int) -> list[str]:
    lines = list[str]()
    for advice, keys in page.limit_advice.items():
        lines += _wrapped(f"{', '.join(keys)}: {advice}", columns)
    for entry in page.advice:
        lines += _wrapped(f"{entry['cause'].capitalize()}. {entry['means']} For {', '.join(entry['limits'])}.", columns)
        for i, action in enumerate(entry["todo"], 1):
            lines += _wrapped(f"  {i}. {action}", columns, 7)
    return ["", "What to do", *lines] if lines else []


def _wrapped(words: str, columns: int, deeper: int = 4) -> list[str]:
    return textwrap.wrap(words, columns, initial_indent="  ", subsequent_indent=" " * deeper)


def aligned(rows: Sequence[Sequence[str]], columns: int = sys.maxsize) -> list[str]:
    """Align columns below a header with a rule.

    Args:
        rows: Cells by row. The first row is the header.
        columns: Width of the lines in characters. The last column is wrapped to fit; if there is no space for it, its
            cells are below the others.

    Returns:
        Lines without trailing spaces.
    """
    widths = [max(width(row[i]) for row in rows) for i in range(len(rows[0]))]
    left = sum(widths[:-1]) + 2 * (len(widths) - 1)
    space = columns - left
    if space < min(widths[-1], _MIN_LAST_COLUMN):
        return _stacked(rows, widths[:-1], columns)
    widths[-1] = min(widths[-1], space)
    lines = [_line(rows[0], widths), _line(["-" * w for w in widths], widths)]
    for row in rows[1:]:
        fits = width(row[-1]) <= space
        first, *more = [row[-1]] if fits else textwrap.wrap(row[-1], space)
        lines.append(_line([*row[:-1], first], widths))
        lines += [f"{' ' * left}{part}" for part in more]
    return lines


def _stacked(rows: Sequence[Sequence[str]], widths: Sequence[int], columns: int) -> list[str]:
    """Return the rows with the cells of the last column below the others."""
    lines = [_line(rows[0][:-1], widths), _line(["-" * w for w in widths], widths)]
    for row in rows[1:]:
        lines.append(_line(row[:-1], widths))
        lines += textwrap.wrap(row[-1], columns, initial_indent="    ", subsequent_indent="    ")
    return lines


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [_pad(cell, w) for cell, w in zip(cells, widths, strict=True)]
    return "  ".join(padded).rstrip()


def _pad(text: str, columns: int) -> str:
    return text + " " * (columns - width(text))


def width(text: str) -> int:
    """Return the columns that ``text`` takes in a terminal: wide characters take two, combining marks none."""
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len(text) + wide - sum(unicodedata.combining(character) > 0 for character in text)
