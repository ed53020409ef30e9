"""Partitioned tables, and checks on assets that the user already has."""

from pathlib import Path

import dagster as dg
import pandas as pd
import pytest
from standins import LENIENT, QUICK, checks, failures, independent, made, memorise, people, resources, run, table_of

from privacy_assets import PrivacyIOManager, build_privacy_checks, read_published
from privacy_assets.errors import InputError
from privacy_assets.pipeline.row_sources import partition_path
from privacy_assets.tables.files import table_files

REGIONS = dg.StaticPartitionsDefinition(["north", "south"])


def test_a_table_by_region_from_one_file(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    people().to_parquet(tmp_path / "people.parquet")
    tables = table_of(
        "people", source=tmp_path / "people.parquet", subject="pid", generator=independent, partitions_def=REGIONS,
        partition_column="region", **QUICK,
    )  # fmt: skip
    defs = dg.Definitions.merge(tables, resources(tmp_path))
    sides: dict[str, set[str]] = {"train": set(), "holdout": set()}
    for region in ("north", "south"):
        result = run(defs, instance, partition=region)
        assert result.success, failures(result)
        assert len(checks(result)) == 7 and all(check.passed for check in checks(result).values())
        released = read_published(tmp_path / "releases", "people", region)
        assert set(released["region"]) == {region}
        for role, seen in sides.items():
            seen |= set(pd.read_parquet(tmp_path / f"storage/people/{role}/partition={region}/table.parquet")["pid"])
    assert sides["train"].isdisjoint(sides["holdout"])  # a person is on one side in every partition


def test_a_leak_in_one_region_leaves_the_other_published(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    for region, frame in people().groupby("region"):
        frame.to_csv(tmp_path / f"people_{region}.csv", index=False)
    arguments = {
        "source": str(tmp_path / "people_{partition}.csv"),
        "subject": "pid",
        "partitions_def": REGIONS,
        **QUICK,
    }
    honest = dg.Definitions.merge(table_of("people", generator=independent, **arguments), resources(tmp_path))
    leaky = dg.Definitions.merge(table_of("people", generator=memorise, **arguments), resources(tmp_path))
    assert run(honest, instance, partition="north").success
    assert not run(leaky, instance, partition="south").success
    assert len(read_published(tmp_path / "releases", "people", "north"))
    with pytest.raises(ValueError, match="nothing was published"):
        read_published(tmp_path / "releases", "people", "south")


@pytest.mark.slow
def test_daily_partitions_take_their_day(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    people(1500).to_parquet(tmp_path / "people.parquet")
    days = dg.DailyPartitionsDefinition("2024-01-01")
    tables = table_of(
        "people", source=tmp_path / "people.parquet", generator=independent, partitions_def=days, subject="pid",
        partition_column="joined", **QUICK,
    )  # fmt: skip
    defs = dg.Definitions.merge(tables, resources(tmp_path))
    result = run(defs, instance, partition="2024-01-02")
    empty = run(defs, instance, partition="2024-03-01")
    assert result.success, failures(result)
    released = read_published(tmp_path / "releases", "people", "2024-01-02")
    assert set(released["joined"].dt.date.astype(str)) == {"2024-01-02"}
    assert "the partition has no rows" in failures(empty)["people__source"].error.cause.message


@pytest.mark.parametrize("key", ["..", "../x", "a/b", "/etc"])
def test_a_partition_key_does_not_leave_its_place(key: str) -> None:
    with pytest.raises(InputError, match="cannot stand in a path"):
        partition_path("data/{partition}/people.csv", key)


@pytest.mark.parametrize("key", ["*", "nort?", "[ns]orth"])
def test_a_partition_key_is_no_pattern(key: str, tmp_path: Path) -> None:
    template = str(tmp_path / "people_{partition}.csv")
    people(5).to_csv(tmp_path / "people_north.csv", index=False)
    with pytest.raises(InputError, match="no file matches the pattern"):
        table_files(partition_path(template, key))
    people(5).to_csv(tmp_path / f"people_{key}.csv", index=False)
    assert [file.name for file in table_files(partition_path(template, key))] == [f"people_{key}.csv"]


def test_several_partitions_load_as_one_frame(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    @dg.asset(partitions_def=REGIONS, io_manager_key="privacy_io")
    def rows(context: dg.AssetExecutionContext) -> pd.DataFrame:
        return pd.DataFrame({"region": [context.partition_key] * 2, "age": pd.array([1, None], dtype="Int64")})

    @dg.asset(io_manager_key="privacy_io")
    def everything(rows: pd.DataFrame) -> pd.DataFrame:
        return rows

    io = PrivacyIOManager(base=str(tmp_path))
    for region in REGIONS.get_partition_keys():
        assert dg.materialize([rows], partition_key=region, instance=instance, resources={"privacy_io": io}).success
    found = dg.materialize([rows, everything], selection=[everything], instance=instance, resources={"privacy_io": io})
    loaded = found.output_for_node("everything")
    assert sorted(loaded["region"]) == ["north", "north", "south", "south"]
    assert str(loaded["age"].dtype) == "Int64"


def own_assets(leak: bool) -> list[dg.AssetsDefinition]:
    @dg.asset
    def train() -> pd.DataFrame:
        return people()

    @dg.asset
    def holdout() -> pd.DataFrame:
        frame = people(seed=1)
        return frame.assign(pid="h" + frame["pid"])

    @dg.asset
    def synthetic(train: pd.DataFrame) -> pd.DataFrame:
        return (memorise if leak else independent)(train.drop(columns="pid"), 500, 0)

    return [train, holdout, synthetic]


@pytest.mark.parametrize("leak", [False, True])
def test_checks_on_assets_of_the_user(leak: bool, tmp_path: Path) -> None:
    made_checks = build_privacy_checks(
        train="train", holdout="holdout", synthetic="synthetic", metrics=QUICK["metrics"], policy=LENIENT,
        subject="pid", embedder=False,
    )  # fmt: skip
    result = dg.materialize(
        [*own_assets(leak), *made_checks], resources={"io_manager": dg.InMemoryIOManager()}, raise_on_error=False
    )
    assert result.success
    found = checks(result)
    assert set(found) == {("synthetic", "dcr_identical_excess_lower"), ("synthetic", "dcr_member_excess_any_lower")}
    assert found["synthetic", "dcr_identical_excess_lower"].passed is not leak
    assert "svg" in found["synthetic", "dcr_identical_excess_lower"].metadata["picture"].value
    assert set(made(result)) == {"train", "holdout", "synthetic"}


def test_checks_on_partitioned_assets_of_the_user(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    def part(context: dg.AssetExecutionContext, prefix: str, seed: int) -> pd.DataFrame:
        frame = people(seed=seed).assign(pid=lambda found: prefix + found["pid"])
        return frame[frame["region"] == context.partition_key].reset_index(drop=True)

    @dg.asset(partitions_def=REGIONS)
    def train(context: dg.AssetExecutionContext) -> pd.DataFrame:
        return part(context, "t", 0)

    @dg.asset(partitions_def=REGIONS)
    def holdout(context: dg.AssetExecutionContext) -> pd.DataFrame:
        return part(context, "h", 1)

    @dg.asset(partitions_def=REGIONS)
    def synthetic(context: dg.AssetExecutionContext, train: pd.DataFrame) -> pd.DataFrame:
        function = memorise if context.partition_key == "south" else independent
        return function(train.drop(columns="pid"), 300, 0)

    made_checks = build_privacy_checks(
        train=train, holdout=holdout, synthetic=synthetic, metrics=QUICK["metrics"], policy=LENIENT,
        subject="pid", embedder=False, partitions_def=REGIONS,
    )  # fmt: skip
    io = dg.FilesystemIOManager(base_dir=str(tmp_path))
    for region in ("north", "south"):
        result = dg.materialize(
            [train, holdout, synthetic, *made_checks], partition_key=region, instance=instance,
            resources={"io_manager": io}, raise_on_error=False,
        )  # fmt: skip
        assert result.success, failures(result)
        assert checks(result)["synthetic", "dcr_identical_excess_lower"].passed is (region == "north")


@pytest.mark.parametrize("column", [None, "region"])
def test_an_upstream_asset_without_partitions_is_not_published_whole(
    column: str | None, tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    @dg.asset(io_manager_key="privacy_io")
    def raw() -> pd.DataFrame:
        return people()

    tables = table_of(
        "people", source=dg.AssetKey("raw"), subject="pid", generator=independent, partitions_def=REGIONS,
        partition_column=column, **QUICK,
    )  # fmt: skip
    defs = dg.Definitions.merge(tables, dg.Definitions(assets=[raw]), resources(tmp_path))
    assert dg.materialize([raw], resources=defs.resources, instance=instance).success
    result = run(defs, instance, partition="north")
    if column is None:
        assert "asset raw has no partitions" in failures(result)["people__source"].error.cause.message
    else:
        assert set(read_published(tmp_path / "releases", "people", "north")["region"]) == {"north"}


def test_the_release_of_one_table_feeds_another_asset(tmp_path: Path) -> None:
    people().to_parquet(tmp_path / "people.parquet")
    tables = table_of("people", source=tmp_path / "people.parquet", subject="pid", generator=independent, **QUICK)

    @dg.asset(ins={"released": dg.AssetIn(key=["people", "published"])}, io_manager_key="privacy_io")
    def summary(released: pd.DataFrame) -> pd.DataFrame:
        return released.groupby("region", as_index=False)["age"].mean()

    defs = dg.Definitions.merge(tables, dg.Definitions(assets=[summary]), resources(tmp_path))
    result = dg.materialize([*defs.assets], resources=defs.resources)
    assert len(result.output_for_node("summary")) == 2
