"""The log of a table: one chain of signed entries, from which the gate derives all that it
remembers of the table.

    private/log/<table>/00000001   first entry, created once; each further one has the SHA-256 of
                                   the one before
    private/log/<table>/state      signed sum of the entries up to a number, so that a run reads few
                                   entries

Entries are attempts, verdicts, releases, rollbacks, withdrawals, removals of old files, and
acceptances by a user. They are never removed. The log covers all partitions of a table.
"""

from __future__ import annotations

import datetime as dt
import errno
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from privacy_assets.errors import NotTrusted, PublicationRefused, StoreUnavailable, TableStopped
from privacy_assets.gate.keys import SigningKey
from privacy_assets.gate.statements import (
    ReleaseTarget,
    SignedRecord,
    Statement,
    quoted,
    records,
    seal,
    unseal,
    unverified,
)
from privacy_assets.infra.files import create_once, names, private_folder, put_atomic, reason
from privacy_assets.infra.objects import Location
from privacy_assets.policy import Limit, LimitOutcome, Policy
from privacy_assets.version import ENGINE_VERSION

if TYPE_CHECKING:
    from privacy_assets.gate.attestation import Attestation
    from privacy_assets.gate.snapshot import Snapshot

# more than MOST "fail" in the last LAST verdicts of a table or partition stop the table
LAST, MOST = 7, 3
# a further verdict on the same rows is recorded if it is higher
GRADES = ("", "undecided", "pass", "fail")
_STATE, _WHAT = "state", "log of a table"
_MOST_MISSING = 10**9  # consecutive entries
_TRIES = 1000  # maximum number of attempts if other processes take the next number
_SIDES = ("statistic", "bound", "at_most", "at_least")
# the last exceeds a limit whenever an earlier one does
_STRICTNESS = ("proven", "value", "conservative")


@dataclass(frozen=True, slots=True)
class Shown:
    """A release or rollback: the table that readers got.

    Attributes:
        part: Partition, see :attr:`.ReleaseTarget.part`.
        entry: Number of its entry.
        sha256: SHA-256 of the file.
        content: Keyed fingerprint of the rows, independent of their order.
    """

    part: str
    entry: int
    sha256: str
    content: str

    def same(self, sha256: str, content: str) -> bool:
        """Return True if file or rows are the same."""
        return self.sha256 == sha256 or self.content == content


