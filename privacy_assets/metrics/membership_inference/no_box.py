"""No-box attacks of the literature: scores of real rows from the synthetic table S and a reference
R of non-members.

- DPI, the data plagiarism index (Ward et al. 2024): the 20 rows nearest to x contain c_S rows of S
  and c_R of R. The score is ((c_S + 1/2) / n_S) / ((c_R + 1/2) / n_R). Rows tied for the last place
  are counted proportionally.
- DOMIAS (van Breugel et al. 2023): p_S(x) / p_R(x), the ratio of two kernel density estimates.
- Gen-LRA (Ward et al. 2025): the increase in likelihood of the 5 synthetic rows nearest to x when x
  is added to the reference, that is the product of p_{R+x}(s) / p_R(s) over these rows s.

The kernel is K_h(x, y) = exp(-d(x, y)^2 / (2 h^2)) with the distance of
:mod:`privacy_assets.tables.encoding`: a Gaussian for standardized numbers, and for categories the
kernel of Aitchison and Aitken (1976), in which other values have weight exp(-1 / (2 h^2)). Both
densities use the same h, so the normalization cancels. h maximizes the leave-one-out likelihood of
R on a grid, where all rows of the same person are left out and the most isolated 5 % of rows are
ignored. Sums use the 20 nearest rows: at the chosen h, 30 more raise the mean log-likelihood on
Adult and UK census by at most 0.04. Adding a row to n others changes the sum F of a density to F +
K and n to n + 1, so the ratios of Gen-LRA are (1 + K / F) n / (n + 1) without refitting; h and
scales are kept. All computations use logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.metrics.membership_inference.scores import Population
from privacy_assets.stats import inference
from privacy_assets.stats.estimates import Estimate, StatisticSpec
from privacy_assets.stats.intervals import CONFIDENCE, MDE_QUANTILE, exact_low
from privacy_assets.stats.subjects import MIN_SUBJECTS_PER_SIDE
from privacy_assets.tables.encoding import EncodedTable

NEIGHBOURS = 20  # number of neighbors of DPI in Ward et al.
INFLUENCED = 5  # 1, 5 and 20 detect members about equally well (Adult, UK census)
# in standard deviations, 0.05 to 3.2
BANDWIDTHS = tuple(float(h) for h in 0.05 * 2 ** (np.arange(13) / 2))
# share of reference rows in the likelihood, so that outliers do not widen the kernel
_TYPICAL = 0.95
_BLOCK = 1 << 18  # rows per search

_AREA = "AUC of members versus non-members"
SPECS = tuple(
    StatisticSpec(name, f"{_AREA}, {how}; below 0.5: members are avoided.", "two_sided", 0.5)
    for name, how in (
        ("auc_reference_ratio", "by distance to the table over distance to the reference"),
        (
            "auc_dpi",
            "by the share of the table among the 20 nearest rows of table and reference (DPI)",
        ),
        ("auc_domias", "by density in the table over density in the reference (DOMIAS)"),
        ("auc_gen_lra", "by the likelihood gain of nearby synthetic rows (Gen-LRA)"),
    )
)


@dataclass(frozen=True, eq=False)
class NoBoxScores:
    """Distances and scores of the attacked rows, float64 (n,).

    Attributes:
        distances: Distances to the nearest row of "synthetic" and "reference".
        scores: Scores by statistic; larger ones are more member-like.
    """

    distances: Mapping[str, np.ndarray]
    scores: Mapping[str, np.ndarray]


def score_rows(inputs: EvaluationInputs, attacked: np.ndarray | None = None) -> NoBoxScores | None:
    """Score the rows of T stacked on H, or those at the positions ``attacked``.

    Memory is linear: 20 neighbors of at most 262,144 rows at a time.

    Returns:
        The scores, or None if R has fewer than 20 subjects.
    """
    from privacy_assets.distances.nearest import nearest_rows

    if (
        inputs.reference is None
        or np.unique(inputs.subject_codes("reference")).size < MIN_SUBJECTS_PER_SIDE
    ):
        return None
    synthetic, reference = inputs.encoded("synthetic"), inputs.encoded("reference")
    pool = EncodedTable.stack([inputs.encoded("train"), inputs.encoded("holdout")])
    pool = pool if attacked is None else pool.take(attacked)
    width = choose_bandwidth(reference, inputs.subject_codes("reference"), inputs.device)
    known = [
        log_sums(nearest_rows(rows, reference, NEIGHBOURS, device=inputs.device).distances, width)
        for rows in _blocks(synthetic)
    ]
    parts = []
    for rows in _blocks(pool):
        near = nearest_rows(rows, synthetic, NEIGHBOURS, device=inputs.device)
        away = nearest_rows(rows, reference, NEIGHBOURS, device=inputs.device).distances
        parts.append(
            (
                near.distances[:, 0],
                away[:, 0],
                plagiarism_index(near.distances, away, len(synthetic), len(reference)),
                log_sums(near.distances, width)
                - log_sums(away, width)
                + np.log(len(reference) / len(synthetic)),
                influence(
                    near.distances, near.indices, np.concatenate(known), width, len(reference)
                ),
            )
        )
    distance, apart, dpi, domias, gen_lra = (
        np.concatenate(part) for part in zip(*parts, strict=True)
    )
    scores = {"auc_dpi": dpi, "auc_domias": domias, "auc_gen_lra": gen_lra}
    return NoBoxScores({"synthetic": distance, "reference": apart}, scores)


def _blocks(table: EncodedTable) -> Iterator[EncodedTable]:
    return (table.take(np.s_[start : start + _BLOCK]) for start in range(0, len(table), _BLOCK))


def plagiarism_index(
    near: np.ndarray, away: np.ndarray, n_synthetic: int, n_reference: int
) -> np.ndarray:
    """Return DPI, float64 (n,), from the distances (n, 20) to the nearest rows of S and of R (inf:
    none).
    """
    k = min(NEIGHBOURS, n_synthetic + n_reference)
    last = np.partition(np.concatenate([near, away], axis=1), k - 1, axis=1)[:, k - 1 : k]
    below = [(found < last).sum(axis=1) for found in (near, away)]
    tied = [(found == last).sum(axis=1) for found in (near, away)]
    copied = below[0] + (k - below[0] - below[1]) * tied[0] / (tied[0] + tied[1])
    return np.asarray((copied + 0.5) / n_synthetic / ((k - copied + 0.5) / n_reference))


def log_sums(distances: np.ndarray, width: float) -> np.ndarray:
    """Return the log of the kernel sum over the rows at ``distances`` (n, k), float64 (n,). -inf if
    there are none.
    """
    from scipy.special import logsumexp  # slow to import

    return np.asarray(logsumexp(-(distances**2) / (2 * width**2), axis=1))


def influence(
    distances: np.ndarray, indices: np.ndarray, known: np.ndarray, width: float, n_reference: int
) -> np.ndarray:
    """Return Gen-LRA's log-likelihood ratio of each row x over the 5 synthetic rows nearest to it,
    float64 (n,).

    Args:
        distances: Distances of the nearest synthetic rows, shape (n, k).
        indices: Their positions, shape (n, k). -1: none.
        known: Log of the kernel sum over R for each synthetic row, shape (n_S,).
        width: Bandwidth.
        n_reference: Number of rows of R.

    Returns:
        Log-likelihood ratios.
    """
    distances, indices = distances[:, :INFLUENCED], indices[:, :INFLUENCED]
    gained = np.logaddexp(0, -(distances**2) / (2 * width**2) - known[indices]).sum(axis=1)
    return np.asarray(gained - (indices >= 0).sum(axis=1) * np.log1p(1 / n_reference))


def choose_bandwidth(reference: EncodedTable, codes: np.ndarray, device: str = "cpu") -> float:
    """Return the bandwidth with the largest likelihood of the rows of R given rows of other
    subjects.

    ``codes`` (n,) are the subjects of the rows, at least two. Kernels of categories are normalized
    by the values that occur; constant columns are ignored. Ties: the smallest bandwidth.
    """
    from privacy_assets.distances.nearest import nearest_rows

    found = nearest_rows(reference, reference, NEIGHBOURS, exclude_self=True, device=device)
    own = codes[found.indices] == codes[:, None]
    away = np.where(own & ~own.all(axis=1, keepdims=True), np.inf, found.distances)
    nearest = away.min(axis=1)
    away = away[nearest <= np.quantile(nearest, _TYPICAL, method="inverted_cdf")]
    numbers = int((np.ptp(reference.numeric, axis=0) > 0).sum())
    others = np.array([np.unique(column).size - 1 for column in reference.codes.T])

    def likelihood(width: float) -> float:
        norm = numbers * np.log(width) + np.log1p(others * np.exp(-1 / (2 * width**2))).sum()
        return float(log_sums(away, width).mean() - norm)

    return max(BANDWIDTHS, key=likelihood)


def auc_estimates(
    population: Population, found: NoBoxScores | None, n_permutations: int, rng: np.random.Generator
) -> list[Estimate]:
    """Return the four AUCs over all rows of T u H, ties counting half, with 95 % intervals. NaN if
    there is no reference.

    Intervals permute labels by subject or, where wider, use the standard deviation over subjects
    (DeLong et al. 1988; Obuchowski 1997 for several rows per subject), which is larger if there is
    a leak. ``minimum_detectable_effect`` is the distance from 0.5 within which the farther end of a
    leak-free release stays in 99.5 % of cases.
    """
    if found is None:
        reason = f"no reference of at least {MIN_SUBJECTS_PER_SIDE} people"
        return [spec.not_measurable(reason, population.counts) for spec in SPECS]
    scores = {"auc_reference_ratio": -population.scores["distance / reference"], **found.scores}
    return areas({spec: scores[spec.name] for spec in SPECS}, population, n_permutations, rng)


def areas(
    scores: Mapping[StatisticSpec, np.ndarray],
    population: Population,
    n_permutations: int,
    rng: np.random.Generator,
) -> list[Estimate]:
    """Return the AUC of each score, with intervals as in :func:`auc_estimates`.

    Args:
        scores: Scores of the attacked rows by statistic, shape (n,); larger ones are more
            member-like.
        population: Attacked rows.
        n_permutations: Number of permutations of the membership labels.
        rng: Generator of the permutations.

    Returns:
        One estimate for each score.
    """
    from scipy.stats import rankdata

    codes, member = population.codes, population.member
    ranks = [rankdata(score) for score in scores.values()]
    sums = np.column_stack(
        [np.bincount(codes, each, len(member)) for each in (*ranks, np.ones(len(codes)))]
    )

    def statistic(labels: np.ndarray) -> np.ndarray:
        total = labels @ sums
        rows = total[:, -1:]
        return np.asarray((total[:, :-1] - rows * (rows + 1) / 2) / (rows * (len(codes) - rows)))

    evidence = inference.permutation_test(statistic, population, n_permutations, rng)
    estimates = []
    for at, spec in enumerate(scores):
        alone = evidence[[at]].estimate(spec, population.counts, within=(0, 1))
        half = _half_width(ranks[at], codes, member)
        low, high = (
            min(alone.low, max(alone.value - half, 0.0)),
            max(alone.high, min(alone.value + half, 1.0)),
        )
        estimates.append(replace(alone, low=low, high=high))
    return estimates


def _half_width(ranks: np.ndarray, codes: np.ndarray, member: np.ndarray) -> float:
    """Return half the 95 % interval of an AUC with resampled subjects. ``ranks`` (n,) are mid-ranks
    of all rows.
    """
    from scipy import stats

    variance = 0.0
    for side in (True, False):
        rows = member[codes] == side
        # rows of the other side with a lower rank, ties count half
        above = ranks[rows] - stats.rankdata(ranks[rows])
        apart = (above - above.mean()) / (len(ranks) - len(above))
        people = int((member == side).sum())
        parts = np.bincount(codes[rows], apart / len(above))
        variance += float((parts**2).sum()) * people / (people - 1)
    return float(stats.norm.ppf(0.5 + CONFIDENCE / 2) * np.sqrt(variance))


GUESSED = 0.05  # share of pairs with a prediction
FEWEST_GUESSES = 20  # or all pairs, if there are fewer
SCORE = "distance / neighbour"

SPEC = StatisticSpec(
    "epsilon_one_run",
    "Lower bound of the generator's epsilon for replacing one person, if it is differentially"
    " private.",
    range=(0.0, 20.0),  # more would require e^20 subjects
)


def epsilon_one_run(population: Population, rng: np.random.Generator) -> Estimate:
    """Return a 95 % lower bound of the generator's epsilon, from predicting which of two subjects
    was in T.

    Args:
        population: Attacked rows with scores.
        rng: Random generator that draws the pairs.

    Returns:
        The bound as ``value``, ``low`` and ``high``, with the number of predictions as ``n``. The
        note states the largest bound that this number of predictions can show.

    Notes:
        Every subject of the smaller side is paired with a random one of the other side. Given T u H
        and the sizes, each split is equally likely. Given the pairs and the remaining subjects,
        which subject of a pair is the member is therefore an independent fair coin, for any sizes:
        swapping a pair does not change the likelihood of the split. A swap replaces one subject of
        T. If the generator is epsilon-differentially private for replacement, the release changes
        the odds of a coin, given all earlier coins, by at most e^epsilon (Bayes; later coins
        average out). Predictions that use S and the pairs but no coins are then right with
        probability at most q = e^epsilon / (1 + e^epsilon), given earlier predictions, so the
        number of right ones out of r is stochastically at most binomial(r, q) (Steinke et al. at
        delta = 0, with pairs instead of records).

        The bound is ln(q / (1 - q)) at the one-sided Clopper-Pearson lower bound of q, or 0 if
        negative. A subject's score is its smallest d(x, S) / d(x, nearest other subject). The
        subject with the smaller score is predicted to be the member, in the 5 % of pairs (at least
        20) with the smallest minimum. Ties: pairs with the larger other score come first, and pairs
        with equal scores are skipped. These choices were fixed in advance.

        The bound disproves smaller epsilons and makes no other statement about generators without
        differential privacy. An epsilon for adding or removing a subject is at least half as large.
    """
    best = np.full(len(population.member), np.inf)
    np.minimum.at(best, population.codes, population.scores[SCORE])
    sides = [rng.permutation(np.flatnonzero(population.member == side)) for side in (True, False)]
    pairs = min(len(side) for side in sides)
    member, other = (best[side[:pairs]] for side in sides)
    low, high = np.minimum(member, other), np.maximum(member, other)
    order = np.lexsort((-high, low))
    guessed = order[(low < high)[order]][: max(FEWEST_GUESSES, math.ceil(GUESSED * pairs))]
    r, right = len(guessed), int((member < other)[guessed].sum())
    bound = lower_bound(right, r)
    note = (
        f"{right} of {r} guesses are right; this number of guesses can show"
        f" {lower_bound(r, r):.3g} at most"
    )
    reached = lower_bound(_by_chance(r), r)
    return SPEC.estimate(
        bound,
        bound,
        bound,
        (r, 2 * pairs),
        confidence=CONFIDENCE,
        minimum_detectable_effect=reached,
        note=note,
    )


def lower_bound(right: int, guesses: int, confidence: float = CONFIDENCE) -> float:
    """Return the smallest epsilon >= 0 for which ``right`` or more successes have probability 1 -
    confidence.
    """
    rate = float(exact_low(right, guesses, 1 - confidence))
    return max(0.0, math.log(rate / (1 - rate))) if rate else 0.0


def _by_chance(guesses: int) -> int:
    """Return the 99.5 % quantile of right predictions by coin toss."""
    from scipy import stats  # slow to import

    return int(stats.binom.ppf(MDE_QUANTILE, guesses, 0.5)) if guesses else 0
