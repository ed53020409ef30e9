"""Routes around the gate: stock checks let each one through, the gate none.

Every test does the same to a table that only Dagster's blocking checks guard, where the private rows must come out (or
the test shows nothing), and to a gated table, where nothing may come out and the refusal must say why. The routes that
need a webserver or a daemon are in tests/deployment, those over partitions, other runs and files in
test_routes_later, those against the gate itself in test_routes_gate.
"""

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import dagster as dg
import pandas as pd
import pytest
from routes import (
    BOTH,
    HOLDS,
    REGIONS,
    World,
    copies,
    exporter,
    gated,
    leaked,
    nothing_published,
    reason,
    refused,
    released,
    stock,
    with_assets,
    with_checks,
)
from standins import LENIENT, checks, independent, memorise

from privacy_assets import Policy
from privacy_assets.errors import PublicationRefused
from privacy_assets.gate.statements import Place, Sealed
from privacy_assets.metrics.dcr import Dcr
from privacy_assets.pipeline.measuring import fingerprints, metric_inputs, table_fingerprint
from privacy_assets.pipeline.tagging import schema_of
from privacy_assets.tables.table import Table

ROLES = ("train", "holdout", "reference")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with World.open(tmp_path_factory.mktemp("world")) as opened:
        yield opened


@dataclass(frozen=True)
class Failed:
    """A table with stock checks and a gated one after a full run that their checks stopped."""

    partition: str | None
    plain: str
    leaky: str
    stock: dg.Definitions
    gated: dg.Definitions


@pytest.fixture(scope="module", params=[None, "north"], ids=["whole", "by_region"])
def failed(world: World, request: pytest.FixtureRequest) -> Failed:
    end = "_regions" if request.param else ""
    made = Failed(
        request.param, f"plain{end}", f"leaky{end}",
        stock(world, f"plain{end}", partitions=REGIONS if request.param else None),
        gated(world, f"leaky{end}", regions=bool(request.param)),
    )  # fmt: skip
    plain, leaky = (world.run(defs, partition=made.partition) for defs in (made.stock, made.gated))
    assert not checks(plain)["score", "few_copies"].passed
    assert not checks(leaky)["attestation", "policy_holds"].passed
    assert not (world.root / "public" / made.plain).exists()
    assert not materialised(leaky, made.leaky, "published")
    return made


def materialised(result: dg.ExecuteInProcessResult, table: str, *assets: str) -> set[str]:
    """Those of ``assets`` that were materialised."""
    keys = {event.asset_key for event in result.get_asset_materialization_events()}
    return {asset for asset in assets if dg.AssetKey([table, asset]) in keys}


def test_route_02_synthetic_again_then_published_alone(world: World, failed: Failed) -> None:
    for defs, table in ((failed.stock, failed.plain), (failed.gated, failed.leaky)):
        assert world.run(defs, f"{table}/synthetic", partition=failed.partition).success
    leaked(world, world.run(failed.stock, f"{failed.plain}/published", partition=failed.partition), failed.plain)
    refused(world.run(failed.gated, f"{failed.leaky}/published", partition=failed.partition), failed.leaky, HOLDS)
    nothing_published(world, failed.leaky, failed.partition)


def test_route_03_a_derived_asset_in_a_later_run(world: World, failed: Failed) -> None:
    split = REGIONS if failed.partition else None
    seen: list[Any] = []

    def derived(table: str, **arguments: Any) -> dg.AssetsDefinition:
        @dg.asset(name=f"derived_{table}", ins={"rows": dg.AssetIn(key=[table, "synthetic"])}, **arguments)
        def cleaned(context: dg.AssetExecutionContext, rows: pd.DataFrame) -> None:
            world.write_public(rows.drop_duplicates(), f"derived_{table}", context.run.run_id)

        return cleaned

    own, of_published = f"unannotated_{failed.leaky}", f"of_published_{failed.leaky}"

    @dg.asset(name=own, ins={"rows": dg.AssetIn(key=[failed.leaky, "synthetic"])}, partitions_def=split)
    def unannotated(rows):
        seen.append(rows)

    plain = with_assets(failed.stock, derived(failed.plain, partitions_def=split))
    leaked(world, world.run(plain, f"derived_{failed.plain}", partition=failed.partition), f"derived_{failed.plain}")
    leaky = with_assets(
        failed.gated,
        derived(failed.leaky, partitions_def=split),
        unannotated,
        exporter(world, failed.leaky, "published", of_published, partitions_def=split),
    )
    result = world.run(leaky, f"derived_{failed.leaky}", own, of_published, partition=failed.partition)
    told = reason(result, f"derived_{failed.leaky}")
    assert f"{failed.leaky}/synthetic is not released: depend on {failed.leaky}/published, which is." in told
    assert "it was not materialised yet" in reason(result, of_published)
    assert list((world.root / "public").glob(f"*_{failed.leaky}")) == []
    (record,) = seen
    assert set(stated(record)) == {"table", "partition", "rows", "train", "content", "dtypes", "filter", "generator"}
    nothing_published(world, failed.leaky, failed.partition)


