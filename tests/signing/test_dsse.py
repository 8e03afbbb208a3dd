"""Envelopes, beside another implementation of DSSE and openssl's Ed25519."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from securesystemslib.dsse import Envelope as OtherEnvelope
from securesystemslib.exceptions import VerificationError
from securesystemslib.signer import SSlibKey

from mcfuser.errors import SignatureError
from mcfuser.signing.dsse import PAYLOAD_TYPE, opened, pae, sealed
from mcfuser.signing.key import SigningKey
from tests.support.signatures import private_key, write_keys

PAYLOAD = b'{"_type":"x"}'


def document(payload: bytes = PAYLOAD, key: SigningKey | None = None) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(sealed(payload, key or private_key()).line)
    return found


def opening(value: object, key: SigningKey | None = None) -> bytes:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return opened(data, (key or private_key()).public, "the envelope")


def test_the_encoding_is_that_of_the_specification() -> None:
    """The specification's own example, and lengths in bytes."""
    assert pae("http://example.com/HelloWorld", b"hello world") == (
        b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    )
    assert pae("ä", "ä".encode()) == "DSSEv1 2 ä 2 ä".encode()


def test_an_envelope_is_one_line_and_opens_to_its_payload() -> None:
    line = sealed(PAYLOAD, private_key()).line
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    assert line == sealed(PAYLOAD, private_key()).line
    assert opening(line) == PAYLOAD


def test_another_implementation_verifies_it(tmp_path: Path) -> None:
    envelope = OtherEnvelope.from_dict(document())
    key = private_key()
    known = SSlibKey.from_crypto(key.public.public, key.public.keyid)
    assert list(envelope.verify([known], 1)) == [key.public.keyid]
    stranger = SSlibKey.from_crypto(private_key(2).public.public, key.public.keyid)
    with pytest.raises(VerificationError):
        envelope.verify([stranger], 1)
    assert envelope.pae() == pae(PAYLOAD_TYPE, PAYLOAD)


def test_openssl_verifies_it(tmp_path: Path) -> None:
    _, public = write_keys(tmp_path, private_key())
    (tmp_path / "pae").write_bytes(pae(PAYLOAD_TYPE, PAYLOAD))
    signature = base64.b64decode(document()["signatures"][0]["sig"])
    (tmp_path / "signature").write_bytes(signature)
    words = ["openssl", "pkeyutl", "-verify", "-rawin", "-pubin", "-inkey", str(public)]
    words += ["-in", str(tmp_path / "pae"), "-sigfile", str(tmp_path / "signature")]
    assert subprocess.run(words, capture_output=True, check=False).returncode == 0
    (tmp_path / "pae").write_bytes(pae(PAYLOAD_TYPE, PAYLOAD + b" "))
    assert subprocess.run(words, capture_output=True, check=False).returncode != 0


def test_an_envelope_of_another_implementation_opens() -> None:
    """Of both alphabets of base64, and with fields that are not DSSE's."""
    found = document(b"\xfb\xff\xfe" * 10)
    assert "+" in found["payload"] or "/" in found["payload"]
    other = json.loads(json.dumps(found).replace("+", "-").replace("/", "_"))
    other["payloadType"] = PAYLOAD_TYPE
    assert opening(other | {"more": 1}) == b"\xfb\xff\xfe" * 10
    del found["signatures"][0]["keyid"]
    assert opening(found) == b"\xfb\xff\xfe" * 10


def test_every_changed_bit_of_payload_and_signature_is_noticed() -> None:
    found = document()
    for place in ("payload", "sig"):
        holder = found if place == "payload" else found["signatures"][0]
        data = base64.b64decode(holder[place])
        for bit in range(8 * len(data)):
            changed = bytearray(data)
            changed[bit // 8] ^= 1 << bit % 8
            text = base64.b64encode(changed).decode()
            bad = {**found, "payload": text} if place == "payload" else {
                **found, "signatures": [{**found["signatures"][0], "sig": text}],
            }  # fmt: skip
            with pytest.raises(SignatureError, match="was changed after it was signed"):
                opening(bad)


def test_a_strangers_signature_names_both_keys() -> None:
    one, other = private_key(1).public.keyid, private_key(2).public.keyid
    with pytest.raises(SignatureError, match=f"names {other}, and yours is {one}"):
        opening(document(key=private_key(2)))


GOOD = document()
SIGNATURE = GOOD["signatures"][0]
HOSTILE: dict[str, tuple[object, str]] = {
    "nothing": (b"", "is not one value of JSON"),
    "words": (b"\xff\xfe", "is not one value of JSON"),
    "two lines": (json.dumps(GOOD).encode() * 2, "is not one value of JSON"),
    "a deep one": (b"[" * 100_000, "is not one value of JSON"),
    "a list": ([GOOD], "is not an object"),
    "another type": (GOOD | {"payloadType": "text/plain"}, "type 'text/plain', not an in-toto"),
    "no type": ({"payload": ""}, "type 'None'"),
    "a type that is none": (GOOD | {"payloadType": [1]}, "type '\\[1\\]'"),
    "no signature": (GOOD | {"signatures": []}, "has 0 signatures; one is wanted"),
    "two signatures": (GOOD | {"signatures": [SIGNATURE] * 2}, "has 2 signatures"),
    "signatures of words": (GOOD | {"signatures": ["x"]}, "not a list of objects"),
    "signatures of none": (GOOD | {"signatures": None}, "not a list of objects"),
    "a keyid of numbers": (GOOD | {"signatures": [SIGNATURE | {"keyid": 7}]}, "keyid is not"),
    "a cut payload": (GOOD | {"payload": GOOD["payload"][:-1]}, "payload is not base64, or is cut"),
    "a payload of words": (GOOD | {"payload": "a b!"}, "payload is not base64"),
    "a payload of letters": (GOOD | {"payload": "ä"}, "payload is not base64"),
    "no payload": ({k: v for k, v in GOOD.items() if k != "payload"}, "payload is not base64"),
    "a payload of bytes": (GOOD | {"payload": [1]}, "payload is not base64"),
    "a cut signature": (
        GOOD | {"signatures": [SIGNATURE | {"sig": SIGNATURE["sig"][:-1]}]}, "signature is not",
    ),
    "an empty signature": (GOOD | {"signatures": [SIGNATURE | {"sig": ""}]}, "was changed after"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_envelope_is_one_sentence(name: str) -> None:
    given, words = HOSTILE[name]
    with pytest.raises(SignatureError, match=f"^the envelope .*{words}") as caught:
        opening(given)
    assert str(caught.value).isprintable()
