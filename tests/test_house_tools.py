"""The two scripts that measure the code base give correct results."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests import code_counts, plain_english


def matches(text: str) -> set[str]:
    return {name for name, rule, _ in plain_english.RULES if rule.search(text)}


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("The limits stand in the policy file.", "location verb"),
        ("Nobody can publish this table.", "hidden actor"),
        ("The report says nothing of rows.", "talking code"),
        ("Those of the reference table.", "pronoun for a noun"),
        ("The rows of so many people.", "vague quantity"),
        ("All rows without.", "dangling word"),
        ("The gate is the one door to a release.", "figure of speech"),
        ("The name of a column, or nothing.", "negated noun"),
        ("Use a generator of your own.", "possessive"),
    ],
)
def test_the_checker_finds_a_pattern(text: str, pattern: str) -> None:
    assert pattern in matches(text)


@pytest.mark.parametrize(
    "text",
    ["Return the rows of the table.", "CI stands for confidence interval.", "Evaluate the table without the embedder."],
)
def test_the_checker_accepts_plain_sentences(text: str) -> None:
    assert matches(text) == set()


def test_the_checker_reads_docstrings_comments_and_strings(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text(
        '"""A docstring of four words."""\n# A comment of four words.\nX = f"A message of {1} four words."\n'
    )
    assert [line for line, _ in plain_english.texts(file)] == [1, 3, 2]


def test_code_lines_leave_out_docstrings_comments_and_blank_lines() -> None:
    source = '"""Doc\nstring."""\n\n# comment\nx = [\n    1,\n]\n'
    assert code_counts.code_lines(source, ast.parse(source)) == 3


def test_cycles_are_strongly_connected_components() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}
    assert code_counts.cycles(graph) == [["a", "b", "c"]]


def test_an_argument_is_documented_by_its_section() -> None:
    def function(first: int, second: int) -> None:
        """Do it.

        Args:
            first: The first number,
                over two lines.
        """

    assert code_counts.undocumented(function) == ["second"]
