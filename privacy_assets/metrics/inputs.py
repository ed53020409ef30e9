"""Inputs of metrics: the tables of one release and values derived from them."""

from __future__ import annotations

import copy
import itertools
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

import numpy as np
from pydantic import Field

from privacy_assets.errors import Damaged, InputError
from privacy_assets.infra.objects import Location, local_copy
from privacy_assets.infra.progress import Progress, silent
from privacy_assets.metrics.ledger import Ledger, disclosure_ratios
from privacy_assets.stats.subjects import Subjects, order_by_content
from privacy_assets.tables.arrays import array_digest, load_arrays, refusing_damage, save_arrays
from privacy_assets.tables.column import row_ids
from privacy_assets.tables.contract import REAL_ROLES
from privacy_assets.tables.encoding import EncodedTable, MatrixCoding, TabularEncoder
from privacy_assets.tables.relations import Relation
from privacy_assets.tables.schema import TableSchema
from privacy_assets.tables.table import Table

if TYPE_CHECKING:
    from privacy_assets.distances.embedder import Embedder


_Made = TypeVar("_Made")
_FILE, _EMBEDDER = "inputs.bin", "embedder"


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
        people: Keyed pseudonyms of the person of each row by real role, uint64 of shape (n, 2), see
            :func:`.splitting.pseudonyms`. Empty: unknown, as outside of a pipeline.
        ledger: Disclosure by person over all published tables. None: there are none, or ``people``
            is empty.
        release: Number and day of the synthetic table in the ledger, see :meth:`.Ledger.of`.
        ruled: Columns in which the threshold rule replaced the values of few people, see
            :mod:`privacy_assets.tables.threshold_rule`. Empty outside of a pipeline.
        generator: Description of the generator's protections, see
            :func:`.data_privacy.protection_states`. None: unknown.
        seed: Seed of :meth:`rng`.
        device: torch device name.
        progress: Receives progress messages.
        notes: Notes for the report on how the tables were read.
        relations: Relations between the columns of the real rows.
        seal: Signed record of these tables. Empty: not signed.
    """

    schema: TableSchema
    tables: Mapping[str, Table]
    subjects: Mapping[str, np.ndarray] = field(default_factory=dict)
    generated: Mapping[str, Table] = field(default_factory=dict)
    embedder: Embedder | None = None
    earlier_releases: Table | None = None
    people: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False)
    ledger: Ledger | None = field(default=None, repr=False)
    release: tuple[int, int] = (0, 0)
    ruled: tuple[str, ...] = ()
    generator: Mapping[str, Any] | None = None
    seed: int = 0
    device: str = "cpu"
    progress: Progress = silent
    notes: tuple[str, ...] = ()
    relations: tuple[Relation, ...] = ()
    seal: bytes = field(default=b"", repr=False)
    _made: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        seen: dict[str, np.ndarray] = {
            role: np.unique(codes) for role, codes in self.subjects.items()
        }
        for role, codes in self.subjects.items():
            if len(codes) != len(self.tables[role]):
                raise InputError(
                    f"there are {len(codes)} subject codes for {len(self.tables[role])} rows",
                    where=role,
                )
        for first, second in itertools.combinations(
            [role for role in REAL_ROLES if role in seen], 2
        ):
            shared = np.intersect1d(seen[first], seen[second]).size
            if shared:
                fix = (
                    "split by subject, so that holdout and reference contain only people not seen"
                    " by the generator"
                )
                raise InputError(
                    f"{shared} subjects are in both {first} and {second}", where=second, fix=fix
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
        """Return the coded cells of all real tables stacked, shape (columns, rows), and the
        coding.
        """
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
        roles = list(self.tables)
        return dict(
            zip(
                roles,
                row_ids([self.tables[role].columns for role in roles], self.schema.names),
                strict=True,
            )
        )

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
        """Return the subject codes of ``roles`` stacked, recoded to 0..s-1 in order of the original
        codes.
        """
        stacked = np.concatenate([self._subject_codes[role] for role in roles])
        return np.unique(stacked, return_inverse=True)[1].astype(np.int64)

    @cached_property
    def labelled_subjects(self) -> Subjects:
        """Subjects of the rows of train and holdout stacked, numbered by row content."""
        return self._subjects_of("train", "holdout")

    @cached_property
    def all_subjects(self) -> Subjects:
        """Subjects of the rows of all real tables stacked. Subjects of the reference are
        non-members.
        """
        return self._subjects_of(*self.real_roles)

    def _subjects_of(self, *roles: str) -> Subjects:
        row_ids = np.concatenate([self.row_ids[role] for role in roles])
        return Subjects.by_content(self.subject_codes(*roles), len(self.train), row_ids)

    @cached_property
    def table_ratios(self) -> tuple[np.ndarray, np.ndarray]:
        """Ratio and isolation of each of :attr:`all_subjects`, see :func:`.disclosure_ratios`,
        without the ledger.

        The synthetic table is stacked on the earlier releases; only columns that all of these have
        are used.
        """
        asked, earlier = self, self.earlier_releases
        if earlier is not None:
            shared = [name for name in self.schema.names if name in earlier.columns]
            tables = {role: table.select(shared) for role, table in self.tables.items()}
            tables["synthetic"] = Table.stack([earlier.select(shared), tables["synthetic"]])
            asked = EvaluationInputs(tables["train"].schema, tables, device=self.device)
        real = EncodedTable.stack([asked.encoded(role) for role in asked.real_roles])
        return disclosure_ratios(
            real, asked.encoded("synthetic"), self.all_subjects.codes, self.device
        )

    @property
    def merged_ledger(self) -> Ledger | None:
        """The ledger after publication of the synthetic table. None if :attr:`people` is empty.

        Raises:
            InputError: There is a ledger, but no people.
        """
        if not self.people:
            if self.ledger is not None:
                raise InputError("there is a ledger of disclosure, but no pseudonyms of people")
            return None
        latest = Ledger.of(self._pseudonyms, self.table_ratios[0], *self.release)
        return latest if self.ledger is None else self.ledger.merged(latest)

    @property
    def ratios(self) -> np.ndarray:
        """Largest ratio of each of :attr:`all_subjects` over all published tables and the synthetic
        one, float32.
        """
        merged = self.merged_ledger
        return self.table_ratios[0] if merged is None else merged.ratios(self._pseudonyms)

    @property
    def _pseudonyms(self) -> np.ndarray:
        """Pseudonyms of each of :attr:`all_subjects`, uint64 of shape (s, 2)."""
        found = np.zeros((len(self.all_subjects), 2), np.uint64)
        found[self.all_subjects.codes] = np.concatenate(
            [self.people[role] for role in self.real_roles]
        )
        return found

    def once(self, make: Callable[..., _Made], *args: Any) -> _Made:
        """Return ``make(self, *args)``, computed once, for values that several metrics use.

        :meth:`with_settings` keeps it.

        Args:
            make: Function of hashable arguments and of the tables, subjects and seed of these
                inputs.
            *args: The arguments.
        """
        key = make, args, self.seed
        if key not in self._made:
            self._made[key] = make(self, *args)
        return cast("_Made", self._made[key])

    @cached_property
    def fingerprints(self) -> Mapping[str, str]:
        """Order-independent content fingerprint of each table. Keep those of private tables
        private, or key them.
        """
        earlier = (
            {} if self.earlier_releases is None else {"earlier_releases": self.earlier_releases}
        )
        whole = {
            role: self.tables[role].with_columns(*own.columns.values())
            for role, own in self.generated.items()
        }
        return {
            role: table.fingerprint for role, table in {**self.tables, **whole, **earlier}.items()
        }

    def with_settings(self, **changes: Any) -> EvaluationInputs:
        """Return the inputs with other settings. Unlike ``dataclasses.replace``, it keeps the
        values derived so far.

        Args:
            **changes: New values of attributes that do not change the tables.
        """
        other = copy.copy(self)
        other.__dict__.update(changes)
        return other

    def with_copy(self, people: int) -> EvaluationInputs:
        """Return smaller inputs whose synthetic table is a verbatim copy of train.

        Args:
            people: Expected number of people that are kept in each real table. Smaller tables are
                kept whole.

        Returns:
            The inputs. Every person is drawn at random and has all rows. There are no generated
            columns and no earlier releases.
        """
        codes = {role: self.all_subjects.codes[rows] for role, rows in self._rows_by_role().items()}
        drawn = self.rng("copy of train").random(len(self.all_subjects))
        rows = {
            role: np.flatnonzero(drawn[own] * np.unique(own).size < people)
            for role, own in codes.items()
        }
        of = {**dict(zip(rows, rows, strict=True)), "synthetic": "train"}
        rows["synthetic"] = rows["train"]
        smaller = EvaluationInputs(
            self.schema,
            {role: self.tables[source].take(rows[role]) for role, source in of.items()},
            {role: own[rows[role]] for role, own in self.subjects.items()},
            embedder=self.embedder, seed=self.seed, device=self.device,
        )  # fmt: skip
        return smaller.with_settings(
            encoder=self.encoder,
            fingerprints={},
            row_ids={role: self.row_ids[source][rows[role]] for role, source in of.items()},
            _encoded={role: self.encoded(source).take(rows[role]) for role, source in of.items()},
            _embedded={
                role: self._embedded[source][rows[role]]
                for role, source in of.items()
                if source in self._embedded
            },
        )

    def _rows_by_role(self) -> dict[str, slice]:
        """Return the positions of each real table in all of them stacked."""
        ends = np.cumsum([0, *(len(table) for table in self.real)]).tolist()
        return {
            role: slice(*span)
            for role, span in zip(self.real_roles, itertools.pairwise(ends), strict=True)
        }

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of all tables and derived values that :meth:`save` writes. Keep it
        private.
        """
        return array_digest(*self._arrays())

    def save(self, folder: Path) -> None:
        """Write tables, derived values, embedder and seal into a folder, for :meth:`load`.

        Args:
            folder: Folder.
        """
        save_arrays(folder / _FILE, *self._arrays(), self.seal)
        if self.embedder is not None:
            self.embedder.save(folder / _EMBEDDER)

    @classmethod
    def load(cls, folder: Location) -> EvaluationInputs:
        """Load the files that :meth:`save` wrote. The seal is not verified.

        Args:
            folder: Folder.

        Raises:
            Damaged: If a file is missing or contains something else.
        """
        with refusing_damage(folder / _FILE, "prepare"):
            facts, arrays, seal = load_arrays(folder / _FILE)
            tables, generated = (
                {role: Table.of_arrays(one, arrays) for role, one in facts[part].items()}
                for part in ("tables", "generated")
            )
            subjects, people = (
                {role: next(arrays) for role in facts[part]} for part in ("subjects", "people")
            )
            embedder = (
                None
                if facts["embedder"] is None
                else _StoredEmbedder(folder / _EMBEDDER, *facts["embedder"])
            )
            schema = TableSchema.from_json(facts["schema"])
            inputs = cls(
                schema, tables, subjects, generated, cast("Embedder | None", embedder), seal=seal
            )
            return inputs.with_settings(
                people=people,
                ruled=tuple(facts["ruled"]),
                notes=tuple(facts["notes"]),
                encoder=TabularEncoder.from_json(facts["encoder"]),
                row_ids={role: next(arrays) for role in tables},
                _encoded={
                    role: EncodedTable(next(arrays), next(arrays), next(arrays)) for role in tables
                },
                _embedded={} if embedder is None else {role: next(arrays) for role in tables},
            )

    def _arrays(self) -> tuple[dict[str, Any], list[np.ndarray]]:
        facts: dict[str, Any] = {
            "schema": self.schema.to_json(),
            "encoder": self.encoder.to_json(),
            "subjects": list(self.subjects),
            "people": list(self.people),
            "embedder": None
            if self.embedder is None
            else [self.embedder.fingerprint(), self.embedder.description],
            "ruled": list(self.ruled),
            "notes": list(self.notes),
        }
        arrays: list[np.ndarray] = []
        for part, tables in (("tables", self.tables), ("generated", self.generated)):
            found = {role: table.to_arrays() for role, table in tables.items()}
            facts[part] = {role: one for role, (one, _) in found.items()}
            arrays += [cells for _, columns in found.values() for cells in columns]
        arrays += [
            *self.subjects.values(),
            *self.people.values(),
            *(self.row_ids[role] for role in self.tables),
        ]
        encoded = [self.encoded(role) for role in self.tables]
        arrays += [cells for one in encoded for cells in (one.numeric, one.codes, one.sizes)]
        return facts, arrays + [
            self.embedded(role) for role in self.tables if self.embedder is not None
        ]

    def rng(self, purpose: str) -> np.random.Generator:
        """Return a random generator, determined by :attr:`seed` and ``purpose``.

        Args:
            purpose: Name of the use. Different names give independent generators.
        """
        return np.random.default_rng(
            np.random.SeedSequence(self.seed, spawn_key=(zlib.crc32(purpose.encode()),))
        )


