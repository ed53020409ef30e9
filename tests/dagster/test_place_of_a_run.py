"""Every step of a table determines its partition before it reads or writes, and rejects
inconsistent tags.
"""

import inspect
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from standins import independent, study_of, table_of

REGIONS = dg.StaticPartitionsDefinition(["north", "south"])
KEY = "dagster/partition"
RANGE = {
    "dagster/asset_partition_range_start": "north",
    "dagster/asset_partition_range_end": "north",
}
BY_REGION: dict[str, Any] = {"partitions_def": REGIONS, "partition_column": "region"}
BROUGHT = {role: dg.AssetKey(role) for role in ("synthetic", "train", "holdout")}


def steps(**arguments: Any) -> dict[str, Any]:
    """The functions of all assets and checks of a table, by step name."""
    table = table_of("people", **arguments)
    if "source" in arguments:
        table = dg.Definitions.merge(table, study_of("people", **arguments))
    found = [one.node_def for one in (*table.assets, *table.asset_checks)]
    studies = [
        node
        for job in table.jobs
        if isinstance(job, dg.JobDefinition)
        for node in job.all_node_defs
    ]
    return {node.name: node.compute_fn.decorated_fn for node in (*found, *studies)}


def outcome(step: Any, tags: dict[str, str]) -> str:
    """The reason of the step's failure in a run with ``tags``; its context and inputs contain no
    other data.
    """
    names = [
        name
        for name in inspect.signature(step).parameters
        if name not in ("context", "tables", "values")
    ]
    context = SimpleNamespace(run=SimpleNamespace(tags=tags), instance=None)
    with pytest.raises(dg.Failure) as blocked:
        list(step(context, **dict.fromkeys(names)) or [])
    return blocked.value.description or ""


WHOLE = steps(source="demo", generator=independent)
PARTS = steps(source="demo", generator=independent, **BY_REGION)
OWN = {f"brought {name}": step for name, step in steps(**BROUGHT, **BY_REGION).items()}


def test_these_are_all_steps() -> None:
    verbs = {
        "read",
        "split",
        "embed",
        "fit",
        "sample",
        "prepare",
        "score",
        "score_on_device",
        "attest",
        "publish",
    }
    assert {f"people__{name}" for name in (*verbs, "leak_study")} <= set(PARTS) == set(WHOLE)
    assert sum("contract" in name or "exchangeable" in name for name in PARTS) == 1


ABSENT, WHOLE_TAGS = (
    "there is no such partition",
    ({KEY: "north"}, {KEY: ""}, {f"{KEY}/region": "north"}, RANGE),
)
WRONG = (
    {KEY: "North"},
    {KEY: ""},
    {KEY: "north", f"{KEY}/region": "south"},
    {KEY: "north", **RANGE},
)


@pytest.mark.parametrize("name", PARTS)
def test_a_step_asks_for_its_place(name: str) -> None:
    for tags in WRONG:
        assert ABSENT in outcome(PARTS[name], tags)
    for tags in ({}, RANGE, {f"{KEY}/region": "north"}):
        assert "do not name exactly one" in outcome(PARTS[name], tags)
    for tags in WHOLE_TAGS:
        assert "people has no partitions" in outcome(WHOLE[name], tags)


@pytest.mark.parametrize("name", OWN)
def test_a_step_of_a_table_that_was_brought(name: str) -> None:
    assert ABSENT in outcome(OWN[name], {KEY: "North"})
