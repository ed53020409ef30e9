"""Every error that privacy-assets raises on purpose.

Each inherits from :class:`PrivacyAssetsError` and from the builtin that it means. Messages name the table or file, the
column, the row position and the fix, and never hold a value of a private table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any


class PrivacyAssetsError(Exception):
    """Base of all errors raised on purpose by privacy-assets."""


class InputError(PrivacyAssetsError, ValueError):
    """A table or file is not what the call needs.

    ``where`` is the file or the role of the table ("train"), ``row`` a zero-based row position, ``fix`` what to do.
    """

    def __init__(
        self,
        problem: str,
        *,
        where: str | None = None,
        column: str | None = None,
        row: int | None = None,
        fix: str | None = None,
    ) -> None:
        self.problem, self.where, self.column, self.row, self.fix = problem, where, column, row, fix
        place = [where] if where else []
        if column is not None:
            place.append(f"column {column!r}")
        if row is not None:
            place.append(f"row {row}")
        message = f"{', '.join(place)}: {problem}" if place else problem
        super().__init__(f"{message}. Fix: {fix}." if fix else f"{message}.")


class ConfigError(PrivacyAssetsError, ValueError):
    """A setting, a policy or a definition is wrong; raised when it is loaded, before any work is done."""


class LeaseTimeout(PrivacyAssetsError, TimeoutError):
    """No device became free within the time allowed."""


class PublicationRefused(PrivacyAssetsError, RuntimeError):
    """The gate did not publish; the message names the limit, the measured value and the reason.

    ``broken`` are the outcomes of the limits that did not hold, where that is the reason.
    """

    def __init__(self, reason: str, broken: Sequence[Any] = ()) -> None:
        super().__init__(reason)
        self.broken = tuple(broken)


def did_you_mean(name: str, options: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" for the closest of ``options``, or the whole list when nothing is close."""
    known = sorted(options)
    close = get_close_matches(name, known, n=1, cutoff=0.65)
    return f" Did you mean {close[0]!r}?" if close else f" Known: {', '.join(known) or 'none'}."
