"""Work of each step of a table: one function per verb, from values to values.

The caller (Dagster, Airflow, ``privacy-assets run``) chooses table and partition, stores the
values, and passes them to later steps (:mod:`privacy_assets.pipeline.steps`). Each step verifies
the signatures of its inputs, so tampered intermediate values are rejected.
"""

from __future__ import annotations

import datetime as dt
import os
import socket
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from privacy_assets.errors import OutOfDate
from privacy_assets.evaluation.evaluate import (
    attach_embedder,
    build_inputs,
    people_note,
    run_metrics,
    sizes_of,
)
from privacy_assets.evaluation.exchangeability import with_shift_note, without_shift
from privacy_assets.gate.attestation import Attestation, refusal
from privacy_assets.gate.deployment import Deployment
from privacy_assets.gate.gate import Gate
from privacy_assets.gate.releases import Release
from privacy_assets.gate.snapshot import Snapshot, read_hashed, read_snapshot
from privacy_assets.gate.statements import ReleaseTarget, SignedRecord
from privacy_assets.infra.objects import Location
from privacy_assets.infra.progress import Progress, silent
from privacy_assets.infra.work import sweep
from privacy_assets.metrics.cumulative_disclosure import NEAR
from privacy_assets.metrics.inputs import EvaluationInputs
from privacy_assets.metrics.ledger import Ledger
from privacy_assets.metrics.registry import metrics_reading
from privacy_assets.pipeline.resolve import ResolvedTable
from privacy_assets.pipeline.row_sources import Window, source_table, user_splits, user_synthetic
from privacy_assets.pipeline.running import Lease
from privacy_assets.pipeline.training import (
    Sampled,
    Trained,
    checkpoint_folder,
    fitted_embedder,
    fitting_seed,
    sampled,
    trained_generator,
)
from privacy_assets.pipeline.values import Published
from privacy_assets.policy import LimitOutcome, Verdict, judge_limit
from privacy_assets.report.report import Report
from privacy_assets.stats.estimates import MetricResult
from privacy_assets.tables.canonical import without_rare_values
from privacy_assets.tables.column import Column
from privacy_assets.tables.inference import accepted_columns, published_names
from privacy_assets.tables.roles import check_published
from privacy_assets.tables.splitting import pseudonyms, split_rows
from privacy_assets.tables.table import Table
from privacy_assets.tables.threshold_rule import (
    changes_of,
    count_changed,
    outside_guarantee,
    real_schema,
    replaced_note,
)

Values = Mapping[str, Any]
_MOST_NAMED = 3  # releases named in the report


class StepResult(NamedTuple):
    """Result of a step.

    Attributes:
        values: Values for later steps, by name.
        shown: Further results for logs, metadata and checks.
    """

    values: Values
    shown: Any = None


class Synthetic(NamedTuple):
    """Synthetic table.

    Attributes:
        table: The rows.
        snapshot: File in the private folder of the gate.
        sealed: Signed record of the snapshot.
        metadata: Metadata of the filters.
    """

    table: Table
    snapshot: Snapshot
    sealed: SignedRecord
    metadata: Mapping[str, Any]


class Prepared(NamedTuple):
    """Tables that all scores use.

    Attributes:
        snapshot: Synthetic table in the private folder of the gate.
        table: Its rows.
        real: Real tables, without subjects.
    """

    snapshot: Snapshot
    table: Table
    real: Sequence[Table]


class Scored(NamedTuple):
    """Result of one metric.

    Attributes:
        result: Result.
        outcomes: Outcomes of the limits on this metric.
        row_scores: Private Parquet file with the scores of each synthetic row. None if the metric
            has none.
    """

    result: MetricResult
    outcomes: list[LimitOutcome]
    row_scores: Location | None = None


class Attested(NamedTuple):
    """Verdict of the policy.

    Attributes:
        stated: Attestation.
        sealed: Signed record of the attestation.
        report: Report of the attestation and its results.
    """

    stated: Attestation
    sealed: SignedRecord
    report: Report

    @property
    def policy_verdict(self) -> Verdict:
        """Outcome of each limit, with the measured values."""
        return self.report.policy_verdict

    @property
    def reason(self) -> str:
        """One sentence about the verdict."""
        if self.stated.verdict == "pass":
            return f"all {len(self.policy_verdict.outcomes)} limits hold"
        return str(refusal(self.policy_verdict, self.stated.remembered))


