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
        kind, form = declared, None
        if isinstance(declared, Mapping) and len(declared) == 1:
            ((kind, given),) = declared.items()
            form = (
                _number_format(given)
                if kind in ("numeric", "integer")
                else _date_format(kind, given)
            )
            if form is None:
                raise ConfigError(
                    f"kinds: the format of column {safe_repr(column)} is unknown. Fix: {_FORMATS}."
                )
        if not isinstance(kind, str) or kind not in get_args(Kind):
            hint = did_you_mean(kind, get_args(Kind))
            raise ConfigError(
                f"unknown kind {safe_repr(kind)} of column {safe_repr(column)}.{hint}"
            )
        return cls(cast("Kind", kind), form)

    @property
    def declaration(self) -> Any:
        """The declaration of this meaning, see :meth:`of`."""
        if not self.format:
            return self.kind
        if self.kind == "datetime":
            return {"datetime": self.format}
        decimal, unit = NumberFormat.of(self.format)
        parts = {"unit": unit, "decimal": decimal}
        return {self.kind: {name: text for name, text in parts.items() if text}}

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

    def accepted(self, zoned: bool = False) -> str:
        """Return how accepted settings state this meaning. Integers and other numbers are one kind.

        Args:
            zoned: True for times with a time zone.
        """
        name = "number" if self.kind in ("integer", "numeric") else self.kind
        form = f", format {self.format}" if self.format else ""
        return f"{name}{form}{', with a time zone' if zoned else ''}"


def declared_by_option(text: str) -> Any:
    """Return the declaration of KIND, KIND:FORMAT or KIND:DECIMAL:UNIT, see :meth:`Meaning.of`.

    Args:
        text: Option. It is not validated. DECIMAL is "comma", "point" or "".
    """
    kind, colon, form = text.partition(":")
    if not colon:
        return kind
    if kind == "datetime":
        return {kind: form}
    decimal, colon, unit = form.partition(":")
    if colon:
        return {kind: {"decimal": _SIGNS.get(decimal, decimal), "unit": unit}}
    if form in _SIGNS or form in _WORDS:
        return {kind: {"decimal": _SIGNS.get(form, form)}}
    return {kind: {"unit": form}}


def _number_format(given: object) -> str | None:
    """Return the format of ``{decimal: ",", unit: kg}``, or None if it is invalid."""
    if not isinstance(given, Mapping) or not given or not set(given) <= {"decimal", "unit"}:
        return None
    decimal = given.get("decimal", "")
    unit = given.get("unit", "")
    has_unit = isinstance(unit, str) and is_unit(unit)
    if "unit" in given and not has_unit:
        return None
    if decimal not in ("", ",", ".") or not decimal and not has_unit:
        return None
    return NumberFormat(decimal, unit).stored


def _date_format(kind: object, given: object) -> str | None:
    """Return the format of times, or None if it is invalid."""
    if kind == "datetime" and isinstance(given, str) and is_time_format(given):
        return given
    return None
