"""Routes over partitions, other runs and files: stock checks let each one through, the gate none (see test_routes)."""

import base64
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pandas as pd
import pytest
from drawing import memorise_the_north
from routes import (
    BOTH,
    HOLDS,
    REGIONS,
    World,
    after,
    exporter,
    gated,
    leaked,
    nothing_published,
    reason,
    refused,
    stock,
    with_assets,
)
from standins import checks, independent, memorise

from privacy_assets import PrivacyIOManager, read_published
from privacy_assets.gate.statements import Place


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with World.open(tmp_path_factory.mktemp("world")) as opened:
        yield opened


def test_route_14_a_failed_partition_published_alone(world: World) -> None:
    plain = stock(world, "part", generator=memorise_the_north, partitions=REGIONS)
    leaky = gated(world, "leaky_part", memorise_the_north, regions=True)
    for defs in (plain, leaky):
        assert [world.run(defs, partition=region).success for region in ("north", "south")] == [False, True]
    leaked(world, world.run(plain, "part/published", partition="north"), "part")
    refused(world.run(leaky, "leaky_part/published", partition="north"), "leaky_part", HOLDS)
    nothing_published(world, "leaky_part", "north")
    assert set(read_published(world.root / "releases", "leaky_part", "south")["region"]) == {"south"}


@pytest.mark.slow
def test_route_15_an_unpartitioned_publisher_over_all_partitions(world: World) -> None:
    @dg.asset(ins={"rows": dg.AssetIn(key=["all", "synthetic"])})
    def of_all(context: dg.AssetExecutionContext, rows: dict[str, pd.DataFrame]) -> None:
        world.write_public(rows["north"], "of_all", context.run.run_id)

    @dg.asset(ins={"rows": dg.AssetIn(key=["leaky_all", "synthetic"])})
    def unannotated(rows):
        raise AssertionError("it was given rows")

    plain = with_assets(stock(world, "all", generator=memorise_the_north, partitions=REGIONS), of_all)
    leaky = with_assets(
        gated(world, "leaky_all", memorise_the_north, regions=True),
        exporter(world, "leaky_all", "synthetic", "of_leaky_all"),
        exporter(world, "leaky_all", "published", "of_published"),
        unannotated,
    )
    for defs, table in ((plain, "all"), (leaky, "leaky_all")):
        inside = [key.to_user_string() for key in defs.resolve_all_asset_keys() if key.path[0] == table]
        assert [world.run(defs, *inside, partition=region).success for region in ("north", "south")] == [False, True]
    leaked(world, world.run(plain, "of_all"), "of_all")
    result = world.run(leaky, "of_leaky_all", "unannotated", "of_published")
    for step in ("of_leaky_all", "unannotated"):
        assert "leaky_all/synthetic is not released" in reason(result, step)
    assert "leaky_all/published, partition north: it was not materialised yet" in reason(result, "of_published")
    assert [file for name in ("of_leaky_all", "of_published") for file in (world.root / "public").glob(name)] == []
    nothing_published(world, "leaky_all", "north")


@BOTH
def test_route_16_another_run_overwrites_the_table(world: World, partition: str | None) -> None:
    plain, table = f"overwritten_{partition}", f"leaky_overwritten_{partition}"
    split = REGIONS if partition else None
    honest = stock(world, plain, generator=independent, partitions=split)
    run_b = stock(world, plain, generator=memorise, partitions=split)

    def overwrite() -> None:
        assert world.run(run_b, f"{plain}/synthetic", partition=partition).success

    run_a = after(world.job(honest, dg.AssetSelection.all()), f"{plain}__score_few_copies", overwrite)
    result = world.execute(run_a, partition)
    assert result.success
    leaked(world, result, plain)

    by_region = bool(partition)
    run_b = gated(world, table, memorise, regions=by_region)

    def overwrite_gated() -> None:
        assert world.run(run_b, f"{table}/generator", f"{table}/synthetic", partition=partition).success

    job = world.job(gated(world, table, independent, regions=by_region), dg.AssetSelection.all())
    result = world.execute(after(job, f"{table}__attestation", overwrite_gated), partition)
    assert checks(result)["attestation", "policy_holds"].passed
    refused(result, table, "belongs to another synthetic table")
    nothing_published(world, table, partition)


@BOTH
def test_route_17_the_file_is_tampered_with(world: World, partition: str | None) -> None:
    plain, table = f"tampered_{partition}", f"leaky_tampered_{partition}"
    stored = world.root / "stock" / plain / "synthetic"

    def pickled() -> None:
        world.private.to_pickle(stored / partition if partition else stored)

    honest = stock(world, plain, generator=independent, partitions=REGIONS if partition else None)
    job = world.job(honest, dg.AssetSelection.all())
    result = world.execute(after(job, f"{plain}__score_few_copies", pickled), partition)
    assert result.success
    leaked(world, result, plain)

    snapshots = Place(table, partition).below(world.root / "private" / "snapshots")

    def rewritten() -> None:
        (file,) = snapshots.glob("*.parquet")
        world.private.to_parquet(file)

    defs = gated(world, table, independent, regions=bool(partition))
    job = world.job(defs, dg.AssetSelection.all())
    result = world.execute(after(job, f"{table}__attestation", rewritten), partition)
    assert checks(result)["attestation", "policy_holds"].passed
    refused(result, table, "changed after it was judged")
    # Nor can the records be made to name another file.
    (file,) = snapshots.glob("*.parquet")
    copied = hashlib.sha256(file.read_bytes()).hexdigest()
    file.with_stem(copied).write_bytes(file.read_bytes())
    for asset, kind in (("synthetic", "snapshot"), ("attestation", "attestation")):
        folder = PrivacyIOManager(base=str(world.root / "storage")).folder(dg.AssetKey([table, asset]), partition)
        rename(folder / f"{kind}.json", file.stem, copied)
    refused(world.run(defs, f"{table}/published", partition=partition), table, "the signature of the attestation")
    nothing_published(world, table, partition)


def rename(record: Path, old: str, new: str) -> None:
    """Write another hash into a signed record."""
    envelope = json.loads(record.read_bytes())
    payload = base64.b64decode(envelope["payload"])
    assert old.encode() in payload
    envelope["payload"] = base64.b64encode(payload.replace(old.encode(), new.encode())).decode()
    record.write_bytes(json.dumps(envelope, sort_keys=True, separators=(",", ":")).encode())
