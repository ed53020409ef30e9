"""Distance to the closest record: Palacios' privacy score and statistics on membership."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field

from privacy_assets.distances.nearest import distinct_encoded, nearest_rows
from privacy_assets.errors import ConfigError
from privacy_assets.infra.settings import Tuple, declared
from privacy_assets.metrics.base import (
    Causes,
    CurvePlot,
    IntervalPlot,
    Metric,
    ProtectionEvidence,
    TableRows,
    by_name,
    table_rows,
)
from privacy_assets.metrics.inputs import EvaluationInputs, MaxTargets, target_rows
from privacy_assets.policy import Limit
from privacy_assets.stats import inference
from privacy_assets.stats.estimates import Estimate, MetricResult, StatisticSpec
from privacy_assets.stats.inference import PermutationResult
from privacy_assets.stats.intervals import MDE_QUANTILE, leaked_subjects
from privacy_assets.stats.subjects import Subjects
from privacy_assets.tables.encoding import EncodedTable

IDENTICAL_EXCESS = StatisticSpec(
    "identical_excess",
    "Share of identical matches with real people explained only by membership.",
    "two_sided",
)


def identical_excess(
    real: np.ndarray, subjects: Subjects, synthetic: np.ndarray, floor: float, confidence: float
) -> Estimate:
    """Estimate ``identical_excess``: leaked subjects divided by max(k, ``floor``), between -1 and
    1.

    Only rows that a single subject has are eligible. Of u subjects with such a row, u_T are
    members. k of the u subjects have such a row in S, k_T of them members. If S does not depend on
    T, k_T is hypergeometric(u, u_T, k). Leaked subjects are (k_T - k u_T / u) / (1 - u_T / u), the
    number of matches explained only by membership. Below expectation it is minus the number
    explained only by non-membership. Exactly 0 without a match.

    Args:
        real: Row ids of T stacked on H, shape (N,).
        subjects: Subjects of these rows.
        synthetic: Row ids of S, shape (n_S,).
        floor: Minimum denominator.
        confidence: Confidence level of the exact interval.

    Returns:
        The estimate. Not measurable if a side has no such rows.
    """
    counts = (len(synthetic), subjects.smallest_side)
    is_own = own_rows(real, subjects.codes)
    eligible = np.unique(subjects.codes[is_own])
    matched = np.unique(subjects.codes[is_own & np.isin(real, synthetic)])
    leaked = leaked_subjects(eligible, matched, subjects.member, confidence)
    if min(counts) == 0 or np.isnan(leaked).any():
        return IDENTICAL_EXCESS.missing(
            "train or holdout has no row of a single person", counts, confidence
        )
    value, low, high, mde = (leaked / max(len(matched), floor, 1)).tolist()
    return IDENTICAL_EXCESS.estimate(
        value, low, high, counts, confidence=confidence, minimum_detectable_effect=mde
    )


def own_rows(ids: np.ndarray, subjects: np.ndarray) -> np.ndarray:
    """Return which rows (N,) have content that a single subject has."""
    n_subjects = int(subjects.max(initial=0)) + 1
    n_ids = int(ids.max(initial=0)) + 1
    pairs = np.unique(ids * n_subjects + subjects)
    n_holders = np.bincount(pairs // n_subjects, minlength=n_ids)
    return n_holders[ids] == 1


ROLES = ("train", "holdout", "synthetic")


@dataclass(frozen=True, eq=False)
class Space:
    """Distances in one space.

    Attributes:
        name: "raw" or "embedded".
        srd: Distances of synthetic rows to T, shape (n_S,).
        rrd: Distances of holdout rows, or some of them, to T.
        groups: Number of the distinct row of T u H for each row, shape (N,).
        matched: Distinct row of T u H nearest to each synthetic row, shape (n_S,).
        isolation: Leave-one-out distance of that row in T u H, shape (n_S,).
        keys: Values by which synthetic rows are ranked, each of shape (n_S,), by name.
    """

    name: str
    srd: np.ndarray
    rrd: np.ndarray
    groups: np.ndarray
    matched: np.ndarray
    isolation: np.ndarray
    keys: dict[str, np.ndarray]

    @classmethod
    def of(
        cls,
        name: str,
        tables: Sequence[EncodedTable],
        device: str,
        holdout_rows: np.ndarray | None = None,
    ) -> Space:
        """Search T u H independently of labels, and then T alone if the nearest row is not in T.

        ``holdout_rows`` contains the positions of the rows of H for ``rrd``. None: all rows.
        """
        train, holdout, synthetic = tables
        unique, groups = distinct_encoded(EncodedTable.stack([train, holdout]))
        in_train = np.zeros(len(unique), dtype=bool)
        in_train[groups[: len(train)]] = True
        pooled = nearest_rows(synthetic, unique, device=device)
        matched = pooled.indices[:, 0]
        distance = pooled.distances[:, 0]

        is_in_holdout = ~in_train[matched]
        if holdout_rows is not None:
            holdout = holdout.take(holdout_rows)
        queries = EncodedTable.stack([synthetic.take(is_in_holdout), holdout])
        nearest = nearest_rows(queries, unique.take(in_train), device=device)
        to_train = nearest.distances[:, 0].astype(np.float32)
        n_synthetic = int(is_in_holdout.sum())
        srd = distance.astype(np.float32)
        srd[is_in_holdout] = to_train[:n_synthetic]
        rrd = to_train[n_synthetic:]

        isolation = _isolation(unique, np.bincount(groups), matched, device)
        ratio = np.full(len(distance), np.inf)
        np.divide(distance, isolation, out=ratio, where=isolation > 0)
        keys = {"distance": distance, "ratio": ratio}
        return cls(name, srd, rrd, groups, matched, isolation, keys)

    def take(self, rows: np.ndarray) -> Space:
        """Restrict to some rows of the synthetic table."""
        keys = {name: values[rows] for name, values in self.keys.items()}
        return replace(
            self,
            srd=self.srd[rows],
            matched=self.matched[rows],
            isolation=self.isolation[rows],
            keys=keys,
        )

    @cached_property
    def sizes(self) -> np.ndarray:
        """Number of rows of T u H equal to each distinct one, int64."""
        return np.bincount(self.groups)

    def closest(self, key: str, tail: float, least: int = 0) -> np.ndarray:
        """Return the distinct rows of T u H matched by the closest share ``tail`` of S.

        If they are fewer than ``least``, more of S is used. Ties: rows whose match is farther from
        other real rows come first, then content decides. Rows with an infinite key are ignored.
        """
        matched, first_positions = self._ranked[key]
        n_closest = max(1, round(tail * len(self.matched)), *(first_positions[:least] + 1))
        return np.unique(matched[:n_closest])

    @cached_property
    def _ranked(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Matched rows by key, closest first, with the position of the first occurrence of each."""
        ranked = {}
        for key, values in self.keys.items():
            ranking = np.lexsort((self.matched, -self.isolation, values))
            matched = self.matched[ranking[np.isfinite(values[ranking])]]
            first_positions = np.unique(matched, return_index=True)[1]
            ranked[key] = (matched, np.sort(first_positions))
        return ranked


