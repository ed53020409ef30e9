"""One gate for each test, and one object store for all of them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from gate_standins import VARIABLE, Chain, chain, make_gate

from privacy_assets.gate.gate import Gate
from privacy_assets.gate.releases import TRUSTED_VARIABLE
from tests.stores import extend_to_null, s3


@pytest.fixture(autouse=True)
def _no_keys_of_the_developer(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        VARIABLE,
        TRUSTED_VARIABLE,
        "PRIVACY_ASSETS_SIGNING_KEY",
        "PRIVACY_ASSETS_SPLIT_KEY",
    ):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def _server() -> Iterator[dict[str, str]]:
    with s3() as environment:
        yield environment


@pytest.fixture(scope="module")
def store(_server: dict[str, str]) -> Iterator[None]:
    """An object store that this module can reach."""
    with extend_to_null(_server):
        yield


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return make_gate(tmp_path)


@pytest.fixture
def ready(gate: Gate) -> Chain:
    """Everything signed, with verdict "pass"; only the publication is left."""
    return chain(gate)
