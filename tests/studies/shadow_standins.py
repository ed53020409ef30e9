"""Generators whose leak is known, on coded cells, and a small audit of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from privacy_assets.generators.base import CodedGenerator
from privacy_assets.generators.copies import Copy
from privacy_assets.studies.shadow_membership.audit import AuditConfig, run_audit
from tests.metrics.coded_tables import coded, mixed


@dataclass(frozen=True)
class CopyCells(CodedGenerator, Copy):
    """Publishes its training rows."""

    name = "copy_cells"

    def drawer(self, cells, coding):
        def draw(rows, size, seed):
            places = np.random.default_rng(seed).permutation(max(size, len(rows)))[:size] % len(
                rows
            )
            return cells[:, rows[places]]

        return draw


@dataclass(frozen=True)
class Blind(CodedGenerator, Copy):
    """Ignores its training rows."""

    name = "blind"

    def drawer(self, cells, coding):
        def draw(rows, size, seed):
            return cells[:, np.random.default_rng(seed).integers(0, 40, size)]

        return draw


@dataclass(frozen=True)
class Shuffled(CodedGenerator, Copy):
    """Leaks a little: every column is shuffled independently."""

    name = "shuffled"

    def drawer(self, cells, coding):
        def draw(rows, size, seed):
            rng = np.random.default_rng(seed)
            return np.stack([column[rng.choice(rows, size)] for column in cells])

        return draw


def small_table(rows=240, seed=0):
    return coded(mixed(np.random.default_rng(seed), rows))


def small_audit(
    generator, *, seed=0, table=None, subjects=None, progress=None, checkpoint=None, **settings
):
    cells, coding = table or small_table()
    plan = AuditConfig(
        generator, **{"max_targets": 2, "shadows": 60, "tests": 20, "size": 40, **settings}
    )
    told = {} if progress is None else {"progress": progress}
    return run_audit(
        cells, coding, plan, seed=seed, subjects=subjects, checkpoint=checkpoint, **told
    )


def outcome(audit):
    """The results that must be the same for the same seed: all except the times."""

    def timeless(value):
        if isinstance(value, dict):
            return {key: timeless(item) for key, item in value.items() if key != "cpu_seconds"}
        return [timeless(item) for item in value] if isinstance(value, list) else value

    return timeless(audit.to_json())
