"""Controls: the smallest leak that the limits detect at these table sizes, and their false alarm
rate.

A simulated release is the synthetic table with planted rows, evaluated by limits on copies. Planted
rows are modified training rows (canaries) of four kinds: exact copies, copies with moved numbers,
copies with one resampled column, and moved copies of isolated rows.

All statistics used here depend on synthetic rows separately: similar rows are counted, and match
weights and distances refer to the best row. The contribution of the table's rows is computed once,
and that of planted rows is added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Annotated, ClassVar

import numpy as np
from pydantic import AfterValidator, Field

from privacy_assets.distances.nearest import nearest_rows
from privacy_assets.errors import ConfigError
from privacy_assets.generators.copies import jittered
from privacy_assets.infra.settings import DERIVED, InvalidSetting, Tuple, declared
from privacy_assets.metrics.base import Metric, Question
from privacy_assets.metrics.copies import (
    Copies,
    SimilarRows,
    advantages,
    attacked_rows,
    coded,
    copied,
    partial_estimate,
    released_matches,
    share_estimates,
)
from privacy_assets.metrics.dcr import own_rows
from privacy_assets.metrics.inputs import Budget, EvaluationInputs, target_rows
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
    kind: str, train: Table, places: np.ndarray, count: int, rng: np.random.Generator
) -> Table:
    """Return at most ``count`` canaries, made from distinct rows of ``train`` at the positions
    ``places``.

    Moved numbers are values of their column. Missing values stay missing.
    """
    rows = train.take(rng.permutation(places)[:count])
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


_SCORE = "distance / neighbour"


@dataclass(frozen=True, eq=False)
class _Seen:
    """A simulated release and values derived from it.

    Attributes:
        similar: Similar rows of each attacked row.
        weights: Match weight of each attacked row.
        population: Attacked rows with scores.
        people: Subjects of the rows used by ``copies``.
        labels: Permuted membership labels.
    """

    similar: SimilarRows
    weights: np.ndarray
    population: Population
    people: Subjects
    labels: DrawnLabels

    @cached_property
    def shares(self) -> tuple[Estimate, ...]:
        """``copied_share`` and ``changed_share``, on which there can be several limits."""
        return share_estimates(
            copied(self.similar, self.people, self.labels.mean_difference), self.people
        )

    @cached_property
    def partial(self) -> Estimate:
        """``partial_advantage``."""
        return partial_estimate(
            advantages(self.weights, self.people, self.labels.mean_difference), self.people
        )


class PlantedReleases:
    """The synthetic table and all candidates for planting, coded once.

    The attacked subjects are limited by the budgets of the metrics, each with all rows.
    """

    def __init__(self, inputs: EvaluationInputs, controls: Controls) -> None:
        self._rng, self._own, self._doses = (
            inputs.rng("controls"),
            len(inputs.synthetic),
            controls.doses,
        )
        self._copies, self._limits = controls.copies, controls.limits
        seen = build_population(
            inputs, rows=target_rows(inputs, ("train", "holdout"), controls.max_targets, PURPOSE)
        )
        self._population = with_reference(inputs, seen)
        # Sorted by content, so that draws do not depend on the order of rows.
        order = np.argsort(inputs.row_ids["train"], kind="stable")
        everybody = seen if seen.rows is None else build_population(inputs)
        train, places = inputs.train.take(order), plantable(inputs, everybody)
        most = self._rows(self._doses[-1])
        pools = {
            kind: canaries(kind, train, np.flatnonzero(places[kind][order]), most, self._rng)
            for kind in KINDS
        }
        ends = np.cumsum([self._own, *map(len, pools.values())])
        self.places = dict(
            zip(KINDS, np.split(np.arange(ends[0], ends[-1]), ends[1:-1] - ends[0]), strict=True)
        )
        self.candidates = candidates = Table.stack([inputs.synthetic, *pools.values()])
        everyone, asked = inputs.all_subjects, self._copies.max_targets
        rows = attacked_rows(inputs, asked)
        self._people = everyone if len(rows) == len(everyone.codes) else everyone.take(rows)
        real, self._weights, self._codes = coded(inputs.real, candidates, rows)
        self._real = np.ascontiguousarray(real[:, rows])
        self._similar, self._matched = inputs.once(
            released_matches, asked, self._copies.max_holders
        )
        self._encoded, self._device = inputs.encoder.transform(candidates), inputs.device
        self._outliers = np.flatnonzero(apart_rows(self._population))
        pool = EncodedTable.stack([inputs.encoded("train"), inputs.encoded("holdout")])
        pool = pool if seen.rows is None else pool.take(seen.rows)
        if inputs.reference is not None:
            pool = EncodedTable.stack([pool, inputs.encoded("reference")])
        self._remote = pool.take(self._outliers)
        self._labels = DrawnLabels(self._people, controls.n_permutations, self._rng)

    def _rows(self, dose: float) -> int:
        """Return the number of planted rows for a share ``dose`` of all rows."""
        return max(1, round(dose * self._own / (1 - dose)))

    def _share(self, rows: int) -> float:
        """Return the share of all rows that ``rows`` planted rows make up."""
        return rows / (self._own + rows)

    @cached_property
    def _as_it_is(self) -> _Seen:
        """The synthetic table without planted rows."""
        return _Seen(self._similar, self._matched, self._population, self._people, self._labels)

    @cached_property
    def held(self) -> list[Limit]:
        """Limits that the table itself does not fail, which a planted row can break."""
        return [limit for limit, failed in self._judged(self._limits, self._as_it_is) if not failed]

    def thresholds(self, kind: str, draws: int) -> list[tuple[float, float]]:
        """Return for each planting the largest share that passed (or 0) and the smallest that did
        not (or inf).
        """
        return [self._threshold(self._rng.permutation(self.places[kind])) for _ in range(draws)]

    def _threshold(self, planted: np.ndarray) -> tuple[float, float]:
        seen = self._as_it_is
        before = 0
        for rows in dict.fromkeys(min(self._rows(dose), len(planted)) for dose in self._doses):
            seen = self._with(seen, planted[before:rows])
            if any(failed for _, failed in self._judged(self.held, seen)):
                return self._share(before), self._share(rows)
            before = rows
        return self._share(before), np.inf

    def _with(self, seen: _Seen, more: np.ndarray) -> _Seen:
        """Add candidates to a release."""
        from privacy_assets.metrics._kernels import best_weights, changed_cells

        codes = np.ascontiguousarray(self._codes[:, more])
        weights = best_weights(self._real, self._weights, codes)
        nearest = nearest_rows(self._remote, self._encoded.take(more), device=self._device)
        isolation = seen.population.neighbour[self._outliers]
        planted_score = ratio(nearest.distances[:, 0], isolation)
        score = seen.population.scores[_SCORE].copy()
        score[self._outliers] = np.minimum(score[self._outliers], planted_score)
        return replace(
            seen,
            similar=seen.similar.with_more(changed_cells(self._real, codes)),
            weights=np.maximum(seen.weights, weights),
            population=replace(seen.population, scores={_SCORE: score}),
        )

    def relabelled(self, times: int) -> Iterator[bool]:
        """Yield for each random relabeling of the subjects whether the synthetic table fails a
        limit.
        """
        for _ in range(times):
            people = self._people.relabelled(self._rng.permutation(self._people.member))
            population = replace(
                self._population, member=self._rng.permutation(self._population.member)
            )
            labels = self._labels.of(people.member)
            seen = replace(self._as_it_is, population=population, people=people, labels=labels)
            yield any(failed for _, failed in self._judged(self._limits, seen))

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
        if statistic == "copies.partial_advantage":
            return seen.partial
        return next(estimate for estimate in seen.shares if statistic == f"copies.{estimate.name}")


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
    "copies.partial_advantage",
)
_TEXT = {
    "exact": "copies of training rows",
    "jittered": "copies with slightly changed numbers",
    "resampled": "copies with one changed cell in each",
    "rare": "changed copies of unusual people",
}
_SEEN = 0.95  # required detection probability of the stated leak
_CREDIBLE = 0.9


def _rising(doses: tuple[float, ...]) -> tuple[float, ...]:
    if not all(low < high for low, high in pairwise(doses)):
        raise InvalidSetting("must be ascending")
    return doses


@declared
class Controls(Metric):
    """Smallest copy leak that the limits detect in this table, and how often they fail without a
    leak.

    Both use the code of ``copies`` and ``membership_inference.outlier_matches``, with the limits in
    force on ``copies.copied_share``, ``copies.changed_share``, ``copies.partial_advantage`` and
    ``membership_inference.outlier_matches``. The complete gate checks more and detects at least as
    much. The statistics evaluate the gate, not the table: there is no default limit, and a broken
    limit on them makes the release undecided.

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
            some limit that the table itself passes is failed with probability 95 %. If plantings of
            the largest dose are missed, it exceeds that dose, and the note states so. Missing if no
            row can be planted.
        false_alarm_rate: Share of random relabelings of the subjects of train and holdout under
            which the table fails a limit.

    Notes:
        Each planting grows through ``doses`` until a limit fails. Thresholds are assumed to be
        log-normal; each is known to be between two doses, or above all of them. The prior is flat
        on a grid of medians (from a quarter of the smallest dose to 1) and log standard deviations
        (0.1 to 1.5). The statistic is the posterior median of the 95 % quantile, and the interval
        is its 90 % credible interval.

        Only rows of a single subject are planted; for "rare", only rows of the outlying tenth. Rows
        shared by several subjects identify none of them.

        Not measurable with fewer than 20 subjects in train or holdout, without synthetic rows, or
        if the table itself fails all of these limits. Source: none. Validation:
        ``benchmarks/results/controls.md``.
    """

    draws: int = Field(default=6, ge=4, description="number of plantings of each kind")
    nulls: int = Field(default=10, ge=10, description="number of tables with shuffled labels")
    doses: Annotated[
        tuple[Annotated[float, Field(gt=0, le=0.5)], ...],
        Tuple,
        Field(min_length=1),
        AfterValidator(_rising),
    ] = Field(
        title="ascending numbers above 0 and up to 0.5",
        default=(0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.2),
        description="planted shares of all rows",
    )
    limits: tuple[Limit, ...] = Field(
        default=(), json_schema_extra=DERIVED, description="limits in force"
    )
    copies: Copies = Field(
        default_factory=Copies, json_schema_extra=DERIVED, description="settings of copies"
    )
    max_targets: Budget = Field(
        default=None, description="maximum number of attacked rows; default: all rows"
    )
    n_permutations: int = Field(
        default=499, ge=199, description="number of permutations of the membership labels"
    )

    name: ClassVar[str] = "controls"
    summary: ClassVar[str] = (
        "Would the gate have detected a leak? Planted leaks must break the limits, shuffled"
        " labels must not."
    )
    required_inputs: ClassVar[frozenset[str]] = frozenset({"train", "holdout", "synthetic"})
    optional_inputs: ClassVar[frozenset[str]] = frozenset({"reference"})
    in_leak_studies: ClassVar[bool] = False
    seen_in_copy: ClassVar[bool] = False
    statistics: ClassVar[tuple[StatisticSpec, ...]] = (
        StatisticSpec(
            "false_alarm_rate",
            "Share of tables without any leak that fail a limit on copies.",
            measures="evaluation",
        ),
        *(
            StatisticSpec(
                f"smallest_leak_{kind}",
                f"Smallest share of {_TEXT[kind]} that breaks a limit with 95 % probability.",
                measures="evaluation",
            )
            for kind in KINDS
        ),
    )
    detectable_leaks: ClassVar[Mapping[Question, Mapping[str, str]]] = {
        "copies": {f"smallest_leak_{kind}": _TEXT[kind] for kind in KINDS}
    }

    def __post_init__(self) -> None:
        if self.limits:
            return
        limits = [limit for kind in (Copies, MembershipInference) for limit in kind.default_limits]
        object.__setattr__(self, "limits", _evaluated(limits))

    def for_limits(self, limits: Sequence[Limit], metrics: Mapping[str, Metric]) -> Metric:
        """Use the limits in force and the settings of ``copies``.

        Raises ConfigError if no limit is on a statistic that controls evaluate.
        """
        evaluated = _evaluated(limits)
        if not evaluated:
            raise ConfigError(
                f"controls cannot run without a limit on {' or '.join(_EVALUATED)}. Fix: add"
                " copies to the metrics, or"
                " such a limit to the policy."
            )
        copies, attack = metrics.get("copies"), metrics.get("membership_inference")
        return replace(
            self,
            limits=evaluated,
            copies=copies if isinstance(copies, Copies) else Copies(),
            max_targets=self.max_targets if attack is None else attack.settings()["max_targets"],
        )

    def measure(self, inputs: EvaluationInputs) -> MetricResult:
        """Compute statistics and the table "thresholds" with the detection interval of each
        planting.
        """
        sides = [int(np.unique(inputs.subject_codes(role)).size) for role in ("train", "holdout")]
        counts = len(inputs.synthetic), min(sides)
        if counts[1] < MIN_SUBJECTS_PER_SIDE or counts[0] == 0:
            reason = (
                f"at least {MIN_SUBJECTS_PER_SIDE} people are required in train and in holdout,"
                " and a synthetic row"
            )
            return self.result(inputs, (spec.missing(reason, counts) for spec in self.statistics))

        releases = PlantedReleases(inputs, self)
        inputs.progress("controls: shuffled labels")
        refused = list(releases.relabelled(self.nulls))
        low, high = clopper_pearson(sum(refused), len(refused))
        note = f"{sum(refused)} of {len(refused)} tables with shuffled labels fail"
        share = sum(refused) / len(refused)
        alarms = self.statistic("false_alarm_rate").estimate(share, low, high, counts, note=note)
        if not releases.held:
            reason = "the table itself fails every limit on copies"
            return self.result(
                inputs, (alarms, *(spec.missing(reason, counts) for spec in self.statistics[1:]))
            )
        planted, leaks = {}, []
        for kind in KINDS:
            inputs.progress(f"controls: planting {_TEXT[kind]}")
            planted[kind] = releases.thresholds(
                kind, self.draws if len(releases.places[kind]) else 0
            )
            leaks.append(self._stated(kind, planted[kind], counts))
        rows = [
            {"kind": kind, "passed": passed, "seen": seen if np.isfinite(seen) else None}
            for kind in KINDS
            for passed, seen in planted[kind]
        ]
        return self.result(inputs, (alarms, *leaks), thresholds=rows)

    def _stated(
        self, kind: str, thresholds: Sequence[tuple[float, float]], counts: tuple[int, int]
    ) -> Estimate:
        spec = self.statistic(f"smallest_leak_{kind}")
        if not thresholds:
            return spec.missing(
                "no such row belongs to a single person, so that no leak was planted", counts
            )
        low, value, high = seen_dose(thresholds, self.doses[0])
        missed = sum(np.isinf(seen) for _, seen in thresholds)
        most = max(passed if np.isinf(seen) else seen for passed, seen in thresholds)
        note = (
            f"{len(thresholds) - missed} of {len(thresholds)} plantings of up to {most:.2g} were"
            " detected"
        )
        return spec.estimate(value, low, high, counts, confidence=_CREDIBLE, note=note)


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
        below = norm.cdf((np.log(passed) - middle) / spread) if passed > 0 else 0.0
        weight = weight * (
            (norm.cdf((np.log(seen) - middle) / spread) if np.isfinite(seen) else 1.0) - below
        )
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
    evaluated = [
        replace(limit, source="", advice="") for limit in limits if limit.statistic in _EVALUATED
    ]
    return tuple(sorted(evaluated, key=lambda limit: _EVALUATED.index(limit.statistic)))
