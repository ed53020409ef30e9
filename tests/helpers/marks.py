"""Marks of parameters, for tests whose every case is too slow for each push."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def weekly_except(values: Iterable[Any], *on_push: Any) -> list[Any]:
    """Mark all ``values`` as weekly, except those in ``on_push``.

    Args:
        values: Values of a parameter of a slow test. A test with several parameters has tuples.
        on_push: The values that the slow tests of each push keep.

    Returns:
        The values, in their order.
    """
    marked = []
    for value in values:
        if value in on_push:
            marked.append(value)
        else:
            arguments = value if isinstance(value, tuple) else (value,)
            marked.append(pytest.param(*arguments, marks=pytest.mark.weekly))
    return marked
