"""Copies of training rows in the release, in full, with few changed cells or in part, beyond
chance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import NormalDist
from typing import ClassVar, NamedTuple

import numpy as np
from pydantic import Field

from privacy_assets.distances.mixed_tree import MixedTree
from privacy_assets.distances.nearest import distinct_encoded
from privacy_assets.infra.settings import declared
from privacy_assets.metrics.base import Causes, Metric, Plot, Question, SharePlot
from privacy_assets.metrics.inputs import EvaluationInputs, MaxTargets, target_rows
from privacy_assets.policy import NARROW, Limit
from privacy_assets.stats import inference
from privacy_assets.stats.estimates import Estimate, MetricResult, StatisticSpec
from privacy_assets.stats.inference import PermutationResult
from privacy_assets.stats.intervals import CONFIDENCE, LEAK_CONFIDENCE
from privacy_assets.stats.subjects import MIN_SUBJECTS_PER_SIDE, Subjects
from privacy_assets.tables.column import ranked
from privacy_assets.tables.encoding import EncodedTable
from privacy_assets.tables.table import Table

SIMILARITY = (1.0, 1 / 3, 1 / 9)  # of rows that differ in no, one and two cells
CHANGED_NAMES = ("up to 1 changed cell", "up to 2 changed cells")
# similarity added to that of all other rows, so that a row without similar rows has a finite weight
_PRIOR_SIMILARITY = 0.5
_MIN_COPIES = 3  # copies of a repeated row in the release, for each equal real row
_MAX_REPEATED_HOLDERS = 10  # maximum number of subjects who have a repeated row
_REPEATED_CONFIDENCE = 0.95
_REPEATED_Z = NormalDist().inv_cdf((1 + _REPEATED_CONFIDENCE) / 2)
# share of holdout rows in the release from which a table is too narrow to find copies
_NARROW = 0.3
# number of columns up to which copies are not decided in such a table
_MOST_UNDECIDED_COLUMNS = 2
# Half the length of the 95 % interval of copied_share above which its end nearer to 0 is at 99.5 %:
# ten times the tolerance of the limit on this end. So long an interval exceeds that limit by chance
# in 3 % of releases. Under the policy default, a release that then no longer fails is undecided,
# because the other end is above the limit of 0.04.
_LARGEST_ERROR_AT_95 = 0.03
# repeated rows of one holder each, whose variance the interval adds to the observed one
_N_ASSUMED = 2


# mean of members minus mean of non-members, for values (s, m)
Difference = Callable[[np.ndarray], PermutationResult]


@dataclass(frozen=True, eq=False)
class SimilarRows:
    """Rows that differ from real rows in at most two cells.

    Attributes:
        n_synthetic: Numbers of distinct synthetic rows that differ in no, one and two cells, shape
            (3, n).
        n_real: The same for real rows of other subjects, shape (3, n). Equal rows of a subject
            count once.
        max_holders: Maximum number of subjects sharing a row that is a subject's own.
    """

    n_synthetic: np.ndarray
    n_real: np.ndarray
    max_holders: int

    def with_more(self, n_synthetic: np.ndarray) -> SimilarRows:
        """Add the numbers (3, n) of further synthetic rows, which count even if the release has
        equal rows.
        """
        return replace(self, n_synthetic=self.n_synthetic + n_synthetic)

    @property
    def is_own(self) -> np.ndarray:
        """Whether a row is its subject's own, bool (n,)."""
        return np.asarray(self.n_real[0] < self.max_holders)

    def weights(self, changed: int) -> tuple[np.ndarray, np.ndarray]:
        """Weigh the rows by their similarity to the release.

        The weight of a row whose most similar synthetic row has the similarity b is b / (0.5 + D),
        where D is the sum of similarities over all other rows, real and synthetic, that differ in
        at most ``changed`` + 1 cells (at most 2): in a dense region, similar rows are expected.
        Rows that are not own have weight 0.

        Args:
            changed: Maximum number of changed cells of a copy, 0 to 2.

        Returns:
            The weights, float64 (n,), and the weights if the release also had an exact copy of
            each row, float64 (n,).
        """
        similarity = np.array(SIMILARITY)[:, None]
        n_similar = self.n_synthetic + self.n_real
        n_counted = min(changed + 1, 2) + 1
        total = _PRIOR_SIMILARITY + (similarity * n_similar)[:n_counted].sum(axis=0)
        nearest = (similarity * (self.n_synthetic > 0))[: changed + 1].max(axis=0)
        weights = nearest / (total - nearest)
        with_copy = np.where(nearest < 1, 1 / total, weights)
        return weights * self.is_own, with_copy * self.is_own


