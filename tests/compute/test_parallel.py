"""Threads of the engine's own loops."""

from __future__ import annotations

import threading

import pytest

from privacy_assets.compute.parallel import in_threads, threads


@pytest.mark.parametrize(
    ("omp", "numba", "allowed"),
    [("", "", 6), ("1", "", 1), ("", "2", 2), ("4", "3", 3), ("2,1", "", 2), ("0", "none", 6), ("50", "", 6)],
)
def test_the_environment_bounds_them(omp: str, numba: str, allowed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("joblib.cpu_count", lambda: 6)
    monkeypatch.setenv("OMP_NUM_THREADS", omp)
    monkeypatch.setenv("NUMBA_NUM_THREADS", numba)
    assert threads() == allowed


@pytest.mark.parametrize("allowed", ["1", "3"])
def test_results_keep_the_order_and_errors_come_through(allowed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("joblib.cpu_count", lambda: 8)
    monkeypatch.setenv("OMP_NUM_THREADS", allowed)
    used = in_threads(lambda at: (at, threading.get_ident()), range(50))
    assert [at for at, _ in used] == list(range(50))
    assert len({thread for _, thread in used}) <= int(allowed)
    assert in_threads(len, []) == []
    with pytest.raises(ZeroDivisionError):
        in_threads(lambda at: 1 // at, [1, 0])
