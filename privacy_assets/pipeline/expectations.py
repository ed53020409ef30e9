"""Contract of the columns as a suite of great_expectations, which Dagster and Airflow display.

The steps enforce the contract themselves (:mod:`privacy_assets.tables.canonical`), also without
great_expectations.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd

from privacy_assets.tables.column_rule import reach_of
from privacy_assets.tables.roles import allowed_values
from privacy_assets.tables.schema import TableSchema
from privacy_assets.tables.table import Table

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


class _Expectation(NamedTuple):
    """Class of great_expectations, and its arguments."""

    kind: str
    arguments: dict[str, Any]


def check_contract(frame: pd.DataFrame, real: Sequence[Table]) -> list[Expected]:
    """Check columns, types, nullability and allowed values of a synthetic table.

    :mod:`privacy_assets.tables.roles` defines the allowed values, as for the limit on
    ``value_disclosure.foreign_cells``.

    Args:
        frame: Rows of the synthetic table.
        real: Real tables, without subjects.

    Returns:
        Outcome of each expectation.
    """
    schema = real[0].schema
    return _run(frame, [*_structure(schema), *_nullability(schema), *_values(schema, real)])


def _structure(schema: TableSchema) -> Iterator[_Expectation]:
    yield _Expectation("ExpectTableColumnsToMatchOrderedList", {"column_list": schema.names})
    for column in schema.columns:
        arguments = {"column": column.name, "type_list": _TYPES[column.kind]}
        yield _Expectation("ExpectColumnValuesToBeInTypeList", arguments)


def _nullability(schema: TableSchema) -> Iterator[_Expectation]:
    for column in schema.columns:
        if not column.nullable:
            yield _Expectation("ExpectColumnValuesToNotBeNull", {"column": column.name})


def _values(schema: TableSchema, tables: Sequence[Table]) -> Iterator[_Expectation]:
    for column in schema.evaluated.columns:
        real = [table[column.name] for table in tables]
        if column.kind in ("categorical", "boolean"):
            values = allowed_values(column, real).objects()
            arguments = {"column": column.name, "value_set": values}
            yield _Expectation("ExpectColumnValuesToBeInSet", arguments)
            continue
        bounds = reach_of(column, real)
        if bounds is None:
            continue
        low, high = bounds
        if column.kind == "datetime":
            low = pd.Timestamp(low, unit="us")
            high = pd.Timestamp(high, unit="us")
        arguments = {"column": column.name, "min_value": low, "max_value": high}
        yield _Expectation("ExpectColumnValuesToBeBetween", arguments)


def _run(frame: pd.DataFrame, expectations: Sequence[_Expectation]) -> list[Expected]:
    import great_expectations as gx
    from great_expectations.data_context.types.base import ProgressBarsConfig

    # It logs expectations that it could not compute, including private values.
    logging.getLogger("great_expectations").setLevel(logging.CRITICAL + 1)
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    asset = context.data_sources.add_pandas("table").add_dataframe_asset("table")
    batch = asset.add_batch_definition_whole_dataframe("whole").get_batch({"dataframe": frame})
    built = []
    for expectation in expectations:
        expectation_class = getattr(gx.expectations, expectation.kind)
        built.append(expectation_class(**expectation.arguments))
    suite = gx.ExpectationSuite("table", expectations=built)
    validation = batch.validate(suite, result_format="BASIC")
    return [_expected(result) for result in validation.results]


def _expected(result: Any) -> Expected:
    config = result.expectation_config
    n_unexpected = None
    if result.result:
        n_unexpected = result.result.get("unexpected_count")
    column = str(config.kwargs.get("column", ""))
    return Expected(config.type, column, bool(result.success), int(n_unexpected or 0))


def summary(outcomes: Sequence[Expected]) -> dict[str, Any]:
    """Summarize the outcome of expectations, without values.

    Args:
        outcomes: Outcome of each expectation.

    Returns:
        The numbers of expectations and broken ones, and one mapping for each broken one.
    """
    broken = [outcome for outcome in outcomes if not outcome.passed]
    failed = []
    for outcome in broken:
        failed.append(
            {
                "expectation": outcome.name,
                "column": outcome.column,
                "rows": outcome.unexpected,
            }
        )
    return {"expectations": len(outcomes), "broken": len(broken), "broken expectations": failed}
