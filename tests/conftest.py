"""Fixtures shared by all tests, and two switches.

`PYTEST_SHUFFLE=7` runs the files, and the tests of each file, in an order drawn from that seed.
`PYTEST_CPU=costs.tsv` appends the CPU seconds of each test (its fixtures, itself, its teardown; children
that were waited for included) and of the import of each file to that file, as the tests end.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import signal
import sys
import threading
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import hypothesis
import pandas as pd
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

# The same examples in every run: another one that fails is found by whoever asks for more of them. Nothing is timed.
hypothesis.settings.register_profile(
    "repeatable",
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)
hypothesis.settings.load_profile("repeatable")

DATA = Path(__file__).with_name("data")
SHUFFLE = os.environ.get("PYTEST_SHUFFLE")
COSTS = os.environ.get("PYTEST_CPU")

# In the background of a script SIGINT is ignored; Dagster then has SIGTERM ignored as well, and children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Shuffle files as wholes: their fixtures are then made once, as in the usual order."""
    if SHUFFLE is None:
        return
    order = random.Random(SHUFFLE)
    files = [list(tests) for _, tests in groupby(items, key=lambda item: item.path)]
    order.shuffle(files)
    for tests in files:
        order.shuffle(tests)
    items[:] = [test for tests in files for test in tests]


def _note_cost(name: str, phase: str, since: os.times_result) -> None:
    if COSTS is not None:
        spent = sum(os.times()[:4]) - sum(since[:4])
        with open(COSTS, "a") as file:
            file.write(f"{spent:.2f}\t{phase}\t{name}\n")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    since = os.times()
    report = yield
    if isinstance(collector, pytest.Module):
        _note_cost(collector.nodeid, "import", since)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    since = os.times()
    try:
        return (yield)
    finally:
        _note_cost(item.nodeid, "fixtures", since)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    since = os.times()
    try:
        return (yield)
    finally:
        _note_cost(item.nodeid, "test", since)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    since = os.times()
    try:
        return (yield)
    finally:
        _note_cost(item.nodeid, "teardown", since)


@pytest.fixture(autouse=True)
def _known_keys(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """New signing keys are other ones in every test and the same in every run: some tests flip their bits."""
    numbers = itertools.count()

    def generate() -> Ed25519PrivateKey:
        drawn = hashlib.sha256(f"{request.node.nodeid} {next(numbers)}".encode()).digest()
        return Ed25519PrivateKey.from_private_bytes(drawn)

    monkeypatch.setattr(Ed25519PrivateKey, "generate", generate)


@pytest.fixture(autouse=True)
def _no_storage_of_a_closed_instance() -> None:
    """Instances that close in another order than they opened leave the storage of a dead one as the current one."""
    module = sys.modules.get("dagster._core.storage.defs_state.base")
    if module is not None:
        module._current_storage.set(None)


@pytest.fixture(scope="session")
def adult_file() -> pd.DataFrame:
    """UCI Adult, 48,842 rows x 15 columns, in the order of the file."""
    return pd.read_parquet(DATA / "adult.parquet")


@pytest.fixture(scope="session")
def adult(adult_file: pd.DataFrame) -> pd.DataFrame:
    """UCI Adult, shuffled by a fixed seed."""
    return adult_file.sample(frac=1, random_state=0).reset_index(drop=True)


@pytest.fixture(scope="session")
def uk_census() -> pd.DataFrame:
    """2011 census microdata, 50,000 rows x 17 columns, every column a category, shuffled by a fixed seed."""
    frame = pd.read_parquet(DATA / "uk_census.parquet").drop(columns=["Person ID"])
    return frame.astype(str).sample(frac=1, random_state=0).reset_index(drop=True)
