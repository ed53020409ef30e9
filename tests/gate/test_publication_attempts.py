"""Many attempts: they are counted and judged more strictly, and what was released is never forgotten."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from privacy_assets.errors import PublicationRefused
from privacy_assets.gate.gate import Gate
from privacy_assets.gate.statements import Place, seal
from tests.gate.gate_standins import (
    FRAME,
    INPUTS,
    METRICS,
    PLACE,
    POLICY,
    SETUP,
    chain,
    open_gate,
    read,
    result,
    rows,
    same_rows,
)


def test_each_table_of_the_same_training_rows_is_one_attempt_more(gate: Gate) -> None:
    assert [chain(gate, frame=rows(number)).stated.attempt for number in (1, 2, 3)] == [1, 2, 3]
    assert [chain(gate, frame=rows(number)).stated.attempt for number in (2, 1, 4)] == [2, 1, 4]
    assert chain(gate, frame=rows(1).iloc[::-1]).stated.attempt == 1  # the order of rows makes no new table


def test_a_score_that_was_seen_is_a_look_though_it_was_never_attested(gate: Gate) -> None:
    for number in range(1, 5):
        snapshot, _ = gate.take_snapshot(rows(number), PLACE, INPUTS["train"])
        gate.sign_result(result(), snapshot, [])
    assert chain(gate, frame=rows(9)).stated.attempt == 5


def test_attempts_are_counted_by_training_rows_and_place(gate: Gate) -> None:
    assert chain(gate, frame=rows(1)).stated.attempt == 1
    taken = gate.take_snapshot(rows(2), PLACE, "f" * 64)[0]
    assert gate.attempts.attempt(taken) == 1
    assert gate.attempts.attempt(replace(taken, place=Place("patients", "2024-01-01"))) == 1
    assert gate.attempts.attempt(replace(taken, train=INPUTS["train"])) == 2


def test_a_bound_that_holds_at_first_does_not_when_tried_again(gate: Gate) -> None:
    """0.01 + 0.06 x 1.496 is just less than the limit of 0.1, 0.01 + 0.06 x 1.58 is not."""
    verdicts = [chain(gate, frame=rows(number), high=0.07).stated.verdict for number in (1, 2, 3, 4)]
    assert verdicts == ["pass", "pass", "pass", "fail"]
    with pytest.raises(PublicationRefused, match="at attempt 5 from the same training rows"):
        chain(gate, frame=rows(5), high=0.07).publish()


def test_another_process_goes_on_counting(gate: Gate, tmp_path: Path) -> None:
    chain(gate, frame=rows(1))
    again = open_gate(gate.private.parent)
    assert chain(again, frame=rows(2)).stated.attempt == 2


def test_an_attempt_whose_number_is_damaged_is_refused(gate: Gate) -> None:
    part = chain(gate)
    (record,) = (gate.private / "attempts").glob("patients/_all/attempts/*/[!.]*")
    record.write_bytes(b"first")
    with pytest.raises(PublicationRefused, match="number of this attempt is not known"):
        gate.attest(part.snapshot, POLICY, {"dcr": result()}, INPUTS, METRICS, SETUP)


def test_released_are_all_tables_but_this_one(gate: Gate) -> None:
    first = chain(gate, frame=rows(1))
    assert gate.released(first.snapshot).files == ()
    first.publish()
    assert gate.released(first.snapshot).files == ()
    second = chain(gate, frame=rows(2))
    (table,) = gate.released(second.snapshot).tables()
    same_rows(table.astype(FRAME.dtypes), rows(1))
    second.publish()
    assert len(gate.released(chain(gate, frame=rows(3)).snapshot).files) == 2
    assert gate.released(replace(second.snapshot, place=Place("others"))).files == ()


def test_a_release_that_was_deleted_or_rolled_back_still_counts(gate: Gate) -> None:
    import shutil

    first = chain(gate, frame=rows(1)).publish()
    second = chain(gate, frame=rows(2)).publish()
    gate.roll_back(PLACE, first.id)
    second.folder.chmod(0o755)
    shutil.rmtree(second.folder)
    found = gate.released(chain(gate, frame=rows(3)).snapshot)
    assert sorted(table["visits"].iloc[0] for table in found.tables()) == [1, 2]


def test_a_release_without_a_record_counts(gate: Gate) -> None:
    """An earlier version of the gate wrote none."""
    chain(gate, frame=rows(1)).publish()
    (record,) = (gate.private / "attempts").glob("patients/_all/released/[!.]*")
    record.unlink()
    (table,) = gate.released(chain(gate, frame=rows(2)).snapshot).tables()
    assert table["visits"].iloc[0] == 1


def test_rows_that_are_gone_are_refused(gate: Gate) -> None:
    release = chain(gate, frame=rows(1)).publish()
    later = chain(gate, frame=rows(2))
    for path in (*(gate.private / "snapshots").glob("patients/_all/*.parquet"), release.table):
        path.parent.chmod(0o755)
        path.unlink()
    with pytest.raises(PublicationRefused, match="earlier release cannot be read"):
        gate.released(later.snapshot).tables()


def test_what_was_judged_before_another_release_is_not_published(gate: Gate) -> None:
    first, second = chain(gate, frame=rows(1)), chain(gate, frame=rows(2))
    first.publish()
    with pytest.raises(PublicationRefused, match="another table was released since"):
        second.publish()
    chain(gate, frame=rows(2)).publish()
    chain(gate, frame=rows(2)).publish()  # the same rows again are out already


def test_a_refused_release_leaves_no_record(gate: Gate) -> None:
    part = chain(gate, frame=rows(1))
    part.snapshot.path.chmod(0o600)
    part.snapshot.path.write_bytes(b"other bytes")
    with pytest.raises(PublicationRefused):
        part.publish()
    assert gate.attempts.released(PLACE) == set()


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every folder")
def test_a_memory_that_cannot_be_read_refuses(gate: Gate) -> None:
    part = chain(gate, frame=rows(1))
    part.publish()
    (gate.private / "attempts/patients/_all/released").chmod(0)
    with pytest.raises(PublicationRefused, match="memory of releases cannot be read"):
        gate.released(part.snapshot)


def test_a_release_of_a_version_that_did_not_count_is_still_read(gate: Gate) -> None:
    part = chain(gate, frame=rows(1))
    statement = part.stated.statement()
    body = {name: value for name, value in statement.body.items() if name != "attempt"}
    body["inputs"] = dict(INPUTS)
    older = seal(replace(statement, body=body), gate.key)
    assert gate.attestation(older, PLACE).attempt == 1
    release = gate.store.add(PLACE, part.snapshot.path, part.snapshot.sha256, older.data, lambda: None)
    assert release.opened(PLACE, gate.key.trusted).verdict == "pass"
    assert read(gate)["visits"].iloc[0] == 1


# Partitions that are judged together

TOGETHER = {**SETUP, "pool_partitions": True}
MONDAY, TUESDAY = Place("patients", "monday"), Place("patients", "tuesday")


def judged_together(gate: Gate, place: Place, number: int) -> tuple[Any, Any, Any]:
    """Snapshot, attestation and record of one partition's table."""
    snapshot, taken = gate.take_snapshot(rows(number), place, INPUTS["train"])
    score = gate.result(gate.sign_result(result(), snapshot, [], pool_partitions=True), snapshot)
    _, sealed = gate.attest(snapshot, POLICY, {"dcr": score}, INPUTS, METRICS, TOGETHER)
    return snapshot, sealed, taken


