"""Budgets: who is attacked when not everybody is. Copies hide among the rows that are searched, so those stay whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from pydantic import Field

from privacy_assets.metrics.inputs import MetricInputs
from privacy_assets.stats.subjects import order_by_content

SMALLEST = 1_000  # rows; fewer tell nothing
Budget = Annotated[int | None, Field(ge=SMALLEST)]


def target_rows(inputs: MetricInputs, roles: Sequence[str], most: int | None, purpose: str) -> np.ndarray | None:
    """The rows of random people of ``roles``: ascending int64 positions in these tables stacked; None for all of them.

    People are taken in random order, each with all rows, as long as these are ``most`` together; one at least. Every
    order is as likely whoever stands in which table, so that the labels of the people drawn are exchangeable where
    those of all are. The order of the rows changes nothing.
    """
    if most is None or most >= sum(len(inputs.tables[role]) for role in roles):
        return None
    content = np.concatenate([inputs.row_ids[role] for role in roles])
    codes = order_by_content(inputs.subject_codes(*roles), content)
    order = inputs.rng(purpose).permutation(int(codes.max()) + 1)
    rows = np.cumsum(np.bincount(codes)[order])
    drawn = np.zeros(len(order), dtype=bool)
    drawn[order[: max(1, int(np.searchsorted(rows, most, side="right")))]] = True
    return np.flatnonzero(drawn[codes])
