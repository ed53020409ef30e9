"""What metrics are given: the tables of one release, and what is derived from them once."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from privacy_assets.compute.progress import Progress, silent
from privacy_assets.errors import InputError
from privacy_assets.stats.subjects import Subjects
from privacy_assets.tables.coding import Coding
from privacy_assets.tables.column import row_ids
from privacy_assets.tables.encoding import EncodedTable, Encoder
from privacy_assets.tables.schema import TableSchema
from privacy_assets.tables.table import Table

if TYPE_CHECKING:
    from privacy_assets.embedding.embedder import Embedder

REAL_ROLES = ("train", "holdout", "reference")


@dataclass(frozen=True, eq=False)
class Views:
    """What was derived from the tables of one release before, by role; ``embedded`` only where there is an embedder.

    ``fingerprints`` are those that were signed: keyed those of real tables, that of the embedder among them.
    """

    encoder: Encoder
    encoded: Mapping[str, EncodedTable]
    row_ids: Mapping[str, np.ndarray]
    embedded: Mapping[str, np.ndarray]
    fingerprints: Mapping[str, str]


@dataclass(frozen=True, eq=False)
class MetricInputs:
    """The tables of one release by role, of one schema.

    ``tables`` holds "train", "holdout", "synthetic" and optionally "reference". ``subjects`` gives, per real role, the
    int64 subject code of each row, coded jointly over the real roles; a role without codes has one subject per row.
    ``released`` are all rows that were released before, with columns of the schema: all, or some of them.
    ``generated`` are, by the same roles, the columns in which new values are allowed, and of real rows the subject,
    which stand in no table of ``tables``. ``notes`` say how the tables were read, for the report.
    Without any codes, and when no row of train stands in another real table, equal rows count as one subject: a split
    that keeps equal rows together (``tables.splitting`` without a subject does) makes them one witness.
    ``device`` is a torch device name. All randomness comes from :meth:`rng`. What ``views`` holds is not
    derived again; ``dataclasses.replace`` leaves them behind, since they are those of these tables.
    """

    schema: TableSchema
    tables: Mapping[str, Table]
    subjects: Mapping[str, np.ndarray] = field(default_factory=dict)
    generated: Mapping[str, Table] = field(default_factory=dict)
    embedder: Embedder | None = None
    released: Table | None = None
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
                fix = "split by subject, so that holdout and reference hold only people the generator has not seen"
                raise InputError(f"{shared} subjects stand in {first} and in {second}", where=second, fix=fix)

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
        """The table to be published."""
        return self.tables["synthetic"]

    @property
    def reference(self) -> Table | None:
        """Further unseen real rows, for calibrated attacks; None when there are none."""
        return self.tables.get("reference")

    @property
    def real_roles(self) -> list[str]:
        """The roles of the real tables that are there."""
        return [role for role in REAL_ROLES if role in self.tables]

    @property
    def real(self) -> list[Table]:
        """The real tables that are there."""
        return [self.tables[role] for role in self.real_roles]

    def place_of(self, row: int) -> tuple[str, int]:
        """The role, and the zero-based row of that role's table, of a row of all real tables stacked."""
        for role in self.real_roles:
            if row < len(self.tables[role]):
                break
            row -= len(self.tables[role])
        return role, row

    def coded(self) -> tuple[np.ndarray, Coding]:
        """The cells of all real tables stacked, shape (columns, rows), and what their codes mean."""
        coding = Coding.fit(self.real, self.schema)
        return np.concatenate([coding.code(table) for table in self.real], axis=1), coding

    @cached_property
    def encoder(self) -> Encoder:
        """Encoder fitted on all real rows alike, so that it cannot favour train or holdout."""
        return Encoder.fit(self.real, self.schema, others=[self.synthetic])

    @cached_property
    def _encoded(self) -> dict[str, EncodedTable]:
        return {}

    def encoded(self, role: str) -> EncodedTable:
        """Encoded rows of ``role``; computed once."""
        if role not in self._encoded:
            self._encoded[role] = self.encoder.transform(self.tables[role])
        return self._encoded[role]

    @cached_property
    def _embedded(self) -> dict[str, np.ndarray]:
        return {}

    def embedded(self, role: str) -> np.ndarray:
        """Float32 embedding of the rows of ``role``, shape (n, dim); InputError without an embedder."""
        if self.embedder is None:
            raise InputError("no embedder was given", fix="pass an embedder or leave the embedded statistics out")
        if role not in self._embedded:
            self._embedded[role] = self.embedder.embed(self.tables[role], device=self.device)
        return self._embedded[role]

    @cached_property
    def row_ids(self) -> Mapping[str, np.ndarray]:
        """Per role, int64 ids that are equal exactly when two rows agree in every column (missing equals missing)."""
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
        """Subject codes of the rows of ``roles`` stacked, recoded to 0..s-1 in order of the original codes."""
        stacked = np.concatenate([self._subject_codes[role] for role in roles])
        return np.unique(stacked, return_inverse=True)[1].astype(np.int64)

    @cached_property
    def people(self) -> Subjects:
        """Whose the rows of train and holdout stacked are, numbered by the content of their rows."""
        return self._people_of("train", "holdout")

    @cached_property
    def everyone(self) -> Subjects:
        """Whose the rows of all real tables stacked are: where the reference serves for nothing else, it is unseen."""
        return self._people_of(*self.real_roles)

    def _people_of(self, *roles: str) -> Subjects:
        row_ids = np.concatenate([self.row_ids[role] for role in roles])
        return Subjects.by_content(self.subject_codes(*roles), len(self.train), row_ids)

    @cached_property
    def fingerprints(self) -> Mapping[str, str]:
        """Order-free content fingerprint of each table. Keep those of private tables private, or key them."""
        released = {} if self.released is None else {"released": self.released}
        whole = {role: self.tables[role].with_columns(*own.columns.values()) for role, own in self.generated.items()}
        return {role: table.fingerprint for role, table in {**self.tables, **whole, **released}.items()}

    def rng(self, purpose: str) -> np.random.Generator:
        """Generator for one purpose, independent of every other purpose under the same seed."""
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(zlib.crc32(purpose.encode()),)))
