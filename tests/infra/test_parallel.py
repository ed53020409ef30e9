"""Threads of the package's own loops."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from privacy_assets.infra import parallel
from privacy_assets.infra.parallel import cores, in_threads, share_cores, threads


@pytest.mark.parametrize(
    ("omp", "numba", "allowed"),
    [
        ("", "", 6),
        ("1", "", 1),
        ("", "2", 2),
        ("4", "3", 3),
        ("2,1", "", 2),
        ("0", "none", 6),
        ("50", "", 6),
    ],
)
def test_the_environment_bounds_them(
    omp: str, numba: str, allowed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("privacy_assets.infra.parallel.cores", lambda: 6)
    monkeypatch.setenv("OMP_NUM_THREADS", omp)
    monkeypatch.setenv("NUMBA_NUM_THREADS", numba)
    assert threads() == allowed


@pytest.mark.parametrize("allowed", ["1", "3"])
def test_results_keep_the_order_and_errors_come_through(
    allowed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("privacy_assets.infra.parallel.cores", lambda: 8)
    monkeypatch.setenv("OMP_NUM_THREADS", allowed)
    used = in_threads(lambda at: (at, threading.get_ident()), range(50))
    assert [at for at, _ in used] == list(range(50))
    assert len({thread for _, thread in used}) <= int(allowed)
    assert in_threads(len, []) == []
    with pytest.raises(ZeroDivisionError):
        in_threads(lambda at: 1 // at, [1, 0])


@pytest.mark.parametrize(("own", "left"), [(None, "2"), ("5", "5")])
def test_libraries_are_told_of_a_quota_and_to_wait_asleep(
    own: str | None, left: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "NUMBA_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("joblib.cpu_count", lambda: 2)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(parallel, "threadpool_limits", lambda limit: limits.append(limit))
    limits: list[int] = []
    if own is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", own)
        monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    share_cores()
    assert (os.environ["OMP_NUM_THREADS"], os.environ["OMP_WAIT_POLICY"]) == (
        left,
        "active" if own else "passive",
    )
    assert limits == ([] if own else [2])
    assert cores() == threads() == 2


@pytest.mark.skipif(sys.platform != "linux", reason="affinity is Linux's")
def test_cores_that_it_is_bound_to_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert cores() == 1


@pytest.mark.parametrize(
    ("work", "own", "seen"),
    [
        ("import privacy_assets.cli.main; import privacy_assets.infra.devices", None, "passive"),
        pytest.param(
            "import privacy_assets; privacy_assets.build_privacy_assets",
            None,
            "passive",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "import privacy_assets; privacy_assets.evaluate",
            None,
            "passive",
            marks=pytest.mark.slow,
        ),
        ("from privacy_assets.infra.parallel import on_ray", None, "passive"),
        pytest.param(
            "import privacy_assets.infra.devices", "active", "active", marks=pytest.mark.slow
        ),
    ],
)
def test_whatever_works_says_how_to_wait_before_libraries_are_loaded_that_read_it(
    work: str, own: str | None, seen: str
) -> None:
    code = f"""
import os, sys
class Watch:
    def find_spec(self, name, *_):
        if name in ("torch", "faiss", "sklearn", "numba"):
            assert os.environ.get("OMP_WAIT_POLICY"), name
sys.meta_path.insert(0, Watch())
{work}
print(os.environ["OMP_WAIT_POLICY"])"""
    assert fresh(code, own).split() == [seen]


def test_importing_the_package_alone_leaves_the_environment_as_it_was() -> None:
    code = (
        "import os; before = dict(os.environ); import privacy_assets; print(before =="
        " dict(os.environ))"
    )
    assert fresh(code).split() == ["True"]


def fresh(code: str, wait: str | None = None) -> str:
    """Output of ``code`` in its own process, with or without an OpenMP wait policy in its
    environment.
    """
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    environment |= {"OMP_WAIT_POLICY": wait} if wait else {}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
