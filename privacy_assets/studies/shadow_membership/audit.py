"""Shadow-model audits: infer membership of a record in the training table, given the generator."""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from time import process_time
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import AfterValidator, Field

from privacy_assets.errors import ConfigError, InputError, seed_of
from privacy_assets.infra.host import isolated
from privacy_assets.infra.progress import Progress, advance, silent
from privacy_assets.infra.settings import Dict, InvalidSetting, Tuple, declared
from privacy_assets.metrics.vulnerability import (
    Distance,
    Selector,
    most_exposed,
    select_records,
    vulnerability,
)
from privacy_assets.stats.estimates import to_jsonable
from privacy_assets.stats.intervals import CONFIDENCE
from privacy_assets.studies.shadow_membership.attacks import Attack, attack_settings, build_attack
from privacy_assets.studies.shadow_membership.games import Checkpoint, Game, blocks, without
from privacy_assets.studies.shadow_membership.rates import (
    Cut,
    EpsilonBound,
    Rate,
    auc,
    choose_cut,
    epsilon_bound,
    tpr_at,
)
from privacy_assets.tables.encoding import MatrixCoding
from privacy_assets.tables.fingerprints import cells_fingerprint

Sampling = Literal["subsample", "bootstrap"]
AttackName = Literal["queries", "attention"]
Even = Annotated[int, Field(ge=4, multiple_of=2)]


def _different(ids: tuple[int, ...] | None) -> tuple[int, ...] | None:
    if ids is not None and (not ids or len(set(ids)) < len(ids)):
        raise InvalidSetting("must be one or more distinct rows")
    return ids


@declared
class AuditConfig:
    """Configuration of an audit: records, generator and attack. Defaults follow Meeus et al. 2023.

    Attributes:
        generator: Generator under audit.
        max_targets: Maximum number of attacked records.
        select: Method of selecting records; see :func:`.select_records`.
        n_neighbors: Number of neighbors in the vulnerability score.
        distance: Distance of the vulnerability score.
        ids: Row positions to attack instead of selected records.
        shadows: Number of shadow sets, which train the attack; half contain the record.
        tests: Number of test sets, which evaluate the attack; half contain the record.
        size: Rows of each training set.
        sample_size: Rows to generate. None: ``size``.
        auxiliary: Share of the table used for shadow sets.
        auxiliary_rows: Number of rows used for shadow sets. None: from ``auxiliary``.
        test_rows: Number of rows used for test sets, disjoint from the former. None: all others.
        attack: Name of the attack.
        attack_settings: Settings of the attack.
        sampling: "subsample": draw training rows without replacement. "bootstrap": with
            replacement.
        remove: Number of most vulnerable rows (with all rows of their subjects) to remove from the
            table. The most vulnerable of the remaining rows are then attacked with and without
            them. 0: none.
    """

    part: ClassVar[str] = "audit"

    generator: Any = Field(title="a generator")
    max_targets: int = Field(default=10, ge=1)
    select: Selector = "distance"
    n_neighbors: int = Field(default=5, ge=1)
    distance: Distance = "cosine"
    ids: Annotated[tuple[int, ...] | None, Tuple, AfterValidator(_different)] = None
    shadows: Even = 4000
    tests: Even = 200
    size: int = Field(default=1000, ge=2)
    sample_size: int | None = Field(default=None, ge=1)
    auxiliary: float = Field(default=2 / 3, gt=0, lt=1)
    auxiliary_rows: int | None = Field(default=None, ge=2)
    test_rows: int | None = Field(default=None, ge=2)
    attack: AttackName = "queries"
    attack_settings: Annotated[dict[str, Any], Dict] = Field(default_factory=dict)
    sampling: Sampling = "subsample"
    remove: int = Field(default=0, ge=0)

    def __post_init__(self) -> None:
        attack_settings(self.attack, self.attack_settings)

    def to_json(self) -> dict[str, Any]:
        """Return all settings as a plain mapping; the generator by name and settings."""
        settings = {key: value for key, value in self.__dict__.items() if key != "generator"}
        generator = {
            "generator": self.generator.name,
            "generator_settings": self.generator.settings(),
        }
        mapping: dict[str, Any] = to_jsonable({**generator, **settings})
        return mapping