def _isolation(
    unique: EncodedTable, counts: np.ndarray, matched: np.ndarray, device: str
) -> np.ndarray:
    """Return the leave-one-out distance in T u H of each matched row. 0 for a row that occurs more
    than once.
    """
    queries = np.unique(matched)
    queries = queries[counts[queries] == 1]
    neighbors = nearest_rows(unique.take(queries), unique, k=2, device=device)
    distances = np.zeros(len(unique))
    distances[queries] = neighbors.distances[:, 1]
    return distances[matched]


@dataclass(frozen=True, eq=False)
class Matches:
    """Inputs of the statistics of closeness.

    Attributes:
        spaces: Distances in the raw space and, with an embedder, in the embedded one.
        subjects: Subjects of the real rows, T stacked on H.
        real: Ids of the real rows, shape (N,).
        synthetic: Ids of the synthetic rows, shape (n_S,).
    """

    spaces: tuple[Space, ...]
    subjects: Subjects
    real: np.ndarray
    synthetic: np.ndarray

    @classmethod
    def of(cls, inputs: EvaluationInputs, holdout_rows: np.ndarray | None = None) -> Matches:
        """Search all spaces. No table may be empty. For ``holdout_rows`` see :meth:`Space.of`."""
        encoded = inputs.derived.encoded_tables(ROLES)
        spaces = [Space.of("raw", encoded, inputs.device, holdout_rows)]
        if inputs.embedder is not None:
            embedded = [EncodedTable.of_numbers(inputs.embedded(role)) for role in ROLES]
            spaces.append(Space.of("embedded", embedded, inputs.device, holdout_rows))
        subjects = Subjects.of(inputs.subject_codes("train", "holdout"), len(inputs.train))
        real = np.concatenate([inputs.row_ids["train"], inputs.row_ids["holdout"]])
        return cls(tuple(spaces), subjects, real, inputs.row_ids["synthetic"])

    def take(self, rows: np.ndarray) -> Matches:
        """Restrict to some rows of the synthetic table."""
        spaces = tuple(space.take(rows) for space in self.spaces)
        return replace(self, spaces=spaces, synthetic=self.synthetic[rows])

    def relabeled(self, member: np.ndarray) -> Matches:
        """Replace the labels by ``member``, bool (s,). Distances to T alone are then
        meaningless.
        """
        return replace(self, subjects=self.subjects.relabeled(member))


