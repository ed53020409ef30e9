"""Intervals: exact and Wilson for proportions, and permutation bands for label-conditional figures."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95
RESOLUTION_QUANTILE = 0.995
SETS = 64  # drawn at a time: the bits of a word
_COIN_BITS = 6  # coins fall with a probability of whole 64ths


@dataclass(frozen=True, eq=False)
class Band:
    """Simultaneous interval of m statistics whose null law was drawn by permutation; arrays have shape (m,).

    ``low``/``high`` cover all m statistics at once with the confidence asked for; ``sd`` is the null deviation,
    ``critical`` the width of the band in deviations, ``z`` the excess over the null mean in deviations (``critical``
    where the band just reaches it), ``p_value`` the two-sided simultaneous p-value, and ``resolution`` what the far end
    of the band of a null statistic stays within in 99.5 % of cases, as a distance from the null mean.
    """

    low: np.ndarray
    high: np.ndarray
    mean: np.ndarray
    sd: np.ndarray
    z: np.ndarray
    critical: float
    p_value: float
    resolution: np.ndarray


def permutation_band(
    observed: np.ndarray,
    null: np.ndarray,
    confidence: float = CONFIDENCE,
    resampled: np.ndarray | None = None,
    people: int | None = None,
) -> Band:
    """Band of ``observed`` (m,) from ``null`` (permutations, m): observed -+ critical x null deviation.

    Where there is a leak, some statistics vary more than chance alone makes them: with ``resampled`` (replicates, m),
    the same over subjects drawn anew, their band takes the place of the other where it is wider. A statistic that never
    varies has z = 0 and a band of width 0; or, a difference of shares among ``people`` on the smaller side, the exact
    one of none of so many.
    """
    mean, sd, largest = _standardised(null)
    critical = float(np.quantile(largest, confidence, method="higher"))
    p_value = float(
        (1 + (largest >= (np.abs(observed - mean) / np.where(sd > 0, sd, np.inf)).max()).sum()) / (len(null) + 1)
    )
    rare = np.quantile(np.abs(null - mean), RESOLUTION_QUANTILE, axis=0, method="higher")
    half = np.where(sd > 0, critical * sd, 0.0 if people is None else clopper_pearson(0, people)[1])
    resolution = rare + half
    if resampled is not None:
        _, spread, farthest = _standardised(resampled)
        half = np.maximum(half, float(np.quantile(farthest, confidence, method="higher")) * spread)
    z = critical * (observed - mean) / np.where(half > 0, half, np.inf)
    return Band(observed - half, observed + half, mean, sd, z, critical, p_value, resolution)


def _standardised(drawn: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean (m,), deviation (m,), and the largest number of deviations from the mean in each draw (draws,)."""
    mean, sd = drawn.mean(axis=0), drawn.std(axis=0)
    return mean, sd, (np.abs(drawn - mean) / np.where(sd > 0, sd, np.inf)).max(axis=1)


def permute_labels(
    member: np.ndarray,
    permutations: int,
    rng: np.random.Generator,
    statistic: Callable[[np.ndarray], np.ndarray],
    block: int = 64,
    seen: np.ndarray | None = None,
) -> np.ndarray:
    """Draw the null law of a statistic by permuting the labels of subjects.

    ``member`` bool (s,) says which subjects stand in train. ``statistic`` maps float32 labels (b, s), or those of the
    subjects ``seen`` alone, to (b, m). Returns float64 (permutations, m). Memory is bounded by ``block`` label vectors
    at a time, 64 at most.
    """
    parts = []
    for start in range(0, permutations, SETS):
        sets = random_sets(len(member), int(member.sum()), rng)
        sets = sets.view(np.uint8).reshape(-1, 8)[slice(None) if seen is None else seen]
        bits = np.unpackbits(sets, axis=1, count=min(SETS, permutations - start), bitorder="little").T
        for first in range(0, len(bits), block):
            labels = bits[first : first + block].astype(np.float32, order="C")
            parts.append(np.asarray(statistic(labels), dtype=np.float64))
    return np.concatenate(parts)


