"""The privacy game of one record: training sets with and without it, and what a generator makes of them.

Meeus et al. 2023, section 2.3 and 5.5; ``bootstrap`` after Kuppa et al. 2021, section 4.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from time import process_time
from typing import Any

import numpy as np

from privacy_assets.compute.parallel import at_once, in_parallel, on_cluster, threads
from privacy_assets.generators.base import Generator
from privacy_assets.generators.shadow_fits import CodedGenerator, Draw
from privacy_assets.shadow.attacks import Attack
from privacy_assets.tables.coding import Coding

CODED_BLOCK = 512  # sets between two checkpoints where one takes milliseconds
FRAME_BLOCK = 8  # times the number of processes, where one takes up to minutes


@dataclass(frozen=True, eq=False)
class Game:
    """Shadow and test sets of the record ``target``, a column of ``cells`` (F, N).

    Set k has the target in when k is even. Its training rows come from ``auxiliary`` for the first ``shadows`` sets and
    from ``test`` for the ``tests`` after them: ids without the target and rows equal to it.
    """

    cells: np.ndarray
    coding: Coding
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
        """Bool (shadows + tests,): sets with the target."""
        return np.arange(self.shadows + self.tests) % 2 == 0

    def training_rows(self, number: int) -> tuple[np.ndarray, int]:
        """Rows int64 (size,) of set ``number``, in random order, and the seed for its generator.

        Without the target ``size`` rows are drawn, with it ``size`` - 1 and the target: without replacement, or, in a
        bootstrap, with it. Both are the same for the same seed, record and number.
        """
        key = (zlib.crc32(b"shadow game"), self.target, number)
        rng = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=key))
        pool = self.auxiliary if number < self.shadows else self.test
        rows = rng.choice(pool, self.size, replace=self.bootstrap)
        if number % 2 == 0:
            rows[rng.integers(self.size)] = self.target
        return rows, int(rng.integers(2**31))


def without(cells: np.ndarray, ids: np.ndarray, target: int) -> np.ndarray:
    """The ``ids`` of rows that differ from row ``target`` in some column; missing equals missing."""
    rows, wanted = cells[:, ids], cells[:, [target]]
    return ids[~((rows == wanted) | (np.isnan(rows) & np.isnan(wanted))).all(axis=0)]


def blocks(game: Game, generator: Generator, attack: Attack, first: int) -> Iterator[tuple[np.ndarray, float]]:
    """Features of the sets from ``first`` on, block by block, and the CPU seconds that other processes spent on them.

    On a cluster when one is in use. Else coded generators run in threads, all others in processes, since Python code
    holds the interpreter's lock. How many there are changes nothing but the blocks.
    """
    total, coded = game.shadows + game.tests, isinstance(generator, CodedGenerator)
    step = max(CODED_BLOCK if coded else 0, FRAME_BLOCK * at_once() if on_cluster() or not coded else 0)
    play = _Play(game, generator, attack)
    if coded and not on_cluster():
        _ = play.draw  # made ready once, before threads ask for it
    for start in range(first, total, step):
        numbers = range(start, min(start + step, total))
        found = in_parallel(play, numbers) if coded or on_cluster() else _in_processes(play, numbers)
        alone = (coded or threads() == 1) if not on_cluster() else len(numbers) < 2
        yield np.stack([features for features, _ in found]), 0.0 if alone else sum(seconds for _, seconds in found)


@dataclass(frozen=True, eq=False)
class _Play:
    """Plays one game: features of set ``number``, and the CPU seconds that this took where nothing else runs."""

    game: Game
    generator: Generator
    attack: Attack

    @cached_property
    def draw(self) -> Draw:
        """The coded generator, made ready once in each process."""
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
        start, (rows, seed) = process_time(), self.game.training_rows(number)
        features = self.attack.features(self.draw(rows, self.game.sample_size, seed), self.target)
        return features, process_time() - start

    def __getstate__(self) -> dict[str, object]:
        """Without what each process makes for itself."""
        return {"game": self.game, "generator": self.generator, "attack": self.attack}

    def job(self, number: int) -> tuple[Any, ...]:
        """What another process of this machine needs for one game of a generator that is not coded."""
        rows, seed = self.game.training_rows(number)
        cells, size = self.game.cells[:, rows], self.game.sample_size
        return self.generator, self.attack, self.game.coding, cells, self.target, size, seed


def _in_processes(play: _Play, numbers: range) -> list[tuple[np.ndarray, float]]:
    import joblib

    jobs = [joblib.delayed(_play)(*play.job(number)) for number in numbers]
    return list(joblib.Parallel(n_jobs=threads())(jobs))


def _play(
    generator: Generator, attack: Attack, coding: Coding, train: np.ndarray, target: np.ndarray, size: int, seed: int
) -> tuple[np.ndarray, float]:
    """Features of what ``generator`` makes of the cells ``train`` (F, n), and the CPU seconds that took."""
    start = process_time()
    states = np.random.SeedSequence(seed).generate_state(2, np.uint64) >> np.uint64(33)
    fitted = generator.fit(coding.table(train), seed=int(states[0]))
    made = coding.code(fitted.sample(size, seed=int(states[1])))
    return attack.features(made, target), process_time() - start
