"""Values of a column and their long stretches of characters, as hashes that can be looked up."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from privacy_assets.tables.column import Column, ranked

_SIGNS = re.compile(r"[\W_]+")
_END = "\n"  # no text has one once signs are gone
_TURN, _FIRST, _SECOND = (np.uint64(x) for x in (29, 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9))


@dataclass(frozen=True, eq=False)
class Pieces:
    """What stands in a column: different ``texts``, and which is ``held`` (m,) by which row (m,) of ``size``."""

    texts: Sequence[str]
    held: np.ndarray
    rows: np.ndarray
    size: int

    def of_length(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Hashes (p,) of all values and of their stretches of ``length`` characters, and the row (p,) of each."""
        whole = pd.util.hash_array(np.array(self.texts, dtype=object), categorize=False).astype(np.uint64)
        text = np.arange(len(self.texts))
        stretches, within = _stretches(self.texts, length)
        hashes = np.concatenate([whole, stretches])
        texts = np.concatenate([text, within])
        order = np.argsort(texts, kind="stable")
        hashes, counts = hashes[order], np.bincount(texts, minlength=len(self.texts))
        starts = np.cumsum(counts) - counts
        times = counts[self.held]
        offset = np.arange(times.sum()) - np.repeat(np.cumsum(times) - times, times)
        return hashes[np.repeat(starts[self.held], times) + offset], np.repeat(self.rows, times)


def pieces_of(column: Column) -> Pieces:
    """The texts of a column: letters and digits, in one case."""
    (codes,), different = ranked([column])
    plain = [_SIGNS.sub("", str(value).casefold()) for value in different.objects()]
    own, texts = pd.factorize(np.array([*plain, ""], dtype=object))  # those that differ in case or signs are one
    held = own[codes]  # -1, missing, takes the last: what has nothing but signs says nothing
    rows = np.flatnonzero(held != own[-1])
    return Pieces(texts.tolist(), held[rows], rows, len(column))


def together(parts: Sequence[Pieces]) -> Pieces:
    """What stands in several columns of one table."""
    starts = np.cumsum([0, *(len(part.texts) for part in parts)])
    held = [part.held + start for part, start in zip(parts, starts[:-1], strict=True)]
    texts = [text for part in parts for text in part.texts]
    return Pieces(texts, np.concatenate(held), np.concatenate([part.rows for part in parts]), parts[0].size)


def holders_of(pieces: np.ndarray, people: np.ndarray, few: int) -> tuple[np.ndarray, np.ndarray]:
    """The different ``pieces`` (p,) that at most ``few`` of ``people`` (p,) have, and of these the first of each."""
    order = np.lexsort((people, pieces))
    pieces, people = pieces[order], people[order]
    new = np.append(True, pieces[1:] != pieces[:-1]) if len(pieces) else np.empty(0, dtype=bool)
    pair = new | np.append(True, people[1:] != people[:-1]) if len(pieces) else new
    which = np.cumsum(new) - 1
    rare = np.bincount(which[pair], minlength=int(new.sum())) <= few
    return pieces[new][rare], people[new][rare]


def _stretches(texts: Sequence[str], length: int) -> tuple[np.ndarray, np.ndarray]:
    """Hashes (p,) of all stretches of ``length`` characters, and the text (p,) of each."""
    joined = _END.join([*texts, ""])
    characters = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    if len(characters) < length:
        return np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int64)
    end = characters == ord(_END)
    text = np.cumsum(end) - end
    starts = np.flatnonzero(text[: len(text) - length + 1] == text[length - 1 :])
    starts = starts[~end[starts + length - 1]]
    return _windows(characters.astype(np.uint64), length)[starts], text[starts]


def _windows(characters: np.ndarray, length: int) -> np.ndarray:
    """Hash of each window of ``length`` characters: of halves, from hashes of their halves."""
    if length == 1:
        return _mixed(characters, np.uint64(0))
    left = _windows(characters, length - length // 2)
    right = left if length % 2 == 0 else _windows(characters, length // 2)
    count = len(characters) - length + 1
    return _mixed(left[:count], right[length - length // 2 :][:count])


def _mixed(left: np.ndarray, right: np.ndarray | np.uint64) -> np.ndarray:
    """One hash of two, of which the order matters."""
    mixed = (left * _FIRST) ^ (right + _FIRST + (left << _TURN))
    mixed = (mixed ^ (mixed >> _TURN)) * _SECOND
    return mixed ^ (mixed >> _TURN)
