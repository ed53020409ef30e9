"""Test tables built from frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import pandas as pd

from privacy_assets.metrics.inputs import EvaluationContext, EvaluationInputs
from privacy_assets.metrics.release_tables import ReleaseTables
from privacy_assets.tables.schema import TableSchema
from privacy_assets.tables.table import Table

Frames = Mapping[str, pd.DataFrame | Table]


def as_table(frame: pd.DataFrame | Table, schema: TableSchema | None = None) -> Table:
    """Convert a frame to a table with an inferred schema, or with ``schema``; it may be empty."""
    if isinstance(frame, Table):
        return frame
    return Table.read(frame) if schema is None else Table.of(frame, schema, where="t", smallest=0)


def as_tables(frames: Sequence[pd.DataFrame | Table], schema: TableSchema) -> list[Table]:
    """Convert frames to tables of one schema."""
    return [as_table(frame, schema) for frame in frames]


def metric_inputs(
    schema: TableSchema, frames: Frames, *given: Any, **more: Any
) -> EvaluationInputs:
    """Build the inputs of metrics from frames by role."""
    of_tables = {one.name for one in fields(ReleaseTables)}
    facts = {name: value for name, value in more.items() if name in of_tables}
    context = {name: value for name, value in more.items() if name not in of_tables}
    tables = {role: as_table(frame, schema) for role, frame in frames.items()}
    release = ReleaseTables(schema, tables, *given, **facts)
    return EvaluationInputs.of(release, EvaluationContext(**context))


def with_tables(
    inputs: EvaluationInputs, tables: Mapping[str, Table], **changes: Any
) -> EvaluationInputs:
    """Return inputs of other tables in the same context."""
    release = replace(inputs.release, tables=tables, **changes)
    return EvaluationInputs.of(release, inputs.context)
