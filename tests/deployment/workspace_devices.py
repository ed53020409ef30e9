"""Two tables on a CPU whose steps wait for each other, each with its device, and two assets that
need the one card.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
from standins import QUICK, independent, resources, table_of

from privacy_assets import GpuResource
from privacy_assets.infra import devices

ROOT = Path(os.environ["DEPLOYMENT_ROOT"])
TABLES, USERS = ("one", "other"), ("first", "second")
MEASURED = ("source", "train", "holdout", "reference", "embedder")


def wait(what: str, there: Callable[[], bool], seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not there():
        if time.monotonic() > end:
            raise RuntimeError(f"after {seconds:g} s there is still no {what}")
        time.sleep(0.05)


class Meeting(GpuResource):
    """Hold the device until another process has reached this point as well."""

    @contextmanager
    def lease(self, log: Any = None) -> Iterator[str]:
        with super().lease(log) as device:
            (ROOT / f"{os.getpid()}.{device}.met").touch()
            wait("other table", lambda: len(list(ROOT.glob("*.met"))) > 1)
            yield device


class Card(GpuResource):
    """A machine with one card, whatever the test machine has."""

    @contextmanager
    def lease(self, log: Any = None) -> Iterator[str]:
        devices.accelerators = lambda: [devices.Device("cuda:0", "cuda-GPU-0")]
        with super().lease(log) as device:
            yield device


def user_of_the_card(name: str) -> dg.AssetsDefinition:
    """An asset that holds the card until the file ``end`` exists, in a pool like steps with such
    `gpu_tags`.
    """

    @dg.asset(
        name=name, op_tags={"dagster/concurrency_key": "gpu"}, required_resource_keys={"card"}
    )
    def uses_the_card(context: dg.AssetExecutionContext) -> None:
        (ROOT / f"{name}.started").write_text(f"{os.getpid()} {os.getppid()}.")
        with context.resources.card.lease(context.log):
            (ROOT / f"{name}.has").touch()
            wait("end", (ROOT / "end").exists)

    return uses_the_card


def embedder_of(table: str) -> dg.AssetSelection:
    """The embedder of a table and its inputs; the first asset that has a device."""
    return dg.AssetSelection.assets(*([table, asset] for asset in MEASURED)).without_checks()


bound = resources(ROOT)
defs = dg.Definitions.merge(
    *(
        table_of(
            name,
            source=ROOT / "people.parquet",
            subject="pid",
            generator=independent,
            metrics=QUICK["metrics"],
            policy={**QUICK["policy"], "embedder": {"max_epochs": 1}},
        )
        for name in TABLES
    ),
    dg.Definitions(
        assets=[user_of_the_card(name) for name in USERS],
        jobs=[
            *(dg.define_asset_job(f"{table}_embedder", embedder_of(table)) for table in TABLES),
            *(
                dg.define_asset_job(f"{name}_job", [name], executor_def=dg.multiprocess_executor)
                for name in USERS
            ),
        ],
        resources={
            **(bound.resources or {}),
            "gpu": Meeting(device="cpu"),
            "card": Card(lock_folder=str(ROOT / "locks")),
        },
        executor=bound.executor,
    ),
)
