"""The routes of /v1/kernels that keep the cache in order: kernels from elsewhere are taken, kept
ones are checked, and old ones are removed, as `mcfuser cache` does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse

from mcfuser.arguments.duration import LONGEST
from mcfuser.tune.lookup import Ages
from mcfuser_db import Blobs, KernelRow, Storage
from mcfuser_service.body import RequestBody
from mcfuser_service.explaining import Explainer
from mcfuser_service.imports import Imports, check_lines
from mcfuser_service.kept import Pruning, soundness
from mcfuser_service.openapi import problems, readable
from mcfuser_service.problems import error
from mcfuser_service.queries import Word, only
from mcfuser_service.schemas import (
    CheckedKernelOut,
    CheckedKernels,
    Duration,
    PrunedKernels,
)
from mcfuser_service.settings import ServiceSettings

LARGEST = 256 << 20
"""Bytes of a file of kernels."""
_KEY = "^[0-9a-f]{64}$"
_NDJSON = "application/x-ndjson"
_TEXT: dict[str, Any] = {_NDJSON: {"schema": {"type": "string"}}}
_SENT: dict[str, Any] = {
    kind: {"schema": {"type": "string", "format": "binary"}}
    for kind in (_NDJSON, "application/octet-stream")
}
_TAKEN = problems("empty-body", "not-raw", "too-large", "stalled", "bad-kernels", "busy")
_Limit = Annotated[int, Query(ge=1, le=500)]
_After = Annotated[str | None, Query(pattern=_KEY)]


def router(
    settings: ServiceSettings, store: Storage, blobs: Blobs, explainer: Explainer
) -> APIRouter:
    """The routes, given the database, the folder for files that arrive, and what knows with which
    compilers kernels are made here."""
    routes = APIRouter(prefix="/v1/kernels", tags=["kernels"])
    imports = Imports(settings)
    sent = "send a file of mcfuser cache export: curl --data-binary @kernels.jsonl"
    body = RequestBody("file", sent, _check_size)

    @routes.post(
        "",
        response_class=StreamingResponse,
        responses={200: {"description": "OK", "content": _TEXT}, **_TAKEN},
        openapi_extra={"requestBody": {"required": True, "content": _SENT}},
        dependencies=[only("timeout")],
    )
    async def take(
        request: Request,
        timeout: Annotated[
            Duration, Query(gt=0, le=LONGEST, description="for building and checking one kernel")
        ] = 60.0,
    ) -> StreamingResponse:
        """Builds, checks and measures here each kernel of a file of `mcfuser cache export`, and
        keeps it. The answer is a line of JSON for each line of the file when it is done, and one
        with the counts. The import ends where the client goes away."""
        request.scope["waits"] = True  # its seconds are the kernels'
        body.check_type(request)
        with ExitStack() as stack:
            stack.enter_context(imports.turn())
            incoming = stack.enter_context(blobs.arriving())
            await body.receive(request, incoming, settings.upload_stall)
            file = incoming.flushed()
            await run_in_threadpool(check_lines, file)
            lines = imports.begin(file, timeout, stack.pop_all())
        return StreamingResponse(lines, media_type=_NDJSON)

    @routes.delete("", responses=problems("busy"),
                 dependencies=[only("days", "device", "stale", "damaged", "dry_run", "limit",
                                    "after")])  # fmt: skip
    async def prune(
        days: Annotated[
            float | None, Query(ge=0, le=36_500, description="kept longer ago than this")
        ] = None,
        device: Word | None = None,
        stale: bool = False,
        damaged: bool = False,
        dry_run: bool = False,
        limit: _Limit = 500,
        after: _After = None,
    ) -> PrunedKernels:
        """Removes kernels that meet every condition, with the candidates of their searches. One
        request looks at `limit` kernels; `next` is the address to ask for the others."""
        before = store.now() - timedelta(days=days) if days is not None else None
        asked = Pruning(before, device, stale, damaged)
        if asked.is_empty:
            raise error("bad-option", "say what to remove: days, device, stale or damaged")
        rows = await run_in_threadpool(store.kernels, device, None, limit, after)
        ages = await explainer.known(rows) if stale else Ages()
        keys = await run_in_threadpool(_met, store, asked, rows, ages)
        searches = await run_in_threadpool(asked.searches, store) if after is None else []
        if not dry_run:
            await run_in_threadpool(store.prune, [*keys, *searches])
        removed = set() if dry_run else set(keys)
        left = [row.key for row in rows if row.key not in removed]
        given = {
            "days": days, "device": device, "stale": stale or None, "damaged": damaged or None,
            "dry_run": dry_run or None, "limit": limit, "after": left[-1] if left else after,
        }  # fmt: skip
        more = _address("", given) if len(rows) == limit else None
        return PrunedKernels(kernels=keys, searches=searches, removed=not dry_run, next=more)

    @readable(routes, "/verify", responses=problems("busy"),
              dependencies=[only("device", "limit", "after")])  # fmt: skip
    async def verify(
        device: Word | None = None,
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
        after: _After = None,
    ) -> CheckedKernels:
        """Reads the whole records of kernels, newest first, and tells whether each is as it was
        written, and of what age. Sources are not generated anew, as the command does."""
        rows = await run_in_threadpool(store.kernels, device, None, limit, after)
        ages = await explainer.known(rows)
        items = await run_in_threadpool(_checked, store, rows, ages)
        given = {"device": device, "limit": limit, "after": rows[-1].key if rows else None}
        more = _address("/verify", given) if len(rows) == limit else None
        return CheckedKernels(items=items, next=more)

    return routes


def _check_size(size: int, head: bytes | None) -> None:
    if size > LARGEST:
        raise error("too-large", f"the file has more than {LARGEST} bytes; send it in parts")


def _met(store: Storage, asked: Pruning, rows: Sequence[KernelRow], ages: Ages) -> list[str]:
    return [row.key for row in rows if asked.meets(store, row, ages)]


def _checked(store: Storage, rows: Sequence[KernelRow], ages: Ages) -> list[CheckedKernelOut]:
    def one(row: KernelRow) -> CheckedKernelOut:
        state, reasons = soundness(store, row, ages, generate=False)
        return CheckedKernelOut(
            key=row.key, chain=row.chain, device=row.device, state=state, reasons=list(reasons)
        )

    return [one(row) for row in rows]


def _address(below: str, given: Mapping[str, object]) -> str:
    query = {n: str(v).lower() if v is True else v for n, v in given.items() if v is not None}
    return f"/v1/kernels{below}?{urlencode(query)}"
