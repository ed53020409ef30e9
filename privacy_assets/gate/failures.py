"""Records of failed limits. A failure is final for the same rows, independent of run, seed and split."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from privacy_assets.errors import Damaged, PublicationRefused
from privacy_assets.gate.keys import SigningKey
from privacy_assets.gate.snapshot import Snapshot
from privacy_assets.gate.statements import ReleaseTarget, SignedRecord, Statement, records, seal, unseal
from privacy_assets.infra.files import private_folder, put_atomic
from privacy_assets.infra.objects import Location
from privacy_assets.policy import Limit, LimitOutcome, Policy
from privacy_assets.version import ENGINE_VERSION

_SIDES = ("statistic", "bound", "at_most", "at_least")
_STRICTNESS = ("significant", "value", "conservative")  # the last exceeds a limit whenever an earlier one does


@dataclass(frozen=True, slots=True)
class Failures:
    """Signed records of failed limits, one file per table, partition, row content and limit.

    A record counts against every limit on the same statistic that is at least as strict. Neither adding a limit to the
    policy nor loosening one temporarily removes the failure. Records are never deleted.

    Attributes:
        root: Folder of the records.
        key: Signing key.
    """

    root: Location
    key: SigningKey

    def remember(self, snapshot: Snapshot, outcomes: Iterable[LimitOutcome]) -> None:
        """Record every outcome with status "fail". "not_assessable" is not recorded, because more rows may pass."""
        for outcome in outcomes:
            if outcome.status != "fail":
                continue
            limit = {name: getattr(outcome.limit, name) for name in _SIDES}
            body = {"limit": limit, "reason": outcome.reason, "content": snapshot.content, "engine": ENGINE_VERSION}
            name = hashlib.sha256(json.dumps(limit, sort_keys=True).encode()).hexdigest()[:32]
            path = private_folder(self._folder(snapshot.target, snapshot.content)) / f"{name}.json"
            if not path.exists():
                put_atomic(path, seal(Statement("failure", snapshot.target, snapshot.sha256, body), self.key).data)

    def against(self, policy: Policy, target: ReleaseTarget, content: str) -> list[str]:
        """Return the limits that these rows failed earlier and for which ``policy`` has one at least as strict.

        Raises:
            Damaged: If a record is not signed by a trusted key or belongs to other rows. It may be a failure.
            StoreUnavailable: If the records cannot be read.
        """
        found = []
        for path, data in self._records(target, content):
            try:
                record = unseal(SignedRecord("failure", data), self.key.trusted)
            except PublicationRefused:
                text = f"a record of an earlier failed verdict is not signed by a trusted key ({path})"
                raise Damaged(text, path=str(path)) from None
            limit = record.body["limit"]
            if (record.target, record.body["content"]) != (target, content):
                text = f"a record of a failed verdict belongs to other rows ({path})"
                raise Damaged(text, path=str(path), expected=target, found=record.target)
            if any(_as_strict(one, limit) for one in policy.limits):
                failed = Limit(**limit)
                found.append(f"{failed.key} {'at most' if failed.at_least is None else 'at least'} {failed.value:g}")
        return found

    def _records(self, target: ReleaseTarget, content: str) -> list[tuple[Location, bytes]]:
        folder = self._folder(target, content)
        found = records(folder, "memory of failed verdicts")
        return [(folder / name, data) for name, data in found.items() if name.endswith(".json")]

    def _folder(self, target: ReleaseTarget, content: str) -> Location:
        return target.below(self.root) / content


def _as_strict(limit: Limit, failed: dict[str, Any]) -> bool:
    """Return True if every value that exceeds ``failed`` also exceeds ``limit``."""
    if limit.statistic != failed["statistic"] or _STRICTNESS.index(limit.bound) < _STRICTNESS.index(failed["bound"]):
        return False
    if limit.at_most is not None:
        return failed["at_most"] is not None and limit.at_most <= float(failed["at_most"])
    return failed["at_least"] is not None and limit.value >= float(failed["at_least"])
