"""Ledger of disclosure: for each person, how close published rows have come to the person's own
rows.

The closeness of a row is its isolation (distance to the nearest real row of another person) divided
by the distance to the nearest published row. Merging by maximum over nights is equivalent to
searching the union of all published tables, and needs time and memory proportional to the number of
people only.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from privacy_assets.distances.nearest import distance_to_other_subjects, nearest_rows
from privacy_assets.errors import Damaged
from privacy_assets.tables.encoding import EncodedTable

# after which the entry of an absent person is removed; partitions may be published once a month
KEPT_DAYS = 60
_FIELDS = {
    "people": np.uint64,
    "plain": np.uint64,
    "ratio": np.float32,
    "seen": np.uint32,
    "release": np.uint64,
}
_LEAST = 1e-6  # smaller distances count as this


@dataclass(frozen=True, eq=False)
class Ledger:
    """Largest closeness of each person's rows to any published row.

    Attributes:
        people: Keyed pseudonyms of exact ids (:func:`.splitting.pseudonyms`), ascending and
            distinct, uint64 of shape (n,).
        plain: Keyed pseudonyms of their plain forms, uint64 of shape (n,). A person whose id gets
            another spelling keeps the entry.
        ratio: Largest isolation divided by distance over all published tables, float32 of shape
            (n,), at least 0.
        seen: Day on which the person was last in the real tables, uint32 of shape (n,), from an
            epoch of the caller.
        release: Number of the published table that has the largest ratio, uint64 of shape (n,); see
            :meth:`of`.
    """

    people: np.ndarray
    plain: np.ndarray
    ratio: np.ndarray
    seen: np.ndarray
    release: np.ndarray

    @classmethod
    def of(cls, people: np.ndarray, ratio: np.ndarray, release: int = 0, day: int = 0) -> Self:
        """Create the ledger of one published table.

        Args:
            people: Pseudonyms of the people in the real tables, uint64 of shape (m, 2), in any
                order. A person may occur several times.
            ratio: Their ratios, shape (m,).
            release: Number by which the caller recognizes the published table.
            day: Day of publication.

        Returns:
            The ledger, with the largest ratio of each person.
        """
        exact, first_rows, codes = np.unique(people[:, 0], return_index=True, return_inverse=True)
        plain = people[first_rows, 1]
        largest = np.zeros(len(exact), np.float32)
        np.maximum.at(largest, codes, ratio.astype(np.float32))
        seen = np.full(len(exact), day, np.uint32)
        return cls(exact, plain, largest, seen, np.full(len(exact), release, np.uint64))

    def ratios(self, people: np.ndarray) -> np.ndarray:
        """Return the ratio of each of ``people``, pseudonyms of shape (m, 2); 0 for people without
        an entry.

        Returns:
            float32 of shape (m,).
        """
        return np.append(self.ratio, np.float32(0))[self._entries(people)]

    def _entries(self, people: np.ndarray) -> np.ndarray:
        """Return the position of the entry of each of ``people`` (m, 2), -1 without an entry; shape
        (m,).

        If the exact id and the plain form have different entries, it is the one with the larger
        ratio.
        """
        by_exact = self._entries_by(self.people, people[:, 0])
        by_plain = self._entries_by(self.plain, people[:, 1])
        ratio = np.append(self.ratio, np.float32(-1))  # -1, no entry, selects the last
        return np.where(ratio[by_plain] > ratio[by_exact], by_plain, by_exact)

    def _entries_by(self, keys: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        """Return the position of the entry with each wanted key and the largest ratio, -1 without
        one; shape (m,).
        """
        order = np.lexsort([self.ratio, keys])
        last = np.searchsorted(keys[order], wanted, side="right") - 1
        entries = np.append(order, -1)[last]
        return np.where(np.append(keys, np.uint64(0))[entries] == wanted, entries, -1)

    def most_by_release(self, above: float) -> list[tuple[int, float]]:
        """Return the published tables to which most people with a ratio above ``above`` owe it.

        Args:
            above: Ratio.

        Returns:
            Number of the published table and share of all people, largest share first.
        """
        releases, counts = np.unique(self.release[self.ratio > above], return_counts=True)
        order = np.argsort(-counts, kind="stable")
        return [(int(releases[at]), float(counts[at] / len(self.people))) for at in order]

    def merged(self, latest: Ledger) -> Ledger:
        """Merge the ledger of a later table by maximum.

        Args:
            latest: Ledger of that table.

        Returns:
            The people of ``latest``, and those seen less than ``KEPT_DAYS`` days before it.
        """
        days = int(latest.seen.max(initial=0)) - self.seen.astype(np.int64)
        is_absent = ~np.isin(self.people, latest.people) & ~np.isin(self.plain, latest.plain)
        kept = is_absent & (days < KEPT_DAYS)
        people = np.concatenate([latest.people, self.people[kept]])
        plain = np.concatenate([latest.plain, self.plain[kept]])
        present = np.column_stack([latest.people, latest.plain])
        entries = self._entries(present)
        before = np.append(self.ratio, np.float32(0))[entries]
        earlier = np.append(self.release, np.uint64(0))[entries]
        ratio = np.concatenate([np.maximum(latest.ratio, before), self.ratio[kept]])
        release = np.concatenate(
            [np.where(latest.ratio > before, latest.release, earlier), self.release[kept]]
        )
        seen = np.concatenate([latest.seen, self.seen[kept]])
        order = np.argsort(people)
        return Ledger(people[order], plain[order], ratio[order], seen[order], release[order])

    def to_bytes(self) -> bytes:
        """Return a Parquet file. With the same library versions, equal ledgers give equal bytes."""
        buffer = io.BytesIO()
        columns = {name: getattr(self, name) for name in _FIELDS}
        pq.write_table(pa.table(columns), buffer, compression="zstd", version="2.6")
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read a file written by :meth:`to_bytes`.

        Args:
            data: Content of the file.

        Returns:
            The ledger.

        Raises:
            Damaged: The file is not a ledger.
        """
        try:
            table = pq.read_table(io.BytesIO(data))
            found = cls(*(table[name].to_numpy() for name in _FIELDS))
        except (ValueError, KeyError, OSError):
            raise Damaged("the ledger of disclosure cannot be read") from None
        dtypes = [getattr(found, name).dtype == dtype for name, dtype in _FIELDS.items()]
        if not (
            all(dtypes)
            and np.all(found.people[1:] > found.people[:-1])
            and np.all(found.ratio >= 0)
        ):
            raise Damaged("the ledger of disclosure has other contents")
        return found


def disclosure_ratios(
    real: EncodedTable, synthetic: EncodedTable, people: np.ndarray, device: str
) -> tuple[np.ndarray, np.ndarray]:
    """Measure how close a table comes to each person.

    Args:
        real: Rows of all real tables, shape (N,).
        synthetic: Rows of the synthetic table, encoded by the same encoder.
        people: Person of each real row, codes 0..s-1, int64 of shape (N,).
        device: Torch device of the search.

    Returns:
        Ratio (float32) and isolation (float64) of each person, shape (s,): the largest over the
        person's rows. The isolation of a row that another person also has is 0, and so is its
        ratio.
    """
    largest = np.zeros((2, int(people.max(initial=-1)) + 1))
    if len(largest[0]) > 1:
        isolation = distance_to_other_subjects(real, people, device)
        nearest = nearest_rows(real, synthetic, device=device).distances[:, 0]
        np.maximum.at(largest[0], people, isolation / np.maximum(nearest, _LEAST))
        np.maximum.at(largest[1], people, isolation)
    return largest[0].astype(np.float32), largest[1]
