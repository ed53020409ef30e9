"""Scores: what the synthetic table gives away, measured and signed."""

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from privacy_assets.dagster.assets import RELEASES, SEALED, check_name, common, limit_text, split_ins
from privacy_assets.dagster.metadata import limit_metadata, score_metadata
from privacy_assets.dagster.places import steps_of
from privacy_assets.dagster.redaction import checked_step
from privacy_assets.dagster.settings import TableSettings
from privacy_assets.dagster.step_device import GPU, device_of, needed, placed, workers_of
from privacy_assets.dagster.versions import CHECK
from privacy_assets.gate.statements import Sealed
from privacy_assets.metrics.base import Metric
from privacy_assets.stats.limits import Limit, LimitOutcome


def synthetic_in(settings: TableSettings) -> dict[str, dg.AssetIn]:
    """The sealed record of the synthetic table as an input."""
    return {"synthetic": dg.AssetIn(key=settings.key("synthetic"), dagster_type=SEALED)}


def score_ins(settings: TableSettings) -> dict[str, dg.AssetIn]:
    """The sealed results as inputs."""
    return {f"score_{name}": dg.AssetIn(key=settings.key(name), dagster_type=SEALED) for name in settings.metrics}


def embedder_in(settings: TableSettings) -> dict[str, dg.AssetIn]:
    """The embedder as an input, when there is one."""
    return {"embedder": dg.AssetIn(key=settings.key("embedder"))} if settings.embeds else {}


def encoded_in(settings: TableSettings) -> dict[str, dg.AssetIn]:
    """The encoded tables as an input."""
    return {"encoded": dg.AssetIn(key=settings.key("encoded"))}


def given_scores(settings: TableSettings, inputs: dict[str, Any]) -> dict[str, Sealed]:
    """The sealed results among the inputs, by metric."""
    return {name: inputs[f"score_{name}"] for name in settings.metrics}


def build_encoded(settings: TableSettings) -> dg.AssetsDefinition:
    """All tables of one release in one coded form, which every score reads."""

    @dg.asset(
        **common(settings, "encoded", "numpy"),
        ins={**split_ins(settings), **synthetic_in(settings), **embedder_in(settings)},
        required_resource_keys={RELEASES, *([GPU] if settings.embeds else [])},
        **placed(settings, settings.embeds),
        description="All tables of this release, prepared, verified and fingerprinted once, signed: scores read it.",
    )
    @checked_step
    def encoded(context: dg.AssetExecutionContext, synthetic: Any, **inputs: Any) -> dg.MaterializeResult:
        steps = steps_of(context, settings)
        tables = {role: inputs[role] for role in settings.roles}
        with device_of(context, settings.embeds) as device:
            made = steps.encoded(tables, synthetic, inputs.get("embedder"), device)
        metadata = {f"{role} rows": size["rows"] for role, size in made.metadata.sizes.items()}
        return dg.MaterializeResult(value=made, metadata={**metadata, "sha256": made.snapshot.sha256})

    return encoded


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
    asset: dg.AssetKey, outcome: LimitOutcome, advised: Sequence[Mapping[str, Any]] | None = None
) -> dg.AssetCheckResult:
    """The check result of one limit; ``advised`` as for :func:`limit_metadata`."""
    return dg.AssetCheckResult(
        asset_key=asset,
        check_name=check_name(outcome.limit),
        passed=outcome.passed,
        severity=dg.AssetCheckSeverity.ERROR,
        description=outcome.reason,
        metadata=limit_metadata(outcome, advised),
    )


def build_score(settings: TableSettings, metric: Metric) -> dg.AssetsDefinition:
    """One metric: its statistics, and one check a limit of the policy."""
    on_device = settings.uses_embedder(metric) or metric.uses_device
    limits = [limit for limit in settings.policy.limits if limit.metric == metric.name]

    @dg.asset(
        **common(settings, metric.name, "numpy"),
        ins=encoded_in(settings),
        required_resource_keys={RELEASES, *needed(settings, on_device)},
        **placed(settings, on_device),
        check_specs=[limit_spec(settings, limit) for limit in limits],
        description=metric.summary,
    )
    @checked_step
    def score(context: dg.AssetExecutionContext, encoded: Any) -> dg.MaterializeResult:
        steps = steps_of(context, settings)
        with device_of(context, on_device) as device, workers_of(settings):
            found = steps.score(metric, encoded, device)
        key = settings.key(metric.name)
        checks = [limit_result(key, outcome) for outcome in found.outcomes]
        metadata = {**score_metadata(found.result, found.outcomes), "seed": str(settings.seed)}
        return dg.MaterializeResult(value=found.sealed, metadata=metadata, check_results=checks)

    return score