def copied(
    similar: SimilarRows, subjects: Subjects, difference: Difference, largest_share: float
) -> PermutationResult:
    """Estimate ``copied_share`` and ``changed_share``, see :class:`.Copies`.

    Args:
        similar: Similar rows of the real rows.
        subjects: Subjects of the real rows.
        difference: Computes the member effect.
        largest_share: Share of the rows of train that the release could contain, above 0 and up to
            1, see :func:`largest_copied_share`.

    Returns:
        Result with three entries: up to 0, 1 and 2 changed cells.
    """
    n_rows = subjects.totals()
    weights = np.empty((3, 2, len(subjects)))
    for changed in range(3):
        current, with_copy = similar.weights(changed)
        weights[changed, 0] = subjects.totals(current) / n_rows
        weights[changed, 1] = subjects.totals(with_copy) / n_rows
    effect = difference(weights[:, 0].T)

    # The effect of copying every row is measured where few are copied: members may be avoided.
    increase = weights[:, 1] - weights[:, 0]
    full_effect = np.empty(3)
    for changed, observed in enumerate(effect.observed.tolist()):
        is_rarely_copied = subjects.member if observed < 0 else ~subjects.member
        full_effect[changed] = increase[changed][is_rarely_copied].mean()
    own_share = float((subjects.totals(similar.is_own) / n_rows).mean())
    scale = np.where(full_effect > 0, full_effect, 1.0) / (own_share or 1.0)
    return effect.over(scale * largest_share)


def largest_copied_share(inputs: EvaluationInputs) -> float:
    """Return the share of the rows of train that the release could contain, at most 1.

    Equal rows of train, as of a person, need one row of the release. Equal rows of the release do
    not lower the share, because a release of few values repeats rows.
    """
    of_rows = len(inputs.synthetic) / len(inputs.train)
    n_distinct = np.unique(inputs.row_ids["synthetic"]).size
    of_distinct_rows = n_distinct / np.unique(inputs.row_ids["train"]).size
    return min(1.0, max(of_rows, of_distinct_rows))


class RepeatedShare(NamedTuple):
    """Estimate of ``repeated_share``.

    Attributes:
        share: Share of synthetic rows, negative if rows that no member has are repeated more.
        half_length: Half the length of its interval.
    """

    share: float
    half_length: float


def repeated_share(
    real_ids: np.ndarray,
    synthetic_ids: np.ndarray,
    subjects: Subjects,
    count_neighbors: Callable[[np.ndarray], np.ndarray],
) -> RepeatedShare:
    """Estimate ``repeated_share``, see :class:`.Copies`.

    Which rows repeat does not depend on the labels if nothing leaks. Under permuted labels, no
    holder of a row with h holders is a member with probability p = q^h, where q is the share of
    non-members (an approximation for h > 1, because labels are drawn without replacement). Each
    copy of a repeated row counts 1 if a member has the row, and else 1 - 1 / p. Its expectation is
    0, since (1 - p) + p (1 - 1 / p) = 0. Its variance is (1 - p) / p. The rows that no member has
    estimate it: each of them counts (1 - p) / p^2, with probability p.

    The variance of the sum adds up the variances of all repeated rows, times their squared numbers
    of copies, as if they were independent. ``_N_ASSUMED`` rows with the smallest number of copies
    are added, so that it is not 0 without repeated rows.

    Without a subject column, and if no row of train is also in holdout or reference, equal rows are
    one subject (:class:`.EvaluationInputs`), and each row has one holder.

    Args:
        real_ids: Ids of the real rows, int64 (N,), N > 0. Equal rows have equal ids.
        synthetic_ids: Ids of the synthetic rows, int64 (n,), n > 0.
        subjects: Subjects of the real rows.
        count_neighbors: Returns for positions (m,) of real rows the numbers of rows of other
            subjects that differ in one cell, int64 (m,).

    Returns:
        The estimate, not clipped, and half the length of its interval.
    """
    distinct_ids, row_codes = np.unique(real_ids, return_inverse=True)
    n_real = np.bincount(row_codes)
    n_synthetic = _count_ids(synthetic_ids, distinct_ids)
    n_holders, has_member = _holders(row_codes, subjects)

    # A larger release repeats each row more often, also if it leaks nothing.
    size_ratio = max(len(synthetic_ids) / len(real_ids), 1)
    min_copies = _MIN_COPIES * size_ratio
    is_rare = n_holders <= _MAX_REPEATED_HOLDERS
    is_frequent = n_synthetic >= min_copies * n_real
    candidates = np.flatnonzero(is_rare & is_frequent)

    # In a dense region, repeated rows are expected. Rows of the same subject do not count, so the
    # number depends on the holder: the smallest does not depend on the order of rows.
    positions = np.flatnonzero(np.isin(row_codes, candidates))
    n_neighbors = np.full(len(distinct_ids), np.inf)
    np.minimum.at(n_neighbors, row_codes[positions], count_neighbors(positions))
    n_expected = size_ratio * (n_real + SIMILARITY[1] * n_neighbors)[candidates]
    repeated = candidates[n_synthetic[candidates] >= n_expected]

    # At least one subject counts as a non-member, so that no probability is 0.
    non_member_share = max(1 - subjects.members / len(subjects), 1 / len(subjects))
    p_no_member = non_member_share ** n_holders[repeated].astype(np.float64)
    is_of_member = has_member[repeated]
    n_copies = n_synthetic[repeated]
    n_beyond_chance = np.where(is_of_member, 1.0, 1 - 1 / p_no_member) @ n_copies
    variance_of_copy = np.where(is_of_member, 0.0, (1 - p_no_member) / p_no_member**2)
    variance = variance_of_copy @ n_copies**2.0
    variance += _N_ASSUMED * (1 - non_member_share) / non_member_share * min_copies**2
    half_length = _REPEATED_Z * math.sqrt(variance) / len(synthetic_ids)
    return RepeatedShare(float(n_beyond_chance / len(synthetic_ids)), half_length)


