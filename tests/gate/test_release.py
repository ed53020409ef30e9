"""Releases and snapshots as files: whole, private until they are out, and read only as they were judged."""

from __future__ import annotations

import itertools
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gate_standins import FRAME, PLACE, Chain, chain, make_gate, overwrite, read, same_rows, tree
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from privacy_assets.errors import ConfigError, InputError, PublicationRefused
from privacy_assets.gate import release_disk
from privacy_assets.gate.gate import Gate
from privacy_assets.gate.releases import POINTER, TRUSTED_VARIABLE, ReleaseStore, check_bytes, hash_file, read_published
from privacy_assets.gate.snapshot import read_hashed, read_snapshot, write_snapshot
from privacy_assets.gate.statements import Place
from privacy_assets.storage.files import put_atomic


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture
def ready(gate: Gate) -> Chain:
    return chain(gate)


# Snapshots


KEY = b"k" * 32
HIDDEN = pd.concat([FRAME, FRAME.iloc[[1]]], ignore_index=True)  # a row stands twice
HIDDEN.attrs = {"note": "hidden"}
SAME_ROWS: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "another index": lambda frame: frame.set_index(pd.Index([5, 5, 9, 2])),
    "another order of rows": lambda frame: frame.iloc[[3, 0, 2, 1]],
    "attributes": lambda frame: frame,
    "categories that no row has": lambda frame: frame.assign(ward=frame["ward"].cat.add_categories(["hidden"])),
    "another order of categories": lambda frame: frame.assign(ward=frame["ward"].cat.reorder_categories(WARDS)),
    "texts as categories": lambda frame: frame.assign(plan=frame["plan"].astype("category")),
    "texts as objects": lambda frame: frame.assign(plan=frame["plan"].astype(object)),
    "in parts": lambda frame: pd.concat([frame[:2], frame[2:]]).assign(dose=_in_parts(frame["dose"])),
}
WARDS = ["south", "north"]


def _in_parts(series: pd.Series) -> pd.Series:
    """A column that Arrow holds in parts."""
    parts = pa.chunked_array([pa.array(series[:1], from_pandas=True), pa.array(series[1:], from_pandas=True)])
    return pd.Series(pd.arrays.ArrowExtensionArray(parts))


@pytest.mark.parametrize("change", SAME_ROWS)
def test_the_same_rows_give_the_same_snapshot(tmp_path: Path, change: str) -> None:
    plain = HIDDEN.copy()
    plain.attrs = {}
    assert write_snapshot(SAME_ROWS[change](HIDDEN), tmp_path, KEY) == write_snapshot(plain, tmp_path, KEY)


def test_other_rows_or_another_secret_give_another_snapshot(tmp_path: Path) -> None:
    once = write_snapshot(FRAME, tmp_path, KEY)
    assert once != write_snapshot(HIDDEN, tmp_path, KEY)  # how often a row stands there is content
    assert once != write_snapshot(FRAME.assign(visits=[3, 0, 8]), tmp_path, KEY)
    rows = pd.DataFrame({"n": range(100)})
    orders = [read_hashed(*write_snapshot(rows, tmp_path, key))["n"].tolist() for key in (KEY, b"another")]
    assert orders[0] != orders[1] and sorted(orders[0]) == sorted(orders[1]) == list(range(100))


def test_a_snapshot_holds_names_and_values_alone(tmp_path: Path) -> None:
    hidden = SAME_ROWS["categories that no row has"](HIDDEN)
    path, sha256 = write_snapshot(hidden, tmp_path, KEY)
    file = pq.ParquetFile(path, read_dictionary=["ward"])
    assert file.metadata.metadata is None
    assert file.schema_arrow.metadata is None and {field.metadata for field in file.schema_arrow} == {None}
    (chunk,) = file.read()["ward"].chunks
    assert sorted(chunk.dictionary.to_pylist()) == ["north", "south"]
    assert read_hashed(path, sha256).attrs == {}


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([1, 2], "int8"), ([1, 2], "uint64"), ([2**60 + 1, None], "Int64"), ([1, 2], "Int64"), ([True, False], "bool"),
        ([True, None], "boolean"), ([True, False], "boolean"), ([0.1, None], "float32"), ([0.1, None], "Float64"),
        ([0.1, None], "float64"), (["a", None], "str"), (["a", None], "string"), (["a", None], "object"),
        (["a", None], "category"), (["2024-01-01", None], "datetime64[s]"), (["2024-01-01", None], "datetime64[ns]"),
        (["2024-01-01", None], "datetime64[us, Europe/Berlin]"), ([1, None], "int64[pyarrow]"),
    ],
)  # fmt: skip
def test_dtypes_come_back_from_what_was_signed(gate: Gate, values: list[Any], dtype: str) -> None:
    frame = pd.DataFrame({"self": pd.Series(values, dtype=dtype)})
    part = chain(gate, frame=frame)
    part.publish()
    for found in (read_snapshot(part.snapshot), read(gate)):
        assert str(found["self"].dtype) == dtype
        same_rows(found, frame, check_categorical=False)


