"""Operators: a table's pipeline as a task of Airflow."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator

from privacy_assets.airflow.redaction import redact_exceptions
from privacy_assets.compute.progress import Lines
from privacy_assets.errors import ConfigError, PublicationRefused
from privacy_assets.gate.releases import TRUSTED_VARIABLE
from privacy_assets.gate.statements import Place
from privacy_assets.pipeline.deployment import Deployment
from privacy_assets.pipeline.plan import TablePlan
from privacy_assets.pipeline.redaction import unheard
from privacy_assets.pipeline.run import on_device, run_table, timed
from privacy_assets.pipeline.spec import TableSpec, spec_of
from privacy_assets.pipeline.steps import Steps
from privacy_assets.policy import Policy
from privacy_assets.storage.objects import PRIVATE_VARIABLE, RELEASES_VARIABLE, Location, location

if TYPE_CHECKING:
    from airflow.sdk import Context

_FILES = (".yaml", ".yml")


class PrivacyPublishOperator(BaseOperator):
    """A whole table in one task, from its private rows to the release: what ``privacy-assets run`` does.

    ``table`` is a :class:`TableSpec`, the path of its YAML file, or the name of a table that ``source`` ("demo", or a
    path), ``subject`` (the column that tells people apart), ``generator`` and ``policy`` describe well enough. It is
    checked when the DAG is parsed.

    ``releases`` is the folder of releases or its URL, ``private`` the gate's private folder, ``trusted_keys`` a folder
    of public keys; without them PRIVACY_ASSETS_RELEASES, PRIVACY_ASSETS_PRIVATE (the folder ``private`` beside the
    releases) and PRIVACY_ASSETS_TRUSTED_KEYS (``trusted_keys`` beside the releases) of the worker's environment. They
    must be absolute: a task starts in any folder, and an empty one would have forgotten every failure. ``device`` is
    "auto", "cpu", "cuda", "cuda:N" or "mps"; an accelerator is leased for the whole task.

    Returns, as its XCom, ``table``, ``partition`` (None) and ``release``, the id of the new release: no rows and no
    paths, and nothing that a reader should trust. Read a release by :func:`privacy_assets.read_published`. A table that
    does not hold its policy fails the task for good (AirflowFailException), and nothing is published; so do wrong
    settings and unusable tables. Any other error is retried as the task says, and names no value. While the steps run,
    what Python code in this process prints, logs or warns of is dropped.

    Nothing of it is a template: what the UI can edit (params, Variables, Connections, the configuration of a run) says
    neither what is judged nor by which policy, keys and memory.
    """

    template_fields: ClassVar[Sequence[str]] = ()
    ui_color = "#e4f0e8"

    def __init__(
        self,
        *,
        table: TableSpec | str | Path,
        source: str | Path | None = None,
        subject: str | None = None,
        generator: str | Mapping[str, Any] | Callable[..., Any] | None = None,
        policy: Policy | Mapping[str, Any] | str | Path | None = None,
        releases: str | Path | None = None,
        private: str | Path | None = None,
        trusted_keys: str | Path | None = None,
        device: str = "auto",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if isinstance(table, Path) or (isinstance(table, str) and table.endswith(_FILES)):
            table = TableSpec.load(table)
        self.spec = spec_of(table, source=source, subject=subject, generator=generator, policy=policy)
        TablePlan.of(self.spec)  # the checks of all settings together
        self.releases = None if releases is None else _place(releases, "releases")
        self.private = None if private is None else _place(private, "private")
        self.trusted_keys = None if trusted_keys is None else str(_place(trusted_keys, "trusted_keys"))
        self.device = device

    @redact_exceptions
    def execute(self, context: Context) -> dict[str, str | None]:
        """Run the steps and publish; see the class."""
        steps = Steps(TablePlan.of(self.spec), self._deployment(), Place(self.spec.name), progress=Lines(self.log.info))
        with unheard(), self._workers(steps), self._device(steps) as device:
            finished = run_table(steps, device, self._logged)
        for line in finished.attested.report.to_text().splitlines():
            self.log.info(line)
        if finished.release is None:
            raise PublicationRefused(finished.refusal)
        self.log.info(f"release {finished.release.id} of {steps.place} is published")
        return {"table": steps.place.table, "partition": steps.place.partition, "release": finished.release.id}

    def _deployment(self) -> Deployment:
        """Where this task publishes, as the DAG file or the environment of the worker says."""
        releases = self.releases or _named(RELEASES_VARIABLE)
        if releases is None:
            raise ConfigError(f"task {self.task_id}: where do releases go? Fix: give releases, or {RELEASES_VARIABLE}.")
        private = self.private or _named(PRIVATE_VARIABLE)
        if private is None:
            if not isinstance(releases, Path):
                fix = f"give private, or {PRIVATE_VARIABLE}"
                raise ConfigError(f"task {self.task_id}: where is the private folder of {releases}? Fix: {fix}.")
            private = releases.parent / "private"
        _named(TRUSTED_VARIABLE)  # a relative one would be a folder of whatever folder the task starts in
        return Deployment(releases, private, trusted_keys=self.trusted_keys)

    def _device(self, steps: Steps) -> AbstractContextManager[str]:
        if not on_device(steps):
            return nullcontext("cpu")
        from privacy_assets.compute.devices import lease_device

        return lease_device(device=self.device, on_wait=self.log.info)

    @staticmethod
    def _workers(steps: Steps) -> AbstractContextManager[Any]:
        if steps.plan.workers != "ray":
            return nullcontext()
        from privacy_assets.compute.on_ray import on_ray

        return on_ray("auto")

    def _logged(self, name: str) -> AbstractContextManager[None]:
        """Log that a step starts, and how it ended."""
        self.log.info(f"step {name}")
        return timed(
            lambda seconds: self.log.info(f"step {name}: {'refused' if seconds is None else f'{seconds:.1f} s'}")
        )


def _named(variable: str) -> Location | None:
    given = os.environ.get(variable)
    return _place(given, variable) if given else None


def _place(given: str | Path, what: str) -> Location:
    """The place that is given; ConfigError for a relative one."""
    found = location(given)
    if isinstance(found, Path) and not found.is_absolute():
        raise ConfigError(f"{what}: {found} is relative, and tasks start in any folder. Fix: give the whole path.")
    return found
