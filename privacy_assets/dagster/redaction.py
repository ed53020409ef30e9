"""What Dagster may be shown of an exception: it stores message, notes, cause and context."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import dagster as dg

from privacy_assets.dagster.fixed import check_launch
from privacy_assets.dagster.refusals import failure
from privacy_assets.errors import PublicationRefused
from privacy_assets.pipeline.redaction import hush_threads, redact, without_values

F = TypeVar("F", bound=Callable[..., Any])
# Those by which Dagster and Python steer a step.
_PASSING = (dg.Failure, dg.RetryRequested, dg.DagsterError)
_INTERRUPTS = (dg.DagsterExecutionInterruptedError, KeyboardInterrupt, GeneratorExit)


def checked_step(function: F) -> F:
    """``function``, the compute function of an asset or check of the gate, behind :func:`check_launch` and redacted.

    What a thread of it raises goes to standard error as its kind and place, without its words, from then on and in the
    whole process: a thread may outlive its step.
    """

    def start() -> None:
        hush_threads()
        check_launch()

    return redact(function, _shown, start)


def redact_exceptions(function: F) -> F:
    """Let no exception out of ``function`` whose text another library or the user's code wrote.

    For compute functions, sensors and schedules (below Dagster's decorator; generators too) and for methods of IO
    managers. A refusal of the gate becomes a Failure that is never retried. Errors of this package, ``Failure`` and
    Dagster's own pass without their cause, context and notes, interrupts without their words; anything else becomes a
    StepError. What is returned, yielded or logged is not looked at.
    """
    return redact(function, _shown, lambda: None)


def _shown(error: BaseException) -> BaseException:
    if isinstance(error, PublicationRefused):
        return failure(error)
    safe = without_values(error, _PASSING, _INTERRUPTS)
    return safe.with_traceback(None) if isinstance(safe, dg.Failure) else safe  # it says why, in words
