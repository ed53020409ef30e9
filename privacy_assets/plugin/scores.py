"""Scores and report: what the synthetic table gives away, measured, signed and shown."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import dagster as dg
import pandas as pd

from privacy_assets.engine.metrics.base import Metric
from privacy_assets.engine.policy import Limit, LimitOutcome, judge_limit
from privacy_assets.engine.results import MetricResult
from privacy_assets.gate.attestation import check_result
from privacy_assets.gate.gate import Gate
from privacy_assets.gate.snapshot import Snapshot, read_snapshot
from privacy_assets.gate.statements import Sealed
from privacy_assets.plugin import steps
from privacy_assets.plugin.assets import RELEASES, SEALED, check_name, common, limit_text, split_ins
from privacy_assets.plugin.metadata import limit_metadata, score_metadata
from privacy_assets.plugin.places import place_of
from privacy_assets.plugin.resources import ReleaseResource
from privacy_assets.plugin.scrubbing import guarded
from privacy_assets.plugin.settings import TableSettings
from privacy_assets.plugin.tagging import seal_of
from privacy_assets.plugin.versions import CHECK
from privacy_assets.plugin.workplace import device_of, needed, placed, workers_of

if TYPE_CHECKING:
    from privacy_assets.report.configuration import Protection


def synthetic_in(settings: TableSettings) -> dict[str, dg.AssetIn]:
    """The sealed record of the synthetic table as an input."""
    return {"synthetic": dg.AssetIn(key=settings.key("synthetic"), dagster_type=SEALED)}


def score_ins(settings: TableSettings) -> dict[str, dg.AssetIn]:
    """The sealed results as inputs."""
    return {f"score_{name}": dg.AssetIn(key=settings.key(name), dagster_type=SEALED) for name in settings.metrics}


def embedder_in(settings: TableSettings) -> dict[str, dg.AssetIn]:
    """The embedder as an input, when there is one."""
    return {"embedder": dg.AssetIn(key=settings.key("embedder"))} if settings.embeds else {}


def taken(
    context: dg.AssetExecutionContext, settings: TableSettings, inputs: dict[str, Any]
) -> tuple[Gate, Snapshot, pd.DataFrame, dict[str, str]]:
    """Gate, snapshot and its rows, and the fingerprints of what this step reads.

    PublicationRefused unless the split signed for every real table, as it stands here and under the settings of now.
    """
    place = place_of(context, settings)
    releases: ReleaseResource = context.resources.releases
    gate = releases.gate()
    snapshot = gate.snapshot(inputs["synthetic"], place)
    tables, rows = real_tables(settings, inputs), read_snapshot(snapshot)
    prints = steps.fingerprints(tables, rows, inputs.get("embedder"), releases)
    for role, frame in tables.items():
        gate.check_split(Sealed("split", seal_of(frame, role)), place, role, prints[role], settings.split_setup)
    return gate, snapshot, rows, {**prints, "released": gate.released(snapshot, settings.together).fingerprint}


def told_of(snapshot: Snapshot) -> dict[str, Any]:
    """What the signed snapshot tells of how its rows were protected; nothing of a table that was brought."""
    if snapshot.generator is None:
        return {}
    told = {key: snapshot.generator[key] for key in ("overfitting", "privacy") if key in snapshot.generator}
    if snapshot.filter is None:
        return {**told, "filter": None}
    return {**told, "filter": {key: value for key, value in snapshot.filter.items() if key != "inputs"}}


def protections(snapshot: Snapshot) -> "list[Protection]":
    """The same as a list of protections, each with its state."""
    from privacy_assets.report.configuration import privacy_configuration

    return privacy_configuration(told_of(snapshot))


def real_tables(settings: TableSettings, inputs: dict[str, Any]) -> dict[str, pd.DataFrame]:
    """The real tables among the inputs, by role."""
    return {role: inputs[role] for role in settings.roles}


def signed_results(
    gate: Gate, snapshot: Snapshot, settings: TableSettings, inputs: dict[str, Any]
) -> dict[str, MetricResult]:
    """What the score steps signed about ``snapshot``."""
    return {name: gate.result(inputs[f"score_{name}"], snapshot) for name in settings.metrics}


def limit_spec(settings: TableSettings, limit: Limit) -> dg.AssetCheckSpec:
    """The check of one limit on its score asset: red when it does not hold, but blocking nothing by itself."""
    return dg.AssetCheckSpec(
        check_name(limit),
        asset=settings.key(limit.metric),
        description=limit_text(limit),
        partitions_def=settings.partitions_def,
        metadata={CHECK: limit.key},
    )


def limit_result(
    asset: dg.AssetKey, outcome: LimitOutcome, configuration: "Sequence[Protection]" = ()
) -> dg.AssetCheckResult:
    """The check result of one limit; ``configuration`` are the protections of the table, where they are known."""
    return dg.AssetCheckResult(
        asset_key=asset,
        check_name=check_name(outcome.limit),
        passed=outcome.passed,
        severity=dg.AssetCheckSeverity.ERROR,
        description=outcome.reason,
        metadata=limit_metadata(outcome, configuration),
    )


def build_score(settings: TableSettings, metric: Metric) -> dg.AssetsDefinition:
    """One metric: its figures, and one check a limit of the policy.

    Every score reads all real tables, also those that the metric does not name: scales and encoders are fitted on all
    real rows alike, so that the figures are those of ``privacy_assets.evaluate``.
    """
    embeds = settings.uses_embedder(metric)
    embedder, on_device = embedder_in(settings) if embeds else {}, embeds or metric.uses_device
    limits = [limit for limit in settings.policy.limits if limit.metric == metric.name]

    @dg.asset(
        **common(settings, metric.name, "numpy"),
        ins={**split_ins(settings), **synthetic_in(settings), **embedder},
        required_resource_keys={RELEASES, *needed(settings, on_device)},
        **placed(settings, on_device),
        check_specs=[limit_spec(settings, limit) for limit in limits],
        description=metric.summary,
    )
    @guarded
    def score(context: dg.AssetExecutionContext, **inputs: Any) -> dg.MaterializeResult:
        gate, snapshot, rows, prints = taken(context, settings, inputs)
        with device_of(context, on_device) as device, workers_of(settings):
            asks = "released" in metric.needs | metric.optional
            earlier = gate.released(snapshot, settings.together).tables() if asks else []
            measured = steps.score(
                metric, real_tables(settings, inputs), rows, inputs.get("embedder"), earlier,
                seed=settings.seed, device=device, progress=context.log.info,
            )  # fmt: skip
        result = replace(measured, inputs=prints)
        attempt = gate.looks.attempt(
            snapshot, settings.together
        )  # whoever sees a figure has looked, whether it is attested or not
        outcomes = [judge_limit(limit, result, attempt) for limit in limits]
        sealed = gate.sign_result(result, snapshot, outcomes, settings.together)
        made_under = protections(snapshot)
        checks = [limit_result(settings.key(metric.name), outcome, made_under) for outcome in outcomes]
        facts = {**score_metadata(result, outcomes), "seed": str(settings.seed)}
        return dg.MaterializeResult(value=sealed, metadata=facts, check_results=checks)

    return score


def build_report(settings: TableSettings) -> dg.AssetsDefinition:
    """The report: one HTML page and its JSON."""

    @dg.asset(
        **common(settings, "privacy_report", "html"),
        ins={**score_ins(settings), **split_ins(settings), **synthetic_in(settings), **embedder_in(settings)},
        required_resource_keys={RELEASES},
        description="What the synthetic table gives away about real people: verdict, figures, limits. One HTML page.",
    )
    @guarded
    def privacy_report(context: dg.AssetExecutionContext, **inputs: Any) -> dg.MaterializeResult:
        from privacy_assets.report.evaluate import assemble

        gate, snapshot, rows, prints = taken(context, settings, inputs)
        results = signed_results(gate, snapshot, settings, inputs)
        for name, result in results.items():
            check_result(result, prints, settings.metrics[name], settings.seed)
        ready = steps.metric_inputs(real_tables(settings, inputs), rows, seed=settings.seed)
        title = str(snapshot.place)
        generator = {"name": settings.generator_label or "brought by the user", **told_of(snapshot)}
        attempt = gate.looks.attempt(snapshot, settings.together)
        report = assemble(ready, results, settings.policy, attempt, title=title, generator=generator)
        facts: dict[str, Any] = {"verdict": report.verdict, "broken limits": len(report.judgement.broken)}
        return dg.MaterializeResult(value=report, metadata=facts)

    return privacy_report
