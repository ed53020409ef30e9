"""The gate: every verification refuses for its own reason, and what passes all of them is published."""

from __future__ import annotations

import json
import os
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
    chain,
    make_gate,
    overwrite,
    read,
    result,
    rows,
    same_rows,
    tree,
)

from privacy_assets.errors import PublicationRefused
from privacy_assets.gate.attestation import Attestation
from privacy_assets.gate.gate import Gate
from privacy_assets.gate.snapshot import Snapshot
from privacy_assets.gate.statements import Place, Sealed, Statement, seal
from privacy_assets.generators import build_generator
from privacy_assets.metrics.dcr import Dcr
from privacy_assets.metrics.shadow_membership import ShadowMembership
from privacy_assets.policy import Policy
from privacy_assets.stats.limits import Limit
from privacy_assets.stats.results import MetricResult

OTHER = Place("others")
DAY = Place("patients", "2024-01-01")


@pytest.fixture
def ready(gate: Gate) -> Chain:
    """Everything signed and judged to pass, with an earlier release of other rows."""
    chain(gate, 1).publish()
    return chain(gate, 2)


def shown(gate: Gate) -> int:
    """The number of the table that readers get."""
    return int(read(gate)["number"].iloc[0])


# Attestation


def attested(ready: Chain, *results: MetricResult, **changes: Any) -> Attestation:
    """What is attested over these signed results, with other inputs, metrics, setup or snapshot."""
    given = {"snapshot": ready.snapshot, "inputs": INPUTS, "metrics": METRICS, "setup": SETUP, **changes}
    read_back = {}
    for one in results:
        statement = Statement("result", ready.place, ready.snapshot.sha256, one.to_json())
        read_back["dcr"] = ready.gate.result(seal(statement, ready.gate.key), given["snapshot"])
    stated, sealed = ready.gate.attest(policy=POLICY, results=read_back, **given)
    assert ready.gate.attestation(sealed, ready.place) == stated
    return stated


def test_an_attestation_says_what_was_judged_and_holds_statistics_but_no_tables(ready: Chain) -> None:
    stated = attested(ready, result(tables={"ranking": [{"rank": 1, "role": "train", "row": 39435}]}))
    assert (stated.verdict, stated.rows, stated.sha256) == ("pass", 3, ready.snapshot.sha256)
    assert (stated.policy, stated.policy_digest) == (POLICY.to_dict(), POLICY.digest())
    assert stated.inputs == {**INPUTS, "released": ready.gate.released(ready.snapshot).fingerprint}
    assert stated.attempt == 2
    assert stated.keyid == ready.gate.key.signer.public_key.keyid
    assert MetricResult.from_json(stated.results["dcr"]).estimates == result().estimates
    assert "39435" not in json.dumps(stated.statement().body)


@pytest.mark.parametrize("role", ["train", "holdout", "synthetic", "reference", "embedder"])
def test_results_on_other_tables_are_not_attested(ready: Chain, role: str) -> None:
    """Also on a table that only one of the two sides knows."""
    changed = {**INPUTS, role: "other"}
    snapshot = replace(ready.snapshot, train=changed["train"])
    with pytest.raises(PublicationRefused, match=rf"dcr was computed on another {role}"):
        attested(ready, result(), inputs=changed, snapshot=snapshot)
    with pytest.raises(PublicationRefused, match=rf"dcr was computed on another {role}"):
        attested(ready, result(inputs=changed))


class Unembedded(Dcr):
    """A metric that does not read the embedder."""

    optional = frozenset()


def test_an_embedder_that_the_metric_does_not_read_may_change(ready: Chain) -> None:
    inputs = {**INPUTS, "embedder": "e"}
    assert attested(ready, result(), inputs=inputs, metrics={"dcr": Unembedded()}).verdict == "pass"


WRONG_RESULTS: dict[str, tuple[dict[str, Any], str]] = {
    "no tables": ({"inputs": {}}, "another holdout table"),
    "other seed": ({"seed": 1}, "other settings or seed"),
    "no settings": ({"settings": {}}, "other settings or seed"),
    "other settings": ({"settings": {**DCR.settings(), "permutations": 199}}, "other settings or seed"),
    "other engine": ({"engine_version": "0.0.1"}, r"engine 0\.0\.1"),
    "no engine": ({"engine_version": ""}, "engine"),
    "another metric": ({"metric": "linkability"}, "linkability"),
}


def test_results_of_another_computation_are_not_attested(ready: Chain) -> None:
    for change, match in WRONG_RESULTS.values():
        with pytest.raises(PublicationRefused, match=match):
            attested(ready, result(**change))
    with pytest.raises(PublicationRefused, match="other settings"):  # of a metric that is not run
        attested(ready, result(), metrics={})


