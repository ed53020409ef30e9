"""One served deployment for all tests of this folder."""

from collections.abc import Iterator

import pytest
from served import Served
from serving import serve
from standins import people


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("deployment")
    people(600).to_parquet(root / "people.parquet")
    with serve(root) as running:
        yield running


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Show the last log lines with a failure."""
    report = yield
    running = getattr(item, "funcargs", {}).get("served")
    if report.failed and running is not None:
        report.sections += [
            (f"end of the log of {name}", text) for name, text in running.log_tails()
        ]
    return report
