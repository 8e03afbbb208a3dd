"""/v1/kernels: what has been tuned."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Path, Query

from db import Store
from service.problems import error
from service.schemas import KernelOut, KernelPage


def router(store: Store) -> APIRouter:
    """The routes over a store."""
    routes = APIRouter(prefix="/v1/kernels", tags=["kernels"])

    @routes.get("")
    def listed(
        device: str | None = None,
        chain: Annotated[str | None, Query(description="a chain's name or key")] = None,
        limit: Annotated[int, Query(ge=1, le=500)] = 50,
        after: str | None = None,
    ) -> KernelPage:
        rows = store.kernels(device, chain, limit, after)
        asked = {
            "device": device,
            "chain": chain,
            "limit": limit,
            "after": rows[-1].key if rows else None,
        }
        query = urlencode({k: v for k, v in asked.items() if v is not None})
        more = f"/v1/kernels?{query}" if len(rows) == limit else None
        return KernelPage(items=[KernelOut.model_validate(r) for r in rows], next=more)

    @routes.get("/{key}")
    def whole(key: Annotated[str, Path(pattern="^[0-9a-f]{64}$")]) -> dict[str, Any]:
        """The chosen candidate, its source, how it was measured; the binary is in base64."""
        document = store.kernel(key)
        if document is None:
            raise error("no-such-kernel", f"no kernel has the key {key}; list them at /v1/kernels")
        return document

    return routes
