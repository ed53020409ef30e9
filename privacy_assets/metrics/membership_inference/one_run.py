"""How private can the generator have been, given one release? (Steinke, Nasr and Jagielski 2023.)"""

from __future__ import annotations

import math

import numpy as np

from privacy_assets.metrics.membership_inference.scores import Population
from privacy_assets.stats.estimates import Estimate, StatisticSpec
from privacy_assets.stats.intervals import CONFIDENCE, MDE_QUANTILE, exact_low

GUESSED = 0.05  # share of the pairs about which a guess is made
FEWEST_GUESSES = 20  # or all pairs where there are fewer
SCORE = "distance / neighbour"

SPEC = StatisticSpec(
    "epsilon_one_run",
    "Were the generator differentially private, its epsilon for replacing one person would be at least this.",
    range=(0.0, 20.0),  # of e^20 people
)


def epsilon_one_run(population: Population, rng: np.random.Generator) -> Estimate:
    """Lower 95 % bound of the epsilon of whatever made S from T, from guesses who of two people was in T.

    Every subject of the smaller side is paired with one of the other, at random. Given who stands in T u H and how many
    of them in T, each set of that size is as likely to be T; so, given the pairs and who is left over, it is a fair
    coin which of a pair is the member, and the coins are independent, at any shares and fixed sizes: swapping a pair
    leaves the likelihood of the split as it is. A swap replaces one person of T. If the generator is
    epsilon-differentially private under that, the release moves the odds of a coin, all earlier coins known, by
    e^epsilon at most (Bayes; the later ones average out). Guesses that see S and the pairs, but no coin, are then right
    with probability q = e^epsilon / (1 + e^epsilon) at most, whatever the guesses before: the number of right ones out
    of r is stochastically at most binomial(r, q) (Steinke et al. at delta = 0, with pairs in the place of records).

    The bound is ln(q / (1 - q)) at the Clopper-Pearson lower bound of q, one-sided, and 0 where that is negative.
    Guessed is the one with the smaller score, a person's smallest d(x, S) / d(x, nearest other person), in the
    twentieth of the pairs (20 at least) whose smaller score is smallest; at ties the pair with the larger other score
    comes first, and of two equal ones nobody is guessed. All of this was fixed beforehand. Of a generator that is not
    differentially private it says no more than that: epsilons below it are disproved. An epsilon for adding or removing
    a person is at least half as large. ``value``, ``low`` and ``high`` are the bound, ``n`` the guesses; the note says
    what as many right ones would show.
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
    note = f"{right} of {r} guesses are right; these counts could show {lower_bound(r, r):.3g} at most"
    reached = lower_bound(_by_chance(r), r)
    return SPEC.estimate(
        bound, bound, bound, (r, 2 * pairs), confidence=CONFIDENCE, minimum_detectable_effect=reached, note=note
    )


def lower_bound(right: int, guesses: int, confidence: float = CONFIDENCE) -> float:
    """Smallest epsilon >= 0 under which ``right`` or more of so many guesses have a probability of 1 - confidence."""
    rate = float(exact_low(right, guesses, 1 - confidence))
    return max(0.0, math.log(rate / (1 - rate))) if rate else 0.0


def _by_chance(guesses: int) -> int:
    """Right guesses that tossing coins does not exceed in 99.5 % of cases."""
    from scipy import stats  # slow to import: only where a table is measured

    return int(stats.binom.ppf(MDE_QUANTILE, guesses, 0.5)) if guesses else 0
