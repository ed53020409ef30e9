"""Any program as a generator: Parquet in, Parquet out, in a process group and an environment of its own."""

from __future__ import annotations

import builtins
import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from privacy_assets.engine.generators.base import (
    FittedGenerator,
    Generator,
    PrivacyBudget,
    Training,
    read_train,
    write_train,
)
from privacy_assets.engine.tables.schema import TableSchema, restore
from privacy_assets.errors import ConfigError, StepError

_PLACES = ("{train}", "{out}", "{rows}", "{seed}")
_PASSED = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ")


@dataclass(frozen=True)
class CommandGenerator(Generator):
    """A program of your own, started anew for every sample; no shell is involved.

    ``command`` is the list of its arguments, in which ``{train}`` and ``{out}`` stand for the Parquet files to read
    (the training table in the dtypes of the private table) and to write, ``{rows}`` and ``{seed}`` for numbers. That
    the same seed gives the same rows is up to it. It runs in the current folder with the rights of this process, and is
    ended with everything that it started when it takes longer than ``timeout`` seconds, or is done. Both files, and a
    ``TMPDIR`` for others, lie in a temporary folder that only this user can read and that is deleted afterwards.

    Of the environment it sees ``PATH``, ``HOME``, language, time zone, and the ``variables`` named here. What it prints
    may quote private values: it is in no message, and dropped, unless ``log`` names a file that it is appended to.
    """

    name = "command"
    summary = "A program of your own: a command that reads a Parquet file and writes the synthetic rows to another."
    repeatable = False

    command: Sequence[str]
    timeout: float = 3600.0
    variables: Sequence[str] = ()
    log: str | None = None

    def __post_init__(self) -> None:
        for setting in ("command", "variables"):
            value = getattr(self, setting)
            if isinstance(value, str) or not all(isinstance(part, str) for part in value):
                raise ConfigError(f"command: {setting} must be a list of texts.")
            object.__setattr__(self, setting, tuple(value))
        absent = [place for place in _PLACES if not any(place in part for part in self.command[1:])]
        if absent:
            raise ConfigError(f"command: {absent[0]} does not stand in the arguments of the command.")
        if isinstance(self.timeout, bool) or not isinstance(self.timeout, int | float) or not self.timeout > 0:
            raise ConfigError("command: timeout must be a positive number of seconds.")

    def _fit(self, train: pd.DataFrame, schema: TableSchema, training: Training) -> FittedGenerator:
        return FittedCommand(self, schema, train.copy())

    @classmethod
    def load(cls, folder: Path, manifest: Mapping[str, Any]) -> FittedGenerator:
        """See :meth:`Generator.load`."""
        schema = TableSchema.from_json(manifest["schema"])
        return FittedCommand(cls(**manifest["settings"]), schema, read_train(folder, schema))


class FittedCommand(FittedGenerator):
    """The command and its training table; what it learns it learns anew for each sample."""

    generator: CommandGenerator
    privacy = PrivacyBudget(known=False)

    def __init__(self, generator: CommandGenerator, schema: TableSchema, train: pd.DataFrame) -> None:
        self.generator, self.schema, self.train = generator, schema, train

    def _sample(self, rows: int, seed: int) -> pd.DataFrame:
        with TemporaryDirectory(prefix="privacy-assets-") as place:  # for this user only
            folder = Path(place)
            (folder / "tmp").mkdir()
            train, out = folder / "train.parquet", folder / "out.parquet"
            pq.write_table(pa.Table.from_pandas(restore(self.train, self.schema), preserve_index=False), train)
            given = dict(zip(_PLACES, (str(train), str(out), str(rows), str(seed)), strict=True))
            with (folder / "log").open("w+b") as printed:
                try:
                    self._run([_filled(part, given) for part in self.generator.command], folder / "tmp", printed)
                finally:
                    self._keep(printed)
            return self._read(out)

    def _run(self, arguments: list[str], temporary: Path, printed: IO[bytes]) -> None:
        try:
            process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                env=self._environment(temporary),
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise self._failed(f"could not be started ({type(error).__name__})") from None
        try:
            status = process.wait(self.generator.timeout)
        except subprocess.TimeoutExpired:
            raise self._failed(f"took longer than {self.generator.timeout:g} seconds") from None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if status != 0:
            ended = f"ended with exit status {status}" if status > 0 else f"was ended by signal {-status}"
            raise self._failed(ended + _last_error(printed))

    def _environment(self, temporary: Path) -> dict[str, str]:
        absent = [name for name in self.generator.variables if name not in os.environ]
        if absent:
            raise self._failed(f"needs the environment variable {absent[0]}, which is not set")
        passed = {name: os.environ[name] for name in (*_PASSED, *self.generator.variables) if name in os.environ}
        return {**passed, "TMPDIR": str(temporary)}

    def _keep(self, printed: IO[bytes]) -> None:
        if self.generator.log is None:
            return
        printed.seek(0)
        target = os.open(self.generator.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(target, "wb") as log:
            while block := printed.read(1 << 20):
                log.write(block)

    def _read(self, out: Path) -> pd.DataFrame:
        if not out.is_file():
            raise self._failed("wrote no file to {out}")
        try:
            return pq.ParquetFile(out).read().to_pandas()
        except (OSError, ValueError, pa.ArrowException) as error:
            kind = type(error).__name__
        raise self._failed(f"wrote no Parquet file that can be read ({kind})")  # outside: its own message is not ours

    def _save(self, folder: Path) -> dict[str, Any]:
        write_train(self.train, folder)
        return {}

    def _failed(self, what: str) -> StepError:
        hint = "Fix: run it by hand; what it prints is in no message, because it can quote private values"
        return StepError(f"generator command: {Path(self.generator.command[0]).name} {what}. {hint} (setting log).")


def _filled(part: str, given: Mapping[str, str]) -> str:
    for place, value in given.items():
        part = part.replace(place, value)
    return part


def _last_error(printed: IO[bytes]) -> str:
    """Name of the exception of Python that the last line printed begins with, if any: a name cannot be private."""
    printed.seek(max(os.fstat(printed.fileno()).st_size - 65_536, 0))
    lines = printed.read().decode("utf-8", "replace").strip().splitlines()
    name = re.match(r"\w*", lines[-1] if lines else "")
    found = getattr(builtins, name[0], None) if name else None
    return f" ({found.__name__})" if isinstance(found, type) and issubclass(found, BaseException) else ""
