"""Base classes of generators that run an external program, which exchanges Parquet files."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
import weakref
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Annotated, Any

import pandas as pd
import pyarrow.parquet as pq
from pydantic import Field

from privacy_assets.errors import PrivacyAssetsError, StepError, safe_repr
from privacy_assets.generators import _program_supervisor as supervisor
from privacy_assets.generators.base import FittedGenerator, Generator, Training, write_table
from privacy_assets.infra.temp_folders import WorkFolder
from privacy_assets.tables.schema import TableSchema
from privacy_assets.tables.table import Table

MODEL = "model"
ENV_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ")
THREADS = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")  # passed to Python programs if set
MAX_OUTPUT = 1 << 30  # of a program, in bytes
HISTORY = "history.json"  # training curve of a model
EPOCHS = 10_000  # maximum length of a training curve
HISTORY_KEYS = frozenset(
    {"epoch", "loss", "validation_loss", "learning_rate", "grad_norm", "overfitting_ratio"}
)
Timeout = Annotated[float, Field(gt=0, allow_inf_nan=True)]  # seconds
_POLL_SECONDS = 0.1
_GRACE_SECONDS = 10.0
_MAX_HISTORY_BYTES = 1 << 22


class ProgramGenerator(Generator):
    """Base class of generators that run an external program, in a new process for each fit or
    sample, without a shell.

    The program runs in the current folder with the rights of the current user. A supervisor
    terminates it with all processes that it started (on Linux in any session, elsewhere in its
    process group) when the program exits, exceeds ``timeout`` or prints more than 1 GiB, or this
    process is killed. Its files and its ``TMPDIR`` are in a :class:`WorkFolder` and are discarded
    unless it succeeds. Its environment contains ``PATH``, ``HOME``, language, time zone and
    :attr:`env_variables`, but no keys.

    The program reads private rows and could encode them in its exit status, in an exception, or in
    the position of an invalid cell. Messages therefore state only whether it succeeded. Its output
    and the reason of a failure are appended to ``log``.

    Attributes:
        timeout: Maximum number of seconds per run.
        log: Private file for the output and failure reasons. None: they are discarded.
    """

    timeout: float
    log: str | None

    @property
    @abstractmethod
    def env_variables(self) -> tuple[str, ...]:
        """Names of additional environment variables that the program receives."""

    @property
    @abstractmethod
    def sampler(self) -> Sequence[str]:
        """Command line that generates the rows."""

    @property
    def label(self) -> str:
        """Name of the program in messages."""
        return f"generator {self.name}: {Path(self.sampler[0]).name}"

    @contextmanager
    def private_failures(self, program: str) -> Iterator[None]:
        """Replace every error in the block by the same StepError, and append its reason to the log.

        Args:
            program: Name or path of the executable.

        Raises:
            StepError: If the block fails. Before the block runs: if ``program`` or an environment
                variable is missing, or the log cannot be opened.
        """
        self._check(program)
        try:
            yield
            return
        except Exception as error:  # noqa: BLE001 (the program determines which error is raised, and where)
            reason = str(error)
            if not isinstance(error, PrivacyAssetsError):
                reason = f"{type(error).__name__}: {reason}"
            with suppress(OSError), self._opened_log() as log:
                log.write(f"privacy-assets: {reason}\n".encode(errors="replace"))
        fix = "set log to a private file, run it again and read that file"
        if self.log:
            fix = f"read {safe_repr(self.log)}"
        StepError(
            f"{self.label} failed, took longer than {self.timeout:g} seconds or returned an"
            " unusable table."
            f" The reason may contain private values and is not shown. Fix: {fix}."
        ).raise_without_context()

    def _check(self, program: str) -> None:
        for name in self.env_variables:
            if name not in os.environ:
                raise StepError(
                    f"{self.label} needs the environment variable {name}, which is not set."
                    " Fix: set it where the step runs."
                )
        if shutil.which(program) is None:
            raise StepError(
                f"{self.label} could not be started (FileNotFoundError). Fix: check its name."
            )
        try:
            self._opened_log().close()
        except OSError:
            fix = "set log to a file in an existing folder that you can write to"
            StepError(
                f"{self.label}: log {safe_repr(self.log)} cannot be opened. Fix: {fix}."
            ).raise_without_context()

    def _opened_log(self) -> IO[bytes]:
        if self.log is None:
            return open(os.devnull, "ab")
        return os.fdopen(os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab")

    def run(self, arguments: Sequence[str], values: Mapping[str, str], folder: Path) -> None:
        """Run ``arguments`` in a block of :meth:`private_failures`.

        Args:
            arguments: Command line with placeholders such as ``{train}``.
            values: Value of each placeholder.
            folder: Folder for temporary files and output.

        Raises:
            StepError: If the program fails. The message is private.
        """
        command = [_filled(argument, values) for argument in arguments]
        temporary = folder / "tmp"
        temporary.mkdir()
        environment = {}
        for name in (*ENV_VARIABLES, *self.env_variables):
            if name in os.environ:
                environment[name] = os.environ[name]
        environment["TMPDIR"] = str(temporary)
        with (folder / "printed").open("w+b") as printed:
            try:
                self._watch(command, environment, printed)
            finally:
                printed.seek(0)
                with self._opened_log() as log:
                    shutil.copyfileobj(printed, log)

    def _watch(self, arguments: list[str], environment: dict[str, str], printed: IO[bytes]) -> None:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", supervisor.__file__, *arguments],
            # never written to; the system closes it even if this process is killed
            stdin=subprocess.PIPE,
            stdout=printed,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        end = time.monotonic() + self.timeout
        try:
            while process.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(min(_POLL_SECONDS, end - time.monotonic()), 0))
                if os.fstat(printed.fileno()).st_size > MAX_OUTPUT:
                    raise StepError(f"the program printed more than {MAX_OUTPUT:,} bytes.")
                if process.returncode is None and time.monotonic() >= end:
                    raise StepError(f"the program took longer than {self.timeout:g} seconds.")
        finally:
            _end(process)
        if process.returncode == 0:
            return
        ending = f"exited with status {process.returncode}"
        if process.returncode < 0:
            ending = f"was killed by signal {-process.returncode}"
        raise StepError(
            f"{safe_repr(Path(arguments[0]).name)} {ending}. Fix: read its output in the log."
        )

    def trained(self, arguments: Sequence[str], table: pd.DataFrame, training: Training) -> Model:
        """Run a training command.

        Args:
            arguments: Command line with the placeholders ``{train}``, ``{model}``, ``{seed}`` and
                ``{device}``.
            table: Training rows.
            training: Seed and device.

        Returns:
            The model folder that the command wrote.

        Raises:
            StepError: As in :meth:`private_failures`.
        """
        model = Model()
        with WorkFolder() as folder:
            values = {
                "{train}": str(write_table(table, folder)),
                "{model}": str(model.path),
                "{seed}": str(training.seed),
                "{device}": training.device,
            }
            with self.private_failures(arguments[0]):
                self.run(arguments, values, folder)
                model.check()
        return model


class Model:
    """Folder of files written by a program. It is deleted with this object."""

    def __init__(self, source: Path | None = None) -> None:
        folder = WorkFolder()
        weakref.finalize(self, folder.close)  # also keeps a reference to the folder
        self.path = folder.path / MODEL
        if source is None:
            self.path.mkdir()
        else:
            shutil.copytree(source, self.path)

    def check(self) -> None:
        """Check that the folder contains files and that all of them can be copied.

        Raises:
            StepError: If not. The message is private.
        """
        if not self.path.is_dir() or not any(self.path.iterdir()):
            raise StepError("the program wrote nothing to {model}.")
        for path in self.path.rglob("*"):
            if not _is_copyable(path):
                file_name = safe_repr(str(path.relative_to(self.path)))
                raise StepError(
                    f"{{model}}: {file_name} is not a readable regular file with a printable"
                    " ASCII name."
                    " Fix: let the program write only such files."
                )

    def copy(self, folder: Path) -> Path:
        """Copy the files, so that the program that receives them cannot change the model.

        Args:
            folder: Parent of the copy, which must not contain one yet.

        Returns:
            Path of the copy.
        """
        return Path(shutil.copytree(self.path, folder / MODEL))


def _is_copyable(path: Path) -> bool:
    """Return True for a readable regular file or folder with a printable ASCII name."""
    if path.is_symlink() or not (path.is_file() or path.is_dir()):
        return False
    return os.access(path, os.R_OK) and path.name.isascii() and path.name.isprintable()


def read_history(file: Path) -> tuple[dict[str, float], ...]:
    """Read the training curve written by a worker script of this package.

    Args:
        file: JSON file.

    Returns:
        One mapping per epoch, with "epoch" and other keys of :data:`HISTORY_KEYS`.

    Raises:
        StepError: If the file has another format. The message is private.
    """
    with file.open("rb") as stream:
        content = stream.read(_MAX_HISTORY_BYTES + 1)
    rows = None
    if len(content) <= _MAX_HISTORY_BYTES:
        rows = json.loads(content)
    if not isinstance(rows, list) or len(rows) > EPOCHS:
        raise StepError(
            f"{file.name} must be a JSON list of at most {EPOCHS:,} epochs and at most"
            f" {_MAX_HISTORY_BYTES >> 20} MiB."
        )
    for row in rows:
        if not _is_epoch(row):
            raise StepError(
                f"{file.name} contains an epoch with unknown keys or a value that is not a"
                " finite float."
            )
    return tuple(rows)


def _is_epoch(row: Any) -> bool:
    if not isinstance(row, dict) or "epoch" not in row or not HISTORY_KEYS.issuperset(row):
        return False
    return all(isinstance(number, float) and math.isfinite(number) for number in row.values())


class FittedProgram(FittedGenerator):
    """Base class of fitted programs: those with a trained model, and those that are fitted again
    for each sample.
    """

    generator: ProgramGenerator

    @abstractmethod
    def write_inputs(self, folder: Path) -> dict[str, str]:
        """Write the input files of the program.

        Args:
            folder: Folder for the files.

        Returns:
            Their paths by placeholder.
        """

    def _sample(self, n_rows: int, seed: int) -> Table:
        generator = self.generator
        with WorkFolder() as folder:
            out = folder / "out.parquet"
            values = {
                "{out}": str(out),
                "{rows}": str(n_rows),
                "{seed}": str(seed),
                **self.write_inputs(folder),
            }
            with generator.private_failures(generator.sampler[0]):
                generator.run(generator.sampler, values, folder)
                if not out.is_file():
                    raise StepError("the program wrote no file to {out}.")
                written = pq.ParquetFile(out).read().to_pandas()
                table = self._checked(self._table(written), n_rows)
                # fails here if the dtypes of the private table cannot be restored
                table.to_published_frame()
        return table

    def _table(self, written: pd.DataFrame) -> Table:
        """Convert the program's output."""
        return Table.of(written, self.schema, where=self.where)


class FittedModel(FittedProgram):
    """A program with the ``model`` that its training wrote."""

    def __init__(self, generator: ProgramGenerator, schema: TableSchema, model: Model) -> None:
        self.generator = generator
        self.schema = schema
        self.model = model

    def write_inputs(self, folder: Path) -> dict[str, str]:
        """Implement :meth:`FittedProgram.write_inputs`."""
        return {"{model}": str(self.model.copy(folder))}

    def _save(self, folder: Path) -> dict[str, Any]:
        self.model.copy(folder)
        return {}


def _filled(argument: str, values: Mapping[str, str]) -> str:
    for placeholder, value in values.items():
        argument = argument.replace(placeholder, value)
    return argument


def _end(process: subprocess.Popen[bytes]) -> None:
    """Terminate a supervisor, which terminates its program first, and the rest of its process
    group.
    """
    if process.stdin is not None:
        process.stdin.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
