"""An attacker who can write to the storage or the run configuration, but has no key, cannot
influence a release.
"""

import json
import os
from pathlib import Path

import dagster as dg
import pandas as pd
import pytest
from bypasses import World, blocked, gated, with_assets
from standins import LENIENT, independent, memorize, people

from privacy_assets import GpuResource, PrivacyIOManager, ReleaseResource, TableSpec
from privacy_assets.dagster.resources import load_value, store_value
from privacy_assets.errors import ConfigError
from privacy_assets.gate.envelope import ReleaseTarget
from privacy_assets.gate.releases import read_published
from privacy_assets.pipeline.resolve import ResolvedTable
from privacy_assets.tables.table import Table


@pytest.fixture(scope="module")
def honest(world: World) -> dg.Definitions:
    defs = gated(world, "honest", independent)
    assert world.run(defs).success
    return defs


def test_run_configuration_chooses_no_folder_and_no_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The values of the code and of the environment are used."""
    monkeypatch.setenv("PRIVACY_ASSETS_SIGNING_KEY", "the key itself")
    monkeypatch.setenv("SOME_ROOT", str(tmp_path))
    resources = {
        "releases": ReleaseResource(releases=dg.EnvVar("SOME_ROOT"), private="there"),
        "gpu": GpuResource(device="cpu", slots=3),
        "privacy_io": PrivacyIOManager(base=str(tmp_path)),
    }
    seen: dict[str, dict[str, object]] = {}

    @dg.asset(required_resource_keys=set(resources))
    def look(context: dg.AssetExecutionContext) -> None:
        seen.update({name: getattr(context.resources, name).model_dump() for name in resources})

    for name, field in (
        ("releases", "trusted_keys"),
        ("privacy_io", "base"),
        ("gpu", "lock_folder"),
    ):
        evil = {"resources": {name: {"config": {field: {"env": "PRIVACY_ASSETS_SIGNING_KEY"}}}}}
        with pytest.raises(
            dg.DagsterInvalidConfigError, match=f'unexpected config entry "{field}"'
        ):
            dg.materialize([look], resources=resources, run_config=evil)
    assert dg.materialize([look], resources=resources).success
    deployment = seen["releases"]
    assert (deployment["releases"], deployment["private"], seen["gpu"]["slots"]) == (
        str(tmp_path),
        "there",
        3,
    )


def readers(world: World, honest: dg.Definitions) -> dg.ExecuteInProcessResult:
    """Another team's asset that depends on the release."""

    @dg.asset(ins={"rows": dg.AssetIn(key=["honest", "published"], input_manager_key="privacy_io")})
    def report(rows: pd.DataFrame) -> int:
        return len(rows)

    return world.run(with_assets(honest, report), "report")


@pytest.mark.slow
def test_a_table_planted_beside_the_record_is_not_read(
    world: World, honest: dg.Definitions
) -> None:
    folder = world.root / "storage/honest/published"
    people(5).to_parquet(folder / "table.parquet")
    try:
        result = readers(world, honest)
        assert result.output_for_node("report") == len(
            read_published(world.root / "releases", "honest")
        )
    finally:
        (folder / "table.parquet").unlink()


@pytest.mark.slow
def test_a_record_names_no_folder_and_no_key(world: World, honest: dg.Definitions) -> None:
    path = world.root / "storage/honest/published/published.json"
    told = json.loads(path.read_bytes())
    assert set(told) == {"table", "partition", "release"}
    path.write_text(json.dumps({**told, "table": "others"}))
    try:
        assert not readers(world, honest).success
    finally:
        path.write_text(json.dumps(told))


@pytest.mark.slow
def test_rows_moved_between_train_and_holdout_are_blocked(world: World) -> None:
    """With half of train as the holdout, copies of both halves would look like chance."""
    table = gated(world, "halved", memorize)
    world.run(table)
    storage = {role: world.root / "storage/halved" / role for role in ("train", "holdout")}
    train = load_value(storage["train"], dg.AssetKey(["halved", "train"]), None, Table)
    half = len(train) // 2
    for role, rows in (("train", slice(half)), ("holdout", slice(half, None))):
        store_value(train.take(rows), storage[role])
    blocked_step = world.run(table, "halved/evaluation_inputs")
    data = next(e.step_failure_data for e in blocked_step.all_events if e.is_step_failure)
    assert "table is not the one that was split" in data.user_failure_data.description
    stale = world.run(table, "halved/attestation")
    assert not stale.success
    assert world.store.history(ReleaseTarget("halved")) == []


@pytest.mark.slow
def test_settings_restored_after_the_attestation_do_not_publish(world: World) -> None:
    assert world.run(gated(world, "restored", independent, seed=3)).success
    published = world.store.history(ReleaseTarget("restored"))
    result = world.run(gated(world, "restored", independent), "restored/published")
    blocked(result, "restored", "other settings (seed)")
    assert world.store.history(ReleaseTarget("restored")) == published


@pytest.mark.parametrize(
    "change",
    [
        {"run": {"seed": 3}},
        {"split": {"train": 0.5, "holdout": 0.25, "reference": 0.25}},
        {"data": {"source": "demo", "kinds": {"age": "numeric"}}},
        {"data": {"source": "demo", "subject": "person"}},
        {"data": {"source": "demo", "allowed_values": {"region": ["a"]}}},
        {"policy": {**LENIENT, "metrics": {"dcr": {"n_permutations": 299}}}},
        {"policy": {**LENIENT, "embedder": {"width": 8}}},
        {"generator": {"filter": "outliers"}},
    ],
    ids=str,
)
def test_every_setting_that_decides_what_the_statistics_say_is_attested(
    change: dict[str, object],
) -> None:
    base = {"data": {"source": "demo"}, "evaluation": {"metrics": ["dcr"]}, "policy": LENIENT}
    plans = [
        ResolvedTable.of(TableSpec(name="people", **given)) for given in (base, {**base, **change})
    ]
    assert plans[0].setup(str) != plans[1].setup(str)


def test_a_private_folder_that_is_not_mounted_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIVACY_ASSETS_SIGNING_KEY", "given")
    releases = ReleaseResource(
        releases=str(tmp_path / "releases"), private=str(tmp_path / "private")
    )
    with pytest.raises(ConfigError, match="private folder does not exist"):
        releases.gate()
    assert os.listdir(tmp_path) == []


def test_no_second_pair_of_keys_is_made_beside_releases(
    world: World, honest: dg.Definitions, tmp_path: Path
) -> None:
    own, lost = (
        ReleaseResource(releases=str(world.root / "releases"), private=str(private))
        for private in (world.root / "private", tmp_path / "private")
    )
    trusted = world.root / "trusted_keys"
    trusted.rename(world.root / "elsewhere")
    try:
        with pytest.raises(ConfigError, match="trusted keys are missing"):
            own.gate()
        with pytest.raises(
            ConfigError, match="releases: this folder belongs to another deployment"
        ):
            lost.gate()
    finally:
        (world.root / "elsewhere").rename(trusted)
