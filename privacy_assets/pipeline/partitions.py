"""Partitions of a table for those who schedule it without Dagster, spelt as Dagster spells them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, Literal

from privacy_assets.errors import ConfigError, PublicationRefused, did_you_mean, shown

Every = Literal["hour", "day", "week", "month"]
_LAST_YEAR = 9999  # of a datetime: nothing comes after it
_LONGEST = 250  # characters of a key that Airflow stores
_FORMATS: dict[str, str] = {"hour": "%Y-%m-%d-%H:%M", "day": "%Y-%m-%d", "week": "%Y-%m-%d", "month": "%Y-%m-%d"}


@dataclass(frozen=True)
class KeyPartitions:
    """Partitions with names: a run is of one of ``keys``, in this spelling."""

    keys: tuple[str, ...]

    def __post_init__(self) -> None:
        odd = [key for key in self.keys if not isinstance(key, str) or not key.strip() or not key.isprintable()]
        odd += [key for key in self.keys if key not in odd and len(key) > _LONGEST]
        if odd or not self.keys or len(set(self.keys)) < len(self.keys):
            raise ConfigError(
                "partitions: give the keys, texts of at most 250 characters of which none is empty or stands twice."
            )

    def check(self, key: str) -> str:
        """``key`` itself; PublicationRefused for one that is not known: it would be a place without a past."""
        if key not in self.keys:
            raise PublicationRefused(
                f"there is no partition {shown(key)}. Fix: take one of the keys that the DAG names, as it spells them."
            )
        return key

    def window(self, key: str) -> None:
        """None: rows are chosen by their path, or by the partition column."""


@dataclass(frozen=True)
class TimePartitions:
    """Partitions that are windows of time in UTC, from ``start`` on: one ``every`` hour, day, week or month.

    ``start`` is a date or time, in UTC where it names no zone. Keys are what Dagster's hourly, daily, weekly (from
    Sunday on) and monthly partitions are called, so that both speak of the same releases. Only windows that have ended
    are partitions.
    """

    start: str | datetime
    every: Every = "day"

    def __post_init__(self) -> None:
        if self.every not in _FORMATS:
            raise ConfigError(f"partitions: every is {shown(self.every)}.{did_you_mean(self.every, _FORMATS)}")
        _ = self.first

    @cached_property
    def first(self) -> datetime:
        """The start of the first partition."""
        try:
            start = datetime.fromisoformat(self.start) if isinstance(self.start, str) else self.start
            start = start.replace(tzinfo=UTC) if start.tzinfo is None else start.astimezone(UTC)
        except (ValueError, TypeError, AttributeError):
            raise ConfigError(f"partitions: start is {shown(self.start)}, no date such as 2026-01-01.") from None
        floor = self._floor(start)
        return floor if floor == start else self._after(floor)

    def of(self, when: datetime) -> str:
        """The key of the window that holds ``when``."""
        return self._floor(when.astimezone(UTC)).strftime(_FORMATS[self.every])

    def check(self, key: str) -> str:
        """``key`` itself; PublicationRefused for one that is spelt otherwise, or whose window is not one, or still
        open."""
        start = self._start(key)
        if start is None or start < self.first:
            example = self.first.strftime(_FORMATS[self.every])
            raise PublicationRefused(
                f"there is no partition {shown(key)}. Fix: keys look like {example}, the first one."
            )
        if self._after(start) > datetime.now(UTC):
            raise PublicationRefused(f"the {self.every} of partition {key} has not ended. Fix: run it when it has.")
        return key

    def window(self, key: str) -> tuple[datetime, datetime]:
        """Start and end of a key that was checked."""
        start = self._start(key)
        if start is None:
            raise PublicationRefused(f"there is no partition {shown(key)}.")
        return start, self._after(start)

    def _start(self, key: str) -> datetime | None:
        form = _FORMATS[self.every]
        try:
            start = datetime.strptime(key, form).replace(tzinfo=UTC)
        except (ValueError, TypeError):
            return None
        known = start.strftime(form) == key and start.year < _LAST_YEAR and self._floor(start) == start
        return start if known else None

    def _floor(self, when: datetime) -> datetime:
        hour = when.replace(minute=0, second=0, microsecond=0)
        if self.every == "hour":
            return hour
        day = hour.replace(hour=0)
        if self.every == "week":
            return day - timedelta(days=day.isoweekday() % 7)
        return day.replace(day=1) if self.every == "month" else day

    def _after(self, start: datetime) -> datetime:
        """The start of the next window."""
        if self.every == "month":
            return (start + timedelta(days=32)).replace(day=1)
        return start + {"hour": timedelta(hours=1), "day": timedelta(days=1), "week": timedelta(days=7)}[self.every]


Partitions = KeyPartitions | TimePartitions


def as_partitions(given: Any) -> Partitions | None:
    """Partitions from themselves or a list of keys; ConfigError for anything else."""
    if given is None or isinstance(given, (KeyPartitions, TimePartitions)):
        return given
    if isinstance(given, Sequence) and not isinstance(given, str):
        return KeyPartitions(tuple(given))
    raise ConfigError("partitions: give a list of keys, or TimePartitions.")
