"""How much noise a privacy budget asks for: opacus' accountant of sampled Gaussian steps (Gopi et al. 2021)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import lru_cache

from privacy_assets.errors import ConfigError

Steps = Sequence[tuple[float, float, int]]  # noise multiplier, sampling rate, number

_FINEST, _COARSEST = 5e-4, 0.01
_MOST_NOISE = 1e6


def epsilon_of(steps: Steps, delta: float, precision: float = _COARSEST) -> float:
    """Upper bound of epsilon of Poisson-sampled Gaussian ``steps``, at most ``precision`` above the estimate."""
    from opacus.accountants import PRVAccountant

    accountant = PRVAccountant()
    accountant.history = [tuple(step) for step in steps if step[2] > 0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # log(0) at points without probability; orders of a first, rough bound
        return float(accountant.get_epsilon(delta, eps_error=precision))


@lru_cache(maxsize=64)
def noise_for(
    epsilon: float, delta: float, rate: float, number: int, before: tuple[tuple[float, float, int], ...] = ()
) -> float:
    """The least noise multiplier (within 1 %) with which ``number`` steps keep within ``epsilon``, after ``before``.

    ConfigError when no noise is enough.
    """
    precision = min(max(epsilon / 100, _FINEST), _COARSEST)

    def spent(noise: float) -> float:
        return epsilon_of([*before, (noise, rate, number)], delta, precision)

    low, high = 0.3, 0.6
    while spent(high) > epsilon:
        low, high = high, 2 * high
        if high > _MOST_NOISE:
            raise ConfigError("the privacy budget is too small. Fix: raise epsilon or delta, or train fewer epochs.")
    while high / low > 1.01:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if spent(middle) <= epsilon else (middle, high)
    return high