def stated(record: Sealed) -> dict[str, Any]:
    """What a sealed record says, unverified."""
    return json.loads(base64.b64decode(json.loads(record.data)["payload"]))["predicate"]


@BOTH
def test_route_04_the_check_raises(world: World, partition: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    split = REGIONS if partition else None
    plain, table = f"raising_{partition}", f"raised_{partition}"
    stocked, leaky = stock(world, plain, partitions=split, raises=True), gated(world, table, regions=bool(partition))
    assert not world.run(stocked, partition=partition).success
    leaked(world, world.run(stocked, f"{plain}/published", partition=partition), plain)

    def broken(metric: Dcr, inputs: Any) -> None:
        raise RuntimeError("the score is broken")

    with monkeypatch.context() as patch:
        patch.setattr(Dcr, "evaluate", broken)
        assert "broken" in reason(world.run(leaky, partition=partition), f"{table}__dcr")
        alone = world.run(leaky, f"{table}/published", partition=partition)
        refused(alone, table, "there is no attestation yet")
        nothing_published(world, table, partition)
    # What passed before does not help the next rows, whose score raises.
    assert world.run(gated(world, table, independent, regions=bool(partition)), partition=partition).success
    (honest,) = released(world, table, partition)
    monkeypatch.setattr(Dcr, "evaluate", broken)
    assert not world.run(leaky, partition=partition).success
    refused(world.run(leaky, f"{table}/published", partition=partition), table, "another synthetic table")
    assert released(world, table, partition) == [honest]


def test_route_05_a_failed_check_with_severity_warn(world: World) -> None:
    result = world.run(stock(world, "warned", severity=dg.AssetCheckSeverity.WARN))
    assert not checks(result)["score", "few_copies"].passed
    leaked(world, result, "warned")

    def warn(said: dg.AssetCheckResult) -> dg.AssetCheckResult:
        return said if said.check_name == "released" else said._replace(severity=dg.AssetCheckSeverity.WARN)

    result = world.run(with_checks(gated(world, "leaky_warned"), warn))
    found = checks(result)["attestation", "policy_holds"]
    assert (found.passed, found.severity) == (False, dg.AssetCheckSeverity.WARN)
    refused(result, "leaky_warned", HOLDS)
    nothing_published(world, "leaky_warned")


def test_route_06_a_check_that_omits_its_result(world: World) -> None:
    @dg.multi_asset_check(
        specs=[dg.AssetCheckSpec("few_copies", asset=["omitted", "score"], blocking=True)], can_subset=True
    )
    def silent() -> Iterator[dg.AssetCheckResult]:
        yield from ()

    plain = dg.Definitions.merge(stock(world, "omitted", checked=False), dg.Definitions(asset_checks=[silent]))
    leaked(world, world.run(plain), "omitted")

    def omit(said: dg.AssetCheckResult) -> dg.AssetCheckResult | None:
        return said if said.check_name == "released" else None

    result = world.run(with_checks(gated(world, "leaky_omitted"), omit))
    assert ("attestation", "policy_holds") not in checks(result)
    refused(result, "leaky_omitted", HOLDS)
    nothing_published(world, "leaky_omitted")


def test_route_07_a_job_that_selects_only_the_passing_check(world: World) -> None:
    @dg.asset_check(asset=["selected", "score"], blocking=True)
    def is_there() -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=True)

    plain = dg.Definitions.merge(stock(world, "selected"), dg.Definitions(asset_checks=[is_there]))
    passing = dg.AssetSelection.checks(dg.AssetCheckKey(dg.AssetKey(["selected", "score"]), "is_there"))
    result = world.execute(world.job(plain, dg.AssetSelection.all().without_checks() | passing))
    assert set(checks(result)) == {("score", "is_there")}
    leaked(world, result, "selected")
    leaky = gated(world, "leaky_selected")
    passing = dg.AssetSelection.checks(
        dg.AssetCheckKey(dg.AssetKey(["leaky_selected", "dcr"]), "dcr_member_excess_any_lower")
    )
    chosen = dg.AssetSelection.all().without_checks() | passing
    with pytest.raises(dg.DagsterInvalidDefinitionError):  # the steps of the table cannot be run without their checks
        world.job(leaky, chosen)
    result = world.execute(world.job(with_checks(leaky), chosen))
    assert set(checks(result)) == {("dcr", "dcr_member_excess_any_lower")}
    refused(result, "leaky_selected", HOLDS, check=None)
    nothing_published(world, "leaky_selected")


