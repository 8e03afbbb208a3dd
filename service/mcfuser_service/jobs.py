"""The routes of /v1/jobs: posting a model, following its job, fetching the module."""

from __future__ import annotations

import asyncio
import base64
from typing import Annotated, Any
from urllib.parse import urlencode
from uuid import UUID

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse, JSONResponse

from mcfuser.errors import InputError, SpaceError
from mcfuser.graph.archive import HEAD, is_archive
from mcfuser.graph.limits import SETTING
from mcfuser_db import Blobs, Job, Order, Storage
from mcfuser_db.blobs import Incoming
from mcfuser_db.models import OVER
from mcfuser_service.documents import finite
from mcfuser_service.events import add_events, waited
from mcfuser_service.inspect import Inspect
from mcfuser_service.lookup import RETRY, done, found
from mcfuser_service.metrics import Metrics
from mcfuser_service.openapi import document, problems, readable
from mcfuser_service.problems import ProblemError, error, problem
from mcfuser_service.queries import only
from mcfuser_service.schemas import JobOptions, JobOut, JobPage, JobState
from mcfuser_service.settings import ServiceSettings
from mcfuser_service.watch import JobWatch
from mcfuser_service.work import work_key

_CHUNK = 1 << 20
LONGEST_WAIT = 60
"""The most seconds that a request for a job may wait."""
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "The ONNX file; or, where its weights are in files beside it, a zip or tar "
        "(.tar, .tar.gz) of its folder, with exactly one .onnx in it. Its first bytes say which.",
        "content": {
            kind: {"schema": {"type": "string", "format": "binary"}}
            for kind in (
                "application/octet-stream",
                "application/zip",
                "application/x-tar",
                "application/gzip",
            )
        },
    }
}

_POST = problems("bad-model", "disk-full", "busy", "empty-body", "stalled", "not-raw", "too-large")
_UNDONE = (
    "no-such-job", "not-ready", "cancelled", "lost", "bad-model", "timed-out", "out-of-memory",
    "crashed", "gave-up",
)  # fmt: skip
"""The problems of requests for a job's results; those from `lost` on are those of a failed job."""
_BINARY = {"schema": {"type": "string", "format": "binary"}}
_ERROR = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
_MODULE: dict[int | str, dict[str, Any]] = {
    **problems(*_UNDONE),
    200: {"description": "OK", "content": {"application/octet-stream": _BINARY}},
    206: {"description": "The Range of it", "content": {"application/octet-stream": _BINARY}},
    304: {"description": "It is the one that If-None-Match names"},
    416: {"description": "The Range lies outside it", "content": _ERROR},
}


def router(
    settings: ServiceSettings,
    store: Storage,
    blobs: Blobs,
    inspect: Inspect,
    metrics: Metrics,
    watch: JobWatch,
) -> APIRouter:
    """The routes, given the database."""
    routes = APIRouter(prefix="/v1/jobs", tags=["jobs"])

    @routes.post("", status_code=202, openapi_extra=_BODY, responses=_POST)
    async def post(
        request: Request, response: Response, options: Annotated[JobOptions, Query()]
    ) -> JobOut:
        """Compiles the ONNX model that is the request's body, or an archive of its folder; equal
        requests share one job."""
        _check_type(request)
        with blobs.arriving() as incoming:
            await _receive(request, incoming, settings)
            live = await run_in_threadpool(store.live, work_key(incoming.digest, options))
            if live is None:
                await _inspect(incoming, options, inspect)
            job, how = await run_in_threadpool(_submit, incoming, options, live, store, blobs)
        metrics.submissions.labels(how).inc()
        response.headers["Location"] = f"/v1/jobs/{job.id}"
        response.headers.update(RETRY)
        return JobOut.of(job, cached=how == "cached")

    @readable(routes, "", responses=problems(), dependencies=[only("state", "limit", "after")])
    def listed(
        state: JobState | None = None,
        limit: Annotated[int, Query(ge=1, le=500)] = 50,
        after: UUID | None = None,
    ) -> JobPage:
        rows = store.jobs(state, limit, after)
        asked = {"state": state, "limit": limit, "after": rows[-1].id if rows else None}
        query = urlencode({k: v for k, v in asked.items() if v is not None})
        more = f"/v1/jobs?{query}" if len(rows) == limit else None
        return JobPage(items=[JobOut.of(r, whole=False) for r in rows], next=more)

    @readable(routes, "/{id}", responses=problems("no-such-job"), dependencies=[only("wait")])
    async def one(
        id: UUID,
        response: Response,
        wait: Annotated[
            float,
            Query(
                ge=0,
                le=LONGEST_WAIT,
                description="seconds to wait for the job's state to change; the answer comes then, "
                "or at once where the job is over",
            ),
        ] = 0,
    ) -> JobOut:
        """The job as it is."""
        if wait > 0:
            job = await waited(store, watch, id, wait)
        else:
            job = await run_in_threadpool(found, store, id)
        if job.state not in OVER:
            response.headers.update(RETRY)
        return JobOut.of(job)

    add_events(routes, store, watch)

    @routes.delete(
        "/{id}", status_code=204, responses=problems("no-such-job", "over"), dependencies=[only()]
    )
    def cancel(id: UUID) -> None:
        """Ends a job that is not over, for all who posted its model."""
        if not store.cancel(id) and (state := found(store, id).state) != "cancelled":
            raise error(
                "over", f"job {id} is {state}; only a queued or running one can be cancelled"
            )

    @readable(
        routes,
        "/{id}/report",
        response_model=None,
        responses={**document("Report"), **problems(*_UNDONE)},
        dependencies=[only()],
    )
    def report(id: UUID) -> Response:
        """How the model was compiled: chains, kernels, times, and what was left out and why."""
        return JSONResponse(finite(done(store, id).report or {}))

    @readable(
        routes,
        "/{id}/module",
        response_class=FileResponse,
        responses=_MODULE,
        dependencies=[only()],
    )
    def module(id: UUID, if_none_match: Annotated[str | None, Header()] = None) -> Response:
        """The compiled module, a shared library."""
        job = done(store, id)
        digest = job.module
        if digest is None or not blobs.sound(digest):
            raise error("lost", f"the module of job {id} is no longer kept; post the model again")
        headers = {
            "ETag": f'"{digest}"',
            "Repr-Digest": f"sha-256=:{base64.b64encode(bytes.fromhex(digest)).decode()}:",
            "Cache-Control": "private, max-age=31536000, immutable",
        }
        if if_none_match is not None and _matches(if_none_match, digest):
            return Response(status_code=304, headers=headers)
        return FileResponse(
            blobs.path(digest),
            media_type="application/octet-stream",
            filename="module.so",
            headers=headers,
        )

    return routes


