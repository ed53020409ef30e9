"""The memory of failed verdicts: a failure is final for the same rows and for limits that are at
least as strict.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from gate_standins import (
    FAILING,
    FRAME,
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
    result,
    sign_settings,
    tree,
)

from privacy_assets.errors import FailedBefore, TableSuspended
from privacy_assets.gate.envelope import Payload, ReleaseTarget, SignedFile
from privacy_assets.gate.gate import Gate
from privacy_assets.gate.keeper import Keeper
from privacy_assets.gate.keys import rotate_key
from privacy_assets.gate.snapshot import Snapshot
from privacy_assets.policy import Limit, Policy
from privacy_assets.stats.estimates import Estimate
from privacy_assets.tables.table import Table


def policy(**limit: Any) -> Policy:
    return Policy((Limit("dcr.privacy_score", **limit),))


def remember(
    gate: Gate, under: Policy = POLICY, target: ReleaseTarget = PLACE, **estimate: Any
) -> Snapshot:
    """Evaluate the small table under policy ``under``; return its snapshot."""
    shown = {"value": 0.2, "low": 0.15, "high": 0.3, "n": 1000, "subjects": 1000, **estimate}
    measured = result(estimates=(Estimate("privacy_score", **shown),))
    snapshot, _ = files_of(gate).take_snapshot(Table.read(FRAME), target, "t")
    files_of(gate).sign_result(measured, snapshot, under.judge({"dcr": measured}).outcomes)
    return snapshot


def hit(gate: Gate, rows: Snapshot, under: Policy = POLICY, target: ReleaseTarget = PLACE) -> bool:
    return bool(gate.log.state(target.table).failures(under, rows, target.part))


def failed(gate: Gate) -> list[Any]:
    """The failed limits in the log."""
    return list(gate.log.state("patients").failed)


@pytest.mark.parametrize(
    "estimate",
    [
        {"high": PASSING, "low": 0.0},
        {"subjects": 5, "low": 0.0},
        {"value": float("nan")},
        {"low": 0.0},
    ],
    ids=["pass", "too few rows", "not measurable", "undecided"],
)
def test_only_a_failure_is_remembered(gate: Gate, estimate: dict[str, Any]) -> None:
    assert not hit(gate, remember(gate, **estimate))
    assert not failed(gate)


def test_the_score_step_remembers_at_once_and_before_it_signs(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure is remembered even if its result never arrives because the process was killed."""

    def cut(payload: Payload, key: Any) -> SignedFile:
        raise OSError("cut") if payload.kind == "result" else AssertionError(payload.kind)

    snapshot, _ = files_of(gate).take_snapshot(Table.read(FRAME), PLACE, "t")
    measured = result(FAILING)
    with monkeypatch.context() as patched, pytest.raises(OSError, match="cut"):
        patched.setattr("privacy_assets.gate.signed_files.sign_payload", cut)
        files_of(gate).sign_result(measured, snapshot, POLICY.judge({"dcr": measured}).outcomes)
    assert hit(gate, snapshot)


def test_the_attestation_remembers_what_no_score_step_did(gate: Gate) -> None:
    """A limit that was added after the score ran is first evaluated by the attestation."""
    first = chain(gate, policy=policy(at_most=0.3), high=FAILING)
    assert not hit(gate, first.snapshot)
    sign_settings(gate)
    publisher_of(gate).attest(first.snapshot, POLICY, {"dcr": first.score}, INPUTS, METRICS, SETUP)
    assert hit(gate, first.snapshot)


def test_a_second_look_that_passes_is_attested_as_a_failure_and_blocked(gate: Gate) -> None:
    """With another seed or split the same rows pass a limit that was loosened in between. They
    failed before.
    """
    chain(gate, high=FAILING)
    assert chain(gate, policy=policy(at_most=0.5), high=FAILING).publish()  # the owner's choice
    again = chain(gate, high=PASSING)
    assert again.attestation.verdict == "fail"
    assert set(again.attestation.limits.values()) == {"pass"}
    with blocked(FailedBefore, failures=("dcr.privacy_score at most 0.1",)):
        again.publish()