FILTERS: dict[str, Any] = {"memorization": {"crowd": 5}}


def test_a_filtered_table_is_attested_as_such(ready: Chain) -> None:
    filtered = {"filters": FILTERS, "inputs": {role: INPUTS[role] for role in ("train", "holdout")}}
    snapshot, taken = ready.gate.take_snapshot(rows(2), PLACE, INPUTS["train"], filtered)
    assert ready.gate.snapshot(taken, PLACE) == snapshot
    assert attested(ready, result(), snapshot=snapshot, setup={**SETUP, "filter": FILTERS}).setup["filter"] == FILTERS


@pytest.mark.parametrize(
    ("then", "now", "match"),
    [
        (None, FILTERS, "made with another filter"),
        ({"filters": FILTERS, "inputs": {}}, None, "made with another filter"),
        ({"name": "memorization", "settings": {"crowd": 5}, "inputs": {}}, None, "made with another filter"),
        ({"filters": FILTERS, "inputs": {}}, {"memorization": {"crowd": 4}}, "made with another filter"),
        ({"filters": FILTERS, "inputs": {}}, {**FILTERS, "outliers": {}}, "made with another filter"),
        ({"filters": FILTERS, "inputs": {"holdout": "other"}}, FILTERS, "filtered by another holdout table"),
        ({"filters": FILTERS, "inputs": {"reference": "r"}}, FILTERS, "filtered by another reference table"),
    ],
)
def test_a_table_that_was_filtered_otherwise_is_not_attested(ready: Chain, then: Any, now: Any, match: str) -> None:
    with pytest.raises(PublicationRefused, match=match):
        attested(ready, result(), snapshot=replace(ready.snapshot, filter=then), setup={**SETUP, "filter": now})


def test_a_table_of_another_generator_or_train_than_was_attacked_is_not_attested(ready: Chain) -> None:
    metrics = {**METRICS, "shadow_membership": ShadowMembership(generator="baynet")}

    def made_by(name: str) -> Snapshot:
        generator = {"name": name, "settings": build_generator(name).settings()}
        return replace(ready.snapshot, generator=generator)

    for snapshot in (made_by("baynet"), ready.snapshot):  # of an external table only its owner knows the generator
        assert Snapshot.of(snapshot.statement(), snapshot.path.parent) == snapshot
        assert attested(ready, result(), snapshot=snapshot, metrics=metrics).verdict == "pass"
    with pytest.raises(PublicationRefused, match="another generator than shadow_membership attacks"):
        attested(ready, result(), snapshot=made_by("synthpop"), metrics=metrics)
    with pytest.raises(PublicationRefused, match="made from another train table"):
        attested(ready, result(), snapshot=replace(ready.snapshot, train="old"))


@pytest.mark.parametrize(
    ("snapshot", "match"),
    [({"sha256": "0" * 64}, "dcr was computed on another synthetic table"), ({"place": DAY}, "another table or part")],
)
def test_results_of_another_snapshot_or_partition_are_not_read(
    ready: Chain, snapshot: dict[str, Any], match: str
) -> None:
    with pytest.raises(PublicationRefused, match=match):
        ready.gate.result(ready.score, replace(ready.snapshot, **snapshot))


def test_a_statistic_that_is_missing_is_no_pass_and_a_broken_limit_a_failure(ready: Chain) -> None:
    for results in ((), (result(estimates=()),), (result(float("nan")),)):
        assert attested(ready, *results).verdict == "not_assessable"
    assert attested(ready, result(FAILING)).verdict == "fail"


def test_a_bound_that_holds_at_first_does_not_when_tried_again(gate: Gate) -> None:
    """0.01 + 0.06 x 1.496 is just less than the limit of 0.1, 0.01 + 0.06 x 1.58 is not."""
    verdicts = [chain(gate, number, high=0.07).stated.verdict for number in (1, 2, 3, 4)]
    assert verdicts == ["pass", "pass", "pass", "not_assessable"]
    with pytest.raises(PublicationRefused, match="at attempt 5 from the same training rows"):
        chain(gate, 5, high=0.07).publish()


# Publication: each case breaks one thing only


def other_key(ready: Chain) -> Gate:
    stranger = make_gate(ready.gate.private.parent / "stranger")
    return replace(ready.gate, key=stranger.key)


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


def renamed(sealed: Sealed, kind: Any) -> Sealed:
    return Sealed(kind, sealed.data)


