"""The job of the leak study: its files, its metadata, and that it is not part of "Materialize
all".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from standins import (
    QUICK,
    failures,
    made,
    people_table,
    run,
    sqlite_instance,
    study_of,
    table_of,
)

from privacy_assets.errors import ConfigError
from privacy_assets.evaluation.measuring import run_metrics
from privacy_assets.evaluation.reading import read_inputs
from privacy_assets.metrics.registry import build_metric
from privacy_assets.studies.leak_study import Noise, leaky_table, read_points
from privacy_assets.tables.declared import Declared
from privacy_assets.tables.table import Table


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("deployment")
    # the split key decides the split: the same in every run
    with pytest.MonkeyPatch.context() as known:
        known.setenv("PRIVACY_ASSETS_SPLIT_KEY", "leak study " * 3)
        yield folder


@pytest.fixture(scope="module")
def instance(place: Path) -> Iterator[dg.DagsterInstance]:
    with sqlite_instance(place) as found:
        yield found


def study(
    defs: dg.Definitions, instance: dg.DagsterInstance, partition: str | None = None, **config: Any
) -> dg.ExecuteInProcessResult:
    given = {"ops": {"people__leak_study": {"config": config}}} if config else None
    job = defs.resolve_job_def("people_leak_study")
    return job.execute_in_process(
        instance=instance, raise_on_error=False, run_config=given, partition_key=partition
    )


@pytest.fixture(scope="module")
def pipeline(place: Path, instance: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
    result = run(people_table(place), instance)
    assert result.success, failures(result)
    assert "leak_study" not in made(result)
    return result


@pytest.fixture(scope="module")
def first(
    pipeline: dg.ExecuteInProcessResult, place: Path, instance: dg.DagsterInstance
) -> dg.ExecuteInProcessResult:
    result = study(people_table(place, study=True), instance)
    assert result.success, failures(result)
    return result


@pytest.mark.slow
def test_a_leak_shows_in_page_points_and_metadata(
    first: dg.ExecuteInProcessResult, place: Path, instance: dg.DagsterInstance
) -> None:
    metadata = made(first)
    assert list(metadata) == ["leak_study"]
    told = metadata["leak_study"]
    page = Path(told["path"])
    points = {point.x: point.estimates for point in read_points(page.parent / "points.jsonl")}
    assert list(points) == [0.0, 0.25, 0.5, 0.75, 1.0] and told["tables"] == 5
    (value, low, _), (most, least, _) = (points[x]["dcr.identical_excess"] for x in (0.0, 1.0))
    assert low <= 0 < least and value < 0.3 < most
    lines = {record.data["statistic"]: record.data for record in told["lines"].records}
    assert (
        lines["dcr.identical_excess"]["never back"] == "yes"
        and float(lines["dcr.identical_excess"]["slope"]) > 0.2
    )
    assert told["statistics that decrease"] == sum(
        line["never back"] == "NO" for line in lines.values()
    )
    pictures = [value for name, value in told.items() if name.endswith(" by leak")]
    assert len(pictures) == 1 and pictures[0].startswith("![dcr.") and len(pictures[0]) < 1000
    assert "<svg" in page.read_text() and "Leak study of people" in page.read_text()
    assert {path.name for path in page.parent.iterdir()} == {
        "points.jsonl",
        "leak_study.html",
        "leak_study.json",
    }
    assert all(path.stat().st_mode & 0o077 == 0 for path in [page.parent, *page.parent.iterdir()])
    log = "\n".join(
        record.event_log_entry.to_json()
        for record in instance.get_records_for_run(first.run_id).records
    )
    assert "p399" not in log and "north" not in log


@pytest.mark.slow
def test_the_statistics_are_those_of_the_engine(
    first: dg.ExecuteInProcessResult, place: Path
) -> None:
    """Half a leak, built by hand from the pipeline's stored tables and evaluated by the metric
    alone.
    """
    defs = people_table(place)
    with dg.DagsterInstance.local_temp(str(place / "home")) as instance:
        parts = {
            role: defs.get_asset_value_loader(instance).load_asset_value(
                dg.AssetKey(["people", role]), python_type=Table
            )
            for role in ("train", "holdout", "reference")
        }
    leaked = leaky_table(
        parts["train"].without_subject(), parts["reference"].without_subject(), 0.5, Noise(), 0
    ).frame()
    real, schema = [parts[role].frame() for role in ("train", "holdout")], parts["train"].schema
    inputs = read_inputs(*real, leaked, declared=Declared(subject="pid"), schema=schema)
    wanted = run_metrics(inputs, {"dcr": build_metric("dcr", QUICK["policy"]["metrics"]["dcr"])})[
        "dcr"
    ]
    path = Path(made(first)["leak_study"]["path"]).with_name("points.jsonl")
    found = next(point for point in read_points(path) if point.x == 0.5).estimates
    assert found == {
        f"dcr.{f.name}": pytest.approx((f.value, f.low, f.high), nan_ok=True)
        for f in wanted.estimates
    }


@pytest.mark.slow
def test_it_goes_on_and_takes_config(
    first: dg.ExecuteInProcessResult, place: Path, instance: dg.DagsterInstance
) -> None:
    path = Path(made(first)["leak_study"]["path"]).with_name("points.jsonl")
    before = path.read_text()
    more = study(
        people_table(place, study=True), instance, fractions=[0.0, 0.1, 1.0], noise=[0.0, 0.05]
    )
    assert more.success, failures(more)
    told = made(more)["leak_study"]
    assert told["tables"] == 24 and told["series"] == "no noise"
    assert path.read_text().startswith(before) and len(path.read_text().splitlines()) == 5 + 22
    shown = json.loads(path.with_name("leak_study.json").read_text())
    assert {point["series"] for point in shown["points"]} > {"no noise", "p 0.05"}


@pytest.mark.slow
def test_config_that_cannot_be_run(
    pipeline: dg.ExecuteInProcessResult, place: Path, instance: dg.DagsterInstance
) -> None:
    for config, words in (
        ({"fractions": [0.0, 1.5]}, "from 0 to 1"),
        ({"noise": []}, "at least one number"),
        ({"metrics": ["drc"]}, "metrics[0] is not a metric that this study can run"),
    ):
        result = study(people_table(place, study=True), instance, **config)
        assert not result.success and words in str(failures(result))


@pytest.mark.slow
def test_partitions_have_studies_of_their_own_and_without_splits_it_says_what_to_do(
    place: Path,
) -> None:
    regions = dg.StaticPartitionsDefinition(["north", "south"])
    defs = people_table(place, study=True, partitions_def=regions, partition_column="region")
    with dg.DagsterInstance.ephemeral() as instance:
        assert run(
            defs, instance, "source", "train", "holdout", "reference", partition="south"
        ).success
        result = study(defs, instance, "south", fractions=[0.0, 0.5, 1.0])
        empty = study(defs, instance, "north")
    page = Path(made(result)["leak_study"]["path"])
    assert page.parent.name == "partition=south" and "people, south" in page.read_text()
    assert not empty.success and "materialize it first" in str(failures(empty))


BROUGHT = {"synthetic": "s.csv", "train": "t.csv", "holdout": "h.csv", "metrics": ["dcr"]}


def test_a_table_whose_rows_can_stand_for_the_release_has_a_study() -> None:
    for arguments in ({"source": "demo"}, {**BROUGHT, "reference": "r.csv"}):
        (job,) = study_of("people", **arguments).jobs
        assert job.name == "people_leak_study"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"source": "demo", "split": {"train": 0.5, "holdout": 0.5}}, "requires the rows of ref"),
        (BROUGHT, "requires the rows of reference"),
        ({"source": "demo", "metrics": ["shadow_membership"]}, "can run none of its metrics"),
    ],
)
def test_other_tables_have_none(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        study_of("people", **arguments)


def test_the_code_of_docs_controls_adds_it() -> None:
    page = Path(__file__).parents[2] / "docs" / "controls.md"
    (code,) = re.findall(
        r"^```python\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    names: dict[str, Any] = {}
    exec(code, names)
    assert "patients_leak_study" in [job.name for job in names["defs"].jobs]


def test_materialize_all_does_not_run_it() -> None:
    defs = dg.Definitions.merge(
        table_of("people", source="demo"), study_of("people", source="demo")
    )
    assert not [key for asset in defs.assets for key in asset.keys if "leak_study" in key.path]
    (study,) = (job for job in defs.jobs if job.name == "people_leak_study")
    assert study.tags == {"privacy_assets/table": "people"}
