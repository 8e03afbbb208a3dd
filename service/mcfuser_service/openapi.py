"""The parts of /openapi.json that are not in the routes' signatures: problems, HEAD, documents."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from mcfuser_service.access import secured
from mcfuser_service.documents import KernelDocument, Problem, Report
from mcfuser_service.problems import KINDS

EVERYWHERE = (
    "malformed", "cross-origin", "wrong-host", "bad-option", "no-key", "not-allowed",
    "too-many-requests", "bug", "storage", "disk-full",
)  # fmt: skip
"""The problems that any path may answer with."""
_PREFIX = "#/components/schemas/"
_UNUSED = ("HTTPValidationError", "ValidationError")

Route = Callable[..., Any]


def problems(*kinds: str) -> dict[int | str, dict[str, Any]]:
    """The error responses of a route, for its `responses`: problems of these kinds, and of
    EVERYWHERE."""
    found: dict[int | str, dict[str, Any]] = {}
    for kind in dict.fromkeys((*kinds, *EVERYWHERE)):
        status, title = KINDS[kind]
        words = f"`{kind}`: {title}"
        if status in found:
            found[status]["description"] += f"; {words}"
            continue
        schema = {"$ref": f"{_PREFIX}{Problem.__name__}"}
        content = {"application/problem+json": {"schema": schema}}
        found[status] = {"description": words, "content": content}
    return found


def document(name: str) -> dict[int | str, dict[str, Any]]:
    """The response of a route that serves a kept document, whose schema has this name."""
    schema = {"$ref": f"{_PREFIX}{name}"}
    return {200: {"description": "OK", "content": {"application/json": {"schema": schema}}}}


def readable(routes: APIRouter, path: str, **more: Any) -> Callable[[Route], Route]:
    """Registers a function for GET and HEAD; `describe` documents HEAD."""

    def register(function: Route) -> Route:
        routes.get(path, **more)(function)
        head = copy(routes.routes[-1])  # to make a second one takes as long as the first
        assert isinstance(head, APIRoute)
        head.methods, head.include_in_schema = {"HEAD"}, False
        routes.routes.append(head)
        return function

    return register


def describe(app: FastAPI) -> None:
    """Sets the application's /openapi.json, which is made at the first request."""

    def made() -> dict[str, Any]:
        if app.openapi_schema is None:
            found = get_openapi(
                title=app.title, version=app.version, description=app.description, routes=app.routes
            )
            app.openapi_schema = _completed(found)
        return app.openapi_schema

    app.openapi = made  # type: ignore[method-assign]


def _completed(found: dict[str, Any]) -> dict[str, Any]:
    schemas = found["components"]["schemas"]
    for model in (Problem, Report, KernelDocument):
        own = model.model_json_schema(ref_template=f"{_PREFIX}{{model}}", mode="serialization")
        schemas |= own.pop("$defs", {}) | {own["title"]: own}
    for name in _UNUSED:
        schemas.pop(name, None)
    properties = schemas["JobOut"]["properties"]
    for name, model in (("report", Report), ("problem", Problem)):
        properties[name] = _or_null(model.__name__)
    found["components"]["securitySchemes"] = {
        "key": {
            "type": "http",
            "scheme": "bearer",
            "description": "An API key, which a server on loopback does not ask for unless it is "
            "told to; its scopes are submit, read, import and admin",
        }
    }
    for path, operations in found["paths"].items():
        for method, operation in operations.items():
            operation |= secured(method, path)
            for answer in operation["responses"].values():
                for kind in answer.get("content", {}).values():
                    if "itemSchema" in kind:  # of each event: there is none of them all
                        kind.pop("schema", None)
        if "get" in operations:
            operations["head"] = _head(operations["get"])
    return found


def _or_null(name: str) -> dict[str, Any]:
    return {"anyOf": [{"$ref": f"{_PREFIX}{name}"}, {"type": "null"}]}


def _head(get: dict[str, Any]) -> dict[str, Any]:
    """The operation HEAD for an operation GET: the same without a body."""
    shared = {k: v for k, v in get.items() if k not in ("responses", "operationId")}
    answers = {
        status: {k: v for k, v in answer.items() if k != "content"}
        for status, answer in get["responses"].items()
    }
    return {**shared, "operationId": f"{get['operationId']}_head", "responses": answers}
