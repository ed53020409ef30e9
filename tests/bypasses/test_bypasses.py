"""Bypasses of the gate: stock checks let each one through, the gate none.

Every test does the same to two tables. From a table that only Dagster's blocking checks guard, the
private rows must be published, otherwise the test is not meaningful. From a gated table no row may
be published, and the error must give the reason. tests/deployment has the bypasses that
need a webserver or a daemon, test_bypasses_gate those against the gate itself.
"""

import base64
import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pandas as pd
import pytest
from bypasses import (
    EVERY,
    HOLDS,
    REGIONS,
    World,
    after,
    blocked,
    exporter,
    gated,
    leaked,
    nothing_published,
    reason,
    released,
    stock,
    with_assets,
    with_checks,
)  # fmt: skip
from drawing import memorize_the_north
from standins import LENIENT, checks, independent, made
from stock import copies

from privacy_assets import PrivacyIOManager, read_published
from privacy_assets.errors import PublicationBlocked
from privacy_assets.gate.envelope import ReleaseTarget, SignedFile
from privacy_assets.gate.publisher import Publisher
from privacy_assets.gate.signed_files import SignedFiles
from privacy_assets.metrics.dcr import Dcr
from privacy_assets.metrics.policies import load_policy

Tables = tuple[dg.Definitions, dg.Definitions]


@pytest.fixture(scope="module")
def failed(world: World) -> Tables:
    """``plain`` with stock checks and ``leaky`` behind the gate, after full runs that their checks
    stopped.
    """
    tables = stock(world, "plain"), gated(world, "leaky")
    plain, leaky = map(world.run, tables)
    assert (
        not checks(plain)["score", "few_copies"].passed
        and not (world.root / "public" / "plain").exists()
    )
    assert not checks(leaky)["attestation", "policy_holds"].passed and "published" not in made(
        leaky
    )
    return tables


def stated(record: SignedFile) -> dict[str, Any]:
    """The payload of a signed file, unverified."""
    return json.loads(base64.b64decode(json.loads(record.data)["payload"]))["predicate"]


@pytest.mark.slow
def test_bypass_02_synthetic_again_then_published_alone(world: World, failed: Tables) -> None:
    plain, leaky = failed
    assert (
        world.run(plain, "plain/synthetic").success and world.run(leaky, "leaky/synthetic").success
    )
    leaked(world, world.run(plain, "plain/published"), "plain")
    blocked(world.run(leaky, "leaky/published"), "leaky", HOLDS)
    nothing_published(world, "leaky")


@pytest.mark.slow
def test_bypass_03_a_derived_asset_in_a_later_run(world: World, failed: Tables) -> None:
    seen: list[Any] = []

    @dg.asset(ins={"rows": dg.AssetIn(key=["leaky", "synthetic"])})
    def unannotated(rows):
        seen.append(rows)

    plain, leaky = failed
    leaked(
        world,
        world.run(with_assets(plain, exporter(world, "plain", "synthetic", "of_it")), "of_it"),
        "of_it",
    )
    readers = [
        exporter(world, "leaky", asset, f"of_{asset}") for asset in ("synthetic", "published")
    ]
    result = world.run(
        with_assets(leaky, *readers, unannotated), "of_synthetic", "of_published", "unannotated"
    )
    assert "leaky/synthetic: the table is not released. Fix: depend on leaky/published." in reason(
        result, "of_synthetic"
    )
    assert "it was not materialized yet" in reason(result, "of_published")
    assert not list((world.root / "public").glob("of_*ed")) + list(
        (world.root / "public").glob("of_synthetic")
    )
    (record,) = seen
    assert set(stated(record)) == {
        "table",
        "partition",
        "n_rows",
        "n_replaced",
        "train_fingerprint",
        "content",
        "dtypes",
        "filter",
        "generator",
    }
    nothing_published(world, "leaky")


