"""The demo under the split keys with which it was once rejected."""

from __future__ import annotations

import pytest

from benchmarks import demo_keys
from privacy_assets.dagster.demo import demo_spec
from privacy_assets.pipeline.resolve import ResolvedTable


@pytest.mark.weekly
@pytest.mark.parametrize("key", [18, 106])
def test_the_demo_is_not_rejected_by_chance(key: int) -> None:
    """Controls once rejected it with both keys, when they had limits."""
    settings = ResolvedTable.of(demo_spec())
    found = demo_keys.scored(
        settings,
        demo_keys.demo_inputs(settings, key, False),
        ["copies", "dcr", "membership_inference"],
        False,
    )
    assert found["verdict"] == "pass" and found["broken"] == {}
