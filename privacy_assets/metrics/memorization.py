"""Memorization of single synthetic rows (Kuppa et al., section 3)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from privacy_assets.distances.nearest import near, nearest_rows, typical_radius
from privacy_assets.errors import InputError
from privacy_assets.infra.settings import declared
from privacy_assets.metrics.base import (
    Causes,
    FilterComparison,
    Metric,
    ProtectionEvidence,
    SharePlot,
    table_rows,
)
from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.stats import inference
from privacy_assets.stats.estimates import Estimate, MetricResult, StatisticSpec
from privacy_assets.stats.intervals import LEAK_CONFIDENCE, ratio, wilson
from privacy_assets.stats.subjects import Subjects
from privacy_assets.tables.encoding import EncodedTable

ROLES = ("train", "holdout", "synthetic")


@dataclass(frozen=True, eq=False)
class RowMemorization:
    """Counts and distances of the synthetic rows, each of shape (n_S,).

    Attributes:
        radius: lambda.
        train: Number of rows of T within the radius, inclusive.
        holdout: Number of rows of H within the radius.
        synthetic: Number of other rows of S within the radius; the row itself is excluded by
            position.
        nearest: Position of the nearest row of T, int64.
        to_train: Euclidean distance to the nearest row of T.
        to_holdout: Euclidean distance to the nearest row of H.
        to_synthetic: Euclidean distance to the nearest other row of S.
    """

    radius: float
    train: np.ndarray
    holdout: np.ndarray
    synthetic: np.ndarray
    nearest: np.ndarray
    to_train: np.ndarray
    to_holdout: np.ndarray
    to_synthetic: np.ndarray

    @classmethod
    def of(cls, tables: Mapping[str, EncodedTable], radius: float, device: str) -> RowMemorization:
        """Count the rows within the radius and search the nearest ones.

        Args:
            tables: Encoded T, H and S by role. T and H must not be empty.
            radius: lambda.
            device: Torch device of the search.
        """
        synthetic = tables["synthetic"]
        counts = {role: near(synthetic, tables[role], radius) for role in ROLES}
        in_train = nearest_rows(synthetic, tables["train"], device=device)
        in_holdout = nearest_rows(synthetic, tables["holdout"], device=device)
        in_synthetic = nearest_rows(synthetic, synthetic, exclude_self=True, device=device)
        return cls(
            radius=radius,
            train=counts["train"],
            holdout=counts["holdout"],
            synthetic=counts["synthetic"] - 1,
            nearest=in_train.indices[:, 0],
            to_train=in_train.distances[:, 0],
            to_holdout=in_holdout.distances[:, 0],
            to_synthetic=in_synthetic.distances[:, 0],
        )

    def columns(self) -> dict[str, np.ndarray]:
        """Return alpha_m, counts within the radius and distances of each synthetic row, as columns
        of a table.
        """
        return {
            "row": np.arange(len(self.train)),
            "alpha_m": self.alpha,
            "train": self.train,
            "holdout": self.holdout,
            "synthetic": self.synthetic,
            "to_train": self.to_train,
            "to_holdout": self.to_holdout,
            "to_synthetic": self.to_synthetic,
        }

    @property
    def real(self) -> np.ndarray:
        """Number of rows of T u H within the radius, shape (n_S,)."""
        return self.train + self.holdout

    @cached_property
    def alpha(self) -> np.ndarray:
        """Kuppa's memorization coefficient (g + 1/2) / (t + 1/2)."""
        return (self.synthetic + 0.5) / (self.train + 0.5)

    @cached_property
    def train_to_synthetic(self) -> np.ndarray:
        """d(s, T) / d(s, S without s), with 0/0 = 1 and x/0 = inf."""
        return ratio(self.to_train, self.to_synthetic)

    @cached_property
    def train_to_holdout(self) -> np.ndarray:
        """d(s, T) / d(s, H), with 0/0 = 1 and x/0 = inf."""
        return ratio(self.to_train, self.to_holdout)


def tables_of(inputs: EvaluationInputs, space: str) -> dict[str, EncodedTable]:
    """Return T, H and S by role.

    Args:
        inputs: Tables, and the embedder if ``space`` is "embedded".
        space: "raw" for the raw encoding, "embedded" for the embedding.
    """
    if space == "raw":
        return {role: inputs.encoded(role) for role in ROLES}
    return {role: EncodedTable.of_numbers(inputs.embedded(role)) for role in ROLES}


