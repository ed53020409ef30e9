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
from typing import NamedTuple

import numpy as np

from privacy_assets.metrics.base import not_measurable_estimates
from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.metrics.membership_inference.scores import Population
from privacy_assets.stats import inference
from privacy_assets.stats.estimates import Estimate, StatisticSpec
from privacy_assets.stats.intervals import CONFIDENCE, MDE_QUANTILE, exact_low
from privacy_assets.stats.subjects import MIN_SUBJECTS_PER_SIDE
from privacy_assets.tables.encoding import EncodedTable

NEIGHBORS = 20  # number of neighbors of DPI in Ward et al.
INFLUENCED = 5  # 1, 5 and 20 detect members about equally well (Adult, UK census)
# in standard deviations, 0.05 to 3.2
BANDWIDTHS = tuple(float(h) for h in 0.05 * 2 ** (np.arange(13) / 2))
# share of reference rows in the likelihood, so that outliers do not widen the kernel
_TYPICAL = 0.95
_BLOCK = 1 << 18  # rows per search

_AREA = "AUC of members versus non-members"


def _spec(name: str, how: str) -> StatisticSpec:
    meaning = f"{_AREA}, {how}; below 0.5: members are avoided."
    return StatisticSpec(name, meaning, "two_sided", 0.5)


