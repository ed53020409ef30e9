"""Attestation: the verdict of a policy on signed results, bound to the exact bytes of a synthetic table."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from privacy_assets.errors import ConfigError, PublicationRefused
from privacy_assets.gate.snapshot import Snapshot
from privacy_assets.gate.statements import Place, Statement
from privacy_assets.metrics.base import Metric
from privacy_assets.policy import Judgement, Policy
from privacy_assets.stats.estimates import plain
from privacy_assets.stats.limits import Limit, tally
from privacy_assets.stats.results import MetricResult
from privacy_assets.version import ENGINE_VERSION

_TOLD = 3  # limits that a refusal names: report and check name all


@dataclass(frozen=True)
class Attestation:
    """What was judged (table, partition, SHA-256 of the file), by which policy, on which results, with which verdict.

    ``inputs`` are the fingerprints of all tables by role, ``content`` that of the synthetic rows: keyed, never a plain
    hash of a private table; ``results`` hold statistics, no tables; ``setup`` are the settings that they were made and
    measured under. ``remembered`` are earlier failures of the same rows; with any of them the verdict is "fail".
    ``attempt`` counts the tables of these training rows of which a score was signed, this one included.
    ``dtypes`` are those of the columns in pandas, by name. ``keyid`` is the key that signed it, empty before.
    """

    place: Place
    sha256: str
    content: str
    policy: Mapping[str, Any]
    policy_digest: str
    verdict: str
    limits: Sequence[Mapping[str, Any]]
    remembered: Sequence[str]
    results: Mapping[str, Mapping[str, Any]]
    inputs: Mapping[str, str]
    setup: Mapping[str, Any]
    rows: int
    dtypes: Mapping[str, str]
    made_at: str
    attempt: int = 1  # earlier versions did not count
    engine_version: str = ENGINE_VERSION
    keyid: str = ""

    def statement(self) -> Statement:
        """What the attestation step signs."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        body = {name: plain(value) for name, value in named.items() if name not in ("place", "sha256", "keyid")}
        return Statement("attestation", self.place, self.sha256, body)

    @classmethod
    def of(cls, statement: Statement) -> Attestation:
        """Inverse of :meth:`statement`; PublicationRefused when a part is missing or unknown."""
        try:
            return cls(statement.place, statement.sha256, **statement.body, keyid=statement.keyid)
        except TypeError:
            text = "the attestation is of another version of privacy-assets; materialise it again."
            raise PublicationRefused(text) from None

    def policy_then(self) -> Policy:
        """The policy it was made under; PublicationRefused when this version cannot read it."""
        try:
            return Policy(tuple(Limit(**limit) for limit in self.policy["limits"]), self.policy["name"])
        except (KeyError, TypeError, ConfigError):
            text = f"the attestation is of another version of privacy-assets (engine {self.engine_version})"
            raise PublicationRefused(f"{text}; materialise it again.") from None

    def judge(self, policy: Policy) -> Judgement:
        """Hold the stored results against ``policy`` once more, for the texts of a refusal."""
        results = {name: MetricResult.from_json(result) for name, result in self.results.items()}
        return policy.judge(results, self.attempt)


def attest(
    snapshot: Snapshot,
    policy: Policy,
    results: Mapping[str, MetricResult],
    inputs: Mapping[str, str],
    setup: Mapping[str, Any],
    attempt: int,
    remembered: Sequence[str] = (),
) -> Attestation:
    """State the verdict of ``policy`` over ``results``, which :func:`check_result` has found to belong together."""
    judgement, judged = policy.judge(results, attempt), [name for name in results if name in policy.metrics]
    return Attestation(
        place=snapshot.place,
        sha256=snapshot.sha256,
        content=snapshot.content,
        policy=policy.to_dict(),
        policy_digest=policy.digest(),
        verdict="fail" if remembered else judgement.verdict,
        limits=[outcome.to_json() for outcome in judgement.outcomes],
        remembered=list(remembered),
        # Readers of a release get what was judged; all else is for the report, and may tell of the private tables.
        results={name: {**results[name].to_json(), "inputs": {}, "tables": {}} for name in judged},
        inputs=dict(inputs),
        setup=plain(setup),
        attempt=attempt,
        rows=snapshot.rows,
        dtypes=dict(snapshot.dtypes),
        made_at=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
    )


def check_place(found: Place, place: Place, what: str) -> None:
    """Refuse what was stated about another table or partition."""
    if found != place:
        raise PublicationRefused(f"the {what} belongs to another table or partition ({found}); materialise it again.")


