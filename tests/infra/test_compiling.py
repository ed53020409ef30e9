"""Compiled code is cached where possible, and runs where it cannot be cached."""

from __future__ import annotations

import errno
import importlib
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import numba
import pytest

from privacy_assets.infra import compiling

MODULE = """from privacy_assets.infra.compiling import compiled


@compiled
def double(x):
    return 2 * x
"""
CODE = "from installed import double; print(double(21), sum(double.stats.cache_hits.values()))"
LINUX = pytest.mark.skipif(
    sys.platform != "linux", reason="XDG_CACHE_HOME names the user's cache on Linux"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("beside", "users"),
    [
        (True, False),
        pytest.param(False, True, marks=LINUX),
        pytest.param(False, False, marks=LINUX),
    ],
)
def test_it_is_kept_beside_the_module_or_in_the_users_cache(tmp_path, beside, users):
    package, cache = tmp_path / "site-packages", tmp_path / "cache"
    package.mkdir()
    (package / "installed.py").write_text(MODULE)
    for place, usable in ((package / "__pycache__", beside), (cache, users)):
        if not usable:  # a file instead of a folder: not writable, not even for root
            place.write_text("")
    environment = {
        **os.environ,
        "XDG_CACHE_HOME": str(cache),
        "PYTHONPATH": os.pathsep.join([str(package), *sys.path]),
    }
    environment.pop("NUMBA_CACHE_DIR", None)
    for hits in (0, 1) if beside or users else (0,):
        done = subprocess.run(
            [sys.executable, "-c", CODE],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert (done.returncode, done.stdout.split()) == (0, ["42", str(hits)]), done.stderr


@pytest.fixture
def double(tmp_path, monkeypatch):
    """Return a function that imports a module with a kernel again, as another process does."""
    (tmp_path / "installed.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)

    def load():
        sys.modules.pop("installed", None)
        return importlib.import_module("installed").double

    yield load
    sys.modules.pop("installed", None)


def cached_in(folder, double, monkeypatch):
    """Call the function with a cache in a folder, and return whether its code came from there."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(folder))
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(folder))
    compiling._is_trusted.cache_clear()
    function = double()
    assert function(21) == 42
    return bool(sum(function.stats.cache_hits.values()))


@pytest.mark.parametrize("writable", ["folder", "below", "index", "data", "above"])
def test_bypass_54_code_that_others_can_write_is_not_run(
    double, tmp_path, caplog, monkeypatch, writable
):
    above = tmp_path / "above"
    folder = above / "cache"
    folder.mkdir(parents=True, mode=0o700)
    assert not cached_in(folder, double, monkeypatch)
    assert cached_in(folder, double, monkeypatch) and not caplog.text
    (index,) = folder.rglob("*.nbi")
    (data,) = folder.rglob("*.nbc")
    places = {"folder": folder, "below": index.parent, "index": index, "data": data, "above": above}
    places[writable].chmod(0o777)
    assert not cached_in(folder, double, monkeypatch)
    assert caplog.text.count("functions are compiled in memory") == 1
    assert "chmod go-w" in caplog.text and str(places[writable]) in caplog.text


def test_a_cache_of_another_user_is_not_run(double, tmp_path, caplog, monkeypatch):
    """In a sticky folder, another user can create the folder of the cache first."""
    tmp_path.chmod(0o1777)
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    assert not cached_in(folder, double, monkeypatch)
    assert cached_in(folder, double, monkeypatch) and not caplog.text
    (index,) = folder.rglob("*.nbi")
    facts = os.stat

    def as_another(path, *args, **kwargs):
        found = facts(path, *args, **kwargs)
        if str(path) != str(index.parent):
            return found
        values = list(found)
        values[4] = os.getuid() + 1
        return os.stat_result(values)

    monkeypatch.setattr(os, "stat", as_another)
    assert not cached_in(folder, double, monkeypatch)
    assert "belongs to another user" in caplog.text


def test_a_cache_that_only_the_own_group_can_write_is_used(double, tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(0o770)
    monkeypatch.setattr(
        "privacy_assets.infra.files._others_write", lambda facts: bool(facts.st_mode & 0o002)
    )
    assert not cached_in(folder, double, monkeypatch)
    assert cached_in(folder, double, monkeypatch)


@pytest.mark.parametrize("damage", [b"", b"damaged"])
@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
def test_a_damaged_cache_is_reported_and_written_again(double, tmp_path, caplog, suffix, damage):
    assert double()(21) == 42
    (file,) = (tmp_path / "__pycache__").glob(f"*.{suffix}")
    file.write_bytes(damage)
    function = double()
    assert function(21) == 42 and not function.stats.cache_hits
    assert (
        f"the compiled functions in {file.parent} cannot be used" in caplog.text
        and "NUMBA_CACHE_DIR" in caplog.text
    )
    caplog.clear()
    function = double()
    assert function(21) == 42 and sum(function.stats.cache_hits.values()) == 1 and not caplog.text


def test_a_full_disk_leaves_the_function_compiled_in_memory(double, caplog, monkeypatch):
    function = double()

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(function._cache._cache_file, "save", full)
    assert function(21) == 42 and "free space" in caplog.text


@pytest.mark.parametrize("filled", [True, False])
def test_a_given_folder_that_cannot_be_written_is_used_if_it_is_filled(
    double, tmp_path, caplog, monkeypatch, filled
):
    given, write, access = str(tmp_path / "given"), tempfile.TemporaryFile, os.access
    monkeypatch.setattr(numba.config, "CACHE_DIR", given)
    if filled:
        assert double()(21) == 42

    def try_to_write(*_, **named):  # as numba does, here only elsewhere
        if named["dir"].startswith(given):
            raise PermissionError(errno.EACCES, "Permission denied")
        return write(**named)

    monkeypatch.setattr("tempfile.TemporaryFile", try_to_write)
    monkeypatch.setattr(
        os, "access", lambda path, mode: not str(path).startswith(given) and access(path, mode)
    )
    function = double()
    assert function(21) == 42 and sum(function.stats.cache_hits.values()) == filled
    assert str(function._cache.cache_path).startswith(given) == filled
    assert function(2.5) == 5.0 and not caplog.text  # if filled, compiled for this process only


def test_it_is_compiled_although_the_host_program_disables_the_compiler(double, monkeypatch):
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
    function = double()
    assert function(21) == 42 and function.signatures and numba.config.DISABLE_JIT == 1


FIRST_RUN = """
import collections, json, sys
import numpy as np, pandas as pd
from numba.core import event
import privacy_assets as pa
from privacy_assets.generators import build_generator
from privacy_assets.distances.nearest import nearest
from privacy_assets.metrics.vulnerability import isolation
from privacy_assets.tables.inference import infer_schema
from privacy_assets.tables.table import Table

class Compiled(event.Listener):
    def on_start(self, e):
        function = e.data["dispatcher"].py_func
        found[f"{function.__module__}.{function.__qualname__}"] += 1
    def on_end(self, e):
        pass

found = collections.Counter()
event.register("numba:compile", Compiled())
frame = pd.read_parquet(sys.argv[1])
frame.loc[::7, "age"] = np.nan
train, holdout, reference, synthetic = (frame[at : at + 600].reset_index(drop=True) for at in range(0, 2400, 600))
table = Table.of(train, infer_schema(train), where="train")
build_generator("synthpop", {}).fit(table, seed=0).sample(50, seed=0)
known = {name: sorted(frame[name].unique()) for name in frame.select_dtypes(exclude="number")}
pa.evaluate(train, holdout, synthetic, reference=reference, allowed_values=known, embedder=False)
embedded = np.random.default_rng(0).normal(size=(900, 12)).astype(np.float32)
nearest(embedded[:300], embedded[300:])
isolation(embedded)
print(json.dumps(found))
"""  # noqa: E501


@pytest.mark.weekly
def test_a_first_run_compiles_few_functions_and_each_kernel_once(tmp_path):
    """Compilations are counted because CPU seconds depend on the machine: 276 functions took 39 to
    48 seconds.
    """
    data = Path(__file__).parents[1] / "data" / "adult.parquet"
    environment = {
        **os.environ,
        "NUMBA_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    command = [sys.executable, "-c", FIRST_RUN, str(data)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    own = {name: times for name, times in found.items() if name.startswith("privacy_assets.")}
    assert "privacy_assets.distances._tree_kernels._search" in own
    assert {name: times for name, times in own.items() if times > 1} == {}
    assert sum(found.values()) <= 40


@pytest.mark.slow
@pytest.mark.parametrize("number", ["0", "-1"])
def test_a_number_of_threads_that_is_none_is_one_plain_line(number: str, tmp_path: Path) -> None:
    for seed, name in enumerate(("train", "holdout", "synthetic")):
        generator = random.Random(seed)
        rows = "".join(f"{generator.gauss(0, 1)},{generator.gauss(0, 1)}\n" for _ in range(500))
        (tmp_path / f"{name}.csv").write_text(f"a,b\n{rows}")
    tables = [
        word for name in ("train", "holdout", "synthetic") for word in (f"--{name}", f"{name}.csv")
    ]
    command = [
        sys.executable,
        "-m",
        "privacy_assets",
        "evaluate",
        *tables,
        "--no-embedder",
        "--quiet",
    ]
    environment = {**os.environ, "NUMBA_NUM_THREADS": number}
    ran = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200
    )
    assert ran.returncode == 2
    told = (
        "privacy-assets: NUMBA_NUM_THREADS must be an integer of at least 1. Fix: change or"
        " unset it.\n"
    )
    assert ran.stderr == told


LITTLE_MEMORY = """
import resource
import sys
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]) << 20, int(sys.argv[1]) << 20))
from privacy_assets.cli.main import main
raise SystemExit(main(["inspect", "people.csv"]))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the limit is one of Linux")
def test_little_memory_is_named(tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text("a,b\n1,2\n3,4\n")
    for mebibytes in ("200", "250", "300"):
        command = [sys.executable, "-c", LITTLE_MEMORY, mebibytes]
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        ran = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200
        )
        # Libraries can crash when the process ends, so its status is not compared.
        assert ran.returncode and "memory" in ran.stderr and "repair" not in ran.stderr, ran.stderr
        # The allocator of pyarrow can add a line of its own when it gets no thread.
        lines = [line for line in ran.stderr.splitlines() if not line.startswith("<jemalloc>")]
        assert len(lines) == 1, ran.stderr
