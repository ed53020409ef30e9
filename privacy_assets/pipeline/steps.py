"""The steps of a table, each from values to a value: source, splits, generator, synthetic, scores, verdict, release.

Whoever runs them (Dagster, the command ``privacy-assets run``) says of which table and partition they are, stores what
they give and hands it to the next one. What the gate must believe is signed: a step takes sealed records and opens them
itself, so that whatever lies between two steps can be no more than refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from privacy_assets.compute.progress import Progress, silent
from privacy_assets.errors import PublicationRefused
from privacy_assets.evaluation import attach_embedder, run_metrics, stacked_releases
from privacy_assets.gate.attestation import Attestation, refusal
from privacy_assets.gate.gate import Gate
from privacy_assets.gate.releases import Release
from privacy_assets.gate.snapshot import Snapshot, read_hashed, read_snapshot
from privacy_assets.gate.statements import Place, Sealed
from privacy_assets.metrics.base import Metric
from privacy_assets.pipeline.deployment import Deployment
from privacy_assets.pipeline.encoded import Encoded, EncodedMetadata, StoredEncoded, for_metric
from privacy_assets.pipeline.measuring import metric_inputs
from privacy_assets.pipeline.plan import TablePlan
from privacy_assets.pipeline.private_table import PrivateTable
from privacy_assets.pipeline.row_sources import Window, source_table, user_splits, user_synthetic
from privacy_assets.pipeline.training import (
    Sampled,
    StoredTrained,
    Trained,
    checkpoint_folder,
    fitting_seed,
    sampled,
    trained_generator,
)
from privacy_assets.policy import Judgement
from privacy_assets.report.evaluate import put_together, sizes_of
from privacy_assets.stats.limits import LimitOutcome, judge_limit
from privacy_assets.stats.results import MetricResult
from privacy_assets.tables.table import Table

if TYPE_CHECKING:
    from privacy_assets.embedding.embedder import Embedder
    from privacy_assets.report.report import Report

Tables = Mapping[str, PrivateTable]  # the real ones, by role


class Synthetic(NamedTuple):
    """The synthetic table: its rows, the gate's own file of them, the signed record of that, and metadata."""

    rows: pd.DataFrame
    snapshot: Snapshot
    sealed: Sealed
    metadata: Mapping[str, Any]


class Scored(NamedTuple):
    """What one metric found, what its limits say of it, and the signed record."""

    result: MetricResult
    outcomes: list[LimitOutcome]
    sealed: Sealed


class Attested(NamedTuple):
    """The verdict, the signed record of it, and the page of that record."""

    stated: Attestation
    sealed: Sealed
    report: Report

    @property
    def judgement(self) -> Judgement:
        """The limits, each held against what was measured."""
        return self.report.judgement

    @property
    def reason(self) -> str:
        """One sentence on the verdict."""
        if self.stated.verdict == "pass":
            return f"all {len(self.judgement.outcomes)} limits hold"
        return refusal(self.judgement, self.stated.remembered)


