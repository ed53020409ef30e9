"""Work of each step of a table: one function per verb, from values to values.

The caller (Dagster, Airflow, ``privacy-assets run``) chooses table and partition, stores the
values, and passes them to later steps (:mod:`privacy_assets.pipeline.steps`). Each step verifies
the signatures of its inputs, so tampered intermediate values are rejected.

A step uses the part of the gate that does its work: ``run.gate`` has the records of a table
(accepted settings, log, ledgers, releases), ``run.files`` signs and opens the values between steps,
and ``run.publisher`` attests and publishes.
"""

from __future__ import annotations

import datetime as dt
import os
import socket
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from privacy_assets.errors import OutOfDate
from privacy_assets.evaluation.measuring import attach_embedder, fit_embedder, measure
from privacy_assets.evaluation.reading import pipeline_inputs
from privacy_assets.gate.attestation import Attestation
from privacy_assets.gate.deployment import Deployment
from privacy_assets.gate.envelope import ReleaseTarget, SignedFile
from privacy_assets.gate.gate import Gate
from privacy_assets.gate.publisher import Publisher
from privacy_assets.gate.releases import Release
from privacy_assets.gate.signed_files import SignedFiles
from privacy_assets.gate.snapshot import Snapshot, read_hashed, read_snapshot
from privacy_assets.generators.registry import GENERATORS
from privacy_assets.infra.progress import Progress, silent
from privacy_assets.infra.temp_folders import remove_dead_work_folders
from privacy_assets.metrics.cumulative_disclosure import NEAR, merged_ledger
from privacy_assets.metrics.inputs import EvaluationContext, EvaluationInputs
from privacy_assets.metrics.ledger import Ledger
from privacy_assets.metrics.registry import metrics_reading
from privacy_assets.metrics.stored_inputs import digest_of
from privacy_assets.pipeline.lease import Lease
from privacy_assets.pipeline.resolve import ResolvedTable
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
)
from privacy_assets.pipeline.row_sources import Window, source_table, user_splits, user_synthetic
from privacy_assets.pipeline.training import (
    Sampled,
    Trained,
    checkpoint_folder,
    filtered_sample,
    fitting_seed,
    training_checkpoint,
)
from privacy_assets.pipeline.values import Published
from privacy_assets.policy import Verdict, judge_limit
from privacy_assets.report.report import Report
from privacy_assets.tables.column import Column, count_changed
from privacy_assets.tables.column_rule import ColumnRule
from privacy_assets.tables.inference import columns_to_accept, published_names
from privacy_assets.tables.splitting import pseudonyms, split_rows
from privacy_assets.tables.table import Table, subject_codes_of
from privacy_assets.tables.threshold_rule import (
    changes_of,
    outside_guarantee,
    real_schema,
    replaced_note,
    without_rare_values,
)

if TYPE_CHECKING:
    from privacy_assets.generators import FittedGenerator

