"""Signed lock of a table, and signed log of its verdicts.

The lock contains the settings that determine the verdicts of a table. A run with other settings is rejected until a
user accepts the difference. The log counts verdicts over all partitions: a table that fails too often is stopped, too.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from privacy_assets.errors import LockDiffers, NotTrusted, PublicationRefused, StoreUnavailable, TableStopped, safe_repr
from privacy_assets.gate.keys import SigningKey
from privacy_assets.gate.statements import (
    RecordKind,
    ReleaseTarget,
    SignedRecord,
    Statement,
    quoted,
    records,
    seal,
    unseal,
)
from privacy_assets.infra.files import create_once, private_folder, put_atomic
from privacy_assets.infra.objects import Location
from privacy_assets.metrics.policies import policy_digest, resolve_policy
from privacy_assets.metrics.registry import table_settings
from privacy_assets.policy import Policy

LAST, MOST = 7, 3  # a table is stopped if more than MOST of its last LAST verdicts are "fail"
_ACCEPTED, _NOT_ASSESSABLE, _FAIL = "accepted", "not_assessable", "fail"
_GRADES = (_ACCEPTED, _NOT_ASSESSABLE, "pass", _FAIL)  # a further verdict on the same content is recorded if higher
PROPOSED, _VALUES, _LOG = ".proposed.json", ".values.json", "log of verdicts"
_TRIES = 1000  # maximum number of attempts if other processes take the next number


_DECLARED = (
    "subject", "kinds", "missing", "timezone", "new_values", "allowed_values", "rare_values", "shared_subjects"
)  # fmt: skip


def entries_of(policy: Policy, setup: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a lock: the settings that determine the verdicts of a table, without private values.

    Args:
        policy: Policy in force.
        setup: All other settings of the table, see :meth:`.ResolvedTable.setup`.
    """
    split, resolved = setup.get("split"), resolve_policy(policy)
    found = {
        "policy": policy.title,
        "policy digest": policy_digest(policy),
        "limits": {limit.key: limit.value for limit in policy.limits},
        "min_holders": policy.min_holders,
        **{name: resolved[name] for name in ("settings", "embedder")},
        "drop": sorted(setup.get("drop") or ()),
        "split": dict(split or {}),
        "external": not split,
        "table settings": table_settings(setup.get("metrics", {})),
        **{name: setup.get(name) for name in _DECLARED},
    }
    return {name: value for name, value in found.items() if value}


