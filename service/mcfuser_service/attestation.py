"""Signs what workers compile, and serves the signed statements and the public key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from fastapi import APIRouter, Response

from mcfuser.signing.dsse import MEDIA_TYPE, sealed
from mcfuser.signing.key import SigningKey, read_passphrase, read_signing_key
from mcfuser.signing.statement import Subject, statement
from mcfuser_db import Storage
from mcfuser_service.documents import served
from mcfuser_service.lookup import UNDONE, done
from mcfuser_service.openapi import problems, readable
from mcfuser_service.problems import error
from mcfuser_service.queries import only
from mcfuser_service.settings import ServiceSettings

_PEM = "application/x-pem-file"


def signing_key(settings: ServiceSettings) -> SigningKey | None:
    """The key that modules are signed with; None where there is none. Raises InputError where it
    cannot be read."""
    if settings.signing_key is None:
        return None
    file = settings.signing_passphrase_file
    return read_signing_key(
        settings.signing_key, None if file is None else lambda: read_passphrase(file)
    )


def attested(key: SigningKey | None, report: Mapping[str, Any], module: Subject) -> str | None:
    """The envelope with the signed statement of a module and of its report, as that is served.

    None without a key. Raises InputError where the report is not one of a compilation.
    """
    if key is None:
        return None
    return sealed(statement(served(report), module), key).line.decode()


def router(settings: ServiceSettings, store: Storage) -> APIRouter:
    """The routes. Raises InputError where the settings' key cannot be read."""
    routes = APIRouter(prefix="/v1", tags=["signatures"])
    key = signing_key(settings)
    pem = key.public.pem if key is not None else None

    @readable(
        routes,
        "/jobs/{id}/attestation",
        response_class=Response,
        responses={**_text(MEDIA_TYPE), **problems("not-signed", *UNDONE)},
        dependencies=[only()],
    )
    def attestation(id: UUID) -> Response:
        """What is signed of a job that is done: an in-toto statement about its module and its
        report, in a DSSE envelope; a line of JSON."""
        done(store, id)
        envelope = store.attestation(id)
        if envelope is None:
            raise error(
                "not-signed",
                f"the module of job {id} was not signed: there was no MCFUSER_SIGNING_KEY when it "
                "was compiled; post the model with retune=true for a signed one",
            )
        return Response(envelope, media_type=MEDIA_TYPE)

    @readable(
        routes,
        "/signing-key",
        response_class=Response,
        responses={**_text(_PEM), **problems("not-signed")},
        dependencies=[only()],
    )
    def public() -> Response:
        """The public key of the signatures that are made now, in PEM."""
        if pem is None:
            raise error("not-signed", "this server signs nothing: it has no MCFUSER_SIGNING_KEY")
        return Response(pem, media_type=_PEM)

    return routes


def _text(kind: str) -> dict[int | str, dict[str, Any]]:
    return {200: {"description": "OK", "content": {kind: {"schema": {"type": "string"}}}}}
