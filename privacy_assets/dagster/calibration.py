"""The leaky study of a table as an asset: do the metrics see a leak in these data? No part of the pipeline."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from privacy_assets.compute.progress import Lines, Progress
from privacy_assets.dagster.assets import IO_KEY, common, split_ins
from privacy_assets.dagster.metadata import line_picture
from privacy_assets.dagster.places import place_of
from privacy_assets.dagster.redaction import checked_step
from privacy_assets.dagster.resources import home_of
from privacy_assets.dagster.scores import embedder_in
from privacy_assets.dagster.settings import TableSettings
from privacy_assets.dagster.step_device import device_of, needed, placed, workers_of
from privacy_assets.errors import ConfigError
from privacy_assets.evaluation import attach_embedder
from privacy_assets.metrics.base import Metric
from privacy_assets.pipeline.measuring import metric_inputs
from privacy_assets.storage.files import private_folder
from privacy_assets.storage.objects import ObjectPath, local_copy

if TYPE_CHECKING:
    from privacy_assets.calibration import Fit, Point

STUDY = "leaky_study"
_TEXT = (
    "Leaks training rows on purpose and has every metric judge the tables (Palacios 4.2): a statistic that does not "
    "rise with the leak is of no use on these data. The rows of reference stand for the release. Nothing is published."
)


class LeakyStudyConfig(dg.Config):
    """What a run of the study leaks, and what judges it."""

    fractions: list[float] = Field([0.0, 0.25, 0.5, 0.75, 1.0], description="Fractions of training rows, 0 to 1.")
    noise: list[float] = Field(
        [0.0],
        description="Levels of noise on the leaked rows; all configurations of normal, Poisson and category noise are "
        "run. The paper has [0, 0.05].",
    )
    metrics: list[str] = Field([], description="Names of metrics of the table; [] are all that the study can run.")


def has_study(settings: TableSettings) -> bool:
    """True when there are unseen rows to stand for the release, and a metric to judge them."""
    return "reference" in settings.roles and bool(able_metrics(settings))


def able_metrics(settings: TableSettings, names: Sequence[str] = ()) -> dict[str, Metric]:
    """Metrics that set a synthetic table beside train and holdout, all or those named; ConfigError for others."""
    there = {"train", "holdout", "synthetic", *(["embedder"] if settings.embeds else [])}
    own = {name: metric for name, metric in settings.metrics.items() if metric.in_studies}
    able = {name: metric for name, metric in own.items() if "synthetic" in metric.needs and metric.needs <= there}
    for position, name in enumerate(names):
        # By its position: whoever launches the study can have an environment variable stand there, {env: ...}.
        if name not in able:
            text = f"metrics[{position}] is none that this study can run; these are: {', '.join(able)}."
            raise ConfigError(f"table {settings.name}, {text}")
    return {name: able[name] for name in names} if names else able


def build_leaky_study(settings: TableSettings) -> dg.AssetsDefinition:
    """The study: a page and points in the private folder of the asset, and the lines as metadata."""
    metrics = able_metrics(settings).values()
    embedder = embedder_in(settings) if any(settings.uses_embedder(metric) for metric in metrics) else {}
    on_device = bool(embedder) or any(metric.uses_device for metric in metrics)

    @dg.asset(
        **common(settings, STUDY, "html"),
        ins={**split_ins(settings), **embedder},
        required_resource_keys={IO_KEY, *needed(settings, on_device)},
        **placed(settings, on_device),
        description=_TEXT,
    )
    @checked_step
    def leaky_study(context: dg.AssetExecutionContext, config: LeakyStudyConfig, **inputs: Any) -> dg.MaterializeResult:
        from privacy_assets.report.study import PAGE, POINTS, write_study

        place, home = place_of(context, settings), home_of(context.instance)
        folder = private_folder(context.resources.privacy_io.folder(context.asset_key, place.partition, home=home))
        title = f"Calibration of {place}"
        with local_copy(folder) as here:
            try:
                with device_of(context, on_device) as device, workers_of(settings):
                    points = _points(settings, inputs, config, here / POINTS, device, Lines(context.log.info))
                lines = write_study(here, title, points)
            finally:  # one that was stopped goes on
                if isinstance(folder, ObjectPath):
                    folder.upload(here)
        page = dg.MetadataValue.path(str(folder / PAGE))
        return dg.MaterializeResult(metadata={"path": page, **study_metadata(points, lines)})

    return leaky_study


def _points(
    settings: TableSettings,
    inputs: Mapping[str, Any],
    config: LeakyStudyConfig,
    path: Path,
    device: str,
    progress: Progress,
) -> "list[Point]":
    """The points of the study, each a line of the file ``path``: one that was stopped goes on."""
    from privacy_assets.calibration import every_noise, leaky_cases, run_study

    metrics = able_metrics(settings, config.metrics)
    if not config.fractions or not config.noise:
        raise ConfigError(f"table {settings.name}: fractions and noise need at least one number each.")
    tables = {role: inputs[role] for role in ("train", "holdout")}
    ready = metric_inputs(tables, inputs["reference"].rows, seed=settings.seed, device=device, progress=progress)
    if any(settings.uses_embedder(metric) for metric in metrics.values()):
        ready = attach_embedder(ready, inputs["embedder"])
    cases = leaky_cases(
        ready.train, ready.synthetic, fractions=config.fractions, noises=every_noise(config.noise),
        seed=settings.seed,
    )  # fmt: skip
    return run_study(ready, cases, metrics, path)


def study_metadata(points: "Sequence[Point]", lines: "Sequence[Fit]") -> dict[str, Any]:
    """The lines of the series with the least noise, which of them go back, and a picture a metric."""
    first = points[0].series
    shown = [line for line in lines if line.series == first]
    records = [
        dg.TableRecord({"statistic": line.statistic, "slope": f"{line.slope:.3g}", "at 0": f"{line.intercept:.3g}",
                        "R²": f"{line.r2:.3f}", "never back": "yes" if line.rises else "NO"})
        for line in shown
    ]  # fmt: skip
    metadata: dict[str, Any] = {"tables": len(points), "series": first}
    if records:
        metadata["lines"] = dg.MetadataValue.table(records)
        metadata["statistics that go back"] = sum(not line.rises for line in shown)
    own = [point for point in points if point.series == first]
    for metric in dict.fromkeys(name.partition(".")[0] for name in own[0].estimates):
        statistic = next(name for name in own[0].estimates if name.partition(".")[0] == metric)
        if image := line_picture(f"{statistic} by leak", [(point.x, point.estimates[statistic][0]) for point in own]):
            metadata[f"{statistic} by leak"] = image
    return metadata
