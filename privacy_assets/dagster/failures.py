"""Refusals of the gate as failed checks, and as failures."""

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
    PublicationRefused,
    StepError,
    outcome_known,
    with_advice,
)
from privacy_assets.pipeline.redaction import redact, redact_thread_errors, without_values

REFUSALS = (PublicationRefused, ConfigError, InputError, OSError)


def failure(error: Exception) -> dg.Failure:
    """Return the failure of a rejected step. Dagster may retry it only if a store was not
    available.
    """
    retry = isinstance(error, PrivacyAssetsError) and error.retry
    return dg.Failure(error_text(error), metadata=_metadata(error), allow_retries=retry)


def is_final(error: Exception) -> bool:
    """Return True if a retry would fail again."""
    if isinstance(error, dg.Failure):
        return not error.allow_retries
    return (
        isinstance(error, PrivacyAssetsError)
        and not isinstance(error, StepError)
        and not error.retry
    )


def refused_check(asset: dg.AssetKey, name: str, error: Exception) -> dg.AssetCheckResult:
    """Return the failed check of a rejected step."""
    return dg.AssetCheckResult(
        asset_key=asset,
        check_name=name,
        passed=False,
        severity=dg.AssetCheckSeverity.ERROR,
        description=error_text(error),
        metadata=_metadata(error),
    )


def error_text(error: Exception) -> str:
    """Return the message of an error, or only type and location if it is not of this package."""
    return with_advice(error if isinstance(error, PrivacyAssetsError) else StepError.hiding(error))


def _metadata(error: Exception) -> dict[str, Any]:
    """Return the limits that do not hold, without measured numbers, because readers of alerts see
    them.
    """
    from privacy_assets.report.words import sentence

    stays = "the previous release, if there is one; this table was not published"
    if not outcome_known(error):
        stays = "unknown: this table may have been published"
    outcomes = error.outcomes if isinstance(error, PolicyNotMet) else ()
    limits = {x.limit.key: f"{x.status}. {sentence(x.limit.advice)}" for x in outcomes}
    return {
        "current release": stays,
        **{key: dg.MetadataValue.text(text.strip()) for key, text in limits.items()},
    }


F = TypeVar("F", bound=Callable[..., Any])
NO_RETRY = {"dagster/retry_on_asset_or_op_failure": "false"}  # tag of a run
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
    """

    def start() -> None:
        redact_thread_errors()
        check_launch()

    def shown(error: BaseException) -> BaseException:
        safe = _step_failure(error)
        if isinstance(safe, Exception) and is_final(safe):
            _never_retry()
        return safe

    return redact(function, shown, start)


def redact_step(function: F) -> F:
    """Decorate a compute function as :func:`redact_exceptions`, and raise the errors of this
    package as Failure.

    Dagster shows the message of a Failure without the stack trace of the step, and does not retry
    it unless a disk, store or device was not available.
    """
    return redact(function, _step_failure, lambda: None)


def redact_exceptions(function: F) -> F:
    """Decorate a function so that it raises no exception with a message of another library or of
    user code.

    For sensors and schedules (below Dagster's decorator; generators too) and methods of IO
    managers. A refusal of the gate is converted to a Failure, which may be retried only if a store
    was not available. Errors of this package, ``Failure`` and Dagster's exceptions are raised
    without cause, context and notes, interrupts without message, and all others as StepError.
    Returned, yielded and logged values are not redacted.
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
        context.instance.add_run_tags(context.run_id, NO_RETRY)
    except Exception:  # noqa: BLE001 (an error of the database must not replace the refusal)
        context.log.warning("this run could not be tagged, so the deployment may retry it")


def _safe_exception(error: BaseException) -> BaseException:
    if isinstance(error, PublicationRefused):
        return failure(error)
    safe = without_values(error, _PASSING, _INTERRUPTS)
    # its message states the reason
    return safe.with_traceback(None) if isinstance(safe, dg.Failure) else safe
