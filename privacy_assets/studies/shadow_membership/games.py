"""The privacy game of one record: training sets with and without it, and tables generated from
them.

Meeus et al. 2023, sections 2.3 and 5.5; ``bootstrap`` from Kuppa et al. 2021, section 4.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from time import process_time
from typing import Any, BinaryIO

import numpy as np

from privacy_assets.errors import ConfigError, InputError
from privacy_assets.generators.base import CodedGenerator, Draw, Generator
from privacy_assets.infra.files import private_folder, put_atomic
from privacy_assets.infra.parallel import at_once, in_parallel, on_cluster, threads
from privacy_assets.studies.shadow_membership.attacks import Attack
from privacy_assets.tables.encoding import MatrixCoding
from privacy_assets.version import PACKAGE_VERSION

CODED_BLOCK = 512  # sets between checkpoints for generators that take milliseconds
FRAME_BLOCK = 8  # sets between checkpoints, per process, for generators that take up to minutes


@dataclass(frozen=True, eq=False)
class Game:
    """Shadow and test sets of the record ``target``, a column of ``cells`` (F, N).

    Sets with even numbers contain the target. Training rows come from ``auxiliary`` for the first
    ``shadows`` sets and from ``test`` for the following ``tests`` sets. Neither contains the target
    or rows equal to it.
    """

    cells: np.ndarray
    coding: MatrixCoding
    target: int
    auxiliary: np.ndarray
    test: np.ndarray
    shadows: int
    tests: int
    size: int
    sample_size: int
    bootstrap: bool
    seed: int

    @property
    def labels(self) -> np.ndarray:
        """True for sets with the target, shape (shadows + tests,)."""
        return np.arange(self.shadows + self.tests) % 2 == 0

    def training_rows(self, number: int) -> tuple[np.ndarray, int]:
        """Draw the rows of set ``number``, int64 (size,), in random order, and the seed of its
        generator.

        Draws ``size`` rows, or ``size`` - 1 and the target, without replacement (bootstrap: with
        replacement). The result depends only on seed, record and number.
        """
        key = (zlib.crc32(b"shadow game"), self.target, number)
        rng = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=key))
        pool = self.auxiliary if number < self.shadows else self.test
        rows = rng.choice(pool, self.size, replace=self.bootstrap)
        if number % 2 == 0:
            rows[rng.integers(self.size)] = self.target
        return rows, int(rng.integers(2**31))


def without(cells: np.ndarray, ids: np.ndarray, target: int) -> np.ndarray:
    """Select the rows that differ from the target; missing equals missing.

    Args:
        cells: Coded table, shape (F, N).
        ids: Rows to select from, int64 (n,).
        target: Row of the target.

    Returns:
        The selected ones of ``ids``.
    """
    rows = cells[:, ids]
    target_cells = cells[:, [target]]
    both_missing = np.isnan(rows) & np.isnan(target_cells)
    is_equal = ((rows == target_cells) | both_missing).all(axis=0)
    return ids[~is_equal]


def blocks(
    game: Game, generator: Generator, attack: Attack, first: int
) -> Iterator[tuple[np.ndarray, float]]:
    """Yield the features of the sets from ``first``, in blocks, and the CPU seconds used by other
    processes.

    Runs on the cluster if one is in use. Otherwise coded generators run in threads, and others in
    processes because Python code holds the interpreter lock. The number of workers affects only the
    block size.

    Args:
        game: The game.
        generator: Generator under audit.
        attack: Attack that computes the features.
        first: Number of the first set.
    """
    n_sets = game.shadows + game.tests
    is_coded = isinstance(generator, CodedGenerator)
    clustered = on_cluster()
    block_size = 0
    if is_coded:
        block_size = CODED_BLOCK
    if clustered or not is_coded:
        block_size = max(block_size, FRAME_BLOCK * at_once())
    play = _Play(game, generator, attack)
    if is_coded and not clustered:
        _ = play.draw  # created once, before threads access it
    for start in range(first, n_sets, block_size):
        numbers = range(start, min(start + block_size, n_sets))
        if is_coded or clustered:
            results = in_parallel(play, numbers)
        else:
            results = _in_processes(play, numbers)
        if clustered:
            in_this_process = len(numbers) < 2
        else:
            in_this_process = is_coded or threads() == 1
        seconds = 0.0
        if not in_this_process:
            seconds = sum(seconds for _, seconds in results)
        yield np.stack([features for features, _ in results]), seconds


@dataclass(frozen=True, eq=False)
class _Play:
    """Play one game: return the features of set ``number`` and the CPU seconds (exact if run alone
    in its process).
    """

    game: Game
    generator: Generator
    attack: Attack

    @cached_property
    def draw(self) -> Draw:
        """The prepared coded generator, created once per process."""
        if not isinstance(self.generator, CodedGenerator):
            raise TypeError(f"{type(self.generator).__name__} does not work on codes.")
        return self.generator.drawer(self.game.cells, self.game.coding)

    @cached_property
    def target(self) -> np.ndarray:
        """Cells of the record."""
        return np.ascontiguousarray(self.game.cells[:, self.game.target])

    def __call__(self, number: int) -> tuple[np.ndarray, float]:
        if not isinstance(self.generator, CodedGenerator):
            return _play(*self.job(number))
        start = process_time()
        rows, seed = self.game.training_rows(number)
        synthetic = self.draw(rows, self.game.sample_size, seed)
        features = self.attack.features(synthetic, self.target)
        return features, process_time() - start

    def __getstate__(self) -> dict[str, object]:
        """Exclude attributes that each process creates itself."""
        return {"game": self.game, "generator": self.generator, "attack": self.attack}

    def job(self, number: int) -> tuple[Any, ...]:
        """Return the arguments of :func:`_play` for a generator that does not work on codes."""
        rows, seed = self.game.training_rows(number)
        cells = self.game.cells[:, rows]
        size = self.game.sample_size
        return self.generator, self.attack, self.game.coding, cells, self.target, size, seed


def _in_processes(play: _Play, numbers: range) -> list[tuple[np.ndarray, float]]:
    import joblib

    jobs = [joblib.delayed(_play)(*play.job(number)) for number in numbers]
    return list(joblib.Parallel(n_jobs=threads())(jobs))


def _play(
    generator: Generator,
    attack: Attack,
    coding: MatrixCoding,
    train: np.ndarray,
    target: np.ndarray,
    size: int,
    seed: int,
) -> tuple[np.ndarray, float]:
    """Generate a table from the cells ``train`` (F, n), and return its features and the CPU
    seconds.
    """
    start = process_time()
    states = np.random.SeedSequence(seed).generate_state(2, np.uint64) >> np.uint64(33)
    fitted = generator.fit(coding.table(train), seed=int(states[0]))
    synthetic = coding.code(fitted.sample(size, seed=int(states[1])))
    return attack.features(synthetic, target), process_time() - start


_MARK = "audit.json"


class Checkpoint:
    """A folder of finished records and feature blocks for one fingerprint; without a folder it
    stores none.

    Files are written atomically, with mode 0600.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    @classmethod
    def open(cls, folder: Path | None, fingerprint: str) -> Checkpoint:
        """Open an empty or new folder, or one with the same fingerprint. Raises ConfigError for any
        other folder.
        """
        if folder is None:
            return cls(None)
        mark = {"package_version": PACKAGE_VERSION, "fingerprint": fingerprint}
        fix = "Fix: give an empty folder, or the same table, options and seed as before"
        if (folder / _MARK).exists():
            if _json(folder / _MARK) != mark:
                raise ConfigError(
                    f"{folder}: the checkpoint belongs to another audit or version. {fix}."
                )
            return cls(folder)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(f"{folder}: not a checkpoint. {fix}.")
        private_folder(folder)
        put_atomic(folder / _MARK, json.dumps(mark).encode())
        return cls(folder)

    def part(self, name: str) -> Checkpoint:
        """Return a subfolder of this checkpoint."""
        if self.folder is None:
            return Checkpoint(None)
        return Checkpoint(private_folder(self.folder / name))

    def get(self, name: str) -> Any:
        """Return the value stored by :meth:`put`, or None."""
        if self.folder is None:
            return None
        path = self.folder / f"{name}.json"
        if not path.exists():
            return None
        return _json(path)

    def put(self, name: str, data: Mapping[str, Any]) -> None:
        """Store a JSON-compatible mapping."""
        if self.folder is not None:
            put_atomic(self.folder / f"{name}.json", json.dumps(data).encode())

    def blocks(self, name: str) -> tuple[list[np.ndarray], float]:
        """Return the stored blocks of ``name`` up to the first gap, and their total CPU seconds.

        Raises:
            InputError: If a block cannot be read.
        """
        features: list[np.ndarray] = []
        seconds = 0.0
        if self.folder is None:
            return features, seconds
        start = 0
        path = _block(self.folder, name, start)
        while path.exists():
            try:
                with np.load(path, allow_pickle=False) as stored:
                    features.append(stored["features"])
                    seconds += float(stored["seconds"])
            except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
                raise InputError(
                    "the checkpoint cannot be read", where=str(path), fix="delete this file"
                ) from None
            start += len(features[-1])
            path = _block(self.folder, name, start)
        return features, seconds

    def put_block(self, name: str, start: int, features: np.ndarray, seconds: float) -> None:
        """Store a block.

        Args:
            name: Name of the record.
            start: Number of the block's first set.
            features: Features of the block.
            seconds: CPU seconds that it took.
        """

        def write(stream: BinaryIO) -> None:
            np.savez(stream, features=features, seconds=seconds)

        if self.folder is not None:
            put_atomic(_block(self.folder, name, start), write)

    def drop_blocks(self, name: str) -> None:
        """Delete the blocks stored under ``name``."""
        if self.folder is None:
            return
        for path in self.folder.glob(f"{name}.*.npz"):
            path.unlink()


def _block(folder: Path, name: str, start: int) -> Path:
    return folder / f"{name}.{start}.npz"


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise InputError(
            "the checkpoint cannot be read", where=str(path), fix="delete this file"
        ) from None
