"""Signed statements: one spelling and one signer each, and every bit is protected."""

from __future__ import annotations

import base64
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gate_standins import VARIABLE, make_gate, small_signed_file
from hypothesis import given, settings
from hypothesis import strategies as st
from securesystemslib.dsse import Envelope

from privacy_assets.errors import ConfigError, NotTrusted, OutOfDate, PublicationBlocked
from privacy_assets.gate.envelope import (
    KINDS,
    PAYLOAD,
    STATEMENT,
    Payload,
    ReleaseTarget,
    SignedFile,
    quoted,
    sign_payload,
    verified_payload,
)
from privacy_assets.gate.gate import Gate
from privacy_assets.gate.keys import SIGNING_KEY, SigningKey, TrustedKeys, rotate_key

Json = dict[str, Any]


def flips(data: bytes) -> Iterator[bytes]:
    """Yield ``data`` with one bit of each byte flipped in turn; the bit differs from byte to
    byte.
    """
    for position in range(len(data)):
        yield data[:position] + bytes([data[position] ^ (1 << position % 8)]) + data[position + 1 :]


def spelled(content: Any) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def content_of(signed_file: SignedFile) -> Json:
    return json.loads(base64.b64decode(json.loads(signed_file.data)["payload"]))


def signed(gate: Gate, payload: bytes, payload_type: str = PAYLOAD) -> SignedFile:
    """An envelope about any payload, with a valid signature and in canonical form."""
    envelope = Envelope(payload, payload_type, {})
    envelope.sign(gate.key.signer)
    return SignedFile("snapshot", spelled(envelope.to_dict()))


def blocks(signed_file: SignedFile, trusted: TrustedKeys, match: str | None = None) -> None:
    with pytest.raises(NotTrusted if signed_file.data else OutOfDate, match=match) as caught:
        verified_payload(signed_file, trusted)
    assert caught.value.record == signed_file.kind


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_sealed_is_unsealed_with_its_signer(gate: Gate, kind: Any) -> None:
    stated = Payload(
        kind,
        ReleaseTarget("t", "2024-01-01"),
        "a" * 64,
        {"rows": 3, "nested": {"list": [1, None, "é"]}},
    )
    assert verified_payload(sign_payload(stated, gate.key), gate.key.trusted) == replace(
        stated, keyid=gate.key.signer.public_key.keyid
    )


def test_it_is_an_in_toto_statement_in_a_dsse_envelope(gate: Gate) -> None:
    signed_file = small_signed_file(gate)
    envelope, content = json.loads(signed_file.data), content_of(signed_file)
    assert envelope.keys() == {"payload", "payloadType", "signatures"}
    assert envelope["payloadType"] == PAYLOAD == "application/vnd.in-toto+json"
    assert content["_type"] == STATEMENT == "https://in-toto.io/Statement/v1"
    assert content["subject"] == [{"name": "patients.parquet", "digest": {"sha256": "0" * 64}}]
    assert content["predicateType"] == "urn:privacy-assets:snapshot:1"


names = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
bodies = st.dictionaries(
    names.filter(lambda name: name not in ("table", "partition")),
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=5,
    ),
    max_size=4,
)


@settings(max_examples=25)
@given(table=names, partition=st.none() | names, body=bodies)
def test_any_table_partition_and_body_come_back(
    gate: Gate, table: str, partition: str | None, body: Json
) -> None:
    try:
        signed_file = sign_payload(
            Payload("result", ReleaseTarget(table, partition), "b" * 64, body), gate.key
        )
    except UnicodeEncodeError:
        pytest.fail("a name must never stop a signature")
    found = verified_payload(signed_file, gate.key.trusted)
    assert (found.target, found.body) == (ReleaseTarget(table, partition), body)


