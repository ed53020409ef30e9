"""Operators: single steps of a table, all of them as one task, and publication.

Only the partition is a template. Publication does not rely on Airflow's state: it verifies the
signed verdict, the policy and the bytes itself, independently of the states of other tasks, XComs
and events.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.sdk import BaseOperator, BaseOperatorLink

from privacy_assets.airflow.arguments import (
    NOT_GIVEN,
    GatePartial,
    check_pairs,
    check_rendered,
    given_arguments,
    is_reference,
    known_tasks,
    one_at_a_time,
)
from privacy_assets.airflow.deployment import WEB, AirflowDeployment, AirflowTable, table_name
from privacy_assets.airflow.outlets import NAMED_LATER, release_asset, task_outlets
from privacy_assets.errors import (
    ConfigError,
    InputError,
    MissingPackage,
    PublicationBlocked,
    did_you_mean,
)
from privacy_assets.gate.attestation import blocking_error
from privacy_assets.gate.envelope import ReleaseTarget
from privacy_assets.gate.releases import Release
from privacy_assets.infra.objects import check_no_template
from privacy_assets.pipeline.advice import with_advice
from privacy_assets.pipeline.current_release import situation
from privacy_assets.pipeline.redaction import (
    redact,
    redact_thread_errors,
    suppress_output,
    without_values,
)
from privacy_assets.pipeline.results import (
    AttestResult,
    PrepareResult,
    PublishResult,
    SampleResult,
    StepResult,
)
from privacy_assets.pipeline.spec import TableSpec
from privacy_assets.pipeline.steps import ATTEST, PUBLISH, Task, run_table, tasks, timed, upstream
from privacy_assets.pipeline.stored_run import StoredRun
from privacy_assets.pipeline.work import TableRun
from privacy_assets.policy import Policy
from privacy_assets.report.advice import first_remedy
from privacy_assets.report.text import verdict_lines

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.definitions.taskgroup import MappedTaskGroup


try:
    from airflow.sdk.exceptions import (
        AirflowException,
        AirflowFailException,
        AirflowTaskTerminated,
        AirflowTaskTimeout,
    )
except ImportError:  # Airflow 3.0 and 3.1
    from airflow.exceptions import (
        AirflowException,
        AirflowFailException,
        AirflowTaskTerminated,
        AirflowTaskTimeout,
    )


F = TypeVar("F", bound=Callable[..., Any])
# A retry fails again and counts as another publication attempt, unless a disk or network was not
# available.
_BLOCKING_ERRORS = (PublicationBlocked, ConfigError, InputError, MissingPackage)
_INTERRUPTS = (AirflowTaskTimeout, AirflowTaskTerminated, KeyboardInterrupt, GeneratorExit)


def redact_exceptions(function: F) -> F:
    """Ensure that no exception raised by a function can contain private values.

    - Errors of the gate, invalid settings, missing packages and unusable tables become
      AirflowFailException, which is not retried. If a disk or network was not available, they
      become AirflowException, which is retried.
    - Other errors of this package lose their cause, context and notes; interrupts lose their
      message.
    - All other exceptions become StepError.

    Tracebacks are removed, because Airflow 3.0 and error reporters show the local variables of
    frames, which include tables.

    Args:
        function: The ``execute`` of an operator, or a method that it calls.
    """
    return redact(function, _safe_exception, redact_thread_errors)


def _safe_exception(error: BaseException) -> BaseException:
    if isinstance(error, _BLOCKING_ERRORS):
        message = with_advice(error)
        if error.retry:
            return AirflowException(message)
        return AirflowFailException(message)
    return without_values(error, (), _INTERRUPTS).with_traceback(None)


def _explained(error: PublicationBlocked, run: TableRun) -> PublicationBlocked:
    """Add table, partition and current release to an error of the gate, because callbacks see only
    its message.
    """
    if not error.event.startswith(run.target.table):
        error.event = f"{run.target}: {error.event}"
    if error.outcome_known:
        message = with_advice(error)
        sentences = situation(run.deployment, run.target)
        error.release_note = " ".join(text for text in sentences if text not in message)
    return error


Table = AirflowTable | TableSpec | str | Path
_RETURN_VALUE = "return_value"  # key of the XCom that a task returns
REPORT = "privacy_report"  # key of the XCom with the address of the report
PUBLISHES = (
    "Publishes the table after verifying the signed verdict, policy, log of failures and bytes."
    " It does not rely on state, XCom values or events of Airflow. Until it succeeds, the previous"
    " release stays current."
)
_ALL_STEPS = (
    "Splits a private table by person, generates a synthetic table, attacks it, and evaluates"
    " the policy on the results. It fails if a limit does not hold. The log ends with the limits"
    " and advice."
)


def warn_of_overlaps(dag: Any, table: str) -> None:
    """Warn if runs of a DAG may overlap, because the gate lets only one run of a table proceed.

    Args:
        dag: The DAG, or None.
        table: Name of the table.
    """
    if dag is None or dag.max_active_runs == 1:
        return
    text = (
        f"DAG {dag.dag_id}: up to {dag.max_active_runs} runs are active at a time, and of"
        f" overlapping runs of the table {table} all but one fail."
        " Fix: DAG(..., max_active_runs=1)."
    )
    warnings.warn(text, stacklevel=3)


class PrivacyReportLink(BaseOperatorLink):
    """Link to the report of the verdict."""

    name = "Privacy report"

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:
        """Return the URL of the report, or "" if there is none. Airflow calls this on the worker
        when the task ends.

        A path is not returned, because browsers do not open files from a web page.

        Args:
            operator: The task.
            ti_key: Not used. Airflow passes it.
        """
        page = str(getattr(operator, "page", ""))
        return page if page.startswith(WEB) else ""


@dataclass(frozen=True)
class _TaskResult:
    """Result of a task.

    Attributes:
        xcom: Return value of the task.
        last_lines: Final lines of the log.
        blocked_by: Reason of the failure, or None.
    """

    xcom: dict[str, Any]
    last_lines: Sequence[str] = ()
    blocked_by: PublicationBlocked | None = None


class _GateOperator(BaseOperator):
    """Base class of the operators.

    Args:
        table: See :class:`PrivacyGateOperator`, also for the other arguments.
    """

    template_fields: Sequence[str] = ("partition",)
    ui_color = "#e4f0e8"
    outlets: list[Any]
    page = ""  # address of the report

    def __init__(  # noqa: PLR0913
        self,
        *,
        table: Table,
        source: str | Path | None = None,
        subject: str | Mapping[str, Any] | None = None,
        generator: str | Mapping[str, Any] | Callable[..., Any] | None = None,
        policy: Policy | Mapping[str, Any] | str | Path | None = None,
        data: Mapping[str, Any] | None = None,
        split: Mapping[str, float] | None = None,
        evaluation: Mapping[str, Any] | None = None,
        run: Mapping[str, Any] | None = None,
        deployment: AirflowDeployment | str | Path | None = None,
        partitions: Any = None,
        partition: str | None = NOT_GIVEN,
        **kwargs: Any,
    ) -> None:
        # a short name, because each line of a log ends with it
        super().__init__(**{"logger_name": "privacy_assets", **kwargs})
        table_settings = {
            "source": source,
            "subject": subject,
            "generator": generator,
            "policy": policy,
            "data": data,
            "split": split,
            "evaluation": evaluation,
            "run": run,
        }
        _check_known({"table": table, "partitions": partitions, **table_settings})
        self.gated = AirflowTable.of(table, deployment, partitions, **table_settings)
        passed = given_arguments(self, partition=partition)
        self._passed_names = tuple(passed)
        self.partition = passed.get("partition")
        if not passed:
            self.template_fields = ()  # otherwise Airflow stores and shows a rendered None
        elif self.gated.partitions is None:
            raise ConfigError(
                f"table {self.gated}: partition was given, and the table has no partitions."
                " Fix: set partitions, too."
            )
        self._lineage = dict[str, str]()  # of the published release

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Return inlets and outlets for OpenLineage, with id and verdict of the release, or None
        without a release.

        Args:
            task_instance: Not used. The OpenLineage provider passes it.
        """
        from privacy_assets.airflow.lineage import operator_lineage

        asset = release_asset(str(self.gated))
        if asset not in self.outlets and NAMED_LATER not in self.outlets:
            return None
        return operator_lineage(self.inlets, self.outlets, asset, self._lineage)

    @redact_exceptions
    def execute(self, context: Context) -> Any:
        """Run the task.

        Returns:
            The XCom; see the class.

        Raises:
            AirflowFailException: If publication is blocked, or settings or tables are invalid.
            StepError: On unexpected errors, whose messages could contain private values.
        """
        # Bind before `suppress_output`: a logger first bound within it writes to a stream that it
        # closes.
        self._log = self.log.bind() if hasattr(self.log, "bind") else self.log
        with suppress_output(), self.gated.deployment.credentials(), self._workers():
            check_rendered(self, self._passed_names)
            stored = self.gated.stored(context, self.log.info, self.partition)
            try:
                result = self._work(stored, context)
            except PublicationBlocked as error:
                raise _explained(error, stored.run) from None
            if result.blocked_by is not None:
                _explained(result.blocked_by, stored.run)
        if self.page:
            context["ti"].xcom_push(key=REPORT, value=self.page)
        for line in result.last_lines:
            self.log.info(line)
        if result.blocked_by is not None:
            if result.xcom:  # lets a publication task that runs nevertheless reject the verdict
                context["ti"].xcom_push(key=_RETURN_VALUE, value=result.xcom)
            raise result.blocked_by
        return result.xcom

    def _work(self, stored: StoredRun, context: Context) -> _TaskResult:
        raise NotImplementedError

    def _device(self, uses_device: bool) -> AbstractContextManager[str]:
        if not uses_device:
            return nullcontext("cpu")
        from privacy_assets.infra.devices import lease_device

        return lease_device(device=self.gated.deployment.device, on_wait=self.log.info)

    def _workers(self) -> AbstractContextManager[Any]:
        if self.gated.resolved.spec.run.workers != "ray":
            return nullcontext()
        from privacy_assets.infra.parallel import on_ray

        return on_ray("auto")

    @contextmanager
    def _step(self, name: str) -> Iterator[None]:
        """Log the start and the end of a step."""

        def log_end(seconds: float | None) -> None:
            if seconds is None:
                self.log.info(f"step {name}: failed")
            else:
                self.log.info(f"step {name}: {seconds:.1f} s")

        self.log.info(f"step {name}")
        with timed(log_end):
            yield

    def _task_result(
        self, result: StepResult, reference: dict[str, Any], stored: StoredRun, context: Context
    ) -> _TaskResult:
        """Return the result of a task that ran one step."""
        match result:
            case PrepareResult():
                return _TaskResult(reference, self._contract_lines(result, context))
            case AttestResult():
                return self._verdict_result(result, reference, stored)
            case PublishResult():
                return self._release_result(result.release, stored, context)
            case _:
                return _TaskResult(reference)

    def _contract_lines(self, prepared: PrepareResult, context: Context) -> tuple[str, ...]:
        """Return a line on the contract of the columns of a release, and push its counts as XCom
        "contract".

        Returns nothing if great_expectations is not installed.
        """
        if find_spec("great_expectations") is None:
            return ()
        from privacy_assets.pipeline.expectations import check_contract, summary

        counts = summary(check_contract(prepared.table.frame(), prepared.real))
        context["ti"].xcom_push(key="contract", value=counts)
        n_expectations = counts["expectations"]
        n_met = n_expectations - counts["broken"]
        return (f"contract of the columns: {n_met} of {n_expectations} expectations hold",)

    def _verdict_result(
        self, attested: AttestResult, xcom: dict[str, Any], stored: StoredRun
    ) -> _TaskResult:
        """Return the result of a task that computed a verdict."""
        self.page = self.gated.deployment.page(stored.reports, stored.base)
        lines = (*verdict_lines(attested.report.page()), f"report: {self.page}")
        if attested.attestation.verdict == "pass":
            return _TaskResult(xcom, lines)
        remedy = first_remedy(attested.report.advice)
        reason = blocking_error(
            attested.policy_verdict, attested.attestation.earlier_failures, remedy
        )
        return _TaskResult(xcom, lines, reason)

    def _release_result(
        self, release: Release, stored: StoredRun, context: Context, lines: Sequence[str] = ()
    ) -> _TaskResult:
        """Add the release to the event of its asset, and return the result of a task that published
        it.
        """
        run = stored.run
        release_ref = {
            "table": run.target.table,
            "partition": run.target.partition,
            "release": release.id,
        }
        extra = dict(release_ref)
        # a hash that cannot be read does not undo the publication
        with suppress(PublicationBlocked):
            attestation = release.opened(run.target, run.gate.key.trusted)
            extra["sha256"] = attestation.sha256
            self._lineage = {
                "release": release.id,
                "verdict": attestation.verdict,
                "sha256": attestation.sha256,
            }
        self._add_event(run.target, extra, context)
        last_line = f"release {release.id} of {run.target} is published"
        return _TaskResult(release_ref, (*lines, last_line))

    def _add_event(self, target: ReleaseTarget, extra: dict[str, Any], context: Context) -> None:
        """Add information on a release to the event of its asset, if the task has this outlet."""
        asset = release_asset(target.table)
        if asset in self.outlets:
            event = context["outlet_events"][asset]
            event.extra = extra
            # Airflow 3.2 or later
            if target.partition is not None and hasattr(event, "add_partitions"):
                event.add_partitions(target.partition)
        elif NAMED_LATER in self.outlets:
            context["outlet_events"][NAMED_LATER].add(asset, extra=extra)


