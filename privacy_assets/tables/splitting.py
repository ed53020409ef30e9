"""Stable split by subject: the role of a row is a keyed hash of the subject's id."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from privacy_assets.errors import ConfigError, InputError, safe_repr
from privacy_assets.tables.column import ranked, row_ids
from privacy_assets.tables.fingerprints import value_bytes
from privacy_assets.tables.subject_ids import plain_ids
from privacy_assets.tables.table import Table

DEFAULT_SHARES: Mapping[str, float] = {"train": 0.5, "holdout": 0.3, "reference": 0.2}
SHARES_EXAMPLE = "{train: 0.5, holdout: 0.3, reference: 0.2}"


def check_shares(shares: Mapping[str, float]) -> None:
    """Raise ConfigError unless ``shares`` are positive, include train and holdout, and sum to 1."""
    problem = _problem_of(shares)
    if problem:
        raise ConfigError(f"shares must {problem}. For example: split: {SHARES_EXAMPLE}.")


def _problem_of(shares: Mapping[str, float]) -> str:
    """Return what the shares must do, and do not; "" if they are valid."""
    total = sum(shares.values())
    missing = [role for role in ("train", "holdout") if role not in shares]
    if missing:
        verb = "are" if len(missing) > 1 else "is"
        return f"name train and holdout, and {' and '.join(missing)} {verb} missing"
    unknown = set(shares) - set(DEFAULT_SHARES)
    if unknown:
        return f"name train, holdout and reference only, not {safe_repr(min(unknown))}"
    for role, share in shares.items():
        if not share > 0:
            return f"be positive, but that of {role} is not"
    if abs(total - 1) > 1e-9:
        return f"sum to 1, but sum to {total:.6g}"
    return ""


def split_rows(
    table: Table,
    key: bytes,
    shares: Mapping[str, float] = DEFAULT_SHARES,
    *,
    exact_ids: bool = False,
    where: str = "source",
) -> dict[str, np.ndarray]:
    """Split a table by subject.

    The HMAC-SHA256 of the subject's id under ``key``, scaled to [0, 1), is cut by ``shares``. A
    subject keeps its role as long as key and shares stay the same, regardless of other rows and of
    the spelling of the id. Without a subject column the content of a row is its id, so identical
    rows get the same role.

    Args:
        table: Rows of all roles.
        key: Key of the assignment. It must be secret, because it identifies members.
        shares: Share of each role.
        exact_ids: True if two spellings of an id are two people.
        where: Name of the table in messages.

    Returns:
        Ascending positions of the rows of each role, int64.

    Raises:
        ConfigError: If the shares are invalid.
        InputError: If a role gets no rows.
    """
    check_shares(shares)
    codes, subjects = _subjects(table)
    if not exact_ids:
        subjects = _plain_subjects(table, subjects)
    cuts = np.cumsum(list(shares.values()))[:-1]
    points = [_point(subject, key) for subject in subjects]
    subject_roles = np.searchsorted(cuts, points, side="right")
    row_roles = subject_roles[codes]
    positions = dict[str, np.ndarray]()
    for i, role in enumerate(shares):
        positions[role] = np.flatnonzero(row_roles == i)
        if len(positions[role]) == 0:
            problem = f"{len(table)} rows leave {role} empty"
            raise InputError(problem, where=where, fix="use more rows or other shares")
    return positions


def _point(value: object, key: bytes) -> float:
    return int.from_bytes(_digest(value, key)[:7], "big") / 2**56


def _digest(value: object, key: bytes) -> bytes:
    text = str(_as_integer(value))
    return hmac.new(key, text.encode("utf-8", "surrogatepass"), hashlib.sha256).digest()


def _as_integer(value: object) -> object:
    """Convert 7.0 to 7: missing values elsewhere convert integers to floats, which must identify
    the same subject.
    """
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        return int(value)
    return value


def _subjects(table: Table) -> tuple[np.ndarray, list[object]]:
    """Return the subject code of each row, and the id of each code: without a subject column, the
    row's content.
    """
    if table.subject_ids is not None:
        (codes,), values = ranked([table.subject_ids])
        return codes, values.objects()
    (codes,) = row_ids([table.columns], table.schema.names)
    _, first_rows = np.unique(codes, return_index=True)
    distinct = table.take(first_rows)
    columns = []
    for name in table.schema.names:
        columns.append(map(_cell, distinct[name].objects()))
    return codes, list(map("".join, zip(*columns, strict=True)))


def _plain_subjects(table: Table, subjects: Sequence[Any]) -> list[Any]:
    """Return the plain forms of subjects. Without a subject column, the content of a row is its own
    plain form.
    """
    if table.subject_ids is None or table.subject_ids.kind != "categorical":
        return list(subjects)
    return list(plain_ids(subjects))


def _cell(value: object) -> str:
    """Return text that identifies a value, independent of numeric dtypes."""
    if value is None:
        return ","
    return f"{value_bytes(_as_integer(value)).hex()},"


def pseudonyms(table: Table, key: bytes, exact_ids: bool = False) -> np.ndarray:
    """Return two keyed pseudonyms of each row's person: from the exact id, and from its plain form.

    A pseudonym is the start of the HMAC-SHA256 of the subject's id, or without a subject column of
    the row's content, as in :func:`split_rows`.

    Args:
        table: Private rows.
        key: Secret key, a different one from that of the split.
        exact_ids: True if two spellings of an id are two people: the exact id then counts as its
            plain form.

    Returns:
        uint64 of shape (n, 2). Equal for rows of the same person, in every table. If only the
        spelling of an id changes, the second column does not.
    """
    codes, subjects = _subjects(table)
    plain_subjects = _plain_subjects(table, subjects)
    exact = _pseudonyms_of(subjects, key)
    plain = exact
    if not exact_ids and plain_subjects != subjects:
        plain = _pseudonyms_of(plain_subjects, key)
    return np.column_stack([exact, plain])[codes]


def _pseudonyms_of(subjects: Sequence[object], key: bytes) -> np.ndarray:
    starts = [_digest(subject, key)[:8] for subject in subjects]
    return np.frombuffer(b"".join(starts), ">u8").astype(np.uint64)