def test_a_snapshot_is_private_and_named_by_its_bytes(ready: Chain) -> None:
    path = ready.snapshot.path
    assert path.name == f"{hash_file(path)}.parquet"
    assert (mode(path), mode(path.parent)) == (0o600, 0o700)
    same_rows(read_snapshot(ready.snapshot), FRAME)


@pytest.mark.parametrize("change", [lambda path: path.write_bytes(path.read_bytes() + b"x"), Path.unlink])
def test_a_snapshot_whose_file_changed_is_not_read(ready: Chain, change: Callable[[Path], object]) -> None:
    change(ready.snapshot.path)
    with pytest.raises(PublicationRefused, match="materialise it again"):
        read_snapshot(ready.snapshot)


# The folder of a release


def test_a_release_is_complete_and_not_writable(ready: Chain) -> None:
    release = ready.publish()
    assert {path.name: mode(path) for path in release.folder.iterdir()} == {
        "table.parquet": 0o444,
        "attestation.json": 0o444,
    }
    assert mode(release.folder) == 0o555
    assert {path.name for path in release.folder.parents[1].iterdir()} == {"releases", POINTER, ".lock"}
    assert json.loads((release.folder.parents[1] / POINTER).read_bytes()) == {"release": release.id}


def test_the_id_says_when_and_what(ready: Chain) -> None:
    release = ready.publish()
    assert release.id.endswith(ready.snapshot.sha256[:12])
    said, stated = pd.Timestamp(release.published_at, tz="UTC"), pd.Timestamp(ready.stated.made_at)
    assert pd.Timedelta(seconds=-1) <= said - stated < pd.Timedelta(minutes=10)


def test_the_copy_is_made_in_a_private_folder_that_is_gone_afterwards(
    ready: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    copy = release_disk._copied

    def watched(source: Path, target: Path) -> str:
        seen.extend(mode(folder) for folder in (target.parent, target.parents[1]))
        assert not list(target.parents[2].glob("releases/*"))
        return copy(source, target)

    monkeypatch.setattr(release_disk, "_copied", watched)
    release = ready.publish()
    assert seen == [0o700, 0o700]
    assert not (release.folder.parents[1] / "staging").exists()


def test_a_refused_copy_leaves_nothing(ready: Chain) -> None:
    overwrite(ready.snapshot.path, b"other bytes")
    with pytest.raises(PublicationRefused, match="changed after it was judged"):
        ready.publish()
    assert tree(ready.gate.releases).keys() <= {"patients/_all/.lock"}
    assert not list(ready.gate.releases.rglob("staging"))


def test_what_a_killed_process_left_in_staging_is_removed(ready: Chain) -> None:
    left = PLACE.below(ready.gate.releases) / "staging" / "0123456789ab"
    left.mkdir(parents=True, mode=0o700)
    (left / "table.parquet").write_bytes(b"half a table")
    ready.publish()
    assert not left.parent.exists()
    assert len(ready.gate.store.history(PLACE)) == 1


def test_a_link_in_place_of_staging_is_not_followed(ready: Chain, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "kept").write_bytes(b"kept")
    folder = PLACE.below(ready.gate.releases)
    folder.mkdir(parents=True)
    (folder / "staging").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PublicationRefused, match="could not be written"):
        ready.publish()
    assert tree(tmp_path / "elsewhere") == {"kept": b"kept"}


def test_the_same_attestation_gives_one_release(ready: Chain) -> None:
    first = ready.publish()
    assert ready.publish() == first
    later = chain(ready.gate, frame=FRAME.iloc[:2]).publish()
    assert ready.gate.store.current(PLACE) == later
    assert ready.gate.store.history(PLACE) == [first, later]


def test_an_old_attestation_does_not_decide_what_is_current(ready: Chain) -> None:
    first, newer = ready.publish(), chain(ready.gate, frame=FRAME.iloc[:2])
    later = newer.publish()
    with pytest.raises(PublicationRefused, match=f"published before, as {first.id}"):
        ready.publish()
    assert ready.gate.store.current(PLACE) == later
    for _ in range(2):  # going back twice is going back
        ready.gate.roll_back(PLACE, first.id)
    with pytest.raises(PublicationRefused, match=f"--rollback {later.id}"):
        newer.publish()
    assert ready.publish() == first
    ready.gate.roll_back(PLACE, later.id)
    assert newer.publish() == later


