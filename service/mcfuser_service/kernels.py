"""The routes of /v1/kernels: the tuned kernels."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Path, Query, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import Field

from mcfuser.finite import finite
from mcfuser_db import Storage
from mcfuser_db.kernel_search import KernelOrder, KernelQuery
from mcfuser_service.documents import as_json
from mcfuser_service.explaining import Explainer
from mcfuser_service.export import exported
from mcfuser_service.occupancy import occupancy_of
from mcfuser_service.openapi import document, problems, readable
from mcfuser_service.problems import ProblemError, error
from mcfuser_service.queries import Word, only
from mcfuser_service.roofline import roofline
from mcfuser_service.schemas import (
    CandidateOut,
    CandidatePage,
    KernelAgeOut,
    KernelAges,
    KernelOut,
    KernelPage,
    LookupOut,
    RooflineOut,
)

_KEY = "^[0-9a-f]{64}$"
_NDJSON = "application/x-ndjson"
_LINES: dict[int | str, dict[str, Any]] = {
    200: {"description": "OK", "content": {_NDJSON: {"schema": {"type": "string"}}}},
    **problems(),
}


Explain = Callable[[str, str | None, str], Awaitable[dict[str, Any]]]
"""Gives the document that says which kept kernel a chain uses on a device; the last word is the
type of its tensors. Raises ProblemError."""
_KeyOf = Annotated[str, Path(pattern=_KEY)]
_MOST_AGES = 100


def router(store: Storage, explain: Explain, explainer: Explainer) -> APIRouter:
    """The routes, given the database, and what knows with which compilers kernels are made here."""
    routes = APIRouter(prefix="/v1/kernels", tags=["kernels"])

    @readable(
        routes,
        "",
        response_model=KernelPage,
        responses=problems(),
        dependencies=[only("device", "chain", "q", "sort", "order", "limit", "after")],
    )
    def listed(
        device: Word | None = None,
        chain: Annotated[Word | None, Query(description="a chain's name or key")] = None,
        q: Annotated[
            Word,
            Query(
                description="words, each in the chain's name, the device or the type, or at the "
                "beginning of the key"
            ),
        ] = "",
        sort: KernelOrder = "created",
        order: Literal["desc", "asc"] = "desc",
        limit: Annotated[int, Query(ge=1, le=500)] = 50,
        after: Annotated[str | None, Query(pattern=_KEY)] = None,
    ) -> Response:
        searched = bool(q.strip()) or (sort, order) != ("created", "desc")
        if chain is None and searched:
            asked = KernelQuery(q, device, sort, order == "desc")
            found = store.find_kernels(asked, limit, after)
            rows, last = found.rows, found.last
        elif searched:
            raise error(
                "bad-option",
                "the kernels of one chain come newest first; leave q, sort and order away, or "
                "search for the chain's name with q",
            )
        else:
            rows = store.kernels(device, chain, limit, after)
            last = rows[-1].key if len(rows) == limit else None
        every = {"device": device, "chain": chain, "q": q or None, "limit": limit, "after": last}
        every |= {"sort": sort, "order": order} if q or searched else {}
        query = urlencode({k: v for k, v in every.items() if v is not None})
        more = f"/v1/kernels?{query}" if last is not None else None
        page = KernelPage(items=[KernelOut.model_validate(r) for r in rows], next=more)
        return as_json(page)

    @readable(routes, "/ages", responses=problems("busy"), dependencies=[only("key")])
    async def ages(
        key: Annotated[
            list[Annotated[str, Field(pattern=_KEY)]], Query(min_length=1, max_length=_MOST_AGES)
        ],
    ) -> KernelAges:
        """How old kernels are here. The first question about a device takes some seconds."""
        found = await explainer.ages(list(dict.fromkeys(key)))
        return KernelAges(items=[KernelAgeOut.model_validate(a) for a in found])

    @readable(routes, "/explain", responses=problems("busy"),
              dependencies=[only("chain", "device", "dtype")])  # fmt: skip
    async def explained(
        chain: Annotated[
            Word, Query(description="gemm:batch,M,N,K,H, or the key of a chain or of a kernel")
        ],
        device: Word | None = None,
        dtype: Literal["float32", "float16", "bfloat16"] = "float32",
    ) -> LookupOut:
        """Which kept kernel a chain uses, or the nearest ones and what differs, in words."""
        return LookupOut.model_validate(await explain(chain, device, dtype))

    @readable(routes, "/export", response_class=StreamingResponse, responses=_LINES,
              dependencies=[only("device", "chain", "key")])  # fmt: skip
    def lines(
        device: Word | None = None,
        chain: Annotated[Word | None, Query(description="a chain's name or key")] = None,
        key: Annotated[str | None, Query(pattern=_KEY)] = None,
    ) -> StreamingResponse:
        """Kernels as mcfuser cache export writes them: a header, then a line of JSON for each."""
        return StreamingResponse(exported(store, device, chain, key), media_type=_NDJSON)

    @readable(
        routes,
        "/{key}/candidates",
        responses=problems("no-such-kernel"),
        dependencies=[only("limit", "after")],
    )
    def tried(
        key: _KeyOf,
        limit: Annotated[int, Query(ge=1, le=500)] = 100,
        after: Annotated[int, Query(ge=0, le=1 << 31)] = 0,
    ) -> CandidatePage:
        """The candidates that were measured under a key, in that order, also of a search that has
        kept no kernel; the axes are then named by their positions."""
        every, kernel = store.tried(key), store.get(key)
        if kernel is None and not every:
            raise _unknown(key)
        axes = [a.name for a in kernel.chain.axes] if kernel is not None else None
        page = every[after : after + limit]
        end = after + len(page)
        more = f"/v1/kernels/{key}/candidates?limit={limit}&after={end}"
        return CandidatePage(
            items=[CandidateOut.model_validate(t.named(axes)) for t in page],
            next=more if end < len(every) else None,
        )

    @readable(
        routes,
        "/{key}/roofline",
        responses=problems("no-such-kernel", "busy"),
        dependencies=[only()],
    )
    async def under_roof(key: _KeyOf) -> RooflineOut:
        """Where the kernel and others of its device are under the device's roofline."""
        rows = await run_in_threadpool(store.kernels_of, [key])
        if not rows:
            raise _unknown(key)
        device = await explainer.device(rows[0].device)
        return await run_in_threadpool(roofline, store, rows[0], device)

    @readable(
        routes,
        "/{key}",
        response_model=None,
        dependencies=[only()],
        responses={**document("Kernel"), **problems("no-such-kernel")},
    )
    def whole(key: _KeyOf) -> Response:
        """The chosen candidate, its source, how it was measured; the binary is in base64. How many
        of its blocks run at a time is told with it, and not kept."""
        found = store.kernel(key)
        if found is None:
            raise _unknown(key)
        return JSONResponse(finite({**found, "occupancy": occupancy_of(found)}))

    return routes


def _unknown(key: str) -> ProblemError:
    return error("no-such-kernel", f"no kernel has the key {key}; list them at /v1/kernels")
