"""Inputs of metrics: the tables of one release, values derived from them, and the context of their
evaluation.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar

import numpy as np
from pydantic import Field

from privacy_assets.errors import InputError
from privacy_assets.infra.progress import Progress, silent
from privacy_assets.metrics.ledger import Ledger
from privacy_assets.metrics.release_tables import DerivedValues, ReleaseTables
from privacy_assets.stats.subjects import Subjects, order_by_content
from privacy_assets.tables.encoding import EncodedTable
from privacy_assets.tables.schema import TableSchema
from privacy_assets.tables.table import Table

if TYPE_CHECKING:
    from privacy_assets.distances.embedder import Embedder

_Value = TypeVar("_Value")


@dataclass(frozen=True, eq=False)
class EvaluationContext:
    """Settings of an evaluation, and everything else that is not in the tables.

    Attributes:
        seed: Seed of :meth:`EvaluationInputs.rng`.
        device: torch device name.
        progress: Receives progress messages.
        embedder: Contrastive encoder. None: embedded statistics are not measurable.
        generator: Description of the generator's protections, see
            :func:`.protection_states`. None: unknown.
        ledger: Disclosure by person over all published tables. None: there are none, or the
            pseudonyms of the people are unknown.
        release_number: Number of the synthetic table in the ledger, see :meth:`.Ledger.of`.
        release_day: Day of the synthetic table in the ledger.
        fingerprints: Fingerprints of the tables, for the results. None: they are computed.
        envelope: Signed file of the tables. Empty: not signed.
    """

    seed: int = 0
    device: str = "cpu"
    progress: Progress = silent
    embedder: Embedder | None = None
    generator: Mapping[str, Any] | None = None
    ledger: Ledger | None = field(default=None, repr=False)
    release_number: int = 0
    release_day: int = 0
    fingerprints: Mapping[str, str] | None = None
    envelope: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, eq=False)
class EvaluationInputs:
    """Tables of one release, with everything that metrics use.

    Attributes:
        release: The tables.
        context: Seed, device and everything else that is not in the tables.
        derived: Values derived from the tables.
    """

    release: ReleaseTables
    context: EvaluationContext
    derived: DerivedValues = field(repr=False)

    def __post_init__(self) -> None:
        if not self.derived.is_of(self.release):
            raise ValueError(
                "the derived values belong to other tables; build the inputs by EvaluationInputs.of"
            )

    @classmethod
    def of(cls, release: ReleaseTables, context: EvaluationContext | None = None) -> Self:
        """Return the inputs of tables from which no values have been derived yet.

        Args:
            release: The tables.
            context: Context of the evaluation. None: the defaults.
        """
        return cls(release, context or EvaluationContext(), DerivedValues(release))

    @property
    def schema(self) -> TableSchema:
        """Schema of all tables."""
        return self.release.schema

    @property
    def tables(self) -> Mapping[str, Table]:
        """Tables by role: "train", "holdout", "synthetic" and optionally "reference"."""
        return self.release.tables

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
    def real_roles(self) -> list[str]:
        """Roles of the real tables that are present."""
        return self.release.real_roles

    @property
    def real(self) -> list[Table]:
        """Real tables that are present."""
        return self.release.real

    @property
    def seed(self) -> int:
        """Seed of :meth:`rng`."""
        return self.context.seed

    @property
    def device(self) -> str:
        """torch device name."""
        return self.context.device

    @property
    def progress(self) -> Progress:
        """Receives progress messages."""
        return self.context.progress

    @property
    def embedder(self) -> Embedder | None:
        """Contrastive encoder. None: embedded statistics are not measurable."""
        return self.context.embedder

    @property
    def row_ids(self) -> Mapping[str, np.ndarray]:
        """Int64 row ids by role. Two rows have equal ids if they agree in every column (missing
        equals missing).
        """
        return self.derived.row_ids

    @property
    def labeled_subjects(self) -> Subjects:
        """Subjects of the rows of train and holdout stacked, numbered by row content."""
        return self.derived.labeled_subjects

    @property
    def all_subjects(self) -> Subjects:
        """Subjects of the rows of all real tables stacked. Subjects of the reference are
        non-members.
        """
        return self.derived.all_subjects

    @property
    def fingerprints(self) -> Mapping[str, str]:
        """Fingerprint of each table, for the results."""
        if self.context.fingerprints is not None:
            return self.context.fingerprints
        return self.derived.fingerprints

    def encoded(self, role: str) -> EncodedTable:
        """Return the encoded rows of a table. Cached.

        Args:
            role: Role of the table.

        Returns:
            The rows, in the order of the table.
        """
        return self.derived.encoded(role)

    def embedded(self, role: str) -> np.ndarray:
        """Embed the rows of a table. Cached.

        Args:
            role: Role of the table.

        Returns:
            Embedding of each row, float32 (n, dim).

        Raises:
            InputError: There is no embedder.
        """
        embedder = self.embedder
        if embedder is None:
            raise InputError(
                "no embedder was passed", fix="pass an embedder or disable embedded statistics"
            )
        embeddings = self.derived.embeddings(embedder)
        if role not in embeddings:
            embeddings[role] = embedder.embed(self.tables[role], device=self.device)
        return embeddings[role]

    def subject_codes(self, *roles: str) -> np.ndarray:
        """Return the subject codes of tables stacked, numbered in order of the original codes.

        Args:
            *roles: Roles of the tables, in the order of the stack.

        Returns:
            Codes 0 to s - 1 of the rows, int64 (n,).
        """
        return self.derived.subject_codes(*roles)

    def sizes(self) -> dict[str, dict[str, int]]:
        """Return the numbers of rows, columns and subjects of each table."""
        sizes = {}
        for role, table in self.tables.items():
            n_subjects = len(table)
            if role != "synthetic":
                n_subjects = int(self.subject_codes(role).max(initial=-1)) + 1
            sizes[role] = {
                "rows": len(table),
                "columns": len(table.columns),
                "subjects": n_subjects,
            }
        return sizes

    def rng(self, purpose: str) -> np.random.Generator:
        """Return a random generator, determined by :attr:`seed` and ``purpose``.

        Args:
            purpose: Name of the use. Different names give independent generators.

        Returns:
            The generator.
        """
        purpose_key = zlib.crc32(purpose.encode())
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(purpose_key,)))

    def once(self, make: Callable[..., _Value], *args: Any) -> _Value:
        """Return ``make(self, *args)``, computed once, for values that several metrics use.

        Args:
            make: Function of hashable arguments and of the tables, subjects and seed of these
                inputs.
            *args: The arguments.

        Returns:
            What ``make`` returned.
        """
        return self.derived.once((make, args, self.seed), lambda: make(self, *args))

    def with_context(self, context: EvaluationContext) -> Self:
        """Return the inputs in another context, with the values derived so far.

        Args:
            context: The context, for example ``replace(inputs.context, seed=1)``.
        """
        return replace(self, context=context)

    def with_facts(
        self,
        *,
        notes: tuple[str, ...] | None = None,
        pseudonyms: Mapping[str, np.ndarray] | None = None,
        ruled: tuple[str, ...] | None = None,
    ) -> Self:
        """Return the inputs with other facts on the same tables, and the values derived so far.

        Args:
            notes: See :class:`ReleaseTables`, also for the others. None: unchanged.
            pseudonyms: None: unchanged.
            ruled: None: unchanged.
        """
        release = replace(
            self.release,
            notes=self.release.notes if notes is None else notes,
            pseudonyms=self.release.pseudonyms if pseudonyms is None else pseudonyms,
            ruled=self.release.ruled if ruled is None else ruled,
        )
        return replace(self, release=release)

    def copied(self) -> Self:
        """Return inputs with copies of the tables, for code that may change them. Derived values
        are computed again, except for the encoder.
        """
        release, encoder = deepcopy((self.release, self.derived.encoder))
        context = replace(
            self.context,
            ledger=deepcopy(self.context.ledger),
            generator=deepcopy(self.context.generator),
            fingerprints=deepcopy(self.context.fingerprints),
        )
        return replace(
            self, release=release, context=context, derived=DerivedValues(release, encoder=encoder)
        )

    def with_copy(self, n_subjects: int) -> EvaluationInputs:
        """Return smaller inputs whose synthetic table has rows of train only.

        Args:
            n_subjects: Expected number of people that are kept in each real table. Smaller tables
                are kept whole.

        Returns:
            The inputs. Every person is drawn at random and has all rows. The synthetic table has
            all rows of train or, if the release has fewer rows, this number of them, drawn at
            random. There are no generated columns and no earlier releases.
        """
        rng = self.rng("copy of train")
        draws = rng.random(len(self.all_subjects))
        tables: dict[str, Table] = {}
        subjects: dict[str, np.ndarray] = {}
        ids: dict[str, np.ndarray] = {}
        encoded: dict[str, EncodedTable] = {}
        rows_by_role: dict[str, np.ndarray] = {}
        for role, codes in self._subjects_by_role().items():
            rows = np.flatnonzero(draws[codes] * np.unique(codes).size < n_subjects)
            rows_by_role[role] = rows
            tables[role] = self.tables[role].take(rows)
            ids[role] = self.row_ids[role][rows]
            encoded[role] = self.encoded(role).take(rows)
            if role in self.release.subjects:
                subjects[role] = self.release.subjects[role][rows]
        n_kept = len(tables["train"])
        n_copied = min(n_kept, len(self.synthetic))
        # ordered by content, so that the draw does not depend on the order of rows
        by_content = np.argsort(ids["train"], kind="stable")
        copied_rows = np.sort(by_content[rng.permutation(n_kept)[:n_copied]])
        tables["synthetic"] = tables["train"].take(copied_rows)
        ids["synthetic"] = ids["train"][copied_rows]
        encoded["synthetic"] = encoded["train"].take(copied_rows)

        release = ReleaseTables(self.schema, tables, subjects)
        context = EvaluationContext(
            seed=self.seed, device=self.device, embedder=self.embedder, fingerprints={}
        )
        derived = DerivedValues(release, encoder=self.derived.encoder, row_ids=ids, encoded=encoded)
        if self.embedder is not None:
            embeddings = self.derived.embeddings(self.embedder)
            copied = derived.embeddings(self.embedder)
            for role, rows in rows_by_role.items():
                if role in embeddings:
                    copied[role] = embeddings[role][rows]
            if "train" in copied:
                copied["synthetic"] = copied["train"][copied_rows]
        return EvaluationInputs(release, context, derived)

    def _subjects_by_role(self) -> dict[str, np.ndarray]:
        """Return the codes of :attr:`all_subjects` of the rows of each real table."""
        ends = np.cumsum([len(table) for table in self.release.real])
        codes = np.split(self.all_subjects.codes, ends[:-1])
        return dict(zip(self.real_roles, codes, strict=True))


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
    row_ids = inputs.derived.stacked_row_ids(roles)
    codes = order_by_content(inputs.subject_codes(*roles), row_ids)
    n_subjects = int(codes.max()) + 1
    order = inputs.rng(purpose).permutation(n_subjects)
    n_rows = np.cumsum(np.bincount(codes)[order])
    n_fitting = int(np.searchsorted(n_rows, most, side="right"))
    is_target = np.zeros(n_subjects, dtype=bool)
    is_target[order[: max(1, n_fitting)]] = True
    return np.flatnonzero(is_target[codes])
