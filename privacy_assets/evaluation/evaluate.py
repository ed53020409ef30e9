"""``evaluate``: read tables, choose metrics, measure, and report."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privacy_assets.errors import ConfigError, InputError, redact_foreign_errors, seed_of
from privacy_assets.evaluation.measuring import embedder_settings, measure_release, require_torch
from privacy_assets.evaluation.reading import TableLike, read_inputs
from privacy_assets.generators.registry import as_generator
from privacy_assets.infra.devices import pick_device
from privacy_assets.infra.host import isolated, user_name
from privacy_assets.infra.progress import Progress, progress_context
from privacy_assets.metrics.base import Metric
from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.metrics.policies import MetricsLike, PolicyLike, metrics_and_limits
from privacy_assets.metrics.registry import METRICS, metrics_reading
from privacy_assets.policy import Policy
from privacy_assets.report.report import Report, judged
from privacy_assets.stats.estimates import MetricResult
from privacy_assets.tables.declared import Declared
from privacy_assets.tables.fingerprints import file_fingerprint
from privacy_assets.tables.given import PATHS

if TYPE_CHECKING:
    from privacy_assets.generators.base import Generator
    from privacy_assets.generators.registry import GeneratorLike


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
    allowed_values: Mapping[str, Any] | None = None,
    max_synthetic_rows: int | None = None,
    policy: PolicyLike | None = None,
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
    declared = Declared.of_arguments(locals())
    if not isinstance(embedder, bool | Mapping) or not (progress is None or callable(progress)):
        raise ConfigError(
            "embedder must be true or false, and progress a function that takes a string."
        )
    seed = seed_of(seed)
    attacked = None
    if generator is not None:
        attacked = as_generator(generator)
    external_roles = {"train", "holdout", "synthetic"}
    if reference is not None:
        external_roles.add("reference")
    selected, in_force = metrics_and_limits(metrics, policy, attacked, external_roles, embedder)
    _check_all_inputs_used(selected.values(), earlier_releases, attacked)
    embedder_to_train = embedder_settings(selected, in_force, embedder)
    if embedder_to_train is not None:
        require_torch()
    generator_info = _generator_info(attacked)
    file_state = _file_state(synthetic)
    origin = _origin(synthetic)
    with progress_context(progress) as report_progress:
        inputs = read_inputs(
            train,
            holdout,
            synthetic,
            reference,
            earlier_releases=earlier_releases,
            declared=declared,
            max_synthetic_rows=max_synthetic_rows,
            seed=seed,
            device=pick_device(device),
            progress=report_progress,
        )
        inputs = inputs.with_context(replace(inputs.context, generator=generator_info))
        measured = measure_release(inputs, selected, in_force, embedder_to_train)
    if _file_state(synthetic) != file_state:
        raise InputError(
            "the file changed during the evaluation", where="synthetic", fix="evaluate it again"
        )
    report = build_report(measured.inputs, measured.results, in_force, generator=generator_info)
    return replace(report, origin=origin)


def _check_all_inputs_used(
    metrics: Collection[Metric],
    earlier_releases: Sequence[TableLike],
    generator: Generator | None,
) -> None:
    """Raise ConfigError if earlier releases or a generator were passed, and no metric uses them."""
    if earlier_releases and not any(metric.uses("earlier_releases") for metric in metrics):
        names = " or ".join(metrics_reading("earlier_releases"))
        raise ConfigError(
            "earlier releases were passed, but no metric uses them."
            f" Fix: add {names} to the metrics."
        )
    if generator is not None and not any(metric.attacks_generator for metric in metrics):
        attackers = []
        for name, metric in METRICS.shipped().items():
            if metric.attacks_generator:
                attackers.append(name)
        raise ConfigError(
            "a generator was passed, but no metric attacks it."
            f" Fix: add {' or '.join(attackers)} to the metrics."
        )


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
        tables=inputs.sizes(),
        seed=inputs.seed,
        generator=generator,
        embedder=None if inputs.embedder is None else inputs.embedder.description,
        fingerprints={"synthetic": inputs.fingerprints["synthetic"]},
        notes=inputs.release.notes,
        has_earlier_releases=inputs.release.earlier_releases is not None,
    )
