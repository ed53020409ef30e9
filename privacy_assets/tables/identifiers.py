"""Direct identifiers, known by their form: e-mail addresses, phone and payment card numbers, IBANs."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

SHARE = 0.2  # of the rows: from here on a column is one of identifiers
_LOOKED_AT, _LONGEST = 5000, 500  # different values, and characters of each
_EMAIL = re.compile(r"[^\s@<>,;:]+@[^\s@<>,;:]+\.[A-Za-z]{2,}")
_PHONE = re.compile(r"(\+|00)\d[\d ()./-]{6,20}|[(]?0\d+[ ()/-][\d ()/-]{5,18}|[(]?\d{3}[)]?[ .-]\d{3}[ .-]\d{4}")
_CARD = re.compile(r"\d([ -]?\d){12,18}")
_IBAN = re.compile(r"[A-Z]{2}\d{2}( ?[A-Z0-9]){11,30}")


def identifier_in(texts: np.ndarray, rows: np.ndarray) -> str:
    """What a column of different ``texts``, each in so many ``rows``, holds in words; empty for none of these."""
    step = -(-len(texts) // _LOOKED_AT)
    texts, rows = texts[::step], rows[::step]
    for what, found in _FORMS.items():
        hits = np.fromiter((found(text[:_LONGEST].strip()) for text in texts), dtype=bool, count=len(texts))
        if rows[hits].sum() >= SHARE * rows.sum():
            return what
    return ""


def _is_phone(text: str) -> bool:
    return 8 <= sum(c.isdigit() for c in text) <= 15 and _PHONE.fullmatch(text) is not None


def _is_card(text: str) -> bool:
    """Luhn's rule: from the right, every second digit twice, and the sum of all digits ends in 0."""
    if not _CARD.fullmatch(text):
        return False
    digits = [int(c) for c in reversed(text) if c.isdigit()]
    return sum(digits[::2] + [sum(divmod(2 * digit, 10)) for digit in digits[1::2]]) % 10 == 0


def _is_iban(text: str) -> bool:
    """ISO 13616: with the first four characters at the end, and letters as numbers, it is 1 modulo 97."""
    if not _IBAN.fullmatch(text):
        return False
    plain = text.replace(" ", "")
    return int("".join(str(int(c, 36)) for c in plain[4:] + plain[:4])) % 97 == 1


_FORMS: dict[str, Callable[[str], bool]] = {
    "e-mail addresses": lambda text: _EMAIL.search(text) is not None,
    "phone numbers": _is_phone,
    "payment card numbers": _is_card,
    "bank account numbers": _is_iban,
}
