"""Copies of training rows in the release, in full, nearly or in part, beyond chance."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import ClassVar, NamedTuple, Self

import numpy as np
from pydantic import Field

from privacy_assets.distances.nearest import distance_to_other_subjects, nearest_rows
from privacy_assets.infra.settings import declared
from privacy_assets.metrics.base import Causes, Metric, Question
from privacy_assets.metrics.inputs import Budget, EvaluationInputs, target_rows
from privacy_assets.policy import Limit
from privacy_assets.stats import inference
from privacy_assets.stats.estimates import Estimate, MetricResult, StatisticSpec
from privacy_assets.stats.inference import PermutationResult
from privacy_assets.stats.subjects import MIN_SUBJECTS_PER_SIDE, Subjects
from privacy_assets.tables.column import ranked
from privacy_assets.tables.encoding import EncodedTable
from privacy_assets.tables.table import Table

_EVENNESS = (0, 1, 4, 16, 64, 256, 1024)  # shape parameters of the distribution of row frequencies, see row_weights
_ROUNDS, _CLOSE = 20, 1e-10  # iterations and tolerance for subjects with equal rows
_EQUAL = 20  # up to this number of equal rows of a subject the number of copies is binomial; above, its mean is used
_LITTLE = 1e-4  # copied share used instead of 0
_NOTHING = 1e-12  # used instead of an effect of 0, which means that copies cannot be detected
_OFTEN = 10  # times as frequent as in the real rows
_REPEATED = 10  # maximum number of subjects of a repeated row


class _Held(NamedTuple):
    """One entry per subject and group of identical rows; all arrays have shape (n,)."""

    whose: np.ndarray  # subject
    hits: np.ndarray  # number of synthetic rows in the group
    real: np.ndarray  # number of real rows in the group
    times: np.ndarray  # number of rows of this subject in the group
    part: np.ndarray  # their share of the subject's rows

    def take(self, which: np.ndarray) -> Self:
        """Return the entries where ``which``, bool (n,), is true."""
        return type(self)(*(values[which] for values in self))

    def mean_weights(self, people: int, evenness: float) -> np.ndarray:
        """Return the mean weight of each subject's rows, (people,)."""
        return np.bincount(self.whose, self.part * row_weights(self.hits, self.real, evenness), people)

    def added(self, share: float, evenness: float) -> float:
        """Return the expected increase of mean weights if rows are copied with probability ``share``, summed over
        subjects.
        """
        after = row_weights(self.hits + self.times * share, self.real, evenness)
        for number in np.unique(self.times[self.times <= _EQUAL]).tolist():
            here = self.times == number
            after[here] = sum(
                math.comb(number, k) * share**k * (1 - share) ** (number - k)
                * row_weights(self.hits[here] + k, self.real[here], evenness)
                for k in range(number + 1)
            )  # fmt: skip
        return float(self.part @ (after - row_weights(self.hits, self.real, evenness)))


def copied(
    cells: np.ndarray, synthetic: np.ndarray, people: Subjects, max_holders: int, difference: Difference
) -> PermutationResult:
    """Estimate ``exact_share`` and ``rare_share``, see :class:`.Copies`.

    Args:
        cells: Ids of the real rows, int64 (N,). Equal rows have equal ids.
        synthetic: Ids of the synthetic rows, int64 (n,).
        people: Subjects of the real rows.
        max_holders: Maximum number of subjects sharing a row that counts as rare.
        difference: Computes the member effect.

    Returns:
        Result with two entries.
    """
    cell, real, hits = _counted(cells, synthetic)
    own, times = np.unique(people.codes * len(real) + cell, return_counts=True)
    whose, where = np.divmod(own, len(real))
    every = _Held(whose, hits[where], real[where], times, times / people.totals()[whose])
    rare = every.take(np.bincount(where)[where] <= max_holders)
    evenness = [_most_telling(held, len(people)) for held in (every, rare)]
    weights = [held.mean_weights(len(people), even) for held, even in zip((every, rare), evenness, strict=True)]
    found = difference(np.stack(weights, axis=1))
    scale = np.array([
        _moved(apart, held, even, people.member)
        for apart, held, even in zip(found.observed.tolist(), (every, rare), evenness, strict=True)
    ])  # fmt: skip
    share = rare.part.sum() / len(people)  # share of rare rows
    return found.over(scale / [1.0, share if share > 0 else 1.0])


