"""Bayesian networks by GreedyBayes, after PrivBayes without its noise (Zhang et al. 2017) and DataSynthesizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from privacy_assets.errors import InputError
from privacy_assets.generators.base import (
    FittedGenerator,
    Generator,
    PrivacyBudget,
    Training,
    read_arrays,
    write_arrays,
)
from privacy_assets.generators.domains import Domains
from privacy_assets.generators.shadow_fits import CodedGenerator, Draw
from privacy_assets.settings import declared
from privacy_assets.tables.coding import Coding
from privacy_assets.tables.schema import TableSchema
from privacy_assets.tables.table import Table

Conditional = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]

_PARTS = ("groups", "starts", "values", "ends")
_MOST_KEYS = 2.0**62


@declared
class BayNet(CodedGenerator):
    """A Bayesian network whose columns have up to ``degree`` (1 to 3) parents, chosen by mutual information.

    GreedyBayes: from a random column on, the column and the parents with the largest mutual information come next.
    Rows are drawn column by column from the shares counted in training; parents that never stood together leave the
    shares of all rows. A number is drawn uniformly from its bin, a whole number from the whole numbers in it, by
    default of 10 bins of equal width (``bins``); with at most ``bins`` different values it keeps these. Missing is a
    value like any other. No noise: for differential privacy see ``privbayes``. Values are those of the training rows,
    and a column of nearly unique texts explains every other: drop names and other identifiers first.

    The defaults are those of the reference of Meeus et al. (2023), ``reprosyn``.
    """

    name = "baynet"
    summary = "A Bayesian network: each column is drawn given up to three others, chosen by mutual information."

    degree: int = Field(default=1, ge=1, le=3, description="parents of a column, at most")
    bins: int = Field(default=10, ge=2, description="bins of a number")

    def overfitting_protection(self) -> str:
        """See :meth:`Generator.overfitting_protection`: what bounds how much a network can hold."""
        return f"each column has at most {self.degree} parents; numbers are cut into {self.bins} bins"

    def _fit(self, train: Table, training: Training) -> FittedGenerator:
        from privacy_assets.generators._bayes_kernels import learn_conditionals, learn_structure

        coding = self._coding(train)
        cells = coding.code(train)
        domains = self._domains(cells, coding)
        codes, (rate, scale) = domains.encode(cells), self._noise(len(cells))
        rng, noise = self._streams(training.seed)
        training.progress("learning the structure of the network")
        root = int(rng.integers(len(codes)))
        order, parents = learn_structure(codes, domains.sizes, self.degree, root, rate, noise)
        training.progress("counting the conditional distributions")
        conditionals = learn_conditionals(codes, domains.sizes, order, parents, scale, noise)
        fitted = FittedNetwork(self, coding, domains, order, parents, conditionals)
        fitted.privacy = self._spent(train.schema)
        return fitted

    def drawer(self, cells: np.ndarray, coding: Coding) -> Draw:
        """See :meth:`CodedGenerator.drawer`."""
        from privacy_assets.generators._bayes_kernels import fit_and_draw

        domains = self._domains(cells, coding)
        known = domains.encode(cells), domains.sizes, domains.flat, self.degree, *self._noise(len(cells))

        def draw(rows: np.ndarray, size: int, seed: int) -> np.ndarray:
            own = np.ascontiguousarray(rows, dtype=np.int64)
            rng, noise = self._streams(seed)
            drawn: np.ndarray = fit_and_draw(*known, own, size, int(rng.integers(len(cells))), rng, noise)
            return drawn

        return draw

    def _coding(self, train: Table) -> Coding:
        return Coding.fit([train], train.schema)

    def _domains(self, cells: np.ndarray, coding: Coding) -> Domains:
        domains = Domains.of_cells(cells, coding, self.bins)
        if np.prod(np.sort(domains.sizes)[-self.degree - 1 :].astype(np.float64)) > _MOST_KEYS:
            fix = "drop columns of nearly unique values, or lower degree"
            raise InputError("columns have too many different values for a Bayesian network", where="train", fix=fix)
        return domains

    def _noise(self, columns: int) -> tuple[float, float]:
        """Epsilon of each choice of a column and scale of the noise on each count; zeros for none."""
        return 0.0, 0.0

    def _streams(self, seed: int) -> tuple[np.random.Generator, np.random.Generator]:
        """Random numbers for root and rows, and for noise."""
        rng = np.random.default_rng(seed)
        return rng, rng

    def _spent(self, schema: TableSchema) -> PrivacyBudget:
        return PrivacyBudget()

    def load(self, folder: Path, schema: TableSchema, manifest: Mapping[str, Any]) -> FittedGenerator:
        """See :meth:`Generator.load`."""
        arrays = read_arrays(folder)
        order, parents = arrays["order"], arrays["parents"]
        made: Any = [tuple(arrays[f"{name}.of.{i}"] for name in _PARTS) for i in range(len(order))]
        coding, domains = Coding.of_plain(schema, manifest["values"]), Domains.from_arrays(arrays)
        return FittedNetwork(self, coding, domains, order, parents, made)


class FittedNetwork(FittedGenerator):
    """A network: columns in ``order`` (F,), their ``parents`` (F, degree) and one conditional distribution each.

    The form of the three is that of the compiled functions which made them; ``domains`` says what a code stands for.
    """

    def __init__(
        self,
        generator: Generator,
        coding: Coding,
        domains: Domains,
        order: np.ndarray,
        parents: np.ndarray,
        conditionals: Sequence[Conditional],
    ) -> None:
        self.generator, self.schema, self.coding, self.domains = generator, coding.schema, coding, domains
        self.order, self.parents, self.conditionals = order, parents, conditionals

    def _sample(self, rows: int, seed: int) -> Table:
        from privacy_assets.generators._bayes_kernels import decode, draw_column, keys_of, room

        rng, sizes = np.random.default_rng(seed), self.domains.sizes
        codes, lookup = np.empty((len(sizes), rows), dtype=np.uint32), np.zeros(room(rows), dtype=np.uint32)
        for i, column in enumerate(self.order):
            codes[column] = draw_column(self.conditionals[i], *keys_of(codes, sizes, self.parents[i]), rng, lookup)
        return self.coding.table(decode(codes, self.domains.flat, rng))

    def _save(self, folder: Path) -> dict[str, Any]:
        arrays = {"order": self.order, "parents": self.parents, **self.domains.to_arrays()}
        for i, parts in enumerate(self.conditionals):
            arrays.update({f"{name}.of.{i}": part for name, part in zip(_PARTS, parts, strict=True)})
        write_arrays(folder, arrays)
        return {"values": self.coding.plain_values()}
