"""Results survive JSON, with NaN as null."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from privacy_assets.engine.results import Figure, MetricResult


def test_a_result_survives_json() -> None:
    figures = (
        Figure("a", 0.1, 0.0, 0.2, 10, 5, resolution=0.3, note="n"),
        Figure("b", math.nan, math.nan, math.nan, 0, 0, 0.5, "two_sided", 0.99, note="not measurable"),
    )
    tables = {"t": [{"x": np.float64(1.5), "y": np.int64(2), "z": float("nan"), "w": "é"}]}
    result = MetricResult("m", figures, tables, {"columns": (3, 4), "k": None}, {"train": "h"}, 7, "0.1.0", 1.25)
    text = json.dumps(result.to_json(), allow_nan=False)
    back = MetricResult.from_json(json.loads(text))
    assert json.dumps(back.to_json()) == text
    assert back.figure("a") == figures[0]
    assert not back.figure("b").measurable
    assert back.tables["t"][0]["z"] is None
    with pytest.raises(KeyError, match="no figure 'c'"):
        back.figure("c")