def _new_run_id() -> str:
    return f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex[:8]}"


@dataclass(frozen=True)
class TableRun:
    """Run of the steps of one table and partition in a deployment.

    Attributes:
        table: Validated settings of the table.
        deployment: Folders and keys.
        target: Table and partition.
        window: Start and end of a time partition.
        progress: Receives messages.
        device: Name of the torch device.
        scratch: Folder of training checkpoints. None: no checkpoints.
        given: Rows that the caller passes, by role.
        run_id: Id of the run, the same in all of its steps. It owns the lock of the table.
        ended: Returns True if the run with an id is known to have ended, so that its lock is free.
    """

    table: ResolvedTable
    deployment: Deployment
    target: ReleaseTarget
    window: Window | None = None
    progress: Progress = silent
    device: str = "cpu"
    scratch: Path | None = None
    given: Mapping[str, Any] = field(default_factory=dict, repr=False)
    run_id: str = field(default_factory=_new_run_id)
    ended: Callable[[str], bool] = lambda run_id: False

    @property
    def lease(self) -> Lease:
        """Lock of the table."""
        return Lease(self.gate.private, self.target.table, self.run_id)

    @cached_property
    def gate(self) -> Gate:
        """Gate of the deployment."""
        return self.deployment.gate()

    @property
    def split_setup(self) -> dict[str, Any]:
        """Settings that the splits sign: shares, subject and declarations."""
        return self.table.split_setup(self.deployment.keyed_fingerprint)

    @property
    def setup(self) -> dict[str, Any]:
        """Settings that the attestation signs: all except the policy."""
        return self.table.setup(self.deployment.keyed_fingerprint)

    def keyed_fingerprint(self, table: Table) -> str:
        """Return the keyed fingerprint of a private table: its rows and subjects.

        Args:
            table: The private table.
        """
        return self.deployment.keyed_fingerprint(table.fingerprint)

    def sign(self, tables: Mapping[str, Table]) -> StepResult:
        """Sign the private tables that a step read or split.

        Args:
            tables: Tables by role.

        Returns:
            The signed tables, and their keyed fingerprints, by role.
        """
        keyed, signed, fingerprints = (
            self.deployment.keyed_fingerprint,
            dict[str, Table](),
            dict[str, str](),
        )
        for role, table in tables.items():
            fingerprints[role] = self.keyed_fingerprint(table)
            seal = self.gate.sign_split(
                self.target, role, fingerprints[role], keyed(table.digest), self.split_setup
            )
            signed[role] = replace(table, seal=seal.data)
        return StepResult(signed, fingerprints)

    def check(self, tables: Mapping[str, Table]) -> dict[str, str]:
        """Verify that the latest step signed these private tables, by the hash of their files.

        Args:
            tables: Tables by role.

        Returns:
            The keyed fingerprints of the tables, by role.

        Raises:
            PublicationRefused: Unless it did, under the current settings.
        """
        keyed, setup = self.deployment.keyed_fingerprint, self.split_setup
        return {
            role: self.gate.check_split(
                SignedRecord("split", table.seal), self.target, role, keyed(table.digest), setup
            )
            for role, table in tables.items()
        }

    def real(self, values: Values) -> dict[str, Table]:
        """Return the real tables among ``values``, by role.

        Args:
            values: Values by name.
        """
        return {role: values[role] for role in self.table.roles if role in values}


def read(run: TableRun, name: str, values: Values) -> StepResult:
    """Read the private table in canonical form. It gets a signed record of the settings under which
    it was read.
    """
    locked = run.gate.locks.columns(run.target.table)  # checks the keys before the table is read
    source = source_table(
        run.table, run.given.get("source"), run.target.partition, run.window, locked
    )
    for note in source.notes:
        run.progress(note)
    return run.sign({"source": source})


