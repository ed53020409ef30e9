"""Redaction of private values before an orchestrator stores them.

Orchestrators store the message, notes, cause and context of exceptions, and often everything that a
step prints.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from os import devnull
from typing import Any, TypeVar, cast

from privacy_assets.errors import PrivacyAssetsError, StepError, without_chain

F = TypeVar("F", bound=Callable[..., Any])
Kinds = tuple[type[BaseException], ...]


def redact(
    function: F, to_safe: Callable[[BaseException], BaseException], start: Callable[[], None]
) -> F:
    """Wrap a function or generator function so that its errors are replaced by safe ones.

    Returned, yielded and logged values are not redacted.

    Args:
        function: Function to wrap.
        to_safe: Converts an error to a safe one.
        start: Called before the function. Its errors are replaced as well.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            start()
            return function(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001 (a library can raise anything, and quote what it read)
            safe = to_safe(error)
        # Outside the except block, so that the original is not set as context.
        raise safe

    @functools.wraps(function)
    def generate(*args: Any, **kwargs: Any) -> Iterator[Any]:
        try:
            start()
            return (yield from function(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 (see above)
            safe = to_safe(error)
        raise safe

    if inspect.isgeneratorfunction(function):
        return cast("F", generate)
    return cast("F", call)


def without_values(error: BaseException, passing: Kinds, interrupts: Kinds) -> BaseException:
    """Convert an error to one that is safe to display.

    Args:
        error: Any error.
        passing: Types of errors that have no private values.
        interrupts: Types of errors that end a step, such as KeyboardInterrupt.

    Returns:
        Errors of this package and of ``passing`` without cause, context and notes, those of
        ``interrupts`` without message, and a StepError for all others.
    """
    for kind in interrupts:
        if isinstance(error, kind):
            return kind()
    if not isinstance(error, (PrivacyAssetsError, *passing)):
        return StepError.hiding(error)
    return without_chain(error)


def redact_thread_errors() -> None:
    """Print only type and location of errors in threads and ``__del__``, for the rest of this
    process.

    The hooks are not restored, because a thread may outlive its step.
    """
    threading.excepthook = _tell_kind
    sys.unraisablehook = _tell_unraisable


def _tell_kind(raised: threading.ExceptHookArgs) -> None:
    if raised.exc_value is not None and not isinstance(raised.exc_value, SystemExit):
        sys.stderr.write(f"In a thread: {StepError.hiding(raised.exc_value)}\n")


def _tell_unraisable(raised: sys.UnraisableHookArgs) -> None:
    if raised.exc_value is not None:
        sys.stderr.write(f"Ignored: {StepError.hiding(raised.exc_value)}\n")


@contextmanager
def suppress_output() -> Iterator[None]:
    """Discard what Python code prints, warns of or logs in the ``with`` block, because it may
    contain rows.

    It affects the whole process, so use it only in a process that does no other work.
    """
    before = logging.root.manager.disable
    with open(devnull, "w", encoding="utf-8") as nothing, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            with redirect_stdout(nothing), redirect_stderr(nothing):
                yield
        finally:
            logging.disable(before)