SPECS = (
    _spec("auc_reference_ratio", "by distance to the table over distance to the reference"),
    _spec(
        "auc_dpi",
        "by the share of the table among the 20 nearest rows of table and reference (DPI)",
    ),
    _spec("auc_domias", "by density in the table over density in the reference (DOMIAS)"),
    _spec("auc_gen_lra", "by the likelihood gain of nearby synthetic rows (Gen-LRA)"),
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

    Args:
        inputs: Tables of one release, with at least one synthetic row.
        attacked: Positions of the scored rows in T stacked on H. None: all rows.

    Returns:
        The scores, or None if R has fewer than 20 subjects.
    """
    from privacy_assets.distances.nearest import nearest_rows

    if inputs.release.reference is None:
        return None
    if np.unique(inputs.subject_codes("reference")).size < MIN_SUBJECTS_PER_SIDE:
        return None
    synthetic = inputs.encoded("synthetic")
    reference = inputs.encoded("reference")
    pool = EncodedTable.stack([inputs.encoded("train"), inputs.encoded("holdout")])
    if attacked is not None:
        pool = pool.take(attacked)
    width = choose_bandwidth(reference, inputs.subject_codes("reference"), inputs.device)
    density_parts = []
    for rows in _blocks(synthetic):
        neighbors = nearest_rows(rows, reference, NEIGHBORS, device=inputs.device)
        density_parts.append(log_sums(neighbors.distances, width))
    log_densities = np.concatenate(density_parts)

    # sums over the nearest rows become means over all rows of a table
    log_size_ratio = np.log(len(reference) / len(synthetic))
    blocks = []
    for rows in _blocks(pool):
        nearest = nearest_rows(rows, synthetic, NEIGHBORS, device=inputs.device)
        near = nearest.distances
        away = nearest_rows(rows, reference, NEIGHBORS, device=inputs.device).distances
        block = _BlockScores(
            to_synthetic=near[:, 0],
            to_reference=away[:, 0],
            dpi=plagiarism_index(near, away, len(synthetic), len(reference)),
            domias=log_sums(near, width) - log_sums(away, width) + log_size_ratio,
            gen_lra=influence(near, nearest.indices, log_densities, width, len(reference)),
        )
        blocks.append(block)
    stacked = _BlockScores(*map(np.concatenate, zip(*blocks, strict=True)))
    distances = {"synthetic": stacked.to_synthetic, "reference": stacked.to_reference}
    scores = {
        "auc_dpi": stacked.dpi,
        "auc_domias": stacked.domias,
        "auc_gen_lra": stacked.gen_lra,
    }
    return NoBoxScores(distances, scores)


class _BlockScores(NamedTuple):
    """Distances and scores of some attacked rows, float64 (n,)."""

    to_synthetic: np.ndarray
    to_reference: np.ndarray
    dpi: np.ndarray
    domias: np.ndarray
    gen_lra: np.ndarray


def _blocks(table: EncodedTable) -> Iterator[EncodedTable]:
    return (table.take(np.s_[start : start + _BLOCK]) for start in range(0, len(table), _BLOCK))


def plagiarism_index(
    near: np.ndarray, away: np.ndarray, n_synthetic: int, n_reference: int
) -> np.ndarray:
    """Compute DPI.

    Args:
        near: Distances to the nearest rows of S, shape (n, 20). inf: none.
        away: Distances to the nearest rows of R, same shape.
        n_synthetic: Number of rows of S.
        n_reference: Number of rows of R.

    Returns:
        Index, float64 (n,).
    """
    k = min(NEIGHBORS, n_synthetic + n_reference)
    distances = np.concatenate([near, away], axis=1)
    last = np.partition(distances, k - 1, axis=1)[:, k - 1 : k]
    n_below_near = (near < last).sum(axis=1)
    n_below_away = (away < last).sum(axis=1)
    n_tied_near = (near == last).sum(axis=1)
    n_tied_away = (away == last).sum(axis=1)
    n_tied_used = k - n_below_near - n_below_away
    n_synthetic_near = n_below_near + n_tied_used * n_tied_near / (n_tied_near + n_tied_away)
    synthetic_share = (n_synthetic_near + 0.5) / n_synthetic
    reference_share = (k - n_synthetic_near + 0.5) / n_reference
    return np.asarray(synthetic_share / reference_share)


def log_sums(distances: np.ndarray, width: float) -> np.ndarray:
    """Compute the log of the sum of Gaussian kernels over neighbors.

    Args:
        distances: Distances to the neighbors, shape (n, k). inf: none.
        width: Bandwidth.

    Returns:
        Logs, float64 (n,). -inf if there are no neighbors.
    """
    from scipy.special import logsumexp  # slow to import

    return np.asarray(logsumexp(-(distances**2) / (2 * width**2), axis=1))


def influence(
    distances: np.ndarray,
    indices: np.ndarray,
    log_densities: np.ndarray,
    width: float,
    n_reference: int,
) -> np.ndarray:
    """Return Gen-LRA's log-likelihood ratio of each row x over the 5 synthetic rows nearest to it,
    float64 (n,).

    Args:
        distances: Distances of the nearest synthetic rows, shape (n, k).
        indices: Their positions, shape (n, k). -1: none.
        log_densities: Log of the kernel sum over R for each synthetic row, shape (n_S,).
        width: Bandwidth.
        n_reference: Number of rows of R.

    Returns:
        Log-likelihood ratios.
    """
    distances = distances[:, :INFLUENCED]
    indices = indices[:, :INFLUENCED]
    log_kernels = -(distances**2) / (2 * width**2)
    gains = np.logaddexp(0, log_kernels - log_densities[indices]).sum(axis=1)
    n_influenced = (indices >= 0).sum(axis=1)
    return np.asarray(gains - n_influenced * np.log1p(1 / n_reference))


def choose_bandwidth(reference: EncodedTable, codes: np.ndarray, device: str = "cpu") -> float:
    """Return the bandwidth with the largest likelihood of the rows of R given rows of other
    subjects.

    Kernels of categories are normalized by the values that occur; constant columns are ignored.
    Ties: the smallest bandwidth.

    Args:
        reference: Encoded rows of R.
        codes: Subjects of the rows, shape (n,), at least two.
        device: Torch device of the search.
    """
    from privacy_assets.distances.nearest import nearest_rows

    neighbors = nearest_rows(reference, reference, NEIGHBORS, exclude_self=True, device=device)
    is_own_row = codes[neighbors.indices] == codes[:, None]
    has_only_own_rows = is_own_row.all(axis=1, keepdims=True)
    away = np.where(is_own_row & ~has_only_own_rows, np.inf, neighbors.distances)
    nearest = away.min(axis=1)
    away = away[nearest <= np.quantile(nearest, _TYPICAL, method="inverted_cdf")]
    n_numbers = int((np.ptp(reference.numeric, axis=0) > 0).sum())
    # values besides a row's own, by categorical column
    n_alternatives = np.array([np.unique(column).size - 1 for column in reference.codes.T])

    def likelihood(width: float) -> float:
        mismatch = np.exp(-1 / (2 * width**2))
        norm = n_numbers * np.log(width) + np.log1p(n_alternatives * mismatch).sum()
        return float(log_sums(away, width).mean() - norm)

    return max(BANDWIDTHS, key=likelihood)


def auc_estimates(
    population: Population,
    no_box_scores: NoBoxScores | None,
    n_permutations: int,
    rng: np.random.Generator,
) -> list[Estimate]:
    """Return the four AUCs over all rows of T u H, ties counting half, with 95 % intervals. NaN if
    there is no reference.

    Intervals permute labels by subject or, where wider, use the standard deviation over subjects
    (DeLong et al. 1988; Obuchowski 1997 for several rows per subject), which is larger if there is
    a leak. ``minimum_detectable_effect`` is the distance from 0.5 within which the farther end of a
    non-leaking release stays in 99.5 % of cases.

    Args:
        population: Attacked rows.
        no_box_scores: Their scores. None: there is no reference.
        n_permutations: Number of permutations of the membership labels.
        rng: Generator of the permutations.
    """
    if no_box_scores is None:
        reason = f"no reference of at least {MIN_SUBJECTS_PER_SIDE} people"
        return not_measurable_estimates(SPECS, reason, population.counts)
    scores = {
        "auc_reference_ratio": -population.scores["distance / reference"],
        **no_box_scores.scores,
    }
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

    codes = population.codes
    member = population.member
    ranks = [rankdata(score) for score in scores.values()]
    weights = [*ranks, np.ones(len(codes))]
    subject_sums = np.column_stack([np.bincount(codes, weight, len(member)) for weight in weights])

    def statistic(labels: np.ndarray) -> np.ndarray:
        totals = labels @ subject_sums
        rank_sums = totals[:, :-1]
        n_rows = totals[:, -1:]
        n_pairs = n_rows * (len(codes) - n_rows)
        return np.asarray((rank_sums - n_rows * (n_rows + 1) / 2) / n_pairs)

    evidence = inference.permutation_test(statistic, population, n_permutations, rng)
    estimates = []
    for i, spec in enumerate(scores):
        estimate = evidence[[i]].estimate(spec, population.counts, within=(0, 1))
        half_width = _half_width(ranks[i], codes, member)
        low = min(estimate.low, max(estimate.value - half_width, 0.0))
        high = max(estimate.high, min(estimate.value + half_width, 1.0))
        estimates.append(replace(estimate, low=low, high=high))
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
        deviations = (above - above.mean()) / (len(ranks) - len(above))
        n_subjects = int((member == side).sum())
        subject_deviations = np.bincount(codes[rows], deviations / len(above))
        variance += float((subject_deviations**2).sum()) * n_subjects / (n_subjects - 1)
    return float(stats.norm.ppf(0.5 + CONFIDENCE / 2) * np.sqrt(variance))


GUESSED = 0.05  # share of pairs with a prediction
FEWEST_GUESSES = 20  # or all pairs, if there are fewer
SCORE = "distance / neighbor"

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
    subject_scores = np.full(len(population.member), np.inf)
    np.minimum.at(subject_scores, population.codes, population.scores[SCORE])
    members = rng.permutation(np.flatnonzero(population.member))
    nonmembers = rng.permutation(np.flatnonzero(~population.member))
    n_pairs = min(len(members), len(nonmembers))
    member_scores = subject_scores[members[:n_pairs]]
    nonmember_scores = subject_scores[nonmembers[:n_pairs]]

    low = np.minimum(member_scores, nonmember_scores)
    high = np.maximum(member_scores, nonmember_scores)
    order = np.lexsort((-high, low))
    untied = order[(low < high)[order]]
    guessed = untied[: max(FEWEST_GUESSES, math.ceil(GUESSED * n_pairs))]
    n_guesses = len(guessed)
    n_right = int((member_scores < nonmember_scores)[guessed].sum())
    bound = lower_bound(n_right, n_guesses)
    note = (
        f"{n_right} of {n_guesses} guesses are right; this number of guesses can show"
        f" {lower_bound(n_guesses, n_guesses):.3g} at most"
    )
    return SPEC.estimate(
        bound,
        bound,
        bound,
        (n_guesses, 2 * n_pairs),
        confidence=CONFIDENCE,
        minimum_detectable_effect=lower_bound(_by_chance(n_guesses), n_guesses),
        note=note,
    )


def lower_bound(right: int, guesses: int, confidence: float = CONFIDENCE) -> float:
    """Return the smallest epsilon >= 0 for which ``right`` or more successes have probability 1 -
    confidence.

    Args:
        right: Number of right guesses.
        guesses: Number of guesses.
        confidence: Confidence level, in (0, 1).
    """
    rate = float(exact_low(right, guesses, 1 - confidence))
    if rate == 0:
        return 0.0
    return max(0.0, math.log(rate / (1 - rate)))


def _by_chance(guesses: int) -> int:
    """Return the 99.5 % quantile of right predictions by coin toss."""
    from scipy import stats  # slow to import

    if guesses == 0:
        return 0
    return int(stats.binom.ppf(MDE_QUANTILE, guesses, 0.5))
