"""Keys in PEM, as openssl writes them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed448, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from mcfuser.errors import InputError
from mcfuser.signing.key import read_passphrase, read_signing_key, read_verifying_key
from tests.support.signatures import private_key, sha256, write_keys

OTHERS = {
    "RSA": lambda: rsa.generate_private_key(65537, 1024),
    "ECDSA": lambda: ec.generate_private_key(ec.SECP256R1()),
    "Ed448": ed448.Ed448PrivateKey.generate,
}


def openssl(*words: str) -> bytes:
    return subprocess.run(["openssl", *words], check=True, capture_output=True).stdout


@pytest.mark.parametrize("hidden", [(), ("-aes256", "-pass", "pass:open sesame")])
def test_keys_are_those_of_openssl(tmp_path: Path, hidden: tuple[str, ...]) -> None:
    private, public = tmp_path / "release.key", tmp_path / "release.pub"
    openssl("genpkey", "-algorithm", "ed25519", *hidden, "-out", str(private))
    given = ("-passin", "pass:open sesame") if hidden else ()
    openssl("pkey", "-in", str(private), *given, "-pubout", "-out", str(public))
    key = read_signing_key(private, lambda: b"open sesame")
    found = read_verifying_key(public)
    assert key.public.pem == found.pem == public.read_bytes()
    der = openssl("pkey", "-pubin", "-in", str(public), "-outform", "DER")
    assert found.keyid == key.public.keyid == sha256(der)


def test_signatures_are_the_keys_alone() -> None:
    one, other = private_key(1), private_key(2)
    signature = one.sign(b"data")
    assert signature == one.sign(b"data") and len(signature) == 64
    assert one.public.verifies(signature, b"data")
    assert not one.public.verifies(signature, b"date")
    assert not other.public.verifies(signature, b"data")
    assert not one.public.verifies(signature[:-1], b"data")
    assert not one.public.verifies(b"", b"data")


def test_an_encrypted_key_needs_its_passphrase(tmp_path: Path) -> None:
    path, _ = write_keys(tmp_path, private_key(), b"open sesame")
    found = read_signing_key(path, lambda: b"open sesame")
    assert found.public.pem == private_key().public.pem
    with pytest.raises(InputError, match="is encrypted; give a file"):
        read_signing_key(path)
    for wrong in (b"sesame", b""):
        with pytest.raises(InputError, match="the passphrase is wrong"):
            read_signing_key(path, lambda words=wrong: words)


def test_a_passphrase_is_not_asked_for_where_the_key_is_not_encrypted(tmp_path: Path) -> None:
    path, _ = write_keys(tmp_path, private_key())

    def asked() -> bytes:
        raise AssertionError("it was asked for")

    assert read_signing_key(path, asked).public.pem == private_key().public.pem


@pytest.mark.parametrize("kind", OTHERS)
def test_a_key_of_another_kind_is_named(tmp_path: Path, kind: str) -> None:
    other = OTHERS[kind]()
    path = tmp_path / "other.pem"
    path.write_bytes(other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with pytest.raises(InputError, match=f"is a key for {kind}, not an Ed25519 key; openssl"):
        read_signing_key(path)
    public = other.public_key()
    path.write_bytes(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    with pytest.raises(InputError, match=f"is a key for {kind}, not an Ed25519 key"):
        read_verifying_key(path)


def test_the_two_halves_are_not_mistaken_for_each_other(tmp_path: Path) -> None:
    private, public = write_keys(tmp_path, private_key())
    with pytest.raises(InputError, match="is a public key; sign with the private one"):
        read_signing_key(public)
    with pytest.raises(InputError, match="is a private key, which verifies nothing"):
        read_verifying_key(private)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is no .* in PEM"),
        (b"\xff" * 100, "is no .* in PEM"),
        (b"-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----\n", "private key"),
        (b"x" * (65 << 10), "has more than 65536 bytes"),
    ],
)
def test_what_is_no_key_is_one_sentence(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "key"
    path.write_bytes(data)
    for read in (read_signing_key, read_verifying_key):
        with pytest.raises(InputError, match=words) as caught:
            read(path)
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_verifying_key(tmp_path / "none")
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        read_signing_key(tmp_path)


def test_a_passphrase_is_the_first_line_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "passphrase"
    for data in (b"open sesame", b"open sesame\n", b"open sesame\r\nrest\n"):
        path.write_bytes(data)
        assert read_passphrase(path) == b"open sesame"
    path.write_bytes(b"\nopen sesame")
    with pytest.raises(InputError, match="empty first line"):
        read_passphrase(path)
