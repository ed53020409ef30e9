"""How much noise a privacy budget asks for: opacus' accountant of sampled Gaussian steps (Gopi et al. 2021)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import lru_cache

from privacy_assets.errors import ConfigError

Steps = Sequence[tuple[float, float, int]]  # noise multiplier, sampling rate, number

_FINEST, _COARSEST = 5e-4, 0.01
_LEAST_NOISE, _MOST_NOISE = 0.3, 1e6
_ORDERS = [1 + x / 10 for x in range(1, 100)] + list(range(12, 10_000, 50))


def epsilon_of(steps: Steps, delta: float, precision: float = _COARSEST) -> float:
    """Upper bound of epsilon of Poisson-sampled Gaussian ``steps``, at most ``precision`` above the estimate."""
    from opacus.accountants import PRVAccountant

    accountant = PRVAccountant()
    accountant.history = [tuple(step) for step in steps if step[2] > 0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # log(0) at points without probability; orders of a first, rough bound
        return float(accountant.get_epsilon(delta, eps_error=precision))


def _rough(steps: Steps, delta: float) -> float:
    """A quicker upper bound (Mironov 2017), to begin the search with."""
    from opacus.accountants.analysis import rdp

    spent = sum(rdp.compute_rdp(q=rate, noise_multiplier=noise, steps=number, orders=_ORDERS)
                for noise, rate, number in steps)  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the best order may be the last one
        return float(rdp.get_privacy_spent(orders=_ORDERS, rdp=spent, delta=delta)[0])


@lru_cache(maxsize=64)
def noise_for(
    epsilon: float, delta: float, rate: float, number: int, before: tuple[tuple[float, float, int], ...] = ()
) -> float:
    """The least noise multiplier (within 1 %) with which ``number`` steps keep within ``epsilon``, after ``before``.

    ConfigError when no noise is enough.
    """
    # A fine grid costs gigabytes over thousands of steps, and nothing over one.
    precision = min(max(epsilon / 100, _FINEST if number > 1 else 0.0), _COARSEST)

    def spent(noise: float) -> float:
        return epsilon_of([*before, (noise, rate, number)], delta, precision)

    high = 0.6
    while _rough([*before, (high, rate, number)], delta) > epsilon or spent(high) > epsilon:
        high *= 2
        if high > _MOST_NOISE:
            raise ConfigError("the privacy budget is too small. Fix: raise epsilon or delta, or train fewer epochs.")
    low = high / 2
    while low > _LEAST_NOISE and spent(low) <= epsilon:  # the rough bound may have gone too far
        low, high = low / 2, low
    while high / low > 1.01:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if spent(middle) <= epsilon else (middle, high)
    return high
