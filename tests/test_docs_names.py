"""Every name and call in the documentation exists in the code.

The test searches code spans and code blocks. It looks up names by import, in signatures, in the
help of the commands and in the declared settings, and all others among the identifiers of the
source.
"""

from __future__ import annotations

import ast
import inspect
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout, suppress
from functools import cache
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest
import yaml

import privacy_assets
from privacy_assets import generators
from privacy_assets.cli.main import main
from privacy_assets.dagster.component import PrivacyGate
from privacy_assets.generators.filters import FILTERS
from privacy_assets.infra.settings import settings_of
from privacy_assets.pipeline.spec import GROUPS, TableSpec
from privacy_assets.tables.schema import Kind
from tests.shipped import GENERATORS, METRICS, statistic_specs

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md")),
    *(page for name in ("docs", "examples") for page in sorted((ROOT / name).rglob("*.md"))),
]
# .venv is large
FOLDERS = [path for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")]
CODE = [
    *(path for pattern in ("*.py", "*.yaml", "Makefile") for path in ROOT.glob(pattern)),
    *(
        path
        for folder in FOLDERS
        for pattern in ("*.py", "*.yaml", "*.yml", "Dockerfile")
        for path in folder.rglob(pattern)
    ),
]


# Names of other programs that no code here uses, a file that readers write, and the metric that a
# guide adds.
OTHERS = {
    "CronDataIntervalTimetable",
    'trigger_rule="all_done"',
    "parallel=True",
    "dags/patients.py",
    "privacy_assets.metrics.smallest_class",
    "metrics: smallest_class",
    "start_method",
    "LocalExecutor",
    "config/airflow_local_settings.py",
}


class Piece(NamedTuple):
    """A code span, or a code block with its ``language``."""

    text: str
    language: str | None


def pieces(page: str) -> Iterator[Piece]:
    """Yield the spans and blocks of a page."""
    fence = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
    for language, text in fence.findall(page):
        yield Piece(text, language)
    for text in re.findall(r"`([^`]+)`", fence.sub("", page)):
        yield Piece(" ".join(text.split()), None)


# --- names that exist
# -------------------------------------------------------------------------------------------------


@cache
def identifiers() -> frozenset[str]:
    """Return the names that the package and the files next to it define, call, or pass as
    keywords.
    """
    found = {part for path in CODE for part in path.relative_to(ROOT).with_suffix("").parts}
    return frozenset(found.union(*map(names_in, trees())))


@cache
def trees() -> list[ast.Module]:
    """Return the parsed Python code, except the tests."""
    files = [
        path for path in CODE if path.suffix == ".py" and path.relative_to(ROOT).parts[0] != "tests"
    ]
    return [ast.parse(path.read_text(encoding="utf-8")) for path in files]


def names_in(tree: ast.AST) -> set[str]:
    """Return every name in a piece of Python."""
    values = [
        getattr(node, one, None) for node in ast.walk(tree) for one in ("name", "arg", "attr", "id")
    ]
    return {part for value in values if isinstance(value, str) for part in value.split(".")}


@cache
def keywords() -> frozenset[str]:
    """Return the names of settings, parameters of functions that are not private, and arguments in
    calls.
    """
    found = set(settings())
    for tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and (
                not node.name.startswith("_") or node.name == "__init__"
            ):
                found |= {one.arg for one in (*node.args.args, *node.args.kwonlyargs)}
            elif isinstance(node, ast.keyword) and node.arg:
                found.add(node.arg)
    return frozenset(found)


@cache
def text_of_the_code() -> str:
    """Return the text of all code and configuration."""
    return "\n".join(path.read_text(encoding="utf-8") for path in CODE)


@cache
def options(command: str) -> frozenset[str]:
    """Return the options of a command, or the names of all commands if it is empty."""
    with redirect_stdout(StringIO()) as out, suppress(SystemExit):
        main([*([command] if command else []), "--help"])
    pattern = r"^ {4}([a-z-]+)(?: |$)" if not command else r"(?<![\w-])(--?[a-z][\w-]*)"
    return frozenset(re.findall(pattern, out.getvalue(), re.MULTILINE))


@cache
def public() -> Mapping[str, Any]:
    """Return the public functions and classes by name."""
    airflow = import_module("privacy_assets.airflow")
    homes = {name: getattr(privacy_assets, name) for name in privacy_assets.__all__}
    homes |= {name: getattr(generators, name) for name in generators.__all__}
    with suppress(ImportError):
        homes |= {name: getattr(airflow, name) for name in airflow.__all__}
    return homes


def accepted(name: str) -> set[str]:
    """Return the keywords of a public function or class, including those that it passes on to
    Airflow's operators.
    """
    thing = public()[name]
    parameters = inspect.signature(thing).parameters
    found = set(parameters) | set(getattr(thing, "short", ()))
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        found |= settings()
        if thing.__module__.startswith("privacy_assets.airflow"):
            sdk = import_module("airflow.sdk")
            kinds = [sdk.BaseOperator, sdk.BaseSensorOperator, thing]
            found |= {one for kind in kinds for one in inspect.signature(kind).parameters}
    return found


def fields(kind: Any) -> set[str]:
    """Return the names of the settings of a group, metric, generator or filter."""
    return {one.name for one in settings_of(kind)}


@cache
def settings() -> frozenset[str]:
    """Return every setting of a table, its parts and policies, and the names of metrics, generators
    and filters.
    """
    kinds = [TableSpec, *GROUPS, *METRICS.values(), *GENERATORS.values(), *FILTERS.values()]
    found = set().union(*map(fields, kinds)) | {"name", "settings", *METRICS, *GENERATORS, *FILTERS}
    found |= set(inspect.signature(privacy_assets.Limit).parameters) | {"limits", "extends"}
    return frozenset(
        found
        | set(PrivacyGate.model_fields)
        | {"type", "attributes", "column", "exact"}
        | {"sep", "encoding", *get_args(Kind), "decimal", "unit"}
    )


# --- missing names
# --------------------------------------------------------------------------------------------------


def imports(piece: Piece) -> Iterator[str]:
    """Yield dotted names of the package that cannot be imported."""
    for name in re.findall(r"(?<![\w./-])(?:pa|privacy_assets)((?:\.[A-Za-z_]\w*)+)", piece.text):
        found: Any = privacy_assets
        for part in name[1:].split("."):
            with suppress(ImportError):
                import_module(f"{getattr(found, '__name__', '')}.{part}")
            found = getattr(found, part, None)
            if found is None:
                yield f"privacy_assets{name}"
                break


def calls(piece: Piece) -> Iterator[str]:
    """Yield functions and keywords that do not exist."""
    if piece.language not in (None, "python"):
        return
    assigned = re.fullmatch(r"([a-z_]+)=(?!=).*", piece.text)
    if piece.language is None and assigned and assigned[1] not in keywords():
        yield piece.text
    try:
        tree = ast.parse(piece.text)
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name | ast.Attribute):
            continue
        name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
        given = {one.arg for one in node.keywords if one.arg}
        if name in public():
            known = given if name == "resources" else accepted(name)  # resources have any key
            yield from (f"{name}({one}=)" for one in sorted(given - known))
        elif piece.language is None:
            yield from (
                f"{name}({one})" for one in sorted(({name} - identifiers()) | (given - keywords()))
            )


