"""The wall between private values and an orchestrator, which stores what it is given.

That is the message, the notes, the cause and the context of an exception, and often all that a step prints.
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


def redact(function: F, shown: Callable[[BaseException], BaseException], start: Callable[[], None]) -> F:
    """``function``, or generator function, after ``start``, letting out of both only what ``shown`` makes of an error.

    What is returned, yielded or logged is not looked at.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            start()
            return function(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001 (a library can raise anything, and quote what it read)
            safe = shown(error)
        # Outside the except block, so that the original is not its context either.
        raise safe

    @functools.wraps(function)
    def generate(*args: Any, **kwargs: Any) -> Iterator[Any]:
        try:
            start()
            return (yield from function(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 (see above)
            safe = shown(error)
        raise safe

    return cast("F", generate if inspect.isgeneratorfunction(function) else call)


def without_values(error: BaseException, passing: Kinds, interrupts: Kinds) -> BaseException:
    """What may be shown of ``error``.

    Errors of this package and of ``passing`` without their cause, context and notes; ``interrupts`` without their
    words; of anything else a StepError.
    """
    for kind in interrupts:
        if isinstance(error, kind):
            return kind()
    if not isinstance(error, (PrivacyAssetsError, *passing)):
        return StepError.hiding(error)
    return without_chain(error)


def hush_threads() -> None:
    """From now on what a thread or ``__del__`` of this process raises goes to standard error as its kind and place.

    It stays so: a thread may outlive its step.
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
def unheard() -> Iterator[None]:
    """In the ``with`` block drop what Python code of this process prints, warns of or logs by ``logging``.

    It can be rows, and whoever keeps it cannot tell. Of the whole process, so for one that does nothing else.
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