def test_partitions_are_counted_apart_or_together(gate: Gate) -> None:
    chain(gate, frame=rows(1), place=MONDAY).publish()
    tuesday, _ = gate.take_snapshot(rows(2), TUESDAY, INPUTS["train"])
    assert gate.released(tuesday).files == ()
    (table,) = gate.released(tuesday, pool_partitions=True).tables()
    assert table["visits"].iloc[0] == 1
    assert gate.released(replace(tuesday, place=Place("others", "monday")), pool_partitions=True).files == ()


def test_of_partitions_judged_together_each_knows_of_all(gate: Gate) -> None:
    _, monday, monday_taken = judged_together(gate, MONDAY, 1)
    snapshot, tuesday, tuesday_taken = judged_together(gate, TUESDAY, 2)
    gate.publish(monday, monday_taken, MONDAY, POLICY, TOGETHER)
    with pytest.raises(PublicationRefused, match="another table was released since"):
        gate.publish(tuesday, tuesday_taken, TUESDAY, POLICY, TOGETHER)
    assert gate.released(judged_together(gate, MONDAY, 3)[0], pool_partitions=True).tables()[0]["visits"].iloc[0] == 1
    _, tuesday, tuesday_taken = judged_together(gate, TUESDAY, 2)
    gate.publish(tuesday, tuesday_taken, TUESDAY, POLICY, TOGETHER)
    assert len(gate.released(judged_together(gate, MONDAY, 3)[0], pool_partitions=True).files) == 2
    assert len(gate.released(snapshot).files) == 0  # apart, this partition has its own release alone
    gate.publish(tuesday, tuesday_taken, TUESDAY, POLICY, TOGETHER)  # the same once more