@dataclass(frozen=True)
class LogState:
    """Sum of the entries of a log.

    Attributes:
        number: Number of the last entry. 0: there is none.
        head: SHA-256 of the last entry.
        first: Number of the last acceptance. Earlier entries may be damaged. 0: there is none.
        attempts: Content and number of each publication attempt, in order; see
            :meth:`next_attempt`.
        since: Number of attempts before those that count, by part.
        released: Number of attempts before the last release.
        verdicts: Worst verdict by content.
        recent: Content, verdict ("pass" or "fail") and part of the latest verdicts since the last
            acceptance, in order.
        failed: Failed limits: content, hash of the published rows, part, and the fields of the
            limit.
        shown: Releases and rollbacks, in order.
        moves: Number of the pointer to the current release, by part.
        withdrawn: Hash and content of withdrawn releases.
        ledger: SHA-256 of the ledger of disclosure after the last release. Empty: there is none.
    """

    number: int = 0
    head: str = ""
    first: int = 0
    attempts: tuple[tuple[str, int], ...] = ()
    since: Mapping[str, int] = field(default_factory=dict)
    released: int = 0
    verdicts: Mapping[str, str] = field(default_factory=dict)
    recent: tuple[tuple[str, str, str], ...] = ()
    failed: tuple[Mapping[str, Any], ...] = ()
    shown: tuple[Shown, ...] = ()
    moves: Mapping[str, int] = field(default_factory=dict)
    withdrawn: tuple[tuple[str, str], ...] = ()
    ledger: str = ""

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> LogState:
        """Create from the JSON of :func:`dataclasses.asdict`."""
        known = {one.name: stored[one.name] for one in fields(cls)}
        known |= {
            name: tuple(map(tuple, known[name])) for name in ("attempts", "recent", "withdrawn")
        }
        known |= {
            "failed": tuple(known["failed"]),
            "shown": tuple(Shown(**one) for one in known["shown"]),
        }
        return cls(**known)

    def after(self, entry: Statement, head: str) -> LogState:
        """Return the state after one more entry.

        Args:
            entry: The entry.
            head: SHA-256 of its file.
        """
        body, part = entry.body, entry.target.part
        state = replace(self, number=body["number"], head=head)
        content = body.get("content", "")
        match body["event"]:
            case "attempt":
                since = {**self.since, part: self.since.get(part, self.released)}
                return replace(
                    state,
                    since=since,
                    attempts=(*self.attempts, (content, self.next_attempt(part))),
                )
            case "verdict":
                known = {**self.verdicts, content: body["status"]}
                recent = [one for one in self.recent if one[0] != content]
                recent += [(content, body["status"], part)] if body["status"] != "undecided" else []
                rows = {"content": content, "sha256": body["sha256"], "part": part}
                failed = ({**rows, **limit} for limit in body["failed"])
                return replace(
                    state,
                    verdicts=known,
                    recent=tuple(recent[-200:]),
                    failed=(*self.failed, *failed),
                )
            case "release" | "rollback":
                shown = Shown(part, body["number"], body["sha256"], content)
                moves = {**self.moves, part: self.moves.get(part, 0) + 1}
                state = replace(state, shown=(*self.shown, shown), moves=moves)
                if body["event"] == "rollback":
                    return state
                released = len(self.attempts)
                return replace(
                    state,
                    released=released,
                    since={**self.since, part: released},
                    ledger=body["ledger"],
                )
            case "withdrawal":
                moves = {**self.moves, part: self.moves.get(part, 0) + 1}
                return replace(
                    state, moves=moves, withdrawn=(*self.withdrawn, (body["sha256"], content))
                )
            case "accept":
                return LogState.of({**body["state"], "number": body["number"], "head": head})
        return state

    def next_attempt(self, part: str) -> int:
        """Return the number of the next publication attempt of a partition.

        It counts the synthetic tables of all partitions that were scored and not released, since
        the last release of this partition. A partition without a release counts from the last
        release of the table before its first attempt.
        """
        released = {one.content for one in self.shown}
        since = self.since.get(part, self.released)
        return 1 + sum(content not in released for content, _ in self.attempts[since:])

    def history(self, target: ReleaseTarget) -> list[Shown]:
        """Return the releases and rollbacks of one table and partition, in order."""
        return [one for one in self.shown if one.part == target.part]

    def is_withdrawn(self, sha256: str, content: str) -> bool:
        """Return True if a release of this file or these rows was withdrawn."""
        return any(sha256 == one or content == other for one, other in self.withdrawn)

    def has_failed(self, rows: Snapshot, limit: Mapping[str, Any]) -> bool:
        """Return True if these rows failed exactly this limit, see :func:`failed_limits`."""
        asked = {
            "content": rows.content,
            "sha256": rows.sha256,
            "part": rows.target.part,
            **limit,
            "reason": "",
        }
        return any(asked == {**one, "reason": ""} for one in self.failed)

    def failures(self, policy: Policy, rows: Snapshot | Attestation, part: str | None) -> list[str]:
        """Return the limits that these rows failed earlier and for which ``policy`` has one at
        least as strict.

        Rows are the same if they are equal before or after rare values were replaced: a supplier
        who changes a cell within the group that the threshold rule publishes gets no further try.
        Neither adding a limit to the policy nor loosening one temporarily removes a failure.

        Args:
            policy: Policy in force.
            rows: The rows, with ``content`` before and ``sha256`` after the replacement.
            part: Partition, see :attr:`.ReleaseTarget.part`. None: all.
        """
        own = []
        for one in self.failed:
            is_same = one["content"] == rows.content or one["sha256"] == rows.sha256
            if is_same and part in (None, one["part"]):
                own.append(one)
        strict = [one for one in own if any(_as_strict(limit, one) for limit in policy.limits)]
        found = [Limit(**{name: one[name] for name in _SIDES}) for one in strict]
        return [
            f"{one.key} {'at most' if one.at_least is None else 'at least'} {one.value:g}"
            for one in found
        ]

    def check_not_stopped(self, table: str, content: str = "") -> None:
        """Raise TableStopped if ``table`` failed too often, unless ``content`` itself failed."""
        parts = {part for _, _, part in self.recent}
        for own in [
            self.recent,
            *([one for one in self.recent if one[2] == part] for part in sorted(parts)),
        ]:
            last = [status for _, status, _ in own[-LAST:]]
            if last.count("fail") > MOST and self.verdicts.get(content) != "fail":
                text = (
                    f"{table} is stopped: {last.count('fail')} of its last {len(last)} verdicts"
                    " are 'fail'"
                )
                raise TableStopped(text, table=table)


Facts = Mapping[str, Any]
Make = Callable[[LogState], Facts | None]
Read = Callable[[str], LogState]