@dataclass(frozen=True)
class Steps:
    """The steps of one table and partition in a deployment.

    ``window`` is the time of a partition that is one. Every step raises InputError for tables that cannot be used and
    PublicationRefused for what the gate does not believe.
    """

    plan: TablePlan
    deployment: Deployment
    place: Place
    window: Window | None = None
    progress: Progress = silent

    @cached_property
    def gate(self) -> Gate:
        """The gate of the deployment."""
        return self.deployment.gate()

    def keyed(self, table: PrivateTable) -> str:
        """Keyed fingerprint of a private table: its rows, and whose they are."""
        return self.deployment.keyed(table.fingerprint)

    def source(self, given: Any = None) -> PrivateTable:
        """The private table in canonical form; ``given`` are its rows where they are handed over."""
        return source_table(self.plan, given, self.place.partition, self.window)

    def splits(self, source: PrivateTable | None, given: Mapping[str, Any] | None = None) -> dict[str, PrivateTable]:
        """Train, holdout and reference, each with the seal of the split; ``given`` are the user's own, by role."""
        gate, plan = self.gate, self.plan  # its keys are in order before anything is read
        if source is None:
            parts = user_splits(plan, given or {}, self.place.partition, self.window)
        else:
            parts = source.split(self.deployment.key("split"), plan.shares)
        seals = {
            role: gate.sign_split(self.place, role, self.keyed(part), plan.split_setup) for role, part in parts.items()
        }
        return {role: part.sealed(seals[role].data) for role, part in parts.items()}

    def generator(self, train: PrivateTable, home: Path | None = None, device: str = "cpu") -> Trained:
        """The generator fitted to ``train``; interrupted training is kept below ``home``, if there is one."""
        print_ = self.keyed(train)
        folder, seed = checkpoint_folder(home, self.place), fitting_seed(self.plan, self.deployment)
        fitted = trained_generator(self.plan, train, print_, seed, folder, device, self.progress)
        return Trained(fitted, print_, self.deployment.keyed)

    def synthetic(self, tables: Tables, trained: Trained | StoredTrained | None, given: Any = None) -> Synthetic:
        """Rows of the trained generator, or without one the user's own, written once to the gate's own file.

        ``tables`` are train, and with filters all real ones.
        """
        train = tables["train"]
        if trained is None:
            made_from = self.keyed(train)
            made = Sampled(user_synthetic(self.plan, given, train.schema, self.place.partition, self.window))
        else:
            checked = trained.check(self.deployment.keyed)
            made_from, made = checked.train, sampled(self.plan, checked, tables, self.deployment.keyed, self.progress)
        snapshot, sealed = self.gate.take_snapshot(made.rows, self.place, made_from, made.filter, made.generator)
        return Synthetic(made.rows, snapshot, sealed, made.metadata)

    def rows(self, synthetic: Sealed) -> pd.DataFrame:
        """The rows that the sealed record of the synthetic table names."""
        return read_snapshot(self.gate.snapshot(synthetic, self.place))

    def encoded(self, tables: Tables, synthetic: Sealed, embedder: Embedder | None, device: str = "cpu") -> Encoded:
        """All tables in one coded form with their embeddings: prepared, verified, fingerprinted once for all scores.

        PublicationRefused unless the split signed for every real table, as it stands here and under the settings of
        now. Scales and encoders are fitted on all real rows alike, so that the statistics are those of
        ``privacy_assets.evaluate``.
        """
        gate, plan = self.gate, self.plan
        snapshot = gate.snapshot(synthetic, self.place)
        rows = Table.of(read_snapshot(snapshot), tables["train"].schema, where="synthetic", synthetic=True)
        prints = {role: self.keyed(table) for role, table in tables.items()}
        for role, table in tables.items():
            gate.check_split(Sealed("split", table.seal), self.place, role, prints[role], plan.split_setup)
        prints["synthetic"] = rows.fingerprint  # it may be published, so it needs no key
        if embedder is not None:
            prints["embedder"] = self.deployment.keyed(embedder.fingerprint())
        inputs = metric_inputs(tables, rows, seed=plan.seed, device=device, progress=self.progress)
        inputs = inputs if embedder is None else attach_embedder(inputs, embedder)
        for role in inputs.tables if embedder is not None else ():
            inputs.embedded(role)  # now, while a device is held
        metadata = EncodedMetadata(prints, sizes_of(inputs))
        return Encoded(inputs, metadata, synthetic, snapshot, partial(gate.sign_encoded, snapshot, plan.split_setup))

    def score(self, metric: Metric, encoded: Encoded | StoredEncoded, device: str = "cpu") -> Scored:
        """Run one metric and sign what it found."""
        gate, plan = self.gate, self.plan
        opened = encoded.open(gate, self.place, plan.split_setup, self.deployment.keyed)
        snapshot, embeds = opened.snapshot, plan.uses_embedder(metric)
        earlier = gate.released(snapshot, plan.pool_partitions)
        tables = earlier.tables() if metric.reads("released") else []
        inputs = for_metric(
            opened,
            embeds,
            stacked_releases(tables, opened.inputs.schema) if tables else None,
            seed=plan.seed,
            device=device,
            progress=self.progress,
        )
        measured = run_metrics(inputs, {metric.name: metric})[metric.name]
        prints = {role: own for role, own in opened.metadata.inputs.items() if embeds or role != "embedder"}
        result = replace(measured, inputs={**prints, "released": earlier.fingerprint})
        # Whoever sees a statistic has looked, attested or not.
        attempt = gate.attempts.attempt(snapshot, plan.pool_partitions)
        limits = [limit for limit in plan.policy.limits if limit.metric == metric.name]
        outcomes = [judge_limit(limit, result, attempt) for limit in limits]
        sealed = gate.sign_result(result, snapshot, outcomes, plan.pool_partitions)
        return Scored(result, outcomes, sealed)

    def attestation(
        self, tables: Tables, encoded: Encoded | StoredEncoded, synthetic: Sealed, scores: Mapping[str, Sealed]
    ) -> Attested:
        """The verdict of the policy over the signed ``scores``, by metric, bound to the bytes that were judged.

        ``tables`` are the real ones as they are now: scores of others are refused, though they were encoded rightly.
        The page is made from what was signed and from the results that it names, so that the two cannot disagree.
        """
        gate, plan = self.gate, self.plan
        snapshot = gate.snapshot(synthetic, self.place)
        metadata, of = encoded.record(gate, self.place, plan.split_setup)
        if of.sha256 != snapshot.sha256:
            raise PublicationRefused("the tables were encoded with another synthetic table; materialise encoded again.")
        results = {name: gate.result(scores[name], snapshot) for name in plan.metrics}
        inputs = {**metadata.inputs, **{role: self.keyed(table) for role, table in tables.items()}}
        stated, sealed = gate.attest(snapshot, plan.policy, results, inputs, plan.metrics, plan.setup)
        report = put_together(
            metadata.sizes,
            metadata.inputs["synthetic"],
            plan.seed,
            results,
            stated.policy_then(),
            stated.attempt,
            title=str(snapshot.place),
            generator={"name": plan.generator_label or "unknown: an external table", **protection_of(snapshot)},
            remembered=tuple(stated.remembered),
            signed={"date": stated.made_at, "key": stated.keyid, "sha256": stated.sha256},
        )
        return Attested(stated, sealed, report)

    def publish(self, attestation: Sealed, synthetic: Sealed) -> Release:
        """Publish what was attested. It trusts nothing: the gate verifies attestation, policy and bytes itself."""
        return self.gate.publish(attestation, synthetic, self.place, self.plan.policy, self.plan.setup)

    def released(self, release: Release) -> tuple[pd.DataFrame, Attestation]:
        """The rows of a release as readers get them, and its attestation."""
        stated = release.opened(self.place, self.gate.key.trusted)
        return read_hashed(release.table, stated.sha256, stated.dtypes), stated


def protection_of(snapshot: Snapshot) -> dict[str, Any]:
    """What the signed snapshot tells of how its rows were protected; nothing of an external table."""
    if snapshot.generator is None:
        return {}
    found = {key: snapshot.generator[key] for key in ("overfitting", "privacy") if key in snapshot.generator}
    if snapshot.filter is None:
        return {**found, "filter": None}
    return {**found, "filter": {key: value for key, value in snapshot.filter.items() if key != "inputs"}}
