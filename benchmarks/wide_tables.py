"""Wide tables of known structure: groups of correlated columns of every kind, with missing
values.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

# columns that share a latent factor, such as the items of a questionnaire or the values of a
# laboratory
GROUP = 10
ROWS = {"train": 1_500, "holdout": 750, "synthetic": 1_250}
_DAY = np.datetime64("2015-01-01")


def wide_tables(columns: int) -> dict[str, pd.DataFrame]:
    """Return train, holdout and synthetic rows of one population, independent of each other.

    Each group of columns has a latent factor per row, and all groups share a weak one. A column is
    a noisy function of both: a normal, skewed, or rounded number, a count, an amount that is often
    0, a category of 2 to 12 values, a boolean or a date. A third of the columns have missing
    values, most of which are missing in the whole group. The noise of the synthetic rows is larger
    by a quarter, as in a generator that loses a part of the correlation.

    Args:
        columns: Number of columns. Wider tables start with the columns of narrower ones.
    """
    total, ends = sum(ROWS.values()), np.cumsum(list(ROWS.values()))[:-1]
    noise = np.repeat([1.25 if name == "synthetic" else 1.0 for name in ROWS], list(ROWS.values()))
    shared = np.random.default_rng(0).normal(size=total)
    found = {}
    for group in range(-(-columns // GROUP)):
        rng = np.random.default_rng([1, group])
        factor = 0.3 * shared + rng.normal(size=total)
        absent = rng.random(total) < rng.uniform(0.02, 0.25)
        for place in range(GROUP):
            kind = rng.choice(list(_KINDS))
            value = factor * rng.uniform(0.3, 1.5) * rng.choice([-1, 1]) + noise * rng.normal(
                size=total
            )
            column = pd.Series(_KINDS[kind](value, rng))
            if rng.random() < 1 / 3:
                column = column.mask(absent | (rng.random(total) < 0.02))
            found[f"g{group:03}_{kind}_{place}"] = column
    frame = pd.DataFrame({name: found[name] for name in list(found)[:columns]})
    parts = np.split(np.arange(total), ends)
    return {
        name: frame.iloc[part].reset_index(drop=True)
        for name, part in zip(ROWS, parts, strict=True)
    }


def _normal(value: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.round(rng.uniform(1, 100) + rng.uniform(0.5, 20) * value, int(rng.integers(0, 4)))


def _skewed(value: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.round(np.exp(rng.uniform(1, 4) + rng.uniform(0.3, 0.8) * value), 2)


def _count(value: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return rng.poisson(np.exp(np.minimum(rng.uniform(-0.5, 2) + 0.5 * value, 6)))


def _amount(value: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.where(value < rng.uniform(-0.5, 1.5), 0, np.round(100 * np.exp(0.5 * value)))


def _category(value: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    shares = 0.03 + rng.dirichlet(np.ones(int(rng.integers(2, 13))))
    cuts = np.quantile(value, np.cumsum(shares)[:-1] / shares.sum())
    return np.array([f"level {number}" for number in range(len(cuts) + 1)], dtype=object)[
        np.searchsorted(cuts, value)
    ]


def _boolean(value: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return value > rng.uniform(-1, 1.5)


def _date(value: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    days = np.round(1_500 + rng.uniform(100, 500) * value).astype("timedelta64[D]")
    return (_DAY + days).astype("datetime64[ns]")


_KINDS = {
    "normal": _normal,
    "skewed": _skewed,
    "count": _count,
    "amount": _amount,
    "category": _category,
    "boolean": _boolean,
    "date": _date,
}
