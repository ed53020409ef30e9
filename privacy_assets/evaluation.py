"""The parts behind every door: tables in any form become metric inputs, metrics run, the policy judges."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import pandas as pd

from privacy_assets.compute.progress import Progress, advance, silent
from privacy_assets.errors import ConfigError, InputError, did_you_mean, require, shown
from privacy_assets.metrics.base import Metric
from privacy_assets.metrics.inputs import REAL_ROLES, MetricInputs
from privacy_assets.metrics.registry import METRICS, build_metric, default_metrics
from privacy_assets.policy import Policy
from privacy_assets.stats.results import MetricResult
from privacy_assets.storage.objects import location
from privacy_assets.tables.column import Column, stacked
from privacy_assets.tables.conversion import column_of
from privacy_assets.tables.given import PATHS, load
from privacy_assets.tables.roles import NOTHING, Declared, may_tell_people_apart, with_roles
from privacy_assets.tables.schema import (
    ColumnSchema,
    Frame,
    Kind,
    TableSchema,
    check_frame,
    check_not_published,
    check_same_columns,
    check_subject,
    dtype_of,
    infer_kind,
    infer_schema,
    stray_rows,
)
from privacy_assets.tables.stored import StackedTable
from privacy_assets.tables.table import Table, joint

if TYPE_CHECKING:
    from privacy_assets.embedding.embedder import Embedder
    from privacy_assets.generators.base import Generator

TableLike = Any  # a path, or a dataframe of pandas, polars, DuckDB, Arrow ...: see load
MetricsLike = str | Iterable[str] | Mapping[str, Mapping[str, Any] | None]  # names, or settings by name
_REAL = "train, holdout and reference"
_BY_CHANCE = 1e-6  # an overlap less likely than this between train and an unseen holdout is an error


def prepare_inputs(
    train: TableLike,
    holdout: TableLike,
    synthetic: TableLike,
    reference: TableLike | None = None,
    *,
    subject: str | None = None,
    kinds: Mapping[str, Kind] | None = None,
    declared: Declared = NOTHING,
    schema: TableSchema | None = None,
    released: Sequence[TableLike] = (),
    seed: int = 0,
    device: str = "cpu",
    progress: Progress = silent,
) -> MetricInputs:
    """Check the tables of one release and bring them into canonical form, synthetic numbers at the precision of real.

    ``subject`` names the column that tells people apart; it stands in every real table and never in the synthetic
    one. Without it each row is a person of its own. ``schema`` (without the subject) is inferred from all real rows
    together when None, ``kinds`` overriding and ``declared`` saying what to leave out and what is generated; then
    open columns are refused, see :mod:`privacy_assets.tables.roles`. ``released`` are earlier releases about
    the same people, of which the columns that all of them have are kept. Columns are read (of Parquet files),
    brought into form and put away one by one, see :mod:`privacy_assets.tables.memory_mapping`. Raises InputError
    naming table, column, row position and fix; also when the holdout repeats rows of train far beyond chance.
    """
    check_reading(subject, kinds)
    if not isinstance(released, list | tuple):
        raise InputError("give a list of tables", where="earlier releases", fix="put the one table into a list")
    given = {"train": train, "holdout": holdout, "reference": reference, "synthetic": synthetic}
    frames = {role: load(table, role) for role, table in given.items() if table is not None}
    names = {role: _where(role, given[role]) for role in frames}
    for role, frame in frames.items():
        check_frame(frame, where=names[role])
    declared.check([name for role in frames if role != "synthetic" for name in frames[role].columns])
    notes = _notes(frames, subject, declared)
    frames = {role: declared.left(frame, None if role == "synthetic" else subject) for role, frame in frames.items()}
    subjects = take_subjects(frames, names, subject)
    asked = schema is None
    if schema is None:
        schema = joint_schema(frames, names, kinds)
    tables = {
        role: Table.of(frames.pop(role), schema, where=names[role], synthetic=role == "synthetic")
        for role in list(frames)
    }
    if asked:
        real = [tables[role] for role in REAL_ROLES if role in tables]
        people = np.concatenate(list(joint_codes(subjects).values())) if subjects else None
        schema = with_roles(schema, real, people, declared, kinds, where=_REAL)
    tables = {role: table.under(schema) for role, table in tables.items()}
    for note in notes:
        progress(note)
    inputs = joint_inputs(
        tables, subjects, released=released, where=names["holdout"], seed=seed, device=device, progress=progress
    )
    return replace(inputs, notes=notes)


def _notes(frames: Mapping[str, Frame], subject: str | None, declared: Declared) -> tuple[str, ...]:
    """What whoever reads the verdict must know of how the tables were read: no value of a table, names only."""
    found = []
    if subject is None:
        likely = [shown(name) for name in may_tell_people_apart(frames["train"], declared.drop)]
        hint = f" {likely[0]} looks like one." if likely else ""
        found.append(
            "Each row counts as one person. If a person can have several, name the column that tells people apart as"
            f" the subject (--subject COLUMN).{hint}"
        )
    if gone := [name for name in declared.drop if name in frames["synthetic"].columns]:
        found.append(
            f"The synthetic table also holds {', '.join(map(shown, gone))}, dropped and not measured: the verdict is"
            f" about the table without. Take {'it' if len(gone) == 1 else 'them'} out before you publish the table."
        )
    return tuple(found)


def joint_inputs(
    tables: Mapping[str, Table],
    subjects: Mapping[str, Column],
    *,
    released: Sequence[TableLike] = (),
    where: str = "holdout",
    seed: int = 0,
    device: str = "cpu",
    progress: Progress = silent,
) -> MetricInputs:
    """The inputs of the metrics from ``tables`` of one schema, by role, and of the real ones the subject of each row.

    Arguments and errors as in :func:`prepare_inputs`; ``where`` is what messages call the holdout.
    """
    schema, tables = tables["train"].schema, joint(tables)
    generated = {role: table.select(schema.generated) for role, table in tables.items()} if schema.generated else {}
    if generated:  # an identifier that is published under another name
        for role, ids in subjects.items():
            generated[role] = generated[role].with_columns(ids)
    schema = schema.measured
    tables = {role: table.under(schema) for role, table in tables.items()}
    earlier = stacked_releases(released, schema) if released else None
    inputs = MetricInputs(
        schema,
        tables,
        joint_codes(subjects),
        generated=generated,
        released=earlier,
        seed=seed,
        device=device,
        progress=progress,
    )
    _check_unseen(inputs, where)
    return inputs


def check_reading(subject: object, kinds: object) -> None:
    """ConfigError unless ``subject`` can be the name of a column, and ``kinds`` name a kind for each column."""
    if subject is not None and not isinstance(subject, str):
        raise ConfigError(f"subject must be the name of a column, not {type(subject).__name__}.")
    if not isinstance(kinds, Mapping | None):
        raise ConfigError(f"kinds must be a mapping of columns to kinds, not {type(kinds).__name__}.")
    for column, kind in (kinds or {}).items():
        if not isinstance(column, str) or not isinstance(kind, str) or kind not in get_args(Kind):
            hint = did_you_mean(kind, get_args(Kind))
            raise ConfigError(f"unknown kind {shown(kind)} of column {shown(column)}.{hint}")


def stacked_releases(released: Sequence[TableLike], schema: TableSchema) -> Table:
    """Earlier releases, one after the other, with the columns that all of them share with us.

    InputError where there is none: then nobody can tell what the new table adds.
    """
    parts: list[dict[str, Column]] = []
    for number, table in enumerate(released, start=1):
        where, found = f"earlier release {number}", {}
        frame = load(table, where)
        for column in schema.columns:
            try:
                found[column.name] = column_of(frame[column.name], column, where)
            except (KeyError, InputError):  # it was not there yet, or was of another kind
                continue
        parts.append(found)
    shared = TableSchema(tuple(column for column in schema.columns if all(column.name in part for part in parts)))
    if not shared.columns:
        fix = "give releases of this table"
        raise InputError("no column is in all of them and in this table", where="earlier releases", fix=fix)
    return Table.stack([Table.of_columns(shared, part) for part in parts])


def _check_unseen(inputs: MetricInputs, where: str) -> None:
    """Raise InputError when far more people of holdout than chance gives share a row with one of train.

    Looks at rows that stand exactly twice in train and holdout together, with two people. Each such pair of people is
    one of train and one of holdout with probability 2 s_T s_H / (s (s - 1)); binomial, one-sided.
    """
    from scipy import stats  # slow to import: only where a table is measured

    ids = np.concatenate([inputs.row_ids["train"], inputs.row_ids["holdout"]])
    people = inputs.subject_codes("train", "holdout")
    order = np.argsort(ids, kind="stable")
    order = order[np.bincount(ids)[ids[order]] == 2].reshape(-1, 2)  # a row of train comes first
    crossing = (order[:, 0] < len(inputs.train)) & (order[:, 1] >= len(inputs.train))
    pairs = np.column_stack([np.sort(people[order], axis=1), crossing])
    pairs = np.unique(pairs[pairs[:, 0] < pairs[:, 1]], axis=0)
    others, total = np.unique(people[len(inputs.train) :]).size, int(people.max()) + 1
    chance = 2 * others * (total - others) / max(total * (total - 1), 1)
    shared = int(pairs[:, 2].sum())
    if shared and stats.binom.sf(shared - 1, len(pairs), chance) < _BY_CHANCE:
        fix = "give a holdout of people that the generator has not seen"
        raise InputError(f"{shared} rows stand in train too, far more than chance gives", where=where, fix=fix)


def _where(role: str, table: TableLike | None) -> str:
    return f"{role} ({location(table)})" if isinstance(table, PATHS) else role


def take_subjects(frames: dict[str, Any], names: Mapping[str, str], subject: str | None) -> dict[str, Column]:
    """Remove the subject column from the real frames (in place of the mapping): the ids of their rows, by role.

    ``names`` are what messages call the tables. InputError where the column or a subject is missing, or it stands in
    the synthetic table.
    """
    if subject is None:
        return {}
    if "synthetic" in frames:
        check_not_published(frames["synthetic"].columns, subject, names["synthetic"])
    ids = {}
    for role in REAL_ROLES:
        if role not in frames:
            continue
        check_subject(frames[role].columns, subject, names[role])
        ids[role] = subject_column(frames[role][subject], names[role])
        frames[role] = frames[role].drop(columns=[subject])
    return ids


def subject_column(series: pd.Series, where: str) -> Column:
    """The ids of people as text: 7, 7.0 and "7" are one person, whatever a file makes of the column.

    InputError where one is missing.
    """
    name = str(series.name)
    ids = column_of(series, ColumnSchema(name, "categorical", False, "str"), where)
    missing = np.flatnonzero(ids.missing)
    if len(missing):
        fix = "give every row the id of its person"
        raise InputError("the subject is missing", where=where, column=name, row=int(missing[0]), fix=fix)
    return ids


def joint_codes(subjects: Mapping[str, Column]) -> dict[str, np.ndarray]:
    """Int64 code of the subject of each row, coded jointly over the roles."""
    if not subjects:
        return {}
    ends = np.cumsum([len(column) for column in subjects.values()])[:-1]
    codes, _ = pd.factorize(stacked(list(subjects.values())).cells)
    return dict(zip(subjects, np.split(codes.astype(np.int64), ends), strict=True))


def joint_schema(
    frames: Mapping[str, Frame], names: Mapping[str, str], kinds: Mapping[str, Kind] | None
) -> TableSchema:
    """Schema of the real tables (by role, without the subject): kinds and precision from all rows, dtypes of train.

    ``names`` are what messages call the tables. InputError when columns differ, or a column reads as another kind in
    one table than in another: a single text among the numbers of train would make every number of it a category that no
    other table has. Whole and other numbers agree; ``kinds`` settles the rest.
    """
    train = frames["train"]
    real = {role: frames[role] for role in REAL_ROLES if role in frames}
    for role, frame in real.items():
        fix = "give every table the same columns"
        check_same_columns(train.columns, names["train"], frame.columns, names[role], fix)
    dtypes = _check_kinds_agree(real, names, kinds or {})
    return infer_schema(StackedTable(list(real.values())), kinds, where=_REAL, dtypes=dtypes)


def _check_kinds_agree(
    real: Mapping[str, Frame], names: Mapping[str, str], kinds: Mapping[str, Kind]
) -> dict[str, str]:
    """Raise InputError where kinds differ; the dtypes of train."""
    seen: dict[str, tuple[str, str]] = {}
    dtypes: dict[str, str] = {}
    for role, frame in real.items():
        for name in frame.columns:
            series = frame[name]
            dtypes.setdefault(name, dtype_of(frame, series))
            if name in kinds or series.isna().all():
                continue
            kind = infer_kind(series, names[role])
            kind = "numeric" if kind == "integer" else kind
            other, where = seen.setdefault(name, (kind, role))
            if kind != other:
                fix = f"make the values alike, or declare the kind (kinds={{...}}, --kind {name}=categorical)"
                problem, row = f"it is {kind} here and {other} in {names[where]}", None
                if kind == "categorical" and other == "numeric":
                    row = next(iter(stray_rows(series).tolist()), None)
                raise InputError(problem, where=names[role], column=name, row=row, fix=fix)
    return dtypes


def choose_metrics(
    given: MetricsLike | None,
    policy: Policy | None,
    generator: Generator | None = None,
    external: Collection[str] = (),
) -> tuple[dict[str, Metric], Policy]:
    """Metrics to run and the policy in force; ConfigError for unknown metrics and settings.

    Without metrics: those of the policy, or the default ones; ``external`` are the roles of the tables that were made
    outside, which some of these are for. Without a policy: the default limits of the metrics. ``generator`` is that of
    the synthetic table, for the metrics that attack it; ConfigError where they need it.
    """
    if given is not None and not isinstance(given, str | list | tuple | set | frozenset | Mapping):
        raise ConfigError(f"metrics are names, or a mapping of names to settings, not {type(given).__name__}.")
    if isinstance(given, str):
        given = _names(given)
    if policy is not None and policy.extends and given is None:
        doubted = set(default_metrics(external)) - set(default_metrics()) - set(policy.metrics)
        more = [limit for name in sorted(doubted) for limit in build_metric(name).default_limits]
        policy = replace(policy, limits=(*policy.limits, *more))
    chosen = list(given) if given is not None else list(policy.metrics) if policy else default_metrics(external)
    if not chosen:
        raise ConfigError("no metric was chosen.")
    settings = given if isinstance(given, Mapping) else {}
    for name, own in settings.items():
        if not isinstance(own, Mapping | None):
            raise ConfigError(f"metric {shown(name)}: settings must be a mapping of names to values.")
    built = {name: build_metric(name, dict(settings.get(name) or {})) for name in chosen}
    made_for = {name: metric.for_generator(generator) for name, metric in built.items()}
    in_force = policy if policy is not None else Policy.default(chosen)
    return {name: metric.under(in_force, made_for) for name, metric in made_for.items()}, in_force


def _names(given: str) -> list[str]:
    """Names separated by commas; ConfigError that shows none of the parts of a long text, which can be a table's."""
    names, whole = [name.strip() for name in given.split(",") if name.strip()], shown(given)
    if whole != repr(given) and not set(names) <= set(METRICS):
        raise ConfigError(f"{whole} does not name metrics. Fix: give their names, separated by commas.")
    return names


