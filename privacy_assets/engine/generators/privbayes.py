"""PrivBayes: Bayesian networks under differential privacy (Zhang et al. 2017)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np
import pandas as pd

from privacy_assets.engine.generators.base import PrivacyBudget
from privacy_assets.engine.generators.baynet import BayNet
from privacy_assets.engine.generators.domains import Domain, Domains
from privacy_assets.engine.tables.coding import Coding
from privacy_assets.engine.tables.schema import ColumnSchema, TableSchema
from privacy_assets.errors import ConfigError, InputError, did_you_mean

_MOST_CELLS = 2**22


@dataclass(frozen=True)
class PrivBayes(BayNet):
    """The network of ``baynet`` with noise: ``epsilon``-differentially private for the replacement of one row.

    It protects a row, not a person with several rows; the number of rows is public. ``structure_share`` of epsilon goes
    to the structure (exponential mechanism over the mutual information, in equal parts to each of the F - 1 choices
    among F columns; nothing with one or two columns, where there is no choice), the rest to the F - degree joint tables
    that all conditional distributions derive from (Laplace noise on every cell, negative counts set to 0). Default is
    half and half as in the reference of Meeus et al. (2023); Zhang et al. give the structure 0.3. The noise is made of
    floating-point numbers, without the care of Mironov (2012) for their last digits.

    What the table can hold must not come from its rows. ``bounds`` ({number: [low, high]}, dates as text) are the ends
    of the bins, beyond which values count to the nearest bin; ``categories`` ({column: [texts]}) are the values of a
    category, all others counting as missing. Columns without are read from the private rows, outside the guarantee,
    and named in the privacy budget: range and few values of a number, values of a category, whether any is missing.
    :meth:`drawer` takes them from all of its cells, as if they were public.
    """

    name = "privbayes"
    summary = "The Bayesian network of baynet with differential privacy (PrivBayes)."

    epsilon: float = 1.0
    structure_share: float = 0.5
    bounds: Mapping[str, Sequence[float] | Sequence[str]] | None = None
    categories: Mapping[str, Sequence[str]] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not _is_number(self.epsilon) or self.epsilon <= 0:
            raise ConfigError("privbayes: epsilon must be a positive number.")
        if not _is_number(self.structure_share) or not 0 < self.structure_share < 1:
            raise ConfigError("privbayes: structure_share must lie between 0 and 1.")
        for setting in ("bounds", "categories"):
            value = getattr(self, setting)
            if value is None:
                continue
            if not isinstance(value, Mapping) or not all(isinstance(one, list | tuple) for one in value.values()):
                raise ConfigError(f"privbayes: {setting} must give a list for each column.")
            object.__setattr__(self, setting, {str(name): tuple(one) for name, one in value.items()})
        for name, texts in (self.categories or {}).items():
            if not texts or not all(isinstance(text, str) for text in texts):
                raise ConfigError(f"privbayes: categories of {name!r} must be one or more texts.")

    def _coding(self, train: pd.DataFrame, schema: TableSchema) -> Coding:
        found = Coding.fit([train], schema)
        public = [self._public_values(column) for column in schema.columns]
        return Coding(schema, tuple(own or read for own, read in zip(public, found.values, strict=True)))

    def _domains(self, cells: np.ndarray, coding: Coding) -> Domains:
        self._check_names(coding.schema)
        given = {}
        for column, known in zip(coding.schema.columns, coding.values, strict=True):
            values = self._public_values(column)
            if values is not None and known is not None:
                given[column.name] = _of_categories(values, known)
            elif column.name in (self.bounds or {}):
                given[column.name] = self._of_bounds(column)
        domains = Domains.of_cells(cells, coding, self.bins, given)
        if np.prod(np.sort(domains.sizes)[-self.degree - 1 :].astype(np.float64)) > _MOST_CELLS:
            fix = "lower degree or bins, or drop columns with many categories"
            raise InputError(f"a noisy table may need more than {_MOST_CELLS:,} cells", where="train", fix=fix)
        return domains

    def _public_values(self, column: ColumnSchema) -> tuple[object, ...] | None:
        if column.kind == "boolean":
            return (False, True)
        given = (self.categories or {}).get(column.name)
        return None if given is None else tuple(sorted(set(given)))

    def _of_bounds(self, column: ColumnSchema) -> Domain:
        wrong = f"privbayes: bounds of {column.name!r} must be [low, high], "
        pair = (self.bounds or {})[column.name]
        if column.kind == "datetime":
            try:
                low, high = ((pd.Timestamp(end) - pd.Timestamp(0)) / pd.Timedelta(1, "D") for end in pair)
            except (TypeError, ValueError):
                raise ConfigError(wrong + "dates as text.") from None
            whole = low == np.floor(low) and high == np.floor(high)
        else:
            if len(pair) != 2 or not all(_is_number(end) for end in pair):
                raise ConfigError(wrong + "finite numbers.")
            low, high = (float(end) for end in pair)
            whole = column.kind == "integer"
        if not low <= high:
            raise ConfigError(wrong + "low not above high.")
        if whole:
            low, high = float(np.floor(low)), float(np.ceil(high))
        return Domain.of_range(low, high, self.bins, whole=bool(whole), missing=True)

    def _check_names(self, schema: TableSchema) -> None:
        for setting, kinds in (("bounds", ("numeric", "integer", "datetime")), ("categories", ("categorical",))):
            for name in getattr(self, setting) or {}:
                if name not in schema.names:
                    hint = did_you_mean(name, schema.names)
                    raise ConfigError(f"privbayes: {setting} names the unknown column {name!r}.{hint}")
                if schema[name].kind not in kinds:
                    raise ConfigError(f"privbayes: {setting} cannot be given for the {schema[name].kind} {name!r}.")

    def _noise(self, columns: int) -> tuple[float, float]:
        structure = self.epsilon * self.structure_share if columns > 2 else 0.0
        tables = columns - min(self.degree, columns - 1)
        return structure / max(columns - 1, 1), 2 * tables / (self.epsilon - structure)

    def _streams(self, seed: int) -> tuple[np.random.Generator, np.random.Generator]:
        return np.random.default_rng(seed), np.random.default_rng((seed, 1))

    def _spent(self, schema: TableSchema) -> PrivacyBudget:
        given = {*(self.bounds or {}), *(self.categories or {}), *schema.of_kind("boolean")}
        read = ["values" if column.kind == "categorical" else "range" for column in schema.columns]
        unpaid = [f"{what} of {name}" for what, name in zip(read, schema.names, strict=True) if name not in given]
        return PrivacyBudget(float(self.epsilon), 0.0, tuple(unpaid))


def _of_categories(values: Sequence[object], known: Sequence[object]) -> Domain:
    """Cells of the public ``values`` in a coding that knows ``known``; those that it does not know stand at the end."""
    codes = [place for place, value in enumerate(known) if value in values]
    cells = [*codes, len(known), *[len(known) + 1] * (len(values) - len(codes))]
    return Domain.of_values(np.array(cells, dtype=np.float64), outside=len(codes))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
