"""Notes on personal data that the name and the values of a column suggest. They contain no
value.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from privacy_assets.tables.column import Column, stacked
from privacy_assets.tables.schema import ColumnSchema

_PERSON_NAME = re.compile(
    r"(^|_)((first|last|middle|full|given|family|sur|maiden|fore|user|patient|customer|employee)_?)"
    r"?names?$"
    r"|(^|_)(vor|nach|familien)?name$|(^|_)(nom|prenom|apellidos?|nombre)$"
)
_LATITUDE = re.compile(r"(^|_)(lat|latitude|breite|breitengrad)($|_)")
_LONGITUDE = re.compile(r"(^|_)(lon|lng|long|longitude|laenge|längengrad)($|_)")
_BIRTH = re.compile(r"(^|_)(dob|birth|born|geburt|naissance|nacimiento)|birth_?(date|day)|geburts")
_CAPITALISED = r"^\p{Lu}[\p{L}'’.-]+( \p{Lu}[\p{L}'’.-]*)*$"
_IP = r"^(\d{1,3}\.){3}\d{1,3}$|^[0-9a-fA-F]{0,4}(:[0-9a-fA-F]{0,4}){2,7}$"
_MIN_FORM_SHARE = 0.8  # minimum share of distinct values that have the form
_FINE_DECIMALS = 3  # decimals of degrees from which a position is a place of about 100 m


def personal_note(column: ColumnSchema, real: Sequence[Column]) -> str:
    """Return a note on names of people, positions, dates of birth or IP addresses, or "".

    A note is a hint for the owner of the table: values that few people share are replaced in any
    case.

    Args:
        column: Schema of the column.
        real: The column in each real table.
    """
    separated = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", column.name)
    name = separated.lower().replace(" ", "_").replace("-", "_")
    values = stacked(real).present().distinct()
    if len(values) == 0:
        return ""
    if column.kind == "datetime":
        if _BIRTH.search(name):
            return "a date of birth: the year or the age suffices in most tables"
        return ""
    if column.kind == "categorical":
        return _note_on_texts(name, pa.array(values.objects(), pa.large_string()))
    if column.kind != "numeric":
        return ""
    largest = float(np.abs(values.floats()).max())
    is_latitude = bool(_LATITUDE.search(name)) and largest <= 90
    is_longitude = bool(_LONGITUDE.search(name)) and largest <= 180
    precision = column.precision
    is_fine = precision is None or (isinstance(precision, int) and precision >= _FINE_DECIMALS)
    if is_fine and (is_latitude or is_longitude):
        return (
            "a position: three decimals are a place of about 100 m, so round it to one decimal or"
            " use a region"
        )
    return ""


def _note_on_texts(name: str, texts: pa.Array) -> str:
    """Return a note on IP addresses or names of people, or ""."""
    if _share(texts, _IP) >= _MIN_FORM_SHARE:
        return "IP addresses: drop them, or keep the network only"
    if _PERSON_NAME.search(name) and _share(texts, _CAPITALISED) >= _MIN_FORM_SHARE:
        return "names of people: drop them"
    return ""


def _share(texts: pa.Array, pattern: str) -> float:
    """Return the share of strings that match a pattern."""
    return float(pc.mean(pc.match_substring_regex(texts, pattern)).as_py() or 0.0)
