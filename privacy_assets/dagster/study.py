"""Job of the leak study, which measures whether the metrics detect leaks in a table.

It is an op job, because an asset would be part of "Materialize all".
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from privacy_assets.dagster.assets import IO_KEY, type_of
from privacy_assets.dagster.context import device_of, op_tags, resource_keys, target_of, workers_of
from privacy_assets.dagster.failures import checked_step
from privacy_assets.dagster.resources import home_of, load_value
from privacy_assets.dagster.table import DagsterTable
from privacy_assets.errors import ConfigError
from privacy_assets.evaluation.evaluate import attach_embedder, build_inputs
from privacy_assets.infra.files import private_folder
from privacy_assets.infra.objects import ObjectPath, local_copy
from privacy_assets.infra.progress import Lines, Progress
from privacy_assets.metrics.base import Metric

if TYPE_CHECKING:
    from privacy_assets.evaluation.leak_study import StudyPoint

STUDY = "leak_study"
_TEXT = (
    "Every metric evaluates tables with leaked training rows (Palacios 4.2). A statistic that"
    " does not rise with the "
    "leak is not useful for these data. The rows of reference are used as the release. It does"
    " not publish a table."
)


class LeakStudyConfig(dg.Config):
    """Run configuration of the study: leaked fractions, noise and metrics."""

    fractions: list[float] = Field(
        [0.0, 0.25, 0.5, 0.75, 1.0], description="Fractions of training rows, 0 to 1."
    )
    noise: list[float] = Field(
        [0.0],
        description="Levels of noise on the leaked rows; all configurations of normal, Poisson and"
        " category noise are "
        "run. The paper has [0, 0.05].",
    )
    metrics: list[str] = Field(
        [], description="Names of metrics of the table; []: all that the study can run."
    )


def has_study(table: DagsterTable) -> bool:
    """Return True if the table has a reference, used as the leak-free release, and a metric that
    the study can run.
    """
    return "reference" in table.resolved.roles and bool(able_metrics(table))


def able_metrics(table: DagsterTable, names: Sequence[str] = ()) -> dict[str, Metric]:
    """Return the metrics that the study can run: they compare a synthetic table with train and
    holdout.

    Args:
        table: Settings of the table.
        names: Metrics to select. Empty: all.

    Raises:
        ConfigError: If the study cannot run a selected metric.
    """
    there = {"train", "holdout", "synthetic", *(["embedder"] if table.resolved.embeds else [])}
    own = {
        name: metric for name, metric in table.resolved.metrics.items() if metric.in_leak_studies
    }
    able = {
        name: metric
        for name, metric in own.items()
        if "synthetic" in metric.required_inputs and metric.required_inputs <= there
    }
    for position, name in enumerate(names):
        # The message contains the position, not the name: run configuration can refer to
        # environment variables ({env: ...}), whose values must not be displayed.
        if name not in able:
            text = (
                f"metrics[{position}] is not a metric that this study can run. Known:"
                f" {', '.join(able)}."
            )
            raise ConfigError(f"table {table.name}, {text}")
    return {name: able[name] for name in names} if names else able


def build_leak_study(table: DagsterTable) -> dg.JobDefinition:
    """Build the job of the study on the stored tables of the last run.

    It writes page and points to a private folder, and records a materialization of the asset key
    ``leak_study`` with regression lines as metadata.
    """
    metrics = able_metrics(table).values()
    embedder = (
        ["embedder"] if any(table.resolved.uses_embedder(metric) for metric in metrics) else []
    )
    on_device = bool(embedder) or any(metric.uses_device for metric in metrics)

    @dg.op(
        name=f"{table.name}__{STUDY}",
        out=dg.Out(dg.Nothing),
        required_resource_keys={IO_KEY, *resource_keys(table, on_device)},
        tags=op_tags(table, on_device).get("op_tags"),
        description=_TEXT,
    )
    @checked_step
    def leak_study(context: dg.OpExecutionContext, config: LeakStudyConfig) -> None:
        from privacy_assets.evaluation.leak_study import PAGE

        target, home = target_of(context, table), home_of(context.instance)
        stored, key = context.resources.privacy_io, table.key(STUDY)
        folder = private_folder(stored.folder(key, target.partition, home=home))
        inputs = {
            name: load_value(
                stored.folder(table.key(name), target.partition, home=home),
                table.key(name),
                target.partition,
                type_of(table, name).typing_type,
            )
            for name in (*table.resolved.roles, *embedder)
        }
        progress = Lines(context.log.info)
        with local_copy(folder) as here:
            try:
                with device_of(context, on_device) as device, workers_of(table):
                    points = _points(
                        table, inputs, config, here, f"Leak study of {target}", device, progress
                    )
            finally:  # an interrupted study resumes from the uploaded points
                if isinstance(folder, ObjectPath):
                    folder.upload(here)
        page = dg.MetadataValue.path(str(folder / PAGE))
        metadata = {"path": page, **study_metadata(points)}
        context.log_event(
            dg.AssetMaterialization(key, partition=target.partition, metadata=metadata)
        )

    @dg.job(
        name=f"{table.name}_{STUDY}",
        partitions_def=table.partitions_def,
        tags=table.run_tags,
        description=(
            f"Leak study of {table.name}: which metrics detect leaked rows? Run its pipeline"
            " first. The study does not"
            " publish."
        ),
    )
    def study() -> None:
        leak_study()

    return study


def _points(
    table: DagsterTable,
    inputs: Mapping[str, Any],
    config: LeakStudyConfig,
    folder: Path,
    title: str,
    device: str,
    progress: Progress,
) -> "list[StudyPoint]":
    """Run the study, and write its files to ``folder``, from which an interrupted study resumes."""
    from privacy_assets.evaluation.leak_study import every_noise, leak_study, leaky_cases

    metrics = able_metrics(table, config.metrics)
    if not config.fractions or not config.noise:
        raise ConfigError(f"table {table.name}: fractions and noise need at least one number each.")
    tables, seed = (
        {role: inputs[role] for role in ("train", "holdout")},
        table.resolved.spec.run.seed,
    )
    ready = build_inputs(tables, inputs["reference"], seed=seed, device=device, progress=progress)
    if any(table.resolved.uses_embedder(metric) for metric in metrics.values()):
        ready = attach_embedder(ready, inputs["embedder"])
    cases = leaky_cases(
        ready.train,
        ready.synthetic,
        fractions=config.fractions,
        noises=every_noise(config.noise),
        seed=seed,
    )
    return leak_study(ready, cases, metrics, folder, title=title)


def study_metadata(points: "Sequence[StudyPoint]") -> dict[str, Any]:
    """Return the linear fits of the first series, which has the least noise, and one plot per
    metric.

    The number of statistics that decrease is included: a confidence interval lies entirely on the
    less risky side of an earlier one.
    """
    from privacy_assets.evaluation.leak_study import linear_fits
    from privacy_assets.report.svg import line_markdown

    first = [point for point in points if point.series == points[0].series]
    lines = linear_fits(first)
    records = [
        dg.TableRecord(
            {
                "statistic": line.statistic,
                "slope": f"{line.slope:.3g}",
                "at 0": f"{line.intercept:.3g}",
                "R²": f"{line.r2:.3f}",
                "never back": "yes" if line.rises else "NO",
            }
        )
        for line in lines
    ]
    metadata: dict[str, Any] = {"tables": len(points), "series": points[0].series}
    if records:
        metadata["lines"] = dg.MetadataValue.table(records)
        metadata["statistics that decrease"] = sum(not line.rises for line in lines)
    for metric in dict.fromkeys(name.partition(".")[0] for name in first[0].estimates):
        statistic = next(name for name in first[0].estimates if name.partition(".")[0] == metric)
        title = f"{statistic} by leak"
        if image := line_markdown(
            title, [(point.x, point.estimates[statistic][0]) for point in first]
        ):
            metadata[title] = dg.MetadataValue.md(image)
    return metadata