def fails_now(ready: Chain) -> None:
    ready.gate.sign_result(result(FAILING), ready.snapshot, POLICY.judge({"dcr": result(FAILING)}).outcomes)


def unsigned_verdict(ready: Chain) -> Sealed:
    """A verdict "pass" over statistics that break a limit."""
    return ready.restated(results={"dcr": result(FAILING).to_json()})


def with_body(ready: Chain, change: Callable[[dict[str, Any]], object]) -> Sealed:
    stated = ready.stated.statement()
    body = dict(stated.body)
    change(body)
    return seal(replace(stated, body=body), ready.gate.key)


Case = Callable[[Chain], dict[str, Any] | None]
REFUSED: dict[str, tuple[Case, str]] = {
    "a verdict fail": (lambda x: {"sealed": x.restated(verdict="fail")}, "failed before"),
    "a verdict not_assessable": (lambda x: {"sealed": x.restated(verdict="not_assessable")}, "policy does not hold"),
    "an unknown verdict": (lambda x: {"sealed": x.restated(verdict="Pass")}, "policy does not hold"),
    "statistics that break a limit": (
        lambda x: {"sealed": unsigned_verdict(x)},
        "dcr.privacy_score: 0.2109 is above .* at attempt 2",
    ),
    "statistics that are missing": (lambda x: {"sealed": x.restated(results={})}, "dcr.privacy_score was not computed"),
    "a stricter policy": (lambda _: stricter(0.06), "under another policy"),
    "a looser policy": (lambda _: stricter(0.5), "under another policy"),
    "another engine": (lambda x: {"sealed": x.restated(engine_version="0.0.1")}, "made by engine 0.0.1"),
    "another table": (lambda _: {"place": OTHER}, "attestation belongs to another table or partition"),
    "a partition": (lambda _: {"place": DAY}, "attestation belongs to another table or partition"),
    "an attestation of another partition": (lambda x: {"sealed": x.restated(place=DAY)}, "attestation belongs to"),
    "a snapshot of another partition": (lambda x: {"taken": x.retaken(place=DAY)}, "snapshot belongs to another"),
    "another snapshot": (lambda x: {"taken": chain(x.gate, 3).taken}, "another synthetic table"),
    "other rows of that name": (lambda x: {"taken": x.retaken(content="0" * 64)}, "another synthetic table"),
    "bytes of that content": (lambda x: {"taken": x.retaken(sha256="0" * 64)}, "another synthetic table"),
    "an attestation of a stranger": (lambda x: {"sealed": chain(other_key(x)).sealed}, "attestation was signed by"),
    "a snapshot of a stranger": (lambda x: {"taken": chain(other_key(x)).taken}, "snapshot was signed by key"),
    "a result as attestation": (lambda x: {"sealed": x.score}, "a signed result stands for the attestation"),
    "a renamed result": (lambda x: {"sealed": renamed(x.score, "attestation")}, "another kind or version"),
    "a snapshot as attestation": (lambda x: {"sealed": x.taken}, "a signed snapshot stands for the attestation"),
    "an attestation as snapshot": (lambda x: {"taken": x.sealed}, "a signed attestation stands for the snapshot"),
    "a renamed attestation": (lambda x: {"taken": renamed(x.sealed, "snapshot")}, "another kind or version"),
    "an attestation without a part": (lambda x: {"sealed": with_body(x, lambda b: b.pop("rows"))}, "another version"),
    "an attestation with another part": (
        lambda x: {"sealed": with_body(x, lambda b: b.update(a=1))},
        "another version",
    ),
    "a failure since": (fails_now, "failed before"),
    "a changed file": (flipped, "changed after it was judged"),
    "a longer file": (
        lambda x: overwrite(x.snapshot.path, x.snapshot.path.read_bytes() + b"x"),
        "changed after it was",
    ),
    "an empty file": (lambda x: overwrite(x.snapshot.path, b""), "changed after it was judged"),
    "no file": (lambda x: x.snapshot.path.unlink(), "snapshot cannot be read"),
    "a link": (link, "snapshot cannot be read"),
    "a folder": (in_place_of_the_file(Path.mkdir), "could not be written|cannot be read"),
    "a pipe": (in_place_of_the_file(os.mkfifo), "changed after it was judged|cannot be read"),
}


@pytest.mark.parametrize(("change", "match"), REFUSED.values(), ids=REFUSED.keys())
def test_each_verification_refuses_and_the_previous_release_stays(ready: Chain, change: Case, match: str) -> None:
    other = change(ready) or {}
    before = tree(ready.gate.releases)
    with at_most(20), pytest.raises(PublicationRefused, match=match):
        ready.publish(**other)
    assert tree(ready.gate.releases) == before
    assert shown(ready.gate) == 1