Values = Mapping[str, Any]
_MAX_RELEASES = 3  # releases named in the report


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
        passed_rows: Rows that the caller passes, by role.
        run_id: Id of the run, the same in all of its steps. It owns the run lease of the table.
        ended: Returns True if the run with an id is known to have ended, so that its lease is free.
    """

    table: ResolvedTable
    deployment: Deployment
    target: ReleaseTarget
    window: Window | None = None
    progress: Progress = silent
    device: str = "cpu"
    scratch: Path | None = None
    passed_rows: Mapping[str, Any] = field(default_factory=dict, repr=False)
    run_id: str = field(default_factory=_new_run_id)
    ended: Callable[[str], bool] = lambda run_id: False

    @property
    def lease(self) -> Lease:
        """Run lease of the table."""
        return Lease(self.deployment.private, self.target.table, self.run_id)

    @property
    def gate(self) -> Gate:
        """Folders, key and records of the gate."""
        return self.deployment.gate()

    @property
    def files(self) -> SignedFiles:
        """Signs and opens the files of the steps."""
        return SignedFiles(self.gate, self.deployment.key("content"))

    @property
    def publisher(self) -> Publisher:
        """Attests and publishes."""
        return Publisher(self.files)

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

    def sign_table(self, role: str, table: Table) -> tuple[Table, str]:
        """Sign a private table that a step read or split.

        Args:
            role: Role of the table.
            table: The table.

        Returns:
            The signed table, and its keyed fingerprint.
        """
        fingerprint = self.keyed_fingerprint(table)
        digest = self.deployment.keyed_fingerprint(table.digest)
        envelope = self.files.sign_table(self.target, role, fingerprint, digest, self.split_setup)
        return replace(table, envelope=envelope.data), fingerprint

    def verify_tables(self, tables: Mapping[str, Table]) -> dict[str, str]:
        """Verify that the latest step signed these private tables, by the hash of their files.

        Args:
            tables: Tables by role.

        Returns:
            The keyed fingerprints of the tables, by role.

        Raises:
            PublicationBlocked: Unless it did, under the current settings.
        """
        setup = self.split_setup
        fingerprints = {}
        for role, table in tables.items():
            envelope = SignedFile("split", table.envelope)
            digest = self.deployment.keyed_fingerprint(table.digest)
            fingerprints[role] = self.files.check_table(envelope, self.target, role, digest, setup)
        return fingerprints

    def real(self, values: Values) -> dict[str, Table]:
        """Return the real tables among ``values``, by role.

        Args:
            values: Values by name.
        """
        return {role: values[role] for role in self.table.roles if role in values}


def read(run: TableRun, name: str, values: Values) -> ReadResult:
    """Read the private table in canonical form. It gets a signed file of the settings under which
    it was read.
    """
    # also checks the keys, before the table is read
    accepted_columns = run.gate.accepted.columns(run.target.table)
    rows = run.passed_rows.get("source")
    source = source_table(run.table, rows, run.target.partition, run.window, accepted_columns)
    for note in source.notes:
        run.progress(note)
    signed, fingerprint = run.sign_table("source", source)
    return ReadResult(signed, fingerprint)


def split(run: TableRun, name: str, values: Values) -> SplitResult:
    """Split the private table, or read the tables of an external split, and apply the threshold
    rule to them.

    Each table gets the signed file of the split. The settings of the table are signed after all
    tables have been read.
    """
    _check_may_run(run)
    if run.table.external:
        real = _read_splits(run)
    else:
        real = _split_source(run, values["source"])
    columns = columns_to_accept(real["train"].schema)
    if not run.gate.accepted.columns(run.target.table):
        run.progress(published_names(columns))
    real = _with_threshold_rule(run, real)
    signed: dict[str, Table] = {}
    fingerprints: dict[str, str] = {}
    for role, part in real.items():
        signed[role], fingerprints[role] = run.sign_table(role, part)
    _accept_settings(run, columns)
    return SplitResult(signed, fingerprints)


def _check_may_run(run: TableRun) -> None:
    """Reject a run with other settings than the accepted ones, or of a suspended table, before its
    rows are read.
    """
    # without the columns, which are not read yet
    run.gate.accepted.check(run.target.table, run.table.policy, run.setup, new=True)
    run.gate.check_not_suspended(run.target.table)


def _read_splits(run: TableRun) -> dict[str, Table]:
    """Read the tables of an external split."""
    accepted_columns = run.gate.accepted.columns(run.target.table)
    return user_splits(
        run.table, run.passed_rows, run.target.partition, run.window, accepted_columns
    )


def _split_source(run: TableRun, source: Table) -> dict[str, Table]:
    """Verify the private table, and split it by role."""
    run.verify_tables({"source": source})
    key = run.deployment.key("split")
    rows_by_role = split_rows(source, key, run.table.shares, exact_ids=run.table.declared.exact_ids)
    # compact: a part must not keep the dictionaries of the whole table in memory
    return {role: source.take(rows).map(Column.compact) for role, rows in rows_by_role.items()}


def _with_threshold_rule(run: TableRun, real: Mapping[str, Table]) -> dict[str, Table]:
    """Replace the values that too few people share in the real tables."""
    table = run.table
    min_holders = table.policy.min_holders
    return without_rare_values(real, min_holders, table.declared, table.bounded_columns)


def _accept_settings(run: TableRun, columns: Mapping[str, str]) -> None:
    """Sign the settings of the run and its columns, unless they differ from accepted ones."""
    table_name = run.target.table
    entries = run.gate.accepted.check(
        table_name, run.table.policy, run.setup, new=True, columns=columns
    )
    run.gate.accepted.sign(table_name, entries)


def embed(run: TableRun, name: str, values: Values) -> EmbedResult:
    """Train the embedder on all real rows."""
    embedder = fit_embedder(
        run.real(values).values(),
        run.table.embedder or {},
        seed=run.table.spec.run.seed,
        device=run.device,
        progress=run.progress,
    )
    return EmbedResult(embedder)


def fit(run: TableRun, name: str, values: Values) -> FitResult:
    """Fit the generator to train. If ``run.scratch`` is set, interrupted training resumes from
    the checkpoints below it.
    """
    remove_dead_work_folders()
    train = values["train"]
    fingerprint = run.verify_tables({"train": train})["train"]
    seed = fitting_seed(run.table, run.deployment)
    folder = checkpoint_folder(run.scratch, run.target)
    keyed = run.deployment.keyed_fingerprint
    digest = keyed(train.digest)
    rows = train.for_training()
    if GENERATORS.distribution(run.table.generator.name) is not None:
        rows = deepcopy(rows)  # what another package does to them must not change later steps
    with training_checkpoint(run.table, digest, seed, folder, run.device) as checkpoint:
        fitted = run.table.generator.fit(
            rows,
            seed=seed,
            device=run.device,
            progress=run.progress,
            checkpoint=checkpoint,
            subject_codes=subject_codes_of([train]),
        )
    return FitResult(Trained(fitted, fingerprint, keyed))


def sample(run: TableRun, name: str, values: Values) -> SampleResult:
    """Create the synthetic table, or read an external one, and write it once to the private folder
    of the gate.

    The threshold rule is applied to it, so that later steps evaluate and publish the same table.

    Raises:
        InputError: If the table has categories that no real table has, or numbers far outside of
            the real range.
    """
    remove_dead_work_folders()
    tables = run.real(values)
    fingerprints = run.verify_tables(tables)
    train = tables["train"]
    rules = train.rules
    if run.table.external:
        where = "synthetic"
        train_fingerprint = fingerprints["train"]
        output = Sampled(_user_rows(run, train))
    else:
        where = "the output of the generator"
        trained = _loaded(values["generator"], run)
        train_fingerprint = trained.train_fingerprint
        output = _generated(run, trained.generator, tables, fingerprints)
    if output.generator is not None and output.generator["privacy"]["epsilon"] is not None:
        output.generator["privacy"]["outside_guarantee"] += tuple(outside_guarantee(rules))
    rows = output.table.without_rare(rules, where=where).with_schema(train.schema)
    n_replaced = _count_replaced(output.table, rows, rules)
    snapshot, signed_file = run.files.take_snapshot(
        rows,
        run.target,
        train_fingerprint,
        output.filter,
        _with_distribution(output.generator),
        n_replaced,
        output.table,
    )
    return SampleResult(rows, snapshot, signed_file, output.metadata)


def _user_rows(run: TableRun, train: Table) -> Table:
    """Read the external synthetic table."""
    schema = real_schema(train.schema, train.rules)
    rows = run.passed_rows.get("synthetic")
    return user_synthetic(run.table, rows, train, schema, run.target.partition, run.window)


def _generated(
    run: TableRun,
    generator: FittedGenerator,
    tables: Mapping[str, Table],
    fingerprints: Mapping[str, str],
) -> Sampled:
    """Sample rows from the trained generator, with the filters of the table."""
    if run.table.filters:
        return filtered_sample(run.table, generator, tables, fingerprints, run.progress)
    train = tables["train"]
    n_rows = run.table.spec.generator.rows or len(train)
    rows = generator.sample(n_rows, seed=run.table.spec.run.seed)
    return Sampled(rows.with_schema(train.schema), generator.described())


def _with_distribution(generator_info: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Add name and version of the distribution of a generator, if another package has it."""
    if generator_info is None:
        return None
    distribution = GENERATORS.distribution(generator_info["name"])
    if distribution is None:
        return generator_info
    return {**generator_info, "distribution": distribution}


