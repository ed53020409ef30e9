"""Signed lock of a table: the settings that determine its verdicts.

A run with other settings is rejected until a user accepts the difference.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from privacy_assets.errors import LockDiffers, PublicationRefused
from privacy_assets.gate.keys import SigningKey
from privacy_assets.gate.log import Log
from privacy_assets.gate.statements import (
    ReleaseTarget,
    SignedRecord,
    Statement,
    quoted,
    records,
    seal,
    shown_digest,
    unseal,
)
from privacy_assets.infra.files import put_atomic
from privacy_assets.infra.objects import Location
from privacy_assets.metrics.policies import policy_digest, resolve_policy
from privacy_assets.metrics.registry import table_settings
from privacy_assets.policy import Policy

PROPOSED = ".proposed.json"
_MOST_VALUES = 1_000  # values of a list that are shown in whole
_DECLARED = (
    "subject",
    "exact_ids",
    "kinds",
    "missing",
    "timezone",
    "new_values",
    "allowed_values",
    "prefix_lengths",
    "relations",
    "shared_subjects",
    "snapshots",
    "public_bounds",
    "max_synthetic_rows",
)


def entries_of(policy: Policy, setup: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a lock: the settings that determine the verdicts of a table, without
    private values.

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
    """Signed locks of tables in ``private/locks``. One that is missing or not signed by a trusted
    key counts as empty.

    Attributes:
        private: Private folder.
        key: Signing key.
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
            content: Keyed fingerprint of synthetic rows. Rows that failed are not stopped by their
                own failure, so their attestation can be repeated.
            new: The run starts, so its lock may replace the one in force if the table has no
                verdict yet.
            columns: Kinds of the columns to accept, see
                :func:`~privacy_assets.tables.inference.accepted_columns`. None: the columns are
                not known here, and are not compared.

        Returns:
            The entries of the lock that the run proposes.

        Raises:
            LockDiffers: If the run differs from the lock. The proposed lock is stored, unsigned.
            TableStopped: If the table is stopped.
        """
        state, proposed = Log(self.private, self.key).state(table), entries_of(policy, setup)
        lines, locked = self.difference(table, proposed), self._entries(table).get("columns")
        contract = dict(columns or {})
        if columns is None:  # an accepted change of other settings accepts no new names of columns
            dropped = proposed.get("drop", ())
            contract = {name: kind for name, kind in (locked or {}).items() if name not in dropped}
        replaces = new and not (state.verdicts or state.first)
        if contract:
            proposed["columns"] = contract
        if contract and locked:
            lines = self.difference(table, proposed)
        if lines and not replaces:
            put_atomic(self.file(table, PROPOSED), json.dumps(proposed, indent=2).encode())
            text = "\n  ".join(
                [
                    f"{table}: this run differs from the lock of the table (lock -> this run):",
                    *lines,
                ]
            )
            raise LockDiffers(text, table=table, differences=tuple(lines))
        state.check_not_stopped(table, content)
        return proposed

    def columns(self, table: str) -> dict[str, str]:
        """Return the contract of the columns in the lock of ``table``, or {} if it has no verdict
        or no contract yet.

        Until the first verdict, each run makes a new contract.
        """
        state = Log(self.private, self.key).state(table)
        return (
            dict(self._entries(table).get("columns", {})) if state.verdicts or state.first else {}
        )

    def sign(self, table: str, entries: Mapping[str, Any], why: str = "") -> None:
        """Sign ``entries`` as the lock of ``table`` unless they are in force, and remove the
        proposal of them.
        """
        if self.difference(table, entries):
            put_atomic(self.file(table), self._sealed(table, entries, why))
        if self._stored(table, PROPOSED) == json.dumps(entries, indent=2).encode():
            self.file(table, PROPOSED).unlink(missing_ok=True)

    def end_proposal(self, table: str) -> None:
        """Remove the proposed lock: a run with the lock in force was published after it."""
        self.file(table, PROPOSED).unlink(missing_ok=True)

    def difference(self, table: str, proposed: Mapping[str, Any]) -> list[str]:
        """Return one line for each entry of the lock that ``proposed`` changes.

        Of lists, it names the values that are added and removed: up to 1,000 in whole, else their
        numbers and a digest.
        """
        locked = dict(self._entries(table))
        if "columns" not in proposed:
            locked.pop("columns", None)
        old = _flat(locked)
        new = _flat(proposed)
        lines = []
        for name in {**new, **old}:
            was = old.get(name, _NOT_SET)
            now = new.get(name, _NOT_SET)
            if repr(was) != repr(now):  # 1, 1.0 and True are different settings
                lines.append(f"{name}: {self._change(table, was, now)}")
        return lines

    def digest(self, table: str, proposed: Mapping[str, Any]) -> str:
        """Return the digest of a proposed lock and of the entries in force, from which its entries
        differ.
        """
        return shown_digest(
            {"table": table, "in force": self._entries(table), "proposed": proposed}
        )

    def _change(self, table: str, was: Any, now: Any) -> str:
        """Describe the change of an entry."""
        if not isinstance(now, list | tuple) or not isinstance(was, list | tuple | _NotSet):
            return f"{was!r} -> {now!r}"
        before = {} if isinstance(was, _NotSet) else {repr(value): value for value in was}
        after = {repr(value): value for value in now}
        added = [value for text, value in after.items() if text not in before]
        removed = [value for text, value in before.items() if text not in after]
        if not added and not removed:
            return "the order or the repetition of the values changes"
        if len(added) + len(removed) <= _MOST_VALUES:
            parts = [
                f"{verb} {values!r}"
                for verb, values in (("added", added), ("removed", removed))
                if values
            ]
            return ", ".join(parts)
        counts = f"{len(added):,} values added and {len(removed):,} removed"
        return f"{counts} (SHA-256 {shown_digest(now)}; all are in {self.file(table, PROPOSED)})"

    def _entries(self, table: str) -> Mapping[str, Any]:
        sealed = SignedRecord("lock", self._stored(table))
        try:
            lock = unseal(sealed, self.key.trusted)
        except PublicationRefused:
            return {}
        return dict(lock.body["entries"]) if lock.target == ReleaseTarget(table) else {}

    def _stored(self, table: str, suffix: str = ".json") -> bytes:
        return records(
            self.private / "locks", f"lock of {table}", name := f"{quoted(table)}{suffix}"
        ).get(name, b"")

    def _sealed(self, table: str, entries: Mapping[str, Any], why: str) -> bytes:
        return seal(
            Statement("lock", ReleaseTarget(table), "", {"entries": entries, "reason": why}),
            self.key,
        ).data

    def file(self, table: str, suffix: str = ".json") -> Location:
        """Return the path of the lock of ``table``, or with another suffix of its proposal."""
        return self.private / "locks" / f"{quoted(table)}{suffix}"


class _NotSet:
    """An entry that a lock does not have."""

    def __repr__(self) -> str:
        return "not set"


_NOT_SET = _NotSet()


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    """Return the leaves of nested mappings by their joined keys."""
    if not isinstance(value, Mapping):
        return {name: value}
    leaves = dict[str, Any]()
    for key, part in value.items():
        leaves |= _flat(part, f"{name} {key!r}" if name else key)
    return leaves
