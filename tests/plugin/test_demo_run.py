"""The demo's run is one of the job in the code location that ``make ui`` loads."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest
from drawing import independent, memorise, people
from standins import QUICK, table_of

from privacy_assets.dagster import demo

ROOT = Path(__file__).parents[2]


def test_the_run_names_its_code_location_so_that_the_timeline_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def table(*, leak: bool) -> dg.Definitions:
        name, generator = ("patients_leak", memorise) if leak else ("patients", independent)
        return table_of(name, source=tmp_path / "people.parquet", subject="pid", generator=generator, **QUICK)

    people().to_parquet(tmp_path / "people.parquet")
    monkeypatch.setattr(demo, "demo_table", table)
    monkeypatch.setenv("DAGSTER_HOME", str(demo.home_below(tmp_path)))
    monkeypatch.chdir(ROOT)
    said: list[str] = []
    assert [demo.run_demo(leak=leak, say=said.append) for leak in (False, True)] == [0, 1]
    text = "\n".join(said)
    assert "run " in said[0] and "refused" in text
    assert "PASS  patients" in text and "release      none: publication was blocked" in text
    with dg.DagsterInstance.get() as instance:
        found = {run.job_name: run for run in instance.get_runs()}
    assert {name: run.status.value for name, run in found.items()} == {
        "patients_pipeline": "SUCCESS", "patients_leak_pipeline": "FAILURE"
    }  # fmt: skip
    for name, run in found.items():
        assert run.remote_job_origin is not None and run.remote_job_origin.job_name == name
        assert run.remote_job_origin.location_name == "privacy_assets"


@pytest.mark.parametrize("text", [None, "[project]\nname = 'x'\n", "[tool.dg.project]\nroot_module = 'x'\n", "no toml"])
def test_a_folder_without_a_named_location_is_no_location(
    text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if text is not None:
        (tmp_path / "pyproject.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    assert demo._location() is None