def test_rows_that_fail_after_their_attestation_are_not_published(gate: Gate) -> None:
    """Another run evaluates the same rows between attestation and publication."""
    attested = chain(gate, frame=FRAME, high=PASSING)
    assert hit(gate, remember(gate))
    with blocked(FailedBefore, failures=("dcr.privacy_score at most 0.1",)):
        attested.publish()


def test_bypass_63_a_cell_is_changed_within_the_group_that_is_published(gate: Gate) -> None:
    """The supplier tries again with other rows, from which the threshold rule makes the same
    ones.
    """
    published = Table.read(FRAME)
    tries = []
    for age in (41, 42, 43):
        brought = Table.read(FRAME.assign(age=[age, *FRAME["age"][1:]]))
        snapshot, _ = files_of(gate).take_snapshot(published, PLACE, "t", before=brought)
        tries.append(snapshot)
    assert len({snapshot.content for snapshot in tries}) == 3
    measured = result(FAILING)
    files_of(gate).sign_result(measured, tries[0], POLICY.judge({"dcr": measured}).outcomes)
    assert all(hit(gate, snapshot) for snapshot in tries)
    others, _ = files_of(gate).take_snapshot(Table.read(FRAME.assign(visits=[0, 3, 7])), PLACE, "t")
    assert not hit(gate, others)
    same_before, _ = files_of(gate).take_snapshot(
        Table.read(FRAME.assign(visits=[0, 3, 7])), PLACE, "t", before=published
    )
    remember(gate)
    assert hit(gate, same_before), "the rule of another split makes other rows of the same ones"


# Which tables are the same

SAME: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "another order of rows and columns": lambda frame: frame.iloc[::-1][sorted(frame.columns)],
    "through CSV": lambda frame: pd.read_csv(io.StringIO(frame.to_csv(index=False))),
    "through CSV as text": lambda frame: pd.read_csv(
        io.StringIO(frame.to_csv(index=False)), dtype=str
    ),
    "through JSON": lambda frame: pd.read_json(
        io.StringIO(frame.to_json(orient="records", date_format="iso"))
    ),
    "other dtypes": lambda frame: frame.astype(
        {"age": "float64", "visits": "category", "plan": "category", "ward": object, "active": int}
    ),
}
OTHER: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "a row twice": lambda frame: frame.iloc[[0, 1, 2, 2]],
    "values exchanged": lambda frame: frame.assign(visits=[0, 3, 7]),
    "a value missing": lambda frame: frame.assign(visits=[3, 0, None]),
    "a column less": lambda frame: frame.drop(columns="plan"),
    "a column of another name": lambda frame: frame.rename(columns={"plan": "tariff"}),
}


@pytest.mark.parametrize("change", [*SAME, *OTHER])
def test_the_same_rows_in_another_form_failed_too_and_others_did_not(
    gate: Gate, change: str
) -> None:
    remember(gate)
    snapshot, _ = files_of(gate).take_snapshot(
        Table.read({**SAME, **OTHER}[change](FRAME)), PLACE, "other split"
    )
    assert hit(gate, snapshot) is (change in SAME)


def test_another_table_partition_or_statistic_did_not_fail(gate: Gate) -> None:
    rows = remember(gate)
    for other in (
        ReleaseTarget("others"),
        ReleaseTarget("patients", "2024-01-01"),
        ReleaseTarget("patients", "_all"),
    ):
        assert not hit(gate, rows, target=other)
        assert remember(gate, target=other).content == rows.content
        assert hit(gate, rows, target=other)
    statistic = Limit("dcr.member_excess", at_most=0.0)
    assert not hit(gate, rows, Policy((statistic,)))
    assert hit(gate, rows, Policy((statistic, *POLICY.limits)))


