"""The memory of failed verdicts: what failed once stays failed, for the same rows and limits as strict."""

from __future__ import annotations

import io
from collections.abc import Callable
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
    chain,
    make_gate,
    result,
    small_sealed,
    tree,
)

from privacy_assets.errors import PublicationRefused
from privacy_assets.gate.gate import Gate
from privacy_assets.gate.keys import rotate_key
from privacy_assets.gate.statements import Place, Sealed, Statement, seal, unseal
from privacy_assets.policy import Policy
from privacy_assets.stats.limits import Limit
from privacy_assets.stats.results import Estimate
from privacy_assets.version import ENGINE_VERSION


def policy(**limit: Any) -> Policy:
    return Policy((Limit("dcr.privacy_score", **limit),))


def remember(
    gate: Gate, under: Policy = POLICY, frame: pd.DataFrame = FRAME, place: Place = PLACE, **estimate: Any
) -> str:
    """Let ``frame`` be judged by ``under``; returns the fingerprint of its rows."""
    shown = {"value": 0.2, "low": 0.15, "high": 0.3, "n": 1000, "subjects": 1000, **estimate}
    measured = result(estimates=(Estimate("privacy_score", **shown),))
    snapshot, _ = gate.take_snapshot(FRAME, place, "t")
    gate.sign_result(measured, snapshot, under.judge({"dcr": measured}).outcomes)
    return snapshot.content


def hit(gate: Gate, content: str, under: Policy = POLICY, place: Place = PLACE) -> bool:
    return bool(gate.failures.against(under, place, content))


def only_record(gate: Gate) -> Path:
    (path,) = (gate.private / "failures").rglob("*.json")
    return path


def test_a_failure_is_remembered_with_its_reason(gate: Gate) -> None:
    (text,) = gate.failures.against(POLICY, PLACE, remember(gate))
    assert text == f"dcr.privacy_score: 0.3105 is above the limit 0.1, engine {ENGINE_VERSION}"


@pytest.mark.parametrize(
    "estimate",
    [
        {"high": PASSING, "low": 0.0},
        {"subjects": 5, "low": 0.0},
        {"value": float("nan")},
        {"low": 0.0, "minimum_detectable_effect": 0.5},
    ],
    ids=["pass", "too few rows", "not measurable", "underpowered"],
)
def test_only_a_failure_is_remembered(gate: Gate, estimate: dict[str, Any]) -> None:
    content = remember(gate, **estimate)
    assert not hit(gate, content)
    assert not list((gate.private / "failures").rglob("*.json"))


