"""Memorization of single synthetic rows (Kuppa et al., section 3)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from pydantic import Field

from privacy_assets.distances.nearest import TIE, near, nearest_rows, typical_radius
from privacy_assets.distances.spherelets import Spherelets, spherelet_near, spherelet_radius
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
        """Count and search. T and H must not be empty."""
        rows = tables["synthetic"]
        counts = {role: near(rows, tables[role], radius) for role in ROLES}
        train = nearest_rows(rows, tables["train"], device=device)
        holdout = nearest_rows(rows, tables["holdout"], device=device).distances[:, 0]
        others = nearest_rows(rows, rows, exclude_self=True, device=device).distances[:, 0]
        return cls(
            radius, counts["train"], counts["holdout"], counts["synthetic"] - 1,
            train.indices[:, 0], train.distances[:, 0], holdout, others,
        )  # fmt: skip

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
    """Return T, H and S in the raw encoding ("raw") or in the embedding ("embedded")."""
    if space == "raw":
        return {role: inputs.encoded(role) for role in ROLES}
    return {role: EncodedTable.of_numbers(inputs.embedded(role)) for role in ROLES}


Space = Literal["raw", "embedded"]
Distance = Literal["euclidean", "spherelet"]
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
        distance: "euclidean", or "spherelet", which adds a curvature term, see
            :mod:`privacy_assets.distances.spherelets`. It is used for lambda, alpha_m and
            ``exposed``, which then has no null; ``exposed_excess`` and the ratios stay Euclidean.
        radius: lambda. None: the ``quantile`` of the distances of training rows to the nearest
            other training row (of another subject, if subjects are known). It is 0 for tables with
            few distinct rows; then only identical rows are near.
        quantile: Quantile for lambda.
        n_neighbors: Number of training rows of a spherelet.
        dimension: Dimension of a spherelet.
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

    space: Space = Field(default="raw", description="encoding in which distances are computed")
    distance: Distance = Field(default="euclidean", description="Euclidean, or d_R of Kuppa")
    radius: float | None = Field(
        default=None,
        ge=0,
        description="lambda; default: quantile of the leave-one-out distances in train",
    )
    quantile: float = Field(default=0.02, gt=0, le=0.5, description="quantile for lambda")
    n_neighbors: int = Field(default=20, ge=3, description="number of training rows of a spherelet")
    dimension: int = Field(default=2, ge=1, description="dimension of a spherelet")
    n_permutations: int = Field(
        default=999, ge=199, description="number of permutations of the membership labels"
    )

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
    protections = (
        ProtectionEvidence("memorization", ("exposed_excess",)),
        ProtectionEvidence("alpha_m", ("exposed", "exposed_excess")),
    )
    filter_comparison = FilterComparison(
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
        known = inputs.subject_codes("train") if "train" in inputs.subjects else None
        radius = self.radius
        if radius is None:
            radius = typical_radius(tables["train"], known, self.quantile, inputs.device)
        found = RowMemorization.of(tables, float(radius), inputs.device)
        people = Subjects.of(inputs.subject_codes("train", "holdout"), sizes["train"])
        excess = self._excess(found, tables, people, inputs.rng("memorization.labels"))
        if self.distance == "spherelet":
            found = self.by_spherelets(found, tables, known, inputs.device)
        result = self.result(
            inputs,
            (_exposed(found, people, sizes), excess),
            alpha=alpha_table(found.alpha),
            ratios=ratio_table(found),
            most_exposed=most_exposed(found),
        )
        return replace(result, rows=found.columns())

    def by_spherelets(
        self,
        found: RowMemorization,
        tables: Mapping[str, EncodedTable],
        subjects: np.ndarray | None,
        device: str,
    ) -> RowMemorization:
        """Replace the counts of T and S by counts within spherelet distance. Counts of H become
        NaN.

        Spherelets are fitted to training rows, which therefore appear nearer than rows of H, so
        comparisons with H are invalid. If ``radius`` is None, the quantile of the training rows'
        distances is used, as in :func:`typical_radius`, to rows of other ``subjects`` if these are
        known.
        """
        train = tables["train"]
        of_train, of_synthetic = (
            Spherelets.fit(tables[role], train, self.n_neighbors, self.dimension, device)
            for role in ("train", "synthetic")
        )
        radius = self.radius
        if radius is None:
            radius = spherelet_radius(of_train, train, subjects, self.quantile)
        t, s = (
            spherelet_near(of_synthetic, side, train, radius * (1 + TIE))
            for side in (of_train, of_synthetic)
        )
        return replace(
            found, radius=radius, train=t, synthetic=s - 1, holdout=np.full(len(t), np.nan)
        )

    def _excess(
        self,
        found: RowMemorization,
        tables: Mapping[str, EncodedTable],
        people: Subjects,
        rng: np.random.Generator,
    ) -> Estimate:
        """Return ``exposed_excess``. It is linear in the labels, so neighbor lists are not
        needed.
        """
        exposed = found.real * (len(tables["train"]) / len(people.codes)) > found.synthetic
        count, counts = int(exposed.sum()), (len(exposed), people.smallest_side)
        if count == 0:
            note = "0 exposed rows"
            return _EXCESS.estimate(
                0.0,
                0.0,
                0.0,
                counts,
                confidence=LEAK_CONFIDENCE,
                minimum_detectable_effect=0.0,
                note=note,
            )
        share = np.where(exposed, 1 / np.maximum(found.real, 1), 0.0) / count
        rows = [
            near(tables[role], tables["synthetic"], found.radius, share)
            for role in ("train", "holdout")
        ]
        weights = np.bincount(people.codes, np.concatenate(rows), len(people))
        evidence = inference.excess(weights[None], people, self.n_permutations, rng)
        return evidence.estimate(
            _EXCESS, counts, confidence=LEAK_CONFIDENCE, note=f"{count} exposed rows"
        )


def _exposed(found: RowMemorization, people: Subjects, sizes: Mapping[str, int]) -> Estimate:
    """Return ``exposed``."""
    exposed = found.alpha < 1
    low, high = clustered_share(exposed, people.codes[found.nearest])
    null = (
        math.nan
        if np.isnan(found.holdout).any()
        else by_chance(found, sizes["train"], sizes["holdout"])
    )
    counts, note = (len(exposed), people.members), f"lambda {found.radius:.4g}"
    return _EXPOSED.with_null(null).estimate(exposed.mean(), low, high, counts, note=note)


def clustered_share(flags: np.ndarray, clusters: np.ndarray) -> tuple[float, float]:
    """Return the 95 % interval of the mean of ``flags``, bool (n,), for dependent rows within
    clusters.

    It is Wilson's with n divided by the design effect: the variance of the sums by cluster relative
    to that of independent rows, at least 1. ``clusters`` (n,) are codes.
    """
    n, share = len(flags), float(flags.mean())
    alone = n * share * (1 - share)
    sums = np.bincount(clusters, flags - share)
    rows = n / max(1.0, float(sums @ sums) / alone) if alone > 0 else n
    _, low, high = wilson(share * rows, rows)
    return min(low, share), max(high, share)


def by_chance(found: RowMemorization, n_train: int, n_holdout: int) -> float:
    """Return the mean probability of more T than S rows near a synthetic row, if T is drawn from
    the rows of T u H.
    """
    from scipy import stats  # slow to import

    pairs = np.column_stack([found.synthetic, found.real]).astype(np.int64)
    kinds, times = np.unique(pairs, axis=0, return_counts=True)
    chances = stats.hypergeom.sf(kinds[:, 0], n_train + n_holdout, kinds[:, 1], n_train)
    return float(chances @ times / len(pairs))


def alpha_table(alpha: np.ndarray) -> list[dict[str, Any]]:
    """Return the number of synthetic rows in each range of alpha_m."""
    below, above = (
        np.searchsorted(ALPHAS[:4], alpha, side="right"),
        np.searchsorted(ALPHAS[4:], alpha),
    )
    place = np.where(alpha < 1, below, np.where(alpha > 1, 5 + above, 4))
    rows = np.bincount(place, minlength=len(RANGES))
    return table_rows(alpha=RANGES, rows=rows, share=rows / len(alpha))


def ratio_table(found: RowMemorization) -> list[dict[str, Any]]:
    """Return the shares of synthetic rows whose two ratios are at most each limit."""
    by_synthetic, by_holdout = (
        [(ratios <= limit).mean() for limit in RATIOS]
        for ratios in (found.train_to_synthetic, found.train_to_holdout)
    )
    return table_rows(at_most=RATIOS, train_to_synthetic=by_synthetic, train_to_holdout=by_holdout)


def most_exposed(found: RowMemorization) -> list[dict[str, Any]]:
    """Return the rows with the smallest alpha_m. Ties: smallest ratios, then position."""
    order = np.lexsort((found.train_to_holdout, found.train_to_synthetic, found.alpha))
    listed = order[:LISTED][found.alpha[order[:LISTED]] < 1]
    return table_rows(
        row=listed,
        alpha=found.alpha[listed],
        train=found.train[listed].astype(np.int64),
        synthetic=found.synthetic[listed].astype(np.int64),
        train_to_synthetic=found.train_to_synthetic[listed],
        train_to_holdout=found.train_to_holdout[listed],
    )
