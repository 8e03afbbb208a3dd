"""The process in which kernels are pushed to a registry and pulled (mcfuser.process.confined)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import requests

from mcfuser.errors import InputError, LimitError, RegistryError
from mcfuser_service.oci.artefact import EMPTY, LINES, NOTHING, manifest, read_manifest
from mcfuser_service.oci.reference import read_reference
from mcfuser_service.oci.registry import Registry


def answer(request: Mapping[str, Any], tell: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
    """Pushes or pulls kernels.

    `request` has the `reference`, `plain_http`, the `user` (a name and a password) or None, and the
    file (`config`) in which Docker keeps credentials.
    Where `annotations` are there, the `file` is pushed with them, and the answer has the manifest's
    `digest`. Else the reference's layer is written to the `file`, unless it has the digest `known`;
    the answer has the manifest's `digest`, the `layer`'s, and the `annotations`.
    Raises InputError, RegistryError or LimitError.
    """
    reference, file = read_reference(request["reference"]), Path(request["file"])
    user = tuple(request["user"]) if request["user"] is not None else None
    host = reference.host
    try:
        config = Path(request["config"])
        registry = Registry(reference, request["plain_http"], user, config)
        if request["annotations"] is not None:
            return {"digest": _pushed(registry, file, request["annotations"])}
        return _pulled(registry, file, request["known"])
    except InputError:
        raise
    except requests.exceptions.SSLError as error:
        raise RegistryError(
            f"registry {host} cannot prove who it is: {_words(error)}; name its authority in "
            "REQUESTS_CA_BUNDLE, or say --plain-http where it speaks plain HTTP"
        ) from None
    except requests.exceptions.Timeout:
        raise LimitError(f"registry {host} does not answer in time; try again later") from None
    except requests.RequestException as error:
        raise RegistryError(f"registry {host} cannot be used: {_words(error)}") from None
    except ValueError as error:  # oras has not understood an answer, or was refused
        if "authentication" in str(error):
            raise InputError(
                f"registry {host} refuses the credentials for {reference.repository}; log in with "
                f"docker login {host}, or give --username and a password"
            ) from None
        raise RegistryError(f"registry {host} is not understood: {_words(error)}") from None


def _pushed(registry: Registry, file: Path, annotations: Mapping[str, str]) -> str:
    empty = Path("empty.json")  # in the process's own folder
    empty.write_bytes(NOTHING)
    configuration = registry.upload(empty, EMPTY)
    layer = registry.upload(file, LINES)
    return registry.put_manifest(manifest(configuration, layer, annotations))


def _pulled(registry: Registry, file: Path, known: str | None) -> dict[str, Any]:
    found = read_manifest(*registry.manifest(), str(registry.reference))
    if found.layer.digest != known:
        registry.fetch(found.layer, file)
    return {
        "digest": found.digest,
        "layer": found.layer.digest,
        "annotations": dict(found.annotations),
    }


def _words(error: Exception) -> str:
    """The innermost reason of an error of requests or urllib3."""
    reason: object = error
    for _ in range(5):
        inner = getattr(reason, "reason", None) or next(iter(getattr(reason, "args", ())), None)
        if not isinstance(inner, Exception):
            break
        reason = inner
    words = str(reason).rpartition("object at 0x")[2] or str(reason)
    return words.partition(": ")[2][:200] or words[:200]
