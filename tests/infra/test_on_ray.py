"""Work on a Ray cluster: statistics and errors are the same as in one process."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from privacy_assets import evaluate, on_ray
from privacy_assets.errors import ClusterError, ConfigError, InputError, StepError
from privacy_assets.generators.registry import build_generator
from privacy_assets.infra.parallel import (
    RayWorkers,
    at_once,
    in_parallel,
    on_cluster,
    threads,
    using,
)
from tests.rays import need_ray, ray_alone
from tests.studies.shadow_standins import small_audit

ray = pytest.importorskip("ray", reason="the extra 'ray' is not installed")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def here() -> Iterator[None]:
    """This machine alone."""
    with ray_alone():
        os.environ["RAY_AUTH_MODE"] = "disabled"
        ray.init("local", num_cpus=2, num_gpus=1, include_dashboard=False, log_to_driver=False)
        yield
        ray.shutdown()
        del os.environ["RAY_AUTH_MODE"]


def test_the_order_is_kept_and_errors_come_as_they_are(here: None) -> None:
    def half(number: int) -> float:
        if number < 0:
            raise InputError("it is below 0", where="train", row=3)
        return number / 2

    with using(RayWorkers()):
        assert on_cluster() and at_once() == 2
        assert in_parallel(half, range(57)) == [number / 2 for number in range(57)]
        assert in_parallel(half, [4]) == [2.0]  # one part is not worth sending
        with pytest.raises(InputError, match=r"train, row 3: it is below 0") as caught:
            in_parallel(half, [3, 2, -1, 4])
    assert type(caught.value) is InputError and caught.value.__cause__ is None
    assert not on_cluster() and at_once() == threads()


def test_work_is_sent_once_and_each_worker_has_arrays_of_its_own(here: None) -> None:
    big = np.zeros(200_000)

    def write(number: int) -> tuple[int, float]:
        big[0] += 1  # compiled code is compiled for arrays that can be written to
        return os.getpid(), float(big[0])

    with using(RayWorkers()):
        found = [one for _ in range(2) for one in in_parallel(write, range(8))]
    counts: dict[int, float] = {}
    for pid, count in found:
        counts[pid] = max(counts.get(pid, 0.0), count)
    assert os.getpid() not in counts and big[0] == 0
    # the second call sent the same reference, so workers continued their counts
    assert sum(counts.values()) == 16


def test_tasks_hold_one_processor_and_see_no_device(here: None) -> None:
    def told(number: int) -> tuple[dict[str, float], list[int], str | None]:
        devices = os.environ.get("CUDA_VISIBLE_DEVICES")
        return ray.get_runtime_context().get_assigned_resources(), ray.get_gpu_ids(), devices

    with using(RayWorkers()):  # pretend that the machine has a GPU
        assert in_parallel(told, range(3)) == [({"CPU": 1.0}, [], "")] * 3


def test_nothing_that_work_prints_or_says_of_its_errors_is_written_down(here: None, capfd) -> None:
    def talk(number: int) -> None:
        sys.stdout.write("SAID-9142\n")
        warnings.warn("WARNED-9142", stacklevel=1)
        logging.getLogger("somebody").error("LOGGED-9142")
        raise KeyError("RAISED-9142")

    with using(RayWorkers()), pytest.raises(KeyError, match="RAISED-9142"):
        in_parallel(talk, range(4))
    logs = Path(ray._private.worker._global_node.get_session_dir_path()) / "logs"
    texts = [path.read_bytes() for path in logs.rglob("*") if path.is_file()]
    assert texts and not any(b"-9142" in text for text in texts)
    assert "-9142" not in "".join(capfd.readouterr())


def test_errors_that_cannot_be_sent_modules_that_are_not_there_and_lost_work_are_told(
    here: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Two(Exception):
        def __init__(self, first: str, second: str) -> None:
            super().__init__(first)
            self.second = second

    def raises(number: int) -> None:
        raise Two("SECRET", "5")

    def gone(number: int) -> None:
        os._exit(1)

    (tmp_path / "only_here.py").write_text("def work(number):\n    return number\n")
    monkeypatch.syspath_prepend(tmp_path)
    from only_here import work  # workers were started before the module was on the path

    with using(RayWorkers(retries=1)):
        with pytest.raises(StepError, match="Two at .*hidden") as caught:
            in_parallel(raises, range(2))
        assert "SECRET" not in str(caught.value)
        with pytest.raises(ConfigError, match="only_here is not installed on every machine"):
            in_parallel(work, range(2))
        with pytest.raises(ClusterError, match="lost on the Ray cluster"):
            in_parallel(gone, range(2))


def test_errors_again_and_again_leave_the_process_alive() -> None:
    need_ray()
    code = """
import ray
from privacy_assets import on_ray
from privacy_assets.infra.parallel import in_parallel

def bad(number):
    raise ValueError(number)

with on_ray():
    for _ in range(60):
        try:
            in_parallel(bad, range(8))
        except ValueError:
            pass
    print("alive")
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert told.stdout.split() == ["alive"], told.stderr[-2000:]


def test_a_table_has_the_same_statistics(here: None, adult) -> None:
    ends = (0, 17_000, 21_000, 39_000, 48_000)
    train, holdout, synthetic, reference = (
        adult[a:b] for a, b in zip(ends, ends[1:], strict=False)
    )
    metrics = ["dcr", "singling_out", "memorization", "vulnerability"]
    asked = {"reference": reference, "metrics": metrics, "embedder": False, "device": "cpu"}
    found = evaluate(train, holdout, synthetic, **asked).results
    with on_ray() as workers:
        assert workers.count == 2
        again = evaluate(train, holdout, synthetic, **asked).results
    assert ray.is_initialized()  # an existing connection is kept
    for name in metrics:
        assert again[name].estimates == found[name].estimates, name
        assert again[name].tables == found[name].tables, name


def test_an_audit_has_the_same_records(here: None) -> None:
    """A network is audited, because its workers draw random numbers with torch.

    See also the audit that loses a machine.
    """
    alone = small_audit(build_generator("baynet"), max_targets=1, shadows=24, tests=8)
    with using(RayWorkers()):
        away = small_audit(build_generator("baynet"), max_targets=1, shadows=24, tests=8)
    assert [record.scores.tolist() for record in away.records] == [
        record.scores.tolist() for record in alone.records
    ]
    assert away.auc == alone.auc
