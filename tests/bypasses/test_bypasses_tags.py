"""Bypasses over run tags, spellings of partitions and the Dagster instance (see test_bypasses)."""

import os
import re
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pandas as pd
import pytest
import yaml
from bypasses import (
    REGIONS,
    World,
    blocked,
    exporter,
    gated,
    nothing_published,
    reason,
    released,
    stock,
    with_assets,
)  # fmt: skip
from dotenv import dotenv_values
from standins import QUICK, failures, independent, people, table_of
from stock import KEY, quota_table

from privacy_assets import (
    GpuResource,
    PrivacyGate,
    PrivacyIOManager,
    ReleaseResource,
    read_published,
)
from privacy_assets.dagster.component import PrivacyGateParams, PrivacyGateScaffolder
from privacy_assets.errors import ConfigError
from privacy_assets.gate.envelope import ReleaseTarget
from privacy_assets.pipeline.spec import TableSpec

ROOT = Path(__file__).parents[2]
DAY = "2024-01-01"
START, END = (f"dagster/asset_partition_range_{end}" for end in ("start", "end"))
DAYS = dg.DailyPartitionsDefinition(DAY, end_date="2024-01-04")
BY_DAY = {"partitions_def": DAYS, "partition_column": "joined"}


def nightly(
    world: World, name: str, partitions: dg.PartitionsDefinition | None = None
) -> dg.Definitions:
    storage = {"io_manager": dg.FilesystemIOManager(base_dir=str(world.root / "stock"))}
    own = dg.Definitions(resources=storage, executor=dg.in_process_executor)
    return dg.Definitions.merge(quota_table(world, name, partitions), own)


@pytest.mark.slow
def test_bypass_28_a_run_tag_on_a_table_without_partitions(world: World) -> None:
    plain = nightly(world, "nights")
    assert [world.run(plain).success, world.run(plain).success] == [True, False]
    assert all(world.run(plain, tags={KEY: f"shop-{shop}"}).success for shop in range(2))
    world.gave_away_all("nights")

    defs = gated(world, "tagged", independent)
    assert world.run(defs).success
    for tags in (
        {KEY: "shop-0"},
        {KEY: ""},
        {f"{KEY}/shop": "0"},
        {START: "shop-0", END: "shop-0"},
    ):
        result = world.run(defs, tags=tags)
        assert list(failures(result)) == ["tagged__read"]
        assert "tagged has no partitions" in reason(result, "tagged__read")
        blocked(
            world.run(defs, "tagged/published", tags=tags), "tagged", "tagged has no partitions"
        )
    assert list(world.store.targets("tagged")) == [ReleaseTarget("tagged")]
    assert len(released(world, "tagged")) == 1
    nothing_published(world, "tagged", "shop-0")


@pytest.mark.slow
def test_bypass_29_another_spelling_of_a_partition(world: World) -> None:
    plain = nightly(world, "spelt", DAYS)
    assert [world.run(plain, partition=DAY).success for _ in range(2)] == [True, False]
    assert all(world.run(plain, tags={KEY: key}).success for key in ("2024-1-1", "2024-01-1"))
    world.gave_away_all("spelt")

    defs = gated(world, "leaky_spelt", independent, **BY_DAY)
    assert world.run(defs, partition=DAY).success
    for key in ("2024-1-1", "2024-01-1", "2023-12-31", "2024-01-04"):
        assert list(failures(world.run(defs, tags={KEY: key}))) == ["leaky_spelt__read"]
        nothing_published(world, "leaky_spelt", key)
    blocked(
        world.run(defs, "leaky_spelt/published", tags={KEY: "2024-1-1"}),
        "leaky_spelt",
        "no such partition",
    )
    assert list(world.store.targets("leaky_spelt")) == [ReleaseTarget("leaky_spelt", DAY)]
    assert len(released(world, "leaky_spelt", DAY)) == 1


RANGES = [{START: "north", END: "north"}, {START: "north", END: "south"}, {}]