@pytest.mark.slow
def test_bypass_04_the_check_raises(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, leaky = stock(world, "raising", raises=True), gated(world, "raised")
    assert not world.run(plain).success
    leaked(world, world.run(plain, "raising/published"), "raising")

    def broken(metric: Dcr, inputs: Any) -> None:
        raise RuntimeError("the score is broken")

    with monkeypatch.context() as patch:
        patch.setattr(Dcr, "measure", broken)
        assert "broken" in reason(world.run(leaky), "raised__score")
        blocked(world.run(leaky, "raised/published"), "raised", "there is no attestation yet")
        nothing_published(world, "raised")
    # The earlier pass does not apply to the next rows, whose score raises an error.
    assert world.run(gated(world, "raised", independent)).success
    (honest,) = released(world, "raised")
    monkeypatch.setattr(Dcr, "measure", broken)
    assert not world.run(leaky).success
    blocked(world.run(leaky, "raised/published"), "raised", "another synthetic table")
    assert released(world, "raised") == [honest]


@pytest.mark.slow
def test_bypass_05_a_failed_check_with_severity_warn(world: World) -> None:
    result = world.run(stock(world, "warned", severity=dg.AssetCheckSeverity.WARN))
    assert not checks(result)["score", "few_copies"].passed
    leaked(world, result, "warned")

    def warn(said: dg.AssetCheckResult) -> dg.AssetCheckResult:
        return (
            said
            if said.check_name == "released"
            else said._replace(severity=dg.AssetCheckSeverity.WARN)
        )

    result = world.run(with_checks(gated(world, "leaky_warned"), warn))
    found = checks(result)["attestation", "policy_holds"]
    assert (found.passed, found.severity) == (False, dg.AssetCheckSeverity.WARN)
    blocked(result, "leaky_warned", HOLDS, "attestation", check=None)  # fails by itself as well
    blocked(
        world.run(gated(world, "leaky_warned"), "leaky_warned/published"), "leaky_warned", HOLDS
    )
    nothing_published(world, "leaky_warned")


@pytest.mark.slow
def test_bypass_06_a_check_that_omits_its_result(world: World) -> None:
    @dg.multi_asset_check(
        specs=[dg.AssetCheckSpec("few_copies", asset=["omitted", "score"], blocking=True)],
        can_subset=True,
    )
    def silent() -> Iterator[dg.AssetCheckResult]:
        yield from ()

    plain = dg.Definitions.merge(
        stock(world, "omitted", checked=False), dg.Definitions(asset_checks=[silent])
    )
    leaked(world, world.run(plain), "omitted")

    def omit(said: dg.AssetCheckResult) -> dg.AssetCheckResult | None:
        return said if said.check_name == "released" else None

    result = world.run(with_checks(gated(world, "leaky_omitted"), omit))
    assert ("attestation", "policy_holds") not in checks(result)
    blocked(result, "leaky_omitted", HOLDS, "attestation", check=None)  # fails by itself as well
    blocked(
        world.run(gated(world, "leaky_omitted"), "leaky_omitted/published"), "leaky_omitted", HOLDS
    )
    nothing_published(world, "leaky_omitted")


@pytest.mark.slow
def test_bypass_07_a_job_that_selects_only_the_passing_check(world: World, failed: Tables) -> None:
    @dg.asset_check(asset=["plain", "score"], blocking=True)
    def is_there() -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=True)

    def chosen(asset: str, check: str) -> dg.AssetSelection:
        key = dg.AssetCheckKey(dg.AssetKey.from_user_string(asset), check)
        return EVERY.without_checks() | dg.AssetSelection.checks(key)

    plain, leaky = (
        dg.Definitions.merge(failed[0], dg.Definitions(asset_checks=[is_there])),
        failed[1],
    )
    result = world.execute(world.job(plain, chosen("plain/score", "is_there")))
    assert set(checks(result)) == {("score", "is_there")}
    leaked(world, result, "plain")
    passing = chosen("leaky/dcr", "dcr_member_excess_proven")
    # the steps of the table cannot be run without their checks
    with pytest.raises(dg.DagsterInvalidDefinitionError):
        world.job(leaky, passing)
    result = world.execute(world.job(with_checks(leaky), passing))
    assert set(checks(result)) == {("dcr", "dcr_member_excess_proven")}
    # fails by itself as well, so that nothing runs after it
    blocked(result, "leaky", HOLDS, "attestation", check=None)
    nothing_published(world, "leaky")


