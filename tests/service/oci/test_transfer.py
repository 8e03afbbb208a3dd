"""Kernels go to a registry and come back: a real one, and such as lie, hang and refuse."""

from __future__ import annotations

import base64
import datetime
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from mcfuser.errors import InputError, LimitError, RegistryError
from mcfuser_service.oci import transfer
from mcfuser_service.oci.artefact import LARGEST, LARGEST_MANIFEST
from mcfuser_service.oci.reference import Reference, read_reference
from mcfuser_service.oci.transfer import Login, pull, push
from tests.support.registries import (
    PASSWORD,
    USER,
    Answer,
    digest,
    kernels_manifest,
    needs_oras,
    needs_registry,
    real_registry,
    told_registry,
)

LINES = b'{"format": "mcfuser-kernels", "version": 1}\n'
pytestmark = needs_oras


@pytest.fixture(autouse=True)
def no_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests has perhaps logged in somewhere."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "kernels.jsonl"
    made.write_bytes(LINES)
    return made


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with real_registry(tmp_path_factory.mktemp("registry")) as host:
        yield host


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with real_registry(tmp_path_factory.mktemp("guarded"), password=True) as host:
        yield host


def at(host: str, rest: str = "team/kernels:main") -> Reference:
    return read_reference(f"oci://{host}/{rest}")


