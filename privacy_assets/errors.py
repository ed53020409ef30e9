"""Errors raised by privacy-assets.

Each class inherits from :class:`PrivacyAssetsError` and from the built-in class of its kind.
Messages name the table or file, the column, the row position and the fix. They never contain a
value of a private table.
"""

from __future__ import annotations

import dis
import errno
import operator
import os
import secrets
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, dataclass
from difflib import get_close_matches
from functools import partial, wraps
from importlib.util import find_spec
from inspect import Parameter, signature
from pathlib import Path, PurePath
from types import TracebackType
from typing import Any, Literal, NoReturn, SupportsIndex, TypeVar, cast

# Records that steps pass on or the gate stores, as errors name them. Only the pipeline knows the
# steps that make them.
RecordKind = Literal[
    "source", "table", "split", "embedder", "generator", "snapshot", "prepared", "result",
    "attestation", "accepted_settings", "entry", "state", "pointer",
]  # fmt: skip
F = TypeVar("F", bound=Callable[..., Any])
E = TypeVar("E", bound=BaseException)
_MAX_QUOTED = 80  # longest string, in characters, that is quoted in a message
# A retry fails again: something is missing, not permitted or of another kind, or the disk is
# read-only.
_PERMANENT = (
    errno.ENOENT,
    errno.EACCES,
    errno.EPERM,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ELOOP,
    errno.EROFS,
    errno.ENAMETOOLONG,
    errno.EINVAL,
)


class PrivacyAssetsError(Exception):
    """Base class of all errors raised by privacy-assets."""

    @property
    def retry(self) -> bool:
        """Whether a retry may succeed, because a disk, network or device was not available."""
        return isinstance(self, OSError) and is_transient(self)

    def raise_without_context(self) -> NoReturn:
        """Raise without the original exception as cause or context, because its message may contain
        cell values.
        """
        try:
            raise self
        finally:
            without_chain(self)


