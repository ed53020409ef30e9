"""Columns of digits that are codes, such as postcodes, although they can be read as numbers.

Generators draw integers between the real values, so a synthetic postcode would not exist. A text
column of digits with one length of at least four is a code if the table also has columns of other
types, because a number would have such a type. In a table of text only, such as a CSV file, it is a
code if most integers between the smallest and the largest value are absent, and if it has the name
of a code or determines another column as codes do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from privacy_assets.tables.column import Column, stacked
from privacy_assets.tables.conversion import column_of
from privacy_assets.tables.relations import determines
from privacy_assets.tables.schema import ColumnSchema, Frame
from privacy_assets.tables.text import MARKERS, Digits

IS_CODE = "digits of one length are read as codes; for numbers, declare kinds: integer"
IS_NUMBER = (
    "digits of one length are read as numbers; for codes such as postcodes, declare kinds:"
    " categorical"
)
_MAX_PRESENT = 0.5  # share of the integers between the smallest and the largest value
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")


@dataclass(frozen=True)
class RealColumns:
    """Columns of the real tables, which are evidence that a column of digits is a code.

    Attributes:
        frames: Real tables.
        schemas: Schemas of the columns by name.
        are_typed: True if some of the columns in the tables, also the subject, are not text.
        subject_codes: Subject of each row of the stacked tables, int64 (n,). None: each row is a
            person.
    """

    frames: Sequence[Frame]
    schemas: Mapping[str, ColumnSchema]
    are_typed: bool
    subject_codes: np.ndarray | None
    # columns that were read as categories
    _categories: dict[str, Column] = field(default_factory=dict)

    def has_code_role(self, name: str) -> bool:
        """Return True if the values of a column of digits determine a category as codes do.

        Two kinds of measured columns do not: columns that another one determines, as a site
        determines its altitude, and columns of which each category has an interval, as an income
        band has.

        Args:
            name: Name of the column.
        """
        schema = self.schemas[name]
        columns = [column for column in self.schemas.values() if column.name != name]
        if not any(self._is_code_of(schema, column) for column in columns):
            return False
        return not any(self._is_site_of(column, schema) for column in columns)

    def _is_code_of(self, digits: ColumnSchema, category: ColumnSchema) -> bool:
        """Return True if digits determine a category, whose values are not intervals of them."""
        if category.kind != "categorical" or not self._determines(digits, category):
            return False
        return not _are_intervals(self._coded(digits), self._coded(category))

    def _is_site_of(self, site: ColumnSchema, digits: ColumnSchema) -> bool:
        """Return True if a column determines digits, as a site determines its altitude."""
        if site.kind not in ("categorical", "integer"):
            return False
        return self._determines(site, digits)

    def _determines(self, first: ColumnSchema, second: ColumnSchema) -> bool:
        column = self._coded(first)
        subject_codes = self.subject_codes
        if subject_codes is None:
            subject_codes = np.arange(len(column))
        return determines(column, self._coded(second), subject_codes)

    def _coded(self, schema: ColumnSchema) -> Column:
        """Return a column of the stacked tables as categories."""
        if schema.name not in self._categories:
            category = schema
            if schema.kind != "categorical":
                category = replace(schema, kind="categorical", missing=(*schema.missing, *MARKERS))
            parts = []
            for frame in self.frames:
                part = column_of(frame[schema.name], category, "the tables", external=True)
                parts.append(part)
            self._categories[schema.name] = stacked(parts)
        return self._categories[schema.name]


def find_codes(candidates: Mapping[str, Digits], real: RealColumns) -> set[str]:
    """Return the names of the columns that are codes.

    Args:
        candidates: Values of columns of digits with one length.
        real: Columns of the real tables.
    """
    if real.are_typed:
        return set(candidates)
    codes = set()
    for name, digits in candidates.items():
        if _is_code_among_texts(name, digits, real):
            codes.add(name)
    return codes


def _is_code_among_texts(name: str, digits: Digits, real: RealColumns) -> bool:
    if digits.share_present > _MAX_PRESENT:
        return False
    if has_code_name(name):
        return True
    return not digits.are_years and real.has_code_role(name)


def has_code_name(name: str) -> bool:
    """Return True if a column has the name of a code, such as ``home_zip``, ``areaCode`` or
    ``code_insee``.
    """
    words = list(map(str.lower, _WORD.findall(name)))
    if not words:
        return False
    return (
        words[0] in ("code", "id")
        or words[-1] in ("zip", "plz", "id")
        or words[-1].endswith("code")
    )


def _are_intervals(digits: Column, category: Column) -> bool:
    """Return True if the digits of each value of the category are an interval.

    Args:
        digits: Column of digits of one length, which determines the category.
        category: Column of categories of the same rows.
    """
    has_digits = ~digits.missing
    codes, first_rows = np.unique(digits.cells[has_digits], return_index=True)
    # in the order of the numbers, as all have one length
    answers = category.cells[has_digits][first_rows]
    n_intervals = 1 + int((answers[1:] != answers[:-1]).sum())
    return n_intervals == len(np.unique(answers))
