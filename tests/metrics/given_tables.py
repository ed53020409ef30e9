"""Metric inputs from plain frames, for the tests of metrics."""

from __future__ import annotations

import pandas as pd

from privacy_assets.metrics.inputs import MetricInputs
from privacy_assets.tables.schema import infer_schema
from tests.tables import metric_inputs


def given(train: pd.DataFrame, holdout: pd.DataFrame, synthetic: pd.DataFrame, **more) -> MetricInputs:
    schema = infer_schema(pd.concat([train, holdout, synthetic], ignore_index=True))
    frames = {"train": train, "holdout": holdout, "synthetic": synthetic}
    return metric_inputs(schema, frames, **more)
