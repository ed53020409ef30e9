"""The demo runs in this process, and reports steps and result."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest
from drawing import independent, memorize, people
from standins import LENIENT, QUICK, table_of

from privacy_assets.dagster import demo


@pytest.mark.slow
def test_the_honest_table_is_published_and_the_leaky_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def table(*, leak: bool) -> dg.Definitions:
        name, generator = ("patients_leak", memorize) if leak else ("patients", independent)
        return table_of(
            name, source=tmp_path / "people.parquet", subject="pid", generator=generator, **QUICK
        )

    people().to_parquet(tmp_path / "people.parquet")
    monkeypatch.setattr(demo, "demo_table", table)
    monkeypatch.setenv("DAGSTER_HOME", str(demo.home_below(tmp_path)))
    said: list[str] = []
    assert [demo.run_demo(leak=leak, say=said.append) for leak in (False, True)] == [0, 1]
    text = "\n".join(said)
    assert "run " in said[0] and "blocked" in text
    assert "PASS  patients" in text and "release      none: publication was blocked" in text
    with dg.DagsterInstance.get() as instance:
        found = {run.job_name: run for run in instance.get_runs()}
    assert {name: run.status.value for name, run in found.items()} == {
        "patients_pipeline": "SUCCESS", "patients_leak_pipeline": "FAILURE"
    }  # fmt: skip


@pytest.mark.slow
def test_a_demo_that_is_undecided_ends_with_3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = {**LENIENT["limits"][0], "min_subjects": 10_000}
    policy = {**QUICK, "policy": {**LENIENT, "limits": [limit]}}
    table = table_of(
        "patients",
        source=tmp_path / "people.parquet",
        subject="pid",
        generator=independent,
        **policy,
    )
    people().to_parquet(tmp_path / "people.parquet")
    monkeypatch.setattr(demo, "demo_table", lambda *, leak: table)
    monkeypatch.setenv("DAGSTER_HOME", str(demo.home_below(tmp_path)))
    said: list[str] = []
    assert demo.run_demo(leak=False, say=said.append) == 3
    assert "release      none: publication was blocked" in "\n".join(said)
