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
from drawing import independent, memorise, people

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

ASSETS = (dg.AssetKey, dg.AssetsDefinition, dg.AssetSpec)

__all__ = [
    "FEW_DRAWS",
    "LENIENT",
    "QUICK",
    "attested",
    "checks",
    "failures",
    "independent",
    "look_anew",
    "look_once",
    "made",
    "memorise",
    "people",
    "people_table",
    "refusal",
    "reported",
    "resources",
    "run",
    "run_functions_here",
    "slow",
    "spec_and",
    "sqlite_instance",
    "table_of",
    "whole_steps",
]

FEW_DRAWS: dict[str, Any] = {
    "metrics": {"dcr": {"n_bootstraps": 50, "n_permutations": 199}},
    "embedder": False,
}
LENIENT: dict[str, Any] = {
    "name": "lenient",
    **FEW_DRAWS,
    "limits": [
        {
            "statistic": "dcr.identical_excess",
            "at_most": 0.3,
            "bound": "proven",
            "min_subjects": 5,
            "advice": "Use larger leaves.",
        },
        {"statistic": "dcr.member_excess", "at_most": 0.1, "bound": "proven", "min_subjects": 5},
    ],
}
QUICK: dict[str, Any] = {
    "metrics": ["dcr"],
    "policy": LENIENT,
    "embedder": False,
}


def resources(folder: Path) -> dg.Definitions:
    """Resources below one folder, and the in-process executor."""
    return dg.Definitions(
        resources={
            "io_manager": frozen_config(dg.FilesystemIOManager()),
            "privacy_io": PrivacyIOManager(
                base=str(folder / "storage"), releases=str(folder / "releases")
            ),
            "releases": ReleaseResource(
                releases=str(folder / "releases"), private=str(folder / "private")
            ),
            "gpu": GpuResource(device="cpu", lock_folder=str(folder / "locks")),
        },
        executor=dg.in_process_executor,
    )


def run_functions_here(patch: pytest.MonkeyPatch) -> None:
    """Run function generators in this process from now on, not in separate ones."""

    def watch(generator: CallableGenerator, arguments: list[str], *_: Any) -> None:
        path = list(sys.path)
        try:
            worker.main(*arguments[arguments.index(worker.__file__) + 1 :])
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
        frame: pd.DataFrame, wanted: Sequence[tuple[str, dict[str, Any]]]
    ) -> list[expectations.Expected]:
        key = (
            pd.util.hash_pandas_object(frame).to_numpy().tobytes(),
            repr(frame.dtypes.to_dict()),
            repr(wanted),
        )
        if key not in _LOOKED_AT:
            _LOOKED_AT[key] = _look(frame, wanted)
        return list(_LOOKED_AT[key])

    patch.setattr(expectations, "_run", run)


def look_anew(patch: pytest.MonkeyPatch) -> None:
    """Validate every table again."""
    patch.setattr(expectations, "_run", _look)


def slow(case: Any) -> Any:
    """Mark a case for the slow run; a tuple holds several arguments."""
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)


def sqlite_instance(folder: Path) -> dg.DagsterInstance:
    """An instance on SQLite below ``folder``, without telemetry."""
    home = folder / "home"
    home.mkdir()
    events = {  # in one file: creating one for each run takes as long as a refused run
        "module": "dagster._core.storage.event_log",
        "class": "ConsolidatedSqliteEventLogStorage",
        "config": {"base_dir": str(home / "history")},
    }
    overrides = {"telemetry": {"enabled": False}, "event_log_storage": events}
    return dg.DagsterInstance.local_temp(str(home), overrides=overrides)


def people_table(place: Path, **changes: Any) -> dg.Definitions:
    """The table ``people`` below ``place``; its rows are written if they do not exist."""
    source = place / "people.parquet"
    if not source.exists():
        people().to_parquet(source)
    given = {"source": source, "subject": "pid", "generator": independent, **QUICK, **changes}
    return dg.Definitions.merge(table_of("people", **given), resources(place))