def _count_ids(ids: np.ndarray, distinct_ids: np.ndarray) -> np.ndarray:
    """Count how often each of the sorted ``distinct_ids`` (k,) occurs in ``ids``, int64 (k,)."""
    positions = np.minimum(np.searchsorted(distinct_ids, ids), len(distinct_ids) - 1)
    is_present = distinct_ids[positions] == ids
    return np.bincount(positions[is_present], minlength=len(distinct_ids))


def _holders(row_codes: np.ndarray, subjects: Subjects) -> tuple[np.ndarray, np.ndarray]:
    """Return for each distinct row its number of subjects, and whether one of them is a member.

    ``row_codes`` int64 (N,) is the distinct row of each real row, 0..k-1.
    """
    pairs = np.unique(row_codes * len(subjects) + subjects.codes)
    holders = pairs % len(subjects)
    held_rows = pairs // len(subjects)
    n_members = np.bincount(held_rows, subjects.member[holders])
    return np.bincount(held_rows), n_members > 0


TAILS = (0.2, 0.05, 0.01)  # shares of the attacked rows, those with the largest margins
# numbers of best matching rows that show which columns match
_MIN_BEST = 50
_MAX_BEST = 500
MARGIN_NAMES = tuple(f"{100 * tail:.0f} % of the best matching rows" for tail in TAILS)


class CodedRows(NamedTuple):
    """Codes and match weights of rows.

    Attributes:
        real: Codes of all real rows, int32 (F, N).
        weights: Match weights of the cells of selected rows, float32 (F, n).
        synthetic: Codes of the synthetic rows, int32 (F, m).
    """

    real: np.ndarray
    weights: np.ndarray
    synthetic: np.ndarray


def coded(real: Sequence[Table], synthetic: Table, rows: np.ndarray) -> CodedRows:
    """Encode real and synthetic rows, and weigh the cells of some real rows.

    The match weight of a cell is -log2 of the value's relative frequency in real rows, as in
    Fellegi and Sunter (1969) with independent columns; that of a missing cell is 0. The match
    weight of two rows is the sum over the cells in which they agree. Changed or removed cells
    therefore do not hide a copy of the others.

    Args:
        real: Real tables, which are stacked.
        synthetic: Synthetic table.
        rows: Positions of the n weighed rows in the stacked tables, int64 (n,).

    Returns:
        Codes of all rows, and match weights of ``rows``.
    """
    real_columns = []
    weight_columns = []
    synthetic_columns = []
    for name in synthetic.schema.names:
        *real_parts, synthetic_codes = ranked([*(table[name] for table in real), synthetic[name]])[
            0
        ]
        codes = np.concatenate(real_parts)
        shares = np.bincount(codes[codes >= 0], minlength=1) / len(codes)
        bits = -np.log2(np.maximum(shares, 1 / len(codes)))
        row_codes = codes[rows]
        real_columns.append(codes)
        weight_columns.append(np.where(row_codes >= 0, bits[row_codes], 0.0))
        synthetic_columns.append(synthetic_codes)
    return CodedRows(
        np.array(real_columns, np.int32),
        np.array(weight_columns, np.float32),
        np.array(synthetic_columns, np.int32),
    )