@dataclass(frozen=True, slots=True)
class Locks:
    """Signed locks and verdict logs of tables.

    Locks are stored in ``private/locks``, logs in ``private/verdicts``. A lock that is missing or not signed by a
    trusted key counts as empty. A log consists of numbered, signed files: each is a verdict on one content of the
    synthetic table, or an acceptance by a user.

    Attributes:
        private: Private folder.
        key: Signing key.

    Raises:
        TableStopped: On use, if a log entry since the last acceptance is missing or not signed by a trusted key.
    """

    private: Location
    key: SigningKey

    def check(
        self,
        table: str,
        policy: Policy,
        setup: Mapping[str, Any],
        content: str = "",
        *,
        new: bool = False,
        columns: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Reject a run that differs from the lock, and every run while the table is stopped.

        Args:
            table: Name of the table.
            policy: Policy of the run.
            setup: All other settings of the run, see :meth:`.ResolvedTable.setup`.
            content: Keyed fingerprint of synthetic rows. Rows that failed are not stopped by their own failure, so
                their attestation can be repeated.
            new: The run starts, so its lock may replace the one in force if the table has no verdict yet.
            columns: Contract of the columns, see :func:`~privacy_assets.tables.contract.contract_of`. None: the columns
                are not known here, and are not compared.

        Returns:
            The entries of the lock that the run proposes.

        Raises:
            LockDiffers: If the run differs from the lock. The proposed lock is stored, unsigned.
            TableStopped: If the table is stopped.
        """
        proposed = entries_of(policy, setup)
        lines, locked = self.difference(table, proposed), self._entries(table).get("columns")
        contract = locked if columns is None else columns
        replaces = new and not records(self._log(table), _LOG)
        if contract and (replaces or not lines):  # after other changes, the lock gets the contract of the next run
            proposed["columns"] = dict(contract)
            lines = self.difference(table, proposed) if locked else []
        if lines and not replaces:
            put_atomic(self.file(table, PROPOSED), json.dumps(proposed, indent=2).encode())
            text = "\n  ".join([f"{table}: this run differs from the lock of the table (lock -> this run):", *lines])
            raise LockDiffers(text, table=table, differences=tuple(lines))
        self.check_not_stopped(table, content)
        return proposed

    def columns(self, table: str) -> dict[str, str]:
        """Return the contract of the columns in the lock of ``table``, or {} if it has no verdict or no contract yet.

        Until the first verdict, each run makes a new contract.
        """
        return dict(self._entries(table).get("columns", {})) if records(self._log(table), _LOG) else {}

    def published_values(self, table: str, min_holders: int, subject: str | None) -> dict[str, list[Any]]:
        """Return the values that releases of ``table`` may contain, by column.

        {} if the list is not signed by a trusted key, or was made for fewer holders or other subjects.
        """
        known = self._entries(table, _VALUES)
        fits = bool(known) and known["min_holders"] >= min_holders and known.get("subject") == subject
        return dict(known["values"]) if fits else {}

    def sign_values(
        self, table: str, min_holders: int, subject: str | None, values: Mapping[str, Sequence[Any]]
    ) -> None:
        """Store the values that releases of ``table`` may contain, by column, in a private file."""
        listed = {name: list(known) for name, known in values.items()}
        entries = {"min_holders": min_holders, "subject": subject, "values": listed}
        if self._entries(table, _VALUES) != entries:
            target = ReleaseTarget(table)
            put_atomic(self.file(table, _VALUES), self._sealed("lock", target, {"entries": entries, "reason": ""}).data)

    def sign(self, table: str, entries: Mapping[str, Any], why: str = "") -> None:
        """Sign ``entries`` as the lock of ``table`` unless they are in force, and remove the proposal of them."""
        if self.difference(table, entries):
            put_atomic(
                self.file(table), self._sealed("lock", ReleaseTarget(table), {"entries": entries, "reason": why}).data
            )
        if self._stored(table, PROPOSED) == json.dumps(entries, indent=2).encode():
            self.file(table, PROPOSED).unlink(missing_ok=True)

    def difference(self, table: str, proposed: Mapping[str, Any]) -> list[str]:
        """Return one line for each entry of the lock that ``proposed`` changes."""
        locked = dict(self._entries(table))
        if "columns" not in proposed:
            locked.pop("columns", None)
        old, new = _flat(locked), _flat(proposed)
        pairs = [(name, old.get(name, "not set"), new.get(name, "not set")) for name in {**new, **old}]
        return [f"{name}: {was} -> {now}" for name, was, now in pairs if was != now]

    def check_not_stopped(self, table: str, content: str = "") -> None:
        """Reject every run while ``table`` is stopped, unless ``content`` itself failed."""
        _, known, recent = self._verdicts(table)
        last = list(recent.values())[:LAST]
        if (failed := last.count(_FAIL)) > MOST and known.get(content) != _FAIL:
            text = f"{table} is stopped: {failed} of its last {len(last)} verdicts are 'fail'"
            raise TableStopped(text, table=table)

    def record(self, target: ReleaseTarget, status: str, content: str = "", why: str = "") -> None:
        """Append an acceptance, or a verdict unless the log has one at least as bad for the same content."""
        accepted = status == _ACCEPTED
        for _ in range(_TRIES):
            last, known, _recent = self._verdicts(target.table, accepted)
            if not accepted and _GRADES.index(known.get(content, _ACCEPTED)) >= _GRADES.index(status):
                return
            at = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
            body = {"content": content, "status": status, "reason": why, "number": last + 1, "at": at}
            entry = self._sealed("verdict", target, body)
            if create_once(private_folder(self._log(target.table)) / f"{last + 1:08d}", entry.data):
                return
        raise StoreUnavailable(f"{self._log(target.table)}: too many processes record verdicts at the same time")

    def _verdicts(self, table: str, accepted: bool = False) -> tuple[int, dict[str, str], dict[str, str]]:
        """Return the last number, all verdicts by content, and those since the last acceptance, newest first.

        Before an acceptance, and everywhere if ``accepted``, entries that cannot be verified are skipped. Files that
        are not named by a number come before the first entry.
        """
        known, recent = dict[str, str](), dict[str, str]()
        log, keys = records(self._log(table), _LOG), self.key.trusted.by_id
        numbers = {name: int(name) if name.isdecimal() else 0 for name in log}
        before = {f"{number - 1:08d}": number - 1 for number in numbers.values() if number > 1}
        for name, number in sorted({**numbers, **before}.items(), key=lambda one: one[1], reverse=True):
            try:
                entry = unseal(SignedRecord("verdict", log.get(name, b"")), keys)
                if name != f"{number:08d}" or (entry.target.table, entry.body["number"]) != (table, number):
                    raise NotTrusted("the entry belongs to another log or number")
            except PublicationRefused:
                if accepted:
                    continue
                text = f"verdict {safe_repr(name)} of {table} is missing, or not signed by a trusted key"
                raise TableStopped(text, table=table) from None
            content, status = entry.body["content"], entry.body["status"]
            accepted = accepted or status == _ACCEPTED
            for verdicts in (known, recent)[: 1 if accepted or status == _NOT_ASSESSABLE else 2]:
                verdicts.setdefault(content, status)  # verdicts on one content only get worse
        return max(numbers.values(), default=0), known, recent

    def _entries(self, table: str, suffix: str = ".json") -> Mapping[str, Any]:
        sealed = SignedRecord("lock", self._stored(table, suffix))
        try:
            lock = unseal(sealed, self.key.trusted)
        except PublicationRefused:
            return {}
        entries = dict(lock.body["entries"]) if lock.target == ReleaseTarget(table) else {}
        return entries if ("min_holders" in entries and "values" in entries) == (suffix == _VALUES) else {}

    def _stored(self, table: str, suffix: str = ".json") -> bytes:
        return records(self.private / "locks", f"lock of {table}", name := f"{quoted(table)}{suffix}").get(name, b"")

    def _sealed(self, kind: RecordKind, target: ReleaseTarget, body: Mapping[str, Any]) -> SignedRecord:
        digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
        return seal(Statement(kind, target, digest, body), self.key)

    def file(self, table: str, suffix: str = ".json") -> Location:
        """Return the path of the lock of ``table``, or with another suffix of its proposal or its published values."""
        return self.private / "locks" / f"{quoted(table)}{suffix}"

    def _log(self, table: str) -> Location:
        return self.private / "verdicts" / quoted(table)


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    """Return the leaves of nested mappings as strings, by their joined keys."""
    if not isinstance(value, Mapping):
        return {name: repr(value)}
    parts = [_flat(part, f"{name} {key!r}" if name else key) for key, part in value.items()]
    return {leaf: found for part in parts for leaf, found in part.items()}
