"""The wall between exceptions and Dagster, which stores what it is given: message, notes, cause and context."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

import dagster as dg

from privacy_assets.dagster.fixed import check_launch
from privacy_assets.dagster.refusals import failure
from privacy_assets.errors import PrivacyAssetsError, PublicationRefused, StepError, without_chain

F = TypeVar("F", bound=Callable[..., Any])
# Ours, and those by which Dagster and Python steer a step: they pass, without the chain behind them.
_SAFE = (
    PrivacyAssetsError,
    dg.Failure,
    dg.RetryRequested,
    dg.DagsterError,
)
_INTERRUPTS = (dg.DagsterExecutionInterruptedError, KeyboardInterrupt, GeneratorExit)


def checked_step(function: F) -> F:
    """``function``, the compute function of an asset or check of the gate, behind :func:`check_launch` and scrubbed.

    What a thread of it raises goes to standard error as its kind and place, without its words, from then on and in the
    whole process: a thread may outlive its step.
    """

    def start() -> None:
        threading.excepthook = _tell_kind
        check_launch()

    return _redacted(function, start)


def redact_exceptions(function: F) -> F:
    """Let no exception out of ``function`` whose text another library or the user's code wrote.

    For compute functions, sensors and schedules (below Dagster's decorator; generators too) and for methods of IO
    managers. A refusal of the gate becomes a Failure that is never retried. Errors of this package, ``Failure`` and
    Dagster's own pass without their cause, context and notes, interrupts without their words; anything else becomes a
    StepError. What is returned, yielded or logged is not looked at.
    """
    return _redacted(function, lambda: None)


def _redacted(function: F, start: Callable[[], None]) -> F:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            start()
            return function(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001 (a library can raise anything, and quote what it read)
            shown = _without_values(error)
        # Outside the except block, so that the original is not its context either.
        raise shown

    @functools.wraps(function)
    def generate(*args: Any, **kwargs: Any) -> Iterator[Any]:
        try:
            start()
            return (yield from function(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 (see above)
            shown = _without_values(error)
        raise shown

    return cast("F", generate if inspect.isgeneratorfunction(function) else call)


def _without_values(error: BaseException) -> BaseException:
    if isinstance(error, PublicationRefused):
        return failure(error)
    for kind in _INTERRUPTS:
        if isinstance(error, kind):
            return kind()
    if not isinstance(error, _SAFE):
        return StepError.hiding(error)
    return without_chain(error)


def _tell_kind(raised: threading.ExceptHookArgs) -> None:
    if raised.exc_value is not None and not isinstance(raised.exc_value, SystemExit):
        sys.stderr.write(f"In a thread: {StepError.hiding(raised.exc_value)}\n")
