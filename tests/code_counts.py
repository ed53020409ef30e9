"""Count files, code lines, importers, import cycles and documented arguments of the package.

Run it with ``make count``. ``ARGS=-v`` also lists the cycles and the arguments without
documentation.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import io
import re
import sys
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parents[1] / "privacy_assets"
# Base classes and protocols that users subclass or implement. The exported API is
# privacy_assets.__all__.
EXTENSION_POINTS = (
    "privacy_assets.generators.base:Generator",
    "privacy_assets.generators.base:FittedGenerator",
    "privacy_assets.generators.base:Training",
    "privacy_assets.generators.filters:Filter",
    "privacy_assets.metrics.base:Metric",
    "privacy_assets.metrics.inputs:EvaluationInputs",
    "privacy_assets.pipeline.steps:Step",
    "privacy_assets.pipeline.steps:Task",
    "privacy_assets.pipeline.work:TableRun",
    "privacy_assets.pipeline.results:StepResult",
    "privacy_assets.airflow:privacy_gate",
    "privacy_assets.airflow:AirflowDeployment",
    "privacy_assets.airflow:PrivacyGateOperator",
    "privacy_assets.airflow:PrivacyPublishOperator",
    "privacy_assets.airflow:ReleaseSensor",
    "privacy_assets.airflow:TimePartitions",
)
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def modules(package: Path = PACKAGE) -> dict[str, tuple[Path, ast.Module]]:
    """Return path and syntax tree of each module, by its dotted name."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = [package.name, *path.relative_to(package).with_suffix("").parts]
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = (path, ast.parse(path.read_text(encoding="utf-8")))
    return found


def docstring_node(node: Documented) -> ast.Expr | None:
    """Return the docstring statement of a module, class or function."""
    first = node.body[0] if node.body else None
    if (
        isinstance(first, ast.Expr)
        and isinstance(first.value, ast.Constant)
        and isinstance(first.value.value, str)
    ):
        return first
    return None


def docstrings(tree: ast.Module) -> Iterator[ast.Expr]:
    """Yield every docstring statement of a module."""
    for node in ast.walk(tree):
        if isinstance(node, Documented) and (found := docstring_node(node)):
            yield found


def code_lines(source: str, tree: ast.Module) -> int:
    """Count the lines that hold code, without docstrings, comments and blank lines."""
    layout = {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in layout:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in docstrings(tree):
        lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def imports(name: str, tree: ast.Module, known: set[str]) -> set[str]:
    """Return the modules that a module imports anywhere, for type checking too, or names as
    ``"module:Class"``.
    """
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} & known or {
                node.module
            }
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= set(re.findall(r"^(privacy_assets[\w.]*):\w+$", node.value))
    return found & known - {name}


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components of more than one module (Tarjan's algorithm)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            position = stack.index(node)
            component = stack[position:]
            del stack[position:]
            if len(component) > 1:
                found.append(sorted(component))

    for node in graph:
        if node not in index:
            visit(node)
    return found


def single_importers(graph: dict[str, set[str]], files: dict[str, Path]) -> list[str]:
    """Return the modules that exactly one other module imports. Imports by and of ``__init__`` do
    not count.
    """
    packages = {name for name, path in files.items() if path.name in ("__init__.py", "__main__.py")}
    users: dict[str, set[str]] = {name: set() for name in graph if name not in packages}
    for name, others in graph.items():
        for other in others & set(users) if name not in packages else ():
            users[other].add(name)
    return sorted(name for name, found in users.items() if len(found) == 1)


def public_callables() -> dict[str, Callable[..., Any]]:
    """Return the exported API and the extension points: functions, constructors and public
    methods.
    """
    import privacy_assets

    places = [f"privacy_assets:{name}" for name in privacy_assets.__all__]
    found: dict[str, Callable[..., Any]] = {}
    for place in (*places, *EXTENSION_POINTS):
        module, _, name = place.partition(":")
        thing = getattr(importlib.import_module(module), name)
        found[place] = thing
        if inspect.isclass(thing):
            for method, value in vars(thing).items():
                plain = value.__func__ if isinstance(value, classmethod | staticmethod) else value
                if (
                    not method.startswith("_")
                    and inspect.isfunction(plain)
                    and plain.__name__ != "<lambda>"
                ):
                    found[f"{place}.{method}"] = plain
    return found


def arguments(thing: Callable[..., Any]) -> list[str]:
    """Return the names of the arguments of a function, or of the constructor of a class."""
    try:
        parameters = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):
        return []
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [
        one.name
        for one in parameters
        if one.name not in ("self", "cls") and one.kind not in variable
    ]


def undocumented(thing: Callable[..., Any]) -> list[str]:
    """Return the arguments in neither ``Args:`` nor ``Attributes:`` that are not fields with a
    description.

    A class inherits the documentation of its bases in this package.
    """
    bases = (
        [base for base in inspect.getmro(thing) if base.__module__.startswith(PACKAGE.name)]
        if inspect.isclass(thing)
        else []
    )
    doc = "\n\n".join(inspect.cleandoc(one.__doc__ or "") for one in bases or [thing]) + "\n"
    sections = re.findall(r"^(?:Args|Attributes):\n((?:(?: +.*)?\n?)*)", doc, re.M)
    listed = set(re.findall(r"^ {4}\*{0,2}(\w+)", "\n".join(sections), re.M))
    settings = getattr(thing, "__pydantic_fields__", {})
    listed |= {name for name, field in settings.items() if field.description}
    return [name for name in arguments(thing) if name not in listed]


def main(package: Path = PACKAGE) -> int:
    """Print the counts."""
    found = modules(package)
    files = {name: path for name, (path, _) in found.items()}
    graph = {name: imports(name, tree, set(found)) for name, (_, tree) in found.items()}
    words = sum(
        len(ast.unparse(node).split()) for _, tree in found.values() for node in docstrings(tree)
    )
    lines = sum(code_lines(path.read_text(encoding="utf-8"), tree) for path, tree in found.values())
    names = {place: thing for place, thing in public_callables().items() if arguments(thing)}
    total = sum(len(arguments(thing)) for thing in names.values())
    missing = {place: undocumented(thing) for place, thing in names.items()}
    documented = total - sum(map(len, missing.values()))
    circles = cycles(graph)
    sys.stdout.write(
        f"Python files                           {len(found):>7,}\n"
        f"code lines                             {lines:>7,}\n"
        f"modules with one importer              {len(single_importers(graph, files)):>7,}\n"
        f"import cycles (type checking included) {len(circles):>7,}\n"
        f"documented arguments of the public API {documented / total:>7.0%}  ({documented} of"
        f" {total})\n"
        f"words of docstrings                    {words:>7,}\n"
    )
    if "-v" in sys.argv:
        for circle in circles:
            sys.stdout.write(f"cycle: {', '.join(circle)}\n")
        for place, absent in missing.items():
            if absent:
                sys.stdout.write(f"undocumented: {place}: {', '.join(absent)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
