"""Checks beside the gate: schema and values of source and synthetic, exchangeability of train and holdout."""

from typing import Any

import dagster as dg

from privacy_assets.dagster.assets import PRIVATE, RELEASES, split_ins
from privacy_assets.dagster.expectations import Expected, check_source, check_synthetic
from privacy_assets.dagster.places import place_of, steps_of
from privacy_assets.dagster.redaction import checked_step
from privacy_assets.dagster.settings import TableSettings
from privacy_assets.dagster.versions import CHECK
from privacy_assets.pipeline.measuring import metric_inputs
from privacy_assets.pipeline.private_table import PrivateTable
from privacy_assets.tables.table import Table

ALPHA = 0.001  # one false alarm in a thousand splits


def build_table_checks(settings: TableSettings) -> list[dg.AssetChecksDefinition]:
    """The checks of one table that do not come from its policy."""
    made = [] if settings.external else [_source_check(settings)]
    return [*made, _synthetic_check(settings), _exchangeability_check(settings)]


def _source_check(settings: TableSettings) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=settings.key("source"),
        name="schema",
        metadata={CHECK: "schema"},
        description="Columns, types and nullability are those that the pipeline works with.",
        partitions_def=settings.partitions_def,
    )
    @checked_step
    def schema(context: dg.AssetCheckExecutionContext, source: PrivateTable) -> dg.AssetCheckResult:
        place_of(context, settings)
        return expectation_result(check_source(source.rows))

    return schema


def _synthetic_check(settings: TableSettings) -> dg.AssetChecksDefinition:
    def found(context: dg.AssetCheckExecutionContext, synthetic: Any, *tables: PrivateTable) -> dg.AssetCheckResult:
        made = Table.of(steps_of(context, settings).rows(synthetic), tables[0].schema, where="synthetic")
        return expectation_result(check_synthetic(made.frame(), [table.rows for table in tables]))

    check = dg.asset_check(
        asset=settings.key("synthetic"),
        name="schema_and_values",
        metadata={CHECK: "schema_and_values"},
        additional_ins=split_ins(settings),
        required_resource_keys={RELEASES},
        description="The synthetic table has the columns and types of train, and no value that may not stand in it.",
        partitions_def=settings.partitions_def,
    )
    # Dagster reads from the signature which tables a check is given.
    if "reference" not in settings.roles:

        @check
        @checked_step
        def of_two(
            context: dg.AssetCheckExecutionContext, synthetic: Any, train: PrivateTable, holdout: PrivateTable
        ) -> dg.AssetCheckResult:
            return found(context, synthetic, train, holdout)

        return of_two

    @check
    @checked_step
    def of_three(
        context: dg.AssetCheckExecutionContext,
        synthetic: Any,
        train: PrivateTable,
        holdout: PrivateTable,
        reference: PrivateTable,
    ) -> dg.AssetCheckResult:
        return found(context, synthetic, train, holdout, reference)

    return of_three


def _exchangeability_check(settings: TableSettings) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=settings.key("holdout"),
        name="exchangeable_with_train",
        metadata={CHECK: "exchangeable_with_train"},
        additional_ins={"train": dg.AssetIn(key=settings.key("train"), dagster_type=PRIVATE)},
        description=(
            "Train and holdout look like two draws from one population. Where they do not, a difference between them"
            " is no evidence of a leak."
        ),
        partitions_def=settings.partitions_def,
    )
    @checked_step
    def exchangeable_with_train(
        context: dg.AssetCheckExecutionContext, holdout: PrivateTable, train: PrivateTable
    ) -> dg.AssetCheckResult:
        place_of(context, settings)
        return exchangeability_result({"train": train, "holdout": holdout}, settings.seed)

    return exchangeable_with_train


def exchangeability_result(tables: dict[str, PrivateTable], seed: int) -> dg.AssetCheckResult:
    """Test train and holdout; red when p is below 0.001."""
    from privacy_assets.pipeline.exchangeability import exchangeability

    found = exchangeability(metric_inputs(tables, tables["train"].rows, seed=seed))
    passed = found.p_value > ALPHA
    worst = max(found.columns, key=lambda record: float(record["z"]))
    text = "train and holdout are alike" if passed else f"train and holdout differ most in column {worst['column']}"
    records = [
        dg.TableRecord({k: v if isinstance(v, str) else f"{v:.4g}" for k, v in r.items()}) for r in found.columns
    ]
    return dg.AssetCheckResult(
        passed=passed,
        severity=dg.AssetCheckSeverity.ERROR,
        description=text,
        metadata={
            "p_value": found.p_value,
            "limit": ALPHA,
            "n": found.n,
            "subjects": found.subjects,
            "columns": dg.MetadataValue.table(records),
        },
    )


def expectation_result(outcomes: list[Expected]) -> dg.AssetCheckResult:
    """One check result from many expectations: names, verdicts and counts."""
    broken = [outcome for outcome in outcomes if not outcome.passed]
    records = [dg.TableRecord({"expectation": o.name, "column": o.column, "rows": o.unexpected}) for o in broken]
    metadata: dict[str, Any] = {"expectations": len(outcomes), "broken": len(broken)}
    if records:
        metadata["broken expectations"] = dg.MetadataValue.table(records)
    return dg.AssetCheckResult(
        passed=not broken,
        severity=dg.AssetCheckSeverity.ERROR,
        description=f"{len(outcomes) - len(broken)} of {len(outcomes)} expectations hold",
        metadata=metadata,
    )
