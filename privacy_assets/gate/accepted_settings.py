"""Accepted settings of a table, signed: the settings that determine its verdicts.

A run with other settings is rejected until a user accepts the difference.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from privacy_assets.errors import PublicationBlocked, SettingsDiffer
from privacy_assets.gate.envelope import (
    Payload,
    ReleaseTarget,
    SignedFile,
    quoted,
    shown_digest,
    sign_payload,
    stored_bytes,
    verified_payload,
)
from privacy_assets.gate.keys import SigningKey
from privacy_assets.gate.log import Log
from privacy_assets.infra.objects import Location
from privacy_assets.infra.storage import storage_of
from privacy_assets.metrics.policies import policy_digest, resolve_policy
from privacy_assets.metrics.registry import table_settings
from privacy_assets.policy import Policy
from privacy_assets.tables.declared import Declared

PROPOSED = ".proposed.json"
_MAX_LISTED = 1_000  # values of a list that are added and removed, and named
# of the table, besides the declarations of its columns
_FURTHER = ("shared_subjects", "public_bounds", "max_synthetic_rows")


def entries_of(policy: Policy, setup: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of accepted settings: the settings that determine the verdicts of a table,
    without private values.

    Args:
        policy: Policy in force.
        setup: All other settings of the table, see :meth:`.ResolvedTable.setup`.
    """
    split = setup.get("split") or {}
    resolved = resolve_policy(policy)
    entries = {
        "policy": policy.title,
        "policy digest": policy_digest(policy),
        "limits": {limit.key: limit.value for limit in policy.limits},
        "min_holders": policy.min_holders,
        "settings": resolved["settings"],
        "embedder": resolved["embedder"],
        "distributions": resolved.get("distributions"),
        "split": dict(split),
        "external": not split,
        "table settings": table_settings(setup.get("metrics", {})),
    }
    for name in (*Declared.signed_names(), *_FURTHER):
        entries[name] = setup.get(name)
    entries["drop"] = sorted(setup.get("drop") or ())
    return {name: value for name, value in entries.items() if value}