@dataclass(frozen=True, slots=True)
class Log:
    """The logs of all tables.

    Attributes:
        private: Private folder.
        key: Signing key.

    Raises:
        TableStopped: On use, if an entry since the last acceptance is missing, or is not signed by
            a trusted key.
        StoreUnavailable: On use, if the log cannot be read or written.
    """

    private: Location
    key: SigningKey

    def state(self, table: str) -> LogState:
        """Return what the log of ``table`` adds up to."""
        for _ in range(3):  # a list of files that are created meanwhile can have gaps
            state, problem = self._read(table)
            if not problem:
                return state
        raise TableStopped(
            f"{problem} of the log of {table} is missing, or not signed by a trusted key",
            table=table,
        )

    def append(
        self, target: ReleaseTarget, event: str, make: Make, read: Read | None = None
    ) -> LogState:
        """Append one entry.

        Args:
            target: Table, and partition if the entry is about one.
            event: Kind of the entry.
            make: Returns the facts of the entry in the given state, or None for no entry. No other
                entry can come in between, because the next number is created once. Called again if
                another process takes it.
            read: Reads the state of a table. None: :meth:`state`.

        Returns:
            The state after the entry, or the current one if there is no entry.
        """
        for _ in range(_TRIES):
            state = (read or self.state)(target.table)
            if (facts := make(state)) is None:
                return state
            if after := self._create(target, state, {"event": event, **facts}):
                return after
        raise StoreUnavailable(
            f"{self._folder(target.table)}: too many processes write entries at the same time"
        )

    def believed(self, table: str) -> LogState:
        """Return the sum of the entries, of which those that cannot be verified only make the gate
        stricter.
        """
        return self._read(table, accept=True)[0]

    def accept(
        self,
        table: str,
        why: str,
        lost: Mapping[str, Any],
        failed: int,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Let a stopped table run again, and count its verdicts from now on.

        The log continues from :meth:`believed`.

        Args:
            table: Name of the table.
            why: Reason, which is signed.
            lost: Fields of the state to replace, for what the log or the private folder has lost.
            failed: Number of lost releases, which count as failed verdicts, at most ``MOST``.
            check: Called before the entry is made, and raises if the table must not be accepted in
                its present state.
        """

        def make(state: LogState) -> Facts:
            check()
            number = state.number + 1
            recent = tuple((f"lost {number} {one}", "fail", "") for one in range(min(failed, MOST)))
            accepted = asdict(replace(state, first=number, recent=recent, **lost))
            return {"reason": why, "lost": len(recent), "state": accepted}

        self.append(ReleaseTarget(table), "accept", make, self.believed)

    def entries(self, table: str) -> Iterator[tuple[int, Statement | None, str]]:
        """Yield number, statement and problem of each entry, after verifying signature and chain of
        all of them.

        A problem is a sentence without a final period; "" for a sound entry. A removed entry has no
        statement.
        """
        before, last, keys = "", 0, self.key.trusted.by_id
        for number in sorted(self._numbers(table)):
            if number > last + 1:
                yield (
                    last + 1,
                    None,
                    "is missing"
                    if number == last + 2
                    else f"and all up to {number - 1} are missing",
                )
            data, last = self._data(table, number), number
            try:
                entry = self._entry(table, number, data, keys)
                accepted = entry.body["event"] == "accept"
                problem = (
                    ""
                    if accepted or entry.body["before"] == before
                    else "does not follow the entry before it"
                )
                yield number, entry, problem
            except PublicationRefused as error:
                yield number, unverified(SignedRecord("entry", data)), error.event
            before = hashlib.sha256(data).hexdigest()

    def _read(self, table: str, accept: bool = False) -> tuple[LogState, str]:
        """Return the state, and the first faulty entry since the last acceptance, or "".

        Args:
            table: Name of the table.
            accept: Count entries that cannot be verified.
        """
        state, keys = self._stored(table), self.key.trusted.by_id
        numbers = self._numbers(table)  # after the state, which is not ahead of them then
        expected = first = max(state.first, 1)
        while expected in numbers:
            expected += 1
        last = max([state.number, *numbers, first - 1])
        problem = f"entry {expected}" if expected <= last else ""
        for number in sorted(number for number in numbers if number >= max(state.number, 1)):
            data = self._data(table, number)
            head = hashlib.sha256(data).hexdigest()
            if number == state.number:
                problem = problem or ("" if head == state.head else f"entry {number}")
                continue
            try:
                entry = self._entry(table, number, data, keys)
                if entry.body["event"] == "accept":
                    problem = ""
                elif (entry.body["number"], entry.body["before"]) != (state.number + 1, state.head):
                    raise NotTrusted("the entry does not follow the one before it")
                state = state.after(entry, head)
            except (PublicationRefused, KeyError, TypeError, ValueError, AttributeError):
                problem = problem or f"entry {number}"
                state = _believed(state, number, head, data if accept else b"")
        return state, problem

    def _entry(self, table: str, number: int, data: bytes, keys: Mapping[str, Any]) -> Statement:
        entry = unseal(SignedRecord("entry", data), keys)
        if (entry.target.table, entry.body["number"]) != (table, number):
            raise NotTrusted("the entry belongs to another log or number")
        return entry

    def _create(self, target: ReleaseTarget, before: LogState, facts: Facts) -> LogState | None:
        """Create the entry and store the state after it, or return None if the number was taken."""
        at = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        body = {
            "number": before.number + 1,
            "before": before.head,
            "at": at,
            "engine": ENGINE_VERSION,
            **facts,
        }
        entry, folder = Statement("entry", target, "", body), self._folder(target.table)
        data = seal(entry, self.key).data
        try:
            if not create_once(private_folder(folder) / _name(before.number + 1), data):
                return None
        except OSError as error:
            raise StoreUnavailable.of(
                f"the log cannot be written ({reason(error)})", error, folder
            ) from None
        state = before.after(entry, hashlib.sha256(data).hexdigest())
        # the state is the sum of the entries, so without it a reader adds them up
        with suppress(OSError):
            stored = seal(
                Statement("state", ReleaseTarget(target.table), "", asdict(state)), self.key
            )
            put_atomic(folder / _STATE, stored.data)
        return state

    def _stored(self, table: str) -> LogState:
        """Return the stored state, or the empty one if there is none that a trusted key signed for
        ``table``.
        """
        data = records(self._folder(table), _WHAT, _STATE).get(_STATE, b"")
        try:
            found = unseal(SignedRecord("state", data), self.key.trusted)
            return LogState.of(found.body) if found.target == ReleaseTarget(table) else LogState()
        except (PublicationRefused, KeyError, TypeError):
            return LogState()

    def _numbers(self, table: str) -> set[int]:
        """Return the numbers of all entries. Other files have no effect.

        Raises:
            StoreUnavailable: If a number is too large, so that an acceptance could not be numbered
                after it.
        """
        try:
            found = names(self._folder(table))
        except OSError as error:
            raise StoreUnavailable.of(
                f"the {_WHAT} cannot be read ({reason(error)})", error
            ) from None
        numbers = {name: int(name) for name in found if name.isascii() and name.isdecimal()}
        entries = {
            number for name, number in numbers.items() if number > 0 and name == _name(number)
        }
        for before, number in pairwise([0, *sorted(entries)]):
            if number - before > _MOST_MISSING:
                path = str(self._folder(table) / _name(number))
                text = f"{path}: implausible entry number"
                raise StoreUnavailable(text, path=path, errno=errno.EINVAL, fix="remove this file")
        return entries

    def _data(self, table: str, number: int) -> bytes:
        return records(self._folder(table), _WHAT, _name(number)).get(_name(number), b"")

    def _folder(self, table: str) -> Location:
        return self.private / "log" / quoted(table)


def failed_limits(outcomes: Iterable[LimitOutcome]) -> list[dict[str, Any]]:
    """Return the limits that failed, for a verdict in the log. With more rows, "undecided" may
    pass.
    """
    limits = [outcome for outcome in outcomes if outcome.status == "fail"]
    return [
        {**{name: getattr(one.limit, name) for name in _SIDES}, "reason": one.reason}
        for one in limits
    ]


def _believed(state: LogState, number: int, head: str, data: bytes) -> LogState:
    """Return the state after an entry that cannot be verified: only facts that make the gate
    stricter count.
    """
    after, entry = state, unverified(SignedRecord("entry", data))
    try:
        if entry and entry.body["event"] in ("attempt", "withdrawal"):
            after = state.after(entry, head)
        elif entry and entry.body["event"] in ("verdict", "release", "rollback"):
            found = state.after(entry, head)
            after = replace(state, failed=found.failed, shown=found.shown, moves=found.moves)
    except (KeyError, TypeError, ValueError, AttributeError):
        after = state
    return replace(after, number=number, head=head)


def _name(number: int) -> str:
    return f"{number:08d}"


def _as_strict(limit: Limit, failed: Mapping[str, Any]) -> bool:
    """Return True if every value that exceeds ``failed`` also exceeds ``limit``."""
    if limit.statistic != failed["statistic"] or _STRICTNESS.index(limit.bound) < _STRICTNESS.index(
        failed["bound"]
    ):
        return False
    if limit.at_most is not None:
        return failed["at_most"] is not None and limit.at_most <= float(failed["at_most"])
    return failed["at_least"] is not None and limit.value >= float(failed["at_least"])
