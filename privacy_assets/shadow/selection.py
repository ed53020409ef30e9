"""Which records to attack: the most vulnerable ones, or those of the baselines that Meeus et al. compare with (5.2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from privacy_assets.tables.coding import Coding

Selector = Literal["distance", "random", "rare_value", "log_likelihood"]
_HIGH = 95  # percentile beyond which a number is rare; a category is where no more rows than those hold it


@dataclass(frozen=True, eq=False)
class Selection:
    """``ids`` int64 (r,), columns of the cells, the most exposed first, and ``scores`` float64 (r,), a larger one more
    exposed: V_k, or what :func:`select_records` says of the other selectors.
    """

    ids: np.ndarray
    scores: np.ndarray


def select_records(
    cells: np.ndarray,
    coding: Coding,
    vulnerable: np.ndarray,
    *,
    by: Selector = "distance",
    records: int = 10,
    people: np.ndarray | None = None,
    rng: np.random.Generator,
) -> Selection:
    """Select ``records`` columns of ``cells`` (F, n), or all where there are fewer.

    - ``distance``: the largest V_k, ``vulnerable`` float64 (n,) (definition 2; see ``shadow.vulnerability``); with
      ``people``, codes (n,), one record of each.
    - ``log_likelihood`` (TAPAS): the least likely records were attributes independent, by the shares of their values
      in the table. Numbers count by percentile, 100 bins at most, and missing as one more. Score: -log likelihood.
    - ``rare_value`` (Groundhog): drawn among the records that hold a number above the 95th percentile of its attribute,
      or the least frequent value of a category, if no more than 5 % of the rows hold it (missing counts as a value).
      Score: how many such values the record holds. Fewer than ``records`` where there are fewer candidates.
    - ``random``: drawn among all records. Score 0.

    Where the last score selected is shared by more records than fit, ``rng`` draws among them; it decides nothing else
    but what is drawn. Equal scores are ordered by id.
    """
    if by == "distance":
        return most_exposed(vulnerable, records, rng, people)
    if by == "log_likelihood":
        return most_exposed(_summed(cells, coding, _surprise), records, rng)
    scores = _summed(cells, coding, _rare) if by == "rare_value" else np.zeros(cells.shape[1])
    candidates = np.flatnonzero(scores > 0) if by == "rare_value" else np.arange(cells.shape[1])
    drawn = rng.choice(candidates, min(records, len(candidates)), replace=False)
    return _ordered(drawn, scores)


def most_exposed(
    scores: np.ndarray, records: int, rng: np.random.Generator, people: np.ndarray | None = None
) -> Selection:
    """The largest ``records`` of the scores (n,), one of each person; which of those tied at the cut, ``rng`` says."""
    first = of_each_subject(scores, people)
    if len(first) <= records:
        return _ordered(first, scores)
    cut = np.partition(scores[first], -records)[-records]
    above, tied = first[scores[first] > cut], first[scores[first] == cut]
    if len(above) + len(tied) > records:
        tied = rng.choice(tied, records - len(above), replace=False)
    return _ordered(np.concatenate([above, tied]), scores)


def of_each_subject(scores: np.ndarray, people: np.ndarray | None) -> np.ndarray:
    """The row of each person with the largest score, the first of these; positions int64 (people,)."""
    if people is None:
        return np.arange(len(scores))
    order = np.argsort(-scores, kind="stable")
    return np.sort(order[np.unique(people[order], return_index=True)[1]])


def _ordered(ids: np.ndarray, scores: np.ndarray) -> Selection:
    ids = ids[np.lexsort((ids, -scores[ids]))].astype(np.int64)
    return Selection(ids, scores[ids])


def _summed(cells: np.ndarray, coding: Coding, each: Callable[[np.ndarray, bool], np.ndarray]) -> np.ndarray:
    """Sum (n,) of what ``each`` attribute adds to the score of each record."""
    scores = np.zeros(cells.shape[1])
    for row, is_number in zip(cells, coding.is_number, strict=True):
        if len(row):
            scores += each(row, bool(is_number))
    return scores


def _percentiles(row: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """The smallest numbers with at least so many percent of all numbers of ``row`` up to them; none of none."""
    ordered = np.sort(row[~np.isnan(row)])
    return ordered[-(-levels * len(ordered) // 100) - 1] if len(ordered) else ordered


def _surprise(row: np.ndarray, is_number: bool) -> np.ndarray:
    """-log of the share of the rows that hold the same value, or a number of the same percentile."""
    if is_number:
        place = np.searchsorted(np.unique(_percentiles(row, np.arange(1, 100))), row, side="left")
        row = np.where(np.isnan(row), -1, place)
    _, place, counts = np.unique(row, return_inverse=True, return_counts=True)
    return -np.log(counts / len(row))[place]


def _rare(row: np.ndarray, is_number: bool) -> np.ndarray:
    if is_number:
        high = _percentiles(row, np.array([_HIGH]))
        return row > high[0] if len(high) else np.zeros(len(row), dtype=bool)
    _, place, counts = np.unique(row, return_inverse=True, return_counts=True)
    return (counts == counts.min())[place] & (100 * counts.min() <= (100 - _HIGH) * len(row))
