"""The progress of one job: waiting for its state to change, and server-sent events."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse
from fastapi.sse import format_sse_event

from mcfuser_db import Job, Storage, StorageError
from mcfuser_db.models import OVER
from mcfuser_service.lookup import found
from mcfuser_service.missed import JobSnapshot, Missed, follows, missed_since
from mcfuser_service.openapi import problems, readable
from mcfuser_service.queries import only
from mcfuser_service.watch import JobWatch

HEARTBEAT = 15.0
"""Seconds of silence after which a comment is sent, so that no proxy takes the stream for dead."""
AGAIN = 2000
"""Milliseconds after which a client whose stream broke off connects again."""

_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
_COMMON: dict[str, Any] = {"retry": {"type": "integer"}}
_EVENT: dict[str, Any] = {
    "oneOf": [
        {
            "type": "object",
            "properties": {
                "event": {"enum": ["state", "progress"]},
                "data": {
                    "type": "string",
                    "contentMediaType": "application/json",
                    "contentSchema": {"$ref": "#/components/schemas/JobOut"},
                },
                "id": {"type": "string", "pattern": "^[0-9]+$"},
                **_COMMON,
            },
        },
        {
            "type": "object",
            "required": ["event", "data"],
            "properties": {
                "event": {"const": "gap"},
                "data": {
                    "type": "string",
                    "contentMediaType": "application/json",
                    "contentSchema": {
                        "type": "object",
                        "required": ["after", "oldest"],
                        "properties": {
                            "after": {"type": "integer"},
                            "oldest": {"type": ["integer", "null"]},
                        },
                    },
                },
                **_COMMON,
            },
        },
    ]
}
_RESPONSES: dict[int | str, dict[str, Any]] = {
    **problems("no-such-job"),
    200: {
        "description": "Events `state` and `progress`, whose data is the job as JSON (`JobOut`, "
        "without the report) and whose id is the job's version: all that are kept after the one "
        "that Last-Event-ID or `after` names, and then those that come; the job as it is at first, "
        "where neither is there. An event `gap` says that events after the version `after` are no "
        "longer kept; the next event is then the job as it is, and `oldest` the first version "
        "that is kept. The stream ends after the job's last event.",
        "content": {"text/event-stream": {"itemSchema": _EVENT}},
    },
    204: {"description": "The job is over, and its last event was seen"},
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
            if not newer:
                return job
            job = newer[-1].job
    return await run_in_threadpool(found, store, id) if job.state in OVER else job


def add_events(routes: APIRouter, store: Storage, watch: JobWatch) -> None:
    """Adds the route of a job's events."""

    @readable(
        routes,
        "/{id}/events",
        response_class=EventStream,
        responses=_RESPONSES,
        dependencies=[only("after")],
    )
    async def events(
        id: UUID,
        request: Request,
        after: Annotated[
            int | None,
            Query(
                ge=0,
                le=2**31 - 1,
                description="a version of the job: all later events that are kept come first; 0 "
                "has them all. Last-Event-ID says the same, and prevails",
            ),
        ] = None,
        last_event_id: Annotated[str | None, Header()] = None,
    ) -> Response:
        """The job's progress as it goes on, as server-sent events; ends when the job is over."""
        job = await run_in_threadpool(found, store, id)
        named = _version(last_event_id)
        seen = named if named is not None else after
        if job.state in OVER and job.version == seen:
            return Response(status_code=204, headers=_HEADERS)  # clients then connect no more
        request.scope["waits"] = True  # its seconds are the job's
        if request.method == "HEAD":
            return Response(media_type=EventStream.media_type, headers=_HEADERS)
        return EventStream(_stream(store, watch, job, seen), headers=_HEADERS)


async def _stream(
    store: Storage, watch: JobWatch, job: Job, seen: int | None
) -> AsyncIterator[bytes]:
    """The events after the version `seen`, and then those that come; the job as it is comes first
    where `seen` is None, or a version that the job does not have yet."""
    with watch.following(job.id) as follower, suppress(StorageError):  # its client asks again
        parts = [format_sse_event(retry=AGAIN)]
        if seen is None or seen > job.version:
            missed = Missed("", [JobSnapshot(job)])
        else:
            missed = await _missed(store, job, seen)
        version, state = seen or 0, missed.before
        while True:
            if missed.incomplete:
                parts.append(_gap(version, missed.oldest))
            for snapshot in missed.snapshots:
                parts.append(_event(snapshot, state))
                version, state = snapshot.version, snapshot.job.state
            yield b"".join(parts)  # at once: TCP may delay a second write
            parts.clear()
            if state in OVER:
                return
            while not (newer := await follower.after(version, HEARTBEAT)):
                if follower.ended:
                    return
                yield format_sse_event(comment="still here")
            if follows(version, newer):
                missed = Missed(state, newer)
            else:
                missed = await _missed(store, newer[-1].job, version)


async def _missed(store: Storage, job: Job, version: int) -> Missed:
    if version == job.version:
        return Missed(job.state, [])
    return await run_in_threadpool(missed_since, store, job, version)


def _gap(version: int, oldest: int | None) -> bytes:
    """Says that not all events after a version are kept."""
    told = json.dumps({"after": version, "oldest": oldest})
    return format_sse_event(data_str=told, event="gap")


def _event(snapshot: JobSnapshot, before: str) -> bytes:
    """An event, whose name says whether the state has changed."""
    kind = "state" if snapshot.job.state != before else "progress"
    return format_sse_event(data_str=snapshot.json, event=kind, id=str(snapshot.version))


def _version(header: str | None) -> int | None:
    """The version that a Last-Event-ID names; None where it names none."""
    if header is None or not (header.isascii() and header.isdigit() and len(header) < 10):
        return None
    return int(header)
