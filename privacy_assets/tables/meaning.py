"""Meaning of the cells of a column: a kind and a format, as users declare them and as accepted
settings state them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast, get_args

from privacy_assets.errors import ConfigError, did_you_mean, safe_repr
from privacy_assets.tables.schema import Kind
from privacy_assets.tables.written_dates import is_time_format
from privacy_assets.tables.written_numbers import NumberFormat, is_unit

# on the command line, where a comma separates options
_WORDS = {"": "", ",": "comma", ".": "point"}
_SIGNS = {word: sign for sign, word in _WORDS.items()}
_FORMATS = "{datetime: '%d.%m.%Y'}, {numeric: {decimal: ','}} or {numeric: {unit: kg}}"


@dataclass(frozen=True, slots=True)
class Meaning:
    """Kind and format of the cells of a column.

    Attributes:
        kind: Kind.
        format: Format of text, see :class:`.text.TextForm`. None: it is recognized from the cells.
    """

    kind: Kind
    format: str | None = None

    @classmethod
    def of(cls, declared: object, column: str) -> Meaning:
        """Return the meaning that a user declares: a kind, or a kind with a format in a mapping.

        Args:
            declared: Declaration, such as ``numeric``, ``{datetime: "%d.%m.%Y"}`` or ``{numeric:
                {unit: "$"}}``.
            column: Column, for messages.

        Raises:
            ConfigError: If the kind or the format is unknown.
        """
        if isinstance(declared, str) and declared.endswith("?"):
            fix = "decide, and remove the question mark and the quotes"
            raise ConfigError(
                f"kinds: the kind of column {safe_repr(column)} is a question of `inspect`."
                f" Fix: {fix}."
            )
        kind = declared
        stored_format = None
        if isinstance(declared, Mapping) and len(declared) == 1:
            ((kind, cell_format),) = declared.items()
            stored_format = _stored_format(kind, cell_format)
            if stored_format is None:
                raise ConfigError(
                    f"kinds: the format of column {safe_repr(column)} is unknown. Fix: {_FORMATS}."
                )
        if not isinstance(kind, str) or kind not in get_args(Kind):
            hint = did_you_mean(kind, get_args(Kind))
            raise ConfigError(
                f"unknown kind {safe_repr(kind)} of column {safe_repr(column)}.{hint}"
            )
        return cls(cast("Kind", kind), stored_format)

    @property
    def declaration(self) -> Any:
        """The declaration of this meaning, see :meth:`of`."""
        if not self.format:
            return self.kind
        if self.kind == "datetime":
            return {"datetime": self.format}
        decimal, unit = NumberFormat.of(self.format)
        number_format = {}
        if unit:
            number_format["unit"] = unit
        if decimal:
            number_format["decimal"] = decimal
        return {self.kind: number_format}

    @property
    def option(self) -> str:
        """The declaration on the command line: KIND, or KIND:FORMAT."""
        if not self.format:
            return self.kind
        if self.kind == "datetime":
            return f"{self.kind}:{self.format}"
        decimal, unit = NumberFormat.of(self.format)
        if not unit:
            return f"{self.kind}:{_WORDS[decimal]}"
        return f"{self.kind}:{_WORDS[decimal]}:{unit}"

    def accepted_text(self, is_zoned: bool = False) -> str:
        """Return how accepted settings state this meaning. Integers and other numbers are one kind.

        Args:
            is_zoned: True for times with a time zone.
        """
        name = "number" if self.kind in ("integer", "numeric") else self.kind
        cell_format = f", format {self.format}" if self.format else ""
        zone = ", with a time zone" if is_zoned else ""
        return f"{name}{cell_format}{zone}"


def declared_by_option(text: str) -> Any:
    """Return the declaration of KIND, KIND:FORMAT or KIND:DECIMAL:UNIT, see :meth:`Meaning.of`.

    Args:
        text: Option. It is not validated. DECIMAL is "comma", "point" or "".
    """
    kind, colon, cell_format = text.partition(":")
    if not colon:
        return kind
    if kind == "datetime":
        return {kind: cell_format}
    decimal, colon, unit = cell_format.partition(":")
    if colon:
        return {kind: {"decimal": _SIGNS.get(decimal, decimal), "unit": unit}}
    if cell_format in _SIGNS or cell_format in _WORDS:
        return {kind: {"decimal": _SIGNS.get(cell_format, cell_format)}}
    return {kind: {"unit": cell_format}}


def _stored_format(kind: object, cell_format: object) -> str | None:
    """Return the format of cells of a kind as a schema stores it, or None if it is invalid."""
    if kind in ("numeric", "integer"):
        return _number_format(cell_format)
    if kind == "datetime" and isinstance(cell_format, str) and is_time_format(cell_format):
        return cell_format
    return None


def _number_format(parts: object) -> str | None:
    """Return the format of ``{decimal: ",", unit: kg}``, or None if it is invalid."""
    if not isinstance(parts, Mapping) or not parts or not set(parts) <= {"decimal", "unit"}:
        return None
    decimal = parts.get("decimal", "")
    unit = parts.get("unit", "")
    has_unit = isinstance(unit, str) and is_unit(unit)
    if "unit" in parts and not has_unit:
        return None
    if decimal not in ("", ",", ".") or not decimal and not has_unit:
        return None
    return NumberFormat(decimal, unit).stored