def test_attempts_and_failures_are_those_of_all_partitions(gate: Gate) -> None:
    snapshots = [
        gate.take_snapshot(rows(number), day, INPUTS["train"])[0] for number, day in ((1, MONDAY), (2, TUESDAY))
    ]
    assert [gate.attempts.attempt(one) for one in snapshots] == [1, 1]
    assert [gate.attempts.attempt(one, pool_partitions=True) for one in snapshots] == [1, 2]
    assert chain(gate, frame=rows(3), place=MONDAY, high=0.2).stated.verdict == "fail"
    snapshot, _ = gate.take_snapshot(rows(3), TUESDAY, INPUTS["train"])
    verdicts = {}
    for setup in (SETUP, TOGETHER):
        stated, _ = gate.attest(snapshot, POLICY, {"dcr": result()}, INPUTS, METRICS, setup)
        verdicts[bool(setup.get("pool_partitions"))] = stated.verdict
    assert verdicts == {False: "pass", True: "fail"}


def test_partitions_that_are_published_at_once_are_published_in_turn(gate: Gate) -> None:
    days = [Place("patients", f"day {number}") for number in range(6)]
    parts = [judged_together(gate, day, number) for number, day in enumerate(days)]

    def publish(number: int) -> bool:
        try:
            gate.publish(parts[number][1], parts[number][2], days[number], POLICY, TOGETHER)
        except PublicationRefused as error:
            assert "another table was released since" in str(error)
            return False
        return True

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(publish, range(6))) == 1
    assert sum(len(gate.store.history(day)) for day in days) == 1


def test_a_publisher_that_dies_between_two_records_blocks_nobody(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    _, monday, taken = judged_together(gate, MONDAY, 1)
    recorded = type(gate.attempts)._record

    def dying(self: Any, place: Place, *rest: Any) -> Any:
        if place == MONDAY:
            raise KeyboardInterrupt
        return recorded(self, place, *rest)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(type(gate.attempts), "_record", dying)
        gate.publish(monday, taken, MONDAY, POLICY, TOGETHER)
    _, tuesday, tuesday_taken = judged_together(gate, TUESDAY, 2)
    (table,) = gate.released(judged_together(gate, TUESDAY, 2)[0], pool_partitions=True).tables()
    assert table["visits"].iloc[0] == 1  # it counts as released, and its rows are found
    gate.publish(tuesday, tuesday_taken, TUESDAY, POLICY, TOGETHER)
