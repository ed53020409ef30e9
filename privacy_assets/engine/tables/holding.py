"""Canonical tables as they are held while they are measured: columns in blocks, texts as codes of one vocabulary."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from privacy_assets.engine.tables.blocks import block, kept


def held(series: pd.Series) -> pd.Series:
    """The values of a canonical column with their memory in blocks; texts as a Categorical whose categories are sorted.

    A text then takes 1 to 4 bytes a row, and each different one is held once.
    """
    if series.dtype == object:
        codes, texts = pd.factorize(series)
        order = sorted(range(len(texts)), key=texts.__getitem__)
        place = np.empty(len(texts) + 1, dtype=np.int64)
        place[order], place[-1] = np.arange(len(texts)), -1  # -1, missing, takes the last
        return _coded(place, codes, [texts[at] for at in order], series.name)
    values = series.array
    for kind, cell in ((pd.arrays.IntegerArray, np.int64), (pd.arrays.BooleanArray, np.bool_)):
        if isinstance(values, kind):
            known = kind(kept(values.to_numpy(cell, na_value=0)), kept(values.isna()), copy=False)
            return pd.Series(known, name=series.name, copy=False)
    return pd.Series(kept(series.to_numpy()), name=series.name, copy=False)


def of_one_vocabulary(tables: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Held tables of the same columns, in which equal texts of a column have equal codes."""
    columns: dict[str, dict[str, pd.Series]] = {role: {} for role in tables}
    for name in next(iter(tables.values())).columns:
        parts = {role: table[name] for role, table in tables.items()}
        if all(isinstance(part.dtype, pd.CategoricalDtype) for part in parts.values()):
            every = sorted({text for part in parts.values() for text in part.cat.categories})
            place = {text: at for at, text in enumerate(every)}
            for role, part in parts.items():
                own = np.array([*(place[text] for text in part.cat.categories), -1], dtype=np.int64)
                parts[role] = _coded(own, part.cat.codes.to_numpy(), every, name)
        for role, part in parts.items():
            columns[role][name] = part
    return {role: pd.DataFrame(own, copy=False) for role, own in columns.items()}


def _coded(place: np.ndarray, codes: np.ndarray, texts: list[str], name: object) -> pd.Series:
    """A Categorical of ``texts`` from codes (n,) into ``place``."""
    dtype = pd.CategoricalDtype(pd.Index(texts, dtype=object))
    smallest = next(kind for kind in (np.int8, np.int16, np.int32) if len(texts) <= np.iinfo(kind).max)
    out = block(len(codes), smallest)
    np.take(place.astype(smallest), codes, out=out, mode="wrap")  # -1 is the last
    return pd.Series(pd.Categorical.from_codes(out, dtype=dtype, validate=False), name=name, copy=False)
