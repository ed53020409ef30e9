"""Shared code of the tests of routes around the gate: stock and gated tables, and checks of the
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
    memorise,
    people,
    resources,
    step_of,
    table_of,
    whole_steps,
)
from stock import Folder, Generator, stock_table

from privacy_assets import read_published
from privacy_assets.errors import InputError
from privacy_assets.gate.releases import Release, ReleaseStore
from privacy_assets.gate.statements import ReleaseTarget
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
        """Free the lock of a table, as five minutes without a sign of life of its run do."""
        (self.root / "private" / "running" / f"{table}.json").unlink()

    def run(
        self,
        defs: dg.Definitions,
        *assets: str,
        partition: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> dg.ExecuteInProcessResult:
        """Materialize ``assets`` ("table/asset"; default: all) with their checks."""
        keys = whole_steps([dg.AssetKey.from_user_string(asset) for asset in assets])
        selection = dg.AssetSelection.assets(*keys) if keys else EVERY
        return self.execute(self.job(defs, selection), partition, tags)

    def job(self, defs: dg.Definitions, selection: dg.AssetSelection) -> dg.JobDefinition:
        """A job over ``selection``, as in the definitions."""
        whole = dg.Definitions.merge(
            defs, dg.Definitions(jobs=[dg.define_asset_job("chosen", selection)])
        )
        return whole.resolve_job_def("chosen")

    def execute(
        self,
        job: dg.JobDefinition,
        partition: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> dg.ExecuteInProcessResult:
        """Execute ``job`` with these launch ``tags``."""
        return job.execute_in_process(
            instance=self.instance,
            raise_on_error=False,
            partition_key=partition,
            tags=tags and dict(tags),
        )


def stock(world: World, name: str, **more: Any) -> dg.Definitions:
    """A table without a gate."""
    storage = {"io_manager": dg.FilesystemIOManager(base_dir=str(world.root / "stock"))}
    own = dg.Definitions(resources=storage, executor=dg.in_process_executor)
    return dg.Definitions.merge(stock_table(world, name, **more), own)


def gated(
    world: Folder, name: str, generator: Generator = memorise, *, regions: bool = False, **more: Any
) -> dg.Definitions:
    """The same table behind the gate, without the checks of schema and split, which are slow."""
    by_region = {"partitions_def": REGIONS, "partition_column": "region"} if regions else {}
    source = (
        {}
        if "synthetic" in more
        else {"source": world.root / "people.parquet", "generator": generator}
    )
    table = table_of(name, **{"subject": "pid", **QUICK, **source, **by_region, **more})
    return dg.Definitions.merge(
        dg.Definitions(assets=table.assets, jobs=table.jobs), resources(world.root)
    )


def with_assets(defs: dg.Definitions, *assets: dg.AssetsDefinition) -> dg.Definitions:
    """The table with a colleague's assets in the same location."""
    return dg.Definitions.merge(defs, dg.Definitions(assets=assets))


Change = Callable[[dg.AssetCheckResult], dg.AssetCheckResult | None]


def with_checks(
    defs: dg.Definitions, change: Change = lambda said: said, *, specs: bool = True
) -> dg.Definitions:
    """The table as a colleague wrapped it.

    Its steps can run without their checks; if ``specs`` is False they have none. ``change``
    replaces each check result (None: no result).
    """
    assets = [
        _wrapped(asset, change, specs) if asset.check_specs_by_output_name else asset
        for asset in defs.assets
    ]
    return dg.Definitions(
        assets=assets, jobs=defs.jobs, resources=defs.resources, executor=defs.executor
    )


def _wrapped(own: dg.AssetsDefinition, change: Change, specs: bool) -> dg.AssetsDefinition:
    @dg.multi_asset(
        name=own.op.name,
        outs={
            name: dg.AssetOut(
                key=key, io_manager_key="privacy_io", dagster_type=dg.Any, is_required=False
            )
            for name, key in own.keys_by_output_name.items()
        },
        ins={
            name: dg.AssetIn(key=key, dagster_type=own.op.ins[name].dagster_type)
            for name, key in own.keys_by_input_name.items()
        },
        check_specs=list(own.check_specs) if specs else None,
        can_subset=True,
        required_resource_keys=own.required_resource_keys - {"privacy_io"},
        partitions_def=own.partitions_def,
    )
    def wrapped(context: dg.AssetExecutionContext, **inputs: Any) -> Iterator[Any]:
        def kept(results: Iterable[dg.AssetCheckResult]) -> list[dg.AssetCheckResult]:
            chosen = {key.name for key in context.selected_asset_check_keys}
            said = [change(result) for result in results if result.check_name in chosen]
            return [result for result in said if result is not None]

        outcome = own.op.compute_fn.decorated_fn(context, **inputs)
        for event in [outcome] if isinstance(outcome, dg.MaterializeResult) else outcome:
            if isinstance(event, dg.AssetCheckResult):
                yield from kept([event])
            elif isinstance(event, dg.Output):
                yield event
            else:
                yield event._replace(
                    asset_key=own.key, check_results=kept(event.check_results or [])
                )

    return wrapped


def after(job: dg.JobDefinition, step: str, do: Callable[[], None]) -> dg.JobDefinition:
    """``job`` with a user's action after ``step`` has succeeded."""

    @dg.success_hook(name="meanwhile")
    def meanwhile(context: dg.HookContext) -> None:
        if context.op.name == step:
            do()

    return job.with_hooks({meanwhile})


def exporter(
    world: Folder, table: str, asset: str, name: str, **arguments: Any
) -> dg.AssetsDefinition:
    """A colleague's asset that publishes ``<table>/<asset>`` (a DataFrame)."""

    @dg.asset(name=name, ins={"rows": dg.AssetIn(key=[table, asset])}, **arguments)
    def exported(context: dg.AssetExecutionContext, rows: pd.DataFrame) -> None:
        world.write_public(rows, name, context.run.run_id)

    return exported


def leaked(world: World, result: dg.ExecuteInProcessResult, name: str) -> None:
    """The run published private rows."""
    world.leaked(name, result.run_id)


def reason(result: dg.ExecuteInProcessResult, step: str) -> str:
    """The reason of a step's failure: the innermost error."""
    error = failures(result)[step].error
    while error.cause is not None:
        error = error.cause
    return error.message


def refused(
    result: dg.ExecuteInProcessResult,
    table: str,
    why: str,
    asset: str = "published",
    check: str | None = "released",
) -> None:
    """The gate refused the step: a failure with its reason as metadata, and a failed check with the
    same reason.
    """
    failure = failures(result)[step_of(table, asset)].user_failure_data
    assert failure is not None, reason(result, step_of(table, asset))
    assert why in failure.description, failure.description
    assert "current release" in failure.metadata
    if check is None:
        return
    evaluation = checks(result)[asset, check]
    assert not evaluation.passed
    assert evaluation.severity is dg.AssetCheckSeverity.ERROR
    assert evaluation.description == failure.description


def accept(world: World, table: str, *more: str) -> None:
    """Accept the difference that stopped a run, as the owner of the table does."""
    accept_all(table, "--releases", world.root / "releases", *more)


def nothing_published(world: World, table: str, partition: str | None = None) -> None:
    assert world.store.history(ReleaseTarget(table, partition)) == []
    with pytest.raises(InputError, match="there is no release"):
        read_published(world.root / "releases", table, partition)


def released(world: World, table: str, partition: str | None = None) -> list[Release]:
    """All releases of a table, oldest first."""
    return world.store.history(ReleaseTarget(table, partition))