def check_made(
    snapshot: Snapshot, inputs: Mapping[str, str], setup: Mapping[str, Any], metrics: Mapping[str, Metric]
) -> None:
    """Refuse a table made from other real rows, filtered otherwise, or by another generator than one attacked."""
    if snapshot.train != inputs["train"]:
        text = "the synthetic table was made from another train table; materialise generator and synthetic again."
        raise PublicationRefused(text)
    made = snapshot.filter
    if (None if made is None else plain(made.get("filters", {}))) != plain(setup.get("filter")):
        raise PublicationRefused("the synthetic table was made with another filter; materialise it again.")
    for role, read in sorted((made or {}).get("inputs", {}).items()):
        if read != inputs.get(role):
            raise PublicationRefused(f"the synthetic table was filtered by another {role} table; materialise it again.")
    made_by = snapshot.generator and {key: plain(snapshot.generator.get(key)) for key in ("name", "settings")}
    for name, metric in metrics.items():
        attacked = plain(metric.settings().get("generator"))
        if None not in (attacked, made_by) and attacked != made_by:
            text = f"the synthetic table was made by another generator than {name} attacks"
            raise PublicationRefused(f"{text}; materialise generator and synthetic again.")


def check_result(result: MetricResult, inputs: Mapping[str, str], metric: Metric | None, seed: int) -> None:
    """Refuse a result that this engine did not compute on exactly these tables, with these settings and this seed.

    ``inputs`` are the fingerprints of now, by role: the tables and, when there is one, the embedder.
    """
    if metric is not None and result.metric != metric.name:
        raise PublicationRefused(f"a result of {result.metric} stands for {metric.name}; materialise it again.")
    if result.engine_version != ENGINE_VERSION:
        text = f"{result.metric} was computed by engine {result.engine_version}; materialise it again."
        raise PublicationRefused(text)
    for role in sorted({*inputs, *result.inputs}):
        unused = role in ("embedder", "released") and (metric is None or role not in metric.needs | metric.optional)
        if not unused and result.inputs.get(role) != inputs.get(role):
            what = {"embedder": "another embedder", "released": "other earlier releases"}.get(role)
            text = f"{result.metric} was computed on {what or f'another {role} table'}; materialise it again."
            raise PublicationRefused(text)
    if metric is None or result.seed != seed or plain(result.settings) != plain(metric.settings()):
        raise PublicationRefused(f"{result.metric} was computed with other settings or seed; materialise it again.")


def check_policy(attestation: Attestation, policy: Policy, setup: Mapping[str, Any]) -> None:
    """Refuse an attestation that was made under another policy, or other settings, than those in force."""
    if attestation.policy_digest != policy.digest():
        raise PublicationRefused("the attestation was made under another policy; materialise it again.")
    now, then = plain(setup), attestation.setup
    changed = sorted(name for name in {*now, *then} if now.get(name) != then.get(name))
    if changed:
        text = f"the attestation was made under other settings ({', '.join(changed)})"
        raise PublicationRefused(f"{text}; materialise scores and attestation again.")


def check_version(attestation: Attestation) -> None:
    """Refuse an attestation of another engine: its statistics may be those of a mended error."""
    if attestation.engine_version != ENGINE_VERSION:
        text = f"the attestation was made by engine {attestation.engine_version}; materialise scores and attestation."
        raise PublicationRefused(text)


def check_verdict(attestation: Attestation, judgement: Judgement) -> None:
    """Refuse every verdict but "pass"."""
    if attestation.verdict != "pass" or judgement.verdict != "pass":
        raise PublicationRefused(refusal(judgement, attestation.remembered), judgement.broken)


def check_memory(remembered: Sequence[str]) -> None:
    """Refuse rows that failed before."""
    if remembered:
        raise PublicationRefused(failed_before(remembered))


def check_released(attestation: Attestation, fingerprint: str) -> None:
    """Refuse an attestation that was made before another table of these people was released."""
    if attestation.inputs.get("released") != fingerprint:
        text = (
            "another table was released since the attestation was made; materialise the scores and attestation again."
        )
        raise PublicationRefused(text)


def refusal(judgement: Judgement, remembered: Sequence[str] = ()) -> str:
    """One line for a verdict that is not "pass": the first limits that did not hold, with what was measured."""
    broken = sorted(judgement.broken, key=lambda outcome: outcome.status != "fail")
    lines = [f"{outcome.limit.key}: {outcome.reason}" for outcome in broken]
    if not lines:
        return failed_before(remembered)
    more = [f"and {len(lines) - _TOLD} more"] if len(lines) > _TOLD else []
    told = "; ".join([*lines[:_TOLD], *more])
    return f"The policy does not hold ({judgement.verdict}: {tally(judgement.outcomes)}): {told}"


def failed_before(remembered: Sequence[str]) -> str:
    """The text for rows that failed before."""
    return (
        "The policy does not hold: these rows failed before, and a failed verdict stays failed, whatever the run, seed"
        f" or split ({'; '.join(remembered)}). Fix: mend the generator and make another synthetic table."
    )
