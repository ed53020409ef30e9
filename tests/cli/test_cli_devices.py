"""Commands take the same device lease as Dagster steps."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from privacy_assets.cli.main import main
from privacy_assets.dagster.resources import GpuResource
from privacy_assets.errors import ConfigError, LeaseTimeout
from privacy_assets.generators.copies import Copy
from privacy_assets.infra import devices
from privacy_assets.infra.devices import Device, lease_device

TABLES = ["--train", "t.parquet", "--holdout", "h.parquet", "--synthetic", "s.parquet"]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, bool]]:
    """On a machine with one card: the device that a command used, and whether the card was
    leased.
    """
    found: list[tuple[str, bool]] = []

    def work(*arguments: Any, device: str = "", **options: Any) -> None:
        try:
            with lease_device(device="cuda", timeout=0):
                taken = False
        except LeaseTimeout:
            taken = True
        found.append((device or arguments[-1], taken))
        raise ConfigError("this was all")

    monkeypatch.chdir(tmp_path)
    for name in ("t", "h", "s", "d"):
        Path(f"{name}.parquet").touch()  # exists, but is never read
    monkeypatch.setattr(devices, "accelerators", lambda: [Device("cuda:0", "cuda-GPU-0")])
    monkeypatch.setattr(devices.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("privacy_assets.evaluation.evaluate.evaluate", work)
    monkeypatch.setattr("privacy_assets.cli.leak_study._inputs", work)
    monkeypatch.setattr(Copy, "fit", work)
    monkeypatch.setattr(Copy, "modules", ("torch",))
    return found


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["evaluate", *TABLES], ("cuda:0", True)),
        (["evaluate", *TABLES, "--device=cuda:0"], ("cuda:0", True)),
        (["evaluate", *TABLES, "--device=cpu"], ("cpu", False)),
        (["evaluate", *TABLES, "--no-embedder"], ("cuda:0", False)),
        (["leak-study", "--data=d.parquet", "--out=o"], ("cuda:0", True)),
        (["leak-study", "--data=d.parquet", "--out=o", "--no-embedder"], ("cuda:0", False)),
        (
            ["leak-study", "--data=d.parquet", "--out=o", "--no-embedder", "--overfit=1.2"],
            ("cuda:0", True),
        ),
        (["generate", "--generator=copy", "--data=d.csv", "--out=s.csv"], ("cuda:0", True)),
        (
            ["generate", "--generator=copy", "--data=d.csv", "--out=s.csv", "--device=cpu"],
            ("cpu", False),
        ),
    ],
)
def test_a_command_that_uses_the_card_holds_it(
    command: list[str], expected: tuple[str, bool], seen: list[tuple[str, bool]]
) -> None:
    Path("d.csv").write_text("a,b\n" + "".join(f"{row},{row % 3}\n" for row in range(40)))
    assert main(command) == 2
    assert seen == [expected]
    with lease_device(device="cuda", timeout=0):
        pass


def test_a_command_waits_for_a_step_and_says_so(
    seen: list[tuple[str, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    heard, waiting = [], threading.Event()

    def say(text: str) -> None:
        heard.append(text)
        waiting.set()

    monkeypatch.setattr("privacy_assets.cli.main.watched", lambda: nullcontext(say))
    with GpuResource().lease():
        command = threading.Thread(target=main, args=(["evaluate", *TABLES],))
        command.start()
        assert waiting.wait(60) and not seen
    command.join(60)
    assert "cuda:0 is held by process" in heard[0] and seen == [("cuda:0", True)]
