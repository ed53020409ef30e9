"""The GPU resource."""

# No `from __future__ import annotations` here: Dagster reads the annotations of local assets.

import logging

import dagster as dg
import pytest

from privacy_assets.compute import devices
from privacy_assets.dagster.gpu import GpuResource
from privacy_assets.errors import ConfigError, LeaseTimeout

CARD = devices.Device("cuda:0", "cuda-GPU-0")


@pytest.fixture
def card(monkeypatch, tmp_path):
    """One pretended card, and a folder of temporary files of our own."""
    monkeypatch.setattr(devices, "accelerators", lambda: [CARD])
    monkeypatch.setattr(devices.tempfile, "gettempdir", lambda: str(tmp_path))


def test_cpu_in_a_run():
    seen = []

    @dg.asset
    def uses_torch(context: dg.AssetExecutionContext, gpu: GpuResource) -> None:
        with gpu.lease(context.log) as device:
            seen.append(device)

    assert dg.materialize([uses_torch], resources={"gpu": GpuResource(device="cpu")}).success
    assert seen == ["cpu"]


def test_resources_without_a_folder_share_the_card(card, tmp_path):
    with GpuResource().lease() as device:
        assert device == "cuda:0"
        with pytest.raises(LeaseTimeout, match="cuda:0 is held by process"), GpuResource(timeout_s=0).lease():
            pytest.fail("leased twice")
        with GpuResource(timeout_s=0, lock_folder=str(tmp_path / "other")).lease() as other:
            assert other == "cuda:0"
    with GpuResource(timeout_s=0).lease():
        pass


def test_slots(card):
    shared = GpuResource(slots=2, timeout_s=0)
    with shared.lease(), shared.lease(), pytest.raises(LeaseTimeout), shared.lease():
        pytest.fail("a third holder")


def test_waiting_is_written_to_the_log(card, caplog):
    log = logging.getLogger("test_gpu")
    caplog.set_level(logging.INFO, logger="test_gpu")
    with GpuResource().lease(), pytest.raises(LeaseTimeout), GpuResource(timeout_s=0.3).lease(log):
        pytest.fail("leased twice")
    assert "waiting for a device: cuda:0 is held by process" in caplog.text


def test_waiting_shows_in_a_runs_log(card):
    @dg.asset
    def waits(context: dg.AssetExecutionContext, gpu: GpuResource) -> None:
        with gpu.lease(context.log):
            pytest.fail("leased twice")

    with GpuResource().lease(), dg.DagsterInstance.ephemeral() as instance:
        result = dg.materialize(
            [waits], resources={"gpu": GpuResource(timeout_s=0.3)}, instance=instance, raise_on_error=False
        )
        entries = [entry.user_message for entry in instance.all_logs(result.run_id)]
    assert not result.success
    assert any("cuda:0 is held by process" in entry for entry in entries)


def test_folder_of_somebody_else_is_refused(card, tmp_path):
    with GpuResource().lease():
        pass
    folder = next(tmp_path.glob("privacy-assets-*"))
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)
    with pytest.raises(ConfigError, match="lock_folder"), GpuResource().lease():
        pytest.fail("trusted an open folder")


def test_link_in_place_of_the_folder_is_refused(card, tmp_path):
    with GpuResource().lease():
        pass
    folder = next(tmp_path.glob("privacy-assets-*"))
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="lock_folder"), GpuResource().lease():
        pytest.fail("followed a link")


@pytest.mark.parametrize("slots", [0, -1])
def test_slots_are_checked_when_the_resource_is_made(slots):
    with pytest.raises(Exception, match="slots"):
        GpuResource(slots=slots)
