"""``evaluate``: the one function behind Python, notebooks and the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privacy_assets.compute.progress import Progress, silent, watched
from privacy_assets.errors import ConfigError, door
from privacy_assets.evaluation import (
    MetricsLike,
    TableLike,
    attach_embedder,
    choose_metrics,
    fit_embedder,
    prepare_inputs,
    require_torch,
    run_metrics,
    wants_embedder,
)
from privacy_assets.generators.registry import as_generator
from privacy_assets.metrics.inputs import MetricInputs
from privacy_assets.metrics.registry import METRICS, metrics_reading
from privacy_assets.policy import SHIPPED, Policy
from privacy_assets.stats.results import MetricResult
from privacy_assets.tables.roles import Declared
from privacy_assets.tables.schema import Kind
from privacy_assets.version import ENGINE_VERSION

if TYPE_CHECKING:
    from privacy_assets.generators.registry import GeneratorLike
    from privacy_assets.report.report import Report


@door
def evaluate(
    train: TableLike,
    holdout: TableLike,
    synthetic: TableLike,
    *,
    reference: TableLike | None = None,
    released: Sequence[TableLike] = (),
    subject: str | None = None,
    kinds: Mapping[str, Kind] | None = None,
    drop: Sequence[str] | None = None,
    generated: Mapping[str, str] | None = None,
    domains: Mapping[str, Sequence[Any]] | None = None,
    policy: Policy | Mapping[str, Any] | str | Path | None = None,
    metrics: MetricsLike | None = None,
    generator: GeneratorLike | None = None,
    embedder: bool = True,
    seed: int = 0,
    device: str = "auto",
    progress: Progress | None = None,
) -> Report:
    """Measure how much ``synthetic`` gives away about the people in ``train``, and judge it by a policy.

    ``train`` are the rows the generator saw, ``holdout`` rows of the same population it did not see, ``reference``
    further unseen rows (optional), ``released`` tables of the same people that were released before. Tables are
    dataframes (pandas, polars, DuckDB, Arrow and all that narwhals knows) or paths of Parquet or CSV files.
    ``subject`` names the column that tells people apart. ``drop`` are columns to leave out (the subject, of
    ``synthetic`` alone); the report names those that stand in ``synthetic``. ``generated`` are those in which new
    values are allowed, each with a reason, ``domains`` values that may stand in a column beside the real ones:
    identifiers and free text are refused otherwise (docs/columns.md). ``policy`` is a Policy, a mapping, a YAML file,
    or the name of a shipped one, ``small``;
    ``metrics`` are names, or a mapping of names to settings; all default ones when None. ``generator`` is what made
    ``synthetic``, for the metrics that attack it: a registered name, a mapping of ``name`` and ``settings``, or a
    function. ``embedder=False`` leaves the embedded statistics out, and the time to train an encoder; the verdict names
    them then. The same inputs and ``seed`` give the same report, but for the seconds it took. Raises InputError
    for tables and ConfigError for settings that cannot be used, and MissingPackage where the embedder needs torch and
    it is not installed; no error holds a cell of a table, or is chained to one.

    ``progress`` is a function that is told what happens. Without one bars are shown on a terminal and in a notebook.
    """
    if not isinstance(embedder, bool) or not (progress is None or callable(progress)):
        raise ConfigError("embedder must be true or false, and progress a function that takes a text.")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ConfigError("seed must be a whole number of at least 0.")
    declared = Declared.of(drop, generated, domains, subject=subject)
    made_by = None if generator is None else as_generator(generator)
    external = {"train", "holdout", "synthetic"} | ({"reference"} if reference is not None else set())
    chosen, in_force = choose_metrics(metrics, as_policy(policy), made_by, external)
    if released and not any(metric.reads("released") for metric in chosen.values()):
        add = " or ".join(metrics_reading("released"))
        raise ConfigError(f"earlier releases were given, but nothing looks at them. Fix: add {add} to the metrics.")
    if made_by is not None and not any(metric.attacks_generator for metric in chosen.values()):
        add = " or ".join(name for name, metric in METRICS.items() if metric.attacks_generator)
        raise ConfigError(f"a generator was given, but no metric attacks it. Fix: add {add} to the metrics.")
    embedded = embedder and wants_embedder(chosen.values())
    if embedded:
        require_torch()
    from privacy_assets.compute.devices import pick_device

    with watched(otherwise=silent) if progress is None else nullcontext(progress) as told:
        inputs = prepare_inputs(
            train, holdout, synthetic, reference,
            released=released, subject=subject, kinds=kinds, declared=declared, seed=seed, device=pick_device(device),
            progress=told,
        )  # fmt: skip
        known = inputs.subjects.get("train")
        if doubt := in_force.doubt(len(inputs.train) if known is None else len(np.unique(known))):
            told(doubt)
            inputs = replace(inputs, notes=(*inputs.notes, doubt))
        if embedded:
            inputs = attach_embedder(inputs, fit_embedder(inputs))
        results = run_metrics(inputs, chosen)
    made = None
    if made_by is not None:
        protection = made_by.overfitting_protection()
        made = {"name": made_by.name, "settings": made_by.settings(), "overfitting": protection}
    return assemble(inputs, results, in_force, generator=made)


def as_policy(policy: Policy | Mapping[str, Any] | str | Path | None) -> Policy | None:
    """A policy from any of its forms: a shipped one by its name; ConfigError for anything else."""
    if policy is None:
        return None
    if isinstance(policy, str) and policy in SHIPPED:
        return SHIPPED[policy]()
    if isinstance(policy, Policy):
        return policy.checked_name("policy")
    if isinstance(policy, str | Path):
        return Policy.from_yaml(policy)
    return Policy.from_dict(policy)


def assemble(inputs: MetricInputs, results: Mapping[str, MetricResult], policy: Policy, **details: Any) -> Report:
    """Judge ``results`` and put the report together, for tables that nobody is about to publish."""
    sizes, fingerprint = sizes_of(inputs), inputs.fingerprints["synthetic"]
    return put_together(
        sizes, fingerprint, inputs.seed, results, policy, title="Privacy report", notes=inputs.notes, **details
    )


def sizes_of(inputs: MetricInputs) -> dict[str, dict[str, int]]:
    """Rows, columns and subjects of each table."""
    return {
        role: {
            "rows": len(table),
            "columns": len(table.columns),
            "subjects": len(table) if role == "synthetic" else int(inputs.subject_codes(role).max(initial=-1)) + 1,
        }
        for role, table in inputs.tables.items()
    }


def put_together(
    sizes: Mapping[str, Mapping[str, int]],
    fingerprint: str,
    seed: int,
    results: Mapping[str, MetricResult],
    policy: Policy,
    attempt: int = 1,
    *,
    title: str,
    **details: Any,
) -> Report:
    """The report of ``results`` on tables of these ``sizes``, the synthetic one known by its ``fingerprint``.

    They are judged at the level of this ``attempt`` at publishing.
    """
    from privacy_assets.report.report import Report

    return Report(
        title=title,
        policy=policy,
        judgement=policy.judge(results, attempt),
        attempt=attempt,
        results=dict(results),
        tables=sizes,
        seed=seed,
        engine_version=ENGINE_VERSION,
        fingerprints={"synthetic": fingerprint},
        **details,
    )
