"""Advice on errors of the gate, with the steps to rerun."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from privacy_assets.errors import (
    Damaged,
    FailedBefore,
    NotTrusted,
    PolicyNotMet,
    PublicationBlocked,
    RecordKind,
    SettingsDiffer,
    StoreUnavailable,
    Superseded,
    TableBusy,
    TableSuspended,
    WrongTarget,
    advice_for_readers,
)

# Verbs of the steps to rerun, in order, if a record is missing or out of date. A record that is not
# listed is made by no step.
STEPS_OF_RECORD: Mapping[RecordKind, tuple[str, ...]] = {
    "source": ("read",),
    "table": ("read", "split"),  # the file of a private table, before or after the split
    "split": ("split", "prepare", "score", "attest"),
    "embedder": ("embed", "prepare"),
    "generator": ("fit", "sample"),
    "snapshot": ("sample",),
    "prepared": ("prepare",),
    "result": ("score", "attest"),
    "attestation": ("attest",),
    "pointer": ("publish",),
}


def advice(error: PublicationBlocked) -> str:
    """Return what to do about an error of the gate, in one sentence for Dagster, Airflow and the
    shell.

    Args:
        error: Error of the gate.

    Returns:
        An imperative that starts in lower case, and ends with a period or a command.
    """
    if error.reader or (error.retry and not isinstance(error, TableBusy)):
        return advice_for_readers(error)
    steps = _steps(error)
    if not steps:
        return _advice_by_class(error)
    *first, last = steps
    if first:
        return f"rerun the steps {', '.join(first)} and {last}."
    return f"rerun the step {last}."


def _steps(error: PublicationBlocked) -> Sequence[str]:
    """Return the steps to rerun."""
    if error.redo or error.record is None:
        return error.redo
    return STEPS_OF_RECORD.get(error.record, ())


def _advice_by_class(error: PublicationBlocked) -> str:
    """Return the advice of an error that needs more than another try or another run of steps."""
    match error:
        case PolicyNotMet():
            return error.remedy or "read the privacy report, which names the causes and what to do."
        case FailedBefore():
            return "change the generator and create a new synthetic table."
        case NotTrusted():
            return "restore the file, or add the key that signed it to the trusted keys."
        case WrongTarget():
            return (
                "run one existing partition at a time, and a table without partitions on its own."
            )
        case Superseded(release=""):
            return "check which release is current, then try again or create a new synthetic table."
        case Superseded():
            return (
                "create a new synthetic table, or `privacy-assets releases TABLE --rollback"
                f" {error.release}`."
            )
        case Damaged(remove=True):
            return f"remove {error.path}; if no release is then current, roll back to a release."
        case Damaged():
            return f"restore {error.path} from a backup."
        case StoreUnavailable():
            return _advice_on_store(error)
        case SettingsDiffer():
            return f"undo the change, or accept it: privacy-assets accept {error.table}"
        case TableBusy():
            return (
                "wait for it, or terminate it; then run again. The lease of a killed run ends"
                " after 5 minutes."
            )
        case TableSuspended():
            accept = f'privacy-assets accept {error.table} --reason "..."'
            if error.path:
                return f"restore {error.path} from a backup. If there is none: {accept}"
            return f"find the cause, then: {accept}"
    return "rerun all steps."


def _advice_on_store(error: StoreUnavailable) -> str:
    if error.fix:
        return f"{error.fix}."
    return f"check that {error.path or 'the path'} exists and can be read."


def with_advice(error: Exception) -> str:
    """Return a message for users.

    Args:
        error: Any error.

    Returns:
        The message of the error; for an error of the gate, followed by its advice.
    """
    if not isinstance(error, PublicationBlocked):
        return str(error)
    separator = ". "
    if "\n" in error.event:
        separator = "\n"
    text = f"{error.event.removesuffix('.')}{separator}Fix: {advice(error)}"
    if not error.release_note:
        return text
    return f"{text.removesuffix('.')}. {error.release_note}"
