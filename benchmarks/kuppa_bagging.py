"""Kuppa's bagging attack on one record, before and after the filter, with the shadow models."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.kuppa_worlds import PAPER, Screened, World, generator_of, kept
from privacy_assets.generators.base import Generator
from privacy_assets.metrics.vulnerability import most_exposed, vulnerability
from privacy_assets.studies.shadow_membership.attacks import build_attack
from privacy_assets.studies.shadow_membership.games import Game, blocks, without
from privacy_assets.tables.encoding import MatrixCoding
from privacy_assets.tables.table import Table

SHADOWS, TESTS, SIZE, RECORDS = 160, 100, 1_000, 3


def vulnerable(world: World, records: int) -> list[int]:
    """Return the positions in train of the records farthest from all others."""
    coding = MatrixCoding.fit([world.train], world.schema)
    scores = vulnerability(coding.code(world.train), coding)
    return most_exposed(scores, records, np.random.default_rng(0)).ids.tolist()


def attack_record(  # noqa: PLR0913
    world: World,
    record: int,
    label: str,
    synthetic: int,
    known: str,
    method: str,
    size: int,
    shadows: int,
    tests: int,
) -> float:
    """Return the accuracy on test sets of the attack learned on shadow sets; half of each contain
    the record.

    Shadow sets are bootstrap samples of ``size`` auxiliary rows of the attacker, test sets of the
    owner's train. The owner's filter ``method`` reads the holdout, the reference and the record;
    the attacker's reads equally many own rows, and the record.
    """
    target, half = world.train.take(np.array([record])), len(world.auxiliary) // 2
    table = Table.stack([world.train, world.auxiliary.take(slice(size))])
    coding = MatrixCoding.fit([table, world.unseen], world.schema)
    cells, rows = coding.code(table), len(world.train)
    auxiliary, test = (
        without(cells, ids, record) for ids in (np.arange(rows, len(table)), np.arange(rows))
    )
    game = Game(
        cells,
        coding,
        record,
        auxiliary,
        test,
        shadows,
        tests,
        size,
        synthetic,
        bootstrap=True,
        seed=record,
    )
    attack = build_attack("queries", coding, cells, {})

    def features(filtered: bool, unseen: Table, part: Game, first: int) -> np.ndarray:
        generator: Generator = kept(label) if label in PAPER else generator_of(label)
        if filtered:
            generator = Screened(generator, Table.stack([unseen, target]), method)
        return np.concatenate([block for block, _ in blocks(part, generator, attack, first)])

    others = world.auxiliary.take(slice(half, half + 2 * size // 3))
    learned = features(known == "known", others, replace(game, tests=0), 0)
    judged = features(known != "", world.unseen.take(slice(2 * size // 3)), game, shadows)
    scorer = attack.fit(learned, game.labels[:shadows], np.random.default_rng(record))
    return float(((scorer(judged) > 0.5) == game.labels[shadows:]).mean())