def test_a_refusal_names_the_limits_that_broke(gate: Gate) -> None:
    with pytest.raises(PublicationRefused, match=r"dcr\.privacy_score: 0\.2031 is above the limit 0\.1") as caught:
        chain(gate, high=FAILING).publish()
    assert [outcome.limit for outcome in caught.value.broken] == list(POLICY.limits)


@pytest.mark.parametrize("count", [0, 1])
def test_a_table_of_no_or_one_row_goes_the_same_way(gate: Gate, count: int) -> None:
    """Whether so few rows may pass is the policy's business."""
    frame = rows(1, count)
    published = chain(gate, frame=frame)
    published.publish()
    assert published.stated.rows == count
    same_rows(read(gate), frame)
    with pytest.raises(PublicationRefused):
        chain(gate, frame=frame, high=FAILING).publish()


# Going back


@pytest.mark.parametrize("name", ["", "..", "../../others", "latest.json", "20240101T000000.000000Z-0123456789ab"])
def test_a_release_that_is_not_there_is_refused(ready: Chain, name: str) -> None:
    with pytest.raises(PublicationRefused, match="has no release"):
        ready.gate.roll_back(PLACE, name)
    assert shown(ready.gate) == 1


def test_a_release_of_another_place_is_not_there(ready: Chain) -> None:
    other = chain(ready.gate, place=OTHER).publish()
    with pytest.raises(PublicationRefused, match="has no release"):
        ready.gate.roll_back(PLACE, other.id)
    moved = ready.gate.store.current(PLACE).folder.parent / other.id
    other.folder.rename(moved)
    with pytest.raises(PublicationRefused, match="attestation belongs to another table"):
        ready.gate.roll_back(PLACE, other.id)


def planted(ready: Chain, sealed: Sealed) -> None:
    overwrite(ready.gate.store.history(PLACE)[0].attestation, sealed.data)


def first_fails(ready: Chain) -> None:
    stated = ready.gate.store.history(PLACE)[0].opened(PLACE, ready.gate.key.trusted)
    snapshot = replace(ready.snapshot, content=stated.content)
    ready.gate.sign_result(result(FAILING), snapshot, POLICY.judge({"dcr": result(FAILING)}).outcomes)


BACK: dict[str, tuple[Callable[[Chain], object], str]] = {
    "a changed table": (
        lambda x: overwrite(x.gate.store.history(PLACE)[0].table, b"x"),
        "does not hold the bytes that were judged",
    ),
    "no table": (lambda x: shed(x.gate.store.history(PLACE)[0].table), "cannot be read"),
    "no attestation": (lambda x: shed(x.gate.store.history(PLACE)[0].attestation), "attestation.*cannot be read"),
    "the attestation of other bytes": (lambda x: planted(x, x.sealed), "does not hold the bytes that were judged"),
    "a failed attestation": (lambda x: planted(x, x.restated(verdict="fail")), "says 'fail'"),
    "an attestation of a stranger": (lambda x: planted(x, chain(other_key(x)).sealed), "not trusted"),
    "a failure since": (first_fails, "failed before"),
}


def shed(path: Path) -> None:
    path.parent.chmod(0o755)
    path.unlink()


@pytest.mark.parametrize(("change", "match"), BACK.values(), ids=BACK.keys())
def test_a_release_that_is_not_whole_or_failed_since_is_not_rolled_back_to(
    ready: Chain, change: Callable[[Chain], object], match: str
) -> None:
    first, second = ready.gate.store.history(PLACE)[0], ready.publish()
    change(ready)
    with pytest.raises(PublicationRefused, match=match):
        ready.gate.roll_back(PLACE, first.id)
    assert ready.gate.store.current(PLACE) == second
    assert shown(ready.gate) == 2


def test_a_stricter_limit_of_today_does_not_stop_a_rollback(ready: Chain) -> None:
    """The release held the policy of its day; only a failure of one of those limits counts."""
    first = ready.gate.store.history(PLACE)[0]
    stated = first.opened(PLACE, ready.gate.key.trusted)
    snapshot = replace(ready.snapshot, content=stated.content)
    today, found = stricter(0.01)["policy"], result(FAILING)
    ready.gate.sign_result(found, snapshot, today.judge({"dcr": found}).outcomes)
    with pytest.raises(PublicationRefused, match="failed before"):
        chain(ready.gate, 1, policy=today, high=0.005).publish()
    assert ready.gate.roll_back(PLACE, first.id) == first
