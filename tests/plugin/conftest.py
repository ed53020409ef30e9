"""Deployments of these tests have keys that are new in every test and the same in every run."""

from __future__ import annotations

import hashlib
import itertools
from types import SimpleNamespace

import pytest

from privacy_assets.pipeline import deployment


@pytest.fixture(autouse=True)
def _known_secrets(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key decides who stands on which side: figures near a limit would break one run in many."""
    numbers = itertools.count()

    def token_bytes(size: int) -> bytes:
        return hashlib.sha256(f"{request.node.nodeid} {next(numbers)}".encode()).digest()[:size]

    monkeypatch.setattr(deployment, "secrets", SimpleNamespace(token_bytes=token_bytes))
