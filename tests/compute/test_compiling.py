"""Compiled code is kept where it can be, and runs where it cannot."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

MODULE = """from privacy_assets.compute.compiling import compiled


@compiled
def double(x):
    return 2 * x
"""
CODE = (
    "from installed import double\n"
    "print(double(21), sum(double.stats.cache_hits.values()), sum(double.stats.cache_misses.values()))"
)


@pytest.fixture
def run(tmp_path):
    """Import a module in a new process with the given cache folder; its result, and what was read from the cache."""
    package = tmp_path / "site-packages"
    package.mkdir()
    (package / "installed.py").write_text(MODULE)

    def start(cache):
        environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
        environment["PYTHONPATH"] = os.pathsep.join([str(package), *sys.path])
        environment.pop("NUMBA_CACHE_DIR", None)
        done = subprocess.run(
            [sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return [int(word) for word in done.stdout.split()]

    return start


def unusable(path):
    """A file where a folder is wanted: not writable for anyone, root included."""
    path.write_text("")
    return path


def test_beside_the_module(run, tmp_path):
    assert [run(tmp_path / "cache") for _ in range(2)] == [[42, 0, 1], [42, 1, 0]]
    assert list((tmp_path / "site-packages" / "__pycache__").glob("*.nbi"))


@pytest.mark.skipif(sys.platform != "linux", reason="XDG_CACHE_HOME names the user's cache on Linux")
def test_in_the_users_cache_where_the_installation_is_read_only(run, tmp_path):
    unusable(tmp_path / "site-packages" / "__pycache__")
    assert [run(tmp_path / "cache") for _ in range(2)] == [[42, 0, 1], [42, 1, 0]]
    assert list((tmp_path / "cache").rglob("*.nbi"))


@pytest.mark.skipif(sys.platform != "linux", reason="XDG_CACHE_HOME names the user's cache on Linux")
def test_nowhere(run, tmp_path):
    unusable(tmp_path / "site-packages" / "__pycache__")
    assert run(unusable(tmp_path / "cache"))[:2] == [42, 0]
