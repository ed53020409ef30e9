"""Find sentences that readers stumble over in docstrings, comments, messages and Markdown, words in
the names of the code, and a second word for a concept that has a word already.

Run it with ``make english``. ``make lint`` runs it too: it fails where a folder has more matches
per 1,000 words than ``LIMIT`` allows. A match is a hint: reorder the sentence, name its subject, or
use the field's word.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIMIT = 0.5  # matches per 1,000 words

# Name of the pattern, regular expression, what to write instead.
PATTERNS = (
    (
        "location verb",
        r"\b(?:stands?|standing|stood|beside|lies (?:in|at|there|below))\b(?!"
        r" (?:for|out|alone|by)\b)",
        "is, is stored, next to",
    ),
    (
        "hidden actor",
        r"\b(?:nobody|somebody|anybody|everybody|whoever|whomever)\b",
        "name the user or the attacker",
    ),
    (
        "talking code",
        r"\b(?:told|speaks? of|says? (?:so|nothing|of|no|which|where)|asks? of)\b",
        "states, reports, returns",
    ),
    (
        "headless clause",
        r"(?:^|[,;:] )What [a-z ]+(?<!\?)$|[,;:] what (?!if|to|about)\w+ |\bof what"
        r" (?:is|was|it)\b",
        "name the thing",
    ),
    (
        "pronoun for a noun",
        r"^Th(?:at|ose) (?:of|in|whose)\b|^The same[,.:;]|\b(?:is|are) (?:that|those) of\b",
        "repeat the noun",
    ),
    (
        "vague quantity",
        r"\bso (?:many|few|seldom)\b(?! (?:that|as)\b)|\bas many\b(?!.*\bas\b)",
        "n, this many",
    ),
    ("dangling word", r"\bwithout(?=[.;,:)]|$)|\bbut for\b", "default: ..., except"),
    (
        "figure of speech",
        r"\b(?:anew|seldom|by heart|mend(?:s|ed|ing)?|witness(?:es)?|door|held against|goes"
        r" by|goes on)\b",
        "the field's word",
    ),
    (
        "negated noun",
        r"\b(?:says|tells|knows|shows|gives|means|finds|holds) (?:nothing|none)\b(?! but)|, or"
        r" nothing\b",
        "negate the verb; or None",
    ),
    ("possessive", r"\bof (?:your|our|one's|its|their) own\b", "your own, custom"),
)
RULES = [
    (name, re.compile(rule, re.M if "^" in rule else re.I), instead)
    for name, rule, instead in PATTERNS
]
# A concept, the only word for it, and other words, which are errors. They hold for the whole text
# of the files below ``ONE_WORD_FOLDERS``, with code spans and names.
SYNONYMS = (
    ("limit that does not hold", "fails", r"\bbr(?:eaks?|oken?) (?:(?:an?|the|no|its|any) )?limits?"
     r"\b|\blimits? (?:is|are) broken\b"),
    ("release that the gate prevents", "blocked", r"\brefus(?:e[sd]?|ing|als?)\b"),
    ("table with too many failures", "suspended", r"\btables? (?:is|are|was) stopped\b"
     r"|\bstopped tables?\b"),
    ("verdict without a decision", "undecided", r"\bnot assessable\b|\binconclusive\b"),
    ("limit that a copy of train would hold", "no evidence", r"\bcannot fail\b"),
    ("way to publish without a passing verdict", "bypass", r"\b(?:ways?|routes?) around\b"),
    ("signed file", "signed file", r"\bsigned records?\b|\b(?:un)?seal(?:s|ed)?\b"),
    ("key of the split", "split key", r"\bsecret of the\b|\bASSETS_SECRET\b|\bsecret\.key\b"),
    ("signed settings of a table", "accepted settings", r"\block of (?:the|a|its) table\b"
     r"|\bproposed lock\b"),
    ("version of the package", "package version", r"\bengine version\b"
     r"|\b(?:this|another) engine\b"),
    ("folder in the order of imports", "layer", r"\brooms? of the (?:code|package)\b"),
    ("study with its figures", "benchmark", r"\blab reports?\b"),
    ("release without a leak", "non-leaking", r"\bharmless\b|\bleak-free\b|\bhonest\b"),
    ("people who are not in train", "non-members", r"\bunseen people\b"),
    ("column whose values identify people", "identifying column", r"\bopen columns?\b"),
    ("decision record", "ADR", r"\[record\s\d+\]"),
    ("American spelling", "neighbor, color, memorize", r"neighbour|colour|behaviour|favour"
     r"|(?:memor|recogn|anonym)is"),
)  # fmt: skip
ONE_WORD_FOLDERS = (
    "privacy_assets", "docs", "examples", "README.md", "CONTRIBUTING.md", "SECURITY.md",
)  # fmt: skip
EXPLAINS_THE_WORDS = "0036-one-word-for-one-thing.md"
# Rules of words, which also hold for names. The other rules need a sentence.
WORD_RULES = ("location verb", "hidden actor", "talking code", "figure of speech")
# Folders whose names are not compared.
NAMES_SKIPPED = ("tests",)
CODE = re.compile(
    r"^[ \t]*(```|~~~).*?^[ \t]*\1|``[^`]+``|`[^`\n]+`|\]\([^)\s]*\)|https?://\S+|<[^>\n]+>",
    re.M | re.S,
)
WORD = re.compile(r"[A-Za-z][a-z'’]*")


def is_prose(text: str) -> bool:
    """Return True for text of four words or more with little punctuation, which excludes most code
    and data.
    """
    letters = sum(one.isalpha() or one in " \n.,;:'" for one in text)
    return len(WORD.findall(text)) >= 4 and letters > 0.85 * len(text)


def python_texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield the first line and the text of each docstring, string literal and block of comments."""
    tree, parts = ast.parse(source), set[int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts.update(map(id, node.values))
            yield (
                node.lineno,
                "".join(
                    str(part.value) if isinstance(part, ast.Constant) else "x"
                    for part in node.values
                ),
            )
        elif (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts
        ):
            yield node.lineno, node.value
    tokens = tokenize.generate_tokens(iter(source.splitlines(keepends=True)).__next__)
    comments = [
        (token.start[0], token.string.lstrip("#! "))
        for token in tokens
        if token.type == tokenize.COMMENT
    ]
    for _, block in groupby(enumerate(comments), key=lambda pair: pair[1][0] - pair[0]):
        lines = [comment for _, comment in block]
        yield lines[0][0], "\n".join(text for _, text in lines)


def identifiers(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the words of the name of each function, class, parameter and variable.

    Args:
        source: Text of a Python file.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            name = node.name
        elif isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        else:
            continue
        spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).replace("_", " ")
        yield node.lineno, spaced.strip().lower()


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the first line and the prose of each text of a Python, Markdown or template file."""
    source = path.read_text("utf-8")
    found = python_texts(source) if path.suffix == ".py" else [(1, source)]
    for line, text in found:
        bare = CODE.sub(lambda code: re.sub(r"\S", "x", code[0]), text)
        if path.suffix != ".py" or is_prose(bare):
            yield line, bare


def second_words(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the message of each second word for a concept.

    Args:
        source: Text of a file. Words of names are compared as in "signed_record".
    """
    spaced = source.replace("_", " ")
    for concept, word, others in SYNONYMS:
        # words can be separated by a line break, also in a comment
        for hit in re.finditer(others.replace(" ", r"[\s#]+"), spaced, re.IGNORECASE):
            line = 1 + spaced.count("\n", 0, hit.start())
            yield line, f"{hit[0]!r} (the word for a {concept}: {word})"


def tracked() -> list[Path]:
    """Return the files of the repository that hold prose."""
    listed = subprocess.run(
        ["git", "ls-files", "*.py", "*.md", "*.j2"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", action="store_true", help="print only the rates of the folders")
    options = parser.parse_args()
    words, hits = Counter[str](), Counter[str]()
    n_names = 0
    n_second_words = 0
    for path in tracked():
        has_one_word = path.relative_to(ROOT).parts[0] in ONE_WORD_FOLDERS
        if has_one_word and path.name != EXPLAINS_THE_WORDS:
            for line, message in second_words(path.read_text("utf-8")):
                n_second_words += 1
                sys.stdout.write(f"{path.relative_to(ROOT)}:{line}: {message}\n")
        folder = path.relative_to(ROOT).parts[0] if path.parent != ROOT else "."
        for first, text in texts(path):
            words[folder] += len(WORD.findall(text))
            for name, rule, instead in RULES:
                for hit in rule.finditer(text):
                    hits[folder] += 1
                    if not options.count:
                        line = first + text.count("\n", 0, hit.start())
                        sys.stdout.write(
                            f"{path.relative_to(ROOT)}:{line}: {name}: {hit[0]!r} (instead:"
                            f" {instead})\n"
                        )
        if path.suffix != ".py" or folder in NAMES_SKIPPED:
            continue
        for line, name in identifiers(path.read_text("utf-8")):
            for rule_name, rule, instead in RULES:
                if rule_name in WORD_RULES and rule.search(name):
                    n_names += 1
                    location = f"{path.relative_to(ROOT)}:{line}"
                    sys.stdout.write(f"{location}: name {name!r} (instead: {instead})\n")
    failed = n_names > 0 or n_second_words > 0
    for folder, number in sorted(words.items()):
        rate = 1000 * hits[folder] / max(number, 1)
        failed |= rate > LIMIT
        sys.stdout.write(
            f"{folder:<16}{number:>8} words{hits[folder]:>6} matches{rate:>7.2f} per 1,000"
            f" (limit {LIMIT})\n"
        )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
