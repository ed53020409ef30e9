"""Signed statements: in-toto Statements in DSSE envelopes, about the bytes of one synthetic table.

What a step of the pipeline hands to the gate travels as :class:`Sealed` bytes; nothing of it is used before
:func:`unseal` has found the signature of a trusted key on it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import quote, unquote

from privacy_assets.errors import PublicationRefused
from privacy_assets.gate.keys import SigningKey, TrustedKeys
from privacy_assets.storage.objects import Location, ObjectPath

Kind = Literal["split", "snapshot", "encoded", "result", "failure", "attestation"]
KINDS: tuple[Kind, ...] = ("split", "snapshot", "encoded", "result", "failure", "attestation")
STATEMENT = "https://in-toto.io/Statement/v1"
Root = TypeVar("Root", Path, ObjectPath, Location)
PAYLOAD = "application/vnd.in-toto+json"
_AGAIN = "materialise it again"


def quoted(name: str) -> str:
    """``name`` as one harmless part of a path."""
    return quote(name, safe="-_= ").replace(".", "%2E")


@dataclass(frozen=True, slots=True)
class Place:
    """One table, and one partition of it when it has any: what a statement speaks about, and where a release lies."""

    table: str
    partition: str | None = None

    def below(self, root: Root) -> Root:
        """``root/<table>/partition=<partition>``, or ``root/<table>/_all``; no name can leave the root."""
        parts = (self.table, "_all" if self.partition is None else f"partition={self.partition}")
        return root.joinpath(*[quoted(part) for part in parts])

    @classmethod
    def of_parts(cls, table: str, part: str) -> Place:
        """Inverse of :meth:`below`, from the names of the two folders."""
        partition = unquote(part)
        return cls(unquote(table), None if partition == "_all" else partition.removeprefix("partition="))

    def __str__(self) -> str:
        return self.table if self.partition is None else f"{self.table}, {self.partition}"


@dataclass(frozen=True, slots=True)
class Sealed:
    """An envelope as bytes, empty for none: not to be believed before it was unsealed."""

    kind: Kind
    data: bytes


@dataclass(frozen=True)
class Statement:
    """What a step states about the file with this SHA-256; ``keyid`` is the trusted key that signed it."""

    kind: Kind
    place: Place
    sha256: str
    body: Mapping[str, Any]
    keyid: str = ""


def seal(statement: Statement, key: SigningKey) -> Sealed:
    """Sign a statement; ConfigError when the signing key is not what it should be."""
    from securesystemslib.dsse import Envelope

    content = {
        "_type": STATEMENT,
        "subject": [{"name": f"{quoted(statement.place.table)}.parquet", "digest": {"sha256": statement.sha256}}],
        "predicateType": _predicate_type(statement.kind),
        "predicate": {"table": statement.place.table, "partition": statement.place.partition, **statement.body},
    }
    envelope = Envelope(_canonical(content), PAYLOAD, {})
    envelope.sign(key.signer)
    return Sealed(statement.kind, _canonical(envelope.to_dict()))


def unseal(sealed: Sealed, trusted: TrustedKeys) -> Statement:
    """The statement inside, if exactly one trusted key signed exactly these bytes; PublicationRefused otherwise.

    The envelope must be byte-equal to its own canonical form, so that there is one spelling of each: JSON white space,
    key order, repeated keys and the spare bits of base64 are not free.
    """
    from securesystemslib.dsse import Envelope
    from securesystemslib.exceptions import FormatError, VerificationError

    keys = trusted.by_id
    if not sealed.data:
        raise PublicationRefused(f"there is no {sealed.kind} yet; materialise it first.")
    try:
        envelope = Envelope.from_dict(json.loads(sealed.data))
        spelled = _canonical(envelope.to_dict())
        # Fields that the library does not know it keeps, and nobody signed them.
        unsigned = [one for one in envelope.signatures.values() if one.unrecognized_fields]
        if spelled != sealed.data or envelope.payload_type != PAYLOAD or len(envelope.signatures) != 1 or unsigned:
            raise PublicationRefused(f"the {sealed.kind} is not in the form that this version signs; {_AGAIN}.")
        (keyid,) = envelope.signatures
        if keyid not in keys:
            raise PublicationRefused(
                f"the {sealed.kind} was signed by key {keyid[:12]}, which is not trusted; {_AGAIN}."
            )
        envelope.verify([keys[keyid]], 1)
        return _statement(json.loads(envelope.payload), sealed.kind, keyid)
    except VerificationError:
        text = f"the signature of the {sealed.kind} is not right: it was changed after it was signed; {_AGAIN}."
        raise PublicationRefused(text) from None
    except (ValueError, KeyError, TypeError, AttributeError, FormatError, RecursionError):
        raise PublicationRefused(f"the {sealed.kind} cannot be read as a signed statement; {_AGAIN}.") from None


def _statement(content: Mapping[str, Any], kind: Kind, keyid: str) -> Statement:
    (subject,) = content["subject"]
    if content["_type"] != STATEMENT or content["predicateType"] != _predicate_type(kind):
        raise PublicationRefused(f"a signed statement of another kind or version stands for the {kind}; {_AGAIN}.")
    body = dict(content["predicate"])
    place = Place(body.pop("table"), body.pop("partition"))
    return Statement(kind, place, subject["digest"]["sha256"], body, keyid)


def _predicate_type(kind: Kind) -> str:
    return f"urn:privacy-assets:{kind}:1"


def _canonical(content: Any) -> bytes:
    """The one spelling of a JSON value: sorted keys, no white space, no NaN."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
