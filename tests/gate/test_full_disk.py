"""A private folder on a full, over-quota or read-only disk: every step fails with one sentence that
names it.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from gate_standins import (
    FAILING,
    INPUTS,
    METRICS,
    POLICY,
    SETUP,
    Chain,
    files_of,
    publisher_of,
    result,
    rows,
)
from publisher import Disk, Failing, on

from privacy_assets.cli.main import main
from privacy_assets.errors import (
    ConfigError,
    PublicationBlocked,
    StepError,
    redact_foreign_errors,
)
from privacy_assets.gate.deployment import DeploymentSettings
from privacy_assets.gate.keys import rotate_key
from privacy_assets.pipeline.advice import with_advice
from privacy_assets.pipeline.values import store_value
from privacy_assets.tables.table import Table

NUMBERS = {errno.ENOSPC: "free space", errno.EDQUOT: "quota", errno.EROFS: "for writing"}


def steps(ready: Chain, root: Path) -> dict[str, Callable[[], object]]:
    """All operations that write to the private folder ``root/private``, or create one."""
    gate, target = ready.gate, ready.target
    failed, shared = result(FAILING), root / "new"
    return {
        "snapshot": lambda: files_of(gate).take_snapshot(
            Table.read(rows(7)), target, INPUTS["train"]
        ),
        "score": lambda: files_of(gate).sign_result(
            failed, ready.snapshot, POLICY.judge({"dcr": failed}).outcomes
        ),
        "attestation": lambda: (
            shutil.rmtree(root / "private" / "log"),
            publisher_of(gate).attest(
                ready.snapshot, POLICY, {"dcr": ready.score}, INPUTS, METRICS, SETUP
            ),
        ),
        "publication": ready.publish,
        "rotation": lambda: rotate_key(root / "private" / "signing.key", root / "trusted_keys"),
        "first run": lambda: (
            DeploymentSettings(releases=shared / "releases", private=shared / "private")
            .open()
            .gate()
        ),
        "storage": lambda: store_value(pd.DataFrame({"a": [1]}), root / "private" / "storage"),
    }


STEPS = ["snapshot", "score", "attestation", "publication", "rotation", "first run", "storage"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "number",
    [pytest.param(one, marks=() if one == errno.ENOSPC else pytest.mark.slow) for one in NUMBERS],
    ids=lambda number: errno.errorcode[number],
)
@pytest.mark.parametrize("step", STEPS)
def test_a_full_disk_gives_one_sentence(
    ready: Chain, tmp_path: Path, step: str, number: int
) -> None:
    blocked = False
    for at, name in enumerate(_calls(ready, tmp_path, step)):
        if name not in ("create", "write", "mkdir", "fsync"):
            continue
        ended = None
        with on(Failing(at, number, for_good=True)):
            try:
                steps(ready, tmp_path)[step]()
            except (PublicationBlocked, ConfigError) as error:
                ended = error
        if ended is not None:
            blocked, said = True, with_advice(ended)
            assert (
                os.strerror(number) in said and str(tmp_path) in said and NUMBERS[number] in said
            ), (name, said)
            assert "\n" not in said and said.count("Fix:") == 1
        _forget(tmp_path)
    assert blocked


def _calls(ready: Chain, root: Path, step: str) -> list[str]:
    shutil.copytree(root, root.with_name(f"{root.name}.kept"))
    disk = Disk()
    with on(disk):
        steps(ready, root)[step]()
    for path in [*root.rglob("*")]:
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o700)
    shutil.rmtree(root)
    shutil.copytree(root.with_name(f"{root.name}.kept"), root)
    return disk.calls


def _forget(root: Path) -> None:
    for path in [*root.rglob("*")]:
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o700)
    shutil.rmtree(root)
    shutil.copytree(root.with_name(f"{root.name}.kept"), root)


def test_a_command_says_it_in_one_line(
    ready: Chain, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with on(Failing(0, errno.ENOSPC, for_good=True)):
        status = main(
            [
                "keys",
                "--new",
                "--releases",
                str(tmp_path / "releases"),
                "--private",
                str(tmp_path / "private"),
            ]
        )
    said = capsys.readouterr().err
    assert status == 2 and said.count("\n") == 1
    assert f"{tmp_path / 'private'}" in said and "No space left on device. Fix: free space" in said


def test_a_full_disk_elsewhere_says_what_to_do() -> None:
    @redact_foreign_errors
    def step() -> None:
        raise OSError(errno.ENOSPC, "private words")

    with pytest.raises(StepError, match="No space left on device.*Fix: free space") as caught:
        step()
    assert "private words" not in str(caught.value)
