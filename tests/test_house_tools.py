"""The two scripts that measure the code base give correct results."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests import code_counts, code_density, plain_english


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
    [
        "Return the rows of the table.",
        "CI stands for confidence interval.",
        "Evaluate the table without the embedder.",
    ],
)
def test_the_checker_accepts_plain_sentences(text: str) -> None:
    assert matches(text) == set()


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("the table is refused", "blocked"),
        ("3 limits are broken", "fails"),
        ("def signed_record(): ...", "signed file"),
        ("see [record 6](adr/0006.md)", "ADR"),
        ("nearest_neighbours = 3", "neighbor"),
    ],
)
def test_a_second_word_for_a_concept_is_found(text: str, word: str) -> None:
    ((line, message),) = plain_english.second_words(f"First line.\n{text}")
    assert line == 2 and word in message


def test_the_words_of_the_concepts_are_accepted() -> None:
    text = "A limit fails, so the table is blocked: bypass 3, the signed file, its neighbors."
    assert list(plain_english.second_words(text)) == []


def test_the_checker_reads_docstrings_comments_and_strings(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text(
        '"""A docstring of four words."""\n# A comment of four words.\nX = f"A message of {1}'
        ' four words."\n'
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


DENSE = """
def f(a, b, c, d, e, g, h, i, found):
    x, place = a, b
    return [u if v else w for u in a for v in b]
"""


def test_the_density_of_code_is_measured_by_statement() -> None:
    density = code_density.measure(DENSE, "metrics/dcr.py")
    assert (density.lines, len(density.statements), density.pairs, density.comprehensions) == (
        3,
        3,
        1,
        1,
    )
    assert density.conditionals == 1
    assert density.generic == {"found": 1, "place": 1}
    assert density.findings == [
        "metrics/dcr.py:2: f has 9 parameters",
        "metrics/dcr.py:4: nested comprehension, or a conditional expression in one",
    ]
    assert code_density.measure(DENSE, "metrics/_dcr_kernels.py").findings == []


def test_line_breaks_and_docstrings_do_not_change_the_density() -> None:
    short = code_density.measure("x = f(1, 2)\n", "a.py")
    long = code_density.measure('"""Doc."""\nx = f(\n    1,\n    2\n)\n', "a.py")
    assert short.statements == long.statements == [8]
    assert (short.lines, long.lines) == (1, 4)


def test_complexity_counts_branches_operands_and_loops_of_comprehensions() -> None:
    source = (
        "def f(x):\n    if x and x or x:\n        return [y for y in x if y]\n    for z in x:\n  "
        "      pass\n"
    )
    (function,) = ast.parse(source).body
    assert code_density.complexity(function) == 1 + 1 + 2 + 2 + 1


def test_a_checked_room_that_exceeds_a_limit_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package = tmp_path / "package"
    (package / "dense").mkdir(parents=True)
    (package / "dense" / "module.py").write_text(DENSE * 40)
    layers = code_density.layers(package)
    assert [line.partition(",")[0] for line in code_density.exceeded("dense", layers["dense"])][
        0
    ].startswith("dense: ")
    monkeypatch.setattr(code_density, "layers", lambda: layers)
    monkeypatch.setattr("sys.argv", ["code_density"])
    assert code_density.main() == 0
    monkeypatch.setattr(code_density, "CHECKED", ("dense",))
    assert code_density.main() == 1
    assert "dense/module.py:2: f has 9 parameters" in capsys.readouterr().out
