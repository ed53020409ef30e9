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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from privacy_assets.errors import NotTrusted, PublicationBlocked, StoreUnavailable, TableSuspended
from privacy_assets.gate.envelope import (
    Payload,
    ReleaseTarget,
    SignedFile,
    quoted,
    sign_payload,
    stored_bytes,
    unverified,
    verified_payload,
)
from privacy_assets.gate.keys import SigningKey
from privacy_assets.infra.files import reason
from privacy_assets.infra.objects import Location
from privacy_assets.infra.storage import storage_of
from privacy_assets.policy import Limit, LimitOutcome, Policy
from privacy_assets.version import PACKAGE_VERSION

if TYPE_CHECKING:
    from privacy_assets.gate.snapshot import Snapshot

# more than MAX_FAILED "fail" in the last N_LAST verdicts of a table or partition suspend the table
N_LAST = 7
MAX_FAILED = 3
# a further verdict on the same rows is recorded if it is higher
GRADES = ("", "undecided", "pass", "fail")
_STATE_FILE = "state"
_WHAT = "log of a table"  # in messages
_MAX_MISSING = 10**9  # consecutive entries
_MAX_RECENT = 200  # verdicts that the state contains
_N_READS = 3  # a list of files that are created meanwhile can have gaps
_N_TRIES = 1000  # if other processes take the next number
_LIMIT_FIELDS = ("statistic", "bound", "at_most", "at_least")
# the last exceeds a limit whenever an earlier one does
_STRICTNESS = ("proven", "value", "conservative")


Facts = Mapping[str, Any]  # what an entry contains besides number, time and package version


class Rows(Protocol):
    """Rows of a synthetic table: a snapshot, an attestation or a publication."""

    @property
    def sha256(self) -> str:
        """SHA-256 of the file, after rare values were replaced."""

    @property
    def content(self) -> str:
        """Keyed fingerprint of the rows before rare values were replaced, independent of their
        order.
        """


@dataclass(frozen=True, slots=True)
class Publication:
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

    def is_same(self, rows: Rows) -> bool:
        """Return True if file or rows are the same.

        Args:
            rows: Rows to compare.
        """
        return self.sha256 == rows.sha256 or self.content == rows.content


class Attempt(NamedTuple):
    """A publication attempt.

    Attributes:
        content: Keyed fingerprint of the rows.
        number: Number of the attempt, see :meth:`LogState.next_attempt`.
    """

    content: str
    number: int


class RecentVerdict(NamedTuple):
    """A verdict since the last acceptance.

    Attributes:
        content: Keyed fingerprint of the rows.
        status: "pass" or "fail".
        part: Partition, see :attr:`.ReleaseTarget.part`.
    """

    content: str
    status: str
    part: str


class Withdrawal(NamedTuple):
    """A withdrawn release.

    Attributes:
        sha256: SHA-256 of the file.
        content: Keyed fingerprint of the rows.
    """

    sha256: str
    content: str


class CheckedEntry(NamedTuple):
    """An entry of a log, after its signature and its link to the entry before were verified.

    Attributes:
        number: Number of the entry.
        payload: The entry. None: it was removed, or cannot be read.
        problem: A sentence without a final period. Empty: the entry is sound.
    """

    number: int
    payload: Payload | None
    problem: str


