"""The wall between exceptions and Dagster, which stores what it is given: message, notes, cause and context."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

import dagster as dg

from privacy_assets.errors import PrivacyAssetsError, PublicationRefused, StepError
from privacy_assets.plugin.refusals import failure

F = TypeVar("F", bound=Callable[..., Any])
# Ours, and those by which Dagster and Python steer a step: they pass, without the chain behind them.
_SAFE = (
    PrivacyAssetsError,
    dg.Failure,
    dg.RetryRequested,
    dg.DagsterError,
    dg.DagsterExecutionInterruptedError,
    KeyboardInterrupt,
    GeneratorExit,
)


def guarded(function: F) -> F:
    """Let no exception out of ``function`` whose text another library or the user's code wrote.

    For compute functions of assets, checks, sensors and schedules (below Dagster's decorator; generators too) and for
    methods of IO managers. A refusal of the gate becomes a Failure that is never retried. Errors of this package,
    ``Failure`` and Dagster's own pass without their cause, context and notes; anything else becomes a StepError. What
    is returned, yielded or logged is not looked at.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001 (a library can raise anything, and quote what it read)
            shown = _without_values(error)
        # Outside the except block, so that the original is not its context either.
        raise shown

    @functools.wraps(function)
    def generate(*args: Any, **kwargs: Any) -> Iterator[Any]:
        try:
            return (yield from function(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 (see above)
            shown = _without_values(error)
        raise shown

    return cast("F", generate if inspect.isgeneratorfunction(function) else call)


def _without_values(error: BaseException) -> BaseException:
    if isinstance(error, PublicationRefused):
        return failure(error)
    if not isinstance(error, _SAFE):
        return StepError.hiding(error)
    error.__cause__ = error.__context__ = None  # setting the cause suppresses the context as well
    error.__dict__.pop("__notes__", None)
    return error
