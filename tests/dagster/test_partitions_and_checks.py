"""Partitioned tables, and checks on assets that the user already has."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import dagster as dg
import pandas as pd
import pytest
from drawing import memorize_the_north
from standins import (
    LENIENT,
    QUICK,
    checks,
    failures,
    independent,
    made,
    memorize,
    people,
    people_table,
    resources,
    run,
    table_of,
)  # fmt: skip

from privacy_assets import GpuResource, PrivacyIOManager, build_privacy_checks, read_published
from privacy_assets.distances.embedder import Embedder
from privacy_assets.errors import InputError
from privacy_assets.evaluation.measuring import fit_embedder
from privacy_assets.pipeline.row_sources import partition_path
from privacy_assets.tables.files import table_files
from privacy_assets.tables.table import Table

REGIONS = dg.StaticPartitionsDefinition(["north", "south"])
CHECKS = {"metrics": QUICK["metrics"], "policy": LENIENT, "subject": "pid", "embedder": False}


@pytest.mark.slow
def test_a_table_by_region_from_one_file(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    defs = people_table(tmp_path, partitions_def=REGIONS, partition_column="region")
    sides: dict[str, set[str]] = {"train": set(), "holdout": set()}
    for region in ("north", "south"):
        result = run(defs, instance, partition=region)
        assert result.success, failures(result)
        assert len(checks(result)) == 5 and all(check.passed for check in checks(result).values())
        assert set(read_published(tmp_path / "releases", "people", region)["region"]) == {region}
        for role, seen in sides.items():
            rows = Table.load(
                tmp_path / f"storage/people/{role}/partition={region}/table.bin"
            ).frame()
            seen |= set(rows["pid"])
    assert sides["train"].isdisjoint(sides["holdout"])  # a person is on one side in every partition


@pytest.mark.slow
def test_a_leak_in_one_region_leaves_the_other_published(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    for region, frame in people().groupby("region"):
        frame.to_csv(tmp_path / f"people_{region}.csv", index=False)
    source = str(tmp_path / "people_{partition}.csv")
    defs = people_table(
        tmp_path, source=source, generator=memorize_the_north, partitions_def=REGIONS
    )
    assert [run(defs, instance, partition=region).success for region in ("south", "north")] == [
        True,
        False,
    ]
    assert len(read_published(tmp_path / "releases", "people", "south"))
    with pytest.raises(ValueError, match="there is no release"):
        read_published(tmp_path / "releases", "people", "north")


@pytest.mark.slow
def test_daily_partitions_take_their_day(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    days = dg.DailyPartitionsDefinition("2024-01-01")
    defs = people_table(tmp_path, partitions_def=days, partition_column="joined")
    assert run(defs, instance, "source", partition="2024-01-02").success
    rows = Table.load(tmp_path / "storage/people/source/partition=2024-01-02/table.bin").frame()
    assert set(rows["joined"].dt.date.astype(str)) == {"2024-01-02"}
    empty = run(defs, instance, partition="2024-03-01")
    assert (
        "the partition has no rows" in failures(empty)["people__read"].user_failure_data.description
    )


@pytest.mark.parametrize("key", ["..", "../x", "a/b", "/etc", ""])
def test_a_partition_key_does_not_leave_its_place(key: str) -> None:
    with pytest.raises(InputError, match="cannot be part of a path"):
        partition_path("data/{partition}/people.csv", key)


@pytest.mark.parametrize("key", ["*", "nort?", "[ns]orth"])
def test_a_partition_key_is_no_pattern(key: str, tmp_path: Path) -> None:
    template = str(tmp_path / "people_{partition}.csv")
    people(5).to_csv(tmp_path / "people_north.csv", index=False)
    with pytest.raises(InputError, match="no file matches the pattern"):
        table_files(partition_path(template, key))
    people(5).to_csv(tmp_path / f"people_{key}.csv", index=False)
    assert [file.name for file in table_files(partition_path(template, key))] == [
        f"people_{key}.csv"
    ]


def test_several_partitions_load_as_one_frame(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    @dg.asset(partitions_def=REGIONS, io_manager_key="privacy_io")
    def rows(context: dg.AssetExecutionContext) -> pd.DataFrame:
        return pd.DataFrame(
            {"region": [context.partition_key] * 2, "age": pd.array([1, None], dtype="Int64")}
        )

    @dg.asset(io_manager_key="privacy_io")
    def everything(rows: pd.DataFrame) -> pd.DataFrame:
        return rows

    io = {"privacy_io": PrivacyIOManager(base=str(tmp_path))}
    for region in REGIONS.get_partition_keys():
        assert dg.materialize([rows], partition_key=region, instance=instance, resources=io).success
    found = dg.materialize(
        [rows, everything], selection=[everything], instance=instance, resources=io
    )
    loaded = found.output_for_node("everything")
    assert sorted(loaded["region"]) == ["north", "north", "south", "south"]
    assert str(loaded["age"].dtype) == "Int64"


@pytest.mark.slow
@pytest.mark.parametrize("region", [None, "north", "south"])
def test_checks_on_assets_of_the_user(
    tmp_path: Path, instance: dg.DagsterInstance, region: str | None
) -> None:
    """On whole tables and on partitions; all of them leak, except the south."""
    split = {"partitions_def": REGIONS} if region else {}

    @dg.asset(**split)
    def train() -> pd.DataFrame:
        return people()

    @dg.asset(**split)
    def holdout() -> pd.DataFrame:
        frame = people(seed=1)
        return frame.assign(pid="h" + frame["pid"])

    @dg.asset(**split)
    def synthetic(train: pd.DataFrame) -> pd.DataFrame:
        return (independent if region == "south" else memorize)(train.drop(columns="pid"), 500, 0)

    own = [train, holdout, synthetic]
    made_checks = build_privacy_checks(
        train=train, holdout=holdout, synthetic=synthetic, **CHECKS, **split
    )
    io = {"io_manager": dg.FilesystemIOManager(base_dir=str(tmp_path))}
    result = dg.materialize(
        [*own, *made_checks],
        partition_key=region,
        instance=instance,
        resources=io,
        raise_on_error=False,
    )
    assert result.success, failures(result)
    found = checks(result)
    assert set(found) == {
        ("synthetic", "dcr_identical_excess_proven"),
        ("synthetic", "dcr_member_excess_proven"),
    }
    assert found["synthetic", "dcr_identical_excess_proven"].passed is (region == "south")
    assert "svg" in found["synthetic", "dcr_identical_excess_proven"].metadata["picture"].value
    # one step knows all limits here
    for check in (check for check in found.values() if not check.passed):
        assert {record.data["cause"] for record in check.metadata["advice"].records} == {
            "copied rows"
        }
    assert set(made(result)) == {"train", "holdout", "synthetic"}


@pytest.mark.slow
def test_a_person_in_two_spellings_stops_a_run_and_exact_ids_do_not(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    rows = people()
    rows.loc[:1, "pid"] = ["Ab", "aB "]
    rows.to_parquet(tmp_path / "rows.parquet")

    @dg.asset
    def train() -> pd.DataFrame:
        return rows

    @dg.asset
    def holdout() -> pd.DataFrame:
        frame = people(seed=1)
        return frame.assign(pid="h" + frame["pid"])

    @dg.asset
    def synthetic(train: pd.DataFrame) -> pd.DataFrame:
        return independent(train.drop(columns="pid"), 500, 0)

    for subject, is_exact in (("pid", False), ({"column": "pid", "exact": True}, True)):
        table = {
            "source": str(tmp_path / "rows.parquet"),
            "subject": subject,
            "generator": independent,
            **QUICK,
        }
        defs = dg.Definitions.merge(table_of("people", **table), resources(tmp_path))
        result = run(defs, instance, "source")
        assert result.success == is_exact
        if not is_exact:
            told = failures(result)["people__read"].user_failure_data.description
            assert "source, column 'pid', row 1: 2 ids are only 1 if case" in told
        own = [train, holdout, synthetic]
        found = build_privacy_checks(
            train=train, holdout=holdout, synthetic=synthetic, **{**CHECKS, "subject": subject}
        )
        io = {"io_manager": dg.FilesystemIOManager(base_dir=str(tmp_path / "io"))}
        result = dg.materialize(
            [*own, *found], instance=instance, resources=io, raise_on_error=False
        )
        assert result.success == is_exact


@pytest.mark.slow
def test_checks_of_a_table_in_which_each_row_is_a_person(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    @dg.asset
    def train() -> pd.DataFrame:
        return people().drop(columns="pid")

    @dg.asset
    def holdout() -> pd.DataFrame:
        return people(seed=1).drop(columns="pid")

    @dg.asset
    def synthetic(train: pd.DataFrame) -> pd.DataFrame:
        return independent(train, 500, 0)

    found = build_privacy_checks(
        train=train,
        holdout=holdout,
        synthetic=synthetic,
        **{**CHECKS, "subject": {"each_row": True}},
    )
    io = {"io_manager": dg.FilesystemIOManager(base_dir=str(tmp_path))}
    result = dg.materialize(
        [train, holdout, synthetic, *found], instance=instance, resources=io, raise_on_error=False
    )
    assert result.success, failures(result)


@pytest.mark.slow
def test_checks_train_the_embedder_of_the_policy(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, object]] = []

    def fit(real: Sequence[Table], settings: Mapping[str, object], **options: Any) -> Embedder:
        asked.append(dict(settings))
        return fit_embedder(real, {**settings, "width": 8, "max_epochs": 1}, **options)

    monkeypatch.setattr("privacy_assets.evaluation.measuring.fit_embedder", fit)

    @dg.asset
    def train() -> pd.DataFrame:
        return people()

    @dg.asset
    def holdout() -> pd.DataFrame:
        frame = people(seed=1)
        return frame.assign(pid="h" + frame["pid"])

    @dg.asset
    def synthetic(train: pd.DataFrame) -> pd.DataFrame:
        return independent(train.drop(columns="pid"), 500, 0)

    policy = {
        "limits": [{"statistic": "dcr.privacy_score_embedded", "at_most": 0.5}],
        "embedder": {"preset": "paper"},
    }
    own = [train, holdout, synthetic]
    found = build_privacy_checks(
        train=train, holdout=holdout, synthetic=synthetic, subject="pid", policy=policy
    )
    io = {"io_manager": dg.FilesystemIOManager(base_dir=str(tmp_path)), "gpu": GpuResource()}
    result = dg.materialize([*own, *found], instance=instance, resources=io)
    assert asked == [{"preset": "paper"}]
    assert checks(result)["synthetic", "dcr_privacy_score_embedded"].passed


@pytest.mark.parametrize("column", [None, "region"])
def test_an_upstream_asset_without_partitions_is_not_published_whole(
    column: str | None, tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    @dg.asset(io_manager_key="privacy_io")
    def raw() -> pd.DataFrame:
        return people()

    own = {"source": dg.AssetKey("raw"), "partitions_def": REGIONS, "partition_column": column}
    tables = table_of("people", subject="pid", generator=independent, **own, **QUICK)
    defs = dg.Definitions.merge(tables, dg.Definitions(assets=[raw]), resources(tmp_path))
    assert dg.materialize([raw], resources=defs.resources, instance=instance).success
    result = run(defs, instance, "source", partition="north")
    if column is None:
        assert (
            "asset raw is not partitioned"
            in failures(result)["people__read"].user_failure_data.description
        )
    else:
        rows = Table.load(tmp_path / "storage/people/source/partition=north/table.bin").frame()
        assert result.success and set(rows["region"]) == {"north"}


@pytest.mark.slow
def test_the_release_of_one_table_feeds_another_asset(tmp_path: Path) -> None:
    @dg.asset(
        ins={"released": dg.AssetIn(key=["people", "published"])}, io_manager_key="privacy_io"
    )
    def summary(released: pd.DataFrame) -> pd.DataFrame:
        return released.groupby("region", as_index=False)["age"].mean()

    defs = dg.Definitions.merge(people_table(tmp_path), dg.Definitions(assets=[summary]))
    result = dg.materialize([*defs.assets], resources=defs.resources)
    assert len(result.output_for_node("summary")) == 2
