"""A table that is evaluated on a Ray cluster has the same statistics, and is attested and
published.
"""

from __future__ import annotations

import os
from pathlib import Path

import dagster as dg
import pytest
from standins import QUICK, independent, made, people, resources, study_of, table_of

from privacy_assets import frozen_config
from tests.rays import ray_alone

METRICS = ["dcr", "singling_out", "vulnerability"]


def table(folder: Path, **more) -> dg.Definitions:
    people(600).to_parquet(folder / "people.parquet")
    asked = {**QUICK, "metrics": METRICS, "generator": independent, **more}
    return table_of("people", source=folder / "people.parquet", subject="pid", **asked)


def test_what_a_table_measures_with_is_named() -> None:
    for workers, wanted in (("local", False), ("ray", True)):
        settings = {"source": "demo", "workers": workers}
        defs = dg.Definitions.merge(table_of("people", **settings), study_of("people", **settings))
        needs = {
            key.path[-1]: asset.required_resource_keys
            for asset in defs.assets
            for key in asset.keys
        }
        (study,) = (job for job in defs.jobs if job.name == "people_leak_study")
        needs["leak_study"] = study.all_node_defs[0].required_resource_keys
        assert ("ray" in needs["singling_out"]) is ("ray" in needs["leak_study"]) is wanted
        assert not any(
            "ray" in needs[name] for name in ("train", "synthetic", "attestation", "published")
        )


@pytest.mark.weekly
def test_a_pipeline_on_a_cluster_publishes_the_same_statistics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dagster_ray = pytest.importorskip("dagster_ray", reason="the extra 'ray' is not installed")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv(
        "PYTHONPATH",
        os.pathsep.join(
            [str(Path(__file__).parents[1] / "helpers"), os.environ.get("PYTHONPATH", "")]
        ),
    )
    options = {"num_cpus": 2, "include_dashboard": False, "log_to_driver": False}
    shown = {}
    for workers in ("local", "ray"):
        folder = tmp_path / workers
        folder.mkdir()
        bound = resources(folder)
        ray = (
            {"ray": frozen_config(dagster_ray.LocalRay(ray_init_options=options))}
            if workers == "ray"
            else {}
        )
        defs = dg.Definitions.merge(
            table(folder, workers=workers), bound, dg.Definitions(resources=ray)
        )
        monkeypatch.setenv("PRIVACY_ASSETS_SPLIT_KEY", "the same split in both folders, please")
        with ray_alone(), dg.DagsterInstance.ephemeral() as instance:
            result = defs.resolve_job_def("people_pipeline").execute_in_process(instance=instance)
        assert result.success
        report = result.output_for_node("people__attest", "privacy_report").to_json()
        shown[workers] = {name: found["estimates"] for name, found in report["metrics"].items()}
    assert shown["ray"] == shown["local"]
    assert made(result)["published"]
