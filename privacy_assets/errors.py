"""Every error that privacy-assets raises on purpose.

Each inherits from :class:`PrivacyAssetsError` and from the builtin that it means. Messages name the table or file, the
column, the row position and the fix, and never hold a value of a private table.
"""

from __future__ import annotations

import errno
import os
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from functools import partial, wraps
from importlib.util import find_spec
from pathlib import Path, PurePath
from types import TracebackType
from typing import Any, NoReturn, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])
E = TypeVar("E", bound=BaseException)
_LONGEST_SHOWN = 80  # characters of a text that stands in a message as it was given


class PrivacyAssetsError(Exception):
    """Base of all errors raised on purpose by privacy-assets."""

    def raise_alone(self) -> NoReturn:
        """Raise it in place of the error that is being handled, which is no context either: it can quote cells."""
        try:
            raise self
        finally:
            without_chain(self)


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
            place.append(f"column {shown(column)}")
        if row is not None:
            place.append(f"row {row}")
        message = f"{', '.join(place)}: {problem}" if place else problem
        told = f"{message}. Fix: {fix}" if fix else message
        super().__init__(told if told.endswith((".", "?")) else f"{told}.")

    def __reduce__(self) -> tuple[Any, ...]:
        """The same error on the other side of a process."""
        made = partial(type(self), where=self.where, column=self.column, row=self.row, fix=self.fix)
        return made, (self.problem,)


class ConfigError(PrivacyAssetsError, ValueError):
    """A setting, a policy or a definition is wrong; raised when it is loaded, before any work is done."""


class MissingPackage(PrivacyAssetsError, ImportError):
    """A package that comes with an extra is needed, and not installed."""


class StoreError(PrivacyAssetsError, OSError):
    """An object store did not do what it was asked: errno, what it means, and the URL."""

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}."


class ClusterError(PrivacyAssetsError, RuntimeError):
    """Work was lost with the machines of a cluster, again and again."""


class LeaseTimeout(PrivacyAssetsError, TimeoutError):
    """No device became free within the time allowed."""


class PublicationRefused(PrivacyAssetsError, RuntimeError):
    """The gate did not publish; the message names the limit, the measured value and the reason.

    ``broken`` are the outcomes of the limits that did not hold, where that is the reason.
    """

    def __init__(self, reason: str, broken: Sequence[Any] = ()) -> None:
        super().__init__(reason)
        self.broken = tuple(broken)


class StepError(PrivacyAssetsError, RuntimeError):
    """Other code raised: its type and place are told, its message is not, because it can quote private values."""

    @classmethod
    def hiding(cls, error: BaseException) -> StepError:
        """What may be shown of ``error``: type, a system error's name, where; the traceback holds source lines only."""
        kind = type(error).__name__
        if isinstance(error, OSError) and error.errno is not None and error.errno in errno.errorcode:
            kind += f" ({os.strerror(error.errno)})"  # not its own text, which anybody can set
        hint = "Fix: look at that line, and run it by hand on the table that the step reads"
        text = f"{kind} at {_place(error.__traceback__)}. Its message is hidden: it can quote private values. {hint}."
        return cls(text).with_traceback(error.__traceback__)


def _place(trace: TracebackType | None) -> str:
    """The innermost line of this package or of the user's own code; of a library when there is no other."""
    package = Path(__file__).parent
    lines = [(Path(frame.f_code.co_filename), line, frame.f_code) for frame, line in traceback.walk_tb(trace)]
    own = [found for found in lines if package in found[0].parents or not _of_a_library(found[0])]
    if not lines:
        return "an unknown line"
    file, number, code = (own or lines)[-1]
    shown = file.relative_to(package.parent) if package in file.parents else file
    return f"{shown}:{number}, in {code.co_name}"


def _of_a_library(file: Path) -> bool:
    folders = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
    installed = {"site-packages", "dist-packages"} & set(file.parts)
    # Compiled and generated code has a relative name, or none.
    return not file.is_absolute() or bool(installed) or any(str(parent) in folders for parent in file.parents)


def shown(value: object) -> str:
    """How something that a caller gave stands in a message: a short text or a path as it is, all else as its type.

    An object can be a table, and its text its rows; a long text, or one of several lines, can be those of a file.
    """
    if isinstance(value, PurePath):
        return PurePath.__str__(value)
    if not isinstance(value, str):
        return type(value).__name__
    text = str.__str__(value)  # not what a subclass makes of it
    return repr(text) if len(text) <= _LONGEST_SHOWN and text.isprintable() else f"a text of {len(text)} characters"


def require(package: str, what: str, extra: str, otherwise: str = "") -> None:
    """MissingPackage unless ``package`` can be imported; it is not imported here.

    ``what`` needs it and begins the message, ``extra`` of this package brings it, ``otherwise`` is another way out.
    """
    if find_spec(package) is None:
        fix = f"pip install 'privacy-assets[{extra}]'{f', or {otherwise}' if otherwise else ''}"
        raise MissingPackage(f"{what} needs {package}, which is not installed. Fix: {fix}.")


def did_you_mean(name: object, options: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" for the closest of ``options``, or the whole list when nothing is close."""
    known = sorted(options)
    return near_name(name, known) or f" Known: {', '.join(known) or 'none'}."


def near_name(name: object, options: Iterable[str]) -> str:
    """The same without the list: names of a file's columns can be the cells of a row, where the header is missing."""
    text = str.__str__(name)[:_LONGEST_SHOWN] if isinstance(name, str) else ""
    close = get_close_matches(text, sorted(options), n=1, cutoff=0.65)
    return f" Did you mean {close[0]!r}?" if close else ""


def without_chain(error: E) -> E:
    """``error`` without cause, context and notes, which other code wrote."""
    error.__cause__ = error.__context__ = None  # setting the cause suppresses the context as well
    error.__dict__.pop("__notes__", None)
    return error


def door(function: F) -> F:
    """Let only errors of this package out of ``function``, alone: those of a library can quote what it was given."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        safe: PrivacyAssetsError
        try:
            return function(*args, **kwargs)
        except PrivacyAssetsError as error:
            safe = error
        except Exception as error:  # noqa: BLE001 (a library, or an object that was given, can raise anything)
            safe = StepError.hiding(error)
        safe.raise_alone()

    return cast("F", call)
