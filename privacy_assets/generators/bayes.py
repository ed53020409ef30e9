"""Bayesian networks by GreedyBayes, without noise and with differential privacy (PrivBayes, Zhang
et al. 2017).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from privacy_assets.errors import InputError
from privacy_assets.generators.base import (
    Draw,
    FittedGenerator,
    Generator,
    PrivacyBudget,
    Training,
    read_arrays,
    write_arrays,
)
from privacy_assets.generators.domains import Bounds, Categories, Domains, PublicKnowledge
from privacy_assets.generators.rewriting import RelationalGenerator
from privacy_assets.infra.settings import declared
from privacy_assets.tables.encoding import MatrixCoding
from privacy_assets.tables.schema import TableSchema
from privacy_assets.tables.table import Table

Conditional = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
_PARTS = ("groups", "starts", "values", "ends")
_MAX_KEYS = 2.0**62
_MAX_CELLS = 2**22


@declared
class BayNet(RelationalGenerator):
    """A Bayesian network in which each column has up to ``degree`` parents chosen by mutual
    information.

    GreedyBayes: starting with a random column, the column and parents with the largest mutual
    information are added next. Rows are drawn column by column from the training frequencies; for
    combinations of parents that did not occur, the frequencies of all rows are used. Missing is a
    value. No noise is added: for differential privacy see ``privbayes``. Values come from the
    training rows, and a column of nearly unique strings predicts all others, so names and other
    identifiers must be dropped first. The defaults follow ``reprosyn``, the reference
    implementation of Meeus et al. (2023). It is meant for their attacks with shadow models. It
    discloses more than the default one.

    Attributes:
        degree: Maximum number of parents of a column, 1 to 3.
        bins: Number of equal-width bins of a number, which is drawn uniformly within its bin
            (integers: among the integers in it). Numbers with at most this many distinct values
            keep them.
    """

    name = "baynet"
    summary = (
        "A Bayesian network: each column is drawn given up to three others, chosen by mutual"
        " information. For attacks "
        "with shadow models; it discloses more than the default generator."
    )

    degree: int = Field(default=1, ge=1, le=3)
    bins: int = Field(default=10, ge=2)

    def overfitting_protection(self) -> dict[str, float]:
        """Implement :meth:`Generator.overfitting_protection`: bounds on the capacity of the
        network.
        """
        return {"degree": self.degree, "bins": self.bins}

    def _fit_rows(self, train: Table, training: Training) -> FittedGenerator:
        from privacy_assets.generators._bayes_kernels import learn_conditionals, learn_structure

        coding = self._coding(train)
        cells = coding.code(train)
        domains = self._domains(cells, coding)
        codes = domains.encode(cells)
        rate, scale = self._noise(len(cells))
        rng, noise = self._streams(training.seed)
        training.progress("learning the structure of the network")
        root = int(rng.integers(len(codes)))
        order, parents = learn_structure(codes, domains.sizes, self.degree, root, rate, noise)
        training.progress("counting the conditional distributions")
        conditionals = learn_conditionals(codes, domains.sizes, order, parents, scale, noise)
        fitted = FittedNetwork(self, coding, domains, order, parents, conditionals)
        fitted.privacy = self._spent(train.schema)
        return fitted

    def drawer(self, cells: np.ndarray, coding: MatrixCoding) -> Draw:
        """Implement :meth:`CodedGenerator.drawer`."""
        from privacy_assets.generators._bayes_kernels import fit_and_draw

        domains = self._domains(cells, coding)
        codes = domains.encode(cells)
        sizes = domains.sizes
        flat = domains.flat
        rate, scale = self._noise(len(cells))

        def draw(rows: np.ndarray, size: int, seed: int) -> np.ndarray:
            rows = np.ascontiguousarray(rows, dtype=np.int64)
            rng, noise = self._streams(seed)
            root = int(rng.integers(len(cells)))
            sample: np.ndarray = fit_and_draw(
                codes, sizes, flat, self.degree, rate, scale, rows, size, root, rng, noise
            )
            return sample

        return draw

    def _coding(self, train: Table) -> MatrixCoding:
        return MatrixCoding.fit([train], train.schema)

    def _domains(self, cells: np.ndarray, coding: MatrixCoding) -> Domains:
        domains = Domains.of_cells(cells, coding, self.bins)
        if self._max_table_cells(domains) > _MAX_KEYS:
            problem = "columns have too many distinct values for a Bayesian network"
            fix = "drop columns of nearly unique values, or lower degree"
            raise InputError(problem, where="train", fix=fix)
        return domains

    def _max_table_cells(self, domains: Domains) -> float:
        """Return the number of cells of the largest joint table of a column and its parents."""
        largest_sizes = np.sort(domains.sizes)[-self.degree - 1 :]
        return float(np.prod(largest_sizes.astype(np.float64)))

    def _noise(self, columns: int) -> tuple[float, float]:
        """Return epsilon per choice of a column, and scale of the noise per count; zeros mean no
        noise.
        """
        return 0.0, 0.0

    def _streams(self, seed: int) -> tuple[np.random.Generator, np.random.Generator]:
        """Return the generators of root and rows, and of noise."""
        rng = np.random.default_rng(seed)
        return rng, rng

    def _spent(self, schema: TableSchema) -> PrivacyBudget:
        return PrivacyBudget()

    def _load_rows(
        self, folder: Path, schema: TableSchema, manifest: Mapping[str, Any]
    ) -> FittedGenerator:
        arrays = read_arrays(folder)
        order = arrays["order"]
        parents = arrays["parents"]
        conditionals: list[Any] = []
        for i in range(len(order)):
            conditionals.append(tuple(arrays[f"{name}.of.{i}"] for name in _PARTS))
        coding = MatrixCoding.of_plain(schema, manifest["values"])
        domains = Domains.from_arrays(arrays)
        return FittedNetwork(self, coding, domains, order, parents, conditionals)


class FittedNetwork(FittedGenerator):
    """A network: columns in ``order`` (F,), their ``parents`` (F, degree), and one conditional
    distribution each.

    All three are in the form of the compiled functions that created them; ``domains`` defines the
    codes.
    """

    def __init__(
        self,
        generator: Generator,
        coding: MatrixCoding,
        domains: Domains,
        order: np.ndarray,
        parents: np.ndarray,
        conditionals: Sequence[Conditional],
    ) -> None:
        self.generator = generator
        self.schema = coding.schema
        self.coding = coding
        self.domains = domains
        self.order = order
        self.parents = parents
        self.conditionals = conditionals

    def _sample(self, n_rows: int, seed: int) -> Table:
        from privacy_assets.generators._bayes_kernels import (
            decode,
            draw_column,
            keys_of,
            max_lookup_size,
        )

        sizes = self.domains.sizes
        rng = np.random.default_rng(seed)
        codes = np.empty((len(sizes), n_rows), dtype=np.uint32)
        lookup = np.zeros(max_lookup_size(n_rows), dtype=np.uint32)
        for i, column in enumerate(self.order):
            keys, span = keys_of(codes, sizes, self.parents[i])
            codes[column] = draw_column(self.conditionals[i], keys, span, rng, lookup)
        return self.coding.table(decode(codes, self.domains.flat, rng))

    def _save(self, folder: Path) -> dict[str, Any]:
        arrays = {"order": self.order, "parents": self.parents, **self.domains.to_arrays()}
        for i, conditional in enumerate(self.conditionals):
            for name, array in zip(_PARTS, conditional, strict=True):
                arrays[f"{name}.of.{i}"] = array
        write_arrays(folder, arrays)
        return {"values": self.coding.plain_values()}


@declared
class PrivBayes(PublicKnowledge, BayNet):
    """The network of ``baynet`` with ``epsilon``-differential privacy for the replacement of one
    row.

    The guarantee protects a row, not a subject with several rows, against attackers who do not know
    the seed. The number of rows is public. Floating-point noise is used without protection against
    the attack of Mironov (2012). Values not declared by ``bounds`` or ``categories`` are read from
    the private rows, outside of the guarantee, and listed in the privacy budget; :meth:`drawer`
    reads them from all of its cells, as if they were public.

    Attributes:
        epsilon: Privacy budget.
        structure_share: Share of epsilon for the structure (exponential mechanism on mutual
            information, divided equally among the F - 1 choices for F columns; unused with one or
            two columns, where there is no choice). The rest is for the F - degree joint tables from
            which the conditional distributions derive (Laplace noise on every cell, negative counts
            set to 0). The default follows the reference implementation of Meeus et al. (2023);
            Zhang et al. use 0.3.
        bounds: Publicly known [low, high] of numbers and times, by column. Times are strings.
        categories: Publicly known values, by column.
    """

    name = "privbayes"
    secret_seed = True
    keeps_declared_only = True
    summary = "The Bayesian network of baynet with differential privacy (PrivBayes)."

    epsilon: float = Field(default=1.0, gt=0)
    structure_share: float = Field(default=0.5, gt=0, lt=1)
    bounds: Bounds = None
    categories: Categories = None

    def _coding(self, train: Table) -> MatrixCoding:
        return self.public_coding(train)

    def _domains(self, cells: np.ndarray, coding: MatrixCoding) -> Domains:
        domains = self.public_domains(cells, coding)
        if self._max_table_cells(domains) > _MAX_CELLS:
            problem = f"a noisy table may need more than {_MAX_CELLS:,} cells"
            fix = "lower degree or bins, or drop columns with many categories"
            raise InputError(problem, where="train", fix=fix)
        return domains

    def _noise(self, columns: int) -> tuple[float, float]:
        structure = self.epsilon * self.structure_share if columns > 2 else 0.0
        tables = columns - min(self.degree, columns - 1)
        return structure / max(columns - 1, 1), 2 * tables / (self.epsilon - structure)

    def _streams(self, seed: int) -> tuple[np.random.Generator, np.random.Generator]:
        return np.random.default_rng(seed), np.random.default_rng((seed, 1))

    def _spent(self, schema: TableSchema) -> PrivacyBudget:
        accountant = "the sum over the noisy choices and tables"
        covers = "the replacement of one row, unless the seed is known"
        return PrivacyBudget(
            float(self.epsilon), 0.0, self.outside_guarantee(schema), accountant, covers
        )
