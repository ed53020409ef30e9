"""Programs as generators: Parquet in, Parquet out, in a process group and an environment of their own."""

from __future__ import annotations

import builtins
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import weakref
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, ClassVar

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from privacy_assets.compute.progress import Progress, silent
from privacy_assets.errors import StepError
from privacy_assets.generators import _program_supervisor as supervisor
from privacy_assets.generators.base import FittedGenerator, Generator, Training, write_table
from privacy_assets.generators.reports import Reports, channel_in
from privacy_assets.storage.work import WorkFolder
from privacy_assets.tables.schema import TableSchema
from privacy_assets.tables.table import Table

MODEL = "model"
PASSED = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ")
THREADS = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")  # for Python's programs, where they are set
PRINTED = 1 << 30  # bytes that a program may print before it is ended
_POLL, _GRACE = 0.1, 10.0


class ProgramGenerator(Generator):
    """A generator whose work a program does, started anew for every part of it; no shell is involved.

    It runs in the current folder with the rights of this user, below a supervisor that ends it with everything that it
    started (on Linux in whatever session; elsewhere its process group) when it takes longer than ``timeout`` seconds,
    prints more than a GiB, is done, or this process is killed. Its files, and a ``TMPDIR`` for others, lie in a
    :class:`WorkFolder`: unless it ends with exit status 0, nothing of what it wrote is kept. Of the environment it
    sees ``PATH``, ``HOME``, language, time zone, and :attr:`passed`: no keys. What it prints may quote private values:
    it is in no message, and dropped, unless ``log`` names a file that it is appended to. What it may report besides:
    ``reports``.
    """

    # What an exit status says, where it says more than its number.
    endings: ClassVar[Mapping[int, str]] = {supervisor.NOT_STARTED: "could not be started"}

    timeout: float
    log: str | None

    @property
    @abstractmethod
    def passed(self) -> tuple[str, ...]:
        """Names of further environment variables that it sees."""

    @property
    @abstractmethod
    def sampler(self) -> Sequence[str]:
        """Arguments of the program that writes the rows."""

    @property
    def source(self) -> str | None:
        """The Python file of the user's of which an error may name the line, if it is known."""
        return None

    def run(
        self, arguments: Sequence[str], given: Mapping[str, str], folder: Path, progress: Progress = silent
    ) -> Reports:
        """Run ``arguments`` with ``given`` in place of their marks; StepError unless it ends well."""
        filled = [_filled(part, given) for part in arguments]
        (folder / "tmp").mkdir()
        with (folder / "log").open("w+b") as printed, channel_in(folder, progress) as channel:
            try:
                environment = {**self._environment(), **channel.variables, "TMPDIR": str(folder / "tmp")}
                self._watch(filled, environment, printed, channel.reports)
            finally:
                self._keep(printed)
            return channel.reports

    def _watch(self, arguments: list[str], environment: dict[str, str], printed: IO[bytes], reports: Reports) -> None:
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", supervisor.__file__, *arguments],
                stdin=subprocess.PIPE,  # never written to: it closes when this process ends, however it does
                stdout=printed,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise self.failed(arguments[0], f"could not be started ({type(error).__name__})") from None
        try:
            status = self._wait(process, arguments[0], printed, reports)
        finally:
            _end(process)
        while reports.read():
            pass
        if status != 0:
            ended = f"ended with exit status {status}" if status > 0 else f"was ended by signal {-status}"
            raise self.failed(arguments[0], self.endings.get(status, ended) + _last_error(printed, self.source))

    def _wait(self, process: subprocess.Popen[bytes], program: str, printed: IO[bytes], reports: Reports) -> int:
        end = time.monotonic() + self.timeout
        while True:
            with suppress(subprocess.TimeoutExpired):
                return process.wait(max(min(_POLL, end - time.monotonic()), 0))
            reports.read()
            if os.fstat(printed.fileno()).st_size > PRINTED:
                raise self.failed(program, f"printed more than {PRINTED:,} bytes")
            if time.monotonic() >= end:
                raise self.failed(program, f"took longer than {self.timeout:g} seconds")

    def _environment(self) -> dict[str, str]:
        absent = [name for name in self.passed if name not in os.environ]
        if absent:
            raise self.failed(self.sampler[0], f"needs the environment variable {absent[0]}, which is not set")
        return {name: os.environ[name] for name in (*PASSED, *self.passed) if name in os.environ}

    def _keep(self, printed: IO[bytes]) -> None:
        if self.log is None:
            return
        printed.seek(0)
        target = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(target, "wb") as log:
            shutil.copyfileobj(printed, log)

    def failed(self, program: str, what: str) -> StepError:
        """The error that says ``what`` happened to ``program``, and nothing that it printed."""
        hint = "Fix: run it by hand; what it prints is in no message, because it can quote private values"
        return StepError(f"generator {self.name}: {Path(program).name} {what}. {hint} (setting log).")

    def trained(self, arguments: Sequence[str], table: pd.DataFrame, training: Training) -> tuple[Model, Reports]:
        """The model folder that ``arguments`` make of ``table``, and what the program reported."""
        model = Model()
        with WorkFolder() as folder:
            written = {"{train}": str(write_table(table, folder)), "{model}": str(model.path)}
            numbers = {"{seed}": str(training.seed), "{device}": training.device}
            reports = self.run(arguments, {**written, **numbers}, folder, training.progress)
        if not model.path.is_dir() or not any(model.path.iterdir()):
            raise self.failed(arguments[0], "wrote nothing to {model}")
        odd = [path for path in model.path.rglob("*") if path.is_symlink() or not (path.is_file() or path.is_dir())]
        if odd:
            raise self.failed(arguments[0], "wrote to {model} what cannot be copied: a link, or no plain file")
        return model, reports