def row_weights(hits: np.ndarray, real: np.ndarray, evenness: float) -> np.ndarray:
    """Return the weights (n,) of rows with ``hits`` synthetic and ``real`` >= 1 real rows in their cell.

    If row frequencies follow a gamma distribution with shape a (``evenness``), the expected number of equal rows after
    s - 1 synthetic and r real ones is proportional to a + r + s - 1. The weight is s divided by this, and 0 if s = 0.
    It increases with s, up to 1.
    """
    return np.where(hits > 0, hits / np.maximum(evenness + real + hits - 1, 1), 0.0)


def _most_telling(held: _Held, people: int) -> int:
    """Return the shape parameter that maximizes the effect of copies in between-subject standard deviations.

    The choice does not use the labels.
    """

    def told(evenness: int) -> float:
        spread = float(held.mean_weights(people, evenness).std())
        return held.added(_LITTLE, evenness) / spread if spread > 0 else 0.0

    return max(_EVENNESS, key=told)


def _moved(apart: float, held: _Held, evenness: float, member: np.ndarray) -> float:
    """Return the effect of copies of all rows on the difference ``apart`` of mean weights, assuming proportionality.

    It is computed on the side that is not copied, or on both sides if that one has no such row. 1 if there are none.
    """
    left = member == (apart < 0)
    side = held.take(left[held.whose])
    side, people = (side, left.sum()) if len(side.whose) else (held, len(member))
    if not len(side.whose):
        return 1.0
    share, moved = 0.0, 1.0
    for _ in range(_ROUNDS):
        some, before = min(max(share, _LITTLE), 1.0), moved
        moved = max(side.added(some, evenness) / some / people, _NOTHING)
        share = abs(apart) / moved
        if math.isclose(moved, before, rel_tol=_CLOSE):  # in the first round if no subject has equal rows
            break
    return moved