@pytest.mark.slow
def test_bypass_08_checked_asset_and_publisher_in_one_step(world: World, failed: Tables) -> None:
    @dg.multi_asset(
        specs=[dg.AssetSpec(["one", "synthetic"]), dg.AssetSpec(["one", "published"])],
        check_specs=[dg.AssetCheckSpec("few_copies", asset=["one", "synthetic"], blocking=True)],
    )
    def one(context: dg.AssetExecutionContext) -> Iterator[Any]:
        frame = world.private
        yield dg.MaterializeResult(asset_key=["one", "synthetic"])
        yield dg.AssetCheckResult(
            asset_key=["one", "synthetic"], passed=copies(world.private, frame) < 0.5
        )
        world.write_public(frame, "one", context.run.run_id)
        yield dg.MaterializeResult(asset_key=["one", "published"])

    result = world.run(dg.Definitions(assets=[one], executor=dg.in_process_executor))
    assert not checks(result)["synthetic", "few_copies"].passed
    leaked(world, result, "one")
    records = {name: dg.AssetIn(key=["leaky", name]) for name in ("synthetic", "attestation")}
    blocking_errors: list[str] = []

    @dg.asset(ins=records, required_resource_keys={"releases"})
    def own(
        context: dg.AssetExecutionContext, synthetic: SignedFile, attestation: SignedFile
    ) -> None:
        asked = ReleaseTarget("leaky"), load_policy(LENIENT), stated(attestation)["setup"]
        releases = context.resources.releases
        publisher = Publisher(SignedFiles(releases.gate(), releases.key("content")))
        for given in (attestation, synthetic, replace(synthetic, kind="attestation")):
            with pytest.raises(PublicationBlocked) as blocking_error:
                publisher.publish(given, synthetic, *asked)
            blocking_errors.append(str(blocking_error.value))

    result = world.run(with_assets(failed[1], own), "own")
    assert result.success, reason(result, "own")
    for why, said in zip((HOLDS, "signed snapshot", "another kind"), blocking_errors, strict=True):
        assert why in said
    nothing_published(world, "leaky")


@pytest.mark.slow
def test_bypass_09_the_publisher_does_not_depend_on_the_scores(world: World) -> None:
    result = world.run(
        with_assets(stock(world, "aside"), exporter(world, "aside", "synthetic", "of_aside"))
    )
    assert not checks(result)["score", "few_copies"].passed
    assert not (world.root / "public" / "aside").exists()
    leaked(world, result, "of_aside")
    leaky = with_assets(
        gated(world, "leaky_aside"), exporter(world, "leaky_aside", "synthetic", "of_leaky_aside")
    )
    assert "the table is not released. Fix: depend on leaky_aside/published" in reason(
        world.run(leaky), "of_leaky_aside"
    )
    assert not (world.root / "public" / "of_leaky_aside").exists()
    nothing_published(world, "leaky_aside")


@pytest.mark.slow
def test_bypass_11_without_checks(world: World, failed: Tables) -> None:
    def published_only(defs: dg.Definitions, table: str) -> dg.JobDefinition:
        """The steps that a launch of ``published`` with an empty selection of checks runs."""
        chosen = {dg.AssetKey([table, "published"])}
        return world.job(defs, EVERY).get_subset(
            asset_selection=chosen, asset_check_selection=set()
        )

    plain, leaky = failed
    for job in (world.job(plain, EVERY.without_checks()), published_only(plain, "plain")):
        leaked(world, world.execute(job), "plain")
    # the steps of the table cannot be run without their checks
    with pytest.raises(dg.DagsterInvalidDefinitionError):
        world.job(leaky, EVERY.without_checks())
    with pytest.raises(dg.DagsterInvalidSubsetError):
        published_only(leaky, "leaky")
    bare = with_checks(leaky)
    jobs = {
        "attestation": world.job(bare, EVERY.without_checks()),
        "published": published_only(bare, "leaky"),
    }
    for stopped, job in jobs.items():
        result = world.execute(job)
        assert checks(result) == {}
        blocked(result, "leaky", HOLDS, stopped, check=None)
    nothing_published(world, "leaky")


@pytest.fixture(scope="module")
def parts(world: World) -> Tables:
    """``part`` with stock checks and ``leaky_part`` behind the gate; their partition north was
    stopped.
    """
    plain = stock(world, "part", generator=memorize_the_north, partitions=REGIONS)
    leaky = gated(world, "leaky_part", memorize_the_north, regions=True)
    for defs in (plain, leaky):
        assert [world.run(defs, partition=region).success for region in ("north", "south")] == [
            False,
            True,
        ]
    return plain, leaky


@pytest.mark.slow
def test_bypass_14_a_failed_partition_published_alone(world: World, parts: Tables) -> None:
    plain, leaky = parts
    leaked(world, world.run(plain, "part/published", partition="north"), "part")
    blocked(world.run(leaky, "leaky_part/published", partition="north"), "leaky_part", HOLDS)
    nothing_published(world, "leaky_part", "north")
    assert set(read_published(world.root / "releases", "leaky_part", "south")["region"]) == {
        "south"
    }


