"""No-box attacks of the literature: a real row's score from the synthetic table S and a reference R of unseen people.

- DPI, the data plagiarism index (Ward et al. 2024): of the 20 rows of S and R nearest to x, c_S stand in S and c_R in
  R; the score is ((c_S + 1/2) / n_S) / ((c_R + 1/2) / n_R). Rows tied for the last place count by their share.
- DOMIAS (van Breugel et al. 2023): p_S(x) / p_R(x), the two densities estimated by kernels.
- Gen-LRA (Ward et al. 2025): how much likelier the 5 synthetic rows nearest to x become when x joins the reference,
  the product of p_{R+x}(s) / p_R(s) over these rows s.

The kernel is K_h(x, y) = exp(-d(x, y)^2 / (2 h^2)) with the distance of :mod:`privacy_assets.tables.encoding`: a
Gaussian in each standardised number, and in each category Aitchison and Aitken's (1976) kernel, where another value
weighs exp(-1 / (2 h^2)). One h serves both densities, so that what norms the kernel cancels. It maximises the
leave-one-out likelihood of R on a grid; the other rows of a person are left out with a row, and the twentieth of the
rows that stand farthest from all others does not count. Sums run over the 20 nearest rows: at the h so chosen on Adult
and UK census 30 more raise the mean log-likelihood by 0.04 at most. A row that joins n others turns the sum F of a
density into F + K and n into n + 1, so that Gen-LRA's ratios are (1 + K / F) n / (n + 1) and nothing is fitted anew; h
and the scales stay as they are. All in logarithms.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from privacy_assets.metrics.inputs import MetricInputs
from privacy_assets.metrics.membership_inference.scores import Population
from privacy_assets.stats import inference
from privacy_assets.stats.estimates import Estimate, StatisticSpec
from privacy_assets.stats.intervals import CONFIDENCE
from privacy_assets.stats.subjects import SMALLEST_SIDE
from privacy_assets.tables.encoding import EncodedTable

NEIGHBOURS = 20  # Ward et al.'s number for DPI
INFLUENCED = 5  # 1, 5 and 20 tell members about equally well (Adult, UK census)
BANDWIDTHS = tuple(float(h) for h in 0.05 * 2 ** (np.arange(13) / 2))  # of standard deviations: 0.05 to 3.2
_TYPICAL = 0.95  # share of the reference rows whose likelihood counts: one outlier must not widen the kernel
_BLOCK = 1 << 18  # rows searched at once

_AREA = "Area under the ROC curve of members against others"
SPECS = tuple(
    StatisticSpec(name, f"{_AREA}, {how}; below 0.5: members are avoided.", "two_sided", 0.5)
    for name, how in (
        ("auc_reference_ratio", "by distance to the table over distance to the reference"),
        ("auc_dpi", "by the share of the table among the 20 nearest rows of table and reference (DPI)"),
        ("auc_domias", "by density in the table over density in the reference (DOMIAS)"),
        ("auc_gen_lra", "by how much likelier their row makes the synthetic rows around it (Gen-LRA)"),
    )
)


@dataclass(frozen=True, eq=False)
class NoBoxScores:
    """Of every row under attack, float64 (n,): distances to S and R, and scores, larger ones more member-like."""

    distances: Mapping[str, np.ndarray]  # by role: "synthetic", "reference"
    scores: Mapping[str, np.ndarray]  # by statistic


def score_rows(inputs: MetricInputs, attacked: np.ndarray | None = None) -> NoBoxScores | None:
    """Search S and R around every row of T stacked on H, or those at ``max_targets``; None without 20 subjects in R.

    Memory is linear: 20 neighbours of at most 262,144 rows are held at once.
    """
    from privacy_assets.neighbours.nearest import nearest_rows

    if inputs.reference is None or np.unique(inputs.subject_codes("reference")).size < SMALLEST_SIDE:
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
                log_sums(near.distances, width) - log_sums(away, width) + np.log(len(reference) / len(synthetic)),
                influence(near.distances, near.indices, np.concatenate(known), width, len(reference)),
            )
        )
    distance, apart, dpi, domias, gen_lra = (np.concatenate(part) for part in zip(*parts, strict=True))
    scores = {"auc_dpi": dpi, "auc_domias": domias, "auc_gen_lra": gen_lra}
    return NoBoxScores({"synthetic": distance, "reference": apart}, scores)


def _blocks(table: EncodedTable) -> Iterator[EncodedTable]:
    return (table.take(np.s_[start : start + _BLOCK]) for start in range(0, len(table), _BLOCK))


def plagiarism_index(near: np.ndarray, away: np.ndarray, n_synthetic: int, n_reference: int) -> np.ndarray:
    """DPI float64 (n,) from the distances (n, 20) to the nearest rows of S and of R, inf where there are fewer."""
    k = min(NEIGHBOURS, n_synthetic + n_reference)
    last = np.partition(np.concatenate([near, away], axis=1), k - 1, axis=1)[:, k - 1 : k]
    below = [(found < last).sum(axis=1) for found in (near, away)]
    tied = [(found == last).sum(axis=1) for found in (near, away)]
    copied = below[0] + (k - below[0] - below[1]) * tied[0] / (tied[0] + tied[1])
    return np.asarray((copied + 0.5) / n_synthetic / ((k - copied + 0.5) / n_reference))


def log_sums(distances: np.ndarray, width: float) -> np.ndarray:
    """Logarithm of the sum of the kernel over the rows at ``distances`` (n, k): float64 (n,), -inf without any."""
    from scipy.special import logsumexp  # slow to import: only where a table is measured

    return np.asarray(logsumexp(-(distances**2) / (2 * width**2), axis=1))


def influence(
    distances: np.ndarray, indices: np.ndarray, known: np.ndarray, width: float, n_reference: int
) -> np.ndarray:
    """Gen-LRA's log-likelihood ratio float64 (n,) of each row x over the 5 synthetic rows nearest to it.

    ``distances`` and ``indices`` (n, k) are those of the nearest synthetic rows, ``known`` (n_S,) the logarithms of the
    sums of the kernel over R around these.
    """
    distances, indices = distances[:, :INFLUENCED], indices[:, :INFLUENCED]
    gained = np.logaddexp(0, -(distances**2) / (2 * width**2) - known[indices]).sum(axis=1)
    return np.asarray(gained - (indices >= 0).sum(axis=1) * np.log1p(1 / n_reference))


def choose_bandwidth(reference: EncodedTable, codes: np.ndarray, device: str = "cpu") -> float:
    """The bandwidth of ``BANDWIDTHS`` under which the rows of R are likeliest by those of other people.

    ``codes`` (n,) are the subjects of the rows, at least two. Categories norm the kernel by those that occur; columns
    of one value count for nothing. Ties: the smallest.
    """
    from privacy_assets.neighbours.nearest import nearest_rows

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
    population: Population, found: NoBoxScores | None, permutations: int, rng: np.random.Generator
) -> list[Estimate]:
    """The four AUCs over all rows of T u H, a tie counting half, with 95 % intervals; NaN without a reference.

    The interval comes from permuting labels by subject or, where it is wider, from the deviation over subjects (DeLong
    et al. 1988; Obuchowski 1997 for several rows a subject), which a leak changes. ``minimum_detectable_effect`` is
    what the farther end of a leak-free release keeps within of 0.5 in 99.5 % of cases.
    """
    if found is None:
        reason = f"no reference of at least {SMALLEST_SIDE} subjects"
        return [spec.not_measurable(reason, population.counts) for spec in SPECS]
    from scipy.stats import rankdata

    scores = {"auc_reference_ratio": -population.scores["distance / reference"], **found.scores}
    codes, member = population.codes, population.member
    ranks = [rankdata(scores[spec.name]) for spec in SPECS]
    sums = np.column_stack([np.bincount(codes, each, len(member)) for each in (*ranks, np.ones(len(codes)))])

    def statistic(labels: np.ndarray) -> np.ndarray:
        total = labels @ sums
        rows = total[:, -1:]
        return np.asarray((total[:, :-1] - rows * (rows + 1) / 2) / (rows * (len(codes) - rows)))

    evidence = inference.test(statistic, population, permutations, rng)
    estimates = []
    for at, spec in enumerate(SPECS):
        alone = evidence[[at]].estimate(spec, population.counts, within=(0, 1))
        half = _half_width(ranks[at], codes, member)
        low, high = min(alone.low, max(alone.value - half, 0.0)), max(alone.high, min(alone.value + half, 1.0))
        estimates.append(replace(alone, low=low, high=high))
    return estimates


def _half_width(ranks: np.ndarray, codes: np.ndarray, member: np.ndarray) -> float:
    """Half the 95 % interval of an AUC whose subjects are resampled; ``ranks`` (n,) are mid-ranks of all rows."""
    from scipy import stats

    variance = 0.0
    for side in (True, False):
        rows = member[codes] == side
        above = ranks[rows] - stats.rankdata(ranks[rows])  # rows of the other side that rank lower, a tie as a half
        apart = (above - above.mean()) / (len(ranks) - len(above))
        people = int((member == side).sum())
        parts = np.bincount(codes[rows], apart / len(above))
        variance += float((parts**2).sum()) * people / (people - 1)
    return float(stats.norm.ppf(0.5 + CONFIDENCE / 2) * np.sqrt(variance))
