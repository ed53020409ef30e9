"""The IO manager and the release resource."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

import dagster as dg
import numpy as np
import pandas as pd
import pytest
from standins import people

from privacy_assets import PrivacyIOManager, ReleaseResource
from privacy_assets.dagster.resources import Published, ReleaseAccess, load_value, store_value
from privacy_assets.errors import ConfigError, InputError, OutOfDate
from privacy_assets.gate.envelope import SignedFile, verified_payload
from privacy_assets.gate.keys import TrustedKeys, first_key
from privacy_assets.gate.markers import MARKER, mark_deployment
from privacy_assets.infra.files import read_key
from privacy_assets.tables.canonical import canonical_table
from privacy_assets.tables.declared import Declared
from privacy_assets.tables.table import Table

KEY = dg.AssetKey(["people", "train"])


def _new_trusted(folder: Path) -> Path:
    first_key(folder / "signing.key", folder / "trusted")
    return folder / "trusted"


def back(value: object, folder: Path, wanted: object = None) -> object:
    store_value(value, folder)
    return load_value(folder, KEY, None, wanted)


def test_a_private_table_comes_back_with_its_schema(tmp_path: Path) -> None:
    table = replace(
        canonical_table(people(), Declared(subject="pid", kinds={"age": "numeric"})),
        envelope=b"signed",
    )
    loaded = back(table, tmp_path, Table)
    assert isinstance(loaded, Table)
    assert (loaded.schema, loaded.subject, loaded.envelope) == (table.schema, "pid", b"signed")
    assert loaded.schema["age"].kind == "numeric" and loaded.fingerprint == table.fingerprint
    assert loaded.digest == table.digest
    pd.testing.assert_frame_equal(loaded.frame(), table.frame())
    # the default type
    pd.testing.assert_frame_equal(load_value(tmp_path, KEY, None), table.frame())


def test_a_table_from_elsewhere_carries_no_schema(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no schema"):
        back(people(), tmp_path, Table)


@pytest.mark.parametrize(
    "column",
    [
        pd.array([1, None, 3], dtype="Int64"),
        pd.array([True, None, False], dtype="boolean"),
        pd.array(["a", None, "b"], dtype="object"),
        pd.Categorical(["x", None, "y"]),
        pd.to_datetime(["2024-01-01", None, "2024-01-03"]).astype("datetime64[us]"),
        np.array([1.5, np.nan, -0.0]),
        np.array([1, 2, 3], dtype="uint8"),
    ],
    ids=lambda column: str(column.dtype),
)
def test_every_dtype_comes_back(column: object, tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": column})
    loaded = back(frame, tmp_path)
    pd.testing.assert_frame_equal(loaded, frame, check_dtype=frame["x"].dtype != object)


def test_a_synthetic_table_is_no_dataframe_before_its_release(tmp_path: Path) -> None:
    assert back(SignedFile("snapshot", b"{}"), tmp_path) == SignedFile("snapshot", b"{}")
    with pytest.raises(
        InputError, match="people/train: the table is not released. Fix: depend on people/published"
    ):
        back(SignedFile("snapshot", b"{}"), tmp_path, pd.DataFrame)


def test_only_the_newest_value_is_kept(tmp_path: Path) -> None:
    store_value(pd.DataFrame({"x": [1]}), tmp_path)
    assert list(back(pd.DataFrame({"x": [2]}), tmp_path)["x"]) == [2]
    assert back(SignedFile("snapshot", b"{}"), tmp_path) == SignedFile("snapshot", b"{}")
    assert [file.name for file in tmp_path.iterdir()] == ["snapshot.json"]


def test_a_model_goes_when_the_next_but_one_is_stored_and_it_is_old(tmp_path: Path) -> None:
    """Another run may be reading the one just replaced, however old it is."""

    class Model:
        def save(self, folder: Path) -> None:
            (folder / "generator.json").write_text("{}")

    def folders() -> set[str]:
        return {path.name for path in tmp_path.glob("model-*")}

    store_value(Model(), tmp_path)
    (first,) = folders()
    old = "model-20200101T000000-old"
    (tmp_path / first).rename(tmp_path / old)
    pointer = tmp_path / "model.json"
    pointer.write_text(pointer.read_text().replace(first, old))
    store_value(Model(), tmp_path)
    assert old in folders() and len(folders()) == 2
    store_value(Model(), tmp_path)
    assert old not in folders() and len(folders()) == 2


def test_what_was_never_stored_says_so(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match="people/train, partition north: it was not materialized yet"
    ):
        load_value(tmp_path / "nothing", KEY, "north")


def test_a_record_that_is_not_there_is_an_empty_one_that_no_gate_lets_through(
    tmp_path: Path,
) -> None:
    assert load_value(
        tmp_path, dg.AssetKey(["people", "attestation"]), None, SignedFile
    ) == SignedFile("attestation", b"")
    with pytest.raises(OutOfDate, match="there is no attestation yet"):
        verified_payload(SignedFile("attestation", b""), TrustedKeys((_new_trusted(tmp_path),)))


def test_a_type_that_is_not_stored_here(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="another IO manager"):
        store_value(object(), tmp_path)


def test_a_frame_that_parquet_cannot_hold_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="values of several types. Fix: convert") as caught:
        store_value(pd.DataFrame({"x": ["secret", 3]}), tmp_path)
    assert caught.value.__context__ is None and "secret" not in str(caught.value)


@pytest.mark.parametrize("name", ["..", "a/b", "a.b", "", " ", "%2e"])
def test_no_key_or_partition_leaves_the_base(name: str, tmp_path: Path) -> None:
    io = PrivacyIOManager(base=str(tmp_path))
    keys = [io.folder(dg.AssetKey(["t", "x"]), name)]
    keys += [io.folder(dg.AssetKey(["t", name]))] if name else []
    for folder in keys:
        assert tmp_path / "t" in folder.resolve().parents


@pytest.mark.parametrize(
    ("partition", "path"),
    [(None, "privacy_report/report.html"), ("a b", "privacy_report/partition%3Da%20b/report.html")],
)
def test_pages_that_are_served_are_links(partition: str | None, path: str, tmp_path: Path) -> None:
    io = PrivacyIOManager(base=str(tmp_path), report_url="https://reports.example.org/")
    key = dg.AssetKey(["people", "privacy_report"])
    assert io.page(key, partition).value == f"https://reports.example.org/people/{path}"


def test_without_a_place_they_say_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    with pytest.raises(InputError, match="DAGSTER_HOME"):
        PrivacyIOManager().folder(KEY)
    with pytest.raises(ConfigError, match="DAGSTER_HOME"):
        _ = ReleaseResource().deployment


def test_a_published_pointer_reads_the_current_release(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no release"):
        store_value(Published("people", None, "x"), tmp_path / "io")
        load_value(
            tmp_path / "io",
            dg.AssetKey(["people", "published"]),
            None,
            pd.DataFrame,
            ReleaseAccess(tmp_path),
        )


def deployment(folder: Path) -> ReleaseResource:
    return ReleaseResource(releases=str(folder / "releases"), private=str(folder / "private"))


def test_the_secret_is_made_once_and_for_the_owner_only(tmp_path: Path) -> None:
    releases, private = deployment(tmp_path), tmp_path / "private"
    first = releases.key("split")
    assert releases.key("split") == first != releases.key("fingerprints")
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert {
        file.name: stat.S_IMODE(file.stat().st_mode) for file in private.iterdir()
    } == dict.fromkeys(("split.key", "split.check", MARKER, ".gitignore"), 0o600)
    assert deployment(tmp_path).key("split") == first
    assert deployment(tmp_path / "other").key("split") != first


def test_a_secret_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    releases = deployment(tmp_path)
    monkeypatch.setenv("PRIVACY_ASSETS_SPLIT_KEY", "s" * 32)
    assert releases.key("split") == deployment(tmp_path / "x").key("split")
    assert [file.name for file in (tmp_path / "private").glob("[!.]*")] == ["split.check"]
    assert b"s" * 8 not in (tmp_path / "private" / "split.check").read_bytes()
    monkeypatch.setenv("PRIVACY_ASSETS_SPLIT_KEY", "short")
    with pytest.raises(ConfigError, match="PRIVACY_ASSETS_SPLIT_KEY: the split key needs"):
        releases.key("split")


def test_another_secret_is_blocked_also_in_a_process_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    releases = deployment(tmp_path)
    monkeypatch.setenv("PRIVACY_ASSETS_SPLIT_KEY", "s" * 32)
    first = releases.key("split")
    monkeypatch.setenv("PRIVACY_ASSETS_SPLIT_KEY", "t" * 32)
    for one in (releases, deployment(tmp_path)):
        with pytest.raises(ConfigError, match="not the split key of this deployment") as caught:
            one.key("split")
        assert "t" * 8 not in str(caught.value)
    monkeypatch.delenv("PRIVACY_ASSETS_SPLIT_KEY")
    with pytest.raises(
        ConfigError, match=r"split\.key: the split key of this deployment is missing"
    ):
        releases.key("split")
    # no split key was created
    assert [file.name for file in (tmp_path / "private").glob("[!.]*")] == ["split.check"]
    monkeypatch.setenv("PRIVACY_ASSETS_SPLIT_KEY", "s" * 32)
    assert releases.key("split") == first


@pytest.mark.parametrize(
    ("there", "variable"),
    [
        ("private/snapshots", ""), ("private/failures", "s" * 32), ("private/attempts", ""),
        ("releases/t/_all/releases/20260101T000000.000000Z-0123456789ab", "s" * 32),
    ],
)  # fmt: skip
def test_what_remembers_is_no_first_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: str, variable: str
) -> None:
    monkeypatch.setenv("PRIVACY_ASSETS_SPLIT_KEY", variable)
    mark_deployment({"private": tmp_path / "private", "releases": tmp_path / "releases"})
    (tmp_path / there).mkdir(parents=True)
    for _ in range(2):
        with pytest.raises(ConfigError, match="[Rr]estore"):
            deployment(tmp_path).key("split")
    assert not list((tmp_path / "private").glob("split.*"))


def test_a_secret_that_others_can_read_is_blocked(tmp_path: Path) -> None:
    path = tmp_path / "split.key"
    path.write_bytes(b"s" * 32)
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="mode 0600"):
        read_key(path)
    path.chmod(0o600)
    assert read_key(path) == b"s" * 32
    os.symlink(path, tmp_path / "link.key")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_key(tmp_path / "link.key")
    deployment(tmp_path).key("split")
    (tmp_path / "private" / "split.key").write_bytes(b"short")
    with pytest.raises(ConfigError, match=r"split\.key: the split key needs at least"):
        deployment(tmp_path).key("split")


def test_a_private_folder_that_others_may_enter_is_blocked(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir()
    private.chmod(0o750)
    with pytest.raises(ConfigError, match="chmod 700"):
        ReleaseResource(releases=str(tmp_path / "releases"), private=str(private)).key("split")
