"""Bypasses over the tags of a run that need a real webserver: see test_bypasses_served."""

import pytest
from served import GATED, Served
from stock import KEY, Folder

from privacy_assets import read_published
from privacy_assets.errors import InputError
from privacy_assets.gate.envelope import ReleaseTarget
from privacy_assets.gate.releases import ReleaseStore

pytestmark = pytest.mark.weekly

STOCK = ("piece", "published")
START, END = (f"dagster/asset_partition_range_{end}" for end in ("start", "end"))
DAY, NEXT = "2024-01-01", "2024-01-02"


def night(served: Served, location: str, table: str, tags: dict[str, str]) -> str:
    """Launch a run of the whole table with these tags; return its id."""
    assets = STOCK if location == "stock" else GATED
    return served.launch(location, *[f"{table}/{asset}" for asset in assets], tags=tags)


def blocked(served: Served, table: str, tags: dict[str, str], why: str) -> None:
    """Neither the whole table nor its publication alone runs with these tags; both give this
    reason.
    """
    whole, alone = (
        night(served, "gated", table, tags),
        served.launch("gated", f"{table}/published", tags=tags),
    )
    for run, step in ((whole, f"{table}__read"), (alone, f"{table}__publish")):
        failure = served.failures(run)[step].user_failure_data
        assert failure is not None and why in failure.description
    assert served.checks(alone) == {"released": False}


def test_bypass_28_a_run_tag_on_a_table_without_partitions(served: Served) -> None:
    nights = [
        served.finished(night(served, "stock", "nights", tags))
        for tags in ({}, {}, {KEY: "0"}, {KEY: "1"})
    ]
    assert nights == [True, False, True, True]
    Folder(served.root).gave_away_all("nights")

    assert served.finished(night(served, "gated", "nights", {}))
    for tags in ({KEY: "shop-0"}, {f"{KEY}/shop": "0"}, {START: "a", END: "a"}):
        blocked(served, "nights", tags, "nights has no partitions")
    store = ReleaseStore(served.root / "releases")
    assert list(store.targets("nights")) == [ReleaseTarget("nights")]
    assert len(store.history(ReleaseTarget("nights"))) == 1
    with pytest.raises(InputError, match="there is no release"):
        read_published(served.root / "releases", "nights", "shop-0")


def test_bypasses_29_and_30_another_spelling_of_a_partition_and_a_range(served: Served) -> None:
    keys = (DAY, DAY, "2024-1-1", "2024-01-1")
    nights = [served.finished(night(served, "stock", "nights_by_day", {KEY: key})) for key in keys]
    assert nights == [True, False, True, True]
    Folder(served.root).gave_away_all("nights_by_day")

    run = night(served, "gated", "nights_by_day", {KEY: DAY})
    assert served.finished(run), served.failures(run)
    blocked(served, "nights_by_day", {KEY: "2024-1-1"}, "there is no such partition")
    blocked(served, "nights_by_day", {START: DAY, END: DAY}, "do not name exactly one")
    assert not served.finished(night(served, "gated", "nights_by_day", {START: DAY, END: NEXT}))
    store = ReleaseStore(served.root / "releases")
    assert list(store.targets("nights_by_day")) == [ReleaseTarget("nights_by_day", DAY)]
    assert len(store.history(ReleaseTarget("nights_by_day", DAY))) == 1
    assert set(
        read_published(served.root / "releases", "nights_by_day", DAY)["joined"].astype(str)
    ) == {DAY}