@pytest.mark.slow
def test_no_flipped_bit_of_an_envelope_is_accepted(gate: Gate) -> None:
    """It is rejected both as spelled and in canonical form, where the signature itself is
    checked.
    """
    signed_file, trusted = small_signed_file(gate), gate.key.trusted
    assert verified_payload(signed_file, trusted)
    for data in flips(signed_file.data):
        blocks(SignedFile("snapshot", data), trusted)
    for part in ("payload", "sig"):
        envelope = json.loads(signed_file.data)
        holder = envelope if part == "payload" else envelope["signatures"][0]
        for data in flips(base64.b64decode(holder[part])):
            holder[part] = base64.b64encode(data).decode()
            blocks(
                SignedFile("snapshot", spelled(envelope)),
                trusted,
                "signature of the snapshot is not valid",
            )


def test_no_flipped_bit_of_a_trusted_key_lets_another_payload_or_signer_through(gate: Gate) -> None:
    signed_file, outcomes = small_signed_file(gate), Counter[str]()
    (file,) = gate.key.trusted.paths[0].glob("*.pem")
    whole, trusted = verified_payload(signed_file, gate.key.trusted), TrustedKeys((file.parent,))
    for pem in flips(file.read_bytes()):
        file.write_bytes(pem)
        try:
            assert verified_payload(signed_file, trusted) == whole
            assert list(trusted.by_id) == [gate.key.signer.public_key.keyid]
            outcomes["same"] += 1
        except ConfigError:
            outcomes["unloadable"] += 1
        except PublicationBlocked:
            outcomes["blocked"] += 1
    assert min(outcomes["blocked"], outcomes["unloadable"]) >= 10


def test_no_flipped_bit_of_the_signing_key_signs_as_another(gate: Gate) -> None:
    keyid, path, outcomes = gate.key.signer.public_key.keyid, gate.key.path, Counter[str]()
    assert path is not None
    for pem in flips(path.read_bytes()):
        path.write_bytes(pem)
        try:
            assert SigningKey(path, VARIABLE, gate.key.trusted).signer.public_key.keyid == keyid
            outcomes["same"] += 1
        except ConfigError as error:
            assert str(path) in str(error)
            outcomes[
                "not trusted" if "not among the trusted keys" in str(error) else "unloadable"
            ] += 1
    assert min(outcomes["not trusted"], outcomes["unloadable"]) >= 10


ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


def _signature(change: Callable[[str], Any]) -> Callable[[Json], bytes]:
    def changed(envelope: Json) -> bytes:
        envelope["signatures"][0]["sig"] = change(envelope["signatures"][0]["sig"])
        return spelled(envelope)

    return changed


def _spare_bits(text: str) -> str:
    """The same bytes in base64 whose last, unused bits are not zero."""
    other = text[:-3] + ALPHABET[ALPHABET.index(text[-3]) + 1] + "=="
    assert base64.b64decode(other) == base64.b64decode(text)
    return other


def _with(change: Callable[[Json], object]) -> Callable[[Json], bytes]:
    def changed(envelope: Json) -> bytes:
        change(envelope)
        return spelled(envelope)

    return changed


SPELLINGS: dict[str, Callable[[Json], bytes]] = {
    "white space before": lambda x: b" " + spelled(x),
    "white space after": lambda x: spelled(x) + b"\n",
    "white space inside": lambda x: json.dumps(x, sort_keys=True).encode(),
    "other order of keys": lambda x: json.dumps(
        dict(reversed(x.items())), separators=(",", ":")
    ).encode(),
    "repeated key": lambda x: spelled(x).replace(
        b'{"payload":', b'{"payload":"AAAA","payload":', 1
    ),
    "escaped letter": lambda x: spelled(x).replace(b"payloadType", b"p\\u0061yloadType", 1),
    "byte order mark": lambda x: b"\xef\xbb\xbf" + spelled(x),
    "UTF-16": lambda x: spelled(x).decode().encode("utf-16"),
    "spare bits of base64": _signature(_spare_bits),
    "url-safe base64": _signature(lambda text: text.replace("+", "-").replace("/", "_")),
    "base64 without padding": _signature(lambda text: text.rstrip("=")),
    "another field": _with(lambda x: x.update(more=1)),
    "another field of the signature": _with(lambda x: x["signatures"][0].update(more=1)),
    "NaN": lambda x: spelled(x)[:-1] + b',"more":NaN}',
    "the same signature twice": _with(lambda x: x.update(signatures=x["signatures"] * 2)),
    "no signature": _with(lambda x: x["signatures"].clear()),
    "signatures by name": _with(lambda x: x.update(signatures={"a": 1})),
    "a key id that is a list": _with(lambda x: x["signatures"][0].update(keyid=["a"])),
    "a signature that is a number": _signature(lambda _: 1),
    "a payload that is null": _with(lambda x: x.update(payload=None)),
    "no payload": _with(lambda x: x.pop("payload")),
    "nothing": lambda _: b"",
    "null": lambda _: b"null",
    "a list": lambda _: b"[]",
    "a number": lambda _: b"1e999",
    "no JSON": lambda _: b"{",
    "no text": lambda _: b"\xff\xfe\x00",
    "deep nesting": lambda _: b"[" * 200_000,
    "deep nesting in a field": lambda x: (
        spelled(x)[:-1] + b',"more":' + b"[" * 5_000 + b"]" * 5_000 + b"}"
    ),
}


@pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=SPELLINGS.keys())
def test_an_envelope_has_one_spelling(gate: Gate, spelling: Callable[[Json], bytes]) -> None:
    # until its signature has a character that differs in the url-safe alphabet
    for rows in range(100):
        signed_file = sign_payload(
            Payload("snapshot", ReleaseTarget("t"), "0" * 64, {"rows": rows}), gate.key
        )
        if {"+", "/"} & set(json.loads(signed_file.data)["signatures"][0]["sig"]):
            break
    data = spelling(json.loads(signed_file.data))
    assert data != signed_file.data
    blocks(SignedFile("snapshot", data), gate.key.trusted, "snapshot")


def test_two_signatures_are_refused_even_when_both_are_trusted(gate: Gate, tmp_path: Path) -> None:
    first = json.loads(small_signed_file(gate).data)
    rotate_key(gate.key.path, gate.key.trusted.paths[0])
    second = json.loads(small_signed_file(make_gate(tmp_path)).data)
    assert verified_payload(
        SignedFile("snapshot", spelled(second)), make_gate(tmp_path).key.trusted
    )
    both = spelled({**first, "signatures": first["signatures"] + second["signatures"]})
    blocks(SignedFile("snapshot", both), make_gate(tmp_path).key.trusted, "not in the form")


def test_only_trusted_keys_count(gate: Gate, tmp_path: Path) -> None:
    stranger = make_gate(tmp_path / "stranger")
    signed_file = small_signed_file(stranger)
    blocks(signed_file, gate.key.trusted, "which is not trusted")
    envelope = json.loads(signed_file.data)
    envelope["signatures"][0]["keyid"] = gate.key.signer.public_key.keyid
    blocks(
        SignedFile("snapshot", spelled(envelope)),
        gate.key.trusted,
        "signature of the snapshot is not valid",
    )


def test_the_name_of_a_key_file_decides_nothing(gate: Gate, tmp_path: Path) -> None:
    """A key's id is computed from the key, so another key under a trusted name is not trusted."""
    stranger = make_gate(tmp_path / "stranger")
    signed_file = small_signed_file(gate)
    (theirs,), (ours,) = (list(one.key.trusted.paths[0].glob("*.pem")) for one in (stranger, gate))
    ours.write_bytes(theirs.read_bytes())
    blocks(signed_file, TrustedKeys((ours.parent,)), "not trusted")
    assert (
        verified_payload(small_signed_file(stranger), TrustedKeys((ours,))).keyid
        == stranger.key.signer.public_key.keyid
    )


def test_another_payload_type_is_blocked(gate: Gate) -> None:
    payload = spelled(content_of(small_signed_file(gate)))
    assert verified_payload(signed(gate, payload), gate.key.trusted)
    for payload_type in ("application/json", PAYLOAD + " ", PAYLOAD.upper(), ""):
        blocks(signed(gate, payload, payload_type), gate.key.trusted, "not in the form")


