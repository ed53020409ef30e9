"""Package structure: imports form no cycles, and orchestrators are imported in their packages
only.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.code_counts import cycles
from tests.shipped import METRICS

PACKAGE = Path(__file__).parents[1] / "privacy_assets"
# Each may import the packages listed before it.
LAYERS = (
    "errors",
    "version",
    "infra",
    "tables",
    "stats",
    "policy",
    "distances",
    "generators",
    "networks",
    "metrics",
    "gate",
    "report",
    "evaluation",
    "pipeline",
    "dagster",
    "airflow",
    "studies",
    "cli",
    "__main__",
)
# Words that name a metric and have another meaning as well, by the modules that use the other
# meaning.
OTHERWISE = {
    "memorization": {"generators.filters", "pipeline.spec", "report.advice"},  # the filter
    "vulnerability": {"cli.audit"},  # the score of a record
    "data_privacy": {"dagster.demo"},  # the demo measures it
    "dcr": {"policy"},  # an example in a message about the form METRIC.STATISTIC
}
NAMES = set(METRICS) - {"copies"}  # a common word, so its location is not evidence
WITH_METRICS = {"metrics", "studies"}
# by library: the packages that may import it
ORCHESTRATORS = {"dagster": {"dagster", "studies", "cli"}, "airflow": {"airflow"}}


@cache
def modules() -> dict[str, ast.Module]:
    """Every module of the package by its dotted name, without the package's name."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = ast.parse(path.read_text(encoding="utf-8"))
    return {name: tree for name, tree in found.items() if name}


def statements(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """All import statements, also those for the type checker."""
    yield from (node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))


@cache
def imported(name: str) -> set[str]:
    """The package's modules that a module imports, or names like a registry: "module:Class"."""
    known, found = modules(), set()
    for text in texts(known[name]):
        place = re.fullmatch(r"privacy_assets\.([\w.]+):\w+", text)
        found |= {place[1]} if place else set()
    for node in statements(known[name]):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("privacy_assets."):
            base = str(node.module).removeprefix("privacy_assets.")
            found |= {
                f"{base}.{one.name}" if f"{base}.{one.name}" in known else base
                for one in node.names
            }
    return found - {name}


def texts(tree: ast.AST) -> Iterator[str]:
    """The strings of a module, except docstrings."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        yield from texts(node)


def layer(name: str) -> str:
    return name.partition(".")[0]


def test_every_module_stands_in_a_room() -> None:
    assert {layer(name) for name in modules()} == set(LAYERS)


@pytest.mark.parametrize("name", LAYERS)
def test_imports_run_one_way(name: str) -> None:
    above = LAYERS[LAYERS.index(name) + 1 :]
    wrong = [
        (one, other)
        for one in modules()
        if layer(one) == name
        for other in imported(one)
        if layer(other) in above
    ]
    assert wrong == []


ROOMS = {"networks", "studies"}  # found by entry points
# Modules outside of the rooms that import torch: the embedder, the search of neighbors on a device,
# and the list of devices.
WITH_TORCH = {
    "distances.embedder",
    "distances.exact_search",
    "distances.network",
    "infra.devices",
}


def test_only_two_commands_import_networks_or_studies() -> None:
    importers = {
        name
        for name in modules()
        if layer(name) not in ROOMS and any(layer(other) in ROOMS for other in imported(name))
    }
    assert importers == {"cli.audit", "cli.leak_study"}
    assert not any(layer(other) == "networks" for name in importers for other in imported(name))


def test_without_the_rooms_only_the_embedder_and_devices_import_torch() -> None:
    importers = {name for name in modules() if imports_library(name, "torch")}
    assert {name for name in importers if layer(name) not in ROOMS} == WITH_TORCH
    assert any(layer(name) == "networks" for name in importers), "the test sees imports"


def test_one_module_of_the_studies_imports_dagster() -> None:
    importers = {name for name in modules() if imports_library(name, "dagster")}
    assert {name for name in importers if layer(name) == "studies"} == {"studies.leak_study_job"}


def test_imports_form_no_cycle() -> None:
    assert cycles({name: imported(name) for name in modules()}) == []


@pytest.mark.parametrize(("library", "layers"), ORCHESTRATORS.items())
def test_only_its_room_imports_an_orchestrator(library: str, layers: set[str]) -> None:
    assert {layer(name) for name in modules() if imports_library(name, library)} <= layers


def imports_library(name: str, library: str) -> bool:
    """Whether a module imports another library, also for the type checker."""
    for node in statements(modules()[name]):
        names = [str(getattr(node, "module", ""))]
        if isinstance(node, ast.Import):
            names = [one.name for one in node.names]
        if library in {one.partition(".")[0] for one in names}:
            return True
    return False


def words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text))


def test_metrics_are_named_in_their_room_alone() -> None:
    """A metric declares the facts that other modules need: see ``metrics.base``."""
    named = {
        name: set().union(*map(words, texts(tree))) & NAMES for name, tree in modules().items()
    }
    assert (
        set().union(*(found for name, found in named.items() if layer(name) in WITH_METRICS))
        == NAMES
    )
    wrong = {
        (name, metric)
        for name, found in named.items()
        for metric in found
        if layer(name) not in WITH_METRICS and name not in OTHERWISE.get(metric, ())
    }
    assert wrong == set()
    assert {
        (word, name)
        for word, names in OTHERWISE.items()
        for name in names
        if word not in named[name]
    } == set()
    pages = [
        path for path in PACKAGE.rglob("*.j2") if words(path.read_text(encoding="utf-8")) & NAMES
    ]
    assert pages == []


# Modules of single metrics that other packages import.
SINGLE_METRICS = {
    ("pipeline.work", "metrics.cumulative_disclosure"),
}
OF_ALL_METRICS = {
    "base",
    "inputs",
    "ledger",
    "policies",
    "registry",
    "release_tables",
    "stored_inputs",
}


def test_other_packages_import_single_metrics_only_where_the_interface_states_it() -> None:
    importers = {
        (name, module)
        for name in modules()
        for module in imported(name)
        if layer(name) not in WITH_METRICS
        and layer(module) == "metrics"
        and module.split(".")[1] not in OF_ALL_METRICS
    }
    assert importers == SINGLE_METRICS


def looked_up_names(tree: ast.AST) -> Iterator[str]:
    """Names that are compared with the metric of a limit, or looked up in results."""
    for node in ast.walk(tree):
        match node:
            case ast.Compare(ast.Attribute(attr="metric"), _, [ast.Constant(str(name))]):
                yield name
            case ast.Subscript(ast.Name("results"), ast.Constant(str(name))):
                yield name
            case ast.Call(ast.Attribute(ast.Name("results"), "get"), [ast.Constant(str(name)), *_]):
                yield name


def test_other_packages_look_no_metric_up_by_its_name() -> None:
    found = {
        (name, metric)
        for name, tree in modules().items()
        if layer(name) not in WITH_METRICS
        for metric in looked_up_names(tree)
    }
    assert found & {(name, metric) for name, _ in found for metric in METRICS} == set()


def test_no_orchestrator_knows_the_other() -> None:
    others = {"dagster": "airflow", "airflow": "dagster"}
    wrong = [
        (name, one)
        for name in modules()
        for one in imported(name)
        if layer(one) == others.get(layer(name))
    ]
    assert wrong == []
