"""Partitions of a table for schedulers other than Dagster, with the same keys as Dagster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from typing import Any, Literal

from privacy_assets.errors import ConfigError, WrongTarget, did_you_mean, safe_repr
from privacy_assets.gate.envelope import quoted
from privacy_assets.tables.names import name_fault

Every = Literal["hour", "day", "week", "month"]
_MAX_FILE_NAME = 200  # bytes; file systems allow 255, including prefixes and suffixes
_LAST_YEAR = 9999  # last year of datetime, which cannot represent the end of its last window
_FORMATS: dict[str, str] = {
    "hour": "%Y-%m-%d-%H:%M",
    "day": "%Y-%m-%d",
    "week": "%Y-%m-%d",
    "month": "%Y-%m-%d",
}
_LENGTHS = {
    "hour": timedelta(hours=1),
    "day": timedelta(days=1),
    "week": timedelta(days=7),
}


def check_key(key: object) -> None:
    """Require that a key can be the name of a partition and of its folder.

    Args:
        key: Partition key.

    Raises:
        ConfigError: If it is not a string, or not such a name.
    """
    fault = _key_fault(key)
    fix = "use a different key"
    if isinstance(key, str) and not fault:
        size = len(quoted(key))
        if size > _MAX_FILE_NAME:
            fault = (
                f"is too long for the name of a folder ({size} bytes, at most"
                f" {_MAX_FILE_NAME} are allowed)"
            )
            fix = "shorten it; a character other than an ASCII letter or digit has up to 12 bytes"
    if fault:
        raise ConfigError(f"partitions: key {safe_repr(key)} {fault}. Fix: {fix}.")


def _key_fault(key: object) -> str:
    """Return why a key of any length is not valid, or ""."""
    if not isinstance(key, str):
        return "is not a string"
    fault = name_fault(key)
    if not fault and key != key.strip():
        return "starts or ends with a space"
    return fault


@dataclass(frozen=True)
class KeyPartitions:
    """Named partitions.

    Attributes:
        keys: Unique, non-empty names.

    Raises:
        ConfigError: If keys are missing, repeated or invalid.
    """

    keys: tuple[str, ...]

    def __post_init__(self) -> None:
        for key in self.keys:
            check_key(key)
        if not self.keys or len(set(self.keys)) < len(self.keys):
            raise ConfigError("partitions: expected one or more keys, each once.")

    def check(self, key: str) -> str:
        """Return a key if it is one of the partitions.

        Args:
            key: Partition key.

        Raises:
            WrongTarget: If it is unknown, because it would have no log of earlier failures.
        """
        if key not in self.keys:
            raise WrongTarget(f"there is no partition {safe_repr(key)}")
        return key

    def window(self, key: str) -> None:
        """Return None: rows are selected by the path of the source or by the partition column."""


@dataclass(frozen=True)
class TimePartitions:
    """Partitions that are time windows in UTC.

    Keys equal those of Dagster's hourly, daily, weekly (starting on Sunday) and monthly partitions,
    so that both name the same releases. A window is a partition once it has ended.

    Attributes:
        start: Date or time (or its ISO format) of the first window, rounded up to the start of a
            window. UTC, unless it has a time zone.
        every: Length of the windows: "hour", "day", "week" or "month".

    Raises:
        ConfigError: If ``start`` is not a date or time, or ``every`` is unknown.
    """

    start: str | date
    every: Every = "day"

    def __post_init__(self) -> None:
        if self.every not in _FORMATS:
            raise ConfigError(
                f"partitions: every is {safe_repr(self.every)}.{did_you_mean(self.every, _FORMATS)}"
            )
        _ = self.first

    @cached_property
    def first(self) -> datetime:
        """Start of the first window."""
        try:
            start = _utc_time(self.start)
        except (ValueError, TypeError, AttributeError):
            raise ConfigError(
                f"partitions: start is {safe_repr(self.start)}, not a date such as 2026-01-01."
            ) from None
        floor = self._floor(start)
        if floor == start:
            return floor
        return self._after(floor)

    def of(self, when: datetime) -> str:
        """Return the key of the window that contains a time.

        Args:
            when: Time. Without time zone: local time.
        """
        return self._floor(when.astimezone(UTC)).strftime(_FORMATS[self.every])

    def check(self, key: str) -> str:
        """Return a partition key if it is valid.

        Args:
            key: Partition key.

        Raises:
            WrongTarget: If the key is malformed or before the first window, or its window has not
                ended.
        """
        start = self._start(key)
        if start is None or start < self.first:
            example = self.first.strftime(_FORMATS[self.every])
            text = f"there is no partition {safe_repr(key)}; the first one is {example}"
            raise WrongTarget(text)
        if self._after(start) > datetime.now(UTC):
            raise WrongTarget(f"the {self.every} of partition {key} has not ended")
        return key

    def window(self, key: str) -> tuple[datetime, datetime]:
        """Return start and end of a window.

        Args:
            key: Partition key.

        Raises:
            WrongTarget: If the key is malformed.
        """
        start = self._start(key)
        if start is None:
            raise WrongTarget(f"there is no partition {safe_repr(key)}")
        return start, self._after(start)

    def _start(self, key: str) -> datetime | None:
        """Return the start of a window, or None if the key is malformed."""
        form = _FORMATS[self.every]
        try:
            start = datetime.strptime(key, form).replace(tzinfo=UTC)
        except (ValueError, TypeError):
            return None
        if start.strftime(form) != key:
            return None
        if start.year >= _LAST_YEAR or self._floor(start) != start:
            return None
        return start

    def _floor(self, when: datetime) -> datetime:
        hour = when.replace(minute=0, second=0, microsecond=0)
        if self.every == "hour":
            return hour
        day = hour.replace(hour=0)
        if self.every == "week":
            return day - timedelta(days=day.isoweekday() % 7)
        if self.every == "month":
            return day.replace(day=1)
        return day

    def _after(self, start: datetime) -> datetime:
        """Return the start of the next window."""
        if self.every == "month":
            return (start + timedelta(days=32)).replace(day=1)
        return start + _LENGTHS[self.every]


def _utc_time(start: Any) -> datetime:
    """Return a date or time, or its ISO format, in UTC. Without time zone, it is in UTC already."""
    if isinstance(start, date):
        start = start.isoformat()
    time = datetime.fromisoformat(start)
    if time.tzinfo is None:
        return time.replace(tzinfo=UTC)
    return time.astimezone(UTC)


Partitions = KeyPartitions | TimePartitions


def as_partitions(partitions: Any) -> Partitions | None:
    """Convert a list of keys to partitions.

    Args:
        partitions: Keys, partitions or None. The last two are returned unchanged.

    Raises:
        ConfigError: If it is of another type, or a key is invalid.
    """
    if partitions is None or isinstance(partitions, (KeyPartitions, TimePartitions)):
        return partitions
    if isinstance(partitions, Sequence) and not isinstance(partitions, str):
        return KeyPartitions(tuple(partitions))
    raise ConfigError("partitions: expected a list of keys, or TimePartitions.")
