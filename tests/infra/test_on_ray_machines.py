"""A Ray cluster of several machines: losing one during the work costs a retry, not the run."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from privacy_assets import on_ray
from privacy_assets.distances.nearest import nearest_rows
from privacy_assets.errors import ConfigError
from privacy_assets.generators.registry import build_generator
from privacy_assets.infra.parallel import RayWorkers, at_once, threads, using
from privacy_assets.tables.encoding import EncodedTable
from tests.rays import ray_alone
from tests.studies.shadow_standins import small_audit, small_table

ray = pytest.importorskip("ray", reason="the extra 'ray' is not installed")
pytestmark = pytest.mark.weekly


class Machines:
    """A head and three further machines of one CPU each, all of them processes here."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self.cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
        )
        self.others = [self.cluster.add_node(num_cpus=1) for _ in range(3)]
        self.cluster.wait_for_nodes()

    @contextmanager
    def losing(self, begun: threading.Event, pause: float) -> Iterator[None]:
        """Kill one of the machines in the ``with`` block, ``pause`` seconds after the work has
        begun.
        """
        lost: list[float] = []

        def lose() -> None:
            begun.wait(60)
            time.sleep(pause)
            self.cluster.remove_node(self.others.pop(), allow_graceful=False)
            lost.append(time.monotonic())

        thread = threading.Thread(target=lose)
        thread.start()
        yield
        ended = time.monotonic()
        thread.join()
        assert lost and lost[0] < ended


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machines]:
    with ray_alone():
        monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
        made = Machines()
        ray.init(made.cluster.address, log_to_driver=False)
        yield made
        ray.shutdown()
        made.cluster.shutdown()


def rows(count: int, seed: int) -> EncodedTable:
    rng = np.random.default_rng(seed)
    sizes = np.array([5, 9, 3, 12, 2, 7], dtype=np.int64)
    codes = np.column_stack([rng.integers(0, size, count) for size in sizes]).astype(np.int32)
    return EncodedTable(rng.normal(size=(count, 6)).astype(np.float32), codes, sizes)


def test_machines_lost_in_a_search_and_in_an_audit_cost_a_retry_each(machines: Machines) -> None:
    points, queries = rows(60_000, 0), rows(60_000, 1)
    generator = build_generator("rvae", {"epochs": 3})
    asked: dict[str, Any] = {"table": small_table(), "max_targets": 2, "shadows": 64, "tests": 8}
    alone = nearest_rows(queries, points, k=3), small_audit(generator, **asked)
    begun = threading.Event()
    with using(RayWorkers()):
        assert at_once() == 4
        nearest_rows(rows(20_000, 2), points)  # wakes the workers
        begun.set()
        with machines.losing(begun, 0.7):
            found = nearest_rows(queries, points, k=3)
        begun.clear()
        with machines.losing(begun, 0):
            audit = small_audit(generator, progress=lambda text: begun.set(), **asked)
    assert at_once() == threads()
    np.testing.assert_array_equal(found.indices, alone[0].indices)
    np.testing.assert_array_equal(found.distances, alone[0].distances)
    assert [record.scores.tolist() for record in audit.records] == [
        one.scores.tolist() for one in alone[1].records
    ]


def test_a_cluster_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match="no Ray cluster is connected"):
        RayWorkers().run(str, [1, 2])
    for address in ("127.0.0.1:1", "ray://127.0.0.1:1", "ray://127.0.0.1", "", "foo:bar"):
        with (
            pytest.raises(ConfigError, match=f"no Ray cluster at '{address}'. Fix: pass auto"),
            on_ray(address),
        ):
            pass
    with pytest.raises(ConfigError, match="retries must be at least 0"):
        RayWorkers(retries=-1)
