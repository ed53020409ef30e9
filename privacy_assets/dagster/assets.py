"""Assets of one table, built from the tasks of its steps."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import dagster as dg
import pandas as pd

from privacy_assets.dagster.context import (
    device_of,
    op_tags,
    resource_keys,
    run_of,
    target_of,
    workers_of,
)
from privacy_assets.dagster.failures import (
    REFUSALS,
    checked_step,
    error_text,
    failure,
    is_final,
    refused_check,
)
from privacy_assets.dagster.frozen_config import RELEASES
from privacy_assets.dagster.metadata import HOLDS, RELEASED, check_name, events, limit_sentence
from privacy_assets.dagster.table import (
    CHECK,
    AssetSource,
    DagsterTable,
    key_of,
    source_metadata,
    source_version,
)
from privacy_assets.errors import InputError
from privacy_assets.gate.statements import SignedRecord
from privacy_assets.metrics.inputs import REAL_ROLES
from privacy_assets.pipeline.resolve import RowSource
from privacy_assets.pipeline.steps import Task, grouped_tasks
from privacy_assets.policy import Limit
from privacy_assets.tables.table import Table

IO_KEY = "privacy_io"
PRIVATE = dg.PythonObjectDagsterType(Table, name="PrivacyAssetsPrivateTable")
# IO managers are asked for a DataFrame. Tables of other libraries are accepted as well.
GIVEN = dg.DagsterType(
    lambda _context, _value: True, name="PrivacyAssetsTable", typing_type=pd.DataFrame
)
SEALED = dg.PythonObjectDagsterType(SignedRecord, name="PrivacyAssetsSealed")

_TEXTS = {
    "train": "Rows that the generator is fitted to. Each person is in exactly one of train, holdout"
    " and reference.",
    "holdout": "Real rows of people whom the generator has not seen, as a baseline for disclosure.",
    "reference": "Further real rows of people whom the generator has not seen. They calibrate"
    " attacks.",
    "embedder": "Contrastive encoder, trained on all real rows. It detects similarity across"
    " columns.",
    "evaluation_inputs": "All tables of this release, prepared, verified and signed once for all"
    " scores.",
    "attestation": "Verdict of the policy on all scores, bound to the bytes of the synthetic"
    " table.",
    "privacy_report": "Verdict, statistics and limits of the synthetic table, as an HTML page.",
    "published": "Released table, the only one that other teams may read. It is verified before"
    " publication.",
}
_KINDS = {
    **dict.fromkeys(("source", *REAL_ROLES), "pandas"),
    "embedder": "torch",
    **dict.fromkeys(("synthetic", "published"), "parquet"),
    "evaluation_inputs": "numpy",
    "attestation": "json",
    "privacy_report": "html",
}


def labels(table: DagsterTable, asset: str, *kinds: str) -> dict[str, Any]:
    """Return the arguments of ``dg.asset`` and ``dg.AssetOut`` that all assets of a table share."""
    return {
        "key": table.key(asset),
        "group_name": table.group_name,
        "owners": list(table.owners) or None,
        "tags": dict(table.tags),
        "kinds": {"privacy", *kinds},
        "io_manager_key": IO_KEY,
    }


def type_of(table: DagsterTable, asset: str) -> Any:
    """Return the Dagster type of an asset, which determines how the IO manager loads it."""
    if asset in ("source", *REAL_ROLES):
        return PRIVATE
    return SEALED if asset in ("synthetic", "attestation", *table.resolved.metrics) else dg.Any


def asset_ins(table: DagsterTable, assets: Sequence[str]) -> dict[str, dg.AssetIn]:
    """Return assets of a table as inputs, by name."""
    return {
        name: dg.AssetIn(key=table.key(name), dagster_type=type_of(table, name)) for name in assets
    }


def build_assets(table: DagsterTable) -> list[dg.AssetsDefinition]:
    """Build the assets of a table, with one Dagster step for each group of tasks."""
    return [
        _build_group(table, name, group) for name, group in grouped_tasks(table.resolved).items()
    ]


def _build_group(table: DagsterTable, name: str, group: Sequence[Task]) -> dg.AssetsDefinition:
    """Build the assets of tasks that share a Dagster step, with their checks.

    Each asset is yielded with its checks when its task is done. If a task fails, the others run
    nevertheless, and the step fails at the end.
    """
    first, made = group[0], [asset for task in group for asset in task.makes]
    by_metric = first.step.one_each  # only scores can be selected one by one
    known = table.resolved.row_sources
    sources = {role: known[role] for role in first.step.accepts(table.resolved) if role in known}
    ins = {**asset_ins(table, first.reads), **_source_ins(sources)}

    @dg.multi_asset(
        name=f"{table.name}__{name}",
        outs={asset: _out(table, asset, required=not by_metric) for asset in made},
        ins=ins,
        internal_asset_deps=_internal_deps(table, first, ins),
        check_specs=[spec for asset in made for spec in _check_specs(table, asset)],
        required_resource_keys={
            RELEASES,
            *resource_keys(table, first.uses_device, measures=by_metric),
        },
        partitions_def=table.partitions_def,
        can_subset=by_metric,
        **op_tags(table, first.uses_device),
    )
    @checked_step
    def step(context: dg.AssetExecutionContext, **values: Any) -> Iterator[Any]:
        failed: list[Exception] = []
        selected: set[Any] | None = None
        if by_metric:
            target_of(context, table)  # also if no metric is selected
            selected = {*context.selected_asset_keys, *context.selected_asset_check_keys}
        for task in group:
            if selected is not None and not selected & _keys(table, task):
                continue
            try:
                for event in _task_events(context, table, task, sources, values):
                    if selected is None or _key(table, event) in selected:
                        yield event
            except Exception as error:  # noqa: BLE001 (other scores are independent of a metric that fails)
                failed.append(error)
                if by_metric:
                    context.log.error(f"{task.name}: {error_text(error)}")
        if failed:
            # a retry would also repeat the score that is final
            raise next(filter(is_final, failed), failed[0])

    return step


def _task_events(
    context: dg.AssetExecutionContext,
    table: DagsterTable,
    task: Task,
    sources: Mapping[str, RowSource],
    values: Mapping[str, Any],
) -> Iterator[Any]:
    """Run a task, and yield its outputs and check results. A rejected verdict or release also has a
    failed check.
    """
    version: Mapping[str, Any] = {}
    try:
        run = run_of(context, table)
        check_row_sources(context, table, sources)
        given = {role: values[f"given_{role}"] for role in sources if f"given_{role}" in values}
        # before the rows are read: a later change must differ from this version
        if "source" in task.makes:
            key = run.deployment.key("fingerprints")
            version = source_version(sources["source"], run.target.partition, key, context.instance)
        with (
            device_of(context, task.uses_device) as device,
            workers_of(table, measures=task.step.one_each),
        ):
            run = replace(run, device=device, passed_rows=given)
            result = task.run(run, values)
    except REFUSALS as error:
        check = _GATE_CHECKS.get(task.makes[0])
        if check is None:
            raise
        yield refused_check(table.key(task.makes[0]), check, error)
        raise failure(error) from None
    yield from events(context, table, run, task, result, version)


def _keys(table: DagsterTable, task: Task) -> set[Any]:
    """Return the keys of the assets and checks of a task."""
    specs = [spec.key for asset in task.makes for spec in _check_specs(table, asset)]
    return {*(table.key(asset) for asset in task.makes), *specs}


def _key(table: DagsterTable, event: Any) -> Any:
    """Return the key of the asset or check of an event."""
    if isinstance(event, dg.Output):
        return table.key(event.output_name)
    return dg.AssetCheckKey(event.asset_key, event.check_name)


def _out(table: DagsterTable, asset: str, *, required: bool) -> dg.AssetOut:
    more: dict[str, Any] = {}
    if asset == "source":
        more["metadata"] = source_metadata(table.resolved.row_sources["source"])
    if asset == "published":
        days = table.resolved.spec.run.stale_after_days
        window = (
            None
            if days is None
            else dg.FreshnessPolicy.time_window(fail_window=timedelta(days=days))
        )
        condition = (
            dg.AutomationCondition.eager()
            & dg.AutomationCondition.all_deps_blocking_checks_passed()
        )
        more = {"freshness_policy": window, "automation_condition": condition}
    kind = _KINDS.get(asset, "numpy" if asset in table.resolved.metrics else "python")
    if asset == "generator" and "torch" in table.resolved.generator.modules:
        kind = "torch"
    return dg.AssetOut(
        **labels(table, asset, kind),
        description=_description(table, asset),
        dagster_type=type_of(table, asset),
        is_required=required,
        **more,
    )


def _description(table: DagsterTable, asset: str) -> str | None:
    if asset in table.resolved.metrics:
        return table.resolved.metrics[asset].summary
    if asset == "source":
        rows = table.resolved.row_sources["source"].describe()
        return f"Private table, from {rows}: rows about real people."
    if asset == "generator":
        return f"Generator {table.resolved.generator_label}, fitted to train only."
    if asset == "synthetic":
        text = f"sampled from {table.resolved.generator_label}"
        if table.resolved.external:
            text = f"from {table.resolved.row_sources['synthetic'].describe()}"
        if table.resolved.filters:
            text += (
                f", filtered by {', '.join(one.name for one in table.resolved.filters)} against"
                " all real rows"
            )
        return f"Synthetic table, {text}. Downstream steps read one file, identified by its hash."
    return _TEXTS.get(asset)


def _internal_deps(
    table: DagsterTable, task: Task, ins: Mapping[str, dg.AssetIn]
) -> dict[str, set[dg.AssetKey]] | None:
    """Return the dependencies of verdict and report: the report is built from the signed
    verdict.
    """
    if "privacy_report" not in task.makes:
        return None
    inputs = {one.key for one in ins.values() if isinstance(one.key, dg.AssetKey)}
    return {"attestation": inputs, "privacy_report": {table.key("attestation")}}


_GATE_CHECKS = {"attestation": HOLDS, "published": RELEASED}


def _check_specs(table: DagsterTable, asset: str) -> list[dg.AssetCheckSpec]:
    """Return the checks of an asset: the limits on a metric, and the gate's checks. Only one of
    them blocks.
    """

    def spec(
        name: str, description: str, check: str, *, blocking: bool = False
    ) -> dg.AssetCheckSpec:
        return dg.AssetCheckSpec(
            name,
            asset=table.key(asset),
            description=description,
            blocking=blocking,
            partitions_def=table.partitions_def,
            metadata={CHECK: check},
        )

    if asset == "attestation":
        text = "Every limit of the policy holds. Otherwise the table is not published."
        return [spec(HOLDS, text, HOLDS, blocking=True)]
    if asset == "published":
        text = (
            "The gate verified attestation, policy and bytes. Otherwise the table is not published."
        )
        return [spec(RELEASED, text, RELEASED)]
    limits: list[Limit] = [limit for limit in table.resolved.policy.limits if limit.metric == asset]
    return [spec(check_name(limit), limit_sentence(limit), limit.key) for limit in limits]


def check_row_sources(
    context: dg.AssetExecutionContext, table: DagsterTable, row_sources: Mapping[str, RowSource]
) -> None:
    """Reject an unpartitioned upstream asset of a partitioned table, because each partition would
    get all its rows.

    Raises:
        InputError: If there is such an asset and no partition column.
    """
    if table.partitions_def is None or table.resolved.spec.data.partition_column is not None:
        return
    for role, row_source in row_sources.items():
        if (
            isinstance(row_source, AssetSource)
            and context.job_def.asset_layer.get(row_source.key).partitions_def is None
        ):
            fix = "set partition_column, or partition the asset"
            problem = (
                f"{row_source.describe()} is not partitioned, but the table is, so every"
                " partition would get all rows"
            )
            raise InputError(problem, where=f"{table.name}, {role}", fix=fix)


def _source_ins(row_sources: Mapping[str, RowSource]) -> dict[str, dg.AssetIn]:
    """Return the user's upstream assets as inputs, by role."""
    given = {role: key_of(row_source) for role, row_source in row_sources.items()}
    return {
        f"given_{role}": dg.AssetIn(key=key, dagster_type=GIVEN)
        for role, key in given.items()
        if key
    }
