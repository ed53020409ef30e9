"""Operators: the steps of a table as tasks, all of them as one task, and the step that publishes.

None has a template, and none believes what Airflow says: a task that publishes verifies the signed verdict, the policy
and the bytes itself, whatever the states of other tasks, XComs and events are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import Asset, BaseOperator, BaseOperatorLink

from privacy_assets.airflow.deployment import GateDeployment
from privacy_assets.airflow.redaction import redact_exceptions
from privacy_assets.airflow.table import GatedTable
from privacy_assets.errors import ConfigError, PublicationRefused, did_you_mean
from privacy_assets.gate.releases import Release
from privacy_assets.pipeline.redaction import unheard
from privacy_assets.pipeline.run import judge_table, on_device, timed
from privacy_assets.pipeline.spec import TableSpec
from privacy_assets.pipeline.steps import Attested
from privacy_assets.pipeline.stored_steps import ATTEST, SCORE, StoredSteps, steps_of_plan, uses_device
from privacy_assets.policy import Policy

if TYPE_CHECKING:
    from airflow.sdk import Context

Table = GatedTable | TableSpec | str | Path
_XCOM = "return_value"
PUBLISHES = (
    "Publishes the table, after it has verified signed verdict, policy, memory and bytes itself. It believes no state,"
    " XCom or event of Airflow; until it succeeds the previous release stays."
)
_ALL_STEPS = (
    "Splits a private table by person, makes a synthetic one, attacks it, and holds what the attacks find against the"
    " policy. It fails when a limit does not hold; the log ends with the limits and what to do."
)


def release_asset(table: str) -> Asset:
    """The asset that stands for the releases of ``table``, for a DAG to be scheduled by.

    Its events tell which release there is, and anybody may write some: who wants rows reads them by ``read_published``.
    """
    return Asset(name=f"{table}_release", uri=f"x-privacy-assets://releases/{table}", group="privacy_assets")


class PrivacyReportLink(BaseOperatorLink):
    """The page of the verdict: who could attack, what was tried, which limits hold."""

    name = "Privacy report"

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:
        """The address of the page; nothing before there is one. Airflow asks the worker when the task ends."""
        return str(getattr(operator, "page", ""))


@dataclass(frozen=True)
class _Done:
    """How a task ends: what it hands on, the last lines of its log, and why it fails, if it does."""

    value: dict[str, Any]
    last_lines: Sequence[str] = ()
    refusal: PublicationRefused | None = None


class _GateOperator(BaseOperator):
    """What all tasks of the gate have: a table, a deployment, and no templates."""

    template_fields: ClassVar[Sequence[str]] = ()
    ui_color = "#e4f0e8"
    outlets: list[Any]

    def __init__(
        self,
        *,
        table: Table,
        source: str | Path | None = None,
        subject: str | None = None,
        generator: str | Mapping[str, Any] | Callable[..., Any] | None = None,
        policy: Policy | Mapping[str, Any] | str | Path | None = None,
        deployment: GateDeployment | str | Path | None = None,
        partitions: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        short = {"source": source, "subject": subject, "generator": generator, "policy": policy}
        self.gated = GatedTable.of(table, deployment, partitions, **short)

    @redact_exceptions
    def execute(self, context: Context) -> Any:
        """Do the work of this task, and let no private value out; see the class."""
        # Bound to where it writes now: what is bound first inside of `unheard` writes to what that closes.
        self._log = self.log.bind() if hasattr(self.log, "bind") else self.log
        with unheard(), self.gated.deployment.credentials(), self._workers():
            done = self._work(self.gated.stored(context, self.log.info), context)
        for line in done.last_lines:
            self.log.info(line)
        if done.refusal is not None:
            if done.value:  # a task that publishes against all order then refuses by the verdict itself
                context["ti"].xcom_push(key=_XCOM, value=done.value)
            raise done.refusal
        return done.value

    def _work(self, stored: StoredSteps, context: Context) -> _Done:
        raise NotImplementedError

    def _device(self, wanted: bool) -> AbstractContextManager[str]:
        if not wanted:
            return nullcontext("cpu")
        from privacy_assets.compute.devices import lease_device

        return lease_device(device=self.gated.deployment.device, on_wait=self.log.info)

    def _workers(self) -> AbstractContextManager[Any]:
        if self.gated.plan.workers != "ray":
            return nullcontext()
        from privacy_assets.compute.on_ray import on_ray

        return on_ray("auto")

    @contextmanager
    def _step(self, name: str) -> Iterator[None]:
        """Log that a step starts, and how it ended."""
        self.log.info(f"step {name}")
        say = self.log.info
        with timed(lambda seconds: say(f"step {name}: {'refused' if seconds is None else f'{seconds:.1f} s'}")):
            yield

    def _judged(self, attested: Attested, reference: dict[str, Any], stored: StoredSteps) -> _Done:
        """The end of a task that came to a verdict."""
        self.page = self.gated.deployment.page(stored.reports, stored.base)
        refusal = None
        if attested.stated.verdict != "pass":
            reason = f"{attested.reason.removesuffix('.')}.{_advice(attested)}"
            refusal = PublicationRefused(reason, attested.judgement.broken)
        return _Done(reference, (*attested.report.to_text().splitlines(), f"report: {self.page}"), refusal)

    def _released(
        self, release: Release, sha256: str, stored: StoredSteps, context: Context, lines: Sequence[str] = ()
    ) -> _Done:
        """Announce a release: the end of a task that published, whose log ends with ``lines`` and what it is."""
        place = stored.steps.place
        told = {"table": place.table, "partition": place.partition, "release": release.id}
        asset = release_asset(place.table)
        if asset in self.outlets:
            event = context["outlet_events"][asset]
            event.extra = {**told, "sha256": sha256}
            if place.partition is not None and hasattr(event, "add_partitions"):  # not before Airflow 3.2
                event.add_partitions(place.partition)
        return _Done(told, (*lines, f"release {release.id} of {place} is published"))


class PrivacyStepOperator(_GateOperator):
    """One step of a table: split, embed, fit, sample, encode, score (of one ``metric``) or attest.

    ``given`` names, by step, the task whose values it reads (:func:`~privacy_assets.pipeline.stored_steps.
    steps_of_plan`); ``privacy_gate`` wires all of them. Values stand in the private storage of the deployment; the XCom
    is a reference to them, which is verified when it is read.
    """

    def __init__(
        self,
        *,
        step: str,
        given: Mapping[str, str | Sequence[str]] | None = None,
        metric: str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        plan, self.step, self.given, self.metric = self.gated.plan, step, dict(given or {}), metric
        self.operator_extra_links = (PrivacyReportLink(),) if step == ATTEST else ()
        known = steps_of_plan(plan)
        if step not in known:
            raise ConfigError(f"table {self.gated}: there is no step {step!r}.{did_you_mean(step, known)}")
        if absent := [one for one in known[step] if one not in self.given]:
            raise ConfigError(f"table {self.gated}, step {step}: given names no task of step {absent[0]}.")
        if step == SCORE and metric not in plan.metrics:
            raise ConfigError(f"table {self.gated}: there is no metric {metric!r}.{did_you_mean(metric, plan.metrics)}")

    def _work(self, stored: StoredSteps, context: Context) -> _Done:
        given, name = {step: self._pulled(step, context) for step in self.given}, self.step
        on_a_device = uses_device(stored.steps.plan, name, self.metric)
        with self._device(on_a_device) as device, self._step(self.metric or name):
            if name == ATTEST:
                reference, attested = stored.attest(given)
            elif name == SCORE:
                return _Done(stored.score(self.metric, given, device))
            else:
                work = getattr(stored, name)
                return _Done(work(*([given] if given else []), **({"device": device} if on_a_device else {})))
        return self._judged(attested, reference, stored)

    def _pulled(self, step: str, context: Context) -> Any:
        tasks = self.given[step]
        if step != SCORE:
            return context["ti"].xcom_pull(task_ids=tasks, key=_XCOM)
        found: list[Any] = []
        for task in [tasks] if isinstance(tasks, str) else tasks:
            pulled = context["ti"].xcom_pull(task_ids=task, key=_XCOM)
            found += pulled if isinstance(pulled, list) else [pulled]
        return [one for one in found if one is not None]


class PrivacyPublishOperator(_GateOperator):
    """The step that publishes what the task ``attested_by`` attested in this run.

    That task is the ``attest`` of a group, or a :class:`PrivacyGateOperator` with ``publish=False``; between the two
    a person may look, or a task of yours. It believes nothing that Airflow says: signed verdict, policy in force,
    memory of failures and the bytes are verified here, so that neither another trigger rule, nor a state that somebody
    set, nor a forged XCom or event publishes anything that does not hold its policy. Otherwise as
    :class:`PrivacyGateOperator`.
    """

    operator_extra_links = (PrivacyReportLink(),)

    def __init__(self, *, attested_by: str, **kwargs: Any) -> None:
        super().__init__(**{"doc_md": PUBLISHES, **kwargs})
        self.outlets = [*self.outlets, release_asset(str(self.gated))]
        self.attested_by = attested_by

    def _work(self, stored: StoredSteps, context: Context) -> _Done:
        given = {ATTEST: context["ti"].xcom_pull(task_ids=self.attested_by, key=_XCOM)}
        self.page = self.gated.deployment.page(stored.reports, stored.base)
        with self._step("publish"), stored.verdict(given) as (attestation, synthetic):
            release = stored.steps.publish(attestation, synthetic)
            sha256 = stored.steps.gate.snapshot(synthetic, stored.steps.place).sha256
        return self._released(release, sha256, stored, context)


class PrivacyGateOperator(_GateOperator):
    """A whole table in one task, from its private rows to the release: what ``privacy-assets run`` does.

    ``table`` is a :class:`TableSpec`, the path of its YAML file, or the name of a table that ``source`` ("demo", or a
    path), ``subject`` (the column that tells people apart), ``generator`` and ``policy`` describe well enough. It is
    checked when the DAG is parsed. ``deployment`` is a :class:`GateDeployment`, or the folder of releases.
    ``partitions`` are a list of keys, of which the run's partition key must be one, or :class:`TimePartitions`, of
    which the run's partition or data interval names one. With ``publish=False`` the task ends with the verdict, for a
    :class:`PrivacyPublishOperator` to publish.

    Returns, as its XCom, ``table``, ``partition`` and ``release``, the id of the new release: no rows and no paths, and
    nothing that a reader should trust. Read a release by :func:`privacy_assets.read_published`. A table that does not
    hold its policy fails the task for good (AirflowFailException), and nothing is published; so do wrong settings and
    unusable tables. Any other error is retried as the task says, and names no value. While the steps run, what Python
    code in this process prints, logs or warns of is dropped.

    Nothing of it is a template: what the UI can edit (params, Variables, Connections, the configuration of a run) says
    neither what is judged nor by which policy, keys and memory.
    """

    operator_extra_links = (PrivacyReportLink(),)

    def __init__(self, *, publish: bool = True, **kwargs: Any) -> None:
        super().__init__(**{"doc_md": _ALL_STEPS, **kwargs})
        if publish:
            self.outlets = [*self.outlets, release_asset(str(self.gated))]
        self.publish = publish

    def _work(self, stored: StoredSteps, context: Context) -> _Done:
        with self._device(on_device(stored.steps)) as device:
            attested, synthetic = judge_table(stored.steps, device, self._step)
        reference = stored.attested(attested, synthetic)
        judged = self._judged(attested, {} if self.publish else reference, stored)
        if judged.refusal is not None or not self.publish:
            return judged
        try:
            with self._step("published"):
                release = stored.steps.publish(attested.sealed, synthetic)
        except PublicationRefused as error:
            return replace(judged, refusal=error)
        return self._released(release, attested.stated.sha256, stored, context, judged.last_lines)


def _advice(attested: Attested) -> str:
    """What to do first about the first cause."""
    found = [one for one in attested.report.advice if one["todo"]][:1]
    return "".join(f" {one['means']} Fix: {one['todo'][0]['what']}." for one in found)
