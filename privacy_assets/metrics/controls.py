"""Controls: the smallest leak that the limits detect at these table sizes, and their false alarm
rate.

A simulated release is the synthetic table with planted rows, evaluated by limits on copies. Planted
rows are modified training rows (canaries) of four kinds: exact copies, copies with moved numbers,
copies with one resampled column, and moved copies of isolated rows.

All statistics used here depend on synthetic rows separately: similar rows are counted, and match
margins and distances refer to the best row. The contribution of the table's rows is computed once,
and that of planted rows is added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import AfterValidator, Field

from privacy_assets.distances.nearest import nearest_rows
from privacy_assets.errors import ConfigError
from privacy_assets.generators.copies import jittered
from privacy_assets.infra.settings import DERIVED, InvalidSetting, Tuple, declared
from privacy_assets.metrics.base import Metric, Question, TableRows
from privacy_assets.metrics.copies import (
    Copies,
    SimilarRows,
    attacked_rows,
    coded,
    copied,
    is_indistinguishable_from_chance,
    largest_copied_share,
    match_excess,
    partial_estimate,
    released_matches,
    share_estimates,
)
from privacy_assets.metrics.dcr import own_rows
from privacy_assets.metrics.inputs import EvaluationInputs, MaxTargets, target_rows
from privacy_assets.metrics.membership_inference import MembershipInference
from privacy_assets.metrics.membership_inference.metric import PURPOSE
from privacy_assets.metrics.membership_inference.outliers import apart_rows, outlier_matches
from privacy_assets.metrics.membership_inference.scores import (
    Population,
    build_population,
    with_reference,
)
from privacy_assets.policy import Limit, judge_limit
from privacy_assets.stats.estimates import Estimate, MetricResult, StatisticSpec
from privacy_assets.stats.inference import DrawnLabels
from privacy_assets.stats.intervals import clopper_pearson, ratio
from privacy_assets.stats.subjects import MIN_SUBJECTS_PER_SIDE, Subjects
from privacy_assets.tables.column import Column
from privacy_assets.tables.encoding import EncodedTable
from privacy_assets.tables.table import Table

JITTER = 0.1  # standard deviations of the column
KINDS = ("exact", "jittered", "resampled", "rare")


def canaries(
    kind: str, train: Table, positions: np.ndarray, count: int, rng: np.random.Generator
) -> Table:
    """Return at most ``count`` canaries, made from distinct rows of ``train`` at the positions
    ``positions``.

    Moved numbers are values of their column. Missing values stay missing.
    """
    rows = train.take(rng.permutation(positions)[:count])
    if kind == "exact" or len(rows) == 0:
        return rows
    return _CHANGES[kind](rows, train, rng)


def _moved(rows: Table, train: Table, rng: np.random.Generator) -> Table:
    """Move numbers and dates to the nearest value of their column. Rows without numbers are
    unchanged.

    Few columns are continuous. For example, a fee with 450 distinct values, or a share that is
    mostly 0 or 1: a value that never occurs would be easy to detect and is not a leak that a
    generator produces.
    """

    def moved(column: Column) -> Column:
        present = train[column.name].present()
        if column.values is not None or len(present) == 0:
            return column
        return _nearest_values(jittered(column, present, JITTER, rng), present)

    return rows.map(moved)


def _nearest_values(column: Column, present: Column) -> Column:
    """Replace each cell by the nearest one of ``present`` (ties: the larger). Missing cells stay
    missing.
    """
    distinct = np.unique(present.cells)
    cells = np.where(column.missing, present.cells[0], column.cells)
    i_below = np.maximum(np.searchsorted(distinct, cells, side="right") - 1, 0)
    i_above = np.minimum(np.searchsorted(distinct, cells, side="left"), len(distinct) - 1)
    below = distinct[i_below]
    above = distinct[i_above]
    nearest = np.where(cells - below < above - cells, below, above)
    return replace(column, cells=np.where(column.missing, column.cells, nearest))


def _resampled(rows: Table, train: Table, rng: np.random.Generator) -> Table:
    """Replace one random column of each row by the value of another row."""
    names = rows.schema.names
    resampled_columns = rng.integers(0, len(names), len(rows))

    def resampled(column: Column) -> Column:
        sample = train[column.name].take(rng.integers(0, len(train), len(rows)))
        return column.where(resampled_columns != names.index(column.name), sample)

    return rows.map(resampled)


_CHANGES: dict[str, Callable[[Table, Table, np.random.Generator], Table]] = {
    "jittered": _moved,
    "resampled": _resampled,
    "rare": _moved,
}


_SCORE = "distance / neighbor"


@dataclass(frozen=True, eq=False)
class _Seen:
    """A simulated release and values derived from it.

    Attributes:
        similar: Similar rows of each attacked row.
        margins: Largest margin of each attacked row, see :func:`best_margins`.
        population: Attacked rows with scores.
        subjects: Subjects of the rows used by ``copies``.
        labels: Permuted membership labels.
        largest_share: Share of the rows of train that the release could contain.
    """

    similar: SimilarRows
    margins: np.ndarray
    population: Population
    subjects: Subjects
    labels: DrawnLabels
    largest_share: float

    @cached_property
    def shares(self) -> tuple[Estimate, ...]:
        """``copied_share`` and ``changed_share``, on which there can be several limits."""
        differences = copied(
            self.similar, self.subjects, self.labels.mean_difference, self.largest_share
        )
        return share_estimates(differences, self.subjects, self.largest_share, is_chance=False)

    @cached_property
    def partial(self) -> Estimate:
        """``partial_excess``."""
        differences = match_excess(self.margins, self.subjects, self.labels.mean_difference)
        return partial_estimate(differences, self.subjects)


class PlantedReleases:
    """The synthetic table and all candidates for planting, coded once.

    The attacked subjects are limited by ``max_targets`` of the metrics, each with all rows.
    """

    def __init__(self, inputs: EvaluationInputs, controls: Controls) -> None:
        self._rng = inputs.rng("controls")
        self._device = inputs.device
        self._n_synthetic = len(inputs.synthetic)
        self._doses = controls.doses

        attacked = build_population(
            inputs, rows=target_rows(inputs, ("train", "holdout"), controls.max_targets, PURPOSE)
        )
        self._population = with_reference(inputs, attacked)
        self._outliers = np.flatnonzero(apart_rows(self._population))
        self._remote = _encoded_rows(inputs, attacked).take(self._outliers)

        all_subjects = attacked
        if attacked.rows is not None:
            all_subjects = build_population(inputs)
        pools = self._candidate_pools(inputs, all_subjects)
        ends = self._n_synthetic + np.cumsum([len(pool) for pool in pools.values()])
        positions = np.arange(self._n_synthetic, ends[-1])
        positions_by_kind = np.split(positions, ends[:-1] - self._n_synthetic)
        self.positions = dict(zip(KINDS, positions_by_kind, strict=True))
        self.candidates = Table.stack([inputs.synthetic, *pools.values()])
        self._encoded = inputs.derived.encoder.transform(self.candidates)

        copies = controls.copies
        rows = attacked_rows(inputs, copies.max_targets)
        self._subjects = inputs.all_subjects
        if len(rows) < len(self._subjects.codes):
            self._subjects = self._subjects.take(rows)
        real, self._weights, self._codes = coded(inputs.real, self.candidates, rows)
        self._real = np.ascontiguousarray(real[:, rows])
        self._matches = inputs.once(released_matches, copies.max_targets, copies.max_holders)
        self._labels = DrawnLabels(self._subjects, controls.n_permutations, self._rng)
        self._largest_share = largest_copied_share(inputs)
        self._n_train = len(inputs.train)
        self._limits = []
        is_chance = is_indistinguishable_from_chance(inputs, real)
        for limit in controls.limits:
            if not (is_chance and limit.statistic == "copies.copied_share"):
                self._limits.append(limit)

    def _candidate_pools(
        self, inputs: EvaluationInputs, all_subjects: Population
    ) -> dict[str, Table]:
        """Draw canaries of each kind, enough for the largest dose."""
        # Sorted by content, so that draws do not depend on the order of rows.
        order = np.argsort(inputs.row_ids["train"], kind="stable")
        train = inputs.train.take(order)
        is_plantable = plantable(inputs, all_subjects)
        n_canaries = self._n_rows(self._doses[-1])
        pools = {}
        for kind in KINDS:
            rows = np.flatnonzero(is_plantable[kind][order])
            pools[kind] = canaries(kind, train, rows, n_canaries, self._rng)
        return pools

    def _n_rows(self, dose: float) -> int:
        """Return the number of planted rows for a share ``dose`` of all rows."""
        return max(1, round(dose * self._n_synthetic / (1 - dose)))

    def _share(self, n_rows: int) -> float:
        """Return the share of all rows that ``n_rows`` planted rows make up."""
        return n_rows / (self._n_synthetic + n_rows)

    @cached_property
    def _as_it_is(self) -> _Seen:
        """The synthetic table without planted rows."""
        return _Seen(
            self._matches.similar,
            self._matches.margins,
            self._population,
            self._subjects,
            self._labels,
            self._largest_share,
        )

    @cached_property
    def held(self) -> list[Limit]:
        """Limits that hold for the table itself, and can fail for a planted row."""
        holding = []
        for limit, failed in self._judged(self._limits, self._as_it_is):
            if not failed:
                holding.append(limit)
        return holding

    def thresholds(self, kind: str, draws: int) -> list[tuple[float, float]]:
        """Plant canaries until a limit fails.

        Args:
            kind: Kind of the canaries, see ``KINDS``.
            draws: Number of plantings.

        Returns:
            For each planting the largest share that passed (or 0) and the smallest that did not
            (or inf).
        """
        return [self._threshold(self._rng.permutation(self.positions[kind])) for _ in range(draws)]

    def _threshold(self, planted: np.ndarray) -> tuple[float, float]:
        """Plant candidates in the order of ``planted``, dose by dose."""
        seen = self._as_it_is
        n_before = 0
        for n_rows in dict.fromkeys(min(self._n_rows(dose), len(planted)) for dose in self._doses):
            seen = self._with(seen, planted[n_before:n_rows])
            if self._fails(self.held, seen):
                return self._share(n_before), self._share(n_rows)
            n_before = n_rows
        return self._share(n_before), np.inf

    def _with(self, seen: _Seen, added: np.ndarray) -> _Seen:
        """Add the candidates at the positions ``added`` to a release."""
        from privacy_assets.metrics._kernels import best_margins, changed_cells

        codes = np.ascontiguousarray(self._codes[:, added])
        margins, _ = best_margins(self._real, self._weights, self._subjects.codes, codes)
        nearest = nearest_rows(self._remote, self._encoded.take(added), device=self._device)
        isolation = seen.population.neighbor[self._outliers]
        planted_score = ratio(nearest.distances[:, 0], isolation)
        score = seen.population.scores[_SCORE].copy()
        score[self._outliers] = np.minimum(score[self._outliers], planted_score)
        return replace(
            seen,
            similar=seen.similar.with_more(changed_cells(self._real, codes)),
            margins=np.maximum(seen.margins, margins),
            largest_share=min(1.0, seen.largest_share + len(added) / self._n_train),
            population=replace(seen.population, scores={_SCORE: score}),
        )

    def relabeled(self, times: int) -> Iterator[bool]:
        """Relabel the subjects at random.

        Args:
            times: Number of relabelings.

        Yields:
            For each relabeling, whether a limit fails.
        """
        for _ in range(times):
            subjects = self._subjects.relabeled(self._rng.permutation(self._subjects.member))
            population = replace(
                self._population, member=self._rng.permutation(self._population.member)
            )
            labels = self._labels.of(subjects.member)
            seen = replace(self._as_it_is, population=population, subjects=subjects, labels=labels)
            yield self._fails(self._limits, seen)

    def _fails(self, limits: Iterable[Limit], seen: _Seen) -> bool:
        """Return whether a limit fails. Stops at the first failure."""
        return any(failed for _, failed in self._judged(limits, seen))

    def _judged(self, limits: Iterable[Limit], seen: _Seen) -> Iterator[tuple[Limit, bool]]:
        """Yield each limit and whether it fails. Lazy, so that callers can stop at the first
        failure.
        """
        for limit in limits:
            result = MetricResult(limit.metric, (self._estimate(limit.statistic, seen),))
            yield limit, judge_limit(limit, result).status == "fail"

    def _estimate(self, statistic: str, seen: _Seen) -> Estimate:
        if statistic == "membership_inference.outlier_matches":
            return outlier_matches(seen.population)
        if statistic == "copies.partial_excess":
            return seen.partial
        return next(estimate for estimate in seen.shares if statistic == f"copies.{estimate.name}")


def _encoded_rows(inputs: EvaluationInputs, attacked: Population) -> EncodedTable:
    """Return the encoded rows of the attacked subjects and of the reference, stacked."""
    encoded = EncodedTable.stack([inputs.encoded("train"), inputs.encoded("holdout")])
    if attacked.rows is not None:
        encoded = encoded.take(attacked.rows)
    if inputs.release.reference is not None:
        encoded = EncodedTable.stack([encoded, inputs.encoded("reference")])
    return encoded


def plantable(inputs: EvaluationInputs, population: Population) -> dict[str, np.ndarray]:
    """Return the rows of train that can be planted, bool (n_T,), by kind: rows of a single
    subject.
    """
    ids = np.concatenate([inputs.row_ids["train"], inputs.row_ids["holdout"]])
    is_own = own_rows(ids, inputs.subject_codes("train", "holdout"))
    is_plantable = dict.fromkeys(KINDS, is_own[: len(inputs.train)])
    is_plantable["rare"] = (is_own & population.outlier_rows)[: len(inputs.train)]
    return is_plantable


_EVALUATED = (
    "membership_inference.outlier_matches",
    "copies.copied_share",
    "copies.changed_share",
    "copies.partial_excess",
)
_TEXT = {
    "exact": "copies of training rows",
    "jittered": "copies with slightly changed numbers",
    "resampled": "copies with one changed cell in each",
    "rare": "changed copies of unusual people",
}
_SEEN = 0.95  # required detection probability of the stated leak
_CREDIBLE = 0.9


def _smallest_leak_spec(kind: str) -> StatisticSpec:
    return StatisticSpec(
        f"smallest_leak_{kind}",
        f"Smallest share of {_TEXT[kind]} at which a limit fails with 95 % probability.",
        measures="evaluation",
    )


def _rising(doses: tuple[float, ...]) -> tuple[float, ...]:
    if not all(low < high for low, high in pairwise(doses)):
        raise InvalidSetting("must be ascending")
    return doses


@declared
class Controls(Metric):
    """Smallest copy leak that the limits detect in this table, and how often they fail without a
    leak.

    Both use the code of ``copies`` and ``membership_inference.outlier_matches``, with the limits in
    force on ``copies.copied_share``, ``copies.changed_share``, ``copies.partial_excess`` and
    ``membership_inference.outlier_matches``. The complete gate checks more and detects at least as
    much. The statistics evaluate the gate, not the table: there is no default limit, and a limit on
    them that does not hold is undecided.

    Args:
        draws: Number of plantings of each kind.
        nulls: Number of relabelings.
        doses: Planted shares of all rows, ascending.
        limits: Limits in force. Derived from the policy.
        copies: Metric ``copies`` with its settings. Derived from the policy.
        max_targets: Maximum number of rows attacked by ``membership_inference.outlier_matches``.
            None: all rows.
        n_permutations: Number of permutations of the membership labels.

    Attributes:
        smallest_leak_*: Share of canaries of a kind, relative to all rows of the release, at which
            some limit that holds for the table itself fails with probability 95 %. If plantings of
            the largest dose are missed, it exceeds that dose, and the note states so. Missing if no
            row can be planted.
        false_alarm_rate: Share of random relabelings of the subjects of train and holdout under
            which a limit fails.

    Notes:
        Each planting grows through ``doses`` until a limit fails. Thresholds are assumed to be
        log-normal; each is known to be between two doses, or above all of them. The prior is flat
        on a grid of medians (from a quarter of the smallest dose to 1) and log standard deviations
        (0.1 to 1.5). The statistic is the posterior median of the 95 % quantile, and the interval
        is its 90 % credible interval.

        Only rows of a single subject are planted; for "rare", only rows of the outlying tenth. Rows
        shared by several subjects identify none of them.

        Not measurable with fewer than 20 subjects in train or holdout, without synthetic rows, or
        if all of these limits fail for the table itself. Source: none. Validation:
        ``benchmarks/results/controls.md``.
    """

    draws: int = Field(default=6, ge=4)
    nulls: int = Field(default=10, ge=10)
    doses: Annotated[
        tuple[Annotated[float, Field(gt=0, le=0.5)], ...],
        Tuple,
        Field(min_length=1),
        AfterValidator(_rising),
    ] = Field(
        title="ascending numbers above 0 and up to 0.5",
        default=(0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.2),
    )
    limits: tuple[Limit, ...] = Field(default=(), json_schema_extra=DERIVED)
    copies: Copies = Field(default_factory=Copies, json_schema_extra=DERIVED)
    max_targets: MaxTargets = None
    n_permutations: int = Field(default=499, ge=199)

    name: ClassVar[str] = "controls"
    uses_settings_of: ClassVar[tuple[str, ...]] = ("copies", "membership_inference")
    summary: ClassVar[str] = (
        "Would the gate have detected a leak? Limits must fail for planted leaks, and"
        " not for shuffled labels."
    )
    required_inputs: ClassVar[frozenset[str]] = frozenset({"train", "holdout", "synthetic"})
    optional_inputs: ClassVar[frozenset[str]] = frozenset({"reference"})
    in_leak_studies: ClassVar[bool] = False
    seen_in_copy: ClassVar[bool] = False
    statistics: ClassVar[tuple[StatisticSpec, ...]] = (
        StatisticSpec(
            "false_alarm_rate",
            "Share of tables without any leak for which a limit on copies fails.",
            measures="evaluation",
        ),
        *map(_smallest_leak_spec, KINDS),
    )
    detectable_leaks: ClassVar[Mapping[Question, Mapping[str, str]]] = {
        "copies": {f"smallest_leak_{kind}": _TEXT[kind] for kind in KINDS}
    }

    def __post_init__(self) -> None:
        if self.limits:
            return
        limits = (*Copies.default_limits, *MembershipInference.default_limits)
        object.__setattr__(self, "limits", _evaluated(limits))

    def for_limits(self, limits: Sequence[Limit], metrics: Mapping[str, Metric]) -> Metric:
        """Use the limits in force and the settings of ``copies``.

        Raises ConfigError if no limit is on a statistic that ``controls`` evaluates.
        """
        evaluated = _evaluated(limits)
        if not evaluated:
            raise ConfigError(
                f"controls cannot run without a limit on {' or '.join(_EVALUATED)}. Fix: add"
                " copies to the metrics, or"
                " such a limit to the policy."
            )
        copies = metrics.get("copies")
        if not isinstance(copies, Copies):
            copies = Copies()
        max_targets = self.max_targets
        if "membership_inference" in metrics:
            max_targets = metrics["membership_inference"].settings()["max_targets"]
        return replace(self, limits=evaluated, copies=copies, max_targets=max_targets)

    def measure(self, inputs: EvaluationInputs) -> MetricResult:
        """Compute statistics and the table "thresholds" with the detection interval of each
        planting.
        """
        n_members = int(np.unique(inputs.subject_codes("train")).size)
        n_non_members = int(np.unique(inputs.subject_codes("holdout")).size)
        n_smallest = min(n_members, n_non_members)
        counts = (len(inputs.synthetic), n_smallest)
        if n_smallest < MIN_SUBJECTS_PER_SIDE or len(inputs.synthetic) == 0:
            reason = (
                f"at least {MIN_SUBJECTS_PER_SIDE} people are required in train and in holdout,"
                " and a synthetic row"
            )
            return self.result(inputs, _missing(self.statistics, reason, counts))

        releases = PlantedReleases(inputs, self)
        inputs.progress("controls: shuffled labels")
        alarms = self._false_alarm_rate(list(releases.relabeled(self.nulls)), counts)
        if not releases.held:
            reason = "every limit on copies fails for the table itself"
            return self.result(inputs, (alarms, *_missing(self.statistics[1:], reason, counts)))

        leaks = []
        rows: TableRows = []
        for kind in KINDS:
            inputs.progress(f"controls: planting {_TEXT[kind]}")
            draws = self.draws
            if len(releases.positions[kind]) == 0:
                draws = 0
            thresholds = releases.thresholds(kind, draws)
            leaks.append(self._smallest_leak(kind, thresholds, counts))
            for passed, failed in thresholds:
                # JSON has no infinity.
                seen = failed if np.isfinite(failed) else None
                rows.append({"kind": kind, "passed": passed, "seen": seen})
        return self.result(inputs, (alarms, *leaks), thresholds=rows)

    def _false_alarm_rate(self, has_failed: Sequence[bool], counts: tuple[int, int]) -> Estimate:
        """Estimate "false_alarm_rate" from whether each relabeled table failed."""
        n_failed = sum(has_failed)
        n_tables = len(has_failed)
        low, high = clopper_pearson(n_failed, n_tables)
        note = f"{n_failed} of {n_tables} tables with shuffled labels fail"
        spec = self.statistic("false_alarm_rate")
        return spec.estimate(n_failed / n_tables, low, high, counts, note=note)

    def _smallest_leak(
        self, kind: str, thresholds: Sequence[tuple[float, float]], counts: tuple[int, int]
    ) -> Estimate:
        """Estimate the smallest leak of a kind from what each planting passed and failed."""
        spec = self.statistic(f"smallest_leak_{kind}")
        if not thresholds:
            return spec.missing(
                "no such row belongs to a single person, so that no leak was planted", counts
            )
        low, value, high = seen_dose(thresholds, self.doses[0])
        n_detected = 0
        largest_dose = 0.0
        for passed, failed in thresholds:
            if np.isfinite(failed):
                n_detected += 1
                largest_dose = max(largest_dose, failed)
            else:
                largest_dose = max(largest_dose, passed)
        note = (
            f"{n_detected} of {len(thresholds)} plantings of up to {largest_dose:.2g} were detected"
        )
        return spec.estimate(value, low, high, counts, confidence=_CREDIBLE, note=note)


def _missing(
    specs: Iterable[StatisticSpec], reason: str, counts: tuple[int, int]
) -> list[Estimate]:
    """Return an estimate without a number for each specification."""
    estimates = []
    for spec in specs:
        estimates.append(spec.missing(reason, counts))
    return estimates


def seen_dose(
    thresholds: Sequence[tuple[float, float]], smallest: float
) -> tuple[float, float, float]:
    """Return the dose that is detected with probability 95 %: 5 % quantile, median and 95 %
    quantile, at most 1.

    Args:
        thresholds: For each planting, the largest share that passed (or 0) and the smallest that
            did not (or inf).
        smallest: Smallest planted dose.

    Returns:
        Low, value and high, see :class:`Controls`.
    """
    from scipy.stats import norm  # slow to import

    middle = np.linspace(np.log(smallest / 4), 0.0, 200)[:, None]
    spread = np.geomspace(0.1, 1.5, 20)[None]
    weight = np.ones((len(middle), spread.size))
    for passed, seen in thresholds:
        p_passed: Any = 0.0
        if passed > 0:
            p_passed = norm.cdf((np.log(passed) - middle) / spread)
        p_seen: Any = 1.0
        if np.isfinite(seen):
            p_seen = norm.cdf((np.log(seen) - middle) / spread)
        weight = weight * (p_seen - p_passed)
    doses = np.minimum(np.exp(middle + norm.ppf(_SEEN) * spread), 1.0).ravel()
    order = np.argsort(doses, kind="stable")
    sorted_doses = doses[order]
    mass = np.cumsum(weight.ravel()[order])
    probabilities = np.array([(1 - _CREDIBLE) / 2, 0.5, (1 + _CREDIBLE) / 2])
    low, value, high = sorted_doses[np.searchsorted(mass, probabilities * mass[-1])].tolist()
    return low, value, high


def _evaluated(limits: Iterable[Limit]) -> tuple[Limit, ...]:
    """Return the limits on the statistics of controls, the cheapest first, without source and
    advice.
    """
    evaluated = []
    for limit in limits:
        if limit.statistic in _EVALUATED:
            evaluated.append(replace(limit, source="", advice=""))
    return tuple(sorted(evaluated, key=lambda limit: _EVALUATED.index(limit.statistic)))