Space = Literal["raw", "embedded"]
LISTED = 20  # rows of the table "most_exposed"
# cuts of the table "alpha"; exactly 1 is a range of its own
ALPHAS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
RANGES = (
    "below 1/8",
    "1/8 to 1/4",
    "1/4 to 1/2",
    "1/2 to 1",
    "1",
    "1 to 2",
    "2 to 4",
    "4 to 8",
    "above 8",
)
RATIOS = (0.01, 0.1, 0.25, 0.5, 1.0)

_EXPOSED = StatisticSpec(
    "exposed",
    "Share of synthetic rows with more training rows than other synthetic rows near them.",
    null=None,
)
_EXCESS = StatisticSpec(
    "exposed_excess",
    "Excess share of members among the real people near the exposed synthetic rows.",
    "two_sided",
)


@declared
class Memorization(Metric):
    """Synthetic rows with more training rows than other synthetic rows near them.

    Args:
        space: Encoding of distances: "raw", or "embedded", which requires an embedder.
        radius: Radius lambda. None: the ``quantile`` of the distances of training rows to the
            nearest other training row (of another subject, if subjects are known). It is 0 for
            tables with few distinct rows; then only identical rows are near.
        quantile: Quantile for lambda.
        n_permutations: Number of permutations of the membership labels.

    Attributes:
        exposed: Share of synthetic rows with alpha_m < 1.
        exposed_excess: Excess share of members among the real rows near exposed synthetic rows. 0:
            chance, 1: members only, negative: members are avoided.

    Notes:
        alpha_m = (g + 1/2) / (t + 1/2) for a synthetic row with t training rows and g other
        synthetic rows within lambda, inclusive (distances equal to 1 in 10,000 tie). These are
        plain counts as in the paper: if S and T differ in size, they and the null of ``exposed``
        change.

        The null of ``exposed`` is its mean if the labels of the real rows within lambda are random
        (hypergeometric; by row, not by subject), so it is valid for any sizes. Interval: Wilson,
        given T, with the number of rows divided by the design effect of rows that have the same
        nearest training subject.

        ``exposed_excess`` uses the synthetic rows with fewer other synthetic rows near them than
        the t expected under random labels. With m their mean share of members among the real rows
        within lambda and p the share of subjects in T, it is (m - p) / (1 - p), and 0 without width
        if there are no such rows. The interval permutes labels by subject, at 99.5 %; its near end
        shows significance.

        Tables: "alpha" (histogram); "ratios" (cumulative shares of rows by d(s,T)/d(s,S without s)
        and d(s,T)/d(s,H));
            and
        "most_exposed" (positions in S, smallest alpha_m first, then smallest ratios, then
        position). The private ``rows`` of the result contain alpha_m "for each generated sample"
        (section 3): the position in S ("row"), "alpha_m", the numbers of rows of T, H and S within
        lambda ("train", "holdout", "synthetic"), and the Euclidean distances to the nearest ones
        ("to_train", "to_holdout", "to_synthetic").

        Not measurable if T has fewer than two rows, or H or S none.
    """

    space: Space = "raw"
    radius: float | None = Field(default=None, ge=0)
    quantile: float = Field(default=0.02, gt=0, le=0.5)
    n_permutations: int = Field(default=999, ge=199)

    name = "memorization"
    summary = "Which synthetic rows are among training rows rather than among other synthetic rows?"
    required_inputs = frozenset(ROLES)
    statistics = (_EXPOSED, _EXCESS)

    plots = (
        SharePlot(
            table="alpha",
            caption="Synthetic rows by memorization coefficient (other synthetic rows near it, over"
            " training rows near "
            "it), on a logarithmic axis. Below 1 there are more training rows: the row is"
            " exposed. Most rows of a "
            "sparse table have neither, which gives exactly 1.",
            label="alpha",
            series={"share": "share of the synthetic rows"},
            log=True,
        ),
    )
    scores_rows = True
    question = "copies"
    causes = Causes("copied rows")
    protections: ClassVar[tuple[ProtectionEvidence, ...]] = (
        ProtectionEvidence("memorization", ("exposed_excess",)),
        ProtectionEvidence("alpha_m", ("exposed", "exposed_excess")),
    )
    filter_comparison: ClassVar[FilterComparison | None] = FilterComparison(
        "exposed",
        "exposed rows",
        "Exposed: synthetic rows among training rows rather than other synthetic rows.",
    )

    def __post_init__(self) -> None:
        if self.space == "embedded":
            object.__setattr__(self, "required_inputs", frozenset({*ROLES, "embedder"}))

    def measure(self, inputs: EvaluationInputs) -> MetricResult:
        """Compute the statistics and the tables "alpha", "ratios" and "most_exposed"."""
        if self.space == "embedded" and inputs.embedder is None:
            raise InputError(
                "memorization in the embedding requires an embedder",
                fix="pass an embedder or use space: raw",
            )
        sizes = {role: len(inputs.tables[role]) for role in ROLES}
        if sizes["train"] < 2 or min(sizes.values()) == 0:
            reason = "two training rows are required, and rows of holdout and synthetic table"
            return self.not_measurable(inputs, reason, (sizes["synthetic"], 0))

        tables = tables_of(inputs, self.space)
        train_subjects = None
        if "train" in inputs.release.subjects:
            train_subjects = inputs.subject_codes("train")
        radius = self.radius
        if radius is None:
            radius = typical_radius(tables["train"], train_subjects, self.quantile, inputs.device)
        memorization = RowMemorization.of(tables, float(radius), inputs.device)
        subjects = Subjects.of(inputs.subject_codes("train", "holdout"), sizes["train"])
        excess = self._excess(memorization, tables, subjects, inputs.rng("memorization.labels"))
        memorization = self.for_alpha(memorization, tables, train_subjects, inputs.device)
        exposed = _exposed(memorization, subjects, sizes)
        result = self.result(
            inputs,
            (exposed, excess),
            alpha=alpha_table(memorization.alpha),
            ratios=ratio_table(memorization),
            most_exposed=most_exposed(memorization),
        )
        return replace(result, row_scores=memorization.columns())

    def for_alpha(
        self,
        memorization: RowMemorization,
        tables: Mapping[str, EncodedTable],
        subjects: np.ndarray | None,
        device: str,
    ) -> RowMemorization:
        """Return the counts that alpha_m and ``exposed`` use: the same ones.

        Args:
            memorization: Counts by Euclidean distance.
            tables: Encoded T, H and S by role.
            subjects: Subject of each training row, int64 (n_T,). None: each row is a subject.
            device: Torch device of the search.
        """
        return memorization

    def _excess(
        self,
        memorization: RowMemorization,
        tables: Mapping[str, EncodedTable],
        subjects: Subjects,
        rng: np.random.Generator,
    ) -> Estimate:
        """Return ``exposed_excess``. It is linear in the labels, so neighbor lists are not
        needed.
        """
        n_expected = memorization.real * (len(tables["train"]) / len(subjects.codes))
        is_exposed = n_expected > memorization.synthetic
        n_exposed = int(is_exposed.sum())
        counts = (len(is_exposed), subjects.smallest_side)
        note = f"{n_exposed} exposed rows"
        if n_exposed == 0:
            return _EXCESS.estimate(
                0.0,
                0.0,
                0.0,
                counts,
                confidence=LEAK_CONFIDENCE,
                minimum_detectable_effect=0.0,
                note=note,
            )

        # Each exposed row divides its weight among the real rows near it.
        weights = np.where(is_exposed, 1 / np.maximum(memorization.real, 1), 0.0) / n_exposed
        of_train = near(tables["train"], tables["synthetic"], memorization.radius, weights)
        of_holdout = near(tables["holdout"], tables["synthetic"], memorization.radius, weights)
        real_weights = np.concatenate([of_train, of_holdout])
        by_subject = np.bincount(subjects.codes, real_weights, len(subjects))
        evidence = inference.excess(by_subject[None], subjects, self.n_permutations, rng)
        return evidence.estimate(_EXCESS, counts, confidence=LEAK_CONFIDENCE, note=note)


