"""Pushes kernels to a registry, and pulls them, in a process with limits."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mcfuser.errors import InputError, LimitError, RegistryError
from mcfuser.process.confined import Limits, Stopped, run
from mcfuser_service.oci.artefact import LARGEST
from mcfuser_service.oci.reference import Reference
from mcfuser_service.settings import docker_config

log = logging.getLogger(__name__)

SECONDS = 300.0
"""The time of a transfer, unless another one is given."""
_MODULE = "mcfuser_service.oci.transfer_child"
_MEMORY = 1 << 30  # bytes: a layer is read as a whole before it is pushed


@dataclass(frozen=True, slots=True)
class Login:
    """How a registry is spoken to: over `plain_http` also where it is on another machine, as a
    `user` with a `password`, or as Docker does if that is None, for at most so many `seconds`."""

    plain_http: bool = False
    user: str | None = None
    password: str = field(default="", repr=False)
    seconds: float = SECONDS


@dataclass(frozen=True, slots=True)
class Pulled:
    """An artefact that was pulled: the digests of its manifest and of its `layer`, and the
    manifest's annotations."""

    digest: str
    layer: str
    annotations: Mapping[str, str]


def push(file: Path, reference: Reference, annotations: Mapping[str, str], access: Login) -> str:
    """Pushes a file that mcfuser cache export wrote under a reference's tag; gives the digest of
    its manifest.

    Raises InputError, RegistryError or LimitError.
    """
    if reference.digest is not None:
        raise InputError(
            f"{reference} names a digest, which is found when it is pushed; give a tag instead"
        )
    if (size := file.stat().st_size) > LARGEST:
        raise LimitError(
            f"the kernels have {size:,} bytes, more than the {LARGEST:,} of one artefact; push "
            "them in parts, with --device or --chain",
            "memory",
        )
    asked = {"annotations": dict(annotations), "known": None}
    digest: str = _run(reference, file, access, asked)["digest"]
    return digest


def pull(file: Path, reference: Reference, access: Login, known: str | None = None) -> Pulled:
    """Writes the lines of the artefact at a reference to a file, unless they have the digest
    `known`.

    Nothing of them is checked but their digest. Raises InputError, RegistryError or LimitError;
    the file is then worth nothing.
    """
    done = _run(reference, file, access, {"annotations": None, "known": known})
    return Pulled(done["digest"], done["layer"], done["annotations"])


def _run(
    reference: Reference, file: Path, access: Login, asked: Mapping[str, Any]
) -> dict[str, Any]:
    check_installed()
    request = {
        "reference": str(reference),
        "file": str(file.absolute()),
        "plain_http": access.plain_http,
        "config": str(docker_config()),
        "user": [access.user, access.password] if access.user is not None else None,
        **asked,
    }
    try:
        return run(_MODULE, request, Limits(memory=_MEMORY, wall=access.seconds))
    except Stopped as stopped:
        log.debug("the last words: %s", stopped.words)
        if stopped.why == "time":
            raise LimitError(
                f"registry {reference.host} took longer than {access.seconds:g} s; try again, or "
                "with a longer --transfer-timeout"
            ) from None
        raise RegistryError(
            f"registry {reference.host} cannot be used: the process that speaks to it was stopped, "
            f"{stopped}"
        ) from None


def check_installed(find: Callable[[str], object] = importlib.util.find_spec) -> None:
    """Raises InputError where the optional dependency is missing."""
    if find("oras") is None:
        raise InputError(
            "registries need the package oras, which is not installed; install mcfuser with its "
            "oci extra: pip install 'mcfuser[oci]'"
        )