def dotted(piece: Piece) -> Iterator[str]:
    """Yield statistics, files, tests, classes and attributes in spans that do not exist."""
    if piece.language is not None:
        return
    text = piece.text
    if found := re.fullmatch(r"([\w./-]+\.py)(?:::(\w+))?", text):
        matches = [path for path in CODE if f"/{path.relative_to(ROOT)}".endswith(f"/{found[1]}")]
        tests = [found[2]] if found[2] else []
        if not matches or not all(
            f"def {test}(" in path.read_text() for test in tests for path in matches
        ):
            yield text
    elif re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", text):
        first, last = text.split(".", 1)[0], text.rsplit(".", 1)[-1]
        if first in METRICS:
            if text not in statistic_specs():
                yield text
        elif not is_file(text) and last not in identifiers():
            yield text
    elif re.fullmatch(r"([A-Z][a-z0-9]+){2,}", text) and text not in identifiers():
        yield text


def is_file(text: str) -> bool:
    """Whether a dotted name ends as files do."""
    return (
        re.fullmatch(
            r"json|jsonl|yaml|toml|md|key|check|parquet|html|csv|txt|cfg|npz|sh|pem",
            text.rsplit(".", 1)[-1],
        )
        is not None
    )


def command_line(piece: Piece) -> Iterator[str]:
    """Yield commands and options of ``privacy-assets`` that do not exist."""
    if piece.language in ("python", "yaml", "diff"):
        return
    for line in piece.text.replace("\\\n", " ").splitlines():
        try:
            words = shlex.split(line, comments=piece.language is not None)
        except ValueError:
            continue
        words = [word.removeprefix(".venv/bin/") for word in words]
        if (
            piece.language is None
            and words
            and (words[0].startswith("--") or words[0] in options(""))
        ):
            words = ["privacy-assets", *words]
        if "privacy-assets" not in words:
            continue
        command, *rest = [*words[words.index("privacy-assets") + 1 :], ""]
        asked = {word.split("=")[0] for word in (command, *rest) if word.startswith("--")}
        if command.startswith("--"):
            offered = frozenset().union(*map(options, options("")))
        elif command and command not in options(""):
            if re.fullmatch(r"[a-z-]+", command):
                yield f"privacy-assets {command}"
            continue
        else:
            offered = options(command)
        yield from (f"privacy-assets {command}: {one}" for one in sorted(asked - offered))


def declared(piece: Piece) -> Iterator[str]:
    """Yield settings in YAML that do not exist."""
    if piece.language not in (None, "yaml") or not re.search(
        r"^[{\w]+.*:", piece.text, re.MULTILINE
    ):
        return
    with suppress(yaml.YAMLError):
        found = yaml.safe_load(piece.text)
        if isinstance(found, Mapping) and all(
            isinstance(key, str) and key.isidentifier() for key in found
        ):
            yield from undeclared(found, None)


