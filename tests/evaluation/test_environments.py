"""Environments that users have: seeds, numbers, consoles, forked processes, missing folders, and
host programs.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from privacy_assets import TableSpec, evaluate, power_analysis
from privacy_assets.cli.main import main
from privacy_assets.errors import ConfigError
from privacy_assets.infra import devices

SHORT = {"name": "short", "extends": "default", "embedder": {"max_epochs": 1}}
PACKAGE = Path(__file__).parents[2] / "privacy_assets"


def people(seed: int, rows: int, largest: float = 1.0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {"dose": rng.normal(size=rows) * largest, "größe": rng.choice(list("abc"), rows)}
    )


def tables(largest: float = 1.0) -> tuple[pd.DataFrame, ...]:
    return people(0, 60, largest), people(1, 40, largest), people(2, 60, largest)


def numbers(**given: Any) -> str:
    report = evaluate(*tables(), **given).to_json()
    for metric in report["metrics"].values():
        metric.pop("seconds")
    return json.dumps(report["metrics"], sort_keys=True)


@pytest.mark.parametrize("seed", [np.int64(7), np.uint8(7), np.array(7)])
def test_every_type_of_integer_is_a_seed(seed: Any) -> None:
    report = evaluate(*tables(), metrics="copies", seed=seed)
    assert report.seed == 7 and type(report.seed) is int
    assert TableSpec(name="people", source="demo", run={"seed": np.int64(7)}).run.seed == 7


def test_without_a_seed_one_is_drawn_and_recorded() -> None:
    first, second = (evaluate(*tables(), metrics="copies", seed=None) for _ in range(2))
    assert first.seed != second.seed and json.dumps(first.to_json())
    again = evaluate(*tables(), metrics="copies", seed=first.seed)
    assert again.results["copies"].estimates == first.results["copies"].estimates


@pytest.mark.parametrize(
    "seed", [True, np.bool_(True), -1, np.int64(-1), 1.0, "1", np.array([1, 2])]
)
def test_other_values_are_no_seeds(seed: Any) -> None:
    with pytest.raises(ConfigError, match="seed: Input should be"):
        TableSpec(name="people", source="demo", run={"seed": seed})
    with pytest.raises(ConfigError, match="seed must be an integer of at least 0"):
        evaluate(*tables(), seed=seed)
    with pytest.raises(ConfigError, match="seed must be an integer of at least 0"):
        power_analysis(10, 10, seed=seed)


@pytest.mark.slow
def test_large_numbers_give_no_warning() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        evaluate(*tables(1e307), metrics="copies,controls")
    assert [str(one.message) for one in caught if issubclass(one.category, RuntimeWarning)] == []


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
def test_a_console_shows_other_characters_for_those_that_it_lacks(
    encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = []
    for role, frame in zip(("train", "holdout", "synthetic"), tables(), strict=True):
        frame.to_parquet(tmp_path / f"{role}.parquet")
        given.append(f"--{role}={tmp_path / f'{role}.parquet'}")
    shown = {name: io.TextIOWrapper(io.BytesIO(), encoding) for name in ("stdout", "stderr")}
    for name, stream in shown.items():
        monkeypatch.setattr(sys, name, stream)
    assert main(["evaluate", *given, "--no-embedder", "--metrics=dcr", "--quiet", "-v"]) == 3
    assert main(["evaluate", *given, "--no-embedder", "--metrics=dcr", "--drop=größ"]) == 2
    monkeypatch.undo()
    assert {stream.errors for stream in shown.values()} == {"strict"}
    for stream in shown.values():
        stream.flush()
    out, err = (stream.buffer.getvalue().decode(encoding) for stream in shown.values())
    lacks = encoding != "utf-8"
    assert ("<= 0.12" in out) == lacks and ("≤ 0.12" in out) != lacks
    assert ("gr\\xf6\\xdfe" if encoding == "ascii" else "größe") in err


def _evaluated(out: Any) -> None:
    try:
        out.put(numbers(policy=SHORT, seed=0))
    except BaseException as error:
        out.put(repr(error))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not fork by default")
def test_a_forked_child_evaluates_with_the_embedder_after_its_parent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        expected = numbers(policy=SHORT, seed=0)
        fork = multiprocessing.get_context("fork")
        out = fork.Queue()
        child = fork.Process(target=_evaluated, args=(out,), daemon=True)
        child.start()
        try:
            assert out.get(timeout=120) == expected
        finally:
            child.kill()
            child.join()
    finally:
        torch.set_num_threads(threads)


@pytest.mark.slow
def test_a_host_program_does_not_change_the_statistics() -> None:
    expected = numbers(policy=SHORT, seed=0)
    torch.set_default_dtype(torch.float64)
    try:
        with (
            np.errstate(all="raise"),
            warnings.catch_warnings(),
            torch.no_grad(),
            torch.device("meta"),
        ):
            warnings.simplefilter("error")
            assert numbers(policy=SHORT, seed=0) == expected
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_device_that_a_forked_child_cannot_use_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def in_bad_fork(_: int) -> None:
        raise RuntimeError("Cannot re-initialize CUDA in forked subprocess.")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", in_bad_fork)
    with pytest.raises(ConfigError, match="forked.*device='cpu'"):
        devices.pick_device("auto")
    assert devices.pick_device("cpu") == "cpu"


READ_ONLY = """
import sys
import numpy as np, pandas as pd
import privacy_assets as pa
from privacy_assets.infra import compiling
rng = np.random.default_rng(0)
frames = [pd.DataFrame({"dose": rng.normal(size=n), "plan": rng.choice(list("abc"), n)}) for n in (60, 40, 60)]
print(pa.__file__, pa.evaluate(*frames, metrics="copies", seed=0).verdict)
"""  # noqa: E501


@pytest.mark.slow
def test_it_runs_without_a_home_folder_from_a_read_only_installation(tmp_path: Path) -> None:
    """Files in place of the folders of caches cannot be written to, not even by root."""
    installed = tmp_path / "privacy_assets"
    for file in PACKAGE.rglob("*"):
        if file.is_file() and "__pycache__" not in file.parts:
            copy = installed / file.relative_to(PACKAGE)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(file.read_bytes())
    for folder in [installed, *(path for path in installed.rglob("*") if path.is_dir())]:
        (folder / "__pycache__").write_text("")
    gone = {
        **os.environ,
        "HOME": "/nonexistent",
        "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path[1:]]),
    }
    for name in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        gone.pop(name, None)
    gone["XDG_CACHE_HOME"] = str(installed / "__pycache__")
    done = subprocess.run(
        [sys.executable, "-c", READ_ONLY],
        env=gone,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout.split()[-1:] == ["undecided"] and str(tmp_path) in done.stdout, done.stderr