@dataclass(frozen=True, slots=True)
class AcceptedSettings:
    """Accepted settings of tables, signed, in ``private/accepted``. A file that is missing or not
    signed by a trusted key counts as empty.

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
        """Reject a run that differs from the accepted settings, and every run while the table is
        suspended.

        Args:
            table: Name of the table.
            policy: Policy of the run.
            setup: All other settings of the run, see :meth:`.ResolvedTable.setup`.
            content: Keyed fingerprint of synthetic rows. Their own failure does not suspend the
                table for these rows, so their attestation can be repeated.
            new: The run starts, so its settings may replace the accepted ones if the table has no
                verdict yet.
            columns: Kinds of the columns to accept, see
                :func:`~privacy_assets.tables.inference.columns_to_accept`. None: the columns are
                not known here, and are not compared.

        Returns:
            The entries that the run proposes.

        Raises:
            SettingsDiffer: If the run differs from the accepted settings. The proposed settings are
                stored, unsigned.
            TableSuspended: If the table is suspended.
        """
        state = Log(self.private, self.key).state(table)
        proposed = entries_of(policy, setup)
        lines = self.difference(table, proposed)
        signed_columns = self._entries(table).get("columns")
        if columns is not None:
            accepted_columns = dict(columns)
        else:  # an accepted change of other settings accepts no new names of columns
            accepted_columns = _without(signed_columns or {}, proposed.get("drop", ()))
        has_verdict = bool(state.verdicts or state.first)
        if accepted_columns:
            proposed["columns"] = accepted_columns
        if accepted_columns and signed_columns:
            lines = self.difference(table, proposed)
        if lines and (has_verdict or not new):
            storage_of(self.file(table, PROPOSED)).put(_proposal(proposed))
            title = (
                f"{table}: this run differs from the accepted settings of the table"
                " (accepted -> this run):"
            )
            text = "\n  ".join([title, *lines])
            raise SettingsDiffer(text, table=table, differences=tuple(lines))
        state.check_not_suspended(table, content)
        return proposed

    def columns(self, table: str) -> dict[str, str]:
        """Return the accepted columns of ``table``, or {} if it has no verdict or no
        accepted columns yet.

        Until the first verdict, each run accepts its own columns.

        Args:
            table: Name of the table.
        """
        state = Log(self.private, self.key).state(table)
        if not state.verdicts and not state.first:
            return {}
        return dict(self._entries(table).get("columns", {}))

    def sign(self, table: str, entries: Mapping[str, Any], why: str = "") -> None:
        """Sign ``entries`` as the accepted settings of ``table`` unless they are in force, and
        remove the proposal of them.

        Args:
            table: Name of the table.
            entries: Entries to sign, see :func:`entries_of`.
            why: Reason for the change, which is signed.
        """
        if self.difference(table, entries):
            body = {"entries": entries, "reason": why}
            signed_file = sign_payload(
                Payload("accepted_settings", ReleaseTarget(table), "", body), self.key
            )
            storage_of(self.file(table)).put(signed_file.data)
        if self._stored(table, PROPOSED) == _proposal(entries):
            self.file(table, PROPOSED).unlink(missing_ok=True)

    def end_proposal(self, table: str) -> None:
        """Remove the proposed settings: a run with the accepted ones was published after them."""
        self.file(table, PROPOSED).unlink(missing_ok=True)

    def difference(self, table: str, proposed: Mapping[str, Any]) -> list[str]:
        """Return one line for each accepted entry that ``proposed`` changes.

        Of lists, it names the values that are added and removed: up to 1,000 in whole, else their
        numbers and a digest.

        Args:
            table: Name of the table.
            proposed: Entries of the proposed settings.
        """
        in_force = dict(self._entries(table))
        if "columns" not in proposed:
            in_force.pop("columns", None)
        old = _flat(in_force)
        new = _flat(proposed)
        lines = []
        for name in {**new, **old}:
            old_value = old.get(name, _NOT_SET)
            new_value = new.get(name, _NOT_SET)
            if repr(old_value) != repr(new_value):  # 1, 1.0 and True are different settings
                lines.append(f"{name}: {self._change(table, old_value, new_value)}")
        return lines

    def digest(self, table: str, proposed: Mapping[str, Any]) -> str:
        """Return the digest of proposed settings and of the entries in force, from which they
        differ.

        Args:
            table: Name of the table.
            proposed: Entries of the proposed settings.
        """
        displayed = {"table": table, "in force": self._entries(table), "proposed": proposed}
        return shown_digest(displayed)

    def _change(self, table: str, old: Any, new: Any) -> str:
        """Describe the change of an entry."""
        if not isinstance(new, list | tuple) or not isinstance(old, list | tuple | _NotSet):
            return f"{old!r} -> {new!r}"
        before = {} if isinstance(old, _NotSet) else {repr(value): value for value in old}
        after = {repr(value): value for value in new}
        new_values = [value for text, value in after.items() if text not in before]
        removed = [value for text, value in before.items() if text not in after]
        if not new_values and not removed:
            return "the order or the repetition of the values changes"
        if len(new_values) + len(removed) > _MAX_LISTED:
            counts = f"{len(new_values):,} values added and {len(removed):,} removed"
            proposal = self.file(table, PROPOSED)
            return f"{counts} (SHA-256 {shown_digest(new)}; all are in {proposal})"
        changes = []
        if new_values:
            changes.append(f"added {new_values!r}")
        if removed:
            changes.append(f"removed {removed!r}")
        return ", ".join(changes)

    def _entries(self, table: str) -> Mapping[str, Any]:
        signed_file = SignedFile("accepted_settings", self._stored(table))
        try:
            accepted = verified_payload(signed_file, self.key.trusted)
        except PublicationBlocked:
            return {}
        if accepted.target != ReleaseTarget(table):
            return {}
        return dict(accepted.body["entries"])

    def _stored(self, table: str, suffix: str = ".json") -> bytes:
        name = f"{quoted(table)}{suffix}"
        return stored_bytes(self.private / "accepted", name, f"accepted settings of {table}")

    def file(self, table: str, suffix: str = ".json") -> Location:
        """Return the path of the accepted settings of a table, or of their proposal.

        Args:
            table: Name of the table.
            suffix: ``PROPOSED`` for the proposal.
        """
        return self.private / "accepted" / f"{quoted(table)}{suffix}"


def _proposal(entries: Mapping[str, Any]) -> bytes:
    """Return the bytes of proposed settings."""
    return json.dumps(entries, indent=2).encode()


def _without(columns: Mapping[str, str], dropped: Collection[str]) -> dict[str, str]:
    return {name: kind for name, kind in columns.items() if name not in dropped}


class _NotSet:
    """An entry that the settings do not have."""

    def __repr__(self) -> str:
        return "not set"


_NOT_SET = _NotSet()


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    """Return the leaves of nested mappings by their joined keys."""
    if not isinstance(value, Mapping):
        return {name: value}
    leaves = dict[str, Any]()
    for key, entry in value.items():
        path = f"{name} {key!r}" if name else key
        leaves |= _flat(entry, path)
    return leaves
