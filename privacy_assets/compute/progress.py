"""Where long work says what it does."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str], None]  # is told in words without values


def silent(message: str) -> None:
    """Progress sink that drops its messages."""