def test_a_damaged_release_is_not_pointed_to_again(ready: Chain) -> None:
    first = ready.publish()
    overwrite(first.table, b"damaged")
    second = ready.publish()
    assert second != first
    assert ready.gate.store.current(PLACE) == second
    same_rows(read(ready.gate), FRAME)


def test_the_history_holds_releases_only_oldest_first(gate: Gate) -> None:
    made = [chain(gate, frame=FRAME.iloc[:rows]).publish() for rows in (1, 2, 3)]
    for name in ("notes", ".hidden", "20240101T000000.000000Z-0123456789AB", "x20240101T000000.000000Z-0123456789ab"):
        (made[0].folder.parent / name).mkdir()
    assert gate.store.history(PLACE) == made
    assert gate.store.history(Place("others")) == []


names = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=12)
places = st.lists(st.builds(Place, names, st.none() | st.text(max_size=8)), min_size=1, max_size=4, unique=True)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(places)
def test_places_of_any_name_are_kept_apart_and_found_again(
    tmp_path_factory: pytest.TempPathFactory, places: list[Place]
) -> None:
    gate = make_gate(tmp_path_factory.mktemp("places"))
    for rows, place in enumerate(places):
        chain(gate, frame=FRAME.iloc[:rows], place=place).publish()
    assert set(gate.store.places()) == set(places)
    assert [len(read(gate, place)) for place in places] == list(range(len(places)))


# The pointer and the reader


def test_nothing_is_read_before_the_first_release(gate: Gate) -> None:
    with pytest.raises(InputError, match="patients: nothing was published"):
        read(gate)


POINTERS: dict[str, bytes] = {
    "garbage": b"\xff",
    "empty": b"",
    "a list": b"[]",
    "a text": b'"20240101T000000.000000Z-0123456789ab"',
    "no release": b"{}",
    "deep nesting": b'{"release":' * 100_000,
    "another folder": b'{"release": "../../../others/_all/releases"}',
    "an absolute path": b'{"release": "/etc"}',
    "a folder above": b'{"release": ".."}',
    "nothing": b'{"release": ""}',
    "null": b'{"release": null}',
    "a list of releases": b'{"release": ["20240101T000000.000000Z-0123456789ab"]}',
    "an id and more": b'{"release": "20240101T000000.000000Z-0123456789ab\\n"}',
}


@pytest.mark.parametrize("pointer", POINTERS.values(), ids=POINTERS.keys())
def test_a_pointer_that_names_no_release_is_refused_with_the_way_out(ready: Chain, pointer: bytes) -> None:
    release = ready.publish()
    overwrite(release.folder.parents[1] / POINTER, pointer)
    with pytest.raises(PublicationRefused, match="pointer in .*roll back"):
        read(ready.gate)
    ready.gate.roll_back(PLACE, release.id)
    assert len(read(ready.gate)) == 3


def test_a_pointer_to_a_release_that_is_gone_is_refused(ready: Chain) -> None:
    release = ready.publish()
    pointer = {"release": "20240101T000000.000000Z-0123456789ab"}
    overwrite(release.folder.parents[1] / POINTER, json.dumps(pointer).encode())
    with pytest.raises(PublicationRefused, match="cannot be read"):
        read(ready.gate)


def test_a_pointer_that_is_a_folder_is_refused(ready: Chain) -> None:
    pointer = ready.publish().folder.parents[1] / POINTER
    pointer.unlink()
    pointer.mkdir()
    with pytest.raises(PublicationRefused, match="cannot be read"):
        read(ready.gate)


def test_no_flipped_bit_of_a_released_file_is_accepted(gate: Gate) -> None:
    """Every bit, by the two functions that readers, rollback and `privacy-assets verify` use."""
    path = chain(gate, frame=FRAME[["visits"]]).publish().table
    data, sha256 = path.read_bytes(), hash_file(path)
    accepted = []
    path.chmod(0o600)
    with path.open("r+b", buffering=0) as file:
        for position, bit in itertools.product(range(len(data)), range(8)):
            os.pwrite(file.fileno(), bytes([data[position] ^ (1 << bit)]), position)
            accepted += [one for one in (check_bytes, read_hashed) if not refused(lambda one=one: one(path, sha256))]
            os.pwrite(file.fileno(), data[position : position + 1], position)
    assert accepted == []
    assert not refused(lambda: check_bytes(path, sha256))
    assert sorted(read(gate)["visits"]) == sorted(FRAME["visits"])


