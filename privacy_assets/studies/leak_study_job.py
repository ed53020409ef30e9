"""Job of Dagster that runs the leak study, which measures whether the metrics detect leaks in a
table.

It is an op job, because an asset would be part of "Materialize all".
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from privacy_assets.dagster.assets import IO_KEY, type_of
from privacy_assets.dagster.context import device_of, op_tags, resource_keys, target_of, workers_of
from privacy_assets.dagster.failures import checked_step
from privacy_assets.dagster.resources import home_of, load_value
from privacy_assets.dagster.table import AssetLike, DagsterTable, resolve_dagster_table
from privacy_assets.errors import ConfigError
from privacy_assets.evaluation.measuring import attach_embedder
from privacy_assets.evaluation.reading import build_inputs
from privacy_assets.gate.envelope import ReleaseTarget
from privacy_assets.infra.progress import Lines, Progress
from privacy_assets.infra.storage import storage_of
from privacy_assets.metrics.base import Metric
from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.pipeline.spec import TableSpec

if TYPE_CHECKING:
    from privacy_assets.studies.leak_study import LinearFit, StudyPoint

STUDY = "leak_study"
_TEXT = (
    "Every metric evaluates tables with leaked training rows (Palacios 4.2). A statistic that"
    " does not rise with the leak is not useful for these data. The rows of reference are used as"
    " the release. It does not publish a table."
)


class LeakStudyConfig(dg.Config):
    """Run configuration of the study: leaked fractions, noise and metrics."""

    fractions: list[float] = Field(
        [0.0, 0.25, 0.5, 0.75, 1.0], description="Fractions of training rows, 0 to 1."
    )
    noise: list[float] = Field(
        [0.0],
        description="Levels of noise on the leaked rows; all configurations of normal, Poisson and"
        " category noise are run. The paper has [0, 0.05].",
    )
    metrics: list[str] = Field(
        [], description="Names of metrics of the table; []: all that the study can run."
    )


def build_leak_study(
    table: TableSpec,
    *,
    assets: Mapping[str, AssetLike] | None = None,
    partitions_def: dg.PartitionsDefinition | None = None,
    gpu_tags: Mapping[str, Any] | None = None,
    tags: Mapping[str, str] | None = None,
    key_prefix: str | Sequence[str] | None = None,
) -> dg.Definitions:
    """Build the job ``<name>_leak_study`` of a table, which uses the splits that the last run of
    its pipeline stored.

    Merge it with the definitions of :func:`.build_privacy_assets`, which have the pipeline. All
    arguments are the same as there.

    Args:
        table: Settings of the table.
        assets: Your assets with rows by role.
        partitions_def: Partitions of the table.
        gpu_tags: Op tags of the steps that can use a device.
        tags: Tags of all jobs.
        key_prefix: Prefix of all asset keys.

    Returns:
        Definitions with the job.

    Raises:
        ConfigError: If a setting is invalid, the table has no reference, which is used as the
            release that does not leak, or the study can run none of its metrics.
    """
    dagster_table = resolve_dagster_table(
        table,
        assets=assets,
        partitions_def=partitions_def,
        gpu_tags=gpu_tags,
        tags=tags,
        key_prefix=key_prefix,
    )
    if "reference" not in dagster_table.resolved.roles:
        raise ConfigError(
            f"table {table.name}: the leak study requires the rows of reference. Fix: give split a"
            " share of reference, or provide the table."
        )
    if not able_metrics(dagster_table):
        raise ConfigError(f"table {table.name}: the leak study can run none of its metrics.")
    return dg.Definitions(jobs=[_study_job(dagster_table)])


def able_metrics(table: DagsterTable, names: Sequence[str] = ()) -> dict[str, Metric]:
    """Return the metrics that the study can run: they compare a synthetic table with train and
    holdout.

    Args:
        table: Settings of the table.
        names: Metrics to select. Empty: all.

    Raises:
        ConfigError: If the study cannot run a selected metric.
    """
    available_inputs = {"train", "holdout", "synthetic"}
    if table.resolved.embeds:
        available_inputs.add("embedder")
    able = {}
    for name, metric in table.resolved.metrics.items():
        if not metric.in_leak_studies or "synthetic" not in metric.required_inputs:
            continue
        if metric.required_inputs <= available_inputs:
            able[name] = metric
    if not names:
        return able
    for position, name in enumerate(names):
        # The message contains the position, not the name: run configuration can refer to
        # environment variables ({env: ...}), whose values must not be displayed.
        if name not in able:
            raise ConfigError(
                f"table {table.name}, metrics[{position}] is not a metric that this study can run."
                f" Known: {', '.join(able)}."
            )
    return {name: able[name] for name in names}


def _study_job(table: DagsterTable) -> dg.JobDefinition:
    """Build the job of the study on the stored tables of the last run.

    It writes page and points to a private folder, and records a materialization of the asset key
    ``leak_study`` with regression lines as metadata.
    """
    able = able_metrics(table)
    uses_embedder = _uses_embedder(table, able)
    on_device = uses_embedder or any(metric.uses_device for metric in able.values())
    assets = [*table.resolved.roles]
    if uses_embedder:
        assets.append("embedder")

    @dg.op(
        name=f"{table.name}__{STUDY}",
        out=dg.Out(dg.Nothing),
        required_resource_keys={IO_KEY, *resource_keys(table, on_device)},
        tags=op_tags(table, on_device).get("op_tags"),
        description=_TEXT,
    )
    @checked_step
    def leak_study(context: dg.OpExecutionContext, config: LeakStudyConfig) -> None:
        from privacy_assets.studies.leak_study import PAGE

        target = target_of(context, table)
        home = home_of(context.instance)
        key = table.key(STUDY)
        io_manager = context.resources.privacy_io
        folder = io_manager.folder(key, target.partition, home=home)
        storage = storage_of(folder)
        storage.make_private()
        values = {name: _stored_value(context, table, target, name) for name in assets}
        progress = Lines(context.log.info)
        title = f"Leak study of {target}"
        # an interrupted study resumes from the points in the folder
        with (
            storage.edited() as local_folder,
            device_of(context, on_device) as device,
            workers_of(table),
        ):
            metrics = _selected_metrics(table, config)
            inputs = _study_inputs(table, values, metrics, device, progress)
            points = _study_points(inputs, metrics, config, local_folder, title)
        page = dg.MetadataValue.path(str(folder / PAGE))
        metadata = {"path": page, **study_metadata(points)}
        event = dg.AssetMaterialization(key, partition=target.partition, metadata=metadata)
        context.log_event(event)

    @dg.job(
        name=f"{table.name}_{STUDY}",
        partitions_def=table.partitions_def,
        tags=table.run_tags,
        description=(
            f"Leak study of {table.name}: which metrics detect leaked rows? Run its pipeline"
            " first. The study does not publish."
        ),
    )
    def study() -> None:
        leak_study()

    return study


def _uses_embedder(table: DagsterTable, metrics: Mapping[str, Metric]) -> bool:
    return any(table.resolved.uses_embedder(metric) for metric in metrics.values())


def _stored_value(
    context: dg.OpExecutionContext, table: DagsterTable, target: ReleaseTarget, asset: str
) -> Any:
    """Load a value that the last run of the table stored, such as "train" or "embedder"."""
    key = table.key(asset)
    home = home_of(context.instance)
    folder = context.resources.privacy_io.folder(key, target.partition, home=home)
    return load_value(folder, key, target.partition, type_of(table, asset).typing_type)


def _selected_metrics(table: DagsterTable, config: LeakStudyConfig) -> dict[str, Metric]:
    """Return the metrics that the run configuration selects.

    Raises:
        ConfigError: If the study cannot run one of them, or the configuration has no fraction or
            no noise.
    """
    metrics = able_metrics(table, config.metrics)
    if not config.fractions or not config.noise:
        raise ConfigError(f"table {table.name}: fractions and noise need at least one number each.")
    return metrics


def _study_inputs(
    table: DagsterTable,
    values: Mapping[str, Any],
    metrics: Mapping[str, Metric],
    device: str,
    progress: Progress,
) -> EvaluationInputs:
    """Return the inputs of the metrics, with the rows of the reference as the release."""
    inputs = build_inputs(
        {"train": values["train"], "holdout": values["holdout"]},
        values["reference"],
        seed=table.resolved.spec.run.seed,
        device=device,
        progress=progress,
    )
    if _uses_embedder(table, metrics):
        return attach_embedder(inputs, values["embedder"])
    return inputs


def _study_points(
    inputs: EvaluationInputs,
    metrics: Mapping[str, Metric],
    config: LeakStudyConfig,
    folder: Path,
    title: str,
) -> "list[StudyPoint]":
    """Run the study, and write its files to ``folder``, from which an interrupted study resumes."""
    from privacy_assets.studies.leak_study import every_noise, leak_study, leaky_cases

    cases = leaky_cases(
        inputs.train,
        inputs.synthetic,
        fractions=config.fractions,
        noises=every_noise(config.noise),
        seed=inputs.seed,
    )
    return leak_study(inputs, cases, metrics, folder, title=title)


def study_metadata(points: "Sequence[StudyPoint]") -> dict[str, Any]:
    """Return the linear fits of the first series, which has the least noise, and one plot per
    metric.

    Args:
        points: Points of the study, those of the first series first.

    Returns:
        The metadata. It includes the number of statistics that decrease: a confidence interval lies
        entirely on the less risky side of an earlier one.
    """
    from privacy_assets.report.svg import line_markdown
    from privacy_assets.studies.leak_study import linear_fits

    series = points[0].series
    series_points = [point for point in points if point.series == series]
    metadata: dict[str, Any] = {"tables": len(points), "series": series}
    fits = linear_fits(series_points)
    if fits:
        metadata["lines"] = dg.MetadataValue.table([_fit_record(fit) for fit in fits])
        metadata["statistics that decrease"] = sum(not fit.rises for fit in fits)
    for statistic in _first_statistics(series_points[0].estimates):
        title = f"{statistic} by leak"
        curve = [(point.x, point.estimates[statistic][0]) for point in series_points]
        image = line_markdown(title, curve)
        if image:
            metadata[title] = dg.MetadataValue.md(image)
    return metadata


def _fit_record(fit: "LinearFit") -> dg.TableRecord:
    return dg.TableRecord(
        {
            "statistic": fit.statistic,
            "slope": f"{fit.slope:.3g}",
            "at 0": f"{fit.intercept:.3g}",
            "R²": f"{fit.r2:.3f}",
            "never back": "yes" if fit.rises else "NO",
        }
    )


def _first_statistics(names: Iterable[str]) -> list[str]:
    """Return the first statistic of each metric, from names such as "copies.exact_share"."""
    statistics: dict[str, str] = {}
    for name in names:
        metric = name.partition(".")[0]
        statistics.setdefault(metric, name)
    return list(statistics.values())
