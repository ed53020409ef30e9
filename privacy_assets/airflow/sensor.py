"""Sensor that waits for a release with a signature by a trusted key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseSensorOperator, PokeReturnValue
from airflow.triggers.base import BaseTrigger, TriggerEvent

from privacy_assets.airflow.arguments import (
    NOT_GIVEN,
    check_rendered,
    given_arguments,
    is_reference,
)
from privacy_assets.airflow.deployment import AirflowDeployment
from privacy_assets.airflow.operators import redact_exceptions
from privacy_assets.errors import ConfigError, InputError, for_readers, safe_repr
from privacy_assets.gate.envelope import ReleaseTarget
from privacy_assets.gate.keys import TrustedKeys
from privacy_assets.gate.release import is_ahead
from privacy_assets.gate.releases import ReleaseStore, check_bytes
from privacy_assets.infra.objects import Location, check_no_template, is_template, location

if TYPE_CHECKING:
    from airflow.sdk import Context


class ReleaseSensor(BaseSensorOperator):
    """Wait for a release of a table that is signed by a trusted key and whose bytes match the
    signature.

    The XCom contains ``table``, ``partition``, ``release`` and ``sha256``. Read the rows with
    :func:`privacy_assets.read_published`, which verifies them again. A release that fails
    verification fails the task without retry.

    Args:
        table: Name of the table.
        partition: Partition of the release. Not given: unpartitioned. Template.
        newer_than: Only accept releases attested after this time, which must have a time zone. A
            datetime, or a string in ISO format. Template, such as ``"{{ data_interval_end }}"``.
            Times more than 10 minutes in the future do not count. Not given: any time. A template
            without a value in this run fails the task.
        max_age: Maximum time since the publisher last confirmed that the release is the current
            one, see :func:`privacy_assets.read_published`. The sensor waits for a younger one.
            None: any time.
        deployment: An :class:`AirflowDeployment`, of which releases and trusted keys are used, or
            the folder of releases.
        deferrable: True: wait in the triggerer instead of a worker, with the credentials of the
            triggerer's environment. The ``timeout`` restarts with each release that is not new
            enough.
        **kwargs: Arguments of ``BaseSensorOperator``.

    Raises:
        ConfigError: If ``newer_than`` is not a time with a time zone, another setting is a
            template, or ``deferrable`` is combined with ``store_conn_id``.
    """

    template_fields: ClassVar[Sequence[str]] = ("partition", "newer_than")
    ui_color = "#e4f0e8"

    def __init__(
        self,
        *,
        table: str,
        partition: str | None = NOT_GIVEN,
        newer_than: datetime | str | None = NOT_GIVEN,
        max_age: timedelta | None = None,
        deployment: AirflowDeployment | str | Path | None = None,
        deferrable: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_no_template(table)
        passed = given_arguments(self, partition=partition, newer_than=newer_than)
        self._passed_names = tuple(passed)
        self.table = table
        self.partition = passed.get("partition")
        self.newer_than = passed.get("newer_than")
        self.deferrable = deferrable
        self.max_age = max_age
        self.deployment = AirflowDeployment.of(deployment)
        if deferrable and self.deployment.store_conn_id is not None:
            raise ConfigError(
                "ReleaseSensor: deferrable and store_conn_id cannot be combined. Fix: remove one."
            )
        if not is_reference(self.newer_than) and not is_template(str(self.newer_than)):
            _time(self.newer_than)

    @property
    def target(self) -> ReleaseTarget:
        """Table and partition, after the template was rendered."""
        return ReleaseTarget(self.table, self.partition)

    def poke(self, context: Context) -> PokeReturnValue:
        """Check once.

        Args:
            context: Context of the task.
        """
        release = self._release()
        return PokeReturnValue(release is not None, release)

    def execute(self, context: Context) -> Any:
        """Wait, in this process or in the triggerer.

        Args:
            context: Context of the task.
        """
        if not self.deferrable:
            return super().execute(context)
        # Created before the check, so that a release in between is not missed.
        trigger = ReleaseTrigger(*self._watched(), self.poke_interval)
        release = self._release()
        if release is not None:
            return release
        return self.defer(
            trigger=trigger, method_name="execute_complete", timeout=timedelta(seconds=self.timeout)
        )

    def execute_complete(self, context: Context, event: Mapping[str, Any] | None = None) -> Any:
        """Check the release that the triggerer found, and continue to wait if it does not qualify.

        Args:
            context: Context of the task.
            event: Event of the trigger. Not used.
        """
        return self.execute(context)

    @redact_exceptions
    def _release(self) -> dict[str, Any] | None:
        """Return the XCom of the current release after verification, or None if none is new
        enough.
        """
        newer_than = self._bound()
        with self.deployment.store_credentials():
            root = self.deployment.release_folder()
            trusted = self.deployment.trusted(reading=True)
            return _verified(root, self.target, trusted, newer_than, self.max_age)

    @redact_exceptions
    def _watched(self) -> tuple[str, str, str | None, str | None]:
        """Return the location watched by the trigger and the digest of its current pointer."""
        self._bound()
        root = self.deployment.release_folder()
        digest = ReleaseStore(root).watched(self.target)
        return str(root), self.target.table, self.target.partition, digest

    def _bound(self) -> datetime | None:
        """Return ``newer_than`` as a time, after checking that all given arguments have a value."""
        newer_than = _time(self.newer_than)
        check_rendered(self, self._passed_names)
        return newer_than


def _time(value: object) -> datetime | None:
    """Return a time of the DAG, or the one that a template was rendered to.

    Raises:
        ConfigError: If it is neither None nor a time with a time zone.
    """
    time = value
    if isinstance(value, str):
        with suppress(ValueError):
            time = datetime.fromisoformat(value)
    if time is None:
        return None
    if isinstance(time, datetime) and time.tzinfo is not None:
        return time
    fault = f"is {safe_repr(value)}, not a time"
    if isinstance(time, date):
        fault = "has no time zone"
    fix = "set a time with a time zone, for example datetime(2026, 1, 1, tzinfo=UTC)"
    raise ConfigError(f"ReleaseSensor: newer_than {fault}. Fix: {fix}.")


def _verified(
    root: Location,
    target: ReleaseTarget,
    trusted: TrustedKeys,
    newer_than: datetime | None,
    max_age: timedelta | None = None,
) -> dict[str, Any] | None:
    with for_readers():
        store = ReleaseStore(root)
        try:
            pointer = store.pointer(target, trusted)
            release = store.named(pointer, target)
        except InputError:
            return None
        if pointer.problem(target, max_age):
            return None
        attestation = release.opened(target, trusted)
        made_at = datetime.fromisoformat(attestation.made_at)
        if newer_than is not None and (made_at <= newer_than or is_ahead(made_at)):
            return None
        check_bytes(release.table, attestation.sha256, release.root)
    return {
        "table": target.table,
        "partition": target.partition,
        "release": release.id,
        "sha256": attestation.sha256,
    }


class ReleaseTrigger(BaseTrigger):
    """Wait in the triggerer until the pointer to the release of a table is another one, without
    verifying it.

    Airflow stores the arguments in its database. They contain no keys.

    Args:
        releases: Folder or URL of releases.
        table: Name of the table.
        partition: Partition, or None.
        seen: Digest of the pointer to ignore, see :meth:`.ReleaseStore.watched`, or None.
        every: Seconds between checks.
    """

    def __init__(
        self, releases: str, table: str, partition: str | None, seen: str | None, every: float
    ) -> None:
        super().__init__()
        self.releases = releases
        self.table = table
        self.partition = partition
        self.seen = seen
        self.every = every

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return class path and arguments, from which Airflow recreates the trigger."""
        path = f"{type(self).__module__}.{type(self).__name__}"
        arguments = {
            "releases": self.releases,
            "table": self.table,
            "partition": self.partition,
            "seen": self.seen,
            "every": self.every,
        }
        return path, arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event when there is another release, or the current one was confirmed again."""
        store = ReleaseStore(location(self.releases))
        target = ReleaseTarget(self.table, self.partition)
        while await asyncio.to_thread(store.watched, target) in (None, self.seen):
            await asyncio.sleep(self.every)
        yield TriggerEvent({"table": self.table, "partition": self.partition})
