"""Scores, report, attestation and publication: the second half of a table's pipeline."""

from typing import Any

import dagster as dg
import pandas as pd

from privacy_assets.engine.metrics.base import Metric
from privacy_assets.engine.policy import Limit, LimitOutcome, judge_limit
from privacy_assets.engine.results import MetricResult
from privacy_assets.errors import PublicationRefused
from privacy_assets.gate.attestation import Attestation, attest, refusal
from privacy_assets.gate.snapshot import Snapshot, read_snapshot
from privacy_assets.plugin import steps
from privacy_assets.plugin.assets import (
    GPU,
    POOL,
    RELEASES,
    check_name,
    common,
    device_of,
    limit_text,
    partition_of,
    split_ins,
)
from privacy_assets.plugin.io import Published
from privacy_assets.plugin.metadata import broken_metadata, limit_metadata, score_metadata, synthetic_metadata
from privacy_assets.plugin.settings import TableSettings
from privacy_assets.plugin.versions import CHECK

HOLDS = "policy_holds"


def _synthetic_in(settings: TableSettings) -> dict[str, dg.AssetIn]:
    return {"synthetic": dg.AssetIn(key=settings.key("synthetic"))}


def _score_ins(settings: TableSettings) -> dict[str, dg.AssetIn]:
    return {f"score_{name}": dg.AssetIn(key=settings.key(name)) for name in settings.metrics}


def _taken(inputs: dict[str, Any], settings: TableSettings) -> tuple[dict[str, MetricResult], dict[str, pd.DataFrame]]:
    results = {name: inputs[f"score_{name}"] for name in settings.metrics}
    return results, {role: inputs[role] for role in settings.roles}


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
    embedder = {"embedder": dg.AssetIn(key=settings.key("embedder"))} if embeds else {}
    limits = [limit for limit in settings.policy.limits if limit.metric == metric.name]

    @dg.asset(
        **common(settings, metric.name, "numpy"),
        ins={**split_ins(settings), **_synthetic_in(settings), **embedder},
        required_resource_keys={RELEASES, *([GPU] if embeds else [])},
        pool=POOL if embeds else None,
        check_specs=[limit_spec(settings, limit) for limit in limits],
        description=metric.summary,
    )
    def score(context: dg.AssetExecutionContext, **inputs: Any) -> dg.MaterializeResult:
        tables = {role: inputs[role] for role in settings.roles}
        synthetic = read_snapshot(inputs["synthetic"])
        with device_of(context, embeds) as device:
            ready = steps.metric_inputs(tables, synthetic, seed=settings.seed, device=device, progress=context.log.info)
            result = steps.score(metric, ready, inputs.get("embedder"), context.resources.releases)
        outcomes = [judge_limit(limit, result) for limit in limits]
        checks = [limit_result(settings.key(metric.name), outcome) for outcome in outcomes]
        facts = {**score_metadata(result, outcomes), "seed": str(settings.seed)}
        return dg.MaterializeResult(value=result, metadata=facts, check_results=checks)

    return score


def build_report(settings: TableSettings) -> dg.AssetsDefinition:
    """The report: one HTML page and its JSON."""

    @dg.asset(
        **common(settings, "privacy_report", "html"),
        ins={**_score_ins(settings), **split_ins(settings), **_synthetic_in(settings)},
        required_resource_keys={RELEASES},
        description="What the synthetic table gives away about real people: verdict, figures, limits. One HTML page.",
    )
    def privacy_report(context: dg.AssetExecutionContext, **inputs: Any) -> dg.MaterializeResult:
        from privacy_assets.report.evaluate import assemble

        results, tables = _taken(inputs, settings)
        ready = steps.metric_inputs(tables, read_snapshot(inputs["synthetic"]), seed=settings.seed)
        partition = partition_of(context)
        title = settings.name + (f", {partition}" if partition else "")
        generator = {"name": settings.generator_label or "brought by the user"}
        report = assemble(ready, results, settings.policy, title=title, generator=generator)
        facts: dict[str, Any] = {"verdict": report.verdict, "broken limits": len(report.judgement.broken)}
        return dg.MaterializeResult(value=report, metadata=facts)

    return privacy_report


