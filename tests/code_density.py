"""Measure how dense the code of the package is, by layer: tokens in a statement, comprehensions,
complexity and names.

    python -m tests.code_density              # the rates; status 1 if a checked layer exceeds a limit
    python -m tests.code_density --list gate  # what exceeds a limit in layers named like "gate"

``make lint`` runs it. A layer that holds the limits is added to ``CHECKED`` and stays there. A
statement is a logical line, so that line breaks change nothing, and an f-string is one token. Rates
are given for 100 code lines. Complexity counts branches, loops, handlers, cases, operands of
``and`` and ``or``, and each ``for`` and ``if`` of a comprehension.
"""  # noqa: E501

from __future__ import annotations

import argparse
import ast
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.code_counts import PACKAGE, docstrings

CHECKED = (
    "airflow",
    "__init__.py",
    "__main__.py",
    "cli",
    "dagster",
    "distances",
    "errors.py",
    "evaluation",
    "gate",
    "generators",
    "infra",
    "metrics",
    "networks",
    "pipeline",
    "policy.py",
    "report",
    "stats",
    "studies",
    "tables",
    "version.py",
)  # layers that hold all limits
# Names that do not say what they name.
_GENERIC = """
    absent added alone asked chosen doubt drawn every found given gone held here instead kept
    known made more named now obj often one other others own place res shown some stated stuff
    taken then there thing tmp told wanted whole wrong
"""
GENERIC = frozenset(_GENERIC.split())
NUMERIC_LAYERS = ("distances", "generators", "metrics", "networks", "stats", "studies")
# Public functions whose parameters are options of a user.
PUBLIC = frozenset(
    (
        "evaluate",
        "read_inputs",
        "power_analysis",
        "overfit_cases",
        "build_privacy_checks",
        "build_privacy_assets",
        "privacy_gate",
        "__init__",
    )
)
MAX_COMPLEXITY = 15
MAX_PARAMETERS = 8
LONG_LINE = 100
MIN_LINES = 100  # code lines of a layer whose rates have limits
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
BRANCHES = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.match_case, ast.IfExp)
LAYOUT = (tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


@dataclass(frozen=True)
class Limits:
    """Largest rates of a layer. All but the first two are counts for 100 code lines or names."""

    tokens: float = 12.0
    tokens_p90: float = 22.0
    generic_names: float = 1.0
    comprehensions: float = 2.0
    conditionals: float = 1.5
    pairs: float = 0.3
    long_lines: float = 1.0


LIMITS = Limits()
NUMERIC_LIMITS = Limits(tokens=12.5, tokens_p90=24.0, pairs=1.0)


@dataclass
class Density:
    """Counts of one file or layer.

    Attributes:
        statements: Number of tokens of each statement.
        lines: Number of code lines.
        long_lines: Number of code lines with more than 100 characters.
        names: Number of names that are assigned, and of parameters.
        generic: Number of times that each generic name is assigned or is a parameter.
        comprehensions: Number of comprehensions.
        conditionals: Number of conditional expressions.
        pairs: Number of assignments to several names.
        findings: What no layer may have, with file and line.
    """

    statements: list[int] = field(default_factory=list)
    lines: int = 0
    long_lines: int = 0
    names: int = 0
    generic: Counter[str] = field(default_factory=Counter)
    comprehensions: int = 0
    conditionals: int = 0
    pairs: int = 0
    findings: list[str] = field(default_factory=list)

    def add(self, other: Density) -> None:
        """Add the counts of another file."""
        self.statements += other.statements
        self.lines += other.lines
        self.long_lines += other.long_lines
        self.names += other.names
        self.generic += other.generic
        self.comprehensions += other.comprehensions
        self.conditionals += other.conditionals
        self.pairs += other.pairs
        self.findings += other.findings

    def rates(self) -> dict[str, float]:
        """Return the rates by the names of the limits."""
        ordered = sorted(self.statements) or [0]
        n_lines = max(self.lines, 1)
        return {
            "tokens": sum(ordered) / len(ordered),
            "tokens_p90": ordered[int(0.9 * len(ordered))],
            "generic_names": 100 * self.generic.total() / max(self.names, 1),
            "comprehensions": 100 * self.comprehensions / n_lines,
            "conditionals": 100 * self.conditionals / n_lines,
            "pairs": 100 * self.pairs / n_lines,
            "long_lines": 100 * self.long_lines / n_lines,
        }


def complexity(function: ast.AST) -> int:
    """Return the complexity of a function, without that of the functions inside it."""
    total = 1
    nodes = list(ast.iter_child_nodes(function))
    while nodes:
        node = nodes.pop()
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            continue
        if isinstance(node, BRANCHES):
            total += 1
        elif isinstance(node, ast.BoolOp):
            total += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            total += 1 + len(node.ifs)
        nodes.extend(ast.iter_child_nodes(node))
    return total


def is_nested(comprehension: ast.AST) -> bool:
    """Return True for a comprehension with two ``for``, or with a comprehension or a condition
    inside it.
    """
    n_loops = 0
    for node in ast.walk(comprehension):
        if isinstance(node, ast.comprehension):
            n_loops += 1
        elif isinstance(node, ast.IfExp):
            return True
    return n_loops > 1


def findings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and description of what no layer may have."""
    for node in ast.walk(tree):
        if isinstance(node, COMPREHENSIONS) and is_nested(node):
            yield node.lineno, "nested comprehension, or a conditional expression in one"
        if not isinstance(node, FUNCTIONS):
            continue
        value = complexity(node)
        if value > MAX_COMPLEXITY:
            yield node.lineno, f"{node.name} has complexity {value}"
        arguments = node.args
        n_parameters = len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs)
        if n_parameters > MAX_PARAMETERS and node.name not in PUBLIC:
            yield node.lineno, f"{node.name} has {n_parameters} parameters"


def assigned_names(tree: ast.Module) -> Iterator[str]:
    """Yield each name that is assigned, once for each assignment, and each parameter."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


def statement_sizes(source: str, skipped: set[int]) -> tuple[list[int], set[int]]:
    """Return the number of tokens of each statement, and the numbers of all code lines.

    Args:
        source: Text of a file.
        skipped: Numbers of the lines of docstrings.
    """
    sizes = []
    code_lines = set()
    n_tokens = 0
    f_string_depth = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NEWLINE:
            if n_tokens:
                sizes.append(n_tokens)
            n_tokens = 0
            continue
        if token.type in LAYOUT or token.start[0] in skipped:
            continue
        code_lines.update(range(token.start[0], token.end[0] + 1))
        kind = tokenize.tok_name[token.type]
        if kind == "FSTRING_END":  # since Python 3.12, an f-string is several tokens
            f_string_depth -= 1
            continue
        if f_string_depth == 0:
            n_tokens += 1
        if kind == "FSTRING_START":
            f_string_depth += 1
    return sizes, code_lines


def measure(source: str, path: str) -> Density:
    """Return the counts of one file.

    Args:
        source: Text of the file.
        path: Path, for findings. Kernels, and the functions that write code for them, have none.
    """
    tree = ast.parse(source)
    skipped: set[int] = set()
    for node in docstrings(tree):
        skipped.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    sizes, code_lines = statement_sizes(source, skipped)
    lines = source.splitlines()
    names = list(assigned_names(tree))
    density = Density(statements=sizes, lines=len(code_lines), names=len(names))
    density.long_lines = sum(len(lines[number - 1]) > LONG_LINE for number in code_lines)
    density.generic = Counter(name for name in names if name.strip("_") in GENERIC)
    for node in ast.walk(tree):
        if isinstance(node, COMPREHENSIONS):
            density.comprehensions += 1
        elif isinstance(node, ast.IfExp):
            density.conditionals += 1
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
            density.pairs += isinstance(node.value, ast.Tuple)
    if not path.endswith(("_kernels.py", "_vectors.py")):
        density.findings = [f"{path}:{line}: {text}" for line, text in sorted(findings(tree))]
    return density


def layers(package: Path = PACKAGE) -> dict[str, Density]:
    """Return the counts of each folder and module of the package, by its name."""
    counts: dict[str, Density] = {}
    for path in sorted(package.rglob("*.py")):
        relative = path.relative_to(package)
        density = measure(path.read_text(encoding="utf-8"), str(relative))
        counts.setdefault(relative.parts[0], Density()).add(density)
    return counts


def exceeded(layer: str, density: Density) -> list[str]:
    """Return one line for each limit that a layer exceeds. Rates of fewer than 100 lines are not
    compared.
    """
    if density.lines < MIN_LINES:
        return []
    limits = NUMERIC_LIMITS if layer in NUMERIC_LAYERS else LIMITS
    lines = []
    for name, rate in density.rates().items():
        limit = getattr(limits, name)
        if rate > limit:
            lines.append(f"{layer}: {name} {rate:.2f}, limit {limit}")
    return lines


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", metavar="LAYER", help="list what exceeds a limit in these layers")
    options = parser.parse_args()
    names = list(Density().rates())
    sys.stdout.write(
        f"{'layer':<14}{'lines':>7}{''.join(f'{name:>16}' for name in names)}{'findings':>10}\n"
    )
    failed = False
    for layer, density in layers().items():
        rates = "".join(f"{rate:>16.2f}" for rate in density.rates().values())
        is_checked = layer in CHECKED
        mark = "  checked" if is_checked else ""
        sys.stdout.write(f"{layer:<14}{density.lines:>7}{rates}{len(density.findings):>10}{mark}\n")
        problems = [*exceeded(layer, density), *density.findings]
        failed |= is_checked and bool(problems)
        if problems and (is_checked or (options.list and options.list in layer)):
            generic = ", ".join(f"{name} {count}" for name, count in density.generic.most_common())
            sys.stdout.write("\n".join([*problems, f"generic names: {generic or 'none'}"]) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