class InputError(PrivacyAssetsError, ValueError):
    """A table or file is not valid input.

    Attributes:
        problem: What is wrong.
        where: File or role of the table, for example "train".
        column: Name of the column.
        row: Zero-based row position.
        fix: What the user should do.
        transient: Whether a disk or network error prevented reading, so that a retry may succeed.
    """

    def __init__(
        self,
        problem: str,
        *,
        where: str | None = None,
        column: str | None = None,
        row: int | None = None,
        fix: str | None = None,
        transient: bool = False,
    ) -> None:
        self.problem = problem
        self.where = where
        self.column = column
        self.row = row
        self.fix = fix
        self.transient = transient
        location = []
        if where:
            location.append(where)
        if column is not None:
            location.append(f"column {safe_repr(column)}")
        if row is not None:
            location.append(f"row {row}")
        message = problem
        if location:
            message = f"{', '.join(location)}: {problem}"
        if fix:
            message = f"{message}. Fix: {fix}"
        if not message.endswith((".", "?")):
            message = f"{message}."
        super().__init__(message)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return constructor and arguments, so that the error can be passed between processes."""
        names = ("where", "column", "row", "fix", "transient")
        keywords = {name: getattr(self, name) for name in names}
        return partial(type(self), **keywords), (self.problem,)

    @property
    def retry(self) -> bool:
        """Value of ``transient``."""
        return self.transient


class ConfigError(PrivacyAssetsError, ValueError):
    """A setting, policy or definition is invalid. Raised on loading, before any work is done."""


class MissingPackage(PrivacyAssetsError, ImportError):
    """A required package of an optional extra is not installed."""


class StoreError(PrivacyAssetsError, OSError):
    """An object-store operation failed. Created from errno, its description and the URL."""

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}."


class FolderError(OSError, ConfigError):
    """A folder cannot be used: the disk is full or read-only, a path is a link, or another process
    holds a lock.

    It is an OSError, so that handlers of failed reads and writes catch it.

    Args:
        number: The ``errno`` of the failed system call, or None.
        problem: Event and path, without a final period.
        fix: Imperative without a final period.
    """

    def __init__(self, number: int | None, problem: str, fix: str = "") -> None:
        super().__init__(number, problem)
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.strerror}. Fix: {self.fix}."


class ClusterError(PrivacyAssetsError, RuntimeError):
    """Cluster machines were lost repeatedly together with their work."""


class LeaseTimeout(PrivacyAssetsError, TimeoutError):
    """No device became available within the time limit."""


@dataclass(eq=False, repr=False)
class PublicationBlocked(PrivacyAssetsError, RuntimeError):
    """Base class of the errors of the gate; each is an instance of a subclass.

    The message is the event. :mod:`privacy_assets.pipeline.advice` has what to do about it.

    Attributes:
        event: What happened and where, without advice and without a final period.
        record: Kind of the record that is to be made again. None: none.
        redo: Names of the steps to rerun, in order. Empty: those that make ``record``.
        reader: The caller only reads releases, and cannot rerun steps.
        outcome_known: False: the release may have been published nevertheless.
        release_note: Sentence about the current release, which follows the advice. Empty: none.
    """

    event: str
    _: KW_ONLY
    record: RecordKind | None = None
    redo: tuple[str, ...] = ()
    reader: bool = False
    outcome_known: bool = True
    release_note: str = ""


@dataclass(eq=False, repr=False, kw_only=True)
class PolicyNotMet(PublicationBlocked):
    """A limit of the policy fails.

    Attributes:
        outcomes: Outcomes of the limits that do not hold.
        remedy: First remedy of the report, an imperative. Empty: not known here.
    """

    outcomes: tuple[Any, ...] = ()
    remedy: str = ""


class Undecided(PolicyNotMet):
    """No limit of the policy fails, but some are undecided."""


@dataclass(eq=False, repr=False, kw_only=True)
class FailedBefore(PublicationBlocked):
    """A limit failed for the same rows before.

    Attributes:
        failures: Limits that failed for them.
    """

    failures: tuple[str, ...] = ()


class NotTrusted(PublicationBlocked):
    """A file is not signed by a trusted key, or was changed after it was signed."""


class WrongTarget(PublicationBlocked):
    """A run or a signed file names another table or partition, or none."""


class OutOfDate(PublicationBlocked):
    """A signed file is missing, or its tables, settings or package version differ from the current
    ones.
    """


@dataclass(eq=False, repr=False, kw_only=True)
class Superseded(PublicationBlocked):
    """Another release or rollback came later.

    Attributes:
        release: Release of the same rows that is no longer current. Empty: unknown.
    """

    release: str = ""


@dataclass(eq=False, repr=False, kw_only=True)
class Damaged(PublicationBlocked):
    """A stored file is missing, was changed, or was not written by the gate.

    Attributes:
        path: Path or URL.
        remove: The file was not written by the gate, so there is no original to restore.
    """

    path: str = ""
    remove: bool = False


@dataclass(eq=False, repr=False, kw_only=True)
class StoreUnavailable(PublicationBlocked):
    """A disk or an object store did not carry out an operation.

    Attributes:
        path: Path or URL. Empty: unknown.
        errno: Number of the system error. None: other processes were faster each time.
        fix: Advice of a FolderError, an imperative without a final period. Empty: unknown.
    """

    path: str = ""
    errno: int | None = None
    fix: str = ""

    @classmethod
    def of(cls, event: str, error: OSError, path: object = "", **data: Any) -> StoreUnavailable:
        """Create from a system error, with its number and advice.

        Args:
            event: What happened and where, without a final period.
            error: The system error.
            path: Path or URL, if the error has none.
            **data: Further attributes.
        """
        fix = ""
        if isinstance(error, FolderError):
            fix = error.fix
        failed_path = str(error.filename or path)
        return cls(event, path=failed_path, errno=error.errno, fix=fix, **data)

    @property
    def retry(self) -> bool:
        """False if a retry would fail again, as for a missing file or permission, or a read-only
        disk.
        """
        return not self.outcome_known or self.errno not in _PERMANENT


@dataclass(eq=False, repr=False, kw_only=True)
class SettingsDiffer(PublicationBlocked):
    """The settings of a run differ from the accepted settings of its table.

    Attributes:
        table: Name of the table.
        differences: One line for each entry that differs.
    """

    table: str = ""
    differences: tuple[str, ...] = ()


@dataclass(eq=False, repr=False, kw_only=True)
class TableSuspended(PublicationBlocked):
    """A table is suspended until a user accepts it: it failed too often, or its log or ledger is
    incomplete.

    Attributes:
        table: Name of the table.
        path: Path or URL of the only file that is missing or was changed. Empty: another cause.
    """

    table: str = ""
    path: str = ""


@dataclass(eq=False, repr=False, kw_only=True)
class TableBusy(PublicationBlocked):
    """Another run of the table is in progress.

    Attributes:
        table: Name of the table.
        run: Id of the other run.
    """

    table: str = ""
    run: str = ""

    @property
    def retry(self) -> bool:
        """True: the other run ends."""
        return True


def advice_for_readers(error: PublicationBlocked) -> str:
    """Return what a reader of releases, who cannot run steps, does about an error of the gate.

    Args:
        error: Error of the gate.

    Returns:
        An imperative that starts in lower case, and ends with a period.
    """
    if not error.retry or isinstance(error, TableBusy):
        return "ask the publisher."
    if isinstance(error, StoreUnavailable) and error.fix:
        return f"{error.fix}."
    return "try again."


def outcome_known(error: Exception) -> bool:
    """Return whether it is certain that nothing was published.

    Args:
        error: Any error.

    Returns:
        False if the release or rollback may have taken effect in spite of the error.
    """
    return not isinstance(error, PublicationBlocked) or error.outcome_known


@contextmanager
def for_readers() -> Iterator[None]:
    """Mark errors of the gate in the ``with`` block as those of a reader, and show the advice below
    their message.
    """
    try:
        yield
    except PublicationBlocked as error:
        error.reader = True
        error.add_note(f"Fix: {advice_for_readers(error)}")
        raise


class StepError(PrivacyAssetsError, RuntimeError):
    """Foreign code raised an exception. Its type and location are shown; its message may contain
    cells and is not.

    The cause is shown if the environment caused the exception, see :func:`environment_problem`.
    """

    @classmethod
    def hiding(cls, error: BaseException) -> StepError:
        """Create from an exception with its type, system error name and location.

        Args:
            error: Exception of any code.

        Returns:
            The error, with the traceback of the exception, which has source lines only.
        """
        kind = type(error).__name__
        if (
            isinstance(error, OSError)
            and error.errno is not None
            and error.errno in errno.errorcode
        ):
            # not the text of the exception, which any code can set
            kind += f" ({os.strerror(error.errno)})"
        event = f"{kind} at {_location(error.__traceback__)}"
        problem = environment_problem(error)
        if problem is None:
            event = f"{event}. Its message is hidden, because it may contain private values"
            fix = "inspect that line, and run it by hand on the step's input"
        else:
            cause, fix = problem
            if cause:
                event = f"{event}: {cause}"
        return cls(f"{event}. Fix: {fix}.").with_traceback(error.__traceback__)


# System errors that the environment causes, with the fix; {disk} is replaced.
_WRITABLE = "free space or mount the disk for writing, then run this again; look in {disk}"
_ACCESS = "check that this user may read and write in the output and home folders and TMPDIR"
_SYSTEM = {
    errno.ENOSPC: _WRITABLE,
    errno.EDQUOT: _WRITABLE,
    errno.EROFS: _WRITABLE,
    errno.EIO: "check the disk of {disk}",
    errno.EACCES: _ACCESS,
    errno.EPERM: _ACCESS,
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the system's limit of open files",
    errno.ENOMEM: "give the process more memory",
    errno.EAGAIN: "raise the limits of processes and memory (ulimit -u, and those of the"
    " container)",
}
# Parts of messages of libraries that tell the cause, with the fix. Only these words are shown, not
# the message.
_THREADS = (
    "raise the limit of threads (ulimit -u, and pids of the container) and of memory (ulimit"
    " -v), or set"
    " OMP_NUM_THREADS to fewer"
)
_MEMORY = "give the process more memory, or pass fewer rows"
_PHRASES = {
    "can't start new thread": _THREADS,
    "Failed to launch worker thread": _THREADS,  # Arrow
    "Resource temporarily unavailable": _THREADS,
    "failed to map segment from shared object": "give the process more memory (ulimit -v, and that"
    " of the"
    " container)",
    "No space left on device": _WRITABLE,
    "Read-only file system": _WRITABLE,
    "Too many open files": "raise the limit of open files (ulimit -n)",
    "No usable temporary directory": "set TMPDIR to a folder with free space that this user can"
    " write to",
    "maximum recursion depth exceeded": "raise the recursion limit of the program"
    " (sys.setrecursionlimit)",
    "out of memory": _MEMORY,
    "can't allocate memory": _MEMORY,
    "Cannot allocate memory": _MEMORY,
    "Unable to allocate": _MEMORY,
}
_MAX_CAUSE = 300  # characters of the message of an import


def environment_problem(error: BaseException) -> tuple[str, str] | None:
    """Return cause and fix if the environment caused an exception: disk, memory, threads, limits,
    an installation.

    Only text that no table can reach is returned: the name of a system error, a mount point, words
    of this module, and the message of a failed import statement.

    Args:
        error: Exception of any code.

    Returns:
        A clause, which is empty if the name of the system error tells it, and an imperative, both
        without a final period. None: another cause.
    """
    phrase = _phrase_in(error)
    if phrase is None and isinstance(error, ImportError) and _while_importing(error):
        message = " ".join(str(error).split())
        cause = message[:_MAX_CAUSE].removesuffix(".")
        fix = "repair or install that package in the environment of this program (pip check)"
        return cause, fix
    if isinstance(error, MemoryError):
        return "out of memory", _MEMORY
    disk = _disk_of(error)
    if isinstance(error, OSError) and isinstance(error.errno, int) and error.errno in _SYSTEM:
        return "", _SYSTEM[error.errno].format(disk=disk)
    if phrase is None:
        return None
    return phrase, _PHRASES[phrase].format(disk=disk)


def _phrase_in(error: BaseException) -> str | None:
    """Return the first of ``_PHRASES`` in the message of an error, or None."""
    message = " ".join(part for part in error.args if isinstance(part, str))
    for phrase in _PHRASES:
        if phrase in message:
            return phrase
    return None


def _disk_of(error: BaseException) -> str:
    """Return the mount point of the file that ``error`` names, not its folder, whose name can be a
    cell.
    """
    name = getattr(error, "filename", None)
    if isinstance(name, str) and name.startswith("/"):
        with suppress(OSError, ValueError):
            path = Path(name).resolve()
            for folder in (path, *path.parents):
                if folder.is_mount():
                    return str(folder)
    return "the output and home folders and TMPDIR"


def _while_importing(error: ImportError) -> bool:
    """Return True if an import statement failed, or code that a module runs when it is imported.

    Other code can raise ImportError with a message of its own, or import a module with the name of
    a cell.
    """
    is_innermost_in_file = False
    for frame, _ in traceback.walk_tb(error.__traceback__):
        is_module = frame.f_code.co_name == "<module>"
        is_main = frame.f_globals.get("__name__") == "__main__"
        # False for code of exec
        is_innermost_in_file = frame.f_code.co_filename == frame.f_globals.get("__file__")
        if is_innermost_in_file and is_module and not is_main:
            return True
    return is_innermost_in_file and _failed_statement_is_import(error)


def _failed_statement_is_import(error: ImportError) -> bool:
    trace = error.__traceback__
    if trace is None:
        return False
    while trace.tb_next is not None:
        trace = trace.tb_next
    for instruction in dis.get_instructions(trace.tb_frame.f_code):
        if instruction.offset == trace.tb_lasti:
            return instruction.opname.startswith("IMPORT_")
    return False


def _location(trace: TracebackType | None) -> str:
    """Return the innermost line in this package or in user code, or in a library if there is
    none.
    """
    package = Path(__file__).parent
    lines = list(traceback.walk_tb(trace))
    if not lines:
        return "an unknown line"
    user_lines = []
    for frame, number in lines:
        file = Path(frame.f_code.co_filename)
        if package in file.parents or not _is_in_library(file):
            user_lines.append((frame, number))
    frame, number = (user_lines or lines)[-1]
    file = Path(frame.f_code.co_filename)
    if package in file.parents:
        file = file.relative_to(package.parent)
    return f"{file}:{number}, in {frame.f_code.co_name}"


def _is_in_library(file: Path) -> bool:
    if not file.is_absolute():
        return True  # compiled and generated code has a relative file name or none
    if not {"site-packages", "dist-packages"}.isdisjoint(file.parts):
        return True
    standard_folders = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    return any(str(parent) in standard_folders for parent in file.parents)


def safe_repr(value: object) -> str:
    """Return a safe representation for error messages.

    The string of a table contains its rows, and a long or multi-line string may be file content.

    Args:
        value: Any object.

    Returns:
        Short printable strings and paths verbatim, other values as their type name.
    """
    if isinstance(value, PurePath):
        return PurePath.__str__(value)
    if not isinstance(value, str):
        return type(value).__name__
    text = str.__str__(value)  # bypasses overrides in subclasses
    if not is_showable(text):
        return f"a string of {len(text)} characters"
    return repr(text)


def is_showable(text: str) -> bool:
    """Return True for short printable text.

    Args:
        text: Any string. A long or multi-line one may be file content.
    """
    return len(text) <= _MAX_QUOTED and text.isprintable()


def is_transient(error: OSError) -> bool:
    """Return False if a retry would fail again, as for a missing file or permission, or a read-only
    disk.
    """
    return error.errno not in _PERMANENT


def require(package: str, what: str, extra: str, otherwise: str = "") -> None:
    """Check that a package is installed, without importing it.

    Args:
        package: Name of the package.
        what: Feature that needs it; start of the message.
        extra: Extra of privacy-assets that installs it.
        otherwise: Alternative to installing it. Empty: none.

    Raises:
        MissingPackage: The package is not installed.
    """
    if find_spec(package) is not None:
        return
    fix = f"pip install 'privacy-assets[{extra}]'"
    if otherwise:
        fix = f"{fix}, or {otherwise}"
    raise MissingPackage(f"{what} needs {package}, which is not installed. Fix: {fix}.")


def integer(name: str, value: object, least: int = 0) -> int:
    """Return an integer of any type as int, for example one of numpy.

    Args:
        name: Name of the argument, for the message.
        value: Its value.
        least: Smallest allowed value.

    Raises:
        ConfigError: If ``value`` is not an integer, or is smaller than ``least``.
    """
    number = least - 1
    if not isinstance(value, bool):
        with suppress(TypeError):
            number = operator.index(cast("SupportsIndex", value))
    if number < least:
        raise ConfigError(f"{name} must be an integer of at least {least}.")
    return number


def seed_of(seed: object) -> int:
    """Return a seed as int.

    Args:
        seed: Seed of a user. None: one is drawn, to be recorded with the result.

    Raises:
        ConfigError: If it is not an integer of at least 0.
    """
    if seed is None:
        return secrets.randbits(32)
    return integer("seed", seed)


def did_you_mean(name: object, options: Iterable[str]) -> str:
    """Return a hint for a name that is not valid.

    Args:
        name: Name that a user wrote.
        options: Valid names.

    Returns:
        " Did you mean 'x'?" for the closest option, or the list of all options if none is close.
    """
    valid_names = sorted(options)
    hint = near_name(name, valid_names)
    if hint:
        return hint
    return f" Known: {', '.join(valid_names) or 'none'}."


def near_name(name: object, options: Iterable[str]) -> str:
    """Return a hint for a name that is not valid, without a list of the options: in a file without
    a header the column names are cells of a row.

    Args:
        name: Name that a user wrote.
        options: Valid names.

    Returns:
        " Did you mean 'x'?" for the closest option, or "" if none is close.
    """
    text = ""
    if isinstance(name, str):
        text = str.__str__(name)[:_MAX_QUOTED]
    close_names = get_close_matches(text, sorted(options), n=1, cutoff=0.65)
    if not close_names:
        return ""
    return f" Did you mean {close_names[0]!r}?"


def without_chain(error: E) -> E:
    """Remove cause, context and notes, which foreign code may have written.

    Args:
        error: Error, which is changed.

    Returns:
        The same error.
    """
    error.__cause__ = None  # also suppresses the context
    error.__context__ = None
    error.__dict__.pop("__notes__", None)
    return error


def _check_arguments(
    name: str,
    parameters: Mapping[str, Parameter],
    args: Sequence[object],
    kwargs: Mapping[str, object],
) -> None:
    """Raise ConfigError if a function has no argument of the name of a keyword, or needs one that
    is missing.
    """
    kinds = {parameter.kind for parameter in parameters.values()}
    positional = _arguments_of_kind(parameters, Parameter.POSITIONAL_OR_KEYWORD)
    by_name = positional + _arguments_of_kind(parameters, Parameter.KEYWORD_ONLY)
    for keyword in kwargs:
        if keyword not in by_name and Parameter.VAR_KEYWORD not in kinds:
            hint = did_you_mean(keyword, by_name)
            raise ConfigError(f"{name} has no argument {safe_repr(keyword)}.{hint}")
    if len(args) > len(positional) and Parameter.VAR_POSITIONAL not in kinds:
        problem = (
            f"{name} takes {len(positional)} arguments by position, but {len(args)} were given"
        )
        raise ConfigError(f"{problem}. Fix: pass the others by name.")
    passed = positional[: len(args)]
    for argument in passed:
        if argument in kwargs:
            fix = "Fix: remove one."
            raise ConfigError(f"{name}: the argument {argument!r} was given twice. {fix}")
    for argument in by_name:
        is_passed = argument in passed or argument in kwargs
        if not is_passed and parameters[argument].default is Parameter.empty:
            raise ConfigError(f"{name} needs the argument {argument!r}. Fix: pass it.")


def _arguments_of_kind(parameters: Mapping[str, Parameter], kind: object) -> list[str]:
    return [name for name, parameter in parameters.items() if parameter.kind is kind]


def redact_foreign_errors(function: F) -> F:
    """Decorate a function to raise errors of this package only, without cause or context.

    Messages of other errors may contain argument values. Names of wrong arguments are checked
    first, because a message about them contains none.

    Args:
        function: Function to decorate.

    Returns:
        The decorated function, with the same signature.
    """
    parameters = signature(function).parameters

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        _check_arguments(function.__name__, parameters, args, kwargs)
        safe: PrivacyAssetsError
        try:
            return function(*args, **kwargs)
        except PrivacyAssetsError as error:
            safe = error
        except Exception as error:  # noqa: BLE001 (a library, or an object that was given, can raise anything)
            safe = StepError.hiding(error)
        safe.raise_without_context()

    return cast("F", call)
