"""Assets of one table, built from the tasks of its steps."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
from privacy_assets.dagster.events import HOLDS, RELEASED, FinishedTask, events
from privacy_assets.dagster.failures import (
    BLOCKING_ERRORS,
    blocked_check,
    checked_step,
    error_text,
    failure,
    is_final,
)
from privacy_assets.dagster.frozen_config import RELEASES
from privacy_assets.dagster.metadata import check_name, limit_sentence
from privacy_assets.dagster.table import (
    CHECK,
    DagsterTable,
    key_of,
    source_metadata,
    source_version,
)
from privacy_assets.errors import InputError
from privacy_assets.gate.envelope import SignedFile
from privacy_assets.pipeline.resolve import ResolvedTable, RowSource
from privacy_assets.pipeline.steps import Task, grouped_tasks
from privacy_assets.tables.inference import REAL_ROLES
from privacy_assets.tables.table import Table

IO_KEY = "privacy_io"
PRIVATE = dg.PythonObjectDagsterType(Table, name="PrivacyAssetsPrivateTable")
# IO managers are asked for a DataFrame. Tables of other libraries are accepted as well.
USER_TABLE = dg.DagsterType(
    lambda _context, _value: True, name="PrivacyAssetsTable", typing_type=pd.DataFrame
)
SIGNED_FILE = dg.PythonObjectDagsterType(SignedFile, name="PrivacyAssetsSignedFile")

_GATE_CHECKS = {"attestation": HOLDS, "published": RELEASED}
_DESCRIPTIONS = {
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


def type_of(table: DagsterTable, asset: str) -> Any:
    """Return the Dagster type of an asset, which determines how the IO manager loads it.

    Args:
        table: The table.
        asset: Name of one of its assets.
    """
    if asset in ("source", *REAL_ROLES):
        return PRIVATE
    if asset in ("synthetic", "attestation", *table.resolved.metrics):
        return SIGNED_FILE
    return dg.Any


def asset_ins(table: DagsterTable, assets: Sequence[str]) -> dict[str, dg.AssetIn]:
    """Return assets of a table as inputs, by name.

    Args:
        table: The table.
        assets: Names of some of its assets.
    """
    ins = {}
    for name in assets:
        ins[name] = dg.AssetIn(key=table.key(name), dagster_type=type_of(table, name))
    return ins


def build_assets(table: DagsterTable) -> list[dg.AssetsDefinition]:
    """Build the assets of a table, with one Dagster step for each group of tasks.

    Args:
        table: The table.
    """
    definitions = []
    for name, tasks in grouped_tasks(table.resolved).items():
        definitions.append(_build_group(table, name, tasks))
    return definitions


def _build_group(table: DagsterTable, name: str, tasks: Sequence[Task]) -> dg.AssetsDefinition:
    """Build the assets of tasks that share a Dagster step, with their checks.

    Each asset is yielded with its checks when its task is done. If a task fails, the others run
    nevertheless, and the step fails at the end.
    """
    group = _Group(table, tasks)
    ins = {**asset_ins(table, group.first.reads), **_source_ins(group.row_sources)}
    outs = {}
    check_specs = []
    for task in tasks:
        for asset in task.makes:
            outs[asset] = _out(table, asset, required=not group.by_metric)
            check_specs += _check_specs(table, asset)

    @dg.multi_asset(
        name=f"{table.name}__{name}",
        outs=outs,
        ins=ins,
        internal_asset_deps=_internal_deps(table, group.first, ins),
        check_specs=check_specs,
        required_resource_keys=group.resource_keys(),
        partitions_def=table.partitions_def,
        can_subset=group.by_metric,
        **op_tags(table, group.first.uses_device),
    )
    @checked_step
    def step(context: dg.AssetExecutionContext, **values: Any) -> Iterator[Any]:
        yield from group.run(context, values)

    return step


@dataclass(frozen=True)
class _Group:
    """Tasks of a table that share a Dagster step.

    Attributes:
        table: The table.
        tasks: The tasks. They read the same assets.
    """

    table: DagsterTable
    tasks: Sequence[Task]

    @property
    def first(self) -> Task:
        """First task, which has the step and the inputs of all."""
        return self.tasks[0]

    @property
    def by_metric(self) -> bool:
        """Whether the tasks are scores. Only scores can be selected one by one."""
        return self.first.step.one_each

    @property
    def row_sources(self) -> dict[str, RowSource]:
        """Sources of the rows that the step accepts, by role."""
        row_sources = self.table.resolved.row_sources
        roles = self.first.step.accepts(self.table.resolved)
        return {role: row_sources[role] for role in roles if role in row_sources}

    def resource_keys(self) -> set[str]:
        """Return the resources that the step requires."""
        keys = resource_keys(self.table, self.first.uses_device, measures=self.by_metric)
        return {RELEASES, *keys}

    def run(self, context: dg.AssetExecutionContext, values: Mapping[str, Any]) -> Iterator[Any]:
        """Run the selected tasks.

        Args:
            context: Context of the step.
            values: Inputs of the step, by name.

        Yields:
            Outputs and check results.

        Raises:
            Exception: If a task failed, after the others.
        """
        selected = None
        if self.by_metric:
            target_of(context, self.table)  # also if no metric is selected
            selected = {*context.selected_asset_keys, *context.selected_asset_check_keys}
        errors: list[Exception] = []
        for task in self.tasks:
            if selected is not None and selected.isdisjoint(_keys(self.table, task)):
                continue
            try:
                for event in self._events(context, task, values):
                    if selected is None or _key(self.table, event) in selected:
                        yield event
            except Exception as error:  # noqa: BLE001 (other scores are independent of a metric that fails)
                errors.append(error)
                if self.by_metric:
                    context.log.error(f"{task.name}: {error_text(error)}")
        if errors:
            # a retry would also repeat the score that is final
            raise next(filter(is_final, errors), errors[0])

    def _events(
        self, context: dg.AssetExecutionContext, task: Task, values: Mapping[str, Any]
    ) -> Iterator[Any]:
        """Run a task, and yield its outputs and check results. A verdict or release that is blocked
        also has a failed check.
        """
        try:
            finished = self._run_task(context, task, values)
        except BLOCKING_ERRORS as error:
            asset = task.makes[0]
            check = _GATE_CHECKS.get(asset)
            if check is None:
                raise
            yield blocked_check(self.table.key(asset), check, error)
            raise failure(error) from None
        yield from events(finished)

    def _run_task(
        self, context: dg.AssetExecutionContext, task: Task, values: Mapping[str, Any]
    ) -> FinishedTask:
        """Run a task, and return it with its result."""
        row_sources = self.row_sources
        run = run_of(context, self.table)
        check_row_sources(context, self.table, row_sources)
        passed_rows = {}
        for role in row_sources:
            name = _input_name(role)
            if name in values:
                passed_rows[role] = values[name]
        version: Mapping[str, Any] = {}
        # before the rows are read: a later change must differ from this version
        if "source" in task.makes:
            key = run.deployment.key("fingerprints")
            version = source_version(
                row_sources["source"], run.target.partition, key, context.instance
            )
        with (
            device_of(context, task.uses_device) as device,
            workers_of(self.table, measures=task.step.one_each),
        ):
            run = replace(run, device=device, passed_rows=passed_rows)
            result = task.run(run, values)
        return FinishedTask(context, self.table, run, task, result, version)


def _keys(table: DagsterTable, task: Task) -> set[Any]:
    """Return the keys of the assets and checks of a task."""
    keys: set[Any] = set()
    for asset in task.makes:
        keys.add(table.key(asset))
        for spec in _check_specs(table, asset):
            keys.add(spec.key)
    return keys


def _key(table: DagsterTable, event: Any) -> Any:
    """Return the key of the asset or check of an event."""
    if isinstance(event, dg.Output):
        return table.key(event.output_name)
    return dg.AssetCheckKey(event.asset_key, event.check_name)


def _out(table: DagsterTable, asset: str, *, required: bool) -> dg.AssetOut:
    options: dict[str, Any] = {}
    if asset == "source":
        options["metadata"] = source_metadata(table.resolved.row_sources["source"])
    if asset == "published":
        options["freshness_policy"] = _freshness_policy(table)
        options["automation_condition"] = (
            dg.AutomationCondition.eager()
            & dg.AutomationCondition.all_deps_blocking_checks_passed()
        )
    return dg.AssetOut(
        key=table.key(asset),
        group_name=table.group_name,
        owners=list(table.owners) or None,
        tags=dict(table.tags),
        kinds={"privacy", _kind(table, asset)},
        io_manager_key=IO_KEY,
        description=_description(table, asset),
        dagster_type=type_of(table, asset),
        is_required=required,
        **options,
    )


def _freshness_policy(table: DagsterTable) -> dg.FreshnessPolicy | None:
    """Return the policy by which an old published table counts as stale, or None."""
    days = table.resolved.spec.run.stale_after_days
    if days is None:
        return None
    return dg.FreshnessPolicy.time_window(fail_window=timedelta(days=days))


def _kind(table: DagsterTable, asset: str) -> str:
    """Return the kind of an asset in the UI."""
    if asset == "generator" and "torch" in table.resolved.generator.modules:
        return "torch"
    if asset in table.resolved.metrics:
        return _KINDS.get(asset, "numpy")
    return _KINDS.get(asset, "python")


def _description(table: DagsterTable, asset: str) -> str | None:
    resolved = table.resolved
    if asset in resolved.metrics:
        return resolved.metrics[asset].summary
    if asset == "source":
        rows = resolved.row_sources["source"].describe()
        return f"Private table, from {rows}: rows about real people."
    if asset == "generator":
        return f"Generator {resolved.generator_label}, fitted to train only."
    if asset == "synthetic":
        return _synthetic_description(resolved)
    return _DESCRIPTIONS.get(asset)


def _synthetic_description(resolved: ResolvedTable) -> str:
    origin = f"sampled from {resolved.generator_label}"
    if resolved.external:
        origin = f"from {resolved.row_sources['synthetic'].describe()}"
    if resolved.filters:
        filters = ", ".join(row_filter.name for row_filter in resolved.filters)
        origin += f", filtered by {filters} against all real rows"
    return f"Synthetic table, {origin}. Downstream steps read one file, identified by its hash."


def _internal_deps(
    table: DagsterTable, task: Task, ins: Mapping[str, dg.AssetIn]
) -> dict[str, set[dg.AssetKey]] | None:
    """Return the dependencies of verdict and report: the report is built from the signed
    verdict.
    """
    if "privacy_report" not in task.makes:
        return None
    inputs = {asset_in.key for asset_in in ins.values() if isinstance(asset_in.key, dg.AssetKey)}
    return {"attestation": inputs, "privacy_report": {table.key("attestation")}}


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
    specs = []
    for limit in table.resolved.policy.limits:
        if limit.metric == asset:
            specs.append(spec(check_name(limit), limit_sentence(limit), limit.key))
    return specs


def check_row_sources(
    context: dg.AssetExecutionContext, table: DagsterTable, row_sources: Mapping[str, RowSource]
) -> None:
    """Reject an unpartitioned upstream asset of a partitioned table, because each partition would
    get all its rows.

    Args:
        context: Context of the step.
        table: The table.
        row_sources: Sources of rows that the step reads, by role.

    Raises:
        InputError: If there is such an asset and no partition column.
    """
    if table.partitions_def is None or table.resolved.spec.data.partition_column is not None:
        return
    for role, row_source in row_sources.items():
        key = key_of(row_source)
        if key is None:
            continue
        if context.job_def.asset_layer.get(key).partitions_def is None:
            problem = (
                f"{row_source.describe()} is not partitioned, but the table is, so every"
                " partition would get all rows"
            )
            raise InputError(
                problem,
                where=f"{table.name}, {role}",
                fix="set partition_column, or partition the asset",
            )


def _source_ins(row_sources: Mapping[str, RowSource]) -> dict[str, dg.AssetIn]:
    """Return the user's upstream assets as inputs, by name."""
    ins = {}
    for role, row_source in row_sources.items():
        key = key_of(row_source)
        if key:
            ins[_input_name(role)] = dg.AssetIn(key=key, dagster_type=USER_TABLE)
    return ins


def _input_name(role: str) -> str:
    """Return the name of the input with the rows of a user's upstream asset."""
    return f"given_{role}"
