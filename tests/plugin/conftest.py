"""Deployments of these tests have secrets that are the same in every test and every run, so tables are, too.

Their generators are functions, which the package calls in a process of its own: a third of the time of a small run.
That it does, and what such a process can see and say, is tested in tests/generators/test_generators.py and by the files
here that say ``FUNCTIONS_APART = True``; in all others the same program runs in the process of the test.

Great Expectations takes a quarter of the time of such a run: it looks at the same table once a session.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from types import SimpleNamespace

import dagster as dg
import pytest
from routes import World
from standins import look_once, run_functions_here

from privacy_assets.pipeline import deployment

_SECRETS = SimpleNamespace(made=0)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as found:
        yield found


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One deployment for all tests of a file."""
    with World.open(tmp_path_factory.mktemp("world")) as opened:
        yield opened


@pytest.fixture(scope="module", autouse=True)
def _quicker(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if not getattr(request.module, "FUNCTIONS_APART", False):
            run_functions_here(patch)
        look_once(patch)
        yield


def _token_bytes(size: int) -> bytes:
    _SECRETS.made += 1
    return hashlib.sha256(f"secret {_SECRETS.made}".encode()).digest()[:size]


@pytest.fixture(scope="module", autouse=True)
def _known_secrets() -> Iterator[None]:
    """The key decides who stands on which side: statistics near a limit would break one run in many.

    Of a module, since fixtures of modules make deployments, too.
    """
    _SECRETS.made = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deployment, "secrets", SimpleNamespace(token_bytes=_token_bytes))
        yield


@pytest.fixture(autouse=True)
def _known_secrets_of_a_test(_known_secrets: None) -> None:
    _SECRETS.made = 0
