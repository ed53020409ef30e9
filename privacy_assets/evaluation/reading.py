"""Tables of one release, read and checked, as the inputs of the metrics, with notes for the
report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from privacy_assets.errors import InputError, safe_repr
from privacy_assets.evaluation.exchangeability import with_shift_note
from privacy_assets.infra.objects import location
from privacy_assets.infra.progress import Progress, silent
from privacy_assets.metrics.inputs import EvaluationContext, EvaluationInputs
from privacy_assets.metrics.policies import size_warning
from privacy_assets.metrics.release_tables import ReleaseTables
from privacy_assets.policy import Policy
from privacy_assets.tables.canonical import check_synthetic_rows, real_tables, synthetic_table
from privacy_assets.tables.column import Column, joint_codes
from privacy_assets.tables.conversion import column_of
from privacy_assets.tables.declared import NOTHING, Declared
from privacy_assets.tables.given import PATHS, load
from privacy_assets.tables.roles import check_identifiers, may_identify_people
from privacy_assets.tables.schema import Frame, TableSchema, check_columns
from privacy_assets.tables.subject_ids import IGNORED
from privacy_assets.tables.table import Table, joint

TableLike = Any  # path or dataframe (pandas, polars, DuckDB, Arrow, ...), see load
# probability of an overlap of train and an unseen holdout below which it is an error
_BY_CHANCE = 1e-6
_EQUAL_ROWS = "Equal rows of one table count as the same person."


def read_inputs(  # noqa: PLR0913
    train: TableLike,
    holdout: TableLike,
    synthetic: TableLike,
    reference: TableLike | None = None,
    *,
    declared: Declared = NOTHING,
    max_synthetic_rows: int | None = None,
    schema: TableSchema | None = None,
    earlier_releases: Sequence[TableLike] = (),
    seed: int = 0,
    device: str = "cpu",
    progress: Progress = silent,
) -> EvaluationInputs:
    """Read and check the tables of one release, and build the inputs of the metrics.

    Synthetic numbers are rounded to the precision of the real ones. Columns are read (from Parquet
    files), converted and stored one at a time, see :mod:`privacy_assets.tables.arrays`.

    Args:
        train: Rows that the generator was trained on.
        holdout: Real rows that the generator has not seen.
        synthetic: Table to be published.
        reference: Additional real rows that the generator has not seen. None: no reference.
        declared: Declarations about columns. The subject is present in every real table and absent
            from the synthetic one.
        max_synthetic_rows: See :func:`evaluate`.
        schema: Schema without the subject. None: inferred from all real rows together; identifying
            columns are then rejected, see :mod:`privacy_assets.tables.roles`.
        earlier_releases: Earlier releases about the same subjects. Columns that are absent from any
            of them, or cannot be converted, are ignored.
        seed: Seed of all random draws.
        device: torch device name.
        progress: Receives progress messages.

    Returns:
        The inputs of the metrics.

    Raises:
        InputError: A table is invalid, a column is identifying, the holdout shares far more rows
            with train than expected by chance, or the earlier releases have no column in common
            with this table.
    """
    if not isinstance(earlier_releases, list | tuple):
        raise InputError("expected a list of tables", where="earlier releases", fix="pass a list")
    sources = {"train": train, "holdout": holdout, "reference": reference, "synthetic": synthetic}
    frames: dict[str, Frame] = {}
    names: dict[str, str] = {}
    for role, source in sources.items():
        if source is not None:
            frames[role] = load(source, role, declared.csv_format)
            names[role] = _name_in_messages(role, source)
    check_synthetic_rows(
        len(frames["synthetic"]), len(frames["train"]), max_synthetic_rows, names["synthetic"]
    )
    for role, frame in frames.items():
        check_columns(frame.columns, len(frame), where=names[role])
    notes = _notes(frames, declared)
    synthetic_frame = frames.pop("synthetic")
    where = names.pop("synthetic")
    real = real_tables(frames, names, declared, schema=schema)
    train_table = real["train"]
    release = synthetic_table(
        synthetic_frame, train_table.schema, declared, train=train_table, where=where
    )
    check_identifiers(release, declared.drop, where=where)
    for note in (*notes, *train_table.notes):
        progress(note)
    return build_inputs(
        real,
        release,
        earlier_releases=earlier_releases,
        notes=notes,
        where=names["holdout"],
        seed=seed,
        device=device,
        progress=progress,
    )


def pipeline_inputs(
    real: Mapping[str, Table],
    synthetic: Table,
    declared: Declared,
    policy: Policy,
    *,
    is_external: bool,
    seed: int,
    device: str,
    progress: Progress,
) -> EvaluationInputs:
    """Build the inputs of the metrics from the tables of a pipeline, with notes for the report.

    Args:
        real: Train, holdout and, if there is one, reference.
        synthetic: Table to be published.
        declared: Declarations about columns.
        policy: Policy in force.
        is_external: False if train and holdout were split by the key of a deployment.
        seed: Seed of all random draws.
        device: torch device name.
        progress: Receives progress messages.

    Returns:
        The inputs of the metrics.

    Raises:
        InputError: As :func:`build_inputs`.
    """
    notes = (_people_note(declared),)
    inputs = build_inputs(real, synthetic, notes=notes, seed=seed, device=device, progress=progress)
    return with_notes(inputs, policy, is_external=is_external)


def _notes(frames: Mapping[str, Frame], declared: Declared) -> tuple[str, ...]:
    """Return notes for the report on how the tables were read. They contain column names but no
    cell values.
    """
    notes = []
    if declared.states_people:
        notes.append(_people_note(declared))
    else:
        notes.append(_undeclared_subject_note(frames["train"], declared))
    dropped = []
    for name in declared.drop:
        if name in frames["synthetic"].columns:
            dropped.append(name)
    if dropped:
        pronoun = "it" if len(dropped) == 1 else "them"
        notes.append(
            f"The synthetic table contains {', '.join(map(safe_repr, dropped))}, dropped and not"
            f" evaluated: the verdict does not cover {pronoun}. Fix: remove {pronoun}"
            " before publication."
        )
    return tuple(notes)


def _undeclared_subject_note(train: Frame, declared: Declared) -> str:
    """Return the note that each row counts as one person, and a column that may identify people."""
    note = (
        "Each row counts as one person. If a person can have several rows, name the column"
        " that identifies people"
        " (--subject COLUMN), or state that each row is a different person (--each-row)."
    )
    candidates = may_identify_people(train, declared.drop)
    if candidates:
        note += f" {safe_repr(candidates[0])} looks like one."
    return note


def _people_note(declared: Declared) -> str:
    """Return the note on who counts as a person, as declared.

    Args:
        declared: Declarations. Without a subject, each row is a different person.
    """
    if declared.subject is None:
        return "Each row counts as one person, as the user declared."
    note = f"People are identified by the column {safe_repr(declared.subject)}."
    if declared.exact_ids:
        note += f" Ids that differ only in {IGNORED} are different people, as the user declared."
    return note


def with_notes(
    inputs: EvaluationInputs, policy: Policy | None, *, is_external: bool
) -> EvaluationInputs:
    """Return the inputs with notes on differences of train and holdout, and on equal rows. Report a
    warning if train has few subjects.

    Args:
        inputs: Tables of the release.
        policy: Policy in force. None: there are no limits.
        is_external: False if train and holdout were split by the key of a deployment. They are
            exchangeable then.
    """
    if is_external:
        inputs = with_shift_note(inputs)
    inputs = _with_note_on_equal_rows(inputs)
    if policy is not None:
        _warn_of_size(inputs, policy)
    return inputs


def _with_note_on_equal_rows(inputs: EvaluationInputs) -> EvaluationInputs:
    """Return the inputs with an exception to the rule that each row counts as one person, if train
    has equal rows and no subject column.
    """
    if "train" in inputs.release.subjects:
        return inputs
    n_subjects = int(inputs.subject_codes("train").max(initial=-1)) + 1
    if n_subjects >= len(inputs.train):
        return inputs
    rule = _people_note(NOTHING)
    if rule not in inputs.release.notes:
        return inputs.with_facts(notes=(*inputs.release.notes, _EQUAL_ROWS))
    exception = f"{rule[:-1]}, except that equal rows of one table count as the same person."
    notes = list(inputs.release.notes)
    notes[notes.index(rule)] = exception
    return inputs.with_facts(notes=tuple(notes))


def _warn_of_size(inputs: EvaluationInputs, policy: Policy) -> None:
    """Report a warning if train has few subjects."""
    n_subjects = len(inputs.train)
    if "train" in inputs.release.subjects:
        n_subjects = len(np.unique(inputs.release.subjects["train"]))
    warning = size_warning(policy, n_subjects)
    if warning:
        inputs.progress(warning)


def _name_in_messages(role: str, table: TableLike | None) -> str:
    if isinstance(table, PATHS):
        return f"{role} ({location(table)})"
    return role


def build_inputs(
    real: Mapping[str, Table],
    synthetic: Table,
    *,
    earlier_releases: Sequence[TableLike] = (),
    notes: tuple[str, ...] = (),
    where: str = "holdout",
    seed: int = 0,
    device: str = "cpu",
    progress: Progress = silent,
) -> EvaluationInputs:
    """Build the inputs of the metrics from tables of one schema.

    Args:
        real: Train, holdout and, if there is one, reference.
        synthetic: Table to be published.
        earlier_releases: Earlier releases about the same subjects.
        notes: Notes for the report, before those of the tables.
        where: Name of the holdout in messages.
        seed: Seed of all random draws.
        device: torch device name.
        progress: Receives progress messages.

    Returns:
        The inputs of the metrics.

    Raises:
        InputError: The holdout shares far more rows with train than expected by chance, or no
            column of the earlier releases can be compared.
    """
    schema = real["train"].schema
    subjects = {}
    for role, table in real.items():
        if table.subject_ids is not None:
            subjects[role] = table.subject_ids
    without_subjects = {}
    for role, table in {**real, "synthetic": synthetic}.items():
        without_subjects[role] = table.without_subject()
    tables = joint(without_subjects)
    generated: dict[str, Table] = {}
    if schema.generated:
        for role, table in tables.items():
            generated[role] = table.select(schema.generated)
        # The synthetic table may contain identifiers under another column name.
        for role, ids in subjects.items():
            generated[role] = generated[role].with_columns(ids)
    evaluated = schema.evaluated
    evaluated_tables = {}
    for role, table in tables.items():
        evaluated_tables[role] = table.with_schema(evaluated)
    releases = None
    if earlier_releases:
        releases = stacked_releases(earlier_releases, evaluated)
    release = ReleaseTables(
        evaluated,
        evaluated_tables,
        dict(zip(subjects, joint_codes(list(subjects.values())), strict=True)),
        generated=generated,
        earlier_releases=releases,
        relations=real["train"].relations,
        notes=(*notes, *real["train"].notes),
    )
    context = EvaluationContext(seed=seed, device=device, progress=progress)
    inputs = EvaluationInputs.of(release, context)
    _check_unseen(inputs, where)
    return inputs


def stacked_releases(earlier_releases: Sequence[TableLike], schema: TableSchema) -> Table:
    """Stack earlier releases.

    Args:
        earlier_releases: Paths or dataframes.
        schema: Schema of the table to be published.

    Returns:
        The rows of all releases, with those columns of ``schema`` that each of them has.

    Raises:
        InputError: There is no such column.
    """
    releases: list[dict[str, Column]] = []
    for number, table in enumerate(earlier_releases, start=1):
        where = f"earlier release {number}"
        frame = load(table, where)
        columns = {}
        for column in schema.columns:
            try:
                columns[column.name] = column_of(frame[column.name], column, where, external=True)
            except (KeyError, InputError):  # absent from this release, or of another kind
                continue
        releases.append(columns)
    shared = []
    for column in schema.columns:
        if all(column.name in columns for columns in releases):
            shared.append(column)
    if not shared:
        raise InputError(
            "they and this table have no common column",
            where="earlier releases",
            fix="pass releases of this table",
        )
    shared_schema = TableSchema(tuple(shared))
    return Table.stack([Table.of_columns(shared_schema, columns) for columns in releases])


def _check_unseen(inputs: EvaluationInputs, where: str) -> None:
    """Raise InputError if far more subjects of the holdout than expected by chance share a row with
    a subject of train.

    Only rows that occur exactly twice in train and holdout together, for two subjects, are used.
    Such a pair consists of one subject of train and one of holdout with probability 2 s_T s_H / (s
    (s - 1)). One-sided binomial test.
    """
    from scipy import stats  # slow to import

    n_train = len(inputs.train)
    row_ids = np.concatenate([inputs.row_ids["train"], inputs.row_ids["holdout"]])
    subject_codes = inputs.subject_codes("train", "holdout")
    order = np.argsort(row_ids, kind="stable")
    n_equal_rows = np.bincount(row_ids)[row_ids[order]]
    row_pairs = order[n_equal_rows == 2].reshape(-1, 2)  # the row of train comes first
    is_crossing = (row_pairs[:, 0] < n_train) & (row_pairs[:, 1] >= n_train)
    subject_pairs = np.sort(subject_codes[row_pairs], axis=1)
    pairs = np.column_stack([subject_pairs, is_crossing])
    pairs = np.unique(pairs[pairs[:, 0] < pairs[:, 1]], axis=0)
    n_shared = int(pairs[:, 2].sum())
    if n_shared == 0:
        return
    n_subjects = int(subject_codes.max()) + 1
    n_holdout = np.unique(subject_codes[n_train:]).size
    p_crossing = 2 * n_holdout * (n_subjects - n_holdout) / max(n_subjects * (n_subjects - 1), 1)
    if stats.binom.sf(n_shared - 1, len(pairs), p_crossing) < _BY_CHANCE:
        raise InputError(
            "far more people than expected by chance share a row with a person in train",
            where=where,
            fix="use a holdout of people that the generator has not seen",
        )
