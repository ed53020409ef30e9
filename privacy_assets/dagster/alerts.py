"""Failed privacy checks that nobody has been told of, and how they are told."""

from __future__ import annotations

import http.client
import json
import logging
import os
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import dagster as dg

from privacy_assets.errors import ConfigError

_HISTORY = 50  # evaluations of one check that are looked at in one tick


@dataclass(frozen=True, slots=True)
class Alert:
    """One failed evaluation of one check; ``slot`` and ``id`` identify it in the sensor's cursor."""

    slot: str
    id: int
    asset: str
    check: str
    partition: str | None
    run_id: str
    reason: str

    @property
    def text(self) -> str:
        """One line for the log."""
        place = f"{self.asset}, {self.partition}" if self.partition else self.asset
        return f"privacy check {self.check} failed on {place} in run {self.run_id}: {self.reason}"

    def to_json(self) -> dict[str, Any]:
        """Body of the webhook; ``text`` is what chat systems show."""
        fields = ("asset", "check", "partition", "run_id", "reason", "text")
        return {name: getattr(self, name) for name in fields}


def new_failures(
    instance: dg.DagsterInstance, keys: Sequence[dg.AssetCheckKey], state: dict[str, list[int]]
) -> Iterator[Alert]:
    """Failed evaluations that ``state`` (ids told, by check) does not hold, oldest first; it is brought up to date.

    The first time a check is seen only its newest evaluation can alert. Checks that are gone are forgotten.
    """
    names = {key.to_user_string() for key in keys}
    for gone in set(state) - names:
        del state[gone]
    for key in keys:
        slot = key.to_user_string()
        # The history, unlike the latest record, also knows partitions.
        records = list(instance.event_log_storage.get_asset_check_execution_history(key, limit=_HISTORY))
        first_time = slot not in state
        alerted = set(state.get(slot, []))
        state[slot] = [
            record.id for record in records if record.id in alerted or (first_time and record is not records[0])
        ]
        for record in reversed(records):
            alert = _alert(slot, key, record)
            if alert is not None and record.id not in state[slot]:
                yield alert


def _alert(slot: str, key: dg.AssetCheckKey, record: Any) -> Alert | None:
    if record.status.value != "FAILED" or record.event is None:
        return None
    evaluation = record.event.dagster_event.event_specific_data
    asset = key.asset_key.to_user_string()
    reason = evaluation.description or "it does not hold"
    return Alert(slot, record.id, asset, key.name, record.partition, record.run_id, reason)


def webhook_of(variable: str) -> str | None:
    """The address in an environment variable, or None; ConfigError unless it is http or https."""
    url = os.environ.get(variable, "")
    if url and urlsplit(url).scheme not in ("http", "https"):
        raise ConfigError(f"{variable}: the webhook must be an http or https address.")
    return url or None


def send(url: str, body: dict[str, Any], timeout_s: float, log: logging.Logger) -> bool:
    """Post ``body`` as JSON; False, and a line in the log without the address, when that does not succeed."""
    headers = {"Content-Type": "application/json"}
    try:
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)  # noqa: S310 (see webhook_of)
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:  # noqa: S310
            return bool(200 <= answer.status < 300)
    except (OSError, ValueError, http.client.HTTPException) as error:
        log.warning(f"the webhook did not take the alert ({type(error).__name__}); trying again at the next tick")
        return False
