"""Errors of the gate as failed checks, and as failures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import dagster as dg

from privacy_assets.dagster.frozen_config import check_launch
from privacy_assets.errors import (
    ClusterError,
    ConfigError,
    InputError,
    PolicyNotMet,
    PrivacyAssetsError,
    PublicationBlocked,
    StepError,
    outcome_known,
)
from privacy_assets.pipeline.advice import with_advice
from privacy_assets.pipeline.redaction import redact, redact_thread_errors, without_values

BLOCKING_ERRORS = (PublicationBlocked, ConfigError, InputError, OSError)


def failure(error: Exception) -> dg.Failure:
    """Return the failure of a failed step. Dagster may retry it only if a store was not
    available.

    Args:
        error: Error of the step.
    """
    may_retry = isinstance(error, PrivacyAssetsError) and error.retry
    return dg.Failure(error_text(error), metadata=_error_metadata(error), allow_retries=may_retry)


def is_final(error: Exception) -> bool:
    """Return True if a retry would fail again.

    Args:
        error: Failure of Dagster, or another error of a step.
    """
    if isinstance(error, dg.Failure):
        return not error.allow_retries
    if isinstance(error, StepError):
        return False
    return isinstance(error, PrivacyAssetsError) and not error.retry


def blocked_check(asset: dg.AssetKey, name: str, error: Exception) -> dg.AssetCheckResult:
    """Return the failed check of a failed step.

    Args:
        asset: Key of the asset that the step would make.
        name: Name of the check.
        error: Error of the step.
    """
    return dg.AssetCheckResult(
        asset_key=asset,
        check_name=name,
        passed=False,
        severity=dg.AssetCheckSeverity.ERROR,
        description=error_text(error),
        metadata=_error_metadata(error),
    )


def error_text(error: Exception) -> str:
    """Return the message of an error, or only type and location if it is not of this package.

    Args:
        error: Any error.
    """
    if not isinstance(error, PrivacyAssetsError):
        error = StepError.hiding(error)
    return with_advice(error)


def _error_metadata(error: Exception) -> dict[str, Any]:
    """Return which release is current and the limits that do not hold. They are without measured
    numbers, because readers of alerts see them.
    """
    from privacy_assets.report.words import sentence

    current_release = "the previous release, if there is one; this table was not published"
    if not outcome_known(error):
        current_release = "unknown: this table may have been published"
    metadata: dict[str, Any] = {"current release": current_release}
    if isinstance(error, PolicyNotMet):
        for outcome in error.outcomes:
            text = f"{outcome.status}. {sentence(outcome.limit.advice)}"
            metadata[outcome.limit.key] = dg.MetadataValue.text(text.strip())
    return metadata


F = TypeVar("F", bound=Callable[..., Any])
_NO_RETRY = {"dagster/retry_on_asset_or_op_failure": "false"}  # tag of a run
# Exceptions by which Dagster and Python control a step.
_PASSING = (dg.Failure, dg.RetryRequested, dg.DagsterError)
_INTERRUPTS = (dg.DagsterExecutionInterruptedError, KeyboardInterrupt, GeneratorExit)


def checked_step(function: F) -> F:
    """Decorate the compute function of an asset or check of the gate: call :func:`check_launch`,
    and raise Failures.

    Errors are converted as by :func:`redact_step`. If the step would fail again, its run is tagged,
    so that ``run_retries`` of the deployment do not repeat it, however it was launched.

    From the first call on, exceptions in threads of this process are printed to standard error as
    type and location, without their message. This persists after the step, because a thread may
    outlive it.

    Args:
        function: Compute function, or generator function.
    """

    def start() -> None:
        redact_thread_errors()
        check_launch()

    def to_safe(error: BaseException) -> BaseException:
        safe = _step_failure(error)
        if isinstance(safe, Exception) and is_final(safe):
            _never_retry()
        return safe

    return redact(function, to_safe, start)


def redact_step(function: F) -> F:
    """Decorate a compute function as :func:`redact_exceptions`, and raise the errors of this
    package as Failure.

    Dagster shows the message of a Failure without the stack trace of the step, and does not retry
    it unless a disk, store or device was not available.

    Args:
        function: Compute function, or generator function.
    """
    return redact(function, _step_failure, lambda: None)


def redact_exceptions(function: F) -> F:
    """Decorate a function so that it raises no exception with a message of another library or of
    user code.

    For sensors and schedules (below Dagster's decorator; generators too) and methods of IO
    managers. An error of the gate is converted to a Failure, which may be retried only if a store
    was not available. Errors of this package, ``Failure`` and Dagster's exceptions are raised
    without cause, context and notes, interrupts without message, and all others as StepError.
    Returned, yielded and logged values are not redacted.

    Args:
        function: Function, or generator function.
    """
    return redact(function, _safe_exception, lambda: None)


def _step_failure(error: BaseException) -> BaseException:
    """Convert an error to a Failure, except those of unknown cause and of a cluster, whose location
    matters.
    """
    safe = _safe_exception(error)
    if isinstance(safe, PrivacyAssetsError) and not isinstance(safe, StepError | ClusterError):
        return failure(safe)
    return safe


def _never_retry() -> None:
    """Tag the run of this step. Does nothing outside a run."""
    try:
        context = dg.OpExecutionContext.get()
    except dg.DagsterInvariantViolationError:
        return
    try:
        context.instance.add_run_tags(context.run_id, _NO_RETRY)
    except Exception:  # noqa: BLE001 (an error of the database must not replace the error of the gate)
        context.log.warning("this run could not be tagged, so the deployment may retry it")


def _safe_exception(error: BaseException) -> BaseException:
    if isinstance(error, PublicationBlocked):
        return failure(error)
    safe = without_values(error, _PASSING, _INTERRUPTS)
    if isinstance(safe, dg.Failure):
        return safe.with_traceback(None)  # its message states the reason
    return safe