def split(run: TableRun, name: str, values: Values) -> StepResult:
    """Split the private table, or read the tables of an external split, and apply the threshold
    rule to them.

    Each table gets the signed record of the split. The lock of the table is signed after all tables
    have been read.
    """
    # checks the keys first
    gate, table, min_holders = run.gate, run.table, run.table.policy.min_holders
    gate.locks.check(run.target.table, table.policy, run.setup, new=True)
    gate.check_not_stopped(run.target.table)
    if table.external:
        locked = gate.locks.columns(run.target.table)
        parts = user_splits(table, run.given, run.target.partition, run.window, locked)
    else:
        source = values["source"]
        run.check({"source": source})
        rows = split_rows(
            source, run.deployment.key("split"), table.shares, exact_ids=table.declared.exact_ids
        )
        parts = {role: source.take(chosen).map(Column.compact) for role, chosen in rows.items()}
    columns = accepted_columns(parts["train"].schema)
    if not gate.locks.columns(run.target.table):
        run.progress(published_names(columns))
    parts = without_rare_values(parts, min_holders, table.declared, table.bounded_columns)
    result = run.sign(parts)
    entries = gate.locks.check(run.target.table, table.policy, run.setup, new=True, columns=columns)
    gate.locks.sign(run.target.table, entries)
    return result


def embed(run: TableRun, name: str, values: Values) -> StepResult:
    """Train the embedder on all real rows."""
    return StepResult(
        {"embedder": fitted_embedder(run.table, run.real(values), run.device, run.progress)}
    )


def fit(run: TableRun, name: str, values: Values) -> StepResult:
    """Fit the generator to train. Interrupted training resumes from the checkpoints below
    ``run.scratch``.
    """
    sweep()
    train, keyed = values["train"], run.deployment.keyed_fingerprint
    fingerprint, seed = (
        run.check({"train": train})["train"],
        fitting_seed(run.table, run.deployment),
    )
    folder = checkpoint_folder(run.scratch, run.target)
    fitted = trained_generator(
        run.table, train, keyed(train.digest), seed, folder, run.device, run.progress
    )
    return StepResult({"generator": Trained(fitted, fingerprint, keyed)})


def sample(run: TableRun, name: str, values: Values) -> StepResult:
    """Create the synthetic table, or read an external one, and write it once to the private folder
    of the gate.

    The threshold rule is applied to it, so that later steps evaluate and publish the same table.

    Raises:
        InputError: If the table has categories that no real table has, or numbers far outside of
            the real range.
    """
    sweep()
    tables = run.real(values)
    fingerprints, rules = run.check(tables), tables["train"].rules
    if run.table.external:
        train_fingerprint = fingerprints["train"]
        given = run.given.get("synthetic")
        schema = real_schema(tables["train"].schema, rules)
        own_rows = user_synthetic(
            run.table, given, tables["train"], schema, run.target.partition, run.window
        )
        made = Sampled(own_rows)
    else:
        trained = values["generator"]
        if not isinstance(trained, Trained):  # the folder of a stored one
            trained = Trained.load(trained, run.deployment.keyed_fingerprint)
        train_fingerprint = trained.train_fingerprint
        made = sampled(run.table, trained, tables, fingerprints, run.progress)
    if made.generator is not None and made.generator["privacy"]["epsilon"] is not None:
        made.generator["privacy"]["outside_guarantee"] += tuple(outside_guarantee(rules))
    rows = made.table.without_rare(rules).with_schema(tables["train"].schema)
    where = "synthetic" if run.table.external else "the output of the generator"
    check_published(rows, rules, where=where)
    recoded = [name for name, rule in rules.items() if rule.recoding is not None]
    counts = {name: count_changed(made.table[name], rows[name]) for name in recoded}
    replaced = {name: count for name, count in counts.items() if count}
    snapshot, sealed = run.gate.take_snapshot(
        rows, run.target, train_fingerprint, made.filter, made.generator, replaced, made.table
    )
    return StepResult({"synthetic": sealed}, Synthetic(rows, snapshot, sealed, made.metadata))