@dataclass(frozen=True, eq=False)
class _StoredEmbedder:
    """Embedder of a release, loaded only to embed rows whose embeddings are not stored."""

    folder: Location
    digest: str
    description: Mapping[str, Any]

    @cached_property
    def _loaded(self) -> Embedder:
        from privacy_assets.distances.embedder import Embedder

        with local_copy(self.folder) as folder:
            found = Embedder.load(folder)
        if found.fingerprint() != self.digest:
            text = "the embedder is not the one that was signed"
            raise Damaged(text, path=str(self.folder), redo=("embed", "prepare"))
        return found

    def embed(self, table: Table, device: str = "cpu") -> np.ndarray:
        return self._loaded.embed(table, device=device)

    def fingerprint(self) -> str:
        return self.digest


SMALLEST = 1_000  # rows; fewer have almost no power
Budget = Annotated[int | None, Field(ge=SMALLEST)]


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
    content = np.concatenate([inputs.row_ids[role] for role in roles])
    codes = order_by_content(inputs.subject_codes(*roles), content)
    order = inputs.rng(purpose).permutation(int(codes.max()) + 1)
    rows = np.cumsum(np.bincount(codes)[order])
    drawn = np.zeros(len(order), dtype=bool)
    drawn[order[: max(1, int(np.searchsorted(rows, most, side="right")))]] = True
    return np.flatnonzero(drawn[codes])
