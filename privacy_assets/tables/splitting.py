"""Stable split by subject: the role of a row is a keyed hash of the subject's id."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

import numpy as np
import pandas as pd

from privacy_assets.errors import ConfigError, InputError, safe_repr
from privacy_assets.tables.fingerprints import value_bytes
from privacy_assets.tables.schema import check_subject

DEFAULT_SHARES: Mapping[str, float] = {"train": 0.5, "holdout": 0.3, "reference": 0.2}
SHARES_EXAMPLE = "{train: 0.5, holdout: 0.3, reference: 0.2}"


def check_shares(shares: Mapping[str, float]) -> None:
    """Raise ConfigError unless ``shares`` are positive, include train and holdout, and sum to 1."""
    wrong, total = "", sum(shares.values())
    if absent := [role for role in ("train", "holdout") if role not in shares]:
        wrong = f"name train and holdout, and {' and '.join(absent)} {'are' if len(absent) > 1 else 'is'} missing"
    elif odd := set(shares) - set(DEFAULT_SHARES):
        wrong = f"name train, holdout and reference only, not {safe_repr(min(odd))}"
    elif small := [role for role, share in shares.items() if not share > 0]:
        wrong = f"be positive, but that of {small[0]} is not"
    elif abs(total - 1) > 1e-9:
        wrong = f"sum to 1, but sum to {total:.6g}"
    if wrong:
        raise ConfigError(f"shares must {wrong}. For example: split: {SHARES_EXAMPLE}.")


def assign_sides(ids: pd.Series, key: bytes, shares: Mapping[str, float] = DEFAULT_SHARES) -> np.ndarray:
    """Return the role of each row, an object array of names.

    The HMAC-SHA256 of the subject's id under ``key``, scaled to [0, 1), is cut by ``shares``. A subject keeps its role
    as long as key and shares stay the same, regardless of other rows. ``key`` must be secret, because it identifies
    members.

    Raises:
        InputError: If an id is missing.
    """
    check_shares(shares)
    missing = np.flatnonzero(ids.isna().to_numpy())
    if len(missing):
        fix = "give every row the id of its subject"
        raise InputError("the subject is missing", column=str(ids.name), row=int(missing[0]), fix=fix)
    codes, uniques = pd.factorize(ids)
    names = list(shares)
    cuts = np.cumsum([shares[name] for name in names])[:-1]
    points = np.array([_point(value, key) for value in uniques])
    return np.array(names, dtype=object)[np.searchsorted(cuts, points, side="right")][codes]


def split_table(
    frame: pd.DataFrame,
    subject: str | None,
    key: bytes,
    shares: Mapping[str, float] = DEFAULT_SHARES,
    *,
    where: str = "source",
) -> dict[str, pd.DataFrame]:
    """Split ``frame`` into one frame per role, disjoint by subject; order and index of rows are kept.

    Without a ``subject`` column the content of a row is its id, so identical rows get the same role. Raises InputError
    if a role gets no rows.
    """
    if subject is not None:
        check_subject(frame.columns, subject, where)
    ids = frame[subject] if subject is not None else _row_keys(frame)
    sides = assign_sides(ids, key, shares)
    parts = {name: frame[sides == name] for name in shares}
    for name, part in parts.items():
        if part.empty:
            raise InputError(f"{len(frame)} rows leave {name} empty", where=where, fix="give more rows or other shares")
    return parts


def _point(value: object, key: bytes) -> float:
    digest = hmac.new(key, str(_whole(value)).encode("utf-8", "surrogatepass"), hashlib.sha256).digest()
    return int.from_bytes(digest[:7], "big") / 2**56


def _whole(value: object) -> object:
    """Convert 7.0 to 7: missing values elsewhere convert integers to floats, which must identify the same subject."""
    return int(value) if isinstance(value, (float, np.floating)) and float(value).is_integer() else value


def _row_keys(frame: pd.DataFrame) -> pd.Series:
    """Return a string that identifies each row's content, independent of numeric dtypes."""
    keys = [""] * len(frame)
    for name in frame.columns:
        codes, uniques = pd.factorize(frame[name])
        texts = [value_bytes(_whole(value)).hex() for value in uniques] + [""]
        keys = [f"{key}{texts[code]}," for key, code in zip(keys, codes, strict=True)]
    return pd.Series(keys, index=frame.index)