class Model:
    """A folder of files that a program wrote, kept as long as this object."""

    def __init__(self, source: Path | None = None) -> None:
        folder = WorkFolder()
        weakref.finalize(self, folder.close)  # which holds the folder until then
        self.path = folder.path / MODEL
        if source is None:
            self.path.mkdir()
        else:
            shutil.copytree(source, self.path)

    def copy(self, folder: Path) -> Path:
        """A copy in ``folder``: whoever is given it cannot change the model."""
        return Path(shutil.copytree(self.path, folder / MODEL))


class FittedProgram(FittedGenerator):
    """A program that was trained, or one that learns anew for every sample."""

    generator: ProgramGenerator

    @abstractmethod
    def given(self, folder: Path) -> dict[str, str]:
        """Write what the program reads into ``folder``; where it is, by mark."""

    def _sample(self, rows: int, seed: int) -> Table:
        return Table.of(self.written(rows, seed), self.schema, where=self.where)

    def written(self, rows: int, seed: int) -> pd.DataFrame:
        """What the program writes when it is asked for so many rows."""
        with WorkFolder() as folder:
            out = folder / "out.parquet"
            given = {"{out}": str(out), "{rows}": str(rows), "{seed}": str(seed), **self.given(folder)}
            self.generator.run(self.generator.sampler, given, folder)
            return self._read(out)

    def _read(self, out: Path) -> pd.DataFrame:
        program = self.generator.sampler[0]
        if not out.is_file():
            raise self.generator.failed(program, "wrote no file to {out}")
        try:
            return pq.ParquetFile(out).read().to_pandas()
        except (OSError, ValueError, pa.ArrowException) as error:
            what = f"wrote no Parquet file that can be read ({type(error).__name__})"
        raise self.generator.failed(program, what)  # outside: its own message is not ours


class FittedModel(FittedProgram):
    """A program whose training left ``model``."""

    def __init__(self, generator: ProgramGenerator, schema: TableSchema, model: Model) -> None:
        self.generator, self.schema, self.model = generator, schema, model

    def given(self, folder: Path) -> dict[str, str]:
        """See :meth:`FittedProgram.given`."""
        return {"{model}": str(self.model.copy(folder))}

    def _save(self, folder: Path) -> dict[str, Any]:
        self.model.copy(folder)
        return {}


def _filled(part: str, given: Mapping[str, str]) -> str:
    for mark, value in given.items():
        part = part.replace(mark, value)
    return part


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a supervisor, which ends its program first, and what is left of its process group."""
    if process.stdin is not None:
        process.stdin.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _last_error(printed: IO[bytes], source: str | None) -> str:
    """Name of the exception of Python that the last line printed begins with, if any, and where in ``source`` it arose.

    Nothing else of what was printed: neither of the two can hold a private value.
    """
    printed.seek(max(os.fstat(printed.fileno()).st_size - 65_536, 0))
    text = printed.read().decode("utf-8", "replace").strip()
    name = re.match(r"\w*", text.splitlines()[-1]) if text else None
    found = getattr(builtins, name[0], None) if name else None
    summary = found.__name__ if isinstance(found, type) and issubclass(found, BaseException) else ""
    lines = re.findall(rf'^  File "{re.escape(source)}", line (\d{{1,6}}),', text, re.MULTILINE) if source else []
    if source and lines and int(lines[-1]) <= _length(Path(source)):
        summary += f"{' ' if summary else ''}at {source}:{lines[-1]}"
    return f" ({summary})" if summary else ""


def _length(file: Path) -> int:
    return len(file.read_bytes().splitlines()) if file.is_file() else 0