def test_the_rows_are_remembered_by_a_keyed_fingerprint(gate: Gate) -> None:
    """Another split key gives another fingerprint, so the names of the records do not confirm
    guessed tables.
    """
    table = Table.read(FRAME)
    other_files = replace(files_of(gate), content_key=b"another")
    other, _ = other_files.take_snapshot(table, PLACE, "t")
    assert remember(gate).content != other.content


# Limits that the failure applies to

UP, LOW, VALUE = (
    {"at_most": 0.1},
    {"at_most": 0.1, "bound": "proven"},
    {"at_most": 0.1, "bound": "value"},
)
COUNTS: list[tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]] = [
    # the failed limit, the limits that the failure applies to, and those that it does not
    (
        UP,
        [
            UP,
            {"at_most": 0.05},
            {"at_most": 0.0},
            {**UP, "min_subjects": 1, "advice": "other words", "source": "else"},
        ],
        [{"at_most": 0.11}, LOW, VALUE, {"at_least": 0.1}, {"at_least": 0.0}],
    ),
    (LOW, [LOW, UP, VALUE, {"at_most": 0.05}], [{"at_most": 0.2}]),
    (VALUE, [VALUE, UP], [LOW]),
]


@pytest.mark.parametrize(
    ("failed", "counts", "not_counts"), COUNTS, ids=["conservative", "proven", "value"]
)
def test_a_failure_counts_against_limits_as_strict(
    gate: Gate, failed: Any, counts: Any, not_counts: Any
) -> None:
    rows = remember(gate, policy(**failed))
    assert [limit for limit in [*counts, *not_counts] if hit(gate, rows, policy(**limit))] == counts


def test_a_score_that_must_be_high_is_stricter_when_it_is_higher(gate: Gate) -> None:
    rows = remember(
        gate, policy(at_least=0.9), direction="lower_is_riskier", value=0.5, low=0.4, high=0.6
    )
    assert [now for now in (0.8, 0.9, 0.95) if hit(gate, rows, policy(at_least=now))] == [0.9, 0.95]
    assert not hit(gate, rows, policy(at_most=0.1))


# Records


def test_every_failed_limit_is_recorded_once_and_privately_without_a_value(gate: Gate) -> None:
    rows = remember(gate)
    (limit,) = failed(gate)
    assert limit.keys() == {
        "content",
        "sha256",
        "part",
        "statistic",
        "bound",
        "at_most",
        "at_least",
        "reason",
    }
    assert (limit["content"], limit["sha256"]) == (rows.content, rows.sha256)
    folder = gate.private / "log" / "patients"
    assert {mode(path) for path in folder.iterdir()} == {0o600} and mode(folder) == 0o700
    (text,) = gate.log.state("patients").failures(POLICY, rows, PLACE.part)
    assert text == "dcr.privacy_score at most 0.1"
    before = tree(folder)
    remember(gate)
    assert tree(folder) == before
    remember(gate, policy(at_most=0.12))
    assert len(failed(gate)) == 2


def test_failures_outlive_the_rotation_of_keys_and_the_loss_of_trust(
    gate: Gate, tmp_path: Path
) -> None:
    """Entries of a removed key stop the table. After the acceptance they count, because they make
    the gate stricter.
    """
    rows, old = remember(gate), gate.key.signer.public_key.keyid
    assert gate.key.path is not None
    rotate_key(gate.key.path, tmp_path / "trusted_keys")
    assert hit(make_gate(tmp_path), rows)
    (tmp_path / "trusted_keys" / f"{old[:16]}.pem").unlink()
    with blocked(TableSuspended):
        hit(make_gate(tmp_path), rows)
    Keeper(make_gate(tmp_path)).accept("patients", "the key was lost")
    assert hit(make_gate(tmp_path), rows)
    (gate.private / "log" / "patients" / "state").unlink()
    assert hit(make_gate(tmp_path), rows)
