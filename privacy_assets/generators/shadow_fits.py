"""Generators that work on coded cells: thousands of fits without a single frame, for shadow work."""

from __future__ import annotations

from abc import abstractmethod
from typing import Protocol

import numpy as np

from privacy_assets.generators.base import Generator
from privacy_assets.tables.coding import Coding


class Draw(Protocol):
    """Fit to some rows and sample, in one compiled call."""

    def __call__(self, rows: np.ndarray, size: int, seed: int) -> np.ndarray:
        """Fit to the cells of ``rows`` (int64, repeats allowed) and return ``size`` new rows, float64 (F, size).

        The same arguments give the same rows. Lets go of the interpreter's lock, and may be called from many threads.
        """


class CodedGenerator(Generator):
    """A generator with a second door beside :meth:`fit`: the same model, fitted and sampled on coded cells."""

    @abstractmethod
    def drawer(self, cells: np.ndarray, coding: Coding) -> Draw:
        """Prepare what all training sets drawn from the columns of ``cells`` (F, N) share: ranks, bins, domains.

        Bins and domains are those of all of ``cells``, as the papers take them from public metadata.
        """
