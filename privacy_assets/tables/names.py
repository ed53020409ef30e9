"""Validation and Unicode normalization of the names of columns and partitions."""

from __future__ import annotations

import unicodedata
from collections.abc import Container, Iterable, Mapping
from typing import Any

MAX_NAME_LENGTH = 128  # characters
# Control, format, surrogate, private-use and unassigned characters; separators of lines and
# paragraphs.
_UNSEEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
# Default-ignorable characters of other categories (fillers, variation selectors), and characters
# drawn as a blank.
_BLANK = {
    0x034F,
    0x115F,
    0x1160,
    0x17B4,
    0x17B5,
    0x2800,
    0x3164,
    0xFFA0,
    0xFFFC,
    0x13441,
    0x13442,
    0x16FE4,
    0x1D159,
}
_SELECTORS = ((0x180B, 0x180F), (0xFE00, 0xFE0F), (0xE0100, 0xE01EF))


def name_fault(name: str) -> str:
    """Describe the fault of a name without repeating the name.

    A valid name is in Unicode form NFC, has 1 to 128 characters, and contains only visible
    characters and plain spaces.

    Returns:
        A phrase that follows the subject "name", or "" for a valid name.
    """
    if not name:
        return "is empty"
    if len(name) > MAX_NAME_LENGTH:
        return f"has {len(name)} characters, and at most {MAX_NAME_LENGTH} are allowed"
    for character in name:
        if _is_unseen(character):
            return f"contains a character that readers cannot see (U+{ord(character):04X})"
    return "" if unicodedata.is_normalized("NFC", name) else "is not in Unicode form NFC"


def _is_unseen(character: str) -> bool:
    category = unicodedata.category(character)
    is_odd_space = category == "Zs" and character != " "
    return category in _UNSEEN or is_odd_space or is_invisible(character)


def is_invisible(character: str) -> bool:
    """Return True for control and format characters, fillers, variation selectors and the blank of
    Braille.
    """
    code = ord(character)
    is_ignored = code in _BLANK or any(low <= code <= high for low, high in _SELECTORS)
    return is_ignored or unicodedata.category(character) in ("Cc", "Cf")


def as_named(names: Any) -> Any:
    """Convert names to Unicode form NFC.

    Args:
        names: A name, a list of names, or a mapping with names as keys. Other objects are returned
            as they are.
    """
    if isinstance(names, str):
        return unicodedata.normalize("NFC", names)
    if isinstance(names, Mapping):
        normalized = {as_named(name): value for name, value in names.items()}
        if len(normalized) < len(names):  # ambiguous: unchanged, it does not match a column
            return names
        return normalized
    if isinstance(names, list | tuple):
        return [as_named(name) for name in names]
    return names


def without(names: Iterable[Any], excluded: Container[Any]) -> list[Any]:
    """Return the names that are not excluded, in their order.

    Args:
        names: Names, also those of columns that are not strings.
        excluded: Excluded names, or a mapping or index of them.
    """
    return [name for name in names if name not in excluded]
