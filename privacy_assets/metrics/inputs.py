"""Inputs of metrics: the tables of one release and values derived from them."""

from __future__ import annotations

import copy
import itertools
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

import numpy as np
from pydantic import Field

from privacy_assets.errors import Damaged, InputError
from privacy_assets.infra.objects import Location
from privacy_assets.infra.progress import Progress, silent
from privacy_assets.infra.storage import storage_of
from privacy_assets.metrics.ledger import Ledger, disclosure_ratios
from privacy_assets.stats.subjects import Subjects, order_by_content
from privacy_assets.tables.arrays import array_digest, load_arrays, reporting_damage, save_arrays
from privacy_assets.tables.column import row_ids
from privacy_assets.tables.encoding import EncodedTable, MatrixCoding, TabularEncoder
from privacy_assets.tables.inference import REAL_ROLES
from privacy_assets.tables.relations import Relation
from privacy_assets.tables.schema import TableSchema
from privacy_assets.tables.table import Table

if TYPE_CHECKING:
    from privacy_assets.distances.embedder import Embedder


_Value = TypeVar("_Value")
_FILE = "inputs.bin"
_EMBEDDER = "embedder"


@dataclass(frozen=True, eq=False)
class EvaluationInputs:
    """Tables of one release.

    If there are no subject codes and no row of train occurs in another real table, equal rows count
    as one subject: a split that keeps equal rows together, as ``tables.splitting`` does without a
    subject, makes them one observation.

    Attributes:
        schema: Schema of all tables.
        tables: Tables by role: "train", "holdout", "synthetic" and optionally "reference".
        subjects: Int64 subject code of each row by real role, coded jointly. A role without codes
            has one subject per row.
        generated: Columns with generated values by role, which are not in ``tables``; for real
            roles also the subject.
        embedder: Contrastive encoder. None: embedded statistics are not measurable.
        earlier_releases: Stacked rows of all earlier releases, with some or all columns of the
            schema. None: there are none.
        pseudonyms: Keyed pseudonyms of the person of each row by real role, uint64 of shape (n, 2),
            see :func:`.splitting.pseudonyms`. Empty: unknown, as outside of a pipeline.
        ledger: Disclosure by person over all published tables. None: there are none, or
            ``pseudonyms`` is empty.
        release: Number and day of the synthetic table in the ledger, see :meth:`.Ledger.of`.
        ruled: Columns in which the threshold rule replaced the values of few people, see
            :mod:`privacy_assets.tables.threshold_rule`. Empty outside of a pipeline.
        generator: Description of the generator's protections, see
            :func:`.protection_states`. None: unknown.
        seed: Seed of :meth:`rng`.
        device: torch device name.
        progress: Receives progress messages.
        notes: Notes for the report on how the tables were read.
        relations: Relations between the columns of the real rows.
        envelope: Signed file of these tables. Empty: not signed.
    """

    schema: TableSchema
    tables: Mapping[str, Table]
    subjects: Mapping[str, np.ndarray] = field(default_factory=dict)
    generated: Mapping[str, Table] = field(default_factory=dict)
    embedder: Embedder | None = None
    earlier_releases: Table | None = None
    pseudonyms: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False)
    ledger: Ledger | None = field(default=None, repr=False)
    release: tuple[int, int] = (0, 0)
    ruled: tuple[str, ...] = ()
    generator: Mapping[str, Any] | None = None
    seed: int = 0
    device: str = "cpu"
    progress: Progress = silent
    notes: tuple[str, ...] = ()
    relations: tuple[Relation, ...] = ()
    envelope: bytes = field(default=b"", repr=False)
    _cached_values: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)

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

    @cached_property
    def encoder(self) -> TabularEncoder:
        """Encoder fitted on all real rows, so that it cannot favor train or holdout."""
        return TabularEncoder.fit(self.real, self.schema, later=[self.synthetic])

    @cached_property
    def _encoded(self) -> dict[str, EncodedTable]:
        return {}

    def encoded(self, role: str) -> EncodedTable:
        """Return the encoded rows of a table. Cached.

        Args:
            role: Role of the table.

        Returns:
            The rows, in the order of the table.
        """
        if role not in self._encoded:
            self._encoded[role] = self.encoder.transform(self.tables[role])
        return self._encoded[role]

    def encoded_tables(self, roles: Iterable[str]) -> list[EncodedTable]:
        """Return the encoded rows of several tables, see :meth:`encoded`.

        Args:
            roles: Roles of the tables.

        Returns:
            The encoded tables, in the order of the roles.
        """
        return [self.encoded(role) for role in roles]

    @cached_property
    def _embedded(self) -> dict[str, np.ndarray]:
        return {}

    def embedded(self, role: str) -> np.ndarray:
        """Embed the rows of a table. Cached.

        Args:
            role: Role of the table.

        Returns:
            Embedding of each row, float32 (n, dim).

        Raises:
            InputError: There is no embedder.
        """
        if self.embedder is None:
            raise InputError(
                "no embedder was passed", fix="pass an embedder or disable embedded statistics"
            )
        if role not in self._embedded:
            self._embedded[role] = self.embedder.embed(self.tables[role], device=self.device)
        return self._embedded[role]

    @cached_property
    def row_ids(self) -> Mapping[str, np.ndarray]:
        """Int64 row ids by role. Two rows have equal ids if they agree in every column (missing
        equals missing).
        """
        tables = [table.columns for table in self.tables.values()]
        ids = row_ids(tables, self.schema.names)
        return dict(zip(self.tables, ids, strict=True))

    def stacked_row_ids(self, roles: Iterable[str]) -> np.ndarray:
        """Return the row ids of tables stacked, see :attr:`row_ids`.

        Args:
            roles: Roles of the tables, in the order of the stack.

        Returns:
            Ids, int64 (n,).
        """
        return _stack(self.row_ids, roles)

    @cached_property
    def _subject_codes(self) -> dict[str, np.ndarray]:
        roles = self.real_roles
        non_member_ids = self.stacked_row_ids(role for role in roles if role != "train")
        is_train_separate = not np.intersect1d(self.row_ids["train"], non_member_ids).size
        if not self.subjects and is_train_separate:
            return {role: self.row_ids[role] for role in roles}

        largest = [int(codes.max()) for codes in self.subjects.values() if len(codes)]
        next_code = max(largest, default=-1) + 1
        codes_by_role: dict[str, np.ndarray] = {}
        for role in roles:
            if role in self.subjects:
                codes_by_role[role] = np.asarray(self.subjects[role], dtype=np.int64)
                continue
            end = next_code + len(self.tables[role])
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
        stacked = _stack(self._subject_codes, roles)
        return np.unique(stacked, return_inverse=True)[1].astype(np.int64)

    @cached_property
    def labeled_subjects(self) -> Subjects:
        """Subjects of the rows of train and holdout stacked, numbered by row content."""
        return self._subjects_of("train", "holdout")

    @cached_property
    def all_subjects(self) -> Subjects:
        """Subjects of the rows of all real tables stacked. Subjects of the reference are
        non-members.
        """
        return self._subjects_of(*self.real_roles)

    def _subjects_of(self, *roles: str) -> Subjects:
        row_ids = self.stacked_row_ids(roles)
        return Subjects.by_content(self.subject_codes(*roles), len(self.train), row_ids)

    @cached_property
    def table_ratios(self) -> tuple[np.ndarray, np.ndarray]:
        """Ratio and isolation of each of :attr:`all_subjects`, see :func:`.disclosure_ratios`,
        without the ledger.

        The synthetic table is stacked on the earlier releases; only columns that all of these have
        are used.
        """
        inputs = self._with_stacked_releases()
        real = EncodedTable.stack(inputs.encoded_tables(inputs.real_roles))
        synthetic = inputs.encoded("synthetic")
        return disclosure_ratios(real, synthetic, self.all_subjects.codes, self.device)

    def _with_stacked_releases(self) -> EvaluationInputs:
        """Return inputs whose synthetic table includes the earlier releases, reduced to columns
        that all of these have.
        """
        earlier = self.earlier_releases
        if earlier is None:
            return self
        shared = [name for name in self.schema.names if name in earlier.columns]
        tables = {role: table.select(shared) for role, table in self.tables.items()}
        tables["synthetic"] = Table.stack([earlier.select(shared), tables["synthetic"]])
        return EvaluationInputs(tables["train"].schema, tables, device=self.device)

    @property
    def merged_ledger(self) -> Ledger | None:
        """The ledger after publication of the synthetic table. None if :attr:`pseudonyms` is empty.

        Raises:
            InputError: There is a ledger, but no people.
        """
        if not self.pseudonyms:
            if self.ledger is not None:
                raise InputError("there is a ledger of disclosure, but no pseudonyms of people")
            return None
        ratios, _ = self.table_ratios
        latest = Ledger.of(self._pseudonyms, ratios, *self.release)
        if self.ledger is None:
            return latest
        return self.ledger.merged(latest)

    @property
    def ratios(self) -> np.ndarray:
        """Largest ratio of each of :attr:`all_subjects` over all published tables and the synthetic
        one, float32.
        """
        merged = self.merged_ledger
        if merged is None:
            return self.table_ratios[0]
        return merged.ratios(self._pseudonyms)

    @property
    def _pseudonyms(self) -> np.ndarray:
        """Pseudonyms of each of :attr:`all_subjects`, uint64 of shape (s, 2)."""
        by_row = _stack(self.pseudonyms, self.real_roles)
        by_subject = np.zeros((len(self.all_subjects), 2), np.uint64)
        by_subject[self.all_subjects.codes] = by_row
        return by_subject

    def once(self, make: Callable[..., _Value], *args: Any) -> _Value:
        """Return ``make(self, *args)``, computed once, for values that several metrics use.

        :meth:`with_settings` keeps it.

        Args:
            make: Function of hashable arguments and of the tables, subjects and seed of these
                inputs.
            *args: The arguments.

        Returns:
            What ``make`` returned.
        """
        key = (make, args, self.seed)
        if key not in self._cached_values:
            self._cached_values[key] = make(self, *args)
        return cast("_Value", self._cached_values[key])

    @cached_property
    def fingerprints(self) -> Mapping[str, str]:
        """Order-independent content fingerprint of each table. Keep those of private tables
        private, or key them.
        """
        tables = dict(self.tables)
        for role, generated in self.generated.items():
            tables[role] = self.tables[role].with_columns(*generated.columns.values())
        if self.earlier_releases is not None:
            tables["earlier_releases"] = self.earlier_releases
        return {role: table.fingerprint for role, table in tables.items()}

    def with_settings(self, **changes: Any) -> EvaluationInputs:
        """Return the inputs with other settings. Unlike ``dataclasses.replace``, it keeps the
        values derived so far.

        Args:
            **changes: New values of attributes that do not change the tables.

        Returns:
            A shallow copy with these values.
        """
        changed = copy.copy(self)
        changed.__dict__.update(changes)
        return changed

    def with_copy(self, n_subjects: int) -> EvaluationInputs:
        """Return smaller inputs whose synthetic table is a verbatim copy of train.

        Args:
            n_subjects: Expected number of people that are kept in each real table. Smaller tables
                are kept whole.

        Returns:
            The inputs. Every person is drawn at random and has all rows. There are no generated
            columns and no earlier releases.
        """
        draws = self.rng("copy of train").random(len(self.all_subjects))
        tables: dict[str, Table] = {}
        ids: dict[str, np.ndarray] = {}
        subjects: dict[str, np.ndarray] = {}
        encoded: dict[str, EncodedTable] = {}
        embedded: dict[str, np.ndarray] = {}
        for role, codes in self._subjects_by_role().items():
            rows = np.flatnonzero(draws[codes] * np.unique(codes).size < n_subjects)
            tables[role] = self.tables[role].take(rows)
            ids[role] = self.row_ids[role][rows]
            encoded[role] = self.encoded(role).take(rows)
            if role in self.subjects:
                subjects[role] = self.subjects[role][rows]
            if role in self._embedded:
                embedded[role] = self._embedded[role][rows]
        tables["synthetic"] = tables["train"]
        ids["synthetic"] = ids["train"]
        encoded["synthetic"] = encoded["train"]
        if "train" in embedded:
            embedded["synthetic"] = embedded["train"]

        smaller = EvaluationInputs(
            self.schema,
            tables,
            subjects,
            embedder=self.embedder,
            seed=self.seed,
            device=self.device,
        )
        return smaller.with_settings(
            encoder=self.encoder,
            fingerprints={},
            row_ids=ids,
            _encoded=encoded,
            _embedded=embedded,
        )

    def _subjects_by_role(self) -> dict[str, np.ndarray]:
        """Return the codes of :attr:`all_subjects` of the rows of each real table."""
        ends = np.cumsum([len(table) for table in self.real])
        codes = np.split(self.all_subjects.codes, ends[:-1])
        return dict(zip(self.real_roles, codes, strict=True))

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of all tables and derived values that :meth:`save` writes. Keep it
        private.
        """
        return array_digest(*self._facts_and_arrays())

    def save(self, folder: Path) -> None:
        """Write tables, derived values, embedder and envelope into a folder, for :meth:`load`.

        Args:
            folder: Folder.
        """
        save_arrays(folder / _FILE, *self._facts_and_arrays(), self.envelope)
        if self.embedder is not None:
            self.embedder.save(folder / _EMBEDDER)

    @classmethod
    def load(cls, folder: Location) -> EvaluationInputs:
        """Load the files that :meth:`save` wrote. The envelope is not verified.

        Args:
            folder: Folder.

        Returns:
            The inputs, with the derived values that were saved.

        Raises:
            Damaged: If a file is missing or contains something else.
        """
        with reporting_damage(folder / _FILE, "prepare"):
            facts, arrays, envelope = load_arrays(folder / _FILE)
            # in the same order as in _facts_and_arrays
            tables = _read_tables(facts["tables"], arrays)
            generated = _read_tables(facts["generated"], arrays)
            subjects = _read_arrays(facts["subjects"], arrays)
            pseudonyms = _read_arrays(facts["pseudonyms"], arrays)
            embedder = None
            if facts["embedder"] is not None:
                embedder = _StoredEmbedder(folder / _EMBEDDER, *facts["embedder"])
            schema = TableSchema.from_json(facts["schema"])
            inputs = cls(
                schema,
                tables,
                subjects,
                generated,
                cast("Embedder | None", embedder),
                envelope=envelope,
            )
            derived: dict[str, Any] = {
                "pseudonyms": pseudonyms,
                "ruled": tuple(facts["ruled"]),
                "notes": tuple(facts["notes"]),
                "encoder": TabularEncoder.from_json(facts["encoder"]),
                "row_ids": _read_arrays(tables, arrays),
                "_encoded": _read_encoded(tables, arrays),
                "_embedded": {},
            }
            if embedder is not None:
                derived["_embedded"] = _read_arrays(tables, arrays)
            return inputs.with_settings(**derived)

    def _facts_and_arrays(self) -> tuple[dict[str, Any], list[np.ndarray]]:
        """Return JSON-compatible facts, and all arrays in the order in which :meth:`load` reads
        them.
        """
        facts: dict[str, Any] = {
            "schema": self.schema.to_json(),
            "encoder": self.encoder.to_json(),
            "subjects": list(self.subjects),
            "pseudonyms": list(self.pseudonyms),
            "embedder": None,
            "ruled": list(self.ruled),
            "notes": list(self.notes),
        }
        if self.embedder is not None:
            facts["embedder"] = [self.embedder.fingerprint(), self.embedder.description]
        arrays: list[np.ndarray] = []
        for key, tables in (("tables", self.tables), ("generated", self.generated)):
            facts[key] = {}
            for role, table in tables.items():
                facts[key][role], table_arrays = table.to_arrays()
                arrays.extend(table_arrays)
        arrays.extend(self.subjects.values())
        arrays.extend(self.pseudonyms.values())
        arrays.extend(self.row_ids[role] for role in self.tables)
        for role in self.tables:
            encoded = self.encoded(role)
            arrays.extend((encoded.numeric, encoded.codes, encoded.sizes))
        if self.embedder is not None:
            arrays.extend(self.embedded(role) for role in self.tables)
        return facts, arrays

    def rng(self, purpose: str) -> np.random.Generator:
        """Return a random generator, determined by :attr:`seed` and ``purpose``.

        Args:
            purpose: Name of the use. Different names give independent generators.

        Returns:
            The generator.
        """
        purpose_key = zlib.crc32(purpose.encode())
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(purpose_key,)))


def _stack(arrays: Mapping[str, np.ndarray], roles: Iterable[str]) -> np.ndarray:
    """Stack the arrays of some roles."""
    return np.concatenate([arrays[role] for role in roles])


def _read_tables(
    facts_by_role: Mapping[str, Mapping[str, Any]], arrays: Iterator[np.ndarray]
) -> dict[str, Table]:
    """Read tables from their facts and the next arrays, by role."""
    return {role: Table.of_arrays(facts, arrays) for role, facts in facts_by_role.items()}


def _read_arrays(roles: Iterable[str], arrays: Iterator[np.ndarray]) -> dict[str, np.ndarray]:
    """Read the next arrays, one for each role."""
    return {role: next(arrays) for role in roles}


def _read_encoded(roles: Iterable[str], arrays: Iterator[np.ndarray]) -> dict[str, EncodedTable]:
    """Read encoded tables from the next arrays, three for each role."""
    return {role: EncodedTable(next(arrays), next(arrays), next(arrays)) for role in roles}


@dataclass(frozen=True, eq=False)
class _StoredEmbedder:
    """Embedder of a release, loaded only to embed rows whose embeddings are not stored."""

    folder: Location
    digest: str
    description: Mapping[str, Any]

    @cached_property
    def _loaded(self) -> Embedder:
        from privacy_assets.distances.embedder import Embedder

        with storage_of(self.folder).local_copy() as folder:
            embedder = Embedder.load(folder)
        if embedder.fingerprint() != self.digest:
            text = "the embedder is not the one that was signed"
            raise Damaged(text, path=str(self.folder), redo=("embed", "prepare"))
        return embedder

    def embed(self, table: Table, device: str = "cpu") -> np.ndarray:
        return self._loaded.embed(table, device=device)

    def fingerprint(self) -> str:
        return self.digest


SMALLEST = 1_000  # rows; fewer have almost no power
MaxTargets = Annotated[int | None, Field(ge=SMALLEST)]


def target_rows(
    inputs: EvaluationInputs, roles: Sequence[str], most: int | None, purpose: str
) -> np.ndarray | None:
    """Return the positions of all rows of randomly drawn subjects.

    Subjects are drawn in random order, each with all rows, until ``most`` rows are reached. The
    draw does not depend on membership, so the labels of the drawn subjects are exchangeable if all
    labels are. It does not depend on the order of rows either.

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
    row_ids = inputs.stacked_row_ids(roles)
    codes = order_by_content(inputs.subject_codes(*roles), row_ids)
    n_subjects = int(codes.max()) + 1
    order = inputs.rng(purpose).permutation(n_subjects)
    n_rows = np.cumsum(np.bincount(codes)[order])
    n_fitting = int(np.searchsorted(n_rows, most, side="right"))
    is_target = np.zeros(n_subjects, dtype=bool)
    is_target[order[: max(1, n_fitting)]] = True
    return np.flatnonzero(is_target[codes])
