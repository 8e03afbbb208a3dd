"""Ed25519 keys in PEM, as openssl writes and reads them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from mcfuser.arguments.files import read_bounded
from mcfuser.errors import InputError

LARGEST = 64 << 10
"""The largest file with a key or a passphrase, in bytes."""

Passphrase = Callable[[], bytes]
"""Gives the passphrase of an encrypted key, for which alone it is called."""

_MAKE = "openssl genpkey -algorithm ed25519 makes one"


@dataclass(frozen=True)
class VerifyingKey:
    """A public key."""

    public: Ed25519PublicKey

    @property
    def keyid(self) -> str:
        """The SHA-256 of the key's SubjectPublicKeyInfo in DER, in hexadecimal."""
        der = self.public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        return hashlib.sha256(der).hexdigest()

    @property
    def pem(self) -> bytes:
        """The key as `openssl pkey -pubout` writes it."""
        return self.public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def verifies(self, signature: bytes, data: bytes) -> bool:
        """Whether the signature of the data was made with this key's private half."""
        try:
            self.public.verify(signature, data)
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True)
class SigningKey:
    """A private key."""

    private: Ed25519PrivateKey

    @property
    def public(self) -> VerifyingKey:
        return VerifyingKey(self.private.public_key())

    def sign(self, data: bytes) -> bytes:
        """The signature, 64 bytes; equal for equal data."""
        return self.private.sign(data)


def read_signing_key(path: Path, passphrase: Passphrase | None = None) -> SigningKey:
    """The private key in a PEM file, which may be encrypted.

    Raises InputError where it cannot be read, is none or no Ed25519 key, or the passphrase is
    wrong, or missing.
    """
    what = f"signing key '{path}'"
    data = read_bounded(path, what, LARGEST)
    if b"PUBLIC KEY-----" in data:
        raise InputError(f"{what} is a public key; sign with the private one")
    if b"-----BEGIN ENCRYPTED PRIVATE KEY-----" not in data:
        given = None
    elif passphrase is None:
        raise InputError(f"{what} is encrypted; give a file with its passphrase")
    else:
        given = passphrase()
    try:
        key = load_pem_private_key(data, given)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        if given is not None:
            raise InputError(
                f"{what} cannot be decrypted: the passphrase is wrong, or the file is damaged"
            ) from None
        raise InputError(f"{what} is no private key in PEM; {_MAKE}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise InputError(f"{what} is {_kind(key)}, not an Ed25519 key; {_MAKE}")
    return SigningKey(key)


def read_verifying_key(path: Path) -> VerifyingKey:
    """The public key in a PEM file. Raises InputError where it cannot be read, is none, or no
    Ed25519 key."""
    what = f"public key '{path}'"
    data = read_bounded(path, what, LARGEST)
    if b"PRIVATE KEY-----" in data:
        raise InputError(
            f"{what} is a private key, which verifies nothing; openssl pkey -pubout gives the "
            "public one"
        )
    try:
        key = load_pem_public_key(data)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise InputError(
            f"{what} is no public key in PEM; openssl pkey -pubout gives that of a private one"
        ) from None
    if not isinstance(key, Ed25519PublicKey):
        raise InputError(f"{what} is {_kind(key)}, not an Ed25519 key; give the signer's")
    return VerifyingKey(key)


def read_passphrase(path: Path) -> bytes:
    """The first line of a file, or of a pipe, without its end. Raises InputError."""
    what = f"passphrase file '{path}'"
    found = read_bounded(path, what, LARGEST).split(b"\n", 1)[0].removesuffix(b"\r")
    if not found:
        raise InputError(f"{what} has an empty first line; write the passphrase there")
    return found


def _kind(key: object) -> str:
    """A key's kind, of the names of the library's classes: `RSAPrivateKey` is an RSA key."""
    name = type(key).__name__.lstrip("_")
    for suffix in ("PrivateKey", "PublicKey"):
        name = name.removesuffix(suffix)
    return f"a key for {'ECDSA' if name == 'EC' else name}"