def _loaded(generator: Any, run: TableRun) -> Trained:
    """Return a trained generator, which is loaded if it is the folder of a stored one."""
    if isinstance(generator, Trained):
        return generator
    return Trained.load(generator, run.deployment.keyed_fingerprint)


def _count_replaced(before: Table, rows: Table, rules: Mapping[str, ColumnRule]) -> dict[str, int]:
    """Return the number of cells that the threshold rule changed, by column, without zeros."""
    n_replaced = {}
    for name, rule in rules.items():
        if rule.recoding is None:
            continue
        n_changed = count_changed(before[name], rows[name])
        if n_changed:
            n_replaced[name] = n_changed
    return n_replaced


def prepare(run: TableRun, name: str, values: Values) -> PrepareResult:
    """Encode, verify and fingerprint all tables once for all metrics, with their embeddings.

    Scales and encoders are fitted to all real rows, so the statistics equal those of
    ``privacy_assets.evaluate``.

    Raises:
        PublicationBlocked: Unless the latest split signed every real table under the current
            settings.
    """
    tables = run.real(values)
    train = tables["train"]
    embedder = values.get("embedder")
    keyed = run.deployment.keyed_fingerprint
    snapshot = run.files.open_snapshot(values["synthetic"], run.target)
    rows = Table.of(read_snapshot(snapshot), train.schema, where="synthetic", synthetic=True)
    fingerprints = {**run.verify_tables(tables), "synthetic": run.keyed_fingerprint(rows)}
    if embedder is not None:
        fingerprints["embedder"] = keyed(embedder.fingerprint())
    inputs = pipeline_inputs(
        tables,
        rows,
        run.table.declared,
        run.table.policy,
        is_external=run.table.external,
        seed=run.table.spec.run.seed,
        device=run.device,
        progress=run.progress,
    )
    if embedder is not None:
        inputs = attach_embedder(inputs, embedder)
    key = run.deployment.key("ledger")
    exact_ids = run.table.declared.exact_ids
    pseudonyms_by_role = {role: pseudonyms(table, key, exact_ids) for role, table in tables.items()}
    inputs = inputs.with_facts(pseudonyms=pseudonyms_by_role, ruled=tuple(train.rules))
    body = {
        "inputs": fingerprints,
        # computes all embeddings now, while a device is available
        "digest": keyed(digest_of(inputs)),
        "snapshot": values["synthetic"].data.decode(),
    }
    envelope = run.files.sign_prepared(snapshot, run.split_setup, body)
    real = [table.without_subject() for table in tables.values()]
    signed_inputs = inputs.with_context(replace(inputs.context, envelope=envelope.data))
    return PrepareResult(signed_inputs, snapshot, rows, real)


