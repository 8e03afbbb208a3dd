"""The routes of /v1/kernels: the tuned kernels."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Path, Query, Response
from fastapi.responses import JSONResponse

from mcfuser_db import Storage
from mcfuser_service.documents import as_json, finite
from mcfuser_service.openapi import document, problems, readable
from mcfuser_service.problems import error
from mcfuser_service.queries import Word, only
from mcfuser_service.schemas import KernelOut, KernelPage

_KEY = "^[0-9a-f]{64}$"


def router(store: Storage) -> APIRouter:
    """The routes, given the database."""
    routes = APIRouter(prefix="/v1/kernels", tags=["kernels"])

    @readable(
        routes,
        "",
        response_model=KernelPage,
        responses=problems(),
        dependencies=[only("device", "chain", "limit", "after")],
    )
    def listed(
        device: Word | None = None,
        chain: Annotated[Word | None, Query(description="a chain's name or key")] = None,
        limit: Annotated[int, Query(ge=1, le=500)] = 50,
        after: Annotated[str | None, Query(pattern=_KEY)] = None,
    ) -> Response:
        rows = store.kernels(device, chain, limit, after)
        asked = {
            "device": device,
            "chain": chain,
            "limit": limit,
            "after": rows[-1].key if rows else None,
        }
        query = urlencode({k: v for k, v in asked.items() if v is not None})
        more = f"/v1/kernels?{query}" if len(rows) == limit else None
        page = KernelPage(items=[KernelOut.model_validate(r) for r in rows], next=more)
        return as_json(page)

    @readable(
        routes,
        "/{key}",
        response_model=None,
        dependencies=[only()],
        responses={**document("Kernel"), **problems("no-such-kernel")},
    )
    def whole(key: Annotated[str, Path(pattern=_KEY)]) -> Response:
        """The chosen candidate, its source, how it was measured; the binary is in base64."""
        found = store.kernel(key)
        if found is None:
            raise error("no-such-kernel", f"no kernel has the key {key}; list them at /v1/kernels")
        return JSONResponse(finite(found))

    return routes
