"""Attestation: the verdict of a policy, bound to the exact bytes of a synthetic table.

The simple form: a plain JSON statement. Whoever may write to the release folder could forge it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from privacy_assets.engine.metrics.base import Metric
from privacy_assets.engine.policy import Judgement, Policy
from privacy_assets.engine.results import MetricResult, plain
from privacy_assets.engine.version import ENGINE_VERSION
from privacy_assets.errors import PublicationRefused
from privacy_assets.gate.snapshot import Snapshot

FORMAT = "privacy-assets/attestation/1"


@dataclass(frozen=True)
class Attestation:
    """What was judged (table, partition, snapshot hash), by which policy, on which results, with which verdict.

    ``inputs`` are the fingerprints of all tables by role, those of private tables keyed: never a plain hash of one.
    """

    table: str
    partition: str | None
    sha256: str
    policy: Mapping[str, Any]
    policy_digest: str
    verdict: str
    limits: tuple[Mapping[str, Any], ...]
    results: Mapping[str, Mapping[str, Any]]
    inputs: Mapping[str, str]
    engine_version: str = ENGINE_VERSION

    def to_bytes(self) -> bytes:
        """Canonical JSON: sorted keys, no NaN."""
        body = {"format": FORMAT, **self.__dict__, "limits": list(self.limits)}
        return json.dumps(body, sort_keys=True, indent=1, allow_nan=False).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Attestation:
        """Inverse of :meth:`to_bytes`; PublicationRefused for anything else."""
        try:
            body = json.loads(data)
            if body.pop("format") != FORMAT:
                raise PublicationRefused("the attestation has an unknown format; materialise the attestation again.")
            return cls(**{**body, "limits": tuple(body["limits"])})
        except (ValueError, KeyError, TypeError, AttributeError):
            raise PublicationRefused("the attestation cannot be read; materialise the attestation again.") from None

    def judge(self, policy: Policy) -> Judgement:
        """Hold the stored results against ``policy`` once more."""
        return policy.judge({name: MetricResult.from_json(result) for name, result in self.results.items()})


def attest(
    table: str,
    partition: str | None,
    snapshot: Snapshot,
    policy: Policy,
    results: Mapping[str, MetricResult],
    inputs: Mapping[str, str],
    metrics: Mapping[str, Metric],
    seed: int,
) -> Attestation:
    """State the verdict of ``policy`` over ``results``.

    ``inputs`` are the fingerprints of the tables of now, ``metrics`` the metrics as they are set now. Every result must
    have been computed by this engine on exactly these tables, with these settings and this ``seed``, and the synthetic
    table made from this train; PublicationRefused otherwise.
    """
    if snapshot.train != inputs["train"]:
        text = "the synthetic table was made from another train table; materialise generator and synthetic again."
        raise PublicationRefused(text)
    for name, result in results.items():
        if result.engine_version != ENGINE_VERSION:
            raise PublicationRefused(f"{name} was computed by engine {result.engine_version}; materialise it again.")
        for role in sorted({*inputs, *result.inputs}):
            if result.inputs.get(role) != inputs.get(role):
                raise PublicationRefused(f"{name} was computed on another {role} table; materialise it again.")
        if name not in metrics or result.seed != seed or plain(result.settings) != plain(metrics[name].settings()):
            raise PublicationRefused(f"{name} was computed with other settings or seed; materialise it again.")
    judgement = policy.judge(results)
    public = {name: {**result.to_json(), "inputs": {}} for name, result in results.items()}
    return Attestation(
        table=table,
        partition=partition,
        sha256=snapshot.sha256,
        policy=policy.to_dict(),
        policy_digest=policy.digest(),
        verdict=judgement.verdict,
        limits=tuple(outcome.to_json() for outcome in judgement.outcomes),
        results=public,
        inputs=dict(inputs),
    )


def refusal(judgement: Judgement) -> str:
    """One text for a verdict that is not "pass": each limit that did not hold, with what was measured."""
    lines = [f"{outcome.limit.key}: {outcome.reason}" for outcome in judgement.broken]
    count = f"{len(lines)} of {len(judgement.outcomes)} limits"
    return f"The policy does not hold ({judgement.verdict}, {count}): " + "; ".join(lines)
