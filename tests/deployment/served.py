"""User actions on a running deployment by HTTP and command line, and their outcomes."""

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import dagster as dg
from dagster._core.execution.plan.objects import StepFailureData

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
REPOSITORY = "__repository__"
GATED = (
    *("source", "train", "holdout", "reference", "generator", "synthetic"),
    *("evaluation_inputs", "dcr", "attestation", "privacy_report", "published"),
)
RUN = """... on LaunchRunSuccess { run { runId } } ... on PythonError { message }
    ... on RunConfigValidationInvalid { errors { message } }"""
T = TypeVar("T")


def until(what: str, look: Callable[[], T | None], seconds: float = 180) -> T:
    """Poll ``look`` until its result is neither None nor False. Raises AssertionError after
    ``seconds``.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = look()
        if found is not None and found is not False:
            return found
        time.sleep(0.3)
    raise AssertionError(f"after {seconds:g} s there is still no {what}")


def selector(location: str) -> dict[str, str]:
    """GraphQL selector of a code location."""
    return {"repositoryLocationName": location, "repositoryName": REPOSITORY}


@dataclass
class Served:
    """The running deployment. ``root`` holds the private rows, the published files and the
    instance.
    """

    root: Path
    url: str
    environment: dict[str, str]
    instance: dg.DagsterInstance
    logs: dict[str, Path] = field(default_factory=dict)

    def graphql(self, query: str, **variables: Any) -> dict[str, Any]:
        """Return the one field that ``query`` requests. Raises AssertionError if the server returns
        an error.
        """
        answer = self.post("/graphql", {"query": query, "variables": variables})
        assert not answer.get("errors"), answer
        (found,) = answer["data"].values()
        return found

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Post JSON to the webserver."""
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def launch(self, location: str, *assets: str, **typed: Any) -> str:
        """Materialize ``assets`` like the UI, with a run configuration from the launchpad; return
        the run's id.
        """
        return self._run_id(self._launched(location, assets, **typed))

    def not_launched(self, location: str, *assets: str, **typed: Any) -> str:
        """Return Dagster's validation errors of a run configuration; no run is started."""
        answer = self._launched(location, assets, **typed)
        assert "errors" in answer, answer
        return "\n".join(error["message"] for error in answer["errors"])

    def _launched(
        self, location: str, assets: Sequence[str], *, partition: str | None = None,
        checks: Sequence[str] | None = None, tags: Mapping[str, str] | None = None,
        config: Mapping[str, Any] | None = None, job: str = "__ASSET_JOB",
    ) -> dict[str, Any]:  # fmt: skip
        """``checks`` are named "table/asset:check"; default: all."""
        chosen: dict[str, Any] = {
            "assetSelection": [{"path": asset.split("/")} for asset in assets]
        }
        if checks is not None:
            chosen["assetCheckSelection"] = [
                {"assetKey": {"path": asset.split("/")}, "name": name}
                for asset, name in (check.split(":") for check in checks)
            ]
        own = {"dagster/partition": partition} if partition else {}
        params = {
            "selector": {**selector(location), "pipelineName": job, **chosen},
            "mode": "default",
            "runConfigData": config or {},
            "executionMetadata": {
                "tags": [
                    {"key": key, "value": value} for key, value in {**own, **(tags or {})}.items()
                ]
            },
        }
        query = (
            "mutation($p: ExecutionParams!) { launchPipelineExecution(executionParams: $p) {"
            f" {RUN} }} }}"
        )
        return self.graphql(query, p=params)

    def execute_step_again(self, run_id: str, step: str) -> str:
        """Re-execute one step of a run, as the UI does."""
        run = self.instance.get_run_by_id(run_id)
        location = run.remote_job_origin.location_name
        keys = sorted(run.asset_selection, key=str)
        params = {
            "selector": {
                **selector(location),
                "pipelineName": run.job_name,
                "assetSelection": [{"path": list(key.path)} for key in keys],
            },
            "mode": "default",
            "runConfigData": run.run_config,
            "stepKeys": [step],
            "executionMetadata": {
                "rootRunId": run_id,
                "parentRunId": run_id,
                "tags": [
                    {"key": key, "value": run.tags[key]}
                    for key in run.tags
                    if key == "dagster/partition"
                ],
            },
        }
        query = (
            "mutation($p: ExecutionParams!) { launchPipelineReexecution(executionParams: $p) {"
            f" {RUN} }} }}"
        )
        return self._run_id(self.graphql(query, p=params))

    def backfill(self, *assets: str, partitions: Sequence[str]) -> str:
        """Launch a backfill; return its id."""
        params = {
            "assetSelection": [{"path": asset.split("/")} for asset in assets],
            "partitionNames": list(partitions),
        }
        query = """mutation($p: LaunchBackfillParams!) { launchPartitionBackfill(backfillParams: $p) {
            ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } } }"""  # noqa: E501
        answer = self.graphql(query, p=params)
        assert "backfillId" in answer, answer
        return answer["backfillId"]

    def start_sensor(self, location: str, name: str) -> None:
        """Turn a sensor on."""
        query = """mutation($s: SensorSelector!) { startSensor(sensorSelector: $s) {
            ... on Sensor { name } ... on PythonError { message } } }"""
        answer = self.graphql(query, s={**selector(location), "sensorName": name})
        assert answer.get("name") == name, answer

    def start_schedule(self, location: str, name: str) -> str:
        """Turn a schedule on; return its id."""
        query = """mutation($s: ScheduleSelector!) { startSchedule(scheduleSelector: $s) {
            ... on ScheduleStateResult { scheduleState { id } } ... on PythonError { message } } }"""  # noqa: E501
        answer = self.graphql(query, s={**selector(location), "scheduleName": name})
        assert "scheduleState" in answer, answer
        return answer["scheduleState"]["id"]

    def stop_schedule(self, schedule: str) -> None:
        """Turn a schedule off."""
        query = """mutation($id: String!) { stopRunningSchedule(id: $id) {
            ... on ScheduleStateResult { scheduleState { status } } ... on PythonError { message } } }"""  # noqa: E501
        answer = self.graphql(query, id=schedule)
        assert answer.get("scheduleState") == {"status": "STOPPED"}, answer

    def report_check(self, asset: str, name: str, *, passed: bool, severity: str = "ERROR") -> None:
        """Report a check result through the REST endpoint."""
        body = {"check_name": name, "passed": passed, "severity": severity, "metadata": {}}
        assert self.post(f"/report_asset_check/{asset}", body) == {}

    def report_check_by_graphql(self, asset: str, name: str) -> None:
        """Report a passed check through the GraphQL mutation."""
        params = {"assetKey": {"path": asset.split("/")}, "checkName": name, "passed": True}
        query = """mutation($p: ReportAssetCheckEvaluationsParams!) { reportAssetCheckEvaluations(eventParams: $p) {
            ... on ReportAssetCheckEvaluationsSuccess { checkName } ... on PythonError { message } } }"""  # noqa: E501
        answer = self.graphql(query, p=params)
        assert answer.get("checkName") == name, answer

    def report_materialization(self, asset: str) -> None:
        """Report a materialization through the REST endpoint."""
        assert self.post(f"/report_asset_materialization/{asset}", {}) == {}

    def command(self, location: str, asset: str, *, partition: str | None = None) -> str:
        """Run ``dagster asset materialize`` for one asset; return the id of its run."""
        known = set(self.instance.get_run_ids())
        chosen = ["--select", f"key:{asset}", *(["--partition", partition] if partition else [])]
        file = ["-f", str(HERE / f"workspace_{location}.py"), "-d", str(HERE)]
        done = subprocess.run(
            [BIN / "dagster", "asset", "materialize", *chosen, *file],
            env=self.environment,
            cwd=self.root,
            capture_output=True,
            text=True,
            timeout=120,
        )
        new = [run for run in self._runs_of(asset) if run not in known]
        assert len(new) == 1, done.stdout + done.stderr
        return new[0]

    def _runs_of(self, asset: str) -> list[str]:
        key = dg.AssetKey(asset.split("/"))
        return [
            run.run_id for run in self.instance.get_runs() if key in (run.asset_selection or ())
        ]

    def _run_id(self, answer: dict[str, Any]) -> str:
        assert "run" in answer, answer
        return answer["run"]["runId"]

    def finished(self, run_id: str) -> bool:
        """Wait for the end of a run; return whether it succeeded."""

        def end() -> dg.DagsterRun | None:
            run = self.instance.get_run_by_id(run_id)
            return run if run is not None and run.is_finished else None

        return until(f"end of run {run_id}", end).is_success

    def launched_by(self, location: str, tag: str, value: str, partition: str | None = None) -> str:
        """Wait for the first run in ``location`` with a tag (of a sensor, schedule or backfill);
        return its id.
        """
        tags = {tag: value, **({"dagster/partition": partition} if partition else {})}

        def first() -> str | None:
            runs = self.instance.get_runs(dg.RunsFilter(tags=tags))
            found = [run.run_id for run in runs if run.remote_job_origin.location_name == location]
            return found[-1] if found else None

        return until(f"run in {location} with {tag} = {value}", first)

    def automated(self, location: str, asset: str, since: float = 0) -> str:
        """Wait for a run of ``asset`` that a location's automation sensor launched after ``since``;
        return its id.
        """
        key = dg.AssetKey(asset.split("/"))
        filters = dg.RunsFilter(tags={"dagster/sensor_name": f"{location}_automation"})

        def first() -> str | None:
            found = [
                record.dagster_run.run_id
                for record in self.instance.get_run_records(filters)
                if key in (record.dagster_run.asset_selection or ())
                and record.create_timestamp.timestamp() > since
            ]
            return found[-1] if found else None

        return until(f"automated run of {asset}", first)

    def after_a_tick(self, location: str) -> float:
        """Wait for a complete tick of the automation sensor; return the time.

        The tick after a launch treats changes before that tick as handled by the launch.
        """
        since = time.time()
        states = self.instance.all_instigator_state()
        (state,) = [state for state in states if state.name == f"{location}_automation"]

        def ticked() -> bool:
            ticks = self.instance.get_ticks(
                state.instigator_origin_id, state.selector_id, after=since
            )
            return any(tick.timestamp > since and tick.is_completed for tick in ticks)

        until(f"tick of {state.name}", ticked)
        return time.time()

    def failures(self, run_id: str) -> dict[str, StepFailureData]:
        """Failure data of each failed step of a finished run, by step."""
        self.finished(run_id)
        logs = self.instance.all_logs(run_id, of_type=dg.DagsterEventType.STEP_FAILURE)
        return {
            entry.dagster_event.step_key: entry.dagster_event.step_failure_data for entry in logs
        }

    def told(self, run_id: str) -> str:
        """All text in the events of a finished run."""
        self.finished(run_id)
        return "\n".join(entry.to_json() for entry in self.instance.all_logs(run_id))

    def checks(self, run_id: str) -> dict[str, bool]:
        """Whether each check of a run passed, by name."""
        logs = self.instance.all_logs(run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION)
        found = [entry.dagster_event.asset_check_evaluation_data for entry in logs]
        return {evaluation.check_name: evaluation.passed for evaluation in found}

    def log_tails(self) -> Iterator[tuple[str, str]]:
        """The last lines of every process."""
        for name, file in self.logs.items():
            yield name, "\n".join(file.read_text(errors="replace").splitlines()[-30:])