def checked_inputs(run: TableRun, inputs: EvaluationInputs) -> tuple[Mapping[str, Any], Snapshot]:
    """Verify prepared tables against their signed file.

    Args:
        run: Table, partition and deployment.
        inputs: Tables that :func:`prepare` prepared.

    Returns:
        Signed file, with the keyed fingerprints of the tables ("inputs"), and the snapshot of the
        synthetic table.

    Raises:
        PublicationBlocked: Unless this deployment signed them under the current settings.
    """
    digest = run.deployment.keyed_fingerprint(digest_of(inputs))
    return run.files.open_prepared(
        SignedFile("prepared", inputs.context.envelope), run.target, digest, run.split_setup
    )


def score(run: TableRun, name: str, values: Values) -> ScoreResult:
    """Run the metric ``name``, and sign its result."""
    gate = run.gate
    files = run.files
    table = run.table
    metric = table.metrics[name]
    inputs: EvaluationInputs = values["evaluation_inputs"]
    signed, snapshot = checked_inputs(run, inputs)
    fingerprints = dict(signed["inputs"])
    embedder = inputs.embedder
    if not table.uses_embedder(metric):
        embedder = None
        fingerprints.pop("embedder", None)
    uses_ledger = metric.uses("ledger")
    ledger_digest = gate.log.state(run.target.table).ledger
    ledger_bytes = gate.ledgers.read(run.target.table, ledger_digest)
    ledger = None
    if ledger_bytes and uses_ledger:
        ledger = Ledger.from_bytes(ledger_bytes)
    context = EvaluationContext(
        seed=table.spec.run.seed,
        device=run.device,
        progress=run.progress,
        embedder=embedder,
        generator=protection_of(snapshot),
        ledger=ledger,
        release_number=int(snapshot.sha256[:12], 16),
        release_day=dt.date.today().toordinal(),
        fingerprints=signed["inputs"],
    )
    inputs = inputs.with_context(context)
    limits = [limit for limit in table.policy.limits if limit.metric == name]
    measured = measure(
        inputs,
        {name: metric},
        limits,
        is_external=table.external,
        # Computing a score counts as a publication attempt, even without an attestation.
        count_attempt=lambda: gate.log.count_attempt(snapshot),
    )
    result = replace(measured.results[name], inputs={**fingerprints, "ledger": ledger_digest})
    outcomes = [judge_limit(limit, result, measured.attempt) for limit in limits]
    new_ledger = None
    if uses_ledger:
        new_ledger = merged_ledger(inputs)
    new_bytes = b""
    if new_ledger is not None:
        new_bytes = new_ledger.to_bytes()
    signed_file = files.sign_result(result, snapshot, outcomes, new_bytes)
    row_scores = files.keep_row_scores(result, snapshot)
    return ScoreResult(name, signed_file, result, outcomes, row_scores)


def attest(run: TableRun, name: str, values: Values) -> AttestResult:
    """Evaluate the policy on the signed scores, and sign the verdict. Scores on other tables are
    rejected.

    The report is built from the signed attestation and the results that it names, so they cannot
    differ.
    """
    files = run.files
    table = run.table
    snapshot = files.open_snapshot(values["synthetic"], run.target)
    prepared: EvaluationInputs = values["evaluation_inputs"]
    signed, prepared_snapshot = checked_inputs(run, prepared)
    if prepared_snapshot.sha256 != snapshot.sha256:
        raise OutOfDate("the tables were prepared with another synthetic table", record="prepared")
    scores = {metric: values[metric] for metric in table.metrics}
    results = {
        metric: files.open_result(signed_file, snapshot) for metric, signed_file in scores.items()
    }
    inputs = {**signed["inputs"], **run.verify_tables(run.real(values))}
    attestation, signed_file = run.publisher.attest(
        snapshot, table.policy, scores, inputs, table.metrics, run.setup
    )
    policy = attestation.attested_policy()
    verdict = policy.judge(results, attestation.attempt)
    generator_name = table.generator_label or "unknown: an external table"
    embedder_description = None
    if prepared.embedder is not None:
        embedder_description = prepared.embedder.description
    report = Report(
        title=str(snapshot.target),
        policy=policy,
        policy_verdict=verdict,
        results=results,
        tables=prepared.sizes(),
        seed=table.spec.run.seed,
        attempt=attestation.attempt,
        fingerprints={"synthetic": signed["inputs"]["synthetic"]},
        generator={"name": generator_name, **protection_of(snapshot)},
        embedder=embedder_description,
        earlier_failures=tuple(attestation.earlier_failures),
        notes=_report_notes(run, snapshot, prepared, verdict),
        changes=changes_of(values["train"].rules),
        has_earlier_releases=any(result.inputs["ledger"] for result in results.values()),
        signed={
            "date": attestation.made_at,
            "key": attestation.keyid,
            "sha256": attestation.sha256,
        },
    )
    return AttestResult(attestation, signed_file, report)


