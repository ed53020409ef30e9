"""A sensor for who consumes releases: it waits until there is one that a trusted key signed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseSensorOperator, PokeReturnValue
from airflow.triggers.base import BaseTrigger, TriggerEvent

from privacy_assets.airflow.deployment import GateDeployment
from privacy_assets.airflow.redaction import redact_exceptions
from privacy_assets.errors import ConfigError, InputError
from privacy_assets.gate.keys import TrustedKeys
from privacy_assets.gate.releases import ReleaseStore, check_bytes
from privacy_assets.gate.statements import Place
from privacy_assets.storage.objects import Location, location

if TYPE_CHECKING:
    from airflow.sdk import Context


class ReleaseSensor(BaseSensorOperator):
    """Waits for a release of ``table`` (and ``partition``), signed by a trusted key, whose bytes are those signed.

    With ``newer_than``, a time with its zone, only one that was attested after it counts. ``deployment`` is a
    :class:`GateDeployment`, of which releases and trusted keys matter, or the folder of releases. With
    ``deferrable=True`` the triggerer waits, and no worker. Returns, as its XCom, ``table``, ``partition``, ``release``
    and ``sha256``; read the rows by :func:`privacy_assets.read_published`, which verifies them again. A release that is
    there and does not verify fails the task for good. The ``timeout`` of a deferred sensor begins anew with each
    release that is not new enough. Who waits in the triggerer has the credentials of its environment: there is no
    ``store_conn_id``.
    """

    template_fields: ClassVar[Sequence[str]] = ()
    ui_color = "#e4f0e8"

    def __init__(
        self,
        *,
        table: str,
        partition: str | None = None,
        newer_than: datetime | None = None,
        deployment: GateDeployment | str | Path | None = None,
        deferrable: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.place, self.newer_than, self.deferrable = Place(table, partition), newer_than, deferrable
        self.deployment = GateDeployment.of(deployment)
        if deferrable and self.deployment.store_conn_id is not None:
            raise ConfigError("ReleaseSensor: deferrable and store_conn_id do not go together. Fix: leave one out.")
        if newer_than is not None and newer_than.tzinfo is None:
            raise ConfigError(
                "ReleaseSensor: newer_than needs a time zone, for example datetime(2026, 1, 1, tzinfo=UTC)."
            )

    def poke(self, context: Context) -> PokeReturnValue:
        """Look once."""
        found = self._release()
        return PokeReturnValue(found is not None, found)

    def execute(self, context: Context) -> Any:
        """Wait, here or in the triggerer."""
        if not self.deferrable:
            return super().execute(context)
        trigger = ReleaseTrigger(*self._watched(), self.poke_interval)  # before the look: none that comes then is lost
        if (found := self._release()) is not None:
            return found
        return self.defer(trigger=trigger, method_name="execute_complete", timeout=timedelta(seconds=self.timeout))

    def execute_complete(self, context: Context, event: Mapping[str, Any] | None = None) -> Any:
        """Look at the release that the triggerer saw; wait on where it is not the one."""
        return self.execute(context)

    @redact_exceptions
    def _release(self) -> dict[str, Any] | None:
        """The current release, verified; None while there is none that is new enough."""
        with self.deployment.store_credentials():
            root, trusted = self.deployment.reading()
            return _verified(root, self.place, trusted, self.newer_than)

    @redact_exceptions
    def _watched(self) -> tuple[str, str, str | None, str | None]:
        """What the trigger looks at, and which release was there before."""
        root, _ = self.deployment.reading()
        return str(root), self.place.table, self.place.partition, _current(root, self.place)


def _verified(root: Location, place: Place, trusted: TrustedKeys, newer_than: datetime | None) -> dict[str, Any] | None:
    try:
        release = ReleaseStore(root).current(place)
    except InputError:
        return None
    stated = release.opened(place, trusted)
    if newer_than is not None and datetime.fromisoformat(stated.made_at) <= newer_than:
        return None
    check_bytes(release.table, stated.sha256)
    return {"table": place.table, "partition": place.partition, "release": release.id, "sha256": stated.sha256}


def _current(root: Location, place: Place) -> str | None:
    """The id of the release that the pointer names; None before there is one."""
    try:
        return ReleaseStore(root).current(place).id
    except InputError:
        return None


class ReleaseTrigger(BaseTrigger):
    """Waits in the triggerer until the pointer of a table names another release than ``seen``; it verifies nothing.

    What it is given stands in Airflow's database: the folder of releases, a name, no keys.
    """

    def __init__(self, releases: str, table: str, partition: str | None, seen: str | None, every: float) -> None:
        super().__init__()
        self.releases, self.table, self.partition, self.seen, self.every = releases, table, partition, seen, every

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """How Airflow makes it again."""
        given = ("releases", "table", "partition", "seen", "every")
        return f"{type(self).__module__}.{type(self).__name__}", {name: getattr(self, name) for name in given}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """One event, when there is another release."""
        place = Place(self.table, self.partition)
        while await asyncio.to_thread(_current, location(self.releases), place) in (None, self.seen):
            await asyncio.sleep(self.every)
        yield TriggerEvent({"table": self.table, "partition": self.partition})
