"""A Ray cluster of three machines: a machine that is lost in the middle costs a retry, not the run."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from privacy_assets import on_ray
from privacy_assets.compute.on_ray import RayWorkers
from privacy_assets.compute.parallel import at_once, threads, using
from privacy_assets.errors import ConfigError
from privacy_assets.generators.registry import build_generator
from privacy_assets.neighbours.nearest import nearest_rows
from privacy_assets.tables.encoding import EncodedTable
from tests.rays import ray_alone
from tests.shadow.shadow_standins import small_audit, small_table

ray = pytest.importorskip("ray", reason="the extra 'ray' is not installed")
pytestmark = pytest.mark.slow


class Machines:
    """A head and further machines of one CPU each, all of them processes here."""

    def __init__(self, others: int) -> None:
        from ray.cluster_utils import Cluster

        self.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        self.others = [self.cluster.add_node(num_cpus=1) for _ in range(others)]
        self.cluster.wait_for_nodes()

    def lose(self) -> None:
        """One of the machines goes, without a word."""
        self.cluster.remove_node(self.others.pop(), allow_graceful=False)

    def end(self) -> None:
        ray.shutdown()
        self.cluster.shutdown()


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machines]:
    with ray_alone():
        monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
        made = Machines(2)
        ray.init(made.cluster.address, log_to_driver=False)
        yield made
        made.end()


def rows(count: int, seed: int) -> EncodedTable:
    rng = np.random.default_rng(seed)
    sizes = np.array([5, 9, 3, 12, 2, 7], dtype=np.int64)
    codes = np.column_stack([rng.integers(0, size, count) for size in sizes]).astype(np.int32)
    return EncodedTable(rng.normal(size=(count, 6)).astype(np.float32), codes, sizes)


def test_a_machine_lost_in_a_search_costs_a_retry(machines: Machines) -> None:
    points, queries = rows(60_000, 0), rows(60_000, 1)
    found = nearest_rows(queries, points, k=3)
    with using(RayWorkers()):
        assert at_once() == 3
        nearest_rows(rows(20_000, 2), points)  # the workers are awake
        lost: list[float] = []

        def lose() -> None:
            time.sleep(0.7)
            machines.lose()
            lost.append(time.monotonic())

        thread = threading.Thread(target=lose)
        thread.start()
        again = nearest_rows(queries, points, k=3)
        ended = time.monotonic()
        thread.join()
    assert lost[0] < ended
    assert at_once() == threads()
    np.testing.assert_array_equal(again.indices, found.indices)
    np.testing.assert_array_equal(again.distances, found.distances)


def test_a_machine_lost_in_an_audit_costs_a_retry(machines: Machines) -> None:
    table, sizes = small_table(), {"records": 2, "shadows": 64, "tests": 8}
    slow = build_generator("rvae", {"epochs": 3})
    alone = small_audit(slow, table=table, **sizes)
    begun, losses = threading.Event(), []

    def lose() -> None:
        begun.wait(60)
        machines.lose()
        losses.append(time.monotonic())

    thread = threading.Thread(target=lose)
    thread.start()
    with using(RayWorkers()):
        away = small_audit(slow, table=table, progress=lambda text: begun.set(), **sizes)
    ended = time.monotonic()
    thread.join()
    assert losses and losses[0] < ended
    assert [record.scores.tolist() for record in away.records] == [record.scores.tolist() for record in alone.records]


def test_a_cluster_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match="no Ray cluster is connected"):
        RayWorkers().run(str, [1, 2])
    for address in ("127.0.0.1:1", "ray://127.0.0.1:1", "ray://127.0.0.1", "", "foo:bar"):
        with pytest.raises(ConfigError, match=f"no Ray cluster at '{address}'. Fix: give auto"), on_ray(address):
            pass
    with pytest.raises(ConfigError, match="retries must be at least 0"):
        RayWorkers(retries=-1)