def _check_known(arguments: Mapping[str, Any]) -> None:
    """Raise ConfigError for an argument that only a mapped operator can receive from a task or a
    task group.
    """
    for name, value in arguments.items():
        if is_reference(value):
            raise ConfigError(
                f"{name}: the result of a task is not known when the DAG is parsed."
                " Fix: map it with PrivacyGateOperator.partial(...).expand(...)."
            )


class PrivacyStepOperator(_GateOperator):
    """A single step of a table. ``privacy_gate`` creates and connects one task per step.

    Values are kept in the private storage of the deployment. The XCom is a reference to them, which
    is verified on reading.

    Args:
        step: Verb of the step, except "publish" (:data:`privacy_assets.pipeline.steps.STEPS`).
        task_ids: Task ids whose values the step reads, by verb of their step.
        metric: Metric of the step "score".
        **kwargs: Arguments of :class:`PrivacyGateOperator` except ``publish``.

    Raises:
        ConfigError: If step, metric or settings are unknown, or ``task_ids`` lacks a step.
    """

    def __init__(
        self,
        *,
        step: str,
        task_ids: Mapping[str, str | Sequence[str]] | None = None,
        metric: str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.step = step
        self.task_ids = dict(task_ids or {})
        self.metric = metric
        self.operator_extra_links = (PrivacyReportLink(),) if step == ATTEST else ()
        self._task = self._find_task()
        for earlier in upstream(self.gated.resolved, self._task):
            verb = earlier.step.verb
            if verb not in self.task_ids:
                raise ConfigError(
                    f"table {self.gated}, step {step}: task_ids lacks the step {verb}. Fix: add it."
                )

    def _find_task(self) -> Task:
        """Return the task of the step, or of the metric if the step has a task for each.

        Raises:
            ConfigError: If step or metric are unknown.
        """
        candidates = [task for task in tasks(self.gated.resolved) if task.step.verb != PUBLISH]
        of_step = {task.name: task for task in candidates if task.step.verb == self.step}
        if not of_step:
            hint = did_you_mean(self.step, {task.step.verb for task in candidates})
            raise ConfigError(f"table {self.gated}: there is no step {self.step!r}.{hint}")
        first_task = next(iter(of_step.values()))
        if not first_task.step.one_each:
            return first_task
        if self.metric not in of_step:
            hint = did_you_mean(self.metric, of_step)
            raise ConfigError(f"table {self.gated}: there is no metric {self.metric!r}.{hint}")
        return of_step[self.metric]

    def _work(self, stored: StoredRun, context: Context) -> _TaskResult:
        task = self._task
        references = {
            earlier.name: self._reference(earlier, context)
            for earlier in upstream(stored.run.table, task)
        }
        with self._device(task.uses_device) as device, self._step(task.name):
            reference, result = stored.run_task(task, references, device)
        return self._task_result(result, reference, stored, context)

    def _reference(self, task: Task, context: Context) -> Any:
        """Return the reference of an upstream task, which can be one of several mapped tasks."""
        task_ids = self.task_ids[task.step.verb]
        if isinstance(task_ids, str):
            task_ids = [task_ids]
        for task_id in task_ids:
            xcom = context["ti"].xcom_pull(task_ids=task_id, key=_RETURN_VALUE)
            if not task.step.one_each:
                return xcom
            references = xcom if isinstance(xcom, list) else [xcom]
            for reference in references:
                if isinstance(reference, Mapping) and reference.get("step") == task.name:
                    return reference
        return None


class PrivacyPublishOperator(_GateOperator):
    """Publish the table that the task ``attested_by`` attested in this run.

    This task does not rely on Airflow's state. It verifies the signed verdict, the policy in force,
    the log of failures and the bytes, so other trigger rules, manually set states, and forged
    XComs or events cannot publish a table that violates its policy. A custom task, such as an
    approval, may run between both tasks.

    Args:
        attested_by: Task id of the ``attest`` step of a group, or of a :class:`PrivacyGateOperator`
            with ``publish=False``.
        **kwargs: Arguments of :class:`PrivacyGateOperator` except ``publish``.
    """

    operator_extra_links = (PrivacyReportLink(),)

    @classmethod
    def partial(cls, **kwargs: Any) -> GatePartial:
        """Set the arguments that all mapped tasks share; see :class:`PrivacyGateOperator`."""
        return GatePartial.of(super().partial(**kwargs))

    def __init__(self, *, attested_by: str, **kwargs: Any) -> None:
        super().__init__(**{"doc_md": PUBLISHES, **kwargs})
        self.outlets = task_outlets(self.outlets, str(self.gated), publishes=True)
        check_no_template(attested_by)
        self.attested_by = attested_by

    def _work(self, stored: StoredRun, context: Context) -> _TaskResult:
        verdict = context["ti"].xcom_pull(task_ids=self.attested_by, key=_RETURN_VALUE)
        self.page = self.gated.deployment.page(stored.reports, stored.base)
        (publish,) = [task for task in tasks(stored.run.table) if task.step.verb == PUBLISH]
        with self._step(publish.name):
            reference, result = stored.run_task(publish, {ATTEST: verdict})
        return self._task_result(result, reference, stored, context)


class PrivacyGateOperator(_GateOperator):
    """Run all steps of a table in one task, as ``privacy-assets run`` does.

    The XCom contains ``table``, ``partition`` and ``release`` (the id of the new release), without
    rows or paths. Do not rely on it: read a release with :func:`privacy_assets.read_published`,
    which verifies it.

    If the table violates its policy, the task fails without retry (AirflowFailException). Invalid
    settings and unusable tables also fail without retry. Other errors are retried as configured and
    their messages contain no values. Output, log messages and warnings of Python code in this
    process are dropped while the steps run.

    Only ``partition`` is a template, and only keys that ``partitions`` defines are accepted. So
    settings that can be edited in the UI (params, Variables, Connections, run configuration) affect
    neither the evaluated table nor policy, keys and log of failures.

    Each table and partition has one such task in a run. Mapped gates need different values of
    ``table`` or ``partition``: where two are known to have the same, parsing fails, otherwise the
    second task of the run does.

    Args:
        table: A :class:`TableSpec`, the path of its YAML file, or the name of a table with the
            settings of the following eight arguments.
        source: "demo" or the path of the private table.
        subject: Column that identifies subjects.
        generator: Name, settings or function of the generator.
        policy: Policy, mapping, path or name of a built-in policy.
        data: Further sources and declarations of columns, such as ``{"drop": ["claim_id"]}``.
        split: Shares of subjects in train, holdout and reference.
        evaluation: Metrics and embedder.
        run: Options of a run.
        deployment: An :class:`AirflowDeployment` or the folder of releases.
        partitions: List of keys, which must contain the run's partition key, or
            :class:`TimePartitions`, whose partition follows from the run's partition or data
            interval. None: unpartitioned.
        partition: One of the partitions. Not given: the one of the run. Template.
        publish: False: end with the verdict, for a :class:`PrivacyPublishOperator`.
        **kwargs: Arguments of ``BaseOperator``.

    Raises:
        ConfigError: If settings are invalid; raised when the DAG is parsed.
    """

    operator_extra_links = (PrivacyReportLink(),)

    @classmethod
    def partial(cls, **kwargs: Any) -> GatePartial:
        """Set the arguments that all mapped tasks share.

        Map ``table`` or ``partition``, so that no two tasks publish under one name.

        Args:
            **kwargs: The arguments.
        """
        partial = GatePartial.of(super().partial(**kwargs))
        warn_of_overlaps(partial.kwargs["dag"], table_name(kwargs.get("table")) or "of each task")
        return partial

    def __init__(self, *, publish: bool = True, **kwargs: Any) -> None:
        super().__init__(**{"doc_md": _ALL_STEPS, **kwargs})
        self.outlets = task_outlets(self.outlets, str(self.gated), publishes=publish)
        self.publish = publish
        warn_of_overlaps(self.get_dag(), str(self.gated))
        group = self.get_closest_mapped_task_group()
        if group is not None:
            self._check_group(group)

    def _check_group(self, group: MappedTaskGroup) -> None:
        """Check that the tasks of a mapped group have different partitions; their table is the
        same.
        """
        # name of the argument of the group that is the partition, if the partition is an argument
        argument = getattr(self.partition, "_key", "")
        tasks_of_group = list[Mapping[str, Any]]()
        for task in known_tasks(group._expand_input.value):
            if task is None:
                continue
            partition = self.partition
            if argument:
                partition = task.get(argument)
            tasks_of_group.append({"table": self.gated, "partition": partition})
        check_pairs(self.task_id, tasks_of_group)
        one_at_a_time(self)

    def _work(self, stored: StoredRun, context: Context) -> _TaskResult:
        stored.start()
        task_result = _TaskResult({})
        synthetic: Mapping[str, Any] = {}
        contract_lines: tuple[str, ...] = ()
        try:
            for task, result in run_table(stored.run, self._device, self._step):
                match result:
                    case SampleResult():
                        synthetic = result.values
                    case PrepareResult():
                        contract_lines = self._contract_lines(result, context)
                    case AttestResult():
                        reference = stored.save(task, {**synthetic, **result.values})
                        if self.publish:
                            reference = {}  # the publication returns the XCom
                        task_result = self._verdict_result(result, reference, stored)
                        lines = (*contract_lines, *task_result.last_lines)
                        task_result = replace(task_result, last_lines=lines)
                        if task_result.blocked_by is not None or not self.publish:
                            break
                    case PublishResult():
                        task_result = self._release_result(
                            result.release, stored, context, task_result.last_lines
                        )
        except PublicationBlocked as error:
            if not task_result.last_lines:  # no verdict yet
                raise
            task_result = replace(task_result, blocked_by=error)
        return task_result
