"""Publication in its simple form: only a passing verdict on these very bytes is published."""

from __future__ import annotations

import dataclasses
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from privacy_assets.engine.metrics.dcr import Dcr
from privacy_assets.engine.policy import Limit, Policy
from privacy_assets.engine.results import Figure, MetricResult
from privacy_assets.engine.version import ENGINE_VERSION
from privacy_assets.errors import InputError, PublicationRefused
from privacy_assets.gate.atomic import put_atomic
from privacy_assets.gate.attestation import Attestation, attest
from privacy_assets.gate.releases import ReleaseStore, read_published
from privacy_assets.gate.snapshot import Snapshot, read_snapshot, write_snapshot

POLICY = Policy((Limit("dcr.privacy_score", at_most=0.1),), name="test")
FRAME = pd.DataFrame(
    {
        "age": pd.array([31, None, 58], dtype="Int64"),
        "dose": [0.5, np.nan, 2.25],
        "plan": ["a", None, 'it\'s "quoted"'],
        "seen": pd.to_datetime(["2024-01-01", None, "2024-02-03"]),
        "active": [True, False, True],
    }
)


INPUTS = {"train": "t", "holdout": "h", "synthetic": "s"}
DCR = Dcr()


def result(high: float = 0.05, *, version: str = ENGINE_VERSION, **inputs: str) -> MetricResult:
    figure = Figure("privacy_score", 0.01, -0.02, high, n=1000, subjects=1000)
    settings = json.loads(json.dumps(DCR.settings()))
    return MetricResult("dcr", (figure,), settings=settings, inputs={**INPUTS, **inputs}, engine_version=version)


def stated(snapshot: Snapshot, measured: MetricResult) -> Attestation:
    return attest("patients", None, snapshot, POLICY, {"dcr": measured}, INPUTS, {"dcr": DCR}, 0)


def make(root: Path, high: float = 0.05, frame: pd.DataFrame = FRAME) -> tuple[Attestation, Snapshot]:
    snapshot = write_snapshot(frame, root / "snapshots", "t")
    return stated(snapshot, result(high)), snapshot


def test_a_passing_table_is_published_as_it_was_judged(tmp_path: Path) -> None:
    attestation, snapshot = make(tmp_path)
    release = ReleaseStore(tmp_path / "releases").publish(attestation, snapshot, POLICY)
    assert release.table.read_bytes() == Path(snapshot.path).read_bytes()
    assert Attestation.from_bytes(release.attestation.read_bytes()) == attestation
    pd.testing.assert_frame_equal(read_published(tmp_path / "releases", "patients"), FRAME)
    pd.testing.assert_frame_equal(read_snapshot(snapshot), FRAME)
    assert not list((release.folder.parents[1] / "staging").iterdir())


def test_the_same_table_gives_the_same_snapshot(tmp_path: Path) -> None:
    assert write_snapshot(FRAME, tmp_path, "t") == write_snapshot(FRAME.copy(), tmp_path, "t")


@pytest.mark.parametrize("high", [0.2, float("nan")])
def test_a_broken_or_missing_figure_is_refused_and_the_old_release_stays(tmp_path: Path, high: float) -> None:
    store = ReleaseStore(tmp_path / "releases")
    kept = store.publish(*make(tmp_path), POLICY)
    with pytest.raises(PublicationRefused, match=r"dcr\.privacy_score"):
        store.publish(*make(tmp_path, high, FRAME.iloc[:2]), POLICY)
    assert store.current("patients") == kept
    assert store.history("patients") == [kept]


