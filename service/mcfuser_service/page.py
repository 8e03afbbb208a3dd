"""The page: the files of the folder `page`, served as they are."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Annotated

from fastapi import APIRouter, Header, HTTPException, Response

from mcfuser_service.etag import is_known
from mcfuser_service.openapi import readable
from mcfuser_service.queries import only

_KINDS = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
POLICY = (
    "default-src 'self'; img-src 'self' blob:; object-src 'none'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
"""The Content-Security-Policy: nothing comes from another origin, no script and no style stands
inside a document, and no text becomes HTML. A figure is a blob while it is saved as a bitmap."""


@dataclass(frozen=True)
class PageFile:
    """A file of the page: its bytes, their SHA-256, and the headers with which they are sent."""

    data: bytes
    digest: str
    headers: Mapping[str, str]


def page_files() -> dict[str, PageFile]:
    """The files of the page by their names, which are all that can be asked for."""
    found = {}
    for file in files("mcfuser_service").joinpath("page").iterdir():
        kind = _KINDS.get(file.name.rpartition(".")[2])
        if kind is not None and file.is_file():
            data = file.read_bytes()
            digest = hashlib.sha256(data).hexdigest()
            found[file.name] = PageFile(data, digest, _headers(digest, kind))
    return found


def _headers(digest: str, kind: str) -> dict[str, str]:
    return {
        "Content-Type": kind,
        "Content-Security-Policy": POLICY,
        "Cache-Control": "no-cache",  # it is asked for anew, and answered with 304
        "ETag": f'"{digest}"',
        "Referrer-Policy": "no-referrer",
    }


def router() -> APIRouter:
    """The routes of the page; its files are read once."""
    routes, found = APIRouter(), page_files()

    def answer(name: str, known: str | None) -> Response:
        file = found.get(name)
        if file is None:
            raise HTTPException(404)
        headers = dict(file.headers)
        if is_known(known, file.digest):
            return Response(status_code=304, headers=headers)
        return Response(file.data, headers=headers)

    @readable(routes, "/", include_in_schema=False, dependencies=[only()])
    def index(if_none_match: Annotated[str | None, Header()] = None) -> Response:
        return answer("index.html", if_none_match)

    @readable(routes, "/page/{file}", include_in_schema=False, dependencies=[only()])
    def one(file: str, if_none_match: Annotated[str | None, Header()] = None) -> Response:
        return answer(file, if_none_match)

    return routes
