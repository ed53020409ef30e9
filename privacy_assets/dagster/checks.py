"""Privacy checks on the user's own assets, without the pipeline."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import dagster as dg
import pandas as pd

from privacy_assets.dagster.assets import PRIVATE, RELEASES, asset_ins
from privacy_assets.dagster.context import GPU, device_of, run_of, target_of
from privacy_assets.dagster.failures import checked_step, redact_step
from privacy_assets.dagster.metadata import check_name, limit_result, limit_sentence
from privacy_assets.dagster.table import CHECK, DagsterTable, resolve_tags
from privacy_assets.errors import ConfigError
from privacy_assets.evaluation.evaluate import (
    MetricsLike,
    attach_embedder,
    build_inputs,
    check_categories,
    fit_embedder,
    read_inputs,
    run_metrics,
    wants_embedder,
)
from privacy_assets.evaluation.exchangeability import with_shift_note, without_shift
from privacy_assets.infra.host import isolated
from privacy_assets.infra.progress import Lines
from privacy_assets.pipeline.expectations import Expected, check_contract, summary
from privacy_assets.pipeline.resolve import PolicyLike, resolve_columns, resolve_metrics
from privacy_assets.pipeline.spec import Data
from privacy_assets.pipeline.work import synthetic_rows
from privacy_assets.policy import Limit
from privacy_assets.tables.table import Table

ALPHA = 0.001  # expected false alarms: one in a thousand splits


def build_table_checks(table: DagsterTable) -> list[dg.AssetChecksDefinition]:
    """Build the checks of one table that are not part of its policy."""
    # A split by key is exchangeable by construction.
    return [
        _contract_check(table),
        *([_exchangeability_check(table)] if table.resolved.external else []),
    ]


def _contract_check(table: DagsterTable) -> dg.AssetChecksDefinition:
    def found(
        context: dg.AssetCheckExecutionContext, synthetic: Any, *tables: Table
    ) -> dg.AssetCheckResult:
        made = Table.of(
            synthetic_rows(run_of(context, table), synthetic), tables[0].schema, where="synthetic"
        )
        return expectation_result(
            check_contract(made.frame(), [one.without_subject() for one in tables])
        )

    check = dg.asset_check(
        asset=table.key("synthetic"),
        name="contract",
        metadata={CHECK: "contract"},
        additional_ins=asset_ins(table, table.resolved.roles),
        required_resource_keys={RELEASES},
        description="The synthetic table has the columns and types of train, and allowed"
        " values only.",
        partitions_def=table.partitions_def,
    )
    # Dagster reads the inputs of a check from the signature.
    if "reference" not in table.resolved.roles:

        @check
        @checked_step
        def of_two(
            context: dg.AssetCheckExecutionContext, synthetic: Any, train: Table, holdout: Table
        ) -> dg.AssetCheckResult:
            return found(context, synthetic, train, holdout)

        return of_two

    @check
    @checked_step
    def of_three(
        context: dg.AssetCheckExecutionContext,
        synthetic: Any,
        train: Table,
        holdout: Table,
        reference: Table,
    ) -> dg.AssetCheckResult:
        return found(context, synthetic, train, holdout, reference)

    return of_three


def _exchangeability_check(table: DagsterTable) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=table.key("holdout"),
        name="exchangeable_with_train",
        metadata={CHECK: "exchangeable_with_train"},
        additional_ins={"train": dg.AssetIn(key=table.key("train"), dagster_type=PRIVATE)},
        description=(
            "Train and holdout look like two samples of one population. Otherwise, a difference"
            " between them is not"
            " evidence of a leak."
        ),
        partitions_def=table.partitions_def,
    )
    @checked_step
    def exchangeable_with_train(
        context: dg.AssetCheckExecutionContext, holdout: Table, train: Table
    ) -> dg.AssetCheckResult:
        target_of(context, table)
        return exchangeability_result(
            {"train": train, "holdout": holdout}, table.resolved.spec.run.seed
        )

    return exchangeable_with_train


def exchangeability_result(tables: dict[str, Table], seed: int) -> dg.AssetCheckResult:
    """Test whether train and holdout are exchangeable. The check fails if p <= 0.001."""
    from privacy_assets.evaluation.exchangeability import exchangeability

    found = exchangeability(build_inputs(tables, tables["train"], seed=seed))
    passed = found.p_value > ALPHA
    columns = sorted(found.columns, key=lambda record: -float(record["z"]))
    records = [
        dg.TableRecord({k: v if isinstance(v, str) else f"{v:.4g}" for k, v in r.items()})
        for r in columns
    ]
    return dg.AssetCheckResult(
        passed=passed,
        severity=dg.AssetCheckSeverity.ERROR,
        # Alerts contain the description, so it names no column.
        description="train and holdout do not differ"
        if passed
        else "train and holdout differ; the metadata lists columns",
        metadata={
            "p_value": found.p_value,
            "limit": ALPHA,
            "n": found.n,
            "subjects": found.subjects,
            "columns": dg.MetadataValue.table(records),
        },
    )


def expectation_result(outcomes: list[Expected]) -> dg.AssetCheckResult:
    """Combine expectations into one check result with names, verdicts and counts."""
    found = summary(outcomes)
    if records := found.pop("broken expectations"):
        found["broken expectations"] = dg.MetadataValue.table(
            [dg.TableRecord(record) for record in records]
        )
    return dg.AssetCheckResult(
        passed=not found["broken"],
        severity=dg.AssetCheckSeverity.ERROR,
        description=f"{found['expectations'] - found['broken']} of {found['expectations']}"
        " expectations hold",
        metadata=found,
    )


Asset = str | Sequence[str] | dg.AssetKey | dg.AssetsDefinition


def build_privacy_checks(  # noqa: PLR0913
    *,
    train: Asset,
    holdout: Asset,
    synthetic: Asset,
    reference: Asset | None = None,
    metrics: MetricsLike | None = None,
    policy: PolicyLike | None = None,
    subject: str | Mapping[str, Any] | None = None,
    kinds: Mapping[str, Any] | None = None,
    missing: Mapping[str, Sequence[Any]] | None = None,
    timezone: str | None = None,
    drop: Sequence[str] | None = None,
    new_values: Mapping[str, str] | None = None,
    allowed_values: Mapping[str, Sequence[Any]] | None = None,
    max_synthetic_rows: int | None = None,
    embedder: bool = True,
    seed: int = 0,
    blocking: bool = False,
    gpu_tags: Mapping[str, Any] | None = None,
    partitions_def: dg.PartitionsDefinition | None = None,
) -> list[dg.AssetChecksDefinition]:
    """Build one asset check per limit of the policy on your asset ``synthetic``, all computed in
    one step.

    The assets must be loaded as dataframes by their IO managers. The checks are an early warning:
    unlike :func:`build_privacy_assets`, they do not prevent the publication of ``synthetic``. The
    step requires the resource ``gpu`` (:class:`GpuResource`) if it trains an embedder or a metric
    trains networks.

    Args:
        train: Asset with the rows that the generator was fitted to.
        holdout: Asset with rows of the same population that it was not fitted to.
        synthetic: Asset under evaluation.
        reference: Asset with further rows that it was not fitted to. None: none.
        metrics: Names, or a mapping of names to those settings that a table may set
            (docs/policy.md). None: the metrics of ``policy``, or the default ones.
        policy: A Policy, a mapping, a YAML file, or the name of a built-in one (``small``). None:
            the default limits of the metrics.
        subject: Column that identifies people, as in :func:`~privacy_assets.evaluate`. None: each
            row is a person.
        kinds: Kinds of columns that override the inferred ones, as in
            :func:`~privacy_assets.evaluate`.
        missing: Values that mean a missing value, by column, in addition to empty cells.
        timezone: Zone of times without a time zone. None: they have none.
        drop: Columns to ignore.
        new_values: Columns in which new values are allowed, with a reason each.
        allowed_values: Values allowed in a column in addition to the real ones.
        max_synthetic_rows: Maximum number of rows of ``synthetic``, as in
            :func:`~privacy_assets.evaluate`.
        embedder: If False, no embedder is trained, and statistics that need it are not measured.
            Settings of the embedder belong to ``policy``, as in :func:`~privacy_assets.evaluate`.
        seed: Seed of all random draws.
        blocking: If True, a failed check stops the assets downstream of ``synthetic`` in the same
            run.
        gpu_tags: Op tags of the step if it requires the resource ``gpu``. None: none.
        partitions_def: Partitions of all these assets. None: unpartitioned.

    Returns:
        A list with one definition, which contains the checks of all limits.

    Raises:
        ConfigError: If a setting is invalid, the policy limits a metric that is not run, or an
            asset has two roles.
    """
    given = {"train": train, "holdout": holdout, "reference": reference, "synthetic": synthetic}
    external = [role for role, key in given.items() if key is not None]
    chosen, in_force = resolve_metrics(
        metrics, policy, "privacy checks", external=external, embedder=embedder
    )
    keys = {
        role: dg.AssetKey.from_coercible_or_definition(key)
        for role, key in given.items()
        if key is not None
    }
    if len(set(keys.values())) != len(keys):
        raise ConfigError(
            "privacy checks: train, holdout, reference and synthetic must be different assets."
        )
    tuned = (
        in_force.embedder if embedder is not False and wants_embedder(chosen.values()) else False
    )
    embeds = tuned is not False
    on_device = embeds or any(metric.uses_device for metric in chosen.values())
    tags = resolve_tags(gpu_tags, "privacy checks")
    stated = {
        "kinds": kinds,
        "missing": missing,
        "new_values": new_values,
        "allowed_values": allowed_values,
    }
    data: dict[str, Any] = {name: one or {} for name, one in stated.items()}
    data.update(
        subject=subject,
        timezone=timezone,
        drop=tuple(drop or ()),
        max_synthetic_rows=max_synthetic_rows,
    )
    stated_data = Data(**data)
    declared = resolve_columns(stated_data, "privacy checks")
    arguments = {
        "name": "__".join([*keys["synthetic"].path, "privacy_checks"]),
        "specs": [_spec(limit, keys, blocking, partitions_def) for limit in in_force.limits],
        "ins": {role: dg.AssetIn(key=key) for role, key in keys.items()},
        "required_resource_keys": {GPU} if on_device else set(),
        "op_tags": tags if on_device else {},
    }

    def measured(
        context: dg.AssetCheckExecutionContext, tables: dict[str, Any]
    ) -> Iterator[dg.AssetCheckResult]:
        with device_of(context, on_device) as device, isolated():
            inputs = read_inputs(
                **tables, subject=stated_data.subject, kinds=kinds, declared=declared,
                each_row=stated_data.each_row, max_synthetic_rows=max_synthetic_rows,
                seed=seed, device=device, progress=Lines(context.log.info),
            )  # fmt: skip
            check_categories(inputs)
            inputs = with_shift_note(inputs)
            if tuned is not False:
                inputs = attach_embedder(inputs, fit_embedder(inputs, **tuned))
            results = without_shift(
                inputs, chosen, run_metrics(inputs, chosen, in_force.limits), in_force.limits
            )
        from privacy_assets.report.advice import advice

        outcomes = in_force.judge(results).outcomes
        advised = advice([outcome for outcome in outcomes if not outcome.passed])
        for outcome in outcomes:
            yield limit_result(keys["synthetic"], outcome, advised)

    return [
        _with_reference(arguments, measured)
        if reference is not None
        else _without_reference(arguments, measured)
    ]


# Dagster reads the input types from the signature, so each case needs its own function.
def _with_reference(arguments: dict[str, Any], measured: Any) -> dg.AssetChecksDefinition:
    @dg.multi_asset_check(**arguments)
    @redact_step
    def privacy(
        context: dg.AssetCheckExecutionContext,
        train: pd.DataFrame,
        holdout: pd.DataFrame,
        reference: pd.DataFrame,
        synthetic: pd.DataFrame,
    ) -> Iterator[dg.AssetCheckResult]:
        yield from measured(
            context,
            {"train": train, "holdout": holdout, "reference": reference, "synthetic": synthetic},
        )

    return privacy


def _without_reference(arguments: dict[str, Any], measured: Any) -> dg.AssetChecksDefinition:
    @dg.multi_asset_check(**arguments)
    @redact_step
    def privacy(
        context: dg.AssetCheckExecutionContext,
        train: pd.DataFrame,
        holdout: pd.DataFrame,
        synthetic: pd.DataFrame,
    ) -> Iterator[dg.AssetCheckResult]:
        yield from measured(context, {"train": train, "holdout": holdout, "synthetic": synthetic})

    return privacy


def _spec(
    limit: Limit,
    keys: Mapping[str, dg.AssetKey],
    blocking: bool,
    partitions_def: dg.PartitionsDefinition | None,
) -> dg.AssetCheckSpec:
    return dg.AssetCheckSpec(
        check_name(limit),
        asset=keys["synthetic"],
        additional_deps=[key for role, key in keys.items() if role != "synthetic"],
        blocking=blocking,
        description=limit_sentence(limit),
        partitions_def=partitions_def,
        metadata={CHECK: limit.key},
    )
