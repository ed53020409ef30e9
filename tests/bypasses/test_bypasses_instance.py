"""Bypasses over the GraphQL API of Dagster: deleting, wiping, reporting and executing again.

The gate keeps its memory in the private folder, so none of this removes a failed verdict or an
attempt. The server runs in the process of the test; tests/deployment has one with a daemon.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.remote_origin import InProcessCodeLocationOrigin
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import InProcessWorkspaceLoadTarget
from dagster._daemon.backfill import execute_backfill_iteration
from dagster_graphql.test.utils import execute_dagster_graphql
from standins import people, slow

from privacy_assets.dagster.resources import ReleaseResource
from privacy_assets.gate.releases import ReleaseStore

KEY = "dagster/partition"
REPOSITORY = {"repositoryLocationName": "tables", "repositoryName": "__repository__"}
ASSETS = (
    *("source", "train", "holdout", "reference", "generator", "synthetic"),
    *("evaluation_inputs", "dcr", "attestation", "privacy_report", "published"),
)
CHECKS = {  # of the gate's own steps; the other checks are slow
    "dcr": ("dcr_identical_excess_proven", "dcr_member_excess_proven"),
    "attestation": ("policy_holds",),
    "published": ("released",),
}
RUN = """... on LaunchRunSuccess { run { runId } } ... on PythonError { message }
    ... on RunConfigValidationInvalid { errors { message } }"""
LOCAL = {
    "telemetry": {"enabled": False},
    "run_coordinator": {
        "module": "dagster._core.run_coordinator",
        "class": "DefaultRunCoordinator",
    },
    "run_launcher": {
        "module": "dagster._core.launcher.sync_in_memory_run_launcher",
        "class": "SyncInMemoryRunLauncher",
    },
}


@dataclass
class Api:
    """GraphQL over an instance on SQLite; a run has ended when its launch returns."""

    root: Path
    server: WorkspaceProcessContext

    @property
    def instance(self) -> dg.DagsterInstance:
        return self.server.instance

    def ask(self, query: str, **variables: Any) -> Any:
        """Return the one field that ``query`` asks for."""
        answer = execute_dagster_graphql(self.server.create_request_context(), query, variables)
        assert not answer.errors, answer.errors
        (found,) = answer.data.values()
        return found

    def launch(self, *assets: str, again: str | None = None, steps: list[str] | None = None) -> str:
        """Materialize assets of ``leaky``, as a part of the run ``again``; return the id of the
        run.
        """
        chosen = assets or ASSETS
        params: dict[str, Any] = {
            "selector": {
                **REPOSITORY,
                "pipelineName": "__ASSET_JOB",
                "assetSelection": [{"path": ["leaky", asset]} for asset in chosen],
                "assetCheckSelection": [
                    {"assetKey": {"path": ["leaky", asset]}, "name": check}
                    for asset in chosen
                    for check in CHECKS.get(asset, ())
                ],
            },
            "mode": "default",
            "runConfigData": {},
            "executionMetadata": {"rootRunId": again, "parentRunId": again} if again else {},
            **({"stepKeys": steps} if steps else {}),
        }
        name = "launchPipelineReexecution" if again else "launchPipelineExecution"
        found = self.ask(
            f"mutation($p: ExecutionParams!) {{ {name}(executionParams: $p) {{ {RUN} }} }}",
            p=params,
        )
        return found["run"]["runId"]

    def execute_again(self, run: str, strategy: str, tags: dict[str, str] | None = None) -> str:
        params = {
            "parentRunId": run,
            "strategy": strategy,
            "extraTags": [{"key": key, "value": value} for key, value in (tags or {}).items()],
        }
        query = (
            "mutation($p: ReexecutionParams!) { launchPipelineReexecution(reexecutionParams:"
            f" $p) {{ {RUN} }} }}"
        )
        return self.ask(query, p=params)["run"]["runId"]

    def backfill(self, key: str) -> str:
        """Launch a backfill of a partition of ``leaky_shops``; return its id."""
        assets = [{"path": ["leaky_shops", asset]} for asset in ASSETS]
        query = """mutation($p: LaunchBackfillParams!) { launchPartitionBackfill(backfillParams: $p) {
            ... on LaunchBackfillSuccess { backfillId } } }"""  # noqa: E501
        return self.ask(query, p={"assetSelection": assets, "partitionNames": [key]})["backfillId"]

    def driven(self, backfill: str) -> str:
        """Have the daemon work on a backfill; return the id of its run."""
        for _ in range(3):
            list(execute_backfill_iteration(self.server, logging.getLogger("backfill")))
        (run,) = self.instance.get_runs(dg.RunsFilter(tags={"dagster/backfill": backfill}))
        return run.run_id

    def shop(self, key: str) -> None:
        """Add a dynamic partition."""
        query = """mutation($r: RepositorySelector!, $k: String!) { addDynamicPartition(
            repositorySelector: $r, partitionsDefName: "shops", partitionKey: $k) { __typename } }"""  # noqa: E501
        assert self.ask(query, r=REPOSITORY, k=key)["__typename"] == "AddDynamicPartitionSuccess"

    def why(self, run: str) -> str:
        """Return the reason of a failed run."""
        (failed,) = self.instance.all_logs(run, of_type=dg.DagsterEventType.STEP_FAILURE)
        return failed.dagster_event.step_failure_data.user_failure_data.description

    def attempts(self, table: str) -> int:
        """Return the number of attempts that the gate remembers."""
        gate = ReleaseResource(home=str(self.root)).gate()
        return len(gate.log.state(table).attempts)


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    root = tmp_path_factory.mktemp("instance")
    people(100).to_parquet(root / "people.parquet")
    (root / "home").mkdir()
    file = str(Path(__file__).parents[1] / "helpers/instance_tables.py")
    target = LoadableTargetOrigin(executable_path=sys.executable, python_file=file)
    origin = InProcessCodeLocationOrigin(loadable_target_origin=target, location_name="tables")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INSTANCE_ROOT", str(root))
        with (
            dg.DagsterInstance.local_temp(str(root / "home"), overrides=LOCAL) as instance,
            WorkspaceProcessContext(instance, InProcessWorkspaceLoadTarget([origin])) as server,
        ):
            yield Api(root, server)


@pytest.fixture(scope="module")
def failed(api: Api) -> str:
    """A run of the leaky table, blocked."""
    run = api.launch()
    assert "policy does not hold" in api.why(run)
    return run


def deleted(api: Api, failed: str) -> list[str]:
    """A run that came to a verdict deleted, with its events."""
    run = api.launch("attestation", "privacy_report")
    assert "runId" in api.ask(
        """mutation($r: String!) { deletePipelineRun(runId: $r) { ... on DeletePipelineRunSuccess { runId } } }""",  # noqa: E501
        r=run,
    )
    return [api.launch("published")]


def wiped(api: Api, failed: str) -> list[str]:
    """All events of the assets wiped."""
    query = (
        "mutation($r: [PartitionsByAssetSelector!]!) { wipeAssets(assetPartitionRanges: $r) {"
        " __typename } }"
    )
    ranges = [{"assetKey": {"path": ["leaky", asset]}} for asset in ASSETS]
    assert api.ask(query, r=ranges)["__typename"] == "AssetWipeSuccess"
    return [api.launch("published"), api.launch()]


def reported(api: Api, failed: str) -> list[str]:
    """A materialization and an observation reported without a run."""
    query = """mutation($p: ReportRunlessAssetEventsParams!) { reportRunlessAssetEvents(eventParams: $p) {
        __typename } }"""  # noqa: E501
    for asset, kind in (
        ("attestation", "ASSET_MATERIALIZATION"),
        ("published", "ASSET_OBSERVATION"),
    ):
        event = {"assetKey": {"path": ["leaky", asset]}, "eventType": kind}
        assert api.ask(query, p=event)["__typename"] == "ReportRunlessAssetEventsSuccess"
    return [api.launch("published")]


def executed_again(api: Api, failed: str) -> list[str]:
    """The failed run executed again, wholly, from its failure, and from its failure again."""
    first = api.execute_again(failed, "FROM_FAILURE")
    return [first, api.execute_again(first, "FROM_FAILURE"), api.execute_again(failed, "ALL_STEPS")]


def as_part_of_another_run(api: Api, failed: str) -> list[str]:
    """The step that publishes, as a part of a run that made other assets."""
    other = api.launch("source")
    return [api.launch(again=other, steps=["leaky__publish"])]


Act = Callable[[Api, str], list[str]]


@pytest.mark.parametrize(
    "act", [*map(slow, [wiped, deleted, reported, executed_again, as_part_of_another_run])]
)
def test_bypass_53_what_the_instance_forgets(api: Api, failed: str, act: Act) -> None:
    for run in act(api, failed):
        assert "policy does not hold" in api.why(run)
    assert api.attempts("leaky") == 1  # the same rows
    assert list(ReleaseStore(api.root / "releases").targets("leaky")) == []


@pytest.mark.slow
def test_bypass_53_a_dynamic_partition_that_is_deleted_and_added(api: Api) -> None:
    """Its backfill is cancelled and resumed, its key deleted and added again, and the run
    redirected to another key.
    """
    api.shop("north")
    backfill = api.backfill("north")
    for act in ("cancelPartitionBackfill", "resumePartitionBackfill"):
        api.ask(f"mutation($b: String!) {{ {act}(backfillId: $b) {{ __typename }} }}", b=backfill)
    first = api.driven(backfill)
    api.instance.delete_dynamic_partition("shops", "north")
    api.shop("north")
    for run in (first, api.driven(api.backfill("north"))):
        assert "policy does not hold" in api.why(run)
    assert "no such partition" in api.why(api.execute_again(first, "ALL_STEPS", {KEY: "east"}))
    assert api.attempts("leaky_shops") == 1
    assert list(ReleaseStore(api.root / "releases").targets("leaky_shops")) == []
