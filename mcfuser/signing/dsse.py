"""DSSE envelopes: a payload, its type, and a signature of both.

The format is https://github.com/secure-systems-lab/dsse, version 1.0.2. What is signed is the
pre-authentication encoding (PAE) of type and payload, so the envelope's own JSON needs no canonical
form.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any

from mcfuser.errors import SignatureError
from mcfuser.signing.key import SigningKey, VerifyingKey

PAYLOAD_TYPE = "application/vnd.in-toto+json"
"""The type of the payloads that are signed here: in-toto statements."""
MEDIA_TYPE = "application/vnd.dsse.envelope.v1+json"
"""The media type of an envelope."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """A payload of PAYLOAD_TYPE with one signature. `keyid` says whose it may be; nothing protects
    that."""

    payload: bytes
    signature: bytes
    keyid: str = ""

    @property
    def line(self) -> bytes:
        """The envelope as a line of JSON; equal for equal envelopes."""
        signature = {"keyid": self.keyid, "sig": base64.b64encode(self.signature).decode()}
        document = {
            "payloadType": PAYLOAD_TYPE,
            "payload": base64.b64encode(self.payload).decode(),
            "signatures": [signature],
        }
        return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def pae(payload_type: str, payload: bytes) -> bytes:
    """What is signed: the type and the payload, each after its length in bytes."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def sealed(payload: bytes, key: SigningKey) -> Envelope:
    """The envelope of a payload, signed."""
    return Envelope(payload, key.sign(pae(PAYLOAD_TYPE, payload)), key.public.keyid)


def opened(data: bytes, key: VerifyingKey, what: str) -> bytes:
    """The payload of an envelope that was signed with a key.

    `what` names the envelope in messages. Raises SignatureError where it is malformed, has another
    type or several signatures, or the signature is not the key's.
    """
    envelope = _read(data, what)
    if not key.verifies(envelope.signature, pae(PAYLOAD_TYPE, envelope.payload)):
        if envelope.keyid in ("", key.keyid):
            raise SignatureError(f"{what} was changed after it was signed, or by another key")
        named = envelope.keyid[:64]
        raise SignatureError(
            f"{what} was signed by another key: it names {named}, and yours is {key.keyid}"
        )
    return envelope.payload


def _read(data: bytes, what: str) -> Envelope:
    """An envelope whose signature was not looked at. Fields that DSSE does not have are ignored, as
    it says."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise SignatureError(f"{what} is no DSSE envelope: it is not one value of JSON") from None
    if not isinstance(document, dict):
        raise SignatureError(f"{what} is no DSSE envelope: it is not an object")
    kind, signatures = document.get("payloadType"), document.get("signatures")
    if kind != PAYLOAD_TYPE:
        raise SignatureError(
            f"{what} has a payload of type {str(kind)[:100]!r}, not an in-toto statement "
            f"({PAYLOAD_TYPE})"
        )
    if not isinstance(signatures, list) or not all(isinstance(s, dict) for s in signatures):
        raise SignatureError(
            f"{what} is no DSSE envelope: its signatures are not a list of objects"
        )
    if len(signatures) != 1:
        raise SignatureError(f"{what} has {len(signatures)} signatures; one is wanted")
    (signature,) = signatures
    keyid = signature.get("keyid") or ""
    if not isinstance(keyid, str):
        raise SignatureError(f"{what} is no DSSE envelope: its keyid is not a text")
    payload = _decoded(document.get("payload"), "payload", what)
    return Envelope(payload, _decoded(signature.get("sig"), "signature", what), keyid)


def _decoded(value: Any, field: str, what: str) -> bytes:
    """Bytes in base64, of the standard alphabet or of the one for addresses: DSSE allows both."""
    try:
        return base64.b64decode(value.translate(_STANDARD), validate=True)
    except (ValueError, AttributeError):
        raise SignatureError(f"{what} is damaged: its {field} is not base64, or is cut") from None


_STANDARD = str.maketrans("-_", "+/")