@pytest.mark.slow
def test_bypass_30_a_range_of_partitions(world: World) -> None:
    plain = stock(world, "ranged", generator=independent, partitions=REGIONS)
    result = world.run(plain, tags=RANGES[0])
    assert result.success
    public = pd.read_parquet(world.root / "public" / "ranged" / f"{result.run_id}.parquet")
    assert set(public["region"]) == {"north", "south"}

    defs = gated(world, "leaky_ranged", independent, regions=True)
    assert all(world.run(defs, partition=region).success for region in ("north", "south"))
    for tags in RANGES:
        result = world.run(defs, tags=tags)
        assert list(failures(result)) == ["leaky_ranged__read"]
        assert "do not name exactly one" in reason(result, "leaky_ranged__read")
        assert not world.run(defs, "leaky_ranged/published", tags=tags).success
    nothing_published(world, "leaky_ranged")
    assert [len(released(world, "leaky_ranged", region)) for region in ("north", "south")] == [1, 1]


@pytest.mark.slow
def test_bypass_31_a_reader_of_one_partition_given_the_record_of_another(world: World) -> None:
    plain = with_assets(
        stock(world, "swapped", generator=independent, partitions=REGIONS),
        exporter(world, "swapped", "synthetic", "of_north", partitions_def=REGIONS),
    )
    assert all(
        world.run(plain, "swapped/synthetic", partition=region).success
        for region in ("north", "south")
    )
    stored = world.root / "stock" / "swapped" / "synthetic"
    (stored / "north").write_bytes((stored / "south").read_bytes())
    result = world.run(plain, "of_north", partition="north")
    public = pd.read_parquet(world.root / "public" / "of_north" / f"{result.run_id}.parquet")
    assert set(public["region"]) == {"south"}

    @dg.asset(ins={"rows": dg.AssetIn(key=["leaky_swapped", "published"])})
    def unannotated(rows):
        raise AssertionError("it was given rows")

    table = gated(world, "leaky_swapped", independent, regions=True)
    assert all(world.run(table, partition=region).success for region in ("north", "south"))
    defs = with_assets(
        table,
        exporter(world, "leaky_swapped", "published", "of_gated", partitions_def=REGIONS),
        exporter(world, "leaky_swapped", "published", "of_all"),
        unannotated,
    )
    assert world.run(defs, "of_all").success
    north, south = (
        world.root / f"storage/leaky_swapped/published/partition={end}/published.json"
        for end in REGIONS.get_partition_keys()
    )
    kept = north.read_bytes()
    for record in (
        south.read_bytes(),
        kept.replace(b'"north"', b"null"),
        kept.replace(b"leaky_swapped", b"tagged"),
    ):
        north.write_bytes(record)
        for result in (
            world.run(defs, "of_gated", partition="north"),
            world.run(defs, "of_all", "unannotated"),
        ):
            assert all(
                "this is the file of a release of" in reason(result, step)
                for step in failures(result)
            )
            assert not result.success
    north.write_bytes(kept)
    assert world.run(defs, "of_gated", partition="north").success


@pytest.mark.slow
def test_a_partition_of_two_dimensions_is_one_place(world: World) -> None:
    both = dg.MultiPartitionsDefinition({"region": REGIONS, "day": DAYS})
    key = dg.MultiPartitionKey({"day": DAY, "region": "north"})
    people(100).to_csv(world.root / f"{key}.csv", index=False)
    defs = gated(
        world, "grid", independent, source=str(world.root / "{partition}.csv"), partitions_def=both
    )
    assert world.run(defs, "grid/source", partition=key).success
    assert world.run(defs, "grid/source", tags={KEY: str(key)}).success
    for tags in (
        {f"{KEY}/region": "north", f"{KEY}/day": "2024-1-1"},
        {KEY: str(key), f"{KEY}/region": "south"},
        {KEY: str(key), f"{KEY}/shop": "1"},
        {KEY: f"north|{DAY}"},
        {KEY: f"{key}|north"},
        {KEY: "north"},
        {},
    ):
        assert list(failures(world.run(defs, tags=tags))) == ["grid__read"], tags


