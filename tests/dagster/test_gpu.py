"""The GPU resource."""

# No `from __future__ import annotations` here: Dagster reads the annotations of local assets.

import dagster as dg
import pytest

from privacy_assets.dagster.resources import GpuResource
from privacy_assets.errors import ConfigError, LeaseTimeout
from privacy_assets.infra import devices

CARD = devices.Device("cuda:0", "cuda-GPU-0")


@pytest.fixture
def card(monkeypatch, tmp_path):
    """One simulated card, and a separate folder of temporary files."""
    monkeypatch.setattr(devices, "accelerators", lambda: [CARD])
    monkeypatch.setattr(devices.tempfile, "gettempdir", lambda: str(tmp_path))


def test_resources_without_a_folder_share_the_card(card, tmp_path):
    with GpuResource().lease() as device:
        assert device == "cuda:0"
        with (
            pytest.raises(LeaseTimeout, match="cuda:0 is held by process"),
            GpuResource(timeout_s=0).lease(),
        ):
            pytest.fail("leased twice")
        with GpuResource(timeout_s=0, lock_folder=str(tmp_path / "other")).lease() as other:
            assert other == "cuda:0"
    with GpuResource(timeout_s=0).lease():
        pass


def test_waiting_shows_in_a_runs_log(card):
    @dg.asset
    def waits(context: dg.AssetExecutionContext, gpu: GpuResource) -> None:
        with gpu.lease(context.log):
            pytest.fail("leased twice")

    with GpuResource().lease(), dg.DagsterInstance.ephemeral() as instance:
        result = dg.materialize(
            [waits],
            resources={"gpu": GpuResource(timeout_s=0.3)},
            instance=instance,
            raise_on_error=False,
        )
        entries = [entry.user_message for entry in instance.all_logs(result.run_id)]
    assert not result.success
    assert any("cuda:0 is held by process" in entry for entry in entries)


def linked(folder):
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to(folder.with_name("elsewhere"))


@pytest.mark.parametrize("change", [lambda folder: folder.chmod(0o777), linked])
def test_folder_of_somebody_else_and_a_link_are_blocked(card, tmp_path, change):
    with GpuResource().lease():
        pass
    folder = next(tmp_path.glob("privacy-assets-*"))
    assert folder.stat().st_mode & 0o777 == 0o700
    change(folder)
    with pytest.raises(ConfigError, match="lock_folder"), GpuResource().lease():
        pytest.fail("trusted it")


def test_slots(card):
    shared = GpuResource(slots=2, timeout_s=0)
    with shared.lease(), shared.lease(), pytest.raises(LeaseTimeout), shared.lease():
        pytest.fail("a third holder")
    with pytest.raises(Exception, match="slots"):
        GpuResource(slots=0)
