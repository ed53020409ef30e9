"""Scores and report: what the synthetic table gives away, measured, signed and shown."""

from typing import Any

import dagster as dg

from privacy_assets.engine.metrics.base import Metric
from privacy_assets.engine.policy import Limit, LimitOutcome, judge_limit
from privacy_assets.engine.results import MetricResult
from privacy_assets.gate.attestation import check_result
from privacy_assets.gate.gate import Gate
from privacy_assets.gate.snapshot import Snapshot, read_snapshot
from privacy_assets.plugin import steps
from privacy_assets.plugin.assets import (
    GPU,
    POOL,
    RELEASES,
    SEALED,
    check_name,
    common,
    device_of,
    limit_text,
    partition_of,
    place_of,
    split_ins,
)
from privacy_assets.plugin.metadata import limit_metadata, score_metadata
from privacy_assets.plugin.resources import ReleaseResource
from privacy_assets.plugin.scrubbing import guarded
from privacy_assets.plugin.settings import TableSettings
from privacy_assets.plugin.versions import CHECK


def synthetic_in(settings: TableSettings) -> dict[str, dg.AssetIn]:
    """The sealed record of the synthetic table as an input."""
    return {"synthetic": dg.AssetIn(key=settings.key("synthetic"), dagster_type=SEALED)}


def score_ins(settings: TableSettings) -> dict[str, dg.AssetIn]:
    """The sealed results as inputs."""
    return {f"score_{name}": dg.AssetIn(key=settings.key(name), dagster_type=SEALED) for name in settings.metrics}


def embedder_in(settings: TableSettings) -> dict[str, dg.AssetIn]:
    """The embedder as an input, when there is one."""
    return {"embedder": dg.AssetIn(key=settings.key("embedder"))} if settings.embeds else {}


def opened(
    context: dg.AssetExecutionContext, settings: TableSettings, inputs: dict[str, Any]
) -> tuple[Gate, Snapshot, dict[str, MetricResult], dict[str, str]]:
    """Gate, snapshot and results of this run, signatures verified, and the fingerprints of the inputs of now."""
    releases: ReleaseResource = context.resources.releases
    gate = releases.gate()
    snapshot = gate.snapshot(inputs["synthetic"], place_of(context, settings))
    results = {name: gate.result(inputs[f"score_{name}"], snapshot) for name in settings.metrics}
    tables = {role: inputs[role] for role in settings.roles}
    return (
        gate,
        snapshot,
        results,
        steps.fingerprints(tables, read_snapshot(snapshot), inputs.get("embedder"), releases),
    )


def limit_spec(settings: TableSettings, limit: Limit) -> dg.AssetCheckSpec:
    """The check of one limit on its score asset: red when it does not hold, but blocking nothing by itself."""
    return dg.AssetCheckSpec(
        check_name(limit),
        asset=settings.key(limit.metric),
        description=limit_text(limit),
        partitions_def=settings.partitions_def,
        metadata={CHECK: limit.key},
    )


def limit_result(asset: dg.AssetKey, outcome: LimitOutcome) -> dg.AssetCheckResult:
    """The check result of one limit."""
    return dg.AssetCheckResult(
        asset_key=asset,
        check_name=check_name(outcome.limit),
        passed=outcome.passed,
        severity=dg.AssetCheckSeverity.ERROR,
        description=outcome.reason,
        metadata=limit_metadata(outcome),
    )


def build_score(settings: TableSettings, metric: Metric) -> dg.AssetsDefinition:
    """One metric: its figures, and one check a limit of the policy.

    Every score reads all real tables, also those that the metric does not name: scales and encoders are fitted on all
    real rows alike, so that the figures are those of ``privacy_assets.evaluate``.
    """
    embeds = settings.uses_embedder(metric)
    embedder = embedder_in(settings) if embeds else {}
    limits = [limit for limit in settings.policy.limits if limit.metric == metric.name]

    @dg.asset(
        **common(settings, metric.name, "numpy"),
        ins={**split_ins(settings), **synthetic_in(settings), **embedder},
        required_resource_keys={RELEASES, *([GPU] if embeds else [])},
        pool=POOL if embeds else None,
        check_specs=[limit_spec(settings, limit) for limit in limits],
        description=metric.summary,
    )
    @guarded
    def score(context: dg.AssetExecutionContext, **inputs: Any) -> dg.MaterializeResult:
        releases: ReleaseResource = context.resources.releases
        gate = releases.gate()
        snapshot = gate.snapshot(inputs["synthetic"], place_of(context, settings))
        tables = {role: inputs[role] for role in settings.roles}
        with device_of(context, embeds) as device:
            result = steps.score(
                metric, tables, read_snapshot(snapshot), inputs.get("embedder"), releases,
                seed=settings.seed, device=device, progress=context.log.info,
            )  # fmt: skip
        outcomes = [judge_limit(limit, result) for limit in limits]
        sealed = gate.sign_result(result, snapshot, outcomes)
        checks = [limit_result(settings.key(metric.name), outcome) for outcome in outcomes]
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

        _, snapshot, results, prints = opened(context, settings, inputs)
        for name, result in results.items():
            check_result(result, prints, settings.metrics[name], settings.seed)
        tables = {role: inputs[role] for role in settings.roles}
        ready = steps.metric_inputs(tables, read_snapshot(snapshot), seed=settings.seed)
        partition = partition_of(context)
        title = settings.name + (f", {partition}" if partition else "")
        generator = {"name": settings.generator_label or "brought by the user"}
        report = assemble(ready, results, settings.policy, title=title, generator=generator)
        facts: dict[str, Any] = {"verdict": report.verdict, "broken limits": len(report.judgement.broken)}
        return dg.MaterializeResult(value=report, metadata=facts)

    return privacy_report
