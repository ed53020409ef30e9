"""What Airflow may be shown of an exception: it writes it to the task's log, and hands it to callbacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

try:
    from airflow.sdk.exceptions import AirflowFailException, AirflowTaskTerminated, AirflowTaskTimeout
except ImportError:  # Airflow 3.0 and 3.1
    from airflow.exceptions import AirflowFailException, AirflowTaskTerminated, AirflowTaskTimeout

from privacy_assets.errors import ConfigError, InputError, MissingPackage, PublicationRefused
from privacy_assets.gate.release import UnfinishedRelease
from privacy_assets.pipeline.redaction import hush_threads, redact, without_values

F = TypeVar("F", bound=Callable[..., Any])
# To be mended by a person: the same again would give the same, and count as another attempt.
_FINAL = (PublicationRefused, ConfigError, InputError, MissingPackage)
_SETTLED = (FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError)  # no disk or network mends these
_INTERRUPTS = (AirflowTaskTimeout, AirflowTaskTerminated, KeyboardInterrupt, GeneratorExit)


def redact_exceptions(function: F) -> F:
    """Let no exception out of ``function``, the ``execute`` of an operator, that can quote a private value.

    Refusals of the gate, wrong settings and tables that cannot be used become an AirflowFailException, which is not
    retried, unless a disk or the network failed behind them. Other errors of this package pass without their cause,
    context and notes, interrupts without their words; anything else becomes a StepError. None has the frames it was
    raised in: Airflow 3.0 and reporters of errors show their local variables, which are tables.
    """
    return redact(function, _shown, hush_threads)


def _shown(error: BaseException) -> BaseException:
    if isinstance(error, _FINAL) and not _passing(error):
        return AirflowFailException(str(error))
    return without_values(error, (), _INTERRUPTS).with_traceback(None)


def _passing(error: BaseException) -> bool:
    """Whether a disk or the network failed, which the next try may find mended: what the gate made its refusal of."""
    behind = error.__context__
    return isinstance(error, UnfinishedRelease) or (isinstance(behind, OSError) and not isinstance(behind, _SETTLED))
