"""The way of a private table through the code, from its file to the release.

A stop is a function of the package that another module calls with rows of the table, or that
returns them to it: frames, columns, Arrow tables, and mappings and lists of these. The modules of
the containers of rows are the vocabulary of all others, and their functions are not stops. Neither
are properties, local functions, and functions that a container calls for their own module.
CONTRIBUTING.md lists the stops.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MOST_STOPS = 40
TABLE = """
name: people
source: people.csv
subject: id
policy:
  name: one limit
  limits:
    - {statistic: value_disclosure.own_values, at_most: 0.005}
evaluation: {embedder: false}
"""
RUN = '''
import functools
import inspect
import json
import sys
import threading
from types import FrameType
from typing import Any

import pandas as pd
import pyarrow as pa

from privacy_assets.cli.main import main
from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.metrics.release_tables import ReleaseTables
from privacy_assets.tables.column import Column
from privacy_assets.tables.encoding import EncodedTable
from privacy_assets.tables.stored import StoredTable
from privacy_assets.tables.table import Table

CONTAINERS = (Table, Column, StoredTable, EncodedTable, EvaluationInputs, ReleaseTables)
ROWS = (*CONTAINERS, pd.DataFrame, pd.Series, pa.Table, pa.ChunkedArray)
VOCABULARY = {
    "privacy_assets.metrics.stored_inputs",  # the file of EvaluationInputs
    *(container.__module__ for container in CONTAINERS),
}
DEPTH = 2  # of mappings and lists in one another


def has_rows(value: Any, depth: int = DEPTH) -> bool:
    if isinstance(value, ROWS):
        return True
    if depth == 0:
        return False
    if isinstance(value, dict):
        return any(has_rows(each, depth - 1) for each in value.values())
    return isinstance(value, list | tuple) and any(has_rows(each, depth - 1) for each in value)


def module_of(frame: FrameType) -> str:
    return frame.f_globals.get("__name__", "")


def caller_of(frame: FrameType) -> str:
    """Return the module that called a function, directly or through a container."""
    caller = frame.f_back
    while caller is not None:
        module = module_of(caller)
        if module.startswith("privacy_assets.") and module not in VOCABULARY:
            return module
        caller = caller.f_back
    return ""


@functools.cache
def is_property(module: str, name: str) -> bool:
    member: Any = sys.modules[module]
    for part in name.split("."):
        member = inspect.getattr_static(member, part, None)
    return isinstance(member, property | functools.cached_property)


n_calls = 0
started: dict[int, int] = {}
stops: dict[str, int] = {}  # number of the first call


def watch(frame: FrameType, event: str, returned: Any) -> None:
    global n_calls
    module = module_of(frame)
    code = frame.f_code
    name = code.co_qualname
    if not module.startswith("privacy_assets.") or module in VOCABULARY or "<" in name:
        return
    if event == "call":
        n_calls += 1
        started[id(frame)] = n_calls
        arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        passes_rows = any(has_rows(frame.f_locals.get(argument)) for argument in arguments)
    elif event == "return":
        passes_rows = has_rows(returned)
    else:
        return
    if not passes_rows or caller_of(frame) == module or is_property(module, name):
        return
    stop = f"{module.removeprefix('privacy_assets.')}.{name}"
    stops[stop] = min(stops.get(stop, n_calls), started.get(id(frame), n_calls))


sys.setprofile(watch)
threading.setprofile(watch)
status = main(["run", "people.yaml"])
sys.setprofile(None)
with open("stops.json", "w") as file:
    json.dump([status, sorted(stops, key=stops.__getitem__)], file)
'''


def stops_of_a_run(folder: Path) -> list[str]:
    """Run a table with an id and a column of text, and return its stops in the order of their first
    calls.
    """
    rows = ["id,town"]
    for i in range(1600):
        # most towns are frequent, and some are rare
        town = i % 40 if i % 10 else i // 10
        rows.append(f"{i},town {town}")
    (folder / "people.csv").write_text("\n".join(rows))
    (folder / "people.yaml").write_text(TABLE)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [sys.executable, "-c", RUN], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    status, stops = json.loads((folder / "stops.json").read_text())
    assert status == 0, run.stdout + run.stderr
    return list(stops)


def stops_in_contributing() -> list[str]:
    """Return the stops of the list in CONTRIBUTING.md, whose numbers count up."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.split("## The way of a table\n")[1].split("\n## ")[0]
    numbered = re.findall(r"^(\d+)\. `([\w.]+)`: ", section, flags=re.MULTILINE)
    assert [int(number) for number, _ in numbered] == list(range(1, len(numbered) + 1))
    return [stop for _, stop in numbered]


@pytest.mark.slow
def test_the_way_of_a_table_is_short_and_as_contributing_shows_it(tmp_path: Path) -> None:
    stops = stops_of_a_run(tmp_path)
    assert stops == stops_in_contributing()
    assert len(stops) <= MOST_STOPS
