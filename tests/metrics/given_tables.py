"""Synthetic test tables, metric inputs of plain frames, and a twin that several metrics are
compared with.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.tables.inference import infer_schema
from tests.tables import metric_inputs


def given(
    train: pd.DataFrame,
    holdout: pd.DataFrame,
    synthetic: pd.DataFrame,
    reference: pd.DataFrame | None = None,
    **more,
) -> EvaluationInputs:
    frames = {"train": train, "holdout": holdout, "synthetic": synthetic}
    frames |= {} if reference is None else {"reference": reference}
    schema = infer_schema(pd.concat(frames.values(), ignore_index=True))
    return metric_inputs(schema, frames, **more)


def mixed(rows: int, seed: int, missing: float = 0.0) -> pd.DataFrame:
    """A column of every kind; a share of the cells is ``missing``."""
    g = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": g.integers(18, 90, rows),
            "income": g.lognormal(10, 1, rows),
            "region": g.choice(list("abcdef"), rows, p=[0.4, 0.2, 0.2, 0.1, 0.05, 0.05]),
            "smokes": g.random(rows) < 0.3,
            "seen": pd.Timestamp("2020-01-01")
            + pd.to_timedelta(g.integers(0, 900, rows), unit="D"),
        }
    )
    if missing:
        frame = frame.astype({"age": "Int64", "smokes": "boolean"}).mask(
            g.random(frame.shape) < missing
        )
    return frame


def cut(frame: pd.DataFrame, *sizes: int) -> list[pd.DataFrame]:
    """Disjoint parts of the given sizes."""
    ends = np.cumsum([0, *sizes])
    return [frame.iloc[start:end].reset_index(drop=True) for start, end in itertools.pairwise(ends)]


def leaky(train: pd.DataFrame, fresh: pd.DataFrame, copies: int) -> pd.DataFrame:
    """``fresh`` with its first rows replaced by rows of ``train``."""
    return pd.concat([train.iloc[:copies], fresh.iloc[copies:]], ignore_index=True)


def release(
    *sizes: int, seed: int = 0, copies: int = 0, missing: float = 0.0
) -> list[pd.DataFrame]:
    """Train, holdout, synthetic and optional reference rows of one distribution, with ``copies`` of
    train rows.
    """
    train, holdout, fresh, *reference = cut(mixed(sum(sizes), seed, missing), *sizes)
    return [train, holdout, leaky(train, fresh, copies), *reference]


def naive_rates(
    score: np.ndarray,
    codes: np.ndarray,
    half: np.ndarray,
    member: np.ndarray,
    share: float,
    rows: Sequence[int],
) -> np.ndarray:
    """True and false positive rates among ``rows``: the mean of both halves, each at the other's
    threshold.
    """
    totals = np.zeros(2)
    for fit in (False, True):
        others = sorted(score[i] for i in rows if half[codes[i]] == fit and not member[codes[i]])
        target = share * len(others)
        threshold = others[max(math.ceil(target - 1e-9), 1) - 1]
        below, tied = sum(y < threshold for y in others), sum(y == threshold for y in others)
        weight = (target - below) / tied
        for kind, side in enumerate((True, False)):
            judged = [i for i in rows if half[codes[i]] != fit and member[codes[i]] == side]
            named = sum(
                1.0 if score[i] < threshold else weight if score[i] == threshold else 0.0
                for i in judged
            )
            totals[kind] += named / len(judged) / 2
    return totals
