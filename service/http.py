"""Around every request: who may ask, problems as JSON, one line in the log, two metrics."""

from __future__ import annotations

import ipaddress
import logging
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from db import StorageError
from service.metrics import Metrics
from service.problems import ProblemError, problem

log = logging.getLogger(__name__)


class ProblemResponse(JSONResponse):
    media_type = "application/problem+json"


def answer(
    details: Mapping[str, Any], path: str, headers: Mapping[str, str] | None = None
) -> ProblemResponse:
    """The problem as a response; its instance is the address that was asked for."""
    body = {**details, "instance": path}
    return ProblemResponse(body, int(details["status"]), dict(headers or {}))


def add_handlers(app: FastAPI) -> None:
    """Every error that leaves the application is a problem."""

    @app.exception_handler(ProblemError)
    async def known(request: Request, error: ProblemError) -> ProblemResponse:
        return answer(error.details, request.url.path, error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> ProblemResponse:
        found = [
            {"in": str(e["loc"][0]), "name": ".".join(str(p) for p in e["loc"][1:]),
             "detail": str(e["msg"]).removeprefix("Value error, ")}
            for e in error.errors()
        ]  # fmt: skip
        detail = "; ".join(f"{e['in']} '{e['name']}': {e['detail']}" for e in found)
        return answer(problem("bad-option", detail, errors=found), request.url.path)

    @app.exception_handler(HTTPException)
    async def other(request: Request, error: HTTPException) -> ProblemResponse:
        title = HTTPStatus(error.status_code).phrase
        detail = f"{request.method} {request.url.path}: {error.detail}"
        details = {"type": "about:blank", "title": title, "status": error.status_code,
                   "detail": detail}  # fmt: skip
        return answer(details, request.url.path, error.headers)

    @app.exception_handler(StorageError)
    async def storage(request: Request, error: Exception) -> ProblemResponse:
        log.error("database: %s", error)
        details = problem("storage", "the database does not answer; try again in a while")
        return answer(details, request.url.path, {"Retry-After": "5"})


class Gate:
    """ASGI middleware.

    A server on loopback has no login, so the browser is the way in: pages of other sites may not
    change anything (Origin), nor read anything under a name of their own (Host).
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, host: str) -> None:
        self._app = app
        self._metrics = metrics
        self._local = _is_loopback(host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = time.perf_counter()
        status = 500
        name = uuid4().hex[:12]

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", name.encode()),
                                      (b"x-content-type-options", b"nosniff")]  # fmt: skip
            await send(message)

        try:
            await self._pass(scope, receive, watched)
        except Exception:
            log.exception("request raised", extra={"request": name})
            details = problem("bug", f"the server failed; its log says why under request {name}")
            await answer(details, scope["path"])(scope, receive, watched)
        finally:
            self._note(scope, status, time.perf_counter() - begun, name)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        host = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
        origin = request.headers.get("origin")
        if self._local and not _is_loopback(host):
            details = problem("wrong-host", f"this server is on loopback and is not '{host}'")
            await answer(details, scope["path"])(scope, receive, send)
        elif origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
            details = problem("cross-origin", f"a page of {origin} may not use this server")
            await answer(details, scope["path"])(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _note(self, scope: Scope, status: int, seconds: float, name: str) -> None:
        route = getattr(scope.get("route"), "path", "none")
        self._metrics.requests.labels(scope["method"], route, str(status)).inc()
        self._metrics.seconds.labels(scope["method"], route).observe(seconds)
        log.info(
            "request",
            extra={"request": name, "method": scope["method"], "path": scope["path"],
                   "status": status, "seconds": seconds},
        )  # fmt: skip


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
