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
CODE = "from installed import double; print(double(21), sum(double.stats.cache_hits.values()))"
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="XDG_CACHE_HOME names the user's cache on Linux")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("beside", "users"),
    [(True, False), pytest.param(False, True, marks=LINUX), pytest.param(False, False, marks=LINUX)],
)
def test_it_is_kept_beside_the_module_or_in_the_users_cache(tmp_path, beside, users):
    package, cache = tmp_path / "site-packages", tmp_path / "cache"
    package.mkdir()
    (package / "installed.py").write_text(MODULE)
    for place, usable in ((package / "__pycache__", beside), (cache, users)):
        if not usable:  # a file where a folder is wanted: not writable for anyone, root included
            place.write_text("")
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache), "PYTHONPATH": os.pathsep.join([str(package), *sys.path])}
    environment.pop("NUMBA_CACHE_DIR", None)
    for hits in (0, 1) if beside or users else (0,):
        done = subprocess.run(
            [sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, timeout=120
        )
        assert (done.returncode, done.stdout.split()) == (0, ["42", str(hits)]), done.stderr
