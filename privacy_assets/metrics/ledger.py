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
    "exact": np.uint64,
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
        exact: Keyed pseudonyms of exact ids (:func:`.splitting.pseudonyms`), ascending and
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

    exact: np.ndarray
    plain: np.ndarray
    ratio: np.ndarray
    seen: np.ndarray
    release: np.ndarray

    @classmethod
    def of(cls, pseudonyms: np.ndarray, ratio: np.ndarray, release: int = 0, day: int = 0) -> Self:
        """Create the ledger of one published table.

        Args:
            pseudonyms: Pseudonyms of the people in the real tables, uint64 of shape (m, 2), in any
                order. A person may occur several times.
            ratio: Their ratios, shape (m,).
            release: Number by which the caller recognizes the published table.
            day: Day of publication.

        Returns:
            The ledger, with the largest ratio of each person.
        """
        exact, first_rows, codes = np.unique(
            pseudonyms[:, 0], return_index=True, return_inverse=True
        )
        plain = pseudonyms[first_rows, 1]
        largest = np.zeros(len(exact), np.float32)
        np.maximum.at(largest, codes, ratio.astype(np.float32))
        seen = np.full(len(exact), day, np.uint32)
        return cls(exact, plain, largest, seen, np.full(len(exact), release, np.uint64))

    def ratios(self, pseudonyms: np.ndarray) -> np.ndarray:
        """Return the ratio of each person; 0 without an entry.

        Args:
            pseudonyms: Pseudonyms of the people, uint64 of shape (m, 2).

        Returns:
            float32 of shape (m,).
        """
        entries = self._entries(pseudonyms)
        return np.append(self.ratio, np.float32(0))[entries]

    def _entries(self, pseudonyms: np.ndarray) -> np.ndarray:
        """Find the entry of each person.

        If the exact id and the plain form have different entries, the one with the larger ratio
        counts.

        Args:
            pseudonyms: Pseudonyms of the people, uint64 of shape (m, 2).

        Returns:
            Positions of the entries, int64 of shape (m,); -1 without one.
        """
        by_exact = self._entries_by(self.exact, pseudonyms[:, 0])
        by_plain = self._entries_by(self.plain, pseudonyms[:, 1])
        ratio = np.append(self.ratio, np.float32(-1))  # -1, no entry, selects the last
        return np.where(ratio[by_plain] > ratio[by_exact], by_plain, by_exact)

    def _entries_by(self, keys: np.ndarray, keys_of_people: np.ndarray) -> np.ndarray:
        """Find the entry with each key; of several, the one with the largest ratio.

        Args:
            keys: Key of each entry, uint64 of shape (n,).
            keys_of_people: Keys to find, uint64 of shape (m,).

        Returns:
            Positions of the entries, int64 of shape (m,); -1 without one.
        """
        order = np.lexsort([self.ratio, keys])
        last = np.searchsorted(keys[order], keys_of_people, side="right") - 1
        entries = np.append(order, -1)[last]
        keys_of_entries = np.append(keys, np.uint64(0))[entries]
        return np.where(keys_of_entries == keys_of_people, entries, -1)

    def most_by_release(self, above: float) -> list[tuple[int, float]]:
        """Return the published tables to which most people with a ratio above ``above`` owe it.

        Args:
            above: Ratio.

        Returns:
            Number of the published table and share of all people, largest share first.
        """
        releases, counts = np.unique(self.release[self.ratio > above], return_counts=True)
        order = np.argsort(-counts, kind="stable")
        shares = counts / len(self.exact)
        return [(int(releases[i]), float(shares[i])) for i in order]

    def merged(self, latest: Ledger) -> Ledger:
        """Merge the ledger of a later table by maximum.

        Args:
            latest: Ledger of that table.

        Returns:
            The people of ``latest``, and those seen less than ``KEPT_DAYS`` days before it.
        """
        days = int(latest.seen.max(initial=0)) - self.seen.astype(np.int64)
        is_absent = ~np.isin(self.exact, latest.exact) & ~np.isin(self.plain, latest.plain)
        remains = is_absent & (days < KEPT_DAYS)

        present = np.column_stack([latest.exact, latest.plain])
        entries = self._entries(present)
        earlier_ratio = np.append(self.ratio, np.float32(0))[entries]
        earlier_release = np.append(self.release, np.uint64(0))[entries]
        largest_ratio = np.maximum(latest.ratio, earlier_ratio)
        is_closer = latest.ratio > earlier_ratio
        closest_release = np.where(is_closer, latest.release, earlier_release)

        exact = np.concatenate([latest.exact, self.exact[remains]])
        plain = np.concatenate([latest.plain, self.plain[remains]])
        ratio = np.concatenate([largest_ratio, self.ratio[remains]])
        seen = np.concatenate([latest.seen, self.seen[remains]])
        release = np.concatenate([closest_release, self.release[remains]])
        order = np.argsort(exact)
        return Ledger(exact[order], plain[order], ratio[order], seen[order], release[order])

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
        is_ascending = np.all(self.exact[1:] > self.exact[:-1])
        return bool(is_ascending and np.all(self.ratio >= 0))


def disclosure_ratios(
    real: EncodedTable, synthetic: EncodedTable, subject_codes: np.ndarray, device: str
) -> tuple[np.ndarray, np.ndarray]:
    """Measure how close a table comes to each person.

    Args:
        real: Rows of all real tables, shape (N,).
        synthetic: Rows of the synthetic table, encoded by the same encoder.
        subject_codes: Person of each real row, codes 0..s-1, int64 of shape (N,).
        device: Torch device of the search.

    Returns:
        Ratio (float32) and isolation (float64) of each person, shape (s,): the largest over the
        person's rows. The isolation of a row that another person also has is 0, and so is its
        ratio.
    """
    n_subjects = int(subject_codes.max(initial=-1)) + 1
    largest_ratios = np.zeros(n_subjects)
    largest_isolation = np.zeros(n_subjects)
    if n_subjects > 1:
        isolation = distance_to_other_subjects(real, subject_codes, device)
        nearest = nearest_rows(real, synthetic, device=device).distances[:, 0]
        ratios = isolation / np.maximum(nearest, _MIN_DISTANCE)
        np.maximum.at(largest_ratios, subject_codes, ratios)
        np.maximum.at(largest_isolation, subject_codes, isolation)
    return largest_ratios.astype(np.float32), largest_isolation
