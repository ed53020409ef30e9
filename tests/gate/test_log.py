"""The log of a table: a chain of signed entries, from which attempts, failures, verdicts and
releases are counted.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
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
    Chain,
    blocked,
    chain,
    events,
    files_of,
    in_either_place,
    make_gate,
    publisher_of,
    read,
    record,
    result,
    rows,
    sign_settings,
    signed,
    verdicts,
)

from privacy_assets.errors import OutOfDate, StoreUnavailable, Superseded, TableSuspended
from privacy_assets.gate.accepted_settings import entries_of
from privacy_assets.gate.envelope import (
    Payload,
    ReleaseTarget,
    SignedFile,
    sign_payload,
    verified_payload,
)
from privacy_assets.gate.gate import Gate
from privacy_assets.gate.keeper import Keeper
from privacy_assets.gate.keys import rotate_key
from privacy_assets.gate.log import LogState
from privacy_assets.pipeline.advice import advice
from privacy_assets.tables.table import Table

MONDAY = ReleaseTarget("patients", "monday")


@pytest.fixture(params=["disk", pytest.param("objects", marks=pytest.mark.slow)])
def gate(request: pytest.FixtureRequest, tmp_path: Path) -> Gate:
    return in_either_place(request, tmp_path)


@pytest.fixture
def local(tmp_path: Path) -> Gate:
    """A gate on disk, for tests that do not depend on the location."""
    return make_gate(tmp_path)


def start(gate: Gate) -> None:
    """Check and sign the settings, as the first step of a run does."""
    gate.accepted.sign(PLACE.table, gate.accepted.check(PLACE.table, POLICY, SETUP, new=True))


def judged(gate: Gate, number: int, high: float = PASSING, target: ReleaseTarget = PLACE) -> str:
    """The verdict on one table, as the steps of a run come to it."""
    snapshot, _ = files_of(gate).take_snapshot(Table.read(rows(number)), target, INPUTS["train"])
    return (
        publisher_of(gate)
        .attest(snapshot, POLICY, signed(gate, snapshot, result(high)), INPUTS, METRICS, SETUP)[0]
        .verdict
    )


def folder_of(gate: Gate) -> Path:
    folder = gate.private / "log" / "patients"
    assert isinstance(folder, Path)
    return folder


# The chain and its state


def test_a_night_has_three_entries_and_the_state_is_what_they_add_up_to(gate: Gate) -> None:
    made = chain(gate, 1).publish()
    assert events(gate) == ["attempt", "verdict", "release"]
    state = gate.log.state("patients")
    (gate.private / "log" / "patients" / "state").unlink()
    assert gate.log.state("patients") == state == LogState.of(json.loads(json.dumps(asdict(state))))
    assert (state.number, state.pointer_numbers, state.next_attempt("_all")) == (3, {"_all": 1}, 1)
    assert made.id.endswith(state.publications[0].sha256[:12])


def test_an_older_state_is_brought_up_to_date(local: Gate) -> None:
    chain(local, 1).publish()
    path = folder_of(local) / "state"
    old = path.read_bytes()
    chain(local, 2, high=FAILING)
    state = local.log.state("patients")
    path.write_bytes(old)
    assert local.log.state("patients") == state


def test_each_content_has_one_verdict_over_all_partitions(local: Gate) -> None:
    start(local)
    for _ in range(2):
        assert judged(local, 1) == "pass"
        assert judged(local, 1, target=MONDAY) == "pass"
    assert verdicts(local) == ["pass"]
    assert (
        judged(local, 2, high=FAILING)
        == judged(local, 2)
        == judged(local, 2, high=FAILING)
        == "fail"
    )
    assert verdicts(local) == ["pass", "fail"]
    assert judged(local, 1, high=FAILING) == "fail"
    assert verdicts(local) == ["pass", "fail", "fail"]


def test_a_failure_counts_once_it_is_scored(local: Gate) -> None:
    """Otherwise a run that is never attested would not be counted."""
    start(local)
    snapshot, _ = files_of(local).take_snapshot(Table.read(rows(1)), PLACE, INPUTS["train"])
    for high in (PASSING, FAILING, FAILING):
        files_of(local).sign_result(
            result(high), snapshot, POLICY.judge({"dcr": result(high)}).outcomes
        )
    assert verdicts(local) == ["fail"]


# Attempts


@pytest.mark.slow
def test_attempts_are_counted_since_the_last_release_whatever_was_changed(local: Gate) -> None:
    """Other training rows, another partition or other settings do not restart the count. The same
    rows count once.
    """
    assert [chain(local, number).attestation.attempt for number in (1, 2, 1)] == [1, 2, 1]
    # the order of rows makes no new table
    assert chain(local, frame=rows(2).iloc[::-1]).attestation.attempt == 2
    seen, _ = files_of(local).take_snapshot(Table.read(rows(3)), PLACE, INPUTS["train"])
    # a score that was seen counts, even if it is never attested
    files_of(local).sign_result(result(), seen, [])
    assert chain(local, 4, target=MONDAY).attestation.attempt == 4
    taken, _ = files_of(local).take_snapshot(Table.read(rows(5)), PLACE, "f" * 64)  # another train
    assert local.log.count_attempt(taken) == 5
    last = chain(local, 6, setup={**SETUP, "drop": ["mail"]})
    assert last.attestation.attempt == 6
    last.publish()
    assert [chain(local, number).attestation.attempt for number in (6, 7, 8)] == [6, 1, 2]
    assert chain(local, 9, target=ReleaseTarget("others")).attestation.attempt == 1


def test_every_attempt_has_a_number_of_its_own(gate: Gate) -> None:
    taken = [
        files_of(gate).take_snapshot(Table.read(rows(number)), PLACE, INPUTS["train"])[0]
        for number in range(6)
    ]
    with ThreadPoolExecutor(6) as pool:
        numbers = list(pool.map(gate.log.count_attempt, taken * 2))
    assert sorted(numbers[:6]) == [*range(1, 7)]
    assert numbers[6:] == numbers[:6]
    assert events(gate) == ["attempt"] * 6


@pytest.mark.slow
def test_releases_of_another_partition_do_not_restart_the_count_or_dilute_the_verdicts(
    local: Gate,
) -> None:
    """Three failures of one partition and four releases of another, in turn, would go on for
    ever.
    """
    numbers, attempts = iter(range(100)), []
    with blocked(TableSuspended):
        for _ in range(3):
            attempts += [
                chain(local, next(numbers), target=MONDAY, high=FAILING).attestation.attempt
                for _ in range(3)
            ]
            for _ in range(4):
                chain(local, next(numbers), target=ReleaseTarget("patients", "junk")).publish()
    assert attempts == [*range(1, 7)]


@pytest.mark.slow
def test_partitions_that_are_released_in_turn_are_first_attempts(local: Gate) -> None:
    days = [ReleaseTarget("patients", f"day {number % 3}") for number in range(9)]
    parts = []
    for number, day in enumerate(days):
        parts.append(chain(local, number, target=day))
        parts[-1].publish()
    assert [part.attestation.attempt for part in parts] == [1] * 9


# A series stops


def nights(gate: Gate, passing: list[bool]) -> list[str]:
    """Return the outcome of each night, with one new table unless the run is blocked."""
    found = []
    for night, passes in enumerate(passing):
        try:
            start(gate)
            found.append(judged(gate, night, PASSING if passes else FAILING))
        except TableSuspended as error:
            assert "is suspended: 4 of its last" in str(
                error
            ) and "accept patients --reason" in advice(error)
            found.append("stopped")
    return found


@pytest.mark.slow
def test_a_generator_that_leaks_more_each_night_is_stopped(local: Gate) -> None:
    """After twenty nights that pass, the leak is seen in ten of the next twenty: ten tables would
    be released.
    """
    drawn = [False, *random.Random(0).sample([True] * 10 + [False] * 9, 19)]
    found = nights(local, [True] * 20 + drawn)
    fourth = [night for night, verdict in enumerate(found) if verdict == "fail"][3]
    assert found.count("fail") == 4 and fourth < 27
    assert set(found[fourth + 1 :]) == {"stopped"}
    assert found[20:].count("pass") <= 3


@pytest.mark.slow
def test_three_of_seven_do_not_stop_a_table(local: Gate) -> None:
    week = [False, False, True, False, True, True, True]
    assert "stopped" not in nights(local, week * 2)


def test_undecided_does_not_count(local: Gate) -> None:
    start(local)
    for number in range(3):
        judged(local, number, high=FAILING)
    for number in range(20):
        record(local, "undecided", f"{number:064x}")
    assert judged(local, 3, high=FAILING) == "fail"
    with blocked(TableSuspended, table="patients"):
        local.check_not_suspended("patients")


@pytest.mark.slow
def test_a_stopped_table_publishes_nothing_until_somebody_accepts_it(local: Gate) -> None:
    good = chain(local, 100)
    for number in range(4):
        assert judged(local, number, high=FAILING) == "fail"
    good = replace(good, signed_file=good.restated())
    for act in (good.publish, lambda: judged(local, 5)):
        with blocked(TableSuspended, table="patients") as stopped:
            act()
        assert "4 of its last 5 verdicts" in str(stopped.value)
    assert judged(local, 3, high=FAILING) == "fail", "the step of the last verdict can be repeated"
    assert verdicts(local) == ["pass", *["fail"] * 4]
    Keeper(local).accept("patients", "the generator was changed")
    assert judged(local, 3, high=FAILING) == "fail", "the same rows count no second time"
    assert nights(local, [True]) == ["fail"], "rows that failed stay failed"
    assert good.publish()
    assert [judged(local, 10 + number, high=FAILING) for number in range(4)] == ["fail"] * 4
    with blocked(TableSuspended):
        local.check_not_suspended("patients")


def test_verdicts_of_other_tables_do_not_count(local: Gate) -> None:
    for number in range(4):
        chain(local, number, target=ReleaseTarget("others"), high=FAILING)
    start(local)
    assert judged(local, 1) == "pass"
    entry = local.private / "log" / "others" / "00000003"
    (folder_of(local) / "00000003").write_bytes(entry.read_bytes())
    with blocked(TableSuspended, table="patients"):
        start(local)


# Damage


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(bytes(data))


LOG: dict[str, Callable[[Path], object]] = {
    "changed": lambda folder: flip(folder / "00000006"),
    "cut short": lambda folder: (folder / "00000006").unlink(),
    "missing": lambda folder: (folder / "00000002").unlink(),
    "empty": lambda folder: (folder / "00000006").write_bytes(b""),
    "unsigned": lambda folder: (folder / "00000006").write_bytes(b'{"status": "pass"}'),
    "another entry": lambda folder: (folder / "00000006").write_bytes(
        (folder / "00000004").read_bytes()
    ),
    "beyond a gap": lambda folder: (folder / "00000006").rename(folder / "00000009"),
    "unreadable": lambda folder: (folder / "00000008").mkdir(),
    "a file": lambda folder: (shutil.rmtree(folder), folder.write_bytes(b"")),
    "the largest number": lambda folder: (folder / "99999999").write_bytes(b"{}"),
    "an early entry changed, and no state": lambda folder: (
        flip(folder / "00000002"),
        (folder / "state").unlink(),
    ),
    "an early entry repeated, and no state": lambda folder: (
        (folder / "00000003").write_bytes((folder / "00000001").read_bytes()),
        (folder / "state").unlink(),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("change", LOG.values(), ids=LOG.keys())
def test_a_log_that_is_not_whole_is_blocked(local: Gate, change: Callable[[Path], object]) -> None:
    part = chain(local, 1)
    judged(local, 2), judged(local, 3)
    folder = folder_of(local)
    change(folder)
    snapshot, _ = files_of(local).take_snapshot(Table.read(rows(9)), PLACE, INPUTS["train"])
    for step in (
        lambda: start(local),
        lambda: judged(local, 4),
        part.publish,
        lambda: files_of(local).sign_result(
            result(FAILING), snapshot, POLICY.judge({"dcr": result(FAILING)}).outcomes
        ),
    ):
        with blocked((StoreUnavailable, TableSuspended)):
            step()
    if folder.is_dir() and not (folder / "00000008").is_dir():
        Keeper(local).accept("patients", "a disk was lost")
        start(local)
        assert judged(local, 4) == "pass"
        assert chain(local, 5).publish()


@pytest.mark.parametrize("name", ["9" * 255, "9" * 12, "2000000000"])
def test_an_entry_with_an_implausible_number_is_named(gate: Gate, name: str) -> None:
    """An acceptance would have to number its entry after it, which no file system may be able to
    store.
    """
    record(gate, "pass", "a")
    file = gate.private / "log" / "patients" / name
    _ = file.write_bytes(b"") if isinstance(file, Path) else file.put(b"")
    for step in (
        lambda: record(gate, "pass", "b"),
        lambda: Keeper(gate).accept("patients", "tried"),
        lambda: list(gate.log.entries("patients")),
    ):
        with blocked(StoreUnavailable, path=str(file), retry=False) as implausible:
            step()
        assert advice(implausible.value) == "remove this file."
    file.unlink()
    record(gate, "pass", "b")
    assert gate.log.state("patients").number == 2


@pytest.mark.parametrize("damage", [flip, lambda path: path.write_bytes(b"{}"), Path.unlink])
def test_an_early_entry_that_was_changed_has_no_effect_and_is_named(
    local: Gate, damage: Callable[[Path], Any]
) -> None:
    """The signed state holds what it added. A missing entry stops the table, see above."""
    failed = chain(local, 1, high=FAILING)
    judged(local, 2)
    damage(folder_of(local) / "00000002")
    problems = {number: problem for number, _, problem in local.log.entries("patients") if problem}
    assert 2 in problems
    if (folder_of(local) / "00000002").exists():
        found = local.log.state("patients").failures(POLICY, failed.snapshot, None)
        assert found == ["dcr.privacy_score at most 0.1"]


def test_a_state_that_cannot_be_believed_is_made_again(local: Gate, tmp_path: Path) -> None:
    chain(local, 1, high=FAILING)
    state, path = local.log.state("patients"), folder_of(local) / "state"
    stranger = make_gate(tmp_path / "stranger")
    for kind, target, key in (
        ("state", PLACE, stranger.key),
        ("state", ReleaseTarget("others"), local.key),
        ("entry", PLACE, local.key),
    ):
        payload = Payload(kind, target, "0" * 64, asdict(LogState()))  # type: ignore[arg-type]
        path.write_bytes(sign_payload(payload, key).data)
        assert local.log.state("patients") == state


def test_a_statement_of_another_kind_is_no_entry(local: Gate) -> None:
    start(local)
    judged(local, 1)
    body = dict(
        verified_payload(
            SignedFile("entry", (folder_of(local) / "00000002").read_bytes()), local.key.trusted
        ).body
    )
    payload = Payload("accepted_settings", PLACE, "0" * 64, {**body, "number": 3})
    (folder_of(local) / "00000003").write_bytes(sign_payload(payload, local.key).data)
    with blocked(TableSuspended, table="patients"):
        start(local)


def test_the_log_outlives_the_rotation_of_keys(local: Gate, tmp_path: Path) -> None:
    start(local)
    judged(local, 1)
    assert local.key.path is not None
    rotate_key(local.key.path, tmp_path / "trusted_keys")
    start(make_gate(tmp_path))
    assert judged(make_gate(tmp_path), 2) == "pass"
    assert verdicts(local) == ["pass", "pass"]


def test_entries_that_come_at_the_same_time_are_all_recorded(gate: Gate) -> None:
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda number: record(gate, "pass", f"{number:064x}"), range(12)))
    assert len(gate.log.state("patients").verdicts) == gate.log.state("patients").number == 12
    sign_settings(gate)
    assert gate.accepted.difference("patients", entries_of(POLICY, SETUP)) == []


# A restored backup


def restored(gate: Gate, nights: int) -> Chain:
    """Publish ``nights`` releases, and put the log back to its state after the first one."""
    chain(gate, 1).publish()
    folder = folder_of(gate)
    backup = folder.with_name("backup")
    shutil.copytree(folder, backup)
    for number in range(2, nights + 1):
        chain(gate, number).publish()
    shutil.rmtree(folder)
    backup.rename(folder)
    return chain(gate, 99)


@pytest.mark.slow
@pytest.mark.parametrize("lost", [1, 5])
def test_a_log_behind_the_pointer_publishes_nothing_and_the_gap_counts_as_failed(
    local: Gate, lost: int
) -> None:
    part = restored(local, 1 + lost)
    with blocked(TableSuspended, table="patients") as stopped:
        part.publish()
    assert "ends before a release that readers have" in str(stopped.value)
    with blocked(TableSuspended):
        local.check_not_suspended("patients")
    with blocked(TableSuspended):
        Keeper(local).roll_back(PLACE, local.store.history(PLACE)[0].id)
    Keeper(local).accept("patients", "the disk was restored from the backup of Sunday")
    local.check_not_suspended("patients")
    assert [status for _, status, _ in local.log.state("patients").recent] == ["fail"] * min(
        lost, 3
    )
    found = part.publish()
    assert local.store.pointer(PLACE, local.key.trusted).number == 2 + lost
    assert local.store.current(PLACE, local.key.trusted) == found
    for number in range(lost, 3):
        judged(local, 200 + number, high=FAILING)
    judged(local, 300, high=FAILING)
    with blocked(TableSuspended):
        local.check_not_suspended("patients")


@pytest.mark.parametrize("other", [MONDAY, PLACE])
def test_a_lost_log_is_noticed_by_every_partition(local: Gate, other: ReleaseTarget) -> None:
    chain(local, 1).publish()
    pointer = PLACE.below(local.releases) / "latest.json"
    for without_pointer in (False, True):
        shutil.rmtree(folder_of(local))
        if without_pointer:
            pointer.unlink()
        with blocked(TableSuspended) as stopped:
            chain(local, 2, target=other).publish()
        assert "ends before a release that readers have" in str(stopped.value)
        with blocked(TableSuspended):
            local.check_not_suspended("patients")
        Keeper(local).accept("patients", "the log was lost")
        local.check_not_suspended("patients")
    assert [status for _, status, _ in local.log.state("patients").recent] == ["fail"]
    assert chain(local, 3, target=other).publish()


def test_a_forged_entry_does_not_become_true_by_an_acceptance(local: Gate, tmp_path: Path) -> None:
    """A user who can write the folder, but has no key, forges an acceptance with an empty state."""
    failed, stranger = chain(local, 1, high=FAILING), make_gate(tmp_path / "stranger").key
    number = local.log.state("patients").number
    for event, more in (
        ("accept", {"reason": "forged", "lost": 0, "state": asdict(LogState())}),
        (
            "verdict",
            {"content": failed.snapshot.content, "sha256": "", "status": "pass", "failed": []},
        ),
        ("release", {"content": "c", "sha256": "s", "ledger": ""}),
    ):
        number += 1
        body = {
            "number": number,
            "before": local.log.believed("patients").head,
            "at": "",
            "event": event,
            **more,
        }
        entry = sign_payload(Payload("entry", PLACE, "0" * 64, body), stranger)
        (folder_of(local) / f"{number:08d}").write_bytes(entry.data)
    before = local.log.believed("patients")
    with blocked(TableSuspended):
        local.log.state("patients")
    Keeper(local).accept("patients", "an entry was damaged")
    state = local.log.state("patients")
    assert state.failures(POLICY, failed.snapshot, None) == ["dcr.privacy_score at most 0.1"]
    assert state.attempts == before.attempts and state.next_attempt(PLACE.part) == 2


def ledger_of(gate: Gate) -> tuple[str, bytes]:
    """SHA-256 and bytes of the ledger after the last release."""
    sha256 = gate.log.state("patients").ledger
    return sha256, gate.ledgers.read("patients", sha256)


def test_a_lost_ledger_stops_the_table_until_it_is_accepted(local: Gate) -> None:
    part = chain(local, 1)
    score = files_of(local).sign_result(result(), part.snapshot, [], b"ledger")
    stated, signed_file = publisher_of(local).attest(
        part.snapshot, POLICY, {"dcr": score}, INPUTS, METRICS, SETUP
    )
    replace(part, attestation=stated, signed_file=signed_file).publish()
    assert ledger_of(local) == (stated.ledger, b"ledger")
    path = local.private / "ledgers" / "patients" / f"{stated.ledger}.parquet"
    faults = {"was changed": lambda: path.write_bytes(b"older"), "is missing": path.unlink}
    for fault, damage in faults.items():
        damage()
        for act in (
            lambda: ledger_of(local),
            lambda: local.check_not_suspended("patients"),
        ):
            with blocked(TableSuspended) as stopped:
                act()
            assert f"the ledger of disclosure of patients {fault} ({path})" in str(stopped.value)
            assert advice(stopped.value) == (
                f"restore {path} from a backup. If there is none: privacy-assets accept patients"
                ' --reason "..."'
            )
    Keeper(local).accept("patients", "a disk was lost")
    local.check_not_suspended("patients")
    assert ledger_of(local) == ("", b"")
    assert [status for _, status, _ in local.log.state("patients").recent] == ["fail"] * 3


def test_repeating_a_publication_keeps_the_ledger_of_a_later_release(local: Gate) -> None:
    """A tick repeats the step `published` of one partition after another partition was released."""
    parts = []
    for target, ledger in ((MONDAY, b"one"), (ReleaseTarget("patients", "tuesday"), b"two")):
        part = chain(local, len(parts), target=target)
        score = files_of(local).sign_result(
            result(inputs={**INPUTS, "ledger": ""}), part.snapshot, [], ledger
        )
        stated, signed_file = publisher_of(local).attest(
            part.snapshot, POLICY, {"dcr": score}, INPUTS, METRICS, SETUP
        )
        parts.append(replace(part, attestation=stated, signed_file=signed_file))
        parts[-1].publish()
    parts[0].publish()
    assert ledger_of(local)[1] == b"two"


def test_a_score_with_an_older_ledger_is_blocked(local: Gate) -> None:
    first, second = chain(local, 1), chain(local, 2)
    parts = []
    for part, ledger in ((first, b"one"), (second, b"two")):
        score = files_of(local).sign_result(result(), part.snapshot, [], ledger)
        stated, signed_file = publisher_of(local).attest(
            part.snapshot, POLICY, {"dcr": score}, INPUTS, METRICS, SETUP
        )
        parts.append(replace(part, attestation=stated, signed_file=signed_file))
    parts[0].publish()
    with blocked(OutOfDate, record="result"):
        parts[1].publish()
    assert ledger_of(local)[1] == b"one"


# Withdrawal


def test_a_withdrawn_release_is_gone_for_good(gate: Gate) -> None:
    parts = [chain(gate, 1)]
    made = [parts[0].publish()]
    parts.append(chain(gate, 2))
    made.append(parts[1].publish())
    assert Keeper(gate).withdraw(PLACE, made[0].id, "a person asked for it") == []
    assert gate.store.history(PLACE) == [made[1]] and len(read(gate)) == 3
    assert Keeper(gate).withdraw(PLACE, made[1].id, "a leak") == []
    assert gate.store.history(PLACE) == []
    with pytest.raises(Exception, match="was withdrawn"):
        read(gate)
    for part in parts:
        with blocked(Superseded):
            part.publish()
    turned = chain(gate, frame=rows(2).iloc[::-1])
    with blocked(Superseded):
        turned.publish()
    assert chain(gate, 3).publish() and len(read(gate)) == 3
    assert events(gate).count("withdrawal") == 2


def test_bypass_55_withdrawn_rows_in_another_partition(local: Gate) -> None:
    first = chain(local, 1).publish()
    elsewhere = chain(local, 1, target=MONDAY)
    assert elsewhere.publish()
    assert Keeper(local).withdraw(PLACE, first.id, "a person asked for it") == [MONDAY]
    with blocked(Superseded) as superseded:
        elsewhere.publish()
    assert "withdrawn, which holds for all partitions" in str(superseded.value)
    again = local.store.history(MONDAY)[0]
    with blocked(Superseded):
        Keeper(local).roll_back(MONDAY, again.id)
    assert Keeper(local).withdraw(MONDAY, again.id, "the same rows") == []
    for part in (
        chain(local, 1),
        chain(local, 1, target=MONDAY),
        chain(local, frame=rows(1).iloc[::-1], target=MONDAY),
    ):
        with blocked(Superseded):
            part.publish()
    assert chain(local, 2, target=MONDAY).publish()


def test_a_withdrawal_that_died_is_finished_by_the_next_call(
    local: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = chain(local, 1).publish()

    def dies(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(type(local.store), "remove", dies)
        Keeper(local).withdraw(PLACE, found.id, "a leak")
    with blocked(Superseded):
        Keeper(local).roll_back(PLACE, found.id)
    assert Keeper(local).withdraw(PLACE, found.id, "a leak") == []
    assert local.store.history(PLACE) == []
