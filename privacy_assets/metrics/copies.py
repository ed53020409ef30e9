"""Copies of training rows in the release, in full, with few changed cells or in part, beyond
chance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import NormalDist
from typing import ClassVar

import numpy as np
from pydantic import Field

from privacy_assets.distances.mixed_tree import MixedTree
from privacy_assets.distances.nearest import distinct_encoded
from privacy_assets.infra.settings import declared
from privacy_assets.metrics.base import Causes, Metric, Plot, Question, SharePlot
from privacy_assets.metrics.inputs import Budget, EvaluationInputs, target_rows
from privacy_assets.policy import NARROW, Limit
from privacy_assets.stats import inference
from privacy_assets.stats.estimates import Estimate, MetricResult, StatisticSpec
from privacy_assets.stats.inference import PermutationResult
from privacy_assets.stats.subjects import MIN_SUBJECTS_PER_SIDE, Subjects
from privacy_assets.tables.column import ranked
from privacy_assets.tables.encoding import EncodedTable
from privacy_assets.tables.table import Table

SIMILARITY = (1.0, 1 / 3, 1 / 9)  # of rows that differ in no, one and two cells
CHANGED_NAMES = ("up to 1 changed cell", "up to 2 changed cells")
# similarity added to that of all other rows, so that a row without similar rows has a finite weight
_FEW = 0.5
_OFTEN = 3  # times as frequent as in the real rows, and minimum number of repetitions
_REPEATED = 10  # maximum number of subjects of a repeated row
_REPEATED_CONFIDENCE = 0.95
_REPEATED_Z = NormalDist().inv_cdf((1 + _REPEATED_CONFIDENCE) / 2)
# share of holdout rows in the release from which a table is too narrow to find copies
_NARROW = 0.3
# repeated rows of unseen people that the interval assumes in addition to those found
_BY_CHANCE = 2


# mean of members minus mean of non-members, for values (s, m)
Difference = Callable[[np.ndarray], PermutationResult]


@dataclass(frozen=True, eq=False)
class SimilarRows:
    """Rows that differ from real rows in at most two cells.

    Attributes:
        made: Numbers of distinct synthetic rows that differ in no, one and two cells, shape (3, n).
        others: The same for real rows of other subjects, shape (3, n). Equal rows of a subject
            count once.
        max_holders: Maximum number of subjects sharing a row that is a subject's own.
    """

    made: np.ndarray
    others: np.ndarray
    max_holders: int

    def with_more(self, made: np.ndarray) -> SimilarRows:
        """Add the numbers ``made`` of further rows, which count even if the release has equal
        rows.
        """
        return replace(self, made=self.made + made)

    @property
    def own(self) -> np.ndarray:
        """Whether a row is its subject's own, bool (n,)."""
        return np.asarray(self.others[0] < self.max_holders)

    def weights(self, changed: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the weights of the rows as they are, and if the release also had an exact copy;
        shape (n,) each.

        The weight of a row whose most similar synthetic row has the similarity b is b / (0.5 + D),
        where D is the sum of similarities over all other rows, real and synthetic, that differ in
        at most ``changed`` + 1 cells (at most 2): in a dense region, similar rows are expected.
        Rows that are not own have weight 0.
        """
        reach = range(min(changed + 1, 2) + 1)
        dense = _FEW + np.sum(
            [SIMILARITY[at] * (self.made[at] + self.others[at]) for at in reach], axis=0
        )
        best = np.max([SIMILARITY[at] * (self.made[at] > 0) for at in range(changed + 1)], axis=0)
        now = best / (dense - best)
        return now * self.own, np.where(best < 1, 1 / dense, now) * self.own


def copied(similar: SimilarRows, people: Subjects, difference: Difference) -> PermutationResult:
    """Estimate ``copied_share`` and ``changed_share``, see :class:`.Copies`.

    Args:
        similar: Similar rows of the real rows.
        people: Subjects of the real rows.
        difference: Computes the member effect.

    Returns:
        Result with three entries: up to 0, 1 and 2 changed cells.
    """
    rows = people.totals()
    weights = [
        [people.totals(part) / rows for part in similar.weights(changed)] for changed in range(3)
    ]
    now, then = np.swapaxes(np.array(weights), 0, 1)
    found = difference(now.T)
    # The expected effect of copying all rows, seen where few are copied: members may be avoided.
    sides = [people.member if apart < 0 else ~people.member for apart in found.observed.tolist()]
    added = np.array([more[side].mean() for more, side in zip(then - now, sides, strict=True)])
    owned = float((people.totals(similar.own) / rows).mean())
    return found.over(np.where(added > 0, added, 1.0) / (owned or 1.0))


def repeated(
    cells: np.ndarray,
    synthetic: np.ndarray,
    people: Subjects,
    similar: Callable[[np.ndarray], np.ndarray],
) -> tuple[float, float]:
    """Estimate ``repeated_share``, see :class:`.Copies`.

    Args:
        cells: Ids of the real rows, int64 (N,). Equal rows have equal ids.
        synthetic: Ids of the synthetic rows, int64 (n,), n > 0.
        people: Subjects of the real rows.
        similar: Returns for positions (n,) of real rows the numbers of rows of other subjects that
            differ in one cell, int64 (n,).

    Returns:
        The estimate, and half the length of its interval.
    """
    known, first, cell = np.unique(cells, return_index=True, return_inverse=True)
    place = np.minimum(np.searchsorted(known, synthetic), len(known) - 1)
    real, hits = (
        np.bincount(cell),
        np.bincount(place[known[place] == synthetic], minlength=len(known)),
    )
    pairs = np.unique(cell * len(people) + people.codes)
    held = np.bincount(pairs // len(people))
    # whether a member has the row
    member = np.bincount(pairs // len(people), people.member[pairs % len(people)]) > 0
    longer = max(len(synthetic) / len(cells), 1)
    fewest = _OFTEN * longer
    often = np.flatnonzero((held <= _REPEATED) & (hits >= fewest * real))
    often = often[hits[often] >= longer * (real[often] + SIMILARITY[1] * similar(first[often]))]
    unseen = max(1 - people.members / len(people), 1 / len(people)) ** held[often].astype(
        np.float64
    )
    counted = np.where(member[often], 1.0, 1 - 1 / unseen) @ hits[often]
    spread = ((~member[often]) * (1 - unseen) / unseen**2) @ hits[often] ** 2.0
    alone = max(1 - people.members / len(people), 1 / len(people))
    spread += _BY_CHANCE * (1 - alone) / alone * fewest**2
    return float(counted / len(synthetic)), _REPEATED_Z * math.sqrt(spread) / len(synthetic)


TAILS = (0.2, 0.05, 0.01)
_FEWEST_BEST, _MOST_BEST = 50, 500  # best matching rows that show which columns match
WEIGHT_NAMES = (
    "mean rank of all rows",
    *(f"{100 * tail:.0f} % of the best matching rows" for tail in TAILS),
)


def coded(
    real: Sequence[Table], synthetic: Table, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return codes (F, N) of all real rows, match weights (F, n) of ``rows``, and codes (F, m) of
    synthetic rows.

    The match weight of a cell is -log2 of the value's relative frequency in real rows, as in
    Fellegi and Sunter (1969) with independent columns; that of a missing cell is 0. The match
    weight of a row is the largest sum over cells that agree with one synthetic row. Changed or
    removed cells therefore do not hide a copy of the others.

    Args:
        real: Real tables, which are stacked.
        synthetic: Synthetic table.
        rows: Positions of the n rows in the stacked tables.
    """
    codes, weights, others = [], [], []
    for name in synthetic.schema.names:
        *own, made = ranked([*(table[name] for table in real), synthetic[name]])[0]
        known = np.concatenate(own)
        codes.append(known)
        others.append(made)
        shares = np.bincount(known[known >= 0], minlength=1) / len(known)
        bits = -np.log2(np.maximum(shares, 1 / len(known)))
        weights.append(np.where(known[rows] >= 0, bits[known[rows]], 0.0))
    return np.array(codes, np.int32), np.array(weights, np.float32), np.array(others, np.int32)


def similar_rows(
    real: np.ndarray, synthetic: np.ndarray, people: np.ndarray, rows: np.ndarray, max_holders: int
) -> SimilarRows:
    """Find the similar rows of some real rows.

    Args:
        real: Codes (F, N) of all real rows, see :func:`coded`.
        synthetic: Codes (F, m) of the synthetic rows.
        people: Subject of each real row, int64 (N,).
        rows: Positions of the n rows.
        max_holders: Maximum number of subjects sharing a row that is a subject's own.

    Returns:
        The numbers of similar rows.
    """
    asked = real[:, rows]
    distinct, _ = distinct_encoded(_cells(synthetic, _sizes(asked, synthetic)))
    made = _count_changed(asked, distinct, np.ones(len(distinct)))
    return SimilarRows(made, similar_people(real, people, rows), max_holders)


def similar_people(real: np.ndarray, people: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the numbers of other subjects' rows that differ from real ``rows`` (n,) in no, one and
    two cells, (3, n).

    For ``real`` and ``people`` see :func:`similar_rows`. Equal rows of a subject count once.
    """
    if len(rows) == 0:
        return np.zeros((3, 0), np.int64)
    distinct, place = distinct_encoded(_cells(real, _sizes(real)))
    pairs, once = np.unique(people * len(distinct) + place, return_index=True)  # ordered by subject
    counts = _count_changed(real[:, rows], distinct, np.bincount(pairs % len(distinct)))
    owners, own = people[once], people[rows]
    first, end = (np.searchsorted(owners, own, side) for side in ("left", "right"))
    for step in range(int((end - first).max(initial=0))):  # subtract the rows of the same subject
        at = np.flatnonzero(first + step < end)
        changed = (real[:, once[first[at] + step]] != real[:, rows[at]]).sum(axis=0)
        near = changed <= 2
        counts[changed[near], at[near]] -= 1
    return counts


def _count_changed(asked: np.ndarray, distinct: EncodedTable, weights: np.ndarray) -> np.ndarray:
    """Sum the weights of distinct rows that differ from each of ``asked`` (F, n) in no, one and two
    cells, (3, n).
    """
    if asked.shape[1] == 0 or len(distinct) == 0:
        return np.zeros((3, asked.shape[1]), np.int64)
    rows, place = distinct_encoded(_cells(asked, distinct.sizes))
    tree = MixedTree.build(distinct)
    within = [tree.weigh(rows, math.sqrt(changed), weights) for changed in range(3)]
    return np.diff(within, axis=0, prepend=0)[:, place].astype(np.int64)


def _cells(codes: np.ndarray, sizes: np.ndarray) -> EncodedTable:
    """Encode rows (F, n) so that their squared distance is the number of different cells."""
    return EncodedTable(
        np.zeros((codes.shape[1], 0), np.float32), (codes.T + 1).astype(np.int32), sizes
    )


def _sizes(*tables: np.ndarray) -> np.ndarray:
    return np.asarray(
        np.max([codes.max(axis=1, initial=-1) for codes in tables], axis=0) + 2, np.int64
    )


def released_matches(
    inputs: EvaluationInputs, most: int | None, max_holders: int
) -> tuple[SimilarRows, np.ndarray]:
    """Return the similar rows of each attacked row, and its match weight, see :func:`coded`.

    Args:
        inputs: Tables of one release.
        most: Maximum number of attacked rows. None: all rows.
        max_holders: See :func:`similar_rows`.
    """
    from privacy_assets.metrics._kernels import best_weights

    people, rows = inputs.all_subjects.codes, attacked_rows(inputs, most)
    real, weights, made = coded(inputs.real, inputs.synthetic, rows)
    matched = best_weights(np.ascontiguousarray(real[:, rows]), weights, made)
    return similar_rows(real, made, people, rows, max_holders), matched


def attacked_rows(inputs: EvaluationInputs, most: int | None) -> np.ndarray:
    """Return the positions of the attacked rows in the stacked real tables, at most ``most``. None:
    all rows.
    """
    rows = target_rows(inputs, inputs.real_roles, most, "copies.attacked")
    return np.arange(len(inputs.all_subjects.codes)) if rows is None else rows


def advantages(weights: np.ndarray, people: Subjects, difference: Difference) -> PermutationResult:
    """Return the members' advantage in match weight: one entry for each of ``WEIGHT_NAMES``,
    between -1 and 1.

    The first entry is 2 AUC - 1 (ties count half). The others are the difference between members
    and non-members in the share of rows among the best matching ones, where rows tied at the cut
    share the remaining places.
    """
    _, tied, counts = np.unique(weights, return_inverse=True, return_counts=True)
    above = len(weights) - np.cumsum(counts)  # rows with a larger weight
    parts = [1 - (2 * above + counts) / len(weights)]
    parts += [np.clip((tail * len(weights) - above) / counts, 0, 1) for tail in TAILS]
    rows = people.totals()
    values = np.stack([people.totals(part[tied]) / rows for part in parts], axis=1)
    return difference(values)


def matched_columns(
    own: np.ndarray,
    weights: np.ndarray,
    synthetic: np.ndarray,
    matched: np.ndarray,
    people: Subjects,
) -> np.ndarray:
    """Return how much each column contributes to the match of members beyond that of non-members.

    Args:
        own: Codes (F, n) of the attacked rows.
        weights: Match weights (F, n) of their cells.
        synthetic: Codes (F, m) of the synthetic rows.
        matched: Match weight of each attacked row, see :func:`coded`.
        people: Subjects of the attacked rows.

    Returns:
        Share of each column in the members' advantage in bits among the best matching rows, float64
        (F,). It is 0 for columns in which members match no better.
    """
    best = np.argsort(-matched, kind="stable")[
        : max(_FEWEST_BEST, min(int(TAILS[-1] * len(matched)), _MOST_BEST))
    ]
    bits = np.empty((len(own), len(best)))
    for at, row in enumerate(best.tolist()):
        agrees = synthetic == own[:, [row]]
        bits[:, at] = weights[:, row] * agrees[:, int((weights[:, row] @ agrees).argmax())]
    member = people.member[people.codes[best]]
    others = len(people) - people.members
    more = bits[:, member].sum(axis=1) / people.members - bits[:, ~member].sum(axis=1) / others
    more = np.maximum(more, 0)
    return np.asarray(more / (more.sum() or 1.0))


@declared
class Copies(Metric):
    """Share of training people whose row the release copies, in full or in part, beyond chance.

    All statistics compare members (subjects in train) with non-members (holdout and reference).
    Subjects have equal weight.

    Args:
        max_holders: Maximum number of subjects sharing a row that is a subject's own.
        max_targets: Maximum number of real rows attacked, drawn by subject. None: all rows.
        n_permutations: Number of permutations of the membership labels.

    Attributes:
        copied_share: Estimated share of training people whose own row is copied verbatim. 0:
            chance, negative: training rows are avoided. Exactly 0 if there are no own rows.
        changed_share: The same for copies with up to one or up to two changed cells (the stronger
            of both). A copy with one changed cell counts as a third of a copy, one with two as a
            ninth.
        partial_advantage: Members' advantage in match weight (:func:`coded`): the strongest of
            2 AUC - 1 and the differences among the top 20, 5 and 1 % of rows.
        repeated_share: Share of synthetic rows that repeat a rare training row at least three
            times, minus the share that repeats rows of unseen people.

    Notes:
        A row is its subject's own if at most ``max_holders`` subjects have it (missing equals
        missing). Equal rows of the release, or of a subject, count once. A synthetic row that
        differs in 0, 1 or 2 cells has the similarity 1, 1/3 or 1/9. A real row with the most
        similar synthetic row at b and the sum D of the similarities of all other rows (real and
        synthetic, with at most j + 1 changed cells) has the weight b / (0.5 + D) if b counts at
        most j changed cells: a match is evidence where few people are similar. The share is

            (mean weight of members - mean weight of non-members) / mean increase for non-members by
            one exact copy,

        times the share of own rows.

        ``repeated_share`` counts rows of at most ten people, one a member, that the release has at
        least three times, three times as often as the real rows, and as often as the real rows and
        a third of the rows that differ in one cell together: in a dense region, repeated rows are
        expected. Rows of non-members only are subtracted, weighted for expectation 0 under permuted
        labels. The interval (95 %) is normal, with the variance that the rows of unseen people
        show, plus that of two rows: whether a member is repeated by chance is judged by how often
        unseen people are.

        Other intervals permute labels and resample subjects: 95 % for ``copied_share``, 99.5 %
        jointly for ``partial_advantage`` and ``changed_share``. Not measurable with fewer than 20
        subjects in train or holdout, or 20 synthetic rows. Source: none. Validation:
        ``benchmarks/results/copies.md``.
    """

    max_holders: int = Field(
        default=2, ge=1, description="maximum number of people sharing a rare row"
    )
    max_targets: Budget = Field(
        default=20_000, description="maximum number of attacked rows; default: all rows"
    )
    n_permutations: int = Field(
        default=1000, ge=199, description="number of permutations of the membership labels"
    )

    name: ClassVar[str] = "copies"
    summary: ClassVar[str] = (
        "Which share of the training rows does the release copy, beyond chance?"
    )
    required_inputs: ClassVar[frozenset[str]] = frozenset({"train", "holdout", "synthetic"})
    optional_inputs: ClassVar[frozenset[str]] = frozenset({"reference"})
    statistics: ClassVar[tuple[StatisticSpec, ...]] = (
        StatisticSpec(
            "copied_share",
            "Share of people in the training data whose own row is in the release, minus the"
            " share expected by chance.",
            "two_sided",
            leak="it copied the rows of {share} of the people in the training data{people}",
        ),
        StatisticSpec(
            "changed_share",
            "Share of people in the training data whose own row is in the release with at most"
            " two cells changed,"
            " minus the share expected by chance.",
            "two_sided",
            leak="it copied the rows of {share} of the people in the training data{people} with at"
            " most two cells"
            " changed",
        ),
        StatisticSpec(
            "partial_advantage",
            "Advantage of an attacker who calls people members if they share rare values with a"
            " released row.",
            "two_sided",
            leak="rare values gave an attacker an advantage of {share}",
        ),
        StatisticSpec(
            "repeated_share",
            "Share of released rows that are three or more equal rows, where at most ten people"
            " have this row and one"
            " of them is in the training data, minus the share expected by chance.",
            seen_in_copy=False,
            leak="{share} of the released rows repeated a rare row of a person in the"
            " training data",
        ),
    )
    default_limits: ClassVar[tuple[Limit, ...]] = (
        Limit(
            "copies.copied_share",
            at_most=0.04,
            source="chosen: 5 % copies of rare rows exceed it, fresh rows of 1,700 people mostly"
            " do not",
        ),
        Limit(
            "copies.copied_share",
            at_most=0.003,
            bound="proven",
            source="significant at 95 %; see the lab report on leaks",
        ),
        Limit(
            "copies.changed_share",
            at_most=0.003,
            bound="proven",
            source="significant at 99.5 % over up to one and up to two changed cells jointly; see"
            " the lab report on "
            "leaks",
        ),
        Limit(
            "copies.partial_advantage",
            at_most=0.015,
            bound="proven",
            source="significant at 99.5 % over all tails jointly; tolerates trees with leaves"
            " of 100"
            " people and "
            "Bayesian networks (exceeded in 2 of 82 releases of 15 tables; see the lab report"
            " on leaks)",
        ),
        Limit(
            "copies.repeated_share",
            at_most=0.005,
            bound="proven",
            source="significant at 95 %; see the lab report on leaks",
        ),
    )
    small_policy_limits: ClassVar[Mapping[str, float]] = {
        "copies.copied_share": 0.08,
        "copies.copied_share.proven": 0.006,
    }
    plots: ClassVar[tuple[Plot, ...]] = (
        SharePlot(
            table="matched_columns",
            caption="Columns in which training people agree with released rows more than unseen"
            " people do. The bars "
            "are shares of the difference in bits among the best matching rows.",
            label="column",
            series={"share": "share of the difference"},
        ),
    )
    causes: ClassVar[Causes] = Causes("copied rows", {"partial_advantage": "over-fitting"})
    question: ClassVar[Question | None] = "copies"

    def measure(self, inputs: EvaluationInputs) -> MetricResult:
        """Compute the statistics, and if one is above chance the table ``matched_columns``: column
        and share.
        """
        people = inputs.all_subjects
        sides = [np.unique(inputs.subject_codes(role)).size for role in ("train", "holdout")]
        rows = attacked_rows(inputs, self.max_targets)
        attacked = people if len(rows) == len(people.codes) else people.take(rows)
        if min(*sides, attacked.smallest_side, len(inputs.synthetic)) < MIN_SUBJECTS_PER_SIDE:
            fewest = MIN_SUBJECTS_PER_SIDE
            reason = (
                f"train and holdout need at least {fewest} people each, and the release"
                f" {fewest} rows"
            )
            return self.not_measurable(inputs, reason, people.counts)
        similar, matched = inputs.once(released_matches, self.max_targets, self.max_holders)
        real, weights, made = coded(inputs.real, inputs.synthetic, rows)
        labels = self._difference(inputs, attacked, "copies labels")
        shares = share_estimates(copied(similar, attacked, labels), attacked)
        shares = (replace(shares[0], note=narrow_note(inputs)), shares[1])
        difference = self._difference(inputs, attacked, "copies.partial labels")
        partly = partial_estimate(advantages(matched, attacked, difference), attacked)
        cells = np.concatenate([inputs.row_ids[role] for role in inputs.real_roles])
        share, half = repeated(
            cells, inputs.row_ids["synthetic"], people,
            lambda asked: similar_people(real, people.codes, asked)[1],
        )  # fmt: skip
        often = self.statistic("repeated_share").estimate(
            max(share, 0.0),
            min(max(share - half, -1.0), 1.0),
            min(max(share + half, 0.0), 1.0),
            people.counts,
            confidence=_REPEATED_CONFIDENCE,
            minimum_detectable_effect=2 * half,
        )
        estimates = (*shares, partly, often)
        tables = {}
        if any(one.low > 0 for one in estimates):
            driving = matched_columns(real[:, rows], weights, made, matched, attacked)
            order = np.argsort(-driving, kind="stable")
            tables["matched_columns"] = [
                {"column": inputs.schema.names[column], "share": float(driving[column])}
                for column in order.tolist()
                if driving[column] > 0
            ]
        return self.result(inputs, estimates, **tables)

    def _difference(self, inputs: EvaluationInputs, people: Subjects, purpose: str) -> Difference:
        rng = inputs.rng(purpose)
        return partial(
            inference.mean_difference, subjects=people, n_permutations=self.n_permutations, rng=rng
        )


def narrow_note(inputs: EvaluationInputs) -> str:
    """State the share of holdout rows that the release has, or "" if it is below 30 %.

    In a table of few columns, copies cannot be distinguished from rows that many people have. More
    people do not help.
    """
    by_chance = float(np.isin(inputs.row_ids["holdout"], inputs.row_ids["synthetic"]).mean())
    if by_chance < _NARROW:
        return ""
    columns = "1 column" if len(inputs.schema.names) == 1 else f"{len(inputs.schema.names)} columns"
    return f"with {columns}, {by_chance:.0%} {NARROW}"


def share_estimates(found: PermutationResult, people: Subjects) -> tuple[Estimate, Estimate]:
    """Return ``copied_share`` and ``changed_share`` from the result of :func:`copied`."""
    (whole, changed), fewest = Copies.statistics[:2], people.smallest_side
    return (
        found[[0]].estimate(whole, people.counts, within=(-1, 1), people=fewest),
        found[1:].worst(changed, people.counts, CHANGED_NAMES, "strongest", people=fewest),
    )


def partial_estimate(found: PermutationResult, people: Subjects) -> Estimate:
    """Return ``partial_advantage`` from the result of :func:`advantages`."""
    return found.worst(
        Copies.statistic("partial_advantage"), people.counts, WEIGHT_NAMES, "strongest"
    )