@pytest.mark.slow
def test_a_dynamic_partition_is_one_that_the_instance_knows(world: World) -> None:
    shops = dg.DynamicPartitionsDefinition(name="shops")
    defs = gated(world, "shops", independent, partitions_def=shops, partition_column="region")
    assert not world.run(defs, "shops/source", tags={KEY: "north"}).success
    world.instance.add_dynamic_partitions("shops", ["north", "west"])
    assert world.run(defs, "shops/source", partition="north").success
    result = world.run(defs, partition="west")
    # a new key cannot reuse old rows
    assert "the partition has no rows" in reason(result, "shops__read")


SHOPS = dg.DynamicPartitionsDefinition(name="shops")
GRID = dg.MultiPartitionsDefinition({"shop": SHOPS, "day": DAYS})
BESIDE = {"source": "/data/{partition}*.csv"}
SHARED = {"policy": None, "metrics": None, "shared_subjects": True}


@pytest.mark.parametrize(
    ("partitions", "given", "closed"),
    [
        (SHOPS, BESIDE, False),  # "nort" selects the rows of "north"
        (GRID, {"source": "s3://data/{partition}-?.csv"}, False),
        (SHOPS, {"source": dg.AssetKey("raw")}, False),  # an asset may read "./north" for "north"
        (SHOPS, {"source": dg.AssetKey("raw"), "partition_column": "region"}, True),
        (SHOPS, {"source": "/data/*/{partition}/*.csv"}, True),
        (SHOPS, {"source": "/data/all.csv", "partition_column": "region"}, True),
        (SHOPS, {**BESIDE, **SHARED}, True),
        (DAYS, BESIDE, True),
    ],
)
def test_bypass_52_a_partition_key_that_a_user_of_the_ui_adds(
    partitions: dg.PartitionsDefinition, given: dict[str, object], closed: bool
) -> None:
    """A second key for the same rows would be a partition without a history."""
    settings = {"subject": "pid", **QUICK, "partitions_def": partitions, **given}
    if closed:
        assert table_of("shops", **settings).assets
    else:
        with pytest.raises(
            ConfigError, match=r"table shops: users of the UI can add keys .* rows of source"
        ):
            table_of("shops", **settings)


@pytest.mark.slow
def test_bypass_32_a_release_in_a_folder_that_goes_with_the_instance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    people(100).to_parquet(tmp_path / "people.parquet")
    table = table_of(
        "people", source=tmp_path / "people.parquet", subject="pid", generator=independent, **QUICK
    )
    assets = [asset for asset in table.assets if dg.AssetKey(["people", "source"]) in asset.keys]
    (tmp_path / ".tmp_dagster_home_ab12").mkdir()  # the folder of a Dagster command
    given = {"releases": str(tmp_path / "releases"), "private": str(tmp_path / "private")}
    for releases in ({}, {"releases": given["releases"]}, {"private": given["private"]}, given):
        bound = {
            "privacy_io": PrivacyIOManager(base=str(tmp_path / "storage")),
            "releases": ReleaseResource(**releases),
            "gpu": GpuResource(device="cpu", lock_folder=str(tmp_path / "locks")),
        }
        homes = (
            dg.DagsterInstance.ephemeral(),
            dg.DagsterInstance.local_temp(str(tmp_path / ".tmp_dagster_home_ab12")),
        )
        for instance in homes:
            with instance:
                result = dg.materialize(
                    assets, resources=bound, instance=instance, raise_on_error=False
                )
            assert result.success is (releases == given)
            # The next instance does not know that the run has ended.
            (tmp_path / "private" / "running" / "people.json").unlink(missing_ok=True)
            for step in failures(result):
                assert "set DAGSTER_HOME to a folder that stays" in reason(result, step)


PROJECT = """
import dagster as dg
from standins import people_table
from pathlib import Path
from privacy_assets import PrivacyIOManager, ReleaseResource

def unplaced(table: dg.Definitions) -> dg.Definitions:
    resources = {**table.resources, "privacy_io": PrivacyIOManager(), "releases": ReleaseResource()}
    return dg.Definitions(assets=table.assets, jobs=table.jobs, resources=resources, executor=table.executor)

defs = unplaced(people_table(Path.cwd()))
"""  # noqa: E501