def undeclared(given: Mapping[str, Any], kind: Any) -> Iterator[str]:
    """Yield the keys of ``given``, the settings of ``kind``, that do not exist."""
    groups = {group.part: group for group in GROUPS} | METRICS | GENERATORS | FILTERS
    known = settings() if kind is None else fields(kind)
    for key, value in given.items():
        if key not in known and not re.search(rf"\b{key}:", configuration()):
            yield key
        elif key == "metrics" and isinstance(value, Mapping):
            yield from (f"metrics: {name}" for name in value if name not in METRICS)
            inner = [(METRICS[name], own) for name, own in value.items() if name in METRICS]
            for metric, own in inner:
                yield from undeclared(own, metric) if isinstance(own, Mapping) else ()
        elif key in groups and isinstance(value, Mapping):
            yield from undeclared(value, groups[key])


@cache
def configuration() -> str:
    """Return the text of the YAML files of this repository, whose keys belong to other programs."""
    return "\n".join(path.read_text() for path in CODE if path.suffix in (".yaml", ".yml"))


def variables(page: str) -> Iterator[str]:
    """Yield environment variables of a page that no code reads."""
    for name in re.findall(r"\bPRIVACY_ASSETS_[A-Z_]+", page):
        if not re.search(rf"\b{name}\b", text_of_the_code()):
            yield name


def targets(piece: Piece) -> Iterator[str]:
    """Yield targets of make that do not exist."""
    there = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    if piece.language in (None, "sh", "bash"):
        named = re.findall(r"^make ((?:[a-z-]+ ?)+)", piece.text, re.MULTILINE)
        yield from (
            f"make {name}" for names in named for name in names.split() if name not in there
        )


CHECKS: tuple[Callable[[Piece], Iterator[str]], ...] = (
    imports, calls, dotted, command_line, declared, targets,
)  # fmt: skip


def wrong(page: str) -> list[str]:
    """Return all names and calls of a page that do not exist, except names that its Python blocks
    use or write.
    """
    found = list(pieces(page))
    own: set[str] = set()
    for piece in found:
        # a file that the block writes
        own.update(re.findall(r"\A# (\S+\.py)$", piece.text, re.MULTILINE))
        with suppress(SyntaxError):
            own |= names_in(ast.parse(piece.text)) if piece.language == "python" else set()
    named = {name for piece in found for check in CHECKS for name in check(piece)} | {
        *variables(page)
    }
    return sorted(name for name in named - OTHERS if name.partition("=")[0] not in own)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_name_and_call_exists(page: Path) -> None:
    assert wrong(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("`pa.evaluat(...)`", "privacy_assets.evaluat"),
        ("`privacy_assets.report.pages`", "privacy_assets.report.pages"),
        (
            "```python\nimport privacy_assets as pa\n\npa.Policy.large()\n```",
            "privacy_assets.Policy.large",
        ),
        ("set `together=True` there", "together=True"),
        ("`build_privacy_assets(together=True)`", "build_privacy_assets(together=)"),
        ("`evaluate(...,\nholdouts=...)`", "evaluate(holdouts=)"),
        ("```python\npa.read_published('r', 't', keys='k')\n```", "read_published(keys=)"),
        ("`open_the_gate()`", "open_the_gate(open_the_gate)"),
        ("`GateKeeper`", "GateKeeper"),
        ("`TableRun.unpublish`", "TableRun.unpublish"),
        ("`dcr.privacy_scores`", "dcr.privacy_scores"),
        ("`gate/test_gates.py`", "gate/test_gates.py"),
        ("`gate/test_gate.py::test_it`", "gate/test_gate.py::test_it"),
        ("`privacy-assets judge`", "privacy-assets judge"),
        (
            "```sh\nprivacy-assets power --train 5 \\\n    --hold 5\n```",
            "privacy-assets power: --hold",
        ),
        ("```text\nprivacy-assets verify t --pem k\n```", "privacy-assets verify: --pem"),
        ("`releases TABLE --roll-back ID`", "privacy-assets releases: --roll-back"),
        ("`--no-such-option=3`", "privacy-assets --no-such-option=3: --no-such-option"),
        ("`data: {together: true}`", "together"),
        ("`split: {shares: {}}`", "shares"),
        ("`metrics: {dcr: {alpa: 0.1}}`", "alpa"),
        ("`evaluation: {metrics: {drc: {}}}`", "metrics: drc"),
        ("```yaml\nname: strict\nextend: default\n```", "extend"),
        ("set PRIVACY_ASSETS_" + "HOUSE", "PRIVACY_ASSETS_" + "HOUSE"),
        ("```sh\nmake demos # it\n```", "make demos"),
    ],
)
def test_names_that_do_not_exist_are_found(text: str, name: str) -> None:
    assert name in wrong(text)
