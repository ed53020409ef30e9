"""Threads of the engine's own loops."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from privacy_assets.compute import parallel
from privacy_assets.compute.parallel import cores, in_threads, share_cores, threads

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="control groups and affinity are Linux's")


@pytest.mark.parametrize(
    ("omp", "numba", "allowed"),
    [("", "", 6), ("1", "", 1), ("", "2", 2), ("4", "3", 3), ("2,1", "", 2), ("0", "none", 6), ("50", "", 6)],
)
def test_the_environment_bounds_them(omp: str, numba: str, allowed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privacy_assets.compute.parallel.cores", lambda: 6)
    monkeypatch.setenv("OMP_NUM_THREADS", omp)
    monkeypatch.setenv("NUMBA_NUM_THREADS", numba)
    assert threads() == allowed


@pytest.mark.parametrize("allowed", ["1", "3"])
def test_results_keep_the_order_and_errors_come_through(allowed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privacy_assets.compute.parallel.cores", lambda: 8)
    monkeypatch.setenv("OMP_NUM_THREADS", allowed)
    used = in_threads(lambda at: (at, threading.get_ident()), range(50))
    assert [at for at, _ in used] == list(range(50))
    assert len({thread for _, thread in used}) <= int(allowed)
    assert in_threads(len, []) == []
    with pytest.raises(ZeroDivisionError):
        in_threads(lambda at: 1 // at, [1, 0])


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of 64 cores whose control groups are files below a folder."""
    monkeypatch.setattr(parallel, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(parallel, "_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "NUMBA_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def put(machine: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (machine / name).parent.mkdir(parents=True, exist_ok=True)
        (machine / name).write_text(text)


V2, V1 = "0::/pod/box\n", "7:memory:/box\n4:cpu,cpuacct:/box\n"
CFS = "cpu.cfs_quota_us", "cpu.cfs_period_us"


@LINUX
@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({}, 64),
        ({"proc/self/cgroup": V2, "groups/pod/box/cpu.max": "max 100000\n"}, 64),
        ({"proc/self/cgroup": V2, "groups/pod/box/cpu.max": "200000 100000\n"}, 2),
        ({"proc/self/cgroup": V2, "groups/pod/box/cpu.max": "max 100000", "groups/pod/cpu.max": "150000 100000"}, 2),
        ({"proc/self/cgroup": "0::/\n", "groups/cpu.max": "50000 100000\n"}, 1),
        ({"proc/self/cgroup": "0::/elsewhere\n", "groups/cpu.max": "300000 100000\n"}, 3),
        ({"proc/self/cgroup": V1, f"groups/cpu/box/{CFS[0]}": "-1", f"groups/cpu/box/{CFS[1]}": "9"}, 64),
        ({"proc/self/cgroup": V1, f"groups/cpu/{CFS[0]}": "400", f"groups/cpu/{CFS[1]}": "100"}, 4),
        ({"proc/self/cgroup": V1, "groups/memory/cpu.max": "1 1"}, 64),
    ],
)
def test_control_groups_bound_the_cores(files: dict[str, str], found: int, machine: Path) -> None:
    put(machine, files)
    assert cores() == threads() == found


@LINUX
def test_cores_that_it_is_bound_to_count(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(machine, {"proc/self/cgroup": V2, "groups/pod/box/cpu.max": "800000 100000\n"})
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5})
    assert cores() == 2


@LINUX
@pytest.mark.parametrize(("own", "left"), [(None, "2"), ("5", "5")])
def test_libraries_are_told_of_a_quota_and_to_wait_asleep(
    own: str | None, left: str, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(machine, {"proc/self/cgroup": V2, "groups/pod/box/cpu.max": "200000 100000\n"})
    monkeypatch.setattr("threadpoolctl.threadpool_limits", lambda limit: limits.append(limit))
    limits: list[int] = []
    if own is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", own)
        monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    share_cores()
    assert (os.environ["OMP_NUM_THREADS"], os.environ["OMP_WAIT_POLICY"]) == (left, "active" if own else "passive")
    assert limits == ([] if own else [2])


@pytest.mark.parametrize(("own", "seen"), [(None, "passive"), ("active", "active")])
@pytest.mark.parametrize(
    "work",
    [
        "import privacy_assets.cli.main",
        "import privacy_assets; privacy_assets.build_privacy_assets",
        "import privacy_assets; privacy_assets.evaluate",
        "from privacy_assets.compute import on_ray",
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
    code = "import os; before = dict(os.environ); import privacy_assets; print(before == dict(os.environ))"
    assert fresh(code).split() == ["True"]


def fresh(code: str, wait: str | None = None) -> str:
    """What ``code`` prints in a process of its own, whose environment says how OpenMP waits, or does not."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    environment |= {"OMP_WAIT_POLICY": wait} if wait else {}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout
