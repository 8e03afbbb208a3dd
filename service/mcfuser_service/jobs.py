"""The routes of /v1/jobs: posting a model, following its job, fetching the module."""

from __future__ import annotations

import base64
from functools import partial
from typing import Annotated, Any
from urllib.parse import urlencode
from uuid import UUID

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse, PlainTextResponse

from mcfuser_db import Blobs, Job, JobLog, Storage
from mcfuser_db.models import OVER
from mcfuser_service.access import caller_of
from mcfuser_service.body import RequestBody
from mcfuser_service.documents import as_json, served
from mcfuser_service.etag import is_known
from mcfuser_service.events import add_events, waited
from mcfuser_service.inspect import Inspect
from mcfuser_service.lookup import RETRY, UNDONE, check_kept, done, found
from mcfuser_service.metrics import Metrics
from mcfuser_service.openapi import document, problems, readable
from mcfuser_service.owners import check_own, not_alone, posters
from mcfuser_service.posting import Posting, check_size, key_in
from mcfuser_service.problems import ProblemError, error
from mcfuser_service.queries import only
from mcfuser_service.schemas import JobOut, JobPage, JobState, PostQuery
from mcfuser_service.settings import ServiceSettings
from mcfuser_service.watch import JobWatch
from mcfuser_service.webhooks import check_target

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

_POST = problems(
    "bad-model", "disk-full", "busy", "empty-body", "stalled", "not-raw", "too-large", "key-reused",
    "nothing-to-reuse", "webhook-refused", "too-many-queued", "over-quota",
)  # fmt: skip
_BINARY = {"schema": {"type": "string", "format": "binary"}}
_ERROR = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
_MODULE: dict[int | str, dict[str, Any]] = {
    **problems(*UNDONE),
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

    posting = Posting(settings, store, blobs, inspect)
    sent = "send the ONNX file itself: curl --data-binary @model.onnx"
    body = RequestBody("model", sent, partial(check_size, settings))

    @routes.post("", status_code=202, openapi_extra=_BODY, responses=_POST)
    async def post(
        request: Request,
        response: Response,
        query: Annotated[PostQuery, Query()],
        idempotency_key: Annotated[
            str | None,
            Header(
                description="a request that is sent again with the same key is answered with the "
                "same job"
            ),
        ] = None,
    ) -> JobOut:
        """Compiles the ONNX model that is the request's body, or an archive of its folder; equal
        requests share one job."""
        body.check_type(request)
        key, caller = key_in(idempotency_key), caller_of(request)
        if query.webhook is not None:
            check_target(query.webhook, settings)
        with blobs.arriving() as incoming:
            await body.receive(request, incoming, settings.upload_stall)
            job, how = await posting.job(incoming, query, key, caller)
        metrics.submissions.labels(how).inc()
        return _accepted(job, response)

    @readable(
        routes,
        "",
        response_model=JobPage,
        responses=problems(),
        dependencies=[only("state", "limit", "after")],
    )
    def listed(
        request: Request,
        state: JobState | None = None,
        limit: Annotated[int, Query(ge=1, le=500)] = 50,
        after: UUID | None = None,
    ) -> Response:
        rows = store.jobs(state, limit, after)
        asked = {"state": state, "limit": limit, "after": rows[-1].id if rows else None}
        query = urlencode({k: v for k, v in asked.items() if v is not None})
        more = f"/v1/jobs?{query}" if len(rows) == limit else None
        names = posters(store, caller_of(request), rows)
        items = [JobOut.of(r, whole=False, posted_by=names.get(r.api_key)) for r in rows]
        return as_json(JobPage(items=items, next=more))

    @readable(routes, "/{id}", responses=problems("no-such-job"), dependencies=[only("wait")])
    async def one(
        id: UUID,
        request: Request,
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
            request.scope["waits"] = True  # its seconds are the job's
            job = await waited(store, watch, id, wait)
        else:
            job = await run_in_threadpool(found, store, id)
        if job.state not in OVER:
            response.headers.update(RETRY)
        caller, name = caller_of(request), None
        if caller.is_admin and job.api_key is not None:
            name = (await run_in_threadpool(posters, store, caller, [job]))[job.api_key]
        signed = job.state == "done" and await run_in_threadpool(store.attestation, id) is not None
        return JobOut.of(job, whole=job.state in OVER, posted_by=name, signed=signed)

    add_events(routes, store, watch)

    @routes.delete(
        "/{id}", status_code=204, responses=problems("no-such-job", "over"), dependencies=[only()]
    )
    def cancel(id: UUID, request: Request) -> None:
        """Ends a job that is not over, for all who posted its model. A key ends only what was
        posted with it alone; one with the scope admin ends every job."""
        caller = caller_of(request)
        if store.cancel(id, None if caller.is_admin else caller.key):
            return
        job = found(store, id)
        check_own(caller, job, "cancel")
        if job.state in OVER and job.state != "cancelled":
            raise error(
                "over", f"job {id} is {job.state}; only a queued or running one can be cancelled"
            )
        if job.state != "cancelled":
            raise not_alone(job)

    @routes.post(
        "/{id}/retry",
        status_code=202,
        responses=problems("no-such-job", "not-over", "over", "lost", "too-many-queued"),
        dependencies=[only()],
    )
    def retry(id: UUID, request: Request, response: Response) -> JobOut:
        """Puts a job that has failed or was cancelled back in the queue; where the same work was
        posted since, the answer is that job."""
        job, caller = found(store, id), caller_of(request)
        check_own(caller, job, "retry")
        if job.state not in ("failed", "cancelled"):
            raise _untried(job)
        check_kept(job)
        if not blobs.sound(job.model):
            raise error("lost", f"the model of job {id} is no longer kept; post it again")
        back = store.put_back(id, None if caller.is_admin else caller.key)
        if back is None:  # someone else was faster
            raise _untried(found(store, id))
        return _accepted(back, response)

    @readable(
        routes,
        "/{id}/log",
        response_class=PlainTextResponse,
        responses=problems("no-such-job", "lost"),
        dependencies=[only()],
    )
    def log(id: UUID) -> Response:
        """What was done for the job, a line each: its stages, what was decided for each chain, what
        was left out and why, its attempts and how they ended."""
        job = found(store, id)
        check_kept(job)
        return PlainTextResponse(_text(store.log(id)))

    @readable(
        routes,
        "/{id}/report",
        response_model=None,
        responses={**document("Report"), **problems(*UNDONE)},
        dependencies=[only()],
    )
    def report(id: UUID) -> Response:
        """How the model was compiled: chains, kernels, times, and what was left out and why."""
        return Response(served(done(store, id).report or {}), media_type="application/json")

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
        if is_known(if_none_match, digest):
            return Response(status_code=304, headers=headers)
        return FileResponse(
            blobs.path(digest),
            media_type="application/octet-stream",
            filename="module.so",
            headers=headers,
        )

    return routes


def _accepted(job: Job, response: Response) -> JobOut:
    """The answer of 202 to a request for work: where its job is, and when to ask for it."""
    response.headers["Location"] = f"/v1/jobs/{job.id}"
    response.headers.update(RETRY)
    return JobOut.of(job, cached=job.state == "done")


def _text(log: JobLog) -> str:
    """The log as it is served: a line for each, with its moment."""
    head = [f"({log.dropped} earlier lines are no longer kept)"] if log.dropped else []
    lines = [f"{line.moment:%Y-%m-%dT%H:%M:%S}Z {line.words}" for line in log.lines]
    return "".join(f"{line}\n" for line in (*head, *lines))


def _untried(job: Job) -> ProblemError:
    if job.state == "done":
        again = "post the model with retune=true to search its kernels again"
        return error("over", f"job {job.id} is done; {again}")
    return error("not-over", f"job {job.id} is {job.state}; cancel it, or wait until it is over")
