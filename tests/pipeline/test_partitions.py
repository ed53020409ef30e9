"""Partitions without Dagster equal Dagster's: the same keys and the same windows, and all other
keys are rejected.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import dagster as dg
import pytest

from privacy_assets.errors import ConfigError, WrongTarget
from privacy_assets.pipeline.partitions import KeyPartitions, TimePartitions, as_partitions

TWINS = {
    "hour": dg.HourlyPartitionsDefinition,
    "day": dg.DailyPartitionsDefinition,
    "week": dg.WeeklyPartitionsDefinition,
    "month": dg.MonthlyPartitionsDefinition,
}
FORMATS = {"hour": "%Y-%m-%d-%H:%M"}


@pytest.mark.parametrize("every", TWINS)
@pytest.mark.parametrize("start", ["2026-01-01", "2026-01-14"])
def test_keys_and_windows_are_those_of_dagster(every: str, start: str) -> None:
    form = FORMATS.get(every, "%Y-%m-%d")
    twin = TWINS[every](start_date=datetime.fromisoformat(start).strftime(form), timezone="UTC")
    ours, now = TimePartitions(start, every), datetime.now(UTC)
    keys = twin.get_partition_keys(current_time=now)
    for key in (*keys[:40], *keys[-3:]):
        theirs = twin.time_window_for_partition_key(key)
        assert ours.check(key) == key
        assert ours.window(key) == (theirs.start, theirs.end)
        assert ours.of(theirs.start) == ours.of(theirs.end - timedelta(seconds=1)) == key
    assert ours.first == twin.time_window_for_partition_key(keys[0]).start
    for key in (
        ours.of(ours.first - timedelta(hours=1)),
        ours.of(now),
        ours.of(now + timedelta(days=400)),
    ):
        assert not twin.has_partition_key(key)
        with pytest.raises(WrongTarget):
            ours.check(key)


SPELT_OTHERWISE = (
    "2026-1-5",
    "2026-01-05T00:00:00",
    " 2026-01-05",
    "2026-01-05 ",
    "..",
    "",
    "2026-02-30",
    "２026-01-05",
    "2026-01-04/x",
)


@pytest.mark.parametrize("key", SPELT_OTHERWISE)
def test_another_spelling_is_no_partition(key: str) -> None:
    with pytest.raises(WrongTarget, match="there is no partition"):
        TimePartitions("2026-01-01").check(key)


def test_a_time_in_another_zone_is_that_of_utc() -> None:
    late = datetime.fromisoformat("2026-03-01T23:30:00-05:00")
    assert TimePartitions("2026-01-01").of(late) == "2026-03-02"
    assert TimePartitions(date(2026, 1, 1)).first == datetime(2026, 1, 1, tzinfo=UTC)
    assert TimePartitions(datetime.fromisoformat("2026-01-01T00:00:00+02:00")).first == datetime(
        2026, 1, 1, tzinfo=UTC
    )


def test_a_window_that_is_open_is_told_as_that() -> None:
    daily = TimePartitions("2026-01-01")
    with pytest.raises(WrongTarget, match="has not ended"):
        daily.check(daily.of(datetime.now(UTC)))


@pytest.mark.parametrize("every", TWINS)
def test_the_end_of_time_is_no_partition(every: str) -> None:
    forever = TimePartitions("2026-01-01", every)
    for key in ("9999-12-31", "9999-12-01", "9999-12-26", "9999-12-31-23:00", "0001-01-01"):
        with pytest.raises(WrongTarget, match="there is no partition"):
            forever.check(key)


@pytest.mark.parametrize(
    "given", [{"start": "soon"}, {"start": None}, {"start": "2026-01-01", "every": "days"}]
)
def test_wrong_settings_are_told(given: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="partitions"):
        TimePartitions(**given)


def test_keys_are_those_that_are_named() -> None:
    found = as_partitions(["north", "south"])
    assert (
        isinstance(found, KeyPartitions)
        and found.check("north") == "north"
        and found.window("north") is None
    )
    for key in ("North", "north ", "east", "*", ""):
        with pytest.raises(WrongTarget, match="there is no partition"):
            found.check(key)
    for wrong in ([], ["a", "a"], [""], [1], ["a" * 251], "north", 3):
        with pytest.raises(ConfigError, match="partitions"):
            as_partitions(wrong)
    assert as_partitions(None) is None
    assert as_partitions(found) is found
