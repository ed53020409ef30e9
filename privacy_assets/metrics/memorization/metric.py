"""Memorization of single synthetic rows (Kuppa et al., section 3)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from pydantic import Field

from privacy_assets.errors import InputError
from privacy_assets.metrics.base import Measured, Metric, rows_of
from privacy_assets.metrics.declarations import Causes, Compared, Protected, Shares
from privacy_assets.metrics.inputs import MetricInputs
from privacy_assets.metrics.memorization.rows import ROLES, RowMemorization, tables_of
from privacy_assets.neighbours.radius import TIE, near, typical_radius
from privacy_assets.neighbours.spherelets import Spherelets, spherelet_near, spherelet_radius
from privacy_assets.settings import declared
from privacy_assets.stats import inference
from privacy_assets.stats.estimates import Estimate, StatisticSpec
from privacy_assets.stats.intervals import LEAK_CONFIDENCE, wilson
from privacy_assets.stats.subjects import Subjects
from privacy_assets.tables.encoding import EncodedTable

Space = Literal["raw", "embedded"]
Distance = Literal["euclidean", "spherelet"]
LISTED = 20  # rows of the table "most_exposed"
ALPHAS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)  # between the ranges of the table "alpha"; exactly 1 is one of its own
RANGES = ("below 1/8", "1/8 to 1/4", "1/4 to 1/2", "1/2 to 1", "1", "1 to 2", "2 to 4", "4 to 8", "above 8")
RATIOS = (0.01, 0.1, 0.25, 0.5, 1.0)

_EXPOSED = StatisticSpec(
    "exposed", "Share of synthetic rows with more training rows than other synthetic rows near them.", null=None
)
_EXCESS = StatisticSpec(
    "exposed_excess", "Excess share of members among the real people near the exposed synthetic rows.", "two_sided"
)


@declared
class Memorization(Metric):
    """Which synthetic rows stand where there is training data, and no other synthetic data?

    ``alpha_m = (g + 1/2) / (t + 1/2)`` per synthetic row s: t training rows and g other synthetic rows stand within
    lambda of it, those at lambda included (distances that agree to 1 in 10,000 tie). Plain counts, as in the paper: a
    table of another length than T moves them, and the null of ``exposed`` with them. lambda is ``radius`` or, without
    one, the ``quantile`` of the distances of training rows to the nearest other one (of another person, where people
    are known). It is 0 on tables of few distinct rows: then only identical rows are near.

    ``exposed``: share of rows with alpha_m < 1. Its null is what the same rows show on average when the labels of the
    real rows within lambda are drawn at random (hypergeometric; rows, not subjects), so that it may be read at any
    sizes. Interval: Wilson, for rows given T, the number of rows divided by the design effect of rows that share their
    nearest training person.

    ``exposed_excess``: of the rows that have fewer others near them than the t expected of random labels, the mean
    share of members among the real rows within lambda; less the share of subjects in T, over one minus that share. 0 by
    chance, 1 when all are members, negative when members are avoided; 0 without width when no row has real rows near.
    Labels permuted by subject give the interval, at 99.5 %: its near end is what is significant.

    ``space`` is the encoding in which distances are taken, "raw" or "embedded" (which needs an embedder). ``distance``
    "spherelet" adds to the Euclidean one how differently the data bend (see
    :mod:`privacy_assets.neighbours.spherelets`; ``neighbours`` training rows, ``dimension``) in lambda, alpha_m
    and ``exposed``, which then has no null; ``exposed_excess``, blind to labels, and the ratios stay Euclidean. Tables:
    "alpha" (histogram), "ratios" (shares of rows with d(s,T)/d(s,S without s) and d(s,T)/d(s,H) up to so much), and
    "most_exposed": positions of rows in S, the smallest alpha_m first, then the smallest ratios. Ties by position.
    """

    space: Space = Field(default="raw", description="where distances are measured")
    distance: Distance = Field(default="euclidean", description="Euclidean, or d_R of Kuppa")
    radius: float | None = Field(
        default=None, ge=0, description="lambda; without, the quantile of leave-one-out distances in train"
    )
    quantile: float = Field(default=0.02, gt=0, le=0.5, description="quantile that lambda is")
    neighbours: int = Field(default=20, ge=3, description="training rows of a spherelet")
    dimension: int = Field(default=2, ge=1, description="dimension of a spherelet")
    permutations: int = Field(default=999, ge=199, description="permutations of the labels of people")

    name = "memorization"
    summary = "Which synthetic rows lie among training rows rather than among other synthetic rows?"
    needs = frozenset(ROLES)
    statistics = (_EXPOSED, _EXCESS)

    plots = (
        Shares(
            table="alpha",
            caption="Synthetic rows by memorization coefficient (other synthetic rows near it, over training rows near "
            "it), on a logarithmic axis. Below 1 there are more training rows: the row is exposed. Most rows of a "
            "sparse table have neither, which gives exactly 1.",
            label="alpha",
            series={"share": "share of the synthetic rows"},
            log=True,
        ),
    )
    question = "copies"
    causes = Causes("copied rows")
    protections = (Protected("memorization", ("exposed_excess",)),)
    compared = Compared(
        "exposed",
        "exposed rows",
        "Exposed: synthetic rows that stand among training rows rather than other synthetic rows.",
    )

    def __post_init__(self) -> None:
        if self.space == "embedded":
            object.__setattr__(self, "needs", frozenset({*ROLES, "embedder"}))

    def measure(self, inputs: MetricInputs) -> Measured:
        """Compute statistics and tables; NaN statistics where T has fewer than two rows, or H or S none."""
        if self.space == "embedded" and inputs.embedder is None:
            raise InputError(
                "memorization was asked for in the embedding", fix="pass an embedder or take the raw space"
            )
        sizes = {role: len(inputs.tables[role]) for role in ROLES}
        if sizes["train"] < 2 or min(sizes.values()) == 0:
            reason = "two training rows are needed, and rows of holdout and synthetic table"
            return self.not_measurable(reason, (sizes["synthetic"], 0))
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
        lists = {"alpha": alpha_table(found.alpha), "ratios": ratio_table(found), "most_exposed": most_exposed(found)}
        return Measured((_exposed(found, people, sizes), excess), lists)

    def by_spherelets(
        self, found: RowMemorization, tables: Mapping[str, EncodedTable], subjects: np.ndarray | None, device: str
    ) -> RowMemorization:
        """``found`` with the counts of T and of S by spherelet distance; those of H are NaN.

        Spherelets are made of training rows, which therefore look nearer than rows of H: nothing may be compared with
        H. Without a ``radius`` it is the quantile of the training rows' own distances, as :func:`typical_radius` takes
        it, of rows of other ``subjects`` where these are known.
        """
        train = tables["train"]
        of_train, of_synthetic = (
            Spherelets.fit(tables[role], train, self.neighbours, self.dimension, device)
            for role in ("train", "synthetic")
        )
        radius = self.radius
        if radius is None:
            radius = spherelet_radius(of_train, train, subjects, self.quantile)
        t, s = (spherelet_near(of_synthetic, side, train, radius * (1 + TIE)) for side in (of_train, of_synthetic))
        return replace(found, radius=radius, train=t, synthetic=s - 1, holdout=np.full(len(t), np.nan))

    def _excess(
        self, found: RowMemorization, tables: Mapping[str, EncodedTable], people: Subjects, rng: np.random.Generator
    ) -> Estimate:
        """Statistic ``exposed_excess``: linear in the labels, so that no list of the rows near each other is needed."""
        exposed = found.real * (len(tables["train"]) / len(people.codes)) > found.synthetic
        count, counts = int(exposed.sum()), (len(exposed), people.smallest_side)
        if count == 0:
            note = "0 exposed rows"
            return _EXCESS.estimate(
                0.0, 0.0, 0.0, counts, confidence=LEAK_CONFIDENCE, minimum_detectable_effect=0.0, note=note
            )
        share = np.where(exposed, 1 / np.maximum(found.real, 1), 0.0) / count
        rows = [near(tables[role], tables["synthetic"], found.radius, share) for role in ("train", "holdout")]
        weights = np.bincount(people.codes, np.concatenate(rows), len(people))
        evidence = inference.excess(weights[None], people, self.permutations, rng)
        return evidence.estimate(_EXCESS, counts, confidence=LEAK_CONFIDENCE, note=f"{count} exposed rows")


def _exposed(found: RowMemorization, people: Subjects, sizes: Mapping[str, int]) -> Estimate:
    """Statistic ``exposed``."""
    exposed = found.alpha < 1
    low, high = clustered_share(exposed, people.codes[found.nearest])
    null = math.nan if np.isnan(found.holdout).any() else by_chance(found, sizes["train"], sizes["holdout"])
    counts, note = (len(exposed), people.members), f"lambda {found.radius:.4g}"
    return _EXPOSED.estimate(exposed.mean(), low, high, counts, null=null, note=note)


def clustered_share(flags: np.ndarray, clusters: np.ndarray) -> tuple[float, float]:
    """Ends of the 95 % interval of the mean of ``flags``, bool (n,), where rows of one cluster may be alike.

    Wilson's, with n divided by the design effect: the variance of the sums by cluster over that of independent rows, at
    least 1. ``clusters`` (n,) are codes.
    """
    n, share = len(flags), float(flags.mean())
    alone = n * share * (1 - share)
    sums = np.bincount(clusters, flags - share)
    rows = n / max(1.0, float(sums @ sums) / alone) if alone > 0 else n
    _, low, high = wilson(share * rows, rows)
    return min(low, share), max(high, share)


def by_chance(found: RowMemorization, n_train: int, n_holdout: int) -> float:
    """Mean chance that more of T than of S stands near a synthetic row, when T is drawn from the rows of T u H."""
    from scipy import stats  # slow to import: only where a table is measured

    pairs = np.column_stack([found.synthetic, found.real]).astype(np.int64)
    kinds, times = np.unique(pairs, axis=0, return_counts=True)
    chances = stats.hypergeom.sf(kinds[:, 0], n_train + n_holdout, kinds[:, 1], n_train)
    return float(chances @ times / len(pairs))


def alpha_table(alpha: np.ndarray) -> list[dict[str, Any]]:
    """How many of the synthetic rows have their alpha_m in which range."""
    below, above = np.searchsorted(ALPHAS[:4], alpha, side="right"), np.searchsorted(ALPHAS[4:], alpha)
    place = np.where(alpha < 1, below, np.where(alpha > 1, 5 + above, 4))
    rows = np.bincount(place, minlength=len(RANGES))
    return rows_of(alpha=RANGES, rows=rows, share=rows / len(alpha))


def ratio_table(found: RowMemorization) -> list[dict[str, Any]]:
    """Shares of the synthetic rows whose two ratios are at most so much."""
    by_synthetic, by_holdout = (
        [(ratios <= limit).mean() for limit in RATIOS] for ratios in (found.train_to_synthetic, found.train_to_holdout)
    )
    return rows_of(at_most=RATIOS, train_to_synthetic=by_synthetic, train_to_holdout=by_holdout)


def most_exposed(found: RowMemorization) -> list[dict[str, Any]]:
    """The rows with the smallest alpha_m, then ratios, then positions."""
    order = np.lexsort((found.train_to_holdout, found.train_to_synthetic, found.alpha))
    listed = order[:LISTED][found.alpha[order[:LISTED]] < 1]
    return rows_of(
        row=listed,
        alpha=found.alpha[listed],
        train=found.train[listed].astype(np.int64),
        synthetic=found.synthetic[listed].astype(np.int64),
        train_to_synthetic=found.train_to_synthetic[listed],
        train_to_holdout=found.train_to_holdout[listed],
    )
