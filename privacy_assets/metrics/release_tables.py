"""Tables of one release, and values derived from them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from privacy_assets.errors import InputError
from privacy_assets.stats.subjects import Subjects
from privacy_assets.tables.column import row_ids
from privacy_assets.tables.encoding import EncodedTable, MatrixCoding, TabularEncoder
from privacy_assets.tables.inference import REAL_ROLES
from privacy_assets.tables.relations import Relation
from privacy_assets.tables.schema import TableSchema
from privacy_assets.tables.table import Table

if TYPE_CHECKING:
    from privacy_assets.distances.embedder import Embedder

_Value = TypeVar("_Value")


@dataclass(frozen=True, eq=False)
class ReleaseTables:
    """Tables of one release.

    Attributes:
        schema: Schema of all tables.
        tables: Tables by role: "train", "holdout", "synthetic" and optionally "reference".
        subjects: Int64 subject code of each row by real role, coded jointly. A role without codes
            has one subject per row.
        generated: Columns with generated values by role, which are not in ``tables``; for real
            roles also the subject.
        earlier_releases: Stacked rows of all earlier releases, with some or all columns of the
            schema. None: there are none.
        pseudonyms: Keyed pseudonyms of the person of each row by real role, uint64 of shape (n, 2),
            see :func:`.splitting.pseudonyms`. Empty: unknown, as outside of a pipeline.
        ruled: Columns in which the threshold rule replaced the values of few people, see
            :mod:`privacy_assets.tables.threshold_rule`. Empty outside of a pipeline.
        relations: Relations between the columns of the real rows.
        notes: Notes for the report on how the tables were read.
    """

    schema: TableSchema
    tables: Mapping[str, Table]
    subjects: Mapping[str, np.ndarray] = field(default_factory=dict)
    generated: Mapping[str, Table] = field(default_factory=dict)
    earlier_releases: Table | None = None
    pseudonyms: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False)
    ruled: tuple[str, ...] = ()
    relations: tuple[Relation, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for role, codes in self.subjects.items():
            n_rows = len(self.tables[role])
            if len(codes) != n_rows:
                raise InputError(
                    f"there are {len(codes)} subject codes for {n_rows} rows", where=role
                )
        coded_roles = [role for role in REAL_ROLES if role in self.subjects]
        for first, second in itertools.combinations(coded_roles, 2):
            n_shared = np.intersect1d(self.subjects[first], self.subjects[second]).size
            if n_shared:
                raise InputError(
                    f"{n_shared} subjects are in both {first} and {second}",
                    where=second,
                    fix="split by subject, so that holdout and reference contain only people not"
                    " seen by the generator",
                )

    @property
    def reference(self) -> Table | None:
        """Further real rows of non-members, for calibrated attacks, or None."""
        return self.tables.get("reference")

    @property
    def real_roles(self) -> list[str]:
        """Roles of the real tables that are present."""
        return [role for role in REAL_ROLES if role in self.tables]

    @property
    def real(self) -> list[Table]:
        """Real tables that are present."""
        return [self.tables[role] for role in self.real_roles]

    def role_and_position(self, row: int) -> tuple[str, int]:
        """Return the role of a row, and its zero-based position in that role's table.

        Args:
            row: Position in all real tables stacked, 0 to n - 1.

        Returns:
            Role, and position in the table of that role.
        """
        for role in self.real_roles:
            if row < len(self.tables[role]):
                break
            row -= len(self.tables[role])
        return role, row

    def coded_cells(self) -> tuple[np.ndarray, MatrixCoding]:
        """Return the coded cells of all real tables stacked, shape (columns, rows), and the
        coding.
        """
        coding = MatrixCoding.fit(self.real, self.schema)
        cells = [coding.code(table) for table in self.real]
        return np.concatenate(cells, axis=1), coding


class DerivedValues:
    """Values derived from the tables of a release, each computed once.

    If there are no subject codes and no row of train occurs in another real table, equal rows count
    as one subject: a split that keeps equal rows together, as ``tables.splitting`` does without a
    subject, makes them one observation.

    Args:
        release: The tables.
        encoder: The encoder. None: it is fitted.
        row_ids: Row ids by role. None: they are computed.
        encoded: Encoded rows by role. Rows of other roles are encoded when they are read.
    """

    def __init__(
        self,
        release: ReleaseTables,
        *,
        encoder: TabularEncoder | None = None,
        row_ids: Mapping[str, np.ndarray] | None = None,
        encoded: Mapping[str, EncodedTable] | None = None,
    ) -> None:
        self._release = release
        self._encoder = encoder
        self._row_ids = row_ids
        self._encoded = dict(encoded or {})
        self._embedder: Embedder | None = None
        self._embeddings: dict[str, np.ndarray] = {}
        self._shared: dict[Any, Any] = {}

    def is_of(self, release: ReleaseTables) -> bool:
        """Return whether these values are derived from these tables and subjects.

        Args:
            release: The tables.
        """
        own = self._release
        return release.tables is own.tables and release.subjects is own.subjects

    @property
    def encoder(self) -> TabularEncoder:
        """Encoder fitted on all real rows, so that it cannot favor train or holdout."""
        if self._encoder is None:
            release = self._release
            later = [release.tables["synthetic"]]
            self._encoder = TabularEncoder.fit(release.real, release.schema, later=later)
        return self._encoder

    def encoded(self, role: str) -> EncodedTable:
        """Return the encoded rows of a table. Cached.

        Args:
            role: Role of the table.

        Returns:
            The rows, in the order of the table.
        """
        if role not in self._encoded:
            self._encoded[role] = self.encoder.transform(self._release.tables[role])
        return self._encoded[role]

    def encoded_tables(self, roles: Iterable[str]) -> list[EncodedTable]:
        """Return the encoded rows of several tables, see :meth:`encoded`.

        Args:
            roles: Roles of the tables.

        Returns:
            The encoded tables, in the order of the roles.
        """
        return [self.encoded(role) for role in roles]

    def embeddings(self, embedder: Embedder) -> dict[str, np.ndarray]:
        """Return the embeddings by one embedder that were computed so far. The caller adds others.

        Args:
            embedder: Embedder of the rows. Those by another embedder are dropped.

        Returns:
            Embedding of each row, float32 (n, dim), by role.
        """
        if embedder is not self._embedder:
            self._embedder = embedder
            self._embeddings = {}
        return self._embeddings

    @property
    def row_ids(self) -> Mapping[str, np.ndarray]:
        """Int64 row ids by role. Two rows have equal ids if they agree in every column (missing
        equals missing).
        """
        if self._row_ids is None:
            tables = self._release.tables
            columns = [table.columns for table in tables.values()]
            ids = row_ids(columns, self._release.schema.names)
            self._row_ids = dict(zip(tables, ids, strict=True))
        return self._row_ids

    def stacked_row_ids(self, roles: Iterable[str]) -> np.ndarray:
        """Return the row ids of tables stacked, see :attr:`row_ids`.

        Args:
            roles: Roles of the tables, in the order of the stack.

        Returns:
            Ids, int64 (n,).
        """
        return stacked(self.row_ids, roles)

    @cached_property
    def _subject_codes(self) -> dict[str, np.ndarray]:
        roles = self._release.real_roles
        subjects = self._release.subjects
        non_member_ids = self.stacked_row_ids(role for role in roles if role != "train")
        is_train_separate = not np.intersect1d(self.row_ids["train"], non_member_ids).size
        if not subjects and is_train_separate:
            return {role: self.row_ids[role] for role in roles}

        largest = [int(codes.max()) for codes in subjects.values() if len(codes)]
        next_code = max(largest, default=-1) + 1
        codes_by_role: dict[str, np.ndarray] = {}
        for role in roles:
            if role in subjects:
                codes_by_role[role] = np.asarray(subjects[role], dtype=np.int64)
                continue
            end = next_code + len(self._release.tables[role])
            codes_by_role[role] = np.arange(next_code, end, dtype=np.int64)
            next_code = end
        return codes_by_role

    def subject_codes(self, *roles: str) -> np.ndarray:
        """Return the subject codes of tables stacked, numbered in order of the original codes.

        Args:
            *roles: Roles of the tables, in the order of the stack.

        Returns:
            Codes 0 to s - 1 of the rows, int64 (n,).
        """
        codes = stacked(self._subject_codes, roles)
        return np.unique(codes, return_inverse=True)[1].astype(np.int64)

    @cached_property
    def labeled_subjects(self) -> Subjects:
        """Subjects of the rows of train and holdout stacked, numbered by row content."""
        return self._subjects_of("train", "holdout")

    @cached_property
    def all_subjects(self) -> Subjects:
        """Subjects of the rows of all real tables stacked. Subjects of the reference are
        non-members.
        """
        return self._subjects_of(*self._release.real_roles)

    def _subjects_of(self, *roles: str) -> Subjects:
        n_train = len(self._release.tables["train"])
        row_ids = self.stacked_row_ids(roles)
        return Subjects.by_content(self.subject_codes(*roles), n_train, row_ids)

    @cached_property
    def fingerprints(self) -> Mapping[str, str]:
        """Order-independent content fingerprint of each table. Keep those of private tables
        private, or key them.
        """
        tables = dict(self._release.tables)
        for role, generated in self._release.generated.items():
            tables[role] = tables[role].with_columns(*generated.columns.values())
        if self._release.earlier_releases is not None:
            tables["earlier_releases"] = self._release.earlier_releases
        return {role: table.fingerprint for role, table in tables.items()}

    def once(self, key: tuple[Any, ...], make: Callable[[], _Value]) -> _Value:
        """Return ``make()``, computed once for each key.

        Args:
            key: Hashable values that determine the result.
            make: Computes the result.

        Returns:
            What ``make`` returned.
        """
        if key not in self._shared:
            self._shared[key] = make()
        return cast("_Value", self._shared[key])


def stacked(arrays: Mapping[str, np.ndarray], roles: Iterable[str]) -> np.ndarray:
    """Stack the arrays of some roles.

    Args:
        arrays: Arrays by role.
        roles: Roles, in the order of the stack.
    """
    return np.concatenate([arrays[role] for role in roles])
