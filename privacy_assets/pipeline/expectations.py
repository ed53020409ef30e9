"""Contract of the columns as a suite of great_expectations, which Dagster and Airflow display.

The steps enforce the contract themselves (:mod:`privacy_assets.tables.canonical`), also without
great_expectations.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from privacy_assets.tables.roles import allowed_values
from privacy_assets.tables.schema import TableSchema
from privacy_assets.tables.table import Table
from privacy_assets.tables.threshold_rule import reach_of

_TYPES = {
    "numeric": ["float64"],
    "integer": ["Int64Dtype"],
    "boolean": ["BooleanDtype"],
    "datetime": ["datetime64[us]"],
    "categorical": ["str"],
}


@dataclass(frozen=True, slots=True)
class Expected:
    """Outcome of an expectation, without row positions or values.

    Attributes:
        name: Name of the expectation.
        column: Column, or "" for the whole table.
        passed: Whether it holds.
        unexpected: Number of rows that violate it.
    """

    name: str
    column: str
    passed: bool
    unexpected: int


def check_contract(frame: pd.DataFrame, real: Sequence[Table]) -> list[Expected]:
    """Check columns, types, nullability and allowed values of a synthetic table against the real
    tables.

    :mod:`privacy_assets.tables.roles` defines the allowed values, as for the limit on
    ``value_disclosure.foreign_cells``.
    """
    schema = real[0].schema
    return _run(frame, [*_structure(schema), *_nullability(schema), *_values(schema, real)])


def _structure(schema: TableSchema) -> list[tuple[str, dict[str, Any]]]:
    columns = [("ExpectTableColumnsToMatchOrderedList", {"column_list": schema.names})]
    types = [
        (
            "ExpectColumnValuesToBeInTypeList",
            {"column": column.name, "type_list": _TYPES[column.kind]},
        )
        for column in schema.columns
    ]
    return [*columns, *types]


def _nullability(schema: TableSchema) -> list[tuple[str, dict[str, Any]]]:
    return [
        ("ExpectColumnValuesToNotBeNull", {"column": c.name})
        for c in schema.columns
        if not c.nullable
    ]


def _values(schema: TableSchema, tables: Sequence[Table]) -> list[tuple[str, dict[str, Any]]]:
    wanted: list[tuple[str, dict[str, Any]]] = []
    for column in schema.evaluated.columns:
        real = [table[column.name] for table in tables]
        if column.kind in ("categorical", "boolean"):
            values = allowed_values(column, real).objects()
            wanted.append(
                ("ExpectColumnValuesToBeInSet", {"column": column.name, "value_set": values})
            )
        elif limits := reach_of(column, real):
            low, high = limits
            if column.kind == "datetime":
                low, high = (pd.Timestamp(limit, unit="us") for limit in limits)
            between = {"column": column.name, "min_value": low, "max_value": high}
            wanted.append(("ExpectColumnValuesToBeBetween", between))
    return wanted


def _run(frame: pd.DataFrame, wanted: Sequence[tuple[str, dict[str, Any]]]) -> list[Expected]:
    import great_expectations as gx
    from great_expectations.data_context.types.base import ProgressBarsConfig

    # It logs expectations that it could not compute, including private values.
    logging.getLogger("great_expectations").setLevel(logging.CRITICAL + 1)
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    asset = context.data_sources.add_pandas("table").add_dataframe_asset("table")
    batch = asset.add_batch_definition_whole_dataframe("whole").get_batch({"dataframe": frame})
    suite = gx.ExpectationSuite(
        "table", expectations=[getattr(gx.expectations, kind)(**kw) for kind, kw in wanted]
    )
    outcome = batch.validate(suite, result_format="BASIC")
    return [_expected(result) for result in outcome.results]


def _expected(result: Any) -> Expected:
    config = result.expectation_config
    counted = result.result.get("unexpected_count") if result.result else None
    return Expected(
        config.type, str(config.kwargs.get("column", "")), bool(result.success), int(counted or 0)
    )


def summary(outcomes: Sequence[Expected]) -> dict[str, Any]:
    """Return the numbers of expectations and broken ones, and one record for each broken one,
    without values.
    """
    broken = [outcome for outcome in outcomes if not outcome.passed]
    records = [
        {"expectation": one.name, "column": one.column, "rows": one.unexpected} for one in broken
    ]
    return {"expectations": len(outcomes), "broken": len(broken), "broken expectations": records}
