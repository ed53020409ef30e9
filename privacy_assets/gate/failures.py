"""The memory of failed verdicts: what failed once stays failed, whatever the run, the seed or the split."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from privacy_assets.errors import PublicationRefused
from privacy_assets.gate.keys import SigningKey
from privacy_assets.gate.snapshot import Snapshot
from privacy_assets.gate.statements import Place, Sealed, Statement, seal, unseal
from privacy_assets.policy import Policy
from privacy_assets.stats.limits import Limit, LimitOutcome
from privacy_assets.storage.files import contents, private_folder, put_atomic
from privacy_assets.storage.objects import Location
from privacy_assets.version import ENGINE_VERSION

_SIDES = ("statistic", "bound", "at_most", "at_least")
_STRICTNESS = ("lower", "value", "upper")  # a higher end of the interval breaks whatever a lower one breaks


@dataclass(frozen=True, slots=True)
class Failures:
    """Signed records below ``root``, one a failed limit: table, partition, content of the rows, limit, what was found.

    A record counts against every limit on the same statistic that is at least as strict, so that neither another limit
    added to the policy nor one loosened and then restored makes it forgotten. Records are never deleted here.
    """

    root: Location
    key: SigningKey

    def remember(self, snapshot: Snapshot, outcomes: Iterable[LimitOutcome]) -> None:
        """Record every outcome that is a failure; "not assessable" is no failure and may pass with more rows."""
        for outcome in outcomes:
            if outcome.status != "fail":
                continue
            limit = {name: getattr(outcome.limit, name) for name in _SIDES}
            body = {"limit": limit, "reason": outcome.reason, "content": snapshot.content, "engine": ENGINE_VERSION}
            name = hashlib.sha256(json.dumps(limit, sort_keys=True).encode()).hexdigest()[:32]
            path = private_folder(self._folder(snapshot.place, snapshot.content)) / f"{name}.json"
            if not path.exists():
                put_atomic(path, seal(Statement("failure", snapshot.place, snapshot.sha256, body), self.key).data)

    def against(self, policy: Policy, place: Place, content: str) -> list[str]:
        """One text for each remembered failure that breaks a limit of ``policy``.

        PublicationRefused when a record cannot be read or is not signed by a trusted key: it may hold a failure.
        """
        found = []
        for path, data in self._records(place, content):
            try:
                record = unseal(Sealed("failure", data), self.key.trusted)
            except PublicationRefused:
                text = f"a record of an earlier failed verdict cannot be read ({path}): bring it back, with its key."
                raise PublicationRefused(text) from None
            limit = record.body["limit"]
            if (record.place, record.body["content"]) != (place, content):
                raise PublicationRefused(f"a record of a failed verdict is not in its place ({path}): bring it back.")
            if any(_as_strict(one, limit) for one in policy.limits):
                found.append(f"{limit['statistic']}: {record.body['reason']}, engine {record.body['engine']}")
        return found

    def _records(self, place: Place, content: str) -> list[tuple[Location, bytes]]:
        folder = self._folder(place, content)
        try:
            return [(folder / name, data) for name, data in contents(folder).items() if name.endswith(".json")]
        except OSError as error:
            text = f"the memory of failed verdicts cannot be read ({error.filename}: {error.strerror})"
            raise PublicationRefused(f"{text}: bring it back.") from None

    def _folder(self, place: Place, content: str) -> Location:
        return place.below(self.root) / content


def _as_strict(limit: Limit, failed: dict[str, Any]) -> bool:
    """True when what broke the limit ``failed`` breaks ``limit`` as well."""
    if limit.statistic != failed["statistic"] or _STRICTNESS.index(limit.bound) < _STRICTNESS.index(failed["bound"]):
        return False
    if limit.at_most is not None:
        return failed["at_most"] is not None and limit.at_most <= float(failed["at_most"])
    return failed["at_least"] is not None and limit.value >= float(failed["at_least"])
