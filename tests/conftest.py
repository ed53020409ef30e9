"""Fixtures shared by all tests, and two switches.

`PYTEST_SHUFFLE=7` runs the files, and the tests of each file, in an order drawn from that seed.
`PYTEST_CPU=costs.tsv` appends the CPU seconds of each test (its fixtures, itself, its teardown;
children that were waited for included) and of the import of each file to that file, as the tests
end.
"""

from __future__ import annotations

import fcntl
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
from typing import Any

import holders
import hypothesis
import pandas as pd
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

# The same examples in every run. A search with other examples must be started on purpose. Tests
# have no deadline.
hypothesis.settings.register_profile(
    "repeatable",
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)
hypothesis.settings.load_profile("repeatable")

# Tests have deployments of their own, and never use that of the environment, such as the one of
# `make demo`.
os.environ.pop("DAGSTER_HOME", None)
for _name in ("PRIVATE", "RELEASES", "SECRET", "SIGNING_KEY", "STORAGE", "TRUSTED_KEYS"):
    os.environ.pop(f"PRIVACY_ASSETS_{_name}", None)

DATA = Path(__file__).with_name("data")
SHUFFLE = os.environ.get("PYTEST_SHUFFLE")
COSTS = os.environ.get("PYTEST_CPU")

# A script's background jobs ignore SIGINT; Dagster then ignores SIGTERM as well, and children
# inherit this.
if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    and threading.current_thread() is threading.main_thread()
):
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Count the people of each released cell, and compile each kernel in one worker: the others
    load it from disk.
    """
    holders.install()
    if not hasattr(config, "workerinput"):
        return
    from numba.core.compiler_lock import global_compiler_lock
    from numba.core.dispatcher import Dispatcher

    locks = config.rootpath / ".pytest_cache" / "kernels"
    locks.mkdir(parents=True, exist_ok=True)
    compile_kernel = Dispatcher.compile

    def compile_once(self: Any, signature: Any) -> Any:
        name = f"{self.py_func.__module__}.{self.py_func.__qualname__}"
        if not name.startswith("privacy_assets."):  # compiled with the kernel that calls it
            return compile_kernel(self, signature)
        # in this order: kernels call each other
        with global_compiler_lock, open(locks / name, "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return compile_kernel(self, signature)

    Dispatcher.compile = compile_once


def pytest_itemcollected(item: pytest.Item) -> None:
    """Weekly tests are slow ones, too."""
    if item.get_closest_marker("weekly") is not None:
        item.add_marker("slow")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Shuffle files as a whole, so that their fixtures are created once, as in the usual order."""
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
    """New signing keys differ between tests and are the same in every run, because some tests flip
    their bits.
    """
    numbers = itertools.count()

    def generate() -> Ed25519PrivateKey:
        drawn = hashlib.sha256(f"{request.node.nodeid} {next(numbers)}".encode()).digest()
        return Ed25519PrivateKey.from_private_bytes(drawn)

    monkeypatch.setattr(Ed25519PrivateKey, "generate", generate)


@pytest.fixture(autouse=True)
def _no_storage_of_a_closed_instance() -> None:
    """Instances that close in another order than they opened leave a closed instance's storage as
    the current one.
    """
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
    """2011 census microdata, 50,000 rows x 17 columns, every column a category, shuffled by a fixed
    seed.
    """
    frame = pd.read_parquet(DATA / "uk_census.parquet").drop(columns=["Person ID"])
    return frame.astype(str).sample(frac=1, random_state=0).reset_index(drop=True)