def build_attestation(settings: TableSettings) -> dg.AssetsDefinition:
    """The verdict, bound to the bytes of the synthetic table, and the one blocking check."""
    key = settings.key("attestation")

    @dg.asset(
        **common(settings, "attestation", "json"),
        ins={**_score_ins(settings), **split_ins(settings), **_synthetic_in(settings)},
        required_resource_keys={RELEASES},
        check_specs=[
            dg.AssetCheckSpec(
                HOLDS,
                asset=key,
                blocking=True,
                description="Every limit of the policy holds. Nothing is published unless it does.",
                partitions_def=settings.partitions_def,
                metadata={CHECK: HOLDS},
            )
        ],
        description="The verdict of the policy over all scores, bound to the exact bytes of the synthetic table.",
    )
    def attestation(context: dg.AssetExecutionContext, **inputs: Any) -> dg.MaterializeResult:
        results, tables = _taken(inputs, settings)
        stated = _attest(context, settings, results, tables, inputs["synthetic"])
        judgement = stated.judge(settings.policy)
        check = dg.AssetCheckResult(
            asset_key=key,
            check_name=HOLDS,
            passed=judgement.verdict == "pass",
            description=refusal(judgement) if judgement.broken else f"all {len(judgement.outcomes)} limits hold",
            metadata={"verdict": judgement.verdict, **broken_metadata(judgement.broken)},
        )
        facts: dict[str, Any] = {
            "verdict": stated.verdict,
            "sha256": stated.sha256,
            "policy": settings.policy.name,
            "policy_digest": stated.policy_digest,
            "limits": len(stated.limits),
        }
        return dg.MaterializeResult(value=stated, metadata=facts, check_results=[check])

    return attestation


def _attest(
    context: dg.AssetExecutionContext,
    settings: TableSettings,
    results: dict[str, MetricResult],
    tables: dict[str, pd.DataFrame],
    snapshot: Snapshot,
) -> Attestation:
    try:
        prints = steps.table_fingerprints(tables, read_snapshot(snapshot), context.resources.releases)
        return attest(
            settings.name,
            partition_of(context),
            snapshot,
            settings.policy,
            results,
            prints,
            settings.metrics,
            settings.seed,
        )
    except PublicationRefused as error:
        raise dg.Failure(description=str(error), allow_retries=False) from None


def build_published(settings: TableSettings) -> dg.AssetsDefinition:
    """The release. It does not trust Dagster's checks: it verifies attestation, policy and bytes itself."""

    @dg.asset(
        **common(settings, "published", "parquet"),
        ins={"attestation": dg.AssetIn(key=settings.key("attestation")), **_synthetic_in(settings)},
        required_resource_keys={RELEASES},
        automation_condition=dg.AutomationCondition.eager() & dg.AutomationCondition.all_deps_blocking_checks_passed(),
        description="The released table, the only one other teams may read. Verified before it is moved into place.",
    )
    def published(context: dg.AssetExecutionContext, attestation: Any, synthetic: Any) -> dg.MaterializeResult:
        store = context.resources.releases.store
        partition = partition_of(context)
        _refuse_foreign(attestation, settings.name, partition)
        try:
            release = store.publish(attestation, synthetic, settings.policy)
        except PublicationRefused as error:
            broken = attestation.judge(settings.policy).broken
            raise dg.Failure(str(error), metadata=broken_metadata(broken), allow_retries=False) from None
        facts = {
            **synthetic_metadata(synthetic, settings.key("synthetic")),
            "release": release.id,
            "folder": dg.MetadataValue.path(str(release.folder)),
        }
        value = Published(str(store.root), settings.name, partition, release.id)
        return dg.MaterializeResult(value=value, metadata=facts, data_version=dg.DataVersion(attestation.sha256))

    return published


def _refuse_foreign(attestation: Attestation, table: str, partition: str | None) -> None:
    """Fail when the attestation speaks of another table or partition."""
    if (attestation.table, attestation.partition) != (table, partition):
        text = "the attestation belongs to another table or partition; materialise it again."
        raise dg.Failure(text, allow_retries=False)
