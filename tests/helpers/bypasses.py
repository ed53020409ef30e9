"""Shared code of the tests of bypasses of the gate: stock and gated tables, and checks of the
results of a run.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pandas as pd
import pytest
from standins import (
    QUICK,
    checks,
    failures,
    memorize,
    people,
    resources,
    step_of,
    table_of,
    whole_steps,
)
from stock import Folder, Generator, stock_table

from privacy_assets import read_published
from privacy_assets.errors import InputError
from privacy_assets.gate.envelope import ReleaseTarget
from privacy_assets.gate.releases import Release, ReleaseStore
from tests.helpers.accepting import accept_all

REGIONS = dg.StaticPartitionsDefinition(["north", "south"])
# The study does not publish.
EVERY = dg.AssetSelection.all()
HOLDS = "policy does not hold"


@dataclass(frozen=True)
class World(Folder):
    """One deployment."""

    instance: dg.DagsterInstance

    @classmethod
    @contextmanager
    def open(cls, root: Path) -> Iterator["World"]:
        people(100).to_parquet(root / "people.parquet")
        with dg.DagsterInstance.ephemeral() as instance:
            yield cls(root, instance)

    @property
    def store(self) -> ReleaseStore:
        return ReleaseStore(self.root / "releases")

    def unlock(self, table: str) -> None:
        """Free the run lease of a table, as five minutes without a sign of life of its run do."""
        (self.root / "private" / "running" / f"{table}.json").unlink()

    def run(
        self,
        defs: dg.Definitions,
        *assets: str,
        partition: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> dg.ExecuteInProcessResult:
        """Materialize assets with their checks.

        Args:
            defs: Definitions with the assets.
            *assets: Assets, such as ``table/asset``. Empty: all.
            partition: Key of the partition, or None.
            tags: Tags of the launch.
        """
        keys = whole_steps([dg.AssetKey.from_user_string(asset) for asset in assets])
        selection = EVERY
        if keys:
            selection = dg.AssetSelection.assets(*keys)
        return self.execute(self.job(defs, selection), partition, tags)

    def job(self, defs: dg.Definitions, selection: dg.AssetSelection) -> dg.JobDefinition:
        """Return a job, as in the definitions.

        Args:
            defs: Definitions with the assets.
            selection: Assets of the job.
        """
        job = dg.define_asset_job("chosen", selection)
        with_job = dg.Definitions.merge(defs, dg.Definitions(jobs=[job]))
        return with_job.resolve_job_def("chosen")

    def execute(
        self,
        job: dg.JobDefinition,
        partition: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> dg.ExecuteInProcessResult:
        """Execute a job.

        Args:
            job: The job.
            partition: Key of the partition, or None.
            tags: Tags of the launch.
        """
        return job.execute_in_process(
            instance=self.instance,
            raise_on_error=False,
            partition_key=partition,
            tags=tags and dict(tags),
        )


def stock(world: World, name: str, **settings: Any) -> dg.Definitions:
    """Return a table without a gate.

    Args:
        world: The deployment.
        name: Name of the table.
        **settings: Further arguments of :func:`.stock.stock_table`.
    """
    storage = dg.FilesystemIOManager(base_dir=str(world.root / "stock"))
    environment = dg.Definitions(resources={"io_manager": storage}, executor=dg.in_process_executor)
    return dg.Definitions.merge(stock_table(world, name, **settings), environment)


def gated(
    world: Folder,
    name: str,
    generator: Generator = memorize,
    *,
    regions: bool = False,
    **changes: Any,
) -> dg.Definitions:
    """Return the same table behind the gate, without the checks of schema and split, which are
    slow.

    Args:
        world: The deployment.
        name: Name of the table.
        generator: Function that creates the rows.
        regions: Whether the table has a partition for each region.
        **changes: Further settings of the table.
    """
    settings: dict[str, Any] = {"subject": "pid", **QUICK}
    if "synthetic" not in changes:
        settings |= {"source": world.root / "people.parquet", "generator": generator}
    if regions:
        settings |= {"partitions_def": REGIONS, "partition_column": "region"}
    table = table_of(name, **{**settings, **changes})
    tasks = dg.Definitions(assets=table.assets, jobs=table.jobs)
    return dg.Definitions.merge(tasks, resources(world.root))


def with_assets(defs: dg.Definitions, *assets: dg.AssetsDefinition) -> dg.Definitions:
    """Return a table with a colleague's assets in the same location.

    Args:
        defs: Definitions of the table.
        *assets: The colleague's assets.
    """
    return dg.Definitions.merge(defs, dg.Definitions(assets=assets))


Change = Callable[[dg.AssetCheckResult], dg.AssetCheckResult | None]


def with_checks(
    defs: dg.Definitions, change: Change = lambda said: said, *, specs: bool = True
) -> dg.Definitions:
    """Return a table as a colleague wrapped it: its steps can run without their checks.

    Args:
        defs: Definitions of the table.
        change: Replaces each check result. It returns None to drop the result.
        specs: False: the steps have no checks.
    """
    assets = []
    for asset in defs.assets:
        if asset.check_specs_by_output_name:
            asset = _wrapped(asset, change, specs)
        assets.append(asset)
    return dg.Definitions(
        assets=assets, jobs=defs.jobs, resources=defs.resources, executor=defs.executor
    )


def _wrapped(asset: dg.AssetsDefinition, change: Change, specs: bool) -> dg.AssetsDefinition:
    outs = {}
    for name, key in asset.keys_by_output_name.items():
        outs[name] = dg.AssetOut(
            key=key, io_manager_key="privacy_io", dagster_type=dg.Any, is_required=False
        )
    ins = {}
    for name, key in asset.keys_by_input_name.items():
        ins[name] = dg.AssetIn(key=key, dagster_type=asset.op.ins[name].dagster_type)

    @dg.multi_asset(
        name=asset.op.name,
        outs=outs,
        ins=ins,
        check_specs=list(asset.check_specs) if specs else None,
        can_subset=True,
        required_resource_keys=asset.required_resource_keys - {"privacy_io"},
        partitions_def=asset.partitions_def,
    )
    def wrapped(context: dg.AssetExecutionContext, **inputs: Any) -> Iterator[Any]:
        def changed(results: Iterable[dg.AssetCheckResult]) -> list[dg.AssetCheckResult]:
            selected = {key.name for key in context.selected_asset_check_keys}
            replacements = []
            for result in results:
                replacement = change(result) if result.check_name in selected else None
                if replacement is not None:
                    replacements.append(replacement)
            return replacements

        events = asset.op.compute_fn.decorated_fn(context, **inputs)
        if isinstance(events, dg.MaterializeResult):
            events = [events]
        for event in events:
            if isinstance(event, dg.AssetCheckResult):
                yield from changed([event])
            elif isinstance(event, dg.Output):
                yield event
            else:
                results = changed(event.check_results or [])
                yield event._replace(asset_key=asset.key, check_results=results)

    return wrapped


def after(job: dg.JobDefinition, step: str, do: Callable[[], None]) -> dg.JobDefinition:
    """Return a job with a user's action after one of its steps.

    Args:
        job: The job.
        step: Name of the step.
        do: The action, called if the step has succeeded.
    """

    @dg.success_hook(name="meanwhile")
    def meanwhile(context: dg.HookContext) -> None:
        if context.op.name == step:
            do()

    return job.with_hooks({meanwhile})


def exporter(
    world: Folder, table: str, asset: str, name: str, **arguments: Any
) -> dg.AssetsDefinition:
    """Return a colleague's asset that publishes an asset of a table, which is a DataFrame.

    Args:
        world: The deployment.
        table: Name of the table.
        asset: Name of the asset below it.
        name: Name of the colleague's asset.
        **arguments: Further arguments of ``dagster.asset``.
    """

    @dg.asset(name=name, ins={"rows": dg.AssetIn(key=[table, asset])}, **arguments)
    def exported(context: dg.AssetExecutionContext, rows: pd.DataFrame) -> None:
        world.write_public(rows, name, context.run.run_id)

    return exported


def leaked(world: World, result: dg.ExecuteInProcessResult, name: str) -> None:
    """Check that a run published private rows.

    Args:
        world: The deployment.
        result: Result of the run.
        name: Name of the publication.
    """
    world.leaked(name, result.run_id)


def reason(result: dg.ExecuteInProcessResult, step: str) -> str:
    """Return the reason of a step's failure: the innermost error.

    Args:
        result: Result of the run.
        step: Name of the step.
    """
    error = failures(result)[step].error
    while error.cause is not None:
        error = error.cause
    return error.message


def blocked(
    result: dg.ExecuteInProcessResult,
    table: str,
    why: str,
    asset: str = "published",
    check: str | None = "released",
) -> None:
    """Check that the gate blocked it a step: a failure with its reason as metadata, and a failed
    check with the same reason.

    Args:
        result: Result of the run.
        table: Name of the table.
        why: Part of the reason.
        asset: Asset that the step makes.
        check: Name of its check. None: the check did not run.
    """
    step = step_of(table, asset)
    failure = failures(result)[step].user_failure_data
    assert failure is not None, reason(result, step)
    assert why in failure.description, failure.description
    assert "current release" in failure.metadata
    if check is None:
        return
    evaluation = checks(result)[asset, check]
    assert not evaluation.passed
    assert evaluation.severity is dg.AssetCheckSeverity.ERROR
    assert evaluation.description == failure.description


def accept(world: World, table: str, *options: str) -> None:
    """Accept the difference that stopped a run, as the owner of the table does.

    Args:
        world: The deployment.
        table: Name of the table.
        *options: Further options of ``privacy-assets accept``.
    """
    accept_all(table, "--releases", world.root / "releases", *options)


def nothing_published(world: World, table: str, partition: str | None = None) -> None:
    """Check that there is no release, and that readers get an error.

    Args:
        world: The deployment.
        table: Name of the table.
        partition: Key of the partition, or None.
    """
    assert world.store.history(ReleaseTarget(table, partition)) == []
    with pytest.raises(InputError, match="there is no release"):
        read_published(world.root / "releases", table, partition)


def released(world: World, table: str, partition: str | None = None) -> list[Release]:
    """Return all releases of a table, oldest first.

    Args:
        world: The deployment.
        table: Name of the table.
        partition: Key of the partition, or None.
    """
    return world.store.history(ReleaseTarget(table, partition))
