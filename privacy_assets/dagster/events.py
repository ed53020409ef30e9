"""Outputs and check results of the tasks of a table."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import dagster as dg

from privacy_assets.dagster.failures import failure
from privacy_assets.dagster.metadata import (
    FAILED_LIMITS,
    earlier_numbers,
    failed_limits_metadata,
    limit_result,
    report_metadata,
    score_metadata,
    synthetic_metadata,
    table_metadata,
    training_metadata,
)
from privacy_assets.dagster.table import DagsterTable, key_of
from privacy_assets.gate.attestation import Attestation, blocking_error
from privacy_assets.metrics.policies import size_warning
from privacy_assets.pipeline.results import (
    AttestResult,
    EmbedResult,
    FitResult,
    PrepareResult,
    PublishResult,
    ReadResult,
    SampleResult,
    ScoreResult,
    SplitResult,
    StepResult,
)
from privacy_assets.pipeline.steps import Task
from privacy_assets.pipeline.work import TableRun, published_rows
from privacy_assets.report.advice import first_remedy

# Data versions are in beta.
warnings.filterwarnings("ignore", category=dg.BetaWarning, module=__name__)

HOLDS = "policy_holds"  # check of the attestation
RELEASED = "released"  # check of the published table
_PREFIX = 16  # characters of a hash
Metadata = Mapping[str, Any]


@dataclass(frozen=True)
class FinishedTask:
    """A task of a table that has run in a Dagster step.

    Attributes:
        context: Context of the step.
        table: Settings of the table.
        run: Run of the task.
        task: The task.
        result: Its result.
        version: Metadata of the version of the source. Empty unless the task reads it.
    """

    context: dg.AssetExecutionContext
    table: DagsterTable
    run: TableRun
    task: Task
    result: StepResult
    version: Metadata

    def output(self, name: str, metadata: Metadata, version: str | None = None) -> dg.Output[Any]:
        """Return a value of the task as an output.

        Args:
            name: Name of the value.
            metadata: Metadata of the output.
            version: Data version. None: Dagster computes one.
        """
        data_version = None
        if version is not None:
            data_version = dg.DataVersion(version)
        return dg.Output(
            self.result.values[name],
            output_name=name,
            metadata=dict(metadata),
            data_version=data_version,
        )


def events(finished: FinishedTask) -> Iterator[Any]:
    """Yield the outputs of a task with their metadata, and its check results.

    Args:
        finished: The task with its result.

    Yields:
        Outputs and check results.

    Raises:
        dagster.Failure: If the policy does not hold.
    """
    match finished.result:
        case ReadResult() as read:
            yield _source(finished, read)
        case SplitResult() as split:
            yield from _real_tables(finished, split)
        case EmbedResult() as embedded:
            yield _embedder(finished, embedded)
        case FitResult() as fit_result:
            yield _generator(finished, fit_result)
        case SampleResult() as sampled:
            yield _synthetic(finished, sampled)
        case PrepareResult() as prepared:
            yield _evaluation_inputs(finished, prepared)
        case ScoreResult() as scored:
            yield from _score(finished, scored)
        case AttestResult() as attested:
            yield from _attestation(finished, attested)
        case PublishResult() as published:
            yield from _published(finished, published)
        case other:
            for name in other.values:
                yield finished.output(name, {})


def _source(finished: FinishedTask, read: ReadResult) -> dg.Output[Any]:
    resolved = finished.table.resolved
    metadata = {**table_metadata(read.table, read.fingerprint), **finished.version}
    n_members = round(resolved.shares["train"] * metadata["subjects"])
    warning = size_warning(resolved.policy, n_members)
    if warning:
        finished.context.log.warning(warning)
        metadata["too few people"] = warning
    return finished.output("source", metadata, read.fingerprint)


def _real_tables(finished: FinishedTask, split: SplitResult) -> Iterator[dg.Output[Any]]:
    table = finished.table
    for role, part in split.tables.items():
        upstream: dg.AssetKey | None = table.key("source")
        if table.resolved.external:
            upstream = key_of(table.resolved.row_sources[role])
        fingerprint = split.fingerprints[role]
        yield finished.output(role, table_metadata(part, fingerprint, upstream), fingerprint)


def _embedder(finished: FinishedTask, embedded: EmbedResult) -> dg.Output[Any]:
    history = [asdict(epoch) for epoch in embedded.embedder.history]
    metadata = {"device": finished.run.device, **training_metadata(history)}
    return finished.output("embedder", metadata)


def _generator(finished: FinishedTask, fit_result: FitResult) -> dg.Output[Any]:
    resolved = finished.table.resolved
    device = finished.run.device
    fitted = fit_result.trained.generator
    metadata = {
        "generator": resolved.generator_label,
        "settings": dg.MetadataValue.json(resolved.generator.settings()),
        "privacy budget": str(fitted.privacy),
        "same seed, same rows": resolved.generator.repeatable and device == "cpu",
        "device": device,
        **training_metadata(fitted.history),
    }
    return finished.output("generator", metadata)


def _synthetic(finished: FinishedTask, sampled: SampleResult) -> dg.Output[Any]:
    table = finished.table
    sha256 = sampled.snapshot.sha256
    real_roles = table.resolved.roles
    upstream = [table.key(name) for name in finished.task.reads if name in real_roles]
    frame = sampled.table.to_published_frame()
    metadata = {**synthetic_metadata(frame, sha256, *upstream), **sampled.metadata}
    return finished.output("synthetic", metadata, sha256)


def _evaluation_inputs(finished: FinishedTask, prepared: PrepareResult) -> dg.Output[Any]:
    metadata: dict[str, Any] = {}
    for role, table in prepared.inputs.tables.items():
        metadata[f"{role} rows"] = len(table)
    metadata["sha256"] = prepared.snapshot.sha256
    return finished.output("evaluation_inputs", metadata)


def _score(finished: FinishedTask, scored: ScoreResult) -> Iterator[Any]:
    metadata = score_metadata(scored.result, scored.outcomes)
    metadata["seed"] = str(finished.table.resolved.spec.run.seed)
    if scored.row_scores is not None:
        metadata["scores of each row (private)"] = str(scored.row_scores)
    key = finished.table.key(finished.task.name)
    partition = finished.run.target.partition
    earlier = earlier_numbers(finished.context.instance, key, partition)
    yield finished.output(finished.task.name, metadata)
    for outcome in scored.outcomes:
        yield limit_result(key, outcome, earlier=earlier)


def _attestation(finished: FinishedTask, attested: AttestResult) -> Iterator[Any]:
    """Yield attestation and report before the check, so that a blocked table has a report with the
    reasons.

    Every verdict other than "pass" also raises ``dagster.Failure`` with the reason, because the
    message of the failed blocking check alone does not contain one.
    """
    attestation = attested.attestation
    advised = attested.report.advice
    broken = attested.policy_verdict.not_passed
    summary = report_metadata(attested.report)
    metadata = dict(summary)
    if broken:
        metadata[FAILED_LIMITS] = ", ".join(outcome.limit.key for outcome in broken)
    metadata["attempt"] = attestation.attempt
    metadata["policy"] = finished.table.resolved.policy.title
    metadata.update(_hash_prefixes(attestation))
    yield finished.output("attestation", metadata)
    yield finished.output("privacy_report", summary)
    yield dg.AssetCheckResult(
        asset_key=finished.table.key("attestation"),
        check_name=HOLDS,
        passed=attestation.verdict == "pass",
        description=attested.reason,
        metadata={"verdict": summary["verdict"], **failed_limits_metadata(broken, advised)},
    )
    if attestation.verdict != "pass":
        remedy = first_remedy(advised)
        raise failure(blocking_error(attested.policy_verdict, attestation.earlier_failures, remedy))


def _hash_prefixes(attestation: Attestation) -> dict[str, str]:
    """Return the starts of the hashes in an attestation, because the UI truncates tables with long
    values. The attestation contains the full hashes.
    """
    return {
        "sha256": attestation.sha256[:_PREFIX],
        "policy_digest": attestation.policy_digest[:_PREFIX],
        "signed by": attestation.keyid[:_PREFIX],
    }


def _published(finished: FinishedTask, published: PublishResult) -> Iterator[Any]:
    release = published.release
    frame, attestation = published_rows(finished.run, release)
    yield dg.AssetCheckResult(
        asset_key=finished.table.key("published"),
        check_name=RELEASED,
        passed=True,
        metadata={"release": release.id},
    )
    synthetic_key = finished.table.key("synthetic")
    metadata = synthetic_metadata(frame, attestation.sha256, synthetic_key)
    metadata["release"] = release.id
    metadata["folder"] = dg.MetadataValue.path(str(release.folder))
    yield finished.output("published", metadata, attestation.sha256)
