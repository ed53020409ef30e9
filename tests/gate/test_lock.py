"""The lock of a table and the log of its verdicts: a change stops a run, and too many failures stop a table."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gate_standins import (
    FAILING,
    INPUTS,
    METRICS,
    PASSING,
    PLACE,
    POLICY,
    SETUP,
    chain,
    in_bucket,
    make_gate,
    mode,
    refused,
    result,
    rows,
    signed,
)
from gate_standins import lock as lock_of

from privacy_assets.errors import (
    LockDiffers,
    OutOfDate,
    StoreUnavailable,
    TableStopped,
    advice,
)
from privacy_assets.gate.gate import Gate
from privacy_assets.gate.keys import rotate_key
from privacy_assets.gate.lock import PROPOSED, entries_of
from privacy_assets.gate.statements import ReleaseTarget, SignedRecord, Statement, seal, unseal
from privacy_assets.policy import Limit, Policy
from privacy_assets.tables.table import Table
from tests.stores import new_bucket

DECLARED: dict[str, Any] = {
    **SETUP,
    "subject": "pid",
    "kinds": {"age": "integer"},
    "split": {"train": 0.5, "holdout": 0.5},
    "drop": ["name"],
    "new_values": {"token": "made up"},
    "allowed_values": {"ward": {"values": 2, "digest": "keyed"}},
    "metrics": {
        "dcr": {"n_permutations": 999},
        "membership_inference": {"subgroups": ("ward",), "n_permutations": 999},
        "shadow_membership": {"generator": {"name": "synthpop", "settings": {"min_samples_leaf": 5}}},
    },
}
CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "the subject": ({"subject": None}, "subject: 'pid' -> not set"),
    "a kind": ({"kinds": {"age": "numeric"}}, "kinds 'age': 'integer' -> 'numeric'"),
    "a kind more": ({"kinds": {"age": "integer", "b": "integer"}}, "kinds 'b': not set -> 'integer'"),
    "a share": ({"split": {"train": 0.6, "holdout": 0.4}}, "split 'train': 0.5 -> 0.6"),
    "a dropped column": ({"drop": ["name", "mail"]}, "drop: ['name'] -> ['mail', 'name']"),
    "a generated column": ({"new_values": {}}, "new_values 'token': 'made up' -> not set"),
    "a reason": ({"new_values": {"token": "other"}}, "new_values 'token': 'made up' -> 'other'"),
    "a value of a domain": (
        {"allowed_values": {"ward": {"values": 2, "digest": "k"}}},
        "allowed_values 'ward' 'digest': 'keyed' -> 'k'",
    ),
    "the subgroups": (
        {"metrics": {**DECLARED["metrics"], "membership_inference": {"subgroups": ("sex",)}}},
        "table settings 'membership_inference.subgroups': ['ward'] -> ['sex']",
    ),
    "the attacked generator": (
        {"metrics": {**DECLARED["metrics"], "shadow_membership": {"generator": {"name": "privbayes"}}}},
        "table settings 'shadow_membership.generator' 'name': 'synthpop' -> 'privbayes'",
    ),
    "no subgroups": (
        {"metrics": {**DECLARED["metrics"], "membership_inference": {"subgroups": ()}}},
        "table settings 'membership_inference.subgroups': ['ward'] -> not set",
    ),
    "pooled partitions": ({"shared_subjects": True}, "shared_subjects: not set -> True"),
    "an external table": ({"split": None}, "external: not set -> True"),
}


def start(gate: Gate, setup: Mapping[str, Any] = SETUP, policy: Policy = POLICY) -> None:
    """Check and sign the lock, as the first step of a run does."""
    gate.locks.sign(PLACE.table, gate.locks.check(PLACE.table, policy, setup, new=True))


def stored(gate: Gate) -> dict[str, Any]:
    data = (gate.private / "locks" / "patients.json").read_bytes()
    return dict(unseal(SignedRecord("lock", data), gate.key.trusted).body["entries"])


def proposed(gate: Gate) -> dict[str, Any]:
    return dict(json.loads(gate.locks.file("patients", PROPOSED).read_bytes()))


def judged(gate: Gate, number: int, high: float = PASSING, target: ReleaseTarget = PLACE) -> str:
    """The verdict on one table, as the steps of a run come to it."""
    snapshot, _ = gate.take_snapshot(Table.read(rows(number)), target, INPUTS["train"])
    return gate.attest(snapshot, POLICY, signed(gate, snapshot, result(high)), INPUTS, METRICS, SETUP)[0].verdict


def log(gate: Gate) -> list[str]:
    found = sorted((gate.private / "verdicts" / "patients").iterdir())
    assert [path.name for path in found] == [f"{number:08d}" for number in range(1, len(found) + 1)]
    return [unseal(SignedRecord("verdict", path.read_bytes()), gate.key.trusted).body["status"] for path in found]


# The lock


def test_a_lock_states_what_verdicts_depend_on_and_no_private_value(gate: Gate) -> None:
    start(gate, DECLARED)
    found = stored(gate)
    declared = {"subject", "kinds", "drop", "new_values", "allowed_values", "split", "table settings"}
    assert set(found) == {"policy", "policy digest", "limits", "min_holders", "settings", *declared}
    assert mode(gate.private / "locks" / "patients.json") == 0o600
    assert entries_of(POLICY, DECLARED) == entries_of(POLICY, {**DECLARED, "seed": 7})


@pytest.mark.parametrize(("change", "line"), CHANGES.values(), ids=CHANGES.keys())
def test_a_change_replaces_the_lock_before_the_first_verdict_and_stops_a_run_later(
    gate: Gate, change: dict[str, Any], line: str
) -> None:
    changed = {**DECLARED, **change}
    for setup in (changed, DECLARED):
        start(gate, setup)
    gate.locks.record(PLACE, "not_assessable", "c" * 64)
    before = stored(gate)
    with refused(LockDiffers, table="patients") as e:
        start(gate, changed)
    assert line in str(e.value) and any(line in one for one in e.value.differences)
    assert stored(gate) == before
    assert proposed(gate) == entries_of(POLICY, changed)
    start(gate, DECLARED)
    assert proposed(gate) == entries_of(POLICY, changed), "a run that agrees with the lock leaves the proposal"
    gate.locks.sign("patients", proposed(gate), "agreed")
    assert stored(gate) == entries_of(POLICY, changed) and not gate.locks.file("patients", PROPOSED).exists()


@pytest.mark.parametrize("most", [0.05, 0.2], ids=["stricter", "laxer"])
def test_another_policy_is_refused_by_every_step(gate: Gate, most: float) -> None:
    other = Policy((Limit("dcr.privacy_score", at_most=most),), name="other")
    part = chain(gate)
    for step in (
        lambda: start(gate, policy=other),
        lambda: gate.attest(part.snapshot, other, {"dcr": part.score}, INPUTS, METRICS, SETUP),
        lambda: gate.publish(part.sealed, part.taken, PLACE, other, SETUP),
    ):
        with refused(LockDiffers) as differs:
            step()
        assert "policy: 'test' -> 'other'" in differs.value.differences
    assert not gate.store.history(PLACE)
    gate.locks.sign("patients", proposed(gate), "agreed")
    with refused(LockDiffers) as differs:
        start(gate)
    assert "policy: 'other' -> 'test'" in differs.value.differences
    start(gate, policy=other)


def test_attestation_and_publication_need_a_lock_before_the_first_verdict_as_well(gate: Gate) -> None:
    snapshot, _ = gate.take_snapshot(Table.read(rows(1)), PLACE, INPUTS["train"])
    with refused(LockDiffers) as differs:
        gate.attest(snapshot, POLICY, signed(gate, snapshot), INPUTS, METRICS, SETUP)
    assert "policy: not set -> 'test'" in differs.value.differences
    start(gate, {**SETUP, "subject": "pid"})
    with refused(LockDiffers, differences=("subject: 'pid' -> not set",)):
        gate.attest(snapshot, POLICY, signed(gate, snapshot), INPUTS, METRICS, SETUP)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(bytes(data))


def by_a_stranger(path: Path) -> None:
    statement = unseal(SignedRecord("lock", path.read_bytes()), make_gate(path.parents[2]).key.trusted)
    path.write_bytes(seal(statement, make_gate(path.parents[2] / "stranger").key).data)


def of_another_table(path: Path) -> None:
    statement = unseal(SignedRecord("lock", path.read_bytes()), make_gate(path.parents[2]).key.trusted)
    path.write_bytes(seal(replace(statement, target=ReleaseTarget("others")), make_gate(path.parents[2]).key).data)


@pytest.mark.parametrize("change", [flip, Path.unlink, by_a_stranger, of_another_table])
def test_a_lock_that_cannot_be_believed_counts_as_empty(gate: Gate, change: Callable[[Path], object]) -> None:
    part = chain(gate)
    change(gate.private / "locks" / "patients.json")
    for step in (lambda: start(gate), lambda: gate.publish(part.sealed, part.taken, PLACE, POLICY, SETUP)):
        with refused(LockDiffers) as differs:
            step()
        assert "policy: not set -> 'test'" in differs.value.differences


def test_a_lock_that_cannot_be_read_is_refused(gate: Gate) -> None:
    start(gate)
    path = gate.private / "locks" / "patients.json"
    path.unlink()
    path.mkdir()
    with refused(StoreUnavailable, path=str(path), retry=False):
        start(gate)


# The log


def test_each_content_has_one_verdict_over_all_partitions(gate: Gate) -> None:
    start(gate)
    for _ in range(2):
        assert judged(gate, 1) == "pass"
        assert judged(gate, 1, target=ReleaseTarget("patients", "monday")) == "pass"
    assert log(gate) == ["pass"]
    assert judged(gate, 2, high=FAILING) == judged(gate, 2) == judged(gate, 2, high=FAILING) == "fail"
    assert log(gate) == ["pass", "fail"]
    assert judged(gate, 1, high=FAILING) == "fail"
    assert log(gate) == ["pass", "fail", "fail"]
    start(gate, {**SETUP, "seed": 3})


def test_a_failure_counts_once_it_is_scored(gate: Gate) -> None:
    """Otherwise a run that is never attested would not be counted."""
    start(gate)
    snapshot, _ = gate.take_snapshot(Table.read(rows(1)), PLACE, INPUTS["train"])
    for high in (PASSING, FAILING, FAILING):
        gate.sign_result(result(high), snapshot, POLICY.judge({"dcr": result(high)}).outcomes)
    assert log(gate) == ["fail"]


def nights(gate: Gate, verdicts: list[bool]) -> list[str]:
    """Return the outcome of each night, with one new table unless the run is refused."""
    found = []
    for night, passes in enumerate(verdicts):
        try:
            start(gate)
            found.append(judged(gate, night, PASSING if passes else FAILING))
        except TableStopped as error:
            assert "is stopped: 4 of its last" in str(error) and "accept patients --reason" in advice(error)
            found.append("stopped")
    return found


def test_a_generator_that_leaks_more_each_night_is_stopped(gate: Gate) -> None:
    """After twenty nights that pass, the leak is seen in ten of the next twenty: ten tables would be released."""
    drawn = [False, *random.Random(0).sample([True] * 10 + [False] * 9, 19)]
    found = nights(gate, [True] * 20 + drawn)
    fourth = [night for night, verdict in enumerate(found) if verdict == "fail"][3]
    assert found.count("fail") == 4 and fourth < 27
    assert set(found[fourth + 1 :]) == {"stopped"}
    assert found[20:].count("pass") <= 3


def test_three_of_seven_do_not_stop_a_table(gate: Gate) -> None:
    week = [False, False, True, False, True, True, True]
    assert "stopped" not in nights(gate, week * 2)


def test_not_assessable_does_not_count(gate: Gate) -> None:
    start(gate)
    for number in range(3):
        judged(gate, number, high=FAILING)
    for number in range(20):
        gate.locks.record(PLACE, "not_assessable", f"{number:064x}")
    assert judged(gate, 3, high=FAILING) == "fail"
    with refused(TableStopped, table="patients"):
        gate.locks.check_not_stopped("patients")


def test_a_stopped_table_publishes_nothing_until_somebody_accepts_it(gate: Gate) -> None:
    good = chain(gate, 100)
    for number in range(4):
        assert judged(gate, number, high=FAILING) == "fail"
    good = replace(good, sealed=good.restated())
    for act in (good.publish, lambda: judged(gate, 5)):
        with refused(TableStopped, table="patients") as stopped:
            act()
        assert "4 of its last 5 verdicts" in str(stopped.value)
    assert judged(gate, 3, high=FAILING) == "fail", "the step of the last verdict can be repeated"
    assert log(gate) == ["pass", *["fail"] * 4]
    gate.locks.record(PLACE, "accepted", why="the generator was changed")
    assert judged(gate, 3, high=FAILING) == "fail", "the same rows count no second time"
    assert nights(gate, [True]) == ["fail"], "rows that failed stay failed"
    assert good.publish()
    assert [judged(gate, 10 + number, high=FAILING) for number in range(4)] == ["fail"] * 4
    with refused(TableStopped):
        gate.locks.check_not_stopped("patients")


LOG: dict[str, Callable[[Path], object]] = {
    "changed": lambda folder: flip(folder / "00000002"),
    "missing": lambda folder: (folder / "00000002").unlink(),
    "empty": lambda folder: (folder / "00000002").write_bytes(b""),
    "unsigned": lambda folder: (folder / "00000002").write_bytes(b'{"status": "pass"}'),
    "another entry": lambda folder: (folder / "00000002").write_bytes((folder / "00000001").read_bytes()),
    "beyond a gap": lambda folder: (folder / "00000002").rename(folder / "00000007"),
    "unreadable": lambda folder: (folder / "00000008").mkdir(),
    "a file": lambda folder: (shutil.rmtree(folder), folder.write_bytes(b"")),
    "the largest number": lambda folder: (folder / "99999999").write_bytes(b"{}"),
    "a short number": lambda folder: (folder / "2").write_bytes((folder / "00000002").read_bytes()),
    "a long number": lambda folder: (folder / "000000004").write_bytes((folder / "00000003").read_bytes()),
    "zero": lambda folder: (folder / "00000000").write_bytes((folder / "00000001").read_bytes()),
    "a stray file": lambda folder: (folder / "notes.txt").write_bytes(b"seen"),
}


@pytest.mark.parametrize("change", LOG.values(), ids=LOG.keys())
def test_a_log_that_is_not_whole_is_refused(gate: Gate, change: Callable[[Path], object]) -> None:
    part = chain(gate, 1)
    judged(gate, 2), judged(gate, 3)
    folder = gate.private / "verdicts" / "patients"
    change(folder)
    snapshot, _ = gate.take_snapshot(Table.read(rows(9)), PLACE, INPUTS["train"])
    for step in (
        lambda: start(gate),
        lambda: judged(gate, 4),
        part.publish,
        lambda: gate.sign_result(result(FAILING), snapshot, POLICY.judge({"dcr": result(FAILING)}).outcomes),
    ):
        with refused((StoreUnavailable, TableStopped)):
            step()
    if folder.is_dir() and not (folder / "00000008").is_dir():
        gate.locks.record(PLACE, "accepted", why="a disk was lost")
        start(gate)
        assert judged(gate, 4) == "pass"


def test_verdicts_of_other_tables_do_not_count(gate: Gate) -> None:
    for number in range(4):
        chain(gate, number, target=ReleaseTarget("others"), high=FAILING)
    start(gate)
    assert judged(gate, 1) == "pass"
    entry = gate.private / "verdicts" / "others" / "00000001"
    (gate.private / "verdicts" / "patients" / "00000002").write_bytes(entry.read_bytes())
    with refused(TableStopped, table="patients"):
        start(gate)


def test_verdicts_outlive_the_rotation_of_keys(gate: Gate, tmp_path: Path) -> None:
    start(gate)
    judged(gate, 1)
    assert gate.key.path is not None
    rotate_key(gate.key.path, tmp_path / "trusted_keys")
    start(make_gate(tmp_path))
    assert judged(make_gate(tmp_path), 2) == "pass"
    assert log(gate) == ["pass", "pass"]


@pytest.mark.parametrize("where", ["disk", pytest.param("objects", marks=pytest.mark.slow)])
def test_verdicts_that_come_at_the_same_time_are_all_recorded(
    gate: Gate, where: str, request: pytest.FixtureRequest
) -> None:
    if where == "objects":
        request.getfixturevalue("store")
        gate = in_bucket(gate, new_bucket())
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda number: gate.locks.record(PLACE, "pass", f"{number % 6:064x}"), range(12)))
    assert len(gate.locks._verdicts("patients")[1]) == 6
    assert gate.locks._verdicts("patients")[0] in range(6, 13)
    lock_of(gate)
    assert gate.locks.difference("patients", entries_of(POLICY, SETUP)) == []


# Records that were replaced


def test_an_older_verdict_is_refused(gate: Gate) -> None:
    first, second = chain(gate, 1), chain(gate, 2)
    with refused(OutOfDate, redo=("attest",)):
        gate.publish(first.sealed, first.taken, PLACE, POLICY, SETUP)
    other = chain(gate, 3, target=ReleaseTarget("patients", "monday"))
    assert gate.publish(second.sealed, second.taken, PLACE, POLICY, SETUP)
    assert gate.publish(other.sealed, other.taken, other.target, POLICY, SETUP)
    (gate.private / "latest" / "patients" / "_all" / "attestation").unlink()
    with refused(OutOfDate, redo=("attest",)):
        gate.publish(second.sealed, second.taken, PLACE, POLICY, SETUP)


def test_an_older_split_is_refused_and_the_same_one_is_not(gate: Gate) -> None:
    first = gate.sign_split(PLACE, "train", "t", "t file", SETUP)
    assert gate.sign_split(PLACE, "train", "t", "t file", SETUP) == first
    gate.sign_split(PLACE, "holdout", "h", "h file", SETUP)
    gate.sign_split(ReleaseTarget("patients", "monday"), "train", "m", "m file", SETUP)
    gate.check_split(first, PLACE, "train", "t file", SETUP)
    gate.sign_split(PLACE, "train", "later", "later file", SETUP)
    with refused(OutOfDate, redo=("split", "prepare", "score", "attest")):
        gate.check_split(first, PLACE, "train", "t file", SETUP)


def test_a_statement_of_another_kind_is_no_verdict(gate: Gate) -> None:
    start(gate)
    judged(gate, 1)
    statement = Statement("failure", PLACE, "0" * 64, {"status": "accepted", "content": "", "number": 2})
    (gate.private / "verdicts" / "patients" / "00000002").write_bytes(seal(statement, gate.key).data)
    with refused(TableStopped, table="patients"):
        start(gate)
