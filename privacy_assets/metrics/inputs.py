"""Inputs of metrics: the tables of one release and values derived from them."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import Field

from privacy_assets.errors import InputError
from privacy_assets.infra.progress import Progress, silent
from privacy_assets.stats.subjects import Subjects, order_by_content
from privacy_assets.tables.column import row_ids
from privacy_assets.tables.contract import REAL_ROLES
from privacy_assets.tables.encoding import EncodedTable, MatrixCoding, TabularEncoder
from privacy_assets.tables.schema import TableSchema
from privacy_assets.tables.table import Table

if TYPE_CHECKING:
    from privacy_assets.distances.embedder import Embedder


@dataclass(frozen=True, eq=False)
class Views:
    """Values derived earlier from the tables of one release, by role.

    Attributes:
        encoder: Fitted encoder.
        encoded: Encoded tables.
        row_ids: See :attr:`EvaluationInputs.row_ids`.
        embedded: Embedded rows. Empty if there is no embedder.
        fingerprints: Signed fingerprints; keyed for the real tables and the embedder.
    """

    encoder: TabularEncoder
    encoded: Mapping[str, EncodedTable]
    row_ids: Mapping[str, np.ndarray]
    embedded: Mapping[str, np.ndarray]
    fingerprints: Mapping[str, str]


@dataclass(frozen=True, eq=False)
class EvaluationInputs:
    """Tables of one release.

    If there are no subject codes and no row of train occurs in another real table, equal rows count as one subject: a
    split that keeps equal rows together, as ``tables.splitting`` does without a subject, makes them one observation.

    Attributes:
        schema: Schema of all tables.
        tables: Tables by role: "train", "holdout", "synthetic" and optionally "reference".
        subjects: Int64 subject code of each row by real role, coded jointly. A role without codes has one subject per
            row.
        generated: Columns with generated values by role, which are not in ``tables``; for real roles also the subject.
        embedder: Contrastive encoder. None: embedded statistics are not measurable.
        earlier_releases: Stacked rows of all earlier releases, with some or all columns of the schema. None: there are
            none.
        seed: Seed of :meth:`rng`.
        device: torch device name.
        progress: Receives progress messages.
        notes: Notes for the report on how the tables were read.
        views: Values that need not be derived again. ``dataclasses.replace`` drops them, because they belong to these
            tables.
    """

    schema: TableSchema
    tables: Mapping[str, Table]
    subjects: Mapping[str, np.ndarray] = field(default_factory=dict)
    generated: Mapping[str, Table] = field(default_factory=dict)
    embedder: Embedder | None = None
    earlier_releases: Table | None = None
    seed: int = 0
    device: str = "cpu"
    progress: Progress = silent
    notes: tuple[str, ...] = ()
    views: InitVar[Views | None] = None

    def __post_init__(self, views: Views | None) -> None:
        if views is not None:
            self.__dict__.update(
                encoder=views.encoder,
                _encoded=dict(views.encoded),
                row_ids=views.row_ids,
                _embedded=dict(views.embedded),
                fingerprints=views.fingerprints,
            )
        seen: dict[str, np.ndarray] = {role: np.unique(codes) for role, codes in self.subjects.items()}
        for role, codes in self.subjects.items():
            if len(codes) != len(self.tables[role]):
                raise InputError(f"{len(codes)} subject codes for {len(self.tables[role])} rows", where=role)
        for first, second in itertools.combinations([role for role in REAL_ROLES if role in seen], 2):
            shared = np.intersect1d(seen[first], seen[second]).size
            if shared:
                fix = "split by subject, so that holdout and reference contain only people not seen by the generator"
                raise InputError(f"{shared} subjects are in both {first} and {second}", where=second, fix=fix)

    @property
    def train(self) -> Table:
        """Rows that the generator was trained on."""
        return self.tables["train"]

    @property
    def holdout(self) -> Table:
        """Real rows that the generator has not seen."""
        return self.tables["holdout"]

    @property
    def synthetic(self) -> Table:
        """Table to be published."""
        return self.tables["synthetic"]

    @property
    def reference(self) -> Table | None:
        """Further unseen real rows, for calibrated attacks, or None."""
        return self.tables.get("reference")

    @property
    def real_roles(self) -> list[str]:
        """Roles of the real tables that are present."""
        return [role for role in REAL_ROLES if role in self.tables]

    @property
    def real(self) -> list[Table]:
        """Real tables that are present."""
        return [self.tables[role] for role in self.real_roles]

    def place_of(self, row: int) -> tuple[str, int]:
        """Return the role of a row, and its zero-based position in that role's table.

        Args:
            row: Position in all real tables stacked.
        """
        for role in self.real_roles:
            if row < len(self.tables[role]):
                break
            row -= len(self.tables[role])
        return role, row

    def coded(self) -> tuple[np.ndarray, MatrixCoding]:
        """Return the coded cells of all real tables stacked, shape (columns, rows), and the coding."""
        coding = MatrixCoding.fit(self.real, self.schema)
        return np.concatenate([coding.code(table) for table in self.real], axis=1), coding

    @cached_property
    def encoder(self) -> TabularEncoder:
        """Encoder fitted on all real rows, so that it cannot favor train or holdout."""
        return TabularEncoder.fit(self.real, self.schema, others=[self.synthetic])

    @cached_property
    def _encoded(self) -> dict[str, EncodedTable]:
        return {}

    def encoded(self, role: str) -> EncodedTable:
        """Return the encoded rows of a table. Cached.

        Args:
            role: Role of the table.
        """
        if role not in self._encoded:
            self._encoded[role] = self.encoder.transform(self.tables[role])
        return self._encoded[role]

    @cached_property
    def _embedded(self) -> dict[str, np.ndarray]:
        return {}

    def embedded(self, role: str) -> np.ndarray:
        """Return the float32 embedding of the rows of a table, shape (n, dim). Cached.

        Args:
            role: Role of the table.

        Raises:
            InputError: There is no embedder.
        """
        if self.embedder is None:
            raise InputError("no embedder was passed", fix="pass an embedder or disable embedded statistics")
        if role not in self._embedded:
            self._embedded[role] = self.embedder.embed(self.tables[role], device=self.device)
        return self._embedded[role]

    @cached_property
    def row_ids(self) -> Mapping[str, np.ndarray]:
        """Int64 row ids by role. Two rows have equal ids if they agree in every column (missing equals missing)."""
        roles = list(self.tables)
        return dict(zip(roles, row_ids([self.tables[role].columns for role in roles], self.schema.names), strict=True))

    @cached_property
    def _subject_codes(self) -> dict[str, np.ndarray]:
        roles = self.real_roles
        unseen = np.concatenate([self.row_ids[role] for role in roles if role != "train"])
        if not self.subjects and not np.intersect1d(self.row_ids["train"], unseen).size:
            return {role: self.row_ids[role] for role in roles}
        codes: dict[str, np.ndarray] = {}
        start = 1 + max((int(c.max()) for c in self.subjects.values() if len(c)), default=-1)
        for role in roles:
            if role in self.subjects:
                codes[role] = np.asarray(self.subjects[role], dtype=np.int64)
            else:
                codes[role] = np.arange(start, start + len(self.tables[role]), dtype=np.int64)
                start += len(self.tables[role])
        return codes

    def subject_codes(self, *roles: str) -> np.ndarray:
        """Return the subject codes of ``roles`` stacked, recoded to 0..s-1 in order of the original codes."""
        stacked = np.concatenate([self._subject_codes[role] for role in roles])
        return np.unique(stacked, return_inverse=True)[1].astype(np.int64)

    @cached_property
    def labelled_subjects(self) -> Subjects:
        """Subjects of the rows of train and holdout stacked, numbered by row content."""
        return self._subjects_of("train", "holdout")

    @cached_property
    def all_subjects(self) -> Subjects:
        """Subjects of the rows of all real tables stacked. Subjects of the reference are non-members."""
        return self._subjects_of(*self.real_roles)

    def _subjects_of(self, *roles: str) -> Subjects:
        row_ids = np.concatenate([self.row_ids[role] for role in roles])
        return Subjects.by_content(self.subject_codes(*roles), len(self.train), row_ids)

    @cached_property
    def fingerprints(self) -> Mapping[str, str]:
        """Order-independent content fingerprint of each table. Keep those of private tables private, or key them."""
        earlier = {} if self.earlier_releases is None else {"earlier_releases": self.earlier_releases}
        whole = {role: self.tables[role].with_columns(*own.columns.values()) for role, own in self.generated.items()}
        return {role: table.fingerprint for role, table in {**self.tables, **whole, **earlier}.items()}

    def rng(self, purpose: str) -> np.random.Generator:
        """Return a random generator, determined by :attr:`seed` and ``purpose``.

        Args:
            purpose: Name of the use. Different names give independent generators.
        """
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(zlib.crc32(purpose.encode()),)))


SMALLEST = 1_000  # rows; fewer have almost no power
Budget = Annotated[int | None, Field(ge=SMALLEST)]


def target_rows(inputs: EvaluationInputs, roles: Sequence[str], most: int | None, purpose: str) -> np.ndarray | None:
    """Return the positions of all rows of randomly drawn subjects.

    Subjects are drawn in random order, each with all rows, until ``most`` rows are reached. The draw does not depend on
    membership, so the labels of the drawn subjects are exchangeable if all labels are. It does not depend on the order
    of rows either.

    Args:
        inputs: Tables of one release.
        roles: Roles of the tables to stack.
        most: Maximum number of rows; at least one subject is drawn. None: no maximum.
        purpose: Name of the random stream.

    Returns:
        Ascending int64 positions in the stacked tables, or None to use all rows.
    """
    if most is None or most >= sum(len(inputs.tables[role]) for role in roles):
        return None
    content = np.concatenate([inputs.row_ids[role] for role in roles])
    codes = order_by_content(inputs.subject_codes(*roles), content)
    order = inputs.rng(purpose).permutation(int(codes.max()) + 1)
    rows = np.cumsum(np.bincount(codes)[order])
    drawn = np.zeros(len(order), dtype=bool)
    drawn[order[: max(1, int(np.searchsorted(rows, most, side="right")))]] = True
    return np.flatnonzero(drawn[codes])
