"""Cases of slow tests that run weekly, and not on each push."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def weekly_except(values: Iterable[Any], *on_push: Any) -> list[Any]:
    """Mark all ``values`` as weekly, except those in ``on_push``.

    Args:
        values: Values of a parameter of a slow test. A test with several parameters has tuples.
        on_push: Values that also run on each push.

    Returns:
        The values, in their order.

    Raises:
        ValueError: A value of ``on_push`` is not in ``values``.
    """
    values = list(values)
    for value in on_push:
        if value not in values:
            raise ValueError(f"{value!r} is not one of the values")
    marked = []
    for value in values:
        if value in on_push:
            marked.append(value)
        else:
            arguments = value if isinstance(value, tuple) else (value,)
            marked.append(pytest.param(*arguments, marks=pytest.mark.weekly))
    return marked