def test_a_changed_byte_between_judgement_and_publication_is_refused(tmp_path: Path) -> None:
    attestation, snapshot = make(tmp_path)
    data = bytearray(Path(snapshot.path).read_bytes())
    data[len(data) // 2] ^= 1
    Path(snapshot.path).write_bytes(bytes(data))
    with pytest.raises(PublicationRefused, match="changed after it was judged"):
        ReleaseStore(tmp_path / "releases").publish(attestation, snapshot, POLICY)
    with pytest.raises(InputError, match="nothing was published"):
        read_published(tmp_path / "releases", "patients")


def test_a_changed_release_is_not_read(tmp_path: Path) -> None:
    release = ReleaseStore(tmp_path).publish(*make(tmp_path), POLICY)
    release.table.write_bytes(release.table.read_bytes() + b"x")
    with pytest.raises(PublicationRefused, match="does not hold the bytes"):
        read_published(tmp_path, "patients")


def test_another_policy_table_or_verdict_is_refused(tmp_path: Path) -> None:
    attestation, snapshot = make(tmp_path)
    other = make(tmp_path, frame=FRAME.iloc[:1])[1]
    stricter = Policy((Limit("dcr.privacy_score", at_most=0.06),))
    store = ReleaseStore(tmp_path / "releases")
    with pytest.raises(PublicationRefused, match="another policy"):
        store.publish(attestation, snapshot, stricter)
    with pytest.raises(PublicationRefused, match="another synthetic table"):
        store.publish(attestation, other, POLICY)
    failing = make(tmp_path, 0.2)[0]
    with pytest.raises(PublicationRefused):
        store.publish(dataclasses.replace(failing, verdict="pass"), snapshot, POLICY)


@pytest.mark.parametrize("role", ["train", "holdout", "synthetic", "reference"])
def test_results_on_other_tables_are_not_attested(tmp_path: Path, role: str) -> None:
    snapshot = write_snapshot(FRAME, tmp_path, "t")
    with pytest.raises(PublicationRefused, match=f"another {role} table"):
        stated(snapshot, result(**{role: "other"}))


def test_results_that_name_no_tables_or_are_of_another_engine_are_not_attested(tmp_path: Path) -> None:
    snapshot = write_snapshot(FRAME, tmp_path, "t")
    for wrong, word in ((dataclasses.replace(result(), inputs={}), "another"), (result(version="0.0.1"), "engine")):
        with pytest.raises(PublicationRefused, match=word):
            stated(snapshot, wrong)


@pytest.mark.parametrize(
    "change",
    [{"seed": 1}, {"settings": {}}, {"settings": {**DCR.settings(), "permutations": 199}}, {"metric": "other"}],
)
def test_results_of_other_settings_are_not_attested(tmp_path: Path, change: dict[str, Any]) -> None:
    snapshot = write_snapshot(FRAME, tmp_path, "t")
    measured = dataclasses.replace(result(), **change)
    with pytest.raises(PublicationRefused, match="other settings or seed"):
        attest("patients", None, snapshot, POLICY, {measured.metric: measured}, INPUTS, {"dcr": DCR}, 0)


def test_a_synthetic_table_made_from_another_train_is_not_attested(tmp_path: Path) -> None:
    with pytest.raises(PublicationRefused, match="made from another train table"):
        stated(write_snapshot(FRAME, tmp_path, "old"), result())


@pytest.mark.parametrize("change", [lambda path: path.write_bytes(path.read_bytes() + b"x"), Path.unlink])
def test_a_snapshot_whose_file_changed_is_not_read(tmp_path: Path, change: Callable[[Path], object]) -> None:
    snapshot = write_snapshot(FRAME, tmp_path, "t")
    change(Path(snapshot.path))
    with pytest.raises(PublicationRefused, match="materialise it again"):
        read_snapshot(snapshot)


def test_no_partition_shares_the_place_of_a_table_without_partitions(tmp_path: Path) -> None:
    store = ReleaseStore(tmp_path)
    assert len({store.place("t", partition) for partition in (None, "_all", "", "None")}) == 4


@pytest.mark.parametrize("name", ["../outside", "a/b", "..", ".", "with space", "é"])
def test_hostile_names_stay_inside_the_root(tmp_path: Path, name: str) -> None:
    place = ReleaseStore(tmp_path / "root").place(name, name)
    assert place.resolve().is_relative_to((tmp_path / "root").resolve())
    assert len(place.relative_to(tmp_path / "root").parts) == 2


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"format": "other"}', b"\xff"])
def test_unreadable_attestations_refuse(data: bytes) -> None:
    with pytest.raises(PublicationRefused):
        Attestation.from_bytes(data)


def test_put_atomic_keeps_the_old_file_when_the_writer_fails(tmp_path: Path) -> None:
    path = put_atomic(tmp_path / "x", b"old")

    def broken(stream: object) -> None:
        stream.write(b"half")  # type: ignore[attr-defined]
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        put_atomic(path, broken)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["x"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_linked_snapshot_is_refused(tmp_path: Path) -> None:
    attestation, snapshot = make(tmp_path)
    link = tmp_path / "link.parquet"
    link.symlink_to(snapshot.path)
    with pytest.raises(PublicationRefused, match="cannot be read"):
        ReleaseStore(tmp_path / "releases").publish(attestation, dataclasses.replace(snapshot, path=str(link)), POLICY)
