"""Where an audit keeps what it has done, so that an interrupted one goes on. Its files are as private as the table."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from privacy_assets.errors import ConfigError, InputError
from privacy_assets.storage.files import private_folder, put_atomic
from privacy_assets.version import ENGINE_VERSION

_MARK = "audit.json"


class Checkpoint:
    """A folder of finished records and blocks of features, for one fingerprint; without a folder it keeps nothing.

    Every file appears whole or not at all, with mode 0600.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    @classmethod
    def open(cls, folder: Path | None, fingerprint: str) -> Checkpoint:
        """Begin in an empty or new folder, or go on in one of the same fingerprint; ConfigError for any other."""
        if folder is None:
            return cls(None)
        mark = {"engine": ENGINE_VERSION, "fingerprint": fingerprint}
        fix = "Fix: give an empty folder, or the same table, options and seed as before"
        if (folder / _MARK).exists():
            if _json(folder / _MARK) != mark:
                raise ConfigError(f"{folder}: the checkpoint belongs to another audit or version. {fix}.")
            return cls(folder)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(f"{folder}: not a checkpoint. {fix}.")
        private_folder(folder)
        put_atomic(folder / _MARK, json.dumps(mark).encode())
        return cls(folder)

    def part(self, name: str) -> Checkpoint:
        """A part of this checkpoint with records of its own."""
        return Checkpoint(None if self.folder is None else private_folder(self.folder / name))

    def get(self, name: str) -> Any:
        """What :meth:`put` kept under ``name``; None when there is nothing."""
        path = None if self.folder is None else self.folder / f"{name}.json"
        return _json(path) if path is not None and path.exists() else None

    def put(self, name: str, data: Mapping[str, Any]) -> None:
        """Keep a mapping that JSON can hold."""
        if self.folder is not None:
            put_atomic(self.folder / f"{name}.json", json.dumps(data).encode())

    def blocks(self, name: str) -> tuple[list[np.ndarray], float]:
        """Arrays kept under ``name`` that follow one another from 0 on, and the CPU seconds they took."""
        found: list[np.ndarray] = []
        seconds, start = 0.0, 0
        while self.folder is not None and (path := _block(self.folder, name, start)).exists():
            try:
                with np.load(path, allow_pickle=False) as stored:
                    found.append(stored["features"])
                    seconds += float(stored["seconds"])
            except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
                raise InputError("the checkpoint cannot be read", where=str(path), fix="delete this file") from None
            start += len(found[-1])
        return found, seconds

    def put_block(self, name: str, start: int, features: np.ndarray, seconds: float) -> None:
        """Keep the array that begins at ``start``."""

        def write(stream: BinaryIO) -> None:
            np.savez(stream, features=features, seconds=seconds)

        if self.folder is not None:
            put_atomic(_block(self.folder, name, start), write)

    def drop_blocks(self, name: str) -> None:
        """Forget the arrays kept under ``name``."""
        for path in [] if self.folder is None else self.folder.glob(f"{name}.*.npz"):
            path.unlink()


def _block(folder: Path, name: str, start: int) -> Path:
    return folder / f"{name}.{start}.npz"


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise InputError("the checkpoint cannot be read", where=str(path), fix="delete this file") from None
