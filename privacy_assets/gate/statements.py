"""Signed statements: in-toto Statements in DSSE envelopes, about the bytes of one synthetic table.

Pipeline steps pass statements to the gate as :class:`SignedRecord` bytes. They are used only after
:func:`unseal` has verified the signature of a trusted key.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args
from urllib.parse import quote, unquote

from privacy_assets.errors import NotTrusted, OutOfDate, StoreUnavailable
from privacy_assets.gate.keys import SigningKey, TrustedKeys
from privacy_assets.infra.files import contents, reason
from privacy_assets.infra.objects import Location, ObjectPath

if TYPE_CHECKING:
    from securesystemslib.dsse import Envelope
    from securesystemslib.signer import SSlibKey

RecordKind = Literal[
    "split", "snapshot", "prepared", "result", "attestation", "lock", "entry", "state", "pointer"
]
KINDS: tuple[RecordKind, ...] = get_args(RecordKind)
STATEMENT = "https://in-toto.io/Statement/v1"
Root = TypeVar("Root", Path, ObjectPath, Location)
PAYLOAD = "application/vnd.in-toto+json"
_MADE_BY: Mapping[str, str] = {
    "split": "split",
    "snapshot": "sample",
    "prepared": "prepare",
    "result": "score",
    "attestation": "attest",
    "pointer": "publish",
}


def quoted(name: str) -> str:
    """Escape ``name`` as a single path component."""
    return quote(name, safe="-_= ").replace(".", "%2E")


@dataclass(frozen=True, slots=True)
class ReleaseTarget:
    """A table, or one partition of it.

    Attributes:
        table: Name of the table.
        partition: Key of the partition. None: the table as a whole.
    """

    table: str
    partition: str | None = None

    @property
    def part(self) -> str:
        """Name of the partition in paths and in the log: "partition=<partition>", or "_all"."""
        return "_all" if self.partition is None else f"partition={self.partition}"

    def below(self, root: Root) -> Root:
        """Return ``root/<table>/partition=<partition>`` or ``root/<table>/_all``, which is always
        within ``root``.

        Args:
            root: Folder.
        """
        return root.joinpath(quoted(self.table), quoted(self.part))

    @classmethod
    def of_parts(cls, table: str, part: str) -> ReleaseTarget:
        """Return the table and partition of the two folder names that :meth:`below` creates.

        Args:
            table: Name of the upper folder.
            part: Name of the lower folder.
        """
        name = unquote(part)
        partition = None
        if name != "_all":
            partition = name.removeprefix("partition=")
        return cls(unquote(table), partition)

    def __str__(self) -> str:
        if self.partition is None:
            return self.table
        return f"{self.table}, {self.partition}"


@dataclass(frozen=True, slots=True)
class SignedRecord:
    """Unverified bytes of a signed envelope. Empty: no envelope."""

    kind: RecordKind
    data: bytes


@dataclass(frozen=True)
class Statement:
    """Statement about a file.

    Attributes:
        kind: Kind of the record.
        target: Table and partition.
        sha256: SHA-256 of the file. In some kinds a keyed fingerprint. Empty: :func:`seal` takes
            that of the body.
        body: Content, JSON serializable.
        keyid: Trusted key that signed it. Empty if not verified.
    """

    kind: RecordKind
    target: ReleaseTarget
    sha256: str
    body: Mapping[str, Any]
    keyid: str = ""


def records(folder: Location, what: str, only: str | None = None) -> dict[str, bytes]:
    """Return the bytes of every file in a folder of the gate by name, or raise StoreUnavailable.

    Args:
        folder: Folder of the gate.
        what: What the message calls the files.
        only: Name of the only file to read. None: all. The message does not contain it.
    """
    try:
        return contents(folder, only)
    except OSError as error:
        why = error.strerror if only else reason(error)
        raise StoreUnavailable.of(f"the {what} cannot be read ({why})", error, folder) from None


def redo_of(kind: RecordKind) -> tuple[str, ...]:
    """Return the verb of the step that makes records of ``kind``. Empty: no step makes them
    again.
    """
    if kind not in _MADE_BY:
        return ()
    return (_MADE_BY[kind],)


def seal(statement: Statement, key: SigningKey) -> SignedRecord:
    """Sign a statement.

    Args:
        statement: Statement to sign.
        key: Signing key.

    Returns:
        Bytes of a DSSE envelope in canonical form.

    Raises:
        ConfigError: If the signing key is not usable.
    """
    from securesystemslib.dsse import Envelope

    digest = statement.sha256 or hashlib.sha256(_canonical(dict(statement.body))).hexdigest()
    target = statement.target
    subject = {"name": f"{quoted(target.table)}.parquet", "digest": {"sha256": digest}}
    payload = {
        "_type": STATEMENT,
        "subject": [subject],
        "predicateType": _predicate_type(statement.kind),
        "predicate": {"table": target.table, "partition": target.partition, **statement.body},
    }
    envelope = Envelope(_canonical(payload), PAYLOAD, {})
    envelope.sign(key.signer)
    return SignedRecord(statement.kind, _canonical(envelope.to_dict()))


def unseal(sealed: SignedRecord, trusted: TrustedKeys | Mapping[str, SSlibKey]) -> Statement:
    """Return the statement in a signed envelope.

    The envelope must equal its canonical form byte by byte: white space, key order, repeated keys
    and spare base64 bits cannot vary.

    Args:
        sealed: Signed envelope.
        trusted: Trusted keys, or a mapping of key ids to keys.

    Raises:
        OutOfDate: If the envelope is empty.
        NotTrusted: If it is not canonical, has another kind, or does not have exactly one
            signature, by a trusted key.
    """
    from securesystemslib.dsse import Envelope
    from securesystemslib.exceptions import FormatError, VerificationError

    keys = trusted if isinstance(trusted, Mapping) else trusted.by_id
    redo = redo_of(sealed.kind)
    if not sealed.data:
        raise OutOfDate(f"there is no {sealed.kind} yet", redo=redo)
    try:
        envelope = Envelope.from_dict(json.loads(sealed.data))
        keyid = _only_keyid(envelope, sealed)
        if keyid not in keys:
            raise NotTrusted(
                f"the {sealed.kind} was signed by key {keyid[:12]}, which is not trusted", redo=redo
            )
        envelope.verify([keys[keyid]], 1)
        return _statement(json.loads(envelope.payload), sealed.kind, keyid)
    except VerificationError:
        text = (
            f"the signature of the {sealed.kind} is not valid: it was changed after it was signed"
        )
        raise NotTrusted(text, redo=redo) from None
    except (ValueError, KeyError, TypeError, AttributeError, FormatError, RecursionError):
        raise NotTrusted(
            f"the {sealed.kind} cannot be read as a signed statement", redo=redo
        ) from None


def _only_keyid(envelope: Envelope, sealed: SignedRecord) -> str:
    """Return the id of the only key that signed an envelope.

    Raises:
        NotTrusted: If its bytes are not canonical, or there is not exactly one signature.
    """
    is_canonical = _canonical(envelope.to_dict()) == sealed.data
    signatures = envelope.signatures
    # The library keeps unknown fields of signatures, which are not signed.
    has_unsigned_fields = any(signature.unrecognized_fields for signature in signatures.values())
    has_form = envelope.payload_type == PAYLOAD and len(signatures) == 1
    if not is_canonical or not has_form or has_unsigned_fields:
        text = f"the {sealed.kind} is not in the form that this version signs"
        raise NotTrusted(text, redo=redo_of(sealed.kind))
    (keyid,) = signatures
    return str(keyid)


def unverified(sealed: SignedRecord) -> Statement | None:
    """Return the statement in an envelope whose signature is not verified, or None if it cannot be
    read.

    Only for decisions that any statement can make stricter, never laxer.

    Args:
        sealed: Envelope.
    """
    try:
        content = json.loads(base64.b64decode(json.loads(sealed.data)["payload"], validate=True))
        return _statement(content, sealed.kind, "")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, NotTrusted):
        return None


def _statement(content: Mapping[str, Any], kind: RecordKind, keyid: str) -> Statement:
    (subject,) = content["subject"]
    if content["_type"] != STATEMENT or content["predicateType"] != _predicate_type(kind):
        text = (
            f"expected a signed {kind} of this version, got a statement of another kind or version"
        )
        raise NotTrusted(text, redo=redo_of(kind))
    body = dict(content["predicate"])
    target = ReleaseTarget(body.pop("table"), body.pop("partition"))
    return Statement(kind, target, subject["digest"]["sha256"], body, keyid)


def _predicate_type(kind: RecordKind) -> str:
    return f"urn:privacy-assets:{kind}:1"


def shown_digest(value: Any) -> str:
    """Return 32 hexadecimal digits of the SHA-256 of a value, with which a user names what a
    command has shown.

    Args:
        value: Nested mappings and lists. The order of keys does not matter. Values that JSON lacks
            count by their repr.
    """
    text = json.dumps(value, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _canonical(content: Any) -> bytes:
    """Return the canonical JSON bytes of a value: sorted keys, no white space, no NaN."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
