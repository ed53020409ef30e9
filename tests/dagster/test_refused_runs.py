"""Runs with blocked input: their events, and that no retry repeats them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from standins import failures, memorize, people, people_table

from privacy_assets.errors import InputError
from privacy_assets.pipeline import work

NEVER, RETRIES = "dagster/retry_on_asset_or_op_failure", "dagster/will_retry"


@pytest.fixture
def retrying(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """An instance that retries failed runs."""
    overrides = {
        "telemetry": {"enabled": False},
        "run_retries": {"enabled": True, "max_retries": 2},
    }
    with dg.DagsterInstance.local_temp(str(tmp_path), overrides=overrides) as found:
        yield found


def launch(
    defs: dg.Definitions, instance: dg.DagsterInstance, job: str
) -> dg.ExecuteInProcessResult:
    """Run a job, or with "" materialize as in the asset graph of the UI."""
    found = defs.resolve_job_def(job) if job else defs.resolve_implicit_global_asset_job_def()
    return found.execute_in_process(instance=instance, raise_on_error=False)


@pytest.mark.slow
@pytest.mark.parametrize("job", ["people_pipeline", "", "mine"])
def test_a_refused_source_is_one_message_and_never_repeated(
    job: str, tmp_path: Path, retrying: dg.DagsterInstance
) -> None:
    people(100).drop(columns="pid").to_parquet(tmp_path / "people.parquet")
    policy = dg.RetryPolicy(max_retries=2)
    mine = dg.define_asset_job(
        "mine", dg.AssetSelection.key_prefixes("people"), op_retry_policy=policy
    )
    defs = dg.Definitions.merge(people_table(tmp_path), dg.Definitions(jobs=[mine]))
    result = launch(defs, retrying, job)
    (failed,) = failures(result).values()
    assert failed.user_failure_data.description == (
        "source, column 'pid': the column configured as the subject does not exist."
        " Fix: set subject to a column of this table."
    )
    # Dagster's own frames, and the line that raises; none of the code that read the table.
    assert [
        line
        for line in failed.error.stack
        if "privacy_assets" in line and "redaction.py" not in line
    ] == []
    records = retrying.get_records_for_run(result.run_id).records
    errors = [r.event_log_entry for r in records if r.event_log_entry.level >= logging.ERROR]
    skipped = [error for error in errors if error.user_message.endswith("Not executing.")]
    assert len(errors) - len(skipped) == 2  # step and run
    assert not any(
        event.event_type == dg.DagsterEventType.STEP_UP_FOR_RETRY for event in result.all_events
    )
    tags = retrying.get_run_by_id(result.run_id).tags
    assert (tags[NEVER], tags[RETRIES]) == ("false", "false")


def test_a_run_that_cannot_be_tagged_is_blocked_for_the_same_reason(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    people(100).drop(columns="pid").to_parquet(tmp_path / "people.parquet")
    monkeypatch.setattr(type(instance), "add_run_tags", lambda *_: 1 / 0)
    (failed,) = failures(launch(people_table(tmp_path), instance, "people_pipeline")).values()
    assert (
        "'pid': the column configured as the subject does not exist"
        in failed.user_failure_data.description
    )
    assert "ZeroDivisionError" not in failed.error.to_string()


@pytest.mark.slow
@pytest.mark.parametrize("error", [InputError("the disk is busy", transient=True), MemoryError()])
def test_a_run_that_may_succeed_the_next_time_is_left_to_the_deployment(
    error: Exception, tmp_path: Path, retrying: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    def source_table(*_: object) -> None:
        raise error

    monkeypatch.setattr(work, "source_table", source_table)
    result = launch(people_table(tmp_path), retrying, "people_pipeline")
    tags = retrying.get_run_by_id(result.run_id).tags
    assert NEVER not in tags and tags[RETRIES] == "true"


@pytest.mark.slow
def test_a_refused_table_is_never_repeated(tmp_path: Path, retrying: dg.DagsterInstance) -> None:
    """The verdict is final, although its metrics ran without an error."""
    result = launch(people_table(tmp_path, generator=memorize), retrying, "people_pipeline")
    assert set(failures(result)) == {"people__attest"}
    tags = retrying.get_run_by_id(result.run_id).tags
    assert (tags[NEVER], tags[RETRIES]) == ("false", "false")