_ROUNDING = 1e-9
_DRAWS = 50  # bootstrap draws evaluated in one pass
_CELLS = 4_000_000  # maximum number of holdout weights in memory


def privacy_score(
    spec: StatisticSpec,
    srd: np.ndarray,
    rrd: np.ndarray,
    subjects: np.ndarray,
    alpha: float,
    n_bootstraps: int,
    rng: np.random.Generator,
) -> Estimate:
    """Compute the privacy score.

    q is the smallest RRD with P(RRD <= q) >= alpha. A synthetic row at q has weight w = (alpha -
    P(RRD < q)) / P(RRD = q). The score is (P(SRD < q) + w P(SRD = q) - alpha) / (1 - alpha), at
    most 1.

    Args:
        spec: Specification of the statistic.
        srd: Distances of synthetic rows to the training rows, shape (n_S,). Not empty.
        rrd: Distances of holdout rows to the training rows, shape (n_H,). Not empty.
        subjects: Subject codes 0..s-1 of the holdout rows, shape (n_H,).
        alpha: Share of holdout rows that count as close.
        n_bootstraps: Number of bootstraps.
        rng: Random generator.

    Returns:
        The estimate with a 95 % percentile bootstrap over holdout subjects and synthetic rows.
        Training rows are fixed. A permutation test does not apply, because the score is not a
        function of the labels.
    """
    law = _QuantileLaw(srd, rrd, alpha)
    value = float(law.score(np.ones((1, len(rrd))))[0])
    scores, null = law.bootstrap(subjects, n_bootstraps, rng)
    low, high = np.quantile(scores, (0.025, 0.975)).tolist()
    mde = float(np.quantile(null, MDE_QUANTILE) + np.quantile(null, 0.975))
    counts = (len(srd), int(subjects.max()) + 1)
    return spec.estimate(
        value, min(low, value), max(high, value), counts, minimum_detectable_effect=mde
    )


