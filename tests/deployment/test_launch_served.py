"""Bypasses by run configuration in the launchpad of a running deployment. Without a server:
test_bypasses_launch.
"""

import pytest
from served import Served
from serving import SECRET

from privacy_assets.gate.envelope import ReleaseTarget
from privacy_assets.gate.releases import ReleaseStore

pytestmark = pytest.mark.weekly
SHOWN = {"resources": {"io_manager": {"config": {"base_dir": {"env": "DEPLOYMENT_SECRET"}}}}}


def why(served: Served, run_id: str, step: str) -> str:
    error = served.failures(run_id)[step].error
    return error.to_string() + (error.cause.to_string() if error.cause else "")


def nothing_released(served: Served, table: str) -> None:
    assert ReleaseStore(served.root / "releases").history(ReleaseTarget(table)) == []


def test_bypass_33_a_variable_as_the_folder_of_the_default_io_manager(served: Served) -> None:
    assert SECRET in served.told(served.launch("stock", "plain/synthetic", config=SHOWN))
    for assets in (["note"], ["note", "honest/source"]):
        assert 'unexpected config entry "base_dir"' in served.not_launched(
            "gated", *assets, config=SHOWN
        )
    # If no value binds it, the gate rejects runs with a configuration. No step of the table
    # requires it.
    run = served.launch("stock", "loose/source", config=SHOWN)
    assert "launched with 'resources'" in why(
        served, run, "loose__read"
    ) and SECRET not in served.told(run)
    assert served.finished(served.launch("stock", "loose/source"))
    nothing_released(served, "loose")


def test_bypass_35_what_an_executor_is_told(served: Served) -> None:
    start = {"start_method": {"forkserver": {"preload_modules": ["preloaded"]}}}
    told = {"execution": {"config": start}}
    assert served.finished(served.launch("stock", "plain/synthetic", config=told, job="apart"))
    assert (served.root / "preloaded").exists()
    (served.root / "preloaded").unlink()
    blocking_error = served.not_launched("gated", "honest_told/source", config=told, job="apart")
    assert 'unexpected config entry "start_method"' in blocking_error
    again = {"execution": {"config": {"retries": {"enabled": {}}}}}
    for asset, verb in {"source": "read", "published": "publish"}.items():
        run = served.launch("gated", f"honest_told/{asset}", config=again)
        assert "launched with 'execution'" in why(served, run, f"honest_told__{verb}")
    assert not (served.root / "preloaded").exists()
    nothing_released(served, "honest_told")


def test_a_run_that_is_told_nothing_is_not_blocked(served: Served) -> None:
    config = {"loggers": {"console": {"config": {"log_level": "INFO"}}}}
    assert served.finished(
        served.launch("gated", "note", "noted", "honest_told/source", config=config)
    )
