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
# narrowest last column of a table; with less space, it is below the other columns
_MIN_LAST_COLUMN = 20


def page_text(page: Page, *, columns: int = COLUMNS, every_limit: bool = True) -> str:
    """Return the content of a page in the order of the HTML page.

    Verdict, facts, answers, what the verdict does not cover, and advice; then, for the data team,
    limits, utility, scores and the privacy configuration. Without limits, statistics are
    listed instead.

    Args:
        page: Content.
        columns: Width of the lines in characters. Names and paths can be longer.
        every_limit: If False, limits that pass are counted, and not listed.

    Returns:
        Plain text without colors or control characters, and without a final newline.
    """
    lines = [_title(page), *_facts(page, columns), ""]
    lines += textwrap.wrap(page.headline, columns)
    lines.append("")
    lines += _answers(page, columns)
    lines += _doubts(page, columns)
    lines += _advice(page, columns)
    lines += ["", "For the data team", ""]
    if page.limits:
        lines += _limits(page.limits, columns, every_limit)
    else:
        lines += _statistics(page, columns)
    lines += _not_computed(page, columns)
    if page.utility_text:
        utility = f"Utility, compared with an equal number of real rows: {page.utility_text}."
        lines += ["", *textwrap.wrap(utility, columns)]
    lines += _scores(page, columns)
    lines += _protections(page, columns)
    return "\n".join(lines)


def _scores(page: Page, columns: int) -> list[str]:
    if not page.scores:
        return []
    rows = [("scores, 0 to 100", "score")]
    for name, (score, level, _) in page.scores.items():
        rows.append((name, f"{score} {level}".rstrip()))
    return ["", *aligned(rows, columns)]


def _protections(page: Page, columns: int) -> list[str]:
    if not page.configuration:
        return []
    rows = [("privacy configuration", "state", "settings")]
    for entry in page.configuration:
        rows.append((entry["title"], entry["state"], clean(entry["how"]) or NOTHING))
    return ["", *aligned(rows, columns)]


def verdict_lines(page: Page) -> list[str]:
    """Return the verdict, the answers in a few words, advice and the status of each limit.

    Measured numbers are left out, except those in advice and in the reason of an earlier failure.

    Sentences are not wrapped, because a log has an entry for each line.
    """
    lines = [_title(page), page.headline, ""]
    for answer in page.answers:
        if answer["is_displayed"]:
            lines.append(f"{answer['title']} {answer['word']}")
    lines += _advice(page, sys.maxsize)
    rows = [("limit on", "limit", "verdict")]
    for entry in page.limits:
        rows.append((entry["key"], entry["limit"], entry["label"]))
    return [*lines, "", *aligned(rows)]


def _title(page: Page) -> str:
    return f"{page.label.upper()}  {page.title}"


def _facts(page: Page, columns: int) -> list[str]:
    name_width = max((width(name) for name, _ in page.facts), default=0) + 2
    value_width = max(columns - name_width, _MIN_LAST_COLUMN)
    lines = list[str]()
    for name, value in page.facts:
        label = _pad(name, name_width)
        for line in textwrap.wrap(value, value_width) or [""]:
            lines.append(f"{label}{line}")
            label = " " * name_width
    return lines


def _answers(page: Page, columns: int) -> list[str]:
    answers = []
    for answer in page.answers:
        if answer["is_displayed"]:
            answers.append((answer["title"], f"{answer['word']}. {answer['statement']}"))
    answers.append(
        ("Is it useful? (not part of the verdict)", f"{page.useful[0]}. {page.useful[1]}")
    )
    lines = list[str]()
    for title, text in answers:
        lines.append(title)
        lines += textwrap.wrap(text, columns, initial_indent="    ", subsequent_indent="    ")
    return lines


def _doubts(page: Page, columns: int) -> list[str]:
    lines = ["", "What the verdict does not show"]
    for sentence in (*page.notes, *page.doubts):
        lines += textwrap.wrap(f"- {sentence}", columns, subsequent_indent="  ")
    return lines