class _QuantileLaw:
    """Score as a function of the weights of the holdout rows."""

    def __init__(self, srd: np.ndarray, rrd: np.ndarray, alpha: float) -> None:
        self.alpha = alpha
        self.n = len(srd)
        self.rrd = rrd
        self.order = np.argsort(rrd, kind="stable")
        self.values, self.first = np.unique(rrd[self.order], return_index=True)
        self.law = self._below_and_at(srd)
        self.null_law = self._below_and_at(rrd)

    def _below_and_at(self, distances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the shares of ``distances`` below and at each distinct RRD."""
        ordered = np.sort(distances)
        below = np.searchsorted(ordered, self.values, side="left") / len(ordered)
        up_to = np.searchsorted(ordered, self.values, side="right") / len(ordered)
        return below, up_to - below

    def _quantile(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the position of q among the distinct RRD, and w, for weights (b, n_H)."""
        mass = np.add.reduceat(weights[:, self.order], self.first, axis=1).cumsum(axis=1)
        target = self.alpha * mass[:, -1]
        position = (mass < target[:, None] - _ROUNDING).sum(axis=1)
        rows = np.arange(len(weights))
        before = np.where(position > 0, mass[rows, position - 1], 0.0)
        w = (target - before) / (mass[rows, position] - before)
        return position, np.clip(w, 0, 1)

    def score(self, weights: np.ndarray) -> np.ndarray:
        """Return the scores (b,) for weights (b, n_H)."""
        position, w = self._quantile(weights)
        below, at = self.law
        return (below[position] + w * at[position] - self.alpha) / (1 - self.alpha)

    def bootstrap(
        self, subjects: np.ndarray, count: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return bootstrap scores (count,) and null scores, for which SRD is distributed as RRD.

        Holdout subjects and synthetic rows are resampled.
        """
        subjects = self._by_content(subjects)
        scores = []
        null = []
        for start in range(0, count, _DRAWS):
            n_draws = min(_DRAWS, count - start)
            position, w = self._resampled_quantiles(subjects, n_draws, rng)
            scores.append(self._resampled(self.law, position, w, rng))
            null.append(self._resampled(self.null_law, position, w, rng))
        return np.concatenate(scores), np.concatenate(null)

    def _resampled_quantiles(
        self, subjects: np.ndarray, count: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Apply :meth:`_resampled_quantile` in batches that fit in memory."""
        batch_size = max(1, _CELLS // len(subjects))
        positions = []
        weights = []
        for start in range(0, count, batch_size):
            n_draws = min(batch_size, count - start)
            position, w = self._resampled_quantile(subjects, n_draws, rng)
            positions.append(position)
            weights.append(w)
        return np.concatenate(positions), np.concatenate(weights)

    def _resampled_quantile(
        self, subjects: np.ndarray, count: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Apply :meth:`_quantile` to ``count`` resamples of the holdout subjects."""
        n_subjects = int(subjects.max()) + 1
        picks = rng.integers(0, n_subjects, (count, n_subjects))
        cells = picks + n_subjects * np.arange(count)[:, None]
        n_picks = np.bincount(cells.ravel(), minlength=count * n_subjects)
        n_picks = n_picks.reshape(count, n_subjects)
        return self._quantile(n_picks[:, subjects].astype(np.float64))

    def _by_content(self, subjects: np.ndarray) -> np.ndarray:
        """Renumber subjects by the distances of their rows, so that draws do not depend on the
        order of rows.
        """
        n_rows = np.bincount(subjects)
        total = np.bincount(subjects, weights=self.rrd)
        smallest = np.full(len(n_rows), np.inf)
        np.minimum.at(smallest, subjects, self.rrd)
        order = np.lexsort((n_rows, total, smallest))
        return np.argsort(order)[subjects]

    def _resampled(
        self,
        law: tuple[np.ndarray, np.ndarray],
        position: np.ndarray,
        w: np.ndarray,
        rng: np.random.Generator,
    ) -> np.ndarray:
        """Return the score of a resample of the synthetic rows for each q. Only the counts below
        and at q are drawn.
        """
        below = law[0][position]
        at = law[1][position]
        n_below = rng.binomial(self.n, below)
        at_unless_below = np.clip(at / np.maximum(1 - below, 1e-300), 0, 1)
        n_at = rng.binomial(self.n - n_below, at_unless_below)
        return ((n_below + w * n_at) / self.n - self.alpha) / (1 - self.alpha)


KEYS = ("distance", "ratio")
ANY_CONFIDENCE = 0.995  # of member_excess_any
IDENTICAL_CONFIDENCE = 0.99  # of identical_excess
_PROBABILITIES = np.linspace(0, 1, 101)


@declared
class Dcr(Metric):
    """Distance of synthetic rows to the closest training row, and membership of the closest real
    rows.

    Args:
        alpha: Share of holdout rows that count as close.
        n_bootstraps: Number of bootstraps of the privacy score.
        n_permutations: Number of permutations of the membership labels.
        tails: Shares of the closest synthetic rows.
        headline_tail: Tail of ``member_excess``, one of ``tails``.
        headline_rows: Minimum number of distinct real rows matched for ``member_excess``.
        negligible: Minimum denominator of ``identical_excess``, as a share of the smaller of T and
            S in rows.
        max_targets: Maximum number of holdout rows in ``privacy_score``, drawn by subject. None:
            all rows. Synthetic rows and searched rows are never sampled.

    Attributes:
        privacy_score: Share of synthetic rows closer to T than chance allows, see
            :mod:`.privacy_score`. Distances that agree in float32 tie.
        privacy_score_embedded: Same score in the contrastive embedding.
        member_excess: Excess share of members among the real rows matched by the closest synthetic
            rows, by distance at ``headline_tail``. 0: chance, 1: members only, negative: members
            are avoided.
        member_excess_embedded: Same excess in the embedding.
        member_excess_any: Strongest excess over all spaces, keys and tails, with a simultaneous
            99.5 % interval. Its near end shows significance.
        identical_excess: Share of identical matches explained only by membership, see
            :func:`identical_excess`.

    Notes:
        Each synthetic row is matched to its nearest row of T u H and ranked by a key that does not
        use labels: "distance", or "ratio", the distance divided by the leave-one-out distance of
        the matched row in T u H. Rows that occur twice in T u H have an infinite ratio. With m the
        mean label of the distinct matched rows and p the share of subjects in T, excess = (m - p) /
        (1 - p).

        ``member_excess`` extends its tail until ``headline_rows`` real rows are matched: fewer are
        not evidence of safety, and repeated common rows match few. One interval cannot serve
        conservative and significant limits, hence two statistics.

        ``negligible`` prevents conclusions from a few matches, and a longer table from repeating
        more subjects.

        Permutations and bootstraps are by subject. Ties in matching are broken by content; ties in
        ranking prefer the match farther from all other real rows, then content.
    """

    name = "dcr"
    summary = (
        "Distance of synthetic rows to the closest real record, compared with rows of non-members."
    )
    required_inputs = frozenset(ROLES)
    optional_inputs = frozenset({"embedder"})
    statistics = (
        StatisticSpec(
            "privacy_score",
            "Share of synthetic rows closer to training rows than chance allows.",
            leak="{share} of the released rows were closer to people in the training data than by"
            " chance",
        ),
        StatisticSpec(
            "privacy_score_embedded",
            "Share of synthetic rows closer to training rows than chance allows, in the"
            " contrastive embedding.",
            embedded=True,
        ),
        StatisticSpec(
            "member_excess",
            "Excess share of members among the real rows closest to the synthetic rows.",
            "two_sided",
        ),
        StatisticSpec(
            "member_excess_embedded",
            "Excess share of members among the real rows closest to the synthetic rows, in the"
            " embedding.",
            "two_sided",
            embedded=True,
        ),
        StatisticSpec(
            "member_excess_any",
            "Among the real rows closest to the release, the share of members in excess of the"
            " expected one: the"
            " strongest evidence over all distances and tails.",
            "two_sided",
            embedded=True,
            leak="members were {share} more frequent among the closest real rows than expected",
        ),
        IDENTICAL_EXCESS,
    )
    default_limits = (
        Limit(
            "dcr.privacy_score",
            at_most=0.12,
            source="simulated: the densest rows of non-members, which disclose no member, stay"
            " within 0.106 in 100 splits of Adult and 0.058 in 25 of UK census"
            " (8,000/2,000/8,000 rows)",
        ),
        Limit(
            "dcr.member_excess_any",
            at_most=0.25,
            bound="proven",
            source="significant at 99.5 % over all distances and tails jointly; tolerates"
            " trees with"
            " leaves of 50 rows "
            "(at most 0.19 in 400 splits of Adult and UK census)",
        ),
    )

    plots = (
        CurvePlot(
            table="distances",
            caption="Distance to the nearest training row, {} space. A leak shows as a synthetic"
            " curve that rises "
            "before the holdout curve: synthetic rows are closer to training rows than those"
            " of non-members are.",
            curves={
                "synthetic to training (SRD)": ("srd", "quantile"),
                "holdout to training (RRD)": ("rrd", "quantile"),
            },
            axis_labels=("distance", "share of rows"),
            facet="space",
        ),
        IntervalPlot(
            table="tails",
            caption="Member excess among the closest synthetic rows: share of matched real"
            " rows from"
            " training, beyond "
            "chance. Zero means no leak; both directions identify members.",
            x="tail",
            y="excess",
            series=("space", "key"),
            axis_labels=("share of closest synthetic rows", "member excess"),
        ),
    )
    question = "copies"
    causes = Causes(
        "over-fitting",
        dict.fromkeys(
            ("privacy_score", "privacy_score_embedded", "identical_excess"), "copied rows"
        ),
    )
    protections = (ProtectionEvidence("similarity", ("identical_excess", "member_excess")),)

    alpha: float = Field(default=0.02, gt=0, le=0.5)
    n_bootstraps: int = Field(default=1000, ge=50)
    n_permutations: int = Field(default=999, ge=199)
    tails: Annotated[tuple[Annotated[float, Field(gt=0, le=0.5)], ...], Tuple] = Field(
        default=(0.005, 0.02, 0.05, 0.20), min_length=1
    )
    headline_tail: float = Field(default=0.05, gt=0, le=0.5)
    headline_rows: int = Field(default=250, ge=1)
    negligible: float = Field(default=0.05, gt=0, le=0.5)
    max_targets: MaxTargets = None

    def __post_init__(self) -> None:
        if self.headline_tail not in self.tails:
            raise ConfigError(
                f"metric dcr: headline_tail {self.headline_tail} is not one of the tails"
                f" {self.tails}."
            )

    def measure(self, inputs: EvaluationInputs) -> MetricResult:
        """Compute the statistics and the tables "tails" and "distances".

        Args:
            inputs: Tables of one release.

        Returns:
            The result, not measurable if a table has no rows.
        """
        n_synthetic = len(inputs.synthetic)
        for role in ROLES:
            if len(inputs.tables[role]) == 0:
                missing = self._in_order([], n_synthetic, 0, f"{role} has no rows")
                return self.result(inputs, missing)

        rows = target_rows(inputs, ("holdout",), self.max_targets, "dcr.attacked")
        matches = Matches.of(inputs, rows)
        estimates, tails = self.excesses(matches, inputs.rng("dcr.permutations"))
        holdout_codes = inputs.subject_codes("holdout")
        if rows is not None:
            _, holdout_codes = np.unique(holdout_codes[rows], return_inverse=True)
        for space in matches.spaces:
            rng = inputs.rng(f"dcr.bootstrap.{space.name}")
            spec = self.statistic(_in_space("privacy_score", space))
            score = privacy_score(
                spec, space.srd, space.rrd, holdout_codes, self.alpha, self.n_bootstraps, rng
            )
            estimates.append(score)
        n_subjects = matches.subjects.smallest_side
        complete = self._in_order(estimates, n_synthetic, n_subjects, "no embedder")
        return self.result(inputs, complete, tails=tails, distances=_distance_table(matches.spaces))

    def excesses(
        self, matches: Matches, rng: np.random.Generator
    ) -> tuple[list[Estimate], TableRows]:
        """Compute the statistics that depend on labels.

        Args:
            matches: Distances, subjects and ids.
            rng: Source of the permutations.

        Returns:
            The estimates, and the table "tails".
        """
        estimates, tails = self._member_excess(matches.spaces, matches.subjects, rng)
        subjects = matches.subjects
        n_train = int(subjects.member[subjects.codes].sum())
        floor = self.negligible * min(n_train, len(matches.synthetic))
        identical = identical_excess(
            matches.real, subjects, matches.synthetic, floor, IDENTICAL_CONFIDENCE
        )
        return [*estimates, identical], tails

    def _member_excess(
        self, spaces: Sequence[Space], subjects: Subjects, rng: np.random.Generator
    ) -> tuple[list[Estimate], TableRows]:
        """Return "member_excess" of each space and "member_excess_any", and the table "tails"."""
        entries = []
        weights = []
        for space, key, tail in itertools.product(spaces, KEYS, self.tails):
            matched = space.closest(key, tail)
            entries.append(_Entry(space, key, tail, matched))
            weights.append(_weights(subjects, space, matched))
        for space in spaces:
            matched = space.closest("distance", self.headline_tail, self.headline_rows)
            weights.append(_weights(subjects, space, matched))
        permuted = inference.excess(np.stack(weights), subjects, self.n_permutations, rng)

        counts = (len(spaces[0].srd), subjects.smallest_side)
        estimates: list[Estimate] = []
        rows: TableRows = []
        n_entries = len(KEYS) * len(self.tails)  # of each space
        for i, space in enumerate(spaces):
            of_space = range(i * n_entries, (i + 1) * n_entries)
            space_entries = entries[of_space.start : of_space.stop]
            rows += _tail_rows(space_entries, permuted[list(of_space)])
            headline = permuted[[len(entries) + i]]
            spec = self.statistic(_in_space("member_excess", space))
            estimates.append(headline.estimate(spec, counts))
        # Null standard deviations of the tails differ greatly, so the minimum detectable effect
        # uses that of the reported entry and not, as in PermutationResult.worst, that of the entry
        # that chance would select.
        permuted_entries = permuted[: len(entries)]
        strongest = int(np.abs(permuted_entries.band(ANY_CONFIDENCE).z).argmax())
        spec = self.statistic("member_excess_any")
        strongest_excess = permuted_entries.estimate(
            spec, counts, at=strongest, confidence=ANY_CONFIDENCE
        )
        return [*estimates, strongest_excess], rows

    def _in_order(
        self, estimates: Sequence[Estimate], n: int, n_subjects: int, note: str
    ) -> tuple[Estimate, ...]:
        """Return the estimates in the order of the specifications. Missing ones are NaN with
        ``note``.
        """
        estimates_by_name = by_name(estimates)
        ordered = []
        for spec in self.statistics:
            missing = spec.missing(note, (n, n_subjects))
            ordered.append(estimates_by_name.get(spec.name, missing))
        return tuple(ordered)


class _Entry(NamedTuple):
    """The closest synthetic rows in one space by one key.

    Attributes:
        space: Space of the distances.
        key: Key of the ranking, one of ``KEYS``.
        tail: Share of the closest synthetic rows.
        matched: Distinct real rows that they match.
    """

    space: Space
    key: str
    tail: float
    matched: np.ndarray


def _tail_rows(entries: Sequence[_Entry], permuted: PermutationResult) -> TableRows:
    """Return the rows of the table "tails" for the entries of one space."""
    band = permuted.band()
    return table_rows(
        space=[entry.space.name for entry in entries],
        key=[entry.key for entry in entries],
        tail=[entry.tail for entry in entries],
        matched=[len(entry.matched) for entry in entries],
        excess=permuted.observed,
        low=band.low,
        high=band.high,
    )


def _weights(subjects: Subjects, space: Space, hit: np.ndarray) -> np.ndarray:
    """Return weights (s,) that turn labels into the mean label of the distinct rows ``hit``.

    The label of a distinct row is the mean label of its equal rows.
    """
    is_hit = np.zeros(len(space.sizes), dtype=bool)
    is_hit[hit] = True
    rows = is_hit[space.groups]
    share = 1 / (space.sizes[space.groups[rows]] * max(1, len(hit)))
    return np.bincount(subjects.codes[rows], weights=share, minlength=len(subjects))


def _in_space(statistic: str, space: Space) -> str:
    """Return the name of a statistic in a space."""
    if space.name == "raw":
        return statistic
    return f"{statistic}_{space.name}"


def _distance_table(spaces: Sequence[Space]) -> TableRows:
    """Return quantiles of SRD and RRD in each space."""
    rows: TableRows = []
    for space in spaces:
        srd = np.quantile(space.srd, _PROBABILITIES)
        rrd = np.quantile(space.rrd, _PROBABILITIES)
        rows += table_rows(space=[space.name] * len(srd), quantile=_PROBABILITIES, srd=srd, rrd=rrd)
    return rows