def wants_embedder(metrics: Iterable[Metric]) -> bool:
    """True when any of the metrics can use an embedder."""
    return any(metric.reads("embedder") for metric in metrics)


def attach_embedder(inputs: MetricInputs, embedder: Embedder) -> MetricInputs:
    """The same inputs with an embedder."""
    return replace(inputs, embedder=embedder)


def require_torch() -> None:
    """MissingPackage where no embedder can be trained, before any work is done."""
    require("torch", "the embedder", "torch", "leave the embedded statistics out: embedder=False, or --no-embedder")


def fit_embedder(inputs: MetricInputs, **settings: Any) -> Embedder:
    """Train the contrastive encoder on all real rows of ``inputs``; ``settings`` are those of EmbedderSettings."""
    require_torch()
    from privacy_assets.embedding.embedder import train_embedder
    from privacy_assets.embedding.settings import EmbedderSettings

    real = [inputs.tables[role] for role in REAL_ROLES if role in inputs.tables]
    chosen = EmbedderSettings(**settings)
    inputs.progress("training the embedder")
    return train_embedder(real, inputs.schema, chosen, seed=inputs.seed, device=inputs.device, progress=inputs.progress)


def run_metrics(inputs: MetricInputs, metrics: Mapping[str, Metric]) -> dict[str, MetricResult]:
    """Run the metrics in order; ``inputs.progress`` hears of each. InputError when a metric lacks what it needs."""
    results = {}
    for name, metric in metrics.items():
        absent = sorted(metric.needs - set(inputs.tables) - ({"embedder"} if inputs.embedder is not None else set()))
        if absent:
            raise InputError(f"metric {name} needs {absent[0]}", fix=f"give {absent[0]} or leave the metric out")
        inputs.progress(f"measuring {name}")
        results[name] = metric.evaluate(inputs)
        if len(metrics) > 1:
            advance(inputs.progress, "metrics", len(results), len(metrics))
    return results
