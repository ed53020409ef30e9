"""One served deployment for all tests of this folder."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "plugin"))  # standins

from served import Served
from serving import serve
from standins import people


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("deployment")
    people(100).to_parquet(root / "people.parquet")
    with serve(root) as running:
        yield running


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Show the ends of the logs with a failure."""
    report = yield
    running = getattr(item, "funcargs", {}).get("served")
    if report.failed and running is not None:
        report.sections += [(f"end of the log of {name}", text) for name, text in running.log_tails()]
    return report
