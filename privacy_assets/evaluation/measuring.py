"""Parts of an evaluation, in their order.

:func:`measure_release` has all of them, for ``evaluate`` and the checks of Dagster. The pipeline
calls two of them: :func:`fit_embedder` in the step ``embed``, and :func:`measure` in ``score``.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from privacy_assets.errors import InputError, PrivacyAssetsError, StepError, require
from privacy_assets.evaluation.exchangeability import without_shift
from privacy_assets.evaluation.reading import with_notes
from privacy_assets.infra.host import isolated
from privacy_assets.infra.progress import Progress, advance, silent
from privacy_assets.metrics.base import Metric
from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.metrics.registry import METRICS
from privacy_assets.policy import Limit, Policy
from privacy_assets.stats.estimates import MetricResult
from privacy_assets.tables.roles import check_known_categories
from privacy_assets.tables.table import Table

if TYPE_CHECKING:
    from privacy_assets.distances.embedder import Embedder

_COPIED_PEOPLE = 2_000  # people of train in the verbatim copy that shows whether a limit can fail


class Measured(NamedTuple):
    """Results of one release.

    Attributes:
        inputs: Tables, with the notes for the report and the embedder.
        results: Results by metric.
        attempt: Number of the publication attempt.
    """

    inputs: EvaluationInputs
    results: dict[str, MetricResult]
    attempt: int


def measure_release(
    inputs: EvaluationInputs,
    metrics: Mapping[str, Metric],
    policy: Policy | None,
    embedder: Mapping[str, Any] | None,
) -> Measured:
    """Check, describe and measure a release whose tables the user brought.

    Args:
        inputs: Tables of the release, see :func:`.reading.read_inputs`.
        metrics: Metrics by name.
        policy: Policy in force. None: there are no limits.
        embedder: Settings of the embedder to train, see :func:`embedder_settings`. None: none.

    Returns:
        The results.

    Raises:
        InputError: If the synthetic table has categories that no real table has, or a required
            input of a metric is missing.
        MissingPackage: If the embedder needs torch and it is not installed.
    """
    check_known_categories(inputs.synthetic, inputs.real, where="synthetic")
    inputs = with_notes(inputs, policy, is_external=True)
    if embedder is not None:
        inputs = with_embedder(inputs, **embedder)
    limits = policy.limits if policy else ()
    return measure(inputs, metrics, limits, is_external=True)


def embedder_settings(
    metrics: Mapping[str, Metric], policy: Policy | None, embedder: bool | Mapping[str, Any] = True
) -> Mapping[str, Any] | None:
    """Return the settings of the embedder, or None if none is trained.

    Args:
        metrics: Metrics by name.
        policy: Policy in force. None: the default settings.
        embedder: Choice of the user. False: none is trained.
    """
    if embedder is False or not wants_embedder(metrics.values()):
        return None
    if policy is None:
        return {}
    if policy.embedder is False:
        return None
    return policy.embedder


def wants_embedder(metrics: Iterable[Metric]) -> bool:
    """Return True if any of the metrics can use an embedder."""
    return any(metric.uses("embedder") for metric in metrics)


def require_torch() -> None:
    """Raise MissingPackage if torch, which trains the embedder, is not installed."""
    require(
        "torch",
        "the embedder",
        "torch",
        "disable embedded statistics by embedder=False, or --no-embedder",
    )


def with_embedder(inputs: EvaluationInputs, **settings: Any) -> EvaluationInputs:
    """Return the inputs with an embedder, trained on their real rows.

    Args:
        inputs: Tables, seed and device.
        **settings: Settings of :class:`.EmbedderSettings`.

    Raises:
        MissingPackage: If torch is not installed.
        ConfigError: If a setting is unknown or out of range.
    """
    embedder = fit_embedder(
        inputs.real,
        settings,
        seed=inputs.seed,
        device=inputs.device,
        progress=inputs.progress,
    )
    return attach_embedder(inputs, embedder)


def attach_embedder(inputs: EvaluationInputs, embedder: Embedder) -> EvaluationInputs:
    """Return the inputs with a trained embedder."""
    return inputs.with_context(replace(inputs.context, embedder=embedder))


@isolated()
def fit_embedder(
    real: Iterable[Table],
    settings: Mapping[str, Any],
    *,
    seed: int,
    device: str = "cpu",
    progress: Progress = silent,
) -> Embedder:
    """Train the contrastive encoder on all real rows.

    Args:
        real: Real tables of a release, with one schema.
        settings: Settings of :class:`.EmbedderSettings`.
        seed: Seed of all random draws.
        device: torch device name.
        progress: Receives progress messages.

    Returns:
        The trained embedder.

    Raises:
        MissingPackage: If torch is not installed.
        ConfigError: If a setting is unknown or out of range.
    """
    require_torch()
    from privacy_assets.distances.embedder import train_embedder
    from privacy_assets.distances.embedder_settings import EmbedderSettings

    tables = []
    for table in real:
        tables.append(table.without_subject().with_schema(table.schema.evaluated))
    progress("training the embedder")
    embedder = train_embedder(
        tables,
        tables[0].schema,
        EmbedderSettings(**settings),
        seed=seed,
        device=device,
        progress=progress,
    )
    description = embedder.description
    loss = description["validation_loss"]
    accuracy = description["validation_accuracy"]
    if loss is None:
        outcome = "no validation rows"
    else:
        outcome = f"validation loss {loss:.4g}, accuracy {accuracy:.4g}"
    progress(f"the embedder was trained for {description['epochs']} epochs: {outcome}")
    return embedder


def _first_attempt() -> int:
    return 1


def measure(
    inputs: EvaluationInputs,
    metrics: Mapping[str, Metric],
    limits: Sequence[Limit],
    *,
    is_external: bool,
    count_attempt: Callable[[], int] = _first_attempt,
) -> Measured:
    """Run metrics, and leave out statistics whose limit fails because train and holdout differ.

    Args:
        inputs: Tables of one release, with their notes and the embedder.
        metrics: Metrics by name.
        limits: Limits of the policy.
        is_external: False if train and holdout were split by the key of a deployment. They are
            exchangeable then.
        count_attempt: Counts a publication attempt after the metrics ran, and returns its number.

    Returns:
        The results.

    Raises:
        InputError: If a required input of a metric is missing.
    """
    results = run_metrics(inputs, metrics, limits)
    attempt = count_attempt()
    if is_external:
        results = without_shift(inputs, metrics, results, limits, attempt)
    return Measured(inputs, results, attempt)


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
        result = _measured(metric, inputs)
        limited = _limited_statistics(name, metric, limits)
        if limited:
            if copy is None:
                copy = inputs.with_copy(_COPIED_PEOPLE)
            estimates = _measured(metric.on_smaller_budget(), copy).estimates
            on_copy = tuple(estimate for estimate in estimates if estimate.name in limited)
            result = replace(result, on_copy=on_copy)
        results[name] = replace(result, seconds=time.perf_counter() - started)
    if len(metrics) > 1:
        advance(inputs.progress, "metrics", len(results), len(metrics))
    return results


def _measured(metric: Metric, inputs: EvaluationInputs) -> MetricResult:
    """Measure one release.

    A metric of another distribution gets copies of the tables, so that nothing that it does to
    them changes what other metrics measure.

    Raises:
        StepError: If a metric of another distribution raises an exception that is not of this
            package, ends the process, or returns no result.
    """
    distribution = METRICS.distribution(metric.name)
    if distribution is None:
        return metric.measure(inputs)
    name = f"metric {metric.name} of {distribution}"
    try:
        result: object = metric.measure(inputs.copied())
    except PrivacyAssetsError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 (foreign code can raise anything)
        failure = StepError(
            f"{name} raised {type(error).__name__}{_line_of(metric, error)}. Its message is hidden,"
            " because it may contain private values. Fix: correct the metric, or remove it from the"
            " metrics."
        )
    else:
        if isinstance(result, MetricResult):
            return replace(result, distribution=distribution)
        failure = StepError(
            f"{name} returned {type(result).__name__}. Fix: return what its method `result` or"
            " `not_measurable` makes."
        )
    # outside of the handler, because the exception may contain private values
    raise failure


def _line_of(metric: Metric, error: BaseException) -> str:
    """Return the last line of the module of a metric that an exception passed, or ""."""
    module = sys.modules[type(metric).__module__]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename == module.__file__:
            return f" in line {frame.lineno} of {Path(frame.filename).name}"
    return ""


def _limited_statistics(name: str, metric: Metric, limits: Sequence[Limit]) -> set[str]:
    """Return the limited statistics of a metric that can be measured on a copy of train."""
    limited = {limit.statistic.partition(".")[2] for limit in limits if limit.metric == name}
    measurable = set()
    for spec in metric.statistics:
        if spec.name in limited and metric.sees_copy(spec):
            measurable.add(spec.name)
    return measurable
