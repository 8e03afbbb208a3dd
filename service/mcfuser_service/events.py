"""The progress of one job: waiting for its state to change, and server-sent events."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Header, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse
from fastapi.sse import format_sse_event

from mcfuser_db import Job, Storage
from mcfuser_db.models import OVER
from mcfuser_service.lookup import found
from mcfuser_service.openapi import problems, readable
from mcfuser_service.queries import only
from mcfuser_service.watch import JobSnapshot, JobWatch

HEARTBEAT = 15.0
"""Seconds of silence after which a comment is sent, so that no proxy takes the stream for dead."""
AGAIN = 2000
"""Milliseconds after which a client whose stream broke off connects again."""

_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
_EVENT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "event": {"enum": ["state", "progress"]},
        "data": {
            "type": "string",
            "contentMediaType": "application/json",
            "contentSchema": {"$ref": "#/components/schemas/JobOut"},
        },
        "id": {"type": "string", "pattern": "^[0-9]+$"},
        "retry": {"type": "integer"},
    },
}
_RESPONSES: dict[int | str, dict[str, Any]] = {
    **problems("no-such-job"),
    200: {
        "description": "Events `state` and `progress`, whose data is the job as JSON (`JobOut`, "
        "without the report) and whose id is the job's version. The stream ends after the job's "
        "last event.",
        "content": {"text/event-stream": {"itemSchema": _EVENT}},
    },
    204: {"description": "The job is over, and Last-Event-ID is that of its last event"},
}


class EventStream(StreamingResponse):
    """Server-sent events. FastAPI's own class for them takes no answer without a stream."""

    media_type = "text/event-stream"


async def waited(store: Storage, watch: JobWatch, id: UUID, seconds: float) -> Job:
    """The job as it is once its state has changed, at the latest after so many seconds; at once
    where it is over. Its report can be read only then. Raises ProblemError where there is none.

    What others who wait have read is not read again: many may wait for one job.
    """
    end = time.monotonic() + seconds
    with watch.following(id) as follower:
        known = follower.latest
        job = known.job if known is not None else await run_in_threadpool(found, store, id)
        state = job.state
        while job.state == state and state not in OVER:
            newer = await follower.after(job.version, end - time.monotonic())
            if newer is None:
                return job
            job = newer.job
    return await run_in_threadpool(found, store, id) if job.state in OVER else job


def add_events(routes: APIRouter, store: Storage, watch: JobWatch) -> None:
    """Adds the route of a job's events."""

    @readable(
        routes,
        "/{id}/events",
        response_class=EventStream,
        responses=_RESPONSES,
        dependencies=[only()],
    )
    async def events(
        id: UUID, request: Request, last_event_id: Annotated[str | None, Header()] = None
    ) -> Response:
        """The job's progress as it goes on, as server-sent events; ends when the job is over."""
        job = await run_in_threadpool(found, store, id)
        seen = _version(last_event_id)
        if job.state in OVER and job.version == seen:
            return Response(status_code=204, headers=_HEADERS)  # clients then connect no more
        request.scope["waits"] = True  # its seconds are the job's
        if request.method == "HEAD":
            return Response(media_type=EventStream.media_type, headers=_HEADERS)
        return EventStream(_stream(watch, job, seen), headers=_HEADERS)


async def _stream(watch: JobWatch, job: Job, seen: int | None) -> AsyncIterator[bytes]:
    with watch.following(job.id) as follower:
        yield format_sse_event(retry=AGAIN)
        latest, state = JobSnapshot(job), ""
        if latest.version == seen:
            state = job.state
        else:
            yield _event(latest, state)
        while (state := latest.job.state) not in OVER and not follower.ended:
            newer = await follower.after(latest.version, HEARTBEAT)
            if newer is not None:
                latest = newer
                yield _event(latest, state)
            else:
                yield format_sse_event(comment="still here")


def _event(snapshot: JobSnapshot, before: str) -> bytes:
    """An event, whose name says whether the state has changed."""
    kind = "state" if snapshot.job.state != before else "progress"
    return format_sse_event(data_str=snapshot.json, event=kind, id=str(snapshot.version))


def _version(header: str | None) -> int | None:
    """The version that a Last-Event-ID names; None where it names none."""
    if header is None or not (header.isascii() and header.isdigit() and len(header) < 10):
        return None
    return int(header)