def _exposed(
    memorization: RowMemorization, subjects: Subjects, sizes: Mapping[str, int]
) -> Estimate:
    """Return ``exposed``."""
    is_exposed = memorization.alpha < 1
    low, high = clustered_share(is_exposed, subjects.codes[memorization.nearest])
    null = math.nan
    if not np.isnan(memorization.holdout).any():
        null = by_chance(memorization, sizes["train"], sizes["holdout"])
    counts = (len(is_exposed), subjects.members)
    note = f"lambda {memorization.radius:.4g}"
    return _EXPOSED.with_null(null).estimate(is_exposed.mean(), low, high, counts, note=note)


def clustered_share(flags: np.ndarray, clusters: np.ndarray) -> tuple[float, float]:
    """Return the 95 % interval of a share of rows that are dependent within clusters.

    It is Wilson's with n divided by the design effect: the variance of the sums by cluster relative
    to that of independent rows, at least 1.

    Args:
        flags: Whether each row counts, bool (n,).
        clusters: Code of the cluster of each row, int (n,).

    Returns:
        Low and high.
    """
    n = len(flags)
    share = float(flags.mean())
    independent_variance = n * share * (1 - share)
    effective_n: float = n
    if independent_variance > 0:
        sums = np.bincount(clusters, flags - share)
        design_effect = max(1.0, float(sums @ sums) / independent_variance)
        effective_n = n / design_effect
    _, low, high = wilson(share * effective_n, effective_n)
    return min(low, share), max(high, share)


