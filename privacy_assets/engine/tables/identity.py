"""Exact identity of rows across tables, and codes of values in a common order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from privacy_assets.engine.tables.schema import TableSchema


def value_codes(series: Sequence[pd.Series]) -> tuple[list[np.ndarray], pd.Index]:
    """Code the values of one canonical column over several tables by rank.

    Returns int64 codes per table and the sorted unique values; equal values have equal codes, a smaller value a smaller
    code, and missing is -1.
    """
    if all(isinstance(s.dtype, pd.CategoricalDtype) for s in series):
        return _ranks_of_texts(series)
    plain = [s.astype(object) if isinstance(s.dtype, pd.CategoricalDtype) else s for s in series]
    codes, uniques = pd.factorize(pd.concat(plain, ignore_index=True), sort=True)
    ends = np.cumsum([len(s) for s in series])[:-1]
    return np.split(codes.astype(np.int64), ends), pd.Index(uniques)


def _ranks_of_texts(series: Sequence[pd.Series]) -> tuple[list[np.ndarray], pd.Index]:
    """:func:`value_codes` of Categoricals; of their categories those count that stand in a row."""
    seen = [part.cat.categories[np.unique(part.cat.codes[part.cat.codes >= 0])] for part in series]
    every = sorted(set().union(*seen))
    rank = {text: at for at, text in enumerate(every)}
    ranks = [np.array([*(rank.get(text, -1) for text in part.cat.categories), -1]) for part in series]
    coded = [own[part.cat.codes.to_numpy()] for own, part in zip(ranks, series, strict=True)]
    return coded, pd.Index(every, dtype=object)


def row_ids(frames: Sequence[pd.DataFrame], schema: TableSchema) -> list[np.ndarray]:
    """Int64 ids of rows, equal exactly when two rows agree in every column (missing equals missing).

    Ids count up from 0 and do not depend on the order of rows: they rank the rows lexicographically by column values.
    """
    ends = np.cumsum([len(frame) for frame in frames])[:-1]
    ids = np.zeros(sum(len(frame) for frame in frames), dtype=np.int64)
    for name in schema.names:
        parts, uniques = value_codes([frame[name] for frame in frames])
        codes = np.concatenate(parts) + 1
        ids = np.unique(ids * (len(uniques) + 1) + codes, return_inverse=True)[1].astype(np.int64)
    return np.split(ids, ends)
