"""Small tables, generators and settings for quick pipelines."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import dagster as dg
import pandas as pd
import pytest
from drawing import independent, memorize, people

from privacy_assets import (
    GpuResource,
    PrivacyIOManager,
    ReleaseResource,
    build_privacy_assets,
    frozen_config,
)
from privacy_assets.generators import _function_worker as worker
from privacy_assets.generators.user_code import CallableGenerator
from privacy_assets.pipeline import expectations
from privacy_assets.pipeline.resolve import ROLES
from privacy_assets.pipeline.spec import GROUPS, TableSpec
from privacy_assets.studies.leak_study_job import build_leak_study

ASSETS = (dg.AssetKey, dg.AssetsDefinition, dg.AssetSpec)

__all__ = [
    "FEW_DRAWS",
    "LENIENT",
    "QUICK",
    "attested",
    "blocking_error",
    "checks",
    "failures",
    "independent",
    "look_anew",
    "look_once",
    "made",
    "memorize",
    "people",
    "people_table",
    "reported",
    "resources",
    "run",
    "run_functions_here",
    "slow",
    "spec_and",
    "sqlite_instance",
    "study_of",
    "table_of",
    "whole_steps",
]

FEW_DRAWS: dict[str, Any] = {
    "metrics": {"dcr": {"n_bootstraps": 50, "n_permutations": 199}},
    "embedder": False,
}
_FEW_IDENTICAL = {
    "statistic": "dcr.identical_excess",
    "at_most": 0.3,
    "bound": "proven",
    "min_subjects": 5,
    "advice": "Use larger leaves.",
}
_FEW_MEMBERS = {
    "statistic": "dcr.member_excess",
    "at_most": 0.1,
    "bound": "proven",
    "min_subjects": 5,
}
LENIENT: dict[str, Any] = {
    "name": "lenient",
    **FEW_DRAWS,
    "limits": [_FEW_IDENTICAL, _FEW_MEMBERS],
}
QUICK: dict[str, Any] = {
    "metrics": ["dcr"],
    "policy": LENIENT,
    "embedder": False,
}


def resources(folder: Path) -> dg.Definitions:
    """Resources below one folder, and the in-process executor."""
    releases = str(folder / "releases")
    return dg.Definitions(
        resources={
            "io_manager": frozen_config(dg.FilesystemIOManager()),
            "privacy_io": PrivacyIOManager(base=str(folder / "storage"), releases=releases),
            "releases": ReleaseResource(releases=releases, private=str(folder / "private")),
            "gpu": GpuResource(device="cpu", lock_folder=str(folder / "locks")),
        },
        executor=dg.in_process_executor,
    )


def run_functions_here(patch: pytest.MonkeyPatch) -> None:
    """Run function generators in this process from now on, not in separate ones."""

    def watch(generator: CallableGenerator, arguments: list[str], *_: Any) -> None:
        path = list(sys.path)
        start = arguments.index(worker.__file__) + 1
        try:
            worker.main(*arguments[start:])
        finally:
            sys.path[:] = path

    patch.setattr(CallableGenerator, "_watch", watch)


_LOOKED_AT: dict[object, list[expectations.Expected]] = {}
_look = expectations._run


def look_once(patch: pytest.MonkeyPatch) -> None:
    """Validate the same rows with the same Great Expectations suite only once per session from now
    on.
    """

    def run(
        frame: pd.DataFrame, suite: Sequence[tuple[str, dict[str, Any]]]
    ) -> list[expectations.Expected]:
        hashes = pd.util.hash_pandas_object(frame).to_numpy().tobytes()
        key = (hashes, repr(frame.dtypes.to_dict()), repr(suite))
        if key not in _LOOKED_AT:
            _LOOKED_AT[key] = _look(frame, suite)
        return list(_LOOKED_AT[key])

    patch.setattr(expectations, "_run", run)


def look_anew(patch: pytest.MonkeyPatch) -> None:
    """Validate every table again."""
    patch.setattr(expectations, "_run", _look)


def slow(case: Any) -> Any:
    """Mark a case for the slow run.

    Args:
        case: Argument of the test, or a tuple of several arguments.
    """
    arguments = case if isinstance(case, tuple) else (case,)
    return pytest.param(*arguments, marks=pytest.mark.slow)


def sqlite_instance(folder: Path) -> dg.DagsterInstance:
    """An instance on SQLite below ``folder``, without telemetry."""
    home = folder / "home"
    home.mkdir()
    events = {  # in one file: creating one for each run takes as long as a blocked run
        "module": "dagster._core.storage.event_log",
        "class": "ConsolidatedSqliteEventLogStorage",
        "config": {"base_dir": str(home / "history")},
    }
    overrides = {"telemetry": {"enabled": False}, "event_log_storage": events}
    return dg.DagsterInstance.local_temp(str(home), overrides=overrides)


def people_table(folder: Path, *, study: bool = False, **changes: Any) -> dg.Definitions:
    """Return the table ``people``; its rows are written if they do not exist.

    Args:
        folder: Folder of the rows and of the deployment.
        study: Whether to add the job of the leak study.
        **changes: Further settings of the table.
    """
    source = folder / "people.parquet"
    if not source.exists():
        people().to_parquet(source)
    settings = {"source": source, "subject": "pid", "generator": independent, **QUICK, **changes}
    definitions = [table_of("people", **settings), resources(folder)]
    if study:
        definitions.append(study_of("people", **settings))
    return dg.Definitions.merge(*definitions)


def run(
    defs: dg.Definitions,
    instance: dg.DagsterInstance,
    *only: str,
    partition: str | None = None,
    table: str = "people",
) -> dg.ExecuteInProcessResult:
    """Run the job of a table without raising.

    Args:
        defs: Definitions of the table.
        instance: Instance of Dagster.
        *only: Names of the assets to materialize. Empty: all.
        partition: Key of the partition, or None.
        table: Name of the table.
    """
    job = defs.resolve_job_def(f"{table}_pipeline")
    selection = whole_steps([dg.AssetKey([table, asset]) for asset in only])
    return job.execute_in_process(
        instance=instance,
        raise_on_error=False,
        partition_key=partition,
        asset_selection=selection or None,
    )


_VERBS = {
    "source": "read",
    **dict.fromkeys(("train", "holdout", "reference"), "split"),
    "embedder": "embed",
    "generator": "fit",
    "synthetic": "sample",
    "evaluation_inputs": "prepare",
    **dict.fromkeys(("attestation", "privacy_report"), "attest"),
    "published": "publish",
}


def step_of(table: str, asset: str) -> str:
    """Return the step that makes an asset; scores without a device share one.

    Args:
        table: Name of the table.
        asset: Name of the asset below it.
    """
    return f"{table}__{_VERBS.get(asset, 'score')}"


def blocking_error(result: dg.ExecuteInProcessResult, asset: str) -> str:
    """Return the reason that the gate gave when it blocked a step.

    Args:
        result: Result of the run of ``people``.
        asset: Asset that the step makes.
    """
    failure = failures(result)[step_of("people", asset)]
    return str(failure.user_failure_data.description)


def reported(folder: Path, table: str = "people") -> dict[str, Any]:
    """Return the report of a table.

    Args:
        folder: Folder of the deployment.
        table: Name of the table.
    """
    (file,) = (folder / "storage" / table / "privacy_report").rglob("*.json")
    return json.loads(file.read_text())


def attested(folder: Path) -> dict[str, Any]:
    """The predicate of the attestation of ``people``, unverified."""
    file = folder / "storage/people/attestation/attestation.json"
    envelope = json.loads(file.read_bytes())
    statement = json.loads(base64.b64decode(envelope["payload"]))
    return statement["predicate"]


def whole_steps(keys: Sequence[dg.AssetKey]) -> list[dg.AssetKey]:
    """Add the page of each attestation, because one step creates both.

    Args:
        keys: Keys of assets.
    """
    pages = []
    for key in keys:
        *prefix, name = key.path
        if name == "attestation":
            pages.append(dg.AssetKey([*prefix, "privacy_report"]))
    return list(dict.fromkeys([*keys, *pages]))


def checks(result: dg.ExecuteInProcessResult) -> dict[tuple[str, str], dg.AssetCheckEvaluation]:
    """Check evaluations of a run by asset and check name."""
    evaluations = {}
    for evaluation in result.get_asset_check_evaluations():
        asset = evaluation.asset_key.path[-1]
        evaluations[asset, evaluation.check_name] = evaluation
    return evaluations


def made(result: dg.ExecuteInProcessResult) -> dict[str, dict[str, Any]]:
    """Metadata of the materializations of a run, by asset name."""
    metadata = {}
    for event in result.get_asset_materialization_events():
        entries = event.materialization.metadata.items()
        metadata[event.asset_key.path[-1]] = {key: entry.value for key, entry in entries}
    return metadata


def failures(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    """Failure data of the failed steps of a run, by step."""
    failed = [event for event in result.all_events if event.is_step_failure]
    return {event.step_key: event.step_failure_data for event in failed}


def failed_run(
    result: dg.ExecuteInProcessResult,
    instance: dg.DagsterInstance,
    defs: dg.Definitions | None = None,
) -> dg.RunFailureSensorContext:
    """Return the context of a failed run, as the sensor gets it.

    Args:
        result: Result of the run.
        instance: Instance of Dagster.
        defs: Definitions of the run. None: the sensor has no code location and no deployment.
    """
    releases = ReleaseResource(home="nowhere")
    repository = None
    if defs is not None:
        releases = defs.resources["releases"]
        repository = defs.get_repository_def()
    context = dg.build_run_status_sensor_context(
        sensor_name="privacy_run_failures",
        dagster_event=result.get_run_failure_event(),
        dagster_instance=instance,
        dagster_run=result.dagster_run,
        partition_key=result.dagster_run.tags.get("dagster/partition"),
        resources={"releases": releases},
        repository_def=repository,
    )
    return context.for_run_failure()


def table_of(name: str, **settings: Any) -> dg.Definitions:
    """Call ``build_privacy_assets`` with settings without their group.

    Args:
        name: Name of the table.
        **settings: See :func:`spec_and`.
    """
    spec, arguments = spec_and(name, settings)
    return build_privacy_assets(spec, **arguments)


def study_of(name: str, **settings: Any) -> dg.Definitions:
    """Call ``build_leak_study`` with settings without their group.

    Args:
        name: Name of the table.
        **settings: See :func:`spec_and`.
    """
    spec, arguments = spec_and(name, settings)
    return build_leak_study(spec, **arguments)


def spec_and(name: str, settings: dict[str, Any]) -> tuple[TableSpec, dict[str, Any]]:
    """Assign settings to the groups of a spec.

    Args:
        name: Name of the table.
        settings: Settings of all groups, and arguments of ``build_privacy_assets``. A role of the
            data may be an asset.

    Returns:
        The spec, and the arguments of ``build_privacy_assets``.
    """
    remaining = dict(settings)
    generator = remaining.pop("generator", None)
    if not isinstance(generator, Mapping):
        generator = {"name": generator or "synthpop"}
    parts: dict[str, Any] = {"generator": dict(generator)}
    assets = {}
    for role in ROLES:
        if isinstance(remaining.get(role), ASSETS):
            assets[role] = remaining.pop(role)
    for group in GROUPS:
        part = parts.setdefault(group.part, {})
        for setting in group.model_fields:
            if setting in remaining:
                part[setting] = remaining.pop(setting)
    parts["split"] = remaining.pop("split", {})
    policy = remaining.pop("policy", None)
    if assets:
        remaining["assets"] = assets
    return TableSpec(name=name, policy=policy, **parts), remaining
