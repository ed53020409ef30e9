"""The page for people on call quotes messages of the package."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/on_call.md").read_text(encoding="utf-8").replace('"..."', "...")
QUOTED = sorted({one for line in PAGE.splitlines() for one in re.findall(r'"([^"]{25,})"', line)})
# A message is compared in parts, between values: names in capitals, numbers, dates, names of tables
# and states.
VALUE = re.compile(
    r"\b(?:since|blocked|PATH|RUN|HOST|LIMITS|patients|fail|undecided|Nov|UTC|days|broken)\b"
    r"|[\d.,:;'()-]+"
)
FOREIGN = (
    "No such file or directory",
    "Is a directory",
    "No space left on device",
    "force termination immediately",
)  # system, Dagster


def texts() -> str:
    """All strings of the package in source order, without the values of f-strings."""
    found = []
    for path in sorted((ROOT / "privacy_assets").rglob("*.py")):
        constants = [
            node
            for node in ast.walk(ast.parse(path.read_text("utf-8")))
            if isinstance(node, ast.Constant)
        ]
        own = [one for one in constants if isinstance(one.value, str)]
        found.append(
            "".join(
                str(one.value) for one in sorted(own, key=lambda one: (one.lineno, one.col_offset))
            )
        )
    return re.sub(r"\s+", " ", "\n".join(found))


@pytest.fixture(scope="module")
def package() -> str:
    return texts()


@pytest.mark.parametrize("quoted", QUOTED)
def test_a_quoted_message_is_one_of_the_package(quoted: str, package: str) -> None:
    own = quoted
    for words in FOREIGN:
        own = own.replace(words, "PATH")
    for part in VALUE.split(own):
        assert part.strip() in package, quoted


def test_the_page_quotes_messages(package: str) -> None:
    assert len(QUOTED) > 15
    with pytest.raises(AssertionError):
        test_a_quoted_message_is_one_of_the_package(
            "patients: this sentence is not in the package", package
        )
