"""Shadow-model audits: can an outsider who knows the generator tell that a record was in its training table?"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

import numpy as np

from privacy_assets.compute.progress import Progress, advance, silent
from privacy_assets.errors import ConfigError, InputError
from privacy_assets.shadow.attacks import Attack, build_attack
from privacy_assets.shadow.checkpoint import Checkpoint
from privacy_assets.shadow.games import Game, blocks, without
from privacy_assets.shadow.plan import Audit, AuditPlan, RecordAudit, Removal
from privacy_assets.shadow.rates import auc, choose_cut, epsilon_bound, tpr_at
from privacy_assets.shadow.selection import most_exposed, select_records
from privacy_assets.shadow.vulnerability import vulnerability
from privacy_assets.stats.intervals import CONFIDENCE
from privacy_assets.tables.coding import Coding
from privacy_assets.tables.fingerprints import cells_fingerprint

__all__ = ["Audit", "AuditPlan", "RecordAudit", "Removal", "run_audit"]

LOW_FPR = (0.01, 0.05, 0.1)
_WHERE, _FEWER = "the audited table", "use smaller training sets or parts, or give more rows"


def run_audit(
    cells: np.ndarray,
    coding: Coding,
    plan: AuditPlan,
    *,
    seed: int,
    subjects: np.ndarray | None = None,
    progress: Progress = silent,
    checkpoint: Path | None = None,
) -> Audit:
    """Attack records of the coded table ``cells`` (F, N) by shadow models (Meeus et al. 2023, section 5).

    With ``subjects``, int64 codes (N,), no other row of the record's person stands in any training set of its game, nor
    counts among its neighbours, and the most vulnerable records are those of different people.

    The same seed gives the same result but for ``cpu_seconds``, on any number of threads. With a folder ``checkpoint``
    every finished record and block of sets is kept there, mode 0600: it holds counts from the private table. A further
    call with the same arguments goes on. It judges the generator on tables of ``plan.size`` rows, not one release.
    Raises ConfigError for settings and checkpoints that do not fit, InputError for too few rows.
    """
    if seed < 0:
        raise ConfigError(f"seed {seed}: the seed must be at least 0.")
    people = None if subjects is None else np.asarray(subjects, dtype=np.int64)
    if people is not None and people.shape != cells.shape[1:]:
        raise InputError(f"{len(people)} subject codes for {cells.shape[1]} rows", where=_WHERE)
    listed = None if people is None else people.tolist()
    mark = cells_fingerprint(cells, plan.to_json(), coding.schema.to_json(), coding.values, seed, listed)
    run = _Run(cells, coding, plan, seed, people, build_attack(plan.attack, coding, cells, plan.attack_settings))
    run.check()
    kept = Checkpoint.open(checkpoint, mark)
    chosen = kept.get("selection")
    if chosen is None:
        progress("looking for the records to attack")
        chosen = run.select()
        kept.put("selection", chosen)
    parts = {name: [_Record(*record) for record in part] for name, part in chosen["parts"].items()}
    removed = tuple(chosen["removed"])
    count = _Count(progress, (plan.shadows + plan.tests) * sum(map(len, parts.values())))
    found = {
        name: run.attack_all(part, removed if name == "after" else (), kept.part(name), count)
        for name, part in parts.items()
    }
    removal = Removal(removed, found["before"], found["after"]) if plan.remove else None
    spent = chosen["seconds"] + sum(record.cpu_seconds for records in found.values() for record in records)
    return Audit(plan, seed, found["records"], _epsilon_of_all(found["records"]), removal, spent)


class _Record(NamedTuple):
    """A record to attack."""

    id: int
    selected_by: float
    vulnerability: float


@dataclass(frozen=True, eq=False)
class _Run:
    """An audit under way."""

    cells: np.ndarray
    coding: Coding
    plan: AuditPlan
    seed: int
    people: np.ndarray | None
    attack: Attack

    def rng(self, purpose: str, *key: int) -> np.random.Generator:
        """Generator for one purpose, and one record."""
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(zlib.crc32(purpose.encode()), *key)))

    @cached_property
    def pools(self) -> tuple[np.ndarray, np.ndarray]:
        """Ids of D_aux and of D_test, disjoint and the same for all records."""
        rows = self.cells.shape[1]
        order = self.rng("shadow parts").permutation(rows)
        first = self.plan.auxiliary_rows or math.floor(self.plan.auxiliary * rows + 1e-9)
        return order[:first], order[first : first + (self.plan.test_rows or rows)]

    def check(self) -> None:
        """InputError or ConfigError where the plan does not fit the table."""
        rows, plan = self.cells.shape[1], self.plan
        if (plan.auxiliary_rows or 0) + (plan.test_rows or 0) > rows:
            raise InputError(f"auxiliary_rows and test_rows are more than its {rows} rows", where=_WHERE, fix=_FEWER)
        for row in plan.ids or ():
            if not 0 <= row < rows:
                raise ConfigError(f"audit: there is no row {row}; the table has {rows}, the first is 0.")
        if plan.remove and plan.remove + 2 > rows:
            raise ConfigError(f"audit: {plan.remove} of {rows} rows cannot be removed.")
        self.check_pools(*self.pools)

    def check_pools(self, auxiliary: np.ndarray, test: np.ndarray) -> None:
        """InputError where a part is too small to draw training sets from."""
        least = 1 if self.plan.sampling == "bootstrap" else self.plan.size
        for name, pool in (("auxiliary", auxiliary), ("test", test)):
            if len(pool) < least:
                problem = f"the {name} part has {len(pool)} rows to draw from, and training sets {self.plan.size}"
                raise InputError(problem, where=_WHERE, fix=_FEWER)

    def select(self) -> dict[str, Any]:
        """Records by part, the ids to remove, and the CPU seconds that this took: a mapping that JSON can hold."""
        start, everyone = process_time(), np.arange(self.cells.shape[1])
        vulnerable = self.vulnerability(everyone)
        parts, removed = {"records": self.part(everyone, vulnerable, self.plan.ids)}, everyone[:0]
        if self.plan.remove:
            removed, parts["before"], parts["after"] = self.removal(vulnerable)
        return {"parts": parts, "removed": removed.tolist(), "seconds": process_time() - start}

    def removal(self, vulnerable: np.ndarray) -> tuple[np.ndarray, list[_Record], list[_Record]]:
        """The ids to remove, and the records to attack with and without them in the table."""
        everyone = np.arange(self.cells.shape[1])
        removed = most_exposed(vulnerable, self.plan.remove, self.rng("shadow removal"), self.people).ids
        if self.people is not None:  # a person leaves with all of their rows
            removed = np.flatnonzero(np.isin(self.people, self.people[removed]))
        rest = np.setdiff1d(everyone, removed)
        if len(rest) < 2:
            raise InputError("nobody is left after the removal", where=_WHERE, fix="remove fewer people")
        after = self.part(rest, self.vulnerability(rest), None)
        before = [record._replace(vulnerability=float(vulnerable[record.id])) for record in after]
        return removed, before, after

    def vulnerability(self, rows: np.ndarray) -> np.ndarray:
        """V_k of these rows among themselves."""
        plan, people = self.plan, None if self.people is None else self.people[rows]
        return vulnerability(
            self.cells[:, rows], self.coding, neighbours=plan.neighbours, distance=plan.distance, subjects=people
        )

    def part(self, rows: np.ndarray, vulnerable: np.ndarray, given: Sequence[int] | None) -> list[_Record]:
        """The records ``given``, or those that the plan selects of ``rows``, whose vulnerability is known."""
        if given is not None:
            return [_Record(row, math.nan, float(vulnerable[row])) for row in given]
        plan, people = self.plan, None if self.people is None else self.people[rows]
        found = select_records(
            self.cells[:, rows], self.coding, vulnerable,
            by=plan.select, records=plan.records, people=people, rng=self.rng("shadow selection"),
        )  # fmt: skip
        if not len(found.ids):
            raise InputError(f"no row is selected by {plan.select}", where=_WHERE, fix="select by distance")
        chosen = zip(rows[found.ids].tolist(), found.scores.tolist(), vulnerable[found.ids].tolist(), strict=True)
        return [_Record(*record) for record in chosen]

    def attack_all(
        self, records: Sequence[_Record], removed: Sequence[int], kept: Checkpoint, count: _Count
    ) -> tuple[RecordAudit, ...]:
        """Attack the records of a part; those that the checkpoint holds are read from there."""
        done = []
        for record in records:
            name = str(record.id)
            stored = kept.get(name)
            if stored is None:
                audited = self.attack_one(record, self.game(record.id, removed), kept, count)
                kept.put(name, audited.to_json())
                kept.drop_blocks(name)
            else:
                count.skip(self.plan.shadows + self.plan.tests)
                audited = RecordAudit.from_json(stored)
            done.append(audited)
        return tuple(done)

    def game(self, record: int, removed: Sequence[int]) -> Game:
        """The game of one record, with some rows left out of the table."""
        plan = self.plan
        own = removed if self.people is None else [*removed, *np.flatnonzero(self.people == self.people[record])]
        auxiliary, test = (without(self.cells, np.setdiff1d(pool, own), record) for pool in self.pools)
        self.check_pools(auxiliary, test)
        size, bootstrap = plan.sample_size or plan.size, plan.sampling == "bootstrap"
        return Game(
            self.cells, self.coding, record, auxiliary, test, plan.shadows, plan.tests, plan.size, size, bootstrap,
            self.seed,
        )  # fmt: skip

    def attack_one(self, record: _Record, game: Game, kept: Checkpoint, count: _Count) -> RecordAudit:
        """Play the game of one record and judge the attack."""
        name, start = str(record.id), process_time()
        features, seconds = kept.blocks(name)
        count.skip(sum(map(len, features)))
        begun = process_time()
        for block, elsewhere in blocks(game, self.plan.generator, self.attack, sum(map(len, features))):
            kept.put_block(name, sum(map(len, features)), block, process_time() - begun + elsewhere)
            features.append(block)
            seconds, begun = seconds + elsewhere, process_time()
            count.did(len(block))
        stacked, labels = np.concatenate(features), game.labels
        learned, judged = slice(game.shadows), slice(game.shadows, None)
        rng = self.rng("shadow attack", record.id)
        scorer = self.attack.fit(stacked[learned], labels[learned], rng, count.progress)
        scores, truth = np.asarray(scorer(stacked[judged]), dtype=np.float64), labels[judged]
        return RecordAudit(
            record.id,
            record.vulnerability,
            record.selected_by,
            auc(scores, truth),
            {fpr: tpr_at(scores, truth, fpr) for fpr in LOW_FPR},
            epsilon_bound(scores, truth, choose_cut(scorer.unseen, labels[learned], game.tests)),
            truth,
            scores,
            process_time() - start + seconds,
        )


class _Count:
    """The tables of an audit that this call has made, of those that it has to make."""

    work = "audit: shadow and test tables"

    def __init__(self, progress: Progress, total: int) -> None:
        self.progress, self.done, self.total = progress, 0, total

    def skip(self, tables: int) -> None:
        """Some tables came from the checkpoint."""
        self.total -= tables
        if self.done == self.total:
            advance(self.progress, self.work, None)

    def did(self, tables: int) -> None:
        """Some tables were made."""
        self.done += tables
        advance(self.progress, self.work, self.done, self.total)


def _epsilon_of_all(records: Sequence[RecordAudit]) -> float:
    """The largest epsilon bound over the records, at 95 % for all together."""
    confidence = 1 - (1 - CONFIDENCE) / len(records)
    bounds = [epsilon_bound(r.scores, r.labels, r.epsilon.cut, confidence).value for r in records]
    return max(bounds)
