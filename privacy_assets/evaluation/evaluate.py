"""``evaluate``, and its parts: read tables, build the inputs of the metrics, choose metrics, run
them, report.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from privacy_assets.errors import (
    ConfigError,
    InputError,
    redact_foreign_errors,
    require,
    safe_repr,
    seed_of,
)
from privacy_assets.evaluation.exchangeability import with_shift_note, without_shift
from privacy_assets.generators.registry import as_generator
from privacy_assets.infra.devices import pick_device
from privacy_assets.infra.host import isolated, user_name
from privacy_assets.infra.objects import location
from privacy_assets.infra.progress import Progress, advance, silent, watched
from privacy_assets.infra.settings import settings_of
from privacy_assets.metrics.base import Metric
from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.metrics.policies import (
    PolicyLike,
    build_embedder,
    default_policy,
    embedded_statistics,
    load_policy,
    size_warning,
)
from privacy_assets.metrics.registry import METRICS, build_metric, default_metrics, metrics_reading
from privacy_assets.policy import SHIPPED, Limit, Policy
from privacy_assets.report.report import Report, judged
from privacy_assets.stats.estimates import MetricResult
from privacy_assets.tables.canonical import check_synthetic_rows, real_tables, synthetic_table
from privacy_assets.tables.column import Column
from privacy_assets.tables.conversion import column_of
from privacy_assets.tables.declared import NOTHING, Declared
from privacy_assets.tables.fingerprints import file_fingerprint
from privacy_assets.tables.given import PATHS, load
from privacy_assets.tables.inference import REAL_ROLES, check_kinds
from privacy_assets.tables.roles import (
    check_identifiers,
    check_known_categories,
    may_identify_people,
)
from privacy_assets.tables.schema import Frame, TableSchema, check_frame
from privacy_assets.tables.subject_ids import IGNORED, joint_codes, read_subject
from privacy_assets.tables.table import Table, joint

if TYPE_CHECKING:
    from privacy_assets.distances.embedder import Embedder
    from privacy_assets.generators.base import Generator
    from privacy_assets.generators.registry import GeneratorLike

TableLike = Any  # path or dataframe (pandas, polars, DuckDB, Arrow, ...), see load
# names, or settings by name
MetricsLike = str | Iterable[str] | Mapping[str, Mapping[str, Any] | None]
_COPIED_PEOPLE = 2_000  # people of train in the verbatim copy that shows whether a limit can fail
# probability of an overlap of train and an unseen holdout below which it is an error
_BY_CHANCE = 1e-6
_EQUAL_ROWS = "Equal rows of one table count as the same person."


@redact_foreign_errors
@isolated()
def evaluate(  # noqa: PLR0913
    train: TableLike,
    holdout: TableLike,
    synthetic: TableLike,
    *,
    reference: TableLike | None = None,
    earlier_releases: Sequence[TableLike] = (),
    subject: str | Mapping[str, Any] | None = None,
    kinds: Mapping[str, Any] | None = None,
    missing: Mapping[str, Sequence[Any]] | None = None,
    timezone: str | None = None,
    relations: Mapping[str, bool] | None = None,
    read: Mapping[str, str] | None = None,
    snapshots: bool = False,
    drop: Sequence[str] | None = None,
    new_values: Mapping[str, str] | None = None,
    allowed_values: Mapping[str, Sequence[Any]] | None = None,
    max_synthetic_rows: int | None = None,
    policy: Policy | Mapping[str, Any] | str | Path | None = None,
    metrics: MetricsLike | None = None,
    generator: GeneratorLike | None = None,
    embedder: bool = True,
    seed: int | None = 0,
    device: str = "auto",
    progress: Progress | None = None,
) -> Report:
    """Evaluate how much ``synthetic`` discloses about the people in ``train``.

    The same inputs and ``seed`` give the same report, except for elapsed times. Tables are
    dataframes (pandas, polars, DuckDB, Arrow, or others supported by narwhals) or paths of Parquet
    or CSV files. Errors contain no cell values and are not chained to errors that may.

    Args:
        train: Rows that the generator was fitted to.
        holdout: Rows of the same population that it was not fitted to.
        synthetic: Rows under evaluation.
        reference: Further rows that it was not fitted to. None: none.
        earlier_releases: Tables of the same people that were released before.
        subject: Column that identifies people. ``{"each_row": True}`` states that each row is a
            different person, and ``{"column": "id", "exact": True}`` that two spellings of an id
            are two people. None: each row counts as one, and the report says so.
        kinds: Kinds of columns that override the inferred ones: numeric, integer, categorical,
            boolean or datetime. A format can be given as ``{"datetime": "%d.%m.%Y"}``,
            ``{"numeric": {"decimal": ","}}`` or ``{"numeric": {"unit": "kg"}}``.
        missing: Values that mean a missing value, by column, in addition to empty cells.
        timezone: Zone of times without a time zone, such as "Europe/Berlin". None: they have none.
        relations: Relations between columns by name, such as "start <= end". False switches one off
            that would be found in the real tables, True declares one.
        read: Separator and encoding of CSV files: ``{"sep": ";", "encoding": "cp1252"}``. None:
            commas, and UTF-8 or UTF-16.
        snapshots: True if the files of a folder or glob are snapshots of the same people, so that
            they may contain the same rows. Needs ``subject``.
        drop: Columns to ignore. The report lists those that ``synthetic`` contains. The subject
            column is dropped from ``synthetic`` only.
        new_values: Columns in which new values are allowed, with a reason each.
        allowed_values: Values allowed in a column in addition to the real ones. Identifiers and
            free text are otherwise rejected (docs/columns.md).
        max_synthetic_rows: Maximum number of rows of ``synthetic``. None: ten times the rows of
            ``train``, or 1,000,000 if that is more.
        policy: A Policy, a mapping, a YAML file, or the name of a built-in one (``small``). None:
            the default limits of the metrics.
        metrics: Names, or a mapping of names to those settings that a table may set
            (docs/policy.md). Others belong to ``policy``. None: the metrics of ``policy``, or the
            default ones. If there is no ``policy``, and the default one limits none of them, the
            verdict is "undecided".
        generator: Generator of ``synthetic``, for metrics that attack it: a registered name, a
            mapping of ``name`` and ``settings``, or a function.
        embedder: If False, no embedder is trained, and statistics that need it are reported as
            missing. Without a ``policy``, the verdict is then one of a part of the default policy.
            Settings of the embedder belong to ``policy``: ``{"extends": "default", "embedder":
            {"preset": "paper"}}`` selects the encoder of Palacios 5.2.
        seed: Non-negative seed of all random draws. None: one is drawn, and recorded in the report.
        device: Torch device; "auto" selects an accelerator if there is one.
        progress: Called with messages. None: bars on a terminal or in a notebook.

    Returns:
        The report with the verdict of the policy.

    Raises:
        InputError: If a table cannot be used.
        ConfigError: If a setting is invalid.
        MissingPackage: If the embedder needs torch and it is not installed.
    """
    if not isinstance(embedder, bool | Mapping) or not (progress is None or callable(progress)):
        raise ConfigError(
            "embedder must be true or false, and progress a function that takes a string."
        )
    seed = seed_of(seed)
    check_kinds(kinds)
    declared_subject = read_subject(subject)
    declared = Declared.of_settings(
        drop,
        new_values,
        allowed_values,
        missing=missing,
        timezone=timezone,
        relations=relations,
        read=read,
        snapshots=snapshots,
        subject=declared_subject.column,
        exact_ids=declared_subject.exact_ids,
    )
    attacked = None
    if generator is not None:
        attacked = as_generator(generator)
    external_roles = {"train", "holdout", "synthetic"}
    if reference is not None:
        external_roles.add("reference")
    selected, in_force = metrics_and_limits(metrics, policy, attacked, external_roles, embedder)
    _check_all_inputs_used(selected.values(), earlier_releases, attacked)
    embedder_settings: Mapping[str, Any] | Literal[False] = False
    if embedder is not False and wants_embedder(selected.values()):
        embedder_settings = in_force.embedder if in_force else {}
    if embedder_settings is not False:
        require_torch()
    file_state = _file_state(synthetic)
    origin = _origin(synthetic)
    with progress_context(progress) as report_progress:
        inputs = read_inputs(
            train,
            holdout,
            synthetic,
            reference,
            earlier_releases=earlier_releases,
            subject=declared_subject.column,
            kinds=kinds,
            declared=declared,
            each_row=declared_subject.each_row,
            max_synthetic_rows=max_synthetic_rows,
            seed=seed,
            device=pick_device(device),
            progress=report_progress,
        )
        check_categories(inputs)
        inputs = with_shift_note(inputs)
        inputs = _with_note_on_equal_rows(inputs)
        if in_force is not None:
            _warn_of_size(inputs, in_force)
        if embedder_settings is not False:
            inputs = attach_embedder(inputs, fit_embedder(inputs, **embedder_settings))
        generator_info = _generator_info(attacked)
        inputs = inputs.with_settings(generator=generator_info)
        limits = in_force.limits if in_force else ()
        results = run_metrics(inputs, selected, limits)
        results = without_shift(inputs, selected, results, limits)
    if _file_state(synthetic) != file_state:
        raise InputError(
            "the file changed during the evaluation", where="synthetic", fix="evaluate it again"
        )
    report = build_report(inputs, results, in_force, generator=generator_info)
    return replace(report, origin=origin)


def progress_context(progress: Progress | None) -> AbstractContextManager[Progress]:
    """Return a context with ``progress``. None: bars on a terminal or in a notebook."""
    if progress is None:
        return watched(otherwise=silent)
    return nullcontext(progress)


def _check_all_inputs_used(
    metrics: Collection[Metric],
    earlier_releases: Sequence[TableLike],
    generator: Generator | None,
) -> None:
    """Raise ConfigError if earlier releases or a generator were passed, and no metric uses them."""
    if earlier_releases and not _is_used("earlier_releases", metrics):
        names = " or ".join(metrics_reading("earlier_releases"))
        raise ConfigError(
            "earlier releases were passed, but no metric uses them."
            f" Fix: add {names} to the metrics."
        )
    if generator is not None and not any(metric.attacks_generator for metric in metrics):
        attackers = []
        for name, metric in METRICS.items():
            if metric.attacks_generator:
                attackers.append(name)
        raise ConfigError(
            "a generator was passed, but no metric attacks it."
            f" Fix: add {' or '.join(attackers)} to the metrics."
        )


def _warn_of_size(inputs: EvaluationInputs, policy: Policy) -> None:
    """Report a warning if train has few subjects."""
    n_subjects = len(inputs.train)
    if "train" in inputs.subjects:
        n_subjects = len(np.unique(inputs.subjects["train"]))
    warning = size_warning(policy, n_subjects)
    if warning:
        inputs.progress(warning)


def _generator_info(generator: Generator | None) -> dict[str, Any] | None:
    """Return the description of a generator for metrics and the report."""
    if generator is None:
        return None
    protection = generator.overfitting_protection()
    return {"name": generator.name, "settings": generator.settings(), "overfitting": protection}


def _file_state(table: TableLike) -> tuple[int, ...]:
    """Return size, inode and time of change of a file. Empty for other tables."""
    if not isinstance(table, str | Path):
        return ()
    try:
        stat = Path(table).stat()
    except OSError:  # reading the table reports it
        return ()
    return stat.st_size, stat.st_ino, stat.st_mtime_ns


def _origin(synthetic: TableLike) -> dict[str, str]:
    """Return name and SHA-256 of the file of the synthetic table, the date, and the user of the
    system.
    """
    origin = {"date": date.today().isoformat(), "by": user_name()}
    if isinstance(synthetic, PATHS):
        origin["file"] = Path(str(synthetic)).name
        try:
            if isinstance(synthetic, str | Path) and Path(synthetic).is_file():
                origin["sha256"] = file_fingerprint(synthetic)
        except OSError:  # reading the table reports it
            return origin
    return origin


def check_categories(inputs: EvaluationInputs) -> None:
    """Raise InputError for categories of a brought synthetic table that no real table has, see
    :mod:`.tables.roles`.
    """
    check_known_categories(inputs.synthetic, _real_tables(inputs), where="synthetic")


def _real_tables(inputs: EvaluationInputs) -> list[Table]:
    return [inputs.tables[role] for role in REAL_ROLES if role in inputs.tables]


def build_report(
    inputs: EvaluationInputs,
    results: Mapping[str, MetricResult],
    policy: Policy | None,
    generator: Mapping[str, Any] | None = None,
) -> Report:
    """Evaluate the policy on ``results``, and create the report of tables outside of a publication
    pipeline.

    Args:
        inputs: Tables of the release.
        results: Results by metric.
        policy: Policy in force. None: no limit applies.
        generator: Description of the generator. None: unknown.

    Returns:
        The report.
    """
    return Report(
        title="Privacy report",
        policy=policy,
        policy_verdict=judged(policy, results),
        results=dict(results),
        tables=sizes_of(inputs),
        seed=inputs.seed,
        generator=generator,
        embedder=None if inputs.embedder is None else inputs.embedder.description,
        fingerprints={"synthetic": inputs.fingerprints["synthetic"]},
        notes=inputs.notes,
        has_earlier_releases=inputs.earlier_releases is not None,
    )


def sizes_of(inputs: EvaluationInputs) -> dict[str, dict[str, int]]:
    """Return the numbers of rows, columns and subjects of each table."""
    sizes = {}
    for role, table in inputs.tables.items():
        n_subjects = len(table)
        if role != "synthetic":
            n_subjects = int(inputs.subject_codes(role).max(initial=-1)) + 1
        sizes[role] = {
            "rows": len(table),
            "columns": len(table.columns),
            "subjects": n_subjects,
        }
    return sizes


def read_inputs(  # noqa: PLR0913
    train: TableLike,
    holdout: TableLike,
    synthetic: TableLike,
    reference: TableLike | None = None,
    *,
    subject: str | None = None,
    kinds: Mapping[str, Any] | None = None,
    declared: Declared = NOTHING,
    each_row: bool = False,
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
        subject: Column that identifies subjects; present in every real table and absent from the
            synthetic one. None: each row is one subject.
        kinds: Column kinds by name; they override the inferred kinds.
        declared: Column declarations of the owner, see :class:`.Declared`.
        each_row: True if the user declares that every row belongs to a different subject.
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
    check_kinds(kinds)
    if not isinstance(earlier_releases, list | tuple):
        raise InputError("expected a list of tables", where="earlier releases", fix="pass a list")
    sources = {"train": train, "holdout": holdout, "reference": reference, "synthetic": synthetic}
    frames: dict[str, Frame] = {}
    names: dict[str, str] = {}
    for role, source in sources.items():
        if source is not None:
            frames[role] = load(source, role, declared.read)
            names[role] = _name_in_messages(role, source)
    check_synthetic_rows(
        len(frames["synthetic"]), len(frames["train"]), max_synthetic_rows, names["synthetic"]
    )
    for role, frame in frames.items():
        check_frame(frame, where=names[role])
    notes = _notes(frames, subject, declared, each_row)
    synthetic_frame = frames.pop("synthetic")
    where = names.pop("synthetic")
    real = real_tables(frames, names, subject, kinds, declared, schema=schema)
    train_table = real["train"]
    release = synthetic_table(
        synthetic_frame, train_table.schema, subject, declared, train=train_table, where=where
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


def _notes(
    frames: Mapping[str, Frame], subject: str | None, declared: Declared, each_row: bool
) -> tuple[str, ...]:
    """Return notes for the report on how the tables were read. They contain column names but no
    cell values.
    """
    notes = []
    if each_row or subject is not None:
        notes.append(people_note(subject, declared.exact_ids))
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


def _with_note_on_equal_rows(inputs: EvaluationInputs) -> EvaluationInputs:
    """Return the inputs with an exception to the rule that each row counts as one person, if train
    has equal rows and no subject column.
    """
    if "train" in inputs.subjects:
        return inputs
    n_subjects = int(inputs.subject_codes("train").max(initial=-1)) + 1
    if n_subjects >= len(inputs.train):
        return inputs
    rule = people_note(None)
    if rule not in inputs.notes:
        return replace(inputs, notes=(*inputs.notes, _EQUAL_ROWS))
    exception = f"{rule[:-1]}, except that equal rows of one table count as the same person."
    notes = list(inputs.notes)
    notes[notes.index(rule)] = exception
    return replace(inputs, notes=tuple(notes))


def people_note(subject: str | None, exact_ids: bool = False) -> str:
    """Return the note on who counts as a person, as declared.

    Args:
        subject: Column that identifies people. None: each row is a different person.
        exact_ids: True if two spellings of an id are two people.
    """
    if subject is None:
        return "Each row counts as one person, as the user declared."
    note = f"People are identified by the column {safe_repr(subject)}."
    if exact_ids:
        note += f" Ids that differ only in {IGNORED} are different people, as the user declared."
    return note


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
    all_tables = {**real, "synthetic": synthetic}
    tables = joint({role: table.without_subject() for role, table in all_tables.items()})
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
    inputs = EvaluationInputs(
        evaluated,
        evaluated_tables,
        joint_codes(subjects),
        generated=generated,
        earlier_releases=releases,
        notes=(*notes, *real["train"].notes),
        relations=real["train"].relations,
        seed=seed,
        device=device,
        progress=progress,
    )
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


def wants_embedder(metrics: Iterable[Metric]) -> bool:
    """Return True if any of the metrics can use an embedder."""
    return _is_used("embedder", metrics)


def _is_used(name: str, metrics: Iterable[Metric]) -> bool:
    """Return whether any of the metrics can use an input."""
    return any(metric.uses(name) for metric in metrics)


def attach_embedder(inputs: EvaluationInputs, embedder: Embedder) -> EvaluationInputs:
    """Return the inputs with an embedder."""
    return replace(inputs, embedder=embedder)


def require_torch() -> None:
    """Raise MissingPackage if torch, which trains the embedder, is not installed."""
    require(
        "torch",
        "the embedder",
        "torch",
        "disable embedded statistics by embedder=False, or --no-embedder",
    )


@isolated()
def fit_embedder(inputs: EvaluationInputs, **settings: Any) -> Embedder:
    """Train the contrastive encoder on all real rows.

    Args:
        inputs: Tables, seed and device.
        **settings: Settings of :class:`.EmbedderSettings`.

    Returns:
        The trained embedder.

    Raises:
        MissingPackage: torch is not installed.
        ConfigError: A setting is unknown or out of range.
    """
    require_torch()
    from privacy_assets.distances.embedder import train_embedder
    from privacy_assets.distances.embedder_settings import EmbedderSettings

    embedder_settings = EmbedderSettings(**settings)
    inputs.progress("training the embedder")
    embedder = train_embedder(
        _real_tables(inputs),
        inputs.schema,
        embedder_settings,
        seed=inputs.seed,
        device=inputs.device,
        progress=inputs.progress,
    )
    description = embedder.description
    loss = description["validation_loss"]
    accuracy = description["validation_accuracy"]
    if loss is None:
        outcome = "no validation rows"
    else:
        outcome = f"validation loss {loss:.4g}, accuracy {accuracy:.4g}"
    inputs.progress(f"the embedder was trained for {description['epochs']} epochs: {outcome}")
    return embedder


def run_metrics(
    inputs: EvaluationInputs, metrics: Mapping[str, Metric], limits: Sequence[Limit] = ()
) -> dict[str, MetricResult]:
    """Run metrics in order.

    Args:
        inputs: Tables of one release. ``inputs.progress`` receives the name of each metric before
            it runs.
        metrics: Metrics by name.
        limits: Limits whose statistics are also measured on a verbatim copy of train, to see
            whether they can fail.

    Returns:
        Results by name.

    Raises:
        InputError: A required input of a metric is missing.
    """
    available = set(inputs.tables)
    if inputs.embedder is not None:
        available.add("embedder")
    results: dict[str, MetricResult] = {}
    copy: EvaluationInputs | None = None
    for name, metric in metrics.items():
        missing_inputs = sorted(metric.required_inputs - available)
        if missing_inputs:
            raise InputError(
                f"metric {name} needs {missing_inputs[0]}",
                fix=f"pass {missing_inputs[0]} or remove the metric",
            )
        inputs.progress(f"measuring {name}")
        if len(metrics) > 1:
            advance(inputs.progress, "metrics", len(results), len(metrics))
        started = time.perf_counter()
        result = metric.measure(inputs)
        limited = _limited_statistics(name, metric, limits)
        if limited:
            if copy is None:
                copy = inputs.with_copy(_COPIED_PEOPLE)
            estimates = metric.on_smaller_budget().measure(copy).estimates
            on_copy = tuple(estimate for estimate in estimates if estimate.name in limited)
            result = replace(result, on_copy=on_copy)
        results[name] = replace(result, seconds=time.perf_counter() - started)
    if len(metrics) > 1:
        advance(inputs.progress, "metrics", len(results), len(metrics))
    return results


def _limited_statistics(name: str, metric: Metric, limits: Sequence[Limit]) -> set[str]:
    """Return the limited statistics of a metric that can be measured on a copy of train."""
    limited = {limit.statistic.partition(".")[2] for limit in limits if limit.metric == name}
    measurable = set()
    for spec in metric.statistics:
        if spec.name in limited and metric.sees_copy(spec):
            measurable.add(spec.name)
    return measurable


def choose_metrics(
    metrics: MetricsLike | None,
    policy: PolicyLike | None,
    generator: Generator | None = None,
    external: Collection[str] = (),
    embedder: bool | Mapping[str, Any] = True,
) -> tuple[dict[str, Metric], Policy]:
    """Choose the metrics to run and the policy in force.

    Settings of metrics come from the policy. ``metrics`` may only contain those that a table may
    set and the policy does not set.

    Args:
        metrics: Names of metrics, or a mapping of names to settings. None: those of the policy, or
            the default ones.
        policy: Source of the policy, see :func:`.load_policy`. None: the default limits of the
            metrics.
        generator: Generator of the synthetic table, for the metrics that attack it.
        external: Roles of the tables that come from outside, for which further metrics run by
            default.
        embedder: False leaves the embedder out. Without a policy, the policy in force is then a
            part of the default one, if a limit depends on the embedder.

    Returns:
        The metrics by name, and the policy.

    Raises:
        ConfigError: A metric or setting is unknown, a setting belongs to the policy, a limit
            depends on an embedder that is left out, a metric needs the generator, or no metric has
            a limit.
    """
    selected, in_force = metrics_and_limits(metrics, policy, generator, external, embedder)
    if in_force is None:
        in_force = default_policy(selected, external)
    return selected, in_force


def metrics_and_limits(
    metrics: MetricsLike | None,
    policy: PolicyLike | None,
    generator: Generator | None = None,
    external: Collection[str] = (),
    embedder: bool | Mapping[str, Any] = True,
) -> tuple[dict[str, Metric], Policy | None]:
    """Choose metrics and a policy, which may be None.

    Args:
        metrics: As in :func:`choose_metrics`.
        policy: As in :func:`choose_metrics`.
        generator: As in :func:`choose_metrics`.
        external: As in :func:`choose_metrics`.
        embedder: As in :func:`choose_metrics`.

    Returns:
        The metrics by name, and the policy. None: ``policy`` is None and no metric has a limit.

    Raises:
        ConfigError: As in :func:`choose_metrics`.
    """
    metrics = _checked_names(metrics)
    if policy is not None:
        policy = _with_external_limits(load_policy(policy), external)
    names = _names_to_run(metrics, policy, external)
    settings_by_table = metrics if isinstance(metrics, Mapping) else {}
    table_settings = _table_settings(settings_by_table, policy, embedder)
    in_force = _policy_in_force(policy, names, external, embedder)
    return _build_metrics(names, in_force, table_settings, generator), in_force


def _checked_names(metrics: MetricsLike | None) -> MetricsLike | None:
    """Return the metrics of the caller, a string split into names. Raise ConfigError for other
    types.
    """
    if metrics is None:
        return None
    if isinstance(metrics, str):
        return _split_names(metrics)
    if not isinstance(metrics, list | tuple | set | frozenset | Mapping):
        type_name = type(metrics).__name__
        raise ConfigError(
            f"metrics must be names, or a mapping of names to settings, not {type_name}."
        )
    for name in metrics:
        if not isinstance(name, str):
            raise ConfigError(f"metrics: each name must be a string, not {type(name).__name__}.")
    return metrics


def _split_names(text: str) -> list[str]:
    """Split at commas. An error does not quote parts of a long string, which may be the content of
    a table.
    """
    names = []
    for part in text.split(","):
        if part.strip():
            names.append(part.strip())
    displayed = safe_repr(text)
    if displayed != repr(text) and not set(names) <= set(METRICS):
        raise ConfigError(
            f"{displayed} is not a list of metrics. Fix: pass names separated by commas."
        )
    return names


def _with_external_limits(policy: Policy, external: Collection[str]) -> Policy:
    """Add the default limits of metrics that run only for tables from outside, if the policy
    extends another.
    """
    if not policy.extends:
        return policy
    only_external = set(default_metrics(external)) - set(default_metrics())
    limits = list(policy.limits)
    for name in sorted(only_external - set(policy.metrics)):
        limits += build_metric(name).default_limits
    return replace(policy, limits=tuple(limits))


def _names_to_run(
    metrics: MetricsLike | None, policy: Policy | None, external: Collection[str]
) -> list[str]:
    """Return the valid names of at least one metric: those of the caller, the policy, or the
    default ones.
    """
    if metrics is not None:
        names = list(metrics)
    elif policy is not None:
        names = list(dict.fromkeys((*policy.metrics, *policy.settings)))
    else:
        names = default_metrics(external)
    if not names:
        raise ConfigError("no metric was selected. Fix: name at least one.")
    for name in names:
        build_metric(name)
    return names


def _policy_in_force(
    policy: Policy | None,
    names: Sequence[str],
    external: Collection[str],
    embedder: bool | Mapping[str, Any],
) -> Policy | None:
    """Return the policy of the caller, or the default limits of the metrics, if they have any."""
    in_force = policy
    if policy is None and any(METRICS[name].default_limits for name in names):
        in_force = default_policy(names, external)
    if in_force is None or embedder is not False or in_force.embedder is False:
        return in_force
    embedded = embedded_statistics(in_force)
    if not embedded:
        return in_force
    if policy is not None:
        text = f"policy {policy.title} limits {embedded[0]}, which depends on the embedder"
        raise ConfigError(f"{text}. {_policy_advice(policy, {}, False)}")
    return replace(in_force, name="custom", part_of="default", embedder=False)


def _build_metrics(
    names: Sequence[str],
    policy: Policy | None,
    table_settings: Mapping[str, Mapping[str, Any]],
    generator: Generator | None,
) -> dict[str, Metric]:
    """Build metrics with the settings of policy and table, for the limits of the policy."""
    policy_settings = policy.settings if policy else {}
    limits = policy.limits if policy else ()
    built = {}
    for name in names:
        settings = {**policy_settings.get(name, {}), **table_settings.get(name, {})}
        built[name] = build_metric(name, settings)
    for_generator = {name: metric.for_generator(generator) for name, metric in built.items()}
    for_limits = {}
    for name, metric in for_generator.items():
        for_limits[name] = metric.for_limits(limits, for_generator)
    return for_limits


def _table_settings(
    settings_by_metric: Mapping[str, Any],
    policy: Policy | None,
    embedder: bool | Mapping[str, Any],
) -> dict[str, dict[str, Any]]:
    """Return the settings that a table may set, by metric. Raise ConfigError if there are
    others.
    """
    table_settings = dict[str, dict[str, Any]]()
    reserved = dict[str, dict[str, Any]]()
    for name, settings in settings_by_metric.items():
        if not isinstance(settings, Mapping | None):
            raise ConfigError(
                f"metric {safe_repr(name)}: settings must be a mapping of names to values."
            )
        metric = build_metric(name, settings)
        allowed = set()
        for setting in settings_of(type(metric)):
            if setting.by_table:
                allowed.add(setting.name)
        if policy is not None:
            allowed -= set(policy.settings.get(name, {}))
        for key, value in (settings or {}).items():
            if key in allowed:
                table_settings.setdefault(name, {})[key] = value
            else:
                reserved.setdefault(name, {})[key] = value
    embedder_settings = embedder if isinstance(embedder, Mapping) else {}
    build_embedder(embedder_settings)
    _check_none_reserved(policy, reserved, embedder_settings)
    return table_settings


def _check_none_reserved(
    policy: Policy | None,
    reserved: Mapping[str, Mapping[str, Any]],
    embedder_settings: Mapping[str, Any],
) -> None:
    """Raise ConfigError if there are settings that belong to the policy."""
    keys = []
    for part, settings in (*reserved.items(), ("embedder", embedder_settings)):
        for key in settings:
            keys.append(f"{part}.{key}")
    if not keys:
        return
    verb = "is a setting" if len(keys) == 1 else "are settings"
    text = f"{', '.join(keys)} {verb} of the policy, not of a table"
    raise ConfigError(f"{text}. {_policy_advice(policy, reserved, embedder_settings)}")


def _policy_advice(
    policy: Policy | None,
    metrics: Mapping[str, Mapping[str, Any]],
    embedder: Mapping[str, Any] | bool,
) -> str:
    """Return advice with the policy to write, as YAML without the values, which can be cells of a
    table.
    """
    lines = []
    if metrics:
        lines.append("metrics:")
    for name, settings in metrics.items():
        lines.append(f"  {name}: {_without_values(settings)}")
    if embedder is False:
        lines.append("embedder: false")
    elif isinstance(embedder, Mapping) and embedder:
        lines.append(f"embedder: {_without_values(embedder)}")
    if policy is not None and policy.name not in SHIPPED:
        return "\n".join([f"Fix: add these lines to policy {policy.title}:", *lines])
    extended = "default" if policy is None else policy.name
    first = "Fix: use a custom policy with these lines:"
    return "\n".join([first, "name: my-policy", f"extends: {extended}", *lines])


def _without_values(settings: Mapping[str, Any]) -> str:
    """Return settings as YAML, with dots for the values."""
    items = ", ".join(f"{key}: ..." for key in settings)
    return f"{{{items}}}"