def test_a_statement_of_one_kind_does_not_stand_for_another(gate: Gate) -> None:
    for stated, claimed in itertools.product(KINDS, KINDS):
        signed_file = small_signed_file(gate, stated)
        if stated == claimed:
            assert verified_payload(signed_file, gate.key.trusted).kind == stated
        else:
            blocks(
                SignedFile(claimed, signed_file.data),
                gate.key.trusted,
                f"expected a signed {claimed}",
            )


OTHER_KIND, UNREADABLE = "another kind or version", "cannot be read as a signed file"
# The whole payload, or a change of a valid one. All of it is signed.
PAYLOADS: dict[str, tuple[bytes | Callable[[Json], object], str]] = {
    "another payload type": (
        lambda x: x.update(_type="https://in-toto.io/Statement/v0.1"),
        OTHER_KIND,
    ),
    "another version": (
        lambda x: x.update(predicateType="urn:privacy-assets:snapshot:2"),
        OTHER_KIND,
    ),
    "a list as type": (
        lambda x: x.update(predicateType=["urn:privacy-assets:snapshot:1"]),
        OTHER_KIND,
    ),
    "no table": (lambda x: x["predicate"].pop("table"), UNREADABLE),
    "no partition": (lambda x: x["predicate"].pop("partition"), UNREADABLE),
    "two subjects": (lambda x: x.update(subject=x["subject"] * 2), UNREADABLE),
    "no subject": (lambda x: x.update(subject=[]), UNREADABLE),
    "no JSON": (b"{", UNREADABLE),
    "no payload": (b"{}", UNREADABLE),
    "a list": (b"[]", UNREADABLE),
    "null": (b"null", UNREADABLE),
    "no text": (b"\xff", UNREADABLE),
    "deep nesting": (b"[" * 200_000, UNREADABLE),
}


@pytest.mark.parametrize(("payload", "match"), PAYLOADS.values(), ids=PAYLOADS.keys())
def test_a_signed_payload_that_is_no_such_statement_is_blocked(
    gate: Gate, payload: Any, match: str
) -> None:
    content = content_of(small_signed_file(gate))
    if callable(payload):
        payload(content)
    blocks(
        signed(gate, spelled(content) if callable(payload) else payload), gate.key.trusted, match
    )


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_that_json_does_not_know_is_never_signed(gate: Gate, number: float) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        sign_payload(Payload("result", ReleaseTarget("t"), "0" * 64, {"value": number}), gate.key)


def test_without_trusted_keys_nothing_is_believed(gate: Gate, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no trusted key"):
        verified_payload(small_signed_file(gate), TrustedKeys((tmp_path / "nowhere",)))
    blocks(small_signed_file(gate), TrustedKeys(()), "not trusted")


hostile = (
    st.sampled_from(["../outside", "a/b", "..", ".", "", "a\0b", "%2e%2e", "_all", "None"]) | names
)


@given(
    st.lists(
        st.tuples(hostile.filter(bool), st.none() | hostile), min_size=2, max_size=2, unique=True
    )
)
def test_every_place_has_a_folder_of_its_own_inside_the_root(
    pairs: list[tuple[str, str | None]],
) -> None:
    root, places = Path("/srv/root"), [ReleaseTarget(*pair) for pair in pairs]
    folders = [target.below(root) for target in places]
    assert folders[0] != folders[1]
    for target, folder in zip(places, folders, strict=True):
        assert folder.parent.parent == root and not {".", ".."} & {folder.name, folder.parent.name}
        assert all(
            quoted(name).isprintable() and "." not in quoted(name)
            for name in (folder.name, folder.parent.name)
        )
        assert ReleaseTarget.of_parts(folder.parent.name, folder.name) == target


def test_the_private_key_is_in_no_statement(gate: Gate) -> None:
    assert gate.key.path is not None and gate.key.path.name == SIGNING_KEY
    assert gate.key.path.read_text().splitlines()[1] not in small_signed_file(gate).data.decode()
