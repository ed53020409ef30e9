"""One gate a test."""

from pathlib import Path

import pytest
from gate_standins import VARIABLE, make_gate

from privacy_assets.gate.gate import Gate
from privacy_assets.gate.releases import TRUSTED_VARIABLE


@pytest.fixture(autouse=True)
def _no_keys_of_the_developer(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (VARIABLE, TRUSTED_VARIABLE, "PRIVACY_ASSETS_SIGNING_KEY", "PRIVACY_ASSETS_SECRET"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return make_gate(tmp_path)