def by_chance(memorization: RowMemorization, n_train: int, n_holdout: int) -> float:
    """Return the null of ``exposed``: the mean probability of more T than S rows near a synthetic
    row, if T is drawn from the rows of T u H.

    Args:
        memorization: Numbers of real and synthetic rows within the radius.
        n_train: Number of rows of T.
        n_holdout: Number of rows of H.
    """
    from scipy import stats  # slow to import

    pairs = np.column_stack([memorization.synthetic, memorization.real]).astype(np.int64)
    distinct, n_rows = np.unique(pairs, axis=0, return_counts=True)
    n_synthetic = distinct[:, 0]
    n_real = distinct[:, 1]
    probabilities = stats.hypergeom.sf(n_synthetic, n_train + n_holdout, n_real, n_train)
    return float(probabilities @ n_rows / len(pairs))


def alpha_table(alpha: np.ndarray) -> list[dict[str, Any]]:
    """Return the number of synthetic rows in each range of alpha_m.

    Args:
        alpha: alpha_m of each synthetic row, float64 (n_S,).
    """
    # A cut belongs to the range that is nearer to 1, and 1 is a range of its own.
    below = np.searchsorted(ALPHAS[:4], alpha, side="right")
    above = 5 + np.searchsorted(ALPHAS[4:], alpha)
    positions = np.where(alpha < 1, below, np.where(alpha > 1, above, 4))
    n_rows = np.bincount(positions, minlength=len(RANGES))
    return table_rows(alpha=RANGES, rows=n_rows, share=n_rows / len(alpha))


def ratio_table(memorization: RowMemorization) -> list[dict[str, Any]]:
    """Return the shares of synthetic rows whose two ratios are at most each limit."""
    return table_rows(
        at_most=RATIOS,
        train_to_synthetic=_shares_at_most(memorization.train_to_synthetic),
        train_to_holdout=_shares_at_most(memorization.train_to_holdout),
    )


def _shares_at_most(ratios: np.ndarray) -> list[float]:
    shares = []
    for limit in RATIOS:
        shares.append((ratios <= limit).mean())
    return shares


def most_exposed(memorization: RowMemorization) -> list[dict[str, Any]]:
    """Return the rows with the smallest alpha_m. Ties: smallest ratios, then position."""
    alpha = memorization.alpha
    to_synthetic = memorization.train_to_synthetic
    to_holdout = memorization.train_to_holdout
    first = np.lexsort((to_holdout, to_synthetic, alpha))[:LISTED]
    listed = first[alpha[first] < 1]
    return table_rows(
        row=listed,
        alpha=alpha[listed],
        train=memorization.train[listed].astype(np.int64),
        synthetic=memorization.synthetic[listed].astype(np.int64),
        train_to_synthetic=to_synthetic[listed],
        train_to_holdout=to_holdout[listed],
    )
