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
_MIN_DISTANCE = 1e-6  # smaller distances count as this


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
        entries = self._entries(people)
        return np.append(self.ratio, np.float32(0))[entries]

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

    def _entries_by(self, keys: np.ndarray, people: np.ndarray) -> np.ndarray:
        """Return the position of the entry with the key of each of ``people`` (m,) and the largest
        ratio, -1 without one; shape (m,).
        """
        order = np.lexsort([self.ratio, keys])
        last = np.searchsorted(keys[order], people, side="right") - 1
        entries = np.append(order, -1)[last]
        keys_of_entries = np.append(keys, np.uint64(0))[entries]
        return np.where(keys_of_entries == people, entries, -1)

    def most_by_release(self, above: float) -> list[tuple[int, float]]:
        """Return the published tables to which most people with a ratio above ``above`` owe it.

        Args:
            above: Ratio.

        Returns:
            Number of the published table and share of all people, largest share first.
        """
        releases, counts = np.unique(self.release[self.ratio > above], return_counts=True)
        order = np.argsort(-counts, kind="stable")
        shares = counts / len(self.people)
        return [(int(releases[i]), float(shares[i])) for i in order]

    def merged(self, latest: Ledger) -> Ledger:
        """Merge the ledger of a later table by maximum.

        Args:
            latest: Ledger of that table.

        Returns:
            The people of ``latest``, and those seen less than ``KEPT_DAYS`` days before it.
        """
        days = int(latest.seen.max(initial=0)) - self.seen.astype(np.int64)
        is_absent = ~np.isin(self.people, latest.people) & ~np.isin(self.plain, latest.plain)
        remains = is_absent & (days < KEPT_DAYS)

        present = np.column_stack([latest.people, latest.plain])
        entries = self._entries(present)
        earlier_ratio = np.append(self.ratio, np.float32(0))[entries]
        earlier_release = np.append(self.release, np.uint64(0))[entries]
        largest_ratio = np.maximum(latest.ratio, earlier_ratio)
        is_closer = latest.ratio > earlier_ratio
        closest_release = np.where(is_closer, latest.release, earlier_release)

        people = np.concatenate([latest.people, self.people[remains]])
        plain = np.concatenate([latest.plain, self.plain[remains]])
        ratio = np.concatenate([largest_ratio, self.ratio[remains]])
        seen = np.concatenate([latest.seen, self.seen[remains]])
        release = np.concatenate([closest_release, self.release[remains]])
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
            ledger = cls(*(table[name].to_numpy() for name in _FIELDS))
        except (ValueError, KeyError, OSError):
            raise Damaged("the ledger of disclosure cannot be read") from None
        if not ledger._is_valid():
            raise Damaged("the ledger of disclosure has other contents")
        return ledger

    def _is_valid(self) -> bool:
        """Return True if the arrays have the dtypes, order and range of a ledger."""
        for name, dtype in _FIELDS.items():
            if getattr(self, name).dtype != dtype:
                return False
        is_ascending = np.all(self.people[1:] > self.people[:-1])
        return bool(is_ascending and np.all(self.ratio >= 0))


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
    n_people = int(people.max(initial=-1)) + 1
    largest_ratios = np.zeros(n_people)
    largest_isolation = np.zeros(n_people)
    if n_people > 1:
        isolation = distance_to_other_subjects(real, people, device)
        nearest = nearest_rows(real, synthetic, device=device).distances[:, 0]
        ratios = isolation / np.maximum(nearest, _MIN_DISTANCE)
        np.maximum.at(largest_ratios, people, ratios)
        np.maximum.at(largest_isolation, people, isolation)
    return largest_ratios.astype(np.float32), largest_isolation