def random_sets(people: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """64 random sets of ``size`` of some people, every one as likely, little-endian uint64 (people,): a bit a set.

    Each person joins each set with almost the right probability, 64 coins a word; whom chance and rounding leave over
    or short are drawn. People are alike in both steps, so all sets of the size stay as likely.
    """
    from privacy_assets.engine import _interval_kernels as kernels

    share = (size << _COIN_BITS) // max(people, 1)
    sets = np.zeros(people, dtype=np.uint64)
    for place in range(_COIN_BITS):
        coins = rng.integers(0, 1 << 64, people, dtype=np.uint64)
        sets = sets | coins if share >> place & 1 else sets & coins
    kernels.resize(sets, size, rng)
    return sets.astype("<u8", copy=False)


def resample_subjects(
    member: np.ndarray,
    replicates: int,
    rng: np.random.Generator,
    statistic: Callable[[np.ndarray, np.ndarray], np.ndarray],
    block: int = 64,
) -> np.ndarray:
    """A statistic (replicates, m) when the subjects of each side are drawn anew with replacement.

    ``statistic`` maps labels (1, s) and how often each subject was drawn, int64 (b, s), to (b, m).
    """
    sides = [np.flatnonzero(member == side) for side in (False, True)]
    labels = member.astype(np.float32)[None]
    parts = []
    for start in range(0, replicates, block):
        times = np.zeros((min(block, replicates - start), len(member)), dtype=np.int64)
        for side in sides:
            drawn = rng.integers(0, len(side), (len(times), len(side)))
            for row, places in zip(times, drawn, strict=True):
                row[side] = np.bincount(places, minlength=len(side))
        parts.append(statistic(labels, times))
    return np.concatenate(parts)


def wilson(hits: float, n: float, confidence: float = CONFIDENCE) -> tuple[float, float, float]:
    """Centre, low and high of Wilson's score interval of ``hits`` out of ``n``; NaN for n = 0."""
    from scipy import stats  # slow to import: only where a table is measured

    if n == 0:
        return (np.nan, np.nan, np.nan)
    z = stats.norm.ppf(0.5 + confidence / 2)
    centre = (hits + z * z / 2) / (n + z * z)
    half = z / (n + z * z) * np.sqrt(hits * (n - hits) / n + z * z / 4)
    return float(centre), float(max(0.0, centre - half)), float(min(1.0, centre + half))


def clopper_pearson(hits: int, n: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Exact two-sided interval of a proportion; (0, 1) for n = 0."""
    from scipy import stats

    tail = (1 - confidence) / 2
    low = float(stats.beta.ppf(tail, hits, n - hits + 1)) if hits > 0 else 0.0
    high = float(stats.beta.ppf(1 - tail, hits + 1, n - hits)) if hits < n else 1.0
    return low, high


@dataclass(frozen=True)
class Trials:
    """Of ``trials`` so many ``missed``; ``shown``: the share that succeeds was shown to be above the one asked for."""

    shown: bool
    missed: int
    trials: int


def shown_above(share: float, trial: Callable[[], bool], better: float, level: float, most: int) -> Trials:
    """Show that independent trials succeed in more than ``share`` of cases, with as few of them as will do.

    Wald's sequential test: the likelihood of ``better`` over that of ``share`` is a martingale where ``share`` is the
    truth, so that it ever reaches 1 / ``level`` with a probability of at most ``level``, wherever one stops. Trials end
    when it does, or when not even successes in all that are left of ``most`` would make it: then nothing is shown.
    """
    goal, hit, miss = -math.log(level), math.log(better / share), math.log((1 - better) / (1 - share))
    evidence, missed, done = 0.0, 0, 0
    while evidence < goal and evidence + (most - done) * hit >= goal:
        success = trial()
        evidence, missed, done = evidence + (hit if success else miss), missed + (not success), done + 1
    return Trials(evidence >= goal, missed, done)
