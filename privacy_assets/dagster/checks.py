"""Privacy checks on the user's own assets, without the pipeline."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg
import pandas as pd

from privacy_assets.dagster.assets import PRIVATE, RELEASES, asset_ins
from privacy_assets.dagster.context import GPU, device_of, run_of, target_of
from privacy_assets.dagster.failures import checked_step, redact_step
from privacy_assets.dagster.metadata import check_name, limit_result, limit_sentence
from privacy_assets.dagster.table import CHECK, DagsterTable, resolve_tags
from privacy_assets.errors import ConfigError, integer
from privacy_assets.evaluation.measuring import embedder_settings, measure_release
from privacy_assets.evaluation.reading import build_inputs, read_inputs
from privacy_assets.infra.host import isolated
from privacy_assets.infra.progress import Lines
from privacy_assets.metrics.base import Metric
from privacy_assets.metrics.policies import MetricsLike, PolicyLike
from privacy_assets.pipeline.expectations import Expected, check_contract, summary
from privacy_assets.pipeline.resolve import resolve_metrics
from privacy_assets.pipeline.work import synthetic_rows
from privacy_assets.policy import Limit, Policy
from privacy_assets.stats.estimates import MetricResult
from privacy_assets.tables.declared import Declared
from privacy_assets.tables.table import Table

ALPHA = 0.001  # expected false alarms: one in a thousand splits
_WHERE = "privacy checks"  # in messages about settings
Asset = str | Sequence[str] | dg.AssetKey | dg.AssetsDefinition


def build_table_checks(table: DagsterTable) -> list[dg.AssetChecksDefinition]:
    """Build the checks of one table that are not part of its policy.

    Args:
        table: The table.
    """
    checks = [_contract_check(table)]
    # A split by key is exchangeable by construction.
    if table.resolved.external:
        checks.append(_exchangeability_check(table))
    return checks


def _contract_check(table: DagsterTable) -> dg.AssetChecksDefinition:
    def check_rows(
        context: dg.AssetCheckExecutionContext, synthetic: Any, *real: Table
    ) -> dg.AssetCheckResult:
        frame = synthetic_rows(run_of(context, table), synthetic)
        synthetic_table = Table.of(frame, real[0].schema, where="synthetic")
        outcomes = check_contract(
            synthetic_table.frame(), [real_table.without_subject() for real_table in real]
        )
        return expectation_result(outcomes)

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
        def contract(
            context: dg.AssetCheckExecutionContext, synthetic: Any, train: Table, holdout: Table
        ) -> dg.AssetCheckResult:
            return check_rows(context, synthetic, train, holdout)

        return contract

    @check
    @checked_step
    def contract_with_reference(
        context: dg.AssetCheckExecutionContext,
        synthetic: Any,
        train: Table,
        holdout: Table,
        reference: Table,
    ) -> dg.AssetCheckResult:
        return check_rows(context, synthetic, train, holdout, reference)

    return contract_with_reference


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
        tables = {"train": train, "holdout": holdout}
        return exchangeability_result(tables, table.resolved.spec.run.seed)

    return exchangeable_with_train


def exchangeability_result(tables: dict[str, Table], seed: int) -> dg.AssetCheckResult:
    """Test whether train and holdout are exchangeable. The check fails if p <= 0.001.

    Args:
        tables: Train and holdout, by role.
        seed: Seed of the test.
    """
    from privacy_assets.evaluation.exchangeability import exchangeability

    outcome = exchangeability(build_inputs(tables, tables["train"], seed=seed))
    passed = outcome.p_value > ALPHA
    # Alerts contain the description, so it names no column.
    description = "train and holdout differ; the metadata lists columns"
    if passed:
        description = "train and holdout do not differ"
    most_different_first = sorted(outcome.columns, key=lambda record: -float(record["z"]))
    columns = [_difference_record(record) for record in most_different_first]
    return dg.AssetCheckResult(
        passed=passed,
        severity=dg.AssetCheckSeverity.ERROR,
        description=description,
        metadata={
            "p_value": outcome.p_value,
            "limit": ALPHA,
            "n": outcome.n,
            "subjects": outcome.subjects,
            "columns": dg.MetadataValue.table(columns),
        },
    )


def _difference_record(difference: Mapping[str, float | str]) -> dg.TableRecord:
    """Return the difference in a column, with rounded numbers."""
    cells = {}
    for key, value in difference.items():
        cells[key] = value
        if not isinstance(value, str):
            cells[key] = f"{value:.4g}"
    return dg.TableRecord(cells)


def expectation_result(outcomes: list[Expected]) -> dg.AssetCheckResult:
    """Combine expectations into one check result with names, verdicts and counts.

    Args:
        outcomes: Outcome of each expectation.
    """
    metadata = summary(outcomes)
    n_broken = metadata["broken"]
    broken = metadata.pop("broken expectations")
    if broken:
        records = [dg.TableRecord(record) for record in broken]
        metadata["broken expectations"] = dg.MetadataValue.table(records)
    n_expectations = metadata["expectations"]
    return dg.AssetCheckResult(
        passed=n_broken == 0,
        severity=dg.AssetCheckSeverity.ERROR,
        description=f"{n_expectations - n_broken} of {n_expectations} expectations hold",
        metadata=metadata,
    )


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
    relations: Mapping[str, bool] | None = None,
    drop: Sequence[str] | None = None,
    new_values: Mapping[str, str] | None = None,
    allowed_values: Mapping[str, Any] | None = None,
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
        relations: Relations between columns by name, as in :func:`~privacy_assets.evaluate`.
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
    declared = _declared(locals())
    all_roles = {"train": train, "holdout": holdout, "reference": reference, "synthetic": synthetic}
    assets = {role: asset for role, asset in all_roles.items() if asset is not None}
    metrics_by_name, in_force = resolve_metrics(
        metrics, policy, _WHERE, external=list(assets), embedder=embedder
    )
    keys = _distinct_keys(assets)
    op_tags = resolve_tags(gpu_tags, _WHERE)
    if max_synthetic_rows is not None:
        integer("max_synthetic_rows", max_synthetic_rows, 1)
    evaluation = _Evaluation(
        synthetic_key=keys["synthetic"],
        declared=declared,
        max_synthetic_rows=max_synthetic_rows,
        seed=seed,
        metrics=metrics_by_name,
        policy=in_force,
        embedder=embedder_settings(metrics_by_name, in_force, embedder),
    )
    arguments = {
        "name": "__".join([*keys["synthetic"].path, "privacy_checks"]),
        "specs": [_spec(limit, keys, blocking, partitions_def) for limit in in_force.limits],
        "ins": {role: dg.AssetIn(key=key) for role, key in keys.items()},
        **evaluation.device_arguments(op_tags),
    }
    if reference is None:
        return [_without_reference(arguments, evaluation)]
    return [_with_reference(arguments, evaluation)]


def _declared(arguments: Mapping[str, Any]) -> Declared:
    """Return the declarations about columns among the arguments of :func:`build_privacy_checks`."""
    try:
        return Declared.of_arguments(arguments)
    except ConfigError as error:
        message = str(error)
    raise ConfigError(f"{_WHERE}: {message}")


def _distinct_keys(assets: Mapping[str, Asset]) -> dict[str, dg.AssetKey]:
    """Return the key of each asset, by role.

    Raises:
        ConfigError: If an asset has two roles.
    """
    keys = {}
    for role, asset in assets.items():
        keys[role] = dg.AssetKey.from_coercible_or_definition(asset)
    if len(set(keys.values())) != len(keys):
        raise ConfigError(
            f"{_WHERE}: train, holdout, reference and synthetic must be different assets."
        )
    return keys


@dataclass(frozen=True)
class _Evaluation:
    """Evaluation of the user's assets in one step.

    Attributes:
        synthetic_key: Asset under evaluation.
        declared: Declarations about columns.
        max_synthetic_rows: See :func:`.read_inputs`.
        seed: Seed of all random draws.
        metrics: Metrics by name.
        policy: Policy in force.
        embedder: Settings of the embedder. None: no embedder is trained.
    """

    synthetic_key: dg.AssetKey
    declared: Declared
    max_synthetic_rows: int | None
    seed: int
    metrics: Mapping[str, Metric]
    policy: Policy
    embedder: Mapping[str, Any] | None

    @property
    def uses_device(self) -> bool:
        """Whether the step can use an accelerator."""
        if self.embedder is not None:
            return True
        return any(metric.uses_device for metric in self.metrics.values())

    def device_arguments(self, op_tags: Mapping[str, Any]) -> dict[str, Any]:
        """Return resources and op tags of the step, as arguments of Dagster's decorator.

        Args:
            op_tags: Op tags of a step that can use a device.
        """
        if not self.uses_device:
            return {"required_resource_keys": set(), "op_tags": {}}
        return {"required_resource_keys": {GPU}, "op_tags": op_tags}

    def check_results(
        self, context: dg.AssetCheckExecutionContext, tables: dict[str, Any]
    ) -> Iterator[dg.AssetCheckResult]:
        """Evaluate the policy.

        Args:
            context: Context of the step.
            tables: Tables by role.

        Yields:
            Result of each limit.
        """
        from privacy_assets.report.advice import advice

        results = self._measure(context, tables)
        outcomes = self.policy.judge(results).outcomes
        advised = advice([outcome for outcome in outcomes if not outcome.passed])
        for outcome in outcomes:
            yield limit_result(self.synthetic_key, outcome, advised)

    def _measure(
        self, context: dg.AssetCheckExecutionContext, tables: dict[str, Any]
    ) -> dict[str, MetricResult]:
        """Return the result of each metric, by name."""
        with device_of(context, self.uses_device) as device, isolated():
            inputs = read_inputs(
                **tables,
                declared=self.declared,
                max_synthetic_rows=self.max_synthetic_rows,
                seed=self.seed,
                device=device,
                progress=Lines(context.log.info),
            )
            measured = measure_release(inputs, self.metrics, self.policy, self.embedder)
            return measured.results


# Dagster reads the input types from the signature, so each case needs its own function.
def _with_reference(arguments: dict[str, Any], evaluation: _Evaluation) -> dg.AssetChecksDefinition:
    @dg.multi_asset_check(**arguments)
    @redact_step
    def privacy(
        context: dg.AssetCheckExecutionContext,
        train: pd.DataFrame,
        holdout: pd.DataFrame,
        reference: pd.DataFrame,
        synthetic: pd.DataFrame,
    ) -> Iterator[dg.AssetCheckResult]:
        tables = {
            "train": train,
            "holdout": holdout,
            "reference": reference,
            "synthetic": synthetic,
        }
        yield from evaluation.check_results(context, tables)

    return privacy


def _without_reference(
    arguments: dict[str, Any], evaluation: _Evaluation
) -> dg.AssetChecksDefinition:
    @dg.multi_asset_check(**arguments)
    @redact_step
    def privacy(
        context: dg.AssetCheckExecutionContext,
        train: pd.DataFrame,
        holdout: pd.DataFrame,
        synthetic: pd.DataFrame,
    ) -> Iterator[dg.AssetCheckResult]:
        tables = {"train": train, "holdout": holdout, "synthetic": synthetic}
        yield from evaluation.check_results(context, tables)

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