@dataclass(frozen=True)
class LogState:
    """Sum of the entries of a log.

    Attributes:
        number: Number of the last entry. 0: there is none.
        head: SHA-256 of the last entry.
        first: Number of the last acceptance. Earlier entries may be damaged. 0: there is none.
        attempts: Publication attempts, in order.
        n_attempts_before: Number of attempts before those that count, by part.
        n_attempts_before_release: Number of attempts before the last release.
        verdicts: Worst verdict by content.
        recent: Latest verdicts since the last acceptance, in order.
        failed: Failed limits: content, hash of the published rows, part, and the fields of the
            limit.
        publications: Releases and rollbacks, in order.
        pointer_numbers: Number of the pointer to the current release, by part.
        withdrawn: Withdrawn releases.
        ledger: SHA-256 of the ledger of disclosure after the last release. Empty: there is none.
    """

    number: int = 0
    head: str = ""
    first: int = 0
    attempts: tuple[Attempt, ...] = ()
    n_attempts_before: Mapping[str, int] = field(default_factory=dict)
    n_attempts_before_release: int = 0
    verdicts: Mapping[str, str] = field(default_factory=dict)
    recent: tuple[RecentVerdict, ...] = ()
    failed: tuple[Mapping[str, Any], ...] = ()
    publications: tuple[Publication, ...] = ()
    pointer_numbers: Mapping[str, int] = field(default_factory=dict)
    withdrawn: tuple[Withdrawal, ...] = ()
    ledger: str = ""

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> LogState:
        """Create from the JSON of :func:`dataclasses.asdict`.

        Args:
            stored: The JSON. Tuples are lists in it.
        """
        values = {attribute.name: stored[attribute.name] for attribute in fields(cls)}
        values["attempts"] = tuple(Attempt(*attempt) for attempt in values["attempts"])
        values["recent"] = tuple(RecentVerdict(*verdict) for verdict in values["recent"])
        values["failed"] = tuple(values["failed"])
        values["publications"] = tuple(
            Publication(**publication) for publication in values["publications"]
        )
        values["withdrawn"] = tuple(Withdrawal(*withdrawal) for withdrawal in values["withdrawn"])
        return cls(**values)

    def after(self, entry: Payload, head: str) -> LogState:
        """Return the state after one more entry.

        Args:
            entry: The entry.
            head: SHA-256 of its file.
        """
        body = entry.body
        part = entry.target.part
        state = replace(self, number=body["number"], head=head)
        match body["event"]:
            case "attempt":
                return state._after_attempt(body, part)
            case "verdict":
                return state._after_verdict(body, part)
            case "release":
                return state._after_release(body, part)
            case "rollback":
                return state._after_publication(body, part)
            case "withdrawal":
                return state._after_withdrawal(body, part)
            case "accept":
                return LogState.of({**body["state"], "number": body["number"], "head": head})
        return state

    def _after_attempt(self, body: Facts, part: str) -> LogState:
        since = {
            **self.n_attempts_before,
            part: self.n_attempts_before.get(part, self.n_attempts_before_release),
        }
        attempt = Attempt(body.get("content", ""), self.next_attempt(part))
        return replace(self, n_attempts_before=since, attempts=(*self.attempts, attempt))

    def _after_verdict(self, body: Facts, part: str) -> LogState:
        content = body.get("content", "")
        recent = [verdict for verdict in self.recent if verdict.content != content]
        if body["status"] != "undecided":
            recent.append(RecentVerdict(content, body["status"], part))
        rows = {"content": content, "sha256": body["sha256"], "part": part}
        failed = [{**rows, **limit} for limit in body["failed"]]
        return replace(
            self,
            verdicts={**self.verdicts, content: body["status"]},
            recent=tuple(recent[-_MAX_RECENT:]),
            failed=(*self.failed, *failed),
        )

    def _after_publication(self, body: Facts, part: str) -> LogState:
        publication = Publication(part, body["number"], body["sha256"], body.get("content", ""))
        return replace(
            self, publications=(*self.publications, publication), pointer_numbers=self._moved(part)
        )

    def _after_release(self, body: Facts, part: str) -> LogState:
        n_attempts = len(self.attempts)
        return replace(
            self._after_publication(body, part),
            n_attempts_before_release=n_attempts,
            n_attempts_before={**self.n_attempts_before, part: n_attempts},
            ledger=body["ledger"],
        )

    def _after_withdrawal(self, body: Facts, part: str) -> LogState:
        withdrawal = Withdrawal(body["sha256"], body.get("content", ""))
        return replace(
            self, pointer_numbers=self._moved(part), withdrawn=(*self.withdrawn, withdrawal)
        )

    def _moved(self, part: str) -> dict[str, int]:
        return {**self.pointer_numbers, part: self.n_moves(part) + 1}

    def n_moves(self, part: str) -> int:
        """Return the number of releases, rollbacks and withdrawals of a partition.

        Args:
            part: Partition, see :attr:`.ReleaseTarget.part`.
        """
        return self.pointer_numbers.get(part, 0)

    def next_attempt(self, part: str) -> int:
        """Return the number of the next publication attempt of a partition.

        It counts the synthetic tables of all partitions that were scored and not released, since
        the last release of this partition. A partition without a release counts from the last
        release of the table before its first attempt.

        Args:
            part: Partition, see :attr:`.ReleaseTarget.part`.
        """
        released = {publication.content for publication in self.publications}
        since = self.n_attempts_before.get(part, self.n_attempts_before_release)
        n_unreleased = 0
        for attempt in self.attempts[since:]:
            n_unreleased += attempt.content not in released
        return 1 + n_unreleased

    def history(self, target: ReleaseTarget) -> list[Publication]:
        """Return the releases and rollbacks of one table and partition, in order.

        Args:
            target: Table and partition.
        """
        return [publication for publication in self.publications if publication.part == target.part]

    def last_publication(self, target: ReleaseTarget) -> Publication | None:
        """Return the last release or rollback of one table and partition, or None.

        Args:
            target: Table and partition.
        """
        history = self.history(target)
        if not history:
            return None
        return history[-1]

    def is_withdrawn(self, sha256: str, content: str) -> bool:
        """Return True if a release of this file or these rows was withdrawn.

        Args:
            sha256: SHA-256 of the file.
            content: Keyed fingerprint of the rows.
        """
        for withdrawal in self.withdrawn:
            if withdrawal.sha256 == sha256 or withdrawal.content == content:
                return True
        return False

    def has_failed(self, snapshot: Snapshot, limit: Mapping[str, Any]) -> bool:
        """Return True if these rows failed exactly this limit.

        Args:
            snapshot: The rows.
            limit: Fields of the limit, see :func:`failed_limits`.
        """
        expected = {
            "content": snapshot.content,
            "sha256": snapshot.sha256,
            "part": snapshot.target.part,
            **limit,
            "reason": "",
        }
        return any(expected == {**failure, "reason": ""} for failure in self.failed)

    def failures(self, policy: Policy, rows: Rows, part: str | None) -> list[str]:
        """Return the limits that these rows failed earlier and for which ``policy`` has one at
        least as strict.

        Rows are the same if they are equal before or after rare values were replaced: a supplier
        who changes a cell within the group that the threshold rule publishes gets no further try.
        Neither adding a limit to the policy nor loosening one temporarily removes a failure.

        Args:
            policy: Policy in force.
            rows: The rows.
            part: Partition, see :attr:`.ReleaseTarget.part`. None: all.
        """
        lines = []
        for failure in self.failed:
            is_same = failure["content"] == rows.content or failure["sha256"] == rows.sha256
            if not is_same or part not in (None, failure["part"]):
                continue
            if any(_is_as_strict(limit, failure) for limit in policy.limits):
                lines.append(_limit_line(failure))
        return lines

    def check_not_suspended(self, table: str, content: str = "") -> None:
        """Raise TableSuspended if the table, or one of its partitions, failed too often.

        Args:
            table: Name of the table.
            content: Keyed fingerprint of rows for which, if they failed, failures do not suspend
                the table.
        """
        if self.verdicts.get(content) == "fail":
            return
        _check_last_verdicts(table, self.recent)
        for part in sorted({verdict.part for verdict in self.recent}):
            verdicts = [verdict for verdict in self.recent if verdict.part == part]
            _check_last_verdicts(table, verdicts)


