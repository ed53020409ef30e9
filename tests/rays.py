"""Check whether a Ray cluster can start on this machine.

A test that needs one is skipped otherwise, with the reason.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from privacy_assets.infra import folders

_CODE = """
import ray
ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False)
print(ray.get(ray.remote(lambda: 42).remote()))
"""


@cache
def _trouble() -> str:
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled"}
    try:
        told = subprocess.run(
            [sys.executable, "-c", _CODE],
            capture_output=True,
            text=True,
            timeout=120,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        return "it did not start in two minutes"
    return "" if told.stdout.strip() == "42" else told.stderr[-500:]


def need_ray() -> None:
    """Skip unless Ray is installed and starts."""
    pytest.importorskip("ray", reason="the extra 'ray' is not installed")
    if trouble := _trouble():
        pytest.skip(f"no Ray cluster can be started here: {trouble}")


@contextmanager
def ray_alone() -> Iterator[None]:
    """Keep other tests' clusters out of the ``with`` block: without an address Ray connects to any
    local one.
    """
    need_ray()
    lock = f"privacy-assets-tests-ray-{os.getuid()}.lock"
    with folders.opened(Path(tempfile.gettempdir())) as folder, folders.locked(folder, lock):
        yield