def test_the_score_step_remembers_at_once_and_before_it_signs(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure whose result never arrives, since the process was killed, is remembered all the same."""

    def cut(statement: Statement, key: Any) -> Sealed:
        raise OSError("cut") if statement.kind == "result" else AssertionError(statement.kind)

    snapshot, _ = gate.take_snapshot(FRAME, PLACE, "t")
    measured = result(FAILING)
    with monkeypatch.context() as patched, pytest.raises(OSError, match="cut"):
        patched.setattr("privacy_assets.gate.gate.seal", cut)
        gate.sign_result(measured, snapshot, POLICY.judge({"dcr": measured}).outcomes)
    assert hit(gate, snapshot.content)


def test_the_attestation_remembers_what_no_score_step_did(gate: Gate) -> None:
    """A limit that was added after the score ran is judged by the attestation for the first time."""
    first = chain(gate, policy=policy(at_most=0.3), high=FAILING)
    assert not hit(gate, first.snapshot.content)
    results = {"dcr": gate.result(first.score, first.snapshot)}
    gate.attest(first.snapshot, POLICY, results, INPUTS, METRICS, SETUP)
    assert hit(gate, first.snapshot.content)


def test_a_second_look_that_passes_is_attested_as_a_failure_and_refused(gate: Gate) -> None:
    """Another seed or split finds the same rows harmless: they failed before."""
    chain(gate, high=FAILING)
    again = chain(gate, high=PASSING)
    assert again.stated.verdict == "fail"
    assert again.stated.judge(POLICY).verdict == "pass"
    with pytest.raises(PublicationRefused, match="failed before.*above the limit"):
        again.publish()


# What is the same table


def csv(frame: pd.DataFrame) -> pd.DataFrame:
    return pd.read_csv(io.StringIO(frame.to_csv(index=False)))


SAME: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "again": lambda frame: frame.copy(),
    "other order of rows": lambda frame: frame.iloc[::-1],
    "other index": lambda frame: frame.set_index(pd.Index([7, 7, 9])),
    "other order of columns": lambda frame: frame[sorted(frame.columns)],
    "through CSV": csv,
    "through CSV as text": lambda frame: pd.read_csv(io.StringIO(frame.to_csv(index=False)), dtype=str),
    "through JSON": lambda frame: pd.read_json(io.StringIO(frame.to_json(orient="records", date_format="iso"))),
    "whole numbers as floats": lambda frame: frame.astype({"age": "float64", "visits": "float64"}),
    "numbers as text": lambda frame: frame.astype({"visits": str}),
    "text as category": lambda frame: frame.astype({"plan": "category"}),
    "category as text": lambda frame: frame.astype({"ward": object}),
    "number as category": lambda frame: frame.astype({"visits": "category"}),
    "yes and no as numbers": lambda frame: frame.astype({"active": "int64"}),
    "yes and no as text": lambda frame: frame.astype({"active": str}),
    "dates as text": lambda frame: frame.assign(seen=frame["seen"].dt.strftime("%Y-%m-%d")),
    "dates in nanoseconds": lambda frame: frame.astype({"seen": "datetime64[ns]"}),
}


@pytest.mark.parametrize("change", SAME.values(), ids=SAME.keys())
def test_the_same_rows_in_another_form_failed_too(gate: Gate, change: Callable[[pd.DataFrame], pd.DataFrame]) -> None:
    content = remember(gate)
    snapshot, _ = gate.take_snapshot(change(FRAME), PLACE, "other split")
    assert snapshot.content == content
    assert hit(gate, snapshot.content)


OTHER: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "a row less": lambda frame: frame.iloc[:2],
    "a row twice": lambda frame: frame.iloc[[0, 1, 2, 2]],
    "another value": lambda frame: frame.assign(visits=[3, 0, 8]),
    "values exchanged": lambda frame: frame.assign(visits=[0, 3, 7]),
    "a value missing": lambda frame: frame.assign(visits=[3, 0, None]),
    "a column less": lambda frame: frame.drop(columns="plan"),
    "a column of another name": lambda frame: frame.rename(columns={"plan": "tariff"}),
}


@pytest.mark.parametrize("change", OTHER.values(), ids=OTHER.keys())
def test_other_rows_did_not_fail(gate: Gate, change: Callable[[pd.DataFrame], pd.DataFrame]) -> None:
    remember(gate)
    assert not hit(gate, gate.take_snapshot(change(FRAME), PLACE, "t")[0].content)


@pytest.mark.parametrize("other", [Place("others"), Place("patients", "2024-01-01"), Place("patients", "_all")])
def test_another_table_or_partition_did_not_fail(gate: Gate, other: Place) -> None:
    content = remember(gate)
    assert not hit(gate, content, place=other)
    assert remember(gate, place=other) == content
    assert hit(gate, content, place=other)


def test_the_rows_are_remembered_by_a_keyed_fingerprint(gate: Gate, tmp_path: Path) -> None:
    """Another secret, another fingerprint: nobody can try out tables against the names of the records."""
    other = make_gate(tmp_path / "other")
    object.__setattr__(other, "content_key", b"another")
    assert remember(gate) != remember(other)


# Which limits it counts against

UP, LOW, VALUE = {"at_most": 0.1}, {"at_most": 0.1, "bound": "lower"}, {"at_most": 0.1, "bound": "value"}


@pytest.mark.parametrize(
    ("failed", "now", "counts"),
    [
        (UP, UP, True),
        (UP, {"at_most": 0.05}, True),
        (UP, {"at_most": 0.0}, True),
        (UP, {"at_most": 0.11}, False),
        (UP, {**UP, "smallest_n": 1, "advice": "other words", "source": "elsewhere"}, True),
        (UP, LOW, False),
        (UP, VALUE, False),
        (LOW, UP, True),
        (LOW, VALUE, True),
        (LOW, LOW, True),
        (LOW, {"at_most": 0.05}, True),
        (LOW, {"at_most": 0.2}, False),
        (VALUE, UP, True),
        (VALUE, LOW, False),
        (UP, {"at_least": 0.1}, False),
        (UP, {"at_least": 0.0}, False),
    ],
)
def test_a_failure_counts_against_limits_as_strict(
    gate: Gate, failed: dict[str, Any], now: dict[str, Any], counts: bool
) -> None:
    content = remember(gate, policy(**failed))
    assert hit(gate, content, policy(**failed))
    assert hit(gate, content, policy(**now)) is counts


@pytest.mark.parametrize(("now", "counts"), [(0.9, True), (0.95, True), (0.8, False)])
def test_a_score_that_must_be_high_is_stricter_when_it_is_higher(gate: Gate, now: float, counts: bool) -> None:
    content = remember(gate, policy(at_least=0.9), direction="lower_is_riskier", value=0.5, low=0.4, high=0.6)
    assert hit(gate, content, policy(at_least=now)) is counts
    assert not hit(gate, content, policy(at_most=0.1))


def test_a_limit_on_another_statistic_is_not_broken_by_it(gate: Gate) -> None:
    content = remember(gate)
    other = Limit("dcr.member_excess", at_most=0.0)
    assert not hit(gate, content, Policy((other,)))
    assert hit(gate, content, Policy((other, *POLICY.limits)))


def test_a_loosened_and_restored_limit_is_remembered(gate: Gate) -> None:
    """With the loose limit the rows may go out, as the owner chose; the strict one holds again when it is back."""
    loose = policy(at_most=0.5)
    chain(gate, high=FAILING)
    assert chain(gate, policy=loose, high=FAILING).publish()
    with pytest.raises(PublicationRefused, match="failed before"):
        chain(gate, high=PASSING).publish()


def test_every_failed_limit_has_its_record_and_each_only_one(gate: Gate) -> None:
    for limit in (0.1, 0.1, 0.12):
        remember(gate, policy(at_most=limit))
    assert len(list((gate.private / "failures").rglob("*.json"))) == 2
    before = tree(gate.private / "failures")
    remember(gate)
    assert tree(gate.private / "failures") == before


def test_records_are_signed_private_and_hold_no_value(gate: Gate) -> None:
    remember(gate)
    path = only_record(gate)
    stated = unseal(Sealed("failure", path.read_bytes()), gate.key.trusted)
    assert stated.place == PLACE
    assert stated.body.keys() == {"limit", "reason", "content", "engine"}
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


# Records that are not in order


def damaged(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(bytes(data))


def of_another_kind(path: Path) -> None:
    path.write_bytes(small_sealed(make_gate(path.parents[5])).data)


def of_a_stranger(path: Path) -> None:
    body = unseal(Sealed("failure", path.read_bytes()), make_gate(path.parents[5]).key.trusted).body
    stranger = make_gate(path.parents[5] / "stranger")
    path.write_bytes(seal(Statement("failure", PLACE, "0" * 64, body), stranger.key).data)


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def made_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("change", [damaged, of_another_kind, of_a_stranger, emptied, made_a_folder])
def test_a_record_that_cannot_be_believed_refuses(gate: Gate, change: Callable[[Path], None]) -> None:
    """It may hold a failure of these very rows: it is neither skipped nor written anew."""
    passing = chain(gate)
    loose = policy(at_most=0.5)
    remember(gate)
    change(only_record(gate))
    for act in (lambda: hit(gate, passing.snapshot.content, loose), passing.publish, lambda: chain(gate, policy=loose)):
        with pytest.raises(PublicationRefused, match="cannot be read") as caught:
            act()
        assert str(only_record(gate)) in str(caught.value)


@pytest.mark.parametrize("to", ["another table", "another content"])
def test_a_record_in_another_place_refuses(gate: Gate, to: str) -> None:
    content, other = remember(gate), Place("others")
    record = only_record(gate)
    place, moved = (other, content) if to == "another table" else (PLACE, "0" * 64)
    folder = place.below(gate.private / "failures") / moved
    folder.mkdir(parents=True)
    record.rename(folder / record.name)
    with pytest.raises(PublicationRefused, match="not in its place"):
        hit(gate, moved, place=place)


def test_records_outlive_the_rotation_of_keys_but_not_the_loss_of_trust(gate: Gate, tmp_path: Path) -> None:
    content, old = remember(gate), gate.key.signer.public_key.keyid
    rotate_key(gate.key.path, tmp_path / "trusted_keys")
    assert hit(make_gate(tmp_path), content)
    (tmp_path / "trusted_keys" / f"{old[:16]}.pem").unlink()
    with pytest.raises(PublicationRefused, match="bring it back, with its key"):
        hit(make_gate(tmp_path), content)