def refused(act: Callable[[], object]) -> bool:
    try:
        act()
    except PublicationRefused:
        return True
    return False


@pytest.mark.parametrize(
    "change", [lambda x: x[:-1], lambda x: x + b"\0", lambda x: b"", lambda x: x[:40] + b"?" + x[41:]]
)
def test_a_changed_release_is_not_read(ready: Chain, change: Callable[[bytes], bytes]) -> None:
    release = ready.publish()
    overwrite(release.table, change(release.table.read_bytes()))
    with pytest.raises(PublicationRefused, match="changed after it was written"):
        read(ready.gate)


def moved_from(place: Place) -> Callable[[Chain], bytes]:
    return lambda ready: chain(ready.gate, place=place).sealed.data


ATTESTATIONS: dict[str, tuple[Callable[[Chain], bytes], str]] = {
    "of another table": (moved_from(Place("others")), "another table or partition"),
    "of a partition": (moved_from(Place("patients", "_all")), "another table or partition"),
    "of other bytes": (lambda x: chain(x.gate, frame=FRAME.iloc[:1]).sealed.data, "changed after it was written"),
    "of a failure": (lambda x: x.restated(verdict="fail").data, "says 'fail'"),
    "of a stranger": (lambda x: chain(make_gate(x.gate.private / "stranger")).sealed.data, "not trusted"),
    "a result": (lambda x: x.score.data, "another kind"),
    "changed": (lambda x: x.sealed.data.replace(b"a", b"b", 1), "attestation"),
    "empty": (lambda _: b"", "there is no attestation"),
    "no envelope": (lambda _: b"{}", "cannot be read as a signed statement"),
    "another format": (lambda _: b'{"format": "other"}', "cannot be read as a signed statement"),
}


@pytest.mark.parametrize(("other", "match"), ATTESTATIONS.values(), ids=ATTESTATIONS.keys())
def test_a_release_with_another_attestation_is_not_read(
    ready: Chain, other: Callable[[Chain], bytes], match: str
) -> None:
    overwrite(ready.publish().attestation, other(ready))
    with pytest.raises(PublicationRefused, match=match):
        read(ready.gate)


def test_a_release_without_its_attestation_is_not_read(ready: Chain) -> None:
    release = ready.publish()
    release.folder.chmod(0o755)
    release.attestation.unlink()
    with pytest.raises(PublicationRefused, match="attestation of release .* cannot be read"):
        read(ready.gate)


def test_readers_find_the_trusted_keys_beside_the_releases_or_where_the_environment_says(
    ready: Chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready.publish()
    same_rows(read_published(ready.gate.releases, "patients"), FRAME)
    monkeypatch.chdir(ready.gate.releases)
    same_rows(read_published(".", "patients"), FRAME)
    stranger = make_gate(tmp_path / "stranger").key.trusted.places[0]
    monkeypatch.setenv(TRUSTED_VARIABLE, str(stranger))
    with pytest.raises(PublicationRefused, match="not trusted"):
        read_published(ready.gate.releases, "patients")
    monkeypatch.setenv(TRUSTED_VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="no trusted key in .*nowhere"):
        read_published(ready.gate.releases, "patients")


def test_no_table_name_leaves_the_release_folder(ready: Chain) -> None:
    ready.publish()
    for table, partition in (("../releases/patients", None), ("patients/_all", None), ("patients", "../_all")):
        with pytest.raises(InputError, match="nothing was published"):
            read_published(ready.gate.releases, table, partition)


# One file, placed whole or not at all


def test_put_atomic_keeps_the_old_file_when_the_writer_fails(tmp_path: Path) -> None:
    path = put_atomic(tmp_path / "x", b"old")

    def broken(stream: Any) -> None:
        stream.write(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        put_atomic(path, broken)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["x"]
    assert mode(path) == 0o600


def test_put_atomic_replaces_a_link_and_not_what_it_points_to(tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(b"kept")
    (tmp_path / "x").symlink_to("kept")
    put_atomic(tmp_path / "x", b"new")
    assert (tmp_path / "kept").read_bytes() == b"kept"
    assert (tmp_path / "x").read_bytes() == b"new"
    assert not (tmp_path / "x").is_symlink()


def test_a_store_of_nothing_has_no_places(tmp_path: Path) -> None:
    assert list(ReleaseStore(tmp_path / "nowhere").places()) == []
