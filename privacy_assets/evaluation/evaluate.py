"""``evaluate``, and its parts: read tables, build the inputs of the metrics, choose metrics, run
them, report.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from privacy_assets.tables.contract import REAL_ROLES, check_reading
from privacy_assets.tables.conversion import column_of
from privacy_assets.tables.declared import NOTHING, Declared
from privacy_assets.tables.fingerprints import file_fingerprint
from privacy_assets.tables.given import PATHS, load
from privacy_assets.tables.roles import (
    check_identifiers,
    check_known_categories,
    may_tell_people_apart,
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
def evaluate(
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
    check_reading(kinds)
    declared_subject = read_subject(subject)
    declared = Declared.of(
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
    made_by = None if generator is None else as_generator(generator)
    external = {"train", "holdout", "synthetic"} | (
        {"reference"} if reference is not None else set()
    )
    chosen, in_force = metrics_and_limits(metrics, policy, made_by, external, embedder)
    if earlier_releases and not any(metric.uses("earlier_releases") for metric in chosen.values()):
        add = " or ".join(metrics_reading("earlier_releases"))
        raise ConfigError(
            f"earlier releases were passed, but no metric uses them. Fix: add {add} to the metrics."
        )
    if made_by is not None and not any(metric.attacks_generator for metric in chosen.values()):
        add = " or ".join(name for name, metric in METRICS.items() if metric.attacks_generator)
        raise ConfigError(
            f"a generator was passed, but no metric attacks it. Fix: add {add} to the metrics."
        )
    wanted = embedder is not False and wants_embedder(chosen.values())
    tuned = (in_force.embedder if in_force else {}) if wanted else False
    if tuned is not False:
        require_torch()
    state = _state_of(synthetic)
    origin = _origin(synthetic)
    with watched(otherwise=silent) if progress is None else nullcontext(progress) as report:
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
            progress=report,
        )
        check_categories(inputs)
        inputs = with_shift_note(inputs)
        known = inputs.subjects.get("train")
        people = len(inputs.train) if known is None else len(np.unique(known))
        if known is None and int(inputs.subject_codes("train").max(initial=-1)) + 1 < len(
            inputs.train
        ):
            inputs = replace(inputs, notes=_with_equal_rows(inputs.notes))
        if in_force and (doubt := size_warning(in_force, people)):
            report(doubt)
        if tuned is not False:
            inputs = attach_embedder(inputs, fit_embedder(inputs, **tuned))
        limits = in_force.limits if in_force else ()
        made = None
        if made_by is not None:
            protection = made_by.overfitting_protection()
            made = {"name": made_by.name, "settings": made_by.settings(), "overfitting": protection}
        inputs = inputs.with_settings(generator=made)
        results = without_shift(inputs, chosen, run_metrics(inputs, chosen, limits), limits)
    if _state_of(synthetic) != state:
        raise InputError(
            "the file changed during the evaluation", where="synthetic", fix="evaluate it again"
        )
    evaluated = build_report(inputs, results, in_force, generator=made)
    return replace(evaluated, origin=origin)


def _state_of(table: TableLike) -> tuple[int, ...]:
    """Return size, inode and time of change of a file. Empty for other tables."""
    if not isinstance(table, str | Path):
        return ()
    try:
        state = Path(table).stat()
    except OSError:  # reading the table reports it
        return ()
    return state.st_size, state.st_ino, state.st_mtime_ns


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
    real = [inputs.tables[role] for role in REAL_ROLES if role in inputs.tables]
    check_known_categories(inputs.synthetic, real, where="synthetic")


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
    return {
        role: {
            "rows": len(table),
            "columns": len(table.columns),
            "subjects": len(table)
            if role == "synthetic"
            else int(inputs.subject_codes(role).max(initial=-1)) + 1,
        }
        for role, table in inputs.tables.items()
    }


def read_inputs(
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
        schema: Schema without the subject. None: inferred from all real rows together; open columns
            are then rejected, see :mod:`privacy_assets.tables.roles`.
        earlier_releases: Earlier releases about the same subjects. Columns that are absent from any
            of them, or cannot be converted, are ignored.
        seed: Seed of all random draws.
        device: torch device name.
        progress: Receives progress messages.

    Returns:
        The inputs of the metrics.

    Raises:
        InputError: A table is invalid, a column is open, the holdout shares far more rows with
            train than expected by chance, or the earlier releases have no column in common with
            this table.
    """
    check_reading(kinds)
    if not isinstance(earlier_releases, list | tuple):
        raise InputError("expected a list of tables", where="earlier releases", fix="pass a list")
    given = {"train": train, "holdout": holdout, "reference": reference, "synthetic": synthetic}
    frames: dict[str, Frame] = {
        role: load(table, role, declared.read) for role, table in given.items() if table is not None
    }
    names = {role: _where(role, given[role]) for role in frames}
    check_synthetic_rows(
        len(frames["synthetic"]), len(frames["train"]), max_synthetic_rows, names["synthetic"]
    )
    for role, frame in frames.items():
        check_frame(frame, where=names[role])
    notes = _notes(frames, subject, declared, each_row)
    brought, where = frames.pop("synthetic"), names.pop("synthetic")
    real = real_tables(frames, names, subject, kinds, declared, schema=schema)
    private = real["train"]
    made = synthetic_table(brought, private.schema, subject, declared, train=private, where=where)
    check_identifiers(made, declared.drop, where=where)
    for note in (*notes, *real["train"].notes):
        progress(note)
    return build_inputs(
        real,
        made,
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
    found = []
    if each_row or subject is not None:
        found.append(people_note(subject, declared.exact_ids))
    else:
        likely = [safe_repr(name) for name in may_tell_people_apart(frames["train"], declared.drop)]
        hint = f" {likely[0]} looks like one." if likely else ""
        found.append(
            "Each row counts as one person. If a person can have several rows, name the column"
            " that identifies people"
            f" (--subject COLUMN), or state that each row is a different person (--each-row).{hint}"
        )
    if gone := [name for name in declared.drop if name in frames["synthetic"].columns]:
        found.append(
            f"The synthetic table contains {', '.join(map(safe_repr, gone))}, dropped and not"
            " evaluated: the verdict"
            f" does not cover {'it' if len(gone) == 1 else 'them'}. Fix: remove"
            f" {'it' if len(gone) == 1 else 'them'}"
            " before publication."
        )
    return tuple(found)


def _with_equal_rows(notes: Sequence[str]) -> tuple[str, ...]:
    """Return the notes with an exception to the rule that each row counts as one person."""
    rule = people_note(None)
    exception = f"{rule[:-1]}, except that equal rows of one table count as the same person."
    if rule in notes:
        return tuple(exception if note == rule else note for note in notes)
    return (*notes, _EQUAL_ROWS)


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


def _where(role: str, table: TableLike | None) -> str:
    return f"{role} ({location(table)})" if isinstance(table, PATHS) else role


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
    subjects = {
        role: table.subject_ids for role, table in real.items() if table.subject_ids is not None
    }
    schema = real["train"].schema
    tables = joint(
        {role: table.without_subject() for role, table in {**real, "synthetic": synthetic}.items()}
    )
    generated = (
        {role: table.select(schema.generated) for role, table in tables.items()}
        if schema.generated
        else {}
    )
    if generated:  # the synthetic table may contain identifiers under another column name
        for role, ids in subjects.items():
            generated[role] = generated[role].with_columns(ids)
    schema = schema.measured
    inputs = EvaluationInputs(
        schema,
        {role: table.with_schema(schema) for role, table in tables.items()},
        joint_codes(subjects),
        generated=generated,
        earlier_releases=stacked_releases(earlier_releases, schema) if earlier_releases else None,
        notes=(*notes, *real["train"].notes),
        relations=real["train"].relations,
        seed=seed,
        device=device,
        progress=progress,
    )
    _check_unseen(inputs, where)
    return inputs


def stacked_releases(earlier_releases: Sequence[TableLike], schema: TableSchema) -> Table:
    """Stack earlier releases, keeping the columns of ``schema`` that are present in all of them.

    Raises InputError if there is no such column.
    """
    parts: list[dict[str, Column]] = []
    for number, table in enumerate(earlier_releases, start=1):
        where, found = f"earlier release {number}", {}
        frame = load(table, where)
        for column in schema.columns:
            try:
                found[column.name] = column_of(frame[column.name], column, where, external=True)
            except (KeyError, InputError):  # absent from this release, or of another kind
                continue
        parts.append(found)
    shared = TableSchema(
        tuple(column for column in schema.columns if all(column.name in part for part in parts))
    )
    if not shared.columns:
        fix = "pass releases of this table"
        raise InputError(
            "they and this table have no common column", where="earlier releases", fix=fix
        )
    return Table.stack([Table.of_columns(shared, part) for part in parts])


def _check_unseen(inputs: EvaluationInputs, where: str) -> None:
    """Raise InputError if far more subjects of the holdout than expected by chance share a row with
    a subject of train.

    Only rows that occur exactly twice in train and holdout together, for two subjects, are used.
    Such a pair consists of one subject of train and one of holdout with probability 2 s_T s_H / (s
    (s - 1)). One-sided binomial test.
    """
    from scipy import stats  # slow to import

    ids = np.concatenate([inputs.row_ids["train"], inputs.row_ids["holdout"]])
    people = inputs.subject_codes("train", "holdout")
    order = np.argsort(ids, kind="stable")
    order = order[np.bincount(ids)[ids[order]] == 2].reshape(-1, 2)  # the row of train comes first
    crossing = (order[:, 0] < len(inputs.train)) & (order[:, 1] >= len(inputs.train))
    pairs = np.column_stack([np.sort(people[order], axis=1), crossing])
    pairs = np.unique(pairs[pairs[:, 0] < pairs[:, 1]], axis=0)
    others, total = np.unique(people[len(inputs.train) :]).size, int(people.max()) + 1
    chance = 2 * others * (total - others) / max(total * (total - 1), 1)
    shared = int(pairs[:, 2].sum())
    if shared and stats.binom.sf(shared - 1, len(pairs), chance) < _BY_CHANCE:
        fix = "use a holdout of people that the generator has not seen"
        problem = "far more people than expected by chance share a row with a person in train"
        raise InputError(problem, where=where, fix=fix)


def wants_embedder(metrics: Iterable[Metric]) -> bool:
    """Return True if any of the metrics can use an embedder."""
    return any(metric.uses("embedder") for metric in metrics)


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

    real = [inputs.tables[role] for role in REAL_ROLES if role in inputs.tables]
    chosen = EmbedderSettings(**settings)
    inputs.progress("training the embedder")
    embedder = train_embedder(
        real,
        inputs.schema,
        chosen,
        seed=inputs.seed,
        device=inputs.device,
        progress=inputs.progress,
    )
    found = embedder.description
    loss, accuracy = found["validation_loss"], found["validation_accuracy"]
    learned = (
        "no validation rows"
        if loss is None
        else f"validation loss {loss:.4g}, accuracy {accuracy:.4g}"
    )
    inputs.progress(f"the embedder was trained for {found['epochs']} epochs: {learned}")
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
    results: dict[str, MetricResult] = {}
    copy: EvaluationInputs | None = None
    for name, metric in metrics.items():
        there = {*inputs.tables, *({"embedder"} if inputs.embedder is not None else ())}
        absent = sorted(metric.required_inputs - there)
        if absent:
            raise InputError(
                f"metric {name} needs {absent[0]}", fix=f"pass {absent[0]} or remove the metric"
            )
        inputs.progress(f"measuring {name}")
        if len(metrics) > 1:
            advance(inputs.progress, "metrics", len(results), len(metrics))
        started = time.perf_counter()
        result = metric.measure(inputs)
        limited = {limit.statistic.partition(".")[2] for limit in limits if limit.metric == name}
        limited = {
            spec.name
            for spec in metric.statistics
            if spec.name in limited and metric.sees_copy(spec)
        }
        if limited:
            copy = copy or inputs.with_copy(_COPIED_PEOPLE)
            found = metric.on_smaller_budget().measure(copy).estimates
            result = replace(result, on_copy=tuple(one for one in found if one.name in limited))
        results[name] = replace(result, seconds=time.perf_counter() - started)
    if len(metrics) > 1:
        advance(inputs.progress, "metrics", len(results), len(metrics))
    return results


def choose_metrics(
    given: MetricsLike | None,
    policy: PolicyLike | None,
    generator: Generator | None = None,
    external: Collection[str] = (),
    embedder: bool | Mapping[str, Any] = True,
) -> tuple[dict[str, Metric], Policy]:
    """Choose the metrics to run and the policy in force.

    Settings of metrics come from the policy. ``given`` may only hold those that a table may set and
    the policy does not set.

    Args:
        given: Names of metrics, or a mapping of names to settings. None: those of the policy, or
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
    chosen, in_force = metrics_and_limits(given, policy, generator, external, embedder)
    return chosen, default_policy(chosen, external) if in_force is None else in_force


def metrics_and_limits(
    given: MetricsLike | None,
    policy: PolicyLike | None,
    generator: Generator | None = None,
    external: Collection[str] = (),
    embedder: bool | Mapping[str, Any] = True,
) -> tuple[dict[str, Metric], Policy | None]:
    """Choose as :func:`choose_metrics` does, but return no policy if none is given and no metric
    has a limit.
    """
    if given is not None and not isinstance(given, str | list | tuple | set | frozenset | Mapping):
        raise ConfigError(
            f"metrics must be names, or a mapping of names to settings, not {type(given).__name__}."
        )
    if isinstance(given, str):
        given = _names(given)
    for name in given or ():
        if not isinstance(name, str):
            raise ConfigError(f"metrics: each name must be a string, not {type(name).__name__}.")
    policy = None if policy is None else load_policy(policy)
    if policy is not None and policy.extends:
        doubted = set(default_metrics(external)) - set(default_metrics()) - set(policy.metrics)
        more = [limit for name in sorted(doubted) for limit in build_metric(name).default_limits]
        policy = replace(policy, limits=(*policy.limits, *more))
    chosen = list(given) if given is not None else default_metrics(external)
    if given is None and policy is not None:
        chosen = list(dict.fromkeys((*policy.metrics, *policy.settings)))
    if not chosen:
        raise ConfigError("no metric was selected. Fix: name at least one.")
    for name in chosen:
        build_metric(name)
    own = _table_settings(given if isinstance(given, Mapping) else {}, policy, embedder)
    limited = any(METRICS[name].default_limits for name in chosen)
    in_force = default_policy(chosen, external) if policy is None and limited else policy
    embedded = embedded_statistics(in_force) if in_force else ()
    if embedder is False and in_force and in_force.embedder is not False and embedded:
        if policy is not None:
            text = f"policy {policy.title} limits {embedded[0]}, which depends on the embedder"
            raise ConfigError(f"{text}. {_own_policy(policy, {}, False)}")
        in_force = replace(in_force, name="custom", part_of="default", embedder=False)
    settings, limits = (in_force.settings, in_force.limits) if in_force else ({}, ())
    built = {
        name: build_metric(name, {**settings.get(name, {}), **own.get(name, {})}) for name in chosen
    }
    made_for = {name: metric.for_generator(generator) for name, metric in built.items()}
    return {
        name: metric.for_limits(limits, made_for) for name, metric in made_for.items()
    }, in_force


def _table_settings(
    given: Mapping[str, Any], policy: Policy | None, embedder: bool | Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Return the settings that a table may set, by metric. Raise ConfigError if there are
    others.
    """
    own = dict[str, dict[str, Any]]()
    reserved = dict[str, dict[str, Any]]()
    for name, settings in given.items():
        if not isinstance(settings, Mapping | None):
            raise ConfigError(
                f"metric {safe_repr(name)}: settings must be a mapping of names to values."
            )
        metric = build_metric(name, settings)
        by_table = {setting.name for setting in settings_of(type(metric)) if setting.by_table}
        fixed = {} if policy is None else policy.settings.get(name, {})
        for key, value in (settings or {}).items():
            kind = own if key in by_table and key not in fixed else reserved
            kind.setdefault(name, {})[key] = value
    tuned = embedder if isinstance(embedder, Mapping) else {}
    build_embedder(tuned)
    wrong = [f"{name}.{key}" for name, settings in reserved.items() for key in settings]
    if wrong := [*wrong, *(f"embedder.{key}" for key in tuned)]:
        verb = "is a setting" if len(wrong) == 1 else "are settings"
        text = f"{', '.join(wrong)} {verb} of the policy, not of a table"
        raise ConfigError(f"{text}. {_own_policy(policy, reserved, tuned)}")
    return own


def _own_policy(
    policy: Policy | None,
    metrics: Mapping[str, Mapping[str, Any]],
    embedder: Mapping[str, Any] | bool,
) -> str:
    """Return advice with the policy to write, as YAML without the values, which can be cells of a
    table.
    """
    lines = ["metrics:"] if metrics else []
    lines += [
        f"  {name}: {{{', '.join(f'{key}: ...' for key in settings)}}}"
        for name, settings in metrics.items()
    ]
    if embedder is False:
        lines.append("embedder: false")
    elif isinstance(embedder, Mapping) and embedder:
        lines.append(f"embedder: {{{', '.join(f'{key}: ...' for key in embedder)}}}")
    if policy is None or policy.name in SHIPPED:
        lines = [
            "name: my-policy",
            f"extends: {'default' if policy is None else policy.name}",
            *lines,
        ]
        fix = "Fix: use a custom policy with these lines:"
    else:
        fix = f"Fix: add these lines to policy {policy.title}:"
    return "\n".join([fix, *lines])


def _names(given: str) -> list[str]:
    """Split at commas. An error does not quote parts of a long string, which may be the content of
    a table.
    """
    names, whole = [name.strip() for name in given.split(",") if name.strip()], safe_repr(given)
    if whole != repr(given) and not set(names) <= set(METRICS):
        raise ConfigError(f"{whole} is not a list of metrics. Fix: pass names separated by commas.")
    return names
