"""PrivBayes: Bayesian networks under differential privacy (Zhang et al. 2017)."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from privacy_assets.errors import InputError
from privacy_assets.generators.base import PrivacyBudget
from privacy_assets.generators.baynet import BayNet
from privacy_assets.generators.domains import Domains
from privacy_assets.generators.public import Bounds, Categories, PublicKnowledge
from privacy_assets.settings import declared
from privacy_assets.tables.coding import Coding
from privacy_assets.tables.schema import TableSchema
from privacy_assets.tables.table import Table

_MOST_CELLS = 2**22


@declared
class PrivBayes(PublicKnowledge, BayNet):
    """The network of ``baynet`` with noise: ``epsilon``-differentially private for the replacement of one row.

    It protects a row, not a person with several rows, towards those who do not know the seed; the number of rows is
    public. ``structure_share`` of epsilon goes to the structure (exponential mechanism over the mutual information, in
    equal parts to each of the F - 1 choices among F columns; nothing with one or two columns, where there is no
    choice), the rest to the F - degree joint tables that all conditional distributions derive from (Laplace noise on
    every cell, negative counts set to 0). Default is half and half as in the reference of Meeus et al. (2023); Zhang et
    al. give the structure 0.3. The noise is made of floating-point numbers, without the care of Mironov (2012) for
    their last digits.

    What the table can hold must not come from its rows. ``bounds`` ({number: [low, high]}, dates as text) are the ends
    of the bins, beyond which values count to the nearest bin; ``categories`` ({column: [texts]}) are the values of a
    category, all others counting as missing. Columns without are read from the private rows, outside the guarantee,
    and named in the privacy budget: range and few values of a number, values of a category, whether any is missing.
    :meth:`drawer` takes them from all of its cells, as if they were public.
    """

    name = "privbayes"
    secret_seed = True
    summary = "The Bayesian network of baynet with differential privacy (PrivBayes)."

    epsilon: float = Field(default=1.0, gt=0, description="privacy budget")
    structure_share: float = Field(default=0.5, gt=0, lt=1, description="share of the budget for the structure")
    bounds: Bounds = None
    categories: Categories = None

    def _coding(self, train: Table) -> Coding:
        return self.public_coding(train)

    def _domains(self, cells: np.ndarray, coding: Coding) -> Domains:
        domains = self.public_domains(cells, coding)
        if np.prod(np.sort(domains.sizes)[-self.degree - 1 :].astype(np.float64)) > _MOST_CELLS:
            fix = "lower degree or bins, or drop columns with many categories"
            raise InputError(f"a noisy table may need more than {_MOST_CELLS:,} cells", where="train", fix=fix)
        return domains

    def _noise(self, columns: int) -> tuple[float, float]:
        structure = self.epsilon * self.structure_share if columns > 2 else 0.0
        tables = columns - min(self.degree, columns - 1)
        return structure / max(columns - 1, 1), 2 * tables / (self.epsilon - structure)

    def _streams(self, seed: int) -> tuple[np.random.Generator, np.random.Generator]:
        return np.random.default_rng(seed), np.random.default_rng((seed, 1))

    def _spent(self, schema: TableSchema) -> PrivacyBudget:
        accountant = "the sum over the noisy choices and tables"
        covers = "the replacement of one row, towards those who do not know the seed"
        return PrivacyBudget(float(self.epsilon), 0.0, self.outside_guarantee(schema), accountant, covers)