def _check_last_verdicts(table: str, verdicts: Sequence[RecentVerdict]) -> None:
    """Raise TableSuspended if more than ``MAX_FAILED`` of the last verdicts are "fail"."""
    last = verdicts[-N_LAST:]
    n_failed = sum(verdict.status == "fail" for verdict in last)
    if n_failed > MAX_FAILED:
        text = f"{table} is suspended: {n_failed} of its last {len(last)} verdicts are 'fail'"
        raise TableSuspended(text, table=table)


FactsOf = Callable[[LogState], Facts | None]  # facts of the next entry; None: there is no entry
ReadState = Callable[[str], LogState]  # name of a table -> state of its log


@dataclass(frozen=True, slots=True)
class Log:
    """The logs of all tables.

    Attributes:
        private: Private folder.
        key: Signing key.

    Raises:
        TableSuspended: On use, if an entry since the last acceptance is missing, or is not signed
            by a trusted key.
        StoreUnavailable: On use, if the log cannot be read or written.
    """

    private: Location
    key: SigningKey

    def state(self, table: str) -> LogState:
        """Return what the log of ``table`` adds up to.

        Args:
            table: Name of the table.
        """
        for _ in range(_N_READS):
            state, problem = self._read(table)
            if not problem:
                return state
        raise TableSuspended(
            f"{problem} of the log of {table} is missing, or not signed by a trusted key",
            table=table,
        )

    def append(
        self,
        target: ReleaseTarget,
        event: str,
        facts_of: FactsOf,
        read_state: ReadState | None = None,
    ) -> LogState:
        """Append one entry.

        Args:
            target: Table, and partition if the entry is about one.
            event: Kind of the entry.
            facts_of: Returns the facts of the entry in the given state, or None for no entry. No
                other entry can come in between, because the next number is created once. Called
                again if another process takes it.
            read_state: Reads the state of a table. None: :meth:`state`.

        Returns:
            The state after the entry, or the current one if there is no entry.
        """
        read_state = read_state or self.state
        for _ in range(_N_TRIES):
            before = read_state(target.table)
            facts = facts_of(before)
            if facts is None:
                return before
            after = self._create(target, before, {"event": event, **facts})
            if after is not None:
                return after
        raise StoreUnavailable(
            f"{self._folder(target.table)}: too many processes write entries at the same time"
        )

    def count_attempt(self, snapshot: Snapshot) -> int:
        """Return the number of this publication attempt, from 1, and count it; see
        :meth:`LogState.next_attempt`.

        The same rows are the same attempt, independent of run, row order and file. Other rows are
        another attempt, independent of training rows, settings and generator.

        Args:
            snapshot: Synthetic table.
        """

        def facts_of_attempt(state: LogState) -> Facts | None:
            if snapshot.content in dict(state.attempts):
                return None
            return {"content": snapshot.content}

        state = self.append(snapshot.target, "attempt", facts_of_attempt)
        return dict(state.attempts)[snapshot.content]

    def record_verdict(
        self, snapshot: Snapshot, status: str, outcomes: Iterable[LimitOutcome]
    ) -> None:
        """Record a verdict, unless the log has one at least as bad with the same failed limits for
        these rows.

        Args:
            snapshot: Synthetic table.
            status: "pass", "fail" or "undecided".
            outcomes: Outcomes of the limits.
        """

        def facts_of_verdict(state: LogState) -> Facts | None:
            new_limits = []
            for limit in failed_limits(outcomes):
                if not state.has_failed(snapshot, limit):
                    new_limits.append(limit)
            grade = GRADES.index(state.verdicts.get(snapshot.content, ""))
            if not new_limits and grade >= GRADES.index(status):
                return None
            return {
                "content": snapshot.content,
                "sha256": snapshot.sha256,
                "status": status,
                "failed": new_limits,
            }

        self.append(snapshot.target, "verdict", facts_of_verdict)

    def believed(self, table: str) -> LogState:
        """Return the sum of the entries, of which those that cannot be verified only make the gate
        stricter.

        Args:
            table: Name of the table.
        """
        state, _ = self._read(table, with_unverified=True)
        return state

    def accept(
        self,
        table: str,
        why: str,
        replacements: Mapping[str, Any],
        n_lost: int,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Let a suspended table run again, and count its verdicts from now on.

        The log continues from :meth:`believed`.

        Args:
            table: Name of the table.
            why: Reason, which is signed.
            replacements: Fields of the state to replace, for what the log or the private folder has
                lost.
            n_lost: Number of lost releases, of which at most ``MAX_FAILED`` count as failed
                verdicts.
            check: Called before the entry is made, and raises if the table must not be accepted in
                its present state.
        """

        def facts_of_acceptance(state: LogState) -> Facts:
            check()
            number = state.number + 1
            recent = []
            for i in range(min(n_lost, MAX_FAILED)):
                recent.append(RecentVerdict(f"lost {number} {i}", "fail", ""))
            accepted = replace(state, first=number, recent=tuple(recent), **replacements)
            return {"reason": why, "lost": len(recent), "state": asdict(accepted)}

        self.append(ReleaseTarget(table), "accept", facts_of_acceptance, self.believed)

    def entries(self, table: str) -> Iterator[CheckedEntry]:
        """Yield all entries, after verifying signature and chain of each.

        Args:
            table: Name of the table.
        """
        head = ""
        last = 0
        keys = self.key.trusted.by_id
        for number in sorted(self._numbers(table)):
            if number == last + 2:
                yield CheckedEntry(last + 1, None, "is missing")
            elif number > last + 2:
                problem = f"and all up to {number - 1} are missing"
                yield CheckedEntry(last + 1, None, problem)
            data = self._data(table, number)
            try:
                entry = self._entry(table, number, data, keys)
                is_linked = entry.body["event"] == "accept" or entry.body["before"] == head
                problem = "" if is_linked else "does not follow the entry before it"
                yield CheckedEntry(number, entry, problem)
            except PublicationBlocked as error:
                entry_as_read = unverified(SignedFile("entry", data))
                yield CheckedEntry(number, entry_as_read, error.event)
            last = number
            head = hashlib.sha256(data).hexdigest()

    def _read(self, table: str, with_unverified: bool = False) -> tuple[LogState, str]:
        """Return the state, and the first faulty entry since the last acceptance, or "".

        Args:
            table: Name of the table.
            with_unverified: Count entries that cannot be verified, see :func:`_with_unverified`.
        """
        state = self._stored(table)
        keys = self.key.trusted.by_id
        numbers = self._numbers(table)  # after the state, which is not ahead of them then
        problem = _first_missing(state, numbers)
        first_unread = max(state.number, 1)
        for number in sorted(numbers):
            if number < first_unread:
                continue
            data = self._data(table, number)
            head = hashlib.sha256(data).hexdigest()
            if number == state.number:
                if head != state.head:
                    problem = problem or f"entry {number}"
                continue
            try:
                entry = self._entry(table, number, data, keys)
                if entry.body["event"] == "accept":
                    problem = ""
                elif (entry.body["number"], entry.body["before"]) != (state.number + 1, state.head):
                    raise NotTrusted("the entry does not follow the one before it")
                state = state.after(entry, head)
            except (PublicationBlocked, KeyError, TypeError, ValueError, AttributeError):
                problem = problem or f"entry {number}"
                if with_unverified:
                    state = _with_unverified(state, data)
                state = replace(state, number=number, head=head)
        return state, problem

    def _entry(self, table: str, number: int, data: bytes, keys: Mapping[str, Any]) -> Payload:
        entry = verified_payload(SignedFile("entry", data), keys)
        if (entry.target.table, entry.body["number"]) != (table, number):
            raise NotTrusted("the entry belongs to another log or number")
        return entry

    def _create(self, target: ReleaseTarget, before: LogState, facts: Facts) -> LogState | None:
        """Create the entry and store the state after it, or return None if the number was taken."""
        number = before.number + 1
        body = {
            "number": number,
            "before": before.head,
            "at": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            "package_version": PACKAGE_VERSION,
            **facts,
        }
        entry = Payload("entry", target, "", body)
        folder = self._folder(target.table)
        data = sign_payload(entry, self.key).data
        try:
            storage_of(folder).make_private()
            is_created = storage_of(folder / _file_name(number)).create(data)
        except OSError as error:
            raise StoreUnavailable.of(
                f"the log cannot be written ({reason(error)})", error, folder
            ) from None
        if not is_created:
            return None
        state = before.after(entry, hashlib.sha256(data).hexdigest())
        # the state is the sum of the entries, so without it a reader adds them up
        with suppress(OSError):
            payload = Payload("state", ReleaseTarget(target.table), "", asdict(state))
            storage_of(folder / _STATE_FILE).put(sign_payload(payload, self.key).data)
        return state

    def _stored(self, table: str) -> LogState:
        """Return the stored state, or the empty one if there is none that a trusted key signed for
        ``table``.
        """
        data = stored_bytes(self._folder(table), _STATE_FILE, _WHAT)
        try:
            payload = verified_payload(SignedFile("state", data), self.key.trusted)
            if payload.target != ReleaseTarget(table):
                return LogState()
            return LogState.of(payload.body)
        except (PublicationBlocked, KeyError, TypeError):
            return LogState()

    def _numbers(self, table: str) -> set[int]:
        """Return the numbers of all entries. Other files have no effect.

        Raises:
            StoreUnavailable: If a number is too large, so that an acceptance could not be numbered
                after it.
        """
        folder = self._folder(table)
        try:
            file_names = storage_of(folder).names()
        except OSError as error:
            raise StoreUnavailable.of(
                f"the {_WHAT} cannot be read ({reason(error)})", error
            ) from None
        numbers = set()
        for name in file_names:
            if name.isascii() and name.isdecimal():
                number = int(name)
                if number > 0 and name == _file_name(number):
                    numbers.add(number)
        for before, number in pairwise([0, *sorted(numbers)]):
            if number - before > _MAX_MISSING:
                path = str(folder / _file_name(number))
                text = f"{path}: implausible entry number"
                raise StoreUnavailable(text, path=path, errno=errno.EINVAL, fix="remove this file")
        return numbers

    def _data(self, table: str, number: int) -> bytes:
        name = _file_name(number)
        return stored_bytes(self._folder(table), name, _WHAT)

    def _folder(self, table: str) -> Location:
        return self.private / "log" / quoted(table)


def failed_limits(outcomes: Iterable[LimitOutcome]) -> list[dict[str, Any]]:
    """Return the limits that failed, for a verdict in the log. With more rows, "undecided" may
    pass.

    Args:
        outcomes: Outcomes of limits.

    Returns:
        Fields of each limit, and the reason of its outcome.
    """
    limits = []
    for outcome in outcomes:
        if outcome.status == "fail":
            limit: dict[str, Any] = {name: getattr(outcome.limit, name) for name in _LIMIT_FIELDS}
            limit["reason"] = outcome.reason
            limits.append(limit)
    return limits


def _first_missing(state: LogState, numbers: Set[int]) -> str:
    """Return the first entry since the last acceptance that is missing, or ""."""
    first = max(state.first, 1)
    expected = first
    while expected in numbers:
        expected += 1
    last = max([state.number, *numbers, first - 1])
    if expected > last:
        return ""
    return f"entry {expected}"


def _with_unverified(state: LogState, data: bytes) -> LogState:
    """Add the facts of an entry that cannot be verified, but only those that make the gate
    stricter.
    """
    entry = unverified(SignedFile("entry", data))
    if entry is None:
        return state
    try:
        match entry.body["event"]:
            case "attempt" | "withdrawal":
                return state.after(entry, "")
            case "verdict" | "release" | "rollback":
                after = state.after(entry, "")
                return replace(
                    state,
                    failed=after.failed,
                    publications=after.publications,
                    pointer_numbers=after.pointer_numbers,
                )
    except (KeyError, TypeError, ValueError, AttributeError):
        return state
    return state


def _file_name(number: int) -> str:
    return f"{number:08d}"


def _limit_line(failure: Mapping[str, Any]) -> str:
    limit = Limit(**{name: failure[name] for name in _LIMIT_FIELDS})
    relation = "at most" if limit.at_least is None else "at least"
    return f"{limit.key} {relation} {limit.value:g}"


def _is_as_strict(limit: Limit, failure: Mapping[str, Any]) -> bool:
    """Return True if every value that exceeds the failed limit also exceeds ``limit``."""
    if limit.statistic != failure["statistic"]:
        return False
    if _STRICTNESS.index(limit.bound) < _STRICTNESS.index(failure["bound"]):
        return False
    if limit.at_most is not None:
        return failure["at_most"] is not None and limit.at_most <= float(failure["at_most"])
    return failure["at_least"] is not None and limit.value >= float(failure["at_least"])
