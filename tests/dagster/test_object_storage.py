"""Tables, models, records and releases in an object store: the whole pipeline, its commands and its
errors.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pandas as pd
import pytest
from standins import QUICK, independent, memorize, people, run, table_of

from privacy_assets import (
    GpuResource,
    PrivacyIOManager,
    ReleaseResource,
    read_published,
)
from privacy_assets.cli.main import main
from privacy_assets.dagster.resources import load_value, store_value
from privacy_assets.dagster.table import stat_token
from privacy_assets.errors import ConfigError, Damaged, InputError, StoreError
from privacy_assets.gate.keys import first_key
from privacy_assets.gate.markers import prepare
from privacy_assets.generators import build_generator
from privacy_assets.infra.objects import ObjectPath, location
from privacy_assets.pipeline.training import Trained
from privacy_assets.tables.canonical import canonical_table
from privacy_assets.tables.declared import Declared
from privacy_assets.tables.inference import infer_schema
from privacy_assets.tables.reading import read_table
from privacy_assets.tables.table import Table
from tests.stores import extend_to_null, new_bucket, s3
from tests.tables import as_table

KEY = dg.AssetKey(["people", "train"])


@pytest.fixture(scope="module", autouse=True)
def _store() -> Iterator[None]:
    with s3() as environment, extend_to_null(environment):
        yield


@pytest.fixture
def bucket() -> ObjectPath:
    found = location(new_bucket())
    assert isinstance(found, ObjectPath)
    return found


@pytest.fixture
def deployed(bucket: ObjectPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict:
    """Resources of a deployment without a local folder, and the contents of its environment."""
    first_key(tmp_path / "made" / "signing.key", tmp_path / "keys")
    monkeypatch.setenv(
        "PRIVACY_ASSETS_SIGNING_KEY", (tmp_path / "made" / "signing.key").read_text()
    )
    monkeypatch.setenv("PRIVACY_ASSETS_SPLIT_KEY", "a secret of this deployment")
    monkeypatch.setenv("PRIVACY_ASSETS_TRUSTED_KEYS", str(tmp_path / "keys"))
    prepare({"releases": bucket / "releases", "private": bucket / "private"})
    storage = PrivacyIOManager(base=f"{bucket}/storage", releases=f"{bucket}/releases")
    return {
        "io_manager": storage,
        "privacy_io": storage,
        "releases": ReleaseResource(releases=f"{bucket}/releases", private=f"{bucket}/private"),
        "gpu": GpuResource(device="cpu", lock_folder=str(tmp_path / "locks")),
    }


def table(bucket: ObjectPath, **more) -> dg.Definitions:
    asked = {"source": f"{bucket}/people/*.parquet", "generator": independent, **QUICK, **more}
    return table_of("people", subject="pid", **asked)


def put(frame: pd.DataFrame, place: ObjectPath) -> None:
    place.put(lambda stream: frame.to_parquet(stream))


# Values


def test_a_private_table_comes_back_with_its_schema(bucket: ObjectPath, tmp_path: Path) -> None:
    table = canonical_table(people(), Declared(subject="pid", kinds={"age": "numeric"}))
    store_value(table, bucket / "train")
    loaded = load_value(bucket / "train", KEY, None, Table)
    assert (loaded.schema, loaded.fingerprint) == (table.schema, table.fingerprint)
    store_value(table, tmp_path)
    pd.testing.assert_frame_equal(loaded.frame(), load_value(tmp_path, KEY, None))


def test_a_generator_comes_back_as_it_was_sealed(bucket: ObjectPath) -> None:
    frame = canonical_table(people(100).drop(columns="pid")).frame()
    schema = infer_schema(frame)
    made = [build_generator("synthpop").fit(as_table(frame, schema), seed=seed) for seed in (1, 2)]
    (bucket / "generator" / "model-20200101T000000-left" / "weights").put(b"of years ago")
    for fitted in made:
        store_value(Trained(fitted, "print", keyed_fingerprint=str), bucket / "generator")
    loaded = Trained.load(
        load_value(bucket / "generator", dg.AssetKey(["people", "generator"]), None), str
    )
    pd.testing.assert_frame_equal(
        loaded.generator.sample(20, seed=3).frame(), made[1].sample(20, seed=3).frame()
    )
    folders = [name for name in (bucket / "generator").names() if name.startswith("model-")]
    assert len(folders) == 2  # the old one is gone; another run may still read the first one
    pointer = json.loads((bucket / "generator" / "model.json").read_bytes())
    weights = bucket.joinpath("generator", pointer["folder"])
    name = next(name for name in weights.names() if name != "trained_on.json")
    (weights / name).put((weights / name).read_bytes() + b" ")
    with pytest.raises(Damaged, match="the stored generator was changed"):
        Trained.load(
            load_value(bucket / "generator", dg.AssetKey(["people", "generator"]), None), str
        )


def test_an_object_whose_name_leaves_its_folder_is_not_fetched(
    bucket: ObjectPath, tmp_path: Path
) -> None:
    (bucket / "model" / ".." / ".." / "away").put(b"x")
    (tmp_path / "here").mkdir()
    with pytest.raises(OSError, match="leaves its folder"):
        (bucket / "model").download(tmp_path / "here")
    assert not (tmp_path / "away").exists()


# Tables


@pytest.mark.slow
def test_tables_are_read_from_the_store(bucket: ObjectPath) -> None:
    frame = people(50)
    put(frame.iloc[:40], bucket / "people" / "a.parquet")
    put(frame.iloc[40:], bucket / "people" / "b.parquet")
    for path in (f"{bucket}/people", f"{bucket}/people/*.parquet", f"{bucket}/people/?.parquet"):
        pd.testing.assert_frame_equal(read_table(path), frame)
    (bucket / "people" / "c.csv").put(frame.iloc[:3].to_csv(index=False).encode())
    with pytest.raises(InputError, match=r"c\.csv: it is a \.csv file"):
        read_table(f"{bucket}/people")
    assert len(read_table(f"{bucket}/people/c.csv")) == 3
    (bucket / "people" / "d.csv").put(b"")
    for path, told in (
        ("nothing", "no such file"),
        ("people/*.pq", "no such file"),
        ("people/d.csv", "is empty"),
    ):
        with pytest.raises(InputError, match=told):
            read_table(f"{bucket}/{path}")


def test_another_table_is_another_version(bucket: ObjectPath) -> None:
    place = bucket / "people" / "a.parquet"
    put(people(50), place)
    before = stat_token(str(place), b"key")
    assert stat_token(str(place), b"key") == before
    put(people(50, seed=1), place)
    assert stat_token(str(place), b"key") != before


# The pipeline


@pytest.mark.slow
def test_an_honest_table_is_published_and_a_copy_is_not(
    bucket: ObjectPath, deployed: dict, instance: dg.DagsterInstance
) -> None:
    """Each partition has its own releases, even if its key looks like a pattern."""
    parts = dg.StaticPartitionsDefinition(["north", "so[u]th"])
    bound = dg.Definitions(resources=deployed, executor=dg.in_process_executor)

    def published(part: str, **more: object) -> dg.ExecuteInProcessResult:
        defs = table(
            bucket, source=f"{bucket}/people/{{partition}}.parquet", partitions_def=parts, **more
        )
        return run(dg.Definitions.merge(defs, bound), instance, partition=part)

    for number, part in enumerate(parts.get_partition_keys()):
        put(people(seed=number), bucket / "people" / f"{part}.parquet")
    good = published("so[u]th")
    assert good.success
    first = read_published(f"{bucket}/releases", "people", "so[u]th")
    assert not published("so[u]th", generator=memorize).success
    pd.testing.assert_frame_equal(read_published(f"{bucket}/releases", "people", "so[u]th"), first)
    with pytest.raises(InputError, match="there is no release"):
        read_published(f"{bucket}/releases", "people", "north")
    (event,) = good.asset_materializations_for_node("people__publish")
    assert str(event.metadata["folder"].value).startswith(f"{bucket}/releases/people/")


@pytest.mark.parametrize(
    ("variable", "told"),
    [
        ("PRIVACY_ASSETS_SIGNING_KEY", "the signing key is not set. Fix: set this"),
        ("PRIVACY_ASSETS_SPLIT_KEY", "an object store cannot hold the split key of a deployment"),
        ("PRIVACY_ASSETS_TRUSTED_KEYS", "keys in an object store are not trusted"),
    ],
)
def test_what_cannot_lie_in_the_store_is_asked_for(
    deployed: dict, variable: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(variable)
    with pytest.raises(ConfigError, match=told):
        deployed["releases"].gate().key.check()


def test_a_private_place_that_was_not_prepared_is_not_used(
    bucket: ObjectPath, deployed: dict
) -> None:
    away = ReleaseResource(releases=f"{bucket}/releases", private=f"{bucket}/privat")
    with pytest.raises(ConfigError, match=f"privacy-assets prepare --private {bucket}/privat"):
        away.gate()


def test_an_empty_place_is_an_error(
    deployed: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    (tmp_path / "private").mkdir(mode=0o700)
    for field in ("releases", "private", "trusted_keys", "signing_key"):
        with pytest.raises(ConfigError, match="neither a path nor a URL"):
            ReleaseResource(**{field: ""}).gate()
    with pytest.raises(ConfigError, match="neither a path nor a URL"):
        PrivacyIOManager(base="").folder(KEY)


@pytest.mark.slow
def test_keys_are_read_from_this_machine(bucket: ObjectPath, deployed: dict) -> None:
    for field in ("trusted_keys", "signing_key"):
        asked = {
            "releases": f"{bucket}/releases",
            "private": f"{bucket}/private",
            field: f"{bucket}/keys",
        }
        with pytest.raises(ConfigError, match="keys are read from this machine only"):
            ReleaseResource(**asked).gate()
    with pytest.raises(ConfigError, match="keys are read from this machine only"):
        read_published(f"{bucket}/releases", "people", trusted_keys=f"{bucket}/keys")


@pytest.mark.slow
def test_a_place_that_cannot_be_used_is_named(bucket: ObjectPath) -> None:
    away = location("s3://a-missing-bucket/storage")
    with pytest.raises(
        StoreError, match=r"s3://a-missing-bucket/storage/table.parquet: no such bucket"
    ):
        store_value(pd.DataFrame({"x": [1]}), away)


# The command line


@pytest.mark.slow
def test_the_commands_take_urls(
    bucket: ObjectPath, deployed: dict, capsys, tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    put(people(), bucket / "people" / "a.parquet")
    bound = dg.Definitions(resources=deployed, executor=dg.in_process_executor)
    for seed in (0, 1):
        defs = dg.Definitions.merge(table(bucket, seed=seed), bound)
        assert run(defs, instance).success
    folders = ["--releases", f"{bucket}/releases"]
    store = deployed["releases"].deployment.store
    older, newer = [release.id for release in store.history(*store.targets())]

    url = f"{bucket}/releases/people/_all/releases/{older}/table.parquet"
    copy, private = tmp_path / "copy.parquet", ["--private", f"{bucket}/private"]
    copy.write_bytes(location(url).read_bytes())
    (tmp_path / "other.parquet").write_bytes(b"other")
    for command, status, told in (
        (["releases", *folders], 0, newer),
        (
            ["releases", "people", *folders, *private, "--rollback", older],
            0,
            f"rolled back from {newer} to {older}",
        ),
        (["verify", url, *folders], 0, "the current one"),
        (["verify", str(copy), *folders], 0, "RELEASED"),
        (["verify", str(tmp_path / "other.parquet"), *folders], 1, ""),
        (["keys", *folders, *private], 0, "environment variable PRIVACY_ASSETS_SIGNING_KEY"),
        (["keys", "--new", *folders, *private], 2, "an object store cannot hold keys"),
        (["prepare", *folders], 0, f"releases  {bucket}/releases: was ready before"),
        (["prepare", "--releases", f"{bucket}/private"], 2, "marked for private"),
        (["prepare", "--releases", str(tmp_path)], 2, ""),
        # a wrong name must not give an empty list
        (["releases", "--releases", f"{bucket}/private"], 2, ""),
        (
            ["releases", "people", *folders, "--rollback", newer],
            2,
            f"folder of {bucket}/releases is not set",
        ),
    ):
        assert main(command) == status, command
        assert told in "".join(capsys.readouterr()), command
