"""Columns of digits that are codes, such as postcodes, although they can be read as numbers.

Whole numbers are drawn between the real values, so a synthetic postcode would not exist. A text column of digits with
one length of at least four is a code if the table has typed columns, because numbers would not be text there. In a
table of text only, such as a CSV file, two more conditions hold: most numbers between the smallest and the largest value
are absent, and the column determines another one, or has the name of a code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from privacy_assets.tables.column import Column
from privacy_assets.tables.relations import determines_another
from privacy_assets.tables.schema import ColumnSchema, Frame
from privacy_assets.tables.text import TextForm, as_texts, is_text

_FEWEST_DIGITS = 4
_MOST_PRESENT = 0.5  # share of the numbers between the smallest and the largest value
_NAMES = {"zip", "zipcode", "postcode", "postalcode", "plz", "id", "code"}
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")


def code_columns(
    frames: Sequence[Frame], columns: Sequence[tuple[ColumnSchema, TextForm]], locked: Mapping[str, str]
) -> dict[str, bool]:
    """Return whether each text column of whole numbers with one length of at least four digits is a code.

    Args:
        frames: Real tables.
        columns: Schema of the columns whose kind is not declared, and how their text is read.
        locked: Contract of the columns in the lock of the table. A locked column stays a number.

    Returns:
        True or False by name. Other columns are absent.
    """
    candidates = {}
    for schema, read in columns:
        is_whole = schema.kind == "integer" and not read.doubt and not read.format
        if is_whole and not locked.get(schema.name) and all(is_text(frame[schema.name]) for frame in frames):
            texts = pa.concat_arrays([pc.utf8_trim_whitespace(as_texts(frame[schema.name])) for frame in frames])
            if _has_one_length(texts):
                candidates[schema.name] = texts
    if not candidates:
        return {}
    is_typed = any(not is_text(frames[0][name]) for name in frames[0].columns)
    if is_typed:
        return dict.fromkeys(candidates, True)
    categories = [schema.name for schema, read in columns if schema.kind == "categorical" and not read.doubt]
    others = [_coded(name, [frame[name] for frame in frames]) for name in categories]
    found = {}
    for name, texts in candidates.items():
        is_sparse = _share_present(texts) <= _MOST_PRESENT
        column = _coded(name, [frame[name] for frame in frames])
        found[name] = is_sparse and (has_code_name(name) or determines_another(column, others))
    return found


def _has_one_length(texts: pa.Array) -> bool:
    """Return True if all texts are digits of one length, of at least four. Missing and empty texts do not count."""
    filled = texts.drop_null()
    filled = filled.filter(pc.not_equal(filled, ""))
    if len(filled) == 0 or not pc.all(pc.match_substring_regex(filled, "^[0-9]+$")).as_py():
        return False
    lengths = pc.min_max(pc.utf8_length(filled)).as_py()
    return bool(lengths["min"] == lengths["max"] >= _FEWEST_DIGITS)


def _share_present(texts: pa.Array) -> float:
    """Return the share of the numbers from the smallest to the largest value that occur."""
    filled = texts.drop_null()
    values = pc.unique(filled.filter(pc.not_equal(filled, "")))
    numbers = sorted(map(int, values.to_pylist()))
    return len(numbers) / (numbers[-1] - numbers[0] + 1)


def has_code_name(name: str) -> bool:
    """Return True if a word of the name is that of a code, such as in ``home_zip`` or ``areaCode``."""
    return any(word.lower() in _NAMES or word.lower().endswith("code") for word in _WORDS.findall(name))


def _coded(name: str, parts: Sequence[pd.Series]) -> Column:
    codes, values = pd.factorize(pd.concat(parts, ignore_index=True).astype(object))
    order = np.argsort(np.argsort(values.astype(str)))
    codes = np.where(codes < 0, -1, order[codes])
    return Column.of_codes(name, "categorical", codes, sorted(values.astype(str)))