@dataclass(frozen=True, eq=False)
class RecordAudit:
    """Result of the attack on one record.

    Intervals have 95 % confidence for this record alone.

    Attributes:
        id: Row position.
        vulnerability: V_k, for any selection.
        selected_by: Score of the selector. NaN: given by ``ids``.
        auc: AUC on the test sets.
        tpr: True positive rate by FPR.
        epsilon: Lower bound of epsilon.
        labels: True for test sets with the record, shape (t,).
        scores: Scores of the test sets, shape (t,).
        cpu_seconds: CPU time of all processes.
    """

    id: int
    vulnerability: float
    selected_by: float
    auc: Rate
    tpr: Mapping[float, Rate]
    epsilon: EpsilonBound
    labels: np.ndarray
    scores: np.ndarray
    cpu_seconds: float

    @property
    def epsilon_lower_bound(self) -> float:
        """Lower bound of epsilon for any privacy guarantee of the generator for this record."""
        return self.epsilon.value

    def to_json(self) -> dict[str, Any]:
        """Return a mapping that :meth:`from_json` reads."""
        return {
            "id": self.id,
            "vulnerability": to_jsonable(self.vulnerability),
            "selected_by": to_jsonable(self.selected_by),
            "auc": self.auc.to_json(),
            "epsilon_lower_bound": self.epsilon.value,
            "tpr": [{"fpr": fpr, **rate.to_json()} for fpr, rate in self.tpr.items()],
            "epsilon": self.epsilon.to_json(),
            "labels": self.labels.astype(int).tolist(),
            "scores": self.scores.tolist(),
            "cpu_seconds": self.cpu_seconds,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RecordAudit:
        """Create a result from the output of :meth:`to_json`."""
        cut = data["epsilon"]["cut"]
        if cut:
            cut = Cut(**cut)
        return cls(
            id=data["id"],
            vulnerability=_number(data["vulnerability"]),
            selected_by=_number(data["selected_by"]),
            auc=_rate(data["auc"]),
            tpr={rate["fpr"]: _rate(rate) for rate in data["tpr"]},
            epsilon=EpsilonBound(**{**data["epsilon"], "cut": cut or None}),
            labels=np.array(data["labels"], dtype=bool),
            scores=np.array(data["scores"], dtype=np.float64),
            cpu_seconds=data["cpu_seconds"],
        )


@dataclass(frozen=True, eq=False)
class Removal:
    """Effect of removing the most vulnerable records on the vulnerability of others.

    Attributes:
        removed: Ids of the removed rows.
        before: Attacks on the most vulnerable remaining rows with the removed rows in the table.
        after: Attacks on the same rows without the removed rows.
    """

    removed: tuple[int, ...]
    before: tuple[RecordAudit, ...]
    after: tuple[RecordAudit, ...]

    def to_json(self) -> dict[str, Any]:
        """Return a plain mapping."""
        return {
            "removed": list(self.removed),
            "auc_before": summary(self.before),
            "auc_after": summary(self.after),
            "before": [record.to_json() for record in self.before],
            "after": [record.to_json() for record in self.after],
        }


@dataclass(frozen=True, eq=False)
class Audit:
    """Result of an audit.

    Attributes:
        plan: Configuration.
        seed: Seed.
        records: Results in the order of selection.
        epsilon_lower_bound: Largest bound over the records, at a joint confidence of 95 %
            (Bonferroni).
        removal: Effect of the removal, or None.
        cpu_seconds: CPU time of all processes, including earlier runs with the same checkpoint.
    """

    plan: AuditConfig
    seed: int
    records: tuple[RecordAudit, ...]
    epsilon_lower_bound: float
    removal: Removal | None
    cpu_seconds: float

    @property
    def auc(self) -> dict[str, float]:
        """Mean and standard deviation of the AUC over the records; see :func:`summary`."""
        return summary(self.records)

    def to_json(self) -> dict[str, Any]:
        """Return a plain mapping; NaN becomes None."""
        removal = None
        if self.removal is not None:
            removal = to_jsonable(self.removal.to_json())
        return {
            "records": [record.to_json() for record in self.records],
            "auc": to_jsonable(self.auc),
            "epsilon_lower_bound": self.epsilon_lower_bound,
            "removal": removal,
            "plan": self.plan.to_json(),
            "seed": self.seed,
            "cpu_seconds": self.cpu_seconds,
        }


def summary(records: Sequence[RecordAudit]) -> dict[str, float]:
    """Summarize the AUC over records: ``mean``, ``sd`` (n - 1), and Student's 95 % interval
    ``low``, ``high``.

    The interval applies to records selected in the same way. For a single record it is NaN, as is
    ``sd``.
    """
    from scipy import stats

    values = np.array([record.auc.value for record in records])
    mean = float(values.mean())
    n = len(values)
    if n < 2:
        return {"mean": mean, "sd": math.nan, "low": math.nan, "high": math.nan}
    sd = float(values.std(ddof=1))
    half_width = float(stats.t.ppf(0.975, n - 1)) * sd / math.sqrt(n)
    low = max(mean - half_width, 0.0)
    high = min(mean + half_width, 1.0)
    return {"mean": mean, "sd": sd, "low": low, "high": high}


def _rate(data: Mapping[str, Any]) -> Rate:
    return Rate(
        value=_number(data["value"]),
        low=_number(data["low"]),
        high=_number(data["high"]),
        note=data.get("note", ""),
    )


def _number(value: float | None) -> float:
    if value is None:
        return math.nan
    return value


__all__ = ["Audit", "AuditConfig", "RecordAudit", "Removal", "run_audit"]

LOW_FPR = (0.01, 0.05, 0.1)
_WHERE = "the audited table"
_FEWER = "use smaller training sets or parts, or give more rows"


@isolated()
def run_audit(
    cells: np.ndarray,
    coding: MatrixCoding,
    plan: AuditConfig,
    *,
    seed: int | None,
    subjects: np.ndarray | None = None,
    progress: Progress = silent,
    checkpoint: Path | None = None,
) -> Audit:
    """Attack records of a coded table by shadow models (Meeus et al. 2023, section 5).

    The audit evaluates the generator on training sets of ``plan.size`` rows, not a particular
    release. The same seed gives the same result, except ``cpu_seconds``, for any number of threads.

    Args:
        cells: Coded table, shape (F, N).
        coding: Its coding.
        plan: Configuration.
        seed: Non-negative seed. None: one is drawn, and recorded in the result.
        subjects: Subject of each row, int64 of shape (N,). Other rows of an attacked subject are
            excluded from its training sets and neighbors, and the most vulnerable records are from
            different subjects. None: each row is a subject.
        progress: Called with messages and counts.
        checkpoint: Folder for finished records and blocks; a call with the same arguments resumes
            from it. It contains counts from the private table (files have mode 0600).

    Raises:
        ConfigError: If settings are invalid or the checkpoint belongs to another audit.
        InputError: If there are too few rows.
    """
    seed = seed_of(seed)
    listed_subjects = None
    if subjects is not None:
        subjects = np.asarray(subjects, dtype=np.int64)
        if subjects.shape != cells.shape[1:]:
            problem = f"subjects must have shape ({cells.shape[1]},), got {subjects.shape}"
            raise InputError(problem, where=_WHERE, fix="pass one code per row")
        listed_subjects = subjects.tolist()
    fingerprint = cells_fingerprint(
        cells, plan.to_json(), coding.schema.to_json(), coding.values, seed, listed_subjects
    )
    attack = build_attack(plan.attack, coding, cells, plan.attack_settings)
    run = _Run(cells, coding, plan, seed, subjects, attack)
    run.check()
    store = Checkpoint.open(checkpoint, fingerprint)
    selection = store.get("selection")
    if selection is None:
        progress("selecting the records to attack")
        selection = run.select()
        store.put("selection", selection)
    parts = {}
    for name, stored in selection["parts"].items():
        parts[name] = [_Record(*record) for record in stored]
    removed = tuple(selection["removed"])

    n_records = sum(map(len, parts.values()))
    count = _Count(progress, (plan.shadows + plan.tests) * n_records)
    audits = {}
    for name, part in parts.items():
        removed_rows = removed if name == "after" else ()
        audits[name] = run.attack_all(part, removed_rows, store.part(name), count)
    removal = None
    if plan.remove:
        removal = Removal(removed, audits["before"], audits["after"])
    attacked = itertools.chain(*audits.values())
    cpu_seconds = selection["seconds"] + sum(record.cpu_seconds for record in attacked)
    return Audit(
        plan,
        seed,
        audits["records"],
        _epsilon_of_all(audits["records"]),
        removal,
        cpu_seconds,
    )


class _Record(NamedTuple):
    """A record to attack."""

    id: int
    selected_by: float
    vulnerability: float


@dataclass(frozen=True, eq=False)
class _Run:
    """State of a running audit."""

    cells: np.ndarray
    coding: MatrixCoding
    plan: AuditConfig
    seed: int
    subjects: np.ndarray | None
    attack: Attack

    def rng(self, purpose: str, *key: int) -> np.random.Generator:
        """Return a generator for a purpose and record."""
        spawn_key = (zlib.crc32(purpose.encode()), *key)
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=spawn_key))

    @cached_property
    def pools(self) -> tuple[np.ndarray, np.ndarray]:
        """Ids of D_aux and D_test, which are disjoint and the same for all records."""
        n_rows = self.cells.shape[1]
        order = self.rng("shadow parts").permutation(n_rows)
        n_auxiliary = self.plan.auxiliary_rows or math.floor(self.plan.auxiliary * n_rows + 1e-9)
        n_test = self.plan.test_rows or n_rows
        return order[:n_auxiliary], order[n_auxiliary : n_auxiliary + n_test]

    def check(self) -> None:
        """Raise InputError or ConfigError if the plan does not fit the table."""
        n_rows = self.cells.shape[1]
        plan = self.plan
        if (plan.auxiliary_rows or 0) + (plan.test_rows or 0) > n_rows:
            raise InputError(
                f"auxiliary_rows and test_rows exceed its {n_rows} rows", where=_WHERE, fix=_FEWER
            )
        for row in plan.ids or ():
            if not 0 <= row < n_rows:
                raise ConfigError(
                    f"audit: there is no row {row}; the table has {n_rows}, the first is 0."
                )
        if plan.remove and plan.remove + 2 > n_rows:
            raise ConfigError(f"audit: {plan.remove} of {n_rows} rows cannot be removed.")
        self.check_pools(*self.pools)

    def check_pools(self, auxiliary: np.ndarray, test: np.ndarray) -> None:
        """Check that training sets can be drawn from both parts.

        Args:
            auxiliary: Positions of D_aux, int64 (n,).
            test: Positions of D_test, int64 (m,).

        Raises:
            InputError: If a part is too small.
        """
        min_rows = self.plan.size
        if self.plan.sampling == "bootstrap":
            min_rows = 1
        for name, pool in (("auxiliary", auxiliary), ("test", test)):
            if len(pool) < min_rows:
                problem = (
                    f"the {name} part has {len(pool)} rows to draw from, but training sets"
                    f" {self.plan.size}"
                )
                raise InputError(problem, where=_WHERE, fix=_FEWER)

    def select(self) -> dict[str, Any]:
        """Return the records of each part, the ids to remove, and the CPU seconds, as a
        JSON-compatible mapping.
        """
        start = process_time()
        all_rows = np.arange(self.cells.shape[1])
        scores = self.vulnerability(all_rows)
        parts = {"records": self.part(all_rows, scores, self.plan.ids)}
        removed = all_rows[:0]
        if self.plan.remove:
            removed, parts["before"], parts["after"] = self.removal(scores)
        return {"parts": parts, "removed": removed.tolist(), "seconds": process_time() - start}

    def removal(self, scores: np.ndarray) -> tuple[np.ndarray, list[_Record], list[_Record]]:
        """Choose the rows to remove, and the records to attack with and without them.

        Args:
            scores: V_k of all rows, float64 (N,).

        Returns:
            Positions to remove, int64 (n,), and the records before and after the removal.

        Raises:
            InputError: If fewer than two rows remain.
        """
        all_rows = np.arange(self.cells.shape[1])
        rng = self.rng("shadow removal")
        removed = most_exposed(scores, self.plan.remove, rng, self.subjects).ids
        if self.subjects is not None:  # remove all rows of a subject
            is_removed = np.isin(self.subjects, self.subjects[removed])
            removed = np.flatnonzero(is_removed)
        remaining = np.setdiff1d(all_rows, removed)
        if len(remaining) < 2:
            raise InputError(
                "no subject remains after the removal", where=_WHERE, fix="remove fewer rows"
            )
        after = self.part(remaining, self.vulnerability(remaining), None)
        before = [record._replace(vulnerability=float(scores[record.id])) for record in after]
        return removed, before, after

    def vulnerability(self, rows: np.ndarray) -> np.ndarray:
        """Compute V_k of rows among themselves.

        Args:
            rows: Positions, int64 (n,).

        Returns:
            V_k, float64 (n,).
        """
        return vulnerability(
            self.cells[:, rows],
            self.coding,
            n_neighbors=self.plan.n_neighbors,
            distance=self.plan.distance,
            subjects=self.subjects_of(rows),
        )

    def subjects_of(self, rows: np.ndarray) -> np.ndarray | None:
        """Look up the subjects of rows.

        Args:
            rows: Positions, int64 (n,).

        Returns:
            Subjects, int64 (n,), or None if each row is a subject.
        """
        if self.subjects is None:
            return None
        return self.subjects[rows]

    def part(
        self, rows: np.ndarray, scores: np.ndarray, ids: Sequence[int] | None
    ) -> list[_Record]:
        """Return the records ``ids``, or those that the plan selects from ``rows``.

        Args:
            rows: Positions to select from, int64 (n,).
            scores: V_k of these rows, float64 (n,).
            ids: Positions of records in the table, if ``rows`` are all rows. None: select.
        """
        if ids is not None:
            return [_Record(row, math.nan, float(scores[row])) for row in ids]
        selected = select_records(
            self.cells[:, rows],
            self.coding,
            scores,
            by=self.plan.select,
            records=self.plan.max_targets,
            subject_codes=self.subjects_of(rows),
            rng=self.rng("shadow selection"),
        )
        if not len(selected.ids):
            raise InputError(
                f"no row is selected by {self.plan.select}",
                where=_WHERE,
                fix="select by distance",
            )
        records = zip(
            rows[selected.ids].tolist(),
            selected.scores.tolist(),
            scores[selected.ids].tolist(),
            strict=True,
        )
        return [_Record(*record) for record in records]

    def attack_all(
        self, records: Sequence[_Record], removed: Sequence[int], store: Checkpoint, count: _Count
    ) -> tuple[RecordAudit, ...]:
        """Attack the records of a part; finished ones are read from the checkpoint.

        Args:
            records: The records.
            removed: Rows that are absent from the table.
            store: Checkpoint of the part.
            count: Counter of generated tables.
        """
        audits = []
        for record in records:
            name = str(record.id)
            stored = store.get(name)
            if stored is None:
                audit = self.attack_one(record, self.game(record.id, removed), store, count)
                store.put(name, audit.to_json())
                store.drop_blocks(name)
            else:
                count.skip(self.plan.shadows + self.plan.tests)
                audit = RecordAudit.from_json(stored)
            audits.append(audit)
        return tuple(audits)

    def game(self, record: int, removed: Sequence[int]) -> Game:
        """Create the game of one record, without some rows of the table."""
        plan = self.plan
        excluded = list(removed)
        if self.subjects is not None:
            excluded += np.flatnonzero(self.subjects == self.subjects[record]).tolist()
        auxiliary_pool, test_pool = self.pools
        auxiliary = without(self.cells, np.setdiff1d(auxiliary_pool, excluded), record)
        test = without(self.cells, np.setdiff1d(test_pool, excluded), record)
        self.check_pools(auxiliary, test)
        return Game(
            cells=self.cells,
            coding=self.coding,
            target=record,
            auxiliary=auxiliary,
            test=test,
            shadows=plan.shadows,
            tests=plan.tests,
            size=plan.size,
            sample_size=plan.sample_size or plan.size,
            bootstrap=plan.sampling == "bootstrap",
            seed=self.seed,
        )

    def attack_one(
        self, record: _Record, game: Game, store: Checkpoint, count: _Count
    ) -> RecordAudit:
        """Play the game of one record, and evaluate the attack.

        Args:
            record: The record.
            game: Its game.
            store: Checkpoint of the part; finished blocks are read from it.
            count: Counter of generated tables.
        """
        name = str(record.id)
        start = process_time()
        features, seconds = store.blocks(name)
        n_done = sum(map(len, features))
        count.skip(n_done)
        block_start = process_time()
        for block, elsewhere in blocks(game, self.plan.generator, self.attack, n_done):
            store.put_block(name, n_done, block, process_time() - block_start + elsewhere)
            features.append(block)
            n_done += len(block)
            seconds += elsewhere
            block_start = process_time()
            count.did(len(block))

        stacked = np.concatenate(features)
        shadow_labels = game.labels[: game.shadows]
        test_labels = game.labels[game.shadows :]
        rng = self.rng("shadow attack", record.id)
        scorer = self.attack.fit(stacked[: game.shadows], shadow_labels, rng, count.progress)
        scores = np.asarray(scorer(stacked[game.shadows :]), dtype=np.float64)
        cut = choose_cut(scorer.held_out_scores, shadow_labels, game.tests)
        return RecordAudit(
            id=record.id,
            vulnerability=record.vulnerability,
            selected_by=record.selected_by,
            auc=auc(scores, test_labels),
            tpr={fpr: tpr_at(scores, test_labels, fpr) for fpr in LOW_FPR},
            epsilon=epsilon_bound(scores, test_labels, cut),
            labels=test_labels,
            scores=scores,
            cpu_seconds=process_time() - start + seconds,
        )


class _Count:
    """Counter of the tables generated by this call."""

    work = "audit: shadow and test tables"

    def __init__(self, progress: Progress, total: int) -> None:
        self.progress = progress
        self.done = 0
        self.total = total

    def skip(self, tables: int) -> None:
        """Subtract tables that were read from the checkpoint."""
        self.total -= tables
        if self.done == self.total:
            advance(self.progress, self.work, None)

    def did(self, tables: int) -> None:
        """Count generated tables."""
        self.done += tables
        advance(self.progress, self.work, self.done, self.total)


def _epsilon_of_all(records: Sequence[RecordAudit]) -> float:
    """Return the largest epsilon bound over the records, at a joint confidence of 95 %."""
    confidence = 1 - (1 - CONFIDENCE) / len(records)
    bounds = []
    for record in records:
        bound = epsilon_bound(record.scores, record.labels, record.epsilon.cut, confidence)
        bounds.append(bound.value)
    return max(bounds)