def similar_rows(
    real: np.ndarray,
    synthetic: np.ndarray,
    subject_codes: np.ndarray,
    rows: np.ndarray,
    max_holders: int,
) -> SimilarRows:
    """Count the similar rows of some real rows.

    Args:
        real: Codes (F, N) of all real rows, see :func:`coded`.
        synthetic: Codes (F, m) of the synthetic rows.
        subject_codes: Subject of each real row, int64 (N,).
        rows: Positions of the n rows, int64 (n,).
        max_holders: Maximum number of subjects sharing a row that is a subject's own.

    Returns:
        The numbers of similar rows.
    """
    queries = real[:, rows]
    distinct, _ = distinct_encoded(_encoded(synthetic, _sizes(queries, synthetic)))
    n_synthetic = _count_changed(queries, distinct, np.ones(len(distinct)))
    return SimilarRows(n_synthetic, count_similar_rows(real, subject_codes, rows), max_holders)


def count_similar_rows(real: np.ndarray, subject_codes: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Count the rows of other subjects that differ from some real rows in no, one and two cells.

    Equal rows of a subject count once.

    Args:
        real: Codes (F, N) of all real rows, see :func:`coded`.
        subject_codes: Subject of each real row, int64 (N,).
        rows: Positions of the n rows, int64 (n,).

    Returns:
        The numbers, int64 (3, n).
    """
    if len(rows) == 0:
        return np.zeros((3, 0), np.int64)
    distinct, row_codes = distinct_encoded(_encoded(real, _sizes(real)))
    pairs = subject_codes * len(distinct) + row_codes
    distinct_pairs, pair_rows = np.unique(pairs, return_index=True)  # ordered by subject
    counts = _count_changed(real[:, rows], distinct, np.bincount(distinct_pairs % len(distinct)))

    # Subtract the rows of the same subject: the first one of each row, then the second ones.
    pair_subjects = subject_codes[pair_rows]
    start = np.searchsorted(pair_subjects, subject_codes[rows], "left")
    end = np.searchsorted(pair_subjects, subject_codes[rows], "right")
    for offset in range(int((end - start).max(initial=0))):
        i = np.flatnonzero(start + offset < end)
        rows_of_subject = pair_rows[start[i] + offset]
        n_changed = (real[:, rows_of_subject] != real[:, rows[i]]).sum(axis=0)
        is_similar = n_changed <= 2
        counts[n_changed[is_similar], i[is_similar]] -= 1
    return counts


def _count_changed(queries: np.ndarray, distinct: EncodedTable, weights: np.ndarray) -> np.ndarray:
    """Sum the weights of distinct rows that differ from each of ``queries`` (F, n) in no, one and
    two cells, (3, n).
    """
    if queries.shape[1] == 0 or len(distinct) == 0:
        return np.zeros((3, queries.shape[1]), np.int64)
    distinct_queries, codes = distinct_encoded(_encoded(queries, distinct.sizes))
    tree = MixedTree.build(distinct)
    within = [tree.weigh(distinct_queries, math.sqrt(changed), weights) for changed in range(3)]
    return np.diff(within, axis=0, prepend=0)[:, codes].astype(np.int64)


def _encoded(codes: np.ndarray, sizes: np.ndarray) -> EncodedTable:
    """Encode rows (F, n) so that their squared distance is the number of different cells."""
    numeric = np.zeros((codes.shape[1], 0), np.float32)
    return EncodedTable(numeric, (codes.T + 1).astype(np.int32), sizes)


def _sizes(*tables: np.ndarray) -> np.ndarray:
    """Return the number of codes of each column of tables (F, n), int64 (F,). -1 is a code."""
    largest = [codes.max(axis=1, initial=-1) for codes in tables]
    return np.asarray(np.max(largest, axis=0) + 2, np.int64)


class ReleasedMatches(NamedTuple):
    """Rows of the release that match n attacked rows.

    Attributes:
        similar: Similar rows of each attacked row.
        margins: Largest margin of each attacked row, float32 (n,), see :func:`best_margins`.
        positions: Position of the synthetic row that has this margin, int64 (n,).
    """

    similar: SimilarRows
    margins: np.ndarray
    positions: np.ndarray


def released_matches(
    inputs: EvaluationInputs, max_targets: int | None, max_holders: int
) -> ReleasedMatches:
    """Find the rows of the release that match the attacked rows.

    Args:
        inputs: Tables of one release, with at least one synthetic row.
        max_targets: Maximum number of attacked rows. None: all rows.
        max_holders: See :func:`similar_rows`.

    Returns:
        The matches.
    """
    from privacy_assets.metrics._kernels import best_margins

    rows = attacked_rows(inputs, max_targets)
    real, weights, synthetic = coded(inputs.real, inputs.synthetic, rows)
    subject_codes = inputs.all_subjects.codes
    similar = similar_rows(real, synthetic, subject_codes, rows, max_holders)
    attacked = np.ascontiguousarray(real[:, rows])
    margins, positions = best_margins(attacked, weights, subject_codes[rows], synthetic)
    return ReleasedMatches(similar, margins, positions)


def attacked_rows(inputs: EvaluationInputs, max_targets: int | None) -> np.ndarray:
    """Choose the attacked rows by subject.

    Args:
        inputs: Tables of one release.
        max_targets: Maximum number of attacked rows. None: all rows.

    Returns:
        Their positions in the stacked real tables, int64 (n,).
    """
    rows = target_rows(inputs, inputs.real_roles, max_targets, "copies.attacked")
    if rows is None:
        return np.arange(len(inputs.all_subjects.codes))
    return rows


def match_excess(
    margins: np.ndarray, subjects: Subjects, difference: Difference
) -> PermutationResult:
    """Return the excess of members among the rows with the largest margins.

    Each entry is the difference between members and non-members in the share of their rows that are
    among a tail of all rows, divided by its largest possible value, which it has if all rows of the
    tail are of members. If each person has one row, this is (p - q) / (1 - q), where p is the share
    of members in the tail and q their share of all people. Rows tied at the cut share the remaining
    positions.

    Args:
        margins: Margins of the attacked rows, (n,), see :func:`best_margins`.
        subjects: Subjects of these rows.
        difference: Computes the member effect.

    Returns:
        Result with one entry for each of ``MARGIN_NAMES``.
    """
    _, codes, counts = np.unique(margins, return_inverse=True, return_counts=True)
    n_above = len(margins) - np.cumsum(counts)  # rows with a larger margin
    n_rows = subjects.totals()
    shares_in_tail = []
    for tail in TAILS:
        share_of_margin = np.clip((tail * len(margins) - n_above) / counts, 0, 1)
        shares_in_tail.append(subjects.totals(share_of_margin[codes]) / n_rows)
    share_of_members = subjects.members / len(subjects)
    largest_difference = np.array(TAILS) / share_of_members
    return difference(np.stack(shares_in_tail, axis=1)).over(largest_difference)


def matched_columns(
    real: np.ndarray,
    weights: np.ndarray,
    synthetic: np.ndarray,
    matches: ReleasedMatches,
    subjects: Subjects,
) -> np.ndarray:
    """Return how much each column contributes to the match of members beyond that of non-members.

    Args:
        real: Codes (F, n) of the attacked rows.
        weights: Match weights (F, n) of their cells.
        synthetic: Codes (F, m) of the synthetic rows.
        matches: Matches of the attacked rows.
        subjects: Subjects of the attacked rows.

    Returns:
        Share of each column in the members' advantage in bits among the best matching rows, float64
        (F,). It is 0 for columns in which members match no better.
    """
    margins = matches.margins
    n_best = max(_MIN_BEST, min(int(TAILS[-1] * len(margins)), _MAX_BEST))
    best = np.argsort(-margins, kind="stable")[:n_best]
    agrees = synthetic[:, matches.positions[best]] == real[:, best]
    bits = weights[:, best] * agrees
    is_member = subjects.member[subjects.codes[best]]
    n_non_members = len(subjects) - subjects.members
    of_members = bits[:, is_member].sum(axis=1) / subjects.members
    of_non_members = bits[:, ~is_member].sum(axis=1) / n_non_members
    excess = np.maximum(of_members - of_non_members, 0)
    return np.asarray(excess / (excess.sum() or 1.0))


@declared
class Copies(Metric):
    """Share of training people whose row the release copies, in full or in part, beyond chance.

    All statistics compare members (subjects in train) with non-members (holdout and reference).
    Subjects have equal weight, except in ``repeated_share``, which is a share of synthetic rows.

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
        partial_excess: Excess of members among the 20, 5 or 1 % of the rows with the largest
            margins (:func:`match_excess`), the strongest of the three. 1: all are of members.
        repeated_share: Share of synthetic rows that repeat a training row of few people, minus the
            weighted share that repeats rows of non-members alone. The value and the upper end are 0
            or more, the lower end is -1 or more.

    Notes:
        A row is its subject's own if at most ``max_holders`` subjects have it (missing equals
        missing). Equal rows of the release, or of a subject, count once. A synthetic row that
        differs in 0, 1 or 2 cells has the similarity 1, 1/3 or 1/9. A real row with the most
        similar synthetic row at b and the sum D of the similarities of all other rows (real and
        synthetic, with at most j + 1 changed cells) has the weight b / (0.5 + D) if b counts at
        most j changed cells: a match is evidence where few people are similar. The share is

            (mean weight of members - mean weight of non-members) / mean increase for non-members by
            one exact copy,

        times the share of own rows. It is divided by the share of the rows of train that the
        release could contain (:func:`largest_copied_share`): a release of a tenth of the size can
        copy a tenth of the people. If at most two columns vary, and at least 30 % of the holdout
        rows are in the release, ``copied_share`` is not measurable unless it is significant: copies
        of two cells cannot be distinguished from chance.

        ``partial_excess`` detects copies of parts of rows. The match weight of two rows
        (:func:`coded`) is large if they agree in rare values. A synthetic row that matches one
        person much better than all others is evidence of a copy, and one that matches many people
        equally is not. The margin of a real row is therefore its match weight with a synthetic row
        minus the third largest match weight of a person with this synthetic row, for the synthetic
        row with the largest margin. The third largest one, because a row can be made of the rows
        of two people.

        ``repeated_share`` counts the synthetic rows that repeat a real row. With r, the number of
        synthetic rows divided by that of real rows (at least 1), a real row is repeated if

        - at most ten people have it, and
        - the release has it at least 3 r times as often as the real tables, and
        - at least r times as often as the real rows and a third of the rows of other people that
          differ in one cell together, where equal rows of a person count once: in a dense region,
          repeated rows are expected. Of several holders, the one with the fewest such rows counts.

        Each copy of a row that a member has counts 1. A copy of a row of non-members alone counts
        negatively, so that the expectation is 0 under permuted labels (:func:`repeated_share`). The
        interval (95 %, two-sided) is normal, with the variance that the rows of non-members show,
        plus that of two rows: whether a member is repeated by chance is judged by how often
        non-members are. The minimum detectable effect is the length of this interval.

        Other intervals permute labels and resample subjects: 95 % for ``copied_share``, and 99.5 %
        jointly for ``partial_excess`` and ``changed_share``. If half the length of the interval of
        ``copied_share`` is more than 0.03, its end nearer to 0 is at 99.5 %. Not measurable with
        fewer than 20
        subjects in train or holdout, or 20 synthetic rows. Source: none. Validation:
        ``benchmarks/results/copies.md``.
    """

    max_holders: int = Field(default=2, ge=1)
    max_targets: MaxTargets = 20_000
    n_permutations: int = Field(default=1000, ge=199)

    name: ClassVar[str] = "copies"
    summary: ClassVar[str] = (
        "Which share of the training rows does the release copy, beyond chance?"
    )
    required_inputs: ClassVar[frozenset[str]] = frozenset({"train", "holdout", "synthetic"})
    optional_inputs: ClassVar[frozenset[str]] = frozenset({"reference"})
    counts_copies: ClassVar[tuple[str, ...]] = ("copied_share", "changed_share", "repeated_share")
    statistics: ClassVar[tuple[StatisticSpec, ...]] = (
        StatisticSpec(
            "copied_share",
            "Share of people in the training data whose own row is in the release (of those who fit"
            " if it has fewer rows), minus the share expected by chance.",
            "two_sided",
            leak="it copied the rows of {share} of the people in the training data{people who fit}",
        ),
        StatisticSpec(
            "changed_share",
            "Share of people in the training data whose own row is in the release with at most"
            " two cells changed (of those who fit if it has fewer rows), minus the share expected"
            " by chance.",
            "two_sided",
            leak="it copied the rows of {share} of the people in the training data{people who fit}"
            " with at most two cells changed",
        ),
        StatisticSpec(
            "partial_excess",
            "Excess share of members among the people whom a released row matches much better than"
            " it matches other people.",
            "two_sided",
            leak="{share} more than expected of the people whom released rows match best were in"
            " the training data",
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
            source="chosen: 5 % copies of rare rows exceed it, rows of 1,700 non-members mostly"
            " do not",
        ),
        Limit(
            "copies.copied_share",
            at_most=0.003,
            bound="proven",
            source="significant at 95 %, or at 99.5 % if the interval is long; see the benchmark on"
            " leaks",
        ),
        Limit(
            "copies.changed_share",
            at_most=0.003,
            bound="proven",
            source="significant at 99.5 % over up to one and up to two changed cells jointly; see"
            " the benchmark on "
            "leaks",
        ),
        Limit(
            "copies.partial_excess",
            at_most=0.05,
            bound="proven",
            source="significant at 99.5 % over all tails jointly; tolerates what the default"
            " generator shows (exceeded in 2 of 202 releases of 34 tables; see the benchmark on"
            " missed leaks)",
        ),
        Limit(
            "copies.repeated_share",
            at_most=0.005,
            bound="proven",
            source="significant at 95 %; see the benchmark on leaks",
        ),
    )
    small_policy_limits: ClassVar[Mapping[str, float]] = {
        "copies.copied_share": 0.08,
        "copies.copied_share.proven": 0.006,
    }
    plots: ClassVar[tuple[Plot, ...]] = (
        SharePlot(
            table="matched_columns",
            caption="Columns in which members agree with released rows more than"
            " non-members do. The bars are shares of the difference in bits among the best"
            " matching rows.",
            label="column",
            series={"share": "share of the difference"},
        ),
    )
    causes: ClassVar[Causes] = Causes("copied rows", {"partial_excess": "over-fitting"})
    question: ClassVar[Question | None] = "copies"

    def measure(self, inputs: EvaluationInputs) -> MetricResult:
        """Compute the statistics, and if one is above chance the table ``matched_columns``: column
        and share.
        """
        subjects = inputs.all_subjects
        rows = attacked_rows(inputs, self.max_targets)
        attacked = subjects
        if len(rows) < len(subjects.codes):
            attacked = subjects.take(rows)
        if self._is_too_small(inputs, attacked):
            reason = (
                f"train and holdout need at least {MIN_SUBJECTS_PER_SIDE} people each, and the"
                f" release {MIN_SUBJECTS_PER_SIDE} rows"
            )
            return self.not_measurable(inputs, reason, subjects.counts)

        matches = inputs.once(released_matches, self.max_targets, self.max_holders)
        real, weights, synthetic = coded(inputs.real, inputs.synthetic, rows)
        difference = self._difference(inputs, attacked, "copies labels")
        largest_share = largest_copied_share(inputs)
        effect = copied(matches.similar, attacked, difference, largest_share)
        is_chance = is_indistinguishable_from_chance(inputs, real)
        copied_share, changed_share = share_estimates(effect, attacked, largest_share, is_chance)
        difference = self._difference(inputs, attacked, "copies.partial labels")
        estimates = (
            _with_narrow_note(copied_share, inputs, is_chance),
            changed_share,
            partial_estimate(match_excess(matches.margins, attacked, difference), attacked),
            self._repeated_estimate(inputs, real),
        )
        if all(estimate.low <= 0 for estimate in estimates):
            return self.result(inputs, estimates)
        column_shares = matched_columns(real[:, rows], weights, synthetic, matches, attacked)
        records = _column_records(inputs.schema.names, column_shares)
        return self.result(inputs, estimates, matched_columns=records)

    def _is_too_small(self, inputs: EvaluationInputs, attacked: Subjects) -> bool:
        n_train = np.unique(inputs.subject_codes("train")).size
        n_holdout = np.unique(inputs.subject_codes("holdout")).size
        smallest = min(n_train, n_holdout, attacked.smallest_side, len(inputs.synthetic))
        return smallest < MIN_SUBJECTS_PER_SIDE

    def _repeated_estimate(self, inputs: EvaluationInputs, real: np.ndarray) -> Estimate:
        """Return ``repeated_share`` of all rows: ``max_targets`` has no effect on it."""
        subjects = inputs.all_subjects
        share, half_length = repeated_share(
            inputs.derived.stacked_row_ids(inputs.real_roles),
            inputs.row_ids["synthetic"],
            subjects,
            lambda rows: count_similar_rows(real, subjects.codes, rows)[1],
        )
        return self.statistic("repeated_share").estimate(
            max(share, 0.0),
            min(max(share - half_length, -1.0), 1.0),
            min(max(share + half_length, 0.0), 1.0),
            subjects.counts,
            confidence=_REPEATED_CONFIDENCE,
            minimum_detectable_effect=2 * half_length,
        )

    def _difference(self, inputs: EvaluationInputs, subjects: Subjects, purpose: str) -> Difference:
        return partial(
            inference.mean_difference,
            subjects=subjects,
            n_permutations=self.n_permutations,
            rng=inputs.rng(purpose),
        )


def _column_records(names: Sequence[str], shares: np.ndarray) -> list[dict[str, object]]:
    """Return the records of ``matched_columns`` with a positive share, the largest first."""
    records: list[dict[str, object]] = []
    for column in np.argsort(-shares, kind="stable").tolist():
        if shares[column] > 0:
            records.append({"column": names[column], "share": float(shares[column])})
    return records


def is_indistinguishable_from_chance(inputs: EvaluationInputs, real: np.ndarray) -> bool:
    """Return whether copies of whole rows cannot be distinguished from rows that occur by chance.

    This holds if the release has many holdout rows and at most two columns vary.

    Args:
        inputs: Tables of one release.
        real: Codes (F, N) of all real rows, see :func:`coded`.
    """
    n_varying = int((real != real[:, :1]).any(axis=1).sum())
    return n_varying <= _MOST_UNDECIDED_COLUMNS and bool(narrow_note(inputs))


def _with_narrow_note(
    copied_share: Estimate, inputs: EvaluationInputs, is_chance: bool
) -> Estimate:
    """Return ``copied_share`` with a note on a narrow table. It is not measurable if copies are
    indistinguishable from chance, unless it differs significantly from 0.
    """
    note = narrow_note(inputs)
    if is_chance and copied_share.low <= 0 <= copied_share.high:
        counts = (copied_share.n, copied_share.subjects)
        return Copies.statistic("copied_share").not_measurable(note, counts)
    return replace(copied_share, note=note)


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


def share_estimates(
    effect: PermutationResult, subjects: Subjects, largest_share: float, is_chance: bool
) -> tuple[Estimate, Estimate]:
    """Return ``copied_share`` and ``changed_share``.

    Args:
        effect: Result of :func:`copied`.
        subjects: Subjects of the attacked rows.
        largest_share: Share of the rows of train that the release could contain, as in
            :func:`copied`.
        is_chance: Whether copies of whole rows are indistinguishable from chance.

    Returns:
        The two estimates.
    """
    # Without any match, the interval has the length for the people who fit into the release.
    smaller_side = math.ceil(subjects.smallest_side * largest_share)

    def copied_share_at(confidence: float) -> Estimate:
        return effect[[0]].estimate(
            Copies.statistic("copied_share"),
            subjects.counts,
            confidence=confidence,
            within=(-1, 1),
            smaller_side=smaller_side,
        )

    copied_share = copied_share_at(CONFIDENCE)
    error = max(copied_share.high - copied_share.value, copied_share.value - copied_share.low)
    if error > _LARGEST_ERROR_AT_95 or is_chance:
        wider = copied_share_at(LEAK_CONFIDENCE)
        if copied_share.value >= 0:
            copied_share = replace(copied_share, low=wider.low)
        else:
            copied_share = replace(copied_share, high=wider.high)
    changed_share = effect[1:].worst(
        Copies.statistic("changed_share"),
        subjects.counts,
        CHANGED_NAMES,
        "strongest",
        smaller_side=smaller_side,
    )
    return copied_share, changed_share


def partial_estimate(effect: PermutationResult, subjects: Subjects) -> Estimate:
    """Return ``partial_excess``.

    Args:
        effect: Result of :func:`advantages`.
        subjects: Subjects of the attacked rows.

    Returns:
        The estimate.
    """
    return effect.worst(
        Copies.statistic("partial_excess"), subjects.counts, MARGIN_NAMES, "strongest"
    )
