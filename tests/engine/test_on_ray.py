"""The engine's work on a Ray cluster: the same figures as without, and errors as they are."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest
from shadow_standins import small_audit

from privacy_assets import evaluate, on_ray
from privacy_assets.engine.generators.registry import build_generator
from privacy_assets.engine.on_ray import RayWorkers
from privacy_assets.engine.parallel import at_once, elsewhere, in_parallel, threads, using
from privacy_assets.errors import ClusterError, InputError

ray = pytest.importorskip("ray", reason="the extra 'ray' is not installed")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def here() -> Iterator[None]:
    """One machine, this one."""
    os.environ["RAY_AUTH_MODE"] = "disabled"
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()
    del os.environ["RAY_AUTH_MODE"]


def test_the_order_is_kept_and_errors_come_as_they_are(here: None) -> None:
    def half(number: int) -> float:
        if number < 0:
            raise InputError("it is below 0", where="train", row=3)
        return number / 2

    with using(RayWorkers()):
        assert elsewhere() and at_once() == 2
        assert in_parallel(half, range(57)) == [number / 2 for number in range(57)]
        assert in_parallel(half, [4]) == [2.0]  # one part is not worth sending
        with pytest.raises(InputError, match=r"train, row 3: it is below 0") as caught:
            in_parallel(half, [3, 2, -1, 4])
    assert type(caught.value) is InputError and caught.value.__cause__ is None
    assert not elsewhere() and at_once() == threads()


def test_work_is_sent_once_and_each_worker_has_arrays_of_its_own(here: None) -> None:
    big = np.zeros(200_000)

    def write(number: int) -> tuple[int, float, float]:
        big[number] += 1  # compiled code is compiled for arrays that can be written to
        return os.getpid(), float(big[number]), float(big.sum())

    with using(RayWorkers()):
        first, second = (in_parallel(write, range(8)) for _ in range(2))
    assert os.getpid() not in {pid for pid, *_ in first}
    assert big.sum() == 0
    # The same reference was sent again: a worker that had it in the first round counts on.
    assert max(count for _, count, _ in second) == 2.0


def test_tasks_hold_the_processors_that_they_ask_for_and_no_device(here: None) -> None:
    def told(number: int) -> tuple[dict[str, float], list[int]]:
        return ray.get_runtime_context().get_assigned_resources(), ray.get_gpu_ids()

    with using(RayWorkers(cpus=2)):
        assert at_once() == 1
        found = in_parallel(told, range(3))
    assert all(resources == {"CPU": 2.0} and devices == [] for resources, devices in found)


def test_work_that_is_lost_again_and_again_is_an_error(here: None) -> None:
    def gone(number: int) -> None:
        os._exit(1)

    with using(RayWorkers(retries=1)), pytest.raises(ClusterError, match="lost on the Ray cluster"):
        in_parallel(gone, range(2))


def test_a_table_has_the_same_figures(here: None, adult) -> None:
    ends = (0, 17_000, 21_000, 39_000, 48_000)
    train, holdout, synthetic, reference = (adult[a:b] for a, b in zip(ends, ends[1:], strict=False))
    metrics = ["dcr", "singling_out", "membership_inference", "memorization", "vulnerability", "attribute_inference"]
    asked = {"reference": reference, "metrics": metrics, "embedder": False, "device": "cpu"}
    found = evaluate(train, holdout, synthetic, **asked).results
    with on_ray() as workers:
        assert workers.count == 2
        again = evaluate(train, holdout, synthetic, **asked).results
    assert ray.is_initialized()  # a connection that was there is kept
    for name in metrics:
        assert again[name].figures == found[name].figures, name
        assert again[name].tables == found[name].tables, name


@pytest.mark.parametrize("generator", ["baynet", "rvae", "noisy_copy"])
def test_an_audit_has_the_same_records(here: None, generator: str) -> None:
    made = build_generator(generator, {"epochs": 1} if generator == "rvae" else {})
    sizes = {"records": 1, "shadows": 24, "tests": 8}
    alone = small_audit(made, **sizes)
    with using(RayWorkers()):
        away = small_audit(made, **sizes)
    assert [record.scores.tolist() for record in away.records] == [record.scores.tolist() for record in alone.records]
    assert away.auc == alone.auc
