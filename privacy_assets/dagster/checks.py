"""Privacy checks for tables that the user's own assets hold: the statistics without the pipeline."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import dagster as dg
import pandas as pd

from privacy_assets.compute.progress import Lines
from privacy_assets.dagster.assets import check_name, limit_text
from privacy_assets.dagster.redaction import redact_exceptions
from privacy_assets.dagster.scores import limit_result
from privacy_assets.dagster.settings import chosen_tags
from privacy_assets.dagster.step_device import GPU, device_of
from privacy_assets.dagster.versions import CHECK
from privacy_assets.errors import ConfigError
from privacy_assets.evaluation import (
    MetricsLike,
    attach_embedder,
    fit_embedder,
    prepare_inputs,
    run_metrics,
    wants_embedder,
)
from privacy_assets.pipeline.plan import PolicyLike, chosen_columns, chosen_metrics
from privacy_assets.stats.limits import Limit, judge_limit
from privacy_assets.tables.schema import Kind

Asset = str | Sequence[str] | dg.AssetKey | dg.AssetsDefinition


def build_privacy_checks(
    *,
    train: Asset,
    holdout: Asset,
    synthetic: Asset,
    reference: Asset | None = None,
    metrics: MetricsLike | None = None,
    policy: PolicyLike | None = None,
    subject: str | None = None,
    kinds: Mapping[str, Kind] | None = None,
    drop: Sequence[str] | None = None,
    generated: Mapping[str, str] | None = None,
    domains: Mapping[str, Sequence[Any]] | None = None,
    embedder: bool = True,
    seed: int = 0,
    blocking: bool = False,
    gpu_tags: Mapping[str, Any] | None = None,
    partitions_def: dg.PartitionsDefinition | None = None,
) -> list[dg.AssetChecksDefinition]:
    """One check a limit of the policy, on your asset ``synthetic``, all in one step.

    ``train`` are the rows that the generator saw, ``holdout`` rows that it has not seen; all are assets of yours
    whose IO managers load DataFrames, partitioned by ``partitions_def`` if at all. ``blocking`` checks hold back what
    depends on ``synthetic`` in the same run; they are an early warning and no gate. Needs the resource ``gpu`` when
    ``embedder`` is True or a metric trains networks of its own; then the step carries ``gpu_tags``. Raises ConfigError.
    """
    given = {"train": train, "holdout": holdout, "reference": reference, "synthetic": synthetic}
    external = [role for role, key in given.items() if key is not None]
    chosen, in_force = chosen_metrics(metrics, policy, "privacy checks", external=external)
    keys = {role: dg.AssetKey.from_coercible_or_definition(key) for role, key in given.items() if key is not None}
    if len(set(keys.values())) != len(keys):
        raise ConfigError("privacy checks: train, holdout, reference and synthetic must be different assets.")
    embeds = embedder and wants_embedder(chosen.values())
    on_device = embeds or any(metric.uses_device for metric in chosen.values())
    tags = chosen_tags(gpu_tags, "privacy checks")
    declared = chosen_columns(drop, generated, domains, subject, "privacy checks")
    arguments = {
        "name": "__".join([*keys["synthetic"].path, "privacy_checks"]),
        "specs": [_spec(limit, keys, blocking, partitions_def) for limit in in_force.limits],
        "ins": {role: dg.AssetIn(key=key) for role, key in keys.items()},
        "required_resource_keys": {GPU} if on_device else set(),
        "op_tags": tags if on_device else {},
    }

    def measured(context: dg.AssetCheckExecutionContext, tables: dict[str, Any]) -> Iterator[dg.AssetCheckResult]:
        with device_of(context, on_device) as device:
            inputs = prepare_inputs(
                **tables, subject=subject, kinds=kinds, declared=declared, seed=seed, device=device,
                progress=Lines(context.log.info),
            )  # fmt: skip
            if embeds:
                inputs = attach_embedder(inputs, fit_embedder(inputs))
            results = run_metrics(inputs, chosen)
        from privacy_assets.report.advice import advice

        outcomes = [judge_limit(limit, results[limit.metric]) for limit in in_force.limits]
        advised = advice([outcome for outcome in outcomes if not outcome.passed])
        for outcome in outcomes:
            yield limit_result(keys["synthetic"], outcome, advised)

    return [_with_reference(arguments, measured) if reference is not None else _without_reference(arguments, measured)]


# Dagster reads the types of the inputs from the signature, so there is one signature for each case.
def _with_reference(arguments: dict[str, Any], measured: Any) -> dg.AssetChecksDefinition:
    @dg.multi_asset_check(**arguments)
    @redact_exceptions
    def privacy(
        context: dg.AssetCheckExecutionContext,
        train: pd.DataFrame,
        holdout: pd.DataFrame,
        reference: pd.DataFrame,
        synthetic: pd.DataFrame,
    ) -> Iterator[dg.AssetCheckResult]:
        yield from measured(
            context, {"train": train, "holdout": holdout, "reference": reference, "synthetic": synthetic}
        )

    return privacy


def _without_reference(arguments: dict[str, Any], measured: Any) -> dg.AssetChecksDefinition:
    @dg.multi_asset_check(**arguments)
    @redact_exceptions
    def privacy(
        context: dg.AssetCheckExecutionContext, train: pd.DataFrame, holdout: pd.DataFrame, synthetic: pd.DataFrame
    ) -> Iterator[dg.AssetCheckResult]:
        yield from measured(context, {"train": train, "holdout": holdout, "synthetic": synthetic})

    return privacy


def _spec(
    limit: Limit, keys: Mapping[str, dg.AssetKey], blocking: bool, partitions_def: dg.PartitionsDefinition | None
) -> dg.AssetCheckSpec:
    return dg.AssetCheckSpec(
        check_name(limit),
        asset=keys["synthetic"],
        additional_deps=[key for role, key in keys.items() if role != "synthetic"],
        blocking=blocking,
        description=limit_text(limit),
        partitions_def=partitions_def,
        metadata={CHECK: limit.key},
    )
