"""The accepted settings of a table: a change stops a run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gate_standins import (
    INPUTS,
    METRICS,
    PASSING,
    PLACE,
    POLICY,
    SETUP,
    blocked,
    chain,
    files_of,
    make_gate,
    mode,
    publisher_of,
    record,
    result,
    rows,
    signed,
)

from privacy_assets.errors import (
    NotTrusted,
    OutOfDate,
    SettingsDiffer,
    StoreUnavailable,
)
from privacy_assets.gate.accepted_settings import PROPOSED, entries_of
from privacy_assets.gate.envelope import (
    ReleaseTarget,
    SignedFile,
    sign_payload,
    verified_payload,
)
from privacy_assets.gate.gate import Gate
from privacy_assets.policy import Limit, Policy
from privacy_assets.tables.table import Table

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
        "shadow_membership": {
            "generator": {"name": "synthpop", "settings": {"min_samples_leaf": 5}}
        },
    },
}
CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "the subject": ({"subject": None}, "subject: 'pid' -> not set"),
    "a kind": ({"kinds": {"age": "numeric"}}, "kinds 'age': 'integer' -> 'numeric'"),
    "a kind more": (
        {"kinds": {"age": "integer", "b": "integer"}},
        "kinds 'b': not set -> 'integer'",
    ),
    "a share": ({"split": {"train": 0.6, "holdout": 0.4}}, "split 'train': 0.5 -> 0.6"),
    "a dropped column": ({"drop": ["name", "mail"]}, "drop: added ['mail']"),
    "a generated column": ({"new_values": {}}, "new_values 'token': 'made up' -> not set"),
    "a reason": ({"new_values": {"token": "other"}}, "new_values 'token': 'made up' -> 'other'"),
    "a value of a domain": (
        {"allowed_values": {"ward": {"values": 2, "digest": "k"}}},
        "allowed_values 'ward' 'digest': 'keyed' -> 'k'",
    ),
    "the subgroups": (
        {"metrics": {**DECLARED["metrics"], "membership_inference": {"subgroups": ("sex",)}}},
        "table settings 'membership_inference.subgroups': added ['sex'], removed ['ward']",
    ),
    "the attacked generator": (
        {
            "metrics": {
                **DECLARED["metrics"],
                "shadow_membership": {"generator": {"name": "privbayes"}},
            }
        },
        "table settings 'shadow_membership.generator' 'name': 'synthpop' -> 'privbayes'",
    ),
    "no subgroups": (
        {"metrics": {**DECLARED["metrics"], "membership_inference": {"subgroups": ()}}},
        "table settings 'membership_inference.subgroups': ['ward'] -> not set",
    ),
    "snapshots": ({"snapshots": True}, "snapshots: not set -> True"),
    "pooled partitions": ({"shared_subjects": True}, "shared_subjects: not set -> True"),
    "an external table": ({"split": None}, "external: not set -> True"),
}


def start(gate: Gate, setup: Mapping[str, Any] = SETUP, policy: Policy = POLICY) -> None:
    """Check and sign the settings, as the first step of a run does."""
    gate.accepted.sign(PLACE.table, gate.accepted.check(PLACE.table, policy, setup, new=True))


def stored(gate: Gate) -> dict[str, Any]:
    data = (gate.private / "accepted" / "patients.json").read_bytes()
    return dict(
        verified_payload(SignedFile("accepted_settings", data), gate.key.trusted).body["entries"]
    )


def proposed(gate: Gate) -> dict[str, Any]:
    return dict(json.loads(gate.accepted.file("patients", PROPOSED).read_bytes()))


def judged(gate: Gate, number: int, high: float = PASSING, target: ReleaseTarget = PLACE) -> str:
    """The verdict on one table, as the steps of a run come to it."""
    snapshot, _ = files_of(gate).take_snapshot(Table.read(rows(number)), target, INPUTS["train"])
    return (
        publisher_of(gate)
        .attest(snapshot, POLICY, signed(gate, snapshot, result(high)), INPUTS, METRICS, SETUP)[0]
        .verdict
    )


# Accepted settings


def test_a_lock_states_what_verdicts_depend_on_and_no_private_value(gate: Gate) -> None:
    start(gate, DECLARED)
    found = stored(gate)
    declared = {
        "subject",
        "kinds",
        "drop",
        "new_values",
        "allowed_values",
        "split",
        "table settings",
    }
    assert set(found) == {"policy", "policy digest", "limits", "min_holders", "settings", *declared}
    assert mode(gate.private / "accepted" / "patients.json") == 0o600
    assert entries_of(POLICY, DECLARED) == entries_of(POLICY, {**DECLARED, "seed": 7})


@pytest.mark.parametrize(("change", "line"), CHANGES.values(), ids=CHANGES.keys())
def test_a_change_replaces_the_lock_before_the_first_verdict_and_stops_a_run_later(
    gate: Gate, change: dict[str, Any], line: str
) -> None:
    changed = {**DECLARED, **change}
    for setup in (changed, DECLARED):
        start(gate, setup)
    record(gate, "undecided", "c" * 64)
    before = stored(gate)
    with blocked(SettingsDiffer, table="patients") as e:
        start(gate, changed)
    assert line in str(e.value) and any(line in one for one in e.value.differences)
    assert stored(gate) == before
    assert proposed(gate) == entries_of(POLICY, changed)
    start(gate, DECLARED)
    assert proposed(gate) == entries_of(POLICY, changed), (
        "a run that agrees with the accepted settings leaves the proposal"
    )
    gate.accepted.sign("patients", proposed(gate), "agreed")
    assert (
        stored(gate) == entries_of(POLICY, changed)
        and not gate.accepted.file("patients", PROPOSED).exists()
    )


@pytest.mark.parametrize("most", [0.05, 0.2], ids=["stricter", "laxer"])
def test_another_policy_is_blocked_by_every_step(gate: Gate, most: float) -> None:
    other = Policy((Limit("dcr.privacy_score", at_most=most),), name="other")
    part = chain(gate)
    for step in (
        lambda: start(gate, policy=other),
        lambda: publisher_of(gate).attest(
            part.snapshot, other, {"dcr": part.score}, INPUTS, METRICS, SETUP
        ),
        lambda: publisher_of(gate).publish(part.signed_file, part.taken, PLACE, other, SETUP),
    ):
        with blocked(SettingsDiffer) as differs:
            step()
        assert "policy: 'test' -> 'other'" in differs.value.differences
    assert not gate.store.history(PLACE)
    gate.accepted.sign("patients", proposed(gate), "agreed")
    with blocked(SettingsDiffer) as differs:
        start(gate)
    assert "policy: 'other' -> 'test'" in differs.value.differences
    start(gate, policy=other)


def test_attestation_and_publication_need_a_lock_before_the_first_verdict_as_well(
    gate: Gate,
) -> None:
    snapshot, _ = files_of(gate).take_snapshot(Table.read(rows(1)), PLACE, INPUTS["train"])
    with blocked(SettingsDiffer) as differs:
        publisher_of(gate).attest(snapshot, POLICY, signed(gate, snapshot), INPUTS, METRICS, SETUP)
    assert "policy: not set -> 'test'" in differs.value.differences
    start(gate, {**SETUP, "subject": "pid"})
    with blocked(SettingsDiffer, differences=("subject: 'pid' -> not set",)):
        publisher_of(gate).attest(snapshot, POLICY, signed(gate, snapshot), INPUTS, METRICS, SETUP)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(bytes(data))


def by_a_stranger(path: Path) -> None:
    payload = verified_payload(
        SignedFile("accepted_settings", path.read_bytes()), make_gate(path.parents[2]).key.trusted
    )
    path.write_bytes(sign_payload(payload, make_gate(path.parents[2] / "stranger").key).data)


def of_another_table(path: Path) -> None:
    payload = verified_payload(
        SignedFile("accepted_settings", path.read_bytes()), make_gate(path.parents[2]).key.trusted
    )
    path.write_bytes(
        sign_payload(
            replace(payload, target=ReleaseTarget("others")), make_gate(path.parents[2]).key
        ).data
    )


@pytest.mark.parametrize("change", [flip, Path.unlink, by_a_stranger, of_another_table])
def test_a_lock_that_cannot_be_believed_counts_as_empty(
    gate: Gate, change: Callable[[Path], object]
) -> None:
    part = chain(gate)
    change(gate.private / "accepted" / "patients.json")
    for step in (
        lambda: start(gate),
        lambda: publisher_of(gate).publish(part.signed_file, part.taken, PLACE, POLICY, SETUP),
    ):
        with blocked(SettingsDiffer) as differs:
            step()
        assert "policy: not set -> 'test'" in differs.value.differences


def test_a_lock_that_cannot_be_read_is_blocked(gate: Gate) -> None:
    start(gate)
    path = gate.private / "accepted" / "patients.json"
    path.unlink()
    path.mkdir()
    with blocked(StoreUnavailable, path=str(path), retry=False):
        start(gate)


# Records that were replaced


def test_an_older_verdict_is_blocked(gate: Gate) -> None:
    first, second = chain(gate, 1), chain(gate, 2)
    with blocked(OutOfDate, record="attestation"):
        publisher_of(gate).publish(first.signed_file, first.taken, PLACE, POLICY, SETUP)
    other = chain(gate, 3, target=ReleaseTarget("patients", "monday"))
    assert publisher_of(gate).publish(second.signed_file, second.taken, PLACE, POLICY, SETUP)
    assert publisher_of(gate).publish(other.signed_file, other.taken, other.target, POLICY, SETUP)
    (gate.private / "latest" / "patients" / "_all" / "attestation").unlink()
    with blocked(OutOfDate, record="attestation"):
        publisher_of(gate).publish(second.signed_file, second.taken, PLACE, POLICY, SETUP)


def test_an_older_split_is_blocked_and_the_same_one_is_not(gate: Gate) -> None:
    first = files_of(gate).sign_table(PLACE, "train", "t", "t file", SETUP)
    assert files_of(gate).sign_table(PLACE, "train", "t", "t file", SETUP) == first
    files_of(gate).sign_table(PLACE, "holdout", "h", "h file", SETUP)
    files_of(gate).sign_table(ReleaseTarget("patients", "monday"), "train", "m", "m file", SETUP)
    files_of(gate).check_table(first, PLACE, "train", "t file", SETUP)
    files_of(gate).sign_table(PLACE, "train", "later", "later file", SETUP)
    with blocked(OutOfDate, record="split"):
        files_of(gate).check_table(first, PLACE, "train", "t file", SETUP)


def test_a_source_that_is_not_trusted_is_read_again(gate: Gate) -> None:
    files = files_of(gate)
    first = files.sign_table(PLACE, "source", "s", "s file", SETUP)
    changed = SignedFile("split", first.data.replace(b'"sig"', b'"gis"'))
    for signed_file in (changed, SignedFile("split", b""), SignedFile("result", first.data)):
        with blocked((NotTrusted, OutOfDate), record="source"):
            files.check_table(signed_file, PLACE, "source", "s file", SETUP)
    files.sign_table(PLACE, "source", "later", "later file", SETUP)
    with blocked(OutOfDate, record="source"):
        files.check_table(first, PLACE, "source", "s file", SETUP)


def test_changes_of_lists_are_shown_in_whole_up_to_a_thousand_values(gate: Gate) -> None:
    values = [f"value {number:04}" for number in range(1_200)]
    start(gate, {**DECLARED, "missing": {"ward": values[:100]}})
    record(gate, "undecided", "c" * 64)

    def change_to(listed: list[Any]) -> str:
        with blocked(SettingsDiffer) as differs:
            start(gate, {**DECLARED, "missing": {"ward": listed}})
        (line,) = differs.value.differences
        return str(line)

    assert change_to(values[1:100]) == "missing 'ward': removed ['value 0000']"
    assert (
        change_to(values[1:1000])
        == f"missing 'ward': added {values[100:1000]!r}, removed ['value 0000']"
    )
    assert (
        change_to(values[99::-1])
        == "missing 'ward': the order or the repetition of the values changes"
    )
    many = change_to(values)
    assert many.startswith("missing 'ward': 1,100 values added and 0 removed (SHA-256 ")
    assert str(gate.accepted.file("patients", ".proposed.json")) in many
    assert many != change_to([*values[:-1], "another"])


def test_one_and_true_are_different_settings(gate: Gate) -> None:
    start(gate, {**DECLARED, "missing": {"ward": [1]}})
    record(gate, "undecided", "c" * 64)
    with blocked(SettingsDiffer, differences=("missing 'ward': added [True], removed [1]",)):
        start(gate, {**DECLARED, "missing": {"ward": [True]}})


def test_a_proposal_ends_when_a_run_with_the_lock_in_force_is_published(gate: Gate) -> None:
    chain(gate, 1).publish()
    later = chain(gate, 2)
    with blocked(SettingsDiffer):
        start(gate, {**SETUP, "subject": "another"})
    assert gate.accepted.file("patients", ".proposed.json").exists()
    later.publish()
    assert not gate.accepted.file("patients", ".proposed.json").exists()
