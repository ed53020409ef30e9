"""What was replaced or rolled back is not published again, whatever envelope, order of rows or clock."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
from gate_standins import PLACE, Behind, chain, read, rows, same_rows

from privacy_assets.errors import PublicationRefused
from privacy_assets.gate import release
from privacy_assets.gate.gate import Gate


def _interrupted(*_: Any) -> None:
    raise KeyboardInterrupt


def test_rows_that_were_replaced_are_not_published_again_in_another_order_or_envelope(gate: Gate) -> None:
    part = chain(gate, frame=rows(1))
    first = part.publish()
    second = chain(gate, frame=rows(2)).publish()
    for again in (part, chain(gate, frame=rows(1)), chain(gate, frame=rows(1).iloc[::-1])):
        for sealed in (again.sealed, again.restated(made_at="later")):
            with pytest.raises(PublicationRefused, match=f"as {first.id}, and is not current any more"):
                again.publish(sealed=sealed)
    assert gate.store.current(PLACE) == second


def test_two_rollbacks_leave_nothing_to_publish_again(gate: Gate) -> None:
    parts, made = [], []
    for number in range(3):
        parts.append(chain(gate, frame=rows(number)))
        made.append(parts[-1].publish())
    for name in (made[1].id, made[0].id):
        gate.roll_back(PLACE, name)
    for part in parts[1:]:
        with pytest.raises(PublicationRefused, match="is not current any more"):
            part.publish()
    assert parts[0].publish() == made[0]
    assert len(gate.store.history(PLACE)) == 3


def test_a_rolled_back_release_whose_folder_is_gone_is_not_published_again(gate: Gate) -> None:
    first, newer = chain(gate, frame=rows(1)).publish(), chain(gate, frame=rows(2))
    second = newer.publish()
    gate.roll_back(PLACE, first.id)
    second.folder.chmod(0o755)
    shutil.rmtree(second.folder)
    with pytest.raises(PublicationRefused, match="a release that is gone, and is not current any more"):
        newer.publish()


def test_a_publication_that_died_is_finished_and_one_that_was_overtaken_is_not(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain(gate, frame=rows(0)).publish()
    part = chain(gate, frame=rows(1))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("privacy_assets.gate.release_disk._point", _interrupted)
        part.publish()
    (release,) = gate.store.history(PLACE)[1:]
    assert part.publish() == release  # the same once more
    lost = chain(gate, frame=rows(2))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("privacy_assets.gate.release_disk._point", _interrupted)
        lost.publish()
    current = chain(gate, frame=rows(3)).publish()
    with pytest.raises(PublicationRefused, match="is not current any more"):
        lost.publish()
    assert gate.store.current(PLACE) == current


def test_one_that_is_overtaken_between_its_record_and_the_lock_is_refused(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was slow: the next one knew of it, and was quicker."""
    slow, add = chain(gate, frame=rows(1)), type(gate.store).add
    late: list[Any] = []

    def overtaken(self: Any, *rest: Any) -> Any:
        if not late:
            late.append(None)
            late.append(chain(gate, frame=rows(2)).publish())
        return add(self, *rest)

    monkeypatch.setattr(type(gate.store), "add", overtaken)
    with pytest.raises(PublicationRefused, match="came in between"):
        slow.publish()
    assert gate.store.current(PLACE) == late[1]
    assert read(gate)["visits"].iloc[0] == 2


def test_ids_are_in_the_order_of_publication_whatever_the_clock(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    old = chain(gate, frame=rows(1))
    first = old.publish()
    monkeypatch.setattr(release.dt, "datetime", Behind)
    second = chain(gate, frame=rows(2)).publish()
    third = chain(gate, frame=rows(3)).publish()
    assert gate.store.history(PLACE) == [first, second, third]
    with pytest.raises(PublicationRefused, match="is not current any more"):
        old.publish()
    same_rows(read(gate), rows(3))
