"""A registry, spoken to by oras within bounds: every answer is limited, every digest checked.

Only the process that transfers (mcfuser_service.oci.transfer_child) imports this; it needs the
optional dependency `mcfuser[oci]`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import oras.auth
import oras.container
import oras.oci
import oras.provider
import requests
from requests.adapters import HTTPAdapter

from mcfuser.arguments.files import read_json
from mcfuser.errors import InputError, RegistryError
from mcfuser_service.oci.artefact import LARGEST_MANIFEST, MANIFEST, Layer
from mcfuser_service.oci.reference import Reference, loopback

CONNECTING, WAITING = 10.0, 30.0
"""Seconds until a connection is made, and until the next bytes of an answer come."""
_CHUNK = 1 << 16
_INDEX = "application/vnd.oci.image.index.v1+json"
_DOCKER = "application/vnd.docker.distribution.manifest.v2+json"


class _Bounded(HTTPAdapter):  # type: ignore[misc]  # requests tells no types
    """Waits for no answer for ever, and sends nothing unencrypted to another machine unless that is
    allowed: neither the registry itself nor where it redirects to, or has tokens."""

    def __init__(self, plain_http: bool) -> None:
        super().__init__()
        self._plain_http = plain_http

    def send(self, request: Any, *rest: Any, **given: Any) -> Any:
        url = urlsplit(request.url)
        if url.scheme != "https" and not self._plain_http and not loopback(url.netloc):
            raise RegistryError(
                f"the registry asks for an unencrypted connection to {url.netloc[:200]}; only "
                "--plain-http allows that"
            )
        given["timeout"] = (CONNECTING, WAITING)
        return super().send(request, *rest, **given)


class _Client(oras.provider.Registry):  # type: ignore[misc]  # nor does oras
    """oras' client, which would try a request five times, with two minutes of pauses."""

    def do_request(self, *words: Any, **given: Any) -> Any:
        return oras.provider.Registry.do_request.__wrapped__(self, *words, **given)


