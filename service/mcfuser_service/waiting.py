"""What a server answers while its database has never answered: that it lives, and is not ready."""

from __future__ import annotations

from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from mcfuser.revision import revision
from mcfuser_service.problems import problem
from mcfuser_service.schemas import Alive, Health
from mcfuser_service.settings import ServiceSettings

LATER = {"Retry-After": "5"}
"""When a request that the database did not answer may be sent again."""


def silent_health(settings: ServiceSettings, alive: int) -> Health:
    """The health of a server whose database does not answer."""
    return Health(
        status="degraded",
        version=revision(),
        database="silent",
        workers={"alive": alive, "wanted": settings.workers, "everywhere": alive},
        jobs={},
        oldest_queued_seconds=None,
    )


def waiting_app(settings: ServiceSettings) -> ASGIApp:
    """The application that stands in for the service until the database answers."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await _answer(scope["path"], settings)(scope, receive, send)

    return app


def _answer(path: str, settings: ServiceSettings) -> Response:
    if path == "/livez":
        return JSONResponse(Alive().model_dump())
    if path == "/healthz":
        return JSONResponse(silent_health(settings, 0).model_dump(), 503, LATER)
    details = problem("storage", "the database does not answer yet; try again in a while")
    return JSONResponse(
        {**details, "instance": path}, 503, LATER, media_type="application/problem+json"
    )
