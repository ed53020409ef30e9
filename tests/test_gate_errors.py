"""Refusals: classes with data, one sentence of advice for each, and whether a retry may succeed."""

from __future__ import annotations

import ast
import errno
import pickle
from pathlib import Path

import pytest

import privacy_assets
from privacy_assets import errors
from privacy_assets.errors import (
    Damaged,
    FailedBefore,
    InputError,
    LeaseTimeout,
    NotTrusted,
    OutOfDate,
    PolicyNotMet,
    PublicationBlocked,
    SettingsDiffer,
    StoreError,
    StoreUnavailable,
    Superseded,
    TableBusy,
    TableSuspended,
    Undecided,
    WrongTarget,
    for_readers,
)
from privacy_assets.pipeline.advice import with_advice

READ_REPORT = "read the privacy report, which names the causes and what to do."
RENDERED = [
    (PolicyNotMet("event", remedy="train on more people."), "event. Fix: train on more people."),
    (PolicyNotMet("event"), f"event. Fix: {READ_REPORT}"),
    (Undecided("event"), f"event. Fix: {READ_REPORT}"),
    (FailedBefore("event"), "event. Fix: change the generator and create a new synthetic table."),
    (NotTrusted("event", record="attestation"), "event. Fix: rerun the step attest."),
    (
        NotTrusted("event"),
        "event. Fix: restore the file, or add the key that signed it to the trusted keys.",
    ),
    (
        WrongTarget("event"),
        "event. Fix: run one existing partition at a time, and a table without partitions on"
        " its own.",
    ),
    (WrongTarget("event", record="pointer"), "event. Fix: rerun the step publish."),
    (
        OutOfDate("event", record="generator"),
        "event. Fix: rerun the steps fit and sample.",
    ),
    (
        OutOfDate("event", record="split"),
        "event. Fix: rerun the steps split, prepare, score and attest.",
    ),
    (OutOfDate("event"), "event. Fix: rerun all steps."),
    (
        Superseded("event", release="ID"),
        "event. Fix: create a new synthetic table, or `privacy-assets releases TABLE"
        " --rollback ID`.",
    ),
    (
        Superseded("event"),
        "event. Fix: check which release is current, then try again or create a new synthetic"
        " table.",
    ),
    (Damaged("event", path="p"), "event. Fix: restore p from a backup."),
    (
        Damaged("event", path="p", remove=True),
        "event. Fix: remove p; if no release is then current, roll back to a release.",
    ),
    (Damaged("event", path="p", redo=("dcr",)), "event. Fix: rerun the step dcr."),
    (Damaged("event", path="p", record="entry"), "event. Fix: restore p from a backup."),
    (StoreUnavailable("event", errno=errno.EIO), "event. Fix: try again."),
    (StoreUnavailable("event", errno=errno.EIO, record="snapshot"), "event. Fix: try again."),
    (
        StoreUnavailable("event", errno=errno.ENOENT, record="snapshot"),
        "event. Fix: rerun the step sample.",
    ),
    (
        StoreUnavailable("event", path="p", errno=errno.EACCES),
        "event. Fix: check that p exists and can be read.",
    ),
    (
        SettingsDiffer("lines\n  policy: 1 -> 2", table="t"),
        "lines\n  policy: 1 -> 2\nFix: undo the change, or accept it: privacy-assets accept t",
    ),
    (
        TableBusy("event", table="t", run="r"),
        "event. Fix: wait for it, or terminate it; then run again. The lease of a killed run"
        " ends after 5 minutes.",
    ),
    (
        TableSuspended("event", table="t", path="p"),
        "event. Fix: restore p from a backup. If there is none: privacy-assets accept t"
        ' --reason "..."',
    ),
    (
        TableSuspended("event", table="t"),
        'event. Fix: find the cause, then: privacy-assets accept t --reason "..."',
    ),
]


def subclasses(kind: type[PublicationBlocked]) -> set[type[PublicationBlocked]]:
    return {kind for one in kind.__subclasses__() for kind in (one, *subclasses(one))}


@pytest.mark.parametrize(("error", "text"), RENDERED)
def test_each_class_has_one_sentence_of_advice(error: PublicationBlocked, text: str) -> None:
    assert with_advice(error) == text
    assert str(error) == error.event


def test_every_class_is_rendered() -> None:
    assert {type(error) for error, _ in RENDERED} == subclasses(PublicationBlocked)


def test_every_refusal_in_the_package_is_of_a_subclass() -> None:
    root = Path(str(privacy_assets.__file__)).parent
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            named = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id
            assert named != "PublicationBlocked", (
                f"{path.relative_to(root)}:{getattr(node, 'lineno', 0)}"
            )


@pytest.mark.parametrize(
    "error", [error for error, _ in RENDERED if not isinstance(error, StoreUnavailable)]
)
def test_readers_ask_the_publisher(error: PublicationBlocked) -> None:
    data = {**vars(error), "reader": False}
    with pytest.raises(type(error)) as caught, for_readers():
        raise type(error)(**data)
    assert with_advice(caught.value).endswith("Fix: ask the publisher.")
    assert caught.value.__notes__ == ["Fix: ask the publisher."]


def test_only_an_unavailable_store_and_a_busy_table_are_worth_a_retry() -> None:
    assert not any(
        error.retry for error, _ in RENDERED if not isinstance(error, StoreUnavailable | TableBusy)
    )
    assert TableBusy("event").retry
    for number in (
        errno.ENOENT,
        errno.EACCES,
        errno.ELOOP,
        errno.EISDIR,
        errno.EROFS,
        errno.ENAMETOOLONG,
    ):
        assert not StoreUnavailable.of("event", OSError(number, "", "p")).retry
        assert StoreUnavailable.of("event", OSError(number, "", "p"), outcome_known=False).retry
        assert not StoreError(number, "", "p").retry
    for number in (errno.EIO, errno.ETIMEDOUT, errno.ENOSPC):
        assert StoreUnavailable.of("event", OSError(number, "")).retry
        assert StoreError(number, "", "p").retry
    assert LeaseTimeout("busy").retry
    assert not InputError("wrong").retry and InputError("unread", transient=True).retry
    assert not errors.ConfigError("wrong").retry


def test_a_refusal_keeps_its_data_between_processes() -> None:
    error = StoreUnavailable.of("event", OSError(errno.EIO, "", "p"), outcome_known=False)
    same = pickle.loads(pickle.dumps(error))
    assert (type(same), vars(same)) == (StoreUnavailable, vars(error))
    unread = pickle.loads(pickle.dumps(InputError("unread", where="train", transient=True)))
    assert unread.retry and unread.where == "train"