def run(
    defs: dg.Definitions,
    instance: dg.DagsterInstance,
    *only: str,
    partition: str | None = None,
    table: str = "people",
) -> dg.ExecuteInProcessResult:
    """Run the job of a table, or some of its assets, without raising."""
    return defs.resolve_job_def(f"{table}_pipeline").execute_in_process(
        instance=instance, raise_on_error=False, partition_key=partition,
        asset_selection=whole_steps([dg.AssetKey([table, asset]) for asset in only]) or None,
    )  # fmt: skip


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
    """The step that makes an asset; scores without a device share one."""
    return f"{table}__{_VERBS.get(asset, 'score')}"


def refusal(result: dg.ExecuteInProcessResult, asset: str) -> str:
    """The reason that the gate gave when it refused a step."""
    return str(failures(result)[step_of("people", asset)].user_failure_data.description)


def reported(place: Path, table: str = "people") -> dict[str, Any]:
    """The report of a table."""
    (file,) = (place / "storage" / table / "privacy_report").rglob("*.json")
    return json.loads(file.read_text())


def attested(place: Path) -> dict[str, Any]:
    """The predicate of the attestation of ``people``, unverified."""
    envelope = json.loads((place / "storage/people/attestation/attestation.json").read_bytes())
    return json.loads(base64.b64decode(envelope["payload"]))["predicate"]


def whole_steps(keys: Sequence[dg.AssetKey]) -> list[dg.AssetKey]:
    """``keys``, and the page of each attestation, because one step creates both."""
    pages = [
        dg.AssetKey([*key.path[:-1], "privacy_report"])
        for key in keys
        if key.path[-1] == "attestation"
    ]
    return list(dict.fromkeys([*keys, *pages]))


def checks(result: dg.ExecuteInProcessResult) -> dict[tuple[str, str], dg.AssetCheckEvaluation]:
    """Check evaluations of a run by asset and check name."""
    return {(e.asset_key.path[-1], e.check_name): e for e in result.get_asset_check_evaluations()}


def made(result: dg.ExecuteInProcessResult) -> dict[str, dict[str, Any]]:
    """Metadata of the materializations of a run, by asset name."""
    events = result.get_asset_materialization_events()
    return {
        e.asset_key.path[-1]: {k: v.value for k, v in e.materialization.metadata.items()}
        for e in events
    }


def failures(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    """Failure data of the failed steps of a run, by step."""
    return {e.step_key: e.step_failure_data for e in result.all_events if e.is_step_failure}


def failed_run(
    result: dg.ExecuteInProcessResult,
    instance: dg.DagsterInstance,
    defs: dg.Definitions | None = None,
) -> dg.RunFailureSensorContext:
    """The context of a failed run of ``defs``, as the sensor gets it."""
    return dg.build_run_status_sensor_context(
        sensor_name="privacy_run_failures",
        dagster_event=result.get_run_failure_event(),
        dagster_instance=instance,
        dagster_run=result.dagster_run,
        partition_key=result.dagster_run.tags.get("dagster/partition"),
        resources={
            "releases": ReleaseResource(home="nowhere")
            if defs is None
            else defs.resources["releases"]
        },
        repository_def=None if defs is None else defs.get_repository_def(),
    ).for_run_failure()


def table_of(name: str, **given: Any) -> dg.Definitions:
    """``build_privacy_assets`` from settings without a group; assets named in data fields become
    asset keys.
    """
    spec, own = spec_and(name, given)
    return build_privacy_assets(spec, **own)


def spec_and(name: str, given: dict[str, Any]) -> tuple[TableSpec, dict[str, Any]]:
    """The spec of these settings, and the remaining settings, which are Dagster's."""
    given, said = dict(given), dict[str, Any]()
    generator = given.pop("generator", None)
    said["generator"] = (
        dict(generator) if isinstance(generator, Mapping) else {"name": generator or "synthpop"}
    )
    assets = {role: given.pop(role) for role in ROLES if isinstance(given.get(role), ASSETS)}
    for group in GROUPS:
        own = {setting: given.pop(setting) for setting in group.model_fields if setting in given}
        said[group.part] = {**said.get(group.part, {}), **own}
    said["split"] = given.pop("split", {})
    policy = given.pop("policy", None)
    return TableSpec(name=name, policy=policy, **said), {
        **given,
        **({"assets": assets} if assets else {}),
    }
