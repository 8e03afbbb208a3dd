"""Middleware around every request: who may ask, errors as JSON, a line in the log, two metrics."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Collection, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcfuser_db import OverQuota, StorageError, is_full
from mcfuser_service.access import PROBES, Access, Caller
from mcfuser_service.hosts import host_of, is_allowed
from mcfuser_service.metrics import Metrics
from mcfuser_service.problems import ProblemError, problem

log = logging.getLogger(__name__)


class ProblemResponse(JSONResponse):
    media_type = "application/problem+json"


def answer(
    details: Mapping[str, Any], path: str, headers: Mapping[str, str] | None = None
) -> ProblemResponse:
    """A problem as a response; its `instance` is the requested path."""
    body = {**details, "instance": path}
    return ProblemResponse(body, int(details["status"]), dict(headers or {}))


def add_handlers(app: FastAPI, routes: Sequence[BaseRoute]) -> None:
    """Makes the application answer every error with a problem; `routes` are all its routes."""

    @app.exception_handler(ProblemError)
    async def known(request: Request, error: ProblemError) -> ProblemResponse:
        return answer(error.details, request.scope["path"], error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> ProblemResponse:
        found = [
            {
                "in": str(e["loc"][0]),
                "name": ".".join(str(p) for p in e["loc"][1:])[:100],
                "detail": str(e["msg"]).removeprefix("Value error, "),
            }
            for e in error.errors()[:9]
        ]
        detail = "; ".join(f"{e['in']} '{e['name']}': {e['detail']}" for e in found)
        return answer(problem("bad-option", detail, errors=found), request.scope["path"])

    @app.exception_handler(HTTPException)
    async def other(request: Request, error: HTTPException) -> ProblemResponse:
        headers = dict(error.headers or {})
        if error.status_code == 405:
            headers["Allow"] = ", ".join(sorted(_methods(routes, request.scope)))
        detail = f"{request.method} {request.scope['path']}: {error.detail}"
        return answer(_plain(error.status_code, detail), request.scope["path"], headers)

    @app.exception_handler(StorageError)
    async def storage(request: Request, error: Exception) -> ProblemResponse:
        return _full(request, error) if is_full(error) else _silent(request, error)

    @app.exception_handler(OverQuota)
    async def quota(request: Request, error: OverQuota) -> ProblemResponse:
        if error.what == "disk":  # only people can help
            return answer(problem("over-quota", str(error)), request.scope["path"])
        details = problem("too-many-queued", str(error))
        return answer(details, request.scope["path"], {"Retry-After": "10"})

    @app.exception_handler(OSError)
    async def files(request: Request, error: Exception) -> ProblemResponse:
        if is_full(error):
            return _full(request, error)
        log.error("data folder: %s", error)
        details = problem("storage", "the data folder cannot be used; try again in a while")
        return answer(details, request.scope["path"], {"Retry-After": "5"})


def _silent(request: Request, error: Exception) -> ProblemResponse:
    log.error("database: %s", error)
    details = problem("storage", "the database does not answer; try again in a while")
    return answer(details, request.scope["path"], {"Retry-After": "5"})


def _full(request: Request, error: Exception) -> ProblemResponse:
    log.error("disk is full: %s", error)
    details = problem("disk-full", "the server's disk is full; try again when there is room")
    return answer(details, request.scope["path"], {"Retry-After": "60"})


def _plain(status: int, detail: str) -> dict[str, Any]:
    """A problem without more details than its status."""
    title = HTTPStatus(status).phrase
    return {"type": "about:blank", "title": title, "status": status, "detail": detail}


def _methods(routes: Sequence[BaseRoute], scope: Scope) -> set[str]:
    """The methods that a path answers to."""
    found: set[str] = set()
    for route in routes:
        if isinstance(route, Route) and route.path_regex.match(scope["path"]):
            found |= route.methods or set()
    return found


class Gate:
    """ASGI middleware.

    A server on loopback asks for no key, so other sites could reach it through the user's browser.
    Their pages may neither change anything (Origin), nor read under a name of their own (Host).
    Requests that pass have their caller (service.access) in the scope as `user`.
    """

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        access: Access,
        host: str,
        allowed: Collection[str] = (),
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._access = access
        self._host = host
        self._allowed = frozenset(allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = time.perf_counter()
        name = f"{random.getrandbits(48):012x}"
        out = _Answer(scope, receive, send, name)
        try:
            await self._pass(scope, receive, out.send)
        except ClientDisconnect:  # there is no one to answer
            out.status = _GONE
        except Exception:
            log.exception("request raised", extra={"request": name})
            details = problem("bug", f"the server failed; its log says why under request {name}")
            if not out.begun:
                await answer(details, scope["path"])(scope, receive, out.send)
        finally:
            self._note(scope, out.status, time.perf_counter() - begun, name)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = await self._refused(Request(scope))
        await (refused or self._app)(scope, receive, send)

    async def _refused(self, request: Request) -> ProblemResponse | None:
        """The answer to a request that is refused; None, and the caller noted, if it is not."""
        path = request.scope["path"]
        details = self._refusal(request)
        if details is not None:
            return answer(details, path)
        try:
            caller = await self._access.caller(request.method, path, request.headers)
        except ProblemError as error:
            return answer(error.details, path, error.headers)
        except StorageError as error:
            return _silent(request, error)
        request.scope["user"] = caller
        return None

    def _refusal(self, request: Request) -> dict[str, Any] | None:
        """The problem for which a request is refused, None if it is not."""
        header = request.headers.get("host", "")
        host = host_of(header)
        if host is None:
            return problem("malformed", f"Host '{header[:100]}' is not a name or an address")
        probed = request.scope["path"] in PROBES
        if not (probed or is_allowed(host, self._host, self._allowed)):
            return problem(
                "wrong-host",
                f"this server does not answer as '{host[:100]}'; ask it under "
                "another name, or let MCFUSER_ALLOWED_HOSTS have this one",
            )
        origin = request.headers.get("origin")
        own = header.lower()
        if origin is not None and (not own or origin.partition("://")[2].lower() != own):
            return problem("cross-origin", f"a page of '{origin[:100]}' may not use this server")
        return None

    def _note(self, scope: Scope, status: int, seconds: float, name: str) -> None:
        route = getattr(scope.get("route"), "path", "none")
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._metrics.requests.labels(method, route, str(status)).inc()
        if not scope.get("waits"):
            self._metrics.seconds.labels(method, route).observe(seconds)
        caller = scope.get("user")
        log.info(
            "request",
            extra={
                **({"key": caller.name} if isinstance(caller, Caller) and caller.name else {}),
                "request": name,
                "method": scope["method"],
                "path": scope["path"][:1000],
                "status": status,
                "seconds": seconds,
            },
        )


class _Answer:
    """Passes a response on: notes its status, adds headers, and turns other errors into
    problems."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, name: str) -> None:
        self.status = 500
        self.begun = False
        self._scope, self._receive, self._send = scope, receive, send
        self._name = name.encode()
        self._replaced = False

    async def send(self, message: Message) -> None:
        if message["type"] != "http.response.start":
            if not self._replaced:
                await self._send(message)
            return
        self.status = message["status"]
        headers = Headers(raw=message["headers"])
        kind = headers.get("content-type", "")
        if self.status >= 400 and not kind.startswith(_JSON):
            self._replaced = True
            kept = {n: headers[n] for n in _KEPT if n in headers}
            detail = f"{self._scope['method']} {self._scope['path']} cannot be answered"
            if self.status in _REASONS:
                detail = _REASONS[self.status]
            made = answer(_plain(self.status, detail), self._scope["path"], kept)
            await made(self._scope, self._receive, self._pass)
            return
        await self._pass(message)

    async def _pass(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begun = True
            message["headers"] = [
                *message["headers"],
                (b"x-request-id", self._name),
                (b"x-content-type-options", b"nosniff"),
            ]
        await self._send(message)


_GONE = 499
"""The status, in the log and the metrics, of a request whose client has disconnected."""
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"})
_JSON = ("application/problem+json", "application/json")
_KEPT = ("content-range", "allow", "retry-after", "etag", "www-authenticate")
_REASONS = {
    400: "a header of the request cannot be read, such as Range",
    416: "the Range that is asked for lies outside the file",
}
