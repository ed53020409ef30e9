"""Signed envelopes: in-toto Statements in DSSE, about the bytes of one synthetic table.

Pipeline steps pass signed files to the gate as :class:`SignedFile` bytes. They are used only after
:func:`verified_payload` has verified the signature of a trusted key.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args
from urllib.parse import quote, unquote

from privacy_assets.errors import NotTrusted, OutOfDate, StoreUnavailable
from privacy_assets.gate.keys import SigningKey, TrustedKeys
from privacy_assets.infra.objects import Location, ObjectPath
from privacy_assets.infra.storage import storage_of

if TYPE_CHECKING:
    from securesystemslib.dsse import Envelope
    from securesystemslib.signer import SSlibKey

SignedFileKind = Literal[
    "split", "snapshot", "prepared", "result", "attestation", "accepted_settings", "entry", "state",
    "pointer",
]  # fmt: skip
KINDS: tuple[SignedFileKind, ...] = get_args(SignedFileKind)
STATEMENT = "https://in-toto.io/Statement/v1"
Root = TypeVar("Root", Path, ObjectPath, Location)
PAYLOAD = "application/vnd.in-toto+json"


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
class SignedFile:
    """Unverified bytes of a signed envelope. Empty: no envelope."""

    kind: SignedFileKind
    data: bytes


@dataclass(frozen=True)
class Payload:
    """Content of a signed file, which describes another file.

    Attributes:
        kind: Kind of the signed file.
        target: Table and partition.
        sha256: SHA-256 of the file. In some kinds a keyed fingerprint. Empty: :func:`sign_payload`
            takes that of the body.
        body: Content, JSON serializable.
        keyid: Trusted key that signed it. Empty if not verified.
    """

    kind: SignedFileKind
    target: ReleaseTarget
    sha256: str
    body: Mapping[str, Any]
    keyid: str = ""


def stored_bytes(folder: Location, name: str, what: str) -> bytes:
    """Return the bytes of a file of the gate, or b"" if there is none.

    Args:
        folder: Folder of the file.
        name: Name of the file. The message does not contain it.
        what: What the message calls the file.

    Raises:
        StoreUnavailable: If it cannot be read.
    """
    try:
        return storage_of(folder / name).read()
    except OSError as error:
        if error.errno == errno.ENOENT:  # errors of object stores have no class of their own
            return b""
        text = f"the {what} cannot be read ({error.strerror})"
        raise StoreUnavailable.of(text, error, folder) from None


def sign_payload(payload: Payload, key: SigningKey) -> SignedFile:
    """Sign a payload.

    Args:
        payload: Payload to sign.
        key: Signing key.

    Returns:
        Bytes of a DSSE envelope in canonical form.

    Raises:
        ConfigError: If the signing key is not usable.
    """
    from securesystemslib.dsse import Envelope

    digest = payload.sha256 or hashlib.sha256(_canonical(dict(payload.body))).hexdigest()
    target = payload.target
    subject = {"name": f"{quoted(target.table)}.parquet", "digest": {"sha256": digest}}
    statement = {
        "_type": STATEMENT,
        "subject": [subject],
        "predicateType": _predicate_type(payload.kind),
        "predicate": {"table": target.table, "partition": target.partition, **payload.body},
    }
    envelope = Envelope(_canonical(statement), PAYLOAD, {})
    envelope.sign(key.signer)
    return SignedFile(payload.kind, _canonical(envelope.to_dict()))


def verified_payload(
    signed_file: SignedFile, trusted: TrustedKeys | Mapping[str, SSlibKey]
) -> Payload:
    """Return the payload in a signed envelope.

    The envelope must equal its canonical form byte by byte: white space, key order, repeated keys
    and spare base64 bits cannot vary.

    Args:
        signed_file: Signed envelope.
        trusted: Trusted keys, or a mapping of key ids to keys.

    Raises:
        OutOfDate: If the envelope is empty.
        NotTrusted: If it is not canonical, has another kind, or does not have exactly one
            signature, by a trusted key.
    """
    from securesystemslib.dsse import Envelope
    from securesystemslib.exceptions import FormatError, VerificationError

    keys = trusted if isinstance(trusted, Mapping) else trusted.by_id
    kind = signed_file.kind
    if not signed_file.data:
        raise OutOfDate(f"there is no {signed_file.kind} yet", record=kind)
    try:
        envelope = Envelope.from_dict(json.loads(signed_file.data))
        keyid = _only_keyid(envelope, signed_file)
        if keyid not in keys:
            raise NotTrusted(
                f"the {signed_file.kind} was signed by key {keyid[:12]}, which is not trusted",
                record=kind,
            )
        envelope.verify([keys[keyid]], 1)
        return _payload(json.loads(envelope.payload), signed_file.kind, keyid)
    except VerificationError:
        text = (
            f"the signature of the {signed_file.kind} is not valid: it was changed after it was"
            " signed"
        )
        raise NotTrusted(text, record=kind) from None
    except (ValueError, KeyError, TypeError, AttributeError, FormatError, RecursionError):
        raise NotTrusted(
            f"the {signed_file.kind} cannot be read as a signed file", record=kind
        ) from None


def _only_keyid(envelope: Envelope, signed_file: SignedFile) -> str:
    """Return the id of the only key that signed an envelope.

    Raises:
        NotTrusted: If its bytes are not canonical, or there is not exactly one signature.
    """
    is_canonical = _canonical(envelope.to_dict()) == signed_file.data
    signatures = envelope.signatures
    # The library keeps unknown fields of signatures, which are not signed.
    has_unsigned_fields = any(signature.unrecognized_fields for signature in signatures.values())
    has_form = envelope.payload_type == PAYLOAD and len(signatures) == 1
    if not is_canonical or not has_form or has_unsigned_fields:
        text = f"the {signed_file.kind} is not in the form that this version signs"
        raise NotTrusted(text, record=signed_file.kind)
    (keyid,) = signatures
    return str(keyid)


def unverified(signed_file: SignedFile) -> Payload | None:
    """Return the payload in an envelope whose signature is not verified, or None if it cannot be
    read.

    Only for decisions that any payload can make stricter, never laxer.

    Args:
        signed_file: Envelope.
    """
    try:
        content = json.loads(
            base64.b64decode(json.loads(signed_file.data)["payload"], validate=True)
        )
        return _payload(content, signed_file.kind, "")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, NotTrusted):
        return None


def _payload(content: Mapping[str, Any], kind: SignedFileKind, keyid: str) -> Payload:
    (subject,) = content["subject"]
    if content["_type"] != STATEMENT or content["predicateType"] != _predicate_type(kind):
        text = (
            f"expected a signed {kind} of this version, got a signed file of another kind or"
            " version"
        )
        raise NotTrusted(text, record=kind)
    body = dict(content["predicate"])
    target = ReleaseTarget(body.pop("table"), body.pop("partition"))
    return Payload(kind, target, subject["digest"]["sha256"], body, keyid)


def _predicate_type(kind: SignedFileKind) -> str:
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