def _check_type(request: Request) -> None:
    if request.headers.get("content-type", "").startswith("multipart/"):
        raise error(
            "not-raw",
            "the body is a form; send the ONNX file itself: curl --data-binary @model.onnx",
        )


def _declared(request: Request) -> int:
    """The size that the header gives; 0 where it gives none."""
    length = request.headers.get("content-length", "")
    return int(length[:20]) if length.isascii() and length.isdigit() else 0


def _check_size(size: int, head: bytes | None, settings: ServiceSettings) -> None:
    """Raises ProblemError where a body has more bytes than one may have that begins with `head`;
    the larger limit holds while this is not known."""
    limits = {
        "model_bytes": (settings.max_model_bytes, "model"),
        "archive_bytes": (settings.max_archive_bytes, "archive"),
    }
    if head is None:
        name = max(limits, key=lambda n: limits[n][0])
    else:
        name = "archive_bytes" if is_archive(head) else "model_bytes"
    limit, what = limits[name]
    if size > limit:
        raise error(
            "too-large",
            f"the {what} has more than {limit} bytes, which is the limit here; make it smaller or "
            f"raise {SETTING}{name.upper()}",
        )


async def _receive(request: Request, incoming: Incoming, settings: ServiceSettings) -> None:
    """Writes the body to disk in chunks; a sender that stops sending is given up."""
    chunk, parts, head, declared = bytearray(), request.stream(), b"", _declared(request)
    _check_size(declared, None, settings)
    while True:
        try:
            part = await asyncio.wait_for(anext(parts, None), settings.upload_stall)
        except TimeoutError:
            raise _stalled(settings.upload_stall) from None
        if len(head) < HEAD:
            head += (part or b"")[: HEAD - len(head)]
        known = part is None or len(head) == HEAD
        size = incoming.size + len(chunk) + len(part or b"")
        _check_size(max(size, declared), head if known else None, settings)
        if part is None:
            break
        chunk += part
        if len(chunk) >= _CHUNK:
            await run_in_threadpool(incoming.write, bytes(chunk))
            chunk.clear()
    incoming.write(bytes(chunk))
    if incoming.size == 0:
        raise error(
            "empty-body", "the body is empty; send the ONNX file: curl --data-binary @model.onnx"
        )


def _stalled(seconds: float) -> ProblemError:
    silent = error("stalled", f"no byte of the model came for {seconds:g} s; post it again")
    return ProblemError(silent.details, {"Connection": "close"})


async def _inspect(incoming: Incoming, options: JobOptions, inspect: Inspect) -> None:
    try:
        await inspect(incoming.flushed(), options.shapes)
    except SpaceError as full:
        raise ProblemError(problem("disk-full", str(full)), {"Retry-After": "60"}) from None
    except InputError as bad:
        raise error("bad-model", str(bad)) from None


def _submit(
    incoming: Incoming, options: JobOptions, live: Job | None, store: Storage, blobs: Blobs
) -> tuple[Job, str]:
    """The job of a model, and whether it is `new`, `shared` or `cached`; `live` is an earlier job
    for the same work."""
    if live is not None and live.module is not None and blobs.sound(live.module):
        if not blobs.sound(incoming.digest):
            incoming.keep()
        return live, "cached"
    work = work_key(incoming.digest, options)
    order = Order(
        work, incoming.keep(), incoming.size, options.device, options.model_dump(mode="json")
    )
    job, new = store.submit(order)
    if job.state == "done" and job.module is not None and not blobs.sound(job.module):
        store.requeue(job.id)
        job = found(store, job.id)
    return job, "new" if new else "shared"


def _matches(header: str, digest: str) -> bool:
    """Compares an entity tag as If-None-Match does (RFC 9110's weak comparison)."""
    tags = (tag.strip().removeprefix("W/") for tag in header.split(","))
    return any(tag in ("*", f'"{digest}"') for tag in tags)