def _report_notes(
    run: TableRun, snapshot: Snapshot, prepared: EvaluationInputs, verdict: Verdict
) -> tuple[str, ...]:
    table = run.table
    return (
        *prepared.release.notes,
        *replaced_note(snapshot.n_replaced),
        *row_scores_notes(run.files, snapshot, table.metrics),
        *disclosing_note(run.gate, snapshot.target.table, verdict),
    )


def disclosing_note(gate: Gate, table: str, verdict: Verdict) -> Iterator[str]:
    """Name the releases that disclose most if a limit on all releases together fails.

    Args:
        gate: Folders, key and records of the gate.
        table: Name of the table.
        verdict: Outcome of each limit.

    Yields:
        At most one sentence.
    """
    ledger_bytes = gate.ledgers.read(table, gate.log.state(table).ledger)
    ledger_metrics = metrics_reading("ledger")
    has_failed = any(outcome.limit.metric in ledger_metrics for outcome in verdict.not_passed)
    if not ledger_bytes or not has_failed:
        return
    ids = []
    for target in gate.store.targets(table):
        ids += [release.id for release in gate.store.history(target)]
    releases = []
    ledger = Ledger.from_bytes(ledger_bytes)
    for number, share in ledger.most_by_release(NEAR)[:_MAX_RELEASES]:
        label = "a removed release"
        for release_id in ids:
            if release_id.endswith(f"{number:012x}"):
                label = release_id
        releases.append(f"{label} ({share:.1%} of the people)")
    if releases:
        yield (
            f"Releases with the closest row to most people: {', '.join(releases)}. To remove"
            f' one: privacy-assets releases {table} --withdraw ID --reason "..."'
        )


def row_scores_notes(
    files: SignedFiles, snapshot: Snapshot, metrics: Iterable[str]
) -> Iterator[str]:
    """Name the private files with the scores of each synthetic row.

    Args:
        files: Files of the steps.
        snapshot: Synthetic table.
        metrics: Names of the metrics that ran.

    Yields:
        One sentence for each file, with its path relative to the private folder.
    """
    for metric in metrics:
        path = files.row_scores(snapshot, metric)
        if path.exists():
            name = str(path).removeprefix(f"{files.gate.private}/")
            yield (
                f"Scores of {metric} for every synthetic row: {name} in the private folder. Do"
                " not publish this file."
            )


def publish(run: TableRun, name: str, values: Values) -> PublishResult:
    """Publish the attested table. The gate verifies attestation, policy and bytes itself."""
    release = run.publisher.publish(
        values["attestation"], values["synthetic"], run.target, run.table.policy, run.setup
    )
    published = Published(run.target.table, run.target.partition, release.id)
    return PublishResult(release, published)


def synthetic_rows(run: TableRun, synthetic: SignedFile) -> pd.DataFrame:
    """Read the rows of the synthetic table from the private folder.

    Args:
        run: Table, partition and deployment.
        synthetic: Signed file of the snapshot.
    """
    return read_snapshot(run.files.open_snapshot(synthetic, run.target))


def published_rows(run: TableRun, release: Release) -> tuple[pd.DataFrame, Attestation]:
    """Read the published rows of a release.

    Args:
        run: Table, partition and deployment.
        release: Release of this table and partition.

    Returns:
        The rows and the attestation of the release.
    """
    attestation = release.opened(run.target, run.gate.key.trusted)
    rows = read_hashed(
        release.table,
        attestation.sha256,
        attestation.dtypes,
        attestation.n_rows,
        release.root,
    )
    return rows, attestation


def protection_of(snapshot: Snapshot) -> dict[str, Any]:
    """Return the protections recorded in a signed snapshot.

    Args:
        snapshot: Synthetic table.

    Returns:
        Overfitting and privacy of the generator, and the filter. Empty for an external table.
    """
    if snapshot.generator is None:
        return {}
    protections: dict[str, Any] = {}
    for key in ("overfitting", "privacy"):
        if key in snapshot.generator:
            protections[key] = snapshot.generator[key]
    protections["filter"] = None
    if snapshot.filter is not None:
        filter_info = dict(snapshot.filter)
        filter_info.pop("inputs", None)
        protections["filter"] = filter_info
    return protections