def _limits(limits: Sequence[Entry], columns: int, every_limit: bool) -> list[str]:
    """Return two or more lines for each limit: its name and verdict, then its numbers and
    reason.
    """
    n_unlisted = 0
    lines = ["Limits"]
    for entry in limits:
        if entry["status"] == "pass" and not every_limit:
            n_unlisted += 1
            continue
        n_spaces = max(columns - width(entry["key"]) - width(entry["label"]), 2)
        lines.append(f"{entry['key']}{' ' * n_spaces}{entry['label']}")
        limit = entry["limit"].replace(" ", _NO_BREAK)
        numbers = f"limit {limit}"
        if entry["interval"] != NOT_MEASURED:
            interval = entry["interval"].replace(" %", f"{_NO_BREAK}%")
            numbers += f", {interval}"
        numbers += f": {entry['reason']}"
        wrapped = textwrap.wrap(numbers, columns, initial_indent="    ", subsequent_indent="    ")
        for line in wrapped:
            lines.append(line.replace(_NO_BREAK, " "))
    if n_unlisted == 1:
        lines.append("1 limit holds (-v lists it).")
    if n_unlisted > 1:
        lines.append(f"{n_unlisted} limits hold (-v lists them).")
    return lines


def _not_computed(page: Page, columns: int) -> list[str]:
    """Return the statistics without a value, and why they have none."""
    lines = list[str]()
    for answer in page.answers:
        for entry in answer["estimates"]:
            if entry["interval"] == NOT_MEASURED:
                lines += _wrapped(f"{entry['name']}: {clean(entry['note']) or NOTHING}", columns)
    if not page.limits or not lines:
        return []
    return ["", "Not computed", *lines]


def _statistics(page: Page, columns: int) -> list[str]:
    rows = [("statistic", "value", "interval", "note")]
    for answer in page.answers:
        for entry in answer["estimates"]:
            rows.append((entry["name"], entry["value"], entry["interval"], clean(entry["note"])))
    return aligned(rows, columns)


def _advice(page: Page, columns: int) -> list[str]:
    lines = list[str]()
    if page.next_step:
        lines += _wrapped(page.next_step, columns)
    for advice, keys in page.limit_advice.items():
        lines += _wrapped(f"{', '.join(keys)}: {advice}", columns)
    for entry in page.advice:
        cause = entry["cause"].capitalize()
        limits = ", ".join(entry["limits"])
        lines += _wrapped(f"{cause}. {entry['means']} For {limits}.", columns)
        for i, action in enumerate(entry["todo"], 1):
            lines += _wrapped(f"  {i}. {action}", columns, 7)
    if not lines:
        return []
    return ["", "What to do", *lines]


def _wrapped(words: str, columns: int, indent: int = 4) -> list[str]:
    """Wrap text, with ``indent`` spaces before all lines except the first."""
    return textwrap.wrap(words, columns, initial_indent="  ", subsequent_indent=" " * indent)


def aligned(rows: Sequence[Sequence[str]], columns: int = sys.maxsize) -> list[str]:
    """Align columns below a header with a rule.

    Args:
        rows: Cells by row. The first row is the header.
        columns: Width of the lines in characters. The last column is wrapped to fit; if there is no
            space for it, its cells are below the others.

    Returns:
        Lines without trailing spaces.
    """
    widths = [max(map(width, cells)) for cells in zip(*rows, strict=True)]
    n_before = sum(widths[:-1]) + 2 * (len(widths) - 1)
    space = columns - n_before
    if space < min(widths[-1], _MIN_LAST_COLUMN):
        return _stacked(rows, widths[:-1], columns)
    widths[-1] = min(widths[-1], space)
    lines = _header(rows[0], widths)
    for row in rows[1:]:
        last_cell = [row[-1]]
        if width(row[-1]) > space:
            last_cell = textwrap.wrap(row[-1], space)
        first, *continuation = last_cell
        lines.append(_line([*row[:-1], first], widths))
        for line in continuation:
            lines.append(f"{' ' * n_before}{line}")
    return lines


def _header(names: Sequence[str], widths: Sequence[int]) -> list[str]:
    """Return a header and a rule."""
    rule = ["-" * n_columns for n_columns in widths]
    return [_line(names, widths), _line(rule, widths)]


def _stacked(rows: Sequence[Sequence[str]], widths: Sequence[int], columns: int) -> list[str]:
    """Return the rows with the cells of the last column below the others."""
    lines = _header(rows[0][:-1], widths)
    for row in rows[1:]:
        lines.append(_line(row[:-1], widths))
        lines += textwrap.wrap(row[-1], columns, initial_indent="    ", subsequent_indent="    ")
    return lines


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [_pad(cell, n_columns) for cell, n_columns in zip(cells, widths, strict=True)]
    return "  ".join(padded).rstrip()


def _pad(text: str, columns: int) -> str:
    return text + " " * (columns - width(text))


def width(text: str) -> int:
    """Return the columns that ``text`` takes in a terminal: wide characters take two, combining
    marks none.
    """
    n_columns = len(text)
    for character in text:
        if unicodedata.east_asian_width(character) in "WF":
            n_columns += 1
        if unicodedata.combining(character) > 0:
            n_columns -= 1
    return n_columns
