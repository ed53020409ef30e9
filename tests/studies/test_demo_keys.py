"""The demo under keys of the split by which it was refused."""

from __future__ import annotations

import pytest

from benchmarks import demo_keys
from privacy_assets.dagster.demo import demo_spec
from privacy_assets.pipeline.plan import TablePlan


@pytest.mark.slow
@pytest.mark.parametrize("key", [18, 106])
def test_the_demo_is_not_refused_by_chance(key: int) -> None:
    """Moved copies, and those of outliers, passed in three of eight plantings with key 18.

    With 106 they pass by all limits on closeness but `advantage_outliers`, which is looked at last.
    """
    settings = TablePlan.of(demo_spec())
    found = demo_keys.scored(settings, demo_keys.demo_inputs(settings, key, False), ["controls"], False)
    assert found["verdict"] == "pass" and found["broken"] == {}
    assert max(value for name, value in found["estimates"].items() if "smallest_leak" in name) <= 0.5