class Registry:
    """The registry of a reference, which is told the name and the password `user`; where that is
    None, what Docker keeps for it in the file `config`.

    All methods raise RegistryError where the registry does not do what the OCI distribution
    specification says, InputError where it refuses, or lacks what is asked for.
    """

    def __init__(
        self,
        reference: Reference,
        plain_http: bool,
        user: tuple[str, str] | None,
        config: Path,
    ) -> None:
        self.reference = reference
        insecure = plain_http or reference.loopback
        self._client = _Client(reference.host, insecure=insecure)
        session = self._client.session
        session.auth = _unchanged  # else requests would send what ~/.netrc has
        for prefix in ("https://", "http://"):
            session.mount(prefix, _Bounded(plain_http))
        self._container = oras.container.Container("kernels", registry=reference.host)
        self._container.namespace, _, name = reference.repository.rpartition("/")
        self._container.repository, self._container.tag = name, reference.tag
        self._container.digest = reference.digest
        self._authorize(user, config)

    @property
    def name(self) -> str:
        return f"registry {self.reference.host}"

    def manifest(self) -> tuple[bytes, str]:
        """The bytes of the reference's manifest, and their digest."""
        url = f"{self._client.prefix}://{self._container.manifest_url()}"
        accept = {"Accept": ", ".join((MANIFEST, _INDEX, _DOCKER))}
        with closing(self._client.do_request(url, "GET", headers=accept, stream=True)) as answer:
            self._check(answer, "read")
            data = _first(answer, LARGEST_MANIFEST + 1)
            told = answer.headers.get("Docker-Content-Digest")
        if len(data) > LARGEST_MANIFEST:
            raise RegistryError(
                f"{self.name} gives a manifest of more than {LARGEST_MANIFEST:,} bytes for "
                f"{self.reference}; it is not read"
            )
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        for asked in (self.reference.digest, told):
            if asked is not None and asked != digest:
                raise RegistryError(
                    f"{self.name} gives another manifest for {self.reference} than it says: its "
                    f"digest is {digest}, not {asked[:100]}; do not trust that registry"
                )
        return data, digest

    def fetch(self, layer: Layer, file: Path) -> None:
        """Writes a layer to a file, which holds it only if nothing is raised."""
        digest, size = hashlib.sha256(), 0
        with (
            closing(self._client.get_blob(self._container, layer.digest, stream=True)) as answer,
            file.open("wb") as written,
        ):
            self._check(answer, "read")
            for part in answer.iter_content(_CHUNK):
                size += len(part)
                if size > layer.size:
                    break
                digest.update(part)
                written.write(part)
        if size != layer.size or f"sha256:{digest.hexdigest()}" != layer.digest:
            many = "more" if size > layer.size else f"{size:,}"
            raise RegistryError(
                f"{self.name} gives other kernels for {self.reference} than its manifest names: "
                f"{many} bytes with another digest, not {layer.size:,} with {layer.digest}; do not "
                "trust that registry"
            )

    def upload(self, file: Path, media: str) -> dict[str, Any]:
        """Uploads a file unless it is there; gives its descriptor."""
        descriptor: dict[str, Any] = oras.oci.NewLayer(str(file), media)
        self._check(self._client.upload_blob(str(file), self._container, descriptor), "written to")
        return descriptor

    def put_manifest(self, document: Mapping[str, Any]) -> str:
        """Uploads a manifest under the reference's tag; gives its digest."""
        answer = self._client.upload_manifest(dict(document), self._container)
        self._check(answer, "written to")
        body = answer.request.body
        data = body.encode() if isinstance(body, str) else body
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        told = answer.headers.get("Docker-Content-Digest")
        if told not in (None, digest):
            raise RegistryError(
                f"{self.name} says that it has kept another manifest than it was given: "
                f"{told[:100]}, not {digest}; do not trust that registry"
            )
        return digest

    # --- credentials, and answers that are none

    def _authorize(self, user: tuple[str, str] | None, config: Path) -> None:
        """Finds out what credentials the registry wants, and readies them."""
        client = self._client
        url = f"{client.prefix}://{self.reference.host}/v2/"
        with closing(client.session.get(url, stream=True)) as answer:
            challenge = answer.headers.get("WWW-Authenticate", "")
            if answer.status_code not in (200, 401, 403):
                self._check(answer, "read")
        if challenge.lower().startswith("basic"):
            client.auth = oras.auth.get_auth_backend(
                "basic", client.session, client.prefix == "http"
            )
        if user is not None:
            client.auth.set_basic_auth(*user)
            return
        if config.is_file():
            # oras would look in the home folder alone
            client.auth._auth_config = read_json(config, f"Docker's configuration '{config}'")
            try:
                client.auth.load_configs(self._container)
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                raise InputError(
                    f"the credentials for {self.name} cannot be read from '{config}': {error!r}; "
                    "mend it, or give --username"
                ) from None
        if challenge.lower().startswith("basic") and not hasattr(client.auth, "_basic_auth"):
            raise self._refused("read or written to")

    def _refused(self, what: str) -> InputError:
        host = self.reference.host
        return InputError(
            f"{self.name} does not let {self.reference.repository} be {what} with the credentials "
            f"that it was given; log in with docker login {host}, or give --username and a password"
        )

    def _check(self, answer: requests.Response, what: str) -> None:
        """Raises InputError or RegistryError where an answer is no success."""
        status = answer.status_code
        if status in (200, 201, 202):
            return
        if status in (401, 403):
            raise self._refused(what)
        if status == 404:
            raise InputError(
                f"{self.name} has no {self.reference.repository} that can be {what} at "
                f"{self.reference}; look at its name and its tag"
            )
        raise RegistryError(
            f"{self.name} answers with the status {status} where {self.reference} was to be "
            f"{what}{_reason(answer)}"
        )


def _unchanged(request: Any) -> Any:
    return request


def _first(answer: requests.Response, most: int) -> bytes:
    """At most so many of an answer's first bytes."""
    data = b""
    for part in answer.iter_content(_CHUNK):
        data += part
        if len(data) >= most:
            break
    return data[:most]


def _reason(answer: requests.Response) -> str:
    """What a registry says is wrong, if it does so as the specification has it."""
    try:
        errors = json.loads(_first(answer, LARGEST_MANIFEST))["errors"]
        return f": {str(errors[0]['message'])[:200]}"
    except (ValueError, KeyError, TypeError, IndexError, RuntimeError):
        return ""