@needs_registry
class TestRealRegistry:
    def test_what_is_pushed_is_pulled_by_its_tag_and_by_its_digest(
        self, host: str, file: Path, tmp_path: Path
    ) -> None:
        named = push(file, at(host), {"vnd.mcfuser.kernels": "0"}, Login())
        assert push(file, at(host), {"vnd.mcfuser.kernels": "0"}, Login()) == named, "nothing new"
        for number, rest in enumerate((":main", f"@{named}")):
            target = tmp_path / str(number)
            found = pull(target, at(host, f"team/kernels{rest}"), Login())
            assert target.read_bytes() == LINES and found.annotations["vnd.mcfuser.kernels"] == "0"
            assert (found.digest, found.layer) == (named, digest(LINES))
        none = tmp_path / "none"
        assert pull(none, at(host), Login(), digest(LINES)) == found and not none.exists()

    def test_a_tag_that_moves_gives_other_kernels(self, host: str, file: Path) -> None:
        first = push(file, at(host, "moving:x"), {}, Login())
        file.write_bytes(LINES * 2)
        assert push(file, at(host, "moving:x"), {}, Login()) != first
        assert pull(file, at(host, "moving:x"), Login()).layer == digest(LINES * 2)
        assert pull(file, at(host, f"moving@{first}"), Login()).layer == digest(LINES)

    def test_what_is_not_there_is_said(self, host: str, file: Path) -> None:
        push(file, at(host), {}, Login())
        for rest in ("team/kernels:none", "nobody/nothing:x", f"team/kernels@{digest(b'')}"):
            with pytest.raises(InputError, match=f"has no {rest[:6]}.* that can be read") as raised:
                pull(file, at(host, rest), Login())
            assert type(raised.value) is InputError

    def test_a_password_is_asked_for(self, guarded: str, file: Path, tmp_path: Path) -> None:
        for access in (Login(), Login(user=USER, password="other")):
            with pytest.raises(InputError, match=f"log in with docker login {guarded}") as raised:
                push(file, at(guarded), {}, access)
            assert type(raised.value) is InputError
        right = Login(user=USER, password=PASSWORD)
        named = push(file, at(guarded), {}, right)
        assert pull(tmp_path / "x", at(guarded), right).digest == named

    def test_docker_s_credentials_are_used(self, guarded: str, file: Path, tmp_path: Path) -> None:
        config = tmp_path / "docker" / "config.json"
        config.parent.mkdir()
        auth = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        config.write_text(json.dumps({"auths": {guarded: {"auth": auth}}}))
        push(file, at(guarded), {}, Login())
        with pytest.raises(InputError, match="log in with"):
            push(file, at(guarded), {}, Login(user=USER, password="other"))
        for text in ("{", "[]", '{"auths": 3}'):
            config.write_text(text)
            with pytest.raises(InputError, match=r"'.*config\.json'"):
                push(file, at(guarded), {}, Login())

    def test_a_registry_that_speaks_tls_must_prove_who_it_is(
        self, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """On loopback plain HTTP is spoken, so it is asked by another name of this machine."""
        monkeypatch.setattr(Reference, "loopback", False)
        certificate, key = _certificate(tmp_path)
        with real_registry(tmp_path, certificate=(certificate, key)) as host:
            with pytest.raises(RegistryError, match=r"cannot prove who it is.*REQUESTS_CA_BUNDLE"):
                _answer(file, f"oci://{host}/k:x", annotations={})
            monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
            _answer(file, f"oci://{host}/k:x", annotations={})
            assert _answer(file, f"oci://{host}/k:x")["layer"] == digest(LINES)


def _certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1 that signs itself, and its key."""
    import ipaddress

    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(address, critical=True)
        .add_extension(x509.BasicConstraints(True, 0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    (folder / "cert.pem").write_bytes(made.public_bytes(pem))
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    (folder / "key.pem").write_bytes(private)
    return folder / "cert.pem", folder / "key.pem"


def _answer(file: Path, reference: str, **given: Any) -> dict[str, Any]:
    """What the process that transfers answers, in this process."""
    from mcfuser_service.oci.transfer_child import answer

    request = {
        "reference": reference, "file": str(file), "plain_http": False, "user": None,
        "annotations": None, "known": None, "config": "none", **given,
    }  # fmt: skip
    return answer(request, lambda message: None)


MANIFEST = kernels_manifest(LINES)
GOOD: Mapping[str, Answer] = {
    "/manifests/x": (200, {}, MANIFEST), digest(LINES): (200, {}, LINES),
}  # fmt: skip


class TestRegistriesThatDoAsTheyLike:
    def asked(self, file: Path, answers: Mapping[str, Answer], **given: Any) -> dict[str, Any]:
        with told_registry({**GOOD, **answers}) as (host, told):
            self.told = told
            return _answer(file, f"oci://{host}/k:x", **given)

    def test_one_that_does_as_it_should(self, file: Path) -> None:
        file.write_bytes(b"")
        assert self.asked(file, {})["digest"] == digest(MANIFEST) and file.read_bytes() == LINES

    @pytest.mark.thorough
    @pytest.mark.parametrize(
        ("answers", "why"),
        [
            ({digest(LINES): (200, {}, LINES + b"x")}, "more bytes with another digest, not 44"),
            ({digest(LINES): (200, {}, LINES[:-1])}, "43 bytes with another digest, not 44"),
            ({digest(LINES): (200, {}, LINES[::-1])}, "44 bytes with another digest, not 44"),
            ({digest(LINES): (200, {"Content-Length": "99999"}, LINES)}, "cannot be used"),
            (
                {"/manifests/x": (200, {"Docker-Content-Digest": "sha256:1"}, MANIFEST)},
                "another manifest .* than it says",
            ),
            ({"/manifests/x": (200, {}, b" " * (LARGEST_MANIFEST + 1))}, "more than 1,048,576"),
            ({"/manifests/x": (500, {}, b"<html>")}, "status 500"),
            ({"/manifests/x": (429, {}, b'{"errors": [{"message": "slow"}]}')}, "429 .*: slow"),
            ({"/v2/": (503, {}, b"")}, "status 503"),
            ({"/v2/": (301, {"Location": "/v2/"}, b"")}, "cannot be used"),
            ({"/manifests/x": (301, {"Location": "http://192.0.2.1/"}, b"")}, "an unencrypted"),
            ({digest(LINES): (307, {"Location": "file:///etc/passwd"}, b"")}, "cannot be used"),
        ],
    )
    def test_one_that_lies_or_fails_is_told_of(
        self, file: Path, answers: Mapping[str, Answer], why: str
    ) -> None:
        with pytest.raises(RegistryError, match=why):
            self.asked(file, answers)

    def test_a_manifest_with_another_digest_than_is_asked_for(self, file: Path) -> None:
        wanted = digest(b"other")
        with (
            told_registry({f"/manifests/{wanted}": (200, {}, MANIFEST)}) as (host, _),
            pytest.raises(RegistryError, match=f"its digest is {digest(MANIFEST)}, not {wanted}"),
        ):
            _answer(file, f"oci://{host}/k@{wanted}")

    def test_artefacts_of_other_kinds_and_giants_are_not_fetched(self, file: Path) -> None:
        giant = kernels_manifest(LINES, size=LARGEST + 1)
        for manifest, error in (
            (b'{"artifactType": "application/vnd.cncf.helm"}', InputError),
            (b'{"manifests": []}', InputError),
            (giant, LimitError),
        ):
            with pytest.raises(error):
                self.asked(file, {"/manifests/x": (200, {}, manifest)})
            assert not any("/blobs/" in path for _, path, _ in self.told.asked)

    def test_a_registry_that_cannot_be_reached(self, file: Path) -> None:
        with told_registry({}) as (host, _):
            pass
        with pytest.raises(RegistryError, match=f"registry {host} cannot be used: .*refused"):
            _answer(file, f"oci://{host}/k:x")

    def test_a_token_is_fetched_with_the_password_and_used(self, file: Path) -> None:
        with told_registry(dict(GOOD)) as (host, told):
            realm = f'Bearer realm="http://{host}/token",service="r",scope="repository:k:pull"'
            denied = 401, {"WWW-Authenticate": realm}, b"{}"
            told.answers |= {"/v2/": denied, "/token": (200, {}, b'{"token": "T"}')}
            manifests, told.answers["/manifests/x"] = told.answers["/manifests/x"], denied
            with pytest.raises(InputError, match="does not let k be read"):
                _answer(file, f"oci://{host}/k:x", user=["u", "p"])
            basic = f"Basic {base64.b64encode(b'u:p').decode()}"
            assert next(a for _, path, a in told.asked if "/token" in path) == basic
            assert told.asked[-1][2] == "Bearer T"
            told.answers |= {"/manifests/x": manifests, "/token": (403, {}, b"")}
            told.answers["/v2/"] = 200, {}, b""
            assert _answer(file, f"oci://{host}/k:x", user=["u", "p"])["layer"] == digest(LINES)

    def test_a_token_is_not_fetched_unencrypted_from_another_machine(self, file: Path) -> None:
        realm = 'Bearer realm="http://192.0.2.1/token",service="r"'
        denied = 401, {"WWW-Authenticate": realm}, b"{}"
        with pytest.raises(RegistryError, match=r"unencrypted connection to 192\.0\.2\.1"):
            self.asked(file, {"/v2/": denied, "/manifests/x": denied}, user=["u", "p"])

    def test_a_registry_that_does_not_take_what_is_pushed(self, file: Path) -> None:
        for status, error in ((404, InputError), (405, RegistryError), (500, RegistryError)):
            refusal = status, {}, b'{"errors": [{"message": "read only"}]}'
            with pytest.raises(error):
                self.asked(file, {"/blobs/uploads/": refusal}, annotations={})

    def test_a_registry_that_keeps_another_manifest(self, file: Path) -> None:
        other = 201, {"Docker-Content-Digest": digest(b"")}, b""
        there = {"/manifests/x": other, "/blobs/" + digest(b"{}"): (200, {}, b"")}
        with pytest.raises(RegistryError, match="has kept another manifest than it was given"):
            self.asked(file, there, annotations={})


class TestLimits:
    @pytest.mark.thorough
    def test_a_registry_that_hangs_is_given_up(self, file: Path) -> None:
        for end in ("/manifests/x", digest(LINES)):
            with (
                told_registry(dict(GOOD), hang=end) as (host, _),
                pytest.raises(LimitError, match=f"registry {host} took longer than 3 s"),
            ):
                pull(file, at(host, "k:x"), Login(seconds=3.0))

    def test_a_registry_that_waits_for_ever_is_given_up_earlier(
        self, file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from mcfuser_service.oci import registry

        monkeypatch.setattr(registry, "WAITING", 0.2)
        with (
            told_registry(dict(GOOD), hang="/manifests/x") as (host, _),
            pytest.raises(LimitError, match=f"registry {host} does not answer in time"),
        ):
            _answer(file, f"oci://{host}/k:x")

    def test_too_much_is_not_pushed_and_digests_are_not_chosen(
        self, file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(InputError, match="give a tag instead"):
            push(file, at("h", f"k@{digest(b'')}"), {}, Login())
        monkeypatch.setattr(transfer, "LARGEST", len(LINES) - 1)
        with pytest.raises(LimitError, match="44 bytes, more than the 43"):
            push(file, at("h"), {}, Login())

    def test_a_process_that_dies_is_told_of(
        self, file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(transfer, "_MODULE", "no_such_module")
        with pytest.raises(RegistryError, match="the process that speaks to it was stopped"):
            pull(file, at("127.0.0.1:1"), Login())


def test_the_extra_is_named_where_it_is_missing() -> None:
    with pytest.raises(InputError, match=r"pip install 'mcfuser\[oci\]'"):
        transfer.check_installed(lambda name: None)
