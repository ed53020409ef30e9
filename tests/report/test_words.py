"""Numbers and names that are safe to show."""

from __future__ import annotations

import math

from privacy_assets.report.words import clean, number


def test_numbers_and_texts_are_safe_to_read():
    assert {value: number(value) for value in NUMBERS} == NUMBERS and number(math.nan) == "–"
    assert {text: clean(text) for text in TEXTS} == TEXTS
    assert clean("a" * 99 + "b" * 99, 11) == "aaaaa…bbbbb"


NUMBERS = {
    0.12345: "0.1235",
    -0.0: "0",
    None: "–",
    12114: "12,114",
    0.05004: "0.05004",
    math.inf: "inf",
}


TEXTS = {
    "a\u202eb": "a\\u202eb",
    "a\tb\n\nc": "a b c",
    "\x1b[0m": "\\u001b[0m",
    "\U000e0041": "\\U000e0041",
    "e" + "\u0301" * 9: "e\u0301\u0301\u0301",
}
