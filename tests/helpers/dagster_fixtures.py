"""Deployments of these tests have the same secrets in every test and every run, so their tables are
reproducible.

Their generators are functions, which the package calls in a separate process. This takes a third of
the time of a small run, so the test's own process runs the program, except in files with
``FUNCTIONS_APART = True``. Those files and tests/generators/test_user_code.py test the separate
process, its inputs and its output.

Great Expectations takes a quarter of the time of such a run, so it validates each table only once
per session.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from types import SimpleNamespace

import dagster as dg
import pytest
from bypasses import World
from standins import look_once, run_functions_here

from privacy_assets.gate import deployment

_SECRETS = SimpleNamespace(n_made=0)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as ephemeral:
        yield ephemeral


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
    _SECRETS.n_made += 1
    return hashlib.sha256(f"secret {_SECRETS.n_made}".encode()).digest()[:size]


@pytest.fixture(scope="module", autouse=True)
def _known_secrets() -> Iterator[None]:
    """Fix the secrets, because the key decides the split: statistics near a limit would fail in one
    run of many.

    The scope is the module, because fixtures of modules create deployments, too.
    """
    _SECRETS.n_made = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deployment, "secrets", SimpleNamespace(token_bytes=_token_bytes))
        yield


@pytest.fixture(autouse=True)
def _known_secrets_of_a_test(_known_secrets: None) -> None:
    _SECRETS.n_made = 0
