"""Partitions of a table for schedulers other than Dagster, with the same keys as Dagster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from typing import Any, Literal

from privacy_assets.errors import ConfigError, WrongTarget, did_you_mean, safe_repr
from privacy_assets.gate.statements import quoted
from privacy_assets.tables.names import name_fault

Every = Literal["hour", "day", "week", "month"]
_LONGEST_FILE_NAME = 200  # bytes; file systems allow 255, including prefixes and suffixes
_LAST_YEAR = 9999  # last year of datetime, which cannot represent the end of its last window
_FORMATS: dict[str, str] = {
    "hour": "%Y-%m-%d-%H:%M",
    "day": "%Y-%m-%d",
    "week": "%Y-%m-%d",
    "month": "%Y-%m-%d",
}


def check_key(key: object) -> None:
    """Raise ConfigError unless ``key`` is a string that can be the name of a partition and of its
    folder.
    """
    fault, fix = (
        name_fault(key) if isinstance(key, str) else "is not a string",
        "use a different key",
    )
    if isinstance(key, str) and not fault:
        if key != key.strip():
            fault = "starts or ends with a space"
        elif (size := len(quoted(key))) > _LONGEST_FILE_NAME:
            fault = (
                f"is too long for the name of a folder ({size} bytes, at most"
                f" {_LONGEST_FILE_NAME} are allowed)"
            )
            fix = "shorten it; a character other than an ASCII letter or digit has up to 12 bytes"
    if fault:
        raise ConfigError(f"partitions: key {safe_repr(key)} {fault}. Fix: {fix}.")


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
        """Return ``key`` if it is one of the keys.

        Raises:
            WrongTarget: If it is unknown, because it would have no record of earlier failures.
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
            given = self.start.isoformat() if isinstance(self.start, date) else self.start
            start = datetime.fromisoformat(given)
            start = start.replace(tzinfo=UTC) if start.tzinfo is None else start.astimezone(UTC)
        except (ValueError, TypeError, AttributeError):
            raise ConfigError(
                f"partitions: start is {safe_repr(self.start)}, not a date such as 2026-01-01."
            ) from None
        floor = self._floor(start)
        return floor if floor == start else self._after(floor)

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
        form = _FORMATS[self.every]
        try:
            start = datetime.strptime(key, form).replace(tzinfo=UTC)
        except (ValueError, TypeError):
            return None
        known = (
            start.strftime(form) == key and start.year < _LAST_YEAR and self._floor(start) == start
        )
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
        """Return the start of the next window."""
        if self.every == "month":
            return (start + timedelta(days=32)).replace(day=1)
        return (
            start
            + {"hour": timedelta(hours=1), "day": timedelta(days=1), "week": timedelta(days=7)}[
                self.every
            ]
        )


Partitions = KeyPartitions | TimePartitions


def as_partitions(given: Any) -> Partitions | None:
    """Convert a list of keys to partitions; partitions and None are returned unchanged.

    Raises:
        ConfigError: If ``given`` has another type.
    """
    if given is None or isinstance(given, (KeyPartitions, TimePartitions)):
        return given
    if isinstance(given, Sequence) and not isinstance(given, str):
        return KeyPartitions(tuple(given))
    raise ConfigError("partitions: expected a list of keys, or TimePartitions.")