def prepare(run: TableRun, name: str, values: Values) -> StepResult:
    """Encode, verify and fingerprint all tables once for all metrics, with their embeddings.

    Scales and encoders are fitted to all real rows, so the statistics equal those of
    ``privacy_assets.evaluate``.

    Raises:
        PublicationRefused: Unless the latest split signed every real table under the current
            settings.
    """
    tables, embedder, keyed = (
        run.real(values),
        values.get("embedder"),
        run.deployment.keyed_fingerprint,
    )
    snapshot = run.gate.snapshot(values["synthetic"], run.target)
    rows = Table.of(
        read_snapshot(snapshot), tables["train"].schema, where="synthetic", synthetic=True
    )
    fingerprints = {**run.check(tables), "synthetic": run.keyed_fingerprint(rows)}
    if embedder is not None:
        fingerprints["embedder"] = keyed(embedder.fingerprint())
    inputs = build_inputs(
        tables, rows, seed=run.table.spec.run.seed, device=run.device, progress=run.progress
    )
    inputs = with_shift_note(inputs) if run.table.external else inputs
    inputs = inputs if embedder is None else attach_embedder(inputs, embedder)
    key = run.deployment.key("ledger")
    exact_ids = run.table.declared.exact_ids
    pseudonyms_by_role = {role: pseudonyms(table, key, exact_ids) for role, table in tables.items()}
    inputs = inputs.with_settings(pseudonyms=pseudonyms_by_role, ruled=tuple(tables["train"].rules))
    body = {
        "inputs": fingerprints,
        "digest": keyed(inputs.digest),  # computes all embeddings now, while a device is available
        "snapshot": values["synthetic"].data.decode(),
    }
    seal = run.gate.sign_prepared(snapshot, run.split_setup, body)
    prepared = Prepared(snapshot, rows, [one.without_subject() for one in tables.values()])
    return StepResult({"evaluation_inputs": inputs.with_settings(seal=seal.data)}, prepared)


def checked_inputs(run: TableRun, inputs: EvaluationInputs) -> tuple[Mapping[str, Any], Snapshot]:
    """Verify prepared tables against their signed record.

    Returns:
        Signed record, with the keyed fingerprints of the tables ("inputs"), and the snapshot of the
        synthetic table.

    Raises:
        PublicationRefused: Unless this deployment signed them under the current settings.
    """
    digest = run.deployment.keyed_fingerprint(inputs.digest)
    return run.gate.prepared(
        SignedRecord("prepared", inputs.seal), run.target, digest, run.split_setup
    )


def score(run: TableRun, name: str, values: Values) -> StepResult:
    """Run the metric ``name``, and sign its result."""
    gate, table, metric = run.gate, run.table, run.table.metrics[name]
    inputs, embeds = values["evaluation_inputs"], table.uses_embedder(metric)
    signed, snapshot = checked_inputs(run, inputs)
    measures = metric.uses("ledger")
    digest, ledger = gate.ledger(run.target.table)
    inputs = inputs.with_settings(
        ledger=Ledger.from_bytes(ledger) if ledger and measures else None,
        release=(int(snapshot.sha256[:12], 16), dt.date.today().toordinal()),
        embedder=inputs.embedder if embeds else None,
        generator=protection_of(snapshot),
        fingerprints=signed["inputs"],
        seed=table.spec.run.seed,
        device=run.device,
        progress=run.progress,
    )
    limits = [limit for limit in table.policy.limits if limit.metric == name]
    results = run_metrics(inputs, {name: metric}, limits)
    # Computing a score counts as a publication attempt, even without an attestation.
    attempt = gate.count_attempt(snapshot)
    if table.external:  # a split by key is exchangeable by construction
        results = without_shift(inputs, {name: metric}, results, limits, attempt)
    fingerprints = {
        role: own for role, own in signed["inputs"].items() if embeds or role != "embedder"
    }
    result = replace(results[name], inputs={**fingerprints, "ledger": digest})
    outcomes = [judge_limit(limit, result, attempt) for limit in limits]
    after = inputs.merged_ledger if measures else None
    sealed = gate.sign_result(
        result, snapshot, outcomes, b"" if after is None else after.to_bytes()
    )
    return StepResult(
        {name: sealed}, Scored(result, outcomes, gate.keep_row_scores(result, snapshot))
    )