def repeated(cells: np.ndarray, synthetic: np.ndarray, people: Subjects) -> float:
    """Estimate ``repeated_share``, see :class:`.Copies`.

    Arguments as in :func:`copied`; ``synthetic`` must not be empty.
    """
    cell, real, hits = _counted(cells, synthetic)
    pairs = np.unique(cell * len(people) + people.codes)
    held = np.bincount(pairs // len(people))
    member = np.bincount(pairs // len(people), people.member[pairs % len(people)]) > 0  # whether a member has the row
    often = (held <= _REPEATED) & (hits > _OFTEN * real * max(len(synthetic) / len(cells), 1))
    others = max(1 - people.members / len(people), 1 / len(people))
    by_chance = others ** -held[often].astype(np.float64) - 1  # expected cells with a member per cell of non-members
    counted = np.where(member[often], 1.0, -by_chance) @ hits[often]
    return float(max(counted, 0.0) / len(synthetic))


def _counted(cells: np.ndarray, synthetic: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the cell of each row (N,), from 0, and the numbers of real and of synthetic rows of each cell (cells,)."""
    known, cell = np.unique(cells, return_inverse=True)
    place = np.minimum(np.searchsorted(known, synthetic), len(known) - 1)
    return cell, np.bincount(cell), np.bincount(place[known[place] == synthetic], minlength=len(known))


Difference = Callable[[np.ndarray], PermutationResult]  # mean of members minus mean of non-members, for values (s, m)
TAILS = (0.2, 0.05, 0.01)
WEIGHT_NAMES = ("mean rank of all rows", *(f"{tail:.0%} of the best matching rows" for tail in TAILS))


def match_weights(real: Sequence[Table], synthetic: Table, rows: np.ndarray) -> np.ndarray:
    """Return the match weight in bits of real rows, float32 (n,).

    Agreeing cells contribute -log2 of the value's relative frequency in real rows, as in Fellegi and Sunter (1969) with
    independent columns; differing or missing cells contribute 0. Changed or removed cells therefore do not hide a copy
    of the others. The weight of a row is its maximum over the synthetic rows.

    Args:
        real: Real tables, which are stacked.
        synthetic: Synthetic table.
        rows: Positions of the n rows in the stacked tables.

    Returns:
        Weights, at least 0.
    """
    from privacy_assets.metrics._kernels import best_weights

    return best_weights(*coded(real, synthetic, rows))


def coded(real: Sequence[Table], synthetic: Table, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return codes and weights (F, n) of the real rows, and codes (F, m) of the synthetic rows."""
    codes, weights, others = [], [], []
    for name in synthetic.schema.names:
        *own, made = ranked([*(table[name] for table in real), synthetic[name]])[0]
        known = np.concatenate(own)
        others.append(made)
        shares = np.bincount(known[known >= 0], minlength=1) / len(known)
        codes.append(known[rows])
        bits = -np.log2(np.maximum(shares, 1 / len(known)))
        weights.append(np.where(codes[-1] >= 0, bits[codes[-1]], 0.0))
    return np.array(codes, np.int32), np.array(weights, np.float32), np.array(others, np.int32)


def advantages(weights: np.ndarray, people: Subjects, difference: Difference) -> PermutationResult:
    """Return the members' advantage in match weight: one entry for each of ``NAMES``, between -1 and 1.

    The first entry is 2 AUC - 1 (ties count half). The others are the difference between members and non-members in the
    share of rows among the best matching ones, where rows tied at the cut share the remaining places.
    """
    _, tied, counts = np.unique(weights, return_inverse=True, return_counts=True)
    above = len(weights) - np.cumsum(counts)  # rows with a larger weight
    parts = [1 - (2 * above + counts) / len(weights)]
    parts += [np.clip((tail * len(weights) - above) / counts, 0, 1) for tail in TAILS]
    rows = people.totals()
    values = np.stack([people.totals(part[tied]) / rows for part in parts], axis=1)
    return difference(values)


REACHES = (0.125, 0.25, 0.5)  # at most 0.5, so that a synthetic row can be near to rows of only one subject
NEAR_NAMES = tuple(f"within {reach:g} of the distance to another person" for reach in REACHES)
_MOSTLY_FULL = 0.9  # maximum share of near-copied rows that is corrected for; above it near copies cannot be detected


def nearness(inputs: EvaluationInputs) -> tuple[np.ndarray, np.ndarray]:
    """Score how nearly the release copies each row of the real tables stacked.

    A row is its subject's own if no other subject has an equal row. If the subject has nine or more equal rows, they do
    not count as own. With distances d to the nearest synthetic row and b to the nearest row of another subject, the
    score is max(0, 1 - (d / (reach b))^2), and 0 for rows that are not own.

    Returns:
        Scores, shape (N, reaches), and whether each row is own, bool (N,).
    """
    real = EncodedTable.stack([inputs.encoded(role) for role in inputs.real_roles])
    apart = distance_to_other_subjects(real, inputs.all_subjects.codes, inputs.device)
    away = nearest_rows(real, inputs.encoded("synthetic"), device=inputs.device).distances[:, 0]
    own = apart > 0
    ratio = np.divide(away, apart, out=np.full(len(apart), np.inf), where=own)
    return np.maximum(1 - (ratio[:, None] / np.array(REACHES)) ** 2, 0), own


def near_shares(near: np.ndarray, own: np.ndarray, people: Subjects, difference: Difference) -> PermutationResult:
    """Estimate ``near_share``, see :class:`.Copies`.

    Args:
        near: Scores, shape (N, reaches), see :func:`nearness`.
        own: Whether each row is own, bool (N,).
        people: Subjects of the rows.
        difference: Computes the member effect.

    Returns:
        Result with one entry for each of ``REACHES``.
    """
    rows = people.totals()
    values = np.stack([people.totals(part) / rows for part in near.T], axis=1)
    held = people.totals(own.astype(np.float64)) / rows
    found, unseen = difference(values), ~people.member
    full = values[unseen].mean(axis=0) / max(float(held[unseen].mean()), 1 / len(own))
    return found.over(1 - np.minimum(full, _MOSTLY_FULL))


@declared
class Copies(Metric):
    """Share of training rows that the release copies, in full or in part, beyond chance.

    All statistics compare members (subjects in train) with non-members (holdout and reference). Subjects have equal
    weight.

    Args:
        max_holders: Maximum number of subjects sharing a row that counts as rare.
        max_targets: Maximum number of real rows attacked by ``partial_advantage``, drawn by subject. None: all rows.
        n_permutations: Number of permutations of the membership labels.

    Attributes:
        exact_share: Estimated share of training rows copied verbatim. 0: chance, 1: copy of train, negative: training
            rows are avoided.
        rare_share: Same estimate for rare rows only, multiplied by their mean share per subject. Exactly 0 if no row is
            rare.
        partial_advantage: Members' advantage in match weight (:func:`match_weights`): the strongest of
            2 AUC - 1 and the differences among the top 20, 5 and 1 % of rows.
        near_share: Estimated share of training subjects whose own row is nearly copied; distant near copies count
            partially.
        repeated_share: Share of synthetic rows repeating a rare training row excessively, minus the chance level,
            clipped at 0. No interval.

    Notes:
        A cell contains all rows that agree in every column (missing equals missing): s synthetic and r real ones. Each
        real row has weight s / (a + r + s - 1), or 0 if s = 0. If row frequencies follow a gamma distribution with
        shape a, the expected count is proportional to a + r + s - 1, and the weight is the score of a mixture of
        population and training rows. ``a`` maximizes, without using labels, the effect of copies in between-subject
        standard deviations. The share is the x that solves

            mean weight of members - mean weight of non-members
                = non-members' mean of w(s + K, r) - w(s, r), K ~ Binomial(n, x),

        where n is the subject's number of rows in the cell (if n > 20, K is its mean). If the left side is negative,
        the groups are swapped.

        ``rare_share`` ignores common rows: copies of them single out no subject.

        ``near_share``: with distances d to the nearest synthetic row and b to the nearest real row of another subject,
        a real row scores max(0, 1 - (d / (c b))^2), or 0 if another subject has it. The difference in mean score is
        divided by 1 minus the non-members' score relative to their share of own rows. The strongest of c = 1/8, 1/4,
        1/2 is reported.

        ``repeated_share`` counts cells of at most ten subjects, one a member, that occur over ten times as often in the
        release as in the real rows (adjusted for a longer release). Cells of non-members only are subtracted, weighted
        for expectation 0 under permuted labels.

        Intervals permute labels and resample subjects: 95 %, or 99.5 % jointly for ``partial_advantage`` and
        ``near_share``. Not measurable with fewer than 20 subjects in train or holdout, or 20 synthetic rows. Source:
        none.
        Validation: ``benchmarks/results/copies.md``.
    """

    max_holders: int = Field(default=2, ge=1, description="maximum number of people sharing a rare row")
    max_targets: Budget = Field(
        default=20_000, description="maximum number of rows attacked in part; default: all rows"
    )
    n_permutations: int = Field(default=1000, ge=199, description="number of permutations of the membership labels")

    name: ClassVar[str] = "copies"
    summary: ClassVar[str] = "Which share of the training rows does the release copy, beyond chance?"
    required_inputs: ClassVar[frozenset[str]] = frozenset({"train", "holdout", "synthetic"})
    optional_inputs: ClassVar[frozenset[str]] = frozenset({"reference"})
    statistics: ClassVar[tuple[StatisticSpec, ...]] = (
        StatisticSpec("exact_share", "Share of training rows that the release repeats, beyond chance.", "two_sided"),
        StatisticSpec(
            "rare_share", "Share of training people whose own row the release repeats, beyond chance.", "two_sided"
        ),
        StatisticSpec(
            "partial_advantage", "Members' advantage in rare values shared with a synthetic row.", "two_sided"
        ),
        StatisticSpec(
            "near_share",
            "Share of training people whose own row is nearly copied, beyond chance.",
            "two_sided",
        ),
        StatisticSpec(
            "repeated_share",
            "Share of synthetic rows that repeat, many times, a row of a training person and few others.",
        ),
    )
    default_limits: ClassVar[tuple[Limit, ...]] = (
        Limit(
            "copies.rare_share",
            at_most=0.04,
            source="chosen: 5 % copies of rare rows exceed it, fresh rows of 1,700 people mostly do not",
        ),
        Limit(
            "copies.rare_share",
            at_most=0.01,
            bound="significant",
            source="significant at 95 %; tolerates trees with leaves of 100 people on coarse codes (exceeded in 1 of "
            "219 releases of 18 tables with at least 1,500 people)",
        ),
        Limit(
            "copies.partial_advantage",
            at_most=0.015,
            bound="significant",
            source="significant at 99.5 % over all tails jointly; tolerates trees with leaves of 100 people and "
            "Bayesian networks (exceeded in 2 of 82 releases of 15 tables; see the lab report on leaks)",
        ),
        Limit(
            "copies.repeated_share",
            at_most=0.01,
            source="chosen: without deliberate repetition such rows are very rare (0.008 for a TVAE on coarse codes)",
        ),
    )
    small_policy_limits: ClassVar[Mapping[str, float]] = {
        "copies.rare_share": 0.08,
        "copies.rare_share.significant": 0.02,
    }
    causes: ClassVar[Causes] = Causes("copied rows", {"partial_advantage": "over-fitting"})
    question: ClassVar[Question | None] = "copies"

    def measure(self, inputs: EvaluationInputs) -> MetricResult:
        """Compute the statistics. There are no tables."""
        people = inputs.all_subjects
        sides = [np.unique(inputs.subject_codes(role)).size for role in ("train", "holdout")]
        if min(*sides, people.smallest_side, len(inputs.synthetic)) < MIN_SUBJECTS_PER_SIDE:
            fewest = MIN_SUBJECTS_PER_SIDE
            reason = f"train and holdout need at least {fewest} people each, and the release {fewest} rows"
            return self.not_measurable(inputs, reason, people.counts)
        cells = np.concatenate([inputs.row_ids[role] for role in inputs.real_roles])
        difference = partial(
            inference.mean_difference,
            subjects=people,
            n_permutations=self.n_permutations,
            rng=inputs.rng("copies labels"),
        )
        shares = share_estimates(
            copied(cells, inputs.row_ids["synthetic"], people, self.max_holders, difference), people
        )
        share = repeated(cells, inputs.row_ids["synthetic"], people)
        often = self.statistic("repeated_share").estimate(
            share, share, share, people.counts, minimum_detectable_effect=0.0
        )
        return self.result(inputs, (*shares, self._partial(inputs), self._near(inputs), often))

    def _near(self, inputs: EvaluationInputs) -> Estimate:
        people, rng = inputs.all_subjects, inputs.rng("copies.near labels")
        difference = partial(inference.mean_difference, subjects=people, n_permutations=self.n_permutations, rng=rng)
        found = near_shares(*nearness(inputs), people, difference)
        return found.worst(self.statistic("near_share"), people.counts, NEAR_NAMES, "strongest")

    def _partial(self, inputs: EvaluationInputs) -> Estimate:
        people = inputs.all_subjects
        rows = target_rows(inputs, inputs.real_roles, self.max_targets, "copies.attacked")
        attacked = people if rows is None else people.take(rows)
        if attacked.smallest_side < MIN_SUBJECTS_PER_SIDE:
            return self.statistics[2].missing("too few attacked people", attacked.counts)
        weights = match_weights(inputs.real, inputs.synthetic, np.arange(len(people.codes)) if rows is None else rows)
        rng = inputs.rng("copies.partial labels")
        difference = partial(inference.mean_difference, subjects=attacked, n_permutations=self.n_permutations, rng=rng)
        return partial_estimate(advantages(weights, attacked, difference), attacked)


def share_estimates(found: PermutationResult, people: Subjects) -> list[Estimate]:
    """Return ``exact_share`` and ``rare_share`` from the result of :func:`copied`."""
    specs = enumerate(Copies.statistics[:2])
    return [found[[at]].estimate(spec, people.counts, within=(-1, 1)) for at, spec in specs]


def partial_estimate(found: PermutationResult, people: Subjects) -> Estimate:
    """Return ``partial_advantage`` from the result of :func:`advantages`."""
    return found.worst(Copies.statistic("partial_advantage"), people.counts, WEIGHT_NAMES, "strongest")