@pytest.mark.weekly
def test_bypass_32_a_dagster_command_without_a_home_and_with_that_of_the_scaffold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "tests/helpers")]))
    people(100).to_parquet(tmp_path / "people.parquet")
    (tmp_path / "table.py").write_text(PROJECT)
    (tmp_path / ".gitignore").write_text("*.log")

    def execute() -> "subprocess.CompletedProcess[str]":
        command = [
            Path(sys.executable).parent / "dagster",
            "job",
            "execute",
            "-f",
            "table.py",
            "-j",
            "people_pipeline",
        ]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)

    lost = execute()
    assert (
        lost.returncode and "set DAGSTER_HOME to a folder that stays" in lost.stdout + lost.stderr
    )
    assert not list(tmp_path.rglob("releases"))
    scaffold(tmp_path)
    kept = execute()
    assert kept.returncode == 0, kept.stdout + kept.stderr
    assert len(read_published(tmp_path / ".dagster_home" / "releases", "people"))


def scaffold(project: Path, params: PrivacyGateParams | None = None) -> None:
    """``dg scaffold defs privacy_assets.PrivacyGate patients``."""
    folder = project / "defs" / "patients"
    folder.mkdir(parents=True, exist_ok=True)
    PrivacyGateScaffolder().scaffold(
        dg.ScaffoldRequest("privacy_assets.PrivacyGate", folder, "yaml", project, params=params)
    )


def test_the_scaffold_creates_what_its_page_shows_and_comments_with_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", "/srv/dagster")
    page = (ROOT / "docs" / "integrations" / "dagster.md").read_text()
    command, shown = re.findall(r"```(?:sh|yaml)\n(.*?)```", page, re.DOTALL)
    options = dict(re.findall(r"--(\w+) (\S+)", command))
    scaffold(tmp_path, PrivacyGateParams(**options))
    folder = tmp_path / "defs" / "patients"
    text = (folder / "defs.yaml").read_text()
    assert yaml.safe_load(text) == yaml.safe_load(shown)
    written = yaml.safe_load(text)["attributes"]
    attributes = yaml.safe_load(re.sub(r"^  # (?=  |\w+:)", "  ", text, flags=re.MULTILINE))[
        "attributes"
    ]
    assert {*written, "data", "split", "generator", "policy", "run", "schedule"} == set(attributes)
    PrivacyGate.resolve_from_yaml(yaml.safe_dump(attributes))
    attributes.pop("schedule")
    spec = TableSpec.of(attributes, folder)
    assert spec.data.drop == ("claim_id",) and spec.data.kinds == {"zip_code": "categorical"}
    assert "relative to the folder of this file" in text and spec.data.source == str(
        folder / "patients.csv"
    )


@pytest.mark.parametrize("line", ["WEBHOOK=x", "export DAGSTER_HOME = /srv/dagster", None])
def test_the_scaffold_names_a_home_that_stays_unless_there_is_one(
    line: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variable is set in the file, or in the environment (None)."""
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    if line is None:
        monkeypatch.setenv("DAGSTER_HOME", "/srv/dagster")
    else:
        (tmp_path / ".env").write_text(line)
    (tmp_path / ".gitignore").write_text("/.dagster_home/")
    for _ in range(2):
        scaffold(tmp_path)
    home, made = tmp_path / ".dagster_home", line == "WEBHOOK=x"
    assert (home / "dagster.yaml").is_file() is made
    if made:
        assert dotenv_values(tmp_path / ".env") == {"WEBHOOK": "x", "DAGSTER_HOME": str(home)}
        assert (tmp_path / ".gitignore").read_text() == "/.dagster_home/\n.env\n"
    else:
        assert not home.exists() and (tmp_path / ".gitignore").read_text() == "/.dagster_home/"
        assert (tmp_path / ".env").exists() is bool(line)
