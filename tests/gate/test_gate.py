"""The gate: each verification blocks for its own reason, and a table that passes all of them is
published.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gate_standins import (
    DCR,
    FAILING,
    INPUTS,
    METRICS,
    PLACE,
    POLICY,
    SETUP,
    Chain,
    at_most,
    blocked,
    chain,
    files_of,
    make_gate,
    mode,
    overwrite,
    publisher_of,
    read,
    result,
    rows,
    same_rows,
    signed,
    tree,
)

from privacy_assets.errors import (
    Damaged,
    FailedBefore,
    InputError,
    NotTrusted,
    OutOfDate,
    PolicyNotMet,
    PublicationBlocked,
    StoreUnavailable,
    Undecided,
    WrongTarget,
)
from privacy_assets.gate.attestation import Attestation, blocking_error
from privacy_assets.gate.envelope import Payload, ReleaseTarget, SignedFile, sign_payload
from privacy_assets.gate.gate import Gate
from privacy_assets.gate.keeper import Keeper
from privacy_assets.gate.publication import (
    CHECKS_BEFORE_ENTRY,
    CHECKS_OF_NEW_ENTRY,
    CHECKS_WITH_LOG,
)
from privacy_assets.gate.publisher import Publisher
from privacy_assets.gate.snapshot import Snapshot
from privacy_assets.generators import build_generator
from privacy_assets.metrics.dcr import Dcr
from privacy_assets.metrics.policies import policy_digest
from privacy_assets.policy import Limit, LimitOutcome, Policy, Verdict
from privacy_assets.stats.estimates import MetricResult
from privacy_assets.studies.shadow_membership.metric import ShadowMembership
from privacy_assets.tables.table import Table

OTHER = ReleaseTarget("others")
DAY = ReleaseTarget("patients", "2024-01-01")


@pytest.fixture
def ready(gate: Gate) -> Chain:
    """Everything signed, with verdict "pass", and an earlier release of other rows."""
    chain(gate, 1).publish()
    return chain(gate, 2)


def shown(gate: Gate) -> int:
    """The number of the table that readers get."""
    return int(read(gate)["number"].iloc[0])


# Attestation


def attested(ready: Chain, *results: MetricResult, **changes: Any) -> Attestation:
    """Attest these signed results with other inputs, metrics, setup or snapshot."""
    given = {
        "snapshot": ready.snapshot,
        "inputs": INPUTS,
        "metrics": METRICS,
        "setup": SETUP,
        **changes,
    }
    scores = {}
    for one in results:
        payload = Payload("result", ready.target, ready.snapshot.sha256, one.to_json())
        scores["dcr"] = sign_payload(payload, ready.gate.key)
    stated, signed_file = publisher_of(ready.gate).attest(policy=POLICY, scores=scores, **given)
    assert files_of(ready.gate).open_attestation(signed_file, ready.target) == stated
    return stated


def test_an_attestation_says_what_was_judged_and_holds_no_statistic(ready: Chain) -> None:
    stated = attested(
        ready, result(tables={"ranking": [{"rank": 1, "role": "train", "row": 39435}]})
    )
    assert (stated.verdict, stated.n_rows, stated.sha256) == ("pass", 3, ready.snapshot.sha256)
    assert (stated.policy, stated.policy_digest) == (POLICY.to_dict(), policy_digest(POLICY))
    assert stated.inputs == {**INPUTS, "ledger": ""}
    assert stated.attempt == 1
    assert stated.keyid == ready.gate.key.signer.public_key.keyid
    assert stated.limits == {"dcr.privacy_score": "pass"}
    body = json.dumps(stated.payload().body)
    assert not [number for number in ("39435", "0.01", "-0.02", "0.03", "0.0337") if number in body]
    (kept,) = (path for path in results_of(ready) if path.stem == stated.results["dcr"])
    assert (mode(kept), mode(kept.parent)) == (0o600, 0o700)
    assert "39435" in str(
        files_of(ready.gate)
        .open_result(SignedFile("result", kept.read_bytes()), ready.snapshot)
        .tables
    )
    assert stated.results["dcr"] != hashlib.sha256(kept.read_bytes()).hexdigest()


def results_of(ready: Chain) -> list[Path]:
    """The signed private results of its table."""
    return sorted(ready.target.below(ready.gate.private / "results").iterdir())


@pytest.mark.parametrize("role", ["train", "holdout", "synthetic", "reference", "embedder"])
def test_results_on_other_tables_are_not_attested(ready: Chain, role: str) -> None:
    """This includes a table that only one of the two sides knows."""
    changed = {**INPUTS, role: "other"}
    snapshot = replace(ready.snapshot, train_fingerprint=changed["train"])
    with blocked(OutOfDate, record="result"):
        attested(ready, result(), inputs=changed, snapshot=snapshot)
    with blocked(OutOfDate, record="result"):
        attested(ready, result(inputs=changed))


class Unembedded(Dcr):
    """A metric that does not read the embedder."""

    optional_inputs = frozenset()


def test_an_embedder_that_the_metric_does_not_read_may_change(ready: Chain) -> None:
    inputs = {**INPUTS, "embedder": "e"}
    assert attested(ready, result(), inputs=inputs, metrics={"dcr": Unembedded()}).verdict == "pass"


WRONG_RESULTS: dict[str, dict[str, Any]] = {
    "no tables": {"inputs": {}},
    "other seed": {"seed": 1},
    "no settings": {"settings": {}},
    "other settings": {"settings": {**DCR.settings(), "n_permutations": 199}},
    "other version": {"package_version": "0.0.1"},
    "no version": {"package_version": ""},
    "another metric": {"metric": "linkability"},
}


def test_results_of_another_computation_are_not_attested(ready: Chain) -> None:
    for change in WRONG_RESULTS.values():
        with blocked(OutOfDate, record="result"):
            attested(ready, result(**change))
    with blocked(OutOfDate, record="result"):  # of a metric that is not run
        attested(ready, result(), metrics={})


FILTERS: dict[str, Any] = {"memorization": {"crowd": 5}}


def test_a_filtered_table_is_attested_as_such(ready: Chain) -> None:
    filtered = {"filters": FILTERS, "inputs": {role: INPUTS[role] for role in ("train", "holdout")}}
    snapshot, taken = files_of(ready.gate).take_snapshot(
        Table.read(rows(2)), PLACE, INPUTS["train"], filtered
    )
    assert files_of(ready.gate).open_snapshot(taken, PLACE) == snapshot
    assert (
        attested(ready, result(), snapshot=snapshot, setup={**SETUP, "filter": FILTERS}).setup[
            "filter"
        ]
        == FILTERS
    )


@pytest.mark.parametrize(
    ("then", "now"),
    [
        (None, FILTERS),
        ({"filters": FILTERS, "inputs": {}}, None),
        ({"name": "memorization", "settings": {"crowd": 5}, "inputs": {}}, None),
        ({"filters": FILTERS, "inputs": {}}, {"memorization": {"crowd": 4}}),
        ({"filters": FILTERS, "inputs": {}}, {**FILTERS, "outliers": {}}),
        ({"filters": FILTERS, "inputs": {"holdout": "other"}}, FILTERS),
        ({"filters": FILTERS, "inputs": {"reference": "r"}}, FILTERS),
    ],
)
def test_a_table_that_was_filtered_otherwise_is_not_attested(
    ready: Chain, then: Any, now: Any
) -> None:
    with blocked(OutOfDate, record="snapshot"):
        attested(
            ready,
            result(),
            snapshot=replace(ready.snapshot, filter=then),
            setup={**SETUP, "filter": now},
        )


def test_a_table_of_another_generator_or_train_than_was_attacked_is_not_attested(
    ready: Chain,
) -> None:
    metrics = {**METRICS, "shadow_membership": ShadowMembership(generator="baynet")}

    def made_by(name: str) -> Snapshot:
        generator = {"name": name, "settings": build_generator(name).settings()}
        return replace(ready.snapshot, generator=generator)

    # only the owner knows the generator of an external table
    for snapshot in (made_by("baynet"), ready.snapshot):
        assert Snapshot.of(snapshot.payload(), snapshot.path.parent) == snapshot
        assert attested(ready, result(), snapshot=snapshot, metrics=metrics).verdict == "pass"
    with blocked(OutOfDate, record="generator") as other:
        attested(ready, result(), snapshot=made_by("synthpop"), metrics=metrics)
    assert "another generator than shadow_membership attacks" in str(other.value)
    with blocked(OutOfDate, record="generator"):
        attested(ready, result(), snapshot=replace(ready.snapshot, train_fingerprint="old"))


@pytest.mark.parametrize(
    ("snapshot", "kind"), [({"sha256": "0" * 64}, OutOfDate), ({"target": DAY}, WrongTarget)]
)
def test_results_of_another_snapshot_or_partition_are_not_read(
    ready: Chain, snapshot: dict[str, Any], kind: type[PublicationBlocked]
) -> None:
    with blocked(kind, record="result"):
        files_of(ready.gate).open_result(ready.score, replace(ready.snapshot, **snapshot))


def test_a_statistic_that_is_missing_is_no_pass_and_a_broken_limit_a_failure(ready: Chain) -> None:
    for results in ((), (result(estimates=()),), (result(float("nan")),)):
        assert attested(ready, *results).verdict == "undecided"
    assert attested(ready, result(FAILING)).verdict == "fail"


def test_a_bound_that_holds_at_first_does_not_when_tried_again(gate: Gate) -> None:
    """0.01 + 0.06 x 1.496 is just below the limit of 0.1, but 0.01 + 0.06 x 1.58 is not."""
    verdicts = [chain(gate, number, high=0.07).attestation.verdict for number in (1, 2, 3, 4)]
    assert verdicts == ["pass", "pass", "pass", "undecided"]
    with blocked(Undecided) as caught:
        chain(gate, 5, high=0.07).publish()
    assert [outcome.limit.key for outcome in caught.value.outcomes] == ["dcr.privacy_score"]


# Publication: each case breaks one verification only


def other_key(ready: Chain) -> Gate:
    return make_gate(ready.gate.private.parent / "stranger")


def flipped(ready: Chain) -> None:
    data = bytearray(ready.snapshot.path.read_bytes())
    data[len(data) // 2] ^= 1
    overwrite(ready.snapshot.path, bytes(data))


def link(ready: Chain) -> None:
    path = ready.snapshot.path
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def in_place_of_the_file(make: Callable[[Path], object]) -> Callable[[Chain], None]:
    def change(ready: Chain) -> None:
        ready.snapshot.path.unlink()
        make(ready.snapshot.path)

    return change


def stricter(limit: float) -> dict[str, Policy]:
    return {"policy": Policy((Limit("dcr.privacy_score", at_most=limit),))}


def renamed(signed_file: SignedFile, kind: Any) -> SignedFile:
    return SignedFile(kind, signed_file.data)


def fails_now(ready: Chain) -> None:
    files_of(ready.gate).sign_result(
        result(FAILING), ready.snapshot, POLICY.judge({"dcr": result(FAILING)}).outcomes
    )


def keep(ready: Chain, measured: MetricResult) -> str:
    """Sign and store a result, and return its keyed digest."""
    return files_of(ready.gate).store_result(
        signed(ready.gate, ready.snapshot, measured)["dcr"], ready.target
    )


def unsigned_verdict(ready: Chain) -> SignedFile:
    """A verdict "pass" over statistics that fail a limit."""
    return ready.restated(results={"dcr": keep(ready, result(FAILING))})


def kept(change: Callable[[Path], object]) -> Callable[[Chain], None]:
    """Change the signed private result that the attestation names."""

    def changed(ready: Chain) -> None:
        change(
            ready.target.below(ready.gate.private / "results")
            / f"{ready.attestation.results['dcr']}.json"
        )

    return changed


def another_result(ready: Chain) -> None:
    """Replace the evaluated result by another one that the gate itself signed."""
    named = (
        ready.target.below(ready.gate.private / "results")
        / f"{ready.attestation.results['dcr']}.json"
    )
    (named.with_name(f"{keep(ready, result(0.02))}.json")).replace(named)


def result_of_a_stranger(ready: Chain) -> dict[str, SignedFile]:
    digest = files_of(ready.gate).store_result(
        signed(replace(ready.gate, key=other_key(ready).key), ready.snapshot)["dcr"], ready.target
    )
    return {"signed_file": ready.restated(results={"dcr": digest})}


def result_of_another_table(ready: Chain) -> dict[str, SignedFile]:
    return {"signed_file": ready.restated(results=chain(ready.gate, 3).attestation.results)}


def with_body(ready: Chain, change: Callable[[dict[str, Any]], object]) -> SignedFile:
    stated = ready.attestation.payload()
    body = dict(stated.body)
    change(body)
    return sign_payload(replace(stated, body=body), ready.gate.key)


Case = Callable[[Chain], dict[str, Any] | None]
ATTEST, SCORES, SAMPLE = {"record": "attestation"}, {"record": "result"}, {"record": "snapshot"}
REFUSED: dict[str, tuple[Case, type[PublicationBlocked], dict[str, Any]]] = {
    "a verdict fail": (lambda x: {"signed_file": x.restated(verdict="fail")}, FailedBefore, {}),
    "a verdict undecided": (
        lambda x: {"signed_file": x.restated(verdict="undecided")},
        FailedBefore,
        {},
    ),
    "an unknown verdict": (lambda x: {"signed_file": x.restated(verdict="Pass")}, FailedBefore, {}),
    "statistics that fail a limit": (
        lambda x: {"signed_file": unsigned_verdict(x)},
        PolicyNotMet,
        {},
    ),
    "statistics that are missing": (
        lambda x: {"signed_file": x.restated(results={})},
        Undecided,
        {},
    ),
    "a limit that failed": (
        lambda x: {"signed_file": x.restated(limits={"dcr.privacy_score": "fail"})},
        PolicyNotMet,
        {},
    ),
    "no limits": (lambda x: {"signed_file": x.restated(limits={})}, OutOfDate, ATTEST),
    "an unknown status": (
        lambda x: {"signed_file": x.restated(limits={"dcr.privacy_score": "ok"})},
        OutOfDate,
        ATTEST,
    ),
    "no private result": (kept(Path.unlink), Damaged, SCORES),
    "a changed private result": (
        kept(lambda path: path.write_bytes(path.read_bytes() + b" ")),
        Damaged,
        SCORES,
    ),
    "an empty private result": (kept(lambda path: path.write_bytes(b"")), Damaged, SCORES),
    "another private result": (another_result, Damaged, SCORES),
    "a private result of a stranger": (result_of_a_stranger, NotTrusted, {"record": "result"}),
    "a private result of other rows": (result_of_another_table, OutOfDate, {"record": "result"}),
    "statistics in the attestation": (
        lambda x: {"signed_file": x.restated(results={"dcr": result().to_json()})},
        StoreUnavailable,
        {"errno": errno.ENAMETOOLONG},
    ),
    "a stricter policy": (lambda _: stricter(0.06), OutOfDate, {**ATTEST}),
    "a looser policy": (lambda _: stricter(0.5), OutOfDate, {**ATTEST}),
    "another version": (
        lambda x: {"signed_file": x.restated(package_version="0.0.1")},
        OutOfDate,
        {**SCORES},
    ),
    "another table": (lambda _: {"target": OTHER}, WrongTarget, {**ATTEST}),
    "a partition": (lambda _: {"target": DAY}, WrongTarget, {**ATTEST}),
    "an attestation of another partition": (
        lambda x: {"signed_file": x.restated(target=DAY)},
        WrongTarget,
        {**ATTEST},
    ),
    "a snapshot of another partition": (
        lambda x: {"taken": x.retaken(target=DAY)},
        WrongTarget,
        {**SAMPLE},
    ),
    "another snapshot": (lambda x: {"taken": chain(x.gate, 3).taken}, OutOfDate, ATTEST),
    "other rows of that name": (
        lambda x: {"taken": x.retaken(content="0" * 64)},
        OutOfDate,
        ATTEST,
    ),
    "bytes of that content": (
        lambda x: {"taken": x.retaken(sha256="0" * 64)},
        OutOfDate,
        {**ATTEST},
    ),
    "an attestation of a stranger": (
        lambda x: {"signed_file": chain(other_key(x)).signed_file},
        NotTrusted,
        ATTEST,
    ),
    "a snapshot of a stranger": (
        lambda x: {"taken": chain(other_key(x)).taken},
        NotTrusted,
        SAMPLE,
    ),
    "a result as attestation": (
        lambda x: {"signed_file": x.score},
        NotTrusted,
        {**ATTEST},
    ),
    "a renamed result": (
        lambda x: {"signed_file": renamed(x.score, "attestation")},
        NotTrusted,
        ATTEST,
    ),
    "a snapshot as attestation": (
        lambda x: {"signed_file": x.taken},
        NotTrusted,
        {**ATTEST},
    ),
    "an attestation as snapshot": (
        lambda x: {"taken": x.signed_file},
        NotTrusted,
        {**SAMPLE},
    ),
    "a renamed attestation": (
        lambda x: {"taken": renamed(x.signed_file, "snapshot")},
        NotTrusted,
        SAMPLE,
    ),
    "an attestation without a part": (
        lambda x: {"signed_file": with_body(x, lambda b: b.pop("n_rows"))},
        OutOfDate,
        ATTEST,
    ),
    "an attestation with another part": (
        lambda x: {"signed_file": with_body(x, lambda b: b.update(a=1))},
        OutOfDate,
        ATTEST,
    ),
    "a failure since": (fails_now, FailedBefore, {"failures": ("dcr.privacy_score at most 0.1",)}),
    "a changed file": (flipped, Damaged, SAMPLE),
    "a longer file": (
        lambda x: overwrite(x.snapshot.path, x.snapshot.path.read_bytes() + b"x"),
        Damaged,
        SAMPLE,
    ),
    "an empty file": (lambda x: overwrite(x.snapshot.path, b""), Damaged, SAMPLE),
    "no file": (
        lambda x: x.snapshot.path.unlink(),
        StoreUnavailable,
        {**SAMPLE, "errno": errno.ENOENT},
    ),
    "a link": (link, StoreUnavailable, {**SAMPLE, "errno": errno.ELOOP}),
    "a folder": (in_place_of_the_file(Path.mkdir), StoreUnavailable, {}),
    "a pipe": (in_place_of_the_file(os.mkfifo), StoreUnavailable, {}),
}


@pytest.mark.parametrize(("change", "kind", "fields"), REFUSED.values(), ids=REFUSED.keys())
def test_each_verification_blocks_and_the_previous_release_stays(
    ready: Chain, change: Case, kind: type[PublicationBlocked], fields: dict[str, Any]
) -> None:
    other = change(ready) or {}
    before = tree(ready.gate.releases)
    with at_most(20), blocked(kind, **fields):
        ready.publish(**other)
    assert tree(ready.gate.releases) == before
    assert shown(ready.gate) == 1


def test_the_docstring_of_publish_numbers_the_checks_in_their_order() -> None:
    lines = str(Publisher.publish.__doc__)
    numbers = [int(number) for number in re.findall(r"^ +(\d+)\. ", lines, re.MULTILINE)]
    checks = [*CHECKS_BEFORE_ENTRY, *CHECKS_WITH_LOG, *CHECKS_OF_NEW_ENTRY]
    n_of_store = 3  # checks that the release store makes
    assert numbers == list(range(1, len(checks) + n_of_store + 1))
    for number, check in enumerate(checks, start=1):
        words = " ".join(str(check.__doc__).split())
        assert f" {number}. {words}" in " ".join(lines.split())


def test_rows_that_failed_before_are_refused_for_that_if_no_limit_fails_now() -> None:
    undecided = LimitOutcome(
        Limit("dcr.privacy_score", at_most=0.1), "undecided", math.nan, "", None
    )
    error = blocking_error(Verdict("fail", (undecided,)), ["dcr.identical_excess"])
    assert isinstance(error, FailedBefore) and "failed before" in str(error)
    failed = replace(undecided, status="fail")
    assert isinstance(
        blocking_error(Verdict("fail", (failed,)), ["dcr.identical_excess"]), PolicyNotMet
    )


def test_a_refusal_names_the_limits_that_broke(gate: Gate) -> None:
    with blocked(PolicyNotMet) as caught:
        chain(gate, high=FAILING).publish()
    assert [outcome.limit for outcome in caught.value.outcomes] == list(POLICY.limits)
    assert "1 of 1 limits fails): dcr.privacy_score (fail)" in str(caught.value)


@pytest.mark.parametrize("count", [0, 1])
def test_a_table_of_no_or_one_row_goes_the_same_way(gate: Gate, count: int) -> None:
    """The policy decides whether a table with this few rows may pass."""
    frame = rows(1, count)
    published = chain(gate, frame=frame)
    published.publish()
    assert published.attestation.n_rows == count
    same_rows(read(gate), frame)
    with blocked(PolicyNotMet):
        chain(gate, frame=frame, high=FAILING).publish()


# Rollback


@pytest.mark.parametrize(
    "name", ["", "..", "../../others", "latest.json", "20240101T000000.000000Z-0123456789ab"]
)
def test_a_release_that_is_not_there_is_blocked(ready: Chain, name: str) -> None:
    with pytest.raises(InputError, match="there is no release"):
        Keeper(ready.gate).roll_back(PLACE, name)
    assert shown(ready.gate) == 1


def test_a_release_of_another_place_is_not_there(ready: Chain) -> None:
    other = chain(ready.gate, target=OTHER).publish()
    with pytest.raises(InputError, match="there is no release"):
        Keeper(ready.gate).roll_back(PLACE, other.id)
    moved = ready.gate.store.current(PLACE, ready.gate.key.trusted).folder.parent / other.id
    other.folder.rename(moved)
    with blocked(WrongTarget, record=None):
        Keeper(ready.gate).roll_back(PLACE, other.id)


def planted(ready: Chain, signed_file: SignedFile) -> None:
    overwrite(ready.gate.store.history(PLACE)[0].attestation, signed_file.data)


def first_fails(ready: Chain) -> None:
    stated = ready.gate.store.history(PLACE)[0].opened(PLACE, ready.gate.key.trusted)
    snapshot = replace(ready.snapshot, content=stated.content)
    files_of(ready.gate).sign_result(
        result(FAILING), snapshot, POLICY.judge({"dcr": result(FAILING)}).outcomes
    )


BACK: dict[str, tuple[Callable[[Chain], object], type[PublicationBlocked]]] = {
    "a changed table": (lambda x: overwrite(x.gate.store.history(PLACE)[0].table, b"x"), Damaged),
    "no table": (lambda x: shed(x.gate.store.history(PLACE)[0].table), StoreUnavailable),
    "no attestation": (
        lambda x: shed(x.gate.store.history(PLACE)[0].attestation),
        StoreUnavailable,
    ),
    "the attestation of other bytes": (lambda x: planted(x, x.signed_file), Damaged),
    "a failed attestation": (lambda x: planted(x, x.restated(verdict="fail")), Damaged),
    "an attestation of a stranger": (
        lambda x: planted(x, chain(other_key(x)).signed_file),
        NotTrusted,
    ),
    "a failure since": (first_fails, FailedBefore),
}


def shed(path: Path) -> None:
    path.parent.chmod(0o755)
    path.unlink()


@pytest.mark.parametrize(("change", "kind"), BACK.values(), ids=BACK.keys())
def test_a_release_that_is_not_whole_or_failed_since_is_not_rolled_back_to(
    ready: Chain, change: Callable[[Chain], object], kind: type[PublicationBlocked]
) -> None:
    first, second = ready.gate.store.history(PLACE)[0], ready.publish()
    change(ready)
    with blocked(kind, record=None, retry=False):
        Keeper(ready.gate).roll_back(PLACE, first.id)
    assert ready.gate.store.current(PLACE, ready.gate.key.trusted) == second
    assert shown(ready.gate) == 2


def test_a_stricter_limit_of_today_does_not_stop_a_rollback(ready: Chain) -> None:
    """The release met the policy of its time. Only a failure of one of that policy's limits
    counts.
    """
    first = ready.gate.store.history(PLACE)[0]
    stated = first.opened(PLACE, ready.gate.key.trusted)
    snapshot = replace(ready.snapshot, content=stated.content)
    today, found = stricter(0.01)["policy"], result(FAILING)
    files_of(ready.gate).sign_result(found, snapshot, today.judge({"dcr": found}).outcomes)
    with blocked(FailedBefore, failures=("dcr.privacy_score at most 0.01",)):
        chain(ready.gate, 1, policy=today, high=0.005).publish()
    assert Keeper(ready.gate).roll_back(PLACE, first.id) == first
