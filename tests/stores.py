"""A real object store for tests: a local S3 server that processes one request at a time."""

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import pytest

_SERVER = """
import sys
from moto.server import create_backend_app
from werkzeug.serving import WSGIRequestHandler, run_simple
WSGIRequestHandler.log_request = lambda *_: None
run_simple("127.0.0.1", int(sys.argv[1]), create_backend_app("s3"), threaded=False)
"""
_buckets = count(1)


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def s3() -> Iterator[dict[str, str]]:
    """An S3 server without any bucket; yields the environment by which clients find it."""
    pytest.importorskip("s3fs", reason="the extra 's3' is not installed")
    pytest.importorskip("moto.server", reason="moto is not installed: no S3 server can be started")
    port = free_port()
    running = subprocess.Popen(
        [sys.executable, "-c", _SERVER, str(port)],
        env={**os.environ, "AWS_ACCESS_KEY_ID": "server", "AWS_SECRET_ACCESS_KEY": "server"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _until_ready(running, f"http://127.0.0.1:{port}/")
        yield {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "someone",
            "AWS_SECRET_ACCESS_KEY": "s3cret-of-the-store",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
    finally:
        running.kill()
        running.wait(30)


def _until_ready(running: "subprocess.Popen[bytes]", url: str) -> None:
    for _ in range(240):
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except (urllib.error.URLError, OSError):
            if running.poll() is not None:
                break
            time.sleep(0.25)
        else:
            return
    pytest.skip("the S3 server did not start")


@contextmanager
def extend_to_null(environment: dict[str, str]) -> Iterator[None]:
    """Let this process and its children find the store; existing clients are discarded."""
    import s3fs

    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        s3fs.S3FileSystem.clear_instance_cache()
        yield
    s3fs.S3FileSystem.clear_instance_cache()


def new_bucket() -> str:
    """URL of an empty bucket."""
    import s3fs

    name = f"bucket-{os.getpid()}-{next(_buckets)}"
    s3fs.S3FileSystem().mkdir(name)
    return f"s3://{name}"