@pytest.mark.slow
def test_bypass_15_an_unpartitioned_publisher_over_all_partitions(
    world: World, parts: Tables
) -> None:
    @dg.asset(ins={"rows": dg.AssetIn(key=["part", "synthetic"])})
    def of_all(context: dg.AssetExecutionContext, rows: dict[str, pd.DataFrame]) -> None:
        world.write_public(rows["north"], "of_all", context.run.run_id)

    @dg.asset(ins={"rows": dg.AssetIn(key=["leaky_part", "synthetic"])})
    def unannotated(rows):
        raise AssertionError("it was given rows")

    plain, leaky = parts
    leaked(world, world.run(with_assets(plain, of_all), "of_all"), "of_all")
    readers = [
        exporter(world, "leaky_part", asset, f"of_leaky_{asset}")
        for asset in ("synthetic", "published")
    ]
    result = world.run(
        with_assets(leaky, *readers, unannotated),
        *(f"of_leaky_{name}" for name in ("synthetic", "published")),
        "unannotated",
    )
    for step in ("of_leaky_synthetic", "unannotated"):
        assert "the table is not released. Fix: depend on leaky_part/published" in reason(
            result, step
        )
    told = reason(result, "of_leaky_published")
    assert "leaky_part/published, partition north: it was not materialized yet" in told
    assert not list((world.root / "public").glob("of_leaky_*"))


@pytest.mark.slow
def test_bypass_16_another_run_overwrites_the_table(world: World) -> None:
    plain = stock(world, "overwritten", generator=independent)
    run_b = stock(world, "overwritten")

    def overwrite() -> None:
        assert world.run(run_b, "overwritten/synthetic").success

    result = world.execute(
        after(world.job(plain, EVERY), "overwritten__score_few_copies", overwrite)
    )
    assert result.success
    leaked(world, result, "overwritten")
    gated_b = gated(world, "leaky_overwritten")

    def overwrite_gated() -> None:
        world.unlock("leaky_overwritten")
        assert world.run(
            gated_b, "leaky_overwritten/generator", "leaky_overwritten/synthetic"
        ).success

    job = world.job(gated(world, "leaky_overwritten", independent), EVERY)
    result = world.execute(after(job, "leaky_overwritten__attest", overwrite_gated))
    assert checks(result)["attestation", "policy_holds"].passed
    blocked(result, "leaky_overwritten", "belongs to another synthetic table")
    nothing_published(world, "leaky_overwritten")


@pytest.mark.slow
def test_bypass_17_the_file_is_tampered_with(world: World) -> None:
    def pickled() -> None:
        world.private.to_pickle(world.root / "stock" / "tampered" / "synthetic")

    job = world.job(stock(world, "tampered", generator=independent), EVERY)
    result = world.execute(after(job, "tampered__score_few_copies", pickled))
    assert result.success
    leaked(world, result, "tampered")
    table = "leaky_tampered"
    snapshots = ReleaseTarget(table).below(world.root / "private" / "snapshots")

    def rewritten() -> None:
        (file,) = snapshots.glob("*.parquet")
        world.private.to_parquet(file)

    defs = gated(world, table, independent)
    result = world.execute(after(world.job(defs, EVERY), f"{table}__attest", rewritten))
    assert checks(result)["attestation", "policy_holds"].passed
    blocked(result, table, "changed after it was evaluated")
    # The records cannot be changed to name another file either.
    (file,) = snapshots.glob("*.parquet")
    copied = hashlib.sha256(file.read_bytes()).hexdigest()
    file.with_stem(copied).write_bytes(file.read_bytes())
    for asset, kind in (("synthetic", "snapshot"), ("attestation", "attestation")):
        folder = PrivacyIOManager(base=str(world.root / "storage")).folder(
            dg.AssetKey([table, asset])
        )
        rename(folder / f"{kind}.json", file.stem, copied)
    blocked(world.run(defs, f"{table}/published"), table, "the signature of the attestation")
    nothing_published(world, table)


def rename(record: Path, old: str, new: str) -> None:
    """Replace the hash in a signed file."""
    envelope = json.loads(record.read_bytes())
    payload = base64.b64decode(envelope["payload"])
    assert old.encode() in payload
    envelope["payload"] = base64.b64encode(payload.replace(old.encode(), new.encode())).decode()
    record.write_bytes(json.dumps(envelope, sort_keys=True, separators=(",", ":")).encode())
