"""The GPU resource: one device, one holder at a time, across all processes of this machine."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg
from pydantic import Field

from privacy_assets.compute.devices import lease_device
from privacy_assets.dagster.fixed import FixedConfig

_LOGGER = logging.getLogger(__name__)


class GpuResource(FixedConfig, dg.ConfigurableResource):
    """Leases a device to the steps that use torch: the one lease there is, on the machine where the step works.

    ``device``: "auto" (a free CUDA device, else MPS, else the CPU), "cuda" (any), "cuda:1", "mps" or "cpu". ``slots``
    holders share one accelerator; the CPU is shared by all and not limited here (that is the executor's work).
    ``lock_folder`` must be the same for all who share the devices: by default a folder of the own user among the
    temporary files of this machine, whatever ``DAGSTER_HOME`` is; set it when containers or users share a GPU.
    ``timeout_s`` None waits for ever.
    """

    device: str = "auto"
    slots: int = Field(default=1, ge=1)
    lock_folder: str = ""
    timeout_s: float | None = None

    @contextmanager
    def lease(self, log: logging.Logger | None = None) -> Iterator[str]:
        """Hold a device for the ``with`` block; yields its torch name. Waiting is written to ``log`` (``context.log``).

        Raises LeaseTimeout when no device became free in time, ConfigError when the device is not there.
        """
        say = (log or _LOGGER).info
        with lease_device(self.lock_folder or None, self.device, self.slots, self.timeout_s, on_wait=say) as device:
            say(f"device: {device}")
            yield device
