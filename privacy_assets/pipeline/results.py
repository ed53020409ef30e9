"""Results of the steps of a table: one class per step, with the values that later steps read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from privacy_assets.distances.embedder import Embedder
from privacy_assets.gate.attestation import Attestation, blocking_error
from privacy_assets.gate.envelope import SignedFile
from privacy_assets.gate.releases import Release
from privacy_assets.gate.snapshot import Snapshot
from privacy_assets.infra.objects import Location
from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.pipeline.training import Trained
from privacy_assets.pipeline.values import Published
from privacy_assets.policy import LimitOutcome, Verdict
from privacy_assets.report.report import Report
from privacy_assets.stats.estimates import MetricResult
from privacy_assets.tables.table import Table


class StepResult(ABC):
    """Result of a step. Each step has a subclass with further fields for logs, metadata and
    checks.
    """

    @property
    @abstractmethod
    def values(self) -> Mapping[str, Any]:
        """Values for later steps, by name."""


@dataclass(frozen=True)
class ReadResult(StepResult):
    """The private table.

    Attributes:
        table: The signed table.
        fingerprint: Its keyed fingerprint.
    """

    table: Table
    fingerprint: str

    @property
    def values(self) -> Mapping[str, Any]:
        """Values for later steps, by name."""
        return {"source": self.table}


@dataclass(frozen=True)
class SplitResult(StepResult):
    """The real tables of the split.

    Attributes:
        tables: The signed tables by role.
        fingerprints: Their keyed fingerprints by role.
    """

    tables: Mapping[str, Table]
    fingerprints: Mapping[str, str]

    @property
    def values(self) -> Mapping[str, Any]:
        """Values for later steps, by name."""
        return self.tables


@dataclass(frozen=True)
class EmbedResult(StepResult):
    """The trained embedder.

    Attributes:
        embedder: The embedder.
    """

    embedder: Embedder

    @property
    def values(self) -> Mapping[str, Any]:
        """Values for later steps, by name."""
        return {"embedder": self.embedder}


@dataclass(frozen=True)
class FitResult(StepResult):
    """The fitted generator.

    Attributes:
        trained: Generator with the fingerprint of train.
    """

    trained: Trained

    @property
    def values(self) -> Mapping[str, Any]:
        """Values for later steps, by name."""
        return {"generator": self.trained}


@dataclass(frozen=True)
class SampleResult(StepResult):
    """The synthetic table.

    Attributes:
        table: The rows.
        snapshot: File in the private folder of the gate.
        signed_file: Signed file of the snapshot.
        metadata: Metadata of the filters.
    """

    table: Table
    snapshot: Snapshot
    signed_file: SignedFile
    metadata: Mapping[str, Any]

    @property
    def values(self) -> Mapping[str, Any]:
        """Values for later steps, by name."""
        return {"synthetic": self.signed_file}


@dataclass(frozen=True)
class PrepareResult(StepResult):
    """Tables that all scores use.

    Attributes:
        inputs: All tables, encoded and signed.
        snapshot: Synthetic table in the private folder of the gate.
        table: Its rows.
        real: Real tables, without subjects.
    """

    inputs: EvaluationInputs
    snapshot: Snapshot
    table: Table
    real: Sequence[Table]

    @property
    def values(self) -> Mapping[str, Any]:
        """Values for later steps, by name."""
        return {"evaluation_inputs": self.inputs}


@dataclass(frozen=True)
class ScoreResult(StepResult):
    """Result of one metric.

    Attributes:
        name: Name of the metric.
        signed_file: Signed file of the result.
        result: Result.
        outcomes: Outcomes of the limits on this metric.
        row_scores: Private Parquet file with the scores of each synthetic row. None if the metric
            has none.
    """

    name: str
    signed_file: SignedFile
    result: MetricResult
    outcomes: list[LimitOutcome]
    row_scores: Location | None = None

    @property
    def values(self) -> Mapping[str, Any]:
        """Values for later steps, by name."""
        return {self.name: self.signed_file}


@dataclass(frozen=True)
class AttestResult(StepResult):
    """Verdict of the policy.

    Attributes:
        attestation: Attestation.
        signed_file: Signed file of the attestation.
        report: Report of the attestation and its results.
    """

    attestation: Attestation
    signed_file: SignedFile
    report: Report

    @property
    def values(self) -> Mapping[str, Any]:
        """Values for later steps, by name."""
        return {"attestation": self.signed_file, "privacy_report": self.report}

    @property
    def policy_verdict(self) -> Verdict:
        """Outcome of each limit, with the measured values."""
        return self.report.policy_verdict

    @property
    def reason(self) -> str:
        """One sentence about the verdict."""
        if self.attestation.verdict == "pass":
            return f"all {len(self.policy_verdict.outcomes)} limits hold"
        return str(blocking_error(self.policy_verdict, self.attestation.earlier_failures))


@dataclass(frozen=True)
class PublishResult(StepResult):
    """The release.

    Attributes:
        release: The release.
        published: Table, partition and id of the release.
    """

    release: Release
    published: Published

    @property
    def values(self) -> Mapping[str, Any]:
        """Values for later steps, by name."""
        return {"published": self.published}
