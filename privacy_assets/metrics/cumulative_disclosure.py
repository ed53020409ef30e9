"""Disclosure by the synthetic table and all published tables together, from the ledger of
disclosure by person.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import ClassVar

import numpy as np

from privacy_assets.errors import InputError
from privacy_assets.infra.settings import declared
from privacy_assets.metrics.base import Causes, Metric, Question
from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.metrics.ledger import Ledger, disclosure_ratios
from privacy_assets.metrics.release_tables import DerivedValues, ReleaseTables, stacked
from privacy_assets.policy import Limit
from privacy_assets.stats.estimates import Estimate, MetricResult, StatisticSpec
from privacy_assets.stats.intervals import MDE_QUANTILE
from privacy_assets.stats.subjects import MIN_SUBJECTS_PER_SIDE
from privacy_assets.tables.encoding import EncodedTable
from privacy_assets.tables.table import Table

NEAR = 4.0  # a published row is near if it is closer than a quarter of the isolation
_MAX_BINS = 10
_SUBJECTS_PER_BIN = 60  # of the smaller side
_MIN_PER_SIDE = 30  # people of each side in a bin; smaller bins are left out
# of the flags of a bin, so that no bin without flags has an unlimited weight
_MIN_VARIANCE = 0.005
_CONFIDENCE = 0.9  # each end is exceeded with a probability of 5 %
_Z = NormalDist().inv_cdf((1 + _CONFIDENCE) / 2)


def table_ratios(inputs: EvaluationInputs) -> tuple[np.ndarray, np.ndarray]:
    """Return ratio and isolation of each of ``inputs.all_subjects``, see
    :func:`.disclosure_ratios`, without the ledger. Computed once.

    The synthetic table is stacked on the earlier releases; only columns that all of these have are
    used.

    Args:
        inputs: Tables of one release.
    """
    return inputs.once(_table_ratios)


def _table_ratios(inputs: EvaluationInputs) -> tuple[np.ndarray, np.ndarray]:
    derived = _with_earlier_releases(inputs)
    real = EncodedTable.stack(derived.encoded_tables(inputs.real_roles))
    synthetic = derived.encoded("synthetic")
    return disclosure_ratios(real, synthetic, inputs.all_subjects.codes, inputs.device)


def _with_earlier_releases(inputs: EvaluationInputs) -> DerivedValues:
    """Return the values derived from tables whose synthetic table includes the earlier releases,
    reduced to columns that all of these have.
    """
    earlier = inputs.release.earlier_releases
    if earlier is None:
        return inputs.derived
    shared = [name for name in inputs.schema.names if name in earlier.columns]
    tables = {role: table.select(shared) for role, table in inputs.tables.items()}
    tables["synthetic"] = Table.stack([earlier.select(shared), tables["synthetic"]])
    return DerivedValues(ReleaseTables(tables["train"].schema, tables))


def merged_ledger(inputs: EvaluationInputs) -> Ledger | None:
    """Return the ledger after publication of the synthetic table.

    Args:
        inputs: Tables of one release.

    Returns:
        The ledger. None if there are no pseudonyms.

    Raises:
        InputError: There is a ledger, but no people.
    """
    ledger = inputs.context.ledger
    if not inputs.release.pseudonyms:
        if ledger is not None:
            raise InputError("there is a ledger of disclosure, but no pseudonyms of people")
        return None
    ratios, _ = table_ratios(inputs)
    context = inputs.context
    latest = Ledger.of(_pseudonyms(inputs), ratios, context.release_number, context.release_day)
    if ledger is None:
        return latest
    return ledger.merged(latest)


def largest_ratios(inputs: EvaluationInputs) -> np.ndarray:
    """Return the largest ratio of each of ``inputs.all_subjects`` over all published tables and the
    synthetic one, float32.

    Args:
        inputs: Tables of one release.
    """
    merged = merged_ledger(inputs)
    if merged is None:
        ratios, _ = table_ratios(inputs)
        return ratios
    return merged.ratios(_pseudonyms(inputs))


def _pseudonyms(inputs: EvaluationInputs) -> np.ndarray:
    """Return the pseudonyms of each of ``inputs.all_subjects``, uint64 of shape (s, 2)."""
    subjects = inputs.all_subjects
    by_row = stacked(inputs.release.pseudonyms, inputs.real_roles)
    by_subject = np.zeros((len(subjects), 2), np.uint64)
    by_subject[subjects.codes] = by_row
    return by_subject


def excess(
    near: np.ndarray, member: np.ndarray, bins: np.ndarray | None = None
) -> tuple[float, float]:
    """Return the share of members with a near row minus that of non-members, and its standard
    error.

    The difference is computed within each bin. Bins with fewer than 30 people on a side are left
    out unless there is only one. Others have the weight n / max(q (1 - q), 0.005), with n people of
    whom a share q has a near row: the inverse variance under the null.

    Args:
        near: Whether a published row is near the person, bool (s,).
        member: Whether the person is in train, bool (s,).
        bins: Bin of each person, codes 0..b-1, int64 (s,). None: one bin.

    Returns:
        The difference, between -1 and 1, and its standard error by the normal approximation for
        independent people. Both are NaN if no bin is left.
    """
    if bins is None:
        bins = np.zeros(len(near), np.int64)
    n_bins = int(bins.max(initial=0)) + 1
    side_and_bin = bins + n_bins * ~member
    counts = np.bincount(side_and_bin, minlength=2 * n_bins).reshape(2, n_bins)
    hits = np.bincount(side_and_bin, near, minlength=2 * n_bins).reshape(2, n_bins)

    min_count = _MIN_PER_SIDE if n_bins > 1 else 1
    is_used = counts.min(axis=0) >= min_count
    if not is_used.any():
        return np.nan, np.nan
    counts = counts[:, is_used]
    hits = hits[:, is_used]

    pooled = hits.sum(axis=0) / counts.sum(axis=0)
    weights = counts.sum(axis=0) / np.maximum(pooled * (1 - pooled), _MIN_VARIANCE)
    weights /= weights.sum()
    shares = hits / counts
    variances = (shares * (1 - shares) / counts).sum(axis=0)
    difference = weights @ (shares[0] - shares[1])
    return float(difference), float(np.sqrt(weights**2 @ variances))


def isolation_bins(isolation: np.ndarray, member: np.ndarray) -> np.ndarray:
    """Return the bin of each person, int64 (s,): ten equal parts by isolation, or fewer if a side
    has under 600.
    """
    smallest_side = min(member.sum(), (~member).sum())
    n_bins = int(np.clip(smallest_side // _SUBJECTS_PER_BIN, 1, _MAX_BINS))
    edges = np.unique(np.quantile(isolation, np.arange(1, n_bins) / n_bins))
    return np.searchsorted(edges, isolation)


@declared
class CumulativeDisclosure(Metric):
    """Excess share of training people to whom a published row comes near, over this and all
    published tables.

    The ratio of a person is the isolation (distance to the nearest real row of another person)
    divided by the distance to the nearest row of any published table or of the synthetic table, the
    largest over the person's rows. A person with a ratio above 4 has a near row. All people of the
    current real tables are compared: members (train) with non-members (holdout and reference). A
    row that resembles many people is near to both sides alike.

    Attributes:
        excess: Difference in the share of people with a near row between members and non-members,
            among people whose row no other person has. It is computed within ten bins of isolation
            and weighted by inverse variance, because near rows are rare by chance among isolated
            people, where a leak shows. 0: chance, negative: training people are avoided.
        share: The same difference without bins and weights, among all people. It detects leaks in
            dense regions.

    Notes:
        Ratios of published tables come from the ledger, which keeps the largest ratio of each
        person for 60 days after the person left the real tables. Without a ledger, only the
        synthetic table counts, and earlier releases if they are passed.

        Sides are assigned by a hash, so people are exchangeable unless a release depends on the
        side. Intervals are normal; each end holds with 95 %. They treat the people as independent
        and the published rows as fixed.

        Not measurable with fewer than 20 people in train or holdout, or 20 synthetic rows.
        ``excess`` is exactly 0, with a note, if fewer than 20 people on a side have a row that no
        other person has.

        Distances are Euclidean in the raw space, as in ``dcr``. Source: none. Validation:
        ``benchmarks/results/nights.md``.
    """

    name: ClassVar[str] = "cumulative_disclosure"
    summary: ClassVar[str] = "What do the new table and all earlier releases disclose together?"
    required_inputs: ClassVar[frozenset[str]] = frozenset({"train", "holdout", "synthetic"})
    optional_inputs: ClassVar[frozenset[str]] = frozenset(
        {"reference", "earlier_releases", "ledger"}
    )
    statistics: ClassVar[tuple[StatisticSpec, ...]] = (
        StatisticSpec(
            "excess",
            "Share of people in the training data to whom a released row is close, minus the"
            " same share of"
            " held-out people whose rows are equally unusual.",
            "two_sided",
            leak="released rows were close to {share} more of the people in the training"
            " data{people} than of"
            " other people",
        ),
        StatisticSpec(
            "share",
            "Share of people in the training data to whom a released row is close, minus the"
            " share expected by chance.",
            "two_sided",
            leak="released rows were close to {share} of the people in the training data{people}",
        ),
    )
    default_limits: ClassVar[tuple[Limit, ...]] = (
        Limit(
            "cumulative_disclosure.excess",
            at_most=0.025,
            bound="proven",
            source="significant at 95 %; see the benchmark on nights",
        ),
        Limit(
            "cumulative_disclosure.share",
            at_most=0.05,
            bound="proven",
            source="significant at 95 %: a share of about 0.06 of 8,000 people; see the benchmark"
            " on nights",
        ),
    )
    question: ClassVar[Question | None] = "membership"
    causes: ClassVar[Causes] = Causes("earlier releases")

    def measure(self, inputs: EvaluationInputs) -> MetricResult:
        """Compute the statistics. There are no tables."""
        subjects = inputs.all_subjects
        n_train = np.unique(inputs.subject_codes("train")).size
        n_holdout = np.unique(inputs.subject_codes("holdout")).size
        if min(n_train, n_holdout, len(inputs.synthetic)) < MIN_SUBJECTS_PER_SIDE:
            reason = (
                f"train and holdout need at least {MIN_SUBJECTS_PER_SIDE} people each, and the"
                f" release {MIN_SUBJECTS_PER_SIDE} rows"
            )
            return self.not_measurable(inputs, reason, subjects.counts)

        member = subjects.member
        is_near = largest_ratios(inputs) > NEAR
        counts = (len(subjects.codes), subjects.smallest_side)
        _, isolation = table_ratios(inputs)
        weighted = self._weighted(is_near, isolation, member, counts)
        share, error = excess(is_near, member)
        return self.result(inputs, (weighted, self._estimate("share", share, error, counts)))

    def _weighted(
        self,
        is_near: np.ndarray,
        isolation: np.ndarray,
        member: np.ndarray,
        counts: tuple[int, int],
    ) -> Estimate:
        """Estimate ``excess`` from the subjects whose row no other subject has."""
        is_unique = isolation > 0
        smallest_side = min((is_unique & member).sum(), (is_unique & ~member).sum())
        if smallest_side < MIN_SUBJECTS_PER_SIDE:
            note = "nearly every person shares the row of another person"
            return self._estimate("excess", 0.0, 0.0, counts, note)
        bins = isolation_bins(isolation[is_unique], member[is_unique])
        difference, error = excess(is_near[is_unique], member[is_unique], bins)
        return self._estimate("excess", difference, error, counts)

    def _estimate(
        self, name: str, value: float, error: float, counts: tuple[int, int], note: str = ""
    ) -> Estimate:
        if np.isnan(value):
            reason = "members and non-members differ too much in isolation"
            return self.statistic(name).not_measurable(reason, counts)
        low = max(value - _Z * error, -1.0)
        high = min(value + _Z * error, 1.0)
        smallest_effect = (_Z + NormalDist().inv_cdf(MDE_QUANTILE)) * error
        return self.statistic(name).estimate(
            value,
            low,
            high,
            counts,
            confidence=_CONFIDENCE,
            minimum_detectable_effect=smallest_effect,
            note=note,
        )