def attest(run: TableRun, name: str, values: Values) -> StepResult:
    """Evaluate the policy on the signed scores, and sign the verdict. Scores on other tables are
    rejected.

    The report is built from the signed attestation and the results that it names, so they cannot
    differ.
    """
    gate, table = run.gate, run.table
    snapshot = gate.snapshot(values["synthetic"], run.target)
    prepared = values["evaluation_inputs"]
    signed, of = checked_inputs(run, prepared)
    if of.sha256 != snapshot.sha256:
        raise OutOfDate("the tables were prepared with another synthetic table", redo=("prepare",))
    scores = {metric: values[metric] for metric in table.metrics}
    results = {metric: gate.result(sealed, snapshot) for metric, sealed in scores.items()}
    inputs = {**signed["inputs"], **run.check(run.real(values))}
    stated, sealed = gate.attest(snapshot, table.policy, scores, inputs, table.metrics, run.setup)
    policy = stated.attested_policy()
    report = Report(
        title=str(snapshot.target),
        policy=policy,
        policy_verdict=policy.judge(results, stated.attempt),
        results=results,
        tables=sizes_of(prepared),
        seed=table.spec.run.seed,
        attempt=stated.attempt,
        fingerprints={"synthetic": signed["inputs"]["synthetic"]},
        generator={
            "name": table.generator_label or "unknown: an external table",
            **protection_of(snapshot),
        },
        embedder=None if prepared.embedder is None else prepared.embedder.description,
        remembered=tuple(stated.remembered),
        notes=(
            people_note(table.spec.data.subject, table.declared.exact_ids),
            *prepared.notes,
            *replaced_note(snapshot.n_replaced),
            *row_scores_notes(gate, snapshot, table.metrics),
            *disclosing_note(gate, snapshot.target.table, policy.judge(results, stated.attempt)),
        ),
        changes=changes_of(values["train"].rules),
        has_earlier_releases=any(result.inputs["ledger"] for result in results.values()),
        signed={"date": stated.made_at, "key": stated.keyid, "sha256": stated.sha256},
    )
    return StepResult(
        {"attestation": sealed, "privacy_report": report}, Attested(stated, sealed, report)
    )


def disclosing_note(gate: Gate, table: str, verdict: Verdict) -> Iterator[str]:
    """Name the releases that disclose most if a limit on all releases together is broken."""
    _, data = gate.ledger(table)
    if not data or not any(
        outcome.limit.metric in metrics_reading("ledger") for outcome in verdict.broken
    ):
        return
    ids = [
        release.id for target in gate.store.targets(table) for release in gate.store.history(target)
    ]
    found = []
    for number, share in Ledger.from_bytes(data).most_by_release(NEAR)[:_MOST_NAMED]:
        known = [name for name in ids if name.endswith(f"{number:012x}")]
        found.append(f"{known[-1] if known else 'a removed release'} ({share:.1%} of the people)")
    if found:
        yield (
            f"Releases with the closest row to most people: {', '.join(found)}. To remove one:"
            " privacy-assets releases"
            f' {table} --withdraw ID --reason "..."'
        )


def row_scores_notes(gate: Gate, snapshot: Snapshot, metrics: Iterable[str]) -> Iterator[str]:
    """Name the private files with the scores of each synthetic row, relative to the private
    folder.
    """
    for metric in metrics:
        path = gate.row_scores(snapshot, metric)
        if path.exists():
            name = str(path).removeprefix(f"{gate.private}/")
            yield (
                f"Scores of {metric} for every synthetic row: {name} in the private folder. Do"
                " not publish this file."
            )


def publish(run: TableRun, name: str, values: Values) -> StepResult:
    """Publish the attested table. The gate verifies attestation, policy and bytes itself."""
    release = run.gate.publish(
        values["attestation"], values["synthetic"], run.target, run.table.policy, run.setup
    )
    return StepResult(
        {"published": Published(run.target.table, run.target.partition, release.id)}, release
    )


def synthetic_rows(run: TableRun, synthetic: SignedRecord) -> pd.DataFrame:
    """Read the rows of the synthetic table from its signed record."""
    return read_snapshot(run.gate.snapshot(synthetic, run.target))


def published_rows(run: TableRun, release: Release) -> tuple[pd.DataFrame, Attestation]:
    """Return the published rows of a release, and its attestation."""
    stated = release.opened(run.target, run.gate.key.trusted)
    rows = read_hashed(release.table, stated.sha256, stated.dtypes, stated.n_rows, release.root)
    return rows, stated


def protection_of(snapshot: Snapshot) -> dict[str, Any]:
    """Return the protections recorded in the signed snapshot, or an empty dict for an external
    table.
    """
    if snapshot.generator is None:
        return {}
    found = {
        key: snapshot.generator[key]
        for key in ("overfitting", "privacy")
        if key in snapshot.generator
    }
    if snapshot.filter is None:
        return {**found, "filter": None}
    return {
        **found,
        "filter": {key: value for key, value in snapshot.filter.items() if key != "inputs"},
    }
