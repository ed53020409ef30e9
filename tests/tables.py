"""Tables of tests, made of frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from privacy_assets.metrics.inputs import MetricInputs
from privacy_assets.tables.schema import TableSchema
from privacy_assets.tables.table import Table

Frames = Mapping[str, pd.DataFrame | Table]


def as_table(frame: pd.DataFrame | Table, schema: TableSchema | None = None) -> Table:
    """A frame as a table of its own schema, or of ``schema``; it may have no rows."""
    if isinstance(frame, Table):
        return frame
    return Table.read(frame) if schema is None else Table.of(frame, schema, where="t", smallest=0)


def as_tables(frames: Sequence[pd.DataFrame | Table], schema: TableSchema) -> list[Table]:
    """Frames as tables of one schema."""
    return [as_table(frame, schema) for frame in frames]


def metric_inputs(schema: TableSchema, frames: Frames, *given: Any, **more: Any) -> MetricInputs:
    """What metrics are given, of frames by role."""
    return MetricInputs(schema, {role: as_table(frame, schema) for role, frame in frames.items()}, *given, **more)