def test_route_08_checked_asset_and_publisher_in_one_step(world: World) -> None:
    @dg.multi_asset(
        specs=[dg.AssetSpec(["one", "synthetic"]), dg.AssetSpec(["one", "published"])],
        check_specs=[dg.AssetCheckSpec("few_copies", asset=["one", "synthetic"], blocking=True)],
    )
    def one(context: dg.AssetExecutionContext) -> Iterator[Any]:
        frame = world.private
        yield dg.MaterializeResult(asset_key=["one", "synthetic"])
        yield dg.AssetCheckResult(asset_key=["one", "synthetic"], passed=copies(world.private, frame) < 0.5)
        world.write_public(frame, "one", context.run.run_id)
        yield dg.MaterializeResult(asset_key=["one", "published"])

    result = world.run(dg.Definitions(assets=[one], executor=dg.in_process_executor))
    assert not checks(result)["synthetic", "few_copies"].passed
    leaked(world, result, "one")
    leaky = gated(world, "together")
    metric, policy = Dcr(bootstraps=50, permutations=199), Policy.from_dict(LENIENT)
    refusals: list[str] = []

    @dg.asset(ins={role: dg.AssetIn(key=["together", role]) for role in ROLES}, required_resource_keys={"releases"})
    def own(context: dg.AssetExecutionContext, **tables: pd.DataFrame) -> None:
        releases = context.resources.releases
        gate, place = releases.gate(), Place("together")
        schema = schema_of(tables["train"], "train")
        rows = memorise(tables["train"][schema.names], 100, 0)
        frame = Table.of(rows, schema, where="own").restored()
        taken, sealed = gate.take_snapshot(frame, place, table_fingerprint(tables["train"], "train", releases))
        prints = fingerprints(tables, frame, None, releases)
        result = replace(metric.evaluate(metric_inputs(tables, frame, seed=0)), inputs=prints)
        signed = gate.result(gate.sign_result(result, taken, policy.judge({"dcr": result}).outcomes), taken)
        stated, verdict = gate.attest(taken, policy, {"dcr": signed}, prints, {"dcr": metric}, {"seed": 0})
        assert stated.verdict == "fail"
        for given in (verdict, sealed, replace(sealed, kind="attestation")):
            with pytest.raises(PublicationRefused) as refusal:
                gate.publish(given, sealed, place, policy, {"seed": 0})
            refusals.append(str(refusal.value))

    splits = [f"together/{asset}" for asset in ("source", *ROLES)]
    result = world.run(with_assets(leaky, own), *splits, "own")
    assert result.success, reason(result, "own")
    assert [why in said for why, said in zip((HOLDS, "signed snapshot", "another kind"), refusals, strict=True)] == [
        True, True, True,
    ]  # fmt: skip
    nothing_published(world, "together")


def test_route_09_the_publisher_does_not_depend_on_the_scores(world: World) -> None:
    plain = with_assets(stock(world, "aside"), exporter(world, "aside", "synthetic", "of_aside"))
    result = world.run(plain)
    assert not checks(result)["score", "few_copies"].passed
    assert not (world.root / "public" / "aside").exists()
    leaked(world, result, "of_aside")
    leaky = with_assets(gated(world, "leaky_aside"), exporter(world, "leaky_aside", "synthetic", "of_leaky_aside"))
    assert "is not released: depend on leaky_aside/published" in reason(world.run(leaky), "of_leaky_aside")
    assert not (world.root / "public" / "of_leaky_aside").exists()
    nothing_published(world, "leaky_aside")


def test_route_11_without_checks(world: World, failed: Failed) -> None:
    every = dg.AssetSelection.all()
    leaked(world, world.execute(world.job(failed.stock, every.without_checks()), failed.partition), failed.plain)
    leaked(world, world.execute(published_only(world, failed.stock, failed.plain), failed.partition), failed.plain)
    with pytest.raises(dg.DagsterInvalidDefinitionError):  # the steps of the table cannot be run without their checks
        world.job(failed.gated, every.without_checks())
    with pytest.raises(dg.DagsterInvalidSubsetError):
        published_only(world, failed.gated, failed.leaky)
    leaky = with_checks(failed.gated)
    for job in (world.job(leaky, every.without_checks()), published_only(world, leaky, failed.leaky)):
        result = world.execute(job, failed.partition)
        assert checks(result) == {}
        refused(result, failed.leaky, HOLDS, check=None)
    nothing_published(world, failed.leaky, failed.partition)


def published_only(world: World, defs: dg.Definitions, table: str) -> dg.JobDefinition:
    """What a launch of ``published`` with an empty selection of checks runs."""
    job = world.job(defs, dg.AssetSelection.all())
    return job.get_subset(asset_selection={dg.AssetKey([table, "published"])}, asset_check_selection=set())
